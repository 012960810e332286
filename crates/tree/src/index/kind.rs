//! What differs between index kinds: what each keeps of a file, and its layout in the tail and in segments.
//!
//! Everything else, such as who writes an index, when, and how a search reads it consistently, is shared by all kinds and does
//! not depend on these details.

use super::files::IndexedFile;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use treehold_core::error::{Error, Result};
use treehold_core::path::VfsPath;

/// A kind of index that a tree in a store may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum IndexKind {
    /// The three-byte sequences in each file. A grep reads only files that may match.
    Trigram,
    /// The number of times each file contains each word. A ranked search reads only the best files.
    Words,
}

impl IndexKind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Trigram, Self::Words];

    /// Returns the name used in configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Trigram => "trigram",
            Self::Words => "words",
        }
    }

    /// Returns its position in [`IndexKind::ALL`].
    pub(super) const fn place(self) -> usize {
        match self {
            Self::Trigram => 0,
            Self::Words => 1,
        }
    }

    /// Returns the key of the manifest, which is also the key prefix of the tail.
    pub(super) const fn manifest(self) -> &'static str {
        match self {
            Self::Trigram => "a",
            Self::Words => "c",
        }
    }

    /// Returns the key prefix of all segment rows.
    pub(super) const fn segments(self) -> &'static str {
        match self {
            Self::Trigram => "b",
            Self::Words => "d",
        }
    }

    /// Returns the tail length, in files, at which a process settles the tail. Every search reads the whole tail; the limit for
    /// words is lower because their entries are larger.
    pub(super) const fn tail_files(self) -> usize {
        match self {
            Self::Trigram => 1_024,
            Self::Words => 512,
        }
    }

    /// Returns the tail length, in files, at which a search settles the tail for the searches that follow.
    pub(super) const fn searched_tail_files(self) -> usize {
        self.tail_files() / 4
    }

    /// Returns the tail length, in files, at which writers wait for the tail to be settled, because the background task has
    /// fallen behind.
    pub(super) const fn tail_files_max(self) -> usize {
        8 * self.tail_files()
    }
}

impl fmt::Display for IndexKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for IndexKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let names = || Self::ALL.map(|kind| format!("`{kind}`")).join(" and ");
        let unknown = || Error::invalid_argument(format!("`{text}` is not a kind of index; the kinds are {}", names()));
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(unknown)
    }
}

/// The implementation of one [`IndexKind`].
pub(super) trait Kind: Sized + Send + Sync + 'static {
    /// The kind that is implemented.
    const KIND: IndexKind;

    /// The key of the manifest, which is also the key prefix of the tail.
    const MANIFEST: &'static str = Self::KIND.manifest();

    /// The key prefix of all segment rows.
    const SEGMENTS: &'static str = Self::KIND.segments();

    /// The maximum size of a merged segment in bytes. Segments are not merged if the result would exceed it.
    const SEGMENT_BYTES_MAX: usize;

    /// What the index keeps of one file.
    type Entry: Send + 'static;

    /// A segment as the manifest describes it.
    type Segment: Segment;

    /// A file as a segment lists it.
    type File: Send;

    /// A segment loaded into memory.
    type Part: Part<Segment = Self::Segment>;

    /// Computes the entry of a file.
    fn entry(path: &VfsPath, content: &[u8]) -> Self::Entry;

    /// Returns the entry of an unreadable file. It matches every search, so each search visits and reports the file.
    fn unread() -> Self::Entry;

    /// Encodes an entry as a tail row.
    fn to_bytes(entry: &Self::Entry) -> Bytes;

    /// Decodes a tail row.
    ///
    /// # Errors
    /// [`Corrupt`](treehold_core::error::ErrorKind::Corrupt) if the bytes are not an entry.
    fn from_bytes(bytes: &[u8]) -> Result<Self::Entry>;

    /// Returns the approximate size of an entry in bytes.
    fn size_bytes(entry: &Self::Entry) -> usize;

    /// Returns whether the stored entry finds the file in every search that the fresh entry `now` would find it in.
    fn covers(kept: &Self::Entry, now: &Self::Entry) -> bool;

    /// Builds segments from files and their entries: one segment for each group.
    fn parts(entries: Vec<(IndexedFile, Self::Entry)>) -> Vec<Self::Part>;

    /// Decodes a row of a segment's file list.
    ///
    /// # Errors
    /// [`Corrupt`](treehold_core::error::ErrorKind::Corrupt) if the bytes are not a file list.
    fn files_from_bytes(bytes: &[u8]) -> Result<Vec<Self::File>>;

    /// Returns a 64-bit digest of an entry. Different entries collide with probability 2^-64.
    fn digest(entry: &Self::Entry) -> u64;

    /// Returns the digest of each file's entry in a segment, or `None` for files that match every search.
    fn digests(part: &Self::Part) -> Vec<Option<u64>>;
}

/// A segment as the manifest describes it.
pub(super) trait Segment: Copy + fmt::Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Returns its id, which is never reused.
    fn id(self) -> u64;

    /// Returns the number of files.
    fn files(self) -> usize;

    /// Returns its group. Only segments of the same group are merged.
    fn group(self) -> u8;

    /// Returns the approximate size of its entries in bytes.
    fn size_bytes(self) -> usize;
}

/// A segment loaded into memory.
pub(super) trait Part: Sized + Send + Sync + 'static {
    /// Its description in the manifest.
    type Segment: Segment;

    /// Returns its files in the order of their numbers.
    fn files(&self) -> &[IndexedFile];

    /// Encodes the segment under the given id: its description for the manifest, and its rows in key order.
    fn rows(&self, id: u64) -> (Self::Segment, Vec<(String, Bytes)>);

    /// Decodes a segment from all its rows in key order.
    ///
    /// # Errors
    /// [`Corrupt`](treehold_core::error::ErrorKind::Corrupt) if the rows do not make up the described segment.
    fn from_rows<'r>(segment: Self::Segment, rows: impl Iterator<Item = (&'r str, &'r Bytes)>) -> Result<Self>;

    /// Merges segments of one group, keeping only the files that `is_kept` accepts.
    fn merged(parts: &[Self], is_kept: impl Fn(&IndexedFile) -> bool) -> Self;
}

/// Mixes all bits of a hash into each other: the finalizer of [MurmurHash3](https://github.com/aappleby/smhasher).
pub(super) fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    hash ^ (hash >> 33)
}
