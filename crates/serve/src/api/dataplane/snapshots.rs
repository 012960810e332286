//! Snapshots of sandboxes.

use super::super::exchange::{Answer, Asked, json, nothing};
use super::{AgentQuery, not_found};
use crate::rights::Access;
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use schemars::JsonSchema;
use serde::Serialize;
use treehold_agent_state::bundle::Snapshots;
use treehold_core::error::Result;

/// Where the bytes of a snapshot are stored.
const INLINE: &str = "inline";

/// A snapshot that was stored.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct SnapshotStored {
    /// Its length in bytes.
    size_bytes: u64,
    /// Where its bytes are: always `inline`, in this server's store.
    storage_mode: &'static str,
}

/// How to upload a snapshot.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct UploadTarget {
    /// Always `inline`: put it to this server.
    mode: &'static str,
}

fn snapshots(asked: &Asked, access: Access) -> Result<Snapshots> {
    let (store, owner) = asked.bundle_of_query(access)?;
    Ok(Snapshots::new(store, owner))
}

pub(super) async fn put(mut asked: Asked) -> Answer {
    let snapshots = snapshots(&asked, Access::Write)?;
    let body = asked.body().await?;
    let stored = snapshots.put(asked.param("id"), body).await?;
    json(StatusCode::CREATED, SnapshotStored { size_bytes: stored.size_bytes, storage_mode: INLINE }).await
}

pub(super) async fn get(asked: Asked) -> Answer {
    let bytes = snapshots(&asked, Access::Read)?.get(asked.param("id")).await?;
    let mut response = Response::new(Body::from(bytes.ok_or_else(|| not_found("there is no such snapshot"))?));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

pub(super) async fn head(asked: Asked) -> Answer {
    let found = snapshots(&asked, Access::Read)?.info(asked.param("id")).await?;
    found.ok_or_else(|| not_found("there is no such snapshot"))?;
    Ok(nothing(StatusCode::OK))
}

pub(super) async fn upload_target(mut asked: Asked) -> Answer {
    let body: AgentQuery = asked.json().await?;
    asked.bundle(body, Access::Read)?;
    json(StatusCode::OK, UploadTarget { mode: INLINE }).await
}
