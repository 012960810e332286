//! File metadata, and the version derived from it.

use jiff::Timestamp;
use rustix::fs::{FileType, Mode, Stat};
use treehold_core::ops::{Entry, EntryKind, Version};
use treehold_core::path::VfsPath;

/// The permission bits of a mode.
pub(super) const PERMISSIONS: Mode = Mode::RWXU.union(Mode::RWXG).union(Mode::RWXO);

/// The host's metadata of a file, link or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) id: FileId,
    pub(super) kind: EntryKind,
    pub(super) mode: Mode,
    pub(super) user: u32,
    pub(super) group: u32,
    /// The number of hard links.
    pub(super) links: u64,
    pub(super) size_bytes: u64,
    /// When the content was last modified, in nanoseconds since 1970.
    pub(super) modified_ns: i128,
    /// When the inode was last changed, by the kernel's clock, in nanoseconds since 1970.
    changed_ns: i128,
}

/// Identifies a file independently of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FileId {
    pub(super) device: u64,
    pub(super) inode: u64,
}

impl Meta {
    /// Returns the version of this content at this path.
    ///
    /// It is a hash of everything that tells one content from another: the inode, the size, and the times of the last
    /// modification and change in nanoseconds. Every write of this crate has a unique modification time, so an inode number that
    /// is reused within one tick of the kernel's clock does not bring an old version back. The path is hashed too, so a rename
    /// changes the version.
    pub(super) fn version(&self, path: &VfsPath) -> Version {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.id.device.to_le_bytes());
        hasher.update(&self.id.inode.to_le_bytes());
        hasher.update(&self.size_bytes.to_le_bytes());
        hasher.update(&self.modified_ns.to_le_bytes());
        hasher.update(&self.changed_ns.to_le_bytes());
        hasher.update(path.as_str().as_bytes());
        let hash = hasher.finalize();
        let mut number = [0; 8];
        number.copy_from_slice(&hash.as_bytes()[..8]);
        Version::new(u64::from_le_bytes(number))
    }

    /// Returns the entry in a listing. Only files have a version, since that of a link depends on its target. There is no
    /// creation time: the host's birth time is that of the inode, which every replacement renews.
    pub(super) fn entry(&self, path: &VfsPath) -> Entry {
        let entry = match self.kind {
            EntryKind::File => Entry::file(path, self.size_bytes, self.version(path)),
            EntryKind::Directory => Entry::directory(path),
            kind => Entry::directory(path).with_kind(kind).with_size_bytes(self.size_bytes),
        };
        entry.with_times(None, self.modified_at())
    }

    /// Returns when the inode was last changed, in nanoseconds since 1970.
    pub(super) fn changed_ns(&self) -> i128 {
        self.changed_ns
    }

    /// Returns when the content was last modified, or `None` if the host reports a time out of range.
    pub(super) fn modified_at(&self) -> Option<Timestamp> {
        Timestamp::from_nanosecond(self.modified_ns).ok()
    }

    pub(super) fn is_file(&self) -> bool {
        self.kind == EntryKind::File
    }

    pub(super) fn is_directory(&self) -> bool {
        self.kind == EntryKind::Directory
    }

    pub(super) fn is_symlink(&self) -> bool {
        self.kind == EntryKind::Symlink
    }
}

impl From<Stat> for Meta {
    // The widths of these fields differ between hosts; none is wider than the type it is cast to.
    #[allow(clippy::unnecessary_cast, reason = "the widths differ from host to host")]
    fn from(stat: Stat) -> Self {
        let nanoseconds = |seconds: i128, rest: i128| seconds * 1_000_000_000 + rest;
        let kind = kind_of(FileType::from_raw_mode(stat.st_mode));
        Self {
            id: FileId { device: stat.st_dev as u64, inode: stat.st_ino as u64 },
            kind,
            mode: Mode::from_raw_mode(stat.st_mode),
            user: stat.st_uid as u32,
            group: stat.st_gid as u32,
            links: stat.st_nlink as u64,
            size_bytes: if kind == EntryKind::Directory { 0 } else { stat.st_size.max(0) as u64 },
            modified_ns: nanoseconds(stat.st_mtime as i128, stat.st_mtime_nsec as i128),
            changed_ns: nanoseconds(stat.st_ctime as i128, stat.st_ctime_nsec as i128),
        }
    }
}

/// Converts a host file type to an [`EntryKind`].
pub(super) fn kind_of(file_type: FileType) -> EntryKind {
    match file_type {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Symlink,
        _ => EntryKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use treehold_core::path::VfsPathBuf;

    #[test]
    fn version_depends_on_identity_size_times_and_path() {
        let path = VfsPathBuf::parse("/a").expect("a legal path");
        let meta = Meta {
            id: FileId { device: 1, inode: 2 },
            kind: EntryKind::File,
            mode: Mode::from_raw_mode(0o644),
            user: 0,
            group: 0,
            links: 1,
            size_bytes: 3,
            modified_ns: 4,
            changed_ns: 5,
        };
        let version = meta.version(&path);
        assert_eq!(version, meta.version(&path));
        for other in [
            Meta { id: FileId { device: 9, inode: 2 }, ..meta },
            Meta { id: FileId { device: 1, inode: 9 }, ..meta },
            Meta { size_bytes: 9, ..meta },
            Meta { modified_ns: 9, ..meta },
            Meta { changed_ns: 9, ..meta },
        ] {
            assert_ne!(version, other.version(&path), "{other:?}");
        }
        assert_ne!(version, meta.version(&VfsPathBuf::parse("/b").expect("a legal path")));
    }
}
