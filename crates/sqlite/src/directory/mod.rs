//! Rows in a directory with one SQLite file for each partition.
//!
//! Tenants write side by side, each file is a [`SqliteStore`] of its own that can be backed up, moved or deleted as one, and a damaged one
//! affects no other partition. A file is created with the first row of its partition, and opened when it is needed. When too many are open,
//! those used least recently are closed.
//!
//! `names.rs` names the files, `opened.rs` opens and closes them, `walk.rs` lists them. `upkeep.rs` maintains all of them, and
//! `watched.rs` notices the commits of other processes.

mod names;
mod opened;
mod upkeep;
mod walk;
mod watched;

use crate::open::SCHEMA;
use crate::{SqliteOptions, SqliteStore, WATCH_PAUSE};
use async_trait::async_trait;
use names::{Found, ROOT_BYTES_MAX, create_directory, write_durably};
use opened::{OpenFiles, of_unnamed_file};
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use treehold_core::clock::Clock;
use treehold_core::error::{AtHost, Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_store::{
    Batch, Item, ItemPart, MigrateOptions, MigrateOutcome, MigrateProgress, MigrateReport, Namespace, NamespacePage, NamespacesOptions,
    Partition, Scan, ScanOptions, Store, StoreCapabilities, StoreExtensions, Watch,
};
use upkeep::Upkeep;
use walk::Walk;
use watched::WatchedFiles;

/// The file that marks a directory as a store.
pub(crate) const MARK: &str = "treehold-partitions";

/// The content of the mark: the format of the directory.
const MARK_TEXT: &str = "1\n";

/// How many idle connections each file keeps for readers.
const IDLE_READERS_MAX: usize = 2;

/// Options for opening a [`SqliteDirectory`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SqliteDirectoryOptions {
    /// The directory. It is created if missing, but its parent must exist.
    pub path: PathBuf,
    /// The clock for creation, modification and expiry times.
    pub clock: Clock,
    /// How long a commit waits for other processes' commits to the same file before it fails as `unavailable`. Default 10 s.
    pub busy_timeout: Duration,
    /// The page cache of the writer and of each reader of a file, in bytes. Default 1 MiB.
    pub cache_bytes: usize,
    /// As [`SqliteOptions::log_bytes_max`], for each file. Default 16 MiB.
    pub log_bytes_max: u64,
    /// How many files are kept open. Files in use stay open beyond that. Each has a thread and up to 10 file descriptors. Default 64.
    pub open_max: usize,
}

impl SqliteDirectoryOptions {
    /// Uses the defaults for the directory at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            clock: Clock::system(),
            busy_timeout: Duration::from_secs(10),
            cache_bytes: 1 << 20,
            log_bytes_max: 16 << 20,
            open_max: 64,
        }
    }

    /// Sets the clock for creation, modification and expiry times.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets how long a commit waits for other processes' commits to the same file.
    #[must_use]
    pub fn with_busy_timeout(mut self, busy_timeout: Duration) -> Self {
        self.busy_timeout = busy_timeout;
        self
    }

    /// Sets the page cache of the writer and of each reader of a file, in bytes.
    #[must_use]
    pub fn with_cache_bytes(mut self, cache_bytes: usize) -> Self {
        self.cache_bytes = cache_bytes;
        self
    }

    /// Sets how many files are kept open, at least 1.
    #[must_use]
    pub fn with_open_max(mut self, open_max: usize) -> Self {
        self.open_max = open_max;
        self
    }

    fn of_files(&self) -> SqliteOptions {
        let Self { clock, busy_timeout, cache_bytes, log_bytes_max, .. } = self.clone();
        SqliteOptions { clock, busy_timeout, cache_bytes, log_bytes_max, idle_readers_max: IDLE_READERS_MAX, ..SqliteOptions::new("") }
    }
}

