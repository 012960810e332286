//! Entries that a tier adds to a commit.

use super::{OutboxRows, Slot};
use std::sync::atomic::{AtomicBool, Ordering};
use treehold_core::checkpoint_id::CheckpointId;
use treehold_core::error::{Error, ErrorKind, Result};

/// The entries of an outbox that a tier commits with a change. Dropping it after the rows were written reports that the outcome of the
/// commit is unknown.
#[derive(Debug)]
#[must_use]
pub struct TakenEntries {
    slots: Vec<Slot>,
    is_written: AtomicBool,
}

impl TakenEntries {
    pub(super) fn new(slots: Vec<Slot>) -> Self {
        Self { slots, is_written: AtomicBool::new(false) }
    }

    /// Adds the rows of the entries to a commit. Call it once for each attempt.
    ///
    /// # Errors
    /// The errors of [`OutboxEntry::write`](super::OutboxEntry::write): the change must be refused.
    pub fn write(&self, rows: &mut OutboxRows) -> Result<()> {
        for slot in &self.slots {
            rows.view = slot.view.clone();
            slot.entry.write(rows)?;
        }
        self.is_written.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Reports that the commit is done, and the checkpoint that it created.
    pub fn committed(mut self, checkpoint: Option<CheckpointId>) {
        for slot in std::mem::take(&mut self.slots) {
            slot.receipt.commit();
            slot.entry.committed(checkpoint);
        }
    }

    /// Reports that the commit failed. It had no effect if the error is a conflict or says so; otherwise its outcome is unknown.
    pub fn failed(mut self, error: &Error) {
        self.give_back(error.kind() == ErrorKind::Conflict || !error.may_have_effect());
    }

    fn give_back(&mut self, is_refused: bool) {
        let is_refused = is_refused || !self.is_written.load(Ordering::Relaxed);
        for slot in std::mem::take(&mut self.slots) {
            slot.receipt.give_back(slot.is_held, is_refused);
        }
    }
}

impl Drop for TakenEntries {
    fn drop(&mut self) {
        self.give_back(false);
    }
}
