//! Recall by meaning in addition to recall by words.
//!
//! [`VectorRecall`] searches the inner tree by words, ranks all files by the vectors that an [`Embedder`] gives their passages, and fuses
//! the two rankings.

use crate::backend::{Backend, add_snippets, listed_files};
use crate::forward_backend;
use async_trait::async_trait;
use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, ErrorRecord, Result};
use treehold_core::ops::{Entry, Failure, FileRead, ReadOptions, SearchHit, SearchOptions, SearchResult, Snippet, Spelling, Version};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::search::rank::{self, Query};
use treehold_store::{Batch, Namespace, Store};

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

/// The longest passage in bytes; a longer line is cut.
const PASSAGE_BYTES_MAX: usize = 1_000;

/// The most passages of a file that get a vector: roughly its first 32 KB.
const PASSAGES_MAX: usize = 32;

/// The number of new passages that one search embeds.
const TEXTS_MAX: usize = 2_048;

/// The number of passages that one call embeds.
const TEXTS_AT_ONCE: usize = 64;

/// What a vector takes in memory beside its numbers, approximately.
const VECTORS_BYTES: usize = 64;

/// The lifetime of a vector in a store.
const KEPT_FOR: Duration = Duration::from_secs(90 * 24 * 3_600);

/// A model that embeds texts as vectors.
#[async_trait]
pub trait Embedder: Send + Sync + fmt::Debug {
    /// Returns the name of the model. Vectors of different models are never compared.
    fn model(&self) -> &str;

    /// Embeds each text as a vector, all of the same length. A query and a passage with the same meaning have vectors of about the same
    /// direction; magnitudes do not matter.
    ///
    /// # Errors
    /// The model's own. The search then falls back to words and names the failure.
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
/// A file's passages (up to 32 of 1,000 bytes) are embedded when a search first sees a version of the file. Their vectors are kept in
/// memory (up to 48 KB a file with a model of 384 numbers, in a [cache](VectorCache) of 64 MiB), and in a
/// [store](VectorRecall::with_store) for other processes. A search embeds up to 2,048 new passages; files beyond them are found by words
/// alone, which the result reports, until later searches have embedded them. A search is one
/// listing of the files that it selects, one call of the embedder for the query and for every 64 new passages, and a dot product with each
/// vector. It is meant for trees of up to some ten thousand files. A file's score is the sum of `1 / (60 + rank)` over the two rankings,
/// where the one by words counts up to rank 500, and only for files that contain words with at least two fifths of the query's rarity. The
/// path is embedded with each passage.
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
    /// The name of this tree in the cache.
    tree: String,
}

/// The vectors of a file's passages, each of length 1.
#[derive(Debug)]
struct Vectors {
    version: Version,
    passages: Vec<Vec<f32>>,
}

impl Vectors {
    /// Returns how much memory they take, approximately.
    fn size_bytes(&self) -> usize {
        VECTORS_BYTES + self.passages.iter().map(|passage| VECTORS_BYTES + passage.len() * size_of::<f32>()).sum::<usize>()
    }
}

/// A tree and a path in it.
type CacheKey = (String, VfsPathBuf);

/// The vectors that a process keeps in memory, up to a number of bytes, for any number of trees.
///
/// Those that no search has met for longest are dropped first, half of them at a time.
#[derive(Debug)]
pub struct VectorCache {
    bytes_max: usize,
    generations: Mutex<Generations>,
}

/// What searches have met recently, and what they had met before.
#[derive(Debug, Default)]
struct Generations {
    recent: HashMap<CacheKey, Arc<Vectors>>,
    recent_bytes: usize,
    earlier: HashMap<CacheKey, Arc<Vectors>>,
}

impl VectorCache {
    /// The default of the most bytes: 64 MiB, the vectors of some forty thousand passages of a model of 384 numbers.
    pub const BYTES_MAX: usize = 64 << 20;

