//! Unfinished writes: a new file or tree under a private name, which takes its place by one rename.

use super::directory::unfinished_name;
use super::meta::{Meta, PERMISSIONS};
use super::{SyncMode, time};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    Access, AtFlags, FlockOperation, Gid, Mode, OFlags, Timespec, Timestamps, Uid, accessat, fchmod, fchown, flock, fstat, fsync, futimens,
    linkat, openat, renameat, unlinkat,
};
use rustix::io::{Errno, Result, write};
use std::ffi::OsStr;

/// A file being written beside the name it will take; removed when dropped before that.
///
/// Its writer holds a `flock` on it as long as it lives, so that what a killed process left can be told from what is under way.
#[derive(Debug)]
pub(super) struct Temp<'a> {
    directory: &'a OwnedFd,
    name: String,
    file: OwnedFd,
    published: bool,
}

impl<'a> Temp<'a> {
    /// Starts a file in a directory. `mode` is that of a new file and is cut by the process's umask; one that will replace another is
    /// for nobody else to read until it has the mode of that.
    pub(super) fn create(directory: &'a OwnedFd, mode: Mode, replaces: bool) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = if replaces { Mode::RUSR | Mode::WUSR } else { mode & PERMISSIONS };
        loop {
            let name = unfinished_name();
            let file = openat(directory, &name, flags, mode)?;
            // A sweep that came between the two calls took it for a leftover.
            if hold(&file)? {
                return Ok(Self { directory, name, file, published: false });
            }
        }
    }

    /// Returns the handle.
    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Adds content.
    pub(super) fn write(&self, content: &[u8]) -> Result<()> {
        write_all(&self.file, content)
    }

    /// Makes the file ready to take the place of `old`: its owner and mode, and a modification time after its own. Then flushes it to
    /// the device, where the mode asks for it.
    ///
    /// # Errors
    /// [`Errno::ACCESS`] when the process may not write to `old`: a rename would replace it all the same.
    pub(super) fn finish(&self, name: &OsStr, old: Option<&Meta>, sync: SyncMode) -> Result<()> {
        if let Some(old) = old {
            check_writable(self.directory, name)?;
            let new = Meta::from(fstat(&self.file)?);
            if (new.user, new.group) != (old.user, old.group) {
                take_owner(&self.file, old);
            }
            // New content does not inherit what set-user-id granted the old, as a write in place would not let it either.
            let mode = old.mode & PERMISSIONS;
            if new.mode != mode {
                fchmod(&self.file, mode)?;
            }
        }
        stamp(&self.file, old.map(|old| old.modified_ns))?;
        if sync == SyncMode::None { Ok(()) } else { flush(&self.file) }
    }

    /// Takes the place of whatever stands at the name, or of nothing.
    pub(super) fn replace(mut self, name: &OsStr) -> Result<Self> {
        renameat(self.directory, &self.name, self.directory, name)?;
        self.published = true;
        Ok(self)
    }

    /// Takes a name where nothing stands.
    ///
    /// # Errors
    /// [`Errno::EXIST`] when something is there.
    pub(super) fn place(mut self, name: &OsStr) -> Result<Self> {
        self.published = move_new(self.directory, OsStr::new(&self.name), self.directory, name)?;
        Ok(self)
    }

    /// Returns what the file is now: of one that took its name, what stands there unless somebody changed it since.
    pub(super) fn meta(&self) -> Result<Meta> {
        fstat(&self.file).map(Meta::from)
    }
}

impl Drop for Temp<'_> {
    fn drop(&mut self) {
        if !self.published {
            // What cannot be removed now is removed by a sweep.
            let _ = unlinkat(self.directory, &self.name, AtFlags::empty());
        }
    }
}

/// Marks an unfinished write as under way, until the handle closes; tells false when a sweep removes it or has. Where the
/// filesystem has no such locks its age decides later.
pub(super) fn hold(unfinished: &OwnedFd) -> Result<bool> {
    match flock(unfinished, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(false),
        Ok(()) => Ok(fstat(unfinished)?.st_nlink > 0),
        Err(_) => Ok(true),
    }
}

/// Writes all of a content at the handle's position.
pub(super) fn write_all(file: impl AsFd, mut content: &[u8]) -> Result<()> {
    while !content.is_empty() {
        match write(&file, content) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => content = &content[count..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Flushes a file or directory to its device.
pub(super) fn flush(handle: &OwnedFd) -> Result<()> {
    // There `fsync` leaves it in the device's own cache. What does not offer the call, such as a network filesystem, is flushed as usual.
    #[cfg(target_vendor = "apple")]
    if rustix::fs::fcntl_fullfsync(handle).is_ok() {
        return Ok(());
    }
    fsync(handle)
}

/// Gives a file a modification time that no write of this process had before, and that is after `old_ns`.
pub(super) fn stamp(file: impl AsFd, old_ns: Option<i128>) -> Result<()> {
    let nanoseconds = time::next_ns(old_ns);
    let time = Timespec { tv_sec: nanoseconds.div_euclid(1_000_000_000) as _, tv_nsec: nanoseconds.rem_euclid(1_000_000_000) as _ };
    futimens(file, &Timestamps { last_access: time, last_modification: time })
}

/// Refuses a file that the process may not write to, whatever its directory allows.
pub(super) fn check_writable(directory: impl AsFd, name: &OsStr) -> Result<()> {
    match accessat(directory, name, Access::WRITE_OK, AtFlags::EACCESS | AtFlags::SYMLINK_NOFOLLOW) {
        // Where the call is not offered the rename decides.
        Err(Errno::NOSYS | Errno::NOENT | Errno::INVAL) | Ok(()) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Renames to a name where nothing stands; tells whether the old name is gone, as it is unless it could not be removed.
///
/// # Errors
/// [`Errno::EXIST`] when something is there.
pub(super) fn move_new(from: impl AsFd, name: &OsStr, to: impl AsFd, new: &OsStr) -> Result<bool> {
    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    match rustix::fs::renameat_with(&from, name, &to, new, rustix::fs::RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
        other => return other.map(|()| true),
    }
    // The filesystem has no such rename. A second name fails likewise when one is there; directories have none, and of
    // them a rename replaces at worst an empty one.
    match linkat(&from, name, &to, new, AtFlags::empty()) {
        Ok(()) => Ok(unlinkat(&from, name, AtFlags::empty()).is_ok()),
        Err(Errno::EXIST) => Err(Errno::EXIST),
        Err(_) => renameat(&from, name, &to, new).map(|()| true),
    }
}

/// Gives a file the owner of another, as far as the process may.
fn take_owner(file: &OwnedFd, old: &Meta) {
    let group = Some(Gid::from_raw(old.group));
    if fchown(file, Some(Uid::from_raw(old.user)), group).is_err() {
        // A process that is not privileged can still keep a group it belongs to.
        let _ = fchown(file, None, group);
    }
}
