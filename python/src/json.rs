//! JSON values in a store.

use crate::runtime::Held;
use crate::store::{PyRow, forked};
use crate::values::{Content, Seconds, Space, components, datetime, from_json, to_json};
use crate::work::{ToPython, Work, class, operations};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use serde_json::Value;
use treehold::ops::Version;
use treehold::store::{
    Condition, Item, JsonCursor, JsonFilter, JsonItem, JsonNamespacePage, JsonPage, JsonSearch, JsonStore, Namespace, NamespaceSearch,
};

/// JSON values in a store, by namespace and key.
#[pyclass(frozen, name = "JsonStore", module = "treehold")]
pub(crate) struct PyJsonStore(Held<JsonStore>);

impl PyJsonStore {
    pub(crate) fn of(store: JsonStore) -> Self {
        Self(Held::new(store))
    }

    fn store(&self, py: Python<'_>) -> PyResult<JsonStore> {
        self.0.get().cloned().ok_or_else(|| forked(py, "store"))
    }
}

/// What an item must be before it changes: a version, absent (`None`), or anything (`True`).
#[derive(FromPyObject)]
enum Requirement {
    Anything(bool),
    Version(u64),
}

fn condition(requirement: Option<Requirement>) -> Option<Condition> {
    match requirement {
        None | Some(Requirement::Anything(false)) => Some(Condition::Absent),
        Some(Requirement::Anything(true)) => None,
        Some(Requirement::Version(version)) => Some(Condition::Version(Version::new(version))),
    }
}

fn anything() -> Option<Requirement> {
    Some(Requirement::Anything(true))
}

/// An item of a namespace.
#[pyclass(frozen, name = "JsonItem", module = "treehold")]
pub(crate) struct PyJsonItem {
    namespace: Namespace,
    item: JsonItem<Value>,
}

class!(PyJsonItem);

#[pymethods]
impl PyJsonItem {
    #[getter]
    fn namespace<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        components(py, &self.namespace)
    }

    #[getter]
    fn key(&self) -> &str {
        &self.item.key
    }

    #[getter]
    fn value<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        from_json(py, &self.item.value)
    }

    #[getter]
    fn version(&self) -> u64 {
        self.item.version.number()
    }

    #[getter]
    fn created_at(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        datetime(py, self.item.created_at)
    }

    #[getter]
    fn updated_at(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        datetime(py, self.item.modified_at)
    }

    #[getter]
    fn expires_at(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.item.expires_at.map(|time| datetime(py, time)).transpose()
    }

    fn __repr__(&self) -> String {
        format!("JsonItem({:?}, {})", self.item.key, self.item.value)
    }
}

/// A page of items.
#[pyclass(frozen, name = "JsonPage", module = "treehold")]
pub(crate) struct PyJsonPage {
    items: Vec<Py<PyJsonItem>>,
    next: Option<(Namespace, String)>,
}

#[pymethods]
impl PyJsonPage {
    #[getter]
    fn items(&self, py: Python<'_>) -> Vec<Py<PyJsonItem>> {
        self.items.iter().map(|item| item.clone_ref(py)).collect()
    }

    #[getter]
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyTuple>, String)>> {
        self.next.as_ref().map(|(namespace, key)| Ok((components(py, namespace)?, key.clone()))).transpose()
    }

    fn __len__(&self) -> usize {
        self.items.len()
    }

    fn __repr__(&self) -> String {
        format!("JsonPage({} items)", self.items.len())
    }
}

impl ToPython for JsonPage<Value> {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let item = |found: treehold::store::JsonFound<Value>| Py::new(py, PyJsonItem { namespace: found.namespace, item: found.item });
        let items = self.items.into_iter().map(item).collect::<PyResult<Vec<_>>>()?;
        let next = self.next.and_then(|next| Some((Namespace::parse(&next.namespace).ok()?, next.key)));
        Ok(Py::new(py, PyJsonPage { items, next })?.into_any())
    }
}

