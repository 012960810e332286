//! Mirrors: a tree as real files of a host directory, for a sandbox that cannot call this crate.
//!
//! A [`Mirror`] fills a directory with a tree and keeps both equal, until it is closed or dropped. Changes of the tree reach the directory
//! as a feed reports them. Changes in the directory are overwritten, or written back ([`MirrorOptions::write_back`]).
//!
//! **Write-back is a three-way merge by path.** The base is what was last mirrored. A change of one side is made on the other; changes of
//! both are merged by lines ([`merge`](treehold_core::text::merge)). What cannot be merged is a conflict, which is reported: nothing is lost
//! without an event that says so. Every replacement has a condition, so a change that comes between is seen and decided anew.
//!
//! **The directory is hostile.** Links are neither followed nor written back, names and sizes are checked, files are read whole or not at
//! all, and the number of nodes is bounded. One path that fails is reported and does not stop the others.
//!
//! **The process may die.** `.NAME.treehold-mirror` beside the directory holds a lock that ends with the process, and the bases. The next
//! mirror of the directory continues a written-back mirror of the same tree ([`MirrorOptions::tree_id`]) where it ended, and clears what a
//! read-only one left; [`Mirror::clear_leftovers`] removes what is left in a whole directory of mirrors.
//!
//! `plan` decides what to do at a path, `pass` compares the sides and does it, `files` transfers and merges files, `place` takes the
//! directory and gives it up, `state` holds the lock beside it, and `bases` the bases.

mod bases;
mod event;
mod files;
mod options;
mod pass;
mod place;
mod plan;
mod scan;
mod state;

pub use event::{MirrorAction, MirrorEvent, MirrorReport, MirrorSide};
pub use options::{MirrorConflicts, MirrorOptions};

use crate::backend::{Backend, TreeNews};
use files::{Files, Ground};
use futures::FutureExt;
use futures::stream::{BoxStream, StreamExt};
use parking_lot::Mutex;
use pass::{Comparison, First, Look, Memory};
use place::Place;
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::work;

/// How many changed paths are compared one by one. With more, everything is compared.
const CHANGED_MAX: usize = 64;

/// How many messages of a feed are taken together.
const HEARD_MAX: usize = 10_000;

/// A tree as files in a directory, kept equal until it is closed or dropped.
///
/// The directory must be missing or empty, or be what an earlier mirror of the tree left, unless [`MirrorOptions::existing`] is set. At the
/// end the files are removed, and the directory if it was created for the mirror. [`Mirror::close`] writes back the last changes first; so
/// does a drop within a runtime, in the background.
///
/// An earlier mirror that was written back is continued with what it last mirrored, if that was the same tree
/// ([`MirrorOptions::tree_id`]) and the tree still has a file. Otherwise nothing is removed on either side because the other lacks it.
///
/// Other programs may change the directory at any time. A mirror replaces a file by an exchange of names and looks at what it took out, so
/// an edit that comes between is kept. Writes through a handle that was open before the exchange are lost, and a host that cannot exchange
/// names leaves a gap of microseconds.
///
/// Cost: a listing of the tree and of the directory at the start; then one `stat` for each file of the directory each
/// [`look_every`](MirrorOptions::look_every), a listing of the tree each [`validate_every`](MirrorOptions::validate_every), and a read for
/// each change.
///
/// ```
/// use std::sync::Arc;
/// use treehold_tree::backend::{BackendExt, StateBackend};
/// use treehold_tree::mirror::{Mirror, MirrorOptions};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let tree = Arc::new(StateBackend::new());
/// tree.write("/notes/a.md", "one\n").await?;
/// # let parent = tempfile::tempdir()?;
/// let directory = parent.path().join("sandbox");
/// let mirror = Mirror::open(tree.clone(), None, &directory, MirrorOptions::new().with_write_back(true)).await?;
/// assert_eq!(std::fs::read_to_string(directory.join("notes/a.md"))?, "one\n");
///
/// std::fs::write(directory.join("notes/b.md"), "two\n")?;
/// let report = mirror.close().await?;
/// assert_eq!((report.written_back, tree.read_text("/notes/b.md").await?.as_str()), (1, "two\n"));
/// assert!(!directory.exists());
/// # Ok(())
/// # }
/// ```
pub struct Mirror {
    shared: Arc<Shared>,
    directory: PathBuf,
    first: MirrorReport,
    task: AbortHandle,
}

