//! The file lists of segments, [`FILES_PER_ROW`] files in each row.

use super::manifest::damaged;
use serde::{Deserialize, Serialize};
use treehold_core::error::Result;
use treehold_core::ops::Version;

/// The cost of merging one entry of an index, in searched bytes.
pub(super) const ENTRY_BYTES: usize = 512;

/// The number of files in one row of a file list.
pub(super) const FILES_PER_ROW: usize = 512;

/// A file of a segment: its key in the tree, and the version that was indexed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IndexedFile {
    pub(super) key: String,
    pub(super) version: Version,
}

/// A file as it is stored: the number of key bytes it shares with the file before it, and the rest of its key.
#[derive(Serialize, Deserialize)]
struct Stored<'a> {
    shared: usize,
    rest: &'a str,
    version: u64,
}

/// Returns the length in bytes of the longest common prefix that ends at a character boundary in both texts.
pub(super) fn shared_bytes(before: &str, text: &str) -> usize {
    let mut shared = before.bytes().zip(text.bytes()).take_while(|(one, other)| one == other).count();
    while !text.is_char_boundary(shared) {
        shared -= 1;
    }
    shared
}

/// Encodes the files of one row.
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
    postcard::to_stdvec(&stored).expect("integers and strings always serialize")
}

/// Decodes the files of one row. Also returns the bytes that follow them.
///
/// # Errors
/// [`Corrupt`](treehold_core::error::ErrorKind::Corrupt) if the bytes are not a file list.
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
