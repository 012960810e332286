//! Queues and logs of messages.

use super::super::exchange::{Answer, Asked, json, nothing};
use super::{AgentQuery, count};
use crate::problem::Failed;
use crate::rights::Access;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use treehold_agent_state::Json;
use treehold_agent_state::bus::{BusEntry, ENTRIES_MAX, EntryId, MessageBus};

/// A queue or log, and what to do with it.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct BusRequest {
    /// The agent.
    agent_name: Option<String>,
    /// The namespace of the agent. Default `default`.
    namespace: Option<String>,
    /// The key of the queue or log.
    key: String,
    /// What to send, a JSON object of at most 1 MiB. Default `{}`.
    payload: Option<Json>,
    /// The most entries to drain. Default 10, at most 1,000.
    max_count: Option<i64>,
    /// About how many entries the log keeps, at most 100,000. Default all.
    max_len: Option<i64>,
}

impl BusRequest {
    fn payload(&self) -> Result<Json, Failed> {
        match &self.payload {
            Some(payload) if payload.as_str() != "null" => Ok(payload.clone()),
            _ => Ok(Json::parse("{}")?),
        }
    }
}

/// The id of a new entry.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct EntryAdded {
    /// The id; later entries have greater ones.
    entry_id: String,
}

impl From<EntryId> for EntryAdded {
    fn from(id: EntryId) -> Self {
        Self { entry_id: id.to_string() }
    }
}

/// Entries in order.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct BusEntries {
    /// The entries.
    entries: Vec<BusEntryReply>,
}

/// An entry.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct BusEntryReply {
    /// Its id.
    entry_id: String,
    /// What was sent.
    payload: Json,
}

impl From<Vec<BusEntry>> for BusEntries {
    fn from(entries: Vec<BusEntry>) -> Self {
        let reply = |entry: BusEntry| BusEntryReply { entry_id: entry.id.to_string(), payload: entry.payload };
        Self { entries: entries.into_iter().map(reply).collect() }
    }
}

/// Whether a queue has entries.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct BusPeek {
    /// Whether it has one.
    exists: bool,
}

async fn named(asked: &mut Asked) -> Result<(BusRequest, MessageBus), Failed> {
    let request: BusRequest = asked.json().await?;
    let (store, owner) = asked.bundle(AgentQuery::new(&request.agent_name, &request.namespace), Access::Write)?;
    Ok((request, MessageBus::new(store, owner)))
}

pub(super) async fn push(mut asked: Asked) -> Answer {
    let (request, bus) = named(&mut asked).await?;
    let id = bus.queue_push(&request.key, &request.payload()?).await?;
    json(StatusCode::OK, EntryAdded::from(id)).await
}

pub(super) async fn drain(mut asked: Asked) -> Answer {
    let (request, bus) = named(&mut asked).await?;
    // The entries are gone once they were drained, so the answer gets its slot first.
    asked.api.hold_answer(&asked.caller).await?;
    let entries = bus.queue_drain(&request.key, count(request.max_count, 10, ENTRIES_MAX)).await?;
    json(StatusCode::OK, BusEntries::from(entries)).await
}

pub(super) async fn delete(mut asked: Asked) -> Answer {
    let (request, bus) = named(&mut asked).await?;
    bus.queue_delete(&request.key).await?;
    Ok(nothing(StatusCode::NO_CONTENT))
}

pub(super) async fn append(mut asked: Asked) -> Answer {
    let (request, bus) = named(&mut asked).await?;
    let len_max = request.max_len.filter(|max| *max > 0).map(|max| usize::try_from(max).unwrap_or(usize::MAX));
    let id = bus.log_append(&request.key, &request.payload()?, len_max).await?;
    json(StatusCode::OK, EntryAdded::from(id)).await
}

pub(super) async fn trim(mut asked: Asked) -> Answer {
    let (request, bus) = named(&mut asked).await?;
    bus.log_trim(&request.key).await?;
    Ok(nothing(StatusCode::NO_CONTENT))
}

/// Identifies a queue.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct QueueQuery {
    /// The agent.
    agent_name: Option<String>,
    /// The namespace of the agent. Default `default`.
    namespace: Option<String>,
    /// The key of the queue.
    key: String,
}

pub(super) async fn peek(asked: Asked) -> Answer {
    let query: QueueQuery = asked.query()?;
    let (store, owner) = asked.bundle_of_query(Access::Read)?;
    let exists = MessageBus::new(store, owner).queue_peek(&query.key).await?;
    json(StatusCode::OK, BusPeek { exists }).await
}

/// Which entries of a log to read.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LogQuery {
    /// The agent.
    agent_name: Option<String>,
    /// The namespace of the agent. Default `default`.
    namespace: Option<String>,
    /// The key of the log.
    key: String,
    /// The id of the last entry that was read. Default from the beginning.
    since: Option<String>,
    /// The most entries. Default 50, at most 1,000.
    max_count: Option<i64>,
}

pub(super) async fn read(asked: Asked) -> Answer {
    let query: LogQuery = asked.query()?;
    let (store, owner) = asked.bundle_of_query(Access::Read)?;
    let since = query.since.as_deref().filter(|since| !since.is_empty()).map(str::parse).transpose()?;
    let entries = MessageBus::new(store, owner).log_read(&query.key, since, count(query.max_count, 50, ENTRIES_MAX)).await?;
    json(StatusCode::OK, BusEntries::from(entries)).await
}
