//! Tasks that an agent gave to other agents, and the delivery of their results.

use super::{RETENTION, check_text};
use crate::owner::{BundleOwner, check_limit, check_name};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::{row, stored};
use treehold_core::retry::Attempts;
use treehold_core::scope::check_id;
use treehold_core::work;
use treehold_store::{Batch, Condition, Item, Namespace, NamespacesOptions, ScanEntry, ScanOptions, Store};

/// The longest page of tasks.
pub const TASKS_PAGE_MAX: usize = 1_000;

/// The most tasks of one heartbeat.
pub const TASK_REFERENCES_MAX: usize = 1_000;

/// A task with this transport runs on another server, which reports its end.
const REMOTE_TRANSPORT: &str = "agent-protocol";

/// The state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum TaskStatus {
    /// It has not started.
    #[default]
    Pending,
    /// It runs.
    Running,
    /// It ended with a result.
    Completed,
    /// It failed.
    Failed,
    /// It was cancelled.
    Cancelled,
}

impl TaskStatus {
    /// Returns whether the task has ended.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

/// What a writer says about a task.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskUpdate {
    /// The agent that runs it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sub_agent_id: String,
    /// The session in which it runs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sub_session_id: String,
    /// Its state.
    pub status: TaskStatus,
    /// Its result.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub result: String,
    /// Why it failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error_message: String,
    /// Whether it is to be cancelled. A request is never withdrawn.
    pub cancel_requested: bool,
    /// How its agent is reached.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub transport_type: String,
    /// The address of the agent.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remote_base_url: String,
    /// Headers of requests to the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_headers: Option<BTreeMap<String, String>>,
    /// The user for whom it runs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user_id: String,
    /// When its agent was last asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_checked_at: Option<Timestamp>,
}

/// A task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TaskRecord {
    /// The agent that gave it.
    pub parent_agent_id: String,
    /// The session that gave it.
    pub parent_session_id: String,
    /// Its id in that session.
    pub task_id: String,
    /// What its writers said.
    #[serde(flatten)]
    pub update: TaskUpdate,
    /// Whether it has ended.
    pub terminal: bool,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed, or its runner last said that it is alive.
    pub last_updated_at: Timestamp,
    /// When its result reached the session that gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_at: Option<Timestamp>,
    /// 1 for a new task, one more for each change.
    pub version: u64,
}

/// A task of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskReference {
    /// The session that gave it.
    pub parent_session_id: String,
    /// Its id in that session.
    pub task_id: String,
}

/// A page of tasks, in the order of their ids.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TaskPage {
    /// The tasks that were asked for among those on the page.
    pub tasks: Vec<TaskRecord>,
    /// Where the next page starts; `None` at the end.
    pub next: Option<String>,
}

/// The tasks of an owner's agent in a store. A task is kept for 7 days after it ended. Clones share them.
#[derive(Clone)]
pub struct TaskRepository {
    store: Arc<dyn Store>,
    owner: BundleOwner,
    clock: Clock,
}

impl TaskRepository {
    /// Opens the tasks of an owner.
    pub fn new(store: Arc<dyn Store>, owner: BundleOwner) -> Self {
        Self { store, owner, clock: Clock::system() }
    }

    /// Sets the clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Creates a task or records its progress. Keeps when it was created and delivered, and a request to cancel it. Cost: two round trips.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) for progress of a task that has ended, and for another end of one whose result was delivered.
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a bad id, [`TooLarge`](ErrorKind::TooLarge) for a long text. Otherwise as
    /// [`Store::commit`].
    pub async fn upsert(&self, session: &str, task: &str, update: &TaskUpdate) -> Result<TaskRecord> {
        check_task(task)?;
        for (name, value) in update.remote_headers.iter().flatten() {
            check_text("headers", name)?;
            check_text("headers", value)?;
        }
        for (what, text) in [
            ("id of the agent", &*update.sub_agent_id),
            ("id of the session", &update.sub_session_id),
            ("result", &update.result),
            ("error message", &update.error_message),
            ("transport type", &update.transport_type),
            ("address", &update.remote_base_url),
            ("id of the user", &update.user_id),
        ] {
            check_text(what, text)?;
        }
        let made = self.change(session, task, |found, now| {
            let Some(found) = found else {
                let terminal = update.status.is_terminal();
                return Ok(Some(TaskRecord {
                    parent_agent_id: self.owner.agent().to_owned(),
                    parent_session_id: session.to_owned(),
                    task_id: task.to_owned(),
                    update: update.clone(),
                    terminal,
                    created_at: now,
                    last_updated_at: now,
                    delivered_at: None,
                    version: 0,
                }));
            };
            if found.terminal && found.update == *update {
                return Ok(None);
            }
            if found.terminal && (!update.status.is_terminal() || found.delivered_at.is_some()) {
                let message = format!("the task `{task}` has ended; start another one");
                return Err(Error::new(ErrorKind::Conflict, message).without_effect());
            }
            let cancel_requested = found.update.cancel_requested || update.cancel_requested;
            let update = TaskUpdate { cancel_requested, ..update.clone() };
            Ok(Some(TaskRecord { update, ..found.clone() }))
        });
        made.await?.ok_or_else(|| Error::new(ErrorKind::Internal, "a task was neither found nor created"))
    }

