//! News about changes in a tree, whoever made them.

use treehold_core::path::VfsPathBuf;

/// A message of a change feed, for code that caches parts of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TreeNews {
    /// From now on every change is reported.
    Live,
    /// A path, or something beneath it, has changed.
    Changed(VfsPathBuf),
    /// Changes may have been missed, and the feed continues: validate everything cached.
    Reset,
    /// Changes are no longer reported until the feed is [live](TreeNews::Live) again.
    Lost,
}
