//! The file: how it is recognised, created, brought up to date and opened.
//!
//! A file belongs to this store by its `application_id`, and its schema has a number, `user_version`, that only grows. Both
//! stand in the file's header, which is read before the file is opened for writing: what belongs to another program, or to a
//! newer version of this one, is refused untouched.

use super::SqliteOptions;
use super::error::{failed, is_busy};
use crate::error::{AtHost, Error, ErrorKind, Result};
use crate::store::escape::escape_bytes;
use parking_lot::Mutex;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Marks our files: `strt`.
const APPLICATION_ID: i32 = i32::from_be_bytes(*b"strt");

/// What brings a file from each schema version to the next. Append only: a file in the field may be at any of them.
///
/// Items are found by (namespace, key) and changed by their id: measured against a table without row ids, overwrites cost
/// 22 µs instead of 37 (grouped, 4 KiB), reads the same, a scan of 10,000 keys 9 ms instead of 5. Bodies stand under the
/// id of their item; an empty one has no row.
const MIGRATIONS: &[&str] = &["
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
"];

/// The schema that this program writes.
pub(super) const SCHEMA: u32 = MIGRATIONS.len() as u32;

/// How long to sleep before a lock of another process is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// Opening is done by one thread of the process at a time, see [`create_unless_exists`].
static OPENING: Mutex<()> = Mutex::new(());

/// Opens the file for writing, after it was created or brought up to date if need be. Returns its absolute path. Where the file is
/// stands in the source of errors and not in their message.
pub(super) fn open(options: &SqliteOptions) -> Result<(PathBuf, Connection)> {
    // What the process does to its working directory later must not lead the next reader to another file.
    let path = std::path::absolute(&options.path).map_err(|cause| unreachable_file(&options.path, cause))?;
    let _opening = OPENING.lock();
    create_unless_exists(&path).map_err(|cause| unreachable_file(&path, cause))?;
    check_writable(&path)?;
    recognise(&path)?;
    let mut connection = connect(&path, options)?;
    let created = migrate(&path, &mut connection)?;
    enter_write_ahead_logging(&path, &connection, options.busy_timeout)?;
    connection.pragma_update(None, "synchronous", "FULL").map_err(failed)?;
    connection.pragma_update(None, "fullfsync", true).map_err(failed)?;
    connection.pragma_update(None, "journal_size_limit", i64::try_from(options.log_bytes_max).unwrap_or(i64::MAX)).map_err(failed)?;
    if created {
        sync_directory_of(&path).map_err(|cause| unreachable_file(&path, cause))?;
    }
    Ok((path, connection))
}

/// Opens one more connection to a file that [`open`] has seen.
pub(super) fn connect(path: &Path, options: &SqliteOptions) -> Result<Connection> {
    // Without `SQLITE_OPEN_URI`, so that a file may be named `file:x?mode=ro`; without `CREATE`, so that a file that was
    // removed is an error and not a new, empty store.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    connection.busy_timeout(options.busy_timeout).map_err(failed)?;
    connection.set_prepared_statement_cache_capacity(64);
    let cache_kibibytes = i64::try_from(options.cache_bytes / 1024).unwrap_or(i64::MAX);
    connection.pragma_update(None, "cache_size", -cache_kibibytes).map_err(failed)?;
    connection.pragma_update(None, "trusted_schema", false).map_err(failed)?;
    Ok(connection)
}

/// Creates an empty file, readable by its owner alone, where there is none.
///
/// A file that exists is opened by SQLite alone: when any handle of a process on a file is closed, the process loses all its
/// locks on the file (`fcntl(2)`), also those of a store that is open on it. Here the file is new, and no other thread opens
/// it before this handle is closed.
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
        // Another process was first.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        created => created.map(drop),
    }
}

