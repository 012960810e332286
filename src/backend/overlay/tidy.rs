//! What is emptied of the upper tree: all of it, what was discarded, or what both trees agree on.
//!
//! Each is planned on what is there and takes effect only if nobody took the turn meanwhile, as every batch of an overlay.

use super::difference::OverlayDifference;
use super::marks::{Base, MARKS, Mark, TREE, base_of, mark_path, tree_path};
use super::merge::{Pages, about, absent};
use super::transaction::{lost_turn, take_turn};
use super::{ATTEMPTS_MAX, OverlayBackend, pause};
use crate::backend::{Backend, BackendExt};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::{ApplyOptions, Change, ReadOptions, ReviewPurpose, WriteMode};
use crate::path::{VfsPath, VfsPathBuf};
use crate::work;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// What is to be changed in the upper tree, whatever that takes at the time.
#[derive(Debug, Clone, Copy)]
pub(super) enum Plan<'p> {
    Clear,
    Drop(&'p VfsPath),
    /// What stood in the way of these paths was removed, and nothing was put there yet.
    Restart(&'p [VfsPathBuf]),
    Tidy,
}

impl OverlayBackend {
    /// Drops what the overlay changed at and beneath paths, or all of it when none is named, so that the tree beneath shows again.
    /// Returns what it was.
    ///
    /// # Errors
    /// Those of the two trees, and [`InvalidArgument`](ErrorKind::InvalidArgument) for a path beneath what the overlay made a file.
    pub async fn discard(&self, paths: &[VfsPathBuf]) -> Result<Vec<OverlayDifference>> {
        self.check_upper()?;
        let _turn = self.turn.lock().await;
        let differences = match self.all_differences(VfsPath::ROOT).await {
            // What cannot be read can still be dropped with all the rest.
            Err(error) if error.kind() == ErrorKind::Corrupt && paths.is_empty() => Vec::new(),
            differences => differences?,
        };
        if paths.is_empty() {
            self.review(ReviewPurpose::Change, &differences, true).await?;
            self.change_upper(Plan::Clear).await?;
            return Ok(differences);
        }
        let dropped: Vec<OverlayDifference> =
            differences.into_iter().filter(|difference| paths.iter().any(|path| difference.path.starts_with(path))).collect();
        self.review(ReviewPurpose::Change, &dropped, true).await?;
        let paths: Vec<&VfsPath> = paths.iter().map(|path| &**path).collect();
        self.drop_each(&paths).await?;
        self.tidy().await?;
        Ok(dropped)
    }

    /// Drops what the overlay has at and beneath paths.
    pub(super) async fn drop_each(&self, paths: &[&VfsPath]) -> Result<()> {
        for path in paths {
            if path.is_root() {
                return Err(Error::invalid_argument("`/` is all of the overlay; name no path to discard all").at(path));
            }
            self.change_upper(Plan::Drop(path)).await?;
        }
        Ok(())
    }

    /// Makes the changes of the upper tree that leave nothing in it.
    async fn cleared(&self) -> Result<Vec<Change>> {
        let mut changes = Vec::new();
        for place in [TREE, MARKS] {
            let place = VfsPathBuf::parse(place)?;
            if absent(self.upper.stat(&place).await).map_err(|error| about(VfsPath::ROOT, error))?.is_some() {
                changes.push(Change::Delete { path: place, recursive: true, expect: None });
            }
        }
        Ok(changes)
    }

    /// Makes the changes of the upper tree after which paths are based on nothing, as nothing is below.
    async fn restarted(&self, paths: &[VfsPathBuf]) -> Result<Vec<Change>> {
        let mut changes = Vec::with_capacity(paths.len());
        for path in paths {
            let mark = Mark { base: Some(Base::Nothing), ..self.mark(path).await?.unwrap_or_default() };
            changes.push(Change::Write { path: mark_path(path), content: mark.to_bytes(path).into(), mode: WriteMode::Overwrite });
        }
        Ok(changes)
    }

    /// Makes the changes of the upper tree that let the lower one show at a path.
    async fn dropped(&self, path: &VfsPath) -> Result<Vec<Change>> {
        let look = self.look(path).await?;
        let mut changes = Vec::new();
        if look.upper.is_some() {
            changes.push(Change::Delete { path: tree_path(path), recursive: true, expect: None });
        }
        let mut marks = self.marks().await?;
        marks.retain(|at, _| at.starts_with(path));
        for at in marks.keys() {
            changes.push(Change::Delete { path: mark_path(at), recursive: false, expect: None });
        }
        if look.beneath_a_file {
            let message = format!("`{path}` lies beneath what the overlay made a file; discard that");
            return Err(Error::invalid_argument(message).at(path));
        }
        if look.hidden_above {
            self.restore(path, &mut changes).await?;
        }
        Ok(changes)
    }

    /// Writes to the upper tree what the lower one has at a path that shows nothing of it, as a directory above is another.
    async fn restore(&self, path: &VfsPath, changes: &mut Vec<Change>) -> Result<()> {
        let Some(entry) = absent(self.lower.stat(path).await)? else { return Ok(()) };
        let mut entries = vec![entry];
        if entries[0].is_directory() {
            entries.extend(self.lower.tree(path.as_str(), usize::MAX, usize::MAX - 1).await?.entries);
        }
        for entry in entries {
            if entry.is_directory() {
                changes.push(Change::CreateDir { path: tree_path(&entry.path) });
                continue;
            }
            let Some(read) = absent(self.lower.read(&entry.path, &ReadOptions::new().with_bytes_max(u64::MAX)).await)? else { continue };
            let mark = Mark { base: Some(Base::File(read.version.number())), created_at: entry.created_at, modified_at: entry.modified_at };
            changes.push(Change::Write { path: tree_path(&entry.path), content: read.content, mode: WriteMode::Overwrite });
            let content = mark.to_bytes(&entry.path).into();
            changes.push(Change::Write { path: mark_path(&entry.path), content, mode: WriteMode::Overwrite });
        }
        Ok(())
    }

    /// Removes from the upper tree what is the same below.
    pub(super) async fn tidy(&self) -> Result<()> {
        self.change_upper(Plan::Tidy).await
    }

    async fn tidied(&self) -> Result<Vec<Change>> {
        let remaining: BTreeSet<VfsPathBuf> =
            self.all_differences(VfsPath::ROOT).await?.into_iter().map(|difference| difference.path).collect();
        let remains = |path: &VfsPath| {
            let mut following = remaining.range::<VfsPath, _>((Bound::Included(path), Bound::Unbounded));
            following.next().is_some_and(|next| next.starts_with(path))
        };
        let marks = self.marks().await?;
        let upper = absent(self.tree.tree("/", usize::MAX, usize::MAX - 1).await)?.unwrap_or_default().entries;
        let mut changes = Vec::new();
        // What stays of the marks, and which of them hide a directory that is not yet as below.
        let mut kept: BTreeSet<&VfsPath> = BTreeSet::new();
        let mut gone: BTreeSet<&VfsPath> = BTreeSet::new();
        for path in marks.keys() {
            work::step().await;
            if is_within(&gone, path) {
                changes.push(Change::Delete { path: mark_path(path), recursive: false, expect: None });
            } else if remains(path) || is_within(&kept, path) {
                kept.insert(path);
            } else {
                changes.push(Change::Delete { path: mark_path(path), recursive: false, expect: None });
                gone.insert(path);
            }
        }
        let is_gone = |path: &VfsPath| is_within(&gone, path);
        let is_kept = |path: &VfsPath| is_within(&kept, path);
        let with_kept_marks: BTreeSet<&VfsPath> = kept.iter().filter_map(|mark| mark.parent()).collect();
        let mut left: BTreeSet<&VfsPath> = BTreeSet::new();
        for entry in upper.iter().rev() {
            work::step().await;
            let path = &*entry.path;
            let above = path.parent().filter(|parent| !parent.is_root());
            let holds = left.contains(path) || with_kept_marks.contains(path);
            let stays = match entry.is_directory() {
                _ if is_gone(path) => false,
                _ if is_kept(path) => true,
                true => holds || remaining.contains(path),
                false => remaining.contains(path),
            };
            if stays {
                left.extend(above);
            } else {
                // Parents follow their children here, so that each is empty by then.
                changes.push(Change::Delete { path: tree_path(path), recursive: false, expect: None });
            }
            if stays && is_kept(path) && !entry.is_directory() && !remaining.contains(path) {
                changes.extend(self.rebased(path, marks.get(path)).await?);
            }
        }
        Ok(changes)
    }

    /// Makes the mark that says that a file, which is the same below, is based on what is there now.
    async fn rebased(&self, path: &VfsPath, mark: Option<&Mark>) -> Result<Option<Change>> {
        let Some(lower) = absent(self.lower.stat(path).await)? else { return Ok(None) };
        let mark = Mark { base: Some(base_of(&lower)), ..mark.cloned().unwrap_or_default() };
        let content = mark.to_bytes(path).into();
        Ok(Some(Change::Write { path: mark_path(path), content, mode: WriteMode::Overwrite }))
    }

    /// Changes the upper tree by what is planned on it, again while others change it meanwhile.
    pub(super) async fn change_upper(&self, plan: Plan<'_>) -> Result<()> {
        for attempt in 0..ATTEMPTS_MAX {
            let turn = self.turn_version().await?;
            let planned = match plan {
                Plan::Clear => self.cleared().await,
                Plan::Drop(path) => self.dropped(path).await,
                Plan::Restart(paths) => self.restarted(paths).await,
                Plan::Tidy => self.tidied().await,
            };
            let changes = match planned {
                Ok(changes) if changes.is_empty() => return Ok(()),
                Ok(changes) => changes,
                Err(_) if self.turn_version().await? != turn => continue,
                Err(error) => return Err(error),
            };
            let batch: Vec<Change> = std::iter::once(take_turn(turn)).chain(changes).collect();
            match self.upper.apply(&batch, &ApplyOptions::new()).await {
                Ok(_) => return Ok(()),
                Err(error) if error.change() == Some(0) && lost_turn(&error) => pause(attempt).await,
                Err(error) => return Err(about(VfsPath::ROOT, error)),
            }
        }
        let message = format!("others changed the same overlay {ATTEMPTS_MAX} times meanwhile; try again");
        Err(Error::new(ErrorKind::Unavailable, message).without_effect())
    }

    /// Reads every mark, by the path it is of.
    async fn marks(&self) -> Result<BTreeMap<VfsPathBuf, Mark>> {
        let mut marks = BTreeMap::new();
        let root = VfsPath::parse(MARKS).expect("a legal path");
        let mut groups = Pages::new(&*self.upper, &root, None);
        while let Some(group) = absent(groups.next().await).map_err(|error| about(VfsPath::ROOT, error))?.flatten() {
            let mut pages = Pages::new(&*self.upper, &group.path, None);
            while let Some(entry) = absent(pages.next().await).map_err(|error| about(VfsPath::ROOT, error))?.flatten() {
                let options = ReadOptions::new().with_bytes_max(u64::MAX);
                let read = absent(self.upper.read(&entry.path, &options).await).map_err(|error| about(VfsPath::ROOT, error))?;
                if let Some(read) = read {
                    let (path, mark) = Mark::from_bytes(&read.content)?;
                    marks.insert(path, mark);
                }
            }
        }
        Ok(marks)
    }
}

/// Tells whether a path is one of some, or lies beneath one.
fn is_within(paths: &BTreeSet<&VfsPath>, path: &VfsPath) -> bool {
    paths.contains(path) || path.ancestors().any(|above| paths.contains(above))
}
