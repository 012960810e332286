//! Rows in SQLite files, shared by any number of processes: a [`SqliteStore`] in one file, or a [`SqliteDirectory`] with a file for each
//! partition.
//!
//! The database uses a write-ahead log with `synchronous=FULL`, so an acknowledged commit survives a power loss. One
//! thread writes and commits in groups ([`committer`](treehold_store::committer)). Each read uses its own connection and waits
//! for no writer. Small bodies lie behind the metadata of their item, others in a table of their own, so a listing reads few extra
//! pages; long bodies are split into chunks. Start with `open.rs` for the file and its schema, then read `body.rs`, `read.rs` and `write.rs`.

use async_trait::async_trait;
use jiff::Timestamp;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Durability, Version};
use treehold_store::committer::{Committer, Work};
use treehold_store::{
    Batch, Item, ItemPart, MigrateOptions, MigrateProgress, MigrateReport, Namespace, NamespacePage, NamespacesOptions, Partition, Scan,
    ScanOptions, Store, StoreCapabilities, StoreDescription, StoreExtensions, StoreMaintenance, StoreStats, Watch,
};

mod body;
mod directory;
mod engine;
mod error;
#[cfg(test)]
mod laws;
mod log;
mod migrate;
mod open;
mod read;
mod recognise;
mod snapshot;
mod watched;
mod write;

use read::{Got, ReaderPool, ScanRun};
use watched::Watched;
use write::SqliteWriter;

pub use directory::{SqliteDirectory, SqliteDirectoryOptions};
pub use engine::SqliteEngine;
pub use snapshot::{SnapshotOptions, SnapshotProgress};

/// The largest body in bytes, well below SQLite's own limit.
const VALUE_BYTES_MAX: u64 = 512 << 20;

/// Up to this many keys are read on the calling thread: at about 10 µs each, that costs about as much as a hop to
/// another thread (41 µs).
const INLINE_KEYS: usize = 8;

/// Bodies over this size are read on a blocking thread.
const INLINE_BODY_BYTES: u64 = 256 << 10;

/// Scans without bodies run on the calling thread for up to this many rows (about 50 µs). Longer ones continue from
/// there on a blocking thread.
const INLINE_ROWS: usize = 100;

/// How often watched stores poll the version counter for commits of other processes.
const WATCH_PAUSE: Duration = Duration::from_millis(100);

/// Options for opening a [`SqliteStore`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SqliteOptions {
    /// The database file. It is created if missing, but its directory must exist.
    pub path: PathBuf,
    /// The clock for creation, modification and expiry times.
    pub clock: Clock,
    /// How long a commit waits for other processes' commits before it fails as `unavailable`. Default 10 s.
    pub busy_timeout: Duration,
    /// The page cache of the writer and of each reader, in bytes. Default 8 MiB.
    pub cache_bytes: usize,
    /// Once the write-ahead log exceeds this many bytes, a commit waits up to 100 ms for readers to finish, so that the
    /// log can restart. The log keeps growing while a reader stays longer. Default 64 MiB.
    pub log_bytes_max: u64,
    /// How many idle connections are kept for readers.
    idle_readers_max: usize,
    /// Whether a missing file is created.
    create: bool,
}

impl SqliteOptions {
    /// Uses the defaults for the file at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            clock: Clock::system(),
            busy_timeout: Duration::from_secs(10),
            cache_bytes: 8 << 20,
            log_bytes_max: 64 << 20,
            idle_readers_max: read::IDLE_MAX,
            create: true,
        }
    }

    /// Sets the clock for creation, modification and expiry times.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets how long a commit waits for other processes' commits.
    #[must_use]
    pub fn with_busy_timeout(mut self, busy_timeout: Duration) -> Self {
        self.busy_timeout = busy_timeout;
        self
    }

    /// Sets the page cache of the writer and of each reader, in bytes.
    #[must_use]
    pub fn with_cache_bytes(mut self, cache_bytes: usize) -> Self {
        self.cache_bytes = cache_bytes;
        self
    }

    /// Sets the size in bytes from which the write-ahead log is restarted.
    #[must_use]
    pub fn with_log_bytes_max(mut self, log_bytes_max: u64) -> Self {
        self.log_bytes_max = log_bytes_max;
        self
    }
}

