//! A cache before the owners of traces.
//!
//! The owner is the truth. Writes go to it first, and only what it confirmed enters the cache. Reads of a running trace ask it for the
//! trace, whose newest event id tells whether anything changed: then only the new messages are fetched, and those that changed. A trace
//! with a final status is served from the cache until a change is known:
//!
//! - a write through this cache,
//! - an event or a listing that passes through this cache and is newer than what is cached,
//! - the age of the last confirmation, 30 seconds by default: then the owner is asked again.
//!
//! While the owner does not answer, cached traces and pages of messages are served with the mark `stale`. What cannot carry the mark (goals,
//! single messages, events) is the owner's error. An error that denies the trace empties the cache of it, and one that denies the
//! key empties it of the whole place.
//!
//! The cache is in memory and bounded; the least recently used traces leave first. Nothing is written anywhere unless
//! [`CachedTraces::with_copies`] asks for it.

mod copies;
mod table;

pub use copies::TraceCopies;

use self::copies::Copied;
use self::table::{Begun, Changed, Changes, Table};
use crate::contract::{
    AddOptions, Added, EventStream, ForeignTrace, MessageRef, MessagesPage, MessagesQuery, PAGE_MAX, PathQuery, TracePage, TraceStore,
    TracesQuery,
};
use crate::id::TraceAddress;
use crate::model::{
    EventsPage, Goal, GoalTree, GoalUpdate, Message, MessageUpdate, NewGoal, NewMessage, NewTrace, OtherFields, Trace, TraceEvent,
    TraceUpdate, kinds,
};
#[cfg(feature = "remote")]
use crate::peers::Peers;
use async_trait::async_trait;
use futures::StreamExt;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};

/// Options of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheOptions {
    /// The most bytes in memory. Default 64 MiB.
    pub bytes_max: usize,
    /// How long a trace with a final status is served before its owner is asked again. Default 30 s.
    pub final_age_max: Duration,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self { bytes_max: 64 << 20, final_age_max: Duration::from_secs(30) }
    }
}

impl CacheOptions {
    /// Keeps 64 MiB, and asks about final traces every 30 seconds.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the most bytes in memory.
    #[must_use]
    pub fn with_bytes_max(mut self, bytes_max: usize) -> Self {
        self.bytes_max = bytes_max;
        self
    }

    /// Sets how long a trace with a final status is served before its owner is asked again; zero asks always.
    #[must_use]
    pub fn with_final_age_max(mut self, age: Duration) -> Self {
        self.final_age_max = age;
        self
    }
}

/// A cache before a store that reaches other places, usually `RemoteTraces`. Clones share the cache.
#[derive(Debug, Clone)]
pub struct CachedTraces {
    owner: Arc<dyn TraceStore>,
    options: CacheOptions,
    table: Arc<Mutex<Table>>,
    copies: Option<TraceCopies>,
    #[cfg(feature = "remote")]
    peers: Option<Peers>,
}

/// What is known of a trace for one read.
struct Known {
    trace: Trace,
    /// The epoch for content requested from now on.
    epoch: u64,
    /// Why the owner could not be asked.
    away: Option<Error>,
}

impl CachedTraces {
    /// Puts a cache before a store.
    pub fn new(owner: Arc<dyn TraceStore>, options: CacheOptions) -> Self {
        let table = Arc::new(Mutex::new(Table::new(options.bytes_max)));
        Self {
            owner,
            options,
            table,
            copies: None,
            #[cfg(feature = "remote")]
            peers: None,
        }
    }

    /// Knows a place of a registry by one location, whichever of its locations an id has. Results carry that location.
    #[cfg(feature = "remote")]
    #[must_use]
    pub fn with_peers(mut self, peers: Peers) -> Self {
        self.peers = Some(peers);
        self
    }

    /// Also keeps copies in a store, so that they survive the process and can be read while their owner is away. They are not encrypted, and
    /// whoever reads the store reads them.
    #[must_use]
    pub fn with_copies(mut self, copies: TraceCopies) -> Self {
        self.table.lock().keep_copies();
        self.copies = Some(copies);
        self
    }

    /// Returns the number of cached traces and their size in bytes.
    pub fn usage(&self) -> (usize, usize) {
        self.table.lock().usage()
    }

    /// Notes that a trace changed, so that the next read asks its owner.
    pub fn invalidate(&self, trace: &TraceAddress) {
        self.table.lock().suspect(&self.known(trace));
    }

    /// Empties the memory of the cache.
    pub fn clear(&self) {
        self.table.lock().clear();
    }

