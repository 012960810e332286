//! Rows in one SQLite file that several processes may use at once.
//!
//! A write-ahead log with `synchronous=FULL`: an acknowledged commit survives the loss of power. One thread writes and
//! commits in groups ([`committer`](super::committer)); reads take a connection of their own and wait for no writer. Narrow
//! items and bodies are two tables, so listings never touch a body. Start with `open.rs` for the file and its schema, then
//! `read.rs` and `write.rs`.

use super::committer::{Committer, Work};
use super::{
    Batch, Item, ItemPart, LentRows, Namespace, NamespacePage, NamespacesOptions, Scan, ScanOptions, Store, StoreCapabilities,
    StoreDescription, StoreStats, Watch,
};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::{Durability, Version};
use async_trait::async_trait;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

mod error;
mod log;
mod open;
mod read;
mod snapshot;
mod watched;
mod write;

use read::{Got, ReaderPool, ScanRun};
use watched::Watched;
use write::SqliteWriter;

pub use snapshot::{SnapshotOptions, SnapshotProgress};

/// The largest body in bytes: what SQLite holds in one value with room to spare.
const VALUE_BYTES_MAX: u64 = 512 << 20;

/// Up to this many keys are looked up on the calling thread: at about 10 µs each that is in the order of one hop to another
/// thread (41 µs).
const INLINE_KEYS: usize = 8;

/// A body over this size is read on a blocking thread.
const INLINE_BODY_BYTES: u64 = 256 << 10;

/// A scan without bodies that ends within this many rows never leaves the calling thread (about 50 µs); one that does not
/// goes on elsewhere from where it is.
const INLINE_ROWS: usize = 100;

/// How often the counter is read for commits of other processes, while somebody watches.
const WATCH_PAUSE: Duration = Duration::from_millis(100);

/// How to open a [`SqliteStore`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SqliteOptions {
    /// The database file. It is created when it does not exist; its directory is not.
    pub path: PathBuf,
    /// Where the time comes from.
    pub clock: Clock,
    /// How long a commit waits for another process's before it is `unavailable`. Default 10 s.
    pub busy_timeout: Duration,
    /// How many bytes of pages the writer and each reader keep in memory. Default 8 MiB.
    pub cache_bytes: usize,
    /// The size of the write-ahead log in bytes over which a commit is followed by a wait for readers, at most 100 ms, so that
    /// the log can start over. A reader that stays longer lets it grow on. Default 64 MiB.
    pub log_bytes_max: u64,
}

impl SqliteOptions {
    /// Opens `path` with defaults.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            clock: Clock::system(),
            busy_timeout: Duration::from_secs(10),
            cache_bytes: 8 << 20,
            log_bytes_max: 64 << 20,
        }
    }

    /// Sets where the time comes from.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets how long a commit waits for another process's.
    #[must_use]
    pub fn with_busy_timeout(mut self, busy_timeout: Duration) -> Self {
        self.busy_timeout = busy_timeout;
        self
    }

    /// Sets how many bytes of pages the writer and each reader keep in memory.
    #[must_use]
    pub fn with_cache_bytes(mut self, cache_bytes: usize) -> Self {
        self.cache_bytes = cache_bytes;
        self
    }

    /// Sets over which size in bytes the write-ahead log is made to start over.
    #[must_use]
    pub fn with_log_bytes_max(mut self, log_bytes_max: u64) -> Self {
        self.log_bytes_max = log_bytes_max;
        self
    }
}

/// A store in one SQLite file. Clones share it.
///
/// Point reads run on the calling thread: a descent of two B-trees costs about 10 µs, a hop to another thread 41 µs. Scans
/// with bodies, long scans and large bodies go to the runtime's blocking threads, so the store is used within Tokio.
///
/// When the last clone is dropped, that drop waits for writes that were handed over, folds the write-ahead log into the
/// file and closes it.
///
/// # Examples
/// ```
/// use stratafs::store::{Batch, Namespace, SqliteStore, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("agent.db");
/// let store = SqliteStore::open(&path)?;
/// let notes = Namespace::new(["ada", "notes"])?;
/// store.commit(Batch::new().put(&notes, "today", "walk the dog")).await?;
/// drop(store);
///
/// let store = SqliteStore::open(&path)?;
/// assert_eq!(&store.get(&notes, "today").await?.expect("it was put").value[..], b"walk the dog");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SqliteStore {
    shared: Arc<Shared>,
}

