//! Consolidation of a user's memory, and side writes.

use super::support::{SESSION, TENANT, USER, reference, user, with_session};
use async_trait::async_trait;
use futures::FutureExt;
use futures::future::{BoxFuture, join};
use parking_lot::Mutex;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use tokio::sync::Notify;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_sessions::layout::write_directory;
use treehold_sessions::orchestration::OrchestrationEvent;
use treehold_sessions::trace::Envelope;
use treehold_sessions::{
    AppendOptions, Consolidation, ConsolidationOptions, ConsolidationReason, Consolidator, MemoScope, MemorySummarizer, Message,
    OrchestrationPersistence, ReadyStatus, SessionRef, SessionTraceStore, Sessions, SideWrites, USER as USER_DOCUMENT,
};
use treehold_store::watch::Watch;
use treehold_store::{
    Batch, Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Partition, Scan, ScanOptions, Store, StoreCapabilities,
    StoreExtensions,
};

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;

/// Summarises by counting, and records how many messages it was given. It fails while `fails` is set.
#[derive(Default)]
struct Counting {
    read: Mutex<Vec<usize>>,
    fails: Mutex<bool>,
}

#[async_trait]
impl MemorySummarizer for Counting {
    async fn summarize_session(&self, messages: &[Message]) -> Result<String> {
        self.read.lock().push(messages.len());
        tokio::task::yield_now().await;
        Ok(format!("{} messages", messages.len()))
    }

    async fn consolidate(&self, present: Option<&str>, summaries: &[String]) -> Result<String> {
        if *self.fails.lock() {
            return Err(Error::new(ErrorKind::Unavailable, "the model is away"));
        }
        Ok(format!("{}+{}", present.unwrap_or("nothing"), summaries.len()))
    }
}

/// Completes another task before its first commit.
struct Overtaken {
    inner: Arc<dyn Store>,
    other: Mutex<Option<BoxFuture<'static, ()>>>,
}

impl fmt::Debug for Overtaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overtaken").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl fmt::Display for Overtaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Overtaken({})", self.inner)
    }
}

#[async_trait]
impl Store for Overtaken {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        self.inner.extensions()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        self.inner.get(namespace, key).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        self.inner.get_part(namespace, key, range).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        self.inner.get_many(namespace, keys, with_values).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.inner.scan(namespace, options).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.inner.namespaces(options).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        let other = self.other.lock().take();
        if let Some(other) = other {
            other.await;
        }
        self.inner.commit(batch).await
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.inner.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.inner.watch(namespace).await
    }
}

struct World {
    sessions: Sessions,
    clock: Clock,
    time: Arc<AtomicI64>,
    summarizer: Counting,
}

impl World {
    fn new(store: &Arc<dyn Store>) -> Self {
        let time = Arc::new(AtomicI64::new(1_800_000_000));
        let now = time.clone();
        let clock = Clock::from_fn(move || jiff::Timestamp::from_second(now.load(Ordering::Relaxed)).unwrap());
        Self { sessions: Sessions::new(store.clone()).with_clock(clock.clone()), clock, time, summarizer: Counting::default() }
    }

    /// Advances the clock.
    fn pass(&self, seconds: i64) {
        self.time.fetch_add(seconds, Ordering::Relaxed);
    }

    async fn talk(&self, session: &str, messages: usize) {
        self.sessions.get_or_create(TENANT, USER, "helper", Some(session)).await.unwrap();
        let messages: Vec<Message> = (0..messages).map(user).collect();
        self.sessions.append(TENANT, session, &messages, &AppendOptions::new()).await.unwrap();
    }

    fn consolidator(&self) -> Consolidator {
        Consolidator::new(self.sessions.clone(), ConsolidationOptions::default())
    }

    async fn run(&self) -> Consolidation {
        self.consolidator().run(TENANT, USER, &self.summarizer).await.unwrap()
    }

    async fn document(&self) -> String {
        self.sessions.read_memory_document(TENANT, USER, MemoScope::User, USER_DOCUMENT).await.unwrap().unwrap_or_default()
    }
}

