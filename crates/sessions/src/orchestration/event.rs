//! The events of an orchestration and of mailboxes.

use crate::kept::Kept;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use treehold_core::json::Json;

/// An event of an orchestration, with its original text.
pub type OrchestrationEvent = Kept<EventFields>;

/// The fields of an orchestration event.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventFields {
    /// The id, unique in the session.
    pub event_id: String,
    /// When it occurred, according to its author.
    pub occurred_at: String,
    /// The run that it belongs to.
    pub run_id: String,
    /// The kind of event and its fields.
    #[serde(flatten)]
    pub kind: EventKind,
}

impl<'de> Deserialize<'de> for EventFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (head, kind) = tagged(deserializer, &EventKind::Unknown)?;
        let Head { event_id, occurred_at, run_id, .. } = head;
        let run_id = match (run_id, &kind) {
            (None, _) => String::new(),
            (Some(run_id), EventKind::Unknown) => run_id.view().unwrap_or_default(),
            (Some(run_id), _) => view(&run_id)?,
        };
        Ok(Self { event_id, occurred_at, run_id, kind })
    }
}

/// The fields that events of every kind have.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    #[serde(rename = "type")]
    kind: String,
    event_id: String,
    occurred_at: String,
    run_id: Option<Json>,
    agent_id: Option<Json>,
}

/// Reads the type of an event first, and the other fields only if the type is known. So an event of an unknown type may have
/// fields of any shape.
fn tagged<'de, D: Deserializer<'de>, K: DeserializeOwned + PartialEq>(deserializer: D, unknown: &K) -> Result<(Head, K), D::Error> {
    let json = Json::deserialize(deserializer)?;
    let head: Head = view(&json)?;
    let kind = match serde_json::from_value(json!({"type": head.kind})) {
        Ok(kind) if kind == *unknown => kind,
        _ => view(&json)?,
    };
    Ok((head, kind))
}

fn view<T: DeserializeOwned, E: serde::de::Error>(json: &Json) -> Result<T, E> {
    serde_json::from_str(json.as_str()).map_err(E::custom)
}

impl JsonSchema for EventFields {
    fn schema_name() -> Cow<'static, str> {
        "OrchestrationEvent".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "description": "an event of an orchestration; the fields of its type follow",
            "properties": {
                "eventId": {"type": "string", "description": "the id, unique in the session"},
                "occurredAt": {"type": "string", "description": "when it occurred"},
                "runId": {"type": "string", "description": "the run that it belongs to"},
                "type": {"type": "string", "description": "such as `run_started` or `agent_spawned`"}
            },
            "required": ["eventId", "occurredAt", "type"]
        })
    }
}

/// The kind of event and its fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum EventKind {
    /// A run began.
    RunStarted {
        /// Its task.
        initial_task: InitialTask,
    },
    /// An agent was created.
    AgentSpawned {
        /// The agent.
        agent: AgentSpawn,
    },
    /// An input was queued for an agent.
    AgentInputQueued {
        /// The input.
        input: QueuedInput,
    },
    /// An input left the queue.
    AgentInputRemoved {
        /// The input.
        input_id: String,
        /// Its agent.
        agent_id: String,
        /// The reason.
        reason: InputRemoval,
    },
    /// The status of an agent changed.
    AgentStatusChanged {
        /// The agent.
        agent_id: String,
        /// The new status.
        status: AgentStatus,
    },
    /// An agent began to work on inputs.
    AgentJobStarted {
        /// The agent.
        agent_id: String,
        /// The job.
        job_id: String,
        /// The inputs.
        #[serde(default)]
        input_ids: Vec<String>,
    },
    /// An agent finished a job.
    AgentJobCompleted {
        /// The agent.
        agent_id: String,
        /// The job.
        job: AgentJob,
    },
    /// A job of an agent failed.
    AgentJobFailed {
        /// The agent.
        agent_id: String,
        /// The job.
        job: AgentJob,
    },
    /// A wait for agents was registered.
    WaitRegistered {
        /// The wait.
        wait: WaitRegistration,
    },
    /// A wait ended.
    WaitResolved {
        /// The wait.
        wait_id: String,
        /// Its outcome.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resolution: Option<Value>,
    },
    /// An agent was closed.
    AgentClosed {
        /// The request to close it.
        close: CloseRequest,
    },
    /// A run ended.
    RunCompleted {
        /// Its outcome.
        status: RunStatus,
        /// The error.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// A kind that this version does not know. It is stored and changes nothing.
    #[serde(other)]
    Unknown,
}

