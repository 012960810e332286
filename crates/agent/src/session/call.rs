//! Tool calls on a session: how they run, are saved, and are recorded.

use super::record::Recording;
use super::{CALL, Done, Session, ThreadDurability};
use crate::audit::{AuditRow, CallEntry, CurrentCall, OUTCOME_OK, OpenCall};
use crate::live::unsaved_until;
use crate::tools::{RecordedArguments, ToolCall, ToolContext, ToolOutput};
use async_trait::async_trait;
use jiff::Timestamp;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use treehold_core::error::{Error, Result};
use treehold_core::ops::{ApplyOptions, Author, Change, Changed, Extensions};
use treehold_core::scope::Scope;
use treehold_store::Outbox;
use treehold_tree::backend::Backend;
use treehold_tree::checkpoint::{CheckpointId, PutOptions};
use treehold_tree::forward_backend;

/// What a session tells its caller about a change that it could not save.
const SAVED_LATER: &str = "the next save or checkpoint saves it";

/// Who requested a call, and under which id, and what accompanies its changes. The id and the actor are stored with the checkpoint that
/// the call creates.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CallNotes {
    /// The id of the tool call, as assigned by the model's API.
    pub tool_call_id: Option<String>,
    /// The actor; defaults to the agent of the scope.
    pub actor: Option<String>,
    /// Values that accompany each batch of changes that the call makes, such as an [`Outbox`].
    pub extensions: Extensions,
}

impl CallNotes {
    /// Creates notes with no id, no extensions, and with the scope's agent as the actor.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the id of the tool call.
    #[must_use]
    pub fn with_tool_call_id(mut self, id: impl Into<String>) -> Self {
        self.tool_call_id = Some(id.into());
        self
    }

    /// Sets the actor.
    #[must_use]
    pub fn with_actor(mut self, actor: impl Into<String>) -> Self {
        self.actor = Some(actor.into());
        self
    }

    /// Adds a value to the [extensions](CallNotes::extensions).
    ///
    /// The rows of an [`Outbox`] commit with the call's changes, or not at all:
    /// - with the save of the thread, if the call changes the thread's state;
    /// - with the changed rows, if it changes a tree in the store of the outbox. A call that makes several batches delivers the rows with the
    ///   first of them; the built-in tools make one;
    /// - never, if it changes nothing or only other trees. The [`Receipt`](treehold_store::Receipt) is then
    ///   [`Ignored`](treehold_store::Delivery::Ignored) when the call returns, and the caller can put the rows itself.
    ///
    /// [`Threads`](super::Threads) delivers the rows once, however often it repeats the call.
    #[must_use]
    pub fn with_extension<T: Any + Send + Sync>(mut self, value: T) -> Self {
        self.extensions.insert(value);
        self
    }
}

/// The metadata key of a checkpoint for the tool whose call created it.
pub const TOOL: &str = "tool";

/// The metadata key of a checkpoint for the id of the tool call that created it.
pub const TOOL_CALL_ID: &str = "tool_call_id";

/// The metadata key of a checkpoint for the actor.
pub const ACTOR: &str = "actor";

/// What the audit log records about the end of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallOutcome {
    /// The code of the call's error; `None` if it succeeded.
    pub error: Option<String>,
    /// The size of its answer, in bytes.
    pub bytes_out: u64,
}

impl CallOutcome {
    fn code(&self) -> &str {
        self.error.as_deref().unwrap_or(OUTCOME_OK)
    }
}

impl From<&ToolOutput> for CallOutcome {
    fn from(output: &ToolOutput) -> Self {
        Self { error: output.error.as_ref().map(|error| error.code.clone()), bytes_out: output.text.len() as u64 }
    }
}

/// The facts that the audit log records about a call before it runs, whether or not it is a [`ToolCall`].
#[derive(Debug, Clone)]
pub(super) struct Called {
    /// The id of the call among its changes.
    pub(super) id: CheckpointId,
    pub(super) tool: String,
    /// The arguments without file contents.
    pub(super) arguments: RecordedArguments,
    pub(super) read_only: bool,
    pub(super) notes: CallNotes,
}

