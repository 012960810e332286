//! Reviews by a tree's layers, before a state is replaced without a call of the tree, and before any of it is shown.
//!
//! A restore, a merge or a fork changes files without [`apply`](Backend::apply), and a diff between two checkpoints shows them without a
//! read. The layers of the tree (rules, a token's paths, quotas) review these files all the same, under the paths at which the tree mounts
//! the state. Where it mounts the state at several, one of them suffices, as for a write by that path: a change is allowed if all of it is
//! allowed at one mount point, and a path may be shown as far as one mount point shows it. A mount point at which another mount hides a path
//! says nothing about that path. If none has all that a change concerns, the change must be allowed at each of them.

use super::diff;
use crate::backend::{Backend, StateSnapshot};
use std::sync::Arc;
use treehold_core::error::{ErrorKind, Result};
use treehold_core::ops::{Difference, Review, ReviewPurpose, Sight, Standing};
use treehold_core::path::{VfsPath, VfsPathBuf};

/// The number of differences that are examined at once.
const STEP: usize = 1_000;

/// A tree that contains the state of a thread.
#[derive(Debug, Clone)]
pub struct Reviewer {
    tree: Arc<dyn Backend>,
    /// The mount points of the state.
    places: Arc<[VfsPathBuf]>,
    /// All mount points of the tree.
    mounts: Arc<[VfsPathBuf]>,
}

impl Reviewer {
    /// Reviews differences beneath the paths at which a tree shows a state.
    pub fn new(tree: Arc<dyn Backend>, places: Vec<VfsPathBuf>) -> Self {
        let places: Arc<[VfsPathBuf]> = places.into();
        Self { tree, mounts: places.clone(), places }
    }

    /// Sets all mount points of the tree, those of other trees too. They hide what the state has at their paths.
    #[must_use]
    pub fn with_mounts(mut self, mounts: Arc<[VfsPathBuf]>) -> Self {
        self.mounts = mounts;
        self
    }

    /// Returns the tree.
    pub fn tree(&self) -> &Arc<dyn Backend> {
        &self.tree
    }

    /// Returns the mount points of the state.
    pub fn places(&self) -> &[VfsPathBuf] {
        &self.places
    }

