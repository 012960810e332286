//! What a merge did, or what is in its way: data, bounded in size.

use super::MergeResolution;
use crate::backend::StateNode;
use crate::checkpoint::{ChangeKind, Checkpoint, ThreadCheckpoint};
use crate::ops::{EntryKind, Standing};
use crate::path::VfsPathBuf;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// How a merge ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MergeStatus {
    /// The other thread has nothing new; nothing was written.
    UpToDate,
    /// It was merged, or would be, in a dry run.
    Merged,
    /// A conflict is undecided; nothing was written.
    Conflict,
}

/// What a merge did, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct MergeOutcome {
    /// How it ended.
    pub status: MergeStatus,
    /// What both were compared with.
    pub base: ThreadCheckpoint,
    /// The head that was merged into.
    pub ours: ThreadCheckpoint,
    /// What was merged.
    pub theirs: ThreadCheckpoint,
    /// The new head, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// What the merge changes in the thread, in path order. Undecided conflicts change nothing.
    pub changes: Vec<MergeChange>,
    /// How many changes there are, those left out of the list too.
    pub changes_total: u64,
    /// The conflicts in path order, those that were decided too.
    pub conflicts: Vec<MergeConflict>,
    /// How many conflicts there are, those left out of the list too.
    pub conflicts_total: u64,
    /// How many conflicts are undecided.
    pub undecided: u64,
}

impl MergeOutcome {
    pub(super) fn new(base: ThreadCheckpoint, ours: ThreadCheckpoint, theirs: ThreadCheckpoint) -> Self {
        Self {
            status: MergeStatus::UpToDate,
            base,
            ours,
            theirs,
            checkpoint: None,
            changes: Vec::new(),
            changes_total: 0,
            conflicts: Vec::new(),
            conflicts_total: 0,
            undecided: 0,
        }
    }
}

/// Where what a merge puts at a path comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MergeOrigin {
    /// The merged thread: it alone changed the path.
    Theirs,
    /// Both: their lines were merged.
    Lines,
    /// A conflict that was decided.
    Decided,
}

/// One path that a merge changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct MergeChange {
    /// The path.
    pub path: VfsPathBuf,
    /// What happens to it.
    pub change: ChangeKind,
    /// Whether a directory stands there afterwards, or stood there if it is removed.
    pub is_directory: bool,
    /// Where it comes from.
    pub origin: MergeOrigin,
}

/// Why the changes of both sides to a path cannot both be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MergeConflictKind {
    /// Both changed the same lines of a text.
    BothChanged,
    /// Both added a file here, with other contents.
    BothAdded,
    /// Both changed a file that is no text, or too large to be merged by lines.
    Binary,
    /// One changed it and the other removed it.
    ChangedAndRemoved,
    /// One has a file here and the other a directory, and either changed what it has.
    FileAndDirectory,
    /// One added it to a directory that the other removed.
    DirectoryRemoved,
}

impl fmt::Display for MergeConflictKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::BothChanged => "both changed it",
            Self::BothAdded => "both added it",
            Self::Binary => "both changed it, and it is no text",
            Self::ChangedAndRemoved => "one changed it, one removed it",
            Self::FileAndDirectory => "a file on one side, a directory on the other",
            Self::DirectoryRemoved => "added on one side, its directory removed on the other",
        })
    }
}

/// A path that both sides changed in ways that cannot both be taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct MergeConflict {
    /// The path.
    pub path: VfsPathBuf,
    /// Why.
    pub kind: MergeConflictKind,
    /// What stood there when both parted; none when nothing did.
    pub base: Option<MergeSide>,
    /// What the thread has there.
    pub ours: Option<MergeSide>,
    /// What the merged thread has there.
    pub theirs: Option<MergeSide>,
    /// The lines that both changed, of two texts; at most 16 places.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hunks: Vec<MergeHunk>,
    /// How many such places there are.
    #[serde(skip_serializing_if = "is_zero")]
    pub hunks_total: u64,
    /// How many changed paths beneath it are decided with it, of those that the caller may know of.
    #[serde(skip_serializing_if = "is_zero")]
    pub beneath: u64,
    /// How it was decided; none when it was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided: Option<MergeResolution>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands in a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// What stands at a path on one side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct MergeSide {
    /// A file or a directory.
    pub kind: EntryKind,
    /// The size in bytes; of a directory, 0.
    pub size_bytes: u64,
    /// The BLAKE3 hash of the content of a file, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
}

impl MergeSide {
    pub(super) fn of(node: &StateNode) -> Self {
        let kind = if node.is_directory() { EntryKind::Directory } else { EntryKind::File };
        let hash = node.hash().map(|hash| blake3::Hash::from_bytes(hash).to_hex().to_string());
        Self { kind, size_bytes: node.size_bytes(), hash }
    }

    pub(super) fn standing(&self) -> Standing {
        if self.kind == EntryKind::Directory { Standing::Directory } else { Standing::File(self.size_bytes) }
    }
}

/// Lines that both sides changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct MergeHunk {
    /// What they were when both parted.
    pub base: MergeLines,
    /// What the thread has.
    pub ours: MergeLines,
    /// What the merged thread has.
    pub theirs: MergeLines,
}

/// A run of lines of one text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct MergeLines {
    /// The number of the first, from 1; of none, that of the line they would stand before.
    pub line: usize,
    /// How many they are.
    pub lines: usize,
    /// Their text, with what is no UTF-8 replaced; cut after 2 KiB, and left out where many conflicts are listed.
    pub text: String,
    /// Whether the text is cut or left out.
    pub truncated: bool,
}
