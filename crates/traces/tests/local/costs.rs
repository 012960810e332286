//! The round trips, rows and bytes of calls. They do not depend on the length of a trace.

use crate::cases::support::{address, begin, fill, id, text, traces};
use async_trait::async_trait;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use treehold_core::error::Result;
use treehold_core::ops::Version;
use treehold_store::watch::Watch;
use treehold_store::{
    Batch, BatchWrite, Item, ItemPart, MemoryStore, Namespace, NamespacePage, NamespacesOptions, Partition, Scan, ScanEntry, ScanOptions,
    Store, StoreCapabilities, StoreExtensions,
};
use treehold_traces::{
    AddOptions, MessageRef, MessageUpdate, MessagesQuery, NewGoal, NewTrace, PathQuery, SequenceRange, StoredTraces, TraceId, TraceStatus,
    TraceStore, TraceUpdate, TracesQuery,
};

/// Counts what passes through it.
#[derive(Debug, Default)]
struct Counting {
    inner: MemoryStore,
    trips: AtomicUsize,
    rows_read: AtomicUsize,
    bytes: AtomicUsize,
}

/// What one call cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cost {
    trips: usize,
    rows_read: usize,
    bytes: usize,
}

impl Counting {
    fn note<'i>(&self, items: impl IntoIterator<Item = &'i Item>) {
        self.trips.fetch_add(1, Ordering::Relaxed);
        for item in items {
            self.rows_read.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(item.key.len() + item.meta.len() + item.value.len(), Ordering::Relaxed);
        }
    }

    fn take(&self) -> Cost {
        let take = |count: &AtomicUsize| count.swap(0, Ordering::Relaxed);
        Cost { trips: take(&self.trips), rows_read: take(&self.rows_read), bytes: take(&self.bytes) }
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
        self.note([]);
        self.inner.get_part(namespace, key, range).await
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
                self.bytes.fetch_add(key.len() + meta.len() + value.len(), Ordering::Relaxed);
            }
        }
        self.inner.commit(batch).await
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.note([]);
        self.inner.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.note([]);
        self.inner.watch(namespace).await
    }
}

async fn with_messages(count: usize) -> (Arc<Counting>, StoredTraces) {
    let store = Arc::new(Counting::default());
    let counted: Arc<dyn Store> = store.clone();
    let traces = traces(&counted);
    begin(&traces).await;
    traces.add_goal(&address(), NewGoal::new("x")).await.unwrap();
    fill(&traces, count).await;
    store.take();
    (store, traces)
}

/// Runs every call once on a trace of this length, and returns what each cost.
async fn costs(count: usize) -> Vec<(&'static str, Cost)> {
    let (store, traces) = with_messages(count).await;
    let (at, last) = (address(), count as u64);
    let mut costs = Vec::new();
    let mut note = |name: &'static str| costs.push((name, store.take()));
    let add = async |message| drop(traces.add_messages(&at, vec![message], &AddOptions::new()).await.unwrap());
    traces.get_trace(&at).await.unwrap();
    note("get_trace");
    add(text("x")).await;
    note("append");
    add(text("x").with_goal("1")).await;
    note("append with a goal");
    add(text("x").with_parent(last - 50)).await;
    note("rewind");
    traces.add_messages(&at, vec![text("x")], &AddOptions::new().with_idempotency_key("k")).await.unwrap();
    note("append with a key");
    let change = AddOptions::new().with_update(TraceUpdate::new().with_status(TraceStatus::Failed));
    traces.add_messages(&at, vec![text("x")], &change).await.unwrap();
    note("append with another status");
    let change = AddOptions::new().with_update(TraceUpdate::new().with_task("y").with_status(TraceStatus::Running));
    traces.add_messages(&at, vec![text("x")], &change).await.unwrap();
    note("append with another status and task");
    traces.get_main_path(&at, &PathQuery::new().with_limit(50)).await.unwrap();
    note("path");
    traces.get_main_path(&at, &PathQuery::new().with_head(last).with_limit(50)).await.unwrap();
    note("path to another end");
    traces.get_messages(&at, &MessagesQuery::new().with_limit(50)).await.unwrap();
    note("first page");
    traces.get_messages(&at, &MessagesQuery::new().with_offset(last - 60).with_limit(50)).await.unwrap();
    note("page at an offset");
    traces.get_messages(&at, &MessagesQuery::new().with_goal("1")).await.unwrap();
    note("messages of a goal");
    traces.get_message(&at, &MessageRef::Sequence(last)).await.unwrap().unwrap();
    note("message");
    let update = MessageUpdate::new().with_tokens(1);
    traces.update_message(&at, &MessageRef::Sequence(last), update).await.unwrap();
    note("update of a message");
    add(text("x").with_summarizes(SequenceRange { from: 2, to: traces.get_trace(&at).await.unwrap().unwrap().head_sequence })).await;
    note("summary, after a look at the head");
    traces.get_main_path(&at, &PathQuery::new().with_limit(50)).await.unwrap();
    note("path behind a summary");
    traces.append_event(&at, "noted", serde_json::Map::new()).await.unwrap();
    note("append of an event");
    traces.get_events(&at, last, 50).await.unwrap();
    note("events");
    traces.get_goal_tree(&at).await.unwrap();
    note("goals");
    traces.update_trace(&at, TraceUpdate::new().with_duration_ms(1)).await.unwrap();
    note("update of a trace");
    traces.update_trace(&at, TraceUpdate::new().with_status(TraceStatus::Completed)).await.unwrap();
    note("end of a trace");
    let claim = traces.claim_run(&id(), Duration::from_secs(9)).await.unwrap();
    note("claim");
    claim.renew(Duration::from_secs(9)).await.unwrap();
    note("renewal");
    claim.release().await.unwrap();
    note("release");
    traces.create_trace(NewTrace::new("x").with_id(TraceId::new("another").unwrap())).await.unwrap();
    note("creation");
    costs
}

