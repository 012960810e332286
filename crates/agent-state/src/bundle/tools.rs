//! Tool calls that run in the background, and those that their process left behind.

use super::{RETENTION, check_text};
use crate::owner::{BundleOwner, check_limit, check_name};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::{row, stored};
use treehold_core::ops::Version;
use treehold_core::retry::Attempts;
use treehold_core::scope::check_id;
use treehold_store::{Batch, Condition, Item, Namespace, ScanOptions, Store};

/// The most records that one search for stale runs returns.
pub const STALE_TOOLS_MAX: usize = 1_000;

/// What became of a tool run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum AsyncToolStatus {
    /// It runs, or its process died.
    Running,
    /// It returned a result.
    Completed,
    /// It failed.
    Failed,
    /// It was given up. A result that arrives later is still accepted.
    Timeout,
}

/// A tool call that runs in the background.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct AsyncToolRecord {
    /// Its id.
    pub id: String,
    /// The session that called the tool.
    pub session_id: String,
    /// The tool.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tool_name: String,
    /// The id of the tool call in the conversation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tool_call_id: String,
    /// What became of it.
    pub status: AsyncToolStatus,
    /// Its result.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub result: String,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// When it started.
    pub created_at: Timestamp,
    /// When the record changed.
    pub updated_at: Timestamp,
}

impl AsyncToolRecord {
    /// Describes a run that starts now.
    pub fn new(id: impl Into<String>, session: impl Into<String>, tool_name: impl Into<String>, tool_call: impl Into<String>) -> Self {
        let (id, session_id, now) = (id.into(), session.into(), Timestamp::now());
        let (tool_name, tool_call_id) = (tool_name.into(), tool_call.into());
        let (result, error) = (String::new(), String::new());
        let status = AsyncToolStatus::Running;
        Self { id, session_id, tool_name, tool_call_id, status, result, error, created_at: now, updated_at: now }
    }

    /// Sets when the run started.
    #[must_use]
    pub fn with_created_at(mut self, created_at: Timestamp) -> Self {
        self.created_at = created_at;
        self
    }

    /// Sets what became of the run, for a record that is registered late.
    #[must_use]
    pub fn with_status(mut self, status: AsyncToolStatus, result: impl Into<String>, error: impl Into<String>) -> Self {
        (self.status, self.result, self.error) = (status, result.into(), error.into());
        self
    }
}

/// The tool runs of an owner in a store. A record is kept for 7 days after its last change, and no longer than its session.
///
/// A run ends once: a second result is ignored, and so is a time-out after a result. Clones share the records.
#[derive(Clone)]
pub struct AsyncToolRegistry {
    store: Arc<dyn Store>,
    owner: BundleOwner,
    clock: Clock,
}

impl AsyncToolRegistry {
    /// Opens the registry of an owner.
    pub fn new(store: Arc<dyn Store>, owner: BundleOwner) -> Self {
        Self { store, owner, clock: Clock::system() }
    }

    /// Sets the clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Registers a run. Registering the same run again changes nothing. Cost: one round trip.
    ///
    /// # Errors
    /// [`AlreadyExists`](ErrorKind::AlreadyExists) if another call has the id. [`InvalidArgument`](ErrorKind::InvalidArgument) for bad ids,
    /// [`TooLarge`](ErrorKind::TooLarge) for long texts. Otherwise as [`Store::commit`].
    pub async fn register(&self, record: &AsyncToolRecord) -> Result<()> {
        check_name("id of the tool run", &record.id)?;
        for (what, text) in [
            ("name of the tool", &record.tool_name),
            ("id of the tool call", &record.tool_call_id),
            ("result", &record.result),
            ("error", &record.error),
        ] {
            check_text(what, text)?;
        }
        let record = AsyncToolRecord { updated_at: self.clock.now(), ..record.clone() };
        let (sessions, rows) = (self.sessions()?, self.rows(&record.session_id)?);
        let (mut attempts, mut known) = (Attempts::new(), Condition::Absent);
        loop {
            let batch = Batch::new().expect(&sessions, &*record.id, known).expect(&rows, &*record.id, Condition::Absent);
            match self.store.commit(self.keep(batch, &record)?).await {
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                done => return done.map(drop),
            }
            let found = self.store.get(&sessions, &record.id).await?;
            let of_call = |found: &AsyncToolRecord| {
                (&found.session_id, &found.tool_name, &found.tool_call_id) == (&record.session_id, &record.tool_name, &record.tool_call_id)
            };
            match self.get(&record.id).await? {
                Some(found) if of_call(&found) => return Ok(()),
                Some(_) => {
                    let message = format!("a tool run with the id `{}` exists; choose another id", record.id);
                    return Err(Error::new(ErrorKind::AlreadyExists, message).without_effect());
                }
                // The session of an earlier run with this id was deleted.
                None => known = found.map_or(Condition::Absent, |found| Condition::Version(found.version)),
            }
            attempts.lost().await?;
        }
    }

    /// Returns a run; `None` if it is unknown or its session was deleted. Cost: two round trips.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) if the record cannot be read. Otherwise as [`Store::get`].
    pub async fn get(&self, id: &str) -> Result<Option<AsyncToolRecord>> {
        check_name("id of the tool run", id)?;
        Ok(self.find(id).await?.map(|(record, _)| record))
    }

    /// Records the result of a run. Returns false if the run had ended. Cost: three round trips.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for an unknown run and one whose session was deleted, [`TooLarge`](ErrorKind::TooLarge) for a long
    /// text. Otherwise as [`Store::commit`].
    pub async fn complete(&self, id: &str, result: &str) -> Result<bool> {
        check_text("result", result)?;
        self.end(id, AsyncToolStatus::Completed, result, "").await
    }

