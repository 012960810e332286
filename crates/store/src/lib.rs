//! Namespaced rows: the trait behind everything durable.
//!
//! A [`Store`] is an ordered map from (namespace, key) to an [`Item`], which has a small `meta` and a body. Reads are
//! methods. Every mutation is a [`Batch`] of preconditions, puts and deletes, which [`commit`](Store::commit) applies
//! all or nothing. Every namespace lies in one [`Partition`]; versions come from one counter for each partition and only grow. Scans page by key, never by offset, and read
//! no bodies unless asked. A scan with a delimiter seeks past whole subtrees.
//!
//! Start with [`MemoryStore`], the reference implementation. Every other engine is a separate crate.
//!
//! What an engine needs besides the trait [`Store`]:
//!
//! - [`engine`]: registers the engine under the scheme of its URLs.
//! - [`page`] assembles a page of a scan, [`NamespacePage::of`] one of namespaces.
//! - [`watch`] notifies watchers of commits.
//! - [`Batch::validate`] checks a batch, [`Condition::holds`] decides a precondition, [`precondition_failed`] is the
//!   error if it does not hold, [`log_key`] makes the key of an append, and [`expiry`] the end of a row.
//! - [`committer`] and [`combiner`] make one durable step of batches that wait at the same time; [`effect`] folds a
//!   batch for engines that apply it in one statement.
//! - [`file_identity`] notices that a file was replaced, [`unfinished`] names files once they are complete,
//!   [`server_url`] parses URLs of servers, [`migrate`] describes the migration of an older layout.

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::Result;
#[cfg(doc)]
use treehold_core::error::{Error, ErrorKind};
use treehold_core::ops::{Durability, Version};

#[cfg(feature = "archive")]
mod archive;
mod batch;
pub mod combiner;
pub mod committer;
mod copy;
mod derived;
mod digest;
pub mod effect;
pub mod engine;
mod extensions;
mod faults;
pub mod file_identity;
pub mod holding;
pub mod intent;
mod json;
mod key;
mod listing;
mod maintenance;
mod memory;
pub mod migrate;
mod outbox;
mod paced;
pub mod page;
pub mod proof;
mod scan;
pub mod server_url;
mod snapshot;
mod stats;
mod sweeper;
pub mod unfinished;
mod user_place;
mod user_rows;
mod verify;
mod versions;
mod walk;
pub mod watch;

#[cfg(feature = "archive")]
pub use archive::{ARCHIVE_FORMAT, ArchiveProgress, ArchiveReport, ExportOptions, ImportOptions, export, import};
pub use batch::{Batch, BatchWrite, Condition, Precondition, log_key, precondition_failed, unvalidated};
pub use copy::{COPY_NAMESPACE, CopyOptions, CopyProgress, CopyReport, CopyStage, copy};
pub use derived::{INDEX_NAMESPACE, event_log};
pub use extensions::{FilteredScan, StoreExt, StoreExtensions};
pub use faults::Faults;
pub use json::{JsonCursor, JsonFilter, JsonFound, JsonItem, JsonNamespacePage, JsonPage, JsonSearch, JsonStore, NamespaceSearch};
pub use key::{escape_key, unescape_key};
pub use listing::AllNamespaces;
pub use maintenance::StoreMaintenance;
pub use memory::MemoryStore;
pub use migrate::{MigrateOptions, MigrateOutcome, MigrateProgress, MigrateReport, OldLayout};
pub use outbox::{Delivery, FileOutcome, FileVersion, HeldEntry, Outbox, OutboxEntry, OutboxRows, Receipt, TakenEntries, is_same};
pub use paced::{Pace, PacedStore};
pub use scan::{NamespacePage, NamespacesOptions, PartitionPage, Scan, ScanEntry, ScanOptions};
pub use snapshot::{RowsSnapshot, SnapshotParts, SnapshotRow, SnapshotRows};
pub use stats::{StoreDescription, StoreStats, SweepCount};
pub use sweeper::{SHRINK_PAGES, Sweeper, SweeperCounts, SweeperOptions};
pub use treehold_core::namespace::{NAMESPACE_COMPONENTS_MAX, Namespace, Partition};
pub use treehold_core::reserved::{RESERVED_NAMESPACES, RESERVED_ROOT, Reserved, ReservedRows, Withheld, is_reserved, refuse_reserved};
pub use user_rows::{check_user_rows, move_user_rows};
pub use verify::{StoreVerification, StoreVerifyProgress, verify};
pub use watch::{Watch, WatchSender, Watches};

