//! Messages between sessions and processes, in three forms: queues that are drained, logs that are replayed, and broadcasts.
//!
//! A queue has one consumer at a time. An entry that was [drained](MessageBus::queue_drain) is never returned again: delivery is at most
//! once. A consumer that must not lose an entry [reads](MessageBus::queue_read) the queue and [acknowledges](MessageBus::queue_acknowledge)
//! what it has processed: delivery is at least once.
//!
//! A log has any number of readers. Each keeps the id of the last entry that it read. A broadcast is a log with a short life; a
//! [`Subscription`] starts at its end.
//!
//! Entries are appended to the logs of the store, so their order is that of the commits, and their ids are the versions of these. The keys
//! of the helpers for inboxes, wake-ups and session events are those that other clients of the same protocol use.

mod domain;
mod subscription;
mod trim;

pub(crate) use domain::namespaces_of;
pub use domain::{SESSION_EVENTS_MAX, Wakeup, inbox_key, session_events_key};
pub use subscription::Subscription;

use self::trim::Trims;
use crate::owner::{BundleOwner, check_limit, check_name, check_object};
use serde::Serialize;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;
use treehold_core::ops::Version;
use treehold_core::retry::Attempts;
use treehold_store::{Batch, Condition, Item, Namespace, ScanEntry, ScanOptions, Store, log_key};

/// The most entries that one call reads or removes.
pub const ENTRIES_MAX: usize = 1_000;

/// The longest cap of a log.
pub const LOG_LEN_MAX: usize = 100_000;

/// How many entries of a broadcast are kept for subscribers that lag.
const BROADCAST_LEN_MAX: usize = 100;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How long entries are kept, and how large they are.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BusOptions {
    /// How long an entry waits in a queue; `None` for ever. Default 7 days.
    pub queue_retention: Option<Duration>,
    /// How long an entry stays in a log; `None` for ever. Default 3 days.
    pub log_retention: Option<Duration>,
    /// How long a broadcast can be read by a subscriber that lags. Default 1 minute.
    pub broadcast_retention: Duration,
    /// The largest payload in bytes. Default 1 MiB.
    pub payload_bytes_max: usize,
}

impl Default for BusOptions {
    fn default() -> Self {
        Self {
            queue_retention: Some(7 * DAY),
            log_retention: Some(3 * DAY),
            broadcast_retention: Duration::from_secs(60),
            payload_bytes_max: 1 << 20,
        }
    }
}

impl BusOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how long an entry waits in a queue.
    #[must_use]
    pub fn with_queue_retention(mut self, queue_retention: Option<Duration>) -> Self {
        self.queue_retention = queue_retention;
        self
    }

    /// Sets how long an entry stays in a log.
    #[must_use]
    pub fn with_log_retention(mut self, log_retention: Option<Duration>) -> Self {
        self.log_retention = log_retention;
        self
    }

    /// Sets how long a broadcast can be read by a subscriber that lags.
    #[must_use]
    pub fn with_broadcast_retention(mut self, broadcast_retention: Duration) -> Self {
        self.broadcast_retention = broadcast_retention;
        self
    }

    /// Sets the largest payload in bytes.
    #[must_use]
    pub fn with_payload_bytes_max(mut self, payload_bytes_max: usize) -> Self {
        self.payload_bytes_max = payload_bytes_max;
        self
    }
}

/// The id of an entry. Later entries have greater ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct EntryId(Version);

impl EntryId {
    /// Makes an id from its number, for a cursor.
    pub fn new(number: u64) -> Self {
        Self(Version::new(number))
    }

    /// Returns the number.
    pub fn number(self) -> u64 {
        self.0.number()
    }

    fn of(row: &Item) -> Self {
        Self(row.version)
    }

    fn key(self) -> String {
        log_key(self.0)
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(f)
    }
}

impl std::str::FromStr for EntryId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let number = text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
        number
            .map(Self::new)
            .ok_or_else(|| Error::invalid_argument("the id of an entry is a number; pass the one that was returned with it"))
    }
}

/// An entry of a queue or a log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BusEntry {
    /// Its id.
    pub id: EntryId,
    /// What was sent, a JSON object.
    pub payload: Json,
}

