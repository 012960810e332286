//! Fresh trees with indexes of both kinds, one for each engine that they are made for.

use crate::trees::rows;
use treehold::backend::IndexKind;
use treehold::conformance::Fresh;
use treehold::conformance::backend::Tree;

#[cfg(feature = "sqlite")]
pub(crate) async fn sqlite() -> Fresh<Tree> {
    let directory = tempfile::tempdir().unwrap();
    let store = treehold::store::SqliteStore::open(directory.path().join("store.db")).unwrap();
    Tree::new(rows(store).with_index(IndexKind::Trigram).with_index(IndexKind::Words)).fresh().keeping(directory)
}

#[cfg(feature = "sled")]
pub(crate) async fn sled() -> Fresh<Tree> {
    let directory = tempfile::tempdir().unwrap();
    let store = treehold::store::SledStore::open(directory.path().join("store.sled")).unwrap();
    Tree::new(rows(store).with_index(IndexKind::Trigram).with_index(IndexKind::Words)).fresh().keeping(directory)
}

#[cfg(feature = "postgres")]
pub(crate) async fn postgres() -> Fresh<Tree> {
    let (store, keep) = crate::servers::postgres::fresh().await;
    Tree::new(rows(store).with_index(IndexKind::Trigram).with_index(IndexKind::Words)).fresh().keeping(keep)
}
