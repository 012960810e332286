//! The rows and bytes that calls read and write. They do not depend on the length of a session.

use crate::cases::support::{SESSION, TENANT, USER, append, reference, sessions, user};
use async_trait::async_trait;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use treehold_core::error::Result;
use treehold_core::ops::Version;
use treehold_sessions::layout::SessionFiles;
use treehold_sessions::orchestration::{OrchestrationCommit, OrchestrationEvent, OrchestrationPersistence, Snapshot, SnapshotFields};
use treehold_sessions::{CompactOptions, InspectorDataSource, MemoScope, Message, NOTES, Sessions, SummarizeWith};
use treehold_store::watch::Watch;
use treehold_store::{
    Batch, BatchWrite, Item, ItemPart, MemoryStore, Namespace, NamespacePage, NamespacesOptions, Partition, Scan, ScanEntry, ScanOptions,
    Store, StoreCapabilities, StoreExtensions,
};

/// Counts the items and bytes that pass through it.
#[derive(Debug, Default)]
struct Counting {
    inner: MemoryStore,
    calls: AtomicUsize,
    items_read: AtomicUsize,
    bytes_read: AtomicUsize,
    bytes_written: AtomicUsize,
}

/// What one call cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cost {
    calls: usize,
    items_read: usize,
    bytes_read: usize,
    bytes_written: usize,
}

impl Counting {
    fn note<'i>(&self, items: impl IntoIterator<Item = &'i Item>) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        for item in items {
            self.items_read.fetch_add(1, Ordering::Relaxed);
            self.bytes_read.fetch_add(item.key.len() + item.meta.len() + item.value.len(), Ordering::Relaxed);
        }
    }

    fn take(&self) -> Cost {
        let take = |count: &AtomicUsize| count.swap(0, Ordering::Relaxed);
        Cost {
            calls: take(&self.calls),
            items_read: take(&self.items_read),
            bytes_read: take(&self.bytes_read),
            bytes_written: take(&self.bytes_written),
        }
    }
}

impl fmt::Display for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Counting({})", self.inner)
    }
}

#[async_trait]
impl Store for Counting {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        StoreExtensions::default()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        let item = self.inner.get(namespace, key).await?;
        self.note(&item);
        Ok(item)
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        let part = self.inner.get_part(namespace, key, range).await?;
        self.note([]);
        self.bytes_read.fetch_add(part.as_ref().map_or(0, |part| part.item.value.len()), Ordering::Relaxed);
        Ok(part)
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        let items = self.inner.get_many(namespace, keys, with_values).await?;
        self.note(items.iter().flatten());
        Ok(items)
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        let scan = self.inner.scan(namespace, options).await?;
        self.note(scan.entries.iter().filter_map(|entry| match entry {
            ScanEntry::Item(item) => Some(item),
            _ => None,
        }));
        Ok(scan)
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.note([]);
        self.inner.namespaces(options).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        self.note([]);
        for write in &batch.writes {
            if let BatchWrite::Put { key, meta, value, .. } = write {
                self.bytes_written.fetch_add(key.len() + meta.len() + value.len(), Ordering::Relaxed);
            }
        }
        self.inner.commit(batch).await
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.note([]);
        self.inner.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.inner.watch(namespace).await
    }
}

/// Opens a session with messages, on a store that counts.
async fn with_messages(count: usize) -> (Arc<Counting>, Sessions) {
    let store = Arc::new(Counting::default());
    let counted: Arc<dyn Store> = store.clone();
    let sessions = sessions(&counted);
    sessions.get_or_create(TENANT, USER, "helper", Some(SESSION)).await.unwrap();
    for start in (0..count).step_by(500) {
        append(&sessions, &(start..count.min(start + 500)).map(user).collect::<Vec<_>>()).await;
    }
    store.take();
    (store, sessions)
}

/// Returns whether two costs are equal up to the digits of counters and times, a few in each of 50 messages.
fn is_like(one: Cost, other: Cost) -> bool {
    let close = |one: usize, other: usize| one.abs_diff(other) <= 200;
    (one.calls, one.items_read) == (other.calls, other.items_read)
        && close(one.bytes_read, other.bytes_read)
        && close(one.bytes_written, other.bytes_written)
}

