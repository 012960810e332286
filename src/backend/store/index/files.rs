//! The files of a segment, listed some hundreds a row.

use super::manifest::damaged;
use crate::error::Result;
use crate::ops::Version;
use serde::{Deserialize, Serialize};

/// How many files a row of a segment's files names.
pub(super) const FILES_A_ROW: usize = 512;

/// A file of a segment: its key in the tree, and the version that its entry is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IndexedFile {
    pub(super) key: String,
    pub(super) version: Version,
}

/// A file as it is stored behind another one: how many bytes of its key are those of the other's, and the rest.
#[derive(Serialize, Deserialize)]
struct Stored<'a> {
    shared: usize,
    rest: &'a str,
    version: u64,
}

/// Returns how many bytes two texts start with alike, whole characters only.
pub(super) fn shared_bytes(before: &str, text: &str) -> usize {
    let mut shared = before.bytes().zip(text.bytes()).take_while(|(one, other)| one == other).count();
    while !text.is_char_boundary(shared) {
        shared -= 1;
    }
    shared
}

/// Writes the files of one row.
pub(super) fn to_bytes(files: &[IndexedFile]) -> Vec<u8> {
    let mut before = "";
    let stored: Vec<Stored<'_>> = files
        .iter()
        .map(|file| {
            let shared = shared_bytes(before, &file.key);
            before = &file.key;
            Stored { shared, rest: &file.key[shared..], version: file.version.number() }
        })
        .collect();
    postcard::to_stdvec(&stored).expect("numbers and texts can always be written")
}

/// Reads the files of one row, and returns what stands behind them.
///
/// # Errors
/// [`Corrupt`](crate::error::ErrorKind::Corrupt) for what is none.
pub(super) fn from_bytes(bytes: &[u8]) -> Result<(Vec<IndexedFile>, &[u8])> {
    let (stored, rest): (Vec<Stored<'_>>, _) =
        postcard::take_from_bytes(bytes).map_err(|error| damaged("a list of files").with_source(error))?;
    let mut files: Vec<IndexedFile> = Vec::with_capacity(stored.len());
    for Stored { shared, rest, version } in stored {
        let before = files.last().map_or("", |file| &file.key);
        let shared = before.get(..shared).ok_or_else(|| damaged("a list of files"))?;
        files.push(IndexedFile { key: [shared, rest].concat(), version: Version::new(version) });
    }
    Ok((files, rest))
}
