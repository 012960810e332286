//! Where traces live: here, at other servers, or both.

use super::store::{Place, PyTraceStore};
use super::values::{Address, location};
use crate::errors::raised;
use crate::runtime::Held;
use crate::store::{PyStore, forked};
use crate::values::{Seconds, invalid};
use crate::work::{Work, operations};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use treehold::traces::layout::{ExportOptions, ImportOptions, export_directory, import_directory};
use treehold::traces::{
    ApiKey, CacheOptions, CachedTraces, HybridTraces, Location, Peer, Peers, PeersOptions, RemoteTraces, StoredTraces, TraceCopies,
    TraceId, TraceStore, Traces, TracesOptions,
};

/// An agent as a registry has it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Agent {
    url: String,
    #[pyo3(default)]
    api_key: Option<String>,
    #[pyo3(item("type"), default)]
    kind: Option<String>,
    #[pyo3(default)]
    allow_http: bool,
}

/// Reads a key, or where it is.
fn key(text: &str) -> ApiKey {
    ApiKey::parse(text, &std::env::current_dir().unwrap_or_default())
}

/// The registered agents.
#[pyclass(frozen, name = "Peers", module = "treehold.traces")]
pub(crate) struct PyPeers(Held<Peers>);

impl PyPeers {
    fn peers(&self, py: Python<'_>) -> PyResult<Peers> {
        self.0.get().cloned().ok_or_else(|| forked(py, "registry"))
    }
}

#[pymethods]
impl PyPeers {
    #[new]
    #[pyo3(signature = (agents = None, *, file = None, unregistered_hosts = false, private_hosts = false))]
    fn new(
        py: Python<'_>,
        agents: Option<BTreeMap<String, Agent>>,
        file: Option<PathBuf>,
        unregistered_hosts: bool,
        private_hosts: bool,
    ) -> PyResult<Self> {
        let made = py.detach(|| {
            let mut peers = file.map_or_else(|| Ok(Vec::new()), |file| Peers::agents_of_file(&file))?;
            for (name, agent) in agents.unwrap_or_default() {
                let peer = Peer::new(name, agent.url, agent.allow_http)?.with_kind(agent.kind);
                peers.push(agent.api_key.iter().fold(peer, |peer, text| peer.with_key(key(text))));
            }
            Peers::new(peers, PeersOptions::new().with_unregistered_hosts(unregistered_hosts).with_private_hosts(private_hosts))
        });
        made.map(|peers| Self(Held::new(peers))).map_err(|error| raised(py, error))
    }

    #[getter]
    fn names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.peers(py)?.iter().map(|peer| peer.name().to_owned()).collect())
    }

    /// Checks that a place may be reached, without a connection.
    fn check(&self, py: Python<'_>, location: &str) -> PyResult<()> {
        let location = self::location(py, location)?;
        self.peers(py)?.check(&location).map_err(|error| raised(py, error))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("Peers({:?})", self.names(py)?))
    }
}

/// Other places: a registry, or a store that reaches them.
#[derive(FromPyObject)]
enum Elsewhere<'py> {
    Peers(Bound<'py, PyPeers>),
    Store(Bound<'py, PyTraceStore>),
}

impl Elsewhere<'_> {
    /// Returns the traces there.
    fn place(&self, py: Python<'_>, own: Option<&Location>) -> PyResult<Place> {
        match self {
            Self::Peers(peers) => {
                let peers = peers.get().peers(py)?;
                let traces = own.cloned().into_iter().fold(RemoteTraces::new(peers.clone()), RemoteTraces::with_own_location);
                Ok(Place::elsewhere(Arc::new(traces), Some(peers)))
            }
            Self::Store(store) => store.get().place(py),
        }
    }
}

fn own_location(py: Python<'_>, text: Option<&str>) -> PyResult<Option<Location>> {
    text.map(|text| location(py, text)).transpose()
}

/// The traces of a user as rows of a store.
#[pyclass(frozen, extends = PyTraceStore, name = "DatabaseTraceStore", module = "treehold.traces")]
pub(crate) struct PyDatabaseTraceStore {
    all: Held<Traces>,
    traces: Held<StoredTraces>,
}

impl PyDatabaseTraceStore {
    fn own(&self, py: Python<'_>) -> PyResult<StoredTraces> {
        self.traces.get().cloned().ok_or_else(|| forked(py, "store of traces"))
    }
}

