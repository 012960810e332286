//! Opens a store by its URL, without a configuration.

#[cfg(feature = "cli")]
use super::StoreConfig;
use super::registry::Located;
use super::{Config, ConfigBase, Registry};
use std::path::PathBuf;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_store::Store;

/// Options for opening a store by its URL.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenStoreOptions {
    /// The directory that relative paths are resolved against, and the value of `{data}`. Default the working directory.
    pub directory: PathBuf,
    /// Whether to create the store if it is missing: the file or directory of an embedded store, or the tables or keys on a server.
    /// Default true.
    pub create: bool,
}

impl Default for OpenStoreOptions {
    fn default() -> Self {
        Self { directory: PathBuf::new(), create: true }
    }
}

impl OpenStoreOptions {
    /// Resolves paths against the working directory and creates missing stores.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the directory that relative paths are resolved against.
    #[must_use]
    pub fn with_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = directory.into();
        self
    }

    /// Sets whether to create a missing store.
    #[must_use]
    pub fn with_create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }
}

/// Opens the store at a URL: `sqlite:FILE`, `sqlite:DIRECTORY/`, `sled:DIRECTORY`, `postgres://…`, `mysql://…`, `redis://…`, `memory:`, or
/// `env:VARIABLE` for a URL in an environment variable.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for a malformed URL, [`NotFound`](ErrorKind::NotFound) for a missing store that is not
/// to be created, [`Unsupported`](ErrorKind::Unsupported) for an engine that this program was built without, and errors of the
/// engine.
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
    Registry::builtin().open_store(url, options).await
}

/// Returns the file of the SQLite store at a URL, or `None` for another engine.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for a malformed URL.
pub fn sqlite_file(url: &str, options: &OpenStoreOptions) -> Result<Option<PathBuf>> {
    Registry::builtin().sqlite_file(url, options)
}

impl Registry {
    /// Opens a store of any engine of this registry, see [`open_store`].
    ///
    /// # Errors
    /// As [`open_store`].
    pub async fn open_store(&self, url: &str, options: &OpenStoreOptions) -> Result<Arc<dyn Store>> {
        let located = self.locate_in(url, options)?;
        if !options.create && !located.location.exists().await? {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("there is no store at `{located}`; correct the URL, or name another store"),
            ));
        }
        located.open().await
    }

    /// Returns the file of the SQLite store at a URL, or `None` for another engine.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a malformed URL.
    pub fn sqlite_file(&self, url: &str, options: &OpenStoreOptions) -> Result<Option<PathBuf>> {
        Ok(self.locate_in(url, options)?.sqlite_file())
    }

    /// Finds the store that a URL names, with the paths of some options.
    pub(super) fn locate_in(&self, url: &str, options: &OpenStoreOptions) -> Result<Located> {
        self.config(&ConfigBase::new(&options.directory, &options.directory)).locate(url)
    }
}

impl Config {
    /// Finds the store that a URL names.
    pub(super) fn locate(&self, url: &str) -> Result<Located> {
        self.registry.locate(url, &|path| self.store_path(path))
    }

    /// Returns the directory of the embedded store at a URL. It is `None` for a server, for memory and beneath the directory of durable data.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a malformed URL.
    #[cfg(feature = "cli")]
    pub(crate) fn store_directory(&self, url: &str) -> Result<Option<PathBuf>> {
        let located = self.locate(url)?;
        let directory = located.path().and_then(|path| path.parent()).filter(|directory| !directory.starts_with(&self.data));
        Ok(directory.map(PathBuf::from))
    }

    /// Replaces what opening or reading the tree would create: embedded stores that do not exist by empty ones in memory, and no audit log
    /// and no directory of a route is created.
    #[cfg(feature = "cli")]
    pub(crate) fn create_nothing(&mut self) {
        let is_missing = |url: &str| self.locate(url).is_ok_and(|located| located.path().is_some_and(|path| !path.exists()));
        let missing: Vec<String> = self.stores.iter().filter(|(_, store)| is_missing(&store.url)).map(|(name, _)| name.clone()).collect();
        let is_internal_missing = self.traces.internal.as_ref().is_some_and(|internal| is_missing(&internal.url));
        for name in missing {
            self.stores.insert(name, StoreConfig::new("memory:"));
        }
        if is_internal_missing && let Some(internal) = &mut self.traces.internal {
            internal.url = "memory:".to_owned();
        }
        self.layers.audit = None;
        for route in self.routes.values_mut().filter(|route| route.create_root == Some(true)) {
            route.create_root = Some(false);
        }
    }

    /// Returns the file of the named SQLite store, or `None` for another engine.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for a name that is not in the configuration, [`InvalidArgument`](ErrorKind::InvalidArgument) for a
    /// malformed URL.
    pub fn sqlite_file(&self, name: &str) -> Result<Option<PathBuf>> {
        self.stores()?.get(name)?;
        let store = self.stores.get(name);
        Ok(store.map(|store| self.locate(&store.url)).transpose()?.and_then(|located| located.sqlite_file()))
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn missing_store_is_not_created_if_creation_is_off() {
        let directory = tempfile::tempdir().expect("a directory");
        let options = OpenStoreOptions::new().with_directory(directory.path());
        let error = open_store("sqlite:a.db", &options.clone().with_create(false)).await.expect_err("it does not exist");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(std::fs::read_dir(directory.path()).expect("listed").count(), 0);
        drop(open_store("sqlite:a.db", &options).await.expect("made"));
        open_store("sqlite:a.db", &options.clone().with_create(false)).await.expect("it exists now");
        std::fs::write(directory.path().join("empty.db"), "").expect("written");
        std::fs::create_dir(directory.path().join("empty")).expect("made");
        for url in ["sqlite:empty.db", "sqlite:empty/"] {
            let error = open_store(url, &options.clone().with_create(false)).await.expect_err("it is empty");
            assert_eq!(error.kind(), ErrorKind::NotFound, "{url}: {error}");
        }
        open_store("memory:", &options.with_create(false)).await.expect("it is always there");
    }

    #[tokio::test]
    async fn malformed_url_error_omits_password() {
        let error = open_store("postgre://ada:s3cret@db/x", &OpenStoreOptions::new()).await.expect_err("no such engine");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(!error.message().contains("s3cret"), "{error}");
    }
}
