//! The changes: each is prepared aside, checked under a lock, and takes effect by one rename.
//!
//! A file is never written in place. Its new content goes to an unfinished file in the same directory, which then takes the
//! name: readers see the old content or the new, and so does whoever comes after a crash. What that costs is said in
//! [`FilesystemBackend`](super::FilesystemBackend).

use super::content::{copy_all, read_up_to};
use super::directory::unfinished_name;
use super::errno::outside;
use super::lock::Lock;
use super::meta::Meta;
use super::root::{OpenFile, Place, Root, check_readable};
use super::temp::{Temp, check_writable, move_new};
use super::tree::{self, CopyFault};
use super::{Cancel, SyncMode, sweep};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::{Change, Changed, Edit, OpKind, Version, WriteMode};
use crate::path::{VfsPath, VfsPathBuf};
use crate::text;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, fsync, mkdirat, renameat, statat, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};

/// How often a change starts again because its directory was replaced meanwhile.
const STARTS_MAX: usize = 32;

/// The largest file that is edited: its content is held in memory, twice.
const EDIT_BYTES_MAX: u64 = 256 << 20;

/// The mode of a new file and of a new directory, before the umask.
const FILE_MODE: u32 = 0o666;
const DIRECTORY_MODE: u32 = 0o777;

/// What a change needs to be made.
pub(super) struct Writer<'a> {
    pub(super) root: &'a Root,
    pub(super) sync: SyncMode,
    pub(super) cancel: &'a Cancel,
}

/// A place under a lock.
struct Claim {
    place: Place,
    _lock: Lock,
}

