//! The events of a trace: its log of changes, in order.

use super::OtherFields;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The kinds of events that the store adds by itself, each in the commit of the change that it tells.
pub mod kinds {
    /// The trace was created.
    pub const TRACE_CREATED: &str = "trace_created";
    /// A message was added.
    pub const MESSAGE_ADDED: &str = "message_added";
    /// A message was changed.
    pub const MESSAGE_UPDATED: &str = "message_updated";
    /// The head moved without a message.
    pub const HEAD_MOVED: &str = "head_moved";
    /// A goal was added.
    pub const GOAL_ADDED: &str = "goal_added";
    /// A goal was changed.
    pub const GOAL_UPDATED: &str = "goal_updated";
    /// The goal tree was replaced.
    pub const GOAL_TREE_UPDATED: &str = "goal_tree_updated";
    /// The status became `completed`.
    pub const TRACE_COMPLETED: &str = "trace_completed";
    /// The status became `failed`.
    pub const TRACE_FAILED: &str = "trace_failed";
    /// The status became `stopped`.
    pub const TRACE_STOPPED: &str = "trace_stopped";
    /// The status became `running` again.
    pub const TRACE_RESUMED: &str = "trace_resumed";
    /// Something else of the trace changed.
    pub const TRACE_UPDATED: &str = "trace_updated";
}

/// An event of a trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct TraceEvent {
    /// Its number. Event ids of a trace start at 1, rise by one, and are never used again.
    pub event_id: u64,
    /// The kind, see [`kinds`]. Runners may add others.
    pub event: String,
    /// When it happened, in ISO 8601.
    #[serde(default)]
    pub ts: Option<String>,
    /// What it tells, by its kind.
    #[serde(flatten)]
    pub data: OtherFields,
}

/// A page of events.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct EventsPage {
    /// The events in order.
    pub events: Vec<TraceEvent>,
    /// Whether more follow.
    pub more: bool,
}
