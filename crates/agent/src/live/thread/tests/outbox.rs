//! Rows that commit with a thread's save.

use super::{Lossy, save, thread};
use crate::live::{LiveThread, ThreadDurability, ThreadTree};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use treehold_core::error::ErrorKind;
use treehold_core::ops::{ApplyOptions, Change, Edit, WriteMode};
use treehold_core::path::VfsPathBuf;
use treehold_core::scope::Scope;
use treehold_store::{BatchWrite, Delivery, MemoryStore, Namespace, Outbox, Receipt, ScanOptions, Store};
use treehold_tree::backend::{Backend, BackendExt};
use treehold_tree::checkpoint::{PutOptions, partition_of};

fn log() -> Namespace {
    partition_of(&Scope::new()).and_then(|own| own.namespace(["outbox", "log"])).expect("a namespace")
}

/// Returns an outbox with an entry that appends a row.
fn outbox(store: &Arc<dyn Store>) -> (Outbox, Receipt) {
    let append = BatchWrite::Append { namespace: log(), meta: Default::default(), value: "row".into(), time_to_live: None };
    let mut outbox = Outbox::new();
    let receipt = outbox.push_rows(store.clone(), vec![append]);
    (outbox, receipt)
}

/// Writes a file with a row.
async fn write(tree: &ThreadTree, store: &Arc<dyn Store>, content: &'static str) -> Receipt {
    let (outbox, receipt) = outbox(store);
    let path = VfsPathBuf::parse("/a").expect("a path");
    let change = Change::Write { path, content: content.into(), mode: WriteMode::Overwrite };
    tree.apply(&[change], &ApplyOptions::new().with_extension(outbox)).await.expect("written");
    receipt
}

async fn rows(store: &Arc<dyn Store>) -> usize {
    store.scan(&log(), ScanOptions::new()).await.expect("scanned").entries.len()
}

fn opened() -> (Arc<Lossy>, Arc<dyn Store>, Arc<LiveThread>, ThreadTree) {
    let lossy = Arc::new(Lossy::default());
    let checkpointer = Arc::new(treehold_tree::checkpoint::StoreCheckpointer::new(lossy.clone()));
    let scope = Scope::new().with_thread("t");
    // Entries compare the store by its handle, so both must have one address.
    let live = Arc::new(LiveThread::new(scope, Some(checkpointer), ThreadDurability::Exit));
    (lossy.clone(), lossy, live.clone(), ThreadTree(live))
}

#[tokio::test]
async fn rows_of_state_changes_commit_with_the_save_once() {
    let (_, store, live, tree) = opened();
    let receipts = [write(&tree, &store, "one").await, write(&tree, &store, "two").await];
    assert_eq!((receipts.each_ref().map(Receipt::delivery), rows(&store).await), ([Delivery::Held; 2], 0));
    assert!(save(&live).await.expect("saved"));
    assert_eq!((receipts.each_ref().map(Receipt::delivery), rows(&store).await), ([Delivery::Committed; 2], 2));
    assert!(!save(&live).await.expect("nothing is left"));
    assert_eq!(rows(&store).await, 2);
}

#[tokio::test]
async fn rows_of_a_refused_change_and_of_another_store_are_ignored() {
    let (_, store, live, tree) = opened();
    let elsewhere: Arc<dyn Store> = Arc::new(MemoryStore::new());
    assert_eq!(write(&tree, &elsewhere, "one").await.delivery(), Delivery::Ignored);
    let (outbox, receipt) = outbox(&store);
    let edit = Change::Edit { path: VfsPathBuf::parse("/a").expect("a path"), edits: vec![Edit::new("missing", "")], expect: None };
    let refused = tree.apply(&[edit], &ApplyOptions::new().with_extension(outbox)).await;
    assert_eq!((refused.expect_err("no match").kind(), receipt.delivery()), (ErrorKind::NoMatch, Delivery::Ignored));
    save(&live).await.expect("saved");
    assert_eq!((rows(&store).await, rows(&elsewhere).await), (0, 0));
}

#[tokio::test]
async fn rows_of_a_change_that_finds_everything_done_commit_with_the_next_save() {
    let (_, store, live, tree) = opened();
    tree.write("/a", "same").await.expect("written");
    save(&live).await.expect("saved");
    let (outbox, receipt) = outbox(&store);
    let edit = Change::Edit { path: VfsPathBuf::parse("/a").expect("a path"), edits: vec![Edit::new("same", "same")], expect: None };
    tree.apply(&[edit], &ApplyOptions::new().with_extension(outbox)).await.expect("nothing to change");
    assert!(live.put_down().await.is_ok());
    assert_eq!((receipt.delivery(), rows(&store).await), (Delivery::Committed, 1));
}

#[tokio::test]
async fn rows_of_changes_that_others_prevented_are_dropped_with_them() {
    let (lossy, store, live, tree) = opened();
    let receipt = write(&tree, &store, "mine").await;
    let (other, other_tree) = thread(&lossy);
    other_tree.write("/a", "theirs").await.expect("written");
    save(&other).await.expect("saved first");
    assert_eq!(save(&live).await.expect_err("refused").kind(), ErrorKind::Conflict);
    assert_eq!((receipt.delivery(), rows(&store).await), (Delivery::Held, 0));
    live.reload().await.expect("read again");
    assert_eq!(receipt.delivery(), Delivery::Dropped);
    save(&live).await.expect("nothing is left");
    assert_eq!(rows(&store).await, 0);
}

/// The answer of the save is lost, and so are some of the reads that look for it.
#[tokio::test]
async fn rows_commit_once_when_the_answer_of_the_save_is_lost() {
    for commits in 1..4 {
        for reads in 0..4 {
            let (lossy, store, live, tree) = opened();
            let receipt = write(&tree, &store, "one").await;
            lossy.commits.store(commits, Ordering::Relaxed);
            lossy.reads.store(reads, Ordering::Relaxed);
            let ended = save(&live).await;
            lossy.lose(0);
            if ended.is_err() {
                assert_eq!(receipt.delivery(), Delivery::Held, "{commits} {reads}");
                save(&live).await.expect("the save is found or repeated");
            }
            assert_eq!((receipt.delivery(), rows(&store).await), (Delivery::Committed, 1), "{commits} {reads}");
        }
    }
}

#[tokio::test]
async fn rows_of_a_checkpoint_commit_with_it() {
    let (_, store, live, _tree) = opened();
    let (outbox, receipt) = outbox(&store);
    live.checkpoint(PutOptions::new().with_extension(outbox)).await.expect("made");
    assert_eq!((receipt.delivery(), rows(&store).await), (Delivery::Committed, 1));
}
