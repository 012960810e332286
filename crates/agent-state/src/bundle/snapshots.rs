//! Snapshots of sandboxes: bytes by id, stored in parts that every engine accepts.

use super::RETENTION;
use crate::owner::{BundleOwner, check_name};
use bytes::{Bytes, BytesMut};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::{row, stored};
use treehold_core::retry::Attempts;
use treehold_store::{Batch, Condition, Item, Namespace, Store};
use uuid::Uuid;

/// The largest snapshot in bytes.
pub const SNAPSHOT_BYTES_MAX: usize = 32 << 20;

/// The length of a part. Every engine accepts rows of this size.
const PART_BYTES: usize = 4 << 20;

/// How long parts live before the snapshot that they belong to is complete.
const UNFINISHED_KEPT: Duration = Duration::from_secs(60 * 60);

/// A snapshot without its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotInfo {
    /// Its length in bytes.
    pub size_bytes: u64,
    /// When it was first stored.
    pub created_at: Timestamp,
    /// When it was last replaced.
    pub modified_at: Timestamp,
}

/// The row of a snapshot.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Head {
    size_bytes: u64,
    /// The component above the parts. Each put has another one, so a reader never mixes the parts of two.
    data: String,
    /// The digest of the bytes.
    digest: String,
}

impl Head {
    fn parts(&self) -> usize {
        (self.size_bytes as usize).div_ceil(PART_BYTES)
    }
}

/// The snapshots of an owner in a store. One that nobody read or replaced for 7 days is removed. Clones share them.
#[derive(Clone)]
pub struct Snapshots {
    store: Arc<dyn Store>,
    owner: BundleOwner,
    clock: Clock,
}

impl Snapshots {
    /// Opens the snapshots of an owner.
    pub fn new(store: Arc<dyn Store>, owner: BundleOwner) -> Self {
        Self { store, owner, clock: Clock::system() }
    }

    /// Sets the clock that decides when a read extends the life of a snapshot. Use the store's clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Creates or replaces a snapshot. Readers see the old bytes or the new ones. Cost: two round trips, and one for each 4 MiB.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a bad id, [`TooLarge`](ErrorKind::TooLarge) for more than
    /// [`SNAPSHOT_BYTES_MAX`] bytes. Otherwise as [`Store::commit`].
    pub async fn put(&self, id: &str, bytes: Bytes) -> Result<SnapshotInfo> {
        let heads = self.heads(id)?;
        if bytes.len() > SNAPSHOT_BYTES_MAX {
            let message = format!("the snapshot has {} bytes and at most {SNAPSHOT_BYTES_MAX} are allowed; leave files out", bytes.len());
            return Err(Error::new(ErrorKind::TooLarge, message).without_effect());
        }
        let digest = blake3::hash(&bytes).to_hex().to_string();
        let head = Head { size_bytes: bytes.len() as u64, data: Uuid::new_v4().simple().to_string(), digest };
        let rows = self.parts(&head)?;
        for part in 0..head.parts() {
            let content = bytes.slice(part * PART_BYTES..bytes.len().min((part + 1) * PART_BYTES));
            self.store.commit(Batch::new().put_for(&rows, part_key(part), content, UNFINISHED_KEPT)).await?;
        }
        let mut attempts = Attempts::new();
        loop {
            let old = self.head(&heads, id).await?;
            let condition = old.as_ref().map_or(Condition::Absent, |(item, _)| Condition::Version(item.version));
            let batch = Batch::new().expect(&heads, id, condition).put_for(&heads, id, row(&head), RETENTION);
            let batch = self.extend(batch, &head)?;
            let batch = match &old {
                Some((_, old)) => batch.delete_prefix(&self.parts(old)?, ""),
                None => batch,
            };
            match self.store.commit(batch).await {
                Err(error) if error.kind() == ErrorKind::Conflict => attempts.lost().await?,
                Err(error) => return Err(error),
                Ok(_) => {
                    let now = self.clock.now();
                    let created_at = old.map_or(now, |(item, _)| item.created_at);
                    return Ok(SnapshotInfo { size_bytes: head.size_bytes, created_at, modified_at: now });
                }
            }
        }
    }

