//! Unfinished writes: a new file or tree under a private name, which takes its final name by one rename.

use super::directory::unfinished_name;
use super::meta::{Meta, PERMISSIONS};
use super::{SyncMode, time};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    Access, AtFlags, FlockOperation, Gid, Mode, OFlags, Timespec, Timestamps, Uid, accessat, fchmod, fchown, flock, fstat, fsync, futimens,
    linkat, openat, renameat, statat, unlinkat,
};
use rustix::io::{Errno, Result, write};
use std::ffi::OsStr;

/// A file written next to its final name. Removed when dropped before it takes that name.
///
/// Its writer holds a `flock` on it, which distinguishes writes in progress from leftovers of killed processes.
#[derive(Debug)]
pub(super) struct Temp<'a> {
    directory: &'a OwnedFd,
    name: String,
    file: OwnedFd,
    published: bool,
}

impl<'a> Temp<'a> {
    /// Creates a file in a directory. `mode` is the mode of a new file, before the umask. A file that will replace another stays
    /// private to the user until it takes over the mode of the other.
    pub(super) fn create(directory: &'a OwnedFd, mode: Mode, replaces: bool) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = if replaces { Mode::RUSR | Mode::WUSR } else { mode & PERMISSIONS };
        loop {
            let name = unfinished_name();
            let file = openat(directory, &name, flags, mode)?;
            // Retry if a sweep mistook the file for a leftover between the two calls.
            if hold(&file)? {
                return Ok(Self { directory, name, file, published: false });
            }
        }
    }

    /// Returns the handle.
    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Appends content.
    pub(super) fn write(&self, content: &[u8]) -> Result<()> {
        write_all(&self.file, content)
    }

    /// Prepares the file to replace `old`: takes over its owner and mode, and sets a later modification time. Then flushes it to
    /// the device if `sync` requires it.
    ///
    /// # Errors
    /// [`Errno::ACCESS`] if the process may not write to `old`. The rename alone would replace it anyway.
    pub(super) fn finish(&self, name: &OsStr, old: Option<&Meta>, sync: SyncMode) -> Result<()> {
        if let Some(old) = old {
            check_writable(self.directory, name)?;
            let new = Meta::from(fstat(&self.file)?);
            if (new.user, new.group) != (old.user, old.group) {
                take_owner(&self.file, old);
            }
            // Drop set-user-id bits, as a write in place would.
            let mode = old.mode & PERMISSIONS;
            if new.mode != mode {
                fchmod(&self.file, mode)?;
            }
        }
        stamp(&self.file, old.map(|old| old.modified_ns))?;
        if sync == SyncMode::None { Ok(()) } else { flush(&self.file) }
    }

    /// Takes a name, replacing what is there.
    pub(super) fn replace(mut self, name: &OsStr) -> Result<Self> {
        renameat(self.directory, &self.name, self.directory, name)?;
        self.published = true;
        Ok(self)
    }

    /// Takes a name that must be free.
    ///
    /// # Errors
    /// [`Errno::EXIST`] if the name is taken.
    pub(super) fn place(mut self, name: &OsStr) -> Result<Self> {
        self.published = move_new(self.directory, OsStr::new(&self.name), self.directory, name)?;
        Ok(self)
    }

    /// Takes a name by exchanging it with the node that has it, which is then under the private name and removed with the drop. Returns that
    /// node, or `None` where the host cannot exchange names and the node is gone.
    pub(super) fn exchange(&self, name: &OsStr) -> Result<Option<Meta>> {
        #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
        match rustix::fs::renameat_with(self.directory, &self.name, self.directory, name, rustix::fs::RenameFlags::EXCHANGE) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno),
            Ok(()) => return statat(self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| Some(Meta::from(stat))),
        }
        renameat(self.directory, &self.name, self.directory, name).map(|()| None)
    }

    /// Takes a name that must be free, like [`Temp::place`].
    pub(super) fn place_new(&self, name: &OsStr) -> Result<()> {
        move_new(self.directory, OsStr::new(&self.name), self.directory, name).map(drop)
    }

    /// Undoes [`Temp::exchange`] and [`Temp::place_new`]: the node has its name back.
    pub(super) fn take_back(&self, name: &OsStr) -> Result<()> {
        let is_exchanged = Meta::from(statat(self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW)?).id != self.meta()?.id;
        if is_exchanged { self.exchange(name).map(drop) } else { Ok(()) }
    }

    /// Returns the current metadata of the file. After it took its name, this is what the name refers to unless somebody changed
    /// it since.
    pub(super) fn meta(&self) -> Result<Meta> {
        fstat(&self.file).map(Meta::from)
    }
}

impl Drop for Temp<'_> {
    fn drop(&mut self) {
        if !self.published {
            // If this fails, a sweep removes the file later.
            let _ = unlinkat(self.directory, &self.name, AtFlags::empty());
        }
    }
}

/// Marks an unfinished write as in progress until the handle closes. Returns false if a sweep is removing it or has removed it.
/// On filesystems without such locks, sweeps go by age.
pub(super) fn hold(unfinished: &OwnedFd) -> Result<bool> {
    match flock(unfinished, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(false),
        Ok(()) => Ok(fstat(unfinished)?.st_nlink > 0),
        Err(_) => Ok(true),
    }
}

/// Writes all of `content` at the current position.
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
    // On Apple systems, `fsync` leaves data in the cache of the device. It is only the fallback for filesystems without
    // `F_FULLFSYNC`, such as network filesystems.
    #[cfg(target_vendor = "apple")]
    if rustix::fs::fcntl_fullfsync(handle).is_ok() {
        return Ok(());
    }
    fsync(handle)
}

/// Sets a modification time that is unique in this process and later than `old_ns`.
pub(super) fn stamp(file: impl AsFd, old_ns: Option<i128>) -> Result<()> {
    let nanoseconds = time::next_ns(old_ns);
    let time = Timespec { tv_sec: nanoseconds.div_euclid(1_000_000_000) as _, tv_nsec: nanoseconds.rem_euclid(1_000_000_000) as _ };
    futimens(file, &Timestamps { last_access: time, last_modification: time })
}

/// Fails if the process may not write to a file, whatever its directory allows.
pub(super) fn check_writable(directory: impl AsFd, name: &OsStr) -> Result<()> {
    match accessat(directory, name, Access::WRITE_OK, AtFlags::EACCESS | AtFlags::SYMLINK_NOFOLLOW) {
        // If the host lacks the call, leave the decision to the rename.
        Err(Errno::NOSYS | Errno::NOENT | Errno::INVAL) | Ok(()) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Renames to a name that must be free. Returns whether the old name is gone: it may remain if the filesystem has no such rename.
///
/// # Errors
/// [`Errno::EXIST`] if the name is taken.
pub(super) fn move_new(from: impl AsFd, name: &OsStr, to: impl AsFd, new: &OsStr) -> Result<bool> {
    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    match rustix::fs::renameat_with(&from, name, &to, new, rustix::fs::RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
        other => return other.map(|()| true),
    }
    // The filesystem has no such rename. A hard link fails likewise if the name is taken. Directories cannot be hard-linked; a
    // plain rename of one replaces at worst an empty directory.
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
        // An unprivileged process can still set a group it belongs to.
        let _ = fchown(file, None, group);
    }
}
