//! Moves tail rows into segments, and merges small segments into large ones.
//!
//! Each step is one commit conditional on the manifest version it read, so of several concurrent processes one succeeds and the
//! others retry. A step that removes tail rows is conditional on each of them too, so rows written meanwhile stay. The rows of a
//! large segment are written before the commit that names it. Nobody reads them until then, and the next merge removes those that
//! a killed process left behind.

use super::TreeIndexes;
use super::files::IndexedFile;
use super::kind::{Kind, Part, Segment};
use super::manifest::{Manifest, after_segment, segment_prefix, segment_prefix_of, tail_key};
use super::read_manifest;
use crate::background::in_background;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap, HashSet};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_store::{Batch, Condition, Namespace, ScanEntry, ScanOptions};

/// The most files that one commit moves from the tail to a segment.
const FILES_AT_ONCE: usize = 4_096;

/// How many files stay in the tail: the latest, as they are the most likely to be rewritten soon.
const FILES_KEPT: usize = 64;

/// How many segments of similar size are merged at once.
const FAN_IN: usize = 4;

/// The approximate size in bytes of one commit.
pub(super) const COMMIT_BYTES: usize = 2 << 20;

/// The approximate number of tail bytes read at once.
pub(super) const TAIL_BYTES: usize = 16 << 20;

/// The most orphaned segments one commit removes.
const ORPHANS_MAX: usize = 16;

/// The most steps that one call makes or tries to make. A later write continues.
const STEPS_MAX: usize = 20;

