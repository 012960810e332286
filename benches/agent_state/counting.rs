//! A store that counts its calls and the bytes that they put.

use async_trait::async_trait;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use treehold::error::Result;
use treehold::ops::Version;
use treehold::store::{
    Batch, BatchWrite, Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Partition, Scan, ScanOptions, Store, StoreCapabilities,
    StoreExtensions, Watch,
};

#[derive(Debug)]
pub(crate) struct Counting {
    inner: Arc<dyn Store>,
    calls: AtomicU64,
    written: AtomicU64,
}

impl Counting {
    pub(crate) fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner, calls: AtomicU64::new(0), written: AtomicU64::new(0) }
    }

    /// Returns the number of calls since the last time.
    pub(crate) fn take_calls(&self) -> u64 {
        self.calls.swap(0, Ordering::Relaxed)
    }

    /// Returns the bytes of puts since the last time.
    pub(crate) fn take_written(&self) -> u64 {
        self.written.swap(0, Ordering::Relaxed)
    }

    /// Counts a call, and returns the store that answers it.
    fn called(&self) -> &dyn Store {
        self.calls.fetch_add(1, Ordering::Relaxed);
        &*self.inner
    }
}

impl fmt::Display for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl Store for Counting {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        self.inner.extensions()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        self.called().get(namespace, key).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        self.called().get_part(namespace, key, range).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        self.called().get_many(namespace, keys, with_values).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.called().scan(namespace, options).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.called().namespaces(options).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        for write in &batch.writes {
            if let BatchWrite::Put { namespace, key, meta, value, .. } = write {
                let bytes = namespace.encoded().len() + key.len() + meta.len() + value.len();
                self.written.fetch_add(bytes as u64, Ordering::Relaxed);
            }
        }
        self.called().commit(batch).await
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.called().current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.called().watch(namespace).await
    }
}
