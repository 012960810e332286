//! The word index, which tells which files contain a word and how often, so that a ranked search reads only the best of them.
//!
//! It keeps the [`FileWords`] of each file. A segment maps each word to the files that contain it, in rows chosen by the hash of
//! the word. So a lookup can compute the keys of all rows it needs without reading a dictionary first.
//!
//! An unreadable file is stored as one that contains the empty word, which no other file does.

mod coding;
mod lists;
mod postings;

pub(crate) use self::postings::{Posting, Postings};

use self::coding::{put_number, put_word, take_number, take_small, take_word};
use self::lists::Lists;
use super::files::{self, IndexedFile};
use super::kind::{IndexKind, Kind, Segment, mix};
use super::manifest::damaged;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use treehold_core::error::Result;
use treehold_core::path::VfsPath;
use treehold_core::search::words::FileWords;

/// The word that marks an unreadable file.
const UNREAD: &str = "";

/// The binary logarithm of the maximum number of word rows of a segment.
const ROWS_LOG2_MAX: u8 = 24;

/// The word index.
pub(super) struct Words;

/// A file as a segment lists it, with its number of words.
pub(super) struct CountedFile {
    file: IndexedFile,
    length: u32,
}

impl Kind for Words {
    const KIND: IndexKind = IndexKind::Words;
    const SEGMENT_BYTES_MAX: usize = 32 << 20;

    type Entry = FileWords;
    type Segment = CountedFiles;
    type File = CountedFile;
    type Part = Lists;

    fn entry(path: &VfsPath, content: &[u8]) -> FileWords {
        FileWords::of(path, content)
    }

    fn unread() -> FileWords {
        FileWords { length: 0, counts: vec![(UNREAD.to_owned(), 1)] }
    }

    fn to_bytes(words: &FileWords) -> Bytes {
        let mut bytes = Vec::with_capacity(Self::size_bytes(words));
        put_number(&mut bytes, u64::from(words.length));
        put_number(&mut bytes, words.counts.len() as u64);
        let mut before = "";
        for (word, count) in &words.counts {
            put_word(&mut bytes, before, word);
            put_number(&mut bytes, u64::from(*count));
            before = word;
        }
        bytes.into()
    }

    fn from_bytes(bytes: &[u8]) -> Result<FileWords> {
        let mut counts = Vec::new();
        let length = decode_row(bytes, |word, count| counts.push((word.to_owned(), count)))?;
        Ok(FileWords { length, counts })
    }

    fn size_bytes(words: &FileWords) -> usize {
        let (mut bytes, mut before) = (8, "");
        for (word, _) in &words.counts {
            bytes += word.len() - files::shared_bytes(before, word) + 3;
            before = word;
        }
        bytes
    }

    fn covers(kept: &FileWords, now: &FileWords) -> bool {
        kept == now || is_unread(kept)
    }

    fn parts(entries: Vec<(IndexedFile, FileWords)>) -> Vec<Lists> {
        if entries.is_empty() { Vec::new() } else { vec![Lists::of(entries)] }
    }

    fn files_from_bytes(bytes: &[u8]) -> Result<Vec<CountedFile>> {
        let (files, mut lengths) = files::from_bytes(bytes)?;
        let counted = |file| Some(CountedFile { file, length: take_small(&mut lengths)? });
        files.into_iter().map(counted).collect::<Option<_>>().ok_or_else(|| damaged("a list of files"))
    }

    fn digest(words: &FileWords) -> u64 {
        digest_of(words)
    }

    fn digests(lists: &Lists) -> Vec<Option<u64>> {
        lists.digests()
    }
}

/// A segment: the words of some files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CountedFiles {
    id: u64,
    /// The binary logarithm of the number of word rows.
    rows_log2: u8,
    /// The number of files, unreadable ones included.
    files: u32,
    /// The number of unreadable files.
    unread: u32,
    /// The total number of words of its files.
    words: u64,
    /// The size of its words and lists in bytes.
    bytes: u64,
}

impl CountedFiles {
    /// # Errors
    /// [`Corrupt`](treehold_core::error::ErrorKind::Corrupt) if the description is invalid.
    fn check(self) -> Result<()> {
        if self.rows_log2 <= ROWS_LOG2_MAX && self.unread <= self.files { Ok(()) } else { Err(damaged("its manifest")) }
    }

    /// Returns the number of the row that has a word.
    fn row_of(self, word: &str) -> usize {
        row_of(word, self.rows_log2)
    }
}

impl Segment for CountedFiles {
    fn id(self) -> u64 {
        self.id
    }

    fn files(self) -> usize {
        self.files as usize
    }

    fn group(self) -> u8 {
        0
    }

    fn size_bytes(self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX)
    }
}

fn is_unread(words: &FileWords) -> bool {
    words.counts.first().is_some_and(|(word, _)| word == UNREAD)
}

/// Decodes a tail row: calls `take` with each word and its count, in order, and returns the number of words in the file.
fn decode_row(mut bytes: &[u8], mut take: impl FnMut(&str, u32)) -> Result<u32> {
    let damaged = || damaged("the words of a file");
    let length = take_small(&mut bytes).ok_or_else(damaged)?;
    let count = take_number(&mut bytes).ok_or_else(damaged)?;
    let mut word = String::new();
    for number in 0..count {
        take_word(&mut bytes, &mut word, number == 0).ok_or_else(damaged)?;
        take(&word, take_small(&mut bytes).ok_or_else(damaged)?);
    }
    if bytes.is_empty() { Ok(length) } else { Err(damaged()) }
}

fn row_of(word: &str, rows_log2: u8) -> usize {
    (hash(word) & ((1 << rows_log2) - 1)) as usize
}

/// Hashes a word. Rows are placed by this hash, so it must never change: [FNV-1a](https://www.rfc-editor.org/rfc/rfc9923) with a
/// finalizer, because the low bits of FNV-1a alone are unevenly distributed.
fn hash(word: &str) -> u64 {
    let hash = word.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3));
    mix(hash)
}

/// Returns what a word contributes to the digest of a file's words. Contributions are summed, so their order does not matter.
fn digest_of_word(word: &str, count: u32) -> u64 {
    mix(hash(word) ^ u64::from(count).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

fn digest_of(words: &FileWords) -> u64 {
    words.counts.iter().fold(digest_of_length(words.length), |sum, (word, count)| sum.wrapping_add(digest_of_word(word, *count)))
}

fn digest_of_length(length: u32) -> u64 {
    mix(u64::from(length).wrapping_add(1))
}
