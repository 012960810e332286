//! The immutable configuration of a tree, which opens a [`Session`](crate::session::Session) for any scope.
//!
//! A [`Workspace`] holds the mounts (each a function from an [`Opening`] to a backend), the layers around the whole tree, and the
//! checkpointer that saves threads. One workspace serves all users and threads of a process. It tracks open threads: a second session of a
//! thread shares its live state.

mod builder;
mod opening;
mod past;
#[cfg(test)]
mod tests;

pub use builder::WorkspaceBuilder;
pub use opening::Opening;
pub(crate) use past::time_of;

use crate::audit::AuditLog;
use crate::feed::{Announce, Elsewhere, Events, Feed, FeedKind, FeedLog, FeedView};
use crate::live::{LiveThread, Mounted, OpenThreads, Reach, ThreadDurability};
use crate::memory::MemorySettings;
use crate::tools::ToolRegistry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Difference, ReviewPurpose, Standing};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::scope::Scope;
use treehold_store::{Namespace, Store, Watch};
use treehold_tree::backend::{Backend, StateBackend, StateSnapshot, StoreBackend};
use treehold_tree::checkpoint::{At, Checkpointer, Reviewer};
use treehold_tree::composite::Routes;

type OpenMount = Arc<dyn Fn(&Opening<'_>) -> Result<Arc<dyn Backend>> + Send + Sync>;
type OpenRows = Arc<dyn Fn(&Scope) -> Result<(Arc<dyn Store>, Namespace)> + Send + Sync>;
type OpenHistory = Arc<dyn Fn(&Scope) -> Result<StoreBackend> + Send + Sync>;
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
    /// The mount points without `/`, as a table that the trees of all sessions share.
    routes: Routes,
    /// The mount points with `/`, in path order.
    places: Arc<[VfsPathBuf]>,
    told: BTreeMap<VfsPathBuf, Told>,
    /// The mount points of earlier versions of files, each with the mount point of the live ones.
    past: BTreeSet<(VfsPathBuf, VfsPathBuf)>,
    /// The trees whose files have a history.
    histories: BTreeMap<VfsPathBuf, OpenHistory>,
    layers: Vec<OpenLayer>,
    checkpointer: Option<Arc<dyn Checkpointer>>,
    audit: Option<Arc<AuditLog>>,
    feed: Option<Arc<Feed>>,
    logs: BTreeMap<VfsPathBuf, OpenLog>,
    durability: ThreadDurability,
    memory: Arc<MemorySettings>,
    tools: ToolRegistry,
    open: Arc<OpenThreads>,
    /// The subtrees that callers may know of; empty for the whole tree.
    shown: Vec<VfsPathBuf>,
}

/// The default limit on the bytes of state that are kept in memory: 256 MiB.
pub const THREADS_BYTES_MAX: u64 = 256 << 20;

impl Workspace {
    /// Returns a builder with the thread's state at `/`, saved nowhere.
    pub fn builder() -> WorkspaceBuilder {
        WorkspaceBuilder::new()
    }

    /// Returns the open thread of a scope, or opens it.
    pub(crate) fn live(&self, scope: &Scope) -> Result<Arc<LiveThread>> {
        check(scope)?;
        Ok(self.0.open.get_or_insert(scope, || self.new_live(scope)))
    }

    /// Opens the thread of a scope anew, without sharing state with the sessions that have it open.
    pub(crate) fn live_apart(&self, scope: &Scope) -> Result<Arc<LiveThread>> {
        check(scope)?;
        Ok(self.new_live(scope))
    }

    fn new_live(&self, scope: &Scope) -> Arc<LiveThread> {
        Arc::new(LiveThread::new(scope.clone(), self.0.checkpointer.clone(), self.0.durability))
    }

    /// Opens the tree of a scope with a thread's state. Returns it with the mount points of the state, and the kinds of all its mounts.
    pub(crate) fn reviewer(&self, scope: &Scope, live: &Arc<LiveThread>) -> Result<(Reviewer, Reach)> {
        let (tree, reach) = self.tree(&Opening::new(scope, live))?;
        Ok((Reviewer::new(tree, reach.places()).with_mounts(self.0.places.clone()), reach))
    }

    /// Opens every mount. Returns the tree, and which part of it is the thread's state.
    fn tree(&self, opening: &Opening<'_>) -> Result<(Arc<dyn Backend>, Reach)> {
        let is_told = opening.past.is_none();
        let scope = Arc::new(opening.scope.clone());
        let mut reach = Reach::new(self.0.places.clone());
        let mut root = opening.state.clone();
        if !self.0.mounts.contains_key(VfsPath::ROOT) {
            let elsewhere = reach.mount(Mounted::State);
            if is_told {
                root = self.announced(VfsPath::ROOT, root, &scope, elsewhere);
            }
        }
        let mut mounts = Vec::new();
        for (path, open) in &self.0.mounts {
            let mut backend = open(opening)?;
            let mounted = opening.mounted(matches!(self.0.told.get(path), Some(Told::State)), &backend);
            let elsewhere = reach.mount(mounted);
            if let Some(past) = opening.past.filter(|_| mounted == Mounted::Other && !self.is_past(path)) {
                let history = self.0.histories.get(path).map(|open| open(opening.scope)).transpose()?;
                backend = past.files(path, history)?;
            }
            if is_told {
                backend = self.announced(path, backend, &scope, elsewhere);
            }
            if path.is_root() {
                root = backend;
            } else {
                mounts.push(backend);
            }
        }
        debug_assert!(reach.is_complete(), "a mount point without a mount");
        let mut tree: Arc<dyn Backend> = match mounts.is_empty() {
            true => root,
            false => Arc::new(self.0.routes.composite(root, mounts)),
        };
        for layer in &self.0.layers {
            tree = layer(tree, opening.scope);
        }
        Ok((tree, reach))
    }

