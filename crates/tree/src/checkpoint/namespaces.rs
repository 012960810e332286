//! The namespaces of threads in a store, and the keys and rows in them.
//!
//! | namespace, under `{tenant}/{user}/_treehold/threads` | key | meta | value |
//! | --- | --- | --- | --- |
//! | `heads` | thread | | the record of its newest checkpoint |
//! | `checkpoints` | thread, U+0001, id in descending order | the record | |
//! | `pages` | number of the pack | | pages of trees |
//! | `bodies` | BLAKE3 hash | size | the content |
//! | `pruned` | `pruned` | | changes whenever checkpoints are removed |
//! | `pruned` | `named` | | changes whenever a fork, merge or restore names a checkpoint |
//! | `pruned` | `swept` | | the version of `pruned` that a [policy](super::retain) has swept after |

use super::pages::Pages;
use super::record::Record;
use super::{CheckpointId, Head};
use std::sync::Arc;
#[cfg(doc)]
use treehold_core::error::ErrorKind;
use treehold_core::error::{Error, Result};
use treehold_core::scope::Scope;
use treehold_store::{Item, Namespace, Partition, ScanEntry};

/// The prefix of the namespaces that hold threads. Nothing else may be stored beneath it.
pub const RESERVED_NAMESPACE: [&str; 2] = treehold_core::reserved::THREADS;

/// Separates the thread from the id in a checkpoint's key. Ids of scopes never contain it.
pub const SEPARATOR: char = '\u{1}';

/// Returns the partition of a scope's tenant and user, which holds all rows of their threads.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for an invalid scope.
pub fn partition_of(scope: &Scope) -> Result<Partition> {
    scope.validate()?;
    Partition::new([component(scope.tenant.as_deref()), component(scope.user.as_deref())])
}

/// Returns the namespace of a kind of row for a scope's tenant and user.
///
/// # Errors
/// As [`partition_of`].
pub fn namespace_of(scope: &Scope, kind: &str) -> Result<Namespace> {
    let [root, threads] = RESERVED_NAMESPACE;
    partition_of(scope)?.namespace([root, threads, kind])
}

/// Returns the thread of a scope.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for a scope without one.
pub fn thread_of(scope: &Scope) -> Result<&str> {
    scope.thread.as_deref().ok_or_else(|| Error::invalid_argument("the scope names no thread; set one"))
}

/// The namespaces of one tenant and user.
#[derive(Debug)]
pub(super) struct UserNamespaces {
    pub(super) heads: Namespace,
    pub(super) checkpoints: Namespace,
    pub(super) pruned: Namespace,
    pub(super) pages: Arc<Pages>,
}

/// The key of the row that changes whenever checkpoints are removed.
pub(super) const PRUNED_KEY: &str = "pruned";

/// The start of the keys of rows that change whenever a fork, merge or restore names a checkpoint: one row for each thread that has it.
pub(super) const NAMED: &str = "named\u{1}";

/// Returns the key of the row that changes whenever a checkpoint of a thread is named.
pub(super) fn named_key(thread: &str) -> String {
    format!("{NAMED}{thread}")
}

pub(super) fn checkpoint_key(thread: &str, id: CheckpointId) -> String {
    format!("{thread}{SEPARATOR}{}", id.descending())
}

/// Reads the row of a head.
pub(super) fn read_head(item: &Item) -> Result<(Record, Head)> {
    let record = Record::from_bytes(&item.value)?;
    let head = Head { id: record.checkpoint.id, version: item.version };
    Ok((record, head))
}

pub(super) fn items(entries: Vec<ScanEntry>) -> impl Iterator<Item = Item> {
    entries.into_iter().filter_map(|entry| if let ScanEntry::Item(item) = entry { Some(item) } else { None })
}

fn component(id: Option<&str>) -> String {
    match id {
        None => "-".to_owned(),
        Some(id) if id.starts_with('-') => format!("-{id}"),
        Some(id) => id.to_owned(),
    }
}