/// The queues, logs and broadcasts of an owner in a store. Clones share them.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use treehold_agent_state::{BundleOwner, Json, bus::MessageBus};
/// use treehold_store::MemoryStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let bus = MessageBus::new(Arc::new(MemoryStore::new()), BundleOwner::shared("acme", "helper")?);
/// bus.queue_push("jobs", &Json::parse(r#"{"job": 1}"#)?).await?;
/// assert_eq!(bus.queue_drain("jobs", 10).await?.len(), 1);
/// assert!(bus.queue_drain("jobs", 10).await?.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MessageBus {
    store: Arc<dyn Store>,
    owner: BundleOwner,
    options: BusOptions,
    trims: Arc<Trims>,
}

/// The two kinds of entries.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Queue,
    Log,
}

impl MessageBus {
    /// Opens the bus of an owner.
    pub fn new(store: Arc<dyn Store>, owner: BundleOwner) -> Self {
        Self { store, owner, options: BusOptions::default(), trims: Arc::default() }
    }

    /// Sets how long entries are kept, and how large they are.
    #[must_use]
    pub fn with_options(mut self, options: BusOptions) -> Self {
        self.options = options;
        self
    }

    /// Adds an entry to a queue. Cost: one round trip.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a bad key and for a payload that is not a JSON object,
    /// [`TooLarge`](ErrorKind::TooLarge) for a payload over the limit. Otherwise as [`Store::commit`].
    pub async fn queue_push(&self, key: &str, payload: &Json) -> Result<EntryId> {
        let rows = self.rows(Kind::Queue, key)?;
        self.append(Batch::new().append(&rows, self.body(payload)?, self.options.queue_retention)).await
    }

    /// Removes up to `max` entries from a queue and returns them in the order of their arrival. An entry is returned at most once, however
    /// many consumers drain the queue. A page also ends once its payloads have 8 MiB.
    ///
    /// Cost: two round trips. Consumers that drain one queue at the same time repeat them.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a bad key or a `max` that is not 1 to [`ENTRIES_MAX`]. Otherwise as
    /// [`Store::commit`]; if the answer of the commit is lost, so are its entries.
    pub async fn queue_drain(&self, key: &str, max: usize) -> Result<Vec<BusEntry>> {
        let rows = self.rows(Kind::Queue, key)?;
        let mut attempts = Attempts::new();
        loop {
            let entries = self.page(&rows, None, max).await?;
            if entries.is_empty() {
                return Ok(entries);
            }
            let taken = entries
                .iter()
                .fold(Batch::new(), |batch, entry| batch.expect(&rows, entry.id.key(), Condition::Exists).delete(&rows, entry.id.key()));
            match self.store.commit(taken).await {
                Err(error) if error.kind() == ErrorKind::Conflict => attempts.lost().await?,
                done => return done.map(|_| entries),
            }
        }
    }

    /// Returns the first entries of a queue without removing them. Cost: one round trip.
    ///
    /// # Errors
    /// As [`MessageBus::log_read`].
    pub async fn queue_read(&self, key: &str, max: usize) -> Result<Vec<BusEntry>> {
        self.page(&self.rows(Kind::Queue, key)?, None, max).await
    }

    /// Removes entries that were [read](Self::queue_read) and processed. Removing an absent one is not an error. Cost: one round trip.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a bad key or more than [`ENTRIES_MAX`] ids. Otherwise as [`Store::commit`].
    pub async fn queue_acknowledge(&self, key: &str, ids: &[EntryId]) -> Result<()> {
        let rows = self.rows(Kind::Queue, key)?;
        if ids.is_empty() {
            return Ok(());
        }
        check_limit(ids.len(), ENTRIES_MAX)?;
        self.store.commit(ids.iter().fold(Batch::new(), |batch, id| batch.delete(&rows, id.key()))).await.map(drop)
    }

    /// Returns whether a queue has an entry. Cost: one round trip.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a bad key. Otherwise as [`Store::scan`].
    pub async fn queue_peek(&self, key: &str) -> Result<bool> {
        let scan = self.store.scan(&self.rows(Kind::Queue, key)?, ScanOptions::new().with_limit(1)).await?;
        Ok(!scan.entries.is_empty())
    }

    /// Removes a queue with all its entries. Cost: one round trip.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a bad key. Otherwise as [`Store::commit`].
    pub async fn queue_delete(&self, key: &str) -> Result<()> {
        self.store.commit(Batch::new().delete_prefix(&self.rows(Kind::Queue, key)?, "")).await.map(drop)
    }

