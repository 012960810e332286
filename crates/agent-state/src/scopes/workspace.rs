//! The file tree of a call: shared parts in a store, over the agent's templates.

use super::{AnonymousCalls, CallIdentity, IsolationScope, WorkspaceRoute};
use std::fmt;
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_store::Store;
use treehold_tree::backend::{Backend, OverlayBackend, StoreBackend, Subtree};
use treehold_tree::composite::CompositeBackend;

/// How the file trees of an agent's calls are built.
///
/// Each [route](WorkspaceRoute) is a mount: an overlay whose upper tree is in the store, in the namespace of the scope, and whose lower
/// tree is the same part of the agent's templates, which no call changes. A file of the templates that a call deletes or moves is hidden for
/// those who share the scope. Paths without a route belong to the tree that the call brings.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use treehold_agent_state::scopes::{AgentWorkspace, CallIdentity};
/// use treehold_store::MemoryStore;
/// use treehold_tree::backend::{BackendExt, StateBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let templates = Arc::new(StateBackend::new());
/// templates.write("/AGENTS.md", "Be brief.\n").await?;
/// let workspace = AgentWorkspace::new(Arc::new(MemoryStore::new())).with_templates(templates);
/// let call = |user| CallIdentity::new("acme", "helper", Some(user), None);
/// let ada = workspace.open(&call("ada")?, Arc::new(StateBackend::new()))?;
/// ada.write("/AGENTS.md", "Be thorough.\n").await?;
/// let bob = workspace.open(&call("bob")?, Arc::new(StateBackend::new()))?;
/// assert_eq!(bob.read_text("/AGENTS.md").await?, "Be brief.\n");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct AgentWorkspace {
    store: Arc<dyn Store>,
    scope: IsolationScope,
    anonymous: AnonymousCalls,
    templates: Option<Arc<dyn Backend>>,
    extra: Vec<VfsPathBuf>,
}

impl AgentWorkspace {
    /// Keeps files in a store, by user.
    pub fn new(store: Arc<dyn Store>) -> Self {
        let (scope, anonymous) = (IsolationScope::default(), AnonymousCalls::default());
        Self { store, scope, anonymous, templates: None, extra: Vec::new() }
    }

    /// Sets who shares files. Default all sessions of a user.
    #[must_use]
    pub fn with_scope(mut self, scope: IsolationScope) -> Self {
        self.scope = scope;
        self
    }

    /// Sets whether calls without the identity that the scope needs are served. Default they are refused.
    #[must_use]
    pub fn with_anonymous_calls(mut self, anonymous: AnonymousCalls) -> Self {
        self.anonymous = anonymous;
        self
    }

    /// Sets the tree whose files every scope starts with.
    #[must_use]
    pub fn with_templates(mut self, templates: Arc<dyn Backend>) -> Self {
        self.templates = Some(templates);
        self
    }

    /// Shares another directory of the workspace.
    #[must_use]
    pub fn with_shared_prefix(mut self, prefix: impl Into<VfsPathBuf>) -> Self {
        self.extra.push(prefix.into());
        self
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns who shares files.
    pub fn scope(&self) -> IsolationScope {
        self.scope
    }

    /// Builds the tree of a call. `local` holds the paths that are not shared. Reads and writes nothing.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) for a call without the identity that the scope needs, and for a
    /// shared prefix that is a route already.
    pub fn open(&self, call: &CallIdentity, local: Arc<dyn Backend>) -> Result<Arc<dyn Backend>> {
        let mut routes = WorkspaceRoute::of_agent(call.agent())?;
        for prefix in &self.extra {
            routes.push(WorkspaceRoute::extra(prefix)?);
        }
        let mut composite = CompositeBackend::builder(local);
        for route in &routes {
            composite = if route.is_file {
                let whole = self.mount(call, route, VfsPath::ROOT)?;
                composite.file_route(route.path.as_str(), Arc::new(Subtree::file(whole, route.path.clone())))?
            } else {
                composite.route(route.path.as_str(), self.mount(call, route, &route.path)?)?
            };
        }
        Ok(Arc::new(composite.build()?))
    }

    /// Returns the tree of a route: its rows, over the part of the templates at `base`.
    fn mount(&self, call: &CallIdentity, route: &WorkspaceRoute, base: &VfsPath) -> Result<Arc<dyn Backend>> {
        let segments: Vec<&str> = route.segments.iter().map(String::as_str).collect();
        let rows = StoreBackend::new(self.store.clone(), call.files(self.scope, self.anonymous, &segments)?);
        Ok(match &self.templates {
            Some(templates) => {
                let lower = Subtree::new(templates.clone(), base.to_owned());
                Arc::new(OverlayBackend::new(Arc::new(lower), Arc::new(rows)))
            }
            None => Arc::new(rows),
        })
    }
}

impl fmt::Debug for AgentWorkspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for AgentWorkspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AgentWorkspace({}, by {})", self.store, self.scope)
    }
}
