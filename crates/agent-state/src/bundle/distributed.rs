//! All parts of a runtime in one value, and which of them a build uses.

use super::{AsyncToolRegistry, Snapshots, TaskRepository};
use crate::bus::MessageBus;
use crate::contract::AgentStateStore;
use crate::kv::KeyValues;
use crate::locks::Locks;
use crate::owner::BundleOwner;
use crate::scopes::AgentWorkspace;
use crate::shared::require_shared;
use crate::transcript::Transcripts;
use std::fmt;
use std::sync::Arc;
use treehold_core::error::{Error, Result};
use treehold_store::Store;
use treehold_tree::backend::Backend;

/// The parts that the processes of an agent share. The states and the items are required; a build takes any other part that is missing
/// from its local defaults.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DistributedStore {
    /// The states.
    pub states: Arc<dyn AgentStateStore>,
    /// The items.
    pub items: KeyValues,
    /// The message bus.
    pub bus: Option<MessageBus>,
    /// The locks.
    pub locks: Option<Locks>,
    /// The snapshots of sandboxes.
    pub snapshots: Option<Snapshots>,
    /// The registry of tool runs.
    pub tools: Option<AsyncToolRegistry>,
    /// The tasks.
    pub tasks: Option<TaskRepository>,
    /// The transcripts.
    pub transcripts: Option<Transcripts>,
}

impl DistributedStore {
    /// Makes a bundle of the required parts only.
    pub fn new(states: Arc<dyn AgentStateStore>, items: KeyValues) -> Self {
        Self { states, items, bus: None, locks: None, snapshots: None, tools: None, tasks: None, transcripts: None }
    }

    /// Makes a bundle that keeps every part in one store.
    pub fn over(store: &Arc<dyn Store>, owner: &BundleOwner, states: Arc<dyn AgentStateStore>) -> Self {
        Self {
            states,
            items: KeyValues::new(store.clone(), owner.clone()),
            bus: Some(MessageBus::new(store.clone(), owner.clone())),
            locks: Some(Locks::new(store.clone(), owner.clone())),
            snapshots: Some(Snapshots::new(store.clone(), owner.clone())),
            tools: Some(AsyncToolRegistry::new(store.clone(), owner.clone())),
            tasks: Some(TaskRepository::new(store.clone(), owner.clone())),
            transcripts: Some(Transcripts::new(store.clone(), owner.clone())),
        }
    }
}

/// Where the files of an agent are.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum FilesystemSpec {
    /// In a tree of this process.
    Local(Arc<dyn Backend>),
    /// In a store, for all processes.
    Shared(AgentWorkspace),
    /// In a sandbox, which another process can continue.
    Sandbox(Arc<dyn Backend>),
}

impl FilesystemSpec {
    /// Returns whether other processes continue with the same files. Their states must then be shared too.
    pub fn is_shared(&self) -> bool {
        match self {
            Self::Local(_) => false,
            Self::Shared(_) | Self::Sandbox(_) => true,
        }
    }
}

/// Chooses the parts of a runtime: what is set explicitly comes before the bundle, and the bundle before the local defaults.
#[derive(Debug)]
pub struct AgentBundleBuilder {
    local: DistributedStore,
    bundle: Option<DistributedStore>,
    states: Option<Arc<dyn AgentStateStore>>,
    items: Option<KeyValues>,
    bus: Option<MessageBus>,
    locks: Option<Locks>,
    snapshots: Option<Snapshots>,
    tools: Option<AsyncToolRegistry>,
    tasks: Option<TaskRepository>,
    transcripts: Option<Transcripts>,
    filesystems: Vec<FilesystemSpec>,
    allows_local_states: bool,
}

/// The parts of a runtime.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AgentBundle {
    /// The states.
    pub states: Arc<dyn AgentStateStore>,
    /// The items.
    pub items: KeyValues,
    /// The message bus.
    pub bus: Option<MessageBus>,
    /// The locks.
    pub locks: Option<Locks>,
    /// The snapshots of sandboxes.
    pub snapshots: Option<Snapshots>,
    /// The registry of tool runs.
    pub tools: Option<AsyncToolRegistry>,
    /// The tasks.
    pub tasks: Option<TaskRepository>,
    /// The transcripts.
    pub transcripts: Option<Transcripts>,
    /// Where files are; `None` if the runtime has none.
    pub filesystem: Option<FilesystemSpec>,
}

