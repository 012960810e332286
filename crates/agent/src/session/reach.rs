//! Which mounts a session's changes affect: the state of its thread, which is durable only once saved, and all others, which change at
//! once.
//!
//! If the save of some work conflicted with another writer's, the work is repeated only if it changed nothing but the state: changes to
//! other mounts would be made twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use treehold_core::ops::Change;
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

/// Counts the batches that may have changed a mount other than the state.
#[derive(Debug, Clone, Default)]
pub(crate) struct Elsewhere(Arc<AtomicU64>);

impl Elsewhere {
    /// Counts a batch before it starts.
    pub(crate) fn begin(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Uncounts a batch that is known to have changed nothing.
    pub(crate) fn take_back(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Reach {
    /// Registers a mount. Returns the counter for its changes, unless only the state changes there.
    pub(crate) fn mount(&mut self, path: &VfsPath, mounted: Mounted) -> Option<Elsewhere> {
        self.mounts.insert(path.to_owned(), mounted);
        (mounted != Mounted::State).then(|| self.elsewhere.clone())
    }

    /// Returns the number of batches that may have changed a mount other than the state.
    pub(crate) fn elsewhere(&self) -> u64 {
        self.elsewhere.0.load(Ordering::Acquire)
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
    fn meets_state(&self, path: &VfsPath) -> bool {
        let beneath = |(at, mounted): (&VfsPathBuf, &Mounted)| *mounted != Mounted::Other && at.starts_with(path);
        self.is_state(path) || self.mounts.iter().any(beneath)
    }
}

/// What work is about to change, as far as is known beforehand. Only work that changes the thread takes turns.
#[derive(Debug, Clone)]
pub enum Target {
    /// The thread: its state, or its history.
    Thread,
    /// These paths and everything beneath them.
    Paths(Vec<VfsPathBuf>),
}

impl Target {
    /// Returns the target of changes.
    pub fn of_changes(changes: &[Change]) -> Self {
        Self::Paths(changes.iter().flat_map(changed_paths).map(VfsPath::to_owned).collect())
    }

    /// Returns the target of a call that names these paths; a call that names none may change anything.
    pub fn of_paths(paths: Option<Vec<VfsPathBuf>>) -> Self {
        paths.map_or(Self::Thread, Self::Paths)
    }

    /// Returns whether the work can change the thread of a session with these mounts.
    pub(super) fn is_thread(&self, reach: &Reach) -> bool {
        match self {
            Self::Thread => true,
            Self::Paths(paths) => paths.iter().any(|path| reach.meets_state(path)),
        }
    }
}

/// Returns the paths that a change modifies. A copy only reads its source.
fn changed_paths(change: &Change) -> Vec<&VfsPath> {
    match change {
        Change::Copy { to, .. } => vec![to],
        change => change.paths().collect(),
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

    #[test]
    fn target_is_thread_if_a_path_or_its_subtree_is_state() {
        let reach = reach(&[("/", Mounted::Other), ("/thread", Mounted::State)]);
        for (paths, is_thread) in [(&["/a"][..], false), (&["/thread/a"], true), (&["/"], true), (&["/a", "/thread"], true), (&[], false)] {
            let target = Target::Paths(paths.iter().map(|text| path(text)).collect());
            assert_eq!(target.is_thread(&reach), is_thread, "{paths:?}");
        }
        assert!(Target::of_paths(None).is_thread(&reach));
    }
}
