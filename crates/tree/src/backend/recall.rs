//! Ranked search in a tree without an index of words: each file is read.

use super::Backend;
use crate::background::{in_background, workers};
use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use treehold_core::error::{Error, ErrorKind, ErrorRecord, Result};
use treehold_core::ops::{
    Corpus, Entry, EntryKind, Failure, FileRead, GlobOptions, LsOptions, ReadOptions, SearchHit, SearchOptions, SearchResult, Spelling,
    StatOptions,
};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::search::rank::{self, Found, NEAR_BYTES_MAX, NEAR_FILES_MAX, NEAR_WORDS_MAX, Nearly, Query};
use treehold_core::search::words::CONTENT_BYTES_MAX;
use treehold_core::search::{PathFilter, glob, parallel};
use treehold_core::work;

/// How many files are read concurrently.
const READS_AT_ONCE: usize = 16;

/// How many bytes are read before their words are counted on all cores. A single file may exceed it.
const CHUNK_BYTES: u64 = 8 << 20;

/// How many files are read before their words are counted.
const CHUNK_FILES: usize = 1_024;

/// How many times longer counting the words of a content takes than searching its bytes.
const WORDS_COST: u64 = 16;

/// How much a search looks through for words that are spelled nearly like those of the query.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NearBounds {
    pub files: u64,
    pub bytes: u64,
    pub words: u64,
}

impl NearBounds {
    /// The bounds of every search.
    pub(crate) const ALL: Self = Self { files: NEAR_FILES_MAX, bytes: NEAR_BYTES_MAX, words: NEAR_WORDS_MAX };
}

/// Searches any tree by listing it and reading the selected files: the implementation of [`Backend::search`] for trees without an
/// index of words.
///
/// Words are weighted by the selected files. Cost: a listing of everything beneath the path, and one read of each
/// file, of at most 1 MiB; twice that if no file contains a word of the query, for the [words spelled nearly like
/// it](treehold_core::ops::Spelling), within their bounds. Memory: 8 MiB of contents at a time, and about 200 bytes for each file found.
///
/// # Errors
/// Those of [`Backend::search`].
pub async fn search_by_reading<B: Backend + ?Sized>(tree: &B, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
    search_within(tree, path, options, NearBounds::ALL).await
}

/// Searches like [`search_by_reading`] with other bounds on the search for near spellings.
async fn search_within<B: Backend + ?Sized>(tree: &B, path: &VfsPath, options: &SearchOptions, bounds: NearBounds) -> Result<SearchResult> {
    if matches!(options.spelling, Spelling::Near(_)) {
        return match nearly_by_reading(tree, path, options, bounds).await? {
            Some(result) => Ok(result),
            None => without_near(Reading::new(tree, &options.clone().with_spelling(Spelling::Exact))?.read_all(path).await?).await,
        };
    }
    let exact = Reading::new(tree, options)?.read_all(path).await?;
    match exact.query.nearly(options, &exact.corpus) {
        Nearly::Needless => exact.finish().await,
        Nearly::TooLarge => without_near(exact).await,
        Nearly::Asked(_) if exact.exceeds(bounds) => without_near(exact).await,
        Nearly::Asked(nearly) => match nearly_by_reading(tree, path, &nearly, bounds).await? {
            Some(result) => Ok(result),
            None => without_near(exact).await,
        },
    }
}

/// Searches like [`search_by_reading`] for words that are spelled nearly like those of the options. Returns `None` if that would exceed the
/// bounds; those of files and bytes mostly show before a file is read.
pub(crate) async fn nearly_by_reading<B: Backend + ?Sized>(
    tree: &B,
    path: &VfsPath,
    options: &SearchOptions,
    bounds: NearBounds,
) -> Result<Option<SearchResult>> {
    let mut files = Files::new(tree, path, options)?;
    let (mut listed, mut size_bytes) = (Vec::new(), 0_u64);
    while let Some(page) = files.next().await? {
        size_bytes += page.iter().map(read_bytes_of).sum::<u64>();
        listed.extend(page);
        if listed.len() as u64 > bounds.files || size_bytes > bounds.bytes {
            return Ok(None);
        }
    }
    let mut reading = Reading::new(tree, options)?;
    for entry in listed {
        reading.push(entry).await?;
        // Files may have grown since they were listed.
        if reading.exceeds(bounds) {
            return Ok(None);
        }
    }
    reading.count().await?;
    if reading.exceeds(bounds) {
        return Ok(None);
    }
    files.failures.into_iter().for_each(|failure| reading.failed.push_failure(failure));
    reading.finish().await.map(Some)
}