/// A run is due at first, then after a day with any change, after five changed sessions, or by request.
pub(crate) async fn run_is_due_after_enough_time_or_changes_or_by_request(store: Arc<dyn Store>) {
    let world = World::new(&store);
    let done = |reason, sessions, read| Consolidation::Done { reason, sessions, read };
    assert_eq!(world.run().await, Consolidation::NotDue, "without sessions");
    world.talk("a", 5).await;
    world.talk("short", 3).await;
    assert_eq!(world.run().await, Consolidation::Active);
    world.pass(10 * MINUTE);
    assert_eq!(world.run().await, done(ConsolidationReason::Initial, 1, 2));
    assert!(world.document().await.starts_with("nothing+1\n\n## Consolidation History\n\n- 20"), "{}", world.document().await);
    assert_eq!(*world.summarizer.read.lock(), [5]);
    // Without a change no run is due, however much time passes.
    world.pass(48 * HOUR);
    assert_eq!(world.run().await, Consolidation::NotDue);
    // After a day, one changed session is enough.
    world.talk("a", 1).await;
    world.pass(10 * MINUTE);
    assert_eq!(world.run().await, done(ConsolidationReason::Auto, 1, 1));
    assert!(world.document().await.starts_with("nothing+1+1\n"));
    assert_eq!(world.document().await.matches("\n- 20").count(), 2, "the history is kept");
    // Within a day, four changed sessions are too few and five are enough.
    for session in ["b", "c", "d", "e"] {
        world.talk(session, 4).await;
    }
    world.pass(HOUR);
    assert_eq!(world.run().await, Consolidation::NotDue);
    world.talk("f", 4).await;
    world.pass(10 * MINUTE);
    assert_eq!(world.run().await, done(ConsolidationReason::Auto, 6, 5));
    // A requested run reads every session again, even while the user is active.
    world.talk("f", 1).await;
    world.consolidator().request(TENANT, USER).await.unwrap();
    assert_eq!(world.run().await, done(ConsolidationReason::Manual, 6, 7));
    let state = world.consolidator().state(TENANT, USER).await.unwrap();
    assert_eq!((state.pending_reason, state.last_processed_session_count), (None, 7));
}

/// A run reads at most the newest sessions.
pub(crate) async fn run_reads_at_most_the_newest_sessions(store: Arc<dyn Store>) {
    let world = World::new(&store);
    for messages in [4, 5, 6] {
        world.talk(&format!("s-{messages}"), messages).await;
        world.pass(MINUTE);
    }
    world.pass(HOUR);
    let mut options = ConsolidationOptions::default();
    options.sessions_max = 2;
    let done = Consolidator::new(world.sessions.clone(), options).run(TENANT, USER, &world.summarizer).await.unwrap();
    assert_eq!(done, Consolidation::Done { reason: ConsolidationReason::Initial, sessions: 2, read: 2 });
    assert_eq!(*world.summarizer.read.lock(), [6, 5]);
}

/// A failed run leaves the user due, and of many servers one runs again.
pub(crate) async fn concurrent_runs_after_a_failure_consolidate_once(store: Arc<dyn Store>) {
    let world = World::new(&store);
    world.talk("a", 5).await;
    world.pass(HOUR);
    *world.summarizer.fails.lock() = true;
    let failed = world.consolidator().run(TENANT, USER, &world.summarizer).await.unwrap_err();
    assert_eq!((failed.kind(), world.document().await), (ErrorKind::Unavailable, String::new()));
    *world.summarizer.fails.lock() = false;
    // The failed run kept the summary of the session, so neither of these reads it again.
    let (one, other) = join(world.run(), world.run()).await;
    let is_done = |done: &Consolidation| matches!(done, Consolidation::Done { read: 0, .. });
    assert_eq!([&one, &other].into_iter().filter(|done| is_done(done)).count(), 1, "{one:?} {other:?}");
    assert_eq!(world.document().await.matches("\n- 20").count(), 1);
    assert_eq!(world.run().await, Consolidation::NotDue);
}

/// A run that another server completes between its first look and its lease finds the new state, and does nothing.
pub(crate) async fn run_overtaken_before_its_lease_is_not_due(store: Arc<dyn Store>) {
    let world = Arc::new(World::new(&store));
    world.talk("a", 5).await;
    world.pass(HOUR);
    let other = world.clone();
    let other = async move { assert!(matches!(other.run().await, Consolidation::Done { .. })) }.boxed();
    let overtaken = Arc::new(Overtaken { inner: store.clone(), other: Mutex::new(Some(other)) });
    let late = Sessions::new(overtaken.clone()).with_clock(world.clock.clone());
    let late = Consolidator::new(late, ConsolidationOptions::default()).run(TENANT, USER, &world.summarizer).await.unwrap();
    assert!(overtaken.other.lock().is_none(), "the other server has completed its run");
    assert_eq!(late, Consolidation::NotDue);
    assert_eq!(world.document().await.matches("\n- 20").count(), 1);
    // The lease is free again.
    world.consolidator().request(TENANT, USER).await.unwrap();
    assert!(matches!(world.run().await, Consolidation::Done { .. }));
}

