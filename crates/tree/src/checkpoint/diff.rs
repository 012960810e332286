//! Differences between two checkpoints.

use crate::backend::{StateDifference, StateNode, StateSnapshot};
use schemars::JsonSchema;
use serde::Serialize;
use treehold_core::error::Result;
use treehold_core::ops::{Difference, Standing};
use treehold_core::path::{VfsPath, VfsPathBuf};

/// The number of differences that are examined at once.
const STEP: usize = 1_000;

/// A page of differences between two states, in path order.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Diff {
    /// The differing paths.
    pub paths: Vec<PathDiff>,
    /// The path to continue after; `None` on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<VfsPathBuf>,
}

/// One path that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct PathDiff {
    /// The path.
    pub path: VfsPathBuf,
    /// The kind of change.
    pub change: ChangeKind,
    /// Whether the older state has a directory there.
    pub was_directory: bool,
    /// Whether the newer state has a directory there.
    pub is_directory: bool,
    /// The size in bytes of the file in the older state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_size_bytes: Option<u64>,
    /// The size in bytes of the file in the newer state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_size_bytes: Option<u64>,
    /// Whether the caller may read what either state has there; set by the session.
    #[serde(skip)]
    pub is_readable: bool,
}

impl From<&PathDiff> for Difference {
    fn from(path: &PathDiff) -> Self {
        let standing = |is_directory: bool, size_bytes: Option<u64>| match size_bytes {
            Some(size_bytes) => Some(Standing::File(size_bytes)),
            None => is_directory.then_some(Standing::Directory),
        };
        let before = standing(path.was_directory, path.old_size_bytes);
        Self::new(path.path.clone(), before, standing(path.is_directory, path.new_size_bytes))
    }
}

/// The kind of change at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// Only the newer state has it.
    Added,
    /// Both have it, with different content or of different kinds.
    Changed,
    /// Only the older state has it.
    Removed,
}

/// Returns a page of the differences between two states, by content: a file that was rewritten with the same content does not differ.
///
/// Cost: proportional to the differences, because shared parts are skipped. Contents are read only if neither file is saved and both have
/// the same size.
///
/// # Errors
/// The errors of the store, for states that were saved.
pub async fn diff(older: &StateSnapshot, newer: &StateSnapshot, start_after: Option<&VfsPath>, limit: usize) -> Result<Diff> {
    let mut paths: Vec<PathDiff> = Vec::new();
    let mut after = start_after.map(ToOwned::to_owned);
    loop {
        let step = limit.saturating_add(1).saturating_sub(paths.len()).min(STEP);
        let differences = newer.differences(older, after.as_deref(), step).await?;
        after = differences.last().map(|last| last.path().to_owned()).or(after);
        let is_last = differences.len() < step;
        for difference in differences {
            if is_same_content(&difference) {
                continue;
            }
            if paths.len() == limit {
                let last = paths.last().map(|last| &*last.path).or(start_after);
                let next = Some(last.unwrap_or(VfsPath::ROOT).to_owned());
                return Ok(Diff { paths, next });
            }
            paths.push(PathDiff::of(&difference));
        }
        if is_last {
            return Ok(Diff { paths, next: None });
        }
    }
}

/// Returns whether both have a file with the same content. Two files of the same size, neither of them saved or in memory, count as
/// different.
pub(super) fn is_same_content(difference: &StateDifference) -> bool {
    let StateDifference::Changed(_, older, newer) = difference else { return false };
    if older.is_directory() != newer.is_directory() || older.size_bytes() != newer.size_bytes() {
        return false;
    }
    if older.is_directory() {
        return true;
    }
    older.hash().is_some_and(|hash| newer.hash() == Some(hash))
}

impl PathDiff {
    fn of(difference: &StateDifference) -> Self {
        let change = match difference {
            StateDifference::Added(..) => ChangeKind::Added,
            StateDifference::Changed(..) => ChangeKind::Changed,
            StateDifference::Removed(..) => ChangeKind::Removed,
        };
        let is_directory = |node: Option<&std::sync::Arc<StateNode>>| node.is_some_and(|node| node.is_directory());
        let size_bytes = |node: Option<&std::sync::Arc<StateNode>>| node.filter(|node| !node.is_directory()).map(|node| node.size_bytes());
        Self {
            path: difference.path().to_owned(),
            change,
            was_directory: is_directory(difference.older()),
            is_directory: is_directory(difference.newer()),
            old_size_bytes: size_bytes(difference.older()),
            new_size_bytes: size_bytes(difference.newer()),
            is_readable: true,
        }
    }
}
