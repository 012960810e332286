//! The writing side: a group of batches becomes one batch of the engine, then one barrier.
//!
//! The batches of a group are checked and collected one after the other, each seeing the result of those before it; their combined result
//! is applied as one. So each is all or nothing, and the group costs one disk flush.

use super::barrier::Barrier;
use super::error::{damaged, failed, guarded};
use super::pending::{Pending, closed};
use super::read::{Reader, beneath};
use super::rows::{COUNTER_KEY, Record, expiries_before, expiring_record_key, expiry_key, record_key, records_end};
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;
use std::sync::Arc;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, Result};
use treehold_core::ops::Version;
use treehold_store::committer::{Work, Writer, Written};
use treehold_store::page::prefix_end;
use treehold_store::watch::Watches;
use treehold_store::{
    Batch, BatchWrite, Condition, Item, Namespace, Precondition, expiry, log_key, precondition_failed, unvalidated, whole_microseconds,
};

/// How often a batch is applied until it is complete.
const APPLY_ATTEMPTS: u32 = 4;

/// The writer of a store.
pub(super) struct SledWriter {
    reader: Reader,
    barrier: Barrier,
    clock: Clock,
    watches: Arc<Watches>,
    pending: Arc<Pending>,
}

impl SledWriter {
    /// Creates the writer of an open store.
    pub(super) fn new(reader: Reader, barrier: Barrier, clock: Clock, watches: Arc<Watches>, pending: Arc<Pending>) -> Self {
        Self { reader, barrier, clock, watches, pending }
    }
}

impl Writer for SledWriter {
    fn write(&mut self, group: &[Work]) -> Vec<Result<Written>> {
        if let Some(failure) = self.pending.failure() {
            return group.iter().map(|_| Err(closed(&failure))).collect();
        }
        // Until something is applied, a failure has no effect, and the store remains usable.
        let gathered = match guarded(|| self.gather(group)) {
            Ok((answers, None)) => return answers,
            Ok((answers, Some(group))) => (answers, group),
            Err(error) => {
                let (kind, message, source) = (error.kind(), error.message().to_owned(), Arc::new(error));
                return group.iter().map(|_| Err(Error::new(kind, message.clone()).with_source(source.clone()).without_effect())).collect();
            }
        };
        let (answers, apply) = gathered;
        self.pending.begin(apply.records);
        // After a failure it is unknown what reached the disk, and nothing may be acknowledged or shown on top of it.
        if let Err(error) = guarded(|| self.apply(apply.batch)) {
            let failure = Arc::new(error);
            self.pending.fail(failure.clone());
            return group.iter().map(|_| Err(closed(&failure).with_unknown_effect())).collect();
        }
        self.reader.set_version(apply.version);
        self.pending.settle();
        for (work, answer) in group.iter().zip(&answers) {
            if let (Work::Commit(batch), Ok(_)) = (work, answer) {
                self.watches.notify_batch(batch, Version::new(apply.version));
            }
        }
        answers
    }

    fn tidy(&mut self) {}
}

/// A group's changes, ready for the engine.
struct Apply {
    batch: ::sled::Batch,
    /// The keys of the records, in order.
    records: Vec<Vec<u8>>,
    /// The version counter after it.
    version: u64,
}

impl SledWriter {
    /// Checks a group and collects its changes; `None` if every batch is refused or changes nothing.
    fn gather(&self, group: &[Work]) -> Result<(Vec<Result<Written>>, Option<Apply>)> {
        self.barrier.check_place()?;
        let mut gathered = Gathered::new(&self.reader, &self.clock);
        let answers = group.iter().map(|work| gathered.add(work)).collect::<Result<Vec<_>>>()?;
        if gathered.changes.is_empty() {
            return Ok((answers, None));
        }
        let version = gathered.version;
        let records = gathered.changes.keys().cloned().collect();
        let (batch, keys) = gathered.into_batch()?;
        // The engine applies key by key, and reads the page of each key. If one were unreadable, the keys before it would stay changed. So
        // read every page beforehand.
        for key in keys {
            self.reader.rows().get(key).map_err(failed)?;
        }
        Ok((answers, Some(Apply { batch, records, version })))
    }

