//! A tree in memory at one moment.

use super::difference::{StateDifference, differences};
use super::lineage::{Holder, Known};
use super::load::PageSource;
use super::page::{Link, Row};
use super::tree::{PAGES_AHEAD, Tree};
use super::{StateNode, search};
use crate::backend::Backend;
use crate::backend::search_by_reading;
use async_trait::async_trait;
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;
use treehold_core::error::{Error, Result};
use treehold_core::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions, Op,
    ReadOptions, Review, SearchOptions, SearchResult, Sight, StatOptions, Version,
};
use treehold_core::path::{VfsPath, VfsPathBuf};

/// A [`StateBackend`](super::StateBackend) at one moment: immutable, and itself a read-only backend.
///
/// It shares all nodes and bodies with the tree it was taken from and with other snapshots. So taking and cloning one
/// is O(1), and it uses memory only for what has changed since. A saved snapshot is loaded on access.
///
/// # Examples
/// ```
/// use treehold_tree::backend::{BackendExt, StateBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let tree = StateBackend::new();
/// tree.write("/a.md", "one").await?;
/// let before = tree.snapshot();
/// tree.write("/a.md", "two").await?;
/// assert_eq!(before.read_text("/a.md").await?, "one");
/// assert_eq!(tree.snapshot().differences(&before, None, 100).await?.len(), 1);
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

    /// Makes a tree from nodes, with the given version.
    ///
    /// # Errors
    /// [`Corrupt`](treehold_core::error::ErrorKind::Corrupt) when the directory of a node is missing, a path occurs twice, or a node's
    /// version exceeds the snapshot's.
    pub fn from_nodes<P: AsRef<VfsPath>>(nodes: impl IntoIterator<Item = (P, StateNode)>, version: Version) -> Result<Self> {
        let mut nodes: Vec<(P, StateNode)> = nodes.into_iter().collect();
        // In path order, a directory precedes its contents and pages fill up one after the other.
        nodes.sort_by(|(one, _), (other, _)| one.as_ref().cmp(other.as_ref()));
        let mut tree = Tree::default();
        for (path, node) in nodes {
            let path = path.as_ref();
            let in_memory = |_| corrupt(path);
            let is_newer = node.version().is_some_and(|of_node| of_node > version);
            let has_parent = match path.parent() {
                Some(parent) if parent.is_root() => true,
                Some(parent) => tree.get(parent).map_err(in_memory)?.is_some_and(|parent| parent.is_directory()),
                None => false,
            };
            if is_newer || !has_parent || tree.get(path).map_err(in_memory)?.is_some() {
                return Err(corrupt(path));
            }
            tree.insert(path, node).map_err(in_memory)?;
        }
        tree.set_version(version.number());
        Ok(Self { tree })
    }

    /// Makes a saved tree from its root page, with the checkpoint that holds it.
    pub(crate) fn saved(root: Arc<Link>, version: Version, source: Arc<dyn PageSource>, holder: Holder) -> Self {
        Self { tree: Tree::saved(root, version.number(), source, holder) }
    }

    /// Returns the last save of this line of states.
    pub(crate) fn known(&self) -> Known {
        self.tree.lineage().known()
    }

    /// Records the checkpoint that now holds this state and calls `mark`, if the last save is still `before`.
    pub(crate) fn settle(&self, before: &Known, holder: Holder, mark: impl FnOnce()) {
        self.tree.lineage().settle(before, (self.tree.version(), holder), mark);
    }

    /// Returns the root page.
    pub(crate) fn root(&self) -> &Arc<Link> {
        self.tree.root()
    }

    /// Returns the source of pages that are not in memory; `None` if all are.
    pub(crate) fn source(&self) -> Option<&Arc<dyn PageSource>> {
        self.tree.source()
    }

    /// Returns the contents of nodes, without keeping newly loaded ones in memory.
    pub(crate) async fn contents(&self, nodes: &[Arc<StateNode>]) -> Result<Vec<Bytes>> {
        self.tree.contents(nodes).await
    }

    /// Returns the version of the newest change. Snapshots of one tree with equal versions are equal.
    pub fn version(&self) -> Version {
        Version::new(self.tree.version())
    }

    /// Returns the number of files and directories, without the root.
    ///
    /// # Errors
    /// Those of the store, for a saved snapshot.
    pub async fn count(&self) -> Result<u64> {
        Ok(self.totals().await?.0)
    }

    /// Returns the number of files and directories, and the total size of all files in bytes.
    ///
    /// Cost: O(1).
    ///
    /// # Errors
    /// Those of the store, for a saved snapshot.
    pub async fn totals(&self) -> Result<(u64, u64)> {
        let totals = self.tree.with(|tree| Ok(tree.root().page()?.totals())).await?;
        Ok((totals.entries, totals.size_bytes))
    }

    /// Returns the node at a path; `None` for the root.
    ///
    /// # Errors
    /// Those of the store, for a saved snapshot.
    pub async fn node(&self, path: &VfsPath) -> Result<Option<Arc<StateNode>>> {
        self.tree.with(|tree| Ok(tree.get(path)?.cloned())).await
    }

    /// Returns up to `limit` nodes after a path in path order, without the root. Contents are not loaded.
    ///
    /// # Errors
    /// Those of the store, for a saved snapshot.
    pub async fn nodes(&self, start_after: Option<&VfsPath>, limit: usize) -> Result<Vec<(VfsPathBuf, Arc<StateNode>)>> {
        let start = start_after.unwrap_or(VfsPath::ROOT);
        let mut cursor = self.tree.from(start);
        let mut nodes: Vec<(VfsPathBuf, Arc<StateNode>)> = Vec::new();
        while nodes.len() < limit {
            match cursor.next() {
                Ok(Some(Row { path, .. })) if **path == *start => {}
                Ok(Some(Row { path, node })) => nodes.push(((**path).to_owned(), node.clone())),
                Ok(None) => break,
                Err(miss) => {
                    let from = nodes.last().map_or(start, |(path, _)| path).to_owned();
                    self.tree.load_ahead(miss, VfsPath::ROOT, &from, PAGES_AHEAD).await?;
                }
            }
        }
        Ok(nodes)
    }

    /// Returns up to `limit` paths after `start_after`, in path order, at which this snapshot differs from an older
    /// one.
    ///
    /// Cost: proportional to the differences; shared pages are neither visited nor loaded.
    ///
    /// # Errors
    /// Those of the store, for saved snapshots.
    pub async fn differences(&self, older: &Self, start_after: Option<&VfsPath>, limit: usize) -> Result<Vec<StateDifference>> {
        differences(&older.tree, &self.tree, start_after, limit).await
    }
}

