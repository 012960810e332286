//! Copying the database at one moment while others write.
//!
//! SQLite's online backup reads the pages within one read transaction. With a write-ahead log a reader blocks no writer
//! and its view does not change, so the copy never restarts, whereas a backup outside a transaction restarts after each
//! write of another process. Meanwhile the log cannot be folded in and grows by what is written. The alternative,
//! `VACUUM INTO`, is just as consistent and skips free pages, but it rebuilds every B-tree and reports no progress: on
//! a file of 236 MB with bodies of 4 KiB it took 1.2 to 1.3 times as long.

use super::error::{failed, is_busy};
use super::open::sync_directory_of;
use super::read::Reader;
use super::recognise::with_suffix;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use treehold_core::error::{AtHost, Error, ErrorKind, Result};
use treehold_store::unfinished::{UnfinishedFile, give_name};

/// How many pages are copied per step: 1 MiB.
const STEP_PAGES: i32 = 256;

/// How long to sleep before retrying for a lock of another process.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// Options of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotOptions {
    /// The file to create, readable by its owner only. Its directory must exist.
    pub path: PathBuf,
    /// Whether to replace an existing file. Default false.
    pub replace: bool,
}

impl SnapshotOptions {
    /// Creates the file at `path`, which must not exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), replace: false }
    }

    /// Sets whether an existing file is replaced.
    #[must_use]
    pub fn with_replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }
}

/// The progress of a snapshot, in bytes of the database file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SnapshotProgress {
    /// Bytes copied so far.
    pub bytes: u64,
    /// Bytes to copy in all.
    pub bytes_total: u64,
}

/// Checks the target, and creates the file that becomes it. Returns the absolute path of the target and the file.
pub(super) fn begin(source: &Path, options: &SnapshotOptions) -> Result<(PathBuf, UnfinishedFile)> {
    let path = std::path::absolute(&options.path).map_err(|cause| not_made(&options.path, cause))?;
    check_target(&path, source, options.replace)?;
    let (unfinished, _) = UnfinishedFile::create(&path).map_err(|cause| not_made(&path, cause))?;
    Ok((path, unfinished))
}

/// Copies the reader's current view into an unfinished file, and then gives that its name. Stops once the receiver of `sender` is gone.
pub(super) fn take(
    reader: &Reader,
    unfinished: &Path,
    path: &Path,
    replace: bool,
    busy_timeout: Duration,
    sender: &watch::Sender<SnapshotProgress>,
) -> Result<u64> {
    let bytes = fill(reader, unfinished, busy_timeout, sender)?;
    File::open(unfinished).and_then(|file| file.sync_all()).map_err(|cause| not_made(path, cause))?;
    give_name(unfinished, path, replace).map_err(|cause| not_made(path, cause))?;
    sync_directory_of(path).map_err(|cause| not_made(path, cause))?;
    Ok(bytes)
}

/// Fails if the target must not be replaced.
fn check_target(path: &Path, source: &Path, replace: bool) -> Result<()> {
    let refused = |kind, message: &str| Err(Error::new(kind, message).with_source(AtHost::new(path)));
    if same_file(path, source) {
        return refused(ErrorKind::InvalidArgument, "the snapshot would overwrite the store itself; name another file");
    }
    // A log left beside the new file would be replayed into it.
    for suffix in ["-wal", "-journal"] {
        if with_suffix(path, suffix).exists() {
            let message = "the target file is a database that is open or was not closed; name another file";
            return refused(ErrorKind::AlreadyExists, message);
        }
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => refused(ErrorKind::IsDirectory, "the path of the snapshot is a directory; name a file"),
        Ok(_) if !replace => refused(ErrorKind::AlreadyExists, "the target file already exists; name another or replace it with `--force`"),
        _ => Ok(()),
    }
}

fn same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    real(one).is_some_and(|one| Some(one) == real(other))
}

/// Copies the database page by page.
fn fill(reader: &Reader, path: &Path, busy_timeout: Duration, sender: &watch::Sender<SnapshotProgress>) -> Result<u64> {
    let mut target =
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX).map_err(failed)?;
    // An interrupted copy is deleted and a complete one is synced once, so the engine needs no durability of its own.
    target.pragma_update(None, "journal_mode", "OFF").map_err(failed)?;
    target.pragma_update(None, "synchronous", "OFF").map_err(failed)?;
    let source = reader.connection();
    source.execute_batch("BEGIN").map_err(failed)?;
    // The first read fixes the moment of the copy.
    let page_bytes: u64 = source.query_row("PRAGMA page_size", [], |row| row.get(0)).map_err(failed)?;
    source.query_row("SELECT version FROM counter", [], |row| row.get::<_, i64>(0)).map_err(failed)?;
    let backup = Backup::new(source, &mut target).map_err(failed)?;
    let mut last_success = Instant::now();
    let bytes_total = loop {
        if sender.is_closed() {
            return Err(Error::new(ErrorKind::Unavailable, "the snapshot was interrupted; take it again"));
        }
        let is_waiting = match backup.step(STEP_PAGES) {
            Ok(StepResult::Done) => break page_bytes * u64::from(backup.progress().pagecount.unsigned_abs()),
            Ok(StepResult::More) => false,
            Ok(_) => true,
            Err(error) if is_busy(&error) => true,
            Err(error) => return Err(failed(error)),
        };
        if !is_waiting {
            last_success = Instant::now();
        } else if last_success.elapsed() < busy_timeout {
            std::thread::sleep(RETRY_PAUSE);
        } else {
            return Err(Error::new(ErrorKind::Unavailable, "the database is busy with another process; try again"));
        }
        let progress = backup.progress();
        let (left, all) = (progress.remaining.unsigned_abs(), progress.pagecount.unsigned_abs());
        let (bytes, bytes_total) = (page_bytes * u64::from(all.saturating_sub(left)), page_bytes * u64::from(all));
        sender.send_replace(SnapshotProgress { bytes, bytes_total });
    };
    drop(backup);
    target.close().map_err(|(_, error)| failed(error))?;
    Ok(bytes_total)
}

fn not_made(path: &Path, cause: io::Error) -> Error {
    let (kind, message) = match cause.kind() {
        io::ErrorKind::NotFound => (ErrorKind::NotFound, "the directory of the snapshot does not exist; create it"),
        io::ErrorKind::AlreadyExists => {
            (ErrorKind::AlreadyExists, "the target file already exists; name another or replace it with `--force`")
        }
        io::ErrorKind::PermissionDenied => {
            (ErrorKind::PermissionDenied, "the snapshot cannot be written there; change the permissions or name another file")
        }
        io::ErrorKind::StorageFull => (ErrorKind::Unavailable, "the disk of the snapshot is full; make room and try again"),
        _ => (ErrorKind::Unavailable, "the snapshot cannot be written; check its disk and try again"),
    };
    Error::new(kind, message).with_source(AtHost::new(path).with_cause(cause))
}