    /// Applies a batch and waits until it is on disk.
    fn apply(&mut self, batch: ::sled::Batch) -> Result<()> {
        {
            let _change = self.reader.change();
            let mut attempt = 1;
            // A batch that stopped at a failed read is partially in the engine, which eventually writes it out by itself. Applying it again
            // completes it. After a failed write the engine writes nothing more, and refuses this too.
            while let Err(error) = self.reader.rows().apply_batch(batch.clone()) {
                if attempt == APPLY_ATTEMPTS {
                    return Err(failed(error));
                }
                attempt += 1;
            }
        }
        self.reader.rows().flush().map_err(failed)?;
        self.barrier.sync().map_err(|error| failed(error.into()))?;
        self.barrier.check_place()
    }
}

/// The combined result of a group of batches, by record key.
struct Gathered<'g> {
    reader: &'g Reader,
    clock: &'g Clock,
    changes: BTreeMap<Vec<u8>, Change<'g>>,
    version: u64,
}

/// The change of one record.
struct Change<'g> {
    /// The stored record.
    old: Option<Record<'static>>,
    /// The future record.
    new: Option<New<'g>>,
}

/// A future record.
struct New<'g> {
    record: Record<'g>,
    /// The metadata and body of a put; `None` if the stored ones stay.
    content: Option<(&'g [u8], &'g [u8])>,
}

impl<'g> Gathered<'g> {
    fn new(reader: &'g Reader, clock: &'g Clock) -> Self {
        Self { reader, clock, changes: BTreeMap::new(), version: reader.current_version().number() }
    }

    fn add(&mut self, work: &'g Work) -> Result<Result<Written>> {
        match work {
            Work::Commit(batch) => self.commit(batch),
            Work::Sweep(limit) => Ok(Ok(Written { swept: self.sweep(*limit)?, ..Written::default() })),
            // The engine gives space back by itself.
            Work::Shrink(_) | Work::Compact => Ok(Ok(Written::default())),
        }
    }

    /// Collects one batch; the inner error refuses it.
    fn commit(&mut self, batch: &'g Batch) -> Result<Result<Written>> {
        let now = whole_microseconds(self.clock.now());
        for (index, precondition) in batch.preconditions.iter().enumerate() {
            let met = self.met(precondition, now.as_microsecond())?.map(Version::new);
            if !precondition.condition.holds(met) {
                return Ok(Err(precondition_failed(index, precondition, met)));
            }
        }
        let mut versions = Vec::new();
        let mut removed = 0;
        let mut restored = None;
        for write in &batch.writes {
            match write {
                BatchWrite::Put { namespace, key, meta, value, time_to_live, created_at } => {
                    self.version += 1;
                    versions.push(Version::new(self.version));
                    let created_at = created_at.map(|at| whole_microseconds(at).as_microsecond());
                    let expires_at = time_to_live.map(|duration| expiry(now, duration).as_microsecond());
                    self.put(record_key(namespace, key), (meta, value), now, created_at, expires_at)?;
                }
                BatchWrite::Append { namespace, meta, value, time_to_live } => {
                    self.version += 1;
                    let version = Version::new(self.version);
                    versions.push(version);
                    let expires_at = time_to_live.map(|duration| expiry(now, duration).as_microsecond());
                    self.put(record_key(namespace, &log_key(version)), (meta, value), now, None, expires_at)?;
                }
                BatchWrite::Restore { namespace, item } => {
                    self.version += 1;
                    restored = restored.max(Some(item.version.number()));
                    self.restore(record_key(namespace, &item.key), item)?;
                }
                BatchWrite::Touch { namespace, key, time_to_live } => {
                    let expires_at = time_to_live.map(|duration| expiry(now, duration).as_microsecond());
                    self.touch(record_key(namespace, key), expires_at, now.as_microsecond())?;
                }
                BatchWrite::Delete { namespace, key } => removed += usize::from(self.remove(record_key(namespace, key))?),
                BatchWrite::DeletePrefix { namespace, prefix } => removed += self.remove_prefix(namespace, prefix)?,
                _ => unvalidated(),
            }
        }
        if versions.is_empty() && restored.is_none() && removed > 0 {
            self.version += 1;
        }
        self.version = self.version.max(restored.unwrap_or(0));
        Ok(Ok(Written { versions, ..Written::default() }))
    }

