//! What files were: differences, earlier trees, and what takes changes back.

use super::PySession;
use super::checkpoints::at_id;
use crate::backend::PyBackend;
use crate::store::{Data, data};
use crate::values::{Path, invalid, timestamp};
use crate::work::{ToPython, Work, operations};
use pyo3::prelude::*;
use std::sync::Arc;
use treehold::session::UndoOf;
use treehold::{Error, VfsPathBuf};

operations! { PySession {
    #[pyo3(signature = (older, newer = None, *, after = None, limit = 1000))]
    fn diff, adiff(this, py, older: &str, newer: Option<&str>, after: Option<Path>, limit: usize) {
        this.diff_work(py, older, newer, after, limit)
    }

    #[pyo3(signature = (id = None))]
    fn history, ahistory(this, py, id: Option<&str>) {
        this.history_work(py, id)
    }

    #[pyo3(signature = (path, *, limit = 100))]
    fn log, alog(this, py, path: Path, limit: usize) {
        let session = this.session(py)?;
        Ok(Work::new(async move { data(&session.log(&path.0, limit).await?) }))
    }

    fn as_of, aas_of(this, py, moment: &Bound<'_, PyAny>) {
        let (session, workspace, moment) = (this.session(py)?, this.workspace(py)?.clone(), named(moment)?);
        Ok(Work::new(async move {
            session.save().await?;
            Ok(Tree(workspace.tree_as_of(session.scope(), &moment).await?))
        }))
    }

    fn restore_files, arestore_files(this, py, paths: Vec<Path>, moment: &Bound<'_, PyAny>) {
        let (session, moment) = (this.session(py)?, named(moment)?);
        Ok(Work::new(async move {
            session.save().await?;
            let paths: Vec<VfsPathBuf> = paths.into_iter().map(|path| path.0).collect();
            session.restore_files(&paths, &moment).await
        }))
    }

    #[pyo3(signature = (*, of = "thread"))]
    fn undo, aundo(this, py, of: &str) {
        let session = this.session(py)?;
        let of = match of {
            "thread" => UndoOf::Thread,
            "user" => UndoOf::User,
            other => return Err(invalid(py, format!("nobody's changes are named `{other}`; use `thread` or `user`"))),
        };
        Ok(Work::new(async move { data(&session.undo(of).await?) }))
    }
} }

impl PySession {
    fn history_work(&self, py: Python<'_>, id: Option<&str>) -> PyResult<Work<Tree>> {
        let (session, at) = (self.session(py)?, at_id(py, id)?);
        Ok(Work::new(async move { Ok(Tree(session.history(at).await?)) }))
    }

    fn diff_work(&self, py: Python<'_>, older: &str, newer: Option<&str>, after: Option<Path>, limit: usize) -> PyResult<Work<Data>> {
        let (session, older, newer) = (self.session(py)?, at_id(py, Some(older))?, at_id(py, newer)?);
        let checkpointer = self.checkpointer(py)?;
        Ok(Work::new(async move {
            session.save().await?;
            let state = async |at| {
                let opened = checkpointer.open(session.scope(), at).await?;
                opened
                    .map(|opened| opened.state)
                    .ok_or_else(|| Error::new(treehold::ErrorKind::NotFound, "the thread has no such checkpoint"))
            };
            let (older, newer) = (state(older).await?, state(newer).await?);
            data(&session.diff(&older, &newer, after.as_ref().map(|path| &*path.0), limit).await?)
        }))
    }
}

/// A tree on its way to Python.
struct Tree(Arc<dyn treehold::Backend>);

impl ToPython for Tree {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(Py::new(py, PyBackend::of(self.0))?.into_any())
    }
}

/// Returns the name of a moment: a `datetime` is written as a time.
fn named(moment: &Bound<'_, PyAny>) -> PyResult<String> {
    moment.extract::<String>().or_else(|_| timestamp(moment).map(|time| time.to_string()))
}
