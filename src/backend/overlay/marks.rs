//! What the upper tree keeps beside the files: for each path that no longer shows the lower tree, a mark.
//!
//! Everything of an overlay lies in its upper tree, so that it lives as long as that does:
//!
//! - `/tree/...`: the files and directories that were written, at their own paths,
//! - `/marks/<hash of the directory>/<name>`: a small file for each path at which the lower tree does not count any more,
//! - `/turn`: a file that every batch replaces on the condition that nobody else did.
//!
//! A mark's name is that of the path it is about, so names keep all their 255 bytes and no user's path can meet it; the hash
//! of the directory above stands for where it is. All marks of one directory are thus one listing. **A path with a mark shows
//! nothing of the lower tree, nor does anything beneath it.** The directory above a mark always is one of `/tree`, so where
//! `/tree` has no directory the overlay has changed nothing.

use crate::error::{Error, ErrorKind, Result};
use crate::ops::{Entry, EntryKind};
use crate::path::{VfsPath, VfsPathBuf};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where the files stand in the upper tree.
pub(super) const TREE: &str = "/tree";

/// Where the marks stand in the upper tree.
pub(super) const MARKS: &str = "/marks";

/// The file that every batch replaces.
pub(super) const TURN: &str = "/turn";

/// The format of a mark: its first byte.
const FORMAT: u8 = 2;

/// The format before intents were kept.
const FORMAT_WITHOUT_INTENTS: u8 = 1;

/// Why a path shows nothing of the lower tree, and what the lower tree had there when the overlay first touched it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Mark {
    /// What the lower tree had; none where a mark above tells, or where there was nothing.
    pub(super) base: Option<Base>,
    /// When the file of the overlay first appeared, where its own row does not know.
    pub(super) created_at: Option<Timestamp>,
    /// When its content last changed, where its own row does not know.
    pub(super) modified_at: Option<Timestamp>,
    /// What an apply was about to leave in the lower tree: here under the empty name, and beneath by relative path where the paths have no
    /// mark of their own. Where the lower tree is so, the overlay itself wrote it.
    pub(super) intents: BTreeMap<String, Vec<Intent>>,
}

/// One state of a path of the lower tree that an apply may leave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Intent {
    /// Nothing.
    Nothing,
    /// A directory.
    Directory,
    /// A file whose content has this BLAKE3 digest.
    File([u8; 32]),
}

/// What the lower tree had at a path when the overlay first touched it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Base {
    /// Nothing.
    Nothing,
    /// A file or link of this version of the lower tree.
    File(u64),
    /// A directory with all that lay beneath it, by relative path: the version of a file, none of a directory.
    Directory(BTreeMap<String, Option<u64>>),
}

#[derive(Serialize, Deserialize)]
struct Record {
    path: String,
    base: Option<Base>,
    created_at: Option<i128>,
    modified_at: Option<i128>,
}

/// What follows the record since there are intents.
type Intents = BTreeMap<String, Vec<Intent>>;

impl Mark {
    /// Makes the mark of a path whose lower entry is known.
    pub(super) fn over(base: Option<Base>) -> Self {
        Self { base, ..Self::default() }
    }

    /// Returns what an apply was about to leave at the path itself.
    pub(super) fn own_intents(&self) -> &[Intent] {
        self.intents.get("").map_or(&[], Vec::as_slice)
    }

    /// Tells whether the mark only claims an empty directory that an apply is about to make below: once both trees have it, it hides nothing.
    pub(super) fn claims_directory(&self) -> bool {
        self.base == Some(Base::Nothing) && self.intents.len() == 1 && *self.own_intents() == [Intent::Directory]
    }

    /// Tells whether the mark says anything.
    pub(super) fn is_needed(&self) -> bool {
        *self != Self::default()
    }

    /// Writes the mark of a path.
    pub(super) fn to_bytes(&self, path: &VfsPath) -> Vec<u8> {
        let nanoseconds = |time: Option<Timestamp>| time.map(Timestamp::as_nanosecond);
        let record = Record {
            path: path.as_str().to_owned(),
            base: self.base.clone(),
            created_at: nanoseconds(self.created_at),
            modified_at: nanoseconds(self.modified_at),
        };
        // Most marks have no intents, and programs that know of none read those.
        let bytes = match self.intents.is_empty() {
            true => postcard::to_extend(&record, vec![FORMAT_WITHOUT_INTENTS]),
            false => postcard::to_extend(&(record, &self.intents), vec![FORMAT]),
        };
        bytes.expect("a record of plain fields can be written")
    }

