//! What searches of lines find.

use super::{PyFailure, cursor};
use crate::work::{ToPython, class};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use treehold::ops::{GrepFile, GrepLine, GrepResult};

/// A line of a file that a search found, or a line beside it.
#[pyclass(frozen, name = "GrepLine", module = "treehold")]
pub(crate) struct PyGrepLine(GrepLine);

#[pymethods]
impl PyGrepLine {
    #[getter]
    fn line(&self) -> usize {
        self.0.line
    }

    #[getter]
    fn byte_offset(&self) -> u64 {
        self.0.byte_offset
    }

    #[getter]
    fn text(&self) -> String {
        self.0.text_lossy().into_owned()
    }

    #[getter]
    fn content<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.text)
    }

    #[getter]
    fn ranges(&self) -> Vec<(usize, usize)> {
        self.0.ranges.iter().map(|range| (range.start, range.end)).collect()
    }

    #[getter]
    fn is_match(&self) -> bool {
        self.0.is_match
    }

    fn __repr__(&self) -> String {
        format!("GrepLine({}, {:?}, is_match={})", self.0.line, self.0.text_lossy(), self.0.is_match)
    }
}

/// A file with matches.
#[pyclass(frozen, name = "GrepFile", module = "treehold")]
pub(crate) struct PyGrepFile(GrepFile);

class!(PyGrepFile);

#[pymethods]
impl PyGrepFile {
    #[getter]
    fn path(&self) -> &str {
        self.0.path.as_str()
    }

    #[getter]
    fn count(&self) -> usize {
        self.0.count
    }

    #[getter]
    fn lines(&self) -> Vec<PyGrepLine> {
        self.0.lines.iter().cloned().map(PyGrepLine).collect()
    }

    fn __repr__(&self) -> String {
        format!("GrepFile({:?}, count={})", self.0.path.as_str(), self.0.count)
    }
}

/// What a search of lines found.
#[pyclass(frozen, name = "GrepResult", module = "treehold")]
pub(crate) struct PyGrepResult(GrepResult);

#[pymethods]
impl PyGrepResult {
    #[getter]
    fn files(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.0.files.iter().cloned().map(PyGrepFile).collect::<Vec<_>>().to_python(py)
    }

    /// The matching lines of all files, as (path, line, text).
    #[getter]
    fn matches(&self) -> Vec<(String, usize, String)> {
        let files = self.0.files.iter();
        let lines = files.flat_map(|file| file.lines.iter().filter(|line| line.is_match).map(move |line| (file, line)));
        lines.map(|(file, line)| (file.path.as_str().to_owned(), line.line, line.text_lossy().into_owned())).collect()
    }

    #[getter]
    fn files_searched(&self) -> usize {
        self.0.files_searched
    }

    #[getter]
    fn files_binary(&self) -> usize {
        self.0.files_binary
    }

    #[getter]
    fn files_too_large(&self) -> usize {
        self.0.files_too_large
    }

    #[getter]
    fn next(&self) -> Option<&str> {
        cursor(&self.0.truncated)
    }

    #[getter]
    fn failures(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.0.failures.iter().cloned().map(PyFailure).collect::<Vec<_>>().to_python(py)
    }

    fn __len__(&self) -> usize {
        self.0.matches()
    }

    fn __repr__(&self) -> String {
        format!("GrepResult({} files, {} matches, next={:?})", self.0.files.len(), self.0.matches(), cursor(&self.0.truncated))
    }
}

impl ToPython for GrepResult {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(Py::new(py, PyGrepResult(self))?.into_any())
    }
}
