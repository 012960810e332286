//! Which mounts a session's changes affect: the state of its thread, which is durable only once saved, and all others, which change at
//! once.
//!
//! If the save of some work conflicted with another writer's, the work is repeated only if it changed nothing but the state: changes to
//! other mounts would be made twice.

use crate::feed::Elsewhere;
use std::collections::BTreeMap;
use treehold_core::path::{VfsPath, VfsPathBuf};

/// The mounts of a session's tree, and how often mounts other than the state may have changed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reach {
    mounts: BTreeMap<VfsPathBuf, Mounted>,
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
    /// Registers a mount. Returns the counter for its changes, unless only the state changes there.
    pub(crate) fn mount(&mut self, path: &VfsPath, mounted: Mounted) -> Option<Elsewhere> {
        self.mounts.insert(path.to_owned(), mounted);
        (mounted != Mounted::State).then(|| self.elsewhere.clone())
    }

    /// Returns the number of batches that may have changed a mount other than the state.
    pub(crate) fn elsewhere(&self) -> u64 {
        self.elsewhere.count()
    }

    /// Returns the mounts that contain the state.
    pub(crate) fn places(&self) -> Vec<VfsPathBuf> {
        self.mounts.iter().filter(|(_, mounted)| **mounted != Mounted::Other).map(|(path, _)| path.clone()).collect()
    }

    /// Returns whether a path lies in the state.
    pub(crate) fn is_state(&self, path: &VfsPath) -> bool {
        let above = path.ancestors().chain([path]).filter_map(|above| self.mounts.get(above));
        above.last().is_none_or(|mounted| *mounted != Mounted::Other)
    }

    /// Returns whether changing a path and everything beneath it can change the state.
    pub(crate) fn meets_state(&self, path: &VfsPath) -> bool {
        let beneath = |(at, mounted): (&VfsPathBuf, &Mounted)| *mounted != Mounted::Other && at.starts_with(path);
        self.is_state(path) || self.mounts.iter().any(beneath)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> VfsPathBuf {
        VfsPathBuf::parse(text).expect("a legal path")
    }

    fn reach(mounts: &[(&str, Mounted)]) -> Reach {
        let mut reach = Reach::default();
        for (at, mounted) in mounts {
            reach.mount(&path(at), *mounted);
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
