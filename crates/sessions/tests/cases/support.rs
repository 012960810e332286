//! Helpers that several cases share.

use async_trait::async_trait;
use futures::future::BoxFuture;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_sessions::{AppendOptions, Ids, Message, SessionRef, Sessions};
use treehold_store::watch::Watch;
use treehold_store::{
    Batch, Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Partition, Scan, ScanOptions, Store, StoreCapabilities,
    StoreExtensions,
};

pub(crate) const TENANT: &str = "acme";
pub(crate) const USER: &str = "ada";
pub(crate) const SESSION: &str = "s-1";

/// Opens the sessions of a store with numbered ids and a clock that advances by a second at each reading.
pub(crate) fn sessions(store: &Arc<dyn Store>) -> Sessions {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let time = AtomicI64::new(1_800_000_000);
    let clock = Clock::from_fn(move || jiff::Timestamp::from_second(time.fetch_add(1, Ordering::Relaxed)).unwrap());
    Sessions::new(store.clone()).with_clock(clock).with_ids(Ids::from_fn(|| format!("id-{}", NEXT.fetch_add(1, Ordering::Relaxed))))
}

/// Opens the sessions of a store and creates one.
pub(crate) async fn with_session(store: &Arc<dyn Store>) -> Sessions {
    let sessions = sessions(store);
    sessions.get_or_create(TENANT, USER, "helper", Some(SESSION)).await.unwrap();
    sessions
}

pub(crate) fn reference() -> SessionRef {
    SessionRef::new(TENANT, SESSION).unwrap()
}

/// Makes a user message of 10 tokens.
pub(crate) fn user(number: usize) -> Message {
    Message::user(&format!("{number:024}"), number as i64)
}

/// Makes an assistant message that calls tools.
pub(crate) fn calls(ids: &[&str]) -> Message {
    let blocks: Vec<String> = ids.iter().map(|id| format!(r#"{{"type":"toolCall","id":"{id}","name":"t","arguments":{{}}}}"#)).collect();
    Message::parse(&format!(r#"{{"role":"assistant","content":[{}],"timestamp":1}}"#, blocks.join(","))).unwrap()
}

/// Makes the result of a tool call.
pub(crate) fn result(id: &str) -> Message {
    let text = format!(
        r#"{{"role":"toolResult","toolCallId":"{id}","toolName":"t","content":[{{"type":"text","text":"done"}}],"isError":false}}"#
    );
    Message::parse(&text).unwrap()
}

pub(crate) async fn append(sessions: &Sessions, messages: &[Message]) {
    sessions.append(TENANT, SESSION, messages, &AppendOptions::new()).await.unwrap();
}

pub(crate) fn texts(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| message.json().as_str()).collect()
}

/// Returns the version of the partition of the user, to check that nothing was written.
pub(crate) async fn version(store: &Arc<dyn Store>) -> Version {
    store.current_version(&Partition::new([TENANT, USER]).unwrap()).await.unwrap()
}

type Interjection = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

/// A store that runs a function before one of its commits, or fails all commits from one on. So a test puts one call between
/// any two steps of another.
pub(crate) struct Staged {
    inner: Arc<dyn Store>,
    commits: AtomicUsize,
    before: Mutex<Option<(usize, Interjection)>>,
    fails_from: AtomicUsize,
}

impl Staged {
    /// Calls a function before the commit of this number, from 0.
    pub(crate) fn before<F: Future<Output = ()> + Send + 'static>(
        inner: &Arc<dyn Store>,
        commit: usize,
        run: impl FnOnce() -> F + Send + 'static,
    ) -> Arc<Self> {
        let run: Interjection = Box::new(move || Box::pin(run()));
        Self::new(inner, Some((commit, run)), usize::MAX)
    }

    /// Fails the commit of this number, from 0, and all after it, without an effect.
    pub(crate) fn failing_from(inner: &Arc<dyn Store>, commit: usize) -> Arc<Self> {
        Self::new(inner, None, commit)
    }

    fn new(inner: &Arc<dyn Store>, before: Option<(usize, Interjection)>, fails_from: usize) -> Arc<Self> {
        let (before, fails_from) = (Mutex::new(before), AtomicUsize::new(fails_from));
        Arc::new(Self { inner: inner.clone(), commits: AtomicUsize::new(0), before, fails_from })
    }

    /// Returns whether the function ran, or a commit failed.
    pub(crate) fn has_run(&self) -> bool {
        let commits = self.commits.load(Ordering::SeqCst);
        self.before.lock().unwrap().is_none()
            && (self.fails_from.load(Ordering::SeqCst) == usize::MAX || commits > self.fails_from.load(Ordering::SeqCst))
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
        let commit = self.commits.fetch_add(1, Ordering::SeqCst);
        if commit >= self.fails_from.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "the store is away").without_effect());
        }
        let due = self.before.lock().unwrap().take_if(|(at, _)| *at == commit);
        if let Some((_, run)) = due {
            run().await;
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

/// Returns how many sessions have rows, whether or not they can be found.
pub(crate) async fn sessions_with_rows(store: &Arc<dyn Store>) -> usize {
    let namespaces = store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces;
    let data = namespaces.iter().filter_map(|namespace| {
        let components: Vec<String> = namespace.components().map(|component| component.into_owned()).collect();
        let at = components.iter().position(|component| component == "data")?;
        components.get(at + 1).cloned()
    });
    data.collect::<std::collections::BTreeSet<_>>().len()
}
