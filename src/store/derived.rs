//! Rows that are made of others: the indexes of trees.
//!
//! An index is right only beside the very rows that it was made of. Where rows come in from elsewhere, past the tree that
//! would keep it, it has to go: searches then read all files until it is made anew.

use super::{Batch, Namespace, NamespacesOptions, Store};
use crate::error::Result;

/// The first component of the namespaces of indexes, which no tree has.
pub const INDEX_NAMESPACE: &str = super::reserved::INDEXES;

/// Returns what all indexes lie beneath.
pub(super) fn namespace() -> Namespace {
    Namespace::new([INDEX_NAMESPACE]).expect("a plain component")
}

/// Removes every index, each in one commit.
pub(super) async fn remove_indexes(store: &dyn Store) -> Result<()> {
    let mut options = NamespacesOptions::new().with_beneath(namespace());
    loop {
        let page = store.namespaces(options.clone()).await?;
        for index in &page.namespaces {
            store.commit(Batch::new().delete_prefix(index, "")).await?;
        }
        match page.namespaces.last() {
            Some(last) if page.more => options = options.with_start_after(last.clone()),
            _ => return Ok(()),
        }
    }
}
