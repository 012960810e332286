//! A host directory that this crate fills and others may change at any time: what a mirror works on.
//!
//! Nothing follows a link, also not one within the root. Every replacement and removal compares the node with an expected one first, and
//! once more after the fact where the host can exchange two names. Directories of a read-only tree get their write bits only while a name
//! in them changes.

use super::content::read_part;
use super::directory::{each_name, is_unfinished, unfinished_name};
use super::list::unnameable;
use super::meta::{FileId, Meta, PERMISSIONS};
use super::openat2::PASS;
use super::root::{OpenedName, Root};
use super::temp::{Temp, stamp};
use super::{FilesystemOptions, time, tree};
use bytes::Bytes;
use parking_lot::Mutex;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, fchmod, fstat, mkdirat, statat, unlinkat};
use rustix::io::{Errno, Result as Host};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{EntryKind, ReadOptions, Version};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::work::{self, Stop};

/// The modes of nodes that their readers may change, before the umask.
const WRITABLE: (Mode, Mode) = (Mode::from_raw_mode(0o666), Mode::from_raw_mode(0o777));

/// The modes of nodes that their readers may not change, before the umask.
const READ_ONLY: (Mode, Mode) = (Mode::from_raw_mode(0o444), Mode::from_raw_mode(0o555));

/// The write bits.
const WRITE: Mode = Mode::WUSR.union(Mode::WGRP).union(Mode::WOTH);

/// How recently a node may have changed for a later change of it to be invisible, because the clock of the host's filesystem ticks only
/// every few milliseconds.
const TICK_NS: i128 = 50_000_000;

/// The approximate cost of looking at one node, in bytes of work.
const NODE_BYTES: usize = 4 << 10;

/// A node of the host, as it was last seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HostNode {
    pub(crate) kind: EntryKind,
    pub(crate) size_bytes: u64,
    /// Changes with the content, the mode and the times.
    pub(crate) stamp: Version,
    /// Whether the node has a write bit.
    pub(crate) is_writable: bool,
    /// Whether the node changed so recently that the next change may leave the stamp as it is.
    pub(crate) is_fresh: bool,
}

impl HostNode {
    fn of(meta: &Meta, path: &VfsPath) -> Self {
        Self {
            kind: meta.kind,
            size_bytes: meta.size_bytes,
            stamp: meta.version(path),
            is_writable: meta.mode.intersects(WRITE),
            is_fresh: time::now_ns() - meta.changed_ns() < TICK_NS,
        }
    }
}

/// The nodes of a directory and everything beneath it.
#[derive(Debug, Default)]
pub(crate) struct HostScan {
    pub(crate) nodes: BTreeMap<VfsPathBuf, HostNode>,
    /// Names that no path can express: their directory, the name, and the error to report.
    pub(crate) unnameable: Vec<(VfsPathBuf, OsString, Error)>,
    /// Directories whose contents are unknown because they could not be read, or because there were too many nodes.
    pub(crate) unread: Vec<(VfsPathBuf, Error)>,
}

/// A host directory that is filled with nodes of the same modes.
#[derive(Debug)]
pub(crate) struct HostDirectory {
    root: Root,
    is_read_only: bool,
    /// The directories that have their write bits for the moment, each with the number of changes that need them.
    opened: Mutex<HashMap<FileId, usize>>,
}

/// Opens a directory only to reach what is in it.
pub(crate) fn open_to_pass(host: &Path) -> std::io::Result<File> {
    Ok(rustix::fs::open(host, PASS, Mode::empty())?.into())
}

impl HostDirectory {
    /// Works on an open directory, wherever it is moved to. `host` is its path in messages.
    pub(crate) fn open(directory: &File, host: &Path, is_read_only: bool) -> Result<Self> {
        let root = Root::of(directory, host, &FilesystemOptions::new())?.without_links();
        Ok(Self { root, is_read_only, opened: Mutex::default() })
    }

    /// Looks at a node; `None` if there is none, or something other than a directory above it.
    pub(crate) fn look(&self, path: &VfsPath) -> Result<Option<HostNode>> {
        match self.root.try_stat(path)? {
            Ok(meta) => Ok(Some(HostNode::of(&meta, path))),
            Err(errno) if is_absent(errno) => Ok(None),
            Err(errno) => Err(self.root.fault(path, errno)),
        }
    }

