//! Finding paths and lines in an overlay: a walk over the merged directories, in path order.
//!
//! The ignore files that count are those of the merged tree, and what is hidden, pruned or guarded is decided once, by a [`Walk`]
//! as in every tree of nodes.

use super::OverlayBackend;
use super::merge::absent;
use crate::backend::flat::{Walk, in_background, workers};
use crate::error::{Error, ErrorKind, ErrorRecord, Result};
use crate::ops::{Entry, EntryKind, Failure, GlobOptions, GlobResult, GrepOptions, GrepResult, ReadOptions};
use crate::path::{VfsPath, VfsPathBuf};
use crate::search::ignore::IGNORE_FILE_NAMES;
use crate::search::{FileOutcome, GrepCollector, GrepMatcher, PathFilter, parallel};
use bytes::Bytes;
use futures::{StreamExt, stream};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The largest ignore file that counts; beyond it something else has the name.
const IGNORE_FILE_BYTES_MAX: u64 = 4 << 20;

/// The largest file that is searched: its content is held in memory.
const SEARCH_BYTES_MAX: u64 = 1 << 30;

/// How many files of a search are read together, and how many bytes they have at most; one file may go over it.
const CHUNK_FILES: usize = 256;
const CHUNK_BYTES: u64 = 8 << 20;

/// How many files of a chunk are read at once.
const READS_AT_ONCE: usize = 16;

/// The most bytes that are searched without a thread of their own.
const BYTES_AT_ONCE: u64 = 128 << 10;

/// How many failures one result names at most.
const FAILURES_MAX: usize = 100;

/// Finds paths by pattern.
pub(super) async fn glob(overlay: &OverlayBackend, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
    let walk = Walk::new(path, PathFilter::for_glob(path, options)?);
    if !overlay.entry(path).await?.is_some_and(|entry| is_entered(&entry)) {
        return Err(Error::not_a_directory(path));
    }
    let mut walk = OverlayWalk::begin(overlay, walk).await?;
    let mut found = Vec::new();
    let mut failures = Vec::new();
    while found.len() <= options.limit {
        match walk.next().await? {
            Some(Ok(entry)) => found.push(entry),
            Some(Err(failure)) if failures.len() < FAILURES_MAX => failures.push(failure),
            Some(Err(_)) => {}
            None => break,
        }
    }
    let mut result = GlobResult::from_sorted(found, options);
    result.failures = failures;
    Ok(result)
}

/// Finds lines by pattern.
pub(super) async fn grep(overlay: &OverlayBackend, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
    let matcher = Arc::new(GrepMatcher::compile(options)?);
    let walk = Walk::new(path, PathFilter::for_grep(path, options)?);
    let mut collector = GrepCollector::new(options);
    let size_max_bytes = options.size_max_bytes.unwrap_or(u64::MAX).min(SEARCH_BYTES_MAX);
    let Some(entry) = overlay.entry(path).await? else { return Err(Error::not_found(path)) };
    if !is_entered(&entry) {
        let body = body(overlay, path, size_max_bytes).await;
        return Ok(search(matcher, collector, vec![(path.to_owned(), body)]).await?.0.finish());
    }
    let mut walk = OverlayWalk::begin(overlay, walk).await?;
    let mut is_last = false;
    while !is_last {
        let mut met = Vec::new();
        let mut size_bytes = 0;
        while met.len() < CHUNK_FILES && size_bytes < CHUNK_BYTES {
            match walk.next().await? {
                Some(Ok(entry)) if entry.kind != EntryKind::File => {}
                Some(Ok(entry)) => {
                    size_bytes += entry.size_bytes;
                    met.push(Ok(entry));
                }
                Some(Err(failure)) => met.push(Err(failure)),
                None => {
                    is_last = true;
                    break;
                }
            }
        }
        let read = stream::iter(met).map(|met| async move {
            match met {
                Ok(entry) if entry.size_bytes > size_max_bytes => (entry.path, Body::Decided(FileOutcome::TooLarge)),
                Ok(entry) => {
                    let body = body(overlay, &entry.path, size_max_bytes).await;
                    (entry.path, body)
                }
                Err(failure) => (failure.path, Body::Decided(FileOutcome::Failed(Error::from(&failure.error)))),
            }
        });
        let files: Vec<_> = read.buffered(READS_AT_ONCE).collect().await;
        let flow;
        (collector, flow) = search(matcher.clone(), collector, files).await?;
        if flow.is_break() {
            break;
        }
    }
    Ok(collector.finish())
}

/// The content of a file that was selected, or why there is none to search.
enum Body {
    Read(Bytes),
    Decided(FileOutcome),
}

async fn body(overlay: &OverlayBackend, path: &VfsPath, size_max_bytes: u64) -> Body {
    match overlay.read_file(path, &ReadOptions::new().with_bytes_max(size_max_bytes)).await {
        Ok(read) => Body::Read(read.content),
        Err(error) => Body::Decided(match error.kind() {
            ErrorKind::TooLarge => FileOutcome::TooLarge,
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsDirectory => FileOutcome::Gone,
            _ => FileOutcome::Failed(error),
        }),
    }
}

