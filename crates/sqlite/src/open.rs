//! The database file: creating, migrating and opening it.
//!
//! A file belongs to this store if it has our `application_id`. Its schema version, `user_version`, only grows. Both
//! are [recognised](super::recognise) before the file is opened for writing, so files of other programs or of newer
//! versions are refused untouched.

use super::SqliteOptions;
use super::error::{failed, foreign, is_busy, unreachable_file};
use super::recognise::{APPLICATION_ID, recognise, with_suffix};
use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};
use std::collections::HashMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, Instant};
use treehold_core::error::{AtHost, Error, ErrorKind, Result};
use treehold_core::lock_wait::LockWait;
use treehold_store::migrate::OldLayout;

/// The migrations from each schema version to the next. Append only: files in the field may be at any version.
///
/// The second migration changes no table: it marks the layout in which the program's own rows lie below the reserved root. The third
/// makes room for bodies in chunks. It reads the items but no body; bodies in one row stay as they are, see [`body`](super::body). The
/// fourth changes the mark of the file from the former name's to [`APPLICATION_ID`]. The fifth changes no table: it marks the layout in
/// which rows about a user's rows lie in the user's partition. The sixth makes room for small bodies in the rows of items. It checks
/// all items, but no body, since the tables are strict. Bodies stay where they are.
///
/// Items are found by (namespace, key) and updated by id. Compared with a table without row ids, grouped overwrites of
/// 4 KiB take 22 µs instead of 37, reads the same, and a scan of 10,000 keys 9 ms instead of 5. A body that is not in
/// the row of its item is stored under its id; an empty body has no row. The body is the last column, so that what is before it is read
/// without it.
const MIGRATIONS: &[&str] = &[
    "
    CREATE TABLE items(
        id INTEGER PRIMARY KEY,
        namespace TEXT NOT NULL,
        key TEXT NOT NULL,
        version INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        modified_at INTEGER NOT NULL,
        expires_at INTEGER,
        size INTEGER NOT NULL,
        meta BLOB NOT NULL,
        UNIQUE(namespace, key)
    ) STRICT;
    CREATE TABLE bodies(id INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
    CREATE TABLE counter(id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL) STRICT;
    INSERT INTO counter VALUES (1, 0);
    CREATE INDEX items_by_expiry ON items(expires_at) WHERE expires_at IS NOT NULL;
",
    "",
    "
    ALTER TABLE items ADD COLUMN chunk_bytes INTEGER NOT NULL DEFAULT 0;
    CREATE TABLE chunks(item INTEGER NOT NULL, number INTEGER NOT NULL, body BLOB NOT NULL, UNIQUE(item, number)) STRICT;
    CREATE INDEX items_in_chunks ON items(namespace, key) WHERE chunk_bytes > 0;
",
    "",
    "",
    "ALTER TABLE items ADD COLUMN body BLOB",
];

/// The schema version that this program writes.
pub(super) const SCHEMA: u32 = MIGRATIONS.len() as u32;

/// The schema version of the first layout.
pub(super) const FIRST_LAYOUT: usize = 1;

/// The first schema version of the present layout.
const PRESENT_LAYOUT: usize = 5;

/// Returns whether a schema version is that of a former layout.
pub(super) fn is_former(version: usize) -> bool {
    (FIRST_LAYOUT..PRESENT_LAYOUT).contains(&version)
}

/// Refuses a former layout, which only [`migrate`](super::migrate) converts.
fn check_layout(path: &Path, version: usize) -> Result<()> {
    if is_former(version) { Err(OldLayout::error(Some(Box::new(AtHost::new(path))))) } else { Ok(()) }
}

/// How long to sleep before retrying for a lock of another process.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// A file as a configuration names it, for reports of a wait.
pub(super) struct Place<'a>(pub(super) &'a Path);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sqlite:{}", self.0.display())
    }
}

/// The files that are being opened in this process.
static OPENING: LazyLock<Mutex<HashMap<PathBuf, Weak<Mutex<()>>>>> = LazyLock::new(Mutex::default);

/// Returns the lock under which a file is opened in this process, see [`create_unless_exists`].
pub(super) fn opening(path: &Path) -> Arc<Mutex<()>> {
    let within_directory = || Some(std::fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?));
    let path = std::fs::canonicalize(path).ok().or_else(within_directory).unwrap_or_else(|| path.to_owned());
    let mut all = OPENING.lock();
    if let Some(lock) = all.get(&path).and_then(Weak::upgrade) {
        return lock;
    }
    all.retain(|_, lock| lock.strong_count() > 0);
    let lock = Arc::<Mutex<()>>::default();
    all.insert(path, Arc::downgrade(&lock));
    lock
}

