//! What a cache holds: for each trace its values as of one version, the least recently used traces leaving first.
//!
//! The version of a trace is the time of its creation and the id of its newest event: every change of a trace adds an event in the same
//! commit. A record never mixes content older than its version with it:
//!
//! - Content enters only if the record did not move since the content was requested ([`Record::epoch`]).
//! - An answer about a trace counts only if it was requested after the knowledge that the record has ([`Record::learned`]).

use crate::contract::{MessagesPage, MessagesQuery, PAGE_MAX, PathQuery};
use crate::id::{Location, TraceAddress};
use crate::model::{GoalTree, Message, Trace};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tokio::time::Instant;

/// What a record takes besides its contents, and a message besides its texts, in bytes.
const RECORD_BYTES: usize = 1 << 10;
const MESSAGE_BYTES: usize = 512;

/// The version of a trace: when it was created, and its newest event.
pub(super) type Version = (Option<String>, u64);

pub(super) fn version_of(trace: &Trace) -> Version {
    (trace.created_at.clone(), trace.last_event_id)
}

/// What changed between two versions of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Changes {
    /// Only these messages changed; others were added.
    Messages(Vec<Changed>),
    /// It is not known.
    Unknown,
}

/// A changed message, as an event names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Changed {
    Id(String),
    Sequence(u64),
}

/// A request about a trace, to be sent to its owner.
#[derive(Debug, Clone)]
pub(super) struct Begun {
    at: u64,
    /// The version of the record, if it has one.
    pub(super) version: Option<Version>,
    /// Whether the record has content besides the trace.
    pub(super) has_content: bool,
}

/// What the cache knows of a trace.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// The trace as its owner last reported it.
    pub(super) trace: Option<Trace>,
    /// When the owner reported it; `None` once a change is known.
    pub(super) confirmed: Option<Instant>,
    pub(super) goals: Option<GoalTree>,
    messages: BTreeMap<u64, (Message, usize)>,
    /// Rises whenever a cached message may have changed. A copy holds messages of one generation.
    generation: u64,
    /// The messages that are not in the copy.
    uncopied: BTreeSet<u64>,
    /// What the copy has of the trace.
    copied: Option<(u64, Version)>,
    /// Rises whenever content is dropped or a change is known.
    epoch: u64,
    /// When the request began whose answer it reflects.
    learned: u64,
    /// When it was last used, counted in uses.
    used: u64,
    bytes: usize,
}

/// The cached traces.
#[derive(Debug)]
pub(super) struct Table {
    records: HashMap<TraceAddress, Record>,
    /// The records by their last use.
    order: BTreeMap<u64, TraceAddress>,
    uses: u64,
    bytes: usize,
    bytes_max: usize,
    /// The newest knowledge of a record that was evicted.
    evicted: u64,
    /// Whether to note what a copy lacks.
    has_copies: bool,
}

/// What a copy of a trace lacks.
#[derive(Debug)]
pub(super) struct Uncopied {
    pub(super) generation: u64,
    pub(super) trace: Trace,
    pub(super) messages: Vec<Message>,
}

