//! A runner that plays a script, for tests and examples.

use crate::contract::{AddOptions, PathQuery, TraceStore};
use crate::id::TraceAddress;
use crate::model::{GoalStatus, GoalUpdate, Message, NewGoal, NewMessage, SequenceRange};
use crate::runs::{RunContext, RunRequest, RunResult, TraceRunner};
#[cfg(feature = "tool")]
use crate::tool::{AGENT_TOOL, AgentCall, AgentCaller, AgentPlace, AgentTool};
use async_trait::async_trait;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::watch;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;
use uuid::Uuid;

/// A step of a [`ScriptedRunner`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Step {
    /// The assistant says a text. The last one is the summary of the run.
    Say(String),
    /// The assistant says how many messages are on the main path, and what the newest of a user is: `3 messages, asked: "..."`.
    SayPath,
    /// The assistant calls a tool, which answers with a text.
    CallTool {
        /// The name of the tool.
        name: String,
        /// Its arguments.
        arguments: Value,
        /// Its answer.
        answer: String,
    },
    /// The assistant calls the tool `agent`, which runs.
    #[cfg(feature = "tool")]
    CallAgent(AgentCall),
    /// Adds a goal. Later messages belong to it.
    BeginGoal(NewGoal),
    /// Completes the goal that the last [`Step::BeginGoal`] added, with a summary.
    EndGoal(String),
    /// Replaces the main path by a summary, but for its first messages.
    Compact {
        /// How many messages at the beginning of the path stay.
        keep_first: usize,
        /// The summary.
        summary: String,
    },
    /// Waits until a gate opens.
    Pause(Gate),
    /// The agent fails with a text.
    Fail(String),
}

impl Step {
    /// The assistant says a text.
    pub fn say(text: impl Into<String>) -> Self {
        Self::Say(text.into())
    }

    /// The assistant calls a tool, which answers with a text.
    pub fn call_tool(name: impl Into<String>, arguments: Value, answer: impl Into<String>) -> Self {
        Self::CallTool { name: name.into(), arguments, answer: answer.into() }
    }
}

/// Where a run waits until somebody lets it pass. Clones are the same gate.
#[derive(Debug, Clone, Default)]
pub struct Gate(Arc<GateState>);

#[derive(Debug, Default)]
struct GateState {
    is_open: watch::Sender<bool>,
    arrivals: watch::Sender<usize>,
}

impl Gate {
    /// Makes a closed gate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets all pass, those that wait and later ones.
    pub fn open(&self) {
        self.0.is_open.send_replace(true);
    }

    /// Waits until a number of runs in all have arrived.
    pub async fn arrived(&self, runs: usize) {
        // The sender is borrowed, so the channel stays open.
        let _ = self.0.arrivals.subscribe().wait_for(|arrivals| *arrivals >= runs).await;
    }

    async fn pass(&self) {
        self.0.arrivals.send_modify(|arrivals| *arrivals += 1);
        let _ = self.0.is_open.subscribe().wait_for(|is_open| *is_open).await;
    }
}

/// A runner that plays the steps of a script. Clones share nothing but gates and the tool.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use treehold_traces::{Runs, ScriptedRunner, Step};
///
/// let runner = ScriptedRunner::new([Step::say("hello")]).with_script("add", [Step::call_tool("sum", serde_json::json!([1, 2]), "3")]);
/// let runs = Runs::new(Arc::new(runner));
/// assert_eq!(runs.count(), 0);
/// ```
#[derive(Debug, Clone, Default)]
pub struct ScriptedRunner {
    steps: Vec<Step>,
    scripts: Vec<(String, Vec<Step>)>,
    #[cfg(feature = "tool")]
    tool: Option<Arc<AgentTool>>,
}

impl ScriptedRunner {
    /// Plays steps in every run.
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        Self { steps: steps.into_iter().collect(), ..Self::default() }
    }

    /// Plays other steps in runs whose newest message of a user contains a text. The first such script is played.
    #[must_use]
    pub fn with_script(mut self, asked: impl Into<String>, steps: impl IntoIterator<Item = Step>) -> Self {
        self.scripts.push((asked.into(), steps.into_iter().collect()));
        self
    }

    /// Sets the tool of [`Step::CallAgent`]. The agents that it starts run where the run does, or at its peers.
    #[cfg(feature = "tool")]
    #[must_use]
    pub fn with_agent_tool(mut self, tool: Arc<AgentTool>) -> Self {
        self.tool = Some(tool);
        self
    }
}

#[async_trait]
impl TraceRunner for ScriptedRunner {
    async fn run(&self, context: &RunContext, _: RunRequest) -> Result<RunResult> {
        let mut play = Play::new(self, context).await?;
        let script = self.scripts.iter().find(|(asked, _)| play.asked.contains(asked)).map_or(&self.steps, |(_, steps)| steps);
        for step in script {
            if let Some(result) = play.step(step).await? {
                return Ok(result);
            }
        }
        Ok(RunResult::completed(play.said))
    }
}

/// A script at work on a trace.
struct Play<'a> {
    #[cfg(feature = "tool")]
    runner: &'a ScriptedRunner,
    context: &'a RunContext,
    asked: String,
    said: String,
    goal: Option<String>,
}

