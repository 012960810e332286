//! Workspaces and sessions: the configured tree of a caller and a thread.

use crate::backend::{PyBackend, PyStoreBackend, tree_of};
use crate::errors::raised;
use crate::feed::{Place, PyFeedTail};
use crate::runtime::Held;
use crate::store::{Data, Itself, PyBatch, PyStore, data, forked};
use crate::traces::PyAgentTool;
use crate::values::{Content, Path, from_json, invalid, timestamp, to_json};
use crate::work::{ToPython, Work, class, operations};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyMapping, PyTuple};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use treehold::audit::AuditLog;
use treehold::checkpoint::{
    At, Checkpoint, Checkpointer, ListOptions, MemoryCheckpointer, MergeOptions, MergeResolution, MergeStrategy, PutOptions,
    StoreCheckpointer, partition_of,
};
use treehold::config::{Config, ConfigBase, Registry};
use treehold::feed::{Feed, FeedPage, FeedView};
use treehold::layer::Allowance;
use treehold::memory::MemorySettings;
use treehold::session::{CallNotes, ThreadDurability, UndoOf};
use treehold::store::Outbox;
use treehold::tools::consent;
use treehold::tools::{ToolCall, ToolFormat, ToolOutput, ToolSet};
use treehold::workspace::Workspace;
use treehold::{CheckpointId, Error, Result, Scope, Session, VfsPathBuf};

/// The trees of all callers, as a configuration describes them.
#[pyclass(frozen, name = "Workspace", module = "treehold")]
pub(crate) struct PyWorkspace {
    workspace: Mutex<Option<Held<Workspace>>>,
    scope: Scope,
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

fn tool_set(py: Python<'_>, name: &str) -> PyResult<ToolSet> {
    let names = || ToolSet::ALL.map(|set| format!("`{}`", set.name())).join(", ");
    let set = ToolSet::ALL.into_iter().find(|set| set.name().replace('-', "_") == name.replace('-', "_"));
    set.ok_or_else(|| invalid(py, format!("no set of tools is named `{name}`; use one of {}", names())))
}

fn schemas<'py>(py: Python<'py>, workspace: &Workspace, format: &str, set: &str) -> PyResult<Bound<'py, PyAny>> {
    let format = match format {
        "openai" => ToolFormat::OpenAi,
        "anthropic" => ToolFormat::Anthropic,
        "mcp" => ToolFormat::Mcp,
        other => return Err(invalid(py, format!("no form of tools is named `{other}`; use `openai`, `anthropic` or `mcp`"))),
    };
    from_json(py, &workspace.tools().export(tool_set(py, set)?, format))
}

/// A session on its way to Python.
pub(crate) struct Opened {
    session: Session,
    workspace: Workspace,
}

impl ToPython for Opened {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let tree = PyBackend::of(self.session.backend());
        let session = PySession { session: Mutex::new(Some(Held::new(self.session))), workspace: Held::new(self.workspace) };
        Ok(Py::new(py, PyClassInitializer::from(tree).add_subclass(session))?.into_any())
    }
}

/// The tree of one thread of one caller: all operations of a tree, and the history of the thread.
#[pyclass(frozen, extends = PyBackend, name = "Session", module = "treehold")]
pub(crate) struct PySession {
    session: Mutex<Option<Held<Session>>>,
    workspace: Held<Workspace>,
}

/// A saved state of a thread.
#[pyclass(frozen, name = "Checkpoint", module = "treehold")]
pub(crate) struct PyCheckpoint {
    checkpoint: Checkpoint,
    versions: Vec<u64>,
}

class!(PyCheckpoint);

#[pymethods]
impl PyCheckpoint {
    #[getter]
    fn id(&self) -> String {
        self.checkpoint.id.to_string()
    }

    #[getter]
    fn parent_id(&self) -> Option<String> {
        self.checkpoint.parent.as_ref().map(|parent| parent.id.to_string())
    }

    /// The thread of the parent, if it is another one.
    #[getter]
    fn parent_thread(&self) -> Option<&str> {
        self.checkpoint.parent.as_ref().and_then(|parent| parent.thread.as_deref())
    }

    /// The thread and the id of the checkpoint that was merged into it.
    #[getter]
    fn merged(&self) -> Option<(String, String)> {
        self.checkpoint.merged.as_ref().map(|merged| (merged.thread.clone(), merged.id.to_string()))
    }

    #[getter]
    fn label(&self) -> Option<&str> {
        self.checkpoint.label.as_deref()
    }

