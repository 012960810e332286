//! Undoing the newest call of a thread or user.

use super::calls::{UndoOf, UndoableCall};
use super::road::Road;
use super::{PAGE, RESTORE_BYTES_MAX, UNDOES};
use crate::feed::FeedEvent;
use crate::session::{Session, TOOL, Threads};
use futures::future::BoxFuture;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Author, Change, Changed, Entry, LsOptions, Sight};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::scope::Scope;
use treehold_tree::backend::Backend;
use treehold_tree::checkpoint::{At, Checkpoint, Head, PutOptions};

/// The tool that the author of an undone change names.
pub(super) const UNDO: &str = "undo";

/// A call that was undone.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Undone {
    /// The id of the call, or of the checkpoint if nothing else changed.
    pub call: String,
    /// When it was made.
    pub at: Timestamp,
    /// Who made it.
    pub author: Author,
    /// What the undo changed, in mounts with a history.
    pub files: Vec<Changed>,
    /// The checkpoint that the undo created, if the call had changed the state of the thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// The newest change of the thread, if it is newer than the call and in a mount without a past: it stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unkept: Option<VfsPathBuf>,
}

impl Session {
    /// Undoes the newest call of the thread, or of the user, that changed something and is not undone yet: a tool call, a command, or a batch
    /// of changes. Every file that it changed gets its earlier content; the state of the thread returns to the checkpoint before the call.
    ///
    /// It reverts what checkpoints and histories have kept. Changes of mounts without a past stay;
    /// [`mounts_without_past`](crate::workspace::Workspace::mounts_without_past) names those. An undo is a change too, and is never undone
    /// itself: call it again to undo the call before.
    ///
    /// A file that several mounts show is changed once, by a path at which the tree shows the file and permits the change. Files go through
    /// one mount together, in one batch, unless no mount permits all of them.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if nothing is left to undo or its content is not kept any more, [`Conflict`](ErrorKind::Conflict)
    /// if a file changed since in another way, [`PermissionDenied`](ErrorKind::PermissionDenied) if the call changed a file that the tree
    /// hides, [`TooLarge`](ErrorKind::TooLarge) if it replaced over 256 MiB or changed over 20,000 files of a mount at once, and the errors of
    /// reading and writing these paths. A thread that another writer saves meanwhile is a [`Conflict`](ErrorKind::Conflict) without a path.
    /// Nothing is undone then, unless the failure occurs between two mounts: the error says so, and a later undo continues with the rest of
    /// the call. Only where rules divide files among mounts of the same rows, it does not; restore the rest.
    pub async fn undo(&self, of: UndoOf) -> Result<Undone> {
        self.save().await?;
        let unkept = match of {
            UndoOf::Thread => self.newest_without_past().await?,
            UndoOf::User => None,
        };
        // Calls that left everything as it was.
        let mut idle = HashSet::new();
        loop {
            // Read before the calls: a checkpoint that another writer makes after that is not undone along with the call.
            let head = match self.workspace.checkpointer().filter(|_| of == UndoOf::Thread) {
                Some(checkpointer) => checkpointer.get(&self.scope, At::Latest).await?.and_then(|newest| newest.head),
                None => None,
            };
            let Some(mut call) = self.newest_call(of, &idle).await? else { return Err(nothing_to_undo(of)) };
            if let Some(made) = &call.checkpoint {
                // The first checkpoint of a fork holds what the other thread did.
                let is_forked = made.parent.as_ref().is_some_and(|parent| parent.thread.is_some());
                if is_forked && call.files.is_empty() {
                    return Err(nothing_to_undo(of));
                }
                if is_forked || !self.is_change(made, call.last.as_ref().unwrap_or(made)).await? {
                    call.checkpoint = None;
                }
            }
            let changes = self.reversal(&call).await?;
            if changes.is_empty() && call.checkpoint.is_none() {
                idle.insert(call.id);
                continue;
            }
            let files = self.apply_as(&changes, self.author_of(UNDO, Some(&call.id))).await?;
            let checkpoint = match &call.checkpoint {
                Some(made) => Some(self.undo_checkpoint(made, &call.id, head).await.map_err(|error| half_undone(error, files.is_empty()))?),
                None => None,
            };
            let unkept = unkept.filter(|change| change.at > call.at).map(|change| change.path);
            return Ok(Undone { call: call.id, at: call.at, author: call.author, files, checkpoint, unkept });
        }
    }

