//! The native trees: state, rows of a store, directories, and trees made of others.

use super::{PyBackend, tree_of};
use crate::errors::raised;
use crate::runtime::Held;
use crate::store::{PyStore, data, forked};
use crate::values::{Path, Seconds, Space, invalid, timestamp};
use crate::work::{Work, operations};
use jiff::Timestamp;
use pyo3::prelude::*;
use pyo3::types::PyMapping;
use std::path::PathBuf;
use std::sync::Arc;
use treehold::backend::{HistoryPolicy, IndexKind};
use treehold::ops::Moment;
use treehold::store::Namespace;
use treehold::{
    CompositeBackend, Error, FilesystemBackend, FilesystemOptions, OverlayBackend, StateBackend, Store, StoreBackend, Subtree, SyncMode,
};

/// Files in memory.
#[pyclass(frozen, extends = PyBackend, subclass, name = "StateBackend", module = "treehold")]
pub(crate) struct PyStateBackend;

#[pymethods]
impl PyStateBackend {
    #[new]
    fn new() -> PyClassInitializer<Self> {
        PyClassInitializer::from(PyBackend::of(Arc::new(StateBackend::new()))).add_subclass(Self)
    }
}

/// Files as rows of a store.
#[pyclass(frozen, extends = PyBackend, subclass, name = "StoreBackend", module = "treehold")]
pub(crate) struct PyStoreBackend {
    /// The rows that hold the files.
    rows: Held<(Arc<dyn Store>, Namespace)>,
    /// The tree, if it keeps the past of its files.
    past: Option<Held<StoreBackend>>,
}

impl PyStoreBackend {
    pub(crate) fn rows(&self) -> Option<(Arc<dyn Store>, Namespace)> {
        self.rows.get().cloned()
    }

    /// Returns the tree, if it keeps the past of its files.
    pub(crate) fn past(&self) -> Option<&StoreBackend> {
        self.past.as_ref()?.get()
    }

    fn kept(&self, py: Python<'_>) -> PyResult<StoreBackend> {
        match &self.past {
            Some(past) => past.get().cloned().ok_or_else(|| forked(py, "tree")),
            None => Err(raised(py, Error::unsupported("this tree keeps no past of its files; make it with `history=True`"))),
        }
    }
}

#[pymethods]
impl PyStoreBackend {
    #[new]
    #[pyo3(signature = (
        store, namespace, *, index = None, ttl_seconds = None, file_bytes_max = None, history = false, keep_last = None,
        older_than_seconds = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        store: &PyStore,
        namespace: Space,
        index: Option<String>,
        ttl_seconds: Option<Seconds>,
        file_bytes_max: Option<u64>,
        history: bool,
        keep_last: Option<usize>,
        older_than_seconds: Option<Seconds>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let rows = (store.open(py)?, namespace.0);
        let mut tree = StoreBackend::new(rows.0.clone(), rows.1.clone());
        if let Some(index) = index {
            let kind = IndexKind::ALL.into_iter().find(|kind| kind.name() == index);
            let names = IndexKind::ALL.map(|kind| format!("`{}`", kind.name())).join(" or ");
            tree = tree.with_index(kind.ok_or_else(|| invalid(py, format!("no index is named `{index}`; use {names}")))?);
        }
        if let Some(seconds) = ttl_seconds {
            tree = tree.with_time_to_live(seconds.0);
        }
        if let Some(bytes) = file_bytes_max {
            tree = tree.with_file_bytes_max(bytes);
        }
        let mut policy = HistoryPolicy::new();
        if let Some(count) = keep_last {
            policy = policy.with_keep_last(count);
        }
        if let Some(age) = &older_than_seconds {
            policy = policy.with_older_than(age.0);
        }
        let past = match history {
            true => {
                tree = tree.with_history(policy);
                Some(Held::new(tree.clone()))
            }
            false if keep_last.is_some() || older_than_seconds.is_some() => {
                return Err(invalid(py, "`keep_last` and `older_than_seconds` limit a history; set `history=True`"));
            }
            false => None,
        };
        Ok(PyClassInitializer::from(PyBackend::of(Arc::new(tree))).add_subclass(Self { rows: Held::new(rows), past }))
    }

    /// The tree as it was at a moment.
    fn at(&self, py: Python<'_>, moment: &Bound<'_, PyAny>) -> PyResult<PyBackend> {
        let past = self.kept(py)?.at(moment_of(moment)?).map_err(|error| raised(py, error))?;
        Ok(PyBackend::of(Arc::new(past)))
    }
}

