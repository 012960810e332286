//! The reference store: rows in the memory of one process, lost when it ends.
//!
//! Every other engine must behave as this one does. A read holds the lock for a pointer copy or one lookup, a commit
//! for its own writes. A scan works on a snapshot and blocks nobody.

mod key;

use self::key::Key;
use super::page::{PageBuilder, Step, key_after, prefix_end};
use super::watch::Watches;
use super::{
    Batch, BatchWrite, Condition, Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Partition, Precondition, RowsSnapshot, Scan,
    ScanOptions, SnapshotParts, SnapshotRow, SnapshotRows, Store, StoreCapabilities, StoreDescription, StoreExtensions, StoreMaintenance,
    StoreStats, Watch, expiry, log_key, precondition_failed, whole_microseconds,
};
use async_trait::async_trait;
use bytes::Bytes;
use imbl::OrdMap;
use jiff::Timestamp;
use parking_lot::RwLock;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::Bound;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use treehold_core::clock::Clock;
use treehold_core::error::{Error, Result};
use treehold_core::file::is_binary;
use treehold_core::ops::{Durability, Version};

/// A store in memory. Clones share the rows.
///
/// Cost: reads and writes of one row are logarithmic in the number of rows, a scan linear in its entries, a sweep
/// linear in the rows that it removes.
///
/// # Examples
/// ```
/// use treehold_store::{Batch, MemoryStore, Namespace, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let store = MemoryStore::new();
/// let notes = Namespace::new(["ada", "notes"])?;
/// let versions = store.commit(Batch::new().put(&notes, "today", "walk the dog")).await?;
/// let item = store.get(&notes, "today").await?.expect("it was just put");
/// assert_eq!((&item.value[..], item.version), (&b"walk the dog"[..], versions[0]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct MemoryStore {
    rows: Arc<RwLock<Rows>>,
    watches: Arc<Watches>,
    clock: Clock,
}

impl MemoryStore {
    /// Returns the capabilities of every store of this engine.
    pub fn offers() -> StoreCapabilities {
        StoreCapabilities::new(Durability::None).with_sweeps(true)
    }

    /// Makes an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes an empty store that reads the time from `clock`.
    pub fn with_clock(clock: Clock) -> Self {
        Self { clock, ..Self::default() }
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn capabilities(&self) -> StoreCapabilities {
        Self::offers()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        StoreExtensions::new().with_maintenance(self).with_snapshot_rows(self)
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        let now = self.clock.now();
        Ok(self.rows.read().live(namespace, key, now).map(|record| record.item(key, true)))
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        Ok(self.get(namespace, key).await?.map(|item| ItemPart::cut(item, range)))
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        let now = self.clock.now();
        let rows = self.rows.read();
        Ok(keys.iter().map(|key| rows.live(namespace, key, now).map(|record| record.item(key, with_values))).collect())
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        let now = self.clock.now();
        let snapshot = self.rows.read().namespaces.get(namespace).cloned();
        let mut page = PageBuilder::new(options);
        if let Some(records) = snapshot {
            fill(&mut page, &records, now)?;
        }
        Ok(page.finish())
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        let now = self.clock.now();
        let snapshot = self.rows.read().namespaces.clone();
        Ok(list_namespaces(&snapshot, &options, now))
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        batch.validate(&self.capabilities())?;
        let now = whole_microseconds(self.clock.now());
        let mut rows = self.rows.write();
        for (index, precondition) in batch.preconditions.iter().enumerate() {
            rows.check(index, precondition, now)?;
        }
        let Some(partition) = batch.partition() else { return Ok(Vec::new()) };
        let watched = self.watches.written_by(&batch);
        let (versions, version) = rows.apply(partition, batch.writes, now);
        drop(rows);
        watched.iter().for_each(|namespace| self.watches.notify(namespace, version));
        Ok(versions)
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        Ok(self.rows.read().version_of(partition))
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        let watch = self.watches.watch(namespace);
        // Waits for any commit that did not yet see the watch.
        drop(self.rows.read());
        Ok(watch)
    }
}

#[async_trait]
impl StoreMaintenance for MemoryStore {
    async fn sweep(&self, limit: usize) -> Result<usize> {
        let now = self.clock.now();
        Ok(self.rows.write().sweep(limit, now))
    }

    async fn describe(&self) -> Result<StoreDescription> {
        Ok(StoreDescription::new("memory", self.capabilities().durability))
    }

    /// Finds nothing: memory holds what was put.
    async fn check(&self) -> Result<Vec<Error>> {
        Ok(Vec::new())
    }

