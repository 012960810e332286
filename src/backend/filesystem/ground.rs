//! The ground a change stands on: the directory of its path, made if need be, locked, and still the one at the path.
//!
//! A directory may be renamed, replaced or removed by others between any two steps. So a lock is taken by what the path leads to, and
//! then the path is followed once more: only if both are one directory the change goes on, and otherwise it starts again.

use super::change::{DIRECTORY_MODE, STARTS_MAX, Writer};
use super::lock::Lock;
use super::meta::Meta;
use super::root::Place;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::Changed;
use crate::path::VfsPath;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, mkdirat, statat};
use rustix::io::Errno;
use std::ffi::OsStr;

/// A place under a lock.
pub(super) struct Claim {
    pub(super) place: Place,
    pub(super) lock: Lock,
}

impl Writer<'_> {
    /// Takes the lock of the directory that holds a path.
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
        Err(restless(path))
    }

    /// Takes the locks of the directories that hold two paths.
    pub(super) fn claim_both(&self, from: &VfsPath, to: &VfsPath) -> Result<(Place, Place, Lock)> {
        for _ in 0..STARTS_MAX {
            let (old, new) = (self.root.locate(from, false)?, self.root.locate(to, false)?);
            let ids = (old.directory_id, new.directory_id);
            let lock = Lock::take(vec![(ids.0, old.directory), (ids.1, new.directory)], from, self.cancel)?;
            let (old, new) = (self.root.locate(from, false)?, self.root.locate(to, false)?);
            if (old.directory_id, new.directory_id) == ids {
                return Ok((old, new, lock));
            }
        }
        Err(restless(from))
    }

    /// Makes a change of a path whose parents appear by themselves. `refuse` says, before any parent is made, why nothing may be made at
    /// the path. When others take the parents away meanwhile, it starts again.
    ///
    /// Parents stay when the change fails later, as by a full disk: from the moment they are there, another writer may have been told
    /// that they are, and to remove them, even empty, would take back what was acknowledged to it.
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
                Err(error) if self.may_be_taken_away(path, &error) => last = Some(error),
                done => return done,
            }
        }
        Err(last.unwrap_or_else(|| restless(path)))
    }

    /// Tells whether a change may have failed because a directory above its path was taken away: there is no other reason why a path to
    /// be made is not found, but for a link that leads nowhere.
    fn may_be_taken_away(&self, path: &VfsPath, error: &Error) -> bool {
        let is_link = || self.root.stat(path).is_ok_and(|meta| meta.is_symlink());
        error.kind() == ErrorKind::NotFound && error.path() == Some(path) && !is_link()
    }

    /// Makes a directory and those above it, step by step, if nothing speaks against it; tells whether all are there, as they are
    /// unless one was taken away on the way. Errors are told of `path`.
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
                // It was not there when it was looked for as a directory, and it is there as a name.
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

/// Says that the ground moved under a change too often.
pub(super) fn restless(path: &VfsPath) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the directory of `{path}` was replaced again and again meanwhile; try again")).at(path)
}

fn is_symlink(directory: &OwnedFd, name: &OsStr) -> bool {
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| Meta::from(stat).is_symlink())
}

#[cfg(test)]
mod tests {
    use super::super::{Cancel, FilesystemOptions, SyncMode};
    use super::*;
    use crate::backend::filesystem::root::Root;
    use crate::ops::Change;
    use crate::path::VfsPathBuf;

    /// Parents that a failed write had made were removed again, also when another writer had been told meanwhile that they are there.
    #[test]
    fn a_failed_write_does_not_take_back_a_directory_that_another_was_told_of() {
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
