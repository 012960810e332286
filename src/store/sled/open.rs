//! The directory: how it is recognised, created and opened.

use super::SledOptions;
use super::barrier::Barrier;
use super::error::{damaged, failed, guarded};
use super::rows::{COUNTER_KEY, FORMAT, FORMAT_KEY, FORMAT_MARK};
use crate::error::{Error, ErrorKind, Result};
use std::io;
use std::path::Path;

/// How often the engine writes by itself, in milliseconds. Not never: it collects garbage only then.
const FLUSH_EVERY: u64 = 500;

/// The name of a file of our own in the directory, written once the store is on the disk. The engine takes files that lost
/// their content for a new store, and a store that cannot be read must not turn into an empty one.
const MARK: &str = "stratafs";

/// An open store.
pub(super) struct Opened {
    pub(super) rows: ::sled::Db,
    pub(super) barrier: Barrier,
    /// The version of the newest commit.
    pub(super) version: u64,
}

/// Opens a directory, and creates it when it does not exist.
pub(super) fn open(options: &SledOptions) -> Result<Opened> {
    let shown = options.path.display().to_string();
    // What the process does to its working directory later must not lead to other files.
    let path = std::path::absolute(&options.path).map_err(|source| unreachable_directory(&shown, source))?;
    prepare(&shown, &path)?;
    let config = ::sled::Config::new()
        .path(&path)
        .mode(::sled::Mode::LowSpace)
        .cache_capacity(options.cache_bytes)
        .flush_every_ms(Some(FLUSH_EVERY))
        .print_profile_on_drop(false);
    let rows = guarded(|| config.open().map_err(|error| not_opened(&shown, error)))?;
    let mark = path.join(MARK);
    let version = guarded(|| recognise(&shown, &rows, mark.exists()))?;
    rows.flush().map_err(failed)?;
    let barrier = Barrier::new(&path).and_then(|barrier| barrier.keep(&mark, FORMAT).map(|()| barrier));
    let barrier = barrier.map_err(|source| unreachable_directory(&shown, source))?;
    Ok(Opened { rows, barrier, version })
}

/// Creates the directory, for its owner alone, or looks at what is there before the engine does: it would fill any directory.
fn prepare(shown: &str, path: &Path) -> Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(source) => return Err(unreachable_directory(shown, source)),
    }
    let mut names = std::fs::read_dir(path).map_err(|source| unreachable_directory(shown, source))?;
    let is_empty = names.next().is_none();
    if is_empty || path.join("conf").is_file() || path.join("db").is_file() || path.join("blobs").is_dir() {
        return Ok(());
    }
    Err(foreign(shown))
}

/// Checks the format, or marks an empty store with it; returns the version of the newest commit.
fn recognise(shown: &str, rows: &::sled::Db, was_there: bool) -> Result<u64> {
    match rows.get(FORMAT_KEY).map_err(failed)? {
        Some(format) if format == FORMAT => {}
        Some(format) if format.starts_with(FORMAT_MARK) => {
            let message = format!("`{shown}` was written by a newer version; upgrade");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Some(_) => return Err(foreign(shown)),
        None if was_there => return Err(damaged("the files of the store have lost their rows")),
        None if rows.is_empty() && rows.tree_names().len() == 1 => {
            rows.insert(FORMAT_KEY, FORMAT).map_err(failed)?;
        }
        None => return Err(foreign(shown)),
    }
    let Some(counter) = rows.get(COUNTER_KEY).map_err(failed)? else { return Ok(0) };
    let counter = counter.as_ref().try_into().map_err(|_| damaged("the counter of versions cannot be read back"))?;
    Ok(u64::from_be_bytes(counter))
}

fn not_opened(shown: &str, error: ::sled::Error) -> Error {
    // The engine tells that another process has the lock by a text alone.
    if error.to_string().contains("could not acquire lock") {
        let message = format!("another process has `{shown}` open, and it is for one at a time; close it there, or use a sqlite store");
        return Error::new(ErrorKind::Unavailable, message).with_source(error);
    }
    match error {
        // At this point these are damages of the files.
        error @ ::sled::Error::ReportableBug(_) => damaged("the files of the store do not fit together").with_source(error),
        error => failed(error),
    }
}

fn foreign(shown: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("`{shown}` is not a store of this program; name another directory"))
}

fn unreachable_directory(shown: &str, source: io::Error) -> Error {
    let (kind, message) = match source.kind() {
        io::ErrorKind::NotFound => (ErrorKind::NotFound, format!("the directory above `{shown}` does not exist; create it")),
        io::ErrorKind::PermissionDenied => {
            (ErrorKind::PermissionDenied, format!("`{shown}` may not be opened; change its permissions or name another directory"))
        }
        io::ErrorKind::NotADirectory => (ErrorKind::NotADirectory, format!("`{shown}` is a file; name a directory")),
        _ => (ErrorKind::Unavailable, format!("`{shown}` cannot be opened; look at its disk and try again")),
    };
    Error::new(kind, message).with_source(source)
}
