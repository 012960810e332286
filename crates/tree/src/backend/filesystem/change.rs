//! Applies changes. Each is prepared under a private name, checked under a lock, and takes effect by one rename.
//!
//! A file is never written in place. Its new content goes to an unfinished file in the same directory, which then takes the name,
//! so readers see either the old content or the new, even after a crash. Likewise, a directory is copied under a
//! private name and renamed into place, and renamed out of sight before it is removed.

use super::content::{copy_all, read_up_to};
use super::ground::{Claim, kept_being_replaced};
use super::meta::{Meta, PERMISSIONS};
use super::root::{OpenFile, OpenedName, Root, check_readable};
use super::temp::{Temp, flush};
use super::{Cancel, SyncMode};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, mkdirat};
use rustix::io::{Errno, Result as Host};
use std::cell::Cell;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Change, Changed, Edit, OpKind, Version, WriteMode};
use treehold_core::path::VfsPath;
use treehold_core::text;

/// How often a change is restarted because its directory was replaced meanwhile.
pub(super) const STARTS_MAX: usize = 256;

/// The largest file that can be edited, in bytes. Its content is held in memory twice.
const EDIT_BYTES_MAX: u64 = 256 << 20;

/// The modes of new files and directories, before the umask.
const FILE_MODE: Mode = Mode::from_raw_mode(0o666);
pub(super) const DIRECTORY_MODE: Mode = PERMISSIONS;

/// Applies changes beneath one root.
pub(super) struct Writer<'a> {
    pub(super) root: &'a Root,
    pub(super) sync: SyncMode,
    pub(super) cancel: &'a Cancel,
    /// Whether the current change may have taken effect.
    effected: Cell<bool>,
}

/// The variations of writing a whole file.
pub(super) struct Filling {
    pub(super) operation: OpKind,
    /// Follow a link at the end of the path.
    pub(super) follow: bool,
    /// Never replace an existing file, even one that appears at the last moment.
    pub(super) only_new: bool,
    /// The mode of a new file, before the umask.
    pub(super) mode: Mode,
}

impl<'a> Writer<'a> {
    pub(super) fn new(root: &'a Root, sync: SyncMode, cancel: &'a Cancel) -> Self {
        Self { root, sync, cancel, effected: Cell::new(false) }
    }

    /// Applies one change. Errors state whether the change certainly had no effect.
    pub(super) fn apply(&self, change: &Change) -> Result<Changed> {
        self.effected.set(false);
        let changed = self.cancel.check(change.path()).and_then(|()| match change {
            Change::Write { path, content, mode } => self.write(path, content, *mode),
            Change::Append { path, content } => self.append(path, content),
            Change::Edit { path, edits, expect } => self.edit(path, edits, *expect),
            Change::CreateDir { path } => self.create_dir(path),
            Change::Delete { path, recursive, expect } => self.delete(path, *recursive, *expect),
            Change::Rename { from, to, overwrite } => self.rename(from, to, *overwrite),
            Change::Copy { from, to, overwrite } => self.copy(from, to, *overwrite),
            other => Err(other.unsupported()),
        });
        changed.map_err(|error| if self.effected.get() { error.with_unknown_effect() } else { error.without_effect() })
    }

    fn write(&self, path: &VfsPath, content: &[u8], mode: WriteMode) -> Result<Changed> {
        let check = |current: Option<&Meta>| match (mode, current) {
            (_, Some(meta)) if meta.is_directory() => Err(Error::is_directory(path)),
            (WriteMode::CreateNew, Some(_)) => Err(Error::already_exists(path)),
            (WriteMode::IfVersion(_), None) => Err(Error::conflict(path, None)),
            (WriteMode::IfVersion(expected), Some(meta)) => {
                check_readable(path, meta)?;
                check_expected(path, Some(expected), meta.version(path))
            }
            (WriteMode::Overwrite, Some(meta)) => check_readable(path, meta),
            (WriteMode::Overwrite | WriteMode::CreateNew, None) => Ok(()),
        };
        let only_new = mode == WriteMode::CreateNew;
        // Overwriting follows a link to its target; creating never goes through a link.
        let filling = Filling { operation: OpKind::Write, follow: !only_new, only_new, mode: FILE_MODE };
        self.fill(path, &filling, check, |temp| temp.write(content))
    }

