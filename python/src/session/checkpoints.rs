//! Checkpoints of a thread: saved, listed, restored, forked and merged.

use super::PySession;
use crate::errors::raised;
use crate::store::{Data, PyBatch, data};
use crate::values::{Content, invalid, timestamp};
use crate::work::{Work, class, operations};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use treehold::checkpoint::{At, Checkpoint, ListOptions, MergeOptions, MergeResolution, MergeStrategy, PutOptions, partition_of};
use treehold::store::Outbox;
use treehold::{CheckpointId, Error, VfsPathBuf};

/// A saved state of a thread.
#[pyclass(frozen, name = "Checkpoint", module = "treehold")]
pub(crate) struct PyCheckpoint {
    checkpoint: Checkpoint,
    versions: Vec<u64>,
}

class!(PyCheckpoint);

#[pymethods]
impl PyCheckpoint {
    #[getter]
    fn id(&self) -> String {
        self.checkpoint.id.to_string()
    }

    #[getter]
    fn parent_id(&self) -> Option<String> {
        self.checkpoint.parent.as_ref().map(|parent| parent.id.to_string())
    }

    /// The thread of the parent, if it is another one.
    #[getter]
    fn parent_thread(&self) -> Option<&str> {
        self.checkpoint.parent.as_ref().and_then(|parent| parent.thread.as_deref())
    }

    /// The thread and the id of the checkpoint that was merged into it.
    #[getter]
    fn merged(&self) -> Option<(String, String)> {
        self.checkpoint.merged.as_ref().map(|merged| (merged.thread.clone(), merged.id.to_string()))
    }

    #[getter]
    fn label(&self) -> Option<&str> {
        self.checkpoint.label.as_deref()
    }

    #[getter]
    fn metadata(&self) -> BTreeMap<String, String> {
        self.checkpoint.metadata.clone()
    }

    #[getter]
    fn created_at(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        crate::values::datetime(py, self.checkpoint.created_at)
    }

    #[getter]
    fn entries(&self) -> u64 {
        self.checkpoint.entries
    }

    #[getter]
    fn size_bytes(&self) -> u64 {
        self.checkpoint.size_bytes
    }

    /// The versions of the rows that were committed with the checkpoint.
    #[getter]
    fn versions(&self) -> Vec<u64> {
        self.versions.clone()
    }

    fn __repr__(&self) -> String {
        format!("Checkpoint({:?}, label={:?})", self.id(), self.checkpoint.label)
    }
}

impl From<Checkpoint> for PyCheckpoint {
    fn from(checkpoint: Checkpoint) -> Self {
        Self { checkpoint, versions: Vec::new() }
    }
}

operations! { PySession {
    #[pyo3(signature = (label = None, *, metadata = None, batch = None))]
    fn checkpoint, acheckpoint(
        this, py, label: Option<String>, metadata: Option<BTreeMap<String, String>>, batch: Option<PyRef<'_, PyBatch>>
    ) {
        this.checkpoint_work(py, label, metadata, batch.as_deref())
    }

    #[pyo3(signature = (*, label = None, metadata = None, before = None, since = None, until = None, limit = 100))]
    fn checkpoints, acheckpoints(
        this, py, label: Option<String>, metadata: Option<BTreeMap<String, String>>, before: Option<&str>,
        since: Option<&Bound<'_, PyAny>>, until: Option<&Bound<'_, PyAny>>, limit: usize
    ) {
        this.checkpoints_work(py, label, metadata, before, since, until, limit)
    }

    #[pyo3(signature = (id, *, label = None, metadata = None))]
    fn restore, arestore(this, py, id: &str, label: Option<String>, metadata: Option<BTreeMap<String, String>>) {
        this.restore_work(py, id, label, metadata)
    }

    #[pyo3(signature = (thread, *, at = None, label = None))]
    fn fork, afork(this, py, thread: String, at: Option<&str>, label: Option<String>) {
        this.fork_work(py, thread, at, label)
    }

    #[pyo3(signature = (source, *, at = None, strategy = None, resolutions = None, base = None, dry_run = false, label = None, limit = 1000))]
    fn merge, amerge(
        this, py, source: String, at: Option<&str>, strategy: Option<&str>, resolutions: Option<BTreeMap<String, Option<Content>>>,
        base: Option<&str>, dry_run: bool, label: Option<String>, limit: usize
    ) {
        this.merge_work(py, source, at, strategy, resolutions, base, dry_run, label, limit)
    }
} }

/// Returns the checkpoint of an id; without one, the latest.
pub(super) fn at_id(py: Python<'_>, id: Option<&str>) -> PyResult<At> {
    id.map_or(Ok(At::Latest), |id| checkpoint_id(py, id).map(At::Id))
}

