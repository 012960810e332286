//! Mirrors of a tree in a host directory.

#![cfg(all(feature = "filesystem", unix))]
#![allow(missing_docs, clippy::unwrap_used)]

use async_trait::async_trait;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions, Op,
    ReadOptions, Review, SearchOptions, SearchResult, Sight, StatOptions,
};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_tree::backend::{Backend, BackendExt, FilesystemBackend, FilesystemOptions, StateBackend, TreeNews};
use treehold_tree::checkpoint::MergeConflictKind;
use treehold_tree::layer::{Layer, LayerName, Layered, Next, Operations, Permissions, Protections, RUNS_CODE, Reply, Rule};
use treehold_tree::mirror::{Mirror, MirrorAction, MirrorConflicts, MirrorEvent, MirrorOptions, MirrorReport, MirrorSide};

struct Place {
    parent: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { parent: tempfile::tempdir().unwrap() }
    }

    fn directory(&self) -> PathBuf {
        self.parent.path().join("sandbox")
    }

    fn at(&self, path: &str) -> PathBuf {
        self.directory().join(path.trim_start_matches('/'))
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.at(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        if let Some(parent) = self.at(path).parent() {
            std::fs::create_dir_all(parent).unwrap();
        }
        std::fs::write(self.at(path), content).unwrap();
    }

    fn has(&self, path: &str) -> bool {
        std::fs::symlink_metadata(self.at(path)).is_ok()
    }

    /// The names beside the directory.
    fn beside(&self) -> Vec<String> {
        std::fs::read_dir(self.parent.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

/// A mirror that compares only when a test calls it.
fn still() -> MirrorOptions {
    let never = Duration::from_secs(1 << 20);
    MirrorOptions::new().with_look_every(never).with_validate_every(never)
}

fn written_back() -> MirrorOptions {
    still().with_write_back(true)
}

async fn tree_of(files: &[(&str, &str)]) -> Arc<StateBackend> {
    let tree = Arc::new(StateBackend::new());
    for (path, content) in files {
        tree.write(path, content.to_string()).await.unwrap();
    }
    tree
}

async fn open(tree: &Arc<StateBackend>, place: &Place, options: MirrorOptions) -> Mirror {
    Mirror::open(tree.clone(), None, place.directory(), options).await.unwrap()
}

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).unwrap()
}

/// All files on the host, with their content.
fn host_files(directory: &Path) -> BTreeMap<String, String> {
    fn walk(root: &Path, directory: &Path, files: &mut BTreeMap<String, String>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                walk(root, &entry.path(), files);
            } else {
                let name = format!("/{}", entry.path().strip_prefix(root).unwrap().display());
                files.insert(name, String::from_utf8_lossy(&std::fs::read(entry.path()).unwrap()).into_owned());
            }
        }
    }
    let mut files = BTreeMap::new();
    walk(directory, directory, &mut files);
    files
}

/// All files of a tree, with their content.
async fn tree_files(tree: &dyn Backend) -> BTreeMap<String, String> {
    let found = tree.glob(VfsPath::ROOT, &GlobOptions::new("**/*").with_hidden(true)).await.unwrap();
    let mut files = BTreeMap::new();
    for entry in found.entries.iter().filter(|entry| !entry.is_directory()) {
        files.insert(entry.path.to_string(), tree.read(&entry.path, &ReadOptions::new()).await.unwrap().text_lossy().into_owned());
    }
    files
}

fn conflicts(report: &MirrorReport) -> Vec<(&str, MergeConflictKind, MirrorSide)> {
    report.conflicts.iter().map(|event| (event.path.as_str(), event.conflict.unwrap(), event.kept.unwrap())).collect()
}

fn failures(report: &MirrorReport) -> Vec<(&str, &str)> {
    report.failures.iter().map(|event| (event.path.as_str(), event.error.as_ref().unwrap().code.as_str())).collect()
}

/// Each name of the list, and each order in which the parts of a repository without a `.git` can arrive.
#[tokio::test]
async fn file_that_runs_code_is_not_mirrored_unless_exempt() {
    let names: Vec<String> = RUNS_CODE.iter().map(|(pattern, _)| format!("/sub/{}", pattern.replace('*', "x"))).collect();
    let inside = |name: &String| format!("{name}/inside");
    for options in [still(), written_back()] {
        let (tree, place) = (Arc::new(StateBackend::new()), Place::new());
        for name in &names {
            // Some names are beneath others.
            if tree.write(name, "#!/bin/sh\n").await.is_err() {
                tree.write(&inside(name), "#!/bin/sh\n").await.unwrap();
            }
        }
        for part in ["/bare/HEAD", "/bare/objects/x", "/bare/refs/x", "/bare/config", "/plain.md"] {
            tree.write(part, "text").await.unwrap();
        }
        let mirror = open(&tree, &place, options.clone()).await;
        assert_eq!(place.read("/plain.md"), "text");
        for name in names.iter().map(String::as_str).chain(["/bare/HEAD"]) {
            assert!(!place.at(name).is_file() && !place.has(&inside(&name.to_owned())), "{name}: {:?}", host_files(&place.directory()));
        }
        assert!(!failures(mirror.first()).is_empty());
        assert!(failures(mirror.first()).iter().all(|(_, code)| *code == "permission_denied"), "{:?}", failures(mirror.first()));
        mirror.refresh().await.unwrap();
        tree.write("/late/.envrc", "export X=1").await.unwrap();
        mirror.refresh().await.unwrap();
        assert!(!place.has("/late/.envrc"));
        assert!(tree.read_text("/late/.envrc").await.is_ok(), "what is not mirrored is not removed from the tree");
        mirror.close().await.unwrap();

        let place = Place::new();
        let exempt = Protections::new(VfsPath::ROOT).without([".envrc"]).unwrap();
        let mirror = open(&tree, &place, options.clone().with_protections(exempt)).await;
        assert_eq!(place.read("/late/.envrc"), "export X=1");
        mirror.close().await.unwrap();
        let place = Place::new();
        let mirror = open(&tree, &place, options.with_protections(None)).await;
        assert_eq!((failures(mirror.first()), place.read("/bare/HEAD")), (Vec::new(), "text".to_owned()));
        mirror.close().await.unwrap();
    }
}