#[tokio::test]
async fn append_and_load_cost_the_same_in_a_session_of_any_length() {
    let mut costs = Vec::new();
    for count in [100, 10_000] {
        let (store, sessions) = with_messages(count).await;
        append(&sessions, &[user(1)]).await;
        let appended = store.take();
        assert_eq!(sessions.load(TENANT, SESSION, Some(50)).await.unwrap().len(), 50);
        let loaded = store.take();
        assert_eq!(sessions.load_with_budget(TENANT, SESSION, 400).await.unwrap().len(), 40);
        let within_budget = store.take();
        sessions.info(TENANT, SESSION).await.unwrap();
        costs.push([appended, loaded, within_budget, store.take()]);
    }
    for (short, long) in costs[0].iter().zip(&costs[1]) {
        assert!(is_like(*short, *long), "{short:?} {long:?}");
    }
    let [appended, loaded, within_budget, described] = costs[1];
    assert_eq!((appended.calls, appended.items_read), (3, 2), "the directory, the head, the commit");
    assert_eq!((loaded.calls, loaded.items_read), (3, 52), "the directory, the head, 50 messages");
    assert_eq!((within_budget.calls, within_budget.items_read), (4, 2 + 64 + 40), "the estimates of 64 messages, then 40 messages");
    assert_eq!((described.calls, described.items_read), (2, 2));
}

/// An open session holds its window, not its history: reading the window reads no archived message.
#[tokio::test]
async fn compaction_writes_the_summary_and_the_window_is_read_without_the_history() {
    const KEPT: usize = 20;
    let summarize = SummarizeWith(|messages: Vec<Message>| async move { Ok(format!("summary of {:08}", messages.len())) });
    let mut costs = Vec::new();
    for count in [100, 10_000] {
        let (store, sessions) = with_messages(count).await;
        let options = CompactOptions::new().with_compact_fraction(1.0 - KEPT as f64 / count as f64);
        let done = sessions.compact(TENANT, SESSION, &summarize, &options).await.unwrap().unwrap();
        assert_eq!(done.messages as usize, count - KEPT);
        let compacted = store.take();
        let window = sessions.load_all(TENANT, SESSION).await.unwrap();
        assert_eq!(window.len(), 1 + KEPT);
        costs.push((compacted, store.take(), window.iter().map(|message| message.json().as_str().len()).sum::<usize>()));
    }
    let ((short, _, _), (long, read, window_bytes)) = (costs[0], costs[1]);
    assert!(short.bytes_written.abs_diff(long.bytes_written) <= 64, "{short:?} {long:?}");
    assert!(long.bytes_written < 4_096, "{long:?}");
    assert_eq!(read.items_read, 3 + KEPT, "the directory, the head, the archive, the window");
    assert!(read.bytes_read < window_bytes + 4_096, "{read:?}");
}

#[tokio::test]
async fn page_of_sessions_costs_the_same_among_any_number_of_them() {
    let mut costs = Vec::new();
    for count in [200, 2_000] {
        let (store, sessions) = with_messages(0).await;
        for number in 1..count {
            sessions.get_or_create(TENANT, USER, "helper", Some(&format!("n-{number}"))).await.unwrap();
        }
        store.take();
        let first = sessions.list(TENANT, USER, 50, None).await.unwrap();
        let second = sessions.list(TENANT, USER, 50, first.next.as_deref()).await.unwrap();
        assert_eq!((first.sessions.len(), second.sessions.len()), (50, 50));
        costs.push(store.take());
    }
    assert_eq!((costs[1].calls, costs[1].items_read), (2, 100));
    assert_eq!((costs[0].calls, costs[0].items_read), (2, 100));
}

#[tokio::test]
async fn memory_index_reads_the_beginning_of_each_document() {
    let (store, sessions) = with_messages(0).await;
    let mut text = "<!-- summary: likes tea -->\n".to_owned();
    text.push_str(&"x".repeat(8 << 20));
    sessions.write_memory_document(TENANT, SESSION, MemoScope::Session, NOTES, &text).await.unwrap();
    store.take();
    let index = sessions.memory_index(TENANT, SESSION).await.unwrap();
    let read = store.take();
    assert!(read.bytes_read < 4_096, "{read:?}");
    assert_eq!(index[1].summary.as_deref(), Some("likes tea"));
    assert!(index[1].size_tokens_approx > 1 << 20, "the estimate is of the whole document");
}

/// An export reads the archives that exist, not every number up to the newest one.
#[tokio::test]
async fn export_reads_each_archive_once_whatever_its_number() {
    let store = Arc::new(Counting::default());
    let shared: Arc<dyn Store> = store.clone();
    let sessions = sessions(&shared);
    let init = r#"{"type":"init","sessionId":"s-1","tenantId":"acme","userId":"ada","agentId":"a","createdAt":1}"#;
    let files = ["0002", "100000"].map(|id| (format!("messages.compactions/{id}.jsonl"), format!("{}\n", user(1).json()).into()));
    let mut files = SessionFiles::from(files);
    files.insert("session.jsonl".to_owned(), format!("{init}\n").into());
    sessions.import_session(&reference(), &files).await.unwrap();
    store.take();
    assert_eq!(sessions.export_session(&reference()).await.unwrap().unwrap(), files);
    let cost = store.take();
    assert!(cost.calls < 40, "{cost:?}");
}

