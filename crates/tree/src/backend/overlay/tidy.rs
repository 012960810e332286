//! Emptying the upper tree: all of it, the discarded parts, or the parts on which both trees agree.
//!
//! Each plan is made on the current content and takes effect only if no other batch took the turn meanwhile, like every batch of an
//! overlay.

use super::difference::{OverlayDifference, conflict};
use super::marks::{Base, Intent, MARKS, Mark, TREE, base_of, mark_path, tree_path};
use super::merge::{Pages, about, absent, of_upper};
use super::settle::is_at_or_beneath;
use super::transaction::{lost_turn, take_turn};
use super::{OverlayBackend, overtaken};
use crate::backend::{Backend, BackendExt};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use treehold_core::backoff::LostRaces;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{ApplyOptions, Change, Entry, ReadOptions, ReviewPurpose, StatOptions, WriteMode};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::work;

/// The goal of a change to the upper tree; its steps depend on the content at the time.
#[derive(Debug, Clone, Copy)]
pub(super) enum Plan<'p> {
    Clear,
    /// Drops the overlay's content at and beneath these paths, none of which lies beneath another.
    Drop(&'p [&'p VfsPath]),
    /// The obstacles at these paths were removed from the lower tree, and nothing was put there yet.
    Restart(&'p [VfsPathBuf]),
    /// These differences are about to be written to the lower tree.
    Claim(&'p [Claim<'p>]),
    Tidy,
}

/// A difference that is about to be written to the lower tree, and what that may leave there.
#[derive(Debug)]
pub(super) struct Claim<'p> {
    pub(super) difference: &'p OverlayDifference,
    pub(super) intents: Vec<Intent>,
}

impl OverlayBackend {
    /// Drops the overlay's changes at and beneath paths, or all of them if none is named, so that the lower tree shows again. Returns the
    /// dropped differences.
    ///
    /// # Errors
    /// The errors of the two trees, and [`InvalidArgument`](ErrorKind::InvalidArgument) for a path beneath one that the overlay made a
    /// file.
    pub async fn discard(&self, paths: &[VfsPathBuf]) -> Result<Vec<OverlayDifference>> {
        self.check_upper()?;
        let _turn = self.turn.lock().await;
        let differences = match self.all_differences(VfsPath::ROOT).await {
            // Unreadable content can still be dropped together with all the rest.
            Err(error) if error.kind() == ErrorKind::Corrupt && paths.is_empty() => Vec::new(),
            differences => differences?,
        };
        if paths.is_empty() {
            self.review(ReviewPurpose::Change, &differences, true).await?;
            self.change_upper(Plan::Clear).await?;
            return Ok(differences);
        }
        let named: BTreeSet<&VfsPath> = paths.iter().map(|path| &**path).collect();
        let dropped: Vec<OverlayDifference> =
            differences.into_iter().filter(|difference| is_at_or_beneath(&difference.path, &named)).collect();
        self.review(ReviewPurpose::Change, &dropped, true).await?;
        let paths: Vec<&VfsPath> = paths.iter().map(|path| &**path).collect();
        self.drop_each(&paths).await?;
        self.tidy().await?;
        Ok(dropped)
    }

    /// Drops the overlay's content at and beneath paths, atomically.
    pub(super) async fn drop_each(&self, paths: &[&VfsPath]) -> Result<()> {
        if let Some(root) = paths.iter().find(|path| path.is_root()) {
            return Err(Error::invalid_argument("`/` is the whole overlay; name no path to discard everything").at(root));
        }
        let mut uppermost: Vec<&VfsPath> = Vec::with_capacity(paths.len());
        // Paths beneath a path follow it directly.
        for path in paths.iter().copied().collect::<BTreeSet<_>>() {
            if !uppermost.last().is_some_and(|above| path.starts_with(above)) {
                uppermost.push(path);
            }
        }
        self.change_upper(Plan::Drop(&uppermost)).await
    }

    /// Returns the changes that empty the upper tree.
    async fn cleared(&self) -> Result<Vec<Change>> {
        let mut changes = Vec::new();
        for place in [TREE, MARKS] {
            let place = VfsPathBuf::parse(place)?;
            if absent(self.upper.stat(&place, &StatOptions::new()).await).map_err(|error| about(VfsPath::ROOT, error))?.is_some() {
                changes.push(Change::Delete { path: place, recursive: true, expect: None });
            }
        }
        Ok(changes)
    }

    /// Returns the changes after which paths have an empty base, because the lower tree has nothing there.
    async fn restarted(&self, paths: &[VfsPathBuf]) -> Result<Vec<Change>> {
        let mut changes = Vec::with_capacity(paths.len());
        for path in paths {
            let mark = Mark { base: Some(Base::Nothing), ..self.mark(path).await?.unwrap_or_default() };
            changes.push(Change::Write { path: mark_path(path), content: mark.to_bytes(path).into(), mode: WriteMode::Overwrite });
        }
        Ok(changes)
    }

