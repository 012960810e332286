//! One live thread: its tree, its state, and how it is saved.
//!
//! A [`Session`] is a cheaply cloneable handle. All sessions of one thread in a [`Workspace`] share its state: what one writes at `/` the
//! others read at once. The first call that needs the state opens it, and only the files that are accessed are read. The workspace's
//! [`ThreadDurability`] decides when the state is saved automatically. Every entry point calls [`Session::call`], which records each call
//! if the workspace has an [`AuditLog`].

mod durability;
mod open;
mod reach;
mod record;
mod review;
mod riders;
mod thread;
mod threads;

pub use durability::ThreadDurability;
pub(crate) use open::OpenThreads;
pub use reach::Target;
pub(crate) use reach::{Elsewhere, Mounted, Reach};
#[cfg(test)]
pub(crate) use thread::tests::Lossy;
pub(crate) use thread::{LiveThread, ThreadTree};
pub use threads::{Threads, Writes};

use crate::audit::{AuditLog, AuditRow, OUTCOME_OK, OpenCall};
use crate::feed::{Feed, Outbox};
use crate::memory::{MemoryFiles, MemoryPrompt, MemoryReader, MemorySettings};
use crate::tools::{RecordedArguments, ToolCall, ToolOutput};
use crate::workspace::Workspace;
use jiff::Timestamp;
use record::Recording;
use std::fmt;
use std::sync::Arc;
use treehold_core::error::{Error, Result};
use treehold_core::ops::{ApplyOptions, Change, Changed};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::scope::Scope;
use treehold_store::{Ride, Rider};
use treehold_tree::backend::{Backend, Subtree};
use treehold_tree::checkpoint::{At, Checkpoint, CheckpointId, MergeOptions, MergeOutcome, PutOptions, Reviewer};

/// A handle on one thread.
///
/// Dropping it saves nothing: call [`Session::close`] at the end.
///
/// ```
/// use std::sync::Arc;
/// use treehold_tree::checkpoint::StoreCheckpointer;
/// use treehold_agent::workspace::Workspace;
/// use treehold_core::Scope;
/// use treehold_store::MemoryStore;
/// use treehold_tree::backend::BackendExt;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let checkpointer = StoreCheckpointer::new(Arc::new(MemoryStore::new()));
/// let workspace = Workspace::builder().checkpointer(checkpointer).build();
/// let scope = Scope::new().with_thread("conversation-1");
///
/// let session = workspace.session(scope.clone()).await?;
/// session.backend().write("/plan.md", "1. ask\n").await?;
/// session.close().await?;
///
/// let next = workspace.session(scope).await?;
/// assert_eq!(next.backend().read_text("/plan.md").await?, "1. ask\n");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Session {
    scope: Scope,
    thread: Arc<LiveThread>,
    backend: Arc<dyn Backend>,
    /// The same tree, with the mount points of the state.
    tree: Reviewer,
    reach: Reach,
    open: Arc<OpenThreads>,
    audit: Option<Arc<AuditLog>>,
    feed: Option<Arc<Feed>>,
    memory: Arc<SessionMemory>,
    workspace: Workspace,
}

/// The result of work on a thread.
#[derive(Debug)]
pub struct Done<T> {
    /// The answer of the work itself.
    pub answer: T,
    /// The reason why its changes to the thread are not saved.
    pub unsaved: Option<Error>,
}

/// The memory of a session: its settings, and a reader that caches the files.
struct SessionMemory {
    settings: Arc<MemorySettings>,
    reader: MemoryReader,
}

/// Who requested a call, and under which id. Stored with the checkpoint that the call creates.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CallNotes {
    /// The id of the tool call, as assigned by the model's API.
    pub tool_call_id: Option<String>,
    /// The actor; defaults to the agent of the scope.
    pub actor: Option<String>,
}

impl CallNotes {
    /// Creates notes with no id, and with the scope's agent as the actor.
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
}