    /// Returns the newest change of the thread, if it is in a mount of which no past is kept, as far as the feed recorded it. An undo
    /// reverts an older change then, which its caller may not expect.
    ///
    /// Cost: one read of the feed.
    ///
    /// # Errors
    /// The errors of the feed.
    pub async fn newest_without_past(&self) -> Result<Option<FeedEvent>> {
        let Some(feed) = self.workspace.feed() else { return Ok(None) };
        let view = self.workspace.feed_view(&self.scope)?.with_threads(self.scope.thread.clone());
        // Other threads change shared mounts, too.
        let page = feed.before(&view, None, None, PAGE).await?;
        let newest = page.events.into_iter().find(|event| event.thread == self.scope.thread);
        let is_unkept = |path: &VfsPath| {
            let mount = self.workspace.mount_of(path);
            self.workspace.mounts_without_past().any(|other| other == mount)
        };
        Ok(newest.filter(|event| is_unkept(&event.path)))
    }

    /// Returns whether the checkpoints of a call, from `first` to `last`, changed the tree. One that is made for its label did not.
    async fn is_change(&self, first: &Checkpoint, last: &Checkpoint) -> Result<bool> {
        let Some(parent) = &first.parent else { return Ok(last.entries > 0) };
        let checkpointer = self.thread.checkpointer()?;
        let (before, after) =
            futures::try_join!(checkpointer.open(&self.scope, At::Id(parent.id)), checkpointer.open(&self.scope, At::Id(last.id)))?;
        match (before, after) {
            (Some(before), Some(after)) => Ok(!after.state.differences(&before.state, None, 1).await?.is_empty()),
            // One of them was pruned, which the restore reports.
            _ => Ok(true),
        }
    }

    /// Returns the changes that give the files of a call their earlier content, each by a path at which the tree shows the file and permits
    /// the change.
    async fn reversal(&self, call: &UndoableCall) -> Result<Vec<Change>> {
        let mut shown = Vec::with_capacity(call.files.len());
        let mut touched: Vec<VfsPathBuf> = Vec::new();
        for (mounts, _, recorded) in &call.files {
            let files = self.shown_by(mounts, &recorded.paths).await?;
            if files.iter().any(|(sight, _)| *sight == Sight::Hidden) {
                // As in a review, a hidden path is not named.
                let message = "the newest change includes files that are hidden from this caller, and was not undone";
                return Err(Error::new(ErrorKind::PermissionDenied, message));
            }
            touched.extend(recorded.paths.iter().zip(&files).map(|(path, (_, by))| mounts[by[0]].concat(path)));
            shown.push(files);
        }
        self.may_read(&touched.iter().map(|path| &**path).collect::<Vec<&VfsPath>>()).await?;
        let mut changes = Vec::new();
        let mut left = RESTORE_BYTES_MAX;
        for ((mounts, tree, recorded), files) in call.files.iter().zip(&shown) {
            let reversal = tree.reversal(recorded, left).await;
            let by: BTreeMap<&VfsPath, &[usize]> = recorded.paths.iter().zip(files).map(|(path, (_, by))| (&**path, &by[..])).collect();
            let mounts_of = |path: &VfsPath| by.get(path).copied().unwrap_or(&[0]);
            let reversal = reversal.map_err(|error| {
                let mount = error.path().map_or(0, |path| mounts_of(path)[0]);
                error.rebased(&mounts[mount], &[])
            })?;
            let mut roads = Vec::with_capacity(reversal.len());
            for change in reversal {
                if let Change::Write { content, .. } = &change {
                    left = left.saturating_sub(content.len() as u64);
                }
                let by = |mount: &usize| -> Result<Road> {
                    let change = change.try_map_paths(|path| Ok::<_, Error>(mounts[*mount].concat(path)))?;
                    Ok(Road { mount: *mount, change })
                };
                roads.push(mounts_of(change.path()).iter().map(by).collect::<Result<Vec<Road>>>()?);
            }
            changes.extend(self.by_permitted_roads(roads).await?);
        }
        Ok(changes)
    }

