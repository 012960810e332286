//! A store whose commits depend on a lease.

use async_trait::async_trait;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_store::watch::Watch;
use treehold_store::{
    Batch, Condition, Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Partition, Scan, ScanOptions, Store, StoreCapabilities,
    StoreExtensions,
};

/// Passes everything on, and adds to each commit the condition that the holder still has the lease.
#[derive(Debug)]
pub(super) struct Leased {
    inner: Arc<dyn Store>,
    rows: Namespace,
    key: &'static str,
    lease: Version,
}

/// The source of the error of a commit after the lease was lost.
#[derive(Debug)]
struct LeaseLost;

impl fmt::Display for LeaseLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the lease is lost")
    }
}

impl std::error::Error for LeaseLost {}

impl Leased {
    /// Makes the store of the holder of a lease, which is the row with this version.
    pub(super) fn new(inner: Arc<dyn Store>, rows: Namespace, key: &'static str, lease: Version) -> Self {
        Self { inner, rows, key, lease }
    }

    /// Returns whether a commit failed because the lease was lost.
    pub(super) fn is_lost(&self, error: &Error) -> bool {
        std::error::Error::source(error).is_some_and(|source| source.is::<LeaseLost>())
    }

    async fn holds(&self) -> Result<bool> {
        Ok(self.inner.get(&self.rows, self.key).await?.is_some_and(|item| item.version == self.lease))
    }
}

impl fmt::Display for Leased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Leased({})", self.inner)
    }
}

#[async_trait]
impl Store for Leased {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        self.inner.extensions()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        self.inner.get(namespace, key).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        self.inner.get_part(namespace, key, range).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        self.inner.get_many(namespace, keys, with_values).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.inner.scan(namespace, options).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.inner.namespaces(options).await
    }

    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable), without an effect, once the lease is lost. A conflict would make the caller repeat the
    /// commit.
    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        match self.inner.commit(batch.expect(&self.rows, self.key, Condition::Version(self.lease))).await {
            Err(error) if error.kind() == ErrorKind::Conflict && !self.holds().await? => {
                let message = "the run took longer than its lease; the next one completes it";
                Err(Error::new(ErrorKind::Unavailable, message).with_source(LeaseLost).without_effect())
            }
            committed => committed,
        }
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.inner.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.inner.watch(namespace).await
    }
}