operations! { PyStoreBackend {
    fn log, alog(this, py, path: Path) {
        let tree = this.kept(py)?;
        Ok(Work::new(async move { data(&tree.log(&path.0).await?) }))
    }
} }

/// A directory of this machine.
#[pyclass(frozen, extends = PyBackend, subclass, name = "FilesystemBackend", module = "treehold")]
pub(crate) struct PyFilesystemBackend;

#[pymethods]
impl PyFilesystemBackend {
    #[new]
    #[pyo3(signature = (root, *, create_root = false, cross_mounts = false, sync = None, search_threads = None))]
    fn new(
        py: Python<'_>,
        root: PathBuf,
        create_root: bool,
        cross_mounts: bool,
        sync: Option<&str>,
        search_threads: Option<usize>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let mut options = FilesystemOptions::new().with_create_root(create_root).with_cross_mounts(cross_mounts);
        options = options.with_sync(match sync {
            None | Some("none") => SyncMode::None,
            Some("file") => SyncMode::File,
            Some("full") => SyncMode::Full,
            Some(other) => return Err(invalid(py, format!("no sync mode is named `{other}`; use `none`, `file` or `full`"))),
        });
        if let Some(threads) = search_threads {
            options = options.with_search_threads(threads);
        }
        let tree = py.detach(|| FilesystemBackend::open(root, options)).map_err(|error| raised(py, error))?;
        Ok(PyClassInitializer::from(PyBackend::of(Arc::new(tree))).add_subclass(Self))
    }
}

/// Several trees behind one root. The longest prefix of a path decides.
#[pyclass(frozen, extends = PyBackend, subclass, name = "CompositeBackend", module = "treehold")]
pub(crate) struct PyCompositeBackend {
    routes: Vec<String>,
}

#[pymethods]
impl PyCompositeBackend {
    #[new]
    #[pyo3(signature = (default, routes = None, *, concurrency = None))]
    fn new(
        py: Python<'_>,
        default: &Bound<'_, PyAny>,
        routes: Option<&Bound<'_, PyMapping>>,
        concurrency: Option<usize>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let mut builder = CompositeBackend::builder(tree_of(default)?);
        let mut names = Vec::new();
        let items = routes.map(|routes| routes.items()).transpose()?;
        for item in items.iter().flatten() {
            let (prefix, backend): (String, Bound<'_, PyAny>) = item.extract()?;
            builder = builder.route(&prefix, tree_of(&backend)?).map_err(|error| raised(py, error))?;
            names.push(prefix);
        }
        if let Some(concurrency) = concurrency {
            builder = builder.with_concurrency(concurrency);
        }
        let tree = builder.build().map_err(|error| raised(py, error))?;
        Ok(PyClassInitializer::from(PyBackend::of(Arc::new(tree))).add_subclass(Self { routes: names }))
    }

    #[getter]
    fn routes(&self) -> Vec<String> {
        self.routes.clone()
    }
}

/// A tree that keeps its changes apart from the tree below.
#[pyclass(frozen, extends = PyBackend, subclass, name = "OverlayBackend", module = "treehold")]
pub(crate) struct PyOverlayBackend;

#[pymethods]
impl PyOverlayBackend {
    #[new]
    fn new(lower: &Bound<'_, PyAny>, upper: &Bound<'_, PyAny>) -> PyResult<PyClassInitializer<Self>> {
        let tree = OverlayBackend::new(tree_of(lower)?, tree_of(upper)?);
        Ok(PyClassInitializer::from(PyBackend::of(Arc::new(tree))).add_subclass(Self))
    }
}

/// A part of a tree as a tree of its own.
#[pyclass(frozen, extends = PyBackend, subclass, name = "Subtree", module = "treehold")]
pub(crate) struct PySubtree;

#[pymethods]
impl PySubtree {
    #[new]
    fn new(tree: &Bound<'_, PyAny>, base: Path) -> PyResult<PyClassInitializer<Self>> {
        let tree = Subtree::new(tree_of(tree)?, base.0);
        Ok(PyClassInitializer::from(PyBackend::of(Arc::new(tree))).add_subclass(Self))
    }
}

/// Returns the moment that a `datetime` or a name means.
fn moment_of(moment: &Bound<'_, PyAny>) -> PyResult<Moment> {
    match moment.extract::<String>() {
        Ok(name) => Moment::parse(&name, Timestamp::now()).map_err(|error| raised(moment.py(), error)),
        Err(_) => timestamp(moment).map(Moment::Time),
    }
}
