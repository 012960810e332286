//! The past of files: their versions, restoring them, and undoing calls, within the rules of the session's tree.
//!
//! `log` lists versions, `restore` writes them again, and `undo` reverts the call that `calls` finds. `road` chooses the paths of the
//! changes where several mounts show the same rows.

mod calls;
mod log;
mod restore;
mod road;
mod undo;

pub use calls::UndoOf;
pub use log::FileLog;
pub use undo::Undone;

use super::{ACTOR, Session, TOOL, TOOL_CALL_ID};
use jiff::Timestamp;
use std::collections::BTreeMap;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{ApplyOptions, Author, Change, Changed, Difference, Review, ReviewPurpose, Sight, Standing};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::scope::Scope;
use treehold_tree::checkpoint::{Checkpoint, CheckpointId};

/// The metadata key of a checkpoint for the id of the call that created it. Set if the call may have made other checkpoints, or changes of
/// other mounts: an undo reverts all of them.
pub const CALL: &str = "call";

/// The metadata key of a checkpoint for the id of what it undoes.
pub const UNDOES: &str = "undoes";

/// The number of calls or checkpoints that are read at once.
const PAGE: usize = 50;

/// The most bytes of content that one restore or undo reads.
const RESTORE_BYTES_MAX: u64 = 256 << 20;

impl Session {
    /// Returns the mounts outside the thread's state, in path order: what checkpoints neither hold nor restore. Only those that the caller
    /// may know of.
    pub fn mounts_outside_state(&self) -> Vec<VfsPathBuf> {
        self.workspace.visible_mounts().filter(|mount| !self.is_state(mount)).map(VfsPath::to_owned).collect()
    }

    fn author_of(&self, tool: &str, undoes: Option<&str>) -> Author {
        let mut author = Author::new();
        author.tool = Some(tool.to_owned());
        author.undoes = undoes.map(str::to_owned);
        author.call = Some(CheckpointId::new(Timestamp::now(), None).to_string());
        author
    }

    /// Applies changes, in one batch for each mount.
    async fn apply_as(&self, changes: &[Change], author: Author) -> Result<Vec<Changed>> {
        let mut mounts: BTreeMap<&VfsPath, Vec<Change>> = BTreeMap::new();
        for change in changes {
            mounts.entry(self.workspace.mount_of(change.path())).or_default().push(change.clone());
        }
        let options = ApplyOptions::new().with_extension(author);
        let mut changed = Vec::with_capacity(changes.len());
        for (mount, changes) in mounts {
            let applied = self.backend.apply(&changes, &options).await.map_err(|error| {
                if changed.is_empty() {
                    return error;
                }
                let message = format!("{}; what lies in mounts before `{mount}` is done", error.message());
                error.with_message(message).with_unknown_effect()
            });
            changed.extend(applied?);
        }
        Ok(changed)
    }

    /// Returns how much of each path may be shown.
    async fn sights(&self, paths: &[&VfsPath]) -> Result<Vec<Sight>> {
        let file = Some(Standing::File(0));
        let differences = paths.iter().map(|path| Difference::new(path.to_owned(), file, file)).collect();
        self.backend.review(&Review::new(ReviewPurpose::Show, VfsPathBuf::root(), differences)).await
    }

    /// Checks that the content of each path may be read.
    async fn may_read(&self, paths: &[&VfsPath]) -> Result<()> {
        for (path, sight) in paths.iter().zip(self.sights(paths).await?) {
            match sight {
                Sight::Open => {}
                Sight::Named => {
                    let message = format!("`{path}` may not be read, so its past is not shown either");
                    return Err(Error::new(ErrorKind::PermissionDenied, message).at(path));
                }
                Sight::Hidden => return Err(Error::not_found(path)),
            }
        }
        Ok(())
    }
}

/// Returns who made a checkpoint of the thread of a scope.
fn author_of_checkpoint(made: &Checkpoint, scope: &Scope) -> Author {
    let mut author = Author::new();
    let Scope { tenant, user, thread, .. } = scope.clone();
    (author.tenant, author.user, author.thread) = (tenant, user, thread);
    let noted = |key: &str| made.metadata.get(key).cloned();
    (author.tool, author.tool_call_id, author.actor) = (noted(TOOL), noted(TOOL_CALL_ID), noted(ACTOR));
    author
}

#[cfg(test)]
mod tests;
