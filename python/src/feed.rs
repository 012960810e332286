//! The changes in a tree, as the feed of a workspace records them.

use crate::runtime::Held;
use crate::store::forked;
use crate::values::{datetime, invalid};
use crate::work::{ToPython, Work, class};
use pyo3::prelude::*;
use std::sync::Arc;
use treehold::Result;
use treehold::feed::{FeedEvent, FeedPage, FeedPosition, FeedTail};
use treehold::ops::Version;

/// A position as callers give it: the text of a page or tail, or the number of an event where the tree has one partition.
#[derive(FromPyObject)]
pub(crate) enum Place {
    Number(u64),
    Text(String),
}

impl Place {
    pub(crate) fn position(self) -> Result<FeedPosition> {
        match self {
            Self::Number(number) => Ok(Version::new(number).into()),
            Self::Text(text) => text.parse(),
        }
    }
}

/// A change.
#[pyclass(frozen, name = "FeedEvent", module = "treehold")]
pub(crate) struct PyFeedEvent(FeedEvent);

class!(PyFeedEvent);

#[pymethods]
impl PyFeedEvent {
    #[getter]
    fn position(&self) -> u64 {
        self.0.position.number()
    }

    #[getter]
    fn path(&self) -> &str {
        self.0.path.as_str()
    }

    #[getter]
    fn operation(&self, py: Python<'_>) -> PyResult<String> {
        let name = serde_json::to_value(self.0.operation).ok().and_then(|name| name.as_str().map(str::to_owned));
        name.ok_or_else(|| invalid(py, "the operation of an event has no name"))
    }

    #[getter]
    fn target(&self) -> Option<&str> {
        self.0.target.as_ref().map(|target| target.as_str())
    }

    #[getter]
    fn version(&self) -> Option<u64> {
        self.0.version.map(Version::number)
    }

    #[getter]
    fn thread(&self) -> Option<&str> {
        self.0.thread.as_deref()
    }

    #[getter]
    fn actor(&self) -> Option<&str> {
        self.0.actor.as_deref()
    }

    #[getter]
    fn at(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        datetime(py, self.0.at)
    }

    fn __repr__(&self) -> String {
        format!("FeedEvent({}, {:?})", self.0.position.number(), self.0.path.as_str())
    }
}

/// Events in their order.
#[pyclass(frozen, name = "FeedPage", module = "treehold")]
pub(crate) struct PyFeedPage(FeedPage);

#[pymethods]
impl PyFeedPage {
    #[getter]
    fn events(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.0.events.iter().cloned().map(PyFeedEvent).collect::<Vec<_>>().to_python(py)
    }

    #[getter]
    fn position(&self) -> String {
        self.0.position.to_string()
    }

    #[getter]
    fn more(&self) -> bool {
        self.0.more
    }

    fn __len__(&self) -> usize {
        self.0.events.len()
    }

    fn __repr__(&self) -> String {
        format!("FeedPage({} events, position={})", self.0.events.len(), self.0.position)
    }
}

impl ToPython for FeedPage {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(Py::new(py, PyFeedPage(self))?.into_any())
    }
}

/// The events of a feed as they come.
#[pyclass(frozen, name = "FeedTail", module = "treehold")]
pub(crate) struct PyFeedTail(Held<Arc<tokio::sync::Mutex<FeedTail>>>);

class!(PyFeedTail);

impl From<FeedTail> for PyFeedTail {
    fn from(tail: FeedTail) -> Self {
        Self(Held::new(Arc::new(tokio::sync::Mutex::new(tail))))
    }
}

impl PyFeedTail {
    fn next_event(&self, py: Python<'_>) -> PyResult<Work<PyFeedEvent>> {
        let tail = self.0.get().cloned().ok_or_else(|| forked(py, "feed"))?;
        Ok(Work::new(async move { tail.lock().await.next().await.map(PyFeedEvent) }))
    }
}

#[pymethods]
impl PyFeedTail {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.next_event(py)?.wait(py)
    }

    fn __aiter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// The position from which another tail continues with the first event that this one has not returned.
    #[getter]
    fn position(&self, py: Python<'_>) -> PyResult<String> {
        let tail = self.0.get().cloned().ok_or_else(|| forked(py, "feed"))?;
        // Another thread holds it while it waits for an event.
        let position = tail.try_lock().map(|tail| tail.position().to_string());
        position.map_err(|_| invalid(py, "the position is not known while the tail waits for its next event"))
    }

    fn __anext__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.next_event(py)?.start(py)
    }
}

/// Adds the classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyFeedEvent>()?;
    module.add_class::<PyFeedPage>()?;
    module.add_class::<PyFeedTail>()
}