/// Refuses a database that may not be written.
///
/// SQLite opens a file for reading when it may not write it, and says only that something cannot be opened where it may not make
/// the log beside it. All is asked about by name: to open and close one of these files would drop this process's locks on it.
#[cfg(unix)]
fn check_writable(path: &Path) -> Result<()> {
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
fn check_writable(_: &Path) -> Result<()> {
    Ok(())
}

/// Decides by the header whether the file is ours, or empty and ours to fill.
///
/// `immutable` lets SQLite read the header as it stands: it takes no lock, rolls nothing back and creates nothing beside it.
/// The file may be shorter than its header says, because a checkpoint was cut off and the rest is in the log; that is damage
/// to SQLite unless `writable_schema` is set.
fn recognise(path: &Path) -> Result<()> {
    // Asked first: another process may be filling the file, and what is empty now may not be so at the next look.
    if std::fs::metadata(path).map_err(|cause| unreachable_file(path, cause))?.len() == 0 {
        return Ok(());
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(immutable_uri(path), flags).map_err(failed)?;
    connection.pragma_update(None, "writable_schema", true).map_err(failed)?;
    let number = |pragma: &str| connection.query_row(pragma, [], |row| row.get::<_, i64>(0));
    match number("PRAGMA page_count") {
        // A few bytes are no page, and somebody's file all the same.
        Ok(0) => return Err(foreign(path)),
        Ok(_) => {}
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::NotADatabase) => return Err(foreign(path)),
        Err(error) => return Err(failed(error)),
    }
    if number("PRAGMA application_id").map_err(failed)? != i64::from(APPLICATION_ID) {
        return Err(foreign(path));
    }
    check_version(path, number("PRAGMA user_version").map_err(failed)?).map(drop)
}

fn immutable_uri(path: &Path) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "/-._~".contains(character);
    format!("file:{}?immutable=1", escape_bytes(path.as_os_str().as_encoded_bytes(), is_plain))
}

/// Returns how many migrations a file has had.
fn check_version(path: &Path, version: i64) -> Result<usize> {
    usize::try_from(version).ok().filter(|&version| version <= MIGRATIONS.len()).ok_or_else(|| {
        let known = MIGRATIONS.len();
        let message =
            format!("the store's file was written by a newer version (the format is {version}, this program knows {known}); upgrade");
        Error::new(ErrorKind::Unsupported, message).with_source(AtHost::new(path))
    })
}

/// Brings the schema up to date; tells whether there was none.
///
/// It is one exclusive transaction, so of several processes one does it and the others find it done. The first one happens
/// before the write-ahead log is turned on, so that the marks of the file are in the file itself from the start.
fn migrate(path: &Path, connection: &mut Connection) -> Result<bool> {
    if check_version(path, schema_version(connection)?)? == MIGRATIONS.len() {
        return Ok(false);
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Exclusive).map_err(failed)?;
    let done = check_version(path, schema_version(&transaction)?)?;
    for migration in &MIGRATIONS[done..] {
        transaction.execute_batch(migration).map_err(failed)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(failed)?;
    transaction.pragma_update(None, "user_version", MIGRATIONS.len() as i64).map_err(failed)?;
    transaction.commit().map_err(failed)?;
    Ok(done == 0)
}

fn schema_version(connection: &Connection) -> Result<i64> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)
}

/// Turns on the write-ahead log, which is a property of the file. SQLite does not wait for other processes by itself here.
fn enter_write_ahead_logging(path: &Path, connection: &Connection, patience: Duration) -> Result<()> {
    let started = Instant::now();
    loop {
        match connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0)) {
            Ok(mode) if mode == "wal" => return Ok(()),
            Ok(_) => {
                let message =
                    "the store's file is on a file system that several processes cannot share a database on; put it on a local disk";
                return Err(Error::new(ErrorKind::Unsupported, message).with_source(AtHost::new(path)));
            }
            Err(error) if is_busy(&error) && started.elapsed() < patience => std::thread::sleep(RETRY_PAUSE),
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Names what stands beside a database, such as its log, `-wal`.
pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Makes the name of a new file as durable as its content.
pub(super) fn sync_directory_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        #[cfg(unix)]
        Some(directory) => File::open(directory)?.sync_all(),
        _ => Ok(()),
    }
}

fn foreign(path: &Path) -> Error {
    Error::new(ErrorKind::Corrupt, "the store's file is not a store of this program; name another file").with_source(AtHost::new(path))
}

fn unreachable_file(path: &Path, cause: io::Error) -> Error {
    let (kind, message) = match cause.kind() {
        io::ErrorKind::NotFound => (ErrorKind::NotFound, "the directory of the store's file does not exist; create it"),
        io::ErrorKind::PermissionDenied => {
            let message = "the store's file or its directory may not be written; change the permissions of both or name another file";
            (ErrorKind::PermissionDenied, message)
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            (ErrorKind::ReadOnly, "the file system of the store's file takes no changes; name a file on another one")
        }
        io::ErrorKind::IsADirectory => (ErrorKind::IsDirectory, "what is named as the store's file is a directory; name a file"),
        _ => (ErrorKind::Unavailable, "the store's file cannot be opened; look at its disk and try again"),
    };
    Error::new(kind, message).with_source(AtHost::new(path).with_cause(cause))
}
