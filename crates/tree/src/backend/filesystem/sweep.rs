//! Removes the unfinished writes that crashed processes left behind.

use super::directory::{all_children, is_unfinished, type_of};
use super::meta::Meta;
use super::root::Root;
use super::{Cancel, time, tree};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, flock, openat, statat, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::Result;
use treehold_core::path::VfsPath;

/// The age at which a leftover certainly has no writer any more: one day.
const LEFTOVER_AGE: Duration = Duration::from_secs(86_400);

/// Removes the unfinished writes of a whole tree that were last modified longer than `age` ago. Returns how many were removed.
///
/// Directories that cannot be opened are skipped: nobody could have written there either.
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

/// Removes the leftovers in a directory if it contains nothing else and none has a live writer. Returns whether it did.
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

/// Sweeps one directory and returns its subdirectories.
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

/// Removes an unfinished write whose writer is gone, which is the case if its lock is free. Without locks, its age decides.
fn remove_abandoned(root: &Root, directory: &OwnedFd, name: &OsStr, before_ns: i128) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(handle) = openat(directory, name, flags, Mode::empty()) else { return remove_old(root, directory, name, before_ns) };
    match flock(&handle, FlockOperation::NonBlockingLockExclusive) {
        // Hold the lock until the file is removed, so that a writer that has just created it notices the removal.
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
