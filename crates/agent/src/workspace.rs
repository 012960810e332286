//! The immutable configuration of a tree, which opens a [`Session`] for any scope.
//!
//! A [`Workspace`] holds the mounts (each a function from an [`Opening`] to a backend), the layers around the whole tree, and the place
//! where threads are saved. One workspace serves all users and threads of a process. It tracks open threads: a second session of a thread
//! shares its live state.

use crate::audit::AuditLog;
use crate::feed::{Announce, Feed, FeedView, Outbox};
use crate::memory::MemorySettings;
use crate::session::{Elsewhere, LiveThread, Mounted, OpenThreads, Reach, Session, ThreadDurability, ThreadTree};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::scope::Scope;
use treehold_store::{Namespace, Ride, Store, Watch};
use treehold_tree::backend::{Backend, StateBackend, StateSnapshot};
use treehold_tree::checkpoint::{At, Checkpoint, Checkpointer, HistoryBackend, Reviewer};
use treehold_tree::composite::CompositeBackend;
use treehold_tree::layer::Quota;

type OpenMount = Arc<dyn Fn(&Opening<'_>) -> Result<Arc<dyn Backend>> + Send + Sync>;
type OpenRows = Arc<dyn Fn(&Scope) -> Result<(Arc<dyn Store>, Namespace)> + Send + Sync>;
type OpenLog = Arc<dyn Fn(&Scope) -> Result<Option<Namespace>> + Send + Sync>;
type OpenLayer = Arc<dyn Fn(Arc<dyn Backend>, &Scope) -> Arc<dyn Backend> + Send + Sync>;

/// The source of change notifications for a mount.
#[derive(Clone)]
enum Told {
    /// The store that holds the mount's rows.
    Rows(OpenRows),
    /// The checkpointer of the thread whose state is mounted.
    State,
}

/// The context in which a mount is opened: a scope, and the state of its thread.
#[derive(Debug)]
pub struct Opening<'a> {
    scope: &'a Scope,
    thread: &'a Arc<LiveThread>,
    /// The state at an earlier checkpoint, for a read-only tree of the past.
    history: Option<&'a HistoryBackend>,
    /// The state as a tree, and whether the mount's function asked for it.
    state: Arc<dyn Backend>,
    took_state: AtomicBool,
}

impl<'a> Opening<'a> {
    fn new(scope: &'a Scope, thread: &'a Arc<LiveThread>, history: Option<&'a HistoryBackend>) -> Self {
        let state: Arc<dyn Backend> = match history {
            Some(history) => Arc::new(history.clone()),
            None => Arc::new(ThreadTree(thread.clone())),
        };
        Self { scope, thread, history, state, took_state: AtomicBool::new(false) }
    }

    /// Returns the caller's scope.
    pub fn scope(&self) -> &Scope {
        self.scope
    }

    /// Returns the state of the thread as a tree: the live one, or a read-only one at a checkpoint.
    pub fn state(&self) -> Arc<dyn Backend> {
        self.took_state.store(true, Ordering::Relaxed);
        self.state.clone()
    }

    /// Classifies the mount that was opened last.
    fn mounted(&self, is_told_as_state: bool, backend: &Arc<dyn Backend>) -> Mounted {
        match self.took_state.swap(false, Ordering::Relaxed) {
            true if is_told_as_state || Arc::ptr_eq(backend, &self.state) => Mounted::State,
            true => Mounted::Mixed,
            false => Mounted::Other,
        }
    }

    /// Returns a number that is unique among the open states.
    pub fn state_id(&self) -> usize {
        Arc::as_ptr(self.thread) as usize
    }

    /// Returns the checkpoint of a historical state, or `None` for the live one.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        self.history.map(HistoryBackend::checkpoint)
    }

    /// Makes a quota around the thread's state recount whenever [`Session::reload`] replaces the state.
    pub fn recount_on_reload<B: Backend + 'static>(&self, quota: &Arc<Quota<B>>) {
        let quota: Weak<Quota<B>> = Arc::downgrade(quota);
        self.thread.on_reload(quota);
    }
}

