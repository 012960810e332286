//! Optional extensions of a store, and the fallbacks for stores without them.
//!
//! A store returns its extensions from [`Store::extensions`]. Callers use [`StoreExt`], whose methods fall back on the
//! methods of [`Store`], so no caller asks which engine it has.

use super::{
    Faults, Namespace, Partition, PartitionPage, RESERVED_ROOT, RowsSnapshot, Scan, ScanOptions, SnapshotRows, Store, StoreDescription,
    StoreMaintenance, StoreStats, SweepCount, maintenance,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;
use treehold_core::error::{Error, Result};

/// The optional extensions of a store.
#[derive(Clone, Copy, Default)]
#[non_exhaustive]
pub struct StoreExtensions<'s> {
    /// Reports and upkeep for operators. Without it they are computed by scans.
    pub maintenance: Option<&'s dyn StoreMaintenance>,
    /// Rows in place, for stores that keep them in memory. Without it searches read pages of a scan.
    pub snapshot_rows: Option<&'s dyn SnapshotRows>,
    /// Scans that leave out bodies which cannot match, for stores that send bodies over a network. Without it a scan
    /// returns all bodies.
    pub filtered_scan: Option<&'s dyn FilteredScan>,
}

impl<'s> StoreExtensions<'s> {
    /// Offers no extension.
    pub fn new() -> Self {
        Self::default()
    }

    /// Offers maintenance.
    #[must_use]
    pub fn with_maintenance(mut self, maintenance: &'s dyn StoreMaintenance) -> Self {
        self.maintenance = Some(maintenance);
        self
    }

    /// Offers rows in place.
    #[must_use]
    pub fn with_snapshot_rows(mut self, snapshot_rows: &'s dyn SnapshotRows) -> Self {
        self.snapshot_rows = Some(snapshot_rows);
        self
    }

    /// Offers filtered scans.
    #[must_use]
    pub fn with_filtered_scan(mut self, filtered_scan: &'s dyn FilteredScan) -> Self {
        self.filtered_scan = Some(filtered_scan);
        self
    }

    /// Removes the extensions that read rows, for wrappers that change or record what reads return.
    #[must_use]
    pub fn without_reads(mut self) -> Self {
        self.snapshot_rows = None;
        self.filtered_scan = None;
        self
    }
}

impl fmt::Debug for StoreExtensions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreExtensions")
            .field("maintenance", &self.maintenance.is_some())
            .field("snapshot_rows", &self.snapshot_rows.is_some())
            .field("filtered_scan", &self.filtered_scan.is_some())
            .finish()
    }
}

/// Scans that leave out bodies without a given text: the optional extension of stores that send bodies over a network.
///
/// A search for a text then receives only the bodies that may contain it.
#[async_trait]
pub trait FilteredScan: Send + Sync {
    /// Returns what [`Store::scan`] returns, except that it may return a body that does not contain `text` as
    /// [`ScanEntry::LeftOut`](super::ScanEntry::LeftOut). [Binary](treehold_core::file::is_binary) bodies are always
    /// returned, because searches report them. Nothing else about the page changes.
    ///
    /// # Errors
    /// As [`Store::scan`].
    async fn scan_holding(&self, namespace: &Namespace, options: ScanOptions, text: &Bytes) -> Result<Scan>;
}

