//! How an index is read: the manifest and the tail, then rows of segments, all consistent with one version of the manifest.

use super::Presence;
use super::TreeIndexes;
use super::files::FILES_PER_ROW;
use super::kind::{Kind, Segment};
use super::manifest::{Built, Manifest, damaged, entries_key, files_key};
use super::settle::TAIL_BYTES;
use bytes::Bytes;
use std::collections::{BTreeSet, HashMap};
use treehold_core::error::{ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_store::{Item, Namespace, ScanEntry, ScanOptions};

/// How many times a lookup is started. It restarts if the index was settled meanwhile; after the last, the search reads all files.
const STARTS_MAX: usize = 5;

/// What to look up in an index, and the results so far. A restarted lookup begins with a fresh clone.
pub(super) trait Query<K: Kind>: Clone + Send + Sync {
    /// What is known of a matching file in a segment before its file list row is read.
    type Hit: Send;

    /// Adds a file of the tail if it matches.
    ///
    /// # Errors
    /// [`Corrupt`](treehold_core::error::ErrorKind::Corrupt) if the row cannot be decoded.
    fn take_tail(&mut self, key: &str, row: &[u8]) -> Result<()>;

    /// Receives the sizes of the segments and the tail before the first segment is read.
    fn among(&mut self, manifest: &Manifest<K::Segment>, tail_files: usize) {
        let _ = (manifest, tail_files);
    }

    /// Returns the numbers of the entry rows to read from a segment, and their approximate size in bytes.
    ///
    /// # Errors
    /// [`Corrupt`](treehold_core::error::ErrorKind::Corrupt) if the segment description is invalid.
    fn rows(&self, segment: K::Segment) -> Result<(BTreeSet<usize>, usize)>;

    /// Returns the numbers of the matching files of a segment, in order. `row` returns the requested rows.
    ///
    /// # Errors
    /// [`Corrupt`](treehold_core::error::ErrorKind::Corrupt) if a row cannot be decoded.
    fn hits(&mut self, segment: K::Segment, row: &dyn Fn(usize) -> Result<Bytes>) -> Result<Vec<(usize, Self::Hit)>>;

    /// Adds a matching file of a segment.
    fn take(&mut self, hit: Self::Hit, file: K::File);
}

/// The outcome of a lookup.
pub(super) struct LookedUp<K: Kind, Q> {
    pub(super) query: Q,
    pub(super) manifest: Manifest<K::Segment>,
}

/// The index was settled while it was being read, so the lookup must restart.
struct Settled;

/// The result of one pass over the tail.
struct Tail<K: Kind> {
    manifest: Manifest<K::Segment>,
    version: Version,
    /// The number of files in the tail.
    files: usize,
}

impl TreeIndexes {
    /// Runs a query against an index. Returns `None` if the index is missing, incomplete or damaged; the search then reads all
    /// files, and `verify` reports the damage.
    ///
    /// Cost: one pass over the tail, then the segment rows, then the file lists of the matches: three round trips, and one more
    /// the first time.
    ///
    /// # Errors
    /// Errors of the store.
    pub(super) async fn look_up<K: Kind, Q: Query<K>>(&self, query: &Q) -> Result<Option<LookedUp<K, Q>>> {
        match self.look_up_sound(query).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let message = "an index is damaged, so searches read all files; rebuild the index";
                tracing::warn!(tree = %self, kind = %K::KIND, %error, message);
                Ok(None)
            }
            looked_up => looked_up,
        }
    }

    async fn look_up_sound<K: Kind, Q: Query<K>>(&self, query: &Q) -> Result<Option<LookedUp<K, Q>>> {
        if self.presence(K::KIND) == Presence::Unknown {
            self.learn().await?;
        }
        if self.presence(K::KIND) != Presence::Present {
            return Ok(None);
        }
        let namespace = self.known.namespace()?;
        for _ in 0..STARTS_MAX {
            let mut query = query.clone();
            let Some(Tail { manifest, version, files }) = self.in_tail::<K, Q>(namespace, &mut query).await? else { return Ok(None) };
            query.among(&manifest, files);
            if let Ok(()) = self.in_segments::<K, Q>(namespace, &manifest, version, &mut query).await? {
                return Ok(Some(LookedUp { query, manifest }));
            }
        }
        Ok(None)
    }

    /// Reads the manifest and the tail. Returns `None` if the index is missing or incomplete.
    async fn in_tail<K: Kind, Q: Query<K>>(&self, namespace: &Namespace, query: &mut Q) -> Result<Option<Tail<K>>> {
        let mut scan = ScanOptions::new().with_prefix(K::MANIFEST).with_values(true).with_limit(self.known.tail_rows);
        let mut manifest: Option<(Manifest<K::Segment>, Version)> = None;
        let (mut files, mut bytes) = (0, 0);
        loop {
            let page = self.store.scan(namespace, scan.clone()).await?;
            for entry in page.entries {
                let ScanEntry::Item(Item { key, value, version, .. }) = entry else { continue };
                let Some(file) = key.strip_prefix(K::MANIFEST).filter(|file| !file.is_empty()) else {
                    manifest = Some((Manifest::from_bytes(&value)?, version));
                    continue;
                };
                files += 1;
                bytes += value.len();
                query.take_tail(file, &value)?;
            }
            if manifest.as_ref().is_none_or(|(manifest, _)| manifest.built != Built::Complete) {
                if manifest.is_none() {
                    self.known.of(K::KIND).forget();
                }
                return Ok(None);
            }
            match page.next {
                Some(next) => scan.start_after = Some(next),
                None => break,
            }
        }
        if files > K::KIND.tail_files_max() {
            // Many short-lived processes wrote, none of which lived long enough to settle the tail. This process may be one too,
            // so it does not leave the work to a background task.
            self.settle_once(K::KIND, K::KIND.searched_tail_files()).await;
        } else if files > K::KIND.searched_tail_files() || bytes > 2 * TAIL_BYTES {
            self.settle_soon(K::KIND, K::KIND.searched_tail_files());
        }
        Ok(manifest.map(|(manifest, version)| Tail { manifest, version, files }))
    }

    /// Reads the segments, in groups of a bounded size in bytes.
    async fn in_segments<K: Kind, Q: Query<K>>(
        &self,
        namespace: &Namespace,
        manifest: &Manifest<K::Segment>,
        version: Version,
        query: &mut Q,
    ) -> Result<Result<(), Settled>> {
        let mut rest = &manifest.segments[..];
        loop {
            let (mut wanted, mut bytes, mut count) = (vec![K::MANIFEST.to_owned()], 0, 0);
            for segment in rest {
                let (rows, size_bytes) = query.rows(*segment)?;
                bytes += size_bytes;
                if count > 0 && bytes > self.known.lookup_bytes {
                    break;
                }
                wanted.extend(rows.into_iter().map(|row| entries_key::<K>(segment.id(), row)));
                count += 1;
            }
            let (some, others) = rest.split_at(count);
            if let Err(settled) = self.in_group::<K, Q>(namespace, some, wanted, version, query).await? {
                return Ok(Err(settled));
            }
            rest = others;
            if rest.is_empty() {
                return Ok(Ok(()));
            }
        }
    }

    /// Reads the manifest and the wanted rows of some segments.
    async fn in_group<K: Kind, Q: Query<K>>(
        &self,
        namespace: &Namespace,
        segments: &[K::Segment],
        wanted: Vec<String>,
        version: Version,
        query: &mut Q,
    ) -> Result<Result<(), Settled>> {
        let Ok(rows) = self.rows(namespace, wanted).await? else { return Ok(Err(Settled)) };
        if rows.get(K::MANIFEST).is_none_or(|item| item.version != version) {
            return Ok(Err(Settled));
        }
        let mut found = Vec::new();
        for segment in segments {
            let row = |row: usize| -> Result<Bytes> {
                let row = rows.get(&entries_key::<K>(segment.id(), row));
                row.map(|item| item.value.clone()).ok_or_else(|| damaged("a row of a segment"))
            };
            let hits = query.hits(*segment, &row)?;
            if !hits.is_empty() {
                found.push((segment.id(), hits));
            }
        }
        let rows_of = |(segment, hits): &(u64, Vec<(usize, Q::Hit)>)| {
            let rows: BTreeSet<usize> = hits.iter().map(|(number, _)| number / FILES_PER_ROW).collect();
            rows.into_iter().map(|row| files_key::<K>(*segment, row)).collect::<Vec<_>>()
        };
        let Ok(rows) = self.rows(namespace, found.iter().flat_map(rows_of).collect()).await? else { return Ok(Err(Settled)) };
        for (segment, hits) in found {
            let mut open: Option<(usize, Vec<Option<K::File>>)> = None;
            for (number, hit) in hits {
                let row = number / FILES_PER_ROW;
                if open.as_ref().is_none_or(|(known, _)| *known != row) {
                    let item = rows.get(&files_key::<K>(segment, row)).ok_or_else(|| damaged("a row of a segment"))?;
                    open = Some((row, K::files_from_bytes(&item.value)?.into_iter().map(Some).collect()));
                }
                let file = open.as_mut().and_then(|(_, files)| files.get_mut(number % FILES_PER_ROW)).and_then(Option::take);
                query.take(hit, file.ok_or_else(|| damaged("a list of files"))?);
            }
        }
        Ok(Ok(()))
    }

    /// Reads rows of the index atomically. A missing row means that its segment was merged away.
    async fn rows(&self, namespace: &Namespace, keys: Vec<String>) -> Result<Result<HashMap<String, Item>, Settled>> {
        if keys.is_empty() {
            return Ok(Ok(HashMap::new()));
        }
        let borrowed: Vec<&str> = keys.iter().map(String::as_str).collect();
        let items = self.store.get_many(namespace, &borrowed, true).await?;
        let rows: Option<HashMap<String, Item>> = keys.into_iter().zip(items).map(|(key, item)| Some((key, item?))).collect();
        Ok(rows.ok_or(Settled))
    }
}