impl TreeIndexes {
    /// Moves files from the tail into segments until the tail has fewer than `files` files and a bounded size, then merges
    /// segments.
    ///
    /// # Errors
    /// Errors of the store.
    pub(super) async fn settle<K: Kind>(&self, files: usize) -> Result<()> {
        let namespace = self.known.namespace()?.clone();
        for _ in 0..STEPS_MAX {
            match self.settle_tail::<K>(&namespace, files).await {
                Ok(true) => {}
                Ok(false) => return self.merge_all::<K>(&namespace).await,
                // Another process changed the index first.
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) => return Err(error),
            }
            self.merge_all::<K>(&namespace).await?;
        }
        Ok(())
    }

    /// Moves one batch of files from the tail into segments if the tail is too long. Returns whether it did.
    async fn settle_tail<K: Kind>(&self, namespace: &Namespace, files: usize) -> Result<bool> {
        let Some((mut manifest, version)) = read_manifest::<K>(&self.store, namespace).await? else { return Ok(false) };
        let (mut tail, has_more) = self.tail::<K>(namespace).await?;
        // If the tail was too large to read whole, it is too long in bytes, whatever its file count.
        if tail.len() < files.max(1) && !has_more {
            return Ok(false);
        }
        // Oldest first. Keep the latest unless the whole tail is to be moved.
        tail.sort_unstable_by_key(|(_, version, _)| *version);
        let kept = if files <= 1 { 0 } else { FILES_KEPT.min(files / 2) };
        tail.truncate(tail.len().saturating_sub(kept).clamp(1, FILES_AT_ONCE));
        let mut bytes = 0;
        let fitting = tail.iter().take_while(|(_, _, row)| {
            bytes += row.len();
            bytes <= 2 * COMMIT_BYTES
        });
        let fitting = fitting.count().max(1);
        tail.truncate(fitting);
        let keys: Vec<&str> = tail.iter().map(|(key, ..)| key.as_str()).collect();
        let rows = self.store.get_many(&self.namespace, &keys, false).await?;
        let mut batch = Batch::new().expect(namespace, K::MANIFEST, Condition::Version(version));
        let mut entries: Vec<(IndexedFile, Bytes)> = Vec::with_capacity(tail.len());
        for ((key, version, entry), row) in tail.into_iter().zip(rows) {
            let tail_key = tail_key(K::MANIFEST, &key);
            batch = batch.expect(namespace, &tail_key, Condition::Version(version)).delete(namespace, tail_key);
            // An expired file has no row any more.
            if let Some(row) = row {
                entries.push((IndexedFile { key, version: row.version }, entry));
            }
        }
        entries.sort_unstable_by(|(one, _), (other, _)| one.key.cmp(&other.key));
        let entries = move || entries.into_iter().map(|(file, row)| Ok((file, K::from_bytes(&row)?))).collect();
        batch = put_segments::<K>(namespace, batch, entries, &mut manifest).await?;
        self.store.commit(batch.put(namespace, K::MANIFEST, manifest.to_bytes())).await?;
        Ok(true)
    }

    /// Reads the tail as file keys, row versions and rows. Also returns whether there is more than was read.
    async fn tail<K: Kind>(&self, namespace: &Namespace) -> Result<(Vec<(String, Version, Bytes)>, bool)> {
        let mut scan = ScanOptions::new().with_prefix(K::MANIFEST).with_start_after(K::MANIFEST).with_values(true);
        let (mut tail, mut bytes) = (Vec::new(), 0);
        loop {
            let page = self.store.scan(namespace, scan.clone()).await?;
            for entry in page.entries {
                let ScanEntry::Item(item) = entry else { continue };
                bytes += item.value.len();
                tail.push((item.key[K::MANIFEST.len()..].to_owned(), item.version, item.value));
            }
            match page.next {
                Some(next) if bytes < TAIL_BYTES => scan.start_after = Some(next),
                next => return Ok((tail, next.is_some())),
            }
        }
    }

    /// Merges segments until no [`FAN_IN`] of them have a similar size.
    pub(super) async fn merge_all<K: Kind>(&self, namespace: &Namespace) -> Result<()> {
        for _ in 0..STEPS_MAX {
            let Some((manifest, version)) = read_manifest::<K>(&self.store, namespace).await? else { return Ok(()) };
            let Some(parts) = mergeable::<K>(&manifest) else { return Ok(()) };
            match self.merge::<K>(namespace, manifest, version, &parts).await {
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                merged => merged?,
            }
        }
        Ok(())
    }

    async fn merge<K: Kind>(
        &self,
        namespace: &Namespace,
        mut manifest: Manifest<K::Segment>,
        version: Version,
        parts: &[K::Segment],
    ) -> Result<()> {
        let mut read = Vec::with_capacity(parts.len());
        for part in parts {
            match self.part::<K>(namespace, *part).await {
                Ok(part) => read.push(part),
                // Another process has merged it meanwhile, or it is really damaged.
                Err(error) => {
                    let now = read_manifest::<K>(&self.store, namespace).await?;
                    return if now.is_some_and(|(_, now)| now == version) { Err(error) } else { Ok(()) };
                }
            }
        }
        // Entries with an outdated version are superseded by the tail or a later segment.
        let mut versions: HashMap<String, Version> = HashMap::new();
        for file in read.iter().flat_map(K::Part::files) {
            versions.insert(file.key.clone(), Version::new(0));
        }
        let keys: Vec<String> = versions.keys().cloned().collect();
        for keys in keys.chunks(FILES_AT_ONCE) {
            let borrowed: Vec<&str> = keys.iter().map(String::as_str).collect();
            for item in self.store.get_many(&self.namespace, &borrowed, false).await?.into_iter().flatten() {
                versions.insert(item.key, item.version);
            }
        }
        let merged = in_background(move |_| {
            let merged = K::Part::merged(&read, |file| versions.get(&file.key) == Some(&file.version));
            (!merged.files().is_empty()).then(|| merged.rows(new_id()))
        });
        let merged = merged.await?;
        let orphans = self.orphans::<K>(namespace, &manifest).await?;
        manifest.segments.retain(|segment| !parts.contains(segment));
        let mut last = Batch::new().expect(namespace, K::MANIFEST, Condition::Version(version));
        for orphan in orphans {
            last = last.delete_prefix(namespace, orphan);
        }
        for part in parts {
            last = last.delete_prefix(namespace, segment_prefix::<K>(part.id()));
        }
        let mut written = None;
        if let Some((segment, merged)) = merged {
            written = Some(segment);
            let mut rows = Batch::new();
            let mut bytes = 0;
            for (key, value) in merged {
                bytes += value.len();
                rows = rows.put(namespace, key, value);
                if bytes >= COMMIT_BYTES {
                    self.store.commit(std::mem::take(&mut rows)).await?;
                    bytes = 0;
                }
            }
            last.writes.extend(rows.writes);
            manifest.segments.push(segment);
        }
        let committed = self.store.commit(last.put(namespace, K::MANIFEST, manifest.to_bytes())).await;
        if let (Err(error), Some(segment)) = (&committed, written)
            && error.is_without_effect()
        {
            // Nothing refers to the rows that were written for it.
            self.store.commit(Batch::new().delete_prefix(namespace, segment_prefix::<K>(segment.id()))).await?;
        }
        committed.map(|_| ())
    }

    /// Returns the key prefixes of segment rows that the manifest does not name. They are left over from a killed merge, or
    /// belong to a concurrent one, which will conflict with the caller's new manifest and retry.
    async fn orphans<K: Kind>(&self, namespace: &Namespace, manifest: &Manifest<K::Segment>) -> Result<Vec<String>> {
        let known: HashSet<String> = manifest.segments.iter().map(|segment| segment_prefix::<K>(segment.id())).collect();
        let mut orphans = Vec::new();
        let mut scan = ScanOptions::new().with_prefix(K::SEGMENTS).with_limit(1);
        while orphans.len() < ORPHANS_MAX {
            let page = self.store.scan(namespace, scan.clone()).await?;
            let Some(prefix) = page.entries.first().and_then(|entry| segment_prefix_of::<K>(entry.key())) else { break };
            if !known.contains(prefix) {
                orphans.push(prefix.to_owned());
            }
            scan.start_after = Some(after_segment(prefix));
        }
        Ok(orphans)
    }

    /// Reads a whole segment.
    pub(super) async fn part<K: Kind>(&self, namespace: &Namespace, segment: K::Segment) -> Result<K::Part> {
        let mut scan = ScanOptions::new().with_prefix(segment_prefix::<K>(segment.id())).with_values(true);
        let mut rows = Vec::new();
        loop {
            let page = self.store.scan(namespace, scan.clone()).await?;
            for entry in page.entries {
                if let ScanEntry::Item(item) = entry {
                    rows.push((item.key, item.value));
                }
            }
            match page.next {
                Some(next) => scan.start_after = Some(next),
                None => break,
            }
        }
        in_background(move |_| K::Part::from_rows(segment, rows.iter().map(|(key, value)| (&**key, value)))).await?
    }
}