/// The trips are those that the documentation states.
#[tokio::test]
async fn every_call_costs_the_same_in_a_trace_of_any_length() {
    let (short, long) = (costs(100).await, costs(10_000).await);
    for ((name, short), (_, long)) in short.iter().zip(&long) {
        assert_eq!((short.trips, short.rows_read), (long.trips, long.rows_read), "{name}");
        // Numbers have more digits in a longer trace.
        assert!(short.bytes.abs_diff(long.bytes) <= 64 + short.bytes / 8, "{name}: {short:?} {long:?}");
    }
    let trips: Vec<(&str, usize, usize)> = long.iter().map(|(name, cost)| (*name, cost.trips, cost.rows_read)).collect();
    assert_eq!(
        trips,
        [
            ("get_trace", 1, 2),
            ("append", 2, 1),
            ("append with a goal", 3, 1),
            ("rewind", 3, 2),
            ("append with a key", 3, 1),
            ("append with another status", 3, 2),
            ("append with another status and task", 4, 3),
            ("path", 3, 1 + 2 * 50),
            ("path to another end", 4, 2 + 2 * 50),
            ("first page", 2, 1 + 50),
            ("page at an offset", 2, 1 + 50),
            ("messages of a goal", 4, 4),
            ("message", 2, 2),
            ("update of a message", 3, 2),
            ("summary, after a look at the head", 4, 4),
            ("path behind a summary", 3, 5),
            ("append of an event", 2, 1),
            ("events", 2, 1 + 14),
            ("goals", 3, 3),
            ("update of a trace", 3, 2),
            ("end of a trace", 4, 3),
            ("claim", 2, 1),
            ("renewal", 1, 0),
            ("release", 1, 0),
            ("creation", 6, 0),
        ]
    );
}

/// Each message of the path is followed by an aside, so the path has as many jumps as messages.
#[tokio::test]
async fn page_of_a_path_with_jumps_costs_the_same_in_a_trace_of_any_length() {
    let mut found = Vec::new();
    for pairs in [1_500, 6_000] {
        let (store, traces) = with_messages(1).await;
        let mut parent = 1;
        for _ in 0..pairs / 250 {
            let mut messages = Vec::new();
            for _ in 0..250 {
                messages.extend([text("x").with_parent(parent), text("aside").with_branch_type("evaluation")]);
                parent = if parent == 1 { 2 } else { parent + 2 };
            }
            traces.add_messages(&address(), messages, &AddOptions::new()).await.unwrap();
        }
        store.take();
        let page = traces.get_main_path(&address(), &PathQuery::new().with_limit(1_000)).await.unwrap();
        assert_eq!(page.messages.len(), 1_000);
        assert!(page.messages.windows(2).all(|pair| pair[0].sequence + 2 == pair[1].sequence));
        found.push(store.take());
    }
    assert_eq!((found[0].trips, found[0].rows_read), (found[1].trips, found[1].rows_read));
    assert!(found[1].trips <= 2 + 1_000_usize.div_ceil(127), "{found:?}");
}

#[tokio::test]
async fn page_of_traces_costs_the_same_among_any_number_of_them() {
    let mut found = Vec::new();
    for count in [200, 2_000] {
        let (store, traces) = with_messages(0).await;
        for number in 1..count {
            let trace = traces.create_trace(NewTrace::new("x")).await.unwrap().trace_id;
            if number % 100 == 0 {
                traces.update_trace(&trace, TraceUpdate::new().with_status(TraceStatus::Failed)).await.unwrap();
            }
        }
        store.take();
        let first = traces.list_traces(&TracesQuery::new()).await.unwrap();
        let query = TracesQuery::new().with_cursor(first.next);
        assert_eq!(traces.list_traces(&query).await.unwrap().traces.len(), 50);
        let pages = store.take();
        let query = TracesQuery::new().with_status(TraceStatus::Failed).with_limit(1);
        let failed = traces.list_traces(&query).await.unwrap();
        assert_eq!((failed.traces.len(), failed.total), (1, (count - 1) / 100));
        found.push((pages, store.take()));
    }
    let (pages, failed) = found[1];
    assert_eq!((pages.trips, failed.trips), (6, 3), "the list, the counts, the traces");
    assert!(pages.rows_read <= 2 * (50 + 100 + 16) && failed.rows_read <= 1 + 2 + 16, "{found:?}");
    assert_eq!((found[0].0.rows_read, found[0].1.trips), (pages.rows_read, 3));
}
