//! Changes: routing to backends, protection of mounts, and batches over several mounts.

use super::CompositeBackend;
use super::router::Resolved;
use crate::backend::rebase::View;
use std::collections::BTreeSet;
use std::ops::Range;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{ApplyOptions, Change, Changed, OpKind};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_store::Outbox;

/// What one change needs.
enum Step {
    /// Nothing: the directory to create leads to mounts, so it exists.
    Nothing,
    /// The backend of this mount applies it.
    Mount(usize),
    /// It transfers content between mounts.
    Transfer,
}

/// Consecutive changes that one call applies.
struct Run {
    changes: Range<usize>,
    /// `None` if nothing has to be done.
    mount: Option<usize>,
}

impl CompositeBackend {
    /// Applies changes, those of one mount as one batch of its backend.
    pub(super) async fn apply_changes(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        let plan = |(index, change): (usize, &Change)| self.step(change).map_err(|error| error.during(change.kind()).in_batch(index, 0));
        let steps = changes.iter().enumerate().map(plan).collect::<Result<Vec<_>>>()?;
        if changes.len() > 1 && !options.allow_partial {
            self.check_one_mount(changes, &steps)?;
        }
        // Rows that commit with the batch commit with its last part: then all changes are made.
        let last = steps.iter().rposition(|step| !matches!(step, Step::Nothing));
        let mut without_outbox = options.clone();
        without_outbox.extensions.remove::<Outbox>();
        let mut results = Vec::with_capacity(changes.len());
        let mut start = 0;
        while start < steps.len() {
            match &steps[start] {
                Step::Transfer => {
                    let options = if last == Some(start) { options } else { &without_outbox };
                    let result = self.transfer(&changes[start], options).await;
                    results.push(result.map_err(|error| error.during(changes[start].kind()).in_batch(start, start))?);
                    start += 1;
                }
                Step::Nothing | Step::Mount(_) => {
                    let run = Run::at(start, &steps);
                    start = run.changes.end;
                    let options = if last.is_some_and(|last| run.changes.contains(&last)) { options } else { &without_outbox };
                    results.extend(self.apply_run(run, changes, &steps, options).await?);
                }
            }
        }
        Ok(results)
    }

    /// Decides what a change needs, and refuses changes that would remove a mount or a directory that leads to one.
    fn step(&self, change: &Change) -> Result<Step> {
        let path = change.path();
        let place = self.router.find(path);
        match change {
            Change::Write { .. } | Change::Append { .. } | Change::Edit { .. } if self.is_virtual(place) => Err(Error::is_directory(path)),
            Change::CreateDir { .. } if self.is_virtual(place) => Ok(Step::Nothing),
            Change::Write { .. } | Change::Append { .. } | Change::Edit { .. } | Change::CreateDir { .. } => self.in_mount(place, path),
            Change::Delete { .. } => {
                self.check_no_mount_at(place, path, "deleted")?;
                self.in_mount(place, path)
            }
            Change::Rename { to, .. } => {
                self.check_no_mount_at(place, path, "moved")?;
                self.between(place, path, to)
            }
            Change::Copy { to, .. } => {
                self.check_copy(place, path, to)?;
                self.between(place, path, to)
            }
            other => Err(other.unsupported()),
        }
    }

    fn in_mount(&self, place: Resolved, path: &VfsPath) -> Result<Step> {
        self.target(place, path)?;
        Ok(Step::Mount(place.mount))
    }

    /// Decides how to rename or copy. A directory that contains mounts is copied as the caller sees it.
    fn between(&self, from_place: Resolved, from: &VfsPath, to: &VfsPath) -> Result<Step> {
        let to_place = self.router.find(to);
        self.target(from_place, from)?;
        self.target(to_place, to)?;
        self.check_target(to_place, to)?;
        match from_place.mount == to_place.mount && from_place.node.is_none() {
            true => Ok(Step::Mount(from_place.mount)),
            false => Ok(Step::Transfer),
        }
    }

    /// Refuses a target that is a directory only because of mounts below it. A file mount may be replaced.
    fn check_target(&self, place: Resolved, to: &VfsPath) -> Result<()> {
        let Some(node) = place.node else { return Ok(()) };
        match self.router.node(node).mount() {
            _ if to.is_root() => Err(Error::invalid_argument("`/` is the root; name a path beneath it").at(to)),
            Some(mount) if self.router.mount(mount).is_file => Ok(()),
            Some(_) => Err(Error::invalid_argument(format!("`{to}` is a mount and cannot be replaced; name a path in it")).at(to)),
            None => Err(Error::already_exists(to)),
        }
    }

    fn check_copy(&self, place: Resolved, from: &VfsPath, to: &VfsPath) -> Result<()> {
        if from.is_root() {
            return Err(Error::invalid_argument("`/` is the root and cannot be copied; copy its entries instead").at(from));
        }
        if place.node.is_some() && to.starts_with(from) {
            return Err(Error::invalid_argument(format!("`{from}` cannot be copied to `{to}`, which lies in it")).at(from));
        }
        Ok(())
    }

