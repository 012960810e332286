//! The audit log: the durable record of tool calls, in a [`Store`] next to the checkpoints of their thread.
//!
//! A row records who called which tool with which arguments, its outcome, and the checkpoint it led to, but never the content of
//! files. Its id is that of the checkpoint, or lies between those of the checkpoints before and after, so the calls between two
//! checkpoints are one scan. Rows are removed with their thread, or as a [policy](crate::retention) says; a fork or copy starts without any.
//!
//! The row of a call that changes something is committed together with the change if both are in the same store: with the
//! checkpoint of the thread, or with the files of a store. Then neither exists without the other. The rows of other calls are put
//! when the calls end, and rows that could not be put are counted.
//!
//! | namespace | key | value |
//! | --- | --- | --- |
//! | `threads/audit/{tenant}/{user}` | thread, U+0001, id | the row as JSON |
//!
//! Operations on single paths, which tools run, are recorded by the layer [`Audit`](treehold_tree::layer::Audit).

mod open;

pub(crate) use open::{CallEntry, CurrentCall, OpenCall};

use bytes::Bytes;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::scope::Scope;
use treehold_store::{Batch, BatchWrite, Namespace, ScanEntry, ScanOptions, Store};
use treehold_tree::checkpoint::{CheckpointId, SEPARATOR, namespace_of, thread_of};

/// The outcome of a successful call.
pub const OUTCOME_OK: &str = "ok";

/// The outcome of a call whose caller went away before it ended.
pub const OUTCOME_GIVEN_UP: &str = "given_up";

/// A tool call of a thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct AuditRow {
    /// The position among the thread's checkpoints and calls. Grows with time.
    pub id: CheckpointId,
    /// When the call began.
    pub at: Timestamp,
    /// The name of the tool.
    pub tool: String,
    /// The id that the model's API gave to the tool call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Who made the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// The arguments, with every content replaced by its size in bytes.
    pub arguments: Value,
    /// The BLAKE3 hash of the full arguments as JSON, in hexadecimal. It tells whether two calls were equal. Empty in old rows,
    /// which lack it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub arguments_digest: String,
    /// The size of the arguments as JSON, in bytes.
    #[serde(default)]
    pub bytes_in: u64,
    /// The size of the answer in bytes. `None` if the row was committed with its change, before the call was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_out: Option<u64>,
    /// The outcome: `ok`, `given_up`, or an error code.
    pub outcome: String,
    /// How long the call took. In JSON, whole microseconds.
    #[serde(rename = "duration_micros", serialize_with = "micros", deserialize_with = "of_micros")]
    #[schemars(with = "u64")]
    pub duration: Duration,
    /// The checkpoint that the call led to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointId>,
}

impl AuditRow {
    /// Creates the row of a call that has begun and is not answered yet.
    pub fn new(id: CheckpointId, at: Timestamp, tool: impl Into<String>, arguments: Value) -> Self {
        Self {
            id,
            at,
            tool: tool.into(),
            tool_call_id: None,
            actor: None,
            arguments,
            arguments_digest: String::new(),
            bytes_in: 0,
            bytes_out: None,
            outcome: OUTCOME_GIVEN_UP.to_owned(),
            duration: Duration::ZERO,
            checkpoint: None,
        }
    }
}

/// A page of calls, oldest first.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct AuditPage {
    /// The calls.
    pub calls: Vec<AuditRow>,
    /// What to pass as `after` to get the rest; `None` if there is no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<CheckpointId>,
}

/// Which calls of a thread [`AuditLog::prune`] removes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PruneCalls {
    /// Keeps this many of the newest calls.
    pub keep_last: Option<u64>,
    /// Keeps the calls from this time on.
    pub before: Option<Timestamp>,
    /// Only counts.
    pub dry_run: bool,
    /// How many calls are removed in one commit. Default 500.
    pub batch_rows: usize,
}

impl Default for PruneCalls {
    fn default() -> Self {
        Self { keep_last: None, before: None, dry_run: false, batch_rows: ROWS }
    }
}