impl Called {
    /// Returns the author of the call's changes; the mounts add the scope.
    fn author(&self) -> Author {
        let mut author = Author::new();
        author.tool = Some(self.tool.clone());
        author.tool_call_id.clone_from(&self.notes.tool_call_id);
        author.actor.clone_from(&self.notes.actor);
        author.call = Some(self.id.to_string());
        author
    }

    pub(super) fn of(call: &ToolCall, notes: CallNotes) -> Self {
        let info = call.info();
        Self {
            id: CheckpointId::new(Timestamp::now(), None),
            tool: info.name.to_string(),
            arguments: call.recorded(),
            read_only: info.read_only,
            notes,
        }
    }
}

/// Runs a call on a tree.
pub(super) async fn run(call: &ToolCall, tree: &dyn Backend, scope: &Scope, notes: &CallNotes) -> (ToolOutput, CallOutcome) {
    let context = ToolContext::new(tree).with_scope(scope).with_call(notes.actor.as_deref(), notes.tool_call_id.as_deref());
    let output = call.run_in(&context).await;
    let outcome = CallOutcome::from(&output);
    (output, outcome)
}

/// One attempt of a call.
pub(super) struct Attempt<T> {
    pub(super) done: Done<T>,
    pub(super) outcome: CallOutcome,
    /// The checkpoint that the attempt led to.
    pub(super) checkpoint: Option<CheckpointId>,
}

impl<T> Attempt<T> {
    /// Writes the audit row of the call, whose last attempt this is. `error` is the failure of the work around it.
    pub(super) async fn end(self, recording: Recording, error: Option<&Error>) -> Done<T> {
        let Self { done, outcome, checkpoint } = self;
        let failed = error.or(done.unsaved.as_ref()).filter(|_| outcome.error.is_none());
        let code = failed.map_or(outcome.code(), |error| error.kind().code()).to_owned();
        recording.end(code, outcome.bytes_out, checkpoint.filter(|_| error.is_none())).await;
        done
    }
}

impl Session {
    /// Runs one tool call. A failed call also answers with an output.
    ///
    /// With [`ThreadDurability::Step`] the thread is saved before the answer if its state changed. A thread that cannot be saved keeps its
    /// state; the output is then an error with [`ToolOutput::unsaved`]. The call is never repeated: use [`Threads`](super::Threads) for
    /// threads that others save meanwhile. If the workspace has an [`AuditLog`](crate::audit::AuditLog), the call is recorded before the
    /// answer. Failures to record are logged and counted there.
    pub async fn call(&self, call: ToolCall) -> ToolOutput {
        self.call_with(call, CallNotes::new()).await
    }

    /// Runs one tool call as [`Session::call`] does, and stores `notes` with the checkpoint.
    pub async fn call_with(&self, call: ToolCall, notes: CallNotes) -> ToolOutput {
        let called = Called::of(&call, notes);
        let recording = self.record(&called);
        let tree = self.tree_of(&called, &recording);
        let work = run(&call, &*tree, &self.scope, &called.notes);
        let Done { answer, unsaved } = self.attempt(&called, &recording, work).await.end(recording, None).await;
        match unsaved {
            Some(error) => answer.with_unsaved(&unsaved_until(error, SAVED_LATER)),
            None => answer,
        }
    }

    /// Applies a batch of changes to the tree. With [`ThreadDurability::Step`] the thread is saved too. If that fails, it keeps its state,
    /// and the result says why.
    ///
    /// # Errors
    /// The errors of the tree.
    pub async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Done<Vec<Changed>>> {
        let answer = self.backend.apply(changes, options).await?;
        let saved = match self.thread.durability() {
            ThreadDurability::Step => self.thread.save(self.noted(&CallNotes::new())).await.map(drop),
            _ => Ok(()),
        };
        self.open.relieve(&self.thread).await;
        Ok(Done { answer, unsaved: saved.err().map(|error| unsaved_until(error, SAVED_LATER)) })
    }

