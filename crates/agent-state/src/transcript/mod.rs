//! The transcript of a session: everything that happened in it, append only, in the order of the commits.
//!
//! A state holds what the model sees; the transcript holds what was. Its entries form a tree by `parentId`. Appending writes the new
//! entries and nothing else, however long the transcript is, and two processes that append at once lose nothing. An entry that was
//! appended before is recognised by its id and is not added again.
//!
//! An entry over 64 KiB is kept aside under the digest of its text, and the log holds a reference, so that a page of a transcript is small.
//! [`segments`](Transcripts::segment) are the files that other tools read and write.

mod entry;
mod segment;

pub use entry::{EntryKind, TranscriptEntry};
pub use segment::TranscriptSegment;

use crate::owner::{BundleOwner, check_limit, check_name};
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::{Json, row, stored};
use treehold_core::ops::Version;
use treehold_core::retry::Attempts;
use treehold_core::scope::check_id;
use treehold_core::work;
use treehold_store::{Batch, BatchWrite, Condition, Item, Namespace, ScanEntry, ScanOptions, Store, log_key};

/// An entry over this size is kept aside.
pub const INLINE_BYTES_MAX: usize = 64 << 10;

/// The most entries of one append, and of one page.
pub const ENTRIES_MAX: usize = 1_000;

/// The most bytes of one append.
pub const APPEND_BYTES_MAX: usize = 16 << 20;

/// The largest entry in bytes.
pub const ENTRY_BYTES_MAX: usize = 8 << 20;

/// The metadata of a row that refers to an entry kept aside.
const ASIDE: &[u8] = b"aside";

/// An entry in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredEntry {
    /// Its position. Later entries have greater ones.
    pub position: u64,
    /// Its id.
    pub id: String,
    /// The entry that it follows; `None` for the first.
    pub parent_id: Option<String>,
    /// When it happened.
    pub timestamp: Timestamp,
    /// Its type.
    pub kind: EntryKind,
    /// Its text, or where it is.
    pub body: EntryBody,
}

/// The text of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryBody {
    /// The whole entry.
    Inline(Json),
    /// The entry is large: [`Transcripts::body`] reads it.
    Aside {
        /// The digest of its text.
        digest: String,
        /// The length of its text in bytes.
        size_bytes: u64,
    },
}

/// The row of an entry that is kept aside.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reference {
    id: String,
    parent_id: Option<String>,
    timestamp: Timestamp,
    #[serde(rename = "type")]
    kind: EntryKind,
    digest: String,
    size_bytes: u64,
}

/// A page of a transcript.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TranscriptPage {
    /// The entries in order.
    pub entries: Vec<StoredEntry>,
    /// The position after which the next page starts; `None` at the end.
    pub next: Option<u64>,
}

/// What an append did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Appended {
    /// How many entries were added.
    pub added: usize,
    /// How many had been appended before.
    pub repeated: usize,
}

/// The transcripts of an owner's sessions in a store. Clones share them.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use treehold_agent_state::{BundleOwner, Json, transcript::{TranscriptEntry, Transcripts}};
/// use treehold_store::MemoryStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let transcripts = Transcripts::new(Arc::new(MemoryStore::new()), BundleOwner::of_user("acme", "ada", "helper")?);
/// let text = r#"{"type": "message", "id": "e1", "parentId": null, "timestamp": "2026-11-23T09:00:00Z", "role": "USER", "content": "hi"}"#;
/// let entry = TranscriptEntry::parse(Json::parse(text)?)?;
/// assert_eq!(transcripts.append("s1", &[entry.clone()]).await?.added, 1);
/// assert_eq!(transcripts.append("s1", &[entry]).await?.repeated, 1);
/// assert_eq!(transcripts.read("s1", None, 10).await?.entries.len(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Transcripts {
    store: Arc<dyn Store>,
    owner: BundleOwner,
}

/// The namespaces of a session's transcript.
struct Rows {
    /// The entries, a log.
    entries: Namespace,
    /// The digest of each entry, by its id.
    ids: Namespace,
    /// Large entries, by their digest.
    aside: Namespace,
}

impl Transcripts {
    /// Opens the transcripts of an owner.
    pub fn new(store: Arc<dyn Store>, owner: BundleOwner) -> Self {
        Self { store, owner }
    }

