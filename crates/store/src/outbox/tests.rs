//! Entries are delivered once, and their receipts tell how.

use super::*;
use crate::{Batch, MemoryStore, Namespace};
use treehold_core::error::{Error, ErrorKind};
use treehold_core::ops::{OpKind, Version};
use treehold_core::path::VfsPathBuf;

fn store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

fn partition(text: &str) -> Partition {
    Namespace::parse(text).expect("a namespace").partition()
}

/// Returns the partition of the rows.
fn here() -> Partition {
    partition("acme/ada")
}

fn outbox(store: &Arc<dyn Store>) -> (Outbox, Receipt) {
    let mut outbox = Outbox::new();
    let rows = Batch::new().put(&Namespace::parse("acme/ada/runs").expect("a namespace"), "1", "done").writes;
    let receipt = outbox.push_rows(store.clone(), rows);
    (outbox, receipt)
}

fn rows_of(taken: &TakenEntries) -> usize {
    let mut rows = OutboxRows::default();
    taken.write(&mut rows).expect("written");
    rows.into_writes().len()
}

fn refused() -> Error {
    Error::new(ErrorKind::Conflict, "refused").without_effect()
}

#[test]
fn entry_is_taken_once_and_only_for_its_store_and_partition() {
    let store = store();
    let (outbox, receipt) = outbox(&store);
    assert_eq!((rows_of(&outbox.take(&self::store(), &here())), receipt.delivery()), (0, Delivery::Ignored));
    for elsewhere in ["acme/bob", "acme", "ada", "acme//ada"].map(partition) {
        assert_eq!((rows_of(&outbox.take(&store, &elsewhere)), receipt.delivery()), (0, Delivery::Ignored), "{elsewhere}");
    }
    let taken = outbox.take(&store, &here());
    assert_eq!((rows_of(&taken), rows_of(&outbox.take(&store, &here())), receipt.delivery()), (1, 0, Delivery::Unknown));
    taken.committed(None);
    assert_eq!((rows_of(&outbox.clone().take(&store, &here())), receipt.delivery()), (0, Delivery::Committed));
}

#[test]
fn entry_is_taken_again_after_a_commit_that_was_refused_or_is_unknown() {
    let store = store();
    let (outbox, receipt) = outbox(&store);
    outbox.take(&store, &here()).failed(&refused());
    assert_eq!(receipt.delivery(), Delivery::Ignored);
    drop(outbox.take(&store, &here()));
    assert_eq!(receipt.delivery(), Delivery::Ignored, "its rows were never written");
    let taken = outbox.take(&store, &here());
    assert_eq!(rows_of(&taken), 1);
    drop(taken);
    assert_eq!(receipt.delivery(), Delivery::Unknown);
    let taken = outbox.take(&store, &here());
    assert_eq!(rows_of(&taken), 1);
    taken.failed(&Error::new(ErrorKind::Unavailable, "lost").with_unknown_effect());
    assert_eq!(receipt.delivery(), Delivery::Unknown);
    outbox.take(&store, &here()).committed(None);
    assert_eq!(receipt.delivery(), Delivery::Committed);
}

#[test]
fn held_entry_is_taken_only_by_its_holder() {
    let store = store();
    let (outbox, receipt) = outbox(&store);
    assert!(outbox.hold(Some((&self::store(), &here())), &[]).is_empty() && outbox.hold(None, &[]).is_empty());
    assert!(outbox.hold(Some((&store, &partition("acme/bob"))), &[]).is_empty());
    assert_eq!(receipt.delivery(), Delivery::Ignored, "a required entry is not held for another store or partition");
    let held = outbox.hold(Some((&store, &here())), &[]);
    assert!(held[0].is_of(&store, &here()) && !held[0].is_of(&store, &partition("acme")) && !held[0].is_of(&self::store(), &here()));
    assert_eq!((held.len(), receipt.delivery()), (1, Delivery::Held));
    assert!(outbox.hold(Some((&store, &here())), &[]).is_empty());
    assert_eq!(rows_of(&outbox.take(&store, &here())), 0);
    let save = Outbox::of_held(&held);
    save.take(&store, &here()).failed(&refused());
    assert_eq!(receipt.delivery(), Delivery::Held);
    let taken = save.take(&store, &here());
    assert_eq!(rows_of(&taken), 1);
    drop(taken);
    assert_eq!(receipt.delivery(), Delivery::Held, "a dropped attempt leaves the entry held");
    let taken = save.take(&store, &here());
    assert_eq!(rows_of(&taken), 1);
    taken.committed(None);
    drop(held);
    assert_eq!(receipt.delivery(), Delivery::Committed);
}

