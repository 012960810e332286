//! One call of the tool: which trace, where, and what came of it.

use super::AgentToolOptions;
use super::place::{AgentPlace, Started};
use crate::id::{Location, TraceAddress, TraceId};
use crate::model::{GoalUpdate, NewGoal, NewMessage, NewTrace, OtherFields, TraceStatus};
use crate::runs::{RunRequest, RunResult};
use futures::StreamExt;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;

/// The kind of agent in the ids of sub-traces, and the kind of the goals that they are for.
const SUB_TRACE_MODE: &str = "agent";
const GOAL_KIND: &str = "agent_call";

/// The kinds of the events that the calling trace gets.
const STARTED: &str = "sub_trace_started";
const COMPLETED: &str = "sub_trace_completed";

/// How many ids of a second are tried for a sub-trace.
const IDS_MAX: u32 = 256;

/// How long the calling trace may take to note the end of an agent.
const NOTE_TIMEOUT: Duration = Duration::from_secs(10);

/// The most bytes of all summaries and errors in an answer. Answers of tools have at most 100,000 characters.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// A call of the tool.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct AgentCall {
    /// The tasks, at least one. Each gets an agent.
    pub tasks: Vec<String>,
    /// The trace to continue.
    pub continue_from: Option<String>,
    /// Where the agent runs: the URL of a registered agent, `agent://HOST` or `@AGENT`.
    pub agent_url: Option<String>,
    /// What the agent should know besides: `context` in the configuration of its run.
    pub context: Option<Json>,
}

impl AgentCall {
    /// Starts an agent here.
    pub fn new(task: impl Into<String>) -> Self {
        Self { tasks: vec![task.into()], ..Self::default() }
    }

    /// Adds a task, for an agent of its own.
    #[must_use]
    pub fn with_task(mut self, task: impl Into<String>) -> Self {
        self.tasks.push(task.into());
        self
    }

    /// Continues a trace.
    #[must_use]
    pub fn with_continue_from(mut self, trace: impl Into<String>) -> Self {
        self.continue_from = Some(trace.into());
        self
    }

    /// Sets where the agent runs.
    #[must_use]
    pub fn with_agent_url(mut self, url: impl Into<String>) -> Self {
        self.agent_url = Some(url.into());
        self
    }

    /// Sets what the agent should know besides its task.
    #[must_use]
    pub fn with_context(mut self, context: Json) -> Self {
        self.context = Some(context);
        self
    }
}

/// The agent that calls the tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AgentCaller {
    /// Its trace.
    pub trace: Option<TraceAddress>,
    /// The goal that it works on.
    pub goal: Option<String>,
}

impl AgentCaller {
    /// A caller without a trace.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the trace of the caller and the goal that it works on.
    #[must_use]
    pub fn with_trace(mut self, trace: TraceAddress, goal: Option<String>) -> Self {
        (self.trace, self.goal) = (Some(trace), goal);
        self
    }
}

/// Runs a call.
pub(super) async fn run(place: &AgentPlace, caller: &AgentCaller, call: AgentCall, options: &AgentToolOptions) -> Value {
    let target = match target(place, &call, options) {
        Ok(target) => target,
        Err(error) => return failed(error.message()),
    };
    let text_bytes_max = TEXT_BYTES_MAX / call.tasks.len().max(1);
    let one = |(number, task): (usize, String)| {
        let (target, context) = (&target, call.context.clone());
        async move { run_task(place, caller, target, task, number, context, options).await.into_value(text_bytes_max) }
    };
    let mut results: Vec<Value> =
        futures::stream::iter(call.tasks.iter().cloned().enumerate()).map(one).buffered(options.at_once.max(1)).collect().await;
    match (results.len(), results.pop()) {
        (1, Some(result)) => result,
        (_, last) => {
            results.extend(last);
            let is_completed = |result: &Value| result["status"] == TraceStatus::Completed.as_str();
            let status = if results.iter().all(is_completed) { TraceStatus::Completed } else { TraceStatus::Failed };
            json!({"status": status, "results": results})
        }
    }
}

/// Which trace a call works on.
enum Target {
    /// A new one, here or at a location.
    New(Option<Location>),
    /// One that exists, unless its owner says otherwise.
    Existing(TraceAddress),
}

