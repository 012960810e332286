//! The indexes of a tree: which files a search has to read, and which of them are best, known without reading the others.
//!
//! There may be one of each [`IndexKind`]. They lie in rows of their own, in the namespace `indexes` followed by that of the tree, and are
//! written by the same commits as the files, so that they are never behind. What a kind keeps of a file, and how, is its own ([`kind`],
//! [`trigrams`], [`words`]); the rest is the same for all of them:
//!
//! - The [manifest](manifest) says that there is an index, whether it covers what was there before it, and which segments it has. Every commit
//!   of the tree relies on it: on its presence where the process knows of an index, on its absence where it does not. So no
//!   process writes beside an index that another one made.
//! - The **tail** has a row for each file written lately: its entry. The commit that writes, moves or removes a file puts
//!   or removes that row.
//! - A **segment** has the entries of many files, laid out by what is searched for. Segments never change. What a file was when it
//!   came into one is noted by its version; when it has another by now, the tail or a later segment has it as well, and the old
//!   place only costs a look.
//!
//! [`settle`] moves what is in the tail into segments and merges small ones, in one conditional commit each. A [lookup] reads the
//! manifest, the tail and then the segments together with the manifest again: where that has changed meanwhile it starts over, so
//! no file slips from one to the other unseen.

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
pub(super) use self::verify::unindexed;
pub(super) use self::words::{Posting, Postings};

use self::kind::Kind;
use self::manifest::{Built, Manifest, tail_key};
use self::trigrams::Trigrams;
use self::words::Words;
use super::StoreBackend;
use crate::backend::flat::{in_background, workers};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::Version;
use crate::path::{VfsPath, VfsPathBuf};
use crate::search::parallel;
use crate::store::{Batch, BatchWrite, Condition, INDEX_NAMESPACE, Namespace, Precondition, Store};
use bytes::Bytes;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};

/// How many kinds there are. Each commit of a tree has so many conditions about indexes, which come first.
pub(super) const KINDS: usize = IndexKind::ALL.len();

/// How many bytes of files that a commit puts are looked into at once where the commit is made: less than a millisecond of work.
const IN_PLACE_BYTES: usize = 64 << 10;

/// How many threads look into the files of one commit at most.
const WORKERS_MAX: usize = 4;

/// How many rows of the tail are read at once.
const TAIL_ROWS: usize = 4_096;

/// How many bytes of segments are read at once by a search, about; one segment may have more.
const LOOKUP_BYTES: usize = 16 << 20;

/// What a process knows of the indexes of a tree.
#[derive(Debug)]
pub(in crate::backend::store) struct Indexes {
    namespace: Option<Namespace>,
    /// Of each kind, in the order of [`IndexKind::ALL`].
    kinds: [Index; KINDS],
    /// How many rows of the tail a search reads at once.
    tail_rows: usize,
    /// How many bytes of segments a search reads at once.
    lookup_bytes: usize,
}

/// What a process knows of one index of a tree.
#[derive(Debug)]
struct Index {
    /// Whether one is made where there is none.
    wanted: bool,
    standing: AtomicU8,
    /// About how many files this process put into the tail since it last settled it.
    noted: AtomicUsize,
    /// Held by the one that settles it.
    settling: Mutex<()>,
}

/// Whether there is an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::backend::store) enum Standing {
    /// Nobody looked. Commits take it that there is none.
    Unknown,
    Absent,
    Present,
}

/// Of each kind, in the order of [`IndexKind::ALL`], whether there is an index.
pub(in crate::backend::store) type Standings = [Standing; KINDS];

impl Index {
    fn standing(&self) -> Standing {
        match self.standing.load(Ordering::Relaxed) {
            known if known == Standing::Present as u8 => Standing::Present,
            known if known == Standing::Absent as u8 => Standing::Absent,
            _ => Standing::Unknown,
        }
    }

    fn set_standing(&self, standing: Standing) {
        self.standing.store(standing as u8, Ordering::Relaxed);
    }

    /// Knows nothing of the index any more. One that is wanted is taken to be there, so that the first write of a tree makes it: a
    /// commit that relies on its absence would leave a file out of it.
    fn forget(&self) {
        self.set_standing(if self.wanted { Standing::Present } else { Standing::Unknown });
    }
}

