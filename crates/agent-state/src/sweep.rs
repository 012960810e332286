//! Removes expired sessions, and the logs of deleted ones.
//!
//! A deletion hides a session with one commit, which also records the data that remains to be removed. A session that can expire has a
//! row that says when to look at it; if it was renewed by then, the row moves to its next time. So a save never touches that row.
//!
//! These rows are in the partition of the owner. The [`schedule`] says which owner to visit, and when.

use crate::bundle::remove_session;
use crate::rows::{
    Due, FLOOR_TIME, Floor, HeadMeta, Owner, SessionRow, Task, corrupt, head_key, heads_prefix, read_head_key, sealed_row,
    session_floor_key, session_key, time_key, time_of, unsealed_row,
};
use crate::schedule::{Scheduled, Visit, schedule};
use crate::states::AgentStates;
use crate::value::Body;
use std::time::Duration;
use tokio::task::JoinHandle;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_store::{Batch, Condition, Item, Namespace, NamespacesOptions, ScanEntry, ScanOptions, SweepCount};

/// The shortest time between two looks at a session, in milliseconds.
const LOOK_AGAIN: i64 = 1_000;

/// How many visits and rows one sweep handles for each session that it may remove.
const STEPS: usize = 10;

/// The progress of one call of [`AgentStates::sweep_counting`].
struct Round<'c> {
    sessions_left: usize,
    steps_left: usize,
    removed: usize,
    count: &'c SweepCount,
    failures: usize,
    failed: Option<Error>,
}

impl<'c> Round<'c> {
    fn new(sessions_max: usize, count: &'c SweepCount) -> Self {
        Self { sessions_left: sessions_max, steps_left: sessions_max.saturating_mul(STEPS), removed: 0, count, failures: 0, failed: None }
    }

    fn is_over(&self) -> bool {
        self.sessions_left == 0 || self.steps_left == 0
    }

    fn fail(&mut self, error: Error, key: &str) {
        tracing::warn!(%error, key, "the rows of an expired or deleted state remain until the next sweep");
        self.failures += 1;
        self.failed = Some(error);
    }

    fn end(self) -> Result<usize> {
        self.failed.map_or(Ok(self.removed), Err)
    }
}

impl AgentStates {
    /// Removes what expired sessions and interrupted deletions left behind, for at most `sessions_max` sessions. Looks at 10 times as many
    /// sessions and users at most. Returns how many sessions it removed. What is not accessible is left alone.
    ///
    /// A session is removed later than it expired by less than a quarter of its time to live, or than 64 seconds if that is more, and never by
    /// over 12 days. The data of an interrupted deletion is removed after up to 4.6 hours.
    ///
    /// Cost: one round trip if nothing is due. Otherwise about seven for each user and time, and those of the sessions.
    ///
    /// # Errors
    /// The last error of the store, after everything else was removed.
    pub async fn sweep(&self, sessions_max: usize) -> Result<usize> {
        self.sweep_counting(sessions_max, &SweepCount::new()).await
    }

    /// As [`AgentStates::sweep`]. Adds the number of removed sessions to `count`, also if it fails for another one.
    ///
    /// # Errors
    /// As [`AgentStates::sweep`].
    pub async fn sweep_counting(&self, sessions_max: usize, count: &SweepCount) -> Result<usize> {
        let now = self.now();
        let mut options = ScanOptions::new().with_values(true).with_limit(self.options.page_max.max(1));
        let mut round = Round::new(sessions_max, count);
        loop {
            let page = self.store.scan(&schedule(), options.clone()).await?;
            for entry in page.entries {
                let ScanEntry::Item(item) = entry else { continue };
                if round.is_over() || time_of(&item.key).is_some_and(|at| at > now) {
                    return round.end();
                }
                if let Err(error) = self.sweep_scheduled(&item, &mut round).await {
                    round.fail(error, &item.key);
                }
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => return round.end(),
            }
        }
    }

