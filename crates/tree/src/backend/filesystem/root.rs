//! The root of a tree: opens paths beneath the seal and reports errors by the paths of the tree.
//!
//! Nodes that may not be read are rejected before they are opened, because opening a pipe would block and opening a device may
//! have effects. Changes act on a name within a directory opened beneath the seal, and never follow the last name.

use super::FilesystemOptions;
use super::directory::is_unfinished;
use super::errno::{fault, outside};
use super::meta::{FileId, Meta};
use super::openat2::{LOOK, PASS};
use super::seal::Seal;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, fstat, openat, statat};
use rustix::io::{Errno, Result as Host};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::EntryKind;
use treehold_core::path::{VfsPath, VfsPathBuf};

/// Opens a directory to list, lock or flush it.
const LIST: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens a file to read it. If a pipe took its place, the call does not block; a terminal does not become the controlling one.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// A host directory that no path escapes.
#[derive(Debug, Clone)]
pub(super) struct Root {
    seal: Seal,
    host: Arc<Path>,
}

/// A name in an open directory, and the node it refers to.
#[derive(Debug)]
pub(super) struct OpenedName {
    pub(super) directory: OwnedFd,
    pub(super) directory_id: FileId,
    pub(super) name: OsString,
    pub(super) current: Option<Meta>,
}

/// A file that is open for reading.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) handle: OwnedFd,
    pub(super) meta: Meta,
}

impl Root {
    /// Opens a directory as a root.
    pub(super) fn open(host: &Path, options: &FilesystemOptions) -> Result<Self> {
        if options.create_root {
            // Ignore the result: the opening below reports why the directory is unusable.
            let _ = std::fs::create_dir_all(host);
        }
        let seal = Seal::open(host, options).map_err(|errno| {
            let error = fault(host, VfsPath::ROOT, errno);
            match errno {
                Errno::NOENT => error.with_message("the root directory does not exist; create it, or open it with `create_root`"),
                Errno::NOTDIR => error.with_message("the root is not a directory; name one"),
                _ => error.with_message("the root directory cannot be opened; check its path and mode"),
            }
        })?;
        Ok(Self { seal, host: host.into() })
    }

    /// Makes an open directory a root. `host` is its path in messages.
    pub(super) fn of(directory: impl AsFd, host: &Path, options: &FilesystemOptions) -> Result<Self> {
        let seal = openat(directory, ".", PASS, Mode::empty()).and_then(|handle| Seal::of(handle, host, options));
        Ok(Self { seal: seal.map_err(|errno| fault(host, VfsPath::ROOT, errno))?, host: host.into() })
    }

    /// Returns the same root, but refusing all links.
    pub(super) fn without_links(&self) -> Self {
        Self { seal: self.seal.without_links(), host: self.host.clone() }
    }

    /// Returns the host path of the root.
    pub(super) fn host(&self) -> &Path {
        &self.host
    }

    /// Converts an error number at a path to an error.
    pub(super) fn fault(&self, path: &VfsPath, errno: Errno) -> Error {
        fault(&self.host, path, errno)
    }

    /// Inspects a path without following a link at its end.
    pub(super) fn stat(&self, path: &VfsPath) -> Result<Meta> {
        let relative = relative(path)?;
        self.seal.look(relative, false).map_err(|errno| self.stat_fault(path, relative, errno))
    }

    /// Inspects a path like [`Root::stat`], and returns the raw error number for the caller to interpret.
    pub(super) fn try_stat(&self, path: &VfsPath) -> Result<Host<Meta>> {
        Ok(self.seal.look(relative(path)?, false))
    }

    /// Returns the target of the link at a path after following all further links, or `None` if it is outside the root, missing, or has
    /// no valid path. A root that refuses links follows none on the way to the path.
    pub(super) fn leads_to(&self, path: &VfsPath) -> Option<VfsPathBuf> {
        let resolved = self.seal.resolve_link(relative(path).ok()?).ok()?;
        let names: Option<Vec<&str>> = resolved.names().iter().map(|name| name.to_str()).collect();
        let path = VfsPathBuf::parse(format!("/{}", names?.join("/"))).ok()?;
        self.seal.look(relative_unchecked(&path), false).ok().map(|_| path)
    }

