//! What a reader sees of the feed: which trees, at which paths, and what is filtered out.

use super::events::Row;
use super::position::Label;
use super::{FeedEvent, FeedKind};
use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_core::ops::{Difference, Review, ReviewPurpose, Sight, Standing, Version};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::scope::Scope;
use treehold_store::{Namespace, Partition};
use treehold_tree::backend::Backend;

/// Returns whether a path is shown.
type Shows = Arc<dyn Fn(&VfsPath) -> bool + Send + Sync>;

/// The paths that layers hide, each with whether it may be a directory.
pub(super) type Hidden = HashSet<(VfsPathBuf, bool)>;

/// The trees of a scope, as [`Workspace::feed_view`](crate::workspace::Workspace::feed_view) creates it, with filters on their changes.
#[derive(Clone)]
pub struct FeedView {
    pub(super) places: Vec<FeedPlace>,
    /// All mount points, with or without a log. Each hides what is beneath it in the tree above.
    mounts: Vec<VfsPathBuf>,
    tenant: Option<String>,
    user: Option<String>,
    prefix: VfsPathBuf,
    /// The threads whose states are shown; all of the user's if empty.
    threads: Vec<String>,
    /// The threads that may be named; any of the user's if empty.
    known_threads: Vec<String>,
    roots: Vec<VfsPathBuf>,
    shows: Vec<Shows>,
    /// The layers of the tree, which report what they hide.
    layers: Option<Arc<dyn Backend>>,
}

/// The trees of a view whose logs lie in one partition.
pub(super) struct FeedPart<'v> {
    pub(super) partition: Partition,
    pub(super) label: Label,
    pub(super) places: Vec<&'v FeedPlace>,
}