    /// Returns the one address of a trace. Otherwise a write under one of its addresses would leave what is cached under the others.
    #[cfg(feature = "remote")]
    fn known<'a>(&self, trace: &'a TraceAddress) -> Cow<'a, TraceAddress> {
        match (trace.location(), &self.peers) {
            (Some(location), Some(peers)) => Cow::Owned(TraceAddress::at(peers.canonical(location), trace.id().clone())),
            _ => Cow::Borrowed(trace),
        }
    }

    #[cfg(not(feature = "remote"))]
    fn known<'a>(&self, trace: &'a TraceAddress) -> Cow<'a, TraceAddress> {
        Cow::Borrowed(trace)
    }

    /// Returns what is known of a trace, after asking its owner unless the cache may answer alone.
    async fn look(&self, trace: &TraceAddress) -> Result<Option<Known>> {
        if let Some(known) = self.servable(trace) {
            return Ok(Some(known));
        }
        self.recall(trace).await;
        let begun = self.table.lock().begin(trace);
        match self.owner.get_trace(trace).await {
            Ok(Some(found)) => {
                let changes = self.changes(trace, &begun, &found).await;
                let (found, epoch) = self.table.lock().learn(trace, &begun, found, &changes);
                self.keep(trace).await;
                Ok(Some(Known { trace: found, epoch, away: None }))
            }
            Ok(None) => {
                self.forget(trace).await;
                Ok(None)
            }
            Err(error) if is_away(&error) => match self.held(trace) {
                Some((trace, epoch)) => Ok(Some(Known { trace, epoch, away: Some(error) })),
                None => Err(error),
            },
            Err(error) => {
                self.forget_denied(trace, &error).await;
                Err(error)
            }
        }
    }

    /// Returns a trace that the cache may serve without asking.
    fn servable(&self, trace: &TraceAddress) -> Option<Known> {
        let mut table = self.table.lock();
        let record = table.get(trace)?;
        let found = record.trace.as_ref().filter(|found| found.status.is_final())?;
        let is_young = record.confirmed?.elapsed() < self.options.final_age_max;
        is_young.then(|| Known { trace: found.clone(), epoch: record.epoch(), away: None })
    }

    /// Returns a trace whether or not it may have changed.
    fn held(&self, trace: &TraceAddress) -> Option<(Trace, u64)> {
        let mut table = self.table.lock();
        let record = table.get(trace)?;
        let mut found = record.trace.clone()?;
        found.stale = true;
        Some((found, record.epoch()))
    }

    /// Returns what changed since the version that the cache has.
    async fn changes(&self, trace: &TraceAddress, begun: &Begun, found: &Trace) -> Changes {
        let Some((created_at, last_event_id)) = &begun.version else { return Changes::Unknown };
        if !begun.has_content || *created_at != found.created_at || *last_event_id >= found.last_event_id {
            return Changes::Unknown;
        }
        match self.owner.get_events(trace, *last_event_id, PAGE_MAX).await {
            Ok(page) if !page.more => changes_of(&page.events),
            _ => Changes::Unknown,
        }
    }

    /// Reads the copy of a trace that the memory does not have.
    async fn recall(&self, trace: &TraceAddress) {
        let Some(copies) = &self.copies else { return };
        if self.table.lock().get(trace).is_some_and(|record| record.trace.is_some()) {
            return;
        }
        if let Some(Copied { trace: found, messages }) = copies.load(trace, self.options.bytes_max / 2).await {
            self.table.lock().recall(trace, found, &messages);
        }
    }

    /// Brings the copy of a trace up to date with the memory.
    async fn keep(&self, trace: &TraceAddress) {
        let Some(copies) = &self.copies else { return };
        let uncopied = self.table.lock().take_uncopied(trace);
        if let Some(uncopied) = uncopied {
            copies.save(trace, uncopied).await;
        }
    }

    /// Forgets a trace that is gone or denied.
    async fn forget(&self, trace: &TraceAddress) {
        self.table.lock().remove(trace);
        if let Some(copies) = &self.copies {
            copies.remove(trace).await;
        }
    }

    /// Forgets what an error of a read denies: the trace of another user, or with a key that is no longer valid everything at its place.
    async fn forget_denied(&self, trace: &TraceAddress, error: &Error) {
        if error.kind() != ErrorKind::PermissionDenied {
            return;
        }
        let is_of_trace = std::error::Error::source(error).is_some_and(|source| source.is::<ForeignTrace>());
        match trace.location().filter(|_| !is_of_trace) {
            Some(location) => {
                self.table.lock().remove_at(location);
                if let Some(copies) = &self.copies {
                    copies.remove_at(location).await;
                }
            }
            None => self.forget(trace).await,
        }
    }

    /// Returns the known form of a trace for a read.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for an unknown trace, and those of the owner.
    async fn look_up(&self, trace: &TraceAddress) -> Result<Known> {
        self.look(trace).await?.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("the trace `{trace}` does not exist")))
    }

    /// Passes on the result of a write, and notes that the trace may have changed. A trace that the owner denies is asked for by the next
    /// read.
    fn after_write<T>(&self, trace: &TraceAddress, result: Result<T>) -> Result<T> {
        if result.as_ref().err().is_none_or(|error| !error.is_without_effect() || is_denial(error)) {
            self.table.lock().suspect(trace);
        }
        result
    }

    /// Passes on the result of a read from the owner. What the owner denies leaves the cache.
    async fn after_read<T>(&self, trace: &TraceAddress, result: Result<T>) -> Result<T> {
        match &result {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => self.forget_denied(trace, error).await,
            Err(error) if is_denial(error) => self.table.lock().suspect(trace),
            _ => {}
        }
        result
    }

    /// Caches messages that were read at an epoch.
    async fn insert(&self, trace: &TraceAddress, epoch: u64, messages: &[Message]) {
        self.table.lock().insert_messages(trace, epoch, messages);
        self.keep(trace).await;
    }

    /// Returns the end of a path from the cache; otherwise the newest cached message before the first one that is missing.
    fn cached_path(&self, trace: &TraceAddress, query: &PathQuery) -> Result<MessagesPage, u64> {
        self.table.lock().get(trace).map_or(Err(0), |record| record.path(query))
    }
}

