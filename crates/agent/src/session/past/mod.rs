//! The past of files: their versions, restoring them, and undoing calls, within the rules of the session's tree.

use super::{ACTOR, Session, TOOL, TOOL_CALL_ID, Threads};
use crate::feed::FeedEvent;
use crate::workspace::time_of;
use bytes::Bytes;
use futures::future::BoxFuture;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{
    ApplyOptions, Author, CHANGES_MAX, Change, Changed, Difference, Entry, Forgotten, GlobOptions, LsOptions, OnFailure, OpKind,
    ReadOptions, Review, ReviewPurpose, Revision, Sight, Standing, StatOptions, WriteMode,
};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::scope::Scope;
use treehold_tree::backend::{Backend, RecordedCall, StateNode, StoreBackend};
use treehold_tree::checkpoint::{At, Checkpoint, CheckpointId, Head, ListOptions, PutOptions};

/// The metadata key of a checkpoint for the id of the call that created it. Set if the call may have made other checkpoints, or changes of
/// other mounts: an undo reverts all of them.
pub const CALL: &str = "call";

/// The metadata key of a checkpoint for the id of what it undoes.
pub const UNDOES: &str = "undoes";

/// The tool that the author of a restored file names.
const RESTORE: &str = "restore";

/// The tool that the author of an undone change names.
const UNDO: &str = "undo";

/// How many checkpoints are compared for the log of one file.
const CHECKPOINTS_MAX: usize = 500;

/// The number of calls or checkpoints that are read at once.
const PAGE: usize = 50;

/// How many calls and checkpoints an undo looks through.
const CALLS_MAX: usize = 10_000;

/// The most bytes of content that one restore or undo reads.
const RESTORE_BYTES_MAX: u64 = 256 << 20;

/// The versions of one file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct FileLog {
    /// The versions, newest first.
    pub revisions: Vec<Revision>,
    /// Whether there may be older versions.
    pub more: bool,
}

