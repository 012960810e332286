//! The routes of administration consoles: what an operator sees of a session and does to it.
//!
//! Paths and shapes are those that consoles of the agent framework use. A request is about the caller's own user, or about the one in its
//! query. Each request is logged with the operator that its header names, and each change is also recorded in the audit log, as a call of
//! the thread with the session's id.

use super::super::exchange::{Answer, Asked, json};
use super::{At, listing, page};
use crate::caller::NamedUser;
use crate::problem::Failed;
use crate::rights::Access;
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use jiff::Timestamp;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use treehold_agent::audit::{AuditRow, OUTCOME_OK};
use treehold_agent_state::call::{Interrupt, Turn};
use treehold_agent_state::undo::{self, UndoOutcome};
use treehold_agent_state::{AGENT_STATE_KEY, AgentStateStore, Json, OperatorCompaction, compact_session, conversation_messages};
use treehold_core::checkpoint_id::CheckpointId;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::scope::{Scope, check_id};
use treehold_core::work;

/// The header that names the operator.
const OPERATOR: HeaderName = HeaderName::from_static("x-agentscope-admin-operator");

/// The operator of a request that names none.
const NOBODY: &str = "anonymous";

/// Whose session a request is about.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AdminQuery {
    /// The agent. Default `default`.
    agent: Option<String>,
    /// The user. Default the caller's own.
    user: Option<String>,
    /// Whether the session is anonymous. Default false.
    anonymous: bool,
}

/// Whose sessions to list.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AdminListQuery {
    /// The agent. Default `default`.
    agent: Option<String>,
    /// The user. Default the caller's own.
    user: Option<String>,
    /// Whether to list anonymous sessions. Default false.
    anonymous: bool,
    /// Where the previous page ended, as its header `Link` says.
    after: Option<String>,
    /// The most sessions. Default 100.
    limit: Option<usize>,
}

fn named(user: Option<&str>, anonymous: bool) -> Result<NamedUser<'_>> {
    match (user, anonymous) {
        (None, false) => Ok(NamedUser::Own),
        (None, true) => Ok(NamedUser::Anonymous),
        (Some(user), false) => Ok(NamedUser::Named(user)),
        (Some(_), true) => Err(Error::invalid_argument("`user` and `anonymous` exclude each other; leave one out").without_effect()),
    }
}

/// Lists the sessions of a user.
pub(super) async fn sessions(asked: Asked) -> Answer {
    let query: AdminListQuery = asked.query()?;
    let limit = page(query.limit)?;
    let operator = operator(&asked)?;
    let owner = asked.caller.state_owner(&asked.head.headers, named(query.user.as_deref(), query.anonymous)?, Access::Read)?;
    let states = asked.states_of(&owner, query.agent.as_deref())?;
    let page = states.session_ids(owner.user.as_deref(), query.after.as_deref(), limit).await?;
    note("session.list", &operator, &owner.tenant, owner.user.as_deref(), "*", OUTCOME_OK);
    let mut response = json(StatusCode::OK, page.sessions).await?;
    if let Some(next) = page.next {
        response.headers_mut().insert(header::LINK, next_page(&query, &next)?);
    }
    Ok(response)
}

/// Returns the link to the next page ([RFC 8288](https://www.rfc-editor.org/rfc/rfc8288)).
fn next_page(query: &AdminListQuery, next: &str) -> Result<HeaderValue> {
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let mut link = format!("</v1/admin/sessions?after={}", encoded(next));
    for (name, value) in [("agent", &query.agent), ("user", &query.user)] {
        if let Some(value) = value {
            link.push_str(&format!("&{name}={}", encoded(value)));
        }
    }
    if query.anonymous {
        link.push_str("&anonymous=true");
    }
    if let Some(limit) = query.limit {
        link.push_str(&format!("&limit={limit}"));
    }
    link.push_str(">; rel=\"next\"");
    HeaderValue::from_str(&link).map_err(|error| Error::invalid_argument("the query cannot be repeated in a link").with_source(error))
}

/// Lists the messages of a session.
pub(super) async fn messages(asked: Asked) -> Answer {
    let (at, operator) = asked.administered(Access::Read)?;
    let state = at.agent_state().await?;
    let messages = work::run(state.as_str().len() as u64, move |_| conversation_messages(&state)).await??;
    at.note("session.messages", &operator);
    json(StatusCode::OK, messages).await
}