/// The extensions as methods of every store.
#[async_trait]
pub trait StoreExt: Store {
    /// Checks that the store answers. The first call opens a store that opens itself when it is used.
    ///
    /// Cost: one round trip.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn ping(&self) -> Result<()> {
        let any = Partition::new([RESERVED_ROOT])?;
        self.current_version(&any).await.map(drop)
    }

    /// Removes up to `limit` expired items and returns how many it removed: none in a store without
    /// [`sweeps`](super::StoreCapabilities::sweeps).
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn sweep(&self, limit: usize) -> Result<usize> {
        match self.extensions().maintenance {
            Some(store) => store.sweep(limit).await,
            None => Ok(0),
        }
    }

    /// As [`StoreExt::sweep`]. Adds what it removed to `count`, also if it fails, see [`StoreMaintenance::sweep_counting`].
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn sweep_counting(&self, limit: usize, count: &SweepCount) -> Result<usize> {
        match self.extensions().maintenance {
            Some(store) => store.sweep_counting(limit, count).await,
            None => Ok(0),
        }
    }

    /// Gives unused pages back to the file system, see [`StoreMaintenance::shrink`].
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn shrink(&self, pages: usize) -> Result<usize> {
        match self.extensions().maintenance {
            Some(store) => store.shrink(pages).await,
            None => Ok(0),
        }
    }

    /// As [`StoreExt::shrink`]. Adds what it gave back to `count`, also if it fails, see [`StoreMaintenance::shrink_counting`].
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn shrink_counting(&self, pages: usize, count: &SweepCount) -> Result<usize> {
        match self.extensions().maintenance {
            Some(store) => store.shrink_counting(pages, count).await,
            None => Ok(0),
        }
    }

    /// Lists partitions that can fail alone, see [`StoreMaintenance::partitions`].
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn partitions(&self, start_after: Option<&Partition>, limit: usize) -> Result<Option<PartitionPage>> {
        match self.extensions().maintenance {
            Some(store) => store.partitions(start_after, limit).await,
            None => Ok(None),
        }
    }

    /// Rewrites the store without its unused space, see [`StoreMaintenance::compact`].
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn compact(&self) -> Result<bool> {
        match self.extensions().maintenance {
            Some(store) => store.compact().await,
            None => Ok(false),
        }
    }

    /// Describes the engine and its settings for an operator, see [`StoreMaintenance::describe`].
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn describe(&self) -> Result<StoreDescription> {
        match self.extensions().maintenance {
            Some(store) => store.describe().await,
            None => Ok(maintenance::describe(self)),
        }
    }

    /// Counts the store's namespaces, items and bytes, see [`StoreMaintenance::stats`].
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn stats(&self) -> Result<StoreStats> {
        match self.extensions().maintenance {
            Some(store) => store.stats().await,
            None => maintenance::stats(self).await,
        }
    }

    /// As [`StoreExt::stats`]. Counts what can be read, and adds the partitions that cannot to `faults`, see
    /// [`StoreMaintenance::stats_with_faults`].
    ///
    /// # Errors
    /// As [`Store::get`], about the whole store.
    async fn stats_with_faults(&self, faults: &mut Faults) -> Result<StoreStats> {
        match self.extensions().maintenance {
            Some(store) => store.stats_with_faults(faults).await,
            None => maintenance::stats(self).await,
        }
    }

    /// Looks for damage, see [`StoreMaintenance::check`].
    ///
    /// # Errors
    /// As [`Store::get`], when the store cannot be examined at all.
    async fn check(&self) -> Result<Vec<Error>> {
        match self.extensions().maintenance {
            Some(store) => store.check().await,
            None => maintenance::check(self).await,
        }
    }

    /// Returns the rows of a namespace for reading in place, or `None` if the store does not keep its rows in memory;
    /// then use [`Store::scan`].
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn snapshot_rows(&self, namespace: &Namespace) -> Result<Option<Arc<dyn RowsSnapshot>>> {
        match self.extensions().snapshot_rows {
            Some(store) => store.snapshot_rows(namespace).await,
            None => Ok(None),
        }
    }

    /// Scans as [`Store::scan`] and lets the store leave out bodies that do not contain `text`, see
    /// [`FilteredScan::scan_holding`].
    ///
    /// # Errors
    /// As [`Store::scan`].
    async fn scan_holding(&self, namespace: &Namespace, options: ScanOptions, text: &Bytes) -> Result<Scan> {
        match self.extensions().filtered_scan {
            Some(store) => store.scan_holding(namespace, options, text).await,
            None => self.scan(namespace, options).await,
        }
    }
}

