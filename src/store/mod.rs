//! Namespaced rows: the one trait that holds everything durable.
//!
//! A [`Store`] is an ordered map from (namespace, key) to an [`Item`] with a small `meta` and a body. Reads are methods,
//! every mutation is a [`Batch`] for the one method [`commit`](Store::commit): preconditions, puts and deletes, all or
//! nothing. Versions come from one counter of the store and only grow. A scan pages by key, never by offset, and does not
//! read bodies unless asked; with a delimiter it passes over whole subtrees by seeking.
//!
//! Start with [`MemoryStore`], the reference; the other engines are one file each beside it, behind a feature of their name.

#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, Result};
use crate::ops::{Durability, Version};
use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "archive")]
mod archive;
mod batch;
#[cfg(any(test, feature = "mysql", feature = "postgres"))]
mod combiner;
#[cfg(any(feature = "sled", feature = "sqlite"))]
mod committer;
mod copy;
mod derived;
mod digest;
#[cfg(any(test, feature = "mysql", feature = "postgres", feature = "redis"))]
mod effect;
mod escape;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod holding;
mod json;
mod key;
mod lent;
mod memory;
#[cfg(feature = "mysql")]
mod mysql;
mod namespace;
mod page;
#[cfg(any(test, feature = "postgres", feature = "remote"))]
pub(crate) mod pause;
#[cfg(any(feature = "sled", feature = "sqlite"))]
mod place;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
pub(crate) mod reserved;
mod rider;
mod scan;
#[cfg(any(test, feature = "mysql", feature = "postgres"))]
mod server_url;
#[cfg(feature = "sled")]
mod sled;
#[cfg(feature = "sqlite")]
mod sqlite;
mod stats;
mod sweeper;
mod verify;
mod walk;
mod watch;

#[cfg(feature = "archive")]
pub use archive::{ARCHIVE_FORMAT, ArchiveProgress, ArchiveReport, ExportOptions, ImportOptions, export, import};
pub(crate) use batch::precondition_failed;
pub use batch::{Batch, BatchWrite, Condition, Precondition, log_key};
pub use copy::{COPY_NAMESPACE, CopyOptions, CopyProgress, CopyReport, CopyStage, copy};
pub use derived::INDEX_NAMESPACE;
pub use json::{JsonCursor, JsonFilter, JsonFound, JsonItem, JsonNamespacePage, JsonPage, JsonSearch, JsonStore, NamespaceSearch};
pub use key::{escape_key, unescape_key};
pub use lent::{LentParts, LentRow, LentRows};
pub use memory::MemoryStore;
#[cfg(feature = "mysql")]
pub use mysql::{MysqlOptions, MysqlStore};
pub use namespace::{NAMESPACE_COMPONENTS_MAX, Namespace};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresOptions, PostgresStore};
#[cfg(feature = "redis")]
pub use redis::{RedisOptions, RedisStore};
pub use reserved::{RESERVED_NAMESPACES, Reserved, ReservedRows, Withheld};
pub(crate) use rider::{Ride, Rider, is_same};
pub use scan::{NamespacePage, NamespacesOptions, Scan, ScanEntry, ScanOptions};
#[cfg(feature = "sled")]
pub use sled::{SledOptions, SledStore};
#[cfg(feature = "sqlite")]
pub use sqlite::{SnapshotOptions, SnapshotProgress, SqliteOptions, SqliteStore};
pub use stats::{StoreDescription, StoreStats};
pub use sweeper::{Sweeper, SweeperOptions};
pub use verify::{StoreVerification, StoreVerifyProgress, verify};
pub use watch::Watch;

/// The longest key in bytes.
pub const KEY_BYTES_MAX: usize = 4096;

/// The longest `meta` of an item in bytes.
pub const META_BYTES_MAX: usize = 64 << 10;

/// Namespaced key-value rows with conditional, atomic batches.
///
/// `Display` names the store as a configuration would, without secrets: `sqlite:agent.db`.
#[async_trait]
pub trait Store: Send + Sync + fmt::Display + fmt::Debug {
    /// Declares what the engine offers.
    fn capabilities(&self) -> StoreCapabilities;

    /// Returns one item with its body, or none. An item whose time to live is over is absent at once.
    ///
    /// Cost: one round trip.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable), [`Corrupt`](ErrorKind::Corrupt) or [`Internal`](ErrorKind::Internal) by the engine; never an absent item instead.
    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>>;