impl AgentBundleBuilder {
    /// Starts with the parts of this process, which are used for whatever nothing else is set.
    pub fn new(local: DistributedStore) -> Self {
        Self {
            local,
            bundle: None,
            states: None,
            items: None,
            bus: None,
            locks: None,
            snapshots: None,
            tools: None,
            tasks: None,
            transcripts: None,
            filesystems: Vec::new(),
            allows_local_states: false,
        }
    }

    /// Sets the bundle.
    #[must_use]
    pub fn bundle(mut self, bundle: DistributedStore) -> Self {
        self.bundle = Some(bundle);
        self
    }

    /// Sets the states.
    #[must_use]
    pub fn states(mut self, states: Arc<dyn AgentStateStore>) -> Self {
        self.states = Some(states);
        self
    }

    /// Sets the items.
    #[must_use]
    pub fn items(mut self, items: KeyValues) -> Self {
        self.items = Some(items);
        self
    }

    /// Sets the message bus.
    #[must_use]
    pub fn bus(mut self, bus: MessageBus) -> Self {
        self.bus = Some(bus);
        self
    }

    /// Sets the locks.
    #[must_use]
    pub fn locks(mut self, locks: Locks) -> Self {
        self.locks = Some(locks);
        self
    }

    /// Sets the snapshots of sandboxes.
    #[must_use]
    pub fn snapshots(mut self, snapshots: Snapshots) -> Self {
        self.snapshots = Some(snapshots);
        self
    }

    /// Sets the registry of tool runs.
    #[must_use]
    pub fn tools(mut self, tools: AsyncToolRegistry) -> Self {
        self.tools = Some(tools);
        self
    }

    /// Sets the tasks.
    #[must_use]
    pub fn tasks(mut self, tasks: TaskRepository) -> Self {
        self.tasks = Some(tasks);
        self
    }

    /// Sets the transcripts.
    #[must_use]
    pub fn transcripts(mut self, transcripts: Transcripts) -> Self {
        self.transcripts = Some(transcripts);
        self
    }

    /// Sets where files are. Two calls are an error of [`build`](Self::build).
    #[must_use]
    pub fn filesystem(mut self, filesystem: FilesystemSpec) -> Self {
        self.filesystems.push(filesystem);
        self
    }

    /// Accepts states that are not shared beside shared files. A session that moves to another process then finds its files and has
    /// forgotten its conversation.
    #[must_use]
    pub fn allow_local_states(mut self) -> Self {
        self.allows_local_states = true;
        self
    }

    /// Chooses the parts.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) for two file systems. [`Unsupported`](treehold_core::ErrorKind::Unsupported)
    /// for shared files with states that are not shared, unless that is [allowed](Self::allow_local_states).
    pub fn build(self) -> Result<AgentBundle> {
        let Self { local, bundle, mut filesystems, allows_local_states, .. } = self;
        if filesystems.len() > 1 {
            return Err(Error::invalid_argument("two file systems are set; set one of local, shared and sandbox"));
        }
        let filesystem = filesystems.pop();
        let states = self.states.or_else(|| bundle.as_ref().map(|bundle| bundle.states.clone())).unwrap_or(local.states);
        let files_shared = filesystem.as_ref().is_some_and(FilesystemSpec::is_shared);
        require_shared(&*states, files_shared && !allows_local_states)?;
        macro_rules! pick {
            ($part:ident) => {
                self.$part.or_else(|| bundle.as_ref().and_then(|bundle| bundle.$part.clone())).or(local.$part)
            };
        }
        Ok(AgentBundle {
            states,
            items: self.items.or_else(|| bundle.as_ref().map(|bundle| bundle.items.clone())).unwrap_or(local.items),
            bus: pick!(bus),
            locks: pick!(locks),
            snapshots: pick!(snapshots),
            tools: pick!(tools),
            tasks: pick!(tasks),
            transcripts: pick!(transcripts),
            filesystem,
        })
    }
}

impl fmt::Display for DistributedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DistributedStore({}, {})", self.states, self.items)
    }
}
