//! Combines several trees into one: every path goes to the backend with the longest matching prefix.
//!
//! [`CompositeBackend`] mounts backends at prefixes over a default at `/`. It guarantees:
//!
//! - The longest prefix of whole segments wins. Finding it costs O(path length), however many mounts there are, and
//!   does not allocate. Mounts may be nested, and a single file may be a mount ([`CompositeBuilder::file_route`]).
//! - A mount hides what the default backend or an outer mount has below its prefix, in every operation.
//! - Every ancestor of a mount lists it as a directory. A directory that leads to mounts exists even if no backend has
//!   it; a file of the default backend at its path is hidden.
//! - `glob` and `grep` from an ancestor query every mount that the pattern can reach, concurrently, under one limit,
//!   and merge the results in path order, so results are deterministic. The files of a mount match as seen from the
//!   ancestor. A backend that is mounted twice is searched twice: once per mount, with distinct paths.
//! - Paths in results, cursors and errors are the caller's.
//! - A batch within one mount is that backend's batch. A batch over several mounts is refused unless a partial result
//!   is allowed.
//! - A rename between mounts copies, verifies, then deletes source files that are unchanged since the copy. A fault in
//!   between leaves both.
//!
//! `router` finds mounts; `ls`, `search` (which includes glob and grep), `apply` and `transfer` (between mounts) make
//! several mounts answer as one. Start reading at `stat` of [`CompositeBackend`].

mod apply;
mod builder;
mod ls;
mod merge;
mod router;
mod search;
mod transfer;

pub use builder::{CompositeBuilder, Routes};

use crate::backend::Backend;
use crate::backend::rebase::View;
use async_trait::async_trait;
use router::{Resolved, Router};
use std::fmt;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, ErrorRecord, Result};
use treehold_core::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, Failure, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing,
    LsOptions, ReadOptions, Review, SearchOptions, SearchResult, Sight, StatOptions,
};
use treehold_core::path::VfsPath;

/// Backends mounted at prefixes of one tree, over a default backend at `/`.
///
/// Cost: for one path, that of the mount's backend plus the lookup. A search or listing above mounts queries each mount
/// that it reaches once.
///
/// ```
/// use std::sync::Arc;
/// use treehold_tree::backend::{BackendExt, StateBackend};
/// use treehold_tree::composite::CompositeBackend;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let tree = CompositeBackend::builder(Arc::new(StateBackend::new()))
///     .route("/memories", Arc::new(StateBackend::new()))?
///     .build()?;
/// tree.write("/memories/user.md", "likes tea\n").await?;
/// assert_eq!(tree.read_text("/memories/user.md").await?, "likes tea\n");
/// assert_eq!(tree.read_text("/memories/gone.md").await.unwrap_err().to_string(), "`/memories/gone.md` does not exist");
/// assert_eq!(tree.to_string(), "Composite(State, /memories => State)");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CompositeBackend {
    router: Router<Mount>,
    concurrency: usize,
    transfer_bytes_max: u64,
}

/// A mounted backend.
#[derive(Debug)]
struct Mount {
    backend: Arc<dyn Backend>,
    /// Whether the root of the backend is a file.
    is_file: bool,
}

/// A path, translated for the backend of its mount.
#[derive(Clone, Copy)]
struct Target<'a> {
    backend: &'a dyn Backend,
    prefix: &'a VfsPath,
    rest: &'a VfsPath,
}

impl CompositeBackend {
    /// Starts a composite over the backend for everything outside the mounts.
    pub fn builder(default: Arc<dyn Backend>) -> CompositeBuilder {
        CompositeBuilder::new(default)
    }

    /// Returns every mount with its prefix, in path order, the default first.
    pub fn mounts(&self) -> impl Iterator<Item = (&VfsPath, &Arc<dyn Backend>)> {
        self.router.iter().map(|(prefix, mount)| (prefix, &mount.backend))
    }

