//! History routes: a checkpoint as a tree, opened by the first call.

use super::open::{OpenFiles, TreeId, check_fields};
use super::routes::{HISTORY_AT, HISTORY_THREAD};
use super::{Config, RouteConfig, Stores};
use async_trait::async_trait;
use futures::future::BoxFuture;
use std::fmt;
use std::sync::Arc;
use tokio::sync::OnceCell;
use treehold_core::error::{ErrorKind, Result};
use treehold_core::ops::{ApplyOptions, Capabilities, Change, Changed, Review, Sight};
use treehold_core::path::VfsPath;
use treehold_core::scope::{Scope, Template};
use treehold_tree::backend::{Backend, StateSnapshot};
use treehold_tree::checkpoint::{Checkpoint, Checkpointer, HistoryBackend, StoreCheckpointer, with_checkpoint};
use treehold_tree::forward_backend;

impl Config {
    /// Returns the opener of a history route.
    pub(super) fn history(&self, path: &str, route: &RouteConfig, stores: &Stores) -> Result<OpenFiles> {
        let template = Template::parse(route.thread.as_deref().unwrap_or(HISTORY_THREAD))?;
        let at = route.at.clone().unwrap_or_else(|| HISTORY_AT.to_owned());
        let checkpointer: Arc<dyn Checkpointer> = Arc::new(StoreCheckpointer::new(stores.get(&self.threads.store)?));
        let path = path.to_owned();
        Ok(Box::new(move |scope| {
            check_fields(&path, &template, template.fields(), scope)?;
            let mut scope = scope.clone().with_thread(template.fill(scope)?);
            scope.agent = None;
            scope.validate()?;
            let place = TreeId::History(scope.clone(), at.clone());
            let tree = History { checkpointer: checkpointer.clone(), scope, path: path.clone(), at: at.clone(), opened: OnceCell::new() };
            Ok((place, Arc::new(tree)))
        }))
    }
}

/// A checkpoint that is opened on first use. Failures are not cached: the next call tries again.
#[derive(Debug)]
struct History {
    checkpointer: Arc<dyn Checkpointer>,
    scope: Scope,
    path: String,
    at: String,
    opened: OnceCell<HistoryBackend>,
}

impl History {
    async fn tree(&self) -> Result<&HistoryBackend> {
        self.opened.get_or_try_init(|| self.open()).await
    }

    async fn open(&self) -> Result<HistoryBackend> {
        let open = async {
            let open = |found: Checkpoint| -> BoxFuture<'_, _> {
                Box::pin(async move { HistoryBackend::open(&*self.checkpointer, &self.scope, found.id.into()).await })
            };
            with_checkpoint(&*self.checkpointer, &self.scope, &self.at, open).await
        };
        open.await.map_err(|error| {
            let message = format!("the checkpoint of the route `{}` cannot be opened: {}", self.path, error.message());
            // The route lacks something, not the caller's path, so this must not read as not found.
            let kind = match error.kind() {
                ErrorKind::NotFound | ErrorKind::Ambiguous => ErrorKind::Unavailable,
                kind => kind,
            };
            error.with_message(message).with_kind(kind).at(VfsPath::ROOT)
        })
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.opened.get() {
            Some(tree) => tree.fmt(f),
            None => write!(f, "History({})", self.at),
        }
    }
}

#[async_trait]
impl Backend for History {
    fn capabilities(&self) -> Capabilities {
        StateSnapshot::default().capabilities()
    }

    forward_backend! { self => self.tree().await?; stat, read, ls, glob, grep, search }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        // The past takes no changes, whether or not it can be opened.
        StateSnapshot::default().apply(changes, options).await
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}
