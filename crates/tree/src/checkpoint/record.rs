//! The stored records of checkpoints and threads.
//!
//! Every record starts with its format number. New fields are only ever added at the end, where older programs ignore them.

use super::{Checkpoint, CheckpointId, LABEL_BYTES_MAX, METADATA_BYTES_MAX, Parent, PutOptions, ThreadCheckpoint};
use crate::backend::PageId;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use treehold_core::error::{Error, ErrorKind, Result};

const FORMAT: u8 = 1;

/// A checkpoint as stored in its own row and in its thread's head row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) checkpoint: Checkpoint,
    pub(super) root: Root,
}

/// The tree of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Root {
    pub(super) pack: u64,
    pub(super) index: u32,
    /// The version of the state.
    pub(super) version: u64,
}

impl Root {
    pub(super) fn page(self, origin: u32) -> PageId {
        PageId { origin, pack: self.pack, index: self.index }
    }
}

#[derive(Serialize, Deserialize)]
struct Written<'r> {
    id: [u8; 16],
    parent: Option<WrittenParent<'r>>,
    created_at: i64,
    label: Option<&'r str>,
    #[serde(borrow)]
    metadata: BTreeMap<&'r str, &'r str>,
    entries: u64,
    size_bytes: u64,
    root: Root,
}

#[derive(Serialize, Deserialize)]
struct WrittenParent<'r> {
    thread: Option<&'r str>,
    id: [u8; 16],
    restored: Option<[u8; 16]>,
}

/// Fields that were added to the record later, stored after the others, where older programs ignore them.
#[derive(Serialize, Deserialize)]
struct WrittenLater<'r> {
    #[serde(borrow)]
    merged: Option<(&'r str, [u8; 16])>,
}

impl Record {
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>> {
        let Checkpoint { id, parent, merged, created_at, label, metadata, entries, size_bytes } = &self.checkpoint;
        let written = Written {
            id: id.to_bytes(),
            parent: parent.as_ref().map(|parent| WrittenParent {
                thread: parent.thread.as_deref(),
                id: parent.id.to_bytes(),
                restored: parent.restored.map(CheckpointId::to_bytes),
            }),
            created_at: created_at.as_microsecond(),
            label: label.as_deref(),
            metadata: metadata.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect(),
            entries: *entries,
            size_bytes: *size_bytes,
            root: self.root,
        };
        let mut bytes = encode(&written)?;
        if let Some(merged) = merged {
            let later = WrittenLater { merged: Some((&merged.thread, merged.id.to_bytes())) };
            bytes = postcard::to_extend(&later, bytes).map_err(unwritable)?;
        }
        Ok(bytes)
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let (written, rest): (Written<'_>, &[u8]) = decode_first(bytes)?;
        let later = match rest {
            [] => WrittenLater { merged: None },
            rest => postcard::from_bytes(rest).map_err(|error| unreadable().with_source(error))?,
        };
        let checkpoint = Checkpoint {
            id: CheckpointId::from_bytes(written.id),
            parent: written.parent.map(|parent| Parent {
                thread: parent.thread.map(str::to_owned),
                id: CheckpointId::from_bytes(parent.id),
                restored: parent.restored.map(CheckpointId::from_bytes),
            }),
            merged: later.merged.map(|(thread, id)| ThreadCheckpoint { thread: thread.to_owned(), id: CheckpointId::from_bytes(id) }),
            created_at: time(written.created_at)?,
            label: written.label.map(str::to_owned),
            metadata: written.metadata.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            entries: written.entries,
            size_bytes: written.size_bytes,
        };
        Ok(Self { checkpoint, root: written.root })
    }
}

/// Checks the label and metadata of a checkpoint.
pub(super) fn check_notes(options: &PutOptions) -> Result<()> {
    if options.label.as_ref().is_some_and(|label| label.is_empty() || label.len() > LABEL_BYTES_MAX || label.contains(char::is_control)) {
        let message = format!("a label has 1 to {LABEL_BYTES_MAX} bytes and no control character; choose another");
        return Err(Error::invalid_argument(message));
    }
    let size_bytes: usize = options.metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
    if size_bytes > METADATA_BYTES_MAX {
        let message = format!("the metadata of a checkpoint has {size_bytes} bytes and at most {METADATA_BYTES_MAX} are kept; shorten it");
        return Err(Error::invalid_argument(message));
    }
    Ok(())
}

pub(super) fn time(microseconds: i64) -> Result<Timestamp> {
    Timestamp::from_microsecond(microseconds).map_err(|error| unreadable().with_source(error))
}

pub(super) fn encode(record: &impl Serialize) -> Result<Vec<u8>> {
    postcard::to_extend(record, vec![FORMAT]).map_err(unwritable)
}

fn unwritable(error: postcard::Error) -> Error {
    Error::new(ErrorKind::Internal, "a checkpoint cannot be encoded").with_source(error)
}

pub(super) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T> {
    decode_first(bytes).map(|(record, _)| record)
}

/// Decodes a record, and returns the bytes after it.
fn decode_first<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<(T, &'a [u8])> {
    match bytes {
        [FORMAT, record @ ..] => postcard::take_from_bytes(record).map_err(|error| unreadable().with_source(error)),
        [newer, ..] if *newer > FORMAT => Err(Error::new(
            ErrorKind::Corrupt,
            format!("a thread was saved in format {newer}, but this program reads formats up to {FORMAT}; use a newer version"),
        )),
        _ => Err(unreadable()),
    }
}

pub(super) fn unreadable() -> Error {
    Error::new(ErrorKind::Corrupt, "the saved state of a thread cannot be read; it was left unchanged, run `treehold doctor`")
}
