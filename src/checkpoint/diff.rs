//! What differs between two checkpoints.

use crate::backend::{StateDifference, StateNode, StateSnapshot};
use crate::error::Result;
use crate::ops::{Difference, Standing};
use crate::path::{VfsPath, VfsPathBuf};
use schemars::JsonSchema;
use serde::Serialize;

/// How many differences are looked at in one go.
const STEP: usize = 1_000;

/// A page of differences between two states, in path order.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Diff {
    /// The paths that differ.
    pub paths: Vec<PathDiff>,
    /// The path to go on after; none when there is no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<VfsPathBuf>,
}

/// One path that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct PathDiff {
    /// The path.
    pub path: VfsPathBuf,
    /// What happened to it.
    pub change: ChangeKind,
    /// Whether the older state has a directory there.
    pub was_directory: bool,
    /// Whether the newer state has a directory there.
    pub is_directory: bool,
    /// The size in bytes of the older state's file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_size_bytes: Option<u64>,
    /// The size in bytes of the newer state's file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_size_bytes: Option<u64>,
    /// Whether who asked may read what either state has there; [`Session::diff`](crate::Session::diff) asks.
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

/// What happened to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// The newer state has it alone.
    Added,
    /// Both have it, with other content or as another kind.
    Changed,
    /// The older state has it alone.
    Removed,
}

/// Returns a page of what differs between two states, by content: a file that was written again as it was does not differ.
///
/// Cost: grows with what differs, as what both share is passed over; contents are read only where neither is saved and both
/// have one size.
///
/// # Errors
/// Those of the store, for states that were saved.
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
                let next = paths.last().map(|last| last.path.clone()).or_else(|| start_after.map(ToOwned::to_owned));
                return Ok(Diff { paths, next });
            }
            paths.push(PathDiff::of(&difference));
        }
        if is_last {
            return Ok(Diff { paths, next: None });
        }
    }
}

/// Tells whether both have a file of the same content. Two files of one size of which neither is saved nor in memory count as
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
