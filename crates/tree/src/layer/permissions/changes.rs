//! Checks a batch against the rules before any of it happens.

use super::{ApprovalRequest, Permissions, denied};
use crate::backend::Backend;
use crate::layer::permissions::rule::{Effect, Policy};
use crate::layer::walk::{Met, walk};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Change, OpKind};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::work;

/// Checks every change of a batch and returns the paths that need approval; an empty list if all changes may proceed.
///
/// # Errors
/// `permission_denied`, or `not_found` for a hidden path that must exist, with the index of the change; and the errors of a walk.
pub(super) async fn check<B: Backend>(layer: &Permissions<B>, changes: &[Change]) -> Result<Vec<VfsPathBuf>> {
    if layer.policy.is_open() {
        return Ok(Vec::new());
    }
    let mut check = Check { layer, asked: Vec::new(), placed: BTreeMap::new(), moved: Vec::new(), moved_to: BTreeSet::new() };
    for (index, change) in changes.iter().enumerate() {
        work::step().await;
        check.change(change).await.map_err(|error| error.during(change.kind()).in_batch(index, 0))?;
        check.remember(change);
    }
    Ok(check.asked)
}

/// The check of a batch against the rules.
struct Check<'a, B> {
    layer: &'a Permissions<B>,
    /// The paths that need approval.
    asked: Vec<VfsPathBuf>,
    /// The files and directories that earlier changes of the batch create, and whether they are directories.
    placed: BTreeMap<VfsPathBuf, bool>,
    /// The paths that earlier changes of the batch move or copy, as subtrees, each with its new path.
    moved: Vec<(VfsPathBuf, VfsPathBuf)>,
    /// The new paths, in path order.
    moved_to: BTreeSet<VfsPathBuf>,
}

/// The operations that a change needs on everything in a directory.
struct Needs<'a> {
    at: &'a VfsPath,
    kinds: &'static [OpKind],
    /// The new path, and the operations needed there.
    target: Option<(&'a VfsPath, &'static [OpKind])>,
    /// Whether the path itself is read, and so followed if it is a link. Links within are moved and copied as links.
    reads: bool,
}

