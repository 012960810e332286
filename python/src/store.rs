//! Rows: the store and its batches.

use crate::json::PyJsonStore;
use crate::runtime::Held;
use crate::values::{Content, Seconds, Space, components, datetime, invalid, timestamp};
use crate::work::{ToPython, Work, class, operations};
use bytes::Bytes;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::sync::Arc;
use std::time::Duration;
use treehold::config::{OpenStoreOptions, open_store};
use treehold::ops::Version;
use treehold::store::{
    Batch, BatchWrite, Condition, Item, JsonStore, Namespace, NamespacePage, NamespacesOptions, Scan, ScanEntry, ScanOptions, Store,
    StoreExt, Watch,
};
use treehold::{Error, Result};

/// A row of a store.
#[pyclass(frozen, name = "Row", module = "treehold")]
pub(crate) struct PyRow(pub(crate) Item);

class!(PyRow);

#[pymethods]
impl PyRow {
    #[getter]
    fn key(&self) -> &str {
        &self.0.key
    }

    #[getter]
    fn meta<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.meta)
    }

    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.value)
    }

    #[getter]
    fn version(&self) -> u64 {
        self.0.version.number()
    }

    #[getter]
    fn created_at(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        datetime(py, self.0.created_at)
    }

    #[getter]
    fn updated_at(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        datetime(py, self.0.modified_at)
    }

    #[getter]
    fn expires_at(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.0.expires_at.map(|time| datetime(py, time)).transpose()
    }

    #[getter]
    fn created_at_us(&self) -> i64 {
        self.0.created_at.as_microsecond()
    }

    #[getter]
    fn updated_at_us(&self) -> i64 {
        self.0.modified_at.as_microsecond()
    }

    #[getter]
    fn expires_at_us(&self) -> Option<i64> {
        self.0.expires_at.map(|time| time.as_microsecond())
    }

    fn __repr__(&self) -> String {
        format!("Row(key={:?}, version={}, {} bytes)", self.0.key, self.0.version.number(), self.0.value.len())
    }
}

/// A page of rows.
#[pyclass(frozen, name = "Page", module = "treehold")]
pub(crate) struct PyPage {
    rows: Vec<Py<PyRow>>,
    groups: Vec<String>,
    next: Option<String>,
}

#[pymethods]
impl PyPage {
    #[getter]
    fn rows(&self, py: Python<'_>) -> Vec<Py<PyRow>> {
        self.rows.iter().map(|row| row.clone_ref(py)).collect()
    }

    #[getter]
    fn groups(&self) -> Vec<String> {
        self.groups.clone()
    }

    #[getter]
    fn next(&self) -> Option<&str> {
        self.next.as_deref()
    }

    fn __len__(&self) -> usize {
        self.rows.len()
    }

    fn __repr__(&self) -> String {
        format!("Page({} rows, {} groups, next={:?})", self.rows.len(), self.groups.len(), self.next)
    }
}

/// A scan, on its way to Python. Rows whose bodies did not fit are read one by one.
struct Scanned(Scan);

impl ToPython for Scanned {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (mut rows, mut groups) = (Vec::with_capacity(self.0.entries.len()), Vec::new());
        for entry in self.0.entries {
            match entry {
                ScanEntry::Item(item) | ScanEntry::LeftOut { item, .. } => rows.push(Py::new(py, PyRow(item))?),
                ScanEntry::Group { name, .. } => groups.push(name),
            }
        }
        Ok(Py::new(py, PyPage { rows, groups, next: self.0.next })?.into_any())
    }
}

impl ToPython for NamespacePage {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let names = self.namespaces.iter().map(|namespace| components(py, namespace)).collect::<PyResult<Vec<_>>>()?;
        Ok((names, self.more).into_pyobject(py)?.into_any().unbind())
    }
}

/// A list of preconditions and writes that apply all or not at all.
#[pyclass(name = "Batch", module = "treehold")]
pub(crate) struct PyBatch(Batch);

#[pymethods]
impl PyBatch {
    #[new]
    fn new() -> Self {
        Self(Batch::new())
    }

