//! The stores of a configuration, each opened on first use.

use super::overlap::{ADVICE, overlap};
use super::registry::Located;
use super::traces::INTERNAL_STORE;
use super::{Config, StoreConfig, check};
use async_trait::async_trait;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Mutex;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Durability, Version};
use treehold_store::migrate::COMMAND;
use treehold_store::{
    Batch, Faults, FilteredScan, Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Partition, PartitionPage, RowsSnapshot, Scan,
    ScanOptions, SnapshotRows, Store, StoreCapabilities, StoreDescription, StoreExt, StoreExtensions, StoreMaintenance, StoreStats,
    SweepCount, Sweeper, SweeperCounts, SweeperOptions, Watch,
};

/// The stores of a configuration by name. Clones share the open stores.
#[derive(Debug, Clone)]
pub struct Stores {
    stores: BTreeMap<String, Arc<dyn Store>>,
    swept: SweeperCounts,
}

impl Stores {
    /// Creates the stores of a configuration without opening them.
    pub(super) fn new(config: &Config) -> Result<Self> {
        let internal = config.traces.internal.as_ref().map(|internal| (INTERNAL_STORE.to_owned(), StoreConfig::new(&internal.url)));
        let swept = SweeperCounts::new();
        let all: Vec<(String, StoreConfig)> = config.stores.clone().into_iter().chain(internal).collect();
        let located: Vec<_> = all.iter().map(|(name, store)| Ok((name.clone(), config.locate(&store.url)?))).collect::<Result<_>>()?;
        if let Some(found) = overlap(located) {
            return Err(Error::invalid_argument(format!("{}; {ADVICE}", found.message)));
        }
        let stores = all
            .into_iter()
            .map(|(name, store)| Ok((name.clone(), Arc::new(LazyStore::new(&name, &store, config, &swept)?) as Arc<dyn Store>)))
            .collect::<Result<_>>()?;
        Ok(Self { stores, swept })
    }

    /// Counts what the sweepers of all stores have done since the stores were opened.
    pub fn swept(&self) -> &SweeperCounts {
        &self.swept
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

/// A store that is opened by its first call. If opening fails, that call fails and the next one tries again.
#[derive(Clone)]
struct LazyStore(Arc<Lazy>);

struct Lazy {
    name: String,
    located: Located,
    store: OnceLock<Arc<dyn Store>>,
    /// The interval between sweeps.
    sweep_every: Option<Duration>,
    sweeper: OnceLock<Sweeper>,
    swept: SweeperCounts,
    /// Locked while the store is opened, so that it is opened once.
    opening: Mutex<()>,
}

impl LazyStore {
    fn new(name: &str, store: &StoreConfig, config: &Config, swept: &SweeperCounts) -> Result<Self> {
        let located = config.locate(&store.url)?;
        let sweep_every = check::sweep_every(&store.sweep_every)?;
        let (name, swept, opening) = (name.to_owned(), swept.clone(), Mutex::default());
        let lazy = Lazy { name, located, store: OnceLock::new(), sweep_every, sweeper: OnceLock::new(), swept, opening };
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
            .map_err(|error| Error::new(ErrorKind::Internal, "opening a store was interrupted").with_source(error))??;
        self.0.store.get().ok_or_else(|| Error::new(ErrorKind::Internal, "a store that was opened is missing"))
    }
}

impl Lazy {
    async fn open(&self) -> Result<()> {
        let _opening = self.opening.lock().await;
        if self.store.get().is_some() {
            return Ok(());
        }
        let store = self.located.open().await.map_err(|error| {
            // Name the store in the command that the message suggests.
            let reason = error.message().replace(COMMAND, &format!("`treehold store migrate {}`", self.name));
            let message = format!("the store `{}` cannot be opened: {reason}", self.name);
            error.with_message(message).without_effect()
        })?;
        let store = self.store.get_or_init(|| store);
        self.warn_of(&**store).await;
        if let Some(every) = self.sweep_every {
            self.sweeper.get_or_init(|| Sweeper::start_counting(store, SweeperOptions::new().with_every(every), self.swept.clone()));
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

impl fmt::Display for LazyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.store.get() {
            Some(store) => store.fmt(f),
            None => self.0.located.fmt(f),
        }
    }
}

impl fmt::Debug for LazyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyStore")
            .field("name", &self.0.name)
            .field("located", &self.0.located)
            .field("store", &self.0.store.get())
            .finish()
    }
}

#[async_trait]
impl Store for LazyStore {
    /// Returns the capabilities of the store if it is open, otherwise those of its engine. Opens nothing.
    fn capabilities(&self) -> StoreCapabilities {
        self.0.store.get().map_or_else(|| self.0.located.location.capabilities(), |store| store.capabilities())
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        StoreExtensions::new().with_maintenance(self).with_snapshot_rows(self).with_filtered_scan(self)
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

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.opened().await?.namespaces(options).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        self.opened().await?.commit(batch).await
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.opened().await?.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.opened().await?.watch(namespace).await
    }
}

#[async_trait]
impl SnapshotRows for LazyStore {
    async fn snapshot_rows(&self, namespace: &Namespace) -> Result<Option<Arc<dyn RowsSnapshot>>> {
        self.opened().await?.snapshot_rows(namespace).await
    }
}

#[async_trait]
impl FilteredScan for LazyStore {
    async fn scan_holding(&self, namespace: &Namespace, options: ScanOptions, text: &Bytes) -> Result<Scan> {
        self.opened().await?.scan_holding(namespace, options, text).await
    }
}

#[async_trait]
impl StoreMaintenance for LazyStore {
    async fn sweep(&self, limit: usize) -> Result<usize> {
        self.opened().await?.sweep(limit).await
    }

