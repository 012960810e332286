//! Rows in a directory managed by sled, a pure Rust engine, for one process at a time.
//!
//! sled alone does not survive a power loss: its `flush` relies on `sync_file_range(2)`, which guarantees nothing. Here
//! every group of commits ends with a barrier of our own (`barrier.rs`). With it, every acknowledged commit was whole
//! in all 1,440 states of a simulated power loss with small bodies. With bodies of 300 KB, one state of 400 could not be
//! opened; docs/durability.md names the probable cause. So the store promises to survive the end of a process, not a
//! power loss. Start with `rows.rs` for the stored format, then read `open.rs`, `read.rs` and `write.rs`.

use async_trait::async_trait;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Durability, Version};
use treehold_store::committer::{Committer, Work};
use treehold_store::watch::Watches;
use treehold_store::{
    Batch, Item, ItemPart, MigrateOptions, MigrateProgress, MigrateReport, Namespace, NamespacePage, NamespacesOptions, Partition, Scan,
    ScanOptions, Store, StoreCapabilities, StoreDescription, StoreExtensions, StoreMaintenance, StoreStats, Watch,
};

mod barrier;
mod engine;
mod error;
mod leftover;
mod migrate;
mod open;
mod pending;
mod read;
mod rows;
mod waker;
mod write;

use pending::{Pending, Seen};
use read::{Got, Reader};
use waker::Waker;
use write::SledWriter;

pub use engine::SledEngine;

/// The largest body in bytes. Writing a batch takes about nine times its size in memory.
const VALUE_BYTES_MAX: u64 = 64 << 20;

/// Up to this many keys are read on the calling thread: at 3 to 18 µs each, that costs about as much as a hop to
/// another thread (41 µs).
const INLINE_KEYS: usize = 8;

/// Bodies over this size are read on a blocking thread.
const INLINE_BODY_BYTES: u64 = 256 << 10;

/// Scans without bodies run on the calling thread for up to this many rows (about 50 µs).
const INLINE_ROWS: usize = 100;

/// Options for opening a [`SledStore`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SledOptions {
    /// The store's directory. It is created if missing, but its parent must exist.
    pub path: PathBuf,
    /// The clock for creation, modification and expiry times.
    pub clock: Clock,
    /// The page cache in bytes. Default 64 MiB.
    pub cache_bytes: u64,
    /// How long opening waits for another holder of the directory that may be closing it. Default 10 s.
    pub lock_timeout: Duration,
}

impl SledOptions {
    /// Uses the defaults for the directory at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), clock: Clock::system(), cache_bytes: 64 << 20, lock_timeout: Duration::from_secs(10) }
    }

    /// Sets the clock for creation, modification and expiry times.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the page cache in bytes.
    #[must_use]
    pub fn with_cache_bytes(mut self, cache_bytes: u64) -> Self {
        self.cache_bytes = cache_bytes;
        self
    }

    /// Sets how long opening waits for another holder of the directory.
    #[must_use]
    pub fn with_lock_timeout(mut self, lock_timeout: Duration) -> Self {
        self.lock_timeout = lock_timeout;
        self
    }
}

/// A store in a directory, for one process at a time. Clones share the store.
///
/// Point reads run on the calling thread, longer ones on the runtime's blocking threads, so the store requires Tokio.
/// Reading rows that a commit is changing waits until that commit is durable; other reads do not wait. After a failed
/// write, such as on a full disk, the store refuses reads and commits until it is reopened, because the state of the
/// disk is unknown.
///
/// Dropping the last clone waits for submitted writes and closes the directory.
///
/// # Examples
/// ```
/// use treehold_sled::SledStore;
/// use treehold_store::{Batch, Namespace, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("agent.sled");
/// let store = SledStore::open(&path)?;
/// let notes = Namespace::new(["ada", "notes"])?;
/// store.commit(Batch::new().put(&notes, "today", "walk the dog")).await?;
/// drop(store);
///
/// let store = SledStore::open(&path)?;
/// assert_eq!(&store.get(&notes, "today").await?.expect("it was put").value[..], b"walk the dog");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SledStore {
    shared: Arc<Shared>,
}

