//! Copies of whole stores through the library: exact, resumable, following changes, and verified.

mod changes;
mod competing;
#[cfg(all(feature = "sled", feature = "sqlite"))]
mod embedded;
mod exact;
mod interrupted;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
mod servers;
mod targets;

use crate::stores::wrapped::Wrapper;
use async_trait::async_trait;
use jiff::Timestamp;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use treehold::ops::Version;
use treehold::store::{
    Batch, CopyOptions, CopyReport, Item, MemoryStore, Namespace, NamespacesOptions, Partition, Reserved, ReservedRows, ScanEntry,
    ScanOptions, Store, copy,
};
use treehold::{Error, ErrorKind, Result};

fn space(text: &str) -> Namespace {
    Namespace::parse(text).unwrap()
}

/// Returns every live row of every namespace, as all kinds of reads show them.
async fn rows(store: &dyn Store) -> Vec<(Namespace, Item)> {
    let namespaces = store.namespaces(NamespacesOptions::new().with_limit(usize::MAX)).await.unwrap().namespaces;
    let mut all = Vec::new();
    for namespace in namespaces {
        let page =
            store.scan(&namespace, ScanOptions::new().with_values(true).with_limit(usize::MAX).with_bytes_max(usize::MAX)).await.unwrap();
        for entry in page.entries {
            let ScanEntry::Item(item) = entry else { panic!("no delimiter was given") };
            assert_eq!(store.get(&namespace, &item.key).await.unwrap().as_ref(), Some(&item));
            all.push((namespace.clone(), item));
        }
    }
    all
}

async fn copied(source: &dyn Store, target: &dyn Store) -> CopyReport {
    copy(source, target, &CopyOptions::new(), |_| {}).await.unwrap()
}

async fn refused(source: &dyn Store, target: &dyn Store) -> Error {
    copy(source, target, &CopyOptions::new(), |_| {}).await.unwrap_err()
}

/// A store with some namespaces and rows, one of which expires.
async fn filled(count: usize) -> MemoryStore {
    let store = MemoryStore::new();
    for number in 0..count {
        let namespace = space(["a", "a/b", "z"][number % 3]);
        let batch = Batch::new().put_with_meta(&namespace, format!("k{number:03}"), format!("meta {number}"), "body ".repeat(number));
        store.commit(batch).await.unwrap();
    }
    store.commit(Batch::new().put_for(&space("mortal"), "k", "v", Duration::from_secs(3_600))).await.unwrap();
    store.commit(Batch::new().put(&space("a"), "gone", "")).await.unwrap();
    store.commit(Batch::new().delete(&space("a"), "gone")).await.unwrap();
    store
}

async fn assert_same(source: &dyn Store, target: &dyn Store) {
    let expected = rows(source).await;
    assert_eq!(rows(target).await, expected);
    let partitions: BTreeSet<Partition> = expected.iter().map(|(namespace, _)| namespace.partition()).collect();
    for partition in partitions {
        assert_continues(source, target, &partition).await;
    }
}

/// Asserts that no version of a partition is used again for another row.
async fn assert_continues(source: &dyn Store, target: &dyn Store, partition: &Partition) {
    let (before, after) = (source.current_version(partition).await.unwrap(), target.current_version(partition).await.unwrap());
    assert!(after >= before, "{after} after {before} in {partition}");
}

fn now() -> Timestamp {
    Timestamp::from_microsecond(1_700_000_000_000_000).unwrap()
}

/// Fails every commit after so many, before the commit or after it.
struct FailingAfter {
    commits: AtomicUsize,
    after_effect: bool,
}

#[async_trait]
impl Wrapper for FailingAfter {
    async fn commit(&self, inner: &dyn Store, batch: Batch) -> Result<Vec<Version>> {
        let lost = || Error::new(ErrorKind::Unavailable, "the connection is lost");
        match self.commits.load(Ordering::Relaxed) {
            0 => Err(lost()),
            left => {
                self.commits.store(left - 1, Ordering::Relaxed);
                let committed = inner.commit(batch).await;
                if left == 1 && self.after_effect { Err(lost()) } else { committed }
            }
        }
    }
}

/// Returns whether a namespace is that of the note of a copy, or of a fence.
fn is_note(namespace: &Namespace) -> bool {
    Reserved::of(namespace).is_some_and(|reserved| reserved.rows == ReservedRows::Note)
}
