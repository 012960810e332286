//! The root directory, and the directories in it. Links are not followed.

use super::names::{has_state, id_of};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, fsync, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use treehold_core::error::{AtHost, Error, ErrorKind, Result};

/// The root directory.
pub(super) struct Root {
    pub(super) fd: OwnedFd,
    /// For the operator.
    pub(super) path: PathBuf,
}

impl Root {
    /// Opens the root, and creates it if it is missing.
    pub(super) fn open(path: PathBuf) -> Result<Self> {
        let opened = std::fs::create_dir_all(&path).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
        let fd = opened.and_then(|()| openat(CWD, &path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()));
        match fd {
            Ok(fd) => Ok(Self { fd, path }),
            Err(errno) => Err(failed(&path, errno)),
        }
    }

    /// Opens a directory; `None` if it is missing.
    ///
    /// # Errors
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for a link.
    pub(super) fn directory(&self, parent: impl AsFd, name: &str) -> Result<Option<OwnedFd>> {
        match openat(parent, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.failed(errno)),
        }
    }

    /// As [`Root::directory`], and `None` for what is no directory.
    pub(super) fn subdirectory(&self, parent: impl AsFd, name: &str) -> Result<Option<OwnedFd>> {
        match openat(parent, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(self.failed(errno)),
        }
    }

    /// Opens a directory, and creates it if it is missing.
    pub(super) fn directory_or_new(&self, parent: impl AsFd, name: &str) -> Result<OwnedFd> {
        loop {
            if let Some(fd) = self.directory(&parent, name)? {
                return Ok(fd);
            }
            match mkdirat(&parent, name, Mode::from_raw_mode(0o777)) {
                Ok(()) => fsync(&parent).map_err(|errno| self.failed(errno))?,
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(self.failed(errno)),
            }
        }
    }

    /// Returns the names in a directory that are UTF-8.
    pub(super) fn entries(&self, directory: impl AsFd) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(directory).map_err(|errno| self.failed(errno))? {
            let entry = entry.map_err(|errno| self.failed(errno))?;
            if let Ok(name) = entry.file_name().to_str()
                && !matches!(name, "." | "..")
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Returns whether a user's directory has a session with a value.
    pub(super) fn has_session(&self, directory: &OwnedFd) -> Result<bool> {
        for entry in self.entries(directory)? {
            if id_of("session", &entry).is_some()
                && let Some(session) = self.subdirectory(directory, &entry)?
                && has_state(&self.entries(&session)?)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes a directory and what is in it. Links are removed, not followed.
    pub(super) fn remove_tree(&self, parent: impl AsFd, name: &str) -> Result<()> {
        loop {
            let Some(directory) = self.directory(&parent, name)? else { return Ok(()) };
            for entry in self.entries(&directory)? {
                match unlinkat(&directory, entry.as_str(), AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(Errno::ISDIR | Errno::PERM) => self.remove_tree(&directory, &entry)?,
                    Err(errno) => return Err(self.failed(errno)),
                }
            }
            match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                // A save that began before the removal added a file.
                Err(Errno::NOTEMPTY) => {}
                Err(errno) => return Err(self.failed(errno)),
            }
        }
    }

    /// Converts an error of the host.
    pub(super) fn failed(&self, errno: Errno) -> Error {
        failed(&self.path, errno)
    }
}

/// Converts an error of the host. The path is for the operator.
fn failed(path: &Path, errno: Errno) -> Error {
    let (kind, message) = match errno {
        Errno::ACCESS | Errno::PERM => {
            (ErrorKind::PermissionDenied, "the host does not permit this in the directory of the states; change its mode")
        }
        Errno::LOOP | Errno::NOTDIR => (
            ErrorKind::PermissionDenied,
            "a link or special file is in the way in the directory of the states; replace it with what it points to",
        ),
        Errno::ROFS => (ErrorKind::ReadOnly, "the directory of the states is on a read-only filesystem"),
        Errno::NOSPC | Errno::DQUOT => (ErrorKind::QuotaExceeded, "there is no space left for the states; delete files, then try again"),
        Errno::NAMETOOLONG | Errno::ILSEQ => {
            (ErrorKind::InvalidArgument, "the host does not accept the name of the file; shorten the id or key")
        }
        Errno::ISDIR => (ErrorKind::Corrupt, "a directory is in the place of a value; remove it"),
        _ => (ErrorKind::Unavailable, "the host failed in the directory of the states; try again"),
    };
    Error::new(kind, message).with_source(AtHost::new(path).with_cause(std::io::Error::from(errno)))
}
