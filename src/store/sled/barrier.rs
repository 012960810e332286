//! What makes sled's files survive a loss of power.
//!
//! `flush` hands everything to the system; then each file that may have changed is synced through a handle of our own.
//! Never `flush_async` (it deadlocks when several run at once) and never `Drop`.

use crate::error::Result;
use crate::store::place::Place;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Handles on the files of one store.
#[derive(Debug)]
pub(super) struct Barrier {
    log: File,
    /// Where the log is.
    place: Place,
    blobs: PathBuf,
    /// Blob files are written once, under a new name each; these are synced already.
    synced_blobs: HashSet<OsString>,
}

impl Barrier {
    /// Takes handles on an open store and syncs what opening it wrote: the settings, the blobs, and the names of all files.
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        File::open(directory.join("conf"))?.sync_all()?;
        let log = directory.join("db");
        let (file, place) = (File::open(&log)?, Place::of(&log)?);
        let mut barrier = Self { log: file, place, blobs: directory.join("blobs"), synced_blobs: HashSet::new() };
        barrier.sync()?;
        sync_directory(&barrier.blobs)?;
        sync_directory(directory)?;
        directory.parent().map_or(Ok(()), sync_directory)?;
        Ok(barrier)
    }

    /// Refuses when the store is not at its path any more.
    ///
    /// # Errors
    /// [`Unavailable`](crate::error::ErrorKind::Unavailable) when it was removed or replaced.
    pub(super) fn check_place(&self) -> Result<()> {
        self.place.check()
    }

    /// Writes a file once and for good, unless it is there.
    pub(super) fn keep(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let mut file = match File::create_new(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            file => file?,
        };
        file.write_all(content)?;
        file.sync_all()?;
        path.parent().map_or(Ok(()), sync_directory)
    }

    /// Syncs what changed since the last time. The engine was flushed just before.
    ///
    /// Blobs go first: the log refers to them. Cost: one wait for the disk, one more for each new blob, and a listing of the
    /// blobs, of which rows as short as ours make none.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        let mut present = HashSet::new();
        let mut new = false;
        for entry in fs::read_dir(&self.blobs)? {
            let name = entry?.file_name();
            if !self.synced_blobs.contains(&name) {
                match File::open(self.blobs.join(&name)) {
                    Ok(blob) => blob.sync_all()?,
                    // The engine has dropped it meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                }
                new = true;
            }
            present.insert(name);
        }
        self.synced_blobs = present;
        if new {
            sync_directory(&self.blobs)?;
        }
        self.log.sync_data()
    }
}

/// Makes the names in a directory durable.
fn sync_directory(directory: &Path) -> io::Result<()> {
    #[cfg(unix)]
    File::open(directory)?.sync_all()?;
    #[cfg(not(unix))]
    let _ = directory;
    Ok(())
}