/// What the handle and its task share.
struct Shared {
    files: Files,
    memory: Arc<tokio::sync::Mutex<Memory>>,
    /// Changes of the tree that are not compared yet.
    changed: Mutex<BTreeSet<VfsPathBuf>>,
    /// `None` once the mirror has ended. It is taken under the lock of `memory`, so no comparison runs meanwhile.
    place: Mutex<Option<Place>>,
}

impl Mirror {
    /// Fills a directory with a tree, and keeps both equal from then on. `news` reports the changes of the tree, from before this call on;
    /// without it, the tree is compared as often as the directory.
    ///
    /// Paths that cannot be mirrored are in [`Mirror::first`].
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for options that contradict each other,
    /// [`AlreadyExists`](ErrorKind::AlreadyExists) for a directory with other content, such as that of another tree,
    /// [`Conflict`](ErrorKind::Conflict) for one that another mirror uses or that may hold unsaved edits of one,
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for one that lies in the mirrored tree, [`TooLarge`](ErrorKind::TooLarge) for a tree
    /// with too many nodes, and the errors of the root of either side.
    pub async fn open(
        tree: Arc<dyn Backend>,
        news: Option<BoxStream<'static, TreeNews>>,
        directory: impl AsRef<Path>,
        options: MirrorOptions,
    ) -> Result<Self> {
        options.check()?;
        let (at, write_back, wanted) = (directory.as_ref().to_owned(), options.write_back, options.clone());
        let taken = tokio::task::spawn_blocking(move || {
            let place = Place::take(&at, &wanted)?;
            let bases = if write_back { Some(place.bases()?) } else { None };
            let known = match &bases {
                Some(bases) if place.is_resumed => bases.all()?,
                _ => Default::default(),
            };
            let host = place.host(!write_back)?;
            Ok::<_, Error>((place, Ground { host, bases }, known))
        });
        let (place, ground, known) = taken.await.map_err(ended)??;
        let (directory, memory) = (place.directory.clone(), Memory::resumed(known));
        let knows_files = memory.knows_files();
        let shared = Arc::new(Shared {
            files: Files::new(tree, ground, options),
            memory: Arc::new(tokio::sync::Mutex::new(memory)),
            changed: Mutex::default(),
            place: Mutex::new(Some(place)),
        });
        let mut opening = Opening(Some(shared.clone()));
        // An earlier mirror that was refused has left its marker, but has mirrored nothing.
        let first = if knows_files { First::Resumed } else { First::New };
        let first = shared.compare([VfsPathBuf::root()], Look { tree: true, at_once: true, first: Some(first) }).await?;
        opening.0 = None;
        let task = tokio::spawn(work::carried(follow(Arc::downgrade(&shared), news))).abort_handle();
        Ok(Self { shared, directory, first, task })
    }

    /// Removes what mirrors of dead processes left in a directory whose children are directories of mirrors. Returns how many were removed.
    /// Edits in them that were not written back are lost, except those in directories that a mirror kept when it ended.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) and [`PermissionDenied`](ErrorKind::PermissionDenied) if the host refuses.
    pub async fn clear_leftovers(parent: impl AsRef<Path>) -> Result<usize> {
        let parent = parent.as_ref().to_owned();
        tokio::task::spawn_blocking(move || place::clear_leftovers(&parent)).await.map_err(ended)?
    }

    /// Returns the directory, as an absolute path.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns what was done when the mirror was opened.
    pub fn first(&self) -> &MirrorReport {
        &self.first
    }

    /// Compares everything now, and returns once both sides agree. Takes files of the directory as they are, whether or not their writer
    /// has finished.
    ///
    /// # Errors
    /// [`TooLarge`](ErrorKind::TooLarge) for too many nodes, and the errors of the root of either side.
    pub async fn refresh(&self) -> Result<MirrorReport> {
        self.refresh_paths([VfsPathBuf::root()]).await
    }

    /// Compares these paths and everything beneath them now, as [`Mirror::refresh`] does.
    ///
    /// # Errors
    /// As [`Mirror::refresh`].
    pub async fn refresh_paths(&self, paths: impl IntoIterator<Item = VfsPathBuf>) -> Result<MirrorReport> {
        self.shared.compare(paths, Look { tree: true, at_once: true, first: None }).await
    }

