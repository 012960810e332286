//! The contract of a store of traces.

use crate::id::TraceAddress;
use crate::model::{
    EventsPage, Goal, GoalTree, GoalUpdate, Message, MessageUpdate, NewGoal, NewMessage, NewTrace, OtherFields, Trace, TraceEvent,
    TraceMode, TraceStatus, TraceUpdate,
};
use async_trait::async_trait;
use futures::stream::BoxStream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
#[cfg(doc)]
use treehold_core::error::ErrorKind;
use treehold_core::error::{Error, Result};

/// The most traces, messages or events of a page.
pub const PAGE_MAX: usize = 1_000;

/// The events of a trace from a position on, without an end.
pub type EventStream = BoxStream<'static, Result<TraceEvent>>;

/// Options of appending messages.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct AddOptions {
    /// A key under which a repeated call has no second effect.
    pub idempotency_key: Option<String>,
    /// The head that the caller saw. The call is refused if the trace has another one.
    pub expected_head: Option<u64>,
    /// A change of the trace in the same commit.
    pub update: Option<TraceUpdate>,
}

impl AddOptions {
    /// Appends without a key, whatever the head is.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the key under which a repeated call has no second effect. A client that lost the answer repeats the call with it.
    #[must_use]
    pub fn with_idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Expects a head.
    #[must_use]
    pub fn with_expected_head(mut self, head_sequence: u64) -> Self {
        self.expected_head = Some(head_sequence);
        self
    }

    /// Changes the trace in the same commit. A change needs a message to go with, and cannot move the head, which the messages do.
    #[must_use]
    pub fn with_update(mut self, update: TraceUpdate) -> Self {
        self.update = Some(update);
        self
    }

    /// Refuses a change that no append can make.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument).
    pub(crate) fn check(&self, messages: usize) -> Result<()> {
        let Some(update) = &self.update else { return Ok(()) };
        if messages == 0 {
            return Err(Error::invalid_argument("an append without messages cannot change the trace; update the trace").without_effect());
        }
        match update.head_sequence {
            Some(_) => Err(Error::invalid_argument("`head_sequence` is moved by the messages; leave it out of `update`").without_effect()),
            None => Ok(()),
        }
    }
}

/// The result of appending messages.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Added {
    /// The messages as they are stored, in the order of the call.
    pub messages: Vec<Message>,
    /// The head after the call.
    pub head_sequence: u64,
    /// Whether an earlier call with the same idempotency key added them.
    #[serde(default)]
    pub repeated: bool,
}

/// Which traces to list. They come newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[non_exhaustive]
pub struct TracesQuery {
    /// Only traces with this status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<TraceStatus>,
    /// Only traces of this mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<TraceMode>,
    /// The most traces. Default 50, at most 100.
    pub limit: usize,
    /// Continues after a page: its `next`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

impl Default for TracesQuery {
    fn default() -> Self {
        Self { status: None, mode: None, limit: 50, cursor: None }
    }
}

impl TracesQuery {
    /// Lists the newest traces.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lists only traces with a status.
    #[must_use]
    pub fn with_status(mut self, status: TraceStatus) -> Self {
        self.status = Some(status);
        self
    }

    /// Lists only traces of a mode.
    #[must_use]
    pub fn with_mode(mut self, mode: TraceMode) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Sets the most traces.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Continues after a page: its `next`.
    #[must_use]
    pub fn with_cursor(mut self, cursor: Option<String>) -> Self {
        self.cursor = cursor;
        self
    }
}

/// A page of traces.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct TracePage {
    /// The traces, newest first.
    pub traces: Vec<Trace>,
    /// How many traces there are in all with the status and mode of the query.
    pub total: u64,
    /// The cursor of the next page; `None` at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Which messages to return, whatever path they are on. They come in the order of their sequences.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[non_exhaustive]
pub struct MessagesQuery {
    /// Only messages with a greater sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_sequence: Option<u64>,
    /// Only messages of this goal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal_id: Option<String>,
    /// How many messages to leave out at the beginning. Prefer `since_sequence`.
    pub offset: u64,
    /// The most messages. Default 100, at most [`PAGE_MAX`].
    pub limit: usize,
}

impl Default for MessagesQuery {
    fn default() -> Self {
        Self { since_sequence: None, goal_id: None, offset: 0, limit: 100 }
    }
}

impl MessagesQuery {
    /// Reads the first messages.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads only messages with a greater sequence.
    #[must_use]
    pub fn with_since(mut self, since_sequence: u64) -> Self {
        self.since_sequence = Some(since_sequence);
        self
    }

    /// Reads only messages of a goal.
    #[must_use]
    pub fn with_goal(mut self, goal: impl Into<String>) -> Self {
        self.goal_id = Some(goal.into());
        self
    }

    /// Leaves out messages at the beginning.
    #[must_use]
    pub fn with_offset(mut self, offset: u64) -> Self {
        self.offset = offset;
        self
    }

    /// Sets the most messages.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }
}

/// A page of messages.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct MessagesPage {
    /// The messages, earlier ones first.
    pub messages: Vec<Message>,
    /// In a page of the main path, the sequence at which the messages before this page end; `None` if the path begins on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier: Option<u64>,
    /// Otherwise, whether more messages follow.
    #[serde(default)]
    pub more: bool,
    /// Whether it came from a cache although the owner of the trace did not answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stale: bool,
}

