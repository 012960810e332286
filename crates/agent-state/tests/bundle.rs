//! The parts of the bundle, one rule for each case, on stores that need no server. `tests/agent_bundle.rs` of the root package runs the
//! same cases on servers.

#![allow(missing_docs, clippy::unwrap_used)]

use std::any::Any;
use std::sync::Arc;
use treehold_sqlite::{SqliteDirectory, SqliteStore};
use treehold_store::{MemoryStore, Store};

#[macro_use]
mod bundle_cases;

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

bundle_cases!(memory, crate::fresh_memory);
bundle_cases!(sqlite, crate::fresh_sqlite);
bundle_cases!(sqlite_directory, crate::fresh_sqlite_directory);
