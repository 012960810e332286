//! A tree in memory at one instant.

use super::difference::{Differences, StateDifference};
use super::tree::{Tree, read};
use super::{StateNode, search};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions, Op,
    ReadOptions, Version,
};
use crate::path::{VfsPath, VfsPathBuf};
use async_trait::async_trait;
use std::fmt;
use std::sync::Arc;

/// A [`StateBackend`](super::StateBackend) as it was at one instant: immutable, and itself a read-only backend.
///
/// It shares all nodes and bodies with the tree it was taken of and with other snapshots, so that taking and cloning one is
/// O(1) and it costs memory only for what changed since.
///
/// # Examples
/// ```
/// use stratafs::{BackendExt, StateBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> stratafs::Result<()> {
/// let tree = StateBackend::new();
/// tree.write("/a.md", "one").await?;
/// let before = tree.snapshot();
/// tree.write("/a.md", "two").await?;
/// assert_eq!(before.read_text("/a.md").await?, "one");
/// assert_eq!(tree.snapshot().changes_since(&before).count(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct StateSnapshot {
    pub(super) tree: Tree,
}

impl StateSnapshot {
    /// Makes an empty tree.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a tree of nodes that were saved, with the version the snapshot had.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) when a node stands in no directory, a path occurs twice, or a version is newer than
    /// the snapshot's.
    pub fn from_nodes<P: AsRef<VfsPath>>(nodes: impl IntoIterator<Item = (P, StateNode)>, version: Version) -> Result<Self> {
        let mut nodes: Vec<(P, StateNode)> = nodes.into_iter().collect();
        // What `iter` gave is in order already; any other order is put right, so that a directory comes before what is in it.
        nodes.sort_by(|(one, _), (other, _)| one.as_ref().cmp(other.as_ref()));
        let mut tree = Tree::default();
        for (path, node) in nodes {
            let path = path.as_ref();
            // What lies beneath a directory is told by nodes of their own.
            let node = if node.is_directory() { StateNode::directory(node.created_at()) } else { node };
            let is_newer = node.version().is_some_and(|of_node| of_node > version);
            if is_newer || tree.get(path).is_some() || !tree.insert(path, node) {
                return Err(corrupt(path));
            }
        }
        tree.set_version(version.number());
        Ok(Self { tree })
    }

    /// Returns the version of the newest change in it: two snapshots of one tree with the same one are the same.
    pub fn version(&self) -> Version {
        Version::new(self.tree.version())
    }

    /// Returns how many files and directories there are, the root left out.
    pub fn len(&self) -> usize {
        self.tree.root().entries()
    }

    /// Tells whether there is nothing but the root.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the size in bytes of all files together.
    ///
    /// Cost: O(1).
    pub fn size_bytes(&self) -> u64 {
        self.tree.root().size_bytes()
    }

    /// Returns the node at a path; of the root, none.
    pub fn get(&self, path: &VfsPath) -> Option<&Arc<StateNode>> {
        self.tree.get(path)
    }

    /// Returns every node in path order, the root left out.
    pub fn iter(&self) -> impl Iterator<Item = (VfsPathBuf, &Arc<StateNode>)> {
        self.tree.beneath(VfsPath::ROOT)
    }

    /// Returns where this snapshot differs from an older one of the same tree, in path order.
    ///
    /// Cost: grows with what differs, as pages of nodes that both share are passed over.
    pub fn changes_since<'s>(&'s self, older: &'s Self) -> impl Iterator<Item = StateDifference<'s>> {
        Differences::of(&older.tree, &self.tree)
    }
}

fn corrupt(path: &VfsPath) -> Error {
    Error::new(crate::ErrorKind::Corrupt, format!("a saved tree holds `{path}` where it cannot stand; run `stratafs doctor`")).at(path)
}

/// Equal when both are the same nodes in memory.
impl PartialEq for StateSnapshot {
    fn eq(&self, other: &Self) -> bool {
        self.tree.version() == other.tree.version() && self.tree.root().shares_all_with(other.tree.root())
    }
}

impl fmt::Display for StateSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "State@{}", self.version())
    }
}

impl fmt::Debug for StateSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateSnapshot").field("version", &self.version()).field("len", &self.len()).finish()
    }
}

#[async_trait]
impl Backend for StateSnapshot {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new().with_writable(false)
    }

    async fn stat(&self, path: &VfsPath) -> Result<Entry> {
        self.tree.stat(path)
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        read(path, self.tree.file(path)?, options)
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        self.tree.ls(path, options)
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        search::glob(&self.tree, path, options).await
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        search::grep(&self.tree, path, options).await
    }

    async fn apply(&self, changes: &[Change], _options: &ApplyOptions) -> Result<Vec<Changed>> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let op = Op::apply(changes);
        Err(Error::read_only(op.path).during(op.kind).in_batch(0, 0))
    }
}
