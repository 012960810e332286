//! What only Linux offers: resolving a path beneath a handle in one call, see [openat2(2)].
//!
//! Elsewhere each of these says that the call does not exist, and paths are resolved one component at a time.
//!
//! [openat2(2)]: https://man7.org/linux/man-pages/man2/openat2.2.html

pub(super) use host::*;

/// What a path may lead through on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ways {
    /// Filesystems that are mounted within the root.
    pub(super) mounts: bool,
    /// Links that stay within the root.
    pub(super) links: bool,
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod host {
    use super::Ways;
    use rustix::fd::{AsFd, OwnedFd};
    use rustix::fs::{Mode, OFlags, ResolveFlags, fstatfs, openat2};
    use rustix::io::{Errno, Result};
    use std::ffi::OsStr;

    /// Opens a directory only to go on from it.
    pub(in super::super) const PASS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

    /// Opens a path only to look at it.
    pub(in super::super) const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

    /// What `fstatfs` calls btrfs, ext4, f2fs, overlay, tmpfs, XFS and ZFS.
    const LOCAL_FILESYSTEMS: [u32; 7] = [0x9123_683E, 0xEF53, 0xF2F5_2010, 0x794C_7630, 0x0102_1994, 0x5846_5342, 0x2FC1_2FC1];

    /// Opens a path beneath a directory, through links that stay within it, or through none.
    pub(in super::super) fn open_beneath(directory: impl AsFd, path: &str, flags: OFlags, ways: Ways) -> Result<OwnedFd> {
        openat2(directory, path, flags, Mode::empty(), seal(ways))
    }

    /// Opens a path like [`open_beneath`] if all that is needed for it is in memory.
    ///
    /// # Errors
    /// [`Errno::AGAIN`] when the host would have to wait for a device, and where it cannot tell.
    pub(in super::super) fn open_in_memory(directory: impl AsFd, path: &str, flags: OFlags, ways: Ways) -> Result<OwnedFd> {
        match openat2(directory, path, flags, Mode::empty(), seal(ways) | ResolveFlags::CACHED) {
            // Kernels before 5.12 do not know the flag.
            Err(Errno::INVAL | Errno::INTR) => Err(Errno::AGAIN),
            other => other,
        }
    }

    /// Opens what stands at one name in a directory, following no link.
    pub(in super::super) fn open_name(directory: impl AsFd, name: &OsStr, flags: OFlags, ways: Ways) -> Result<OwnedFd> {
        openat2(directory, name, flags | OFlags::NOFOLLOW, Mode::empty(), seal(ways) | ResolveFlags::NO_SYMLINKS)
    }

    /// Tells whether a directory lies on a filesystem that keeps what it knows in memory, and asks no server about it.
    pub(in super::super) fn is_local(directory: impl AsFd) -> bool {
        fstatfs(directory).is_ok_and(|about| LOCAL_FILESYSTEMS.contains(&(about.f_type as u32)))
    }

    fn seal(ways: Ways) -> ResolveFlags {
        let mut seal = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        seal.set(ResolveFlags::NO_XDEV, !ways.mounts);
        seal.set(ResolveFlags::NO_SYMLINKS, !ways.links);
        seal
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod host {
    use super::Ways;
    use rustix::fd::{AsFd, OwnedFd};
    use rustix::fs::OFlags;
    use rustix::io::{Errno, Result};
    use std::ffi::OsStr;

    /// Opens a directory only to go on from it.
    pub(in super::super) const PASS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

    /// Opens a path only to look at it.
    pub(in super::super) const LOOK: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC);

    pub(in super::super) fn open_beneath(_: impl AsFd, _: &str, _: OFlags, _: Ways) -> Result<OwnedFd> {
        Err(Errno::NOSYS)
    }

    pub(in super::super) fn open_in_memory(_: impl AsFd, _: &str, _: OFlags, _: Ways) -> Result<OwnedFd> {
        Err(Errno::AGAIN)
    }

    pub(in super::super) fn open_name(_: impl AsFd, _: &OsStr, _: OFlags, _: Ways) -> Result<OwnedFd> {
        Err(Errno::NOSYS)
    }

    pub(in super::super) fn is_local(_: impl AsFd) -> bool {
        false
    }
}
