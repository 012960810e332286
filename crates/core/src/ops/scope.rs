//! The scope of a search: its position in the caller's tree and its exclusions.

use super::OnFailure;
use crate::path::{VfsPath, VfsPathBuf};
use std::fmt;
use std::sync::Arc;

/// The scope of a `glob`, `grep` or `search`: its position in the caller's tree and its exclusions.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SearchScope {
    /// The path from the caller's search root to the root of this search; `/` if they are the same. Patterns match
    /// `base` followed by the path below this root, so the files of a mount match as seen from its ancestor.
    pub base: VfsPathBuf,
    /// Subtrees to skip, as full paths in this tree: those hidden by mounts.
    pub prune: Vec<VfsPathBuf>,
    /// Whether to include names that start with a dot. Otherwise such a name matches only a pattern segment that starts
    /// with a dot itself. Default false.
    pub hidden: bool,
    /// Whether a pattern without `/` also matches names in directories whose names start with a dot. The same holds for a
    /// grep or search without includes. Names that start with a dot themselves stay hidden. Default false.
    pub hidden_directories: bool,
    /// Whether to include files excluded by `.gitignore` and `.ignore` files of the tree. Default false.
    pub ignored: bool,
    /// What happens when a mount fails.
    pub on_failure: OnFailure,
    /// Decides which paths may be found. Refused paths are neither returned nor entered, and their content is not read.
    pub guard: Option<PathGuard>,
    /// Refuses with `permission_denied` to follow host links in the path. Default false. Links met during the search
    /// are never followed.
    pub refuse_links: bool,
}

impl Default for SearchScope {
    fn default() -> Self {
        Self {
            base: VfsPathBuf::root(),
            prune: Vec::new(),
            hidden: false,
            hidden_directories: false,
            ignored: false,
            on_failure: OnFailure::default(),
            guard: None,
            refuse_links: false,
        }
    }
}

/// Decides path by path which parts of a tree a search may visit.
///
/// A layer that hides paths sets a guard, so that hidden files are never read and never count toward a limit. A guard
/// takes full paths of the searched tree; a tree that delegates to another one mounted at a prefix passes on
/// [`PathGuard::beneath`] that prefix. Guards are equal if they are the same instance.
#[derive(Clone)]
pub struct PathGuard(Arc<Admits>);

/// The decision, given a path and whether it is a directory.
type Admits = dyn Fn(&VfsPath, bool) -> bool + Send + Sync;

impl PathGuard {
    /// Makes a guard from a function that gets a path and whether it is a directory, and returns whether it may be
    /// found and entered.
    pub fn new(admits: impl Fn(&VfsPath, bool) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(admits))
    }

    /// Returns whether a search may find a path, and enter it if it is a directory.
    pub fn admits(&self, path: &VfsPath, is_directory: bool) -> bool {
        (self.0)(path, is_directory)
    }

    /// Returns the guard for the tree mounted at `prefix`.
    #[must_use]
    pub fn beneath(&self, prefix: &VfsPath) -> Self {
        if prefix.is_root() {
            return self.clone();
        }
        let (outer, prefix) = (self.clone(), prefix.to_owned());
        Self::new(move |path, is_directory| outer.admits(&prefix.concat(path), is_directory))
    }

    /// Returns a guard that admits what both guards admit.
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
    fn guard_beneath_a_prefix_uses_the_inner_trees_paths() {
        let path = |text: &str| VfsPathBuf::parse(text).expect("a legal path");
        let guard = PathGuard::new(|path, _| !path.as_str().starts_with("/m/secret"));
        let inner = guard.beneath(&path("/m"));
        assert!(!inner.admits(&path("/secret/a"), false));
        assert!(inner.admits(&path("/a"), false));
        assert!(!inner.and(&PathGuard::new(|_, is_directory| is_directory)).admits(&path("/a"), false));
        assert_eq!(guard.beneath(VfsPath::ROOT), guard);
        assert_ne!(inner, guard);
    }
}