/// Creates or migrates the file if needed, and opens it for writing. Returns its absolute path. Errors carry the path
/// in their source, not in their message.
pub(super) fn open(options: &SqliteOptions) -> Result<(PathBuf, Connection)> {
    // Use an absolute path: the process may change its working directory before the next reader opens the file.
    let path = std::path::absolute(&options.path).map_err(|cause| unreachable_file(&options.path, cause))?;
    let lock = opening(&path);
    let _opening = lock.lock();
    if options.create {
        create_unless_exists(&path).map_err(|cause| unreachable_file(&path, cause))?;
    }
    check_writable(&path)?;
    check_ours(&path)?;
    let mut connection = connect(&path, options)?;
    let version = check_version(&path, schema_version(&connection)?)?;
    check_layout(&path, version)?;
    if version > 0 && version < MIGRATIONS.len() {
        drop(connection);
        upgrade(&path, options.busy_timeout)?;
        connection = connect(&path, options)?;
    }
    let created = migrate(&path, &mut connection)?;
    enter_write_ahead_logging(&path, &connection, options.busy_timeout)?;
    connection.pragma_update(None, "synchronous", "FULL").map_err(failed)?;
    connection.pragma_update(None, "fullfsync", true).map_err(failed)?;
    connection.pragma_update(None, "journal_size_limit", i64::try_from(options.log_bytes_max).unwrap_or(i64::MAX)).map_err(failed)?;
    if created {
        sync_directory_of(&path).map_err(|cause| unreachable_file(&path, cause))?;
    }
    sync_log_of(&path).map_err(|cause| unreachable_file(&path, cause))?;
    Ok((path, connection))
}

/// Syncs the write-ahead log beside a database. Nothing may be read before.
///
/// A commit is written to the log, synced, and only then visible. A process that is killed before the sync leaves a commit
/// that the next process to open the file recovers and reads, although it may exist only in the page cache.
///
/// SQLite locks the database and the shared memory, never the log, so closing a handle on the log releases no lock.
fn sync_log_of(path: &Path) -> io::Result<()> {
    // SQLite resolves links and places the log beside their target.
    let real = std::fs::canonicalize(path)?;
    let log = match OpenOptions::new().read(true).write(true).open(with_suffix(&real, "-wal")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    if log.metadata()?.len() > 0 {
        log.sync_all()?;
        sync_directory_of(&real)?;
    }
    Ok(())
}

/// Opens another connection to a file that [`open`] has prepared.
pub(super) fn connect(path: &Path, options: &SqliteOptions) -> Result<Connection> {
    // Without `SQLITE_OPEN_URI`, so that `file:x?mode=ro` is a plain file name. Without `CREATE`, so that a removed
    // file is an error instead of a new, empty store.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    connection.busy_timeout(options.busy_timeout).map_err(failed)?;
    connection.set_prepared_statement_cache_capacity(64);
    let cache_kibibytes = i64::try_from(options.cache_bytes / 1024).unwrap_or(i64::MAX);
    connection.pragma_update(None, "cache_size", -cache_kibibytes).map_err(failed)?;
    connection.pragma_update(None, "trusted_schema", false).map_err(failed)?;
    Ok(connection)
}

/// Creates an empty file, readable by its owner only, if there is none.
///
/// Existing files are opened by SQLite only: when a process closes any handle on a file, it loses all its locks on that
/// file (`fcntl(2)`), including those of a store that is open on it. Here the file is new, and no other thread opens it
/// before this handle is closed.
fn create_unless_exists(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        found => return found.map(drop),
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        // Another process created it first.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        created => created.map(drop),
    }
}

/// Fails for a database that is not writable.
///
/// SQLite falls back to read-only access if it cannot write the file, and reports no cause if it cannot create the log
/// beside it. Check by path: opening and closing one of these files would drop this process's locks on it.
#[cfg(unix)]
pub(super) fn check_writable(path: &Path) -> Result<()> {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    let real = std::fs::canonicalize(path).map_err(|cause| unreachable_file(path, cause))?;
    let check = |path: &Path, access| accessat(CWD, path, access, AtFlags::EACCESS).map_err(io::Error::from);
    let checked = check(&real, Access::READ_OK | Access::WRITE_OK).and_then(|()| {
        ["-wal", "-shm"].iter().try_for_each(|suffix| match check(&with_suffix(&real, suffix), Access::READ_OK | Access::WRITE_OK) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                real.parent().map_or(Ok(()), |directory| check(directory, Access::WRITE_OK | Access::EXEC_OK))
            }
            checked => checked,
        })
    });
    checked.map_err(|cause| unreachable_file(path, cause))
}

#[cfg(not(unix))]
pub(super) fn check_writable(_: &Path) -> Result<()> {
    Ok(())
}

/// Refuses a file of another program or of a newer version, untouched.
pub(super) fn check_ours(path: &Path) -> Result<()> {
    recognise(path)?.map_or(Ok(()), |version| check_version(path, version).map(drop))
}