/// A store with one SQLite file for each partition. Clones share the store.
///
/// Commits of different partitions go on side by side, and each has its own counter of versions. Deleting a file together with its `-wal` and
/// `-shm` deletes its partition; a partition of the same name counts anew. A file that is replaced while the store is open makes its partition
/// `unavailable` until the store is opened again. Reads and commits cost what they cost in one [`SqliteStore`], plus about a millisecond when a
/// file has to be opened. Listing the namespaces of several partitions opens each file, and fails if one of them cannot be read;
/// [`AllNamespaces`](treehold_store::AllNamespaces) goes on after it.
///
/// # Examples
/// ```
/// use treehold_sqlite::SqliteDirectory;
/// use treehold_store::{Batch, Namespace, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// let path = directory.path().join("agents");
/// let store = SqliteDirectory::open(&path)?;
/// let notes = Namespace::new(["acme", "ada", "notes"])?;
/// store.commit(Batch::new().put(&notes, "today", "walk the dog")).await?;
/// assert!(path.join("acme/ada.db").is_file());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SqliteDirectory {
    shared: Arc<Shared>,
}

struct Shared {
    files: OpenFiles,
    watched: WatchedFiles,
    upkeep: Upkeep,
    name: String,
}

impl SqliteDirectory {
    /// Opens a directory with default options, and creates it if missing. Blocks.
    ///
    /// # Errors
    /// See [`SqliteDirectory::open_with`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(SqliteDirectoryOptions::new(path.as_ref()))
    }

    /// Opens a directory. Blocks.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if the directory's parent does not exist. [`NotADirectory`](ErrorKind::NotADirectory) for a file.
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a path over 300 bytes. [`Corrupt`](ErrorKind::Corrupt) for a directory with other
    /// content. [`Unsupported`](ErrorKind::Unsupported) for a store of a newer version. [`PermissionDenied`](ErrorKind::PermissionDenied) and [`Unavailable`](ErrorKind::Unavailable) from the disk.
    pub fn open_with(options: SqliteDirectoryOptions) -> Result<Self> {
        let name = options.path.file_name().map_or_else(|| "sqlite".into(), |name| format!("sqlite:{}/", name.to_string_lossy()));
        let path = std::path::absolute(&options.path).map_err(|cause| unusable(&options.path, cause))?;
        prepare(&path)?;
        let files = OpenFiles::new(path, options.of_files(), options.open_max).map_err(|cause| unusable(&options.path, cause))?;
        Ok(Self { shared: Arc::new(Shared { files, watched: WatchedFiles::default(), upkeep: Upkeep::default(), name }) })
    }

    /// Migrates every file of a former layout to the present one, each in one transaction. Blocks. `tell` receives the progress of each.
    /// A file that fails, with an error of [`SqliteStore::migrate`], stops no other: it is a [fault](MigrateReport::faults) of the report.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if there is no store. [`PermissionDenied`](ErrorKind::PermissionDenied) and
    /// [`Unavailable`](ErrorKind::Unavailable) if the directory cannot be listed.
    pub fn migrate(path: &Path, how: &MigrateOptions, tell: &mut (dyn FnMut(MigrateProgress) + Send)) -> Result<MigrateReport> {
        if !path.join(MARK).exists() {
            let message = "there is no store with a file for each partition; name the directory of one";
            return Err(Error::new(ErrorKind::NotFound, message).with_source(AtHost::new(path)));
        }
        let mut report = MigrateReport::up_to_date();
        for tenant in names::tenants(path)? {
            let (files, faults) = tenant.files();
            faults.iter().for_each(|fault| report.add_fault(fault));
            for Found { path, partition } in files {
                let migrated = match SqliteStore::migrate(&SqliteOptions::new(path), how, tell) {
                    Ok(migrated) => migrated,
                    Err(error) => {
                        report.add_fault(&of_partition(&partition, of_unnamed_file(error)));
                        continue;
                    }
                };
                if migrated.outcome != MigrateOutcome::UpToDate {
                    report.outcome = migrated.outcome;
                }
                for (name, rows) in migrated.rows {
                    *report.rows.entry(name).or_default() += rows;
                }
            }
        }
        Ok(report)
    }

    /// Returns the store of the partition of a namespace; `None` if it holds no rows.
    async fn find(&self, namespace: &Namespace) -> Result<Option<SqliteStore>> {
        let partition = namespace.partition();
        self.shared.files.find(&partition).await.map_err(|error| of_partition(&partition, error))
    }

    /// Lists namespaces of one partition. Looks at no other file.
    async fn namespaces_in(&self, partition: &Partition, options: NamespacesOptions) -> Result<NamespacePage> {
        let (files, failed) = (&self.shared.files, |error| of_partition(partition, error));
        let Some(found) = files.found(partition).map_err(failed)? else { return Ok(NamespacePage::default()) };
        let listed = files.look(&found, |store| async move { store.namespaces(options).await }).await;
        Ok(listed.map_err(failed)?.unwrap_or_default())
    }
}

