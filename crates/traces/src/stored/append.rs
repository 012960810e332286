//! Appends messages.

use super::StoredTraces;
use super::draft::{Draft, Spent};
use super::messages::{MessageMeta, default_id, default_sequence, goal_key};
use super::once::{Earlier, Once};
use super::path::Path;
use super::rows::{Opened, Part, corrupt, position_key, time_text};
use super::text::{check_key, check_name, check_usage, checked, without};
use super::trace::no_sequence;
use crate::contract::{AddOptions, Added, PAGE_MAX};
use crate::id::TraceId;
use crate::model::{Message, NewMessage, SequenceRange, kinds};
use serde_json::json;
use std::collections::{HashMap, HashSet};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::row;
use treehold_core::retry::Attempts;
use treehold_store::escape_key;

/// The fields of a message. No other field has one of these names.
const FIELDS: &[&str] = &[
    "message_id",
    "trace_id",
    "role",
    "sequence",
    "parent_sequence",
    "goal_id",
    "tool_call_id",
    "content",
    "tokens",
    "cost",
    "branch_type",
    "summarizes",
    "created_at",
];

/// How many reads look for the beginning of a span on the main path. Each covers a part of the path with up to
/// [`RUNS_MAX`](super::path::RUNS_MAX) jumps.
const SPAN_READS_MAX: usize = 64;

impl StoredTraces {
    /// Appends messages.
    ///
    /// Cost: two round trips. One more each for an idempotency key, for parents other than the head, for message ids of the caller, for
    /// goals, for another status, and for another task or configuration; none of them depends on the length of the trace.
    pub(super) async fn append(&self, id: &TraceId, messages: &[NewMessage], options: &AddOptions) -> Result<Added> {
        options.check(messages.len())?;
        self.check_messages(id, messages)?;
        let once = Once::of(messages, options)?;
        let mut attempts = Attempts::new();
        loop {
            let mut draft = self.draft(id).await?;
            if let Some(once) = &once
                && let Some(earlier) = once.find(self, &draft.opened).await?
            {
                return self.repeated(&draft.opened, earlier).await;
            }
            let head = draft.next.sequence();
            if let Some(expected) = options.expected_head.filter(|expected| *expected != head) {
                let message = format!("the head of the trace `{id}` is {head} and not {expected}; read what was added, and try again");
                return Err(Error::new(ErrorKind::Conflict, message).without_effect());
            }
            if messages.is_empty() {
                return Ok(Added { messages: Vec::new(), head_sequence: head, repeated: false });
            }
            let first = draft.next.last_sequence.saturating_add(1);
            let added = self.plan(&mut draft, id, messages).await?;
            let head_sequence = draft.next.sequence();
            if let Some(update) = &options.update {
                self.plan_update(&mut draft, id, update).await?;
            }
            if let Some(once) = &once {
                once.put(&mut draft, self, Earlier { first, count: added.len(), head_sequence })?;
            }
            if draft.commit().await? {
                return Ok(Added { messages: added, head_sequence, repeated: false });
            }
            attempts.lost().await?;
        }
    }

    async fn repeated(&self, opened: &Opened, earlier: Earlier) -> Result<Added> {
        let Earlier { first, count, head_sequence } = earlier;
        // The end behind the last message; a count beyond the messages of the trace is damage.
        let end = u64::try_from(count).ok().and_then(|count| first.checked_add(count));
        let end = end.filter(|end| first > 0 && *end <= opened.head.last_sequence.saturating_add(1) && count <= PAGE_MAX);
        let sequences: Vec<u64> = (first..end.ok_or_else(|| corrupt("the row of an idempotency key cannot be read"))?).collect();
        Ok(Added { messages: self.read(opened, &sequences).await?, head_sequence, repeated: true })
    }

