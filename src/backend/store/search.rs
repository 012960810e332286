//! Finding paths and lines in the rows of a store.
//!
//! A glob reads keys only. A grep of rows that the store has in memory searches them there ([`lent`](super::lent)). Of others it
//! reads the bodies of what it selects, in chunks bounded in bytes, and searches one chunk on
//! all cores while the store brings the next; once most of what stands on a page is selected, pages come with their bodies, but for
//! those that the engine has looked into and found to hold no match. Where
//! the tree has an index ([`index`](super::index)) it reads what the index names.

use super::StoreBackend;
use super::found::Found;
use super::lent;
use super::rows::{self, Place, file_key};
use super::walk::{Body, Selected, StoreWalk};
use crate::backend::flat::{Walk, search_each};
use crate::error::{Error, ErrorKind, Result};
use crate::file::{FileRecord, is_binary};
use crate::ops::{GlobOptions, GlobResult, GrepOptions, GrepResult};
use crate::path::{VfsPath, VfsPathBuf};
use crate::search::literal::literal_of;
use crate::search::trigram::Need;
use crate::search::{FileOutcome, GrepCollector, GrepMatcher, PathFilter};
use crate::store::Item;
use bytes::Bytes;
use futures::future::{Either, select};
use std::collections::VecDeque;
use std::mem;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;

/// How many files the first chunk has at most: few, as a limit may end the search with it.
const CHUNK_FILES_FIRST: usize = 64;

/// How many files a chunk has at most.
const CHUNK_FILES_MAX: usize = 2_048;

/// How many bytes of bodies a chunk has for each file it may have; one file may go over it.
const FILE_BYTES: u64 = 4 << 10;

/// Finds paths by pattern.
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

/// Finds lines by pattern.
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
    match backend.candidates(&Need::of(options)).await? {
        Some(keys) => walk.only(keys),
        None => {
            if let Some(rows) = backend.store.lend(&backend.namespace).await? {
                return lent::grep(walk.over(rows), matcher, options).await;
            }
            walk.only_holding(literal_of(options));
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
                // What came after the end does not count, and neither does that it could not be read.
                (collector, ControlFlow::Break(())) => (collector, Ok(None)),
                (collector, ControlFlow::Continue(())) => (collector, next),
            },
        };
        collector = result;
        chunk = next?;
    }
    Ok(collector.finish())
}

/// A file that a grep selects.
enum File {
    /// Its row, read with its body.
    Read(Item),
    /// Its row, whose body of so many bytes the store left out, as nothing in it matches.
    LeftOut(Item, u64),
    /// What it gives, without being searched.
    Decided(VfsPathBuf, FileOutcome),
}

/// Searches the files of one chunk; a break says that a limit was reached.
async fn search_files(
    matcher: Arc<GrepMatcher>,
    collector: GrepCollector,
    files: Vec<File>,
    size_max_bytes: u64,
) -> Result<(GrepCollector, ControlFlow<()>)> {
    let size_bytes = files.iter().map(|file| if let File::Read(item) = file { item.value.len() as u64 } else { 0 }).sum();
    // What a row holds is read here, on all cores, and not where rows are met one after another.
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

/// Searches the body of a row. Its path is made only where something is told of it.
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
        return Err(rows::torn(&path(), &record, body.len() as u64));
    }
    Ok(matcher.search_if_text(path, body, is_binary))
}

/// Searches a row that was given away. Of its body only what is found is kept.
fn search_row(matcher: &GrepMatcher, item: &Item, size_max_bytes: u64) -> Result<FileOutcome> {
    let row = (item.key.as_str(), &item.meta[..], &item.value);
    Ok(search_body(matcher, row, size_max_bytes, || is_binary(&item.value))?.detached())
}

/// Gives what [`search_row`] gives of the same row with its body.
fn search_left_out(matcher: &GrepMatcher, item: &Item, size_bytes: u64, size_max_bytes: u64) -> Result<FileOutcome> {
    let path = || path_of(&item.key);
    let record = FileRecord::from_bytes(&item.meta).map_err(|error| error.at(&path()))?;
    if record.size_bytes > size_max_bytes {
        return Ok(FileOutcome::TooLarge);
    }
    if record.size_bytes != size_bytes {
        return Err(rows::torn(&path(), &record, size_bytes));
    }
    Ok(matcher.search_in_vain(path))
}

/// Returns the path of a row that a walk selected, by its key.
pub(super) fn path_of(key: &str) -> VfsPathBuf {
    Place::of(key).expect("the walk read this key as that of a path").path
}

/// The files that a grep selects, in path order, in chunks with their bodies.
struct Chunks<'b> {
    backend: &'b StoreBackend,
    walk: StoreWalk<'b>,
    waiting: VecDeque<Result<Selected>>,
    size_max_bytes: u64,
    /// How many files the next chunk has at most.
    files_max: usize,
    /// Whether pages are read with bodies, as most of them are wanted.
    with_values: bool,
}

impl Chunks<'_> {
    /// Returns the next files; none at the end.
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

    /// Reads the rows of the files that were not read with their bodies, in one request.
    async fn read_bodies(&self, files: &mut [File], unread: &[(usize, String)]) -> Result<()> {
        if unread.is_empty() {
            return Ok(());
        }
        let keys: Vec<&str> = unread.iter().map(|(_, key)| key.as_str()).collect();
        for ((index, _), item) in unread.iter().zip(read_each(self.backend, &keys).await?) {
            match (item, &mut files[*index]) {
                (Ok(Some(item)), file) => *file = File::Read(item),
                (Err(error), File::Decided(path, outcome)) => *outcome = FileOutcome::Failed(error.at(&*path)),
                (Ok(None) | Err(_), _) => {}
            }
        }
        Ok(())
    }
}

/// Reads rows with their bodies in one request. Where that meets a damaged one each is read by itself, so that one does not
/// keep the others from being searched.
pub(super) async fn read_each(backend: &StoreBackend, keys: &[&str]) -> Result<Vec<Result<Option<Item>>>> {
    match backend.store.get_many(&backend.namespace, keys, true).await {
        Err(error) if error.kind() == ErrorKind::Corrupt => {}
        read => return Ok(read?.into_iter().map(Ok).collect()),
    }
    let mut items = Vec::with_capacity(keys.len());
    for key in keys {
        items.push(match backend.store.get(&backend.namespace, key).await {
            Err(error) if error.kind() != ErrorKind::Corrupt => return Err(error),
            read => read,
        });
    }
    Ok(items)
}
