//! Full verification of a store: the engine's own check, then every row.

use super::faults::FAULTS_MAX;
use super::{
    AllNamespaces, Faults, Item, KEY_BYTES_MAX, META_BYTES_MAX, Namespace, Partition, ScanEntry, ScanOptions, Store, StoreExt, escape_key,
    whole_microseconds,
};
use jiff::Timestamp;
use std::collections::HashSet;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;

/// How many bytes of bodies are read per page.
const PAGE_BYTES: usize = 4 << 20;

/// The progress of a verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreVerifyProgress {
    /// Rows read so far.
    pub rows: u64,
    /// Bytes of bodies read so far.
    pub bytes: u64,
    /// Rows that existed at the start; 0 if the store could not count them.
    pub rows_total: u64,
}

/// What [`verify`] found.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct StoreVerification {
    /// How many rows were read.
    pub rows: u64,
    /// The bytes of their bodies.
    pub value_bytes: u64,
    /// How many versions belong to more than one row of a partition. Restored items may share a version, items that were put never do.
    pub versions_shared: u64,
    /// One error per fault, for the first 1,000: [`Corrupt`](ErrorKind::Corrupt), or why a partition that can fail alone cannot be read.
    pub faults: Vec<Error>,
    /// How many faults were found in all.
    pub faults_count: u64,
}

impl StoreVerification {
    /// Adds a fault. Only the first 1,000 are kept.
    pub fn add_fault(&mut self, error: Error) {
        self.faults_count += 1;
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(error);
        }
    }

    /// Adds a fault unless the engine's own check has found it.
    fn fault_once(&mut self, error: Error) {
        if !self.faults.iter().any(|known| known.message() == error.message()) {
            self.add_fault(error);
        }
    }

    fn row(&mut self, namespace: &Namespace, key: &str, what: &str) {
        let message = format!("the row `{}` in `{namespace}` {what}", escape_key(key));
        self.add_fault(Error::new(ErrorKind::Corrupt, message));
    }
}