impl Table {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { records: HashMap::new(), order: BTreeMap::new(), uses: 0, bytes: 0, bytes_max, evicted: 0, has_copies: false }
    }

    /// Notes what copies lack from now on.
    pub(super) fn keep_copies(&mut self) {
        self.has_copies = true;
    }

    /// Returns what the copy of a trace lacks, and takes it as copied.
    pub(super) fn take_uncopied(&mut self, address: &TraceAddress) -> Option<Uncopied> {
        let record = self.records.get_mut(address)?;
        let trace = record.trace.clone()?;
        let copied = Some((record.generation, version_of(&trace)));
        if record.copied == copied && record.uncopied.is_empty() {
            return None;
        }
        record.copied = copied;
        let messages = std::mem::take(&mut record.uncopied).iter().filter_map(|sequence| record.message(*sequence).cloned()).collect();
        Some(Uncopied { generation: record.generation, trace, messages })
    }

    /// Fills the record of a trace that has none from its copy. The owner did not confirm it.
    pub(super) fn recall(&mut self, address: &TraceAddress, trace: Trace, messages: &[Message]) {
        let bytes_max = self.bytes_max / 2;
        self.change(address, |record| {
            if record.trace.is_none() {
                record.trace = Some(trace);
                record.insert(messages, true);
                record.shrink(bytes_max);
            }
        });
    }

    /// Returns the number of traces and bytes.
    pub(super) fn usage(&self) -> (usize, usize) {
        (self.records.len(), self.bytes)
    }

    /// Returns a record and marks it as used.
    pub(super) fn get(&mut self, address: &TraceAddress) -> Option<&Record> {
        let used = self.next_use();
        let record = self.records.get_mut(address)?;
        self.order.remove(&record.used);
        record.used = used;
        self.order.insert(used, address.clone());
        Some(record)
    }

    /// Begins a request about a trace.
    pub(super) fn begin(&mut self, address: &TraceAddress) -> Begun {
        let at = self.next_use();
        let record = self.get(address);
        let version = record.and_then(|record| record.trace.as_ref()).map(version_of);
        let has_content = record.is_some_and(|record| !record.messages.is_empty() || record.goals.is_some());
        Begun { at, version, has_content }
    }

    /// Takes the owner's answer about a trace. Returns the newest known form of it, and the epoch for content requested from now on.
    pub(super) fn learn(&mut self, address: &TraceAddress, begun: &Begun, trace: Trace, changes: &Changes) -> (Trace, u64) {
        let is_outdated = begun.at <= self.evicted;
        let now = Instant::now();
        self.change(address, |record| {
            if record.learned > begun.at {
                // Newer knowledge arrived meanwhile.
                return (record.trace.clone().unwrap_or(trace), record.epoch);
            }
            let version = record.trace.as_ref().map(version_of);
            if version.as_ref() != Some(&version_of(&trace)) {
                match changes {
                    Changes::Messages(changed) if version.is_some() && version == begun.version => record.drop_changed(changed),
                    _ => record.drop_content(),
                }
            }
            record.learned = begun.at;
            record.confirmed = (!is_outdated).then_some(now);
            record.trace = Some(trace.clone());
            (trace, record.epoch)
        })
    }

    /// Notes that a trace changed: what was requested before is outdated.
    pub(super) fn suspect(&mut self, address: &TraceAddress) {
        let at = self.next_use();
        self.change(address, |record| {
            (record.learned, record.confirmed, record.goals) = (at, None, None);
            record.epoch += 1;
        });
    }

    /// Notes that a trace has an event, if that is news.
    pub(super) fn has_event(&mut self, address: &TraceAddress, event_id: u64) {
        let is_news = |record: &Record| record.trace.as_ref().is_some_and(|trace| trace.last_event_id < event_id);
        if self.records.get(address).is_some_and(is_news) {
            self.suspect(address);
        }
    }

    /// Caches messages that this process wrote, after [`Table::suspect`]. A reader without the owner then sees them.
    pub(super) fn written(&mut self, address: &TraceAddress, messages: &[Message], head_sequence: Option<u64>) {
        let has_copies = self.has_copies;
        self.change(address, |record| {
            let Some(trace) = &mut record.trace else { return };
            let last = messages.iter().map(|message| message.sequence).max().unwrap_or(0);
            trace.last_sequence = trace.last_sequence.max(last);
            trace.head_sequence = head_sequence.unwrap_or(trace.head_sequence);
            record.insert(messages, has_copies);
        });
    }

    /// Caches messages that were requested at an epoch.
    pub(super) fn insert_messages(&mut self, address: &TraceAddress, epoch: u64, messages: &[Message]) {
        let (bytes_max, has_copies) = (self.bytes_max / 2, self.has_copies);
        self.change(address, |record| {
            if record.epoch == epoch && record.trace.is_some() {
                record.insert(messages, has_copies);
                record.shrink(bytes_max);
            }
        });
    }

    /// Caches goals that were requested at an epoch.
    pub(super) fn insert_goals(&mut self, address: &TraceAddress, epoch: u64, goals: &GoalTree) {
        self.change(address, |record| {
            if record.epoch == epoch && record.trace.is_some() {
                record.goals = Some(goals.clone());
            }
        });
    }

    /// Forgets a trace.
    pub(super) fn remove(&mut self, address: &TraceAddress) {
        self.evicted = self.next_use();
        self.take(address);
    }

    /// Forgets all traces of a place.
    pub(super) fn remove_at(&mut self, location: &Location) {
        self.evicted = self.next_use();
        let there = self.records.keys().filter(|address| address.location() == Some(location)).cloned();
        for address in there.collect::<Vec<_>>() {
            self.take(&address);
        }
    }

    /// Forgets all traces.
    pub(super) fn clear(&mut self) {
        self.evicted = self.next_use();
        (self.records, self.order, self.bytes) = (HashMap::new(), BTreeMap::new(), 0);
    }

    fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    fn take(&mut self, address: &TraceAddress) -> Option<Record> {
        let record = self.records.remove(address)?;
        self.order.remove(&record.used);
        self.bytes -= record.bytes;
        Some(record)
    }

    /// Changes a record, which is made if there is none, and evicts others until the bound holds.
    fn change<T>(&mut self, address: &TraceAddress, change: impl FnOnce(&mut Record) -> T) -> T {
        let mut record = self.take(address).unwrap_or_else(|| Record { epoch: self.uses, generation: self.uses, ..Record::default() });
        let result = change(&mut record);
        record.used = self.next_use();
        record.bytes = record.size() + 2 * address.id().as_str().len();
        self.bytes += record.bytes;
        self.order.insert(record.used, address.clone());
        self.records.insert(address.clone(), record);
        while self.bytes > self.bytes_max {
            let Some(oldest) = self.order.first_key_value().map(|(_, address)| address.clone()) else { break };
            if let Some(record) = self.take(&oldest) {
                self.evicted = self.evicted.max(record.learned);
            }
        }
        result
    }
}

