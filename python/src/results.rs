//! Results of operations on trees.

use crate::errors::raised;
use crate::values::{Content, Path, datetime, invalid, timestamp};
use crate::work::{ToPython, class};
use bytes::Bytes;
use pyo3::exceptions::{PyIndexError, PyUnicodeDecodeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};
use treehold::backend::Tree;
use treehold::ops::{
    Changed, Entry, EntryKind, Failure, FileRead, GlobResult, GrepFile, GrepLine, GrepResult, Listing, SearchHit, SearchResult, Truncation,
    Version,
};
use treehold::{Error, Result};

/// One entry of a tree.
#[pyclass(frozen, name = "Entry", module = "treehold")]
pub(crate) struct PyEntry {
    pub(crate) entry: Entry,
    target: Option<Entry>,
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

/// The content of a file, or a part of it.
#[pyclass(frozen, name = "FileRead", module = "treehold")]
pub(crate) struct PyFileRead(pub(crate) FileRead);

class!(PyFileRead);

#[pymethods]
impl PyFileRead {
    #[new]
    #[pyo3(signature = (content, *, version, size_bytes = None, modified_at = None, window = None))]
    fn new(
        content: Content,
        version: u64,
        size_bytes: Option<u64>,
        modified_at: Option<Bound<'_, PyAny>>,
        window: Option<&Bound<'_, PyWindow>>,
    ) -> PyResult<Self> {
        let mut read = FileRead::new(content.0, Version::new(version), modified_at.as_ref().map(timestamp).transpose()?);
        read.size_bytes = size_bytes.unwrap_or(read.size_bytes);
        read.window = window.map(|window| window.get().0);
        Ok(Self(read))
    }

    fn __len__(&self) -> usize {
        self.0.content.len()
    }

    #[getter]
    fn content<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.content)
    }

    /// Returns the content as text. The `errors` are those of `bytes.decode`.
    #[pyo3(signature = (errors = "strict"))]
    fn text<'py>(&self, py: Python<'py>, errors: &str) -> PyResult<Bound<'py, PyString>> {
        match std::str::from_utf8(&self.0.content) {
            Ok(text) => Ok(PyString::new(py, text)),
            Err(error) if errors == "strict" => {
                let error = PyUnicodeDecodeError::new_utf8(py, &self.0.content, error)?;
                Err(PyErr::from_value(error.into_any()))
            }
            Err(_) => Ok(PyBytes::new(py, &self.0.content).call_method1("decode", ("utf-8", errors))?.cast_into()?),
        }
    }

    #[getter]
    fn version(&self) -> u64 {
        self.0.version.number()
    }

    #[getter]
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes
    }

    #[getter]
    fn modified_at(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.0.modified_at.map(|time| datetime(py, time)).transpose()
    }

    #[getter]
    fn modified_at_iso(&self) -> Option<String> {
        self.0.modified_at.map(|time| time.to_string())
    }

    #[getter]
    fn window(&self) -> Option<PyWindow> {
        self.0.window.map(PyWindow)
    }

    fn __repr__(&self) -> String {
        format!("FileRead({} bytes, version={})", self.0.content.len(), self.0.version.number())
    }
}

/// The lines that a read returned.
#[pyclass(frozen, name = "Window", module = "treehold")]
pub(crate) struct PyWindow(treehold::ops::Window);

#[pymethods]
impl PyWindow {
    #[new]
    fn new(offset: usize, lines: usize, total_lines: usize) -> Self {
        Self(treehold::ops::Window { offset, lines, total_lines })
    }

    #[getter]
    fn offset(&self) -> usize {
        self.0.offset
    }

    #[getter]
    fn lines(&self) -> usize {
        self.0.lines
    }

    #[getter]
    fn total_lines(&self) -> usize {
        self.0.total_lines
    }

    #[getter]
    fn next_offset(&self) -> Option<usize> {
        self.0.next_offset()
    }

    fn __repr__(&self) -> String {
        format!("Window(offset={}, lines={}, total_lines={})", self.0.offset, self.0.lines, self.0.total_lines)
    }
}

/// Bytes on their way to Python.
pub(crate) struct Binary(pub(crate) Bytes);

impl ToPython for Binary {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(PyBytes::new(py, &self.0).into_any().unbind())
    }
}

/// Reads of several files: each with its content or its error.
pub(crate) struct Reads(pub(crate) Vec<Result<FileRead>>);

