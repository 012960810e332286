//! Traces without their messages.

use super::super::exchange::{Answer, Asked, json, nothing};
use super::{absent, page};
use crate::rights::Access;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use treehold_traces::{GoalTree, NewTrace, Trace, TraceMode, TraceStatus, TraceUpdate, TracesQuery};

/// How many traces a page has by default, and at most.
const TRACES: usize = 50;
const TRACES_MAX: usize = 100;

/// Which traces to list.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ListQuery {
    /// Only traces with this status.
    status: Option<TraceStatus>,
    /// Only traces of this mode.
    mode: Option<TraceMode>,
    /// The most traces. Default 50, at most 100.
    limit: Option<usize>,
    /// Where the previous page ended: its `next`.
    cursor: Option<String>,
}

pub(super) async fn list(asked: Asked) -> Answer {
    let ListQuery { status, mode, limit, cursor } = asked.query()?;
    let mut query = TracesQuery::default();
    (query.status, query.mode, query.cursor) = (status, mode, cursor);
    query.limit = page(limit, TRACES, TRACES_MAX)?;
    json(StatusCode::OK, asked.traces(Access::Read)?.list_traces(&query).await?).await
}

pub(super) async fn create(mut asked: Asked) -> Answer {
    let store = asked.traces(Access::Write)?;
    let trace: NewTrace = asked.fields().await?;
    json(StatusCode::CREATED, store.create_trace(trace).await?).await
}

/// A trace with its goals.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TraceWithGoals {
    #[serde(flatten)]
    trace: Trace,
    /// The goals.
    goal_tree: GoalTree,
}

pub(super) async fn get(asked: Asked) -> Answer {
    let at = asked.trace(Access::Read)?;
    let mut trace = at.found().await?;
    let goal_tree = at.store.get_goal_tree(&at.trace).await?;
    trace.other.remove("goal_tree");
    json(StatusCode::OK, TraceWithGoals { trace, goal_tree }).await
}

pub(super) async fn update(mut asked: Asked) -> Answer {
    let at = asked.trace(Access::Write)?;
    let update: TraceUpdate = asked.fields().await?;
    json(StatusCode::OK, at.store.update_trace(&at.trace, update).await?).await
}

pub(super) async fn delete(asked: Asked) -> Answer {
    let at = asked.trace(Access::Admin)?;
    match at.store.delete_trace(&at.trace).await? {
        true => Ok(nothing(StatusCode::NO_CONTENT)),
        false => Err(absent(&at.trace).into()),
    }
}