impl Record {
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    fn size(&self) -> usize {
        let texts = |trace: &Trace| {
            let config = trace.run_config.as_ref().map_or(0, |config| config.as_str().len());
            trace.task.as_ref().map_or(0, String::len) + config + json_bytes(&trace.other)
        };
        let messages: usize = self.messages.values().map(|(_, bytes)| bytes).sum();
        RECORD_BYTES + self.trace.as_ref().map_or(0, texts) + self.goals.as_ref().map_or(0, json_bytes) + messages
    }

    fn insert(&mut self, messages: &[Message], has_copies: bool) {
        for message in messages {
            let content = message.content.as_ref().map_or(0, |content| content.as_str().len());
            let other = if message.other.is_empty() { 0 } else { json_bytes(&message.other) };
            let bytes = MESSAGE_BYTES + content + other + message.message_id.len() + message.role.len();
            self.messages.insert(message.sequence, (message.clone(), bytes));
            if has_copies {
                self.uncopied.insert(message.sequence);
            }
        }
    }

    /// Drops the oldest messages of a trace that would fill the cache alone.
    fn shrink(&mut self, bytes_max: usize) {
        let mut bytes = self.size();
        while bytes > bytes_max {
            let Some((_, (_, dropped))) = self.messages.pop_first() else { return };
            bytes -= dropped;
        }
    }

    fn drop_content(&mut self) {
        self.messages.clear();
        self.uncopied.clear();
        self.goals = None;
        self.epoch += 1;
        self.generation = self.epoch;
    }

    fn drop_changed(&mut self, changed: &[Changed]) {
        for changed in changed {
            match changed {
                Changed::Sequence(sequence) => drop(self.messages.remove(sequence)),
                Changed::Id(id) => self.messages.retain(|_, (message, _)| message.message_id != *id),
            }
        }
        // Every message counts in the statistics of its goal.
        self.goals = None;
        self.epoch += 1;
        if !changed.is_empty() {
            self.generation = self.epoch;
            // The copy begins anew, with all that is left.
            if self.copied.is_some() || !self.uncopied.is_empty() {
                self.uncopied = self.messages.keys().copied().collect();
            }
        }
    }

    /// Returns the end of a path if all of it is cached; otherwise the newest cached message before the first one that is missing.
    pub(super) fn path(&self, query: &PathQuery) -> Result<MessagesPage, u64> {
        let trace = self.trace.as_ref().ok_or(0_u64)?;
        let limit = query.limit.unwrap_or(PAGE_MAX);
        // Limits out of range and ends that do not exist are for the owner to refuse.
        if !(1..=PAGE_MAX).contains(&limit) || query.head_sequence == Some(0) {
            return Err(0);
        }
        let mut next = Some(query.head_sequence.unwrap_or(trace.head_sequence)).filter(|head| *head > 0);
        let mut messages = Vec::new();
        while let Some(sequence) = next
            && messages.len() < limit
        {
            let Some((message, _)) = self.messages.get(&sequence) else {
                return Err(self.messages.range(..sequence).next_back().map_or(0, |(before, _)| *before));
            };
            messages.push(message.clone());
            next = message.parent_sequence;
        }
        messages.reverse();
        Ok(MessagesPage { messages, earlier: next, more: false, stale: false })
    }

    /// Returns a page of all messages if all of it is cached.
    pub(super) fn page(&self, query: &MessagesQuery) -> Option<MessagesPage> {
        let trace = self.trace.as_ref()?;
        if query.goal_id.is_some() || query.offset > 0 || !(1..=PAGE_MAX).contains(&query.limit) {
            return None;
        }
        let first = query.since_sequence.unwrap_or(0).checked_add(1)?;
        let last = trace.last_sequence.min(first.saturating_add(query.limit as u64 - 1));
        if last < first {
            return Some(MessagesPage::default());
        }
        let messages: Vec<Message> = self.messages.range(first..=last).map(|(_, (message, _))| message.clone()).collect();
        let is_whole = messages.len() as u64 == last - first + 1;
        is_whole.then(|| MessagesPage { messages, more: last < trace.last_sequence, ..MessagesPage::default() })
    }

    /// Returns a cached message.
    pub(super) fn message(&self, sequence: u64) -> Option<&Message> {
        self.messages.get(&sequence).map(|(message, _)| message)
    }
}

fn json_bytes<T: serde::Serialize>(value: &T) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX / 4, |json| json.len())
}
