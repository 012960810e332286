//! Tasks that an agent gave to other agents.

use super::super::exchange::{Answer, Asked, json, nothing};
use super::{AgentQuery, not_found};
use crate::problem::Failed;
use crate::rights::Access;
use axum::http::StatusCode;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use treehold_agent_state::bundle::{TASKS_PAGE_MAX, TaskRecord, TaskReference, TaskRepository, TaskStatus, TaskUpdate};
use treehold_core::error::Result;

/// How many pages of tasks one answer looks through.
const PAGES_MAX: usize = 10;

/// The state of a task.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PutTask {
    /// The agent that gave it.
    agent_name: Option<String>,
    /// The namespace of the agent. Default `default`.
    namespace: Option<String>,
    /// The session that gave it.
    parent_session_id: Option<String>,
    /// The agent that runs it.
    sub_agent_id: Option<String>,
    /// The session in which it runs.
    sub_session_id: Option<String>,
    /// Its state. Default `PENDING`.
    status: Option<TaskStatus>,
    /// Its result.
    result: Option<String>,
    /// Why it failed.
    error_message: Option<String>,
    /// Whether it is to be cancelled. A request is never withdrawn.
    cancel_requested: Option<bool>,
    /// How its agent is reached.
    transport_type: Option<String>,
    /// The address of the agent.
    remote_base_url: Option<String>,
    /// Headers of requests to the agent.
    remote_headers: Option<BTreeMap<String, String>>,
    /// The user for whom it runs.
    user_id: Option<String>,
    /// When its agent was last asked.
    last_checked_at: Option<Timestamp>,
}

/// Identifies a task, or the tasks of a session.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct TaskQuery {
    /// The agent that gave it.
    agent_name: Option<String>,
    /// The namespace of the agent. Default `default`.
    namespace: Option<String>,
    /// The session that gave it.
    parent_session_id: Option<String>,
    /// Only tasks in this state. Default all.
    status: Option<TaskStatus>,
    /// Where the previous page ended: its `next`.
    after: Option<String>,
}

/// Tasks of a session.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Tasks {
    /// The tasks, oldest first.
    tasks: Vec<TaskRecord>,
    /// The `after` of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Whether this request was the first to record a delivery.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Delivered {
    /// Whether it was the first.
    written: bool,
}

/// Tasks that still run.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Heartbeat {
    /// The agent that gave them.
    agent_name: Option<String>,
    /// The namespace of the agent. Default `default`.
    namespace: Option<String>,
    /// The tasks, at most 1,000.
    tasks: Vec<TaskReference>,
}

/// The tasks of an agent, and the session that a request names, in its body or else in the query.
fn of_session(asked: &Asked, body: AgentQuery, session: Option<String>, access: Access) -> Result<(TaskRepository, String)> {
    let (store, owner) = asked.bundle(body, access)?;
    let query: TaskQuery = asked.query()?;
    let session = session.filter(|session| !session.is_empty()).or(query.parent_session_id).unwrap_or_default();
    Ok((TaskRepository::new(store, owner), session))
}

pub(super) async fn put(mut asked: Asked) -> Answer {
    let body: PutTask = asked.json().await?;
    let agent = AgentQuery::new(&body.agent_name, &body.namespace);
    let (tasks, session) = of_session(&asked, agent, body.parent_session_id, Access::Write)?;
    let update = TaskUpdate {
        sub_agent_id: body.sub_agent_id.unwrap_or_default(),
        sub_session_id: body.sub_session_id.unwrap_or_default(),
        status: body.status.unwrap_or_default(),
        result: body.result.unwrap_or_default(),
        error_message: body.error_message.unwrap_or_default(),
        cancel_requested: body.cancel_requested.unwrap_or_default(),
        transport_type: body.transport_type.unwrap_or_default(),
        remote_base_url: body.remote_base_url.unwrap_or_default(),
        remote_headers: body.remote_headers,
        user_id: body.user_id.unwrap_or_default(),
        last_checked_at: body.last_checked_at,
    };
    json(StatusCode::OK, tasks.upsert(&session, asked.param("id"), &update).await?).await
}

pub(super) async fn get(asked: Asked) -> Answer {
    let (tasks, session) = of_session(&asked, AgentQuery::default(), None, Access::Read)?;
    let task = tasks.get(&session, asked.param("id")).await?;
    json(StatusCode::OK, task.ok_or_else(|| not_found("there is no such task in this session"))?).await
}

pub(super) async fn list(asked: Asked) -> Answer {
    let query: TaskQuery = asked.query()?;
    let (tasks, session) = of_session(&asked, AgentQuery::default(), None, Access::Read)?;
    gather(&tasks, &session, Asks::For(query.status), query.after).await
}

pub(super) async fn pending(asked: Asked) -> Answer {
    let query: TaskQuery = asked.query()?;
    let (tasks, session) = of_session(&asked, AgentQuery::default(), None, Access::Read)?;
    gather(&tasks, &session, Asks::ForPending, query.after).await
}

/// Which tasks a request asks for.
#[derive(Debug, Clone, Copy)]
enum Asks {
    /// Those in a state, or all.
    For(Option<TaskStatus>),
    /// Those whose results are to be delivered.
    ForPending,
}

/// Collects pages until there are tasks for an answer.
async fn gather(tasks: &TaskRepository, session: &str, asks: Asks, mut after: Option<String>) -> Answer {
    let mut found = Vec::new();
    for _ in 0..PAGES_MAX {
        let page = match asks {
            Asks::For(status) => tasks.list(session, status, after.as_deref(), TASKS_PAGE_MAX).await?,
            Asks::ForPending => tasks.pending_deliveries(session, after.as_deref(), TASKS_PAGE_MAX).await?,
        };
        found.extend(page.tasks);
        after = page.next;
        if after.is_none() || !found.is_empty() {
            break;
        }
    }
    found.sort_by_key(|task: &TaskRecord| task.created_at);
    json(StatusCode::OK, Tasks { tasks: found, next: after }).await
}

pub(super) async fn heartbeat(mut asked: Asked) -> Answer {
    let body: Heartbeat = asked.json().await?;
    let (store, owner) = asked.bundle(AgentQuery::new(&body.agent_name, &body.namespace), Access::Write)?;
    TaskRepository::new(store, owner).heartbeat(&body.tasks).await?;
    Ok(nothing(StatusCode::NO_CONTENT))
}

/// Reads the body of a request about one task.
async fn one(asked: &mut Asked) -> Result<(TaskRepository, String), Failed> {
    let body: TaskQuery = asked.json().await?;
    Ok(of_session(asked, AgentQuery::new(&body.agent_name, &body.namespace), body.parent_session_id, Access::Write)?)
}

pub(super) async fn cancel(mut asked: Asked) -> Answer {
    let (tasks, session) = one(&mut asked).await?;
    tasks.request_cancel(&session, asked.param("id")).await?;
    Ok(nothing(StatusCode::NO_CONTENT))
}

pub(super) async fn delivered(mut asked: Asked) -> Answer {
    let (tasks, session) = one(&mut asked).await?;
    let written = tasks.mark_delivered(&session, asked.param("id")).await?;
    json(StatusCode::OK, Delivered { written }).await
}

pub(super) async fn delete(asked: Asked) -> Answer {
    let (tasks, session) = of_session(&asked, AgentQuery::default(), None, Access::Write)?;
    if !tasks.delete(&session, asked.param("id")).await? {
        return Err(not_found("there is no such task in this session").into());
    }
    Ok(nothing(StatusCode::NO_CONTENT))
}
