//! The store tier: a tree in the rows of one namespace of a [`Store`].
//!
//! Each file and each directory is a row; [`rows`] maps paths to keys. The backend caches no files, so any number of backends,
//! threads and processes share one tree that is as durable as the store. Changes are optimistic ([`transaction`]) and retried
//! after a lost race.
//!
//! Round trips, without contention: one for `stat`, `read` and a page of `ls`; one read and one commit for a write, append, edit
//! or delete of a file. A change with a condition of its own (`CreateNew`, `IfVersion`, a delete with a version) needs only the
//! commit. Missing rows cost one more read: to find the parents of a new file, or the reason of a failure.

mod found;
mod index;
mod lent;
mod part;
mod recall;
mod rows;
mod search;
mod transaction;
mod turns;
mod verify;
mod walk;

pub use self::index::{IndexKind, IndexProgress, IndexState};
pub use self::verify::Verification;

use self::found::Found;
use self::index::{Indexes, Presence};
use self::rows::{Place, SEPARATOR, directory_key, file_key};
use self::transaction::{INDEX_CONDITIONS, StoreTransaction};
use super::Backend;
use super::flat::{self, Done, beneath_a_file};
use async_trait::async_trait;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions, Op,
    ReadOptions, Review, SearchOptions, SearchResult, Sight,
};
use treehold_core::path::VfsPath;
use treehold_store::{Namespace, Rider, ScanEntry, ScanOptions, Store};

/// How often a batch is retried after losing a race.
const ATTEMPTS_MAX: u32 = 1_000;

/// The longest pause before a retry.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// The most rows requested for one page of a listing.
const PAGE_ROWS: usize = 4_096;

/// A tree in one namespace of a store.
///
/// Versions are row versions. A batch is one commit of the store, so it is atomic and as durable as the store. Renaming or
/// copying a directory reads and writes everything beneath it, up to 1 GiB in one batch.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use treehold_store::{MemoryStore, Namespace};
/// use treehold_tree::backend::{BackendExt, StoreBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let tree = StoreBackend::new(Arc::new(MemoryStore::new()), Namespace::new(["acme", "ada", "memories"])?);
/// tree.write("/notes/todo.md", "milk").await?;
/// assert_eq!(tree.read_text("/notes/todo.md").await?, "milk");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct StoreBackend {
    store: Arc<dyn Store>,
    namespace: Namespace,
    time_to_live: Option<Duration>,
    indexes: Arc<Indexes>,
}

impl StoreBackend {
    /// Creates a backend on a namespace of a store.
    pub fn new(store: Arc<dyn Store>, namespace: Namespace) -> Self {
        let indexes = Arc::new(Indexes::new(&namespace, &[]));
        Self { store, namespace, time_to_live: None, indexes }
    }

    /// Maintains an index of the given kind. With [`IndexKind::Trigram`], a grep reads only files that may match. With
    /// [`IndexKind::Words`], a ranked search reads only the best files. Call it once for each kind.
    ///
    /// If the tree already has files, call [`StoreBackend::build_index`]; until it is done, searches read all files. A namespace
    /// of 16 components or 1,024 bytes has no room for an index and gets none. Once an index exists, every backend and process
    /// that writes to the tree maintains it, whether or not it was configured to, until [`StoreBackend::remove_index`].
    ///
    /// Cost: one more row for each file and kind. A trigram row has 64 bytes to 64 KiB, about an eighth of the content; a word
    /// row has a few bytes for each distinct word. See `docs/search.md`.
    #[must_use]
    pub fn with_index(mut self, kind: IndexKind) -> Self {
        let mut wanted = self.indexes.wanted();
        wanted.push(kind);
        self.indexes = Arc::new(Indexes::new(&self.namespace, &wanted));
        self
    }

    /// Makes files expire this long after they were last written, moved or copied. Directories do not expire.
    #[must_use]
    pub fn with_time_to_live(mut self, time_to_live: Duration) -> Self {
        self.time_to_live = Some(time_to_live);
        self
    }

    /// Returns the underlying store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the namespace that holds the tree.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Creates the error for a path without a row. Cost: one round trip unless the path is directly beneath the root.
    async fn missing(&self, path: &VfsPath) -> Error {
        let above: Vec<String> = path.ancestors().filter(|above| !above.is_root()).map(file_key).collect();
        if above.is_empty() {
            return Error::not_found(path);
        }
        let keys: Vec<&str> = above.iter().map(String::as_str).collect();
        match self.store.get_many(&self.namespace, &keys, false).await {
            Ok(items) if items.iter().any(Option::is_some) => beneath_a_file(path),
            Ok(_) => Error::not_found(path),
            Err(error) => error.at(path),
        }
    }

