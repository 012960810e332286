//! The work of a round: what it removes, how fast, and beside which others.

use super::*;
use crate::audit::AuditRow;
use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use treehold_core::ops::Version;
use treehold_store::{
    Batch, Item, ItemPart, MemoryStore, Namespace, NamespacePage, NamespacesOptions, Partition, Scan, ScanOptions, StoreCapabilities,
    StoreExtensions, Watch,
};
use treehold_tree::backend::{BackendExt, StateBackend};
use treehold_tree::checkpoint::{At, CheckpointId, Checkpointer, ListOptions, PutOptions, SEPARATOR, namespace_of};

/// Records when it is called, and how many rows each commit writes.
#[derive(Debug)]
struct Counting {
    inner: MemoryStore,
    calls: Mutex<Vec<(Instant, usize)>>,
}

impl Counting {
    fn new(inner: MemoryStore) -> Arc<Self> {
        Arc::new(Self { inner, calls: Mutex::default() })
    }

    fn count(&self, rows: usize) {
        self.calls.lock().push((Instant::now(), rows));
    }
}

impl std::fmt::Display for Counting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("counting")
    }
}

#[async_trait]
impl Store for Counting {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        StoreExtensions::new()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        self.count(1);
        self.inner.get(namespace, key).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        self.count(1);
        self.inner.get_part(namespace, key, range).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        self.count(keys.len());
        self.inner.get_many(namespace, keys, with_values).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        let scan = self.inner.scan(namespace, options).await?;
        self.count(scan.entries.len());
        Ok(scan)
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        let page = self.inner.namespaces(options).await?;
        self.count(page.namespaces.len());
        Ok(page)
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        self.count(batch.writes.len());
        self.inner.commit(batch).await
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.count(1);
        self.inner.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.inner.watch(namespace).await
    }
}

/// A clock that goes with that of the runtime, which the tests let stand still or advance.
fn clock() -> Clock {
    let began = Instant::now();
    Clock::from_fn(move || Timestamp::from_second(1_800_000_000).expect("a time") + began.elapsed())
}

/// Saves checkpoints and calls in threads, a day before the clock.
async fn fill(store: &MemoryStore, scope: &Scope, threads: &[&str], count: usize) {
    let past = Timestamp::from_second(1_800_000_000 - 86_400).expect("a time");
    let checkpointer = StoreCheckpointer::new(Arc::new(store.clone())).with_clock(Clock::from_fn(move || past));
    let log = AuditLog::new(Arc::new(store.clone()));
    for thread in threads {
        let scope = scope.clone().with_thread(*thread);
        let state = StateBackend::new();
        let mut head = None;
        for number in 0..count {
            state.write("/a", format!("{scope:?} {number}")).await.expect("written");
            let saved = checkpointer.put(&scope, &state.snapshot(), &PutOptions::new().with_head(head)).await.expect("saved");
            head = saved.head;
            let id = CheckpointId::new(past, Some(saved.checkpoint.id));
            log.append(&scope, &AuditRow::new(id, past, "write_file", serde_json::json!({}))).await.expect("recorded");
        }
    }
}

async fn left(store: &MemoryStore, scope: &Scope, thread: &str) -> (usize, usize) {
    let (scope, shared) = (scope.clone().with_thread(thread), Arc::new(store.clone()));
    let page = StoreCheckpointer::new(shared.clone()).list(&scope, &ListOptions::new().with_limit(9_999)).await.expect("listed");
    (page.checkpoints.len(), AuditLog::new(shared).calls(&scope, None, None, 9_999).await.expect("read").calls.len())
}

/// Returns the version of each partition with rows.
async fn versions(store: &MemoryStore) -> Vec<(Partition, Version)> {
    let options = NamespacesOptions::new().with_limit(usize::MAX);
    let namespaces = store.namespaces(options).await.expect("listed").namespaces;
    let partitions: BTreeSet<Partition> = namespaces.iter().map(Namespace::partition).collect();
    let mut versions = Vec::new();
    for partition in partitions {
        let version = store.current_version(&partition).await.expect("a version");
        versions.push((partition, version));
    }
    versions
}

