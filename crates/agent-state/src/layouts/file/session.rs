//! The files of one session.

use super::names::{has_state, state_key};
use super::root::Root;
use crate::contract::StateKey;
use crate::layouts::shared::{KEYS_MAX, check_bytes, too_many_keys};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, fsync, openat, renameat, unlinkat};
use rustix::io::{Errno, read, write};
use std::sync::Arc;
use treehold_core::error::Result;
use uuid::Uuid;

/// The start of the names of directories that are being removed, in the root. No id has such a name: `~` would be encoded.
const REMOVED: &str = "~removed-";

/// The directory of one session.
pub(super) struct Session {
    pub(super) root: Arc<Root>,
    pub(super) user: String,
    pub(super) session: String,
    pub(super) bytes_max: usize,
}

impl Session {
    fn open(&self) -> Result<Option<OwnedFd>> {
        match self.root.directory(&self.root.fd, &self.user)? {
            Some(user) => self.root.directory(user, &self.session),
            None => Ok(None),
        }
    }

    fn open_or_new(&self) -> Result<OwnedFd> {
        let user = self.root.directory_or_new(&self.root.fd, &self.user)?;
        self.root.directory_or_new(user, &self.session)
    }

    /// Reads a file; `None` if it is missing.
    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(directory) = self.open()? else { return Ok(None) };
        // Without `NONBLOCK`, opening a pipe would wait for its writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&directory, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.root.failed(errno)),
        };
        let failed = |errno| self.root.failed(errno);
        let stat = fstat(&file).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(self.root.failed(Errno::LOOP));
        }
        check_bytes(usize::try_from(stat.st_size).unwrap_or(usize::MAX), self.bytes_max.saturating_mul(2))?;
        let mut content = Vec::with_capacity(usize::try_from(stat.st_size).unwrap_or_default() + 1);
        let mut part = vec![0; 64 << 10];
        loop {
            match read(&file, &mut part[..]) {
                Ok(0) => return Ok(Some(content)),
                Ok(count) => content.extend_from_slice(&part[..count]),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
            check_bytes(content.len(), self.bytes_max.saturating_mul(2))?;
        }
    }

    /// Replaces files, one after the other.
    pub(super) fn write(&self, files: Vec<(String, String)>) -> Result<()> {
        for (name, content) in files {
            loop {
                let directory = self.open_or_new()?;
                match replace(&directory, &name, content.as_bytes()) {
                    Ok(()) => break,
                    // The session was deleted after its directory was opened; this save comes after the deletion.
                    Err(Errno::NOENT) => {}
                    Err(errno) => return Err(self.root.failed(errno)),
                }
            }
        }
        Ok(())
    }

    pub(super) fn has_state(&self) -> Result<bool> {
        self.open()?.map_or(Ok(false), |directory| Ok(has_state(&self.root.entries(&directory)?)))
    }

    pub(super) fn keys(&self) -> Result<Vec<StateKey>> {
        let Some(directory) = self.open()? else { return Ok(Vec::new()) };
        let mut keys: Vec<StateKey> = self.root.entries(&directory)?.iter().filter_map(|entry| state_key(entry)).collect();
        if keys.len() > KEYS_MAX {
            return Err(too_many_keys());
        }
        keys.sort();
        Ok(keys)
    }

    pub(super) fn unlink(&self, names: &[String]) -> Result<()> {
        let Some(directory) = self.open()? else { return Ok(()) };
        for name in names {
            match unlinkat(&directory, name.as_str(), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(self.root.failed(errno)),
            }
        }
        fsync(&directory).map_err(|errno| self.root.failed(errno))
    }

    /// Removes the session: takes its directory out of the user's by one rename, so that nobody sees half of it, and empties it then.
    pub(super) fn remove(&self) -> Result<()> {
        let Some(user) = self.root.directory(&self.root.fd, &self.user)? else { return Ok(()) };
        // Only a directory is removed. A link or a file in its place is an error.
        if self.root.directory(&user, &self.session)?.is_none() {
            return Ok(());
        }
        let removed = format!("{REMOVED}{}", Uuid::new_v4());
        match renameat(&user, self.session.as_str(), &self.root.fd, removed.as_str()) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(()),
            // The user's directory is on another filesystem.
            Err(Errno::XDEV) => return self.root.remove_tree(&user, &self.session),
            Err(errno) => return Err(self.root.failed(errno)),
        }
        fsync(&user).map_err(|errno| self.root.failed(errno))?;
        self.root.remove_tree(&self.root.fd, &removed)?;
        self.sweep()
    }

    /// Removes what interrupted removals left.
    fn sweep(&self) -> Result<()> {
        for entry in self.root.entries(&self.root.fd)? {
            if entry.starts_with(REMOVED) {
                self.root.remove_tree(&self.root.fd, &entry)?;
            }
        }
        Ok(())
    }
}

/// Replaces a file: its readers see the old content or the new one.
fn replace(directory: &OwnedFd, name: &str, content: &[u8]) -> rustix::io::Result<()> {
    let unfinished = format!(".{}.tmp", Uuid::new_v4());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(directory, unfinished.as_str(), flags, Mode::from_raw_mode(0o666))?;
    let replaced = write_all(&file, content)
        .and_then(|()| fsync(&file))
        .and_then(|()| renameat(directory, unfinished.as_str(), directory, name))
        .and_then(|()| fsync(directory));
    if replaced.is_err() {
        // After the rename there is nothing left to remove.
        let _ = unlinkat(directory, unfinished.as_str(), AtFlags::empty());
    }
    replaced
}

fn write_all(file: &OwnedFd, mut content: &[u8]) -> rustix::io::Result<()> {
    while !content.is_empty() {
        match write(file, content) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => content = &content[count..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
