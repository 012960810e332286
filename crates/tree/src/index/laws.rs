//! Property tests: a search with an index finds the same files as a search without, whatever changes before or during it.

use super::kind::{IndexKind, IndexKind::Trigram, Kind, Segment};
use super::manifest::segment_prefix;
use super::trigrams::Trigrams;
use super::words::Words;
use super::{Known, Presence, read_manifest};
use crate::backend::{Backend, BackendExt, StoreBackend};
use crate::rows::file_key;
use futures::future::join_all;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use treehold_core::error::ErrorKind;
use treehold_core::ops::{
    ApplyOptions, CaseMode, Change, GlobOptions, GrepOptions, GrepResult, SearchOptions, SearchResult, Spelling, Version, WriteMode,
};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::search::words::{FileWords, words_of_query};
use treehold_store::{MemoryStore, Namespace, Store};

const TEXTS: [&str; 14] = [
    "needle",
    "Needle",
    "hay stack",
    "foo_bar",
    "\u{212A}elvin",
    "kelvin",
    "é",
    "grün",
    "\r\n",
    "\n",
    "a.b",
    "0123456789",
    " memory ",
    " memories of tea ",
];

fn tree_on(store: &Arc<dyn Store>) -> StoreBackend {
    StoreBackend::new(store.clone(), Namespace::new(["ada", "notes"]).expect("a legal namespace"))
}

/// The same tree with every kind of index.
fn indexed_on(store: &Arc<dyn Store>) -> StoreBackend {
    IndexKind::ALL.into_iter().fold(tree_on(store), StoreBackend::with_index)
}

async fn settle(tree: &StoreBackend, files: usize) {
    tree.indexes.settle::<Trigrams>(files).await.expect("settled");
    tree.indexes.settle::<Words>(files).await.expect("settled");
}

async fn build(tree: &StoreBackend) {
    for kind in IndexKind::ALL {
        assert!(tree.build_index(kind, |_| {}).await.expect("built").is_complete);
    }
}

async fn remove(tree: &StoreBackend) {
    for kind in IndexKind::ALL {
        tree.remove_index(kind).await.expect("removed");
    }
}

/// The same tree, searched without its indexes.
fn plain(tree: &StoreBackend) -> StoreBackend {
    let known = Known::new(tree.namespace(), &[]);
    known.kinds.iter().for_each(|index| index.set_presence(Presence::Absent));
    let mut plain = tree.clone();
    plain.indexes.known = Arc::new(known);
    plain
}

fn path(number: usize) -> String {
    let directory = ["/", "/a/", "/a/b/", "/a/.hidden/", "/c/"][number % 5];
    format!("{directory}{}.{}", number / 10, ["md", "txt"][number / 5 % 2])
}

#[derive(Debug, Clone)]
enum Step {
    Write(usize, Vec<usize>),
    Append(usize, usize),
    Delete(usize),
    DeleteDirectory(usize),
    Rename(usize, usize),
    Settle(usize),
    Rebuild(IndexKind),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..40_usize, proptest::collection::vec(0..TEXTS.len(), 0..12)).prop_map(|(path, words)| Step::Write(path, words)),
        2 => (0..40_usize, 0..TEXTS.len()).prop_map(|(path, word)| Step::Append(path, word)),
        2 => (0..40_usize).prop_map(Step::Delete),
        1 => (0..5_usize).prop_map(Step::DeleteDirectory),
        1 => (0..40_usize, 0..40_usize).prop_map(|(from, to)| Step::Rename(from, to)),
        4 => (0..6_usize).prop_map(Step::Settle),
        1 => proptest::sample::select(IndexKind::ALL.to_vec()).prop_map(Step::Rebuild),
    ];
    proptest::collection::vec(step, 1..60)
}

async fn take(tree: &StoreBackend, step: Step) {
    // Whether a step succeeds does not matter here; the model tests of the backend cover that.
    match step {
        Step::Write(number, words) => {
            let content: String = words.iter().map(|word| TEXTS[*word]).collect();
            drop(tree.write(&path(number), content).await);
        }
        Step::Append(number, word) => drop(tree.append(&path(number), TEXTS[word]).await),
        Step::Delete(number) => drop(tree.delete(&path(number)).await),
        Step::DeleteDirectory(number) => {
            drop(tree.delete_all(["/a", "/a/b", "/c"][number % 3]).await);
        }
        Step::Rename(from, to) => drop(tree.rename(&path(from), &path(to)).await),
        Step::Settle(files) => settle(tree, files).await,
        Step::Rebuild(kind) => {
            tree.remove_index(kind).await.expect("removed");
            tree.build_index(kind, |_| {}).await.expect("built");
        }
    }
}

