//! Threads and their history.

use super::exchange::{Answer, Asked, json, nothing};
use super::fs;
use crate::rights::Access;
use axum::http::StatusCode;
use futures::future::BoxFuture;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use treehold_agent::session::Session;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::path::VfsPathBuf;
use treehold_tree::checkpoint::{
    Checkpoint, CheckpointId, ListOptions, MergeOptions, MergeStrategy, PruneOptions, PutOptions, ThreadPage, find_checkpoint,
    with_checkpoint,
};

/// The most checkpoints, threads or differences of a page.
const PAGE_MAX: usize = 1_000;

/// A page of threads.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ThreadsQuery {
    /// Where the previous page ended: its `next`.
    cursor: Option<String>,
    /// The most threads. Default 100.
    limit: Option<usize>,
}

pub(super) async fn threads(asked: Asked) -> Answer {
    let query: ThreadsQuery = asked.query()?;
    let rights = &asked.caller.rights;
    rights.need(Access::Read)?;
    let (checkpointer, limit, session) = (asked.checkpointer()?, page(query.limit)?, asked.session().await?);
    let mut cursor = query.cursor;
    let mut shown = ThreadPage::default();
    loop {
        // Threads that the token may not see take no space on the page, and the cursor names only threads that were shown.
        let asked_for = if rights.threads.is_empty() { limit } else { PAGE_MAX };
        let page = checkpointer.threads(&asked.caller.scope, cursor.as_deref(), asked_for).await?;
        for thread in page.threads.into_iter().filter(|thread| rights.need_thread(&thread.thread).is_ok()) {
            if shown.threads.len() == limit {
                shown.next = shown.threads.last().map(|last| last.thread.clone());
                shown.threads = session.shown_threads(shown.threads).await?;
                return json(StatusCode::OK, shown).await;
            }
            shown.threads.push(thread);
        }
        match page.next {
            Some(next) if rights.threads.is_empty() => shown.next = Some(next),
            Some(next) => {
                cursor = Some(next);
                continue;
            }
            None => {}
        }
        shown.threads = session.shown_threads(shown.threads).await?;
        return json(StatusCode::OK, shown).await;
    }
}

/// Returns a thread by its newest checkpoint.
pub(super) async fn thread(asked: Asked) -> Answer {
    let newest = asked.checkpoint("latest").await?;
    json(StatusCode::OK, asked.session().await?.shown(newest).await?).await
}

pub(super) async fn delete(asked: Asked) -> Answer {
    asked.caller.rights.need(Access::Admin)?;
    asked.caller.door.workspace.delete_thread(&asked.caller.scope).await?;
    Ok(nothing(StatusCode::NO_CONTENT))
}

/// A page of checkpoints.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CheckpointsQuery {
    /// Only checkpoints with this label.
    label: Option<String>,
    /// Only checkpoints created at this time or later.
    since: Option<Timestamp>,
    /// Only checkpoints created before this time.
    until: Option<Timestamp>,
    /// Where the previous page ended: its `next`.
    cursor: Option<CheckpointId>,
    /// The most checkpoints. Default 100.
    limit: Option<usize>,
}

pub(super) async fn checkpoints(asked: Asked) -> Answer {
    asked.caller.rights.need(Access::Read)?;
    let query: CheckpointsQuery = asked.query()?;
    let mut options = ListOptions::new().with_limit(page(query.limit)?);
    options.label = query.label;
    options.since = query.since;
    options.until = query.until;
    options.start_after = query.cursor;
    let mut page = asked.checkpointer()?.list(&asked.caller.scope, &options).await?;
    page.checkpoints = asked.session().await?.shown_all(page.checkpoints).await?;
    if page.checkpoints.is_empty() {
        // An empty page requires that the thread exists.
        asked.checkpoint("latest").await?;
    }
    json(StatusCode::OK, page).await
}

/// What is recorded with a new checkpoint.
#[derive(Debug, Default, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NotesRequest {
    /// Its label.
    label: Option<String>,
    /// Its metadata.
    metadata: BTreeMap<String, String>,
}

impl NotesRequest {
    fn options(self) -> PutOptions {
        let mut options = PutOptions::new();
        options.label = self.label;
        options.metadata = self.metadata;
        options
    }
}

pub(super) async fn make_checkpoint(mut asked: Asked) -> Answer {
    asked.caller.rights.need(Access::Write)?;
    let notes: NotesRequest = asked.json().await?;
    let work = move |session: Session| -> BoxFuture<'static, Result<Checkpoint>> {
        let notes = notes.clone();
        Box::pin(async move { session.checkpoint(notes.options()).await })
    };
    let made = asked.caller.door.threads().lasting_history(&asked.caller.scope, work).await?;
    json(StatusCode::CREATED, made).await
}

