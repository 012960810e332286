//! What reads of files return.

use crate::errors::raised;
use crate::values::{Content, datetime, timestamp};
use crate::work::{ToPython, class};
use bytes::Bytes;
use pyo3::exceptions::PyUnicodeDecodeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};
use treehold::Result;
use treehold::ops::{FileRead, Version};

/// The content of a file, or a part of it.
#[pyclass(frozen, name = "FileRead", module = "treehold")]
pub(crate) struct PyFileRead(pub(crate) FileRead);

class!(PyFileRead);

#[pymethods]
impl PyFileRead {
    #[new]
    #[pyo3(signature = (content, *, version, size_bytes = None, modified_at = None, window = None))]
    fn new(
        content: Content,
        version: u64,
        size_bytes: Option<u64>,
        modified_at: Option<Bound<'_, PyAny>>,
        window: Option<&Bound<'_, PyWindow>>,
    ) -> PyResult<Self> {
        let mut read = FileRead::new(content.0, Version::new(version), modified_at.as_ref().map(timestamp).transpose()?);
        read.size_bytes = size_bytes.unwrap_or(read.size_bytes);
        read.window = window.map(|window| window.get().0);
        Ok(Self(read))
    }

    fn __len__(&self) -> usize {
        self.0.content.len()
    }

    #[getter]
    fn content<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.content)
    }

    /// Returns the content as text. The `errors` are those of `bytes.decode`.
    #[pyo3(signature = (errors = "strict"))]
    fn text<'py>(&self, py: Python<'py>, errors: &str) -> PyResult<Bound<'py, PyString>> {
        match std::str::from_utf8(&self.0.content) {
            Ok(text) => Ok(PyString::new(py, text)),
            Err(error) if errors == "strict" => {
                let error = PyUnicodeDecodeError::new_utf8(py, &self.0.content, error)?;
                Err(PyErr::from_value(error.into_any()))
            }
            Err(_) => Ok(PyBytes::new(py, &self.0.content).call_method1("decode", ("utf-8", errors))?.cast_into()?),
        }
    }

    #[getter]
    fn version(&self) -> u64 {
        self.0.version.number()
    }

    #[getter]
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes
    }

    #[getter]
    fn modified_at(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.0.modified_at.map(|time| datetime(py, time)).transpose()
    }

    #[getter]
    fn modified_at_iso(&self) -> Option<String> {
        self.0.modified_at.map(|time| time.to_string())
    }

    #[getter]
    fn window(&self) -> Option<PyWindow> {
        self.0.window.map(PyWindow)
    }

    fn __repr__(&self) -> String {
        format!("FileRead({} bytes, version={})", self.0.content.len(), self.0.version.number())
    }
}

/// The lines that a read returned.
#[pyclass(frozen, name = "Window", module = "treehold")]
pub(crate) struct PyWindow(treehold::ops::Window);

#[pymethods]
impl PyWindow {
    #[new]
    fn new(offset: usize, lines: usize, total_lines: usize) -> Self {
        Self(treehold::ops::Window { offset, lines, total_lines })
    }

    #[getter]
    fn offset(&self) -> usize {
        self.0.offset
    }

    #[getter]
    fn lines(&self) -> usize {
        self.0.lines
    }

    #[getter]
    fn total_lines(&self) -> usize {
        self.0.total_lines
    }

    #[getter]
    fn next_offset(&self) -> Option<usize> {
        self.0.next_offset()
    }

    fn __repr__(&self) -> String {
        format!("Window(offset={}, lines={}, total_lines={})", self.0.offset, self.0.lines, self.0.total_lines)
    }
}

/// Bytes on their way to Python.
pub(crate) struct Binary(pub(crate) Bytes);

impl ToPython for Binary {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(PyBytes::new(py, &self.0).into_any().unbind())
    }
}

/// Reads of several files: each with its content or its error.
pub(crate) struct Reads(pub(crate) Vec<Result<FileRead>>);

impl ToPython for Reads {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let reads = self.0.into_iter().map(|read| match read {
            Ok(read) => PyFileRead(read).to_python(py),
            Err(error) => Ok(raised(py, error).into_value(py).into_any()),
        });
        Ok(PyList::new(py, reads.collect::<PyResult<Vec<_>>>()?)?.into_any().unbind())
    }
}