    /// Requires a version of a row, its absence (`None`), or its presence (`True`).
    #[pyo3(signature = (namespace, key, version))]
    fn require<'py>(mut slf: PyRefMut<'py, Self>, namespace: Space, key: String, version: Option<Requirement>) -> PyRefMut<'py, Self> {
        let condition = match version {
            None => Condition::Absent,
            Some(Requirement::Present(true)) => Condition::Exists,
            Some(Requirement::Present(false)) => Condition::Absent,
            Some(Requirement::Version(version)) => Condition::Version(Version::new(version)),
        };
        slf.0 = std::mem::take(&mut slf.0).expect(&namespace.0, key, condition);
        slf
    }

    /// Requires that no key of a namespace starts with a prefix.
    fn require_none_beneath<'py>(mut slf: PyRefMut<'py, Self>, namespace: Space, prefix: String) -> PyRefMut<'py, Self> {
        slf.0 = std::mem::take(&mut slf.0).expect(&namespace.0, prefix, Condition::NoneBeneath);
        slf
    }

    /// Requires that nothing was put beneath a prefix after a version.
    fn require_none_beneath_since<'py>(
        mut slf: PyRefMut<'py, Self>,
        namespace: Space,
        prefix: String,
        version: u64,
    ) -> PyRefMut<'py, Self> {
        slf.0 = std::mem::take(&mut slf.0).expect(&namespace.0, prefix, Condition::NoneBeneathSince(Version::new(version)));
        slf
    }

    #[pyo3(signature = (namespace, key, body, *, meta = None, ttl_seconds = None, created_at = None))]
    fn put<'py>(
        mut slf: PyRefMut<'py, Self>,
        namespace: Space,
        key: String,
        body: Content,
        meta: Option<Content>,
        ttl_seconds: Option<Seconds>,
        created_at: Option<Bound<'py, PyAny>>,
    ) -> PyResult<PyRefMut<'py, Self>> {
        slf.0.writes.push(BatchWrite::Put {
            namespace: namespace.0,
            key,
            meta: meta.map_or(Bytes::new(), |meta| meta.0),
            value: body.0,
            time_to_live: ttl_seconds.map(|seconds| seconds.0),
            created_at: created_at.as_ref().map(timestamp).transpose()?,
        });
        Ok(slf)
    }

    #[pyo3(signature = (namespace, body, *, meta = None, ttl_seconds = None))]
    fn append<'py>(
        mut slf: PyRefMut<'py, Self>,
        namespace: Space,
        body: Content,
        meta: Option<Content>,
        ttl_seconds: Option<Seconds>,
    ) -> PyRefMut<'py, Self> {
        let meta = meta.map_or(Bytes::new(), |meta| meta.0);
        let time_to_live = ttl_seconds.map(|seconds| seconds.0);
        slf.0.writes.push(BatchWrite::Append { namespace: namespace.0, meta, value: body.0, time_to_live });
        slf
    }

    #[pyo3(signature = (namespace, key, ttl_seconds = None))]
    fn touch<'py>(mut slf: PyRefMut<'py, Self>, namespace: Space, key: String, ttl_seconds: Option<Seconds>) -> PyRefMut<'py, Self> {
        slf.0 = std::mem::take(&mut slf.0).touch(&namespace.0, key, ttl_seconds.map(|seconds| seconds.0));
        slf
    }

    fn delete<'py>(mut slf: PyRefMut<'py, Self>, namespace: Space, key: String) -> PyRefMut<'py, Self> {
        slf.0 = std::mem::take(&mut slf.0).delete(&namespace.0, key);
        slf
    }

    #[pyo3(signature = (namespace, prefix = String::new()))]
    fn delete_prefix<'py>(mut slf: PyRefMut<'py, Self>, namespace: Space, prefix: String) -> PyRefMut<'py, Self> {
        slf.0 = std::mem::take(&mut slf.0).delete_prefix(&namespace.0, prefix);
        slf
    }

    /// Adds the preconditions and writes of another batch.
    fn extend<'py>(mut slf: PyRefMut<'py, Self>, other: &Bound<'py, PyBatch>) -> PyRefMut<'py, Self> {
        let other = other.borrow().0.clone();
        slf.0.preconditions.extend(other.preconditions);
        slf.0.writes.extend(other.writes);
        slf
    }

    fn __len__(&self) -> usize {
        self.0.writes.len()
    }

    fn __repr__(&self) -> String {
        format!("Batch({} preconditions, {} writes)", self.0.preconditions.len(), self.0.writes.len())
    }
}

