//! Files of a host that a tree may read and must not change: those that make a tool run code later, and those that govern the tree itself.
//!
//! Start at [`Protected`]. [`RUNS_CODE`] is the list of names with a reason for each, [`Protections`] is what holds for one tree,
//! `name` compares names as file systems do.

use crate::backend::Backend;
use crate::backend::overlay::ApplyGuard;
use crate::error::{Error, ErrorKind, Result};
use crate::layer::walk::{Met, walk};
use crate::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, EntryKind, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing,
    LsOptions, ReadOptions, Review, SearchOptions, SearchResult, Sight,
};
use crate::path::{VfsPath, VfsPathBuf};
use async_trait::async_trait;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use name::{Folded, Pattern};
use parking_lot::Mutex;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

mod list;
mod name;

pub use list::RUNS_CODE;

tokio::task_local! {
    static ALLOWANCE: Arc<Allowance>;
}

/// What a person allowed for the length of one piece of work, and what was refused in it.
#[derive(Debug, Default)]
pub(crate) struct Allowance {
    /// Paths of the whole tree that a person named.
    allowed: Vec<VfsPathBuf>,
    refused: Mutex<Vec<Refusal>>,
}

impl Allowance {
    pub(crate) fn new(allowed: Vec<VfsPathBuf>) -> Arc<Self> {
        Arc::new(Self { allowed, refused: Mutex::default() })
    }

    /// Does work in which the paths may be changed.
    pub(crate) async fn during<T>(self: Arc<Self>, work: impl Future<Output = T>) -> T {
        ALLOWANCE.scope(self, work).await
    }

    /// Returns what was refused so far and a person could allow.
    #[cfg(feature = "mcp")]
    pub(crate) fn refused(&self) -> Vec<Refusal> {
        self.refused.lock().clone()
    }
}

/// A path that may not be changed unless a person says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// In the whole tree.
    pub(crate) path: VfsPathBuf,
    pub(crate) reason: String,
}

/// A name of the list, or of a configuration.
#[derive(Debug, Clone)]
struct Named {
    names: Vec<Pattern>,
    reason: String,
}

impl Named {
    fn new(pattern: &str, reason: impl Into<String>) -> Result<Self> {
        let names: Vec<&str> = pattern.split('/').collect();
        if pattern.trim_matches('*').is_empty() || names.iter().any(|name| name.is_empty() || matches!(*name, "." | ".." | "**")) {
            let message =
                format!("`{pattern}` is no name of a protected file; write it as `.envrc` or `.vscode/tasks.json`, with `*` in a name");
            return Err(Error::invalid_argument(message));
        }
        Ok(Self { names: names.into_iter().map(Pattern::new).collect(), reason: reason.into() })
    }

    /// Tells whether a path lies at or beneath something of this name.
    fn covers(&self, path: &[Folded]) -> bool {
        path.windows(self.names.len()).any(|names| names.iter().zip(&self.names).all(|(name, pattern)| name.is_of(pattern)))
    }