/// A store in one SQLite file. Clones share the store.
///
/// Point reads run on the calling thread: descending two B-trees takes about 10 µs, a hop to another thread 41 µs.
/// Scans with bodies, long scans and large bodies run on the runtime's blocking threads, so the store requires Tokio.
///
/// Dropping the last clone waits for submitted writes, folds the write-ahead log into the file and closes it.
///
/// # Examples
/// ```
/// use treehold_sqlite::SqliteStore;
/// use treehold_store::{Batch, Namespace, Store};
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

/// Field order matters: readers close before the writer, so that the writer closes last and folds the log into the
/// file.
struct Shared {
    readers: Arc<ReaderPool>,
    committer: Committer,
    watched: Arc<Watched>,
    clock: Clock,
    name: String,
}

impl SqliteStore {
    /// Returns the capabilities of every store of this engine.
    pub fn offers() -> StoreCapabilities {
        StoreCapabilities::new(Durability::Power).with_sweeps(true).with_shared(true).with_value_bytes_max(Some(VALUE_BYTES_MAX))
    }

    /// Opens a file with default options, and creates it if missing.
    ///
    /// Blocks for about a millisecond, or until another process that is creating the same file has finished.
    ///
    /// # Errors
    /// See [`SqliteStore::open_with`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(SqliteOptions::new(path.as_ref()))
    }

    /// Opens a file.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if the file's directory does not exist.
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) if the file or its directory is not writable.
    /// [`ReadOnly`](ErrorKind::ReadOnly) on a read-only file system. [`Corrupt`](ErrorKind::Corrupt) for a file that is
    /// not a store. [`Unsupported`](ErrorKind::Unsupported) for a store of a newer version, or on a file system without
    /// shared memory maps. [`Unavailable`](ErrorKind::Unavailable) otherwise. A refused file is left unchanged.
    pub fn open_with(options: SqliteOptions) -> Result<Self> {
        let name = options.path.file_name().map_or_else(|| "sqlite".into(), |name| format!("sqlite:{}", name.to_string_lossy()));
        let (path, connection) = open::open(&options)?;
        let watched = Arc::<Watched>::default();
        let writer = SqliteWriter::new(&path, connection, &options, watched.clone());
        let readers = Arc::new(ReaderPool::new(path, &options));
        let committer = Committer::start("treehold-sqlite", writer)?;
        Ok(Self { shared: Arc::new(Shared { readers, committer, watched, clock: options.clock, name }) })
    }

    /// Migrates a file of a former layout to the present one, in one transaction. Blocks. `tell` receives the progress.
    ///
    /// Cost: reads and writes every row that moves, but no body. [`SqliteOptions::cache_bytes`] bounds the memory.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) while another process has the file open. [`Conflict`](ErrorKind::Conflict) for a store
    /// with an unfinished copy. [`AlreadyExists`](ErrorKind::AlreadyExists) if it has rows below the reserved root. Otherwise as
    /// [`SqliteStore::open_with`].
    pub fn migrate(options: &SqliteOptions, how: &MigrateOptions, tell: &mut (dyn FnMut(MigrateProgress) + Send)) -> Result<MigrateReport> {
        migrate::migrate(options, how, tell)
    }

    /// Returns whether a file is there that is not empty. Whether it is a store of this program shows when it is opened. Blocks.
    ///
    /// # Errors
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) or [`Unavailable`](ErrorKind::Unavailable) if it cannot be looked up.
    pub fn exists(path: &Path) -> Result<bool> {
        match std::fs::metadata(path) {
            // Opening a directory reports what it is.
            Ok(found) => Ok(found.is_dir() || found.len() > 0),
            Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => Ok(false),
            Err(error) => Err(error::unreachable_file(path, error)),
        }
    }

    /// Renames a migrated file that no process has open.
    pub fn take_over(from: &Path, to: &Path) -> std::io::Result<()> {
        let log = recognise::with_suffix(from, "-wal");
        if log.metadata().is_ok_and(|log| log.len() > 0) {
            return Err(std::io::Error::other("another process opened the file meanwhile"));
        }
        std::fs::rename(from, to)?;
        open::sync_directory_of(to)?;
        open::sync_directory_of(from)
    }

    /// Copies the store, as of one moment, into a new file that can be opened as a store itself. This and other
    /// processes may keep writing. Returns the size of the copy in bytes.
    ///
    /// The copy is written to a temporary file beside the target, synced and renamed, so a dropped call leaves nothing.
    /// `report` receives the progress. Cost: reads and writes every page once. Writers do not wait, but the write-ahead
    /// log grows by what they write meanwhile.
    ///
    /// # Errors
    /// [`AlreadyExists`](ErrorKind::AlreadyExists) if the target exists, unless [`SnapshotOptions::replace`] is set,
    /// and always if the target is a database in use. [`InvalidArgument`](ErrorKind::InvalidArgument) if the target is
    /// the store's own file. [`NotFound`](ErrorKind::NotFound) if its directory does not exist.
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) and [`Unavailable`](ErrorKind::Unavailable) from the disk.
    /// Otherwise as [`Store::get`].
    ///
    /// # Examples
    /// ```
    /// use treehold_sqlite::{SnapshotOptions, SqliteStore};
    /// use treehold_store::{Batch, Namespace, Store};
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
    pub async fn snapshot(&self, options: SnapshotOptions, mut report: impl FnMut(SnapshotProgress) + Send) -> Result<u64> {
        self.shared.committer.check_process()?;
        let replace = options.replace;
        // It is removed when this future is dropped, even if the process ends before the thread that copies.
        let (target, unfinished) = self.blocking(move |readers| snapshot::begin(readers.path(), &options)).await?;
        let path = unfinished.path().to_owned();
        let (sender, mut progress) = tokio::sync::watch::channel(SnapshotProgress::default());
        let mut taken = std::pin::pin!(self.blocking(move |readers| {
            let busy_timeout = readers.busy_timeout();
            snapshot::take(&readers.take()?, &path, &target, replace, busy_timeout, &sender)
        }));
        loop {
            tokio::select! {
                biased;
                taken = &mut taken => return taken,
                Ok(()) = progress.changed() => report(*progress.borrow_and_update()),
            }
        }
    }

    /// Returns whether this is the only handle.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.shared) == 1
    }

    /// Returns the first namespace with a row, expired or not.
    fn first_namespace(&self) -> Result<Option<Namespace>> {
        let page = self.shared.readers.take()?.namespaces(&NamespacesOptions::new().with_limit(1), i64::MIN)?;
        Ok(page.namespaces.into_iter().next())
    }

    /// Returns the last namespace with a row, expired or not.
    fn last_namespace(&self) -> Result<Option<Namespace>> {
        self.shared.readers.take()?.last_namespace()
    }

    /// Returns when the next row expires.
    fn next_expiry(&self) -> Result<Option<Timestamp>> {
        self.shared.readers.take()?.next_expiry()
    }

    fn now(&self) -> i64 {
        self.shared.clock.now().as_microsecond()
    }

    /// Runs a potentially long read on a blocking thread.
    async fn blocking<T: Send + 'static>(&self, run: impl FnOnce(&Arc<ReaderPool>) -> Result<T> + Send + 'static) -> Result<T> {
        let readers = self.shared.readers.clone();
        tokio::task::spawn_blocking(move || run(&readers)).await.map_err(|source| {
            Error::new(ErrorKind::Internal, "a read of the store was interrupted; this is a bug in the program").with_source(source)
        })?
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn capabilities(&self) -> StoreCapabilities {
        Self::offers()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        StoreExtensions::new().with_maintenance(self)
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

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.shared.committer.check_process()?;
        let now = self.now();
        self.blocking(move |readers| readers.take()?.namespaces(&options, now)).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        batch.validate(&self.capabilities())?;
        Ok(self.shared.committer.submit(Work::Commit(batch)).await?.versions)
    }

    /// Returns the one counter of all partitions.
    async fn current_version(&self, _: &Partition) -> Result<Version> {
        self.shared.committer.check_process()?;
        self.shared.readers.take()?.current_version()
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        let look = |shared: Arc<Shared>| async move {
            shared.committer.check_process()?;
            shared.watched.announce_others(shared.readers.take()?.current_version()?.number());
            Ok(())
        };
        self.shared.watched.watches.watch_by_polling(namespace, &self.shared, WATCH_PAUSE, look).await
    }
}