/// Loses its lease to another run while it condenses, once.
struct Slow<'w> {
    world: &'w World,
    store: Arc<dyn Store>,
    is_late: AtomicBool,
}

#[async_trait]
impl MemorySummarizer for Slow<'_> {
    async fn summarize_session(&self, messages: &[Message]) -> Result<String> {
        Ok(format!("{} messages", messages.len()))
    }

    async fn consolidate(&self, _: Option<&str>, _: &[String]) -> Result<String> {
        if !self.is_late.swap(true, Ordering::Relaxed) {
            self.store.commit(Batch::new().delete(&rows_of(&self.store, "consolidation").await, "lease")).await?;
            assert!(matches!(self.world.run().await, Consolidation::Done { .. }));
        }
        Ok("late".to_owned())
    }
}

/// Returns the namespace of the user with a last component.
async fn rows_of(store: &Arc<dyn Store>, last: &str) -> Namespace {
    let namespaces = store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces;
    let is_of = |namespace: &Namespace| namespace.components().count() > 4 && namespace.components().last().as_deref() == Some(last);
    namespaces.into_iter().find(is_of).unwrap_or_else(|| panic!("no rows of {last}"))
}

/// A run whose lease ended writes neither the document nor the state, even if nobody else runs at that moment.
pub(crate) async fn run_that_lost_its_lease_writes_nothing(store: Arc<dyn Store>) {
    let world = World::new(&store);
    world.talk("a", 5).await;
    world.pass(HOUR);
    let slow = Slow { world: &world, store: store.clone(), is_late: AtomicBool::new(false) };
    let error = world.consolidator().run(TENANT, USER, &slow).await.unwrap_err();
    assert_eq!((error.kind(), error.is_without_effect()), (ErrorKind::Unavailable, true), "{error}");
    assert!(world.document().await.starts_with("nothing+1\n"), "{}", world.document().await);
    assert_eq!(world.document().await.matches("\n- 20").count(), 1);
    assert_eq!(world.run().await, Consolidation::NotDue);
}

/// A session with a damaged head, damaged messages or a damaged cached summary is skipped or read again. The others are condensed.
pub(crate) async fn session_that_cannot_be_read_does_not_stop_the_others(store: Arc<dyn Store>) {
    let world = World::new(&store);
    for session in ["good", "headless", "garbled", "cached"] {
        world.talk(session, 4).await;
    }
    world.pass(HOUR);
    assert_eq!(world.run().await, Consolidation::Done { reason: ConsolidationReason::Initial, sessions: 4, read: 4 });
    for session in ["good", "headless", "garbled"] {
        world.talk(session, 1).await;
    }
    let heads = rows_of(&store, "sessions").await;
    let head = store.get(&heads, "garbled").await.unwrap().unwrap();
    let data = serde_json::from_slice::<serde_json::Value>(&head.value).unwrap()["data"].as_str().unwrap().to_owned();
    let namespaces = store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces;
    let messages =
        namespaces.iter().find(|namespace| namespace.to_string().contains(&data) && namespace.to_string().ends_with("/messages"));
    let summaries = rows_of(&store, "consolidation").await;
    let mut batch = Batch::new().put(&heads, "headless", "{").put(messages.unwrap(), format!("{:020}", 0), "{");
    for session in ["good", "headless", "garbled", "cached"] {
        let key = format!("summary/{session}");
        assert!(store.get(&summaries, &key).await.unwrap().is_some());
        batch = batch.put(&summaries, key, "{");
    }
    store.commit(batch).await.unwrap();
    world.pass(48 * HOUR);
    assert_eq!(world.run().await, Consolidation::Done { reason: ConsolidationReason::Auto, sessions: 2, read: 2 });
    assert_eq!(world.run().await, Consolidation::NotDue);
    // A damaged state counts as none.
    store.commit(Batch::new().put(&rows_of(&store, "consolidation").await, "state", "{")).await.unwrap();
    assert_eq!(world.run().await, Consolidation::Done { reason: ConsolidationReason::Initial, sessions: 2, read: 0 });
}

/// Requests another run while it summarises.
struct Requesting(Consolidator);

#[async_trait]
impl MemorySummarizer for Requesting {
    async fn summarize_session(&self, messages: &[Message]) -> Result<String> {
        self.0.request(TENANT, USER).await?;
        Ok(format!("{} messages", messages.len()))
    }

