//! The progress of a copy, recorded in the target by each of its batches.

use crate::walk::{Walk, WalkPage};
use crate::{Batch, Condition, Item, Namespace, ScanOptions, Store};
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;

/// The namespace of the note in the target, until the copy is done. Nothing else may be stored there.
pub const COPY_NAMESPACE: [&str; 2] = treehold_core::reserved::COPY;

/// The key of the note.
const KEY: &str = "note";

/// The key of a transient row whose version raises the target's counter.
const COUNTER_KEY: &str = "counter";

/// The key prefix of the rows that list what was sent.
const SENT_PREFIX: &str = "sent/";

/// The key prefix of the row that shows whether two openings are of one store.
const PROBE_PREFIX: &str = "probe/";

/// When the probe expires, if its removal fails.
const PROBE_LIFE: Duration = Duration::from_secs(60);

/// The format version of the note.
const FORMAT: u32 = 1;

/// Returns the namespace of the note.
pub(crate) fn namespace() -> Namespace {
    Namespace::new(COPY_NAMESPACE).expect("the components are valid constants")
}

/// The record of a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    format: u32,
    /// The source's `Display`.
    pub(super) source: String,
    /// The hash of the identifier that distinguishes sources with the same `Display`.
    pub(super) source_id: Option<String>,
    /// Whether the target had content when the copy began.
    pub(super) onto: bool,
    /// Whether every row was sent once.
    pub(super) all_sent: bool,
    /// The last row sent: its namespace and key.
    last: Option<(String, String)>,
    /// The number of rows sent until then.
    pub(super) rows: u64,
    /// The bytes of their bodies.
    pub(super) bytes: u64,
    /// The number of rows that list what was sent.
    sent_lists: u64,
}

impl Note {
    /// Creates the note of a copy.
    pub(super) fn new(source: &dyn Store, source_id: Option<String>, onto: bool) -> Self {
        Self { format: FORMAT, source: source.to_string(), source_id, onto, all_sent: false, last: None, rows: 0, bytes: 0, sent_lists: 0 }
    }

    /// Adds the list of the rows that a batch sends.
    pub(super) fn list_sent(&mut self, batch: Batch, sent: &[RowHash]) -> Batch {
        if sent.is_empty() {
            return batch;
        }
        self.sent_lists += 1;
        batch.put(&namespace(), format!("{SENT_PREFIX}{:020}", self.sent_lists), sent.concat())
    }

    /// Records that a row is sent.
    pub(super) fn pass(&mut self, namespace: &Namespace, item: &Item) {
        self.last = Some((namespace.encoded().to_owned(), item.key.clone()));
        self.rows += 1;
        self.bytes += item.value.len() as u64;
    }

    /// Returns the last row sent.
    pub(super) fn last(&self) -> Result<Option<(Namespace, String)>> {
        let read = |(namespace, key): &(String, String)| Ok((Namespace::from_encoded(namespace)?, key.clone()));
        self.last.as_ref().map(read).transpose()
    }
}

/// The hash that identifies a row in the lists of sent rows.
pub(super) type RowHash = [u8; 16];

/// Returns the hash that identifies a row.
pub(super) fn row_hash(namespace: &Namespace, key: &str) -> RowHash {
    let mut hasher = blake3::Hasher::new();
    // Encoded namespaces contain no zero byte.
    hasher.update(namespace.encoded().as_bytes()).update(&[0]).update(key.as_bytes());
    let mut hash = RowHash::default();
    hasher.finalize_xof().fill(&mut hash);
    hash
}

/// Reads which rows were sent, by this call and by interrupted ones.
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

/// Returns whether a target that is not empty is the source, opened a second time. `page` holds a row of the target.
///
/// Only a target whose row the source has too, in the same version, is written to: it gets a probe row, which is then looked up in the
/// source. A target that refuses the probe counts as another store.
pub(super) async fn is_one_store(source: &dyn Store, target: &dyn Store, page: &WalkPage) -> Result<bool> {
    let Some(item) = page.items.first() else { return Ok(false) };
    let same = source.get_part(&page.namespace, &item.key, 0..0).await?;
    if same.is_none_or(|same| same.item.version != item.version) {
        return Ok(false);
    }
    // Each `RandomState` has its own random keys.
    let probe = format!("{PROBE_PREFIX}{:016x}", RandomState::new().build_hasher().finish());
    if target.commit(Batch::new().put_for(&namespace(), &*probe, Bytes::new(), PROBE_LIFE)).await.is_err() {
        return Ok(false);
    }
    let found = source.get(&namespace(), &probe).await;
    target.commit(Batch::new().delete(&namespace(), &*probe)).await?;
    Ok(found?.is_some())
}

/// A note as stored in the target.
#[derive(Debug)]
pub(super) struct Noted {
    pub(super) note: Note,
    /// The version of its row; `None` if it is not there yet.
    version: Option<Version>,
}

impl Noted {
    /// Wraps a note that is not in the target yet.
    pub(super) fn new(note: Note) -> Self {
        Self { note, version: None }
    }

    /// Looks up the note of a copy.
    pub(super) async fn find(store: &dyn Store) -> Result<Option<Self>> {
        let Some(item) = store.get(&namespace(), KEY).await? else { return Ok(None) };
        let unreadable =
            || Error::new(ErrorKind::Corrupt, format!("the note of a copy in `{store}` cannot be read; empty the store and copy again"));
        let note: Note = serde_json::from_slice(&item.value).map_err(|source| unreadable().with_source(source))?;
        if note.format != FORMAT {
            let message = format!("the copy in `{store}` was begun by a newer version; finish it with that version");
            return Err(Error::unsupported(message));
        }
        Ok(Some(Self { note, version: Some(item.version) }))
    }

    /// Commits a batch together with the note.
    pub(super) async fn commit(&mut self, target: &dyn Store, batch: Batch) -> Result<()> {
        let note = serde_json::to_vec(&self.note)
            .map_err(|source| Error::new(ErrorKind::Internal, "the note of a copy cannot be written").with_source(source))?;
        let batch = batch.expect(&namespace(), KEY, self.unchanged()).put(&namespace(), KEY, note);
        let versions = target.commit(batch).await.map_err(|error| taken(target, error))?;
        self.version = versions.last().copied();
        Ok(())
    }

    /// Removes the note, and raises the target's counter to a version.
    pub(super) async fn remove(&self, target: &dyn Store, version: Version) -> Result<()> {
        let batch = lift_counter(Batch::new().expect(&namespace(), KEY, self.unchanged()), version);
        target.commit(batch).await.map(drop).map_err(|error| taken(target, error))
    }

    fn unchanged(&self) -> Condition {
        self.version.map_or(Condition::Absent, Condition::Version)
    }
}

/// Extends a batch so that it raises a store's counter to a version, with a row that is restored with that version and removed again. Also
/// removes the note of a copy.
pub(crate) fn lift_counter(mut batch: Batch, version: Version) -> Batch {
    // A store that was never written to has the counter 0, which no row can have.
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