    async fn stats(&self) -> Result<StoreStats> {
        let now = self.clock.now();
        let snapshot = self.rows.read().namespaces.clone();
        let mut stats = StoreStats::new();
        for records in snapshot.values() {
            let items = stats.items;
            records
                .values()
                .for_each(|record| stats.add(record.is_live(now), record.meta.as_slice().len() as u64, record.value.len() as u64));
            stats.namespaces += u64::from(stats.items > items);
        }
        Ok(stats)
    }
}

#[async_trait]
impl SnapshotRows for MemoryStore {
    async fn snapshot_rows(&self, namespace: &Namespace) -> Result<Option<Arc<dyn RowsSnapshot>>> {
        let now = self.clock.now();
        let rows = self.rows.read();
        let records = rows.namespaces.get(namespace).cloned().unwrap_or_default();
        Ok(Some(Arc::new(Snapshot { records, now, is_mortal: !rows.expiries.is_empty() })))
    }
}

impl fmt::Display for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory")
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.rows.read();
        f.debug_struct("MemoryStore").field("namespaces", &rows.namespaces.len()).field("partitions", &rows.versions.len()).finish()
    }
}

/// The rows of one namespace: keys and records in place, leaf by leaf.
type Records = OrdMap<Key, Record>;

/// The rows of one namespace at one moment.
struct Snapshot {
    records: Records,
    now: Timestamp,
    /// Whether any of the rows has an expiry.
    is_mortal: bool,
}

impl RowsSnapshot for Snapshot {
    fn get(&self, key: &str) -> Option<SnapshotRow<'_>> {
        let (key, record) = self.records.get_key_value(key)?;
        record.is_live(self.now).then(|| SnapshotRow::new(key, record))
    }

    fn range<'r>(&'r self, start: &str, end: Option<&str>) -> Box<dyn Iterator<Item = SnapshotRow<'r>> + Send + 'r> {
        if end.is_some_and(|end| end <= start) {
            return Box::new(std::iter::empty());
        }
        let live = range(&self.records, start, end).filter(|(_, record)| !self.is_mortal || record.is_live(self.now));
        Box::new(live.map(|(key, record)| SnapshotRow::new(key, record)))
    }
}

impl SnapshotParts for Record {
    fn meta(&self) -> &[u8] {
        self.meta.as_slice()
    }

    fn value(&self) -> &Bytes {
        &self.value
    }

    fn is_binary(&self) -> bool {
        *self.binary.get_or_init(|| is_binary(&self.value))
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("rows", &self.records.len()).field("now", &self.now).finish()
    }
}

#[derive(Default)]
struct Rows {
    /// Namespaces without rows are removed, so none here is empty.
    namespaces: OrdMap<Namespace, Records>,
    /// Every row that expires, ordered by expiry.
    expiries: BTreeSet<(Timestamp, Namespace, Key)>,
    /// The version of the newest commit of each partition. It stays when the last row of a partition is gone, so that no version is used
    /// twice.
    versions: HashMap<Partition, u64>,
}

#[derive(Clone)]
struct Record {
    meta: Meta,
    value: Bytes,
    version: Version,
    created_at: Timestamp,
    modified_at: Timestamp,
    expires_at: Option<Timestamp>,
    /// Whether the body is binary; computed by the first search.
    binary: OnceLock<bool>,
}

/// The metadata of a row. Short metadata is stored inline, which saves scans a pointer dereference per row and
/// concurrent readers a shared reference count.
#[derive(Clone)]
enum Meta {
    Short { length: u8, bytes: [u8; META_BYTES_SHORT] },
    Long(Bytes),
}

/// The longest metadata stored inline: 22 bytes fit without making [`Meta`] larger than its heap variant.
const META_BYTES_SHORT: usize = 22;

impl Meta {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Short { length, bytes } => &bytes[..usize::from(*length)],
            Self::Long(bytes) => bytes,
        }
    }

    fn to_bytes(&self) -> Bytes {
        match self {
            Self::Short { .. } => Bytes::copy_from_slice(self.as_slice()),
            Self::Long(bytes) => bytes.clone(),
        }
    }
}

impl From<Bytes> for Meta {
    fn from(meta: Bytes) -> Self {
        let mut bytes = [0; META_BYTES_SHORT];
        match (bytes.get_mut(..meta.len()), u8::try_from(meta.len())) {
            (Some(short), Ok(length)) => {
                short.copy_from_slice(&meta);
                Self::Short { length, bytes }
            }
            _ => Self::Long(meta),
        }
    }
}

