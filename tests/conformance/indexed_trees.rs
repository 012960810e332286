//! Fresh trees with indexes of both kinds, one for each engine that they are made for.

use crate::trees::{partition, rows_in};
use std::sync::Arc;
use treehold::Store;
use treehold::backend::IndexKind;
use treehold::conformance::Fresh;
use treehold::conformance::backend::Tree;

#[cfg(feature = "sqlite")]
pub(crate) async fn sqlite() -> Fresh<Tree> {
    let directory = tempfile::tempdir().unwrap();
    let store = treehold::store::SqliteStore::open(directory.path().join("store.db")).unwrap();
    indexed(store).fresh().keeping(directory)
}

#[cfg(feature = "sled")]
pub(crate) async fn sled() -> Fresh<Tree> {
    let directory = tempfile::tempdir().unwrap();
    let store = treehold::store::SledStore::open(directory.path().join("store.sled")).unwrap();
    indexed(store).fresh().keeping(directory)
}

#[cfg(feature = "postgres")]
pub(crate) async fn postgres() -> Fresh<Tree> {
    let (store, keep) = crate::servers::postgres::fresh().await;
    indexed(store).fresh().keeping(keep)
}

fn indexed(store: impl Store + 'static) -> Tree {
    let store: Arc<dyn Store> = Arc::new(store);
    Tree::new(rows_in(&store).with_index(IndexKind::Trigram).with_index(IndexKind::Words)).with_store(store, partition())
}