    /// Refuses to remove a path at or above a mount.
    fn check_no_mount_at(&self, place: Resolved, path: &VfsPath, verb: &str) -> Result<()> {
        let Some(node) = place.node.map(|node| self.router.node(node)) else { return Ok(()) };
        let message = match node.mount() {
            _ if path.is_root() => format!("`/` is the root and cannot be {verb}; name a path beneath it"),
            Some(_) => format!("`{path}` is a mount and cannot be {verb}; name a path in it"),
            None => {
                let first = self.router.prefix(node.mounts().start);
                format!("`{path}` cannot be {verb} because `{first}` is mounted in it; name the entries beside the mount")
            }
        };
        Err(Error::invalid_argument(message).at(path))
    }

    /// Refuses a batch that no single backend can apply.
    fn check_one_mount(&self, changes: &[Change], steps: &[Step]) -> Result<()> {
        let mut mounts = BTreeSet::new();
        for (change, step) in changes.iter().zip(steps) {
            match step {
                Step::Nothing => {}
                Step::Mount(mount) => mounts.extend([*mount]),
                Step::Transfer => mounts.extend(change.paths().map(|path| self.router.find(path).mount)),
            }
        }
        let transfer = steps.iter().position(|step| matches!(step, Step::Transfer));
        if mounts.len() < 2 && transfer.is_none() {
            return Ok(());
        }
        let names: Vec<String> = mounts.iter().map(|mount| format!("`{}`", self.router.prefix(*mount))).collect();
        let message = format!(
            "the batch changes {}, which are separate mounts and cannot change atomically; apply it mount by mount, or allow a partial result",
            names.join(", ")
        );
        let other = |step: &Step| !matches!((step, &steps[0]), (Step::Mount(one), Step::Mount(first)) if one == first);
        let index = transfer.or_else(|| steps.iter().position(other)).unwrap_or(0);
        Err(Error::unsupported(message).at(changes[index].path()).during(OpKind::Apply).in_batch(index, 0))
    }

    async fn apply_run(&self, run: Run, changes: &[Change], steps: &[Step], options: &ApplyOptions) -> Result<Vec<Changed>> {
        let there = |index: usize| Changed::new(OpKind::CreateDir, changes[index].path()).with_entries(0);
        let Some(mount) = run.mount else { return Ok(run.changes.map(there).collect()) };
        let (backend, prefix) = (&self.router.mount(mount).backend, self.router.prefix(mount));
        let done: Vec<usize> = run.changes.clone().filter(|index| matches!(steps[*index], Step::Mount(_))).collect();
        let whole = done.len() == changes.len();
        let applied = if whole && prefix.is_root() {
            backend.apply(changes, options).await
        } else {
            let inner = done.iter().map(|index| changes[*index].try_map_paths(inward(prefix))).collect::<Result<Vec<_>>>()?;
            let mut options = options.clone();
            let outbox = Outbox::of(&options.extensions);
            if done.len() < changes.len() && !outbox.is_empty() {
                let mut places = vec![None; changes.len()];
                done.iter().enumerate().for_each(|(place, index)| places[*index] = Some(place));
                options.extensions.insert(outbox.moved(&places));
            }
            backend.apply(&inner, &options).await
        };
        let mut results = match applied {
            Ok(results) => View::Beneath(prefix).changed(results).into_iter(),
            Err(error) => return Err(self.change_error(error, prefix, &run, &done, changes).await),
        };
        let missing = || Error::new(ErrorKind::Internal, "a backend returned fewer results than changes");
        run.changes
            .map(|index| match steps[index] {
                Step::Mount(_) => results.next().ok_or_else(missing),
                Step::Nothing | Step::Transfer => Ok(there(index)),
            })
            .collect()
    }

    /// Converts the error of a batch to the caller's paths and indices.
    async fn change_error(&self, error: Error, prefix: &VfsPath, run: &Run, done: &[usize], changes: &[Change]) -> Error {
        let failed = error.change().and_then(|change| done.get(change)).copied().unwrap_or(done[0]);
        let applied = match error.applied() {
            0 => run.changes.start,
            some => done.get(some).copied().unwrap_or(run.changes.end),
        };
        let change = &changes[failed];
        let asked: Vec<&VfsPath> = change.paths().filter_map(|path| path.strip_prefix(prefix)).collect();
        let error = View::Beneath(prefix).error(error, &asked).in_batch(failed, applied);
        let at = error.path().unwrap_or(change.path());
        if error.kind() != ErrorKind::NotADirectory || !self.is_beneath_hidden_file(at).await {
            return error;
        }
        let puts = matches!(change, Change::Write { .. } | Change::Append { .. } | Change::CreateDir { .. }) || change.target() == Some(at);
        if puts {
            let message =
                format!("`{at}` cannot be written: its directory exists only for mounts, and the underlying tree has a file in its place");
            error.with_message(message)
        } else {
            Error::not_found(at).during(change.kind()).in_batch(failed, applied)
        }
    }
}

impl Run {
    /// Collects the changes from `start` on that one mount applies.
    fn at(start: usize, steps: &[Step]) -> Self {
        let mut run = Self { changes: start..start, mount: None };
        for step in &steps[start..] {
            match (step, run.mount) {
                (Step::Transfer, _) => break,
                (Step::Mount(mount), Some(other)) if *mount != other => break,
                (Step::Mount(mount), _) => run.mount = Some(*mount),
                (Step::Nothing, _) => {}
            }
            run.changes.end += 1;
        }
        run
    }
}

/// Returns the mapping of a mount's paths to those of its backend.
fn inward(prefix: &VfsPath) -> impl FnMut(&VfsPath) -> Result<VfsPathBuf> {
    move |path| Ok(View::From(prefix).path(path))
}
