//! Helpers that several cases share.

use async_trait::async_trait;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use treehold_agent_state::bundle::{AsyncToolRecord, DistributedStore, TaskUpdate};
use treehold_agent_state::transcript::TranscriptEntry;
use treehold_agent_state::{AgentStateStore, AgentStates, AgentStatesOptions, BundleOwner, Json, SaveOptions, StateSlot, StoreStates};
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_core::reserved::{AGENT_STATE, Reserved};
use treehold_store::watch::Watch;
use treehold_store::{
    Batch, BatchWrite, Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Partition, Scan, ScanEntry, ScanOptions, Store,
    StoreCapabilities, StoreExtensions,
};

pub(crate) const KEY: &str = "agent_state";

pub(crate) fn json(text: &str) -> Json {
    Json::parse(text).unwrap()
}

pub(crate) fn slot() -> StateSlot {
    StateSlot::new(Some("ada"), "s1").unwrap()
}

pub(crate) fn states(store: &Arc<dyn Store>) -> StoreStates {
    states_with(store, AgentStatesOptions::new())
}

pub(crate) fn states_with(store: &Arc<dyn Store>, options: AgentStatesOptions) -> StoreStates {
    AgentStates::new(store.clone()).with_clock(clock(0)).with_options(options).for_agent("acme", "helper").unwrap()
}

/// Returns a clock that stands still, at a number of hours after the first call in this process.
pub(crate) fn clock(hours: i64) -> Clock {
    static START: OnceLock<Timestamp> = OnceLock::new();
    let now = *START.get_or_init(Timestamp::now) + SignedDuration::from_hours(hours);
    Clock::from_fn(move || now)
}

/// Sweeps when all is due that a deletion or a large save may have left behind.
pub(crate) async fn sweep_later(store: &Arc<dyn Store>) -> usize {
    AgentStates::new(store.clone()).with_clock(clock(24)).sweep(1_000).await.unwrap()
}

