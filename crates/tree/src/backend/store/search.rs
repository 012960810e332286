//! Searching paths and lines in the rows of a store.
//!
//! A glob reads keys only. A grep picks the cheapest of these ways to read files:
//!
//! - If the tree has a trigram index, it reads only the files that the [index](crate::index) names.
//! - If the store keeps its rows in memory, it searches them in place ([`lent`](super::lent)).
//! - Otherwise it reads the bodies of the selected files in chunks of bounded size, and searches one chunk on all cores while the
//!   store fetches the next. Once it selects most files of a page, it reads pages with their bodies, except for bodies in which
//!   the engine has found no match.

use super::StoreBackend;
use super::found::Found;
use super::lent;
use super::walk::{Body, Selected, StoreWalk};
use crate::backend::flat::{Walk, search_each};
use crate::rows::{self, RowKey, file_key};
use bytes::Bytes;
use futures::future::{Either, select};
use std::collections::VecDeque;
use std::mem;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use treehold_core::error::{Error, Result};
use treehold_core::file::{FileRecord, is_binary};
use treehold_core::ops::{GlobOptions, GlobResult, GrepOptions, GrepResult};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::search::literal::literal_of;
use treehold_core::search::trigram::Need;
use treehold_core::search::{FileOutcome, GrepCollector, GrepMatcher, PathFilter};
use treehold_store::Item;
use treehold_store::StoreExt;

/// The most files in the first chunk. It is small because a limit may end the search within it.
const CHUNK_FILES_FIRST: usize = 64;

/// The most files in a chunk.
const CHUNK_FILES_MAX: usize = 2_048;

/// The bytes of bodies a chunk may have for each of its files. A single file may exceed this.
const FILE_BYTES: u64 = 4 << 10;

/// Finds paths that match a pattern.
pub(super) async fn glob(backend: &StoreBackend, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
    let walk = Walk::new(path, PathFilter::for_glob(path, options)?);
    let walk = StoreWalk::begin(backend, walk, path, options.start_after.as_deref()).await?;
    let Some(mut walk) = walk else { return Err(Error::not_a_directory(path)) };
    let mut found = Found::new(options.limit);
    while found.len() <= options.limit {
        let Some(page) = walk.next_page(false).await? else { break };
        for selected in page {
            match selected {
                Ok(Selected { item, .. }) => found.push_row(path, &item),
                Err(error) => found.fail(error, path),
            }
        }
    }
    let (entries, failures) = found.finish();
    let mut result = GlobResult::from_sorted(entries, options);
    result.failures = failures;
    Ok(result)
}

/// Finds lines that match a pattern.
pub(super) async fn grep(backend: &StoreBackend, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
    let matcher = Arc::new(GrepMatcher::compile(options)?);
    let walk = Walk::new(path, PathFilter::for_grep(path, options)?);
    let cursor = options.start_after.as_ref().map(|cursor| &*cursor.path);
    let mut collector = GrepCollector::new(options);
    let size_max_bytes = options.size_max_bytes.unwrap_or(u64::MAX);
    let Some(walk) = StoreWalk::begin(backend, walk, path, cursor).await? else {
        let item = backend.store.get(&backend.namespace, &file_key(path)).await?;
        let file = item.map_or_else(|| File::Decided(path.to_owned(), FileOutcome::Gone), File::Read);
        return Ok(search_files(matcher, collector, vec![file], size_max_bytes).await?.0.finish());
    };
    let mut walk = walk;
    match backend.indexes.candidates(&Need::of(options)).await? {
        Some(keys) => walk.only(keys),
        None => {
            if let Some(rows) = backend.store.snapshot_rows(&backend.namespace).await? {
                return lent::grep(walk.over(rows), matcher, options).await;
            }
            walk.only_containing(literal_of(options));
        }
    }
    let mut chunks = Chunks { backend, walk, waiting: VecDeque::new(), size_max_bytes, files_max: CHUNK_FILES_FIRST, with_values: false };
    let mut chunk = chunks.next().await?;
    while let Some(files) = chunk {
        let searched = pin!(search_files(matcher.clone(), collector, files, size_max_bytes));
        let fetched = pin!(chunks.next());
        let (result, next) = match select(searched, fetched).await {
            Either::Left((searched, fetched)) => match searched? {
                (collector, ControlFlow::Break(())) => (collector, Ok(None)),
                (collector, ControlFlow::Continue(())) => (collector, fetched.await),
            },
            Either::Right((next, searched)) => match searched.await? {
                // The search has ended, so discard the next chunk, even if reading it failed.
                (collector, ControlFlow::Break(())) => (collector, Ok(None)),
                (collector, ControlFlow::Continue(())) => (collector, next),
            },
        };
        collector = result;
        chunk = next?;
    }
    Ok(collector.finish())
}

/// A file that a grep selected.
enum File {
    /// A row that was read with its body.
    Read(Item),
    /// A row without its body, which has this many bytes. The store left it out because nothing in it matches.
    LeftOut(Item, u64),
    /// A file whose outcome is known without searching it.
    Decided(VfsPathBuf, FileOutcome),
}

