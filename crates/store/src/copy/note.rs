//! The progress of a copy, recorded in the target.
//!
//! The note lies in a partition of its own, so it cannot change together with the rows. To keep two copies into one target apart, each batch
//! of rows expects a fence: a row that the copy puts into the partition of the rows. Whoever continues a copy first puts the note again, and
//! then removes all fences. The other copy can neither write under its old fences nor put a new one, because after putting one it looks at
//! the note.

use crate::derived;
use crate::versions::{self, Versions};
use crate::walk::{Walk, WalkPage};
use crate::{Batch, Condition, Item, Namespace, Partition, ScanOptions, Store};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_core::random;

/// The namespace of the note in the target, until the copy is done. Nothing else may be stored there.
pub const COPY_NAMESPACE: [&str; 2] = treehold_core::reserved::COPY;

/// The key of the note.
const KEY: &str = "note";

/// The key prefix of the rows that list what was sent.
const SENT_PREFIX: &str = "sent/";

/// The key prefix of the row that shows whether two openings are of one store.
const PROBE_PREFIX: &str = "probe/";

/// When the probe expires, if its removal fails.
const PROBE_LIFE: Duration = Duration::from_secs(60);

/// The key of a fence.
const FENCE_KEY: &str = "fence";

/// When a fence expires, if nobody removes it. A longer copy puts it again.
const FENCE_LIFE: Duration = Duration::from_secs(3600);

/// The most rows that are sent between two notes.
const UNNOTED_ROWS_MAX: u64 = 1_000;

/// The format version of the note. Notes of format 1 knew no fences, and listed sent rows without their versions.
const FORMAT: u32 = 2;

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

    /// Returns the hash that identifies a row that was sent. A row that the target had before has another version.
    pub(super) fn row_hash(&self, namespace: &Namespace, key: &str, version: Version) -> RowHash {
        let mut hasher = blake3::Hasher::new();
        // Encoded namespaces and keys contain no zero byte.
        hasher.update(namespace.encoded().as_bytes()).update(&[0]).update(key.as_bytes());
        if self.format > 1 {
            hasher.update(&[0]).update(&version.number().to_le_bytes());
        }
        let mut hash = RowHash::default();
        hasher.finalize_xof().fill(&mut hash);
        hash
    }

    /// Adds a list of rows that are about to be sent. Returns the note and the batch that puts the list.
    pub(super) fn list_sent(mut self, sent: &[RowHash]) -> (Self, Batch) {
        self.sent_lists += 1;
        let list = Batch::new().put(&namespace(), format!("{SENT_PREFIX}{:020}", self.sent_lists), sent.concat());
        (self, list)
    }

    /// Takes over from another note how many lists there are.
    pub(super) fn listed_as(&mut self, other: &Self) {
        self.sent_lists = other.sent_lists;
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
    // A row that cannot be read tells nothing, and the target is not empty in any case.
    let same = source.get_part(&page.namespace, &item.key, 0..0).await.ok().flatten();
    if same.is_none_or(|same| same.item.version != item.version) {
        return Ok(false);
    }
    let probe = format!("{PROBE_PREFIX}{:016x}", random::number());
    if target.commit(Batch::new().put_for(&namespace(), &*probe, Bytes::new(), PROBE_LIFE)).await.is_err() {
        return Ok(false);
    }
    let found = source.get(&namespace(), &probe).await;
    target.commit(Batch::new().delete(&namespace(), &*probe)).await?;
    Ok(found?.is_some())
}

/// The note of a copy, and what of it is in the target.
#[derive(Debug)]
pub(super) struct Noted {
    pub(super) note: Note,
    /// The note as this copy put it last; `None` until it has put one.
    put: Option<Note>,
    /// The version of its row; `None` if it is not there yet.
    version: Option<Version>,
    /// The fences of this copy, with their versions.
    fences: HashMap<Partition, Version>,
}

impl Noted {
    /// Wraps a note that is not in the target yet.
    pub(super) fn new(note: Note) -> Self {
        Self { note, put: None, version: None, fences: HashMap::new() }
    }

    /// Returns whether a store has the note of a copy.
    pub(super) async fn is_in(store: &dyn Store) -> Result<bool> {
        Ok(store.get_part(&namespace(), KEY, 0..0).await?.is_some())
    }

    /// Looks up the note of a copy.
    pub(super) async fn find(store: &dyn Store) -> Result<Option<Self>> {
        let Some(item) = store.get(&namespace(), KEY).await? else { return Ok(None) };
        let unreadable =
            || Error::new(ErrorKind::Corrupt, format!("the note of a copy in `{store}` cannot be read; empty the store and copy again"));
        let note: Note = serde_json::from_slice(&item.value).map_err(|source| unreadable().with_source(source))?;
        if note.format > FORMAT {
            let message = format!("the copy in `{store}` was begun by a newer version; finish it with that version");
            return Err(Error::unsupported(message));
        }
        Ok(Some(Self { note, put: None, version: Some(item.version), fences: HashMap::new() }))
    }

    /// Records progress. The target gets the note only if it is the first of this copy, or if much was sent since the last one: an
    /// interrupted copy sends again what no note says.
    pub(super) async fn advance(&mut self, target: &dyn Store, note: Note, batch_bytes: usize) -> Result<()> {
        let is_due = self.put.as_ref().is_none_or(|put| {
            let (rows, bytes) = (note.rows - put.rows, note.bytes - put.bytes);
            note.all_sent != put.all_sent || rows >= UNNOTED_ROWS_MAX || bytes >= batch_bytes as u64
        });
        if is_due {
            return self.commit(target, note, Batch::new()).await;
        }
        self.note = note;
        Ok(())
    }

