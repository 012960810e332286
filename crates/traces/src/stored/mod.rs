//! The traces of a store: rows of a [`Store`], one user at a time.
//!
//! [`Traces`] holds the store and the limits. [`StoredTraces`] is the [`TraceStore`] of one user. Every change of a trace replaces one small
//! row, its head, on the condition of the version that the change was planned on, so everything that belongs together is one commit.
//! `docs/design/traces.md` has the map of the rows.

mod append;
mod claim;
mod draft;
mod events;
mod goals;
#[cfg(all(feature = "filesystem", unix))]
mod insert;
mod insertion;
mod list;
mod messages;
mod once;
mod options;
mod path;
mod recent;
mod registration;
mod removal;
mod rows;
mod text;
mod trace;

pub use claim::{RUN_LEASE_MAX, RunClaim, RunHeld};
#[cfg(all(feature = "filesystem", unix))]
pub(crate) use insert::{
    Ending, Insert, Inserted, MessagePath, ORIGINAL_BYTES, Originals, check_event, check_goal_id, check_goal_kind, check_message,
};
pub use once::KeyReused;
pub use options::TracesOptions;
pub use removal::TracesSweeper;
pub(crate) use text::check_name;

use crate::contract::{
    AddOptions, Added, EventStream, ForeignTrace, MessageRef, MessagesPage, MessagesQuery, PathQuery, TracePage, TraceStore, TracesQuery,
};
use crate::id::{TraceAddress, TraceId};
use crate::model::{
    EventsPage, Goal, GoalTree, GoalUpdate, Message, MessageUpdate, NewGoal, NewMessage, NewTrace, OtherFields, Trace, TraceUpdate,
};
use async_trait::async_trait;
use claim::Fence;
use draft::Draft;
use parking_lot::Mutex;
use rows::{Opened, Part, UserRows};
use std::fmt;
use std::sync::Arc;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::scope::check_id;
use treehold_core::shared::Shared;
use treehold_store::{Namespace, Store};
use uuid::Uuid;

/// The traces of all tenants and users of a store.
///
/// Idle traces use no process memory, and any number of processes may serve the same traces. Clones share the store.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use treehold_store::MemoryStore;
/// use treehold_traces::{AddOptions, NewMessage, NewTrace, PathQuery, TraceStore, Traces};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let traces = Traces::new(Arc::new(MemoryStore::new())).for_user("acme", "ada")?;
/// let trace = traces.create_trace(NewTrace::new("make tea")).await?;
/// let messages = vec![NewMessage::text("user", "hello"), NewMessage::text("assistant", "hello!")];
/// let added = traces.add_messages(&trace.trace_id, messages, &AddOptions::new()).await?;
/// assert_eq!(added.head_sequence, 2);
/// // A rewind: another answer to the first message.
/// let again = NewMessage::text("assistant", "good morning").with_parent(1);
/// traces.add_messages(&trace.trace_id, vec![again], &AddOptions::new()).await?;
/// let path = traces.get_main_path(&trace.trace_id, &PathQuery::default()).await?;
/// assert_eq!(path.messages.iter().map(|message| message.sequence).collect::<Vec<_>>(), [1, 3]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Traces {
    store: Arc<dyn Store>,
    options: TracesOptions,
    clock: Clock,
    ids: Arc<dyn Fn() -> String + Send + Sync>,
    turns: Arc<Mutex<Turns>>,
}

/// Changes of one trace by one process wait for each other, so that they do not race. Those of other processes are noticed at the commit.
type Turns = Shared<(UserRows, TraceId), tokio::sync::Mutex<()>>;

impl Traces {
    /// Opens the traces of a store with the default settings.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            options: TracesOptions::default(),
            clock: Clock::system(),
            ids: Arc::new(|| Uuid::new_v4().to_string()),
            turns: Arc::default(),
        }
    }

    /// Sets limits and other settings.
    #[must_use]
    pub fn with_options(mut self, options: TracesOptions) -> Self {
        let page_max = options.page_max;
        // A page without entries would end no list.
        self.options = options.with_page_max(page_max);
        self
    }

    /// Sets the source of times.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the source of the ids of new traces and their data. It must never return the same id twice.
    #[must_use]
    pub fn with_ids(mut self, next: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.ids = Arc::new(next);
        self
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the settings.
    pub fn options(&self) -> &TracesOptions {
        &self.options
    }

    /// Returns the traces of one user.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an id that cannot name a tenant or user.
    pub fn for_user(&self, tenant: &str, user: &str) -> Result<StoredTraces> {
        check_id("tenant", tenant)?;
        check_id("user", user)?;
        let rows = UserRows { tenant: tenant.to_owned(), user: user.to_owned() };
        // Check now that the longest name that a trace will need is allowed.
        rows.part(&Uuid::nil().to_string(), Part::GoalMessages)?;
        Ok(StoredTraces { traces: self.clone(), rows, fence: None })
    }

    /// Returns the time in microseconds since 1970.
    fn now(&self) -> i64 {
        self.clock.now().as_microsecond()
    }
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traces").field("store", &self.store).field("options", &self.options).finish_non_exhaustive()
    }
}

impl fmt::Display for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Traces({})", self.store)
    }
}

/// The traces of one user, as rows of a store. Clones share the store.
#[derive(Debug, Clone)]
pub struct StoredTraces {
    traces: Traces,
    rows: UserRows,
    /// The claim that every commit depends on.
    fence: Option<Fence>,
}