impl PyBatch {
    pub(crate) fn batch(&self) -> Batch {
        self.0.clone()
    }
}

/// What a row must be.
#[derive(FromPyObject)]
enum Requirement {
    Present(bool),
    Version(u64),
}

/// Namespaced rows.
#[pyclass(frozen, subclass, name = "Store", module = "treehold")]
pub(crate) struct PyStore {
    store: Mutex<Option<Held<Arc<dyn Store>>>>,
    name: String,
}

class!(PyStore);

/// How to open a store.
fn opened(url: String, directory: Option<std::path::PathBuf>, create: bool) -> Work<PyStore> {
    Work::new(async move {
        let options = OpenStoreOptions::new().with_directory(directory.unwrap_or_default()).with_create(create);
        Ok(PyStore::of(open_store(&url, &options).await?))
    })
}

impl PyStore {
    pub(crate) fn of(store: Arc<dyn Store>) -> Self {
        let name = store.to_string();
        Self { store: Mutex::new(Some(Held::new(store))), name }
    }

    /// Returns the store of a handle, or opens the one that a URL names.
    pub(crate) fn named(py: Python<'_>, store: &Bound<'_, PyAny>) -> PyResult<Arc<dyn Store>> {
        match store.cast::<Self>() {
            Ok(store) => store.get().open(py),
            Err(_) => {
                let url: String = store.extract()?;
                crate::runtime::block(py, async move { open_store(&url, &OpenStoreOptions::new().with_create(true)).await })
            }
        }
    }

    /// Returns a view of the store as JSON values.
    pub(crate) fn json_view(&self, py: Python<'_>, time_to_live: Option<Duration>, refreshes: bool) -> PyResult<JsonStore> {
        Ok(JsonStore::new(self.open(py)?).with_time_to_live(time_to_live).with_refresh_on_read(refreshes))
    }

    /// Returns the store for a call.
    pub(crate) fn open(&self, py: Python<'_>) -> PyResult<Arc<dyn Store>> {
        match &*self.store.lock() {
            Some(store) => store.get().cloned().ok_or_else(|| forked(py, "store")),
            None => Err(invalid(py, "the store is closed; open it again")),
        }
    }
}

/// Makes the error for a handle that another process opened.
pub(crate) fn forked(py: Python<'_>, what: &str) -> PyErr {
    let message = format!("this process was forked after the {what} was opened; open it again in the child");
    crate::errors::raised(py, Error::unsupported(message))
}

fn scan_options(
    prefix: String,
    delimiter: Option<char>,
    after: Option<String>,
    limit: usize,
    with_values: bool,
    bytes_max: Option<usize>,
) -> ScanOptions {
    let mut options = ScanOptions::new().with_prefix(prefix).with_limit(limit).with_values(with_values);
    (options.delimiter, options.start_after) = (delimiter, after);
    if let Some(bytes_max) = bytes_max {
        options.bytes_max = bytes_max;
    }
    options
}

/// Scans, and reads the bodies that did not fit into the page.
async fn scanned(store: Arc<dyn Store>, space: Namespace, options: ScanOptions) -> Result<Scanned> {
    let mut scan = store.scan(&space, options.clone()).await?;
    if options.with_values {
        for entry in &mut scan.entries {
            if let ScanEntry::LeftOut { item, .. } = entry
                && let Some(whole) = store.get(&space, &item.key).await?
            {
                *entry = ScanEntry::Item(whole);
            }
        }
    }
    Ok(Scanned(scan))
}

