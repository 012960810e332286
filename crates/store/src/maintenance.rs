//! Reports and upkeep for operators: the optional extension, and its defaults computed by scans.

use super::{
    Faults, Namespace, NamespacesOptions, Partition, PartitionPage, ScanEntry, ScanOptions, Store, StoreDescription, StoreStats, SweepCount,
};
use async_trait::async_trait;
use treehold_core::error::{Error, ErrorKind, Result};

/// The most findings of a check.
const FINDINGS_MAX: usize = 100;

/// Reports and upkeep for operators: an optional extension, whose methods have defaults that use the methods of
/// [`Store`].
///
/// An engine overrides the methods that it can implement better, and offers itself in
/// [`Store::extensions`]. Callers use the methods of the same names of [`StoreExt`](super::StoreExt).
#[async_trait]
pub trait StoreMaintenance: Store {
    /// Removes up to `limit` expired items and returns how many it removed.
    ///
    /// By default removes nothing: a scan does not show expired items, so only an engine can find them. An engine that stores
    /// expired items overrides this and declares [`sweeps`](super::StoreCapabilities::sweeps).
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn sweep(&self, limit: usize) -> Result<usize> {
        let _ = limit;
        Ok(0)
    }

    /// As [`sweep`](Self::sweep). Adds what it removed to `count`, also if it fails for a part of the store.
    ///
    /// Where one partition can fail alone, each failure is returned once, by the call that has found nothing more to remove in the others,
    /// and a damaged partition is tried again when its file changes. By default calls [`sweep`](Self::sweep).
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn sweep_counting(&self, limit: usize, count: &SweepCount) -> Result<usize> {
        let removed = self.sweep(limit).await?;
        count.add(removed);
        Ok(removed)
    }

    /// Gives up to `pages` unused pages of the store's file back to the file system, and returns how many it gave back. The file
    /// gets smaller once the log beside it is folded into it.
    ///
    /// By default gives back nothing: most engines reuse the space, or give it back by themselves.
    ///
    /// Cost: moves one page for each that is given back.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn shrink(&self, pages: usize) -> Result<usize> {
        let _ = pages;
        Ok(0)
    }

    /// As [`shrink`](Self::shrink). Adds what it gave back to `count`, also if it fails for a part of the store, as
    /// [`sweep_counting`](Self::sweep_counting) does.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn shrink_counting(&self, pages: usize, count: &SweepCount) -> Result<usize> {
        let given = self.shrink(pages).await?;
        count.add(given);
        Ok(given)
    }

    /// Lists up to `limit` partitions after one, in order, also those that cannot be read: fewer than `limit` are the last. `None` if no
    /// partition of the store can fail alone, as is the default.
    ///
    /// A part of the store that cannot be listed is a fault of the page, and the rest is listed.
    /// [`AllNamespaces`](super::AllNamespaces) uses it.
    ///
    /// # Errors
    /// As [`Store::get`], about the whole store.
    async fn partitions(&self, start_after: Option<&Partition>, limit: usize) -> Result<Option<PartitionPage>> {
        let _ = (start_after, limit);
        Ok(None)
    }

    /// Rewrites the store without its unused space, so that all of it is given back and [`shrink`](Self::shrink) works from then on.
    /// Returns false where the engine has nothing to rewrite.
    ///
    /// Cost: reads and writes everything, and needs up to twice the size of the store as free space. Writers wait, and those of other
    /// processes may fail.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn compact(&self) -> Result<bool> {
        Ok(false)
    }

    /// Describes the engine and its settings for an operator. By default returns the `Display` text and the declared
    /// durability.
    ///
    /// Cost: at most one round trip, independent of the number of rows.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn describe(&self) -> Result<StoreDescription> {
        Ok(describe(self))
    }

    /// Counts the store's namespaces, items and bytes.
    ///
    /// Cost: linear in the rows. An engine reads no bodies for it; the default scans them all, and counts no expired
    /// items.
    ///
    /// # Errors
    /// As [`Store::get`].
    async fn stats(&self) -> Result<StoreStats> {
        stats(self).await
    }

    /// As [`stats`](Self::stats). Where partitions can fail alone, adds those that fail to `faults` and counts the others. By default calls
    /// [`stats`](Self::stats).
    ///
    /// # Errors
    /// As [`Store::get`], about the whole store.
    async fn stats_with_faults(&self, faults: &mut Faults) -> Result<StoreStats> {
        let _ = faults;
        self.stats().await
    }

    /// Runs the engine's own integrity check and looks for inconsistent rows. Returns one
    /// [`Corrupt`](ErrorKind::Corrupt) error per finding, up to 100. By default reads every row, and reports the
    /// namespaces that cannot be read. Where partitions can fail alone, the error of one that cannot be examined is a finding too, of
    /// whatever kind.
    ///
    /// Cost: reads everything.
    ///
    /// # Errors
    /// As [`Store::get`], when the store cannot be examined at all.
    async fn check(&self) -> Result<Vec<Error>> {
        check(self).await
    }
}

/// Describes a store by its name and capabilities.
pub(super) fn describe<S: Store + ?Sized>(store: &S) -> StoreDescription {
    StoreDescription::new(store.to_string(), store.capabilities().durability)
}

/// Counts rows by scanning them.
pub(super) async fn stats<S: Store + ?Sized>(store: &S) -> Result<StoreStats> {
    let mut stats = StoreStats::new();
    let mut listed = Listed::default();
    while let Some(namespace) = listed.next(store).await? {
        let items = stats.items;
        let mut after = None;
        loop {
            let page = store.scan(&namespace, page_after(after)).await?;
            for entry in &page.entries {
                if let ScanEntry::Item(item) = entry {
                    stats.add(true, item.meta.len() as u64, item.value.len() as u64);
                }
            }
            match page.next {
                Some(_) => after = page.next,
                None => break,
            }
        }
        stats.namespaces += u64::from(stats.items > items);
    }
    Ok(stats)
}

/// Finds damage by reading every row. The rest of a namespace is skipped after a finding.
pub(super) async fn check<S: Store + ?Sized>(store: &S) -> Result<Vec<Error>> {
    let mut found = Vec::new();
    let mut listed = Listed::default();
    while let Some(namespace) = listed.next(store).await? {
        let mut after = None;
        loop {
            match store.scan(&namespace, page_after(after)).await {
                Ok(page) if page.next.is_some() => after = page.next,
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    found.push(error);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        if found.len() == FINDINGS_MAX {
            break;
        }
    }
    Ok(found)
}

fn page_after(after: Option<String>) -> ScanOptions {
    let mut options = ScanOptions::new().with_values(true);
    options.start_after = after;
    options
}

/// The namespaces of a store, one after another.
#[derive(Default)]
struct Listed {
    page: std::vec::IntoIter<Namespace>,
    last: Option<Namespace>,
    is_complete: bool,
}

impl Listed {
    async fn next<S: Store + ?Sized>(&mut self, store: &S) -> Result<Option<Namespace>> {
        loop {
            if let Some(namespace) = self.page.next() {
                self.last = Some(namespace.clone());
                return Ok(Some(namespace));
            }
            if self.is_complete {
                return Ok(None);
            }
            let mut options = NamespacesOptions::new();
            options.start_after = self.last.clone();
            let page = store.namespaces(options).await?;
            self.is_complete = !page.more || page.namespaces.is_empty();
            self.page = page.namespaces.into_iter();
        }
    }
}
