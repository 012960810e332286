//! What ranked searches find.

use super::{PyFailure, cursor};
use crate::values::datetime;
use crate::work::{ToPython, class};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use treehold::ops::{SearchHit, SearchResult};

/// A file that a ranked search found.
#[pyclass(frozen, name = "SearchHit", module = "treehold")]
pub(crate) struct PySearchHit(SearchHit);

class!(PySearchHit);

#[pymethods]
impl PySearchHit {
    #[getter]
    fn modified_at(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.0.modified_at.map(|time| datetime(py, time)).transpose()
    }

    #[getter]
    fn path(&self) -> &str {
        self.0.path.as_str()
    }

    #[getter]
    fn score(&self) -> f64 {
        self.0.score
    }

    #[getter]
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes
    }

    #[getter]
    fn version(&self) -> u64 {
        self.0.version.number()
    }

    /// The best lines, as (line, text).
    #[getter]
    fn snippets(&self) -> Vec<(usize, String)> {
        self.0.snippets.iter().map(|snippet| (snippet.line, snippet.text.clone())).collect()
    }

    fn __repr__(&self) -> String {
        format!("SearchHit({:?}, score={:.3})", self.0.path.as_str(), self.0.score)
    }
}

/// What a ranked search found.
#[pyclass(frozen, name = "SearchResult", module = "treehold")]
pub(crate) struct PySearchResult(SearchResult);

#[pymethods]
impl PySearchResult {
    #[getter]
    fn hits(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.0.hits.iter().cloned().map(PySearchHit).collect::<Vec<_>>().to_python(py)
    }

    #[getter]
    fn words(&self) -> Vec<String> {
        self.0.words.clone()
    }

    #[getter]
    fn near(&self) -> BTreeMap<String, Vec<String>> {
        self.0.near.iter().map(|near| (near.spelled.clone(), near.found.clone())).collect()
    }

    #[getter]
    fn files_searched(&self) -> u64 {
        self.0.corpus.files
    }

    #[getter]
    fn is_near_omitted(&self) -> bool {
        self.0.is_near_omitted
    }

    #[getter]
    fn failures_of_meaning(&self) -> usize {
        self.0.failures_of_meaning
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
        self.0.hits.len()
    }
}

impl ToPython for SearchResult {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(Py::new(py, PySearchResult(self))?.into_any())
    }
}