/// Makes a state whose messages have these numbers.
pub(crate) fn state(messages: impl IntoIterator<Item = u64>) -> Json {
    let messages: Vec<String> = messages.into_iter().map(|number| format!(r#"{{"id":{number}}}"#)).collect();
    json(&format!(r#"{{"session_id":"s1","context":[{}],"summary":""}}"#, messages.join(",")))
}

pub(crate) async fn save(states: &StoreStates, value: &Json) -> u64 {
    states.save(&slot(), KEY, value, SaveOptions::new()).await.unwrap().unwrap().number()
}

pub(crate) async fn load(states: &StoreStates) -> Option<Json> {
    states.get(&slot(), KEY).await.unwrap().map(|found| found.value)
}

/// Returns the partition of the states of [`slot`].
pub(crate) fn partition() -> Partition {
    Partition::new(["acme", "ada"]).unwrap()
}

/// Returns every row of agent states.
pub(crate) async fn rows(store: &Arc<dyn Store>) -> Vec<(Namespace, Item)> {
    let page = store.namespaces(NamespacesOptions::new()).await.unwrap();
    assert!(!page.more);
    let is_of_states = |namespace: &Namespace| Reserved::of(namespace).is_some_and(|reserved| reserved.components == AGENT_STATE);
    let mut rows = Vec::new();
    for namespace in page.namespaces.into_iter().filter(is_of_states) {
        let mut options = ScanOptions::new().with_values(true);
        loop {
            let page = store.scan(&namespace, options.clone()).await.unwrap();
            rows.extend(page.entries.into_iter().map(|entry| match entry {
                ScanEntry::Item(item) => (namespace.clone(), item),
                other => panic!("{other:?}"),
            }));
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => break,
            }
        }
    }
    rows
}

/// Returns the rows that hold messages.
pub(crate) async fn messages(store: &Arc<dyn Store>) -> usize {
    let is_log = |namespace: &Namespace| namespace.components().any(|component| component == "data");
    rows(store).await.iter().filter(|(namespace, _)| is_log(namespace)).count()
}

/// Returns the rows of deletions and expiries that are still to be done.
pub(crate) async fn due(store: &Arc<dyn Store>) -> usize {
    let is_due = |namespace: &Namespace| namespace.components().last().is_some_and(|component| component == "due");
    rows(store).await.iter().filter(|(namespace, _)| is_due(namespace) && !is_schedule(namespace)).count()
}

/// Returns how many visits sweeps are going to make.
pub(crate) async fn visits(store: &Arc<dyn Store>) -> usize {
    rows(store).await.iter().filter(|(namespace, _)| is_schedule(namespace)).count()
}

fn is_schedule(namespace: &Namespace) -> bool {
    *namespace == Namespace::parse("_treehold/agent-state/_treehold/due").unwrap()
}

/// Returns the number of users in the directory.
pub(crate) async fn directory(store: &Arc<dyn Store>) -> usize {
    let is_directory = |namespace: &Namespace| namespace.components().any(|component| component == "directory");
    rows(store).await.iter().filter(|(namespace, _)| is_directory(namespace)).count()
}

type Interjection = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

/// The calls that [`Staged`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Commit,
    Scan,
    /// Of known rows, or of namespaces.
    Read,
}

impl Step {
    pub(crate) const ALL: [Self; 3] = [Self::Commit, Self::Scan, Self::Read];
}

/// A store that counts what it does, runs a function before one of its steps, or fails all commits from one on.
pub(crate) struct Staged {
    inner: Arc<dyn Store>,
    commits: AtomicUsize,
    scans: AtomicUsize,
    reads: AtomicUsize,
    written_rows: AtomicUsize,
    written_bytes: AtomicUsize,
    before: Mutex<Option<(Step, usize, Interjection)>>,
    fails_from: AtomicUsize,
    fails_after_effect: bool,
}

impl Staged {
    pub(crate) fn counting(inner: &Arc<dyn Store>) -> Arc<Self> {
        Self::new(inner, None, usize::MAX, false)
    }

    /// Calls a function before the step of this number, from 0.
    pub(crate) fn before<F: Future<Output = ()> + Send + 'static>(
        inner: &Arc<dyn Store>,
        step: Step,
        number: usize,
        run: impl FnOnce() -> F + Send + 'static,
    ) -> Arc<Self> {
        let run: Interjection = Box::new(move || Box::pin(run()));
        Self::new(inner, Some((step, number, run)), usize::MAX, false)
    }

    /// Fails the commit of this number, from 0, and all after it: without an effect, or after it took effect.
    pub(crate) fn failing_from(inner: &Arc<dyn Store>, commit: usize, after_effect: bool) -> Arc<Self> {
        Self::new(inner, None, commit, after_effect)
    }

    fn new(inner: &Arc<dyn Store>, before: Option<(Step, usize, Interjection)>, fails_from: usize, fails_after_effect: bool) -> Arc<Self> {
        Arc::new(Self {
            inner: inner.clone(),
            commits: AtomicUsize::new(0),
            scans: AtomicUsize::new(0),
            reads: AtomicUsize::new(0),
            written_rows: AtomicUsize::new(0),
            written_bytes: AtomicUsize::new(0),
            before: Mutex::new(before),
            fails_from: AtomicUsize::new(fails_from),
            fails_after_effect,
        })
    }

    /// Returns whether the function ran, or a commit failed.
    pub(crate) fn has_run(&self) -> bool {
        let fails_from = self.fails_from.load(Ordering::SeqCst);
        self.before.lock().unwrap().is_none() && (fails_from == usize::MAX || self.commits.load(Ordering::SeqCst) > fails_from)
    }

    /// Returns the round trips, and the rows and bytes written, since the last call.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        let take = |count: &AtomicUsize| count.swap(0, Ordering::SeqCst);
        let round_trips = take(&self.commits) + take(&self.scans) + take(&self.reads);
        (round_trips, take(&self.written_rows), take(&self.written_bytes))
    }

    async fn step(&self, step: Step, count: &AtomicUsize) -> usize {
        let number = count.fetch_add(1, Ordering::SeqCst);
        let due = self.before.lock().unwrap().take_if(|(kind, at, _)| (*kind, *at) == (step, number));
        if let Some((_, _, run)) = due {
            run().await;
        }
        number
    }
}