fn searches() -> Vec<GrepOptions> {
    vec![
        GrepOptions::new("needle"),
        GrepOptions::new("needle").with_case(CaseMode::Insensitive),
        GrepOptions::new("kelvin").with_case(CaseMode::Insensitive),
        GrepOptions::new("KELVIN").with_case(CaseMode::Smart),
        GrepOptions::new("grün"),
        GrepOptions::new("é"),
        GrepOptions::new("needle").with_include("*.md"),
        GrepOptions::new("needle").with_hidden(true).with_matches_max(2),
        GrepOptions::new("needle").with_invert(true),
        GrepOptions::new("\nneedle"),
        GrepOptions::regex("(needle|foo_bar)+"),
        GrepOptions::regex("ne{2}d.*stack"),
        GrepOptions::regex("hay.stack|0123"),
        GrepOptions::regex("[nN]eedle[fn]?"),
        GrepOptions::regex("^a.b$").with_case(CaseMode::Insensitive),
    ]
}

fn found(result: GrepResult) -> impl PartialEq + std::fmt::Debug {
    (result.files, result.truncated, result.failures)
}

const QUERIES: [&str; 8] = ["needle", "hay stack", "fooBar kelvin", "memory of tea", "gr\u{FC}n \u{E9}", "md", "b", "not to be found"];

/// The directories and files to search beneath.
const PLACES: [&str; 5] = ["/", "/a", "/a/.hidden", "/0.md", "/missing"];

/// Searches with a limit above the number of files: with and without hidden names, and with file filters.
fn recalls() -> Vec<SearchOptions> {
    // An index knows whether any file of the tree contains a word, and a search without one whether any selected file does, so only exact
    // searches of a part agree. `scores_agree` searches whole trees for words spelled nearly alike.
    let exact = |query: &str| SearchOptions::new(query).with_spelling(Spelling::Exact).with_limit(1_000);
    let all = |query: &str| exact(query).with_hidden(true).with_ignored(true);
    let some = |query: &str| exact(query);
    let files = |query: &str| all(query).with_include("*.md").with_exclude("b");
    let one = |query: &str| all(query).with_include("/0.md");
    QUERIES.into_iter().flat_map(|query| [all(query), some(query), files(query), one(query)]).collect()
}

/// What the search returned for each file, by path.
fn recalled(result: &SearchResult) -> BTreeMap<VfsPathBuf, (u64, Version, u32, Vec<u32>)> {
    let hit = |hit: &treehold_core::ops::SearchHit| (hit.path.clone(), (hit.size_bytes, hit.version, hit.words, hit.frequencies.clone()));
    let hits: BTreeMap<_, _> = result.hits.iter().map(hit).collect();
    assert_eq!(hits.len(), result.hits.len(), "a file is found once");
    hits
}

fn is_in_order(result: &SearchResult) -> bool {
    result.hits.is_sorted_by(|one, other| one.score > other.score || (one.score == other.score && one.path < other.path))
}

/// A search with the index finds the same files as one without, in score order, and pages continue where the last one ended.
async fn recalls_agree(tree: &StoreBackend) {
    for place in PLACES {
        let place = VfsPathBuf::parse(place).expect("a legal path");
        for options in recalls() {
            let (by_index, plainly) = (tree.search(&place, &options).await, plain(tree).search(&place, &options).await);
            let (by_index, plainly) = match (by_index, plainly) {
                (Ok(by_index), Ok(plainly)) => (by_index, plainly),
                (Err(by_index), Err(plainly)) => {
                    assert_eq!(by_index.kind(), plainly.kind());
                    continue;
                }
                (by_index, plainly) => panic!("{by_index:?} by the index and {plainly:?} without"),
            };
            assert_eq!(recalled(&by_index), recalled(&plainly), "{options:?} in {place}");
            assert_eq!((by_index.failures, &by_index.truncated), (plainly.failures, &None));
            let again = tree.search(&place, &options).await.expect("searched");
            assert!(is_in_order(&again), "{again:?}");
            let first = tree.search(&place, &options.clone().with_offset(1).with_limit(2)).await.expect("searched");
            assert_eq!(first.hits[..], again.hits[1.min(again.hits.len())..3.min(again.hits.len())], "{options:?} in {place}");
            assert_eq!(first.truncated.is_some(), again.hits.len() > 3);
        }
    }
}

