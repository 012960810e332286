//! The seal: a directory handle beneath which everything is opened, and that nothing leads out of.
//!
//! On Linux the kernel enforces it ([`openat2`]). It refuses `..`, links that leave the root, magic links of `/proc` and, unless
//! allowed, mounts while it resolves a path, so there is no gap between check and use. If the kernel lacks the call or a sandbox
//! filters it, the path is walked one component at a time. Each component is opened without following links from the handle of
//! the one before; links are read and spliced in here, and the same things are refused. The walk cannot detect a mount of the
//! same filesystem. Both ways follow links that stay within the root. The kernel refuses absolute links into the root too, so
//! these are always walked.
//!
//! This module returns raw error numbers; [`Root`](super::root::Root) converts them.

use super::FilesystemOptions;
use super::meta::Meta;
use super::openat2::{self, Crossings, LOOK, PASS};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, fstat, openat, readlinkat, statat};
use rustix::io::{Errno, Result};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most links in one path, the same as the kernel's limit.
const LINKS_MAX: usize = 40;

/// How often resolution is retried when a concurrent rename disturbs it.
const DISTURBED_MAX: usize = 64;

/// An open directory and the rules of its seal.
#[derive(Debug, Clone)]
pub(super) struct Seal {
    handle: Arc<OwnedFd>,
    device: u64,
    crossings: Crossings,
    by_kernel: bool,
    /// Whether the kernel can report that it would have to wait instead of waiting.
    from_memory: bool,
    /// The host paths of the root, as given and with links resolved. Absolute links into the root start with one of them.
    hosts: Arc<[PathBuf]>,
}

/// Where a path ends after all links in it are replaced by their targets.
#[derive(Debug)]
pub(super) struct Resolved {
    /// The directory that holds the last name; `None` for the root.
    parent: Option<OwnedFd>,
    /// The real names from the root down; empty for the root.
    names: Vec<OsString>,
}

/// Where a walk by components stopped.
enum Walked {
    /// At the last name, in this directory (`None` for the root).
    Whole(Option<OwnedFd>),
    /// At a name that changed between inspecting and opening it.
    Disturbed,
    /// At a `..` that came from a link.
    Parent(usize),
    /// At a link.
    Link { index: usize, target: OsString },
}

impl Seal {
    /// Opens a directory and seals it.
    pub(super) fn open(host: &Path, options: &FilesystemOptions) -> Result<Self> {
        Self::of(rustix::fs::open(host, PASS, Mode::empty())?, host, options)
    }

    /// Seals an open directory, which was opened at this path.
    pub(super) fn of(handle: OwnedFd, host: &Path, options: &FilesystemOptions) -> Result<Self> {
        let device = Meta::from(fstat(&handle)?).id.device;
        let crossings = Crossings { mounts: options.cross_mounts, links: true };
        // A kernel without the call and a sandbox that filters it both fail here.
        let by_kernel = options.openat2 && openat2::open_beneath(&handle, ".", PASS, crossings).is_ok();
        let from_memory = by_kernel && openat2::is_local(&handle);
        let mut hosts = vec![std::path::absolute(host).unwrap_or_else(|_| host.to_owned())];
        hosts.extend(std::fs::canonicalize(host).ok().filter(|real| *real != hosts[0]));
        Ok(Self { handle: Arc::new(handle), device, crossings, by_kernel, from_memory, hosts: hosts.into() })
    }

    /// Returns the same seal, but refusing paths that lead through a link, with [`Errno::LOOP`].
    pub(super) fn without_links(&self) -> Self {
        Self { crossings: Crossings { links: false, ..self.crossings }, ..self.clone() }
    }

    /// Returns whether links that stay within the root are followed.
    pub(super) fn follows_links(&self) -> bool {
        self.crossings.links
    }