    #[getter]
    fn metadata(&self) -> BTreeMap<String, String> {
        self.checkpoint.metadata.clone()
    }

    #[getter]
    fn created_at(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        crate::values::datetime(py, self.checkpoint.created_at)
    }

    #[getter]
    fn entries(&self) -> u64 {
        self.checkpoint.entries
    }

    #[getter]
    fn size_bytes(&self) -> u64 {
        self.checkpoint.size_bytes
    }

    /// The versions of the rows that were committed with the checkpoint.
    #[getter]
    fn versions(&self) -> Vec<u64> {
        self.versions.clone()
    }

    fn __repr__(&self) -> String {
        format!("Checkpoint({:?}, label={:?})", self.id(), self.checkpoint.label)
    }
}

impl From<Checkpoint> for PyCheckpoint {
    fn from(checkpoint: Checkpoint) -> Self {
        Self { checkpoint, versions: Vec::new() }
    }
}

/// The answer to a tool call.
#[pyclass(frozen, name = "ToolResult", module = "treehold")]
pub(crate) struct PyToolResult(ToolOutput);

class!(PyToolResult);

#[pymethods]
impl PyToolResult {
    #[getter]
    fn text(&self) -> &str {
        &self.0.text
    }

    #[getter]
    fn is_error(&self) -> bool {
        self.0.is_error
    }

    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.0.data.as_ref().map(|data| from_json(py, data)).transpose()
    }

    /// The error of the call.
    #[getter]
    fn error(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.0.error.as_ref().map(|error| raised(py, error.into()).into_value(py).into_any())
    }

    /// Why the changes of the call to its thread are not saved.
    #[getter]
    fn unsaved(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.0.unsaved.as_ref().map(|error| raised(py, error.into()).into_value(py).into_any())
    }

    #[getter]
    fn code(&self) -> Option<&str> {
        self.0.error.as_ref().map(|error| error.code.as_str())
    }

    fn __repr__(&self) -> String {
        format!("ToolResult(is_error={}, {:?})", self.0.is_error, self.0.text)
    }
}

impl PySession {
    fn session(&self, py: Python<'_>) -> PyResult<Session> {
        match &*self.session.lock() {
            Some(session) => session.get().cloned().ok_or_else(|| forked(py, "session")),
            None => Err(invalid(py, "the session is closed; open it again")),
        }
    }

    fn workspace(&self, py: Python<'_>) -> PyResult<&Workspace> {
        self.workspace.get().ok_or_else(|| forked(py, "session"))
    }

    fn checkpointer(&self, py: Python<'_>) -> PyResult<Arc<dyn Checkpointer>> {
        let checkpointer = self.workspace(py)?.checkpointer().cloned();
        checkpointer.ok_or_else(|| raised(py, Error::unsupported("this workspace saves no threads")))
    }

    fn events(&self, py: Python<'_>) -> PyResult<(Arc<Feed>, FeedView)> {
        let (workspace, session) = (self.workspace(py)?, self.session(py)?);
        let feed = workspace.feed().cloned();
        let feed = feed.ok_or_else(|| raised(py, Error::unsupported("this workspace records no events; set `events.save`")))?;
        Ok((feed, workspace.feed_view(session.scope()).map_err(|error| raised(py, error))?))
    }

    fn feed_work(&self, py: Python<'_>, after: Option<Place>, limit: usize) -> PyResult<Work<FeedPage>> {
        let (feed, view) = self.events(py)?;
        Ok(Work::new(async move {
            let after = match after {
                Some(after) => after.position()?,
                None => feed.position(&view).await?,
            };
            feed.after(&view, &after, limit).await
        }))
    }

    fn timeline_work(
        &self,
        py: Python<'_>,
        before: Option<Place>,
        since: Option<&Bound<'_, PyAny>>,
        limit: usize,
    ) -> PyResult<Work<FeedPage>> {
        let (feed, view) = self.events(py)?;
        let since = since.map(timestamp).transpose()?;
        Ok(Work::new(async move {
            let before = before.map(Place::position).transpose()?;
            feed.before(&view, before.as_ref(), since, limit).await
        }))
    }

    fn follow_work(&self, py: Python<'_>, after: Option<Place>) -> PyResult<Work<PyFeedTail>> {
        let (feed, view) = self.events(py)?;
        Ok(Work::new(async move {
            let after = match after {
                Some(after) => after.position()?,
                None => feed.position(&view).await?,
            };
            Ok(PyFeedTail::from(feed.follow(view, after).await?))
        }))
    }

