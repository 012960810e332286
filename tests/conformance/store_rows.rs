//! The stores: one row each.

use std::sync::Arc;
use stratafs::conformance::Fresh;
use stratafs::store::{MemoryStore, Store};

async fn fresh_memory() -> Fresh<dyn Store> {
    Fresh::new(Arc::new(MemoryStore::new()))
}

stratafs::store_conformance!(memory, fresh_memory);