    /// Wraps a mount's backend so that its changes are counted and sent to the feed, and commit the audit row of their call.
    fn announced(&self, path: &VfsPath, backend: Arc<dyn Backend>, scope: &Arc<Scope>, elsewhere: Option<Elsewhere>) -> Arc<dyn Backend> {
        let is_logged = self.0.logs.contains_key(path) || self.0.told.contains_key(path);
        let feed = self.0.feed.as_ref().filter(|_| is_logged).map(|feed| {
            let (workspace, path) = (self.clone(), path.to_owned());
            FeedLog::new(feed.clone(), move |scope| Ok(workspace.log_of(&path, scope)?.map(|(log, _)| log)))
        });
        if feed.is_none() && self.0.audit.is_none() && elsewhere.is_none() {
            return backend;
        }
        Arc::new(Announce::new(backend, feed, scope.clone()).counted(elsewhere))
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
                let log = if is_own { Feed::log_of_rows(&rows) } else { Feed::log("elsewhere", &format!("{store}\n{rows}"))? };
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
    pub fn restricted_to(&self, roots: &[VfsPathBuf]) -> Self {
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
    pub fn visible_mounts(&self) -> impl Iterator<Item = &VfsPath> {
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

    /// Returns the mount points of earlier versions of files, each paired with the mount point of the live ones: rules about the latter also
    /// hold for the former.
    pub fn past(&self) -> impl Iterator<Item = &(VfsPathBuf, VfsPathBuf)> {
        self.0.past.iter()
    }

    fn is_past(&self, mount: &VfsPath) -> bool {
        self.0.past.iter().any(|(past, _)| **past == *mount)
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

    /// Returns the tools that calls are resolved with: the built-in sets and those that the program added.
    pub fn tools(&self) -> &ToolRegistry {
        &self.0.tools
    }

    /// Returns the settings that name the memory files.
    pub fn memory(&self) -> &MemorySettings {
        &self.0.memory
    }

    /// Removes a saved thread with all its checkpoints and the record of its calls.
    ///
    /// A thread that cannot be read is removed if the tree would refuse the removal of no file, whatever its path.
    ///
    /// # Errors
    /// The errors of [`Backend::review`], which checks the removal of everything that the thread holds;
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for one that cannot be read where a rule could refuse a path;
    /// [`NotFound`](treehold_core::error::ErrorKind::NotFound) when the thread does not exist (a leftover record is removed all the same),
    /// [`Unsupported`](treehold_core::error::ErrorKind::Unsupported) in a workspace that saves no threads, and the errors of the store.
    pub async fn delete_thread(&self, scope: &Scope) -> Result<()> {
        let checkpointer = self.checkpointer().ok_or_else(|| Error::unsupported("this workspace does not save threads"))?;
        self.review_deletion(scope, &**checkpointer).await?;
        let deleted = checkpointer.delete(scope).await;
        if let Some(audit) = &self.0.audit
            && deleted.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::NotFound)
        {
            audit.delete(scope).await?;
        }
        if deleted.is_ok() {
            self.notify_replaced(scope, FeedKind::Restore).await?;
        }
        deleted
    }

    /// Lets the tree review the removal of everything that a thread holds. Without layers, its mounts may refuse it all the same.
    async fn review_deletion(&self, scope: &Scope, checkpointer: &dyn Checkpointer) -> Result<()> {
        let (reviewer, _) = self.reviewer(scope, &self.new_live(scope))?;
        let reviewed = match checkpointer.open(scope, At::Latest).await {
            Ok(None) => Ok(()),
            Ok(Some(newest)) if newest.checkpoint.entries > 0 => reviewer.allow(&newest.state, &StateSnapshot::default()).await,
            Ok(Some(_)) => {
                // A read-only mount refuses whatever the paths are.
                let whole = Difference::new(VfsPathBuf::root(), Some(Standing::Directory), None);
                reviewer.ask(ReviewPurpose::Change, &[whole]).await.map(drop)
            }
            Err(error) => Err(error),
        };
        let Err(damaged) = reviewed else { return Ok(()) };
        if damaged.kind() != ErrorKind::Corrupt {
            return Err(damaged);
        }
        reviewer.allow_unread_removal().await.map_err(|refused| match refused.kind() {
            ErrorKind::PermissionDenied => {
                let message = format!(
                    "the thread cannot be read, so it is unknown which files its removal takes away, and a rule may protect some of them; \
                     remove it as a caller whose rules refuse nothing: {}",
                    damaged.message()
                );
                Error::new(ErrorKind::PermissionDenied, message)
            }
            _ => refused,
        })
    }

    /// Reports to the feed that the state of a thread was replaced, by a restore, merge or fork. For callers that move a thread's head
    /// without a session.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an invalid scope. A failing store is logged and counted in [`Feed::lost`].
    pub async fn notify_replaced(&self, scope: &Scope, operation: FeedKind) -> Result<()> {
        let Some(feed) = &self.0.feed else { return Ok(()) };
        Events::replaced(feed.clone(), scope.clone(), operation)?.send(1, None).await;
        Ok(())
    }

    /// Returns the open threads, which share a budget of memory.
    pub(crate) fn threads(&self) -> &Arc<OpenThreads> {
        &self.0.open
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