    /// Returns the state to the checkpoint before another, if the thread still has this head.
    async fn undo_checkpoint(&self, made: &Checkpoint, id: &str, head: Option<Head>) -> Result<Checkpoint> {
        let mut notes = PutOptions::new().with_head(head);
        notes.metadata.insert(UNDOES.to_owned(), id.to_owned());
        notes.metadata.insert(TOOL.to_owned(), UNDO.to_owned());
        if let Some(parent) = &made.parent {
            return self.restore(parent.id, notes).await.map_err(|error| match error.kind() {
                ErrorKind::NotFound => {
                    let message = "undo reaches no further: the checkpoint before the newest change was removed, such as by a rule of \
                        retention, or the whole thread was";
                    error.with_message(message)
                }
                _ => error,
            });
        }
        // Before the first checkpoint, the state was empty.
        let root = [VfsPathBuf::root()];
        let places = if self.tree.places().is_empty() { &root[..] } else { self.tree.places() };
        let opened = self.thread.checkpointer()?.open(&self.scope, At::Id(made.id)).await?;
        let opened = opened.ok_or_else(|| Error::new(ErrorKind::NotFound, "the checkpoint to undo was pruned meanwhile"))?;
        let entries = opened.state.ls(VfsPath::ROOT, &LsOptions::new().with_limit(usize::MAX)).await?.entries;
        let delete = |place: &VfsPathBuf, entry: &Entry| Change::Delete { path: place.concat(&entry.path), recursive: true, expect: None };
        let roads = |entry: &Entry| -> Vec<Road> {
            let all = places.iter().enumerate();
            // Where another mount hides the path, the state is not changed by it.
            let having = all.clone().filter(|(_, place)| *self.workspace.mount_of(&place.concat(&entry.path)) == ***place);
            let road = |(mount, place): (usize, &VfsPathBuf)| Road { mount, change: delete(place, entry) };
            let roads: Vec<Road> = having.map(road).collect();
            if roads.is_empty() { all.map(road).collect() } else { roads }
        };
        let changes = self.by_permitted_roads(entries.iter().map(roads).collect()).await?;
        self.apply_as(&changes, self.author_of(UNDO, Some(id))).await?;
        self.checkpoint(notes).await
    }
}

impl Threads {
    /// Undoes the newest call of a thread or of its user, as [`Session::undo`] does, and saves the thread.
    ///
    /// # Errors
    /// The errors of [`Session::undo`] and of [`Threads::lasting_history`].
    pub async fn undo(&self, scope: &Scope, of: UndoOf) -> Result<Undone> {
        let work = |session: Session| -> BoxFuture<'_, Result<Result<Undone>>> {
            Box::pin(async move {
                match session.undo(of).await {
                    // Another writer saved the thread: the undo is repeated on its new head.
                    Err(error) if error.kind() == ErrorKind::Conflict && error.path().is_none() && !error.may_have_effect() => Err(error),
                    undone => Ok(undone),
                }
            })
        };
        self.lasting_history(scope, work).await?
    }
}

fn nothing_to_undo(of: UndoOf) -> Error {
    let message = match of {
        UndoOf::Thread => "this thread has made no change that can be undone; undo those of the user to include other threads",
        UndoOf::User => "this user has made no change of files with a history that can be undone",
    };
    Error::new(ErrorKind::NotFound, message)
}

/// Adds to an error of returning the state whether files of other mounts were reverted before.
fn half_undone(error: Error, is_nothing_done: bool) -> Error {
    if is_nothing_done {
        return error;
    }
    let message = format!("files of other mounts are undone, the thread's state is not, and a later undo tries that: {}", error.message());
    error.with_message(message).with_unknown_effect()
}
