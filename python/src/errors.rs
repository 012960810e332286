//! Errors of the library as exceptions of Python.
//!
//! The classes are written in Python (`treehold/errors.py`), one for each kind, so that type checkers and people can read them.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use treehold::traces::{BadTraceId, ForeignTrace, UnknownAgent};
use treehold::{Error, ErrorKind};

/// Makes the exception for an error.
pub(crate) fn raised(py: Python<'_>, error: Error) -> PyErr {
    match exception(py, &error) {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

fn exception<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make = MAKE.import(py, "treehold.errors", "_make")?;
    make.call1((
        error.kind().code(),
        error.message(),
        error.path().map(|path| path.as_str()),
        error.operation().map(|operation| operation.name()),
        error.current_version().map(|version| version.number()),
        error.lines().to_vec(),
        error.change(),
        error.applied(),
        error.may_have_effect(),
        reason(error),
    ))
}

/// Returns the name of what an error about a trace is about, if it has a class of its own.
fn reason(error: &Error) -> Option<&'static str> {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if error.is::<BadTraceId>() {
            return Some("bad_trace_id");
        } else if error.is::<UnknownAgent>() {
            return Some("unknown_agent");
        } else if error.is::<ForeignTrace>() {
            return Some("foreign_trace");
        }
        source = error.source();
    }
    None
}

/// Returns an exception of Python code as an error of the library: as it was, if it is one of ours, and internal otherwise.
pub(crate) fn caught(py: Python<'_>, exception: PyErr) -> Error {
    let value = exception.value(py);
    let code = value.getattr("code").and_then(|code| code.extract::<String>()).ok();
    if let Some(kind) = code.as_deref().and_then(ErrorKind::from_code) {
        let message = value.getattr("message").and_then(|message| message.extract::<String>()).unwrap_or_else(|_| exception.to_string());
        let error = Error::new(kind, message).with_source(exception.to_string());
        let path = value.getattr("path").and_then(|path| path.extract::<String>()).ok();
        return match path.and_then(|path| treehold::VfsPathBuf::parse(path).ok()) {
            Some(path) => error.at(&path),
            None => error,
        };
    }
    let kind = if exception.is_instance_of::<pyo3::exceptions::PyFileNotFoundError>(py) {
        ErrorKind::NotFound
    } else if exception.is_instance_of::<pyo3::exceptions::PyPermissionError>(py) {
        ErrorKind::PermissionDenied
    } else if exception.is_instance_of::<pyo3::exceptions::PyNotImplementedError>(py) {
        ErrorKind::Unsupported
    } else {
        ErrorKind::Internal
    };
    Error::new(kind, format!("code in Python raised {exception}")).with_source(exception.to_string())
}