    /// Returns the bytes of a snapshot, or `None`. Cost: one round trip, one for each 4 MiB, and one if its life is extended.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) if its parts do not fit together. Otherwise as [`Store::get`].
    pub async fn get(&self, id: &str) -> Result<Option<Bytes>> {
        let heads = self.heads(id)?;
        let mut attempts = Attempts::new();
        loop {
            let Some((item, head)) = self.head(&heads, id).await? else { return Ok(None) };
            match self.read(&head).await? {
                Some(bytes) => {
                    self.refresh(&heads, &item, &head).await;
                    return Ok(Some(bytes));
                }
                // Its parts are removed with the head, so it was replaced since, unless the head is the same.
                None => match self.head(&heads, id).await? {
                    Some((_, again)) if again.data == head.data => return Err(damaged(id)),
                    _ => attempts.lost().await?,
                },
            }
        }
    }

    /// Describes a snapshot without reading its bytes, or returns `None`. Cost: one round trip.
    ///
    /// # Errors
    /// As [`Snapshots::get`].
    pub async fn info(&self, id: &str) -> Result<Option<SnapshotInfo>> {
        let found = self.head(&self.heads(id)?, id).await?;
        Ok(found.map(|(item, head)| SnapshotInfo {
            size_bytes: head.size_bytes,
            created_at: item.created_at,
            modified_at: item.modified_at,
        }))
    }

    /// Removes a snapshot. Removing an absent one is not an error. Cost: two round trips.
    ///
    /// # Errors
    /// As [`Store::commit`].
    pub async fn delete(&self, id: &str) -> Result<()> {
        let heads = self.heads(id)?;
        let mut attempts = Attempts::new();
        loop {
            let Some((item, head)) = self.head(&heads, id).await? else { return Ok(()) };
            let batch = Batch::new().expect(&heads, id, Condition::Version(item.version)).delete(&heads, id);
            match self.store.commit(batch.delete_prefix(&self.parts(&head)?, "")).await {
                Err(error) if error.kind() == ErrorKind::Conflict => attempts.lost().await?,
                done => return done.map(drop),
            }
        }
    }

    /// Reads all parts; `None` if one is missing or the bytes are not those that were stored.
    async fn read(&self, head: &Head) -> Result<Option<Bytes>> {
        if head.size_bytes > SNAPSHOT_BYTES_MAX as u64 {
            return Ok(None);
        }
        let rows = self.parts(head)?;
        let mut bytes = BytesMut::with_capacity(head.size_bytes as usize);
        for part in 0..head.parts() {
            let Some(found) = self.store.get(&rows, &part_key(part)).await? else { return Ok(None) };
            bytes.extend_from_slice(&found.value);
        }
        let is_whole = blake3::hash(&bytes).to_hex().as_str() == head.digest;
        Ok(is_whole.then(|| bytes.freeze()))
    }

    /// Extends the life of a snapshot that was read, once a tenth of it has passed. A failure is only reported.
    async fn refresh(&self, heads: &Namespace, item: &Item, head: &Head) {
        let young_until = self.clock.now().checked_add(RETENTION * 9 / 10);
        if item.expires_at.is_none_or(|at| young_until.is_ok_and(|young| young < at)) {
            return;
        }
        let batch = Batch::new().expect(heads, &*item.key, Condition::Version(item.version));
        let extended = match self.extend(batch.touch(heads, &*item.key, Some(RETENTION)), head) {
            Ok(batch) => self.store.commit(batch).await.map(drop),
            Err(error) => Err(error),
        };
        if let Err(error) = extended.or_else(|error| if error.kind() == ErrorKind::Conflict { Ok(()) } else { Err(error) }) {
            tracing::warn!(%error, "the life of a snapshot could not be extended after a read");
        }
    }

    /// Adds to a batch that the parts live as long as their head.
    fn extend(&self, batch: Batch, head: &Head) -> Result<Batch> {
        let rows = self.parts(head)?;
        // A part that expired meanwhile must not be left out.
        Ok((0..head.parts()).fold(batch, |batch, part| {
            batch.expect(&rows, part_key(part), Condition::Exists).touch(&rows, part_key(part), Some(RETENTION))
        }))
    }

    async fn head(&self, heads: &Namespace, id: &str) -> Result<Option<(Item, Head)>> {
        let Some(item) = self.store.get(heads, id).await? else { return Ok(None) };
        let head = stored("snapshot", &item.value)?;
        Ok(Some((item, head)))
    }

    fn heads(&self, id: &str) -> Result<Namespace> {
        check_name("id of the snapshot", id)?;
        self.owner.rows("snapshots", [])
    }

    fn parts(&self, head: &Head) -> Result<Namespace> {
        self.owner.rows("snapshot-parts", [&*head.data])
    }
}

impl fmt::Debug for Snapshots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshots({})", self.store)
    }
}

fn part_key(part: usize) -> String {
    format!("{part:04}")
}

fn damaged(id: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the stored snapshot `{id}` cannot be read; store it again"))
}
