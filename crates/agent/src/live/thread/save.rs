//! Saving the state of a thread on the condition of the head that it was opened at.

use super::LiveThread;
use super::lost::{Kept, Lost, Unsettled};
use futures::future::BoxFuture;
use jiff::Timestamp;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_core::work;
use treehold_store::Outbox;
use treehold_tree::backend::StateSnapshot;
use treehold_tree::checkpoint::{Checkpoint, CheckpointId, Checkpointer, Head, PutOptions, Saved};

/// How often a state is put again when the outcome is unknown, before its save fails.
pub(super) const PUTS_MAX: usize = 3;

impl LiveThread {
    /// Saves the state if it changed. Completes even if the future is dropped.
    pub(crate) async fn save(self: &Arc<Self>, notes: PutOptions) -> Result<Option<Checkpoint>> {
        if self.checkpointer.is_none() || self.state.read().is_none() {
            return Ok(None);
        }
        self.put(notes, false).await
    }

    /// Makes a checkpoint even if nothing changed.
    pub(crate) async fn checkpoint(self: &Arc<Self>, notes: PutOptions) -> Result<Checkpoint> {
        self.checkpointer()?;
        // Held until it is saved, so that it is not unloaded before.
        let _state = self.state().await?;
        let made = self.put(notes, true).await?;
        made.ok_or_else(|| Error::new(ErrorKind::Internal, "the requested checkpoint was not made"))
    }

    /// Saves in a separate task, which completes even if the caller is dropped. A save that stopped halfway would leave the head unknown,
    /// and the next save would mistake its own checkpoint for another writer's.
    pub(super) async fn put(self: &Arc<Self>, notes: PutOptions, always: bool) -> Result<Option<Checkpoint>> {
        let live = self.clone();
        let saving = tokio::spawn(work::carried(async move { live.put_now(notes, always).await }));
        saving.await.map_err(|error| Error::new(ErrorKind::Internal, "the save of a thread was interrupted").with_source(error))?
    }

    async fn put_now(&self, notes: PutOptions, always: bool) -> Result<Option<Checkpoint>> {
        let mut kept = self.saved.lock().await;
        let Some(checkpointer) = &self.checkpointer else { return Ok(None) };
        let Some(state) = self.state.read().clone() else { return Ok(None) };
        self.put_on(&mut kept, &**checkpointer, &state.snapshot(), notes, always).await
    }

    /// Puts a state on top of the thread's head.
    pub(super) async fn put_on(
        &self,
        kept: &mut Kept,
        checkpointer: &dyn Checkpointer,
        snapshot: &StateSnapshot,
        notes: PutOptions,
        always: bool,
    ) -> Result<Option<Checkpoint>> {
        let version = snapshot.version();
        let waiting = self.held.up_to(version);
        if !always && Some(version) == kept.state && !waiting.is_required {
            // The changes had no effect, and no waiting entry requires a commit.
            self.held.saved(waiting.end, None).await;
            return Ok(None);
        }
        if let Some(refusal) = &kept.refusal {
            return Err(refusal.error());
        }
        if !kept.unsettled.is_empty() {
            // Determine the head before anything else is put. Otherwise a series of failing saves would forget the one that took effect,
            // and our own head would look foreign forever.
            match self.find_lost(kept, checkpointer).await? {
                Lost::Saved { id, state, checkpoint, head } => {
                    self.found(kept, checkpointer, id, (head, state)).await;
                    if !always && state == Some(version) && !self.held.up_to(version).is_required {
                        return Ok(checkpoint.map(|checkpoint| *checkpoint));
                    }
                }
                Lost::Open => {}
                // The save is refused, and its caller sets the state aside.
                Lost::Gone | Lost::Unknown => kept.unsettled.clear(),
            }
        }
        let waiting = self.held.up_to(version);
        let mut notes = notes;
        let mut outbox = Outbox::of(&notes.extensions);
        outbox.extend(&waiting.outbox);
        notes.extensions.insert(outbox);
        let mut made = Vec::new();
        loop {
            let id = self.next_id();
            made.push(id);
            let options = notes.clone().with_head(kept.head).with_id(id);
            let error = match checkpointer.put(&self.scope, snapshot, &options).await {
                Ok(Saved { checkpoint, head, .. }) => {
                    self.know(checkpoint.id);
                    self.ids.lock().saved = Some(checkpoint.id);
                    kept.settle(head, Some(version));
                    self.held.saved(waiting.end, self.place(checkpointer)).await;
                    return Ok(Some(checkpoint));
                }
                Err(error) => error,
            };
            let is_refused = error.kind() == ErrorKind::Conflict;
            if error.may_have_effect() && !is_refused {
                kept.unsettle(Unsettled { id, version: Some(version), held_end: waiting.end });
            } else if !is_refused || kept.unsettled.is_empty() {
                if is_refused {
                    kept.refuse(&error);
                }
                return Err(error);
            }
            // The put may have taken effect although it, or one before it, reported an error: then it is the head, or others have continued
            // from it. Report a conflict only if none took effect, because refused work is repeated.
            match self.find_lost(kept, checkpointer).await {
                Ok(Lost::Saved { id: own, state, checkpoint, head }) => {
                    self.found(kept, checkpointer, own, (head, state)).await;
                    let is_all = state == Some(version) && !always && !self.held.up_to(version).is_required;
                    if made.contains(&own) || is_all {
                        return Ok(checkpoint.map(|checkpoint| *checkpoint));
                    }
                }
                Ok(Lost::Gone) if is_refused => {
                    kept.refuse(&error);
                    return Err(error);
                }
                // Of two puts with the same head as condition, only the first succeeds.
                Ok(Lost::Open | Lost::Gone) if made.len() < PUTS_MAX => {}
                _ if is_refused => return Err(error.with_kind(ErrorKind::Unavailable).with_unknown_effect()),
                _ => return Err(error),
            }
        }
    }

