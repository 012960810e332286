//! The indexes of a tree in a store. They tell which files a search must read and which rank best, without reading the others.
//!
//! [`TreeIndexes`] is the whole interface. The store tier puts the writes and preconditions that it returns into the commits that
//! change files, and asks it which files to read. An index knows the tree only by its [rows](crate::rows).
//!
//! A tree may have one index of each [`IndexKind`]. Index rows are in a namespace of their own, `indexes` followed by the
//! namespace of the tree. The commits that change files also update the index, so it never lags behind. What an index keeps of a
//! file and in which format depends on its kind ([`kind`], [`trigrams`], [`words`]); the rest is shared:
//!
//! - The [manifest](manifest) records that the index exists, whether it covers the files that were there before it, and its
//!   segments. Every commit to the tree has a precondition on it: that it exists if the process knows of an index, or that it
//!   does not. So no process can write past an index that another one created.
//! - The **tail** has one row, an entry, for each recently written file. The commit that writes, moves or removes a file also
//!   puts or removes this row.
//! - A **segment** holds the entries of many files, laid out for lookup. Segments are immutable. Each entry records the version
//!   of its file; if the file has changed since, the tail or a later segment has a newer entry, and the old one only costs an
//!   extra read.
//!
//! [`settle`] moves tail rows into segments and merges small segments, each step in one conditional commit. A [lookup] reads the
//! manifest, the tail, and then the segments together with the manifest again. If the manifest has changed by then, the lookup
//! restarts, so no file is missed while it moves.

mod build;
mod files;
mod kind;
#[cfg(test)]
mod laws;
mod lookup;
mod manifest;
mod settle;
mod trigrams;
mod verify;
mod words;

pub use self::build::{IndexProgress, IndexState};
pub use self::kind::IndexKind;
pub(crate) use self::verify::unindexed;
pub(crate) use self::words::{Posting, Postings};

use self::kind::Kind;
use self::manifest::{Built, Manifest, tail_key};
use self::trigrams::Trigrams;
use self::words::Words;
use crate::background::{in_background, workers};
use bytes::Bytes;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::reserved::beside;
use treehold_core::search::parallel;
use treehold_store::{Batch, BatchWrite, Condition, INDEX_NAMESPACE, Namespace, Precondition, Store};

/// The number of index kinds. Each commit to a tree starts with this many preconditions about indexes.
pub(crate) const KINDS: usize = IndexKind::ALL.len();

/// Commits that write at most this many bytes are indexed on the calling thread: less than a millisecond of work.
const IN_PLACE_BYTES: usize = 64 << 10;

/// The maximum number of threads that index the files of one commit.
const WORKERS_MAX: usize = 4;

/// The number of tail rows read in one scan.
const TAIL_ROWS: usize = 4_096;

/// The approximate number of segment bytes a search reads at once; a single larger segment is still read whole.
const LOOKUP_BYTES: usize = 16 << 20;

/// The indexes of one tree. Clones share what the process knows about them.
#[derive(Debug, Clone)]
pub(crate) struct TreeIndexes {
    store: Arc<dyn Store>,
    /// The namespace of the tree.
    namespace: Namespace,
    known: Arc<Known>,
}

/// What a process knows about the indexes of a tree.
#[derive(Debug)]
struct Known {
    /// The namespace of the index rows; `None` if there is no room for one.
    namespace: Option<Namespace>,
    /// One for each kind, in the order of [`IndexKind::ALL`].
    kinds: [Index; KINDS],
    /// The number of tail rows a search reads in one scan.
    tail_rows: usize,
    /// The number of segment bytes a search reads at once.
    lookup_bytes: usize,
}

/// What a process knows about one index of a tree.
#[derive(Debug)]
struct Index {
    /// Whether to create the index if it is missing.
    wanted: bool,
    presence: AtomicU8,
    /// Approximate number of files this process has added to the tail since it last settled it.
    noted: AtomicUsize,
    /// Held while this process settles the index.
    settling: Mutex<()>,
}

/// Whether an index exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Not looked up yet. Commits assume that there is no index.
    Unknown,
    Absent,
    Present,
}

/// Whether each index exists, in the order of [`IndexKind::ALL`].
pub(crate) type Presences = [Presence; KINDS];

