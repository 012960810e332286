//! What the tree that a state stands in is asked before the state becomes another past the tree, and before anything of it is told.
//!
//! A restore, a merge or a fork changes files without [`apply`](Backend::apply), and a difference between two checkpoints shows them
//! without a read. The layers of the tree (rules, a token's paths, quotas) are asked about the same files all the same, in the paths
//! at which the state stands in the tree.

use super::diff;
use crate::backend::{Backend, StateSnapshot};
use crate::error::{ErrorKind, Result};
use crate::ops::{Difference, Review, ReviewPurpose, Sight};
use crate::path::VfsPathBuf;
use std::sync::Arc;

/// How many differences are looked at in one go.
const STEP: usize = 1_000;

/// A tree in which the state of a thread stands.
#[derive(Debug, Clone)]
pub(crate) struct Reviewer {
    tree: Arc<dyn Backend>,
    /// Where the state is mounted.
    places: Arc<[VfsPathBuf]>,
}

impl Reviewer {
    pub(crate) fn new(tree: Arc<dyn Backend>, places: Vec<VfsPathBuf>) -> Self {
        Self { tree, places: places.into() }
    }

    /// Returns the tree.
    pub(crate) fn tree(&self) -> &Arc<dyn Backend> {
        &self.tree
    }

    /// Returns where the state is mounted.
    pub(crate) fn places(&self) -> &[VfsPathBuf] {
        &self.places
    }

    /// Checks that one state may take the place of another.
    ///
    /// Cost: grows with what differs.
    ///
    /// # Errors
    /// Those of [`Backend::review`].
    pub(crate) async fn allow(&self, older: &StateSnapshot, newer: &StateSnapshot) -> Result<()> {
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

    /// Asks about differences of the state; returns of each how much of it may be shown, wherever the state stands.
    ///
    /// # Errors
    /// Those of [`Backend::review`].
    pub(crate) async fn ask(&self, purpose: ReviewPurpose, differences: &[Difference]) -> Result<Vec<Sight>> {
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

    /// Tells whether nothing of the state is kept back.
    pub(crate) async fn shows_all(&self) -> Result<bool> {
        match self.ask(ReviewPurpose::Whole, &[]).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(false),
            Err(error) => Err(error),
        }
    }
}