/// Searches the files of one chunk. Breaks if a limit was reached.
async fn search_files(
    matcher: Arc<GrepMatcher>,
    collector: GrepCollector,
    files: Vec<File>,
    size_max_bytes: u64,
) -> Result<(GrepCollector, ControlFlow<()>)> {
    let size_bytes = files.iter().map(|file| if let File::Read(item) = file { item.value.len() as u64 } else { 0 }).sum();
    // Decode rows here, on all cores, rather than on the task that fetches them.
    let search = move |file: &mut File| match file {
        File::Read(item) => search_row(&matcher, item, size_max_bytes).unwrap_or_else(FileOutcome::Failed),
        File::LeftOut(item, size_bytes) => search_left_out(&matcher, item, *size_bytes, size_max_bytes).unwrap_or_else(FileOutcome::Failed),
        File::Decided(_, outcome) => mem::replace(outcome, FileOutcome::Gone),
    };
    let path = |file: &File| match file {
        File::Read(item) | File::LeftOut(item, _) => path_of(&item.key),
        File::Decided(path, _) => path.clone(),
    };
    search_each(collector, files, size_bytes, search, path).await
}

/// Searches the body of a row. Its path is built only if needed.
pub(super) fn search_body(
    matcher: &GrepMatcher,
    (key, meta, body): (&str, &[u8], &Bytes),
    size_max_bytes: u64,
    is_binary: impl Fn() -> bool,
) -> Result<FileOutcome> {
    let path = || path_of(key);
    let record = FileRecord::from_bytes(meta).map_err(|error| error.at(&path()))?;
    if record.size_bytes > size_max_bytes {
        return Ok(FileOutcome::TooLarge);
    }
    if !rows::is_whole(&record, body) {
        return Err(rows::size_mismatch(&path(), &record, body.len() as u64));
    }
    Ok(matcher.search_if_text(path, body, is_binary))
}

/// Searches an owned row. Only the matches of its body are kept.
fn search_row(matcher: &GrepMatcher, item: &Item, size_max_bytes: u64) -> Result<FileOutcome> {
    let row = (item.key.as_str(), &item.meta[..], &item.value);
    Ok(search_body(matcher, row, size_max_bytes, || is_binary(&item.value))?.detached())
}

/// Returns the outcome that [`search_row`] would have for the same row with its body.
fn search_left_out(matcher: &GrepMatcher, item: &Item, size_bytes: u64, size_max_bytes: u64) -> Result<FileOutcome> {
    let path = || path_of(&item.key);
    let record = FileRecord::from_bytes(&item.meta).map_err(|error| error.at(&path()))?;
    if record.size_bytes > size_max_bytes {
        return Ok(FileOutcome::TooLarge);
    }
    if record.size_bytes != size_bytes {
        return Err(rows::size_mismatch(&path(), &record, size_bytes));
    }
    Ok(matcher.search_without_matches(path))
}

/// Returns the path of a row that a walk selected.
pub(super) fn path_of(key: &str) -> VfsPathBuf {
    RowKey::of(key).expect("the walk yields only keys of paths").path
}

/// The files that a grep selects, in path order, in chunks with their bodies.
struct Chunks<'b> {
    backend: &'b StoreBackend,
    walk: StoreWalk<'b>,
    waiting: VecDeque<Result<Selected>>,
    size_max_bytes: u64,
    /// The most files the next chunk may have.
    files_max: usize,
    /// Whether to read pages with bodies, because most of them are selected.
    with_values: bool,
}

impl Chunks<'_> {
    /// Returns the next chunk, or `None` at the end.
    async fn next(&mut self) -> Result<Option<Vec<File>>> {
        let mut files: Vec<File> = Vec::new();
        let mut unread = Vec::new();
        let mut size_bytes = 0;
        while size_bytes < self.files_max as u64 * FILE_BYTES && files.len() < self.files_max {
            let Some(selected) = self.waiting.pop_front() else {
                match self.walk.next_page(self.with_values).await? {
                    Some(page) => self.waiting = page.into(),
                    None => break,
                }
                continue;
            };
            files.push(match selected {
                Err(error) => File::Decided(self.walk.root().to_owned(), FileOutcome::Failed(error)),
                Ok(Selected { item, body: Body::LeftOut(body_bytes) }) => {
                    size_bytes += body_bytes;
                    File::LeftOut(item, body_bytes)
                }
                Ok(Selected { item, body: Body::Read }) => {
                    size_bytes += item.value.len() as u64;
                    File::Read(item)
                }
                Ok(Selected { item, body: Body::Unread }) => {
                    let path = path_of(&item.key);
                    let outcome = match rows::record(&path, &item) {
                        Err(error) => FileOutcome::Failed(error),
                        Ok(record) => {
                            size_bytes += record.size_bytes;
                            if record.size_bytes > self.size_max_bytes {
                                FileOutcome::TooLarge
                            } else {
                                unread.push((files.len(), item.key));
                                FileOutcome::Gone
                            }
                        }
                    };
                    File::Decided(path, outcome)
                }
            });
        }
        if files.is_empty() {
            return Ok(None);
        }
        self.files_max = (self.files_max * 4).min(CHUNK_FILES_MAX);
        self.with_values = self.walk.wants_most();
        self.read_bodies(&mut files, &unread).await?;
        Ok(Some(files))
    }

    /// Reads the rows that were fetched without their bodies, in one request.
    async fn read_bodies(&self, files: &mut [File], unread: &[(usize, String)]) -> Result<()> {
        if unread.is_empty() {
            return Ok(());
        }
        let keys: Vec<&str> = unread.iter().map(|(_, key)| key.as_str()).collect();
        for ((index, _), item) in unread.iter().zip(rows::read_each(&*self.backend.store, &self.backend.namespace, &keys).await?) {
            match (item, &mut files[*index]) {
                (Ok(Some(item)), file) => *file = File::Read(item),
                (Err(error), File::Decided(path, outcome)) => *outcome = FileOutcome::Failed(error.at(&*path)),
                (Ok(None) | Err(_), _) => {}
            }
        }
        Ok(())
    }
}