#[pymethods]
impl PyDatabaseTraceStore {
    #[new]
    #[pyo3(signature = (
        store, *, tenant = "default", user = "default", message_bytes_max = None, batch_bytes_max = None, trace_bytes_max = None,
        goal_tree_bytes_max = None, event_bytes_max = None, page_max = None, page_bytes_max = None, idempotency_seconds = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        store: &Bound<'_, PyAny>,
        tenant: &str,
        user: &str,
        message_bytes_max: Option<usize>,
        batch_bytes_max: Option<usize>,
        trace_bytes_max: Option<usize>,
        goal_tree_bytes_max: Option<usize>,
        event_bytes_max: Option<usize>,
        page_max: Option<usize>,
        page_bytes_max: Option<usize>,
        idempotency_seconds: Option<Seconds>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let mut options = TracesOptions::new();
        for (limit, given) in [
            (&mut options.message_bytes_max, message_bytes_max),
            (&mut options.batch_bytes_max, batch_bytes_max),
            (&mut options.trace_bytes_max, trace_bytes_max),
            (&mut options.goal_tree_bytes_max, goal_tree_bytes_max),
            (&mut options.event_bytes_max, event_bytes_max),
            (&mut options.page_bytes_max, page_bytes_max),
        ] {
            *limit = given.unwrap_or(*limit);
        }
        if let Some(entries) = page_max {
            options = options.with_page_max(entries);
        }
        if let Some(time) = idempotency_seconds {
            options = options.with_idempotency_time(time.0);
        }
        let all = Traces::new(PyStore::named(py, store)?).with_options(options);
        let traces = all.for_user(tenant, user).map_err(|error| raised(py, error))?;
        let place = Place { traces: Arc::new(traces.clone()), local: Some(traces.clone()), peers: None, own: Vec::new(), is_over: None };
        let this = Self { all: Held::new(all), traces: Held::new(traces) };
        Ok(PyClassInitializer::from(PyTraceStore::of(place)).add_subclass(this))
    }

    #[getter]
    fn tenant(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.own(py)?.tenant().to_owned())
    }

    #[getter]
    fn user(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.own(py)?.user().to_owned())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let traces = self.own(py)?;
        Ok(format!("DatabaseTraceStore(tenant={:?}, user={:?})", traces.tenant(), traces.user()))
    }
}

fn among(py: Python<'_>, ids: Option<Vec<String>>) -> PyResult<Option<Vec<TraceId>>> {
    let ids = ids.map(|ids| ids.into_iter().map(TraceId::new).collect::<treehold::Result<Vec<_>>>());
    ids.transpose().map_err(|error| raised(py, error))
}

operations! { PyDatabaseTraceStore {
    #[pyo3(signature = (directory, *, among = None, any_user = false))]
    fn import_directory, aimport_directory(this, py, directory: PathBuf, among: Option<Vec<String>>, any_user: bool) {
        let (traces, mut options) = (this.own(py)?, ImportOptions::new().with_any_user(any_user));
        options.among = self::among(py, among)?;
        Ok(Work::new(async move { import_directory(&traces, &directory, &options).await }))
    }

    #[pyo3(signature = (directory, *, among = None, sync = true))]
    fn export_directory, aexport_directory(this, py, directory: PathBuf, among: Option<Vec<String>>, sync: bool) {
        let (traces, mut options) = (this.own(py)?, ExportOptions::new().with_sync(sync));
        options.among = self::among(py, among)?;
        Ok(Work::new(async move { export_directory(&traces, &directory, &options).await }))
    }

    #[pyo3(signature = (traces_max = 100))]
    fn sweep, asweep(this, py, traces_max: usize) {
        let all = this.all.get().cloned().ok_or_else(|| forked(py, "store of traces"))?;
        Ok(Work::new(async move { all.sweep_some(traces_max).await }))
    }
} }

/// The traces of another server.
#[pyclass(frozen, extends = PyTraceStore, name = "RemoteTraceStore", module = "treehold.traces")]
pub(crate) struct PyRemoteTraceStore;

