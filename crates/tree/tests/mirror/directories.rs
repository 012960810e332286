//! Directories that are not the mirror's: refused when a mirror opens, and left alone when it ends.

use super::{Place, conflicts, host_files, open, still, tree_files, tree_of, written_back};
use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use treehold_core::error::{ErrorKind, Result};
use treehold_tree::backend::{BackendExt, FilesystemBackend, FilesystemOptions};
use treehold_tree::mirror::Mirror;

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
