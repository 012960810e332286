//! Building an index over files that existed before it, reporting its state, and removing it.

use super::TreeIndexes;
use super::files::IndexedFile;
use super::kind::{IndexKind, Kind};
use super::manifest::{Built, Manifest, places};
use super::settle::{COMMIT_BYTES, put_segments};
use super::trigrams::Trigrams;
use super::words::Words;
use super::{Presence, read_manifest};
use crate::background::{in_background, workers};
use crate::rows::{self, RowKey};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_core::search::parallel;
use treehold_store::{Batch, Condition, Namespace, ScanEntry, ScanOptions};

/// The most files one commit adds to the index.
const FILES_AT_ONCE: usize = 4_096;

/// The current state of a tree's index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct IndexState {
    /// Whether searches use the index. They do once it covers every file of the tree.
    pub is_complete: bool,
    /// The number of segments.
    pub segments: usize,
    /// The number of file entries in segments. A file that was rewritten may have two entries until its segments are merged.
    pub files_in_segments: u64,
    /// The number of files in the tail.
    pub files_in_tail: u64,
    /// The total size of the index rows in bytes, keys included.
    pub size_bytes: u64,
}

/// The progress of [`StoreBackend::build_index`](crate::backend::StoreBackend::build_index).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct IndexProgress {
    /// The number of files indexed so far.
    pub files: u64,
    /// The number of content bytes read so far.
    pub bytes: u64,
}

impl TreeIndexes {
    /// Implements [`StoreBackend::index_state`](crate::backend::StoreBackend::index_state).
    pub(crate) async fn state(&self, kind: IndexKind) -> Result<Option<IndexState>> {
        match kind {
            IndexKind::Trigram => self.state_of::<Trigrams>().await,
            IndexKind::Words => self.state_of::<Words>().await,
        }
    }

    async fn state_of<K: Kind>(&self) -> Result<Option<IndexState>> {
        let Ok(namespace) = self.known.namespace() else { return Ok(None) };
        let Some((manifest, _)) = read_manifest::<K>(&self.store, namespace).await? else { return Ok(None) };
        let mut state = IndexState {
            is_complete: manifest.built == Built::Complete,
            segments: manifest.segments.len(),
            files_in_segments: places(&manifest) as u64,
            ..IndexState::default()
        };
        for prefix in [K::MANIFEST, K::SEGMENTS] {
            let mut scan = ScanOptions::new().with_prefix(prefix).with_values(true);
            loop {
                let page = self.store.scan(namespace, scan.clone()).await?;
                for entry in page.entries {
                    let ScanEntry::Item(item) = entry else { continue };
                    state.files_in_tail += u64::from(prefix == K::MANIFEST && item.key.len() > prefix.len());
                    state.size_bytes += (item.key.len() + item.meta.len() + item.value.len()) as u64;
                }
                match page.next {
                    Some(next) => scan.start_after = Some(next),
                    None => break,
                }
            }
        }
        Ok(Some(state))
    }

    /// Implements [`StoreBackend::build_index`](crate::backend::StoreBackend::build_index).
    pub(crate) async fn build(&self, kind: IndexKind, progress: impl FnMut(IndexProgress) + Send) -> Result<IndexState> {
        match kind {
            IndexKind::Trigram => self.build_kind::<Trigrams>(progress).await,
            IndexKind::Words => self.build_kind::<Words>(progress).await,
        }
    }

    async fn build_kind<K: Kind>(&self, mut progress: impl FnMut(IndexProgress) + Send) -> Result<IndexState> {
        let namespace = self.known.namespace()?.clone();
        let mut done = IndexProgress::default();
        loop {
            let Some((manifest, version)) = read_manifest::<K>(&self.store, &namespace).await? else {
                self.create(K::KIND).await?;
                continue;
            };
            self.known.of(K::KIND).set_presence(Presence::Present);
            let Built::UpTo(from) = &manifest.built else { break };
            match self.build_step::<K>(&namespace, from.clone(), manifest, version).await {
                Ok(step) => {
                    done.files += step.files;
                    done.bytes += step.bytes;
                    progress(done);
                }
                // Another process settled the index meanwhile.
                Err(error) if error.kind() == ErrorKind::Conflict => continue,
                Err(error) => return Err(error),
            }
            self.merge_all::<K>(&namespace).await?;
        }
        self.settle::<K>(K::KIND.tail_files()).await?;
        let missing =
            || Error::new(ErrorKind::Conflict, "the index was removed while it was being built; build it again if you still need it");
        self.state_of::<K>().await?.ok_or_else(missing)
    }