impl<S: Store + ?Sized> StoreExt for S {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batch, Item, ItemPart, MemoryStore, NamespacePage, NamespacesOptions, Partition, ScanEntry, StoreCapabilities, Watch};
    use std::ops::Range;
    use treehold_core::ops::Version;

    /// A store that offers nothing beyond rows.
    #[derive(Debug)]
    struct Plain(MemoryStore);

    impl fmt::Display for Plain {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("plain")
        }
    }

    #[async_trait]
    impl Store for Plain {
        fn capabilities(&self) -> StoreCapabilities {
            self.0.capabilities().with_sweeps(false)
        }

        fn extensions(&self) -> StoreExtensions<'_> {
            StoreExtensions::new()
        }

        async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
            self.0.get(namespace, key).await
        }

        async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
            self.0.get_part(namespace, key, range).await
        }

        async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
            self.0.get_many(namespace, keys, with_values).await
        }

        async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
            if namespace.name().eq(["damaged"]) {
                return Err(Error::new(treehold_core::error::ErrorKind::Corrupt, "a row is damaged"));
            }
            self.0.scan(namespace, options).await
        }

        async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
            let limit = options.limit.min(2);
            self.0.namespaces(options.with_limit(limit)).await
        }

        async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
            self.0.commit(batch).await
        }

        async fn current_version(&self, partition: &Partition) -> Result<Version> {
            self.0.current_version(partition).await
        }

        async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
            self.0.watch(namespace).await
        }
    }

    #[tokio::test]
    async fn store_without_extensions_is_reported_by_scans() {
        let memory = MemoryStore::new();
        let plain: Arc<dyn Store> = Arc::new(Plain(memory.clone()));
        let mut batch = Batch::new();
        for name in ["a", "b", "c", "d", "e"] {
            let namespace = Namespace::new(["acme", "ada", name]).expect("a legal namespace");
            batch = batch.put_with_meta(&namespace, "k", "meta", "value").put(&namespace, "l", "");
        }
        plain.commit(batch).await.expect("committed");
        let (counted, made) = (StoreExt::stats(&memory).await.expect("stats"), plain.stats().await.expect("stats"));
        assert_eq!((made, made.items, made.namespaces), (counted, 10, 5));
        let described = plain.describe().await.expect("a description");
        assert_eq!((described.engine.as_str(), described.durability), ("plain", plain.capabilities().durability));
        assert_eq!(plain.sweep(10).await.expect("a sweep"), 0);
        let a = Namespace::parse("acme/ada/a").expect("a legal namespace");
        assert!(plain.snapshot_rows(&a).await.expect("an answer").is_none());
        let page = plain.scan_holding(&a, ScanOptions::new().with_values(true), &Bytes::from("absent")).await.expect("a page");
        assert!(page.entries.iter().all(|entry| matches!(entry, ScanEntry::Item(_))), "{page:?}");
    }

    #[tokio::test]
    async fn check_by_scans_reports_the_damaged_namespace_and_continues() {
        let store = Plain(MemoryStore::new());
        let [damaged, sound] = ["damaged", "sound"].map(|name| Namespace::new(["acme", "ada", name]).expect("a legal namespace"));
        store.commit(Batch::new().put(&damaged, "k", "v").put(&sound, "k", "v")).await.expect("committed");
        let found = store.check().await.expect("checked");
        assert_eq!(found.iter().map(Error::message).collect::<Vec<_>>(), ["a row is damaged"]);
        assert!(store.stats().await.is_err());
    }

    #[tokio::test]
    async fn shared_store_passes_its_extensions_on() {
        let store: Arc<dyn Store> = Arc::new(Arc::new(MemoryStore::new()));
        let offered = store.extensions();
        assert!(offered.maintenance.is_some() && offered.snapshot_rows.is_some() && offered.filtered_scan.is_none());
        let kept = offered.without_reads();
        assert!(kept.maintenance.is_some() && kept.snapshot_rows.is_none());
    }
}
