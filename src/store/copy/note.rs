//! How far a copy is, written down in the target by every batch of it.

use crate::error::{Error, ErrorKind, Result};
use crate::ops::Version;
use crate::store::walk::Walk;
use crate::store::{Batch, Condition, Item, Namespace, ScanOptions, Store};
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// The namespace that a copy keeps its note in, in the target and until it is done: nothing else may be kept there.
pub const COPY_NAMESPACE: [&str; 2] = crate::store::reserved::COPY;

/// The key of the note.
const KEY: &str = "note";

/// The key of a row that is there for no moment: with its version the counter of the target is lifted.
const COUNTER_KEY: &str = "counter";

/// What the keys begin with whose rows tell what was sent.
const SENT_PREFIX: &str = "sent/";

/// The number of the note's format.
const FORMAT: u32 = 1;

/// Returns the namespace of the note.
pub(in crate::store) fn namespace() -> Namespace {
    Namespace::new(COPY_NAMESPACE).expect("two plain components")
}

/// What a copy writes down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    format: u32,
    /// What is copied, as the store names itself.
    pub(super) source: String,
    /// The hash of what tells the source from others that name themselves alike.
    pub(super) source_id: Option<String>,
    /// Whether the target held something when the copy began.
    pub(super) onto: bool,
    /// Whether every row was sent once.
    pub(super) all_sent: bool,
    /// The row that was sent last: its namespace and key.
    last: Option<(String, String)>,
    /// How many rows were sent until then.
    pub(super) rows: u64,
    /// The bytes of their bodies.
    pub(super) bytes: u64,
    /// How many rows there are that tell what was sent.
    sent_lists: u64,
}

impl Note {
    /// Starts the note of a copy.
    pub(super) fn new(source: &dyn Store, source_id: Option<String>, onto: bool) -> Self {
        Self { format: FORMAT, source: source.to_string(), source_id, onto, all_sent: false, last: None, rows: 0, bytes: 0, sent_lists: 0 }
    }

    /// Adds to a batch what tells which rows it sends.
    pub(super) fn list_sent(&mut self, batch: Batch, sent: &[RowHash]) -> Batch {
        if sent.is_empty() {
            return batch;
        }
        self.sent_lists += 1;
        batch.put(&namespace(), format!("{SENT_PREFIX}{:020}", self.sent_lists), sent.concat())
    }

    /// Notes that a row is sent.
    pub(super) fn pass(&mut self, namespace: &Namespace, item: &Item) {
        self.last = Some((namespace.encoded().to_owned(), item.key.clone()));
        self.rows += 1;
        self.bytes += item.value.len() as u64;
    }

    /// Returns the row that was sent last.
    pub(super) fn last(&self) -> Result<Option<(Namespace, String)>> {
        let read = |(namespace, key): &(String, String)| Ok((Namespace::from_encoded(namespace)?, key.clone()));
        self.last.as_ref().map(read).transpose()
    }
}

/// What stands for a row in the lists of those that were sent.
pub(super) type RowHash = [u8; 16];

/// Returns what stands for a row.
pub(super) fn row_hash(namespace: &Namespace, key: &str) -> RowHash {
    let mut hasher = blake3::Hasher::new();
    // No encoded namespace holds a zero byte.
    hasher.update(namespace.encoded().as_bytes()).update(&[0]).update(key.as_bytes());
    let mut hash = RowHash::default();
    hasher.finalize_xof().fill(&mut hash);
    hash
}

/// Reads which rows were sent, by this call and by those that were broken off.
pub(super) async fn read_sent(target: &dyn Store) -> Result<HashSet<RowHash>> {
    let mut walk = Walk::new(target, ScanOptions::new().with_values(true)).after(namespace(), SENT_PREFIX.to_owned());
    let mut sent = HashSet::new();
    while let Some(page) = walk.page().await? {
        if page.namespace != namespace() {
            break;
        }
        sent.extend(page.items.iter().flat_map(|item| item.value.as_chunks::<16>().0));
    }
    Ok(sent)
}

/// A note as the target has it.
#[derive(Debug)]
pub(super) struct Noted {
    pub(super) note: Note,
    /// The version of its row; none while it is not there.
    version: Option<Version>,
}

impl Noted {
    /// Takes a note that the target does not have yet.
    pub(super) fn new(note: Note) -> Self {
        Self { note, version: None }
    }

    /// Looks for the note of a copy.
    pub(super) async fn find(store: &dyn Store) -> Result<Option<Self>> {
        let Some(item) = store.get(&namespace(), KEY).await? else { return Ok(None) };
        let unreadable =
            || Error::new(ErrorKind::Corrupt, format!("the note of a copy in `{store}` cannot be read; empty the store and copy again"));
        let note: Note = serde_json::from_slice(&item.value).map_err(|source| unreadable().with_source(source))?;
        if note.format != FORMAT {
            let message = format!("the copy in `{store}` was begun by a newer version; finish it with that");
            return Err(Error::unsupported(message));
        }
        Ok(Some(Self { note, version: Some(item.version) }))
    }

    /// Commits a batch and the note with it.
    pub(super) async fn commit(&mut self, target: &dyn Store, batch: Batch) -> Result<()> {
        let note = serde_json::to_vec(&self.note)
            .map_err(|source| Error::new(ErrorKind::Internal, "the note of a copy cannot be written").with_source(source))?;
        let batch = batch.expect(&namespace(), KEY, self.unchanged()).put(&namespace(), KEY, note);
        let versions = target.commit(batch).await.map_err(|error| taken(target, error))?;
        self.version = versions.last().copied();
        Ok(())
    }

    /// Removes the note, and lifts the counter of the target to a version.
    pub(super) async fn remove(&self, target: &dyn Store, version: Version) -> Result<()> {
        let batch = lift_counter(Batch::new().expect(&namespace(), KEY, self.unchanged()), version);
        target.commit(batch).await.map(drop).map_err(|error| taken(target, error))
    }

    fn unchanged(&self) -> Condition {
        self.version.map_or(Condition::Absent, Condition::Version)
    }
}

/// Adds to a batch what lifts the counter of a store to a version: a row that is restored with it and removed again. Removes the note of
/// a copy too.
pub(in crate::store) fn lift_counter(mut batch: Batch, version: Version) -> Batch {
    // A store that was never written to counts from 0, which no row has.
    if version > Version::new(0) {
        let (empty, at) = (Bytes::new(), Timestamp::UNIX_EPOCH);
        batch = batch.restore(&namespace(), Item::new(COUNTER_KEY, empty.clone(), empty, version, at, at));
    }
    batch.delete_prefix(&namespace(), "")
}

fn taken(target: &dyn Store, error: Error) -> Error {
    if error.kind() != ErrorKind::Conflict {
        return error;
    }
    error.with_message(format!("another copy into `{target}` is under way; wait for it, or stop it and start this one again"))
}
