//! Ranked search with the word index.
//!
//! The index yields the score of every file that contains a word of the query. The best files are then read like a grep reads
//! them, by a walk that skips what the options do not select. Word counts in the result come from the body that was read, so they
//! match the reported version. The search ends when enough files rank above the best unread one.

use super::StoreBackend;
use super::walk::StoreWalk;
use crate::backend::add_snippets;
use crate::backend::flat::Walk;
use crate::backend::{NearBounds, nearly_by_reading, search_by_reading};
use crate::background::{in_background, workers};
use crate::index::{Posting, Postings};
use crate::rows::{self, RowKey, directory_key, file_key};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use treehold_core::error::{Error, ErrorRecord, Result};
use treehold_core::ops::{Corpus, Failure, SearchOptions, SearchResult, Spelling};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::search::rank::{self, Found, NEAR_FILES_MAX, NEAR_WORDS_MAX, Nearly, Query};
use treehold_core::search::{PathFilter, parallel};
use treehold_store::{Item, ScanOptions};

/// How many files to read in the first chunk for each wanted result, as some may not be selected.
const FILES_FOR_ONE: usize = 4;

/// The fewest files read at once.
const CHUNK_FILES_MIN: usize = 32;

/// The most files read at once.
const CHUNK_FILES_MAX: usize = 2_048;

/// How many bytes of content to read before counting words, on all cores. A single file may exceed this.
const CHUNK_BYTES: u64 = 8 << 20;

/// Runs a ranked search. Without a word index, reads all selected files.
pub(super) async fn search(backend: &StoreBackend, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
    search_within(backend, path, options, NearBounds::ALL).await
}

/// Searches with other bounds on the search for near spellings.
async fn search_within(backend: &StoreBackend, path: &VfsPath, options: &SearchOptions, bounds: NearBounds) -> Result<SearchResult> {
    // The index weighs words by all files. If some files are hidden from the caller, weights and counts must not reveal them.
    if options.scope.guard.is_some() || hides_files(backend, options).await? {
        return search_by_reading(backend, path, options).await;
    }
    let query = Arc::new(Query::new(options)?);
    let Some(postings) = backend.indexes.postings(query.words()).await? else { return search_by_reading(backend, path, options).await };
    let Postings { corpus, files, mut unread } = postings;
    // The index has words by their stems alone, so other spellings are looked for in the files. It counts the whole tree: beneath a
    // directory, only a listing shows how many files there are.
    let mut counted = corpus.clone();
    if !path.is_root() {
        (counted.files, counted.words) = (counted.files.min(NEAR_FILES_MAX), counted.words.min(NEAR_WORDS_MAX));
    }
    let nearly = match &options.spelling {
        Spelling::Near(_) => Nearly::Asked(Box::new(options.clone())),
        _ => query.nearly(options, &counted),
    };
    let mut failed = SearchResult::default();
    match nearly {
        Nearly::Needless => {}
        Nearly::TooLarge => failed.is_near_omitted = true,
        Nearly::Asked(nearly) => match nearly_by_reading(backend, path, &nearly, bounds).await? {
            Some(result) => return Ok(result),
            None => failed.is_near_omitted = true,
        },
    }
    let exact = options.clone().with_spelling(Spelling::Exact);
    let (options, query) = (&exact, Arc::new(Query::new(&exact)?));
    let weighed_by = options.weighed_by(&corpus);
    let mut reading = Reading { backend, path, options, query, found: Vec::new(), failed };
    let Some(walk) = reading.walk().await? else {
        // A path that names a file is searched whatever its name.
        return search_by_reading(backend, path, options).await;
    };
    // This walk only looked up the path; each chunk starts a walk of its own.
    drop(walk);
    let prefix = directory_key(path);
    unread.retain(|key| key.starts_with(&prefix));
    let mut best = scored(&weighed_by, files.into_iter().filter(|file| file.key.starts_with(&prefix)));
    let wanted = options.end();
    let mut chunk_files = wanted.saturating_mul(FILES_FOR_ONE).clamp(CHUNK_FILES_MIN, CHUNK_FILES_MAX);
    // The best files are at the end, where `pop` takes them.
    let mut next = Some(unread);
    while let Some(mut keys) = next.take() {
        while keys.len() < chunk_files
            && let Some((_, key)) = best.pop()
        {
            keys.insert(key);
        }
        reading.read_selected(keys).await?;
        chunk_files = (chunk_files * 2).min(CHUNK_FILES_MAX);
        let Some((unseen, key)) = best.last() else { break };
        let unseen_path = RowKey::of(key)?.path;
        // Ties are ordered by path.
        let stands_before = |found: &&Found| {
            let score = rank::score(&weighed_by, found.features.words, &found.features.frequencies);
            score > *unseen || (score == *unseen && found.path < unseen_path)
        };
        let is_settled = reading.found.len() > wanted && reading.found.iter().filter(stands_before).count() >= wanted;
        next = (!is_settled).then(BTreeSet::new);
    }
    reading.finish(corpus).await
}

