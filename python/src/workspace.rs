//! Workspaces: the configured trees of all callers.

use crate::backend::{PyStoreBackend, tree_of};
use crate::errors::raised;
use crate::runtime::Held;
use crate::session::{Opened, schemas};
use crate::store::{Itself, PyStore, forked};
use crate::traces::PyAgentTool;
use crate::values::{Path, invalid};
use crate::work::{Work, operations};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyMapping, PyTuple};
use std::path::PathBuf;
use treehold::audit::AuditLog;
use treehold::checkpoint::{MemoryCheckpointer, StoreCheckpointer};
use treehold::config::{Config, ConfigBase, Registry};
use treehold::feed::Feed;
use treehold::memory::MemorySettings;
use treehold::session::ThreadDurability;
use treehold::workspace::Workspace;
use treehold::{Error, Scope};

/// The trees of all callers, as a configuration describes them.
#[pyclass(frozen, name = "Workspace", module = "treehold")]
pub(crate) struct PyWorkspace {
    workspace: Mutex<Option<Held<Workspace>>>,
    scope: Scope,
}

#[pymethods]
impl PyWorkspace {
    #[staticmethod]
    #[pyo3(name = "open", signature = (path = None, *, config = None, data = None))]
    fn open_config(py: Python<'_>, path: Option<PathBuf>, config: Option<String>, data: Option<PathBuf>) -> PyResult<Self> {
        let config = configured(py, config, path, data)?;
        let workspace = config.workspace().map_err(|error| raised(py, error))?;
        Ok(Self { workspace: Mutex::new(Some(Held::new(workspace))), scope: config.scope() })
    }

    /// Makes a workspace of trees.
    #[staticmethod]
    #[pyo3(signature = (
        routes = None, *, store = None, audit = false, events = false, memory = None, durability = "step", agents = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn of(
        py: Python<'_>,
        routes: Option<&Bound<'_, PyMapping>>,
        store: Option<&PyStore>,
        audit: bool,
        events: bool,
        memory: Option<Vec<Path>>,
        durability: &str,
        agents: Option<&PyAgentTool>,
    ) -> PyResult<Self> {
        let mut builder = Workspace::builder().durability(match durability {
            "step" => ThreadDurability::Step,
            "exit" => ThreadDurability::Exit,
            other => return Err(invalid(py, format!("no durability is named `{other}`; use `step` or `exit`"))),
        });
        let items = routes.map(|routes| routes.items()).transpose()?;
        for item in items.iter().flatten() {
            let (path, tree): (String, Bound<'_, PyAny>) = item.extract()?;
            if let Ok(stored) = tree.cast::<PyStoreBackend>()
                && let Some(rows) = stored.get().rows()
            {
                builder = builder.with_change_source(&path, move |_| Ok(rows.clone())).map_err(|error| raised(py, error))?;
            }
            if let Ok(stored) = tree.cast::<PyStoreBackend>()
                && let Some(kept) = stored.get().past().cloned()
            {
                builder = builder.with_history(&path, move |_| Ok(kept.clone())).map_err(|error| raised(py, error))?;
            }
            builder = builder.backend(path, tree_of(&tree)?).map_err(|error| raised(py, error))?;
        }
        match store.map(|store| store.open(py)).transpose()? {
            Some(store) => {
                builder = builder.checkpointer(StoreCheckpointer::new(store.clone()));
                if audit {
                    builder = builder.audit_log(AuditLog::new(store.clone()));
                }
                if events {
                    builder = builder.feed(Feed::new(store));
                }
            }
            None if audit || events => return Err(invalid(py, "`audit` and `events` need a store; name one by `store`")),
            None => builder = builder.checkpointer(MemoryCheckpointer::new()),
        }
        if let Some(sources) = memory {
            builder = builder.memory(MemorySettings::new().with_sources(sources.into_iter().map(|path| path.0)));
        }
        if let Some(agents) = agents {
            builder = builder.tool(agents.tool(py)?).map_err(|error| raised(py, error))?;
        }
        let scope = Scope::new().with_thread("default");
        Ok(Self { workspace: Mutex::new(Some(Held::new(builder.build()))), scope })
    }

    /// The descriptions of the tools, in the form of a vendor: `openai`, `anthropic` or `mcp`.
    #[pyo3(signature = (format = "openai", *, set = "default"))]
    fn tools<'py>(&self, py: Python<'py>, format: &str, set: &str) -> PyResult<Bound<'py, PyAny>> {
        schemas(py, &self.workspace(py)?, format, set)
    }

    fn close(&self) {
        let workspace = self.workspace.lock().take();
        drop(workspace);
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) -> bool {
        self.close();
        false
    }

    fn __aenter__<'py>(slf: Py<Self>, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Work::new(async move { Ok(Itself(slf.into_any())) }).start(py)
    }

    #[pyo3(signature = (*_exception))]
    fn __aexit__<'py>(&self, py: Python<'py>, _exception: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        self.close();
        Work::new(async move { Ok(()) }).start(py)
    }
}

