//! Consolidation: condenses a user's sessions into `USER.md`, in the background.
//!
//! A host calls [`Consolidator::run`] for each user from time to time. Most calls find nothing to do and cost three round
//! trips. The state is in the store and each run takes a lease, so only one of many servers does the work. The lease of a
//! server that dies expires. A run renews its lease before each summary, and everything that it decides depends on the lease.

mod leased;

use crate::compact::{Placeholder, iso_of_millisecond};
use crate::info::SessionMeta;
use crate::memo::{USER, user_memo};
use crate::message::Message;
use crate::numbers::check_time;
use crate::rows::{self, Head, LIVE, UserRows, summary_key};
use crate::sessions::Sessions;
use async_trait::async_trait;
use bytes::Bytes;
use leased::Leased;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::{Json, row, stored};
use treehold_core::ops::{Change, ReadOptions, Version, WriteMode};
use treehold_core::path::VfsPathBuf;
use treehold_core::retry::Attempts;
use treehold_core::scope::check_id;
use treehold_store::{Batch, Condition, Namespace, Store};
use treehold_tree::backend::{Backend, BackendExt};

const STATE: &str = "state";
const LEASE: &str = "lease";

/// The heading of the section of `USER.md` that every run adds to.
const HISTORY: &str = "## Consolidation History";

/// When a user's memory is consolidated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsolidationOptions {
    /// How long the user must have been idle. Default 10 minutes.
    pub idle: Duration,
    /// The time after a run when the next one is due, if any session changed. Default 24 hours.
    pub interval: Duration,
    /// How many changed sessions make a run due earlier. Default 5.
    pub changed_sessions_min: usize,
    /// How many of the newest sessions are read. Default 500.
    pub sessions_max: usize,
    /// The fewest messages of a session that is summarised, not counting summaries of compactions. Default 4.
    pub messages_min: usize,
    /// How long one summary may take before another server may begin a run. Default 10 minutes.
    pub lease: Duration,
}

impl Default for ConsolidationOptions {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(10 * 60),
            interval: Duration::from_secs(24 * 60 * 60),
            changed_sessions_min: 5,
            sessions_max: 500,
            messages_min: 4,
            lease: Duration::from_secs(10 * 60),
        }
    }
}

/// Condenses conversations, usually by asking a model.
#[async_trait]
pub trait MemorySummarizer: Send + Sync {
    /// Condenses one session.
    ///
    /// # Errors
    /// Any: the run fails with it. The next run reuses the summaries made so far.
    async fn summarize_session(&self, messages: &[Message]) -> Result<String>;

    /// Condenses the summaries of all sessions and the present `USER.md` into a new one.
    ///
    /// # Errors
    /// Any: the run fails with it.
    async fn consolidate(&self, present: Option<&str>, summaries: &[String]) -> Result<String>;
}

/// Why a run is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConsolidationReason {
    /// No run has completed yet.
    Initial,
    /// Enough time passed since the last run, or enough sessions changed.
    Auto,
    /// A caller requested it.
    Manual,
}

/// The state of a user's consolidation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsolidationState {
    /// When the user was last active, in milliseconds since 1970, as the last run saw it.
    pub last_activity_at: Option<i64>,
    /// When the last run ended.
    pub last_completed_at: Option<i64>,
    /// How many sessions it read.
    pub last_processed_session_count: usize,
    /// The time of the newest session that it read.
    pub last_processed_session_updated_at: Option<i64>,
    /// Why the next run is due.
    pub pending_reason: Option<ConsolidationReason>,
    /// Everything else. It survives the next runs.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// The outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Consolidation {
    /// No run is due.
    NotDue,
    /// The user is active; try again later.
    Active,
    /// Another run is in progress, here or on another server.
    Running,
    /// `USER.md` was written.
    Done {
        /// Why the run was due.
        reason: ConsolidationReason,
        /// How many sessions were condensed.
        sessions: usize,
        /// How many sessions were read, as their cached summary was missing or outdated.
        read: usize,
    },
}

/// The cached summary of a session.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SummaryRow {
    session_updated_at: i64,
    /// How many messages the session had.
    #[serde(default)]
    messages_end: u64,
    summary: Option<String>,
}

impl SummaryRow {
    /// Returns whether the session did not change since the summary was made.
    fn is_of(&self, session: &SessionMeta, head: &Head) -> bool {
        self.session_updated_at >= session.updated_at && self.messages_end == head.messages_end
    }
}

/// Consolidates the memory of users.
#[derive(Debug, Clone)]
pub struct Consolidator {
    sessions: Sessions,
    options: ConsolidationOptions,
}