    /// Reads a mark and the path it is of.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) for what is no mark.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<(VfsPathBuf, Self)> {
        let corrupt = || Error::new(ErrorKind::Corrupt, "a mark of the overlay cannot be read; discard the overlay's changes");
        let (record, intents): (Record, Intents) = match bytes.split_first().ok_or_else(corrupt)? {
            (&FORMAT, rest) => postcard::from_bytes(rest).map_err(|error| corrupt().with_source(error))?,
            (&FORMAT_WITHOUT_INTENTS, rest) => (postcard::from_bytes(rest).map_err(|error| corrupt().with_source(error))?, Intents::new()),
            _ => return Err(corrupt()),
        };
        let time = |nanoseconds: Option<i128>| nanoseconds.and_then(|at| Timestamp::from_nanosecond(at).ok());
        let mark = Self { base: record.base, created_at: time(record.created_at), modified_at: time(record.modified_at), intents };
        Ok((VfsPathBuf::parse(&record.path).map_err(|_| corrupt())?, mark))
    }

    /// Gives the entry of the overlay's file the times that only the mark knows.
    pub(super) fn timed(&self, mut entry: Entry) -> Entry {
        entry.created_at = self.created_at.or(entry.created_at);
        entry.modified_at = self.modified_at.or(entry.modified_at);
        entry
    }
}

/// Returns what stands at an entry of the lower tree, as a base.
pub(super) fn base_of(entry: &Entry) -> Base {
    match entry.kind {
        EntryKind::Directory => Base::Directory(BTreeMap::new()),
        _ => Base::File(entry.version.map_or(0, |version| version.number())),
    }
}

/// Returns where the files of a path stand in the upper tree.
pub(super) fn tree_path(path: &VfsPath) -> VfsPathBuf {
    VfsPath::parse(TREE).expect("a legal path").concat(path)
}

/// Returns where the marks of a directory's children stand in the upper tree.
pub(super) fn marks_of(directory: &VfsPath) -> VfsPathBuf {
    let hash = blake3::hash(directory.as_str().as_bytes());
    VfsPathBuf::parse(format!("{MARKS}/{}", hash.to_hex())).expect("digits are a legal name")
}

/// Returns where the mark of a path stands in the upper tree; the root has none.
pub(super) fn mark_path(path: &VfsPath) -> VfsPathBuf {
    let directory = path.parent().expect("the root has no mark");
    let name = VfsPathBuf::parse(format!("/{}", path.name())).expect("the name of a path is a legal one");
    marks_of(directory).concat(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_reads_back() {
        let path = VfsPathBuf::parse("/a/b").expect("a legal path");
        let beneath = BTreeMap::from([("x".to_owned(), Some(7)), ("d".to_owned(), None)]);
        for base in [None, Some(Base::Nothing), Some(Base::File(u64::MAX)), Some(Base::Directory(beneath))] {
            let modified_at = Timestamp::from_nanosecond(-1_000_001).ok();
            let intents = BTreeMap::from([(String::new(), vec![Intent::Nothing, Intent::File([7; 32])])]);
            let mark = Mark { base, created_at: Some(Timestamp::UNIX_EPOCH), modified_at, intents };
            assert_eq!(Mark::from_bytes(&mark.to_bytes(&path)).expect("a mark"), (path.clone(), mark));
        }
        for bytes in [&b""[..], b"\x01", b"\x02", b"\x03abc", b"{}"] {
            assert_eq!(Mark::from_bytes(bytes).expect_err("no mark").kind(), ErrorKind::Corrupt);
        }
    }

    #[test]
    fn a_mark_without_intents_is_written_as_before_there_were_any() {
        let record = Record { path: "/a".to_owned(), base: Some(Base::File(3)), created_at: None, modified_at: None };
        let bytes = postcard::to_extend(&record, vec![FORMAT_WITHOUT_INTENTS]).expect("a record of plain fields can be written");
        let (path, mark) = Mark::from_bytes(&bytes).expect("a mark");
        assert_eq!(mark, Mark::over(Some(Base::File(3))));
        assert_eq!(mark.to_bytes(&path), bytes);
    }

    #[test]
    fn names_as_long_as_they_may_be_have_a_mark() {
        let path = VfsPathBuf::parse(format!("/{}", "n".repeat(255))).expect("a legal path");
        assert_eq!(mark_path(&path).name(), path.name());
        assert_ne!(marks_of(VfsPath::ROOT), marks_of(&path));
    }
}
