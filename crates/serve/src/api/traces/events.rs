//! The events of a trace, in pages.

use super::super::exchange::{Answer, Asked, json};
use super::page;
use crate::rights::Access;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use treehold_traces::{OtherFields, PAGE_MAX};

/// How many events a page has by default.
const EVENTS: usize = 100;

/// Which events to list.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ListQuery {
    /// Only events with a greater id. Default 0, for all.
    since_event_id: u64,
    /// The most events. Default 100, at most 1,000.
    limit: Option<usize>,
}

pub(super) async fn list(asked: Asked) -> Answer {
    let ListQuery { since_event_id, limit } = asked.query()?;
    let limit = page(limit, EVENTS, PAGE_MAX)?;
    let at = asked.trace(Access::Read)?;
    json(StatusCode::OK, at.store.get_events(&at.trace, since_event_id, limit).await?).await
}

/// An event to append.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct NewEvent {
    /// The kind.
    event: String,
    /// What it tells.
    #[serde(flatten)]
    data: OtherFields,
}

/// An event that was appended.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct EventAdded {
    /// Its id.
    event_id: u64,
}

pub(super) async fn append(mut asked: Asked) -> Answer {
    let at = asked.trace(Access::Write)?;
    let NewEvent { event, data } = asked.fields().await?;
    let event_id = at.store.append_event(&at.trace, &event, data).await?;
    json(StatusCode::CREATED, EventAdded { event_id }).await
}
