//! Turns and interrupts.
//!
//! A client that waits for a turn holds none of the slots for requests, as it uses nothing of the server. It holds one of the slots for event
//! streams, of which each user has a share. If the client goes away, its place in the queue is given up.

use super::super::Places;
use super::super::events::StreamSlot;
use super::super::exchange::{Answer, Asked, json, nothing};
use super::{At, named};
use crate::problem::Failed;
use crate::rights::Access;
use axum::http::{HeaderValue, StatusCode, header};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use treehold_agent_state::Json;
use treehold_agent_state::call::{Interrupt, InterruptSource, TurnAnswer, TurnRefusal, TurnRequest as Asking};
use treehold_core::error::{Error, ErrorKind, Result};

/// The longest time that a request waits for a turn.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// The largest message of an interrupt in bytes.
const MESSAGE_BYTES_MAX: usize = 256 << 10;

/// A request to stop the call that runs.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct InterruptRequest {
    /// What the person said: a text or a message, of at most 256 KiB.
    message: Option<Json>,
    /// Who interrupts. Default `user`.
    source: InterruptSource,
}

/// What an interrupt did.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct InterruptReply {
    /// Whether it hit a running call.
    hit: bool,
}

/// Interrupts the running call of a session.
pub(super) async fn interrupt(mut asked: Asked) -> Answer {
    let query: super::AgentQuery = asked.query()?;
    let at = asked.state(query.agent.as_deref(), Access::Write)?;
    let InterruptRequest { message, source } = asked.json().await?;
    if message.as_ref().is_some_and(|message| message.as_str().len() > MESSAGE_BYTES_MAX) {
        let message = format!("the message of an interrupt has over {MESSAGE_BYTES_MAX} bytes; shorten it");
        return Err(Error::new(ErrorKind::TooLarge, message).without_effect().into());
    }
    let interrupt = match source {
        InterruptSource::User => Interrupt::user(),
        InterruptSource::System => Interrupt::system(),
    };
    let hit = asked.api.turns.interrupt(&at.turn()?, interrupt.with_message(message)).await?;
    json(StatusCode::ACCEPTED, InterruptReply { hit }).await
}

/// A request for the turn of a session.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AcquireRequest {
    /// The agent. Default `default`.
    #[serde(default)]
    agent: Option<String>,
    /// The user; `null` is the anonymous one.
    #[serde(default)]
    user: Option<String>,
    /// The session.
    session: String,
    /// How long to wait, from 0 to 30,000 milliseconds. Default 0, which grants the turn at once or not at all.
    #[serde(default)]
    wait_ms: u64,
    /// Who takes the turn, for people who look at the queue, of at most 255 bytes.
    #[serde(default)]
    owner: Option<String>,
    /// The ticket of an earlier answer, which keeps its place in the queue.
    #[serde(default)]
    ticket: Option<String>,
}

/// A turn that was granted, with status 200, or a ticket to continue to wait with, with status 202.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct AcquireReply {
    /// The secret that renews and releases the turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    /// The fencing token, for saves.
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    /// When the turn ends unless it is renewed, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<i64>,
    /// The ticket, which keeps its place in the queue for a moment. Ask again with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    ticket: Option<String>,
}

/// Waits for the turn of a session.
pub(super) async fn acquire(mut asked: Asked) -> Answer {
    asked.caller.rights.need_sessions(Access::Write)?;
    let request: AcquireRequest = asked.json().await?;
    let at = asked.turn_of(request.agent.as_deref(), request.user.as_deref(), &request.session)?;
    let wait = Duration::from_millis(request.wait_ms);
    if wait > WAIT_MAX {
        let message = format!("`wait_ms` is {}, and a request waits for at most {} ms", request.wait_ms, WAIT_MAX.as_millis());
        return Err(Error::invalid_argument(message).without_effect().into());
    }
    let _slot = match wait.is_zero() {
        true => None,
        false => Some(StreamSlot::take(&asked)?),
    };
    if let Some(places) = asked.head.extensions.get::<Places>().filter(|_| !wait.is_zero()) {
        places.give_back();
    }
    let mut stopping = asked.api.stopping.subscribe();
    // Less than the deadline of the request, so that the client gets its ticket.
    let wait = wait.min(asked.api.limits.deadline / 2);
    let key = at.turn()?;
    let asking = Asking::new(request.owner.unwrap_or_default()).with_wait(wait).with_ticket(request.ticket).with_try(wait.is_zero());
    let answered = tokio::select! {
        answered = asked.api.turns.request(&key, asking) => answered,
        _ = stopping.wait_for(|is_stopping| *is_stopping) => {
            Err(Error::new(ErrorKind::Unavailable, "the server is stopping; ask again").without_effect())
        }
    };
    match answered {
        Ok(TurnAnswer::Granted(turn)) => {
            let expires_at = Some(turn.expires_at.as_millisecond());
            let reply = AcquireReply { token: Some(turn.token), fence: Some(turn.fence), expires_at, ticket: None };
            json(StatusCode::OK, reply).await
        }
        Ok(TurnAnswer::Waiting { ticket }) => {
            json(StatusCode::ACCEPTED, AcquireReply { ticket: Some(ticket), ..AcquireReply::default() }).await
        }
        Err(error) if error.kind() == ErrorKind::Unavailable && TurnRefusal::of(&error) == Some(TurnRefusal::Busy) => {
            let mut response = Failed::with_status(error, StatusCode::CONFLICT).into_response();
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            Ok(response)
        }
        Err(error) => Err(error.into()),
    }
}

/// A turn.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TurnRequest {
    /// The agent. Default `default`.
    #[serde(default)]
    agent: Option<String>,
    /// The user; `null` is the anonymous one.
    #[serde(default)]
    user: Option<String>,
    /// The session.
    session: String,
    /// The token of the turn.
    token: String,
}

/// A turn that was renewed.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RenewReply {
    /// When the turn ends unless it is renewed again, in milliseconds since 1970.
    expires_at: i64,
    /// The interrupt of the turn, if there is one.
    interrupt: Option<InterruptRecord>,
}

/// An interrupt of a turn.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Interrupt")]
struct InterruptRecord {
    /// What the person said.
    message: Option<Json>,
    /// Who interrupted.
    source: InterruptSource,
}

/// Renews a turn.
pub(super) async fn renew(mut asked: Asked) -> Answer {
    asked.caller.rights.need_sessions(Access::Write)?;
    let request: TurnRequest = asked.json().await?;
    let at = asked.turn_of(request.agent.as_deref(), request.user.as_deref(), &request.session)?;
    let renewed = asked.api.turns.renew(&at.turn()?, &request.token).await?;
    let interrupt = renewed.interrupt.map(|interrupt| InterruptRecord { message: interrupt.message, source: interrupt.source });
    json(StatusCode::OK, RenewReply { expires_at: renewed.expires_at.as_millisecond(), interrupt }).await
}

/// Ends a turn.
pub(super) async fn release(mut asked: Asked) -> Answer {
    asked.caller.rights.need_sessions(Access::Write)?;
    let request: TurnRequest = asked.json().await?;
    let at = asked.turn_of(request.agent.as_deref(), request.user.as_deref(), &request.session)?;
    asked.api.turns.end(&at.turn()?, &request.token).await?;
    Ok(nothing(StatusCode::NO_CONTENT))
}

impl Asked {
    /// Returns the session whose turn a body is about.
    fn turn_of(&self, agent: Option<&str>, user: Option<&str>, session: &str) -> Result<At> {
        self.slot_of(named(user), session, agent, Access::Write)
    }
}
