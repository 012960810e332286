//! The operations that change a tree, and batches of changes.

use super::PyBackend;
use crate::errors::raised;
use crate::values::{Content, Path, invalid};
use crate::work::{Work, operations};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;
use treehold::backend::BackendExt;
use treehold::ops::{ApplyOptions, Change, Changed, Edit, Version, WriteMode};
use treehold::{Backend, Error, ErrorKind};

operations! { PyBackend {
    /// Creates a file or replaces its content.
    #[pyo3(signature = (path, content, *, mode = None, if_version = None))]
    fn write, awrite(this, py, path: Path, content: Content, mode: Option<String>, if_version: Option<u64>) {
        let tree = this.opened(py)?;
        let mode = write_mode(py, mode, if_version)?;
        Ok(one(tree, Change::Write { path: path.0, content: content.0, mode }))
    }

    /// Writes several files as one batch. `files` is a mapping, or pairs of path and content.
    #[pyo3(signature = (files, *, allow_partial = false))]
    fn write_many, awrite_many(this, py, files: &Bound<'_, PyAny>, allow_partial: bool) {
        let tree = this.opened(py)?;
        let changes = writes(files)?;
        Ok(all(tree, changes, allow_partial))
    }

    /// Appends to a file, or creates it.
    #[pyo3(signature = (path, content))]
    fn append, aappend(this, py, path: Path, content: Content) {
        let tree = this.opened(py)?;
        Ok(one(tree, Change::Append { path: path.0, content: content.0 }))
    }

    /// Replaces the only occurrence of a text, or every one.
    #[pyo3(signature = (path, old, new, *, replace_all = false, if_version = None))]
    fn edit, aedit(this, py, path: Path, old: String, new: String, replace_all: bool, if_version: Option<u64>) {
        let tree = this.opened(py)?;
        let edits = vec![if replace_all { Edit::all(old, new) } else { Edit::new(old, new) }];
        Ok(one(tree, Change::Edit { path: path.0, edits, expect: if_version.map(Version::new) }))
    }

    /// Applies several replacements in order, all or none. Each is (old, new) or (old, new, replace_all).
    #[pyo3(signature = (path, edits, *, if_version = None))]
    fn edit_many, aedit_many(this, py, path: Path, edits: Vec<PyEdit>, if_version: Option<u64>) {
        let tree = this.opened(py)?;
        let edits = edits.into_iter().map(Edit::from).collect();
        Ok(one(tree, Change::Edit { path: path.0, edits, expect: if_version.map(Version::new) }))
    }

    /// Creates a directory and missing parents.
    #[pyo3(signature = (path))]
    fn create_dir, acreate_dir(this, py, path: Path) {
        let tree = this.opened(py)?;
        Ok(one(tree, Change::CreateDir { path: path.0 }))
    }

    /// Removes a file, a link, or a directory.
    #[pyo3(signature = (path, *, recursive = false, if_version = None))]
    fn delete, adelete(this, py, path: Path, recursive: bool, if_version: Option<u64>) {
        let tree = this.opened(py)?;
        Ok(one(tree, Change::Delete { path: path.0, recursive, expect: if_version.map(Version::new) }))
    }

    /// Moves a file or a directory.
    #[pyo3(signature = (source, target, *, overwrite = false))]
    fn r#move, amove(this, py, source: Path, target: Path, overwrite: bool) {
        let tree = this.opened(py)?;
        Ok(one(tree, Change::Rename { from: source.0, to: target.0, overwrite }))
    }

    /// Copies a file or a directory.
    #[pyo3(signature = (source, target, *, overwrite = false))]
    fn copy, acopy(this, py, source: Path, target: Path, overwrite: bool) {
        let tree = this.opened(py)?;
        Ok(one(tree, Change::Copy { from: source.0, to: target.0, overwrite }))
    }

    /// Applies changes as one batch, all or none.
    #[pyo3(signature = (changes, *, allow_partial = false, refuse_links = false))]
    fn apply, aapply(this, py, changes: Vec<PyChange>, allow_partial: bool, refuse_links: bool) {
        let tree = this.opened(py)?;
        let changes: Vec<Change> = changes.into_iter().map(|change| change.0).collect();
        let options = ApplyOptions::new().with_allow_partial(allow_partial).with_refuse_links(refuse_links);
        Ok(Work::new(async move { tree.apply(&changes, &options).await }))
    }
} }

/// One change of a batch.
#[pyclass(frozen, from_py_object, name = "Change", module = "treehold")]
#[derive(Clone)]
pub(super) struct PyChange(Change);

#[pymethods]
impl PyChange {
    #[staticmethod]
    #[pyo3(signature = (path, content, *, mode = None, if_version = None))]
    fn write(py: Python<'_>, path: Path, content: Content, mode: Option<String>, if_version: Option<u64>) -> PyResult<Self> {
        Ok(Self(Change::Write { path: path.0, content: content.0, mode: write_mode(py, mode, if_version)? }))
    }

    #[staticmethod]
    fn append(path: Path, content: Content) -> Self {
        Self(Change::Append { path: path.0, content: content.0 })
    }

    #[staticmethod]
    #[pyo3(signature = (path, *edits, if_version = None))]
    fn edit(path: Path, edits: Vec<PyEdit>, if_version: Option<u64>) -> Self {
        let edits = edits.into_iter().map(Edit::from).collect();
        Self(Change::Edit { path: path.0, edits, expect: if_version.map(Version::new) })
    }