impl Index {
    fn presence(&self) -> Presence {
        match self.presence.load(Ordering::Relaxed) {
            known if known == Presence::Present as u8 => Presence::Present,
            known if known == Presence::Absent as u8 => Presence::Absent,
            _ => Presence::Unknown,
        }
    }

    fn set_presence(&self, presence: Presence) {
        self.presence.store(presence as u8, Ordering::Relaxed);
    }

    /// Forgets whether the index exists. A wanted index is assumed to exist, so that the first write to a tree creates it. A
    /// commit that assumed its absence would leave a file out of it.
    fn forget(&self) {
        self.set_presence(if self.wanted { Presence::Present } else { Presence::Unknown });
    }
}

impl Known {
    /// Creates the state of a process that has not looked yet. `wanted` indexes are assumed to exist.
    fn new(tree: &Namespace, wanted: &[IndexKind]) -> Self {
        // A namespace at its length limit has no room for another component, so the tree can have no index.
        Self::beside(beside(tree, INDEX_NAMESPACE).ok(), wanted)
    }

    /// Creates the state of a process that has not looked yet, whose index rows lie in `namespace`.
    fn beside(namespace: Option<Namespace>, wanted: &[IndexKind]) -> Self {
        let kinds = IndexKind::ALL.map(|kind| {
            let index = Index {
                wanted: wanted.contains(&kind),
                presence: AtomicU8::new(Presence::Absent as u8),
                noted: AtomicUsize::new(0),
                settling: Mutex::new(()),
            };
            if namespace.is_some() {
                index.forget();
            }
            index
        });
        Self { namespace, kinds, tail_rows: TAIL_ROWS, lookup_bytes: LOOKUP_BYTES }
    }

    fn of(&self, kind: IndexKind) -> &Index {
        &self.kinds[kind.place()]
    }

    /// Returns the namespace of the index rows.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) if the namespace of the tree leaves no room for another component.
    fn namespace(&self) -> Result<&Namespace> {
        let message = "the namespace of this tree leaves no room for an index; use one component less";
        self.namespace.as_ref().ok_or_else(|| Error::unsupported(message))
    }
}

impl TreeIndexes {
    /// Creates the indexes of a process that has not looked for them yet. `wanted` ones are assumed to exist.
    pub(crate) fn new(store: Arc<dyn Store>, namespace: Namespace, wanted: &[IndexKind]) -> Self {
        let known = Arc::new(Known::new(&namespace, wanted));
        Self { store, namespace, known }
    }

    /// Returns the indexes of the same tree, without what was learned about them.
    pub(crate) fn reopened(&self) -> Self {
        let known = Arc::new(Known::beside(self.known.namespace.clone(), &self.wanted()));
        Self { store: self.store.clone(), namespace: self.namespace.clone(), known }
    }

    /// Returns the kinds to create if they are missing.
    pub(crate) fn wanted(&self) -> Vec<IndexKind> {
        IndexKind::ALL.into_iter().filter(|kind| self.known.of(*kind).wanted).collect()
    }

    /// Returns whether an index exists, as far as the process knows.
    pub(crate) fn presence(&self, kind: IndexKind) -> Presence {
        self.known.of(kind).presence()
    }

    /// Returns whether each index exists, as far as the process knows.
    pub(crate) fn presences(&self) -> Presences {
        IndexKind::ALL.map(|kind| self.presence(kind))
    }

    /// Returns the preconditions of a commit to the tree: one for each kind.
    pub(crate) fn preconditions(&self, presences: Presences) -> Vec<Precondition> {
        let Some(namespace) = &self.known.namespace else { return Vec::new() };
        let preconditions = IndexKind::ALL.into_iter().zip(presences).map(|(kind, presence)| {
            let condition = if presence == Presence::Present { Condition::Exists } else { Condition::Absent };
            Precondition { namespace: namespace.clone(), key: kind.manifest().to_owned(), condition }
        });
        preconditions.collect()
    }

