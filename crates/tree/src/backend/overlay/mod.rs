//! An overlay: an agent's changes to a tree, kept apart from the tree until somebody decides about them.
//!
//! Reads see the upper tree laid over the lower one; changes go to the upper tree only. The upper tree stores written files, deletions
//! (whiteouts), and what the lower tree had at a path when the overlay first touched it, in the layout that [`marks`] describes. An overlay
//! therefore lives as long as its upper tree.
//!
//! Changes have the semantics of every tree of nodes ([`flat`]). [`transaction`] turns them into a batch of the upper tree, [`merge`] looks
//! up paths in both trees, and [`search`] walks the merged tree. [`difference`] lists the changes, [`settle`] writes them to the lower
//! tree, and [`tidy`] empties the upper one.

mod difference;
mod marks;
mod merge;
mod search;
mod settle;
mod tidy;
mod touched;
mod transaction;

pub use self::difference::{OverlayConflict, OverlayDiff, OverlayDiffOptions, OverlayDifference, OverlayDifferenceKind};
pub use self::settle::{OverlayApplied, OverlayApplyOptions, OverlayStrategy};

use self::marks::TURN;
use self::merge::{Merged, Shown, absent, lower_version, of_lower, tree_of, upper_version};
use self::transaction::OverlayTransaction;
use super::flat;
use super::{Backend, Subtree};
use crate::backend::search_by_reading;
use async_trait::async_trait;
use futures::future::BoxFuture;
use std::fmt;
use std::sync::Arc;
use treehold_core::backoff::LostRaces;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{
    ApplyOptions, Capabilities, Change, Changed, Difference, Entry, Extensions, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult,
    Listing, LsOptions, Op, ReadOptions, Review, ReviewPurpose, SearchOptions, SearchResult, Sight, Standing, StatOptions, Version,
};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_store::Outbox;

/// How often a read that met a change is repeated before it waits for a moment without one.
const READS_MAX: usize = 8;

/// A writable tree laid over one that stays unchanged.
///
/// The lower tree is any backend. The upper one is any writable backend with atomic batches: a [`StateBackend`](super::StateBackend), or a
/// [`StoreBackend`](super::StoreBackend) for an overlay that survives the process. The upper tree belongs to the overlay alone and must not
/// hold anything else. A batch of the overlay is one batch of the upper tree, so it is equally atomic and durable. Several overlays, also
/// in several processes, may share the two trees.
///
/// Versions are those of a file's own tree, and their last bit identifies the tree. A rename or copy of a directory reads and writes
/// everything beneath it, up to 1 GiB in one batch; a delete writes one mark. Links of the lower tree are followed by reads and can be
/// deleted; a file can only be changed by its own path.
///
/// Cost: a lookup reads the path and the marks of it and of each directory above from the upper tree, then the lower tree. A file of the
/// upper tree is read without them.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use treehold_tree::backend::{OverlayApplyOptions, OverlayDiffOptions};
/// use treehold_tree::backend::{BackendExt, OverlayBackend, StateBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let project = Arc::new(StateBackend::new());
/// project.write("/src/main.rs", "fn main() {}\n").await?;
/// let overlay = OverlayBackend::new(project.clone(), Arc::new(StateBackend::new()));
/// overlay.edit("/src/main.rs", "{}", "{ run() }").await?;
/// overlay.write("/src/run.rs", "").await?;
/// assert_eq!(project.read_text("/src/main.rs").await?, "fn main() {}\n", "the project is as it was");
/// assert_eq!(overlay.read_text("/src/main.rs").await?, "fn main() { run() }\n");
///
/// let diff = overlay.diff(&OverlayDiffOptions::new()).await?;
/// assert_eq!(diff.differences.len(), 2);
/// let applied = overlay.apply_changes(&OverlayApplyOptions::new()).await?;
/// assert!(applied.conflicts.is_empty());
/// assert_eq!(project.read_text("/src/main.rs").await?, "fn main() { run() }\n");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct OverlayBackend {
    lower: Arc<dyn Backend>,
    upper: Arc<dyn Backend>,
    /// The files of the upper tree.
    tree: Subtree,
    /// Held during a batch, so that the batches of one overlay run one at a time instead of losing their turns.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// The whole tree and the overlay's mount point in it. Its layers review what is applied, dropped or shown.
    whole: Option<(Arc<dyn Backend>, VfsPathBuf)>,
    /// The check before the lower tree is written.
    guard: Option<Arc<dyn ApplyGuard>>,
}