impl PySession {
    fn checkpoint_work(
        &self,
        py: Python<'_>,
        label: Option<String>,
        metadata: Option<BTreeMap<String, String>>,
        batch: Option<&PyBatch>,
    ) -> PyResult<Work<PyCheckpoint>> {
        let session = self.session(py)?;
        let mut options = PutOptions::new();
        options.label = label;
        options.metadata = metadata.unwrap_or_default();
        let Some(batch) = batch.map(PyBatch::batch) else {
            return Ok(Work::new(async move { Ok(session.checkpoint(options).await?.into()) }));
        };
        if !batch.preconditions.is_empty() {
            return Err(invalid(py, "a batch that is committed with a checkpoint has no preconditions; leave them out"));
        }
        if batch.writes.is_empty() {
            return Ok(Work::new(async move { Ok(session.checkpoint(options).await?.into()) }));
        }
        let partition = partition_of(session.scope()).map_err(|error| raised(py, error))?;
        if let Some(write) = batch.writes.iter().find(|write| write.namespace().partition() != partition) {
            let message = format!(
                "the batch changes rows of `{}`, and the thread is in the partition `{partition}`; put the rows below `partition` of the session",
                write.namespace()
            );
            return Err(raised(py, Error::unsupported(message)));
        }
        let store = self.thread_store(py)?;
        Ok(Work::new(async move {
            let mut outbox = Outbox::new();
            let receipt = outbox.push_rows(store, batch.writes);
            options.extensions.insert(outbox);
            let made = session.checkpoint(options).await?;
            if !receipt.is_taken() {
                let message = "the checkpoint was saved without the rows; commit them by themselves";
                return Err(Error::new(treehold::ErrorKind::Internal, message));
            }
            Ok(made.into())
        }))
    }

    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn checkpoints_work(
        &self,
        py: Python<'_>,
        label: Option<String>,
        metadata: Option<BTreeMap<String, String>>,
        before: Option<&str>,
        since: Option<&Bound<'_, PyAny>>,
        until: Option<&Bound<'_, PyAny>>,
        limit: usize,
    ) -> PyResult<Work<Vec<PyCheckpoint>>> {
        let session = self.session(py)?;
        let checkpointer = self.checkpointer(py)?;
        let mut options = ListOptions::new();
        (options.label, options.limit) = (label, limit);
        options.metadata = metadata.unwrap_or_default();
        options.since = since.map(timestamp).transpose()?;
        options.until = until.map(timestamp).transpose()?;
        options.start_after = before.map(|id| checkpoint_id(py, id)).transpose()?;
        Ok(Work::new(async move {
            let page = checkpointer.list(session.scope(), &options).await?;
            Ok(session.shown_all(page.checkpoints).await?.into_iter().map(PyCheckpoint::from).collect())
        }))
    }

    fn restore_work(
        &self,
        py: Python<'_>,
        id: &str,
        label: Option<String>,
        metadata: Option<BTreeMap<String, String>>,
    ) -> PyResult<Work<PyCheckpoint>> {
        let (session, id) = (self.session(py)?, checkpoint_id(py, id)?);
        let mut options = PutOptions::new();
        (options.label, options.metadata) = (label, metadata.unwrap_or_default());
        Ok(Work::new(async move { Ok(session.restore(id, options).await?.into()) }))
    }

    fn fork_work(&self, py: Python<'_>, thread: String, at: Option<&str>, label: Option<String>) -> PyResult<Work<PyCheckpoint>> {
        let (session, at) = (self.session(py)?, at_id(py, at)?);
        let mut options = PutOptions::new();
        options.label = label;
        Ok(Work::new(async move { Ok(session.fork(at, &thread, &options).await?.into()) }))
    }

    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn merge_work(
        &self,
        py: Python<'_>,
        source: String,
        at: Option<&str>,
        strategy: Option<&str>,
        resolutions: Option<BTreeMap<String, Option<Content>>>,
        base: Option<&str>,
        dry_run: bool,
        label: Option<String>,
        limit: usize,
    ) -> PyResult<Work<Data>> {
        let (session, at) = (self.session(py)?, at_id(py, at)?);
        let strategy = strategy.map(|name| serde_json::from_value::<MergeStrategy>(name.into())).transpose();
        let mut options = MergeOptions::default();
        options.strategy =
            strategy.map_err(|_| invalid(py, "no merge strategy has this name; use `ours`, `theirs`, `union` or `markers`"))?;
        (options.dry_run, options.label, options.limit) = (dry_run, label, limit);
        options.base = base.map(|id| checkpoint_id(py, id)).transpose()?;
        for (path, resolution) in resolutions.unwrap_or_default() {
            let path = VfsPathBuf::parse(path).map_err(|error| raised(py, error.into()))?;
            let resolution = resolution.map_or(MergeResolution::Remove, |content| MergeResolution::Content(content.0));
            options.resolutions.insert(path, resolution);
        }
        Ok(Work::new(async move { data(&session.merge(&source, at, options).await?) }))
    }
}

fn checkpoint_id(py: Python<'_>, id: &str) -> PyResult<CheckpointId> {
    id.parse().map_err(|_| invalid(py, format!("`{id}` is no checkpoint id; use one of `checkpoints()`")))
}