/// Returns whether an error means that the owner could not be asked.
fn is_away(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Deadline)
}

/// Returns whether an error says that the trace, or a part of it, is denied or gone.
fn is_denial(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::NotFound)
}

/// Reads from events which messages changed.
fn changes_of(events: &[TraceEvent]) -> Changes {
    let named = |event: &TraceEvent| {
        let sequence = event.data.get("sequence").and_then(serde_json::Value::as_u64).map(Changed::Sequence);
        sequence.or_else(|| event.data.get("message_id").and_then(|id| id.as_str()).map(|id| Changed::Id(id.to_owned())))
    };
    let changed = events.iter().filter(|event| event.event == kinds::MESSAGE_UPDATED).map(named);
    changed.collect::<Option<Vec<_>>>().map_or(Changes::Unknown, Changes::Messages)
}

#[async_trait]
impl TraceStore for CachedTraces {
    async fn create_trace(&self, mut trace: NewTrace) -> Result<Trace> {
        trace.trace_id = trace.trace_id.map(|id| self.known(&id).into_owned());
        let created = self.owner.create_trace(trace).await?;
        self.table.lock().suspect(&self.known(&created.trace_id));
        Ok(created)
    }

    async fn get_trace(&self, trace: &TraceAddress) -> Result<Option<Trace>> {
        let trace = &*self.known(trace);
        Ok(self.look(trace).await?.map(|known| known.trace))
    }

    async fn update_trace(&self, trace: &TraceAddress, update: TraceUpdate) -> Result<Trace> {
        let trace = &*self.known(trace);
        self.after_write(trace, self.owner.update_trace(trace, update).await)
    }

    async fn list_traces(&self, query: &TracesQuery) -> Result<TracePage> {
        let page = self.owner.list_traces(query).await?;
        let mut table = self.table.lock();
        page.traces.iter().for_each(|trace| table.has_event(&self.known(&trace.trace_id), trace.last_event_id));
        Ok(page)
    }

    async fn delete_trace(&self, trace: &TraceAddress) -> Result<bool> {
        let trace = &*self.known(trace);
        let deleted = self.owner.delete_trace(trace).await;
        if deleted.as_ref().err().is_none_or(|error| !error.is_without_effect()) {
            self.forget(trace).await;
        }
        deleted
    }

    async fn get_goal_tree(&self, trace: &TraceAddress) -> Result<GoalTree> {
        let trace = &*self.known(trace);
        let known = self.look_up(trace).await?;
        if let Some(error) = known.away {
            return Err(error);
        }
        let cached = self.table.lock().get(trace).and_then(|record| record.goals.clone());
        if let Some(goals) = cached {
            return Ok(goals);
        }
        let goals = self.after_read(trace, self.owner.get_goal_tree(trace).await).await?;
        self.table.lock().insert_goals(trace, known.epoch, &goals);
        Ok(goals)
    }

    async fn update_goal_tree(&self, trace: &TraceAddress, tree: GoalTree) -> Result<()> {
        let trace = &*self.known(trace);
        self.after_write(trace, self.owner.update_goal_tree(trace, tree).await)
    }

    async fn add_goal(&self, trace: &TraceAddress, goal: NewGoal) -> Result<Goal> {
        let trace = &*self.known(trace);
        self.after_write(trace, self.owner.add_goal(trace, goal).await)
    }