    /// Returns the owner.
    pub fn owner(&self) -> &BundleOwner {
        &self.owner
    }

    /// Adds entries in their order, all or none. Entries that were appended before are left out. Cost: two round trips, which write the
    /// new entries only.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if another entry has the id of one of these; nothing is written.
    /// [`TooLarge`](ErrorKind::TooLarge) for more than [`ENTRIES_MAX`] entries or [`APPEND_BYTES_MAX`] bytes, and for an entry over
    /// [`ENTRY_BYTES_MAX`]. [`InvalidArgument`](ErrorKind::InvalidArgument) for a bad session. Otherwise as [`Store::commit`].
    pub async fn append(&self, session: &str, entries: &[TranscriptEntry]) -> Result<Appended> {
        let rows = self.rows(session)?;
        check_size(entries)?;
        let mut digests: HashMap<&str, String> = HashMap::new();
        let mut distinct = Vec::new();
        for entry in entries {
            work::step().await;
            let digest = blake3::hash(entry.json().as_str().as_bytes()).to_hex().to_string();
            match digests.get(entry.id()) {
                Some(same) if *same == digest => continue,
                Some(_) => return Err(is_other(entry.id())),
                None => drop(digests.insert(entry.id(), digest)),
            }
            distinct.push(entry);
        }
        let ids: Vec<&str> = distinct.iter().map(|entry| entry.id()).collect();
        let mut attempts = Attempts::new();
        loop {
            if ids.is_empty() {
                return Ok(Appended { added: 0, repeated: entries.len() });
            }
            let known = self.store.get_many(&rows.ids, &ids, true).await?;
            let mut batch = Batch::new();
            let mut added = 0;
            for (entry, known) in distinct.iter().zip(known) {
                let digest = &digests[entry.id()];
                match known {
                    Some(known) if known.value == digest.as_bytes() => {}
                    Some(_) => return Err(is_other(entry.id())),
                    None => {
                        added += 1;
                        batch = add(batch, &rows, entry, digest);
                    }
                }
            }
            if added == 0 {
                return Ok(Appended { added, repeated: entries.len() });
            }
            match self.store.commit(batch).await {
                Err(error) if error.kind() == ErrorKind::Conflict => attempts.lost().await?,
                done => return done.map(|_| Appended { added, repeated: entries.len() - added }),
            }
        }
    }

    /// Returns entries after a position, or from the beginning, in order. A page also ends once its texts have 8 MiB. Cost: one round trip.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a limit that is not 1 to [`ENTRIES_MAX`], [`Corrupt`](ErrorKind::Corrupt) for an
    /// entry that cannot be read. Otherwise as [`Store::scan`].
    pub async fn read(&self, session: &str, after: Option<u64>, limit: usize) -> Result<TranscriptPage> {
        check_limit(limit, ENTRIES_MAX)?;
        let mut options = ScanOptions::new().with_values(true).with_limit(limit);
        options.start_after = after.map(|position| log_key(Version::new(position)));
        let scan = self.store.scan(&self.rows(session)?.entries, options).await?;
        let mut page = TranscriptPage::default();
        for entry in scan.entries {
            work::step().await;
            if let ScanEntry::Item(row) = entry {
                page.entries.push(entry_of(&row)?);
            }
        }
        page.next = scan.next.and(page.entries.last().map(|entry| entry.position));
        Ok(page)
    }

    /// Returns the text of an entry. Cost: one round trip if it is kept aside.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) if it is missing or is not the text that was appended. Otherwise as [`Store::get`].
    pub async fn body(&self, session: &str, entry: &StoredEntry) -> Result<Json> {
        let (digest, rows) = match &entry.body {
            EntryBody::Inline(json) => return Ok(json.clone()),
            EntryBody::Aside { digest, .. } => (digest, self.rows(session)?),
        };
        let found = self.store.get(&rows.aside, digest).await?.filter(|found| blake3::hash(&found.value).to_hex().as_str() == digest);
        let json = found.and_then(|found| Json::from_bytes(&found.value).ok());
        json.ok_or_else(|| {
            let message = format!("the large entry `{}` of the transcript cannot be read; restore it from an export", entry.id);
            Error::new(ErrorKind::Corrupt, message)
        })
    }