    /// Returns the index writes of a commit that puts a file, with empty values; [`rows_of_tail`] computes the values.
    pub(crate) fn puts(&self, presences: Presences, key: &str, time_to_live: Option<Duration>) -> Vec<(IndexKind, BatchWrite)> {
        let put = |namespace, kind: IndexKind| {
            let key = tail_key(kind.manifest(), key);
            (kind, BatchWrite::Put { namespace, key, meta: Bytes::new(), value: Bytes::new(), time_to_live, created_at: None })
        };
        self.writes(presences, put)
    }

    /// Returns the index writes of a commit that removes a file.
    pub(crate) fn deletes(&self, presences: Presences, key: &str) -> Vec<BatchWrite> {
        self.writes(presences, |namespace, kind| BatchWrite::Delete { namespace, key: tail_key(kind.manifest(), key) })
    }

    /// Returns the index writes of a commit that removes a directory.
    pub(crate) fn deletes_beneath(&self, presences: Presences, prefix: &str) -> Vec<BatchWrite> {
        self.writes(presences, |namespace, kind| BatchWrite::DeletePrefix { namespace, prefix: tail_key(kind.manifest(), prefix) })
    }

    /// Returns one write for each existing index.
    fn writes<W>(&self, presences: Presences, write: impl Fn(Namespace, IndexKind) -> W) -> Vec<W> {
        let Some(namespace) = &self.known.namespace else { return Vec::new() };
        let there = IndexKind::ALL.into_iter().zip(presences).filter(|(_, presence)| *presence == Presence::Present);
        there.map(|(kind, _)| write(namespace.clone(), kind)).collect()
    }
}

/// A file that a commit adds to the tail of an index.
pub(crate) struct ToIndex {
    /// The kind of the index.
    pub(crate) kind: IndexKind,
    /// The path of the file in the tree.
    pub(crate) path: VfsPathBuf,
    /// The new content.
    pub(crate) content: Bytes,
}

