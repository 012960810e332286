//! Entries that a tier holds until it saves their changes.

use super::rows::{FileOutcome, View};
use super::{OutboxEntry, Receipt, Slot, is_of};
use crate::{Partition, Store};
use std::sync::Arc;
use treehold_core::ops::Changed;

/// An entry of an outbox whose changes were applied and are not saved yet. Dropping it drops the rows.
#[derive(Debug)]
pub struct HeldEntry {
    entry: Arc<dyn OutboxEntry>,
    receipt: Receipt,
    changed: Option<Arc<[Changed]>>,
    known: Option<Arc<[FileOutcome]>>,
}

impl HeldEntry {
    pub(super) fn new(slot: &Slot, changed: &[Changed]) -> Self {
        let outcomes: Vec<FileOutcome> = changed.iter().map(FileOutcome::from).collect();
        let known = slot.view.known_of(outcomes);
        let changed = slot.view.is_whole().then(|| changed.into());
        Self { entry: slot.entry.clone(), receipt: slot.receipt.clone(), changed, known: Some(known) }
    }

    pub(super) fn slot(&self) -> Slot {
        let view = View::of_known(self.known.clone());
        Slot { entry: self.entry.clone(), receipt: self.receipt.clone(), view, is_held: true }
    }

    /// Returns whether the rows belong to a partition of a store.
    pub fn is_of(&self, store: &Arc<dyn Store>, partition: &Partition) -> bool {
        is_of(&*self.entry, store, partition)
    }

    /// Returns whether the rows must be committed, see [`OutboxEntry::is_required`].
    pub fn is_required(&self) -> bool {
        self.entry.is_required()
    }

    /// Returns the approximate number of rows.
    pub fn weight(&self) -> usize {
        self.entry.weight().max(1)
    }

    /// Returns one entry that replaces this one and others of its kind, see [`OutboxEntry::folded`].
    pub fn folded(&self) -> Option<Self> {
        let entry = self.entry.folded()?;
        let receipt = Receipt::default();
        receipt.hold();
        Some(Self { entry, receipt, changed: None, known: None })
    }

    /// Reports that a save has committed the rows.
    pub fn committed(self) {
        self.receipt.commit();
    }

    /// Lets an optional entry commit its rows on its own, after a save in another store or partition.
    pub async fn follow(self) {
        self.entry.follow(self.changed.as_deref()).await;
    }
}

impl Drop for HeldEntry {
    fn drop(&mut self) {
        self.receipt.drop_held();
    }
}
