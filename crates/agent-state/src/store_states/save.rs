//! Saving a value: its new messages, its head and the row of its session.

use super::StoreStates;
use super::commit::fenced;
use super::head::{Look, Seen, decoded};
use crate::contract::{SaveOptions, StateConflict, StateVersion};
use crate::log::{COMMIT_BYTES_MAX, COMMIT_ROWS_MAX, Plan, plan};
use crate::proofs::{NeededProof, SessionProofs};
use crate::rows::{Due, Form, HeadMeta, Owner, SessionRow, Task, corrupt, head_key, new_id, position_key, sealed_row, session_key};
use crate::slot::StateSlot;
use crate::value::{Given, Segment};
use bytes::Bytes;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::retry::Attempts;
use treehold_store::proof::Proof;
use treehold_store::{Batch, Condition, Namespace};

/// How long a large save may take.
const STAGE_TIME: Duration = Duration::from_secs(60 * 60);

impl StoreStates {
    /// Saves a value. Repeats the save while other writers are faster.
    pub(super) async fn put(&self, slot: &StateSlot, key: &str, given: Given<'_>, options: &SaveOptions) -> Result<Option<StateVersion>> {
        self.check_key(key)?;
        let owner = self.owner(slot.user())?;
        let prepared = given.prepare(&self.states.options).await?;
        let (content, digests) = (given.content(&prepared), &prepared.digests);
        let (mut attempts, mut missing_at) = (Attempts::new(), None);
        loop {
            let time_to_live = self.states.options.expiry.time_to_live(slot);
            let expires_at = time_to_live.map(|time_to_live| self.due_at(time_to_live));
            let proofs = SessionProofs::new(&owner, self.states.now(), expires_at)?;
            let seen = self.look(&owner, slot, content.form(), key, Look::ToSave(&proofs)).await?;
            let current = seen.current()?;
            if !options.expected.admits(current) {
                return Err(StateConflict::new(slot, key, options.expected, current).into_error());
            }
            let data = seen.session.as_ref().map_or_else(new_id, |session| session.row.data.clone());
            let before = match seen.live() {
                Some(head) => Some(decoded(head).await?),
                None => None,
            };
            let mut kept = None;
            if let (Some(before), Some(digests), Some(head)) = (&before, digests, seen.live())
                && let Some(window) = &before.window
                && !digests.start_with(window)
            {
                kept = self.read_digests(&owner, &data, before).await?;
                if kept.is_none() {
                    // Another writer replaced the window meanwhile, unless the head is still the same.
                    if missing_at.replace(head.version) == Some(head.version) {
                        return Err(corrupt("log of a state"));
                    }
                    attempts.lost().await?;
                    continue;
                }
            }
            let plan = plan(before.as_ref(), &content, digests.as_ref(), kept.as_deref())?;
            let save = Save { owner: &owner, slot, key, form: content.form(), seen: &seen, data: &data, time_to_live, proofs: &proofs };
            let version = seen.next_version()?;
            if self.write(&save, plan, version, options).await? {
                return Ok(StateVersion::new(version));
            }
            attempts.lost().await?;
        }
    }

