//! The engine of `mysql://…` in configurations.

use crate::{MysqlOptions, MysqlStore};
use async_trait::async_trait;
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_store::engine::{
    InvalidStoreUrl, ServerLocation, ServerStore, ServerUrl, StoreEngine, StoreLocation, StoreUrl, without_password,
};
use treehold_store::{MigrateOptions, MigrateProgress, MigrateReport, StoreCapabilities};

/// The schemes of the engine's URLs.
const SCHEMES: &[&str] = &["mysql", "mariadb"];

/// Stores on a MySQL or MariaDB server: `mysql://…`.
#[derive(Debug, Clone, Copy)]
pub struct MysqlEngine;

impl StoreEngine for MysqlEngine {
    fn schemes(&self) -> &[&str] {
        SCHEMES
    }

    fn url_form(&self) -> &str {
        "mysql://…"
    }

    fn locate(&self, url: &StoreUrl<'_>) -> Result<Arc<dyn StoreLocation>, InvalidStoreUrl> {
        let url = url.server()?;
        Ok(Arc::new(ServerLocation::<MysqlStore>::new(ServerUrl::new(url, 3306).with_equal_schemes(SCHEMES))))
    }

    /// Hides the password also where `//` is missing.
    fn shown(&self, url: &str) -> String {
        without_password(url)
    }
}

#[async_trait]
impl ServerStore for MysqlStore {
    fn capabilities_offered() -> StoreCapabilities {
        Self::offers()
    }

    async fn exists_at_url(url: &str) -> Result<bool> {
        Self::exists(&MysqlOptions::new(url)).await
    }

    async fn open_url(url: &str) -> Result<Self> {
        Self::open(url).await
    }

    async fn migrate_url(url: &str, options: &MigrateOptions, report: &mut (dyn FnMut(MigrateProgress) + Send)) -> Result<MigrateReport> {
        Self::migrate(&MysqlOptions::new(url), options, report).await
    }
}
