//! What is told of changes in a tree, by whoever they are made.

use treehold_core::path::VfsPathBuf;

/// A piece of news about a tree: what a feed of changes says, for whoever keeps something of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TreeNews {
    /// From now on every change is told of.
    Live,
    /// What stands at a path, or beneath it, is not what it was.
    Changed(VfsPathBuf),
    /// Changes may have been missed, and the feed goes on: all that is known is to be looked at again.
    Reset,
    /// Changes are not told of any more, until it is [live](TreeNews::Live) again.
    Lost,
}
