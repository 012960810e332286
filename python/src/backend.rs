//! Trees: the base class, the tiers and the composite.

use crate::errors::raised;
use crate::layers;
use crate::results::{Binary, Listed};
use crate::results::{PyEntry, PyFileRead, Reads};
use crate::runtime::Held;
use crate::store::{PyStore, data, forked};
use crate::values::{Content, Path, Seconds, Space, invalid, text_of, timestamp};
use crate::work::{Work, operations};
use jiff::Timestamp;
use pyo3::exceptions::{PyNotImplementedError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMapping, PyTuple};
use std::path::PathBuf;
use std::sync::Arc;
use treehold::backend::{BackendExt, HistoryPolicy, IndexKind};
use treehold::ops::{
    ApplyOptions, Capabilities, Change, Changed, Edit, FileRead, GlobOptions, GrepOptions, LsOptions, Moment, OnFailure, ReadOptions,
    SearchOptions, Spelling, StatOptions, Version, WriteMode,
};
use treehold::store::Namespace;
use treehold::{
    Backend, CompositeBackend, Error, ErrorKind, FilesystemBackend, FilesystemOptions, OverlayBackend, StateBackend, Store, StoreBackend,
    Subtree, SyncMode, VfsPathBuf, text,
};

/// A file tree. Native tiers, layers and composites are subclasses.
#[pyclass(frozen, subclass, name = "Backend", module = "treehold")]
pub(crate) struct PyBackend {
    /// None in an instance of a class that is written in Python.
    tree: Option<Held<Arc<dyn Backend>>>,
}

impl PyBackend {
    pub(crate) fn of(tree: Arc<dyn Backend>) -> Self {
        Self { tree: Some(Held::new(tree)) }
    }

    /// Returns the tree for a call.
    pub(crate) fn opened(&self, py: Python<'_>) -> PyResult<Arc<dyn Backend>> {
        match &self.tree {
            Some(tree) => tree.get().cloned().ok_or_else(|| forked(py, "tree")),
            None => Err(PyNotImplementedError::new_err("the backend does not implement this operation")),
        }
    }
}

fn read_options(offset: usize, limit: Option<usize>, bytes_max: Option<u64>, refuse_links: bool) -> ReadOptions {
    let options = match (offset, limit) {
        (0, None) => ReadOptions::new(),
        (offset, limit) => ReadOptions::lines(offset, limit.unwrap_or(usize::MAX)),
    };
    let options = options.with_refuse_links(refuse_links);
    match bytes_max {
        Some(bytes_max) => options.with_bytes_max(bytes_max),
        None => options,
    }
}

/// Converts what was read to what is shown.
fn shown(read: FileRead, unix_lines: bool) -> FileRead {
    if unix_lines { text::with_unix_lines(read) } else { read }
}

fn on_failure(partial: bool) -> OnFailure {
    if partial { OnFailure::Partial } else { OnFailure::Fail }
}

fn or_root(path: Option<Path>) -> VfsPathBuf {
    path.map_or_else(VfsPathBuf::root, |path| path.0)
}

