//! Runs of agents that are written in Python, and the tool by which an agent starts another one.

use super::store::{Place, PyTraceStore};
use super::values::{Address, given};
use crate::runtime::{Held, call_coroutine, failed};
use crate::store::{Data, forked};
use crate::values::{Seconds, invalid};
use crate::work::{ToPython, Work, operations};
use async_trait::async_trait;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use treehold::traces::{
    AgentCall, AgentCaller, AgentPlace, AgentPlaces, AgentTool, AgentToolOptions, ClaimRuns, NewMessage, PeerRuns, RunContext, RunRequest,
    RunResult, Runs, RunsOptions, TraceAddress, TraceRunner, TraceRuns,
};
use treehold::{Error, ErrorKind, Result, Scope};

/// How long the end of a `with` block waits for its runs.
const CLOSE_LIMIT: Duration = Duration::from_secs(30);

/// A runner that Python code implements: an object with a method `run(context, request)`.
struct PythonRunner {
    object: Arc<Py<PyAny>>,
    name: String,
}

impl fmt::Debug for PythonRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[async_trait]
impl TraceRunner for PythonRunner {
    async fn run(&self, context: &RunContext, request: RunRequest) -> Result<RunResult> {
        let (object, context, is_over) = (self.object.clone(), context.clone(), Arc::new(AtomicBool::new(false)));
        let over = Over(is_over.clone());
        let call = move |py: Python<'_>| {
            let context = PyRunContext { context: Held::new(context), is_over };
            let arguments = (Py::new(py, context)?, request.to_python(py)?);
            Ok(object.bind(py).call_method1("run", arguments)?.unbind())
        };
        let result = |value: Bound<'_, PyAny>| match value.extract::<String>() {
            Ok(summary) => Ok(RunResult::completed(summary)),
            Err(_) => given(&value),
        };
        // Declared after the call, so that it is dropped before it: a coroutine that is cancelled finds its run over.
        let mut called = pin!(call_coroutine(call, result));
        let _over = over;
        called.as_mut().await.map_err(failed)
    }
}

/// Notes at its end that a run is over.
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// What a run works with.
#[pyclass(frozen, name = "RunContext", module = "treehold.traces")]
pub(crate) struct PyRunContext {
    context: Held<RunContext>,
    is_over: Arc<AtomicBool>,
}

impl PyRunContext {
    fn context(&self, py: Python<'_>) -> PyResult<&RunContext> {
        self.context.get().ok_or_else(|| forked(py, "run"))
    }
}

#[pymethods]
impl PyRunContext {
    #[getter]
    fn trace_id(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.context(py)?.trace.to_string())
    }

    #[getter]
    fn traces(&self, py: Python<'_>) -> PyResult<PyTraceStore> {
        let context = self.context(py)?;
        let runs = &context.runs;
        Ok(PyTraceStore::of(Place {
            traces: context.traces().clone(),
            local: None,
            peers: runs.peers().map(|peers| peers.peers().clone()),
            own: runs.own_locations().to_vec(),
            is_over: Some(self.is_over.clone()),
        }))
    }

    #[getter]
    fn runs(&self, py: Python<'_>) -> PyResult<PyTraceRuns> {
        let runs = self.context(py)?.runs.clone();
        Ok(PyTraceRuns(Held::new(Running { host: None, runs, owner: None })))
    }
}

/// Runs, and the process that hosts them.
#[derive(Clone)]
struct Running {
    /// The host; none for the runs that a runner is handed.
    host: Option<Runs>,
    runs: TraceRuns,
    /// The tenant and user whose traces run.
    owner: Option<(String, String)>,
}

impl Running {
    /// Returns the address for the runs of this process, or the peers that run the trace.
    fn of(&self, trace: TraceAddress) -> Result<(Option<PeerRuns>, TraceAddress)> {
        match trace.location() {
            None => Ok((None, trace)),
            Some(location) if self.runs.own_locations().contains(location) => Ok((None, trace.stripped())),
            Some(_) => match self.runs.peers() {
                Some(peers) => Ok((Some(peers.clone()), trace)),
                None => Err(Error::invalid_argument(format!(
                    "the trace `{trace}` lives elsewhere; make the runs of a `HybridTraceStore`, which reaches other places"
                ))),
            },
        }
    }
}

/// The runs on the traces of a user.
#[pyclass(frozen, name = "TraceRuns", module = "treehold.traces")]
pub(crate) struct PyTraceRuns(Held<Running>);

impl PyTraceRuns {
    fn running(&self, py: Python<'_>) -> PyResult<Running> {
        self.0.get().cloned().ok_or_else(|| forked(py, "runs"))
    }