/// A check before an overlay's differences are written to its lower tree. `named` are the paths that a person named.
#[async_trait]
pub trait ApplyGuard: Send + Sync + fmt::Debug {
    /// Checks changes of the lower tree before any of them is made.
    async fn check(&self, lower: &dyn Backend, changes: &[Change], named: &[VfsPathBuf]) -> Result<()>;

    /// Runs the work that makes them, with the named paths allowed.
    fn during<'a>(&self, named: &[VfsPathBuf], work: BoxFuture<'a, ()>) -> BoxFuture<'a, ()>;
}

impl OverlayBackend {
    /// Lays `upper` over `lower`.
    pub fn new(lower: Arc<dyn Backend>, upper: Arc<dyn Backend>) -> Self {
        Self { tree: tree_of(&upper), lower, upper, turn: Arc::default(), whole: None, guard: None }
    }

    /// Sets the tree in which the overlay is mounted, and where. Its layers review ([`Backend::review`]) changes before they are applied or
    /// dropped, and [`OverlayBackend::diff`] omits what they hide.
    #[must_use]
    pub fn with_mounted_tree(mut self, tree: Arc<dyn Backend>, at: impl Into<VfsPathBuf>) -> Self {
        self.whole = Some((tree, at.into()));
        self
    }

    /// Lets the surrounding tree review differences: in their own direction if applied, or from the overlay's content back to the lower
    /// tree's if dropped. Returns for each how much of it may be shown.
    async fn review(&self, purpose: ReviewPurpose, differences: &[OverlayDifference], dropped: bool) -> Result<Vec<Sight>> {
        let Some((tree, at)) = &self.whole else { return Ok(vec![Sight::Open; differences.len()]) };
        let standing = |entry: &Option<Entry>| {
            entry.as_ref().map(|entry| if entry.is_directory() { Standing::Directory } else { Standing::File(entry.size_bytes) })
        };
        let differences = differences.iter().map(|difference| {
            let (before, after) = (standing(&difference.before), standing(&difference.after));
            let (before, after) = if dropped { (after, before) } else { (before, after) };
            Difference::new(difference.path.clone(), before, after)
        });
        // An apply changes the lower tree only; the tree around the overlay shows the result already.
        let is_shown = purpose == ReviewPurpose::Change && !dropped;
        let review = Review::new(purpose, VfsPathBuf::root(), differences.collect()).with_is_shown(is_shown);
        let review = review.map_paths(|path| at.concat(path));
        tree.review(&review).await.map_err(|error| error.stripped(at, &[]))
    }

    /// Sets the check before the lower tree is written.
    #[must_use]
    pub fn with_guard(mut self, guard: Arc<dyn ApplyGuard>) -> Self {
        self.guard = Some(guard);
        self
    }

    /// Returns the lower tree, which stays unchanged.
    pub fn lower(&self) -> &Arc<dyn Backend> {
        &self.lower
    }

    /// Returns the tree that holds the changes and the overlay's bookkeeping.
    pub fn upper(&self) -> &Arc<dyn Backend> {
        &self.upper
    }

    /// Returns the version of the turn, which every batch replaces.
    async fn turn_version(&self) -> Result<Option<Version>> {
        let turn = VfsPath::parse(TURN).expect("a legal path");
        let found = absent(self.upper.stat(&turn, &StatOptions::new()).await).map_err(|error| merge::about(VfsPath::ROOT, error))?;
        Ok(found.and_then(|entry| entry.version))
    }

