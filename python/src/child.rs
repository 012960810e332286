//! Trees written in Python, as children of composites and layers.
//!
//! A subclass of `treehold.Backend` overrides `stat`, `ls` and `read`, and for a tree that can be changed `write`, `delete` and
//! `create_dir`. Each may be a coroutine function. Everything else follows from these here: windows of lines, edits, moves, globs and
//! searches mean the same as in every other tree.
//!
//! Python code runs on threads that may block, never on those of the runtime.

use crate::results::PyEntry;
use crate::runtime::{awaited, call_python, failed};
use crate::values::Content;
use async_trait::async_trait;
use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use treehold::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, EntryKind, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing,
    LsOptions, OpKind, ReadOptions, Review, SearchOptions, SearchResult, Sight, StatOptions, Version, WriteMode,
};
use treehold::text;
use treehold::{Backend, Error, ErrorKind, Result, StateBackend, VfsPath};

/// How many entries one search of such a tree visits.
const ENTRIES_MAX: usize = 100_000;

/// How many bytes of content one search of such a tree reads.
const SEARCHED_BYTES_MAX: u64 = 256 << 20;

/// A tree that Python code implements.
pub(crate) struct PythonBackend {
    object: Arc<Py<PyAny>>,
    name: String,
}

impl PythonBackend {
    pub(crate) fn new(object: Py<PyAny>) -> Self {
        let name = Python::attach(|py| object.bind(py).get_type().name().map(|name| name.to_string())).unwrap_or_default();
        Self { object: Arc::new(object), name }
    }

    /// Calls a method, and converts what it returns.
    async fn call<T: Send + 'static>(
        &self,
        method: &'static str,
        arguments: impl FnOnce(Python<'_>) -> PyResult<(Py<pyo3::types::PyTuple>, Option<Py<PyDict>>)> + Send + 'static,
        convert: impl FnOnce(Bound<'_, PyAny>) -> PyResult<T> + Send + 'static,
    ) -> Result<T> {
        let object = self.object.clone();
        let called = call_python(move |py| {
            let (arguments, keywords) = arguments(py)?;
            let keywords = keywords.as_ref().map(|keywords| keywords.bind(py));
            let value = object.bind(py).getattr(method)?.call(arguments.bind(py), keywords)?;
            convert(awaited(value)?)
        });
        called.await.map_err(failed)
    }

    async fn whole(&self, path: &VfsPath) -> Result<Bytes> {
        let path = path.as_str().to_owned();
        let arguments = move |py: Python<'_>| Ok(((path,).into_pyobject(py)?.unbind(), None));
        self.call("read", arguments, |value| match value.extract::<Content>() {
            Ok(content) => Ok(content.0),
            // The result of another backend's read.
            Err(_) => Ok(value.getattr("content")?.extract::<Content>()?.0),
        })
        .await
    }

    async fn entries(&self, path: &VfsPath) -> Result<Vec<Entry>> {
        let path = path.as_str().to_owned();
        let arguments = move |py: Python<'_>| Ok(((path,).into_pyobject(py)?.unbind(), None));
        let mut entries = self
            .call("ls", arguments, |value| {
                let entry = |entry: PyResult<Bound<'_, PyAny>>| Ok(entry?.cast::<PyEntry>()?.get().entry.clone());
                value.try_iter()?.map(entry).collect::<PyResult<Vec<_>>>()
            })
            .await?;
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(entries)
    }

    async fn put(&self, path: &VfsPath, content: Bytes) -> Result<()> {
        let path = path.as_str().to_owned();
        let arguments = move |py: Python<'_>| Ok(((path, PyBytes::new(py, &content)).into_pyobject(py)?.unbind(), None));
        self.call("write", arguments, |_| Ok(())).await
    }

    async fn remove(&self, path: &VfsPath, recursive: bool) -> Result<()> {
        let path = path.as_str().to_owned();
        let arguments = move |py: Python<'_>| {
            let keywords = PyDict::new(py);
            keywords.set_item("recursive", recursive)?;
            Ok(((path,).into_pyobject(py)?.unbind(), Some(keywords.unbind())))
        };
        self.call("delete", arguments, |_| Ok(())).await
    }

