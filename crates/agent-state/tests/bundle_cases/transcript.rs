//! Transcripts.

use super::support::{damage, json, kind, look_alike_owners, owner};
use async_trait::async_trait;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use treehold_agent_state::transcript::{
    APPEND_BYTES_MAX, ENTRIES_MAX, ENTRY_BYTES_MAX, EntryBody, EntryKind, INLINE_BYTES_MAX, StoredEntry, TranscriptEntry, Transcripts,
};
use treehold_core::ErrorKind;
use treehold_core::error::Result;
use treehold_core::ops::Version;
use treehold_store::{
    Batch, Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Partition, Scan, ScanOptions, Store, StoreCapabilities,
    StoreExtensions, Watch,
};

fn transcripts(store: &Arc<dyn Store>) -> Transcripts {
    Transcripts::new(store.clone(), owner())
}

/// Makes a message with `size` bytes of content.
fn entry(id: &str, size: usize) -> TranscriptEntry {
    let content = "x".repeat(size);
    let text = format!(r#"{{"type":"message","id":"{id}","parentId":null,"timestamp":"2026-11-23T09:00:00Z","content":"{content}"}}"#);
    TranscriptEntry::parse(json(&text)).unwrap()
}

async fn all(transcripts: &Transcripts, session: &str) -> Vec<StoredEntry> {
    let (mut entries, mut after) = (Vec::new(), None);
    loop {
        let page = transcripts.read(session, after, 7).await.unwrap();
        assert!(page.entries.len() <= 7);
        entries.extend(page.entries);
        let Some(next) = page.next else { return entries };
        after = Some(next);
    }
}

fn ids(entries: &[StoredEntry]) -> Vec<&str> {
    entries.iter().map(|entry| &*entry.id).collect()
}

pub(crate) async fn repeated_append_adds_nothing(store: Arc<dyn Store>) {
    let transcripts = transcripts(&store);
    let batch: Vec<_> = (0..20).map(|number| entry(&format!("e{number:02}"), 10)).collect();
    assert_eq!(transcripts.append("s1", &[]).await.unwrap().added, 0);
    for (until, added) in [(5, 5), (5, 0), (20, 15), (20, 0)] {
        let appended = transcripts.append("s1", &batch[..until]).await.unwrap();
        assert_eq!((appended.added, appended.repeated), (added, until - added));
    }
    let twice = [batch[0].clone(), entry("new", 1), entry("new", 1)];
    let appended = transcripts.append("s1", &twice).await.unwrap();
    assert_eq!((appended.added, appended.repeated), (1, 2));
    let stored = all(&transcripts, "s1").await;
    let mut expected: Vec<String> = (0..20).map(|number| format!("e{number:02}")).collect();
    expected.push("new".into());
    assert_eq!(ids(&stored), expected);
    assert!(stored.is_sorted_by(|one, other| one.position < other.position));
    assert_eq!(all(&transcripts, "s2").await, []);
}

pub(crate) async fn entries_of_every_type_keep_their_text(store: Arc<dyn Store>) {
    let transcripts = transcripts(&store);
    let mut texts = Vec::new();
    for (number, kind) in EntryKind::ALL.into_iter().enumerate() {
        let name = serde_json::to_value(kind).unwrap();
        for time in ["\"2026-11-23T09:00:00.123456789Z\"", "1795424400.123456789", "1795424400"] {
            let id = format!("e{}", texts.len());
            let parent = if texts.is_empty() { "null".into() } else { format!("\"e{}\"", texts.len() - 1) };
            let text = format!(
                "{{ \"id\": \"{id}\", \"type\": {name},\n \"parentId\": {parent}, \"timestamp\": {time}, \"new\": [1.0, {number}] }}"
            );
            let entry = TranscriptEntry::parse(json(&text)).unwrap();
            assert_eq!((entry.kind(), entry.timestamp().as_second()), (kind, 1_795_424_400), "{time}");
            transcripts.append("s1", &[entry]).await.unwrap();
            texts.push(text);
        }
    }
    let stored = all(&transcripts, "s1").await;
    for (number, (stored, text)) in stored.iter().zip(&texts).enumerate() {
        assert_eq!(stored.body, EntryBody::Inline(json(text)));
        assert_eq!(stored.parent_id, number.checked_sub(1).map(|parent| format!("e{parent}")));
    }
    assert_eq!(stored.len(), texts.len());
}

/// Two processes append at once, each its own entries and some that both have. Nothing is lost, and nothing is there twice.
pub(crate) async fn two_writers_lose_nothing(store: Arc<dyn Store>) {
    let writers = (0..3).map(|writer| {
        let transcripts = transcripts(&store);
        tokio::spawn(async move {
            for round in 0..8 {
                let batch = [
                    entry(&format!("w{writer}-{round}-a"), 5),
                    entry(&format!("both-{round}"), 5),
                    entry(&format!("w{writer}-{round}-b"), 5),
                ];
                transcripts.append("s1", &batch).await.unwrap();
            }
        })
    });
    for writer in futures::future::join_all(writers).await {
        writer.unwrap();
    }
    let stored = all(&transcripts(&store), "s1").await;
    let distinct: BTreeSet<&str> = ids(&stored).into_iter().collect();
    assert_eq!((stored.len(), distinct.len()), (3 * 8 * 2 + 8, 3 * 8 * 2 + 8));
    for writer in 0..3 {
        let own: Vec<&str> = ids(&stored).into_iter().filter(|id| id.starts_with(&format!("w{writer}"))).collect();
        assert!(own.is_sorted(), "the order of a writer is kept: {own:?}");
    }
}

pub(crate) async fn large_entries_are_kept_aside_and_read_back(store: Arc<dyn Store>) {
    let transcripts = transcripts(&store);
    let overhead = entry("e-0", 0).json().as_str().len();
    for (number, size) in [INLINE_BYTES_MAX - overhead, INLINE_BYTES_MAX - overhead + 1, 1 << 20].into_iter().enumerate() {
        transcripts.append("s1", &[entry(&format!("e-{number}"), size)]).await.unwrap();
    }
    let stored = all(&transcripts, "s1").await;
    for (number, (entry_read, size)) in
        stored.iter().zip([INLINE_BYTES_MAX - overhead, INLINE_BYTES_MAX - overhead + 1, 1 << 20]).enumerate()
    {
        let expected = entry(&format!("e-{number}"), size);
        let is_aside =
            matches!(entry_read.body, EntryBody::Aside { size_bytes, .. } if size_bytes == expected.json().as_str().len() as u64);
        assert_eq!(is_aside, number > 0, "{number}");
        assert_eq!(transcripts.body("s1", entry_read).await.unwrap(), *expected.json());
        assert_eq!((entry_read.kind, entry_read.timestamp), (expected.kind(), expected.timestamp()));
    }
    assert_eq!(damage(&store, "aside").await, 2);
    assert_eq!(kind(transcripts.body("s1", &stored[1]).await), ErrorKind::Corrupt);
    assert_eq!(damage(&store, "entries").await, 3);
    assert_eq!(kind(transcripts.read("s1", None, 9).await), ErrorKind::Corrupt);
}

/// The bytes that an append writes do not depend on how many entries there are.
pub(crate) async fn append_writes_only_new_entries(store: Arc<dyn Store>) {
    let counted = Arc::new(Counted { inner: store, written: AtomicUsize::new(0), read: AtomicUsize::new(0) });
    let transcripts = Transcripts::new(counted.clone(), owner());
    let mut costs = Vec::new();
    for number in 0..200 {
        counted.written.store(0, Ordering::SeqCst);
        counted.read.store(0, Ordering::SeqCst);
        transcripts.append("s1", &[entry(&format!("e{number:03}"), 100)]).await.unwrap();
        costs.push((counted.written.load(Ordering::SeqCst), counted.read.load(Ordering::SeqCst)));
    }
    assert!(costs.iter().all(|cost| *cost == costs[0]), "{costs:?}");
    assert!(costs[0].0 < 500 && costs[0].1 <= 1, "{:?}", costs[0]);
}

pub(crate) async fn segments_are_stable_and_import_once(store: Arc<dyn Store>) {
    let transcripts = transcripts(&store);
    for number in 0..25 {
        let size = if number == 12 { INLINE_BYTES_MAX + 1 } else { number };
        transcripts.append("s/1", &[entry(&format!("e{number:02}"), size)]).await.unwrap();
    }
    let export = async |from: Option<u64>| {
        let (mut segments, mut after) = (Vec::new(), from);
        while let Some(segment) = transcripts.segment("s/1", after, "node-1", 10).await.unwrap() {
            after = Some(segment.last);
            segments.push(segment);
        }
        segments
    };
    let segments = export(None).await;
    assert_eq!(
        segments.iter().map(|segment| segment.content.iter().filter(|byte| **byte == b'\n').count()).collect::<Vec<_>>(),
        [10, 10, 5]
    );
    assert_eq!(export(None).await, segments, "an export can be repeated");
    assert_eq!(export(Some(segments[0].last)).await, segments[1..], "and continued");
    let stem = "acme/helper/s%2F1/events/";
    assert!(
        segments.iter().all(|segment| segment.path.starts_with(stem) && segment.path.ends_with("-node-1.jsonl")),
        "{:?}",
        segments[0].path
    );
    assert!(segments.is_sorted_by(|one, other| one.path < other.path && one.last < other.first));

    // Another deployment imports the files, some of them twice and in another order.
    let other = Transcripts::new(store.clone(), look_alike_owners().pop().unwrap());
    for (segment, added) in [(0, 10), (1, 10), (0, 0), (2, 5), (2, 0)] {
        let appended = other.import_segment("s1", &segments[segment].content).await.unwrap();
        assert_eq!((appended.added, appended.repeated), (added, [10, 10, 5][segment] - added));
    }
    let (mine, theirs) = (all(&transcripts, "s/1").await, all(&other, "s1").await);
    assert_eq!(ids(&mine), ids(&theirs));
    for (mine, theirs) in mine.iter().zip(&theirs) {
        assert_eq!(transcripts.body("s/1", mine).await.unwrap(), other.body("s1", theirs).await.unwrap());
    }
    let error = other.import_segment("s2", b"\n{\"type\":\"message\"}\n").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("line 2"), "{error}");
    assert_eq!(kind(other.import_segment("s2", b"\xff").await), ErrorKind::InvalidArgument);
    assert_eq!(kind(transcripts.segment("s/1", None, "", 10).await), ErrorKind::InvalidArgument);
    assert_eq!(kind(transcripts.segment("s/1", None, "w", 0).await), ErrorKind::InvalidArgument);
}

