//! Helpers that several cases share.

use async_trait::async_trait;
use futures::future::BoxFuture;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_core::reserved::TRACES;
use treehold_store::watch::Watch;
use treehold_store::{
    Batch, Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Partition, Reserved, Scan, ScanEntry, ScanOptions, Store,
    StoreCapabilities, StoreExtensions,
};
use treehold_traces::{
    AddOptions, Added, GoalTree, Message, MessagesQuery, NewMessage, NewTrace, PathQuery, StoredTraces, Trace, TraceAddress, TraceEvent,
    TraceId, TraceStore, Traces, TracesOptions,
};

pub(crate) const TENANT: &str = "acme";
pub(crate) const USER: &str = "ada";

/// Opens the traces of a store with a clock that advances by a second at each reading.
pub(crate) fn all(store: &Arc<dyn Store>) -> Traces {
    let time = AtomicI64::new(1_800_000_000);
    let clock = Clock::from_fn(move || jiff::Timestamp::from_second(time.fetch_add(1, Ordering::Relaxed)).unwrap());
    Traces::new(store.clone()).with_clock(clock)
}

pub(crate) fn traces(store: &Arc<dyn Store>) -> StoredTraces {
    all(store).for_user(TENANT, USER).unwrap()
}

pub(crate) fn traces_with(store: &Arc<dyn Store>, options: TracesOptions) -> StoredTraces {
    all(store).with_options(options).for_user(TENANT, USER).unwrap()
}

pub(crate) fn shared(store: Arc<dyn Store>) -> Arc<dyn TraceStore> {
    Arc::new(traces(&store))
}

pub(crate) fn id() -> TraceId {
    TraceId::new("abc").unwrap()
}

pub(crate) fn address() -> TraceAddress {
    id().into()
}

/// Creates the trace of [`address`].
pub(crate) async fn begin(traces: &StoredTraces) {
    traces.create_trace(NewTrace::new("make tea").with_id(id())).await.unwrap();
}

pub(crate) fn text(text: &str) -> NewMessage {
    NewMessage::text("user", text)
}

pub(crate) async fn add(traces: &StoredTraces, messages: Vec<NewMessage>) -> Added {
    traces.add_messages(&address(), messages, &AddOptions::new()).await.unwrap()
}

pub(crate) async fn fill(traces: &StoredTraces, count: usize) {
    for start in (0..count).step_by(500) {
        add(traces, (start..count.min(start + 500)).map(|number| text(&number.to_string())).collect()).await;
    }
}

/// Everything of a trace that readers see.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Whole {
    pub(crate) trace: Trace,
    pub(crate) messages: Vec<Message>,
    pub(crate) path: Vec<u64>,
    pub(crate) goals: GoalTree,
    pub(crate) events: Vec<TraceEvent>,
}

/// Reads a trace, and checks what holds for every trace.
pub(crate) async fn whole(traces: &StoredTraces) -> Whole {
    let at = address();
    let trace = traces.get_trace(&at).await.unwrap().unwrap();
    let messages = traces.get_messages(&at, &MessagesQuery::new().with_limit(1_000)).await.unwrap().messages;
    let path = traces.get_main_path(&at, &PathQuery::new()).await.unwrap().messages;
    let (goals, events) = (traces.get_goal_tree(&at).await.unwrap(), traces.get_events(&at, 0, 1_000).await.unwrap().events);
    assert_eq!(trace.total_messages, messages.len() as u64);
    assert_eq!(trace.total_tokens, messages.iter().filter_map(|message| message.tokens).sum::<u64>());
    assert!((trace.total_cost - messages.iter().filter_map(|message| message.cost).sum::<f64>()).abs() < 1e-9);
    assert!(messages.iter().zip(1..).all(|(message, sequence)| message.sequence == sequence));
    assert_eq!(trace.head_sequence, path.last().map_or(0, |message| message.sequence));
    assert!(events.iter().zip(1..).all(|(event, event_id)| event.event_id == event_id));
    assert_eq!(trace.last_event_id, events.len() as u64);
    for goal in &goals.goals {
        let own = messages.iter().filter(|message| message.goal_id.as_ref() == Some(&goal.id));
        assert_eq!(goal.self_stats.message_count, own.count() as u64);
    }
    Whole { trace, messages, path: path.iter().map(|message| message.sequence).collect(), goals, events }
}

/// Returns every row of traces.
pub(crate) async fn rows(store: &Arc<dyn Store>) -> Vec<(Namespace, Item)> {
    let namespaces = store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces;
    let is_of_traces = |namespace: &Namespace| Reserved::of(namespace).is_some_and(|reserved| reserved.components == TRACES);
    let mut rows = Vec::new();
    for namespace in namespaces.into_iter().filter(is_of_traces) {
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

/// Returns the rows but those of the counts, which stay after the last trace.
pub(crate) async fn rows_of_traces(store: &Arc<dyn Store>) -> Vec<String> {
    let is_count = |namespace: &Namespace| namespace.components().any(|component| component == "counts");
    let rows = rows(store).await;
    rows.iter().filter(|(namespace, _)| !is_count(namespace)).map(|(namespace, item)| format!("{namespace} {}", item.key)).collect()
}

type Interjection = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

/// What happens at a commit.
pub(crate) enum Stage {
    /// A function runs before it.
    Before(Interjection),
    /// It fails without an effect, and so do all after it.
    Dead,
    /// It takes effect, and its answer is lost. All after it fail.
    Unanswered,
}

/// A store with a stage at one of its commits. So a test puts one call between any two steps of another, and kills a call at any step.
pub(crate) struct Staged {
    inner: Arc<dyn Store>,
    at: usize,
    commits: AtomicUsize,
    stage: Mutex<Option<Stage>>,
    is_dead: std::sync::atomic::AtomicBool,
}

impl Staged {
    pub(crate) fn new(inner: &Arc<dyn Store>, at: usize, stage: Stage) -> Arc<Self> {
        let (commits, stage) = (AtomicUsize::new(0), Mutex::new(Some(stage)));
        Arc::new(Self { inner: inner.clone(), at, commits, stage, is_dead: false.into() })
    }

    /// Calls a function before the commit of this number, from 0.
    pub(crate) fn before<F: Future<Output = ()> + Send + 'static>(
        inner: &Arc<dyn Store>,
        at: usize,
        run: impl FnOnce() -> F + Send + 'static,
    ) -> Arc<Self> {
        Self::new(inner, at, Stage::Before(Box::new(move || Box::pin(run()))))
    }

    /// Returns whether the stage was reached.
    pub(crate) fn was_reached(&self) -> bool {
        self.stage.lock().unwrap().is_none()
    }

    fn away() -> Error {
        Error::new(ErrorKind::Unavailable, "the store is away")
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
        let stage = if self.commits.fetch_add(1, Ordering::SeqCst) == self.at { self.stage.lock().unwrap().take() } else { None };
        match stage {
            None if self.is_dead.load(Ordering::SeqCst) => Err(Self::away()),
            None => self.inner.commit(batch).await,
            Some(Stage::Before(run)) => {
                run().await;
                self.inner.commit(batch).await
            }
            Some(Stage::Dead) => {
                self.is_dead.store(true, Ordering::SeqCst);
                Err(Self::away())
            }
            Some(Stage::Unanswered) => {
                self.is_dead.store(true, Ordering::SeqCst);
                self.inner.commit(batch).await?;
                Err(Self::away())
            }
        }
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.inner.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.inner.watch(namespace).await
    }
}
