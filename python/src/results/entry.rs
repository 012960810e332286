//! Entries.

use crate::values::{Path, datetime, invalid, timestamp};
use crate::work::class;
use pyo3::prelude::*;
use treehold::ops::{Entry, EntryKind, Version};

/// One entry of a tree.
#[pyclass(frozen, name = "Entry", module = "treehold")]
pub(crate) struct PyEntry {
    pub(crate) entry: Entry,
    pub(super) target: Option<Entry>,
}

class!(PyEntry);

impl From<Entry> for PyEntry {
    fn from(entry: Entry) -> Self {
        Self { entry, target: None }
    }
}

#[pymethods]
impl PyEntry {
    #[new]
    #[pyo3(signature = (path, *, kind = None, size_bytes = 0, version = None, created_at = None, modified_at = None, leads_to = None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        path: Path,
        kind: Option<&str>,
        size_bytes: u64,
        version: Option<u64>,
        created_at: Option<Bound<'_, PyAny>>,
        modified_at: Option<Bound<'_, PyAny>>,
        leads_to: Option<Path>,
    ) -> PyResult<Self> {
        let kind = match kind {
            None | Some("file") => EntryKind::File,
            Some("directory") => EntryKind::Directory,
            Some("symlink") => EntryKind::Symlink,
            Some("other") => EntryKind::Other,
            Some(other) => return Err(invalid(py, format!("no kind is named `{other}`; use `file`, `directory`, `symlink` or `other`"))),
        };
        let times = [created_at, modified_at].map(|time| time.as_ref().map(timestamp).transpose());
        let [created_at, modified_at] = times;
        let mut entry = Entry::directory(path.0).with_kind(kind).with_size_bytes(size_bytes).with_times(created_at?, modified_at?);
        entry.version = version.map(Version::new);
        Ok(entry.with_leads_to(leads_to.map(|path| path.0)).into())
    }

    /// What a link leads to within the tree.
    #[getter]
    fn target(&self) -> Option<Self> {
        self.target.clone().map(Self::from)
    }

    #[getter]
    fn path(&self) -> &str {
        self.entry.path.as_str()
    }

    #[getter]
    fn name(&self) -> &str {
        self.entry.name()
    }

    #[getter]
    fn kind(&self) -> String {
        self.entry.kind.to_string()
    }

    #[getter]
    fn is_dir(&self) -> bool {
        self.entry.is_directory()
    }

    #[getter]
    fn size_bytes(&self) -> u64 {
        self.entry.size_bytes
    }

    #[getter]
    fn version(&self) -> Option<u64> {
        self.entry.version.map(|version| version.number())
    }

    #[getter]
    fn created_at(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.entry.created_at.map(|time| datetime(py, time)).transpose()
    }

    #[getter]
    fn modified_at(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.entry.modified_at.map(|time| datetime(py, time)).transpose()
    }

    #[getter]
    fn created_at_iso(&self) -> Option<String> {
        self.entry.created_at.map(|time| time.to_string())
    }

    #[getter]
    fn modified_at_iso(&self) -> Option<String> {
        self.entry.modified_at.map(|time| time.to_string())
    }

    #[getter]
    fn leads_to(&self) -> Option<&str> {
        let target = self.target.as_ref().map(|target| &target.path);
        self.entry.leads_to.as_ref().or(target).map(|path| path.as_str())
    }

    fn __repr__(&self) -> String {
        format!("Entry({:?}, kind={:?}, size_bytes={})", self.entry.path.as_str(), self.entry.kind.to_string(), self.entry.size_bytes)
    }
}