    /// Puts a note, with a batch of other rows beside it.
    pub(super) async fn commit(&mut self, target: &dyn Store, note: Note, beside: Batch) -> Result<()> {
        let encoded = serde_json::to_vec(&note)
            .map_err(|source| Error::new(ErrorKind::Internal, "the note of a copy cannot be written").with_source(source))?;
        let batch = beside.expect(&namespace(), KEY, self.unchanged()).put(&namespace(), KEY, encoded);
        let versions = target.commit(batch).await.map_err(|error| taken(target, error))?;
        self.version = versions.last().copied();
        self.put = Some(note.clone());
        self.note = note;
        Ok(())
    }

    /// Commits rows of a partition, unless another copy has taken over.
    pub(super) async fn commit_rows(&mut self, target: &dyn Store, partition: Partition, batch: Batch) -> Result<()> {
        let Ok(place) = fence_in(&partition) else {
            // A partition whose name leaves no room for a fence has none.
            self.expect_unchanged(target).await?;
            return target.commit(batch).await.map(drop);
        };
        let is_new = !self.fences.contains_key(&partition);
        let fence = self.fence(target, &place, &partition).await?;
        match target.commit(batch.clone().expect(&place, FENCE_KEY, Condition::Version(fence))).await {
            // It has expired, or another copy has removed it.
            Err(error) if error.kind() == ErrorKind::Conflict && !is_new => {
                self.fences.remove(&partition);
                let fence = self.fence(target, &place, &partition).await?;
                let batch = batch.expect(&place, FENCE_KEY, Condition::Version(fence));
                target.commit(batch).await.map(drop).map_err(|error| taken(target, error))
            }
            committed => committed.map(drop).map_err(|error| taken(target, error)),
        }
    }

    /// Returns the version of the fence in a partition, and puts it first if there is none.
    async fn fence(&mut self, target: &dyn Store, place: &Namespace, partition: &Partition) -> Result<Version> {
        if let Some(version) = self.fences.get(partition) {
            return Ok(*version);
        }
        let versions = target.commit(Batch::new().put_for(place, FENCE_KEY, Bytes::new(), FENCE_LIFE)).await?;
        self.expect_unchanged(target).await?;
        let version = versions.first().copied().ok_or_else(|| Error::new(ErrorKind::Internal, "a put has returned no version"))?;
        self.fences.insert(partition.clone(), version);
        Ok(version)
    }

    /// Fails if another copy has put the note since.
    async fn expect_unchanged(&self, target: &dyn Store) -> Result<()> {
        let found = target.get_part(&namespace(), KEY, 0..0).await?.map(|part| part.item.version);
        if found == self.version {
            return Ok(());
        }
        Err(taken(target, Error::new(ErrorKind::Conflict, "the note of the copy has changed")))
    }

    /// Raises the target's counters to those of the source.
    pub(super) async fn lift(&mut self, target: &dyn Store, versions: &Versions) -> Result<()> {
        for (partition, version) in versions.iter() {
            if target.current_version(partition).await? < version {
                self.commit_rows(target, partition.clone(), versions::lift(partition, version)?).await?;
            }
        }
        Ok(())
    }

    /// Removes the note and the fences.
    pub(super) async fn remove(&self, target: &dyn Store) -> Result<()> {
        let batch = Batch::new().expect(&namespace(), KEY, self.unchanged()).delete_prefix(&namespace(), "");
        target.commit(batch).await.map_err(|error| taken(target, error))?;
        for partition in self.fences.keys() {
            let removed = target.commit(Batch::new().delete(&fence_in(partition)?, FENCE_KEY)).await;
            if let Err(error) = removed {
                // The copy is complete, and a fence that stays expires.
                tracing::debug!(%partition, %error, "the fence of a copy stays until it expires");
            }
        }
        Ok(())
    }

    fn unchanged(&self) -> Condition {
        self.version.map_or(Condition::Absent, Condition::Version)
    }
}

/// Returns the namespace of the fence in a partition.
fn fence_in(partition: &Partition) -> Result<Namespace> {
    partition.namespace(COPY_NAMESPACE)
}

/// Removes the fences of all copies into a store. Lists all namespaces.
pub(super) async fn remove_fences(target: &dyn Store) -> Result<()> {
    derived::remove_namespaces(target, |found| derived::is_note(found) && *found != namespace()).await
}

fn taken(target: &dyn Store, error: Error) -> Error {
    if error.kind() != ErrorKind::Conflict {
        return error;
    }
    error.with_message(format!("another copy into `{target}` is under way; wait for it, or stop it and start this one again"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryStore, NamespacesOptions};

    #[tokio::test]
    async fn fences_of_all_partitions_are_removed_and_nothing_else() {
        let store = MemoryStore::new();
        let own = ["acme/ada/notes", "acme//policies", "_treehold/sessions/acme", "_treehold/copy", "acme/ada/copy"];
        let own = own.map(|text| Namespace::parse(text).expect("a legal namespace"));
        for space in &own {
            store.commit(Batch::new().put(space, KEY, "")).await.expect("committed");
            if *space != namespace() {
                let fence = fence_in(&space.partition()).expect("room for a fence");
                store.commit(Batch::new().put(&fence, FENCE_KEY, "")).await.expect("committed");
            }
        }
        let listed = async || store.namespaces(NamespacesOptions::new()).await.expect("a page").namespaces;
        assert_eq!(listed().await.len(), own.len() + 3);
        remove_fences(&store).await.expect("removed");
        let mut left = own.to_vec();
        left.sort();
        assert_eq!(listed().await, left);
    }
}