fn read(store: Arc<dyn Store>, space: Space, key: String) -> Work<Option<PyRow>> {
    Work::new(async move { Ok(store.get(&space.0, &key).await?.map(PyRow)) })
}

/// Rows in the order of their keys, with `None` for those that are absent.
struct Rows(Vec<Option<Item>>);

impl ToPython for Rows {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let rows = self.0.into_iter().map(|item| item.map(PyRow).to_python(py)).collect::<PyResult<Vec<_>>>()?;
        Ok(rows.into_pyobject(py)?.into_any().unbind())
    }
}

fn read_many(store: Arc<dyn Store>, space: Space, keys: Vec<String>, with_values: bool) -> Work<Rows> {
    Work::new(async move {
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        Ok(Rows(store.get_many(&space.0, &keys, with_values).await?))
    })
}

fn commit(store: Arc<dyn Store>, batch: Batch) -> Work<Vec<u64>> {
    Work::new(async move { Ok(store.commit(batch).await?.into_iter().map(Version::number).collect()) })
}

fn names(store: Arc<dyn Store>, prefix: Option<Space>, after: Option<Space>, limit: usize) -> Work<NamespacePage> {
    let options = NamespacesOptions::new().with_limit(limit);
    let mut options = prefix.iter().fold(options, |options, space| options.with_ancestor(&space.0));
    options.start_after = after.map(|space| space.0);
    Work::new(async move { store.namespaces(options).await })
}

fn current(store: Arc<dyn Store>, space: Space) -> Work<u64> {
    Work::new(async move { Ok(store.current_version(&space.0.partition()).await?.number()) })
}

fn sweep(store: Arc<dyn Store>, limit: usize) -> Work<usize> {
    Work::new(async move { store.sweep(limit).await })
}

/// A serialized value.
pub(crate) struct Data(pub(crate) serde_json::Value);

impl ToPython for Data {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        crate::values::from_json(py, &self.0).map(Bound::unbind)
    }
}

/// Serializes a result.
pub(crate) fn data<T: serde::Serialize>(value: &T) -> Result<Data> {
    serde_json::to_value(value)
        .map(Data)
        .map_err(|error| Error::new(treehold::ErrorKind::Internal, "a result cannot be written as JSON").with_source(error))
}

fn stats(store: Arc<dyn Store>) -> Work<Data> {
    Work::new(async move { data(&store.stats().await?) })
}

fn describe(store: Arc<dyn Store>) -> Work<Data> {
    Work::new(async move { data(&store.describe().await?) })
}

fn watch(store: Arc<dyn Store>, space: Space) -> Work<PyWatch> {
    Work::new(async move {
        let watch = Held::new(Arc::new(tokio::sync::Mutex::new(store.watch(&space.0).await?)));
        Ok(PyWatch { watch, _store: Held::new(store) })
    })
}

#[pymethods]
impl PyStore {
    /// Opens a store by its URL.
    #[staticmethod]
    #[pyo3(name = "open", signature = (url, *, directory = None, create = true))]
    fn open_url(py: Python<'_>, url: String, directory: Option<std::path::PathBuf>, create: bool) -> PyResult<Py<PyAny>> {
        opened(url, directory, create).wait(py)
    }

    #[staticmethod]
    #[pyo3(signature = (url, *, directory = None, create = true))]
    fn aopen(py: Python<'_>, url: String, directory: Option<std::path::PathBuf>, create: bool) -> PyResult<Bound<'_, PyAny>> {
        opened(url, directory, create).start(py)
    }

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    #[getter]
    fn is_shared(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.open(py)?.capabilities().shared)
    }