impl ToPython for Reads {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let reads = self.0.into_iter().map(|read| match read {
            Ok(read) => PyFileRead(read).to_python(py),
            Err(error) => Ok(raised(py, error).into_value(py).into_any()),
        });
        Ok(PyList::new(py, reads.collect::<PyResult<Vec<_>>>()?)?.into_any().unbind())
    }
}

/// A part of a tree that could not be read.
#[pyclass(frozen, name = "Failure", module = "treehold")]
pub(crate) struct PyFailure(Failure);

class!(PyFailure);

#[pymethods]
impl PyFailure {
    #[getter]
    fn path(&self) -> &str {
        self.0.path.as_str()
    }

    #[getter]
    fn code(&self) -> &str {
        &self.0.error.code
    }

    #[getter]
    fn message(&self) -> &str {
        &self.0.error.message
    }

    /// Returns the failure as an exception.
    fn error(&self, py: Python<'_>) -> Py<PyAny> {
        raised(py, Error::from(&self.0.error).at(&self.0.path)).into_value(py).into_any()
    }

    fn __repr__(&self) -> String {
        format!("Failure({:?}, code={:?})", self.0.path.as_str(), self.0.error.code)
    }
}

/// Why a result is not complete, and where to continue.
fn cursor(truncated: &Option<Truncation>) -> Option<&str> {
    truncated.as_ref().map(|truncation| truncation.cursor.as_str())
}

/// A list of entries.
#[pyclass(frozen, name = "Listing", module = "treehold")]
pub(crate) struct PyListing {
    entries: Py<PyList>,
    truncated: Option<Truncation>,
    failures: Py<PyList>,
}

#[pymethods]
impl PyListing {
    #[getter]
    fn entries(&self, py: Python<'_>) -> Py<PyList> {
        self.entries.clone_ref(py)
    }

    /// Where to continue if there is more.
    #[getter]
    fn next(&self) -> Option<&str> {
        cursor(&self.truncated)
    }

    #[getter]
    fn failures(&self, py: Python<'_>) -> Py<PyList> {
        self.failures.clone_ref(py)
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.entries.bind(py).len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.entries.bind(py).try_iter()?.into_any())
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Bound<'py, PyAny>> {
        let entries = self.entries.bind(py);
        let at = if index < 0 { entries.len().checked_add_signed(index) } else { usize::try_from(index).ok() };
        at.filter(|at| *at < entries.len()).map_or_else(|| Err(PyIndexError::new_err("no such entry")), |at| entries.get_item(at))
    }

    fn infos(&self, py: Python<'_>) -> PyResult<Py<PyList>> {
        let mut infos = Vec::new();
        for entry in self.entries.bind(py).iter() {
            let entry = &entry.cast::<PyEntry>()?.get().entry;
            let is_dir = entry.is_directory();
            let path = if is_dir { format!("{}/", entry.path) } else { entry.path.to_string() };
            infos.push((path, is_dir, entry.size_bytes, entry.modified_at));
        }
        infos.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        let dicts = PyList::empty(py);
        for (path, is_dir, size_bytes, modified_at) in infos {
            let dict = PyDict::new(py);
            dict.set_item(intern!(py, "path"), path)?;
            dict.set_item(intern!(py, "is_dir"), is_dir)?;
            dict.set_item(intern!(py, "size"), if is_dir { 0 } else { size_bytes })?;
            dict.set_item(intern!(py, "modified_at"), modified_at.map(|time| time.to_string()).unwrap_or_default())?;
            dicts.append(dict)?;
        }
        Ok(dicts.unbind())
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("Listing({} entries, next={:?})", self.entries.bind(py).len(), self.next())
    }
}

fn listing(
    py: Python<'_>,
    entries: impl IntoIterator<Item = PyEntry>,
    truncated: Option<Truncation>,
    failures: Vec<Failure>,
) -> PyResult<Py<PyAny>> {
    let entries = entries.into_iter().map(|entry| Py::new(py, entry)).collect::<PyResult<Vec<_>>>()?;
    let failures = failures.into_iter().map(|failure| Py::new(py, PyFailure(failure))).collect::<PyResult<Vec<_>>>()?;
    let (entries, failures) = (PyList::new(py, entries)?.unbind(), PyList::new(py, failures)?.unbind());
    Ok(Py::new(py, PyListing { entries, truncated, failures })?.into_any())
}

/// A listing, and what its links lead to if that was asked for.
pub(crate) struct Listed {
    pub(crate) listing: Listing,
    pub(crate) targets: Vec<Option<Entry>>,
}

