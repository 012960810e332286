//! The tree of a scope as it was: the state at a checkpoint, files in a store by their history, and an error for every other mount.

use super::{Opening, Workspace};
use crate::live::LiveThread;
use async_trait::async_trait;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use std::fmt;
use std::sync::Arc;
use treehold_core::clock::{InvalidAge, parse_age};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, Forgotten, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing,
    LsOptions, Moment, ReadOptions, Review, SearchOptions, SearchResult, Sight, StatOptions,
};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::scope::Scope;
use treehold_store::is_same;
use treehold_tree::backend::{Backend, StateSnapshot, StoreBackend};
use treehold_tree::checkpoint::{At, Checkpoint, HistoryBackend, ListOptions, with_checkpoint};

/// An earlier moment of a whole tree.
#[derive(Debug)]
pub(super) struct Past {
    /// The state of the thread, or why there is none.
    checkpoint: Result<HistoryBackend, Refusal>,
    /// The moment of files in stores, or why it is unknown.
    files: Result<Moment, Refusal>,
}

/// An error that many calls return.
#[derive(Debug, Clone)]
struct Refusal {
    kind: ErrorKind,
    message: String,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { kind: error.kind(), message: error.message().to_owned() }
    }
}

/// A tree with a history.
#[derive(Debug)]
pub(crate) struct History {
    /// The mounts that show it. Those that the caller may know of and that take changes come first, then by path.
    pub(crate) mounts: Vec<VfsPathBuf>,
    pub(crate) tree: StoreBackend,
}

impl History {
    fn has_rows_of(&self, other: &Self) -> bool {
        is_same(self.tree.store(), other.tree.store()) && self.tree.namespace() == other.tree.namespace()
    }
}

impl Past {
    fn of(checkpoint: HistoryBackend) -> Self {
        let files = Ok(Moment::Time(time_of(checkpoint.checkpoint())));
        Self { checkpoint: Ok(checkpoint), files }
    }

    /// Returns the checkpoint of the state, if it is known.
    pub(super) fn checkpoint(&self) -> Option<&Checkpoint> {
        self.checkpoint.as_ref().ok().map(HistoryBackend::checkpoint)
    }

    /// Returns the state of the thread.
    pub(super) fn state(&self) -> Arc<dyn Backend> {
        match &self.checkpoint {
            Ok(history) => Arc::new(history.clone()),
            Err(refusal) => Arc::new(Refused(refusal.clone())),
        }
    }

    /// Returns the files of a mount. `history` is its tree if it has a history.
    pub(super) fn files(&self, mount: &VfsPath, history: Option<StoreBackend>) -> Result<Arc<dyn Backend>> {
        let Some(tree) = history else {
            let message = format!(
                "`{mount}` keeps no history, so it cannot be shown as it was; name paths elsewhere, or set `history` on its route if that is \
                    of type `store`"
            );
            return Ok(Arc::new(Refused(Refusal { kind: ErrorKind::Unsupported, message })));
        };
        match &self.files {
            Ok(moment) => Ok(Arc::new(tree.at(*moment)?)),
            Err(refusal) => Ok(Arc::new(Refused(refusal.clone()))),
        }
    }
}

impl Workspace {
    /// Opens the tree of a scope with the state at a checkpoint, read-only. Mounts with a history show their files as they were when the
    /// checkpoint was created. Calls to any other mount are [`Unsupported`](ErrorKind::Unsupported).
    ///
    /// # Errors
    /// The errors of [`Workspace::session`] and [`HistoryBackend::open`]; [`Unsupported`](ErrorKind::Unsupported) in a workspace that saves
    /// no threads.
    pub async fn tree_at(&self, scope: &Scope, at: At) -> Result<Arc<dyn Backend>> {
        let live = self.live(scope)?;
        let past = Past::of(HistoryBackend::open(&**live.checkpointer()?, scope, at).await?);
        Ok(self.tree(&Opening::of_past(scope, &live, &past))?.0)
    }