/// Returns how many migrations were applied to a file.
pub(super) fn check_version(path: &Path, version: i64) -> Result<usize> {
    usize::try_from(version).ok().filter(|&version| version <= MIGRATIONS.len()).ok_or_else(|| {
        let known = MIGRATIONS.len();
        let message = format!(
            "the store's file was written by a newer version (the format is {version}, this program knows {known}); upgrade this program"
        );
        Error::new(ErrorKind::Unsupported, message).with_source(AtHost::new(path))
    })
}

/// Upgrades a file of an earlier version while no other connection has it open, because a program of that version that is running
/// would not know the new tables.
///
/// In exclusive locking mode, set before the first access, SQLite locks out every connection for as long as this one is open, and is
/// itself locked out while there is another. Of several processes that upgrade at once, one succeeds and the others find it done.
fn upgrade(path: &Path, patience: Duration) -> Result<()> {
    let (started, mut wait) = (Instant::now(), LockWait::begin());
    loop {
        match upgrade_alone(path) {
            Err(error) if error.kind() != ErrorKind::Unavailable || !is_locked_out(&error) => return Err(error),
            Ok(()) => return Ok(()),
            Err(error) if started.elapsed() >= patience => {
                let message = "the store has to be upgraded, but another process has it open; stop that process, then try again";
                return Err(Error::new(ErrorKind::Unavailable, message).with_source(error));
            }
            Err(_) => {
                wait.still(Place(path));
                std::thread::sleep(RETRY_PAUSE);
            }
        }
    }
}

fn is_locked_out(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref());
    source.is_some_and(is_busy)
}

fn upgrade_alone(path: &Path) -> Result<()> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    connection.busy_timeout(Duration::ZERO).map_err(failed)?;
    connection.query_row("PRAGMA locking_mode = EXCLUSIVE", [], |_| Ok(())).map_err(failed)?;
    connection.pragma_update(None, "fullfsync", true).map_err(failed)?;
    migrate(path, &mut connection)?;
    connection.close().map_err(|(_, error)| failed(error))
}

/// Migrates the schema to the current version. Returns whether the file was new.
///
/// One exclusive transaction, so that only one process migrates. The first migration runs before the write-ahead log is
/// turned on, which puts the file's marks into the file itself from the start.
fn migrate(path: &Path, connection: &mut Connection) -> Result<bool> {
    let version = check_version(path, schema_version(connection)?)?;
    check_layout(path, version)?;
    if version == MIGRATIONS.len() {
        return Ok(false);
    }
    if version == 0 {
        // Preparing it is enough, and makes the next transaction create the file in this mode. Running it would begin a transaction of its
        // own and leave a file without our marks, which another process that opens it would refuse. A file that exists keeps its mode
        // until it is compacted.
        drop(connection.prepare("PRAGMA auto_vacuum = INCREMENTAL").map_err(failed)?);
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Exclusive).map_err(failed)?;
    let done = check_version(path, schema_version(&transaction)?)?;
    check_layout(path, done)?;
    // Another program may have filled the file since it was recognised as empty.
    let is_filled = || transaction.query_row("SELECT EXISTS (SELECT 1 FROM sqlite_schema)", [], |row| row.get::<_, bool>(0));
    if done == 0 && is_filled().map_err(failed)? {
        return Err(foreign(path));
    }
    migrate_from(done, &transaction)?;
    transaction.commit().map_err(failed)?;
    Ok(done == 0)
}

/// Applies the migrations after the first `done`, within a transaction.
pub(super) fn migrate_from(done: usize, transaction: &Connection) -> Result<()> {
    for migration in &MIGRATIONS[done..] {
        transaction.execute_batch(migration).map_err(failed)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(failed)?;
    transaction.pragma_update(None, "user_version", SCHEMA).map_err(failed)
}

pub(super) fn schema_version(connection: &Connection) -> Result<i64> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)
}

/// Turns on the write-ahead log, a persistent property of the file. Here SQLite does not wait for other processes by
/// itself.
fn enter_write_ahead_logging(path: &Path, connection: &Connection, patience: Duration) -> Result<()> {
    let (started, mut wait) = (Instant::now(), LockWait::begin());
    loop {
        match connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0)) {
            Ok(mode) if mode == "wal" => return Ok(()),
            Ok(_) => {
                let message = "the store's file is on a file system that does not support sharing a database; put it on a local disk";
                return Err(Error::new(ErrorKind::Unsupported, message).with_source(AtHost::new(path)));
            }
            Err(error) if is_busy(&error) && started.elapsed() < patience => {
                wait.still(Place(path));
                std::thread::sleep(RETRY_PAUSE);
            }
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Makes the name of a new file as durable as its content.
pub(super) fn sync_directory_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        #[cfg(unix)]
        Some(directory) => File::open(directory)?.sync_all(),
        _ => Ok(()),
    }
}