/// The index has the current word counts of every file.
async fn postings_agree(tree: &StoreBackend) {
    let words: Vec<String> = words_of_query(&QUERIES.join(" "));
    let postings = tree.indexes.postings(&words).await.expect("the lookup succeeds").expect("an index");
    let by_key: BTreeMap<&str, _> = postings.files.iter().map(|file| (file.key.as_str(), (file.length, &*file.frequencies))).collect();
    assert_eq!(by_key.len(), postings.files.len(), "a file is found once");
    let all = GlobOptions::new("**").with_hidden(true).with_ignored(true).with_limit(1_000);
    for entry in tree.glob(VfsPath::ROOT, &all).await.expect("listed").entries.iter().filter(|entry| !entry.is_directory()) {
        let content = tree.read_text(entry.path.as_str()).await.expect("read");
        let held = FileWords::of(&entry.path, content.as_bytes());
        let counts: Vec<u32> = words.iter().map(|word| held.frequency(word)).collect();
        // The index may still name files for words they used to contain, until their segments are merged.
        if counts.iter().any(|count| *count > 0) {
            assert_eq!(by_key.get(file_key(&entry.path).as_str()), Some(&(held.length, &counts[..])), "{}", entry.path);
        }
    }
}

async fn agree(tree: &StoreBackend) {
    for directory in ["/", "/a"] {
        let directory = VfsPathBuf::parse(directory).expect("a legal path");
        for options in searches() {
            let (by_index, plainly) = (tree.grep(&directory, &options).await, plain(tree).grep(&directory, &options).await);
            match (by_index, plainly) {
                (Ok(by_index), Ok(plainly)) => assert_eq!(found(by_index), found(plainly), "{options:?} in {directory}"),
                (Err(by_index), Err(plainly)) => assert_eq!(by_index.kind(), plainly.kind()),
                (by_index, plainly) => panic!("{by_index:?} by the index and {plainly:?} without"),
            }
        }
    }
    recalls_agree(tree).await;
    postings_agree(tree).await;
    let verified = tree.verify(|_| {}).await.expect("verified");
    assert_eq!(verified.failures, []);
}

/// A freshly built index yields the same scores as reading all files.
async fn scores_agree(tree: &StoreBackend) {
    remove(tree).await;
    build(tree).await;
    for query in QUERIES.into_iter().chain(["needel", "kelvn memmory"]) {
        let options = SearchOptions::new(query).with_limit(1_000).with_hidden(true).with_ignored(true);
        let by_index = tree.search(VfsPath::ROOT, &options).await.expect("searched");
        assert_eq!(by_index, plain(tree).search(VfsPath::ROOT, &options).await.expect("searched"), "{query}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn search_with_index_equals_search_without(steps in steps(), is_there_first in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
            let mut steps = steps.into_iter();
            if !is_there_first {
                for step in steps.by_ref().take(10).filter(|step| !matches!(step, Step::Settle(_) | Step::Rebuild(_))) {
                    take(&tree_on(&store), step).await;
                }
            }
            let tree = indexed_on(&store);
            build(&tree).await;
            // A backend that was not configured with the index maintains it too.
            let other = tree_on(&store);
            for (number, step) in steps.enumerate() {
                take(if number % 3 == 0 && !matches!(step, Step::Settle(_)) { &other } else { &tree }, step).await;
            }
            agree(&tree).await;
            settle(&tree, 1).await;
            agree(&tree).await;
            agree(&other).await;
            scores_agree(&tree).await;
        });
    }
}

