//! What a search by meaning finds, asks of the model, and keeps.

use super::meeting::{FAILED_FOR, KEPT_FOR, REFUSED_MAX, TEXTS_AT_ONCE};
use super::*;
use crate::backend::{BackendExt, StateBackend, search_by_reading};
use jiff::Timestamp;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use treehold_core::clock::Clock;
use treehold_core::ops::Snippet;
use treehold_store::{
    Batch, Item, ItemPart, MemoryStore, NamespacePage, NamespacesOptions, Partition, Scan, ScanOptions, StoreCapabilities, StoreExtensions,
    Watch,
};

/// An embedder that knows two topics, cars and food, by a few words each.
#[derive(Debug, Default)]
struct Toy {
    texts: AtomicUsize,
    calls: AtomicUsize,
    is_broken: bool,
    /// The texts that it refuses, by a part of them, and how.
    refuses: Option<(&'static str, ErrorKind)>,
    /// How many numbers a vector has beside the two topics.
    more_numbers: usize,
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
        if let Some((part, kind)) = self.refuses
            && texts.iter().any(|text| text.contains(part))
        {
            return Err(Error::new(kind, "answered 400"));
        }
        let count = |text: &str, words: &[&str]| words.iter().map(|word| text.matches(word).count()).sum::<usize>() as f32;
        let vector = |text: &&str| {
            let mut vector: Vec<f32> = MEANINGS.iter().map(|words| count(text, words)).collect();
            vector.resize(MEANINGS.len() + self.more_numbers, 0.0);
            vector
        };
        Ok(texts.iter().map(vector).collect())
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

fn vectors() -> Namespace {
    Namespace::new(["vectors"]).expect("a plain name")
}

async fn searched(tree: &impl Backend, query: &str) -> SearchResult {
    tree.search(VfsPath::ROOT, &SearchOptions::new(query).with_limit(1_000)).await.expect("a search")
}

/// Regression: one refused passage failed each search by meaning of its tree.
#[tokio::test]
async fn refused_passage_is_found_by_words_and_not_sent_again() {
    const FILES: usize = 2 * TEXTS_AT_ONCE + 6;
    for kind in ErrorKind::ALL {
        for places in [vec![0], vec![31, 32], vec![TEXTS_AT_ONCE - 1, TEXTS_AT_ONCE], vec![FILES - 1]] {
            let tree = StateBackend::new();
            for number in 0..FILES {
                let text = if places.contains(&number) { "odd automobile" } else { "automobile" };
                tree.write(format!("/{number:03}.md").as_str(), text).await.expect("a write");
            }
            let tree: Arc<dyn Backend> = Arc::new(tree);
            let embedder = Arc::new(Toy { refuses: Some(("odd", kind)), ..Toy::default() });
            let store = Arc::new(MemoryStore::new());
            let opened = || VectorRecall::new(embedder.clone(), tree.clone()).with_store(store.clone(), vectors());
            let first = opened();
            let result = searched(&first, "car").await;
            if matches!(kind, ErrorKind::Unavailable | ErrorKind::Deadline) {
                assert_eq!((result.hits.len(), result.failures_of_meaning), (0, 1), "{kind:?}");
                continue;
            }
            assert_eq!(result.hits.len(), FILES - places.len(), "{kind:?} {places:?}");
            let paths: Vec<String> = result.failures.iter().map(|failure| failure.path.to_string()).collect();
            assert_eq!(paths, places.iter().map(|number| format!("/{number:03}.md")).collect::<Vec<_>>());
            assert_eq!((result.failures_count, result.failures_of_meaning), (places.len(), places.len()));
            assert!(result.failures.iter().all(|failure| failure.error.code == kind.code()));
            // A batch is halved down to the passage.
            assert!(embedder.calls.swap(0, Ordering::Relaxed) <= 4 + 14 * places.len());
            embedder.texts.store(0, Ordering::Relaxed);
            for again in [&first, &opened()] {
                let result = searched(again, "car").await;
                assert_eq!((result.hits.len(), &result.failures[..]), (FILES - places.len(), &[][..]), "{kind:?} {places:?}");
                assert_eq!(embedder.texts.swap(0, Ordering::Relaxed), 1, "the query");
            }
        }
    }
}

#[tokio::test]
async fn refusals_are_forgotten_like_vectors_or_after_a_day() {
    for (kind, kept_for) in [(ErrorKind::InvalidArgument, KEPT_FOR), (ErrorKind::TooLarge, KEPT_FOR), (ErrorKind::Internal, FAILED_FOR)] {
        let tree = StateBackend::new();
        tree.write("/a.md", "odd automobile").await.expect("a write");
        let tree: Arc<dyn Backend> = Arc::new(tree);
        let now = Arc::new(Mutex::new(Timestamp::UNIX_EPOCH));
        let clock = now.clone();
        let store = Arc::new(MemoryStore::with_clock(Clock::from_fn(move || *clock.lock())));
        let embedder = Arc::new(Toy { refuses: Some(("odd", kind)), ..Toy::default() });
        let mut asked = Vec::new();
        for passed in [kept_for / 2, kept_for, Duration::ZERO] {
            let opened = VectorRecall::new(embedder.clone(), tree.clone()).with_store(store.clone(), vectors());
            asked.push((searched(&opened, "car").await.failures_count, embedder.texts.swap(0, Ordering::Relaxed)));
            *now.lock() += passed;
        }
        assert_eq!(asked, [(1, 2), (0, 1), (1, 2)], "{kind:?}");
    }
}

#[tokio::test]
async fn search_sends_no_more_after_many_refusals() {
    let tree = StateBackend::new();
    for number in 0..300 {
        tree.write(format!("/{number:03}.md").as_str(), "odd automobile").await.expect("a write");
    }
    let embedder = Arc::new(Toy { refuses: Some(("odd", ErrorKind::InvalidArgument)), ..Toy::default() });
    let tree = VectorRecall::new(embedder.clone(), tree);
    for search in 1..=3 {
        let result = searched(&tree, "car").await;
        assert_eq!(result.failures_count, REFUSED_MAX + 1, "each file, and how many are left");
        let left = format!("{} files have no vectors yet", 300 - search * REFUSED_MAX);
        assert!(result.failures[0].error.message.starts_with(&left), "{:?}", result.failures[0]);
        assert!(embedder.calls.swap(0, Ordering::Relaxed) <= 2 * REFUSED_MAX + 8);
    }
}

/// Regression: passages whose vectors were in the store counted as sent, so a new process never met the rest.
#[tokio::test]
async fn only_passages_that_are_sent_to_the_model_count() {
    let tree = StateBackend::new();
    for number in 0..10 {
        tree.write(format!("/{number}.md").as_str(), "automobile").await.expect("a write");
    }
    let tree: Arc<dyn Backend> = Arc::new(tree);
    let store = Arc::new(MemoryStore::new());
    let mut found = Vec::new();
    for texts_max in [4, 4, 4, 0] {
        let opened = VectorRecall::new(Arc::new(Toy::default()), tree.clone()).with_store(store.clone(), vectors());
        let result = searched(&opened.with_texts_max(texts_max), "car").await;
        found.push((result.hits.len(), result.failures_count));
    }
    assert_eq!(found, [(4, 1), (8, 1), (10, 0), (10, 0)]);
}

#[tokio::test]
async fn trees_of_one_owner_share_vectors_and_no_versions() {
    let cache = Arc::new(VectorCache::default());
    let embedder = Arc::new(Toy::default());
    let opened = |tree: &Arc<dyn Backend>, owner: &str, name: &str| {
        VectorRecall::new(embedder.clone(), tree.clone()).with_cache(cache.clone(), owner, name)
    };
    let (one, other): (Arc<dyn Backend>, Arc<dyn Backend>) = (Arc::new(StateBackend::new()), Arc::new(StateBackend::new()));
    one.write("/a.md", "automobile").await.expect("a write");
    other.write("/a.md", "a bread").await.expect("a write");
    other.write("/b.md", "automobile").await.expect("a write");
    assert_eq!(found(&opened(&one, "ada", "1"), "car").await, ["/a.md"]);
    // The same version of the same path has another content in this thread.
    assert_eq!(found(&opened(&other, "ada", "2"), "car").await, ["/b.md"]);
    embedder.texts.store(0, Ordering::Relaxed);
    for (tree, owner, name, texts) in [(&one, "ada", "3", 1), (&other, "ada", "4", 1), (&one, "bob", "1", 2), (&one, "bob", "1", 1)] {
        found(&opened(tree, owner, name), "car").await;
        assert_eq!(embedder.texts.swap(0, Ordering::Relaxed), texts, "{owner} {name}");
    }
}

/// A store that fails to read, to write, or both.
#[derive(Debug)]
struct Failing {
    rows: MemoryStore,
    reads: bool,
    writes: bool,
}

impl fmt::Display for Failing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Failing({})", self.rows)
    }
}

