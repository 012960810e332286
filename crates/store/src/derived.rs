//! The places of rows about other rows: the indexes of trees, and the logs of their changes.
//!
//! An index is only valid beside the rows it was built from. When rows arrive by a way that bypasses the tree, the
//! index must be removed; searches then read all files until the index is rebuilt.

use super::listing::AllNamespaces;
use super::{Batch, Namespace, Store};
use treehold_core::error::Result;
use treehold_core::reserved::{EVENTS, Reserved, ReservedRows, reserved_path};

/// The components of the namespaces of indexes, after their partition.
pub const INDEX_NAMESPACE: [&str; 2] = treehold_core::reserved::INDEXES;

/// Returns the log of the changes to the rows of a namespace. It is in the same partition, so that both change together, unless the
/// partition's name leaves no room for it.
pub fn event_log(rows: &Namespace) -> Namespace {
    let beside = |name: Vec<String>| rows.partition().namespace(EVENTS.into_iter().map(str::to_owned).chain(name));
    let name = std::iter::once("rows".to_owned()).chain(rows.name().map(Into::into));
    beside(name.collect()).unwrap_or_else(|_| {
        // A namespace that is too long for that is named by its hash.
        let hash = blake3::hash(rows.encoded().as_bytes()).to_hex().to_string();
        beside(vec!["hash".to_owned(), hash.clone()])
            .or_else(|_| Namespace::new(EVENTS.into_iter().chain(["hash", &hash])))
            .expect("four short components are a namespace")
    })
}

/// Returns whether a namespace is that of an index.
pub(super) fn is_index(namespace: &Namespace) -> bool {
    reserved_path(namespace).take(INDEX_NAMESPACE.len()).eq(INDEX_NAMESPACE)
}

/// Returns whether a namespace holds what copies note about themselves.
pub(super) fn is_note(namespace: &Namespace) -> bool {
    Reserved::of(namespace).is_some_and(|reserved| reserved.rows == ReservedRows::Note)
}

/// Removes every index, each in its own commit. Lists all namespaces.
pub(super) async fn remove_indexes(store: &dyn Store) -> Result<()> {
    remove_namespaces(store, is_index).await
}

/// Removes all rows of the namespaces that a rule selects, each in its own commit. Lists all namespaces.
pub(super) async fn remove_namespaces(store: &dyn Store, is_selected: fn(&Namespace) -> bool) -> Result<()> {
    let mut listing = AllNamespaces::new(store);
    while let Some(page) = listing.next_page().await? {
        for namespace in page.iter().filter(|namespace| is_selected(namespace)) {
            store.commit(Batch::new().delete_prefix(namespace, "")).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_namespace_has_a_log_of_its_own() {
        let mut logs = BTreeSet::new();
        let mut count = 0;
        for length in [1, 100, 255, 400, 900, 960, 1_000, 1_010, 1_020, 1_022] {
            let long = "x".repeat(length);
            for text in
                [long.clone(), format!("{long}/u"), format!("t//{long}"), format!("t/u/{long}"), format!("{}/{long}", ["d"; 15].join("/"))]
            {
                let Ok(rows) = Namespace::parse(&text) else { continue };
                let log = event_log(&rows);
                assert!(treehold_core::reserved::is_reserved(&log), "{log}");
                assert!(log.shares_partition(&rows) || rows.partition().encoded().len() > 900, "{log}");
                assert!(logs.insert(log), "{text}");
                count += 1;
            }
        }
        assert!(count > 30, "{count}");
    }
}
