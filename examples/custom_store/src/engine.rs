//! The scheme `log:FILE`.

use crate::LogStore;
use async_trait::async_trait;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use treehold::Result;
use treehold::store::engine::{InvalidStoreUrl, StoreEngine, StoreLocation, StoreUrl, open_embedded};
use treehold::store::{Store, StoreCapabilities};

/// Stores in log files: `log:FILE`.
#[derive(Debug, Clone, Copy)]
pub struct LogEngine;

impl StoreEngine for LogEngine {
    fn schemes(&self) -> &[&str] {
        &["log"]
    }

    fn url_form(&self) -> &str {
        "log:FILE"
    }

    fn locate(&self, url: &StoreUrl<'_>) -> Result<Arc<dyn StoreLocation>, InvalidStoreUrl> {
        Ok(Arc::new(Location(url.path()?)))
    }
}

#[derive(Debug)]
struct Location(PathBuf);

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "log:{}", self.0.display())
    }
}

#[async_trait]
impl StoreLocation for Location {
    fn capabilities(&self) -> StoreCapabilities {
        LogStore::offers()
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.0)
    }

    async fn open(&self) -> Result<Arc<dyn Store>> {
        open_embedded(&self.0, Path::to_path_buf, |file| Ok(Arc::new(LogStore::open(file)?))).await
    }
}