    /// Returns how many names of a path lead to something of this name: the path up to there is what is protected.
    fn top(&self, path: &[Folded]) -> Option<usize> {
        let first = path.windows(self.names.len()).position(|names| names.iter().zip(&self.names).all(|(name, own)| name.is_of(own)))?;
        Some(first + self.names.len())
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
    /// Where the tree stands in the whole tree, as people name its paths.
    at: VfsPathBuf,
    named: Vec<Named>,
    exempt: Vec<Named>,
    exempt_paths: Vec<Vec<Folded>>,
    governing: Vec<Governing>,
}

/// Why a path may not be changed.
enum Why<'a> {
    /// It runs code; a person may allow it.
    RunsCode(&'a str),
    /// It governs the tree.
    Governs(&'a str),
}

impl Protections {
    /// Protects what is in [`RUNS_CODE`], in a tree that stands at a path of the whole.
    pub fn new(at: &VfsPath) -> Self {
        let named = RUNS_CODE.iter().map(|(pattern, reason)| Named::new(pattern, *reason).expect("the list holds names")).collect();
        Self { at: at.to_owned(), named, exempt: Vec::new(), exempt_paths: Vec::new(), governing: Vec::new() }
    }

    /// Protects more names, such as `Justfile` or `.tool/config`.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for what is no name.
    pub fn with_names(mut self, patterns: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        for pattern in patterns {
            self.named.push(Named::new(pattern.as_ref(), "the configuration protects it")?);
        }
        Ok(self)
    }

    /// Leaves names out of what is protected: one as the list has it or one beneath it, or, with a `/` before it, a path of the whole tree
    /// with all that lies beneath. What governs the tree is never left out.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for what is no name and no path.
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

    /// Protects a path of the tree, with all that lies beneath, for good: nobody but the configuration changes what governs the tree.
    #[must_use]
    pub fn with_governing(mut self, path: &VfsPath, reason: impl Into<String>) -> Self {
        self.governing.push(Governing { names: folded(path), reason: reason.into() });
        self
    }

    /// Allows paths of the tree.
    fn allowance(&self, named: &[VfsPathBuf]) -> Arc<Allowance> {
        Allowance::new(named.iter().map(|path| self.at.concat(path)).collect())
    }

    /// Says why a path may not be changed; none when it may.
    fn why(&self, path: &VfsPath) -> Option<Why<'_>> {
        let names = folded(path);
        if let Some(governing) = self.governing.iter().find(|governing| names.starts_with(&governing.names)) {
            return Some(Why::Governs(&governing.reason));
        }
        let named = self.named.iter().find(|named| named.covers(&names))?;
        let is_exempt =
            self.exempt.iter().any(|exempt| exempt.covers(&names)) || self.exempt_paths.iter().any(|path| names.starts_with(path));
        (!is_exempt).then_some(Why::RunsCode(&named.reason))
    }

    /// Says why what stands at a path may not be moved or removed as a whole: something in it governs the tree.
    fn why_whole(&self, path: &VfsPath) -> Option<&Governing> {
        // No tree takes its root away, and it says so better.
        if path.is_root() {
            return None;
        }
        let names = folded(path);
        self.governing.iter().find(|governing| governing.names.starts_with(&names))
    }

    /// Tells whether a person has named a path, or what is protected above it, for the work that goes on.
    fn is_allowed(&self, path: &VfsPath) -> bool {
        let whole = self.at.concat(path);
        let names = folded(path);
        let top = self.named.iter().filter_map(|named| named.top(&names)).min().unwrap_or(names.len());
        let allows = |allowed: &VfsPathBuf| {
            // A directory above names all that lies in it, and what makes tools run code is not seen there.
            whole.starts_with(allowed) && allowed.strip_prefix(&self.at).is_some_and(|allowed| allowed.depth() >= top)
        };
        ALLOWANCE.try_with(|allowance| allowance.allowed.iter().any(allows)).unwrap_or(false)
    }

    fn check_path(&self, path: &VfsPath, doing: &str) -> Result<()> {
        match self.why(path) {
            None => Ok(()),
            Some(Why::Governs(reason)) => Err(governs(path, reason)),
            Some(Why::RunsCode(_)) if self.is_allowed(path) => Ok(()),
            Some(Why::RunsCode(reason)) => {
                let refusal = Refusal { path: self.at.concat(path), reason: reason.to_owned() };
                let _ = ALLOWANCE.try_with(|allowance| allowance.refused.lock().push(refusal));
                let message = format!(
                    "`{path}` may not be {doing}: {reason}. Leave it, or ask the user to change it or to allow it by `except` under \
                     `[protected]` of the configuration"
                );
                Err(Error::new(ErrorKind::PermissionDenied, message).at(path))
            }
        }
    }

    /// Checks a batch against a tree before any of it happens.
    ///
    /// # Errors
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for what may not be changed, with the index of the change; those of the tree.
    pub(crate) async fn check(&self, tree: &dyn Backend, changes: &[Change]) -> Result<()> {
        let is_noted = ALLOWANCE.try_with(|_| ()).is_ok();
        let mut first = Ok(());
        for (index, change) in changes.iter().enumerate() {
            let checked = self.check_change(tree, &changes[..index], change).await;
            let checked = checked.map_err(|error| error.during(change.kind()).in_batch(index, 0));
            if checked.is_err() && !is_noted {
                return checked;
            }
            // Whoever is asked about the batch is asked about all of it.
            first = first.and(checked);
        }
        first
    }

    async fn check_change(&self, tree: &dyn Backend, done: &[Change], change: &Change) -> Result<()> {
        match change {
            Change::Write { path, .. } | Change::Append { path, .. } | Change::Edit { path, .. } => {
                self.check_all(&places(tree, done, path, true).await?, "written")
            }
            Change::CreateDir { path } => self.check_all(&places(tree, done, path, true).await?, "made"),
            Change::Delete { path, .. } => {
                let places = places(tree, done, path, false).await?;
                self.check_whole(&places)?;
                self.check_all(&places, "removed")
            }
            Change::Rename { from, to, .. } => {
                let sources = places(tree, done, from, false).await?;
                self.check_whole(&sources)?;
                self.check_all(&sources, "moved")?;
                // A link at the target is replaced and not followed.
                let targets = places(tree, done, to, false).await?;
                self.check_all(&targets, "written")?;
                self.check_beneath(tree, done, from, &sources, &targets).await
            }
            Change::Copy { from, to, .. } => {
                let sources = places(tree, done, from, true).await?;
                let targets = places(tree, done, to, true).await?;
                self.check_all(&targets, "written")?;
                self.check_beneath(tree, done, from, &sources, &targets).await
            }
        }
    }

    fn check_all(&self, places: &[VfsPathBuf], doing: &str) -> Result<()> {
        places.iter().try_for_each(|path| self.check_path(path, doing))
    }

    fn check_whole(&self, places: &[VfsPathBuf]) -> Result<()> {
        match places.iter().find_map(|path| Some((path, self.why_whole(path)?))) {
            Some((path, governing)) => Err(governs(path, &governing.reason)),
            None => Ok(()),
        }
    }

    /// Checks what a directory holds that is moved or copied: nothing in it may come to stand where it runs code.
    async fn check_beneath(
        &self,
        tree: &dyn Backend,
        done: &[Change],
        from: &VfsPath,
        sources: &[VfsPathBuf],
        targets: &[VfsPathBuf],
    ) -> Result<()> {
        let moved = |change: &Change| match change {
            Change::Rename { to, .. } | Change::Copy { to, .. } => Some(to.clone()),
            _ => None,
        };
        if done.iter().filter_map(moved).any(|to| to.starts_with(from) && *to != *from) {
            let message = format!("what `{from}` holds is moved by the same batch; send the changes one by one");
            return Err(Error::new(ErrorKind::PermissionDenied, message).at(from));
        }
        let check_rest = |rest: &VfsPath| targets.iter().try_for_each(|to| self.check_path(&to.concat(rest), "written"));
        for made in done.iter().flat_map(Change::paths) {
            // It may have been made where the source stood before.
            for rest in sources.iter().filter_map(|source| made.strip_prefix(source)) {
                check_rest(rest)?;
            }
        }
        for source in sources {
            let checked = walk(tree, source, true, |met| match met {
                Met::Entry(entry) => entry.path.strip_prefix(source).map_or(Ok(()), check_rest),
                // What cannot be looked at cannot be cleared.
                Met::Failure(failure) => {
                    let message = format!("`{}` cannot be looked at, and may hold what runs code; move the rest one by one", failure.path);
                    Err(Error::new(ErrorKind::PermissionDenied, message).at(&failure.path))
                }
            });
            match checked.await {
                // There is nothing in a file, and what is not there is the tree's to say.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
                checked => checked?,
            }
        }
        Ok(())
    }
}

#[async_trait]
impl ApplyGuard for Protections {
    async fn check(&self, lower: &dyn Backend, changes: &[Change], named: &[VfsPathBuf]) -> Result<()> {
        self.allowance(named).during(self.check(lower, changes)).await
    }