    /// Opens a path. With [`OFlags::NOFOLLOW`], a link at its end is not followed.
    pub(super) fn open_at(&self, path: &str, flags: OFlags) -> Result<OwnedFd> {
        if self.by_kernel {
            for _ in 0..DISTURBED_MAX {
                match openat2::open_beneath(&self.handle, path, flags, self.crossings) {
                    Err(Errno::INTR | Errno::AGAIN) => {}
                    // The kernel reports every absolute link as leaving the root. A walk finds those that lead back into it.
                    Err(Errno::XDEV) => break,
                    other => return other,
                }
            }
        }
        let resolved = self.resolve(path, !flags.contains(OFlags::NOFOLLOW))?;
        self.open_checked(self.parent_of(&resolved), resolved.name(), flags)
    }

    /// Opens a path if the kernel has everything cached. Returns `None` if the host would have to wait, or cannot tell.
    pub(super) fn open_in_memory(&self, path: &str, flags: OFlags) -> Option<Result<OwnedFd>> {
        if !self.from_memory {
            return None;
        }
        // A filesystem mounted within the root may be remote, and make whoever looks at it wait.
        let crossings = Crossings { mounts: false, ..self.crossings };
        match openat2::open_in_memory(&self.handle, path, flags, crossings) {
            Err(Errno::AGAIN | Errno::XDEV) => None,
            other => Some(other),
        }
    }

    /// Opens one name in an open directory without following links.
    pub(super) fn open_name(&self, directory: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> Result<OwnedFd> {
        if self.by_kernel {
            match openat2::open_name(directory, name, flags, self.crossings) {
                Err(Errno::INTR | Errno::AGAIN) => {}
                other => return other,
            }
        }
        self.open_checked(directory, name, flags)
    }

    /// Inspects a path without opening the node.
    pub(super) fn look(&self, path: &str, follow: bool) -> Result<Meta> {
        if self.by_kernel {
            let flags = if follow { LOOK } else { LOOK | OFlags::NOFOLLOW };
            return fstat(self.open_at(path, flags)?).map(Meta::from);
        }
        let resolved = self.resolve(path, follow)?;
        let meta = Meta::from(statat(self.parent_of(&resolved), resolved.name(), AtFlags::SYMLINK_NOFOLLOW)?);
        if self.is_within(&meta) { Ok(meta) } else { Err(Errno::XDEV) }
    }

    /// Walks a path one component at a time, opening each from the one before without following links, and splices in the targets
    /// of links.
    ///
    /// Every link restarts the walk with its target in place of its name. When the walk reaches a `..` from a link, everything
    /// before it is known to be a directory and not a link, so the `..` cancels exactly the name before it.
    pub(super) fn resolve(&self, path: &str, follow_last: bool) -> Result<Resolved> {
        self.resolve_names(names(path), follow_last, if self.crossings.links { 0 } else { usize::MAX })
    }

    /// Resolves the link at a path. A seal that refuses links refuses them on the way to the path, and follows this one and those of its
    /// target.
    pub(super) fn resolve_link(&self, path: &str) -> Result<Resolved> {
        let names = names(path);
        let direct = if self.crossings.links { 0 } else { names.len().saturating_sub(1) };
        self.resolve_names(names, true, direct)
    }

    /// Resolves names of which the first `direct` may not be links.
    fn resolve_names(&self, mut names: Vec<OsString>, follow_last: bool, mut direct: usize) -> Result<Resolved> {
        let (mut links, mut disturbed) = (0, 0);
        loop {
            match self.walk(&names, follow_last)? {
                Walked::Whole(parent) => return Ok(Resolved { parent, names }),
                Walked::Disturbed if disturbed == DISTURBED_MAX => return Err(Errno::AGAIN),
                Walked::Disturbed => disturbed += 1,
                Walked::Parent(0) => return Err(Errno::XDEV),
                Walked::Parent(index) => {
                    direct = direct.min(index - 1);
                    drop(names.drain(index - 1..=index));
                }
                Walked::Link { index, .. } if index < direct || links == LINKS_MAX => return Err(Errno::LOOP),
                Walked::Link { index, target } => {
                    links += 1;
                    match self.beneath_root(&target)? {
                        Some(beneath) => {
                            direct = 0;
                            drop(names.splice(..=index, link_names(beneath)));
                        }
                        None => drop(names.splice(index..=index, link_names(target.as_bytes()))),
                    }
                }
            }
        }
    }

    /// Returns the directory that holds the node a path resolved to.
    pub(super) fn parent_of<'a>(&'a self, resolved: &'a Resolved) -> BorrowedFd<'a> {
        resolved.parent.as_ref().map_or(self.handle.as_fd(), AsFd::as_fd)
    }

    fn walk(&self, names: &[OsString], follow_last: bool) -> Result<Walked> {
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
            current = match self.open_checked(directory, name, PASS) {
                Ok(child) => Some(child),
                Err(Errno::NOTDIR | Errno::LOOP) => return Ok(Walked::Disturbed),
                Err(errno) => return Err(errno),
            };
        }
        Ok(Walked::Whole(current))
    }

