//! Getting the vectors of files from the cache, the store and the model, and comparing them with a query.

use super::cache::Vector;
use super::passages::{PassageKey, embedded_text, passages, text_of};
use super::{EmbeddedKind, VectorRecall};
use crate::backend::Backend;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, ErrorRecord, Result};
use treehold_core::ops::{Entry, Failure, FileRead};
use treehold_core::path::VfsPath;
use treehold_store::{Batch, Namespace, Store};

/// The number of passages that one call embeds.
pub(super) const TEXTS_AT_ONCE: usize = 64;

/// The number of files whose passages are looked up together.
const FILES_AT_ONCE: usize = 256;

/// The number of passages that may be refused in one search. Refusals cost calls, so what is left waits for later searches.
pub(super) const REFUSED_MAX: usize = 32;

/// The lifetime of a vector in a store, and of the knowledge that a model does not take a passage.
pub(super) const KEPT_FOR: Duration = Duration::from_secs(90 * 24 * 3_600);

/// The lifetime of the knowledge that a model failed for a passage in a way that may pass.
pub(super) const FAILED_FOR: Duration = Duration::from_secs(24 * 3_600);

/// Files ranked by meaning.
pub(super) struct Alike {
    /// Each with the number of its best passage, best first.
    pub files: Vec<(Entry, usize)>,
    /// How many files have no vectors yet.
    pub unmet: usize,
    /// The files with passages that the model refused just now, and the store if it failed.
    pub failures: Vec<Failure>,
}

/// The comparison of files with a query.
pub(super) struct Meeting<'m, B> {
    recall: &'m VectorRecall<B>,
    root: &'m VfsPath,
    /// The vector of the query.
    query: Vec<f32>,
    /// The files that are similar enough: each with its similarity and the number of its best passage.
    similar: Vec<(f32, Entry, usize)>,
    waiting: Waiting<'m>,
    /// How many passages were sent to the model, and how many of them it refused.
    sent: usize,
    refused: usize,
    unmet: usize,
    failures: Vec<Failure>,
    has_failed_store: bool,
}

/// Files whose vectors are looked up or made together.
#[derive(Default)]
struct Waiting<'m> {
    /// Each with the vectors of its passages that are known.
    files: Vec<(&'m Entry, Vec<Option<Vector>>)>,
    wanted: Vec<Wanted>,
}

/// A passage without a vector.
struct Wanted {
    /// The place of its file among those that wait, and its own place in the file.
    file: usize,
    number: usize,
    key: PassageKey,
    text: String,
}

impl<'m, B: Backend> Meeting<'m, B> {
    pub(super) fn new(recall: &'m VectorRecall<B>, root: &'m VfsPath, query: Vec<f32>) -> Self {
        Self {
            recall,
            root,
            query,
            similar: Vec::new(),
            waiting: Waiting::default(),
            sent: 0,
            refused: 0,
            unmet: 0,
            failures: Vec::new(),
            has_failed_store: false,
        }
    }

    /// Compares a file if all of its vectors are cached. Returns whether they are.
    pub(super) fn recognize(&mut self, entry: &Entry) -> bool {
        let VectorRecall { cache, owner, tree, .. } = self.recall;
        let cached = cache.vectors(owner, tree, &entry.path, entry.version, self.query.len());
        cached.as_ref().inspect(|vectors| self.compare(entry, vectors)).is_some()
    }

    /// Compares a file with this content, at once or together with others.
    ///
    /// # Errors
    /// As [`Meeting::finish`].
    pub(super) async fn meet(&mut self, entry: &'m Entry, read: &FileRead) -> Result<()> {
        let VectorRecall { cache, owner, tree, .. } = self.recall;
        let content = text_of(read);
        let texts: Vec<String> = passages(&content).iter().map(|passage| embedded_text(&entry.path, passage)).collect();
        let keys: Vec<PassageKey> = texts.iter().map(|text| self.recall.key(text)).collect();
        cache.keep_file(owner, tree, &entry.path, read.version, keys.as_slice().into());
        let known: Vec<Option<Vector>> = keys.iter().map(|key| cache.vector(owner, key, self.query.len())).collect();
        let file = self.waiting.files.len();
        let passages = known.iter().zip(keys).zip(texts).enumerate();
        let wanted = passages.filter(|(_, ((known, _), _))| known.is_none());
        self.waiting.wanted.extend(wanted.map(|(number, ((_, key), text))| Wanted { file, number, key, text }));
        self.waiting.files.push((entry, known));
        if self.waiting.wanted.len() >= TEXTS_AT_ONCE || self.waiting.files.len() >= FILES_AT_ONCE {
            self.settle().await?;
        }
        Ok(())
    }