/// Finishes an exact search, which says that no other spellings were looked for.
async fn without_near<B: Backend + ?Sized>(mut exact: Reading<'_, B>) -> Result<SearchResult> {
    exact.failed.is_near_omitted = true;
    exact.finish().await
}

/// Returns how much of a file a search reads at most.
fn read_bytes_of(entry: &Entry) -> u64 {
    entry.size_bytes.min(CONTENT_BYTES_MAX as u64)
}

/// Lists the files that a search selects, in path order.
///
/// # Errors
/// Those of [`Backend::search`], and [`TooLarge`](ErrorKind::TooLarge) for more than `files_max`.
pub(crate) async fn listed_files<B: Backend + ?Sized>(
    tree: &B,
    path: &VfsPath,
    options: &SearchOptions,
    files_max: usize,
) -> Result<Vec<Entry>> {
    let mut files = Files::new(tree, path, options)?;
    let mut listed = Vec::new();
    while let Some(page) = files.next().await? {
        listed.extend(page);
        if listed.len() > files_max {
            let message = format!("the search selects over {files_max} files; name a directory or a glob");
            return Err(Error::new(ErrorKind::TooLarge, message).at(path));
        }
    }
    Ok(listed)
}

/// The files that a search selects, a page at a time.
struct Files<'f, B: ?Sized> {
    tree: &'f B,
    root: &'f VfsPath,
    options: &'f SearchOptions,
    filter: PathFilter,
    listed: GlobOptions,
    /// The directory of the last decision, and whether it is entered.
    last: Option<(VfsPathBuf, bool)>,
    begun: bool,
    ended: bool,
    /// The directories that could not be listed.
    failures: Vec<Failure>,
}

impl<'f, B: Backend + ?Sized> Files<'f, B> {
    fn new(tree: &'f B, root: &'f VfsPath, options: &'f SearchOptions) -> Result<Self> {
        let filter = PathFilter::for_grep(root, &options.selection())?;
        let mut listed = GlobOptions::new("**");
        listed.scope.clone_from(&options.scope);
        // A hidden file is found if an include names it.
        listed.scope.hidden = options.scope.hidden || options.include.iter().any(|include| glob::has_hidden(include));
        Ok(Self { tree, root, options, filter, listed, last: None, begun: false, ended: false, failures: Vec::new() })
    }

    /// Returns the next files; `None` at the end.
    async fn next(&mut self) -> Result<Option<Vec<Entry>>> {
        if self.ended {
            return Ok(None);
        }
        if !std::mem::replace(&mut self.begun, true) {
            let entry = self.tree.stat(self.root, &StatOptions::new().with_refuse_links(self.options.scope.refuse_links)).await?;
            if !entry.is_directory() && !self.leads_to_directory(&entry).await {
                self.ended = true;
                // A file that is named directly is searched whatever its name.
                return Ok(Some(Vec::from_iter(self.options.admits_time(entry.modified_at).then_some(entry))));
            }
        }
        let page = self.tree.glob(self.root, &self.listed).await?;
        self.failures.extend(page.failures);
        match page.truncated.and_then(|cut| VfsPathBuf::parse(&cut.cursor).ok()) {
            Some(cursor) => self.listed.start_after = Some(cursor),
            None => self.ended = true,
        }
        let mut entries = page.entries;
        entries.retain(|entry| self.options.admits_time(entry.modified_at) && self.takes(&entry.path));
        Ok(Some(entries))
    }

    /// Returns whether a host link that was named directly leads to a directory.
    async fn leads_to_directory(&self, entry: &Entry) -> bool {
        entry.kind == EntryKind::Symlink && {
            let options = LsOptions::new().with_limit(1).with_refuse_links(self.options.scope.refuse_links);
            self.tree.ls(&entry.path, &options).await.is_ok()
        }
    }

    /// Returns whether a file is selected, by its own path and by the directories above it.
    fn takes(&mut self, path: &VfsPath) -> bool {
        let directory = path.parent().unwrap_or(VfsPath::ROOT);
        if self.last.as_ref().is_none_or(|(last, _)| **last != *directory) {
            let beneath = |above: &&VfsPath| above.starts_with(self.root) && **above != *self.root;
            let is_entered = directory.ancestors().chain([directory]).filter(beneath).all(|above| self.filter.enters(above));
            self.last = Some((directory.to_owned(), is_entered));
        }
        self.last.as_ref().is_some_and(|(_, is_entered)| *is_entered) && self.filter.selects(path, false)
    }
}