impl Writer<'_> {
    /// Makes one change.
    pub(super) fn apply(&self, change: &Change) -> Result<Changed> {
        self.cancel.check(change.path())?;
        match change {
            Change::Write { path, content, mode } => self.write(path, content, *mode),
            Change::Append { path, content } => self.append(path, content),
            Change::Edit { path, edits, expect } => self.edit(path, edits, *expect),
            Change::CreateDir { path } => self.create_dir(path),
            Change::Delete { path, recursive, expect } => self.delete(path, *recursive, *expect),
            Change::Rename { from, to, overwrite } => self.rename(from, to, *overwrite),
            Change::Copy { from, to, overwrite } => self.copy(from, to, *overwrite),
        }
    }

    fn write(&self, path: &VfsPath, content: &[u8], mode: WriteMode) -> Result<Changed> {
        let check = |current: Option<&Meta>| match (mode, current) {
            (_, Some(meta)) if meta.is_directory() => Err(Error::is_directory(path)),
            (WriteMode::CreateNew, Some(_)) => Err(Error::already_exists(path)),
            (WriteMode::IfVersion(_), None) => Err(Error::conflict(path, None)),
            (WriteMode::Overwrite | WriteMode::CreateNew, None) => Ok(()),
            (_, Some(meta)) => {
                check_readable(path, meta)?;
                match (mode, meta.version(path)) {
                    (WriteMode::IfVersion(expected), version) => check_expected(path, Some(expected), version),
                    _ => Ok(()),
                }
            }
        };
        // A link is followed to the file it stands for, but something that must be new is not made through one.
        let follow = mode != WriteMode::CreateNew;
        self.fill(path, follow, FILE_MODE, check, |temp| temp.write(content), OpKind::Write, mode == WriteMode::CreateNew)
    }

    fn append(&self, path: &VfsPath, content: &[u8]) -> Result<Changed> {
        let parents = self.parents(path)?;
        let fault = |errno| self.root.fault(path, errno);
        let claim = self.claim(path, true)?;
        let changed = match self.existing(path, &claim)? {
            Some(old) if content.is_empty() => unchanged(OpKind::Append, path, &old.meta),
            old => {
                let temp = Temp::create(&claim.place.directory, FILE_MODE).map_err(fault)?;
                if let Some(old) = &old {
                    copy_all(&old.handle, temp.file()).map_err(fault)?;
                }
                temp.write(content).map_err(fault)?;
                self.publish(path, &claim, temp, old.as_ref(), OpKind::Append)?
            }
        };
        parents.keep();
        Ok(changed)
    }

    fn edit(&self, path: &VfsPath, edits: &[Edit], expect: Option<Version>) -> Result<Changed> {
        let claim = self.claim(path, true)?;
        let Some(old) = self.existing(path, &claim)? else { return Err(Error::not_found(path)) };
        check_expected(path, expect, old.meta.version(path))?;
        if old.meta.size_bytes > EDIT_BYTES_MAX {
            let message = format!("`{path}` has {} bytes and edits reach up to {EDIT_BYTES_MAX}; write it anew", old.meta.size_bytes);
            return Err(Error::new(ErrorKind::TooLarge, message).at(path));
        }
        let fault = |errno| self.root.fault(path, errno);
        let content = read_up_to(&old.handle, old.meta.size_bytes, EDIT_BYTES_MAX).map_err(fault)?;
        let (edited, replacements) = text::edit(&content, edits).map_err(|error| error.at(path))?;
        if edited == content {
            return Ok(unchanged(OpKind::Edit, path, &old.meta).with_replacements(replacements));
        }
        let temp = Temp::create(&claim.place.directory, FILE_MODE).map_err(fault)?;
        temp.write(&edited).map_err(fault)?;
        Ok(self.publish(path, &claim, temp, Some(&old), OpKind::Edit)?.with_replacements(replacements))
    }

    fn create_dir(&self, path: &VfsPath) -> Result<Changed> {
        let changed = Changed::new(OpKind::CreateDir, path);
        match self.make_directories(path, path) {
            Ok(made) if made.is_empty() => Ok(changed.with_entries(0)),
            Ok(_) => Ok(changed.with_created(true)),
            // It may be the path itself that is a file, or one above it.
            Err(error) if error.kind() == ErrorKind::NotADirectory && self.root.stat(path).is_ok() => Err(Error::already_exists(path)),
            Err(error) => Err(error),
        }
    }

    fn delete(&self, path: &VfsPath, recursive: bool, expect: Option<Version>) -> Result<Changed> {
        if path.is_root() {
            return Err(Error::invalid_argument("the root cannot be deleted; delete what it holds").at(path));
        }
        let fault = |errno| self.root.fault(path, errno);
        let claim = self.claim(path, false)?;
        let Some(current) = claim.place.current else { return Err(Error::not_found(path)) };
        let Place { directory, name, .. } = &claim.place;
        let mut removed = 1;
        if !current.is_directory() {
            // The version at a link is that of the file it stands for: the one that a read of it gives.
            match current.is_symlink() {
                true if expect.is_some() => {
                    let version = self.root.open_file(path).map(|file| file.meta.version(path)).map_err(|_| Error::conflict(path, None))?;
                    check_expected(path, expect, version)?;
                }
                true => {}
                false => check_expected(path, expect, current.version(path))?,
            }
            unlinkat(directory, name, AtFlags::empty()).map_err(fault)?;
        } else if expect.is_some() {
            return Err(Error::invalid_argument(format!("`{path}` is a directory and has no version; delete it without one")).at(path));
        } else if recursive {
            removed = self.delete_tree(path, claim)?;
            return Ok(Changed::new(OpKind::Delete, path).with_entries(removed));
        } else {
            self.delete_empty(path, directory, name)?;
        }
        self.sync_directory(directory).map_err(fault)?;
        Ok(Changed::new(OpKind::Delete, path).with_entries(removed))
    }

    fn delete_empty(&self, path: &VfsPath, directory: &OwnedFd, name: &OsStr) -> Result<()> {
        let refused = match unlinkat(directory, name, AtFlags::REMOVEDIR) {
            // What a crash left behind, and no listing shows, does not make a directory full.
            Err(Errno::NOTEMPTY | Errno::EXIST) if sweep::empty_of_leftovers(self.root, directory, name) => {
                unlinkat(directory, name, AtFlags::REMOVEDIR)
            }
            other => other,
        };
        refused.map_err(|errno| match errno {
            Errno::NOTEMPTY | Errno::EXIST => {
                let message = format!("`{path}` is a directory that is not empty; delete it recursively");
                Error::invalid_argument(message).at(path)
            }
            errno => self.root.fault(path, errno),
        })
    }

    /// Takes a directory out of sight at once and then removes it piece by piece, without the lock.
    fn delete_tree(&self, path: &VfsPath, claim: Claim) -> Result<usize> {
        let fault = |errno| self.root.fault(path, errno);
        let Claim { place: Place { directory, name, .. }, _lock: lock } = claim;
        let aside = OsString::from(unfinished_name());
        renameat(&directory, &name, &directory, &aside).map_err(fault)?;
        let synced = self.sync_directory(&directory);
        drop(lock);
        synced.map_err(fault)?;
        match tree::remove(self.root, &directory, &aside) {
            Ok(removed) => Ok(removed),
            Err(errno) => {
                // What could not be removed comes back in sight, unless something new stands there.
                let _ = move_new(&directory, &aside, &directory, &name);
                let error = fault(errno);
                let message = format!("`{path}` could not be deleted to the end, and what is left stays: {}", error.message());
                Err(error.with_message(message))
            }
        }
    }

    fn rename(&self, from: &VfsPath, to: &VfsPath, overwrite: bool) -> Result<Changed> {
        check_pair(from, to, "moved")?;
        let source = self.root.stat(from)?;
        if from == to {
            let changed = Changed::new(OpKind::Rename, to).with_entries(0);
            return Ok(if source.is_file() { changed.with_file(source.version(to), source.size_bytes) } else { changed });
        }
        check_not_beneath(from, to, &source, "moved")?;
        let parents = self.parents(to)?;
        let (old, new, _lock) = self.claim_both(from, to)?;
        let Some(source) = old.current else { return Err(Error::not_found(from)) };
        // On a host that ignores case, a name of its own in other letters is no other file.
        let same = new.current.is_some_and(|target| target.id == source.id);
        if let Some(target) = new.current
            && !(same && source.links == 1)
            && (!overwrite || target.is_directory() || source.is_directory())
        {
            return Err(Error::already_exists(to));
        }
        let moved = if same && source.links > 1 {
            // Of two names of one file a rename would keep both.
            unlinkat(&old.directory, &old.name, AtFlags::empty())
        } else if new.current.is_some() {
            check_writable(&new.directory, &new.name).and_then(|()| renameat(&old.directory, &old.name, &new.directory, &new.name))
        } else {
            move_new(&old.directory, &old.name, &new.directory, &new.name).map(drop)
        };
        moved.map_err(|errno| self.pair_fault(from, to, errno))?;
        let fault = |errno| self.root.fault(to, errno);
        let meta = statat(&new.directory, &new.name, AtFlags::SYMLINK_NOFOLLOW).map(Meta::from).map_err(fault)?;
        self.sync_directory(&new.directory).and_then(|()| self.sync_directory(&old.directory)).map_err(fault)?;
        parents.keep();
        let changed = Changed::new(OpKind::Rename, to).with_created(new.current.is_none());
        Ok(if meta.is_file() { changed.with_file(meta.version(to), meta.size_bytes) } else { changed })
    }

    fn copy(&self, from: &VfsPath, to: &VfsPath, overwrite: bool) -> Result<Changed> {
        check_pair(from, to, "copied")?;
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
        let fill = |temp: &Temp<'_>| {
            rustix::fs::seek(&source.handle, rustix::fs::SeekFrom::Start(0))?;
            copy_all(&source.handle, temp.file())
        };
        self.fill(to, overwrite, source.meta.mode, check, fill, OpKind::Copy, !overwrite)
    }

    fn copy_directory(&self, from: &VfsPath, to: &VfsPath) -> Result<Changed> {
        if to.starts_with(from) {
            return Err(Error::invalid_argument(format!("`{from}` cannot be copied into itself at `{to}`")).at(from));
        }
        let parents = self.parents(to)?;
        for _ in 0..STARTS_MAX {
            let source = self.root.open_directory(from)?;
            let place = self.root.locate(to, false)?;
            if place.current.is_some() {
                return Err(Error::already_exists(to));
            }
            let fault = |errno| self.root.fault(to, errno);
            let aside = TempTree::create(self.root, &place.directory).map_err(fault)?;
            let target = self.root.open_child_directory(place.directory.as_fd(), &aside.name).map_err(fault)?;
            let entries = tree::copy(self.root, source, target, self.sync, self.cancel).map_err(|stop| self.copy_fault(from, to, stop))?;
            let claim = self.claim(to, false)?;
            if claim.place.directory_id != place.directory_id {
                continue;
            }
            aside.place(&claim.place.name).map_err(fault)?;
            self.sync_directory(&place.directory).map_err(fault)?;
            parents.keep();
            return Ok(Changed::new(OpKind::Copy, to).with_created(true).with_entries(entries));
        }
        Err(restless(to))
    }

    /// Writes a whole file: prepares it without the lock, then takes the lock, checks, and puts it in place.
    #[expect(clippy::too_many_arguments, reason = "what sets a write and a copy apart, named at their two call sites")]
    fn fill(
        &self,
        path: &VfsPath,
        follow: bool,
        mode: u32,
        check: impl Fn(Option<&Meta>) -> Result<()>,
        fill: impl Fn(&Temp<'_>) -> rustix::io::Result<()>,
        operation: OpKind,
        only_new: bool,
    ) -> Result<Changed> {
        let parents = self.parents(path)?;
        let fault = |errno| self.root.fault(path, errno);
        for _ in 0..STARTS_MAX {
            let place = self.root.locate(path, follow)?;
            // Refused before anything is written, if it can be known; what counts is the check under the lock.
            check(place.current.as_ref())?;
            let temp = Temp::create(&place.directory, mode).map_err(fault)?;
            fill(&temp).and_then(|()| temp.dress(&place.name, place.current.as_ref())).map_err(fault)?;
            temp.sync(self.sync).map_err(fault)?;
            let claim = self.claim(path, follow)?;
            if claim.place.directory_id != place.directory_id || claim.place.name != place.name {
                continue;
            }
            let current = claim.place.current;
            check(current.as_ref())?;
            if current != place.current {
                temp.dress(&place.name, current.as_ref()).and_then(|()| temp.sync(self.sync)).map_err(fault)?;
            }
            self.cancel.check(path)?;
            let meta = if only_new { temp.place(&place.name) } else { temp.replace(&place.name) }.map_err(fault)?;
            drop(claim);
            self.sync_directory(&place.directory).map_err(fault)?;
            parents.keep();
            return Ok(Changed::new(operation, path).with_file(meta.version(path), meta.size_bytes).with_created(current.is_none()));
        }
        Err(restless(path))
    }

    /// Puts a file in place that was prepared under the lock.
    fn publish(&self, path: &VfsPath, claim: &Claim, temp: Temp<'_>, old: Option<&OpenFile>, operation: OpKind) -> Result<Changed> {
        let fault = |errno| self.root.fault(path, errno);
        let Place { directory, name, .. } = &claim.place;
        temp.dress(name, old.map(|old| &old.meta)).and_then(|()| temp.sync(self.sync)).map_err(fault)?;
        self.cancel.check(path)?;
        let meta = temp.replace(name).map_err(fault)?;
        self.sync_directory(directory).map_err(fault)?;
        Ok(Changed::new(operation, path).with_file(meta.version(path), meta.size_bytes).with_created(old.is_none()))
    }

    /// Opens the file at a claimed place; none when nothing is there.
    fn existing(&self, path: &VfsPath, claim: &Claim) -> Result<Option<OpenFile>> {
        let Some(current) = claim.place.current else { return Ok(None) };
        check_readable(path, &current)?;
        match self.root.open_child_file(claim.place.directory.as_fd(), &claim.place.name) {
            Ok(Some(file)) => Ok(Some(file)),
            Ok(None) => Err(self.root.fault(path, Errno::LOOP)),
            Err(errno) => Err(self.root.fault(path, errno)),
        }
    }

    /// Takes the lock of the directory that holds a path, and makes sure that it is still that directory.
    fn claim(&self, path: &VfsPath, follow: bool) -> Result<Claim> {
        for _ in 0..STARTS_MAX {
            let before = self.root.locate(path, follow)?;
            let id = before.directory_id;
            let lock = Lock::take(vec![(id, before.directory)], path, self.cancel)?;
            let place = self.root.locate(path, follow)?;
            if place.directory_id == id {
                return Ok(Claim { place, _lock: lock });
            }
        }
        Err(restless(path))
    }

    /// Takes the locks of the directories that hold two paths.
    fn claim_both(&self, from: &VfsPath, to: &VfsPath) -> Result<(Place, Place, Lock)> {
        for _ in 0..STARTS_MAX {
            let (old, new) = (self.root.locate(from, false)?, self.root.locate(to, false)?);
            let ids = (old.directory_id, new.directory_id);
            let lock = Lock::take(vec![(ids.0, old.directory), (ids.1, new.directory)], from, self.cancel)?;
            let (old, new) = (self.root.locate(from, false)?, self.root.locate(to, false)?);
            if (old.directory_id, new.directory_id) == ids {
                return Ok((old, new, lock));
            }
        }
        Err(restless(from))
    }

    /// Makes the directories above a path; those it made go again unless [`Parents::keep`] is called.
    fn parents(&self, path: &VfsPath) -> Result<Parents<'_>> {
        let made = match path.parent() {
            Some(parent) => self.make_directories(parent, path)?,
            None => return Err(Error::is_directory(path)),
        };
        Ok(Parents { root: self.root, made, keep: false })
    }

    /// Makes a directory and those above it, step by step, and returns the ones that were not there, outermost first. Errors are
    /// told of `path`.
    fn make_directories(&self, directory: &VfsPath, path: &VfsPath) -> Result<Vec<VfsPathBuf>> {
        let fault = |errno| self.root.fault(path, errno);
        let mut missing = Vec::new();
        let mut at = directory;
        let mut handle = loop {
            match (self.root.try_directory(at)?, at.parent()) {
                (Ok(handle), _) => break handle,
                (Err(Errno::NOENT), Some(parent)) => {
                    missing.push(at);
                    at = parent;
                }
                (Err(errno), _) => return Err(fault(errno)),
            }
        };
        let mut parents = Parents { root: self.root, made: Vec::new(), keep: false };
        for directory in missing.into_iter().rev() {
            match mkdirat(&handle, directory.name(), Mode::from_raw_mode(DIRECTORY_MODE)) {
                Ok(()) => {
                    parents.made.push(directory.to_owned());
                    self.sync_directory(&handle).map_err(fault)?;
                }
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(fault(errno)),
            }
            let name = OsStr::new(directory.name());
            handle = match self.root.open_child_directory(handle.as_fd(), name) {
                Ok(child) => child,
                // It was not there when it was looked for as a directory, and it is there as a name.
                Err(Errno::LOOP | Errno::NOTDIR) if is_symlink(&handle, name) => {
                    let message = format!("`{path}` leads through a link to something that does not exist");
                    return Err(Error::new(ErrorKind::NotFound, message).at(path));
                }
                Err(errno) => return Err(fault(errno)),
            };
        }
        parents.keep = true;
        Ok(std::mem::take(&mut parents.made))
    }

    fn sync_directory(&self, directory: &OwnedFd) -> rustix::io::Result<()> {
        if self.sync == SyncMode::Full { fsync(directory) } else { Ok(()) }
    }

    fn pair_fault(&self, from: &VfsPath, to: &VfsPath, errno: Errno) -> Error {
        match errno {
            Errno::XDEV => {
                Error::unsupported(format!("`{from}` and `{to}` lie on different filesystems; copy it, then delete it")).at(from)
            }
            Errno::INVAL => Error::invalid_argument(format!("`{from}` cannot be moved into itself at `{to}`")).at(from),
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

/// Directories made on the way to a change, which go again when it fails.
struct Parents<'a> {
    root: &'a Root,
    made: Vec<VfsPathBuf>,
    keep: bool,
}

impl Parents<'_> {
    fn keep(mut self) {
        self.keep = true;
    }
}

