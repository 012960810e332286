//! What a mirror did, path by path.

use crate::checkpoint::MergeConflictKind;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use treehold_core::error::{Error, ErrorRecord};
use treehold_core::path::VfsPathBuf;

/// The most conflicts, and the most failures, that a report lists.
const LISTED_MAX: usize = 1_000;

/// What was done at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MirrorAction {
    /// A file or directory of the tree was created or replaced in the directory.
    Mirrored,
    /// A file or directory that the tree no longer has was removed from the directory.
    Removed,
    /// A change in the directory was overwritten with what the tree has.
    Overwritten,
    /// A change in the directory was written to the tree.
    WrittenBack,
    /// A file or directory that was removed from the directory was removed from the tree.
    RemovedFromTree,
    /// Both sides changed different lines of a file, and now have both changes.
    Merged,
    /// Both sides changed a path in ways that cannot both be taken.
    Conflict,
    /// A rule or a read-only tree refused a change in the directory, which was overwritten with what the tree has.
    Refused,
    /// The path could not be mirrored or written back. It is tried again when it changes, and now and then.
    Failed,
}

impl MirrorAction {
    /// Returns the stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mirrored => "mirrored",
            Self::Removed => "removed",
            Self::Overwritten => "overwritten",
            Self::WrittenBack => "written_back",
            Self::RemovedFromTree => "removed_from_tree",
            Self::Merged => "merged",
            Self::Conflict => "conflict",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for MirrorAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Whose content is at a path after a conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MirrorSide {
    /// The tree's.
    Tree,
    /// The directory's.
    Directory,
    /// Both: with conflict markers, or the directory's in a file beside the tree's.
    Both,
}

/// One thing that a mirror did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct MirrorEvent {
    /// What was done.
    pub action: MirrorAction,
    /// Where, as a path of the mirrored tree.
    pub path: VfsPathBuf,
    /// The reason of a conflict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conflict: Option<MergeConflictKind>,
    /// Whose content a conflict left at the path. The other side's is lost there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<MirrorSide>,
    /// The reason of a refusal or failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorRecord>,
}

impl MirrorEvent {
    pub(super) fn new(action: MirrorAction, path: &VfsPathBuf) -> Self {
        Self { action, path: path.clone(), conflict: None, kept: None, error: None }
    }

    pub(super) fn conflict(path: &VfsPathBuf, conflict: MergeConflictKind, kept: MirrorSide) -> Self {
        Self { conflict: Some(conflict), kept: Some(kept), ..Self::new(MirrorAction::Conflict, path) }
    }

    pub(super) fn with_error(self, error: &Error) -> Self {
        Self { error: Some(ErrorRecord::from(error)), ..self }
    }
}

/// The results of one comparison of a tree and its directory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct MirrorReport {
    /// How many files and directories were created or replaced in the directory.
    pub mirrored: usize,
    /// How many were removed from the directory.
    pub removed: usize,
    /// How many changes in the directory were overwritten, because the mirror is read-only or a rule refused them.
    pub overwritten: usize,
    /// How many changes in the directory were written to the tree, merged ones and removals included.
    pub written_back: usize,
    /// The conflicts, at most 1,000.
    pub conflicts: Vec<MirrorEvent>,
    /// The paths that could not be mirrored or written back, and refused changes; at most 1,000.
    pub failures: Vec<MirrorEvent>,
    /// Whether more conflicts or failures exist than are listed.
    pub truncated: bool,
    /// Whether the files stayed in the directory when the mirror was closed.
    pub kept: bool,
}

impl MirrorReport {
    /// Counts an event.
    pub(super) fn count(&mut self, event: &MirrorEvent) {
        match event.action {
            MirrorAction::Mirrored => self.mirrored += 1,
            MirrorAction::Removed => self.removed += 1,
            MirrorAction::Overwritten => self.overwritten += 1,
            MirrorAction::WrittenBack | MirrorAction::RemovedFromTree | MirrorAction::Merged => self.written_back += 1,
            MirrorAction::Conflict => push(&mut self.conflicts, event, &mut self.truncated),
            MirrorAction::Refused => {
                self.overwritten += 1;
                push(&mut self.failures, event, &mut self.truncated);
            }
            MirrorAction::Failed => push(&mut self.failures, event, &mut self.truncated),
        }
    }

    /// Returns whether nothing was done and nothing failed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn push(list: &mut Vec<MirrorEvent>, event: &MirrorEvent, truncated: &mut bool) {
    // A path that is tried several times in one comparison fails once.
    list.retain(|earlier| earlier.path != event.path || earlier.action != event.action);
    if list.len() < LISTED_MAX {
        list.push(event.clone());
    } else {
        *truncated = true;
    }
}
