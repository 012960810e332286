//! A store of traces: the methods that every one has.

use super::values::{Address, Which, given};
use crate::backend::PyBackend;
use crate::errors::raised;
use crate::runtime::Held;
use crate::store::forked;
use crate::work::{Work, class, operations};
use futures::StreamExt;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use treehold::traces::files::TraceFiles;
use treehold::traces::{
    AddOptions, EventStream, GoalTree, GoalUpdate, Location, MessagesQuery, NewGoal, NewMessage, NewTrace, OtherFields, PathQuery, Peers,
    StoredTraces, TraceEvent, TraceStore, TraceUpdate, TracesQuery,
};
use treehold::{Error, ErrorKind, Result};

/// Traces, and what else is known of the place that reaches them.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) traces: Arc<dyn TraceStore>,
    /// The rows of the traces that live here, by which runs claim them.
    pub(super) local: Option<StoredTraces>,
    /// The other places that the traces reach.
    pub(super) peers: Option<Peers>,
    /// The locations under which others know this place.
    pub(super) own: Vec<Location>,
    /// Whether the run that the traces were handed to is over, if they are those of a run.
    pub(super) is_over: Option<Arc<AtomicBool>>,
}

impl Place {
    /// Traces of other places only.
    pub(super) fn elsewhere(traces: Arc<dyn TraceStore>, peers: Option<Peers>) -> Self {
        Self { traces, local: None, peers, own: Vec::new(), is_over: None }
    }
}

/// The traces of one user.
#[pyclass(frozen, subclass, name = "TraceStore", module = "treehold.traces")]
pub(crate) struct PyTraceStore(Held<Place>);

impl PyTraceStore {
    pub(super) fn of(place: Place) -> Self {
        Self(Held::new(place))
    }

    pub(super) fn place(&self, py: Python<'_>) -> PyResult<Place> {
        let place = self.0.get().cloned().ok_or_else(|| forked(py, "store of traces"))?;
        if place.is_over.as_ref().is_some_and(|is_over| is_over.load(Ordering::Acquire)) {
            let message = "the run has ended or was stopped, so its runner changes nothing more; open the traces by yourself to read them";
            return Err(raised(py, Error::new(ErrorKind::Conflict, message).without_effect()));
        }
        Ok(place)
    }

    fn traces(&self, py: Python<'_>) -> PyResult<Arc<dyn TraceStore>> {
        Ok(self.place(py)?.traces)
    }
}

/// Reads the changes that a call names by keywords.
fn changes<T: serde::de::DeserializeOwned + Default>(keywords: Option<&Bound<'_, PyDict>>) -> PyResult<T> {
    keywords.map_or_else(|| Ok(T::default()), |keywords| given(keywords.as_any()))
}

/// Reads one of the names of a kind.
fn named<T: std::str::FromStr<Err = Error>>(py: Python<'_>, name: Option<&str>) -> PyResult<Option<T>> {
    name.map(|name| name.parse().map_err(|error| raised(py, error))).transpose()
}

fn add_options(key: Option<String>, expected_head: Option<u64>, update: Option<&Bound<'_, PyAny>>) -> PyResult<AddOptions> {
    let mut options = AddOptions::new();
    (options.idempotency_key, options.expected_head) = (key, expected_head);
    options.update = update.map(given::<TraceUpdate>).transpose()?;
    Ok(options)
}

#[pymethods]
impl PyTraceStore {
    /// The traces as read-only files.
    fn tree(&self, py: Python<'_>) -> PyResult<PyBackend> {
        Ok(PyBackend::of(Arc::new(TraceFiles::new(self.traces(py)?))))
    }
}

