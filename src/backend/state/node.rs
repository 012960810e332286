//! What stands at one path of a tree in memory.

use crate::ops::{Entry, Version};
use crate::path::VfsPath;
use bytes::Bytes;
use jiff::Timestamp;

/// A file or directory of a [`StateSnapshot`](super::StateSnapshot).
///
/// Two nodes are equal when they stand for the same content: files by their version, which is never used again for other
/// content at the same path, directories by their creation time.
#[derive(Debug, Clone)]
pub struct StateNode(Kind);

#[derive(Debug, Clone)]
enum Kind {
    File { content: Bytes, version: Version, created_at: Timestamp, modified_at: Timestamp },
    Directory { created_at: Timestamp },
}

impl StateNode {
    /// Makes a file.
    pub fn file(content: impl Into<Bytes>, version: Version, created_at: Timestamp, modified_at: Timestamp) -> Self {
        Self(Kind::File { content: content.into(), version, created_at, modified_at })
    }

    /// Makes a directory.
    pub fn directory(created_at: Timestamp) -> Self {
        Self(Kind::Directory { created_at })
    }

    /// Tells whether this is a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.0, Kind::Directory { .. })
    }

    /// Returns the content of a file, shared; of a directory, none.
    pub fn content(&self) -> Option<&Bytes> {
        match &self.0 {
            Kind::File { content, .. } => Some(content),
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
            Kind::File { version, .. } => Some(*version),
            Kind::Directory { .. } => None,
        }
    }

    /// Returns when the path first appeared.
    pub fn created_at(&self) -> Timestamp {
        match &self.0 {
            Kind::File { created_at, .. } | Kind::Directory { created_at } => *created_at,
        }
    }

    /// Returns when the content of a file last changed; of a directory, none.
    pub fn modified_at(&self) -> Option<Timestamp> {
        match &self.0 {
            Kind::File { modified_at, .. } => Some(*modified_at),
            Kind::Directory { .. } => None,
        }
    }

    /// Returns the node as a line of a listing.
    pub fn entry(&self, path: &VfsPath) -> Entry {
        match &self.0 {
            Kind::File { content, version, created_at, modified_at } => {
                Entry::file(path, content.len() as u64, *version).with_times(Some(*created_at), Some(*modified_at))
            }
            Kind::Directory { created_at } => Entry::directory(path).with_times(Some(*created_at), None),
        }
    }
}

impl PartialEq for StateNode {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Kind::File { version, .. }, Kind::File { version: other, .. }) => version == other,
            (Kind::Directory { created_at }, Kind::Directory { created_at: other }) => created_at == other,
            _ => false,
        }
    }
}

impl Eq for StateNode {}
