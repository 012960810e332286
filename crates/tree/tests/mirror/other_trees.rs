//! Directories that a mirror of another tree left, and trees that were emptied meanwhile: neither side loses what the other lacks.

use super::existing::existing;
use super::{Place, host_files, path, tree_files, tree_of, written_back};
use std::collections::BTreeMap;
use std::sync::Arc;
use treehold_core::error::{ErrorKind, Result};
use treehold_tree::backend::{Backend, BackendExt, StateBackend, Subtree};
use treehold_tree::mirror::{Mirror, MirrorOptions, MirrorReport};

const FILES: [(&str, &str); 3] = [("/a", "one\n"), ("/b", "two\n"), ("/d/c", "three\n")];

/// The ids of the first tree and of another. Earlier versions wrote none.
const OTHER: [(Option<&str>, Option<&str>); 3] = [(Some("one"), Some("two")), (None, Some("two")), (Some("one"), None)];

/// The ids of a tree that is mirrored twice.
const SAME: [(Option<&str>, Option<&str>); 2] = [(Some("one"), Some("one")), (None, None)];

fn files() -> BTreeMap<String, String> {
    FILES.iter().map(|(path, content)| (path.to_string(), content.to_string())).collect()
}

/// Options of a mirror that stays: one that takes over a directory with files, or one that needs an empty one.
fn options(is_existing: bool, id: Option<&str>) -> MirrorOptions {
    let options = if is_existing { existing() } else { written_back().with_keep(true) };
    match id {
        Some(id) => options.with_tree_id(id),
        None => options,
    }
}

/// Mirrors a tree once. Returns what was done at first.
async fn run(tree: Arc<dyn Backend>, place: &Place, options: MirrorOptions) -> Result<MirrorReport> {
    let mirror = Mirror::open(tree, None, place.directory(), options).await?;
    mirror.close().await?;
    Ok(mirror.first().clone())
}

#[tokio::test]
async fn directory_keeps_its_files_if_the_tree_is_another_or_was_emptied() {
    for (first, second) in OTHER.into_iter().chain(SAME) {
        for is_existing in [true, false] {
            let case = format!("{first:?} {second:?} {is_existing}");
            let (place, empty) = (Place::new(), Arc::new(StateBackend::new()));
            empty.create_dir("/d").await.unwrap();
            run(tree_of(&FILES).await, &place, options(is_existing, first)).await.unwrap();
            let again = run(empty.clone(), &place, options(is_existing, second)).await;
            assert_eq!(host_files(&place.directory()), files(), "{case}");
            if is_existing || first == second {
                let report = again.unwrap();
                assert!(report.conflicts.is_empty() && report.failures.is_empty(), "{case}: {report:?}");
                assert_eq!(tree_files(&*empty).await, files(), "{case}");
            } else {
                assert_eq!(again.unwrap_err().kind(), ErrorKind::AlreadyExists, "{case}");
                assert!(tree_files(&*empty).await.is_empty(), "{case}");
            }
        }
    }
}

#[tokio::test]
async fn tree_keeps_its_files_if_the_directory_was_mirrored_from_another() {
    for (first, second) in OTHER {
        for is_existing in [true, false] {
            let case = format!("{first:?} {second:?} {is_existing}");
            let (place, one, two) = (Place::new(), tree_of(&FILES).await, tree_of(&FILES).await);
            run(one.clone(), &place, options(is_existing, first)).await.unwrap();
            std::fs::remove_file(place.at("/a")).unwrap();
            let again = run(two.clone(), &place, options(is_existing, second)).await;
            assert_eq!(tree_files(&*two).await, files(), "{case}");
            if is_existing {
                assert_eq!(again.unwrap().mirrored, 1, "{case}");
                assert_eq!(host_files(&place.directory()), files(), "{case}");
            } else {
                assert_eq!(again.unwrap_err().kind(), ErrorKind::AlreadyExists, "{case}");
                // What was refused has not cost the earlier mirror its bases.
                run(one.clone(), &place, options(is_existing, first)).await.unwrap();
                assert!(!one.exists("/a").await.unwrap(), "{case}");
            }
        }
    }
}

#[tokio::test]
async fn later_mirror_of_the_same_tree_carries_removals_over() {
    for (first, second) in SAME {
        for is_existing in [true, false] {
            let (place, tree) = (Place::new(), tree_of(&FILES).await);
            run(tree.clone(), &place, options(is_existing, first)).await.unwrap();
            std::fs::remove_file(place.at("/a")).unwrap();
            tree.delete("/d/c").await.unwrap();
            run(tree.clone(), &place, options(is_existing, second)).await.unwrap();
            let left = BTreeMap::from([("/b".to_owned(), "two\n".to_owned())]);
            assert_eq!((tree_files(&*tree).await, host_files(&place.directory())), (left.clone(), left), "{first:?} {is_existing}");
        }
    }
}

#[tokio::test]
async fn directory_of_one_path_is_not_emptied_by_a_mirror_of_another() {
    let (tree, place) = (tree_of(&[("/x/a", "one\n")]).await, Place::new());
    tree.create_dir("/y").await.unwrap();
    for at in ["/x", "/y", "/x"] {
        let part = Arc::new(Subtree::new(tree.clone(), path(at)));
        run(part, &place, existing().with_tree_id(at)).await.unwrap();
        assert_eq!(place.read("/a"), "one\n", "{at}");
    }
    let each = ["/x/a", "/y/a"].map(|at| (at.to_owned(), "one\n".to_owned()));
    assert_eq!(tree_files(&*tree).await, BTreeMap::from(each));
}

/// Regression: an ordinary mirror that continued one with existing files removed them at its end, also what the tree refuses.
#[tokio::test]
async fn directory_with_existing_files_stays_whatever_mirror_follows() {
    let (tree, place) = (tree_of(&FILES).await, Place::new());
    place.write("/.git/config", "mine");
    place.write("/mine", "m");
    run(tree.clone(), &place, existing()).await.unwrap();
    let before = host_files(&place.directory());
    let mirror = Mirror::open(tree.clone(), None, place.directory(), written_back()).await.unwrap();
    assert!(mirror.close().await.unwrap().kept);
    assert_eq!(host_files(&place.directory()), before);
    // A directory that was empty is given back as it was.
    let place = Place::new();
    for keep in [true, false] {
        run(tree.clone(), &place, written_back().with_keep(keep)).await.unwrap();
        assert_eq!(place.directory().exists(), keep);
    }
}