/// The configuration that opens sessions. Clones share the open threads.
///
/// Cost of a session: one backend for each mount, and one table. The state of the thread is read on first use.
///
/// ```
/// use std::sync::Arc;
/// use treehold_agent::workspace::Workspace;
/// use treehold_core::Scope;
/// use treehold_tree::backend::{BackendExt, StateBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let shared = Arc::new(StateBackend::new());
/// let workspace = Workspace::builder().backend("/shared", shared)?.build();
/// let one = workspace.session(Scope::new().with_thread("1")).await?;
/// let other = workspace.session(Scope::new().with_thread("2")).await?;
/// one.backend().write("/own.md", "mine").await?;
/// one.backend().write("/shared/all.md", "ours").await?;
/// assert!(!other.backend().exists("/own.md").await?);
/// assert_eq!(other.backend().read_text("/shared/all.md").await?, "ours");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Workspace(Arc<Plan>);

#[derive(Clone)]
struct Plan {
    mounts: BTreeMap<VfsPathBuf, OpenMount>,
    told: BTreeMap<VfsPathBuf, Told>,
    /// The mount points of historical thread states.
    past: BTreeSet<VfsPathBuf>,
    layers: Vec<OpenLayer>,
    checkpointer: Option<Arc<dyn Checkpointer>>,
    audit: Option<Arc<AuditLog>>,
    feed: Option<Arc<Feed>>,
    logs: BTreeMap<VfsPathBuf, OpenLog>,
    durability: ThreadDurability,
    memory: Arc<MemorySettings>,
    open: Arc<OpenThreads>,
    /// The subtrees that callers may know of; empty for the whole tree.
    shown: Vec<VfsPathBuf>,
}

/// The default limit on the bytes of state that are kept in memory: 256 MiB.
pub const THREADS_BYTES_MAX: u64 = 256 << 20;

impl Workspace {
    /// Returns a builder with the thread's state at `/`, saved nowhere.
    pub fn builder() -> WorkspaceBuilder {
        WorkspaceBuilder {
            mounts: BTreeMap::new(),
            told: BTreeMap::new(),
            past: BTreeSet::new(),
            layers: Vec::new(),
            checkpointer: None,
            audit: None,
            feed: None,
            logs: BTreeMap::new(),
            durability: ThreadDurability::default(),
            memory: MemorySettings::default(),
            threads_bytes_max: THREADS_BYTES_MAX,
        }
    }

    /// Opens a session. The scope must name a thread.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a scope without a thread or without a field that a mount needs, and the
    /// errors of opening the mounts.
    pub async fn session(&self, scope: Scope) -> Result<Session> {
        let live = self.live(&scope)?;
        self.session_on(live, scope)
    }

    /// Opens a session whose state is not shared with other sessions of the thread until it is saved.
    pub(crate) async fn session_apart(&self, scope: Scope) -> Result<Session> {
        check(&scope)?;
        let live = Arc::new(self.new_live(&scope));
        self.session_on(live, scope)
    }

    fn session_on(&self, live: Arc<LiveThread>, scope: Scope) -> Result<Session> {
        let (tree, reach) = self.tree(&Opening::new(&scope, &live, None))?;
        Ok(Session::new(
            scope,
            live,
            (Reviewer::new(tree, reach.places()), reach),
            self.0.open.clone(),
            (self.0.audit.clone(), self.0.feed.clone()),
            self.0.memory.clone(),
            self.clone(),
        ))
    }

    /// Opens the tree of a scope with the state at a checkpoint, read-only. The other mounts show their current files.
    ///
    /// # Errors
    /// The errors of [`Workspace::session`] and [`HistoryBackend::open`]; [`Unsupported`](treehold_core::error::ErrorKind::Unsupported) in a workspace
    /// that saves no threads.
    pub async fn tree_at(&self, scope: &Scope, at: At) -> Result<Arc<dyn Backend>> {
        let live = self.live(scope)?;
        let history = HistoryBackend::open(&**live.checkpointer()?, scope, at).await?;
        Ok(self.tree(&Opening::new(scope, &live, Some(&history)))?.0)
    }

    fn live(&self, scope: &Scope) -> Result<Arc<LiveThread>> {
        check(scope)?;
        Ok(self.0.open.get_or_insert(scope, || Arc::new(self.new_live(scope))))
    }

