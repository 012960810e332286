//! The contract of a state store, one rule for each case, on stores that need no server. `tests/agent_states.rs` of the root package runs
//! the same cases on servers.

#![allow(missing_docs, clippy::unwrap_used)]

use std::any::Any;
use std::sync::Arc;
use treehold_agent_state::{AgentStateStore, AgentStates};
use treehold_sqlite::{SqliteDirectory, SqliteStore};
use treehold_store::{MemoryStore, Store};

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

async fn memory_states() -> (Arc<dyn AgentStateStore>, Box<dyn Any + Send>) {
    let (store, keep) = fresh_memory().await;
    (Arc::new(AgentStates::new(store).for_agent("acme", "helper").unwrap()), keep)
}

async fn sqlite_states() -> (Arc<dyn AgentStateStore>, Box<dyn Any + Send>) {
    let (store, keep) = fresh_sqlite().await;
    (Arc::new(AgentStates::new(store).for_agent("acme", "helper").unwrap()), keep)
}

async fn sqlite_directory_states() -> (Arc<dyn AgentStateStore>, Box<dyn Any + Send>) {
    let (store, keep) = fresh_sqlite_directory().await;
    (Arc::new(AgentStates::new(store).for_agent("acme", "helper").unwrap()), keep)
}

state_store_cases!(memory, crate::memory_states);
state_store_cases!(sqlite, crate::sqlite_states);
state_store_cases!(sqlite_directory, crate::sqlite_directory_states);
stored_state_cases!(memory_rows, crate::fresh_memory);
stored_state_cases!(sqlite_rows, crate::fresh_sqlite);
stored_state_cases!(sqlite_directory_rows, crate::fresh_sqlite_directory);
