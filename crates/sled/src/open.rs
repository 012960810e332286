//! The directory: how it is recognised, created and opened.

use super::SledOptions;
use super::barrier::Barrier;
use super::error::{damaged, failed, guarded};
use super::leftover;
use super::read::counter;
use super::rows::{FORMAT, FORMAT_KEY, FORMAT_MARK, is_former};
use super::waker::Waker;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};
use treehold_core::error::{AtHost, Error, ErrorKind, Result};
use treehold_core::lock_wait::LockWait;
use treehold_store::migrate::OldLayout;

/// The interval in milliseconds at which the engine flushes by itself. Not disabled, because it collects garbage only then.
const FLUSH_EVERY: u64 = 500;

/// The pause before the lock is tried again.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// The name of our own file in the directory, written once the store is on disk. The engine mistakes files that lost their content for a
/// new store, and an unreadable store must not turn into an empty one.
pub(super) const MARK: &str = "treehold";

/// An open store.
pub(super) struct Opened {
    pub(super) rows: ::sled::Db,
    pub(super) waker: Waker,
    pub(super) barrier: Barrier,
    /// The version of the newest commit.
    pub(super) version: u64,
}

/// Opens a directory, creating it if needed.
pub(super) fn open(options: &SledOptions) -> Result<Opened> {
    // A later change of the working directory must not lead to other files.
    let path = std::path::absolute(&options.path).map_err(|cause| unreachable_directory(&options.path, cause))?;
    prepare(&path)?;
    let config = engine(&path, options);
    let rows = guarded(|| locked(&path, &config, options.lock_timeout))?;
    let waker = Waker::start(rows.clone(), config)?;
    let mark = path.join(MARK);
    let version = guarded(|| recognise(&path, &rows, mark.exists()))?;
    rows.flush().map_err(failed)?;
    let barrier = Barrier::new(&path).and_then(|barrier| barrier.keep(&mark, FORMAT).map(|()| barrier));
    let barrier = barrier.map_err(|cause| unreachable_directory(&path, cause))?;
    Ok(Opened { rows, waker, barrier, version })
}

/// Returns the engine's configuration.
pub(super) fn engine(path: &Path, options: &SledOptions) -> ::sled::Config {
    ::sled::Config::new()
        .path(path)
        .mode(::sled::Mode::LowSpace)
        .cache_capacity(options.cache_bytes)
        .flush_every_ms(Some(FLUSH_EVERY))
        .print_profile_on_drop(false)
}

/// Opens the engine, waiting for its lock: the engine's threads may hold the lock of a store that was just closed, here or by an ending
/// process, for a moment longer.
pub(super) fn locked(path: &Path, config: &::sled::Config, patience: Duration) -> Result<::sled::Db> {
    let (started, mut wait) = (Instant::now(), LockWait::begin());
    loop {
        let cleared = leftover::clear(path).map_err(|cause| unreachable_directory(path, cause))?;
        read_through(&path.join("db")).map_err(|cause| unreachable_directory(path, cause))?;
        match config.open() {
            Err(error) if is_locked(&error) && started.elapsed() < patience => {
                wait.still(format_args!("sled:{}", path.display()));
                std::thread::sleep(LOCK_PAUSE);
            }
            // The previous holder may have stopped in the middle of writing a snapshot after the check for one.
            Err(error) if !is_locked(&error) && !cleared && leftover::is_there(path) => {}
            opened => return opened.map_err(|error| not_opened(path, error)),
        }
    }
}

/// Reads the log to its end, so that a disk read error surfaces before the engine opens: the engine treats an unreadable part as one that
/// was never written, and overwrites it.
///
/// Cost: a read of the file, which the engine then finds in memory; 400 MB take about 100 ms if already cached.
fn read_through(log: &Path) -> io::Result<()> {
    let mut file = match File::open(log) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    let mut part = vec![0; 1 << 20];
    while file.read(&mut part)? > 0 {}
    Ok(())
}

