//! Which directories a search enters and which files count.

use crate::error::Result;
use crate::ops::{GlobOptions, GrepOptions};
use crate::path::{VfsPath, VfsPathBuf};

/// The compiled selection of one search: search root, base, pruned subtrees, hidden names, globs and types.
///
/// Ignore files are the walker's to keep ([`IgnoreFiles`](super::IgnoreFiles)), as only it can read them.
#[derive(Debug)]
pub struct PathFilter {
    _private: (),
}

impl PathFilter {
    /// Compiles the selection of a glob. `root` is the path searched, within this tree.
    ///
    /// # Errors
    /// `invalid_argument` for a malformed pattern.
    pub fn for_glob(root: &VfsPath, options: &GlobOptions) -> Result<Self> {
        let _ = (root, options);
        unimplemented!()
    }

    /// Compiles the selection of a grep: includes, excludes and types.
    ///
    /// # Errors
    /// `invalid_argument` for a malformed glob or an unknown type.
    pub fn for_grep(root: &VfsPath, options: &GrepOptions) -> Result<Self> {
        let _ = (root, options);
        unimplemented!()
    }

    /// Returns the deepest path of this tree (at or beneath the search root) that everything selected lies at or beneath; none when
    /// nothing in this tree can be selected (the literal part of the pattern leads elsewhere).
    pub fn bound(&self) -> Option<VfsPathBuf> {
        unimplemented!()
    }

    /// Tells whether a directory strictly beneath the search root is entered, given that its parent was.
    pub fn enters(&self, directory: &VfsPath) -> bool {
        let _ = directory;
        unimplemented!()
    }

    /// Tells whether a file, link or directory strictly beneath the search root is selected, given that its parent was entered.
    /// `is_directory` matters for `GlobOptions::directories`.
    pub fn selects(&self, path: &VfsPath, is_directory: bool) -> bool {
        let _ = (path, is_directory);
        unimplemented!()
    }

    /// Tells whether ignore files count.
    pub fn respects_ignore_files(&self) -> bool {
        unimplemented!()
    }
}
