//! The state of an orchestration, and the effect of each event.

use super::event::{
    AgentJob, AgentStatus, EventFields, EventKind, InitialTask, OrchestrationEvent, RunStatus, WaitKind, WaitMatch, WaitRegistration,
};
use crate::kept::Kept;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// A checkpoint of an orchestration, with its original text.
pub type Snapshot = Kept<SnapshotFields>;

/// The state of an orchestration up to an event.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotFields {
    /// The runs by id.
    pub runs: BTreeMap<String, Run>,
    /// The tasks by id.
    pub tasks: BTreeMap<String, Task>,
    /// The agents by id.
    pub agents: BTreeMap<String, Agent>,
    /// The waits by id.
    pub waits: BTreeMap<String, Wait>,
    /// The queued inputs, in order.
    pub queued_inputs: Vec<InputEnvelope>,
    /// The last event that the state includes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_event_id: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// The id.
    pub id: String,
    /// Its status.
    pub status: RunStatus,
    /// Its first task.
    pub initial_task_id: String,
    /// When it began.
    pub created_at: String,
    /// The time of the last event that changed it.
    pub updated_at: String,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<String>,
    /// The error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Run {
    /// Returns whether it ended.
    pub fn is_over(&self) -> bool {
        matches!(self.status, RunStatus::Completed | RunStatus::Failed)
    }
}

/// A task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    /// The id.
    pub id: String,
    /// The run.
    pub run_id: String,
    /// The kind.
    pub kind: String,
    /// Its input.
    #[serde(default)]
    pub input: Value,
    /// When it was created.
    pub created_at: String,
    /// Everything else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// An agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Agent {
    /// The id.
    pub id: String,
    /// The run.
    pub run_id: String,
    /// The task.
    pub task_id: String,
    /// Its name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// Its role.
    pub role: String,
    /// Its status.
    pub status: AgentStatus,
    /// When it was created.
    pub created_at: String,
    /// The time of the last event that changed it.
    pub updated_at: String,
    /// When it was closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_at: Option<String>,
    /// Its last job; the end time is among the other fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_job: Option<AgentJob>,
    /// Everything else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// The status of a wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitStatus {
    /// The wait is pending.
    Pending,
    /// The wait has ended.
    Resolved,
    /// A status that this version does not know.
    #[serde(untagged)]
    Other(String),
}

/// A wait for agents.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// The id.
    pub id: String,
    /// The run.
    #[serde(default)]
    pub run_id: String,
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
    /// Its status.
    pub status: WaitStatus,
    /// When it was registered.
    pub registered_at: String,
    /// Its deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_at: Option<String>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_at: Option<String>,
    /// Its outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution: Option<Value>,
    /// Everything else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Wait {
    /// Returns all awaited agents.
    pub fn agents(&self) -> Vec<&str> {
        match &self.agent_ids {
            Some(ids) if !ids.is_empty() => ids.iter().map(String::as_str).collect(),
            _ => vec![&self.agent_id],
        }
    }

    /// Returns the agents in every field.
    pub(super) fn agent_ids(&self) -> impl Iterator<Item = &str> {
        [self.agent_id.as_str()].into_iter().chain(self.agent_ids.iter().flatten().map(String::as_str))
    }
}

/// A queued input of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InputEnvelope {
    /// The id.
    pub id: String,
    /// The agent.
    pub agent_id: String,
    /// Its content.
    #[serde(default)]
    pub payload: Value,
    /// When it was queued.
    pub queued_at: String,
    /// Everything else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A checkpoint as hosts write it: earlier ones have a field `run` with the only run.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    #[serde(default)]
    runs: BTreeMap<String, Run>,
    run: Option<Run>,
    #[serde(default)]
    tasks: BTreeMap<String, Task>,
    #[serde(default)]
    agents: BTreeMap<String, Agent>,
    #[serde(default)]
    waits: BTreeMap<String, Wait>,
    #[serde(default)]
    queued_inputs: Vec<InputEnvelope>,
    last_event_id: Option<String>,
    #[serde(flatten)]
    more: Map<String, Value>,
}

impl<'de> Deserialize<'de> for SnapshotFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Written { mut runs, run, tasks, agents, waits, queued_inputs, last_event_id, more } = Written::deserialize(deserializer)?;
        if let Some(run) = run {
            runs.entry(run.id.clone()).or_insert(run);
        }
        Ok(Self { runs, tasks, agents, waits, queued_inputs, last_event_id, more })
    }
}

impl SnapshotFields {
    /// Returns whether a run is active or none has begun. Only then is there something to resume.
    pub fn is_resumable(&self) -> bool {
        self.runs.is_empty() || self.runs.values().any(|run| !run.is_over())
    }