impl<'a> Play<'a> {
    #[cfg_attr(not(feature = "tool"), expect(unused_variables, reason = "the runner only holds the tool"))]
    async fn new(runner: &'a ScriptedRunner, context: &'a RunContext) -> Result<Self> {
        let page = context.traces().get_main_path(&context.trace, &PathQuery::default()).await?;
        let asked = page.messages.iter().rev().find(|message| message.role == "user").and_then(text_of).unwrap_or_default();
        Ok(Self {
            #[cfg(feature = "tool")]
            runner,
            context,
            asked,
            said: String::new(),
            goal: None,
        })
    }

    fn traces(&self) -> &dyn TraceStore {
        &**self.context.traces()
    }

    fn trace(&self) -> &TraceAddress {
        &self.context.trace
    }

    /// Plays a step. Returns the result of the run if the step ends it.
    async fn step(&mut self, step: &Step) -> Result<Option<RunResult>> {
        match step {
            Step::Say(text) => self.say(text.clone()).await?,
            Step::SayPath => {
                let page = self.traces().get_main_path(self.trace(), &PathQuery::default()).await?;
                let text = format!("{} messages, asked: {:?}", page.messages.len(), self.asked);
                self.say(text).await?;
            }
            Step::CallTool { name, arguments, answer } => {
                let call = Uuid::new_v4().to_string();
                self.add(vec![calling(&call, name, arguments)?, NewMessage::text("tool", answer).with_tool_call(call)]).await?;
            }
            #[cfg(feature = "tool")]
            Step::CallAgent(call) => self.call_agent(call).await?,
            Step::BeginGoal(goal) => {
                self.goal = Some(self.traces().add_goal(self.trace(), goal.clone()).await?.id);
                self.update_goal(GoalUpdate { status: Some(GoalStatus::InProgress), ..GoalUpdate::default() }).await?;
            }
            Step::EndGoal(summary) => {
                let (status, summary) = (Some(GoalStatus::Completed), Some(summary.clone()));
                self.update_goal(GoalUpdate { status, summary, ..GoalUpdate::default() }).await?;
                self.goal = None;
            }
            Step::Compact { keep_first, summary } => self.compact(*keep_first, summary).await?,
            Step::Pause(gate) => gate.pass().await,
            Step::Fail(text) => return Ok(Some(RunResult::failed(text))),
        }
        Ok(None)
    }

    async fn say(&mut self, text: String) -> Result<()> {
        self.add(vec![NewMessage::new("assistant", Json::of(&json!({"text": text}))?)]).await?;
        self.said = text;
        Ok(())
    }

    /// Adds messages of the present goal.
    async fn add(&self, mut messages: Vec<NewMessage>) -> Result<()> {
        for message in &mut messages {
            message.goal_id = self.goal.clone();
        }
        self.traces().add_messages(self.trace(), messages, &AddOptions::new()).await.map(drop)
    }

    async fn update_goal(&self, update: GoalUpdate) -> Result<()> {
        let goal = self.goal.as_deref().ok_or_else(|| Error::invalid_argument("the script works on no goal; begin one first"))?;
        self.traces().update_goal(self.trace(), goal, update).await.map(drop)
    }

    async fn compact(&self, keep_first: usize, summary: &str) -> Result<()> {
        let page = self.traces().get_main_path(self.trace(), &PathQuery::default()).await?;
        let span = match (page.messages.get(keep_first), page.messages.last()) {
            (Some(first), Some(last)) if page.earlier.is_none() => SequenceRange { from: first.sequence, to: last.sequence },
            _ => return Err(Error::new(ErrorKind::InvalidArgument, "the script compacts a path that is too short or too long for it")),
        };
        self.add(vec![NewMessage::text("user", summary).with_summarizes(span)]).await
    }

    #[cfg(feature = "tool")]
    async fn call_agent(&self, call: &AgentCall) -> Result<()> {
        let tool = self.runner.tool.as_ref().ok_or_else(|| Error::unsupported("the script calls an agent without the tool"))?;
        let id = Uuid::new_v4().to_string();
        let arguments = json!({"task": call.tasks, "continue_from": call.continue_from, "agent_url": call.agent_url});
        self.add(vec![calling(&id, AGENT_TOOL, &arguments)?]).await?;
        let caller = AgentCaller::new().with_trace(self.trace().clone(), self.goal.clone());
        let answer = tool.call(&AgentPlace::of_runs(self.context.runs.clone()), &caller, call.clone()).await;
        self.add(vec![NewMessage::text("tool", &answer.to_string()).with_tool_call(id)]).await
    }
}

/// Makes the message of an assistant that calls a tool.
fn calling(id: &str, name: &str, arguments: &Value) -> Result<NewMessage> {
    let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments.to_string()}});
    Ok(NewMessage::new("assistant", Json::of(&json!({"text": "", "tool_calls": [call]}))?))
}

/// Returns the text of a message: its content, or the field `text` of it.
fn text_of(message: &Message) -> Option<String> {
    match message.content.as_ref()?.view::<Value>().ok()? {
        Value::String(text) => Some(text),
        content => content["text"].as_str().map(str::to_owned),
    }
}
