//! Sources that change while they are copied.

use super::{assert_same, copied, filled, space};
use crate::stores::wrapped::{Wrapped, Wrapper};
use async_trait::async_trait;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use treehold::Result;
use treehold::store::{Batch, CopyOptions, MemoryStore, Namespace, Scan, ScanOptions, Store, copy};

/// Changes the inner store during one of its scans of each kind.
struct Meddling {
    store: MemoryStore,
    /// Changes it at this read of a page with bodies, counted down.
    with_values: AtomicUsize,
    /// Changes it at each of so many reads of pages without bodies.
    without_values: AtomicUsize,
}

impl Meddling {
    fn new(store: &MemoryStore, with_values: usize, without_values: usize) -> Self {
        Self { store: store.clone(), with_values: AtomicUsize::new(with_values), without_values: AtomicUsize::new(without_values) }
    }
}

#[async_trait]
impl Wrapper for Meddling {
    async fn scan(&self, inner: &dyn Store, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        let page = inner.scan(namespace, options.clone()).await?;
        let meddles = match options.with_values {
            true => self.with_values.fetch_sub(1, Ordering::Relaxed) == 1,
            false => self.without_values.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok(),
        };
        if meddles {
            let batch = Batch::new()
                .put(&space("a"), "k003", "changed")
                .put(&space("A/early"), "new", "a namespace before all others")
                .delete(&space("a"), "k006")
                .touch(&space("a"), "k009", Some(Duration::from_secs(7_200)))
                .delete_prefix(&space("mortal"), "");
            for (_, part) in Batch::by_partition(batch.writes) {
                self.store.commit(part).await?;
            }
        }
        Ok(page)
    }
}

/// A change happens at each page of each stage, one after the other, so what the copy read before is outdated.
#[tokio::test]
async fn concurrent_changes_are_copied() {
    for page in 1..40 {
        let store = filled(30).await;
        let source = Wrapped::new(Arc::new(store.clone()), Meddling::new(&store, page, 0));
        let target = MemoryStore::new();
        let options = CopyOptions::new().with_batch_bytes(300);
        let report = copy(&source, &target, &options, |_| {}).await.unwrap();
        assert!(report.settled, "{report:?}");
        assert_same(&store, &target).await;
    }
}

/// A touch is not a commit, so the counter does not show it.
#[tokio::test]
async fn expiry_changed_meanwhile_is_copied() {
    struct Touching(MemoryStore, AtomicUsize);
    #[async_trait]
    impl Wrapper for Touching {
        async fn scan(&self, inner: &dyn Store, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
            let page = inner.scan(namespace, options).await?;
            if self.1.fetch_sub(1, Ordering::Relaxed) == 1 {
                self.0.commit(Batch::new().touch(&space("mortal"), "k", Some(Duration::from_secs(9)))).await?;
            }
            Ok(page)
        }
    }
    for page in 1..9 {
        let store = filled(3).await;
        let source = Wrapped::new(Arc::new(store.clone()), Touching(store.clone(), AtomicUsize::new(page)));
        let target = MemoryStore::new();
        let report = copied(&source, &target).await;
        assert!(report.settled);
        // A change after the comparison cannot be detected.
        if report.passes > 0 || page <= 4 {
            assert_same(&store, &target).await;
        }
    }
}

#[tokio::test]
async fn constantly_changing_source_is_reported_and_copy_can_continue() {
    let store = filled(30).await;
    let target = MemoryStore::new();
    let source = Wrapped::new(Arc::new(store.clone()), Meddling::new(&store, 2, usize::MAX));
    let report = copied(&source, &target).await;
    assert_eq!((report.settled, report.passes, report.digest), (false, CopyOptions::new().passes_max, None));
    let report = copied(&store, &target).await;
    assert!(report.settled && report.resumed, "{report:?}");
    assert_same(&store, &target).await;
}

/// A touch, which no counter shows, happens at the last page that the comparison reads.
#[tokio::test]
async fn expiry_changed_during_the_comparison_is_copied() {
    struct TouchingReads(MemoryStore, AtomicUsize);
    #[async_trait]
    impl Wrapper for TouchingReads {
        async fn scan(&self, inner: &dyn Store, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
            let page = inner.scan(namespace, options.clone()).await?;
            if options.with_values && *namespace == space("mortal") && self.1.fetch_add(1, Ordering::Relaxed) == 1 {
                self.0.commit(Batch::new().touch(&space("mortal"), "k", Some(Duration::from_secs(9)))).await?;
            }
            Ok(page)
        }
    }
    let store = filled(3).await;
    let source = Wrapped::new(Arc::new(store.clone()), TouchingReads(store.clone(), AtomicUsize::new(0)));
    let target = MemoryStore::new();
    assert!(copied(&source, &target).await.settled);
    assert_same(&store, &target).await;
}
