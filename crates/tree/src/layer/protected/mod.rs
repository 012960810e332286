//! Files of a host that a tree may read but must not change: those that make a tool run code later, and those that govern the tree itself.
//!
//! Start at [`Protected`]. [`RUNS_CODE`] is the list of names with a reason for each, and [`Protections`] is the configuration of one tree.
//! `changes` checks a batch, `places` resolves its paths, `repository` recognizes repositories by their contents, `name` compares names as
//! file systems do, and `turns` prevents moves between a check and its change.

use crate::backend::Backend;
use crate::backend::overlay::ApplyGuard;
use crate::forward_backend;
use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use name::{Folded, Pattern};
use parking_lot::Mutex;
use repository::Repositories;
use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{ApplyOptions, Change, Changed, Difference, Review, ReviewPurpose, Sight, WriteMode};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::work;
use turns::{Ground, Turn};

mod changes;
mod list;
mod name;
mod places;
mod repository;
mod turns;

pub use list::RUNS_CODE;

tokio::task_local! {
    static ALLOWANCE: Arc<Allowance>;
}

/// The paths that a person allowed for one piece of work, and the refusals during it.
#[derive(Debug, Default)]
pub struct Allowance {
    /// The allowed paths, in the whole tree.
    allowed: Vec<VfsPathBuf>,
    refused: Mutex<Vec<Refusal>>,
}

impl Allowance {
    /// Allows changes of these paths.
    pub fn new(allowed: Vec<VfsPathBuf>) -> Arc<Self> {
        Arc::new(Self { allowed, refused: Mutex::default() })
    }

    /// Runs work in which the allowed paths may be changed.
    pub async fn during<T>(self: Arc<Self>, work: impl Future<Output = T>) -> T {
        ALLOWANCE.scope(self, work).await
    }

    /// Returns the refusals so far that a person could allow.
    pub fn refused(&self) -> Vec<Refusal> {
        self.refused.lock().clone()
    }
}

/// A path that may not be changed without a person's permission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The path in the whole tree.
    pub path: VfsPathBuf,
    /// Why it was refused.
    pub reason: String,
}

/// An entry of the list or of a configuration.
#[derive(Debug, Clone)]
struct Named {
    names: Vec<Pattern>,
    reason: String,
}

impl Named {
    fn new(pattern: &str, reason: impl Into<String>) -> Result<Self> {
        let names: Vec<&str> = pattern.split('/').collect();
        if pattern.trim_matches('*').is_empty() || names.iter().any(|name| name.is_empty() || matches!(*name, "." | ".." | "**")) {
            let message = format!(
                "`{pattern}` is not a valid name of a protected file; write it as `.envrc` or \
                    `.vscode/tasks.json`, with `*` in a name"
            );
            return Err(Error::invalid_argument(message));
        }
        Ok(Self { names: names.into_iter().map(Pattern::new).collect(), reason: reason.into() })
    }

    /// Returns whether a path lies at or beneath a match of this entry.
    fn covers(&self, path: &[Folded]) -> bool {
        path.windows(self.names.len()).any(|names| names.iter().zip(&self.names).all(|(name, pattern)| name.is_of(pattern)))
    }

    /// Returns the number of leading names of a path up to the end of the first match: the prefix up to there is protected.
    fn top(&self, path: &[Folded]) -> Option<usize> {
        let first = path.windows(self.names.len()).position(|names| names.iter().zip(&self.names).all(|(name, own)| name.is_of(own)))?;
        Some(first + self.names.len())
    }

    /// Returns whether a match of this entry may lie beneath a path.
    fn lies_beneath(&self, path: &[Folded]) -> bool {
        (1..self.names.len())
            .any(|count| path.len() >= count && path[path.len() - count..].iter().zip(&self.names).all(|(name, own)| name.is_of(own)))
    }
}

/// A path of the tree that governs it.
#[derive(Debug, Clone)]
struct Governing {
    names: Vec<Folded>,
    reason: String,
}

/// What may not be changed in one tree.
#[derive(Debug, Clone)]
pub struct Protections {
    /// The mount point of the tree in the whole tree, as people name its paths.
    at: VfsPathBuf,
    /// What is protected besides the list.
    also: Vec<Named>,
    exempt: Vec<Named>,
    exempt_paths: Vec<Vec<Folded>>,
    governing: Vec<Governing>,
    /// The host directory that the tree changes, whose changes take turns.
    ground: Arc<Ground>,
}

/// The entries of [`RUNS_CODE`]. Folding their names takes longer than a request, and each directory that is opened needs them.
static LISTED: LazyLock<Vec<Named>> = LazyLock::new(|| {
    RUNS_CODE.iter().map(|(pattern, reason)| Named::new(pattern, *reason).expect("the built-in names are valid")).collect()
});

/// The reason why a path may not be changed.
enum Why<'a> {
    /// It runs code; a person may allow it.
    RunsCode {
        reason: &'a str,
        /// The depth of the protected path.
        depth: usize,
    },
    /// It governs the tree.
    Governs(&'a str),
}