    fn during<'a>(&self, named: &[VfsPathBuf], work: BoxFuture<'a, ()>) -> BoxFuture<'a, ()> {
        self.allowance(named).during(work).boxed()
    }
}

fn governs(path: &VfsPath, reason: &str) -> Error {
    let message = format!("`{path}` cannot be changed through this tree: {reason}. Leave it, or ask the user to change it");
    Error::new(ErrorKind::PermissionDenied, message).at(path)
}

fn folded(path: &VfsPath) -> Vec<Folded> {
    path.segments().map(Folded::new).collect()
}

/// The most paths that one may have had in the course of a batch.
const PLACES_MAX: usize = 64;

/// Returns every path that a change of one may reach: itself, where links on the way lead, and where those of them lead that stood elsewhere
/// before earlier changes of the batch.
async fn places(tree: &dyn Backend, done: &[Change], path: &VfsPath, follows_last: bool) -> Result<Vec<VfsPathBuf>> {
    let mut places = vec![path.to_owned()];
    for change in done.iter().rev() {
        crate::work::step().await;
        let (Change::Rename { from, to, .. } | Change::Copy { from, to, .. }) = change else { continue };
        // One step back for each change, which does not move again what it has added: a move onto its own parent would never end.
        for index in 0..places.len() {
            let before = places[index].strip_prefix(to).map(|rest| from.concat(rest));
            places.extend(before.filter(|before| !places.contains(before)));
        }
        if places.len() > PLACES_MAX {
            let message = format!("too many changes of this batch move what becomes `{path}`; send them one by one");
            return Err(Error::new(ErrorKind::PermissionDenied, message).at(path));
        }
    }
    if !tree.capabilities().symlinks {
        return Ok(places);
    }
    for index in 0..places.len() {
        let resolved = resolved(tree, &places[index], follows_last).await?;
        places.extend(resolved.filter(|resolved| !places.contains(resolved)));
    }
    Ok(places)
}