    /// Puts a head whose state this session has not held, under fresh ids so that it can be found if its outcome is unknown. Retries up to
    /// `puts_max` puts in all, while none took effect and the state still belongs on the head.
    pub(super) async fn put_other<'p>(
        &self,
        kept: &mut Kept,
        checkpointer: &dyn Checkpointer,
        puts_max: usize,
        put: impl Fn(CheckpointId) -> BoxFuture<'p, Result<Saved>> + Send + Sync,
    ) -> Result<Saved> {
        let mut made = Vec::new();
        loop {
            let own = self.next_id();
            made.push(own);
            let error = match put(own).await {
                Ok(saved) => return Ok(saved),
                Err(error) => error,
            };
            let is_refused = error.kind() == ErrorKind::Conflict;
            if error.may_have_effect() && !is_refused {
                kept.unsettle(Unsettled { id: own, version: None, held_end: 0 });
            } else if !is_refused || made.len() == 1 {
                return Err(error);
            }
            match self.find_lost(kept, checkpointer).await {
                Ok(Lost::Saved { id, checkpoint: Some(checkpoint), head, .. }) if made.contains(&id) => {
                    return Ok(Saved::new(*checkpoint, head));
                }
                Ok(Lost::Gone) if is_refused => {
                    kept.unsettled.clear();
                    return Err(error);
                }
                Ok(Lost::Open | Lost::Gone) if made.len() < puts_max => {}
                _ if is_refused => return Err(error.with_kind(ErrorKind::Unavailable).with_unknown_effect()),
                _ => return Err(error),
            }
        }
    }

    /// Records a checkpoint that was found after its outcome was unknown.
    async fn found(
        &self,
        kept: &mut Kept,
        checkpointer: &dyn Checkpointer,
        id: CheckpointId,
        (head, state): (Option<Head>, Option<Version>),
    ) {
        let held_end = kept.held_end(id);
        kept.settle(head, state);
        self.ids.lock().saved = Some(id);
        self.held.saved(held_end, self.place(checkpointer)).await;
    }

    /// Drops the rows that wait for a save, because the state is not saved.
    pub(crate) fn drop_held(&self) {
        self.held.clear();
    }

    /// Saves the state as the first checkpoint of another thread.
    pub(crate) async fn save_as(&self, thread: &str) -> Result<()> {
        let checkpointer = self.checkpointer()?;
        let scope = self.scope.clone().with_thread(thread);
        let snapshot = self.state().await?.snapshot();
        let id = CheckpointId::new(Timestamp::now(), None);
        let Err(error) = checkpointer.put(&scope, &snapshot, &PutOptions::new().with_id(id)).await else { return Ok(()) };
        if error.kind() == ErrorKind::Conflict {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("thread `{thread}` exists already; choose another id")));
        }
        if !error.may_have_effect() {
            return Err(error);
        }
        match checkpointer.confirm(&scope, id).await {
            Ok(Some(_)) => Ok(()),
            _ => Err(error),
        }
    }
}
