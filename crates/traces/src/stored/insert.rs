//! Inserts a whole trace with its own sequences and event ids, as an import does.
//!
//! The rows are written below new data, in any number of commits, and nobody sees them. The last commit makes the trace appear. A row of
//! the data says that the insertion is in progress, and every commit depends on it. So a trace is never there in part: rows that an
//! interrupted insertion left are removed by a sweep, which removes that row first.

use super::draft::Spent;
use super::goals::{GoalTotals, TREE, totals_key};
use super::insertion::{INSERTING, InsertionRow, insertions};
use super::messages::{MessageMeta, default_id, default_sequence, goal_key};
use super::path::Path;
use super::registration::Registration;
use super::rows::{Description, Head, LIVE, Opened, Part, Removal, description_key, head_key, position_key, trace_of};
use super::text::{check_key, check_name, check_usage, checked};
use super::{StoredTraces, TracesOptions, foreign, recent, rows};
use crate::contract::PAGE_MAX;
use crate::id::TraceId;
use crate::model::{GoalTree, Message, Trace, TraceEvent};
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::{row, stored};
use treehold_core::ops::Version;
use treehold_core::retry::Attempts;
use treehold_store::intent::{INTENT_LIFE, time_row};
use treehold_store::{Batch, Condition, Namespace, ScanOptions, escape_key, unescape_key};

/// How many rows are written in one commit.
const ROWS: usize = 500;

/// How many bytes of rows are written in one commit. The last row may exceed it.
const ROWS_BYTES: usize = 4 << 20;

/// The part of a file that one row holds, in bytes.
pub(crate) const ORIGINAL_BYTES: usize = 256 << 10;

/// The key, beneath a trace's data, of what an export needs to know about the insertion.
const INSERTED: &str = "inserted";

/// What an export needs to know about the insertion of a trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Inserted {
    /// The digest of the files.
    pub(crate) digest: String,
    /// The trace after it.
    pub(crate) trace: Trace,
    /// The goals after it.
    pub(crate) goals: GoalTree,
}

/// Files in the form in which they were inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Originals {
    /// Files other than messages.
    Files,
    /// Messages, by id.
    Messages,
}

impl Originals {
    fn rows(self, data: &Namespace) -> Result<Namespace> {
        let name = match self {
            Self::Files => "original-files",
            Self::Messages => "original-messages",
        };
        data.beneath([name])
    }
}

/// Ends the name in the key of a part of a file. No name contains it.
const SEPARATOR: char = '\u{1}';

/// Returns the key of a part of a file.
fn original_key(name: &str, part: usize) -> String {
    format!("{}{SEPARATOR}{part:08}", escape_key(name))
}

/// The path to a message.
#[derive(Debug, Clone, Default)]
pub(crate) struct MessagePath(Path);

impl MessagePath {
    /// Returns this path with one more message, which has a greater sequence.
    pub(crate) fn with(&self, sequence: u64) -> Self {
        Self(self.0.with(sequence))
    }

    /// Returns the last sequences of the path, the last message first.
    #[cfg(test)]
    pub(crate) fn sequences(&self) -> impl Iterator<Item = u64> {
        self.0.sequences()
    }
}

/// What an insertion sets besides the rows.
#[derive(Debug)]
pub(crate) struct Ending {
    /// The trace. Its times are those of `created_at` and `completed_at`.
    pub(crate) trace: Trace,
    pub(crate) created_at: Option<Timestamp>,
    pub(crate) completed_at: Option<Timestamp>,
    /// The path to the head.
    pub(crate) path: MessagePath,
    pub(crate) digest: String,
}

/// A trace that is being inserted.
pub(crate) struct Insert<'t> {
    traces: &'t StoredTraces,
    id: &'t TraceId,
    removal: Removal,
    batch: Batch,
    batch_bytes: usize,
    goals: GoalTree,
    /// Whether a commit may have had an effect.
    is_begun: bool,
}

impl StoredTraces {
    /// Begins to insert a trace. Nothing is written yet.
    ///
    /// # Errors
    /// [`AlreadyExists`](ErrorKind::AlreadyExists) for an id that is taken.
    pub(crate) async fn insert<'t>(&'t self, id: &'t TraceId) -> Result<Insert<'t>> {
        if self.owner(id).await?.is_some() {
            return Err(taken(id));
        }
        let removal =
            Removal { tenant: self.rows.tenant.clone(), user: self.rows.user.clone(), trace: id.clone().into(), data: (self.traces.ids)() };
        Ok(Insert { traces: self, id, removal, batch: Batch::new(), batch_bytes: 0, goals: GoalTree::default(), is_begun: false })
    }

