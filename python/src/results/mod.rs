//! Results of operations on trees.
//!
//! Each kind of result is a file. The failures and cursors that several of them have are here.

mod changed;
mod entry;
mod grep;
mod listing;
mod read;
mod search;

pub(crate) use entry::PyEntry;
pub(crate) use listing::Listed;
pub(crate) use read::{Binary, PyFileRead, Reads};

use crate::errors::raised;
use crate::work::class;
use pyo3::prelude::*;
use treehold::Error;
use treehold::ops::{Failure, Truncation};

/// Adds the classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyEntry>()?;
    module.add_class::<PyFileRead>()?;
    module.add_class::<read::PyWindow>()?;
    module.add_class::<PyFailure>()?;
    module.add_class::<listing::PyListing>()?;
    module.add_class::<listing::PyTree>()?;
    module.add_class::<grep::PyGrepLine>()?;
    module.add_class::<grep::PyGrepFile>()?;
    module.add_class::<grep::PyGrepResult>()?;
    module.add_class::<search::PySearchHit>()?;
    module.add_class::<search::PySearchResult>()?;
    module.add_class::<changed::PyChanged>()
}

/// A part of a tree that could not be read.
#[pyclass(frozen, name = "Failure", module = "treehold")]
pub(crate) struct PyFailure(Failure);

class!(PyFailure);

#[pymethods]
impl PyFailure {
    #[getter]
    fn path(&self) -> &str {
        self.0.path.as_str()
    }

    #[getter]
    fn code(&self) -> &str {
        &self.0.error.code
    }

    #[getter]
    fn message(&self) -> &str {
        &self.0.error.message
    }

    /// Returns the failure as an exception.
    fn error(&self, py: Python<'_>) -> Py<PyAny> {
        raised(py, Error::from(&self.0.error).at(&self.0.path)).into_value(py).into_any()
    }

    fn __repr__(&self) -> String {
        format!("Failure({:?}, code={:?})", self.0.path.as_str(), self.0.error.code)
    }
}

/// Returns where to continue a result that is not complete.
fn cursor(truncated: &Option<Truncation>) -> Option<&str> {
    truncated.as_ref().map(|truncation| truncation.cursor.as_str())
}
