//! Files that are not mirrored and changes that are not written back: protected, denied, unrepresentable, too large or empty.

use super::{Place, failures, host_files, open, still, tree_files, tree_of, written_back};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use treehold_core::error::ErrorKind;
use treehold_core::path::VfsPath;
use treehold_tree::backend::{BackendExt, StateBackend};
use treehold_tree::layer::{Operations, Permissions, Protections, RUNS_CODE, Rule};
use treehold_tree::mirror::{Mirror, MirrorAction};

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
async fn name_that_the_host_cannot_hold_is_reported_and_the_rest_is_mirrored() {
    let reserved = "/.treehold-0123456789abcdef0123456789abcdef.tmp";
    let (tree, place) = (tree_of(&[("/a", "one"), (reserved, "two")]).await, Place::new());
    let mirror = open(&tree, &place, still()).await;
    assert_eq!(failures(mirror.first()), [(reserved, "invalid_path")]);
    assert_eq!(place.read("/a"), "one");
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