    /// Inspects a path like [`Root::stat`] if the kernel has everything cached. Returns `None` if the host would have to wait for
    /// a device.
    pub(super) fn stat_in_memory(&self, path: &VfsPath) -> Option<Result<Meta>> {
        let relative = match relative(path) {
            Ok(relative) => relative,
            Err(error) => return Some(Err(error)),
        };
        let meta = self.seal.open_in_memory(relative, LOOK | OFlags::NOFOLLOW)?.and_then(fstat);
        Some(meta.map(Meta::from).map_err(|errno| self.stat_fault(path, relative, errno)))
    }

    fn stat_fault(&self, path: &VfsPath, relative: &str, errno: Errno) -> Error {
        match errno {
            Errno::LOOP => self.fault_behind_link(path, relative, errno),
            _ => self.fault(path, errno),
        }
    }

    /// Opens a directory to list it, following a link at the end of the path.
    pub(super) fn open_directory(&self, path: &VfsPath) -> Result<OwnedFd> {
        let relative = relative(path)?;
        self.seal.open_at(relative, LIST).map_err(|errno| match errno {
            // Either the path itself is not a directory, or one of its parents is not.
            Errno::NOTDIR if self.seal.look(relative, true).is_ok() => {
                let error = Error::not_a_directory(path);
                match self.seal.look(relative, false).is_ok_and(|meta| meta.is_symlink()) {
                    true => error.with_message(format!("`{path}` is a link to a file, not to a directory")),
                    false => error,
                }
            }
            _ => self.fault_behind_link(path, relative, errno),
        })
    }

    /// Opens a directory, and returns the raw error number for the caller to interpret.
    pub(super) fn try_directory(&self, path: &VfsPath) -> Result<Host<OwnedFd>> {
        Ok(self.seal.open_at(relative(path)?, LIST))
    }

    /// Opens a regular file for reading, following a link at the end of the path. Anything else is rejected before it is opened.
    pub(super) fn open_file(&self, path: &VfsPath) -> Result<OpenFile> {
        let relative = relative(path)?;
        let behind = |errno| self.fault_behind_link(path, relative, errno);
        check_readable(path, &self.seal.look(relative, true).map_err(behind)?)?;
        let handle = self.seal.open_at(relative, READ).map_err(behind)?;
        let meta = fstat(&handle).map(Meta::from).map_err(behind)?;
        check_readable(path, &meta)?;
        Ok(OpenFile { handle, meta })
    }

    /// Opens a regular file like [`Root::open_file`] if the kernel has everything cached. Returns `None` if the host would have
    /// to wait, or if the path is not a regular file.
    pub(super) fn open_file_in_memory(&self, path: &VfsPath) -> Option<OpenFile> {
        let relative = relative(path).ok()?;
        let look = self.seal.open_in_memory(relative, LOOK)?.ok()?;
        if !Meta::from(fstat(look).ok()?).is_file() {
            return None;
        }
        let handle = self.seal.open_in_memory(relative, READ)?.ok()?;
        let meta = Meta::from(fstat(&handle).ok()?);
        meta.is_file().then_some(OpenFile { handle, meta })
    }

