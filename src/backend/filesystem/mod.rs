//! A directory of the host as a tree, sealed at its root.
//!
//! [`root`] is where every access is opened, beneath the handle that [`seal`] keeps. [`change`] makes the changes: [`ground`] finds and
//! locks where, [`temp`] makes each whole, [`delete`], [`transfer`] and [`tree`] move and remove. [`list`], [`content`] and [`search`]
//! read, the last by its own [`walk`]. What the host says is put into the crate's words by [`errno`] and [`meta`].

mod change;
mod content;
mod delete;
mod directory;
mod errno;
mod ground;
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
use crate::error::{Error, ErrorKind, Result};
use crate::ops::{
    ApplyOptions, Capabilities, Change, Changed, Durability, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing,
    LsOptions, OpKind, ReadOptions, Review, SearchOptions, SearchResult, Sight,
};
use crate::path::VfsPath;
use crate::work::{self, Stop, StopOnDrop};
use async_trait::async_trait;
use root::Root;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How many threads one search takes at most when the options leave it open.
const SEARCH_THREADS_MAX: usize = 8;

/// What a change waits for before it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SyncMode {
    /// Nothing: the change survives the end of the process, and the loss of power once the host has written it back, after a
    /// while of its choosing.
    #[default]
    None,
    /// The file's content is on the device. Its name may still be lost with the power.
    File,
    /// The file's content and its name are on the device: the change survives the loss of power.
    Full,
}

/// How to open a directory of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FilesystemOptions {
    /// Makes the root directory, and those above it, when it is missing. Default false.
    pub create_root: bool,
    /// Goes on into other filesystems that are mounted beneath the root. Default false: they are listed, but not entered.
    pub cross_mounts: bool,
    /// Lets the kernel resolve paths beneath the root where it can (`openat2` of Linux 5.6). Default true. Without it, and where the
    /// kernel or a sandbox refuses the call, paths are resolved one component at a time, with the same result.
    pub openat2: bool,
    /// What a change waits for. Default [`SyncMode::None`].
    pub sync: SyncMode,
    /// How many threads one search takes; 0 for as many as the host runs at once, at most 8. Default 0.
    pub search_threads: usize,
}

impl Default for FilesystemOptions {
    fn default() -> Self {
        Self { create_root: false, cross_mounts: false, openat2: true, sync: SyncMode::default(), search_threads: 0 }
    }
}

impl FilesystemOptions {
    /// Opens a directory that exists, without waiting for the device.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the root directory when it is missing.
    #[must_use]
    pub fn with_create_root(mut self, create_root: bool) -> Self {
        self.create_root = create_root;
        self
    }

    /// Goes on into other filesystems that are mounted beneath the root.
    #[must_use]
    pub fn with_cross_mounts(mut self, cross_mounts: bool) -> Self {
        self.cross_mounts = cross_mounts;
        self
    }

    /// Lets the kernel resolve paths where it can.
    #[must_use]
    pub fn with_openat2(mut self, openat2: bool) -> Self {
        self.openat2 = openat2;
        self
    }

    /// Sets how many threads one search takes.
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
}

/// A directory of the host as a tree.
///
/// ```
/// use stratafs::{BackendExt, FilesystemBackend, FilesystemOptions};
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
/// **The seal.** Nothing leads out of the root: not `..`, not a link, whatever it names and whenever it is swapped in, not a magic link of
/// `/proc`, and no mount unless [`FilesystemOptions::cross_mounts`]; all are `permission_denied`. Links that stay within, relative or
/// absolute, are followed by reads and writes, and so is a link to the directory that a listing or search is asked of; `stat`, `delete` and `rename` are about
/// the link itself, and searches show links and do not follow them. A link that leads nowhere is `not_found`: nothing is made through
/// it. Devices, pipes and sockets are listed and never opened. Names that no path can hold (not UTF-8, a control character) are
/// passed over and reported among the failures.
///
/// **Writes.** A file is never written in place: its new content takes its name by one rename, so readers and whoever comes after
/// a crash see the old or the new. Permission bits are kept, and the owner where the process may; set-user-id, extended attributes and
/// further hard links are not. A file that the process may not write to is not replaced either. An append costs the size
/// of the file, unless its filesystem shares blocks (btrfs, XFS). A directory is copied aside and appears whole, and one that is
/// deleted disappears at once. Unfinished writes have names that no operation shows or takes (`.stratafs-<id>.tmp`); what a killed
/// process left of them is removed by [`FilesystemBackend::sweep`].
///
/// **Writers at once.** Each change holds an exclusive `flock` of the directory of its name while it compares, prepares an edit or
/// append, and renames. So nothing acknowledged is lost among tasks, backends and processes that use this crate. A program that
/// writes by itself is not held off; a version shows that it did, unless it keeps the size and the host's clock does not move (some
/// milliseconds before Linux 6.13). On filesystems without `flock` on directories, such as NFS, processes are not held off either.
///
/// **Batches** are applied in order, up to the first failure, and are not atomic.
///
/// **Cost.** Each operation is at most one hop to a blocking thread, however many files it is about (some 40 µs). `stat`, and reads of
/// files up to 64 KiB, are answered without one when the kernel finds all of it in memory, which takes 1 to 3 µs. A grep takes
/// no longer than ripgrep.
#[derive(Debug, Clone)]
pub struct FilesystemBackend {
    root: Arc<Root>,
    sync: SyncMode,
    search_threads: usize,
}