/// A tree, and its mount point.
#[derive(Debug, Clone)]
pub(super) struct FeedPlace {
    mount: VfsPathBuf,
    pub(super) log: Namespace,
    /// Whether this is the state of threads.
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
            layers: None,
        }
    }

    /// Sets the mount points.
    pub(crate) fn with_mounts<'a>(mut self, mounts: impl IntoIterator<Item = &'a VfsPath>) -> Self {
        self.mounts = mounts.into_iter().map(ToOwned::to_owned).collect();
        self
    }

    /// Adds a tree.
    pub(crate) fn with_place(mut self, mount: &VfsPath, log: Namespace, is_state: bool) -> Self {
        self.places.push(FeedPlace { mount: mount.to_owned(), log, is_state });
        self
    }

    /// Restricts the view to changes that affect a path or anything beneath it. Changes of directories above it do too.
    #[must_use]
    pub fn with_prefix(mut self, prefix: &VfsPath) -> Self {
        self.prefix = prefix.to_owned();
        // Drop trees that cannot be affected.
        self.places.retain(|place| place.mount.starts_with(prefix) || prefix.starts_with(&place.mount));
        self
    }

    /// Restricts changes of thread states to these threads.
    #[must_use]
    pub fn with_threads(mut self, threads: impl IntoIterator<Item = String>) -> Self {
        self.threads = threads.into_iter().collect();
        self
    }

    /// Reveals only the names of these threads. Changes made in other threads appear without their thread and actor.
    #[must_use]
    pub fn with_known_threads(mut self, threads: impl IntoIterator<Item = String>) -> Self {
        self.known_threads = threads.into_iter().collect();
        self
    }

    /// Restricts the view to these paths and what is beneath them; an empty list means all. For a change of a directory above one
    /// of them, the event names the path itself.
    #[must_use]
    pub fn with_roots(mut self, roots: impl IntoIterator<Item = VfsPathBuf>) -> Self {
        self.roots = roots.into_iter().collect();
        self
    }

    /// Restricts the view to paths that a function accepts.
    #[must_use]
    pub fn with_filter(mut self, shows: impl Fn(&VfsPath) -> bool + Send + Sync + 'static) -> Self {
        self.shows.push(Arc::new(shows));
        self
    }

    /// Restricts the view to paths that the layers show.
    pub(crate) fn with_layers(mut self, layers: Arc<dyn Backend>) -> Self {
        self.layers = Some(layers);
        self
    }

    /// Groups the trees by the partitions of their logs.
    pub(super) fn parts(&self) -> Vec<FeedPart<'_>> {
        let mut parts: Vec<FeedPart<'_>> = Vec::new();
        for place in &self.places {
            match parts.iter_mut().find(|part| part.partition.contains(&place.log)) {
                Some(part) => part.places.push(place),
                None => {
                    let partition = place.log.partition();
                    parts.push(FeedPart { label: Label::of(&partition), partition, places: vec![place] });
                }
            }
        }
        parts
    }

    /// Asks the layers which paths of these rows they hide.
    ///
    /// # Errors
    /// Those of [`Backend::review`].
    pub(super) async fn hidden(&self, place: &FeedPlace, rows: impl Iterator<Item = &Row>) -> Result<Hidden> {
        let Some(layers) = &self.layers else { return Ok(Hidden::new()) };
        let mut named = BTreeSet::new();
        for row in rows {
            let is_whole = is_whole(row.operation);
            for path in std::iter::once(&row.path).chain(&row.target) {
                let images = self.visible_paths(&place.mount, &place.mount.concat(path), is_whole, &Hidden::new());
                named.extend(images.into_iter().map(|path| (path, is_whole)));
            }
        }
        if named.is_empty() {
            return Ok(Hidden::new());
        }
        let standing = |is_whole| if is_whole { Standing::Directory } else { Standing::File(0) };
        let differences = named.iter().map(|(path, is_whole)| Difference::new(path.clone(), Some(standing(*is_whole)), None)).collect();
        let sights = layers.review(&Review::new(ReviewPurpose::Show, place.mount.clone(), differences)).await?;
        Ok(named.into_iter().zip(sights).filter(|(_, sight)| *sight == Sight::Hidden).map(|(named, _)| named).collect())
    }

    /// Converts a row to the events that the reader sees: usually one, none if it is not visible.
    pub(super) fn show(&self, place: &FeedPlace, row: Row, position: Version, hidden: &Hidden) -> Vec<FeedEvent> {
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
        for (path, operation, target) in self.seen(&place.mount, path, row.operation, target, hidden) {
            if touches(&path) || target.as_ref().is_some_and(touches) {
                let (thread, actor) = (thread.clone(), actor.clone());
                events.push(FeedEvent { position, path, operation, target, version, thread, actor, at: row.at });
            }
        }
        events
    }

    /// Reduces a change to what the reader sees. A rename with one visible end becomes a delete or a write.
    fn seen(
        &self,
        mount: &VfsPath,
        path: VfsPathBuf,
        operation: FeedKind,
        target: Option<VfsPathBuf>,
        hidden: &Hidden,
    ) -> Vec<(VfsPathBuf, FeedKind, Option<VfsPathBuf>)> {
        let is_whole = is_whole(operation);
        let Some(target) = target else {
            return self.visible_paths(mount, &path, is_whole, hidden).into_iter().map(|path| (path, operation, None)).collect();
        };
        let (from, to) = (self.visible_paths(mount, &path, is_whole, hidden), self.visible_paths(mount, &target, is_whole, hidden));
        if from == [path.clone()] && to == [target.clone()] {
            return vec![(path, operation, Some(target))];
        }
        let went = from.into_iter().filter(|_| operation == FeedKind::Rename).map(|path| (path, FeedKind::Delete, None));
        went.chain(to.into_iter().map(|path| (path, FeedKind::Write, None))).collect()
    }

    /// Returns what the reader sees of a change at a path: the path itself, or the roots beneath it.
    fn visible_paths(&self, mount: &VfsPath, path: &VfsPathBuf, is_whole: bool, hidden: &Hidden) -> Vec<VfsPathBuf> {
        let is_there = |path: &VfsPathBuf| !self.mounts.iter().any(|other| path.starts_with(other) && other.depth() > mount.depth());
        let is_hidden = |path: &VfsPathBuf| !hidden.is_empty() && hidden.contains(&(path.clone(), is_whole));
        let shown = |path: &&VfsPathBuf| is_there(path) && self.shows.iter().all(|shows| shows(path)) && !is_hidden(path);
        if self.roots.is_empty() || self.roots.iter().any(|root| path.starts_with(root)) {
            return std::iter::once(path).filter(shown).cloned().collect();
        }
        // Nothing is beneath a file, so no root can have changed with it.
        let beneath = self.roots.iter().filter(|root| is_whole && root.starts_with(path));
        beneath.filter(shown).cloned().collect()
    }
}

/// Returns whether an operation may concern a directory: written paths are files; deleted, moved, copied and restored ones may be either.
fn is_whole(operation: FeedKind) -> bool {
    !matches!(operation, FeedKind::Write | FeedKind::Append | FeedKind::Edit)
}

impl fmt::Debug for FeedView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FeedView").field("places", &self.places).field("prefix", &self.prefix).finish_non_exhaustive()
    }
}