    /// Returns one item with a part of its body: the bytes of `range` that it has. Parts of one [`Item::version`] are of one body.
    ///
    /// Cost: one round trip. The part is what is sent and held in memory, however long the body is; what the engine itself reads for it is
    /// in `docs/stores.md`.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>>;

    /// Returns several items in the order of `keys`, all as of one moment; without `with_values` the bodies are not read.
    ///
    /// Cost: one round trip, however many keys.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>>;

    /// Returns a page of one namespace in key order, all as of one moment.
    ///
    /// Cost: one round trip a page; with a delimiter one seek for each group, whatever lies in it.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan>;

    /// Lends the live rows of one namespace in place, where the store has them in memory; none elsewhere, and rows are read by
    /// [`Store::scan`]. A wrapper that changes or watches what scans return lends nothing.
    ///
    /// Cost: one round trip, which grows with no number of rows.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn lend(&self, namespace: &Namespace) -> Result<Option<Arc<dyn LentRows>>>;

    /// Returns a page of the namespaces that hold at least one live item, in order.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage>;

    /// Applies a batch: every precondition is checked and every write done as one step that others see whole or not at all.
    ///
    /// Returns the versions of the puts, in their order. All puts of one batch are newer than anything committed before, and
    /// no two are the same. Returns when the batch is as durable as [`StoreCapabilities::durability`] says. Writes take
    /// effect in the order they stand in, so a later one of the same key wins. Cost: one round trip.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) when a precondition does not hold ([`Error::change`] is its index and
    /// [`Error::current_version`] what it met), [`TooLarge`](ErrorKind::TooLarge) for a body over the engine's limit, before
    /// anything is sent, and the engine's own as in [`Store::get`].
    async fn commit(&self, batch: Batch) -> Result<Vec<Version>>;

    /// Returns the version of the newest commit anywhere in the store: it grows whenever anything changes, deletes included.
    /// What polls for changes compares it. An item whose time is over, or that is swept then, is no commit, and neither is a
    /// [`BatchWrite::Touch`].
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn current_version(&self) -> Result<Version>;

    /// Removes up to `limit` items whose time to live is over and returns how many it removed.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn sweep(&self, limit: usize) -> Result<usize>;

    /// Watches one namespace: the [`Watch`] tells of every commit there that a read which starts when this returns does not show
    /// yet, by whatever process it is made where the store is shared: its own at once, those of other processes within a second.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn watch(&self, namespace: &Namespace) -> Result<Watch>;

    /// Tells what the engine is, and what an operator should know of it.
    ///
    /// Cost: one round trip at most, however much the store holds.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn describe(&self) -> Result<StoreDescription>;

    /// Counts what the store holds.
    ///
    /// Cost: linear in the rows; bodies are not read.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn stats(&self) -> Result<StoreStats>;

    /// Looks for damage with the engine's own means, and for parts that do not belong together: one [`Corrupt`](ErrorKind::Corrupt)
    /// error for each thing found, up to a hundred.
    ///
    /// Cost: reads everything.
    ///
    /// # Errors
    /// As [`Store::get`], when the store cannot be looked at.
    async fn check(&self) -> Result<Vec<Error>>;
}

#[async_trait]
impl<S: Store + ?Sized> Store for Arc<S> {
    fn capabilities(&self) -> StoreCapabilities {
        (**self).capabilities()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        (**self).get(namespace, key).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        (**self).get_part(namespace, key, range).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        (**self).get_many(namespace, keys, with_values).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        (**self).scan(namespace, options).await
    }

    async fn lend(&self, namespace: &Namespace) -> Result<Option<Arc<dyn LentRows>>> {
        (**self).lend(namespace).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        (**self).namespaces(options).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        (**self).commit(batch).await
    }

    async fn current_version(&self) -> Result<Version> {
        (**self).current_version().await
    }

    async fn sweep(&self, limit: usize) -> Result<usize> {
        (**self).sweep(limit).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        (**self).watch(namespace).await
    }

    async fn describe(&self) -> Result<StoreDescription> {
        (**self).describe().await
    }

    async fn stats(&self) -> Result<StoreStats> {
        (**self).stats().await
    }