    /// Writes back the last changes and removes the files, unless [`MirrorOptions::keep`] is set, a mirror with
    /// [`MirrorOptions::existing`] has taken the directory, or a change could not be written back: then everything stays
    /// ([`MirrorReport::kept`]) until the next mirror of the directory continues, or a person removes it. A closed mirror does nothing any
    /// more.
    ///
    /// A directory that somebody moved away is emptied where it is, and what has its name by now stays.
    ///
    /// # Errors
    /// As [`Mirror::refresh`], and [`Unavailable`](ErrorKind::Unavailable) if the files cannot be removed. Then the mirror lives on, fills
    /// the directory again, and can be closed again.
    pub async fn close(&self) -> Result<MirrorReport> {
        let report = self.shared.clone().end().await?;
        self.task.abort();
        Ok(report)
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        let (shared, task) = (self.shared.clone(), self.task.clone());
        if shared.place.lock().is_none() {
            return task.abort();
        }
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(async move {
                if let Err(error) = shared.clone().end().await {
                    tracing::warn!(%error, "a mirror could not be removed; the next one of its directory continues it");
                    shared.keep_edits();
                }
                task.abort();
            })),
            // Without a runtime nothing can be written back, so only a mirror without edits is removed.
            Err(_) if !shared.files.options.write_back && !shared.files.options.keep => {
                if let Err(error) = shared.remove(&mut Memory::default()) {
                    tracing::warn!(%error, "a mirror could not be removed; the next one of its directory clears it");
                }
            }
            Err(_) => shared.keep_edits(),
        }
    }
}

/// Removes an unfinished mirror: its opening failed, or nobody waits for it.
struct Opening(Option<Arc<Shared>>);

impl Drop for Opening {
    fn drop(&mut self) {
        let Some(shared) = self.0.take() else { return };
        // What an earlier mirror left may hold edits.
        let is_resumed = shared.place.lock().as_ref().is_none_or(|place| place.is_resumed);
        if shared.files.options.existing {
            return shared.keep_edits();
        }
        if !is_resumed && let Err(error) = shared.remove(&mut Memory::default()) {
            tracing::warn!(%error, "an unfinished mirror could not be removed");
        }
    }
}

impl Shared {
    /// Compares paths until both sides agree. Those that still change are compared by the task.
    async fn compare(&self, paths: impl IntoIterator<Item = VfsPathBuf>, look: Look) -> Result<MirrorReport> {
        let mut memory = self.memory.lock().await;
        if self.place.lock().is_none() {
            return Ok(MirrorReport::default());
        }
        self.compare_with(&mut memory, paths, look).await
    }

    async fn compare_with(&self, memory: &mut Memory, paths: impl IntoIterator<Item = VfsPathBuf>, look: Look) -> Result<MirrorReport> {
        let mut comparison = Comparison::new(&self.files, memory);
        let left = comparison.run(paths, look).await?;
        self.changed.lock().extend(left);
        Ok(comparison.report)
    }

    /// Compares paths on behalf of nobody. A failure of the whole comparison is logged, once until one succeeds, and then everything is
    /// compared.
    async fn compare_again(&self, paths: impl IntoIterator<Item = VfsPathBuf>, tree: bool, is_away: &mut bool) {
        match self.compare(paths, Look { tree, at_once: false, first: None }).await {
            Ok(_) => *is_away = false,
            Err(error) => {
                if !std::mem::replace(is_away, true) {
                    tracing::warn!(%error, "a mirror could not be compared with its tree; trying again");
                }
                self.changed.lock().insert(VfsPathBuf::root());
            }
        }
    }

    /// Compares for the last time, and removes everything that is no longer needed. If that fails, the mirror lives on.
    async fn end(self: Arc<Self>) -> Result<MirrorReport> {
        // A comparison in progress ends first.
        let mut memory = self.memory.clone().lock_owned().await;
        if self.place.lock().is_none() {
            return Ok(MirrorReport::default());
        }
        let options = &self.files.options;
        let report = match options.write_back || options.keep {
            true => self.compare_all(&mut memory).await?,
            false => MirrorReport::default(),
        };
        let is_unsaved = options.write_back && (memory.has_unsaved() || !self.changed.lock().is_empty());
        let is_existing = self.place.lock().as_ref().is_some_and(Place::is_existing);
        let kept = options.keep || is_unsaved || is_existing;
        // The files are given up even if nobody waits for it any more, and nothing is compared until then.
        let given_up = tokio::task::spawn_blocking(move || if kept { self.keep() } else { self.remove(&mut memory) });
        given_up.await.map_err(ended)??;
        Ok(MirrorReport { kept, ..report })
    }

