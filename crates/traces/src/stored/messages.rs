//! Reads and changes messages.

use super::StoredTraces;
use super::draft::Spent;
use super::path::Path;
use super::rows::{Opened, Part, corrupt, position_key};
use super::text::{check_key, check_usage, checked, page_limit};
use crate::contract::{MessageRef, MessagesPage, MessagesQuery, PAGE_MAX, PathQuery};
use crate::id::TraceId;
use crate::model::{Message, MessageUpdate, kinds};
use serde::{Deserialize, Serialize};
use serde_json::json;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::{row, stored};
use treehold_core::retry::Attempts;
use treehold_store::{Item, ScanEntry, ScanOptions, escape_key};

/// The most messages of a goal that an offset passes over.
const GOAL_OFFSET_MAX: u64 = 100_000;

/// The stored facts about a message, so that paths are walked and pages are planned without reading contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MessageMeta {
    /// The path to the message, itself included.
    #[serde(rename = "p")]
    pub(super) path: Path,
    /// The size of the row's value.
    #[serde(rename = "b")]
    pub(super) bytes: usize,
}

/// Returns the id of a message without an id of its own.
pub(super) fn default_id(id: &TraceId, sequence: u64) -> String {
    format!("{id}-{sequence:04}")
}

/// Returns the sequence that a default id names; `None` for other ids.
pub(super) fn default_sequence(id: &TraceId, message_id: &str) -> Option<u64> {
    let digits = message_id.strip_prefix(id.as_str())?.strip_prefix('-')?;
    let sequence = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??;
    (default_id(id, sequence) == message_id).then_some(sequence)
}

/// Returns the key of a message among those of its goal.
pub(super) fn goal_key(goal: &str, sequence: u64) -> String {
    format!("{goal}\u{1}{sequence:020}")
}