impl PruneCalls {
    /// Removes all calls except the newest.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps this many of the newest calls.
    #[must_use]
    pub fn with_keep_last(mut self, count: Option<u64>) -> Self {
        self.keep_last = count;
        self
    }

    /// Keeps the calls from a time on.
    #[must_use]
    pub fn with_before(mut self, before: Option<Timestamp>) -> Self {
        self.before = before;
        self
    }

    /// Only counts.
    #[must_use]
    pub fn with_dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    /// Sets how many calls are removed in one commit.
    #[must_use]
    pub fn with_batch_rows(mut self, rows: usize) -> Self {
        self.batch_rows = rows;
        self
    }
}

/// The tool calls of threads, by the tenant, user and thread of a scope.
///
/// All methods may fail with errors of the store, and with [`InvalidArgument`](ErrorKind::InvalidArgument) for a scope without a
/// thread.
#[derive(Debug)]
pub struct AuditLog {
    store: Arc<dyn Store>,
    lost: AtomicU64,
}

impl AuditLog {
    /// Creates an audit log in a store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, lost: AtomicU64::new(0) }
    }

    /// Adds a call.
    ///
    /// Cost: one put.
    pub async fn append(&self, scope: &Scope, row: &AuditRow) -> Result<()> {
        let batch = Batch { preconditions: Vec::new(), writes: vec![write(scope, row)?] };
        self.store.commit(batch).await.map(drop)
    }

    /// Returns a page of the calls after one checkpoint up to and including the call that led to another, oldest first.
    ///
    /// Cost: one scan, proportional to the result.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) if a row cannot be decoded.
    pub async fn calls(&self, scope: &Scope, after: Option<CheckpointId>, until: Option<CheckpointId>, limit: usize) -> Result<AuditPage> {
        let (namespace, thread) = (namespace_of(scope, KIND)?, thread_of(scope)?);
        let limit_rows = limit.saturating_add(1).min(ROWS);
        let mut options = ScanOptions::new().with_prefix(format!("{thread}{SEPARATOR}")).with_limit(limit_rows).with_values(true);
        options.start_after = after.map(|id| key(thread, id));
        let last = until.map(|id| key(thread, id));
        let mut calls: Vec<AuditRow> = Vec::new();
        loop {
            let page = self.store.scan(&namespace, options.clone()).await?;
            for entry in page.entries {
                let ScanEntry::Item(item) = entry else { continue };
                if last.as_ref().is_some_and(|last| item.key > *last) {
                    return Ok(AuditPage { calls, next: None });
                }
                if calls.len() == limit {
                    let next = calls.last().map(|call| call.id).or(after).unwrap_or(CheckpointId::MIN);
                    return Ok(AuditPage { calls, next: Some(next) });
                }
                calls.push(
                    serde_json::from_slice(&item.value)
                        .map_err(|error| Error::new(ErrorKind::Corrupt, "an audit row cannot be decoded").with_source(error))?,
                );
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => return Ok(AuditPage { calls, next: None }),
            }
        }
    }

    /// Removes the calls of a thread.
    ///
    /// Cost: one range delete.
    pub async fn delete(&self, scope: &Scope) -> Result<()> {
        let batch = Batch::new().delete_prefix(&namespace_of(scope, KIND)?, format!("{}{SEPARATOR}", thread_of(scope)?));
        self.store.commit(batch).await.map(drop)
    }

    /// Returns a page of the threads of the scope's tenant and user that have calls, ordered by id, and whether there are more.
    ///
    /// Cost: one scan, independent of the number of calls.
    pub async fn threads(&self, scope: &Scope, start_after: Option<&str>, limit: usize) -> Result<(Vec<String>, bool)> {
        let mut options = ScanOptions::new().with_delimiter(SEPARATOR).with_limit(limit);
        options.start_after = start_after.map(|thread| format!("{thread}{SEPARATOR}"));
        let page = self.store.scan(&namespace_of(scope, KIND)?, options).await?;
        let thread = |entry: ScanEntry| match entry {
            ScanEntry::Group { name, .. } => name.strip_suffix(SEPARATOR).map(str::to_owned),
            _ => None,
        };
        Ok((page.entries.into_iter().filter_map(thread).collect(), page.next.is_some()))
    }

    /// Removes old calls of a thread, the oldest first, and returns how many. A call is removed only if every rule that is set allows it.
    /// The newest call always stays.
    ///
    /// Cost: reads the keys of the calls up to the first that is too young, and holds `keep_last` of them in memory.
    ///
    /// # Errors
    /// Those of the store, after what was removed before.
    pub async fn prune(&self, scope: &Scope, options: &PruneCalls) -> Result<u64> {
        let (namespace, thread) = (namespace_of(scope, KIND)?, thread_of(scope)?);
        let first_young = options.before.map(|before| key(thread, CheckpointId::at_least(before)));
        let keep_last = usize::try_from(options.keep_last.unwrap_or(1)).unwrap_or(usize::MAX).max(1);
        let mut scan = ScanOptions::new().with_prefix(format!("{thread}{SEPARATOR}"));
        let (mut newest, mut old, mut removed) = (VecDeque::new(), Vec::new(), 0);
        loop {
            let page = self.store.scan(&namespace, scan.clone()).await?;
            for entry in page.entries {
                let ScanEntry::Item(item) = entry else { continue };
                newest.push_back(item.key);
                if newest.len() > keep_last
                    && let Some(oldest) = newest.pop_front()
                {
                    if first_young.as_ref().is_some_and(|first| oldest >= *first) {
                        return Ok(removed + self.remove(&namespace, &mut old, options).await?);
                    }
                    old.push(oldest);
                }
                if old.len() >= options.batch_rows.max(1) {
                    removed += self.remove(&namespace, &mut old, options).await?;
                }
            }
            match page.next {
                Some(next) => scan.start_after = Some(next),
                None => return Ok(removed + self.remove(&namespace, &mut old, options).await?),
            }
        }
    }

    /// Removes rows in one commit and empties the list. Returns their number.
    async fn remove(&self, namespace: &Namespace, keys: &mut Vec<String>, options: &PruneCalls) -> Result<u64> {
        let count = keys.len() as u64;
        let batch = keys.drain(..).fold(Batch::new(), |batch, key| batch.delete(namespace, key));
        if count > 0 && !options.dry_run {
            self.store.commit(batch).await?;
        }
        Ok(count)
    }

    /// Returns the number of calls that could not be recorded.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Records a call that has already been made. A failure can no longer be reported to the caller, so it is logged and counted.
    pub(crate) async fn record(&self, scope: &Scope, row: &AuditRow) {
        if let Err(error) = self.append(scope, row).await {
            self.lost.fetch_add(1, Ordering::Relaxed);
            tracing::error!(tool = row.tool, outcome = row.outcome, %error, "could not record the audit row of a tool call");
        }
    }
}

