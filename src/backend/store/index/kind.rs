//! What one kind of index has of its own: what it keeps of a file, and how that lies in the tail and in segments.
//!
//! All else, who writes it when and how it is read as of one moment, is the same for every kind and knows nothing of these.

use super::files::IndexedFile;
use crate::error::{Error, Result};
use crate::path::VfsPath;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A kind of index that a tree of rows may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum IndexKind {
    /// Which runs of three bytes each file holds, by which a grep reads only files that may match.
    Trigram,
    /// How often each file holds each word, by which a ranked search reads only the best files.
    Words,
}

impl IndexKind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Trigram, Self::Words];

    /// Returns the name by which a configuration asks for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Trigram => "trigram",
            Self::Words => "words",
        }
    }

    /// Returns its place among all kinds.
    pub(super) const fn place(self) -> usize {
        match self {
            Self::Trigram => 0,
            Self::Words => 1,
        }
    }

    /// Returns the key of its manifest, which those of its tail start with.
    pub(super) const fn manifest(self) -> &'static str {
        match self {
            Self::Trigram => "a",
            Self::Words => "c",
        }
    }

    /// Returns what the keys of all rows of its segments start with.
    pub(super) const fn segments(self) -> &'static str {
        match self {
            Self::Trigram => "b",
            Self::Words => "d",
        }
    }

    /// Returns how many files in its tail make a process settle it. Each search reads the tail, and words take more bytes.
    pub(super) const fn tail_files(self) -> usize {
        match self {
            Self::Trigram => 1_024,
            Self::Words => 512,
        }
    }

    /// Returns how many files in its tail make a writer wait until it is settled, as the task that does it falls behind.
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
        let unknown = || Error::invalid_argument(format!("`{text}` is no kind of index; there are {}", names()));
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(unknown)
    }
}

/// A kind of index.
pub(super) trait Kind: Sized + Send + Sync + 'static {
    /// Which one it is.
    const KIND: IndexKind;

    /// The key of the manifest, which those of the tail start with.
    const MANIFEST: &'static str = Self::KIND.manifest();

    /// What the keys of all rows of segments start with.
    const SEGMENTS: &'static str = Self::KIND.segments();

    /// How many bytes a segment has at most; those that would be larger are merged no further.
    const SEGMENT_BYTES_MAX: usize;

    /// What is kept of a file.
    type Entry: Send + 'static;

    /// A segment as the manifest names it.
    type Segment: Segment;

    /// What a segment says of one of its files.
    type File: Send;

    /// A segment in memory.
    type Part: Part<Segment = Self::Segment>;

    /// Takes what is kept of a file.
    fn entry(path: &VfsPath, content: &[u8]) -> Self::Entry;

    /// Returns what is kept of a file that nobody can read: each search looks at it, and tells of it.
    fn unread() -> Self::Entry;

    /// Writes the row of the tail.
    fn to_bytes(entry: &Self::Entry) -> Bytes;

    /// Reads the row of the tail.
    ///
    /// # Errors
    /// [`Corrupt`](crate::error::ErrorKind::Corrupt) for what is none.
    fn from_bytes(bytes: &[u8]) -> Result<Self::Entry>;

    /// Returns how many bytes an entry takes, about.
    fn size_bytes(entry: &Self::Entry) -> usize;

    /// Tells whether a search finds a file by what is kept of it, given what would be kept of it now.
    fn covers(kept: &Self::Entry, now: &Self::Entry) -> bool;

    /// Makes segments of files with their entries: one for each group.
    fn parts(entries: Vec<(IndexedFile, Self::Entry)>) -> Vec<Self::Part>;

    /// Reads a row that lists files of a segment.
    ///
    /// # Errors
    /// [`Corrupt`](crate::error::ErrorKind::Corrupt) for what is none.
    fn files_from_bytes(bytes: &[u8]) -> Result<Vec<Self::File>>;

    /// Returns a number that stands for an entry: one of another is another, but for a chance of one in 2^64.
    fn digest(entry: &Self::Entry) -> u64;

    /// Returns for each file of a segment the number of its entry; none for one that every search looks at.
    fn digests(part: &Self::Part) -> Vec<Option<u64>>;
}

/// A segment as the manifest names it.
pub(super) trait Segment: Copy + fmt::Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Returns its number, which no other had.
    fn id(self) -> u64;

    /// Returns how many files it has.
    fn files(self) -> usize;

    /// Returns its group: only those of one group are merged.
    fn group(self) -> u8;

    /// Returns how many bytes its entries take, about.
    fn size_bytes(self) -> usize;
}

/// A segment in memory.
pub(super) trait Part: Sized + Send + Sync + 'static {
    /// As the manifest names it.
    type Segment: Segment;

    /// Returns its files, in the order of their numbers.
    fn files(&self) -> &[IndexedFile];

    /// Gives it a number: as the manifest names it, and its rows in key order.
    fn rows(&self, id: u64) -> (Self::Segment, Vec<(String, Bytes)>);

    /// Reads a segment back: all its rows in key order.
    ///
    /// # Errors
    /// [`Corrupt`](crate::error::ErrorKind::Corrupt) when they are not those of the segment.
    fn from_rows<'r>(segment: Self::Segment, rows: impl Iterator<Item = (&'r str, &'r Bytes)>) -> Result<Self>;

    /// Puts parts of one group together, without the files that `is_kept` leaves out.
    fn merged(parts: &[Self], is_kept: impl Fn(&IndexedFile) -> bool) -> Self;
}

/// Spreads numbers over all others: the last step of [MurmurHash3](https://github.com/aappleby/smhasher).
pub(super) fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    hash ^ (hash >> 33)
}