#[async_trait]
impl StoreMaintenance for SqliteStore {
    async fn sweep(&self, limit: usize) -> Result<usize> {
        Ok(self.shared.committer.submit(Work::Sweep(limit)).await?.swept)
    }

    async fn shrink(&self, pages: usize) -> Result<usize> {
        Ok(self.shared.committer.submit(Work::Shrink(pages)).await?.shrunk)
    }

    async fn compact(&self) -> Result<bool> {
        self.shared.committer.submit(Work::Compact).await.map(|_| true)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace() -> Namespace {
        Namespace::new(["a"]).expect("plain")
    }

    /// Fills a store with 200 rows of 16 KiB and removes all but one. Returns the size of the file in between.
    async fn fill_and_remove(path: &Path) -> u64 {
        let store = SqliteStore::open(path).expect("opened");
        let batch = (0..200).fold(Batch::new(), |batch, number| batch.put(&namespace(), format!("{number}"), vec![b'x'; 16 << 10]));
        store.commit(batch).await.expect("committed");
        drop(store);
        let full = size_of(path);
        let store = SqliteStore::open(path).expect("opened");
        store.commit((1..200).fold(Batch::new(), |batch, number| batch.delete(&namespace(), format!("{number}")))).await.expect("removed");
        full
    }

    fn size_of(path: &Path) -> u64 {
        std::fs::metadata(path).expect("it is there").len()
    }

    #[tokio::test]
    async fn shrink_gives_unused_pages_of_a_new_file_back_in_steps() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("store.db");
        let full = fill_and_remove(&path).await;
        assert_eq!(size_of(&path), full, "the pages of removed rows are reused, not given back");
        let store = SqliteStore::open(&path).expect("opened");
        assert_eq!(store.shrink(0).await.expect("shrunk"), 0);
        assert_eq!(store.shrink(10).await.expect("shrunk"), 10);
        let rest = store.shrink(usize::MAX).await.expect("shrunk");
        assert!(rest > 700, "199 rows of four pages were removed, and {rest} more given back");
        assert_eq!(store.shrink(usize::MAX).await.expect("shrunk"), 0);
        assert_eq!(store.get(&namespace(), "0").await.expect("read").expect("it was kept").value.len(), 16 << 10);
        assert!(store.check().await.expect("checked").is_empty());
        drop(store);
        assert!(size_of(&path) * 10 < full, "{} of {full} bytes", size_of(&path));
    }

