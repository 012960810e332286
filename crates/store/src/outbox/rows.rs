//! The rows that entries add to a commit, and what the entries learn about its changes.

use crate::BatchWrite;
use std::sync::Arc;
use treehold_core::checkpoint_id::CheckpointId;
use treehold_core::ops::{Changed, Version};

/// What one change of a batch does, as far as its tier knows before the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileOutcome {
    /// It has no effect, because everything was as requested already.
    Unchanged,
    /// It leaves a file with this version.
    Version(Version),
    /// It puts a file by the put of the batch with this number, counted from 0. Appends count as puts.
    Put(usize),
    /// It does something else, such as removing a file.
    Other,
}

impl From<&Changed> for FileOutcome {
    fn from(changed: &Changed) -> Self {
        match changed.version {
            _ if changed.entries == 0 => Self::Unchanged,
            Some(version) => Self::Version(version),
            None => Self::Other,
        }
    }
}

/// The version of a file that a change of the same commit wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileVersion {
    /// The version.
    Known(Version),
    /// The commit issues it. It is this much less than the version of the row that is pushed next.
    Before(u64),
}

/// How an entry sees the changes of a batch.
#[derive(Debug, Clone, Default)]
pub(super) struct View {
    /// The index in the batch of each change that the entry knows; `None` if both count alike.
    places: Option<Arc<[Option<usize>]>>,
    /// The outcomes of the entry's own changes, if they were applied before.
    known: Option<Arc<[FileOutcome]>>,
}

impl View {
    /// Returns the view of changes that were applied before.
    pub(super) fn of_known(known: Option<Arc<[FileOutcome]>>) -> Self {
        Self { places: None, known }
    }

    /// Returns whether the entry's changes are those of the batch.
    pub(super) fn is_whole(&self) -> bool {
        self.places.is_none()
    }

    /// Returns the outcomes of the entry's changes, given those of the batch.
    pub(super) fn known_of(&self, outcomes: Vec<FileOutcome>) -> Arc<[FileOutcome]> {
        let outcome_at = |place: &Option<usize>| place.and_then(|place| outcomes.get(place).copied()).unwrap_or(FileOutcome::Other);
        match &self.places {
            Some(places) => places.iter().map(outcome_at).collect(),
            None => outcomes.into(),
        }
    }

    fn place_of(&self, change: usize) -> Option<usize> {
        match &self.places {
            Some(places) => places.get(change).copied().flatten(),
            None => Some(change),
        }
    }

    pub(super) fn moved(&self, places: &[Option<usize>]) -> Self {
        let inner = |place: usize| places.get(place).copied().flatten();
        let places = match &self.places {
            Some(own) => own.iter().map(|place| place.and_then(inner)).collect(),
            None => places.into(),
        };
        Self { places: Some(places), known: self.known.clone() }
    }
}

/// The rows of a commit that entries add to. A tier creates it, passes it to [`TakenEntries::write`](super::TakenEntries::write), and adds
/// [`OutboxRows::into_writes`] to its batch, after the puts that it counted.
#[derive(Debug, Default)]
pub struct OutboxRows {
    next_put: usize,
    outcomes: Vec<FileOutcome>,
    checkpoint: Option<CheckpointId>,
    writes: Vec<BatchWrite>,
    pub(super) view: View,
}

impl OutboxRows {
    /// Rows for a batch of changes. The batch has `puts` puts and appends before these rows, and `outcomes` says what each change does.
    pub fn of_changes(puts: usize, outcomes: Vec<FileOutcome>) -> Self {
        Self { next_put: puts, outcomes, ..Self::default() }
    }

    /// Rows for a batch that creates a checkpoint.
    pub fn of_checkpoint(id: CheckpointId) -> Self {
        Self { checkpoint: Some(id), ..Self::default() }
    }

    /// Returns the checkpoint that the commit creates.
    pub fn checkpoint(&self) -> Option<CheckpointId> {
        self.checkpoint
    }

    /// Returns whether a change is known to have no effect.
    pub fn is_unchanged(&self, change: usize) -> bool {
        self.outcome(change) == FileOutcome::Unchanged
    }

    /// Returns the version of the file that a change wrote, if it wrote one and the tier knows it.
    pub fn version_of(&self, change: usize) -> Option<FileVersion> {
        match self.outcome(change) {
            FileOutcome::Version(version) => Some(FileVersion::Known(version)),
            FileOutcome::Put(put) => Some(FileVersion::Before((self.next_put - put) as u64)),
            FileOutcome::Unchanged | FileOutcome::Other => None,
        }
    }

    /// Adds a write.
    pub fn push(&mut self, write: BatchWrite) {
        if matches!(write, BatchWrite::Put { .. } | BatchWrite::Append { .. }) {
            self.next_put += 1;
        }
        self.writes.push(write);
    }

    /// Returns the writes, in order.
    pub fn into_writes(self) -> Vec<BatchWrite> {
        self.writes
    }

    fn outcome(&self, change: usize) -> FileOutcome {
        let outcome = match &self.view.known {
            Some(known) => known.get(change),
            None => self.view.place_of(change).and_then(|place| self.outcomes.get(place)),
        };
        outcome.copied().unwrap_or(FileOutcome::Other)
    }
}