    async fn list(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        let prefix = directory_key(path);
        let mut scan = ScanOptions::new().with_prefix(&prefix).with_delimiter(SEPARATOR);
        let after = options.start_after.as_deref().filter(|name| !name.is_empty());
        scan.start_after = after.map(|name| format!("{prefix}{name}{SEPARATOR}"));
        let mut found = Found::new(options.limit);
        let mut is_there = path.is_root();
        loop {
            // Request one extra row for the directory itself, and one to learn whether there are more.
            scan.limit = options.limit.saturating_sub(found.len()).saturating_add(2).min(PAGE_ROWS);
            let page = self.store.scan(&self.namespace, scan.clone()).await?;
            for entry in page.entries {
                is_there = true;
                match entry {
                    ScanEntry::Item(item) if item.key == prefix => {}
                    ScanEntry::Item(item) | ScanEntry::LeftOut { item, .. } | ScanEntry::Group { item: Some(item), .. } => {
                        found.push_row(path, &item);
                    }
                    ScanEntry::Group { name, item: None } => match Place::of(&name) {
                        Ok(place) => found.fail(rows::orphaned(&place.path), path),
                        Err(error) => found.fail(error, path),
                    },
                }
            }
            match page.next {
                Some(next) if found.len() <= options.limit => scan.start_after = Some(next),
                _ => break,
            }
        }
        // No child and no row of the directory itself: either it is missing, or the page starts after its last child.
        if !is_there && !self.stat(path).await?.is_directory() {
            return Err(Error::not_a_directory(path));
        }
        let (entries, failures) = found.finish();
        let mut listing = Listing::from_sorted(entries, options);
        listing.failures = failures;
        Ok(listing)
    }

    /// Runs a batch once. Returns `None` if a row it depends on changed before the commit.
    async fn attempt(&self, mut transaction: StoreTransaction<'_>, changes: &[Change], riders: &[Rider]) -> Result<Option<Vec<Changed>>> {
        let done = flat::apply(&mut transaction, changes).await?;
        let puts: Vec<Option<usize>> = done.iter().map(Done::put).collect();
        match transaction.commit(riders, &puts).await {
            Ok(versions) => {
                self.note_indexed(versions.len()).await;
                Ok(Some(done.into_iter().map(|done| done.resolve(|put| versions[put])).collect()))
            }
            Err(error) if error.kind() == ErrorKind::Conflict => {
                if error.change().is_some_and(|condition| condition < INDEX_CONDITIONS) {
                    self.learn_indexes().await?;
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn apply_all(&self, changes: &[Change], riders: &[Rider]) -> Result<Vec<Changed>> {
        let mut transaction = StoreTransaction::new(self);
        if transaction.assume(changes)
            && let Some(results) = self.attempt(transaction, changes, riders).await?
        {
            return Ok(results);
        }
        for attempt in 0..ATTEMPTS_MAX {
            let mut transaction = StoreTransaction::new(self);
            transaction.prefetch(changes).await?;
            match self.attempt(transaction, changes, riders).await? {
                Some(results) => return Ok(results),
                None => pause(attempt).await,
            }
        }
        let message = format!("concurrent changes to the same files made this one fail {ATTEMPTS_MAX} times; try again");
        Err(Error::new(ErrorKind::Unavailable, message).without_effect())
    }
}

/// Sets the path of an error that has none.
fn at_if_unset(error: Error, path: &VfsPath) -> Error {
    if error.path().is_none() { error.at(path) } else { error }
}

/// Pauses before a retry: exponential backoff with full jitter.
async fn pause(attempt: u32) {
    let ceiling = Duration::from_micros(100).saturating_mul(1 << attempt.min(10)).min(PAUSE_MAX);
    let random = RandomState::new().hash_one(attempt);
    let share = (random >> 11) as f64 / (1_u64 << 53) as f64;
    tokio::time::sleep(ceiling.mul_f64(share)).await;
}

impl fmt::Display for StoreBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({})", self.store)
    }
}

#[async_trait]
impl Backend for StoreBackend {
    fn capabilities(&self) -> Capabilities {
        let store = self.store.capabilities();
        let indexed = self.indexes.presence(IndexKind::Trigram) == Presence::Present;
        Capabilities::new().with_durability(store.durability).with_file_bytes_max(store.value_bytes_max).with_indexed(indexed)
    }

    async fn stat(&self, path: &VfsPath) -> Result<Entry> {
        if path.is_root() {
            return Ok(Entry::directory(path));
        }
        let keys = [file_key(path), directory_key(path)];
        let items = self.store.get_many(&self.namespace, &[&keys[0], &keys[1]], false).await.map_err(|error| error.at(path))?;
        match items.into_iter().flatten().next() {
            Some(item) => Place::of(&item.key)?.entry(&item),
            None => Err(self.missing(path).await),
        }
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        if path.is_root() {
            return Err(Error::is_directory(path));
        }
        part::read(self, path, options).await
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        self.list(path, options).await.map_err(|error| at_if_unset(error, path))
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        search::glob(self, path, options).await.map_err(|error| at_if_unset(error, path))
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        search::grep(self, path, options).await.map_err(|error| at_if_unset(error, path))
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        recall::search(self, path, options).await.map_err(|error| at_if_unset(error, path))
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let contended = changes.iter().filter(|change| matches!(change, Change::Append { .. } | Change::Edit { .. }));
        let _turns = turns::take(&self.store, &self.namespace, contended.map(|change| file_key(change.path()))).await;
        let op = Op::apply(changes);
        let riders = Rider::taken(&options.along, &self.store);
        self.apply_all(changes, &riders).await.map_err(|error| at_if_unset(error, op.path).during(op.kind))
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}
