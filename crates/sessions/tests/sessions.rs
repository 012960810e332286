//! The contracts of an agent host, one rule for each case, on stores that need no server. `tests/sessions.rs` of the root
//! package runs the same cases on servers.

#![allow(missing_docs, clippy::unwrap_used)]

use std::any::Any;
use std::sync::Arc;
use treehold_sessions::{BUDGET_TOKENS, COMPACT_MESSAGES_MIN, CONTEXT_TOKENS, CompactOptions, ConsolidationOptions, SessionsOptions, view};
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

/// The numbers that hosts rely on.
#[test]
fn defaults_are_those_of_the_contracts() {
    let compact = CompactOptions::new();
    assert_eq!((compact.trigger_tokens, compact.compact_fraction, COMPACT_MESSAGES_MIN), (80_000, 0.5, 6));
    assert_eq!((BUDGET_TOKENS, CONTEXT_TOKENS), (100_000, 200_000));
    let view = view::ViewOptions::default();
    assert_eq!((view.result_tokens_max, view.recent_results, view.preview_characters), (1_500, 2, 200));
    assert_eq!(view.recent_result_tokens_max(), 6_000);
    let reactive = view::ReactiveOptions::default();
    assert_eq!((reactive.micro_trigger_pct, reactive.full_trigger_pct, reactive.max_per_request), (85, 92, 3));
    assert_eq!((reactive.preserve_recent_api_rounds, reactive.micro_batch_groups), (2, 2));
    let consolidation = ConsolidationOptions::default();
    let minutes = |duration: std::time::Duration| duration.as_secs() / 60;
    assert_eq!((minutes(consolidation.idle), minutes(consolidation.interval)), (10, 24 * 60));
    let ConsolidationOptions { changed_sessions_min, sessions_max, messages_min, .. } = consolidation;
    assert_eq!((changed_sessions_min, sessions_max, messages_min), (5, 500, 4));
    let limits = SessionsOptions::default();
    assert_eq!((limits.item_bytes_max, limits.batch_max, limits.page_max), (1 << 20, 1_000, 1_000));
}

session_cases!(memory, crate::fresh_memory);
session_cases!(sqlite, crate::fresh_sqlite);
session_cases!(sqlite_directory, crate::fresh_sqlite_directory);