impl ToPython for Listed {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let targets = self.targets.into_iter().chain(std::iter::repeat(None));
        let entries = self.listing.entries.into_iter().zip(targets).map(|(entry, target)| PyEntry { entry, target });
        listing(py, entries, self.listing.truncated, self.listing.failures)
    }
}

impl ToPython for GlobResult {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        listing(py, self.entries.into_iter().map(PyEntry::from), self.truncated, self.failures)
    }
}

/// A directory with what is beneath it.
#[pyclass(frozen, name = "Tree", module = "treehold")]
pub(crate) struct PyTree(Tree);

#[pymethods]
impl PyTree {
    #[getter]
    fn entries(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.0.entries.iter().cloned().map(PyEntry::from).collect::<Vec<_>>().to_python(py)
    }

    #[getter]
    fn truncated(&self) -> bool {
        self.0.truncated
    }

    #[getter]
    fn failures(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.0.failures.iter().cloned().map(PyFailure).collect::<Vec<_>>().to_python(py)
    }

    fn __repr__(&self) -> String {
        format!("Tree({} entries, truncated={})", self.0.entries.len(), self.0.truncated)
    }
}

impl ToPython for Tree {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(Py::new(py, PyTree(self))?.into_any())
    }
}

/// A line of a file that a search found, or a line beside it.
#[pyclass(frozen, name = "GrepLine", module = "treehold")]
pub(crate) struct PyGrepLine(GrepLine);

#[pymethods]
impl PyGrepLine {
    #[getter]
    fn line(&self) -> usize {
        self.0.line
    }

    #[getter]
    fn byte_offset(&self) -> u64 {
        self.0.byte_offset
    }

    #[getter]
    fn text(&self) -> String {
        self.0.text_lossy().into_owned()
    }

    #[getter]
    fn content<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.text)
    }

    #[getter]
    fn ranges(&self) -> Vec<(usize, usize)> {
        self.0.ranges.iter().map(|range| (range.start, range.end)).collect()
    }

    #[getter]
    fn is_match(&self) -> bool {
        self.0.is_match
    }

    fn __repr__(&self) -> String {
        format!("GrepLine({}, {:?}, is_match={})", self.0.line, self.0.text_lossy(), self.0.is_match)
    }
}

/// A file with matches.
#[pyclass(frozen, name = "GrepFile", module = "treehold")]
pub(crate) struct PyGrepFile(GrepFile);

class!(PyGrepFile);

#[pymethods]
impl PyGrepFile {
    #[getter]
    fn path(&self) -> &str {
        self.0.path.as_str()
    }

    #[getter]
    fn count(&self) -> usize {
        self.0.count
    }

    #[getter]
    fn lines(&self) -> Vec<PyGrepLine> {
        self.0.lines.iter().cloned().map(PyGrepLine).collect()
    }

    fn __repr__(&self) -> String {
        format!("GrepFile({:?}, count={})", self.0.path.as_str(), self.0.count)
    }
}

/// What a search of lines found.
#[pyclass(frozen, name = "GrepResult", module = "treehold")]
pub(crate) struct PyGrepResult(GrepResult);

#[pymethods]
impl PyGrepResult {
    #[getter]
    fn files(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.0.files.iter().cloned().map(PyGrepFile).collect::<Vec<_>>().to_python(py)
    }

    /// The matching lines of all files, as (path, line, text).
    #[getter]
    fn matches(&self) -> Vec<(String, usize, String)> {
        let files = self.0.files.iter();
        let lines = files.flat_map(|file| file.lines.iter().filter(|line| line.is_match).map(move |line| (file, line)));
        lines.map(|(file, line)| (file.path.as_str().to_owned(), line.line, line.text_lossy().into_owned())).collect()
    }

    #[getter]
    fn files_searched(&self) -> usize {
        self.0.files_searched
    }

    #[getter]
    fn files_binary(&self) -> usize {
        self.0.files_binary
    }

    #[getter]
    fn files_too_large(&self) -> usize {
        self.0.files_too_large
    }

    #[getter]
    fn next(&self) -> Option<&str> {
        cursor(&self.0.truncated)
    }

    #[getter]
    fn failures(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.0.failures.iter().cloned().map(PyFailure).collect::<Vec<_>>().to_python(py)
    }

    fn __len__(&self) -> usize {
        self.0.matches()
    }

    fn __repr__(&self) -> String {
        format!("GrepResult({} files, {} matches, next={:?})", self.0.files.len(), self.0.matches(), cursor(&self.0.truncated))
    }
}