/// Searches the files of one chunk; a break says that a limit was reached.
async fn search(
    matcher: Arc<GrepMatcher>,
    mut collector: GrepCollector,
    files: Vec<(VfsPathBuf, Body)>,
) -> Result<(GrepCollector, ControlFlow<()>)> {
    let work = move |(path, body): (VfsPathBuf, Body)| {
        let outcome = match body {
            Body::Read(content) => matcher.search(&path, &content).detached(),
            Body::Decided(outcome) => outcome,
        };
        (path, outcome)
    };
    let size = |(_, body): &(VfsPathBuf, Body)| if let Body::Read(content) = body { content.len() as u64 } else { 0 };
    let mut flow = ControlFlow::Continue(());
    if files.iter().map(size).sum::<u64>() <= BYTES_AT_ONCE {
        for file in files {
            let (path, outcome) = work(file);
            flow = collector.push(path, outcome);
            if flow.is_break() {
                break;
            }
        }
        return Ok((collector, flow));
    }
    in_background(move |stop| {
        let files = files.into_iter().take_while(|_| !stop.load(Ordering::Relaxed));
        parallel::ordered(files, workers(), work, |(path, outcome)| {
            flow = collector.push(path, outcome);
            flow
        });
        (collector, flow)
    })
    .await
}

/// Tells whether a search of a path is one of what lies beneath it: a link of the lower tree is followed when it is named.
fn is_entered(entry: &Entry) -> bool {
    entry.is_directory()
}

/// A walk under way.
struct OverlayWalk<'b> {
    overlay: &'b OverlayBackend,
    walk: Walk,
    /// What is still to come of each directory entered, the next last.
    stack: Vec<Vec<Entry>>,
    /// What was met out of turn, to be given next.
    failed: Vec<Failure>,
    /// What the walk starts with, if that is selected.
    first: Option<Entry>,
}

impl<'b> OverlayWalk<'b> {
    /// Starts beneath the search root, which is a directory.
    async fn begin(overlay: &'b OverlayBackend, walk: Walk) -> Result<Self> {
        let mut found = Self { overlay, walk, stack: Vec::new(), failed: Vec::new(), first: None };
        let Some(stretch) = found.walk.stretch(None) else { return Ok(found) };
        for above in stretch.from.ancestors() {
            found.add_ignore_files(above, None).await?;
        }
        if found.walk.obstacle(&stretch).is_some() {
            return Ok(found);
        }
        if *stretch.from == *found.walk.root() {
            found.enter(&stretch.from).await?;
        } else if let Some(entry) = absent(overlay.entry(&stretch.from).await)?.flatten() {
            let visit = found.walk.visit(&entry.path, entry.is_directory());
            if visit.entered {
                found.enter(&entry.path).await?;
            }
            found.first = visit.selected.then_some(entry);
        }
        Ok(found)
    }

    /// Returns the next entry that is selected, in path order, or what could not be looked at.
    async fn next(&mut self) -> Result<Option<Result<Entry, Failure>>> {
        if let Some(first) = self.first.take() {
            return Ok(Some(Ok(first)));
        }
        loop {
            if let Some(failure) = self.failed.pop() {
                return Ok(Some(Err(failure)));
            }
            let Some(level) = self.stack.last_mut() else { return Ok(None) };
            let Some(entry) = level.pop() else {
                self.stack.pop();
                continue;
            };
            let visit = self.walk.visit(&entry.path, entry.is_directory());
            if visit.entered {
                self.enter(&entry.path).await?;
            }
            if visit.selected {
                return Ok(Some(Ok(entry)));
            }
        }
    }

    async fn enter(&mut self, directory: &VfsPath) -> Result<()> {
        let children = match self.overlay.steady_children(directory).await {
            Ok(children) => children,
            // It went away, or may not be listed: the rest is still worth searching.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Corrupt) => {
                self.failed.push(Failure { path: directory.to_owned(), error: ErrorRecord::from(&error) });
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.failed.extend(children.failures.into_iter().rev());
        self.add_ignore_files(directory, Some(&children.entries)).await?;
        self.stack.push(children.entries.into_iter().rev().collect());
        Ok(())
    }

    /// Adds the ignore files of a directory, of whose children those that are known are given.
    async fn add_ignore_files(&mut self, directory: &VfsPath, children: Option<&[Entry]>) -> Result<()> {
        if !self.walk.wants_ignore_files() {
            return Ok(());
        }
        let mut contents = [None, None];
        for (name, content) in IGNORE_FILE_NAMES.iter().zip(&mut contents) {
            let is_there = children.is_none_or(|children| {
                let found = children.binary_search_by(|entry| entry.name().cmp(name)).ok().map(|index| &children[index]);
                found.is_some_and(|entry| !entry.is_directory())
            });
            let Some(path) = is_there.then(|| directory.child(name).ok()).flatten() else { continue };
            // One that cannot be read, or is no file, says nothing.
            let options = ReadOptions::new().with_bytes_max(IGNORE_FILE_BYTES_MAX);
            *content = self.overlay.read_file(&path, &options).await.ok().map(|read| read.content);
        }
        self.walk.add_ignore_files(directory, contents.each_ref().map(Option::as_deref));
        Ok(())
    }
}
