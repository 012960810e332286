//! Trees: the base class, the tiers and the composite.
//!
//! `reads` and `changes` are the operations of the base class, and `tiers` its native subclasses.

mod changes;
mod reads;
mod tiers;

pub(crate) use tiers::PyStoreBackend;

use crate::layers;
use crate::runtime::Held;
use crate::store::forked;
use pyo3::exceptions::{PyNotImplementedError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::Arc;
use treehold::Backend;
use treehold::ops::Capabilities;

/// A file tree. Native tiers, layers and composites are subclasses.
#[pyclass(frozen, subclass, name = "Backend", module = "treehold")]
pub(crate) struct PyBackend {
    /// None in an instance of a class that is written in Python.
    tree: Option<Held<Arc<dyn Backend>>>,
}

impl PyBackend {
    pub(crate) fn of(tree: Arc<dyn Backend>) -> Self {
        Self { tree: Some(Held::new(tree)) }
    }

    /// Returns the tree for a call.
    pub(crate) fn opened(&self, py: Python<'_>) -> PyResult<Arc<dyn Backend>> {
        match &self.tree {
            Some(tree) => tree.get().cloned().ok_or_else(|| forked(py, "tree")),
            None => Err(PyNotImplementedError::new_err("the backend does not implement this operation")),
        }
    }
}

#[pymethods]
impl PyBackend {
    /// A subclass in Python overrides the operations that it has.
    #[new]
    #[pyo3(signature = (*_arguments, **_keywords))]
    fn new(_arguments: &Bound<'_, PyTuple>, _keywords: Option<&Bound<'_, PyDict>>) -> Self {
        Self { tree: None }
    }

    /// What the tree offers.
    #[getter]
    fn capabilities(slf: &Bound<'_, Self>) -> PyResult<PyCapabilities> {
        Ok(PyCapabilities(tree_of(slf.as_any())?.capabilities()))
    }

    fn __str__(&self) -> String {
        self.tree.as_ref().and_then(Held::get).map_or_else(|| "Backend".to_owned(), ToString::to_string)
    }

    fn __repr__(&self) -> String {
        format!("<{}>", self.__str__())
    }
}

/// What a tree offers.
#[pyclass(frozen, name = "Capabilities", module = "treehold")]
pub(crate) struct PyCapabilities(Capabilities);

#[pymethods]
impl PyCapabilities {
    #[getter]
    fn atomic_batch(&self) -> bool {
        self.0.atomic_batch
    }

    #[getter]
    fn writable(&self) -> bool {
        self.0.writable
    }

    #[getter]
    fn durability(&self) -> String {
        self.0.durability.to_string()
    }

    #[getter]
    fn file_bytes_max(&self) -> Option<u64> {
        self.0.file_bytes_max
    }

    #[getter]
    fn symlinks(&self) -> bool {
        self.0.symlinks
    }

    #[getter]
    fn indexed(&self) -> bool {
        self.0.indexed
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// Returns the tree of a Python object.
pub(crate) fn tree_of(object: &Bound<'_, PyAny>) -> PyResult<Arc<dyn Backend>> {
    let py = object.py();
    let backend =
        object.cast::<PyBackend>().map_err(|_| PyTypeError::new_err(format!("`{}` is no treehold.Backend", object.get_type())))?;
    match &backend.get().tree {
        Some(_) => backend.get().opened(py),
        None => Ok(Arc::new(crate::child::PythonBackend::new(object.clone().unbind()))),
    }
}

/// Adds the classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyBackend>()?;
    module.add_class::<tiers::PyStateBackend>()?;
    module.add_class::<PyStoreBackend>()?;
    module.add_class::<tiers::PyFilesystemBackend>()?;
    module.add_class::<tiers::PyCompositeBackend>()?;
    module.add_class::<changes::PyChange>()?;
    module.add_class::<tiers::PyOverlayBackend>()?;
    module.add_class::<tiers::PySubtree>()?;
    module.add_class::<PyCapabilities>()?;
    layers::register(module)?;
    module.add_function(wrap_pyfunction!(changes::edit_text, module)?)
}
