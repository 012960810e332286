//! Building a tree that takes some nodes from another tree.

use super::StateNode;
use super::page::Miss;
use super::snapshot::StateSnapshot;
use super::tree::Tree;
use bytes::Bytes;
use jiff::Timestamp;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_core::path::{VfsPath, VfsPathBuf};

/// What a path becomes.
#[derive(Debug, Clone)]
pub(crate) enum Graft {
    /// Nothing. A directory is removed only if it is empty afterwards.
    Nothing,
    /// The node of another tree, which is in memory or saved in the same store. Its content is shared, not loaded.
    Node(Arc<StateNode>),
    /// A file with this content.
    Content(Bytes),
}

impl Graft {
    /// Returns whether the path becomes empty.
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }
}

impl StateSnapshot {
    /// Returns the tree with the given paths replaced; missing parent directories are created. Replaced nodes get
    /// versions above all that either tree has issued.
    ///
    /// Cost: proportional to the number of paths; contents are neither loaded nor copied.
    ///
    /// # Errors
    /// [`Internal`](ErrorKind::Internal) when a file would be at the path of a directory, or below a file.
    pub(crate) async fn grafted(&self, mut grafts: Vec<(VfsPathBuf, Graft)>, issued: u64, now: Timestamp) -> Result<Self> {
        grafts.sort_by(|(one, _), (other, _)| one.cmp(other));
        let mut grafting = Grafting { tree: self.tree.branch(), issued: issued.max(self.tree.version()), now };
        // Remove the contents of a directory before the directory, and remove everything before adding.
        for (path, graft) in grafts.iter().rev() {
            let stands = grafting.get(path).await?;
            if let Some(node) = stands.filter(|node| !is_kept(node, graft)) {
                grafting.remove(path, &node).await?;
            }
        }
        for (path, graft) in &grafts {
            match graft {
                Graft::Nothing => {}
                Graft::Node(node) => grafting.put(path, Put::Node(node)).await?,
                Graft::Content(content) => grafting.put(path, Put::Content(content)).await?,
            }
        }
        let Grafting { mut tree, issued, .. } = grafting;
        tree.set_version(issued + 1);
        tree.check_entries(&self.tree).await?;
        Ok(Self { tree })
    }
}

/// Returns whether the current node stays or is replaced by one of the same kind.
fn is_kept(stands: &StateNode, graft: &Graft) -> bool {
    match graft {
        Graft::Nothing => false,
        Graft::Node(node) => node.is_directory() == stands.is_directory(),
        Graft::Content(_) => !stands.is_directory(),
    }
}

enum Put<'g> {
    Node(&'g StateNode),
    Content(&'g Bytes),
}

struct Grafting {
    tree: Tree,
    /// The highest version issued.
    issued: u64,
    now: Timestamp,
}

impl Grafting {
    async fn get(&self, path: &VfsPath) -> Result<Option<Arc<StateNode>>> {
        self.tree.with(|tree| Ok(tree.get(path)?.cloned())).await
    }

    /// Changes the tree. A change that fails with a miss may be half done, so each works on a copy, which is one
    /// pointer.
    async fn change(&mut self, change: impl Fn(&mut Tree) -> Result<(), Miss>) -> Result<()> {
        loop {
            let mut tree = self.tree.clone();
            match change(&mut tree) {
                Ok(()) => {
                    self.tree = tree;
                    return Ok(());
                }
                Err(miss) => self.tree.load(miss).await?,
            }
        }
    }

    async fn remove(&mut self, path: &VfsPath, node: &StateNode) -> Result<()> {
        let is_empty = !node.is_directory() || self.tree.with(|tree| Ok(tree.totals(path)?.entries == 0)).await?;
        if is_empty { self.change(|tree| tree.remove(path)).await } else { Ok(()) }
    }

    async fn put(&mut self, path: &VfsPath, put: Put<'_>) -> Result<()> {
        let now = self.now;
        for above in path.ancestors().filter(|above| !above.is_root()) {
            match self.get(above).await? {
                Some(node) if node.is_directory() => {}
                Some(_) => return Err(misplaced(path)),
                None => self.change(|tree| tree.insert(above, StateNode::directory(now))).await?,
            }
        }
        let stands = self.get(path).await?;
        let is_directory = |node: &StateNode| node.is_directory();
        let node = match put {
            Put::Node(node) if node.is_directory() => {
                return match stands.as_deref().map(is_directory) {
                    Some(true) => Ok(()),
                    Some(false) => Err(misplaced(path)),
                    None => self.change(|tree| tree.insert(path, node.clone())).await,
                };
            }
            _ if stands.as_deref().is_some_and(is_directory) => return Err(misplaced(path)),
            Put::Node(node) => node.at_version(self.next()),
            Put::Content(content) => {
                let created_at = stands.map_or(now, |node| node.created_at());
                StateNode::file(content.clone(), self.next(), created_at, now)
            }
        };
        self.change(|tree| tree.insert(path, node.clone())).await
    }

    fn next(&mut self) -> Version {
        self.issued += 1;
        Version::new(self.issued)
    }
}

fn misplaced(path: &VfsPath) -> Error {
    Error::new(ErrorKind::Internal, "a file and a directory would be at the same path").at(path)
}
