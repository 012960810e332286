//! Making sled's files survive a power loss.
//!
//! `flush` hands everything to the operating system. Then every file that may have changed is synced through a handle
//! of our own. `flush_async` and `Drop` are never relied on; concurrent calls of `flush_async` deadlock.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use treehold_core::error::Result;
use treehold_store::file_identity::FileIdentity;

/// Handles on a store's files.
#[derive(Debug)]
pub(super) struct Barrier {
    log: File,
    /// The path and identity of the log.
    place: FileIdentity,
    blobs: PathBuf,
    /// The blob files synced so far. Each is written once, under a new name.
    synced_blobs: HashSet<OsString>,
}

impl Barrier {
    /// Opens handles on an open store and syncs what opening it wrote: the settings, the blobs and all file names.
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        File::open(directory.join("conf"))?.sync_all()?;
        let log = directory.join("db");
        let (file, place) = (File::open(&log)?, FileIdentity::of(&log)?);
        let mut barrier = Self { log: file, place, blobs: directory.join("blobs"), synced_blobs: HashSet::new() };
        barrier.sync()?;
        sync_directory(&barrier.blobs)?;
        sync_directory(directory)?;
        directory.parent().map_or(Ok(()), sync_directory)?;
        Ok(barrier)
    }

    /// Fails if the store is no longer at its path.
    ///
    /// # Errors
    /// [`Unavailable`](treehold_core::error::ErrorKind::Unavailable) if it was removed or replaced.
    pub(super) fn check_place(&self) -> Result<()> {
        self.place.check()
    }

    /// Creates a file durably, unless it exists.
    pub(super) fn keep(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let mut file = match File::create_new(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            file => file?,
        };
        file.write_all(content)?;
        file.sync_all()?;
        path.parent().map_or(Ok(()), sync_directory)
    }

    /// Syncs what changed since the last call. The engine must have been flushed just before.
    ///
    /// Blobs are synced first, because the log refers to them. Cost: one disk flush, one more per new blob, and a
    /// listing of the blobs. Rows as short as ours create no blobs.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        let mut present = HashSet::new();
        let mut new = false;
        for entry in fs::read_dir(&self.blobs)? {
            let name = entry?.file_name();
            if !self.synced_blobs.contains(&name) {
                match File::open(self.blobs.join(&name)) {
                    Ok(blob) => blob.sync_all()?,
                    // The engine has removed the blob meanwhile.
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
