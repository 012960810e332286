//! Removes expired sessions, and the logs of deleted ones.
//!
//! A deletion hides a session with one commit, which also records the data that remains to be removed. A session that can expire has a
//! row that says when to look at it; if it was renewed by then, the row moves to its next time. So a save never touches that row.

use crate::bundle::remove_session;
use crate::rows::{
    Due, FLOOR_TIME, Floor, HeadMeta, Owner, SESSIONS, SessionRow, Task, due_rows, head_key, heads_prefix, read_head_key, sealed_row,
    session_floor_key, session_key, unsealed_row, users_of,
};
use crate::states::AgentStates;
use crate::value::Body;
use std::time::Duration;
use tokio::task::JoinHandle;
use treehold_core::error::{ErrorKind, Result};
use treehold_store::{Batch, Condition, Item, Namespace, NamespacesOptions, ScanEntry, ScanOptions};

/// The shortest time between two looks at a session, in milliseconds.
const LOOK_AGAIN: i64 = 1_000;

impl AgentStates {
    /// Removes what expired sessions and interrupted deletions left behind, for at most `sessions_max` sessions. Returns how many it
    /// removed. What is not accessible is left alone.
    ///
    /// Cost: one round trip if nothing is due.
    ///
    /// # Errors
    /// The last error of the store, after everything else was removed.
    pub async fn sweep(&self, sessions_max: usize) -> Result<usize> {
        let now = self.now();
        let mut options = ScanOptions::new().with_values(true).with_limit(self.options.page_max.max(1));
        let (mut removed, mut failed) = (0, None);
        loop {
            let page = self.store.scan(&due_rows(), options.clone()).await?;
            for entry in page.entries {
                let ScanEntry::Item(item) = entry else { continue };
                if removed == sessions_max || Due::time_of(&item.key).is_some_and(|at| at > now) {
                    return failed.map_or(Ok(removed), Err);
                }
                // One session that cannot be removed does not stop the others.
                match self.sweep_one(&item).await {
                    Ok(is_removed) => removed += usize::from(is_removed),
                    Err(error) => {
                        tracing::warn!(%error, key = item.key, "the rows of an expired or deleted state remain until the next sweep");
                        failed = Some(error);
                    }
                }
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => return failed.map_or(Ok(removed), Err),
            }
        }
    }

    async fn sweep_one(&self, item: &Item) -> Result<bool> {
        let due: Due = unsealed_row("removal of a state", &item.value)?;
        if !self.admits(&due.owner.tenant, due.owner.user.as_deref()) {
            return Ok(false);
        }
        match due.task {
            Task::Expire => self.expire(item, due).await,
            Task::EndStage(..) => self.end_stage(&item.key, due, Condition::Version(item.version)).await,
            Task::RemoveData | Task::RemoveLog(_) | Task::RemoveSegment(..) => {
                self.remove(&due, &item.key).await?;
                Ok(true)
            }
        }
    }

    /// Ends a large save, which then cannot write its head, and removes its messages. Returns false if it has ended already.
    async fn end_stage(&self, stage: &str, due: Due, expected: Condition) -> Result<bool> {
        let Task::EndStage(log, segment) = due.task else { return Ok(false) };
        let due = Due { task: Task::RemoveSegment(log, segment), ..due };
        let key = due.key(self.now());
        let batch = Batch::new().expect(&due_rows(), stage, expected).delete(&due_rows(), stage);
        if !self.commit_or_leave(batch.put(&due_rows(), &key, sealed_row(&due))).await? {
            return Ok(false);
        }
        self.remove(&due, &key).await?;
        Ok(true)
    }

    /// Removes the messages of a large save that did not write its head. If that fails, a sweep does it.
    pub(crate) async fn abandon(&self, stage: &str) {
        let ended = async {
            let Some(item) = self.store.get(&due_rows(), stage).await? else { return Ok(false) };
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

    /// Removes the logs of a deletion, one namespace at a time. An archive may have brought a state together with an older row that says
    /// to remove it; then only that row is removed.
    pub(crate) async fn remove(&self, due: &Due, due_key: &str) -> Result<()> {
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
        if is_of_session && let Some(batch) = self.forget_user(&due.owner).await? {
            match self.store.commit(batch.delete(&due_rows(), due_key)).await {
                // A save has just created a session of the user.
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                done => return done.map(drop),
            }
        }
        self.store.commit(Batch::new().delete(&due_rows(), due_key)).await.map(drop)
    }

    /// Returns the batch that removes a user without sessions from the directory; `None` if there is nothing to remove.
    ///
    /// A save that creates a session writes the row of its user in the same commit. The row is read before the sessions, so the batch is
    /// refused if the user got a session that was not seen here.
    async fn forget_user(&self, owner: &Owner) -> Result<Option<Batch>> {
        let (directory, user) = (users_of(&owner.tenant, &owner.agent)?, owner.user_key());
        let Some(row) = self.store.get(&directory, &user).await? else { return Ok(None) };
        if self.has_sessions(owner).await? {
            return Ok(None);
        }
        Ok(Some(Batch::new().expect(&directory, &user, Condition::Version(row.version)).delete(&directory, user)))
    }

    /// Returns whether a user has any session.
    pub(crate) async fn has_sessions(&self, owner: &Owner) -> Result<bool> {
        let options = ScanOptions::new().with_prefix(SESSIONS).with_limit(1);
        Ok(!self.store.scan(&owner.states()?, options).await?.entries.is_empty())
    }

    /// Looks whether a session has expired. If so, removes its heads and logs, otherwise notes when to look again.
    async fn expire(&self, item: &Item, due: Due) -> Result<bool> {
        let (states, session_key) = (due.owner.states()?, session_key(&due.session));
        let found = self.store.get(&states, &session_key).await?;
        let forget = || Batch::new().expect(&due_rows(), &item.key, Condition::Version(item.version)).delete(&due_rows(), &item.key);
        let is_absent = found.is_none();
        if let Some(session) = found {
            let row: SessionRow = unsealed_row("session", &session.meta)?;
            if row.data == due.data {
                let batch = match session.expires_at {
                    Some(at) => {
                        let at = at.as_millisecond().max(self.now().saturating_add(LOOK_AGAIN));
                        forget().put(&due_rows(), due.key(at), sealed_row(&due))
                    }
                    // The session no longer expires.
                    None => forget().expect(&states, &session_key, Condition::Version(session.version)).put_with_meta(
                        &states,
                        &session_key,
                        sealed_row(&SessionRow { due: false, ..row }),
                        "",
                    ),
                };
                return self.commit_or_leave(batch).await.map(|_| false);
            }
        }
        if !self.remove_heads(&due, is_absent).await? {
            return Ok(false);
        }
        self.remove(&due, &item.key).await?;
        Ok(true)
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
        Self { task: tokio::spawn(sweep_on(states, every)) }
    }
}

impl Drop for AgentStatesSweeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn sweep_on(states: AgentStates, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        match states.sweep(AgentStatesSweeper::SESSIONS_MAX).await {
            Ok(0) => {}
            Ok(removed) => tracing::debug!(%states, removed, "expired and deleted states were removed"),
            Err(error) => tracing::warn!(%states, %error, "removing expired and deleted states failed; retrying in the next round"),
        }
    }
}