    async fn consolidate(&self, _: Option<&str>, summaries: &[String]) -> Result<String> {
        Ok(format!("{} summaries", summaries.len()))
    }
}

/// A request during a run is not lost: the run keeps its results, and another run is due.
pub(crate) async fn request_during_a_run_makes_another_run_due(store: Arc<dyn Store>) {
    let world = World::new(&store);
    world.talk("a", 5).await;
    world.pass(HOUR);
    let consolidator = world.consolidator();
    let done = consolidator.run(TENANT, USER, &Requesting(world.consolidator())).await.unwrap();
    assert!(matches!(done, Consolidation::Done { .. }), "{done:?}");
    let state = consolidator.state(TENANT, USER).await.unwrap();
    assert_eq!(state.pending_reason, Some(ConsolidationReason::Manual));
    assert!(state.last_completed_at.is_some());
    let next = world.run().await;
    assert!(matches!(next, Consolidation::Done { reason: ConsolidationReason::Manual, .. }), "{next:?}");
    assert_eq!(world.run().await, Consolidation::NotDue);
}

/// Waits in each summary until it may go on.
#[derive(Default)]
struct Blocked {
    asked: Notify,
    answer: Notify,
}

#[async_trait]
impl MemorySummarizer for Blocked {
    async fn summarize_session(&self, messages: &[Message]) -> Result<String> {
        self.asked.notify_one();
        self.answer.notified().await;
        Ok(format!("{} messages", messages.len()))
    }

    async fn consolidate(&self, _: Option<&str>, summaries: &[String]) -> Result<String> {
        Ok(format!("{} summaries", summaries.len()))
    }
}

/// A run beside another one reads nothing and says that the other is running.
pub(crate) async fn run_beside_another_reads_nothing(store: Arc<dyn Store>) {
    let world = World::new(&store);
    world.talk("a", 5).await;
    world.pass(HOUR);
    let (blocked, consolidator) = (Blocked::default(), world.consolidator());
    let beside = async {
        blocked.asked.notified().await;
        let found = world.run().await;
        blocked.answer.notify_one();
        found
    };
    let (first, second) = join(consolidator.run(TENANT, USER, &blocked), beside).await;
    assert_eq!(second, Consolidation::Running);
    assert_eq!(first.unwrap(), Consolidation::Done { reason: ConsolidationReason::Initial, sessions: 1, read: 1 });
    assert!(world.summarizer.read.lock().is_empty());
    assert!(world.document().await.starts_with("1 summaries\n"));
    assert_eq!(world.run().await, Consolidation::NotDue);
}

/// The summary of an earlier compaction is no message of the user, in the short form of hosts as well.
pub(crate) async fn imported_summary_is_not_counted_as_a_message(store: Arc<dyn Store>) {
    let world = World::new(&store);
    let init = format!(
        r#"{{"type":"init","sessionId":"a","tenantId":"{TENANT}","userId":"{USER}","agentId":"helper","title":null,"createdAt":1}}"#
    );
    let summary = Message::user("[Conversation summary]: they spoke of tea", 1);
    let messages: String = [summary].into_iter().chain((0..3).map(user)).map(|message| format!("{}\n", message.json().as_str())).collect();
    let files = [("session.jsonl", init), ("messages.jsonl", messages)];
    let files = files.into_iter().map(|(path, text)| (path.to_owned(), text.into())).collect();
    world.sessions.import_session(&SessionRef::new(TENANT, "a").unwrap(), &files).await.unwrap();
    world.pass(HOUR);
    assert_eq!(world.run().await, Consolidation::Done { reason: ConsolidationReason::Initial, sessions: 0, read: 1 });
    assert!(world.summarizer.read.lock().is_empty() && world.document().await.is_empty());
    // With one more message there are enough.
    world.talk("a", 1).await;
    world.pass(48 * HOUR);
    assert_eq!(world.run().await, Consolidation::Done { reason: ConsolidationReason::Auto, sessions: 1, read: 1 });
    assert_eq!(*world.summarizer.read.lock(), [4]);
}

/// Replaces the document of the user while it is condensed, once.
struct Replacing<'w> {
    sessions: &'w Sessions,
    seen: Mutex<Vec<Option<String>>>,
}

#[async_trait]
impl MemorySummarizer for Replacing<'_> {
    async fn summarize_session(&self, _: &[Message]) -> Result<String> {
        Ok("tea".to_owned())
    }

    async fn consolidate(&self, present: Option<&str>, _: &[String]) -> Result<String> {
        self.seen.lock().push(present.map(str::to_owned));
        if self.seen.lock().len() == 1 {
            self.sessions.write_memory_document(TENANT, USER, MemoScope::User, USER_DOCUMENT, "mine\n").await?;
        }
        Ok(format!("condensed {}", present.unwrap_or("nothing")))
    }
}

