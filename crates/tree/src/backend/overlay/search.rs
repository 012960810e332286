//! Glob and grep in an overlay: a walk over the merged directories, in path order.
//!
//! The merged tree's ignore files apply. A [`Walk`] decides what is hidden, pruned or guarded, as in every tree of nodes. If the lower
//! tree's ignore files apply unchanged, the lower tree is searched by itself at full speed, behind a guard that excludes changed paths, and
//! only the changed paths are walked.

use super::OverlayBackend;
use super::merge::{absent, of_lower};
use super::touched::Touched;
use crate::backend::Backend;
use crate::backend::flat::{Body, Walk, search_chunk};
use futures::{StreamExt, stream};
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, ErrorRecord, Result};
use treehold_core::ops::{
    Entry, EntryKind, Failure, GlobOptions, GlobResult, GrepCursor, GrepOptions, GrepResult, ReadOptions, StatOptions, Truncation,
};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::search::ignore::IGNORE_FILE_NAMES;
use treehold_core::search::{FileOutcome, GrepCollector, GrepMatcher, PathFilter};

/// The largest ignore file that is read; a larger file of that name is something else.
const IGNORE_FILE_BYTES_MAX: u64 = 4 << 20;

/// The largest file that is searched, because its content is held in memory.
const SEARCH_BYTES_MAX: u64 = 1 << 30;

/// The most files of a search that are read together, and their most bytes; a single file may exceed it.
const CHUNK_FILES: usize = 256;
const CHUNK_BYTES: u64 = 8 << 20;

/// The number of files of a chunk that are read concurrently.
const READS_AT_ONCE: usize = 16;

/// The most failures in one result.
const FAILURES_MAX: usize = 100;

/// Finds paths by pattern.
pub(super) async fn glob(overlay: &OverlayBackend, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
    let walk = Walk::new(path, PathFilter::for_glob(path, options)?);
    if !overlay.stat(path, &StatOptions::new().with_refuse_links(options.scope.refuse_links)).await?.is_directory() {
        return Err(Error::not_a_directory(path));
    }
    let split = if options.limit > 0 { Touched::beneath(overlay, path, !options.scope.ignored).await? } else { None };
    let Some(touched) = split else {
        let (entries, failures) = walked(OverlayWalk::begin(overlay, walk, None, options.scope.refuse_links).await?, options).await?;
        let mut found = GlobResult::from_sorted(entries, options);
        found.failures = failures;
        return Ok(found);
    };
    let mut below = options.clone();
    below.scope.guard = Some(touched.guard(options.scope.guard.as_ref()));
    let changed = async { walked(OverlayWalk::begin(overlay, walk, Some(touched), options.scope.refuse_links).await?, options).await };
    let (below, (mut entries, failures)) = futures::try_join!(overlay.lower.glob(path, &below), changed)?;
    let cut = below.truncated.map(|cut| VfsPathBuf::parse(&cut.cursor).map(|cursor| (cursor, cut))).transpose()?;
    entries.extend(below.entries.into_iter().map(of_lower));
    // Beyond the point at which the lower tree truncated, results are incomplete. A file that was copied up meanwhile appears twice.
    entries.retain(|entry| cut.as_ref().is_none_or(|(cursor, _)| entry.path <= *cursor));
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    entries.dedup_by(|one, other| one.path == other.path);
    let mut result = GlobResult::from_sorted(entries, options);
    result.truncated = result.truncated.or(cut.map(|(_, cut)| cut));
    result.failures = below.failures.into_iter().chain(failures).take(FAILURES_MAX).collect();
    Ok(result)
}

/// Returns the entries that a walk selects, one more than the limit if there are more.
async fn walked(mut walk: OverlayWalk<'_>, options: &GlobOptions) -> Result<(Vec<Entry>, Vec<Failure>)> {
    let mut found = Vec::new();
    let mut failures = Vec::new();
    while found.len() <= options.limit {
        match walk.next().await? {
            // Links and other non-files are returned only if the caller asked for more than files.
            Some(Ok(entry)) if !options.directories && !matches!(entry.kind, EntryKind::File | EntryKind::Directory) => {}
            Some(Ok(entry)) => found.push(entry),
            Some(Err(failure)) if failures.len() < FAILURES_MAX => failures.push(failure),
            Some(Err(_)) => {}
            None => break,
        }
    }
    Ok((found, failures))
}