struct Shared {
    // Dropped in this order: the committer may wait for a failed write until it is woken, and the last handle closes the directory.
    committer: Committer,
    _waker: Waker,
    reader: Reader,
    pending: Arc<Pending>,
    watches: Arc<Watches>,
    clock: Clock,
    name: String,
}

impl SledStore {
    /// Returns the capabilities of every store of this engine.
    pub fn offers() -> StoreCapabilities {
        StoreCapabilities::new(Durability::Process).with_sweeps(true).with_value_bytes_max(Some(VALUE_BYTES_MAX))
    }

    /// Returns whether a store is in a directory, or something that opening it reports, such as files of another program. Blocks.
    pub fn exists(path: &Path) -> bool {
        open::is_there(path)
    }

    /// Opens a directory with default options, and creates it if missing.
    ///
    /// Blocks: opening reads the log, which takes about 230 ms for 400 MB.
    ///
    /// # Errors
    /// See [`SledStore::open_with`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(SledOptions::new(path.as_ref()))
    }

    /// Opens a directory.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) while another process, or another store in this one, has it open.
    /// [`NotFound`](ErrorKind::NotFound) if its parent does not exist. [`NotADirectory`](ErrorKind::NotADirectory) for
    /// a file. [`PermissionDenied`](ErrorKind::PermissionDenied) if it is not writable. [`Corrupt`](ErrorKind::Corrupt)
    /// for a directory that is damaged or not a store. [`Unsupported`](ErrorKind::Unsupported) for a store of a newer
    /// version.
    pub fn open_with(options: SledOptions) -> Result<Self> {
        let name = options.path.file_name().map_or_else(|| "sled".into(), |name| format!("sled:{}", name.to_string_lossy()));
        let opened = open::open(&options)?;
        let reader = Reader::new(opened.rows.clone(), opened.version);
        let (watches, pending) = (Arc::<Watches>::default(), Arc::<Pending>::default());
        let writer = SledWriter::new(reader.clone(), opened.barrier, options.clock.clone(), watches.clone(), pending.clone());
        let committer = Committer::start("treehold-sled", writer)?;
        Ok(Self { shared: Arc::new(Shared { committer, _waker: opened.waker, reader, pending, watches, clock: options.clock, name }) })
    }

    /// Migrates a directory of a former layout to the present one, 1,000 rows at a time. An interrupted migration resumes on the
    /// next call; until then no version opens the store. Blocks. `tell` receives the progress.
    ///
    /// Cost: one read and two writes for every row that moves, but no body.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if there is no store. [`Unavailable`](ErrorKind::Unavailable) while another process has it
    /// open. [`Conflict`](ErrorKind::Conflict) for a store with an unfinished copy. [`AlreadyExists`](ErrorKind::AlreadyExists) if it
    /// has rows below the reserved root. Otherwise as [`SledStore::open_with`].
    pub fn migrate(options: &SledOptions, how: &MigrateOptions, tell: &mut (dyn FnMut(MigrateProgress) + Send)) -> Result<MigrateReport> {
        migrate::migrate(options, how, tell)
    }

    fn now(&self) -> i64 {
        self.shared.clock.now().as_microsecond()
    }

    /// Fails in a forked process, and for a store that a failed write has closed.
    fn check_open(&self) -> Result<()> {
        self.shared.committer.check_process()?;
        self.shared.pending.check()
    }

    /// Returns the result of a read once everything it saw is durable.
    async fn shown<T>(&self, read: Result<T>, seen: Seen) -> Result<T> {
        self.shared.pending.shown(&seen).await?;
        read
    }

    /// Runs a potentially long read on a blocking thread.
    async fn blocking<T: Send + 'static>(&self, run: impl FnOnce(&Reader) -> Result<T> + Send + 'static) -> Result<T> {
        let shared = self.shared.clone();
        tokio::task::spawn_blocking(move || run(&shared.reader)).await.map_err(|source| {
            Error::new(ErrorKind::Internal, "a read of the store was interrupted; this is a bug in the program").with_source(source)
        })?
    }

    async fn read(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        let now = self.now();
        match self.shared.reader.get(namespace, key, now, Some(INLINE_BODY_BYTES))? {
            Got::Absent => Ok(None),
            Got::Item(item) => Ok(Some(item)),
            Got::TooLong => {
                let (namespace, key) = (namespace.clone(), key.to_owned());
                self.blocking(move |reader| Ok(reader.get(&namespace, &key, now, Some(u64::MAX))?.into_item())).await
            }
        }
    }

    async fn read_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        let now = self.now();
        if range.end.saturating_sub(range.start) <= INLINE_BODY_BYTES {
            return self.shared.reader.get_part(namespace, key, now, &range);
        }
        let (namespace, key) = (namespace.clone(), key.to_owned());
        self.blocking(move |reader| reader.get_part(&namespace, &key, now, &range)).await
    }

    async fn read_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        let now = self.now();
        if keys.len() <= INLINE_KEYS {
            let body_bytes_max = with_values.then_some(INLINE_BODY_BYTES);
            if let Some(items) = self.shared.reader.get_many(namespace, keys, now, body_bytes_max)? {
                return Ok(items);
            }
        }
        let namespace = namespace.clone();
        let keys: Vec<String> = keys.iter().map(|&key| key.to_owned()).collect();
        let body_bytes_max = with_values.then_some(u64::MAX);
        self.blocking(move |reader| Ok(reader.get_many(&namespace, &keys, now, body_bytes_max)?.unwrap_or_default())).await
    }

    async fn page(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        let now = self.now();
        if !options.with_values
            && let Some(page) = self.shared.reader.scan(namespace, &options, now, INLINE_ROWS)?
        {
            return Ok(page);
        }
        let namespace = namespace.clone();
        self.blocking(move |reader| Ok(reader.scan(&namespace, &options, now, usize::MAX)?.unwrap_or_default())).await
    }
}