/// What another writer puts into the document during a run is condensed, and not overwritten.
pub(crate) async fn document_changed_during_a_run_is_condensed_again(store: Arc<dyn Store>) {
    let world = World::new(&store);
    world.talk("a", 5).await;
    for present in [None, Some("condensed mine")] {
        world.pass(HOUR);
        world.consolidator().request(TENANT, USER).await.unwrap();
        let replacing = Replacing { sessions: &world.sessions, seen: Mutex::default() };
        assert!(matches!(world.consolidator().run(TENANT, USER, &replacing).await.unwrap(), Consolidation::Done { .. }));
        assert_eq!(*replacing.seen.lock(), [present.map(str::to_owned), Some("mine".to_owned())]);
        assert!(world.document().await.starts_with("condensed mine\n\n## Consolidation History\n\n- 20"));
        assert_eq!(world.document().await.matches("\n- 20").count(), 1, "each run is in the history once");
    }
}

/// The stored state has the fields of hosts.
pub(crate) async fn state_of_a_consolidation_has_the_json_of_hosts(store: Arc<dyn Store>) {
    let world = World::new(&store);
    world.talk("a", 5).await;
    world.talk("b", 5).await;
    world.pass(HOUR);
    assert!(matches!(world.run().await, Consolidation::Done { .. }));
    let stored = async || {
        let directory = tempfile::tempdir().unwrap();
        write_directory(&world.sessions, directory.path(), TENANT, USER).await.unwrap();
        let file = directory.path().join("tenants").join(TENANT).join("users").join(USER).join(".memory-state.json");
        serde_json::from_slice::<serde_json::Value>(&std::fs::read(file).unwrap()).unwrap()
    };
    let mut expected = serde_json::json!({
        "lastActivityAt": 1_800_000_000_000_i64,
        "lastCompletedAt": 1_800_003_600_000_i64,
        "lastProcessedSessionCount": 2,
        "lastProcessedSessionUpdatedAt": 1_800_000_000_000_i64,
        "pendingReason": null,
    });
    assert_eq!(stored().await, expected);
    world.consolidator().request(TENANT, USER).await.unwrap();
    expected["pendingReason"] = "manual".into();
    assert_eq!(stored().await, expected);
}

/// Failed side writes are counted and shown. They are errors only of a strict orchestration.
pub(crate) async fn failed_side_writes_are_errors_only_of_a_strict_orchestration(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let envelope = Envelope::parse(r#"{"id":"i","timestamp":"t","sequence":1,"source":"host","event":{"type":"error"}}"#).unwrap();
    let event =
        OrchestrationEvent::parse(r#"{"eventId":"e","occurredAt":"t","runId":"r","type":"run_completed","status":"failed"}"#).unwrap();
    for (side, is_strict) in [(SideWrites::new(), false), (SideWrites::strict(), true)] {
        let (trace, orchestration) = (side.trace(sessions.trace(reference())), side.orchestration(sessions.orchestration(reference())));
        assert!(trace.append_envelope(&envelope).await.unwrap().is_some());
        orchestration.append_event(&event).await.unwrap();
        assert_eq!(side.readiness(&sessions).await.status, ReadyStatus::Ready);
        sessions.delete(TENANT, SESSION).await.unwrap();
        assert_eq!(trace.append_envelope(&envelope).await.unwrap(), None);
        assert_eq!(orchestration.append_event(&event).await.is_err(), is_strict);
        assert_eq!((side.failed_trace_writes(), side.failed_orchestration_writes()), (1, 1));
        let readiness = side.readiness(&sessions).await;
        assert_eq!(readiness.status, if is_strict { ReadyStatus::NotReady } else { ReadyStatus::Ready });
        let shown = serde_json::to_string(&readiness).unwrap();
        assert!(
            shown.contains(r#"{"name":"session_store","status":"ok"},{"name":"trace_writes","status":"fail","error":"1 writes failed"#),
            "{shown}"
        );
        // A write that succeeds again clears the check, and the count stays.
        sessions.get_or_create(TENANT, USER, "helper", Some(SESSION)).await.unwrap();
        orchestration.append_event(&event).await.unwrap();
        assert_eq!(side.readiness(&sessions).await.status, ReadyStatus::Ready);
        assert_eq!(side.failed_orchestration_writes(), 1);
    }
}
