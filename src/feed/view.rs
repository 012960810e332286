//! What a reader sees of the feed: which trees, where they stand for them, and what is kept from them.

use super::outbox::Row;
use super::{FeedEvent, FeedKind};
use crate::ops::Version;
use crate::path::{VfsPath, VfsPathBuf};
use crate::scope::Scope;
use crate::store::Namespace;
use std::fmt;
use std::sync::Arc;

/// Tells whether a path is shown, which may be that of a directory.
type Shows = Arc<dyn Fn(&VfsPath, bool) -> bool + Send + Sync>;

/// The trees of a scope, as [`Workspace::feed_view`](crate::Workspace::feed_view) makes it, and what of their changes is asked for.
#[derive(Clone)]
pub struct FeedView {
    pub(super) places: Vec<FeedPlace>,
    /// Where something is mounted, told of or not: it hides what lies beneath in the tree above.
    mounts: Vec<VfsPathBuf>,
    tenant: Option<String>,
    user: Option<String>,
    prefix: VfsPathBuf,
    /// The threads whose states are seen; all of the user's when there are none.
    threads: Vec<String>,
    /// The threads that may be named; any of the user's when there are none.
    known_threads: Vec<String>,
    roots: Vec<VfsPathBuf>,
    shows: Vec<Shows>,
}

/// A tree, and where it stands.
#[derive(Debug, Clone)]
pub(super) struct FeedPlace {
    mount: VfsPathBuf,
    pub(super) log: Namespace,
    /// It is the state of threads.
    is_state: bool,
}

impl FeedView {
    pub(crate) fn new(scope: &Scope) -> Self {
        Self {
            places: Vec::new(),
            mounts: Vec::new(),
            tenant: scope.tenant.clone(),
            user: scope.user.clone(),
            prefix: VfsPathBuf::root(),
            threads: Vec::new(),
            known_threads: Vec::new(),
            roots: Vec::new(),
            shows: Vec::new(),
        }
    }

    /// Names what is mounted.
    pub(crate) fn with_mounts<'a>(mut self, mounts: impl IntoIterator<Item = &'a VfsPath>) -> Self {
        self.mounts = mounts.into_iter().map(ToOwned::to_owned).collect();
        self
    }

    /// Adds a tree.
    pub(crate) fn with_place(mut self, mount: &VfsPath, log: Namespace, is_state: bool) -> Self {
        self.places.push(FeedPlace { mount: mount.to_owned(), log, is_state });
        self
    }

    /// Keeps to what changes something at a path or beneath it: a change of a directory above it does too.
    #[must_use]
    pub fn with_prefix(mut self, prefix: &VfsPath) -> Self {
        self.prefix = prefix.to_owned();
        // What stands elsewhere needs no look.
        self.places.retain(|place| place.mount.starts_with(prefix) || prefix.starts_with(&place.mount));
        self
    }

    /// Keeps what changes in the state of threads to some of them.
    #[must_use]
    pub fn with_threads(mut self, threads: impl IntoIterator<Item = String>) -> Self {
        self.threads = threads.into_iter().collect();
        self
    }

    /// Names no other threads than these: of what was changed in others it is not told in which.
    #[must_use]
    pub fn with_known_threads(mut self, threads: impl IntoIterator<Item = String>) -> Self {
        self.known_threads = threads.into_iter().collect();
        self
    }

    /// Keeps to some paths and what lies beneath them; all when there are none. Of a change of a directory above one it is told what becomes of
    /// the path.
    #[must_use]
    pub fn with_roots(mut self, roots: impl IntoIterator<Item = VfsPathBuf>) -> Self {
        self.roots = roots.into_iter().collect();
        self
    }

    /// Keeps to paths that a function allows.
    #[must_use]
    pub fn with_filter(mut self, shows: impl Fn(&VfsPath) -> bool + Send + Sync + 'static) -> Self {
        self.shows.push(Arc::new(move |path, _| shows(path)));
        self
    }

    /// Keeps to paths that a function allows, which is asked whether it allows a path that may be a directory.
    pub(crate) fn with_shown(mut self, shows: impl Fn(&VfsPath, bool) -> bool + Send + Sync + 'static) -> Self {
        self.shows.push(Arc::new(shows));
        self
    }

    /// Makes the events of a row as the reader sees them: one mostly, none where they see nothing of it.
    pub(super) fn show(&self, place: &FeedPlace, row: Row, position: Version) -> Vec<FeedEvent> {
        let is_own = row.tenant == self.tenant && row.user == self.user;
        if place.is_state && !self.threads.is_empty() && row.thread.as_ref().is_none_or(|thread| !self.threads.contains(thread)) {
            return Vec::new();
        }
        let path = place.mount.concat(&row.path);
        let target = row.target.as_ref().map(|target| place.mount.concat(target));
        let version = row.version(position);
        let may_name = |thread: &String| self.known_threads.is_empty() || self.known_threads.contains(thread);
        let is_named = is_own && row.thread.as_ref().is_none_or(may_name);
        let (thread, actor) = if is_named { (row.thread, row.actor) } else { (None, None) };
        let touches = |path: &VfsPathBuf| path.starts_with(&self.prefix) || self.prefix.starts_with(path);
        let mut events = Vec::new();
        for (path, operation, target) in self.seen(&place.mount, path, row.operation, target) {
            if touches(&path) || target.as_ref().is_some_and(touches) {
                let (thread, actor) = (thread.clone(), actor.clone());
                events.push(FeedEvent { position, path, operation, target, version, thread, actor, at: row.at });
            }
        }
        events
    }

    /// Leaves out of a change what the reader does not see: of a rename the one end, and what it was with it.
    fn seen(
        &self,
        mount: &VfsPath,
        path: VfsPathBuf,
        operation: FeedKind,
        target: Option<VfsPathBuf>,
    ) -> Vec<(VfsPathBuf, FeedKind, Option<VfsPathBuf>)> {
        // What is written is a file; what goes, comes or is another may be a directory.
        let is_whole = !matches!(operation, FeedKind::Write | FeedKind::Append | FeedKind::Edit);
        let Some(target) = target else {
            return self.images(mount, &path, is_whole).into_iter().map(|path| (path, operation, None)).collect();
        };
        let (from, to) = (self.images(mount, &path, is_whole), self.images(mount, &target, is_whole));
        if from == [path.clone()] && to == [target.clone()] {
            return vec![(path, operation, Some(target))];
        }
        let went = from.into_iter().filter(|_| operation == FeedKind::Rename).map(|path| (path, FeedKind::Delete, None));
        went.chain(to.into_iter().map(|path| (path, FeedKind::Write, None))).collect()
    }

    /// Returns what the reader sees of what happens to a path: the path, or the roots beneath it.
    fn images(&self, mount: &VfsPath, path: &VfsPathBuf, is_whole: bool) -> Vec<VfsPathBuf> {
        let is_there = |path: &VfsPathBuf| !self.mounts.iter().any(|other| path.starts_with(other) && other.depth() > mount.depth());
        let shown = |path: &&VfsPathBuf| is_there(path) && self.shows.iter().all(|shows| shows(path, is_whole));
        if self.roots.is_empty() || self.roots.iter().any(|root| path.starts_with(root)) {
            return std::iter::once(path).filter(shown).cloned().collect();
        }
        // Beneath a file there is nothing that could have changed with it.
        let beneath = self.roots.iter().filter(|root| is_whole && root.starts_with(path));
        beneath.filter(shown).cloned().collect()
    }
}

impl fmt::Debug for FeedView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FeedView").field("places", &self.places).field("prefix", &self.prefix).finish_non_exhaustive()
    }
}