impl ToPython for JsonNamespacePage {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let names = self.namespaces.iter().map(|namespace| components(py, namespace)).collect::<PyResult<Vec<_>>>()?;
        let next = self.next.as_ref().map(|next| components(py, next)).transpose()?;
        Ok((names, next).into_pyobject(py)?.into_any().unbind())
    }
}

/// Conditions on JSON values.
#[pyclass(frozen, name = "JsonFilter", module = "treehold")]
pub(crate) struct PyJsonFilter(JsonFilter);

#[pymethods]
impl PyJsonFilter {
    #[new]
    fn new(py: Python<'_>, conditions: &Bound<'_, PyAny>) -> PyResult<Self> {
        filter_of(py, conditions).map(Self)
    }

    /// Returns whether a body is JSON that meets the conditions.
    fn matches(&self, body: Content) -> bool {
        serde_json::from_slice::<Value>(&body.0).is_ok_and(|value| self.0.matches(&value))
    }
}

/// Reads a filter: conditions, or a mapping of them.
fn filter_of(py: Python<'_>, conditions: &Bound<'_, PyAny>) -> PyResult<JsonFilter> {
    match conditions.cast::<PyJsonFilter>() {
        Ok(filter) => Ok(filter.get().0.clone()),
        Err(_) => JsonFilter::parse(&to_json(conditions)?).map_err(|error| crate::errors::raised(py, error)),
    }
}

/// A page of rows that hold JSON.
#[pyclass(frozen, name = "JsonRows", module = "treehold")]
pub(crate) struct PyJsonRows {
    rows: Vec<(Namespace, Py<PyRow>)>,
    next: Option<(Namespace, String)>,
}

#[pymethods]
impl PyJsonRows {
    #[getter]
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Vec<(Bound<'py, PyTuple>, Py<PyRow>)>> {
        self.rows.iter().map(|(namespace, row)| Ok((components(py, namespace)?, row.clone_ref(py)))).collect()
    }

    #[getter]
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyTuple>, String)>> {
        self.next.as_ref().map(|(namespace, key)| Ok((components(py, namespace)?, key.clone()))).transpose()
    }

    fn __len__(&self) -> usize {
        self.rows.len()
    }

    fn __repr__(&self) -> String {
        format!("JsonRows({} rows)", self.rows.len())
    }
}

/// Rows on their way to Python.
struct FoundRows(Vec<(Namespace, Item)>, Option<JsonCursor>);

impl ToPython for FoundRows {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let row = |(namespace, item): (Namespace, Item)| Ok((namespace, Py::new(py, PyRow(item))?));
        let rows = self.0.into_iter().map(row).collect::<PyResult<Vec<_>>>()?;
        let next = self.1.and_then(|next| Some((Namespace::parse(&next.namespace).ok()?, next.key)));
        Ok(Py::new(py, PyJsonRows { rows, next })?.into_any())
    }
}

fn search_rows_work(store: JsonStore, namespace: Space, search: JsonSearch) -> Work<FoundRows> {
    Work::new(async move {
        let (rows, next) = store.search_rows(&namespace.0, &search).await?;
        Ok(FoundRows(rows, next))
    })
}

fn get_work(store: JsonStore, namespace: Space, key: String) -> Work<Option<PyJsonItem>> {
    Work::new(async move {
        let item = store.get::<Value>(&namespace.0, &key).await?;
        Ok(item.map(|item| PyJsonItem { namespace: namespace.0, item }))
    })
}

fn put_work(store: JsonStore, namespace: Space, key: String, value: Value, time: Option<Seconds>, then: Option<Requirement>) -> Work<u64> {
    let store = match time {
        Some(time) => store.with_time_to_live(Some(time.0)),
        None => store,
    };
    let condition = condition(then);
    Work::new(async move {
        let put = match condition {
            Some(condition) => store.put_if(&namespace.0, &key, &value, condition).await,
            None => store.put(&namespace.0, &key, &value).await,
        };
        put.map(Version::number)
    })
}

fn delete_work(store: JsonStore, namespace: Space, key: String, then: Option<Requirement>) -> Work<()> {
    let condition = condition(then);
    Work::new(async move {
        match condition {
            Some(condition) => store.delete_if(&namespace.0, &key, condition).await,
            None => store.delete(&namespace.0, &key).await,
        }
    })
}