    /// Finds the directory and name that a change to a path acts on. With `follow`, a link at the end of the path is resolved to
    /// its target.
    pub(super) fn locate(&self, path: &VfsPath, follow: bool) -> Result<OpenedName> {
        let relative = relative(path)?;
        let Some(parent) = path.parent() else { return Err(Error::is_directory(path)) };
        let fault = |errno| self.fault(path, errno);
        let directory = self.seal.open_at(relative_unchecked(parent), LIST).map_err(fault)?;
        let place = OpenedName::new(directory, OsString::from(path.name())).map_err(fault)?;
        if !follow || !place.current.is_some_and(|meta| meta.is_symlink()) {
            return Ok(place);
        }
        if !self.seal.follows_links() {
            return Err(self.fault_behind_link(path, relative, Errno::LOOP));
        }
        let resolved = self.seal.resolve(relative, true).map_err(|errno| self.fault_behind_link(path, relative, errno))?;
        if resolved.is_root() {
            return Err(Error::is_directory(path));
        }
        let directory = openat(self.seal.parent_of(&resolved), ".", LIST, Mode::empty()).map_err(fault)?;
        let place = OpenedName::new(directory, resolved.name().to_owned()).map_err(fault)?;
        // If the target of the link is gone by now, the path names nothing.
        if place.current.is_none() { Err(Error::not_found(path)) } else { Ok(place) }
    }

    /// Opens a directory by its name in an open directory, without following links.
    pub(super) fn open_child_directory(&self, parent: BorrowedFd<'_>, name: &OsStr) -> Host<OwnedFd> {
        self.seal.open_name(parent, name, LIST)
    }

    /// Opens a file by its name in an open directory, without following links. Returns `None` if it is not a regular file.
    pub(super) fn open_child_file(&self, parent: BorrowedFd<'_>, name: &OsStr) -> Host<Option<OpenFile>> {
        let handle = self.seal.open_name(parent, name, READ)?;
        let meta = Meta::from(fstat(&handle)?);
        Ok(meta.is_file().then_some(OpenFile { handle, meta }))
    }

    /// Converts an error number at a path whose last component may be a link, and explains the link.
    fn fault_behind_link(&self, path: &VfsPath, relative: &str, errno: Errno) -> Error {
        let error = self.fault(path, errno);
        let is_link = || self.seal.look(relative, false).is_ok_and(|meta| meta.is_symlink());
        match errno {
            Errno::NOENT if is_link() => error.with_message(format!("`{path}` is a link to something that does not exist")),
            Errno::LOOP if !self.seal.follows_links() => error.with_message(format!(
                "`{path}` leads through a link, which could bypass the rules of this tree; use the path of its target"
            )),
            Errno::LOOP if is_link() => error.with_message(format!(
                "`{path}` is a link that leads in a circle or through too many others; use the path of the file itself"
            )),
            _ => error,
        }
    }
}

impl OpenedName {
    fn new(directory: OwnedFd, name: OsString) -> Host<Self> {
        let directory_id = Meta::from(fstat(&directory)?).id;
        let current = match statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(Meta::from(stat)),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno),
        };
        Ok(Self { directory, directory_id, name, current })
    }
}

/// Fails for nodes that cannot be read: directories, and devices, pipes and sockets, which are never opened.
pub(super) fn check_readable(path: &VfsPath, meta: &Meta) -> Result<()> {
    match meta.kind {
        EntryKind::File => Ok(()),
        EntryKind::Directory => Err(Error::is_directory(path)),
        EntryKind::Symlink => Err(Error::new(ErrorKind::PermissionDenied, outside(path)).at(path)),
        EntryKind::Other => {
            let message = format!("`{path}` is a device, pipe or socket, which this tree does not open; name a regular file");
            Err(Error::new(ErrorKind::PermissionDenied, message).at(path))
        }
    }
}

/// Returns a path relative to the root, as the host expects it. Fails if a component is reserved for unfinished writes.
fn relative(path: &VfsPath) -> Result<&str> {
    match path.segments().find(|name| is_unfinished(name.as_bytes())) {
        None => Ok(relative_unchecked(path)),
        Some(name) => {
            let message = format!("`{name}` is reserved for unfinished writes; choose another name");
            Err(Error::new(ErrorKind::InvalidPath, message).at(path))
        }
    }
}

fn relative_unchecked(path: &VfsPath) -> &str {
    if path.is_root() { "." } else { path.relative() }
}
