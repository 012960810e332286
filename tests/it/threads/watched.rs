//! A store that records reads and writes, and fails on request.

use async_trait::async_trait;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use treehold::ops::Version;
use treehold::store::{
    Batch, BatchWrite, Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Partition, RESERVED_ROOT, Scan, ScanEntry, ScanOptions,
    Store, StoreCapabilities, StoreExtensions,
};
use treehold::{Error, ErrorKind, MemoryStore, Result};

type Before = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

/// When a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Before its effect.
    Before,
    /// After its effect: the answer is lost.
    After,
}

pub(crate) const FAULTS: [Fault; 2] = [Fault::Before, Fault::After];

/// The recorded calls.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// The number of read calls.
    pub(crate) reads: usize,
    /// The rows read, by the kind of their namespace.
    pub(crate) rows: Vec<String>,
    /// The bytes of keys, metadata and values in each batch.
    pub(crate) batches: Vec<usize>,
    /// The number of commits that were tried, refused ones included.
    pub(crate) tried: usize,
    /// The contents written.
    pub(crate) bodies: usize,
}

impl Seen {
    /// Returns how many rows of a kind were read.
    pub(crate) fn rows_of(&self, kind: &str) -> usize {
        self.rows.iter().filter(|row| *row == kind).count()
    }
}

/// Returns the kind of a thread's rows, or else the third component.
fn kind_of(namespace: &Namespace) -> String {
    let at = if namespace.name().next().is_some_and(|first| first == RESERVED_ROOT) { 4 } else { 2 };
    namespace.components().nth(at).unwrap_or_default().into_owned()
}

#[derive(Default)]
struct Plan {
    /// How many commits succeed before some fail, how many fail, and how.
    commits: Option<(usize, usize, Fault)>,
    /// How many reads succeed before all fail.
    reads: Option<usize>,
    before_commit: Option<Before>,
}

#[derive(Clone, Default)]
pub(crate) struct Watched {
    inner: Arc<MemoryStore>,
    seen: Arc<Mutex<Seen>>,
    plan: Arc<Mutex<Plan>>,
}

impl Watched {
    /// Returns the calls since the last time.
    pub(crate) fn seen(&self) -> Seen {
        std::mem::take(&mut self.seen.lock())
    }

    /// Returns a store on the same rows that neither records nor fails.
    pub(crate) fn quiet(&self) -> Self {
        Self { inner: self.inner.clone(), ..Self::default() }
    }

    /// Makes `count` commits fail after the next `skipped`.
    pub(crate) fn fail_commits(&self, skipped: usize, count: usize, fault: Fault) {
        self.plan.lock().commits = Some((skipped, count, fault));
    }

    /// Makes all reads fail after the next `skipped`.
    pub(crate) fn fail_reads(&self, skipped: usize) {
        self.plan.lock().reads = Some(skipped);
    }

    /// Stops all failures.
    pub(crate) fn heal(&self) {
        *self.plan.lock() = Plan::default();
    }

    /// Runs an action once, before the next commit is made.
    pub(crate) fn before_commit<F: Future<Output = ()> + Send + 'static>(&self, act: impl FnOnce() -> F + Send + 'static) {
        self.plan.lock().before_commit = Some(Box::new(|| Box::pin(act())));
    }

    fn read(&self) -> Result<()> {
        self.seen.lock().reads += 1;
        match &mut self.plan.lock().reads {
            Some(0) => Err(Error::new(ErrorKind::Unavailable, "the store is down")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn count(&self, namespace: &Namespace, rows: usize) {
        let kind = kind_of(namespace);
        self.seen.lock().rows.extend(std::iter::repeat_n(kind, rows));
    }

    fn fault(&self) -> Option<Fault> {
        let mut plan = self.plan.lock();
        match &mut plan.commits {
            Some((0, 0, _)) | None => None,
            Some((0, count, fault)) => {
                *count -= 1;
                Some(*fault)
            }
            Some((skipped, ..)) => {
                *skipped -= 1;
                None
            }
        }
    }
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("watched")
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[async_trait]
impl Store for Watched {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        self.inner.extensions().without_reads()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        self.read()?;
        self.count(namespace, 1);
        self.inner.get(namespace, key).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        self.read()?;
        self.count(namespace, 1);
        self.inner.get_part(namespace, key, range).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        self.read()?;
        self.count(namespace, keys.len());
        self.inner.get_many(namespace, keys, with_values).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.read()?;
        let page = self.inner.scan(namespace, options).await?;
        self.count(namespace, page.entries.iter().filter(|entry| matches!(entry, ScanEntry::Item(_))).count());
        Ok(page)
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.read()?;
        self.inner.namespaces(options).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        self.seen.lock().tried += 1;
        let before = self.plan.lock().before_commit.take();
        if let Some(before) = before {
            before().await;
        }
        let fault = self.fault();
        let lost = || Error::new(ErrorKind::Unavailable, "the answer was lost").with_unknown_effect();
        if fault == Some(Fault::Before) {
            return Err(lost());
        }
        let mut size = 0;
        for write in &batch.writes {
            if let BatchWrite::Put { namespace, key, meta, value, .. } = write {
                size += key.len() + meta.len() + value.len();
                let is_body = kind_of(namespace) == "bodies";
                self.seen.lock().bodies += usize::from(is_body);
            }
        }
        let versions = self.inner.commit(batch).await?;
        self.seen.lock().batches.push(size);
        match fault {
            Some(_) => Err(lost()),
            None => Ok(versions),
        }
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.read()?;
        self.inner.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<treehold::store::Watch> {
        self.inner.watch(namespace).await
    }
}
