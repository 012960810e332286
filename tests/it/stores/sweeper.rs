//! Automatic removal of expired rows and of what deletions left behind. The runtime's clock stands still and is advanced by the tests.

use super::namespace;
use super::wrapped::{Wrapped, Wrapper};
use async_trait::async_trait;
use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::sleep;
use treehold::agent_state::{
    AgentStateStore, AgentStates, AgentStatesSweeper, DeleteSessionOptions, Json, SaveOptions, StateSlot, StoreStates,
};
use treehold::config::{Config, ConfigBase};
use treehold::ops::Version;
use treehold::sessions::{Sessions, SessionsSweeper};
use treehold::store::{Batch, MemoryStore, Namespace, ScanOptions, Store, StoreExt, SweepCount, Sweeper, SweeperCounts, SweeperOptions};
use treehold::traces::{NewTrace, StoredTraces, TraceId, TraceStore, Traces, TracesSweeper};
use treehold::{Clock, Error, ErrorKind, Result};

async fn put_ended(store: &dyn Store, count: usize) {
    let batch = (0..count).fold(Batch::new(), |batch, number| batch.put_for(&namespace(), format!("{number}"), "v", Duration::ZERO));
    store.commit(batch.put(&namespace(), "kept", "v")).await.unwrap();
}

async fn ended(store: &dyn Store) -> u64 {
    store.stats().await.unwrap().expired
}

/// Counts the steps, and fails the first ones.
#[derive(Default)]
struct Counted {
    steps: AtomicUsize,
    failing: AtomicUsize,
}

