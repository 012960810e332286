//! The sealed root: every access opens beneath one directory handle, and nothing leads out of it.
//!
//! On Linux the kernel keeps the seal (`openat2` with `RESOLVE_BENEATH`, see [openat2(2)]): `..`, absolute links, links that
//! leave, magic links of `/proc` and, unless asked for, mounts are refused while a path is resolved, so there is no moment between a
//! check and a use. Where the kernel does not offer the call, or a sandbox filters it, the path is walked one component at a
//! time, each opened without following from the handle of the one before; links are then read and spliced in here, with the same
//! refusals. Links that stay within the root are followed in both ways.
//!
//! Changes are made by name within a directory handle that was opened so; the last component is never followed by a change itself.
//!
//! [openat2(2)]: https://man7.org/linux/man-pages/man2/openat2.2.html

use super::FilesystemOptions;
use super::directory::is_unfinished;
use super::errno::{fault, outside};
use super::meta::{FileId, Meta};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::EntryKind;
use crate::path::VfsPath;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, fstat, openat, readlinkat, statat};
use rustix::io::{Errno, Result as Host};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

#[cfg(any(target_os = "linux", target_os = "android"))]
use rustix::fs::{ResolveFlags, openat2};

/// How many links one path may lead through, the kernel's own number.
const LINKS_MAX: usize = 40;

/// How often a path is resolved again when a rename elsewhere disturbed it.
const DISTURBED_MAX: usize = 64;

/// Opens a directory only to go on from it.
#[cfg(any(target_os = "linux", target_os = "android"))]
const PASS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const PASS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens a path only to look at it.
#[cfg(any(target_os = "linux", target_os = "android"))]
const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const LOOK: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC);

/// What `fstatfs` calls btrfs, ext4, f2fs, overlay, tmpfs, XFS and ZFS.
#[cfg(any(target_os = "linux", target_os = "android"))]
const LOCAL_FILESYSTEMS: [u32; 7] = [0x9123_683E, 0xEF53, 0xF2F5_2010, 0x794C_7630, 0x0102_1994, 0x5846_5342, 0x2FC1_2FC1];

/// Opens a directory to list, lock or flush it.
pub(super) const LIST: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens a file to read it. A pipe that took its place does not block, and a terminal does not become ours.
pub(super) const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// A directory of the host, held open, with the rules of its seal.
#[derive(Debug)]
pub(super) struct Root {
    handle: OwnedFd,
    host: PathBuf,
    device: u64,
    cross_mounts: bool,
    by_kernel: bool,
    /// Whether the kernel can say that it would have to wait, instead of waiting.
    from_memory: bool,
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

/// Where a path ends once every link in it is replaced by what it names.
struct Resolved {
    /// The directory that holds the last name; none for the root.
    parent: Option<OwnedFd>,
    /// The real names from the root down; empty for the root.
    names: Vec<OsString>,
}

impl Root {
    /// Opens a directory as a root.
    pub(super) fn open(host: &Path, options: &FilesystemOptions) -> Result<Self> {
        if options.create_root {
            // Whether it worked, and why not, is what the opening below says.
            let _ = std::fs::create_dir_all(host);
        }
        let handle = rustix::fs::open(host, PASS, Mode::empty()).map_err(|errno| {
            let error = fault(host, VfsPath::ROOT, errno);
            match errno {
                Errno::NOENT => error.with_message("the root directory does not exist; create it, or open it with `create_root`"),
                Errno::NOTDIR => error.with_message("the root is not a directory; name one"),
                _ => error.with_message("the root directory cannot be opened; check its path and mode"),
            }
        })?;
        let meta = fstat(&handle).map(Meta::from).map_err(|errno| fault(host, VfsPath::ROOT, errno))?;
        let mut root = Self {
            handle,
            host: host.to_owned(),
            device: meta.id.device,
            cross_mounts: options.cross_mounts,
            by_kernel: options.openat2 && cfg!(any(target_os = "linux", target_os = "android")),
            from_memory: false,
        };
        // A kernel without the call and a sandbox that filters it answer alike: not with a handle.
        root.by_kernel = root.by_kernel && root.open_by_kernel(".", PASS).is_ok();
        root.from_memory = root.by_kernel && !options.cross_mounts && root.is_local();
        Ok(root)
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
        let relative = relative(path)?;
        self.stat_relative(relative, false).map_err(|errno| self.fault(path, errno))
    }

