//! The store tier: a tree in the rows of one namespace of a [`Store`].
//!
//! Each file and each directory is a row; [`rows`](crate::rows) maps paths to keys. The backend caches no files, so any number of backends,
//! threads and processes share one tree that is as durable as the store. Changes are optimistic ([`transaction`]) and retried
//! after a lost race.
//!
//! Round trips, without contention: one for `stat`, `read` and a page of `ls`; one read and one commit for a write, append, edit
//! or delete of a file. A change with a condition of its own (`CreateNew`, `IfVersion`, a delete with a version) needs only the
//! commit. Missing rows cost one more read: to find the parents of a new file, or the reason of a failure.

mod found;
mod history;
mod lent;
mod part;
mod recall;
mod search;
mod transaction;
mod turns;
mod verify;
mod walk;

pub use self::history::{HistoryPolicy, RecordedCall, StorePast};
pub use self::verify::Verification;
pub use crate::index::{IndexKind, IndexProgress, IndexState};

use self::found::Found;
use self::history::StoreHistory;
use self::transaction::{INDEX_CONDITIONS, StoreTransaction};
use super::Backend;
use super::flat::{self, Done, beneath_a_file};
use crate::index::{Presence, TreeIndexes};
use crate::rows::{self, RowKey, SEPARATOR, directory_key, file_key};
use async_trait::async_trait;
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::backoff::LostRaces;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{
    ApplyOptions, Author, Capabilities, Change, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing,
    LsOptions, Op, ReadOptions, Review, SearchOptions, SearchResult, Sight, StatOptions,
};
use treehold_core::path::VfsPath;
use treehold_store::{
    Batch, BatchWrite, Condition, FileOutcome, Namespace, Outbox, Precondition, ScanEntry, ScanOptions, Store, TakenEntries,
};

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
    file_bytes_max: Option<u64>,
    owner: Option<Arc<OwnerRow>>,
    extra_row: Option<BatchWrite>,
    history: Option<StoreHistory>,
    pub(crate) indexes: TreeIndexes,
}

/// The row that every change of a tree depends on.
#[derive(Debug)]
struct OwnerRow {
    row: Precondition,
    /// The message of the error for a change without the row.
    message: String,
}

impl StoreBackend {
    /// Creates a backend on a namespace of a store.
    pub fn new(store: Arc<dyn Store>, namespace: Namespace) -> Self {
        let indexes = TreeIndexes::new(store.clone(), namespace.clone(), &[]);
        Self { store, namespace, time_to_live: None, file_bytes_max: None, owner: None, extra_row: None, history: None, indexes }
    }

    /// Returns a backend on the same rows with the same options. It looks for indexes again. This costs less than building one.
    #[must_use]
    pub fn reopened(&self) -> Self {
        Self { indexes: self.indexes.reopened(), ..self.clone() }
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
        self.indexes = TreeIndexes::new(self.store.clone(), self.namespace.clone(), &wanted);
        self
    }

    /// Makes files expire this long after they were last written, moved or copied. Directories do not expire.
    #[must_use]
    pub fn with_time_to_live(mut self, time_to_live: Duration) -> Self {
        self.time_to_live = Some(time_to_live);
        self
    }

    /// Refuses changes that would make a file larger. The limit of the store also applies.
    #[must_use]
    pub fn with_file_bytes_max(mut self, bytes: u64) -> Self {
        self.file_bytes_max = Some(bytes);
        self
    }

    /// Makes every change depend on a row of the same partition: without the row, a change is
    /// [`NotFound`](ErrorKind::NotFound) with this message. The commit of the change checks it, so nothing is written after the row was
    /// deleted.
    #[must_use]
    pub fn with_owner_row(mut self, namespace: &Namespace, key: impl Into<String>, message: impl Into<String>) -> Self {
        let row = Precondition { namespace: namespace.clone(), key: key.into(), condition: Condition::Exists };
        self.owner = Some(Arc::new(OwnerRow { row, message: message.into() }));
        self
    }

