//! What changes did.

use crate::work::ToPython;
use pyo3::prelude::*;
use pyo3::types::PyList;
use treehold::ops::Changed;

/// What a change did.
#[pyclass(frozen, name = "Changed", module = "treehold")]
pub(crate) struct PyChanged(Changed);

#[pymethods]
impl PyChanged {
    #[getter]
    fn operation(&self) -> &'static str {
        self.0.operation.name()
    }

    #[getter]
    fn path(&self) -> &str {
        self.0.path.as_str()
    }

    #[getter]
    fn version(&self) -> Option<u64> {
        self.0.version.map(|version| version.number())
    }

    #[getter]
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes
    }

    #[getter]
    fn created(&self) -> bool {
        self.0.created
    }

    #[getter]
    fn replacements(&self) -> usize {
        self.0.replacements
    }

    #[getter]
    fn entries(&self) -> usize {
        self.0.entries
    }

    fn __repr__(&self) -> String {
        format!("Changed({:?}, {:?}, version={:?})", self.0.operation.name(), self.0.path.as_str(), self.version())
    }
}

impl ToPython for Changed {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(Py::new(py, PyChanged(self))?.into_any())
    }
}

impl ToPython for Vec<Changed> {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let changed = self.into_iter().map(|changed| Py::new(py, PyChanged(changed))).collect::<PyResult<Vec<_>>>()?;
        Ok(PyList::new(py, changed)?.into_any().unbind())
    }
}