impl Indexes {
    /// Knows nothing of the indexes of a tree yet. One that is `wanted` is taken to be there.
    pub(super) fn new(tree: &Namespace, wanted: &[IndexKind]) -> Self {
        let components = std::iter::once(INDEX_NAMESPACE.into()).chain(tree.components());
        // A namespace at the limit of its length has no room for another component, and so no index.
        let namespace = Namespace::new(components).ok();
        let kinds = IndexKind::ALL.map(|kind| {
            let index = Index {
                wanted: wanted.contains(&kind),
                standing: AtomicU8::new(Standing::Absent as u8),
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

    /// Returns the kinds that are made where there is none.
    pub(super) fn wanted(&self) -> Vec<IndexKind> {
        IndexKind::ALL.into_iter().filter(|kind| self.of(*kind).wanted).collect()
    }

    fn of(&self, kind: IndexKind) -> &Index {
        &self.kinds[kind.place()]
    }

    pub(super) fn standing(&self, kind: IndexKind) -> Standing {
        self.of(kind).standing()
    }

    pub(super) fn standings(&self) -> Standings {
        IndexKind::ALL.map(|kind| self.standing(kind))
    }

    /// Returns the namespace of their rows.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) for a tree whose own namespace leaves no room.
    pub(super) fn namespace(&self) -> Result<&Namespace> {
        let message = "the namespace of this tree is too long for an index beside it; use one component less";
        self.namespace.as_ref().ok_or_else(|| Error::unsupported(message))
    }

    /// Returns what a commit of the tree relies on: one condition for each kind.
    pub(super) fn preconditions(&self, standings: Standings) -> Vec<Precondition> {
        let Some(namespace) = &self.namespace else { return Vec::new() };
        let preconditions = IndexKind::ALL.into_iter().zip(standings).map(|(kind, standing)| {
            let condition = if standing == Standing::Present { Condition::Exists } else { Condition::Absent };
            Precondition { namespace: namespace.clone(), key: kind.manifest().to_owned(), condition }
        });
        preconditions.collect()
    }

    /// Returns what a commit that puts a file writes here, and of which kind; [`rows_of_tail`] has the values.
    pub(super) fn puts(&self, standings: Standings, key: &str, time_to_live: Option<Duration>) -> Vec<(IndexKind, BatchWrite)> {
        let put = |namespace, kind: IndexKind| {
            let key = tail_key(kind.manifest(), key);
            (kind, BatchWrite::Put { namespace, key, meta: Bytes::new(), value: Bytes::new(), time_to_live, created_at: None })
        };
        self.writes(standings, put)
    }

    /// Returns what a commit that removes a file writes here.
    pub(super) fn deletes(&self, standings: Standings, key: &str) -> Vec<BatchWrite> {
        self.writes(standings, |namespace, kind| BatchWrite::Delete { namespace, key: tail_key(kind.manifest(), key) })
    }

    /// Returns what a commit that removes a directory writes here.
    pub(super) fn deletes_beneath(&self, standings: Standings, prefix: &str) -> Vec<BatchWrite> {
        self.writes(standings, |namespace, kind| BatchWrite::DeletePrefix { namespace, prefix: tail_key(kind.manifest(), prefix) })
    }

    /// Returns a write for each index that is there.
    fn writes<W>(&self, standings: Standings, write: impl Fn(Namespace, IndexKind) -> W) -> Vec<W> {
        let Some(namespace) = &self.namespace else { return Vec::new() };
        let there = IndexKind::ALL.into_iter().zip(standings).filter(|(_, standing)| *standing == Standing::Present);
        there.map(|(kind, _)| write(namespace.clone(), kind)).collect()
    }
}

/// A file that a commit puts into a tail.
pub(super) struct ToIndex {
    /// The kind of the index.
    pub(super) kind: IndexKind,
    /// What it is known by there.
    pub(super) path: VfsPathBuf,
    /// What it holds.
    pub(super) content: Bytes,
}

/// Makes the rows of files in their tails, in order. What takes long is done on other threads than those that serve everybody.
pub(super) async fn rows_of_tail(files: Vec<ToIndex>, row_bytes_max: Option<u64>) -> Result<Vec<Bytes>> {
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

/// Makes the row of a file in the tail. Where it is larger than the store takes, every search looks at the file.
fn row_of_tail<K: Kind>(path: &VfsPath, content: &[u8], row_bytes_max: Option<u64>) -> Bytes {
    let row = K::to_bytes(&K::entry(path, content));
    if row_bytes_max.is_some_and(|max| row.len() as u64 > max) { K::to_bytes(&K::unread()) } else { row }
}

impl StoreBackend {
    /// Finds out which indexes there are, and makes those that are wanted. Two round trips at most for each where nobody else does.
    pub(super) async fn learn_indexes(&self) -> Result<()> {
        let Some(namespace) = &self.indexes.namespace else {
            self.indexes.kinds.iter().for_each(|index| index.set_standing(Standing::Absent));
            return Ok(());
        };
        loop {
            let manifests = self.store.get_many(namespace, &IndexKind::ALL.map(IndexKind::manifest), false).await?;
            let mut is_known = true;
            for (kind, manifest) in IndexKind::ALL.into_iter().zip(manifests) {
                let index = self.indexes.of(kind);
                if manifest.is_some() {
                    index.set_standing(Standing::Present);
                } else if index.wanted {
                    self.create_index(kind).await?;
                    is_known = false;
                } else {
                    index.set_standing(Standing::Absent);
                }
            }
            if is_known {
                return Ok(());
            }
        }
    }

    /// Makes an index: of an empty tree one that is complete, of another one that waits to be built.
    async fn create_index(&self, kind: IndexKind) -> Result<()> {
        let namespace = self.indexes.namespace()?;
        let make = |built: Built| {
            // A manifest without segments is the same of every kind.
            let manifest = Manifest::<()>::new(built).to_bytes();
            let batch = Batch::new().expect(namespace, kind.manifest(), Condition::Absent);
            // What an index that was removed while it was settled may have left.
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

    /// Tells that files were put into the tails; what became long is settled in the background.
    pub(super) async fn note_indexed(&self, files: usize) {
        if files == 0 {
            return;
        }
        for kind in IndexKind::ALL {
            let index = self.indexes.of(kind);
            if index.standing() != Standing::Present {
                continue;
            }
            let noted = index.noted.fetch_add(files, Ordering::Relaxed) + files;
            if noted >= kind.tail_files_max() {
                let turn = index.settling.lock().await;
                // The one that was waited for may have left little.
                if index.noted.load(Ordering::Relaxed) >= kind.tail_files_max() {
                    self.settle_index_in_turn(kind, turn).await;
                }
            } else if noted >= kind.tail_files() {
                self.settle_index_soon(kind);
            }
        }
    }

    /// Settles a tail in a task, unless one does so already.
    fn settle_index_soon(&self, kind: IndexKind) {
        if self.indexes.of(kind).settling.try_lock().is_err() {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let this = self.clone();
            runtime.spawn(async move { this.settle_index_once(kind).await });
        }
    }

    /// Settles a tail, unless a task of this process does so already.
    async fn settle_index_once(&self, kind: IndexKind) {
        if let Ok(turn) = self.indexes.of(kind).settling.try_lock() {
            self.settle_index_in_turn(kind, turn).await;
        }
    }

    async fn settle_index_in_turn(&self, kind: IndexKind, _turn: MutexGuard<'_, ()>) {
        self.indexes.of(kind).noted.store(0, Ordering::Relaxed);
        let settled = match kind {
            IndexKind::Trigram => self.settle_index::<Trigrams>(kind.tail_files()).await,
            IndexKind::Words => self.settle_index::<Words>(kind.tail_files()).await,
        };
        if let Err(error) = settled {
            tracing::warn!(tree = %self, %kind, %error, "the tail of the index could not be settled; it is tried again");
        }
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
    use crate::backend::BackendExt;
    use crate::store::MemoryStore;
    use futures::FutureExt;
    use std::pin::pin;

    #[tokio::test]
    async fn a_writer_waits_for_a_tail_that_another_task_settles_too_slowly() {
        let namespace = Namespace::new(["tree"]).expect("a plain name");
        let tree = StoreBackend::new(Arc::new(MemoryStore::new()), namespace).with_index(IndexKind::Words);
        tree.write("/a", "text").await.expect("a write");
        let index = tree.indexes.of(IndexKind::Words);
        index.noted.store(IndexKind::Words.tail_files_max(), Ordering::Relaxed);
        let other = index.settling.lock().await;
        let mut writer = pin!(tree.note_indexed(1));
        assert!(writer.as_mut().now_or_never().is_none());
        drop(other);
        writer.await;
        assert_eq!(index.noted.load(Ordering::Relaxed), 0);
    }
}