/// Decides about the arguments of a call, without any request.
fn target(place: &AgentPlace, call: &AgentCall, options: &AgentToolOptions) -> Result<Target> {
    if call.tasks.is_empty() || call.tasks.len() > options.tasks_max {
        return Err(Error::invalid_argument(format!("a call has 1 to {} tasks", options.tasks_max)));
    }
    let given = call.agent_url.as_deref().map(location_of).transpose()?;
    let location = given.map(|location| place.location(location)).transpose()?;
    let Some(from) = &call.continue_from else { return Ok(Target::New(location.flatten())) };
    if call.tasks.len() > 1 {
        return Err(Error::invalid_argument("a trace is continued with one task; call once for each of them"));
    }
    let parsed = TraceAddress::parse(from)?;
    let says_own = parsed.location().is_some_and(|location| place.is_own(location));
    let from = place.known(parsed);
    match (from.location().cloned(), location) {
        (None, Some(Some(location))) if says_own => {
            let message = format!("the trace `{from}` lives at this place and not at `{location}`; leave out `agent_url`");
            Err(Error::invalid_argument(message))
        }
        (Some(from_location), Some(location)) if location.as_ref().is_none_or(|location| !place.is_same(&from_location, location)) => {
            let at = location.map_or_else(|| "this place".to_owned(), |location| format!("`{location}`"));
            Err(Error::invalid_argument(format!("the trace `{from}` does not live at {at}; leave out `agent_url`")))
        }
        (Some(from_location), None) => {
            place.location(from_location)?;
            Ok(Target::Existing(from))
        }
        // A local id names a trace of the place that the URL names.
        (None, Some(Some(location))) => Ok(Target::Existing(from.qualified(&location))),
        _ => Ok(Target::Existing(from)),
    }
}

/// Parses where an agent runs.
fn location_of(url: &str) -> Result<Location> {
    let rest = ["agent://", "https://", "http://"].iter().find_map(|scheme| url.strip_prefix(scheme));
    match (rest, url.strip_prefix('@')) {
        (Some(host), _) => Location::host(host.strip_suffix('/').unwrap_or(host)),
        (None, Some(agent)) => Location::agent(agent),
        (None, None) => Err(Error::invalid_argument("`agent_url` is `@AGENT`, `agent://HOST` or the URL of a registered agent")),
    }
}

/// What came of one task.
struct Outcome {
    result: RunResult,
    sub_trace: Option<TraceAddress>,
}

impl Outcome {
    fn failed(sub_trace: Option<&TraceAddress>, error: &Error) -> Self {
        Self { result: RunResult::failed(error.message()), sub_trace: sub_trace.cloned() }
    }

    fn into_value(self, text_bytes_max: usize) -> Value {
        let Self { result, sub_trace } = self;
        let result = result.bounded(text_bytes_max);
        let mut value = json!({"status": result.status});
        for (name, text) in [("summary", result.summary), ("error", result.error)] {
            if let Some(text) = text {
                value[name] = text.into();
            }
        }
        if let Some(sub_trace) = sub_trace {
            value["sub_trace_id"] = sub_trace.to_string().into();
            if !sub_trace.is_local() {
                value["remote"] = true.into();
            }
        }
        value
    }
}

fn failed(error: &str) -> Value {
    json!({"status": TraceStatus::Failed, "error": error})
}

async fn run_task(
    place: &AgentPlace,
    caller: &AgentCaller,
    target: &Target,
    task: String,
    number: usize,
    context: Option<Json>,
    options: &AgentToolOptions,
) -> Outcome {
    let until = Instant::now() + options.deadline;
    let late = || RunResult::failed(format!("the agent could not be started within {:?}", options.deadline));
    let mut asked = None;
    let trace = match timeout_at(until, find_or_create(place, caller, target, &task, number, &mut asked)).await {
        Ok(Ok(trace)) => trace,
        Ok(Err(outcome)) => return outcome,
        Err(_) => return Outcome { result: late(), sub_trace: asked },
    };
    // A trace of the caller that cannot be changed in time does not keep the agent from its work.
    let goal = timeout_at(until, add_to_goal(place, caller, &task, &trace)).await.unwrap_or_default();
    let mut request = RunRequest { messages: vec![NewMessage::text("user", &task)], ..RunRequest::default() };
    request.config = context.and_then(|context| Json::of(&json!({"context": context})).ok());
    let result = match timeout_at(until, place.start(&trace, request)).await {
        Ok(Ok(started)) => end_of(started, until, options).await,
        Ok(Err(error)) => RunResult::failed(error.message()),
        Err(_) => late(),
    };
    if let Some(parent) = &caller.trace {
        let mut data = about(&trace);
        data.insert("status".to_owned(), result.status.as_str().into());
        data.extend(goal.map(|goal| ("goal_id".to_owned(), goal.into())));
        let append = tokio::time::timeout(NOTE_TIMEOUT, place.traces().append_event(parent, COMPLETED, data));
        let slow = |_| Err(Error::new(ErrorKind::Deadline, "the store did not answer in time"));
        told(append.await.unwrap_or_else(slow).map(drop), parent);
    }
    Outcome { result, sub_trace: Some(trace) }
}

