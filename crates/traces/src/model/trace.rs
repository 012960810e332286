//! A trace: one run of an agent, or of a single call of a model, with its totals.

use super::OtherFields;
use crate::id::TraceAddress;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use treehold_core::error::{Error, Result};
use treehold_core::json::Json;

/// What a trace records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TraceMode {
    /// One call of a model.
    Call,
    /// A run of an agent.
    #[default]
    Agent,
}

/// How far a trace is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TraceStatus {
    /// A run works on it.
    #[default]
    Running,
    /// It ended well.
    Completed,
    /// It ended with an error.
    Failed,
    /// Somebody stopped it.
    Stopped,
}

impl TraceStatus {
    /// Returns whether no run works on the trace. It can still be continued.
    pub fn is_final(self) -> bool {
        self != Self::Running
    }
}

impl TraceMode {
    /// Returns the name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Agent => "agent",
        }
    }
}

impl TraceStatus {
    /// Returns the name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }
}

impl fmt::Display for TraceMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Display for TraceStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for TraceMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::Call, Self::Agent]
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or_else(|| Error::invalid_argument("the mode of a trace is `call` or `agent`"))
    }
}

impl FromStr for TraceStatus {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::Running, Self::Completed, Self::Failed, Self::Stopped]
            .into_iter()
            .find(|status| status.as_str() == text)
            .ok_or_else(|| Error::invalid_argument("the status of a trace is `running`, `completed`, `failed` or `stopped`"))
    }
}

/// A trace without its messages, goals and events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Trace {
    /// The id; qualified if the trace lives elsewhere.
    pub trace_id: TraceAddress,
    /// What it records.
    #[serde(default)]
    pub mode: TraceMode,
    /// The task of the agent.
    #[serde(default)]
    pub task: Option<String>,
    /// The trace that started this one.
    #[serde(default)]
    pub parent_trace_id: Option<TraceAddress>,
    /// The goal of the parent that this trace works on.
    #[serde(default)]
    pub parent_goal_id: Option<String>,
    /// The kind of agent.
    #[serde(default)]
    pub agent_type: Option<String>,
    /// The user that it belongs to. The store sets it.
    #[serde(default)]
    pub uid: Option<String>,
    /// How far it is.
    #[serde(default)]
    pub status: TraceStatus,
    /// The number of messages, side branches included.
    #[serde(default)]
    pub total_messages: u64,
    /// The sum of the tokens of all messages.
    #[serde(default)]
    pub total_tokens: u64,
    /// The sum of the costs of all messages, in the currency of the runner.
    #[serde(default)]
    pub total_cost: f64,
    /// How long its runs took in all, in milliseconds.
    #[serde(default)]
    pub total_duration_ms: u64,
    /// The sequence of the newest message, 0 without messages.
    #[serde(default)]
    pub last_sequence: u64,
    /// The id of the newest event, 0 without events.
    #[serde(default)]
    pub last_event_id: u64,
    /// The goal at work.
    #[serde(default)]
    pub current_goal_id: Option<String>,
    /// The end of the main path, 0 without messages.
    #[serde(default)]
    pub head_sequence: u64,
    /// When it was created, in ISO 8601.
    #[serde(default)]
    pub created_at: Option<String>,
    /// When it ended, in ISO 8601.
    #[serde(default)]
    pub completed_at: Option<String>,
    /// The configuration of its runner, as the runner wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_config: Option<Json>,
    /// Whether it came from elsewhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remote: bool,
    /// Whether it came from a cache although its owner did not answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stale: bool,
    /// Fields that this crate does not know.
    #[serde(flatten)]
    pub other: OtherFields,
}

/// A trace to create. The store assigns what is `None`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct NewTrace {
    /// The id; random by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<TraceAddress>,
    /// What it records.
    #[serde(default)]
    pub mode: TraceMode,
    /// The task of the agent.
    #[serde(default)]
    pub task: Option<String>,
    /// The trace that starts this one.
    #[serde(default)]
    pub parent_trace_id: Option<TraceAddress>,
    /// The goal of the parent that this trace works on.
    #[serde(default)]
    pub parent_goal_id: Option<String>,
    /// The kind of agent.
    #[serde(default)]
    pub agent_type: Option<String>,
    /// The configuration of its runner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_config: Option<Json>,
    /// Fields that this crate does not know.
    #[serde(flatten)]
    pub other: OtherFields,
}

impl NewTrace {
    /// Makes a trace for a task.
    pub fn new(task: impl Into<String>) -> Self {
        Self { task: Some(task.into()), ..Self::default() }
    }

    /// Sets the id.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<TraceAddress>) -> Self {
        self.trace_id = Some(id.into());
        self
    }

    /// Sets a field that this crate does not know.
    #[must_use]
    pub fn with_field(mut self, name: impl Into<String>, value: impl Into<serde_json::Value>) -> Self {
        self.other.insert(name.into(), value.into());
        self
    }

    /// Sets what the trace records.
    #[must_use]
    pub fn with_mode(mut self, mode: TraceMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the trace and the goal that it works for.
    #[must_use]
    pub fn with_parent(mut self, trace: TraceAddress, goal: Option<String>) -> Self {
        (self.parent_trace_id, self.parent_goal_id) = (Some(trace), goal);
        self
    }

    /// Sets the kind of agent.
    #[must_use]
    pub fn with_agent_type(mut self, agent_type: impl Into<String>) -> Self {
        self.agent_type = Some(agent_type.into());
        self
    }

    /// Sets the configuration of its runner.
    #[must_use]
    pub fn with_run_config(mut self, config: Json) -> Self {
        self.run_config = Some(config);
        self
    }
}

/// Changes to a trace. Fields that are `None` stay. What the store counts (messages, sequences, events, the head) changes only with
/// messages and events.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TraceUpdate {
    /// How far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<TraceStatus>,
    /// The task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The goal at work; an empty text for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_goal_id: Option<String>,
    /// Milliseconds to add to the duration of its runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub add_duration_ms: Option<u64>,
    /// The configuration of its runner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_config: Option<Json>,
    /// The end of the main path, for a rewind without a message. It must be the sequence of a message, or 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_sequence: Option<u64>,
}

impl TraceUpdate {
    /// Changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the status. A final status also sets the time of completion, and `running` clears it.
    #[must_use]
    pub fn with_status(mut self, status: TraceStatus) -> Self {
        self.status = Some(status);
        self
    }

    /// Sets the task.
    #[must_use]
    pub fn with_task(mut self, task: impl Into<String>) -> Self {
        self.task = Some(task.into());
        self
    }

    /// Sets the goal at work; an empty text for none.
    #[must_use]
    pub fn with_current_goal(mut self, goal: impl Into<String>) -> Self {
        self.current_goal_id = Some(goal.into());
        self
    }

    /// Adds to the duration of its runs.
    #[must_use]
    pub fn with_duration_ms(mut self, duration_ms: u64) -> Self {
        self.add_duration_ms = Some(duration_ms);
        self
    }

    /// Moves the head.
    #[must_use]
    pub fn with_head(mut self, head_sequence: u64) -> Self {
        self.head_sequence = Some(head_sequence);
        self
    }
}