#[async_trait]
impl Wrapper for Arc<Counted> {
    async fn sweep(&self, inner: &dyn Store, limit: usize) -> Result<usize> {
        self.steps.fetch_add(1, Ordering::Relaxed);
        match self.failing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Err(Error::new(ErrorKind::Unavailable, "not now")),
            Err(_) => inner.sweep(limit).await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn sweep_after_each_pause_removes_all_expired_rows() {
    let counted = Arc::new(Counted::default());
    let store: Arc<dyn Store> = Arc::new(Wrapped::new(Arc::new(MemoryStore::new()), counted.clone()));
    put_ended(&*store, 25).await;
    let _sweeper = Sweeper::start(&store, SweeperOptions::new().with_rows(10));
    sleep(Duration::from_secs(59)).await;
    assert_eq!((ended(&*store).await, counted.steps.load(Ordering::Relaxed)), (25, 0));
    sleep(Duration::from_secs(2)).await;
    assert_eq!((ended(&*store).await, counted.steps.load(Ordering::Relaxed)), (0, 3), "ten, ten and five");
    assert_eq!(store.stats().await.unwrap().items, 1, "items that have not expired stay");
    put_ended(&*store, 10).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!((ended(&*store).await, counted.steps.load(Ordering::Relaxed)), (0, 5), "a full step is followed by another");
}

#[tokio::test(start_paused = true)]
async fn failed_round_is_retried() {
    let counted = Arc::new(Counted { failing: AtomicUsize::new(2), ..Counted::default() });
    let store: Arc<dyn Store> = Arc::new(Wrapped::new(Arc::new(MemoryStore::new()), counted.clone()));
    put_ended(&*store, 5).await;
    let _sweeper = Sweeper::start(&store, SweeperOptions::new().with_every(Duration::from_secs(10)));
    sleep(Duration::from_secs(25)).await;
    assert_eq!((ended(&*store).await, counted.steps.load(Ordering::Relaxed)), (5, 2));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(ended(&*store).await, 0);
}

/// Has unused pages, and records how many each step asks for. Its sweeps fail.
struct Unused {
    pages: AtomicUsize,
    asked: Mutex<Vec<usize>>,
}

impl Unused {
    fn new(pages: usize) -> Arc<Self> {
        Arc::new(Self { pages: AtomicUsize::new(pages), asked: Mutex::default() })
    }
}

#[async_trait]
impl Wrapper for Arc<Unused> {
    async fn sweep(&self, _inner: &dyn Store, _limit: usize) -> Result<usize> {
        Err(Error::new(ErrorKind::Corrupt, "a row is damaged"))
    }

    async fn shrink(&self, _inner: &dyn Store, pages: usize) -> Result<usize> {
        self.asked.lock().push(pages);
        let given = pages.min(self.pages.load(Ordering::Relaxed));
        self.pages.fetch_sub(given, Ordering::Relaxed);
        Ok(given)
    }
}

#[tokio::test(start_paused = true)]
async fn unused_pages_are_given_back_in_steps_even_if_the_sweep_fails() {
    let unused = Unused::new(150);
    let store: Arc<dyn Store> = Arc::new(Wrapped::new(Arc::new(MemoryStore::new()), unused.clone()));
    let counts = SweeperCounts::new();
    let _sweeper = Sweeper::start_counting(&store, SweeperOptions::new().with_pause(Duration::from_secs(1)), counts.clone());
    let mut given = Vec::new();
    for milliseconds in [59_500, 1_000, 1_000, 1_000, 120_000] {
        sleep(Duration::from_millis(milliseconds)).await;
        given.push(counts.pages.get());
    }
    assert_eq!(given, [0, 64, 128, 150, 150]);
    assert!(unused.asked.lock().iter().all(|pages| *pages == 64), "{:?}", unused.asked);
    assert_eq!(counts.rows.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn sweeper_that_is_dropped_between_two_steps_takes_no_other() {
    let unused = Unused::new(1_000);
    let store: Arc<dyn Store> = Arc::new(Wrapped::new(Arc::new(MemoryStore::new()), unused.clone()));
    let sweeper = Sweeper::start(&store, SweeperOptions::new().with_pages(10).with_pause(Duration::from_secs(1)));
    sleep(Duration::from_millis(61_500)).await;
    drop(sweeper);
    sleep(Duration::from_secs(300)).await;
    assert_eq!(*unused.asked.lock(), [10, 10]);
}

#[tokio::test(start_paused = true)]
async fn sweeper_stops_when_dropped_and_with_its_store() {
    let counted = Arc::new(Counted::default());
    let store: Arc<dyn Store> = Arc::new(Wrapped::new(Arc::new(MemoryStore::new()), counted.clone()));
    drop(Sweeper::start(&store, SweeperOptions::new()));
    sleep(Duration::from_secs(300)).await;
    assert_eq!(counted.steps.load(Ordering::Relaxed), 0);
    let _sweeper = Sweeper::start(&store, SweeperOptions::new());
    drop(store);
    assert_eq!(Arc::strong_count(&counted), 1, "the sweeper does not keep the store open");
    sleep(Duration::from_secs(300)).await;
    assert_eq!(counted.steps.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn configured_stores_are_swept_at_their_pause() {
    let text = "[stores.default]\nurl = \"memory:\"\n[stores.quick]\nurl = \"memory:\"\nsweep_every = \"5s\"\n\
                [stores.never]\nurl = \"memory:\"\nsweep_every = \"never\"\n";
    let config = Config::parse(text, &ConfigBase::new("/nowhere", "/nowhere")).unwrap();
    let stores = config.stores().unwrap();
    for (_, store) in stores.iter() {
        put_ended(&**store, 3).await;
    }
    let mut left = Vec::new();
    for seconds in [4, 2, 50, 5, 600] {
        sleep(Duration::from_secs(seconds)).await;
        for (_, store) in stores.iter() {
            left.push(ended(&**store).await);
        }
    }
    let [at_4, at_6, at_56, at_61, at_661] = [[3, 3, 3], [3, 3, 0], [3, 3, 0], [0, 3, 0], [0, 3, 0]];
    assert_eq!(left, [at_4, at_6, at_56, at_61, at_661].concat(), "of `default`, `never` and `quick`");
}

#[test]
fn invalid_pause_is_reported_with_its_line() {
    let fault = |value: &str| {
        let text = format!("[stores.default]\nurl = \"memory:\"\nsweep_every = \"{value}\"\n");
        Config::parse(&text, &ConfigBase::new("/nowhere", "/nowhere")).unwrap_err()
    };
    for value in ["soon", "0s", ""] {
        let fault = fault(value);
        assert_eq!((fault.line, fault.column), (3, 15), "{fault}");
        assert!(fault.to_string().contains("`never`"), "{fault}");
    }
}

/// Fails every commit after the first ones, as the store of a process that was killed.
struct Killed(AtomicUsize);

#[async_trait]
impl Wrapper for Killed {
    async fn commit(&self, inner: &dyn Store, batch: Batch) -> Result<Vec<Version>> {
        match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => inner.commit(batch).await,
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "the process was killed").without_effect()),
        }
    }
}

/// Data of which a deletion leaves a record, until everything is removed.
struct Kind {
    /// The namespace of the records.
    records: &'static str,
    create: fn(Arc<dyn Store>) -> BoxFuture<'static, ()>,
    delete: fn(Arc<dyn Store>) -> BoxFuture<'static, ()>,
    sweep: fn(Arc<dyn Store>) -> BoxFuture<'static, Result<usize>>,
    /// Starts the sweeper, which runs every minute.
    start: fn(Arc<dyn Store>, SweepCount) -> Box<dyn Any>,
}

const EVERY: Duration = Duration::from_secs(60);

const KINDS: &[Kind] = &[
    Kind {
        records: "_treehold/sessions/_treehold/removals",
        create: |store| {
            async move { Sessions::new(store).get_or_create("acme", "ada", "helper", Some("s")).await.map(drop).unwrap() }.boxed()
        },
        delete: |store| async move { assert!(Sessions::new(store).delete("acme", "s").await.unwrap()) }.boxed(),
        sweep: |store| async move { Sessions::new(store).sweep_some(9).await }.boxed(),
        start: |store, count| Box::new(SessionsSweeper::start_counting(Sessions::new(store), EVERY, count)),
    },
    Kind {
        records: "_treehold/agent-state/_treehold/due",
        create: |store| {
            let value = Json::parse(r#"{"context": [{"id": 1}]}"#).unwrap();
            async move { states(store).save(&slot(), "agent_state", &value, SaveOptions::new()).await.map(drop).unwrap() }.boxed()
        },
        delete: |store| async move { states(store).delete_session(&slot(), DeleteSessionOptions::new()).await.unwrap() }.boxed(),
        sweep: |store| async move { states_later(store).sweep(9).await }.boxed(),
        start: |store, count| Box::new(AgentStatesSweeper::start_counting(states_later(store), EVERY, count)),
    },
    Kind {
        records: "_treehold/traces/_treehold/removals",
        create: |store| {
            async move { traces(store).create_trace(NewTrace::new("make tea").with_id(trace())).await.map(drop).unwrap() }.boxed()
        },
        delete: |store| async move { assert!(traces(store).delete_trace(&trace().into()).await.unwrap()) }.boxed(),
        sweep: |store| async move { Traces::new(store).sweep_some(9).await }.boxed(),
        start: |store, count| Box::new(TracesSweeper::start_counting(Traces::new(store), EVERY, count)),
    },
];

fn states(store: Arc<dyn Store>) -> StoreStates {
    AgentStates::new(store).for_agent("acme", "helper").unwrap()
}

/// Opens the states a day later, when what a deletion left is due.
fn states_later(store: Arc<dyn Store>) -> AgentStates {
    AgentStates::new(store).with_clock(Clock::from_fn(|| Timestamp::now() + SignedDuration::from_hours(24)))
}

fn slot() -> StateSlot {
    StateSlot::new(Some("ada"), "s").unwrap()
}

fn traces(store: Arc<dyn Store>) -> StoredTraces {
    Traces::new(store).for_user("acme", "ada").unwrap()
}

fn trace() -> TraceId {
    TraceId::new("abc").unwrap()
}

#[tokio::test(start_paused = true)]
async fn damaged_record_that_fails_every_round_hides_none_of_the_counts() {
    for kind in KINDS {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        (kind.create)(store.clone()).await;
        // The third commit of a deletion decides. Those after it remove the data.
        (kind.delete)(Arc::new(Wrapped::new(store.clone(), Killed(AtomicUsize::new(3))))).await;
        let records = Namespace::parse(kind.records).unwrap();
        let keys = async || {
            let entries = store.scan(&records, ScanOptions::new()).await.unwrap().entries;
            entries.iter().map(|entry| entry.key().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(keys().await.len(), 1, "{records}: the record of the deletion");
        // Its key comes first.
        store.commit(Batch::new().put(&records, "0", "damaged")).await.unwrap();
        let count = SweepCount::new();
        let sweeper = (kind.start)(store.clone(), count.clone());
        sleep(2 * EVERY + Duration::from_secs(1)).await;
        drop(sweeper);
        assert_eq!((count.get(), keys().await), (1, vec!["0".to_owned()]), "{records}");
        assert_eq!((kind.sweep)(store.clone()).await.unwrap_err().kind(), ErrorKind::Corrupt, "{records}");
    }
}
