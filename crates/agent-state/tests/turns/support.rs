//! A store whose time is that of tokio, and processes that can lose it.

use async_trait::async_trait;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use treehold_agent_state::StateSlot;
use treehold_agent_state::call::{TurnGate, TurnKey, TurnOptions};
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_store::{
    Batch, Item, ItemPart, MemoryStore, Namespace, NamespacePage, NamespacesOptions, Partition, Scan, ScanOptions, Store,
    StoreCapabilities, StoreExtensions, Watch,
};

pub(crate) const LEASE: Duration = Duration::from_secs(60);

/// Returns a clock that shows tokio's time.
pub(crate) fn clock() -> Clock {
    let start = tokio::time::Instant::now();
    Clock::from_fn(move || jiff::Timestamp::from_second(1_800_000_000).unwrap() + jiff::SignedDuration::try_from(start.elapsed()).unwrap())
}

pub(crate) fn key(session: &str) -> TurnKey {
    TurnKey::new("acme", "helper", &StateSlot::new(Some("ada"), session).unwrap()).unwrap()
}

/// Lets every task run until it waits for time.
pub(crate) async fn settle() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}

/// A store of one process, which can lose its connection.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    inner: MemoryStore,
    is_cut: Arc<AtomicBool>,
    /// Commits are made, and their answers are lost.
    is_deaf: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
}

impl Link {
    pub(crate) fn new(inner: &MemoryStore) -> Self {
        Self { inner: inner.clone(), is_cut: Arc::default(), is_deaf: Arc::default(), calls: Arc::default() }
    }

    pub(crate) fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::SeqCst);
    }

    pub(crate) fn deafen(&self, is_deaf: bool) {
        self.is_deaf.store(is_deaf, Ordering::SeqCst);
    }

    /// Counts reads and commits.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    async fn pass(&self) -> Result<()> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        // Gives other tasks the chance to come between.
        tokio::task::yield_now().await;
        if self.is_cut.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "the store cannot be reached").without_effect());
        }
        Ok(())
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("link")
    }
}

#[async_trait]
impl Store for Link {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities().with_shared(true)
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        StoreExtensions::new()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        self.pass().await?;
        self.inner.get(namespace, key).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        self.pass().await?;
        self.inner.get_part(namespace, key, range).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        self.pass().await?;
        self.inner.get_many(namespace, keys, with_values).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.pass().await?;
        self.inner.scan(namespace, options).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.pass().await?;
        self.inner.namespaces(options).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        self.pass().await?;
        let versions = self.inner.commit(batch).await?;
        tokio::task::yield_now().await;
        if self.is_deaf.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "the answer was lost"));
        }
        Ok(versions)
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.inner.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.pass().await?;
        self.inner.watch(namespace).await
    }
}

/// A process: a gate behind a link of its own.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) gate: TurnGate,
    pub(crate) link: Link,
}

/// Makes processes that share one store.
pub(crate) fn processes<const N: usize>() -> (MemoryStore, [Process; N]) {
    let clock = clock();
    let store = MemoryStore::with_clock(clock.clone());
    let processes = std::array::from_fn(|_| {
        let link = Link::new(&store);
        let options = TurnOptions::new().with_lease(LEASE).with_clock(clock.clone());
        Process { gate: TurnGate::with_options(Arc::new(link.clone()), options), link }
    });
    (store, processes)
}
