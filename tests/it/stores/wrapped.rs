//! A store around a store, for tests: the inner store handles every method that a wrapper does not override.

use async_trait::async_trait;
use bytes::Bytes;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use treehold::ops::Version;
use treehold::store::{
    Batch, FilteredScan, Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Partition, Scan, ScanOptions, Store,
    StoreCapabilities, StoreDescription, StoreExt, StoreExtensions, StoreMaintenance, StoreStats, Watch,
};
use treehold::{Error, Result};

/// The overridden methods.
#[async_trait]
pub(crate) trait Wrapper: Send + Sync {
    fn name(&self) -> Option<&str> {
        None
    }

    fn value_bytes_max(&self) -> Option<u64> {
        None
    }

    async fn get(&self, inner: &dyn Store, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        inner.get(namespace, key).await
    }

    async fn scan(&self, inner: &dyn Store, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        inner.scan(namespace, options).await
    }

    /// Whether the store offers filtered scans, which [`Wrapper::scan_holding`] handles.
    fn filters(&self) -> bool {
        false
    }

    async fn scan_holding(&self, inner: &dyn Store, namespace: &Namespace, options: ScanOptions, text: &Bytes) -> Result<Scan> {
        inner.scan_holding(namespace, options, text).await
    }

    async fn commit(&self, inner: &dyn Store, batch: Batch) -> Result<Vec<Version>> {
        inner.commit(batch).await
    }

    async fn sweep(&self, inner: &dyn Store, limit: usize) -> Result<usize> {
        inner.sweep(limit).await
    }

    async fn shrink(&self, inner: &dyn Store, pages: usize) -> Result<usize> {
        inner.shrink(pages).await
    }
}

pub(crate) struct Wrapped<W> {
    inner: Arc<dyn Store>,
    wrapper: W,
}

impl<W: Wrapper> Wrapped<W> {
    pub(crate) fn new(inner: Arc<dyn Store>, wrapper: W) -> Self {
        Self { inner, wrapper }
    }

    pub(crate) fn wrapper(&self) -> &W {
        &self.wrapper
    }
}

impl<W: Wrapper> fmt::Display for Wrapped<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.wrapper.name() {
            Some(name) => f.write_str(name),
            None => self.inner.fmt(f),
        }
    }
}

impl<W> fmt::Debug for Wrapped<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wrapped").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[async_trait]
impl<W: Wrapper> Store for Wrapped<W> {
    fn capabilities(&self) -> StoreCapabilities {
        let offered = self.inner.capabilities();
        let max = self.wrapper.value_bytes_max().or(offered.value_bytes_max);
        offered.with_value_bytes_max(max)
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        let extensions = StoreExtensions::new().with_maintenance(self);
        if self.wrapper.filters() { extensions.with_filtered_scan(self) } else { extensions }
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        self.wrapper.get(&*self.inner, namespace, key).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        Ok(self.get(namespace, key).await?.map(|item| ItemPart::cut(item, range)))
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        self.inner.get_many(namespace, keys, with_values).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.wrapper.scan(&*self.inner, namespace, options).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.inner.namespaces(options).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        batch.validate(&self.capabilities())?;
        self.wrapper.commit(&*self.inner, batch).await
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.inner.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.inner.watch(namespace).await
    }
}

#[async_trait]
impl<W: Wrapper> StoreMaintenance for Wrapped<W> {
    async fn sweep(&self, limit: usize) -> Result<usize> {
        self.wrapper.sweep(&*self.inner, limit).await
    }

    async fn shrink(&self, pages: usize) -> Result<usize> {
        self.wrapper.shrink(&*self.inner, pages).await
    }

    async fn describe(&self) -> Result<StoreDescription> {
        self.inner.describe().await
    }

    async fn stats(&self) -> Result<StoreStats> {
        self.inner.stats().await
    }

    async fn check(&self) -> Result<Vec<Error>> {
        self.inner.check().await
    }
}

#[async_trait]
impl<W: Wrapper> FilteredScan for Wrapped<W> {
    async fn scan_holding(&self, namespace: &Namespace, options: ScanOptions, text: &Bytes) -> Result<Scan> {
        self.wrapper.scan_holding(&*self.inner, namespace, options, text).await
    }
}