    /// Makes a cache of up to a number of bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, generations: Mutex::default() }
    }

    fn get(&self, tree: &str, path: &VfsPath, version: Option<Version>) -> Option<Arc<Vectors>> {
        let key = (tree.to_owned(), path.to_owned());
        let mut generations = self.generations.lock();
        if let Some(known) = generations.recent.get(&key) {
            return (Some(known.version) == version).then(|| known.clone());
        }
        let known = generations.earlier.remove(&key).filter(|known| Some(known.version) == version)?;
        self.keep(&mut generations, key, known.clone());
        Some(known)
    }

    fn put(&self, tree: &str, path: &VfsPath, vectors: Arc<Vectors>) {
        self.keep(&mut self.generations.lock(), (tree.to_owned(), path.to_owned()), vectors);
    }

    fn keep(&self, generations: &mut Generations, key: CacheKey, vectors: Arc<Vectors>) {
        if generations.recent_bytes + vectors.size_bytes() > self.bytes_max / 2 {
            generations.earlier = std::mem::take(&mut generations.recent);
            generations.recent_bytes = 0;
        }
        generations.recent_bytes += vectors.size_bytes();
        if let Some(replaced) = generations.recent.insert(key, vectors) {
            generations.recent_bytes -= replaced.size_bytes();
        }
    }
}

impl Default for VectorCache {
    fn default() -> Self {
        Self::new(Self::BYTES_MAX)
    }
}

/// Files whose passages are embedded together.
#[derive(Default)]
struct Waiting<'e> {
    /// Each with its version and the end of its passages among the texts.
    files: Vec<(&'e Entry, Version, usize)>,
    texts: Vec<String>,
}

/// Files ranked by meaning.
struct Alike {
    /// Each with the number of its best passage, best first.
    files: Vec<(Entry, usize)>,
    /// How many files have no vectors yet.
    unmet: usize,
}