/// Adds snippets to hits, from the present content of their files. A file that is missing or unreadable gets none.
pub(crate) async fn add_snippets<B: Backend + ?Sized>(
    tree: &B,
    query: &Query,
    corpus: &Corpus,
    options: &SearchOptions,
    hits: &mut [SearchHit],
) {
    if options.snippets_max == 0 {
        return;
    }
    let paths: Vec<VfsPathBuf> = hits.iter().map(|hit| hit.path.clone()).collect();
    let reads: Vec<BoxFuture<'_, Result<FileRead>>> = paths.iter().map(|path| Box::pin(read_start(tree, path, options)) as _).collect();
    let mut reads = stream::iter(reads).buffered(READS_AT_ONCE);
    for hit in hits {
        if let Some(Ok(read)) = reads.next().await {
            let (query, corpus, snippets_max) = (query.clone(), corpus.clone(), options.snippets_max);
            // Counts the cost of splitting and folding each word of the content.
            let cost_bytes = WORDS_COST * read.content.len() as u64;
            let snippets = work::run(cost_bytes, move |_| query.snippets(&read.content, &corpus, snippets_max));
            hit.snippets = snippets.await.unwrap_or_default();
        }
    }
}

async fn read_start<B: Backend + ?Sized>(tree: &B, path: &VfsPath, options: &SearchOptions) -> Result<FileRead> {
    tree.read(path, &ReadOptions::bytes(0, CONTENT_BYTES_MAX as u64).with_refuse_links(options.scope.refuse_links)).await
}

/// The files being read, a batch at a time.
struct Reading<'r, B: ?Sized> {
    tree: &'r B,
    query: Arc<Query>,
    options: &'r SearchOptions,
    corpus: Corpus,
    found: Vec<Found>,
    /// The files that could not be read, and whether other spellings were left out.
    failed: SearchResult,
    waiting: Vec<Entry>,
    waiting_bytes: u64,
    /// How many bytes were read.
    read_bytes: u64,
}

impl<'r, B: Backend + ?Sized> Reading<'r, B> {
    fn new(tree: &'r B, options: &'r SearchOptions) -> Result<Self> {
        let query = Arc::new(Query::new(options)?);
        let (corpus, failed) = (Corpus::new(query.words().len()), SearchResult::default());
        Ok(Self { tree, query, options, corpus, found: Vec::new(), failed, waiting: Vec::new(), waiting_bytes: 0, read_bytes: 0 })
    }

    /// Lists and reads all selected files.
    async fn read_all(mut self, path: &VfsPath) -> Result<Self> {
        let mut files = Files::new(self.tree, path, self.options)?;
        while let Some(page) = files.next().await? {
            for entry in page {
                self.push(entry).await?;
            }
        }
        self.count().await?;
        files.failures.into_iter().for_each(|failure| self.failed.push_failure(failure));
        Ok(self)
    }

    /// Returns whether what was read exceeds bounds.
    fn exceeds(&self, bounds: NearBounds) -> bool {
        self.corpus.words > bounds.words || self.read_bytes > bounds.bytes
    }

    async fn push(&mut self, entry: Entry) -> Result<()> {
        self.waiting_bytes += read_bytes_of(&entry);
        self.waiting.push(entry);
        if self.waiting_bytes >= CHUNK_BYTES || self.waiting.len() >= CHUNK_FILES {
            self.count().await?;
        }
        Ok(())
    }