    /// Lists a node and everything beneath it, except the root itself. Looks at `nodes_max` nodes at most.
    pub(crate) fn scan(&self, base: &VfsPath, nodes_max: usize, stop: &Stop) -> Result<HostScan> {
        let mut scan = HostScan::default();
        match self.look(base)? {
            Some(node) if !base.is_root() => drop(scan.nodes.insert(base.to_owned(), node)),
            _ => {}
        }
        let mut directories = vec![base.to_owned()];
        directories.retain(|base| base.is_root() || scan.nodes.get(base).is_some_and(|node| node.kind == EntryKind::Directory));
        let mut count = 0;
        while let Some(directory) = directories.pop() {
            if stop.is_set() {
                return Err(Error::new(ErrorKind::Unavailable, "the scan was abandoned before it finished").at(base));
            }
            match self.root.try_directory(&directory)? {
                Ok(handle) => {
                    if let Err(error) = self.scan_one(&directory, &handle, nodes_max, &mut count, &mut scan, &mut directories) {
                        scan.unread.push((directory, error));
                    }
                }
                // It was removed or replaced meanwhile.
                Err(errno) if is_absent(errno) => {}
                Err(errno) => {
                    let error = self.root.fault(&directory, errno);
                    scan.unread.push((directory, error));
                }
            }
        }
        Ok(scan)
    }

