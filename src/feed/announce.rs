//! A mount whose changes are told of.

use super::{Draft, Feed, Outbox};
use crate::audit::OpenCall;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions,
    ReadOptions, Review, SearchOptions, SearchResult, Sight,
};
use crate::path::VfsPath;
use crate::scope::Scope;
use crate::session::Elsewhere;
use crate::store::{Namespace, Ride, Rider};
use async_trait::async_trait;
use std::fmt;
use std::sync::Arc;

/// Hands the events of each change down with it, and sends those that the tree beneath leaves.
#[derive(Debug)]
pub(crate) struct Announce {
    inner: Arc<dyn Backend>,
    feed: Option<(Arc<Feed>, Namespace)>,
    scope: Scope,
    /// Counts the changes, where they are not those of the thread's state.
    elsewhere: Option<Elsewhere>,
}

impl Announce {
    /// Tells of the changes of a tree in a log; without one the record of calls goes down alone.
    pub(crate) fn new(inner: Arc<dyn Backend>, feed: Option<(Arc<Feed>, Namespace)>, scope: Scope) -> Self {
        Self { inner, feed, scope, elsewhere: None }
    }

    /// Counts the changes as those of a mount that is not the thread's state.
    pub(crate) fn counted(mut self, elsewhere: Option<Elsewhere>) -> Self {
        self.elsewhere = elsewhere;
        self
    }

    /// Applies changes beneath, and counts them unless they are known to have changed nothing.
    async fn apply_counted(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        let Some(elsewhere) = &self.elsewhere else { return self.inner.apply(changes, options).await };
        // Before they begin: a future that is dropped half-way may have changed something.
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

/// The events of a batch that runs. Dropped before it ended, they are all sent: nobody knows what was done.
struct Open(Option<Arc<Outbox>>);

impl Open {
    /// Sends what the tree left; to the end even when the future is dropped.
    async fn end(mut self, applied: &Result<Vec<Changed>>) {
        let Some(outbox) = self.0.take().filter(|outbox| !outbox.is_taken()) else { return };
        let count = match applied {
            Ok(changed) => {
                outbox.know(changed);
                outbox.count()
            }
            Err(error) if error.applied() > 0 => error.applied(),
            Err(error) if Error::may_have_effect(error) => outbox.count(),
            Err(_) => return,
        };
        if count == 0 {
            return;
        }
        let sent = tokio::spawn(async move { outbox.send(count).await });
        if let Err(error) = sent.await {
            tracing::error!(%error, "the events of changes were not finished");
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // Without a runtime the process ends; then there is nothing that could write.
        if let Some(outbox) = self.0.take().filter(|outbox| !outbox.is_taken())
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move { outbox.send(outbox.count()).await });
        }
    }
}

/// It changes nothing of what is seen, so it is drawn as what is in it.
impl fmt::Display for Announce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl Backend for Announce {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn stat(&self, path: &VfsPath) -> Result<Entry> {
        self.inner.stat(path).await
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        self.inner.read(path, options).await
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        self.inner.ls(path, options).await
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        self.inner.glob(path, options).await
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        self.inner.grep(path, options).await
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        self.inner.search(path, options).await
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        if changes.is_empty() {
            return self.inner.apply(changes, options).await;
        }
        let mut options = options.clone();
        // Each by itself: the record of calls may be kept in another store than events.
        if let Some(call) = OpenCall::current() {
            options.along.push(Rider(Arc::new(Outbox::new(Some(call)))));
        }
        let Some((feed, log)) = &self.feed else { return self.apply_counted(changes, &options).await };
        let drafts = changes.iter().map(Draft::of).collect();
        let outbox = Arc::new(Outbox::new(None).with_events(feed.clone(), log.clone(), self.scope.clone(), drafts));
        options.along.push(Rider(outbox.clone()));
        let open = Open(Some(outbox));
        let applied = self.apply_counted(changes, &options).await;
        open.end(&applied).await;
        applied
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        self.inner.review(review).await
    }
}
