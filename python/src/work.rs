//! One call of the library: a future, and the Python value of its result.
//!
//! Every operation is written once, as [`Work`]. Its synchronous method waits for it and its asynchronous one starts it; the macro
//! [`operations`] writes both.

use crate::runtime::{Call, block};
use futures::FutureExt;
use futures::future::BoxFuture;
use pyo3::prelude::*;
use treehold::Result;

/// A result that can be handed to Python.
pub(crate) trait ToPython: Send + 'static {
    /// Makes the Python value.
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>>;
}

/// A call that has not begun.
pub(crate) struct Work<T>(BoxFuture<'static, Result<T>>);

impl<T: ToPython> Work<T> {
    pub(crate) fn new(future: impl Future<Output = Result<T>> + Send + 'static) -> Self {
        Self(future.boxed())
    }

    /// Waits for the result on the calling thread.
    pub(crate) fn wait(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        block(py, self.0)?.to_python(py)
    }

    /// Returns the call as a coroutine.
    pub(crate) fn start<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(Bound::new(py, Call::new(self.0))?.into_any())
    }
}

impl ToPython for () {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(py.None())
    }
}

macro_rules! plain {
    ($($type:ty),+) => {
        $(impl ToPython for $type {
            fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
                Ok(self.into_pyobject(py)?.to_owned().into_any().unbind())
            }
        })+
    };
}

plain!(bool, u64, usize, String, Vec<u64>, Vec<String>, Option<u64>, Option<String>);

/// A value that is a class of this module.
macro_rules! class {
    ($($type:ty),+) => {
        $(impl $crate::work::ToPython for $type {
            fn to_python(self, py: pyo3::Python<'_>) -> pyo3::PyResult<pyo3::Py<pyo3::PyAny>> {
                Ok(pyo3::Py::new(py, self)?.into_any())
            }
        }

        impl $crate::work::ToPython for Option<$type> {
            fn to_python(self, py: pyo3::Python<'_>) -> pyo3::PyResult<pyo3::Py<pyo3::PyAny>> {
                self.map_or_else(|| Ok(py.None()), |value| value.to_python(py))
            }
        }

        impl $crate::work::ToPython for Vec<$type> {
            fn to_python(self, py: pyo3::Python<'_>) -> pyo3::PyResult<pyo3::Py<pyo3::PyAny>> {
                let values = self.into_iter().map(|value| value.to_python(py)).collect::<pyo3::PyResult<Vec<_>>>()?;
                Ok(pyo3::types::PyList::new(py, values)?.into_any().unbind())
            }
        })+
    };
}

pub(crate) use class;

/// Writes the synchronous method and the asynchronous twin of each operation: `fn read, aread(this, py, path: Path) { work }`. The block
/// makes the [`Work`]; the attributes and documentation are those of both. A last `**name` takes all other keywords.
macro_rules! operations {
    ($class:ident {
        $($(#[$attribute:meta])* fn $name:ident, $twin:ident($this:ident, $py:ident $(, $argument:ident: $type:ty)* $(, **$keywords:ident)?) $work:block)+
    }) => {
        #[pyo3::pymethods]
        #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
        impl $class {
            $(
                $(#[$attribute])*
                fn $name(
                    &self,
                    $py: pyo3::Python<'_>,
                    $($argument: $type,)*
                    $($keywords: Option<&pyo3::Bound<'_, pyo3::types::PyDict>>,)?
                ) -> pyo3::PyResult<pyo3::Py<pyo3::PyAny>> {
                    let $this = self;
                    let work: pyo3::PyResult<$crate::work::Work<_>> = $work;
                    work?.wait($py)
                }

                $(#[$attribute])*
                fn $twin<'py>(
                    &self,
                    $py: pyo3::Python<'py>,
                    $($argument: $type,)*
                    $($keywords: Option<&pyo3::Bound<'_, pyo3::types::PyDict>>,)?
                ) -> pyo3::PyResult<pyo3::Bound<'py, pyo3::PyAny>> {
                    let $this = self;
                    let work: pyo3::PyResult<$crate::work::Work<_>> = $work;
                    work?.start($py)
                }
            )+
        }
    };
}

pub(crate) use operations;