    /// Implements [`StoreBackend::remove_index`](crate::backend::StoreBackend::remove_index).
    pub(crate) async fn remove(&self, kind: IndexKind) -> Result<()> {
        let Ok(namespace) = self.known.namespace() else { return Ok(()) };
        let batch = Batch::new().delete_prefix(namespace, kind.manifest()).delete_prefix(namespace, kind.segments());
        self.store.commit(batch).await?;
        self.known.of(kind).forget();
        Ok(())
    }

    /// Indexes the next files, in one commit.
    async fn build_step<K: Kind>(
        &self,
        namespace: &Namespace,
        from: String,
        mut manifest: Manifest<K::Segment>,
        version: Version,
    ) -> Result<IndexProgress> {
        let mut entries: Vec<(IndexedFile, K::Entry)> = Vec::new();
        let mut done = IndexProgress::default();
        let mut entry_bytes = 0;
        let mut next = Some(from);
        while let Some(from) = next.take_if(|_| entry_bytes < 2 * COMMIT_BYTES && done.files < FILES_AT_ONCE as u64) {
            let mut options = ScanOptions::new().with_limit(512);
            options.start_after = Some(from).filter(|from| !from.is_empty());
            let (page, unread) = rows::read_page(&*self.store, &self.namespace, &options).await?;
            for (file, body_bytes, entry) in entries_of::<K>(page.entries).await? {
                done.files += 1;
                done.bytes += body_bytes;
                entry_bytes += K::size_bytes(&entry);
                entries.push((file, entry));
            }
            let unread: Vec<&str> = unread.iter().map(|(key, _)| key.as_str()).collect();
            if !unread.is_empty() {
                for item in self.store.get_many(&self.namespace, &unread, false).await?.into_iter().flatten() {
                    if RowKey::of(&item.key).is_ok_and(|place| !place.is_directory) {
                        done.files += 1;
                        entries.push((IndexedFile { key: item.key, version: item.version }, K::unread()));
                    }
                }
            }
            next = page.next;
        }
        let batch = Batch::new().expect(namespace, K::MANIFEST, Condition::Version(version));
        let batch = put_segments::<K>(namespace, batch, || Ok(entries), &mut manifest).await?;
        manifest.built = next.map_or(Built::Complete, Built::UpTo);
        self.store.commit(batch.put(namespace, K::MANIFEST, manifest.to_bytes())).await?;
        Ok(done)
    }
}

/// Computes the index entry and the content size in bytes of each file of a page, on all cores.
async fn entries_of<K: Kind>(page: Vec<ScanEntry>) -> Result<Vec<(IndexedFile, u64, K::Entry)>> {
    in_background(move |stop| {
        let entry = |entry: ScanEntry| {
            let ScanEntry::Item(item) = entry else { return None };
            // Searches never return rows that are not files of the tree.
            let place = RowKey::of(&item.key).ok().filter(|place| !place.is_directory)?;
            let is_sound = rows::body(&place.path, &item).is_ok();
            // The content of a damaged file is unknown, so every search must visit and report it.
            let entry = if is_sound { K::entry(&place.path, &item.value) } else { K::unread() };
            Some((IndexedFile { key: item.key, version: item.version }, item.value.len() as u64, entry))
        };
        let mut entries = Vec::with_capacity(page.len());
        parallel::ordered(page.into_iter(), workers(), entry, |entry| {
            entries.extend(entry);
            if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        entries
    })
    .await
}
