//! Searching: selecting mounts, querying each, and merging their results.

use super::merge::{Merge, glob_place, grep_place};
use super::router::Resolved;
use super::{CompositeBackend, Target, is_absence, mount_failure, of_mount, rest_of};
use crate::backend::rebase::{Position, View};
use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use treehold_core::error::{ErrorKind, Result};
use treehold_core::ops::{
    Entry, Failure, GlobOptions, GlobResult, GrepCursor, GrepOptions, GrepResult, OnFailure, PathGuard, SearchMerge, SearchOptions,
    SearchResult, SearchScope, Spelling, StatOptions, Truncation,
};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::search::rank::{self, Nearly, Query};
use treehold_core::search::{FileOutcome, GrepCollector, GrepMatcher, PathFilter};

/// A query to one mount, for its content at and below a path.
struct Ask<'a> {
    mount: usize,
    node: usize,
    /// The start of the search within the mount, as a path of the caller.
    path: &'a VfsPath,
    /// Whether the path is a directory whatever the mount has there.
    is_virtual: bool,
}

/// The queries of a search from above mounts, in path order, and the directories that it finds by itself.
#[derive(Default)]
struct Plan<'a> {
    asks: Vec<Ask<'a>>,
    directories: Vec<Entry>,
}

impl<'a> Plan<'a> {
    /// Adds a query, unless everything that can be selected in the mount lies in a nested mount. All selected paths are
    /// at or below `bound`.
    fn add(&mut self, ask: Ask<'a>, bound: &VfsPath, composite: &CompositeBackend) {
        if !bound.starts_with(ask.path) || composite.router.find(bound).mount == ask.mount {
            self.asks.push(ask);
        }
    }
}

