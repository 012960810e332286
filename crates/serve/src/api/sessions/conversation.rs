//! Sessions, their messages and turns.

use super::super::exchange::{Answer, Asked, json, nothing};
use super::{Own, absent, keys, page};
use crate::etag::{self, Tags};
use crate::problem::Failed;
use crate::rights::Access;
use axum::http::{StatusCode, header};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_sessions::{AppendOptions, Json, Message, MessagesView, SessionMeta, SessionWindow, Usage};

/// How many messages a request without a limit returns.
const MESSAGES: usize = 50;

/// A page of sessions.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SessionsQuery {
    /// The most sessions. Default 100.
    limit: Option<usize>,
    /// Where the previous page ended: its `cursor`.
    cursor: Option<String>,
}

/// Sessions of a user.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SessionsReply {
    /// The sessions, newest first.
    sessions: Vec<SessionMeta>,
    /// The cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

pub(super) async fn list(asked: Asked) -> Answer {
    let query: SessionsQuery = asked.query()?;
    let limit = page(query.limit, 100)?;
    let Own { sessions, tenant, user } = asked.own(Access::Read)?;
    let page = sessions.list(&tenant, &user, limit, query.cursor.as_deref()).await?;
    json(StatusCode::OK, SessionsReply { sessions: page.sessions, cursor: page.next }).await
}

/// The session to find or create.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OpenSession {
    /// The agent that the user talks to. An existing session keeps its own.
    agent_id: String,
    /// The id. A new random one if absent.
    #[serde(default)]
    session_id: Option<String>,
}

/// A session that was found or created.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct OpenedSession {
    /// The id.
    session_id: String,
    /// The session with its tenant, as one opaque text.
    session_ref: String,
}

pub(super) async fn open(mut asked: Asked) -> Answer {
    let Own { sessions, tenant, user } = asked.own(Access::Write)?;
    let OpenSession { agent_id, session_id } = asked.json().await?;
    let handle = sessions.get_or_create(&tenant, &user, &agent_id, session_id.as_deref()).await?;
    let status = if handle.created { StatusCode::CREATED } else { StatusCode::OK };
    json(status, OpenedSession { session_id: handle.session_id, session_ref: handle.session_ref.to_string() }).await
}

pub(super) async fn describe(asked: Asked) -> Answer {
    let at = asked.named(Access::Read)?;
    let known = Tags::of(&asked.head.headers, &header::IF_NONE_MATCH, true)?;
    let found = at.sessions.describe(at.tenant(), at.id()).await?.ok_or_else(|| absent(at.id()))?;
    let tag = etag::header(found.version);
    let mut response = match known.is_some_and(|known| known.holds(found.version)) {
        true => nothing(StatusCode::NOT_MODIFIED),
        false => json(StatusCode::OK, found).await?,
    };
    response.headers_mut().insert(header::ETAG, tag);
    Ok(response)
}

/// What to change about a session.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangeSession {
    /// The new title; `null` removes it.
    #[serde(deserialize_with = "Option::deserialize")]
    title: Option<String>,
}

pub(super) async fn change(mut asked: Asked) -> Answer {
    let at = asked.at(Access::Write).await?;
    let expected = match Tags::of(&asked.head.headers, &header::IF_MATCH, false)? {
        // The session exists, so any version is its own.
        None | Some(Tags::Any) => None,
        Some(Tags::Versions(versions)) => Some(versions),
    };
    let ChangeSession { title } = asked.json().await?;
    let changed = at.sessions.set_title_if(at.tenant(), at.id(), title.as_deref(), expected.as_deref()).await;
    changed.map_err(|error| match error.kind() {
        ErrorKind::Conflict if expected.is_some() => Failed::precondition(error),
        _ => error.into(),
    })?;
    Ok(nothing(StatusCode::NO_CONTENT))
}

pub(super) async fn delete(asked: Asked) -> Answer {
    let at = asked.named(Access::Admin)?;
    at.sessions.delete(at.tenant(), at.id()).await?;
    Ok(nothing(StatusCode::NO_CONTENT))
}

/// Which messages to read: those of one of `budget_tokens`, `full`, `archive` and `from`, or the newest.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct MessagesQuery {
    /// The most messages, from 1 to 1,000, or `all` for the whole window. Default 50.
    limit: Option<String>,
    /// The longest tail of the window within so many tokens that separates no tool result from its call.
    budget_tokens: Option<u64>,
    /// Whether to return every message, with each summary replaced by what it summarises.
    full: Option<bool>,
    /// The messages of this archive, or of the newest with `latest`; `limit` counts from the first.
    archive: Option<String>,
    /// A page of the log from this position on.
    from: Option<u64>,
}

impl MessagesQuery {
    fn limit(&self) -> Result<Option<usize>> {
        let invalid = || Error::invalid_argument("`limit` is neither a number between 1 and 1000 nor `all`");
        match self.limit.as_deref() {
            None => Ok(Some(MESSAGES)),
            Some("all") => Ok(None),
            Some(number) => page(Some(number.parse().map_err(|_| invalid())?), MESSAGES).map(Some),
        }
    }