    fn append(&self, path: &VfsPath, content: &[u8]) -> Result<Changed> {
        self.with_parents(
            path,
            || Ok(()),
            || {
                let fault = |errno| self.root.fault(path, errno);
                let claim = self.claim(path, true)?;
                let old = self.existing(path, &claim)?;
                if let Some(old) = &old
                    && content.is_empty()
                {
                    return Ok(unchanged(OpKind::Append, path, &old.meta));
                }
                let temp = Temp::create(&claim.place.directory, FILE_MODE, old.is_some()).map_err(fault)?;
                if let Some(old) = &old {
                    copy_all(&old.handle, temp.file()).map_err(fault)?;
                }
                temp.write(content).map_err(fault)?;
                self.publish(path, &claim, temp, old.as_ref(), OpKind::Append)
            },
        )
    }

    fn edit(&self, path: &VfsPath, edits: &[Edit], expect: Option<Version>) -> Result<Changed> {
        let fault = |errno| self.root.fault(path, errno);
        let claim = self.claim(path, true)?;
        let Some(old) = self.existing(path, &claim)? else { return Err(Error::not_found(path)) };
        check_expected(path, expect, old.meta.version(path))?;
        if old.meta.size_bytes > EDIT_BYTES_MAX {
            let message = format!(
                "`{path}` has {} bytes but edits are limited to {EDIT_BYTES_MAX}; write the whole file instead",
                old.meta.size_bytes
            );
            return Err(Error::new(ErrorKind::TooLarge, message).at(path));
        }
        let content = read_up_to(&old.handle, old.meta.size_bytes, EDIT_BYTES_MAX).map_err(fault)?;
        let (edited, replacements) = text::edit(&content, edits).map_err(|error| error.at(path))?;
        if edited == content {
            return Ok(unchanged(OpKind::Edit, path, &old.meta).with_replacements(replacements));
        }
        let temp = Temp::create(&claim.place.directory, FILE_MODE, true).map_err(fault)?;
        temp.write(&edited).map_err(fault)?;
        Ok(self.publish(path, &claim, temp, Some(&old), OpKind::Edit)?.with_replacements(replacements))
    }

    fn create_dir(&self, path: &VfsPath) -> Result<Changed> {
        let changed = Changed::new(OpKind::CreateDir, path);
        if let Ok(_there) = self.root.try_directory(path)? {
            return Ok(changed.with_entries(0));
        }
        self.with_parents(
            path,
            || Ok(()),
            || {
                let place = self.root.locate(path, false)?;
                match mkdirat(&place.directory, &place.name, DIRECTORY_MODE) {
                    Ok(()) => self.effect(),
                    // Either another writer created it first, or a file is in the way.
                    Err(Errno::EXIST) if self.root.try_directory(path)?.is_ok() => return Ok(changed.clone().with_entries(0)),
                    Err(errno) => return Err(self.root.fault(path, errno)),
                }
                self.sync_directory(&place.directory).map_err(|errno| self.root.fault(path, errno))?;
                Ok(changed.clone().with_created(true))
            },
        )
    }

