//! A host directory as a tree, confined to its root.
//!
//! [`root`] opens every path beneath the handle that [`seal`] guards. [`change`] applies changes: [`ground`] locates and locks
//! the directory, [`temp`] prepares new content, and [`delete`], [`transfer`] and [`tree`] move and remove nodes. [`list`],
//! [`content`] and [`search`] read; the last uses a [`walk`] of its own. [`errno`] and [`meta`] translate what the host reports.
//! [`host_directory`] is what mirrors fill, without links and with modes of their own.

mod change;
mod content;
mod delete;
mod directory;
mod errno;
mod ground;
mod host_directory;
mod list;
mod lock;
mod meta;
mod openat2;
mod part;
mod root;
mod seal;
mod search;
mod sweep;
mod temp;
mod time;
mod transfer;
mod tree;
mod walk;

use crate::backend::Backend;
use crate::backend::search_by_reading;
use async_trait::async_trait;
pub(crate) use host_directory::{HostDirectory, HostNode, open_to_pass};
use root::Root;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{
    ApplyOptions, Capabilities, Change, Changed, Durability, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing,
    LsOptions, OpKind, ReadOptions, Review, SearchOptions, SearchResult, Sight, StatOptions,
};
use treehold_core::path::VfsPath;
use treehold_core::work::{self, Stop, StopOnDrop};

/// The most threads one search uses by default.
const SEARCH_THREADS_MAX: usize = 8;

/// What a change waits for before it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SyncMode {
    /// Nothing. The change survives the end of the process. It survives a power loss only once the host has written it back.
    #[default]
    None,
    /// The content of the file is on the device. Its name may still be lost in a power loss.
    File,
    /// The content of the file and its name are on the device: the change survives a power loss.
    Full,
}

impl SyncMode {
    /// Returns the capabilities of a directory with this sync mode.
    fn capabilities(self) -> Capabilities {
        let durability = if self == Self::Full { Durability::Power } else { Durability::Process };
        Capabilities::new().with_atomic_batch(false).with_durability(durability).with_symlinks(true)
    }
}

/// Options for opening a host directory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FilesystemOptions {
    /// Creates the root directory and its parents if they are missing. Default false.
    pub create_root: bool,
    /// Enters other filesystems that are mounted beneath the root. Default false: mount points are listed but not entered.
    pub cross_mounts: bool,
    /// Lets the kernel resolve paths beneath the root (`openat2`, Linux 5.6 or later). Default true. If disabled, or if the
    /// kernel or a sandbox refuses the call, paths are resolved one component at a time, with the same result.
    pub openat2: bool,
    /// What a change waits for. Default [`SyncMode::None`].
    pub sync: SyncMode,
    /// The number of threads one search uses. 0 means the number of cores, at most 8. Default 0.
    pub search_threads: usize,
}

impl Default for FilesystemOptions {
    fn default() -> Self {
        Self { create_root: false, cross_mounts: false, openat2: true, sync: SyncMode::default(), search_threads: 0 }
    }
}

impl FilesystemOptions {
    /// Returns the defaults: opens an existing directory, without waiting for the device on changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether to create a missing root directory.
    #[must_use]
    pub fn with_create_root(mut self, create_root: bool) -> Self {
        self.create_root = create_root;
        self
    }

    /// Sets whether to enter other filesystems that are mounted beneath the root.
    #[must_use]
    pub fn with_cross_mounts(mut self, cross_mounts: bool) -> Self {
        self.cross_mounts = cross_mounts;
        self
    }

    /// Sets whether to let the kernel resolve paths.
    #[must_use]
    pub fn with_openat2(mut self, openat2: bool) -> Self {
        self.openat2 = openat2;
        self
    }

    /// Sets the number of threads one search uses.
    #[must_use]
    pub fn with_search_threads(mut self, search_threads: usize) -> Self {
        self.search_threads = search_threads;
        self
    }

    /// Sets what a change waits for.
    #[must_use]
    pub fn with_sync(mut self, sync: SyncMode) -> Self {
        self.sync = sync;
        self
    }

    /// Returns the capabilities of every directory that is opened with these options.
    pub fn capabilities(&self) -> Capabilities {
        self.sync.capabilities()
    }
}

