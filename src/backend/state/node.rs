//! What stands at one path of a tree in memory.

use super::page::{Miss, Totals};
use crate::ops::{Entry, Version};
use crate::path::VfsPathBuf;
use bytes::Bytes;
use jiff::Timestamp;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// A file or directory of a [`StateSnapshot`](super::StateSnapshot).
///
/// The content of a file that was saved may stand where it is saved, and not in memory, until it is first read.
#[derive(Clone)]
pub struct StateNode(Kind);

#[derive(Clone)]
enum Kind {
    File(File),
    Directory { created_at: Microseconds },
}

#[derive(Clone)]
struct File {
    content: OnceLock<Bytes>,
    body: OnceLock<StoredBody>,
    version: Version,
    created_at: Microseconds,
    modified_at: Microseconds,
}

/// The content of a file where it is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoredBody {
    /// Which source it is saved in.
    pub(crate) origin: u64,
    /// The BLAKE3 hash of the content.
    pub(crate) hash: [u8; 32],
    /// The size in bytes.
    pub(crate) size_bytes: u64,
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
        Self::of(OnceLock::from(content.into()), OnceLock::new(), version, created_at, modified_at)
    }

    /// Makes a file whose content stands where it is saved.
    pub(crate) fn saved_file(body: StoredBody, version: Version, created_at: Timestamp, modified_at: Timestamp) -> Self {
        let content = if body.size_bytes == 0 { OnceLock::from(Bytes::new()) } else { OnceLock::new() };
        Self::of(content, OnceLock::from(body), version, created_at, modified_at)
    }

    fn of(content: OnceLock<Bytes>, body: OnceLock<StoredBody>, version: Version, created_at: Timestamp, modified_at: Timestamp) -> Self {
        Self(Kind::File(File { content, body, version, created_at: created_at.into(), modified_at: modified_at.into() }))
    }

    /// Makes a directory.
    pub fn directory(created_at: Timestamp) -> Self {
        Self(Kind::Directory { created_at: created_at.into() })
    }

    /// Tells whether this is a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.0, Kind::Directory { .. })
    }

    /// Returns the content of a file, shared, if it is in memory; of a directory, none.
    pub fn content(&self) -> Option<&Bytes> {
        self.as_file()?.content.get()
    }

    /// Returns the content of a file, shared; of a directory, that of an empty file.
    pub(super) fn loaded(self: &Arc<Self>) -> Result<Bytes, Miss> {
        match self.content() {
            Some(content) => Ok(content.clone()),
            None if self.is_directory() => Ok(Bytes::new()),
            None => Err(Miss::Body(self.clone())),
        }
    }

    /// Takes the content that was loaded; what is there already stays.
    pub(crate) fn load(&self, content: Bytes) {
        if let Kind::File(file) = &self.0 {
            let _ = file.content.set(content);
        }
    }

    /// Returns where the content of a file is saved, if it is.
    pub(crate) fn body(&self) -> Option<&StoredBody> {
        self.as_file()?.body.get()
    }

    /// Remembers where the content of a file was saved; a place it has already stays.
    pub(crate) fn set_body(&self, body: StoredBody) {
        if let Kind::File(file) = &self.0 {
            let _ = file.body.set(body);
        }
    }

    /// Returns the size in bytes; of a directory, 0.
    pub fn size_bytes(&self) -> u64 {
        match self.content() {
            Some(content) => content.len() as u64,
            None => self.body().map_or(0, |body| body.size_bytes),
        }
    }

    /// Returns the version of a file; of a directory, none.
    pub fn version(&self) -> Option<Version> {
        self.as_file().map(|file| file.version)
    }

    /// Returns when the path first appeared.
    pub fn created_at(&self) -> Timestamp {
        match &self.0 {
            Kind::File(File { created_at, .. }) | Kind::Directory { created_at } => (*created_at).into(),
        }
    }

    /// Returns when the content of a file last changed; of a directory, none.
    pub fn modified_at(&self) -> Option<Timestamp> {
        self.as_file().map(|file| file.modified_at.into())
    }

    /// Returns the node as a line of a listing.
    pub fn entry(&self, path: impl Into<VfsPathBuf>) -> Entry {
        let entry = match self.version() {
            Some(version) => Entry::file(path, self.size_bytes(), version),
            None => Entry::directory(path),
        };
        entry.with_times(Some(self.created_at()), self.modified_at())
    }

    /// Returns what the node counts for.
    pub(super) fn totals(&self) -> Totals {
        Totals { entries: 1, size_bytes: self.size_bytes() }
    }

    fn as_file(&self) -> Option<&File> {
        match &self.0 {
            Kind::File(file) => Some(file),
            Kind::Directory { .. } => None,
        }
    }
}

/// Equal when nothing differs: files of one version, times and content, or directories made at the same time.
///
/// Within one line of states a version is never used again for other content. But two that go on from one checkpoint at the same
/// instant give out the same numbers: so contents are compared too, by their hashes, or byte for byte in memory. Only where one is
/// saved and the other is not, and their versions, times and sizes agree, it is not looked at.
impl PartialEq for StateNode {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Kind::File(file), Kind::File(of_other)) => {
                let is_same_content = || match (file.body.get(), of_other.body.get(), file.content.get(), of_other.content.get()) {
                    (Some(body), Some(other), ..) => body.hash == other.hash,
                    (_, _, Some(content), Some(other)) => content == other,
                    _ => self.size_bytes() == other.size_bytes(),
                };
                file.version == of_other.version
                    && (file.created_at, file.modified_at) == (of_other.created_at, of_other.modified_at)
                    && is_same_content()
            }
            (Kind::Directory { created_at }, Kind::Directory { created_at: other }) => created_at == other,
            _ => false,
        }
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