/// Creates the directory if it is missing, and checks its mark. Both are durable afterwards, whoever made them.
fn prepare(path: &Path) -> Result<()> {
    let failed = |cause| unusable(path, cause);
    if path.as_os_str().len() > ROOT_BYTES_MAX {
        let message = format!("the path of the store's directory is over {ROOT_BYTES_MAX} bytes; use a shorter one");
        return Err(Error::invalid_argument(message).with_source(AtHost::new(path)));
    }
    create_directory(path).map_err(failed)?;
    let mark = path.join(MARK);
    for is_last in [false, true] {
        match std::fs::read(&mark) {
            // Another process may have been stopped before the mark was complete or durable. A power loss may leave zeros in its place.
            Ok(text) if text == MARK_TEXT.as_bytes() || text.iter().all(|byte| *byte == 0) => break,
            Ok(text) if !text[0].is_ascii_digit() => {
                let message =
                    format!("the file `{MARK}` of the store's directory is damaged; delete its content, or restore it from a backup");
                return Err(Error::new(ErrorKind::Corrupt, message).with_source(AtHost::new(path)));
            }
            Ok(_) => {
                let message = "the store's directory was written by a newer version; upgrade this program";
                return Err(Error::unsupported(message).with_source(AtHost::new(path)));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if std::fs::read_dir(path).map_err(failed)?.next().is_none() {
                    break;
                }
                // Another process may have made the mark since.
                if is_last {
                    let message = "the directory holds other files and is not a treehold store; name an empty or a new one";
                    return Err(Error::new(ErrorKind::Corrupt, message).with_source(AtHost::new(path)));
                }
            }
            Err(error) => return Err(failed(error)),
        }
    }
    write_durably(&mark, MARK_TEXT.as_bytes()).map_err(failed)
}

fn unusable(path: &Path, cause: io::Error) -> Error {
    let (kind, message) = match cause.kind() {
        io::ErrorKind::NotFound => (ErrorKind::NotFound, "the parent of the store's directory does not exist; create it"),
        io::ErrorKind::NotADirectory => (ErrorKind::NotADirectory, "the path of the store's directory is a file; name a directory"),
        io::ErrorKind::PermissionDenied => {
            (ErrorKind::PermissionDenied, "the store's directory is not writable; change its permissions or name another one")
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            (ErrorKind::ReadOnly, "the store's directory is on a read-only file system; name one on another")
        }
        _ => (ErrorKind::Unavailable, "the store's directory cannot be used; check its disk and try again"),
    };
    Error::new(kind, message).with_source(AtHost::new(path).with_cause(cause))
}

/// Adds to an error which file it is about.
fn of_partition(partition: &Partition, error: Error) -> Error {
    let message = format!("the file of the partition `{partition}`: {}", error.message());
    if error.kind() == ErrorKind::NotFound {
        // Not a row is missing, but the directory.
        return Error::new(ErrorKind::Unavailable, message).with_source(error);
    }
    error.with_message(message)
}

/// Adds to an error of an open store which file is damaged.
fn if_damaged(partition: &Partition, error: Error) -> Error {
    if error.kind() == ErrorKind::Corrupt { of_partition(partition, error) } else { error }
}

