//! Lists of entries: of a directory, of a glob, and of all that is beneath a directory.

use super::{PyEntry, PyFailure, cursor};
use crate::work::ToPython;
use pyo3::exceptions::PyIndexError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use treehold::backend::Tree;
use treehold::ops::{Entry, Failure, GlobResult, Listing, Truncation};

/// A list of entries.
#[pyclass(frozen, name = "Listing", module = "treehold")]
pub(crate) struct PyListing {
    entries: Py<PyList>,
    truncated: Option<Truncation>,
    failures: Py<PyList>,
}

#[pymethods]
impl PyListing {
    #[getter]
    fn entries(&self, py: Python<'_>) -> Py<PyList> {
        self.entries.clone_ref(py)
    }

    /// Where to continue if there is more.
    #[getter]
    fn next(&self) -> Option<&str> {
        cursor(&self.truncated)
    }

    #[getter]
    fn failures(&self, py: Python<'_>) -> Py<PyList> {
        self.failures.clone_ref(py)
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.entries.bind(py).len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.entries.bind(py).try_iter()?.into_any())
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Bound<'py, PyAny>> {
        let entries = self.entries.bind(py);
        let at = if index < 0 { entries.len().checked_add_signed(index) } else { usize::try_from(index).ok() };
        at.filter(|at| *at < entries.len()).map_or_else(|| Err(PyIndexError::new_err("no such entry")), |at| entries.get_item(at))
    }

    fn infos(&self, py: Python<'_>) -> PyResult<Py<PyList>> {
        let mut infos = Vec::new();
        for entry in self.entries.bind(py).iter() {
            let entry = &entry.cast::<PyEntry>()?.get().entry;
            let is_dir = entry.is_directory();
            let path = if is_dir { format!("{}/", entry.path) } else { entry.path.to_string() };
            infos.push((path, is_dir, entry.size_bytes, entry.modified_at));
        }
        infos.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        let dicts = PyList::empty(py);
        for (path, is_dir, size_bytes, modified_at) in infos {
            let dict = PyDict::new(py);
            dict.set_item(intern!(py, "path"), path)?;
            dict.set_item(intern!(py, "is_dir"), is_dir)?;
            dict.set_item(intern!(py, "size"), if is_dir { 0 } else { size_bytes })?;
            dict.set_item(intern!(py, "modified_at"), modified_at.map(|time| time.to_string()).unwrap_or_default())?;
            dicts.append(dict)?;
        }
        Ok(dicts.unbind())
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("Listing({} entries, next={:?})", self.entries.bind(py).len(), self.next())
    }
}

fn listing(
    py: Python<'_>,
    entries: impl IntoIterator<Item = PyEntry>,
    truncated: Option<Truncation>,
    failures: Vec<Failure>,
) -> PyResult<Py<PyAny>> {
    let entries = entries.into_iter().map(|entry| Py::new(py, entry)).collect::<PyResult<Vec<_>>>()?;
    let failures = failures.into_iter().map(|failure| Py::new(py, PyFailure(failure))).collect::<PyResult<Vec<_>>>()?;
    let (entries, failures) = (PyList::new(py, entries)?.unbind(), PyList::new(py, failures)?.unbind());
    Ok(Py::new(py, PyListing { entries, truncated, failures })?.into_any())
}

/// A listing, and what its links lead to if that was asked for.
pub(crate) struct Listed {
    pub(crate) listing: Listing,
    pub(crate) targets: Vec<Option<Entry>>,
}

impl ToPython for Listed {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let targets = self.targets.into_iter().chain(std::iter::repeat(None));
        let entries = self.listing.entries.into_iter().zip(targets).map(|(entry, target)| PyEntry { entry, target });
        listing(py, entries, self.listing.truncated, self.listing.failures)
    }
}

impl ToPython for GlobResult {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        listing(py, self.entries.into_iter().map(PyEntry::from), self.truncated, self.failures)
    }
}

/// A directory with what is beneath it.
#[pyclass(frozen, name = "Tree", module = "treehold")]
pub(crate) struct PyTree(Tree);

#[pymethods]
impl PyTree {
    #[getter]
    fn entries(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.0.entries.iter().cloned().map(PyEntry::from).collect::<Vec<_>>().to_python(py)
    }

    #[getter]
    fn truncated(&self) -> bool {
        self.0.truncated
    }

    #[getter]
    fn failures(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.0.failures.iter().cloned().map(PyFailure).collect::<Vec<_>>().to_python(py)
    }

    fn __repr__(&self) -> String {
        format!("Tree({} entries, truncated={})", self.0.entries.len(), self.0.truncated)
    }
}

impl ToPython for Tree {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(Py::new(py, PyTree(self))?.into_any())
    }
}