    /// Returns the version that a condition finds.
    fn met(&self, precondition: &Precondition, now: i64) -> Result<Option<u64>> {
        let Precondition { namespace, key, condition } = precondition;
        match condition {
            Condition::NoneBeneath => self.first_beneath(namespace, key, now, 0),
            Condition::NoneBeneathSince(version) => self.first_beneath(namespace, key, now, version.number()),
            Condition::Absent | Condition::Exists | Condition::Version(_) => {
                let record = self.current(&record_key(namespace, key))?;
                Ok(record.filter(|record| record.is_live(now)).map(|record| record.version))
            }
            _ => unvalidated(),
        }
    }

    /// Returns the version of a live item beneath a prefix that is newer than `since`.
    fn first_beneath(&self, namespace: &Namespace, prefix: &str, now: i64, since: u64) -> Result<Option<u64>> {
        let is_met = |record: &Record<'_>| record.is_live(now) && record.version > since;
        let (start, end) = beneath(prefix);
        for row in self.reader.records(namespace, &start, end.as_deref()) {
            let (key, record) = row?;
            if !self.changes.contains_key(&key[..]) && is_met(&record) {
                return Ok(Some(record.version));
            }
        }
        let gathered = self.changes.range::<[u8], _>(bounds(&record_key(namespace, &start), &records_end(namespace, end.as_deref())));
        let mut puts = gathered.filter_map(|(_, change)| change.new.as_ref()).map(|new| new.record);
        Ok(puts.find(is_met).map(|record| record.version))
    }

