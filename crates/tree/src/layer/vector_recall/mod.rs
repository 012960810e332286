//! Recall by meaning in addition to recall by words.
//!
//! [`VectorRecall`] searches the inner tree by words, ranks all files by the vectors that an [`Embedder`] gives their passages, and fuses
//! the two rankings.

mod cache;
mod meeting;
mod passages;
#[cfg(test)]
mod tests;

pub use cache::VectorCache;

use self::meeting::{Alike, Meeting};
use self::passages::{PASSAGE_BYTES_MAX, PASSAGES_MAX, PassageKey, embedded_query, start_of, text_of};
use crate::backend::{Backend, add_snippets, listed_files};
use crate::forward_backend;
use async_trait::async_trait;
use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, ErrorRecord, Result};
use treehold_core::ops::{Failure, FileRead, ReadOptions, SearchHit, SearchOptions, SearchResult, Spelling, Version};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::search::rank::{self, Query};
use treehold_store::{Namespace, Store};

/// The rank constant that the authors of [reciprocal rank fusion](https://dl.acm.org/doi/10.1145/1571941.1572114) chose: a rank scores one
/// over this plus the rank.
const FUSION_RANK: f64 = 60.0;

/// How much of a query's rarity a file must contain to take part in the fusion by its words. One that contains only a common word of the
/// question would otherwise stand above the best file of the ranking by meaning, since it is in both.
const COVERAGE_MIN: f64 = 0.4;

/// What a file scores by its words below that: it stays in the list, after the files that are found by more.
const UNCOVERED: f64 = 1e-3;

/// The number of files of the word ranking that are fused. It is constant, so that consecutive pages form one ranking.
const FUSED_MAX: usize = 500;

/// The number of files that are read concurrently.
const READS_AT_ONCE: usize = 16;

/// The number of passages that one search sends to the model.
const TEXTS_MAX: usize = 2_048;

/// A model that embeds texts as vectors.
#[async_trait]
pub trait Embedder: Send + Sync + fmt::Debug {
    /// Returns the name of the model on the first line, which messages show, and on further lines whatever else its vectors depend on.
    /// Vectors of models that differ in any line are never compared.
    fn model(&self) -> &str;

    /// Embeds each text as a vector, all of the same length. A query and a passage with the same meaning have vectors of about the same
    /// direction; magnitudes do not matter.
    ///
    /// # Errors
    /// The model's own; callers may read their messages. After `unavailable` and `deadline`, and if the model fails for a query, the search
    /// falls back to words and names the failure. Any other error for passages is one of a passage, which is looked for by halves of the
    /// batch.
    async fn embed(&self, texts: &[&str], kind: EmbeddedKind) -> Result<Vec<Vec<f32>>>;
}

/// The role of a text given to an [`Embedder`]; some models distinguish them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddedKind {
    /// The text to look for.
    Query,
    /// A text that may be found.
    Passage,
}

/// Fuses recall by words with recall by meaning.
///
/// A file's passages (up to 32 of 1,000 bytes) are embedded when a search first sees a version of the file, each with the end of the path
/// (up to 256 bytes). Their vectors are kept in memory (up to 48 KB a file with a model of 384 numbers, in a [cache](VectorCache) of 64 MiB),
/// and in a [store](VectorRecall::with_store) for other processes. A search sends up to 2,048 passages to the model; files beyond them are
/// found by words alone, which the result reports, until later searches have embedded them. A search is one listing of the files that it
/// selects, one call of the embedder for the query and for every 64 new passages, and a dot product with each vector; for files that are
/// not in memory, also a read of each and one look-up in the store for every 64 passages. It is meant for trees of up to some ten thousand
/// files. A file's score is the sum of `1 / (60 + rank)` over the two rankings, where the one by words counts up to rank 500, and only for
/// files that contain words with at least two fifths of the query's rarity.
///
/// A passage that the model refuses has no vector. Its file is reported once, and the passage is not sent again for 90 days, or for one
/// day if the error may pass. After 32 of them a search sends no more.
///
/// Place it around the whole tree, outside of permissions, which then check every file: fused scores cannot be merged with those of another
/// mount.
#[derive(Debug)]
pub struct VectorRecall<B> {
    inner: B,
    embedder: Arc<dyn Embedder>,
    kept: Option<(Arc<dyn Store>, Namespace)>,
    similarity_min: f32,
    files_max: usize,
    texts_max: usize,
    cache: Arc<VectorCache>,
    /// Whose vectors these are in the cache.
    owner: String,
    /// The name of this tree among those of the owner.
    tree: String,
}