/// Returns where a path leads through links; none when there is none on the way.
async fn resolved(tree: &dyn Backend, path: &VfsPath, follows_last: bool) -> Result<Option<VfsPathBuf>> {
    for step in path.ancestors().skip(1).chain(follows_last.then_some(path)) {
        match tree.stat(step).await {
            Ok(entry) if entry.kind == EntryKind::Symlink => {
                let rest = path.strip_prefix(step).map(ToOwned::to_owned);
                let Some((target, rest)) = entry.leads_to.zip(rest) else {
                    let message = format!("`{step}` is a link that leads nowhere within this tree; name a path without it");
                    return Err(Error::new(ErrorKind::PermissionDenied, message).at(step));
                };
                let on = target.concat(&rest);
                // What it leads to has no links above it, and may have some beneath.
                let further = match rest.is_root() {
                    true => None,
                    false => Box::pin(resolved(tree, &on, follows_last)).await?,
                };
                return Ok(Some(further.unwrap_or(on)));
            }
            Ok(entry) if entry.is_directory() => {}
            Ok(_) => return Ok(None),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Refuses to change what makes a tool run code later, and what governs the tree; everything can be read.
///
/// It stands around a directory of the host, where others run what lies there. A rename is checked at both ends and a copy at its target,
/// with everything in a directory; links are followed first, and names are compared as the most lenient file system does. Removing a
/// directory takes what runs code in it along, as nothing runs then; what governs the tree keeps every directory above it.
///
/// Cost: one `stat` for each directory of a path that is changed, and for a rename or copy a walk of what it holds. What another process
/// links or moves at that very moment, past this layer, is not seen.
///
/// ```
/// use stratafs::layer::{Protected, Protections};
/// use stratafs::{BackendExt, ErrorKind, StateBackend, VfsPath};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> stratafs::Result<()> {
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
    /// Puts protections around a tree.
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
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn stat(&self, path: &VfsPath) -> Result<Entry> {
        self.inner.stat(path).await
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        self.inner.read(path, options).await
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        self.inner.ls(path, options).await
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        self.inner.glob(path, options).await
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        self.inner.grep(path, options).await
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        self.inner.search(path, options).await
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        self.protections.check(&self.inner, changes).await?;
        self.inner.apply(changes, options).await
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        self.inner.review(review).await
    }
}

#[cfg(test)]
mod tests;