    /// Checks that one state may replace another.
    ///
    /// Cost: proportional to the differences.
    ///
    /// # Errors
    /// The errors of [`Backend::review`].
    pub async fn allow(&self, older: &StateSnapshot, newer: &StateSnapshot) -> Result<()> {
        if self.places.is_empty() || older.version() == newer.version() && Arc::ptr_eq(older.root(), newer.root()) {
            return Ok(());
        }
        let (mut differences, mut after) = (Vec::new(), None);
        loop {
            let page = diff(older, newer, after.as_deref(), STEP).await?;
            differences.extend(page.paths.iter().map(Difference::from));
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        self.ask(ReviewPurpose::Change, &differences).await.map(drop)
    }

    /// Checks that a state may be removed that cannot be read: whatever its files are, no layer may refuse to remove one of them.
    ///
    /// Cost: one review; if the state is mounted at several points, up to one more for each.
    ///
    /// # Errors
    /// The errors of [`Backend::review`], also if a layer refuses paths that the state does not have.
    pub async fn allow_unread_removal(&self) -> Result<()> {
        let whole = Difference::new(VfsPathBuf::root(), Some(Standing::Directory), None);
        let review = Review::new(ReviewPurpose::Change, VfsPathBuf::root(), vec![whole]).with_covers_beneath(true);
        self.ask_about_change(&review).await.map(drop)
    }

    /// Reviews differences of the state. Returns for each how much of it may be shown.
    ///
    /// Cost: one review for each mount point of the state. Of a change, one; if there are several mount points, up to one more for each.
    ///
    /// # Errors
    /// The errors of [`Backend::review`]: for a change that no mount point allows, those at the first one that has all of it.
    pub async fn ask(&self, purpose: ReviewPurpose, differences: &[Difference]) -> Result<Vec<Sight>> {
        let review = Review::new(purpose, VfsPathBuf::root(), differences.to_vec());
        if self.places.is_empty() || differences.is_empty() && purpose != ReviewPurpose::Whole {
            return Ok(review.open());
        }
        match purpose {
            ReviewPurpose::Change | ReviewPurpose::Permit => self.ask_about_change(&review).await,
            ReviewPurpose::Show | ReviewPurpose::Consent => self.ask_for_sights(&review).await,
            ReviewPurpose::Whole => self.ask_for_the_whole(&review).await,
        }
    }

    /// Asks how much of each path may be shown: the most that a mount point shows that has it.
    async fn ask_for_sights(&self, review: &Review) -> Result<Vec<Sight>> {
        let mut shown: Vec<Option<Sight>> = vec![None; review.differences.len()];
        let mut least = vec![Sight::Open; review.differences.len()];
        for place in self.places.iter() {
            let asked = self.ask_at(place, review).await?;
            for (number, (here, difference)) in asked.into_iter().zip(&review.differences).enumerate() {
                least[number] = least[number].min(here);
                if self.has(place, &difference.path) {
                    shown[number] = shown[number].max(Some(here));
                }
            }
        }
        Ok(shown.into_iter().zip(least).map(|(shown, least)| shown.unwrap_or(least)).collect())
    }

    /// Asks whether the whole state may be shown: at one mount point that has all of it, or at all mount points.
    async fn ask_for_the_whole(&self, review: &Review) -> Result<Vec<Sight>> {
        let mut refused = None;
        for place in self.places.iter() {
            match self.ask_at(place, review).await {
                Err(error) if error.kind() == ErrorKind::PermissionDenied => refused = refused.or(Some(error)),
                Ok(asked) if self.has_all(place) => return Ok(asked),
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
        refused.map_or_else(|| Ok(review.open()), Err)
    }

    /// Asks about a change, in paths of the state, at the first mount point that has all of it and permits it, or the first that has all of
    /// it. If none has all of it, every mount point must permit it.
    async fn ask_about_change(&self, review: &Review) -> Result<Vec<Sight>> {
        let Some(first) = self.places.first() else { return Ok(review.open()) };
        let mut chosen = first;
        if self.places.len() > 1 {
            let has_review = |place: &VfsPathBuf| match review.covers_beneath {
                true => self.has_all(place),
                false => review.differences.iter().all(|difference| self.has(place, &difference.path)),
            };
            let having: Vec<&VfsPathBuf> = self.places.iter().filter(|place| has_review(place)).collect();
            let mut permit = review.clone();
            permit.purpose = ReviewPurpose::Permit;
            if let Some(&place) = having.first() {
                chosen = place;
            } else {
                for place in self.places.iter() {
                    self.ask_at(place, &permit).await?;
                }
            }
            for place in having {
                if self.ask_at(place, &permit).await.is_ok() {
                    chosen = place;
                    break;
                }
            }
        }
        self.ask_at(chosen, review).await
    }

    /// Returns whether a path of the state is at a mount point, and no other mount hides it there.
    fn has(&self, place: &VfsPath, path: &VfsPath) -> bool {
        let path = place.concat(path);
        let mounts = self.mounts.iter().filter(|mount| path.strip_prefix(mount).is_some());
        mounts.max_by_key(|mount| mount.as_str().len()).is_none_or(|nearest| **nearest == *place)
    }

    /// Returns whether no other mount lies beneath a mount point of the state.
    fn has_all(&self, place: &VfsPath) -> bool {
        !self.mounts.iter().any(|mount| **mount != *place && mount.strip_prefix(place).is_some())
    }

    /// Asks at one mount point about a review in paths of the state.
    async fn ask_at(&self, place: &VfsPath, review: &Review) -> Result<Vec<Sight>> {
        self.tree.review(&review.map_paths(|path| place.concat(path))).await
    }

    /// Returns whether the whole state may be shown.
    pub async fn shows_all(&self) -> Result<bool> {
        match self.ask(ReviewPurpose::Whole, &[]).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(false),
            Err(error) => Err(error),
        }
    }
}