/// The facts that the audit log records about a call, whether or not it is a [`ToolCall`].
struct Called<'a> {
    tool: &'a str,
    /// The arguments without file contents.
    arguments: RecordedArguments,
    read_only: bool,
}

/// The metadata key of a checkpoint for the tool whose call created it.
pub const TOOL: &str = "tool";

/// The metadata key of a checkpoint for the id of the tool call that created it.
pub const TOOL_CALL_ID: &str = "tool_call_id";

/// The metadata key of a checkpoint for the actor.
pub const ACTOR: &str = "actor";

impl Session {
    pub(crate) fn new(
        scope: Scope,
        thread: Arc<LiveThread>,
        (tree, reach): (Reviewer, Reach),
        open: Arc<OpenThreads>,
        (audit, feed): (Option<Arc<AuditLog>>, Option<Arc<Feed>>),
        memory: Arc<MemorySettings>,
        workspace: Workspace,
    ) -> Self {
        let memory = Arc::new(SessionMemory { settings: memory, reader: MemoryReader::new() });
        Self { scope, thread, backend: tree.tree().clone(), tree, reach, open, audit, feed, memory, workspace }
    }

    /// Returns the caller's scope.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Returns the tree: all tiers, behind all layers.
    pub fn backend(&self) -> Arc<dyn Backend> {
        self.backend.clone()
    }

    /// Returns whether a path lies in the state of the thread, which survives only once it is saved.
    pub fn is_state(&self, path: &VfsPath) -> bool {
        self.reach.is_state(path)
    }

    /// Returns the number of batches of this session and its clones that may have changed a mount other than the thread's state.
    ///
    /// If a save conflicted with another writer's, the work may be repeated after [`Session::reload`] only if this number did not change
    /// meanwhile: otherwise the changes to other mounts would be made twice.
    pub fn changes_elsewhere(&self) -> u64 {
        self.reach.elsewhere()
    }

    /// Runs one tool call. A failed call also answers with an output.
    ///
    /// With [`ThreadDurability::Step`] the thread is saved before the answer if its state changed. A thread that cannot be saved keeps its
    /// state; the output is then an error with the code of the failed save, `may_have_effect` and [`ToolOutput::unsaved`]. If the workspace
    /// has an [`AuditLog`], the call is recorded before the answer. Failures to record are logged and counted there.
    pub async fn call(&self, call: ToolCall) -> ToolOutput {
        self.call_noting(call, CallNotes::new()).await
    }

    /// Runs one tool call as [`Session::call`] does, and stores `notes` with the checkpoint.
    pub async fn call_noting(&self, call: ToolCall, notes: CallNotes) -> ToolOutput {
        let Done { answer, unsaved } = self.call_done(call, notes).await;
        match unsaved {
            Some(error) => answer.with_unsaved(&unsaved_until(error, "it is saved with the next one, or by a checkpoint")),
            None => answer,
        }
    }

    /// Runs one tool call. Returns its answer, and separately the reason why its thread could not be saved.
    pub(crate) async fn call_done(&self, call: ToolCall, notes: CallNotes) -> Done<ToolOutput> {
        let info = call.info();
        let called = Called { tool: info.name, arguments: call.recorded(), read_only: info.read_only };
        self.run_noting(called, notes, call.run(&*self.backend)).await
    }

    /// Runs work as the call of a tool that is not a [`ToolCall`]. It is saved, noted and recorded in the same way. `arguments` must not
    /// hold file contents.
    pub async fn call_as(
        &self,
        tool: &str,
        arguments: RecordedArguments,
        read_only: bool,
        work: impl Future<Output = ToolOutput>,
    ) -> Done<ToolOutput> {
        self.run_noting(Called { tool, arguments, read_only }, CallNotes::new(), work).await
    }

