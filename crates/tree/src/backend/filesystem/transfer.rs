//! Renames and copies.

use super::Cancel;
use super::change::{DIRECTORY_MODE, Filling, STARTS_MAX, Writer};
use super::content::copy_all;
use super::directory::{each_name, reopen, unfinished_name};
use super::errno::outside;
use super::ground::kept_being_replaced;
use super::meta::Meta;
use super::root::{OpenFile, OpenedName, Root, check_readable};
use super::temp::{Temp, check_writable, hold, move_new};
use super::tree::{self, CopyFault};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, SeekFrom, mkdirat, renameat, seek, statat, unlinkat};
use rustix::io::{Errno, Result as Host};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Changed, OpKind};
use treehold_core::path::VfsPath;

impl Writer<'_> {
    /// Renames the node at a path. A link is renamed itself, not its target.
    pub(super) fn rename(&self, from: &VfsPath, to: &VfsPath, overwrite: bool) -> Result<Changed> {
        check_no_root(from, to, "moved")?;
        let source = self.root.stat(from)?;
        if from == to {
            let changed = Changed::new(OpKind::Rename, to).with_entries(0);
            return Ok(if source.is_file() { changed.with_file(source.version(to), source.size_bytes) } else { changed });
        }
        if source.is_directory() {
            check_not_beneath(from, to, "moved")?;
        }
        self.with_parents(to, || Ok(()), || self.rename_under_lock(from, to, overwrite))
    }

    fn rename_under_lock(&self, from: &VfsPath, to: &VfsPath, overwrite: bool) -> Result<Changed> {
        let (old, new, _lock) = self.claim_both(from, to)?;
        let Some(source) = old.current else { return Err(Error::not_found(from)) };
        let names = self.names_of(&old, &new).map_err(|errno| self.root.fault(from, errno))?;
        let unmoved = |meta: &Meta| {
            let changed = Changed::new(OpKind::Rename, to).with_entries(0);
            if meta.is_file() { changed.with_file(meta.version(to), meta.size_bytes) } else { changed }
        };
        match (names, new.current) {
            (Names::OneEntry, Some(_)) => return Ok(unmoved(&source)),
            (Names::Spellings, _) | (_, None) => {}
            (_, Some(target)) if overwrite && !target.is_directory() && !source.is_directory() => {}
            (_, Some(_)) => return Err(Error::already_exists(to)),
        }
        self.cancel.check(from)?;
        let moved = match names {
            // For two hard links to one file, rename would do nothing and keep both.
            Names::TwoOfOneFile => unlinkat(&old.directory, &old.name, AtFlags::empty()),
            Names::OneEntry | Names::Spellings => renameat(&old.directory, &old.name, &new.directory, &new.name),
            Names::TwoFiles if new.current.is_some() => {
                check_writable(&new.directory, &new.name).and_then(|()| renameat(&old.directory, &old.name, &new.directory, &new.name))
            }
            Names::TwoFiles => move_new(&old.directory, &old.name, &new.directory, &new.name).map(drop),
        };
        moved.map_err(|errno| self.move_fault(from, to, errno))?;
        self.effect();
        let fault = |errno| self.root.fault(to, errno);
        let meta = statat(&new.directory, &new.name, AtFlags::SYMLINK_NOFOLLOW).map(Meta::from).map_err(fault)?;
        self.sync_directory(&new.directory).and_then(|()| self.sync_directory(&old.directory)).map_err(fault)?;
        let changed = Changed::new(OpKind::Rename, to).with_created(new.current.is_none());
        Ok(if meta.is_file() { changed.with_file(meta.version(to), meta.size_bytes) } else { changed })
    }

    /// Determines how the two paths of a rename relate. One name may be removed only if they are known to be two hard links to
    /// one file. The link count does not decide it, as another link may be elsewhere.
    fn names_of(&self, old: &OpenedName, new: &OpenedName) -> Host<Names> {
        let is_same = matches!((&old.current, &new.current), (Some(source), Some(target)) if source.id == target.id);
        if !is_same {
            return Ok(Names::TwoFiles);
        }
        if old.directory_id != new.directory_id {
            return Ok(Names::TwoOfOneFile);
        }
        // Two paths lead to one directory if one of them goes through a link.
        if old.name == new.name {
            return Ok(Names::OneEntry);
        }
        // On a case-insensitive host, both spellings may be one name. Then the directory does not list both.
        let mut held = 0;
        each_name(reopen(&old.directory)?, |name, _| {
            held += usize::from(name == old.name.as_bytes() || name == new.name.as_bytes());
        })?;
        Ok(if held == 2 { Names::TwoOfOneFile } else { Names::Spellings })
    }

    /// Copies the file or directory at a path, following a link at its end. Links within a directory are copied as links.
    pub(super) fn copy(&self, from: &VfsPath, to: &VfsPath, overwrite: bool) -> Result<Changed> {
        check_no_root(from, to, "copied")?;
        match self.root.open_file(from) {
            Err(error) if error.kind() != ErrorKind::IsDirectory => Err(error),
            _ if from == to => Err(Error::invalid_argument(format!("`{from}` cannot be copied onto itself; name another target")).at(from)),
            Ok(file) => self.copy_file(&file, to, overwrite),
            Err(_) => self.copy_directory(from, to),
        }
    }

    fn copy_file(&self, source: &OpenFile, to: &VfsPath, overwrite: bool) -> Result<Changed> {
        let check = |current: Option<&Meta>| match current {
            Some(meta) if !overwrite || meta.is_directory() => Err(Error::already_exists(to)),
            Some(meta) => check_readable(to, meta),
            None => Ok(()),
        };
        let filling = Filling { operation: OpKind::Copy, follow: overwrite, only_new: !overwrite, mode: source.meta.mode };
        self.fill(to, &filling, check, |temp: &Temp<'_>| {
            seek(&source.handle, SeekFrom::Start(0))?;
            copy_all(&source.handle, temp.file())
        })
    }

    fn copy_directory(&self, from: &VfsPath, to: &VfsPath) -> Result<Changed> {
        check_not_beneath(from, to, "copied")?;
        self.with_parents(
            to,
            || Ok(()),
            || {
                let fault = |errno| self.root.fault(to, errno);
                for _ in 0..STARTS_MAX {
                    let source = self.root.open_directory(from)?;
                    let place = self.root.locate(to, false)?;
                    if place.current.is_some() {
                        return Err(Error::already_exists(to));
                    }
                    let aside = TempTree::create(self.root, &place.directory).map_err(fault)?;
                    let target = self.root.open_child_directory(place.directory.as_fd(), &aside.name).map_err(fault)?;
                    let copied = tree::copy(self.root, source, target, self.sync, self.cancel);
                    let entries = copied.map_err(|stop| self.copy_fault(from, to, stop))?;
                    let claim = self.claim(to, false)?;
                    if claim.place.directory_id != place.directory_id {
                        continue;
                    }
                    aside.place(&claim.place.name).map_err(fault)?;
                    self.effect();
                    self.sync_directory(&place.directory).map_err(fault)?;
                    return Ok(Changed::new(OpKind::Copy, to).with_created(true).with_entries(entries));
                }
                Err(kept_being_replaced(to))
            },
        )
    }

    fn move_fault(&self, from: &VfsPath, to: &VfsPath, errno: Errno) -> Error {
        match errno {
            Errno::XDEV => {
                Error::unsupported(format!("`{from}` and `{to}` lie on different filesystems; copy it, then delete it")).at(from)
            }
            Errno::INVAL => into_itself(from, to, "moved"),
            Errno::EXIST | Errno::NOTEMPTY | Errno::ISDIR | Errno::NOTDIR => Error::already_exists(to),
            errno => self.root.fault(to, errno),
        }
    }

    fn copy_fault(&self, from: &VfsPath, to: &VfsPath, stop: CopyFault) -> Error {
        match stop {
            CopyFault::Host(Errno::XDEV) => Error::new(ErrorKind::PermissionDenied, outside(from)).at(from),
            CopyFault::Host(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::ROFS)) => self.root.fault(to, errno),
            CopyFault::Host(errno) => self.root.fault(from, errno),
            CopyFault::Special => {
                let message = format!("`{from}` holds a device, pipe or socket, which cannot be copied; copy its files one by one");
                Error::unsupported(message).at(from)
            }
            CopyFault::Cancelled => Cancel::error(from),
        }
    }
}