operations! { PyTraceStore {
    fn create_trace, acreate_trace(this, py, trace: &Bound<'_, PyAny>) {
        let traces = this.traces(py)?;
        let trace = match trace.extract::<String>() {
            Ok(task) => NewTrace::new(task),
            Err(_) => given(trace)?,
        };
        Ok(Work::new(async move { Ok(traces.create_trace(trace).await?.trace_id.to_string()) }))
    }

    fn get_trace, aget_trace(this, py, trace_id: Address) {
        let traces = this.traces(py)?;
        Ok(Work::new(async move { traces.get_trace(&trace_id.0).await }))
    }

    #[pyo3(signature = (trace_id, **changes))]
    fn update_trace, aupdate_trace(this, py, trace_id: Address, **changes) {
        let (traces, update) = (this.traces(py)?, self::changes::<TraceUpdate>(changes)?);
        Ok(Work::new(async move { traces.update_trace(&trace_id.0, update).await }))
    }

    #[pyo3(signature = (*, status = None, mode = None, limit = 50, cursor = None))]
    fn list_traces, alist_traces(this, py, status: Option<&str>, mode: Option<&str>, limit: usize, cursor: Option<String>) {
        let traces = this.traces(py)?;
        let mut query = TracesQuery::new().with_limit(limit).with_cursor(cursor);
        (query.status, query.mode) = (named(py, status)?, named(py, mode)?);
        Ok(Work::new(async move { traces.list_traces(&query).await }))
    }

    fn delete_trace, adelete_trace(this, py, trace_id: Address) {
        let traces = this.traces(py)?;
        Ok(Work::new(async move { traces.delete_trace(&trace_id.0).await }))
    }

    fn get_goal_tree, aget_goal_tree(this, py, trace_id: Address) {
        let traces = this.traces(py)?;
        Ok(Work::new(async move { traces.get_goal_tree(&trace_id.0).await }))
    }

    fn update_goal_tree, aupdate_goal_tree(this, py, trace_id: Address, tree: &Bound<'_, PyAny>) {
        let (traces, tree) = (this.traces(py)?, given::<GoalTree>(tree)?);
        Ok(Work::new(async move { traces.update_goal_tree(&trace_id.0, tree).await }))
    }

    fn add_goal, aadd_goal(this, py, trace_id: Address, goal: &Bound<'_, PyAny>) {
        let traces = this.traces(py)?;
        let goal = match goal.extract::<String>() {
            Ok(description) => NewGoal::new(description),
            Err(_) => given(goal)?,
        };
        Ok(Work::new(async move { traces.add_goal(&trace_id.0, goal).await }))
    }

    #[pyo3(signature = (trace_id, goal_id, **changes))]
    fn update_goal, aupdate_goal(this, py, trace_id: Address, goal_id: String, **changes) {
        let (traces, update) = (this.traces(py)?, self::changes::<GoalUpdate>(changes)?);
        Ok(Work::new(async move { traces.update_goal(&trace_id.0, &goal_id, update).await }))
    }

    #[pyo3(signature = (trace_id, message, *, idempotency_key = None, expected_head = None, update = None))]
    fn add_message, aadd_message(
        this, py, trace_id: Address, message: &Bound<'_, PyAny>, idempotency_key: Option<String>, expected_head: Option<u64>,
        update: Option<&Bound<'_, PyAny>>
    ) {
        let (traces, message) = (this.traces(py)?, given::<NewMessage>(message)?);
        let options = add_options(idempotency_key, expected_head, update)?;
        Ok(Work::new(async move {
            let added = traces.add_messages(&trace_id.0, vec![message], &options).await?;
            let message = added.messages.into_iter().next();
            message.map(|message| message.message_id).ok_or_else(|| Error::new(ErrorKind::Internal, "the store returned no message"))
        }))
    }

    #[pyo3(signature = (trace_id, messages, *, idempotency_key = None, expected_head = None, update = None))]
    fn add_messages, aadd_messages(
        this, py, trace_id: Address, messages: &Bound<'_, PyAny>, idempotency_key: Option<String>, expected_head: Option<u64>,
        update: Option<&Bound<'_, PyAny>>
    ) {
        let (traces, messages) = (this.traces(py)?, given::<Vec<NewMessage>>(messages)?);
        let options = add_options(idempotency_key, expected_head, update)?;
        Ok(Work::new(async move { traces.add_messages(&trace_id.0, messages, &options).await }))
    }

    fn get_message, aget_message(this, py, trace_id: Address, message: Which) {
        let traces = this.traces(py)?;
        Ok(Work::new(async move { traces.get_message(&trace_id.0, &message.into()).await }))
    }

    #[pyo3(signature = (trace_id, message, **changes))]
    fn update_message, aupdate_message(this, py, trace_id: Address, message: Which, **changes) {
        let (traces, update) = (this.traces(py)?, self::changes(changes)?);
        Ok(Work::new(async move { traces.update_message(&trace_id.0, &message.into(), update).await }))
    }

    #[pyo3(signature = (trace_id, *, since_sequence = None, offset = 0, limit = 100))]
    fn get_trace_messages, aget_trace_messages(
        this, py, trace_id: Address, since_sequence: Option<u64>, offset: u64, limit: usize
    ) {
        let traces = this.traces(py)?;
        let mut query = MessagesQuery::new().with_offset(offset).with_limit(limit);
        query.since_sequence = since_sequence;
        Ok(Work::new(async move { traces.get_messages(&trace_id.0, &query).await }))
    }

    #[pyo3(signature = (trace_id, goal_id, *, since_sequence = None, offset = 0, limit = 100))]
    fn get_messages_by_goal, aget_messages_by_goal(
        this, py, trace_id: Address, goal_id: String, since_sequence: Option<u64>, offset: u64, limit: usize
    ) {
        let traces = this.traces(py)?;
        let mut query = MessagesQuery::new().with_goal(goal_id).with_offset(offset).with_limit(limit);
        query.since_sequence = since_sequence;
        Ok(Work::new(async move { traces.get_messages(&trace_id.0, &query).await }))
    }

    #[pyo3(signature = (trace_id, head_sequence = None, *, limit = None))]
    fn get_main_path_messages, aget_main_path_messages(
        this, py, trace_id: Address, head_sequence: Option<u64>, limit: Option<usize>
    ) {
        let traces = this.traces(py)?;
        let mut query = PathQuery::new();
        (query.head_sequence, query.limit) = (head_sequence, limit);
        Ok(Work::new(async move { traces.get_main_path(&trace_id.0, &query).await }))
    }

    #[pyo3(signature = (trace_id, event, data = None))]
    fn append_event, aappend_event(this, py, trace_id: Address, event: String, data: Option<&Bound<'_, PyAny>>) {
        let traces = this.traces(py)?;
        let data = data.map(given::<OtherFields>).transpose()?.unwrap_or_default();
        Ok(Work::new(async move { traces.append_event(&trace_id.0, &event, data).await }))
    }

    #[pyo3(signature = (trace_id, since_event_id = 0, *, limit = 100))]
    fn get_events, aget_events(this, py, trace_id: Address, since_event_id: u64, limit: usize) {
        let traces = this.traces(py)?;
        Ok(Work::new(async move { traces.get_events(&trace_id.0, since_event_id, limit).await }))
    }

    #[pyo3(signature = (trace_id, since_event_id = 0))]
    fn watch, awatch(this, py, trace_id: Address, since_event_id: u64) {
        let traces = this.traces(py)?;
        Ok(Work::new(async move { Ok(PyTraceWatch::of(traces.watch(&trace_id.0, since_event_id).await?)) }))
    }
} }

/// The events of a trace as they come.
#[pyclass(frozen, name = "TraceWatch", module = "treehold.traces")]
pub(crate) struct PyTraceWatch(Held<Arc<tokio::sync::Mutex<EventStream>>>);

class!(PyTraceWatch);

impl PyTraceWatch {
    fn of(events: EventStream) -> Self {
        Self(Held::new(Arc::new(tokio::sync::Mutex::new(events))))
    }

    fn next_event(&self, py: Python<'_>) -> PyResult<Work<TraceEvent>> {
        let events = self.0.get().cloned().ok_or_else(|| forked(py, "watch"))?;
        Ok(Work::new(async move {
            let next: Option<Result<TraceEvent>> = events.lock().await.next().await;
            next.unwrap_or_else(|| Err(Error::new(ErrorKind::Unavailable, "the watch has ended; watch the trace again")))
        }))
    }
}

#[pymethods]
impl PyTraceWatch {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.next_event(py)?.wait(py)
    }

    fn __aiter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __anext__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.next_event(py)?.start(py)
    }
}