    #[tokio::test]
    async fn file_of_an_earlier_program_shrinks_once_it_was_compacted() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("store.db");
        drop(SqliteStore::open(&path).expect("opened"));
        let connection = rusqlite::Connection::open(&path).expect("opened");
        connection.execute_batch("PRAGMA auto_vacuum = NONE; VACUUM").expect("as an earlier program made it");
        drop(connection);
        let full = fill_and_remove(&path).await;
        let store = SqliteStore::open(&path).expect("opened");
        assert_eq!(store.shrink(usize::MAX).await.expect("left alone"), 0);
        drop(store);
        assert_eq!(size_of(&path), full);
        let store = SqliteStore::open(&path).expect("opened");
        // Other writes go on in the same group.
        let (compacted, put) = tokio::join!(store.compact(), store.commit(Batch::new().put(&namespace(), "new", "v")));
        assert!(compacted.expect("compacted"));
        put.expect("committed");
        assert_eq!(store.get(&namespace(), "0").await.expect("read").expect("it was kept").value.len(), 16 << 10);
        drop(store);
        assert!(size_of(&path) * 10 < full, "{} of {full} bytes", size_of(&path));
        fill_and_remove(&path).await;
        let store = SqliteStore::open(&path).expect("opened");
        assert!(store.shrink(usize::MAX).await.expect("shrunk") > 700);
        drop(store);
        assert!(size_of(&path) * 10 < full);
    }
}
