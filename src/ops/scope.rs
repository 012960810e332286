//! Where a search stands, what it may meet and what it leaves out.

use super::OnFailure;
use crate::path::{VfsPath, VfsPathBuf};
use std::fmt;
use std::sync::Arc;

/// Where a search stands in its caller's tree, and what it leaves out; the same for `glob`, `grep` and `search`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SearchScope {
    /// What stands between the caller's search root and the path searched here, `/` when they are the same. Patterns match
    /// `base` followed by the path beneath the path searched, so a mount is matched as its ancestor sees it.
    pub base: VfsPathBuf,
    /// Subtrees that are not entered, as whole paths of this tree: what a mount hides.
    pub prune: Vec<VfsPathBuf>,
    /// Includes names that start with a dot. Without it such a name is met only by a segment of the pattern that starts
    /// with a dot itself. Default false.
    pub hidden: bool,
    /// Includes what `.gitignore` and `.ignore` files of the tree exclude. Default false.
    pub ignored: bool,
    /// What a failing mount does.
    pub on_failure: OnFailure,
    /// Asked for every path met, when set: what it refuses is not found, not entered, and its content is not read.
    pub guard: Option<PathGuard>,
    /// Refuses with `permission_denied` a path on which a link of the host would be followed. Default false.
    /// Links that a search meets on its way are never followed, whatever this says.
    pub refuse_links: bool,
}

impl Default for SearchScope {
    fn default() -> Self {
        Self {
            base: VfsPathBuf::root(),
            prune: Vec::new(),
            hidden: false,
            ignored: false,
            on_failure: OnFailure::default(),
            guard: None,
            refuse_links: false,
        }
    }
}

/// Which paths of a tree a search may meet, decided path by path while it walks.
///
/// A layer that hides paths sets it, so that what is hidden is never read and never takes a place under a limit. It speaks of
/// whole paths of the tree searched; a tree that asks another at a prefix hands on [`PathGuard::beneath`] that prefix. Two
/// guards are equal when they are the same one.
#[derive(Clone)]
pub struct PathGuard(Arc<Admits>);

/// Decides by a path and whether a directory is there.
type Admits = dyn Fn(&VfsPath, bool) -> bool + Send + Sync;

impl PathGuard {
    /// Makes a guard of a function of a path and whether a directory is there: true when it may be found, and entered.
    pub fn new(admits: impl Fn(&VfsPath, bool) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(admits))
    }

    /// Tells whether a search may find a path, and enter it when it is a directory.
    pub fn admits(&self, path: &VfsPath, is_directory: bool) -> bool {
        (self.0)(path, is_directory)
    }

    /// Returns the same guard for the tree that stands at `prefix`.
    #[must_use]
    pub fn beneath(&self, prefix: &VfsPath) -> Self {
        if prefix.is_root() {
            return self.clone();
        }
        let (outer, prefix) = (self.clone(), prefix.to_owned());
        Self::new(move |path, is_directory| outer.admits(&prefix.concat(path), is_directory))
    }

    /// Returns a guard that admits what both admit.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let (one, other) = (self.clone(), other.clone());
        Self::new(move |path, is_directory| one.admits(path, is_directory) && other.admits(path, is_directory))
    }
}

impl PartialEq for PathGuard {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for PathGuard {}

impl fmt::Debug for PathGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PathGuard")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_speaks_the_paths_of_the_tree_it_is_lent_to() {
        let path = |text: &str| VfsPathBuf::parse(text).expect("a legal path");
        let guard = PathGuard::new(|path, _| !path.as_str().starts_with("/m/secret"));
        let lent = guard.beneath(&path("/m"));
        assert!(!lent.admits(&path("/secret/a"), false));
        assert!(lent.admits(&path("/a"), false));
        assert!(!lent.and(&PathGuard::new(|_, is_directory| is_directory)).admits(&path("/a"), false));
        assert_eq!(guard.beneath(VfsPath::ROOT), guard);
        assert_ne!(lent, guard);
    }
}