    async fn check(&self) -> Result<Vec<Error>> {
        (**self).check().await
    }
}
/// One row. Times are whole microseconds in every store, so an item moves between stores unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Item {
    /// The key.
    pub key: String,
    /// The small part, which every read returns.
    pub meta: Bytes,
    /// The body; empty when the read did not ask for it.
    pub value: Bytes,
    /// The version of the put that wrote it.
    pub version: Version,
    /// When the key first appeared; a put that replaces an item keeps it.
    pub created_at: Timestamp,
    /// When it was last put.
    pub modified_at: Timestamp,
    /// When it becomes absent by itself: it is live before this moment and absent from it on.
    pub expires_at: Option<Timestamp>,
}

impl Item {
    /// Makes an item.
    pub fn new(key: impl Into<String>, meta: Bytes, value: Bytes, version: Version, created_at: Timestamp, modified_at: Timestamp) -> Self {
        Self { key: key.into(), meta, value, version, created_at, modified_at, expires_at: None }
    }

    /// Sets when it becomes absent by itself.
    #[must_use]
    pub fn with_expires_at(mut self, expires_at: Option<Timestamp>) -> Self {
        self.expires_at = expires_at;
        self
    }
}

/// A part of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ItemPart {
    /// The row, whose [`value`](Item::value) is the part of the body that was asked for.
    pub item: Item,
    /// The bytes of the whole body.
    pub value_bytes: u64,
}

impl ItemPart {
    /// Makes a part from an item with the part of its body that was read.
    pub fn new(item: Item, value_bytes: u64) -> Self {
        Self { item, value_bytes }
    }

    /// Cuts a part out of an item with its whole body, without a copy.
    pub fn cut(mut item: Item, range: Range<u64>) -> Self {
        let value_bytes = item.value.len() as u64;
        let within = within(&range, value_bytes);
        item.value = item.value.slice(within.start as usize..within.end as usize);
        Self { item, value_bytes }
    }

    /// Tells whether the part is the whole body.
    pub fn is_whole(&self) -> bool {
        self.item.value.len() as u64 == self.value_bytes
    }
}

/// Returns the part of a range that a body of a length has.
pub(crate) fn within(range: &Range<u64>, value_bytes: u64) -> Range<u64> {
    let start = range.start.min(value_bytes);
    start..range.end.clamp(start, value_bytes)
}

/// What an engine offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StoreCapabilities {
    /// What an acknowledged commit survives.
    pub durability: Durability,
    /// Several processes may use the same data at once.
    pub shared: bool,
    /// The largest body in bytes, where there is a limit.
    pub value_bytes_max: Option<u64>,
}

impl StoreCapabilities {
    /// Declares an engine without limits for one process.
    pub fn new(durability: Durability) -> Self {
        Self { durability, shared: false, value_bytes_max: None }
    }

    /// Sets whether several processes may use the same data.
    #[must_use]
    pub fn with_shared(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    /// Sets the largest body in bytes.
    #[must_use]
    pub fn with_value_bytes_max(mut self, value_bytes_max: Option<u64>) -> Self {
        self.value_bytes_max = value_bytes_max;
        self
    }
}

/// Cuts a time to whole microseconds, towards the past: what every engine stores. The last second of the calendar, which has
/// no microseconds, is cut to its start.
pub(crate) fn whole_microseconds(time: Timestamp) -> Timestamp {
    let cut = time.as_nanosecond().div_euclid(1_000);
    i64::try_from(cut)
        .ok()
        .and_then(|cut| Timestamp::from_microsecond(cut).ok())
        .unwrap_or_else(|| Timestamp::from_second(time.as_second()).expect("the second of a time is in the calendar"))
}

/// Returns when a time to live that starts now is over; one that goes beyond the calendar ends with it.
pub(crate) fn expiry(now: Timestamp, time_to_live: Duration) -> Timestamp {
    now.checked_add(time_to_live).map_or(whole_microseconds(Timestamp::MAX), whole_microseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_cut_to_what_every_engine_can_store() {
        for time in [Timestamp::MIN, Timestamp::MAX, Timestamp::UNIX_EPOCH, Timestamp::now()] {
            let cut = whole_microseconds(time);
            assert!(cut <= time && time.duration_since(cut).as_secs_f64() < 1.0, "{time}");
            assert_eq!(Timestamp::from_microsecond(cut.as_microsecond()).expect("it can be read back"), cut);
        }
        assert_eq!(expiry(Timestamp::now(), Duration::MAX), whole_microseconds(Timestamp::MAX));
    }
}