fn keep(last: u64) -> Option<KeepRule> {
    KeepRule::new(Some(last), None).ok()
}

fn policy(checkpoints: u64, calls: u64) -> RetentionPolicy {
    RetentionPolicy::new().with_rules(ThreadRules::new().with_checkpoints(keep(checkpoints)).with_calls(keep(calls)))
}

fn ada() -> Scope {
    Scope::new().with_tenant("acme").with_user("ada")
}

#[tokio::test(start_paused = true)]
async fn round_removes_what_its_dry_run_counts_from_every_user() {
    let store = MemoryStore::with_clock(clock());
    let others = [ada(), Scope::new().with_user("-"), Scope::new()];
    for user in &others {
        fill(&store, user, &["one", "two"], 20).await;
    }
    fill(&store, &ada(), &["scratch"], 20).await;
    let scratch = ThreadRules::new().with_checkpoints(keep(2));
    let class = ThreadClass::new(&["scratch*".to_owned()], &[], scratch).expect("a class");
    let retention = Retention::new(Arc::new(store.clone()), policy(5, 7).with_classes(vec![class])).with_clock(clock());
    let before = versions(&store).await;
    let (mut would, mut done, mut again) = Default::default();
    retention.run(true, &mut would).await.expect("counted");
    assert_eq!(versions(&store).await, before, "a dry run writes nothing");
    retention.run(false, &mut done).await.expect("removed");
    assert_eq!(would, done);
    assert_eq!((done.threads, done.checkpoints, done.calls), (7, 6 * 15 + 18, 6 * 13));
    assert_eq!((done.contents, done.packs, done.failed, done.deferred), (6 * 15 + 18, 6 * 15 + 18, 0, 0));
    for user in &others {
        assert_eq!((left(&store, user, "one").await, left(&store, user, "two").await), ((5, 7), (5, 7)));
    }
    assert_eq!(left(&store, &ada(), "scratch").await, (2, 20), "its class has no rule for calls");
    retention.run(false, &mut again).await.expect("nothing is left to remove");
    assert_eq!(again, RetentionReport { threads: 7, ..RetentionReport::default() });
}

#[tokio::test(start_paused = true)]
async fn checkpoint_that_was_the_head_a_moment_ago_stays_until_the_grace_has_passed() {
    let store = MemoryStore::with_clock(clock());
    fill(&store, &ada(), &["main"], 5).await;
    // A day has passed since. A call saves, and another one may still read what was the head.
    let (scope, time) = (ada().with_thread("main"), clock());
    let checkpointer = StoreCheckpointer::new(Arc::new(store.clone())).with_clock(time.clone());
    for _ in 0..2 {
        let opened = checkpointer.open(&scope, At::Latest).await.expect("read").expect("saved");
        checkpointer.put(&scope, &opened.state, &PutOptions::new().with_head(opened.head)).await.expect("saved");
    }
    let retention = Retention::new(Arc::new(store.clone()), policy(1, 99)).with_clock(time);
    let mut report = RetentionReport::default();
    retention.run(false, &mut report).await.expect("removed");
    assert_eq!((report.checkpoints, report.deferred), (4, 1), "seven, without the newest, the one before it, and its head of a moment ago");
    sleep(Duration::from_secs(3_600)).await;
    retention.run(false, &mut report).await.expect("removed");
    assert_eq!((report.checkpoints, left(&store, &ada(), "main").await.0), (5, 2));
}