/// Builds segments from files and their entries, and adds them to a batch and to the manifest.
pub(super) async fn put_segments<K: Kind>(
    namespace: &Namespace,
    mut batch: Batch,
    entries: impl FnOnce() -> Result<Vec<(IndexedFile, K::Entry)>> + Send + 'static,
    manifest: &mut Manifest<K::Segment>,
) -> Result<Batch> {
    // Building a segment takes too long for an executor thread.
    let made = in_background(move |_| Ok::<_, Error>(K::parts(entries()?).iter().map(|part| part.rows(new_id())).collect::<Vec<_>>()));
    for (segment, rows) in made.await?? {
        for (key, value) in rows {
            batch = batch.put(namespace, key, value);
        }
        manifest.segments.push(segment);
    }
    Ok(batch)
}

/// Returns [`FAN_IN`] segments of the same group and similar size, if there are any.
fn mergeable<K: Kind>(manifest: &Manifest<K::Segment>) -> Option<Vec<K::Segment>> {
    let mut alike: BTreeMap<(u8, u32), Vec<K::Segment>> = BTreeMap::new();
    for segment in &manifest.segments {
        let level = segment.size_bytes().max(1).ilog2() / FAN_IN.ilog2();
        let parts = alike.entry((segment.group(), level)).or_default();
        parts.push(*segment);
        let size_bytes = parts.iter().fold(0_usize, |sum, part| sum.saturating_add(part.size_bytes()));
        if parts.len() == FAN_IN && size_bytes <= K::SEGMENT_BYTES_MAX {
            return Some(parts.clone());
        }
    }
    None
}

/// Generates a unique segment id.
fn new_id() -> u64 {
    let (high, low) = uuid::Uuid::now_v7().as_u64_pair();
    // Combine the time in milliseconds with the random bits of both halves.
    (high << 16) ^ low
}
