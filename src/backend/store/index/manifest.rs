//! What an index consists of, and the keys of its rows.
//!
//! The manifest and the tail share the first character, so that one scan reads both as of one moment. Each kind has two of its own:
//!
//! | key | row |
//! | --- | --- |
//! | `a` | the manifest of the trigram index |
//! | `a` and the key of a file | the file's signature, in its tail |
//! | `b`, number, `d`, number | files of a segment, some hundreds a row |
//! | `b`, number, `s`, number | bits of a segment |
//! | `c` | the manifest of the word index |
//! | `c` and the key of a file | the file's words, in its tail |
//! | `d`, number, `d`, number | files of a segment with how many words each has, some hundreds a row |
//! | `d`, number, `s`, number | words of a segment by their hashes, with lists of the files that hold them |

use super::kind::{Kind, Segment};
use crate::error::{Error, ErrorKind, Result};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What an index consists of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::backend::store) struct Manifest<S> {
    /// How far the files that were there before the index are in it.
    pub(super) built: Built,
    /// Its segments, the newest last.
    pub(super) segments: Vec<S>,
}

/// How far the files that were there before the index are in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Built {
    /// All of them.
    Complete,
    /// Those up to this key.
    UpTo(String),
}

/// The oldest format of a manifest is also the newest.
const FORMAT: u8 = 1;

impl<S: Serialize + DeserializeOwned> Manifest<S> {
    /// An index without segments.
    pub(super) fn new(built: Built) -> Self {
        Self { built, segments: Vec::new() }
    }

    pub(super) fn to_bytes(&self) -> Bytes {
        postcard::to_stdvec(&(FORMAT, self)).expect("numbers and texts can always be written").into()
    }

    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) for what is no manifest, or one of a later format.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        match bytes.split_first() {
            Some((&FORMAT, rest)) => postcard::from_bytes(rest).map_err(|error| damaged("its manifest").with_source(error)),
            Some((format, _)) if *format > FORMAT => Err(Error::new(
                ErrorKind::Corrupt,
                format!("the index of the tree has format {format} and this program knows up to {FORMAT}; use a newer one"),
            )),
            _ => Err(damaged("its manifest")),
        }
    }
}

/// Returns the key of a file's row in the tail.
pub(super) fn tail_key(manifest: &str, key: &str) -> String {
    [manifest, key].concat()
}

/// Starts the keys of all rows of a segment.
pub(super) fn segment_prefix<K: Kind>(id: u64) -> String {
    format!("{}{id:016x}", K::SEGMENTS)
}

/// Returns what the keys of all rows of the same segment start with, given one of them.
pub(super) fn segment_prefix_of<K: Kind>(key: &str) -> Option<&str> {
    key.get(..K::SEGMENTS.len() + 16)
}

/// Returns a text after all keys that start with the prefix of a segment, and before those of the next.
pub(super) fn after_segment(prefix: &str) -> String {
    format!("{prefix}t")
}

/// Returns the key of a row that lists files of a segment.
pub(super) fn files_key<K: Kind>(id: u64, row: usize) -> String {
    format!("{}{id:016x}d{row:08x}", K::SEGMENTS)
}

/// Returns the key of a row that has a part of a segment's entries.
pub(super) fn entries_key<K: Kind>(id: u64, row: usize) -> String {
    format!("{}{id:016x}s{row:08x}", K::SEGMENTS)
}

/// What a row of a segment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SegmentRow {
    Files,
    Entries,
}

impl SegmentRow {
    /// Tells by its key what a row of a segment is.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) for one that no segment has.
    pub(super) fn of<K: Kind>(key: &str) -> Result<Self> {
        match key.as_bytes().get(K::SEGMENTS.len() + 16) {
            Some(b'd') => Ok(Self::Files),
            Some(b's') => Ok(Self::Entries),
            _ => Err(damaged("a row of a segment")),
        }
    }
}

/// Returns how many places files have in segments.
pub(super) fn places<S: Segment>(manifest: &Manifest<S>) -> usize {
    manifest.segments.iter().map(|segment| segment.files()).sum()
}

/// Makes the error of an index that cannot be read.
pub(super) fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the index of the tree is damaged: {what} is not what was stored; build it anew"))
}