/// Which part of a path to return.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[non_exhaustive]
pub struct PathQuery {
    /// The end of the path: the head of the trace by default. [`MessagesPage::earlier`] continues a page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_sequence: Option<u64>,
    /// The most messages, those nearest to the end of the path. Default and most: [`PAGE_MAX`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

impl PathQuery {
    /// Reads the end of the path to the head.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the end of the path.
    #[must_use]
    pub fn with_head(mut self, head_sequence: u64) -> Self {
        self.head_sequence = Some(head_sequence);
        self
    }

    /// Sets the most messages.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = Some(limit);
        self
    }
}

/// A message of a trace, by its id or sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageRef {
    /// By its id.
    Id(String),
    /// By its sequence.
    Sequence(u64),
}

/// The traces of one user.
///
/// Every id may be qualified. A store that holds only its own traces refuses those that live elsewhere
/// ([`InvalidArgument`](ErrorKind::InvalidArgument)). Results of a store that reaches other places carry qualified ids.
///
/// What belongs together is one commit: a message, its sequence, the head, the totals and the event that tells it.
///
/// # Errors
/// Besides those of each method: [`NotFound`](ErrorKind::NotFound) for an unknown trace, where the method does not return an `Option`;
/// [`PermissionDenied`](ErrorKind::PermissionDenied), with the source [`ForeignTrace`], for the trace of another user;
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for malformed arguments, and, with the source [`UnknownAgent`], for an id whose location is not
/// registered; errors of the store or of the connection. A failed read never looks like an absent trace.
#[async_trait]
pub trait TraceStore: Send + Sync + fmt::Debug {
    /// Creates a trace and returns it as stored.
    ///
    /// # Errors
    /// [`AlreadyExists`](ErrorKind::AlreadyExists) for an id that is taken in the tenant, by whomever.
    async fn create_trace(&self, trace: NewTrace) -> Result<Trace>;

    /// Returns a trace, or `None` if it does not exist.
    async fn get_trace(&self, trace: &TraceAddress) -> Result<Option<Trace>>;

    /// Changes a trace and returns it.
    async fn update_trace(&self, trace: &TraceAddress, update: TraceUpdate) -> Result<Trace>;

    /// Returns a page of the traces of the user, newest first.
    async fn list_traces(&self, query: &TracesQuery) -> Result<TracePage>;

    /// Removes a trace with all of its messages, goals and events. Returns whether it existed.
    async fn delete_trace(&self, trace: &TraceAddress) -> Result<bool>;

    /// Returns the goals of a trace; an empty tree if it has none.
    async fn get_goal_tree(&self, trace: &TraceAddress) -> Result<GoalTree>;

    /// Replaces the goals of a trace.
    async fn update_goal_tree(&self, trace: &TraceAddress, tree: GoalTree) -> Result<()>;

    /// Adds a goal and returns it as stored.
    ///
    /// # Errors
    /// [`AlreadyExists`](ErrorKind::AlreadyExists) for an id that is taken, [`NotFound`](ErrorKind::NotFound) for an unknown parent.
    async fn add_goal(&self, trace: &TraceAddress, goal: NewGoal) -> Result<Goal>;

    /// Changes a goal and returns it.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for an unknown goal.
    async fn update_goal(&self, trace: &TraceAddress, goal: &str, update: GoalUpdate) -> Result<Goal>;

    /// Appends messages, all or none, and moves the head to the last one that is not part of a side branch.
    ///
    /// A message without a parent continues the message before it in the call, and the first one continues the head.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a parent that does not exist, a summary whose span is not on the path to the
    /// head, more than [`PAGE_MAX`] messages, and a change of the trace that no append can make; [`Conflict`](ErrorKind::Conflict) for a head other than the expected one;
    /// [`TooLarge`](ErrorKind::TooLarge) for a message over the limit of the store.
    async fn add_messages(&self, trace: &TraceAddress, messages: Vec<NewMessage>, options: &AddOptions) -> Result<Added>;

    /// Returns a message, or `None` if the trace has no such message.
    async fn get_message(&self, trace: &TraceAddress, message: &MessageRef) -> Result<Option<Message>>;

    /// Changes a message and returns it.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for an unknown message.
    async fn update_message(&self, trace: &TraceAddress, message: &MessageRef, update: MessageUpdate) -> Result<Message>;

    /// Returns a page of all messages of a trace, in the order of their sequences.
    async fn get_messages(&self, trace: &TraceAddress, query: &MessagesQuery) -> Result<MessagesPage>;

    /// Returns the end of a path: from its last message back from parent to parent, earlier messages first.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an end that does not exist.
    async fn get_main_path(&self, trace: &TraceAddress, query: &PathQuery) -> Result<MessagesPage>;

    /// Appends an event and returns its id.
    async fn append_event(&self, trace: &TraceAddress, kind: &str, data: OtherFields) -> Result<u64>;

    /// Returns a page of events with greater ids than `since_event_id`.
    async fn get_events(&self, trace: &TraceAddress, since_event_id: u64, limit: usize) -> Result<EventsPage>;

    /// Follows the events of a trace: first those after `since_event_id`, then new ones as they come, each once and in order. The stream
    /// ends with an error if the trace is removed or can no longer be read.
    async fn watch(&self, trace: &TraceAddress, since_event_id: u64) -> Result<EventStream>;
}

/// The source of errors about a trace of another user. Its text is that of the original.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForeignTrace;

impl fmt::Display for ForeignTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cannot access other user's trace")
    }
}

impl std::error::Error for ForeignTrace {}

/// The source of errors about an agent or host that is not registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownAgent;

impl fmt::Display for UnknownAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown agent")
    }
}

impl std::error::Error for UnknownAgent {}
