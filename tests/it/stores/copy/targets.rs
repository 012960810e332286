//! Targets that a copy refuses, targets with rows of their own, and targets that store something else.

use super::{assert_same, copied, filled, now, refused, rows, space};
use crate::stores::wrapped::{Wrapped, Wrapper};
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;
use treehold::ops::Version;
use treehold::store::{Batch, BatchWrite, COPY_NAMESPACE, CopyOptions, Item, MemoryStore, Namespace, Store, copy};
use treehold::{ErrorKind, Result};

#[tokio::test]
async fn nonempty_target_is_refused_unchanged() {
    let (source, target) = (filled(3).await, filled(2).await);
    let before = rows(&target).await;
    let error = refused(&source, &target).await;
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(error.message().contains("--onto") && error.message().contains("`a`"), "{error}");
    assert_eq!(rows(&target).await, before);
    // A store is distinguished from a whole copy of itself, whose rows have the same versions.
    let error = refused(&source, &source).await;
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("are the same store"), "{error}");
    let twin = MemoryStore::new();
    copied(&source, &twin).await;
    let before = rows(&twin).await;
    assert_eq!(refused(&source, &twin).await.kind(), ErrorKind::AlreadyExists);
    assert_eq!(rows(&twin).await, before);
}

#[tokio::test]
async fn onto_replaces_common_rows_and_keeps_the_rest() {
    let (source, target) = (filled(3).await, MemoryStore::new());
    target.commit(Batch::new().put(&space("a"), "k000", "older").put(&space("a"), "own", "stays")).await.unwrap();
    target.commit(Batch::new().put(&space("y"), "own", "")).await.unwrap();
    let options = CopyOptions::new().with_onto(true);
    let report = copy(&source, &target, &options, |_| {}).await.unwrap();
    assert_eq!((report.settled, report.rows, report.left, report.removed), (true, 4, 2, 0));
    let mut there = rows(&target).await;
    there.retain(|(_, item)| item.key != "own");
    assert_eq!(there, rows(&source).await);
    assert_eq!(target.get(&space("a"), "own").await.unwrap().unwrap().value, "stays");
}

#[tokio::test]
async fn store_cannot_be_copied_onto_itself() {
    let store = filled(3).await;
    let before = rows(&store).await;
    let error = copy(&store, &store.clone(), &CopyOptions::new().with_onto(true), |_| {}).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert_eq!(rows(&store).await, before);
}

struct Limited(u64);

impl Wrapper for Limited {
    fn value_bytes_max(&self) -> Option<u64> {
        Some(self.0)
    }
}

#[tokio::test]
async fn body_over_the_limit_is_reported_before_any_write() {
    let source = filled(30).await;
    let target = Arc::new(MemoryStore::new());
    let error = refused(&source, &Wrapped::new(target.clone(), Limited(100))).await;
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert!(error.message().contains("the row `k021` in `a`") && error.message().contains("105 bytes"), "{error}");
    for namespace in [space("a"), space("a/b"), space("z"), space("mortal"), Namespace::new(COPY_NAMESPACE).unwrap()] {
        let version = target.current_version(&namespace.partition()).await.unwrap();
        assert_eq!(version, Version::new(0), "nothing was written to {namespace}");
    }
    copied(&source, &Wrapped::new(target.clone(), Limited(145))).await;
    assert_same(&source, &*target).await;
}

/// A store that corrupts what it receives.
struct Spoiling(Spoil);

type Spoil = fn(&mut Item);

#[async_trait]
impl Wrapper for Spoiling {
    async fn commit(&self, inner: &dyn Store, mut batch: Batch) -> Result<Vec<Version>> {
        for write in &mut batch.writes {
            if let BatchWrite::Restore { item, .. } = write
                && item.key == "k007"
            {
                (self.0)(item);
            }
        }
        inner.commit(batch).await
    }
}

#[tokio::test]
async fn target_that_stores_something_else_is_detected() {
    let spoils: [(Spoil, &str); 4] = [
        (|item| item.value = Bytes::from_static(b"other"), "another body"),
        (|item| item.meta = Bytes::new(), "another meta"),
        (|item| item.modified_at = now(), "other times"),
        (|item| item.version = Version::new(1_000), "another version"),
    ];
    for (spoil, what) in spoils {
        let source = filled(10).await;
        let target = Wrapped::new(Arc::new(MemoryStore::new()), Spoiling(spoil));
        match copy(&source, &target, &CopyOptions::new(), |_| {}).await {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                assert!(error.message().contains("the row `k007` in `a/b`") && error.message().contains(what), "{error}");
            }
            // A difference that is visible without the body is sent again and again.
            Ok(report) => assert!(!report.settled && what != "another body", "{what}: {report:?}"),
        }
    }
}