    /// Returns the record of a trace's insertion; `None` for a trace that was created here.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for an unknown trace, [`PermissionDenied`](ErrorKind::PermissionDenied) for another user's.
    pub(crate) async fn inserted(&self, id: &TraceId) -> Result<Option<Inserted>> {
        let opened = self.find_existing(id).await?;
        let found = self.store().get(&self.rows.data(&opened.head.data)?, INSERTED).await?;
        found.map(|item| stored("record of an import", &item.value)).transpose()
    }

    /// Returns the names of the files after a name, a page at a time; an empty page at the end.
    pub(crate) async fn original_files(&self, id: &TraceId, after: Option<&str>) -> Result<Vec<String>> {
        let opened = self.find_existing(id).await?;
        let files = Originals::Files.rows(&self.rows.data(&opened.head.data)?)?;
        let mut options = ScanOptions::new().with_delimiter(SEPARATOR).with_limit(PAGE_MAX);
        if let Some(after) = after {
            options = options.with_start_after(format!("{}{SEPARATOR}", escape_key(after)));
        }
        let page = self.store().scan(&files, options).await?;
        page.entries.iter().map(|entry| unescape_key(entry.key().trim_end_matches(SEPARATOR))).collect()
    }

    /// Returns one part of a file; `None` behind its last one.
    pub(crate) async fn original_part(&self, id: &TraceId, of: Originals, name: &str, part: usize) -> Result<Option<Bytes>> {
        let opened = self.find_existing(id).await?;
        let files = of.rows(&self.rows.data(&opened.head.data)?)?;
        Ok(self.store().get(&files, &original_key(name, part)).await?.map(|item| item.value))
    }

    /// Returns the first part of each message's file, in the order of the ids; `None` for a message whose file is what an export writes.
    pub(crate) async fn original_messages(&self, id: &TraceId, message_ids: &[&str]) -> Result<Vec<Option<Bytes>>> {
        if message_ids.is_empty() {
            return Ok(Vec::new());
        }
        let opened = self.find_existing(id).await?;
        let rows = Originals::Messages.rows(&self.rows.data(&opened.head.data)?)?;
        let keys: Vec<String> = message_ids.iter().map(|message_id| original_key(message_id, 0)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let found = self.store().get_many(&rows, &keys, true).await?;
        Ok(found.into_iter().map(|item| item.map(|item| item.value)).collect())
    }
}

impl Insert<'_> {
    /// Adds a message that was checked, with the path to it.
    pub(crate) async fn message(&mut self, message: &Message, path: &MessagePath) -> Result<()> {
        let [rows, ids, goals] = [self.part(Part::Messages)?, self.part(Part::MessageIds)?, self.part(Part::GoalMessages)?];
        let value = checked("message", message, usize::MAX)?;
        let (sequence, bytes) = (message.sequence, value.len());
        let meta = row(&MessageMeta { path: path.0.clone(), bytes });
        self.add(bytes, |batch| batch.put_with_meta(&rows, position_key(sequence), meta, value));
        if message.message_id != default_id(self.id, sequence) {
            self.add(0, |batch| batch.put(&ids, escape_key(&message.message_id), row(&sequence)));
        }
        if let Some(goal) = &message.goal_id {
            self.add(0, |batch| batch.put(&goals, goal_key(goal, sequence), ""));
        }
        self.flush_if_full().await
    }

    /// Adds an event that was checked.
    pub(crate) async fn event(&mut self, event: &TraceEvent) -> Result<()> {
        let (rows, value) = (self.part(Part::Events)?, checked("event", event, usize::MAX)?);
        self.add(value.len(), |batch| batch.put(&rows, position_key(event.event_id), value));
        self.flush_if_full().await
    }

    /// Adds the goals, whose parents must exist and whose ids must be unique.
    ///
    /// # Errors
    /// [`TooLarge`](ErrorKind::TooLarge) for a tree over the limit; nothing is added then.
    pub(crate) async fn goals(&mut self, tree: GoalTree) -> Result<()> {
        let mut kept = tree;
        kept.current_id = None;
        let mut totals = Vec::new();
        for goal in &mut kept.goals {
            let own = std::mem::take(&mut goal.self_stats);
            let spent = Spent {
                messages: i64::try_from(own.message_count).unwrap_or(i64::MAX),
                tokens: own.total_tokens.into(),
                cost: own.total_cost,
            };
            totals.extend(GoalTotals::default().with(spent).map(|total| (totals_key(&goal.id), row(&total))));
            goal.self_stats.other = own.other;
            goal.cumulative_stats =
                crate::model::GoalStats { other: std::mem::take(&mut goal.cumulative_stats.other), ..Default::default() };
        }
        let value = checked("goal tree", &kept, self.traces.options().goal_tree_bytes_max)?;
        let rows = self.part(Part::Goals)?;
        self.add(value.len(), |batch| batch.put(&rows, TREE, value));
        for (key, total) in totals {
            self.add(total.len(), |batch| batch.put(&rows, key, total));
        }
        self.goals = kept;
        self.flush_if_full().await
    }