/// Returns the state of the agent.
pub(super) async fn state(asked: Asked) -> Answer {
    let (at, operator) = asked.administered(Access::Read)?;
    let state = at.agent_state().await?;
    at.note("session.state", &operator);
    let mut response = Response::new(Body::from(state.as_str().to_owned()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Returns the conversation as Markdown.
pub(super) async fn export(asked: Asked) -> Answer {
    let (at, operator) = asked.administered(Access::Read)?;
    let state = at.agent_state().await?;
    at.note("session.export", &operator);
    let session = at.slot.session();
    let mut response = listing::markdown(session.to_owned(), state).await?;
    // The form of RFC 8187, in which any id is plain ASCII.
    let name = format!("attachment; filename*=UTF-8''session-{}.md", utf8_percent_encode(session, NON_ALPHANUMERIC));
    if let Ok(name) = HeaderValue::from_str(&name) {
        response.headers_mut().insert(header::CONTENT_DISPOSITION, name);
    }
    Ok(response)
}

/// Interrupts the running call of a session.
pub(super) async fn abort(asked: Asked) -> Answer {
    let (at, operator) = asked.administered(Access::Admin)?;
    let begun = Timestamp::now();
    let hit = asked.api.turns.interrupt(&at.turn()?, Interrupt::user()).await?;
    asked.record(&at, "session.abort", &operator, begun, if hit { OUTCOME_OK } else { "noop" }, json!({"hit": hit})).await?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::ACCEPTED;
    Ok(response)
}

/// How to compact a session.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub(super) struct CompactRequest {
    /// How many of the newest messages to keep. By default the program behind the server decides.
    keep_last_messages: Option<usize>,
    /// Whether the new summary replaces the one before, rather than being added to it. Default false.
    replace_summary: Option<bool>,
}

/// What a compaction did.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CompactReply {
    /// The session.
    session_id: String,
    /// The messages before.
    messages_before: usize,
    /// The messages after.
    messages_after: usize,
    /// The length of the summary before, in characters.
    summary_length_before: usize,
    /// The length of the summary after, in characters.
    summary_length_after: usize,
}

/// Compacts a session, if the program behind the server can make summaries.
pub(super) async fn compact(mut asked: Asked) -> Answer {
    let (at, operator) = asked.administered(Access::Admin)?;
    let request: CompactRequest = asked.json().await?;
    let Some(compactor) = asked.api.compactor.clone() else {
        let error = Error::unsupported("this server makes no summaries: attach a compactor to it, or compact in a call of the agent");
        return Err(Failed::with_status(error.without_effect(), StatusCode::NOT_IMPLEMENTED));
    };
    let begun = Timestamp::now();
    let Some(turn) = asked.turn(&at).await? else { return Ok(running(&at)) };
    let how = OperatorCompaction::new()
        .with_keep_messages(request.keep_last_messages)
        .with_replace_summary(request.replace_summary.unwrap_or_default());
    let counts = compact_session(&at.states, &at.slot, &*compactor, &how, Some(&turn.fence())).await;
    end(turn).await;
    let counts = counts?;
    let numbers = json!({"messages_before": counts.messages_before, "messages_after": counts.messages_after});
    asked.record(&at, "session.compact", &operator, begun, OUTCOME_OK, numbers).await?;
    let reply = CompactReply {
        session_id: at.slot.session().to_owned(),
        messages_before: counts.messages_before,
        messages_after: counts.messages_after,
        summary_length_before: counts.summary_chars_before,
        summary_length_after: counts.summary_chars_after,
    };
    json(StatusCode::OK, reply).await
}

/// What an undo or redo did.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct UndoReply {
    /// The session.
    session_id: String,
    /// Whether another state was restored. It was not if there was none.
    restored: bool,
    /// How many changes can be undone now.
    undo_depth: usize,
    /// How many can be redone now.
    redo_depth: usize,
}

/// Restores the state before the last change by an operator.
pub(super) async fn undo(asked: Asked) -> Answer {
    asked.step(Step::Undo).await
}

/// Reverses an undo.
pub(super) async fn redo(asked: Asked) -> Answer {
    asked.step(Step::Redo).await
}

/// A step between the states that are kept.
#[derive(Clone, Copy)]
enum Step {
    Undo,
    Redo,
}

