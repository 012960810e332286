//! The root of a tree: its paths, opened beneath the seal and told of in the crate's words.
//!
//! What may not be read is refused before it is opened: a pipe would wait, a device may do something. Changes are made by name within a
//! directory that was opened beneath the seal; the last name is never followed by a change itself.

use super::FilesystemOptions;
use super::directory::is_unfinished;
use super::errno::{fault, outside};
use super::meta::{FileId, Meta};
use super::openat2::LOOK;
use super::seal::Seal;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::EntryKind;
use crate::path::{VfsPath, VfsPathBuf};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, fstat, openat, statat};
use rustix::io::{Errno, Result as Host};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

/// Opens a directory to list, lock or flush it.
const LIST: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens a file to read it. A pipe that took its place does not block, and a terminal does not become ours.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// A sealed directory of the host.
#[derive(Debug, Clone)]
pub(super) struct Root {
    seal: Seal,
    host: Arc<Path>,
}

/// A name in an open directory, and what stands there.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) directory: OwnedFd,
    pub(super) directory_id: FileId,
    pub(super) name: OsString,
    pub(super) current: Option<Meta>,
}

/// A file held open for reading.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) handle: OwnedFd,
    pub(super) meta: Meta,
}

impl Root {
    /// Opens a directory as a root.
    pub(super) fn open(host: &Path, options: &FilesystemOptions) -> Result<Self> {
        if options.create_root {
            // Whether it worked, and why not, is what the opening below says.
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

    /// Returns the same root, which follows no link.
    pub(super) fn without_links(&self) -> Self {
        Self { seal: self.seal.without_links(), host: self.host.clone() }
    }

    /// Returns the host's path of the root.
    pub(super) fn host(&self) -> &Path {
        &self.host
    }

    /// Turns an error number met at a path into an error.
    pub(super) fn fault(&self, path: &VfsPath, errno: Errno) -> Error {
        fault(&self.host, path, errno)
    }

    /// Looks at a path, without following a link at its end.
    pub(super) fn stat(&self, path: &VfsPath) -> Result<Meta> {
        self.seal.look(relative(path)?, false).map_err(|errno| self.fault(path, errno))
    }

    /// Returns where a path leads to once every link is followed; none when that is outside, is not there, or has no legal path.
    pub(super) fn leads_to(&self, path: &VfsPath) -> Option<VfsPathBuf> {
        let resolved = self.seal.resolve(relative(path).ok()?, true).ok()?;
        let names: Option<Vec<&str>> = resolved.names().iter().map(|name| name.to_str()).collect();
        let path = VfsPathBuf::parse(format!("/{}", names?.join("/"))).ok()?;
        self.stat(&path).ok().map(|_| path)
    }

    /// Looks at a path like [`Root::stat`], if nothing but memory is needed for it; none when the host would have to wait for a
    /// device.
    pub(super) fn stat_in_memory(&self, path: &VfsPath) -> Option<Result<Meta>> {
        let meta = match relative(path) {
            Ok(relative) => self.seal.open_in_memory(relative, LOOK | OFlags::NOFOLLOW)?.and_then(fstat),
            Err(error) => return Some(Err(error)),
        };
        Some(meta.map(Meta::from).map_err(|errno| self.fault(path, errno)))
    }

    /// Opens a directory to list it; a link to one is followed.
    pub(super) fn open_directory(&self, path: &VfsPath) -> Result<OwnedFd> {
        let relative = relative(path)?;
        self.seal.open_at(relative, LIST).map_err(|errno| match errno {
            // Either the path itself is no directory or something above it is none.
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

    /// Opens a directory and leaves it to the caller to say what an error number means.
    pub(super) fn try_directory(&self, path: &VfsPath) -> Result<Host<OwnedFd>> {
        Ok(self.seal.open_at(relative(path)?, LIST))
    }

    /// Opens a regular file to read it; a link to one is followed. Anything else is refused before it is opened.
    pub(super) fn open_file(&self, path: &VfsPath) -> Result<OpenFile> {
        let relative = relative(path)?;
        let behind = |errno| self.fault_behind_link(path, relative, errno);
        check_readable(path, &self.seal.look(relative, true).map_err(behind)?)?;
        let handle = self.seal.open_at(relative, READ).map_err(behind)?;
        let meta = fstat(&handle).map(Meta::from).map_err(behind)?;
        check_readable(path, &meta)?;
        Ok(OpenFile { handle, meta })
    }

    /// Opens a regular file like [`Root::open_file`], if nothing but memory is needed for it; none when the host would have to wait, and
    /// when anything else than a file is there.
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

    /// Finds the directory and name that a change of a path is made by. `follow` goes through a link at the end of the path, to the
    /// file that it stands for.
    pub(super) fn locate(&self, path: &VfsPath, follow: bool) -> Result<Place> {
        let relative = relative(path)?;
        let Some(parent) = path.parent() else { return Err(Error::is_directory(path)) };
        let fault = |errno| self.fault(path, errno);
        let directory = self.seal.open_at(relative_unchecked(parent), LIST).map_err(fault)?;
        let place = Place::new(directory, OsString::from(path.name())).map_err(fault)?;
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
        let place = Place::new(directory, resolved.name().to_owned()).map_err(fault)?;
        // What was found through the link may be gone by now; then the caller's path names nothing.
        if place.current.is_none() { Err(Error::not_found(path)) } else { Ok(place) }
    }

    /// Opens a directory beneath an open one, by one name that is not followed.
    pub(super) fn open_child_directory(&self, parent: BorrowedFd<'_>, name: &OsStr) -> Host<OwnedFd> {
        self.seal.open_name(parent, name, LIST)
    }

    /// Opens a regular file beneath an open directory, by one name that is not followed; none when it is no regular file.
    pub(super) fn open_child_file(&self, parent: BorrowedFd<'_>, name: &OsStr) -> Host<Option<OpenFile>> {
        let handle = self.seal.open_name(parent, name, READ)?;
        let meta = Meta::from(fstat(&handle)?);
        Ok(meta.is_file().then_some(OpenFile { handle, meta }))
    }

    /// Explains an error at a path whose last component may be a link that leads nowhere.
    fn fault_behind_link(&self, path: &VfsPath, relative: &str, errno: Errno) -> Error {
        let error = self.fault(path, errno);
        let is_link = || self.seal.look(relative, false).is_ok_and(|meta| meta.is_symlink());
        match errno {
            Errno::NOENT if is_link() => error.with_message(format!("`{path}` is a link to something that does not exist")),
            Errno::LOOP if !self.seal.follows_links() => error.with_message(format!(
                "`{path}` leads through a link, which may lead past the rules of this tree; name what it leads to by its own path"
            )),
            Errno::LOOP if is_link() => error.with_message(format!(
                "`{path}` is a link that leads in a circle, or through too many others; name a file by its own path"
            )),
            _ => error,
        }
    }
}

impl Place {
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

/// Refuses what may not be read: directories, and devices, pipes and sockets, which are never opened.
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

/// Returns a path as the host takes it beneath the root, unless a name in it is kept for unfinished writes.
fn relative(path: &VfsPath) -> Result<&str> {
    match path.segments().find(|name| is_unfinished(name.as_bytes())) {
        None => Ok(relative_unchecked(path)),
        Some(name) => {
            let message = format!("`{name}` is kept for unfinished writes; choose another name");
            Err(Error::new(ErrorKind::InvalidPath, message).at(path))
        }
    }
}

fn relative_unchecked(path: &VfsPath) -> &str {
    if path.is_root() { "." } else { path.relative() }
}
