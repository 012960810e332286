//! The messages of a trace. They form a tree: each names the sequence of its parent.

use super::OtherFields;
use crate::id::TraceAddress;
use schemars::JsonSchema;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use treehold_core::json::Json;

/// A span of sequences, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SequenceRange {
    /// The first sequence.
    pub from: u64,
    /// The last sequence.
    pub to: u64,
}

impl<'de> Deserialize<'de> for SequenceRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// The flattened field makes it an object. Without one, a list of two numbers would also be a span.
        #[derive(Deserialize)]
        struct Object {
            from: u64,
            to: u64,
            #[serde(flatten)]
            _other: IgnoredAny,
        }
        Object::deserialize(deserializer).map(|Object { from, to, .. }| Self { from, to })
    }
}

/// A message of a trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Message {
    /// The id, unique in the trace.
    pub message_id: String,
    /// The trace.
    pub trace_id: TraceAddress,
    /// Who speaks: `system`, `user`, `assistant`, `tool` or another role.
    pub role: String,
    /// Its number. Sequences of a trace start at 1, have no gaps and are never used again.
    pub sequence: u64,
    /// The sequence of the message before it on its path; `None` for the first of a path.
    #[serde(default)]
    pub parent_sequence: Option<u64>,
    /// The goal that it belongs to.
    #[serde(default)]
    pub goal_id: Option<String>,
    /// The tool call that it answers.
    #[serde(default)]
    pub tool_call_id: Option<String>,
    /// The content: `{text, tool_calls}` of an assistant, a text of a tool. Kept as it was written.
    #[serde(default)]
    pub content: Option<Json>,
    /// How many tokens it took.
    #[serde(default)]
    pub tokens: Option<u64>,
    /// What it cost, in the currency of the runner.
    #[serde(default)]
    pub cost: Option<f64>,
    /// The kind of side branch that it is part of, such as `reflection` or `evaluation`. Messages of a side branch do not move the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch_type: Option<String>,
    /// The messages that it stands for on the main path, if it is the summary of a compaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summarizes: Option<SequenceRange>,
    /// When it was added, in ISO 8601.
    #[serde(default)]
    pub created_at: Option<String>,
    /// Fields that this crate does not know.
    #[serde(flatten)]
    pub other: OtherFields,
}

/// A message to append.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct NewMessage {
    /// The id; by default `{trace id}-{sequence}` with at least four digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// Who speaks.
    pub role: String,
    /// The sequence of its parent: the head by default, 0 for the beginning of a new path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_sequence: Option<u64>,
    /// The goal that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal_id: Option<String>,
    /// The tool call that it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Json>,
    /// How many tokens it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// What it cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// The kind of side branch, if it must not move the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch_type: Option<String>,
    /// The messages of the main path that it replaces as their summary. Its parent is then the parent of the first of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summarizes: Option<SequenceRange>,
    /// Fields that this crate does not know.
    #[serde(flatten)]
    pub other: OtherFields,
}

impl NewMessage {
    /// Makes a message with a content.
    pub fn new(role: impl Into<String>, content: Json) -> Self {
        Self { role: role.into(), content: Some(content), ..Self::default() }
    }

    /// Makes a message whose content is a text.
    pub fn text(role: impl Into<String>, text: &str) -> Self {
        Self::new(role, Json::of(text).expect("a text is JSON"))
    }

    /// Sets the id.
    #[must_use]
    pub fn with_id(mut self, message_id: impl Into<String>) -> Self {
        self.message_id = Some(message_id.into());
        self
    }

    /// Sets a field that this crate does not know.
    #[must_use]
    pub fn with_field(mut self, name: impl Into<String>, value: impl Into<serde_json::Value>) -> Self {
        self.other.insert(name.into(), value.into());
        self
    }

    /// Sets the parent: a rewind to an earlier message, or 0 for the beginning of a new path.
    #[must_use]
    pub fn with_parent(mut self, sequence: u64) -> Self {
        self.parent_sequence = Some(sequence);
        self
    }

    /// Sets the goal.
    #[must_use]
    pub fn with_goal(mut self, goal: impl Into<String>) -> Self {
        self.goal_id = Some(goal.into());
        self
    }

    /// Sets the tool call that the message answers.
    #[must_use]
    pub fn with_tool_call(mut self, tool_call: impl Into<String>) -> Self {
        self.tool_call_id = Some(tool_call.into());
        self
    }

    /// Sets what the message took.
    #[must_use]
    pub fn with_usage(mut self, tokens: u64, cost: f64) -> Self {
        (self.tokens, self.cost) = (Some(tokens), Some(cost));
        self
    }

    /// Makes the message part of a side branch.
    #[must_use]
    pub fn with_branch_type(mut self, branch_type: impl Into<String>) -> Self {
        self.branch_type = Some(branch_type.into());
        self
    }

    /// Makes the message the summary of a span of the main path that ends at the head.
    #[must_use]
    pub fn with_summarizes(mut self, span: SequenceRange) -> Self {
        self.summarizes = Some(span);
        self
    }
}

/// Changes to a message. Fields that are `None` stay. Sequence and parent never change.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct MessageUpdate {
    /// The content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Json>,
    /// The goal; an empty text for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal_id: Option<String>,
    /// How many tokens it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// What it cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
}

impl MessageUpdate {
    /// Changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the content.
    #[must_use]
    pub fn with_content(mut self, content: Json) -> Self {
        self.content = Some(content);
        self
    }

    /// Sets the goal; an empty text for none.
    #[must_use]
    pub fn with_goal(mut self, goal: impl Into<String>) -> Self {
        self.goal_id = Some(goal.into());
        self
    }

    /// Sets how many tokens the message took.
    #[must_use]
    pub fn with_tokens(mut self, tokens: u64) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// Sets what the message cost.
    #[must_use]
    pub fn with_cost(mut self, cost: f64) -> Self {
        self.cost = Some(cost);
        self
    }
}