/// Returns the operator that a request names.
fn operator(asked: &Asked) -> Result<String> {
    let Some(given) = asked.head.headers.get(OPERATOR) else { return Ok(NOBODY.to_owned()) };
    let invalid = || Error::invalid_argument(format!("the header `{OPERATOR}` is not a name of at most 255 bytes")).without_effect();
    let name = std::str::from_utf8(given.as_bytes()).map_err(|_| invalid())?;
    check_id("operator", name).map_err(|_| invalid())?;
    Ok(name.to_owned())
}

/// Responds that a call of the session runs.
fn running(at: &At) -> Response {
    let message = format!("a call of the {} runs; abort it, or try again when it is done", at.slot);
    let error = Error::new(ErrorKind::Unavailable, message).without_effect();
    let mut response = Failed::with_status(error, StatusCode::CONFLICT).into_response();
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// Ends the turn of an operator. If that fails, its lease ends by itself.
async fn end(turn: Turn) {
    if let Err(error) = turn.release().await {
        tracing::warn!(%error, "the turn of an operator lasts until its lease ends");
    }
}

/// Logs a request of an operator.
fn note(command: &str, operator: &str, tenant: &str, user: Option<&str>, session: &str, outcome: &str) {
    tracing::info!(command, operator, tenant, user, session, outcome, "administration of a session");
}

impl At {
    /// Returns the stored state of the agent.
    async fn agent_state(&self) -> Result<Json> {
        let found = self.states.get(&self.slot, AGENT_STATE_KEY).await?;
        Ok(found.ok_or_else(|| listing::no_conversation(&self.slot))?.value)
    }

    fn note(&self, command: &str, operator: &str) {
        note(command, operator, &self.tenant, self.slot.user(), self.slot.session(), OUTCOME_OK);
    }
}

impl Asked {
    /// Returns the session that the request is about, and its operator.
    fn administered(&self, access: Access) -> Result<(At, String)> {
        let query: AdminQuery = self.query()?;
        let at = self.slot_of(named(query.user.as_deref(), query.anonymous)?, self.param("session"), query.agent.as_deref(), access)?;
        Ok((at, operator(self)?))
    }

    /// Takes the turn of a session, unless a call of it runs. The turn is renewed for as long as the request takes, and ends with it.
    async fn turn(&self, at: &At) -> Result<Option<Turn>> {
        self.api.turns.try_acquire(&at.turn()?).await
    }

    /// Takes a step between the states that are kept, as a turn of the session: the call of another turn would replace the state at its
    /// end.
    async fn step(&self, step: Step) -> Answer {
        let (at, operator) = self.administered(Access::Admin)?;
        let begun = Timestamp::now();
        let Some(turn) = self.turn(&at).await? else { return Ok(running(&at)) };
        let fence = turn.fence();
        let (command, taken) = match step {
            Step::Undo => ("session.undo", undo::undo(&at.states, &at.slot, Some(&fence)).await),
            Step::Redo => ("session.redo", undo::redo(&at.states, &at.slot, Some(&fence)).await),
        };
        end(turn).await;
        let UndoOutcome { restored, undo_depth, redo_depth, .. } = taken?;
        let outcome = if restored { OUTCOME_OK } else { "noop" };
        let depths = json!({"undo_depth": undo_depth, "redo_depth": redo_depth});
        self.record(&at, command, &operator, begun, outcome, depths).await?;
        json(StatusCode::OK, UndoReply { session_id: at.slot.session().to_owned(), restored, undo_depth, redo_depth }).await
    }

    /// Records a change by an operator.
    async fn record(&self, at: &At, command: &str, operator: &str, begun: Timestamp, outcome: &str, mut arguments: Value) -> Result<()> {
        note(command, operator, &at.tenant, at.slot.user(), at.slot.session(), outcome);
        let Some(audit) = self.api.workspace.audit_log() else { return Ok(()) };
        arguments["agent"] = at.agent().into();
        let mut row = AuditRow::new(CheckpointId::new(begun, None), begun, command, arguments);
        row.actor = Some(operator.to_owned());
        row.outcome = outcome.to_owned();
        let mut scope = Scope::new().with_tenant(&at.tenant).with_thread(at.slot.session());
        scope.user = at.slot.user().map(str::to_owned);
        audit.append(&scope, &row).await.map_err(|error| {
            // The change is made already.
            error.with_unknown_effect()
        })
    }
}
