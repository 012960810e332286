//! Traces as rows of stores that need no server. `tests/traces.rs` of the root package runs the same cases on servers.

#![allow(missing_docs, clippy::unwrap_used)]

use std::any::Any;
use std::sync::Arc;
use treehold_conformance::Fresh;
use treehold_sqlite::{SqliteDirectory, SqliteStore};
use treehold_store::{MemoryStore, Store};
use treehold_traces::{TraceStore, TracesOptions, trace_store_conformance};

#[macro_use]
mod cases;
mod local;

async fn fresh_memory() -> (Arc<dyn Store>, Box<dyn Any + Send>) {
    (Arc::new(MemoryStore::new()), Box::new(()))
}

async fn fresh_sqlite() -> (Arc<dyn Store>, Box<dyn Any + Send>) {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("store.db")).unwrap();
    (Arc::new(store), Box::new(directory))
}

async fn fresh_sqlite_directory() -> (Arc<dyn Store>, Box<dyn Any + Send>) {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteDirectory::open(directory.path().join("store")).unwrap();
    (Arc::new(store), Box::new(directory))
}

async fn memory_traces() -> Fresh<dyn TraceStore> {
    let (store, keep) = fresh_memory().await;
    Fresh::new(cases::support::shared(store)).keeping(keep)
}

async fn sqlite_traces() -> Fresh<dyn TraceStore> {
    let (store, keep) = fresh_sqlite().await;
    Fresh::new(cases::support::shared(store)).keeping(keep)
}

async fn sqlite_directory_traces() -> Fresh<dyn TraceStore> {
    let (store, keep) = fresh_sqlite_directory().await;
    Fresh::new(cases::support::shared(store)).keeping(keep)
}

trace_store_conformance!(memory, memory_traces);
trace_store_conformance!(sqlite, sqlite_traces);
trace_store_conformance!(sqlite_directory, sqlite_directory_traces);
stored_trace_cases!(memory_rows, crate::fresh_memory);
stored_trace_cases!(sqlite_rows, crate::fresh_sqlite);
stored_trace_cases!(sqlite_directory_rows, crate::fresh_sqlite_directory);

/// The numbers that callers rely on.
#[test]
fn limits_have_the_documented_defaults() {
    let TracesOptions { message_bytes_max, batch_bytes_max, trace_bytes_max, goal_tree_bytes_max, event_bytes_max, .. } =
        TracesOptions::new();
    assert_eq!((message_bytes_max, batch_bytes_max, trace_bytes_max), (1 << 20, 16 << 20, 256 << 10));
    assert_eq!((goal_tree_bytes_max, event_bytes_max), (1 << 20, 64 << 10));
    let TracesOptions { page_max, page_bytes_max, idempotency_time, .. } = TracesOptions::new().with_page_max(usize::MAX);
    assert_eq!((page_max, page_bytes_max, idempotency_time.as_secs()), (1_000, 8 << 20, 24 * 60 * 60));
}
