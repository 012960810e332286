//! The messages of a trace.

use super::super::exchange::{Answer, Asked, json};
use super::super::sessions::keys;
use super::{Fields, page};
use crate::problem::Failed;
use crate::rights::Access;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::error::Error as _;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;
use treehold_core::wire::RequestFault;
use treehold_traces::{
    AddOptions, KeyReused, Message, MessageRef, MessageUpdate, MessagesQuery, NewMessage, PAGE_MAX, PathQuery, TraceUpdate,
};

/// How many messages a page has by default, whatever path they are on.
const MESSAGES: usize = 100;

/// Which messages to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ListMode {
    /// Those of the main path.
    MainPath,
}

/// Which messages to list: with `mode=main_path` the end of the main path, otherwise all messages by their sequences.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ListQuery {
    /// `main_path` for the messages from the head back to the first one, in the order in which they were said.
    mode: Option<ListMode>,
    /// With `mode`, the sequence at which the path ends. Default the head of the trace. The `earlier` of a page continues it.
    head_sequence: Option<u64>,
    /// Without `mode`, only messages with a greater sequence.
    since_sequence: Option<u64>,
    /// Without `mode`, only messages of this goal.
    goal_id: Option<String>,
    /// Without `mode`, how many messages to leave out at the beginning. Prefer `since_sequence`.
    offset: Option<u64>,
    /// The most messages, up to 1,000. Default 100, and 1,000 with `mode`.
    limit: Option<usize>,
}

pub(super) async fn list(asked: Asked) -> Answer {
    let query: ListQuery = asked.query()?;
    let at = asked.trace(Access::Read)?;
    let page = match query.mode {
        Some(ListMode::MainPath) => at.store.get_main_path(&at.trace, &query.of_path()?).await?,
        None => at.store.get_messages(&at.trace, &query.of_all()?).await?,
    };
    json(StatusCode::OK, page).await
}

impl ListQuery {
    fn of_path(&self) -> Result<PathQuery> {
        if self.since_sequence.is_some() || self.goal_id.is_some() || self.offset.is_some() {
            let message = "`mode=main_path` goes with `head_sequence` and `limit` only; leave the other parameters out";
            return Err(Error::invalid_argument(message));
        }
        let mut query = PathQuery::default();
        query.head_sequence = self.head_sequence;
        query.limit = Some(page(self.limit, PAGE_MAX, PAGE_MAX)?);
        Ok(query)
    }

    fn of_all(&self) -> Result<MessagesQuery> {
        if self.head_sequence.is_some() {
            return Err(Error::invalid_argument("`head_sequence` goes with `mode=main_path` only; add that, or leave it out"));
        }
        let mut query = MessagesQuery::default();
        (query.since_sequence, query.goal_id) = (self.since_sequence, self.goal_id.clone());
        (query.offset, query.limit) = (self.offset.unwrap_or(0), page(self.limit, MESSAGES, PAGE_MAX)?);
        Ok(query)
    }
}

/// A message to append, or several, all or none.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub(super) enum AppendRequest {
    /// One message.
    One(NewMessage),
    /// Several messages, or one with a condition.
    Several(NewMessages),
}

/// Messages to append, all or none.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewMessages {
    /// The messages, in order: 1 to 1,000.
    messages: Vec<NewMessage>,
    /// The head that the trace must have.
    #[serde(default)]
    expected_head: Option<u64>,
    /// A change of the trace in the same commit, without `head_sequence`.
    #[serde(default)]
    #[schemars(with = "Option<TraceUpdate>")]
    update: Option<Fields<TraceUpdate>>,
}

impl<'de> Deserialize<'de> for AppendRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// What distinguishes the two forms.
        #[derive(Deserialize)]
        struct Form {
            #[serde(default)]
            messages: Option<serde::de::IgnoredAny>,
        }
        // An untagged enum would take the contents of messages apart, and they must keep their text.
        let body = Json::deserialize(deserializer)?;
        let read = || match body.view::<Form>()?.messages {
            Some(_) => body.view().map(Self::Several),
            None => body.view().map(Self::One),
        };
        read().map_err(|error: Error| D::Error::custom(error.message()))
    }
}

/// Messages that were appended.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct AppendReply {
    /// The id of the last message.
    message_id: String,
    /// The messages as they are stored.
    messages: Vec<Message>,
    /// The head of the trace after the call.
    head_sequence: u64,
    /// Whether an earlier call with the same idempotency key added them.
    repeated: bool,
}

/// Appends messages. The trace stores the idempotency key in the commit of the append, so an answer that was lost is known even if the
/// server died.
pub(super) async fn append(mut asked: Asked) -> Answer {
    let at = asked.trace(Access::Write)?;
    let mut options = AddOptions::new();
    options.idempotency_key = keys::of(&asked);
    let messages = match asked.json().await? {
        AppendRequest::One(message) => vec![message],
        AppendRequest::Several(NewMessages { messages, expected_head, update }) => {
            (options.expected_head, options.update) = (expected_head, update.map(|Fields(update)| update));
            messages
        }
    };
    if !(1..=PAGE_MAX).contains(&messages.len()) {
        let message = format!("`messages` has {} entries; send 1 to {PAGE_MAX} at once", messages.len());
        return Err(Error::invalid_argument(message).without_effect().into());
    }
    let added = at.store.add_messages(&at.trace, messages, &options).await.map_err(refused)?;
    let last = added.messages.last().map(|message| message.message_id.clone());
    let message_id = last.ok_or_else(|| Error::new(ErrorKind::Internal, "no message was appended"))?;
    let repeated = added.repeated;
    let reply = AppendReply { message_id, messages: added.messages, head_sequence: added.head_sequence, repeated };
    let mut response = json(StatusCode::OK, reply).await?;
    keys::tell(&mut response, repeated, None);
    Ok(response)
}

fn refused(error: Error) -> Failed {
    match error.source().is_some_and(|source| source.is::<KeyReused>()) {
        true => Failed::of_request(RequestFault::KeyReused, error.message()),
        false => error.into(),
    }
}

/// How the path names a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum NamedBy {
    /// By its id.
    #[default]
    Id,
    /// By its sequence.
    Sequence,
}

/// How the path names a message.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct MessageQuery {
    /// Whether the path has the id of the message or its sequence. Default `id`.
    by: NamedBy,
}

/// Returns the message that the path names.
fn named(asked: &Asked) -> Result<MessageRef> {
    let name = asked.param("message");
    match asked.query::<MessageQuery>()?.by {
        NamedBy::Id => Ok(MessageRef::Id(name.to_owned())),
        NamedBy::Sequence => {
            let sequence = name.parse();
            let unread = |_| Error::invalid_argument("with `by=sequence`, the path ends with the number of a message; write it in digits");
            sequence.map(MessageRef::Sequence).map_err(unread)
        }
    }
}

pub(super) async fn get(asked: Asked) -> Answer {
    let named = named(&asked)?;
    let at = asked.trace(Access::Read)?;
    match at.store.get_message(&at.trace, &named).await? {
        Some(message) => json(StatusCode::OK, message).await,
        None => Err(Failed::from(absent(asked.param("message")))),
    }
}

pub(super) async fn update(mut asked: Asked) -> Answer {
    let named = named(&asked)?;
    let at = asked.trace(Access::Write)?;
    let update: MessageUpdate = asked.fields().await?;
    json(StatusCode::OK, at.store.update_message(&at.trace, &named, update).await?).await
}

fn absent(message: &str) -> Error {
    let message = format!("the trace has no message `{}`; list its messages for valid ids", message.escape_debug());
    Error::new(ErrorKind::NotFound, message).without_effect()
}
