//! The store tier: a tree in the rows of one namespace of a [`Store`].
//!
//! Each file and each directory is a row; [`rows`] tells which. Nothing is kept in memory, so any number of backends, threads
//! and processes see one tree, as durable as the store. Changes are optimistic ([`transaction`]); a lost race is done again.
//!
//! Round trips, where nothing else changes the same rows: `stat`, `read` and a page of `ls` one. A write, append, edit or delete
//! of a file one read and one commit; only the commit when the change says itself what to expect (`CreateNew`, `IfVersion`, a
//! delete with a version). What is missing on the way costs one read more: the parents of a new file, the reason of a failure.

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
use self::index::{Indexes, Standing};
use self::rows::{Place, SEPARATOR, directory_key, file_key};
use self::transaction::{INDEX_CONDITIONS, StoreTransaction};
use super::Backend;
use super::flat::{self, Done, beneath_a_file};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions, Op,
    ReadOptions, Review, SearchOptions, SearchResult, Sight,
};
use crate::path::VfsPath;
use crate::store::{Namespace, Rider, ScanEntry, ScanOptions, Store};
use async_trait::async_trait;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

/// How often a batch that lost a race is done again.
const ATTEMPTS_MAX: u32 = 1_000;

/// The longest wait before a batch is done again.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// The most rows asked for in one page of a listing.
const PAGE_ROWS: usize = 4_096;

/// A tree in one namespace of a store.
///
/// Versions are those of the rows. A batch is one commit of the store, so it is atomic and as durable as the store. A rename or
/// copy of a directory reads and writes all that lies beneath it, up to 1 GiB in one batch.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use stratafs::{BackendExt, MemoryStore, Namespace, StoreBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> stratafs::Result<()> {
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
    /// Shows a namespace of a store as a tree.
    pub fn new(store: Arc<dyn Store>, namespace: Namespace) -> Self {
        let indexes = Arc::new(Indexes::new(&namespace, &[]));
        Self { store, namespace, time_to_live: None, indexes }
    }

    /// Keeps an index of a kind: with [`IndexKind::Trigram`] a grep for a literal text or an expression finds its files without
    /// reading the others, with [`IndexKind::Words`] a ranked search reads only the best. It may be called once for each kind.
    ///
    /// Of a tree that holds files already [`StoreBackend::build_index`] has to be called; until it is done searches read all
    /// files as before. A namespace of 16 components, or of 1,024 bytes, has no room for an index beside it, and gets none. An index
    /// that is there is kept by every backend and process that writes to the tree, whether or not it asked for one, until
    /// [`StoreBackend::remove_index`]. Cost: a row more for each file written and kind: of trigrams of 64 bytes to 64 KiB, about
    /// an eighth of the content, of words some bytes for each different word; see `docs/search.md`.
    #[must_use]
    pub fn with_index(mut self, kind: IndexKind) -> Self {
        let mut wanted = self.indexes.wanted();
        wanted.push(kind);
        self.indexes = Arc::new(Indexes::new(&self.namespace, &wanted));
        self
    }

    /// Lets a file go away by itself some time after it was last written, moved or copied. Directories stay.
    #[must_use]
    pub fn with_time_to_live(mut self, time_to_live: Duration) -> Self {
        self.time_to_live = Some(time_to_live);
        self
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Makes the error of a path where no row is. Cost: one round trip for a path that is not directly beneath the root.
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
            // One more than asked tells whether there are more, and the directory's own row comes first.
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
        // Neither a child nor the directory's own row was met: it is missing, or the listing went on behind all children.
        if !is_there && !self.stat(path).await?.is_directory() {
            return Err(Error::not_a_directory(path));
        }
        let (entries, failures) = found.finish();
        let mut listing = Listing::from_sorted(entries, options);
        listing.failures = failures;
        Ok(listing)
    }

    /// Does a batch once; none when something it relies on changed before it was committed.
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
        let message = format!("others changed the same files {ATTEMPTS_MAX} times meanwhile; try again");
        Err(Error::new(ErrorKind::Unavailable, message).without_effect())
    }
}

/// Sets the path of an error that names none.
fn located(error: Error, path: &VfsPath) -> Error {
    if error.path().is_none() { error.at(path) } else { error }
}

/// Waits a little before a batch is done again: longer and longer, and never as long as the others that lost.
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
        let indexed = self.indexes.standing(IndexKind::Trigram) == Standing::Present;
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
        self.list(path, options).await.map_err(|error| located(error, path))
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        search::glob(self, path, options).await.map_err(|error| located(error, path))
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        search::grep(self, path, options).await.map_err(|error| located(error, path))
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        recall::search(self, path, options).await.map_err(|error| located(error, path))
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let contended = changes.iter().filter(|change| matches!(change, Change::Append { .. } | Change::Edit { .. }));
        let _turns = turns::take(&self.store, &self.namespace, contended.map(|change| file_key(change.path()))).await;
        let op = Op::apply(changes);
        let riders = Rider::taken(&options.along, &self.store);
        self.apply_all(changes, &riders).await.map_err(|error| located(error, op.path).during(op.kind))
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}