    fn host(&self, py: Python<'_>) -> PyResult<Runs> {
        self.running(py)?.host.ok_or_else(|| invalid(py, "a run cannot end the runs of its process; do it where they were made"))
    }
}

#[pymethods]
impl PyTraceRuns {
    #[new]
    #[pyo3(signature = (store, runner, *, runs_max = 64, runs_per_user_max = 8, deadline_seconds = None, lease_seconds = None))]
    fn new(
        py: Python<'_>,
        store: &PyTraceStore,
        runner: Bound<'_, PyAny>,
        runs_max: usize,
        runs_per_user_max: usize,
        deadline_seconds: Option<Seconds>,
        lease_seconds: Option<Seconds>,
    ) -> PyResult<Self> {
        if !runner.getattr("run").is_ok_and(|run| run.is_callable()) {
            return Err(invalid(py, "a runner is an object with a method `run(context, request)`"));
        }
        let mut options = RunsOptions::new().with_runs_max(runs_max, runs_per_user_max);
        options.deadline = deadline_seconds.map_or(options.deadline, |time| time.0);
        options.lease = lease_seconds.map_or(options.lease, |time| time.0);
        let name = runner.get_type().name()?.to_string();
        let host = Runs::with_options(Arc::new(PythonRunner { object: Arc::new(runner.unbind()), name }), options);
        let place = store.place(py)?;
        let owner = place.local.as_ref().map(|local| (local.tenant().to_owned(), local.user().to_owned()));
        let mut runs = host.on(owner.clone().unzip(), place.traces.clone());
        if let Some(local) = place.local {
            let claims: Arc<dyn ClaimRuns> = Arc::new(local);
            runs = runs.with_claims(claims);
        }
        if let Some(peers) = place.peers {
            runs = runs.with_peers(PeerRuns::new(peers, place.traces));
        }
        let runs = place.own.into_iter().fold(runs, TraceRuns::with_own_location);
        Ok(Self(Held::new(Running { host: Some(host), runs, owner })))
    }

    #[getter]
    fn count(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.host(py)?.count())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<bool> {
        self.shutdown(py, Seconds(CLOSE_LIMIT)).map(|_| false)
    }

    fn __aenter__<'py>(slf: Py<Self>, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Work::new(async move { Ok(crate::store::Itself(slf.into_any())) }).start(py)
    }

    #[pyo3(signature = (*_exception))]
    fn __aexit__<'py>(&self, py: Python<'py>, _exception: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        let host = self.host(py)?;
        Work::new(async move {
            host.shutdown(CLOSE_LIMIT).await;
            Ok(())
        })
        .start(py)
    }
}

operations! { PyTraceRuns {
    #[pyo3(signature = (
        trace_id, messages = None, *, after_sequence = None, config = None, branch_type = None, idempotency_key = None
    ))]
    fn start, astart(
        this, py, trace_id: Address, messages: Option<&Bound<'_, PyAny>>, after_sequence: Option<u64>, config: Option<&Bound<'_, PyAny>>,
        branch_type: Option<String>, idempotency_key: Option<String>
    ) {
        let running = this.running(py)?;
        let mut request = RunRequest::default();
        request.messages = messages.map(given::<Vec<NewMessage>>).transpose()?.unwrap_or_default();
        request.config = config.map(given).transpose()?;
        (request.after_sequence, request.branch_type) = (after_sequence, branch_type);
        Ok(Work::new(async move {
            match running.of(trace_id.0)? {
                (None, trace) => running.runs.start_once(&trace, request, idempotency_key).await.map(drop),
                (Some(_), _) if idempotency_key.is_some() => {
                    Err(Error::invalid_argument("a run elsewhere has a key of its own; leave `idempotency_key` out"))
                }
                (Some(peers), trace) => peers.start(&trace, &request).await,
            }
        }))
    }

    fn result, aresult(this, py, trace_id: Address, timeout_seconds: Seconds) {
        let running = this.running(py)?;
        Ok(Work::new(async move {
            match running.of(trace_id.0)? {
                (None, trace) => running.runs.wait(&trace, timeout_seconds.0).await,
                (Some(peers), trace) => peers.wait(&trace, timeout_seconds.0).await,
            }
        }))
    }

    fn stop, astop(this, py, trace_id: Address) {
        let running = this.running(py)?;
        Ok(Work::new(async move {
            match running.of(trace_id.0)? {
                (None, trace) => running.runs.stop(&trace).await,
                (Some(peers), trace) => peers.stop(&trace).await,
            }
        }))
    }

    fn shutdown, ashutdown(this, py, timeout_seconds: Seconds) {
        let host = this.host(py)?;
        Ok(Work::new(async move { Ok(host.shutdown(timeout_seconds.0).await) }))
    }
} }