impl Record {
    fn is_live(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|at| now < at)
    }

    fn item(&self, key: &str, with_value: bool) -> Item {
        let value = if with_value { self.value.clone() } else { Bytes::new() };
        Item::new(key, self.meta.to_bytes(), value, self.version, self.created_at, self.modified_at).with_expires_at(self.expires_at)
    }
}

impl Rows {
    fn live(&self, namespace: &Namespace, key: &str, now: Timestamp) -> Option<&Record> {
        self.namespaces.get(namespace)?.get(key).filter(|record| record.is_live(now))
    }

    fn check(&self, index: usize, precondition: &Precondition, now: Timestamp) -> Result<()> {
        let Precondition { namespace, key, condition } = precondition;
        let met = match condition {
            Condition::NoneBeneath => self.beneath(namespace, key, |record| record.is_live(now)),
            Condition::NoneBeneathSince(version) => self.beneath(namespace, key, |record| record.version > *version && record.is_live(now)),
            Condition::Absent | Condition::Exists | Condition::Version(_) => self.live(namespace, key, now).map(|record| record.version),
        };
        if condition.holds(met) { Ok(()) } else { Err(precondition_failed(index, precondition, met)) }
    }

    /// Returns the version of the first record below `prefix`, excluding `prefix` itself, that satisfies `is_met`.
    fn beneath(&self, namespace: &Namespace, prefix: &str, is_met: impl Fn(&Record) -> bool) -> Option<Version> {
        let records = self.namespaces.get(namespace)?;
        range(records, &key_after(prefix), prefix_end(prefix).as_deref())
            .find(|(_, record)| is_met(record))
            .map(|(_, record)| record.version)
    }

    /// Returns the version of the newest commit in a partition.
    fn version_of(&self, partition: &Partition) -> Version {
        Version::new(self.versions.get(partition).copied().unwrap_or(0))
    }

    /// Applies the writes of a batch in a partition. Returns the versions of the puts, and that of the commit.
    fn apply(&mut self, partition: Partition, writes: Vec<BatchWrite>, now: Timestamp) -> (Vec<Version>, Version) {
        let mut counter = self.version_of(&partition).number();
        let mut versions = Vec::new();
        let mut removed = 0;
        let mut restored = None;
        for write in writes {
            match write {
                BatchWrite::Put { namespace, key, meta, value, time_to_live, created_at } => {
                    let created_at = created_at
                        .map(whole_microseconds)
                        .or_else(|| self.live(&namespace, &key, now).map(|record| record.created_at))
                        .unwrap_or(now);
                    let expires_at = time_to_live.map(|duration| expiry(now, duration));
                    counter += 1;
                    let version = Version::new(counter);
                    versions.push(version);
                    self.put(
                        namespace,
                        key.into(),
                        Record { meta: meta.into(), value, version, created_at, modified_at: now, expires_at, binary: OnceLock::new() },
                    );
                }
                BatchWrite::Append { namespace, meta, value, time_to_live } => {
                    let expires_at = time_to_live.map(|duration| expiry(now, duration));
                    counter += 1;
                    let version = Version::new(counter);
                    versions.push(version);
                    let record = Record {
                        meta: meta.into(),
                        value,
                        version,
                        created_at: now,
                        modified_at: now,
                        expires_at,
                        binary: OnceLock::new(),
                    };
                    self.put(namespace, log_key(version).into(), record);
                }
                BatchWrite::Restore { namespace, item } => {
                    counter += 1;
                    restored = restored.max(Some(item.version.number()));
                    let record = Record {
                        meta: item.meta.into(),
                        value: item.value,
                        version: item.version,
                        created_at: whole_microseconds(item.created_at),
                        modified_at: whole_microseconds(item.modified_at),
                        expires_at: item.expires_at.map(whole_microseconds),
                        binary: OnceLock::new(),
                    };
                    self.put(namespace, item.key.into(), record);
                }
                BatchWrite::Touch { namespace, key, time_to_live } => {
                    if let Some(record) = self.live(&namespace, &key, now) {
                        let record = Record { expires_at: time_to_live.map(|duration| expiry(now, duration)), ..record.clone() };
                        self.put(namespace, key.into(), record);
                    }
                }
                BatchWrite::Delete { namespace, key } => removed += usize::from(self.remove(&namespace, &key)),
                BatchWrite::DeletePrefix { namespace, prefix } => removed += self.remove_prefix(&namespace, &prefix),
            }
        }
        if versions.is_empty() && restored.is_none() && removed > 0 {
            counter += 1;
        }
        counter = counter.max(restored.unwrap_or(0));
        if counter > 0 {
            self.versions.insert(partition, counter);
        }
        (versions, Version::new(counter))
    }