/// Finds lines by pattern.
pub(super) async fn grep(overlay: &OverlayBackend, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
    let matcher = Arc::new(GrepMatcher::compile(options)?);
    let walk = Walk::new(path, PathFilter::for_grep(path, options)?);
    if !overlay.stat(path, &StatOptions::new().with_refuse_links(options.scope.refuse_links)).await?.is_directory() {
        let body = body(overlay, path, options).await;
        return Ok(search_chunk(matcher, GrepCollector::new(options), vec![(path.to_owned(), body)]).await?.0.finish());
    }
    let split = if options.matches_max > 0 { Touched::beneath(overlay, path, !options.scope.ignored).await? } else { None };
    let Some(touched) = split else {
        return searched(overlay, OverlayWalk::begin(overlay, walk, None, options.scope.refuse_links).await?, matcher, options).await;
    };
    let mut below = options.clone();
    below.scope.guard = Some(touched.guard(options.scope.guard.as_ref()));
    let changed = async {
        searched(overlay, OverlayWalk::begin(overlay, walk, Some(touched), options.scope.refuse_links).await?, matcher, options).await
    };
    let (below, changed) = futures::try_join!(overlay.lower.grep(path, &below), changed)?;
    joined(below, changed, options)
}

/// Merges the matches in the lower tree with those in changed files, in path order and up to the limit.
fn joined(below: GrepResult, changed: GrepResult, options: &GrepOptions) -> Result<GrepResult> {
    let place = |cut: Truncation| Ok::<_, Error>((cut.cursor.parse::<GrepCursor>()?, cut));
    let cuts = [changed.truncated, below.truncated].into_iter().flatten().map(place).collect::<Result<Vec<_>>>()?;
    let cut = cuts.into_iter().min_by(|(one, _), (other, _)| one.cmp(other));
    let mut files: Vec<_> = changed.files.into_iter().chain(below.files).collect();
    // Beyond the point at which one side truncated, results are incomplete. A file that was copied up meanwhile appears twice.
    files.retain(|file| cut.as_ref().is_none_or(|(cursor, _)| file.path <= cursor.path));
    files.sort_by(|one, other| one.path.cmp(&other.path));
    files.dedup_by(|one, other| one.path == other.path);
    let mut collector = GrepCollector::new(options);
    for file in files {
        let outcome = FileOutcome::Searched { count: file.count, lines: file.lines, cut: false };
        if collector.push(file.path, outcome).is_break() {
            break;
        }
    }
    let mut result = collector.finish();
    result.truncated = result.truncated.or(cut.map(|(_, cut)| cut));
    result.files_searched = changed.files_searched + below.files_searched;
    result.files_binary = changed.files_binary + below.files_binary;
    result.files_too_large = changed.files_too_large + below.files_too_large;
    let named = changed.failures.len() + below.failures.len();
    changed.failures.into_iter().chain(below.failures).for_each(|failure| result.push_failure(failure));
    result.failures_count += (changed.failures_count + below.failures_count).saturating_sub(named);
    Ok(result)
}

/// Searches the files that a walk selects, a chunk at a time.
async fn searched(
    overlay: &OverlayBackend,
    mut walk: OverlayWalk<'_>,
    matcher: Arc<GrepMatcher>,
    options: &GrepOptions,
) -> Result<GrepResult> {
    let mut collector = GrepCollector::new(options);
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
                Ok(entry) if entry.size_bytes > size_max_bytes(options) => (entry.path, Body::Decided(FileOutcome::TooLarge)),
                Ok(entry) => {
                    let body = body(overlay, &entry.path, options).await;
                    (entry.path, body)
                }
                Err(failure) => (failure.path, Body::Decided(FileOutcome::Failed(Error::from(&failure.error)))),
            }
        });
        let files: Vec<_> = read.buffered(READS_AT_ONCE).collect().await;
        let flow;
        (collector, flow) = search_chunk(matcher.clone(), collector, files).await?;
        if flow.is_break() {
            break;
        }
    }
    Ok(collector.finish())
}