    /// Adds an entry to a log. With `len_max`, older entries are removed so that about this many stay: a process removes them once it has
    /// added an eighth of the cap. Cost: one round trip, and for each removal one for each 1,000 entries of the log.
    ///
    /// # Errors
    /// As [`MessageBus::queue_push`], and [`InvalidArgument`](ErrorKind::InvalidArgument) for a `len_max` that is not 1 to
    /// [`LOG_LEN_MAX`].
    pub async fn log_append(&self, key: &str, payload: &Json, len_max: Option<usize>) -> Result<EntryId> {
        let rows = self.rows(Kind::Log, key)?;
        if let Some(len_max) = len_max {
            check_limit(len_max, LOG_LEN_MAX)?;
        }
        let id = self.append(Batch::new().append(&rows, self.body(payload)?, self.options.log_retention)).await?;
        self.cap(&rows, len_max).await;
        Ok(id)
    }

    /// Returns entries of a log after the entry `since`, or from the beginning, in order. A page also ends once its payloads have 8 MiB.
    /// Cost: one round trip.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a bad key or a `max` that is not 1 to [`ENTRIES_MAX`],
    /// [`Corrupt`](ErrorKind::Corrupt) for an entry that cannot be read. Otherwise as [`Store::scan`].
    pub async fn log_read(&self, key: &str, since: Option<EntryId>, max: usize) -> Result<Vec<BusEntry>> {
        self.page(&self.rows(Kind::Log, key)?, since, max).await
    }

    /// Removes all entries of a log. Cost: one round trip.
    ///
    /// # Errors
    /// As [`MessageBus::queue_delete`].
    pub async fn log_trim(&self, key: &str) -> Result<()> {
        self.store.commit(Batch::new().delete_prefix(&self.rows(Kind::Log, key)?, "")).await.map(drop)
    }

    /// Sends a payload to the subscribers of a channel that exist now. The channel is the log with the same key; the entry stays there for
    /// [`BusOptions::broadcast_retention`]. Cost: one round trip.
    ///
    /// # Errors
    /// As [`MessageBus::queue_push`].
    pub async fn publish(&self, key: &str, payload: &Json) -> Result<EntryId> {
        let rows = self.rows(Kind::Log, key)?;
        let id = self.append(Batch::new().append(&rows, self.body(payload)?, Some(self.options.broadcast_retention))).await?;
        self.cap(&rows, Some(BROADCAST_LEN_MAX)).await;
        Ok(id)
    }

    /// Subscribes to a channel or a log: entries that are added after this call are received in order. A subscriber that lags loses
    /// entries that were removed before it read them. Cost: one round trip, and one for each page of entries.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a bad key. Otherwise as [`Store::watch`].
    pub async fn subscribe(&self, key: &str) -> Result<Subscription> {
        Subscription::start(self.clone(), self.rows(Kind::Log, key)?).await
    }

    async fn append(&self, batch: Batch) -> Result<EntryId> {
        let versions = self.store.commit(batch).await?;
        versions.first().map(|version| EntryId(*version)).ok_or_else(|| Error::new(ErrorKind::Internal, "a store returned no version"))
    }

    fn body(&self, payload: &Json) -> Result<String> {
        check_object("payload", payload, self.options.payload_bytes_max)?;
        Ok(payload.as_str().to_owned())
    }

    async fn page(&self, rows: &Namespace, since: Option<EntryId>, max: usize) -> Result<Vec<BusEntry>> {
        check_limit(max, ENTRIES_MAX)?;
        let mut options = ScanOptions::new().with_values(true).with_limit(max);
        options.start_after = since.map(EntryId::key);
        let scan = self.store.scan(rows, options).await?;
        let entries = scan.entries.into_iter().filter_map(|entry| match entry {
            ScanEntry::Item(row) => Some(entry_of(rows, &row)),
            ScanEntry::Group { .. } | ScanEntry::LeftOut { .. } => None,
        });
        entries.collect()
    }

    fn rows(&self, kind: Kind, key: &str) -> Result<Namespace> {
        check_name("key of the bus", key)?;
        rows_of(&self.owner, kind, key)
    }
}

fn rows_of(owner: &BundleOwner, kind: Kind, key: &str) -> Result<Namespace> {
    let part = match kind {
        Kind::Queue => "queues",
        Kind::Log => "logs",
    };
    owner.rows(part, [key])
}

impl fmt::Debug for MessageBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for MessageBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MessageBus({})", self.store)
    }
}

fn entry_of(rows: &Namespace, row: &Item) -> Result<BusEntry> {
    let damaged = |error| {
        let message = format!("the entry {} of `{rows}` cannot be read; delete the queue or trim the log", row.version);
        Error::new(ErrorKind::Corrupt, message).with_source(error)
    };
    Ok(BusEntry { id: EntryId::of(row), payload: Json::from_bytes(&row.value).map_err(damaged)? })
}