    /// Returns a task, or `None`. Cost: one round trip.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) if it cannot be read. Otherwise as [`Store::get`].
    pub async fn get(&self, session: &str, task: &str) -> Result<Option<TaskRecord>> {
        check_task(task)?;
        self.store.get(&self.rows(session)?, task).await?.map(|found| record_of(&found)).transpose()
    }

    /// Returns the tasks of a session, or those in one state. The limit counts tasks in any state. Cost: one round trip.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a limit that is not 1 to [`TASKS_PAGE_MAX`]. Otherwise as
    /// [`TaskRepository::get`].
    pub async fn list(&self, session: &str, status: Option<TaskStatus>, after: Option<&str>, limit: usize) -> Result<TaskPage> {
        self.page(session, after, limit, |task| status.is_none_or(|status| task.update.status == status)).await
    }

    /// Returns the tasks of a session that have ended and whose results were not delivered. Cost: one round trip.
    ///
    /// # Errors
    /// As [`TaskRepository::list`].
    pub async fn pending_deliveries(&self, session: &str, after: Option<&str>, limit: usize) -> Result<TaskPage> {
        self.page(session, after, limit, |task| task.terminal && task.delivered_at.is_none()).await
    }

    /// Records that tasks still run. Tasks that do not exist or have ended are skipped. Cost: two round trips for each session.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for more than [`TASK_REFERENCES_MAX`] tasks. Otherwise as [`Store::commit`].
    pub async fn heartbeat(&self, tasks: &[TaskReference]) -> Result<()> {
        if tasks.is_empty() {
            return Ok(());
        }
        check_limit(tasks.len(), TASK_REFERENCES_MAX)?;
        for task in tasks {
            check_id("session", &task.parent_session_id)?;
            check_task(&task.task_id)?;
        }
        for task in tasks {
            let alive = |found: Option<&TaskRecord>, _| Ok(found.filter(|found| !found.terminal).cloned());
            self.change(&task.parent_session_id, &task.task_id, alive).await?;
        }
        Ok(())
    }

    /// Requests that a task be cancelled. Its runner reads the request. Cost: two round trips.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for an unknown task. Otherwise as [`Store::commit`].
    pub async fn request_cancel(&self, session: &str, task: &str) -> Result<()> {
        check_task(task)?;
        let request = |found: Option<&TaskRecord>, _| {
            let found = found.ok_or_else(|| no_task(task))?;
            let update = TaskUpdate { cancel_requested: true, ..found.update.clone() };
            Ok((!found.update.cancel_requested).then(|| TaskRecord { update, ..found.clone() }))
        };
        self.change(session, task, request).await.map(drop)
    }

    /// Records that the result of a task reached the session that gave it. Returns false if it had been recorded: of several callers, one
    /// gets true. Cost: two round trips.
    ///
    /// # Errors
    /// As [`TaskRepository::request_cancel`].
    pub async fn mark_delivered(&self, session: &str, task: &str) -> Result<bool> {
        check_task(task)?;
        let mut is_first = false;
        let delivered = |found: Option<&TaskRecord>, now| {
            let found = found.ok_or_else(|| no_task(task))?;
            is_first = found.delivered_at.is_none();
            Ok(is_first.then(|| TaskRecord { delivered_at: Some(now), ..found.clone() }))
        };
        self.change(session, task, delivered).await?;
        Ok(is_first)
    }

    /// Removes a task. Returns whether it existed. Cost: two round trips.
    ///
    /// # Errors
    /// As [`TaskRepository::get`].
    pub async fn delete(&self, session: &str, task: &str) -> Result<bool> {
        check_task(task)?;
        let rows = self.rows(session)?;
        if self.store.get_many(&rows, &[task], false).await?.iter().flatten().next().is_none() {
            return Ok(false);
        }
        match self.store.commit(Batch::new().expect(&rows, task, Condition::Exists).delete(&rows, task)).await {
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(false),
            done => done.map(|_| true),
        }
    }