    /// Returns the changes after which each mark records what an apply is about to leave in the lower tree. Later writers of the overlay,
    /// and readers after a crash, then recognise that content as the overlay's own.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if a difference has changed.
    async fn claimed(&self, claims: &[Claim<'_>]) -> Result<Vec<Change>> {
        let mut marks = self.marks().await?;
        let mut changed: BTreeSet<VfsPathBuf> = BTreeSet::new();
        for (index, Claim { difference, intents }) in claims.iter().enumerate() {
            let path = &difference.path;
            let upper = absent(self.tree.stat(path, &StatOptions::new()).await)?.map(of_upper);
            let as_seen = |entry: &Option<Entry>| entry.as_ref().map(|entry| (entry.is_directory(), entry.version));
            if as_seen(&upper) != as_seen(&difference.after) {
                return Err(Error::conflict(path, None));
            }
            // A directory is recognised by its entries.
            let holds_another = || claims.get(index + 1).is_some_and(|next| next.difference.path.starts_with(path));
            let is_new_directory = difference.before.is_none() && upper.as_ref().is_some_and(Entry::is_directory);
            if is_new_directory && !marks.contains_key(path) && holds_another() {
                continue;
            }
            let current = difference.before.as_ref().map_or(Base::Nothing, base_of);
            let is_undisputed = difference.conflict.is_none();
            if upper.is_some() || marks.contains_key(path) {
                let mark = marks.entry(path.clone()).or_default();
                let is_out_of_date = mark.base.as_ref().is_none_or(|base| conflict(base, difference.before.as_ref()).is_some());
                if is_undisputed && is_out_of_date {
                    mark.base = Some(current);
                }
                mark.intents.insert(String::new(), intents.clone());
                changed.insert(path.clone());
            } else if let Some(above) = path.ancestors().filter(|above| marks.contains_key(*above)).max_by_key(|above| above.as_str().len())
            {
                let above = above.to_owned();
                let Some((mark, rest)) = marks.get_mut(&above).zip(path.strip_prefix(&above)) else { continue };
                let name = rest.relative().to_owned();
                if let (true, Some(Base::Directory(beneath))) = (is_undisputed, &mut mark.base) {
                    let version = if let Base::File(version) = current { Some(version) } else { None };
                    beneath.insert(name.clone(), version);
                }
                mark.intents.insert(name, intents.clone());
                changed.insert(above);
            }
        }
        let write = |path: VfsPathBuf| {
            let content = marks[&path].to_bytes(&path).into();
            Change::Write { path: mark_path(&path), content, mode: WriteMode::Overwrite }
        };
        Ok(changed.into_iter().map(write).collect())
    }

    /// Returns the changes of the upper tree that let the lower one show at paths, none of which lies beneath another. Reads the marks
    /// once.
    async fn dropped(&self, paths: &[&VfsPath]) -> Result<Vec<Change>> {
        let mut changes = Vec::new();
        let marks = if paths.is_empty() { BTreeMap::new() } else { self.marks().await? };
        for path in paths.iter().copied() {
            work::step().await;
            let look = self.look(path).await?;
            if look.upper.is_some() {
                changes.push(Change::Delete { path: tree_path(path), recursive: true, expect: None });
            }
            let following = marks.range::<VfsPath, _>((Bound::Included(path), Bound::Unbounded));
            for (at, _) in following.take_while(|(at, _)| at.starts_with(path)) {
                changes.push(Change::Delete { path: mark_path(at), recursive: false, expect: None });
            }
            if look.beneath_a_file {
                let message = format!("`{path}` lies beneath a path that the overlay made a file; discard that path");
                return Err(Error::invalid_argument(message).at(path));
            }
            if look.hidden_above {
                self.restore(path, &mut changes).await?;
            }
        }
        Ok(changes)
    }

    /// Copies the lower tree's content at a path into the upper tree, because a replaced directory above hides it.
    async fn restore(&self, path: &VfsPath, changes: &mut Vec<Change>) -> Result<()> {
        let Some(entry) = absent(self.lower.stat(path, &StatOptions::new()).await)? else { return Ok(()) };
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
            let times = (entry.created_at, entry.modified_at);
            let mark = Mark { created_at: times.0, modified_at: times.1, ..Mark::over(Some(Base::File(read.version.number()))) };
            changes.push(Change::Write { path: tree_path(&entry.path), content: read.content, mode: WriteMode::Overwrite });
            let content = mark.to_bytes(&entry.path).into();
            changes.push(Change::Write { path: mark_path(&entry.path), content, mode: WriteMode::Overwrite });
        }
        Ok(())
    }