/// Recovery reads the checkpoint and what follows it, whether the host writes the checkpoint with its events or after them.
#[tokio::test]
async fn recovery_costs_the_same_after_a_log_of_any_length() {
    let event = |number: usize| {
        let text = format!(
            r#"{{"eventId":"e{number:08}","occurredAt":"t","runId":"r","type":"agent_closed","close":{{"id":"c","agentId":"a"}}}}"#
        );
        OrchestrationEvent::parse(&text).unwrap()
    };
    for is_one_commit in [true, false] {
        let mut costs = Vec::new();
        for count in [20, 2_000] {
            let (store, sessions) = with_messages(0).await;
            let orchestration = sessions.orchestration(reference());
            let mut state = SnapshotFields::default();
            for start in (0..count).step_by(10) {
                let events: Vec<_> = (start..start + 10).map(event).collect();
                events.iter().for_each(|event| state.apply(event));
                let mut commit = events.into_iter().fold(OrchestrationCommit::new(), OrchestrationCommit::with_event);
                let checkpoint = Snapshot::of_state(&state).unwrap();
                if is_one_commit {
                    commit = commit.with_checkpoint(checkpoint.clone());
                }
                orchestration.commit(&commit).await.unwrap();
                if !is_one_commit {
                    orchestration.write_checkpoint(&checkpoint).await.unwrap();
                }
            }
            for number in count..count + 3 {
                state.apply(&event(number));
                orchestration.append_event(&event(number)).await.unwrap();
            }
            store.take();
            let recovered = sessions.orchestration(reference()).recover_state().await.unwrap();
            assert_eq!(recovered.snapshot, state);
            costs.push(store.take());
        }
        assert_eq!((costs[0].calls, costs[0].items_read), (5, 2 + 1 + 1 + 3), "the session, the checkpoint, its position, three events");
        assert!(is_like(costs[0], costs[1]), "{costs:?}");
    }
}

#[tokio::test]
async fn inspector_costs_the_same_among_any_number_of_sessions_of_others() {
    let mut costs = Vec::new();
    for others in [1, 200] {
        let (store, sessions) = with_messages(0).await;
        for number in 1..30 {
            sessions.get_or_create(TENANT, USER, "helper", Some(&format!("own-{number}"))).await.unwrap();
        }
        for number in 0..others {
            let (tenant, user, session) = (format!("t-{number}"), format!("u-{number}"), format!("s-of-{number}"));
            sessions.get_or_create(&tenant, &user, "helper", Some(&session)).await.unwrap();
            sessions.get_or_create(TENANT, &user, "helper", Some(&session)).await.unwrap();
        }
        store.take();
        let own = sessions.for_user(TENANT, USER).unwrap();
        assert_eq!(own.list_sessions().await.unwrap().len(), 30);
        let whole = store.take();
        assert_eq!(own.inspect_page(10, None).await.unwrap().sessions.len(), 10);
        let page = store.take();
        assert_eq!(sessions.inspect_page(2, None).await.unwrap().sessions.len(), 2);
        costs.push([whole, page, store.take()]);
    }
    let [whole, page, page_of_all] = costs[1];
    assert_eq!((whole.calls, whole.items_read), (2, 30), "the heads, and their errors");
    assert_eq!((page.calls, page.items_read), (3, 20), "the list, the heads, and their errors");
    assert!(page_of_all.calls <= 8, "{page_of_all:?}");
    for (few, many) in costs[0].iter().zip(&costs[1]) {
        assert!(few.calls == many.calls && few.items_read == many.items_read, "{few:?} {many:?}");
    }
}

/// As the documentation of `Sessions::get_or_create` says.
#[tokio::test]
async fn creation_takes_as_many_round_trips_as_documented() {
    let counting = Arc::new(Counting::default());
    let store: Arc<dyn Store> = counting.clone();
    let sessions = sessions(&store);
    for (session, calls) in [("first of the tenant", 8), ("second", 7), ("second", 1)] {
        counting.take();
        sessions.get_or_create(TENANT, USER, "helper", Some(session)).await.unwrap();
        assert_eq!(counting.take().calls, calls, "{session}");
    }
}
