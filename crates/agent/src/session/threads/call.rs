//! Tool calls on threads. One call has one audit row, however often it is repeated.

use super::Threads;
use crate::session::call::{CallNotes, CallOutcome, Called, run};
use crate::session::{Done, Session, Target};
use crate::tools::{RecordedArguments, ToolCall, ToolOutput};
use futures::future::BoxFuture;
use jiff::Timestamp;
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_core::scope::Scope;
use treehold_tree::backend::Backend;
use treehold_tree::checkpoint::CheckpointId;

impl Threads {
    /// Runs a tool call on a thread, and saves the thread.
    pub async fn call(&self, scope: &Scope, call: ToolCall) -> ToolOutput {
        self.call_with(scope, call, CallNotes::new()).await
    }

    /// Runs a tool call as [`Threads::call`] does, and stores `notes` with the checkpoint.
    pub async fn call_with(&self, scope: &Scope, call: ToolCall, notes: CallNotes) -> ToolOutput {
        let called = Called::of(&call, notes);
        let target = Target::of_paths(call.named_paths());
        let (call, notes) = (&call, called.notes.clone());
        let notes = &notes;
        let work = |tree: Arc<dyn Backend>| -> BoxFuture<'_, (ToolOutput, CallOutcome)> {
            Box::pin(async move { run(call, &*tree, scope, notes).await })
        };
        match self.record(scope, &target, called, work).await {
            Ok(Done { answer, unsaved: None }) => answer,
            Ok(Done { answer, unsaved: Some(error) }) => answer.with_unsaved(&error),
            Err(error) => ToolOutput::from_error(&error),
        }
    }

    /// Runs work as the call of a tool that is not a [`ToolCall`]: it is saved, repeated and recorded in the same way. The work uses the
    /// given tree. Without a target it must change nothing. `arguments` must not hold file contents.
    ///
    /// # Errors
    /// The errors of [`Threads::work`].
    pub async fn call_as<'w, T>(
        &self,
        scope: &Scope,
        tool: &str,
        arguments: RecordedArguments,
        target: Option<&Target>,
        work: impl Fn(Arc<dyn Backend>) -> BoxFuture<'w, (T, CallOutcome)>,
    ) -> Result<Done<T>> {
        let id = CheckpointId::new(Timestamp::now(), None);
        let called = Called { id, tool: tool.to_owned(), arguments, read_only: target.is_none(), notes: CallNotes::new() };
        self.record(scope, target.unwrap_or(&Target::Thread), called, work).await
    }

    async fn record<'w, T>(
        &self,
        scope: &Scope,
        target: &Target,
        called: Called,
        work: impl Fn(Arc<dyn Backend>) -> BoxFuture<'w, (T, CallOutcome)>,
    ) -> Result<Done<T>> {
        if called.read_only {
            let session = self.session(scope).await?;
            let recording = session.record(&called);
            let attempt = session.attempt(&called, &recording, work(session.tree_of(&called, &recording))).await;
            self.keep_unless_saved(scope, session);
            return Ok(attempt.end(recording, None).await);
        }
        let mut turn = self.begin(scope, target).await?;
        let recording = turn.session().record(&called);
        loop {
            let session: Session = turn.session().clone();
            let mut attempt = session.attempt(&called, &recording, work(session.tree_of(&called, &recording))).await;
            let unsaved = attempt.done.unsaved.take();
            match turn.save(Done { answer: (), unsaved }).await {
                Ok(Some(Done { unsaved, .. })) => {
                    attempt.done.unsaved = unsaved;
                    return Ok(attempt.end(recording, None).await);
                }
                Ok(None) => recording.retry(),
                Err(error) => {
                    drop(attempt.end(recording, Some(&error)).await);
                    return Err(error);
                }
            }
        }
    }
}