    /// Returns the prefix of the mount that contains a path, and the rest of the path within it.
    pub fn locate<'p>(&self, path: &'p VfsPath) -> (&VfsPath, &'p VfsPath) {
        let prefix = self.router.prefix(self.router.find(path).mount);
        (prefix, rest_of(path, prefix))
    }

    /// Returns the target of a path. Nothing exists below a file mount.
    fn target<'a>(&'a self, place: Resolved, path: &'a VfsPath) -> Result<Target<'a>> {
        let (mount, prefix) = (self.router.mount(place.mount), self.router.prefix(place.mount));
        let rest = rest_of(path, prefix);
        if mount.is_file && !rest.is_root() {
            return Err(Error::not_a_directory(prefix));
        }
        Ok(Target { backend: &*mount.backend, prefix, rest })
    }

    /// Returns whether a path is a directory only because it leads to mounts.
    fn is_virtual(&self, place: Resolved) -> bool {
        place.node.is_some_and(|node| self.router.node(node).mount().is_none())
    }

    /// Converts the error of a read to the caller's paths.
    async fn read_error(&self, error: Error, target: Target<'_>, path: &VfsPath) -> Error {
        let error = target.outward().error(error, &[target.rest]);
        let is_absent = error.kind() == ErrorKind::NotADirectory && self.is_beneath_hidden_file(path).await;
        if is_absent { Error::not_found(path) } else { error }
    }

    /// Returns whether the file that makes a path impossible is itself hidden, because mounts make its path a
    /// directory.
    async fn is_beneath_hidden_file(&self, path: &VfsPath) -> bool {
        let mut above = std::iter::successors(path.parent(), |above| above.parent());
        let nearest = above.find_map(|above| Some((above, self.router.find(above))).filter(|(_, place)| place.node.is_some()));
        let Some((above, place)) = nearest.filter(|(_, place)| self.is_virtual(*place)) else { return false };
        match self.target(place, above) {
            Ok(target) => !target.backend.stat(target.rest, &StatOptions::new()).await.is_ok_and(|entry| entry.is_directory()),
            Err(_) => false,
        }
    }

    /// Delegates to the mount that contains the files under review.
    async fn review_mount(&self, review: &Review) -> Result<Vec<Sight>> {
        let mount = self.router.find(&review.at).mount;
        let (backend, prefix) = (&self.router.mount(mount).backend, self.router.prefix(mount));
        let inner = review.map_paths(|path| rest_of(path, prefix).to_owned());
        backend.review(&inner).await.map_err(|error| View::Beneath(prefix).error(error, &[]))
    }

    async fn stat_virtual(&self, place: Resolved, path: &VfsPath, options: &StatOptions) -> Result<Entry> {
        let target = self.target(place, path)?;
        match target.backend.stat(target.rest, options).await {
            Ok(entry) if entry.is_directory() => Ok(entry.with_path(path)),
            Ok(_) => Ok(Entry::directory(path)),
            Err(error) if is_absence(&error) => Ok(Entry::directory(path)),
            Err(error) => Err(self.read_error(error, target, path).await),
        }
    }
}

impl<'a> Target<'a> {
    fn outward(self) -> View<'a> {
        View::Beneath(self.prefix)
    }
}

fn rest_of<'p>(path: &'p VfsPath, prefix: &VfsPath) -> &'p VfsPath {
    path.strip_prefix(prefix).expect("a path starts with its mount's prefix")
}

/// Returns whether an error means only that nothing exists at the path.
fn is_absence(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Adds the prefix of the failed mount to an error that fails a whole search or listing.
fn of_mount(prefix: &VfsPath, error: Error) -> Error {
    let message = format!("mount `{prefix}`: {}", error.message());
    error.with_message(message)
}

/// Reports a failed mount beside the results of the others.
fn mount_failure(prefix: &VfsPath, error: &Error) -> Failure {
    Failure { path: prefix.to_owned(), error: ErrorRecord::from(error) }
}

impl fmt::Display for CompositeBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Composite(")?;
        for (prefix, mount) in self.router.iter() {
            match prefix.is_root() {
                true => write!(f, "{}", mount.backend)?,
                false => write!(f, ", {prefix} => {}", mount.backend)?,
            }
        }
        f.write_str(")")
    }
}

#[async_trait]
impl Backend for CompositeBackend {
    /// Declares what holds in every mount; for example, batches within one mount are atomic only if all mounts have
    /// atomic batches. Writing, links and indexes are declared if any mount has them.
    fn capabilities(&self) -> Capabilities {
        let all = self.router.iter().map(|(_, mount)| mount.backend.capabilities());
        all.reduce(Capabilities::merged_with).expect("the default is always mounted")
    }

    async fn stat(&self, path: &VfsPath, options: &StatOptions) -> Result<Entry> {
        let place = self.router.find(path);
        if self.is_virtual(place) {
            return self.stat_virtual(place, path, options).await;
        }
        let target = self.target(place, path)?;
        match target.backend.stat(target.rest, options).await {
            Ok(entry) => {
                let leads_to = entry.leads_to.as_deref().map(|leads_to| target.prefix.concat(leads_to));
                let mut entry = entry.with_path(path);
                entry.leads_to = leads_to;
                Ok(entry)
            }
            Err(error) => Err(self.read_error(error, target, path).await),
        }
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        let place = self.router.find(path);
        if self.is_virtual(place) {
            return Err(Error::is_directory(path));
        }
        let target = self.target(place, path)?;
        match target.backend.read(target.rest, options).await {
            Ok(read) => Ok(read),
            Err(error) => Err(self.read_error(error, target, path).await),
        }
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        self.list(path, options).await
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        self.find_paths(path, options).await
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        self.find_lines(path, options).await
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        self.find_files(path, options).await
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        self.apply_changes(changes, options).await
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        self.review_mount(review).await
    }
}
