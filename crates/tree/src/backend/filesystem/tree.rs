//! Removes and copies whole directories by handle, without following links or entering other filesystems.

use super::Cancel;
use super::SyncMode;
use super::content::copy_all;
use super::directory::{Child, all_children, children, type_of, unfinished_name};
use super::meta::{Meta, PERMISSIONS};
use super::openat2::PASS;
use super::root::Root;
use super::temp::{flush, stamp};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, chmod, fchmod, fstat, mkdirat, openat, readlinkat, renameat, symlinkat, unlinkat};
use rustix::io::{Errno, Result as Host};
use std::ffi::{OsStr, OsString};

/// The most directories a removal holds open at once. Deeper ones are moved up first.
const DEPTH_MAX: usize = 64;

/// How often a directory is emptied again if others keep adding to it.
const REFILLS_MAX: usize = 16;

/// A directory being emptied.
struct Emptied {
    handle: OwnedFd,
    name: OsString,
    left: Vec<Child>,
    refills: usize,
}

/// Removes a directory with its contents. Returns the number of removed entries, including itself.
///
/// Uses a bounded number of handles for a tree of any depth: a directory too far down is moved up to the top and removed from
/// there.
pub(super) fn remove(root: &Root, parent: &OwnedFd, name: &OsStr) -> Host<usize> {
    remove_with(root, parent, name, Emptied::open)
}

/// Removes a directory like [`remove`], and gives its directories the mode bits that this needs.
pub(super) fn remove_forced(root: &Root, parent: &OwnedFd, name: &OsStr) -> Host<usize> {
    remove_with(root, parent, name, Emptied::open_forced)
}

fn remove_with(root: &Root, parent: &OwnedFd, name: &OsStr, open: impl Fn(&Root, BorrowedFd<'_>, &OsStr) -> Host<Emptied>) -> Host<usize> {
    let mut removed = 0;
    let mut stack = vec![open(root, parent.as_fd(), name)?];
    while let Some(level) = stack.last_mut() {
        if let Some(child) = level.left.pop() {
            match remove_child(level.handle.as_fd(), &child) {
                Ok(Removed::Gone) => removed += 1,
                Ok(Removed::Missing) => {}
                Ok(Removed::Directory) if stack.len() < DEPTH_MAX => match open(root, stack[stack.len() - 1].handle.as_fd(), &child.name) {
                    Ok(level) => stack.push(level),
                    Err(Errno::NOENT) => {}
                    Err(errno) => return Err(errno),
                },
                Ok(Removed::Directory) => {
                    // The host may refuse to move a directory that it would refuse to open.
                    drop(open(root, stack[stack.len() - 1].handle.as_fd(), &child.name)?);
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

    /// Opens a directory, after adding the bits to its mode that its owner needs to empty it.
    fn open_forced(root: &Root, parent: BorrowedFd<'_>, name: &OsStr) -> Host<Self> {
        let handle = match root.open_child_directory(parent, name) {
            Err(Errno::ACCESS) => {
                // Changing the mode by name could follow a link, and a handle without rights can only be reached by its own name.
                let look = openat(parent, name, PASS | OFlags::NOFOLLOW, Mode::empty())?;
                chmod(format!("/proc/self/fd/{}", look.as_raw_fd()), Mode::RWXU)?;
                root.open_child_directory(parent, name)?
            }
            opened => opened?,
        };
        let mode = Meta::from(fstat(&handle)?).mode;
        if !mode.contains(Mode::RWXU) {
            fchmod(&handle, (mode & PERMISSIONS) | Mode::RWXU)?;
        }
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

/// Removes a name unless it is a directory.
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
        // It has become a directory since the names were read. Hosts differ in which of the two errors they return.
        Err(Errno::ISDIR | Errno::PERM) if is_directory(directory, &child.name) => Ok(Removed::Directory),
        Err(errno) => Err(errno),
    }
}

fn is_directory(directory: BorrowedFd<'_>, name: &OsStr) -> bool {
    rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| Meta::from(stat).is_directory())
}

/// Why a directory could not be copied.
pub(super) enum CopyFault {
    Host(Errno),
    /// It contains a device, pipe or socket.
    Special,
    /// The caller has given up.
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

/// Copies the contents of a directory into an empty one. Returns the number of entries, including the directory itself.
///
/// Links are copied as links with the same target. Mode bits are kept as far as the umask allows.
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
                // Whatever its final mode, the directory must be writable until it is filled.
                mkdirat(&level.target, name, (mode & PERMISSIONS) | Mode::RWXU)?;
                let target = root.open_child_directory(level.target.as_fd(), name)?;
                stack.push(Copied::start(source, target)?);
            }
            Ok(FileType::Symlink) => symlinkat(&*readlinkat(&level.source, name, Vec::new())?, &level.target, name)?,
            Ok(FileType::RegularFile) => copy_file(root, level, name, sync)?,
            Ok(_) => return Err(CopyFault::Special),
            // It was removed meanwhile.
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
        // Remove what the source lacks, without restoring what the umask removed.
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