    /// Writes what a save planned. Returns false, without an effect, if another writer was faster.
    async fn write(&self, save: &Save<'_>, plan: Plan<'_>, version: u64, options: &SaveOptions) -> Result<bool> {
        let (states, head_key) = (save.owner.states()?, head_key(save.slot.session(), save.form, save.key));
        let mut batch = fenced(save.owner, options.fence.as_ref())?;
        let head_condition = save.seen.head.as_ref().map_or(Condition::Absent, |head| Condition::Version(head.version));
        batch = batch.expect(&states, &head_key, head_condition);
        let (batch_of_session, mut proofs) = self.put_session(batch, save)?;
        batch = batch_of_session;
        let log = plan.body.log.as_ref().map(|log| log.id.clone());
        let leaving = self.leaving(save, &plan)?;
        let (leaving_now, leaving_later) = leaving.split_at(leaving.len().min(COMMIT_ROWS_MAX));
        batch = self.retire(batch, leaving_now);
        if let (Some(log), Some(retention), false) = (&log, self.states.options.retention, plan.dropped.is_empty()) {
            let visit = save.owner.visit_for(self.states.now(), self.due_at(retention));
            for segment in &plan.dropped {
                let due = save.due(Task::RemoveSegment(log.clone(), segment.clone()));
                batch = batch.put(&save.owner.due()?, due.key(visit), sealed_row(&due));
            }
            proofs.push(self.states.needed_visit(save.owner, visit).await?);
        }
        let stage = match (&log, &plan.staged) {
            (Some(log), Some(segment)) => Some(self.stage(save, log, segment, &plan).await?),
            (Some(log), None) => {
                let rows = save.owner.log_of(save.data, log, plan.segments.last().and_then(Segment::id))?;
                for (position, digest, text) in &plan.rows {
                    batch = batch.put_with_meta(&rows, position_key(*position), digest.to_vec(), (*text).to_owned());
                }
                None
            }
            _ => None,
        };
        if let Some(stage) = &stage {
            let due = save.owner.due()?;
            batch = batch.expect(&due, stage, Condition::Exists).delete(&due, stage);
        }
        let meta = HeadMeta { version, data: save.data.to_owned(), log };
        batch = batch.put_with_meta(&states, head_key, sealed_row(&meta), plan.body.encode());
        let committed = self.commit_with(save.owner, batch, &proofs, options.fence.is_some()).await;
        match (&committed, stage) {
            (Ok(true), _) => self.retire_later(leaving_later).await,
            // After any other error the save may have taken effect; a sweep finds out.
            (Ok(false), Some(stage)) => self.states.abandon(save.owner, &stage).await,
            (Err(error), Some(stage)) if !error.may_have_effect() => self.states.abandon(save.owner, &stage).await,
            _ => {}
        }
        committed
    }

    /// Writes the messages of a large save, before its head. Returns the key of the row that says so.
    async fn stage(&self, save: &Save<'_>, log: &str, segment: &str, plan: &Plan<'_>) -> Result<String> {
        let due = save.due(Task::EndStage(log.to_owned(), segment.to_owned()));
        let visit = save.owner.visit_for(self.states.now(), self.due_at(STAGE_TIME));
        let (owner, stage) = (save.owner, due.key(visit));
        let mut attempts = Attempts::new();
        loop {
            let proofs = [self.states.needed_visit(owner, visit).await?];
            let staged = Batch::new().put(&owner.due()?, &stage, sealed_row(&due));
            if self.commit_with(owner, staged, &proofs, false).await? {
                break;
            }
            attempts.lost().await?;
        }
        let staged = self.stage_rows(&owner.due()?, &owner.segment(save.data, log, segment)?, &stage, plan).await;
        if let Err(error) = staged {
            self.states.abandon(owner, &stage).await;
            return Err(error);
        }
        Ok(stage)
    }

    async fn stage_rows(&self, due: &Namespace, rows: &Namespace, stage: &str, plan: &Plan<'_>) -> Result<()> {
        let start = || Batch::new().expect(due, stage, Condition::Exists);
        let (mut batch, mut bytes) = (start(), 0);
        for (position, digest, text) in &plan.rows {
            batch = batch.put_with_meta(rows, position_key(*position), digest.to_vec(), (*text).to_owned());
            bytes += text.len();
            if bytes >= COMMIT_BYTES_MAX || batch.writes.len() >= COMMIT_ROWS_MAX {
                self.store().commit(std::mem::replace(&mut batch, start())).await.map_err(staging_ended)?;
                bytes = 0;
            }
        }
        if batch.is_empty() { Ok(()) } else { self.store().commit(batch).await.map(drop).map_err(staging_ended) }
    }

    /// Returns the rows of the messages that leave the window.
    fn leaving(&self, save: &Save<'_>, plan: &Plan<'_>) -> Result<Vec<(Namespace, String)>> {
        let Some(log) = plan.body.log.as_ref().filter(|_| self.states.options.retention.is_some()) else { return Ok(Vec::new()) };
        let spaces: Vec<Namespace> =
            plan.segments.iter().map(|segment| save.owner.log_of(save.data, &log.id, segment.id())).collect::<Result<_>>()?;
        let row = |(segment, position): &(usize, u64)| (spaces[*segment].clone(), position_key(*position));
        Ok(plan.leaving.iter().map(row).collect())
    }

