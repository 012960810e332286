//! The seal: a directory handle beneath which everything is opened, and that nothing leads out of.
//!
//! On Linux the kernel keeps it ([`openat2`]): `..`, links that leave, magic links of `/proc` and, unless asked for,
//! mounts are refused while a path is resolved, so there is no moment between a check and a use. Where the kernel does not
//! offer the call, or a sandbox filters it, the path is walked one component at a time, each opened without following from the handle of
//! the one before; links are then read and spliced in here, with the same refusals. What a walk cannot tell is a mount of the same
//! filesystem. Links that stay within the root are followed in both ways; an
//! absolute link into it, which the kernel refuses too, is walked.
//!
//! This room speaks in the host's words; [`Root`](super::root::Root) says them in the crate's.

use super::FilesystemOptions;
use super::meta::Meta;
use super::openat2::{self, LOOK, PASS, Ways};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, fstat, openat, readlinkat, statat};
use rustix::io::{Errno, Result};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How many links one path may lead through, the kernel's own number.
const LINKS_MAX: usize = 40;

/// How often a path is resolved again when a rename elsewhere disturbed it.
const DISTURBED_MAX: usize = 64;

/// A directory held open, with the rules of its seal.
#[derive(Debug, Clone)]
pub(super) struct Seal {
    handle: Arc<OwnedFd>,
    device: u64,
    ways: Ways,
    by_kernel: bool,
    /// Whether the kernel can say that it would have to wait, instead of waiting.
    from_memory: bool,
    /// The host's paths of the root, as it was named and without links: what absolute links within it begin with.
    hosts: Arc<[PathBuf]>,
}

/// Where a path ends once every link in it is replaced by what it names.
#[derive(Debug)]
pub(super) struct Resolved {
    /// The directory that holds the last name; none for the root.
    parent: Option<OwnedFd>,
    /// The real names from the root down; empty for the root.
    names: Vec<OsString>,
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

impl Seal {
    /// Opens a directory and seals it.
    pub(super) fn open(host: &Path, options: &FilesystemOptions) -> Result<Self> {
        let handle = rustix::fs::open(host, PASS, Mode::empty())?;
        let device = Meta::from(fstat(&handle)?).id.device;
        let ways = Ways { mounts: options.cross_mounts, links: true };
        // A kernel without the call and a sandbox that filters it answer alike: not with a handle.
        let by_kernel = options.openat2 && openat2::open_beneath(&handle, ".", PASS, ways).is_ok();
        let from_memory = by_kernel && !ways.mounts && openat2::is_local(&handle);
        let mut hosts = vec![std::path::absolute(host).unwrap_or_else(|_| host.to_owned())];
        hosts.extend(std::fs::canonicalize(host).ok().filter(|real| *real != hosts[0]));
        Ok(Self { handle: Arc::new(handle), device, ways, by_kernel, from_memory, hosts: hosts.into() })
    }

    /// Returns the same seal, which follows no link: a path that leads through one is refused with [`Errno::LOOP`].
    pub(super) fn without_links(&self) -> Self {
        Self { ways: Ways { links: false, ..self.ways }, ..self.clone() }
    }

    /// Tells whether links that stay within the root are followed.
    pub(super) fn follows_links(&self) -> bool {
        self.ways.links
    }

    /// Opens a path. With [`OFlags::NOFOLLOW`] a link at its end is not followed.
    pub(super) fn open_at(&self, path: &str, flags: OFlags) -> Result<OwnedFd> {
        if self.by_kernel {
            for _ in 0..DISTURBED_MAX {
                match openat2::open_beneath(&self.handle, path, flags, self.ways) {
                    Err(Errno::INTR | Errno::AGAIN) => {}
                    // The kernel takes every absolute link for one that leaves the root; a walk tells those that come back to it.
                    Err(Errno::XDEV) => break,
                    other => return other,
                }
            }
        }
        let resolved = self.resolve(path, !flags.contains(OFlags::NOFOLLOW))?;
        self.open_checked(self.parent_of(&resolved), resolved.name(), flags)
    }

