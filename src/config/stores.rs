//! The stores of a configuration, each opened on first use.

use super::migrate_store::former_file;
#[cfg(any(feature = "sled", feature = "sqlite"))]
use super::once::open_once;
use super::once_server::open_server_once;
use super::url::{StoreUrl, from_variable, without_password};
use super::{Config, StoreConfig, check};
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Mutex;
use treehold_core::error::{AtHost, Error, ErrorKind, Result};
use treehold_core::ops::{Durability, Version};
use treehold_store::migrate::COMMAND;
use treehold_store::{
    Batch, Item, ItemPart, LentRows, MemoryStore, Namespace, NamespacePage, NamespacesOptions, OldLayout, Scan, ScanOptions, Store,
    StoreCapabilities, StoreDescription, StoreStats, Sweeper, SweeperOptions, Watch,
};

/// The stores of a configuration by name. Clones share the open stores.
#[derive(Debug, Clone)]
pub struct Stores {
    stores: BTreeMap<String, Arc<dyn Store>>,
}

impl Stores {
    /// Creates the stores of a configuration without opening them.
    pub(super) fn new(config: &Config) -> Result<Self> {
        let stores = config
            .stores
            .iter()
            .map(|(name, store)| Ok((name.clone(), Arc::new(LazyStore::new(name, store, config)?) as Arc<dyn Store>)))
            .collect::<Result<_>>()?;
        Ok(Self { stores })
    }

    /// Returns a store. Its first call opens it.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for a name that is not in the configuration.
    pub fn get(&self, name: &str) -> Result<Arc<dyn Store>> {
        self.stores.get(name).cloned().ok_or_else(|| {
            let names = self.stores.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            Error::new(ErrorKind::NotFound, format!("no store is named `{name}`; the configuration names {names}"))
        })
    }

    /// Returns every store with its name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Arc<dyn Store>)> {
        self.stores.iter().map(|(name, store)| (name.as_str(), store))
    }
}

/// An engine and its location.
#[derive(Clone)]
pub(super) enum Engine {
    Memory,
    Sled(PathBuf),
    Sqlite(PathBuf),
    Postgres(String),
    Mysql(String),
    Redis(String),
}

/// A store that is opened by its first call. If opening fails, that call fails and the next one tries again.
#[derive(Clone)]
struct LazyStore(Arc<Lazy>);

struct Lazy {
    name: String,
    engine: Engine,
    store: OnceLock<Arc<dyn Store>>,
    /// The interval between sweeps.
    sweep_every: Option<Duration>,
    sweeper: OnceLock<Sweeper>,
    /// Locked while the store is opened, so that it is opened once.
    opening: Mutex<()>,
}

impl LazyStore {
    fn new(name: &str, store: &StoreConfig, config: &Config) -> Result<Self> {
        let engine = Engine::named(&store.url, config)?;
        let sweep_every = check::sweep_every(&store.sweep_every)?;
        let (name, opening) = (name.to_owned(), Mutex::default());
        let lazy = Lazy { name, engine, store: OnceLock::new(), sweep_every, sweeper: OnceLock::new(), opening };
        Ok(Self(Arc::new(lazy)))
    }

    /// Returns the store, opening it if needed. It is opened in a separate task, which completes even if the caller is cancelled, so that
    /// later calls never find it half open.
    async fn opened(&self) -> Result<&Arc<dyn Store>> {
        if let Some(store) = self.0.store.get() {
            return Ok(store);
        }
        let lazy = self.0.clone();
        tokio::spawn(async move { lazy.open().await })
            .await
            .map_err(|error| Error::new(ErrorKind::Internal, "a store stopped while it was opened").with_source(error))??;
        self.0.store.get().ok_or_else(|| Error::new(ErrorKind::Internal, "a store that was opened is not there"))
    }
}

