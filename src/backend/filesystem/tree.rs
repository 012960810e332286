//! Whole directories: removed and copied by handle, never through a link and never onto another filesystem.

use super::Cancel;
use super::SyncMode;
use super::content::copy_all;
use super::directory::{Child, all_children, children, type_of, unfinished_name};
use super::meta::{Meta, PERMISSIONS};
use super::root::Root;
use super::temp::{flush, stamp};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fchmod, fstat, mkdirat, openat, readlinkat, renameat, symlinkat, unlinkat};
use rustix::io::{Errno, Result as Host};
use std::ffi::{OsStr, OsString};

/// How many directories a removal holds open at once; what lies deeper is first moved up.
const DEPTH_MAX: usize = 64;

/// How often a directory is emptied again when others keep adding to it.
const REFILLS_MAX: usize = 16;

/// A directory being emptied.
struct Emptied {
    handle: OwnedFd,
    name: OsString,
    left: Vec<Child>,
    refills: usize,
}

/// Removes a directory with all it holds and returns how many entries there were, itself included.
///
/// A tree of any depth is removed with a bounded number of handles: a directory too far down is moved up to the top and
/// removed from there.
pub(super) fn remove(root: &Root, parent: &OwnedFd, name: &OsStr) -> Host<usize> {
    let mut removed = 0;
    let mut stack = vec![Emptied::open(root, parent.as_fd(), name)?];
    while let Some(level) = stack.last_mut() {
        if let Some(child) = level.left.pop() {
            match remove_child(level.handle.as_fd(), &child) {
                Ok(Removed::Gone) => removed += 1,
                Ok(Removed::Missing) => {}
                Ok(Removed::Directory) if stack.len() < DEPTH_MAX => {
                    match Emptied::open(root, stack[stack.len() - 1].handle.as_fd(), &child.name) {
                        Ok(level) => stack.push(level),
                        Err(Errno::NOENT) => {}
                        Err(errno) => return Err(errno),
                    }
                }
                Ok(Removed::Directory) => {
                    let up = OsString::from(unfinished_name());
                    renameat(&stack[stack.len() - 1].handle, &child.name, &stack[0].handle, &up)?;
                    stack[0].left.push(Child { name: up, file_type: FileType::Directory });
                }
                Err(errno) => return Err(errno),
            }
            continue;
        }
        let above = stack.len().checked_sub(2).map_or(parent.as_fd(), |index| stack[index].handle.as_fd());
        let level = &stack[stack.len() - 1];
        match unlinkat(above, &level.name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {
                removed += 1;
                stack.pop();
            }
            Err(Errno::NOTEMPTY | Errno::EXIST) if level.refills < REFILLS_MAX => {
                let last = stack.len() - 1;
                stack[last].refill()?;
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(removed)
}

impl Emptied {
    fn open(root: &Root, parent: BorrowedFd<'_>, name: &OsStr) -> Host<Self> {
        let handle = root.open_child_directory(parent, name)?;
        let left = all_children(&handle)?;
        Ok(Self { handle, name: name.to_owned(), left, refills: 0 })
    }

    fn refill(&mut self) -> Host<()> {
        self.refills += 1;
        self.left = all_children(super::directory::reopen(&self.handle)?)?;
        Ok(())
    }
}

enum Removed {
    Gone,
    Missing,
    Directory,
}

/// Removes a name that is no directory.
fn remove_child(directory: BorrowedFd<'_>, child: &Child) -> Host<Removed> {
    match type_of(directory, child) {
        Ok(FileType::Directory) => return Ok(Removed::Directory),
        Ok(_) => {}
        Err(Errno::NOENT) => return Ok(Removed::Missing),
        Err(errno) => return Err(errno),
    }
    match unlinkat(directory, &child.name, AtFlags::empty()) {
        Ok(()) => Ok(Removed::Gone),
        Err(Errno::NOENT) => Ok(Removed::Missing),
        // It became a directory since the names were read; which of the two is said differs from host to host.
        Err(Errno::ISDIR | Errno::PERM) if is_directory(directory, &child.name) => Ok(Removed::Directory),
        Err(errno) => Err(errno),
    }
}

fn is_directory(directory: BorrowedFd<'_>, name: &OsStr) -> bool {
    rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| Meta::from(stat).is_directory())
}

/// What kept a directory from being copied.
pub(super) enum CopyFault {
    Host(Errno),
    /// A device, pipe or socket stands in it.
    Special,
    /// The caller is gone.
    Cancelled,
}

impl From<Errno> for CopyFault {
    fn from(errno: Errno) -> Self {
        Self::Host(errno)
    }
}

/// A directory being copied.
struct Copied {
    source: OwnedFd,
    target: OwnedFd,
    mode: Mode,
    left: Vec<Child>,
}

/// Copies all that a directory holds into an empty one and returns how many entries there are, the directory itself included.
///
/// Links are copied as links, with their text, whatever it names; mode bits are kept as far as the umask allows.
pub(super) fn copy(root: &Root, source: OwnedFd, target: OwnedFd, sync: SyncMode, cancel: &Cancel) -> Result<usize, CopyFault> {
    let mut copied = 1;
    let mut stack = vec![Copied::start(source, target)?];
    while let Some(level) = stack.last_mut() {
        if cancel.is_set() {
            return Err(CopyFault::Cancelled);
        }
        let Some(child) = level.left.pop() else {
            level.finish(sync)?;
            stack.pop();
            continue;
        };
        let name = &child.name;
        match type_of(&level.source, &child) {
            Ok(FileType::Directory) => {
                let source = root.open_child_directory(level.source.as_fd(), name)?;
                let mode = Meta::from(fstat(&source)?).mode;
                // Whatever its mode will be, it has to be filled first.
                mkdirat(&level.target, name, (mode & PERMISSIONS) | Mode::RWXU)?;
                let target = root.open_child_directory(level.target.as_fd(), name)?;
                stack.push(Copied::start(source, target)?);
            }
            Ok(FileType::Symlink) => symlinkat(&*readlinkat(&level.source, name, Vec::new())?, &level.target, name)?,
            Ok(FileType::RegularFile) => copy_file(root, level, name, sync)?,
            Ok(_) => return Err(CopyFault::Special),
            // It went away while others were copied.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno.into()),
        }
        copied += 1;
    }
    Ok(copied)
}

impl Copied {
    fn start(source: OwnedFd, target: OwnedFd) -> Host<Self> {
        let mode = Meta::from(fstat(&source)?).mode;
        let left = children(&source)?;
        Ok(Self { source, target, mode, left })
    }

    fn finish(&self, sync: SyncMode) -> Host<()> {
        let mode = Meta::from(fstat(&self.target)?).mode;
        // What the umask took stays away, what the source lacks goes.
        if !self.mode.contains(mode & Mode::RWXU) {
            fchmod(&self.target, mode & self.mode & PERMISSIONS)?;
        }
        if sync == SyncMode::Full { flush(&self.target) } else { Ok(()) }
    }
}

fn copy_file(root: &Root, level: &Copied, name: &OsStr, sync: SyncMode) -> Result<(), CopyFault> {
    let source = root.open_child_file(level.source.as_fd(), name)?.ok_or(CopyFault::Special)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let target = openat(&level.target, name, flags, source.meta.mode & PERMISSIONS)?;
    copy_all(&source.handle, &target)?;
    stamp(&target, None)?;
    if sync != SyncMode::None {
        flush(&target)?;
    }
    Ok(())
}