#[tokio::test(start_paused = true)]
async fn work_per_second_stays_within_the_rate_and_each_commit_is_small() {
    let store = MemoryStore::with_clock(clock());
    fill(&store, &ada(), &["one", "two"], 600).await;
    let counting = Counting::new(store.clone());
    let retention = Retention::new(counting.clone(), policy(3, 3).with_rows_per_second(200)).with_clock(clock());
    let mut report = RetentionReport::default();
    retention.run(false, &mut report).await.expect("removed");
    assert_eq!((report.checkpoints, report.calls), (2 * 597, 2 * 597));
    let calls = counting.calls.lock();
    let most = calls.iter().map(|(_, rows)| *rows).max().expect("it was called");
    assert!(most <= BATCH_ROWS + 1, "a commit or page of {most} rows");
    // In any second there are the rows of the rate, and one call that was begun before they were used up.
    let mut busiest = 0;
    for (index, (at, _)) in calls.iter().enumerate() {
        let within = calls[index..].iter().take_while(|(later, _)| later.duration_since(*at) < Duration::from_secs(1));
        busiest = busiest.max(within.map(|(_, rows)| (*rows).max(1)).sum::<usize>());
    }
    assert!(busiest <= 200 + BATCH_ROWS + 1, "{busiest} rows in one second");
}

#[tokio::test(start_paused = true)]
async fn damaged_thread_does_not_stop_the_others() {
    let store = MemoryStore::with_clock(clock());
    fill(&store, &ada(), &["a", "bad", "z"], 9).await;
    fill(&store, &Scope::new().with_user("eve"), &["main"], 9).await;
    let namespace = namespace_of(&ada(), "checkpoints").expect("legal");
    let page = store.scan(&namespace, ScanOptions::new().with_prefix(format!("bad{SEPARATOR}"))).await.expect("read");
    let key = page.entries.last().expect("a checkpoint").key().to_owned();
    store.commit(Batch::new().put_with_meta(&namespace, key, "damaged", "")).await.expect("damaged");
    let retention = Retention::new(Arc::new(store.clone()), policy(2, 99)).with_clock(clock());
    let mut report = RetentionReport::default();
    retention.run(false, &mut report).await.expect("the others were handled");
    assert_eq!((left(&store, &ada(), "a").await.0, left(&store, &ada(), "z").await.0), (2, 2));
    assert_eq!(left(&store, &Scope::new().with_user("eve"), "main").await.0, 2);
    // The thread, and the sweep of its user, which cannot tell what that checkpoint holds.
    assert_eq!((report.checkpoints, report.failed, report.faults.len()), (3 * 7, 2, 2), "{:?}", report.faults);
    assert!(report.faults[0].starts_with("thread `bad` of user `ada` of tenant `acme`: "), "{:?}", report.faults);
}

#[tokio::test(start_paused = true)]
async fn servers_of_one_store_take_turns_and_stop_when_dropped() {
    let time = clock();
    let store = MemoryStore::with_clock(time.clone());
    let rounds = Arc::new(AtomicUsize::new(0));
    let start = || {
        let (counted, retention) = (rounds.clone(), Retention::new(Arc::new(store.clone()), policy(2, 2)).with_clock(time.clone()));
        let tell = move |round: &Round| {
            assert!(round.is_complete, "{round:?}");
            counted.fetch_add(1, Ordering::Relaxed);
        };
        RetentionSweeper::start(retention, Duration::from_secs(3_600), Arc::new(tell))
    };
    fill(&store, &ada(), &["main"], 9).await;
    let first = start();
    sleep(Duration::from_secs(20)).await;
    let second = start();
    assert_eq!(left(&store, &ada(), "main").await, (9, 9), "nothing happens before the first pause");
    sleep(Duration::from_secs(120)).await;
    assert_eq!((left(&store, &ada(), "main").await, rounds.load(Ordering::Relaxed)), ((2, 2), 1), "one of them looked");
    sleep(Duration::from_secs(5 * 3_600)).await;
    assert_eq!(rounds.load(Ordering::Relaxed), 6, "one round for each pause, not two");
    drop(first);
    sleep(Duration::from_secs(5 * 3_600)).await;
    let after = rounds.load(Ordering::Relaxed);
    assert!((10..=11).contains(&after), "the other one goes on: {after}");
    drop(second);
    sleep(Duration::from_secs(5 * 3_600)).await;
    assert_eq!(rounds.load(Ordering::Relaxed), after);
}