impl StoredTraces {
    /// Reads the stored facts about messages that must exist. Cost: one round trip.
    pub(super) async fn metas(&self, opened: &Opened, sequences: &[u64]) -> Result<Vec<MessageMeta>> {
        let keys: Vec<String> = sequences.iter().map(|sequence| position_key(*sequence)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let found = self.store().get_many(&self.part(opened, Part::Messages)?, &keys, false).await?;
        sequences.iter().zip(found).map(|(sequence, item)| meta_of(*sequence, &item.ok_or_else(|| missing(*sequence))?)).collect()
    }

    /// Reads messages that must exist, in the order of `sequences`. Cost: one round trip.
    pub(super) async fn read(&self, opened: &Opened, sequences: &[u64]) -> Result<Vec<Message>> {
        if sequences.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<String> = sequences.iter().map(|sequence| position_key(*sequence)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let found = self.store().get_many(&self.part(opened, Part::Messages)?, &keys, true).await?;
        let message = |(sequence, item): (&u64, Option<Item>)| stored("message", &item.ok_or_else(|| missing(*sequence))?.value);
        sequences.iter().zip(found).map(message).collect()
    }

    /// Returns the sequence of a message; `None` if the trace has no such message. Cost: none or one round trip.
    async fn sequence_of(&self, opened: &Opened, id: &TraceId, message: &MessageRef) -> Result<Option<u64>> {
        let sequence = match message {
            MessageRef::Sequence(sequence) => Some(*sequence),
            MessageRef::Id(message_id) => match default_sequence(id, message_id) {
                Some(sequence) => Some(sequence),
                None => {
                    check_key("message", message_id)?;
                    let found = self.store().get(&self.part(opened, Part::MessageIds)?, &escape_key(message_id)).await?;
                    found.map(|item| stored("id of a message", &item.value)).transpose()?
                }
            },
        };
        Ok(sequence.filter(|sequence| opened.head.has(*sequence)))
    }

    /// Returns a message. Cost: two round trips; three for an id of the caller.
    pub(super) async fn message(&self, id: &TraceId, message: &MessageRef) -> Result<Option<Message>> {
        let opened = self.find_existing(id).await?;
        let Some(sequence) = self.sequence_of(&opened, id, message).await? else { return Ok(None) };
        let Some(found) = self.read(&opened, &[sequence]).await?.pop() else { return Ok(None) };
        // The default id of a message that has another id names nothing.
        let is_meant = match message {
            MessageRef::Id(message_id) => *message_id == found.message_id,
            MessageRef::Sequence(_) => true,
        };
        Ok(is_meant.then_some(found))
    }

    /// Changes a message, and corrects the totals of the trace and its goals. Cost: three round trips; one more each for an id of the caller
    /// and for goals.
    pub(super) async fn change_message(&self, id: &TraceId, reference: &MessageRef, update: MessageUpdate) -> Result<Message> {
        let MessageUpdate { content, goal_id, tokens, cost } = update;
        check_usage(tokens, cost)?;
        let goal_id = goal_id.map(|goal| (!goal.is_empty()).then_some(goal));
        goal_id.iter().flatten().try_for_each(|goal| check_key("goal", goal))?;
        let mut attempts = Attempts::new();
        loop {
            let mut draft = self.draft(id).await?;
            let none = || Error::new(ErrorKind::NotFound, format!("the trace `{id}` has no such message; list its messages"));
            let sequence = self.sequence_of(&draft.opened, id, reference).await?.ok_or_else(none)?;
            let rows = draft.part(Part::Messages)?;
            let item = self.store().get(&rows, &position_key(sequence)).await?.ok_or_else(|| missing(sequence))?;
            let (message, meta): (Message, _) = (stored("message", &item.value)?, meta_of(sequence, &item)?);
            if matches!(reference, MessageRef::Id(message_id) if *message_id != message.message_id) {
                return Err(none());
            }
            let mut next = message.clone();
            next.content = content.clone().or(next.content);
            next.goal_id = goal_id.clone().unwrap_or(next.goal_id);
            next.tokens = tokens.or(next.tokens);
            next.cost = cost.or(next.cost);
            if next == message {
                return Ok(message);
            }
            let value = checked("message", &next, self.options().message_bytes_max)?;
            let meta = row(&MessageMeta { bytes: value.len(), ..meta });
            draft.add(|batch| batch.put_with_meta(&rows, position_key(sequence), meta, value));
            draft.spend(message.goal_id.as_deref(), Spent::of(message.tokens, message.cost).reversed())?;
            draft.spend(next.goal_id.as_deref(), Spent::of(next.tokens, next.cost))?;
            if next.goal_id != message.goal_id {
                let goals = draft.part(Part::GoalMessages)?;
                if let Some(goal) = &message.goal_id {
                    draft.add(|batch| batch.delete(&goals, goal_key(goal, sequence)));
                }
                if let Some(goal) = &next.goal_id {
                    draft.add(|batch| batch.put(&goals, goal_key(goal, sequence), ""));
                }
            }
            draft.tell(kinds::MESSAGE_UPDATED, [("message_id", json!(next.message_id)), ("sequence", json!(sequence))])?;
            if draft.commit().await? {
                return Ok(next);
            }
            attempts.lost().await?;
        }
    }

    /// Returns a page of all messages. Cost: two round trips; four for the messages of a goal.
    pub(super) async fn messages(&self, id: &TraceId, query: &MessagesQuery) -> Result<MessagesPage> {
        let limit = page_limit(query.limit, self.options().page_max)?;
        let opened = self.find_existing(id).await?;
        if let Some(goal) = &query.goal_id {
            return self.messages_of_goal(&opened, goal, query, limit).await;
        }
        let after = query.since_sequence.unwrap_or(0).saturating_add(query.offset);
        let options = ScanOptions::new().with_start_after(position_key(after)).with_limit(limit).with_values(true);
        let options = options.with_bytes_max(self.options().page_bytes_max);
        let page = self.store().scan(&self.part(&opened, Part::Messages)?, options).await?;
        let mut messages: Vec<Message> = Vec::with_capacity(page.entries.len());
        for entry in page.entries {
            let ScanEntry::Item(item) = entry else { continue };
            let expected = after.saturating_add(messages.len() as u64).saturating_add(1);
            if item.key != position_key(expected) {
                return Err(missing(expected));
            }
            messages.push(stored("message", &item.value)?);
        }
        let end = after.saturating_add(messages.len() as u64);
        if page.next.is_none() && end < opened.head.last_sequence {
            return Err(missing(end + 1));
        }
        Ok(MessagesPage { messages, earlier: None, more: page.next.is_some(), stale: false })
    }

    async fn messages_of_goal(&self, opened: &Opened, goal: &str, query: &MessagesQuery, limit: usize) -> Result<MessagesPage> {
        check_key("goal", goal)?;
        if query.offset > GOAL_OFFSET_MAX {
            let message = format!("an offset among the messages of a goal is at most {GOAL_OFFSET_MAX}; use `since_sequence`");
            return Err(Error::invalid_argument(message));
        }
        let (rows, prefix) = (self.part(opened, Part::GoalMessages)?, format!("{goal}\u{1}"));
        let mut options = ScanOptions::new().with_prefix(&prefix).with_start_after(goal_key(goal, query.since_sequence.unwrap_or(0)));
        let (mut passed, mut sequences, mut more) = (0, Vec::new(), true);
        while more && sequences.len() < limit {
            let wanted = usize::try_from(query.offset - passed).unwrap_or(usize::MAX).saturating_add(limit - sequences.len());
            options.limit = wanted.min(PAGE_MAX);
            let page = self.store().scan(&rows, options.clone()).await?;
            for entry in &page.entries {
                if passed < query.offset {
                    passed += 1;
                    continue;
                }
                let sequence = entry.key().strip_prefix(&prefix).and_then(|digits| digits.parse::<u64>().ok());
                sequences.push(sequence.ok_or_else(|| corrupt("a row of the messages of a goal cannot be read"))?);
            }
            more = page.next.is_some();
            options.start_after = page.next;
        }
        let mut bytes = 0_usize;
        let metas = if sequences.is_empty() { Vec::new() } else { self.metas(opened, &sequences).await? };
        let fitting = metas.iter().take_while(|meta| self.fits(&mut bytes, meta)).count();
        more |= fitting < sequences.len();
        sequences.truncate(fitting);
        Ok(MessagesPage { messages: self.read(opened, &sequences).await?, earlier: None, more, stale: false })
    }

    /// Returns the end of a path.
    ///
    /// Cost: three round trips for a path whose last messages have up to [`RUNS_MAX`](super::path::RUNS_MAX) jumps, and one more for each
    /// further [`RUNS_MAX`](super::path::RUNS_MAX) jumps on the page. One more for an end other than the head.
    pub(super) async fn main_path(&self, id: &TraceId, query: &PathQuery) -> Result<MessagesPage> {
        let max = self.options().page_max;
        let limit = page_limit(query.limit.unwrap_or(max), max)?;
        let opened = self.find_existing(id).await?;
        let mut path = self.path_to(&opened, query.head_sequence.unwrap_or(opened.head.sequence())).await?;
        // From the end of the path towards its beginning.
        let (mut chosen, mut earlier, mut bytes) = (Vec::new(), None, 0);
        let mut is_over = path.end().is_none();
        let mut skipped = 0;
        while !is_over {
            let named: Vec<u64> = path.sequences().skip(skipped).take(limit - chosen.len()).collect();
            let metas = self.metas(&opened, &named).await?;
            for (sequence, meta) in named.iter().zip(&metas) {
                if !self.fits(&mut bytes, meta) {
                    (earlier, is_over) = (Some(*sequence), true);
                    break;
                }
                chosen.push(*sequence);
            }
            if let Some(last) = metas.last().filter(|_| !is_over) {
                let parent = last.path.parent();
                if chosen.len() == limit || parent.is_none() {
                    (earlier, is_over) = (parent, true);
                }
                (path, skipped) = (last.path.clone(), 1);
            }
        }
        chosen.reverse();
        Ok(MessagesPage { messages: self.read(&opened, &chosen).await?, earlier, more: false, stale: false })
    }

    /// Adds a message to a page, and returns whether it fits. The first message always does.
    fn fits(&self, bytes: &mut usize, meta: &MessageMeta) -> bool {
        let is_first = *bytes == 0;
        *bytes = bytes.saturating_add(meta.bytes.max(1));
        is_first || *bytes <= self.options().page_bytes_max
    }
}

fn meta_of(sequence: u64, item: &Item) -> Result<MessageMeta> {
    let meta: MessageMeta = stored("path of a message", &item.meta)?;
    if meta.path.end() != Some(sequence) || !meta.path.is_descending() {
        return Err(corrupt(format!("the path of message {sequence} cannot be read; restore a backup")));
    }
    Ok(meta)
}

fn missing(sequence: u64) -> Error {
    corrupt(format!("the row of message {sequence} is missing; restore a backup"))
}