impl<B: Backend> VectorRecall<B> {
    /// Adds recall by meaning to a tree.
    pub fn new(embedder: Arc<dyn Embedder>, inner: B) -> Self {
        Self {
            inner,
            embedder,
            kept: None,
            similarity_min: 0.25,
            files_max: 20_000,
            texts_max: TEXTS_MAX,
            cache: Arc::default(),
            owner: String::new(),
            tree: String::new(),
        }
    }

    /// Keeps vectors in a store for 90 days, keyed by model and passage: a passage is embedded once for all processes.
    #[must_use]
    pub fn with_store(mut self, store: Arc<dyn Store>, namespace: Namespace) -> Self {
        self.kept = Some((store, namespace));
        self
    }

    /// Sets the similarity that a file needs to be found by meaning alone, as a cosine. Default 0.25.
    #[must_use]
    pub fn with_similarity_min(mut self, similarity_min: f32) -> Self {
        self.similarity_min = similarity_min;
        self
    }

    /// Sets how many files a search may select. A larger search uses words alone and says so. Default 20,000.
    #[must_use]
    pub fn with_files_max(mut self, files_max: usize) -> Self {
        self.files_max = files_max;
        self
    }

    /// Sets how many passages a search sends to the model at most. Default 2,048.
    #[must_use]
    pub fn with_texts_max(mut self, texts_max: usize) -> Self {
        self.texts_max = texts_max;
        self
    }

    /// Keeps vectors in a cache that other trees use too. Trees of one `owner` share vectors; `tree` names this one among them: trees of one
    /// name have the same files. Default: a cache of its own.
    #[must_use]
    pub fn with_cache(mut self, cache: Arc<VectorCache>, owner: impl Into<String>, tree: impl Into<String>) -> Self {
        (self.cache, self.owner, self.tree) = (cache, owner.into(), tree.into());
        self
    }

    /// Returns the backend inside.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    /// Ranks files by the similarity of their best passage to the query. Returns each with the number of that passage.
    async fn by_meaning(&self, path: &VfsPath, options: &SearchOptions) -> Result<Alike> {
        let entries = listed_files(&self.inner, path, options, self.files_max).await?;
        let query = self.embed(&[embedded_query(&options.query)], EmbeddedKind::Query, None).await?.pop().unwrap_or_default();
        let mut meeting = Meeting::new(self, path, query);
        let new: Vec<_> = entries.into_iter().filter(|entry| !meeting.recognize(entry)).collect();
        let reads = new.iter().map(|entry| Box::pin(self.read(&entry.path, options)) as BoxFuture<'_, _>).collect::<Vec<_>>();
        let mut reads = stream::iter(reads).buffered(READS_AT_ONCE);
        for (number, entry) in new.iter().enumerate() {
            if !meeting.can_meet() {
                meeting.leave(new.len() - number);
                break;
            }
            if let Some(read) = reads.next().await.transpose()?.flatten() {
                meeting.meet(entry, &read).await?;
            }
        }
        meeting.finish().await
    }

    /// Reads the part of a file that gets vectors. Returns `None` for a file that is gone or unreadable.
    async fn read(&self, path: &VfsPath, options: &SearchOptions) -> Result<Option<FileRead>> {
        let start = ReadOptions::bytes(0, (PASSAGES_MAX * PASSAGE_BYTES_MAX) as u64).with_refuse_links(options.scope.refuse_links);
        match self.inner.read(path, &start).await {
            Ok(read) => Ok(Some(read)),
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Deadline) => Err(error),
            // It is gone, or the search by words reports it.
            Err(_) => Ok(None),
        }
    }