/// Waits for the end of a run, and stops it at the deadline.
async fn end_of(mut started: Started, until: Instant, options: &AgentToolOptions) -> RunResult {
    match started.wait(until.saturating_duration_since(Instant::now())).await {
        Ok(Some(result)) => result,
        Ok(None) => {
            let late = format!("the agent did not end within {:?}", options.deadline);
            match started.stop().await {
                Ok(()) => RunResult::failed(format!("{late} and was stopped; continue its trace to go on")),
                Err(error) => RunResult::failed(format!("{late} and could not be stopped: {}", error.message())),
            }
        }
        Err(error) => RunResult::failed(format!("the end of the agent's run is unknown: {}", error.message())),
    }
}

/// Returns the trace of a task. `asked` is the trace that the request in progress is about.
async fn find_or_create(
    place: &AgentPlace,
    caller: &AgentCaller,
    target: &Target,
    task: &str,
    number: usize,
    asked: &mut Option<TraceAddress>,
) -> Result<TraceAddress, Outcome> {
    if let Target::Existing(trace) = target {
        *asked = Some(trace.clone());
    }
    match target {
        Target::Existing(trace) => match place.traces().get_trace(trace).await {
            Ok(Some(_)) => Ok(trace.clone()),
            Ok(None) => Err(Outcome { result: RunResult::failed("Trace not found"), sub_trace: None }),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(Outcome { result: RunResult::failed("Trace not found"), sub_trace: None })
            }
            Err(error) => Err(Outcome::failed(Some(trace), &error)),
        },
        Target::New(location) => {
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            for number in (number..).take(IDS_MAX as usize) {
                let id = sub_trace_id(caller, number).map_err(|error| Outcome::failed(None, &error))?;
                let trace = match location {
                    Some(location) => TraceAddress::at(location.clone(), id),
                    None => TraceAddress::local(id),
                };
                *asked = Some(trace.clone());
                let mut new = NewTrace::new(task).with_id(trace.clone()).with_agent_type(SUB_TRACE_MODE);
                if let Some(parent) = &caller.trace {
                    new = new.with_parent(parent.clone(), caller.goal.clone());
                }
                match place.traces().create_trace(new).await {
                    Ok(_) => return Ok(trace),
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                    Err(error) => return Err(Outcome::failed(Some(&trace), &error)),
                }
            }
            let error = Error::new(ErrorKind::Unavailable, "too many agents were started in this second; try again");
            Err(Outcome::failed(None, &error))
        }
    }
}

/// Makes the id of a new trace.
fn sub_trace_id(caller: &AgentCaller, number: u32) -> Result<TraceId> {
    let Some(parent) = &caller.trace else { return Ok(TraceId::random()) };
    TraceId::of_sub_trace(parent.id(), SUB_TRACE_MODE, Timestamp::now(), number + 1).map_err(|error| {
        error.with_message(
            "agents are nested too deeply: the id of the trace would have over 255 bytes; do the task without a further agent",
        )
    })
}

/// Adds a trace to the goal that the caller works on, or to a new one, and returns the goal.
async fn add_to_goal(place: &AgentPlace, caller: &AgentCaller, task: &str, trace: &TraceAddress) -> Option<String> {
    let parent = caller.trace.as_ref()?;
    let linked = async {
        let goal = match &caller.goal {
            Some(goal) => goal.clone(),
            None => {
                let mut goal = NewGoal::new(task);
                goal.kind = Some(GOAL_KIND.to_owned());
                place.traces().add_goal(parent, goal).await?.id
            }
        };
        let update = GoalUpdate { add_sub_trace: Some(trace.clone()), ..GoalUpdate::default() };
        place.traces().update_goal(parent, &goal, update).await?;
        let mut data = about(trace);
        data.insert("goal_id".to_owned(), goal.clone().into());
        place.traces().append_event(parent, STARTED, data).await?;
        Ok(goal)
    };
    let linked = linked.await;
    let goal = linked.as_ref().ok().cloned();
    told(linked.map(drop), parent);
    goal
}

fn about(trace: &TraceAddress) -> OtherFields {
    OtherFields::from_iter([("sub_trace_id".to_owned(), trace.to_string().into())])
}

/// Logs a failed note in the trace of the caller. The agent itself is not affected.
fn told(result: Result<()>, parent: &TraceAddress) {
    if let Err(error) = result {
        tracing::warn!(%error, trace = %parent, "the trace of an agent that started another one could not be updated");
    }
}