    fn open_checked(&self, directory: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> Result<OwnedFd> {
        let handle = openat(directory, name, flags | OFlags::NOFOLLOW, Mode::empty())?;
        if self.crossings.mounts || self.is_within(&Meta::from(fstat(&handle)?)) { Ok(handle) } else { Err(Errno::XDEV) }
    }

    /// Returns the part of an absolute link target beneath the root, or `None` for a relative link.
    ///
    /// The result is opened beneath the root handle like any other path, so no link leaves the root, even if the root was moved
    /// on the host or its name now refers to another directory.
    ///
    /// # Errors
    /// [`Errno::XDEV`] for a link that leads elsewhere.
    fn beneath_root<'t>(&self, target: &'t OsStr) -> Result<Option<&'t [u8]>> {
        let target = Path::new(target);
        if !target.is_absolute() {
            return Ok(None);
        }
        let beneath = self.hosts.iter().find_map(|host| target.strip_prefix(host).ok());
        beneath.map(|beneath| Some(beneath.as_os_str().as_bytes())).ok_or(Errno::XDEV)
    }

    fn is_within(&self, meta: &Meta) -> bool {
        self.crossings.mounts || meta.id.device == self.device
    }
}

impl Resolved {
    /// Returns the last name, or `.` for the root.
    pub(super) fn name(&self) -> &OsStr {
        self.names.last().map_or(OsStr::new("."), OsString::as_os_str)
    }

    pub(super) fn is_root(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns the real names from the root down.
    pub(super) fn names(&self) -> &[OsString] {
        &self.names
    }
}

/// Splits a path into names.
fn names(path: &str) -> Vec<OsString> {
    path.split('/').filter(|name| !matches!(*name, "" | ".")).map(OsString::from).collect()
}

/// Splits the target of a link into names.
fn link_names(target: &[u8]) -> Vec<OsString> {
    let names = target.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    names.map(|name| OsStr::from_bytes(name).to_owned()).collect()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::backend::FilesystemOptions;

    /// A root that may contain mounts answers from memory too, but not for what a mount shows.
    #[test]
    fn cached_files_are_opened_without_waiting_except_on_other_mounts() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("a"), "a").expect("written");
        let open = |root: &Path, path: &str| {
            let seal = Seal::open(root, &FilesystemOptions::new().with_cross_mounts(true)).expect("opened");
            std::fs::metadata(root.join(path)).expect("cached");
            seal.from_memory.then(|| seal.open_in_memory(path, LOOK).map(|opened| opened.is_ok()))
        };
        // Whether anything is answered from memory depends on the kernel and the host's filesystem.
        if let Some(opened) = open(directory.path(), "a") {
            assert_eq!(opened, Some(true));
            assert_eq!(open(directory.path(), "."), Some(Some(true)));
        }
        if let Some(opened) = open(Path::new("/"), "proc/self/status") {
            assert_eq!(opened, None);
        }
    }
}
