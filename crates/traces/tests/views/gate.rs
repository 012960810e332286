//! A store that counts its calls, and that fails or stops at one of them.

use async_trait::async_trait;
use std::fmt;
use std::future::pending;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_store::{
    Batch, Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Partition, Scan, ScanOptions, Store, StoreCapabilities,
    StoreExtensions, Watch,
};

/// What happens at the chosen call and at all later ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The call fails without an effect.
    Refused,
    /// The call takes effect, and its answer is lost.
    Unanswered,
    /// The call never returns, so the caller can be dropped.
    Stuck,
    /// The call waits until it is resumed. Later ones pass.
    Paused,
}

/// Which calls are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Calls {
    All,
    Commits,
}

pub(crate) struct Gate {
    inner: Arc<dyn Store>,
    calls: Calls,
    count: AtomicUsize,
    at: usize,
    fate: Fate,
    reached: Notify,
    resumed: Notify,
}

impl Gate {
    /// Counts the calls.
    pub(crate) fn open(inner: Arc<dyn Store>) -> Arc<Self> {
        Self::new(inner, Calls::All, usize::MAX, Fate::Refused)
    }

    /// Lets the calls before a number pass, from 0.
    pub(crate) fn new(inner: Arc<dyn Store>, calls: Calls, at: usize, fate: Fate) -> Arc<Self> {
        Arc::new(Self { inner, calls, count: AtomicUsize::new(0), at, fate, reached: Notify::new(), resumed: Notify::new() })
    }

    /// Returns how many calls there were, and starts again.
    pub(crate) fn take(&self) -> usize {
        self.count.swap(0, Ordering::SeqCst)
    }

    pub(crate) fn was_reached(&self) -> bool {
        self.count.load(Ordering::SeqCst) > self.at
    }

    /// Waits for the chosen call.
    pub(crate) async fn reached(&self) {
        self.reached.notified().await;
    }

    /// Lets the paused call pass.
    pub(crate) fn resume(&self) {
        self.resumed.notify_one();
    }

    async fn pass(&self, is_commit: bool) -> Option<Fate> {
        if self.calls == Calls::Commits && !is_commit {
            return None;
        }
        let call = self.count.fetch_add(1, Ordering::SeqCst);
        if call < self.at || (self.fate == Fate::Paused && call > self.at) {
            return None;
        }
        self.reached.notify_one();
        if self.fate == Fate::Paused {
            self.resumed.notified().await;
            return None;
        }
        if self.fate == Fate::Stuck {
            pending::<()>().await;
        }
        Some(self.fate)
    }

    async fn read<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        match self.pass(false).await {
            None => call.await,
            Some(_) => Err(away()),
        }
    }
}

fn away() -> Error {
    Error::new(ErrorKind::Unavailable, "the store is away")
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gate({})", self.inner)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[async_trait]
impl Store for Gate {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        StoreExtensions::new()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        self.read(self.inner.get(namespace, key)).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        self.read(self.inner.get_part(namespace, key, range)).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        self.read(self.inner.get_many(namespace, keys, with_values)).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.read(self.inner.scan(namespace, options)).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.read(self.inner.namespaces(options)).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        match self.pass(true).await {
            None => self.inner.commit(batch).await,
            Some(Fate::Unanswered) => {
                self.inner.commit(batch).await?;
                Err(away())
            }
            Some(_) => Err(away()),
        }
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.inner.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.inner.watch(namespace).await
    }
}
