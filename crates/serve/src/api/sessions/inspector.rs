//! What an inspector shows: the sessions that a caller may see, and the routes of the hosts' own inspector.
//!
//! The inspector of agent hosts is a program of its own, which expects certain routes and JSON. [`host_routes`] answers them beneath a
//! prefix. They only read, and a failure is status 500 with `{"error": …}`, as the hosts answer it.

use super::super::Api;
use super::super::exchange::{Answer, Asked, json};
use super::page;
use crate::caller::Caller;
use crate::rights::{Access, ActsFor};
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;
use std::sync::Arc;
use treehold_core::error::{Error, Result};
use treehold_sessions::orchestration::{Agent, AgentJob, AgentStatus, OrchestrationEvent, OrchestrationPersistence, Run, RunStatus};
use treehold_sessions::trace::Envelope;
use treehold_sessions::{
    CheckStatus, InspectedSession, InspectorDataSource, Json as Raw, Readiness, ReadyCheck, ReadyStatus, SessionRef, Sessions,
};

/// The tenant of a request that names none, as hosts assume it.
const TENANT: &str = "default";

/// A page of the sessions that the caller may see.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct InspectedQuery {
    /// The most sessions. Default 100. A page may have fewer and still have a `cursor`.
    limit: Option<usize>,
    /// Where the previous page ended: its `cursor`.
    cursor: Option<String>,
}

/// Sessions that the caller may see.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct InspectedSessions {
    /// The sessions: those of one user newest first, those of several users by tenant and id.
    sessions: Vec<InspectedSession>,
    /// The cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

pub(super) async fn sessions(asked: Asked) -> Answer {
    let query: InspectedQuery = asked.query()?;
    let limit = page(query.limit, 100)?;
    let page = seen(&asked.api, &asked.caller)?.inspect_page(limit, query.cursor.as_deref()).await?;
    json(StatusCode::OK, InspectedSessions { sessions: page.sessions, cursor: page.next }).await
}

/// Returns the sessions that a caller may see.
fn seen(api: &Api, caller: &Caller) -> Result<Sessions> {
    let owner = caller.owner(&axum::http::HeaderMap::new(), Access::Read)?;
    match caller.rights.acts_for {
        ActsFor::Own => api.sessions.for_user(&owner.tenant, &owner.user),
        ActsFor::Tenant => api.sessions.for_tenant(&owner.tenant),
        ActsFor::All => Ok(api.sessions.clone()),
    }
}

/// Returns the routes of an inspector of agent hosts, beneath a prefix.
pub(in crate::api) fn host_routes(prefix: &str) -> Router<Arc<Api>> {
    let at = |path: &str| format!("{prefix}{path}");
    Router::new()
        .route(&at("/health"), get(health))
        .route(&at("/ready"), get(ready))
        .route(&at("/__inspector/health"), get(health))
        .route(&at("/__inspector/sessions"), get(list))
        .route(&at("/__inspector/sessions/{session}/trace"), get(trace))
        .route(&at("/__inspector/sessions/{session}/messages"), get(messages))
        .route(&at("/__inspector/sessions/{session}/orchestration"), get(orchestration))
}

/// The tenant of a session.
#[derive(Debug, Deserialize)]
struct TenantQuery {
    #[serde(rename = "tenantId")]
    tenant_id: Option<String>,
}

type Asking = (State<Arc<Api>>, Extension<Caller>, Path<BTreeMap<String, String>>, RawQuery);

/// Returns the sessions that the caller may see, and the one that the request names.
fn named((State(api), Extension(caller), Path(params), RawQuery(query)): Asking) -> Result<(Sessions, SessionRef)> {
    let sessions = seen(&api, &caller)?;
    let query: TenantQuery = serde_html_form::from_str(query.as_deref().unwrap_or_default())
        .map_err(|error| Error::invalid_argument(format!("the query cannot be used: {error}")))?;
    let session = params.get("session").cloned().unwrap_or_default();
    Ok((sessions, SessionRef::new(query.tenant_id.as_deref().unwrap_or(TENANT), session)?))
}

/// Answers as hosts do.
async fn answered<T: Serialize + Send + 'static>(result: Result<T>) -> Response {
    let failed = |error: &Error| (StatusCode::INTERNAL_SERVER_ERROR, Json(serde_json::json!({"error": error.message()}))).into_response();
    match result {
        Ok(value) => json(StatusCode::OK, value).await.unwrap_or_else(|failed| failed.into_response()),
        // A caller without the right is refused as everywhere.
        Err(error) if error.kind() == treehold_core::error::ErrorKind::PermissionDenied => crate::problem::response(&error),
        Err(error) => failed(&error),
    }
}

