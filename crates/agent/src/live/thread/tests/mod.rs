//! Saves whose answers are lost, and states that are unloaded.

mod lossy;
mod outbox;
mod replaced;

pub(crate) use lossy::Lossy;

use super::lost::Unsettled;
use super::{LiveThread, ThreadTree};
use crate::live::ThreadDurability;
use jiff::Timestamp;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use treehold_core::error::{ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_core::scope::Scope;
use treehold_store::MemoryStore;
use treehold_tree::backend::BackendExt;
use treehold_tree::checkpoint::{At, CheckpointId, Checkpointer, PutOptions, Reviewer, StoreCheckpointer};

fn thread(store: &Arc<Lossy>) -> (Arc<LiveThread>, ThreadTree) {
    let checkpointer = Arc::new(StoreCheckpointer::new(store.clone()));
    let live = Arc::new(LiveThread::new(Scope::new().with_thread("t"), Some(checkpointer), ThreadDurability::Exit));
    (live.clone(), ThreadTree(live))
}

async fn save(live: &Arc<LiveThread>) -> Result<bool> {
    live.save(PutOptions::new()).await.map(|saved| saved.is_some())
}

/// Regression: the next save mistook the session's own checkpoint for another writer's, and was refused forever.
#[tokio::test]
async fn save_with_lost_answer_is_found_again() {
    let store = Arc::new(Lossy::losing(1));
    let (live, tree) = thread(&store);
    tree.write("/a", "one").await.expect("written");
    assert!(save(&live).await.expect("the head is read and is our own save"));
    assert!(!save(&live).await.expect("nothing is left to save"));
    tree.write("/a", "two").await.expect("written");
    assert!(save(&live).await.expect("the next checkpoint follows it"));
    assert_eq!(thread(&store).1.read_text("/a").await.expect("as saved"), "two");
}

#[tokio::test]
async fn save_with_lost_answer_is_found_by_the_next_save_if_reads_fail() {
    let store = Arc::new(Lossy::losing(1));
    let (live, tree) = thread(&store);
    tree.write("/a", "one").await.expect("written");
    store.reads.store(2, Ordering::Relaxed);
    assert_eq!(save(&live).await.expect_err("the outcome is unknown").kind(), ErrorKind::Unavailable);
    tree.write("/a", "two").await.expect("written");
    assert!(save(&live).await.expect("the earlier save is recognised as our own"));
    assert_eq!(thread(&store).1.read_text("/a").await.expect("as saved"), "two");
}

/// Regression: the save was thought to have had no effect, and the work was repeated.
#[tokio::test]
async fn lost_save_is_found_beneath_saves_of_others_even_after_failed_reads() {
    for reads in 0..6 {
        let store = Arc::new(Lossy::default());
        let ((live, tree), (other, other_tree)) = (thread(&store), thread(&store));
        tree.write("/a", "one").await.expect("written");
        let failing = store.clone();
        store.lose_commit(async move {
            for number in 0..3 {
                other_tree.write("/b", number.to_string()).await.expect("written");
                assert!(save(&other).await.expect("the next checkpoint follows it"));
            }
            failing.reads.store(reads, Ordering::Relaxed);
        });
        let mut saved = save(&live).await;
        while let Err(error) = saved {
            assert!(error.kind() == ErrorKind::Unavailable && error.may_have_effect(), "{error:?}");
            saved = save(&live).await;
        }
        assert!(!save(&live).await.expect("nothing is left to save"), "{reads}");
        // The next save must not mix with what the others saved.
        tree.write("/a", "two").await.expect("written");
        assert_eq!(save(&live).await.expect_err("others saved after it").kind(), ErrorKind::Conflict);
        let now = thread(&store).1;
        assert_eq!(now.read_text("/a").await.expect("read") + &now.read_text("/b").await.expect("read"), "one2");
    }
}

#[tokio::test]
async fn pruned_lost_save_is_found_through_its_child() {
    for kept in [1, 2] {
        let store = Arc::new(Lossy::default());
        let ((live, tree), (other, other_tree)) = (thread(&store), thread(&store));
        tree.write("/a", "one").await.expect("written");
        let (failing, pruned) = (store.clone(), store.clone());
        store.lose_commit(async move {
            for number in 0..2 {
                other_tree.write("/b", number.to_string()).await.expect("written");
                assert!(save(&other).await.expect("the next checkpoint follows it"));
            }
            let checkpointer = StoreCheckpointer::new(pruned);
            let options = treehold_tree::checkpoint::PruneOptions::new().with_keep_last(kept);
            checkpointer.prune(&Scope::new().with_thread("t"), &options).await.expect("pruned");
            failing.reads.store(0, Ordering::Relaxed);
        });
        let saved = save(&live).await;
        match kept {
            2 => assert!(!saved.expect("the child of the lost checkpoint shows that it existed"), "the checkpoint itself is gone"),
            // With no trace left, the error must not claim that the save had no effect.
            _ => assert!(saved.expect_err("the outcome is unknown").may_have_effect()),
        }
    }
}

async fn text_at(store: &Arc<MemoryStore>, thread: &str) -> Option<String> {
    let checkpointer = StoreCheckpointer::new(store.clone());
    let opened = checkpointer.open(&Scope::new().with_thread(thread), At::Latest).await.expect("read")?;
    opened.state.read_text("/a").await.ok()
}

fn reviewer(tree: &ThreadTree) -> Reviewer {
    Reviewer::new(Arc::new(tree.clone()), vec![treehold_core::path::VfsPathBuf::root()])
}

#[tokio::test]
async fn save_of_another_writer_is_never_mistaken_for_the_lost_save() {
    let store = Arc::new(Lossy::default());
    let ((live, tree), (other, other_tree)) = (thread(&store), thread(&store));
    tree.write("/a", "mine").await.expect("written");
    other_tree.write("/a", "his!").await.expect("written");
    assert!(save(&other).await.expect("the first"));
    let lost = CheckpointId::new(Timestamp::now(), None);
    live.saved.lock().await.unsettled.push(Unsettled { id: lost, version: Some(Version::new(1)), held_end: 0 });
    assert_eq!(save(&live).await.expect_err("the second").kind(), ErrorKind::Conflict);
    assert_eq!(thread(&store).1.read_text("/a").await.expect("as saved"), "his!");
}

#[tokio::test]
async fn save_as_with_lost_answer_creates_the_thread() {
    let store = Arc::new(Lossy::losing(1));
    let (live, tree) = thread(&store);
    tree.write("/a", "one").await.expect("written");
    live.save_as("u").await.expect("the head is read again and is our own save");
    assert_eq!(live.save_as("u").await.expect_err("it exists").kind(), ErrorKind::AlreadyExists);
}

#[tokio::test]
async fn unloaded_state_is_saved_and_opens_again() {
    let store = Arc::new(Lossy::default());
    let (live, tree) = thread(&store);
    tree.write("/a", "one").await.expect("written");
    assert!(live.put_down().await.expect("saved"));
    assert!(live.state.read().is_none());
    assert_eq!(tree.read_text("/a").await.expect("opened again"), "one");
    tree.write("/b", "two").await.expect("written");
    store.commits.store(1, Ordering::Relaxed);
    store.reads.store(2, Ordering::Relaxed);
    assert!(live.put_down().await.is_err(), "it cannot be saved");
    assert_eq!(tree.read_text("/b").await.expect("kept"), "two");
}

#[tokio::test]
async fn failing_store_read_is_an_error_not_an_empty_thread() {
    let store = Arc::new(Lossy::default());
    let (live, tree) = thread(&store);
    tree.write("/a", "one").await.expect("written");
    save(&live).await.expect("saved");
    store.reads.store(1, Ordering::Relaxed);
    let (_, again) = thread(&store);
    assert_eq!(again.exists("/a").await.expect_err("the store fails").kind(), ErrorKind::Unavailable);
    assert!(again.exists("/a").await.expect("the next call tries again"));
}
