//! What stands at one path of a tree in memory.

use super::tree::Branch;
use crate::ops::{Entry, Version};
use crate::path::VfsPathBuf;
use bytes::Bytes;
use jiff::Timestamp;
use std::fmt;

/// A file or directory of a [`StateSnapshot`](super::StateSnapshot).
#[derive(Clone)]
pub struct StateNode(Kind);

#[derive(Clone)]
enum Kind {
    File(File),
    Directory { created_at: Microseconds, branch: Branch },
}

#[derive(Clone)]
struct File {
    content: Bytes,
    version: Version,
    created_at: Microseconds,
    modified_at: Microseconds,
}

/// A time in half the memory of a [`Timestamp`], since 1970.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Microseconds(i64);

impl From<Timestamp> for Microseconds {
    fn from(time: Timestamp) -> Self {
        Self(time.as_microsecond())
    }
}

impl From<Microseconds> for Timestamp {
    fn from(time: Microseconds) -> Self {
        Self::from_microsecond(time.0).expect("it was made of a timestamp")
    }
}

impl StateNode {
    /// Makes a file. Times are kept in whole microseconds.
    pub fn file(content: impl Into<Bytes>, version: Version, created_at: Timestamp, modified_at: Timestamp) -> Self {
        Self(Kind::File(File { content: content.into(), version, created_at: created_at.into(), modified_at: modified_at.into() }))
    }

    /// Makes a directory in which nothing is yet.
    pub fn directory(created_at: Timestamp) -> Self {
        Self(Kind::Directory { created_at: created_at.into(), branch: Branch::default() })
    }

    /// Tells whether this is a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.0, Kind::Directory { .. })
    }

    /// Returns the content of a file, shared; of a directory, none.
    pub fn content(&self) -> Option<&Bytes> {
        match &self.0 {
            Kind::File(file) => Some(&file.content),
            Kind::Directory { .. } => None,
        }
    }

    /// Returns the size in bytes; of a directory, 0.
    pub fn size_bytes(&self) -> u64 {
        self.content().map_or(0, |content| content.len() as u64)
    }

    /// Returns the version of a file; of a directory, none.
    pub fn version(&self) -> Option<Version> {
        match &self.0 {
            Kind::File(file) => Some(file.version),
            Kind::Directory { .. } => None,
        }
    }

    /// Returns when the path first appeared.
    pub fn created_at(&self) -> Timestamp {
        match &self.0 {
            Kind::File(File { created_at, .. }) | Kind::Directory { created_at, .. } => (*created_at).into(),
        }
    }

    /// Returns when the content of a file last changed; of a directory, none.
    pub fn modified_at(&self) -> Option<Timestamp> {
        match &self.0 {
            Kind::File(file) => Some(file.modified_at.into()),
            Kind::Directory { .. } => None,
        }
    }

    /// Returns the node as a line of a listing.
    pub fn entry(&self, path: impl Into<VfsPathBuf>) -> Entry {
        let entry = match self.version() {
            Some(version) => Entry::file(path, self.size_bytes(), version),
            None => Entry::directory(path),
        };
        entry.with_times(Some(self.created_at()), self.modified_at())
    }

    /// Returns what is in a directory.
    pub(super) fn branch(&self) -> Option<&Branch> {
        match &self.0 {
            Kind::File(_) => None,
            Kind::Directory { branch, .. } => Some(branch),
        }
    }

    /// Returns what is in a directory, to be changed.
    pub(super) fn branch_mut(&mut self) -> Option<&mut Branch> {
        match &mut self.0 {
            Kind::File(_) => None,
            Kind::Directory { branch, .. } => Some(branch),
        }
    }

    /// Tells whether two nodes are the same but for what lies beneath them: files of one version, which is never used again for
    /// other content at the same path, or directories made at the same time.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Kind::File(file), Kind::File(other)) => file.version == other.version,
            (Kind::Directory { created_at, .. }, Kind::Directory { created_at: other, .. }) => created_at == other,
            _ => false,
        }
    }
}

/// Equal when nothing can differ: the same, and of directories with the same pages of children in memory.
impl PartialEq for StateNode {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other)
            && match (self.branch(), other.branch()) {
                (Some(branch), Some(other)) => branch.shares_all_with(other),
                _ => true,
            }
    }
}

impl Eq for StateNode {}

impl fmt::Debug for StateNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("StateNode");
        match &self.0 {
            Kind::File(file) => debug.field("version", &file.version).field("size_bytes", &file.content.len()),
            Kind::Directory { branch, .. } => debug.field("entries", &branch.entries()),
        };
        debug.finish()
    }
}