#[tokio::test]
async fn opened_mirror_holds_every_file_of_a_large_tree() {
    let (tree, place) = (Arc::new(StateBackend::new()), Place::new());
    for index in 0..1_000 {
        tree.write(&format!("/d{}/f{index}", index % 7), format!("content {index}\n")).await.unwrap();
    }
    tree.write("/binary", vec![0_u8, 255, 1, 10]).await.unwrap();
    tree.create_dir("/empty/directory").await.unwrap();
    let mirror = open(&tree, &place, still()).await;
    assert_eq!((mirror.first().mirrored, mirror.first().failures.len()), (1_001 + 7 + 2, 0));
    assert_eq!(host_files(&place.directory()), tree_files(&tree).await);
    assert!(place.at("/empty/directory").is_dir());
    mirror.close().await.unwrap();
    assert!(place.beside().is_empty(), "{:?}", place.beside());
}

#[tokio::test]
async fn name_that_the_host_cannot_hold_is_reported_and_the_rest_is_mirrored() {
    let reserved = "/.treehold-0123456789abcdef0123456789abcdef.tmp";
    let (tree, place) = (tree_of(&[("/a", "one"), (reserved, "two")]).await, Place::new());
    let mirror = open(&tree, &place, still()).await;
    assert_eq!(failures(mirror.first()), [(reserved, "invalid_path")]);
    assert_eq!(place.read("/a"), "one");
}

#[tokio::test]
async fn changes_of_the_tree_reach_the_directory() {
    let (tree, place) = (tree_of(&[("/a", "one"), ("/d/b", "two"), ("/c", "file")]).await, Place::new());
    for options in [still(), written_back()] {
        let mirror = open(&tree, &place, options).await;
        tree.write("/a", "changed").await.unwrap();
        tree.rename("/d", "/moved").await.unwrap();
        tree.delete("/c").await.unwrap();
        tree.write("/c/becomes/a", "directory").await.unwrap();
        let report = mirror.refresh().await.unwrap();
        assert!(report.conflicts.is_empty() && report.failures.is_empty(), "{report:?}");
        assert_eq!(host_files(&place.directory()), tree_files(&*tree).await);
        assert!(!place.has("/d"));
        tree.delete_all("/c").await.unwrap();
        tree.write("/c", "file").await.unwrap();
        tree.rename("/moved", "/d").await.unwrap();
        mirror.refresh().await.unwrap();
        assert_eq!(host_files(&place.directory()), tree_files(&*tree).await);
        assert!(mirror.refresh().await.unwrap().is_empty());
        mirror.close().await.unwrap();
    }
}

/// Waits for an event. The mirror's own task makes it.
async fn event(events: &mut tokio::sync::mpsc::UnboundedReceiver<MirrorEvent>, action: MirrorAction, at: &str) {
    loop {
        let event = events.recv().await.unwrap();
        if event.action == action && event.path.as_str() == at {
            return;
        }
    }
}

#[tokio::test]
async fn change_that_the_feed_reports_is_mirrored_without_a_call() {
    let (tree, place) = (tree_of(&[("/a", "one")]).await, Place::new());
    let (observed, mut events) = tokio::sync::mpsc::unbounded_channel();
    let (feed, news) = tokio::sync::mpsc::unbounded_channel();
    let news = futures::stream::unfold(news, async |mut news: tokio::sync::mpsc::UnboundedReceiver<TreeNews>| {
        news.recv().await.map(|heard| (heard, news))
    });
    let options = still().with_observer(move |event| drop(observed.send(event.clone())));
    feed.send(TreeNews::Live).unwrap();
    let mirror = Mirror::open(tree.clone(), Some(Box::pin(news)), place.directory(), options).await.unwrap();
    tree.write("/d/new", "two").await.unwrap();
    feed.send(TreeNews::Changed(path("/d/new"))).unwrap();
    event(&mut events, MirrorAction::Mirrored, "/d/new").await;
    assert_eq!(place.read("/d/new"), "two");
    tree.delete("/a").await.unwrap();
    feed.send(TreeNews::Reset).unwrap();
    event(&mut events, MirrorAction::Removed, "/a").await;
    assert!(!place.has("/a"));
    drop(mirror);
}

#[tokio::test]
async fn edit_in_the_directory_is_written_back_without_a_call() {
    let (tree, place) = (tree_of(&[("/a", "one")]).await, Place::new());
    let (observed, mut events) = tokio::sync::mpsc::unbounded_channel();
    let options = MirrorOptions::new()
        .with_write_back(true)
        .with_look_every(Duration::from_millis(5))
        .with_observer(move |event| drop(observed.send(event.clone())));
    let mirror = open(&tree, &place, options).await;
    place.write("/a", "edited");
    event(&mut events, MirrorAction::WrittenBack, "/a").await;
    assert_eq!(tree.read_text("/a").await.unwrap(), "edited");
    std::fs::remove_file(place.at("/a")).unwrap();
    event(&mut events, MirrorAction::RemovedFromTree, "/a").await;
    assert!(!tree.exists("/a").await.unwrap());
    mirror.close().await.unwrap();
}

#[tokio::test]
async fn read_only_mirror_has_no_write_bits_and_overwrites_changes() {
    let (tree, place) = (tree_of(&[("/a", "one"), ("/d/b", "two"), ("/d/c", "three")]).await, Place::new());
    let mirror = open(&tree, &place, still()).await;
    let mode = |path: &str| std::fs::metadata(place.at(path)).unwrap().permissions().mode();
    for path in ["/a", "/d", "/d/b"] {
        assert_eq!(mode(path) & 0o222, 0, "{path}");
    }
    let allow = |path: &str| std::fs::set_permissions(place.at(path), std::fs::Permissions::from_mode(0o755)).unwrap();
    allow("/");
    allow("/a");
    allow("/d");
    place.write("/a", "changed");
    std::fs::remove_file(place.at("/d/b")).unwrap();
    allow("/d/c");
    place.write("/stranger/file", "new");
    std::fs::rename(place.at("/d/c"), place.at("/moved")).unwrap();
    std::fs::create_dir(place.at("/d/c")).unwrap();
    let report = mirror.refresh().await.unwrap();
    assert_eq!((report.written_back, report.conflicts.len(), report.failures.len()), (0, 0, 0), "{report:?}");
    assert_eq!(host_files(&place.directory()), tree_files(&*tree).await);
    assert_eq!(tree.read_text("/a").await.unwrap(), "one");
    for path in ["/a", "/d", "/d/b", "/d/c"] {
        assert_eq!(mode(path) & 0o222, 0, "{path}");
    }
    assert!(mirror.refresh().await.unwrap().is_empty());
}