/// A search as Python asks for it.
fn searched(
    py: Python<'_>,
    filter: Option<&Bound<'_, PyAny>>,
    prefix: String,
    beneath: bool,
    after: Option<(Space, String)>,
    limit: usize,
    rows_max: usize,
) -> PyResult<JsonSearch> {
    let mut search = JsonSearch::new().with_prefix(prefix).with_beneath(beneath).with_limit(limit).with_rows_max(rows_max);
    if let Some(filter) = filter {
        search = search.with_filter(filter_of(py, filter)?);
    }
    search.start_after = after.map(|(namespace, key)| JsonCursor::new(&namespace.0, key));
    Ok(search)
}

fn search_work(store: JsonStore, namespace: Space, search: JsonSearch) -> Work<JsonPage<Value>> {
    Work::new(async move { store.search(&namespace.0, &search).await })
}

fn names_work(
    store: JsonStore,
    prefix: Vec<String>,
    suffix: Vec<String>,
    depth_max: Option<usize>,
    after: Option<Space>,
    limit: usize,
) -> Work<JsonNamespacePage> {
    let mut search = NamespaceSearch::new().with_prefix(prefix).with_suffix(suffix).with_limit(limit);
    (search.depth_max, search.start_after) = (depth_max, after.map(|space| space.0));
    Work::new(async move { store.namespaces(&search).await })
}

operations! { PyJsonStore {
    fn get, aget(this, py, namespace: Space, key: String) {
        Ok(get_work(this.store(py)?, namespace, key))
    }

    #[pyo3(signature = (namespace, key, value, *, ttl_seconds = None, if_version = anything()))]
    fn put, aput(
        this, py, namespace: Space, key: String, value: &Bound<'_, PyAny>, ttl_seconds: Option<Seconds>, if_version: Option<Requirement>
    ) {
        Ok(put_work(this.store(py)?, namespace, key, to_json(value)?, ttl_seconds, if_version))
    }

    #[pyo3(signature = (namespace, key, *, if_version = anything()))]
    fn delete, adelete(this, py, namespace: Space, key: String, if_version: Option<Requirement>) {
        Ok(delete_work(this.store(py)?, namespace, key, if_version))
    }

    #[pyo3(signature = (namespace, *, filter = None, prefix = String::new(), beneath = false, after = None, limit = 100, rows_max = 10000))]
    fn search, asearch(
        this, py, namespace: Space, filter: Option<&Bound<'_, PyAny>>, prefix: String, beneath: bool, after: Option<(Space, String)>,
        limit: usize, rows_max: usize
    ) {
        Ok(search_work(this.store(py)?, namespace, searched(py, filter, prefix, beneath, after, limit, rows_max)?))
    }

    #[pyo3(signature = (namespace, *, filter = None, prefix = String::new(), beneath = false, after = None, limit = 100, rows_max = 10000))]
    fn search_rows, asearch_rows(
        this, py, namespace: Space, filter: Option<&Bound<'_, PyAny>>, prefix: String, beneath: bool, after: Option<(Space, String)>,
        limit: usize, rows_max: usize
    ) {
        Ok(search_rows_work(this.store(py)?, namespace, searched(py, filter, prefix, beneath, after, limit, rows_max)?))
    }

    #[pyo3(signature = (*, prefix = Vec::new(), suffix = Vec::new(), depth_max = None, after = None, limit = 100))]
    fn namespaces, anamespaces(
        this, py, prefix: Vec<String>, suffix: Vec<String>, depth_max: Option<usize>, after: Option<Space>, limit: usize
    ) {
        Ok(names_work(this.store(py)?, prefix, suffix, depth_max, after, limit))
    }
} }

/// Adds the classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyJsonStore>()?;
    module.add_class::<PyJsonItem>()?;
    module.add_class::<PyJsonFilter>()?;
    module.add_class::<PyJsonRows>()?;
    module.add_class::<PyJsonPage>()
}
