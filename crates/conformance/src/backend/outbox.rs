//! Rows that commit together with a change: committed exactly once, not with a refused change, ignored by a tree that cannot commit them.

use super::{Subject, Tree};
use std::sync::Arc;
use treehold_core::error::ErrorKind;
use treehold_core::ops::{ApplyOptions, Change, Edit, WriteMode};
use treehold_store::{BatchWrite, Delivery, MemoryStore, Namespace, Outbox, Partition, Receipt, ScanOptions, Store};
use treehold_tree::backend::BackendExt as _;

/// A log in a store, where each commit of its entry leaves one more row.
struct Log {
    store: Arc<dyn Store>,
    namespace: Namespace,
}

impl Log {
    /// Returns the log in the partition of the tree, or in a separate store if the tree commits to none.
    fn of(tree: &Tree) -> Self {
        match tree.store() {
            Some((store, partition)) => Self::on(store.clone(), partition),
            None => Self::on(Arc::new(MemoryStore::new()), &elsewhere()),
        }
    }

    fn on(store: Arc<dyn Store>, partition: &Partition) -> Self {
        Self { store, namespace: partition.namespace(["outbox", "log"]).expect("a namespace") }
    }

    /// Returns options with an entry that appends a row.
    fn entry(&self) -> (ApplyOptions, Receipt) {
        let (namespace, value) = (self.namespace.clone(), "row".into());
        let append = BatchWrite::Append { namespace, meta: Default::default(), value, time_to_live: None };
        let mut outbox = Outbox::new();
        let receipt = outbox.push_rows(self.store.clone(), vec![append]);
        (ApplyOptions::new().with_extension(outbox), receipt)
    }

    async fn rows(&self) -> usize {
        self.store.scan(&self.namespace, ScanOptions::new()).await.expect("scanned").entries.len()
    }
}

/// Returns a partition in which no tree lies.
fn elsewhere() -> Partition {
    Partition::new(["elsewhere", "outbox"]).expect("a partition")
}

fn write(tree: &Tree, path: &str, content: &'static str) -> Change {
    Change::Write { path: tree.path(path), content: content.into(), mode: WriteMode::Overwrite }
}

async fn text(tree: &Tree, path: &str) -> String {
    tree.backend().read_text(tree.path(path).as_str()).await.expect("a file")
}

/// Returns the delivery and the number of rows that this tree promises for one applied change.
fn promised(tree: &Tree) -> (Delivery, usize) {
    tree.store().map_or((Delivery::Ignored, 0), |_| (Delivery::Committed, 1))
}

pub(super) async fn outbox_rows_commit_with_the_change_exactly_once_or_are_ignored(tree: Subject) {
    let log = Log::of(&tree);
    let (options, receipt) = log.entry();
    tree.backend().apply(&[write(&tree, "/d/a", "one"), write(&tree, "/d/b", "two")], &options).await.expect("written");
    assert_eq!((receipt.delivery(), log.rows().await), promised(&tree));
    tree.backend().apply(&[write(&tree, "/d/a", "three")], &options).await.expect("written with the same outbox");
    assert_eq!((receipt.delivery(), log.rows().await), promised(&tree), "an entry is delivered once");
    assert_eq!(text(&tree, "/d/a").await, "three");
}

pub(super) async fn outbox_rows_commit_with_a_change_that_finds_everything_done(tree: Subject) {
    let log = Log::of(&tree);
    tree.put("/a", "same").await;
    let (options, receipt) = log.entry();
    let edit = Change::Edit { path: tree.path("/a"), edits: vec![Edit::new("same", "same")], expect: None };
    tree.backend().apply(&[edit], &options).await.expect("nothing to change");
    assert_eq!((receipt.delivery(), log.rows().await), promised(&tree));
}

pub(super) async fn outbox_rows_are_not_committed_with_a_refused_change(tree: Subject) {
    let log = Log::of(&tree);
    tree.put("/a", "one").await;
    let (options, receipt) = log.entry();
    let edit = Change::Edit { path: tree.path("/a"), edits: vec![Edit::new("missing", "")], expect: None };
    tree.refused(tree.backend().apply(&[edit], &options).await, ErrorKind::NoMatch);
    assert_eq!((receipt.delivery(), log.rows().await), (Delivery::Ignored, 0));
    tree.backend().apply(&[write(&tree, "/a", "two")], &options).await.expect("written with the same outbox");
    assert_eq!((receipt.delivery(), log.rows().await), promised(&tree));
}

pub(super) async fn outbox_rows_of_another_store_are_ignored(tree: Subject) {
    let partition = tree.store().map_or_else(elsewhere, |(_, partition)| partition.clone());
    are_ignored(&tree, Log::on(Arc::new(MemoryStore::new()), &partition)).await;
}

pub(super) async fn outbox_rows_of_another_partition_are_ignored(tree: Subject) {
    let store = tree.store().map_or_else(|| Arc::new(MemoryStore::new()) as Arc<dyn Store>, |(store, _)| store.clone());
    are_ignored(&tree, Log::on(store, &elsewhere())).await;
}

async fn are_ignored(tree: &Tree, log: Log) {
    let (options, receipt) = log.entry();
    tree.backend().apply(&[write(tree, "/a", "one")], &options).await.expect("written");
    assert_eq!((receipt.delivery(), log.rows().await), (Delivery::Ignored, 0));
    assert_eq!(text(tree, "/a").await, "one");
}