/// Checks a whole store for damage: runs [`StoreExt::check`], then reads every row and checks the order of keys, the
/// times, and that no version exceeds the counter of its partition. `look` receives each readable row and may report a fault that only
/// its content reveals, such as a hash mismatch.
///
/// The store may be in use; concurrent puts are not reported as faults. Memory: one page, plus about 16 bytes per row of a
/// partition for the versions. Cost: [`StoreExt::check`], one read of everything, and one read for each partition.
///
/// # Errors
/// Those of the store, except errors of a single row, and of a partition that can fail alone, which are faults.
///
/// # Examples
/// ```
/// use treehold_store::{Batch, MemoryStore, Namespace, Store, verify};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let store = MemoryStore::new();
/// store.commit(Batch::new().put(&Namespace::new(["ada", "notes"])?, "today", "walk the dog")).await?;
/// let found = verify(&store, |_, _| Ok(()), |_| {}).await?;
/// assert_eq!((found.rows, found.faults_count), (1, 0));
/// # Ok(())
/// # }
/// ```
pub async fn verify(
    store: &dyn Store,
    look: impl FnMut(&Namespace, &Item) -> Result<()> + Send,
    mut report: impl FnMut(StoreVerifyProgress) + Send,
) -> Result<StoreVerification> {
    let mut found = StoreVerification::default();
    store.check().await?.into_iter().for_each(|error| found.add_fault(error));
    // What cannot be counted is found below.
    let rows_total = match store.stats_with_faults(&mut Faults::new()).await {
        Ok(stats) => stats.items,
        // A damaged store may be unable to count its rows.
        Err(error) if error.kind() == ErrorKind::Corrupt => 0,
        Err(error) => return Err(error),
    };
    let mut rows = Rows { found, look, last: None, partition: None, is_apart: false };
    let mut listing = AllNamespaces::new(store);
    loop {
        let page = match listing.next_page().await {
            Ok(Some(page)) => page,
            Ok(None) => break,
            // One partition that cannot be listed does not hide the others.
            Err(error) if error.kind() == ErrorKind::Corrupt || !listing.is_over() => {
                rows.found.fault_once(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        rows.is_apart = listing.partition().is_some();
        for namespace in &page {
            rows.enter(store, namespace).await?;
            let mut after = None;
            loop {
                let (items, next) = match read(store, namespace, after, &mut rows.found).await {
                    Err(error) if rows.is_apart => {
                        rows.found.fault_once(error);
                        break;
                    }
                    read => read?,
                };
                items.iter().for_each(|item| rows.check(namespace, item));
                report(StoreVerifyProgress { rows: rows.found.rows, bytes: rows.found.value_bytes, rows_total });
                match next {
                    Some(_) => after = next,
                    None => break,
                }
            }
        }
    }
    rows.leave(store).await?;
    Ok(rows.found)
}

/// State of the verification.
struct Rows<L> {
    found: StoreVerification,
    look: L,
    last: Option<(Namespace, String)>,
    /// The partition that is being read.
    partition: Option<PartitionVersions>,
    /// Whether partitions can fail alone.
    is_apart: bool,
}

/// The versions of the rows of a partition.
struct PartitionVersions {
    partition: Partition,
    versions: HashSet<u64>,
    shared: HashSet<u64>,
    newest: Version,
}

impl<L: FnMut(&Namespace, &Item) -> Result<()>> Rows<L> {
    /// Goes on to a namespace, whose partition may be another.
    async fn enter(&mut self, store: &dyn Store, namespace: &Namespace) -> Result<()> {
        if self.partition.as_ref().is_some_and(|read| read.partition.contains(namespace)) {
            return Ok(());
        }
        self.leave(store).await?;
        let partition = namespace.partition();
        self.partition = Some(PartitionVersions { partition, versions: HashSet::new(), shared: HashSet::new(), newest: Version::new(0) });
        Ok(())
    }

    /// Checks the versions of a partition, all of whose rows were read.
    async fn leave(&mut self, store: &dyn Store) -> Result<()> {
        let Some(PartitionVersions { partition, shared, newest, .. }) = self.partition.take() else { return Ok(()) };
        self.found.versions_shared += shared.len() as u64;
        // The counter is read after the rows, because more are put meanwhile.
        let counter = match store.current_version(&partition).await {
            Ok(counter) => counter,
            Err(error) if error.kind() == ErrorKind::Corrupt || self.is_apart => {
                self.found.fault_once(error);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if newest > counter {
            let message = format!(
                "a row of the partition `{partition}` has version {newest} and the counter of the partition is {counter}; new rows would reuse versions"
            );
            self.found.add_fault(Error::new(ErrorKind::Corrupt, message));
        }
        Ok(())
    }

    fn check(&mut self, namespace: &Namespace, item: &Item) {
        self.found.rows += 1;
        self.found.value_bytes += item.value.len() as u64;
        let here = (namespace.clone(), item.key.clone());
        if self.last.as_ref().is_some_and(|last| *last >= here) {
            self.found.row(namespace, &item.key, "is a duplicate or out of order");
        }
        self.last = Some(here);
        if let Some(read) = &mut self.partition {
            read.newest = read.newest.max(item.version);
            if !read.versions.insert(item.version.number()) {
                read.shared.insert(item.version.number());
            }
        }
        if let Some(what) = fault_of(item) {
            self.found.row(namespace, &item.key, what);
        }
        if let Err(error) = (self.look)(namespace, item) {
            self.found.row(namespace, &item.key, &format!("is damaged: {}", error.message()));
        }
    }
}

/// Returns the fault that a row shows by itself, if any.
fn fault_of(item: &Item) -> Option<&'static str> {
    let is_whole = |at: Timestamp| whole_microseconds(at) == at;
    match () {
        () if item.key.is_empty() || item.key.contains('\0') || item.key.len() > KEY_BYTES_MAX => Some("has an invalid key"),
        () if item.meta.len() > META_BYTES_MAX => Some("has metadata over the limit"),
        () if item.version == Version::new(0) => Some("has version 0, which no put assigns"),
        () if !is_whole(item.created_at) || !is_whole(item.modified_at) || !item.expires_at.is_none_or(is_whole) => {
            Some("has times that are not whole microseconds")
        }
        () => None,
    }
}

/// Reads a page with bodies, and the start of the next. Unreadable rows become faults.
async fn read(
    store: &dyn Store,
    namespace: &Namespace,
    after: Option<String>,
    found: &mut StoreVerification,
) -> Result<(Vec<Item>, Option<String>)> {
    let mut options = ScanOptions::new().with_values(true).with_bytes_max(PAGE_BYTES);
    options.start_after = after;
    match store.scan(namespace, options.clone()).await {
        Ok(page) => return Ok((page.entries.into_iter().filter_map(item_of).collect(), page.next)),
        Err(error) if error.kind() == ErrorKind::Corrupt => {}
        Err(error) => return Err(error),
    }
    // Read rows one by one, so that one bad row does not hide the others.
    let listed = match store.scan(namespace, options.with_values(false).with_limit(100)).await {
        Ok(listed) => listed,
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            let message = format!("the rows of `{namespace}` cannot be listed any further: {}", error.message());
            found.add_fault(error.with_message(message));
            return Ok((Vec::new(), None));
        }
        Err(error) => return Err(error),
    };
    let mut items = Vec::new();
    for listed in listed.entries.into_iter().filter_map(item_of) {
        match store.get(namespace, &listed.key).await {
            Ok(item) => items.extend(item),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                found.row(namespace, &listed.key, &format!("cannot be read: {}", error.message()));
            }
            Err(error) => return Err(error),
        }
    }
    Ok((items, listed.next))
}

fn item_of(entry: ScanEntry) -> Option<Item> {
    match entry {
        ScanEntry::Item(item) | ScanEntry::LeftOut { item, .. } => Some(item),
        ScanEntry::Group { item, .. } => item,
    }
}