/// Readers stand first: they are closed before the writer, which then is the last and folds the log into the file.
struct Shared {
    readers: Arc<ReaderPool>,
    committer: Committer,
    watched: Arc<Watched>,
    clock: Clock,
    name: String,
}

impl SqliteStore {
    /// Returns what every store of this engine offers.
    pub(crate) fn offers() -> StoreCapabilities {
        StoreCapabilities::new(Durability::Power).with_shared(true).with_value_bytes_max(Some(VALUE_BYTES_MAX))
    }

    /// Opens a file with defaults, and creates it when it does not exist.
    ///
    /// Blocks for about a millisecond, or until another process that creates the same file is done.
    ///
    /// # Errors
    /// See [`SqliteStore::open_with`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(SqliteOptions::new(path.as_ref()))
    }

    /// Opens a file.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) without the file's directory, [`PermissionDenied`](ErrorKind::PermissionDenied) for a
    /// file or directory that may not be written, [`ReadOnly`](ErrorKind::ReadOnly) on a file system that takes no changes, [`Corrupt`](ErrorKind::Corrupt) for a file that is not such a store,
    /// [`Unsupported`](ErrorKind::Unsupported) for one that a newer version wrote or on a file system without shared memory
    /// maps, [`Unavailable`](ErrorKind::Unavailable) otherwise. A file that is refused is not changed.
    pub fn open_with(options: SqliteOptions) -> Result<Self> {
        let name = options.path.file_name().map_or_else(|| "sqlite".into(), |name| format!("sqlite:{}", name.to_string_lossy()));
        let (path, connection) = open::open(&options)?;
        let watched = Arc::<Watched>::default();
        let writer = SqliteWriter::new(&path, connection, &options, watched.clone());
        let readers = Arc::new(ReaderPool::new(path, &options));
        let committer = Committer::start("stratafs-sqlite", writer)?;
        Ok(Self { shared: Arc::new(Shared { readers, committer, watched, clock: options.clock, name }) })
    }

    /// Copies the store as it is at one moment into a new file, while this and other processes write: a store that can be opened
    /// by itself. Returns its bytes.
    ///
    /// The file is written beside its place, carried to the disk, and renamed; a call that is dropped leaves nothing. `tell` is
    /// called as it goes on. Cost: reads and writes every page once; no writer waits, but the write-ahead log grows
    /// meanwhile by what is written.
    ///
    /// # Errors
    /// [`AlreadyExists`](ErrorKind::AlreadyExists) for a file that is there, unless [`SnapshotOptions::replace`] says otherwise, and
    /// in any case for a database that is in use there; [`InvalidArgument`](ErrorKind::InvalidArgument) for the store's own file,
    /// [`NotFound`](ErrorKind::NotFound) without its directory, [`PermissionDenied`](ErrorKind::PermissionDenied) and
    /// [`Unavailable`](ErrorKind::Unavailable) by the disk, and as [`Store::get`].
    ///
    /// # Examples
    /// ```
    /// use stratafs::store::{Batch, Namespace, SnapshotOptions, SqliteStore, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// let store = SqliteStore::open(directory.path().join("agent.db"))?;
    /// let notes = Namespace::new(["ada", "notes"])?;
    /// store.commit(Batch::new().put(&notes, "today", "walk the dog")).await?;
    /// store.snapshot(SnapshotOptions::new(directory.path().join("monday.db")), |_| {}).await?;
    /// let monday = SqliteStore::open(directory.path().join("monday.db"))?;
    /// assert_eq!(monday.get(&notes, "today").await?, store.get(&notes, "today").await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn snapshot(&self, options: SnapshotOptions, mut tell: impl FnMut(SnapshotProgress) + Send) -> Result<u64> {
        self.shared.committer.check_process()?;
        let (told, mut progress) = tokio::sync::watch::channel(SnapshotProgress::default());
        let mut taken = std::pin::pin!(self.blocking(move |readers| {
            let (source, busy_timeout) = (readers.path().to_owned(), readers.busy_timeout());
            snapshot::take(&readers.take()?, &source, &options, busy_timeout, &told)
        }));
        loop {
            tokio::select! {
                biased;
                taken = &mut taken => return taken,
                Ok(()) = progress.changed() => tell(*progress.borrow_and_update()),
            }
        }
    }

    fn now(&self) -> i64 {
        self.shared.clock.now().as_microsecond()
    }

    /// Runs what may take long on a blocking thread.
    async fn blocking<T: Send + 'static>(&self, run: impl FnOnce(&Arc<ReaderPool>) -> Result<T> + Send + 'static) -> Result<T> {
        let readers = self.shared.readers.clone();
        tokio::task::spawn_blocking(move || run(&readers)).await.map_err(|source| {
            Error::new(ErrorKind::Internal, "a read of the store was broken off; this is a fault of the program").with_source(source)
        })?
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn capabilities(&self) -> StoreCapabilities {
        Self::offers()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        self.shared.committer.check_process()?;
        let now = self.now();
        match self.shared.readers.take()?.get(namespace, key, now, Some(INLINE_BODY_BYTES))? {
            Got::Absent => Ok(None),
            Got::Item(item) => Ok(Some(item)),
            Got::TooLong => {
                let (namespace, key) = (namespace.clone(), key.to_owned());
                self.blocking(move |readers| Ok(readers.take()?.get(&namespace, &key, now, Some(u64::MAX))?.into_item())).await
            }
        }
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        self.shared.committer.check_process()?;
        let now = self.now();
        match self.shared.readers.take()?.get(namespace, key, now, Some(INLINE_BODY_BYTES))? {
            Got::Absent => Ok(None),
            Got::Item(item) => Ok(Some(ItemPart::cut(item, range))),
            Got::TooLong => {
                let (namespace, key) = (namespace.clone(), key.to_owned());
                self.blocking(move |readers| readers.take()?.get_part(&namespace, &key, now, &range)).await
            }
        }
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        self.shared.committer.check_process()?;
        let now = self.now();
        if keys.len() <= INLINE_KEYS {
            let body_bytes_max = with_values.then_some(INLINE_BODY_BYTES);
            if let Some(items) = self.shared.readers.take()?.get_many(namespace, keys, now, body_bytes_max)? {
                return Ok(items);
            }
        }
        let namespace = namespace.clone();
        let keys: Vec<String> = keys.iter().map(|&key| key.to_owned()).collect();
        let body_bytes_max = with_values.then_some(u64::MAX);
        self.blocking(move |readers| Ok(readers.take()?.get_many(&namespace, &keys, now, body_bytes_max)?.unwrap_or_default())).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.shared.committer.check_process()?;
        let with_values = options.with_values;
        let mut run = ScanRun::new(namespace.clone(), options, self.now());
        if with_values {
            return self.blocking(move |readers| readers.take()?.scan(&mut run)).await;
        }
        let mut reader = self.shared.readers.take()?;
        if reader.scan_some(&mut run, INLINE_ROWS)? {
            return Ok(run.finish());
        }
        self.blocking(move |_| reader.scan(&mut run)).await
    }

    async fn lend(&self, _namespace: &Namespace) -> Result<Option<Arc<dyn LentRows>>> {
        Ok(None)
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.shared.committer.check_process()?;
        let now = self.now();
        self.blocking(move |readers| readers.take()?.namespaces(&options, now)).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        batch.validate(&self.capabilities())?;
        Ok(self.shared.committer.submit(Work::Commit(batch)).await?.versions)
    }

    async fn current_version(&self) -> Result<Version> {
        self.shared.committer.check_process()?;
        self.shared.readers.take()?.current_version()
    }

    async fn sweep(&self, limit: usize) -> Result<usize> {
        Ok(self.shared.committer.submit(Work::Sweep(limit)).await?.swept)
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        let watch = self.shared.watched.watches.watch(namespace);
        // What is committed by now is shown by the next read.
        self.shared.watched.tell_of_others(self.current_version().await?.number());
        let watch = watch.caught_up();
        let weak = Arc::downgrade(&self.shared);
        self.shared.watched.watches.poll(WATCH_PAUSE, move || {
            let shared = weak.upgrade();
            async move {
                let Some(shared) = shared else { return Ok(false) };
                let version = shared.readers.take()?.current_version()?;
                shared.watched.tell_of_others(version.number());
                Ok(true)
            }
        });
        Ok(watch)
    }

    async fn describe(&self) -> Result<StoreDescription> {
        Ok(StoreDescription::new(format!("SQLite {}", rusqlite::version()), self.capabilities().durability).with_schema(open::SCHEMA))
    }

    async fn stats(&self) -> Result<StoreStats> {
        self.shared.committer.check_process()?;
        let now = self.now();
        self.blocking(move |readers| readers.take()?.stats(now)).await
    }

    async fn check(&self) -> Result<Vec<Error>> {
        self.shared.committer.check_process()?;
        self.blocking(move |readers| readers.take()?.check()).await
    }
}

impl fmt::Display for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shared.name)
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SqliteStore").field(&self.shared.name).finish()
    }
}
