//! The migration of stores of the former layout.

use super::open_store::OpenStoreOptions;
use super::{Config, Registry};
use treehold_core::error::Result;
use treehold_store::{MigrateOptions, MigrateProgress, MigrateReport};

/// Migrates the store at a URL from the former layout to the present one. `tell` receives the progress.
///
/// A default file or server store under the former name of the product is taken over.
///
/// # Errors
/// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for an invalid URL.
/// [`NotFound`](treehold_core::error::ErrorKind::NotFound) if there is no store.
/// [`Unavailable`](treehold_core::error::ErrorKind::Unavailable) if other processes use it.
/// [`Unsupported`](treehold_core::error::ErrorKind::Unsupported) for an engine that this program was built without.
/// Otherwise those of the engine's `migrate`.
pub async fn migrate_store(
    url: &str,
    options: &OpenStoreOptions,
    how: &MigrateOptions,
    tell: impl FnMut(MigrateProgress) + Send,
) -> Result<MigrateReport> {
    Registry::builtin().migrate_store(url, options, how, tell).await
}

impl Registry {
    /// Migrates a store of any engine of this registry, see [`migrate_store`].
    ///
    /// # Errors
    /// As [`migrate_store`].
    pub async fn migrate_store(
        &self,
        url: &str,
        options: &OpenStoreOptions,
        how: &MigrateOptions,
        mut tell: impl FnMut(MigrateProgress) + Send,
    ) -> Result<MigrateReport> {
        self.locate_in(url, options)?.migrate(how, &mut tell).await
    }
}

impl Config {
    /// Migrates a store of the configuration, see [`migrate_store`].
    ///
    /// # Errors
    /// [`NotFound`](treehold_core::error::ErrorKind::NotFound) for an unknown name; otherwise as [`migrate_store`].
    pub async fn migrate_store(
        &self,
        name: &str,
        how: &MigrateOptions,
        mut tell: impl FnMut(MigrateProgress) + Send,
    ) -> Result<MigrateReport> {
        // Fails with the names of the stores if there is none with this name.
        self.stores()?.get(name)?;
        self.locate(&self.stores[name].url)?.migrate(how, &mut tell).await
    }
}
