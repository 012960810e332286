//! The list of a user's traces by time, and how many there are of each kind.
//!
//! Each trace has four rows in the list, one for each way to filter, so every page is one scan. The counts are in a few rows by the id of the
//! trace, so that traces of one user are rarely created or ended on the same row.

use super::rows::{Head, UserRows};
use crate::id::TraceId;
use crate::model::{TraceMode, TraceStatus};
use std::collections::BTreeMap;
use treehold_core::error::Result;
use treehold_core::json::{row, stored};
use treehold_store::{Batch, Condition, Store};

/// The number of rows of counts.
const COUNTS: u8 = 16;

/// How many traces there are of each kind, see [`Head::kind`].
type Counts = BTreeMap<String, u64>;

/// Returns the beginning of the keys of a filter.
pub(super) fn prefix(status: Option<TraceStatus>, mode: Option<TraceMode>) -> String {
    let part = |name: Option<&'static str>| name.unwrap_or("*");
    format!("{} {}\u{1}", part(status.map(TraceStatus::as_str)), part(mode.map(TraceMode::as_str)))
}

/// Returns the end of a trace's keys: newest first, then by id.
pub(super) fn position(created_at: i64, id: &TraceId) -> String {
    format!("{:020}{id}", i64::MAX - created_at.max(0))
}

/// Adds a trace to the list.
pub(super) fn list(batch: Batch, rows: &UserRows, id: &TraceId, head: &Head) -> Result<Batch> {
    let recent = rows.recent()?;
    Ok(keys(id, head).into_iter().fold(batch, |batch, key| batch.put(&recent, key, "")))
}

/// Removes a trace from the list.
pub(super) fn unlist(batch: Batch, rows: &UserRows, id: &TraceId, head: &Head) -> Result<Batch> {
    let recent = rows.recent()?;
    Ok(keys(id, head).into_iter().fold(batch, |batch, key| batch.delete(&recent, key)))
}

fn keys(id: &TraceId, head: &Head) -> [String; 4] {
    let (status, mode) = (Some(head.status), Some(head.mode));
    let filters = [(None, None), (None, mode), (status, None), (status, mode)];
    filters.map(|(status, mode)| format!("{}{}", prefix(status, mode), position(head.created_at, id)))
}

fn counts_key(id: &TraceId) -> String {
    let digest = blake3::hash(id.as_str().as_bytes());
    format!("{:02}", digest.as_bytes()[0] % COUNTS)
}

/// Moves a trace from one count to another, on the condition that nobody else changes the same row of counts. Cost: one round trip.
pub(super) async fn count(
    batch: Batch,
    store: &dyn Store,
    rows: &UserRows,
    id: &TraceId,
    from: Option<String>,
    to: Option<String>,
) -> Result<Batch> {
    let (space, key) = (rows.counts()?, counts_key(id));
    let found = store.get(&space, &key).await?;
    let condition = found.as_ref().map_or(Condition::Absent, |item| Condition::Version(item.version));
    let mut counts: Counts = found.map(|item| stored("counts of traces", &item.value)).transpose()?.unwrap_or_default();
    if let Some(from) = from {
        let count = counts.entry(from).or_default();
        *count = count.saturating_sub(1);
    }
    if let Some(to) = to {
        *counts.entry(to).or_default() += 1;
    }
    Ok(batch.expect(&space, &key, condition).put(&space, &key, row(&counts)))
}

/// Returns how many traces there are of the kinds. Cost: one round trip.
pub(super) async fn total(store: &dyn Store, rows: &UserRows, kinds: &[String]) -> Result<u64> {
    let keys: Vec<String> = (0..COUNTS).map(|number| format!("{number:02}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut total = 0_u64;
    for item in store.get_many(&rows.counts()?, &keys, true).await?.into_iter().flatten() {
        let counts: Counts = stored("counts of traces", &item.value)?;
        total = kinds.iter().filter_map(|kind| counts.get(kind)).fold(total, |total, count| total.saturating_add(*count));
    }
    Ok(total)
}
