//! Reviews by a tree's layers, before a state is replaced without a call of the tree, and before any of it is shown.
//!
//! A restore, a merge or a fork changes files without [`apply`](Backend::apply), and a diff between two checkpoints shows them without a
//! read. The layers of the tree (rules, a token's paths, quotas) review these files all the same, under the paths at which the tree mounts
//! the state.

use super::diff;
use crate::backend::{Backend, StateSnapshot};
use std::sync::Arc;
use treehold_core::error::{ErrorKind, Result};
use treehold_core::ops::{Difference, Review, ReviewPurpose, Sight};
use treehold_core::path::VfsPathBuf;

/// The number of differences that are examined at once.
const STEP: usize = 1_000;

/// A tree that contains the state of a thread.
#[derive(Debug, Clone)]
pub struct Reviewer {
    tree: Arc<dyn Backend>,
    /// The mount points of the state.
    places: Arc<[VfsPathBuf]>,
}

impl Reviewer {
    /// Reviews differences beneath the paths at which a tree shows a state.
    pub fn new(tree: Arc<dyn Backend>, places: Vec<VfsPathBuf>) -> Self {
        Self { tree, places: places.into() }
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

    /// Reviews differences of the state. Returns for each how much of it may be shown, at every mount point of the state.
    ///
    /// # Errors
    /// The errors of [`Backend::review`].
    pub async fn ask(&self, purpose: ReviewPurpose, differences: &[Difference]) -> Result<Vec<Sight>> {
        let mut sights = vec![Sight::Open; differences.len()];
        if differences.is_empty() && purpose != ReviewPurpose::Whole {
            return Ok(sights);
        }
        for place in self.places.iter() {
            let review = Review::new(purpose, VfsPathBuf::root(), differences.to_vec()).map_paths(|path| place.concat(path));
            for (sight, here) in sights.iter_mut().zip(self.tree.review(&review).await?) {
                *sight = (*sight).min(here);
            }
        }
        Ok(sights)
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