    async fn make_dir(&self, path: &VfsPath) -> Result<()> {
        let path = path.as_str().to_owned();
        let arguments = move |py: Python<'_>| Ok(((path,).into_pyobject(py)?.unbind(), None));
        self.call("create_dir", arguments, |_| Ok(())).await
    }

    /// Returns what is at a path, if anything.
    async fn found(&self, path: &VfsPath) -> Result<Option<Entry>> {
        match self.stat(path, &StatOptions::new()).await {
            Ok(entry) => Ok(Some(entry)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Copies the tree beneath a path into memory, where the searches of every other tree run on it.
    async fn in_memory(&self, path: &VfsPath, with_content: bool) -> Result<StateBackend> {
        let copy = StateBackend::new();
        let (mut waiting, mut count, mut bytes) = (VecDeque::from([path.to_owned()]), 0_usize, 0_u64);
        let mut changes = Vec::new();
        while let Some(next) = waiting.pop_front() {
            let entries = match self.entries(&next).await {
                // A search may begin at a file.
                Err(error) if error.kind() == ErrorKind::NotADirectory && next.as_str() == path.as_str() => {
                    vec![self.stat(path, &StatOptions::new()).await?]
                }
                entries => entries?,
            };
            for entry in entries {
                count += 1;
                if count > ENTRIES_MAX {
                    let message = format!("the tree has over {ENTRIES_MAX} entries; search a part of it");
                    return Err(Error::new(ErrorKind::TooLarge, message).at(path));
                }
                match entry.kind {
                    EntryKind::Directory => {
                        changes.push(Change::CreateDir { path: entry.path.clone() });
                        waiting.push_back(entry.path);
                    }
                    EntryKind::File => {
                        let content = if with_content { self.whole(&entry.path).await? } else { Bytes::new() };
                        bytes += content.len() as u64;
                        if bytes > SEARCHED_BYTES_MAX {
                            let message = format!("the files have over {SEARCHED_BYTES_MAX} bytes; search a part of the tree");
                            return Err(Error::new(ErrorKind::TooLarge, message).at(path));
                        }
                        changes.push(Change::Write { path: entry.path, content, mode: WriteMode::Overwrite });
                    }
                    EntryKind::Symlink | EntryKind::Other => {}
                }
            }
        }
        if !path.is_root() && changes.is_empty() {
            changes.push(Change::CreateDir { path: path.to_owned() });
        }
        copy.apply(&changes, &ApplyOptions::new()).await?;
        Ok(copy)
    }

    async fn change(&self, change: &Change) -> Result<Changed> {
        match change {
            Change::Write { path, content, mode } => {
                let before = self.found(path).await?;
                match (mode, &before) {
                    (WriteMode::CreateNew, Some(_)) => return Err(Error::already_exists(path)),
                    (WriteMode::IfVersion(_), None) => return Err(Error::conflict(path, None)),
                    (WriteMode::IfVersion(version), Some(_)) => self.expect(path, Some(*version)).await?,
                    _ => {}
                }
                self.put(path, content.clone()).await?;
                Ok(written(OpKind::Write, path, content).with_created(before.is_none()))
            }
            Change::Append { path, content } => {
                let before = self.found(path).await?;
                let mut whole = if before.is_some() { self.whole(path).await?.to_vec() } else { Vec::new() };
                whole.extend_from_slice(content);
                let whole = Bytes::from(whole);
                self.put(path, whole.clone()).await?;
                Ok(written(OpKind::Append, path, &whole).with_created(before.is_none()))
            }
            Change::Edit { path, edits, expect } => {
                self.expect(path, *expect).await?;
                let (content, replacements) = text::edit(&self.whole(path).await?, edits).map_err(|error| error.at(path))?;
                let content = Bytes::from(content);
                self.put(path, content.clone()).await?;
                Ok(written(OpKind::Edit, path, &content).with_replacements(replacements))
            }
            Change::CreateDir { path } => {
                let before = self.found(path).await?;
                if before.as_ref().is_some_and(|entry| !entry.is_directory()) {
                    return Err(Error::already_exists(path));
                }
                if before.is_none() {
                    self.make_dir(path).await?;
                }
                Ok(Changed::new(OpKind::CreateDir, path.clone()).with_created(before.is_none()).with_entries(usize::from(before.is_none())))
            }
            Change::Delete { path, recursive, expect } => {
                self.expect(path, *expect).await?;
                self.remove(path, *recursive).await?;
                Ok(Changed::new(OpKind::Delete, path.clone()))
            }
            Change::Rename { from, to, overwrite } | Change::Copy { from, to, overwrite } => {
                let is_move = matches!(change, Change::Rename { .. });
                if self.found(to).await?.is_some_and(|there| there.is_directory() || !overwrite) {
                    return Err(Error::already_exists(to));
                }
                if self.stat(from, &StatOptions::new()).await?.is_directory() {
                    return Err(Error::unsupported("a backend in Python moves and copies single files").at(from).without_effect());
                }
                let content = self.whole(from).await?;
                self.put(to, content.clone()).await?;
                if is_move {
                    self.remove(from, false).await.map_err(Error::with_unknown_effect)?;
                }
                Ok(written(if is_move { OpKind::Rename } else { OpKind::Copy }, to, &content).with_created(true))
            }
            other => Err(other.unsupported()),
        }
    }

    async fn expect(&self, path: &VfsPath, version: Option<Version>) -> Result<()> {
        let Some(version) = version else { return Ok(()) };
        let found = version_of(&self.whole(path).await?);
        if found == version { Ok(()) } else { Err(Error::conflict(path, Some(found))) }
    }
}

/// Returns a version that tells contents apart.
fn version_of(content: &Bytes) -> Version {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    Version::new(hasher.finish() >> 12)
}

fn written(operation: OpKind, path: &VfsPath, content: &Bytes) -> Changed {
    Changed::new(operation, path.to_owned()).with_file(version_of(content), content.len() as u64)
}

impl fmt::Display for PythonBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl fmt::Debug for PythonBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[async_trait]
impl Backend for PythonBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new().with_atomic_batch(false)
    }

    async fn stat(&self, path: &VfsPath, _options: &StatOptions) -> Result<Entry> {
        if path.is_root() {
            return Ok(Entry::directory(path.to_owned()));
        }
        let text = path.as_str().to_owned();
        let arguments = move |py: Python<'_>| Ok(((text,).into_pyobject(py)?.unbind(), None));
        self.call("stat", arguments, |value| Ok(value.cast::<PyEntry>()?.get().entry.clone())).await
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        let content = self.whole(path).await?;
        let (version, size_bytes) = (version_of(&content), content.len() as u64);
        let (part, window) = text::cut(&content, options).map_err(|error| error.at(path))?;
        let mut read = FileRead::new(part, version, None);
        (read.size_bytes, read.window) = (size_bytes, window);
        Ok(read)
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        let entries = self.entries(path).await?;
        let after = options.start_after.as_deref();
        let rest = entries.into_iter().filter(|entry| after.is_none_or(|after| entry.name() > after));
        Ok(Listing::from_sorted(rest, options))
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        self.in_memory(path, false).await?.glob(path, options).await
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        self.in_memory(path, true).await?.grep(path, options).await
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        self.in_memory(path, true).await?.search(path, options).await
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        if changes.len() > 1 && !options.allow_partial {
            let message = "a backend in Python applies one change at a time; allow a partial result, or make the changes one by one";
            return Err(Error::unsupported(message).without_effect());
        }
        let mut done = Vec::with_capacity(changes.len());
        for (index, change) in changes.iter().enumerate() {
            done.push(self.change(change).await.map_err(|error| error.in_batch(index, index))?);
        }
        Ok(done)
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}