pub(super) async fn checkpoint(asked: Asked) -> Answer {
    let found = asked.checkpoint(asked.param("checkpoint")).await?;
    json(StatusCode::OK, asked.session().await?.shown(found).await?).await
}

pub(super) async fn restore(mut asked: Asked) -> Answer {
    asked.caller.rights.need(Access::Write)?;
    let notes: NotesRequest = asked.json().await?;
    let (threads, scope, notes) = (asked.caller.door.threads(), &asked.caller.scope, &notes);
    let restore = |found: Checkpoint| -> BoxFuture<'_, Result<_>> {
        let notes = notes.clone();
        let work = move |session: Session| -> BoxFuture<'static, Result<Checkpoint>> {
            let notes = notes.clone();
            Box::pin(async move { session.restore(found.id, notes.options()).await })
        };
        Box::pin(async move { threads.lasting_history(scope, work).await })
    };
    json(StatusCode::CREATED, with_checkpoint(&*asked.checkpointer()?, scope, asked.param("checkpoint"), restore).await?).await
}

/// Reads a file as of a checkpoint.
pub(super) async fn read_at(asked: Asked) -> Answer {
    asked.caller.rights.need(Access::Read)?;
    let (workspace, scope) = (&asked.caller.door.workspace, &asked.caller.scope);
    let open = |found: Checkpoint| -> BoxFuture<'_, Result<_>> { Box::pin(workspace.tree_at(scope, found.id.into())) };
    let tree = with_checkpoint(&*asked.checkpointer()?, scope, asked.param("checkpoint"), open).await?;
    let path = asked.path()?;
    fs::read(&asked, tree, &path).await
}

/// The thread to create and its origin.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ForkRequest {
    /// The thread to create.
    thread: String,
    /// The checkpoint to start from: its id, its label, or a number of steps back such as `~1`. Default `latest`.
    #[serde(default)]
    at: Option<String>,
    /// Copies the whole thread with all its checkpoints instead. Default false.
    #[serde(default)]
    history: bool,
    /// The label of the first checkpoint.
    #[serde(default)]
    label: Option<String>,
}

pub(super) async fn fork(mut asked: Asked) -> Answer {
    asked.caller.rights.need(Access::Write)?;
    let request: ForkRequest = asked.json().await?;
    asked.caller.rights.need_thread(&request.thread)?;
    asked.caller.scope.clone().with_thread(&request.thread).validate()?;
    let session = asked.session().await?;
    if request.history {
        if request.at.is_some() || request.label.is_some() {
            return Err(Error::invalid_argument("a copy with `history` includes all checkpoints; leave `at` and `label` out").into());
        }
        let (newest, _) = session.copy_thread(&request.thread).await?;
        return json(StatusCode::CREATED, newest).await;
    }
    let mut options = PutOptions::new();
    options.label = request.label;
    let (session, to, options) = (&session, &*request.thread, &options);
    let fork = |found: Checkpoint| -> BoxFuture<'_, Result<_>> { Box::pin(session.fork(found.id.into(), to, options)) };
    let name = request.at.as_deref().unwrap_or("latest");
    json(StatusCode::CREATED, with_checkpoint(&*asked.checkpointer()?, &asked.caller.scope, name, fork).await?).await
}

/// Which checkpoint of which thread to merge, and how.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MergeRequest {
    /// The thread to merge.
    source: String,
    /// Its checkpoint. Default `latest`.
    #[serde(default)]
    at: Option<String>,
    /// How to resolve conflicts. By default, nothing is written if there are any.
    #[serde(default)]
    strategy: Option<MergeStrategy>,
    /// How to resolve conflicts at individual paths.
    #[serde(default)]
    resolutions: BTreeMap<VfsPathBuf, MergeStrategy>,
    /// Reports what would be done without writing anything. Default false.
    #[serde(default)]
    dry_run: bool,
    /// The label of the new checkpoint.
    #[serde(default)]
    label: Option<String>,
}

pub(super) async fn merge(mut asked: Asked) -> Answer {
    asked.caller.rights.need(Access::Write)?;
    let request: MergeRequest = asked.json().await?;
    asked.caller.rights.need_thread(&request.source)?;
    let theirs = asked.caller.scope.clone().with_thread(&request.source);
    theirs.validate()?;
    let name = request.at.as_deref().unwrap_or("latest");
    let mut options = MergeOptions::new();
    options.strategy = request.strategy;
    options.resolutions = request.resolutions.into_iter().map(|(path, strategy)| (path, strategy.into())).collect();
    options.dry_run = request.dry_run;
    options.label = request.label;
    let (threads, scope, source) = (asked.caller.door.threads(), &asked.caller.scope, &request.source);
    let merge = |found: Checkpoint| -> BoxFuture<'_, Result<_>> {
        let (source, options) = (source.clone(), options.clone());
        let work = move |session: Session| -> BoxFuture<'static, Result<treehold_tree::checkpoint::MergeOutcome>> {
            let (source, options) = (source.clone(), options.clone());
            Box::pin(async move { session.merge(&source, found.id.into(), options).await })
        };
        Box::pin(async move { threads.lasting_history(scope, work).await })
    };
    json(StatusCode::OK, with_checkpoint(&*asked.checkpointer()?, &theirs, name, merge).await?).await
}

