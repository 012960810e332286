//! Appending messages and recording turns.

use crate::events::TurnEvent;
use crate::message::Message;
use crate::numbers::following;
use crate::once::Once;
use crate::rows::{self, Head, Opened, Part, position_key};
use crate::sessions::Sessions;
use crate::usage::{Usage, UsageTotals};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::{row, stored};
use treehold_core::retry::Attempts;
use treehold_store::{Batch, escape_key};

/// Options of an append.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct AppendOptions {
    /// A key under which a repeated append has no second effect.
    pub idempotency_key: Option<String>,
    /// A turn to record in the same commit.
    pub usage: Option<Usage>,
}

impl AppendOptions {
    /// Appends without a key and without a turn.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the key under which a repeated append has no second effect. A client that lost the answer repeats the call
    /// with the same key.
    #[must_use]
    pub fn with_idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Records a turn in the same commit.
    #[must_use]
    pub fn with_usage(mut self, usage: Usage) -> Self {
        self.usage = Some(usage);
        self
    }
}

/// The result of an append.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Appended {
    /// The positions of the messages in the session's log. Positions start at 0 and have no gaps.
    pub positions: Range<u64>,
    /// The index of the turn that was recorded, from 0.
    pub turn_index: Option<u64>,
    /// Whether an earlier call with the same idempotency key made the append.
    #[serde(skip)]
    pub repeated: bool,
    /// When the idempotency key expires, if the call had one.
    #[serde(skip)]
    pub key_expires_at: Option<Timestamp>,
}

/// The stored facts about a message, so that windows can be found without reading texts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct MessageMeta {
    #[serde(rename = "t")]
    pub(crate) tokens: u64,
    /// Whether it is a tool result.
    #[serde(rename = "r", default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_result: bool,
    /// The position of the message that made the call, for a tool result whose call is in the session.
    #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
    pub(crate) call: Option<u64>,
}

impl Sessions {
    /// Appends messages in order, all or none, and records a turn with them if the options have one. Messages, turn, time and position in
    /// the list of sessions change in one commit. Without messages and a turn, nothing is written.
    ///
    /// Cost: three or four round trips, independent of the length of the session.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for an unknown session. [`InvalidArgument`](ErrorKind::InvalidArgument) for a tool
    /// result whose call is not in the session, more messages than
    /// [`batch_max`](crate::SessionsOptions::batch_max), or an idempotency key that was used for something else (the source is
    /// [`KeyReused`](crate::KeyReused)).
    /// [`TooLarge`](ErrorKind::TooLarge) for a message or an append over the limits. Errors of the store; after those the
    /// append may have taken effect, and an idempotency key makes it safe to repeat.
    pub async fn append(&self, tenant: &str, session: &str, messages: &[Message], options: &AppendOptions) -> Result<Appended> {
        self.check_append(messages, options)?;
        let once = options.idempotency_key.as_deref().map(|key| Once::new(key, texts(messages, options))).transpose()?;
        let mut attempts = Attempts::new();
        loop {
            let opened = self.open_existing(tenant, session).await?;
            if let Some(once) = &once
                && let Some(earlier) = once.find(self, &opened.head).await?
            {
                let appended: Option<Appended> = earlier.appended.and_then(|appended| serde_json::from_value(appended).ok());
                let appended = appended.ok_or_else(|| Error::new(ErrorKind::Corrupt, "the result of a stored append cannot be read"))?;
                return Ok(Appended { repeated: true, key_expires_at: earlier.expires_at, ..appended });
            }
            if messages.is_empty() && options.usage.is_none() {
                let end = opened.head.messages_end;
                return Ok(Appended { positions: end..end, turn_index: None, repeated: false, key_expires_at: None });
            }
            let (batch, next, appended) = self.plan_append(&opened, messages, options, once.as_ref()).await?;
            if rows::commit(&*self.store, opened.replace(batch, &next)?).await?.is_some() {
                return Ok(appended);
            }
            attempts.lost().await?;
        }
    }

    /// Records a turn and returns its index, from 0. Its index is assigned in the commit, so no two turns share one.
    ///
    /// # Errors
    /// As [`Sessions::append`].
    pub async fn record_turn(&self, tenant: &str, session: &str, usage: &Usage) -> Result<u64> {
        let appended = self.append(tenant, session, &[], &AppendOptions::new().with_usage(usage.clone())).await?;
        Ok(appended.turn_index.expect("the append has a turn"))
    }