/// Every version of `/kept` contains the needle, so each search must find it while rows move from the tail into segments.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn search_finds_file_while_index_is_settled() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    // Small pages leave many points between the first and the last at which the index can change.
    let mut tree = tree_on(&store);
    tree.indexes.known = Arc::new(Known { tail_rows: 2, lookup_bytes: 1, ..Known::new(tree.namespace(), &IndexKind::ALL) });
    tree.write("/kept", "the needle 0").await.expect("written");
    let ended = Arc::new(AtomicBool::new(false));
    let (writer, settler, written, settled) = (tree.clone(), tree.clone(), ended.clone(), ended.clone());
    let writing = tokio::spawn(async move {
        for round in 0.. {
            if written.load(Ordering::Relaxed) {
                break;
            }
            // Written rarely, so that it spends some rounds only in the tail and the rest in a segment.
            if round % 20 == 0 {
                let content = format!("the needle {round} {}", TEXTS[round % TEXTS.len()].repeat(round % 50));
                writer.write("/kept", content).await.expect("written");
            }
            writer.write(format!("/a/{}", round % 40).as_str(), format!("no such thing {round}")).await.expect("written");
            tokio::task::yield_now().await;
        }
    });
    let settling = tokio::spawn(async move {
        while !settled.load(Ordering::Relaxed) {
            settle(&settler, 1).await;
            tokio::task::yield_now().await;
        }
    });
    for _ in 0..1_000 {
        let result = tree.grep(VfsPath::ROOT, &GrepOptions::new("needle")).await.expect("searched");
        assert_eq!(result.files.len(), 1, "{result:?}");
        let result = tree.search(VfsPath::ROOT, &SearchOptions::new("the needles").with_limit(1)).await.expect("searched");
        assert_eq!(result.hits.first().map(|hit| hit.path.as_str()), Some("/kept"), "{result:?}");
    }
    ended.store(true, Ordering::Relaxed);
    writing.await.expect("ended");
    settling.await.expect("ended");
    agree(&tree).await;
}

/// When several processes settle at once, each step is done by exactly one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_settling_by_several_processes_keeps_index_sound() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let trees: Vec<StoreBackend> = (0..4).map(|_| indexed_on(&store)).collect();
    let work = trees.iter().cloned().enumerate().map(|(number, tree)| {
        tokio::spawn(async move {
            for round in 0..60 {
                tree.write(format!("/{number}/{}", round % 25).as_str(), format!("needle {number} {round}")).await.expect("written");
                if round % 7 == number {
                    settle(&tree, 1).await;
                }
            }
        })
    });
    for ended in join_all(work).await {
        ended.expect("ended");
    }
    settle(&trees[0], 1).await;
    agree(&trees[1]).await;
    let (trigrams, words) = (prefixes::<Trigrams>(&trees[0]).await, prefixes::<Words>(&trees[0]).await);
    // No rows of merged segments remain.
    let namespace = trees[0].indexes.known.namespace().expect("a namespace");
    let rows = store.scan(namespace, treehold_store::ScanOptions::new().with_limit(100_000)).await.expect("scanned").entries;
    let known = |key: &str| key == "a" || key == "c" || trigrams.iter().chain(&words).any(|prefix| key.starts_with(prefix));
    assert!(rows.iter().all(|row| known(row.key())));
}

/// Returns the key prefixes of the segments of an index, after checking that its tail is empty.
async fn prefixes<K: Kind>(tree: &StoreBackend) -> Vec<String> {
    let namespace = tree.indexes.known.namespace().expect("a namespace");
    let (manifest, _) = read_manifest::<K>(tree.store(), namespace).await.expect("read").expect("an index");
    let state = tree.index_state(K::KIND).await.expect("read").expect("an index");
    assert!(state.is_complete && state.files_in_tail == 0 && state.files_in_segments >= 100, "{state:?}");
    manifest.segments.iter().map(|segment| segment_prefix::<K>(segment.id())).collect()
}

/// Returns the paths that `verify` reports.
async fn failing(tree: &StoreBackend) -> Vec<String> {
    let failures = tree.verify(|_| {}).await.expect("verified").failures;
    assert!(failures.iter().all(|failure| failure.error.code == ErrorKind::Corrupt.code()), "{failures:?}");
    failures.iter().map(|failure| failure.path.to_string()).collect()
}

