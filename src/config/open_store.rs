//! A store by its URL, without a configuration.

use super::stores::Engine;
use super::{Config, Place};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;
use std::path::PathBuf;
use std::sync::Arc;

/// How to open a store by its URL.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenStoreOptions {
    /// What a relative path of the URL is resolved against, and what `{data}` in it stands for. Default: the working directory.
    pub directory: PathBuf,
    /// Makes the file or directory of an embedded store where there is none. Default true. A server is asked in any case, and
    /// the tables that a store needs there are made.
    pub create: bool,
}

impl Default for OpenStoreOptions {
    fn default() -> Self {
        Self { directory: PathBuf::new(), create: true }
    }
}

impl OpenStoreOptions {
    /// Resolves against the working directory, and creates what is missing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets what a relative path is resolved against.
    #[must_use]
    pub fn with_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = directory.into();
        self
    }

    /// Sets whether what is missing is made.
    #[must_use]
    pub fn with_create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }
}

/// Opens the store that a URL names: `sqlite:FILE`, `sled:DIRECTORY`, `postgres://…`, `mysql://…`, `redis://…`, `memory:`, or
/// `env:VARIABLE` for a URL that the environment holds.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for what is no such URL, [`NotFound`](ErrorKind::NotFound) for an embedded store that
/// is not there and not to be created, [`Unsupported`](ErrorKind::Unsupported) for an engine that this program was built without,
/// and those of the engine.
///
/// # Examples
/// ```
/// use treehold::config::{OpenStoreOptions, open_store};
/// use treehold::store::Store;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold::Result<()> {
/// let store = open_store("memory:", &OpenStoreOptions::new()).await?;
/// assert_eq!(store.to_string(), "memory");
/// # Ok(())
/// # }
/// ```
pub async fn open_store(url: &str, options: &OpenStoreOptions) -> Result<Arc<dyn Store>> {
    let engine = Engine::named(url, &Config::builtin(&Place::new(&options.directory, &options.directory)))?;
    if !options.create && engine.path().is_some_and(|path| !path.exists()) {
        return Err(Error::new(ErrorKind::NotFound, format!("there is no store at `{engine}`; name one that exists")));
    }
    engine.open().await
}

/// Returns the file of the SQLite store that a URL names; none for another engine.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for what is no such URL.
pub fn sqlite_file(url: &str, options: &OpenStoreOptions) -> Result<Option<PathBuf>> {
    Ok(Engine::named(url, &Config::builtin(&Place::new(&options.directory, &options.directory)))?.sqlite_file())
}

impl Config {
    /// Returns the file of the SQLite store of a name; none for another engine.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for a name that the configuration does not have,
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a URL that is none.
    pub fn sqlite_file(&self, name: &str) -> Result<Option<PathBuf>> {
        self.stores()?.get(name)?;
        let store = self.stores.get(name);
        Ok(store.map(|store| Engine::named(&store.url, self)).transpose()?.and_then(|engine| engine.sqlite_file()))
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_store_that_is_only_read_is_not_made() {
        let directory = tempfile::tempdir().expect("a directory");
        let options = OpenStoreOptions::new().with_directory(directory.path());
        let error = open_store("sqlite:a.db", &options.clone().with_create(false)).await.expect_err("it is not there");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(std::fs::read_dir(directory.path()).expect("listed").count(), 0);
        drop(open_store("sqlite:a.db", &options).await.expect("made"));
        open_store("sqlite:a.db", &options.with_create(false)).await.expect("it is there now");
    }

    #[tokio::test]
    async fn what_is_no_url_is_told_without_its_password() {
        let error = open_store("postgre://ada:s3cret@db/x", &OpenStoreOptions::new()).await.expect_err("no such engine");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(!error.message().contains("s3cret"), "{error}");
    }
}