    /// Does what a row of the schedule says, and removes the row once nothing is left to do.
    async fn sweep_scheduled(&self, item: &Item, round: &mut Round<'_>) -> Result<()> {
        let failures = round.failures;
        match unsealed_row(&format!("row `{}` of the schedule of sweeps", item.key.escape_debug()), &item.value)? {
            Scheduled::Visit(Visit { owner }) if self.admits(&owner.tenant, owner.user.as_deref()) => {
                self.visit(&owner, time_of(&item.key).unwrap_or_default(), round).await?;
            }
            Scheduled::Former(due) if self.admits(&due.owner.tenant, due.owner.user.as_deref()) => {
                self.give_to_owner(item, &due).await?;
            }
            _ => return Ok(()),
        }
        // What fails again and again takes no turn from the others.
        round.steps_left -= usize::from(failures == round.failures && round.steps_left > 0);
        Ok(())
    }

    /// Moves a row of an earlier version from the schedule to its owner, whom a sweep visits soon.
    async fn give_to_owner(&self, item: &Item, due: &Due) -> Result<()> {
        let owner = &due.owner;
        let visit = owner.visit_for(self.now(), self.now());
        let proof = self.needed_visit(owner, visit).await?;
        match self.commit_with(owner, Batch::new().put(&owner.due()?, due.key(visit), sealed_row(due)), &[proof]).await {
            Ok(_) => self.store.commit(Batch::new().delete(&schedule(), &item.key)).await.map(drop),
            // Another sweep was faster.
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Does what is due of an owner at a visit, and removes the visit unless something is left.
    async fn visit(&self, owner: &Owner, visit: i64, round: &mut Round<'_>) -> Result<()> {
        let mut options = due_at_visit(visit).with_values(true).with_limit(self.options.page_max.max(1));
        loop {
            let page = self.store.scan(&owner.due()?, options.clone()).await?;
            for entry in page.entries {
                let ScanEntry::Item(item) = entry else { continue };
                if round.is_over() {
                    return Ok(());
                }
                // One session that cannot be removed does not stop the others.
                match self.sweep_one(owner, &item).await {
                    Ok(is_removed) => {
                        round.steps_left -= 1;
                        round.sessions_left -= usize::from(is_removed);
                        round.removed += usize::from(is_removed);
                        round.count.add(usize::from(is_removed));
                    }
                    Err(error) => round.fail(error, &item.key),
                }
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => break,
            }
        }
        let is_needed = async {
            let left = self.store.scan(&owner.due()?, due_at_visit(visit).with_limit(1)).await?;
            Ok(!left.entries.is_empty())
        };
        owner.visit_proof(visit)?.remove(&*self.store, self.clock.now(), is_needed).await.map(drop)
    }

    async fn sweep_one(&self, owner: &Owner, item: &Item) -> Result<bool> {
        let what = format!("removal `{}` of a state", item.key.escape_debug());
        let due: Due = unsealed_row(&what, &item.value)?;
        if due.owner != *owner {
            return Err(corrupt(&what));
        }
        match due.task {
            Task::Expire => self.expire(item, due).await,
            Task::EndStage(..) => self.end_stage(&item.key, due, Condition::Version(item.version)).await,
            Task::RemoveData | Task::RemoveLog(_) | Task::RemoveSegment(..) => self.remove(&due, &item.key).await,
        }
    }

    /// Ends a large save, which then cannot write its head, and removes its messages. Returns false if it has ended already.
    async fn end_stage(&self, stage: &str, due: Due, expected: Condition) -> Result<bool> {
        let Task::EndStage(log, segment) = due.task else { return Ok(false) };
        let due = Due { task: Task::RemoveSegment(log, segment), ..due };
        let rows = due.owner.due()?;
        // The visit that is scheduled for the save covers the removal.
        let key = due.key(time_of(stage).ok_or_else(|| corrupt("removal of a state"))?);
        let batch = Batch::new().expect(&rows, stage, expected).delete(&rows, stage);
        if !self.commit_or_leave(batch.put(&rows, &key, sealed_row(&due))).await? {
            return Ok(false);
        }
        self.remove(&due, &key).await
    }

    /// Removes the messages of a large save that did not write its head. If that fails, a sweep does it.
    pub(crate) async fn abandon(&self, owner: &Owner, stage: &str) {
        let ended = async {
            let Some(item) = self.store.get(&owner.due()?, stage).await? else { return Ok(false) };
            let due: Due = unsealed_row("removal of a state", &item.value)?;
            self.end_stage(stage, due, Condition::Version(item.version)).await
        };
        if let Err(error) = ended.await {
            tracing::warn!(%error, "the messages of a failed save remain until a sweep");
        }
    }

    /// Returns whether a head of a session has a log, and lists a segment of it if one is given.
    async fn is_in_use(&self, due: &Due, log: &str, segment: Option<&str>) -> Result<bool> {
        let states = due.owner.states()?;
        let mut options = ScanOptions::new().with_prefix(heads_prefix(&due.session));
        loop {
            let page = self.store.scan(&states, options.clone()).await?;
            for entry in &page.entries {
                let ScanEntry::Item(item) = entry else { continue };
                let meta: HeadMeta = unsealed_row("state", &item.meta)?;
                if meta.log.as_deref() != Some(log) {
                    continue;
                }
                let Some(segment) = segment else { return Ok(true) };
                let head = self.store.get(&states, &item.key).await?;
                let body = head.map(|head| Body::decode(&head.value)).transpose()?;
                let log = body.and_then(|body| body.log);
                return Ok(log.is_some_and(|log| log.segments.iter().any(|known| known.id.as_deref() == Some(segment))));
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => return Ok(false),
            }
        }
    }

    async fn remove_beneath(&self, beneath: &Namespace) -> Result<()> {
        loop {
            let page = self.store.namespaces(NamespacesOptions::new().with_beneath(beneath.clone())).await?;
            for namespace in &page.namespaces {
                self.store.commit(Batch::new().delete_prefix(namespace, "")).await?;
            }
            if !page.more {
                return Ok(());
            }
        }
    }

    /// Removes the logs of a deletion, one namespace at a time, and the user from the directory with the last session. An archive may have
    /// brought a state together with an older row that says to remove it; then only that row is removed. Returns false if a sweep has to come
    /// again, because somebody may be about to create a session.
    pub(crate) async fn remove(&self, due: &Due, due_key: &str) -> Result<bool> {
        let states = due.owner.states()?;
        let (is_in_use, beneath) = match &due.task {
            Task::RemoveLog(log) => (self.is_in_use(due, log, None).await?, due.owner.log(&due.data, log)?),
            Task::RemoveSegment(log, segment) | Task::EndStage(log, segment) => {
                (self.is_in_use(due, log, Some(segment)).await?, due.owner.segment(&due.data, log, segment)?)
            }
            Task::Expire | Task::RemoveData => {
                let session = self.store.get(&states, &session_key(&due.session)).await?;
                let row = session.map(|session| unsealed_row::<SessionRow>("session", &session.meta)).transpose()?;
                (row.is_some_and(|row| row.data == due.data), due.owner.data(&due.data)?)
            }
        };
        if !is_in_use {
            self.remove_beneath(&beneath).await?;
        }
        let is_of_session = matches!(due.task, Task::Expire | Task::RemoveData);
        if is_of_session && !self.forget_user(&due.owner).await? {
            return Ok(false);
        }
        self.store.commit(Batch::new().delete(&due.owner.due()?, due_key)).await.map(|_| true)
    }

    /// Looks whether a session has expired. If so, removes its heads and logs, otherwise notes when to look again.
    async fn expire(&self, item: &Item, due: Due) -> Result<bool> {
        let (states, session_key) = (due.owner.states()?, session_key(&due.session));
        let found = self.store.get(&states, &session_key).await?;
        let rows = due.owner.due()?;
        let forget = || Batch::new().expect(&rows, &item.key, Condition::Version(item.version)).delete(&rows, &item.key);
        let is_absent = found.is_none();
        if let Some(session) = found {
            let row: SessionRow = unsealed_row("session", &session.meta)?;
            if row.data == due.data {
                let Some(at) = session.expires_at else {
                    // The session no longer expires.
                    let row = sealed_row(&SessionRow { due: false, ..row });
                    let expected = forget().expect(&states, &session_key, Condition::Version(session.version));
                    return self.commit_or_leave(expected.put_with_meta(&states, &session_key, row, "")).await.map(|_| false);
                };
                let at = at.as_millisecond().max(self.now().saturating_add(LOOK_AGAIN));
                let visit = due.owner.visit_for(self.now(), at);
                let proof = self.needed_visit(&due.owner, visit).await?;
                let moved = forget().put(&rows, due.key(visit), sealed_row(&due));
                return match self.commit_with(&due.owner, moved, &[proof]).await {
                    Err(error) if error.kind() != ErrorKind::Conflict => Err(error),
                    _ => Ok(false),
                };
            }
        }
        if !self.remove_heads(&due, is_absent).await? {
            return Ok(false);
        }
        self.remove(&due, &item.key).await
    }

    /// Removes the heads of an expired session, and what a bundle keeps of it unless a later session of the same name exists. The versions of
    /// such a session continue after theirs. Returns false if another writer was faster.
    async fn remove_heads(&self, due: &Due, is_absent: bool) -> Result<bool> {
        let (states, prefix) = (due.owner.states()?, heads_prefix(&due.session));
        let mut options = ScanOptions::new().with_prefix(prefix.clone());
        let (mut batch, mut floor) = (Batch::new(), 0);
        loop {
            let page = self.store.scan(&states, options.clone()).await?;
            for entry in page.entries {
                let ScanEntry::Item(head) = entry else { continue };
                let meta: HeadMeta = unsealed_row("state", &head.meta)?;
                if meta.data != due.data {
                    continue;
                }
                let (form, key) = read_head_key(head.key.strip_prefix(&prefix).unwrap_or_default())?;
                let key = head_key(&due.session, form, &key);
                batch = batch.expect(&states, &key, Condition::Version(head.version)).delete(&states, key);
                floor = meta.version.max(floor);
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => break,
            }
        }
        if is_absent {
            let gone = batch.expect(&states, session_key(&due.session), Condition::Absent);
            batch = remove_session(gone, &due.owner.bundle()?, &due.session)?;
        }
        if floor == 0 {
            return if batch.is_empty() { Ok(true) } else { self.commit_or_leave(batch).await };
        }
        // A deletion of a later session of the same name may have left a higher one.
        let floor_key = session_floor_key(&due.session);
        let before = self.store.get(&states, &floor_key).await?;
        let condition = before.as_ref().map_or(Condition::Absent, |before| Condition::Version(before.version));
        if let Some(before) = &before {
            floor = unsealed_row::<Floor>("last version of a state", &before.value)?.version.max(floor);
        }
        let batch = batch.expect(&states, &floor_key, condition);
        self.commit_or_leave(batch.put_for(&states, floor_key, sealed_row(&Floor { version: floor }), FLOOR_TIME)).await
    }

    /// Commits a batch. Returns false if another writer was faster; the next sweep looks again.
    async fn commit_or_leave(&self, batch: Batch) -> Result<bool> {
        match self.store.commit(batch).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Selects what is due at a visit.
fn due_at_visit(visit: i64) -> ScanOptions {
    ScanOptions::new().with_prefix(format!("{}\u{1}", time_key(visit)))
}

/// Calls [`AgentStates::sweep`] at regular intervals, until it is dropped.
///
/// Several processes may sweep the states of one store. A failed round is logged, and the next one tries again. Messages past their
/// retention are removed by the store's own [`Sweeper`](treehold_store::Sweeper).
#[derive(Debug)]
pub struct AgentStatesSweeper {
    task: JoinHandle<()>,
}

impl AgentStatesSweeper {
    /// How many sessions a round removes. Other writers get their turn between rounds.
    const SESSIONS_MAX: usize = 100;

    /// Starts a task on the current runtime. The first round is after the first pause.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn start(states: AgentStates, every: Duration) -> Self {
        Self::start_counting(states, every, SweepCount::new())
    }

    /// As [`AgentStatesSweeper::start`], and counts what [`AgentStates::sweep`] removes, also if it fails for something else.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn start_counting(states: AgentStates, every: Duration, removed: SweepCount) -> Self {
        Self { task: tokio::spawn(sweep_on(states, every, removed)) }
    }
}

impl Drop for AgentStatesSweeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn sweep_on(states: AgentStates, every: Duration, count: SweepCount) {
    loop {
        tokio::time::sleep(every).await;
        match states.sweep_counting(AgentStatesSweeper::SESSIONS_MAX, &count).await {
            Ok(0) => {}
            Ok(removed) => tracing::debug!(%states, removed, "expired and deleted states were removed"),
            Err(error) => tracing::warn!(%states, %error, "removing expired and deleted states failed; retrying in the next round"),
        }
    }
}
