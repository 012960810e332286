//! The engine of `redis://…` in configurations.

use crate::{RedisOptions, RedisStore};
use async_trait::async_trait;
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_store::engine::{
    InvalidStoreUrl, ServerLocation, ServerStore, ServerUrl, StoreEngine, StoreLocation, StoreUrl, without_password,
};
use treehold_store::{MigrateOptions, MigrateProgress, MigrateReport, StoreCapabilities};

/// The schemes of the engine's URLs.
const SCHEMES: &[&str] = &["redis", "rediss", "redis+cluster", "rediss+cluster"];

/// Stores on a Redis server or cluster: `redis://…`.
#[derive(Debug, Clone, Copy)]
pub struct RedisEngine;

impl StoreEngine for RedisEngine {
    fn schemes(&self) -> &[&str] {
        SCHEMES
    }

    fn url_form(&self) -> &str {
        "redis://…"
    }

    fn locate(&self, url: &StoreUrl<'_>) -> Result<Arc<dyn StoreLocation>, InvalidStoreUrl> {
        let url = url.server()?;
        Ok(Arc::new(ServerLocation::<RedisStore>::new(ServerUrl::new(url, 6379).with_default_path("0").with_literal_path())))
    }

    /// Hides the password also where `//` is missing.
    fn shown(&self, url: &str) -> String {
        without_password(url)
    }
}

#[async_trait]
impl ServerStore for RedisStore {
    fn capabilities_offered() -> StoreCapabilities {
        Self::offers()
    }

    async fn exists_at_url(url: &str) -> Result<bool> {
        Self::exists(&RedisOptions::new(url)).await
    }

    async fn open_url(url: &str) -> Result<Self> {
        Self::open(url).await
    }

    async fn migrate_url(url: &str, options: &MigrateOptions, report: &mut (dyn FnMut(MigrateProgress) + Send)) -> Result<MigrateReport> {
        Self::migrate(&RedisOptions::new(url), options, report).await
    }
}