#[tokio::test]
async fn changes_in_the_directory_are_written_back() {
    let (tree, place) = (tree_of(&[("/a", "one"), ("/d/b", "two"), ("/e/c", "three"), ("/f", "four")]).await, Place::new());
    let mirror = open(&tree, &place, written_back()).await;
    place.write("/a", "edited");
    place.write("/new/deep/file", b"\0binary\xff");
    std::fs::create_dir(place.at("/empty")).unwrap();
    std::fs::rename(place.at("/d"), place.at("/renamed")).unwrap();
    std::fs::remove_dir_all(place.at("/e")).unwrap();
    let report = mirror.refresh().await.unwrap();
    assert!(report.conflicts.is_empty() && report.failures.is_empty(), "{report:?}");
    assert_eq!(host_files(&place.directory()), tree_files(&*tree).await);
    assert_eq!(tree.read_text("/a").await.unwrap(), "edited");
    assert_eq!(tree.read_bytes("/new/deep/file").await.unwrap(), &b"\0binary\xff"[..]);
    assert!(tree.stat(&path("/empty"), &StatOptions::new()).await.unwrap().is_directory());
    for gone in ["/d", "/e"] {
        assert!(!tree.exists(gone).await.unwrap(), "{gone}");
    }
    // A file becomes a directory, and the reverse.
    std::fs::remove_file(place.at("/f")).unwrap();
    place.write("/f/inner", "five");
    std::fs::remove_dir_all(place.at("/renamed")).unwrap();
    place.write("/renamed", "six");
    let report = mirror.refresh().await.unwrap();
    assert!(report.conflicts.is_empty() && report.failures.is_empty(), "{report:?}");
    assert_eq!(tree.read_text("/f/inner").await.unwrap(), "five");
    assert_eq!(tree.read_text("/renamed").await.unwrap(), "six");
    assert!(mirror.refresh().await.unwrap().is_empty());
    mirror.close().await.unwrap();
}

#[tokio::test]
async fn edits_of_different_lines_are_merged() {
    let (tree, place) = (tree_of(&[("/a", "1\n2\n3\n4\n5\n")]).await, Place::new());
    let mirror = open(&tree, &place, written_back()).await;
    tree.write("/a", "tree\n2\n3\n4\n5\n").await.unwrap();
    place.write("/a", "1\n2\n3\n4\ndirectory\n");
    let report = mirror.refresh().await.unwrap();
    assert_eq!((report.written_back, report.conflicts.len()), (1, 0), "{report:?}");
    assert_eq!(place.read("/a"), "tree\n2\n3\n4\ndirectory\n");
    assert_eq!(tree.read_text("/a").await.unwrap(), place.read("/a"));
}

#[tokio::test]
async fn conflicting_edits_are_reported_and_the_tree_wins() {
    let files = [("/text", "1\n2\n"), ("/binary", "\0one"), ("/edited", "1\n"), ("/removed", "1\n"), ("/kind", "1\n")];
    let (tree, place) = (tree_of(&files).await, Place::new());
    let mirror = open(&tree, &place, written_back()).await;
    tree.write("/text", "tree\n2\n").await.unwrap();
    place.write("/text", "directory\n2\n");
    tree.write("/binary", "\0tree").await.unwrap();
    place.write("/binary", "\0directory");
    tree.write("/both", "tree\n").await.unwrap();
    place.write("/both", "directory\n");
    tree.delete("/edited").await.unwrap();
    place.write("/edited", "directory\n");
    tree.write("/removed", "tree\n").await.unwrap();
    std::fs::remove_file(place.at("/removed")).unwrap();
    tree.write("/kind", "tree\n").await.unwrap();
    std::fs::remove_file(place.at("/kind")).unwrap();
    place.write("/kind/inner", "directory\n");
    let report = mirror.refresh().await.unwrap();
    let mut found = conflicts(&report);
    found.sort_by_key(|(path, ..)| path.to_owned());
    let expected = [
        ("/binary", MergeConflictKind::Binary, MirrorSide::Tree),
        ("/both", MergeConflictKind::BothAdded, MirrorSide::Tree),
        ("/edited", MergeConflictKind::ChangedAndRemoved, MirrorSide::Tree),
        ("/kind", MergeConflictKind::FileAndDirectory, MirrorSide::Tree),
        ("/removed", MergeConflictKind::ChangedAndRemoved, MirrorSide::Tree),
        ("/text", MergeConflictKind::BothChanged, MirrorSide::Tree),
    ];
    assert_eq!(found, expected);
    let files = host_files(&place.directory());
    assert_eq!(files, tree_files(&*tree).await);
    assert_eq!(files["/text"], "tree\n2\n");
    assert!(!files.contains_key("/edited"));
}

#[tokio::test]
async fn conflicting_edits_are_kept_with_markers() {
    let files = [("/text", "1\n2\n"), ("/binary", "\0one"), ("/edited", "1\n")];
    let (tree, place) = (tree_of(&files).await, Place::new());
    let mirror = open(&tree, &place, written_back().with_conflicts(MirrorConflicts::Markers)).await;
    tree.write("/text", "tree\n2\n").await.unwrap();
    place.write("/text", "directory\n2\n");
    tree.write("/binary", "\0tree").await.unwrap();
    place.write("/binary", "\0directory");
    tree.delete("/edited").await.unwrap();
    place.write("/edited", "directory\n");
    let report = mirror.refresh().await.unwrap();
    let mut found = conflicts(&report);
    found.sort_by_key(|(path, ..)| path.to_owned());
    let expected = [
        ("/binary", MergeConflictKind::Binary, MirrorSide::Tree),
        ("/edited", MergeConflictKind::ChangedAndRemoved, MirrorSide::Directory),
        ("/text", MergeConflictKind::BothChanged, MirrorSide::Both),
    ];
    assert_eq!(found, expected);
    assert_eq!(place.read("/text"), "<<<<<<< tree\ntree\n=======\ndirectory\n>>>>>>> directory\n2\n");
    assert_eq!(tree.read_text("/edited").await.unwrap(), "directory\n");
    assert_eq!(host_files(&place.directory()), tree_files(&*tree).await);
}

