//! Replacing the state of a thread: restores, merges and reloads, and the listeners that they notify.

use super::LiveThread;
use super::save::PUTS_MAX;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use std::fmt;
use std::sync::{Arc, Weak};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::work;
use treehold_tree::backend::Backend;
use treehold_tree::checkpoint::{At, Checkpoint, CheckpointId, MergeOptions, MergeOutcome, PutOptions, Reviewer, Saved, plan_merge};
use treehold_tree::layer::{Quiet, Quota};

/// A listener that caches facts about the state.
pub(crate) trait ReloadListener: Send + Sync + fmt::Debug {
    /// Called after the state was replaced.
    fn reloaded(&self);

    /// Waits until no change is running that was checked against the current state, and blocks new ones until the result is dropped.
    fn quiet(&self) -> BoxFuture<'static, Quiet>;
}

impl<B: Backend + 'static> ReloadListener for Quota<B> {
    fn reloaded(&self) {
        self.forget();
    }

    fn quiet(&self) -> BoxFuture<'static, Quiet> {
        Self::quiet(self).boxed()
    }
}

impl LiveThread {
    /// Restores the state of a checkpoint, as a new checkpoint. Completes even if the future is dropped. Follows on the head that `notes`
    /// names, or on any.
    pub(crate) async fn restore(
        self: &Arc<Self>,
        id: CheckpointId,
        save: PutOptions,
        notes: PutOptions,
        reviewer: Reviewer,
    ) -> Result<Checkpoint> {
        let live = self.clone();
        let restoring = tokio::spawn(work::carried(async move { live.restore_now(id, save, notes, reviewer).await }));
        restoring.await.map_err(|error| Error::new(ErrorKind::Internal, "the restore of a thread was interrupted").with_source(error))?
    }

    async fn restore_now(&self, id: CheckpointId, save: PutOptions, notes: PutOptions, reviewer: Reviewer) -> Result<Checkpoint> {
        let checkpointer = self.checkpointer()?;
        // The review runs while nothing changes, and may read the state. Open the state first: opening takes the lock that is held by then.
        let state = self.state().await?;
        let _quiet = self.quiet().await;
        let mut kept = self.saved.lock().await;
        let state = self.state.read().clone().unwrap_or(state);
        // Between the save and the restore nobody may change the state, or an acknowledged change would be lost.
        let paused = state.pause().await;
        let Some(before) = checkpointer.open(&self.scope, id.into()).await? else {
            let thread = self.scope.thread.as_deref().unwrap_or_default();
            let message = format!("thread `{thread}` has no checkpoint `{id}`; list its checkpoints for a valid id");
            return Err(Error::new(ErrorKind::NotFound, message));
        };
        reviewer.allow(&state.snapshot(), &before.state).await?;
        self.put_on(&mut kept, &**checkpointer, &state.snapshot(), save, false).await?;
        let restore = |own| -> BoxFuture<'_, _> {
            let notes = notes.clone().with_id(own);
            Box::pin(async move { checkpointer.restore(&self.scope, id, &notes).await })
        };
        // A restore without a head follows on any, so a second put could follow on the first.
        let Saved { checkpoint, head, .. } = self.put_other(&mut kept, &**checkpointer, 1, restore).await?;
        self.know(checkpoint.id);
        // Prefer the new checkpoint's tree: it is the same tree, and it stays as long as the thread does.
        let opened = checkpointer.open(&self.scope, checkpoint.id.into()).await.ok().flatten().unwrap_or(before).state;
        paused.restore(&opened);
        kept.settle(head, Some(opened.version()));
        self.tell_reloaded();
        Ok(checkpoint)
    }

    /// Saves the state and merges a checkpoint of another thread into it. Completes even if the future is dropped. Changes of the state
    /// wait meanwhile, so that none is lost between the save and the switch to the merged state.
    pub(crate) async fn merge(
        self: &Arc<Self>,
        source: String,
        at: At,
        save: PutOptions,
        options: MergeOptions,
        reviewer: Reviewer,
    ) -> Result<MergeOutcome> {
        if options.dry_run {
            self.state().await?;
            // Only the save must complete; the rest may end with its caller.
            self.put(save, false).await?;
            let options = options.with_head(self.saved.lock().await.head);
            let checkpointer = self.checkpointer()?;
            let (outcome, _) = plan_merge(&**checkpointer, &self.scope, (&source, at), &options, Some(&reviewer)).await?;
            return Ok(outcome);
        }
        let live = self.clone();
        let merging = tokio::spawn(work::carried(async move { live.merge_now((&source, at), save, options, reviewer).await }));
        merging.await.map_err(|error| Error::new(ErrorKind::Internal, "the merge of a thread was interrupted").with_source(error))?
    }

    async fn merge_now(
        &self,
        (source, at): (&str, At),
        save: PutOptions,
        options: MergeOptions,
        reviewer: Reviewer,
    ) -> Result<MergeOutcome> {
        let checkpointer = self.checkpointer()?;
        let state = self.state().await?;
        let _quiet = self.quiet().await;
        let mut kept = self.saved.lock().await;
        // The state may have been unloaded since, and opened again.
        let state = self.state.read().clone().unwrap_or(state);
        let paused = state.pause().await;
        self.put_on(&mut kept, &**checkpointer, &state.snapshot(), save, false).await?;
        let options = options.with_head(kept.head);
        let (mut outcome, planned) = plan_merge(&**checkpointer, &self.scope, (source, at), &options, Some(&reviewer)).await?;
        let Some((merged, notes)) = &planned else { return Ok(outcome) };
        // The new checkpoint's id must be greater than that of the merged one.
        self.know(outcome.theirs.id);
        let put = |own| -> BoxFuture<'_, _> {
            let notes = notes.clone().with_id(own);
            Box::pin(async move { checkpointer.put(&self.scope, merged, &notes).await })
        };
        let Saved { checkpoint, head, .. } = self.put_other(&mut kept, &**checkpointer, PUTS_MAX, put).await?;
        self.know(checkpoint.id);
        paused.restore(merged);
        kept.settle(head, Some(merged.version()));
        self.tell_reloaded();
        outcome.checkpoint = Some(checkpoint);
        Ok(outcome)
    }

    /// Registers a listener for reloads, as long as it lives.
    pub(crate) fn on_reload(&self, listener: Weak<dyn ReloadListener>) {
        let mut listeners = self.listeners.lock();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(listener);
    }

    /// Replaces the state with the last saved one.
    pub(crate) async fn reload(&self) -> Result<()> {
        let mut kept = self.saved.lock().await;
        let Some(state) = self.state.read().clone() else { return Ok(()) };
        let (snapshot, found) = self.open().await?;
        state.restore(&snapshot).await;
        // The changes are gone, and their rows with them.
        self.held.clear();
        *kept = found;
        self.tell_reloaded();
        Ok(())
    }

    /// Waits until no change is running that a listener admitted, taking the listeners in order of registration.
    async fn quiet(&self) -> Vec<Quiet> {
        let listeners: Vec<_> = self.listeners.lock().iter().filter_map(Weak::upgrade).collect();
        let mut quiet = Vec::with_capacity(listeners.len());
        for listener in listeners {
            quiet.push(listener.quiet().await);
        }
        quiet
    }

    fn tell_reloaded(&self) {
        self.listeners.lock().iter().filter_map(Weak::upgrade).for_each(|listener| listener.reloaded());
    }
}
