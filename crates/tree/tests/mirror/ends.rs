//! Mirrors that are closed, dropped or kept, and ends that fail.

use super::{Place, event, host_files, open, path, still, tree_files, tree_of, written_back};
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Op;
use treehold_tree::backend::{BackendExt, TreeNews};
use treehold_tree::layer::{Layer, LayerName, Layered, Next, Reply};
use treehold_tree::mirror::{Mirror, MirrorAction};

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