    /// Reads the queued files, and counts their words on all cores.
    async fn count(&mut self) -> Result<()> {
        self.waiting_bytes = 0;
        let waiting = std::mem::take(&mut self.waiting);
        let (tree, options) = (self.tree, self.options);
        let reads: Vec<BoxFuture<'_, Result<FileRead>>> =
            waiting.iter().map(|entry| Box::pin(read_start(tree, &entry.path, options)) as _).collect();
        let contents: Vec<Result<FileRead>> = stream::iter(reads).buffered(READS_AT_ONCE).collect().await;
        let mut read = Vec::with_capacity(contents.len());
        for (entry, content) in waiting.into_iter().zip(contents) {
            match content {
                Ok(content) => {
                    self.read_bytes += content.content.len() as u64;
                    read.push((entry, content));
                }
                Err(error) => self.fail(entry.path, error)?,
            }
        }
        let query = self.query.clone();
        let counted = in_background(move |stop| {
            let mut counted = Vec::with_capacity(read.len());
            let count = |(entry, read): (Entry, FileRead)| {
                let features = query.features(&entry.path, &read.content);
                (entry, read.version, read.size_bytes, features)
            };
            parallel::ordered(read.into_iter(), workers(), count, |file| {
                counted.push(file);
                if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            counted
        });
        for (entry, version, size_bytes, features) in counted.await? {
            features.count_in(&mut self.corpus);
            if features.has_any() {
                self.found.push(Found { path: entry.path, size_bytes, version, modified_at: entry.modified_at, features });
            }
        }
        Ok(())
    }

    /// Reports a file that could not be read, unless the whole tree is unreadable.
    fn fail(&mut self, path: VfsPathBuf, error: Error) -> Result<()> {
        match error.kind() {
            // It was removed after it was listed.
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsDirectory => Ok(()),
            ErrorKind::Unavailable | ErrorKind::Deadline | ErrorKind::Internal => Err(error),
            _ => {
                self.failed.push_failure(Failure { error: ErrorRecord::from(&error), path });
                Ok(())
            }
        }
    }

    async fn finish(self) -> Result<SearchResult> {
        let mut result = rank::ranked(&self.query, self.options, self.corpus, self.found);
        let corpus = self.options.weighed_by(&result.corpus);
        add_snippets(self.tree, &self.query, &corpus, self.options, &mut result.hits).await;
        result.is_near_omitted = self.failed.is_near_omitted;
        self.query.tell_near(&mut result);
        (result.failures, result.failures_count) = (self.failed.failures, self.failed.failures_count);
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{BackendExt, StateBackend};
    use treehold_core::ops::SearchMerge;

    /// The result of each search, by what bounds it has: what it found and whether it says that it looked for no other spellings.
    async fn searched(tree: &StateBackend, options: &SearchOptions, bounds: NearBounds) -> (Vec<String>, bool, Vec<String>) {
        let result = search_within(tree, VfsPath::ROOT, options, bounds).await.expect("a search");
        let hits = result.hits.iter().map(|hit| hit.path.to_string()).collect();
        (hits, result.is_near_omitted, result.near.iter().map(|near| near.word.clone()).collect())
    }

    /// Regression: only words were bounded, of which binary files have none, and a caller that named the words had no bound at all.
    #[tokio::test]
    async fn other_spellings_are_looked_for_within_all_bounds() {
        let tree = StateBackend::new();
        tree.write("/a.md", "pagination of results\n").await.expect("a write");
        tree.write("/b.md", "results\n").await.expect("a write");
        tree.write("/c.bin", vec![0; 4_000]).await.expect("a write");
        let lenient = SearchOptions::new("pagnation results");
        let near = Query::new(&lenient).expect("words").words()[0].clone();
        let asked = lenient.clone().with_spelling(Spelling::Near(vec![near.clone()]));
        let (whole, exact) = (["/a.md", "/b.md"].map(str::to_owned).to_vec(), ["/b.md", "/a.md"].map(str::to_owned).to_vec());
        let bytes = "pagination of results\nresults\n".len() as u64 + 4_000;
        let words = search_within(&tree, VfsPath::ROOT, &lenient, NearBounds::ALL).await.expect("a search").corpus.words;
        let within = NearBounds { files: 3, bytes, words };
        let tables = [
            (NearBounds::ALL, false),
            (within, false),
            (NearBounds { files: 2, ..within }, true),
            (NearBounds { bytes: bytes - 1, ..within }, true),
            (NearBounds { words: words - 1, ..within }, true),
        ];
        for (bounds, is_omitted) in tables {
            for options in [&lenient, &asked] {
                let found = searched(&tree, options, bounds).await;
                let expected = match is_omitted {
                    false => (whole.clone(), false, vec![near.clone()]),
                    true => (exact.clone(), true, vec![]),
                };
                assert_eq!(found, expected, "{bounds:?} {:?}", options.spelling);
            }
            let strict = lenient.clone().with_spelling(Spelling::Exact);
            assert_eq!(searched(&tree, &strict, bounds).await, (exact.clone(), false, vec![]), "{bounds:?}");
            let known = SearchOptions::new("results");
            assert_eq!(searched(&tree, &known, bounds).await, (exact.clone(), false, vec![]), "{bounds:?}");
        }
        // What other trees have counts too.
        let mut elsewhere = Corpus::new(2);
        elsewhere.files = NEAR_FILES_MAX;
        let mut merged = lenient.clone();
        merged.merge = Some(SearchMerge::new(elsewhere));
        assert_eq!(searched(&tree, &merged, within).await, (exact, true, vec![]));
    }
}