impl Drop for Parents<'_> {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        for directory in self.made.iter().rev() {
            // Only an empty one goes; another writer may have come to use it.
            if let Ok(place) = self.root.locate(directory, false) {
                let _ = unlinkat(&place.directory, &place.name, AtFlags::REMOVEDIR);
            }
        }
    }
}

/// A directory being filled beside the name it will take; removed with all it holds when dropped before that.
struct TempTree<'a> {
    root: &'a Root,
    parent: &'a OwnedFd,
    name: OsString,
    published: bool,
}

impl<'a> TempTree<'a> {
    fn create(root: &'a Root, parent: &'a OwnedFd) -> rustix::io::Result<Self> {
        let name = OsString::from(unfinished_name());
        mkdirat(parent, &name, Mode::from_raw_mode(DIRECTORY_MODE))?;
        Ok(Self { root, parent, name, published: false })
    }

    fn place(mut self, name: &OsStr) -> rustix::io::Result<()> {
        self.published = move_new(self.parent, &self.name, self.parent, name)?;
        Ok(())
    }
}

impl Drop for TempTree<'_> {
    fn drop(&mut self) {
        if !self.published {
            let _ = tree::remove(self.root, self.parent, &self.name);
        }
    }
}

fn is_symlink(directory: &OwnedFd, name: &OsStr) -> bool {
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| Meta::from(stat).is_symlink())
}

fn unchanged(operation: OpKind, path: &VfsPath, meta: &Meta) -> Changed {
    Changed::new(operation, path).with_file(meta.version(path), meta.size_bytes).with_entries(0)
}

fn check_expected(path: &VfsPath, expect: Option<Version>, current: Version) -> Result<()> {
    match expect {
        Some(expected) if expected != current => Err(Error::conflict(path, Some(current))),
        _ => Ok(()),
    }
}

fn check_pair(from: &VfsPath, to: &VfsPath, verb: &str) -> Result<()> {
    for path in [from, to] {
        if path.is_root() {
            return Err(Error::invalid_argument(format!("the root cannot be {verb} or replaced; name what it holds")).at(path));
        }
    }
    Ok(())
}

fn check_not_beneath(from: &VfsPath, to: &VfsPath, source: &Meta, verb: &str) -> Result<()> {
    if source.is_directory() && to.starts_with(from) {
        return Err(Error::invalid_argument(format!("`{from}` cannot be {verb} into itself at `{to}`")).at(from));
    }
    Ok(())
}

/// Says that the ground moved under a change too often.
fn restless(path: &VfsPath) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the directory of `{path}` was replaced again and again meanwhile; try again")).at(path)
}