    fn put(&mut self, namespace: Namespace, key: Key, record: Record) {
        let expires_at = record.expires_at;
        let records = self.namespaces.entry(namespace.clone()).or_default();
        if let Some(at) = records.insert(key.clone(), record).and_then(|old| old.expires_at) {
            self.expiries.remove(&(at, namespace.clone(), key.clone()));
        }
        if let Some(at) = expires_at {
            self.expiries.insert((at, namespace, key));
        }
    }

    fn remove(&mut self, namespace: &Namespace, key: &str) -> bool {
        let Some(records) = self.namespaces.get_mut(namespace) else { return false };
        let Some((key, record)) = records.remove_with_key(key) else { return false };
        if records.is_empty() {
            self.namespaces.remove(namespace);
        }
        if let Some(at) = record.expires_at {
            self.expiries.remove(&(at, namespace.clone(), key));
        }
        true
    }

    fn remove_prefix(&mut self, namespace: &Namespace, prefix: &str) -> usize {
        let Some(records) = self.namespaces.get(namespace) else { return 0 };
        let keys: Vec<Key> = range(records, prefix, prefix_end(prefix).as_deref()).map(|(key, _)| key.clone()).collect();
        keys.iter().filter(|key| self.remove(namespace, key)).count()
    }

    fn sweep(&mut self, limit: usize, now: Timestamp) -> usize {
        let mut swept = 0;
        while swept < limit && self.expiries.first().is_some_and(|(at, ..)| *at <= now) {
            let (_, namespace, key) = self.expiries.pop_first().expect("the first entry was just seen");
            self.remove(&namespace, &key);
            swept += 1;
        }
        swept
    }
}

/// The most rows that a scan allocates space for up front.
const ROWS_RESERVED_MAX: usize = 1_024;

/// Returns the rows in `start..end`; `end` must not lie before `start`.
fn range<'r>(records: &'r Records, start: &str, end: Option<&str>) -> impl Iterator<Item = (&'r Key, &'r Record)> + use<'r> {
    records.range::<(Bound<&str>, Bound<&str>), str>((Bound::Included(start), end.map_or(Bound::Unbounded, Bound::Excluded)))
}

fn fill(page: &mut PageBuilder, records: &Records, now: Timestamp) -> Result<()> {
    page.reserve(records.len().min(ROWS_RESERVED_MAX));
    let end = page.end();
    let mut start = page.start();
    while let Some(from) = start.take() {
        for (key, record) in range(records, &from, end.as_deref()).filter(|(_, record)| record.is_live(now)) {
            match page.offer(key, |with_value| Ok(record.item(key, with_value)))? {
                Step::Next => {}
                Step::Seek(to) => {
                    start = Some(to);
                    break;
                }
                Step::End => return Ok(()),
            }
        }
    }
    Ok(())
}

fn list_namespaces(all: &OrdMap<Namespace, Records>, options: &NamespacesOptions, now: Timestamp) -> NamespacePage {
    // The first namespace of a tenant is not known, so its list starts at the front.
    let start = match (&options.start_after, &options.beneath) {
        (Some(after), Some(beneath)) if after < beneath => Bound::Included(beneath),
        (Some(after), _) => Bound::Excluded(after),
        (None, Some(beneath)) => Bound::Included(beneath),
        (None, None) => Bound::Unbounded,
    };
    let found = all
        .range::<(Bound<&Namespace>, Bound<&Namespace>), Namespace>((start, Bound::Unbounded))
        .filter(|(_, records)| records.values().any(|record| record.is_live(now)))
        .map(|(namespace, _)| namespace.clone());
    NamespacePage::of(found, options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_meta_round_trip_and_inline_meta_costs_no_space() {
        for length in [0, 1, META_BYTES_SHORT - 1, META_BYTES_SHORT, META_BYTES_SHORT + 1, 255, 256, 70_000] {
            let bytes = Bytes::from(vec![7; length]);
            let meta = Meta::from(bytes.clone());
            assert_eq!(meta.to_bytes(), bytes);
            assert_eq!(matches!(meta, Meta::Short { .. }), length <= META_BYTES_SHORT);
        }
        assert_eq!(size_of::<Meta>(), size_of::<Bytes>());
    }
}
