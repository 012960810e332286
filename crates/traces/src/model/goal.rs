//! The goals of a trace, a tree.

use super::OtherFields;
use crate::id::TraceAddress;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far a goal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GoalStatus {
    /// Nobody works on it yet.
    #[default]
    Pending,
    /// It is being worked on.
    InProgress,
    /// It was reached.
    Completed,
    /// It was given up.
    Abandoned,
}

/// What messages took.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GoalStats {
    /// The number of messages.
    pub message_count: u64,
    /// The sum of their tokens.
    pub total_tokens: u64,
    /// The sum of their costs.
    pub total_cost: f64,
    /// Fields that this crate does not know.
    #[serde(flatten)]
    pub other: OtherFields,
}

/// A goal.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Goal {
    /// The id, unique in the trace.
    pub id: String,
    /// The goal above it.
    #[serde(default)]
    pub parent_id: Option<String>,
    /// The kind: `normal`, `agent_call` or another one.
    #[serde(default, rename = "type")]
    pub kind: Option<String>,
    /// What is to be reached.
    #[serde(default)]
    pub description: String,
    /// Why.
    #[serde(default)]
    pub reason: Option<String>,
    /// How far it is.
    #[serde(default)]
    pub status: GoalStatus,
    /// What came out.
    #[serde(default)]
    pub summary: Option<String>,
    /// What its own messages took. The store keeps it.
    #[serde(default)]
    pub self_stats: GoalStats,
    /// What its messages and those of the goals below it took. The store keeps it.
    #[serde(default)]
    pub cumulative_stats: GoalStats,
    /// The traces that were started for it.
    #[serde(default)]
    pub sub_trace_ids: Vec<TraceAddress>,
    /// Fields that this crate does not know.
    #[serde(flatten)]
    pub other: OtherFields,
}

/// The goals of a trace.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct GoalTree {
    /// What the whole trace is for.
    #[serde(default)]
    pub mission: String,
    /// The goal at work.
    #[serde(default)]
    pub current_id: Option<String>,
    /// The goals, parents before their children.
    #[serde(default)]
    pub goals: Vec<Goal>,
    /// Fields that this crate does not know.
    #[serde(flatten)]
    pub other: OtherFields,
}

impl Goal {
    /// Makes a goal at the top.
    pub fn new(id: impl Into<String>, description: impl Into<String>) -> Self {
        Self { id: id.into(), description: description.into(), ..Self::default() }
    }

    /// Sets the goal above it.
    #[must_use]
    pub fn with_parent(mut self, parent: impl Into<String>) -> Self {
        self.parent_id = Some(parent.into());
        self
    }
}

impl GoalTree {
    /// Makes a tree.
    pub fn new(mission: impl Into<String>, goals: Vec<Goal>) -> Self {
        Self { mission: mission.into(), goals, ..Self::default() }
    }

    /// Sets the goal at work.
    #[must_use]
    pub fn with_current(mut self, goal: impl Into<String>) -> Self {
        self.current_id = Some(goal.into());
        self
    }

    /// Returns a goal.
    pub fn get(&self, id: &str) -> Option<&Goal> {
        self.goals.iter().find(|goal| goal.id == id)
    }
}

/// A goal to add.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct NewGoal {
    /// The id; by default the next free number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The goal above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<String>,
    /// The kind.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// What is to be reached.
    pub description: String,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Fields that this crate does not know.
    #[serde(flatten)]
    pub other: OtherFields,
}

impl NewGoal {
    /// Makes a goal at the top.
    pub fn new(description: impl Into<String>) -> Self {
        Self { description: description.into(), ..Self::default() }
    }

    /// Sets the id.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Sets a field that this crate does not know.
    #[must_use]
    pub fn with_field(mut self, name: impl Into<String>, value: impl Into<serde_json::Value>) -> Self {
        self.other.insert(name.into(), value.into());
        self
    }

    /// Sets the goal above it.
    #[must_use]
    pub fn with_parent(mut self, parent: impl Into<String>) -> Self {
        self.parent_id = Some(parent.into());
        self
    }
}

/// Changes to a goal. Fields that are `None` stay.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct GoalUpdate {
    /// How far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<GoalStatus>,
    /// What is to be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What came out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// A trace that was started for it, to add.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub add_sub_trace: Option<TraceAddress>,
}

impl GoalUpdate {
    /// Changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how far the goal is.
    #[must_use]
    pub fn with_status(mut self, status: GoalStatus) -> Self {
        self.status = Some(status);
        self
    }

    /// Sets what came out.
    #[must_use]
    pub fn with_summary(mut self, summary: impl Into<String>) -> Self {
        self.summary = Some(summary.into());
        self
    }

    /// Adds a trace that was started for the goal.
    #[must_use]
    pub fn with_sub_trace(mut self, trace: TraceAddress) -> Self {
        self.add_sub_trace = Some(trace);
        self
    }
}
