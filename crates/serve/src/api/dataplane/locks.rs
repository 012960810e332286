//! Locks with an owner token and a fencing token.

use super::super::exchange::{Answer, Asked, json, nothing};
use super::{AgentQuery, conflict, not_found};
use crate::rights::Access;
use axum::http::StatusCode;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use treehold_agent_state::locks::{LOCK_TTL, LockHolder, LockOptions, Locks};
use treehold_core::error::ErrorKind;

/// A lock that a request is about.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LockRequest {
    /// The agent.
    agent_name: Option<String>,
    /// The namespace of the agent. Default `default`.
    namespace: Option<String>,
    /// The name of the lock.
    name: String,
    /// How long it is held unless it is renewed, at most a day. Default 60.
    ttl_seconds: Option<i64>,
    /// Who acquires it, for those who find it held.
    holder: Option<String>,
    /// The token of the owner, to renew or release the lock.
    owner_token: Option<String>,
}

impl LockRequest {
    fn time_to_live(&self) -> Duration {
        match self.ttl_seconds.map(u64::try_from) {
            Some(Ok(seconds)) if seconds > 0 => Duration::from_secs(seconds),
            _ => LOCK_TTL,
        }
    }
}

/// A lock that the caller holds.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct LockReply {
    /// The name.
    name: String,
    /// What proves that the caller holds it.
    owner_token: String,
    /// A number that is greater than that of every earlier holder.
    fencing_token: u64,
    /// Who holds it.
    holder: String,
    /// When it ends unless it is renewed.
    expires_at: Timestamp,
}

/// The answer about a lock that another caller holds.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Held {
    error: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Timestamp>,
}

/// When a renewed lock ends.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RenewedLock {
    /// When it ends unless it is renewed.
    expires_at: Timestamp,
}

/// Who holds a lock.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct HolderReply {
    /// The name.
    name: String,
    /// A number that is greater than that of every earlier holder.
    fencing_token: u64,
    /// Who holds it.
    holder: String,
    /// When it ends unless it is renewed.
    expires_at: Timestamp,
}

async fn named(asked: &mut Asked) -> Result<(LockRequest, Locks), crate::problem::Failed> {
    let request: LockRequest = asked.json().await?;
    let (store, owner) = asked.bundle(AgentQuery::new(&request.agent_name, &request.namespace), Access::Write)?;
    Ok((request, Locks::new(store, owner)))
}

pub(super) async fn acquire(mut asked: Asked) -> Answer {
    let (request, locks) = named(&mut asked).await?;
    let options = LockOptions::new().with_time_to_live(request.time_to_live()).with_holder(request.holder.unwrap_or_default());
    match locks.acquire(&request.name, &options).await {
        Ok(lock) => {
            let (name, owner_token, fencing_token) = (lock.name, lock.owner_token, lock.fencing_token);
            json(StatusCode::OK, LockReply { name, owner_token, fencing_token, holder: lock.holder, expires_at: lock.expires_at }).await
        }
        Err(error) if error.kind() == ErrorKind::Conflict => {
            let held = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<LockHolder>());
            let (holder, expires_at) = (held.map(|held| held.holder.clone()), held.map(|held| held.expires_at));
            conflict(Held { error: "conflict", holder, expires_at }).await
        }
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn renew(mut asked: Asked) -> Answer {
    let (request, locks) = named(&mut asked).await?;
    match locks.renew(&request.name, request.owner_token.as_deref().unwrap_or_default(), request.time_to_live()).await {
        Ok(lock) => json(StatusCode::OK, RenewedLock { expires_at: lock.expires_at }).await,
        Err(error) if error.kind() == ErrorKind::Conflict => conflict(Held { error: "conflict", holder: None, expires_at: None }).await,
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn release(mut asked: Asked) -> Answer {
    let (request, locks) = named(&mut asked).await?;
    locks.release(&request.name, request.owner_token.as_deref().unwrap_or_default()).await?;
    Ok(nothing(StatusCode::NO_CONTENT))
}

/// Identifies a lock.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LockQuery {
    /// The agent.
    agent_name: Option<String>,
    /// The namespace of the agent. Default `default`.
    namespace: Option<String>,
    /// The name of the lock.
    name: String,
}

pub(super) async fn peek(asked: Asked) -> Answer {
    let query: LockQuery = asked.query()?;
    let (store, owner) = asked.bundle_of_query(Access::Read)?;
    let held = Locks::new(store, owner).peek(&query.name).await?;
    let LockHolder { name, fencing_token, holder, expires_at, .. } = held.ok_or_else(|| not_found("the lock is not held"))?;
    json(StatusCode::OK, HolderReply { name, fencing_token, holder, expires_at }).await
}
