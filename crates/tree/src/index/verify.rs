//! Verifies that the indexes find every file.

use super::TreeIndexes;
use super::kind::{IndexKind, Kind, Part};
use super::manifest::{Built, places, tail_key};
use super::read_manifest;
use super::trigrams::Trigrams;
use super::words::Words;
use crate::rows::RowKey;
use std::hash::{BuildHasher, RandomState};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_core::path::VfsPath;
use treehold_store::Item;

/// The contents of a tree's indexes, to be compared with its files.
#[derive(Default)]
pub(crate) struct ReadIndexes {
    trigrams: Option<ReadIndex>,
    words: Option<ReadIndex>,
    /// Errors of indexes that cannot be read.
    pub(crate) failures: Vec<Error>,
}

/// The entries of an index's segments, 16 bytes for each file whatever its size.
///
/// Two files are confused with probability 2^-64.
struct ReadIndex {
    /// The version of the manifest that was read.
    version: Version,
    /// Hashes the key and version of a file.
    hasher: RandomState,
    /// The hash of each file and the digest of its entry, or [`ANYTHING`] for a file that matches every search; sorted.
    files: Vec<(u64, u64)>,
}

/// Replaces the digest of an entry that matches every search.
const ANYTHING: u64 = 0;

impl TreeIndexes {
    /// Reads the segments of all complete indexes.
    ///
    /// # Errors
    /// Errors of the store. An index that cannot be read is reported in [`ReadIndexes::failures`].
    pub(crate) async fn read(&self) -> Result<ReadIndexes> {
        let mut failures = Vec::new();
        let trigrams = or_report_corrupt(self.read_index::<Trigrams>().await, &mut failures)?;
        let words = or_report_corrupt(self.read_index::<Words>().await, &mut failures)?;
        Ok(ReadIndexes { trigrams, words, failures })
    }

    /// Returns which of the given files an index would fail to find, by position, and the kind of that index. The files must have
    /// been read with their bodies.
    ///
    /// # Errors
    /// Errors of the store.
    pub(crate) async fn unindexed(&self, indexes: &ReadIndexes, files: &[Item]) -> Result<Vec<(usize, IndexKind)>> {
        let mut unindexed = self.unindexed_by::<Trigrams>(indexes.trigrams.as_ref(), files).await?;
        unindexed.extend(self.unindexed_by::<Words>(indexes.words.as_ref(), files).await?);
        Ok(unindexed)
    }

    /// Reads the segments of an index, one after another.
    async fn read_index<K: Kind>(&self) -> Result<Option<ReadIndex>> {
        let Ok(namespace) = self.known.namespace() else { return Ok(None) };
        loop {
            let Some((manifest, version)) = read_manifest::<K>(&self.store, namespace).await? else { return Ok(None) };
            if manifest.built != Built::Complete {
                return Ok(None);
            }
            let mut read = ReadIndex { version, hasher: RandomState::new(), files: Vec::with_capacity(places(&manifest)) };
            let mut failure = None;
            for segment in &manifest.segments {
                match self.part::<K>(namespace, *segment).await {
                    Ok(part) => read.push::<K>(&part),
                    Err(error) => failure = Some(error),
                }
            }
            // If the index was settled meanwhile, read it again.
            if read_manifest::<K>(&self.store, namespace).await?.is_none_or(|(_, now)| now != version) {
                continue;
            }
            read.files.sort_unstable();
            return failure.map_or(Ok(Some(read)), Err);
        }
    }

    async fn unindexed_by<K: Kind>(&self, index: Option<&ReadIndex>, files: &[Item]) -> Result<Vec<(usize, IndexKind)>> {
        let Some(index) = index else { return Ok(Vec::new()) };
        let namespace = self.known.namespace()?;
        let check = |(number, item): (usize, &Item)| {
            let now = K::entry(&RowKey::of(&item.key).ok()?.path, &item.value);
            (!index.finds::<K>(item, &now)).then_some((number, now))
        };
        let mut doubtful: Vec<(usize, K::Entry)> = files.iter().enumerate().filter_map(check).collect();
        if doubtful.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<String> = doubtful.iter().map(|(file, _)| tail_key(K::MANIFEST, &files[*file].key)).collect();
        let borrowed: Vec<&str> = keys.iter().map(String::as_str).collect();
        let mut tail = self.store.get_many(namespace, &borrowed, true).await?.into_iter();
        doubtful.retain(|(_, now)| {
            let kept = tail.next().flatten().and_then(|item| K::from_bytes(&item.value).ok());
            kept.is_none_or(|kept| !K::covers(&kept, now))
        });
        if doubtful.is_empty() {
            return Ok(Vec::new());
        }
        // A file that was written or settled between the reads has a new version or is indexed by now.
        let keys: Vec<&str> = doubtful.iter().map(|(file, _)| files[*file].key.as_str()).collect();
        let now = self.store.get_many(&self.namespace, &keys, false).await?;
        let mut now = now.into_iter();
        doubtful.retain(|(file, _)| now.next().flatten().is_some_and(|now| now.version == files[*file].version));
        if doubtful.is_empty() {
            return Ok(Vec::new());
        }
        // Read the segments again only if they changed.
        let again = match read_manifest::<K>(&self.store, namespace).await? {
            Some((_, version)) if version == index.version => None,
            _ => match self.read_index::<K>().await? {
                Some(again) => Some(again),
                None => return Ok(Vec::new()),
            },
        };
        let missed = doubtful.into_iter().filter(|(file, now)| again.as_ref().is_none_or(|again| !again.finds::<K>(&files[*file], now)));
        Ok(missed.map(|(file, _)| (file, K::KIND)).collect())
    }
}

impl ReadIndex {
    fn push<K: Kind>(&mut self, part: &K::Part) {
        let digests = K::digests(part).into_iter().map(|digest| digest.map_or(ANYTHING, |digest| digest.max(ANYTHING + 1)));
        let files = part.files().iter().map(|file| self.hasher.hash_one((&file.key, file.version)));
        self.files.extend(files.zip(digests));
    }

    fn finds<K: Kind>(&self, file: &Item, now: &K::Entry) -> bool {
        let number = self.hasher.hash_one((&file.key, file.version));
        let start = self.files.partition_point(|(other, _)| *other < number);
        let mut places = self.files[start..].iter().take_while(|(other, _)| *other == number);
        let wanted = K::digest(now).max(ANYTHING + 1);
        places.any(|(_, digest)| *digest == ANYTHING || *digest == wanted)
    }
}

/// Turns an unreadable index into an entry of `failures`.
fn or_report_corrupt<T>(read: Result<Option<T>>, failures: &mut Vec<Error>) -> Result<Option<T>> {
    match read {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            failures.push(error);
            Ok(None)
        }
        read => read,
    }
}

/// Creates the error for a file that an index fails to find.
pub(crate) fn unindexed(path: &VfsPath, kind: IndexKind) -> Error {
    let message = format!("the {kind} index of the tree does not find `{path}`; rebuild it with `treehold store index --rebuild`");
    Error::new(ErrorKind::Corrupt, message).at(path)
}