/// Reads one of the choices of an option by its name.
fn choice<T: Default + for<'de> serde::Deserialize<'de>>(py: Python<'_>, option: &str, name: Option<String>) -> PyResult<T> {
    let Some(name) = name else { return Ok(T::default()) };
    serde_json::from_value(serde_json::Value::String(name)).map_err(|error| invalid(py, format!("the option `{option}` is wrong: {error}")))
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

/// One change of a batch.
#[pyclass(frozen, from_py_object, name = "Change", module = "treehold")]
#[derive(Clone)]
struct PyChange(Change);

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

#[pymethods]
impl PyBackend {
    /// A subclass in Python overrides the operations that it has.
    #[new]
    #[pyo3(signature = (*_arguments, **_keywords))]
    fn new(_arguments: &Bound<'_, PyTuple>, _keywords: Option<&Bound<'_, PyDict>>) -> Self {
        Self { tree: None }
    }

    /// What the tree offers.
    #[getter]
    fn capabilities(slf: &Bound<'_, Self>) -> PyResult<PyCapabilities> {
        Ok(PyCapabilities(tree_of(slf.as_any())?.capabilities()))
    }

    fn __str__(&self) -> String {
        self.tree.as_ref().and_then(Held::get).map_or_else(|| "Backend".to_owned(), ToString::to_string)
    }

    fn __repr__(&self) -> String {
        format!("<{}>", self.__str__())
    }
}

operations! { PyBackend {
    /// Returns the version of a file; `None` if there is none.
    #[pyo3(signature = (path))]
    fn version, aversion(this, py, path: Path) {
        let tree = this.opened(py)?;
        Ok(Work::new(async move {
            match tree.stat(&path.0, &StatOptions::new()).await {
                Ok(entry) => Ok(entry.version.map(Version::number)),
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
                Err(error) => Err(error),
            }
        }))
    }

    /// Reads a whole file.
    #[pyo3(signature = (path))]
    fn read_bytes, aread_bytes(this, py, path: Path) {
        let tree = this.opened(py)?;
        Ok(Work::new(async move { Ok(Binary(tree.read(&path.0, &ReadOptions::new()).await?.content)) }))
    }

    /// Reads a whole file as UTF-8.
    #[pyo3(signature = (path))]
    fn read_text, aread_text(this, py, path: Path) {
        let tree = this.opened(py)?;
        Ok(Work::new(async move { tree.read_text(path.0.as_str()).await }))
    }

    /// Lists what is beneath a directory.
    #[pyo3(signature = (path = None, *, depth = 3, limit = 10000))]
    fn tree, atree(this, py, path: Option<Path>, depth: usize, limit: usize) {
        let tree = this.opened(py)?;
        Ok(Work::new(async move { tree.tree(or_root(path).as_str(), depth, limit).await }))
    }

    /// Returns one entry.
    #[pyo3(signature = (path, *, refuse_links = false))]
    fn stat, astat(this, py, path: Path, refuse_links: bool) {
        let tree = this.opened(py)?;
        let options = StatOptions::new().with_refuse_links(refuse_links);
        Ok(Work::new(async move { tree.stat(&path.0, &options).await.map(PyEntry::from) }))
    }

    /// Returns whether there is anything at a path.
    #[pyo3(signature = (path))]
    fn exists, aexists(this, py, path: Path) {
        let tree = this.opened(py)?;
        Ok(Work::new(async move { tree.exists(path.0.as_str()).await }))
    }

    /// Reads a file: all of it, or the lines from `offset` (from 0), at most `limit` of them.
    #[pyo3(signature = (path, *, offset = 0, limit = None, bytes_max = None, unix_lines = false, refuse_links = false))]
    fn read, aread(
        this, py, path: Path, offset: usize, limit: Option<usize>, bytes_max: Option<u64>, unix_lines: bool, refuse_links: bool
    ) {
        let tree = this.opened(py)?;
        let options = read_options(offset, limit, bytes_max, refuse_links);
        Ok(Work::new(async move { Ok(PyFileRead(shown(tree.read(&path.0, &options).await?, unix_lines))) }))
    }

    /// Reads at most `limit` bytes from the byte `offset`.
    #[pyo3(signature = (path, offset, limit))]
    fn read_range, aread_range(this, py, path: Path, offset: u64, limit: u64) {
        let tree = this.opened(py)?;
        let options = ReadOptions::bytes(offset, limit);
        Ok(Work::new(async move { tree.read(&path.0, &options).await.map(PyFileRead) }))
    }

    /// Reads several files. The result has, in the order of the paths, the content or the error of each.
    #[pyo3(signature = (paths, *, bytes_max = None, unix_lines = false))]
    fn read_many, aread_many(this, py, paths: &Bound<'_, PyAny>, bytes_max: Option<u64>, unix_lines: bool) {
        let tree = this.opened(py)?;
        let options = read_options(0, None, bytes_max, false);
        let paths = paths.try_iter()?.map(|path| text_of(&path?)).collect::<PyResult<Vec<_>>>()?;
        Ok(Work::new(async move {
            let reads = tree.read_many(&paths, &options).await;
            Ok(Reads(reads.into_iter().map(|read| read.map(|read| shown(read, unix_lines))).collect()))
        }))
    }

    /// Lists a directory.
    #[pyo3(signature = (path = None, *, limit = 10000, after = None, links = false, partial = false, refuse_links = false))]
    fn ls, als(this, py, path: Option<Path>, limit: usize, after: Option<String>, links: bool, partial: bool, refuse_links: bool) {
        let tree = this.opened(py)?;
        let mut options = LsOptions::new().with_limit(limit).with_on_failure(on_failure(partial)).with_refuse_links(refuse_links);
        options.start_after = after;
        Ok(Work::new(async move {
            let listing = tree.ls(&or_root(path), &options).await?;
            let targets = if links { tree.link_targets(&listing).await? } else { Vec::new() };
            Ok(Listed { listing, targets })
        }))
    }

    /// Finds paths by a pattern.
    #[pyo3(signature = (pattern, path = None, *, limit = 10000, after = None, directories = false, hidden = false, hidden_directories = false, ignored = false, case_insensitive = false, partial = false, refuse_links = false))]
    fn glob, aglob(
        this, py, pattern: String, path: Option<Path>, limit: usize, after: Option<Path>, directories: bool, hidden: bool,
        hidden_directories: bool, ignored: bool, case_insensitive: bool, partial: bool, refuse_links: bool
    ) {
        let tree = this.opened(py)?;
        let mut options = GlobOptions::new(pattern).with_limit(limit).with_directories(directories).with_hidden(hidden).with_ignored(ignored);
        options =
            options.with_case_insensitive(case_insensitive).with_on_failure(on_failure(partial)).with_hidden_directories(hidden_directories);
        options.scope.refuse_links = refuse_links;
        options.start_after = after.map(|path| path.0);
        Ok(Work::new(async move { tree.glob(&or_root(path), &options).await }))
    }

    /// Finds lines by a literal text or an expression.
    #[pyo3(signature = (pattern, path = None, *, regex = false, case = None, word = false, whole_line = false, invert = false, multiline = false, before = 0, after = 0, include = Vec::new(), exclude = Vec::new(), types = Vec::new(), binary = false, encoding = None, size_max_bytes = None, output = None, matches_max = 10000, file_matches_max = None, cursor = None, hidden = false, hidden_directories = false, ignored = false, partial = false, refuse_links = false))]
    fn grep, agrep(
        this, py, pattern: String, path: Option<Path>, regex: bool, case: Option<String>, word: bool, whole_line: bool, invert: bool,
        multiline: bool, before: usize, after: usize, include: Vec<String>, exclude: Vec<String>, types: Vec<String>, binary: bool,
        encoding: Option<String>, size_max_bytes: Option<u64>, output: Option<String>, matches_max: usize,
        file_matches_max: Option<usize>, cursor: Option<String>, hidden: bool, hidden_directories: bool, ignored: bool, partial: bool,
        refuse_links: bool
    ) {
        let tree = this.opened(py)?;
        let mut options = if regex { GrepOptions::regex(pattern) } else { GrepOptions::new(pattern) };
        options = options.with_word(word).with_whole_line(whole_line).with_invert(invert).with_multiline(multiline).with_context(before, after);
        options = options.with_binary(binary).with_matches_max(matches_max).with_hidden(hidden).with_ignored(ignored);
        options = options.with_on_failure(on_failure(partial)).with_case(choice(py, "case", case)?).with_output(choice(py, "output", output)?);
        options = options.with_encoding(choice(py, "encoding", encoding)?).with_hidden_directories(hidden_directories);
        options.scope.refuse_links = refuse_links;
        (options.include, options.exclude, options.types) = (include, exclude, types);
        (options.size_max_bytes, options.file_matches_max) = (size_max_bytes, file_matches_max);
        options.start_after = cursor.map(|cursor| cursor.parse()).transpose().map_err(|error| raised(py, error))?;
        Ok(Work::new(async move { tree.grep(&or_root(path), &options).await }))
    }

    /// Ranks files by the words of a query.
    #[pyo3(signature = (query, path = None, *, limit = 10, offset = 0, include = Vec::new(), exclude = Vec::new(), modified_since = None, modified_before = None, snippets_max = 3, hidden = false, hidden_directories = false, ignored = false, partial = false, refuse_links = false, exact = false))]
    fn search, asearch(
        this, py, query: String, path: Option<Path>, limit: usize, offset: usize, include: Vec<String>, exclude: Vec<String>,
        modified_since: Option<Bound<'_, PyAny>>, modified_before: Option<Bound<'_, PyAny>>, snippets_max: usize, hidden: bool,
        hidden_directories: bool, ignored: bool, partial: bool, refuse_links: bool, exact: bool
    ) {
        let tree = this.opened(py)?;
        let mut options = SearchOptions::new(query).with_limit(limit).with_offset(offset).with_snippets_max(snippets_max);
        options = options.with_hidden(hidden).with_ignored(ignored).with_on_failure(on_failure(partial));
        options = options.with_hidden_directories(hidden_directories);
        if exact {
            options.spelling = Spelling::Exact;
        }
        options.scope.refuse_links = refuse_links;
        (options.include, options.exclude) = (include, exclude);
        options.modified_since = modified_since.as_ref().map(timestamp).transpose()?;
        options.modified_before = modified_before.as_ref().map(timestamp).transpose()?;
        Ok(Work::new(async move { tree.search(&or_root(path), &options).await }))
    }

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

/// Files in memory.
#[pyclass(frozen, extends = PyBackend, subclass, name = "StateBackend", module = "treehold")]
pub(crate) struct PyStateBackend;

#[pymethods]
impl PyStateBackend {
    #[new]
    fn new() -> PyClassInitializer<Self> {
        PyClassInitializer::from(PyBackend::of(Arc::new(StateBackend::new()))).add_subclass(Self)
    }
}

/// Files as rows of a store.
#[pyclass(frozen, extends = PyBackend, subclass, name = "StoreBackend", module = "treehold")]
pub(crate) struct PyStoreBackend {
    /// The rows that hold the files.
    rows: Held<(Arc<dyn Store>, Namespace)>,
    /// The tree, if it keeps the past of its files.
    past: Option<Held<StoreBackend>>,
}

impl PyStoreBackend {
    pub(crate) fn rows(&self) -> Option<(Arc<dyn Store>, Namespace)> {
        self.rows.get().cloned()
    }

    /// Returns the tree, if it keeps the past of its files.
    pub(crate) fn past(&self) -> Option<&StoreBackend> {
        self.past.as_ref()?.get()
    }

    fn kept(&self, py: Python<'_>) -> PyResult<StoreBackend> {
        match &self.past {
            Some(past) => past.get().cloned().ok_or_else(|| forked(py, "tree")),
            None => Err(raised(py, Error::unsupported("this tree keeps no past of its files; make it with `history=True`"))),
        }
    }
}

#[pymethods]
impl PyStoreBackend {
    #[new]
    #[pyo3(signature = (
        store, namespace, *, index = None, ttl_seconds = None, file_bytes_max = None, history = false, keep_last = None,
        older_than_seconds = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        store: &PyStore,
        namespace: Space,
        index: Option<String>,
        ttl_seconds: Option<Seconds>,
        file_bytes_max: Option<u64>,
        history: bool,
        keep_last: Option<usize>,
        older_than_seconds: Option<Seconds>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let rows = (store.open(py)?, namespace.0);
        let mut tree = StoreBackend::new(rows.0.clone(), rows.1.clone());
        if let Some(index) = index {
            let kind = IndexKind::ALL.into_iter().find(|kind| kind.name() == index);
            let names = IndexKind::ALL.map(|kind| format!("`{}`", kind.name())).join(" or ");
            tree = tree.with_index(kind.ok_or_else(|| invalid(py, format!("no index is named `{index}`; use {names}")))?);
        }
        if let Some(seconds) = ttl_seconds {
            tree = tree.with_time_to_live(seconds.0);
        }
        if let Some(bytes) = file_bytes_max {
            tree = tree.with_file_bytes_max(bytes);
        }
        let mut policy = HistoryPolicy::new();
        if let Some(count) = keep_last {
            policy = policy.with_keep_last(count);
        }
        if let Some(age) = &older_than_seconds {
            policy = policy.with_older_than(age.0);
        }
        let past = match history {
            true => {
                tree = tree.with_history(policy);
                Some(Held::new(tree.clone()))
            }
            false if keep_last.is_some() || older_than_seconds.is_some() => {
                return Err(invalid(py, "`keep_last` and `older_than_seconds` limit a history; set `history=True`"));
            }
            false => None,
        };
        Ok(PyClassInitializer::from(PyBackend::of(Arc::new(tree))).add_subclass(Self { rows: Held::new(rows), past }))
    }

    /// The tree as it was at a moment.
    fn at(&self, py: Python<'_>, moment: &Bound<'_, PyAny>) -> PyResult<PyBackend> {
        let past = self.kept(py)?.at(moment_of(moment)?).map_err(|error| raised(py, error))?;
        Ok(PyBackend::of(Arc::new(past)))
    }
}

operations! { PyStoreBackend {
    fn log, alog(this, py, path: Path) {
        let tree = this.kept(py)?;
        Ok(Work::new(async move { data(&tree.log(&path.0).await?) }))
    }
} }

/// Returns the moment that a `datetime` or a name means.
fn moment_of(moment: &Bound<'_, PyAny>) -> PyResult<Moment> {
    match moment.extract::<String>() {
        Ok(name) => Moment::parse(&name, Timestamp::now()).map_err(|error| raised(moment.py(), error)),
        Err(_) => timestamp(moment).map(Moment::Time),
    }
}

/// A directory of this machine.
#[pyclass(frozen, extends = PyBackend, subclass, name = "FilesystemBackend", module = "treehold")]
pub(crate) struct PyFilesystemBackend;

#[pymethods]
impl PyFilesystemBackend {
    #[new]
    #[pyo3(signature = (root, *, create_root = false, cross_mounts = false, sync = None, search_threads = None))]
    fn new(
        py: Python<'_>,
        root: PathBuf,
        create_root: bool,
        cross_mounts: bool,
        sync: Option<&str>,
        search_threads: Option<usize>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let mut options = FilesystemOptions::new().with_create_root(create_root).with_cross_mounts(cross_mounts);
        options = options.with_sync(match sync {
            None | Some("none") => SyncMode::None,
            Some("file") => SyncMode::File,
            Some("full") => SyncMode::Full,
            Some(other) => return Err(invalid(py, format!("no sync mode is named `{other}`; use `none`, `file` or `full`"))),
        });
        if let Some(threads) = search_threads {
            options = options.with_search_threads(threads);
        }
        let tree = py.detach(|| FilesystemBackend::open(root, options)).map_err(|error| raised(py, error))?;
        Ok(PyClassInitializer::from(PyBackend::of(Arc::new(tree))).add_subclass(Self))
    }
}

/// Several trees behind one root. The longest prefix of a path decides.
#[pyclass(frozen, extends = PyBackend, subclass, name = "CompositeBackend", module = "treehold")]
pub(crate) struct PyCompositeBackend {
    routes: Vec<String>,
}

#[pymethods]
impl PyCompositeBackend {
    #[new]
    #[pyo3(signature = (default, routes = None, *, concurrency = None))]
    fn new(
        py: Python<'_>,
        default: &Bound<'_, PyAny>,
        routes: Option<&Bound<'_, PyMapping>>,
        concurrency: Option<usize>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let mut builder = CompositeBackend::builder(tree_of(default)?);
        let mut names = Vec::new();
        let items = routes.map(|routes| routes.items()).transpose()?;
        for item in items.iter().flatten() {
            let (prefix, backend): (String, Bound<'_, PyAny>) = item.extract()?;
            builder = builder.route(&prefix, tree_of(&backend)?).map_err(|error| raised(py, error))?;
            names.push(prefix);
        }
        if let Some(concurrency) = concurrency {
            builder = builder.with_concurrency(concurrency);
        }
        let tree = builder.build().map_err(|error| raised(py, error))?;
        Ok(PyClassInitializer::from(PyBackend::of(Arc::new(tree))).add_subclass(Self { routes: names }))
    }

    #[getter]
    fn routes(&self) -> Vec<String> {
        self.routes.clone()
    }
}

/// A tree that keeps its changes apart from the tree below.
#[pyclass(frozen, extends = PyBackend, subclass, name = "OverlayBackend", module = "treehold")]
pub(crate) struct PyOverlayBackend;

#[pymethods]
impl PyOverlayBackend {
    #[new]
    fn new(lower: &Bound<'_, PyAny>, upper: &Bound<'_, PyAny>) -> PyResult<PyClassInitializer<Self>> {
        let tree = OverlayBackend::new(tree_of(lower)?, tree_of(upper)?);
        Ok(PyClassInitializer::from(PyBackend::of(Arc::new(tree))).add_subclass(Self))
    }
}

/// A part of a tree as a tree of its own.
#[pyclass(frozen, extends = PyBackend, subclass, name = "Subtree", module = "treehold")]
pub(crate) struct PySubtree;

#[pymethods]
impl PySubtree {
    #[new]
    fn new(tree: &Bound<'_, PyAny>, base: Path) -> PyResult<PyClassInitializer<Self>> {
        let tree = Subtree::new(tree_of(tree)?, base.0);
        Ok(PyClassInitializer::from(PyBackend::of(Arc::new(tree))).add_subclass(Self))
    }
}

/// What a tree offers.
#[pyclass(frozen, name = "Capabilities", module = "treehold")]
pub(crate) struct PyCapabilities(Capabilities);

#[pymethods]
impl PyCapabilities {
    #[getter]
    fn atomic_batch(&self) -> bool {
        self.0.atomic_batch
    }

    #[getter]
    fn writable(&self) -> bool {
        self.0.writable
    }

    #[getter]
    fn durability(&self) -> String {
        self.0.durability.to_string()
    }

    #[getter]
    fn file_bytes_max(&self) -> Option<u64> {
        self.0.file_bytes_max
    }

    #[getter]
    fn symlinks(&self) -> bool {
        self.0.symlinks
    }

    #[getter]
    fn indexed(&self) -> bool {
        self.0.indexed
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// Returns the tree of a Python object.
pub(crate) fn tree_of(object: &Bound<'_, PyAny>) -> PyResult<Arc<dyn Backend>> {
    let py = object.py();
    let backend =
        object.cast::<PyBackend>().map_err(|_| PyTypeError::new_err(format!("`{}` is no treehold.Backend", object.get_type())))?;
    match &backend.get().tree {
        Some(_) => backend.get().opened(py),
        None => Ok(Arc::new(crate::child::PythonBackend::new(object.clone().unbind()))),
    }
}

/// Replaces a text within a text, as `edit` does within a file. Returns the new text and the number of replacements.
#[pyfunction]
#[pyo3(signature = (content, old, new, replace_all = false))]
pub(crate) fn edit_text(py: Python<'_>, content: &str, old: &str, new: &str, replace_all: bool) -> PyResult<(String, usize)> {
    let edit = if replace_all { Edit::all(old, new) } else { Edit::new(old, new) };
    let edited = py.detach(|| {
        let (content, replacements) = treehold::text::edit(content.as_bytes(), &[edit])?;
        let content = String::from_utf8(content);
        let content = content.map_err(|error| Error::new(ErrorKind::Internal, "an edit of text made other bytes").with_source(error))?;
        Ok((content, replacements))
    });
    edited.map_err(|error: Error| raised(py, error))
}

/// Adds the classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyBackend>()?;
    module.add_class::<PyStateBackend>()?;
    module.add_class::<PyStoreBackend>()?;
    module.add_class::<PyFilesystemBackend>()?;
    module.add_class::<PyCompositeBackend>()?;
    module.add_class::<PyChange>()?;
    module.add_class::<PyOverlayBackend>()?;
    module.add_class::<PySubtree>()?;
    module.add_class::<PyCapabilities>()?;
    layers::register(module)?;
    module.add_function(wrap_pyfunction!(edit_text, module)?)
}