    /// Begins the audit row of a call, if the workspace has an audit log.
    pub(super) fn record(&self, called: &Called) -> Recording {
        let Some(log) = self.audit.clone() else { return Recording::none() };
        let RecordedArguments { kept, digest, bytes } = called.arguments.clone();
        let mut row = AuditRow::new(self.thread.next_id(), Timestamp::now(), &called.tool, kept);
        row.arguments_digest = digest;
        row.bytes_in = bytes;
        row.tool_call_id.clone_from(&called.notes.tool_call_id);
        row.actor = called.notes.actor.clone().or_else(|| self.scope.agent.clone());
        Recording::begin(OpenCall::new(log, self.thread.scope().clone(), row))
    }

    /// Returns the tree of a call: its changes carry the audit row and the call's extensions.
    pub(super) fn tree_of(&self, called: &Called, recording: &Recording) -> Arc<dyn Backend> {
        let mut extensions = called.notes.extensions.clone();
        if let Some(call) = recording.call() {
            extensions.insert(CurrentCall(call.clone()));
        }
        extensions.insert(called.author());
        Arc::new(CallTree { inner: self.backend.clone(), extensions })
    }

    /// Runs one attempt of a call, and saves the thread if each call does.
    pub(super) async fn attempt<T>(
        &self,
        called: &Called,
        recording: &Recording,
        work: impl Future<Output = (T, CallOutcome)>,
    ) -> Attempt<T> {
        let durability = self.thread.durability();
        let begun = (durability == ThreadDurability::Sync && recording.call().is_some()).then(|| self.thread.next_id());
        let elsewhere = self.changes_elsewhere();
        let (answer, outcome) = work.await;
        let (mut checkpoint, mut unsaved) = (None, None);
        if durability == ThreadDurability::Step && !called.read_only {
            let mut options = self.noted(&called.notes);
            if let Some(call) = recording.call() {
                call.done(outcome.code(), outcome.bytes_out);
                let mut outbox = Outbox::new();
                outbox.push(CallEntry::of_save(call.clone()));
                options.extensions.insert(outbox);
            }
            options.metadata.insert(TOOL.to_owned(), called.tool.clone());
            if self.changes_elsewhere() != elsewhere {
                // An undo reverts what the call changed elsewhere too.
                options.metadata.insert(CALL.to_owned(), called.id.to_string());
            }
            match self.thread.save(options).await {
                Ok(saved) => checkpoint = saved.map(|saved| saved.id),
                Err(error) => unsaved = Some(error),
            }
        }
        if let Some(begun) = begun.filter(|_| !called.read_only) {
            checkpoint = self.thread.saved_since(begun);
        }
        self.open.relieve(&self.thread).await;
        Attempt { done: Done { answer, unsaved }, outcome, checkpoint }
    }

    pub(super) fn noted(&self, notes: &CallNotes) -> PutOptions {
        let mut options = PutOptions::new();
        let actor = notes.actor.clone().or_else(|| self.scope.agent.clone());
        for (name, value) in [(TOOL_CALL_ID, notes.tool_call_id.clone()), (ACTOR, actor)] {
            if let Some(value) = value {
                options.metadata.insert(name.to_owned(), value);
            }
        }
        options
    }
}

/// A session's tree as one call changes it.
#[derive(Debug)]
struct CallTree {
    inner: Arc<dyn Backend>,
    /// What accompanies each batch of the call.
    extensions: Extensions,
}

impl fmt::Display for CallTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl Backend for CallTree {
    forward_backend! { self => self.inner; capabilities, stat, read, ls, glob, grep, search, review }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        let mut options = options.clone();
        let mut outbox = Outbox::of(&options.extensions);
        outbox.extend(&Outbox::of(&self.extensions));
        options.extensions.extend(&self.extensions);
        if !outbox.is_empty() {
            options.extensions.insert(outbox);
        }
        self.inner.apply(changes, &options).await
    }
}
