//! A batch on a tree in memory: it changes a clone, which replaces the tree at the end.

use super::StateNode;
use super::node::StoredBody;
use super::page::Miss;
use super::tree::Tree;
use crate::backend::flat::{Beneath, FileNode, Mark, Node, Times, TreeTransaction};
use bytes::Bytes;
use jiff::Timestamp;
use std::collections::HashMap;
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_core::ops::Version;
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::work::Pace;

/// A batch in progress.
pub(super) struct StateTransaction {
    /// The tree before the batch.
    before: Tree,
    tree: Tree,
    now: Timestamp,
    /// The highest version issued before the batch.
    issued: u64,
    puts: usize,
    /// The bytes of the paths of directories that the batch creates.
    made_bytes: u64,
    pace: Pace,
    changed: bool,
    /// The saved locations of contents that the batch has read, by address and length in memory, so that moved or
    /// copied content is not saved again. The `Bytes` keep the addresses valid.
    saved: HashMap<(usize, usize), (Bytes, StoredBody)>,
    /// The miss that a change met; the batch is repeated once it is loaded.
    missed: Option<Miss>,
}

impl StateTransaction {
    /// Starts a batch at time `now`, with versions above `issued`.
    pub(super) fn new(tree: Tree, now: Timestamp, issued: u64) -> Self {
        Self {
            before: tree.clone(),
            tree,
            now,
            issued,
            puts: 0,
            made_bytes: 0,
            pace: Pace::default(),
            changed: false,
            saved: HashMap::new(),
            missed: None,
        }
    }

    /// Returns the version that a put of this batch gets.
    pub(super) fn version_of_put(issued: u64, put: usize) -> Version {
        Version::new(issued + 1 + put as u64)
    }

    /// Ends the batch. Returns the tree and the highest version issued; `None` if nothing changed.
    pub(super) fn finish(self) -> Option<(Tree, u64)> {
        if !self.changed {
            return None;
        }
        // Batches that only touch directories or delete also take a number, so that equal numbers mean equal trees.
        let issued = self.issued + (self.puts as u64).max(1);
        let mut tree = self.tree;
        tree.set_version(issued);
        Some((tree, issued))
    }

    /// Takes the miss that the batch met, if any.
    pub(super) fn take_missed(&mut self) -> Option<Miss> {
        self.missed.take()
    }

    fn remember(&mut self, node: &StateNode, content: &Bytes) {
        if let Some(body) = node.body().filter(|_| node.size_bytes() > 0) {
            self.saved.insert((content.as_ptr() as usize, content.len()), (content.clone(), *body));
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut Tree) -> Result<(), Miss>) {
        self.changed = true;
        if let Err(miss) = change(&mut self.tree) {
            self.missed.get_or_insert(miss);
        }
    }

    /// Returns the node at a path that was looked up before.
    fn known(&self, path: &VfsPath) -> Option<&StateNode> {
        self.tree.get(path).ok().flatten().map(|node| &**node)
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
        let node = self.tree.with(|tree| Ok(tree.get(path)?.cloned())).await?;
        Ok(node.map(|node| match node.version() {
            None => Node::Directory(Some(node.created_at())),
            Some(version) => {
                let mark = match version.number().checked_sub(self.issued + 1) {
                    Some(put) if (put as usize) < self.puts => Mark::Put(put as usize),
                    _ => Mark::Stored(version),
                };
                Node::File(FileNode { mark, size_bytes: node.size_bytes(), times: times(&node) })
            }
        }))
    }

    fn stored_version(&self, path: &VfsPath) -> Option<Version> {
        self.before.get(path).ok().flatten().and_then(|node| node.version())
    }

    fn pin(&mut self, _path: &VfsPath) {}

    async fn content(&mut self, path: &VfsPath) -> Result<Bytes> {
        let (node, content) = self
            .tree
            .with(|tree| {
                let node = tree.file(path)?;
                Ok((node.clone(), node.loaded()?))
            })
            .await?;
        self.remember(&node, &content);
        Ok(content)
    }

    async fn is_empty(&mut self, directory: &VfsPath) -> Result<bool> {
        Ok(self.count(directory).await? == 0)
    }

    async fn count(&mut self, directory: &VfsPath) -> Result<usize> {
        self.tree.with(|tree| Ok(tree.totals(directory)?.entries as usize)).await
    }

    async fn subtree(&mut self, directory: &VfsPath) -> Result<Vec<Beneath>> {
        let (paths, nodes): (Vec<VfsPathBuf>, Vec<Arc<StateNode>>) = self
            .tree
            .with(|tree| {
                let mut beneath = tree.beneath(directory)?;
                let mut met = Vec::new();
                while let Some(row) = beneath.next()? {
                    met.push(((*row.path).to_owned(), row.node.clone()));
                }
                Ok(met)
            })
            .await?
            .into_iter()
            .unzip();
        let contents = self.tree.contents(&nodes).await?;
        let beneath = paths.into_iter().zip(nodes).zip(contents).map(|((path, node), content)| {
            self.remember(&node, &content);
            Beneath { path, content: (!node.is_directory()).then_some(content), times: times(&node) }
        });
        Ok(beneath.collect())
    }

    fn put_file(&mut self, path: &VfsPath, content: Bytes, times: Times) -> Mark {
        let number = self.puts;
        self.puts += 1;
        let version = Self::version_of_put(self.issued, number);
        let kept = self.known(path).filter(|node| !node.is_directory()).map(StateNode::created_at);
        let created_at = times.created_at.or(kept).unwrap_or(self.now);
        let modified_at = times.modified_at.unwrap_or(self.now);
        let body = self.saved.get(&(content.as_ptr() as usize, content.len())).map(|(_, body)| *body);
        let node = StateNode::file(content, version, created_at, modified_at);
        body.into_iter().for_each(|body| node.set_body(body));
        self.change(|tree| tree.insert(path, node));
        Mark::Put(number)
    }

    fn pace(&mut self) -> &mut Pace {
        &mut self.pace
    }

    fn made_bytes(&self) -> u64 {
        self.made_bytes
    }

    fn put_directory(&mut self, path: &VfsPath, created_at: Option<Timestamp>) {
        self.made_bytes += path.as_str().len() as u64;
        let created_at = created_at.unwrap_or(self.now);
        self.change(|tree| tree.insert(path, StateNode::directory(created_at)));
    }

    fn remove_file(&mut self, path: &VfsPath) {
        self.change(|tree| tree.remove(path));
    }

    fn remove_directory(&mut self, path: &VfsPath) {
        self.change(|tree| {
            tree.remove_beneath(path)?;
            tree.remove(path)
        });
    }
}

fn times(node: &StateNode) -> Times {
    Times { created_at: Some(node.created_at()), modified_at: node.modified_at() }
}