/// Which two checkpoints to compare.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct DiffQuery {
    /// The older checkpoint. Default the one before the newest.
    from: Option<String>,
    /// The newer checkpoint. Default `latest`.
    to: Option<String>,
    /// Where the previous page ended: its `next`.
    cursor: Option<VfsPathBuf>,
    /// The most paths. Default 100.
    limit: Option<usize>,
}

pub(super) async fn compare(asked: Asked) -> Answer {
    asked.caller.rights.need(Access::Read)?;
    let query: DiffQuery = asked.query()?;
    let (older, newer) = (query.from.as_deref().unwrap_or("latest~1"), query.to.as_deref().unwrap_or("latest"));
    let checkpointer = asked.checkpointer()?;
    let mut states = Vec::with_capacity(2);
    let (checkpointer, scope) = (&*checkpointer, &asked.caller.scope);
    for name in [older, newer] {
        let open = |found: Checkpoint| -> BoxFuture<'_, Result<_>> {
            Box::pin(async move {
                let opened = checkpointer.open(scope, found.id.into()).await?;
                opened.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("the checkpoint `{name}` is gone")))
            })
        };
        states.push(with_checkpoint(checkpointer, scope, name, open).await?.state);
    }
    let session = asked.session().await?;
    json(StatusCode::OK, session.diff(&states[0], &states[1], query.cursor.as_deref(), page(query.limit)?).await?).await
}

/// Which checkpoints to delete: those that no given rule keeps.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PruneRequest {
    /// Keeps this many of the newest.
    keep_last: Option<u64>,
    /// Keeps those that are at most this old.
    older_than_seconds: Option<u64>,
    /// Keeps those with a label. Default false.
    keep_labelled: bool,
    /// Only counts, without deleting anything. Default false.
    dry_run: bool,
}

pub(super) async fn prune(mut asked: Asked) -> Answer {
    asked.caller.rights.need_history(Access::Admin)?;
    let request: PruneRequest = asked.json().await?;
    if request.keep_last.is_none() && request.older_than_seconds.is_none() {
        return Err(Error::invalid_argument("say what to keep: `keep_last`, `older_than_seconds`, or both").into());
    }
    let mut options = PruneOptions::new().with_keep_labelled(request.keep_labelled).with_dry_run(request.dry_run);
    options.keep_last = request.keep_last;
    options.older_than = request.older_than_seconds.map(Duration::from_secs);
    json(StatusCode::OK, asked.checkpointer()?.prune(&asked.caller.scope, &options).await?).await
}

/// A page of the audit log.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AuditQuery {
    /// Only calls after this call or checkpoint.
    after: Option<CheckpointId>,
    /// Only calls up to this checkpoint.
    until: Option<CheckpointId>,
    /// The most calls. Default 100.
    limit: Option<usize>,
}

/// Returns the audit log of a thread.
pub(super) async fn audit(asked: Asked) -> Answer {
    asked.caller.rights.need(Access::Admin)?;
    let query: AuditQuery = asked.query()?;
    json(StatusCode::OK, asked.session().await?.calls(query.after, query.until, page(query.limit)?).await?).await
}

/// Returns the prompt memory of the workspace, as text for a system prompt.
pub(super) async fn memory(asked: Asked) -> Answer {
    json(StatusCode::OK, asked.session().await?.memory_prompt().await).await
}

impl Asked {
    fn checkpointer(&self) -> Result<std::sync::Arc<dyn treehold_tree::checkpoint::Checkpointer>> {
        self.caller.door.threads().checkpointer()
    }

    /// Finds a checkpoint of the caller's thread by name.
    async fn checkpoint(&self, name: &str) -> Result<Checkpoint> {
        self.caller.rights.need(Access::Read)?;
        find_checkpoint(&*self.checkpointer()?, &self.caller.scope, name).await
    }
}

pub(super) fn page(limit: Option<usize>) -> Result<usize> {
    match limit {
        None => Ok(100),
        Some(limit) if (1..=PAGE_MAX).contains(&limit) => Ok(limit),
        Some(limit) => Err(Error::invalid_argument(format!("the limit {limit} is not between 1 and {PAGE_MAX}"))),
    }
}