    /// Opens a path if all that is needed for it is in memory; none when the host would have to wait, or cannot tell.
    pub(super) fn open_in_memory(&self, path: &str, flags: OFlags) -> Option<Result<OwnedFd>> {
        if !self.from_memory {
            return None;
        }
        match openat2::open_in_memory(&self.handle, path, flags, self.ways) {
            Err(Errno::AGAIN | Errno::XDEV) => None,
            other => Some(other),
        }
    }

    /// Opens what stands at one name in an open directory, following no link.
    pub(super) fn open_name(&self, directory: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> Result<OwnedFd> {
        if self.by_kernel {
            match openat2::open_name(directory, name, flags, self.ways) {
                Err(Errno::INTR | Errno::AGAIN) => {}
                other => return other,
            }
        }
        self.open_checked(directory, name, flags)
    }

    /// Looks at a path without opening what stands there.
    pub(super) fn look(&self, path: &str, follow: bool) -> Result<Meta> {
        if self.by_kernel {
            let flags = if follow { LOOK } else { LOOK | OFlags::NOFOLLOW };
            return fstat(self.open_at(path, flags)?).map(Meta::from);
        }
        let resolved = self.resolve(path, follow)?;
        let meta = Meta::from(statat(self.parent_of(&resolved), resolved.name(), AtFlags::SYMLINK_NOFOLLOW)?);
        if self.is_within(&meta) { Ok(meta) } else { Err(Errno::XDEV) }
    }

    /// Walks a path one component at a time, each opened without following from the one before, and splices in what links name.
    ///
    /// Every link met starts the walk again with its text in place of its name. A `..` of such a text is met when all before it is
    /// known to be directories and no links, so it takes away exactly the name before it.
    pub(super) fn resolve(&self, path: &str, follow_last: bool) -> Result<Resolved> {
        let mut names: Vec<OsString> = path.split('/').filter(|name| !matches!(*name, "" | ".")).map(OsString::from).collect();
        let (mut links, mut disturbed) = (0, 0);
        loop {
            match self.walk(&names, follow_last)? {
                Walked::Whole(parent) => return Ok(Resolved { parent, names }),
                Walked::Disturbed if disturbed == DISTURBED_MAX => return Err(Errno::AGAIN),
                Walked::Disturbed => disturbed += 1,
                Walked::Parent(0) => return Err(Errno::XDEV),
                Walked::Parent(index) => drop(names.drain(index - 1..=index)),
                Walked::Link { .. } if !self.ways.links || links == LINKS_MAX => return Err(Errno::LOOP),
                Walked::Link { index, target } => {
                    links += 1;
                    match self.beneath_root(&target)? {
                        Some(beneath) => drop(names.splice(..=index, link_names(beneath))),
                        None => drop(names.splice(index..=index, link_names(target.as_bytes()))),
                    }
                }
            }
        }
    }

    /// Returns the directory that holds what a path was resolved to.
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
        if self.ways.mounts || self.is_within(&Meta::from(fstat(&handle)?)) { Ok(handle) } else { Err(Errno::XDEV) }
    }

    /// Returns the part beneath our root of a link that starts at the host's root; none of a relative link.
    ///
    /// What it names is opened beneath the root's handle like anything else, so no link leaves a root that was moved on the host, or whose
    /// name now means another directory.
    ///
    /// # Errors
    /// [`Errno::XDEV`] for one that leads elsewhere.
    fn beneath_root<'t>(&self, target: &'t OsStr) -> Result<Option<&'t [u8]>> {
        let target = Path::new(target);
        if !target.is_absolute() {
            return Ok(None);
        }
        let beneath = self.hosts.iter().find_map(|host| target.strip_prefix(host).ok());
        beneath.map(|beneath| Some(beneath.as_os_str().as_bytes())).ok_or(Errno::XDEV)
    }

    fn is_within(&self, meta: &Meta) -> bool {
        self.ways.mounts || meta.id.device == self.device
    }
}

impl Resolved {
    /// Returns the last name; of the root, `.`.
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

/// Cuts the text of a link into names.
fn link_names(target: &[u8]) -> Vec<OsString> {
    let names = target.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    names.map(|name| OsStr::from_bytes(name).to_owned()).collect()
}
