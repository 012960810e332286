//! The places of rows about other rows: the indexes of trees, and the logs of their changes.
//!
//! An index is only valid beside the rows it was built from. When rows arrive by a way that bypasses the tree, the
//! index must be removed; searches then read all files until the index is rebuilt.

use super::{Batch, Namespace, NamespacesOptions, Store};
use treehold_core::error::Result;
use treehold_core::reserved::{EVENTS, reserved_path};

/// The components of the namespaces of indexes, after their partition.
pub const INDEX_NAMESPACE: [&str; 2] = treehold_core::reserved::INDEXES;

/// Returns the log of the changes to the rows of a namespace. It is in the same partition, so that both change together.
pub fn event_log(rows: &Namespace) -> Namespace {
    let place = |name: Vec<String>| rows.partition().namespace(EVENTS.into_iter().map(str::to_owned).chain(name));
    let name = std::iter::once("rows".to_owned()).chain(rows.name().map(Into::into));
    place(name.collect()).unwrap_or_else(|_| {
        // A namespace that is too long for that is named by its hash.
        let hash = blake3::hash(rows.encoded().as_bytes()).to_hex().to_string();
        place(vec!["hash".to_owned(), hash]).expect("a partition has room for four short components")
    })
}

/// Returns whether a namespace is that of an index.
pub(super) fn is_index(namespace: &Namespace) -> bool {
    reserved_path(namespace).take(INDEX_NAMESPACE.len()).eq(INDEX_NAMESPACE)
}

/// Removes every index, each in its own commit. Lists all namespaces.
pub(super) async fn remove_indexes(store: &dyn Store) -> Result<()> {
    let mut options = NamespacesOptions::new();
    loop {
        let page = store.namespaces(options.clone()).await?;
        for index in page.namespaces.iter().filter(|namespace| is_index(namespace)) {
            store.commit(Batch::new().delete_prefix(index, "")).await?;
        }
        match page.namespaces.last() {
            Some(last) if page.more => options = options.with_start_after(last.clone()),
            _ => return Ok(()),
        }
    }
}
