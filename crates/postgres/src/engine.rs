//! The engine of `postgres://…` in configurations.

use crate::{PostgresOptions, PostgresStore};
use async_trait::async_trait;
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_store::engine::{
    InvalidStoreUrl, ServerLocation, ServerStore, ServerUrl, StoreEngine, StoreLocation, StoreUrl, without_password,
};
use treehold_store::{MigrateOptions, MigrateProgress, MigrateReport, StoreCapabilities};

/// The schemes of the engine's URLs.
const SCHEMES: &[&str] = &["postgres", "postgresql"];

/// Stores on a PostgreSQL server: `postgres://…`.
#[derive(Debug, Clone, Copy)]
pub struct PostgresEngine;

impl StoreEngine for PostgresEngine {
    fn schemes(&self) -> &[&str] {
        SCHEMES
    }

    fn url_form(&self) -> &str {
        "postgres://…"
    }

    fn locate(&self, url: &StoreUrl<'_>) -> Result<Arc<dyn StoreLocation>, InvalidStoreUrl> {
        let url = url.server()?;
        Ok(Arc::new(ServerLocation::<PostgresStore>::new(ServerUrl::new(url, 5432).with_equal_schemes(SCHEMES))))
    }

    /// Hides the password also where `//` is missing.
    fn shown(&self, url: &str) -> String {
        without_password(url)
    }
}

#[async_trait]
impl ServerStore for PostgresStore {
    fn capabilities_offered() -> StoreCapabilities {
        Self::offers()
    }

    async fn exists_at_url(url: &str) -> Result<bool> {
        Self::exists(&PostgresOptions::new(url)).await
    }

    async fn open_url(url: &str) -> Result<Self> {
        Self::open(url).await
    }

    async fn migrate_url(url: &str, options: &MigrateOptions, report: &mut (dyn FnMut(MigrateProgress) + Send)) -> Result<MigrateReport> {
        Self::migrate(&PostgresOptions::new(url), options, report).await
    }
}