    /// Lets messages expire after the retention.
    fn retire(&self, batch: Batch, rows: &[(Namespace, String)]) -> Batch {
        let Some(retention) = self.states.options.retention else { return batch };
        rows.iter().fold(batch, |batch, (namespace, key)| match retention.is_zero() {
            true => batch.delete(namespace, key),
            false => batch.touch(namespace, key, Some(retention)),
        })
    }

    /// Lets the messages of a large compaction expire. If this fails, they stay as long as the session.
    async fn retire_later(&self, rows: &[(Namespace, String)]) {
        for rows in rows.chunks(COMMIT_ROWS_MAX) {
            if let Err(error) = self.store().commit(self.retire(Batch::new(), rows)).await {
                tracing::warn!(%error, "messages that left a state stay as long as their session");
                return;
            }
        }
    }

    /// Adds the row of the session to the batch of a save: creates it, counts a new head, or renews its expiry. Returns the proofs that the
    /// batch then needs, too.
    fn put_session(&self, batch: Batch, save: &Save<'_>) -> Result<(Batch, Vec<NeededProof>)> {
        let Save { owner, slot, seen, time_to_live, proofs, .. } = *save;
        let (states, session_key) = (owner.states()?, session_key(slot.session()));
        let condition = seen.session.as_ref().map_or(Condition::Absent, |session| Condition::Version(session.version));
        let mut batch = batch.expect(&states, &session_key, condition);
        let is_new_head = seen.live().is_none();
        let row = seen.session.as_ref().map(|session| &session.row);
        let next = SessionRow {
            data: save.data.to_owned(),
            keys: row.map_or(0, |row| row.keys) + u64::from(is_new_head),
            due: row.is_some_and(|row| row.due) || time_to_live.is_some(),
        };
        if is_new_head && next.keys > self.states.options.keys_max as u64 {
            let max = self.states.options.keys_max;
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("a session may have at most {max} keys; delete some or use another session"),
            ));
        }
        let mut needed = Vec::new();
        if row.is_none() {
            needed.push(&proofs.directory);
        }
        if let Some((visit, proof)) = &proofs.expiry
            && !row.is_some_and(|row| row.due)
        {
            let due = save.due(Task::Expire);
            batch = batch.put(&owner.due()?, due.key(*visit), sealed_row(&due));
            needed.push(proof);
        }
        let found = |proof: &Proof| seen.proofs.iter().find(|found| found.key == proof.key());
        let needed = needed.into_iter().map(|proof| self.states.needed(proof.clone(), found(proof))).collect();
        if row != Some(&next) {
            batch = batch.put_item(&states, session_key, sealed_row(&next), Bytes::new(), time_to_live);
        } else if time_to_live.is_some() || seen.session.as_ref().is_some_and(|session| session.expires_at.is_some()) {
            batch = batch.touch(&states, session_key, time_to_live);
        }
        Ok((batch, needed))
    }
}

/// A save: what it writes, and what it found.
struct Save<'a> {
    owner: &'a Owner,
    slot: &'a StateSlot,
    key: &'a str,
    form: Form,
    seen: &'a Seen,
    data: &'a str,
    time_to_live: Option<Duration>,
    proofs: &'a SessionProofs,
}

impl Save<'_> {
    fn due(&self, task: Task) -> Due {
        Due { owner: self.owner.clone(), session: self.slot.session().to_owned(), data: self.data.to_owned(), task }
    }
}

/// The error of a save whose messages a sweep removed because it took too long.
fn staging_ended(error: Error) -> Error {
    if error.kind() != ErrorKind::Conflict {
        return error;
    }
    Error::new(ErrorKind::Deadline, "the save took over an hour, so nothing was saved; try again").without_effect().with_source(error)
}