impl CompositeBackend {
    /// Finds paths by pattern.
    pub(super) async fn find_paths(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        let place = self.router.find(path);
        let target = self.target(place, path)?;
        let Some(node) = place.node.filter(|node| self.router.node(*node).is_above_mounts()) else {
            return match self.find_paths_in(target, options).await {
                Ok(result) => Ok(result),
                Err(error) => Err(self.read_error(error, target, path).await),
            };
        };
        let filter = PathFilter::for_glob(path, options)?;
        let plan = self.plan(place, node, path, &filter);
        let asks = plan.asks.iter().map(|ask| Box::pin(self.ask_for_paths(ask, path, options)) as BoxFuture<'_, _>).collect();
        let mut merge = Merge::new();
        merge.push_spare(plan.directories);
        let mut failures = Vec::new();
        let failed = self
            .gather(&plan.asks, asks, options.scope.on_failure, |result: GlobResult, next| {
                failures.extend(result.failures);
                merge.push(result.entries);
                if let Some(cut) = result.truncated {
                    merge.push_cut(glob_place(&cut.cursor), cut);
                }
                if merge.settle(next, options.limit) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .await?;
        failures.extend(failed);
        let (entries, cut) = merge.finish();
        let mut result = GlobResult::from_sorted(entries, options);
        let start = || options.start_after.as_ref().map(ToString::to_string);
        result.truncated = result.truncated.or(cut.map(|cut| going_on(cut, start)));
        result.failures = failures;
        Ok(result)
    }

    /// Finds lines by pattern.
    pub(super) async fn find_lines(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        let place = self.router.find(path);
        let target = self.target(place, path)?;
        let Some(node) = place.node.filter(|node| self.router.node(*node).is_above_mounts()) else {
            return match self.find_lines_in(target, options).await {
                Ok(result) => Ok(result),
                Err(error) => Err(self.read_error(error, target, path).await),
            };
        };
        let filter = PathFilter::for_grep(path, options)?;
        GrepMatcher::compile(options)?;
        let plan = self.plan(place, node, path, &filter);
        let asks = plan.asks.iter().map(|ask| Box::pin(self.ask_for_lines(ask, path, options)) as BoxFuture<'_, _>).collect();
        let mut merge = Merge::new();
        let mut totals = GrepResult::default();
        let failed = self
            .gather(&plan.asks, asks, options.scope.on_failure, |result: GrepResult, next| {
                add_totals(&mut totals, &result);
                add_failures(&mut totals, result.failures, result.failures_count);
                merge.push(result.files);
                if let Some(cut) = result.truncated {
                    merge.push_cut(grep_place(&cut.cursor), cut);
                }
                if merge.settle(next, options.matches_max) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .await?;
        failed.into_iter().for_each(|failure| totals.push_failure(failure));
        let (files, cut) = merge.finish();
        let mut collector = GrepCollector::new(options);
        for file in files {
            let outcome = FileOutcome::Searched { count: file.count, lines: file.lines, cut: false };
            if collector.push(file.path, outcome).is_break() {
                break;
            }
        }
        let collected = collector.finish();
        let start = || options.start_after.as_ref().map(ToString::to_string);
        totals.truncated = collected.truncated.or(cut.map(|cut| going_on(cut, start)));
        totals.files = collected.files;
        Ok(totals)
    }

    /// Searches files by words.
    ///
    /// Each mount first ranks its own files and returns its word counts. The counts are then combined, so the ranking is that of one tree:
    /// a mount that returned all its hits is ranked again here, and one whose result was truncated is queried again with the combined
    /// counts. Snippets are made last, only for the files that are returned.
    pub(super) async fn find_files(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        let place = self.router.find(path);
        let target = self.target(place, path)?;
        let Some(node) = place.node.filter(|node| self.router.node(*node).is_above_mounts()) else {
            return match self.find_files_in(target, options).await {
                Ok(result) => Ok(result),
                Err(error) => Err(self.read_error(error, target, path).await),
            };
        };
        let filter = PathFilter::for_grep(path, &options.selection())?;
        let mut all = rank::nothing(options)?;
        let plan = self.plan(place, node, path, &filter);
        let mut asked = options.clone();
        // The files to skip are known only after all mounts have answered.
        (asked.limit, asked.offset, asked.snippets_max) = (options.end(), 0, 0);
        if asked.spelling == Spelling::Lenient {
            // Only all mounts together show that no file contains a word.
            asked.spelling = Spelling::Exact;
        }
        let elsewhere = options.merge.as_ref().map(|merge| merge.elsewhere.clone()).unwrap_or_default();
        asked.merge = Some(SearchMerge::new(elsewhere).with_spare(true));
        let (mut answers, failed) = self.ask_each(&plan.asks, path, options, |_| Some(asked.clone())).await?;
        answers.values().for_each(|answer| all.corpus.add(&answer.corpus));
        let query = Query::new(options)?;
        match query.nearly(options, &all.corpus) {
            Nearly::Needless => {}
            Nearly::TooLarge => all.is_near_omitted = true,
            Nearly::Asked(nearly) => return Box::pin(self.find_files(path, &nearly)).await,
        }
        let again = |ask: usize| {
            let answer = answers.get(&ask).filter(|answer| answer.truncated.is_some())?;
            let mut others = options.weighed_by(&all.corpus);
            others.subtract(&answer.corpus);
            (others.files > 0).then(|| {
                let mut asked = asked.clone();
                asked.merge = Some(SearchMerge::new(others));
                asked
            })
        };
        let (better, failed_again) = self.ask_each(&plan.asks, path, options, again).await?;
        answers.extend(better);
        for answer in answers.into_values() {
            all.add_failures(answer.failures, answer.failures_count, answer.failures_of_meaning);
            all.is_near_omitted |= answer.is_near_omitted;
            all.truncated = all.truncated.take().or(answer.truncated);
            all.hits.extend(answer.hits);
        }
        failed.into_iter().chain(failed_again).for_each(|failure| all.push_failure(failure));
        rank::rank(&mut all, options);
        self.add_snippets(&mut all, options).await;
        query.tell_near(&mut all);
        Ok(all)
    }

    /// Queries mounts for files, each with its own options or not at all. Returns the answers by index of the query,
    /// and the mounts that failed, if the caller accepts partial results.
    async fn ask_each(
        &self,
        asks: &[Ask<'_>],
        root: &VfsPath,
        options: &SearchOptions,
        asked: impl Fn(usize) -> Option<SearchOptions>,
    ) -> Result<(BTreeMap<usize, SearchResult>, Vec<Failure>)> {
        let mut answers = Vec::with_capacity(asks.len());
        for (number, ask) in asks.iter().enumerate() {
            let asked = asked(number);
            let answer = async move {
                let Some(asked) = asked else { return Ok(None) };
                Ok(Some((number, self.ask_for_files(ask, root, asked).await?)))
            };
            answers.push(Box::pin(answer) as BoxFuture<'_, _>);
        }
        let mut answered = BTreeMap::new();
        let take = |answer: Option<(usize, SearchResult)>, _: Option<&VfsPath>| {
            answered.extend(answer);
            ControlFlow::Continue(())
        };
        let failed = self.gather(asks, answers, options.scope.on_failure, take).await?;
        Ok((answered, failed))
    }

    /// Adds the snippets of hits, made by each mount for its own files. A file that cannot be read any more has none.
    async fn add_snippets(&self, all: &mut SearchResult, options: &SearchOptions) {
        if options.snippets_max == 0 {
            return;
        }
        let mut of_one = SearchOptions::new(&options.query).with_limit(1).with_snippets_max(options.snippets_max);
        of_one.spelling.clone_from(&options.spelling);
        (of_one.scope, of_one.merge) = (options.scope.clone(), Some(SearchMerge::new(options.weighed_by(&all.corpus))));
        let paths: Vec<VfsPathBuf> = all.hits.iter().map(|hit| hit.path.clone()).collect();
        let ask = async |path: &VfsPath| self.find_files_in(self.target(self.router.find(path), path)?, &of_one).await;
        let asks: Vec<BoxFuture<'_, _>> = paths.iter().map(|path| Box::pin(ask(path)) as _).collect();
        let mut found = stream::iter(asks).buffered(self.concurrency);
        for hit in &mut all.hits {
            if let Some(Ok(SearchResult { hits, .. })) = found.next().await {
                hit.snippets = hits.into_iter().next().map(|hit| hit.snippets).unwrap_or_default();
            }
        }
    }

    /// Plans the queries of a search: the backend of the path, and each mount below that the filter can reach.
    fn plan<'a>(&'a self, place: Resolved, node: usize, path: &'a VfsPath, filter: &PathFilter) -> Plan<'a> {
        let mut plan = Plan::default();
        if let Some(bound) = filter.bound() {
            plan.add(Ask { mount: place.mount, node, path, is_virtual: self.is_virtual(place) }, &bound, self);
            self.plan_beneath(node, filter, &bound, &mut plan);
        }
        plan
    }

    fn plan_beneath<'a>(&'a self, parent: usize, filter: &PathFilter, bound: &VfsPath, plan: &mut Plan<'a>) {
        // Nothing outside the bound is selected, so only children towards it matter, however many mounts there are.
        for child in self.router.children_towards(parent, bound) {
            let node = self.router.node(*child);
            let ask = node.mount().map(|mount| Ask { mount, node: *child, path: node.path(), is_virtual: false });
            if node.mount().is_some_and(|mount| self.router.mount(mount).is_file) {
                plan.asks.extend(ask.filter(|_| filter.selects(node.path(), false)));
                continue;
            }
            if filter.selects(node.path(), true) {
                plan.directories.push(Entry::directory(node.path()));
            }
            if filter.enters(node.path()) {
                ask.into_iter().for_each(|ask| plan.add(ask, bound, self));
                self.plan_beneath(*child, filter, bound, plan);
            }
        }
    }

    /// Queries mounts concurrently and passes their results on in path order, until they suffice. Returns the mounts
    /// that failed, if the caller accepts partial results.
    async fn gather<R>(
        &self,
        asks: &[Ask<'_>],
        answers: Vec<BoxFuture<'_, Result<R>>>,
        on_failure: OnFailure,
        mut add: impl FnMut(R, Option<&VfsPath>) -> ControlFlow<()>,
    ) -> Result<Vec<Failure>> {
        let mut failures = Vec::new();
        let mut answers = stream::iter(answers).buffered(self.concurrency);
        let mut at = 0;
        while let Some(answer) = answers.next().await {
            let prefix = self.router.prefix(asks[at].mount);
            at += 1;
            match (answer, on_failure) {
                (Ok(result), _) => {
                    if add(result, asks.get(at).map(|ask| ask.path)).is_break() {
                        break;
                    }
                }
                (Err(error), OnFailure::Fail) => return Err(of_mount(prefix, error)),
                (Err(error), OnFailure::Partial) => failures.push(mount_failure(prefix, &error)),
            }
        }
        Ok(failures)
    }

    async fn ask_for_paths(&self, ask: &Ask<'_>, root: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        if self.router.mount(ask.mount).is_file {
            let mut found = GlobResult::default();
            found.entries.extend(self.show_file(ask.mount).await?);
            return Ok(found);
        }
        let target = self.ask_target(ask);
        let mut options = options.clone();
        let hidden = self.narrow(ask, root, &mut options.scope);
        let found = match self.is_hidden_file(ask, target, &options.scope).await {
            Ok(true) => return Ok(GlobResult::default()),
            Ok(false) => self.find_paths_in(target, &options).await,
            Err(error) => Err(error),
        };
        match found {
            Ok(mut result) => {
                result.entries.retain(|entry| entry.is_directory() || !hidden.contains(&entry.path));
                Ok(result)
            }
            Err(error) if ask.is_virtual && is_absence(&error) => Ok(GlobResult::default()),
            Err(error) => Err(target.outward().error(error, &[target.rest])),
        }
    }

    async fn ask_for_lines(&self, ask: &Ask<'_>, root: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        let is_file = self.router.mount(ask.mount).is_file;
        let target = self.ask_target(ask);
        let mut options = options.clone();
        let hidden = self.narrow(ask, root, &mut options.scope);
        let found = match self.is_hidden_file(ask, target, &options.scope).await {
            Ok(true) => return Ok(GrepResult::default()),
            Ok(false) => self.find_lines_in(target, &options).await,
            Err(error) => Err(error),
        };
        match found {
            Ok(mut result) => {
                result.files.retain(|file| !hidden.contains(&file.path));
                Ok(result)
            }
            Err(error) if (ask.is_virtual || is_file) && is_absence(&error) => Ok(GrepResult::default()),
            // A directory at the path of a file mount counts as absent.
            Err(error) if is_file && error.kind() == ErrorKind::IsDirectory => Ok(GrepResult::default()),
            Err(error) => Err(target.outward().error(error, &[target.rest])),
        }
    }

    async fn ask_for_files(&self, ask: &Ask<'_>, root: &VfsPath, mut options: SearchOptions) -> Result<SearchResult> {
        let is_file = self.router.mount(ask.mount).is_file;
        let target = self.ask_target(ask);
        let hidden = self.narrow(ask, root, &mut options.scope);
        let found = match self.is_hidden_file(ask, target, &options.scope).await {
            Ok(true) => return rank::nothing(&options),
            Ok(false) => self.find_files_in(target, &options).await,
            Err(error) => Err(error),
        };
        match found {
            Ok(mut result) => {
                result.hits.retain(|hit| !hidden.contains(&hit.path));
                Ok(result)
            }
            Err(error) if (ask.is_virtual || is_file) && is_absence(&error) => rank::nothing(&options),
            // A directory at the path of a file mount counts as absent.
            Err(error) if is_file && error.kind() == ErrorKind::IsDirectory => rank::nothing(&options),
            Err(error) => Err(target.outward().error(error, &[target.rest])),
        }
    }

    /// Queries one backend for paths, with the caller's scope. Errors are the backend's.
    async fn find_paths_in(&self, target: Target<'_>, options: &GlobOptions) -> Result<GlobResult> {
        if target.prefix.is_root() {
            return target.backend.glob(target.rest, options).await;
        }
        let start_after = match options.start_after.as_deref().map(|cursor| Position::of(cursor, target.prefix)) {
            Some(Position::After) => return Ok(GlobResult::default()),
            Some(Position::Within(rest)) if !rest.is_root() => Some(rest.to_owned()),
            Some(Position::Within(_) | Position::Before) | None => None,
        };
        let inward = View::From(target.prefix).glob_options(options, start_after);
        Ok(target.outward().globbed(target.backend.glob(target.rest, &inward).await?))
    }

    /// Queries one backend for lines, like [`Self::find_paths_in`].
    async fn find_lines_in(&self, target: Target<'_>, options: &GrepOptions) -> Result<GrepResult> {
        if target.prefix.is_root() {
            return target.backend.grep(target.rest, options).await;
        }
        let start_after = match options.start_after.as_ref().map(|cursor| (Position::of(&cursor.path, target.prefix), cursor.line)) {
            Some((Position::After, _)) => return Ok(GrepResult::default()),
            Some((Position::Within(rest), line)) => Some(GrepCursor { path: rest.to_owned(), line }),
            Some((Position::Before, _)) | None => None,
        };
        let inward = View::From(target.prefix).grep_options(options, start_after);
        Ok(target.outward().grepped(target.backend.grep(target.rest, &inward).await?))
    }

    /// Queries one backend for files by words, like [`Self::find_paths_in`].
    async fn find_files_in(&self, target: Target<'_>, options: &SearchOptions) -> Result<SearchResult> {
        if target.prefix.is_root() {
            return target.backend.search(target.rest, options).await;
        }
        let inward = View::From(target.prefix).search_options(options);
        Ok(target.outward().recalled(target.backend.search(target.rest, &inward).await?))
    }

    fn ask_target<'a>(&'a self, ask: &Ask<'a>) -> Target<'a> {
        let prefix = self.router.prefix(ask.mount);
        Target { backend: &*self.router.mount(ask.mount).backend, prefix, rest: rest_of(ask.path, prefix) }
    }

    /// Returns whether the search starts at a file that is hidden because mounts make its path a directory. Such a file
    /// must not be searched.
    async fn is_hidden_file(&self, ask: &Ask<'_>, target: Target<'_>, scope: &SearchScope) -> Result<bool> {
        let options = StatOptions::new().with_refuse_links(scope.refuse_links);
        Ok(ask.is_virtual && !target.backend.stat(target.rest, &options).await?.is_directory())
    }

    /// Narrows the scope of a search to one mount: its position below the search root, and what other mounts hide of
    /// it. Returns the paths that are only directories, because a backend that ignores guards (a remote one) may find a
    /// file there.
    fn narrow(&self, ask: &Ask<'_>, root: &VfsPath, scope: &mut SearchScope) -> Arc<HashSet<VfsPathBuf>> {
        scope.base = scope.base.concat(rest_of(ask.path, root));
        scope.prune.extend(self.router.outermost_beneath(ask.node).map(|mount| self.router.prefix(mount).to_owned()));
        let mut virtual_paths = HashSet::new();
        self.collect_virtual(ask.node, &mut virtual_paths);
        let virtual_paths = Arc::new(virtual_paths);
        if !virtual_paths.is_empty() {
            let hidden = virtual_paths.clone();
            let files = PathGuard::new(move |path, is_directory| is_directory || !hidden.contains(path));
            scope.guard = Some(scope.guard.as_ref().map_or(files.clone(), |guard| guard.and(&files)));
        }
        virtual_paths
    }

    /// Collects the directories that lead to mounts; files of the backend at their paths are hidden.
    fn collect_virtual(&self, parent: usize, paths: &mut HashSet<VfsPathBuf>) {
        for child in self.router.node(parent).children() {
            let node = self.router.node(*child);
            if node.mount().is_none() {
                paths.insert(node.path().to_owned());
                self.collect_virtual(*child, paths);
            }
        }
    }
}

/// Adds the counts of one mount.
fn add_totals(totals: &mut GrepResult, result: &GrepResult) {
    totals.files_searched += result.files_searched;
    totals.files_binary += result.files_binary;
    totals.files_too_large += result.files_too_large;
}

/// Adds the failures of one mount, which may have listed only some of them.
fn add_failures(totals: &mut GrepResult, failures: Vec<Failure>, count: usize) {
    let unnamed = count.saturating_sub(failures.len());
    failures.into_iter().for_each(|failure| totals.push_failure(failure));
    totals.failures_count += unnamed;
}

/// Returns the truncation of a result; if the mount returned nothing, the cursor is the start of this search.
fn going_on(cut: Truncation, start: impl Fn() -> Option<String>) -> Truncation {
    match cut.cursor.is_empty() {
        true => Truncation { cursor: start().unwrap_or_default(), ..cut },
        false => cut,
    }
}