    /// Checks everything that does not depend on the trace.
    fn check_messages(&self, id: &TraceId, messages: &[NewMessage]) -> Result<()> {
        let max = self.options().page_max;
        if messages.len() > max {
            let message = format!("{} messages exceed the {max} of one call; split it", messages.len());
            return Err(Error::invalid_argument(message));
        }
        let mut ids = HashSet::new();
        for message in messages {
            check_name("role", &message.role)?;
            check_usage(message.tokens, message.cost)?;
            message.goal_id.as_deref().map_or(Ok(()), |goal| check_key("goal", goal))?;
            message.tool_call_id.as_deref().map_or(Ok(()), |call| check_name("tool call id", call))?;
            message.branch_type.as_deref().map_or(Ok(()), |kind| check_name("type of the side branch", kind))?;
            if message.branch_type.is_some() && message.summarizes.is_some() {
                let message = "a message of a side branch cannot summarise the main path; leave out `branch_type` or `summarizes`";
                return Err(Error::invalid_argument(message));
            }
            if let Some(message_id) = message.message_id.as_deref() {
                if default_sequence(id, message_id).is_none() {
                    check_key("message", message_id)?;
                }
                if !ids.insert(message_id) {
                    return Err(taken(message_id));
                }
            }
        }
        Ok(())
    }