    async fn compare_all(&self, memory: &mut Memory) -> Result<MirrorReport> {
        self.changed.lock().clear();
        let compared = self.compare_with(memory, [VfsPathBuf::root()], Look { tree: true, at_once: true, first: None }).await;
        if compared.is_err() {
            self.changed.lock().insert(VfsPathBuf::root());
        }
        compared
    }

    /// Leaves the files for a person or the next mirror of the directory, and ends the mirror.
    fn keep(&self) -> Result<()> {
        let mut place = self.place.lock();
        if let Some(place) = place.as_mut() {
            place.keep()?;
        }
        *place = None;
        Ok(())
    }

    /// Keeps the files of a mirror that ends without its last comparison, if there may be edits in them.
    fn keep_edits(&self) {
        let options = &self.files.options;
        if (options.write_back || options.keep)
            && let Err(error) = self.keep()
        {
            tracing::warn!(%error, "the files of a mirror could not be marked as kept");
        }
    }

    /// Removes the files and what is kept beside them.
    fn remove(&self, memory: &mut Memory) -> Result<()> {
        let Some(place) = self.place.lock().take() else { return Ok(()) };
        match self.files.ground.clear() {
            Ok(()) => {
                place.remove();
                Ok(())
            }
            Err(error) => {
                // What was removed is missing in the directory, and must not be removed from the tree.
                *memory = Memory::default();
                self.changed.lock().insert(VfsPathBuf::root());
                *self.place.lock() = Some(place);
                Err(error)
            }
        }
    }
}

/// Keeps both sides equal as long as the mirror lives.
async fn follow(shared: std::sync::Weak<Shared>, mut news: Option<BoxStream<'static, TreeNews>>) {
    let Some(options) = shared.upgrade().map(|shared| shared.files.options.clone()) else { return };
    let mut is_live = false;
    let (mut look_at, mut validate_at) = (Instant::now() + options.look_every, Instant::now() + options.validate_every);
    let mut is_away = false;
    loop {
        let mut changed = BTreeSet::new();
        let mut is_ended = false;
        let hear = async {
            match news.as_mut() {
                Some(news) => news.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            heard = hear => is_ended = note(heard, &mut changed, &mut is_live),
            () = tokio::time::sleep_until(look_at.min(validate_at)) => {}
        }
        // Changes reported meanwhile are compared together.
        for _ in 0..HEARD_MAX {
            match news.as_mut().filter(|_| !is_ended).and_then(|news| news.next().now_or_never()) {
                Some(heard) => is_ended = note(heard, &mut changed, &mut is_live),
                None => break,
            }
        }
        if is_ended {
            news = None;
        }
        let Some(shared) = shared.upgrade() else { return };
        changed.append(&mut shared.changed.lock());
        let now = Instant::now();
        let is_look = now >= look_at;
        let is_much = changed.len() > CHANGED_MAX || changed.contains(VfsPath::ROOT);
        let is_whole = is_much || now >= validate_at || (is_look && !is_live);
        if !is_whole && !changed.is_empty() {
            shared.compare_again(changed, true, &mut is_away).await;
        }
        if is_whole || is_look {
            shared.compare_again([VfsPathBuf::root()], is_whole, &mut is_away).await;
            look_at = Instant::now() + options.look_every;
        }
        if is_whole {
            validate_at = Instant::now() + options.validate_every;
        }
    }
}

/// Notes a message of the feed. Returns whether the feed has ended.
fn note(heard: Option<TreeNews>, changed: &mut BTreeSet<VfsPathBuf>, is_live: &mut bool) -> bool {
    match heard {
        Some(TreeNews::Changed(path)) => drop(changed.insert(path)),
        Some(TreeNews::Live) => {
            *is_live = true;
            changed.insert(VfsPathBuf::root());
        }
        Some(TreeNews::Reset) => drop(changed.insert(VfsPathBuf::root())),
        Some(TreeNews::Lost) => *is_live = false,
        None => {
            *is_live = false;
            return true;
        }
    }
    false
}

fn ended(error: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Internal, "the work on the host ended without a result").with_source(error)
}

impl fmt::Debug for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mirror").field("directory", &self.directory).finish_non_exhaustive()
    }
}