    async fn sweep_counting(&self, limit: usize, count: &SweepCount) -> Result<usize> {
        self.opened().await?.sweep_counting(limit, count).await
    }

    async fn shrink(&self, pages: usize) -> Result<usize> {
        self.opened().await?.shrink(pages).await
    }

    async fn shrink_counting(&self, pages: usize, count: &SweepCount) -> Result<usize> {
        self.opened().await?.shrink_counting(pages, count).await
    }

    async fn partitions(&self, start_after: Option<&Partition>, limit: usize) -> Result<Option<PartitionPage>> {
        self.opened().await?.partitions(start_after, limit).await
    }

    async fn compact(&self) -> Result<bool> {
        self.opened().await?.compact().await
    }

    async fn describe(&self) -> Result<StoreDescription> {
        self.opened().await?.describe().await
    }

    async fn stats(&self) -> Result<StoreStats> {
        self.opened().await?.stats().await
    }

    async fn stats_with_faults(&self, faults: &mut Faults) -> Result<StoreStats> {
        self.opened().await?.stats_with_faults(faults).await
    }

    async fn check(&self) -> Result<Vec<Error>> {
        self.opened().await?.check().await
    }
}

#[cfg(test)]
mod tests {
    use super::super::ConfigBase;
    use super::*;
    use std::path::Path;

    fn stores(directory: &Path, text: &str) -> Stores {
        let config = Config::parse(text, &ConfigBase::new(directory, directory)).expect("a sound configuration");
        config.stores().expect("stores")
    }

    /// Regression: reading the capabilities opened the store and created its file.
    #[cfg(all(feature = "sled", feature = "sqlite"))]
    #[tokio::test]
    async fn reading_capabilities_opens_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let text = "[stores.default]\nurl = \"sqlite:a/one.db\"\n[stores.tree]\nurl = \"sled:b/tree\"\n[stores.quick]\nurl = \"memory:\"";
        let stores = stores(directory.path(), text);
        for (name, store) in stores.iter() {
            let offered = store.capabilities();
            assert_eq!(std::fs::read_dir(directory.path()).expect("listed").count(), 0, "{name}");
            let opened = lazy(directory.path(), text, name).0.located.open().await.expect("opened");
            assert_eq!(offered, opened.capabilities(), "{name}");
            drop(opened);
            for made in ["a", "b"] {
                let _ = std::fs::remove_dir_all(directory.path().join(made));
            }
        }
    }

    #[cfg(all(feature = "sled", feature = "sqlite"))]
    fn lazy(directory: &Path, text: &str, name: &str) -> LazyStore {
        let config = Config::parse(text, &ConfigBase::new(directory, directory)).expect("a sound configuration");
        LazyStore::new(name, &config.stores[name], &config, &SweeperCounts::new()).expect("a url")
    }

    /// Regression: the message, which a model may read, contained the host path.
    #[cfg(all(feature = "sled", feature = "sqlite"))]
    #[tokio::test]
    async fn open_error_names_the_store_and_not_its_host_path() {
        let directory = tempfile::tempdir().expect("a directory");
        for file in ["taken", "taken.db", "taken.tree"] {
            std::fs::write(directory.path().join(file), "x").expect("written");
        }
        for other in ["other", "other.tree"] {
            std::fs::create_dir(directory.path().join(other)).expect("made");
            std::fs::write(directory.path().join(other).join("file"), "x").expect("written");
        }
        let text = "[stores.default]\nurl = \"sqlite:taken/one.db\"\n[stores.foreign]\nurl = \"sqlite:taken.db\"\n\
                    [stores.dir]\nurl = \"sqlite:other\"\n[stores.tree]\nurl = \"sled:taken.tree\"\n\
                    [stores.full]\nurl = \"sled:other.tree\"";
        let host = directory.path().display().to_string();
        for (name, store) in stores(directory.path(), text).iter() {
            let Err(error) = store.ping().await else { panic!("`{name}` is open") };
            assert!(error.message().starts_with(&format!("the store `{name}` cannot be opened: ")), "{error}");
            assert!(!error.message().contains(&host) && !error.message().contains("taken"), "{error}");
            let mut causes = std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
            assert!(causes.any(|cause| cause.to_string().contains(&host)), "{name}: {error:?}");
            assert!(error.is_without_effect());
        }
    }