    fn parsed(&self, py: Python<'_>, tool: &str, arguments: Option<&Bound<'_, PyAny>>, set: &str) -> PyResult<Result<ToolCall>> {
        let arguments = arguments.map_or_else(|| Ok(serde_json::json!({})), to_json)?;
        Ok(self.workspace(py)?.tools().decode(tool_set(py, set)?, tool, arguments))
    }

    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn call_work(
        &self,
        py: Python<'_>,
        tool: &str,
        arguments: Option<&Bound<'_, PyAny>>,
        set: &str,
        call_id: Option<String>,
        actor: Option<String>,
        consented: bool,
    ) -> PyResult<Work<PyToolResult>> {
        let session = self.session(py)?;
        let call = self.parsed(py, tool, arguments, set)?;
        let mut notes = CallNotes::new();
        (notes.tool_call_id, notes.actor) = (call_id, actor);
        Ok(Work::new(async move {
            Ok(PyToolResult(match call {
                Ok(call) => {
                    let allowed = if consented { consent::asked(&*session.backend(), &call, session.scope()).await? } else { None };
                    let allowance = Allowance::new(allowed.map(|(_, protected)| protected).unwrap_or_default());
                    allowance.during(session.call_with(call, notes)).await
                }
                Err(error) => ToolOutput::from_error(&error),
            }))
        }))
    }

    fn question_work(&self, py: Python<'_>, tool: &str, arguments: Option<&Bound<'_, PyAny>>, set: &str) -> PyResult<Work<Option<String>>> {
        let session = self.session(py)?;
        let call = self.parsed(py, tool, arguments, set)?;
        Ok(Work::new(async move {
            // A call that is malformed changes nothing.
            let Ok(call) = call else { return Ok(None) };
            let asked = consent::asked(&*session.backend(), &call, session.scope()).await?;
            Ok(asked.map(|(question, _)| question.text()))
        }))
    }

    fn checkpoint_work(
        &self,
        py: Python<'_>,
        label: Option<String>,
        metadata: Option<BTreeMap<String, String>>,
        batch: Option<&PyBatch>,
    ) -> PyResult<Work<PyCheckpoint>> {
        let session = self.session(py)?;
        let mut options = PutOptions::new();
        options.label = label;
        options.metadata = metadata.unwrap_or_default();
        let Some(batch) = batch.map(PyBatch::batch) else {
            return Ok(Work::new(async move { Ok(session.checkpoint(options).await?.into()) }));
        };
        if !batch.preconditions.is_empty() {
            return Err(invalid(py, "a batch that is committed with a checkpoint has no preconditions; leave them out"));
        }
        if batch.writes.is_empty() {
            return Ok(Work::new(async move { Ok(session.checkpoint(options).await?.into()) }));
        }
        let partition = partition_of(session.scope()).map_err(|error| raised(py, error))?;
        if let Some(write) = batch.writes.iter().find(|write| write.namespace().partition() != partition) {
            let message = format!(
                "the batch changes rows of `{}`, and the thread is in the partition `{partition}`; put the rows below `partition` of the session",
                write.namespace()
            );
            return Err(raised(py, Error::unsupported(message)));
        }
        let store = self.thread_store(py)?;
        Ok(Work::new(async move {
            let mut outbox = Outbox::new();
            let receipt = outbox.push_rows(store, batch.writes);
            options.extensions.insert(outbox);
            let made = session.checkpoint(options).await?;
            if !receipt.is_taken() {
                let message = "the checkpoint was saved without the rows; commit them by themselves";
                return Err(Error::new(treehold::ErrorKind::Internal, message));
            }
            Ok(made.into())
        }))
    }

    fn thread_store(&self, py: Python<'_>) -> PyResult<Arc<dyn treehold::Store>> {
        let store = self.workspace(py)?.checkpointer().and_then(|checkpointer| checkpointer.store().cloned());
        store.ok_or_else(|| raised(py, Error::unsupported("this workspace saves no threads in a store")))
    }

    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn checkpoints_work(
        &self,
        py: Python<'_>,
        label: Option<String>,
        metadata: Option<BTreeMap<String, String>>,
        before: Option<&str>,
        since: Option<&Bound<'_, PyAny>>,
        until: Option<&Bound<'_, PyAny>>,
        limit: usize,
    ) -> PyResult<Work<Vec<PyCheckpoint>>> {
        let session = self.session(py)?;
        let checkpointer = self.checkpointer(py)?;
        let mut options = ListOptions::new();
        (options.label, options.limit) = (label, limit);
        options.metadata = metadata.unwrap_or_default();
        options.since = since.map(timestamp).transpose()?;
        options.until = until.map(timestamp).transpose()?;
        options.start_after = before.map(|id| checkpoint_id(py, id)).transpose()?;
        Ok(Work::new(async move {
            let page = checkpointer.list(session.scope(), &options).await?;
            Ok(session.shown_all(page.checkpoints).await?.into_iter().map(PyCheckpoint::from).collect())
        }))
    }