/// A part of a file that has a vector.
#[derive(Debug, PartialEq, Eq)]
struct Passage<'t> {
    /// The number of its first line, from 1.
    line: usize,
    text: &'t str,
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

    /// Sets how many new passages a search embeds at most. Default 2,048.
    #[must_use]
    pub fn with_texts_max(mut self, texts_max: usize) -> Self {
        self.texts_max = texts_max;
        self
    }

    /// Keeps vectors in a cache that other trees use too. `tree` names this one: trees of one name have the same files. Default: a cache
    /// of its own.
    #[must_use]
    pub fn with_cache(mut self, cache: Arc<VectorCache>, tree: impl Into<String>) -> Self {
        (self.cache, self.tree) = (cache, tree.into());
        self
    }

    /// Returns the backend inside.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    /// Ranks files by the similarity of their best passage to the query. Returns each with the number of that passage.
    async fn by_meaning(&self, path: &VfsPath, options: &SearchOptions) -> Result<Alike> {
        let entries = listed_files(&self.inner, path, options, self.files_max).await?;
        let query = self.embed(&[&options.query], EmbeddedKind::Query).await?.pop().unwrap_or_default();
        let mut alike = Vec::new();
        let (met, unmet) = self.vectors_of(entries).await?;
        for (entry, vectors) in met {
            let products = vectors.passages.iter().map(|passage| product(&query, passage)).enumerate();
            if let Some((passage, similarity)) = products.max_by(|(_, one), (_, other)| one.total_cmp(other))
                && similarity >= self.similarity_min
            {
                alike.push((similarity, entry, passage));
            }
        }
        alike.sort_by(|(one, a, _), (other, b, _)| other.total_cmp(one).then_with(|| a.path.cmp(&b.path)));
        Ok(Alike { files: alike.into_iter().map(|(_, entry, passage)| (entry, passage)).collect(), unmet })
    }

    /// Returns the vectors of files, embedding new versions, and how many files have none yet. A missing or unreadable file has none and
    /// does not count.
    async fn vectors_of(&self, entries: Vec<Entry>) -> Result<(Vec<(Entry, Arc<Vectors>)>, usize)> {
        let mut found = Vec::with_capacity(entries.len());
        let mut new = Vec::new();
        for entry in entries {
            match self.cache.get(&self.tree, &entry.path, entry.version) {
                Some(known) => found.push((entry, known)),
                None => new.push(entry),
            }
        }
        let reads = new.iter().map(|entry| Box::pin(self.read(&entry.path)) as BoxFuture<'_, _>).collect::<Vec<_>>();
        let mut reads = stream::iter(reads).buffered(READS_AT_ONCE);
        let mut waiting = Waiting::default();
        let (mut embedded, mut unmet) = (0, 0);
        for (number, entry) in new.iter().enumerate() {
            if embedded >= self.texts_max {
                unmet = new.len() - number;
                break;
            }
            let Some(read) = reads.next().await.transpose()?.flatten() else { continue };
            let content = text_of(&read);
            let before = waiting.texts.len();
            waiting.texts.extend(passages(&content).iter().map(|passage| embedded_text(&entry.path, passage)));
            embedded += waiting.texts.len() - before;
            waiting.files.push((entry, read.version, waiting.texts.len()));
            if waiting.texts.len() >= TEXTS_AT_ONCE {
                self.embed_waiting(&mut waiting, &mut found).await?;
            }
        }
        self.embed_waiting(&mut waiting, &mut found).await?;
        Ok((found, unmet))
    }

    /// Embeds the waiting files.
    async fn embed_waiting(&self, waiting: &mut Waiting<'_>, found: &mut Vec<(Entry, Arc<Vectors>)>) -> Result<()> {
        let Waiting { files, texts } = std::mem::take(waiting);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let mut made = self.passages_of(&texts).await?.into_iter();
        let mut start = 0;
        for (entry, version, end) in files {
            let vectors = Arc::new(Vectors { version, passages: made.by_ref().take(end - start).collect() });
            start = end;
            self.cache.put(&self.tree, &entry.path, vectors.clone());
            found.push((entry.clone(), vectors));
        }
        Ok(())
    }

    async fn read(&self, path: &VfsPath) -> Result<Option<FileRead>> {
        match self.inner.read(path, &ReadOptions::bytes(0, (PASSAGES_MAX * PASSAGE_BYTES_MAX) as u64)).await {
            Ok(read) => Ok(Some(read)),
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Deadline) => Err(error),
            // It is gone, or the search by words reports it.
            Err(_) => Ok(None),
        }
    }

    /// Returns the vectors of passages, from the store if it has them.
    async fn passages_of(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        let mut vectors = Vec::with_capacity(texts.len());
        for texts in texts.chunks(TEXTS_AT_ONCE) {
            let Some((store, namespace)) = &self.kept else {
                vectors.extend(self.embed(texts, EmbeddedKind::Passage).await?);
                continue;
            };
            let keys: Vec<String> = texts.iter().map(|text| self.key(text)).collect();
            let borrowed: Vec<&str> = keys.iter().map(String::as_str).collect();
            let stored = store.get_many(namespace, &borrowed, true).await?;
            let missing: Vec<usize> = (0..texts.len()).filter(|index| stored[*index].is_none()).collect();
            let wanted: Vec<&str> = missing.iter().map(|index| texts[*index]).collect();
            let mut made = if wanted.is_empty() { Vec::new() } else { self.embed(&wanted, EmbeddedKind::Passage).await? }.into_iter();
            let mut batch = Batch::new();
            for (item, key) in stored.into_iter().zip(keys) {
                vectors.push(match item {
                    Some(item) => from_bytes(&item.value),
                    None => {
                        let vector = made.next().unwrap_or_default();
                        batch = batch.put_for(namespace, key, to_bytes(&vector), KEPT_FOR);
                        vector
                    }
                });
            }
            if !batch.writes.is_empty() {
                store.commit(batch).await?;
            }
        }
        Ok(vectors)
    }

    /// Returns the store key of a passage, derived from the model and the text.
    fn key(&self, text: &str) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(self.embedder.model().len() as u64).to_le_bytes());
        hasher.update(self.embedder.model().as_bytes());
        hasher.update(text.as_bytes());
        hasher.finalize().to_hex().to_string()
    }

    /// Calls the embedder and validates its result.
    async fn embed(&self, texts: &[&str], kind: EmbeddedKind) -> Result<Vec<Vec<f32>>> {
        let mut vectors = self.embedder.embed(texts, kind).await?;
        if vectors.len() != texts.len() {
            let message = format!("the embedder `{}` returned {} vectors for {} texts", self.embedder.model(), vectors.len(), texts.len());
            return Err(Error::new(ErrorKind::Internal, message));
        }
        vectors.iter_mut().for_each(|vector| normalize(vector));
        Ok(vectors)
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
            if let (Some(passage), Ok(Some(read))) = (passages.get(&hit.path), self.read(&hit.path).await) {
                hit.snippets.extend(start_of(&text_of(&read), *passage));
            }
        }
        result.hits = by_meaning;
        result.hits.extend(by_words);
        rank::order(&mut result.hits);
    }
}

