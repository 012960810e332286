//! Checks a batch against the protections before any of it happens.

use super::places::places;
use super::repository::{Repositories, Repository};
use super::{ALLOWANCE, Protections, Refusal, Why, governs};
use crate::backend::Backend;
use crate::layer::walk::{Met, walk};
use std::collections::HashMap;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Change, EntryKind, StatOptions};
use treehold_core::path::{VfsPath, VfsPathBuf};

/// Checks a batch against a tree before any of it happens.
///
/// # Errors
/// [`PermissionDenied`](ErrorKind::PermissionDenied) for a protected path, with the index of the change; and the errors of the tree.
pub(super) async fn check(protections: &Protections, tree: &dyn Backend, changes: &[Change]) -> Result<()> {
    // A person who is asked about the batch must see all of its refusals.
    let is_noted = ALLOWANCE.try_with(|_| ()).is_ok();
    let mut first = Ok(());
    let mut check = Check { protections, tree, done: &[], is_noted, refused: None, found: HashMap::new() };
    for (index, change) in changes.iter().enumerate() {
        check.done = &changes[..index];
        let checked = check.change(change).await;
        let checked = check.refused.take().map_or(checked, Err);
        let checked = checked.map_err(|error| error.during(change.kind()).in_batch(index, 0));
        if checked.is_err() && !is_noted {
            return checked;
        }
        first = first.and(checked);
    }
    first
}

/// The check of one change against the protections.
struct Check<'a> {
    protections: &'a Protections,
    tree: &'a dyn Backend,
    /// The earlier changes of the batch.
    done: &'a [Change],
    /// Whether to continue after a refusal that a person could lift, to collect all of them.
    is_noted: bool,
    /// The first refusal that a person could lift.
    refused: Option<Error>,
    /// Which marks of repositories were already looked up in the tree, and whether they exist.
    found: HashMap<VfsPathBuf, bool>,
}

/// The effect of a change on a path.
#[derive(Debug, Clone, Copy)]
struct Doing {
    /// The participle for messages.
    word: &'static str,
    /// Whether it can create something there.
    makes: bool,
}

const WRITTEN: Doing = Doing { word: "written", makes: true };
const MADE: Doing = Doing { word: "made", makes: true };
const REMOVED: Doing = Doing { word: "removed", makes: false };
const MOVED: Doing = Doing { word: "moved", makes: false };
const LINKED: Doing = Doing { word: "replaced by a link", makes: true };