#[tokio::test]
async fn planted_links_and_pipes_are_neither_followed_nor_written_back() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "secret").unwrap();
    for options in [still(), written_back()] {
        let (tree, place) = (tree_of(&[("/a", "one"), ("/d/b", "two"), ("/d/c", "three")]).await, Place::new());
        let write_back = options.write_back;
        let mirror = open(&tree, &place, options).await;
        // A program in the sandbox may do anything in the directory.
        for path in ["/", "/d"] {
            std::fs::set_permissions(place.at(path), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        std::fs::remove_file(place.at("/a")).unwrap();
        symlink(outside.path().join("secret"), place.at("/a")).unwrap();
        std::fs::remove_dir_all(place.at("/d")).unwrap();
        symlink(outside.path(), place.at("/d")).unwrap();
        symlink(outside.path().join("secret"), place.at("/planted")).unwrap();
        let pipe = place.at("/pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o644), 0).unwrap();
        let report = mirror.refresh().await.unwrap();
        assert_eq!(place.read("/a"), "one");
        assert!(std::fs::symlink_metadata(place.at("/d")).unwrap().is_dir());
        assert_eq!((place.read("/d/b"), place.read("/d/c")), ("two".to_owned(), "three".to_owned()));
        assert_eq!(tree_files(&*tree).await.len(), 3, "nothing came in");
        if write_back {
            let mut found = failures(&report);
            found.sort_unstable();
            assert_eq!(found, [("/pipe", "unsupported"), ("/planted", "unsupported")]);
        } else {
            assert!(!place.has("/planted") && !place.has("/pipe"));
        }
        mirror.close().await.unwrap();
        assert_eq!(host_files(outside.path()), BTreeMap::from([("/secret".to_owned(), "secret".to_owned())]), "nothing went out");
        assert!(!place.directory().exists());
    }
}

#[tokio::test]
async fn change_that_a_rule_denies_is_refused_and_overwritten() {
    let (inner, place) = (tree_of(&[("/a", "one"), ("/locked/b", "two"), ("/hidden/c", "three")]).await, Place::new());
    let rules = [Rule::deny(Operations::ALL, ["/hidden"]).unwrap(), Rule::deny(Operations::WRITE, ["/locked"]).unwrap()];
    let tree = Arc::new(Permissions::new(rules, inner.clone()));
    let mirror = Mirror::open(tree, None, place.directory(), written_back()).await.unwrap();
    assert!(!place.has("/hidden"));
    place.write("/a", "edited");
    place.write("/locked/b", "edited");
    place.write("/locked/new", "new");
    place.write("/hidden/c", "planted");
    let report = mirror.refresh().await.unwrap();
    let refused: BTreeSet<&str> = report.failures.iter().map(|event| event.path.as_str()).collect();
    assert!(refused.is_superset(&BTreeSet::from(["/locked/b", "/locked/new", "/hidden/c"])), "{report:?}");
    assert!(report.failures.iter().all(|event| event.action == MirrorAction::Refused), "{report:?}");
    assert_eq!(place.read("/locked/b"), "two");
    assert!(!place.has("/locked/new") && !place.has("/hidden/c"));
    std::fs::remove_file(place.at("/locked/b")).unwrap();
    mirror.refresh().await.unwrap();
    assert_eq!(place.read("/locked/b"), "two");
    let files = tree_files(&*inner).await;
    assert_eq!((&*files["/a"], &*files["/locked/b"], &*files["/hidden/c"], files.len()), ("edited", "two", "three", 3));
}

#[tokio::test]
async fn file_over_the_limit_is_reported_and_kept_when_the_mirror_ends() {
    let (tree, place) = (tree_of(&[("/large", "0123456789"), ("/small", "1")]).await, Place::new());
    let mirror = open(&tree, &place, written_back().with_file_bytes_max(5)).await;
    assert_eq!(failures(mirror.first()), [("/large", "too_large")]);
    place.write("/small", "0123456789");
    let report = mirror.close().await.unwrap();
    assert!(report.kept && failures(&report).contains(&("/small", "too_large")), "{report:?}");
    assert_eq!(place.read("/small"), "0123456789");
    // The next mirror has a higher limit.
    let mirror = open(&tree, &place, written_back()).await;
    assert_eq!(tree.read_text("/small").await.unwrap(), "0123456789");
    assert_eq!(place.read("/large"), "0123456789");
    assert!(!mirror.close().await.unwrap().kept);
    assert!(place.beside().is_empty());
}

#[tokio::test]
async fn name_that_the_tree_cannot_hold_is_reported_once_and_kept_or_overwritten() {
    use std::os::unix::ffi::OsStrExt;
    for options in [still(), written_back()] {
        let (tree, place) = (tree_of(&[("/a", "one")]).await, Place::new());
        let events = Arc::new(AtomicUsize::new(0));
        let (write_back, counted) = (options.write_back, events.clone());
        let mirror = open(&tree, &place, options.with_observer(move |_| _ = counted.fetch_add(1, Ordering::SeqCst))).await;
        std::fs::set_permissions(place.directory(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let odd = place.directory().join(std::ffi::OsStr::from_bytes(b"odd\xff"));
        std::fs::write(&odd, "odd").unwrap();
        for _ in 0..3 {
            mirror.refresh().await.unwrap();
        }
        assert_eq!(events.load(Ordering::SeqCst), 2, "the file, and then the odd name once");
        assert_eq!(odd.exists(), write_back);
        assert_eq!(mirror.close().await.unwrap().kept, write_back);
    }
}

#[tokio::test]
async fn files_over_the_limit_of_all_bytes_are_left_out() {
    let (tree, place) = (tree_of(&[("/a", "0123456789"), ("/b", "0123456789"), ("/c", "1")]).await, Place::new());
    let mirror = open(&tree, &place, still().with_bytes_max(15)).await;
    assert_eq!(failures(mirror.first()), [("/b", "too_large")]);
    assert_eq!(host_files(&place.directory()).len(), 2);
    let refused = Mirror::open(tree.clone(), None, place.parent.path().join("other"), still().with_nodes_max(2)).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::TooLarge);
    assert!(!place.parent.path().join("other").exists());
}

#[tokio::test]
async fn flood_of_nodes_in_the_directory_is_reported_and_changes_nothing() {
    let (tree, place) = (tree_of(&[("/a", "one")]).await, Place::new());
    let mirror = open(&tree, &place, written_back().with_nodes_max(50)).await;
    for index in 0..100 {
        place.write(&format!("/flood{index}"), "");
    }
    let report = mirror.refresh().await.unwrap();
    assert_eq!(failures(&report), [("/", "too_large")]);
    assert_eq!(tree_files(&*tree).await.len(), 1);
    drop(mirror);
}

#[tokio::test]
async fn empty_files_are_left_out_on_request_and_can_be_filled() {
    let (tree, place) = (tree_of(&[("/a", ""), ("/b", "two"), ("/c", "three")]).await, Place::new());
    let mirror = open(&tree, &place, written_back().with_skip_empty(true)).await;
    assert!(!place.has("/a") && place.has("/b"));
    place.write("/a", "filled");
    tree.write("/b", "").await.unwrap();
    place.write("/c", "");
    let report = mirror.refresh().await.unwrap();
    assert!(report.conflicts.is_empty() && report.failures.is_empty(), "{report:?}");
    assert_eq!(tree.read_text("/a").await.unwrap(), "filled");
    assert_eq!(tree.read_text("/c").await.unwrap(), "");
    assert!(!place.has("/b"));
    mirror.refresh().await.unwrap();
    assert!(mirror.refresh().await.unwrap().is_empty());
}

#[tokio::test]
async fn directory_with_other_content_or_another_mirror_is_refused() {
    let (tree, place) = (tree_of(&[("/a", "one")]).await, Place::new());
    place.write("/precious", "mine");
    std::fs::set_permissions(place.directory(), std::fs::Permissions::from_mode(0o750)).unwrap();
    let kind = |opened: Result<Mirror>| opened.map(drop).map_err(|error| error.kind());
    assert_eq!(kind(Mirror::open(tree.clone(), None, place.directory(), still()).await), Err(ErrorKind::AlreadyExists));
    assert_eq!(place.read("/precious"), "mine");
    std::fs::remove_file(place.at("/precious")).unwrap();
    let mirror = open(&tree, &place, written_back()).await;
    assert_eq!(kind(Mirror::open(tree.clone(), None, place.directory(), written_back()).await), Err(ErrorKind::Conflict));
    assert_eq!(Mirror::clear_leftovers(place.parent.path()).await.unwrap(), 0, "it is alive");
    assert_eq!(place.read("/a"), "one");
    mirror.close().await.unwrap();
    open(&tree, &place, still()).await.close().await.unwrap();
    let mode = std::fs::metadata(place.directory()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o750, "it was not created for the mirror, and is as it was");
}

#[tokio::test]
async fn directory_within_the_mirrored_tree_is_refused() {
    let place = Place::new();
    std::fs::write(place.parent.path().join("a"), "one").unwrap();
    let tree = Arc::new(FilesystemBackend::open(place.parent.path(), FilesystemOptions::new()).unwrap());
    let opened = Mirror::open(tree, None, place.directory(), still()).await;
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(place.beside(), ["a"]);
}

#[tokio::test]
async fn kept_mirror_continues_with_its_bases() {
    let (tree, place) = (tree_of(&[("/a", "1\n2\n3\n4\n5\n"), ("/b", "x"), ("/c", "x"), ("/d/e", "x")]).await, Place::new());
    let mirror = open(&tree, &place, written_back().with_keep(true)).await;
    assert!(mirror.close().await.unwrap().kept);
    tree.write("/a", "tree\n2\n3\n4\n5\n").await.unwrap();
    tree.delete("/c").await.unwrap();
    place.write("/a", "1\n2\n3\n4\ndirectory\n");
    std::fs::remove_file(place.at("/b")).unwrap();
    std::fs::remove_dir_all(place.at("/d")).unwrap();
    let refused = Mirror::open(tree.clone(), None, place.directory(), still()).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Conflict, "edits would be overwritten");
    let mirror = open(&tree, &place, written_back()).await;
    assert!(mirror.first().conflicts.is_empty(), "{:?}", mirror.first());
    let files = tree_files(&*tree).await;
    assert_eq!(files, BTreeMap::from([("/a".to_owned(), "tree\n2\n3\n4\ndirectory\n".to_owned())]));
    assert_eq!(files, host_files(&place.directory()));
    assert!(!tree.exists("/d").await.unwrap());
}

/// Its edits are written back and its files removed where the directory is by now.
#[tokio::test]
async fn directory_that_took_the_name_of_a_mirror_is_left_alone() {
    let mode = |directory: &Path| std::fs::metadata(directory).unwrap().permissions().mode() & 0o777;
    let set_mode = |directory: &Path, mode| std::fs::set_permissions(directory, std::fs::Permissions::from_mode(mode)).unwrap();
    for (options, existed) in [(still(), true), (still(), false), (written_back(), true), (written_back(), false)] {
        let (tree, place) = (tree_of(&[("/a", "one")]).await, Place::new());
        if existed {
            std::fs::create_dir(place.directory()).unwrap();
            set_mode(&place.directory(), 0o750);
        }
        let mirror = open(&tree, &place, options).await;
        let moved = place.parent.path().join("moved");
        std::fs::rename(place.directory(), &moved).unwrap();
        std::fs::create_dir(place.directory()).unwrap();
        set_mode(&place.directory(), 0o700);
        tree.write("/b", "two").await.unwrap();
        mirror.refresh().await.unwrap();
        assert_eq!(std::fs::read_to_string(moved.join("b")).unwrap(), "two");
        assert!(host_files(&place.directory()).is_empty());
        mirror.close().await.unwrap();
        assert_eq!(mode(&place.directory()), 0o700);
        assert!(host_files(&moved).is_empty());
        if existed {
            assert_eq!(mode(&moved), 0o750);
        }
        assert_eq!(place.beside().into_iter().collect::<BTreeSet<_>>(), BTreeSet::from(["moved".to_owned(), "sandbox".to_owned()]));
    }
}

#[tokio::test]
async fn mirror_in_a_directory_that_took_the_name_of_a_mirrors_parent_is_left_alone() {
    let outer = tempfile::tempdir().unwrap();
    let (here, moved) = (outer.path().join("here"), outer.path().join("moved"));
    let one = tree_of(&[("/a", "one")]).await;
    let first = Mirror::open(one.clone(), None, here.join("sandbox"), written_back()).await.unwrap();
    std::fs::rename(&here, &moved).unwrap();
    let two = tree_of(&[("/b", "1\n2\n3\n4\n5\n")]).await;
    let second = Mirror::open(two.clone(), None, here.join("sandbox"), written_back()).await.unwrap();
    std::fs::write(moved.join("sandbox/a"), "edited").unwrap();
    first.close().await.unwrap();
    assert_eq!(one.read_text("/a").await.unwrap(), "edited");
    assert_eq!(std::fs::read_dir(&moved).unwrap().count(), 0);
    two.write("/b", "tree\n2\n3\n4\n5\n").await.unwrap();
    std::fs::write(here.join("sandbox/b"), "1\n2\n3\n4\ndirectory\n").unwrap();
    assert!(conflicts(&second.close().await.unwrap()).is_empty(), "its bases are still there");
    assert_eq!(two.read_text("/b").await.unwrap(), "tree\n2\n3\n4\ndirectory\n");
}

/// Hosts give the inode number of a removed directory to the next one.
#[tokio::test]
async fn directory_with_the_number_of_a_dead_mirrors_is_left_alone() {
    let (tree, place) = (tree_of(&[("/a", "one")]).await, Place::new());
    place.write("/precious", "mine");
    let meta = std::fs::metadata(place.directory()).unwrap();
    let private = place.parent.path().join(".sandbox.treehold-mirror");
    let mark = |born: &str| {
        let (device, inode) = (meta.dev(), meta.ino());
        let marker = format!(r#"{{"device": {device}, "inode": {inode}, {born} "write_back": false, "mode": null}}"#);
        std::fs::create_dir_all(&private).unwrap();
        std::fs::write(private.join("mirror.json"), marker).unwrap();
    };
    if meta.created().is_ok() {
        mark(r#""born": {"secs": 1, "nanos": 0},"#);
        let opened = Mirror::open(tree.clone(), None, place.directory(), still()).await;
        assert_eq!(opened.unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(Mirror::clear_leftovers(place.parent.path()).await.unwrap(), 1);
        assert_eq!((place.read("/precious").as_str(), place.beside()), ("mine", vec!["sandbox".to_owned()]));
    }
    mark("");
    assert_eq!(Mirror::clear_leftovers(place.parent.path()).await.unwrap(), 1);
    assert!(place.beside().is_empty(), "nothing says that it is another one");
}

#[tokio::test]
async fn mirror_of_a_directory_that_was_removed_ends_and_removes_nothing_from_the_tree() {
    for options in [still(), written_back()] {
        let (tree, place) = (tree_of(&[("/a", "one"), ("/d/b", "two")]).await, Place::new());
        let mirror = open(&tree, &place, options).await;
        std::fs::remove_dir_all(place.directory()).unwrap();
        mirror.close().await.unwrap();
        assert_eq!(tree_files(&*tree).await.len(), 2);
        assert!(place.beside().is_empty(), "{:?}", place.beside());
    }
}

/// Fails every operation while it is set.
#[derive(Debug, Clone, Default)]
struct Away(Arc<AtomicBool>);

impl Away {
    fn set(&self, is_away: bool) {
        self.0.store(is_away, Ordering::SeqCst);
    }
}

#[async_trait]
impl Layer for Away {
    fn name(&self) -> LayerName {
        LayerName::new("Away")
    }

    async fn around<T: Reply>(&self, _: Op<'_>, next: Next<'_, T>) -> Result<T> {
        match self.0.load(Ordering::SeqCst) {
            true => Err(Error::new(ErrorKind::Unavailable, "the tree is away")),
            false => next.run().await,
        }
    }
}

#[tokio::test]
async fn mirror_whose_close_fails_lives_on() {
    for options in [written_back(), still().with_keep(true)] {
        let (tree, place, away) = (tree_of(&[("/a", "one")]).await, Place::new(), Away::default());
        let (feed, news) = tokio::sync::mpsc::unbounded_channel();
        let news = futures::stream::unfold(news, async |mut news: tokio::sync::mpsc::UnboundedReceiver<TreeNews>| {
            news.recv().await.map(|heard| (heard, news))
        });
        let (observed, mut events) = tokio::sync::mpsc::unbounded_channel();
        let options = options.with_observer(move |event| drop(observed.send(event.clone())));
        let layered = Arc::new(Layered::new(away.clone(), tree.clone()));
        let mirror = Mirror::open(layered, Some(Box::pin(news)), place.directory(), options).await.unwrap();
        place.write("/edited", "mine");
        away.set(true);
        assert_eq!(mirror.close().await.unwrap_err().kind(), ErrorKind::Unavailable);
        let other = Mirror::open(tree.clone(), None, place.directory(), written_back()).await;
        assert_eq!(other.unwrap_err().kind(), ErrorKind::Conflict, "it is still locked");
        away.set(false);
        tree.write("/b", "two").await.unwrap();
        mirror.refresh().await.unwrap();
        assert_eq!(place.read("/b"), "two");
        tree.write("/c", "three").await.unwrap();
        feed.send(TreeNews::Changed(path("/c"))).unwrap();
        event(&mut events, MirrorAction::Mirrored, "/c").await;
        let kept = mirror.close().await.unwrap().kept;
        assert_eq!(tree.exists("/edited").await.unwrap(), !kept);
        assert_eq!(place.directory().exists(), kept);
        assert!(mirror.close().await.unwrap().is_empty(), "it is closed");
    }
}

/// Without its bases, what is missing in the directory is missing because the mirror began to remove its files.
#[tokio::test]
async fn files_missing_after_a_failed_removal_stay_in_the_tree() {
    let (tree, place) = (tree_of(&[("/a", "one"), ("/d/b", "two")]).await, Place::new());
    let mirror = open(&tree, &place, written_back()).await;
    let stuck = place.parent.path().join(".sandbox.treehold-mirror/bases/stuck");
    std::fs::create_dir(&stuck).unwrap();
    mirror.close().await.unwrap_err();
    std::fs::remove_dir_all(place.at("/d")).unwrap();
    mirror.refresh().await.unwrap();
    assert_eq!((place.read("/d/b").as_str(), tree_files(&*tree).await.len()), ("two", 2));
    std::fs::remove_dir(stuck).unwrap();
    mirror.close().await.unwrap();
    assert!(place.beside().is_empty(), "{:?}", place.beside());
}

#[tokio::test]
async fn kept_files_are_left_until_a_mirror_writes_them_back() {
    let (tree, place) = (tree_of(&[("/a", "one")]).await, Place::new());
    let parent = place.parent.path();
    let small = written_back().with_file_bytes_max(8);
    let mirror = open(&tree, &place, small.clone()).await;
    place.write("/large", "123456789");
    assert!(mirror.close().await.unwrap().kept);
    assert_eq!(Mirror::clear_leftovers(parent).await.unwrap(), 0);
    assert_eq!(place.read("/large"), "123456789");
    // A mirror that continues may die too.
    let mirror = open(&tree, &place, small).await;
    let marker = std::fs::read_to_string(parent.join(".sandbox.treehold-mirror/mirror.json")).unwrap();
    assert!(marker.contains(r#""kept":true"#), "{marker}");
    mirror.close().await.unwrap();
    assert!(!open(&tree, &place, written_back()).await.close().await.unwrap().kept);
    assert_eq!((tree.read_text("/large").await.unwrap().as_str(), place.beside().len()), ("123456789", 0));

    open(&tree, &place, still().with_keep(true)).await.close().await.unwrap();
    assert_eq!(Mirror::clear_leftovers(parent).await.unwrap(), 0, "they were to be kept");
    std::fs::remove_dir_all(place.directory()).unwrap();
    assert_eq!(Mirror::clear_leftovers(parent).await.unwrap(), 1);
    assert!(place.beside().is_empty(), "{:?}", place.beside());
}

#[tokio::test]
async fn edits_of_a_dropped_mirror_that_cannot_be_written_back_are_kept() {
    let (tree, place, away) = (tree_of(&[("/a", "one")]).await, Place::new(), Away::default());
    let layered = Arc::new(Layered::new(away.clone(), tree.clone()));
    let mirror = Mirror::open(layered, None, place.directory(), written_back()).await.unwrap();
    place.write("/a", "edited");
    away.set(true);
    drop(mirror);
    let marker = place.parent.path().join(".sandbox.treehold-mirror/mirror.json");
    while !std::fs::read_to_string(&marker).unwrap().contains(r#""kept":true"#) {
        tokio::task::yield_now().await;
    }
    assert_eq!(Mirror::clear_leftovers(place.parent.path()).await.unwrap(), 0);
    assert_eq!(place.read("/a"), "edited");
}

#[test]
fn edits_of_a_mirror_dropped_without_a_runtime_are_kept() {
    let place = Place::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mirror = runtime.block_on(async {
        let tree = tree_of(&[("/a", "one")]).await;
        open(&tree, &place, written_back()).await
    });
    place.write("/a", "edited");
    drop(runtime);
    drop(mirror);
    let cleared = tokio::runtime::Runtime::new().unwrap().block_on(Mirror::clear_leftovers(place.parent.path()));
    assert_eq!((cleared.unwrap(), place.read("/a").as_str()), (0, "edited"));
}

#[tokio::test]
async fn dropped_mirror_is_removed_after_its_last_edits_are_written_back() {
    let (tree, place) = (tree_of(&[("/a", "one")]).await, Place::new());
    let mirror = open(&tree, &place, written_back()).await;
    place.write("/a", "edited");
    drop(mirror);
    while !place.beside().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(tree.read_text("/a").await.unwrap(), "edited");
}

#[test]
fn mirror_dropped_without_a_runtime_is_removed() {
    let place = Place::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mirror = runtime.block_on(async {
        let tree = tree_of(&[("/a", "one")]).await;
        open(&tree, &place, still()).await
    });
    assert_eq!(place.read("/a"), "one");
    drop(runtime);
    drop(mirror);
    assert!(place.beside().is_empty());
}

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

/// Options of a mirror that takes over a directory with files.
fn existing() -> MirrorOptions {
    written_back().with_keep(true).with_conflicts(MirrorConflicts::Copies).with_existing(true)
}

#[tokio::test]
async fn existing_directory_is_taken_over_and_stays() {
    let (tree, place) = (tree_of(&[("/both", "same\n"), ("/tree", "t\n")]).await, Place::new());
    place.write("/both", "same\n");
    place.write("/d/host", "h\n");
    let mirror = open(&tree, &place, existing()).await;
    assert_eq!((mirror.first().mirrored, mirror.first().written_back), (1, 2), "{:?}", mirror.first());
    assert_eq!(tree_files(&*tree).await, host_files(&place.directory()));
    assert!(mirror.close().await.unwrap().kept);
    // Later runs know what was equal, so a removal is one.
    std::fs::remove_file(place.at("/both")).unwrap();
    tree.write("/tree", "t2\n").await.unwrap();
    tree.delete("/d/host").await.unwrap();
    let mirror = open(&tree, &place, existing()).await;
    mirror.close().await.unwrap();
    let files = host_files(&place.directory());
    assert_eq!(files, BTreeMap::from([("/tree".to_owned(), "t2\n".to_owned())]));
    assert_eq!(tree_files(&*tree).await, files);
}

#[tokio::test]
async fn existing_directory_needs_options_that_lose_nothing() {
    let place = Place::new();
    place.write("/mine", "m");
    let tree = tree_of(&[("/a", "1")]).await;
    for options in [
        existing().with_keep(false),
        existing().with_write_back(false),
        existing().with_conflicts(MirrorConflicts::Tree),
        existing().with_conflicts(MirrorConflicts::Markers),
    ] {
        let error = Mirror::open(tree.clone(), None, place.directory(), options).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(place.read("/mine"), "m");
}

#[tokio::test]
async fn existing_directory_survives_a_failed_opening_and_a_kept_read_only_mirror() {
    let place = Place::new();
    place.write("/mine", "m");
    let tree = tree_of(&[("/a", "1")]).await;
    let error = Mirror::open(tree.clone(), None, place.directory(), existing().with_nodes_max(0)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert_eq!(place.read("/mine"), "m");
    assert_eq!(Mirror::clear_leftovers(place.parent.path()).await.unwrap(), 0);
    assert_eq!(place.read("/mine"), "m");

    // What a read-only mirror left may have been edited since.
    let place = Place::new();
    open(&tree, &place, still().with_keep(true)).await.close().await.unwrap();
    let at = place.at("/a");
    std::fs::set_permissions(place.directory(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o644)).unwrap();
    place.write("/a", "edited");
    place.write("/b", "new");
    let mirror = open(&tree, &place, existing()).await;
    mirror.close().await.unwrap();
    let kept: BTreeSet<String> = host_files(&place.directory()).into_values().collect();
    assert_eq!(kept, BTreeSet::from(["1".to_owned(), "edited".to_owned(), "new".to_owned()]));
    assert_eq!(tree_files(&*tree).await, host_files(&place.directory()));
}

/// Every pair of nodes that both sides may have at a path: afterwards each content that the directory had is in it.
#[tokio::test]
async fn nothing_of_an_existing_directory_is_lost() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Node {
        Text(&'static str),
        Binary(&'static [u8]),
        Directory,
        Link,
    }
    let kinds = [Node::Text("one\n"), Node::Text("two\nlines\n"), Node::Binary(b"\0a"), Node::Binary(b"\0b"), Node::Directory, Node::Link];
    for name in ["a.md", ".a", "a", "a.b.c", &"n".repeat(255), &format!("{}.md", "é".repeat(126))] {
        for of_tree in kinds {
            for of_host in kinds {
                if of_tree == Node::Link {
                    continue;
                }
                let (tree, place) = (Arc::new(StateBackend::new()), Place::new());
                let at = format!("/{name}");
                match of_tree {
                    Node::Text(text) => drop(tree.write(&at, text).await.unwrap()),
                    Node::Binary(bytes) => drop(tree.write(&at, bytes.to_vec()).await.unwrap()),
                    _ => drop(tree.write(&format!("{at}/inner"), "tree\n").await.unwrap()),
                }
                place.write("/other", "o");
                let mut contents = BTreeSet::from([b"o".to_vec()]);
                match of_host {
                    Node::Text(text) => place.write(&at, text),
                    Node::Binary(bytes) => place.write(&at, bytes),
                    Node::Directory => place.write(&format!("{at}/host"), "host\n"),
                    Node::Link => symlink("other", place.at(&at)).unwrap(),
                }
                match of_host {
                    Node::Text(text) => drop(contents.insert(text.as_bytes().to_vec())),
                    Node::Binary(bytes) => drop(contents.insert(bytes.to_vec())),
                    Node::Directory => drop(contents.insert(b"host\n".to_vec())),
                    Node::Link => {}
                }
                for _ in 0..2 {
                    let mirror = open(&tree, &place, existing()).await;
                    mirror.close().await.unwrap();
                    let there: BTreeSet<Vec<u8>> = walk_bytes(&place.directory());
                    assert!(there.is_superset(&contents), "{name} {of_tree:?} {of_host:?}: {there:?}");
                    if of_host == Node::Link {
                        assert!(std::fs::symlink_metadata(place.at(&at)).unwrap().is_symlink());
                    }
                }
                let is_settled = of_host != Node::Link && (of_tree == Node::Directory) == (of_host == Node::Directory);
                if is_settled {
                    assert_eq!(tree_files(&*tree).await, host_files(&place.directory()), "{name} {of_tree:?} {of_host:?}");
                }
            }
        }
    }
}

/// Whatever has the name that a copy would get: the directory's file is in a copy beside it, or stays where it is.
#[tokio::test]
async fn copy_of_a_conflict_replaces_nothing() {
    let (mine, theirs) = (b"\0mine".as_slice(), b"\0theirs".as_slice());
    let hash = blake3::hash(mine).to_hex();
    let names = [format!("/a.conflict-{}.md", &hash.as_str()[..8]), format!("/a.conflict-{hash}.md")];
    for is_each_taken in [false, true] {
        for kind in ["same", "other", "directory", "link"] {
            let (tree, place) = (Arc::new(StateBackend::new()), Place::new());
            tree.write("/a.md", theirs.to_vec()).await.unwrap();
            place.write("/a.md", mine);
            for name in &names[..1 + usize::from(is_each_taken)] {
                match kind {
                    "same" => place.write(name, mine),
                    "other" => place.write(name, "other"),
                    "directory" => place.write(&format!("{name}/inner"), "inner"),
                    _ => symlink("a.md", place.at(name)).unwrap(),
                }
            }
            let mirror = open(&tree, &place, existing()).await;
            let is_refused = is_each_taken && kind != "same";
            assert_eq!(failures(mirror.first()).contains(&("/a.md", "unavailable")), is_refused, "{kind} {is_each_taken}");
            mirror.close().await.unwrap();
            let contents = walk_bytes(&place.directory());
            assert!(contents.contains(mine), "{kind} {is_each_taken}: {contents:?}");
            assert_eq!(std::fs::read(place.at("/a.md")).unwrap(), if is_refused { mine } else { theirs }, "{kind} {is_each_taken}");
            let kept = match kind {
                "other" => contents.contains(b"other".as_slice()),
                "directory" => contents.contains(b"inner".as_slice()),
                "link" => std::fs::symlink_metadata(place.at(&names[0])).unwrap().is_symlink(),
                _ => true,
            };
            assert!(kept, "{kind} {is_each_taken}: {contents:?}");
        }
    }
}

/// The contents of all files beneath a directory.
fn walk_bytes(directory: &Path) -> BTreeSet<Vec<u8>> {
    let mut contents = BTreeSet::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => contents.extend(walk_bytes(&entry.path())),
            kind if kind.is_file() => drop(contents.insert(std::fs::read(entry.path()).unwrap())),
            _ => {}
        }
    }
    contents
}

#[tokio::test]
async fn what_a_rule_refuses_stays_in_an_existing_directory() {
    let place = Place::new();
    for file in ["/locked/new", "/locked/known", "/open"] {
        place.write(file, format!("host {file}"));
    }
    let state = tree_of(&[("/locked/known", "tree")]).await;
    let tree: Arc<dyn Backend> = Arc::new(Permissions::new([Rule::deny(Operations::WRITE, ["/locked"]).unwrap()], state.clone()));
    let mirror = Mirror::open(tree.clone(), None, place.directory(), existing()).await.unwrap();
    assert!(mirror.first().failures.iter().any(|event| event.error.as_ref().unwrap().code == "permission_denied"));
    mirror.close().await.unwrap();
    let contents = walk_bytes(&place.directory());
    for file in ["/locked/new", "/locked/known", "/open"] {
        assert!(contents.contains(format!("host {file}").as_bytes()), "{file}: {contents:?}");
    }
    assert_eq!(tree_files(&*state).await, BTreeMap::from([("/locked/known".into(), "tree".into()), ("/open".into(), "host /open".into())]));
}