    fn new_live(&self, scope: &Scope) -> LiveThread {
        LiveThread::new(scope.clone(), self.0.checkpointer.clone(), self.0.durability)
    }

    /// Opens every mount. Returns the tree, and which part of it is the thread's state.
    fn tree(&self, opening: &Opening<'_>) -> Result<(Arc<dyn Backend>, Reach)> {
        let is_told = opening.history.is_none();
        let mut reach = Reach::default();
        let mut root = opening.state.clone();
        if !self.0.mounts.contains_key(VfsPath::ROOT) {
            let elsewhere = reach.mount(VfsPath::ROOT, Mounted::State);
            if is_told {
                root = self.announced(VfsPath::ROOT, root, opening.scope, elsewhere)?;
            }
        }
        let mut mounts = Vec::new();
        for (path, open) in &self.0.mounts {
            let mut backend = open(opening)?;
            let mounted = opening.mounted(matches!(self.0.told.get(path), Some(Told::State)), &backend);
            let elsewhere = reach.mount(path, mounted);
            if is_told {
                backend = self.announced(path, backend, opening.scope, elsewhere)?;
            }
            if path.is_root() {
                root = backend;
            } else {
                mounts.push((path.as_str(), backend));
            }
        }
        let mut tree: Arc<dyn Backend> = match mounts.is_empty() {
            true => root,
            false => Arc::new(CompositeBackend::builder(root).routes(mounts)?.build()?),
        };
        for layer in &self.0.layers {
            tree = layer(tree, opening.scope);
        }
        Ok((tree, reach))
    }

    /// Wraps a mount's backend so that its changes are sent to the feed and counted, and the calls that make them too.
    fn announced(
        &self,
        path: &VfsPath,
        backend: Arc<dyn Backend>,
        scope: &Scope,
        elsewhere: Option<Elsewhere>,
    ) -> Result<Arc<dyn Backend>> {
        let feed = match &self.0.feed {
            Some(feed) => self.log_of(path, scope)?.map(|(log, _)| (feed.clone(), log)),
            None => None,
        };
        if feed.is_none() && self.0.audit.is_none() && elsewhere.is_none() {
            return Ok(backend);
        }
        Ok(Arc::new(Announce::new(backend, feed, scope.clone()).counted(elsewhere)))
    }

    /// Returns the log for a mount's changes in a scope, and whether it is the log of the scope's threads.
    fn log_of(&self, path: &VfsPath, scope: &Scope) -> Result<Option<(Namespace, bool)>> {
        if let Some(log) = self.0.logs.get(path) {
            return Ok(log(scope)?.map(|log| (log, false)));
        }
        match self.0.told.get(path) {
            Some(Told::Rows(open)) => {
                let (store, rows) = open(scope)?;
                let is_own = self.0.feed.as_ref().is_none_or(|feed| feed.is_in(&store));
                let log = if is_own { Feed::log_of_rows(&rows)? } else { Feed::log("elsewhere", &format!("{store}\n{rows}"))? };
                Ok(Some((log, false)))
            }
            Some(Told::State) => Ok(Some((Feed::log_of_threads(scope)?, true))),
            None => Ok(None),
        }
    }

    /// Returns the feed, if there is one.
    pub fn feed(&self) -> Option<&Arc<Feed>> {
        self.0.feed.as_ref()
    }

    /// Returns the scope's view of the feed: the changes of every mount that has a log, as paths of the scope's tree, from all threads of
    /// its user. Omits what a layer hides ([`Backend::review`]).
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a scope without a field that a mount needs.
    pub fn feed_view(&self, scope: &Scope) -> Result<FeedView> {
        scope.validate()?;
        let mut view = FeedView::new(scope).with_mounts(self.mounts());
        let root = (!self.0.mounts.contains_key(VfsPath::ROOT)).then_some(VfsPath::ROOT);
        for path in root.into_iter().chain(self.mounts()) {
            if let Some((log, is_state)) = self.log_of(path, scope)? {
                view = view.with_place(path, log, is_state);
            }
        }
        if self.0.layers.is_empty() {
            return Ok(view);
        }
        // Only the layers' review of a path matters, so the tree beneath them is empty.
        let nothing: Arc<dyn Backend> = Arc::new(StateBackend::new());
        Ok(view.with_layers(self.0.layers.iter().fold(nothing, |tree, layer| layer(tree, scope))))
    }

