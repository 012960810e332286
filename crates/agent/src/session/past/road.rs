//! By which of several mounts a change of their common rows is made.
//!
//! Rules are about paths. Where several mounts show the same rows, a file has several paths, and its caller may change it by each that the
//! rules allow, whatever they say about the others. An undo knows the rows and no path, and a restore may name several paths of one file.
//! So both look for a mount by which the rules allow the change, and make it once.

use crate::session::Session;
use std::collections::BTreeSet;
use treehold_core::error::{Error, Result};
use treehold_core::ops::{Change, Difference, Review, ReviewPurpose, Sight, Standing};
use treehold_core::path::{VfsPath, VfsPathBuf};

/// A change of rows in the paths of one of their mounts.
#[derive(Debug)]
pub(super) struct Road {
    /// The number of the mount; lower ones are more suitable.
    pub(super) mount: usize,
    pub(super) change: Change,
}

impl Session {
    /// Returns for each file of rows the most that one of their mounts shows of it, and the numbers of the mounts that show as much.
    ///
    /// Cost: one review for each mount.
    ///
    /// # Errors
    /// The errors of the tree.
    pub(super) async fn shown_by(&self, mounts: &[VfsPathBuf], files: &[VfsPathBuf]) -> Result<Vec<(Sight, Vec<usize>)>> {
        let mut shown = vec![(Sight::Hidden, Vec::new()); files.len()];
        for (number, mount) in mounts.iter().enumerate() {
            let paths: Vec<VfsPathBuf> = files.iter().map(|file| mount.concat(file)).collect();
            let named: Vec<&VfsPath> = paths.iter().map(|path| &**path).collect();
            let sights = self.sights(&named).await?;
            for ((best, by), (path, sight)) in shown.iter_mut().zip(paths.iter().zip(sights)) {
                // What lies beneath another mount shows files of that one.
                if *self.workspace.mount_of(path) != **mount || sight < *best {
                    continue;
                }
                if sight > *best {
                    *best = sight;
                    by.clear();
                }
                by.push(number);
            }
        }
        Ok(shown)
    }

    /// Chooses one of the roads of each change, and returns their numbers: those through one mount if the tree permits all changes there,
    /// otherwise for each change the first that the tree permits. A change without such a road gets its first, and the refusal of one of
    /// these changes is returned as well. Quotas are not considered.
    ///
    /// Roads by which a recursive removal may take whatever lies beneath come first.
    ///
    /// Cost: none if all roads lead through one mount; otherwise one review for each mount, and one for each road if no mount suits all. Up to
    /// twice that if there are recursive removals.
    pub(super) async fn choose_roads(&self, changes: &[Vec<Road>]) -> (Vec<usize>, Option<Error>) {
        let mounts: BTreeSet<usize> = changes.iter().flatten().map(|road| road.mount).collect();
        if mounts.len() < 2 {
            return (vec![0; changes.len()], None);
        }
        if changes.iter().flatten().any(|road| matches!(road.change, Change::Delete { recursive: true, .. }))
            && let (chosen, None) = self.choose_roads_among(changes, &mounts, true).await
        {
            return (chosen, None);
        }
        self.choose_roads_among(changes, &mounts, false).await
    }

    /// Chooses roads as [`Session::choose_roads`] says, where recursive removals may or may not take whatever lies beneath.
    async fn choose_roads_among(&self, changes: &[Vec<Road>], mounts: &BTreeSet<usize>, beneath: bool) -> (Vec<usize>, Option<Error>) {
        for mount in mounts {
            let through = changes.iter().map(|roads| roads.iter().position(|road| road.mount == *mount));
            let Some(through) = through.collect::<Option<Vec<usize>>>() else { continue };
            let made: Vec<&Change> = changes.iter().zip(&through).map(|(roads, number)| &roads[*number].change).collect();
            if self.permits(&made, beneath).await.is_ok() {
                return (through, None);
            }
        }
        let (mut chosen, mut refusal) = (vec![0; changes.len()], None);
        for (roads, chosen) in changes.iter().zip(&mut chosen) {
            let mut refused = None;
            for (number, road) in roads.iter().enumerate() {
                match self.permits(&[&road.change], beneath).await {
                    Ok(()) => {
                        (*chosen, refused) = (number, None);
                        break;
                    }
                    Err(error) => refused = refused.or(Some(error)),
                }
            }
            refusal = refusal.or(refused);
        }
        (chosen, refusal)
    }

    /// Returns each change by the road that [`Session::choose_roads`] chooses.
    ///
    /// # Errors
    /// The refusal of a change that the tree permits by none of several roads.
    pub(super) async fn by_permitted_roads(&self, changes: Vec<Vec<Road>>) -> Result<Vec<Change>> {
        let (chosen, refusal) = self.choose_roads(&changes).await;
        match refusal {
            Some(refusal) => Err(refusal),
            None => Ok(changes.into_iter().zip(chosen).map(|(mut roads, number)| roads.swap_remove(number).change).collect()),
        }
    }

    /// Checks that the tree permits changes of one mount, and of whatever lies `beneath` their paths. Nobody is asked for approval.
    async fn permits(&self, changes: &[&Change], beneath: bool) -> Result<()> {
        let Some(first) = changes.first() else { return Ok(()) };
        let at = self.workspace.mount_of(first.path()).to_owned();
        let differences = changes.iter().map(|change| difference_of(change)).collect();
        let review = Review::new(ReviewPurpose::Permit, at, differences).with_covers_beneath(beneath);
        self.backend.review(&review).await.map(drop)
    }
}

/// Returns what a write or a removal changes, as far as it matters who may make it.
fn difference_of(change: &Change) -> Difference {
    let (before, after) = match change {
        Change::Write { content, .. } => (None, Some(Standing::File(content.len() as u64))),
        Change::Delete { recursive: true, .. } => (Some(Standing::Directory), None),
        _ => (Some(Standing::File(0)), None),
    };
    Difference::new(change.path().to_owned(), before, after)
}