/// After a restart, no round began for two minutes.
#[tokio::test(start_paused = true)]
async fn sweeper_that_is_stopped_within_a_round_gives_its_claim_back() {
    use super::claim::Claim;
    let time = clock();
    let store = MemoryStore::with_clock(time.clone());
    fill(&store, &ada(), &["main"], 9).await;
    let retention = Retention::new(Arc::new(store.clone()), policy(2, 2).with_rows_per_second(1)).with_clock(time);
    let tell = |round: &Round| assert!(!round.is_complete, "the round does not end");
    let sweeper = RetentionSweeper::start(retention, Duration::from_secs(3_600), Arc::new(tell));
    sleep(Duration::from_secs(62)).await;
    assert!(Claim::take(&store).await.expect("asked").is_none(), "the round runs");
    sweeper.stop(Duration::from_secs(1)).await;
    assert!(Claim::take(&store).await.expect("asked").is_some(), "the claim is free");
}

/// Returns the number of checkpoints and calls of a thread after each of its checkpoints was read completely.
async fn readable(store: &MemoryStore, scope: &Scope, thread: &str) -> (usize, usize) {
    let of_thread = scope.clone().with_thread(thread);
    let checkpointer = StoreCheckpointer::new(Arc::new(store.clone()));
    for checkpoint in checkpointer.list(&of_thread, &ListOptions::new().with_limit(9_999)).await.expect("listed").checkpoints {
        let opened = checkpointer.open(&of_thread, At::Id(checkpoint.id)).await.expect("read").expect("it is listed");
        StateBackend::from_snapshot(&opened.state).read_text("/a").await.expect("its content is kept");
    }
    left(store, scope, thread).await
}

#[tokio::test(start_paused = true)]
async fn round_that_is_dropped_at_any_moment_leaves_whole_threads_and_the_next_one_completes() {
    let mut dropped = 0;
    for moment in 0..60 {
        let store = MemoryStore::with_clock(clock());
        fill(&store, &ada(), &["one", "two"], 30).await;
        let retention = Retention::new(Arc::new(store.clone()), policy(4, 4).with_rows_per_second(100)).with_clock(clock());
        let mut report = RetentionReport::default();
        let round = tokio::time::timeout(Duration::from_millis(250 * moment), retention.run(false, &mut report));
        dropped += u32::from(round.await.is_err());
        for thread in ["one", "two"] {
            let (checkpoints, calls) = readable(&store, &ada(), thread).await;
            assert!((4..=30).contains(&checkpoints) && (4..=30).contains(&calls), "{moment}: {checkpoints} {calls}");
        }
        retention.run(false, &mut RetentionReport::default()).await.expect("the rest was removed");
        assert_eq!((readable(&store, &ada(), "one").await, readable(&store, &ada(), "two").await), ((4, 4), (4, 4)), "{moment}");
        let checkpointer = StoreCheckpointer::new(Arc::new(store.clone()));
        let unheld = checkpointer.sweep(&ada(), true).await.expect("counted");
        assert_eq!((unheld.bodies, unheld.packs), (0, 0), "{moment}: nothing is left that no checkpoint holds");
    }
    assert!(dropped > 20, "{dropped}");
}

#[tokio::test(start_paused = true)]
async fn two_rounds_at_once_leave_what_one_leaves_however_they_overlap() {
    for offset in 0..30 {
        let store = MemoryStore::with_clock(clock());
        fill(&store, &ada(), &["one", "two"], 120).await;
        let retention = Retention::new(Arc::new(store.clone()), policy(3, 3)).with_clock(clock());
        let (mut first, mut second) = Default::default();
        let later = async {
            sleep(Duration::from_millis(100 * offset)).await;
            retention.run(false, &mut second).await
        };
        let (one, other) = tokio::join!(retention.run(false, &mut first), later);
        one.and(other).expect("neither disturbs the other");
        assert_eq!((first.failed, second.failed), (0, 0), "{offset}: {:?} {:?}", first.faults, second.faults);
        assert_eq!((readable(&store, &ada(), "one").await, readable(&store, &ada(), "two").await), ((3, 3), (3, 3)), "{offset}");
    }
}
