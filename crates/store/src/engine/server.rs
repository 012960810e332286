//! The location of a store on a server.

use super::{ServerUrl, StoreLocation, open_server_once, without_password};
use crate::{MigrateOptions, MigrateProgress, MigrateReport, Store, StoreCapabilities};
use async_trait::async_trait;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use treehold_core::error::Result;

/// A store on a server, as its engine opens it at a URL.
#[async_trait]
pub trait ServerStore: Store + Sized + 'static {
    /// Returns the capabilities of these stores, without opening one.
    fn capabilities_offered() -> StoreCapabilities;

    /// Returns whether a store is at a URL, as [`StoreLocation::exists`]. By default it always is.
    ///
    /// # Errors
    /// Those of [`StoreLocation::exists`].
    async fn exists_at_url(url: &str) -> Result<bool> {
        let _ = url;
        Ok(true)
    }

    /// Opens the store at a URL, and creates it if it is missing.
    ///
    /// # Errors
    /// Those of [`StoreLocation::open`].
    async fn open_url(url: &str) -> Result<Self>;

    /// Migrates the store at a URL.
    ///
    /// # Errors
    /// Those of [`StoreLocation::migrate`].
    async fn migrate_url(url: &str, options: &MigrateOptions, report: &mut (dyn FnMut(MigrateProgress) + Send)) -> Result<MigrateReport>;
}

/// The location of a store on a server, which is opened once per process for all equivalent URLs. `Display` hides the password.
pub struct ServerLocation<S> {
    url: ServerUrl,
    store: PhantomData<fn() -> S>,
}

impl<S: ServerStore> ServerLocation<S> {
    /// Makes the location of a URL.
    pub fn new(url: ServerUrl) -> Self {
        Self { url, store: PhantomData }
    }
}

impl<S> fmt::Debug for ServerLocation<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerLocation").field(&self.url).finish()
    }
}

impl<S> fmt::Display for ServerLocation<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_password(self.url.as_str()))
    }
}

#[async_trait]
impl<S: ServerStore> StoreLocation for ServerLocation<S> {
    fn capabilities(&self) -> StoreCapabilities {
        S::capabilities_offered()
    }

    async fn exists(&self) -> Result<bool> {
        S::exists_at_url(self.url.as_str()).await
    }

    async fn open(&self) -> Result<Arc<dyn Store>> {
        let open = async { Ok(Arc::new(S::open_url(self.url.as_str()).await?) as Arc<dyn Store>) };
        open_server_once(&self.url, open).await
    }

    async fn migrate(&self, options: &MigrateOptions, report: &mut (dyn FnMut(MigrateProgress) + Send)) -> Result<MigrateReport> {
        S::migrate_url(self.url.as_str(), options, report).await
    }
}