    /// Adds a part of a file, of at most [`ORIGINAL_BYTES`].
    pub(crate) async fn original(&mut self, of: Originals, name: &str, part: usize, content: Bytes) -> Result<()> {
        let rows = of.rows(&self.data()?)?;
        self.add(content.len(), |batch| batch.put(&rows, original_key(name, part), content));
        self.flush_if_full().await
    }

    /// Makes the trace appear.
    ///
    /// # Errors
    /// [`AlreadyExists`](ErrorKind::AlreadyExists) for an id that was taken meanwhile, [`Conflict`](ErrorKind::Conflict) if a sweep ended the
    /// insertion, and errors of the store.
    pub(crate) async fn finish(&mut self, ending: Ending) -> Result<Trace> {
        let Ending { trace, created_at, completed_at, path, digest } = ending;
        let head = Head {
            data: self.removal.data.clone(),
            mode: trace.mode,
            status: trace.status,
            created_at: created_at.map_or_else(|| self.traces.traces.now(), Timestamp::as_microsecond),
            completed_at: completed_at.map(Timestamp::as_microsecond),
            last_sequence: trace.last_sequence,
            last_event_id: trace.last_event_id,
            total_tokens: trace.total_tokens,
            total_cost: trace.total_cost,
            total_duration_ms: trace.total_duration_ms,
            current_goal_id: trace.current_goal_id,
            path: path.0,
        };
        let description = Description {
            task: trace.task,
            parent_trace_id: trace.parent_trace_id,
            parent_goal_id: trace.parent_goal_id,
            agent_type: trace.agent_type,
            run_config: trace.run_config,
            other: trace.other,
        };
        let description_row = checked("trace", &description, self.traces.options().trace_bytes_max)?;
        self.flush().await?;
        let rows = &self.traces.rows;
        let mut goals = std::mem::take(&mut self.goals);
        // The head is that of no row yet, and no read depends on its version.
        let opened = Opened { head: head.clone(), version: Version::new(0) };
        self.traces.fill(&opened, &mut goals).await?;
        let trace = trace_of(&rows.user, self.id, &head, description);
        let record = row(&Inserted { digest, trace: trace.clone(), goals });
        let (data, traces) = (self.data()?, rows.traces()?);
        let mut attempts = Attempts::new();
        loop {
            let batch = Batch::new()
                .expect(&traces, head_key(self.id), Condition::Absent)
                .expect(&data, INSERTING, Condition::Exists)
                .delete(&data, INSERTING)
                .put(&data, LIVE, "")
                .put(&data, INSERTED, record.clone())
                .put(&traces, head_key(self.id), row(&head))
                .put(&traces, description_key(self.id), description_row.clone());
            let batch = recent::list(batch, rows, self.id, &head)?;
            match self.traces.register(self.id).await? {
                Registration::Taken => return Err(taken(self.id)),
                Registration::Lost => {}
                Registration::Intended(intent) => {
                    let batch = recent::count(batch, self.traces.store(), rows, self.id, None, Some(head.kind())).await?;
                    if rows::commit(self.traces.store(), intent.fulfil(batch)).await?.is_some() {
                        // A sweep removes the record if this fails.
                        if let Err(error) = self.traces.store().commit(Batch::new().delete(&insertions(), self.removal.key())).await {
                            tracing::debug!(%error, trace = %self.id, "the record of a completed import stays until the next sweep");
                        }
                        return Ok(trace);
                    }
                    intent.withdraw(self.traces.store()).await;
                }
            }
            match self.traces.owner(self.id).await? {
                Some(_) => return Err(taken(self.id)),
                None if self.traces.store().get(&data, INSERTING).await?.is_none() => return Err(self.swept()),
                None => attempts.lost().await?,
            }
        }
    }

