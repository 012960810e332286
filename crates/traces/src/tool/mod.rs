//! The tool `agent`: an agent starts another one, or continues what another one did, here or elsewhere.
//!
//! Whatever happens, the tool answers with a value: `{"status", "summary" or "error", "sub_trace_id"}`, and `"remote": true` for an agent
//! elsewhere. Every wait has a deadline, at which the started run is stopped, as it is when the caller is gone.

mod call;
mod place;

pub use call::{AgentCall, AgentCaller};
pub use place::{AgentPlace, AgentPlaces, OrganizationAgents};

use crate::id::{TraceAddress, TraceId};
use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use treehold_agent::tools::{Tool, ToolContext, ToolInfo, ToolOutput};
use treehold_core::error::Result;
use treehold_core::json::Json;

/// The name of the tool.
pub const AGENT_TOOL: &str = "agent";

/// Options of [`AgentTool`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AgentToolOptions {
    /// How long a run that the tool starts may take, from its trace to its end. Default 30 minutes.
    pub deadline: Duration,
    /// The most tasks of one call. Default 16.
    pub tasks_max: usize,
    /// The most tasks of one call that run at the same time. Default 4.
    pub at_once: usize,
}

impl Default for AgentToolOptions {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(1_800), tasks_max: 16, at_once: 4 }
    }
}

impl AgentToolOptions {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how long a run that the tool starts may take.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the most tasks of one call, and the most of them that run at the same time.
    #[must_use]
    pub fn with_tasks_max(mut self, tasks_max: usize, at_once: usize) -> Self {
        (self.tasks_max, self.at_once) = (tasks_max, at_once);
        self
    }
}

/// The arguments of the tool.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The task for the agent. Several tasks start several agents, which work at the same time.
    task: Vec<String>,
    /// The trace of an earlier agent to continue, as `sub_trace_id` named it; empty for a new agent.
    #[serde(default)]
    continue_from: String,
    /// Where the agent runs, such as `@laptop` or `agent://host:8000`; empty for where `continue_from` lives, or here.
    #[serde(default)]
    agent_url: String,
    /// What the agent should know besides its task.
    #[serde(default)]
    context: String,
}

/// The tool `agent`.
///
/// In a session of a workspace, the calling agent's trace is that whose id is the thread of the session, if it exists.
#[derive(Debug)]
pub struct AgentTool {
    info: ToolInfo,
    places: Arc<dyn AgentPlaces>,
    options: AgentToolOptions,
}

impl AgentTool {
    /// Makes the tool.
    pub fn new(places: Arc<dyn AgentPlaces>) -> Self {
        let description = "Gives a task to another agent and returns its answer. Answers with `status`, `summary` or `error`, and the \
                           `sub_trace_id` of the agent, by which a later call continues it (`continue_from`).";
        let info = ToolInfo::for_arguments::<Arguments>(AGENT_TOOL, "Run an agent", description);
        Self { info, places, options: AgentToolOptions::new() }
    }

    /// Sets options.
    #[must_use]
    pub fn with_options(mut self, options: AgentToolOptions) -> Self {
        self.options = options;
        self
    }

    /// Runs a call for a caller. A call with one task returns its result; one with several returns `{"status", "results"}`, in their order.
    pub async fn call(&self, place: &AgentPlace, caller: &AgentCaller, call: AgentCall) -> Value {
        call::run(place, caller, call, &self.options).await
    }

    /// Returns the trace of the calling agent.
    async fn caller(&self, place: &AgentPlace, context: &ToolContext<'_>) -> AgentCaller {
        let thread = context.scope.and_then(|scope| scope.thread.as_deref()).and_then(|thread| TraceId::new(thread).ok());
        let Some(address) = thread.map(TraceAddress::local) else { return AgentCaller::new() };
        match place.traces().get_trace(&address).await {
            Ok(Some(trace)) => AgentCaller::new().with_trace(address, trace.current_goal_id),
            Ok(None) => AgentCaller::new(),
            Err(error) => {
                tracing::warn!(%error, trace = %address, "the trace of an agent that starts another one could not be read");
                AgentCaller::new()
            }
        }
    }
}

#[async_trait]
impl Tool for AgentTool {
    fn info(&self) -> &ToolInfo {
        &self.info
    }

    async fn run(&self, arguments: &Value, context: &ToolContext<'_>) -> Result<ToolOutput> {
        let arguments: Arguments = self.info.parse(arguments)?;
        let place = self.places.of(context.scope).await?;
        let caller = self.caller(&place, context).await;
        let Arguments { task, continue_from, agent_url, context } = arguments;
        let given = |text: String| Some(text).filter(|text| !text.is_empty());
        let context = given(context).map(|text| Json::of(&text)).transpose()?;
        let call = AgentCall { tasks: task, continue_from: given(continue_from), agent_url: given(agent_url), context };
        let answer = self.call(&place, &caller, call).await;
        Ok(ToolOutput::new(answer.to_string()).with_data(answer))
    }
}
