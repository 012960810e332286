//! Building a workspace.

use super::{OpenHistory, OpenLayer, OpenLog, OpenMount, Opening, Plan, THREADS_BYTES_MAX, Told, Workspace};
use crate::audit::AuditLog;
use crate::feed::Feed;
use crate::live::{OpenThreads, ThreadDurability};
use crate::memory::MemorySettings;
use crate::tools::{Tool, ToolRegistry};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use treehold_core::error::{Error, Result};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::scope::Scope;
use treehold_store::{Namespace, Store};
use treehold_tree::backend::{Backend, StoreBackend};
use treehold_tree::checkpoint::Checkpointer;
use treehold_tree::composite::Routes;

/// Builds a [`Workspace`].
#[derive(Clone)]
#[must_use]
pub struct WorkspaceBuilder {
    mounts: BTreeMap<VfsPathBuf, OpenMount>,
    told: BTreeMap<VfsPathBuf, Told>,
    past: BTreeSet<(VfsPathBuf, VfsPathBuf)>,
    histories: BTreeMap<VfsPathBuf, OpenHistory>,
    layers: Vec<OpenLayer>,
    checkpointer: Option<Arc<dyn Checkpointer>>,
    audit: Option<Arc<AuditLog>>,
    feed: Option<Arc<Feed>>,
    logs: BTreeMap<VfsPathBuf, OpenLog>,
    durability: ThreadDurability,
    memory: MemorySettings,
    tools: ToolRegistry,
    threads_bytes_max: u64,
}

impl WorkspaceBuilder {
    pub(super) fn new() -> Self {
        Self {
            mounts: BTreeMap::new(),
            told: BTreeMap::new(),
            past: BTreeSet::new(),
            histories: BTreeMap::new(),
            layers: Vec::new(),
            checkpointer: None,
            audit: None,
            feed: None,
            logs: BTreeMap::new(),
            durability: ThreadDurability::default(),
            memory: MemorySettings::default(),
            tools: ToolRegistry::new(),
            threads_bytes_max: THREADS_BYTES_MAX,
        }
    }