    /// Removes from the upper tree what is the same in the lower tree.
    pub(super) async fn tidy(&self) -> Result<()> {
        self.change_upper(Plan::Tidy).await
    }

    async fn tidied(&self) -> Result<Vec<Change>> {
        let differences = self.all_differences(VfsPath::ROOT).await?;
        let remaining: BTreeSet<&VfsPath> = differences.iter().map(|difference| &*difference.path).collect();
        let remains = |path: &VfsPath| {
            let mut following = remaining.range::<VfsPath, _>((Bound::Included(path), Bound::Unbounded));
            following.next().is_some_and(|next| next.starts_with(path))
        };
        let marks = self.marks().await?;
        let upper = absent(self.tree.tree("/", usize::MAX, usize::MAX - 1).await)?.unwrap_or_default().entries;
        let mut changes = Vec::new();
        // The marks that stay, and those that are removed together with the upper content beneath them.
        let mut kept: BTreeSet<&VfsPath> = BTreeSet::new();
        let mut gone: BTreeSet<&VfsPath> = BTreeSet::new();
        let upper_directories: BTreeSet<&VfsPath> = upper.iter().filter(|entry| entry.is_directory()).map(|entry| &*entry.path).collect();
        for (path, mark) in &marks {
            work::step().await;
            if is_within(&gone, path) {
                changes.push(Change::Delete { path: mark_path(path), recursive: false, expect: None });
            } else if mark.claims_directory() && upper_directories.contains(&**path) && !remaining.contains(&**path) {
                // Both trees have the directory now, and show merged.
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
                // Parents follow their children here, so each is empty by then.
                changes.push(Change::Delete { path: tree_path(path), recursive: false, expect: None });
            }
            if stays && is_kept(path) && !entry.is_directory() && !remaining.contains(path) {
                changes.extend(self.rebased(path, marks.get(path)).await?);
            }
        }
        // A path that changed while an apply wrote its earlier content is now based on what the apply left.
        for difference in differences.iter().filter(|difference| difference.conflict.is_none()) {
            let Some(mark) = marks.get(&difference.path).filter(|_| kept.contains(&*difference.path)) else { continue };
            if mark.base.as_ref().is_some_and(|base| conflict(base, difference.before.as_ref()).is_some()) {
                let mut mark = Mark { base: Some(difference.before.as_ref().map_or(Base::Nothing, base_of)), ..mark.clone() };
                mark.intents.remove("");
                let content = mark.to_bytes(&difference.path).into();
                changes.push(Change::Write { path: mark_path(&difference.path), content, mode: WriteMode::Overwrite });
            }
        }
        Ok(changes)
    }

    /// Returns the change that rebases the mark of a file that equals the lower tree's.
    async fn rebased(&self, path: &VfsPath, mark: Option<&Mark>) -> Result<Option<Change>> {
        let Some(lower) = absent(self.lower.stat(path, &StatOptions::new()).await)? else { return Ok(None) };
        let mut mark = Mark { base: Some(base_of(&lower)), ..mark.cloned().unwrap_or_default() };
        mark.intents.remove("");
        let content = mark.to_bytes(path).into();
        Ok(Some(Change::Write { path: mark_path(path), content, mode: WriteMode::Overwrite }))
    }

    /// Plans a change of the upper tree and commits it. Repeats this while other writers get ahead.
    pub(super) async fn change_upper(&self, plan: Plan<'_>) -> Result<()> {
        let mut races = LostRaces::new();
        loop {
            let turn = self.turn_version().await?;
            let planned = match plan {
                Plan::Clear => self.cleared().await,
                Plan::Drop(paths) => self.dropped(paths).await,
                Plan::Restart(paths) => self.restarted(paths).await,
                Plan::Claim(claims) => self.claimed(claims).await,
                Plan::Tidy => self.tidied().await,
            };
            let changes = match planned {
                Ok(changes) if changes.is_empty() => return Ok(()),
                Ok(changes) => changes,
                Err(_) if self.turn_version().await? != turn => {
                    if !races.lost().await {
                        break;
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            let batch: Vec<Change> = std::iter::once(take_turn(turn)).chain(changes).collect();
            match self.upper.apply(&batch, &ApplyOptions::new()).await {
                Ok(_) => return Ok(()),
                Err(error) if error.change() == Some(0) && lost_turn(&error) => {
                    if !races.lost().await {
                        break;
                    }
                }
                Err(error) => return Err(about(VfsPath::ROOT, error)),
            }
        }
        Err(Error::new(ErrorKind::Unavailable, overtaken(&races)).without_effect())
    }

    /// Reads all marks, by path.
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

/// Returns whether a path equals one of some, or lies beneath one.
fn is_within(paths: &BTreeSet<&VfsPath>, path: &VfsPath) -> bool {
    paths.contains(path) || path.ancestors().any(|above| paths.contains(above))
}
