//! Locates and locks the directory that a change applies to, creating missing parents.
//!
//! Others may rename, replace or remove a directory between any two steps. So a change locks the directory that the path leads
//! to, then resolves the path once more. It proceeds only if both are the same directory, and starts over otherwise.

use super::change::{DIRECTORY_MODE, STARTS_MAX, Writer};
use super::lock::Lock;
use super::meta::Meta;
use super::root::OpenedName;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, mkdirat, statat};
use rustix::io::Errno;
use std::ffi::OsStr;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Changed;
use treehold_core::path::VfsPath;

/// A path whose directory is locked.
pub(super) struct Claim {
    pub(super) place: OpenedName,
    pub(super) lock: Lock,
}

impl Writer<'_> {
    /// Locks the directory that holds a path.
    pub(super) fn claim(&self, path: &VfsPath, follow: bool) -> Result<Claim> {
        for _ in 0..STARTS_MAX {
            let before = self.root.locate(path, follow)?;
            let id = before.directory_id;
            let lock = Lock::take(vec![(id, before.directory)], path, self.cancel)?;
            let place = self.root.locate(path, follow)?;
            if place.directory_id == id {
                return Ok(Claim { place, lock });
            }
        }
        Err(kept_being_replaced(path))
    }

    /// Locks the directories that hold two paths.
    pub(super) fn claim_both(&self, from: &VfsPath, to: &VfsPath) -> Result<(OpenedName, OpenedName, Lock)> {
        for _ in 0..STARTS_MAX {
            let (old, new) = (self.root.locate(from, false)?, self.root.locate(to, false)?);
            let ids = (old.directory_id, new.directory_id);
            let lock = Lock::take(vec![(ids.0, old.directory), (ids.1, new.directory)], from, self.cancel)?;
            let (old, new) = (self.root.locate(from, false)?, self.root.locate(to, false)?);
            if (old.directory_id, new.directory_id) == ids {
                return Ok((old, new, lock));
            }
        }
        Err(kept_being_replaced(from))
    }

    /// Runs a change after creating missing parent directories, and starts over if others remove them meanwhile. `refuse` runs
    /// before any parent is created and may reject the change.
    ///
    /// Parents remain even if the change fails later, for example because the disk is full. Once they exist, another writer may rely on
    /// them, and removing them would undo an acknowledged change.
    pub(super) fn with_parents(
        &self,
        path: &VfsPath,
        refuse: impl Fn() -> Result<()>,
        change: impl Fn() -> Result<Changed>,
    ) -> Result<Changed> {
        let Some(parent) = path.parent() else { return Err(Error::is_directory(path)) };
        let mut last = None;
        for _ in 0..STARTS_MAX {
            if !self.make_directories(parent, path, &refuse)? {
                continue;
            }
            match change() {
                Err(error) if self.may_have_lost_parents(path, &error) => last = Some(error),
                done => return done,
            }
        }
        Err(last.unwrap_or_else(|| kept_being_replaced(path)))
    }

    /// Returns whether a change may have failed because a parent directory was removed. Only this, or a dangling link, makes a
    /// path to be created not found.
    fn may_have_lost_parents(&self, path: &VfsPath, error: &Error) -> bool {
        let is_link = || self.root.stat(path).is_ok_and(|meta| meta.is_symlink());
        error.kind() == ErrorKind::NotFound && error.path() == Some(path) && !is_link()
    }

    /// Creates a directory and its missing parents. Returns false if one was removed meanwhile. Errors carry `path`.
    fn make_directories(&self, directory: &VfsPath, path: &VfsPath, refuse: impl Fn() -> Result<()>) -> Result<bool> {
        let fault = |errno| self.root.fault(path, errno);
        let mut missing = Vec::new();
        let mut at = directory;
        let mut handle = loop {
            match (self.root.try_directory(at)?, at.parent()) {
                (Ok(handle), _) => break handle,
                (Err(Errno::NOENT), Some(parent)) => {
                    missing.push(at);
                    at = parent;
                }
                (Err(errno), _) => return Err(fault(errno)),
            }
        };
        if !missing.is_empty() {
            refuse()?;
        }
        for directory in missing.into_iter().rev() {
            match mkdirat(&handle, directory.name(), DIRECTORY_MODE) {
                Ok(()) => self.sync_directory(&handle).map_err(fault)?,
                Err(Errno::EXIST) => {}
                Err(Errno::NOENT) => return Ok(false),
                Err(errno) => return Err(fault(errno)),
            }
            let name = OsStr::new(directory.name());
            handle = match self.root.open_child_directory(handle.as_fd(), name) {
                Ok(child) => child,
                Err(Errno::NOENT) => return Ok(false),
                // It did not resolve to a directory before, yet the name exists: a dangling link.
                Err(Errno::LOOP | Errno::NOTDIR) if is_symlink(&handle, name) => {
                    let message = format!("`{path}` leads through a link to something that does not exist");
                    return Err(Error::new(ErrorKind::NotFound, message).at(path));
                }
                Err(errno) => return Err(fault(errno)),
            };
        }
        Ok(true)
    }
}

/// Creates the error for a path whose directory kept being replaced.
pub(super) fn kept_being_replaced(path: &VfsPath) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the directory of `{path}` kept being replaced by others; try again")).at(path)
}

fn is_symlink(directory: &OwnedFd, name: &OsStr) -> bool {
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| Meta::from(stat).is_symlink())
}

#[cfg(test)]
mod tests {
    use super::super::{Cancel, FilesystemOptions, SyncMode};
    use super::*;
    use crate::backend::filesystem::root::Root;
    use treehold_core::ops::Change;
    use treehold_core::path::VfsPathBuf;

    /// Regression: a failed write removed the parents it had created, although the answer to another writer had meanwhile reported them as
    /// existing.
    #[test]
    fn failed_write_keeps_parents_acknowledged_to_another_writer() {
        let host = tempfile::tempdir().expect("a directory");
        let root = Root::open(host.path(), &FilesystemOptions::new()).expect("a root");
        let cancel = Cancel::default();
        let path = |text: &str| VfsPathBuf::parse(text).expect("a legal path");
        let writer = Writer::new(&root, SyncMode::None, &cancel);
        let other = Writer::new(&root, SyncMode::None, &cancel);
        let failed = writer.with_parents(
            &path("/d/e/file"),
            || Ok(()),
            || {
                other.apply(&Change::CreateDir { path: path("/d/e") })?;
                Err(Error::new(ErrorKind::Unavailable, "the disk is full"))
            },
        );
        assert_eq!(failed.map_err(|error| error.kind()), Err(ErrorKind::Unavailable));
        assert!(host.path().join("d/e").is_dir());
    }
}
