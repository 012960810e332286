//! All messages that a value ever had, page by page.

use super::StoreStates;
use super::head::{Look, decoded};
use super::read::digest_in;
use crate::contract::StateKey;
use crate::rows::{Form, corrupt, position_key};
use crate::slot::StateSlot;
use crate::value::{Body, Segment, message_json};
use treehold_core::error::Result;
use treehold_core::json::Json;
use treehold_core::work;
use treehold_store::{Item, ScanEntry, ScanOptions};

/// A page of the messages that a value ever had.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct HistoryPage {
    /// The messages, oldest first.
    pub entries: Vec<HistoryEntry>,
    /// Where the next page starts; `None` at the end.
    pub next: Option<u64>,
}

/// A message that a value has or had.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct HistoryEntry {
    /// Its position. Positions grow in the order in which messages were first saved, with gaps.
    pub position: u64,
    /// The message.
    pub message: Json,
    /// Whether the value has it now.
    pub is_current: bool,
}

impl StoreStates {
    /// Returns a page of all messages that a value ever had, oldest first: those that it has, and those that left it less than the
    /// [retention](crate::AgentStatesOptions::retention) ago. `from` is the first position, and the `next` of the page before. A page may
    /// have fewer messages than the limit, or none, and still be followed by another one.
    ///
    /// Cost: two round trips.
    ///
    /// # Errors
    /// As [`AgentStateStore::get`](crate::AgentStateStore::get).
    pub async fn history(&self, slot: &StateSlot, key: &StateKey, from: u64, limit: usize) -> Result<HistoryPage> {
        let (form, key) = match key {
            StateKey::Single(key) => (Form::Single, key.as_str()),
            StateKey::List(key) => (Form::List, key.as_str()),
        };
        self.check_key(key)?;
        let owner = self.owner(slot.user())?;
        let seen = self.look(&owner, slot, form, key, Look::ToRead).await?;
        let mut history = HistoryPage::default();
        let Some(head) = seen.live() else { return Ok(history) };
        let body = decoded(head).await?;
        let Some(log) = &body.log else { return Ok(history) };
        let index = log.segments.iter().rposition(|segment| segment.start <= from).unwrap_or(0);
        let rows = owner.log_of(&head.meta.data, &log.id, log.segments.get(index).and_then(Segment::id))?;
        let mut options = ScanOptions::new().with_values(true).with_limit(self.page_limit(limit));
        options.start_after = from.checked_sub(1).map(position_key);
        let page = self.store().scan(&rows, options).await?;
        let last = page.next.and_then(|key| key.parse::<u64>().ok());
        history.next = match last {
            Some(last) => last.checked_add(1),
            None => log.segments.get(index + 1).map(|segment| segment.start.max(from.saturating_add(1))),
        };
        let items: Vec<Item> =
            page.entries.into_iter().filter_map(|entry| if let ScanEntry::Item(item) = entry { Some(item) } else { None }).collect();
        let bytes = items.iter().fold(0_usize, |bytes, item| bytes.saturating_add(item.value.len()));
        let entries = work::run(bytes as u64, move |_| items.iter().map(|item| history_entry(&body, index, item)).collect::<Result<_>>());
        history.entries = entries.await??;
        Ok(history)
    }
}

/// Reads a message that a value has or had from its row. `segment` is the index of the one that holds the row.
fn history_entry(body: &Body, segment: usize, item: &Item) -> Result<HistoryEntry> {
    let position: u64 = item.key.parse().map_err(|_| corrupt("log of a state"))?;
    if digest_in(item)? != *blake3::hash(&item.value).as_bytes() {
        return Err(corrupt("message"));
    }
    let runs = body.window.as_ref().map_or(&[][..], |window| &window.runs);
    let is_current = runs.iter().any(|run| run.segment == segment && (run.from..run.to).contains(&position));
    Ok(HistoryEntry { position, message: message_json(&item.value)?, is_current })
}