operations! { PyWorkspace {
    #[pyo3(signature = (*, thread = None, user = None, tenant = None, agent = None))]
    fn session, asession(this, py, thread: Option<String>, user: Option<String>, tenant: Option<String>, agent: Option<String>) {
        this.opened(py, thread, user, tenant, agent)
    }

    #[pyo3(signature = (*, user = None, tenant = None))]
    fn threads, athreads(this, py, user: Option<String>, tenant: Option<String>) {
        this.thread_names(py, user, tenant)
    }

    #[pyo3(signature = (thread, *, user = None, tenant = None))]
    fn delete_thread, adelete_thread(this, py, thread: String, user: Option<String>, tenant: Option<String>) {
        this.removal(py, thread, user, tenant)
    }
} }

/// Adds the class to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyWorkspace>()
}

impl PyWorkspace {
    fn workspace(&self, py: Python<'_>) -> PyResult<Workspace> {
        match &*self.workspace.lock() {
            Some(workspace) => workspace.get().cloned().ok_or_else(|| forked(py, "workspace")),
            None => Err(invalid(py, "the workspace is closed; open it again")),
        }
    }

    /// Returns the scope of a caller. What is not given is that of the configuration.
    fn scope_of(
        &self,
        py: Python<'_>,
        thread: Option<String>,
        user: Option<String>,
        tenant: Option<String>,
        agent: Option<String>,
    ) -> PyResult<Scope> {
        let mut scope = self.scope.clone();
        scope.thread = thread.or(scope.thread);
        scope.user = user.or(scope.user);
        scope.tenant = tenant.or(scope.tenant);
        scope.agent = agent.or(scope.agent);
        scope.validate().map_err(|error| raised(py, error))?;
        Ok(scope)
    }

    fn removal(&self, py: Python<'_>, thread: String, user: Option<String>, tenant: Option<String>) -> PyResult<Work<()>> {
        let (workspace, scope) = (self.workspace(py)?, self.scope_of(py, Some(thread), user, tenant, None)?);
        Ok(Work::new(async move { workspace.delete_thread(&scope).await }))
    }

    fn thread_names(&self, py: Python<'_>, user: Option<String>, tenant: Option<String>) -> PyResult<Work<Vec<String>>> {
        let (workspace, scope) = (self.workspace(py)?, self.scope_of(py, None, user, tenant, None)?);
        Ok(Work::new(async move {
            let mut names = Vec::new();
            let Some(checkpointer) = workspace.checkpointer() else { return Ok(names) };
            loop {
                let page = checkpointer.threads(&scope, names.last().map(String::as_str), 1_000).await?;
                names.extend(page.threads.into_iter().map(|thread| thread.thread));
                if page.next.is_none() {
                    return Ok(names);
                }
            }
        }))
    }

    fn opened(
        &self,
        py: Python<'_>,
        thread: Option<String>,
        user: Option<String>,
        tenant: Option<String>,
        agent: Option<String>,
    ) -> PyResult<Work<Opened>> {
        let workspace = self.workspace(py)?;
        let scope = self.scope_of(py, thread, user, tenant, agent)?;
        Ok(Work::new(async move { Ok(Opened { session: workspace.session(scope).await?, workspace }) }))
    }
}

fn configured(py: Python<'_>, config: Option<String>, path: Option<PathBuf>, data: Option<PathBuf>) -> PyResult<Config> {
    let here = std::env::current_dir().unwrap_or_default();
    let registry = Registry::builtin();
    let config = match (config, path) {
        (Some(_), Some(_)) => return Err(invalid(py, "`config` and `path` exclude each other; leave one out")),
        (Some(text), None) => {
            let base = ConfigBase::new(&here, data.unwrap_or_else(|| here.clone()));
            registry.parse_config(&text, &base).map_err(Error::from)
        }
        (None, Some(path)) => {
            let data = data.unwrap_or_else(|| path.parent().map(PathBuf::from).unwrap_or_default());
            registry.load_config(&path, &data)
        }
        (None, None) => {
            let base = ConfigBase::new(&here, data.unwrap_or_else(|| here.clone()));
            Ok(registry.config(&base))
        }
    };
    config.map_err(|error| raised(py, error))
}
