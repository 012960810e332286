//! Changes of one side reach the other, and conflicts between both.

use super::{Place, conflicts, event, host_files, open, path, still, tree_files, tree_of, written_back};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::ops::StatOptions;
use treehold_tree::backend::{Backend, BackendExt, StateBackend, TreeNews};
use treehold_tree::checkpoint::MergeConflictKind;
use treehold_tree::mirror::{Mirror, MirrorAction, MirrorConflicts, MirrorOptions, MirrorSide};

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
