//! The private directory of a mirror: its lock, and the marker of what it belongs to.
//!
//! Everything is reached by handle, because other programs may move or replace any directory while the mirror lives.

use super::bases::Bases;
use crate::flock::Flock;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, fstat, mkdirat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};
use treehold_core::error::{AtHost, Error, ErrorKind, Result};

const SUFFIX: &str = ".treehold-mirror";

const LOCK: &str = "lock";
const MARKER: &str = "mirror.json";
const UNFINISHED_MARKER: &str = "mirror.tmp";
const BASES: &str = "bases";

/// Opens a directory that is not a link.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a file to read it.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a file to write it anew.
const WRITE: OFlags = OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::TRUNC).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The mode of files that nobody else may read.
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Identifies a directory, also after the process that opened it has ended.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    /// When it was created. Hosts give the inode number of a removed directory to the next one.
    #[serde(default)]
    born: Option<Duration>,
}

impl Identity {
    pub(super) fn of(directory: &File) -> io::Result<Self> {
        let meta = directory.metadata()?;
        let born = meta.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        Ok(Self { device: meta.dev(), inode: meta.ino(), born })
    }

    /// Returns whether both are the same directory. Not every host knows when a directory was created.
    pub(super) fn is(self, other: Self) -> bool {
        let is_same_age = self.born.zip(other.born).is_none_or(|(one, other)| one == other);
        (self.device, self.inode) == (other.device, other.inode) && is_same_age
    }
}

/// Which directory a private directory belongs to, and what was mirrored there.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Marker {
    #[serde(flatten)]
    pub(super) identity: Identity,
    /// The tree that was mirrored, as its mirror named it.
    #[serde(default)]
    pub(super) tree_id: Option<String>,
    pub(super) write_back: bool,
    /// Whether the directory holds files that only a person removes, or a later mirror of the same directory.
    #[serde(default)]
    pub(super) kept: bool,
    /// Whether the directory is the user's, and its files stay whatever ends a mirror.
    #[serde(default)]
    pub(super) existing: bool,
    /// The mode of the directory before the mirror; `None` if it was created for it.
    pub(super) mode: Option<u32>,
}

/// The private directory of a mirror, which holds its lock.
#[derive(Debug)]
pub(super) struct State {
    parent: File,
    name: OsString,
    handle: File,
    _lock: Flock<OwnedFd>,
    /// The path of the private directory, for messages.
    host: PathBuf,
}

impl State {
    /// Locks the private directory beside a name, and creates it if it is missing. Returns `None` if another mirror holds it.
    pub(super) fn take(parent: File, at: &Path, name: &OsStr) -> Result<Option<Self>> {
        let mut private = OsString::from(".");
        private.push(name);
        private.push(SUFFIX);
        let host = at.join(&private);
        let fault = |errno: Errno| failed("cannot be locked", &host, errno.into());
        loop {
            match mkdirat(&parent, &private, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(fault(errno)),
            }
            let Some(handle) = open_directory(&parent, &private).map_err(fault)? else { continue };
            let lock = match openat(&handle, LOCK, OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC, PRIVATE) {
                // Another process removed the directory in between.
                Err(Errno::NOENT) => continue,
                lock => lock.map_err(fault)?,
            };
            let lock = match Flock::try_take(lock) {
                Err((_, Errno::WOULDBLOCK)) => return Ok(None),
                locked => locked.map_err(|(_, errno)| fault(errno))?,
            };
            // A lock on a file that was removed in between protects nothing.
            if fstat(lock.file()).map_err(fault)?.st_nlink > 0 {
                return Ok(Some(Self { parent, name: private, handle, _lock: lock, host }));
            }
        }
    }

    /// Returns the directory that holds both the mirrored directory and the private one.
    pub(super) fn parent(&self) -> &File {
        &self.parent
    }

    /// Reads the marker; `None` without a readable one.
    pub(super) fn marker(&self) -> Option<Marker> {
        serde_json::from_slice(&read(&self.handle, MARKER).ok()?).ok()
    }

