//! One live thread: its tree, its state, and how it is saved.
//!
//! A [`Session`] is a cheaply cloneable handle. All sessions of one thread in a [`Workspace`] share its state: what one writes at `/` the
//! others read at once. The first call that needs the state opens it, and only the files that are accessed are read. The workspace's
//! [`ThreadDurability`] decides when the state is saved automatically. Every entry point calls [`Session::call`], which records each call
//! if the workspace has an [`AuditLog`].

mod call;
mod done;
mod open;
mod past;
mod record;
mod review;
mod target;
mod threads;

pub use crate::live::ThreadDurability;
pub use call::{ACTOR, CallNotes, CallOutcome, TOOL, TOOL_CALL_ID};
pub use done::Done;
pub use past::{CALL, FileLog, UNDOES, UndoOf, Undone};
pub use target::Target;
pub use threads::{ThreadTree, Threads, Turn, Writes};

use crate::audit::AuditLog;
use crate::feed::{Events, Feed, FeedKind};
use crate::live::{LiveThread, OpenThreads, Reach};
use crate::memory::{MemoryFiles, MemoryPrompt, MemoryReader, MemorySettings};
use crate::workspace::Workspace;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use treehold_core::error::{Error, Result};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::scope::Scope;
use treehold_store::Outbox;
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
    /// Reads the memory, and caches the files.
    memory: Arc<MemoryReader>,
    workspace: Workspace,
}

impl Session {
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

    /// Returns whether this session, or one that shares its state, has saved anything.
    fn has_saved(&self) -> bool {
        self.thread.has_saved()
    }

    /// Drops the rows that wait for the save of abandoned changes.
    fn drop_held(&self) {
        self.thread.drop_held();
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
        let memory = self.configured_memory().await;
        memory.prompt_in_background(self.memory_settings().prompt.clone()).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "the prompt memory could not be rendered");
            MemoryPrompt::default()
        })
    }

    /// Reads the memory that the workspace configures: its sources, and lists of what else lies under its indexed directories.
    ///
    /// Cost: that of [`MemoryReader::read_with_index`].
    pub async fn configured_memory(&self) -> MemoryFiles {
        let settings = self.memory_settings();
        if settings.sources.is_empty() {
            return MemoryFiles::default();
        }
        let memory = self.memory.read_with_index(&*self.backend, &settings.sources, &settings.index).await;
        self.open.relieve(&self.thread).await;
        memory
    }

    /// Returns the workspace's memory settings.
    pub fn memory_settings(&self) -> &MemorySettings {
        self.workspace.memory()
    }

    async fn read_memory(&self, sources: &[VfsPathBuf]) -> MemoryFiles {
        let memory = self.memory.read(&*self.backend, sources).await;
        self.open.relieve(&self.thread).await;
        memory
    }

    /// Returns the event that the state was replaced.
    fn replaced(&self, operation: FeedKind) -> Result<Option<Arc<Events>>> {
        let Some(feed) = &self.feed else { return Ok(None) };
        Ok(Some(Arc::new(Events::replaced(feed.clone(), self.scope.clone(), operation)?)))
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
        self.save_noted(&BTreeMap::new()).await
    }

    /// Saves the thread as [`Session::save`] does, with metadata.
    async fn save_noted(&self, metadata: &BTreeMap<String, String>) -> Result<bool> {
        let mut options = self.noted(&CallNotes::new());
        options.metadata.extend(metadata.clone());
        Ok(self.thread.save(options).await?.is_some())
    }

    /// Makes a checkpoint of the thread's current state, even if nothing changed, with the label and metadata of `notes`.
    ///
    /// # Errors
    /// The errors of [`Session::save`]; [`Unsupported`](treehold_core::error::ErrorKind::Unsupported) in a workspace that saves no threads.
    pub async fn checkpoint(&self, notes: PutOptions) -> Result<Checkpoint> {
        let mut options = self.noted(&CallNotes::new());
        options.label = notes.label;
        options.metadata.extend(notes.metadata);
        options.extensions = notes.extensions;
        let made = self.thread.checkpoint(options).await?;
        self.shown(made).await
    }

    /// Restores the state of a checkpoint, as a new checkpoint. Unsaved changes are saved first, and other sessions' changes happen before
    /// or after the restore, so nothing is lost. A restore that has begun completes even if the future is dropped.
    ///
    /// With a head in `notes`, the restore follows on that head only; otherwise on whichever the thread has.
    ///
    /// The tree reviews every difference as a write or a removal ([`Backend::review`]): a restore cannot bring back what a rule protects,
    /// and must fit into the quota.
    ///
    /// Cost: proportional to the differences.
    ///
    /// # Errors
    /// [`NotFound`](treehold_core::error::ErrorKind::NotFound) for a checkpoint that the thread does not have,
    /// [`Conflict`](treehold_core::error::ErrorKind::Conflict) if the thread has another head than `notes` name, and the errors of
    /// [`Backend::review`] and [`Session::save`].
    pub async fn restore(&self, id: CheckpointId, notes: PutOptions) -> Result<Checkpoint> {
        let mut options = self.noted(&CallNotes::new());
        (options.head, options.label) = (notes.head, notes.label);
        options.metadata.extend(notes.metadata);
        let mut outbox = Outbox::of(&notes.extensions);
        let event = self.replaced(FeedKind::Restore)?.map(|event| (outbox.push_shared(event.clone()), event));
        options.extensions = notes.extensions;
        options.extensions.insert(outbox);
        let restored = self.thread.restore(id, self.noted(&CallNotes::new()), options, self.tree.clone()).await?;
        if let Some((receipt, event)) = event
            && !receipt.is_taken()
        {
            event.send(1, None).await;
        }
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
        let noted = self.noted(&CallNotes::new());
        let given = std::mem::take(&mut options.metadata);
        options.metadata = noted.metadata.clone().into_iter().chain(given).collect();
        let event = self.replaced(FeedKind::Merge)?;
        let merged = self.thread.merge(source.to_owned(), at, noted, options, self.tree.clone()).await?;
        if let Some(event) = event
            && merged.checkpoint.is_some()
        {
            event.send(1, None).await;
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
        let place = place.ok_or_else(|| Error::unsupported("this workspace does not mount the thread's state; add a route for it"))?;
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
            Events::replaced(feed.clone(), self.scope.clone().with_thread(thread), FeedKind::Fork)?.send(1, None).await;
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

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("scope", &self.scope).field("backend", &self.backend).finish_non_exhaustive()
    }
}
