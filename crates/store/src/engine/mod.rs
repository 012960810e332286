//! Engines by the scheme of their URLs, so that a configuration can name engines of other crates.
//!
//! An engine is a [`StoreEngine`]: it knows its schemes and turns a [`StoreUrl`] into a [`StoreLocation`], which opens
//! the store. `treehold::config::Registry` collects engines; each built-in engine is registered there like any other.
//!
//! # Examples
//! ```
//! use async_trait::async_trait;
//! use std::fmt;
//! use std::sync::Arc;
//! use treehold_core::Result;
//! use treehold_store::engine::{InvalidStoreUrl, StoreEngine, StoreLocation, StoreUrl};
//! use treehold_store::{MemoryStore, Store, StoreCapabilities};
//!
//! /// Stores named `scratch:`, each of its own.
//! #[derive(Debug)]
//! struct Scratch;
//!
//! impl StoreEngine for Scratch {
//!     fn schemes(&self) -> &[&str] {
//!         &["scratch"]
//!     }
//!
//!     fn url_form(&self) -> &str {
//!         "scratch:"
//!     }
//!
//!     fn locate(&self, url: &StoreUrl<'_>) -> Result<Arc<dyn StoreLocation>, InvalidStoreUrl> {
//!         url.require_no_location()?;
//!         Ok(Arc::new(Anywhere))
//!     }
//! }
//!
//! #[derive(Debug)]
//! struct Anywhere;
//!
//! impl fmt::Display for Anywhere {
//!     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
//!         f.write_str("scratch:")
//!     }
//! }
//!
//! #[async_trait]
//! impl StoreLocation for Anywhere {
//!     fn capabilities(&self) -> StoreCapabilities {
//!         MemoryStore::offers()
//!     }
//!
//!     async fn open(&self) -> Result<Arc<dyn Store>> {
//!         Ok(Arc::new(MemoryStore::new()))
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<()> {
//! let url = StoreUrl::new("scratch:", &|path| path.into()).expect("it names a scheme");
//! let store = Scratch.locate(&url).expect("a sound URL").open().await?;
//! assert_eq!(store.capabilities(), Scratch.locate(&url).expect("a sound URL").capabilities());
//! # Ok(())
//! # }
//! ```

mod directory;
mod memory;
mod migrating;
mod once;
mod once_server;
mod server;
mod url;

pub use directory::create_parent;
pub use memory::MemoryEngine;
pub use migrating::migrate_blocking;
pub use once::{open_embedded, open_once};
pub use once_server::{ServerUrl, open_server_once};
pub use server::{ServerLocation, ServerStore};
pub use url::{InvalidStoreUrl, StoreUrl, without_password};

use super::{MigrateOptions, MigrateProgress, MigrateReport, Store, StoreCapabilities};
use async_trait::async_trait;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
#[cfg(doc)]
use treehold_core::error::ErrorKind;
use treehold_core::error::Result;

/// An engine whose stores a URL can name.
pub trait StoreEngine: Send + Sync + fmt::Debug {
    /// Returns the schemes of the engine's URLs, without the colon. The first is the name of the engine.
    fn schemes(&self) -> &[&str];

    /// Returns the form of a URL for messages: `sqlite:FILE`.
    fn url_form(&self) -> &str;

    /// Returns all forms of a URL for messages. By default [`url_form`](Self::url_form) is the only one.
    fn url_forms(&self) -> Vec<&str> {
        vec![self.url_form()]
    }

    /// Parses and checks a URL with one of the engine's schemes. Opens and creates nothing.
    ///
    /// # Errors
    /// A fault that says what is wrong with the URL and how to write it.
    fn locate(&self, url: &StoreUrl<'_>) -> Result<Arc<dyn StoreLocation>, InvalidStoreUrl>;

    /// Returns a URL of this engine without its secrets, to be shown. By default the password and unknown
    /// parameters of `scheme://…` are hidden, and any other URL is shown as it is.
    fn shown(&self, url: &str) -> String {
        match url.split_once(':') {
            Some((_, rest)) if rest.starts_with("//") => without_password(url),
            _ => url.to_owned(),
        }
    }
}

/// The location of a store: a checked URL.
///
/// `Display` names the location without secrets: `sqlite:/srv/agent.db`.
#[async_trait]
pub trait StoreLocation: Send + Sync + fmt::Display + fmt::Debug {
    /// Returns the capabilities of stores of this engine, without opening one.
    fn capabilities(&self) -> StoreCapabilities;

    /// Returns the file or directory of an embedded store: trees may not change it, and it exists once the store does.
    /// By default none.
    fn path(&self) -> Option<&Path> {
        None
    }

    /// Returns whether a store is there, of the present or a former layout. Creates and changes nothing. By default, a store with a
    /// [`path`](Self::path) is there if the path exists, and one without is always there.
    ///
    /// # Errors
    /// Those of the engine, as for [`open`](Self::open).
    async fn exists(&self) -> Result<bool> {
        Ok(self.path().is_none_or(Path::exists))
    }

    /// Opens the store, and creates it if it is missing. [`open_once`] and [`open_server_once`] share one open store
    /// among all callers that open the same location.
    ///
    /// # Errors
    /// Those of the engine. The message has no host path and no secret; those go to the source.
    async fn open(&self) -> Result<Arc<dyn Store>>;

    /// Migrates a store of an older layout to the present one and reports the progress. By default there is nothing to
    /// migrate.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if there is no store. [`Unavailable`](ErrorKind::Unavailable) if other
    /// processes use it. Otherwise those of the engine.
    async fn migrate(&self, options: &MigrateOptions, report: &mut (dyn FnMut(MigrateProgress) + Send)) -> Result<MigrateReport> {
        let _ = (options, report);
        Ok(MigrateReport::up_to_date())
    }
}
