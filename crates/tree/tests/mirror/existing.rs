//! Directories with files of their own, which a mirror takes over.

use super::{Place, failures, host_files, open, still, tree_files, tree_of, written_back};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use treehold_core::error::ErrorKind;
use treehold_tree::backend::{Backend, BackendExt, StateBackend};
use treehold_tree::layer::{Operations, Permissions, Rule};
use treehold_tree::mirror::{Mirror, MirrorConflicts, MirrorOptions};

/// Options of a mirror that takes over a directory with files.
pub(super) fn existing() -> MirrorOptions {
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
