//! Running agents on traces.

use super::TraceRuns;
use crate::contract::TraceStore;
use crate::id::TraceAddress;
use crate::model::{NewMessage, TraceStatus};
use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_core::json::Json;

/// What to run.
///
/// Without `after_sequence` the run continues at the head of its trace; with it, the trace is rewound first: the messages are appended
/// behind that sequence. With `branch_type`, it works beside the main path, which ends as before.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[non_exhaustive]
pub struct RunRequest {
    /// What the agent is asked, before its first step.
    pub messages: Vec<NewMessage>,
    /// The sequence after which the run continues. The original's older name is `insert_after`.
    #[serde(alias = "insert_after", skip_serializing_if = "Option::is_none")]
    pub after_sequence: Option<u64>,
    /// The configuration of the runner, which it interprets. It is stored with the trace, unless the run is on a side branch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<Json>,
    /// The kind of side branch that the run works on, such as `reflection`. The head and the status of the trace stay as they are, and what
    /// the runner appends continues the branch. By default the run continues the main path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch_type: Option<String>,
}

/// The kind of side branch on which an agent reflects on its trace.
pub const REFLECTION: &str = "reflection";

/// The longest summary and the longest error of a run that are kept, in bytes.
pub const RESULT_BYTES_MAX: usize = 16 << 10;

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct RunResult {
    /// The status of the trace after the run.
    pub status: TraceStatus,
    /// What the run says about its outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl RunResult {
    /// Makes the result of a run that ended well.
    pub fn completed(summary: impl Into<String>) -> Self {
        Self { status: TraceStatus::Completed, summary: Some(summary.into()), error: None }
    }

    /// Makes the result of a run that failed.
    pub fn failed(error: impl Into<String>) -> Self {
        Self { status: TraceStatus::Failed, summary: None, error: Some(error.into()) }
    }

    /// Makes the result of a run that was stopped.
    pub fn stopped(reason: impl Into<String>) -> Self {
        Self { status: TraceStatus::Stopped, summary: None, error: Some(reason.into()) }
    }

    /// Cuts each text after a number of bytes.
    pub(crate) fn bounded(mut self, bytes_max: usize) -> Self {
        for text in [&mut self.summary, &mut self.error].into_iter().flatten() {
            if text.len() > bytes_max {
                text.truncate(text.floor_char_boundary(bytes_max));
                text.push('…');
            }
        }
        self
    }
}

/// What a run works with.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RunContext {
    /// The trace, which exists. It lives in the store at hand.
    pub trace: TraceAddress,
    /// The runs of the same user, for sub-traces. [`TraceRuns::traces`] are their traces.
    pub runs: TraceRuns,
}

impl RunContext {
    /// Makes the context of a run.
    pub fn new(trace: TraceAddress, runs: TraceRuns) -> Self {
        Self { trace, runs }
    }

    /// Returns the traces of the user.
    pub fn traces(&self) -> &Arc<dyn TraceStore> {
        self.runs.traces()
    }
}

/// What runs an agent on a trace. The product has none of its own: a host attaches one.
///
/// A run reads the main path, calls its model and tools, and appends what they say. [`Runs`](crate::Runs) appended the messages of the
/// request before. The run is dropped when it is stopped or late, so it must leave the trace valid at every `.await`: each
/// [`TraceStore::add_messages`] is one commit.
#[async_trait]
pub trait TraceRunner: Send + Sync + fmt::Debug {
    /// Runs an agent on a trace until the run ends.
    ///
    /// # Errors
    /// Those of the store and of the runner. A failure of the agent itself is a [`RunResult`].
    async fn run(&self, context: &RunContext, request: RunRequest) -> Result<RunResult>;
}