/// What starts agents: runs, or traces of which some live elsewhere.
#[derive(FromPyObject)]
enum Agents<'py> {
    Runs(Bound<'py, PyTraceRuns>),
    Store(Bound<'py, PyTraceStore>),
}

/// The place of the agents that a tool starts, for the one user whose traces they are.
#[derive(Debug, Clone)]
struct OwnedPlace {
    place: AgentPlace,
    owner: Option<(String, String)>,
}

#[async_trait]
impl AgentPlaces for OwnedPlace {
    async fn of(&self, scope: Option<&Scope>) -> Result<AgentPlace> {
        let is = |id: &Option<String>, own: &str| id.as_deref().is_none_or(|id| id == own);
        let is_owner = match (scope, &self.owner) {
            (Some(scope), Some((tenant, user))) => is(&scope.tenant, tenant) && is(&scope.user, user),
            _ => true,
        };
        if is_owner {
            return Ok(self.place.clone());
        }
        let message = "the agents of this tool work on the traces of another user; give each user a workspace of their own";
        Err(Error::new(ErrorKind::PermissionDenied, message).without_effect())
    }
}

/// The tool `agent`.
#[pyclass(frozen, name = "AgentTool", module = "treehold.traces")]
pub(crate) struct PyAgentTool {
    place: Held<OwnedPlace>,
    options: AgentToolOptions,
}

impl PyAgentTool {
    fn place(&self, py: Python<'_>) -> PyResult<OwnedPlace> {
        self.place.get().cloned().ok_or_else(|| forked(py, "tool"))
    }

    /// Makes the tool as a workspace has it.
    pub(crate) fn tool(&self, py: Python<'_>) -> PyResult<AgentTool> {
        Ok(AgentTool::new(Arc::new(self.place(py)?)).with_options(self.options.clone()))
    }
}

#[pymethods]
impl PyAgentTool {
    #[new]
    #[pyo3(signature = (agents, *, deadline_seconds = None, tasks_max = None, at_once = None))]
    fn new(
        py: Python<'_>,
        agents: Agents<'_>,
        deadline_seconds: Option<Seconds>,
        tasks_max: Option<usize>,
        at_once: Option<usize>,
    ) -> PyResult<Self> {
        let (place, owner) = match agents {
            Agents::Runs(runs) => {
                let running = runs.get().running(py)?;
                (AgentPlace::of_runs(running.runs), running.owner)
            }
            Agents::Store(store) => {
                let Place { traces, local, peers, own, .. } = store.get().place(py)?;
                let mut place = AgentPlace::new(traces.clone());
                if let Some(peers) = peers {
                    place = place.with_peers(PeerRuns::new(peers, traces));
                }
                let owner = local.map(|local| (local.tenant().to_owned(), local.user().to_owned()));
                (own.into_iter().fold(place, AgentPlace::with_own_location), owner)
            }
        };
        let mut options = AgentToolOptions::new();
        options.deadline = deadline_seconds.map_or(options.deadline, |time| time.0);
        options = options.clone().with_tasks_max(tasks_max.unwrap_or(options.tasks_max), at_once.unwrap_or(options.at_once));
        Ok(Self { place: Held::new(OwnedPlace { place, owner }), options })
    }
}

/// One task or several.
#[derive(FromPyObject)]
enum Tasks {
    One(String),
    Several(Vec<String>),
}

operations! { PyAgentTool {
    #[pyo3(signature = (task, continue_from = None, agent_url = None, context = None, *, trace_id = None, goal_id = None))]
    fn agent, aagent(
        this, py, task: Tasks, continue_from: Option<String>, agent_url: Option<String>, context: Option<&Bound<'_, PyAny>>,
        trace_id: Option<Address>, goal_id: Option<String>
    ) {
        let (place, tool) = (this.place(py)?.place, this.tool(py)?);
        let mut call = AgentCall::default();
        call.tasks = match task {
            Tasks::One(task) => vec![task],
            Tasks::Several(tasks) => tasks,
        };
        (call.continue_from, call.agent_url) = (continue_from, agent_url);
        call.context = context.map(given).transpose()?;
        let caller = trace_id.map_or_else(AgentCaller::new, |trace| AgentCaller::new().with_trace(trace.0, goal_id));
        Ok(Work::new(async move { Ok(Data(tool.call(&place, &caller, call).await)) }))
    }
} }