    async fn run_noting(&self, called: Called<'_>, notes: CallNotes, work: impl Future<Output = ToolOutput>) -> Done<ToolOutput> {
        let Called { tool, read_only, .. } = called;
        let recording = self.recording(called, &notes);
        let call = recording.as_ref().map(|(call, _, _)| call.clone());
        let answer = match &call {
            Some(call) => call.during(work).await,
            None => work.await,
        };
        let (mut checkpoint, mut unsaved) = (None, None);
        let mut outcome = answer.error.as_ref().map_or(OUTCOME_OK, |error| &error.code).to_owned();
        if self.thread.durability() == ThreadDurability::Step && !read_only {
            let mut options = self.noted(notes);
            if let Some(call) = call {
                call.done(&outcome, answer.text.len() as u64);
                options.along.push(Rider(Arc::new(Outbox::of_own(call))));
            }
            options.metadata.insert(TOOL.to_owned(), tool.to_owned());
            match self.thread.save(options).await {
                Ok(saved) => checkpoint = saved.map(|saved| saved.id),
                Err(error) => {
                    if answer.error.is_none() {
                        error.kind().code().clone_into(&mut outcome);
                    }
                    unsaved = Some(error);
                }
            }
        }
        if let Some((_, recording, begun)) = recording {
            if self.thread.durability() == ThreadDurability::Sync && !read_only {
                checkpoint = self.thread.saved_since(begun);
            }
            recording.end(outcome, &answer, checkpoint).await;
        }
        self.open.relieve(&self.thread).await;
        Done { answer, unsaved }
    }

    /// Returns whether this session, or one that shares its state, has saved anything.
    fn has_saved(&self) -> bool {
        self.thread.has_saved()
    }

