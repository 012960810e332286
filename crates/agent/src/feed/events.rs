//! The events of a batch of changes, as an entry of its outbox.
//!
//! A tier that commits to the feed's store adds the events to the commit of the change. The state of a thread holds them until a checkpoint
//! is saved. Events that no tier took are sent after the change ([`Events::send`]).

use super::{Feed, FeedKind};
use bytes::Bytes;
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Change, Changed, Version};
use treehold_core::path::VfsPathBuf;
use treehold_core::scope::Scope;
use treehold_store::{Batch, BatchWrite, FileVersion, Namespace, OutboxEntry, OutboxRows, Partition, Store};

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
    fn replaced(operation: FeedKind) -> Self {
        Self { operation, path: VfsPathBuf::root(), target: None }
    }
}

/// The events of one batch of changes, and their log.
#[derive(Debug)]
pub(crate) struct Events {
    feed: Arc<Feed>,
    log: Namespace,
    scope: Scope,
    at: Timestamp,
    drafts: Vec<Draft>,
}

impl Events {
    pub(crate) fn new(feed: Arc<Feed>, log: Namespace, scope: Scope, drafts: Vec<Draft>) -> Self {
        Self { feed, log, scope, at: Timestamp::now(), drafts }
    }

    /// Creates the event that the state of a thread was replaced, by a restore, merge or fork.
    pub(crate) fn replaced(feed: Arc<Feed>, scope: Scope, operation: FeedKind) -> Result<Self> {
        let log = Feed::log_of_threads(&scope)?;
        Ok(Self::new(feed, log, scope, vec![Draft::replaced(operation)]))
    }

    /// Returns the number of changes.
    pub(crate) fn count(&self) -> usize {
        self.drafts.len()
    }

    /// Commits the events of the first `count` changes on their own, with the results of the changes if they are known. The changes have
    /// taken effect, so a failure is logged and counted.
    pub(crate) async fn send(&self, count: usize, changed: Option<&[Changed]>) {
        let count = count.min(self.drafts.len());
        let result_of = |index: usize| changed.and_then(|changed| changed.get(index));
        let happened = (0..count).filter(|index| result_of(*index).is_none_or(|changed| changed.entries > 0));
        let version_of = |index| result_of(index).and_then(|changed| changed.version).map(FileVersion::Known);
        let sent = match happened.map(|index| self.append(index, version_of(index))).collect::<Result<Vec<_>>>() {
            Ok(writes) if writes.is_empty() => return,
            Ok(writes) => self.feed.store.commit(Batch { preconditions: Vec::new(), writes }).await.map(drop),
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            self.feed.lost.fetch_add(count as u64, Ordering::Relaxed);
            tracing::error!(count, %error, "could not store the events of changes");
        }
    }

    /// Returns the write of an event. `version` is that of the file, if there is one.
    fn append(&self, index: usize, version: Option<FileVersion>) -> Result<BatchWrite> {
        let Draft { operation, path, target } = self.drafts[index].clone();
        let Scope { tenant, user, thread, agent, .. } = self.scope.clone();
        let (version, back) = match version {
            Some(FileVersion::Known(version)) => (Some(version.number()), None),
            Some(FileVersion::Before(back)) => (None, Some(back)),
            None => (None, None),
        };
        let row = Row { operation, path, target, version, back, tenant, user, thread, actor: agent, at: self.at };
        let value =
            serde_json::to_vec(&row).map_err(|error| Error::new(ErrorKind::Internal, "an event cannot be encoded").with_source(error))?;
        let time_to_live = Some(self.feed.keep);
        Ok(BatchWrite::Append { namespace: self.log.clone(), meta: Bytes::new(), value: value.into(), time_to_live })
    }
}

impl OutboxEntry for Events {
    fn store(&self) -> &Arc<dyn Store> {
        &self.feed.store
    }

    fn is_in(&self, partition: &Partition) -> bool {
        self.log.partition() == *partition
    }

    fn write(&self, rows: &mut OutboxRows) -> Result<()> {
        for index in 0..self.drafts.len() {
            if !rows.is_unchanged(index) {
                rows.push(self.append(index, rows.version_of(index))?);
            }
        }
        Ok(())
    }

    /// Events that no commit took are sent after their changes.
    fn is_required(&self) -> bool {
        false
    }

    fn follow<'e>(&'e self, changed: Option<&'e [Changed]>) -> BoxFuture<'e, ()> {
        Box::pin(self.send(self.count(), changed))
    }

    fn folded(&self) -> Option<Arc<dyn OutboxEntry>> {
        Some(Arc::new(Self::new(self.feed.clone(), self.log.clone(), self.scope.clone(), vec![Draft::replaced(FeedKind::Restore)])))
    }

    fn weight(&self) -> usize {
        self.drafts.len()
    }
}