    fn restore_work(
        &self,
        py: Python<'_>,
        id: &str,
        label: Option<String>,
        metadata: Option<BTreeMap<String, String>>,
    ) -> PyResult<Work<PyCheckpoint>> {
        let (session, id) = (self.session(py)?, checkpoint_id(py, id)?);
        let mut options = PutOptions::new();
        (options.label, options.metadata) = (label, metadata.unwrap_or_default());
        Ok(Work::new(async move { Ok(session.restore(id, options).await?.into()) }))
    }

    fn fork_work(&self, py: Python<'_>, thread: String, at: Option<&str>, label: Option<String>) -> PyResult<Work<PyCheckpoint>> {
        let (session, at) = (self.session(py)?, at_id(py, at)?);
        let mut options = PutOptions::new();
        options.label = label;
        Ok(Work::new(async move { Ok(session.fork(at, &thread, &options).await?.into()) }))
    }

    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn merge_work(
        &self,
        py: Python<'_>,
        source: String,
        at: Option<&str>,
        strategy: Option<&str>,
        resolutions: Option<BTreeMap<String, Option<Content>>>,
        base: Option<&str>,
        dry_run: bool,
        label: Option<String>,
        limit: usize,
    ) -> PyResult<Work<Data>> {
        let (session, at) = (self.session(py)?, at_id(py, at)?);
        let strategy = strategy.map(|name| serde_json::from_value::<MergeStrategy>(name.into())).transpose();
        let mut options = MergeOptions::default();
        options.strategy =
            strategy.map_err(|_| invalid(py, "no merge strategy has this name; use `ours`, `theirs`, `union` or `markers`"))?;
        (options.dry_run, options.label, options.limit) = (dry_run, label, limit);
        options.base = base.map(|id| checkpoint_id(py, id)).transpose()?;
        for (path, resolution) in resolutions.unwrap_or_default() {
            let path = VfsPathBuf::parse(path).map_err(|error| raised(py, error.into()))?;
            let resolution = resolution.map_or(MergeResolution::Remove, |content| MergeResolution::Content(content.0));
            options.resolutions.insert(path, resolution);
        }
        Ok(Work::new(async move { data(&session.merge(&source, at, options).await?) }))
    }

    fn history_work(&self, py: Python<'_>, id: Option<&str>) -> PyResult<Work<Tree>> {
        let (session, at) = (self.session(py)?, at_id(py, id)?);
        Ok(Work::new(async move { Ok(Tree(session.history(at).await?)) }))
    }

    fn diff_work(&self, py: Python<'_>, older: &str, newer: Option<&str>, after: Option<Path>, limit: usize) -> PyResult<Work<Data>> {
        let (session, older, newer) = (self.session(py)?, at_id(py, Some(older))?, at_id(py, newer)?);
        let checkpointer = self.checkpointer(py)?;
        Ok(Work::new(async move {
            session.save().await?;
            let state = async |at| {
                let opened = checkpointer.open(session.scope(), at).await?;
                opened
                    .map(|opened| opened.state)
                    .ok_or_else(|| Error::new(treehold::ErrorKind::NotFound, "the thread has no such checkpoint"))
            };
            let (older, newer) = (state(older).await?, state(newer).await?);
            data(&session.diff(&older, &newer, after.as_ref().map(|path| &*path.0), limit).await?)
        }))
    }

    fn memory_work(&self, py: Python<'_>, sources: Option<Vec<String>>, tokens_max: Option<usize>) -> PyResult<Work<String>> {
        let session = self.session(py)?;
        Ok(Work::new(async move {
            let mut options = session.memory_settings().prompt.clone();
            if let Some(tokens) = tokens_max {
                options = options.with_tokens_max(tokens);
            }
            let memory = match sources {
                Some(sources) => session.memory(&sources).await?,
                None => session.configured_memory().await,
            };
            Ok(memory.prompt_in_background(options).await?.text)
        }))
    }