impl ToPython for GrepResult {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(Py::new(py, PyGrepResult(self))?.into_any())
    }
}

/// A file that a ranked search found.
#[pyclass(frozen, name = "SearchHit", module = "treehold")]
pub(crate) struct PySearchHit(SearchHit);

class!(PySearchHit);

#[pymethods]
impl PySearchHit {
    #[getter]
    fn modified_at(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.0.modified_at.map(|time| datetime(py, time)).transpose()
    }

    #[getter]
    fn path(&self) -> &str {
        self.0.path.as_str()
    }

    #[getter]
    fn score(&self) -> f64 {
        self.0.score
    }

    #[getter]
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes
    }

    #[getter]
    fn version(&self) -> u64 {
        self.0.version.number()
    }

    /// The best lines, as (line, text).
    #[getter]
    fn snippets(&self) -> Vec<(usize, String)> {
        self.0.snippets.iter().map(|snippet| (snippet.line, snippet.text.clone())).collect()
    }

    fn __repr__(&self) -> String {
        format!("SearchHit({:?}, score={:.3})", self.0.path.as_str(), self.0.score)
    }
}

/// What a ranked search found.
#[pyclass(frozen, name = "SearchResult", module = "treehold")]
pub(crate) struct PySearchResult(SearchResult);

#[pymethods]
impl PySearchResult {
    #[getter]
    fn hits(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.0.hits.iter().cloned().map(PySearchHit).collect::<Vec<_>>().to_python(py)
    }

    #[getter]
    fn words(&self) -> Vec<String> {
        self.0.words.clone()
    }

    #[getter]
    fn near(&self) -> std::collections::BTreeMap<String, Vec<String>> {
        self.0.near.iter().map(|near| (near.spelled.clone(), near.found.clone())).collect()
    }

    #[getter]
    fn files_searched(&self) -> u64 {
        self.0.corpus.files
    }

    #[getter]
    fn is_near_omitted(&self) -> bool {
        self.0.is_near_omitted
    }

    #[getter]
    fn failures_of_meaning(&self) -> usize {
        self.0.failures_of_meaning
    }

    #[getter]
    fn next(&self) -> Option<&str> {
        cursor(&self.0.truncated)
    }

    #[getter]
    fn failures(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.0.failures.iter().cloned().map(PyFailure).collect::<Vec<_>>().to_python(py)
    }

    fn __len__(&self) -> usize {
        self.0.hits.len()
    }
}

impl ToPython for SearchResult {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(Py::new(py, PySearchResult(self))?.into_any())
    }
}

/// What a change did.
#[pyclass(frozen, name = "Changed", module = "treehold")]
pub(crate) struct PyChanged(Changed);

#[pymethods]
impl PyChanged {
    #[getter]
    fn operation(&self) -> &'static str {
        self.0.operation.name()
    }

    #[getter]
    fn path(&self) -> &str {
        self.0.path.as_str()
    }

    #[getter]
    fn version(&self) -> Option<u64> {
        self.0.version.map(|version| version.number())
    }

    #[getter]
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes
    }

    #[getter]
    fn created(&self) -> bool {
        self.0.created
    }

    #[getter]
    fn replacements(&self) -> usize {
        self.0.replacements
    }

    #[getter]
    fn entries(&self) -> usize {
        self.0.entries
    }

    fn __repr__(&self) -> String {
        format!("Changed({:?}, {:?}, version={:?})", self.0.operation.name(), self.0.path.as_str(), self.version())
    }
}

impl ToPython for Changed {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(Py::new(py, PyChanged(self))?.into_any())
    }
}

impl ToPython for Vec<Changed> {
    fn to_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let changed = self.into_iter().map(|changed| Py::new(py, PyChanged(changed))).collect::<PyResult<Vec<_>>>()?;
        Ok(PyList::new(py, changed)?.into_any().unbind())
    }
}

/// Adds the classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyEntry>()?;
    module.add_class::<PyFileRead>()?;
    module.add_class::<PyWindow>()?;
    module.add_class::<PyFailure>()?;
    module.add_class::<PyListing>()?;
    module.add_class::<PyTree>()?;
    module.add_class::<PyGrepLine>()?;
    module.add_class::<PyGrepFile>()?;
    module.add_class::<PyGrepResult>()?;
    module.add_class::<PySearchHit>()?;
    module.add_class::<PySearchResult>()?;
    module.add_class::<PyChanged>()
}
