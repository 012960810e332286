//! Searching: which mounts a glob or grep reaches, what each is asked, and one result of all.

use super::merge::{Merge, glob_place, grep_place};
use super::router::Place;
use super::{CompositeBackend, Target, is_absence, mount_failure, of_mount, rest_of};
use crate::backend::rebase::{Position, View};
use crate::error::{ErrorKind, Result};
use crate::ops::{
    Entry, Failure, GlobOptions, GlobResult, GrepCursor, GrepOptions, GrepResult, OnFailure, PathGuard, SearchOptions, SearchResult,
    SearchScope, Truncation,
};
use crate::path::{VfsPath, VfsPathBuf};
use crate::search::{FileOutcome, GrepCollector, GrepMatcher, PathFilter, rank};
use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// One mount to ask, for what it holds at and beneath a path.
struct Ask<'a> {
    mount: usize,
    node: usize,
    /// Where the search starts in it, as the caller names the place.
    path: &'a VfsPath,
    /// Whether the path is a directory whatever the mount holds there.
    is_virtual: bool,
}

/// Whom a search from above mounts asks, in path order, and the directories it finds by itself.
#[derive(Default)]
struct Plan<'a> {
    asks: Vec<Ask<'a>>,
    directories: Vec<Entry>,
}

impl<'a> Plan<'a> {
    /// Adds a mount, unless all that can be selected in it lies in a mount within it. Everything selected lies at or beneath
    /// `bound`.
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

    /// Recalls files by words.
    ///
    /// Each mount ranks its own files first and tells what it counted. Then words are weighed by the files of all, so the order is that of one
    /// tree: a mount that gave all it found is ranked again here, and one that was cut is asked once more, for its best by those weights.
    /// Snippets are made last, of the files that are returned.
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
        // What is passed over is known only when all have answered.
        (asked.limit, asked.offset, asked.snippets_max, asked.at_hand) = (options.end(), 0, 0, true);
        let (mut answers, failed) = self.ask_each(&plan.asks, path, options, |_| Some(asked.clone())).await?;
        answers.values().for_each(|answer| all.corpus.add(&answer.corpus));
        let again = |ask: usize| {
            let answer = answers.get(&ask).filter(|answer| answer.truncated.is_some())?;
            let mut others = options.weighed_by(&all.corpus);
            others.subtract(&answer.corpus);
            (others.files > 0).then(|| SearchOptions { among: Some(others), at_hand: false, ..asked.clone() })
        };
        let (better, failed_again) = self.ask_each(&plan.asks, path, options, again).await?;
        answers.extend(better);
        for answer in answers.into_values() {
            all.failures_count += answer.failures_count.saturating_sub(answer.failures.len());
            answer.failures.into_iter().for_each(|failure| all.push_failure(failure));
            all.truncated = all.truncated.take().or(answer.truncated);
            all.hits.extend(answer.hits);
        }
        failed.into_iter().chain(failed_again).for_each(|failure| all.push_failure(failure));
        rank::rank(&mut all, options);
        self.add_snippets(&mut all, options).await;
        Ok(all)
    }

    /// Asks mounts for files, each with options of its own or not at all. Returns the answers by the numbers of the asks, and the mounts that
    /// failed, where the caller takes a part for the whole.
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

    /// Adds the snippets of hits: each mount makes those of its own files. One that is gone or cannot be read has none.
    async fn add_snippets(&self, all: &mut SearchResult, options: &SearchOptions) {
        if options.snippets_max == 0 {
            return;
        }
        let mut of_one = SearchOptions::new(&options.query).with_limit(1).with_snippets_max(options.snippets_max);
        (of_one.scope, of_one.among) = (options.scope.clone(), Some(options.weighed_by(&all.corpus)));
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

    /// Decides whom a search asks: the backend that holds the path, and each mount beneath that the filter can reach.
    fn plan<'a>(&'a self, place: Place, node: usize, path: &'a VfsPath, filter: &PathFilter) -> Plan<'a> {
        let mut plan = Plan::default();
        if let Some(bound) = filter.bound() {
            plan.add(Ask { mount: place.mount, node, path, is_virtual: self.is_virtual(place) }, &bound, self);
            self.plan_beneath(node, filter, &bound, &mut plan);
        }
        plan
    }

    fn plan_beneath<'a>(&'a self, parent: usize, filter: &PathFilter, bound: &VfsPath, plan: &mut Plan<'a>) {
        // Nothing is selected outside the bound, however many mounts there are.
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

    /// Asks mounts at the same time and hands over what they gave one by one in path order, until that is enough. Returns the
    /// mounts that failed, where the caller takes a part for the whole.
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
            return Ok(GlobResult { entries: self.show_file(ask.mount).await?.into_iter().collect(), ..GlobResult::default() });
        }
        let target = self.ask_target(ask);
        let mut options = options.clone();
        let hidden = self.narrow(ask, root, &mut options.scope);
        let found = match self.is_hidden_file(ask, target).await {
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
        let found = match self.is_hidden_file(ask, target).await {
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
            // A directory in the place of a file is as good as nothing.
            Err(error) if is_file && error.kind() == ErrorKind::IsDirectory => Ok(GrepResult::default()),
            Err(error) => Err(target.outward().error(error, &[target.rest])),
        }
    }

    async fn ask_for_files(&self, ask: &Ask<'_>, root: &VfsPath, mut options: SearchOptions) -> Result<SearchResult> {
        let is_file = self.router.mount(ask.mount).is_file;
        let target = self.ask_target(ask);
        let hidden = self.narrow(ask, root, &mut options.scope);
        let found = match self.is_hidden_file(ask, target).await {
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
            // A directory in the place of a file is as good as nothing.
            Err(error) if is_file && error.kind() == ErrorKind::IsDirectory => rank::nothing(&options),
            Err(error) => Err(target.outward().error(error, &[target.rest])),
        }
    }

    /// Asks one backend for paths, with a scope that is the caller's. Errors are the backend's.
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

    /// Asks one backend for lines, as [`Self::find_paths_in`] does for paths.
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

    /// Asks one backend for files by words, as [`Self::find_paths_in`] does for paths.
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

    /// Tells whether a file stands where the search starts and mounts make a directory of it: it is not there, and must not be
    /// searched as a file that was named.
    async fn is_hidden_file(&self, ask: &Ask<'_>, target: Target<'_>) -> Result<bool> {
        Ok(ask.is_virtual && !target.backend.stat(target.rest).await?.is_directory())
    }

    /// Narrows the scope of a search to one mount of it: how far down it stands, and what other mounts hide of it. Returns the
    /// paths where only a directory shows: a backend that knows no guards (one behind a wire) may still find a file there.
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

    /// Collects the directories that lead to mounts, down to those: a file of the backend in their place is hidden.
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

/// Adds what one mount counted.
fn add_totals(totals: &mut GrepResult, result: &GrepResult) {
    totals.files_searched += result.files_searched;
    totals.files_binary += result.files_binary;
    totals.files_too_large += result.files_too_large;
}

/// Adds what one mount could not read, of which it may have named only a part.
fn add_failures(totals: &mut GrepResult, failures: Vec<Failure>, count: usize) {
    let unnamed = count.saturating_sub(failures.len());
    failures.into_iter().for_each(|failure| totals.push_failure(failure));
    totals.failures_count += unnamed;
}

/// Goes on where a mount was cut; where nothing was returned, where this search began.
fn going_on(cut: Truncation, start: impl Fn() -> Option<String>) -> Truncation {
    match cut.cursor.is_empty() {
        true => Truncation { cursor: start().unwrap_or_default(), ..cut },
        false => cut,
    }
}
