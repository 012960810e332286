//! The same trees on the other tiers, compared with the filesystem tier.
//!
//! The trees consist of files and their directories, without links, so every tier can hold them completely.
//! Tier-specific data is not compared: versions, times, and how many files were read if an index preselected them.

use super::super::path;
use super::tree::File;
use super::{GLOBS, QUERIES, each_tree, query};
use proptest::strategy::{Strategy, ValueTree};
use std::fmt;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use treehold::backend::IndexKind;
use treehold::ops::{ApplyOptions, Change, GlobOptions, GlobResult, GrepFile, GrepOptions, GrepResult, WriteMode};
use treehold::store::StoreExt;
use treehold::{Backend, FilesystemBackend, MemoryStore, Namespace, SqliteStore, StateBackend, Store, StoreBackend, VfsPath, VfsPathBuf};

/// One in this many searches is repeated page by page.
const PAGED_EVERY: usize = 7;

/// The approximate number of pages in such a search.
const PAGES: usize = 4;

/// A size in bytes that many of the files exceed.
const SIZE_MAX_BYTES: u64 = 60;

/// A tree with the files, and what stores it.
struct Tier {
    name: &'static str,
    tree: Arc<dyn Backend>,
}

impl Tier {
    async fn filled(name: &'static str, tree: impl Backend + 'static, changes: &[Change]) -> Self {
        tree.apply(changes, &ApplyOptions::new()).await.unwrap();
        Self { name, tree: Arc::new(tree) }
    }
}

fn place_of(file: &File) -> VfsPathBuf {
    path(&format!("/{}", file.path))
}

fn rows(store: &Arc<dyn Store>, name: &str) -> StoreBackend {
    StoreBackend::new(store.clone(), Namespace::new([name]).unwrap())
}

/// Writes the files into each tier, in one batch.
async fn tiers(directory: &TempDir, files: &[File]) -> Vec<Tier> {
    let write = |file: &File| Change::Write { path: place_of(file), content: file.content.clone().into(), mode: WriteMode::CreateNew };
    let changes: Vec<Change> = files.iter().map(write).collect();
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let lent = rows(&memory, "lent");
    assert!(memory.snapshot_rows(lent.namespace()).await.unwrap().is_some(), "rows in memory are searched where they are");
    let mut tiers = vec![Tier::filled("state", StateBackend::new(), &changes).await, Tier::filled("rows lent", lent, &changes).await];
    tiers.extend(on_sqlite(directory, &changes).await);
    tiers
}

/// Makes trees in a store that is read in pages: one without an index, one whose files are in the tail of its index,
/// and one whose files are in its segments.
async fn on_sqlite(directory: &TempDir, changes: &[Change]) -> [Tier; 3] {
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.path().join("rows.db")).unwrap());
    let paged = rows(&store, "paged");
    assert!(store.snapshot_rows(paged.namespace()).await.unwrap().is_none(), "rows on disk are read in pages");

    let tail = rows(&store, "tail").with_index(IndexKind::Trigram);
    let tail_tier = Tier::filled("rows with an index, in its tail", tail.clone(), changes).await;
    let state = tail.index_state(IndexKind::Trigram).await.unwrap().expect("it is made by the first write");
    assert_eq!((state.is_complete, state.files_in_tail), (true, changes.len() as u64));

    // Files that exist before the index are put into segments.
    let segments = rows(&store, "segments");
    segments.apply(changes, &ApplyOptions::new()).await.unwrap();
    let segments = segments.with_index(IndexKind::Trigram);
    let state = segments.build_index(IndexKind::Trigram, |_| {}).await.unwrap();
    assert_eq!((state.is_complete, state.files_in_segments, state.files_in_tail), (true, changes.len() as u64, 0));

    let segments_tier = Tier { name: "rows with an index, in its segments", tree: Arc::new(segments) };
    [Tier::filled("rows in pages", paged, changes).await, tail_tier, segments_tier]
}