impl Lazy {
    async fn open(&self) -> Result<()> {
        let _opening = self.opening.lock().await;
        if self.store.get().is_some() {
            return Ok(());
        }
        let store = self.engine.open().await.map_err(|error| {
            // Name the store in the command that the message suggests.
            let reason = error.message().replace(COMMAND, &format!("`treehold store migrate {}`", self.name));
            let message = format!("the store `{}` cannot be opened: {reason}", self.name);
            error.with_message(message).without_effect()
        })?;
        let store = self.store.get_or_init(|| store);
        self.warn_of(&**store).await;
        if let Some(every) = self.sweep_every {
            self.sweeper.get_or_init(|| Sweeper::start(store, SweeperOptions::new().with_every(every)));
        }
        Ok(())
    }

    /// Warns the operator about a store that may lose data on power loss.
    async fn warn_of(&self, store: &dyn Store) {
        if store.capabilities().durability == Durability::Power {
            return;
        }
        // If the description fails, `doctor` reports it later; the store is open all the same.
        let Ok(description) = store.describe().await else { return };
        for notice in description.notices {
            tracing::warn!(store = self.name, engine = description.engine, "{notice}");
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Sled(directory) => write!(f, "sled:{}", directory.display()),
            Self::Sqlite(file) => write!(f, "sqlite:{}", file.display()),
            Self::Postgres(url) | Self::Mysql(url) | Self::Redis(url) => f.write_str(&without_password(url)),
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({self})")
    }
}

impl Engine {
    /// Returns the engine that a URL names.
    pub(super) fn named(url: &str, config: &Config) -> Result<Self> {
        let parse = |url| StoreUrl::parse(url).map_err(|(message, _)| Error::invalid_argument(message));
        Ok(match parse(url)? {
            StoreUrl::Memory => Self::Memory,
            StoreUrl::Sled(directory) => Self::Sled(config.store_path(directory)),
            StoreUrl::Sqlite(file) => Self::Sqlite(config.store_path(file)),
            StoreUrl::Postgres(url) => Self::Postgres(url.to_owned()),
            StoreUrl::Mysql(url) => Self::Mysql(url.to_owned()),
            StoreUrl::Redis(url) => Self::Redis(url.to_owned()),
            StoreUrl::Variable(variable) => {
                let url = from_variable(variable)?;
                if url.starts_with("env:") {
                    return Err(Error::invalid_argument(format!(
                        "the variable `{variable}` names another one; put the URL itself into it"
                    )));
                }
                Self::named(&url, config)?
            }
        })
    }

    /// Returns the path of an embedded store.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::Sled(path) | Self::Sqlite(path) => Some(path),
            Self::Memory | Self::Postgres(_) | Self::Mysql(_) | Self::Redis(_) => None,
        }
    }

    /// Returns the file of a SQLite store.
    pub(super) fn sqlite_file(self) -> Option<PathBuf> {
        if let Self::Sqlite(file) = self { Some(file) } else { None }
    }

    pub(super) async fn open(&self) -> Result<Arc<dyn Store>> {
        match self {
            Self::Memory => Ok(Arc::new(MemoryStore::new())),
            Self::Sled(directory) => blocking(directory, open_sled).await,
            Self::Sqlite(file) => {
                if let Some(former) = former_file(file) {
                    let error = OldLayout::error(Some(Box::new(AtHost::new(&former))));
                    let message = format!("its former default file, `stratafs.db`, has to be taken over; run {COMMAND}");
                    return Err(error.with_message(message));
                }
                blocking(file, open_sqlite).await
            }
            Self::Postgres(url) => open_server_once(url, open_postgres(url)).await,
            Self::Mysql(url) => open_server_once(url, open_mysql(url)).await,
            Self::Redis(url) => open_server_once(url, open_redis(url)).await,
        }
    }

    /// Returns the capabilities of the engine's stores, without opening one.
    fn capabilities(&self) -> StoreCapabilities {
        match self {
            Self::Memory => MemoryStore::offers(),
            #[cfg(feature = "sled")]
            Self::Sled(_) => treehold_sled::SledStore::offers(),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => treehold_sqlite::SqliteStore::offers(),
            #[cfg(feature = "mysql")]
            Self::Mysql(_) => treehold_mysql::MysqlStore::offers(),
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => treehold_postgres::PostgresStore::offers(),
            #[cfg(feature = "redis")]
            Self::Redis(_) => treehold_redis::RedisStore::offers(),
            // An engine that is not built in cannot be opened and has no capabilities.
            #[allow(unreachable_patterns, reason = "there is nothing else where all engines are built in")]
            _ => StoreCapabilities::new(Durability::None),
        }
    }
}

