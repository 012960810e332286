//! Finding paths and lines in the rows of a store.
//!
//! A glob reads keys only. A grep reads the bodies of what it selects, in chunks bounded in bytes, and searches one chunk on
//! all cores while the store brings the next; once most of what stands on a page is selected, pages come with their bodies.

use super::StoreBackend;
use super::found::Found;
use super::rows::{self, file_key};
use super::walk::{Selected, StoreWalk};
use crate::backend::flat::{Body, Walk, search_chunk};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::{GlobOptions, GlobResult, GrepOptions, GrepResult};
use crate::path::{VfsPath, VfsPathBuf};
use crate::search::{FileOutcome, GrepCollector, GrepMatcher, PathFilter};
use crate::store::Item;
use futures::future::{Either, select};
use std::collections::VecDeque;
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
                Ok(Selected { place, item, .. }) => found.push(place, &item),
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
    let Some(walk) = StoreWalk::begin(backend, walk, path, cursor).await? else {
        let item = backend.store.get(&backend.namespace, &file_key(path)).await?;
        let body = item.map_or(Body::Decided(FileOutcome::Gone), |item| body_of(path, &item));
        return Ok(search_chunk(matcher, collector, vec![(path.to_owned(), body)]).await?.0.finish());
    };
    let size_max_bytes = options.size_max_bytes.unwrap_or(u64::MAX);
    let mut chunks = Chunks { backend, walk, waiting: VecDeque::new(), size_max_bytes, files_max: CHUNK_FILES_FIRST, with_values: false };
    let mut chunk = chunks.next().await?;
    while let Some(files) = chunk {
        let searched = pin!(search_chunk(matcher.clone(), collector, files));
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

/// Takes the body of a row, which was read with it.
fn body_of(path: &VfsPath, item: &Item) -> Body {
    match rows::body(path, item) {
        Ok(content) => Body::Read(content),
        Err(error) => Body::Decided(FileOutcome::Failed(error)),
    }
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
    async fn next(&mut self) -> Result<Option<Vec<(VfsPathBuf, Body)>>> {
        let mut chosen: Vec<Result<Selected>> = Vec::new();
        let mut size_bytes = 0;
        while size_bytes < self.files_max as u64 * FILE_BYTES && chosen.len() < self.files_max {
            let Some(selected) = self.waiting.pop_front() else {
                match self.walk.next_page(self.with_values).await? {
                    Some(page) => self.waiting.extend(page),
                    None => break,
                }
                continue;
            };
            size_bytes += selected
                .as_ref()
                .map_or(0, |selected| rows::record(&selected.place.path, &selected.item).map_or(0, |record| record.size_bytes));
            chosen.push(selected);
        }
        if chosen.is_empty() {
            return Ok(None);
        }
        self.files_max = (self.files_max * 4).min(CHUNK_FILES_MAX);
        self.with_values = self.walk.wants_most();
        self.bodies(chosen).await.map(Some)
    }

    /// Reads the bodies that are not there yet, in one request.
    async fn bodies(&self, chosen: Vec<Result<Selected>>) -> Result<Vec<(VfsPathBuf, Body)>> {
        let mut files = Vec::with_capacity(chosen.len());
        let mut unread = Vec::new();
        for selected in chosen {
            let Selected { place, item, has_value } = match selected {
                Ok(selected) => selected,
                Err(error) => {
                    files.push((self.walk.root().to_owned(), Body::Decided(FileOutcome::Failed(error))));
                    continue;
                }
            };
            let body = match rows::record(&place.path, &item) {
                Err(error) => Body::Decided(FileOutcome::Failed(error)),
                Ok(record) if record.size_bytes > self.size_max_bytes => Body::Decided(FileOutcome::TooLarge),
                Ok(_) if has_value => body_of(&place.path, &item),
                Ok(_) => {
                    unread.push((files.len(), item.key));
                    Body::Decided(FileOutcome::Gone)
                }
            };
            files.push((place.path, body));
        }
        if !unread.is_empty() {
            let keys: Vec<&str> = unread.iter().map(|(_, key)| key.as_str()).collect();
            for ((index, _), item) in unread.iter().zip(read_each(self.backend, &keys).await?) {
                let (path, body) = &mut files[*index];
                match item {
                    Ok(Some(item)) => *body = body_of(path, &item),
                    Ok(None) => {}
                    Err(error) => *body = Body::Decided(FileOutcome::Failed(error.at(&*path))),
                }
            }
        }
        Ok(files)
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