    #[getter]
    fn durability(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.open(py)?.capabilities().durability.to_string())
    }

    #[pyo3(signature = (*, ttl_seconds = None, refresh_on_read = true))]
    fn json(&self, py: Python<'_>, ttl_seconds: Option<Seconds>, refresh_on_read: bool) -> PyResult<PyJsonStore> {
        Ok(PyJsonStore::of(self.json_view(py, ttl_seconds.map(|seconds| seconds.0), refresh_on_read)?))
    }

    /// Closes the handle. Backends and workspaces on the store keep it open until they are gone.
    fn close(&self) {
        let store = self.store.lock().take();
        drop(store);
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) -> bool {
        self.close();
        false
    }

    fn __aenter__<'py>(slf: Py<Self>, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Work::new(async move { Ok(Itself(slf.into_any())) }).start(py)
    }

    #[pyo3(signature = (*_exception))]
    fn __aexit__<'py>(&self, py: Python<'py>, _exception: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        self.close();
        Work::new(async move { Ok(()) }).start(py)
    }

    fn __repr__(&self) -> String {
        format!("Store({:?})", self.name)
    }
}

operations! { PyStore {
    fn get, aget(this, py, namespace: Space, key: String) {
        Ok(read(this.open(py)?, namespace, key))
    }

    #[pyo3(signature = (namespace, keys, *, with_values = true))]
    fn get_many, aget_many(this, py, namespace: Space, keys: Vec<String>, with_values: bool) {
        Ok(read_many(this.open(py)?, namespace, keys, with_values))
    }

    #[pyo3(signature = (namespace, *, prefix = String::new(), after = None, limit = 1000, with_values = true, delimiter = None, bytes_max = None))]
    fn scan, ascan(
        this, py, namespace: Space, prefix: String, after: Option<String>, limit: usize, with_values: bool, delimiter: Option<char>,
        bytes_max: Option<usize>
    ) {
        let options = scan_options(prefix, delimiter, after, limit, with_values, bytes_max);
        Ok(Work::new(scanned(this.open(py)?, namespace.0, options)))
    }

    #[pyo3(signature = (*, prefix = None, after = None, limit = 1000))]
    fn namespaces, anamespaces(this, py, prefix: Option<Space>, after: Option<Space>, limit: usize) {
        Ok(names(this.open(py)?, prefix, after, limit))
    }

    fn commit, acommit(this, py, batch: &PyBatch) {
        Ok(commit(this.open(py)?, batch.batch()))
    }

    fn current_version, acurrent_version(this, py, namespace: Space) {
        Ok(current(this.open(py)?, namespace))
    }

    #[pyo3(signature = (limit = 1000))]
    fn sweep, asweep(this, py, limit: usize) {
        Ok(sweep(this.open(py)?, limit))
    }

    fn stats, astats(this, py) {
        Ok(stats(this.open(py)?))
    }

    fn describe, adescribe(this, py) {
        Ok(describe(this.open(py)?))
    }

    fn watch, awatch(this, py, namespace: Space) {
        Ok(watch(this.open(py)?, namespace))
    }
} }

/// The object that an asynchronous `with` names.
pub(crate) struct Itself(pub(crate) Py<PyAny>);

impl ToPython for Itself {
    fn to_python(self, _py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.0)
    }
}

/// A watch of one namespace.
#[pyclass(frozen, name = "Watch", module = "treehold")]
pub(crate) struct PyWatch {
    watch: Held<Arc<tokio::sync::Mutex<Watch>>>,
    /// A watch of a store that is closed reports nothing more.
    _store: Held<Arc<dyn Store>>,
}

class!(PyWatch);

impl PyWatch {
    fn next(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<Work<bool>> {
        let watch = self.watch.get().cloned().ok_or_else(|| forked(py, "store"))?;
        Ok(Work::new(async move {
            let changed = async { watch.lock().await.changed().await.map(|_| true) };
            match timeout {
                Some(timeout) => tokio::time::timeout(timeout, changed).await.unwrap_or(Ok(false)),
                None => changed.await,
            }
        }))
    }
}

#[pymethods]
impl PyWatch {
    fn __aiter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __anext__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.next(py, None)?.start(py)
    }
}

operations! { PyWatch {
    /// Waits for a change. Returns whether there was one before the timeout.
    #[pyo3(signature = (timeout_seconds = None))]
    fn changed, achanged(this, py, timeout_seconds: Option<Seconds>) {
        this.next(py, timeout_seconds.map(|seconds| seconds.0))
    }
} }
