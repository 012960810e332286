//! The reading side.
//!
//! The engine has no snapshots, but only the one writer changes rows. It holds a lock while a group of commits takes
//! effect in memory (not while it waits for the disk), and reads of several rows share that lock. A read of one item
//! takes no lock and starts over if its body was replaced meanwhile. Rows read here may not be durable yet, so callers
//! return them only after [`Pending::shown`](super::pending::Pending::shown).

use super::error::{damaged, failed, guarded};
use super::rows::{COUNTER_KEY, Record, expiry_key, namespaces_start, record_key, records_end, split_record_key};
use parking_lot::{RwLock, RwLockWriteGuard};
use sled::{Db, IVec};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use treehold_core::error::{Error, Result};
use treehold_core::ops::Version;
use treehold_store::page::{PageBuilder, Step, key_after, prefix_end};
use treehold_store::{Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Scan, ScanOptions, StoreStats};

/// The most faults that a check reports.
const CHECK_FAULTS_MAX: usize = 90;

/// A handle for reading. Clones share their state.
#[derive(Clone)]
pub(super) struct Reader {
    rows: Db,
    /// The version of the newest durable commit.
    version: Arc<AtomicU64>,
    moment: Arc<RwLock<()>>,
}

/// The result of reading one item.
pub(super) enum Got {
    /// No live item has the key.
    Absent,
    /// The item.
    Item(Item),
    /// The item's body exceeds the requested limit.
    TooLong,
}

impl Got {
    /// Returns the item, if one was found.
    pub(super) fn into_item(self) -> Option<Item> {
        if let Self::Item(item) = self { Some(item) } else { None }
    }
}

impl Reader {
    /// Makes a reader for an open store.
    pub(super) fn new(rows: Db, version: u64) -> Self {
        Self { rows, version: Arc::new(AtomicU64::new(version)), moment: Arc::default() }
    }

    /// Returns the rows.
    pub(super) fn rows(&self) -> &Db {
        &self.rows
    }