/// Returns the first line of a passage that is not blank.
fn start_of(text: &str, passage: usize) -> Option<Snippet> {
    let passages = passages(text);
    let passage = passages.get(passage)?;
    let (index, line) = passage.text.lines().enumerate().find(|(_, line)| !line.trim().is_empty())?;
    Some(rank::snippet_of(passage.line + index, line))
}

/// Returns the text of a file; empty for a binary file.
fn text_of(read: &FileRead) -> Cow<'_, str> {
    if treehold_core::file::is_binary(&read.content) { Cow::Borrowed("") } else { String::from_utf8_lossy(&read.content) }
}

/// Returns what is embedded of a passage: its text after the path, whose words often name the topic.
fn embedded_text(path: &VfsPath, passage: &Passage<'_>) -> String {
    format!("{}\n{}", path.as_str().trim_start_matches('/'), passage.text)
}

/// Splits a text into passages: whole lines, up to a bounded size.
fn passages(text: &str) -> Vec<Passage<'_>> {
    let mut passages: Vec<Passage<'_>> = Vec::new();
    let (mut start, mut at, mut first_line) = (0, 0, 1);
    let mut push = |start: usize, end: usize, line: usize| {
        let end = text.floor_char_boundary(end.min(start + PASSAGE_BYTES_MAX));
        if !text[start..end].trim().is_empty() {
            passages.push(Passage { line, text: &text[start..end] });
        }
    };
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if at > start && at + line.len() - start > PASSAGE_BYTES_MAX {
            push(start, at, first_line);
            (start, first_line) = (at, index + 1);
        }
        at += line.len();
    }
    push(start, at, first_line);
    passages.truncate(PASSAGES_MAX);
    passages
}

fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|part| part * part).sum::<f32>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|part| *part /= length);
    }
}

fn product(one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

fn to_bytes(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|part| part.to_le_bytes()).collect()
}

fn from_bytes(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|part| f32::from_le_bytes(part.try_into().expect("every chunk has 4 bytes"))).collect()
}