    /// Returns whether a file can still get vectors that are not in the cache.
    pub(super) fn can_meet(&self) -> bool {
        self.store().is_some() || !self.is_exhausted()
    }

    /// Counts files that get no vectors in this search.
    pub(super) fn leave(&mut self, files: usize) {
        self.unmet += files;
    }

    /// Ranks the files.
    ///
    /// # Errors
    /// `unavailable` or `deadline` if the model cannot be reached. A passage that it refuses is no error.
    pub(super) async fn finish(mut self) -> Result<Alike> {
        self.settle().await?;
        self.similar.sort_by(|(one, a, _), (other, b, _)| other.total_cmp(one).then_with(|| a.path.cmp(&b.path)));
        let files = self.similar.into_iter().map(|(_, entry, passage)| (entry, passage)).collect();
        Ok(Alike { files, unmet: self.unmet, failures: self.failures })
    }

    fn compare(&mut self, entry: &Entry, vectors: &[Vector]) {
        // A passage that the model refused has no vector.
        let products = vectors.iter().enumerate().filter(|(_, vector)| !vector.is_empty());
        let products = products.map(|(number, vector)| (number, product(&self.query, vector)));
        if let Some((passage, similarity)) = products.max_by(|(_, one), (_, other)| one.total_cmp(other))
            && similarity >= self.recall.similarity_min
        {
            self.similar.push((similarity, entry.clone(), passage));
        }
    }

    /// Gets the vectors of the waiting files, and compares them.
    async fn settle(&mut self) -> Result<()> {
        let Waiting { mut files, wanted } = std::mem::take(&mut self.waiting);
        let missing = self.look_up(wanted, &mut files).await;
        self.make(&missing, &mut files).await?;
        for (entry, vectors) in files {
            match vectors.into_iter().collect::<Option<Vec<Vector>>>() {
                Some(vectors) => self.compare(entry, &vectors),
                None => self.unmet += 1,
            }
        }
        Ok(())
    }