#[async_trait]
impl Store for SqliteDirectory {
    fn capabilities(&self) -> StoreCapabilities {
        SqliteStore::offers()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        StoreExtensions::new().with_maintenance(self)
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        match self.find(namespace).await? {
            Some(store) => store.get(namespace, key).await.map_err(|error| if_damaged(&namespace.partition(), error)),
            None => Ok(None),
        }
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        match self.find(namespace).await? {
            Some(store) => store.get_part(namespace, key, range).await.map_err(|error| if_damaged(&namespace.partition(), error)),
            None => Ok(None),
        }
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        match self.find(namespace).await? {
            Some(store) => store.get_many(namespace, keys, with_values).await.map_err(|error| if_damaged(&namespace.partition(), error)),
            None => Ok(vec![None; keys.len()]),
        }
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        match self.find(namespace).await? {
            Some(store) => store.scan(namespace, options).await.map_err(|error| if_damaged(&namespace.partition(), error)),
            None => Ok(Scan::default()),
        }
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        let Some(prefix) = options.prefix() else { return Ok(NamespacePage::default()) };
        if let Some(beneath) = &options.beneath {
            return self.namespaces_in(&beneath.partition(), options.clone()).await;
        }
        let mut found: Vec<Namespace> = Vec::new();
        let after = options.start_after.as_ref().map(Namespace::partition);
        let mut walk = Walk::new(&self.shared.files, prefix, after.as_ref());
        while let Some(file) = walk.next().await? {
            // One more than asked for tells whether more follow.
            let wanted = options.clone().with_limit(options.limit.saturating_add(1) - found.len());
            let page = self.shared.files.look(&file, |store| async move { store.namespaces(wanted).await }).await;
            found.extend(page.map_err(|error| of_partition(&file.partition, error))?.unwrap_or_default().namespaces);
            if found.len() > options.limit {
                found.truncate(options.limit);
                return Ok(NamespacePage::new(found, true));
            }
        }
        Ok(NamespacePage::new(found, false))
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        batch.validate(&self.capabilities())?;
        let Some(partition) = batch.partition() else { return Ok(Vec::new()) };
        // Opening a file changes no row.
        let failed = |error| of_partition(&partition, error).without_effect();
        let files = &self.shared.files;
        let store = match files.find(&partition).await.map_err(failed)? {
            Some(store) => store,
            None => {
                // A batch that is refused creates no file, and neither does one that only removes.
                batch.expect_absent()?;
                if !batch.adds() {
                    return Ok(Vec::new());
                }
                files.open(&partition).await.map_err(failed)?
            }
        };
        let written = self.shared.watched.watches.written_by(&batch);
        let versions = store.commit(batch).await.map_err(|error| if_damaged(&partition, error))?;
        if !written.is_empty() {
            let newest = match versions.last() {
                Some(newest) => *newest,
                None => store.current_version(&partition).await?,
            };
            self.shared.watched.announce(&partition, &written, versions.first().copied(), newest);
        }
        Ok(versions)
    }

    /// Returns the counter of the partition's file: 0 without one.
    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        match self.shared.files.find(partition).await.map_err(|error| of_partition(partition, error))? {
            Some(store) => store.current_version(partition).await,
            None => Ok(Version::new(0)),
        }
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        let (own, is_first) = (namespace.partition(), AtomicBool::new(true));
        let look = move |shared: Arc<Shared>| {
            // The other watches have begun already.
            let own = is_first.swap(false, Ordering::Relaxed).then(|| own.clone());
            async move { shared.watched.look(&shared.files, own.as_ref()).await }
        };
        self.shared.watched.watches.watch_by_polling(namespace, &self.shared, WATCH_PAUSE, look).await
    }
}

impl fmt::Display for SqliteDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shared.name)
    }
}

impl fmt::Debug for SqliteDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SqliteDirectory").field(&self.shared.name).finish()
    }
}

#[cfg(test)]
mod tests;