fn corrupt(path: &VfsPath) -> Error {
    Error::new(
        treehold_core::error::ErrorKind::Corrupt,
        format!("a saved tree holds `{path}` in an impossible position; run `treehold doctor`"),
    )
    .at(path)
}

/// Snapshots are equal if they share their root page.
impl PartialEq for StateSnapshot {
    fn eq(&self, other: &Self) -> bool {
        self.tree.version() == other.tree.version() && self.tree.root().is_same(other.tree.root())
    }
}

impl fmt::Display for StateSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "State@{}", self.version())
    }
}

impl fmt::Debug for StateSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateSnapshot").field("version", &self.version()).finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for StateSnapshot {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new().with_writable(false)
    }

    async fn stat(&self, path: &VfsPath, _options: &StatOptions) -> Result<Entry> {
        self.tree.with(|tree| tree.stat(path)).await
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        self.tree.read(path, options).await
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        self.tree.ls(path, options).await
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        search::glob(&self.tree, path, options).await
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        search::grep(&self.tree, path, options).await
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        search_by_reading(self, path, options).await
    }

    async fn apply(&self, changes: &[Change], _options: &ApplyOptions) -> Result<Vec<Changed>> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let op = Op::apply(changes);
        Err(Error::read_only(op.path).during(op.kind).in_batch(0, 0))
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}
