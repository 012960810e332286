//! What is committed together with a change: its events, and the audit row of the call that made it.
//!
//! An [`Outbox`] reaches the tier with the options of the change. A tier that commits to the same store adds its rows to the
//! commit ([`Ride::rows`]); the state tier of a thread holds them until a checkpoint is saved. Events that no tier took are sent
//! after the change ([`Ride::send`]).

use super::{Feed, FeedKind};
use crate::audit::OpenCall;
use bytes::Bytes;
use futures::future::BoxFuture;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Change, Changed, Version};
use treehold_core::path::VfsPathBuf;
use treehold_core::scope::Scope;
use treehold_store::{Batch, BatchWrite, Namespace, Ride, Rider, Store, is_same};
use treehold_tree::checkpoint::CheckpointId;

/// An event as it is stored, with the paths of its own tree.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) operation: FeedKind,
    pub(super) path: VfsPathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) target: Option<VfsPathBuf>,
    /// The version of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
    /// The version of the file as its distance before the version of the event, for a file put by the same batch, whose version
    /// is not known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    back: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tenant: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) thread: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) actor: Option<String>,
    pub(super) at: Timestamp,
}

impl Row {
    /// Returns the version of the file, given the version of the event.
    pub(super) fn version(&self, own: Version) -> Option<Version> {
        let back = self.back.map(|back| own.number().saturating_sub(back));
        self.version.or(back).map(Version::new)
    }
}

/// An event before its change is applied.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) operation: FeedKind,
    pub(crate) path: VfsPathBuf,
    pub(crate) target: Option<VfsPathBuf>,
}

impl Draft {
    pub(crate) fn of(change: &Change) -> Self {
        let target = change.target().map(ToOwned::to_owned);
        Self { operation: FeedKind::of(change.kind()), path: change.path().to_owned(), target }
    }

    /// Describes the replacement of a whole state.
    fn restored() -> Self {
        Self { operation: FeedKind::Restore, path: VfsPathBuf::root(), target: None }
    }
}

/// The events of one batch of changes, and the call that made it.
#[derive(Debug)]
pub(crate) struct Outbox {
    events: Option<Events>,
    call: Option<Arc<OpenCall>>,
    /// Whether it belongs to the commit by which the call itself saves its thread.
    is_own: bool,
    /// Whether a tier has taken the rows and commits them with the change.
    is_taken: AtomicBool,
}

#[derive(Debug)]
struct Events {
    feed: Arc<Feed>,
    log: Namespace,
    scope: Scope,
    at: Timestamp,
    drafts: Vec<Draft>,
    /// The outcome of each draft, once known.
    known: Mutex<Vec<Known>>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    version: Option<Version>,
    /// Whether the change had no effect because everything was as requested already.
    is_nothing: bool,
}

impl Outbox {
    pub(crate) fn new(call: Option<Arc<OpenCall>>) -> Self {
        Self { events: None, call, is_own: false, is_taken: AtomicBool::new(false) }
    }

    /// Creates the event that the state of a thread was replaced.
    pub(crate) fn restored(feed: Arc<Feed>, scope: Scope) -> Result<Self> {
        let log = Feed::log_of_threads(&scope)?;
        Ok(Self::new(None).with_events(feed, log, scope, vec![Draft::restored()]))
    }

    /// Creates the outbox for the commit by which a call saves its thread.
    pub(crate) fn of_own(call: Arc<OpenCall>) -> Self {
        Self { is_own: true, ..Self::new(Some(call)) }
    }

    /// Adds the events of changes, and their log.
    pub(crate) fn with_events(mut self, feed: Arc<Feed>, log: Namespace, scope: Scope, drafts: Vec<Draft>) -> Self {
        self.events = Some(Events { feed, log, scope, at: Timestamp::now(), drafts, known: Mutex::default() });
        self
    }
}

impl Ride for Outbox {
    fn is_of(&self, store: &Arc<dyn Store>) -> bool {
        self.events.as_ref().is_none_or(|events| events.feed.is_in(store))
            && self.call.as_ref().is_none_or(|call| is_same(call.store(), store))
    }

    fn take(&self) {
        self.is_taken.store(true, Ordering::Relaxed);
    }

    fn is_taken(&self) -> bool {
        self.is_taken.load(Ordering::Relaxed)
    }

    fn know(&self, changed: &[Changed]) {
        if let Some(events) = &self.events {
            *events.known.lock() =
                changed.iter().map(|changed| Known { version: changed.version, is_nothing: changed.entries == 0 }).collect();
        }
    }

    fn rows(&self, next_put: usize, file_put: &dyn Fn(usize) -> Option<usize>, checkpoint: Option<[u8; 16]>) -> Result<Vec<BatchWrite>> {
        let mut writes = Vec::new();
        if let Some(events) = &self.events {
            for index in 0..events.drafts.len() {
                if events.is_nothing(index) {
                    continue;
                }
                let back = file_put(index).map(|put| (next_put + writes.len() - put) as u64);
                writes.push(events.append(index, back)?);
            }
        }
        if let Some(call) = &self.call {
            writes.extend(call.write(checkpoint.map(CheckpointId::from_bytes), self.is_own)?);
        }
        Ok(writes)
    }

    fn settle(&self, checkpoint: Option<[u8; 16]>) {
        if let Some(call) = &self.call {
            call.settle(checkpoint.map(CheckpointId::from_bytes), self.is_own);
        }
    }

    fn folded(&self) -> Option<Rider> {
        let Events { feed, log, scope, .. } = self.events.as_ref()?;
        let outbox = Self::new(None).with_events(feed.clone(), log.clone(), scope.clone(), vec![Draft::restored()]);
        Some(Rider(Arc::new(outbox)))
    }

    fn count(&self) -> usize {
        self.events.as_ref().map_or(0, |events| events.drafts.len())
    }

    fn send(&self, count: usize) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let Some(events) = &self.events else { return };
            let count = count.min(events.drafts.len());
            if count == 0 {
                return;
            }
            let told = (0..count).filter(|index| !events.is_nothing(*index));
            let sent = match told.map(|index| events.append(index, None)).collect::<Result<Vec<_>>>() {
                Ok(writes) if writes.is_empty() => return,
                Ok(writes) => events.feed.store.commit(Batch { preconditions: Vec::new(), writes }).await.map(drop),
                Err(error) => Err(error),
            };
            if let Err(error) = sent {
                events.feed.lost.fetch_add(count as u64, Ordering::Relaxed);
                tracing::error!(count, %error, "could not store the events of changes");
            }
        })
    }
}

impl Events {
    fn is_nothing(&self, index: usize) -> bool {
        self.known.lock().get(index).is_some_and(|known| known.is_nothing)
    }

    fn append(&self, index: usize, back: Option<u64>) -> Result<BatchWrite> {
        let Draft { operation, path, target } = self.drafts[index].clone();
        let known = self.known.lock().get(index).and_then(|known| known.version);
        let Scope { tenant, user, thread, agent, .. } = self.scope.clone();
        let version = if back.is_some() { None } else { known.map(Version::number) };
        let row = Row { operation, path, target, version, back, tenant, user, thread, actor: agent, at: self.at };
        let value =
            serde_json::to_vec(&row).map_err(|error| Error::new(ErrorKind::Internal, "an event cannot be encoded").with_source(error))?;
        let time_to_live = Some(self.feed.keep);
        Ok(BatchWrite::Append { namespace: self.log.clone(), meta: Bytes::new(), value: value.into(), time_to_live })
    }
}