#[async_trait]
impl Store for SledStore {
    fn capabilities(&self) -> StoreCapabilities {
        Self::offers()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        StoreExtensions::new().with_maintenance(self)
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        self.check_open()?;
        let item = self.read(namespace, key).await;
        self.shown(item, Seen::records(namespace, [key])).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        self.check_open()?;
        let part = self.read_part(namespace, key, range).await;
        self.shown(part, Seen::records(namespace, [key])).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        self.check_open()?;
        let items = self.read_many(namespace, keys, with_values).await;
        self.shown(items, Seen::records(namespace, keys.iter().copied())).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.check_open()?;
        let seen = Seen::prefix(namespace, &options.prefix);
        let page = self.page(namespace, options).await;
        self.shown(page, seen).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.check_open()?;
        let now = self.now();
        let page = self.blocking(move |reader| reader.namespaces(&options, now)).await;
        self.shown(page, Seen::All).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        batch.validate(&self.capabilities())?;
        Ok(self.shared.committer.submit(Work::Commit(batch)).await?.versions)
    }

    /// Returns the one counter of all partitions.
    async fn current_version(&self, _: &Partition) -> Result<Version> {
        self.check_open()?;
        Ok(self.shared.reader.current_version())
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.shared.committer.check_process()?;
        Ok(self.shared.watches.watch(namespace))
    }
}

#[async_trait]
impl StoreMaintenance for SledStore {
    async fn sweep(&self, limit: usize) -> Result<usize> {
        Ok(self.shared.committer.submit(Work::Sweep(limit)).await?.swept)
    }

    async fn describe(&self) -> Result<StoreDescription> {
        Ok(StoreDescription::new("sled 0.34", self.capabilities().durability).with_schema(rows::SCHEMA))
    }

    async fn stats(&self) -> Result<StoreStats> {
        self.check_open()?;
        let now = self.now();
        let stats = self.blocking(move |reader| reader.stats(now)).await;
        self.shown(stats, Seen::All).await
    }

    async fn check(&self) -> Result<Vec<Error>> {
        self.check_open()?;
        let damage = self.blocking(|reader| reader.check()).await;
        self.shown(damage, Seen::All).await
    }
}

impl fmt::Display for SledStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shared.name)
    }
}

impl fmt::Debug for SledStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SledStore").field(&self.shared.name).finish()
    }
}