    #[staticmethod]
    fn create_dir(path: Path) -> Self {
        Self(Change::CreateDir { path: path.0 })
    }

    #[staticmethod]
    #[pyo3(signature = (path, *, recursive = false, if_version = None))]
    fn delete(path: Path, recursive: bool, if_version: Option<u64>) -> Self {
        Self(Change::Delete { path: path.0, recursive, expect: if_version.map(Version::new) })
    }

    #[staticmethod]
    #[pyo3(name = "move", signature = (source, target, *, overwrite = false))]
    fn rename(source: Path, target: Path, overwrite: bool) -> Self {
        Self(Change::Rename { from: source.0, to: target.0, overwrite })
    }

    #[staticmethod]
    #[pyo3(signature = (source, target, *, overwrite = false))]
    fn copy(source: Path, target: Path, overwrite: bool) -> Self {
        Self(Change::Copy { from: source.0, to: target.0, overwrite })
    }

    /// What it does.
    #[getter]
    fn kind(&self) -> &'static str {
        match self.0.kind().name() {
            "rename" => "move",
            name => name,
        }
    }

    #[getter]
    fn path(&self) -> &str {
        self.0.path().as_str()
    }

    #[getter]
    fn target(&self) -> Option<&str> {
        self.0.target().map(|target| target.as_str())
    }

    #[getter]
    fn content<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        match &self.0 {
            Change::Write { content, .. } | Change::Append { content, .. } => Some(PyBytes::new(py, content)),
            _ => None,
        }
    }

    #[getter]
    fn edits(&self) -> Vec<(String, String, bool)> {
        match &self.0 {
            Change::Edit { edits, .. } => edits.iter().map(|edit| (edit.old.clone(), edit.new.clone(), edit.replace_all)).collect(),
            _ => Vec::new(),
        }
    }

    #[getter]
    fn if_version(&self) -> Option<u64> {
        match &self.0 {
            Change::Write { mode: WriteMode::IfVersion(version), .. } => Some(version.number()),
            Change::Edit { expect, .. } | Change::Delete { expect, .. } => expect.map(Version::number),
            _ => None,
        }
    }

    fn __repr__(&self) -> String {
        format!("Change({:?}, {:?})", self.0.kind().name(), self.0.path().as_str())
    }
}

/// Replaces a text within a text, as `edit` does within a file. Returns the new text and the number of replacements.
#[pyfunction]
#[pyo3(signature = (content, old, new, replace_all = false))]
pub(super) fn edit_text(py: Python<'_>, content: &str, old: &str, new: &str, replace_all: bool) -> PyResult<(String, usize)> {
    let edit = if replace_all { Edit::all(old, new) } else { Edit::new(old, new) };
    let edited = py.detach(|| {
        let (content, replacements) = treehold::text::edit(content.as_bytes(), &[edit])?;
        let content = String::from_utf8(content);
        let content = content.map_err(|error| Error::new(ErrorKind::Internal, "an edit of text made other bytes").with_source(error))?;
        Ok((content, replacements))
    });
    edited.map_err(|error: Error| raised(py, error))
}

/// One replacement.
#[derive(FromPyObject)]
enum PyEdit {
    Full(String, String, bool),
    Once(String, String),
}

impl From<PyEdit> for Edit {
    fn from(edit: PyEdit) -> Self {
        match edit {
            PyEdit::Full(old, new, true) => Self::all(old, new),
            PyEdit::Full(old, new, false) | PyEdit::Once(old, new) => Self::new(old, new),
        }
    }
}

fn write_mode(py: Python<'_>, mode: Option<String>, if_version: Option<u64>) -> PyResult<WriteMode> {
    match (mode.as_deref(), if_version) {
        (None | Some("overwrite"), None) => Ok(WriteMode::Overwrite),
        (None | Some("overwrite"), Some(version)) => Ok(WriteMode::IfVersion(Version::new(version))),
        (Some("create"), None) => Ok(WriteMode::CreateNew),
        (Some("create"), Some(_)) => Err(invalid(py, "`mode=\"create\"` and `if_version` exclude each other; leave one out")),
        (Some(other), _) => Err(invalid(py, format!("no mode of writing is named `{other}`; use `overwrite` or `create`"))),
    }
}

fn one(tree: Arc<dyn Backend>, change: Change) -> Work<Changed> {
    Work::new(async move { tree.apply_one(change).await })
}

fn all(tree: Arc<dyn Backend>, changes: Vec<Change>, allow_partial: bool) -> Work<Vec<Changed>> {
    Work::new(async move { tree.apply(&changes, &ApplyOptions::new().with_allow_partial(allow_partial)).await })
}

fn writes(files: &Bound<'_, PyAny>) -> PyResult<Vec<Change>> {
    let pairs = match files.getattr("items") {
        Ok(items) => items.call0()?,
        Err(_) => files.clone(),
    };
    let write = |pair: PyResult<Bound<'_, PyAny>>| {
        let (path, content): (Path, Content) = pair?.extract()?;
        Ok(Change::Write { path: path.0, content: content.0, mode: WriteMode::Overwrite })
    };
    pairs.try_iter()?.map(write).collect()
}