/// The maximum length of a key in bytes.
pub const KEY_BYTES_MAX: usize = 4096;

/// The maximum length of an item's `meta` in bytes.
pub const META_BYTES_MAX: usize = 64 << 10;

/// Namespaced key-value rows with conditional, atomic batches.
///
/// `Display` names the store as a configuration would, without secrets: `sqlite:agent.db`.
///
/// Every store has these methods. Maintenance and faster ways to read are [extensions](Self::extensions); [`StoreExt`] has a method for
/// each, with a fallback for stores without the extension. Every method is required, so a wrapper that forgets one fails to compile.
#[async_trait]
pub trait Store: Send + Sync + fmt::Display + fmt::Debug {
    /// Declares what the engine offers.
    fn capabilities(&self) -> StoreCapabilities;

    /// Returns the optional extensions that the store implements: [`StoreExtensions::new`] where it has none. A
    /// wrapper passes on those of its inner store; one that changes or records reads passes on
    /// [`without_reads`](StoreExtensions::without_reads).
    fn extensions(&self) -> StoreExtensions<'_>;

    /// Returns one item with its body, or `None`. Expired items count as absent.
    ///
    /// Cost: one round trip.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable), [`Corrupt`](ErrorKind::Corrupt) or [`Internal`](ErrorKind::Internal),
    /// depending on the engine. A failed read never looks like an absent item.
    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>>;

    /// Returns one item with the bytes of its body that lie within `range`. Parts with the same [`Item::version`]
    /// belong to the same body.
    ///
    /// Cost: one round trip. Only the part is sent and held in memory, however long the body is; `docs/stores.md` says
    /// what each engine reads from disk for it.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>>;

    /// Returns several items in the order of `keys`, all as of one moment. Without `with_values` no bodies are read.
    ///
    /// Cost: one round trip, however many keys.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>>;

    /// Returns a page of one namespace in key order, all as of one moment. [`PageBuilder`](page::PageBuilder) decides
    /// what is on it.
    ///
    /// Cost: one round trip per page; with a delimiter, one seek per group, however many rows it holds.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan>;

    /// Returns a page of the namespaces that hold at least one live item, in namespace order.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage>;

    /// Checks every precondition and applies every write atomically: readers see all of the batch or none of it.
    ///
    /// Returns the versions of the puts and appends, in their order. Each is unique in its [`Partition`] and greater than any version
    /// committed there before; versions of two partitions say nothing about each other. Returns once the batch is as durable as [`StoreCapabilities::durability`] promises. Writes
    /// apply in order, so the last write to a key wins.
    ///
    /// Cost: one round trip.
    ///
    /// # Errors
    /// Those of [`Batch::validate`], which every engine calls first. [`Conflict`](ErrorKind::Conflict) when a
    /// precondition does not hold: [`Error::change`] is its index and [`Error::current_version`] the version found
    /// instead. Otherwise as [`Store::get`].
    async fn commit(&self, batch: Batch) -> Result<Vec<Version>>;

    /// Returns the version of the newest commit in a partition. It grows with every change there, deletes included, so callers can poll it
    /// to detect changes. It never exceeds the version of a later commit in the partition. Expiry, [`sweep`](StoreExt::sweep) and
    /// [`BatchWrite::Touch`] do not advance it. An engine with one counter for all partitions returns that one, so the version may also
    /// grow with changes elsewhere.
    ///
    /// Cost: one round trip.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn current_version(&self, partition: &Partition) -> Result<Version>;

    /// Watches one namespace. The [`Watch`] reports every commit that a read started after this call returns might
    /// miss. Commits through this store are reported at once; on shared stores, commits by other processes are reported
    /// within a second. [`Watches`] does this for an engine.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn watch(&self, namespace: &Namespace) -> Result<Watch>;
}

#[async_trait]
impl<S: Store + ?Sized> Store for Arc<S> {
    fn capabilities(&self) -> StoreCapabilities {
        (**self).capabilities()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        (**self).extensions()
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

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        (**self).namespaces(options).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        (**self).commit(batch).await
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        (**self).current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        (**self).watch(namespace).await
    }
}

/// One row. Times are whole microseconds in every store, so an item moves between stores unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Item {
    /// The key.
    pub key: String,
    /// Small metadata, which every read returns.
    pub meta: Bytes,
    /// The body; empty when the read did not ask for it.
    pub value: Bytes,
    /// The version of the put that wrote it.
    pub version: Version,
    /// When the key first appeared; a put that replaces an item keeps it.
    pub created_at: Timestamp,
    /// When it was last put.
    pub modified_at: Timestamp,
    /// When the item expires: it is live before this moment and absent from then on.
    pub expires_at: Option<Timestamp>,
}