#[pymethods]
impl PyRemoteTraceStore {
    #[new]
    #[pyo3(signature = (agent_url, api_key = None, *, peers = None, own_location = None))]
    fn new(
        py: Python<'_>,
        agent_url: &str,
        api_key: Option<&str>,
        peers: Option<&PyPeers>,
        own_location: Option<&str>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let own = self::own_location(py, own_location)?;
        let (peers, place) = match (peers, api_key) {
            (Some(_), Some(_)) => return Err(invalid(py, "the keys are those of `peers`; leave `api_key` out")),
            (Some(peers), None) => (peers.peers(py)?, location(py, agent_url)?),
            (None, api_key) => {
                let peer = Peer::of_host(agent_url).map_err(|error| raised(py, error))?;
                let place = Location::host(peer.name()).map_err(|error| raised(py, error))?;
                let peer = api_key.iter().fold(peer, |peer, text| peer.with_key(key(text)));
                (Peers::new([peer], PeersOptions::new()).map_err(|error| raised(py, error))?, place)
            }
        };
        let traces = RemoteTraces::at(peers.clone(), place).map_err(|error| raised(py, error))?;
        let traces = own.into_iter().fold(traces, RemoteTraces::with_own_location);
        let place = Place::elsewhere(Arc::new(traces), Some(peers));
        Ok(PyClassInitializer::from(PyTraceStore::of(place)).add_subclass(Self))
    }
}

/// The traces of this place together with those elsewhere.
#[pyclass(frozen, extends = PyTraceStore, name = "HybridTraceStore", module = "treehold.traces")]
pub(crate) struct PyHybridTraceStore;

#[pymethods]
impl PyHybridTraceStore {
    #[new]
    #[pyo3(signature = (local, elsewhere, *, own_location = None))]
    fn new(
        py: Python<'_>,
        local: &PyTraceStore,
        elsewhere: Elsewhere<'_>,
        own_location: Option<&str>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let own = self::own_location(py, own_location)?;
        let (local, elsewhere) = (local.place(py)?, elsewhere.place(py, own.as_ref())?);
        let traces = HybridTraces::new(local.traces, elsewhere.traces);
        let traces: Arc<dyn TraceStore> = Arc::new(own.iter().cloned().fold(traces, HybridTraces::with_own_location));
        let place = Place { traces, local: local.local, peers: elsewhere.peers, own: own.into_iter().collect(), is_over: None };
        Ok(PyClassInitializer::from(PyTraceStore::of(place)).add_subclass(Self))
    }
}

/// A cache before the owners of traces.
#[pyclass(frozen, extends = PyTraceStore, name = "CachedRemoteStore", module = "treehold.traces")]
pub(crate) struct PyCachedRemoteStore(Held<CachedTraces>);

impl PyCachedRemoteStore {
    fn cache(&self, py: Python<'_>) -> PyResult<CachedTraces> {
        self.0.get().cloned().ok_or_else(|| forked(py, "cache"))
    }
}

#[pymethods]
impl PyCachedRemoteStore {
    #[new]
    #[pyo3(signature = (local, remote, *, tenant = "default", bytes_max = None, final_age_seconds = None, copies_seconds = None))]
    fn new(
        py: Python<'_>,
        local: Option<&Bound<'_, PyAny>>,
        remote: Elsewhere<'_>,
        tenant: &str,
        bytes_max: Option<usize>,
        final_age_seconds: Option<Seconds>,
        copies_seconds: Option<Seconds>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let remote = remote.place(py, None)?;
        let mut options = CacheOptions::new();
        options.bytes_max = bytes_max.unwrap_or(options.bytes_max);
        options.final_age_max = final_age_seconds.map_or(options.final_age_max, |age| age.0);
        let mut cached = CachedTraces::new(remote.traces, options);
        if let Some(peers) = &remote.peers {
            cached = cached.with_peers(peers.clone());
        }
        if let Some(store) = local {
            let copies = TraceCopies::new(PyStore::named(py, store)?, tenant).map_err(|error| raised(py, error))?;
            cached = cached.with_copies(copies_seconds.into_iter().fold(copies, |copies, time| copies.with_lives_for(time.0)));
        }
        let place = Place::elsewhere(Arc::new(cached.clone()), remote.peers);
        Ok(PyClassInitializer::from(PyTraceStore::of(place)).add_subclass(Self(Held::new(cached))))
    }

    /// The number of cached traces, and their bytes.
    #[getter]
    fn usage(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        Ok(self.cache(py)?.usage())
    }

    fn invalidate(&self, py: Python<'_>, trace_id: Address) -> PyResult<()> {
        self.cache(py)?.invalidate(&trace_id.0);
        Ok(())
    }

    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.cache(py)?.clear();
        Ok(())
    }
}