impl fmt::Display for AuditLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AuditLog({})", self.store)
    }
}

/// Returns the write of a row.
fn write(scope: &Scope, row: &AuditRow) -> Result<BatchWrite> {
    let value =
        serde_json::to_vec(row).map_err(|error| Error::new(ErrorKind::Internal, "an audit row cannot be encoded").with_source(error))?;
    Ok(BatchWrite::Put {
        namespace: namespace_of(scope, KIND)?,
        key: key(thread_of(scope)?, row.id),
        meta: Bytes::new(),
        value: value.into(),
        time_to_live: None,
        created_at: None,
    })
}

/// The namespace component beneath that of threads.
pub(crate) const KIND: &str = "audit";

/// How many rows are read at once.
const ROWS: usize = 500;

fn key(thread: &str, id: CheckpointId) -> String {
    format!("{thread}{SEPARATOR}{id}")
}

fn micros<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}

fn of_micros<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    u64::deserialize(deserializer).map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use treehold_store::MemoryStore;

    fn id(number: u64) -> CheckpointId {
        format!("018f0000-0000-7000-8000-{number:012}").parse().expect("an id")
    }

    fn row(number: u64) -> AuditRow {
        let mut row = AuditRow::new(id(number), Timestamp::UNIX_EPOCH, "ls", json!({"path": "/"}));
        row.duration = Duration::from_micros(number);
        row
    }

    #[tokio::test]
    async fn calls_between_checkpoints_are_returned_in_pages() {
        let log = AuditLog::new(Arc::new(MemoryStore::new()));
        let scope = Scope::new().with_user("ada").with_thread("t");
        for number in [1, 2, 3, 5, 8] {
            log.append(&scope, &row(number)).await.expect("kept");
        }
        log.append(&scope.clone().with_thread("t2"), &row(4)).await.expect("another thread");
        let numbers = async |after: Option<u64>, until: Option<u64>, limit| {
            let page = log.calls(&scope, after.map(id), until.map(id), limit).await.expect("read");
            let numbers: Vec<u128> = page.calls.iter().map(|call| call.duration.as_micros()).collect();
            (numbers, page.next)
        };
        assert_eq!(numbers(None, None, 100).await, (vec![1, 2, 3, 5, 8], None));
        assert_eq!(numbers(Some(1), Some(5), 100).await, (vec![2, 3, 5], None));
        assert_eq!(numbers(Some(1), Some(4), 1).await, (vec![2], Some(id(2))));
        assert_eq!(numbers(Some(2), Some(4), 1).await, (vec![3], None));
        assert_eq!(numbers(Some(8), None, 1).await, (vec![], None));
        assert_eq!(log.calls(&scope, None, None, 1).await.expect("read").calls, [row(1)], "as it was given");
        let threads = async |after, limit| log.threads(&scope, after, limit).await.expect("read");
        assert_eq!(threads(None, 1).await, (vec!["t".to_owned()], true));
        assert_eq!(threads(Some("t"), 9).await, (vec!["t2".to_owned()], false));
        log.delete(&scope).await.expect("removed");
        assert_eq!(numbers(None, None, 100).await, (vec![], None));
        assert_eq!(log.calls(&scope.with_thread("t2"), None, None, 9).await.expect("read").calls.len(), 1);
    }

    /// Compares every combination of rules, for threads of every small length, with a filter over all calls.
    #[tokio::test]
    async fn pruned_calls_are_the_oldest_that_every_rule_allows() {
        let at = |second: u64| Timestamp::from_second(second as i64).expect("a time");
        let (keep_lasts, ages) = ([None, Some(1), Some(2), Some(4), Some(9)], [None, Some(0), Some(3), Some(99)]);
        for count in 1..7_u64 {
            for keep_last in keep_lasts {
                for before in ages {
                    for batch_rows in [0, 1, 2, 100] {
                        let case = format!("{keep_last:?} {before:?} of {count}, {batch_rows} at once");
                        let log = AuditLog::new(Arc::new(MemoryStore::new()));
                        let scope = Scope::new().with_thread("t");
                        for number in 0..count {
                            let id = CheckpointId::new(at(number), None);
                            log.append(&scope, &AuditRow::new(id, at(number), "ls", json!({}))).await.expect("kept");
                        }
                        let options = PruneCalls::new().with_keep_last(keep_last).with_before(before.map(at)).with_batch_rows(batch_rows);
                        let stays = |number: &u64| {
                            let newer = count - 1 - number;
                            newer == 0 || keep_last.is_some_and(|last| newer < last) || before.is_some_and(|before| *number >= before)
                        };
                        let expected: Vec<u64> = (0..count).filter(stays).collect();
                        let would = log.prune(&scope, &options.clone().with_dry_run(true)).await.expect("counted");
                        assert_eq!(log.calls(&scope, None, None, 99).await.expect("read").calls.len() as u64, count, "{case}");
                        assert_eq!(log.prune(&scope, &options).await.expect("pruned"), would, "{case}");
                        let left = log.calls(&scope, None, None, 99).await.expect("read").calls;
                        let left: Vec<u64> = left.iter().map(|call| call.at.as_second() as u64).collect();
                        assert_eq!(left, expected, "{case}");
                    }
                }
            }
        }
    }
}