/// Opens a blocking engine on a blocking thread.
async fn blocking(path: &Path, open: fn(&Path) -> Result<Arc<dyn Store>>) -> Result<Arc<dyn Store>> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || open(&path))
        .await
        .map_err(|error| Error::new(ErrorKind::Internal, "a store stopped while it was opened").with_source(error))?
}

#[cfg(feature = "postgres")]
async fn open_postgres(url: &str) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(treehold_postgres::PostgresStore::open(url).await?))
}

#[cfg(not(feature = "postgres"))]
async fn open_postgres(_url: &str) -> Result<Arc<dyn Store>> {
    Err(built_without("postgres"))
}

#[cfg(feature = "mysql")]
async fn open_mysql(url: &str) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(treehold_mysql::MysqlStore::open(url).await?))
}

#[cfg(not(feature = "mysql"))]
async fn open_mysql(_url: &str) -> Result<Arc<dyn Store>> {
    Err(built_without("mysql"))
}

#[cfg(feature = "redis")]
async fn open_redis(url: &str) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(treehold_redis::RedisStore::open(url).await?))
}

#[cfg(not(feature = "redis"))]
async fn open_redis(_url: &str) -> Result<Arc<dyn Store>> {
    Err(built_without("redis"))
}

#[allow(dead_code, reason = "there is nothing to say where all engines are built in")]
pub(super) fn built_without(feature: &str) -> Error {
    Error::unsupported(format!("this program was built without `{feature}`; build it with that feature or name another engine"))
}

#[cfg(feature = "sqlite")]
fn open_sqlite(file: &Path) -> Result<Arc<dyn Store>> {
    create_parent(file)?;
    open_once(file, file, |file| Ok(Arc::new(treehold_sqlite::SqliteStore::open(file)?)))
}

#[cfg(not(feature = "sqlite"))]
fn open_sqlite(_file: &Path) -> Result<Arc<dyn Store>> {
    Err(built_without("sqlite"))
}

#[cfg(feature = "sled")]
fn open_sled(directory: &Path) -> Result<Arc<dyn Store>> {
    create_parent(directory)?;
    open_once(directory, &directory.join("db"), |directory| Ok(Arc::new(treehold_sled::SledStore::open(directory)?)))
}

#[cfg(not(feature = "sled"))]
fn open_sled(_directory: &Path) -> Result<Arc<dyn Store>> {
    Err(built_without("sled"))
}

/// Creates the parent directory of a store for its owner only. An existing directory is left as it is.
#[cfg(any(feature = "sled", feature = "sqlite"))]
pub(super) fn create_parent(path: &Path) -> Result<()> {
    let Some(parent) = path.parent().filter(|parent| !parent.exists()) else { return Ok(()) };
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(parent).map_err(|error| {
        let kind = match error.kind() {
            std::io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
            _ => ErrorKind::Unavailable,
        };
        let message = "the directory it stands in cannot be made; change the permissions above it or name another place";
        Error::new(kind, message).with_source(AtHost::new(parent).with_cause(error))
    })
}

impl fmt::Display for LazyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.store.get() {
            Some(store) => store.fmt(f),
            None => self.0.engine.fmt(f),
        }
    }
}

impl fmt::Debug for LazyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyStore").field("name", &self.0.name).field("engine", &self.0.engine).field("store", &self.0.store.get()).finish()
    }
}

