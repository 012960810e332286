//! A wrapper around a mount that records its changes as events.

use super::{Draft, Elsewhere, Events, Feed};
use crate::audit::{CallEntry, CurrentCall};
use async_trait::async_trait;
use jiff::Timestamp;
use std::fmt;
use std::sync::{Arc, OnceLock};
use treehold_core::checkpoint_id::CheckpointId;
use treehold_core::error::{Error, Result};
use treehold_core::ops::{ApplyOptions, Author, Change, Changed};
use treehold_core::scope::Scope;
use treehold_store::{Delivery, Namespace, Outbox, Receipt};
use treehold_tree::backend::Backend;
use treehold_tree::forward_backend;

/// Attaches the events of each change to it, and sends those that the inner tree does not commit.
#[derive(Debug)]
pub(crate) struct Announce {
    inner: Arc<dyn Backend>,
    feed: Option<FeedLog>,
    scope: Arc<Scope>,
    /// If set, counts the changes as changes outside the thread's state.
    elsewhere: Option<Elsewhere>,
}

/// A feed, and where the changes of a mount are logged in it. Reads do not need the log, so the first batch of changes determines it.
pub(crate) struct FeedLog {
    feed: Arc<Feed>,
    find: FindLog,
    found: OnceLock<Option<Namespace>>,
}

type FindLog = Box<dyn Fn(&Scope) -> Result<Option<Namespace>> + Send + Sync>;

impl FeedLog {
    pub(crate) fn new(feed: Arc<Feed>, find: impl Fn(&Scope) -> Result<Option<Namespace>> + Send + Sync + 'static) -> Self {
        Self { feed, find: Box::new(find), found: OnceLock::new() }
    }

    /// Returns the log of a scope, which is the same in each call.
    fn of(&self, scope: &Scope) -> Result<Option<Namespace>> {
        if let Some(found) = self.found.get() {
            return Ok(found.clone());
        }
        let found = (self.find)(scope)?;
        Ok(self.found.get_or_init(|| found).clone())
    }
}

impl fmt::Debug for FeedLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FeedLog").field("feed", &self.feed).finish_non_exhaustive()
    }
}

impl Announce {
    /// Records the changes of a tree in the given log, if any, and the row of the call that makes them.
    pub(crate) fn new(inner: Arc<dyn Backend>, feed: Option<FeedLog>, scope: Arc<Scope>) -> Self {
        Self { inner, feed, scope, elsewhere: None }
    }

    /// Counts the changes as those of a mount outside the thread's state.
    pub(crate) fn counted(mut self, elsewhere: Option<Elsewhere>) -> Self {
        self.elsewhere = elsewhere;
        self
    }

    /// Returns who makes changes: the caller's scope, and the call if there is one. Other changes are calls of their own.
    fn author(&self, options: &ApplyOptions) -> Author {
        let mut author: Author = options.extensions.get().cloned().unwrap_or_default();
        let Scope { tenant, user, thread, agent, .. } = Scope::clone(&self.scope);
        (author.tenant, author.user, author.thread) = (tenant, user, thread);
        author.actor = author.actor.or(agent);
        author.call.get_or_insert_with(|| CheckpointId::new(Timestamp::now(), None).to_string());
        author
    }

    /// Applies changes to the inner tree, and counts them unless they certainly had no effect.
    async fn apply_counted(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        let Some(elsewhere) = &self.elsewhere else { return self.inner.apply(changes, options).await };
        // Count before applying: a future dropped halfway may have changed something.
        elsewhere.begin();
        let applied = self.inner.apply(changes, options).await;
        if let Err(error) = &applied
            && error.applied() == 0
            && !error.may_have_effect()
        {
            elsewhere.take_back();
        }
        applied
    }
}

/// The events of a batch in progress. If it is dropped before the batch ends, all of them are sent, because the outcome is
/// unknown.
struct Open(Option<(Arc<Events>, Receipt)>);

impl Open {
    /// Returns the events if no tier has taken them.
    fn untaken(&mut self) -> Option<Arc<Events>> {
        self.0.take().filter(|(_, receipt)| receipt.delivery() == Delivery::Ignored).map(|(events, _)| events)
    }

    /// Sends the events that the tree did not commit. Finishes even if the future is dropped.
    async fn end(mut self, applied: &Result<Vec<Changed>>) {
        let Some(events) = self.untaken() else { return };
        let (count, changed) = match applied {
            Ok(changed) => (events.count(), Some(changed.clone())),
            Err(error) if error.applied() > 0 => (error.applied(), None),
            Err(error) if Error::may_have_effect(error) => (events.count(), None),
            Err(_) => return,
        };
        let sent = tokio::spawn(async move { events.send(count, changed.as_deref()).await });
        if let Err(error) = sent.await {
            tracing::error!(%error, "sending the events of changes did not finish");
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // Without a runtime the process is exiting, and nothing can be written.
        if let Some(events) = self.untaken()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move { events.send(events.count(), None).await });
        }
    }
}

/// Displays as the inner backend, since it does not change what is visible.
impl fmt::Display for Announce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl Backend for Announce {
    forward_backend! { self => self.inner; capabilities, stat, read, ls, glob, grep, search, review }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        if changes.is_empty() {
            return self.inner.apply(changes, options).await;
        }
        let mut options = options.clone();
        options.extensions.insert(self.author(&options));
        let mut outbox = Outbox::of(&options.extensions);
        // These are separate entries, because the row of the call and the events may be in different stores.
        if let Some(CurrentCall(call)) = options.extensions.get() {
            outbox.push(CallEntry::of_change(call.clone()));
        }
        let log = match &self.feed {
            Some(feed_log) => feed_log.of(&self.scope).map_err(Error::without_effect)?.map(|log| (feed_log.feed.clone(), log)),
            None => None,
        };
        let events = log.map(|(feed, log)| {
            let drafts = changes.iter().map(Draft::of).collect();
            let events = Arc::new(Events::new(feed, log, Scope::clone(&self.scope), drafts));
            let receipt = outbox.push_shared(events.clone());
            (events, receipt)
        });
        options.extensions.insert(outbox);
        let open = Open(events);
        let applied = self.apply_counted(changes, &options).await;
        open.end(&applied).await;
        applied
    }
}