    /// Links, and a directory of data that a flag names, are known when the stores are opened.
    #[cfg(all(unix, feature = "sqlite"))]
    #[test]
    fn overlapping_stores_are_not_opened() {
        let directory = tempfile::tempdir().expect("a directory");
        let (real, data) = (directory.path().join("real"), directory.path().join("data"));
        let text = "[stores.one]\nurl = \"sqlite:{data}/parts/\"\n[stores.two]\nurl = \"sqlite:link/parts/x.db\"\n";
        let mut config = Config::parse(text, &ConfigBase::new(directory.path(), &data)).expect("they do not overlap");
        config.stores().expect("they do not overlap");
        std::fs::create_dir(&real).expect("made");
        config.set_data(real.clone(), "--data");
        config.stores().expect("the link does not exist");
        std::os::unix::fs::symlink(&real, directory.path().join("link")).expect("linked");
        let error = config.stores().expect_err("they overlap");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.message(), format!("the store `two` lies within the store `one`; {ADVICE}"));
    }

    #[cfg(all(feature = "sled", feature = "sqlite"))]
    #[tokio::test]
    async fn names_of_one_location_share_a_store_that_reopens_after_close() {
        let directory = tempfile::tempdir().expect("a directory");
        let real = directory.path().join("real");
        std::fs::create_dir(&real).expect("made");
        #[cfg(unix)]
        std::os::unix::fs::symlink(&real, directory.path().join("link")).expect("linked");
        let link = if cfg!(unix) { "link" } else { "real" };
        for place in ["sled:{}/tree", "sqlite:{}/store.db"] {
            let [one, two, three] = ["real", link, "real/../real"].map(|at| place.replace("{}", at));
            let text = format!("[stores.default]\nurl = \"{one}\"\n[stores.two]\nurl = \"{two}\"\n[stores.three]\nurl = \"{three}\"");
            let config = Config::parse(&text, &ConfigBase::new(directory.path(), directory.path())).expect("a sound configuration");
            let namespace = Namespace::new(["a"]).expect("plain");
            for round in 0..2 {
                // Two sets of stores, as separate parts of a program would open them.
                let sets = [config.stores().expect("stores"), config.stores().expect("stores")];
                let all: Vec<(String, Arc<dyn Store>)> = sets
                    .iter()
                    .flat_map(|set| set.iter().map(|(name, store)| (name.to_owned(), store.clone())).collect::<Vec<_>>())
                    .collect();
                let puts = all.iter().zip(0..).map(|((name, store), number)| {
                    let batch = Batch::new().put(&namespace, format!("{round} {number}"), name.clone());
                    let store = store.clone();
                    async move { store.commit(batch).await }
                });
                let committed = futures::future::try_join_all(puts.collect::<Vec<_>>()).await;
                committed.unwrap_or_else(|error| panic!("{place} in round {round}: {error:?}"));
                for (name, store) in &all {
                    let scan = store.scan(&namespace, Default::default()).await.expect("read");
                    assert_eq!(scan.entries.len(), (round + 1) * all.len(), "`{name}` of {place}");
                }
            }
        }
    }

    #[cfg(all(unix, feature = "sqlite"))]
    #[tokio::test]
    async fn store_is_reopened_after_its_file_is_replaced() {
        use crate::config::{OpenStoreOptions, open_store};

        let directory = tempfile::tempdir().expect("a directory");
        let options = OpenStoreOptions::new().with_directory(directory.path());
        let namespace = Namespace::new(["a"]).expect("plain");
        let put = || Batch::new().put(&namespace, "k", "v");
        let before = open_store("sqlite:store.db", &options).await.expect("opened");
        before.commit(put()).await.expect("committed");
        std::fs::create_dir(directory.path().join("aside")).expect("made");
        for suffix in ["", "-wal", "-shm"] {
            let name = format!("store.db{suffix}");
            std::fs::rename(directory.path().join(&name), directory.path().join("aside").join(&name)).expect("moved");
        }
        let after = open_store("sqlite:store.db", &options).await.expect("opened");
        assert!(after.get(&namespace, "k").await.expect("read").is_none(), "it is a new store");
        after.commit(put()).await.expect("committed");
        assert_eq!(before.commit(put()).await.expect_err("its file is elsewhere").kind(), ErrorKind::Unavailable);
    }
}
