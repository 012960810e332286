//! Values of traces on their way between the library and Python.
//!
//! The data classes are written in Python (`treehold/traces/_values.py`). Values cross as JSON text, so that contents stay as they were
//! written, however large their numbers and whatever the order of their fields.

use crate::errors::raised;
use crate::values::invalid;
use crate::work::ToPython;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::sync::PyOnceLock;
use serde::Serialize;
use serde::de::DeserializeOwned;
use treehold::traces::layout::{ExportReport, ImportReport};
use treehold::traces::{
    Added, EventsPage, Goal, GoalTree, Location, Message, MessageRef, MessagesPage, RunRequest, RunResult, Trace, TraceAddress, TraceEvent,
    TracePage,
};
use treehold::{Error, ErrorKind};

/// Reads a value from one of the data classes, or from a mapping of its fields.
pub(super) fn given<T: DeserializeOwned>(value: &Bound<'_, PyAny>) -> PyResult<T> {
    static DUMPED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = value.py();
    let text: PyBackedStr = DUMPED.import(py, "treehold.traces._values", "dumped")?.call1((value,))?.extract()?;
    serde_json::from_str(&text).map_err(|error| invalid(py, format!("a value of a trace is malformed: {error}")))
}

/// Makes an object of a data class.
fn loaded<T: Serialize>(py: Python<'_>, class: &str, value: &T) -> PyResult<Py<PyAny>> {
    static LOADED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let text = serde_json::to_string(value)
        .map_err(|error| raised(py, Error::new(ErrorKind::Internal, "a value of a trace cannot be written as JSON").with_source(error)))?;
    LOADED.import(py, "treehold.traces._values", "loaded")?.call1((class, text)).map(Bound::unbind)
}

/// Values that are data classes of the same name.
macro_rules! data_classes {
    ($($type:ident),+) => {
        $(impl ToPython for $type {
            fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
                loaded(py, stringify!($type), &self)
            }
        }

        impl ToPython for Option<$type> {
            fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
                self.map_or_else(|| Ok(py.None()), |value| value.to_python(py))
            }
        })+
    };
}

data_classes!(Added, EventsPage, Goal, GoalTree, Message, MessagesPage, RunRequest, RunResult, Trace, TraceEvent, TracePage);

/// Something of a directory that was not imported or exported.
fn failure(name: &dyn std::fmt::Display, error: &Error) -> serde_json::Value {
    serde_json::json!({"name": name.to_string(), "code": error.kind().code(), "message": error.message()})
}

impl ToPython for ImportReport {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let failures: Vec<_> = self.failures.iter().map(|(name, error)| failure(name, error)).collect();
        let report = serde_json::json!({"traces": self.traces, "failures": failures, "left_out": self.left_out});
        loaded(py, "ImportReport", &report)
    }
}

impl ToPython for ExportReport {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let failures: Vec<_> = self.failures.iter().map(|(id, error)| failure(id, error)).collect();
        let traces: Vec<_> =
            self.traces.iter().map(|trace| serde_json::json!({"id": trace.id.to_string(), "written": trace.written})).collect();
        loaded(py, "ExportReport", &serde_json::json!({"traces": traces, "failures": failures}))
    }
}

/// The id of a trace.
pub(super) struct Address(pub(super) TraceAddress);

impl<'py> FromPyObject<'_, 'py> for Address {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let py = value.py();
        TraceAddress::parse(&value.extract::<PyBackedStr>()?).map(Self).map_err(|error| raised(py, error))
    }
}

/// A message, by its id or its sequence.
#[derive(FromPyObject)]
pub(super) enum Which {
    Id(String),
    Sequence(u64),
}

impl From<Which> for MessageRef {
    fn from(which: Which) -> Self {
        match which {
            Which::Id(id) => Self::Id(id),
            Which::Sequence(sequence) => Self::Sequence(sequence),
        }
    }
}

/// Reads where a trace lives: `@AGENT` or `agent://HOST`.
pub(super) fn location(py: Python<'_>, text: &str) -> PyResult<Location> {
    text.parse().map_err(|error| raised(py, error))
}

/// Splits the id of a trace into where it lives, `local` for the store at hand, and its id there.
#[pyfunction]
pub(super) fn parse_trace_id(id: Address) -> (String, String) {
    let location = id.0.location().map_or_else(|| "local".to_owned(), ToString::to_string);
    (location, id.0.id().to_string())
}