    /// Plans the rows of the messages, and returns them as they will be stored.
    async fn plan(&self, draft: &mut Draft<'_>, id: &TraceId, messages: &[NewMessage]) -> Result<Vec<Message>> {
        let mut paths = self.paths_of(draft, messages).await?;
        self.check_ids(draft, id, messages).await?;
        let [rows, ids, goals] = [draft.part(Part::Messages)?, draft.part(Part::MessageIds)?, draft.part(Part::GoalMessages)?];
        let (created_at, mut bytes) = (time_text(draft.now), 0_usize);
        let mut added: Vec<Message> = Vec::with_capacity(messages.len());
        let mut previous = draft.next.path.clone();
        for new in messages {
            let before = match (new.summarizes, new.parent_sequence) {
                (Some(span), parent) => self.before_span(draft, &paths, span, parent).await?,
                (None, None) => previous,
                (None, Some(0)) => Path::default(),
                (None, Some(parent)) => paths.get(&parent).cloned().ok_or_else(|| no_sequence(parent, &draft.next))?,
            };
            let sequence = draft.sequence()?;
            let message = Message {
                message_id: message_id(id, new, sequence)?,
                trace_id: id.clone().into(),
                role: new.role.clone(),
                sequence,
                parent_sequence: before.end(),
                goal_id: new.goal_id.clone(),
                tool_call_id: new.tool_call_id.clone(),
                content: new.content.clone(),
                tokens: new.tokens,
                cost: new.cost,
                branch_type: new.branch_type.clone(),
                summarizes: new.summarizes,
                created_at: Some(created_at.clone()),
                other: without(&new.other, FIELDS),
            };
            let value = checked("message", &message, self.options().message_bytes_max)?;
            bytes = bytes.saturating_add(value.len());
            let path = before.with(sequence);
            let meta = row(&MessageMeta { path: path.clone(), bytes: value.len() });
            draft.add(|batch| batch.put_with_meta(&rows, position_key(sequence), meta, value));
            if message.message_id != default_id(id, sequence) {
                draft.add(|batch| batch.put(&ids, escape_key(&message.message_id), row(&sequence)));
            }
            if let Some(goal) = &message.goal_id {
                draft.add(|batch| batch.put(&goals, goal_key(goal, sequence), ""));
            }
            draft.spend(message.goal_id.as_deref(), Spent::of(message.tokens, message.cost))?;
            if message.branch_type.is_none() {
                draft.next.path = path.clone();
            }
            tell(draft, &message)?;
            previous = path.clone();
            paths.insert(sequence, path);
            added.push(message);
        }
        let max = self.options().batch_bytes_max;
        if bytes > max {
            let message = format!("the messages have {bytes} bytes as JSON and one call may have at most {max}; split it");
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        Ok(added)
    }

    /// Reads the paths to the messages that the call names: explicit parents, and the first messages of spans.
    async fn paths_of(&self, draft: &Draft<'_>, messages: &[NewMessage]) -> Result<HashMap<u64, Path>> {
        let named = messages.iter().flat_map(|new| [new.parent_sequence, new.summarizes.map(|span| span.from)]).flatten();
        let mut named: Vec<u64> = named.filter(|sequence| draft.next.has(*sequence)).collect();
        named.sort_unstable();
        named.dedup();
        if named.is_empty() {
            return Ok(HashMap::new());
        }
        let metas = self.metas(&draft.opened, &named).await?;
        Ok(named.into_iter().zip(metas.into_iter().map(|meta| meta.path)).collect())
    }

    /// Returns the path before a span of the main path, which a summary continues.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a span that does not end at the head or begins beside the path to the head, and
    /// for a parent other than that of the first message.
    async fn before_span(&self, draft: &Draft<'_>, paths: &HashMap<u64, Path>, span: SequenceRange, parent: Option<u64>) -> Result<Path> {
        let SequenceRange { from, to } = span;
        let head = draft.next.sequence();
        if to != head || from > to || from == 0 {
            let message = format!("a summary must replace messages up to the head, which is {head}; the span {from} to {to} does not");
            return Err(Error::invalid_argument(message));
        }
        let beside =
            || Error::invalid_argument(format!("message {from} is not on the path to the head {head}, so no summary can replace it"));
        let mut path = draft.next.path.clone();
        for _ in 0..SPAN_READS_MAX {
            if path.names(from) {
                let before = paths.get(&from).ok_or_else(beside)?.before();
                if parent.is_some_and(|parent| parent != before.end().unwrap_or(0)) {
                    let expected = before.end().unwrap_or(0);
                    let message = format!("the parent of this summary must be {expected}, the parent of message {from}; leave it out");
                    return Err(Error::invalid_argument(message));
                }
                return Ok(before);
            }
            let Some(first) = path.first_named().filter(|first| *first > from) else { return Err(beside()) };
            let further = match paths.get(&first) {
                Some(known) => known.clone(),
                None => self.path_to(&draft.opened, first).await?,
            };
            if further.first_named() == Some(first) {
                return Err(beside());
            }
            path = further;
        }
        Err(Error::invalid_argument("the span of the summary has too many rewinds; summarise the last part of it first"))
    }

    /// Refuses message ids that the trace has.
    async fn check_ids(&self, draft: &Draft<'_>, id: &TraceId, messages: &[NewMessage]) -> Result<()> {
        let ids = messages.iter().filter_map(|new| new.message_id.as_deref());
        let ids: Vec<&str> = ids.filter(|message_id| default_sequence(id, message_id).is_none()).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let keys: Vec<String> = ids.iter().map(|message_id| escape_key(message_id)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let found = self.store().get_many(&draft.part(Part::MessageIds)?, &keys, false).await?;
        match ids.into_iter().zip(found).find(|(_, found)| found.is_some()) {
            Some((message_id, _)) => Err(taken(message_id)),
            None => Ok(()),
        }
    }
}

/// Returns the id of a message. The form of a default id is reserved for the message with that sequence.
fn message_id(id: &TraceId, new: &NewMessage, sequence: u64) -> Result<String> {
    let own = default_id(id, sequence);
    match &new.message_id {
        None => Ok(own),
        Some(message_id) if default_sequence(id, message_id).is_some_and(|of| of != sequence) => {
            let message = format!("the message id `{message_id}` belongs to another sequence than {sequence}; leave it out");
            Err(Error::invalid_argument(message))
        }
        Some(message_id) => Ok(message_id.clone()),
    }
}

fn taken(message_id: &str) -> Error {
    let message = format!("the trace has a message with the id `{}`; choose another id, or leave it out", message_id.escape_debug());
    Error::new(ErrorKind::AlreadyExists, message).without_effect()
}

/// Adds the event of a message. Readers fetch the content by its sequence.
fn tell(draft: &mut Draft<'_>, message: &Message) -> Result<()> {
    let mut data = vec![
        ("message_id", json!(message.message_id)),
        ("sequence", json!(message.sequence)),
        ("parent_sequence", json!(message.parent_sequence)),
        ("role", json!(message.role)),
        ("head_sequence", json!(draft.next.sequence())),
    ];
    if let Some(goal) = &message.goal_id {
        data.push(("goal_id", json!(goal)));
    }
    if let Some(kind) = &message.branch_type {
        data.push(("branch_type", json!(kind)));
    }
    draft.tell(kinds::MESSAGE_ADDED, data)
}