    fn check_append(&self, messages: &[Message], options: &AppendOptions) -> Result<()> {
        let (batch_max, bytes_max) = (self.options.batch_max, self.options.batch_bytes_max);
        if messages.len() > batch_max {
            let message = format!("{} messages exceed the {batch_max} of one append; split it", messages.len());
            return Err(Error::invalid_argument(message));
        }
        let mut size_bytes = 0_usize;
        for message in messages {
            self.check_size("message", message.json().as_str().len())?;
            size_bytes = size_bytes.saturating_add(message.json().as_str().len());
        }
        if size_bytes > bytes_max {
            let message = format!("the messages have {size_bytes} bytes and an append may have at most {bytes_max}; split it");
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        if let Some(usage) = &options.usage {
            self.check_size("usage", usage.json().as_str().len())?;
        }
        Ok(())
    }

    async fn plan_append(
        &self,
        opened: &Opened,
        messages: &[Message],
        options: &AppendOptions,
        once: Option<&Once>,
    ) -> Result<(Batch, Head, Appended)> {
        let mut next = opened.head.clone();
        next.updated_at = next.updated_at.max(self.now());
        let metas = self.metas_of(&next, messages).await?;
        let mut batch = put_messages(Batch::new(), &mut next, messages, &metas)?;
        let positions = opened.head.messages_end..next.messages_end;
        let turn_index = match &options.usage {
            Some(usage) => {
                let index = next.turns;
                batch = put_turn(batch, &mut next, usage)?;
                Some(index)
            }
            None => None,
        };
        let mut appended = Appended { positions, turn_index, repeated: false, key_expires_at: None };
        if let Some(once) = once {
            batch = once.put(batch, self, &next, serde_json::to_value(&appended).ok())?;
            appended.key_expires_at = Once::used(self).expires_at;
        }
        Ok((batch, next, appended))
    }

    /// Computes the stored facts about each message, above all the position of the call of each tool result.
    async fn metas_of(&self, head: &Head, messages: &[Message]) -> Result<Vec<MessageMeta>> {
        let mut calls: HashMap<&str, u64> = HashMap::new();
        let mut metas = Vec::with_capacity(messages.len());
        let mut elsewhere = Vec::new();
        for (message, position) in messages.iter().zip(head.messages_end..) {
            let call = message.answers().map(|id| calls.get(id).copied().ok_or(id));
            if let Some(Err(id)) = call {
                elsewhere.push((metas.len(), id));
            }
            let call = call.and_then(Result::ok);
            metas.push(MessageMeta { tokens: message.tokens(), is_result: message.answers().is_some(), call });
            calls.extend(message.tool_call_ids().iter().map(|id| (id.as_str(), position)));
        }
        if elsewhere.is_empty() {
            return Ok(metas);
        }
        let keys: Vec<String> = elsewhere.iter().map(|(_, id)| escape_key(id)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let found = self.store.get_many(&head.part(Part::Calls)?, &keys, true).await?;
        for ((index, id), item) in elsewhere.into_iter().zip(found) {
            match item {
                Some(item) => metas[index].call = Some(stored("tool call", &item.value)?),
                None if self.options.accept_orphan_results => {}
                None => {
                    let message = format!(
                        "message {index} of the append answers the tool call `{}`, which no message of the session made",
                        id.escape_debug()
                    );
                    return Err(Error::invalid_argument(message));
                }
            }
        }
        Ok(metas)
    }
}

/// Adds messages at the end of the log, and advances the head.
pub(crate) fn put_messages(mut batch: Batch, head: &mut Head, messages: &[Message], metas: &[MessageMeta]) -> Result<Batch> {
    let (rows, calls) = (head.part(Part::Messages)?, head.part(Part::Calls)?);
    for (message, meta) in messages.iter().zip(metas) {
        let position = head.messages_end;
        batch = batch.put_with_meta(&rows, position_key(position), row(meta), message.json().as_str().to_owned());
        for id in message.tool_call_ids() {
            batch = batch.put(&calls, escape_key(id), row(&position));
        }
        head.messages_end = following("message", position)?;
        head.window.tokens = head.window.tokens.saturating_add(meta.tokens);
    }
    Ok(batch)
}

/// Adds a turn, and advances the head.
fn put_turn(batch: Batch, head: &mut Head, usage: &Usage) -> Result<Batch> {
    let turn = UsageTotals::from(&**usage);
    let event = TurnEvent {
        turn_index: head.turns,
        input_tokens: turn.input_tokens,
        output_tokens: turn.output_tokens,
        cache_read_tokens: turn.cache_read_tokens,
        cache_write_tokens: turn.cache_write_tokens,
        updated_at: head.updated_at,
        usage: Some(usage.json().clone()),
    };
    let batch = batch.put(&head.part(Part::Events)?, position_key(head.events_end), row(&event));
    head.events_end = following("event", head.events_end)?;
    head.turns = following("turn", head.turns)?;
    head.totals.add(&turn);
    head.last_turn = Some(turn);
    Ok(batch)
}

/// Returns the texts that make up an append.
fn texts<'a>(messages: &'a [Message], options: &'a AppendOptions) -> impl Iterator<Item = &'a str> {
    let usage = options.usage.as_ref().map(|usage| usage.json().as_str());
    let kind = if usage.is_some() { "messages and a turn" } else { "messages" };
    std::iter::once(kind).chain(messages.iter().map(|message| message.json().as_str())).chain(usage)
}