impl FilesystemBackend {
    /// Opens a directory as the root of a tree and keeps it open: what is renamed or mounted above it later changes nothing.
    ///
    /// Cost: a few system calls; blocks for them.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when it is missing, [`NotADirectory`](ErrorKind::NotADirectory),
    /// [`PermissionDenied`](ErrorKind::PermissionDenied).
    pub fn open(root: impl AsRef<Path>, options: FilesystemOptions) -> Result<Self> {
        let search_threads = match options.search_threads {
            0 => work::cores().min(SEARCH_THREADS_MAX),
            count => count,
        };
        Ok(Self { root: Arc::new(Root::open(root.as_ref(), &options)?), sync: options.sync, search_threads })
    }

    /// Removes what unfinished writes left behind when a process was killed: the private files of this crate, in the whole tree,
    /// that were last touched longer than `age` ago. Returns how many there were.
    ///
    /// Reads never remove anything, so leftovers stay, unlisted, until this is called; a day is a safe age. Cost: one listing for
    /// each directory of the tree.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when the root cannot be listed.
    pub async fn sweep(&self, age: Duration) -> Result<usize> {
        self.run(OpKind::Delete, VfsPath::ROOT, move |root, cancel| sweep::sweep(root, age, cancel)).await
    }

    /// Returns the root as an operation asks it, which may follow no link.
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

    /// Runs work that blocks, in one hop to a thread for it. Dropping the call tells the work to stop.
    async fn run_on<T: Send + 'static>(
        &self,
        root: Arc<Root>,
        operation: OpKind,
        path: &VfsPath,
        work: impl FnOnce(&Root, &Cancel) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let cancel = Cancel::default();
        let _guard = StopOnDrop(cancel.0.clone());
        let work = move || work(&root, &cancel);
        let result = match tokio::runtime::Handle::try_current() {
            Ok(runtime) => runtime.spawn_blocking(work).await.unwrap_or_else(|error| {
                let kind = if error.is_panic() { ErrorKind::Internal } else { ErrorKind::Unavailable };
                Err(Error::new(kind, "the work on the host ended before it was done").at(path).with_source(error))
            }),
            // Without a runtime of tokio there is no thread to hop to; the caller's own has to do.
            Err(_) => work(),
        };
        result.map_err(|error| error.during(operation))
    }

    /// Runs a search, whose length its caller chooses, in the turn of its owner.
    async fn search_in_turn<T: Send + 'static>(
        &self,
        root: Arc<Root>,
        operation: OpKind,
        path: &VfsPath,
        work: impl FnOnce(&Root, &Cancel) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let done = work::run(work::LARGE, move |stop| work(&root, &Cancel(stop.clone()))).await;
        done.flatten().map_err(|error| placed(error, path).during(operation))
    }
}

impl fmt::Display for FilesystemBackend {
    /// Names the last part of the root: the whole path of the host is for the operator.
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
        let durability = if self.sync == SyncMode::Full { Durability::Power } else { Durability::Process };
        Capabilities::new().with_atomic_batch(false).with_durability(durability).with_symlinks(true)
    }

    async fn stat(&self, path: &VfsPath) -> Result<Entry> {
        tokio::task::coop::consume_budget().await;
        if let Some(meta) = self.root.stat_in_memory(path).filter(|meta| !meta.as_ref().is_ok_and(meta::Meta::is_symlink)) {
            return meta.map(|meta| meta.entry(path)).map_err(|error| error.during(OpKind::Stat));
        }
        let at = path.to_owned();
        self.run(OpKind::Stat, path, move |root, _| {
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
            return part.map_err(|error| placed(error, path).during(OpKind::Read));
        }
        let (at, options) = (path.to_owned(), options.clone());
        self.run_on(root, OpKind::Read, path, move |root, _| {
            let file = root.open_file(&at)?;
            content::read_part(&at, &file, &options, |errno| root.fault(&at, errno)).map_err(|error| placed(error, &at))
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
            search::glob(root, &at, &options, cancel).map_err(|error| placed(error, &at))
        })
        .await
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        let (at, options, workers) = (path.to_owned(), options.clone(), self.search_threads);
        let root = self.root(options.scope.refuse_links);
        self.search_in_turn(root, OpKind::Grep, path, move |root, cancel| {
            search::grep(root, &at, &options, workers, cancel).map_err(|error| placed(error, &at))
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

/// Tells an error of the path it was met at, unless it knows its own.
fn placed(error: Error, path: &VfsPath) -> Error {
    if error.path().is_some() { error } else { error.at(path) }
}

/// Whether the caller is gone.
#[derive(Debug, Clone, Default)]
struct Cancel(Stop);

impl Cancel {
    fn is_set(&self) -> bool {
        self.0.is_set()
    }

    fn stop(&self) -> &Stop {
        &self.0
    }

    /// Stops work whose caller is gone.
    fn check(&self, path: &VfsPath) -> Result<()> {
        if self.is_set() { Err(Self::error(path)) } else { Ok(()) }
    }

    fn error(path: &VfsPath) -> Error {
        Error::new(ErrorKind::Unavailable, "the call was given up before it was done").at(path)
    }
}