impl EventKind {
    /// Returns the agents that an event names; none of a kind that this version does not know.
    pub(crate) fn agents(&self) -> Vec<&str> {
        match self {
            Self::RunStarted { .. } | Self::WaitResolved { .. } | Self::RunCompleted { .. } | Self::Unknown => Vec::new(),
            Self::AgentSpawned { agent } => vec![&agent.id],
            Self::AgentInputQueued { input } => vec![&input.agent_id],
            Self::AgentInputRemoved { agent_id, .. }
            | Self::AgentStatusChanged { agent_id, .. }
            | Self::AgentJobStarted { agent_id, .. }
            | Self::AgentJobCompleted { agent_id, .. }
            | Self::AgentJobFailed { agent_id, .. } => vec![agent_id],
            Self::WaitRegistered { wait } => {
                let others = wait.agent_ids.iter().flatten().map(String::as_str);
                [wait.agent_id.as_str()].into_iter().chain(others).collect()
            }
            Self::AgentClosed { close } => vec![&close.agent_id],
        }
    }
}

/// The task of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InitialTask {
    /// The id.
    pub id: String,
    /// The kind of task.
    pub kind: String,
    /// Its input.
    #[serde(default)]
    pub input: Value,
}

/// The definition of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentSpawn {
    /// The id.
    pub id: String,
    /// The run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// The task that it works on; by default the first one of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// Its name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// Its role.
    pub role: String,
}

/// A queued input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueuedInput {
    /// The id.
    pub id: String,
    /// Its agent.
    pub agent_id: String,
    /// Its content.
    #[serde(default)]
    pub payload: Value,
}

/// Why an input left the queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputRemoval {
    /// The agent received it.
    Delivered,
    /// The agent was closed.
    AgentClosed,
    /// A reason that this version does not know.
    #[serde(untagged)]
    Other(String),
}

/// The status of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentStatus {
    /// The agent is idle.
    Idle,
    /// The agent is working.
    Running,
    /// The agent is waiting.
    Waiting,
    /// The agent is being closed.
    Closing,
    /// The agent is closed.
    Closed,
    /// A status that this version does not know.
    #[serde(untagged)]
    Other(String),
}

/// The status of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// The run is active.
    Running,
    /// The run succeeded.
    Completed,
    /// The run failed.
    Failed,
    /// A status that this version does not know.
    #[serde(untagged)]
    Other(String),
}

/// The outcome of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobOutcome {
    /// Success.
    Completed,
    /// Failure.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// It timed out.
    TimedOut,
    /// An outcome that this version does not know.
    #[serde(untagged)]
    Other(String),
}

/// The work of an agent on some inputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentJob {
    /// The id.
    pub job_id: String,
    /// The inputs.
    #[serde(default)]
    pub input_ids: Vec<String>,
    /// Its outcome.
    pub outcome: JobOutcome,
    /// The agent's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_text: Option<String>,
    /// The error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Everything else, such as the tool calls.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// The condition of a wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WaitKind {
    /// The agents are idle.
    AgentIdle,
    /// The agents are closed.
    AgentClosed,
    /// A condition that this version does not know.
    #[serde(untagged)]
    Other(String),
}

/// How many of the agents must meet the condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WaitMatch {
    /// At least one.
    Any,
    /// All of them.
    #[default]
    All,
}

/// A wait as it is registered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitRegistration {
    /// The id.
    pub id: String,
    /// The awaited agent, or the first of several.
    pub agent_id: String,
    /// All awaited agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_ids: Option<Vec<String>>,
    /// The condition.
    pub kind: WaitKind,
    /// The condition, in words.
    #[serde(default)]
    pub description: String,
    /// How many of the agents must meet the condition.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub matching: Option<WaitMatch>,
    /// Its deadline, as an ISO 8601 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_at: Option<String>,
}

/// A request to close an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CloseRequest {
    /// The id.
    pub id: String,
    /// The agent.
    pub agent_id: String,
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// An event of a mailbox, with its original text.
pub type MailboxEvent = Kept<MailboxEventFields>;

