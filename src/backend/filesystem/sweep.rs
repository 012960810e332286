//! What a crash left behind: unfinished writes that nobody will finish.

use super::directory::{all_children, is_unfinished, type_of};
use super::meta::Meta;
use super::root::Root;
use super::{Cancel, time, tree};
use crate::error::Result;
use crate::path::VfsPath;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, flock, openat, statat, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

/// How old a leftover is that nobody can be writing to any more: one day.
const LEFTOVER_AGE: Duration = Duration::from_secs(86_400);

/// Removes the unfinished writes of a whole tree that were last touched longer than `age` ago, and returns how many there were.
///
/// What cannot be opened is passed over: nobody wrote there either.
pub(super) fn sweep(root: &Root, age: Duration, cancel: &Cancel) -> Result<usize> {
    let before_ns = before(age);
    let mut removed = 0;
    let top = Arc::new(root.open_directory(VfsPath::ROOT)?);
    let mut left = sweep_directory(root, &top, before_ns, &mut removed);
    while let Some((parent, name)) = left.pop() {
        cancel.check(VfsPath::ROOT)?;
        if let Ok(handle) = root.open_child_directory(parent.as_fd(), &name) {
            left.extend(sweep_directory(root, &Arc::new(handle), before_ns, &mut removed));
        }
    }
    Ok(removed)
}

/// Removes what unfinished writes left in a directory if it holds nothing else, and nobody works on any of it; tells whether it did.
pub(super) fn empty_of_leftovers(root: &Root, parent: &OwnedFd, name: &OsStr) -> bool {
    let Ok(directory) = root.open_child_directory(parent.as_fd(), name) else { return false };
    let before_ns = before(LEFTOVER_AGE);
    all_children(&directory).is_ok_and(|children| {
        children.iter().all(|child| is_unfinished(child.name.as_bytes()) && remove_abandoned(root, &directory, &child.name, before_ns))
    })
}

fn before(age: Duration) -> i128 {
    time::now_ns().saturating_sub(i128::try_from(age.as_nanos()).unwrap_or(i128::MAX))
}

/// Sweeps one directory and returns the directories in it.
fn sweep_directory(root: &Root, directory: &Arc<OwnedFd>, before_ns: i128, removed: &mut usize) -> Vec<(Arc<OwnedFd>, OsString)> {
    let mut directories = Vec::new();
    for child in all_children(directory).unwrap_or_default() {
        if is_unfinished(child.name.as_bytes()) {
            *removed += usize::from(remove_old(root, directory, &child.name, before_ns));
        } else if type_of(directory, &child).is_ok_and(|file_type| file_type == FileType::Directory) {
            directories.push((Arc::clone(directory), child.name));
        }
    }
    directories
}

/// Removes an unfinished write whose writer has gone: nobody holds its lock. Where that cannot be told, its age decides.
fn remove_abandoned(root: &Root, directory: &OwnedFd, name: &OsStr, before_ns: i128) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(handle) = openat(directory, name, flags, Mode::empty()) else { return remove_old(root, directory, name, before_ns) };
    match flock(&handle, FlockOperation::NonBlockingLockExclusive) {
        // The lock is held until it is gone, so a writer that has just made it sees that it was taken away.
        Ok(()) => remove_old(root, directory, name, i128::MAX),
        Err(Errno::WOULDBLOCK) => false,
        Err(_) => remove_old(root, directory, name, before_ns),
    }
}

fn remove_old(root: &Root, directory: &OwnedFd, name: &OsStr, before_ns: i128) -> bool {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map(Meta::from) {
        Ok(meta) if meta.modified_ns >= before_ns => false,
        Ok(meta) if meta.is_directory() => tree::remove(root, directory, name).is_ok(),
        Ok(_) => unlinkat(directory, name, AtFlags::empty()).is_ok(),
        Err(_) => false,
    }
}