#[async_trait]
impl Store for Failing {
    fn capabilities(&self) -> StoreCapabilities {
        self.rows.capabilities()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        StoreExtensions::new()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        self.rows.get(namespace, key).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        self.rows.get_part(namespace, key, range).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        if self.reads {
            return Err(Error::new(ErrorKind::Unavailable, "the store is away"));
        }
        self.rows.get_many(namespace, keys, with_values).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.rows.scan(namespace, options).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.rows.namespaces(options).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        if self.writes {
            return Err(Error::new(ErrorKind::QuotaExceeded, "the store is full"));
        }
        self.rows.commit(batch).await
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.rows.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.rows.watch(namespace).await
    }
}

/// Regression: vectors that the store could not keep were thrown away, with the ranking by meaning.
#[tokio::test]
async fn vectors_are_used_and_cached_if_the_store_fails() {
    for (reads, writes) in [(true, false), (false, true), (true, true)] {
        let tree = StateBackend::new();
        for number in 0..200 {
            tree.write(format!("/{number:03}.md").as_str(), "automobile").await.expect("a write");
        }
        let embedder = Arc::new(Toy::default());
        let store = Arc::new(Failing { rows: MemoryStore::new(), reads, writes });
        let tree = VectorRecall::new(embedder.clone(), tree).with_store(store, vectors());
        let result = searched(&tree, "car").await;
        assert_eq!((result.hits.len(), result.failures_count, result.failures_of_meaning), (200, 1, 1), "{reads} {writes}");
        let told = &result.failures[0];
        assert!(told.path.is_root() && told.error.message.contains("the store of the vectors failed"), "{told:?}");
        assert_eq!(embedder.texts.swap(0, Ordering::Relaxed), 201);
        let again = searched(&tree, "car").await;
        assert_eq!((again.hits.len(), again.failures_count), (200, 0), "{reads} {writes}");
        assert_eq!(embedder.texts.load(Ordering::Relaxed), 1, "the query");
    }
}

