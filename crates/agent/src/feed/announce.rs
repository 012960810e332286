//! A wrapper around a mount that records its changes as events.

use super::{Draft, Feed, Outbox};
use crate::audit::OpenCall;
use crate::session::Elsewhere;
use async_trait::async_trait;
use std::fmt;
use std::sync::Arc;
use treehold_core::error::{Error, Result};
use treehold_core::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions,
    ReadOptions, Review, SearchOptions, SearchResult, Sight,
};
use treehold_core::path::VfsPath;
use treehold_core::scope::Scope;
use treehold_store::{Namespace, Ride, Rider};
use treehold_tree::backend::Backend;

/// Attaches the events of each change to it, and sends those that the inner tree does not commit.
#[derive(Debug)]
pub(crate) struct Announce {
    inner: Arc<dyn Backend>,
    feed: Option<(Arc<Feed>, Namespace)>,
    scope: Scope,
    /// If set, counts the changes as changes outside the thread's state.
    elsewhere: Option<Elsewhere>,
}

impl Announce {
    /// Records the changes of a tree in the given log, if any. The call record always goes along.
    pub(crate) fn new(inner: Arc<dyn Backend>, feed: Option<(Arc<Feed>, Namespace)>, scope: Scope) -> Self {
        Self { inner, feed, scope, elsewhere: None }
    }

    /// Counts the changes as those of a mount outside the thread's state.
    pub(crate) fn counted(mut self, elsewhere: Option<Elsewhere>) -> Self {
        self.elsewhere = elsewhere;
        self
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
struct Open(Option<Arc<Outbox>>);

impl Open {
    /// Sends the events that the tree did not commit. Finishes even if the future is dropped.
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
            tracing::error!(%error, "sending the events of changes did not finish");
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // Without a runtime the process is exiting, and nothing can be written.
        if let Some(outbox) = self.0.take().filter(|outbox| !outbox.is_taken())
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move { outbox.send(outbox.count()).await });
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
        // Separate riders, because the call record may be in another store than the events.
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
