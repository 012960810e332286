//! A store that records its calls, fails on request, and can run an action just before a commit.

use async_trait::async_trait;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use treehold::ops::Version;
use treehold::store::{
    Batch, Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Partition, Scan, ScanOptions, Store, StoreCapabilities,
    StoreExtensions,
};
use treehold::{Error, ErrorKind, MemoryStore, Result};

type Before = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

#[derive(Clone, Default)]
pub(crate) struct Spy {
    pub(super) inner: MemoryStore,
    calls: Arc<Mutex<Vec<&'static str>>>,
    rows: Arc<AtomicUsize>,
    bodies: Arc<AtomicUsize>,
    part_bytes: Arc<Mutex<(u64, u64)>>,
    fails: Arc<AtomicBool>,
    /// How many calls succeed before one fails.
    fails_after: Arc<Mutex<Option<usize>>>,
    before_commit: Arc<Mutex<Option<Before>>>,
}

impl Spy {
    /// Returns the calls since the last time.
    pub(super) fn calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.calls.lock())
    }

    /// Returns how many rows were read since the last time, and how many of them with their bodies.
    pub(super) fn read(&self) -> (usize, usize) {
        (self.rows.swap(0, Ordering::Relaxed), self.bodies.swap(0, Ordering::Relaxed))
    }

    /// Returns how many bytes of bodies single reads returned since the last time: all together, and at most at once.
    pub(super) fn value_bytes(&self) -> (u64, u64) {
        std::mem::take(&mut self.part_bytes.lock())
    }

    fn count_bytes(&self, bytes: usize) {
        let mut counted = self.part_bytes.lock();
        *counted = (counted.0 + bytes as u64, counted.1.max(bytes as u64));
    }

    /// Makes every call fail from now on, or succeed again.
    pub(crate) fn fail(&self, fails: bool) {
        self.fails.store(fails, Ordering::Relaxed);
    }

    /// Makes one call fail, after this many that succeed.
    pub(crate) fn fail_after(&self, calls: usize) {
        *self.fails_after.lock() = Some(calls);
    }

    /// Makes no call fail any more. Returns whether one has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.fails_after.lock().take().is_none()
    }

    /// Runs an action once, just before the next commit.
    pub(super) fn before_commit<F: Future<Output = ()> + Send + 'static>(&self, act: impl FnOnce() -> F + Send + 'static) {
        *self.before_commit.lock() = Some(Box::new(|| Box::pin(act())));
    }

    fn note(&self, call: &'static str) -> Result<()> {
        self.calls.lock().push(call);
        let mut fails_after = self.fails_after.lock();
        let is_one_to_fail = *fails_after == Some(0);
        *fails_after = fails_after.and_then(|left| left.checked_sub(1));
        if is_one_to_fail || self.fails.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Unavailable, "the store is down"));
        }
        Ok(())
    }

    fn count(&self, rows: usize, with_values: bool) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
        if with_values {
            self.bodies.fetch_add(rows, Ordering::Relaxed);
        }
    }
}

impl fmt::Display for Spy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spy on {}", self.inner)
    }
}

impl fmt::Debug for Spy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[async_trait]
impl Store for Spy {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        self.inner.extensions().without_reads()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        self.note("get")?;
        self.count(1, true);
        let item = self.inner.get(namespace, key).await?;
        self.count_bytes(item.as_ref().map_or(0, |item| item.value.len()));
        Ok(item)
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        self.note("get_part")?;
        self.count(1, true);
        let part = self.inner.get_part(namespace, key, range).await?;
        self.count_bytes(part.as_ref().map_or(0, |part| part.item.value.len()));
        Ok(part)
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        self.note("get_many")?;
        self.count(keys.len(), with_values);
        self.inner.get_many(namespace, keys, with_values).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.note("scan")?;
        let with_values = options.with_values;
        let page = self.inner.scan(namespace, options).await?;
        self.count(page.entries.len(), with_values);
        Ok(page)
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.note("namespaces")?;
        self.inner.namespaces(options).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        self.note("commit")?;
        let before = self.before_commit.lock().take();
        if let Some(before) = before {
            before().await;
        }
        self.inner.commit(batch).await
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.note("current_version")?;
        self.inner.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<treehold::store::Watch> {
        self.inner.watch(namespace).await
    }
}