    fn scan_one(
        &self,
        directory: &VfsPath,
        handle: &OwnedFd,
        nodes_max: usize,
        count: &mut usize,
        scan: &mut HostScan,
        directories: &mut Vec<VfsPathBuf>,
    ) -> Result<()> {
        let fault = |errno| self.root.fault(directory, errno);
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let mut has_more = false;
        each_name(handle, |name, _| {
            if is_unfinished(name) {
            } else if *count < nodes_max {
                *count += 1;
                names.push(name.into());
            } else {
                has_more = true;
            }
        })
        .map_err(fault)?;
        for name in names {
            work::advance(NODE_BYTES);
            let Some(path) = std::str::from_utf8(&name).ok().and_then(|name| directory.child(name).ok()) else {
                let (_, error) = unnameable(directory, &name);
                scan.unnameable.push((directory.to_owned(), OsStr::from_bytes(&name).to_owned(), error));
                continue;
            };
            match statat(handle, OsStr::from_bytes(&name), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => {
                    let node = HostNode::of(&Meta::from(stat), &path);
                    if node.kind == EntryKind::Directory {
                        directories.push(path.clone());
                    }
                    scan.nodes.insert(path, node);
                }
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(self.root.fault(&path, errno)),
            }
        }
        if has_more {
            let message = format!("the directory holds over {nodes_max} files and directories; remove some, or raise the limit");
            return Err(Error::new(ErrorKind::TooLarge, message).at(directory));
        }
        Ok(())
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if there is no regular file without a link on the way, [`TooLarge`](ErrorKind::TooLarge) over
    /// `bytes_max`, [`Conflict`](ErrorKind::Conflict) if it changed while it was read.
    pub(crate) fn read(&self, path: &VfsPath, bytes_max: u64) -> Result<(Bytes, HostNode)> {
        let file = self.root.open_file(path)?;
        let fault = |errno| self.root.fault(path, errno);
        let read = read_part(path, &file, &ReadOptions::new().with_bytes_max(bytes_max), fault)?;
        let after = Meta::from(fstat(&file.handle).map_err(fault)?);
        if after != file.meta {
            return Err(Error::conflict(path, None));
        }
        Ok((read.content, HostNode::of(&after, path)))
    }

    /// Writes a file in place of the expected node, or where nothing is expected. Its directory must exist.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if something else is there, and it stays there.
    pub(crate) fn write(&self, path: &VfsPath, content: &[u8], expected: Option<HostNode>) -> Result<HostNode> {
        let place = self.expect(path, expected)?;
        let fault = |errno| self.root.fault(path, errno);
        self.in_directory(&place, || {
            let mode = if self.is_read_only { READ_ONLY.0 } else { WRITABLE.0 };
            let temp = Temp::create(&place.directory, mode, false)?;
            temp.write(content)?;
            if let Some(old) = place.current.filter(|old| !self.is_read_only && old.is_file()) {
                fchmod(temp.file(), old.mode & PERMISSIONS)?;
            }
            stamp(temp.file(), None)?;
            let placed = match place.current {
                Some(old) => match temp.exchange(&place.name)? {
                    Some(found) if !is_same(&old, &found) => None,
                    _ => Some(()),
                },
                None => match temp.place_new(&place.name) {
                    Err(Errno::EXIST) => None,
                    other => Some(other?),
                },
            };
            let Some(()) = placed else {
                temp.take_back(&place.name)?;
                return Ok(None);
            };
            let meta = temp.meta()?;
            Ok(Some(HostNode::of(&meta, path)))
        })
        .map_err(fault)?
        .ok_or_else(|| Error::conflict(path, None))
    }

    /// Creates a directory, or adjusts the mode of an existing one. Its parent must exist.
    pub(crate) fn create_dir(&self, path: &VfsPath) -> Result<()> {
        let place = self.root.locate(path, false)?;
        let fault = |errno| self.root.fault(path, errno);
        if place.current.is_none() {
            let mode = if self.is_read_only { READ_ONLY.1 } else { WRITABLE.1 };
            match self.in_directory(&place, || mkdirat(&place.directory, &place.name, mode)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(fault(errno)),
            }
        }
        let child = self.root.open_child_directory(place.directory.as_fd(), &place.name).map_err(fault)?;
        let meta = Meta::from(fstat(&child).map_err(fault)?);
        if self.is_read_only && meta.mode.intersects(WRITE) && !self.opened.lock().contains_key(&meta.id) {
            fchmod(&child, meta.mode & PERMISSIONS & !WRITE).map_err(fault)?;
        }
        Ok(())
    }

    /// Removes the expected file, link or other node that is not a directory.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if something else is there, and it stays there.
    pub(crate) fn remove(&self, path: &VfsPath, expected: HostNode) -> Result<()> {
        let place = self.expect(path, Some(expected))?;
        let fault = |errno| self.root.fault(path, errno);
        let Some(old) = place.current else { return Ok(()) };
        let is_removed = self.in_directory(&place, || {
            // Move it to a private name first, so that the node that is checked is the one that is removed.
            let aside = OsString::from(unfinished_name());
            super::temp::move_new(&place.directory, &place.name, &place.directory, &aside)?;
            let found = Meta::from(statat(&place.directory, &aside, AtFlags::SYMLINK_NOFOLLOW)?);
            if !is_same(&old, &found) {
                super::temp::move_new(&place.directory, &aside, &place.directory, &place.name)?;
                return Ok(false);
            }
            unlinkat(&place.directory, &aside, AtFlags::empty())?;
            Ok(true)
        });
        if is_removed.map_err(fault)? { Ok(()) } else { Err(Error::conflict(path, None)) }
    }

    /// Removes a directory if it is empty. Returns whether it is gone.
    pub(crate) fn remove_empty(&self, path: &VfsPath) -> Result<bool> {
        let Some(parent) = path.parent() else { return Ok(false) };
        if self.look(parent)?.is_none_or(|node| node.kind != EntryKind::Directory) {
            return Ok(true);
        }
        let place = self.root.locate(path, false)?;
        match self.in_directory(&place, || unlinkat(&place.directory, &place.name, AtFlags::REMOVEDIR)) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(self.root.fault(path, errno)),
        }
    }

    /// Removes whatever is at a path, with everything beneath it.
    pub(crate) fn remove_all(&self, path: &VfsPath) -> Result<()> {
        match path.parent() {
            Some(parent) => self.remove_name(parent, OsStr::new(path.name())),
            None => self.clear(),
        }
    }