#[test]
fn rows_of_no_partition_or_of_two_are_taken_by_none() {
    let (store, spaces) = (store(), ["acme/ada/runs", "acme/bob/runs"].map(|text| Namespace::parse(text).expect("a namespace")));
    let over_two = |one: &Namespace, other: &Namespace| Batch::new().put(one, "1", "").delete(other, "1").writes;
    for writes in [Vec::new(), over_two(&spaces[0], &spaces[1]), over_two(&spaces[1], &spaces[0])] {
        let mut outbox = Outbox::new();
        let receipt = outbox.push_rows(store.clone(), writes);
        for space in &spaces {
            let partition = space.partition();
            assert_eq!(rows_of(&outbox.take(&store, &partition)), 0);
            assert!(outbox.hold(Some((&store, &partition)), &[]).is_empty());
        }
        assert_eq!(receipt.delivery(), Delivery::Ignored);
    }
}

#[test]
fn held_entry_that_is_not_saved_is_dropped() {
    let store = store();
    let (outbox, receipt) = outbox(&store);
    drop(outbox.hold(Some((&store, &here())), &[]));
    assert_eq!(receipt.delivery(), Delivery::Dropped);
}

/// Records what an entry learns about the first three changes of its batch.
#[derive(Debug)]
struct Curious(Arc<dyn Store>, parking_lot::Mutex<Vec<(bool, Option<FileVersion>)>>);

impl OutboxEntry for Curious {
    fn store(&self) -> &Arc<dyn Store> {
        &self.0
    }

    fn is_in(&self, partition: &Partition) -> bool {
        *partition == here()
    }

    fn write(&self, rows: &mut OutboxRows) -> treehold_core::error::Result<()> {
        let namespace = Namespace::parse("acme/ada/curious")?;
        Batch::new().delete(&namespace, "x").put(&namespace, "x", "").writes.into_iter().for_each(|write| rows.push(write));
        *self.1.lock() = (0..3).map(|change| (rows.is_unchanged(change), rows.version_of(change))).collect();
        Ok(())
    }
}

#[test]
fn entry_receives_the_outcome_of_its_own_changes() {
    let store = store();
    let mut outbox = Outbox::new();
    let curious = Arc::new(Curious(store.clone(), Default::default()));
    outbox.push_shared(curious.clone());
    let learned = |outbox: &Outbox, outcomes: Vec<FileOutcome>| {
        let taken = outbox.take(&store, &here());
        taken.write(&mut OutboxRows::of_changes(5, outcomes)).expect("written");
        taken.failed(&refused());
        curious.1.lock().clone()
    };
    let outcomes = vec![FileOutcome::Put(2), FileOutcome::Unchanged, FileOutcome::Version(Version::new(7))];
    // The entry's own put comes before the row that it would push next.
    let (put, unchanged, known) = ((false, Some(FileVersion::Before(4))), (true, None), (false, Some(FileVersion::Known(Version::new(7)))));
    assert_eq!(learned(&outbox, outcomes.clone()), [put, unchanged, known]);
    let moved = outbox.moved(&[Some(2), None, Some(0)]);
    assert_eq!(learned(&moved, outcomes.clone()), [known, (false, None), put]);
    assert_eq!(learned(&moved.moved(&[None, None, Some(1)]), outcomes.clone()), [unchanged, (false, None), (false, None)]);
    assert_eq!(learned(&outbox.without_changes(), outcomes), [(false, None); 3]);
    let path = VfsPathBuf::parse("/a").expect("a path");
    let changed =
        [Changed::new(OpKind::Write, path.clone()).with_file(Version::new(9), 1), Changed::new(OpKind::Delete, path).with_entries(0)];
    let held = outbox.hold(Some((&store, &here())), &changed);
    assert_eq!(
        learned(&Outbox::of_held(&held), Vec::new()),
        [(false, Some(FileVersion::Known(Version::new(9)))), (true, None), (false, None)]
    );
}