#[async_trait]
impl Store for LazyStore {
    /// Returns the capabilities of the store if it is open, otherwise those of its engine. Opens nothing.
    fn capabilities(&self) -> StoreCapabilities {
        self.0.store.get().map_or_else(|| self.0.engine.capabilities(), |store| store.capabilities())
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        self.opened().await?.get(namespace, key).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        self.opened().await?.get_part(namespace, key, range).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        self.opened().await?.get_many(namespace, keys, with_values).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.opened().await?.scan(namespace, options).await
    }

    async fn lend(&self, namespace: &Namespace) -> Result<Option<Arc<dyn LentRows>>> {
        self.opened().await?.lend(namespace).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.opened().await?.namespaces(options).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        self.opened().await?.commit(batch).await
    }

    async fn current_version(&self) -> Result<Version> {
        self.opened().await?.current_version().await
    }

    async fn sweep(&self, limit: usize) -> Result<usize> {
        self.opened().await?.sweep(limit).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.opened().await?.watch(namespace).await
    }

    async fn describe(&self) -> Result<StoreDescription> {
        self.opened().await?.describe().await
    }

    async fn stats(&self) -> Result<StoreStats> {
        self.opened().await?.stats().await
    }

    async fn check(&self) -> Result<Vec<Error>> {
        self.opened().await?.check().await
    }
}

#[cfg(test)]
mod tests {
    use super::super::Place;
    use super::*;

    fn stores(directory: &Path, text: &str) -> Stores {
        let config = Config::parse(text, &Place::new(directory, directory)).expect("a sound configuration");
        config.stores().expect("stores")
    }

    /// Reading the capabilities opened the store and created its file.
    #[cfg(all(feature = "sled", feature = "sqlite"))]
    #[tokio::test]
    async fn reading_capabilities_opens_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let text = "[stores.default]\nurl = \"sqlite:a/one.db\"\n[stores.tree]\nurl = \"sled:b/tree\"\n[stores.quick]\nurl = \"memory:\"";
        let stores = stores(directory.path(), text);
        for (name, store) in stores.iter() {
            let offered = store.capabilities();
            assert_eq!(std::fs::read_dir(directory.path()).expect("listed").count(), 0, "{name}");
            let opened = lazy(directory.path(), text, name).0.engine.open().await.expect("opened");
            assert_eq!(offered, opened.capabilities(), "{name}");
            drop(opened);
            for made in ["a", "b"] {
                let _ = std::fs::remove_dir_all(directory.path().join(made));
            }
        }
    }

    #[cfg(all(feature = "sled", feature = "sqlite"))]
    fn lazy(directory: &Path, text: &str, name: &str) -> LazyStore {
        let config = Config::parse(text, &Place::new(directory, directory)).expect("a sound configuration");
        LazyStore::new(name, &config.stores[name], &config).expect("a url")
    }

    /// The message, which a model may read, contained the host path.
    #[cfg(all(feature = "sled", feature = "sqlite"))]
    #[tokio::test]
    async fn open_error_names_the_store_and_not_its_host_path() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("taken"), "x").expect("written");
        std::fs::create_dir(directory.path().join("other")).expect("made");
        std::fs::write(directory.path().join("other/file"), "x").expect("written");
        let text = "[stores.default]\nurl = \"sqlite:taken/one.db\"\n[stores.foreign]\nurl = \"sqlite:taken\"\n\
                    [stores.dir]\nurl = \"sqlite:other\"\n[stores.tree]\nurl = \"sled:taken\"\n[stores.full]\nurl = \"sled:other\"";
        let host = directory.path().display().to_string();
        for (name, store) in stores(directory.path(), text).iter() {
            let Err(error) = store.current_version().await else { panic!("`{name}` is open") };
            assert!(error.message().starts_with(&format!("the store `{name}` cannot be opened: ")), "{error}");
            assert!(!error.message().contains(&host) && !error.message().contains("taken"), "{error}");
            let mut causes = std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
            assert!(causes.any(|cause| cause.to_string().contains(&host)), "{name}: {error:?}");
            assert!(error.is_without_effect());
        }
    }
}
