//! The nodes of a tree in memory.

use super::page::{Miss, Totals};
use bytes::Bytes;
use jiff::Timestamp;
use std::fmt;
use std::sync::{Arc, OnceLock};
use treehold_core::file::is_binary;
use treehold_core::ops::{Entry, Version};
use treehold_core::path::VfsPathBuf;

/// A file or directory of a [`StateSnapshot`](super::StateSnapshot).
///
/// The content of a saved file stays in the store until it is first read. There is one node per file, so its size
/// matters.
#[derive(Clone)]
pub struct StateNode {
    content: OnceLock<Bytes>,
    body: OnceLock<StoredBody>,
    /// Whether the content is binary; cached because finding out takes half as long as a search.
    binary: OnceLock<bool>,
    size_bytes: u64,
    /// The version number, or [`DIRECTORY`].
    version: u64,
    created_at: Microseconds,
    modified_at: Microseconds,
}

/// The value of `version` that marks a directory.
const DIRECTORY: u64 = u64::MAX;

/// The location of a file's saved content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoredBody {
    /// The source that it is saved in.
    pub(crate) origin: u32,
    /// The BLAKE3 hash of the content.
    pub(crate) hash: [u8; 32],
}

/// Microseconds since 1970, half the size of a [`Timestamp`].
#[derive(Clone, Copy, PartialEq, Eq)]
struct Microseconds(i64);

impl From<Timestamp> for Microseconds {
    fn from(time: Timestamp) -> Self {
        Self(time.as_microsecond())
    }
}

impl From<Microseconds> for Timestamp {
    fn from(time: Microseconds) -> Self {
        Self::from_microsecond(time.0).expect("the number came from a valid timestamp")
    }
}

impl StateNode {
    /// Makes a file. Times are truncated to whole microseconds.
    pub fn file(content: impl Into<Bytes>, version: Version, created_at: Timestamp, modified_at: Timestamp) -> Self {
        let content = content.into();
        let size_bytes = content.len() as u64;
        let (content, version) = (OnceLock::from(content), version.number().min(DIRECTORY - 1));
        Self {
            content,
            body: OnceLock::new(),
            binary: OnceLock::new(),
            size_bytes,
            version,
            created_at: created_at.into(),
            modified_at: modified_at.into(),
        }
    }

    /// Makes a file whose content is saved and not in memory.
    pub(crate) fn saved_file(body: StoredBody, size_bytes: u64, version: Version, created_at: Timestamp, modified_at: Timestamp) -> Self {
        let content = if size_bytes == 0 { OnceLock::from(Bytes::new()) } else { OnceLock::new() };
        let version = version.number().min(DIRECTORY - 1);
        Self {
            content,
            body: OnceLock::from(body),
            binary: OnceLock::new(),
            size_bytes,
            version,
            created_at: created_at.into(),
            modified_at: modified_at.into(),
        }
    }

    /// Makes a directory.
    pub fn directory(created_at: Timestamp) -> Self {
        Self {
            content: OnceLock::new(),
            body: OnceLock::new(),
            binary: OnceLock::new(),
            size_bytes: 0,
            version: DIRECTORY,
            created_at: created_at.into(),
            modified_at: created_at.into(),
        }
    }

    /// Returns whether this is a directory.
    pub fn is_directory(&self) -> bool {
        self.version == DIRECTORY
    }

    /// Returns the content of a file, shared, if it is in memory; `None` for a directory.
    pub fn content(&self) -> Option<&Bytes> {
        self.content.get()
    }

    /// Returns the content of a file, shared; empty for a directory.
    pub(super) fn loaded(self: &Arc<Self>) -> Result<Bytes, Miss> {
        match self.content() {
            Some(content) => Ok(content.clone()),
            None if self.is_directory() => Ok(Bytes::new()),
            None => Err(Miss::Body(self.clone())),
        }
    }

    /// Stores loaded content, unless content is already present.
    pub(crate) fn load(&self, content: Bytes) {
        let _ = self.content.set(content);
    }

    /// Returns whether the given content of this file is binary, and caches the result.
    pub(super) fn is_binary(&self, content: &[u8]) -> bool {
        *self.binary.get_or_init(|| is_binary(content))
    }

    /// Returns the location of the saved content, if there is one.
    pub(crate) fn body(&self) -> Option<&StoredBody> {
        self.body.get()
    }

    /// Records the location of the saved content, unless one is already known.
    pub(crate) fn set_body(&self, body: StoredBody) {
        let _ = self.body.set(body);
    }

    /// Returns the size in bytes; 0 for a directory.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the version of a file; `None` for a directory.
    pub fn version(&self) -> Option<Version> {
        (!self.is_directory()).then_some(Version::new(self.version))
    }

    /// Returns when the path first appeared.
    pub fn created_at(&self) -> Timestamp {
        self.created_at.into()
    }

    /// Returns when the content of a file last changed; `None` for a directory.
    pub fn modified_at(&self) -> Option<Timestamp> {
        (!self.is_directory()).then(|| self.modified_at.into())
    }

    /// Returns the node as an entry of a listing.
    pub fn entry(&self, path: impl Into<VfsPathBuf>) -> Entry {
        let entry = match self.version() {
            Some(version) => Entry::file(path, self.size_bytes(), version),
            None => Entry::directory(path),
        };
        entry.with_times(Some(self.created_at()), self.modified_at())
    }

    /// Returns the node's contribution to totals.
    pub(super) fn totals(&self) -> Totals {
        Totals { entries: 1, size_bytes: self.size_bytes() }
    }

    /// Returns the node with another version; directories have none.
    pub(super) fn at_version(&self, version: Version) -> Self {
        let version = if self.is_directory() { DIRECTORY } else { version.number().min(DIRECTORY - 1) };
        Self { version, ..self.clone() }
    }

    /// Returns the BLAKE3 hash of a file's content, if that is saved or in memory.
    ///
    /// Cost: hashing the content, unless it is saved.
    pub(crate) fn hash(&self) -> Option<[u8; 32]> {
        self.body().map(|body| body.hash).or_else(|| self.content().map(|content| *blake3::hash(content).as_bytes()))
    }
}

/// Files are equal if version, times and content are equal, directories if they were created at the same time.
///
/// Within one line of states a version is never reused for other content. But two lines that continue from one
/// checkpoint at the same instant issue the same versions, so contents are compared too: by hash, or bytewise in
/// memory. Contents are not compared only if one is saved, the other is not, and versions, times and sizes agree.
impl PartialEq for StateNode {
    fn eq(&self, other: &Self) -> bool {
        let is_same_content = || match (self.body(), other.body(), self.content(), other.content()) {
            (Some(body), Some(other), ..) => body.hash == other.hash,
            (_, _, Some(content), Some(other)) => content == other,
            _ => self.size_bytes == other.size_bytes,
        };
        self.version == other.version
            && self.created_at == other.created_at
            && self.modified_at == other.modified_at
            && (self.is_directory() || is_same_content())
    }
}

impl Eq for StateNode {}

impl fmt::Debug for StateNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("StateNode");
        if let Some(version) = self.version() {
            debug.field("version", &version).field("size_bytes", &self.size_bytes());
        }
        debug.finish()
    }
}
