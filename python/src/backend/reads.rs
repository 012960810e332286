//! The operations that read a tree.

use super::PyBackend;
use crate::errors::raised;
use crate::results::{Binary, Listed, PyEntry, PyFileRead, Reads};
use crate::values::{Path, invalid, text_of, timestamp};
use crate::work::{Work, operations};
use pyo3::prelude::*;
use treehold::backend::BackendExt;
use treehold::ops::{FileRead, GlobOptions, GrepOptions, LsOptions, OnFailure, ReadOptions, SearchOptions, Spelling, StatOptions, Version};
use treehold::{ErrorKind, VfsPathBuf, text};

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
} }

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
