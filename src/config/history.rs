//! History routes: a checkpoint as a tree, opened by the first call. Past routes: the files of a store route at a time.

use super::open::{OpenFiles, TreeId, check_fields, configured};
use super::routes::{HISTORY_AT, HISTORY_THREAD};
use super::{Config, DEFAULT_STORE, RouteConfig, Stores};
use async_trait::async_trait;
use futures::future::BoxFuture;
use jiff::Timestamp;
use std::fmt;
use std::sync::Arc;
use tokio::sync::OnceCell;
use treehold_core::clock::parse_time;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{ApplyOptions, Capabilities, Change, Changed, Moment, Review, Sight};
use treehold_core::path::VfsPath;
use treehold_core::scope::{NamespaceTemplate, Scope, Template};
use treehold_tree::backend::{Backend, StateSnapshot, StoreBackend};
use treehold_tree::checkpoint::{Checkpoint, Checkpointer, HistoryBackend, StoreCheckpointer, with_checkpoint};
use treehold_tree::forward_backend;

impl Config {
    /// Returns the opener of a history route.
    pub(super) fn history(&self, path: &str, route: &RouteConfig, stores: &Stores) -> Result<OpenFiles> {
        let template = Template::parse(route.thread.as_deref().unwrap_or(HISTORY_THREAD))?;
        let at = route.at.clone().unwrap_or_else(|| HISTORY_AT.to_owned());
        let checkpointer: Arc<dyn Checkpointer> = Arc::new(StoreCheckpointer::new(stores.get(&self.threads.store)?));
        let path = path.to_owned();
        Ok(Arc::new(move |scope| {
            check_fields(&path, &template, template.fields(), scope)?;
            let mut scope = scope.clone().with_thread(template.fill(scope)?);
            scope.agent = None;
            scope.validate()?;
            let place = TreeId::History(scope.clone(), at.clone());
            let tree = History { checkpointer: checkpointer.clone(), scope, path: path.clone(), at: at.clone(), opened: OnceCell::new() };
            Ok((place, Box::new(|| Arc::new(tree))))
        }))
    }
}

impl Config {
    /// Returns the opener of a past route. An age is counted back from when it is opened.
    pub(super) fn past_files(&self, path: &str, route: &RouteConfig, stores: &Stores) -> Result<OpenFiles> {
        let (of, at) = (route.of.clone().unwrap_or_default(), route.at.clone().unwrap_or_default());
        parse_time(&at, Timestamp::now())?;
        let shown = self.routes.get(&of).filter(|shown| shown.keeps_history(&of)).cloned();
        let missing = || Error::invalid_argument(format!("the route `{path}` shows the past of `{of}`, which keeps no history"));
        let shown = shown.ok_or_else(missing)?;
        let name: Arc<str> = shown.store.as_deref().unwrap_or(DEFAULT_STORE).into();
        let (store, template) = (stores.get(&name)?, NamespaceTemplate::parse(shown.namespace.as_deref().unwrap_or_default())?);
        let path = path.to_owned();
        Ok(Arc::new(move |scope| {
            check_fields(&path, &template, template.fields(), scope)?;
            let namespace = template.fill(scope)?;
            let place = TreeId::Past(Box::new(TreeId::Rows(name.clone(), namespace.clone())), at.clone());
            let moment = Moment::Time(parse_time(&at, Timestamp::now())?);
            let tree = configured(StoreBackend::new(store.clone(), namespace), &shown).at(moment)?;
            Ok((place, Box::new(|| Arc::new(tree))))
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
