//! The engine of stores in memory: `memory:`.

use super::{InvalidStoreUrl, StoreEngine, StoreLocation, StoreUrl};
use crate::{MemoryStore, Store, StoreCapabilities};
use async_trait::async_trait;
use std::fmt;
use std::sync::Arc;
use treehold_core::error::Result;

/// Stores in process memory, a new one each time one is opened.
#[derive(Debug, Clone, Copy)]
pub struct MemoryEngine;

impl StoreEngine for MemoryEngine {
    fn schemes(&self) -> &[&str] {
        &["memory"]
    }

    fn url_form(&self) -> &str {
        "memory:"
    }

    fn locate(&self, url: &StoreUrl<'_>) -> Result<Arc<dyn StoreLocation>, InvalidStoreUrl> {
        url.require_no_location()?;
        Ok(Arc::new(InMemory))
    }
}

#[derive(Debug)]
struct InMemory;

impl fmt::Display for InMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory:")
    }
}

#[async_trait]
impl StoreLocation for InMemory {
    fn capabilities(&self) -> StoreCapabilities {
        MemoryStore::offers()
    }

    async fn open(&self) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(MemoryStore::new()))
    }
}
