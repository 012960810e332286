//! Traces: the classes of `treehold.traces`.
//!
//! `values` converts between the library's values and the data classes, which are written in Python. `store` is the contract of a store of
//! traces, `places` its implementations, and `runs` runs agents that are written in Python.

mod places;
mod runs;
mod store;
mod values;

pub(crate) use runs::PyAgentTool;

use pyo3::prelude::*;

/// Adds the classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<store::PyTraceStore>()?;
    module.add_class::<store::PyTraceWatch>()?;
    module.add_class::<places::PyPeers>()?;
    module.add_class::<places::PyDatabaseTraceStore>()?;
    module.add_class::<places::PyRemoteTraceStore>()?;
    module.add_class::<places::PyHybridTraceStore>()?;
    module.add_class::<places::PyCachedRemoteStore>()?;
    module.add_class::<runs::PyTraceRuns>()?;
    module.add_class::<runs::PyRunContext>()?;
    module.add_class::<runs::PyAgentTool>()?;
    module.add_function(wrap_pyfunction!(values::parse_trace_id, module)?)
}