    /// Removes the transcript of a session. Entries that are appended at the same time are removed or stay, each append as a whole. Cost:
    /// one round trip.
    ///
    /// # Errors
    /// As [`Store::commit`].
    pub async fn remove(&self, session: &str) -> Result<()> {
        let Rows { entries, ids, aside } = self.rows(session)?;
        let batch = Batch::new().delete_prefix(&entries, "").delete_prefix(&ids, "").delete_prefix(&aside, "");
        self.store.commit(batch).await.map(drop)
    }

    fn rows(&self, session: &str) -> Result<Rows> {
        check_id("session", session)?;
        let [entries, ids, aside] = namespaces_of(&self.owner, session)?;
        Ok(Rows { entries, ids, aside })
    }
}

/// Returns the namespaces of a session's transcript: entries, ids, and large entries.
pub(crate) fn namespaces_of(owner: &BundleOwner, session: &str) -> Result<[Namespace; 3]> {
    let rows = |kind| owner.rows("transcripts", [session, kind]);
    Ok([rows("entries")?, rows("ids")?, rows("aside")?])
}

impl fmt::Debug for Transcripts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transcripts({})", self.store)
    }
}

fn check_size(entries: &[TranscriptEntry]) -> Result<()> {
    let too_large = |message: String| Err(Error::new(ErrorKind::TooLarge, message).without_effect());
    if entries.len() > ENTRIES_MAX {
        return too_large(format!("{} entries are too many at once; append at most {ENTRIES_MAX}", entries.len()));
    }
    let mut bytes = 0;
    for entry in entries {
        let size = entry.json().as_str().len();
        if size > ENTRY_BYTES_MAX {
            return too_large(format!("the entry `{}` has {size} bytes and at most {ENTRY_BYTES_MAX} are allowed; shorten it", entry.id()));
        }
        bytes += size;
    }
    if bytes > APPEND_BYTES_MAX {
        return too_large(format!("{bytes} bytes are too many at once; append at most {APPEND_BYTES_MAX}"));
    }
    Ok(())
}

/// Adds an entry to a batch, on the condition that its id is new.
fn add(batch: Batch, rows: &Rows, entry: &TranscriptEntry, digest: &str) -> Batch {
    let text = entry.json().as_str();
    let mut batch = batch.expect(&rows.ids, entry.id(), Condition::Absent).put(&rows.ids, entry.id(), digest.to_owned());
    let (meta, value) = if text.len() <= INLINE_BYTES_MAX {
        (Bytes::new(), Bytes::from(text.to_owned()))
    } else {
        batch = batch.put(&rows.aside, digest, text.to_owned());
        let reference = Reference {
            id: entry.id().to_owned(),
            parent_id: entry.parent_id().map(str::to_owned),
            timestamp: entry.timestamp(),
            kind: entry.kind(),
            digest: digest.to_owned(),
            size_bytes: text.len() as u64,
        };
        (Bytes::from_static(ASIDE), row(&reference).into())
    };
    batch.writes.push(BatchWrite::Append { namespace: rows.entries.clone(), meta, value, time_to_live: None });
    batch
}

fn entry_of(row: &Item) -> Result<StoredEntry> {
    let position = row.version.number();
    if row.meta == ASIDE {
        let Reference { id, parent_id, timestamp, kind, digest, size_bytes } = stored("entry of the transcript", &row.value)?;
        return Ok(StoredEntry { position, id, parent_id, timestamp, kind, body: EntryBody::Aside { digest, size_bytes } });
    }
    let damaged = |error| Error::new(ErrorKind::Corrupt, "the stored entry of the transcript cannot be read").with_source(error);
    let entry = Json::from_bytes(&row.value).and_then(TranscriptEntry::parse).map_err(damaged)?;
    let (id, parent_id) = (entry.id().to_owned(), entry.parent_id().map(str::to_owned));
    let (timestamp, kind) = (entry.timestamp(), entry.kind());
    Ok(StoredEntry { position, id, parent_id, timestamp, kind, body: EntryBody::Inline(entry.json().clone()) })
}

fn is_other(id: &str) -> Error {
    let message = format!("the transcript has another entry with the id `{id}`; entries never change, append a new one");
    Error::new(ErrorKind::Conflict, message).without_effect()
}

/// Checks the id of an entry.
fn check_entry_id(id: &str) -> Result<()> {
    check_name("id of the entry", id)
}