#[tokio::test]
async fn verify_reports_files_missing_from_index() {
    for (kind, row) in [(Trigram, "a3"), (IndexKind::Words, "c3")] {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let tree = tree_on(&store).with_index(kind);
        for number in 0..5 {
            tree.write(format!("/{number}").as_str(), format!("needle {number}")).await.expect("written");
        }
        assert_eq!(failing(&tree).await, [""; 0]);
        let namespace = tree.indexes.known.namespace().expect("a namespace").clone();
        // Replace the row with that of another file.
        let other = store.get(&namespace, &row.replace('3', "4")).await.expect("read").expect("a row").value;
        store.commit(treehold_store::Batch::new().put(&namespace, row, other)).await.expect("written");
        assert_eq!(failing(&tree).await, ["/3"]);
        store.commit(treehold_store::Batch::new().delete(&namespace, row)).await.expect("written");
        assert_eq!(failing(&tree).await, ["/3"]);
        tree.remove_index(kind).await.expect("removed");
        let change =
            Change::Write { path: VfsPathBuf::parse("/new").expect("a legal path"), content: "needle".into(), mode: WriteMode::Overwrite };
        tree.apply(&[change], &ApplyOptions::new()).await.expect("written beside an index that was removed");
        tree.build_index(kind, |_| {}).await.expect("built");
        assert_eq!(failing(&tree).await, [""; 0]);
    }
}

#[tokio::test]
async fn search_falls_back_to_reading_when_index_is_damaged() {
    for kind in IndexKind::ALL {
        for row in ["", "3"] {
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
            let tree = tree_on(&store).with_index(kind);
            for number in 0..5 {
                tree.write(format!("/{number}").as_str(), format!("needle {number}")).await.expect("written");
            }
            let namespace = tree.indexes.known.namespace().expect("a namespace").clone();
            let key = format!("{}{row}", kind.manifest());
            assert!(store.get(&namespace, &key).await.expect("read").is_some(), "{key}");
            store.commit(treehold_store::Batch::new().put(&namespace, key, "\u{7F}no row")).await.expect("written");
            let found = tree.grep(VfsPath::ROOT, &GrepOptions::new("needle")).await.expect("searched by reading");
            assert_eq!((found.files.len(), found.failures_count), (5, 0));
            let ranked = tree.search(VfsPath::ROOT, &SearchOptions::new("needle")).await.expect("searched by reading");
            assert_eq!((ranked.hits.len(), ranked.failures_count), (5, 0));
        }
    }
}

/// Flipping any byte of a segment is either reported or harmless.
#[tokio::test]
async fn verify_reports_changed_segment_bytes() {
    for kind in IndexKind::ALL {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let tree = tree_on(&store).with_index(kind);
        for number in 0..5 {
            tree.write(format!("/{number}").as_str(), format!("needle {number} of \u{E9} {number}")).await.expect("written");
        }
        settle(&tree, 1).await;
        let namespace = tree.indexes.known.namespace().expect("a namespace").clone();
        let scan = treehold_store::ScanOptions::new().with_prefix(kind.segments()).with_values(true);
        let rows = store.scan(&namespace, scan).await.expect("scanned").entries;
        let mut told = 0;
        for row in rows {
            let treehold_store::ScanEntry::Item(row) = row else { panic!("a group") };
            for at in 0..row.value.len() {
                let mut changed = row.value.to_vec();
                changed[at] ^= 1;
                store.commit(treehold_store::Batch::new().put(&namespace, &row.key, changed)).await.expect("written");
                let is_told = !failing(&tree).await.is_empty();
                // An extra bit in a signature, or a cleared padding bit, hides no file.
                assert!(is_told || kind == Trigram, "byte {at} of `{}`", row.key);
                told += usize::from(is_told);
            }
            store.commit(treehold_store::Batch::new().put(&namespace, &row.key, row.value)).await.expect("written");
        }
        assert!(told > 20, "{told}");
        assert_eq!(failing(&tree).await, [""; 0]);
    }
}

/// Each kind can be built and removed independently.
#[tokio::test]
async fn removing_one_index_keeps_the_other() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let both = indexed_on(&store);
    for number in 0..200 {
        both.write(path(number).as_str(), format!("needle {number} of memory")).await.expect("written");
        settle(&both, 40).await;
    }
    for (gone, stays) in [(Trigram, IndexKind::Words), (IndexKind::Words, Trigram)] {
        build(&both).await;
        let before = both.index_state(stays).await.expect("read");
        both.remove_index(gone).await.expect("removed");
        assert_eq!((both.index_state(gone).await.expect("read"), both.index_state(stays).await.expect("read")), (None, before));
        // A backend configured with neither discovers which indexes exist.
        let other = tree_on(&store);
        other.write("/0.md", "another needle").await.expect("written");
        assert_eq!(failing(&other).await, [""; 0]);
        let (state, none) =
            (other.index_state(stays).await.expect("read").expect("an index"), other.index_state(gone).await.expect("read"));
        assert!(state.is_complete && state.files_in_tail > 0 && none.is_none(), "{state:?} {none:?}");
    }
    build(&both).await;
    agree(&both).await;
}

