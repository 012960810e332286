//! The native part of the Python package `treehold`: parses arguments, calls the library, converts results.
//!
//! `runtime` runs futures and lets Python wait for them, `work` turns one operation into a synchronous and an asynchronous method,
//! `values` converts arguments. The other modules are the classes. The package `treehold` (`python/treehold`) has the documentation of
//! every class and function in its stub `_native.pyi`.

mod backend;
mod child;
mod errors;
mod feed;
mod json;
mod layers;
mod results;
mod runtime;
mod session;
mod store;
mod traces;
mod values;
mod work;
mod workspace;

use pyo3::prelude::*;

/// The module `treehold._native`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<store::PyStore>()?;
    module.add_class::<store::PyBatch>()?;
    module.add_class::<store::PyRow>()?;
    module.add_class::<store::PyPage>()?;
    module.add_class::<store::PyWatch>()?;
    results::register(module)?;
    json::register(module)?;
    feed::register(module)?;
    backend::register(module)?;
    workspace::register(module)?;
    session::register(module)?;
    traces::register(module)?;
    let leave = wrap_pyfunction!(runtime::leave, module)?;
    module.py().import("atexit")?.call_method1("register", (leave,))?;
    module.add_function(wrap_pyfunction!(main, module)?)
}

/// Runs the command line with the arguments of a program, and returns its exit code.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<std::ffi::OsString>) -> u8 {
    py.detach(|| treehold::cli::run_with(treehold::config::Registry::builtin(), arguments))
}
