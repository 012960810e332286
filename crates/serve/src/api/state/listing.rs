//! Users, sessions and keys, and whole sessions.

use super::super::exchange::{Answer, Asked, json, nothing};
use super::{AgentQuery, absent, named, page};
use crate::caller::{NamedUser, StateOwner};
use crate::rights::{Access, ActsFor};
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use treehold_agent_state::{
    AGENT_STATE_KEY, AgentStateStore, DeleteSessionOptions, StateForm, StateKey, conversation_markdown, export_session,
};
use treehold_core::error::{Error, ErrorKind};
use treehold_core::work;

/// The most bytes of an exported session.
const EXPORT_BYTES_MAX: usize = 64 << 20;

/// A page of users or sessions.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct StatesQuery {
    /// The agent. Default `default`.
    agent: Option<String>,
    /// Where the previous page ended: its `next`.
    after: Option<String>,
    /// The most entries. Default 100. A page may have fewer and still have a `next`.
    limit: Option<usize>,
}

/// Users that have states.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct StateUsersReply {
    /// The users that the caller may see; `null` is the anonymous one.
    users: Vec<Option<String>>,
    /// The `after` of the next page; `null` on the last page.
    next: Option<String>,
}

/// Lists the users whose states the caller may use.
pub(super) async fn users(asked: Asked) -> Answer {
    let query: StatesQuery = asked.query()?;
    let limit = page(query.limit)?;
    let agent = query.agent.as_deref();
    if asked.caller.rights.acts_for < ActsFor::Tenant {
        let owner = asked.caller.state_owner(&asked.head.headers, NamedUser::Own, Access::Read)?;
        let states = asked.states_of(&owner, agent)?;
        let has_states = query.after.is_none() && !states.session_ids(owner.user.as_deref(), None, 1).await?.sessions.is_empty();
        let users = has_states.then_some(owner.user).into_iter().collect();
        return json(StatusCode::OK, StateUsersReply { users, next: None }).await;
    }
    let tenant = asked.caller.state_tenant(&asked.head.headers, Access::Read)?;
    let states = asked.api.states.for_tenant(&tenant)?.for_agent(&tenant, agent.unwrap_or(super::AGENT))?;
    let page = states.users(query.after.as_deref(), limit).await?;
    json(StatusCode::OK, StateUsersReply { users: page.users, next: page.next }).await
}

/// Sessions of a user.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct StateSessionsReply {
    /// The ids, in order.
    sessions: Vec<String>,
    /// The `after` of the next page; `null` on the last page.
    next: Option<String>,
}

/// Lists the sessions of a user.
pub(super) async fn sessions(asked: Asked) -> Answer {
    let query: StatesQuery = asked.query()?;
    let limit = page(query.limit)?;
    let user = asked.named_user()?;
    let owner: StateOwner = asked.caller.state_owner(&asked.head.headers, named(user.as_deref()), Access::Read)?;
    let states = asked.states_of(&owner, query.agent.as_deref())?;
    let page = states.session_ids(owner.user.as_deref(), query.after.as_deref(), limit).await?;
    json(StatusCode::OK, StateSessionsReply { sessions: page.sessions, next: page.next }).await
}

/// The keys of a session.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct StateKeysReply {
    /// The keys, in order.
    keys: Vec<StateKeyRecord>,
}

/// A key of a session.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "StateKey")]
struct StateKeyRecord {
    /// The key.
    key: String,
    /// The form of its value. A key may have a value of each form.
    form: StateForm,
    /// The version.
    version: u64,
}

/// Lists the keys of a session.
pub(super) async fn keys(asked: Asked) -> Answer {
    let query: AgentQuery = asked.query()?;
    let at = asked.state(query.agent.as_deref(), Access::Read)?;
    let found = at.states.keys_with_versions(&at.slot).await?;
    let keys: Vec<StateKeyRecord> = found
        .into_iter()
        .map(|(key, version)| {
            let (key, form) = match key {
                StateKey::Single(key) => (key, StateForm::Single),
                StateKey::List(key) => (key, StateForm::List),
            };
            StateKeyRecord { key, form, version: version.number() }
        })
        .collect();
    if keys.is_empty() {
        return Err(absent(&at.slot).into());
    }
    json(StatusCode::OK, StateKeysReply { keys }).await
}

/// On whose behalf a session is removed.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RemoveSessionQuery {
    /// The agent. Default `default`.
    agent: Option<String>,
    /// The fencing token of the turn that removes: its `fence`. The removal is refused if the turn was lost.
    fence: Option<u64>,
}

/// Removes a session.
pub(super) async fn delete(asked: Asked) -> Answer {
    let query: RemoveSessionQuery = asked.query()?;
    let at = asked.state(query.agent.as_deref(), Access::Write)?;
    let options = DeleteSessionOptions::new().with_fence(at.fence(query.fence)?);
    at.states.delete_session(&at.slot, options).await?;
    Ok(nothing(StatusCode::NO_CONTENT))
}

/// Returns all values of a session, or its conversation as Markdown if the client prefers that.
pub(super) async fn export(asked: Asked) -> Answer {
    let query: AgentQuery = asked.query()?;
    let at = asked.state(query.agent.as_deref(), Access::Read)?;
    if wants_markdown(&asked.head.headers) {
        let found = at.states.get(&at.slot, AGENT_STATE_KEY).await?.ok_or_else(|| no_conversation(&at.slot))?;
        return markdown(at.slot.session().to_owned(), found.value).await;
    }
    let export = export_session(&at.states, &at.slot, EXPORT_BYTES_MAX).await?.ok_or_else(|| absent(&at.slot))?;
    json(StatusCode::OK, export).await
}

/// Returns the error for a session without the state of an agent.
pub(super) fn no_conversation(slot: &treehold_agent_state::StateSlot) -> Error {
    Error::new(ErrorKind::NotFound, format!("the {slot} has no `{AGENT_STATE_KEY}`, which would hold its conversation"))
}

/// Responds with a conversation as Markdown.
pub(super) async fn markdown(session: String, state: treehold_agent_state::Json) -> Answer {
    let bytes = state.as_str().len() as u64;
    let text = work::run(bytes, move |_| conversation_markdown(&session, &state)).await??;
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/markdown; charset=utf-8"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Returns whether a client names Markdown before JSON among what it accepts.
fn wants_markdown(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(','));
    let mut known = accepted.map(|media| media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
    known.find(|media| ["text/markdown", "application/json", "application/*", "*/*"].contains(&media.as_str())).as_deref()
        == Some("text/markdown")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_is_sent_to_clients_that_prefer_it() {
        for (accept, expected) in [
            (&["text/markdown"][..], true),
            (&["text/html, Text/Markdown;q=0.9"], true),
            (&["text/html", "text/markdown, */*"], true),
            (&["application/json, text/markdown"], false),
            (&["*/*"], false),
            (&["text/plain"], false),
            (&[], false),
        ] {
            let headers = accept.iter().map(|accept| (header::ACCEPT, HeaderValue::from_static(accept)));
            assert_eq!(wants_markdown(&headers.collect()), expected, "{accept:?}");
        }
    }
}