pub(crate) async fn changed_entry_is_refused(store: Arc<dyn Store>) {
    let transcripts = transcripts(&store);
    transcripts.append("s1", &[entry("e1", 1)]).await.unwrap();
    assert_eq!(kind(transcripts.append("s1", &[entry("e2", 1), entry("e1", 2)]).await), ErrorKind::Conflict);
    assert_eq!(kind(transcripts.append("s1", &[entry("e3", 1), entry("e3", 2)]).await), ErrorKind::Conflict);
    assert_eq!(ids(&all(&transcripts, "s1").await), ["e1"]);
}

pub(crate) async fn removed_transcript_is_empty(store: Arc<dyn Store>) {
    let transcripts = transcripts(&store);
    transcripts.append("s1", &[entry("e1", 1), entry("e2", INLINE_BYTES_MAX)]).await.unwrap();
    transcripts.append("s2", &[entry("e1", 1)]).await.unwrap();
    transcripts.remove("s1").await.unwrap();
    transcripts.remove("s1").await.unwrap();
    assert_eq!(all(&transcripts, "s1").await, []);
    assert_eq!(super::support::rows(&store).await.len(), 2, "only the rows of the other session are left");
    assert_eq!(transcripts.append("s1", &[entry("e1", 3)]).await.unwrap().added, 1);
}