    /// Opens the tree of a scope as it was at a moment, read-only. The name is that of a checkpoint, or a [`Moment`]:
    ///
    /// | name | the state of the thread | a mount with a history |
    /// | --- | --- | --- |
    /// | id, label | the checkpoint | as it was when the checkpoint was created |
    /// | a time | the newest checkpoint of that time or before | as it was at that time |
    /// | `latest` | the newest checkpoint | as it is |
    /// | `~2` | the checkpoint so many before the newest | each file so many changes ago |
    /// | `v3` | the checkpoint with that label | the third revision of each file |
    ///
    /// Calls to a mount without a history are [`Unsupported`](ErrorKind::Unsupported), so that nothing of today is taken for the past. The
    /// layers of the workspace apply as they do to the present tree. Names without a meaning for a mount fail when it is accessed.
    ///
    /// Cost: that of finding the checkpoint. Mounts are read on first use.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for a name that is neither a checkpoint nor a moment, and the errors of [`Workspace::session`] and
    /// of the store.
    pub async fn tree_as_of(&self, scope: &Scope, name: &str) -> Result<Arc<dyn Backend>> {
        let live = self.live(scope)?;
        // The newest version of everything is what there is at the end of time; unlike a count of changes, that has directories too.
        let moment = Moment::parse(name, Timestamp::now()).map(|moment| match moment {
            Moment::Back(0) => Moment::Time(Timestamp::MAX),
            moment => moment,
        });
        let time = moment.as_ref().ok().and_then(|moment| moment.time()).filter(|time| *time != Timestamp::MAX);
        let past = match self.state_as_of(scope, name, time).await {
            Ok(history) if moment.is_err() => Past::of(history),
            Ok(history) => Past { checkpoint: Ok(history), files: moment.map_err(Refusal::from) },
            // An age out of bounds means nothing to any mount.
            Err(error) if is_about_the_name(&error) && parse_age(name).is_err_and(InvalidAge::is_out_of_bounds) => {
                return Err(moment.err().unwrap_or(error));
            }
            // The name can still mean something to the other mounts.
            Err(error) if moment.is_ok() && is_about_the_name(&error) => {
                Past { checkpoint: Err(error.into()), files: moment.map_err(Refusal::from) }
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => return Err(moment.err().unwrap_or(error)),
            Err(error) => return Err(error),
        };
        Ok(self.tree(&Opening::of_past(scope, &live, &past))?.0)
    }

    async fn state_as_of(&self, scope: &Scope, name: &str, time: Option<Timestamp>) -> Result<HistoryBackend> {
        let checkpointer = self.checkpointer().ok_or_else(|| Error::unsupported("this workspace does not save threads"))?;
        if let Some(time) = time {
            let mut options = ListOptions::new().with_limit(1);
            options.until = time.checked_add(SignedDuration::from_micros(1)).ok();
            let found = checkpointer.list(scope, &options).await?.checkpoints.pop();
            let thread = scope.thread.as_deref().unwrap_or_default();
            let message = format!("thread `{thread}` has no checkpoint from {time} or before; `treehold checkpoint ls` lists them");
            let found = found.ok_or_else(|| Error::new(ErrorKind::NotFound, message))?;
            return HistoryBackend::open(&**checkpointer, scope, At::Id(found.id)).await;
        }
        let open = |found: Checkpoint| -> BoxFuture<'_, _> {
            Box::pin(async move { HistoryBackend::open(&**checkpointer, scope, At::Id(found.id)).await })
        };
        with_checkpoint(&**checkpointer, scope, name, open).await
    }

    /// Returns the mount that contains a path, and its tree if that has a history.
    pub(crate) fn history_of(&self, scope: &Scope, path: &VfsPath) -> Result<(VfsPathBuf, Option<StoreBackend>)> {
        let mount = self.mount_of(path);
        let tree = self.0.histories.get(mount).map(|open| open(scope)).transpose()?;
        Ok((mount.to_owned(), tree))
    }

