//! One entry of an outbox, and what became of it.

use super::OutboxRows;
use crate::{BatchWrite, Partition, Store};
use futures::future::BoxFuture;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use treehold_core::checkpoint_id::CheckpointId;
use treehold_core::error::Result;
use treehold_core::ops::Changed;

/// Rows to commit together with a change.
pub trait OutboxEntry: Send + Sync + fmt::Debug {
    /// Returns the store of the rows. Only a tier that commits to this store, by the same handle, takes them.
    fn store(&self) -> &Arc<dyn Store>;

    /// Returns whether the rows lie in a partition. Only a commit to this partition takes them.
    fn is_in(&self, partition: &Partition) -> bool;

    /// Adds the rows to a commit. Called once for each attempt.
    ///
    /// # Errors
    /// An error refuses the whole change.
    fn write(&self, rows: &mut OutboxRows) -> Result<()>;

    /// Reports that a commit with the rows is done, and the checkpoint that it created.
    fn committed(&self, checkpoint: Option<CheckpointId>) {
        let _ = checkpoint;
    }

    /// Returns whether the rows are committed with the change or not at all. Default true. A tier that holds an optional entry may
    /// [fold](OutboxEntry::folded) it or let it [follow](OutboxEntry::follow).
    fn is_required(&self) -> bool {
        true
    }

    /// Commits the rows of an optional entry on their own, after its changes were saved in another store or partition. `changed` holds the
    /// results of the changes. A failure is left to the entry.
    fn follow<'e>(&'e self, changed: Option<&'e [Changed]>) -> BoxFuture<'e, ()> {
        let _ = changed;
        Box::pin(std::future::ready(()))
    }

    /// Returns one entry that replaces all optional entries of its kind, for a tier that holds too many of them. Default none.
    fn folded(&self) -> Option<Arc<dyn OutboxEntry>> {
        None
    }

    /// Returns the approximate number of rows, at least 1.
    fn weight(&self) -> usize {
        1
    }
}

/// Writes that do not depend on the outcome of the changes.
#[derive(Debug)]
pub(super) struct RowsEntry {
    pub(super) store: Arc<dyn Store>,
    pub(super) writes: Vec<BatchWrite>,
}

impl OutboxEntry for RowsEntry {
    fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    fn is_in(&self, partition: &Partition) -> bool {
        !self.writes.is_empty() && self.writes.iter().all(|write| write.namespace().partition() == *partition)
    }

    fn write(&self, rows: &mut OutboxRows) -> Result<()> {
        self.writes.iter().cloned().for_each(|write| rows.push(write));
        Ok(())
    }

    fn weight(&self) -> usize {
        self.writes.len().max(1)
    }
}

/// What became of the rows of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delivery {
    /// No tier has committed or holds them: the change was refused, it is not applied yet, or its tier keeps files in another store or
    /// partition.
    Ignored,
    /// A tier adds them to a commit that has not ended, or whose outcome is unknown.
    Unknown,
    /// A tier holds them until it saves the change.
    Held,
    /// They were committed together with the change.
    Committed,
    /// The change that they were held for was dropped before it was saved. A repeated change takes the rows again.
    Dropped,
}

const IGNORED: u8 = 0;
const UNKNOWN: u8 = 1;
const TAKEN: u8 = 2;
const HELD: u8 = 3;
const COMMITTED: u8 = 4;
const DROPPED: u8 = 5;

/// A tier can take the rows in these states. No tier holds them, and none is known to have committed them.
const UNDELIVERED: [u8; 3] = [IGNORED, UNKNOWN, DROPPED];

/// Tells what became of the rows of an entry. After `apply` has returned, [`Delivery::Ignored`] is final.
#[derive(Debug, Clone, Default)]
pub struct Receipt(Arc<AtomicU8>);

impl Receipt {
    /// Returns what became of the rows.
    pub fn delivery(&self) -> Delivery {
        match self.0.load(Ordering::Acquire) {
            IGNORED => Delivery::Ignored,
            HELD => Delivery::Held,
            COMMITTED => Delivery::Committed,
            DROPPED => Delivery::Dropped,
            _ => Delivery::Unknown,
        }
    }

    /// Returns whether a tier has committed the rows, holds them, or may have committed them.
    pub fn is_taken(&self) -> bool {
        !matches!(self.delivery(), Delivery::Ignored | Delivery::Dropped)
    }

    /// Takes the rows for a commit, unless they were delivered before. A commit with an unknown outcome does not count: a caller that
    /// repeats the change repeats its rows.
    pub(super) fn take(&self, is_held: bool) -> bool {
        match is_held {
            true => self.swap(HELD, TAKEN),
            false => UNDELIVERED.into_iter().any(|from| self.swap(from, TAKEN)),
        }
    }

    pub(super) fn hold(&self) -> bool {
        UNDELIVERED.into_iter().any(|from| self.swap(from, HELD))
    }

    pub(super) fn commit(&self) {
        self.0.store(COMMITTED, Ordering::Release);
    }

    /// Reports that a commit was refused, or that its outcome is unknown.
    pub(super) fn give_back(&self, is_held: bool, is_refused: bool) {
        let state = match (is_held, is_refused) {
            // The holder determines the outcome, and saves the entry again if necessary.
            (true, _) => HELD,
            (false, true) => IGNORED,
            (false, false) => UNKNOWN,
        };
        self.swap(TAKEN, state);
    }

    pub(super) fn drop_held(&self) {
        self.swap(HELD, DROPPED);
    }

    fn swap(&self, from: u8, to: u8) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}