    /// Marks tasks as failed whose runner has not been heard of for longer than `age`, at most `limit` of them. Tasks on other servers are
    /// left alone. Returns those that were marked. Cost: reads all tasks of the agent that are kept.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a limit that is not 1 to [`TASKS_PAGE_MAX`]. Otherwise as
    /// [`TaskRepository::get`].
    pub async fn sweep_orphaned(&self, age: Duration, message: &str, limit: usize) -> Result<Vec<TaskRecord>> {
        check_limit(limit, TASKS_PAGE_MAX)?;
        check_text("error message", message)?;
        let root = self.owner.rows("tasks", [])?;
        let before = self.clock.now().checked_sub(age).unwrap_or(Timestamp::MIN);
        let is_orphaned = |task: &TaskRecord| {
            let is_remote = task.update.transport_type.eq_ignore_ascii_case(REMOTE_TRANSPORT);
            !task.terminal && !is_remote && task.last_updated_at < before
        };
        let (mut names, mut marked) = (NamespacesOptions::new().with_beneath(root), Vec::new());
        loop {
            let page = self.store.namespaces(names.clone()).await?;
            for rows in &page.namespaces {
                let Some(session) = rows.components().next_back() else { continue };
                let mut after = None;
                loop {
                    let found = self.page(&session, after.as_deref(), TASKS_PAGE_MAX, is_orphaned).await?;
                    for task in found.tasks {
                        if marked.len() == limit {
                            return Ok(marked);
                        }
                        let mut is_marked = false;
                        let fail = |found: Option<&TaskRecord>, _| {
                            is_marked = found.is_some_and(is_orphaned);
                            Ok(found.filter(|_| is_marked).map(|found| {
                                let (status, error_message) = (TaskStatus::Failed, message.to_owned());
                                TaskRecord { update: TaskUpdate { status, error_message, ..found.update.clone() }, ..found.clone() }
                            }))
                        };
                        let failed = self.change(&session, &task.task_id, fail).await?;
                        marked.extend(failed.filter(|_| is_marked));
                    }
                    match found.next {
                        Some(next) => after = Some(next),
                        None => break,
                    }
                }
            }
            match page.namespaces.into_iter().next_back().filter(|_| page.more) {
                Some(last) => names = names.with_start_after(last),
                None => return Ok(marked),
            }
        }
    }

    async fn page(&self, session: &str, after: Option<&str>, limit: usize, asked: impl Fn(&TaskRecord) -> bool) -> Result<TaskPage> {
        check_limit(limit, TASKS_PAGE_MAX)?;
        let mut options = ScanOptions::new().with_values(true).with_limit(limit);
        options.start_after = after.map(str::to_owned);
        let scan = self.store.scan(&self.rows(session)?, options).await?;
        let mut page = TaskPage { tasks: Vec::new(), next: scan.next };
        for entry in scan.entries {
            work::step().await;
            let ScanEntry::Item(found) = entry else { continue };
            page.tasks.extend(Some(record_of(&found)?).filter(&asked));
        }
        Ok(page)
    }

    /// Replaces a task by what `change` makes of it, again if another writer was faster. Returns the task as it is then; `change` returns
    /// `None` to leave it.
    async fn change(
        &self,
        session: &str,
        task: &str,
        mut change: impl FnMut(Option<&TaskRecord>, Timestamp) -> Result<Option<TaskRecord>>,
    ) -> Result<Option<TaskRecord>> {
        let rows = self.rows(session)?;
        let mut attempts = Attempts::new();
        loop {
            let found = self.store.get(&rows, task).await?;
            let (now, record) = (self.clock.now(), found.as_ref().map(record_of).transpose()?);
            let Some(next) = change(record.as_ref(), now)? else { return Ok(record) };
            let terminal = next.update.status.is_terminal();
            let next = TaskRecord { last_updated_at: now, terminal, version: next.version + 1, ..next };
            let condition = found.map_or(Condition::Absent, |found| Condition::Version(found.version));
            let kept = terminal.then_some(RETENTION);
            let batch = Batch::new().expect(&rows, task, condition).put_item(&rows, task, "", row(&next), kept);
            match self.store.commit(batch).await {
                Err(error) if error.kind() == ErrorKind::Conflict => attempts.lost().await?,
                done => return done.map(|_| Some(next)),
            }
        }
    }

    fn rows(&self, session: &str) -> Result<Namespace> {
        check_id("session", session)?;
        tasks_of(&self.owner, session)
    }
}

/// Returns the namespace of a session's tasks.
pub(super) fn tasks_of(owner: &BundleOwner, session: &str) -> Result<Namespace> {
    owner.rows("tasks", [session])
}

impl fmt::Debug for TaskRepository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskRepository({})", self.store)
    }
}

fn check_task(task: &str) -> Result<()> {
    check_name("id of the task", task)
}

fn no_task(task: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no task `{task}` in this session; list the tasks"))
}

fn record_of(row: &Item) -> Result<TaskRecord> {
    stored("task", &row.value)
}