/// A host directory as a tree.
///
/// ```
/// use treehold_tree::backend::{BackendExt, FilesystemBackend, FilesystemOptions};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let root = directory.path();
/// let tree = FilesystemBackend::open(root, FilesystemOptions::new())?;
/// tree.write("/src/main.rs", "fn main() {}\n").await?;
/// assert_eq!(std::fs::read_to_string(root.join("src/main.rs"))?, "fn main() {}\n");
/// # Ok(())
/// # }
/// ```
///
/// **Sealing.** Nothing leads out of the root: not `..`, not a link, wherever it points and whenever it is swapped in, not a
/// magic link of `/proc`, and no mount unless [`FilesystemOptions::cross_mounts`] is set. All of these fail with
/// `permission_denied`. Relative and absolute links that stay within the root are followed by reads and writes, and at the start
/// of a listing or search. `stat`, `delete` and `rename` apply to the link itself; searches report links without following them.
/// A dangling link is `not_found`: nothing is created through it. Devices, pipes and sockets are listed but never opened. Names
/// that no path can express (not UTF-8, control characters) are skipped and reported as failures.
///
/// **Writes.** A file is never written in place: its new content takes the name by one rename, so readers see either
/// the old or the new, even after a crash. Permission bits are kept, and so is the owner if the process may set it;
/// set-user-id bits, extended attributes and other hard links are not. A file that the process may not write to is not replaced
/// either. An append costs as much as the size of the file, unless the filesystem shares blocks (btrfs, XFS). A copied directory
/// appears as a whole, and a deleted one disappears at once. Unfinished writes have names that no operation shows or accepts
/// (`.treehold-<id>.tmp`); [`FilesystemBackend::sweep`] removes those left behind by a killed process.
///
/// **Concurrent writers.** Each change holds an exclusive `flock` on the directory of its name while it compares, prepares an
/// edit or append, and renames. So no acknowledged change is lost among tasks, backends and processes that use this crate. Other
/// programs are not excluded. Their writes change the version, unless they keep the size and fall within one tick of the host's
/// clock (some milliseconds before Linux 6.13). On filesystems without `flock` on directories, such as NFS, other processes are
/// not excluded either.
///
/// **Batches** are applied in order up to the first failure. They are not atomic.
///
/// **Cost.** An operation makes at most one hop to a blocking thread (about 40 µs), however many files it involves. `stat`, and
/// reads of files up to 64 KiB, need none if the kernel has everything cached, and then take 1 to 3 µs. A grep is as fast as
/// ripgrep.
#[derive(Debug, Clone)]
pub struct FilesystemBackend {
    root: Arc<Root>,
    sync: SyncMode,
    search_threads: usize,
}

impl FilesystemBackend {
    /// Opens a directory as the root of a tree and keeps it open, so that later renames and mounts above it have no effect.
    ///
    /// Cost: a few blocking system calls.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if the directory is missing, [`NotADirectory`](ErrorKind::NotADirectory) if it is
    /// something else, [`PermissionDenied`](ErrorKind::PermissionDenied) if it cannot be opened.
    pub fn open(root: impl AsRef<Path>, options: FilesystemOptions) -> Result<Self> {
        let search_threads = match options.search_threads {
            0 => work::cores().min(SEARCH_THREADS_MAX),
            count => count,
        };
        Ok(Self { root: Arc::new(Root::open(root.as_ref(), &options)?), sync: options.sync, search_threads })
    }

    /// Removes the unfinished writes that killed processes left behind: all private files of this crate in the tree that were
    /// last modified longer than `age` ago. Returns how many were removed.
    ///
    /// Reads never remove anything, so leftovers stay, unlisted, until this is called. A day is a safe age. Cost: one listing for
    /// each directory of the tree.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) if the root cannot be listed.
    pub async fn sweep(&self, age: Duration) -> Result<usize> {
        self.run(OpKind::Delete, VfsPath::ROOT, move |root, cancel| sweep::sweep(root, age, cancel)).await
    }

    /// Returns the root, refusing links if the operation asks for it.
    fn root(&self, refuse_links: bool) -> Arc<Root> {
        if refuse_links { Arc::new(self.root.without_links()) } else { Arc::clone(&self.root) }
    }

    async fn run<T: Send + 'static>(
        &self,
        operation: OpKind,
        path: &VfsPath,
        work: impl FnOnce(&Root, &Cancel) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run_on(Arc::clone(&self.root), operation, path, work).await
    }

    /// Runs blocking work on a blocking thread. Dropping the future tells the work to stop.
    async fn run_on<T: Send + 'static>(
        &self,
        root: Arc<Root>,
        operation: OpKind,
        path: &VfsPath,
        work: impl FnOnce(&Root, &Cancel) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let cancel = Cancel::default();
        let _guard = StopOnDrop(cancel.0.clone());
        let held = work::held();
        let work = move || {
            let done = work(&root, &cancel);
            drop(held);
            done
        };
        let result = match tokio::runtime::Handle::try_current() {
            Ok(runtime) => runtime.spawn_blocking(work).await.unwrap_or_else(|error| {
                let kind = if error.is_panic() { ErrorKind::Internal } else { ErrorKind::Unavailable };
                Err(Error::new(kind, "the work on the host ended before it was done").at(path).with_source(error))
            }),
            // Without a tokio runtime there is no blocking thread, so run on the caller's.
            Err(_) => work(),
        };
        result.map_err(|error| error.during(operation))
    }

    /// Runs a search. Searches can be long, so each waits for its turn among those of the same owner.
    async fn search_in_turn<T: Send + 'static>(
        &self,
        root: Arc<Root>,
        operation: OpKind,
        path: &VfsPath,
        work: impl FnOnce(&Root, &Cancel) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let done = work::run(work::LARGE, move |stop| work(&root, &Cancel(stop.clone()))).await;
        done.flatten().map_err(|error| at_if_unset(error, path).during(operation))
    }
}