    async fn update_goal(&self, trace: &TraceAddress, goal: &str, update: GoalUpdate) -> Result<Goal> {
        let trace = &*self.known(trace);
        self.after_write(trace, self.owner.update_goal(trace, goal, update).await)
    }

    async fn add_messages(&self, trace: &TraceAddress, messages: Vec<NewMessage>, options: &AddOptions) -> Result<Added> {
        let trace = &*self.known(trace);
        let added = self.after_write(trace, self.owner.add_messages(trace, messages, options).await)?;
        self.table.lock().written(trace, &added.messages, Some(added.head_sequence));
        Ok(added)
    }

    async fn get_message(&self, trace: &TraceAddress, message: &MessageRef) -> Result<Option<Message>> {
        let trace = &*self.known(trace);
        if let MessageRef::Sequence(sequence) = message {
            let known = self.look_up(trace).await?;
            if let Some(error) = known.away {
                return Err(error);
            }
            let cached = self.table.lock().get(trace).and_then(|record| record.message(*sequence).cloned());
            if cached.is_some() {
                return Ok(cached);
            }
        }
        self.after_read(trace, self.owner.get_message(trace, message).await).await
    }

    async fn update_message(&self, trace: &TraceAddress, message: &MessageRef, update: MessageUpdate) -> Result<Message> {
        let trace = &*self.known(trace);
        let updated = self.after_write(trace, self.owner.update_message(trace, message, update).await)?;
        self.table.lock().written(trace, std::slice::from_ref(&updated), None);
        Ok(updated)
    }

    async fn get_messages(&self, trace: &TraceAddress, query: &MessagesQuery) -> Result<MessagesPage> {
        let trace = &*self.known(trace);
        let known = self.look_up(trace).await?;
        let cached = self.table.lock().get(trace).and_then(|record| record.page(query));
        match (cached, known.away) {
            (Some(page), away) => return Ok(MessagesPage { stale: away.is_some(), ..page }),
            (None, Some(error)) => return Err(error),
            (None, None) => {}
        }
        let page = self.after_read(trace, self.owner.get_messages(trace, query).await).await?;
        self.insert(trace, known.epoch, &page.messages).await;
        Ok(page)
    }

    async fn get_main_path(&self, trace: &TraceAddress, query: &PathQuery) -> Result<MessagesPage> {
        let trace = &*self.known(trace);
        let known = self.look_up(trace).await?;
        let newest = match (self.cached_path(trace, query), known.away) {
            (Ok(page), away) => return Ok(MessagesPage { stale: away.is_some(), ..page }),
            (Err(_), Some(error)) => return Err(error),
            (Err(newest), None) => newest,
        };
        // A trace that grew: only the messages since then are fetched.
        let behind = known.trace.last_sequence.saturating_sub(newest);
        if newest > 0 && (1..=PAGE_MAX as u64).contains(&behind) {
            let since = MessagesQuery { since_sequence: Some(newest), limit: PAGE_MAX, ..MessagesQuery::default() };
            let page = self.after_read(trace, self.owner.get_messages(trace, &since).await).await?;
            self.insert(trace, known.epoch, &page.messages).await;
            if let Ok(page) = self.cached_path(trace, query) {
                return Ok(page);
            }
        }
        let page = self.after_read(trace, self.owner.get_main_path(trace, query).await).await?;
        self.insert(trace, known.epoch, &page.messages).await;
        Ok(page)
    }

    async fn append_event(&self, trace: &TraceAddress, kind: &str, data: OtherFields) -> Result<u64> {
        let trace = &*self.known(trace);
        self.after_write(trace, self.owner.append_event(trace, kind, data).await)
    }

    async fn get_events(&self, trace: &TraceAddress, since_event_id: u64, limit: usize) -> Result<EventsPage> {
        let trace = &*self.known(trace);
        let page = self.after_read(trace, self.owner.get_events(trace, since_event_id, limit).await).await?;
        if let Some(event) = page.events.last() {
            self.table.lock().has_event(trace, event.event_id);
        }
        Ok(page)
    }

    async fn watch(&self, trace: &TraceAddress, since_event_id: u64) -> Result<EventStream> {
        let trace = &*self.known(trace);
        let events = self.after_read(trace, self.owner.watch(trace, since_event_id).await).await?;
        let (table, trace) = (self.table.clone(), trace.clone());
        let noted = events.inspect(move |event| match event {
            Ok(event) => table.lock().has_event(&trace, event.event_id),
            Err(_) => table.lock().suspect(&trace),
        });
        Ok(noted.boxed())
    }
}
