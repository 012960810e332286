//! Whether a store is what a store is: the engine's own check, and every row read.

use super::{
    Item, KEY_BYTES_MAX, META_BYTES_MAX, Namespace, NamespacesOptions, ScanEntry, ScanOptions, Store, escape_key, whole_microseconds,
};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::Version;
use jiff::Timestamp;
use std::collections::HashSet;

/// The most faults that are told.
const FAULTS_MAX: usize = 1_000;

/// The bytes of bodies on a page.
const PAGE_BYTES: usize = 4 << 20;

/// How far a verification is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreVerifyProgress {
    /// The rows that were read.
    pub rows: u64,
    /// The bytes of their bodies.
    pub bytes: u64,
    /// The rows that there were at the start.
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
    /// Versions that more than one row has: items that were restored may share one, items that were put never do.
    pub versions_shared: u64,
    /// What is wrong: of the first thousand faults, one [`Corrupt`](ErrorKind::Corrupt) error each.
    pub faults: Vec<Error>,
    /// How many faults there are.
    pub faults_count: u64,
}

impl StoreVerification {
    fn fault(&mut self, error: Error) {
        self.faults_count += 1;
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(error);
        }
    }

    fn row(&mut self, namespace: &Namespace, key: &str, what: &str) {
        let message = format!("the row `{}` in `{namespace}` {what}", escape_key(key));
        self.fault(Error::new(ErrorKind::Corrupt, message));
    }
}

/// Looks for damage in all of a store: [`Store::check`], then every row of every namespace with its body, the order of the
/// keys, versions above the counter, and times. `look` is shown each row that can be read, and says what is wrong with it
/// by what it knows of its content, such as a hash.
///
/// The store may be in use; what is put meanwhile is no fault. Memory: a page, and about 16 bytes a row for the versions
/// met. Cost: [`Store::check`], and reads everything once.
///
/// # Errors
/// Those of the store, but not of a single row.
///
/// # Examples
/// ```
/// use stratafs::store::{Batch, MemoryStore, Namespace, Store, verify};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> stratafs::Result<()> {
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
    mut tell: impl FnMut(StoreVerifyProgress) + Send,
) -> Result<StoreVerification> {
    let mut found = StoreVerification::default();
    store.check().await?.into_iter().for_each(|error| found.fault(error));
    let rows_total = match store.stats().await {
        Ok(stats) => stats.items,
        // A damaged store may not be able to count.
        Err(error) if error.kind() == ErrorKind::Corrupt => 0,
        Err(error) => return Err(error),
    };
    let mut rows = Rows { found, look, last: None, versions: HashSet::new(), shared: HashSet::new(), newest: Version::new(0) };
    let mut listing = NamespacesOptions::new();
    loop {
        let page = store.namespaces(listing.clone()).await?;
        for namespace in &page.namespaces {
            let mut after = None;
            loop {
                let (items, next) = read(store, namespace, after, &mut rows.found).await?;
                items.iter().for_each(|item| rows.check(namespace, item));
                tell(StoreVerifyProgress { rows: rows.found.rows, bytes: rows.found.value_bytes, rows_total });
                match next {
                    Some(_) => after = next,
                    None => break,
                }
            }
        }
        match page.namespaces.last().filter(|_| page.more) {
            Some(last) => listing.start_after = Some(last.clone()),
            None => break,
        }
    }
    let Rows { mut found, shared, newest, .. } = rows;
    found.versions_shared = shared.len() as u64;
    // Asked last, as rows are put meanwhile.
    let counter = store.current_version().await?;
    if newest > counter {
        let message = format!("a row has version {newest} and the counter of the store is {counter}: versions would be used again");
        found.fault(Error::new(ErrorKind::Corrupt, message));
    }
    Ok(found)
}

/// What is known of the rows so far.
struct Rows<L> {
    found: StoreVerification,
    look: L,
    last: Option<(Namespace, String)>,
    versions: HashSet<u64>,
    shared: HashSet<u64>,
    newest: Version,
}

impl<L: FnMut(&Namespace, &Item) -> Result<()>> Rows<L> {
    fn check(&mut self, namespace: &Namespace, item: &Item) {
        self.found.rows += 1;
        self.found.value_bytes += item.value.len() as u64;
        let here = (namespace.clone(), item.key.clone());
        if self.last.as_ref().is_some_and(|last| *last >= here) {
            self.found.row(namespace, &item.key, "stands twice, or out of order");
        }
        self.last = Some(here);
        self.newest = self.newest.max(item.version);
        if !self.versions.insert(item.version.number()) {
            self.shared.insert(item.version.number());
        }
        if let Some(what) = fault_of(item) {
            self.found.row(namespace, &item.key, what);
        }
        if let Err(error) = (self.look)(namespace, item) {
            self.found.row(namespace, &item.key, &format!("is damaged: {}", error.message()));
        }
    }
}

/// Says what is wrong with a row by itself.
fn fault_of(item: &Item) -> Option<&'static str> {
    let is_whole = |at: Timestamp| whole_microseconds(at) == at;
    match () {
        () if item.key.is_empty() || item.key.contains('\0') || item.key.len() > KEY_BYTES_MAX => Some("has a key that no row can have"),
        () if item.meta.len() > META_BYTES_MAX => Some("has a meta that is longer than a row can have"),
        () if item.version == Version::new(0) => Some("has the version 0, which no put gives"),
        () if !is_whole(item.created_at) || !is_whole(item.modified_at) || !item.expires_at.is_none_or(is_whole) => {
            Some("has times that are not whole microseconds")
        }
        () => None,
    }
}

/// Reads a page with its bodies, and where the next starts. Rows that cannot be read are faults.
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
    // One by one, so that one bad row hides no other.
    let listed = match store.scan(namespace, options.with_values(false).with_limit(100)).await {
        Ok(listed) => listed,
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            let message = format!("the rows of `{namespace}` cannot be listed any further: {}", error.message());
            found.fault(error.with_message(message));
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