/// The fields of a mailbox event.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MailboxEventFields {
    /// The id.
    pub event_id: String,
    /// The agent that owns the mailbox.
    pub agent_id: String,
    /// When it occurred, according to its author.
    pub occurred_at: String,
    /// The kind of event and its fields.
    #[serde(flatten)]
    pub kind: MailboxEventKind,
}

impl<'de> Deserialize<'de> for MailboxEventFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (head, kind) = tagged(deserializer, &MailboxEventKind::Unknown)?;
        let Head { event_id, occurred_at, agent_id, .. } = head;
        let agent_id = view(&agent_id.ok_or_else(|| serde::de::Error::missing_field("agentId"))?)?;
        Ok(Self { event_id, agent_id, occurred_at, kind })
    }
}

impl MailboxEventFields {
    /// Returns the agent that an event names; `None` for a kind that this version does not know.
    pub(crate) fn agent(&self) -> Option<&str> {
        (self.kind != MailboxEventKind::Unknown).then_some(self.agent_id.as_str())
    }
}

/// The kind of mailbox event and its fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum MailboxEventKind {
    /// An input arrived.
    InputEnqueued {
        /// Its id.
        input_id: String,
        /// Its content.
        #[serde(default)]
        payload: Value,
    },
    /// The agent is requested to close.
    AgentCloseRequested {
        /// The reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A kind that this version does not know. It is stored and changes nothing.
    #[serde(other)]
    Unknown,
}

/// The processed part of a mailbox, with its original text.
pub type MailboxState = Kept<MailboxStateFields>;

/// The fields of the processed part of a mailbox.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MailboxStateFields {
    /// The number of processed events, from the first.
    pub processed_event_count: u64,
    /// The request to close the agent, from the mailbox.
    pub close_requested: Option<Json>,
}

impl JsonSchema for MailboxEventFields {
    fn schema_name() -> Cow<'static, str> {
        "MailboxEvent".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "description": "an event of a mailbox; the fields of its type follow",
            "properties": {
                "eventId": {"type": "string", "description": "the id"},
                "agentId": {"type": "string", "description": "the agent"},
                "occurredAt": {"type": "string", "description": "when it occurred"},
                "type": {"type": "string", "description": "`input_enqueued` or `agent_close_requested`"}
            },
            "required": ["eventId", "agentId", "occurredAt", "type"]
        })
    }
}

impl JsonSchema for MailboxStateFields {
    fn schema_name() -> Cow<'static, str> {
        "MailboxState".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "description": "how much of a mailbox was processed",
            "properties": {
                "processedEventCount": {"type": "integer", "minimum": 0, "description": "how many events were processed"},
                "closeRequested": {"type": ["object", "null"], "description": "the request to close the agent"}
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of an event whose type is unknown, only the fields of every event are read.
    #[test]
    fn events_of_unknown_types_may_have_fields_of_any_shape() {
        for value in ["5", "null", "[1]", "{\"a\":1}", "1e999", r#""\ud800""#] {
            let more = format!(r#""agent":{value},"input":{value},"status":{value},"reason":{value},"x":{value}"#);
            let text = format!(r#"{{"eventId":"e","occurredAt":"t","type":"later","runId":{value},{more}}}"#);
            let event = OrchestrationEvent::parse(&text).expect(&text);
            assert_eq!((event.json().as_str(), &event.kind, event.event_id.as_str()), (text.as_str(), &EventKind::Unknown, "e"));
            let text = format!(r#"{{"eventId":"e","occurredAt":"t","type":"later","agentId":"a",{more}}}"#);
            let event = MailboxEvent::parse(&text).expect(&text);
            assert_eq!((event.json().as_str(), &event.kind), (text.as_str(), &MailboxEventKind::Unknown));
        }
        for bad in [
            r#"{"eventId":"e","occurredAt":"t","runId":"r","type":"agent_spawned","agent":5}"#,
            r#"{"eventId":"e","occurredAt":"t","runId":5,"type":"agent_closed","close":{"id":"c","agentId":"a"}}"#,
            r#"{"eventId":5,"occurredAt":"t","type":"later"}"#,
            r#"{"eventId":"e","occurredAt":"t"}"#,
        ] {
            assert!(OrchestrationEvent::parse(bad).is_err(), "{bad}");
        }
    }
}
