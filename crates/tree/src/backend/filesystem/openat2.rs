//! Resolution of a path beneath a handle in one system call, which only Linux offers: see [openat2(2)].
//!
//! On other hosts each function fails as unsupported, and paths are resolved one component at a time.
//!
//! [openat2(2)]: https://man7.org/linux/man-pages/man2/openat2.2.html

pub(super) use host::*;

/// What a path may pass through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Crossings {
    /// Filesystems mounted within the root.
    pub(super) mounts: bool,
    /// Links that stay within the root.
    pub(super) links: bool,
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod host {
    use super::Crossings;
    use rustix::fd::{AsFd, OwnedFd};
    use rustix::fs::{Mode, OFlags, ResolveFlags, fstatfs, openat2};
    use rustix::io::{Errno, Result};
    use std::ffi::OsStr;

    /// Opens a directory only to resolve names in it.
    pub(in super::super) const PASS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

    /// Opens a node only to inspect it.
    pub(in super::super) const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

    /// The `fstatfs` types of btrfs, ext4, f2fs, overlay, tmpfs, XFS and ZFS.
    const LOCAL_FILESYSTEMS: [u32; 7] = [0x9123_683E, 0xEF53, 0xF2F5_2010, 0x794C_7630, 0x0102_1994, 0x5846_5342, 0x2FC1_2FC1];

    /// Opens a path beneath a directory, within the limits of `crossings`.
    pub(in super::super) fn open_beneath(directory: impl AsFd, path: &str, flags: OFlags, crossings: Crossings) -> Result<OwnedFd> {
        openat2(directory, path, flags, Mode::empty(), seal(crossings))
    }

    /// Opens a path like [`open_beneath`], but only if the kernel has everything cached.
    ///
    /// # Errors
    /// [`Errno::AGAIN`] if the host would have to wait for a device, or cannot tell.
    pub(in super::super) fn open_in_memory(directory: impl AsFd, path: &str, flags: OFlags, crossings: Crossings) -> Result<OwnedFd> {
        match openat2(directory, path, flags, Mode::empty(), seal(crossings) | ResolveFlags::CACHED) {
            // Kernels before 5.12 do not know the flag.
            Err(Errno::INVAL | Errno::INTR) => Err(Errno::AGAIN),
            other => other,
        }
    }

    /// Opens one name in a directory without following links.
    pub(in super::super) fn open_name(directory: impl AsFd, name: &OsStr, flags: OFlags, crossings: Crossings) -> Result<OwnedFd> {
        openat2(directory, name, flags | OFlags::NOFOLLOW, Mode::empty(), seal(crossings) | ResolveFlags::NO_SYMLINKS)
    }

    /// Returns whether a directory is on a local filesystem, whose cached metadata is authoritative.
    pub(in super::super) fn is_local(directory: impl AsFd) -> bool {
        fstatfs(directory).is_ok_and(|about| LOCAL_FILESYSTEMS.contains(&(about.f_type as u32)))
    }

    fn seal(crossings: Crossings) -> ResolveFlags {
        let mut seal = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        seal.set(ResolveFlags::NO_XDEV, !crossings.mounts);
        seal.set(ResolveFlags::NO_SYMLINKS, !crossings.links);
        seal
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod host {
    use super::Crossings;
    use rustix::fd::{AsFd, OwnedFd};
    use rustix::fs::OFlags;
    use rustix::io::{Errno, Result};
    use std::ffi::OsStr;

    /// Opens a directory only to resolve names in it.
    pub(in super::super) const PASS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

    /// Opens a node only to inspect it.
    pub(in super::super) const LOOK: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC);

    pub(in super::super) fn open_beneath(_: impl AsFd, _: &str, _: OFlags, _: Crossings) -> Result<OwnedFd> {
        Err(Errno::NOSYS)
    }

    pub(in super::super) fn open_in_memory(_: impl AsFd, _: &str, _: OFlags, _: Crossings) -> Result<OwnedFd> {
        Err(Errno::AGAIN)
    }

    pub(in super::super) fn open_name(_: impl AsFd, _: &OsStr, _: OFlags, _: Crossings) -> Result<OwnedFd> {
        Err(Errno::NOSYS)
    }

    pub(in super::super) fn is_local(_: impl AsFd) -> bool {
        false
    }
}
