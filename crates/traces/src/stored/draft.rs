//! A change of one trace in preparation: the next head, and the rows that commit together with it.

use super::goals::{GoalTotals, totals_key};
use super::rows::{self, Head, Opened, Part, head_key, position_key, time_text};
use super::text::{checked, without};
use super::{StoredTraces, recent};
use crate::id::TraceId;
use crate::model::{OtherFields, TraceEvent};
use serde_json::Value;
use std::collections::BTreeMap;
use tokio::sync::OwnedMutexGuard;
use treehold_core::error::{Error, Result};
use treehold_core::json::{row, stored};
use treehold_store::{Batch, Condition, Namespace};

/// A change that is planned on a head. Its commit fails if another writer replaced the head first.
pub(super) struct Draft<'t> {
    traces: &'t StoredTraces,
    id: &'t TraceId,
    /// The head before the change.
    pub(super) opened: Opened,
    /// The head after the change.
    pub(super) next: Head,
    /// The rows of the change.
    batch: Batch,
    /// The time of the change, in microseconds since 1970.
    pub(super) now: i64,
    spent: BTreeMap<String, Spent>,
    _turn: OwnedMutexGuard<()>,
}

/// What a message takes: added to the totals of the trace and its goal, or removed from them.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Spent {
    pub(super) messages: i64,
    pub(super) tokens: i128,
    pub(super) cost: f64,
}

impl Spent {
    /// Describes one message.
    pub(super) fn of(tokens: Option<u64>, cost: Option<f64>) -> Self {
        Self { messages: 1, tokens: tokens.unwrap_or(0).into(), cost: cost.unwrap_or(0.0) }
    }

    /// Returns the reverse.
    pub(super) fn reversed(self) -> Self {
        Self { messages: -self.messages, tokens: -self.tokens, cost: -self.cost }
    }
}

impl<'t> Draft<'t> {
    pub(super) fn new(traces: &'t StoredTraces, id: &'t TraceId, opened: Opened, turn: OwnedMutexGuard<()>) -> Self {
        let (next, now) = (opened.head.clone(), traces.traces.now());
        Self { traces, id, opened, next, batch: Batch::new(), now, spent: BTreeMap::new(), _turn: turn }
    }

    /// Returns the namespace of one kind of the trace's rows.
    pub(super) fn part(&self, part: Part) -> Result<Namespace> {
        self.traces.part(&self.opened, part)
    }

    /// Adds rows or conditions to the change.
    pub(super) fn add(&mut self, change: impl FnOnce(Batch) -> Batch) {
        self.batch = change(std::mem::take(&mut self.batch));
    }

    /// Adds an event and returns its id.
    ///
    /// # Errors
    /// As [`checked`].
    pub(super) fn event(&mut self, kind: &str, data: &OtherFields) -> Result<u64> {
        let event_id = following("event", self.next.last_event_id)?;
        let data = without(data, &["event_id", "event", "ts"]);
        let event = TraceEvent { event_id, event: kind.to_owned(), ts: Some(time_text(self.now)), data };
        let value = checked("event", &event, self.traces.options().event_bytes_max)?;
        let events = self.part(Part::Events)?;
        self.add(|batch| batch.put(&events, position_key(event_id), value));
        self.next.last_event_id = event_id;
        Ok(event_id)
    }

    /// Adds an event of the store itself.
    pub(super) fn tell(&mut self, kind: &str, data: impl IntoIterator<Item = (&'static str, Value)>) -> Result<()> {
        let data = data.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        self.event(kind, &data).map(drop)
    }

    /// Assigns the next sequence.
    pub(super) fn sequence(&mut self) -> Result<u64> {
        self.next.last_sequence = following("message", self.next.last_sequence)?;
        Ok(self.next.last_sequence)
    }

    /// Adds to the totals of the trace and of a goal.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for tokens that exceed what a total can hold.
    pub(super) fn spend(&mut self, goal: Option<&str>, spent: Spent) -> Result<()> {
        let total = i128::from(self.next.total_tokens) + spent.tokens;
        self.next.total_tokens = u64::try_from(total.max(0)).map_err(|_| overflow())?;
        self.next.total_cost = (self.next.total_cost + spent.cost).max(0.0);
        if let Some(goal) = goal {
            let sum = self.spent.entry(goal.to_owned()).or_default();
            sum.messages += spent.messages;
            sum.tokens += spent.tokens;
            sum.cost += spent.cost;
        }
        Ok(())
    }

    /// Commits the change. Returns whether it took effect; otherwise another writer was faster.
    ///
    /// # Errors
    /// [`Conflict`](treehold_core::error::ErrorKind::Conflict) if the claim is lost that the store depends on, and errors of the store.
    pub(super) async fn commit(mut self) -> Result<bool> {
        self.put_goal_totals().await?;
        let Self { traces, id, opened, next, batch, .. } = self;
        let (spaces, store) = (traces.rows.traces()?, traces.store());
        let mut batch = batch.expect(&spaces, head_key(id), Condition::Version(opened.version)).put(&spaces, head_key(id), row(&next));
        if opened.head.kind() != next.kind() {
            batch = recent::list(recent::unlist(batch, &traces.rows, id, &opened.head)?, &traces.rows, id, &next)?;
            batch = recent::count(batch, store, &traces.rows, id, Some(opened.head.kind()), Some(next.kind())).await?;
        }
        traces.commit(batch).await
    }

    async fn put_goal_totals(&mut self) -> Result<()> {
        if self.spent.is_empty() {
            return Ok(());
        }
        let goals = self.part(Part::Goals)?;
        let spent = std::mem::take(&mut self.spent);
        let keys: Vec<String> = spent.keys().map(|goal| totals_key(goal)).collect();
        let found = self.traces.store().get_many(&goals, &keys.iter().map(String::as_str).collect::<Vec<_>>(), true).await?;
        for ((key, spent), item) in keys.into_iter().zip(spent.into_values()).zip(found) {
            let totals: GoalTotals = item.map(|item| stored("statistics of a goal", &item.value)).transpose()?.unwrap_or_default();
            let totals = totals.with(spent).ok_or_else(overflow)?;
            self.add(|batch| batch.put(&goals, key, row(&totals)));
        }
        Ok(())
    }
}

impl StoredTraces {
    /// Commits a batch under the claim, if there is one. Returns whether it took effect; otherwise another writer was faster.
    pub(super) async fn commit(&self, mut batch: Batch) -> Result<bool> {
        if let Some(fence) = &self.fence {
            batch = fence.expect(batch);
        }
        if rows::commit(self.store(), batch).await?.is_some() {
            return Ok(true);
        }
        if let Some(fence) = &self.fence {
            fence.check(self.store()).await?;
        }
        Ok(false)
    }
}

/// Returns the number after another one.
fn following(what: &str, number: u64) -> Result<u64> {
    number.checked_add(1).ok_or_else(|| rows::corrupt(format!("no {what} can follow number {number}; start another trace")))
}

fn overflow() -> Error {
    Error::invalid_argument("the tokens of the trace would exceed what its totals can hold; start another trace")
}