    /// Replaces the marker.
    pub(super) fn mark(&self, marker: &Marker) -> io::Result<()> {
        let json = serde_json::to_vec(marker).expect("a marker has only plain fields");
        write(&self.handle, UNFINISHED_MARKER, &[&json])?;
        Ok(renameat(&self.handle, UNFINISHED_MARKER, &self.handle, MARKER)?)
    }

    /// Opens the bases of merges.
    pub(super) fn bases(&self) -> Result<Bases> {
        let host = self.host.join(BASES);
        let opened = match mkdirat(&self.handle, BASES, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => open_directory(&self.handle, BASES),
            Err(errno) => Err(errno),
        };
        let handle = opened.and_then(|handle| handle.ok_or(Errno::NOENT));
        let handle = handle.map_err(|errno| failed("cannot be prepared", &host, errno.into()))?;
        Ok(Bases::new(handle, host))
    }

    /// Removes the private directory, the lock last.
    pub(super) fn remove(self) {
        if let Ok(Some(bases)) = open_directory(&self.handle, BASES) {
            let _ = Bases::new(bases, self.host.join(BASES)).clear();
            let _ = unlinkat(&self.handle, BASES, AtFlags::REMOVEDIR);
        }
        for name in [UNFINISHED_MARKER, MARKER, LOCK] {
            let _ = unlinkat(&self.handle, name, AtFlags::empty());
        }
        remove_named(&self.parent, &self.name, &self.handle);
    }
}

/// Returns the name whose private directory has this name.
pub(super) fn name_of_private(name: &OsStr) -> Option<&OsStr> {
    let name = name.as_bytes().strip_prefix(b".")?.strip_suffix(SUFFIX.as_bytes())?;
    Some(OsStr::from_bytes(name)).filter(|name| !name.is_empty())
}

/// Returns whether a directory has a marker.
pub(super) fn has_marker(private: &Path) -> bool {
    fs::symlink_metadata(private.join(MARKER)).is_ok()
}

/// Opens a directory by its name, without following a link; `None` if there is none.
pub(super) fn open_directory(parent: impl AsFd, name: impl AsRef<OsStr>) -> std::result::Result<Option<File>, Errno> {
    match openat(parent, name.as_ref(), DIRECTORY, Mode::empty()) {
        Ok(handle) => Ok(Some(handle.into())),
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::LOOP) => Err(Errno::NOTDIR),
        Err(errno) => Err(errno),
    }
}

/// Removes an open directory from its parent if it is empty and still has its name there. Another directory that takes the name at this
/// very moment is removed only if it is empty.
pub(super) fn remove_named(parent: &File, name: &OsStr, directory: &File) {
    let (Ok(found), Ok(own)) = (statat(parent, name, AtFlags::SYMLINK_NOFOLLOW), fstat(directory)) else { return };
    if (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino) {
        let _ = unlinkat(parent, name, AtFlags::REMOVEDIR);
    }
}

/// Returns the names in a directory.
pub(super) fn names(directory: &File) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Reads a file of a private directory.
pub(super) fn read(directory: &File, name: impl AsRef<OsStr>) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::from(openat(directory, name.as_ref(), READ, Mode::empty())?).read_to_end(&mut content)?;
    Ok(content)
}

/// Writes a file of a private directory.
pub(super) fn write(directory: &File, name: impl AsRef<OsStr>, content: &[&[u8]]) -> io::Result<()> {
    let mut file = File::from(openat(directory, name.as_ref(), WRITE, PRIVATE)?);
    content.iter().try_for_each(|part| file.write_all(part))
}

pub(super) fn failed(what: &str, host: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => ErrorKind::NotADirectory,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::QuotaExceeded,
        _ => ErrorKind::Unavailable,
    };
    let message = format!("the directory of the mirror, or the private one beside it, {what}; check its path and mode");
    Error::new(kind, message).with_source(AtHost::new(host).with_cause(error))
}
