//! The versions of a file: those of a history, or those in the checkpoints of a thread.

use super::{PAGE, author_of_checkpoint};
use crate::session::Session;
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::Arc;
#[cfg(doc)]
use treehold_core::error::ErrorKind;
use treehold_core::error::{Error, Result};
use treehold_core::ops::{Author, OpKind, Revision, Sight, StatOptions};
use treehold_core::path::VfsPath;
use treehold_core::scope::Scope;
use treehold_tree::backend::StateNode;
use treehold_tree::checkpoint::{At, Checkpoint, ListOptions};

/// How many checkpoints are compared for the log of one file.
const CHECKPOINTS_MAX: usize = 500;

/// The versions of one file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct FileLog {
    /// The versions, newest first.
    pub revisions: Vec<Revision>,
    /// Whether there may be older versions.
    pub more: bool,
}

impl Session {
    /// Returns up to `limit` versions of a file, newest first; the first is what is there now. A mount with a history has all recorded ones
    /// ([`Revision::number`]). The state of a thread has those of its checkpoints ([`Revision::checkpoint`]), of which up to 500 are compared.
    ///
    /// The author of a change that was made for another user is not shown.
    ///
    /// Cost: two round trips for a mount with a history; for a state one for each checkpoint.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for a path that never had a file or that the tree hides,
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for one whose content it hides, [`Unsupported`](ErrorKind::Unsupported) for a mount
    /// that keeps no past, and the errors of the store.
    pub async fn log(&self, path: &VfsPath, limit: usize) -> Result<FileLog> {
        if limit == 0 {
            return Err(Error::invalid_argument("a log of 0 versions shows nothing; set a limit of 1 or more"));
        }
        self.may_read(&[path]).await?;
        let (mount, history) = self.workspace.history_of(&self.scope, path)?;
        let within = path.strip_prefix(&mount).unwrap_or(VfsPath::ROOT);
        let mut log = match history {
            Some(tree) => {
                let revisions = tree.log(within).await.map_err(|error| error.rebased(&mount, &[]))?;
                FileLog { more: revisions.len() > limit, revisions }
            }
            None if self.is_state(path) && self.workspace.checkpointer().is_some() => self.log_of_state(within, limit).await?,
            None => {
                let message = format!("`{mount}` keeps no past of its files; set `history` on its route if that is of type `store`");
                return Err(Error::unsupported(message).at(path));
            }
        };
        log.revisions.truncate(limit);
        if log.revisions.is_empty() {
            return Err(match self.backend.stat(path, &StatOptions::new()).await {
                Ok(entry) if entry.is_directory() => Error::is_directory(path),
                Err(error) => error,
                Ok(_) => Error::not_found(path),
            });
        }
        for revision in &mut log.revisions {
            self.narrow(revision, &mount).await?;
        }
        Ok(log)
    }

    /// Maps a revision to the paths of the caller's tree, and removes what the caller may not see.
    async fn narrow(&self, revision: &mut Revision, mount: &VfsPath) -> Result<()> {
        revision.other = revision.other.take().map(|other| mount.concat(&other));
        if let Some(other) = &revision.other
            && self.sights(&[other]).await?.contains(&Sight::Hidden)
        {
            revision.other = None;
        }
        let author = &revision.author;
        if (&author.tenant, &author.user) != (&self.scope.tenant, &self.scope.user) {
            revision.author = Author::new();
        }
        Ok(())
    }

    /// Finds the checkpoints between which a file of the state changed.
    async fn log_of_state(&self, path: &VfsPath, limit: usize) -> Result<FileLog> {
        let checkpointer = self.thread.checkpointer()?;
        let mut log = FileLog::default();
        let mut newer: Option<(Checkpoint, Option<Arc<StateNode>>)> = None;
        let (mut options, mut looked) = (ListOptions::new().with_limit(PAGE), 0);
        loop {
            let page = checkpointer.list(&self.scope, &options).await?;
            for checkpoint in page.checkpoints {
                // It may be pruned meanwhile.
                let Some(opened) = checkpointer.open(&self.scope, At::Id(checkpoint.id)).await? else { continue };
                let node = opened.state.node(path).await?.filter(|node| !node.is_directory());
                if let Some((made, after)) = newer.take()
                    && after != node
                {
                    log.revisions.push(revision_of(&made, &self.scope, after.as_deref()));
                }
                newer = Some((checkpoint, node));
                looked += 1;
                if log.revisions.len() > limit || looked == CHECKPOINTS_MAX {
                    log.more = true;
                    return Ok(log);
                }
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => break,
            }
        }
        if let Some((made, Some(after))) = newer {
            log.revisions.push(revision_of(&made, &self.scope, Some(&after)));
        }
        log.more = log.revisions.len() > limit;
        Ok(log)
    }
}

/// Returns what a checkpoint made of a file.
fn revision_of(made: &Checkpoint, scope: &Scope, node: Option<&StateNode>) -> Revision {
    let operation = if node.is_some() { OpKind::Write } else { OpKind::Delete };
    let version = node.and_then(StateNode::version);
    let mut revision = Revision::new(0, made.created_at, operation, version, node.map_or(0, StateNode::size_bytes));
    revision.checkpoint = Some(made.id);
    revision.author = author_of_checkpoint(made, scope);
    revision
}