impl Protections {
    /// Protects the names in [`RUNS_CODE`], in a tree mounted at a path of the whole tree.
    pub fn new(at: &VfsPath) -> Self {
        let (also, exempt) = (Vec::new(), Vec::new());
        Self { at: at.to_owned(), also, exempt, exempt_paths: Vec::new(), governing: Vec::new(), ground: Arc::default() }
    }

    /// Sets the host directory that the tree changes, as a canonical path. Trees whose directories are equal or contain each other then
    /// take turns, so that no change of one comes between a check and a change of another.
    #[must_use]
    pub fn with_root(mut self, root: impl Into<PathBuf>) -> Self {
        self.ground = Arc::new(Ground::new(root.into()));
        self
    }

    /// Protects more names, such as `Justfile` or `.tool/config`.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an invalid name.
    pub fn with_names(mut self, patterns: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        for pattern in patterns {
            self.also.push(Named::new(pattern.as_ref(), "the configuration protects it")?);
        }
        Ok(self)
    }

    /// Exempts names from protection: an entry of the list or a name beneath one or, with a leading `/`, a path of the whole tree with
    /// everything beneath. Governing paths are never exempt.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for text that is neither a name nor a path.
    pub fn without(mut self, patterns: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        for pattern in patterns {
            let pattern = pattern.as_ref();
            if pattern.starts_with('/') {
                let path = VfsPathBuf::parse(pattern)?;
                match (path.strip_prefix(&self.at), self.at.starts_with(&path)) {
                    (Some(path), _) => self.exempt_paths.push(folded(path)),
                    (None, true) => self.exempt_paths.push(Vec::new()),
                    (None, false) => {}
                }
            } else {
                self.exempt.push(Named::new(pattern, "")?);
            }
        }
        Ok(self)
    }

    /// Protects a path of the tree and everything beneath it permanently: only the configuration changes what governs the tree.
    #[must_use]
    pub fn with_governing(mut self, path: &VfsPath, reason: impl Into<String>) -> Self {
        self.governing.push(Governing { names: folded(path), reason: reason.into() });
        self
    }

    /// Protects the directories above something that lies beneath `path` under a name that no path can express.
    pub fn with_governing_beneath(mut self, path: &VfsPath, reason: impl Into<String>) -> Self {
        let names = folded(path).into_iter().chain([Folded::unnamable()]).collect();
        self.governing.push(Governing { names, reason: reason.into() });
        self
    }

    /// Returns the protected names.
    fn named(&self) -> impl Iterator<Item = &Named> {
        LISTED.iter().chain(&self.also)
    }

    /// Returns an allowance for paths of the tree.
    fn allowance(&self, named: &[VfsPathBuf]) -> Arc<Allowance> {
        Allowance::new(named.iter().map(|path| self.at.concat(path)).collect())
    }

    /// Returns why a path may not be changed; `None` if it may.
    fn why(&self, path: &VfsPath) -> Option<Why<'_>> {
        let names = folded(path);
        if let Some(governing) = self.governing.iter().find(|governing| names.starts_with(&governing.names)) {
            return Some(Why::Governs(&governing.reason));
        }
        let named = self.named().find(|named| named.covers(&names))?;
        let depth = self.named().filter_map(|named| named.top(&names)).min().unwrap_or(names.len());
        (!self.is_exempt(path)).then_some(Why::RunsCode { reason: &named.reason, depth })
    }

    /// Returns why no link may arrive at a path; `None` if one may. Otherwise protected names beneath the path could be changed through the
    /// link's target.
    fn why_link(&self, path: &VfsPath) -> Option<Why<'_>> {
        if let Some(governing) = self.why_whole(path) {
            return Some(Why::Governs(&governing.reason));
        }
        let names = folded(path);
        let named = self.named().find(|named| named.lies_beneath(&names))?;
        (!self.is_exempt(path)).then_some(Why::RunsCode { reason: &named.reason, depth: names.len() })
    }

    /// Returns whether a path is exempt from protection by name.
    fn is_exempt(&self, path: &VfsPath) -> bool {
        let names = folded(path);
        self.exempt.iter().any(|exempt| exempt.covers(&names)) || self.exempt_paths.iter().any(|path| names.starts_with(path))
    }

    /// Returns the governing path within `path`, if any: then `path` may not be moved or removed as a whole.
    fn why_whole(&self, path: &VfsPath) -> Option<&Governing> {
        // The tree itself refuses to move its root, with a better message.
        if path.is_root() {
            return None;
        }
        let names = folded(path);
        self.governing.iter().find(|governing| governing.names.starts_with(&names))
    }

    /// Returns whether a person has allowed a path, or its protected ancestor at `depth`, for the current work.
    fn is_allowed(&self, path: &VfsPath, depth: usize) -> bool {
        let whole = self.at.concat(path);
        let allows = |allowed: &VfsPathBuf| {
            // A permission for a directory above does not count: it would include files in the directory that the person did not think of.
            whole.starts_with(allowed) && allowed.strip_prefix(&self.at).is_some_and(|allowed| allowed.depth() >= depth)
        };
        ALLOWANCE.try_with(|allowance| allowance.allowed.iter().any(allows)).unwrap_or(false)
    }

    /// Waits for a turn in which no other change comes between the check of a batch and the batch.
    async fn turn(&self, changes: &[Change]) -> Turn {
        let is_alone = |change: &Change| match change {
            Change::Rename { .. } | Change::Copy { .. } => true,
            // If two batches each create a part of a repository, the second must see the first.
            _ => Repositories::may_complete(&folded(change.path())),
        };
        turns::turn(&self.ground, changes.iter().any(is_alone)).await
    }
}