/// One tree on all tiers, and the differences from the filesystem tier.
struct Comparison<'t> {
    disk: &'t FilesystemBackend,
    tiers: Vec<Tier>,
    files: &'t [File],
    /// How often an index excluded files.
    spared: usize,
    differences: Vec<String>,
    _directory: TempDir,
}

impl<'t> Comparison<'t> {
    async fn begin(disk: &'t FilesystemBackend, files: &'t [File]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let tiers = tiers(&directory, files).await;
        Self { disk, tiers, files, spared: 0, differences: Vec::new(), _directory: directory }
    }

    /// Searches on every tier. Returns the result of the filesystem tier.
    async fn grep(&mut self, place: &VfsPath, options: &GrepOptions) -> GrepResult {
        let disk = self.disk.grep(place, options).await.unwrap();
        for tier in &self.tiers {
            let found = tier.tree.grep(place, options).await.unwrap();
            let is_indexed = tier.tree.capabilities().indexed;
            self.spared += usize::from(is_indexed && found.files_searched < disk.files_searched);
            if !is_same(&found, &disk, is_indexed) {
                self.differences.push(told(tier.name, place, options, (&unlike(&found, &disk), &unlike(&disk, &found))));
            }
        }
        disk
    }

    /// Searches page by page: every page is equal on all tiers, and together they equal the whole result.
    async fn grep_in_pages(&mut self, options: &GrepOptions, whole: &GrepResult) {
        let mut options = options.clone().with_matches_max(1 + whole.matches() / PAGES);
        let mut joined: Vec<GrepFile> = Vec::new();
        // Cut pages are full, so there are no more pages than this.
        for _ in 0..=whole.matches() {
            let page = self.grep(VfsPath::ROOT, &options).await;
            for file in page.files {
                match joined.last_mut().filter(|last| last.path == file.path) {
                    Some(last) => {
                        last.count += file.count;
                        last.lines.extend(file.lines);
                    }
                    None => joined.push(file),
                }
            }
            let Some(truncation) = page.truncated else { break };
            options.start_after = Some(truncation.cursor.parse().unwrap());
        }
        if joined != whole.files {
            self.differences.push(told("pages on disk", VfsPath::ROOT, &options, (&joined, &whole.files)));
        }
    }

    /// Finds paths on every tier. Returns the result of the filesystem tier.
    async fn glob(&mut self, place: &VfsPath, options: &GlobOptions) -> GlobResult {
        let disk = without_times(self.disk.glob(place, options).await.unwrap());
        for tier in &self.tiers {
            let found = without_times(tier.tree.glob(place, options).await.unwrap());
            if found != disk {
                self.differences.push(told(tier.name, place, options, (&found, &disk)));
            }
        }
        disk
    }

    /// Finds paths page by page: every page is equal on all tiers, and together they equal the whole result.
    async fn glob_in_pages(&mut self, options: &GlobOptions, whole: &GlobResult) {
        let mut options = options.clone().with_limit(1 + whole.entries.len() / PAGES);
        let mut joined = Vec::new();
        for _ in 0..=whole.entries.len() {
            let page = self.glob(VfsPath::ROOT, &options).await;
            joined.extend(page.entries);
            let Some(truncation) = page.truncated else { break };
            options.start_after = Some(truncation.cursor.parse().unwrap());
        }
        if joined != whole.entries {
            self.differences.push(told("pages on disk", VfsPath::ROOT, &options, (&joined, &whole.entries)));
        }
    }

    /// Returns the differences, with the ignore rules of the tree.
    fn finish(self) -> Vec<String> {
        let rules: Vec<_> = self.files.iter().filter(|file| file.path.ends_with("ignore")).collect();
        self.differences.into_iter().map(|difference| format!("{difference}\n  {rules:?}")).collect()
    }
}