    /// Writes a whole file: prepares it without the lock, then locks, checks, and renames it into place.
    pub(super) fn fill(
        &self,
        path: &VfsPath,
        filling: &Filling,
        check: impl Fn(Option<&Meta>) -> Result<()>,
        fill: impl Fn(&Temp<'_>) -> Host<()>,
    ) -> Result<Changed> {
        self.with_parents(
            path,
            || check(None),
            || {
                let fault = |errno| self.root.fault(path, errno);
                for _ in 0..STARTS_MAX {
                    let place = self.root.locate(path, filling.follow)?;
                    // Fail early if possible, before writing anything. The check under the lock is the one that counts.
                    check(place.current.as_ref())?;
                    let temp = Temp::create(&place.directory, filling.mode, place.current.is_some()).map_err(fault)?;
                    fill(&temp).map_err(fault)?;
                    temp.finish(&place.name, place.current.as_ref(), self.sync).map_err(fault)?;
                    let claim = self.claim(path, filling.follow)?;
                    let current = claim.place.current;
                    if claim.place.directory_id != place.directory_id || claim.place.name != place.name {
                        continue;
                    }
                    check(current.as_ref())?;
                    // The unfinished file was created with the private mode of a replacement, so it cannot become a new file.
                    if place.current.is_some() && current.is_none() {
                        continue;
                    }
                    if current != place.current {
                        temp.finish(&place.name, current.as_ref(), self.sync).map_err(fault)?;
                    }
                    let created = current.is_none();
                    return self.put_in_place(
                        path,
                        &claim,
                        temp,
                        filling.only_new,
                        Changed::new(filling.operation, path).with_created(created),
                    );
                }
                Err(kept_being_replaced(path))
            },
        )
    }

    /// Renames a file into place whose content was derived from the old one under the lock.
    fn publish(&self, path: &VfsPath, claim: &Claim, temp: Temp<'_>, old: Option<&OpenFile>, operation: OpKind) -> Result<Changed> {
        temp.finish(&claim.place.name, old.map(|old| &old.meta), self.sync).map_err(|errno| self.root.fault(path, errno))?;
        self.put_in_place(path, claim, temp, false, Changed::new(operation, path).with_created(old.is_none()))
    }

    fn put_in_place(&self, path: &VfsPath, claim: &Claim, temp: Temp<'_>, only_new: bool, changed: Changed) -> Result<Changed> {
        let fault = |errno| self.root.fault(path, errno);
        let OpenedName { directory, name, .. } = &claim.place;
        self.cancel.check(path)?;
        let file = if only_new { temp.place(name) } else { temp.replace(name) }.map_err(fault)?;
        self.effect();
        let meta = file.meta().map_err(fault)?;
        self.sync_directory(directory).map_err(fault)?;
        Ok(changed.with_file(meta.version(path), meta.size_bytes))
    }

    /// Opens the file at a locked path, or returns `None` if there is none.
    fn existing(&self, path: &VfsPath, claim: &Claim) -> Result<Option<OpenFile>> {
        let Some(current) = claim.place.current else { return Ok(None) };
        check_readable(path, &current)?;
        match self.root.open_child_file(claim.place.directory.as_fd(), &claim.place.name) {
            Ok(Some(file)) => Ok(Some(file)),
            Ok(None) => Err(self.root.fault(path, Errno::LOOP)),
            Err(errno) => Err(self.root.fault(path, errno)),
        }
    }

    /// Records that the change has taken effect, whatever fails from here on.
    pub(super) fn effect(&self) {
        self.effected.set(true);
    }

    /// Flushes a directory to the device if the sync mode requires it.
    pub(super) fn sync_directory(&self, directory: &OwnedFd) -> Host<()> {
        if self.sync == SyncMode::Full { flush(directory) } else { Ok(()) }
    }
}

/// Fails if a version is expected and it is not the current one.
pub(super) fn check_expected(path: &VfsPath, expect: Option<Version>, current: Version) -> Result<()> {
    match expect {
        Some(expected) if expected != current => Err(Error::conflict(path, Some(current))),
        _ => Ok(()),
    }
}

fn unchanged(operation: OpKind, path: &VfsPath, meta: &Meta) -> Changed {
    Changed::new(operation, path).with_file(meta.version(path), meta.size_bytes).with_entries(0)
}
