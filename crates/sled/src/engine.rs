//! The engine of `sled:DIRECTORY` in configurations.

use crate::{SledOptions, SledStore};
use async_trait::async_trait;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_store::engine::{InvalidStoreUrl, StoreEngine, StoreLocation, StoreUrl, migrate_blocking, open_embedded};
use treehold_store::{MigrateOptions, MigrateProgress, MigrateReport, Store, StoreCapabilities};

/// Stores in directories of sled: `sled:DIRECTORY`.
#[derive(Debug, Clone, Copy)]
pub struct SledEngine;

impl StoreEngine for SledEngine {
    fn schemes(&self) -> &[&str] {
        &["sled"]
    }

    fn url_form(&self) -> &str {
        "sled:DIRECTORY"
    }

    fn locate(&self, url: &StoreUrl<'_>) -> Result<Arc<dyn StoreLocation>, InvalidStoreUrl> {
        Ok(Arc::new(Location(url.path()?)))
    }
}

/// A directory of sled.
#[derive(Debug)]
struct Location(PathBuf);

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sled:{}", self.0.display())
    }
}

#[async_trait]
impl StoreLocation for Location {
    fn capabilities(&self) -> StoreCapabilities {
        SledStore::offers()
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.0)
    }

    async fn exists(&self) -> Result<bool> {
        Ok(SledStore::exists(&self.0))
    }

    async fn open(&self) -> Result<Arc<dyn Store>> {
        open_embedded(&self.0, |directory| directory.join("db"), |directory| Ok(Arc::new(SledStore::open(directory)?))).await
    }

    async fn migrate(&self, options: &MigrateOptions, report: &mut (dyn FnMut(MigrateProgress) + Send)) -> Result<MigrateReport> {
        let directory = SledOptions::new(&self.0);
        migrate_blocking(options, report, move |options, report| SledStore::migrate(&directory, options, report)).await
    }
}