    /// Removes whatever has a name in a directory, with everything beneath it.
    pub(crate) fn remove_name(&self, directory: &VfsPath, name: &OsStr) -> Result<()> {
        let handle = match self.root.try_directory(directory)? {
            Ok(handle) => handle,
            Err(errno) if is_absent(errno) => return Ok(()),
            Err(errno) => return Err(self.root.fault(directory, errno)),
        };
        self.in_opened(&handle, || self.remove_child(&handle, name)).map_err(|errno| self.root.fault(directory, errno))
    }

    /// Empties the directory, whatever its nodes are called.
    pub(crate) fn clear(&self) -> Result<()> {
        let fault = |errno| self.root.fault(VfsPath::ROOT, errno);
        let handle = self.root.open_directory(VfsPath::ROOT)?;
        let mut names = Vec::new();
        match each_name(&handle, |name, _| names.push(OsStr::from_bytes(name).to_owned())) {
            // The directory itself was removed.
            Err(Errno::NOENT) => return Ok(()),
            listed => listed.map_err(fault)?,
        }
        self.in_opened(&handle, || names.iter().try_for_each(|name| self.remove_child(&handle, name))).map_err(fault)
    }

    fn remove_child(&self, directory: &OwnedFd, name: &OsStr) -> Host<()> {
        let meta = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Meta::from(stat),
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        if !meta.is_directory() {
            return match unlinkat(directory, name, AtFlags::empty()) {
                Err(Errno::NOENT) => Ok(()),
                other => other,
            };
        }
        tree::remove_forced(&self.root, directory, name).map(drop)
    }

    /// Finds a name, and checks that the expected node has it.
    fn expect(&self, path: &VfsPath, expected: Option<HostNode>) -> Result<OpenedName> {
        let place = self.root.locate(path, false)?;
        let stamp = |meta: &Meta| meta.version(path);
        if place.current.as_ref().map(stamp) == expected.map(|node| node.stamp) { Ok(place) } else { Err(Error::conflict(path, None)) }
    }

    fn in_directory<T>(&self, place: &OpenedName, change: impl FnOnce() -> Host<T>) -> Host<T> {
        self.in_opened(&place.directory, change)
    }

    /// Runs a change of the names in a directory, which has its write bits meanwhile.
    fn in_opened<T>(&self, directory: &OwnedFd, change: impl FnOnce() -> Host<T>) -> Host<T> {
        if !self.is_read_only {
            return change();
        }
        let id = {
            let mut opened = self.opened.lock();
            let meta = Meta::from(fstat(directory)?);
            let count = opened.entry(meta.id).or_default();
            if *count == 0 && !meta.mode.contains(Mode::WUSR | Mode::XUSR) {
                fchmod(directory, (meta.mode & PERMISSIONS) | Mode::RWXU)?;
            }
            *count += 1;
            meta.id
        };
        let changed = change();
        let mut opened = self.opened.lock();
        let count = opened.get_mut(&id).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if count == 0 {
            opened.remove(&id);
            let mode = Meta::from(fstat(directory)?).mode & PERMISSIONS;
            if mode.intersects(WRITE) {
                fchmod(directory, mode & !WRITE)?;
            }
        }
        changed
    }
}

/// Returns whether two looks at a name saw the same content. A rename changes the time of the last change, so that does not count.
fn is_same(one: &Meta, other: &Meta) -> bool {
    (one.id, one.kind, one.size_bytes, one.modified_ns) == (other.id, other.kind, other.size_bytes, other.modified_ns)
}