    /// Returns the record at a key after the earlier batches.
    fn current(&self, key: &[u8]) -> Result<Option<Record<'static>>> {
        match self.changes.get(key) {
            Some(change) => Ok(change.new.as_ref().map(|new| new.record.detached())),
            None => stored(self.reader, key),
        }
    }

    fn put(
        &mut self,
        key: Vec<u8>,
        (meta, value): (&'g [u8], &'g [u8]),
        now: Timestamp,
        created_at: Option<i64>,
        expires_at: Option<i64>,
    ) -> Result<()> {
        let now = now.as_microsecond();
        let current = self.current(&key)?;
        let kept = current.filter(|record| record.is_live(now)).map(|record| record.created_at);
        let times = (created_at.or(kept).unwrap_or(now), now);
        let record = Record::new(self.version, times, expires_at, meta, value);
        self.change(key, current).new = Some(New { record, content: Some((meta, value)) });
        Ok(())
    }

    /// Puts an item as it was in another store. The body gets a new number of this store, because the item's version may already be in use
    /// here.
    fn restore(&mut self, key: Vec<u8>, item: &'g Item) -> Result<()> {
        let micros = |at: Timestamp| whole_microseconds(at).as_microsecond();
        let times = (micros(item.created_at), micros(item.modified_at));
        let record =
            Record::new(item.version.number(), times, item.expires_at.map(micros), &item.meta, &item.value).with_body(self.version);
        let current = self.current(&key)?;
        self.change(key, current).new = Some(New { record, content: Some((&item.meta, &item.value)) });
        Ok(())
    }

    /// Changes the expiry of a live item: one that this group puts, or a stored one that keeps its body.
    fn touch(&mut self, key: Vec<u8>, expires_at: Option<i64>, now: i64) -> Result<()> {
        let Some(current) = self.current(&key)?.filter(|record| record.is_live(now)) else { return Ok(()) };
        let new = &mut self.change(key, Some(current)).new;
        // A put of this group keeps its metadata separately; the record that conditions see does not have it.
        let New { record, content } = new.take().unwrap_or(New { record: current, content: None });
        *new = Some(New { record: record.with_expires_at(expires_at), content });
        Ok(())
    }

    fn remove(&mut self, key: Vec<u8>) -> Result<bool> {
        let current = self.current(&key)?;
        if current.is_some() {
            self.change(key, current).new = None;
        }
        Ok(current.is_some())
    }

    fn remove_prefix(&mut self, namespace: &Namespace, prefix: &str) -> Result<usize> {
        let end = prefix_end(prefix);
        let mut removed = 0;
        for row in self.reader.records(namespace, prefix, end.as_deref()) {
            let (key, record) = row?;
            if let Entry::Vacant(entry) = self.changes.entry(key.to_vec()) {
                entry.insert(Change { old: Some(record), new: None });
                removed += 1;
            }
        }
        let (start, end) = (record_key(namespace, prefix), records_end(namespace, end.as_deref()));
        for (_, change) in self.changes.range_mut::<[u8], _>(bounds(&start, &end)) {
            removed += usize::from(change.new.take().is_some());
        }
        Ok(removed)
    }

    fn sweep(&mut self, limit: usize) -> Result<usize> {
        let now = self.clock.now().as_microsecond();
        let mut swept = 0;
        for row in self.reader.rows().range(&expiries_before(i64::MIN)[..]..&expiries_before(now.saturating_add(1))[..]) {
            if swept == limit {
                break;
            }
            let (key, _) = row.map_err(failed)?;
            let key = expiring_record_key(&key);
            // A batch of this group may have put it again.
            let current = self.current(&key)?;
            if current.is_some_and(|record| !record.is_live(now)) {
                self.change(key, current).new = None;
                swept += 1;
            }
        }
        Ok(swept)
    }

    /// Returns the change of a key for modification. Until this group changes it, the current record is the stored one.
    fn change(&mut self, key: Vec<u8>, current: Option<Record<'static>>) -> &mut Change<'g> {
        self.changes.entry(key).or_insert(Change { old: current, new: None })
    }

    /// Builds the one batch, and returns its keys too: a new body replaces every piece of the old one.
    fn into_batch(self) -> Result<(::sled::Batch, Vec<Vec<u8>>)> {
        let (mut batch, mut keys) = (::sled::Batch::default(), vec![COUNTER_KEY.to_vec()]);
        for (key, change) in self.changes {
            let keeps_body = change.new.as_ref().is_some_and(|new| new.content.is_none());
            if let Some(old) = change.old {
                if !keeps_body {
                    old.piece_keys().for_each(|piece| {
                        keys.push(piece.to_vec());
                        batch.remove(&piece[..]);
                    });
                }
                if let Some(at) = old.expires_at {
                    let ends = expiry_key(at, &key);
                    keys.push(ends.clone());
                    batch.remove(ends);
                }
            }
            let Some(New { record, content }) = change.new else {
                if change.old.is_some() {
                    batch.remove(key);
                }
                continue;
            };
            if let Some(at) = record.expires_at {
                let ends = expiry_key(at, &key);
                keys.push(ends.clone());
                batch.insert(ends, &[]);
            }
            match content {
                Some((meta, value)) => {
                    let record = record.in_place_of(change.old);
                    record.each_piece(meta, value, |piece, bytes| {
                        keys.push(piece.to_vec());
                        batch.insert(&piece[..], bytes);
                    });
                    batch.insert(key, record.encode());
                }
                None => {
                    let stored = self.reader.rows().get(&key).map_err(failed)?;
                    let stored = stored.ok_or_else(|| damaged("a row disappeared while it was written"))?;
                    batch.insert(key, Record::decode(&stored)?.with_expires_at(record.expires_at).encode());
                }
            }
        }
        batch.insert(COUNTER_KEY, &self.version.to_be_bytes());
        Ok((batch, keys))
    }
}

fn stored(reader: &Reader, key: &[u8]) -> Result<Option<Record<'static>>> {
    let stored = reader.rows().get(key).map_err(failed)?;
    stored.map(|stored| Ok(Record::decode(&stored)?.detached())).transpose()
}

fn bounds<'b>(start: &'b [u8], end: &'b [u8]) -> (Bound<&'b [u8]>, Bound<&'b [u8]>) {
    (Bound::Included(start), Bound::Excluded(end))
}