/// Returns whether a tier finds the same as the filesystem tier. With an index, counts cover only the preselected files
/// (docs/search.md), so they may be lower.
fn is_same(found: &GrepResult, disk: &GrepResult, is_indexed: bool) -> bool {
    let counts = |result: &GrepResult| [result.files_searched, result.files_binary, result.files_too_large];
    let mut counted = counts(found).into_iter().zip(counts(disk));
    (&found.files, &found.truncated) == (&disk.files, &disk.truncated)
        && (&found.failures, found.failures_count) == (&disk.failures, disk.failures_count)
        && counted.all(|(one, other)| if is_indexed { one <= other } else { one == other })
}

/// Removes the files that both results share.
fn unlike(one: &GrepResult, other: &GrepResult) -> GrepResult {
    let mut unlike = one.clone();
    unlike.files.retain(|file| !other.files.contains(file));
    unlike
}

/// Removes tier-specific data.
fn without_times(mut result: GlobResult) -> GlobResult {
    for entry in &mut result.entries {
        (entry.version, entry.created_at, entry.modified_at) = (None, None, None);
    }
    result
}

fn told<T: fmt::Debug>(name: &str, place: &VfsPath, options: &impl fmt::Debug, (found, disk): (&T, &T)) -> String {
    format!("{name}: {place} {options:?}\n  found   {found:?}\n  on disk {disk:?}")
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn grep_finds_the_same_on_every_tier() {
    let runtime = runtime();
    each_tree(|_, disk, files, runner| {
        let queries: Vec<_> = (0..QUERIES).map(|_| query::query().new_tree(runner).unwrap().current()).collect();
        runtime.block_on(async {
            let mut comparison = Comparison::begin(disk, files).await;
            for (number, query) in queries.iter().enumerate() {
                let options = &query.options;
                let whole = comparison.grep(VfsPath::ROOT, options).await;
                if number % PAGED_EVERY == 0 {
                    comparison.grep_in_pages(options, &whole).await;
                }
                // Add what the queries leave out: a size limit, and a directory or file to search.
                match number % 5 {
                    1 => drop(comparison.grep(VfsPath::ROOT, &options.clone().with_size_max_bytes(SIZE_MAX_BYTES)).await),
                    3 => {
                        let file = place_of(&files[number * 7 % files.len()]);
                        let directory = file.parent().unwrap_or(VfsPath::ROOT);
                        comparison.grep(if number % 2 == 0 { directory } else { &file }, options).await;
                    }
                    _ => {}
                }
            }
            assert!(comparison.spared > 0, "no search was answered from an index");
            comparison.finish()
        })
    });
}

#[test]
fn glob_finds_the_same_on_every_tier() {
    let runtime = runtime();
    // The exclusions, and whether directories are found.
    let with_flags = |options: GlobOptions, number: usize| {
        let on = |bit: usize| number >> bit & 1 == 1;
        options.with_hidden(on(0)).with_ignored(on(1)).with_directories(on(2))
    };
    each_tree(|_, disk, files, runner| {
        let globs: Vec<_> = (0..GLOBS).map(|_| query::glob().new_tree(runner).unwrap().current()).collect();
        runtime.block_on(async {
            let mut comparison = Comparison::begin(disk, files).await;
            for (number, (pattern, insensitive)) in globs.into_iter().enumerate() {
                let options = GlobOptions::new(pattern).with_case_insensitive(insensitive);
                // With the settings used for `rg`.
                let all = options.clone().with_hidden(true).with_ignored(true);
                let whole = comparison.glob(VfsPath::ROOT, &all).await;
                if number % PAGED_EVERY == 0 {
                    comparison.glob_in_pages(&all, &whole).await;
                }
                let some = with_flags(options, number);
                comparison.glob(VfsPath::ROOT, &some).await;
                if number % 5 == 3 {
                    let file = place_of(&files[number * 7 % files.len()]);
                    comparison.glob(file.parent().unwrap_or(VfsPath::ROOT), &some).await;
                }
            }
            for number in 0..8 {
                let options = with_flags(GlobOptions::new("**"), number);
                let whole = comparison.glob(VfsPath::ROOT, &options).await;
                comparison.glob_in_pages(&options, &whole).await;
            }
            comparison.finish()
        })
    });
}