#[tokio::test]
async fn search_before_first_write_still_creates_complete_index() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let tree = IndexKind::ALL.into_iter().fold(tree_on(&store), StoreBackend::with_index);
    let search = async || {
        tree.grep(VfsPath::ROOT, &GrepOptions::new("needle")).await.expect("a search");
        tree.search(VfsPath::ROOT, &SearchOptions::new("needle")).await.expect("a search");
    };
    for round in 0..2 {
        search().await;
        tree.write("/first", "the needle").await.expect("a write");
        search().await;
        for kind in IndexKind::ALL {
            let state = tree.index_state(kind).await.expect("a state").expect("an index");
            assert!(state.is_complete, "{kind:?} of round {round}");
        }
        // The next write to the empty tree starts it anew, even in the process that removed it.
        tree.delete("/first").await.expect("a delete");
        for kind in IndexKind::ALL {
            tree.remove_index(kind).await.expect("a removal");
        }
    }
}

#[tokio::test]
/// The tail is bounded in bytes as well: a few hundred large signatures exceed it long before the file count does.
async fn index_tail_of_large_signatures_is_settled_by_its_size() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let tree = tree_on(&store).with_index(Trigram);
    let namespace = tree.indexes.known.namespace().expect("a namespace").clone();
    let largest = bytes::Bytes::from(vec![0; treehold_core::search::trigram::SignatureSize::MAX.bytes()]);
    for number in 0..300 {
        tree.write(format!("/{number}").as_str(), "needle").await.expect("written");
        store.commit(treehold_store::Batch::new().put(&namespace, format!("a{number}"), largest.clone())).await.expect("written");
    }
    tree.indexes.settle::<Trigrams>(Trigram.tail_files()).await.expect("settled");
    let state = tree.index_state(Trigram).await.expect("read").expect("an index");
    assert!(state.files_in_segments > 0 && state.files_in_tail < 257, "{state:?}");
}

/// Every search reads the whole tail, so one that meets a long tail has it settled, long before writers do.
#[tokio::test]
async fn search_has_a_long_tail_settled() {
    for kind in IndexKind::ALL {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let tree = tree_on(&store).with_index(kind);
        for number in 0..=kind.searched_tail_files() {
            tree.write(format!("/{number}").as_str(), "needle").await.expect("written");
        }
        let tail = async || tree.index_state(kind).await.expect("read").expect("an index").files_in_tail;
        assert_eq!(tail().await, kind.searched_tail_files() as u64 + 1);
        let found = match kind {
            IndexKind::Trigram => tree.grep(VfsPath::ROOT, &GrepOptions::new("needle")).await.expect("found").matches(),
            IndexKind::Words => tree.search(VfsPath::ROOT, &SearchOptions::new("needle")).await.expect("found").hits.len(),
        };
        assert!(found > 0);
        // The task that was started comes first.
        tokio::task::yield_now().await;
        drop(tree.indexes.known.of(kind).settling.lock().await);
        assert!(tail().await <= kind.searched_tail_files() as u64 / 2, "{kind}");
    }
}

/// A merge writes the rows of a large segment before the manifest names it, so a process killed in between leaves orphaned rows.
#[tokio::test]
async fn merge_removes_rows_of_killed_merge() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let tree = indexed_on(&store);
    tree.write("/0", "needle").await.expect("written");
    let namespace = tree.indexes.known.namespace().expect("a namespace").clone();
    for key in ["0000000000000000d00000000", "0000000000000000s00000000", "0000000000000000s00000001", "ffffffffffffffffs00000000"] {
        for kind in ["b", "d"] {
            store.commit(treehold_store::Batch::new().put(&namespace, [kind, key].concat(), "left")).await.expect("written");
        }
    }
    for number in 0..4 {
        tree.write(format!("/{number}").as_str(), format!("needle {number}")).await.expect("written");
        settle(&tree, 1).await;
    }
    for kind in ["b", "d"] {
        let scan = treehold_store::ScanOptions::new().with_prefix(kind).with_values(true);
        let rows = store.scan(&namespace, scan).await.expect("scanned").entries;
        let left = rows.iter().filter(|row| matches!(row, treehold_store::ScanEntry::Item(item) if item.value == "left")).count();
        assert_eq!((left, rows.is_empty()), (0, false));
    }
    agree(&tree).await;
}

