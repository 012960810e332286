//! One batch over a tree in memory: a clone of the map that is changed and, at the end, takes the place of the old one.

use super::StateNode;
use super::tree::{Branch, Tree};
use crate::backend::flat::{Beneath, FileNode, Mark, Node, Times, TreeTransaction};
use crate::error::Result;
use crate::ops::Version;
use crate::path::VfsPath;
use bytes::Bytes;
use jiff::Timestamp;

/// A batch in the making.
pub(super) struct StateTransaction {
    /// The tree before the batch.
    before: Tree,
    tree: Tree,
    now: Timestamp,
    /// The highest version number given out before the batch.
    issued: u64,
    puts: usize,
    changed: bool,
}

impl StateTransaction {
    /// Starts a batch at a time, whose versions follow on `issued`.
    pub(super) fn new(tree: Tree, now: Timestamp, issued: u64) -> Self {
        Self { before: tree.clone(), tree, now, issued, puts: 0, changed: false }
    }

    /// Returns the version that a put of this batch makes.
    pub(super) fn version_of_put(issued: u64, put: usize) -> Version {
        Version::new(issued + 1 + put as u64)
    }

    /// Ends the batch: returns the tree, and the highest version number given out; none when nothing changed.
    pub(super) fn finish(self) -> Option<(Tree, u64)> {
        if !self.changed {
            return None;
        }
        // Directories and deletes take a number too, so that an equal number means an equal tree.
        let issued = self.issued + (self.puts as u64).max(1);
        let mut tree = self.tree;
        tree.set_version(issued);
        Some((tree, issued))
    }

    fn insert(&mut self, path: &VfsPath, node: StateNode) {
        let is_placed = self.tree.insert(path, node);
        assert!(is_placed, "a batch puts nodes into directories that are there");
    }

    fn file(&self, path: &VfsPath) -> Option<&StateNode> {
        self.tree.get(path).map(|node| &**node).filter(|node| !node.is_directory())
    }
}

impl TreeTransaction for StateTransaction {
    fn file_bytes_max(&self) -> Option<u64> {
        None
    }

    async fn node(&mut self, path: &VfsPath) -> Result<Option<Node>> {
        if path.is_root() {
            return Ok(Some(Node::Directory(None)));
        }
        Ok(self.tree.get(path).map(|node| match node.version() {
            None => Node::Directory(Some(node.created_at())),
            Some(version) => {
                let mark = match version.number().checked_sub(self.issued + 1) {
                    Some(put) if (put as usize) < self.puts => Mark::Put(put as usize),
                    _ => Mark::Stored(version),
                };
                Node::File(FileNode { mark, size_bytes: node.size_bytes(), times: times(node) })
            }
        }))
    }

    fn stored_version(&self, path: &VfsPath) -> Option<Version> {
        self.before.get(path).and_then(|node| node.version())
    }

    fn pin(&mut self, _path: &VfsPath) {}

    async fn content(&mut self, path: &VfsPath) -> Result<Bytes> {
        Ok(self.file(path).and_then(StateNode::content).cloned().unwrap_or_default())
    }

    async fn is_empty(&mut self, directory: &VfsPath) -> Result<bool> {
        Ok(self.count(directory).await? == 0)
    }

    async fn count(&mut self, directory: &VfsPath) -> Result<usize> {
        Ok(self.tree.branch(directory).map_or(0, Branch::entries))
    }

    async fn subtree(&mut self, directory: &VfsPath) -> Result<Vec<Beneath>> {
        let beneath = self.tree.beneath(directory);
        Ok(beneath.map(|(path, node)| Beneath { path, content: node.content().cloned(), times: times(node) }).collect())
    }

    fn put_file(&mut self, path: &VfsPath, content: Bytes, times: Times) -> Mark {
        let number = self.puts;
        self.puts += 1;
        self.changed = true;
        let version = Self::version_of_put(self.issued, number);
        let created_at = times.created_at.or_else(|| self.file(path).map(StateNode::created_at)).unwrap_or(self.now);
        let modified_at = times.modified_at.unwrap_or(self.now);
        self.insert(path, StateNode::file(content, version, created_at, modified_at));
        Mark::Put(number)
    }

    fn put_directory(&mut self, path: &VfsPath, created_at: Option<Timestamp>) {
        self.changed = true;
        self.insert(path, StateNode::directory(created_at.unwrap_or(self.now)));
    }

    fn remove_file(&mut self, path: &VfsPath) {
        self.changed = true;
        self.tree.remove(path);
    }

    fn remove_directory(&mut self, path: &VfsPath) {
        self.changed = true;
        self.tree.remove(path);
    }
}

fn times(node: &StateNode) -> Times {
    Times { created_at: Some(node.created_at()), modified_at: node.modified_at() }
}