    fn view(&self) -> Result<MessagesView<'_>> {
        let limit = self.limit()?;
        let has_limit = self.limit.is_some();
        match (self.budget_tokens, self.full, self.archive.as_deref(), self.from) {
            (None, None | Some(false), None, None) => Ok(MessagesView::Recent(limit)),
            (Some(budget), None | Some(false), None, None) if !has_limit => Ok(MessagesView::Budget(budget)),
            (None, Some(true), None, None) if !has_limit => Ok(MessagesView::Full),
            (None, None | Some(false), Some(archive), None) => {
                let limit = limit.filter(|_| has_limit);
                Ok(MessagesView::Archive(Some(archive).filter(|archive| *archive != "latest"), limit))
            }
            (None, None | Some(false), None, Some(from)) => {
                let limit = limit.ok_or_else(|| Error::invalid_argument("a page of the log has a `limit` of at most 1000"))?;
                Ok(MessagesView::Log { from, limit })
            }
            _ => Err(Error::invalid_argument(
                "`budget_tokens`, `full`, `archive` and `from` exclude each other, and `limit` applies to the last two only; leave some out",
            )),
        }
    }
}

/// Messages of a session.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct MessagesReply {
    /// The messages, oldest first.
    messages: Vec<Message>,
    /// The window of the session.
    window: SessionWindow,
    /// The `from` of the next page of the log; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
}

pub(super) async fn messages(asked: Asked) -> Answer {
    let query: MessagesQuery = asked.query()?;
    let view = query.view()?;
    let at = asked.named(Access::Read)?;
    let read = at.sessions.read_messages_of(at.tenant(), at.id(), view).await?.ok_or_else(|| absent(at.id()))?;
    json(StatusCode::OK, MessagesReply { messages: read.messages, window: read.window, next: read.next }).await
}

/// Messages to append, all or none.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AppendMessages {
    /// The messages, in order.
    messages: Vec<Message>,
    /// A turn to record in the same commit.
    #[serde(default)]
    usage: Option<Usage>,
}

/// What an append did.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct AppendReply {
    /// The positions of the messages in the session's log.
    positions: Range<u64>,
    /// The index of the recorded turn, from 0; absent without a turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    turn_index: Option<u64>,
}

/// Appends messages. The session stores the idempotency key in the commit of the append, so an answer that was lost is known even if the
/// server died.
pub(super) async fn append(mut asked: Asked) -> Answer {
    let at = asked.named(Access::Write)?;
    let key = keys::of(&asked);
    let AppendMessages { messages, usage } = asked.json().await?;
    let mut options = AppendOptions::new();
    options.idempotency_key = key;
    options.usage = usage;
    let appended = at.sessions.append(at.tenant(), at.id(), &messages, &options).await.map_err(keys::refused)?;
    let reply = AppendReply { positions: appended.positions, turn_index: appended.turn_index };
    let mut response = json(StatusCode::OK, reply).await?;
    keys::tell(&mut response, appended.repeated, appended.key_expires_at);
    Ok(response)
}

/// A page of turns.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TurnsQuery {
    /// The most turns. Default 100. A page may have fewer and still have a `cursor`.
    limit: Option<usize>,
    /// Where the previous page ended: its `cursor`.
    cursor: Option<u64>,
}

/// Turns of a session.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TurnsReply {
    /// The turns as they were recorded, oldest first.
    turns: Vec<Json>,
    /// The cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<u64>,
}

pub(super) async fn turns(asked: Asked) -> Answer {
    let query: TurnsQuery = asked.query()?;
    let limit = page(query.limit, 100)?;
    let at = asked.named(Access::Read)?;
    let page = at.sessions.turns(at.tenant(), at.id(), query.cursor, limit).await?.ok_or_else(|| absent(at.id()))?;
    json(StatusCode::OK, TurnsReply { turns: page.turns, cursor: page.next }).await
}

/// A turn to record.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RecordTurn {
    /// Its usage.
    usage: Usage,
}

/// A recorded turn.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TurnReply {
    /// Its index, from 0.
    turn_index: u64,
}

pub(super) async fn record_turn(mut asked: Asked) -> Answer {
    let at = asked.named(Access::Write)?;
    let RecordTurn { usage } = asked.json().await?;
    let mut options = AppendOptions::new().with_usage(usage);
    options.idempotency_key = keys::of(&asked);
    let appended = at.sessions.append(at.tenant(), at.id(), &[], &options).await.map_err(keys::refused)?;
    let turn_index = appended.turn_index.ok_or_else(|| Error::new(ErrorKind::Corrupt, "a stored turn has no index"))?;
    let mut response = json(StatusCode::OK, TurnReply { turn_index }).await?;
    keys::tell(&mut response, appended.repeated, appended.key_expires_at);
    Ok(response)
}