    /// Records that a run failed. Returns false if the run had ended. Cost: three round trips.
    ///
    /// # Errors
    /// As [`AsyncToolRegistry::complete`].
    pub async fn fail(&self, id: &str, error: &str) -> Result<bool> {
        check_text("error", error)?;
        self.end(id, AsyncToolStatus::Failed, "", error).await
    }

    /// Gives up a run. Returns false if the run had ended. Cost: three round trips.
    ///
    /// # Errors
    /// As [`AsyncToolRegistry::complete`].
    pub async fn mark_timeout(&self, id: &str) -> Result<bool> {
        self.end(id, AsyncToolStatus::Timeout, "", "").await
    }

    /// Returns runs of a session that started longer ago than `age` and have not ended, oldest ids first. Cost: two round trips for each
    /// 1,000 runs of the session that have not ended.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a bad session or a limit that is not 1 to [`STALE_TOOLS_MAX`]. Otherwise as
    /// [`AsyncToolRegistry::get`].
    pub async fn find_stale(&self, session: &str, age: Duration, limit: usize) -> Result<Vec<AsyncToolRecord>> {
        check_limit(limit, STALE_TOOLS_MAX)?;
        let running = self.running(session)?;
        let (rows, before) = (self.rows(session)?, self.clock.now().checked_sub(age).unwrap_or(Timestamp::MIN));
        let (mut options, mut stale) = (ScanOptions::new(), Vec::new());
        loop {
            let scan = self.store.scan(&running, options.clone()).await?;
            let ids: Vec<&str> = scan.entries.iter().map(|entry| entry.key()).collect();
            for found in self.store.get_many(&rows, &ids, true).await?.iter().flatten() {
                let record = record_of(found)?;
                if record.status == AsyncToolStatus::Running && record.created_at < before && stale.len() < limit {
                    stale.push(record);
                }
            }
            match scan.next {
                Some(next) if stale.len() < limit => options.start_after = Some(next),
                _ => return Ok(stale),
            }
        }
    }

    async fn end(&self, id: &str, status: AsyncToolStatus, result: &str, error: &str) -> Result<bool> {
        check_name("id of the tool run", id)?;
        let mut attempts = Attempts::new();
        loop {
            let Some((record, version)) = self.find(id).await? else {
                return Err(Error::new(ErrorKind::NotFound, format!("there is no tool run `{id}`; register it first")));
            };
            let is_open = match record.status {
                AsyncToolStatus::Running => true,
                AsyncToolStatus::Timeout => status != AsyncToolStatus::Timeout,
                AsyncToolStatus::Completed | AsyncToolStatus::Failed => false,
            };
            if !is_open {
                return Ok(false);
            }
            let record = AsyncToolRecord { updated_at: self.clock.now(), ..record.with_status(status, result, error) };
            let rows = self.rows(&record.session_id)?;
            let batch = self.keep(Batch::new().expect(&rows, id, Condition::Version(version)), &record)?;
            match self.store.commit(batch).await {
                Err(error) if error.kind() == ErrorKind::Conflict => attempts.lost().await?,
                done => return done.map(|_| true),
            }
        }
    }

    /// Finds a record, and its version.
    async fn find(&self, id: &str) -> Result<Option<(AsyncToolRecord, Version)>> {
        let Some(found) = self.store.get(&self.sessions()?, id).await? else { return Ok(None) };
        let session: String = stored("session of a tool run", &found.value)?;
        let Some(found) = self.store.get(&self.rows(&session)?, id).await? else { return Ok(None) };
        Ok(Some((record_of(&found)?, found.version)))
    }

    /// Adds the rows of a record to a batch.
    fn keep(&self, batch: Batch, record: &AsyncToolRecord) -> Result<Batch> {
        let (rows, running) = (self.rows(&record.session_id)?, self.running(&record.session_id)?);
        let batch = batch.put_for(&rows, &*record.id, row(record), RETENTION);
        let batch = batch.put_for(&self.sessions()?, &*record.id, row(&record.session_id), RETENTION);
        Ok(match record.status {
            AsyncToolStatus::Running => batch.put_for(&running, &*record.id, "", RETENTION),
            _ => batch.delete(&running, &*record.id),
        })
    }

    /// The session of each run. A run whose record is gone does not exist.
    fn sessions(&self) -> Result<Namespace> {
        self.owner.rows("tools-by-id", [])
    }

    /// The records of a session's runs.
    fn rows(&self, session: &str) -> Result<Namespace> {
        check_id("session", session)?;
        records_of(&self.owner, session)
    }

    /// The runs of a session that have not ended.
    fn running(&self, session: &str) -> Result<Namespace> {
        check_id("session", session)?;
        running_of(&self.owner, session)
    }
}

fn records_of(owner: &BundleOwner, session: &str) -> Result<Namespace> {
    owner.rows("tools", [session])
}

fn running_of(owner: &BundleOwner, session: &str) -> Result<Namespace> {
    owner.rows("tools-running", [session])
}

/// Returns the namespaces of a session's runs. The row that names the session of a run is not among them; it expires by itself.
pub(super) fn namespaces_of(owner: &BundleOwner, session: &str) -> Result<[Namespace; 2]> {
    Ok([records_of(owner, session)?, running_of(owner, session)?])
}

impl fmt::Debug for AsyncToolRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncToolRegistry({})", self.store)
    }
}

fn record_of(row: &Item) -> Result<AsyncToolRecord> {
    stored("tool run", &row.value)
}
