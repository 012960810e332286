//! A store that loses answers, for tests of saves.

use async_trait::async_trait;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_store::{
    Batch, Item, MemoryStore, Namespace, NamespacePage, NamespacesOptions, Partition, Scan, ScanOptions, Store, StoreCapabilities,
    StoreExtensions,
};

/// A one-time action at some moment of a commit.
type Then = Box<dyn FnOnce() -> futures::future::BoxFuture<'static, ()> + Send>;

/// A store that loses answers: those of the first commits, after they took effect, and of the first reads.
#[derive(Default)]
pub(crate) struct Lossy {
    inner: MemoryStore,
    pub(crate) commits: AtomicUsize,
    pub(crate) reads: AtomicUsize,
    /// The number of commits that were tried.
    pub(crate) tried: AtomicUsize,
    /// The durable content. A commit whose answer was lost is visible to reads, but durable only after a later commit is answered.
    disk: MemoryStore,
    undurable: tokio::sync::Mutex<Vec<Batch>>,
    /// The actions before the next commit, and after the next commit whose answer is lost.
    before: parking_lot::Mutex<Option<Then>>,
    after: parking_lot::Mutex<Option<Then>>,
    /// The action after the next read.
    read: parking_lot::Mutex<Option<Then>>,
}

impl fmt::Debug for Lossy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lossy")
    }
}

impl Lossy {
    /// Loses the answers of the first `commits` commits.
    pub(super) fn losing(commits: usize) -> Self {
        Self { commits: commits.into(), ..Self::default() }
    }

    /// Runs an action before the next commit.
    pub(crate) fn before_commit(&self, then: impl Future<Output = ()> + Send + 'static) {
        *self.before.lock() = Some(Box::new(|| Box::pin(then)));
    }

    /// Runs an action after the next read.
    pub(crate) fn after_read(&self, then: impl Future<Output = ()> + Send + 'static) {
        *self.read.lock() = Some(Box::new(|| Box::pin(then)));
    }

    /// Loses the answer of the next commit, and runs an action after it.
    pub(crate) fn lose_commit(&self, then: impl Future<Output = ()> + Send + 'static) {
        *self.after.lock() = Some(Box::new(|| Box::pin(then)));
        self.commits.store(1, Ordering::Relaxed);
    }

    /// Loses the answers of the next `answers` commits and as many reads.
    pub(crate) fn lose(&self, answers: usize) {
        self.commits.store(answers, Ordering::Relaxed);
        self.reads.store(answers, Ordering::Relaxed);
    }

    /// Returns the store as it is after a crash.
    pub(super) fn crashed(&self) -> Arc<MemoryStore> {
        Arc::new(self.disk.clone())
    }

    fn answer<T>(left: &AtomicUsize, answer: Result<T>) -> Result<T> {
        match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => answer.and(Err(Error::new(ErrorKind::Unavailable, "the answer was lost").with_unknown_effect())),
            Err(_) => answer,
        }
    }
}

impl fmt::Display for Lossy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lossy")
    }
}

#[async_trait]
impl Store for Lossy {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        self.inner.extensions()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        let answer = Self::answer(&self.reads, self.inner.get(namespace, key).await);
        let then = self.read.lock().take();
        if let Some(then) = then {
            then().await;
        }
        answer
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: std::ops::Range<u64>) -> Result<Option<treehold_store::ItemPart>> {
        Self::answer(&self.reads, self.inner.get_part(namespace, key, range).await)
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        Self::answer(&self.reads, self.inner.get_many(namespace, keys, with_values).await)
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.inner.scan(namespace, options).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.inner.namespaces(options).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        self.tried.fetch_add(1, Ordering::Relaxed);
        let before = self.before.lock().take();
        if let Some(before) = before {
            before().await;
        }
        let mut undurable = self.undurable.lock().await;
        let done = self.inner.commit(batch.clone()).await;
        if done.is_ok() {
            undurable.push(batch);
        }
        let answer = Self::answer(&self.commits, done);
        if answer.is_ok() {
            for batch in undurable.drain(..) {
                self.disk.commit(batch).await?;
            }
        }
        drop(undurable);
        let after = answer.is_err().then(|| self.after.lock().take()).flatten();
        if let Some(after) = after {
            after().await;
        }
        answer
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.inner.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<treehold_store::Watch> {
        self.inner.watch(namespace).await
    }
}
