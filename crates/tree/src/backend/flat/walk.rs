//! Decides which paths of a tree, walked in path order, a search visits.
//!
//! A tier passes its nodes in path order and asks what to do with each. It may start late and seek: nodes in directories that are
//! not entered need not be passed. Ignore files are content, so the tier reads them and adds them before the paths that they affect.

use std::collections::BTreeSet;
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::search::{IgnoreFiles, PathFilter};

/// The decisions of one search.
#[derive(Debug)]
pub(in crate::backend) struct Walk {
    root: VfsPathBuf,
    filter: PathFilter,
    ignores: IgnoreFiles,
    /// The ignore files that cannot be read.
    lost: BTreeSet<VfsPathBuf>,
}

/// What to do with one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::backend) struct Visit {
    /// The node is a result.
    pub(in crate::backend) selected: bool,
    /// The nodes beneath it are visited too.
    pub(in crate::backend) entered: bool,
}

/// The range of a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::backend) struct Stretch {
    /// Only this path and the paths beneath it are visited.
    pub(in crate::backend) within: VfsPathBuf,
    /// The first path that may be visited. The search root itself is never visited.
    pub(in crate::backend) from: VfsPathBuf,
}

impl Walk {
    /// Starts a search beneath `root`.
    pub(in crate::backend) fn new(root: &VfsPath, filter: PathFilter) -> Self {
        Self { root: root.to_owned(), filter, ignores: IgnoreFiles::new(), lost: BTreeSet::new() }
    }

    /// Leaves out some ignore files, because they cannot be read.
    pub(in crate::backend) fn without_ignore_files(self, lost: BTreeSet<VfsPathBuf>) -> Self {
        Self { lost, ..self }
    }

    /// Returns whether an ignore file is left out.
    pub(in crate::backend) fn lacks_ignore_file(&self, path: &VfsPath) -> bool {
        self.lost.contains(path)
    }

    /// Returns the range of the search, given the path of its cursor; `None` if nothing can be found.
    pub(in crate::backend) fn stretch(&self, cursor: Option<&VfsPath>) -> Option<Stretch> {
        let within = self.filter.bound()?;
        let from = match cursor {
            Some(cursor) if cursor <= &*within => within.clone(),
            Some(cursor) if cursor.starts_with(&within) => cursor.to_owned(),
            Some(_) => return None,
            None => within.clone(),
        };
        Some(Stretch { within, from })
    }

    /// Returns the search root, which is not visited itself.
    pub(in crate::backend) fn root(&self) -> &VfsPath {
        &self.root
    }

    /// Returns whether the search needs the ignore files of the directories that it meets.
    pub(in crate::backend) fn wants_ignore_files(&self) -> bool {
        self.filter.respects_ignore_files()
    }

    /// Adds the ignore files of a directory.
    pub(in crate::backend) fn add_ignore_files(&mut self, directory: &VfsPath, contents: [Option<&[u8]>; 2]) {
        if contents.iter().any(Option::is_some) {
            self.ignores.insert(directory, contents);
        }
    }

    /// Returns whether a directory would be entered if no ignore file excluded it.
    pub(in crate::backend) fn may_enter(&self, directory: &VfsPath) -> bool {
        self.filter.enters(directory)
    }

    /// Returns whether [`visit`](Self::visit) selects every file in an entered directory, except perhaps those whose names start with a
    /// dot.
    pub(in crate::backend) fn takes_children(&self, directory: &VfsPath) -> bool {
        self.ignores.is_empty() && self.filter.takes_children(directory)
    }

    /// Decides about a node strictly beneath the search root, in an entered directory.
    pub(in crate::backend) fn visit(&self, path: &VfsPath, is_directory: bool) -> Visit {
        let selected = self.filter.selects(path, is_directory);
        let entered = is_directory && self.filter.enters(path);
        if (selected || entered) && self.ignores.excludes(path, is_directory) {
            return Visit { selected: false, entered: false };
        }
        Visit { selected, entered }
    }

    /// Returns the directory that keeps the search from entering the start of a stretch: the outermost one above it that is not entered.
    /// The ignore files of all directories above the start must have been added.
    pub(in crate::backend) fn obstacle<'s>(&self, stretch: &'s Stretch) -> Option<&'s VfsPath> {
        let beneath_root = |above: &&VfsPath| **above != *self.root && above.starts_with(&self.root);
        stretch.from.ancestors().filter(beneath_root).find(|above| {
            // For paths above its bound, the filter answers as for the bound itself.
            let is_filtered = above.starts_with(&stretch.within) && !self.filter.enters(above);
            is_filtered || self.ignores.excludes(above, true)
        })
    }
}