    /// Also puts a row of the same partition with every change, in the same commit. A watch of its namespace reports the changes of the tree.
    #[must_use]
    pub fn with_extra_row(mut self, namespace: &Namespace, key: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.extra_row = Batch::new().put(namespace, key, value).writes.pop();
        self
    }

    /// Returns the size of the largest file that the tree and its store allow.
    fn size_bytes_max(&self) -> Option<u64> {
        self.file_bytes_max.into_iter().chain(self.store.capabilities().value_bytes_max).min()
    }

    /// Returns the state of an index, or `None` if the tree has no index of this kind.
    ///
    /// Cost: one scan over the rows of the index. No file is read.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn index_state(&self, kind: IndexKind) -> Result<Option<IndexState>> {
        self.indexes.state(kind).await
    }

    /// Builds an index, resuming where an interrupted call left off, until it covers every file. The tree stays readable and
    /// writable meanwhile; searches start to use the index once it is complete.
    ///
    /// Calls `progress` after each step. Cost: reads the content of every file once.
    ///
    /// # Errors
    /// Errors of the store; completed steps are kept. [`Unsupported`](ErrorKind::Unsupported) if the namespace of the tree has no
    /// room for another component. [`Conflict`](ErrorKind::Conflict) if the index is removed while it is being built.
    pub async fn build_index(&self, kind: IndexKind, progress: impl FnMut(IndexProgress) + Send) -> Result<IndexState> {
        self.indexes.build(kind, progress).await
    }

    /// Removes an index, if there is one, in one commit.
    ///
    /// A backend created with [`StoreBackend::with_index`] for this kind starts a new index with its next write, in this or any
    /// other process. If the tree has files by then, the new index stays unused until [`StoreBackend::build_index`] completes it.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn remove_index(&self, kind: IndexKind) -> Result<()> {
        self.indexes.remove(kind).await
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
                    ScanEntry::Group { name, item: None } => match RowKey::of(&name) {
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
        if !is_there && !self.stat(path, &StatOptions::new()).await?.is_directory() {
            return Err(Error::not_a_directory(path));
        }
        let (entries, failures) = found.finish();
        let mut listing = Listing::from_sorted(entries, options);
        listing.failures = failures;
        Ok(listing)
    }

    /// Runs a batch once. Returns `None` if a row it depends on changed before the commit.
    async fn attempt(
        &self,
        mut transaction: StoreTransaction<'_>,
        changes: &[Change],
        author: Option<&Author>,
        taken: &TakenEntries,
    ) -> Result<Option<Vec<Changed>>> {
        let done = flat::apply(&mut transaction, changes).await?;
        let outcomes: Vec<FileOutcome> = done.iter().map(Done::outcome).collect();
        match transaction.commit(changes, author, taken, outcomes).await {
            Ok(versions) => {
                self.indexes.note(versions.len()).await;
                Ok(Some(done.into_iter().map(|done| done.resolve(|put| versions[put])).collect()))
            }
            Err(error) if error.kind() == ErrorKind::Conflict => {
                if error.change().is_some_and(|condition| condition < INDEX_CONDITIONS) {
                    self.indexes.learn().await?;
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn apply_all(&self, changes: &[Change], author: Option<&Author>, taken: &TakenEntries) -> Result<Vec<Changed>> {
        let mut transaction = StoreTransaction::new(self);
        // A history needs the content that a change replaces.
        if self.history.is_none()
            && transaction.assume(changes)
            && let Some(results) = self.attempt(transaction, changes, author, taken).await?
        {
            return Ok(results);
        }
        let mut races = LostRaces::new();
        loop {
            let mut transaction = StoreTransaction::new(self);
            transaction.prefetch(changes).await?;
            if let Some(results) = self.attempt(transaction, changes, author, taken).await? {
                return Ok(results);
            }
            if !races.lost().await {
                break;
            }
        }
        let message = format!("concurrent changes to the same files made this one fail {} times; try again", races.count());
        Err(Error::new(ErrorKind::Unavailable, message).without_effect())
    }
}

/// Sets the path of an error that has none.
fn at_if_unset(error: Error, path: &VfsPath) -> Error {
    if error.path().is_none() { error.at(path) } else { error }
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
        Capabilities::new().with_durability(store.durability).with_file_bytes_max(self.size_bytes_max()).with_indexed(indexed)
    }

    async fn stat(&self, path: &VfsPath, _options: &StatOptions) -> Result<Entry> {
        if path.is_root() {
            return Ok(Entry::directory(path));
        }
        let keys = [file_key(path), directory_key(path)];
        let items = self.store.get_many(&self.namespace, &[&keys[0], &keys[1]], false).await.map_err(|error| error.at(path))?;
        match items.into_iter().flatten().next() {
            Some(item) => RowKey::of(&item.key)?.entry(&item),
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
        let is_contended = |change: &&Change| match change {
            Change::Append { .. } | Change::Edit { .. } => true,
            Change::Write { .. } => self.history.is_some(),
            _ => false,
        };
        let contended = changes.iter().filter(is_contended);
        let _turns = turns::take(&self.store, &self.namespace, contended.map(|change| file_key(change.path()))).await;
        let op = Op::apply(changes);
        let taken = Outbox::of(&options.extensions).take(&self.store, &self.namespace.partition());
        match self.apply_all(changes, options.extensions.get(), &taken).await {
            Ok(changed) => {
                taken.committed(None);
                Ok(changed)
            }
            Err(error) => {
                taken.failed(&error);
                Err(at_if_unset(error, op.path).during(op.kind))
            }
        }
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::BackendExt;
    use treehold_store::MemoryStore;

    fn opened() -> (Arc<dyn Store>, Namespace, StoreBackend) {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let namespace = |name: &str| Namespace::new(["acme", "ada", name]).expect("plain components");
        (store.clone(), namespace("owners"), StoreBackend::new(store, namespace("tree")))
    }

    #[tokio::test]
    async fn changes_without_the_owner_row_are_not_found_and_write_nothing() {
        let (store, owners, tree) = opened();
        let tree = tree.with_owner_row(&owners, "ada", "ada is gone").with_extra_row(&owners, "changed", "");
        let refused = async |written: Result<Changed>| {
            let error = written.expect_err("no owner");
            assert_eq!((error.kind(), error.message(), error.may_have_effect()), (ErrorKind::NotFound, "ada is gone", false));
            assert_eq!(error.path().map(|path| path.as_str()), Some("/f"));
            assert_eq!(store.get(&owners, "changed").await.expect("readable"), None);
        };
        refused(tree.write("/f", "x").await).await;
        refused(tree.create("/f", "x").await).await;
        refused(tree.append("/f", "x").await).await;
        store.commit(Batch::new().put(&owners, "ada", "")).await.expect("created");
        tree.write("/f", "x").await.expect("its owner exists");
        assert!(store.get(&owners, "changed").await.expect("readable").is_some());
        store.commit(Batch::new().delete(&owners, "ada").delete(&owners, "changed")).await.expect("deleted");
        refused(tree.append("/f", "y").await).await;
        refused(tree.edit("/f", "x", "y").await).await;
        assert_eq!(tree.read_text("/f").await.expect("readable"), "x");
    }

    #[tokio::test]
    async fn files_of_a_bounded_tree_never_grow_beyond_the_bound() {
        let (_, _, tree) = opened();
        let tree = tree.with_file_bytes_max(4);
        assert_eq!(tree.capabilities().file_bytes_max, Some(4));
        tree.write("/f", "1234").await.expect("as large as allowed");
        for refused in [tree.write("/f", "12345").await, tree.append("/f", "5").await, tree.edit("/f", "1", "12").await] {
            assert_eq!(refused.expect_err("too large").kind(), ErrorKind::TooLarge);
        }
        assert_eq!(tree.read_text("/f").await.expect("readable"), "1234");
    }
}