/// Computes the tail rows of files, in order. Large amounts of work run in the background instead of blocking an executor thread.
pub(crate) async fn rows_of_tail(files: Vec<ToIndex>, row_bytes_max: Option<u64>) -> Result<Vec<Bytes>> {
    let row = move |ToIndex { kind, path, content }: ToIndex| match kind {
        IndexKind::Trigram => row_of_tail::<Trigrams>(&path, &content, row_bytes_max),
        IndexKind::Words => row_of_tail::<Words>(&path, &content, row_bytes_max),
    };
    if files.iter().map(|file| file.content.len()).sum::<usize>() <= IN_PLACE_BYTES {
        return Ok(files.into_iter().map(row).collect());
    }
    in_background(move |stop| {
        let mut rows = Vec::with_capacity(files.len());
        parallel::ordered(files.into_iter(), workers().min(WORKERS_MAX), row, |row| {
            rows.push(row);
            if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        rows
    })
    .await
}

/// Computes the tail row of a file. If it exceeds the row limit of the store, the row matches every search instead.
fn row_of_tail<K: Kind>(path: &VfsPath, content: &[u8], row_bytes_max: Option<u64>) -> Bytes {
    let row = K::to_bytes(&K::entry(path, content));
    if row_bytes_max.is_some_and(|max| row.len() as u64 > max) { K::to_bytes(&K::unread()) } else { row }
}

impl TreeIndexes {
    /// Looks up which indexes exist, and creates the wanted ones. Takes at most two round trips for each kind unless other
    /// processes interfere.
    pub(crate) async fn learn(&self) -> Result<()> {
        let Some(namespace) = &self.known.namespace else {
            self.known.kinds.iter().for_each(|index| index.set_presence(Presence::Absent));
            return Ok(());
        };
        loop {
            let manifests = self.store.get_many(namespace, &IndexKind::ALL.map(IndexKind::manifest), false).await?;
            let mut is_known = true;
            for (kind, manifest) in IndexKind::ALL.into_iter().zip(manifests) {
                let index = self.known.of(kind);
                if manifest.is_some() {
                    index.set_presence(Presence::Present);
                } else if index.wanted {
                    self.create(kind).await?;
                    is_known = false;
                } else {
                    index.set_presence(Presence::Absent);
                }
            }
            if is_known {
                return Ok(());
            }
        }
    }

    /// Creates an index. It is complete if the tree is empty, and must be built otherwise.
    async fn create(&self, kind: IndexKind) -> Result<()> {
        let namespace = self.known.namespace()?;
        let make = |built: Built| {
            // An empty manifest has the same encoding for every kind.
            let manifest = Manifest::<()>::new(built).to_bytes();
            let batch = Batch::new().expect(namespace, kind.manifest(), Condition::Absent);
            // Clean up after an index that was removed while it was being settled.
            let batch = batch.delete_prefix(namespace, kind.manifest()).delete_prefix(namespace, kind.segments());
            batch.put(namespace, kind.manifest(), manifest)
        };
        let complete = make(Built::Complete).expect(&self.namespace, "", Condition::NoneBeneath);
        match self.store.commit(complete).await {
            Err(error) if error.kind() == ErrorKind::Conflict => {}
            made => return made.map(|_| ()),
        }
        match self.store.commit(make(Built::UpTo(String::new()))).await {
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(()),
            made => made.map(|_| ()),
        }
    }

    /// Records that files were added to the tails. Long tails are settled in the background; if a tail is far too long, waits for
    /// that.
    pub(crate) async fn note(&self, files: usize) {
        if files == 0 {
            return;
        }
        for kind in IndexKind::ALL {
            let index = self.known.of(kind);
            if index.presence() != Presence::Present {
                continue;
            }
            let noted = index.noted.fetch_add(files, Ordering::Relaxed) + files;
            if noted >= kind.tail_files_max() {
                let turn = index.settling.lock().await;
                // The task we waited for may have settled the tail already.
                if index.noted.load(Ordering::Relaxed) >= kind.tail_files_max() {
                    self.settle_in_turn(kind, kind.tail_files(), turn).await;
                }
            } else if noted >= kind.tail_files() {
                self.settle_soon(kind, kind.tail_files());
            }
        }
    }

    /// Settles a tail of `files` files or more in a background task, unless this process is settling it already.
    fn settle_soon(&self, kind: IndexKind, files: usize) {
        if self.known.of(kind).settling.try_lock().is_err() {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let this = self.clone();
            runtime.spawn(async move { this.settle_once(kind, files).await });
        }
    }

    /// Settles a tail of `files` files or more, unless this process is settling it already.
    async fn settle_once(&self, kind: IndexKind, files: usize) {
        if let Ok(turn) = self.known.of(kind).settling.try_lock() {
            self.settle_in_turn(kind, files, turn).await;
        }
    }

    async fn settle_in_turn(&self, kind: IndexKind, files: usize, _turn: MutexGuard<'_, ()>) {
        self.known.of(kind).noted.store(0, Ordering::Relaxed);
        let settled = match kind {
            IndexKind::Trigram => self.settle::<Trigrams>(files).await,
            IndexKind::Words => self.settle::<Words>(files).await,
        };
        if let Err(error) = settled {
            tracing::warn!(tree = %self, %kind, %error, "could not settle the tail of the index; a later write will retry");
        }
    }
}

impl fmt::Display for TreeIndexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the tree `{}` in {}", self.namespace, self.store)
    }
}

/// Reads the manifest.
async fn read_manifest<K: Kind>(store: &Arc<dyn Store>, namespace: &Namespace) -> Result<Option<(Manifest<K::Segment>, Version)>> {
    let item = store.get(namespace, K::MANIFEST).await?;
    item.map(|item| Ok((Manifest::from_bytes(&item.value)?, item.version))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{BackendExt, StoreBackend};
    use futures::FutureExt;
    use std::pin::pin;
    use treehold_store::MemoryStore;

    #[tokio::test]
    async fn writer_waits_for_settling_when_tail_is_too_long() {
        let namespace = Namespace::new(["tree"]).expect("a plain name");
        let tree = StoreBackend::new(Arc::new(MemoryStore::new()), namespace).with_index(IndexKind::Words);
        tree.write("/a", "text").await.expect("a write");
        let index = tree.indexes.known.of(IndexKind::Words);
        index.noted.store(IndexKind::Words.tail_files_max(), Ordering::Relaxed);
        let other = index.settling.lock().await;
        let mut writer = pin!(tree.indexes.note(1));
        assert!(writer.as_mut().now_or_never().is_none());
        drop(other);
        writer.await;
        assert_eq!(index.noted.load(Ordering::Relaxed), 0);
    }
}