/// Regression: a model that began to answer with longer vectors was compared by the start of them.
#[tokio::test]
async fn vectors_of_another_length_are_made_again() {
    let (store, cache) = (Arc::new(MemoryStore::new()), Arc::new(VectorCache::default()));
    let tree: Arc<dyn Backend> = Arc::new(garage().await);
    for (more_numbers, texts) in [(0, 4), (3, 4), (3, 1), (0, 4)] {
        for caches in [true, false] {
            let embedder = Arc::new(Toy { more_numbers, ..Toy::default() });
            let opened = VectorRecall::new(embedder.clone(), tree.clone()).with_store(store.clone(), vectors());
            let opened = if caches { opened.with_cache(cache.clone(), "ada", "1") } else { opened };
            assert_eq!(found(&opened, "meal").await, ["/c.md"]);
            assert_eq!(embedder.texts.load(Ordering::Relaxed), if caches { texts } else { 1 }, "{more_numbers} {caches}");
        }
    }
}

/// A tree that records the reads that would follow links.
#[derive(Debug)]
struct Reads {
    tree: StateBackend,
    following: Mutex<Vec<VfsPathBuf>>,
    count: AtomicUsize,
}

impl fmt::Display for Reads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reads({})", self.tree)
    }
}

#[async_trait]
impl Backend for Reads {
    forward_backend! { self => self.tree; capabilities, stat, ls, glob, grep, apply, review }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        self.count.fetch_add(1, Ordering::Relaxed);
        if !options.refuse_links {
            self.following.lock().push(path.to_owned());
        }
        self.tree.read(path, options).await
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        search_by_reading(self, path, options).await
    }
}

/// Regression: passages were read through links that permissions refuse.
#[tokio::test]
async fn no_read_of_a_search_follows_refused_links() {
    for query in ["car", "shed", "meal", "automobille"] {
        let tree = Arc::new(Reads { tree: garage().await, following: Mutex::default(), count: AtomicUsize::default() });
        let recall = VectorRecall::new(Arc::new(Toy::default()), tree.clone() as Arc<dyn Backend>);
        let mut options = SearchOptions::new(query);
        options.scope.refuse_links = true;
        let result = recall.search(VfsPath::ROOT, &options).await.expect("a search");
        assert!(!result.hits.is_empty() && result.hits.iter().any(|hit| !hit.snippets.is_empty()), "{query}");
        assert!(tree.count.load(Ordering::Relaxed) >= 9, "passages, words and snippets");
        assert_eq!(*tree.following.lock(), [] as [VfsPathBuf; 0], "{query}");
    }
}
