//! Rows derived from other rows: the indexes of trees.
//!
//! An index is only valid beside the rows it was built from. When rows arrive by a way that bypasses the tree, the
//! index must be removed; searches then read all files until the index is rebuilt.

use super::{Batch, Namespace, NamespacesOptions, Store};
use treehold_core::error::Result;

/// The namespace that contains all indexes.
pub const INDEX_NAMESPACE: [&str; 2] = treehold_core::reserved::INDEXES;

/// Returns the namespace that contains all indexes.
pub(super) fn namespace() -> Namespace {
    Namespace::new(INDEX_NAMESPACE).expect("the components are valid constants")
}

/// Removes every index, each in its own commit.
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