impl Consolidator {
    /// Creates a consolidator.
    pub fn new(sessions: Sessions, options: ConsolidationOptions) -> Self {
        Self { sessions, options }
    }

    /// Returns the state of a user's consolidation.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an id that cannot name a tenant or user,
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for a user that is not accessible, and errors of the store.
    pub async fn state(&self, tenant: &str, user: &str) -> Result<ConsolidationState> {
        Ok(self.versioned_state(tenant, user).await?.0)
    }

    /// Returns the state, and the condition that it is unchanged.
    async fn versioned_state(&self, tenant: &str, user: &str) -> Result<(ConsolidationState, Condition)> {
        check_id("tenant", tenant)?;
        check_id("user", user)?;
        self.sessions.check_owner(tenant, user)?;
        match self.sessions.store.get(&UserRows::new(tenant, user).consolidation()?, STATE).await? {
            Some(item) => {
                let state = stored("state of a consolidation", &item.value).unwrap_or_else(|error| {
                    tracing::warn!(%error, tenant, user, "ignoring the state of a consolidation that cannot be read");
                    ConsolidationState::default()
                });
                Ok((state, Condition::Version(item.version)))
            }
            None => Ok((ConsolidationState::default(), Condition::Absent)),
        }
    }

    /// Makes a run due, even if nothing changed. That run reads every session again. A request during a run makes another
    /// run due.
    ///
    /// # Errors
    /// As [`Consolidator::state`].
    pub async fn request(&self, tenant: &str, user: &str) -> Result<()> {
        let mut attempts = Attempts::new();
        loop {
            let (state, unchanged) = self.versioned_state(tenant, user).await?;
            let state = ConsolidationState { pending_reason: Some(ConsolidationReason::Manual), ..state };
            let rows = UserRows::new(tenant, user).consolidation()?;
            let batch = Batch::new().expect(&rows, STATE, unchanged).put(&rows, STATE, row(&state));
            if rows::commit(&*self.sessions.store, batch).await?.is_some() {
                return Ok(());
            }
            attempts.lost().await?;
        }
    }

    /// Consolidates the memory of a user, if a run is due and the user is idle.
    ///
    /// # Errors
    /// Those of the summariser, and those of [`Sessions::load`]. [`Unavailable`](ErrorKind::Unavailable) for a run whose lease
    /// ended because one summary took longer. A failed run leaves the state as it was, so the next call tries again. Sessions
    /// that cannot be read are skipped and logged.
    pub async fn run(&self, tenant: &str, user: &str, summarizer: &dyn MemorySummarizer) -> Result<Consolidation> {
        let (state, unchanged) = self.versioned_state(tenant, user).await?;
        let sessions = self.newest(tenant, user).await?;
        let now = self.sessions.now();
        let Some(reason) = self.reason(&state, &sessions, now) else { return Ok(Consolidation::NotDue) };
        let is_active = |time: i64| self.is_plausible(time, now) && now.saturating_sub(time) < milliseconds(self.options.idle);
        if reason != ConsolidationReason::Manual && sessions.iter().any(|session| is_active(session.updated_at)) {
            return Ok(Consolidation::Active);
        }
        let Some(lease) = self.acquire(tenant, user).await? else { return Ok(Consolidation::Running) };
        let rows = UserRows::new(tenant, user).consolidation()?;
        let run = Run {
            sessions: &self.sessions,
            tenant,
            user,
            rows: rows.clone(),
            reason,
            summarizer,
            messages_min: self.options.messages_min,
            lease: self.options.lease,
            store: Arc::new(Leased::new(self.sessions.store.clone(), rows, LEASE, lease)),
        };
        // Another server may have completed a run since the state was read.
        let done = match self.versioned_state(tenant, user).await {
            Ok((_, now)) if now == unchanged => self.consolidate(&run, (state, unchanged), &sessions).await,
            Ok(_) => Ok(Consolidation::NotDue),
            Err(error) => Err(error),
        };
        let released = run.release().await;
        let done = done?;
        released.map(|()| done)
    }

