//! The manifest of an index, and the keys of its rows.
//!
//! The manifest and the tail share the first character of their keys, so that one scan reads both consistently. Each kind uses
//! two characters:
//!
//! | key | row |
//! | --- | --- |
//! | `a` | the manifest of the trigram index |
//! | `a` and the key of a file | the file's signature, in its tail |
//! | `b`, id, `d`, number | file list of a segment, 512 files a row |
//! | `b`, id, `s`, number | bits of a segment |
//! | `c` | the manifest of the word index |
//! | `c` and the key of a file | the file's words, in its tail |
//! | `d`, id, `d`, number | file list of a segment with the word count of each file, 512 files a row |
//! | `d`, id, `s`, number | words of a segment, placed by their hashes, each with the files that contain it |

use super::kind::{Kind, Segment};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use treehold_core::error::{Error, ErrorKind, Result};

/// The state and contents of an index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest<S> {
    /// Which of the files that existed before the index it covers.
    pub(super) built: Built,
    /// Its segments, newest last.
    pub(super) segments: Vec<S>,
}

/// Which of the files that existed before the index it covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Built {
    /// All of them.
    Complete,
    /// The files up to and including this key.
    UpTo(String),
}

/// The only manifest format so far.
const FORMAT: u8 = 1;

impl<S: Serialize + DeserializeOwned> Manifest<S> {
    /// Creates an index without segments.
    pub(super) fn new(built: Built) -> Self {
        Self { built, segments: Vec::new() }
    }

    pub(super) fn to_bytes(&self) -> Bytes {
        postcard::to_stdvec(&(FORMAT, self)).expect("integers and strings always serialize").into()
    }

    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) if the bytes are not a manifest, or have a later format.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        match bytes.split_first() {
            Some((&FORMAT, rest)) => postcard::from_bytes(rest).map_err(|error| damaged("its manifest").with_source(error)),
            Some((format, _)) if *format > FORMAT => Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "the index of the tree has format {format}, but this version of treehold reads formats up to \
                        {FORMAT}; use a newer version"
                ),
            )),
            _ => Err(damaged("its manifest")),
        }
    }
}

/// Returns the key of a file's tail row.
pub(super) fn tail_key(manifest: &str, key: &str) -> String {
    [manifest, key].concat()
}

/// Returns the key prefix of all rows of a segment.
pub(super) fn segment_prefix<K: Kind>(id: u64) -> String {
    format!("{}{id:016x}", K::SEGMENTS)
}

/// Returns the key prefix of the segment that the given row key belongs to.
pub(super) fn segment_prefix_of<K: Kind>(key: &str) -> Option<&str> {
    key.get(..K::SEGMENTS.len() + 16)
}

/// Returns a key after all rows of a segment and before those of the next.
pub(super) fn after_segment(prefix: &str) -> String {
    format!("{prefix}t")
}

/// Returns the key of a file list row.
pub(super) fn files_key<K: Kind>(id: u64, row: usize) -> String {
    format!("{}{id:016x}d{row:08x}", K::SEGMENTS)
}

/// Returns the key of an entries row.
pub(super) fn entries_key<K: Kind>(id: u64, row: usize) -> String {
    format!("{}{id:016x}s{row:08x}", K::SEGMENTS)
}

/// The type of a segment row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SegmentRow {
    Files,
    Entries,
}

impl SegmentRow {
    /// Determines the type of a segment row from its key.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) if no segment row has such a key.
    pub(super) fn of<K: Kind>(key: &str) -> Result<Self> {
        match key.as_bytes().get(K::SEGMENTS.len() + 16) {
            Some(b'd') => Ok(Self::Files),
            Some(b's') => Ok(Self::Entries),
            _ => Err(damaged("a row of a segment")),
        }
    }
}

/// Returns the number of file entries in all segments.
pub(super) fn places<S: Segment>(manifest: &Manifest<S>) -> usize {
    manifest.segments.iter().map(|segment| segment.files()).sum()
}

/// Creates the error for a part of an index that cannot be read.
pub(super) fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the index of the tree is damaged: {what} is not what was stored; rebuild it"))
}