impl fmt::Display for Staged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Staged({})", self.inner)
    }
}

impl fmt::Debug for Staged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[async_trait]
impl Store for Staged {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        self.inner.extensions()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        self.step(Step::Read, &self.reads).await;
        self.inner.get(namespace, key).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        self.step(Step::Read, &self.reads).await;
        self.inner.get_part(namespace, key, range).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        self.step(Step::Read, &self.reads).await;
        self.inner.get_many(namespace, keys, with_values).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.step(Step::Scan, &self.scans).await;
        self.inner.scan(namespace, options).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.step(Step::Read, &self.reads).await;
        self.inner.namespaces(options).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        let commit = self.step(Step::Commit, &self.commits).await;
        let away = || Error::new(ErrorKind::Unavailable, "the store is away");
        let fails = commit >= self.fails_from.load(Ordering::SeqCst);
        if fails && !(self.fails_after_effect && commit == self.fails_from.load(Ordering::SeqCst)) {
            return Err(away().without_effect());
        }
        for write in &batch.writes {
            if let BatchWrite::Put { key, meta, value, .. } = write {
                self.written_rows.fetch_add(1, Ordering::SeqCst);
                self.written_bytes.fetch_add(key.len() + meta.len() + value.len(), Ordering::SeqCst);
            }
        }
        let committed = self.inner.commit(batch).await?;
        if fails { Err(away().with_unknown_effect()) } else { Ok(committed) }
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.inner.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.inner.watch(namespace).await
    }
}

/// Fills what a bundle keeps of a session: the transcript, the inbox, the events, the tasks, and two tool runs, one of which has ended.
pub(crate) async fn fill_bundle(store: &Arc<dyn Store>, owner: &BundleOwner, session: &str) {
    let bundle = DistributedStore::over(store, owner, Arc::new(states(store)));
    let entry = r#"{"type":"message","id":"e-1","parentId":null,"timestamp":"2026-11-23T09:00:00Z","content":"hello"}"#;
    let entry = TranscriptEntry::parse(json(entry)).unwrap();
    bundle.transcripts.unwrap().append(session, &[entry]).await.unwrap();
    let bus = bundle.bus.unwrap();
    bus.inbox_push(session, &json(r#"{"text":"hello"}"#)).await.unwrap();
    bus.publish_session_event(session, &json(r#"{"type":"started"}"#)).await.unwrap();
    bundle.tasks.unwrap().upsert(session, "t-1", &TaskUpdate::default()).await.unwrap();
    let tools = bundle.tools.unwrap();
    for run in runs(session) {
        tools.register(&AsyncToolRecord::new(run, session, "wait", "call-1")).await.unwrap();
    }
    tools.complete(&runs(session)[1], "done").await.unwrap();
}

/// Returns the tool runs of a session that a bundle was filled with.
pub(crate) fn runs(session: &str) -> [String; 2] {
    ["runs", "ended"].map(|run| format!("{run}-{session}"))
}

/// Counts the rows that all bundles keep of a session.
pub(crate) async fn bundled(store: &Arc<dyn Store>, session: &str) -> usize {
    let is_of = |part: &str| part == session || part.rsplit(':').next() == Some(session);
    let rows = rows(store).await;
    rows.iter().filter(|(space, _)| space.components().any(|part| part == "bundle") && space.components().any(|part| is_of(&part))).count()
}