fn size_max_bytes(options: &GrepOptions) -> u64 {
    options.size_max_bytes.unwrap_or(u64::MAX).min(SEARCH_BYTES_MAX)
}

async fn body(overlay: &OverlayBackend, path: &VfsPath, options: &GrepOptions) -> Body {
    let read = ReadOptions::new().with_bytes_max(size_max_bytes(options)).with_refuse_links(options.scope.refuse_links);
    match overlay.read_file(path, &read).await {
        Ok(read) => Body::Read(read.content),
        Err(error) => Body::Decided(match error.kind() {
            ErrorKind::TooLarge => FileOutcome::TooLarge,
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsDirectory => FileOutcome::Gone,
            _ => FileOutcome::Failed(error),
        }),
    }
}

/// A walk in progress.
struct OverlayWalk<'b> {
    overlay: &'b OverlayBackend,
    walk: Walk,
    /// The changed paths, if only those are walked.
    only: Option<Touched>,
    /// How the walk looks at paths.
    stat: StatOptions,
    /// The remaining entries of each entered directory, the next one last.
    stack: Vec<Vec<Entry>>,
    /// Failures to return before the next entry.
    failed: Vec<Failure>,
    /// The entry that the walk starts with, if selected.
    first: Option<Entry>,
}

impl<'b> OverlayWalk<'b> {
    /// Starts a walk beneath the search root, which is a directory.
    async fn begin(overlay: &'b OverlayBackend, walk: Walk, only: Option<Touched>, refuse_links: bool) -> Result<Self> {
        let stat = StatOptions::new().with_refuse_links(refuse_links);
        let mut found = Self { overlay, walk, only, stat, stack: Vec::new(), failed: Vec::new(), first: None };
        let Some(stretch) = found.walk.stretch(None) else { return Ok(found) };
        if found.only.as_ref().is_some_and(|only| !only.directories.contains(&stretch.from)) {
            return Ok(found);
        }
        for above in stretch.from.ancestors() {
            found.add_ignore_files(above, None).await?;
        }
        if found.walk.obstacle(&stretch).is_some() {
            return Ok(found);
        }
        if *stretch.from == *found.walk.root() {
            found.enter(&stretch.from).await?;
        } else if let Some(entry) = absent(overlay.stat(&stretch.from, &found.stat).await)? {
            let visit = found.walk.visit(&entry.path, entry.is_directory());
            if visit.entered {
                found.enter(&entry.path).await?;
            }
            if visit.selected && !found.is_found_below(&entry).await? {
                found.first = Some(entry);
            }
        }
        Ok(found)
    }

    /// Returns the next selected entry in path order, or a failure.
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
            if visit.selected && !self.is_found_below(&entry).await? {
                return Ok(Some(Ok(entry)));
            }
        }
    }

    /// Returns whether the lower tree has this directory too and searches it itself.
    async fn is_found_below(&self, entry: &Entry) -> Result<bool> {
        let Some(only) = &self.only else { return Ok(false) };
        if !entry.is_directory() || only.is_hidden(&entry.path) {
            return Ok(false);
        }
        Ok(absent(self.overlay.lower.stat(&entry.path, &self.stat).await)?.is_some_and(|lower| lower.is_directory()))
    }

    async fn enter(&mut self, directory: &VfsPath) -> Result<()> {
        if let Some(only) = &self.only {
            let entries = only.children.get(directory).cloned().unwrap_or_default();
            self.add_ignore_files(directory, None).await?;
            self.stack.push(entries.into_iter().rev().collect());
            return Ok(());
        }
        let children = match self.overlay.steady_children(directory, &self.stat).await {
            Ok(children) => children,
            // The directory is gone or may not be listed; search the rest.
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

    /// Adds the ignore files of a directory, whose children are given if known.
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
            // One that is unreadable or not a file has no effect.
            let options = ReadOptions::new().with_bytes_max(IGNORE_FILE_BYTES_MAX).with_refuse_links(self.stat.refuse_links);
            *content = self.overlay.read_file(&path, &options).await.ok().map(|read| read.content);
        }
        self.walk.add_ignore_files(directory, contents.each_ref().map(Option::as_deref));
        Ok(())
    }
}
