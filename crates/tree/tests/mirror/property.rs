//! Random edits on both sides, between refreshes and during one: none is lost silently.

use super::{Place, host_files, open, path, tree_files, written_back};
use async_trait::async_trait;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use treehold_core::error::Result;
use treehold_core::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions,
    ReadOptions, Review, SearchOptions, SearchResult, Sight, StatOptions,
};
use treehold_core::path::VfsPath;
use treehold_tree::backend::{Backend, BackendExt, StateBackend};
use treehold_tree::mirror::{Mirror, MirrorOptions};

/// Runs something before each call of a tree.
struct Meddling {
    inner: Arc<StateBackend>,
    calls: AtomicUsize,
    meddle: Mutex<Box<dyn FnMut(usize) + Send>>,
}

impl Meddling {
    fn step(&self) {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        (self.meddle.lock())(call);
    }
}

impl fmt::Debug for Meddling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meddling")
    }
}

impl fmt::Display for Meddling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meddling")
    }
}

#[async_trait]
impl Backend for Meddling {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    async fn stat(&self, path: &VfsPath, options: &StatOptions) -> Result<Entry> {
        self.step();
        self.inner.stat(path, options).await
    }
    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        self.step();
        let read = self.inner.read(path, options).await;
        self.step();
        read
    }
    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        self.step();
        let listing = self.inner.ls(path, options).await;
        self.step();
        listing
    }
    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        self.inner.glob(path, options).await
    }
    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        self.inner.grep(path, options).await
    }
    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        self.inner.search(path, options).await
    }
    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        self.step();
        let applied = self.inner.apply(changes, options).await;
        self.step();
        applied
    }
    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        self.inner.review(review).await
    }
}

/// A file of slots that are far enough apart for edits of different slots never to touch.
fn slots(filled: &BTreeMap<usize, usize>, count: usize) -> String {
    (0..count).map(|slot| format!("{}\n-\n--\n", filled.get(&slot).copied().unwrap_or_default())).collect()
}

/// Fills a slot of a text.
fn fill(text: &str, slot: usize, token: usize) -> String {
    text.lines().enumerate().map(|(line, text)| if line == slot * 3 { format!("{token}\n") } else { format!("{text}\n") }).collect()
}

#[derive(Debug, Clone)]
enum Edit {
    Tree { path: usize, line: usize },
    Host { path: usize, line: usize },
    RemoveTree(usize),
    RemoveHost(usize),
    RenameTree(usize, usize),
    RenameHost(usize, usize),
    Refresh,
}

const PATHS: [&str; 4] = ["/a", "/d/b", "/d/e/c", "/f"];
const LINES: usize = 7;

fn edit() -> impl Strategy<Value = Edit> {
    let path = || 0..PATHS.len();
    prop_oneof![
        4 => (path(), 0..LINES).prop_map(|(path, line)| Edit::Tree { path, line }),
        4 => (path(), 0..LINES).prop_map(|(path, line)| Edit::Host { path, line }),
        1 => path().prop_map(Edit::RemoveTree),
        1 => path().prop_map(Edit::RemoveHost),
        1 => (path(), path()).prop_map(|(from, to)| Edit::RenameTree(from, to)),
        1 => (path(), path()).prop_map(|(from, to)| Edit::RenameHost(from, to)),
        3 => Just(Edit::Refresh),
    ]
}

type Files = BTreeMap<String, String>;

/// What both sides must have at a path after a refresh; `Err` if only a conflict can decide.
fn expected(base: Option<&String>, tree: Option<&String>, host: Option<&String>) -> std::result::Result<Option<String>, ()> {
    if tree == host || host == base {
        return Ok(tree.cloned());
    }
    if tree == base {
        return Ok(host.cloned());
    }
    let (Some(base), Some(tree), Some(host)) = (base, tree, host) else { return Err(()) };
    let mut merged = String::new();
    for ((base, tree), host) in base.lines().zip(tree.lines()).zip(host.lines()) {
        merged.push_str(match (tree == base, host == base) {
            (_, true) => tree,
            (true, false) => host,
            (false, false) if tree == host => tree,
            (false, false) => return Err(()),
        });
        merged.push('\n');
    }
    Ok(Some(merged))
}

