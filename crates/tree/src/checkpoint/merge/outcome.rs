//! The outcome of a merge, or its conflicts: data, bounded in size.

use super::MergeResolution;
use crate::backend::StateNode;
use crate::checkpoint::{ChangeKind, Checkpoint, ThreadCheckpoint};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use treehold_core::ops::{EntryKind, Standing};
use treehold_core::path::VfsPathBuf;

/// How a merge ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MergeStatus {
    /// The other thread has nothing new; nothing was written.
    UpToDate,
    /// It was merged, or would be in a dry run.
    Merged,
    /// A conflict is undecided; nothing was written.
    Conflict,
}

/// The outcome of a merge or of its dry run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct MergeOutcome {
    /// How it ended.
    pub status: MergeStatus,
    /// The checkpoint that both were compared with.
    pub base: ThreadCheckpoint,
    /// The head that was merged into.
    pub ours: ThreadCheckpoint,
    /// The checkpoint that was merged.
    pub theirs: ThreadCheckpoint,
    /// The new head, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// The changes that the merge makes in the thread, in path order. Undecided conflicts change nothing.
    pub changes: Vec<MergeChange>,
    /// The number of changes, including unlisted ones.
    pub changes_total: u64,
    /// The conflicts in path order, including decided ones.
    pub conflicts: Vec<MergeConflict>,
    /// The number of conflicts, including unlisted ones.
    pub conflicts_total: u64,
    /// The number of undecided conflicts.
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

/// The origin of the content that a merge puts at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MergeOrigin {
    /// The merged thread: only it changed the path.
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
    /// The kind of change.
    pub change: ChangeKind,
    /// Whether a directory is there afterwards, or was there if it is removed.
    pub is_directory: bool,
    /// The origin of the content.
    pub origin: MergeOrigin,
}

/// The reason why both sides' changes to a path cannot both be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MergeConflictKind {
    /// Both changed the same lines of a text file.
    BothChanged,
    /// Both added a file here, with different contents.
    BothAdded,
    /// Both changed a file that is not text, or is too large to be merged by lines.
    Binary,
    /// One changed it and the other removed it.
    ChangedAndRemoved,
    /// One has a file here and the other a directory, and at least one of them changed it.
    FileAndDirectory,
    /// One added it to a directory that the other removed.
    DirectoryRemoved,
}

impl fmt::Display for MergeConflictKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::BothChanged => "both changed it",
            Self::BothAdded => "both added it",
            Self::Binary => "both changed it, and it is not text",
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
    /// The reason.
    pub kind: MergeConflictKind,
    /// What the common ancestor has there, if anything.
    pub base: Option<MergeSide>,
    /// What the thread has there.
    pub ours: Option<MergeSide>,
    /// What the merged thread has there.
    pub theirs: Option<MergeSide>,
    /// The conflicting lines of two text files; at most 16 hunks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hunks: Vec<MergeHunk>,
    /// The number of such hunks.
    #[serde(skip_serializing_if = "is_zero")]
    pub hunks_total: u64,
    /// The number of changed paths beneath that are decided with it, counting only those that the caller may know of.
    #[serde(skip_serializing_if = "is_zero")]
    pub beneath: u64,
    /// How it was decided, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided: Option<MergeResolution>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// One side's file or directory at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct MergeSide {
    /// A file or a directory.
    pub kind: EntryKind,
    /// The size in bytes; 0 for a directory.
    pub size_bytes: u64,
    /// The BLAKE3 hash of a file's content, in hexadecimal.
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
    /// The lines of the common ancestor.
    pub base: MergeLines,
    /// The lines of the thread.
    pub ours: MergeLines,
    /// The lines of the merged thread.
    pub theirs: MergeLines,
}

/// A run of lines of one text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct MergeLines {
    /// The number of the first line, from 1; for an empty run, that of the line it would precede.
    pub line: usize,
    /// The number of lines.
    pub lines: usize,
    /// The text, lossily decoded as UTF-8; truncated after 2 KiB, and omitted if many conflicts are listed.
    pub text: String,
    /// Whether the text is truncated or omitted.
    pub truncated: bool,
}