/// Whose calls an undo reverts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UndoOf {
    /// Those of the session's thread.
    #[default]
    Thread,
    /// Those of all threads of its user. Only files with a history are reverted, because a state belongs to its thread.
    User,
}

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
    /// Returns the mounts outside the thread's state, in path order: what checkpoints neither hold nor restore. Only those that the caller
    /// may know of.
    pub fn mounts_outside_state(&self) -> Vec<VfsPathBuf> {
        self.workspace.visible_mounts().filter(|mount| !self.is_state(mount)).map(VfsPath::to_owned).collect()
    }

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

    /// Restores files and directories to what they were at a moment, as [`Workspace::tree_as_of`](crate::workspace::Workspace::tree_as_of)
    /// names it. A path that did not exist then is removed. A directory gets the files that it had; what it has besides is removed.
    ///
    /// Returns the changes; files that are as they were are left alone. Paths in several mounts are restored in as many steps.
    ///
    /// Cost: reads all content, then and now.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) for a mount that keeps no past, [`NotFound`](ErrorKind::NotFound) for a path that existed
    /// neither then nor now, [`TooLarge`](ErrorKind::TooLarge) for over 256 MiB or 20,000 changes, [`Conflict`](ErrorKind::Conflict) if a
    /// file changes meanwhile, and the errors of reading and writing these paths.
    pub async fn restore_files(&self, paths: &[VfsPathBuf], at: &str) -> Result<Vec<Changed>> {
        let changes = self.plan_restore(paths, at).await?;
        self.apply_as(&changes, self.author_of(RESTORE, None)).await
    }

    /// Returns the changes that [`Session::restore_files`] would make now, and makes none. A directory that did not exist then is one
    /// recursive removal.
    ///
    /// Cost: reads all content, then and now.
    ///
    /// # Errors
    /// As [`Session::restore_files`], without those of writing.
    pub async fn plan_restore(&self, paths: &[VfsPathBuf], at: &str) -> Result<Vec<Change>> {
        let past = self.workspace.tree_as_of(&self.scope, at).await?;
        let mut changes = Restoration { now: &*self.backend, past: &*past, left: RESTORE_BYTES_MAX, changes: Vec::new() };
        for path in paths {
            changes.restore(path).await?;
        }
        Ok(changes.changes)
    }

    /// Undoes the newest call of the thread, or of the user, that changed something and is not undone yet: a tool call, a command, or a batch
    /// of changes. Every file that it changed gets its earlier content; the state of the thread returns to the checkpoint before the call.
    ///
    /// It reverts what checkpoints and histories have kept. Changes of mounts without a past stay;
    /// [`mounts_without_past`](crate::workspace::Workspace::mounts_without_past) names those. An undo is a change too, and is never undone
    /// itself: call it again to undo the call before.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if nothing is left to undo or its content is not kept any more, [`Conflict`](ErrorKind::Conflict)
    /// if a file changed since in another way, [`PermissionDenied`](ErrorKind::PermissionDenied) if the call changed a file that the tree
    /// hides, [`TooLarge`](ErrorKind::TooLarge) if it replaced over 256 MiB or changed over 20,000 files of a mount at once, and the errors of
    /// reading and writing these paths. A thread that another writer saves meanwhile is a [`Conflict`](ErrorKind::Conflict) without a path.
    /// Nothing is undone then, unless the failure occurs between two mounts: the error says so, and a later undo continues with the rest of
    /// the call.
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

    /// Returns the changes that give the files of a call their earlier content.
    async fn reversal(&self, call: &UndoableCall) -> Result<Vec<Change>> {
        let touched: Vec<VfsPathBuf> =
            call.files.iter().flat_map(|(mount, _, recorded)| recorded.paths.iter().map(|path| mount.concat(path))).collect();
        let touched: Vec<&VfsPath> = touched.iter().map(|path| &**path).collect();
        if self.sights(&touched).await?.contains(&Sight::Hidden) {
            // As in a review, a hidden path is not named.
            let message = "the newest change includes files that are hidden from this caller, and was not undone";
            return Err(Error::new(ErrorKind::PermissionDenied, message));
        }
        self.may_read(&touched).await?;
        let mut changes = Vec::new();
        let mut left = RESTORE_BYTES_MAX;
        for (mount, tree, recorded) in &call.files {
            let reversal = tree.reversal(recorded, left).await.map_err(|error| error.rebased(mount, &[]))?;
            for change in reversal {
                if let Change::Write { content, .. } = &change {
                    left = left.saturating_sub(content.len() as u64);
                }
                changes.push(change.try_map_paths(|path| Ok::<_, Error>(mount.concat(path)))?);
            }
        }
        Ok(changes)
    }

    /// Returns the state to the checkpoint before another, if the thread still has this head.
    async fn undo_checkpoint(&self, made: &Checkpoint, id: &str, head: Option<Head>) -> Result<Checkpoint> {
        let mut notes = PutOptions::new().with_head(head);
        notes.metadata.insert(UNDOES.to_owned(), id.to_owned());
        notes.metadata.insert(TOOL.to_owned(), UNDO.to_owned());
        if let Some(parent) = &made.parent {
            return self.restore(parent.id, notes).await;
        }
        // Before the first checkpoint, the state was empty.
        let place = self.tree.places().first().cloned().unwrap_or_else(VfsPathBuf::root);
        let opened = self.thread.checkpointer()?.open(&self.scope, At::Id(made.id)).await?;
        let opened = opened.ok_or_else(|| Error::new(ErrorKind::NotFound, "the checkpoint to undo was pruned meanwhile"))?;
        let entries = opened.state.ls(VfsPath::ROOT, &LsOptions::new().with_limit(usize::MAX)).await?.entries;
        let delete = |entry: Entry| Change::Delete { path: place.concat(&entry.path), recursive: true, expect: None };
        let changes: Vec<Change> = entries.into_iter().map(delete).collect();
        self.apply_as(&changes, self.author_of(UNDO, Some(id))).await?;
        self.checkpoint(notes).await
    }

    /// Finds the newest call that is not an undo, not undone, and not idle. What an earlier undo reverted of it is left out.
    async fn newest_call(&self, of: UndoOf, idle: &HashSet<String>) -> Result<Option<UndoableCall>> {
        let mut author = Author::new();
        (author.tenant, author.user) = (self.scope.tenant.clone(), self.scope.user.clone());
        let thread = (of == UndoOf::Thread).then(|| self.scope.thread.clone());
        let trees = self.workspace.histories(&self.scope)?;
        let mut sources: Vec<Source> = trees.into_iter().map(|(mount, tree)| Source::of_tree(mount, tree, author.clone())).collect();
        if of == UndoOf::Thread && self.workspace.checkpointer().is_some() {
            sources.push(Source::of_checkpoints(self));
        }
        // By source: an undo of the user's files leaves the state alone, and an undo can fail between two mounts.
        let mut undone: HashSet<(usize, String)> = HashSet::new();
        let mut found: Option<UndoableCall> = None;
        for _ in 0..CALLS_MAX {
            let mut newest: Option<(usize, Timestamp)> = None;
            for (index, source) in sources.iter_mut().enumerate() {
                if let Some(at) = source.peek().await?
                    && newest.is_none_or(|(_, newest)| at > newest)
                {
                    newest = Some((index, at));
                }
            }
            let Some((index, at)) = newest else { break };
            // Nothing that a call did is older than its id.
            if found.as_ref().is_some_and(|found| at < found.began) {
                break;
            }
            let Some(step) = sources[index].pop() else { break };
            // An undo counts from whichever thread it was made.
            if let Some(undoes) = &step.undoes {
                undone.insert((index, undoes.clone()));
                continue;
            }
            if undone.contains(&(index, step.id.clone())) || idle.contains(&step.id) {
                continue;
            }
            if thread.as_ref().is_some_and(|thread| step.author.thread != *thread) {
                continue;
            }
            match &mut found {
                Some(found) if found.id == step.id => found.add(step),
                Some(_) => {}
                None => found = Some(UndoableCall::of(step)),
            }
        }
        Ok(found)
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

/// Returns what a checkpoint made of a file.
fn revision_of(made: &Checkpoint, scope: &Scope, node: Option<&StateNode>) -> Revision {
    let operation = if node.is_some() { OpKind::Write } else { OpKind::Delete };
    let version = node.and_then(StateNode::version);
    let mut revision = Revision::new(0, made.created_at, operation, version, node.map_or(0, StateNode::size_bytes));
    revision.checkpoint = Some(made.id);
    revision.author = author_of_checkpoint(made, scope);
    revision
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

/// What a restore changes.
struct Restoration<'t> {
    now: &'t dyn Backend,
    past: &'t dyn Backend,
    /// How many more bytes may be read.
    left: u64,
    changes: Vec<Change>,
}

impl Restoration<'_> {
    async fn restore(&mut self, path: &VfsPath) -> Result<()> {
        let (then, now) = (entry_at(self.past, path).await?, entry_at(self.now, path).await?);
        match (then, now) {
            (None, None) => Err(Error::not_found(path)),
            (None, Some(now)) if now.is_directory() => self.push(Change::Delete { path: now.path, recursive: true, expect: None }),
            (None, Some(now)) => self.push(Change::Delete { path: now.path, recursive: false, expect: now.version }),
            (Some(then), now) if then.is_directory() => self.restore_directory(path, now).await,
            (Some(then), now) => self.restore_file(&then.path, now).await,
        }
    }

    async fn restore_file(&mut self, path: &VfsPath, now: Option<Entry>) -> Result<()> {
        let content = self.read(self.past, path).await?;
        let mode = match &now {
            Some(now) if now.is_directory() => {
                let message = format!("`{path}` was a file and is a directory now; delete it first, or restore what lies above it");
                return Err(Error::new(ErrorKind::IsDirectory, message).at(path));
            }
            Some(now) if self.read(self.now, path).await? == content && now.size_bytes == content.len() as u64 => return Ok(()),
            Some(now) => now.version.map_or(WriteMode::Overwrite, WriteMode::IfVersion),
            None => WriteMode::CreateNew,
        };
        self.push(Change::Write { path: path.to_owned(), content, mode })
    }

    async fn restore_directory(&mut self, path: &VfsPath, now: Option<Entry>) -> Result<()> {
        let mut files = match now {
            Some(now) if now.is_directory() => files_beneath(self.now, path).await?,
            Some(now) => {
                self.push(Change::Delete { path: now.path, recursive: false, expect: now.version })?;
                BTreeMap::new()
            }
            None => BTreeMap::new(),
        };
        let then = files_beneath(self.past, path).await?;
        // Removals come first: a file may stand where a directory was.
        for (path, entry) in files.iter().filter(|(path, _)| !then.contains_key(*path)) {
            self.push(Change::Delete { path: path.clone(), recursive: false, expect: entry.version })?;
        }
        for path in then.into_keys() {
            let now = files.remove(&path);
            self.restore_file(&path, now).await?;
        }
        Ok(())
    }

    async fn read(&mut self, tree: &dyn Backend, path: &VfsPath) -> Result<Bytes> {
        let options = ReadOptions::new().with_bytes_max(self.left);
        let content = tree.read(path, &options).await?.content;
        self.left = self.left.saturating_sub(content.len() as u64);
        Ok(content)
    }

    fn push(&mut self, change: Change) -> Result<()> {
        if self.changes.len() == CHANGES_MAX {
            let message = format!("the restore would change over {CHANGES_MAX} files; restore directories one by one");
            return Err(Error::new(ErrorKind::TooLarge, message).at(change.path()));
        }
        self.changes.push(change);
        Ok(())
    }
}

