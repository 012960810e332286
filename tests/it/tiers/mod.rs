//! The state and store tiers beyond the cases that all backends share: faults of the peers by name, contention of tasks and
//! processes, races at their narrowest, and the round trips that the docs state.

mod contention;
mod faults;
mod lent;
mod memory_tool;
mod races;
mod round_trips;
pub(crate) mod spy;

use std::sync::Arc;
use treehold::store::{MemoryStore, Store};
use treehold::{Backend, Error, ErrorKind, Namespace, StateBackend, StoreBackend, VfsPathBuf};

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).unwrap()
}

fn namespace() -> Namespace {
    Namespace::new(["acme", "ada", "memories"]).unwrap()
}

/// A tier, and its data directory.
struct Tier {
    tree: Arc<dyn Backend>,
    _directory: Option<tempfile::TempDir>,
}

impl Tier {
    fn of_store(store: impl Store + 'static, directory: Option<tempfile::TempDir>) -> Self {
        Self { tree: Arc::new(StoreBackend::new(Arc::new(store), namespace())), _directory: directory }
    }
}

/// A fresh tree of each tier.
fn tiers() -> Vec<Tier> {
    let mut tiers = vec![Tier { tree: Arc::new(StateBackend::new()), _directory: None }, Tier::of_store(MemoryStore::new(), None)];
    #[cfg(feature = "sqlite")]
    {
        let directory = tempfile::tempdir().unwrap();
        let store = treehold::store::SqliteStore::open(directory.path().join("store.db")).unwrap();
        tiers.push(Tier::of_store(store, Some(directory)));
    }
    #[cfg(feature = "sled")]
    {
        let directory = tempfile::tempdir().unwrap();
        let store = treehold::store::SledStore::open(directory.path().join("rows")).unwrap();
        tiers.push(Tier::of_store(store, Some(directory)));
    }
    tiers
}

#[track_caller]
fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.expect_err("the call is refused").kind()
}