/// Returns whether another holder has the lock, which the engine reports only as text.
fn is_locked(error: &::sled::Error) -> bool {
    error.to_string().contains("could not acquire lock")
}

/// Creates the directory, accessible to its owner only, or checks an existing one: the engine would accept any directory.
fn prepare(path: &Path) -> Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(cause) => return Err(unreachable_directory(path, cause)),
    }
    let mut names = std::fs::read_dir(path).map_err(|cause| unreachable_directory(path, cause))?;
    let is_empty = names.next().is_none();
    if is_empty || path.join("conf").is_file() || path.join("db").is_file() || path.join("blobs").is_dir() {
        return Ok(());
    }
    Err(foreign(path))
}

/// Returns whether a store is there, or something that opening it reports: a store without its log, a file, or files of another program.
pub(super) fn is_there(path: &Path) -> bool {
    let Ok(mut names) = std::fs::read_dir(path) else { return path.exists() };
    // What a creation leaves that was interrupted before the log was there.
    let is_begun = ["conf", "blobs"].iter().any(|name| path.join(name).exists());
    path.join("db").exists() || path.join(MARK).exists() || (!is_begun && names.next().is_some())
}

/// Checks the format, or marks an empty store with it. Returns the version of the newest commit.
fn recognise(path: &Path, rows: &::sled::Db, was_there: bool) -> Result<u64> {
    match rows.get(FORMAT_KEY).map_err(failed)? {
        Some(format) if format == FORMAT => {}
        Some(format) if is_former(&format) => return Err(OldLayout::error(Some(Box::new(AtHost::new(path))))),
        Some(format) if format.starts_with(FORMAT_MARK) => {
            let message = "the store's files were written by a newer version; upgrade this program";
            return Err(Error::new(ErrorKind::Unsupported, message).with_source(AtHost::new(path)));
        }
        Some(_) => return Err(foreign(path)),
        None if was_there => return Err(damaged("the files of the store have lost their rows")),
        None if rows.is_empty() && rows.tree_names().len() == 1 => {
            rows.insert(FORMAT_KEY, FORMAT).map_err(failed)?;
        }
        None => return Err(foreign(path)),
    }
    counter(rows)
}

fn not_opened(path: &Path, error: ::sled::Error) -> Error {
    if is_locked(&error) {
        let message = "another process has the store open, and only one can; close it there, or use a sqlite store";
        return Error::new(ErrorKind::Unavailable, message).with_source(AtHost::new(path).with_cause(error));
    }
    match error {
        // At this point these mean damaged files.
        error @ ::sled::Error::ReportableBug(_) => {
            damaged("the files of the store are inconsistent").with_source(AtHost::new(path).with_cause(error))
        }
        error => failed(error),
    }
}

fn foreign(path: &Path) -> Error {
    Error::new(ErrorKind::Corrupt, "the store's directory is not a store of this program; name another directory")
        .with_source(AtHost::new(path))
}

/// Returns the error for a directory without a store.
pub(super) fn not_there(path: &Path) -> Error {
    Error::new(ErrorKind::NotFound, "there is no store in the directory; name another one").with_source(AtHost::new(path))
}

pub(super) fn unreachable_directory(path: &Path, cause: io::Error) -> Error {
    let (kind, message) = match cause.kind() {
        io::ErrorKind::NotFound => (ErrorKind::NotFound, "the directory above the store's does not exist; create it"),
        io::ErrorKind::PermissionDenied => (
            ErrorKind::PermissionDenied,
            "permission to open the store's directory is denied; change the \
                permissions or name another directory",
        ),
        io::ErrorKind::NotADirectory => (ErrorKind::NotADirectory, "the path of the store's directory is a file; name a directory"),
        _ => (ErrorKind::Unavailable, "the store's directory cannot be opened; check its disk and try again"),
    };
    Error::new(kind, message).with_source(AtHost::new(path).with_cause(cause))
}