async fn entry_at(tree: &dyn Backend, path: &VfsPath) -> Result<Option<Entry>> {
    match tree.stat(path, &StatOptions::new()).await {
        Ok(entry) => Ok(Some(entry)),
        // What is not known is not absent: a restore would remove the file of today.
        Err(error) if Forgotten::is_source_of(&error) => Err(error),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn files_beneath(tree: &dyn Backend, path: &VfsPath) -> Result<BTreeMap<VfsPathBuf, Entry>> {
    let options = GlobOptions::new("**").with_hidden(true).with_ignored(true).with_on_failure(OnFailure::Fail).with_limit(CHANGES_MAX + 1);
    let found = tree.glob(path, &options).await?;
    if found.entries.len() > CHANGES_MAX {
        let message = format!("`{path}` holds over {CHANGES_MAX} files; restore what lies in it in parts");
        return Err(Error::new(ErrorKind::TooLarge, message).at(path));
    }
    Ok(found.entries.into_iter().filter(|entry| !entry.is_directory()).map(|entry| (entry.path.clone(), entry)).collect())
}

/// A part of a call: what it changed in one mount.
struct Step {
    id: String,
    at: Timestamp,
    author: Author,
    undoes: Option<String>,
    files: Option<(VfsPathBuf, StoreBackend, RecordedCall)>,
    checkpoint: Option<Checkpoint>,
}

/// A call that can be undone.
struct UndoableCall {
    id: String,
    at: Timestamp,
    /// The time of its id.
    began: Timestamp,
    author: Author,
    files: Vec<(VfsPathBuf, StoreBackend, RecordedCall)>,
    /// The first of its consecutive checkpoints.
    checkpoint: Option<Checkpoint>,
    /// The last of them.
    last: Option<Checkpoint>,
}

impl UndoableCall {
    fn of(step: Step) -> Self {
        let began = step.id.parse::<CheckpointId>().map_or(step.at, CheckpointId::time);
        let Step { id, at, author, files, checkpoint, .. } = step;
        Self { id, at, began, author, files: files.into_iter().collect(), last: checkpoint.clone(), checkpoint }
    }

    fn add(&mut self, step: Step) {
        match (&self.checkpoint, step.checkpoint) {
            (None, first) => (self.last, self.checkpoint) = (first.clone(), first),
            // With another's checkpoint between them, only the later part is undone; the next undo continues with the rest.
            (Some(later), Some(earlier)) if later.parent.as_ref().is_some_and(|parent| parent.id == earlier.id) => {
                self.checkpoint = Some(earlier);
            }
            (Some(_), _) => {}
        }
        let Some((mount, tree, recorded)) = step.files else { return };
        match self.files.iter_mut().find(|(other, ..)| *other == mount) {
            Some((_, _, before)) => {
                let known: HashSet<&VfsPathBuf> = before.paths.iter().collect();
                let paths: Vec<VfsPathBuf> = recorded.paths.into_iter().filter(|path| !known.contains(path)).collect();
                before.paths.extend(paths);
                before.is_cut |= recorded.is_cut;
            }
            None => self.files.push((mount, tree, recorded)),
        }
    }
}

/// Steps of calls, newest first.
struct Source<'s> {
    kind: SourceKind<'s>,
    read: VecDeque<Step>,
    is_over: bool,
}

enum SourceKind<'s> {
    Tree { mount: VfsPathBuf, tree: Box<StoreBackend>, author: Box<Author>, after: Option<String> },
    Checkpoints { session: &'s Session, after: Option<CheckpointId> },
}

impl<'s> Source<'s> {
    fn of_tree(mount: VfsPathBuf, tree: StoreBackend, author: Author) -> Self {
        Self {
            kind: SourceKind::Tree { mount, tree: Box::new(tree), author: Box::new(author), after: None },
            read: VecDeque::new(),
            is_over: false,
        }
    }

    fn of_checkpoints(session: &'s Session) -> Self {
        Self { kind: SourceKind::Checkpoints { session, after: None }, read: VecDeque::new(), is_over: false }
    }

    /// Returns the time of the next step.
    async fn peek(&mut self) -> Result<Option<Timestamp>> {
        while self.read.is_empty() && !self.is_over {
            self.fill().await?;
        }
        Ok(self.read.front().map(|step| step.at))
    }

    fn pop(&mut self) -> Option<Step> {
        self.read.pop_front()
    }

    async fn fill(&mut self) -> Result<()> {
        match &mut self.kind {
            SourceKind::Tree { mount, tree, author, after } => {
                let (calls, next) = tree.calls(author, after.take(), PAGE).await?;
                self.is_over = next.is_none();
                *after = next;
                self.read.extend(calls.into_iter().map(|call| Step {
                    id: call.author.call.clone().unwrap_or_default(),
                    at: call.at,
                    author: call.author.clone(),
                    undoes: call.author.undoes.clone(),
                    files: Some((mount.clone(), StoreBackend::clone(tree), call)),
                    checkpoint: None,
                }));
            }
            SourceKind::Checkpoints { session, after } => {
                let mut options = ListOptions::new().with_limit(PAGE);
                options.start_after = after.take();
                let page = session.thread.checkpointer()?.list(&session.scope, &options).await?;
                self.is_over = page.next.is_none();
                *after = page.next;
                self.read.extend(page.checkpoints.into_iter().map(|checkpoint| Step {
                    id: checkpoint.metadata.get(CALL).cloned().unwrap_or_else(|| checkpoint.id.to_string()),
                    at: time_of(&checkpoint),
                    author: author_of_checkpoint(&checkpoint, &session.scope),
                    undoes: checkpoint.metadata.get(UNDOES).cloned(),
                    files: None,
                    checkpoint: Some(checkpoint),
                }));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
