//! Sessions: the tree of a caller and a thread.
//!
//! `calls` calls tools, `checkpoints` saves, restores and merges the thread, `past` shows what files were, and `events` follows changes.

mod calls;
mod checkpoints;
mod events;
mod past;

pub(crate) use calls::schemas;

use crate::backend::PyBackend;
use crate::errors::raised;
use crate::runtime::Held;
use crate::store::{Itself, PyStore, forked};
use crate::values::invalid;
use crate::work::{ToPython, Work, operations};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::collections::BTreeMap;
use std::sync::Arc;
use treehold::checkpoint::{Checkpointer, partition_of};
use treehold::workspace::Workspace;
use treehold::{Error, Session};

/// A session on its way to Python.
pub(crate) struct Opened {
    pub(crate) session: Session,
    pub(crate) workspace: Workspace,
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

/// Adds the classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PySession>()?;
    module.add_class::<checkpoints::PyCheckpoint>()?;
    module.add_class::<calls::PyToolResult>()?;
    module.add_function(wrap_pyfunction!(calls::tools, module)?)
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

    fn thread_store(&self, py: Python<'_>) -> PyResult<Arc<dyn treehold::Store>> {
        let store = self.workspace(py)?.checkpointer().and_then(|checkpointer| checkpointer.store().cloned());
        store.ok_or_else(|| raised(py, Error::unsupported("this workspace saves no threads in a store")))
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