impl<B: Backend> Check<'_, B> {
    async fn change(&mut self, change: &Change) -> Result<()> {
        match change {
            Change::Write { path, .. } => self.make(OpKind::Write, path, false).await,
            Change::Append { path, .. } => self.make(OpKind::Append, path, false).await,
            Change::CreateDir { path } => self.make(OpKind::CreateDir, path, true).await,
            Change::Edit { path, .. } => {
                self.layer.see(path).await?;
                self.check_links(path, true).await?;
                self.need(&[OpKind::Edit, OpKind::Read], path)
            }
            Change::Delete { path, recursive, .. } => {
                self.layer.see(path).await?;
                self.check_links(path, false).await?;
                self.need(&[OpKind::Delete], path)?;
                if *recursive {
                    self.need_beneath(Needs { at: path, kinds: &[OpKind::Delete], target: None, reads: false }).await?;
                }
                Ok(())
            }
            Change::Rename { from, to, .. } => {
                let (kinds, target_kinds): (&[_], &[_]) = (&[OpKind::Rename, OpKind::Delete], &[OpKind::Rename, OpKind::Write]);
                self.take(Needs { at: from, kinds, target: Some((to, target_kinds)), reads: false }).await
            }
            Change::Copy { from, to, .. } => {
                let (kinds, target_kinds): (&[_], &[_]) = (&[OpKind::Read], &[OpKind::Copy, OpKind::Write]);
                self.take(Needs { at: from, kinds, target: Some((to, target_kinds)), reads: true }).await
            }
            other => Err(other.unsupported()),
        }
    }

    /// Checks a change that creates its path or replaces what is there.
    async fn make(&mut self, kind: OpKind, path: &VfsPath, is_directory: bool) -> Result<()> {
        if !self.layer.policy.shows(path, is_directory) {
            return Err(denied(&self.layer.policy, kind, OpKind::Stat, path));
        }
        self.check_links(path, true).await?;
        self.need(&[kind], path)
    }

    /// Checks a rename or copy.
    async fn take(&mut self, needs: Needs<'_>) -> Result<()> {
        self.layer.see(needs.at).await?;
        self.check_links(needs.at, needs.reads).await?;
        self.need(needs.kinds, needs.at)?;
        if let Some((to, kinds)) = needs.target {
            // A directory may move to a path that is visible only for what lies beneath it; a file there would replace a hidden one.
            let policy = &self.layer.policy;
            let shown = policy.shows(to, false) || (policy.shows(to, true) && self.layer.is_directory(needs.at).await?);
            if !shown {
                return Err(denied(policy, kinds[0], OpKind::Stat, to));
            }
            self.check_links(to, needs.reads).await?;
            self.need(kinds, to)?;
        }
        self.need_beneath(needs).await
    }

    /// Checks that no link is followed on the way to a path, both where it is now and where the batch moves it from: a link that an earlier
    /// change moves to the path is still at its old path.
    async fn check_links(&self, path: &VfsPath, follows_last: bool) -> Result<()> {
        self.layer.check_links(path, follows_last).await?;
        let mut at = path.to_owned();
        for (from, to) in self.moved.iter().rev() {
            work::step().await;
            let Some(rest) = at.strip_prefix(to) else { continue };
            at = from.concat(rest);
            self.layer.check_links(&at, follows_last).await.map_err(|error| error.at(path))?;
        }
        Ok(())
    }

    fn need(&mut self, kinds: &[OpKind], path: &VfsPath) -> Result<()> {
        for kind in kinds {
            match self.layer.policy.decide(*kind, path) {
                Effect::Allow => {}
                Effect::Ask => remember_asked(&mut self.asked, path),
                Effect::Deny => return Err(denied(&self.layer.policy, *kind, *kind, path)),
            }
        }
        Ok(())
    }

    /// Checks everything in a directory, if rules may apply within it.
    async fn need_beneath(&mut self, needs: Needs<'_>) -> Result<()> {
        if needs.at.is_root() || needs.target.is_some_and(|(to, _)| to.starts_with(needs.at)) {
            // The tree itself refuses to move its root, or a directory into itself, with a better message.
            return Ok(());
        }
        let policy = &self.layer.policy;
        let may_refuse =
            |kinds: &[OpKind], at: &VfsPath| kinds.iter().chain(&[OpKind::Stat]).any(|kind| policy.may_refuse_beneath(*kind, at));
        let (at, target) = (needs.at, needs.target);
        if !may_refuse(needs.kinds, at) && !target.is_some_and(|(to, kinds)| may_refuse(kinds, to)) {
            return Ok(());
        }
        // Paths beneath a path follow it directly in path order.
        let is_moved_beneath =
            self.moved_to.range::<VfsPath, _>((Bound::Included(at), Bound::Unbounded)).next().is_some_and(|moved| moved.starts_with(at));
        if is_moved_beneath || at.ancestors().any(|above| self.moved_to.contains(above)) {
            let message = format!("the same batch moves the contents of `{at}`, to which rules may apply; send the changes one by one");
            return Err(Error::new(ErrorKind::PermissionDenied, message).at(at));
        }
        let asked = &mut self.asked;
        let beneath = (Bound::Excluded(at), Bound::Unbounded);
        for (path, is_directory) in self.placed.range::<VfsPath, _>(beneath).take_while(|(path, _)| path.starts_with(at)) {
            check_inside(policy, &needs, path, *is_directory, asked)?;
        }
        let walked = walk(&self.layer.inner, at, true, |met| match met {
            Met::Entry(entry) => check_inside(policy, &needs, &entry.path, entry.is_directory(), asked),
            // An unreadable path cannot be checked, so the change is refused.
            Met::Failure(_) => Err(protected(at)),
        });
        match walked.await {
            // A file has nothing beneath it, and the tree itself reports a missing path.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(()),
            done => done,
        }
    }

    fn remember(&mut self, change: &Change) {
        match change {
            Change::Write { path, .. } | Change::Append { path, .. } | Change::Edit { path, .. } => {
                self.placed.insert(path.clone(), false);
            }
            Change::CreateDir { path } => {
                self.placed.insert(path.clone(), true);
            }
            Change::Delete { .. } => {}
            Change::Rename { from, to, .. } | Change::Copy { from, to, .. } => {
                self.moved.push((from.clone(), to.clone()));
                self.moved_to.insert(to.clone());
            }
            // The check has refused it.
            _ => {}
        }
    }
}

/// Checks one path in a directory that is moved, copied or removed as a whole.
fn check_inside(policy: &Policy, needs: &Needs<'_>, path: &VfsPath, is_directory: bool, asked: &mut Vec<VfsPathBuf>) -> Result<()> {
    let mut check = |path: &VfsPath, kinds: &[OpKind]| {
        if !policy.shows(path, is_directory) {
            return Err(protected(needs.at));
        }
        for kind in kinds {
            match policy.decide(*kind, path) {
                Effect::Allow => {}
                Effect::Ask => remember_asked(asked, path),
                Effect::Deny => return Err(protected(needs.at)),
            }
        }
        Ok(())
    };
    check(path, needs.kinds)?;
    match (needs.target, path.strip_prefix(needs.at)) {
        (Some((to, kinds)), Some(rest)) => check(&to.concat(rest), kinds),
        _ => Ok(()),
    }
}

/// Returns the error for a protected path within a directory. It does not name that path, which may be hidden.
fn protected(at: &VfsPath) -> Error {
    let message = format!("`{at}` contains something that a rule protects, here or at its new path; name the other entries one by one");
    Error::new(ErrorKind::PermissionDenied, message).at(at)
}

fn remember_asked(asked: &mut Vec<VfsPathBuf>, path: &VfsPath) {
    if asked.len() < ApprovalRequest::PATHS_MAX && asked.iter().all(|other| **other != *path) {
        asked.push(path.to_owned());
    }
}