    /// Returns the key of a passage, derived from the model and the text.
    fn key(&self, text: &str) -> PassageKey {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(self.embedder.model().len() as u64).to_le_bytes());
        hasher.update(self.embedder.model().as_bytes());
        hasher.update(text.as_bytes());
        hasher.finalize().into()
    }

    /// Calls the embedder and validates its result: a vector for each text, of `numbers` numbers if given.
    async fn embed(&self, texts: &[&str], kind: EmbeddedKind, numbers: Option<usize>) -> Result<Vec<Vec<f32>>> {
        let mut vectors = self.embedder.embed(texts, kind).await?;
        let refused = |what: String| Err(Error::new(ErrorKind::Internal, format!("the embedder `{}` returned {what}", self.model())));
        if vectors.len() != texts.len() {
            return refused(format!("{} vectors for {} texts", vectors.len(), texts.len()));
        }
        let numbers = numbers.unwrap_or_else(|| vectors.first().map_or(0, Vec::len));
        if numbers == 0 || vectors.iter().any(|vector| vector.len() != numbers) {
            return refused("vectors of different lengths, or empty ones".to_owned());
        }
        vectors.iter_mut().for_each(|vector| normalize(vector));
        if vectors.iter().flatten().any(|number| !number.is_finite()) {
            return refused("a vector with something other than numbers".to_owned());
        }
        Ok(vectors)
    }

    /// Returns the name of the model.
    fn model(&self) -> &str {
        self.embedder.model().lines().next().unwrap_or_default()
    }

    /// Adds the lines that explain why files were found: for one found by meaning alone, the start of its best passage.
    async fn add_snippets(&self, result: &mut SearchResult, passages: &HashMap<VfsPathBuf, usize>, query: &Query, options: &SearchOptions) {
        if options.snippets_max == 0 {
            return;
        }
        let (mut by_meaning, mut by_words): (Vec<SearchHit>, Vec<SearchHit>) =
            std::mem::take(&mut result.hits).into_iter().partition(|hit| passages.contains_key(&hit.path));
        add_snippets(&self.inner, query, &options.weighed_by(&result.corpus), options, &mut by_words).await;
        for hit in &mut by_meaning {
            if let (Some(passage), Ok(Some(read))) = (passages.get(&hit.path), self.read(&hit.path, options).await) {
                hit.snippets.extend(start_of(&text_of(&read), *passage));
            }
        }
        result.hits = by_meaning;
        result.hits.extend(by_words);
        rank::order(&mut result.hits);
    }
}

fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|part| part * part).sum::<f32>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|part| *part /= length);
    }
}

impl<B: Backend> fmt::Display for VectorRecall<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VectorRecall({}, {})", self.model(), self.inner)
    }
}

#[async_trait]
impl<B: Backend> Backend for VectorRecall<B> {
    forward_backend! { self => self.inner; capabilities, stat, read, ls, glob, grep, apply, review }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        let query = Query::new(options)?;
        let alike = match self.by_meaning(path, options).await {
            Ok(alike) => alike,
            // A search by words alone can continue further than the fused rankings.
            Err(error) => {
                let mut result = self.inner.search(path, options).await?;
                result.push_failure_of_meaning(Failure { path: path.to_owned(), error: ErrorRecord::from(&error) });
                return Ok(result);
            }
        };
        let mut wide = options.clone();
        (wide.offset, wide.limit, wide.snippets_max) = (0, FUSED_MAX, 0);
        let mut result = self.inner.search(path, &wide).await?;
        let words = result.words.len();
        let mut fused: BTreeMap<VfsPathBuf, SearchHit> = BTreeMap::new();
        let corpus = options.weighed_by(&result.corpus);
        for (number, mut hit) in std::mem::take(&mut result.hits).into_iter().enumerate() {
            let is_covered = rank::coverage(&corpus, &hit.frequencies) >= COVERAGE_MIN;
            hit.score = if is_covered { share(number) } else { share(number) * UNCOVERED };
            fused.insert(hit.path.clone(), hit);
        }
        let mut by_meaning_alone: HashMap<VfsPathBuf, usize> = HashMap::new();
        for (number, (entry, passage)) in alike.files.into_iter().enumerate() {
            match fused.get_mut(&entry.path) {
                Some(hit) => hit.score += share(number),
                None => {
                    by_meaning_alone.insert(entry.path.clone(), passage);
                    let version = entry.version.unwrap_or(Version::new(0));
                    let frequencies = vec![0; words];
                    let mut hit = rank::hit(entry.path, entry.size_bytes, version, entry.modified_at, frequencies, Vec::new());
                    hit.score = share(number);
                    fused.insert(hit.path.clone(), hit);
                }
            }
        }
        if alike.unmet > 0 {
            let message = format!("{} files have no vectors yet and are found by words alone; later searches make them", alike.unmet);
            let error = Error::new(ErrorKind::Unavailable, message);
            result.push_failure_of_meaning(Failure { path: path.to_owned(), error: ErrorRecord::from(&error) });
        }
        alike.failures.into_iter().for_each(|failure| result.push_failure_of_meaning(failure));
        result.hits = fused.into_values().collect();
        rank::order(&mut result.hits);
        // Results beyond the limit of the word ranking appear on no page.
        result.truncated = None;
        rank::cut(&mut result, options);
        // The lines with the words that were found in place of others are shown too.
        let near: Vec<String> = result.near.iter().map(|near| near.word.clone()).collect();
        let query = if near.is_empty() { query } else { Query::new(&options.clone().with_spelling(Spelling::Near(near)))? };
        self.add_snippets(&mut result, &by_meaning_alone, &query, options).await;
        if !result.near.is_empty() {
            query.tell_near(&mut result);
        }
        Ok(result)
    }
}

/// Returns the score of a rank, counted from 0.
fn share(number: usize) -> f64 {
    1.0 / (FUSION_RANK + number as f64 + 1.0)
}