    /// Applies a batch of changes to the tree. With [`ThreadDurability::Step`] the thread is saved too.
    ///
    /// # Errors
    /// The errors of the tree. If the thread cannot be saved, it keeps its state, and the error says that the changes are made.
    pub async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        let changed = self.backend.apply(changes, options).await?;
        if self.thread.durability() == ThreadDurability::Step {
            let saved = self.thread.save(self.noted(CallNotes::new())).await;
            saved.map_err(|error| unsaved_until(error, "it is saved with the next one, or by a checkpoint"))?;
        }
        self.open.relieve(&self.thread).await;
        Ok(changed)
    }

    /// Reads memory files such as `/memories/AGENTS.md`, in the given order. Skips absent files and reports unreadable ones.
    /// [`MemoryFiles::prompt`] renders the result for a system prompt.
    ///
    /// Call it for each turn. It checks each file and rereads only those that changed since this session (or a clone of it) last read them,
    /// whoever changed them. The memory of a thread is therefore never out of date.
    ///
    /// Cost: that of [`MemoryReader::read`].
    ///
    /// # Errors
    /// [`InvalidPath`](treehold_core::error::ErrorKind::InvalidPath) for an invalid source path.
    ///
    /// ```
    /// use treehold_agent::memory::PromptOptions;
    /// use treehold_agent::workspace::Workspace;
    /// use treehold_core::Scope;
    /// use treehold_tree::backend::BackendExt;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> treehold_core::Result<()> {
    /// let session = Workspace::builder().build().session(Scope::new().with_thread("monday")).await?;
    /// session.backend().write("/memories/AGENTS.md", "Answer in French.\n").await?;
    /// let memory = session.memory(&["/memories/AGENTS.md", "/workspace/AGENTS.md"]).await?;
    /// let system = format!("You are a translator.\n\n{}", memory.prompt(&PromptOptions::new()).text);
    /// assert!(system.contains("Answer in French."));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn memory<S: AsRef<str>>(&self, sources: &[S]) -> Result<MemoryFiles> {
        let sources = sources.iter().map(VfsPathBuf::parse).collect::<Result<Vec<_>, _>>()?;
        Ok(self.read_memory(&sources).await)
    }

    /// Returns the memory that the workspace configures, rendered for a system prompt; empty if it configures none.
    ///
    /// Cost: that of [`Session::memory`].
    pub async fn memory_prompt(&self) -> MemoryPrompt {
        let memory = self.read_memory(&self.memory.settings.sources).await;
        memory.prompt_apart(self.memory.settings.prompt.clone()).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "the memory was not put into words");
            MemoryPrompt::default()
        })
    }

    /// Returns the workspace's memory settings.
    pub fn memory_settings(&self) -> &MemorySettings {
        &self.memory.settings
    }

    async fn read_memory(&self, sources: &[VfsPathBuf]) -> MemoryFiles {
        let memory = self.memory.reader.read(&*self.backend, sources).await;
        self.open.relieve(&self.thread).await;
        memory
    }

    /// Begins the audit row of a call if the workspace has an audit log. Also returns the id at which the call began.
    fn recording(&self, called: Called<'_>, notes: &CallNotes) -> Option<(Arc<OpenCall>, Recording, CheckpointId)> {
        let log = self.audit.clone()?;
        let id = self.thread.next_id();
        let RecordedArguments { kept, digest, bytes } = called.arguments;
        let mut row = AuditRow::new(id, Timestamp::now(), called.tool, kept);
        row.arguments_digest = digest;
        row.bytes_in = bytes;
        row.tool_call_id.clone_from(&notes.tool_call_id);
        row.actor = notes.actor.clone().or_else(|| self.scope.agent.clone());
        let call = OpenCall::new(log, self.thread.scope().clone(), row);
        Some((call.clone(), Recording::begin(call), id))
    }

    /// Returns the outbox that announces a replaced state.
    fn restored(&self) -> Result<Option<Arc<Outbox>>> {
        let Some(feed) = &self.feed else { return Ok(None) };
        Ok(Some(Arc::new(Outbox::restored(feed.clone(), self.scope.clone())?)))
    }

    fn noted(&self, notes: CallNotes) -> PutOptions {
        let mut options = PutOptions::new();
        let actor = notes.actor.or_else(|| self.scope.agent.clone());
        for (name, value) in [(TOOL_CALL_ID, notes.tool_call_id), (ACTOR, actor)] {
            if let Some(value) = value {
                options.metadata.insert(name.to_owned(), value);
            }
        }
        options
    }

    /// Saves the thread's state if it changed since it was read or saved. Returns whether it did.
    ///
    /// A save that has begun completes even if the future is dropped. In a workspace that saves no threads, this does nothing.
    ///
    /// # Errors
    /// [`Conflict`](treehold_core::error::ErrorKind::Conflict) when another process saved the thread meanwhile: nothing is overwritten, and this session
    /// keeps its state. [`Session::save_as`] saves that state as another thread; [`Session::reload`] replaces it with the saved one.
    /// Otherwise the errors of the store.
    pub async fn save(&self) -> Result<bool> {
        Ok(self.thread.save(self.noted(CallNotes::new())).await?.is_some())
    }

    /// Makes a checkpoint of the thread's current state, even if nothing changed, with the label and metadata of `notes`.
    ///
    /// # Errors
    /// The errors of [`Session::save`]; [`Unsupported`](treehold_core::error::ErrorKind::Unsupported) in a workspace that saves no threads.
    pub async fn checkpoint(&self, notes: PutOptions) -> Result<Checkpoint> {
        let mut options = self.noted(CallNotes::new());
        options.label = notes.label;
        options.metadata.extend(notes.metadata);
        let made = self.thread.checkpoint(options).await?;
        self.shown(made).await
    }

    /// Restores the state of a checkpoint, as a new checkpoint. Unsaved changes are saved first, and other sessions' changes happen before
    /// or after the restore, so nothing is lost. A restore that has begun completes even if the future is dropped.
    ///
    /// The tree reviews every difference as a write or a removal ([`Backend::review`]): a restore cannot bring back what a rule protects,
    /// and must fit into the quota.
    ///
    /// Cost: proportional to the differences.
    ///
    /// # Errors
    /// [`NotFound`](treehold_core::error::ErrorKind::NotFound) for a checkpoint that the thread does not have, and the errors of [`Backend::review`] and
    /// [`Session::save`].
    pub async fn restore(&self, id: CheckpointId, notes: PutOptions) -> Result<Checkpoint> {
        let mut options = self.noted(CallNotes::new());
        options.label = notes.label;
        options.metadata.extend(notes.metadata);
        let told = self.restored()?;
        told.iter().cloned().for_each(|outbox| options.along.push(Rider(outbox)));
        let restored = self.thread.restore(id, self.noted(CallNotes::new()), options, self.tree.clone()).await?;
        tell(told).await;
        self.shown(restored).await
    }

    /// Merges a checkpoint of another thread into this one, as [`merge`](treehold_tree::checkpoint::merge()) does; typically a fork back into its
    /// origin. Unsaved changes are saved first, and changes of the state wait meanwhile.
    ///
    /// The thread's head is the one that this session knows; `options.head` is ignored. The tree reviews what the merge changes, even in a
    /// dry run, and what a conflict would reveal ([`Backend::review`]): a merge that involves a hidden path is refused, and a conflict in
    /// an unreadable file is reported without its lines.
    ///
    /// # Errors
    /// The errors of [`merge`](treehold_tree::checkpoint::merge()), [`Backend::review`] and [`Session::save`].
    pub async fn merge(&self, source: &str, at: At, options: MergeOptions) -> Result<MergeOutcome> {
        let mut options = options;
        let noted = self.noted(CallNotes::new());
        let given = std::mem::take(&mut options.metadata);
        options.metadata = noted.metadata.clone().into_iter().chain(given).collect();
        let told = self.restored()?;
        let merged = self.thread.merge(source.to_owned(), at, noted, options, self.tree.clone()).await?;
        if merged.checkpoint.is_some() {
            tell(told).await;
        }
        let mut merged = merged;
        if let Some(checkpoint) = merged.checkpoint.take() {
            merged.checkpoint = Some(self.shown(checkpoint).await?);
        }
        Ok(merged)
    }

    /// Returns the thread's state at a checkpoint, read-only, as this session's tree shows the state: its rules apply to past states too.
    ///
    /// # Errors
    /// [`NotFound`](treehold_core::error::ErrorKind::NotFound) for a checkpoint that the thread does not have,
    /// [`Unsupported`](treehold_core::error::ErrorKind::Unsupported) in a workspace that saves no threads or does not mount the state.
    pub async fn history(&self, at: At) -> Result<Arc<dyn Backend>> {
        let place = self.tree.places().first().cloned();
        let place = place.ok_or_else(|| Error::unsupported("the state of the thread stands nowhere in this workspace"))?;
        let tree = self.workspace.tree_at(&self.scope, at).await?;
        Ok(if place.is_root() { tree } else { Arc::new(Subtree::new(tree, place)) })
    }

    /// Saves the thread's state as another thread, which must not exist yet.
    ///
    /// # Errors
    /// [`AlreadyExists`](treehold_core::error::ErrorKind::AlreadyExists) if it exists, and the errors of the store.
    pub async fn save_as(&self, thread: &str) -> Result<()> {
        self.thread.save_as(thread).await?;
        if let Some(feed) = &self.feed {
            Outbox::restored(feed.clone(), self.scope.clone().with_thread(thread))?.send(1).await;
        }
        Ok(())
    }

    /// Replaces the thread's state with the last saved one. Drops the changes since then, for every session of the thread.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn reload(&self) -> Result<()> {
        self.thread.reload().await
    }

    /// Saves the thread's state and closes the handle.
    ///
    /// # Errors
    /// The errors of [`Session::save`]; other sessions of the thread still hold its state then.
    pub async fn close(self) -> Result<()> {
        self.save().await.map(drop)
    }
}

/// Returns the error for changes that were made in memory but could not be saved.
fn unsaved_until(error: Error, until: &str) -> Error {
    let message = format!("the change is made, and is not saved yet: {}; {until}", error.message());
    error.with_message(message).with_unknown_effect()
}

/// Sends an outbox that no commit took along.
async fn tell(outbox: Option<Arc<Outbox>>) {
    if let Some(outbox) = outbox.filter(|outbox| !outbox.is_taken()) {
        outbox.send(1).await;
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("scope", &self.scope).field("backend", &self.backend).finish_non_exhaustive()
    }
}