#[tokio::test]
async fn unreadable_file_is_reported_by_every_search() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for name in ["/bad", "/good"] {
        tree_on(&store).write(name, "the needle").await.expect("written");
    }
    let files = tree_on(&store).namespace().clone();
    let row = store.get(&files, "bad").await.expect("read").expect("a row");
    store.commit(treehold_store::Batch::new().put_item(&files, "bad", row.meta, "cut", None)).await.expect("written");
    let tree = indexed_on(&store);
    build(&tree).await;
    for pattern in ["needle", "nothing of the kind"] {
        let result = tree.grep(VfsPath::ROOT, &GrepOptions::new(pattern)).await.expect("searched");
        let plainly = plain(&tree).grep(VfsPath::ROOT, &GrepOptions::new(pattern)).await.expect("searched");
        assert_eq!(result.failures.len(), 1);
        assert_eq!(found(result), found(plainly));
        let result = tree.search(VfsPath::ROOT, &SearchOptions::new(pattern)).await.expect("searched");
        let plainly = plain(&tree).search(VfsPath::ROOT, &SearchOptions::new(pattern)).await.expect("searched");
        assert_eq!(result.failures.len(), 1);
        assert_eq!(result, plainly);
    }
    // The entry must survive merges into other segments.
    for number in 0..6 {
        tree.write(format!("/{number}").as_str(), "more").await.expect("written");
        settle(&tree, 1).await;
    }
    assert_eq!(tree.search(VfsPath::ROOT, &SearchOptions::new("nothing")).await.expect("searched").failures.len(), 1);
}

#[tokio::test]
async fn tree_at_namespace_limit_works_without_index() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let namespace = Namespace::new(vec!["a"; treehold_store::NAMESPACE_COMPONENTS_MAX]).expect("a legal namespace");
    let tree = StoreBackend::new(store, namespace).with_index(Trigram).with_index(IndexKind::Words);
    tree.write("/kept", "needle").await.expect("written");
    assert!(!tree.capabilities().indexed);
    let result = tree.grep(VfsPath::ROOT, &GrepOptions::new("needle")).await.expect("searched");
    assert_eq!(result.files.len(), 1);
    assert_eq!(tree.search(VfsPath::ROOT, &SearchOptions::new("needle")).await.expect("searched").hits.len(), 1);
    let change =
        Change::Write { path: VfsPathBuf::parse("/kept").expect("a legal path"), content: "other".into(), mode: WriteMode::CreateNew };
    let error = tree.apply(&[change], &ApplyOptions::new()).await.expect_err("it exists");
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    for kind in IndexKind::ALL {
        assert_eq!(tree.build_index(kind, |_| {}).await.expect_err("no room").kind(), ErrorKind::Unsupported);
    }
}

/// Segments keep entries of deleted files until they are merged; those entries must not make a rare word look common.
#[tokio::test]
async fn stale_entries_do_not_affect_word_weights() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let tree = indexed_on(&store);
    for number in 0..100 {
        tree.write(format!("/old/{number}.md").as_str(), "kangaroo plan").await.expect("written");
        tree.write(format!("/kept/{number}.md").as_str(), "kangaroo").await.expect("written");
    }
    settle(&tree, 1).await;
    tree.delete_all("/old").await.expect("deleted");
    for number in 0..100 {
        tree.write(format!("/kept/{number}.md").as_str(), "a plan and a plan").await.expect("written");
    }
    settle(&tree, 1).await;
    tree.write("/kept/answer.md", "the kangaroo of a plan for all of the others").await.expect("written");
    let found = tree.search(VfsPath::ROOT, &SearchOptions::new("kangaroo plan")).await.expect("searched");
    assert_eq!(found.hits[0].path.as_str(), "/kept/answer.md");
    let expected = plain(&tree).search(VfsPath::ROOT, &SearchOptions::new("kangaroo plan")).await.expect("searched");
    assert_eq!((found.corpus.files_with, found.corpus.files), (vec![1, 101], 101));
    assert_eq!(expected.corpus.files_with, [1, 101]);
}
