//! One batch over a tree in memory: a clone of it that is changed and, at the end, takes the place of the old one.

use super::StateNode;
use super::node::StoredBody;
use super::page::Miss;
use super::tree::Tree;
use crate::backend::flat::{Beneath, FileNode, Mark, Node, Times, TreeTransaction};
use crate::error::Result;
use crate::ops::Version;
use crate::path::{VfsPath, VfsPathBuf};
use crate::work::Pace;
use bytes::Bytes;
use jiff::Timestamp;
use std::collections::HashMap;
use std::sync::Arc;

/// A batch in the making.
pub(super) struct StateTransaction {
    /// The tree before the batch.
    before: Tree,
    tree: Tree,
    now: Timestamp,
    /// The highest version number given out before the batch.
    issued: u64,
    puts: usize,
    /// The bytes of the paths of directories that the batch makes.
    made_bytes: u64,
    pace: Pace,
    changed: bool,
    /// Where contents that the batch read are saved, by their place in memory, which they keep: one that is moved or copied is
    /// not saved again.
    saved: HashMap<(usize, usize), (Bytes, StoredBody)>,
    /// What a change needed and was not in memory: the batch is to be done again once it is.
    missed: Option<Miss>,
}

impl StateTransaction {
    /// Starts a batch at a time, whose versions follow on `issued`.
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

    /// Takes what the batch met that was not in memory, if it did.
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

    /// Returns the node at a path that was looked at.
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