    /// Opens a directory to list it; a link to one is followed.
    pub(super) fn open_directory(&self, path: &VfsPath) -> Result<OwnedFd> {
        let relative = relative(path)?;
        self.open_relative(relative, LIST).map_err(|errno| match errno {
            // Either the path itself is no directory or something above it is none.
            Errno::NOTDIR if self.stat_relative(relative, true).is_ok() => Error::not_a_directory(path),
            _ => self.fault_behind_link(path, relative, errno),
        })
    }

    /// Opens a directory and leaves it to the caller to say what an error number means.
    pub(super) fn try_directory(&self, path: &VfsPath) -> Result<Host<OwnedFd>> {
        Ok(self.open_relative(relative(path)?, LIST))
    }

    /// Opens a regular file to read it; a link to one is followed. Anything else is refused before it is opened.
    pub(super) fn open_file(&self, path: &VfsPath) -> Result<OpenFile> {
        let relative = relative(path)?;
        let behind = |errno| self.fault_behind_link(path, relative, errno);
        check_readable(path, &self.stat_relative(relative, true).map_err(behind)?)?;
        let handle = self.open_relative(relative, READ).map_err(behind)?;
        let meta = fstat(&handle).map(Meta::from).map_err(behind)?;
        check_readable(path, &meta)?;
        Ok(OpenFile { handle, meta })
    }

    /// Looks at a path like [`Root::stat`], if nothing but memory is needed for it; none when the host would have to wait for a
    /// device.
    pub(super) fn stat_in_memory(&self, path: &VfsPath) -> Option<Result<Meta>> {
        let meta = match relative(path) {
            Ok(relative) => self.open_in_memory(relative, LOOK | OFlags::NOFOLLOW)?.and_then(fstat),
            Err(error) => return Some(Err(error)),
        };
        Some(meta.map(Meta::from).map_err(|errno| self.fault(path, errno)))
    }

    /// Opens a regular file like [`Root::open_file`], if nothing but memory is needed for it; none when the host would have to wait, and
    /// when anything else than a file is there.
    pub(super) fn open_file_in_memory(&self, path: &VfsPath) -> Option<OpenFile> {
        let relative = relative(path).ok()?;
        let look = self.open_in_memory(relative, LOOK)?.ok()?;
        if !Meta::from(fstat(look).ok()?).is_file() {
            return None;
        }
        let handle = self.open_in_memory(relative, READ)?.ok()?;
        let meta = Meta::from(fstat(&handle).ok()?);
        meta.is_file().then_some(OpenFile { handle, meta })
    }

    /// Finds the directory and name that a change of a path is made by. `follow` goes through a link at the end of the path, to the
    /// file that it stands for.
    pub(super) fn locate(&self, path: &VfsPath, follow: bool) -> Result<Place> {
        let relative = relative(path)?;
        let Some(parent) = path.parent() else { return Err(Error::is_directory(path)) };
        let fault = |errno| self.fault(path, errno);
        let directory = self.open_relative(relative_unchecked(parent), LIST).map_err(fault)?;
        let place = Place::new(directory, OsString::from(path.name())).map_err(fault)?;
        if !follow || !place.current.is_some_and(|meta| meta.is_symlink()) {
            return Ok(place);
        }
        let Resolved { parent, mut names } = self.resolve(relative, true).map_err(|errno| self.fault_behind_link(path, relative, errno))?;
        let Some(name) = names.pop() else { return Err(Error::is_directory(path)) };
        let directory = openat(parent.as_ref().map_or(self.handle.as_fd(), AsFd::as_fd), ".", LIST, Mode::empty()).map_err(fault)?;
        let place = Place::new(directory, name).map_err(fault)?;
        // What was found through the link may be gone or replaced by now; then the caller's path names nothing.
        if place.current.is_none() { Err(Error::not_found(path)) } else { Ok(place) }
    }

