//! Whether the indexes find every file.

use super::kind::{IndexKind, Kind, Part};
use super::manifest::{Built, tail_key};
use super::read_manifest;
use super::trigrams::Trigrams;
use super::words::Words;
use crate::backend::store::StoreBackend;
use crate::backend::store::rows::Place;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::Version;
use crate::path::VfsPath;
use crate::store::Item;
use std::collections::HashMap;

/// The indexes of a tree read whole, to be compared with the files.
#[derive(Default)]
pub(in crate::backend::store) struct ReadIndexes {
    trigrams: Option<ReadIndex<Trigrams>>,
    words: Option<ReadIndex<Words>>,
    /// What cannot be read of them.
    pub(in crate::backend::store) failures: Vec<Error>,
}

/// An index read whole.
struct ReadIndex<K: Kind> {
    proofs: Vec<K::Proof>,
    /// Where a file of a version stands: in which segment, as which of its files.
    places: HashMap<(String, Version), Vec<(usize, usize)>>,
}

impl StoreBackend {
    /// Reads the segments of all indexes that are there and complete.
    ///
    /// # Errors
    /// Those of the store; an index that cannot be read is among the failures.
    pub(in crate::backend::store) async fn read_indexes(&self) -> Result<ReadIndexes> {
        let mut failures = Vec::new();
        let trigrams = legible(self.read_index::<Trigrams>().await, &mut failures)?;
        let words = legible(self.read_index::<Words>().await, &mut failures)?;
        Ok(ReadIndexes { trigrams, words, failures })
    }

    /// Tells which of some files, read with their bodies, a search would not find by one of the indexes, and by which.
    ///
    /// # Errors
    /// Those of the store.
    pub(in crate::backend::store) async fn unindexed(&self, indexes: &ReadIndexes, files: &[Item]) -> Result<Vec<(usize, IndexKind)>> {
        let mut unindexed = self.unindexed_by(indexes.trigrams.as_ref(), files).await?;
        unindexed.extend(self.unindexed_by(indexes.words.as_ref(), files).await?);
        Ok(unindexed)
    }

    async fn read_index<K: Kind>(&self) -> Result<Option<ReadIndex<K>>> {
        let Ok(namespace) = self.indexes.namespace() else { return Ok(None) };
        loop {
            let Some((manifest, version)) = read_manifest::<K>(&self.store, namespace).await? else { return Ok(None) };
            if manifest.built != Built::Complete {
                return Ok(None);
            }
            let mut read = ReadIndex { proofs: Vec::new(), places: HashMap::new() };
            let mut failure = None;
            for segment in &manifest.segments {
                match self.part::<K>(namespace, *segment).await {
                    Ok(part) => read.push(part),
                    Err(error) => failure = Some(error),
                }
            }
            // What was merged meanwhile is read again.
            if read_manifest::<K>(&self.store, namespace).await?.is_none_or(|(_, now)| now != version) {
                continue;
            }
            return failure.map_or(Ok(Some(read)), Err);
        }
    }

    async fn unindexed_by<K: Kind>(&self, index: Option<&ReadIndex<K>>, files: &[Item]) -> Result<Vec<(usize, IndexKind)>> {
        let Some(index) = index else { return Ok(Vec::new()) };
        let namespace = self.indexes.namespace()?;
        let check = |(number, item): (usize, &Item)| {
            let now = K::entry(&Place::of(&item.key).ok()?.path, &item.value);
            (!index.finds(item, &now)).then_some((number, now))
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
        // What was written or settled between the reads is in order by now, or has another version.
        let keys: Vec<&str> = doubtful.iter().map(|(file, _)| files[*file].key.as_str()).collect();
        let now = self.store.get_many(&self.namespace, &keys, false).await?;
        let mut now = now.into_iter();
        doubtful.retain(|(file, _)| now.next().flatten().is_some_and(|now| now.version == files[*file].version));
        if doubtful.is_empty() {
            return Ok(Vec::new());
        }
        let Some(again) = self.read_index::<K>().await? else { return Ok(Vec::new()) };
        let missed = doubtful.into_iter().filter(|(file, now)| !again.finds(&files[*file], now));
        Ok(missed.map(|(file, _)| (file, K::KIND)).collect())
    }
}

impl<K: Kind> ReadIndex<K> {
    fn push(&mut self, part: K::Part) {
        for (number, file) in part.files().iter().enumerate() {
            self.places.entry((file.key.clone(), file.version)).or_default().push((self.proofs.len(), number));
        }
        self.proofs.push(K::proof(part));
    }

    fn finds(&self, file: &Item, now: &K::Entry) -> bool {
        let places = self.places.get(&(file.key.clone(), file.version));
        places.into_iter().flatten().any(|(proof, number)| K::proves(&self.proofs[*proof], *number, now))
    }
}

/// Puts what cannot be read among the failures.
fn legible<T>(read: Result<Option<T>>, failures: &mut Vec<Error>) -> Result<Option<T>> {
    match read {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            failures.push(error);
            Ok(None)
        }
        read => read,
    }
}

/// Makes the error of a file that an index does not find.
pub(in crate::backend::store) fn unindexed(path: &VfsPath, kind: IndexKind) -> Error {
    let message = format!("the {kind} index of the tree does not find `{path}`; build it anew with `stratafs store index --rebuild`");
    Error::new(ErrorKind::Corrupt, message).at(path)
}
