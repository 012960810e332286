//! Combines several answers into one result, for limits beyond one answer and for guards that are applied here.

use super::question::RemoteTree;
use treehold_core::error::Result;
use treehold_core::ops::{
    Corpus, Entry, Failure, GlobOptions, GlobResult, GrepCursor, GrepOptions, GrepOutput, GrepResult, Listing, LsOptions, PathGuard,
    SearchOptions, SearchResult, Truncation, TruncationReason,
};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::search::rank;
use treehold_core::wire::LIMIT_MAX;

/// The fewest entries to request when a guard may drop some.
const GUARDED_PAGE_MIN: usize = 256;

/// How many answers without a visible entry are read before the result is truncated.
const PAGES_MAX: usize = 10_000;

/// Lists a directory, with as many answers as the limit takes.
pub(super) async fn ls(tree: &RemoteTree, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
    let mut asked = options.clone();
    let mut listing = Listing::default();
    loop {
        let left = options.limit - listing.entries.len();
        asked.limit = left.clamp(1, LIMIT_MAX);
        let Listing { entries, truncated, failures, .. } = tree.ls_page(path, &asked).await?;
        listing.failures.extend(failures);
        if left == 0 {
            listing.truncated = (!entries.is_empty() || truncated.is_some()).then(|| {
                let last = listing.entries.last().map(Entry::name).or(options.start_after.as_deref());
                Truncation { reason: TruncationReason::Limit, cursor: last.unwrap_or_default().to_owned() }
            });
            return Ok(listing);
        }
        listing.entries.extend(entries);
        match truncated {
            Some(cut) if listing.entries.len() < options.limit && cut.reason == TruncationReason::Limit && asked.limit < left => {
                asked.start_after = Some(cut.cursor);
            }
            truncated => {
                listing.truncated = truncated;
                return Ok(listing);
            }
        }
    }
}

/// Finds paths, dropping those that the guard refuses.
pub(super) async fn glob(tree: &RemoteTree, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
    let admits = Admits::new(path, options.scope.guard.as_ref());
    let mut asked = options.clone();
    let mut result = GlobResult::default();
    for _ in 0..PAGES_MAX {
        let left = options.limit - result.entries.len();
        asked.limit = page_size(left, &admits);
        let page = tree.glob_page(path, &asked).await?;
        result.failures.extend(page.failures.into_iter().filter(|failure| admits.failure(failure)));
        let mut seen = page.entries.into_iter().filter(|entry| admits.path(&entry.path, entry.is_directory()));
        result.entries.extend(seen.by_ref().take(left));
        if seen.next().is_some() {
            result.truncated = Some(Truncation { reason: TruncationReason::Limit, cursor: glob_cursor(&result, options) });
            return Ok(result);
        }
        let Some(cut) = page.truncated else { return Ok(result) };
        let is_exact = !admits.leaves_out() && asked.limit >= left;
        if (is_exact && left > 0) || cut.reason != TruncationReason::Limit {
            result.truncated = Some(admits.truncation(cut, || glob_cursor(&result, options)));
            return Ok(result);
        }
        asked.start_after = Some(VfsPathBuf::parse(cut.cursor)?);
    }
    result.truncated = Some(Truncation { reason: TruncationReason::Limit, cursor: glob_cursor(&result, options) });
    Ok(result)
}

/// Finds lines, dropping files that the guard refuses.
pub(super) async fn grep(tree: &RemoteTree, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
    let admits = Admits::new(path, options.scope.guard.as_ref());
    let mut asked = options.clone();
    let mut result = GrepResult::default();
    let mut matches = 0;
    for _ in 0..PAGES_MAX {
        let left = options.matches_max - matches;
        asked.matches_max = left.clamp(1, LIMIT_MAX);
        if left == 0 {
            // Only whether more matches exist is left to find out.
            (asked.matches_max, asked.before, asked.after) = (page_size(0, &admits), 0, 0);
        }
        let page = tree.grep_page(path, &asked).await?;
        for failure in page.failures.iter().filter(|failure| admits.failure(failure)) {
            result.push_failure(failure.clone());
        }
        if !admits.leaves_out() {
            result.files_searched += page.files_searched;
            result.files_binary += page.files_binary;
            result.files_too_large += page.files_too_large;
            result.failures_count += page.failures_count.saturating_sub(page.failures.len());
        }
        let mut seen = page.files.into_iter().filter(|file| admits.path(&file.path, false));
        if left == 0 && seen.next().is_some() {
            result.truncated = Some(Truncation { reason: TruncationReason::Limit, cursor: grep_cursor(&result, options) });
            return Ok(result);
        }
        for file in seen {
            matches += match options.output {
                GrepOutput::Content => file.count,
                GrepOutput::Files | GrepOutput::Counts => 1,
            };
            // The file at which a page ends continues on the next.
            match result.files.last_mut() {
                Some(last) if last.path == file.path && options.output == GrepOutput::Content => {
                    last.count += file.count;
                    last.lines.extend(file.lines);
                }
                _ => {
                    result.files_searched += usize::from(admits.leaves_out());
                    result.files.push(file);
                }
            }
        }
        let Some(cut) = page.truncated else { return Ok(result) };
        let is_exact = !admits.leaves_out() && asked.matches_max >= left;
        if (is_exact && left > 0) || cut.reason != TruncationReason::Limit {
            result.truncated = Some(admits.truncation(cut, || grep_cursor(&result, options)));
            return Ok(result);
        }
        asked.start_after = Some(cut.cursor.parse()?);
    }
    result.truncated = Some(Truncation { reason: TruncationReason::Limit, cursor: grep_cursor(&result, options) });
    Ok(result)
}