    fn save_work(&self, py: Python<'_>) -> PyResult<Work<bool>> {
        let session = self.session(py)?;
        Ok(Work::new(async move { session.save().await }))
    }

    fn reload_work(&self, py: Python<'_>) -> PyResult<Work<()>> {
        let session = self.session(py)?;
        Ok(Work::new(async move { session.reload().await }))
    }

    fn close_work(&self) -> Work<()> {
        let session = self.session.lock().take();
        Work::new(async move {
            match session.as_ref().and_then(Held::get).cloned() {
                Some(session) => session.close().await,
                None => Ok(()),
            }
        })
    }
}

/// A tree on its way to Python.
struct Tree(Arc<dyn treehold::Backend>);

impl ToPython for Tree {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(Py::new(py, PyBackend::of(self.0))?.into_any())
    }
}

#[pymethods]
impl PySession {
    #[getter]
    fn scope(&self, py: Python<'_>) -> PyResult<BTreeMap<&'static str, String>> {
        let session = self.session(py)?;
        let scope = session.scope();
        let fields = [("tenant", &scope.tenant), ("user", &scope.user), ("agent", &scope.agent), ("thread", &scope.thread)];
        Ok(fields.into_iter().filter_map(|(name, id)| Some((name, id.clone()?))).collect())
    }

    /// The components of the partition that the rows of the thread lie in.
    #[getter]
    fn partition<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let partition = partition_of(self.session(py)?.scope()).map_err(|error| raised(py, error))?;
        PyTuple::new(py, partition.components().collect::<Vec<_>>())
    }

    /// The store that keeps the threads.
    #[getter]
    fn store(&self, py: Python<'_>) -> PyResult<PyStore> {
        self.thread_store(py).map(PyStore::of)
    }

    #[pyo3(signature = (format = "openai", *, set = "default"))]
    fn tools<'py>(&self, py: Python<'py>, format: &str, set: &str) -> PyResult<Bound<'py, PyAny>> {
        schemas(py, self.workspace(py)?, format, set)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<bool> {
        self.close(py).map(|_| false)
    }

    fn __aenter__<'py>(slf: Py<Self>, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Work::new(async move { Ok(Itself(slf.into_any())) }).start(py)
    }

    #[pyo3(signature = (*_exception))]
    fn __aexit__<'py>(&self, py: Python<'py>, _exception: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        self.aclose(py)
    }
}

