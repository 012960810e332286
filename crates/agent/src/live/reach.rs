//! Which mounts a session's changes affect: the state of its thread, which is durable only once saved, and all others, which change at
//! once.
//!
//! If the save of some work conflicted with another writer's, the work is repeated only if it changed nothing but the state: changes to
//! other mounts would be made twice.

use crate::feed::Elsewhere;
use std::sync::Arc;
use treehold_core::path::{VfsPath, VfsPathBuf};

/// The mounts of a session's tree, and how often mounts other than the state may have changed.
#[derive(Debug, Clone)]
pub(crate) struct Reach {
    /// The mount points, in path order.
    places: Arc<[VfsPathBuf]>,
    /// What is mounted at them.
    mounted: Vec<Mounted>,
    elsewhere: Elsewhere,
}

/// The kind of tree at a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mounted {
    /// The state of the thread.
    State,
    /// The state within another tree, whose changes may affect other things too.
    Mixed,
    /// Anything else.
    Other,
}

impl Reach {
    /// Starts the mounts at these points, which are in path order.
    pub(crate) fn new(places: Arc<[VfsPathBuf]>) -> Self {
        Self { mounted: Vec::with_capacity(places.len()), places, elsewhere: Elsewhere::default() }
    }

    /// Registers the mount at the next point. Returns the counter for its changes, unless only the state changes there.
    pub(crate) fn mount(&mut self, mounted: Mounted) -> Option<Elsewhere> {
        assert!(self.mounted.len() < self.places.len(), "a mount without a mount point");
        self.mounted.push(mounted);
        (mounted != Mounted::State).then(|| self.elsewhere.clone())
    }

    /// Returns whether a mount is registered at every point.
    pub(crate) fn is_complete(&self) -> bool {
        self.mounted.len() == self.places.len()
    }

    fn mounts(&self) -> impl Iterator<Item = (&VfsPathBuf, Mounted)> {
        self.places.iter().zip(self.mounted.iter().copied())
    }

    /// Returns what is mounted at exactly this path.
    fn mounted_at(&self, path: &VfsPath) -> Option<Mounted> {
        let at = self.places.binary_search_by(|place| (**place).cmp(path)).ok()?;
        self.mounted.get(at).copied()
    }

    /// Returns the number of batches that may have changed a mount other than the state.
    pub(crate) fn elsewhere(&self) -> u64 {
        self.elsewhere.count()
    }

    /// Returns the mounts that contain the state.
    pub(crate) fn places(&self) -> Vec<VfsPathBuf> {
        self.mounts().filter(|(_, mounted)| *mounted != Mounted::Other).map(|(path, _)| path.clone()).collect()
    }

    /// Returns whether a path lies in the state.
    pub(crate) fn is_state(&self, path: &VfsPath) -> bool {
        let above = path.ancestors().chain([path]).filter_map(|above| self.mounted_at(above));
        above.last().is_none_or(|mounted| mounted != Mounted::Other)
    }

    /// Returns whether changing a path and everything beneath it can change the state.
    pub(crate) fn meets_state(&self, path: &VfsPath) -> bool {
        let beneath = |(at, mounted): (&VfsPathBuf, Mounted)| mounted != Mounted::Other && at.starts_with(path);
        self.is_state(path) || self.mounts().any(beneath)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> VfsPathBuf {
        VfsPathBuf::parse(text).expect("a legal path")
    }

    fn reach(mounts: &[(&str, Mounted)]) -> Reach {
        let mut reach = Reach::new(mounts.iter().map(|(at, _)| path(at)).collect());
        for (_, mounted) in mounts {
            reach.mount(*mounted);
        }
        reach
    }

    #[test]
    fn path_is_state_if_its_nearest_mount_is() {
        let reach =
            reach(&[("/", Mounted::State), ("/memories", Mounted::Other), ("/memories/now", Mounted::State), ("/mix", Mounted::Mixed)]);
        for (text, is_state) in [
            ("/", true),
            ("/a", true),
            ("/memories", false),
            ("/memories/a", false),
            ("/memories/now/a", true),
            ("/memoriesx", true),
            ("/mix/a", true),
        ] {
            assert_eq!(reach.is_state(&path(text)), is_state, "{text}");
        }
    }
}