    /// Returns each tree with a history once, whichever mounts show it.
    ///
    /// Cost: opens the mounts of rows that several mounts show.
    pub(crate) fn histories(&self, scope: &Scope, thread: &Arc<LiveThread>) -> Result<Vec<History>> {
        let mut histories: Vec<History> = Vec::new();
        for (mount, open) in &self.0.histories {
            let history = History { mounts: vec![mount.clone()], tree: open(scope)? };
            match histories.iter_mut().find(|known| known.has_rows_of(&history)) {
                Some(known) => known.mounts.extend(history.mounts),
                None => histories.push(history),
            }
        }
        for history in histories.iter_mut().filter(|history| history.mounts.len() > 1) {
            let ranks = history.mounts.iter().map(|mount| self.rank(scope, thread, mount)).collect::<Result<Vec<_>>>()?;
            let mut ranked: Vec<_> = ranks.into_iter().zip(std::mem::take(&mut history.mounts)).collect();
            // Those of one rank stay in path order.
            ranked.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
            history.mounts = ranked.into_iter().map(|(_, mount)| mount).collect();
        }
        Ok(histories)
    }

    /// Returns how suitable a mount is for changing its files: whether the caller may know of it, and whether it takes changes.
    fn rank(&self, scope: &Scope, thread: &Arc<LiveThread>, mount: &VfsPath) -> Result<(bool, bool)> {
        let Some(open) = self.0.mounts.get(mount) else { return Ok((false, false)) };
        let is_visible = self.visible_mounts().any(|visible| visible == mount);
        Ok((is_visible, open(&Opening::new(scope, thread))?.capabilities().writable))
    }

    /// Returns the mounts whose past is kept neither by checkpoints nor by a history of files, in path order. Only those that the caller may
    /// know of.
    pub fn mounts_without_past(&self) -> impl Iterator<Item = &VfsPath> {
        let states = self.states();
        self.visible_mounts().filter(move |mount| !self.0.histories.contains_key(*mount) && !states.iter().any(|state| **state == **mount))
    }
}

/// Returns when a checkpoint was saved, at the latest. Its own time is cut to the millisecond of its id if the save ended in a later one;
/// what happened before in the same millisecond belongs to it.
pub(crate) fn time_of(checkpoint: &Checkpoint) -> Timestamp {
    let cut = checkpoint.id.time();
    match checkpoint.created_at == cut {
        true => cut.checked_add(SignedDuration::from_micros(999)).unwrap_or(cut),
        false => checkpoint.created_at,
    }
}

/// Returns whether an error says that a checkpoint does not exist, or that none can.
fn is_about_the_name(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Ambiguous | ErrorKind::InvalidArgument | ErrorKind::Unsupported)
}

/// A tree that cannot be shown.
#[derive(Debug)]
struct Refused(Refusal);

impl Refused {
    fn error<T>(&self, path: &VfsPath) -> Result<T> {
        Err(Error::new(self.0.kind, self.0.message.clone()).with_source(Forgotten).at(path))
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Refused")
    }
}

#[async_trait]
impl Backend for Refused {
    fn capabilities(&self) -> Capabilities {
        StateSnapshot::default().capabilities()
    }

    async fn stat(&self, path: &VfsPath, _options: &StatOptions) -> Result<Entry> {
        self.error(path)
    }

    async fn read(&self, path: &VfsPath, _options: &ReadOptions) -> Result<FileRead> {
        self.error(path)
    }

    async fn ls(&self, path: &VfsPath, _options: &LsOptions) -> Result<Listing> {
        self.error(path)
    }

    async fn glob(&self, path: &VfsPath, _options: &GlobOptions) -> Result<GlobResult> {
        self.error(path)
    }

    async fn grep(&self, path: &VfsPath, _options: &GrepOptions) -> Result<GrepResult> {
        self.error(path)
    }

    async fn search(&self, path: &VfsPath, _options: &SearchOptions) -> Result<SearchResult> {
        self.error(path)
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        StateSnapshot::default().apply(changes, options).await
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}