    /// Removes the rows of an insertion that failed. What remains is removed by a sweep.
    pub(crate) async fn abandon(self) {
        if !self.is_begun {
            return;
        }
        let traces = &self.traces.traces;
        let abandoned = traces.give_up(&self.removal).await;
        let removed = match abandoned {
            Ok(()) => traces.remove(&self.removal, None).await.map(drop),
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            tracing::warn!(%error, trace = %self.id, "the rows of a failed import remain until a sweep");
        }
    }

    fn data(&self) -> Result<Namespace> {
        self.traces.rows.data(&self.removal.data)
    }

    fn part(&self, part: Part) -> Result<Namespace> {
        self.traces.rows.part(&self.removal.data, part)
    }

    fn add(&mut self, bytes: usize, change: impl FnOnce(Batch) -> Batch) {
        self.batch = change(std::mem::take(&mut self.batch));
        self.batch_bytes += bytes;
    }

    async fn flush_if_full(&mut self) -> Result<()> {
        let is_full = self.batch.writes.len() >= ROWS || self.batch_bytes >= ROWS_BYTES;
        if is_full { self.flush().await } else { Ok(()) }
    }

    /// Commits what was added. Every commit depends on the row of the insertion and renews it.
    async fn flush(&mut self) -> Result<()> {
        let (batch, data) = (std::mem::take(&mut self.batch), self.data()?);
        self.batch_bytes = 0;
        self.begin().await?;
        let renewed = time_row(self.traces.traces.clock.now());
        let batch = batch.expect(&data, INSERTING, Condition::Exists).put(&data, INSERTING, renewed);
        match rows::commit(self.traces.store(), batch).await? {
            Some(_) => Ok(()),
            None => Err(self.swept()),
        }
    }

    /// Puts the row of the insertion, and then the record by which a sweep finds it.
    async fn begin(&mut self) -> Result<()> {
        // Even a failed commit may have had an effect.
        if std::mem::replace(&mut self.is_begun, true) {
            return Ok(());
        }
        let (data, traces, store) = (self.data()?, &self.traces.traces, self.traces.store());
        store.commit(Batch::new().put_for(&data, INSERTING, time_row(traces.clock.now()), INTENT_LIFE)).await?;
        let record = row(&InsertionRow { removal: self.removal.clone() });
        store.commit(Batch::new().put(&insertions(), self.removal.key(), record)).await.map(drop)
    }

    fn swept(&self) -> Error {
        let message = format!("the import of `{}` paused for too long and its rows were removed; import it again", self.id);
        Error::new(ErrorKind::Conflict, message).without_effect()
    }
}

impl StoredTraces {
    /// Returns whether a trace of the user has an id.
    ///
    /// # Errors
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for another user's.
    pub(crate) async fn has(&self, id: &TraceId) -> Result<bool> {
        match self.owner(id).await? {
            None => Ok(false),
            Some(user) if user == self.rows.user => Ok(true),
            Some(_) => Err(foreign()),
        }
    }
}

fn taken(id: &TraceId) -> Error {
    let message = format!("the trace `{id}` exists already; delete it first, or rename the directory and its `trace_id`");
    Error::new(ErrorKind::AlreadyExists, message).without_effect()
}

/// Checks the id of a goal.
pub(crate) fn check_goal_id(id: &str) -> Result<()> {
    check_key("goal", id)
}

/// Checks the name of a goal's kind.
pub(crate) fn check_goal_kind(kind: &str) -> Result<()> {
    check_name("type of the goal", kind)
}

/// Checks a message as an append does.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) and [`TooLarge`](ErrorKind::TooLarge).
pub(crate) fn check_message(options: &TracesOptions, id: &TraceId, message: &Message) -> Result<()> {
    check_name("role", &message.role)?;
    check_usage(message.tokens, message.cost)?;
    message.goal_id.as_deref().map_or(Ok(()), |goal| check_key("goal", goal))?;
    message.tool_call_id.as_deref().map_or(Ok(()), |call| check_name("tool call id", call))?;
    message.branch_type.as_deref().map_or(Ok(()), |kind| check_name("type of the side branch", kind))?;
    match default_sequence(id, &message.message_id) {
        None => check_key("message", &message.message_id)?,
        Some(of) if of == message.sequence => {}
        Some(of) => return Err(Error::invalid_argument(format!("its id is that of the sequence {of}"))),
    }
    checked("message", message, options.message_bytes_max).map(drop)
}

/// Checks an event as an append does.
///
/// # Errors
/// As [`check_message`].
pub(crate) fn check_event(options: &TracesOptions, event: &TraceEvent) -> Result<()> {
    check_name("kind of the event", &event.event)?;
    checked("event", event, options.event_bytes_max).map(drop)
}
