//! Rows that commit together with a change: a transactional outbox.
//!
//! The initiator of a change adds an [`Outbox`] to the [extensions](treehold_core::ops::Extensions) of the batch. A tier that commits the
//! change to the store and partition of an entry's rows adds them to that commit, so that both take effect or neither. A tier that keeps
//! changes until they are saved holds the entries until then. Every other tier ignores the outbox. The [`Receipt`] of an entry tells which of
//! these happened.
//!
//! Most callers need [`Outbox::push_rows`] only. Implement [`OutboxEntry`] for rows that depend on the outcome of the changes. A tier takes
//! entries with [`Outbox::take`] or [`Outbox::hold`].

mod entry;
mod held;
mod rows;
mod taken;

pub use entry::{Delivery, OutboxEntry, Receipt};
pub use held::HeldEntry;
pub use rows::{FileOutcome, FileVersion, OutboxRows};
pub use taken::TakenEntries;

use super::{BatchWrite, Partition, Store};
use entry::RowsEntry;
use rows::View;
use std::sync::Arc;
use treehold_core::ops::{Changed, Extensions};

/// The rows that commit together with a change, as an extension of its batch.
///
/// ```
/// use std::sync::Arc;
/// use treehold_core::ops::ApplyOptions;
/// use treehold_store::{Batch, Delivery, MemoryStore, Namespace, Outbox, Store};
///
/// # fn main() -> treehold_core::Result<()> {
/// let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
/// let runs = Namespace::parse("acme/ada/runs")?;
/// let mut outbox = Outbox::new();
/// let receipt = outbox.push_rows(store, Batch::new().put(&runs, "7", "wrote the plan").writes);
/// // Pass the options to `apply`. A tier that keeps its files in the same partition of `store` commits the row with them.
/// let options = ApplyOptions::new().with_extension(outbox);
/// assert_eq!(receipt.delivery(), Delivery::Ignored);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Outbox {
    slots: Vec<Slot>,
}

/// An entry, and how this batch relates to the one that the entry was made for.
#[derive(Debug, Clone)]
struct Slot {
    entry: Arc<dyn OutboxEntry>,
    receipt: Receipt,
    view: View,
    /// Whether the slot belongs to the tier that holds the entry.
    is_held: bool,
}

impl Outbox {
    /// Creates an empty outbox.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry. An entry is delivered once, even if the outbox is passed to several batches.
    pub fn push(&mut self, entry: impl OutboxEntry + 'static) -> Receipt {
        self.push_shared(Arc::new(entry))
    }

    /// Adds an entry that the caller keeps a handle on.
    pub fn push_shared(&mut self, entry: Arc<dyn OutboxEntry>) -> Receipt {
        let receipt = Receipt::default();
        self.slots.push(Slot { entry, receipt: receipt.clone(), view: View::default(), is_held: false });
        receipt
    }

    /// Adds writes to rows of one partition of a store. No tier takes writes to several partitions, or none at all; the receipt stays
    /// [`Ignored`](Delivery::Ignored).
    pub fn push_rows(&mut self, store: Arc<dyn Store>, writes: Vec<BatchWrite>) -> Receipt {
        self.push(RowsEntry { store, writes })
    }

    /// Adds the entries of another outbox.
    pub fn extend(&mut self, other: &Self) {
        self.slots.extend(other.slots.iter().cloned());
    }

    /// Returns whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the outbox of a set of extensions, or an empty one.
    pub fn of(extensions: &Extensions) -> Self {
        extensions.get::<Self>().cloned().unwrap_or_default()
    }

    /// Returns the entries that are delivered with the change or not at all, for a tree that applies different changes from those that it
    /// was given. The entries receive no results about the files of the changes.
    #[must_use]
    pub fn without_changes(&self) -> Self {
        let required = self.slots.iter().filter(|slot| slot.entry.is_required()).cloned();
        Self { slots: required.map(|slot| slot.moved(&[])).collect() }
    }

    /// Returns the outbox for a batch that has some changes of this one. `places` has the index in the new batch of each change, or `None`
    /// for a change that the new batch does not have.
    #[must_use]
    pub fn moved(&self, places: &[Option<usize>]) -> Self {
        Self { slots: self.slots.iter().cloned().map(|slot| slot.moved(places)).collect() }
    }

    /// Takes the entries whose rows belong to a partition of a store, unless they were delivered before. The caller commits them with the
    /// change, and reports the result to [`TakenEntries`].
    pub fn take(&self, store: &Arc<dyn Store>, partition: &Partition) -> TakenEntries {
        let here = self.slots.iter().filter(|slot| is_of(&*slot.entry, store, partition));
        TakenEntries::new(here.filter(|slot| slot.receipt.take(slot.is_held)).cloned().collect())
    }

    /// Holds entries for a tier that saves its changes later, in a partition of a store if they are known. Ignores required entries whose
    /// rows belong elsewhere. `changed` holds the results of the changes.
    pub fn hold(&self, place: Option<(&Arc<dyn Store>, &Partition)>, changed: &[Changed]) -> Vec<HeldEntry> {
        let is_here = |slot: &Slot| place.is_some_and(|(store, partition)| is_of(&*slot.entry, store, partition));
        let held = self.slots.iter().filter(|slot| !slot.entry.is_required() || is_here(slot)).filter(|slot| slot.receipt.hold());
        held.map(|slot| HeldEntry::new(slot, changed)).collect()
    }

    /// Returns the outbox for a save of held entries.
    pub fn of_held<'h>(held: impl IntoIterator<Item = &'h HeldEntry>) -> Self {
        Self { slots: held.into_iter().map(HeldEntry::slot).collect() }
    }
}

impl Slot {
    fn moved(mut self, places: &[Option<usize>]) -> Self {
        self.view = self.view.moved(places);
        self
    }
}

/// Returns whether the rows of an entry belong to a partition of a store.
fn is_of(entry: &dyn OutboxEntry, store: &Arc<dyn Store>, partition: &Partition) -> bool {
    is_same(entry.store(), store) && entry.is_in(partition)
}

/// Returns whether two handles refer to the same store.
pub fn is_same(one: &Arc<dyn Store>, other: &Arc<dyn Store>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

#[cfg(test)]
mod tests;