    /// Returns the agents that it names.
    pub(super) fn agent_ids(&self) -> impl Iterator<Item = &str> {
        let agents = self.agents.iter().flat_map(|(id, agent)| [id.as_str(), agent.id.as_str()]);
        let waits = self.waits.values().flat_map(Wait::agent_ids);
        agents.chain(waits).chain(self.queued_inputs.iter().map(|input| input.agent_id.as_str()))
    }

    /// Returns whether an agent exists and is neither closed nor closing.
    pub fn takes_input(&self, agent: &str) -> bool {
        self.agents.get(agent).is_some_and(|agent| !matches!(agent.status, AgentStatus::Closing | AgentStatus::Closed))
    }

    /// Applies an event. Events about unknown agents, waits and runs change only the last event.
    pub fn apply(&mut self, event: &OrchestrationEvent) {
        let EventFields { event_id, occurred_at: at, run_id, kind } = &**event;
        match kind {
            EventKind::RunStarted { initial_task } => self.start_run(run_id, initial_task, at),
            EventKind::AgentSpawned { agent } => {
                let run_id = agent.run_id.as_ref().unwrap_or(run_id);
                let of_run = || self.runs.get(run_id).map(|run| run.initial_task_id.clone());
                let spawned = Agent {
                    id: agent.id.clone(),
                    run_id: run_id.clone(),
                    task_id: agent.task_id.clone().or_else(of_run).unwrap_or_else(|| agent.id.clone()),
                    display_name: agent.display_name.clone(),
                    role: agent.role.clone(),
                    status: AgentStatus::Idle,
                    created_at: at.clone(),
                    updated_at: at.clone(),
                    closed_at: None,
                    last_job: None,
                    more: Map::new(),
                };
                self.agents.insert(agent.id.clone(), spawned);
            }
            EventKind::AgentInputQueued { input } => self.queued_inputs.push(InputEnvelope {
                id: input.id.clone(),
                agent_id: input.agent_id.clone(),
                payload: input.payload.clone(),
                queued_at: at.clone(),
                more: Map::new(),
            }),
            EventKind::AgentInputRemoved { input_id, agent_id, .. } => {
                self.queued_inputs.retain(|input| (&input.id, &input.agent_id) != (input_id, agent_id));
            }
            EventKind::AgentStatusChanged { agent_id, status } => {
                self.touch(agent_id, at, |agent| agent.status = status.clone());
            }
            EventKind::AgentJobStarted { agent_id, .. } => self.touch(agent_id, at, |_| {}),
            EventKind::AgentJobCompleted { agent_id, job } | EventKind::AgentJobFailed { agent_id, job } => {
                let mut job = job.clone();
                job.more.insert("completedAt".to_owned(), Value::from(at.as_str()));
                self.touch(agent_id, at, |agent| agent.last_job = Some(job));
            }
            EventKind::WaitRegistered { wait } => self.register(run_id, wait, at),
            EventKind::WaitResolved { wait_id, resolution } => {
                if let Some(wait) = self.waits.get_mut(wait_id) {
                    wait.status = WaitStatus::Resolved;
                    wait.resolved_at = Some(at.clone());
                    wait.resolution.clone_from(resolution);
                }
            }
            EventKind::AgentClosed { close } => self.touch(&close.agent_id, at, |agent| {
                agent.status = AgentStatus::Closed;
                agent.closed_at = Some(at.clone());
            }),
            EventKind::RunCompleted { status, error } => {
                if let Some(run) = self.runs.get_mut(run_id) {
                    run.status = status.clone();
                    run.error.clone_from(error);
                    run.updated_at.clone_from(at);
                    run.completed_at = Some(at.clone());
                }
            }
            EventKind::Unknown => {}
        }
        self.last_event_id = Some(event_id.clone());
    }

    fn start_run(&mut self, run_id: &str, task: &InitialTask, at: &str) {
        let run = Run {
            id: run_id.to_owned(),
            status: RunStatus::Running,
            initial_task_id: task.id.clone(),
            created_at: at.to_owned(),
            updated_at: at.to_owned(),
            completed_at: None,
            error: None,
            more: Map::new(),
        };
        let task = Task {
            id: task.id.clone(),
            run_id: run_id.to_owned(),
            kind: task.kind.clone(),
            input: task.input.clone(),
            created_at: at.to_owned(),
            more: Map::new(),
        };
        self.runs.insert(run.id.clone(), run);
        self.tasks.insert(task.id.clone(), task);
    }

    fn register(&mut self, run_id: &str, wait: &WaitRegistration, at: &str) {
        let registered = Wait {
            id: wait.id.clone(),
            run_id: run_id.to_owned(),
            agent_id: wait.agent_id.clone(),
            agent_ids: wait.agent_ids.clone(),
            kind: wait.kind.clone(),
            description: wait.description.clone(),
            matching: wait.matching,
            status: WaitStatus::Pending,
            registered_at: at.to_owned(),
            timeout_at: wait.timeout_at.clone(),
            resolved_at: None,
            resolution: None,
            more: Map::new(),
        };
        self.waits.insert(wait.id.clone(), registered);
    }