/// Returns whether nothing is at a path: nothing at all, or something other than a directory above it.
fn is_absent(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn path(text: &str) -> VfsPathBuf {
        VfsPathBuf::parse(text).expect("a legal path")
    }

    fn open(host: &Path, is_read_only: bool) -> HostDirectory {
        HostDirectory::open(&File::open(host).expect("a directory"), host, is_read_only).expect("it opens")
    }

    fn mode(host: &Path) -> u32 {
        std::fs::metadata(host).expect("a node").permissions().mode() & 0o777
    }

    #[test]
    fn nodes_of_read_only_directory_have_no_write_bits() {
        let host = tempfile::tempdir().expect("a directory");
        let directory = open(host.path(), true);
        directory.create_dir(&path("/d")).expect("created");
        let node = directory.write(&path("/d/a"), b"one", None).expect("written");
        let node = directory.write(&path("/d/a"), b"two", Some(node)).expect("replaced");
        assert_eq!(std::fs::read(host.path().join("d/a")).expect("a file"), b"two");
        assert_eq!((mode(&host.path().join("d")) & 0o222, mode(&host.path().join("d/a")) & 0o222), (0, 0));
        directory.remove(&path("/d/a"), node).expect("removed");
        assert!(directory.remove_empty(&path("/d")).expect("removed"));
        directory.create_dir(&path("/e")).expect("created");
        directory.write(&path("/e/a"), b"one", None).expect("written");
        directory.clear().expect("cleared");
        assert_eq!(std::fs::read_dir(host.path()).expect("a directory").count(), 0);
    }

    #[test]
    fn write_and_removal_refuse_a_node_that_is_not_the_expected_one() {
        let host = tempfile::tempdir().expect("a directory");
        let directory = open(host.path(), false);
        let node = directory.write(&path("/a"), b"one", None).expect("written");
        std::fs::write(host.path().join("a"), "edited").expect("written");
        let kind = |error: Error| error.kind();
        assert_eq!(directory.write(&path("/a"), b"two", Some(node)).map_err(kind), Err(ErrorKind::Conflict));
        assert_eq!(directory.write(&path("/a"), b"two", None).map_err(kind), Err(ErrorKind::Conflict));
        assert_eq!(directory.remove(&path("/a"), node).map_err(kind), Err(ErrorKind::Conflict));
        assert_eq!(std::fs::read(host.path().join("a")).expect("a file"), b"edited");
        let names: Vec<_> = std::fs::read_dir(host.path()).expect("a directory").map(|entry| entry.expect("one").file_name()).collect();
        assert_eq!(names, ["a"], "nothing unfinished is left");
    }

    #[test]
    fn links_are_never_followed() {
        let (host, outside) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
        std::fs::write(outside.path().join("secret"), "secret").expect("written");
        let directory = open(host.path(), false);
        symlink(outside.path(), host.path().join("d")).expect("linked");
        symlink(outside.path().join("secret"), host.path().join("f")).expect("linked");
        symlink("f", host.path().join("g")).expect("linked");
        assert!(directory.read(&path("/d/secret"), 1 << 20).is_err());
        assert!(directory.read(&path("/f"), 1 << 20).is_err());
        assert!(directory.read(&path("/g"), 1 << 20).is_err());
        assert!(directory.write(&path("/d/new"), b"x", None).is_err());
        assert!(directory.create_dir(&path("/d")).is_err());
        let scan = directory.scan(VfsPath::ROOT, 100, &Stop::default()).expect("scanned");
        assert!(scan.nodes.values().all(|node| node.kind == EntryKind::Symlink), "{scan:?}");
        let link = scan.nodes[&path("/f")];
        directory.write(&path("/f"), b"own", Some(link)).expect("the link itself is replaced");
        directory.clear().expect("cleared");
        assert_eq!(std::fs::read_to_string(outside.path().join("secret")).expect("a file"), "secret");
        assert_eq!(std::fs::read_dir(outside.path()).expect("a directory").count(), 1);
    }

    #[test]
    fn scan_reports_names_that_no_path_can_express_and_stops_at_the_limit() {
        let host = tempfile::tempdir().expect("a directory");
        let directory = open(host.path(), false);
        std::fs::write(host.path().join(OsStr::from_bytes(b"bad\xff")), "").expect("written");
        std::fs::write(host.path().join("a"), "").expect("written");
        let scan = directory.scan(VfsPath::ROOT, 100, &Stop::default()).expect("scanned");
        assert_eq!((scan.nodes.len(), scan.unnameable.len(), scan.unread.len()), (1, 1, 0));
        let (parent, name, _) = &scan.unnameable[0];
        directory.remove_name(parent, name).expect("removed");
        let scan = directory.scan(VfsPath::ROOT, 0, &Stop::default()).expect("scanned");
        assert_eq!(scan.unread[0].1.kind(), ErrorKind::TooLarge);
    }
}