#[async_trait]
impl ApplyGuard for Protections {
    async fn check(&self, lower: &dyn Backend, changes: &[Change], named: &[VfsPathBuf]) -> Result<()> {
        self.allowance(named).during(changes::check(self, lower, changes)).await
    }

    fn during<'a>(&self, named: &[VfsPathBuf], work: BoxFuture<'a, ()>) -> BoxFuture<'a, ()> {
        self.allowance(named).during(work).boxed()
    }
}

fn governs(path: &VfsPath, reason: &str) -> Error {
    let message = format!("`{path}` cannot be changed through this tree: {reason}; skip it, or ask the user to change it");
    Error::new(ErrorKind::PermissionDenied, message).at(path)
}

fn folded(path: &VfsPath) -> Vec<Folded> {
    path.segments().map(Folded::new).collect()
}

/// Refuses to change files that make a tool run code later, and files that govern the tree; everything can be read.
///
/// Place it around a directory of the host where others run the files. A rename is checked at both ends and a copy at its target, with
/// everything in a directory; links are followed first, and names are compared as the most lenient file system does. Removing a directory
/// may remove protected files in it, because nothing runs then; but every directory above a governing path stays.
///
/// No link may be moved above a protected name (to `.vscode`, where `tasks.json` is protected), because the name could then be written
/// through the link's target. A directory that git treats as a repository because it contains `HEAD`, `objects` and `refs` is protected
/// like `.git`, and nobody can create the last of the three. An existing Subversion repository is protected too.
///
/// **Concurrent writers.** In one process, a batch with a rename or a copy runs alone in its host directory, in all trees that mount the
/// directory, or one above or beneath it ([`Protections::with_root`]). So nothing is moved between the check and the change of another
/// batch.
///
/// Cost: a few `stat` calls for each directory of a changed path, and a walk of the content for a rename or copy. Links and moves that
/// another process makes at the same moment, past this layer, are not seen.
///
/// ```
/// use treehold_tree::layer::{Protected, Protections};
/// use treehold_core::{ErrorKind, VfsPath};
/// use treehold_tree::backend::{BackendExt, StateBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let protections = Protections::new(VfsPath::ROOT).with_names(["Justfile"])?.without([".npmrc"])?;
/// let tree = Protected::new(protections, StateBackend::new());
/// tree.write("/src/main.rs", "fn main() {}").await?;
/// tree.write("/.npmrc", "save-exact=true").await?;
/// let error = tree.write("/sub/.git/hooks/pre-commit", "#!/bin/sh").await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::PermissionDenied);
/// tree.write("/justfile", "default:").await.unwrap_err();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Protected<B> {
    protections: Arc<Protections>,
    inner: B,
}

impl<B: Backend> Protected<B> {
    /// Protects a tree.
    pub fn new(protections: impl Into<Arc<Protections>>, inner: B) -> Self {
        Self { protections: protections.into(), inner }
    }
}

impl<B: Backend> fmt::Display for Protected<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Protected({})", self.inner)
    }
}

#[async_trait]
impl<B: Backend> Backend for Protected<B> {
    forward_backend! { self => self.inner; capabilities, stat, read, ls, glob, grep, search }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        let turn = Arc::new(self.protections.turn(changes).await);
        changes::check(&self.protections, &self.inner, changes).await?;
        // An abandoned change may continue for a moment on another thread. The turn lasts until that ends.
        work::holding(turn, self.inner.apply(changes, options)).await
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        if review.purpose == ReviewPurpose::Consent {
            let change = |difference: &Difference| match difference.after {
                None => Change::Delete { path: difference.path.clone(), recursive: true, expect: None },
                Some(_) => Change::Write { path: difference.path.clone(), content: Bytes::new(), mode: WriteMode::Overwrite },
            };
            let changes: Vec<Change> = review.differences.iter().map(change).collect();
            // Refusals are recorded in the allowance; the result is not needed.
            let _ = changes::check(&self.protections, &self.inner, &changes).await;
        }
        self.inner.review(review).await
    }
}

#[cfg(test)]
mod tests;