impl<B: Backend> fmt::Display for VectorRecall<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VectorRecall({}, {})", self.embedder.model(), self.inner)
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
                result.push_failure(Failure { path: path.to_owned(), error: ErrorRecord::from(&error) });
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
            result.push_failure(Failure { path: path.to_owned(), error: ErrorRecord::from(&error) });
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{BackendExt, StateBackend};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use treehold_store::MemoryStore;

    /// An embedder that knows two topics, cars and food, by a few words each.
    #[derive(Debug, Default)]
    struct Toy {
        texts: AtomicUsize,
        calls: AtomicUsize,
        is_broken: bool,
    }

    const MEANINGS: [&[&str]; 2] = [&["car", "automobile", "engine"], &["bread", "soup", "meal"]];

    #[async_trait]
    impl Embedder for Toy {
        fn model(&self) -> &str {
            "toy"
        }

        async fn embed(&self, texts: &[&str], _: EmbeddedKind) -> Result<Vec<Vec<f32>>> {
            if self.is_broken {
                return Err(Error::new(ErrorKind::Unavailable, "the model is away"));
            }
            self.texts.fetch_add(texts.len(), Ordering::Relaxed);
            self.calls.fetch_add(1, Ordering::Relaxed);
            let count = |text: &str, words: &[&str]| words.iter().map(|word| text.matches(word).count()).sum::<usize>() as f32;
            Ok(texts.iter().map(|text| MEANINGS.iter().map(|words| count(text, words)).collect()).collect())
        }
    }

    async fn garage() -> StateBackend {
        let tree = StateBackend::new();
        tree.write("/a.md", "# Notes\n\nThe automobile is in the shed.\n").await.expect("a write");
        tree.write("/b.md", "my car, a car and its engine\n").await.expect("a write");
        tree.write("/c.md", "soup\n").await.expect("a write");
        tree.write("/d.bin", &b"automobile\0"[..]).await.expect("a write");
        tree
    }

    async fn found(tree: &impl Backend, query: &str) -> Vec<String> {
        let result = tree.search(VfsPath::ROOT, &SearchOptions::new(query)).await.expect("a search");
        assert_eq!(result.failures, []);
        result.hits.iter().map(|hit| hit.path.to_string()).collect()
    }

    #[tokio::test]
    async fn similar_meaning_is_found_beside_matching_words() {
        let tree = VectorRecall::new(Arc::new(Toy::default()), garage().await);
        assert_eq!(found(tree.inner(), "car").await, ["/b.md"]);
        assert_eq!(found(&tree, "car").await, ["/b.md", "/a.md"]);
        let result = tree.search(VfsPath::ROOT, &SearchOptions::new("car")).await.expect("a search");
        // First in both rankings, and second by meaning alone.
        assert_eq!(result.hits[0].score, share(0) + share(1));
        assert_eq!(result.hits[1].snippets, [Snippet::new(1, "# Notes", Vec::new())]);
        let selected = SearchOptions::new("car").with_exclude("a.md");
        assert_eq!(tree.search(VfsPath::ROOT, &selected).await.expect("a search").hits.len(), 1);
        let cut = tree.search(VfsPath::ROOT, &SearchOptions::new("car").with_limit(1)).await.expect("a search");
        assert_eq!((cut.hits.len(), cut.truncated.expect("there is another").cursor.as_str()), (1, "1"));
    }

    #[tokio::test]
    async fn each_file_version_is_embedded_once() {
        let embedder = Arc::new(Toy::default());
        let tree = VectorRecall::new(embedder.clone(), garage().await);
        found(&tree, "meal").await;
        assert_eq!(embedder.texts.swap(0, Ordering::Relaxed), 4, "three passages and the query");
        assert_eq!(found(&tree, "meal").await, ["/c.md"]);
        assert_eq!(embedder.texts.swap(0, Ordering::Relaxed), 1, "the query");
        tree.write("/c.md", "an engine\n").await.expect("a write");
        assert_eq!(found(&tree, "meal").await, [""; 0]);
        assert_eq!(embedder.texts.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn consecutive_pages_form_one_ranking_and_files_share_calls() {
        let tree = StateBackend::new();
        for number in 0..130 {
            let text = if number % 2 == 0 { "car".to_owned() } else { format!("automobile {}", "engine ".repeat(number)) };
            tree.write(format!("/{number}.md").as_str(), text).await.expect("a write");
        }
        let embedder = Arc::new(Toy::default());
        let tree = VectorRecall::new(embedder.clone(), tree);
        let options = SearchOptions::new("car");
        let all = tree.search(VfsPath::ROOT, &options.clone().with_limit(1_000)).await.expect("a search");
        assert_eq!((all.hits.len(), all.truncated), (130, None));
        assert_eq!(embedder.calls.load(Ordering::Relaxed), 4, "the query, and 64 passages at a time");
        let mut paged = Vec::new();
        for offset in (0..).step_by(7) {
            let page = tree.search(VfsPath::ROOT, &options.clone().with_limit(7).with_offset(offset)).await.expect("a search");
            paged.extend(page.hits);
            match page.truncated {
                Some(cut) => assert_eq!(cut.cursor, (offset + 7).to_string()),
                None => break,
            }
        }
        assert!(paged == all.hits);
    }

    #[tokio::test]
    async fn vectors_in_a_store_are_shared_between_processes() {
        let (store, namespace) = (Arc::new(MemoryStore::new()), Namespace::new(["vectors"]).expect("a plain name"));
        for texts in [4, 1] {
            let embedder = Arc::new(Toy::default());
            let tree = VectorRecall::new(embedder.clone(), garage().await).with_store(store.clone(), namespace.clone());
            assert_eq!(found(&tree, "meal").await, ["/c.md"]);
            assert_eq!(embedder.texts.load(Ordering::Relaxed), texts);
        }
    }

    #[tokio::test]
    async fn failing_model_falls_back_to_words_and_is_reported() {
        let tree = VectorRecall::new(Arc::new(Toy { is_broken: true, ..Toy::default() }), garage().await);
        let result = tree.search(VfsPath::ROOT, &SearchOptions::new("car")).await.expect("a search by words");
        assert_eq!((result.hits.len(), result.failures_count), (1, 1));
        assert_eq!(result.failures[0].error.message, "the model is away");
        let tree = VectorRecall::new(Arc::new(Toy::default()), garage().await).with_files_max(2);
        let result = tree.search(VfsPath::ROOT, &SearchOptions::new("car")).await.expect("a search by words");
        assert!(result.failures[0].error.message.contains("over 2 files"), "{:?}", result.failures);
    }

    #[tokio::test]
    async fn cache_is_bounded_and_shared_between_trees_of_one_name() {
        let cache = Arc::new(VectorCache::new(40 * (2 * VECTORS_BYTES + 8)));
        let embedder = Arc::new(Toy::default());
        let garage: Arc<dyn Backend> = Arc::new(garage().await);
        let tree = VectorRecall::new(embedder.clone(), garage.clone()).with_cache(cache.clone(), "garage");
        found(&tree, "meal").await;
        embedder.texts.store(0, Ordering::Relaxed);
        let again = VectorRecall::new(embedder.clone(), garage.clone()).with_cache(cache.clone(), "garage");
        found(&again, "meal").await;
        assert_eq!(embedder.texts.swap(0, Ordering::Relaxed), 1, "the query");
        let other = VectorRecall::new(embedder.clone(), garage.clone()).with_cache(cache.clone(), "other");
        found(&other, "meal").await;
        assert_eq!(embedder.texts.swap(0, Ordering::Relaxed), 4, "a tree of another name");
        for number in 0..200 {
            tree.write(format!("/{number}.md").as_str(), "soup").await.expect("a write");
        }
        found(&tree, "soup").await;
        let generations = cache.generations.lock();
        assert!(generations.recent.len() + generations.earlier.len() <= 40, "{}", generations.recent.len());
    }

    #[tokio::test]
    async fn search_embeds_a_bounded_number_of_passages_and_reports_the_rest() {
        let tree = StateBackend::new();
        for number in 0..10 {
            tree.write(format!("/{number}.md").as_str(), "automobile").await.expect("a write");
        }
        let tree = VectorRecall::new(Arc::new(Toy::default()), tree).with_texts_max(4);
        let options = SearchOptions::new("car");
        let mut counts = Vec::new();
        for _ in 0..3 {
            let result = tree.search(VfsPath::ROOT, &options).await.expect("a search");
            counts.push((result.hits.len(), result.failures.first().map(|failure| failure.error.message.clone())));
        }
        let yet = |files| Some(format!("{files} files have no vectors yet and are found by words alone; later searches make them"));
        assert_eq!(counts, [(4, yet(6)), (8, yet(2)), (10, None)]);
    }

    #[test]
    fn passages_are_whole_lines_of_bounded_size() {
        let line = "word ".repeat(60);
        let text = format!("first\n{line}\n{line}\n{line}\n{line}\n\nlast\n{}", "é".repeat(2_000));
        let passages = passages(&text);
        assert_eq!(passages.iter().map(|passage| passage.line).collect::<Vec<_>>(), [1, 5, 8]);
        assert!(passages.iter().all(|passage| passage.text.len() <= PASSAGE_BYTES_MAX));
        assert!(passages[1].text.ends_with("last\n"));
        assert_eq!(super::passages(" \n\n"), []);
        assert_eq!(super::passages(&"line\n".repeat(100_000)).len(), PASSAGES_MAX);
    }
}