async fn run_edits(edits: Vec<Edit>, options: MirrorOptions) {
    let (tree, place) = (Arc::new(StateBackend::new()), Place::new());
    let start: String = (0..LINES).map(|line| format!("start {line}\n")).collect();
    for path in PATHS {
        tree.write(path, start.clone()).await.unwrap();
    }
    let mirror = open(&tree, &place, options).await;
    let mut base: Files = tree_files(&*tree).await;
    let edited = |old: Option<String>, line: usize, token: usize| -> String {
        let old = old.unwrap_or_else(|| start.clone());
        let lines =
            old.lines().enumerate().map(|(index, text)| if index == line { format!("token {token}\n") } else { format!("{text}\n") });
        lines.collect()
    };
    for (token, edit) in edits.into_iter().chain([Edit::Refresh]).enumerate() {
        match edit {
            Edit::Tree { path, line } => {
                let old = tree.read_text(PATHS[path]).await.ok();
                tree.write(PATHS[path], edited(old, line, token)).await.unwrap();
            }
            Edit::Host { path, line } => {
                let old = std::fs::read_to_string(place.at(PATHS[path])).ok();
                place.write(PATHS[path], edited(old, line, token));
            }
            Edit::RemoveTree(path) => drop(tree.delete(PATHS[path]).await),
            Edit::RemoveHost(path) => drop(std::fs::remove_file(place.at(PATHS[path]))),
            Edit::RenameTree(from, to) if from != to => {
                let change = Change::Rename { from: path(PATHS[from]), to: path(PATHS[to]), overwrite: true };
                drop(tree.apply_one(change).await);
            }
            Edit::RenameHost(from, to) if from != to && place.has(PATHS[from]) => {
                std::fs::create_dir_all(place.at(PATHS[to]).parent().unwrap()).unwrap();
                std::fs::rename(place.at(PATHS[from]), place.at(PATHS[to])).unwrap();
            }
            Edit::RenameTree(..) | Edit::RenameHost(..) => {}
            Edit::Refresh => {
                let (before_tree, before_host) = (tree_files(&*tree).await, host_files(&place.directory()));
                let report = mirror.refresh().await.unwrap();
                assert!(report.failures.is_empty(), "{report:?}");
                let (after_tree, after_host) = (tree_files(&*tree).await, host_files(&place.directory()));
                assert_eq!(after_tree, after_host);
                for path in PATHS.map(str::to_owned) {
                    let of = |files: &Files| files.get(&path).cloned();
                    let (base, ours, theirs) = (of(&base), of(&before_tree), of(&before_host));
                    let conflict = report.conflicts.iter().find(|event| event.path.as_str() == path);
                    match (expected(base.as_ref(), ours.as_ref(), theirs.as_ref()), conflict) {
                        (Ok(expected), None) => assert_eq!(of(&after_tree), expected, "{path}"),
                        (Err(()), None) => panic!("{path}: an edit was lost silently: {base:?} {ours:?} {theirs:?}"),
                        // Edits of neighbouring lines conflict too.
                        (_, Some(_)) => {
                            assert!(ours != base && theirs != base && ours != theirs, "{path}: no conflict is possible");
                            assert_eq!(of(&after_tree), ours, "{path}: the tree wins");
                        }
                    }
                }
                base = after_tree;
            }
        }
    }
    mirror.close().await.unwrap();
    assert!(place.beside().is_empty(), "{:?}", place.beside());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn no_edit_is_lost_without_a_conflict(edits in proptest::collection::vec(edit(), 1..24)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run_edits(edits, written_back()));
    }

    #[test]
    fn edits_between_any_two_calls_of_a_refresh_are_kept(moments in proptest::collection::btree_set(0_usize..60, 1..12)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (inner, place) = (Arc::new(StateBackend::new()), Place::new());
            let count = moments.len() * 2;
            let empty = slots(&BTreeMap::new(), count);
            inner.write("/a", empty.clone()).await.unwrap();
            inner.write("/d/b", empty.clone()).await.unwrap();
            let tree = Arc::new(Meddling { inner: inner.clone(), calls: AtomicUsize::new(0), meddle: Mutex::new(Box::new(|_| {})) });
            let mirror = Mirror::open(tree.clone(), None, place.directory(), written_back()).await.unwrap();
            let (start, mut filled) = (tree.calls.load(Ordering::SeqCst), 0);
            let files = [place.at("/a"), place.at("/d/b")];
            let moments_left = moments.clone();
            *tree.meddle.lock() = Box::new(move |call| {
                if moments_left.contains(&(call - start)) {
                    // As an editor saves: a new file takes the name.
                    let file = &files[filled % 2];
                    let text = std::fs::read_to_string(file).unwrap();
                    let saved = file.with_extension("save");
                    std::fs::write(&saved, fill(&text, filled, filled + 1)).unwrap();
                    std::fs::rename(&saved, file).unwrap();
                    filled += 1;
                }
            });
            let mut done = BTreeMap::from([("/a", BTreeMap::new()), ("/d/b", BTreeMap::new())]);
            for slot in 0..moments.len() {
                let path = ["/a", "/d/b"][slot % 2];
                let (slot, token) = (moments.len() + slot, 1_000 + slot);
                let text = inner.read_text(path).await.unwrap();
                inner.write(path, fill(&text, slot, token)).await.unwrap();
                done.get_mut(path).unwrap().insert(slot, token);
                let report = mirror.refresh().await.unwrap();
                prop_assert!(report.conflicts.is_empty() && report.failures.is_empty(), "{:?}", report);
            }
            let calls = tree.calls.load(Ordering::SeqCst) - start;
            *tree.meddle.lock() = Box::new(|_| {});
            mirror.refresh().await.unwrap();
            for (filled, _) in moments.iter().filter(|moment| **moment < calls).enumerate() {
                done.get_mut(["/a", "/d/b"][filled % 2]).unwrap().insert(filled, filled + 1);
            }
            for (path, filled) in &done {
                prop_assert_eq!(place.read(path), slots(filled, count));
                prop_assert_eq!(inner.read_text(path).await.unwrap(), slots(filled, count));
            }
            Ok(())
        })?;
    }
}