    async fn newest(&self, tenant: &str, user: &str) -> Result<Vec<SessionMeta>> {
        let (mut newest, mut after) = (Vec::new(), None);
        while newest.len() < self.options.sessions_max {
            let page = self.sessions.list(tenant, user, self.options.sessions_max - newest.len(), after.as_deref()).await?;
            newest.extend(page.sessions);
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        Ok(newest)
    }

    fn reason(&self, state: &ConsolidationState, sessions: &[SessionMeta], now: i64) -> Option<ConsolidationReason> {
        if sessions.is_empty() {
            return None;
        }
        if state.pending_reason.is_some() {
            return state.pending_reason;
        }
        let Some(completed) = state.last_completed_at else { return Some(ConsolidationReason::Initial) };
        // A host may have imported a state of the far future too.
        let seen = state.last_processed_session_updated_at.filter(|time| self.is_plausible(*time, now)).unwrap_or(i64::MIN);
        let is_changed = |time: i64| time > seen && self.is_plausible(time, now);
        let changed = sessions.iter().filter(|session| is_changed(session.updated_at)).count();
        let is_overdue = !self.is_plausible(completed, now) || now.saturating_sub(completed) >= milliseconds(self.options.interval);
        let is_due = changed >= self.options.changed_sessions_min || (changed > 0 && is_overdue);
        is_due.then_some(ConsolidationReason::Auto)
    }

    async fn consolidate(&self, run: &Run<'_>, before: (ConsolidationState, Condition), sessions: &[SessionMeta]) -> Result<Consolidation> {
        let (before, mut unchanged) = before;
        let (mut summaries, mut read) = (Vec::new(), 0);
        for session in sessions {
            let Some((summary, was_read)) = run.summary_of(session).await? else { continue };
            read += usize::from(was_read);
            summaries.extend(summary);
        }
        if !summaries.is_empty() {
            run.write_user(&summaries).await?;
        }
        let now = self.sessions.now();
        let newest = sessions.iter().map(|session| session.updated_at).find(|time| self.is_plausible(*time, now));
        let mut state = ConsolidationState {
            last_activity_at: newest,
            last_completed_at: Some(now),
            last_processed_session_count: sessions.len(),
            last_processed_session_updated_at: newest,
            pending_reason: None,
            more: before.more,
        };
        let mut attempts = Attempts::new();
        loop {
            let batch = Batch::new().expect(&run.rows, STATE, unchanged.clone()).put(&run.rows, STATE, row(&state));
            match run.store.commit(batch).await {
                Ok(_) => return Ok(Consolidation::Done { reason: run.reason, sessions: summaries.len(), read }),
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) => return Err(error),
            }
            // Besides the holder of the lease, only a request or an import changes the state. A request makes another run due.
            let (changed, now) = self.versioned_state(run.tenant, run.user).await?;
            state.pending_reason = changed.pending_reason;
            state.more = changed.more;
            unchanged = now;
            attempts.lost().await?;
        }
    }

    /// Returns whether a stored time may be right. A host may have imported times of the far future.
    fn is_plausible(&self, time: i64, now: i64) -> bool {
        time <= now.saturating_add(milliseconds(self.options.idle))
    }

    /// Takes the lease of a user, unless another run has it.
    async fn acquire(&self, tenant: &str, user: &str) -> Result<Option<Version>> {
        let rows = UserRows::new(tenant, user).consolidation()?;
        let batch = Batch::new().expect(&rows, LEASE, Condition::Absent).put_for(&rows, LEASE, "", self.options.lease);
        Ok(rows::commit(&*self.sessions.store, batch).await?.and_then(|versions| versions.first().copied()))
    }
}

/// A run that holds the lease of a user.
struct Run<'r> {
    sessions: &'r Sessions,
    tenant: &'r str,
    user: &'r str,
    /// The rows of the state and the lease.
    rows: Namespace,
    reason: ConsolidationReason,
    summarizer: &'r dyn MemorySummarizer,
    messages_min: usize,
    /// How long a renewed lease lasts.
    lease: Duration,
    /// Every commit through it depends on the lease.
    store: Arc<Leased>,
}