impl Check<'_> {
    async fn change(&mut self, change: &Change) -> Result<()> {
        match change {
            Change::Write { path, .. } | Change::Append { path, .. } | Change::Edit { path, .. } => {
                let places = self.places(path, true).await?;
                self.all(&places, WRITTEN).await
            }
            Change::CreateDir { path } => {
                let places = self.places(path, true).await?;
                self.all(&places, MADE).await
            }
            Change::Delete { path, .. } => {
                let places = self.places(path, false).await?;
                self.whole(&places)?;
                self.all(&places, REMOVED).await
            }
            Change::Rename { from, to, .. } => {
                let sources = self.places(from, false).await?;
                self.whole(&sources)?;
                self.all(&sources, MOVED).await?;
                // A link at the target is replaced, not followed.
                let targets = self.places(to, false).await?;
                self.all(&targets, WRITTEN).await?;
                self.beneath(from, &sources, &targets).await
            }
            Change::Copy { from, to, .. } => {
                let sources = self.places(from, true).await?;
                let targets = self.places(to, true).await?;
                self.all(&targets, WRITTEN).await?;
                self.beneath(from, &sources, &targets).await
            }
            other => Err(other.unsupported()),
        }
    }

    async fn places(&self, path: &VfsPath, follows_last: bool) -> Result<Vec<VfsPathBuf>> {
        places(self.tree, self.done, path, follows_last).await
    }

    async fn all(&mut self, places: &[VfsPathBuf], doing: Doing) -> Result<()> {
        for path in places {
            self.path(path, doing)?;
            if let Some((repository, depth)) = self.repository(path, doing).await? {
                self.runs_code(path, doing, repository.reason, depth)?;
            }
        }
        Ok(())
    }

    fn path(&mut self, path: &VfsPath, doing: Doing) -> Result<()> {
        let why = self.protections.why(path);
        self.why(path, doing, why)
    }

    fn why(&mut self, path: &VfsPath, doing: Doing, why: Option<Why<'_>>) -> Result<()> {
        match why {
            None => Ok(()),
            Some(Why::Governs(reason)) => Err(governs(path, reason)),
            Some(Why::RunsCode { reason, depth }) => self.runs_code(path, doing, reason, depth),
        }
    }

    /// Refuses a path unless a person has allowed it, or its protected ancestor at `depth`.
    fn runs_code(&mut self, path: &VfsPath, doing: Doing, reason: &str, depth: usize) -> Result<()> {
        if self.protections.is_allowed(path, depth) {
            return Ok(());
        }
        let refusal = Refusal { path: self.protections.at.concat(path), reason: reason.to_owned() };
        let _ = ALLOWANCE.try_with(|allowance| allowance.refused.lock().push(refusal));
        let message = format!(
            "`{path}` may not be {}: {reason}; skip it, or ask the user to change it or to allow it with `except` \
                under `[protected]` of the configuration",
            doing.word
        );
        let error = Error::new(ErrorKind::PermissionDenied, message).at(path);
        if !self.is_noted {
            return Err(error);
        }
        self.refused.get_or_insert(error);
        Ok(())
    }

    fn whole(&self, places: &[VfsPathBuf]) -> Result<()> {
        match places.iter().find_map(|path| Some((path, self.protections.why_whole(path)?))) {
            Some((path, governing)) => Err(governs(path, &governing.reason)),
            None => Ok(()),
        }
    }

    /// Returns the repository that contains a path, or that the path would complete, and the depth of its directory.
    async fn repository(&mut self, path: &VfsPath, doing: Doing) -> Result<Option<(&'static Repository, usize)>> {
        for directory in path.ancestors() {
            let Some(name) = path.strip_prefix(directory).and_then(|rest| rest.segments().next()) else { continue };
            for repository in Repositories::all() {
                if self.is_repository(directory, name, repository, doing).await? && !self.protections.is_exempt(path) {
                    return Ok(Some((repository, directory.depth())));
                }
            }
        }
        Ok(None)
    }

    /// Returns whether a directory is a repository, or becomes one once it contains `name`.
    async fn is_repository(&mut self, directory: &VfsPath, name: &str, repository: &Repository, doing: Doing) -> Result<bool> {
        for mark in repository.marks {
            let comes = doing.makes && repository.is_found && Repositories::is_mark(mark, name);
            if !comes && !self.is_there(directory, mark).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns whether a directory contains a name, or may contain it after the earlier changes of the batch.
    async fn is_there(&mut self, directory: &VfsPath, mark: &str) -> Result<bool> {
        // A path that is too long names nothing.
        let Ok(path) = directory.child(mark) else { return Ok(false) };
        let is_found = match self.found.get(&path) {
            Some(is_found) => *is_found,
            None => {
                let is_found = match self.tree.stat(&path, &StatOptions::new()).await {
                    Ok(_) => true,
                    Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => false,
                    Err(error) => return Err(error),
                };
                self.found.insert(path, is_found);
                is_found
            }
        };
        if is_found {
            return Ok(true);
        }
        let in_directory = |made: &VfsPath| made.strip_prefix(directory).and_then(|rest| rest.segments().next().map(ToOwned::to_owned));
        Ok(self.done.iter().flat_map(Change::paths).filter_map(in_directory).any(|name| Repositories::is_mark(mark, &name)))
    }

    /// Checks everything in a directory that is moved or copied: nothing may arrive where it runs code, and no link above a protected name.
    async fn beneath(&mut self, from: &VfsPath, sources: &[VfsPathBuf], targets: &[VfsPathBuf]) -> Result<()> {
        let moved = |change: &Change| match change {
            Change::Rename { to, .. } | Change::Copy { to, .. } => Some(to.clone()),
            _ => None,
        };
        if self.done.iter().filter_map(moved).any(|to| to.starts_with(from) && *to != *from) {
            let message = format!("the same batch moves the contents of `{from}`; send the changes one by one");
            return Err(Error::new(ErrorKind::PermissionDenied, message).at(from));
        }
        if self.tree.capabilities().symlinks {
            for source in sources {
                if self.tree.stat(source, &StatOptions::new()).await.is_ok_and(|entry| entry.kind == EntryKind::Symlink) {
                    targets.iter().try_for_each(|to| self.link(to))?;
                }
            }
        }
        let check_rest = |check: &mut Self, rest: &VfsPath| targets.iter().try_for_each(|to| check.path(&to.concat(rest), WRITTEN));
        for made in self.done.iter().flat_map(Change::paths) {
            // It may have been created where the source was before.
            for rest in sources.iter().filter_map(|source| made.strip_prefix(source)) {
                check_rest(self, rest)?;
            }
        }
        for source in sources {
            let mut repositories = Repositories::default();
            let tree = self.tree;
            let checked = walk(tree, source, true, |met| match met {
                Met::Entry(entry) => {
                    let Some(rest) = entry.path.strip_prefix(source) else { return Ok(()) };
                    check_rest(self, rest)?;
                    if entry.kind == EntryKind::Symlink {
                        targets.iter().try_for_each(|to| self.link(&to.concat(rest)))?;
                    }
                    let Some((directory, repository)) = repositories.meet(rest) else { return Ok(()) };
                    for to in targets {
                        let (directory, path) = (to.concat(&directory), to.concat(rest));
                        if !self.protections.is_exempt(&path) {
                            self.runs_code(&path, WRITTEN, repository.reason, directory.depth())?;
                        }
                    }
                    Ok(())
                }
                // An unreadable path cannot be checked, so the change is refused.
                Met::Failure(failure) => {
                    let message = format!(
                        "`{}` cannot be inspected and may contain files that run code; move the \
                        other entries one by one",
                        failure.path
                    );
                    Err(Error::new(ErrorKind::PermissionDenied, message).at(&failure.path))
                }
            });
            match checked.await {
                // A file has nothing beneath it, and the tree itself reports a missing path.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
                checked => checked?,
            }
        }
        Ok(())
    }

    /// Checks that a link may arrive at a path: writes to its target would otherwise change protected names beneath the path.
    fn link(&mut self, path: &VfsPath) -> Result<()> {
        let why = self.protections.why_link(path);
        self.why(path, LINKED, why)
    }
}
