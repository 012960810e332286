//! Helpers that several cases share.

use std::sync::Arc;
use treehold_agent_state::{BundleOwner, Json};
use treehold_core::ErrorKind;
use treehold_core::error::Result;
use treehold_store::{Namespace, NamespacesOptions, Partition, ScanEntry, ScanOptions, Store};

/// Returns the owner of most cases.
pub(crate) fn owner() -> BundleOwner {
    BundleOwner::of_user("acme", "ada", "helper").unwrap()
}

/// Returns the partition of the rows of [`owner`].
pub(crate) fn partition() -> Partition {
    Partition::new(["acme", "ada"]).unwrap()
}

/// Returns owners whose ids look alike, of which no two may share a row.
pub(crate) fn look_alike_owners() -> Vec<BundleOwner> {
    let mut owners = vec![
        BundleOwner::anonymous("acme", "helper").unwrap(),
        BundleOwner::shared("acme", "helper").unwrap(),
        BundleOwner::shared("users", "helper").unwrap(),
    ];
    for [tenant, user, agent] in [
        ["acme", "ada", "helper"],
        ["acme", "ada", "helper/x"],
        ["acme", "ada/agents/helper", "x"],
        ["acme", "anonymous", "helper"],
        ["acme", "shared", "helper"],
        ["acme", "_default", "helper"],
        ["acme", "__anon__", "helper"],
        ["acme", "null", "helper"],
        ["acme/users", "ada", "helper"],
        ["acme", "ADA", "helper"],
        ["acme", "a%2Fda", "helper"],
        ["acme", "a/da", "helper"],
    ] {
        owners.push(BundleOwner::of_user(tenant, user, agent).unwrap());
    }
    owners
}

pub(crate) fn json(text: &str) -> Json {
    Json::parse(text).unwrap()
}

/// Makes a small object with a number.
pub(crate) fn numbered(number: usize) -> Json {
    json(&format!("{{\"n\": {number}}}"))
}

/// Returns the kind of the error of a call that must fail.
pub(crate) fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.expect_err("it must be refused").kind()
}

/// Returns all rows of the bundle with their namespaces.
pub(crate) async fn rows(store: &Arc<dyn Store>) -> Vec<(Namespace, String)> {
    let mut rows = Vec::new();
    for namespace in store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces {
        let scan = store.scan(&namespace, ScanOptions::new()).await.unwrap();
        rows.extend(scan.entries.iter().map(|entry| (namespace.clone(), entry.key().to_owned())));
    }
    rows
}

/// Replaces the value and the metadata of every row by bytes that nothing can read.
pub(crate) async fn damage(store: &Arc<dyn Store>, part: &str) -> usize {
    let mut damaged = 0;
    for namespace in store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces {
        if !namespace.components().any(|component| component == part) {
            continue;
        }
        for entry in store.scan(&namespace, ScanOptions::new()).await.unwrap().entries {
            if let ScanEntry::Item(row) = entry {
                let batch = treehold_store::Batch::new().put_with_meta(&namespace, row.key, row.meta, "{\"cut");
                store.commit(batch).await.unwrap();
                damaged += 1;
            }
        }
    }
    damaged
}