    fn touch(&mut self, agent: &str, at: &str, change: impl FnOnce(&mut Agent)) {
        if let Some(agent) = self.agents.get_mut(agent) {
            change(agent);
            at.clone_into(&mut agent.updated_at);
        }
    }
}

impl JsonSchema for SnapshotFields {
    fn schema_name() -> Cow<'static, str> {
        "OrchestrationSnapshot".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "description": "the state of an orchestration up to an event",
            "properties": {
                "runs": {"type": "object", "description": "the runs by id"},
                "tasks": {"type": "object", "description": "the tasks by id"},
                "agents": {"type": "object", "description": "the agents by id"},
                "waits": {"type": "object", "description": "the waits by id"},
                "queuedInputs": {"type": "array", "items": {"type": "object"}, "description": "the queued inputs, in order"},
                "lastEventId": {"type": ["string", "null"], "description": "the last event that the state includes"}
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kind of event keeps its text and changes the state; an unknown kind changes only the last event.
    #[test]
    fn every_kind_of_event_round_trips_and_is_applied() {
        let events = [
            r#"{"eventId":"1","occurredAt":"t1","runId":"r","type":"run_started","initialTask":{"id":"k","kind":"chat","input":{"z":1,"a":2}}}"#,
            r#"{"eventId":"2","occurredAt":"t2","runId":"r","type":"agent_spawned","agent":{"id":"a","role":"scout","displayName":"A"}}"#,
            r#"{"eventId":"3","occurredAt":"t3","runId":"r","type":"agent_input_queued","input":{"id":"i","agentId":"a","payload":{"x":1}}}"#,
            r#"{"eventId":"4","occurredAt":"t4","runId":"r","type":"agent_job_started","agentId":"a","jobId":"j","inputIds":["i"]}"#,
            r#"{"eventId":"5","occurredAt":"t5","runId":"r","type":"agent_input_removed","inputId":"i","agentId":"a","reason":"delivered"}"#,
            r#"{"eventId":"6","occurredAt":"t6","runId":"r","type":"agent_status_changed","agentId":"a","status":"pondering"}"#,
            r#"{"eventId":"7","occurredAt":"t7","runId":"r","type":"agent_job_completed","agentId":"a","job":{"jobId":"j","inputIds":["i"],"outcome":"completed","toolCalls":[1]}}"#,
            r#"{"eventId":"8","occurredAt":"t8","runId":"r","type":"wait_registered","wait":{"id":"w","agentId":"a","kind":"agent-idle","description":"d","match":"any"}}"#,
            r#"{"eventId":"9","occurredAt":"t9","runId":"r","type":"wait_resolved","waitId":"w","resolution":{"status":"resolved"}}"#,
            r#"{"eventId":"10","occurredAt":"t10","runId":"r","type":"agent_closed","close":{"id":"c","agentId":"a"}}"#,
            r#"{"eventId":"11","occurredAt":"t11","runId":"r","type":"run_completed","status":"failed","error":"e"}"#,
            r#"{"eventId":"12","occurredAt":"t12","type":"moon_landed","crew":3}"#,
        ];
        let mut state = SnapshotFields::default();
        for text in events {
            let event = OrchestrationEvent::parse(text).expect(text);
            assert_eq!(serde_json::to_string(&event).expect("plain"), text);
            state.apply(&event);
        }
        let agent = &state.agents["a"];
        assert_eq!((agent.task_id.as_str(), &agent.status, agent.closed_at.as_deref()), ("k", &AgentStatus::Closed, Some("t10")));
        let job = agent.last_job.as_ref().expect("a job");
        assert_eq!((&job.more["completedAt"], &job.more["toolCalls"][0]), (&Value::from("t7"), &Value::from(1)));
        assert_eq!((&state.waits["w"].status, state.queued_inputs.len()), (&WaitStatus::Resolved, 0));
        assert_eq!((&state.runs["r"].status, state.last_event_id.as_deref()), (&RunStatus::Failed, Some("12")));
        let text = serde_json::to_string(&state).expect("plain");
        assert_eq!(serde_json::from_str::<SnapshotFields>(&text).expect("it parses its own text"), state);
    }

    #[test]
    fn checkpoint_with_a_single_run_is_read() {
        let text = r#"{"run":{"id":"r","status":"running","initialTaskId":"k","createdAt":"t","updatedAt":"t"},"tasks":{},"agents":{},"waits":{},"queuedInputs":[],"later":1}"#;
        let snapshot = Snapshot::parse(text).expect("valid");
        assert!(snapshot.runs.contains_key("r") && snapshot.is_resumable() && snapshot.more["later"] == 1);
        assert_eq!(serde_json::to_string(&snapshot).expect("plain"), text);
        assert!(Snapshot::parse(r#"{"run":null}"#).expect("valid").is_resumable());
    }
}