impl fmt::Display for StoredTraces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Traces({}, {}, {})", self.traces.store, self.rows.tenant, self.rows.user)
    }
}

impl StoredTraces {
    /// Returns the tenant.
    pub fn tenant(&self) -> &str {
        &self.rows.tenant
    }

    /// Returns the user.
    pub fn user(&self) -> &str {
        &self.rows.user
    }

    /// Returns the settings.
    pub fn options(&self) -> &TracesOptions {
        &self.traces.options
    }

    fn store(&self) -> &dyn Store {
        &*self.traces.store
    }

    fn part(&self, opened: &Opened, part: Part) -> Result<Namespace> {
        self.rows.part(&opened.head.data, part)
    }

    /// Opens a trace of the user; `None` if no trace of the tenant has the id.
    ///
    /// # Errors
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for the trace of another user.
    async fn find(&self, id: &TraceId) -> Result<Option<Opened>> {
        loop {
            if let Some(opened) = rows::open(self.store(), &self.rows, id).await? {
                return Ok(Some(opened));
            }
            match self.owner(id).await? {
                None => return Ok(None),
                Some(owner) if owner != self.rows.user => return Err(foreign()),
                // It was created between the two reads.
                Some(_) => {}
            }
        }
    }

    /// Opens a trace of the user.
    async fn find_existing(&self, id: &TraceId) -> Result<Opened> {
        self.find(id).await?.ok_or_else(|| no_trace(id))
    }

    /// Begins a change of a trace.
    async fn draft<'t>(&'t self, id: &'t TraceId) -> Result<Draft<'t>> {
        let turn = self.traces.turns.lock().get_or_insert((self.rows.clone(), id.clone()), Arc::default);
        let turn = turn.lock_owned().await;
        Ok(Draft::new(self, id, self.find_existing(id).await?, turn))
    }
}

/// Returns the id of a trace that lives here.
fn local(trace: &TraceAddress) -> Result<&TraceId> {
    if trace.is_local() {
        return Ok(trace.id());
    }
    Err(Error::invalid_argument(format!("the trace `{trace}` lives elsewhere, and this store has only its own; use its local id here")))
}

fn no_trace(id: &TraceId) -> Error {
    Error::new(ErrorKind::NotFound, format!("the trace `{id}` does not exist; create it first"))
}

fn foreign() -> Error {
    Error::new(ErrorKind::PermissionDenied, ForeignTrace.to_string()).with_source(ForeignTrace)
}

#[async_trait]
impl TraceStore for StoredTraces {
    async fn create_trace(&self, trace: NewTrace) -> Result<Trace> {
        self.create(trace).await
    }

    async fn get_trace(&self, trace: &TraceAddress) -> Result<Option<Trace>> {
        self.get(local(trace)?).await
    }

    async fn update_trace(&self, trace: &TraceAddress, update: TraceUpdate) -> Result<Trace> {
        self.update(local(trace)?, update).await
    }

    async fn list_traces(&self, query: &TracesQuery) -> Result<TracePage> {
        self.list(query).await
    }

    async fn delete_trace(&self, trace: &TraceAddress) -> Result<bool> {
        self.delete(local(trace)?).await
    }

    async fn get_goal_tree(&self, trace: &TraceAddress) -> Result<GoalTree> {
        self.goal_tree(local(trace)?).await
    }

    async fn update_goal_tree(&self, trace: &TraceAddress, tree: GoalTree) -> Result<()> {
        self.replace_goal_tree(local(trace)?, tree).await
    }

    async fn add_goal(&self, trace: &TraceAddress, goal: NewGoal) -> Result<Goal> {
        self.put_goal(local(trace)?, goal).await
    }

    async fn update_goal(&self, trace: &TraceAddress, goal: &str, update: GoalUpdate) -> Result<Goal> {
        self.change_goal(local(trace)?, goal, update).await
    }

    async fn add_messages(&self, trace: &TraceAddress, messages: Vec<NewMessage>, options: &AddOptions) -> Result<Added> {
        self.append(local(trace)?, &messages, options).await
    }

    async fn get_message(&self, trace: &TraceAddress, message: &MessageRef) -> Result<Option<Message>> {
        self.message(local(trace)?, message).await
    }

    async fn update_message(&self, trace: &TraceAddress, message: &MessageRef, update: MessageUpdate) -> Result<Message> {
        self.change_message(local(trace)?, message, update).await
    }

    async fn get_messages(&self, trace: &TraceAddress, query: &MessagesQuery) -> Result<MessagesPage> {
        self.messages(local(trace)?, query).await
    }

    async fn get_main_path(&self, trace: &TraceAddress, query: &PathQuery) -> Result<MessagesPage> {
        self.main_path(local(trace)?, query).await
    }

    async fn append_event(&self, trace: &TraceAddress, kind: &str, data: OtherFields) -> Result<u64> {
        self.put_event(local(trace)?, kind, &data).await
    }

    async fn get_events(&self, trace: &TraceAddress, since_event_id: u64, limit: usize) -> Result<EventsPage> {
        self.events(local(trace)?, since_event_id, limit).await
    }

    async fn watch(&self, trace: &TraceAddress, since_event_id: u64) -> Result<EventStream> {
        self.follow(local(trace)?, since_event_id).await
    }
}
