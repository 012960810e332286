//! How an index is read: the tail and the manifest, then rows of the segments, all as of one moment.

use super::Standing;
use super::files::FILES_A_ROW;
use super::kind::{Kind, Segment};
use super::manifest::{Built, Manifest, damaged, entries_key, files_key};
use super::settle::TAIL_BYTES;
use crate::backend::store::StoreBackend;
use crate::error::{ErrorKind, Result};
use crate::ops::Version;
use crate::store::{Item, Namespace, ScanEntry, ScanOptions};
use bytes::Bytes;
use std::collections::{BTreeSet, HashMap};

/// How often a lookup starts over because the index was settled meanwhile, before the search goes without it.
const ATTEMPTS_MAX: usize = 5;

/// What is looked up in an index, and what was found so far. It starts over from a clone that found nothing.
pub(super) trait Query<K: Kind>: Clone + Send + Sync {
    /// What is known of a file that was met in a segment before its row is read.
    type Hit: Send;

    /// Takes a file of the tail.
    ///
    /// # Errors
    /// [`Corrupt`](crate::error::ErrorKind::Corrupt) for a row that cannot be read.
    fn take_tail(&mut self, key: &str, row: &[u8]) -> Result<()>;

    /// Learns how many files there are, before it meets those of a segment.
    fn among(&mut self, manifest: &Manifest<K::Segment>, tail_files: usize) {
        let _ = (manifest, tail_files);
    }

    /// Returns which rows of a segment's entries are read, and how many bytes they have, about.
    ///
    /// # Errors
    /// [`Corrupt`](crate::error::ErrorKind::Corrupt) for what no segment is.
    fn rows(&self, segment: K::Segment) -> Result<(BTreeSet<usize>, usize)>;

    /// Returns the numbers of a segment's files that are found, in order. `row` gives the rows that were asked for.
    ///
    /// # Errors
    /// [`Corrupt`](crate::error::ErrorKind::Corrupt) for rows that cannot be read.
    fn hits(&mut self, segment: K::Segment, row: &dyn Fn(usize) -> Result<Bytes>) -> Result<Vec<(usize, Self::Hit)>>;

    /// Takes a file of a segment that is found.
    fn take(&mut self, hit: Self::Hit, file: K::File);
}

/// What was looked up.
pub(super) struct LookedUp<K: Kind, Q> {
    pub(super) query: Q,
    pub(super) manifest: Manifest<K::Segment>,
}

/// An index that was settled while it was read.
struct Settled;

/// What one pass over the tail gave.
struct Tail<K: Kind> {
    manifest: Manifest<K::Segment>,
    version: Version,
    /// How many files it has.
    files: usize,
}

impl StoreBackend {
    /// Looks something up in the index of a kind; none when there is none, or one that is not complete, or that is damaged: the files are
    /// there all the same, and a check of the tree names what is wrong.
    ///
    /// Cost: the tail, then the rows of the segments, then the names of the files that are found: three round trips, and one more the
    /// first time.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) async fn look_up<K: Kind, Q: Query<K>>(&self, query: &Q) -> Result<Option<LookedUp<K, Q>>> {
        match self.look_up_sound(query).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let message = "an index is damaged, so a search reads all files; remove the index and make it again";
                tracing::warn!(tree = %self, kind = %K::KIND, %error, message);
                Ok(None)
            }
            looked_up => looked_up,
        }
    }

    async fn look_up_sound<K: Kind, Q: Query<K>>(&self, query: &Q) -> Result<Option<LookedUp<K, Q>>> {
        if self.indexes.standing(K::KIND) == Standing::Unknown {
            self.learn_indexes().await?;
        }
        if self.indexes.standing(K::KIND) != Standing::Present {
            return Ok(None);
        }
        let namespace = self.indexes.namespace()?;
        for _ in 0..ATTEMPTS_MAX {
            let mut query = query.clone();
            let Some(Tail { manifest, version, files }) = self.in_tail::<K, Q>(namespace, &mut query).await? else { return Ok(None) };
            query.among(&manifest, files);
            if let Ok(()) = self.in_segments::<K, Q>(namespace, &manifest, version, &mut query).await? {
                return Ok(Some(LookedUp { query, manifest }));
            }
        }
        Ok(None)
    }

    /// Reads the manifest and what the tail has; none of an index that is not there or not complete.
    async fn in_tail<K: Kind, Q: Query<K>>(&self, namespace: &Namespace, query: &mut Q) -> Result<Option<Tail<K>>> {
        let mut scan = ScanOptions::new().with_prefix(K::MANIFEST).with_values(true).with_limit(self.indexes.tail_rows);
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
                    self.indexes.of(K::KIND).forget();
                }
                return Ok(None);
            }
            match page.next {
                Some(next) => scan.start_after = Some(next),
                None => break,
            }
        }
        if files > K::KIND.tail_files_max() {
            // Many short processes wrote, none of which lived long enough to settle it: this one may not either.
            self.settle_index_once(K::KIND).await;
        } else if files > 2 * K::KIND.tail_files() || bytes > 2 * TAIL_BYTES {
            self.settle_index_soon(K::KIND);
        }
        Ok(manifest.map(|(manifest, version)| Tail { manifest, version, files }))
    }

    /// Reads what the segments have: of some at once, as many as a bounded number of bytes is read of.
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
                if count > 0 && bytes > self.indexes.lookup_bytes {
                    break;
                }
                wanted.extend(rows.into_iter().map(|row| entries_key::<K>(segment.id(), row)));
                count += 1;
            }
            let (some, others) = rest.split_at(count);
            if let Err(settled) = self.in_some::<K, Q>(namespace, some, wanted, version, query).await? {
                return Ok(Err(settled));
            }
            rest = others;
            if rest.is_empty() {
                return Ok(Ok(()));
            }
        }
    }

    /// Reads what some segments have, given which rows of theirs are wanted, and the manifest first.
    async fn in_some<K: Kind, Q: Query<K>>(
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
            let rows: BTreeSet<usize> = hits.iter().map(|(number, _)| number / FILES_A_ROW).collect();
            rows.into_iter().map(|row| files_key::<K>(*segment, row)).collect::<Vec<_>>()
        };
        let Ok(rows) = self.rows(namespace, found.iter().flat_map(rows_of).collect()).await? else { return Ok(Err(Settled)) };
        for (segment, hits) in found {
            let mut open: Option<(usize, Vec<Option<K::File>>)> = None;
            for (number, hit) in hits {
                let row = number / FILES_A_ROW;
                if open.as_ref().is_none_or(|(known, _)| *known != row) {
                    let item = rows.get(&files_key::<K>(segment, row)).ok_or_else(|| damaged("a row of a segment"))?;
                    open = Some((row, K::files_from_bytes(&item.value)?.into_iter().map(Some).collect()));
                }
                let file = open.as_mut().and_then(|(_, files)| files.get_mut(number % FILES_A_ROW)).and_then(Option::take);
                query.take(hit, file.ok_or_else(|| damaged("a list of files"))?);
            }
        }
        Ok(Ok(()))
    }

    /// Reads rows of the index, all as of one moment; one that is missing went away with its segment.
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