    /// Returns the same workspace with its open threads and one more layer around the others, for callers with fewer rights.
    ///
    /// A layer does not see what bypasses the tree: checkpoints, restores, the record of calls.
    #[must_use]
    pub fn with_layer(&self, wrap: impl Fn(Arc<dyn Backend>, &Scope) -> Arc<dyn Backend> + Send + Sync + 'static) -> Self {
        let mut plan = (*self.0).clone();
        plan.layers.push(Arc::new(wrap));
        Self(Arc::new(plan))
    }

    /// Returns the same workspace for callers who may know of some subtrees only; an empty list stands for the whole tree. It lists only
    /// mounts and reads memory only from files that such a caller may see. Restricting the tree itself is left to a layer.
    pub fn shown_in(&self, roots: &[VfsPathBuf]) -> Self {
        let mut plan = (*self.0).clone();
        plan.shown = roots.to_vec();
        if !roots.is_empty() {
            let mut memory = (*plan.memory).clone();
            memory.sources.retain(|source| roots.iter().any(|root| source.starts_with(root)));
            plan.memory = Arc::new(memory);
        }
        Self(Arc::new(plan))
    }

    /// Returns the subtrees that callers may know of; empty for the whole tree.
    pub fn shown(&self) -> &[VfsPathBuf] {
        &self.0.shown
    }

    /// Returns the mounts that callers may know of, in path order: those in their subtrees and those above them.
    pub fn shown_mounts(&self) -> impl Iterator<Item = &VfsPath> {
        let shown = &self.0.shown;
        self.mounts().filter(move |mount| shown.is_empty() || shown.iter().any(|root| mount.starts_with(root) || root.starts_with(mount)))
    }

    /// Returns the mount points, in path order.
    pub fn mounts(&self) -> impl Iterator<Item = &VfsPath> {
        self.0.mounts.keys().map(|path| &**path)
    }

    /// Returns the mount points of the thread's state.
    fn states(&self) -> Vec<VfsPathBuf> {
        self.0.told.iter().filter(|(_, told)| matches!(told, Told::State)).map(|(path, _)| path.clone()).collect()
    }

    /// Returns the mount points of historical thread states, each paired with the mount point of the live state: rules about the latter
    /// also hold for the former.
    pub fn past(&self) -> Vec<(VfsPathBuf, VfsPathBuf)> {
        let states = self.states();
        self.0.past.iter().flat_map(|past| states.iter().map(move |state| (past.clone(), state.clone()))).collect()
    }

    /// Returns the innermost mount that contains a path.
    pub fn mount_of<'a>(&'a self, path: &'a VfsPath) -> &'a VfsPath {
        path.ancestors().chain([path]).filter(|above| self.0.mounts.contains_key(*above)).last().unwrap_or(VfsPath::ROOT)
    }

    /// Watches the mount that contains a path. The [`Watch`] fires on every change of the mount's files, from any process, and may fire
    /// without one. Returns `None` where nothing reports changes, such as a host directory or a state that is not saved after each call;
    /// poll those. Mounts beneath are watched separately.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a scope without a field that the mount needs, and the errors of
    /// [`Store::watch`].
    pub async fn watch(&self, scope: &Scope, path: &VfsPath) -> Result<Option<Watch>> {
        match (self.0.told.get(self.mount_of(path)), &self.0.checkpointer) {
            (Some(Told::Rows(open)), _) => {
                let (store, namespace) = open(scope)?;
                store.watch(&namespace).await.map(Some)
            }
            (Some(Told::State), Some(checkpointer)) if self.0.durability != ThreadDurability::Exit => checkpointer.watch(scope).await,
            _ => Ok(None),
        }
    }

    /// Returns when the state of a thread is saved automatically.
    pub fn durability(&self) -> ThreadDurability {
        self.0.durability
    }

    /// Returns the checkpointer, if threads are saved.
    pub fn checkpointer(&self) -> Option<&Arc<dyn Checkpointer>> {
        self.0.checkpointer.as_ref()
    }

