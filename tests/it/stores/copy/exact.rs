//! A copy equals its source: in its rows, their versions and the counters of its partitions.

use super::{assert_same, copied, now, space};
use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::sync::Arc;
use std::time::Duration;
use treehold::ops::Version;
use treehold::store::{Batch, CopyOptions, Item, MemoryStore, Store, copy};

#[tokio::test]
async fn copy_keeps_the_counter_of_each_partition_with_rows() {
    let (source, target) = (MemoryStore::new(), MemoryStore::new());
    let item = Item::new("k", Bytes::new(), Bytes::new(), Version::new(900), now(), now());
    source.commit(Batch::new().put(&space("a"), "kept", "").restore(&space("a"), item.clone())).await.unwrap();
    source.commit(Batch::new().delete(&space("a"), "k")).await.unwrap();
    source.commit(Batch::new().put(&space("b"), "k", "")).await.unwrap();
    let report = copied(&source, &target).await;
    assert_eq!((report.rows, report.namespaces), (2, 2));
    assert_same(&source, &target).await;
    assert_eq!(report.version, source.current_version(&space("a").partition()).await.unwrap());
    // One that has lost all its rows is not copied.
    let (source, target) = (MemoryStore::new(), MemoryStore::new());
    source.commit(Batch::new().restore(&space("a"), item)).await.unwrap();
    source.commit(Batch::new().delete(&space("a"), "k")).await.unwrap();
    let report = copied(&source, &target).await;
    assert_eq!((report.rows, report.namespaces, report.version), (0, 0, Version::new(0)));
    assert_eq!(target.current_version(&space("a").partition()).await.unwrap(), Version::new(0));
    // Nor is there anything to copy from a store that was never written to.
    let (source, target) = (MemoryStore::new(), MemoryStore::new());
    assert!(copied(&source, &target).await.settled);
    assert_same(&source, &target).await;
}

/// Batches of writes: for each its kind, namespace, key and size.
type History = Vec<Vec<(u8, u8, u8, u16)>>;

/// Batches of writes of any kind to few keys.
fn batches() -> impl Strategy<Value = History> {
    prop::collection::vec(prop::collection::vec((0..6_u8, 0..5_u8, 0..20_u8, 0..3_000_u16), 1..8), 0..30)
}

fn batch_of(writes: &[(u8, u8, u8, u16)]) -> Batch {
    writes.iter().fold(Batch::new(), |batch, (kind, namespace, key, size)| {
        let namespace = space(["a", "a/b", "é%2F", "z", "_treehold2/other"][usize::from(*namespace)]);
        let key = format!("k\u{1}{key}");
        let value = Bytes::from(vec![*size as u8; usize::from(*size)]);
        match kind {
            0 | 1 => batch.put_with_meta(&namespace, key, size.to_le_bytes().to_vec(), value),
            2 => batch.put_for(&namespace, key, value, Duration::from_secs(u64::from(*size) * 1_000_000)),
            3 => batch.touch(&namespace, key, Some(Duration::from_secs(u64::from(*size)))),
            4 => batch.delete(&namespace, key),
            _ => batch.delete_prefix(&namespace, &key[..2]),
        }
    })
}

/// A copy of any store equals it, in every read, after any history.
#[test]
fn copy_of_any_store_equals_it() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut runner = TestRunner::new(Config { cases: 48, ..Config::default() });
    let property = |(histories, batch_bytes): (History, usize)| {
        runtime.block_on(async {
            let clock = treehold::Clock::from_fn(now);
            let source = MemoryStore::with_clock(clock.clone());
            for writes in &histories {
                for (_, batch) in Batch::by_partition(batch_of(writes).writes) {
                    source.commit(batch).await.unwrap();
                }
            }
            let directory = tempfile::tempdir().unwrap();
            let mut targets: Vec<Arc<dyn Store>> = vec![Arc::new(MemoryStore::with_clock(clock.clone()))];
            #[cfg(feature = "sqlite")]
            {
                let options = treehold::store::SqliteOptions::new(directory.path().join("store.db")).with_clock(clock.clone());
                targets.push(Arc::new(treehold::SqliteStore::open_with(options).unwrap()));
            }
            #[cfg(feature = "sled")]
            {
                let options = treehold::store::SledOptions::new(directory.path().join("store.sled")).with_clock(clock.clone());
                targets.push(Arc::new(treehold::SledStore::open_with(options).unwrap()));
            }
            let mut from: Arc<dyn Store> = Arc::new(source.clone());
            for target in targets {
                copy(&*from, &*target, &CopyOptions::new().with_batch_bytes(batch_bytes), |_| {}).await.unwrap();
                assert_same(&source, &*target).await;
                from = target;
            }
        });
        Ok(())
    };
    runner.run(&(batches(), 1..20_000_usize), property).unwrap();
}
