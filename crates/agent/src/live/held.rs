//! The outbox entries that wait for the next checkpoint of a thread.

use parking_lot::Mutex;
use std::sync::Arc;
use treehold_core::ops::{Changed, Version};
use treehold_store::{HeldEntry, Outbox, Partition, Store};

/// The most rows of optional entries that wait. Beyond it their events fold into one, that the state was replaced, and audit rows are
/// written when their calls end. Required entries always wait.
const HELD_MAX: usize = 10_000;

/// Where a thread is saved.
pub(super) type Place<'p> = (&'p Arc<dyn Store>, &'p Partition);

/// The entries in the order of their changes.
#[derive(Debug, Default)]
pub(super) struct HeldOutbox(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    entries: Vec<Queued>,
    /// The number of the next entry.
    next: u64,
    /// The number of rows of optional entries.
    weight: usize,
}

#[derive(Debug)]
struct Queued {
    number: u64,
    /// The version of the state that contains the changes.
    version: Version,
    entry: HeldEntry,
}

/// The entries of the changes that a version of the state contains.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) outbox: Outbox,
    /// Whether some of them must be committed.
    pub(super) is_required: bool,
    /// The number after the last entry.
    pub(super) end: u64,
}

impl HeldOutbox {
    /// Queues the entries of a batch until the version that contains its changes is saved in `place`.
    pub(super) fn hold(&self, outbox: &Outbox, place: Option<Place<'_>>, version: Version, changed: &[Changed]) {
        if outbox.is_empty() {
            return;
        }
        let mut queue = self.0.lock();
        for entry in outbox.hold(place, changed) {
            queue.push(version, entry);
        }
        if queue.weight > HELD_MAX {
            queue.fold(version);
        }
    }

    /// Returns the entries of changes that a version contains.
    pub(super) fn up_to(&self, version: Version) -> Waiting {
        let queue = self.0.lock();
        let waiting: Vec<&Queued> = queue.entries.iter().filter(|queued| queued.version <= version).collect();
        Waiting {
            is_required: waiting.iter().any(|queued| queued.entry.is_required()),
            end: waiting.last().map_or(0, |last| last.number + 1),
            outbox: Outbox::of_held(waiting.into_iter().map(|queued| &queued.entry)),
        }
    }

    /// Dequeues the entries below a number after a checkpoint was saved in `place`. Those that the save did not take follow on their own.
    pub(super) async fn saved(&self, end: u64, place: Option<Place<'_>>) {
        let gone = {
            let mut queue = self.0.lock();
            let split = queue.entries.partition_point(|queued| queued.number < end);
            let rest = queue.entries.split_off(split);
            let gone = std::mem::replace(&mut queue.entries, rest);
            queue.weigh();
            gone
        };
        for Queued { entry, .. } in gone {
            match place.is_some_and(|(store, partition)| entry.is_of(store, partition)) {
                true => entry.committed(),
                false => entry.follow().await,
            }
        }
    }

    /// Returns whether no entry waits.
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().entries.is_empty()
    }

    /// Drops all entries: their changes are gone.
    pub(super) fn clear(&self) {
        let mut queue = self.0.lock();
        queue.entries.clear();
        queue.weigh();
    }
}

impl Queue {
    fn push(&mut self, version: Version, entry: HeldEntry) {
        let number = self.next;
        self.next += 1;
        if !entry.is_required() {
            self.weight += entry.weight();
        }
        self.entries.push(Queued { number, version, entry });
    }

    fn fold(&mut self, version: Version) {
        let folded = self.entries.iter().find_map(|queued| queued.entry.folded());
        self.entries.retain(|queued| queued.entry.is_required());
        self.weigh();
        folded.into_iter().for_each(|folded| self.push(version, folded));
    }

    fn weigh(&mut self) {
        self.weight = self.entries.iter().filter(|queued| !queued.entry.is_required()).map(|queued| queued.entry.weight()).sum();
    }
}