    /// Makes reads of several rows consistent: repeats them if a batch was committed meanwhile.
    async fn steady<'s, T>(&'s self, read: impl Fn() -> BoxFuture<'s, Result<T>> + Send + Sync) -> Result<T> {
        let mut before = self.turn_version().await?;
        for _ in 0..READS_MAX {
            let result = read().await;
            let after = self.turn_version().await?;
            if after == before {
                return result;
            }
            before = after;
        }
        let _turn = self.turn.lock().await;
        read().await
    }

    /// Looks up a path of the overlay. Fails if nothing is there.
    async fn look_up(&self, path: &VfsPath, options: &StatOptions) -> Result<Entry> {
        let look = self.look_with(path, options).await?;
        match look.shown() {
            Some(Shown::Upper(upper)) => {
                let is_merged = upper.is_directory() && look.shows_lower();
                match look.lower.as_ref().filter(|lower| is_merged && lower.is_directory()) {
                    Some(lower) => Ok(of_lower(lower.clone())),
                    None => self.shown_upper(upper.clone(), look.marked).await,
                }
            }
            Some(Shown::Lower(lower)) => Ok(of_lower(lower.clone())),
            None => Err(self.missing(path, &look).await),
        }
    }

    /// Lists all children of a directory as of one moment.
    async fn steady_children(&self, path: &VfsPath, options: &StatOptions) -> Result<Merged> {
        let all = LsOptions::new().with_limit(usize::MAX).with_refuse_links(options.refuse_links);
        self.steady(|| Box::pin(self.merged(path, &all))).await
    }

    async fn read_file(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        // A file of the upper tree always shows.
        if let Some(read) = self.read_upper(path, options).await? {
            return Ok(read);
        }
        self.steady(|| Box::pin(self.read_shown(path, options))).await
    }

    async fn read_upper(&self, path: &VfsPath, options: &ReadOptions) -> Result<Option<FileRead>> {
        let Some(mut read) = absent(self.tree.read(path, options).await)? else { return Ok(None) };
        read.version = upper_version(read.version);
        if let Some(mark) = self.mark(path).await? {
            read.modified_at = mark.modified_at.or(read.modified_at);
        }
        Ok(Some(read))
    }

    async fn read_shown(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        let look = self.look_with(path, &StatOptions::new().with_refuse_links(options.refuse_links)).await?;
        match look.shown() {
            Some(Shown::Upper(_)) => match self.read_upper(path, options).await? {
                Some(read) => Ok(read),
                None => Err(Error::not_found(path)),
            },
            Some(Shown::Lower(_)) => {
                let mut read = self.lower.read(path, options).await?;
                read.version = lower_version(read.version);
                Ok(read)
            }
            None => Err(self.missing(path, &look).await),
        }
    }

    /// Plans a batch and commits it once. Returns `None` if the content that it was planned on changed meanwhile.
    async fn attempt(&self, changes: &[Change], extensions: &Extensions) -> Result<Option<Vec<Changed>>> {
        let turn = self.turn_version().await?;
        let mut transaction = OverlayTransaction::new(self);
        let mut results = Vec::with_capacity(changes.len());
        for (index, change) in changes.iter().enumerate() {
            transaction.begin(index, change);
            match flat::apply(&mut transaction, std::slice::from_ref(change)).await {
                Ok(done) => results.extend(done),
                Err(_) if transaction.is_stale() || self.turn_version().await? != turn => return Ok(None),
                // Nothing is written before everything is planned.
                Err(error) => return Err(error.in_batch(index, 0).without_effect()),
            }
        }
        match transaction.commit(turn, extensions).await.map_err(|error| error.during(Op::apply(changes).kind))? {
            Some(versions) => Ok(Some(results.into_iter().map(|done| done.resolve(|put| versions[put])).collect())),
            None => Ok(None),
        }
    }

    /// Refuses an upper tree that cannot hold an overlay.
    fn check_upper(&self) -> Result<()> {
        let upper = self.upper.capabilities();
        if upper.writable && upper.atomic_batch {
            return Ok(());
        }
        Err(Error::unsupported("the upper tree of the overlay has no atomic batches; use a state or store tier as the upper tree"))
    }
}

/// Returns the message of work that gave up.
fn overtaken(races: &LostRaces) -> String {
    format!("concurrent changes to the same overlay made this one fail {} times; try again", races.count())
}

impl fmt::Display for OverlayBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Overlay({}, {})", self.upper, self.lower)
    }
}

#[async_trait]
impl Backend for OverlayBackend {
    fn capabilities(&self) -> Capabilities {
        let upper = self.upper.capabilities();
        let writable = upper.writable && upper.atomic_batch;
        let lower = self.lower.capabilities();
        let indexed = upper.indexed || lower.indexed;
        upper.with_writable(writable).with_symlinks(lower.symlinks).with_indexed(indexed)
    }

    async fn stat(&self, path: &VfsPath, options: &StatOptions) -> Result<Entry> {
        self.steady(|| Box::pin(self.look_up(path, options))).await
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        self.read_file(path, options).await
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        self.steady(|| Box::pin(self.list(path, options))).await
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        search::glob(self, path, options).await
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        search::grep(self, path, options).await
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        search_by_reading(self, path, options).await
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let op = Op::apply(changes);
        self.check_upper().map_err(|error| error.at(op.path).during(op.kind))?;
        let mut extensions = options.extensions.clone();
        // The upper tree commits the required entries of the outbox. Optional entries receive the versions of this tree afterwards.
        extensions.insert(Outbox::of(&extensions).without_changes());
        let _turn = self.turn.lock().await;
        let mut races = LostRaces::new();
        loop {
            if let Some(results) = self.attempt(changes, &extensions).await? {
                return Ok(results);
            }
            if !races.lost().await {
                break;
            }
        }
        let message = overtaken(&races);
        Err(Error::new(ErrorKind::Unavailable, message).without_effect().at(op.path).during(op.kind))
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}