    /// Blocks readers of several rows while rows change.
    pub(super) fn change(&self) -> RwLockWriteGuard<'_, ()> {
        self.moment.write()
    }

    /// Sets the version of the newest durable commit.
    pub(super) fn set_version(&self, version: u64) {
        self.version.store(version, Ordering::Release);
    }

    /// Returns the version of the newest durable commit.
    pub(super) fn current_version(&self) -> Version {
        Version::new(self.version.load(Ordering::Acquire))
    }

    /// Reads one item. Includes the body if it has at most `body_bytes_max` bytes; `None` skips bodies.
    pub(super) fn get(&self, namespace: &Namespace, key: &str, now: i64, body_bytes_max: Option<u64>) -> Result<Got> {
        guarded(|| self.find(namespace, key, now, body_bytes_max))
    }

    /// Reads one item with a part of its body, fetching only the pieces that contain it.
    pub(super) fn get_part(&self, namespace: &Namespace, key: &str, now: i64, range: &Range<u64>) -> Result<Option<ItemPart>> {
        guarded(|| {
            let record_key = record_key(namespace, key);
            let mut last_seen = None;
            loop {
                let Some(stored) = self.rows.get(&record_key).map_err(failed)? else { return Ok(None) };
                let record = Record::decode(&stored)?;
                if !record.is_live(now) {
                    return Ok(None);
                }
                if let Some(part) = record.part(key, range, |key| self.rows.get(key).map_err(failed))? {
                    return Ok(Some(part));
                }
                // As in `find`.
                if last_seen.replace(record.version) == Some(record.version) {
                    return Err(damaged("a row has lost its body"));
                }
            }
        })
    }

    /// Reads several items at one moment; `None` if a body exceeds `body_bytes_max`.
    pub(super) fn get_many(
        &self,
        namespace: &Namespace,
        keys: &[impl AsRef<str>],
        now: i64,
        body_bytes_max: Option<u64>,
    ) -> Result<Option<Vec<Option<Item>>>> {
        guarded(|| {
            let _moment = self.moment.read();
            let mut items = Vec::with_capacity(keys.len());
            for key in keys {
                match self.find(namespace, key.as_ref(), now, body_bytes_max)? {
                    Got::TooLong => return Ok(None),
                    got => items.push(got.into_item()),
                }
            }
            Ok(Some(items))
        })
    }

    fn find(&self, namespace: &Namespace, key: &str, now: i64, body_bytes_max: Option<u64>) -> Result<Got> {
        let record_key = record_key(namespace, key);
        let mut last_seen = None;
        loop {
            let Some(stored) = self.rows.get(&record_key).map_err(failed)? else { return Ok(Got::Absent) };
            let record = Record::decode(&stored)?;
            if !record.is_live(now) {
                return Ok(Got::Absent);
            }
            if body_bytes_max.is_some_and(|max| record.size > max) {
                return Ok(Got::TooLong);
            }
            if let Some(item) = record.item(key, body_bytes_max.is_some(), |key| self.rows.get(key).map_err(failed))? {
                return Ok(Got::Item(item));
            }
            // Either another put replaced the body between the two reads and the record has changed by now, or the body
            // is lost.
            if last_seen.replace(record.version) == Some(record.version) {
                return Err(damaged("a row has lost its body"));
            }
        }
    }

    /// Reads a page; `None` if it needs more than `rows_max` rows.
    pub(super) fn scan(&self, namespace: &Namespace, options: &ScanOptions, now: i64, rows_max: usize) -> Result<Option<Scan>> {
        let mut page = PageBuilder::new(options.clone());
        guarded(|| {
            let _moment = self.moment.read();
            Ok(self.fill(&mut page, namespace, now, rows_max)?.then(|| page.finish()))
        })
    }

    fn fill(&self, page: &mut PageBuilder, namespace: &Namespace, now: i64, rows_max: usize) -> Result<bool> {
        let end = records_end(namespace, page.end().as_deref());
        let mut rows_left = rows_max;
        let mut start = page.start();
        while let Some(from) = start.take() {
            for row in self.rows.range(record_key(namespace, &from)..end.clone()) {
                let (stored_key, stored) = row.map_err(failed)?;
                rows_left = match rows_left.checked_sub(1) {
                    Some(left) => left,
                    None => return Ok(false),
                };
                match self.show(page, &stored_key, &stored, now)? {
                    Step::Next => {}
                    Step::Seek(to) => {
                        start = Some(to);
                        break;
                    }
                    Step::End => return Ok(true),
                }
            }
        }
        Ok(true)
    }

    fn show(&self, page: &mut PageBuilder, stored_key: &IVec, stored: &IVec, now: i64) -> Result<Step> {
        let record = Record::decode(stored)?;
        if !record.is_live(now) {
            return Ok(Step::Next);
        }
        let (_, key) = split_record_key(stored_key)?;
        page.offer(key, |with_value| {
            let item = record.item(key, with_value, |key| self.rows.get(key).map_err(failed))?;
            item.ok_or_else(|| damaged("a row has lost its body"))
        })
    }

    /// Lists namespaces with a live item: one seek per namespace, plus one per expired item that comes before the first
    /// live one of its namespace.
    pub(super) fn namespaces(&self, options: &NamespacesOptions, now: i64) -> Result<NamespacePage> {
        let Some(mut start) = options.prefix() else { return Ok(NamespacePage::default()) };
        let end = prefix_end(&start);
        if let Some(after) = &options.start_after {
            // A namespace's records have NUL after its text, so the first key after them has the character after NUL there.
            start = start.max(format!("{}\u{1}", after.encoded()));
        }
        guarded(|| {
            let _moment = self.moment.read();
            let mut namespaces = Vec::new();
            while let Some(found) = self.first_namespace(&start, end.as_deref(), now)? {
                if namespaces.len() >= options.limit {
                    return Ok(NamespacePage::new(namespaces, true));
                }
                start = format!("{found}\u{1}");
                namespaces.push(Namespace::from_encoded(&found)?);
            }
            Ok(NamespacePage::new(namespaces, false))
        })
    }

    fn first_namespace(&self, start: &str, end: Option<&str>, now: i64) -> Result<Option<String>> {
        let end = end.map_or_else(|| b"s".to_vec(), namespaces_start);
        for row in self.rows.range(namespaces_start(start)..end) {
            let (stored_key, stored) = row.map_err(failed)?;
            if Record::decode(&stored)?.is_live(now) {
                return Ok(Some(split_record_key(&stored_key)?.0.to_owned()));
            }
        }
        Ok(None)
    }

    /// Counts the rows and their bytes.
    pub(super) fn stats(&self, now: i64) -> Result<StoreStats> {
        let mut stats = StoreStats::new();
        let mut last = None;
        guarded(|| {
            for row in self.rows.scan_prefix(b"r") {
                let (stored_key, stored) = row.map_err(failed)?;
                let record = Record::decode(&stored)?;
                stats.add(record.is_live(now), record.meta_bytes(), record.size);
                let namespace = split_record_key(&stored_key)?.0;
                if record.is_live(now) && last.as_deref() != Some(namespace) {
                    stats.namespaces += 1;
                    last = Some(namespace.to_owned());
                }
            }
            stats.stored_bytes = Some(self.rows.size_on_disk().map_err(failed)?);
            Ok(())
        })?;
        Ok(stats)
    }

    /// Looks for damage: incomplete items, bodies without an item, and rows newer than the counter.
    pub(super) fn check(&self) -> Result<Vec<Error>> {
        let mut found = Vec::new();
        let mut bodies = HashSet::new();
        let _moment = self.moment.read();
        guarded(|| {
            let counter = counter(&self.rows)?;
            for row in self.rows.scan_prefix(b"r") {
                let (stored_key, stored) = row.map_err(failed)?;
                if let Err(error) = self.check_item(&stored_key, &stored, counter, &mut bodies) {
                    found.push(error);
                }
                if found.len() >= CHECK_FAULTS_MAX {
                    return Ok(());
                }
            }
            let lost = self
                .rows
                .scan_prefix(b"v")
                .keys()
                .filter(|key| key.as_ref().is_ok_and(|key| key.get(1..9).is_none_or(|body| !bodies.contains(body))));
            let lost = lost.count();
            if lost > 0 {
                found.push(damaged(&format!("there are parts of bodies without a row ({lost})")));
            }
            Ok(())
        })?;
        Ok(found)
    }

    fn check_item(&self, stored_key: &IVec, stored: &IVec, counter: u64, bodies: &mut HashSet<[u8; 8]>) -> Result<()> {
        let record = Record::decode(stored)?;
        let (_, key) = split_record_key(stored_key)?;
        bodies.insert(record.body().to_be_bytes());
        if record.version > counter {
            return Err(damaged("a row is newer than the version counter"));
        }
        if record.expires_at.is_some_and(|at| !self.rows.contains_key(expiry_key(at, stored_key)).unwrap_or(true)) {
            return Err(damaged("a row would never be swept"));
        }
        let item = record.item(key, true, |key| self.rows.get(key).map_err(failed))?;
        item.map(drop).ok_or_else(|| damaged("a row has lost its body"))
    }

    /// Returns the keys and records of a range of a namespace, in order.
    pub(super) fn records(
        &self,
        namespace: &Namespace,
        start: &str,
        end: Option<&str>,
    ) -> impl Iterator<Item = Result<(IVec, Record<'static>)>> + use<> {
        self.rows.range(record_key(namespace, start)..records_end(namespace, end)).map(|row| {
            let (key, stored) = row.map_err(failed)?;
            Ok((key, Record::decode(&stored)?.detached()))
        })
    }
}

/// Reads the version counter: 0 before the first commit.
pub(super) fn counter(rows: &Db) -> Result<u64> {
    let Some(counter) = rows.get(COUNTER_KEY).map_err(failed)? else { return Ok(0) };
    let counter = counter.as_ref().try_into().map_err(|_| damaged("the version counter is unreadable"))?;
    Ok(u64::from_be_bytes(counter))
}

/// Returns the bounds of the keys below a prefix, excluding the prefix itself.
pub(super) fn beneath(prefix: &str) -> (String, Option<String>) {
    (key_after(prefix), prefix_end(prefix))
}