    /// Opens a directory beneath an open one, by one name that is not followed.
    pub(super) fn open_child_directory(&self, parent: BorrowedFd<'_>, name: &OsStr) -> Host<OwnedFd> {
        self.open_child(parent, name, LIST | OFlags::NOFOLLOW)
    }

    /// Opens a regular file beneath an open directory, by one name that is not followed; none when it is no regular file.
    pub(super) fn open_child_file(&self, parent: BorrowedFd<'_>, name: &OsStr) -> Host<Option<OpenFile>> {
        let handle = self.open_child(parent, name, READ | OFlags::NOFOLLOW)?;
        let meta = Meta::from(fstat(&handle)?);
        Ok(meta.is_file().then_some(OpenFile { handle, meta }))
    }

    fn open_child(&self, parent: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> Host<OwnedFd> {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if self.by_kernel {
            return match openat2(parent, name, flags, Mode::empty(), self.seal() | ResolveFlags::NO_SYMLINKS) {
                Err(Errno::INTR | Errno::AGAIN) => self.open_child_checked(parent, name, flags),
                other => other,
            };
        }
        self.open_child_checked(parent, name, flags)
    }

    fn open_child_checked(&self, parent: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> Host<OwnedFd> {
        let handle = openat(parent, name, flags, Mode::empty())?;
        self.check_device(&handle)?;
        Ok(handle)
    }

    /// Explains an error at a path whose last component may be a link that leads nowhere.
    fn fault_behind_link(&self, path: &VfsPath, relative: &str, errno: Errno) -> Error {
        let error = self.fault(path, errno);
        let is_link = || self.stat_relative(relative, false).is_ok_and(|meta| meta.is_symlink());
        match errno {
            Errno::NOENT if is_link() => error.with_message(format!("`{path}` is a link to something that does not exist")),
            Errno::LOOP if is_link() => error.with_message(outside(path)),
            _ => error,
        }
    }

    fn stat_relative(&self, path: &str, follow: bool) -> Host<Meta> {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if self.by_kernel {
            let flags = LOOK | if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
            return fstat(self.open_by_kernel(path, flags)?).map(Meta::from);
        }
        let Resolved { parent, names } = self.resolve(path, follow)?;
        let meta = match (parent, names.last()) {
            (Some(parent), Some(name)) => Meta::from(statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?),
            (None, Some(name)) => Meta::from(statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW)?),
            (_, None) => Meta::from(fstat(&self.handle)?),
        };
        // A symbolic link has no place for a mount on it.
        if !self.cross_mounts && meta.id.device != self.device { Err(Errno::XDEV) } else { Ok(meta) }
    }

    fn open_relative(&self, path: &str, flags: OFlags) -> Host<OwnedFd> {
        if self.by_kernel { self.open_by_kernel(path, flags) } else { self.open_by_component(path, flags) }
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn open_by_kernel(&self, path: &str, flags: OFlags) -> Host<OwnedFd> {
        for _ in 0..DISTURBED_MAX {
            match openat2(&self.handle, path, flags, Mode::empty(), self.seal()) {
                Err(Errno::INTR | Errno::AGAIN) => {}
                other => return other,
            }
        }
        self.open_by_component(path, flags)
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn open_by_kernel(&self, path: &str, flags: OFlags) -> Host<OwnedFd> {
        self.open_by_component(path, flags)
    }

    /// Opens a path if the kernel finds all of it in memory.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn open_in_memory(&self, path: &str, flags: OFlags) -> Option<Host<OwnedFd>> {
        if !self.from_memory {
            return None;
        }
        match openat2(&self.handle, path, flags, Mode::empty(), self.seal() | ResolveFlags::CACHED) {
            // Kernels before 5.12 do not know the flag.
            Err(Errno::AGAIN | Errno::INTR | Errno::INVAL) => None,
            other => Some(other),
        }
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn open_in_memory(&self, _path: &str, _flags: OFlags) -> Option<Host<OwnedFd>> {
        None
    }

    /// Tells whether the root lies on a filesystem that keeps what it knows in memory, and asks no server about it.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn is_local(&self) -> bool {
        rustix::fs::fstatfs(&self.handle).is_ok_and(|about| LOCAL_FILESYSTEMS.contains(&(about.f_type as u32)))
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn is_local(&self) -> bool {
        false
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn seal(&self) -> ResolveFlags {
        let seal = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        if self.cross_mounts { seal } else { seal | ResolveFlags::NO_XDEV }
    }

    fn open_by_component(&self, path: &str, flags: OFlags) -> Host<OwnedFd> {
        let Resolved { parent, names } = self.resolve(path, !flags.contains(OFlags::NOFOLLOW))?;
        let parent = parent.as_ref().map_or(self.handle.as_fd(), AsFd::as_fd);
        let name = names.last().map_or(OsStr::new("."), OsString::as_os_str);
        self.open_child_checked(parent, name, flags | OFlags::NOFOLLOW)
    }

    /// Walks a path one component at a time, each opened without following from the one before, and splices in what links name.
    ///
    /// Every link met starts the walk again with its text in place of its name. A `..` of such a text is met when all before it is
    /// known to be directories and no links, so it takes away exactly the name before it.
    fn resolve(&self, path: &str, follow_last: bool) -> Host<Resolved> {
        let mut names: Vec<OsString> = path.split('/').filter(|name| !matches!(*name, "" | ".")).map(OsString::from).collect();
        let (mut links, mut disturbed) = (0, 0);
        loop {
            match self.walk(&names, follow_last)? {
                Walked::Whole(parent) => return Ok(Resolved { parent, names }),
                Walked::Disturbed if disturbed == DISTURBED_MAX => return Err(Errno::AGAIN),
                Walked::Disturbed => disturbed += 1,
                Walked::Parent(0) => return Err(Errno::XDEV),
                Walked::Parent(index) => drop(names.drain(index - 1..=index)),
                Walked::Link { .. } if links == LINKS_MAX => return Err(Errno::LOOP),
                Walked::Link { index, target } => {
                    links += 1;
                    names.splice(index..=index, link_names(&target)?);
                }
            }
        }
    }

    fn walk(&self, names: &[OsString], follow_last: bool) -> Host<Walked> {
        let mut current: Option<OwnedFd> = None;
        for (index, name) in names.iter().enumerate() {
            let directory = current.as_ref().map_or(self.handle.as_fd(), AsFd::as_fd);
            let last = index + 1 == names.len();
            if name == ".." {
                return Ok(Walked::Parent(index));
            }
            if last && !follow_last {
                break;
            }
            let meta = Meta::from(statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?);
            if meta.is_symlink() {
                return match readlinkat(directory, name, Vec::new()) {
                    Ok(target) => Ok(Walked::Link { index, target: OsString::from_vec(target.into_bytes()) }),
                    Err(Errno::INVAL) => Ok(Walked::Disturbed),
                    Err(errno) => Err(errno),
                };
            }
            if last {
                break;
            }
            if !meta.is_directory() {
                return Err(Errno::NOTDIR);
            }
            current = match self.open_child_checked(directory, name, PASS | OFlags::NOFOLLOW) {
                Ok(child) => Some(child),
                Err(Errno::NOTDIR | Errno::LOOP) => return Ok(Walked::Disturbed),
                Err(errno) => return Err(errno),
            };
        }
        Ok(Walked::Whole(current))
    }

    fn check_device(&self, handle: &OwnedFd) -> Host<()> {
        if self.cross_mounts || Meta::from(fstat(handle)?).id.device == self.device { Ok(()) } else { Err(Errno::XDEV) }
    }
}

/// How far a walk by component came.
enum Walked {
    /// To the last name, whose directory this is (none for the root).
    Whole(Option<OwnedFd>),
    /// To a name that became something else between a look and a step.
    Disturbed,
    /// To a `..` that a link brought.
    Parent(usize),
    /// To a link.
    Link { index: usize, target: OsString },
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
pub(super) fn relative(path: &VfsPath) -> Result<&str> {
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

/// Cuts the text of a link into names; a link that starts at the host's root leaves ours.
fn link_names(target: &OsStr) -> Host<Vec<OsString>> {
    let target = target.as_bytes();
    if target.starts_with(b"/") {
        return Err(Errno::XDEV);
    }
    let names = target.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    Ok(names.map(|name| OsStr::from_bytes(name).to_owned()).collect())
}