    /// Returns the audit log, if tool calls are recorded.
    pub fn audit_log(&self) -> Option<&Arc<AuditLog>> {
        self.0.audit.as_ref()
    }

    /// Returns the settings that name the memory files.
    pub fn memory(&self) -> &MemorySettings {
        &self.0.memory
    }

    /// Removes a saved thread with all its checkpoints and the record of its calls.
    ///
    /// # Errors
    /// The errors of [`Backend::review`], which is asked about the removal of everything that the thread holds;
    /// [`NotFound`](treehold_core::error::ErrorKind::NotFound) when the thread does not exist (a leftover record is removed all the same),
    /// [`Unsupported`](treehold_core::error::ErrorKind::Unsupported) in a workspace that saves no threads, and the errors of the store.
    pub async fn delete_thread(&self, scope: &Scope) -> Result<()> {
        let checkpointer = self.checkpointer().ok_or_else(|| Error::unsupported("this workspace keeps no threads"))?;
        if !self.0.layers.is_empty()
            && let Some(newest) = checkpointer.open(scope, At::Latest).await?
        {
            let live = Arc::new(self.new_live(scope));
            let (tree, reach) = self.tree(&Opening::new(scope, &live, None))?;
            Reviewer::new(tree, reach.places()).allow(&newest.state, &StateSnapshot::default()).await?;
        }
        let deleted = checkpointer.delete(scope).await;
        if let Some(audit) = &self.0.audit
            && deleted.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::NotFound)
        {
            audit.delete(scope).await?;
        }
        if deleted.is_ok() {
            self.tell_restored(scope).await?;
        }
        deleted
    }

    /// Reports to the feed that the state of a thread was replaced. For callers that move a thread's head without a session.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an invalid scope. A failing store is logged and counted in [`Feed::lost`].
    pub async fn tell_restored(&self, scope: &Scope) -> Result<()> {
        let Some(feed) = &self.0.feed else { return Ok(()) };
        Outbox::restored(feed.clone(), scope.clone())?.send(1).await;
        Ok(())
    }

    /// Returns the number of open threads.
    pub fn open_threads(&self) -> usize {
        self.0.open.count()
    }
}

/// Checks that a scope names a thread.
fn check(scope: &Scope) -> Result<()> {
    scope.validate()?;
    match scope.thread {
        Some(_) => Ok(()),
        None => Err(Error::invalid_argument("the scope names no thread; set one")),
    }
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workspace")
            .field("mounts", &self.0.mounts.keys().collect::<Vec<_>>())
            .field("layers", &self.0.layers.len())
            .field("checkpointer", &self.0.checkpointer)
            .finish_non_exhaustive()
    }
}

/// Builds a [`Workspace`].
#[derive(Clone)]
#[must_use]
pub struct WorkspaceBuilder {
    mounts: BTreeMap<VfsPathBuf, OpenMount>,
    told: BTreeMap<VfsPathBuf, Told>,
    past: BTreeSet<VfsPathBuf>,
    layers: Vec<OpenLayer>,
    checkpointer: Option<Arc<dyn Checkpointer>>,
    audit: Option<Arc<AuditLog>>,
    feed: Option<Arc<Feed>>,
    logs: BTreeMap<VfsPathBuf, OpenLog>,
    durability: ThreadDurability,
    memory: MemorySettings,
    threads_bytes_max: u64,
}