/// How the two paths of a rename relate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    /// Two files, or nothing at the target.
    TwoFiles,
    /// Two hard links to one file.
    TwoOfOneFile,
    /// One name, reached by two paths.
    OneEntry,
    /// Two spellings of one name. The host keeps the last one given.
    Spellings,
}

/// A directory filled next to its final name. Removed with its contents when dropped before it takes that name.
struct TempTree<'a> {
    root: &'a Root,
    parent: &'a OwnedFd,
    name: OsString,
    /// Held so that no sweep mistakes the directory for a leftover.
    _handle: OwnedFd,
    published: bool,
}

impl<'a> TempTree<'a> {
    fn create(root: &'a Root, parent: &'a OwnedFd) -> Host<Self> {
        loop {
            let name = OsString::from(unfinished_name());
            mkdirat(parent, &name, DIRECTORY_MODE)?;
            match root.open_child_directory(parent.as_fd(), &name) {
                Ok(handle) if hold(&handle)? => return Ok(Self { root, parent, name, _handle: handle, published: false }),
                // Retry if a sweep mistook the directory for a leftover.
                Ok(_) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    fn place(mut self, name: &OsStr) -> Host<()> {
        self.published = move_new(self.parent, &self.name, self.parent, name)?;
        Ok(())
    }
}

impl Drop for TempTree<'_> {
    fn drop(&mut self) {
        if !self.published {
            // If this fails, a sweep removes the directory later.
            let _ = tree::remove(self.root, self.parent, &self.name);
        }
    }
}

fn check_no_root(from: &VfsPath, to: &VfsPath, verb: &str) -> Result<()> {
    match [from, to].into_iter().find(|path| path.is_root()) {
        Some(root) => {
            let message = format!("the root cannot be {verb} or be a target; name a path beneath it");
            Err(Error::invalid_argument(message).at(root))
        }
        None => Ok(()),
    }
}

fn check_not_beneath(from: &VfsPath, to: &VfsPath, verb: &str) -> Result<()> {
    if to.starts_with(from) { Err(into_itself(from, to, verb)) } else { Ok(()) }
}

fn into_itself(from: &VfsPath, to: &VfsPath, verb: &str) -> Error {
    Error::invalid_argument(format!("`{to}` lies beneath `{from}`; a directory cannot be {verb} into itself")).at(to)
}
