//! A copy of the whole file as it is at one moment, made while others write.
//!
//! The pages are read within one read transaction, by SQLite's online backup: in a write-ahead log a reader keeps no writer
//! waiting, and what it sees does not move, so the copy never starts over, as a backup without a transaction does after each
//! write of another process. The log cannot be folded in meanwhile and grows by what is written. Weighed against it was
//! `VACUUM INTO`, as consistent and as quiet: it writes no free pages and so fewer bytes, but builds every B-tree
//! anew, and tells nothing until it is done; of a file of 236 MB, 4 KiB a body, it took 1.2 to 1.3 times as long.

use super::error::{failed, is_busy};
use super::open::{sync_directory_of, with_suffix};
use super::read::Reader;
use crate::error::{AtHost, Error, ErrorKind, Result};
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How many pages are copied at a time: 1 MiB.
const STEP_PAGES: i32 = 256;

/// How long to sleep before a lock of another process is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// How to take a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotOptions {
    /// The file to make, readable by its owner alone. Its directory is there.
    pub path: PathBuf,
    /// Replaces a file that exists. Default false: it is refused.
    pub replace: bool,
}

impl SnapshotOptions {
    /// Makes a new file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), replace: false }
    }

    /// Sets whether a file that exists is replaced.
    #[must_use]
    pub fn with_replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }
}

/// How far a snapshot is, in bytes of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SnapshotProgress {
    /// What is copied.
    pub bytes: u64,
    /// What there is to copy.
    pub bytes_total: u64,
}

/// Copies what `reader` sees now to a file. Stops when nobody is told any more.
pub(super) fn take(
    reader: &Reader,
    source: &Path,
    options: &SnapshotOptions,
    busy_timeout: Duration,
    told: &watch::Sender<SnapshotProgress>,
) -> Result<u64> {
    let path = std::path::absolute(&options.path).map_err(|cause| not_made(&options.path, cause))?;
    check_target(&path, source, options.replace)?;
    let beside = Beside::create(&path)?;
    let bytes = fill(reader, &beside.path, busy_timeout, told)?;
    File::open(&beside.path).and_then(|file| file.sync_all()).map_err(|cause| not_made(&path, cause))?;
    beside.rename(&path, options.replace)?;
    sync_directory_of(&path).map_err(|cause| not_made(&path, cause))?;
    Ok(bytes)
}

/// Refuses what a file must not be put in the place of.
fn check_target(path: &Path, source: &Path, replace: bool) -> Result<()> {
    let refused = |kind, message: &str| Err(Error::new(kind, message).with_source(AtHost::new(path)));
    if same_file(path, source) {
        return refused(ErrorKind::InvalidArgument, "a store is not a snapshot of itself; name another file");
    }
    // A log beside the new file would be taken for its own, and replayed into it.
    for suffix in ["-wal", "-journal"] {
        if with_suffix(path, suffix).exists() {
            let message = "the file to make is a database that is open, or was not closed; name another file";
            return refused(ErrorKind::AlreadyExists, message);
        }
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => refused(ErrorKind::IsDirectory, "what is named as the snapshot is a directory; name a file"),
        Ok(_) if !replace => refused(ErrorKind::AlreadyExists, "the file to make exists already; name another, or replace it by `--force`"),
        _ => Ok(()),
    }
}

fn same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    real(one).is_some_and(|one| Some(one) == real(other))
}

/// Copies page by page.
fn fill(reader: &Reader, path: &Path, busy_timeout: Duration, told: &watch::Sender<SnapshotProgress>) -> Result<u64> {
    let mut target =
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX).map_err(failed)?;
    // What is broken off is removed, and what is whole is synced once: the engine needs no care of its own.
    target.pragma_update(None, "journal_mode", "OFF").map_err(failed)?;
    target.pragma_update(None, "synchronous", "OFF").map_err(failed)?;
    let source = reader.connection();
    source.execute_batch("BEGIN").map_err(failed)?;
    // The moment is that of the first read.
    let page_bytes: u64 = source.query_row("PRAGMA page_size", [], |row| row.get(0)).map_err(failed)?;
    source.query_row("SELECT version FROM counter", [], |row| row.get::<_, i64>(0)).map_err(failed)?;
    let backup = Backup::new(source, &mut target).map_err(failed)?;
    let mut last_success = Instant::now();
    let bytes_total = loop {
        if told.is_closed() {
            return Err(Error::new(ErrorKind::Unavailable, "the snapshot was broken off; take it again"));
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
        told.send_replace(SnapshotProgress { bytes, bytes_total });
    };
    drop(backup);
    target.close().map_err(|(_, error)| failed(error))?;
    Ok(bytes_total)
}

/// A file beside the one to make, which goes unless it takes its place.
struct Beside {
    path: PathBuf,
}

impl Beside {
    fn create(target: &Path) -> Result<Self> {
        let path = with_suffix(target, &format!(".{}.tmp", uuid::Uuid::now_v7()));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(&path).map_err(|cause| not_made(target, cause))?;
        Ok(Self { path })
    }

    /// Puts the file in its place. What appeared there meanwhile stays unless it may be replaced.
    fn rename(self, target: &Path, replace: bool) -> Result<()> {
        if !replace {
            match std::fs::hard_link(&self.path, target) {
                // Dropping this removes the other name.
                Ok(()) => return Ok(()),
                Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => return Err(not_made(target, cause)),
                // A file system without links.
                Err(_) if !target.exists() => {}
                Err(cause) => return Err(not_made(target, cause)),
            }
        }
        std::fs::rename(&self.path, target).map_err(|cause| not_made(target, cause))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // It is gone when it took its place.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn not_made(path: &Path, cause: io::Error) -> Error {
    let (kind, message) = match cause.kind() {
        io::ErrorKind::NotFound => (ErrorKind::NotFound, "the directory of the snapshot does not exist; create it"),
        io::ErrorKind::AlreadyExists => {
            (ErrorKind::AlreadyExists, "the file to make exists already; name another, or replace it by `--force`")
        }
        io::ErrorKind::PermissionDenied => {
            (ErrorKind::PermissionDenied, "the snapshot may not be written there; change the permissions or name another file")
        }
        io::ErrorKind::StorageFull => (ErrorKind::Unavailable, "the disk of the snapshot is full; make room and try again"),
        _ => (ErrorKind::Unavailable, "the snapshot cannot be written; look at its disk and try again"),
    };
    Error::new(kind, message).with_source(AtHost::new(path).with_cause(cause))
}