pub(crate) async fn bad_entries_are_refused(store: Arc<dyn Store>) {
    for text in [
        r#"{}"#,
        r#"[]"#,
        r#"{"type":"other","id":"a","timestamp":1}"#,
        r#"{"type":"message","id":"","timestamp":1}"#,
        r#"{"type":"message","id":"a"}"#,
        r#"{"type":"message","id":"a","timestamp":"yesterday"}"#,
        r#"{"type":"message","id":"a","timestamp":1e300}"#,
        r#"{"type":"message","id":1,"timestamp":1}"#,
        r#"{"type":"message","id":"a\u0000","timestamp":1}"#,
        r#"{"type":"message","id":"a","timestamp":1,"parentId":2}"#,
    ] {
        assert_eq!(kind(TranscriptEntry::parse(json(text))), ErrorKind::InvalidArgument, "{text}");
    }
    let transcripts = transcripts(&store);
    let many: Vec<_> = (0..=ENTRIES_MAX).map(|number| entry(&format!("e{number}"), 0)).collect();
    assert_eq!(kind(transcripts.append("s1", &many).await), ErrorKind::TooLarge);
    assert_eq!(kind(transcripts.append("s1", &[entry("e", ENTRY_BYTES_MAX)]).await), ErrorKind::TooLarge);
    let wide: Vec<_> = (0..3).map(|number| entry(&format!("e{number}"), APPEND_BYTES_MAX / 3)).collect();
    assert_eq!(kind(transcripts.append("s1", &wide).await), ErrorKind::TooLarge);
    for session in ["", ".", "..", "_treehold", "a\nb"] {
        assert_eq!(kind(transcripts.append(session, &[entry("e", 0)]).await), ErrorKind::InvalidArgument);
        assert_eq!(kind(transcripts.read(session, None, 1).await), ErrorKind::InvalidArgument);
        assert_eq!(kind(transcripts.remove(session).await), ErrorKind::InvalidArgument);
    }
    assert_eq!(kind(transcripts.read("s1", None, 0).await), ErrorKind::InvalidArgument);
    assert_eq!(super::support::rows(&store).await, []);
}

/// A store that counts the bytes of commits and the rows of reads.
#[derive(Debug)]
struct Counted {
    inner: Arc<dyn Store>,
    written: AtomicUsize,
    read: AtomicUsize,
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Counted({})", self.inner)
    }
}

#[async_trait]
impl Store for Counted {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        self.inner.extensions()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        self.read.fetch_add(1, Ordering::SeqCst);
        self.inner.get(namespace, key).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        self.read.fetch_add(1, Ordering::SeqCst);
        self.inner.get_part(namespace, key, range).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        self.read.fetch_add(keys.len(), Ordering::SeqCst);
        self.inner.get_many(namespace, keys, with_values).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        let scan = self.inner.scan(namespace, options).await?;
        self.read.fetch_add(scan.entries.len(), Ordering::SeqCst);
        Ok(scan)
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.inner.namespaces(options).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        self.written.fetch_add(batch.size_bytes(), Ordering::SeqCst);
        self.inner.commit(batch).await
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.inner.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.inner.watch(namespace).await
    }
}