impl fmt::Display for FilesystemBackend {
    /// Shows only the last component of the root: the full host path is for the operator.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.root.host().file_name() {
            Some(name) => write!(f, "Filesystem({})", name.to_string_lossy()),
            None => f.write_str("Filesystem"),
        }
    }
}

#[async_trait]
impl Backend for FilesystemBackend {
    fn capabilities(&self) -> Capabilities {
        self.sync.capabilities()
    }

    async fn stat(&self, path: &VfsPath, options: &StatOptions) -> Result<Entry> {
        tokio::task::coop::consume_budget().await;
        let root = self.root(options.refuse_links);
        if let Some(meta) = root.stat_in_memory(path).filter(|meta| !meta.as_ref().is_ok_and(meta::Meta::is_symlink)) {
            return meta.map(|meta| meta.entry(path)).map_err(|error| error.during(OpKind::Stat));
        }
        let at = path.to_owned();
        self.run_on(root, OpKind::Stat, path, move |root, _| {
            let meta = root.stat(&at)?;
            let leads_to = if meta.is_symlink() { root.leads_to(&at) } else { None };
            Ok(meta.entry(&at).with_leads_to(leads_to))
        })
        .await
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        tokio::task::coop::consume_budget().await;
        let root = self.root(options.refuse_links);
        let in_memory = root.open_file_in_memory(path).and_then(|file| content::read_part_in_memory(path, &file, options));
        if let Some(part) = in_memory {
            return part.map_err(|error| at_if_unset(error, path).during(OpKind::Read));
        }
        let (at, options) = (path.to_owned(), options.clone());
        self.run_on(root, OpKind::Read, path, move |root, _| {
            let file = root.open_file(&at)?;
            content::read_part(&at, &file, &options, |errno| root.fault(&at, errno)).map_err(|error| at_if_unset(error, &at))
        })
        .await
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        let (at, options) = (path.to_owned(), options.clone());
        self.run_on(self.root(options.refuse_links), OpKind::Ls, path, move |root, _| list::list(root, &at, &options)).await
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        let (at, options) = (path.to_owned(), options.clone());
        let root = self.root(options.scope.refuse_links);
        self.search_in_turn(root, OpKind::Glob, path, move |root, cancel| {
            search::glob(root, &at, &options, cancel).map_err(|error| at_if_unset(error, &at))
        })
        .await
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        let (at, options, workers) = (path.to_owned(), options.clone(), self.search_threads);
        let root = self.root(options.scope.refuse_links);
        self.search_in_turn(root, OpKind::Grep, path, move |root, cancel| {
            search::grep(root, &at, &options, workers, cancel).map_err(|error| at_if_unset(error, &at))
        })
        .await
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        search_by_reading(self, path, options).await
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        let Some(first) = changes.first() else { return Ok(Vec::new()) };
        let (changes, sync) = (changes.to_vec(), self.sync);
        self.run_on(self.root(options.refuse_links), OpKind::Apply, first.path(), move |root, cancel| {
            let writer = change::Writer::new(root, sync, cancel);
            let mut done = Vec::with_capacity(changes.len());
            for (index, change) in changes.iter().enumerate() {
                done.push(writer.apply(change).map_err(|error| error.during(change.kind()).in_batch(index, index))?);
            }
            Ok(done)
        })
        .await
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}

/// Sets the path of an error that has none.
fn at_if_unset(error: Error, path: &VfsPath) -> Error {
    if error.path().is_some() { error } else { error.at(path) }
}

/// Tells work whether its caller has given up.
#[derive(Debug, Clone, Default)]
struct Cancel(Stop);

impl Cancel {
    fn is_set(&self) -> bool {
        self.0.is_set()
    }

    /// Fails if the caller has given up.
    fn check(&self, path: &VfsPath) -> Result<()> {
        if self.is_set() { Err(Self::error(path)) } else { Ok(()) }
    }

    fn error(path: &VfsPath) -> Error {
        Error::new(ErrorKind::Unavailable, "the call was abandoned before it finished").at(path)
    }
}