impl Run<'_> {
    /// Extends the lease from now on.
    async fn renew(&self) -> Result<()> {
        self.store.commit(Batch::new().touch(&self.rows, LEASE, Some(self.lease))).await.map(drop)
    }

    /// Ends the lease. If it expired, another run may hold it now; then there is nothing to end.
    async fn release(&self) -> Result<()> {
        match self.store.commit(Batch::new().delete(&self.rows, LEASE)).await {
            Err(error) if self.store.is_lost(&error) => Ok(()),
            released => released.map(drop),
        }
    }

    /// Returns the summary of a session, and whether the session was read for it; `None` for a session that was deleted or cannot be
    /// read. A cached summary is reused unless the session changed or the run was requested.
    async fn summary_of(&self, session: &SessionMeta) -> Result<Option<(Option<String>, bool)>> {
        let owner = UserRows::new(self.tenant, self.user);
        let head = match rows::open_of(&*self.sessions.store, &owner, &session.session_id).await {
            Ok(Some(opened)) => opened.head,
            Ok(None) => return Ok(None),
            Err(error) => return self.skipped(session, error),
        };
        let key = summary_key(&session.session_id);
        if let Some(item) = self.sessions.store.get(&self.rows, &key).await?
            && let Ok(cached) = stored::<SummaryRow>("summary of a session", &item.value)
            && self.reason != ConsolidationReason::Manual
            && cached.is_of(session, &head)
        {
            return Ok(Some((cached.summary, false)));
        }
        self.renew().await?;
        let mut messages = match self.sessions.load_full(self.tenant, &session.session_id).await {
            Ok(messages) => messages,
            Err(error) => return self.skipped(session, error),
        };
        messages.retain(|message| !Placeholder::is(message));
        let summary = match messages.len() < self.messages_min {
            true => None,
            false => Some(self.summarizer.summarize_session(&messages).await?),
        };
        let cached = SummaryRow { session_updated_at: session.updated_at, messages_end: head.messages_end, summary };
        // The deletion of the session removes the summary, and nothing caches it afterwards.
        let batch = Batch::new().expect(&owner.data(&head.data)?, LIVE, Condition::Exists).put(&self.rows, key, row(&cached));
        let kept = rows::commit(&*self.sessions.store, batch).await?;
        Ok(kept.map(|_| (cached.summary, true)))
    }

    /// Skips a session that cannot be read, so that it does not stop the user's other sessions. Fails with errors that are not its own.
    fn skipped<T>(&self, session: &SessionMeta, error: Error) -> Result<Option<T>> {
        if !matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::InvalidArgument | ErrorKind::NotFound | ErrorKind::TooLarge) {
            return Err(error);
        }
        tracing::warn!(%error, tenant = self.tenant, user = self.user, session = session.session_id, "a consolidation skips a session");
        Ok(None)
    }

    /// Replaces `USER.md` in one change, and adds a line to its history. If another writer changed it meanwhile, condenses
    /// that version instead. Nothing is written once the lease is lost.
    async fn write_user(&self, summaries: &[String]) -> Result<()> {
        let tree = user_memo(self.store.clone(), self.tenant, self.user)?;
        let path = VfsPathBuf::parse(format!("/{USER}"))?;
        loop {
            self.renew().await?;
            let (mode, present) = match tree.read(&path, &ReadOptions::new().with_bytes_max(u64::MAX)).await {
                Ok(file) => (WriteMode::IfVersion(file.version), Some(file.text_lossy().into_owned())),
                Err(error) if error.kind() == ErrorKind::NotFound => (WriteMode::CreateNew, None),
                Err(error) => return Err(error),
            };
            let (body, history) = present.as_deref().map_or(("", ""), |text| text.split_once(HISTORY).unwrap_or((text, "")));
            let body = Some(body.trim()).filter(|body| !body.is_empty());
            let new = self.summarizer.consolidate(body, summaries).await?;
            let time = iso_of_millisecond(self.sessions.now());
            let history = history.trim();
            let lines = if history.is_empty() { String::new() } else { format!("{history}\n") };
            let content = format!("{}\n\n{HISTORY}\n\n{lines}- {time}: {} sessions\n", new.trim(), summaries.len());
            match tree.apply_one(Change::Write { path: path.clone(), content: content.into(), mode }).await {
                Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists) => {}
                written => return written.map(drop),
            }
        }
    }
}

/// Returns the text of the state of a user's consolidation, as it is stored.
pub(crate) async fn export_state(sessions: &Sessions, tenant: &str, user: &str) -> Result<Option<Bytes>> {
    let found = sessions.store.get(&UserRows::new(tenant, user).consolidation()?, STATE).await?;
    Ok(found.map(|item| item.value))
}

/// Replaces the state of a user's consolidation by a text of a host, which is kept as it is.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for a text that is not such a state or has a time out of range, and errors
/// of the store.
pub(crate) async fn import_state(sessions: &Sessions, tenant: &str, user: &str, text: &Bytes) -> Result<()> {
    check_id("tenant", tenant)?;
    check_id("user", user)?;
    sessions.check_owner(tenant, user)?;
    let state: ConsolidationState = Json::from_bytes(text)?.view()?;
    for (what, time) in [
        ("lastActivityAt", state.last_activity_at),
        ("lastCompletedAt", state.last_completed_at),
        ("lastProcessedSessionUpdatedAt", state.last_processed_session_updated_at),
    ] {
        time.map_or(Ok(()), |time| check_time(what, time))?;
    }
    let rows = UserRows::new(tenant, user).consolidation()?;
    sessions.store.commit(Batch::new().put(&rows, STATE, text.clone())).await.map(drop)
}

fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