async fn health() -> Response {
    Json(serde_json::json!({"status": "ok"})).into_response()
}

/// Answers whether sessions can be stored, as the readiness of the whole server is answered: a store that can only be read is not ready.
async fn ready(State(api): State<Arc<Api>>) -> Response {
    let error = api.readiness.probe(&api.store).await.err().map(|error| error.message().to_owned());
    let is_ready = error.is_none();
    let status = if is_ready { CheckStatus::Ok } else { CheckStatus::Fail };
    let checks = vec![ReadyCheck { name: "session_store".to_owned(), status, error }];
    let (status, code) = match is_ready {
        true => (ReadyStatus::Ready, StatusCode::OK),
        false => (ReadyStatus::NotReady, StatusCode::SERVICE_UNAVAILABLE),
    };
    (code, Json(Readiness { status, checks })).into_response()
}

async fn list(State(api): State<Arc<Api>>, Extension(caller): Extension<Caller>) -> Response {
    let read = async {
        let mut sessions = seen(&api, &caller)?.list_sessions().await?;
        // Hosts leave out counts of nothing.
        for session in &mut sessions {
            session.turns = session.turns.filter(|turns| *turns > 0);
            session.tokens = session.tokens.filter(|tokens| *tokens > 0);
        }
        // Newest first, as hosts list them.
        Ok(InspectedSessions { sessions, cursor: None })
    };
    answered(read.await).await
}

/// The messages of a session's window.
#[derive(Serialize)]
struct Messages {
    messages: Vec<treehold_sessions::Message>,
}

async fn messages(state: State<Arc<Api>>, caller: Extension<Caller>, path: Path<BTreeMap<String, String>>, query: RawQuery) -> Response {
    let read = async {
        let (sessions, session) = named((state, caller, path, query))?;
        Ok(Messages { messages: InspectorDataSource::load_messages(&sessions, &session).await? })
    };
    answered(read.await).await
}

/// The trace of a session, with the events of its orchestration.
#[derive(Serialize)]
struct Trace {
    events: Vec<Shown>,
}

/// An envelope of the trace.
#[derive(Serialize)]
#[serde(untagged)]
enum Shown {
    Stored(Envelope),
    Made(Made),
}

/// An envelope for an event of the orchestration.
#[derive(Serialize)]
struct Made {
    id: String,
    timestamp: String,
    sequence: usize,
    source: &'static str,
    event: Object,
}

impl Shown {
    /// Returns what envelopes are sorted by: their time, or after all times a text that is none, and their sequence.
    fn order(&self) -> (Result<Timestamp, String>, f64) {
        let (time, sequence) = match self {
            Self::Stored(envelope) => (&envelope.timestamp, envelope.sequence),
            Self::Made(made) => (&made.timestamp, made.sequence as f64),
        };
        (time.parse().map_err(|_| time.clone()), sequence)
    }
}

async fn trace(state: State<Arc<Api>>, caller: Extension<Caller>, path: Path<BTreeMap<String, String>>, query: RawQuery) -> Response {
    let read = async {
        let (sessions, session) = named((state, caller, path, query))?;
        let stored = sessions.load_trace_envelopes(&session).await?;
        let first = stored.len();
        let mut events: Vec<Shown> = stored.into_iter().map(Shown::Stored).collect();
        for (index, event) in sessions.load_orchestration_events(&session).await?.iter().enumerate() {
            let Some(shown) = shown(event)? else { continue };
            events.push(Shown::Made(Made {
                id: format!("orchestration-{}-{index}", event.event_id),
                timestamp: event.occurred_at.clone(),
                sequence: first + index,
                source: "orchestration",
                event: shown,
            }));
        }
        let mut ordered: Vec<_> = events.into_iter().map(|event| (event.order(), event)).collect();
        ordered.sort_by(|((time, sequence), _), ((other, next), _)| time.cmp(other).then(sequence.total_cmp(next)));
        Ok(Trace { events: ordered.into_iter().map(|(_, event)| event).collect() })
    };
    answered(read.await).await
}

/// A JSON object with its fields in order.
#[derive(Debug, Default, PartialEq)]
struct Object(Vec<(String, Raw)>);

impl Object {
    fn of(kind: &str) -> Result<Self> {
        Ok(Self(vec![("type".to_owned(), Raw::of(kind)?)]))
    }

    /// Adds a field, if there is a value.
    fn with(mut self, name: &str, value: Option<&Raw>) -> Self {
        self.0.extend(value.map(|value| (name.to_owned(), value.clone())));
        self
    }