/// Returns whether the tree has files at or beneath paths that mounts hide.
async fn hides_files(backend: &StoreBackend, options: &SearchOptions) -> Result<bool> {
    let files: Vec<String> = options.scope.prune.iter().map(|hidden| file_key(hidden)).collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    if !files.is_empty() && backend.store.get_many(&backend.namespace, &files, false).await?.iter().any(Option::is_some) {
        return Ok(true);
    }
    for hidden in &options.scope.prune {
        let beneath = ScanOptions::new().with_prefix(directory_key(hidden)).with_limit(1);
        if !backend.store.scan(&backend.namespace, beneath).await?.entries.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the keys of files with their scores, best last.
fn scored(corpus: &Corpus, files: impl Iterator<Item = Posting>) -> Vec<(f64, String)> {
    let score = |file: Posting| (rank::score(corpus, file.length, &file.frequencies), file.key);
    let mut scored: Vec<(f64, String)> = files.map(score).collect();
    scored.sort_unstable_by(|(one, one_key), (other, other_key)| one.total_cmp(other).then_with(|| other_key.cmp(one_key)));
    scored
}

/// Reads files and collects those found.
struct Reading<'r> {
    backend: &'r StoreBackend,
    path: &'r VfsPath,
    options: &'r SearchOptions,
    query: Arc<Query>,
    found: Vec<Found>,
    /// The failures: files that could not be read, and whether other spellings were left out.
    failed: SearchResult,
}

impl<'r> Reading<'r> {
    /// Starts a walk over what the options select. Returns `None` if the path is a file.
    async fn walk(&self) -> Result<Option<StoreWalk<'r>>> {
        let walk = Walk::new(self.path, PathFilter::for_grep(self.path, &self.options.selection())?);
        StoreWalk::begin(self.backend, walk, self.path, None).await
    }

    /// Reads those of the given files that the options select.
    async fn read_selected(&mut self, keys: BTreeSet<String>) -> Result<()> {
        let Some(mut walk) = self.walk().await? else { return Ok(()) };
        walk.only(keys.clone());
        while let Some(page) = walk.next_page(false).await? {
            let (mut selected, mut size_bytes) = (BTreeSet::new(), 0);
            for one in page {
                let item = one?.item;
                // If a glob names a single file, every walk visits it first.
                if !keys.contains(&item.key) {
                    continue;
                }
                let path = RowKey::of(&item.key)?.path;
                match rows::record(&path, &item) {
                    Err(error) => self.fail(path, &error),
                    Ok(record) if self.options.admits_time(Some(rows::modified_at(&record, &item))) => {
                        size_bytes += record.size_bytes;
                        selected.insert(item.key);
                    }
                    Ok(_) => {}
                }
                if size_bytes >= CHUNK_BYTES {
                    self.read(std::mem::take(&mut selected)).await?;
                    size_bytes = 0;
                }
            }
            self.read(selected).await?;
        }
        Ok(())
    }

    /// Reads files and counts their words, on all cores.
    async fn read(&mut self, keys: BTreeSet<String>) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let borrowed: Vec<&str> = keys.iter().map(String::as_str).collect();
        let read = rows::read_each(&*self.backend.store, &self.backend.namespace, &borrowed).await?;
        let mut items = Vec::with_capacity(read.len());
        for (key, item) in keys.iter().zip(read) {
            match item {
                // Skip files that were removed meanwhile.
                Ok(item) => items.extend(item),
                Err(error) => self.fail(RowKey::of(key)?.path, &error),
            }
        }
        let (query, options) = (self.query.clone(), self.options.clone());
        let counted = in_background(move |stop| {
            let mut counted = Vec::with_capacity(items.len());
            let count = |item: Item| found(&query, &options, &item).transpose();
            parallel::ordered(items.into_iter(), workers(), count, |file| {
                counted.extend(file);
                if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            counted
        });
        for file in counted.await? {
            match file {
                Ok(found) => self.found.push(found),
                Err(error) => {
                    let path = error.path().unwrap_or(self.path).to_owned();
                    self.fail(path, &error);
                }
            }
        }
        Ok(())
    }

    fn fail(&mut self, path: VfsPathBuf, error: &Error) {
        self.failed.push_failure(Failure { error: ErrorRecord::from(error), path });
    }

    async fn finish(self, corpus: Corpus) -> Result<SearchResult> {
        let mut result = rank::ranked(&self.query, self.options, corpus.clone(), self.found);
        add_snippets(self.backend, &self.query, &self.options.weighed_by(&corpus), self.options, &mut result.hits).await;
        (result.failures, result.failures_count) = (self.failed.failures, self.failed.failures_count);
        result.is_near_omitted = self.failed.is_near_omitted;
        Ok(result)
    }
}

/// Counts the words of the query in a file. Returns `None` if it contains none, or if its modification time is not selected.
fn found(query: &Query, options: &SearchOptions, item: &Item) -> Result<Option<Found>> {
    let path = RowKey::of(&item.key)?.path;
    let record = rows::record(&path, item)?;
    let content = rows::body(&path, item)?;
    let modified_at = Some(rows::modified_at(&record, item));
    let features = query.features(&path, &content);
    if !features.has_any() || !options.admits_time(modified_at) {
        return Ok(None);
    }
    Ok(Some(Found { path, size_bytes: record.size_bytes, version: item.version, modified_at, features }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Backend, BackendExt, IndexKind, StoreBackend};
    use crate::layer::{Operations, Permissions, Rule};
    use treehold_core::ops::SearchMerge;
    use treehold_store::{MemoryStore, Namespace};

    /// Beyond the bounds, the index answers, and the result says that no other spellings were looked for.
    #[tokio::test]
    async fn index_answers_beyond_the_bounds_of_other_spellings() {
        let rows = StoreBackend::new(Arc::new(MemoryStore::new()), Namespace::new(["tree"]).expect("a plain name"));
        let tree = rows.with_index(IndexKind::Words);
        for (path, text) in [("/a.md", "pagination"), ("/b.md", "results"), ("/d/c.md", "pagination results")] {
            tree.write(path, text).await.expect("a write");
        }
        let none = NearBounds { files: 0, ..NearBounds::ALL };
        let lenient = SearchOptions::new("pagnation results");
        let word = Query::new(&lenient).expect("words").words()[0].clone();
        let asked = lenient.clone().with_spelling(Spelling::Near(vec![word]));
        // The index counts the whole tree, however little of it is searched.
        let mut large = Corpus::new(2);
        large.files = NEAR_FILES_MAX;
        let mut merged = lenient.clone();
        merged.merge = Some(SearchMerge::new(large));
        for (options, bounds, at, found, is_omitted) in [
            (&lenient, NearBounds::ALL, "/", 3, false),
            (&asked, NearBounds::ALL, "/", 3, false),
            (&lenient, none, "/", 2, true),
            (&asked, none, "/", 2, true),
            (&lenient, none, "/d", 1, true),
            (&merged, NearBounds::ALL, "/", 2, true),
            (&asked, NearBounds { files: 1, ..NearBounds::ALL }, "/d", 1, false),
        ] {
            let path = VfsPathBuf::parse(at).expect("a legal path");
            let result = search_within(&tree, &path, options, bounds).await.expect("a search");
            assert_eq!((result.hits.len(), result.is_near_omitted), (found, is_omitted), "{options:?} {bounds:?} {at}");
        }
    }

    #[tokio::test]
    async fn search_counts_exclude_files_hidden_by_permissions() {
        let rows = StoreBackend::new(Arc::new(MemoryStore::new()), Namespace::new(["tree"]).expect("a plain name"));
        let tree = rows.with_index(IndexKind::Words);
        for path in ["/open.md", "/secret/a.md", "/secret/b.md"] {
            tree.write(path, "needle").await.expect("a write");
        }
        let needle = SearchOptions::new("needle");
        assert_eq!(tree.search(VfsPath::ROOT, &needle).await.expect("a search").corpus.files_with, [3]);
        let rules = [Rule::deny(Operations::READ, ["/secret"]).expect("a rule")];
        let found = Permissions::new(rules, tree).search(VfsPath::ROOT, &needle).await.expect("a search");
        assert_eq!((found.hits.len(), found.corpus.files, &found.corpus.files_with[..]), (1, 1, &[1][..]));
    }

    #[tokio::test]
    async fn search_counts_exclude_files_hidden_by_mounts() {
        let rows = StoreBackend::new(Arc::new(MemoryStore::new()), Namespace::new(["tree"]).expect("a plain name"));
        let tree = rows.with_index(IndexKind::Words);
        for path in ["/open.md", "/mounted/a.md", "/file"] {
            tree.write(path, "needle").await.expect("a write");
        }
        for (hidden, count) in [("/nothing", 3), ("/mounted", 2), ("/file", 2)] {
            let mut needle = SearchOptions::new("needle");
            needle.scope.prune = vec![VfsPathBuf::parse(hidden).expect("a legal path")];
            let found = tree.search(VfsPath::ROOT, &needle).await.expect("a search");
            assert_eq!((found.hits.len() as u64, &found.corpus.files_with[..]), (count, &[count][..]), "{hidden}");
        }
    }
}
