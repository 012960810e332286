//! The upper tree's bookkeeping: a mark for each path that no longer shows the lower tree.
//!
//! Everything about an overlay is in its upper tree, and lives as long as it does:
//!
//! - `/tree/...`: the written files and directories, at their own paths,
//! - `/marks/<hash of the directory>/<name>`: a small file for each path that hides the lower tree,
//! - `/turn`: a file that every batch replaces on the condition that no other batch did.
//!
//! A mark has the name of its path, so names keep their full 255 bytes and cannot collide with users' paths; the hash of the directory
//! above identifies its location. All marks of one directory are therefore one listing. **A path with a mark, and everything beneath it,
//! shows nothing of the lower tree.** The directory above a mark always exists in `/tree`, so the overlay has changed nothing where `/tree`
//! has no directory.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Entry, EntryKind};
use treehold_core::path::{VfsPath, VfsPathBuf};

/// The location of the files in the upper tree.
pub(super) const TREE: &str = "/tree";

/// The location of the marks in the upper tree.
pub(super) const MARKS: &str = "/marks";

/// The file that every batch replaces.
pub(super) const TURN: &str = "/turn";

/// The format of a mark: its first byte.
const FORMAT: u8 = 2;

/// The older format, without intents.
const FORMAT_WITHOUT_INTENTS: u8 = 1;

/// The reason why a path shows nothing of the lower tree, and what the lower tree had there when the overlay first touched it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Mark {
    /// What the lower tree had; `None` if a mark above records it, or if there was nothing.
    pub(super) base: Option<Base>,
    /// When the overlay's file was created, if its own row does not know.
    pub(super) created_at: Option<Timestamp>,
    /// When its content last changed, if its own row does not know.
    pub(super) modified_at: Option<Timestamp>,
    /// What an apply intended to leave in the lower tree: at the path itself under the empty name, and beneath it by relative path for
    /// paths without a mark of their own. Content of the lower tree that matches was written by the overlay itself.
    pub(super) intents: BTreeMap<String, Vec<Intent>>,
}

/// One state of a path in the lower tree that an apply may leave.
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
    /// A file or link with this version in the lower tree.
    File(u64),
    /// A directory with everything beneath it, by relative path: the version of a file, `None` for a directory.
    Directory(BTreeMap<String, Option<u64>>),
}

#[derive(Serialize, Deserialize)]
struct Record {
    path: String,
    base: Option<Base>,
    created_at: Option<i128>,
    modified_at: Option<i128>,
}

/// The intents, stored after the record.
type Intents = BTreeMap<String, Vec<Intent>>;

impl Mark {
    /// Creates the mark of a path whose lower entry is known.
    pub(super) fn over(base: Option<Base>) -> Self {
        Self { base, ..Self::default() }
    }

    /// Returns what an apply intended to leave at the path itself.
    pub(super) fn own_intents(&self) -> &[Intent] {
        self.intents.get("").map_or(&[], Vec::as_slice)
    }

    /// Returns whether the mark only claims an empty directory that an apply is about to create in the lower tree. It hides nothing once
    /// both trees have the directory.
    pub(super) fn claims_directory(&self) -> bool {
        self.base == Some(Base::Nothing) && self.intents.len() == 1 && *self.own_intents() == [Intent::Directory]
    }

    /// Returns whether the mark records anything.
    pub(super) fn is_needed(&self) -> bool {
        *self != Self::default()
    }

    /// Encodes the mark of a path.
    pub(super) fn to_bytes(&self, path: &VfsPath) -> Vec<u8> {
        let nanoseconds = |time: Option<Timestamp>| time.map(Timestamp::as_nanosecond);
        let record = Record {
            path: path.as_str().to_owned(),
            base: self.base.clone(),
            created_at: nanoseconds(self.created_at),
            modified_at: nanoseconds(self.modified_at),
        };
        // Most marks have no intents. Older programs can read those.
        let bytes = match self.intents.is_empty() {
            true => postcard::to_extend(&record, vec![FORMAT_WITHOUT_INTENTS]),
            false => postcard::to_extend(&(record, &self.intents), vec![FORMAT]),
        };
        bytes.expect("plain fields always serialize")
    }

    /// Decodes a mark and its path.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) for an invalid mark.
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

    /// Sets the times that only the mark records on the entry of the overlay's file.
    pub(super) fn timed(&self, mut entry: Entry) -> Entry {
        entry.created_at = self.created_at.or(entry.created_at);
        entry.modified_at = self.modified_at.or(entry.modified_at);
        entry
    }
}

/// Returns the base for an entry of the lower tree.
pub(super) fn base_of(entry: &Entry) -> Base {
    match entry.kind {
        EntryKind::Directory => Base::Directory(BTreeMap::new()),
        _ => Base::File(entry.version.map_or(0, |version| version.number())),
    }
}

/// Returns the location of a path's file in the upper tree.
pub(super) fn tree_path(path: &VfsPath) -> VfsPathBuf {
    VfsPath::parse(TREE).expect("a legal path").concat(path)
}

/// Returns the location of the marks of a directory's children in the upper tree.
pub(super) fn marks_of(directory: &VfsPath) -> VfsPathBuf {
    let hash = blake3::hash(directory.as_str().as_bytes());
    VfsPathBuf::parse(format!("{MARKS}/{}", hash.to_hex())).expect("hexadecimal digits are a legal name")
}

/// Returns the location of a path's mark in the upper tree; the root has none.
pub(super) fn mark_path(path: &VfsPath) -> VfsPathBuf {
    let directory = path.parent().expect("the root has no mark");
    let name = VfsPathBuf::parse(format!("/{}", path.name())).expect("a segment of a legal path is legal");
    marks_of(directory).concat(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_round_trips() {
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
    fn mark_without_intents_is_written_in_the_older_format() {
        let record = Record { path: "/a".to_owned(), base: Some(Base::File(3)), created_at: None, modified_at: None };
        let bytes = postcard::to_extend(&record, vec![FORMAT_WITHOUT_INTENTS]).expect("plain fields always serialize");
        let (path, mark) = Mark::from_bytes(&bytes).expect("a mark");
        assert_eq!(mark, Mark::over(Some(Base::File(3))));
        assert_eq!(mark.to_bytes(&path), bytes);
    }

    #[test]
    fn longest_names_can_have_a_mark() {
        let path = VfsPathBuf::parse(format!("/{}", "n".repeat(255))).expect("a legal path");
        assert_eq!(mark_path(&path).name(), path.name());
        assert_ne!(marks_of(VfsPath::ROOT), marks_of(&path));
    }
}
