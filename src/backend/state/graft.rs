//! A tree that takes some of what another tree has.

use super::StateNode;
use super::page::Miss;
use super::snapshot::StateSnapshot;
use super::tree::Tree;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::Version;
use crate::path::{VfsPath, VfsPathBuf};
use bytes::Bytes;
use jiff::Timestamp;
use std::sync::Arc;

/// What is to stand at a path.
#[derive(Debug, Clone)]
pub(crate) enum Graft {
    /// Nothing; a directory goes only if nothing is left in it.
    Nothing,
    /// What another tree has there, which is saved in the same place as this one, or is in memory. Its content is shared, and not
    /// loaded.
    Node(Arc<StateNode>),
    /// A file of a content.
    Content(Bytes),
}

impl Graft {
    /// Tells whether nothing is to stand there.
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }
}

impl StateSnapshot {
    /// Returns the tree with other things at some paths; directories that they need appear by themselves. What is put gets
    /// versions above all that either tree gave out.
    ///
    /// Cost: grows with the number of paths; contents are neither loaded nor copied.
    ///
    /// # Errors
    /// [`Internal`](ErrorKind::Internal) when a file would stand where a directory is, or beneath a file.
    pub(crate) async fn grafted(&self, mut grafts: Vec<(VfsPathBuf, Graft)>, issued: u64, now: Timestamp) -> Result<Self> {
        grafts.sort_by(|(one, _), (other, _)| one.cmp(other));
        let mut grafting = Grafting { tree: self.tree.branch(), issued: issued.max(self.tree.version()), now };
        // What lies in a directory goes before it; and all that goes, before what comes in its place.
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
        Ok(Self { tree })
    }
}

/// Tells whether what stands at a path stays, or is replaced as the same kind.
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
    /// The highest version given out.
    issued: u64,
    now: Timestamp,
}

impl Grafting {
    async fn get(&self, path: &VfsPath) -> Result<Option<Arc<StateNode>>> {
        self.tree.with(|tree| Ok(tree.get(path)?.cloned())).await
    }

    /// Changes the tree. A change that met what is not in memory may be half done, so each is of a copy, which is one pointer.
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
    Error::new(ErrorKind::Internal, "a file and a directory were to stand at one path").at(path)
}
