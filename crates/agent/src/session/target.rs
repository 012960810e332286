//! What work on a thread is about to change.

use crate::live::Reach;
use treehold_core::ops::Change;
use treehold_core::path::{VfsPath, VfsPathBuf};

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
    use crate::live::Mounted;

    fn path(text: &str) -> VfsPathBuf {
        VfsPathBuf::parse(text).expect("a legal path")
    }

    #[test]
    fn target_is_thread_if_a_path_or_its_subtree_is_state() {
        let mut reach = Reach::new([path("/"), path("/thread")].into());
        reach.mount(Mounted::Other);
        reach.mount(Mounted::State);
        for (paths, is_thread) in [(&["/a"][..], false), (&["/thread/a"], true), (&["/"], true), (&["/a", "/thread"], true), (&[], false)] {
            let target = Target::Paths(paths.iter().map(|text| path(text)).collect());
            assert_eq!(target.is_thread(&reach), is_thread, "{paths:?}");
        }
        assert!(Target::of_paths(None).is_thread(&reach));
    }
}