    /// Takes the vectors of passages from the store. Returns the passages without one, or with one of another length than the query's.
    async fn look_up(&mut self, wanted: Vec<Wanted>, files: &mut [(&'m Entry, Vec<Option<Vector>>)]) -> Vec<Wanted> {
        let mut missing = Vec::new();
        let mut rest = wanted.into_iter();
        while let Some((store, namespace)) = self.store() {
            let asked: Vec<Wanted> = rest.by_ref().take(TEXTS_AT_ONCE).collect();
            if asked.is_empty() {
                break;
            }
            let keys: Vec<String> = asked.iter().map(|wanted| row_key(&wanted.key)).collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            match store.get_many(namespace, &keys, true).await {
                Ok(items) => {
                    for (wanted, item) in asked.into_iter().zip(items) {
                        match item.and_then(|item| from_bytes(&item.value, self.query.len())) {
                            Some(vector) => self.take(&wanted, vector.into(), files),
                            None => missing.push(wanted),
                        }
                    }
                }
                Err(error) => {
                    self.fail_store(&error);
                    missing.extend(asked);
                }
            }
        }
        missing.extend(rest);
        missing
    }

    /// Asks the model for the vectors of passages, up to what a search may send.
    async fn make(&mut self, missing: &[Wanted], files: &mut [(&'m Entry, Vec<Option<Vector>>)]) -> Result<()> {
        for texts in missing.chunks(TEXTS_AT_ONCE) {
            if self.is_exhausted() {
                break;
            }
            let texts = &texts[..texts.len().min(self.recall.texts_max - self.sent)];
            self.sent += texts.len();
            let mut rows = Vec::new();
            let made = self.ask(texts, files, &mut rows).await;
            // What was made before a failure is kept too.
            self.keep(rows).await;
            made?;
        }
        Ok(())
    }

    /// Asks the model for the vectors of a batch. If it refuses the batch, asks for each half, down to the passage that it refuses.
    async fn ask(
        &mut self,
        texts: &[Wanted],
        files: &mut [(&'m Entry, Vec<Option<Vector>>)],
        rows: &mut Vec<(PassageKey, Vector, Duration)>,
    ) -> Result<()> {
        let mut parts = vec![texts];
        while let Some(part) = parts.pop() {
            let borrowed: Vec<&str> = part.iter().map(|wanted| wanted.text.as_str()).collect();
            match self.recall.embed(&borrowed, EmbeddedKind::Passage, Some(self.query.len())).await {
                Ok(vectors) => {
                    for (wanted, vector) in part.iter().zip(vectors) {
                        let vector = Vector::from(vector);
                        rows.push((wanted.key, vector.clone(), KEPT_FOR));
                        self.take(wanted, vector, files);
                    }
                }
                Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Deadline) => return Err(error),
                // The model took the query, so this is about the texts.
                Err(error) => match part {
                    [wanted] => {
                        let vector = Vector::from([]);
                        let is_lasting = matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::TooLarge);
                        rows.push((wanted.key, vector.clone(), if is_lasting { KEPT_FOR } else { FAILED_FOR }));
                        self.take(wanted, vector, files);
                        self.refuse(files[wanted.file].0, &error);
                        if self.refused >= REFUSED_MAX {
                            break;
                        }
                    }
                    _ => {
                        let (first, second) = part.split_at(part.len() / 2);
                        parts.extend([second, first]);
                    }
                },
            }
        }
        Ok(())
    }

    fn take(&self, wanted: &Wanted, vector: Vector, files: &mut [(&'m Entry, Vec<Option<Vector>>)]) {
        self.recall.cache.keep_vector(&self.recall.owner, wanted.key, vector.clone());
        files[wanted.file].1[wanted.number] = Some(vector);
    }

    /// Writes vectors to the store. If that fails, they are used nevertheless.
    async fn keep(&mut self, rows: Vec<(PassageKey, Vector, Duration)>) {
        let Some((store, namespace)) = self.store().filter(|_| !rows.is_empty()) else { return };
        let batch = rows
            .into_iter()
            .fold(Batch::new(), |batch, (key, vector, kept_for)| batch.put_for(namespace, row_key(&key), to_bytes(&vector), kept_for));
        if let Err(error) = store.commit(batch).await {
            self.fail_store(&error);
        }
    }

    /// Returns the store and the namespace of the vectors, unless the store has failed in this search.
    fn store(&self) -> Option<(&'m dyn Store, &'m Namespace)> {
        let (store, namespace) = self.recall.kept.as_ref().filter(|_| !self.has_failed_store)?;
        Some((&**store, namespace))
    }

    /// Returns whether this search may send no further passage to the model.
    fn is_exhausted(&self) -> bool {
        self.sent >= self.recall.texts_max || self.refused >= REFUSED_MAX
    }

    fn fail_store(&mut self, error: &Error) {
        self.has_failed_store = true;
        let message = format!("the store of the vectors failed, so they are made again: {}", error.message());
        self.fail(self.root, &Error::new(error.kind(), message));
    }

    fn refuse(&mut self, entry: &Entry, error: &Error) {
        self.refused += 1;
        if self.failures.iter().all(|failure| failure.path != entry.path) {
            let message = format!("the model refused a passage, which is found by its words alone: {}", error.message());
            self.fail(&entry.path, &Error::new(error.kind(), message));
        }
    }

    fn fail(&mut self, path: &VfsPath, error: &Error) {
        self.failures.push(Failure { path: path.to_owned(), error: ErrorRecord::from(error) });
    }
}

fn product(one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

/// Returns the key of a passage's row.
fn row_key(passage: &PassageKey) -> String {
    blake3::Hash::from_bytes(*passage).to_hex().to_string()
}

fn to_bytes(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|part| part.to_le_bytes()).collect()
}

/// Returns the vector of a row: an empty one of a passage that the model refused. Returns `None` if it has another number of numbers.
fn from_bytes(bytes: &[u8], numbers: usize) -> Option<Vec<f32>> {
    let is_whole = bytes.is_empty() || bytes.len() == numbers * size_of::<f32>();
    is_whole.then(|| bytes.chunks_exact(4).map(|part| f32::from_le_bytes(part.try_into().expect("every chunk has 4 bytes"))).collect())
}