    /// Mounts the backend that a function opens for each session. Without a mount at `/`, the state of the thread is mounted there.
    ///
    /// # Errors
    /// [`InvalidPath`](treehold_core::error::ErrorKind::InvalidPath) for an invalid path,
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for one that is already mounted.
    pub fn mount(
        mut self,
        path: impl AsRef<str>,
        open: impl Fn(&Opening<'_>) -> Result<Arc<dyn Backend>> + Send + Sync + 'static,
    ) -> Result<Self> {
        let path = VfsPathBuf::parse(path)?;
        if self.mounts.contains_key(&path) {
            return Err(Error::invalid_argument(format!("`{path}` is mounted twice; remove one of the two mounts")).at(&path));
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
    pub fn with_change_source(
        mut self,
        path: impl AsRef<str>,
        rows: impl Fn(&Scope) -> Result<(Arc<dyn Store>, Namespace)> + Send + Sync + 'static,
    ) -> Result<Self> {
        self.told.insert(VfsPathBuf::parse(path)?, Told::Rows(Arc::new(rows)));
        Ok(self)
    }

    /// Declares that a mount shows the files of another one at an earlier time: rules about the live path of a file hold for its past too.
    /// A thread may have its state at several mount points; call this once for each.
    ///
    /// # Errors
    /// [`InvalidPath`](treehold_core::error::ErrorKind::InvalidPath) for an invalid path.
    pub fn past(mut self, path: impl AsRef<str>, live: impl AsRef<str>) -> Result<Self> {
        self.past.insert((VfsPathBuf::parse(path)?, VfsPathBuf::parse(live)?));
        Ok(self)
    }

    /// Names the tree of a mount, whose files have a [history](StoreBackend::with_history). It is asked for the past; the mount itself must
    /// record it.
    ///
    /// # Errors
    /// [`InvalidPath`](treehold_core::error::ErrorKind::InvalidPath) for an invalid path.
    pub fn with_history(
        mut self,
        path: impl AsRef<str>,
        tree: impl Fn(&Scope) -> Result<StoreBackend> + Send + Sync + 'static,
    ) -> Result<Self> {
        self.histories.insert(VfsPathBuf::parse(path)?, Arc::new(tree));
        Ok(self)
    }

    /// Declares that a mount is the state of the thread.
    pub fn with_state_mount(mut self, path: impl AsRef<str>) -> Result<Self> {
        self.told.insert(VfsPathBuf::parse(path)?, Told::State);
        Ok(self)
    }

    /// Puts a layer around the whole tree of each session. The layer added last is outermost. A layer reports what it hides through
    /// [`Backend::review`]; the history of threads and the feed hide the same.
    pub fn layer(mut self, wrap: impl Fn(Arc<dyn Backend>, &Scope) -> Arc<dyn Backend> + Send + Sync + 'static) -> Self {
        self.layers.push(Arc::new(wrap));
        self
    }

    /// Records changes in a feed: those of thread states, and those of every mount named by [`WorkspaceBuilder::with_change_source`] or
    /// [`WorkspaceBuilder::with_event_log`].
    pub fn feed(mut self, feed: Feed) -> Self {
        self.feed = Some(Arc::new(feed));
        self
    }

    /// Names the feed's log for a mount's changes in a scope; `None` for a tree that can change without a notification. Everyone who sees
    /// the tree reads the log, so two scopes have the same log if and only if they see the same tree. A mount with a change source needs
    /// none.
    ///
    /// # Errors
    /// [`InvalidPath`](treehold_core::error::ErrorKind::InvalidPath) for an invalid path.
    pub fn with_event_log(
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

    /// Sets which files are memory, for [`Session::memory_prompt`](crate::session::Session::memory_prompt). The default is `/memories/AGENTS.md` and `/workspace/AGENTS.md`, with a list of what else lies under `/memories`.
    pub fn memory(mut self, settings: MemorySettings) -> Self {
        self.memory = settings;
        self
    }

    /// Adds a tool to the default set, for every entry point that serves the workspace.
    ///
    /// # Errors
    /// Those of [`ToolRegistry::with_tool`].
    pub fn tool(mut self, tool: impl Tool + 'static) -> Result<Self> {
        self.tools = self.tools.with_tool(tool)?;
        Ok(self)
    }

    /// Sets the tools, such as those that a program registered for all its workspaces.
    pub fn tools(mut self, tools: ToolRegistry) -> Self {
        self.tools = tools;
        self
    }

    /// Sets roughly how many bytes of state are kept in memory. The default is [`THREADS_BYTES_MAX`].
    pub fn threads_bytes_max(mut self, bytes: u64) -> Self {
        self.threads_bytes_max = bytes;
        self
    }

    /// Builds the workspace.
    pub fn build(self) -> Workspace {
        let Self {
            mounts,
            mut told,
            past,
            histories,
            layers,
            checkpointer,
            audit,
            feed,
            logs,
            durability,
            memory,
            tools,
            threads_bytes_max,
        } = self;
        let open = Arc::new(OpenThreads::new(threads_bytes_max));
        if !mounts.contains_key(VfsPath::ROOT) {
            told.insert(VfsPathBuf::root(), Told::State);
        }
        let memory = Arc::new(memory);
        let beneath = mounts.keys().filter(|path| !path.is_root()).cloned();
        let routes = Routes::new(beneath).expect("the paths of a table differ");
        let root = (!mounts.contains_key(VfsPath::ROOT)).then(VfsPathBuf::root);
        let places = root.into_iter().chain(mounts.keys().cloned()).collect();
        Workspace(Arc::new(Plan {
            mounts,
            routes,
            places,
            told,
            past,
            histories,
            layers,
            checkpointer,
            audit,
            feed,
            logs,
            durability,
            memory,
            tools,
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
