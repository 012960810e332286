//! The past of files: their versions, reading and restoring them, and undoing calls.

use super::exchange::{Answer, Asked, json};
use super::fs;
use crate::rights::Access;
use axum::http::StatusCode;
use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use treehold_agent::session::{Session, Target, UndoOf};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Author, Changed};
use treehold_core::path::VfsPathBuf;

/// The most paths of one restore.
const PATHS_MAX: usize = 1_000;

/// The versions of a file.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LogQuery {
    /// The file.
    path: VfsPathBuf,
    /// The most versions, up to 1,000. Default 100.
    #[serde(default)]
    limit: Option<usize>,
}

pub(super) async fn log(asked: Asked) -> Answer {
    asked.caller.rights.need(Access::Read)?;
    let query: LogQuery = asked.query()?;
    let limit = super::threads::page(query.limit)?;
    let mut log = asked.session().await?.log(&query.path, limit).await?;
    for revision in &mut log.revisions {
        // As in the timeline, threads that the token does not allow are not named.
        if revision.author.thread.as_ref().is_some_and(|thread| asked.caller.rights.need_thread(thread).is_err()) {
            revision.author = Author::new();
        }
    }
    json(StatusCode::OK, log).await
}

/// Reads a file as of a moment.
pub(super) async fn read(asked: Asked) -> Answer {
    asked.caller.rights.need(Access::Read)?;
    let path = asked.path()?;
    let tree = asked.caller.door.workspace.tree_as_of(&asked.caller.scope, asked.param("moment")).await?;
    fs::read(&asked, tree, &path).await
}

/// What to restore.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RestoreRequest {
    /// Files and directories, up to 1,000.
    paths: Vec<VfsPathBuf>,
    /// The moment: a time, an age such as `2h`, `~1` or `v3` of a file, or a checkpoint by id or label.
    at: String,
}

pub(super) async fn restore(mut asked: Asked) -> Answer {
    asked.caller.rights.need(Access::Write)?;
    let request: RestoreRequest = asked.json().await?;
    if request.paths.len() > PATHS_MAX {
        return Err(Error::invalid_argument(format!("a request restores at most {PATHS_MAX} paths; use several")).into());
    }
    let request = &request;
    let work = |session: Session| -> BoxFuture<'_, Result<Vec<Changed>>> {
        Box::pin(async move { session.restore_files(&request.paths, &request.at).await })
    };
    let target = Target::Paths(request.paths.clone());
    let changed = asked.caller.door.threads().lasting(&asked.caller.scope, &target, work).await?;
    json(StatusCode::OK, changed).await
}

/// Whose newest call to undo.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Whose {
    /// That of the thread.
    #[default]
    Thread,
    /// That of any thread of the user; files with a history only.
    User,
}

/// What to undo.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct UndoRequest {
    /// Whose newest call. Default `thread`.
    of: Whose,
}

pub(super) async fn undo(mut asked: Asked) -> Answer {
    asked.caller.rights.need(Access::Write)?;
    let request: UndoRequest = asked.json().await?;
    if matches!(request.of, Whose::User) && !asked.caller.rights.threads.is_empty() {
        let message = "this token allows some threads, and the newest call of the user may be of another; undo that of a thread";
        return Err(Error::new(ErrorKind::PermissionDenied, message).into());
    }
    let of = match request.of {
        Whose::Thread => UndoOf::Thread,
        Whose::User => UndoOf::User,
    };
    json(StatusCode::OK, asked.caller.door.threads().undo(&asked.caller.scope, of).await?).await
}