impl Item {
    /// Makes an item.
    pub fn new(key: impl Into<String>, meta: Bytes, value: Bytes, version: Version, created_at: Timestamp, modified_at: Timestamp) -> Self {
        Self { key: key.into(), meta, value, version, created_at, modified_at, expires_at: None }
    }

    /// Sets the body, or the part of it that was asked for.
    #[must_use]
    pub fn with_value(mut self, value: impl Into<Bytes>) -> Self {
        self.value = value.into();
        self
    }

    /// Sets when the item expires; `None` means never.
    #[must_use]
    pub fn with_expires_at(mut self, expires_at: Option<Timestamp>) -> Self {
        self.expires_at = expires_at;
        self
    }

    /// Returns whether the item has not expired at `now`.
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|at| now < at)
    }
}

/// A part of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ItemPart {
    /// The row, whose [`value`](Item::value) is the part of the body that was asked for.
    pub item: Item,
    /// The length of the whole body in bytes.
    pub value_bytes: u64,
}

impl ItemPart {
    /// Makes a part from an item that holds only the requested bytes of its body.
    pub fn new(item: Item, value_bytes: u64) -> Self {
        Self { item, value_bytes }
    }

    /// Cuts a part out of an item that holds its whole body, without copying.
    pub fn cut(mut item: Item, range: Range<u64>) -> Self {
        let value_bytes = item.value.len() as u64;
        let within = within(&range, value_bytes);
        item.value = item.value.slice(within.start as usize..within.end as usize);
        Self { item, value_bytes }
    }

    /// Returns whether the part covers the whole body.
    pub fn is_whole(&self) -> bool {
        self.item.value.len() as u64 == self.value_bytes
    }
}

/// Clamps a range to a body of `value_bytes` bytes.
pub fn within(range: &Range<u64>, value_bytes: u64) -> Range<u64> {
    let start = range.start.min(value_bytes);
    start..range.end.clamp(start, value_bytes)
}

/// The guarantees and limits of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StoreCapabilities {
    /// What an acknowledged commit survives.
    pub durability: Durability,
    /// Several processes may use the same data at once.
    pub shared: bool,
    /// The largest body in bytes; `None` if there is no limit.
    pub value_bytes_max: Option<u64>,
    /// Expired rows stay, invisible, until [`sweep`](StoreMaintenance::sweep) removes them.
    pub sweeps: bool,
}

impl StoreCapabilities {
    /// Declares an engine for one process, without a size limit, that needs no sweeps.
    pub fn new(durability: Durability) -> Self {
        Self { durability, shared: false, value_bytes_max: None, sweeps: false }
    }

    /// Sets what an acknowledged commit survives.
    #[must_use]
    pub fn with_durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
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

    /// Sets whether expired rows stay until they are swept.
    #[must_use]
    pub fn with_sweeps(mut self, sweeps: bool) -> Self {
        self.sweeps = sweeps;
        self
    }
}

/// Truncates a time to whole microseconds, the precision that every engine stores. The last second of the calendar has
/// no microseconds, so a time in it is truncated to the second.
pub fn whole_microseconds(time: Timestamp) -> Timestamp {
    let cut = time.as_nanosecond().div_euclid(1_000);
    i64::try_from(cut)
        .ok()
        .and_then(|cut| Timestamp::from_microsecond(cut).ok())
        .unwrap_or_else(|| Timestamp::from_second(time.as_second()).expect("the whole second of a valid time is valid"))
}

/// Returns the expiry of an item that lives for `time_to_live` from `now`, at the latest the end of the calendar.
pub fn expiry(now: Timestamp, time_to_live: Duration) -> Timestamp {
    now.checked_add(time_to_live).map_or(whole_microseconds(Timestamp::MAX), whole_microseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_truncated_to_whole_microseconds() {
        for time in [Timestamp::MIN, Timestamp::MAX, Timestamp::UNIX_EPOCH, Timestamp::now()] {
            let cut = whole_microseconds(time);
            assert!(cut <= time && time.duration_since(cut).as_secs_f64() < 1.0, "{time}");
            assert_eq!(Timestamp::from_microsecond(cut.as_microsecond()).expect("it can be read back"), cut);
        }
        assert_eq!(expiry(Timestamp::now(), Duration::MAX), whole_microseconds(Timestamp::MAX));
    }
}