    fn get(&self, name: &str) -> Option<&Raw> {
        self.0.iter().rfind(|(own, _)| own == name).map(|(_, value)| value)
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> serde::de::Visitor<'de> for Fields {
            type Value = Object;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Object(fields))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// Returns an event of an orchestration as an event of the trace; `None` for one that is not shown.
fn shown(event: &OrchestrationEvent) -> Result<Option<Object>> {
    let fields: Object = event.json().view()?;
    let of = |name: &str| fields.get(name);
    let within = |name: &str| of(name).and_then(|value| value.view::<Object>().ok()).unwrap_or_default();
    let kind: String = of("type").and_then(|kind| kind.view().ok()).unwrap_or_default();
    Ok(Some(match kind.as_str() {
        "run_started" => Object::of("orchestration_run_start")?.with("runId", of("runId")).with("initialTask", of("initialTask")),
        "agent_spawned" => {
            let mut agent = within("agent");
            agent.0.retain(|(name, _)| name != "createdAt");
            let agent = agent.with("createdAt", of("occurredAt"));
            Object::of("subagent_spawned")?.with("agent", Some(&Raw::of(&agent)?))
        }
        "agent_status_changed" => Object::of("subagent_status")?.with("agentId", of("agentId")).with("status", of("status")),
        "agent_job_started" => {
            Object::of("subagent_job_started")?.with("agentId", of("agentId")).with("jobId", of("jobId")).with("inputIds", of("inputIds"))
        }
        "agent_job_completed" => Object::of("subagent_job_completed")?.with("agentId", of("agentId")).with("job", of("job")),
        "agent_job_failed" => Object::of("subagent_job_failed")?.with("agentId", of("agentId")).with("job", of("job")),
        "agent_input_queued" => Object::of("subagent_message")?.with("agentId", within("input").get("agentId")).with("input", of("input")),
        "wait_registered" => Object::of("wait_registered")?.with("wait", of("wait")),
        "wait_resolved" => Object::of("wait_resolved")?.with("waitId", of("waitId")).with("resolution", of("resolution")),
        "agent_closed" => {
            let close = within("close");
            let closed = Object::of("subagent_closed")?.with("agentId", close.get("agentId")).with("reason", close.get("reason"));
            closed.with("finalStatus", Some(&Raw::of("closed")?))
        }
        "run_completed" => {
            Object::of("orchestration_run_complete")?.with("runId", of("runId")).with("status", of("status")).with("error", of("error"))
        }
        _ => return Ok(None),
    }))
}

/// The state of an orchestration.
#[derive(Serialize)]
struct Orchestration {
    run: Option<ShownRun>,
    agents: Vec<ShownAgent>,
    events: Vec<OrchestrationEvent>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownRun {
    id: String,
    status: RunStatus,
    created_at: String,
    updated_at: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownAgent {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    display_name: Option<String>,
    role: String,
    status: AgentStatus,
    created_at: String,
    updated_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    closed_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_job: Option<AgentJob>,
    mailbox: ShownMailbox,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownMailbox {
    processed_event_count: u64,
    close_requested: Option<Raw>,
}

async fn orchestration(
    state: State<Arc<Api>>,
    caller: Extension<Caller>,
    path: Path<BTreeMap<String, String>>,
    query: RawQuery,
) -> Response {
    let read = async {
        let (sessions, session) = named((state, caller, path, query))?;
        let state = sessions.load_orchestration_state(&session).await?;
        let events = sessions.load_orchestration_events(&session).await?;
        let stored = sessions.orchestration(session);
        let mut runs: Vec<Run> = state.snapshot.runs.into_values().collect();
        runs.sort_by(|a, b| a.created_at.cmp(&b.created_at));
        let running = runs.iter().position(|run| run.status == RunStatus::Running).unwrap_or(0);
        let run = runs.into_iter().nth(running).map(|run| ShownRun {
            id: run.id,
            status: run.status,
            created_at: run.created_at,
            updated_at: run.updated_at,
        });
        let mut ordered: Vec<Agent> = state.snapshot.agents.into_values().collect();
        ordered.sort_by(|a, b| a.created_at.cmp(&b.created_at));
        let mut agents = Vec::with_capacity(ordered.len());
        for agent in ordered {
            let mailbox = stored.load_mailbox_state(&agent.id).await?;
            let mailbox =
                ShownMailbox { processed_event_count: mailbox.processed_event_count, close_requested: mailbox.close_requested.clone() };
            agents.push(ShownAgent {
                id: agent.id,
                display_name: agent.display_name,
                role: agent.role,
                status: agent.status,
                created_at: agent.created_at,
                updated_at: agent.updated_at,
                closed_at: agent.closed_at,
                last_job: agent.last_job,
                mailbox,
            });
        }
        Ok(Orchestration { run, agents, events })
    };
    answered(read.await).await
}