/// Searches files, dropping those that the guard refuses. Ranks are then relative to the remaining files.
pub(super) async fn search(tree: &RemoteTree, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
    let admits = Admits::new(path, options.scope.guard.as_ref());
    let mut asked = options.clone();
    if !admits.leaves_out() {
        // Servers reject a search with limit 0.
        asked.limit = options.limit.clamp(1, LIMIT_MAX);
        let mut result = tree.search_page(path, &asked).await?;
        if options.limit == 0 && options.end_of_known() == 0 {
            let is_cut = !result.hits.is_empty() || result.truncated.is_some();
            result.hits.clear();
            result.truncated = is_cut.then(|| Truncation { reason: TruncationReason::Limit, cursor: options.offset.to_string() });
        }
        return Ok(result);
    }
    asked.offset = 0;
    if let Some(merge) = &mut asked.merge {
        merge.wants_spare = false;
    }
    let mut result: Option<SearchResult> = None;
    loop {
        let found = result.as_ref().map_or(0, |result| result.hits.len());
        asked.limit = (options.end().saturating_sub(found)).saturating_add(1).clamp(GUARDED_PAGE_MIN, LIMIT_MAX);
        let mut page = tree.search_page(path, &asked).await?;
        let came = page.hits.len();
        page.hits.retain(|hit| admits.path(&hit.path, false));
        page.failures.retain(|failure| admits.failure(failure));
        page.failures_count = page.failures.len();
        let is_cut = page.truncated.take().is_some_and(|cut| !cut.cursor.is_empty());
        let whole = match result.as_mut() {
            Some(whole) => {
                whole.hits.extend(page.hits);
                whole
            }
            None => result.insert(page),
        };
        asked.offset += came;
        if !is_cut || came == 0 || whole.hits.len() > options.end() || asked.offset >= SearchOptions::RANK_MAX {
            break;
        }
    }
    let mut result = result.unwrap_or_default();
    result.corpus = counted(&result);
    rank::cut(&mut result, options);
    Ok(result)
}

/// Counts the files that passed the guard; the server's counts would reveal the others.
fn counted(result: &SearchResult) -> Corpus {
    let mut corpus = Corpus::new(result.words.len());
    for hit in &result.hits {
        corpus.files += 1;
        corpus.words += u64::from(hit.words);
        corpus.files_with.iter_mut().zip(&hit.frequencies).for_each(|(files, frequency)| *files += u64::from(*frequency > 0));
    }
    corpus
}

/// Decides which paths below `path` a guard admits.
struct Admits<'a> {
    path: &'a VfsPath,
    guard: Option<&'a PathGuard>,
}

impl<'a> Admits<'a> {
    fn new(path: &'a VfsPath, guard: Option<&'a PathGuard>) -> Self {
        Self { path, guard }
    }

    fn leaves_out(&self) -> bool {
        self.guard.is_some()
    }

    /// Returns whether a walk under the guard would reach a path: it admits the path and every directory above it.
    fn path(&self, found: &VfsPath, is_directory: bool) -> bool {
        let Some(guard) = self.guard else { return true };
        let mut above = found.ancestors().filter(|above| above.starts_with(self.path) && *above != self.path && *above != found);
        above.all(|above| guard.admits(above, true)) && guard.admits(found, is_directory)
    }

    /// An unreadable path may be a directory or a file, so it is reported only if the guard admits both.
    fn failure(&self, failure: &Failure) -> bool {
        self.path(&failure.path, true) && self.path(&failure.path, false)
    }

    /// If entries may be dropped, the cursor must be `shown`, which the caller knows.
    fn truncation(&self, cut: Truncation, shown: impl FnOnce() -> String) -> Truncation {
        if self.leaves_out() { Truncation { reason: cut.reason, cursor: shown() } } else { cut }
    }
}

/// Returns how many entries to request for `left` open places.
fn page_size(left: usize, admits: &Admits<'_>) -> usize {
    let least = if admits.leaves_out() { GUARDED_PAGE_MIN } else { 1 };
    left.clamp(least, LIMIT_MAX)
}

/// Returns the cursor after the last entry of a result, or that of its start.
fn glob_cursor(result: &GlobResult, options: &GlobOptions) -> String {
    let last = result.entries.last().map(|entry| &*entry.path).or(options.start_after.as_deref());
    last.unwrap_or(VfsPath::ROOT).to_string()
}

/// Returns the cursor after the last match of a result, or that of its start.
fn grep_cursor(result: &GrepResult, options: &GrepOptions) -> String {
    let Some(file) = result.files.last() else {
        let start = || GrepCursor { path: VfsPathBuf::root(), line: 0 };
        return options.start_after.clone().unwrap_or_else(start).to_string();
    };
    let last = file.lines.iter().rfind(|line| line.is_match);
    let line = last.map_or(GrepCursor::END, |line| line.line + memchr::memchr_iter(b'\n', &line.text).count());
    GrepCursor { path: file.path.clone(), line }.to_string()
}