operations! { PySession {
    #[pyo3(signature = (tool, arguments = None, *, set = "default", call_id = None, actor = None, consented = false))]
    fn call, acall(
        this, py, tool: &str, arguments: Option<&Bound<'_, PyAny>>, set: &str, call_id: Option<String>, actor: Option<String>,
        consented: bool
    ) {
        this.call_work(py, tool, arguments, set, call_id, actor, consented)
    }

    #[pyo3(signature = (tool, arguments = None, *, set = "default"))]
    fn question, aquestion(this, py, tool: &str, arguments: Option<&Bound<'_, PyAny>>, set: &str) {
        this.question_work(py, tool, arguments, set)
    }

    #[pyo3(signature = (label = None, *, metadata = None, batch = None))]
    fn checkpoint, acheckpoint(
        this, py, label: Option<String>, metadata: Option<BTreeMap<String, String>>, batch: Option<PyRef<'_, PyBatch>>
    ) {
        this.checkpoint_work(py, label, metadata, batch.as_deref())
    }

    #[pyo3(signature = (*, label = None, metadata = None, before = None, since = None, until = None, limit = 100))]
    fn checkpoints, acheckpoints(
        this, py, label: Option<String>, metadata: Option<BTreeMap<String, String>>, before: Option<&str>,
        since: Option<&Bound<'_, PyAny>>, until: Option<&Bound<'_, PyAny>>, limit: usize
    ) {
        this.checkpoints_work(py, label, metadata, before, since, until, limit)
    }

    #[pyo3(signature = (after = None, *, limit = 100))]
    fn feed, afeed(this, py, after: Option<Place>, limit: usize) {
        this.feed_work(py, after, limit)
    }

    #[pyo3(signature = (before = None, *, since = None, limit = 100))]
    fn timeline, atimeline(this, py, before: Option<Place>, since: Option<&Bound<'_, PyAny>>, limit: usize) {
        this.timeline_work(py, before, since, limit)
    }

    #[pyo3(signature = (after = None))]
    fn follow, afollow(this, py, after: Option<Place>) {
        this.follow_work(py, after)
    }

    #[pyo3(signature = (id, *, label = None, metadata = None))]
    fn restore, arestore(this, py, id: &str, label: Option<String>, metadata: Option<BTreeMap<String, String>>) {
        this.restore_work(py, id, label, metadata)
    }

    #[pyo3(signature = (thread, *, at = None, label = None))]
    fn fork, afork(this, py, thread: String, at: Option<&str>, label: Option<String>) {
        this.fork_work(py, thread, at, label)
    }

    #[pyo3(signature = (source, *, at = None, strategy = None, resolutions = None, base = None, dry_run = false, label = None, limit = 1000))]
    fn merge, amerge(
        this, py, source: String, at: Option<&str>, strategy: Option<&str>, resolutions: Option<BTreeMap<String, Option<Content>>>,
        base: Option<&str>, dry_run: bool, label: Option<String>, limit: usize
    ) {
        this.merge_work(py, source, at, strategy, resolutions, base, dry_run, label, limit)
    }

    #[pyo3(signature = (older, newer = None, *, after = None, limit = 1000))]
    fn diff, adiff(this, py, older: &str, newer: Option<&str>, after: Option<Path>, limit: usize) {
        this.diff_work(py, older, newer, after, limit)
    }

    #[pyo3(signature = (id = None))]
    fn history, ahistory(this, py, id: Option<&str>) {
        this.history_work(py, id)
    }

    #[pyo3(signature = (path, *, limit = 100))]
    fn log, alog(this, py, path: Path, limit: usize) {
        let session = this.session(py)?;
        Ok(Work::new(async move { data(&session.log(&path.0, limit).await?) }))
    }

    fn as_of, aas_of(this, py, moment: &Bound<'_, PyAny>) {
        let (session, workspace, moment) = (this.session(py)?, this.workspace(py)?.clone(), named(moment)?);
        Ok(Work::new(async move {
            session.save().await?;
            Ok(Tree(workspace.tree_as_of(session.scope(), &moment).await?))
        }))
    }

    fn restore_files, arestore_files(this, py, paths: Vec<Path>, moment: &Bound<'_, PyAny>) {
        let (session, moment) = (this.session(py)?, named(moment)?);
        Ok(Work::new(async move {
            session.save().await?;
            let paths: Vec<VfsPathBuf> = paths.into_iter().map(|path| path.0).collect();
            session.restore_files(&paths, &moment).await
        }))
    }

    #[pyo3(signature = (*, of = "thread"))]
    fn undo, aundo(this, py, of: &str) {
        let session = this.session(py)?;
        let of = match of {
            "thread" => UndoOf::Thread,
            "user" => UndoOf::User,
            other => return Err(invalid(py, format!("nobody's changes are named `{other}`; use `thread` or `user`"))),
        };
        Ok(Work::new(async move { data(&session.undo(of).await?) }))
    }

    #[pyo3(signature = (sources = None, *, tokens_max = None))]
    fn memory_prompt, amemory_prompt(this, py, sources: Option<Vec<String>>, tokens_max: Option<usize>) {
        this.memory_work(py, sources, tokens_max)
    }

    fn save, asave(this, py) {
        this.save_work(py)
    }

    fn reload, areload(this, py) {
        this.reload_work(py)
    }

    /// Saves the thread and closes the session.
    fn close, aclose(this, py) {
        Ok(this.close_work())
    }
} }

/// Returns the schemas of the built-in tools.
#[pyfunction]
#[pyo3(signature = (format = "openai", *, set = "default"))]
fn tools<'py>(py: Python<'py>, format: &str, set: &str) -> PyResult<Bound<'py, PyAny>> {
    schemas(py, &Workspace::builder().build(), format, set)
}

/// Adds the classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyWorkspace>()?;
    module.add_class::<PySession>()?;
    module.add_class::<PyCheckpoint>()?;
    module.add_class::<PyToolResult>()?;
    module.add_function(wrap_pyfunction!(tools, module)?)
}

fn checkpoint_id(py: Python<'_>, id: &str) -> PyResult<CheckpointId> {
    id.parse().map_err(|_| invalid(py, format!("`{id}` is no checkpoint id; use one of `checkpoints()`")))
}

/// Returns the name of a moment: a `datetime` is written as a time.
fn named(moment: &Bound<'_, PyAny>) -> PyResult<String> {
    moment.extract::<String>().or_else(|_| timestamp(moment).map(|time| time.to_string()))
}

fn at_id(py: Python<'_>, id: Option<&str>) -> PyResult<At> {
    id.map_or(Ok(At::Latest), |id| checkpoint_id(py, id).map(At::Id))
}
