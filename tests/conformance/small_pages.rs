//! A store with short pages and no extensions, so that every walk takes many pages and every report is computed by scans.

use async_trait::async_trait;
use std::fmt;
use treehold::Result;
use treehold::ops::Version;
use treehold::store::{
    Batch, Item, ItemPart, MemoryStore, Namespace, NamespacePage, NamespacesOptions, Partition, Scan, ScanOptions, Store,
    StoreCapabilities, StoreExtensions,
};

/// The most entries of a page.
const ENTRIES_MAX: usize = 2;

#[derive(Debug, Default)]
pub(crate) struct SmallPages(MemoryStore);

impl fmt::Display for SmallPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait]
impl Store for SmallPages {
    fn capabilities(&self) -> StoreCapabilities {
        self.0.capabilities().with_sweeps(false)
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        StoreExtensions::new()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        self.0.get(namespace, key).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: std::ops::Range<u64>) -> Result<Option<ItemPart>> {
        self.0.get_part(namespace, key, range).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        self.0.get_many(namespace, keys, with_values).await
    }

    async fn scan(&self, namespace: &Namespace, mut options: ScanOptions) -> Result<Scan> {
        options.limit = options.limit.min(ENTRIES_MAX);
        self.0.scan(namespace, options).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.0.namespaces(options).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        self.0.commit(batch).await
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.0.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<treehold::store::Watch> {
        self.0.watch(namespace).await
    }
}
