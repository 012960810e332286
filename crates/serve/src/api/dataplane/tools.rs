//! Tool calls that run in the background.

use super::super::exchange::{Answer, Asked, json, nothing};
use super::AgentQuery;
use crate::rights::Access;
use axum::http::StatusCode;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use treehold_agent_state::bundle::{AsyncToolRecord, AsyncToolRegistry, AsyncToolStatus, STALE_TOOLS_MAX};

/// A run to register.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RegisterTool {
    /// The agent.
    agent_name: Option<String>,
    /// The namespace of the agent. Default `default`.
    namespace: Option<String>,
    /// The id of the run.
    id: String,
    /// The session that called the tool.
    session_id: String,
    /// The tool.
    tool_name: Option<String>,
    /// The id of the tool call in the conversation.
    tool_call_id: Option<String>,
    /// What became of the run. Default `RUNNING`.
    status: Option<AsyncToolStatus>,
    /// Its result.
    result: Option<String>,
    /// Why it failed.
    error: Option<String>,
    /// When it started. Default now.
    created_at: Option<Timestamp>,
}

/// A registered run.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ToolRegistered {
    /// Its id.
    id: String,
}

pub(super) async fn register(mut asked: Asked) -> Answer {
    let body: RegisterTool = asked.json().await?;
    let (store, owner) = asked.bundle(AgentQuery::new(&body.agent_name, &body.namespace), Access::Write)?;
    let (tool, call) = (body.tool_name.unwrap_or_default(), body.tool_call_id.unwrap_or_default());
    let (status, result) = (body.status.unwrap_or(AsyncToolStatus::Running), body.result.unwrap_or_default());
    let mut record =
        AsyncToolRecord::new(&*body.id, body.session_id, tool, call).with_status(status, result, body.error.unwrap_or_default());
    if let Some(created_at) = body.created_at {
        record = record.with_created_at(created_at);
    }
    AsyncToolRegistry::new(store, owner).register(&record).await?;
    json(StatusCode::OK, ToolRegistered { id: body.id }).await
}

/// How a run ended.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct EndTool {
    /// The agent.
    agent_name: Option<String>,
    /// The namespace of the agent. Default `default`.
    namespace: Option<String>,
    /// Its result, if it completed.
    result: Option<String>,
    /// Why it failed, if it did.
    error: Option<String>,
}

pub(super) async fn complete(asked: Asked) -> Answer {
    end(asked, AsyncToolStatus::Completed).await
}

pub(super) async fn fail(asked: Asked) -> Answer {
    end(asked, AsyncToolStatus::Failed).await
}

pub(super) async fn timeout(asked: Asked) -> Answer {
    end(asked, AsyncToolStatus::Timeout).await
}

async fn end(mut asked: Asked, status: AsyncToolStatus) -> Answer {
    let body: EndTool = asked.json().await?;
    let (store, owner) = asked.bundle(AgentQuery::new(&body.agent_name, &body.namespace), Access::Write)?;
    let (registry, id) = (AsyncToolRegistry::new(store, owner), asked.param("id"));
    match status {
        AsyncToolStatus::Completed => registry.complete(id, &body.result.unwrap_or_default()).await?,
        AsyncToolStatus::Failed => registry.fail(id, &body.error.unwrap_or_default()).await?,
        AsyncToolStatus::Timeout | AsyncToolStatus::Running => registry.mark_timeout(id).await?,
    };
    Ok(nothing(StatusCode::NO_CONTENT))
}

/// Which runs to find.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct StaleQuery {
    /// The agent.
    agent_name: Option<String>,
    /// The namespace of the agent. Default `default`.
    namespace: Option<String>,
    /// The session that called the tools.
    session_id: String,
    /// How long ago they started at least. Default 0.
    ttl_seconds: Option<i64>,
}

/// Runs that have not ended.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct StaleTools {
    /// The runs.
    records: Vec<AsyncToolRecord>,
}

pub(super) async fn stale(asked: Asked) -> Answer {
    let query: StaleQuery = asked.query()?;
    let (store, owner) = asked.bundle_of_query(Access::Read)?;
    let age = Duration::from_secs(query.ttl_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(0));
    let records = AsyncToolRegistry::new(store, owner).find_stale(&query.session_id, age, STALE_TOOLS_MAX).await?;
    json(StatusCode::OK, StaleTools { records }).await
}
