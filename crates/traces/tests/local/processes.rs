//! Several processes on one file, each with its own store.

use crate::cases::support::{TENANT, USER, address, begin, fill, text, traces, whole};
use futures::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::clock::Clock;
use treehold_sqlite::SqliteStore;
use treehold_store::{MemoryStore, Store, SweepCount};
use treehold_traces::{AddOptions, NewTrace, TraceStore, Traces, TracesSweeper};

fn open(directory: &tempfile::TempDir) -> Arc<dyn Store> {
    Arc::new(SqliteStore::open(directory.path().join("store.db")).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_sees_the_events_of_another_process_once_and_in_order() {
    const MESSAGES: usize = 40;
    let directory = tempfile::tempdir().unwrap();
    let (one, other) = (traces(&open(&directory)), traces(&open(&directory)));
    begin(&one).await;
    let stream = other.watch(&address(), 0).await.unwrap();
    let writing = tokio::spawn(async move {
        for number in 0..MESSAGES {
            one.add_messages(&address(), vec![text(&number.to_string())], &AddOptions::new()).await.unwrap();
        }
    });
    let events = tokio::time::timeout(Duration::from_secs(600), stream.take(1 + MESSAGES).collect::<Vec<_>>()).await.unwrap();
    let ids: Vec<u64> = events.into_iter().map(|event| event.unwrap().event_id).collect();
    assert_eq!(ids, (1..=1 + MESSAGES as u64).collect::<Vec<_>>());
    writing.await.unwrap();
}

/// A follower holds one page, so a reader that is behind by far more events still gets each.
#[tokio::test]
async fn watch_replays_more_events_than_a_page() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let traces = traces(&store);
    begin(&traces).await;
    fill(&traces, 450).await;
    let events = traces.watch(&address(), 10).await.unwrap().take(441).collect::<Vec<_>>().await;
    let ids: Vec<u64> = events.into_iter().map(|event| event.unwrap().event_id).collect();
    assert_eq!(ids, (11..=451).collect::<Vec<_>>());
}

#[tokio::test]
async fn traces_survive_the_end_of_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let before = {
        let traces = traces(&open(&directory));
        begin(&traces).await;
        fill(&traces, 3).await;
        whole(&traces).await
    };
    assert_eq!(whole(&traces(&open(&directory))).await, before);
}

#[tokio::test]
async fn clock_and_ids_are_those_that_were_given() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let number = std::sync::atomic::AtomicU64::new(0);
    let all = Traces::new(store)
        .with_clock(Clock::from_fn(|| "2026-02-04T12:34:56Z".parse().unwrap()))
        .with_ids(move || format!("id-{}", number.fetch_add(1, std::sync::atomic::Ordering::Relaxed)));
    let trace = all.for_user(TENANT, USER).unwrap().create_trace(NewTrace::new("x")).await.unwrap();
    assert_eq!(trace.trace_id.id().as_str(), "id-0");
    assert_eq!(trace.created_at.as_deref(), Some("2026-02-04T12:34:56Z"));
}

#[tokio::test(start_paused = true)]
async fn sweeper_removes_what_an_interrupted_deletion_left() {
    use crate::cases::removal::HIDES;
    use crate::cases::support::{Stage, Staged, all, rows_of_traces};
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let own = traces(&store);
    begin(&own).await;
    fill(&own, 3).await;
    let dying: Arc<dyn Store> = Staged::new(&store, HIDES + 1, Stage::Dead);
    assert!(traces(&dying).delete_trace(&address()).await.unwrap());
    assert!(!rows_of_traces(&store).await.is_empty());
    let count = SweepCount::new();
    let sweeper = TracesSweeper::start_counting(all(&store), Duration::from_secs(60), count.clone());
    // The clock of the test advances by itself while every task waits.
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!((rows_of_traces(&store).await, count.get()), (Vec::<String>::new(), 1));
    drop(sweeper);
}