impl WorkspaceBuilder {
    /// Mounts the backend that a function opens for each session. Without a mount at `/`, the state of the thread is mounted there.
    ///
    /// # Errors
    /// [`InvalidPath`](treehold_core::error::ErrorKind::InvalidPath) for an invalid path, [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for one
    /// that is already mounted.
    pub fn mount(
        mut self,
        path: impl AsRef<str>,
        open: impl Fn(&Opening<'_>) -> Result<Arc<dyn Backend>> + Send + Sync + 'static,
    ) -> Result<Self> {
        let path = VfsPathBuf::parse(path)?;
        if self.mounts.contains_key(&path) {
            return Err(Error::invalid_argument(format!("`{path}` is mounted twice; keep one of the two")).at(&path));
        }
        self.mounts.insert(path, Arc::new(open));
        Ok(self)
    }

    /// Mounts one backend for all sessions.
    ///
    /// # Errors
    /// Those of [`WorkspaceBuilder::mount`].
    pub fn backend(self, path: impl AsRef<str>, backend: Arc<dyn Backend>) -> Result<Self> {
        self.mount(path, move |_| Ok(backend.clone()))
    }

    /// Names the rows that hold a mount's files for a scope, so that the store can notify [`Workspace::watch`] of changes. Every change of
    /// the mount must be a commit in that namespace; the expiry of files is not one.
    ///
    /// # Errors
    /// [`InvalidPath`](treehold_core::error::ErrorKind::InvalidPath) for an invalid path.
    pub fn watched(
        mut self,
        path: impl AsRef<str>,
        rows: impl Fn(&Scope) -> Result<(Arc<dyn Store>, Namespace)> + Send + Sync + 'static,
    ) -> Result<Self> {
        self.told.insert(VfsPathBuf::parse(path)?, Told::Rows(Arc::new(rows)));
        Ok(self)
    }

    /// Declares that a mount shows a thread's state at an earlier time: rules about the paths of the state hold there too.
    ///
    /// # Errors
    /// [`InvalidPath`](treehold_core::error::ErrorKind::InvalidPath) for an invalid path.
    pub fn past(mut self, path: impl AsRef<str>) -> Result<Self> {
        self.past.insert(VfsPathBuf::parse(path)?);
        Ok(self)
    }

    /// Declares that a mount is the state of the thread.
    pub fn watched_state(mut self, path: impl AsRef<str>) -> Result<Self> {
        self.told.insert(VfsPathBuf::parse(path)?, Told::State);
        Ok(self)
    }

    /// Puts a layer around the whole tree of each session. The layer added last is outermost. A layer reports what it hides through
    /// [`Backend::review`]; the history of threads and the feed hide the same.
    pub fn layer(mut self, wrap: impl Fn(Arc<dyn Backend>, &Scope) -> Arc<dyn Backend> + Send + Sync + 'static) -> Self {
        self.layers.push(Arc::new(wrap));
        self
    }

    /// Records changes in a feed: those of every mount that [`WorkspaceBuilder::watched`] or [`WorkspaceBuilder::logged`] names, and those
    /// of thread states.
    pub fn feed(mut self, feed: Feed) -> Self {
        self.feed = Some(Arc::new(feed));
        self
    }

    /// Names the feed's log for a mount's changes in a scope; `None` for a tree that can change without a notification. Everyone who sees
    /// the tree reads the log, so two scopes have the same log if and only if they see the same tree. A mount that is `watched` needs none.
    ///
    /// # Errors
    /// [`InvalidPath`](ErrorKind::InvalidPath) for an invalid path.
    pub fn logged(
        mut self,
        path: impl AsRef<str>,
        log: impl Fn(&Scope) -> Result<Option<Namespace>> + Send + Sync + 'static,
    ) -> Result<Self> {
        self.logs.insert(VfsPathBuf::parse(path)?, Arc::new(log));
        Ok(self)
    }

    /// Saves threads and their history with a checkpointer.
    pub fn checkpointer(mut self, checkpointer: impl Checkpointer + 'static) -> Self {
        self.checkpointer = Some(Arc::new(checkpointer));
        self
    }

    /// Records every tool call in an audit log.
    pub fn audit_log(mut self, log: AuditLog) -> Self {
        self.audit = Some(Arc::new(log));
        self
    }

    /// Sets when the state of a thread is saved automatically. The default is after each tool call or batch.
    pub fn durability(mut self, durability: ThreadDurability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets which files are memory, for [`Session::memory_prompt`]. The default is `/memories/AGENTS.md` and `/workspace/AGENTS.md`.
    pub fn memory(mut self, settings: MemorySettings) -> Self {
        self.memory = settings;
        self
    }

    /// Sets roughly how many bytes of state are kept in memory. The default is [`THREADS_BYTES_MAX`].
    pub fn threads_bytes_max(mut self, bytes: u64) -> Self {
        self.threads_bytes_max = bytes;
        self
    }

    /// Builds the workspace.
    pub fn build(self) -> Workspace {
        let Self { mounts, mut told, past, layers, checkpointer, audit, feed, logs, durability, memory, threads_bytes_max } = self;
        let open = Arc::new(OpenThreads::new(threads_bytes_max));
        if !mounts.contains_key(VfsPath::ROOT) {
            told.insert(VfsPathBuf::root(), Told::State);
        }
        let memory = Arc::new(memory);
        Workspace(Arc::new(Plan {
            mounts,
            told,
            past,
            layers,
            checkpointer,
            audit,
            feed,
            logs,
            durability,
            memory,
            open,
            shown: Vec::new(),
        }))
    }
}

impl fmt::Debug for WorkspaceBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkspaceBuilder").field("mounts", &self.mounts.keys().collect::<Vec<_>>()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use treehold_core::ops::Version;
    use treehold_store::MemoryStore;
    use treehold_tree::backend::{BackendExt, StateNode, StateSnapshot};
    use treehold_tree::checkpoint::StoreCheckpointer;

    fn scope(thread: &str) -> Scope {
        Scope::new().with_user("ada").with_thread(thread)
    }

    fn saving(store: &Arc<MemoryStore>) -> Workspace {
        Workspace::builder().checkpointer(StoreCheckpointer::new(store.clone())).build()
    }

    #[tokio::test]
    async fn sessions_of_one_thread_share_its_state() {
        let workspace = saving(&Arc::default());
        let one = workspace.session(scope("t")).await.expect("opened");
        let two = workspace.session(scope("t").with_agent("coder")).await.expect("opened");
        let other = workspace.session(scope("u")).await.expect("opened");
        let stranger = workspace.session(scope("t").with_user("bob")).await.expect("opened");
        one.backend().write("/a", "one").await.expect("written");
        assert_eq!(two.backend().read_text("/a").await.expect("shared"), "one");
        assert!(!other.backend().exists("/a").await.expect("read"));
        assert!(!stranger.backend().exists("/a").await.expect("read"));
        assert_eq!(workspace.open_threads(), 3);
        drop((one, two, other, stranger));
        assert_eq!(workspace.open_threads(), 0);
    }

    #[tokio::test]
    async fn reopened_thread_has_its_state_and_saves_only_changes() {
        let store = Arc::default();
        let session = saving(&store).session(scope("t")).await.expect("opened");
        assert!(!session.save().await.expect("nothing was read"));
        assert!(!session.backend().exists("/a").await.expect("read"));
        assert!(!session.save().await.expect("nothing changed"));
        session.backend().write("/a", "one").await.expect("written");
        assert!(session.save().await.expect("saved"));
        assert!(!session.save().await.expect("saved already"));
        let again = saving(&store).session(scope("t")).await.expect("opened");
        assert_eq!(again.backend().read_text("/a").await.expect("as it was"), "one");
        assert!(!again.save().await.expect("nothing changed"));
    }

    #[tokio::test]
    async fn second_process_to_save_thread_gets_conflict_and_keeps_its_state() {
        let store = Arc::default();
        let (one, two) =
            (saving(&store).session(scope("t")).await.expect("opened"), saving(&store).session(scope("t")).await.expect("opened"));
        assert!(!two.backend().exists("/a").await.expect("both start from nothing"));
        one.backend().write("/a", "one").await.expect("written");
        two.backend().write("/a", "two").await.expect("written");
        one.save().await.expect("the first");
        assert_eq!(two.save().await.expect_err("the second").kind(), ErrorKind::Conflict);
        assert_eq!(two.save().await.expect_err("still").kind(), ErrorKind::Conflict);
        assert_eq!(two.backend().read_text("/a").await.expect("kept"), "two");
        assert_eq!(two.save_as("t").await.expect_err("it exists").kind(), ErrorKind::AlreadyExists);
        two.save_as("t-2").await.expect("saved aside");
        two.reload().await.expect("read again");
        assert_eq!(two.backend().read_text("/a").await.expect("as saved"), "one");
        two.backend().write("/b", "two").await.expect("written");
        two.save().await.expect("on top of the first");
        let aside = saving(&store).session(scope("t-2")).await.expect("opened");
        assert_eq!(aside.backend().read_text("/a").await.expect("as it was"), "two");
    }

    #[tokio::test]
    async fn dropped_save_still_completes() {
        let store = Arc::default();
        let session = saving(&store).session(scope("t")).await.expect("opened");
        session.backend().write("/a", "one").await.expect("written");
        let save = session.save();
        drop(futures::future::select(Box::pin(save), Box::pin(tokio::task::yield_now())).await);
        session.backend().write("/a", "two").await.expect("written");
        session.save().await.expect("the dropped save was this session's own");
        let again = saving(&store).session(scope("t")).await.expect("opened");
        assert_eq!(again.backend().read_text("/a").await.expect("as saved"), "two");
    }

    #[test]
    fn mount_of_returns_innermost_mount() {
        let shared: Arc<dyn Backend> = Arc::new(treehold_tree::backend::StateBackend::new());
        let mounted = |builder: WorkspaceBuilder, path: &str| builder.backend(path, shared.clone()).expect("a mount");
        let workspace = mounted(mounted(Workspace::builder(), "/mem"), "/mem/all/here").build();
        for (path, mount) in
            [("/", "/"), ("/a", "/"), ("/memo", "/"), ("/mem", "/mem"), ("/mem/all", "/mem"), ("/mem/all/here/a", "/mem/all/here")]
        {
            let path = VfsPathBuf::parse(path).expect("legal");
            assert_eq!(workspace.mount_of(&path).as_str(), mount, "{path}");
        }
    }

    #[tokio::test]
    async fn watch_follows_changes_of_the_mount() {
        let store: Arc<MemoryStore> = Arc::default();
        let rows = Namespace::new(["rows"]).expect("a namespace");
        let builder = |durability| {
            let (told, rows) = (store.clone(), rows.clone());
            let builder = Workspace::builder().checkpointer(StoreCheckpointer::new(store.clone())).durability(durability);
            let builder = builder.backend("/looked-at", Arc::new(treehold_tree::backend::StateBackend::new())).expect("a mount");
            builder.watched("/rows", move |_| Ok((told.clone() as Arc<dyn Store>, rows.clone()))).expect("a path")
        };
        let tree = Arc::new(treehold_tree::backend::StoreBackend::new(store.clone(), rows.clone()));
        let workspace = builder(ThreadDurability::Step).backend("/rows", tree.clone()).expect("a mount").build();
        let watch = async |workspace: &Workspace, path: &str| {
            workspace.watch(&scope("t"), &VfsPathBuf::parse(path).expect("legal")).await.expect("watched")
        };
        assert!(watch(&workspace, "/looked-at/a").await.is_none());
        let (mut own, mut shared) = (watch(&workspace, "/own.md").await.expect("told"), watch(&workspace, "/rows/a").await.expect("told"));
        tree.write("/a", "x").await.expect("written");
        shared.changed().await.expect("told");
        let session = workspace.session(scope("t")).await.expect("opened");
        session.backend().write("/own.md", "x").await.expect("written");
        session.save().await.expect("saved");
        own.changed().await.expect("told");
        // A state that is not saved after each call reports no changes.
        assert!(watch(&builder(ThreadDurability::Exit).build(), "/own.md").await.is_none());
    }

    #[tokio::test]
    async fn mounts_open_with_the_callers_scope() {
        let workspace = Workspace::builder()
            .mount("/memories", |opening| {
                let user = opening.scope().user.clone().ok_or_else(|| Error::invalid_argument("no user"))?;
                let node = StateNode::file(user, Version::new(1), Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
                let path = VfsPathBuf::parse("/who")?;
                Ok(Arc::new(StateSnapshot::from_nodes([(path, node)], Version::new(1))?))
            })
            .expect("a legal path")
            .build();
        let session = workspace.session(scope("t")).await.expect("opened");
        assert_eq!(session.backend().read_text("/memories/who").await.expect("a file"), "ada");
        assert!(workspace.session(Scope::new().with_thread("t")).await.is_err());
        assert_eq!(workspace.session(Scope::new()).await.expect_err("no thread").kind(), ErrorKind::InvalidArgument);
    }
}
