//! The nodes of a tree in memory, in path order, and how they are looked at.
//!
//! The map shares structure: a clone is one pointer, and a change copies the few pages on the way to it.

use super::StateNode;
use crate::backend::flat::beneath_a_file;
use crate::error::{Error, Result};
use crate::ops::{Entry, FileRead, Listing, LsOptions, ReadOptions, Version};
use crate::path::{SharedPath, SubtreeEnd, VfsPath};
use crate::text;
use imbl::OrdMap;
use imbl::ordmap::RangedIter;
use imbl::shared_ptr::DefaultSharedPtr;
use std::ops::Bound;
use std::sync::Arc;

/// All nodes but the root.
#[derive(Debug, Clone, Default)]
pub(super) struct Tree {
    nodes: OrdMap<SharedPath, Arc<StateNode>>,
    version: u64,
    size_bytes: u64,
}

/// A run of nodes in path order.
pub(super) type Places<'t> = RangedIter<'t, SharedPath, Arc<StateNode>, DefaultSharedPtr>;

/// A node with its path.
type Place<'t> = (&'t SharedPath, &'t Arc<StateNode>);

impl Tree {
    /// Returns the number of the newest change.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Sets the number of the newest change.
    pub(super) fn set_version(&mut self, version: u64) {
        self.version = version;
    }

    /// Returns how many nodes there are.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the size in bytes of all files together.
    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Tells whether both hold the same pages of nodes.
    pub(super) fn shares_all_with(&self, other: &Self) -> bool {
        self.nodes.ptr_eq(&other.nodes)
    }

    /// Borrows the map.
    pub(super) fn nodes(&self) -> &OrdMap<SharedPath, Arc<StateNode>> {
        &self.nodes
    }

    /// Returns the node at a path other than the root.
    pub(super) fn get(&self, path: &VfsPath) -> Option<&Arc<StateNode>> {
        self.nodes.get(path)
    }

    /// Puts a node.
    pub(super) fn insert(&mut self, path: SharedPath, node: StateNode) {
        self.size_bytes += node.size_bytes();
        if let Some(old) = self.nodes.insert(path, Arc::new(node)) {
            self.size_bytes -= old.size_bytes();
        }
    }

    /// Removes a node.
    pub(super) fn remove(&mut self, path: &VfsPath) {
        if let Some(old) = self.nodes.remove(path) {
            self.size_bytes -= old.size_bytes();
        }
    }

    /// Returns what lies at and beneath a path, in path order; at the root there is no node.
    pub(super) fn subtree(&self, path: &VfsPath) -> Places<'_> {
        self.range(Bound::Included(path), path)
    }

    /// Returns what lies from a bound to the end of the subtree of a path.
    pub(super) fn range(&self, from: Bound<&VfsPath>, within: &VfsPath) -> Places<'_> {
        let end = SubtreeEnd::of(within);
        let bound = end.as_ref().map_or(Bound::Unbounded, |end| Bound::Excluded(end.bound()));
        self.nodes.range::<(Bound<&VfsPath>, Bound<&VfsPath>), VfsPath>((from, bound))
    }

    /// Looks at one path.
    pub(super) fn stat(&self, path: &VfsPath) -> Result<Entry> {
        if path.is_root() {
            return Ok(Entry::directory(path));
        }
        self.get(path).map(|node| node.entry(path)).ok_or_else(|| self.missing(path))
    }

    /// Returns the file at a path.
    pub(super) fn file(&self, path: &VfsPath) -> Result<&Arc<StateNode>> {
        match self.get(path) {
            Some(node) if node.is_directory() => Err(Error::is_directory(path)),
            Some(node) => Ok(node),
            None if path.is_root() => Err(Error::is_directory(path)),
            None => Err(self.missing(path)),
        }
    }

    /// Lists the children of a directory.
    pub(super) fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        self.check_directory(path)?;
        let children = Children::of(self, path, options.start_after.as_deref());
        Ok(Listing::from_sorted(children.map(|(path, node)| node.entry(path)), options))
    }

    /// Checks that a directory is at a path.
    pub(super) fn check_directory(&self, path: &VfsPath) -> Result<()> {
        match self.get(path) {
            Some(node) if node.is_directory() => Ok(()),
            Some(_) => Err(Error::not_a_directory(path)),
            None if path.is_root() => Ok(()),
            None => Err(self.missing(path)),
        }
    }

    /// Makes the error of a path where nothing is.
    fn missing(&self, path: &VfsPath) -> Error {
        let nearest = path.ancestors().collect::<Vec<_>>().into_iter().rev().find_map(|above| self.get(above));
        if nearest.is_some_and(|node| !node.is_directory()) { beneath_a_file(path) } else { Error::not_found(path) }
    }
}

/// Cuts what was asked for out of a file.
pub(super) fn read(path: &VfsPath, node: &StateNode, options: &ReadOptions) -> Result<FileRead> {
    let content = node.content().cloned().unwrap_or_default();
    let (cut, window) = text::cut(&content, options).map_err(|error| error.at(path))?;
    let mut read = FileRead::new(cut, node.version().unwrap_or(Version::new(0)), node.modified_at());
    read.size_bytes = content.len() as u64;
    read.window = window;
    Ok(read)
}

/// The direct children of a directory in order: behind a child directory it seeks past all that lies beneath.
///
/// Cost: one step for each child and one descent of the map for each child directory that is not empty.
struct Children<'t> {
    tree: &'t Tree,
    directory: &'t VfsPath,
    range: Places<'t>,
    ahead: Option<Place<'t>>,
}

impl<'t> Children<'t> {
    fn of(tree: &'t Tree, directory: &'t VfsPath, start_after: Option<&str>) -> Self {
        let after = start_after.filter(|name| !name.is_empty()).map(|name| SubtreeEnd::of_child(directory, name));
        let from = Bound::Excluded(after.as_ref().map_or(directory, SubtreeEnd::bound));
        let mut range = tree.range(from, directory);
        let ahead = range.next();
        Self { tree, directory, range, ahead }
    }
}

impl<'t> Iterator for Children<'t> {
    type Item = Place<'t>;

    fn next(&mut self) -> Option<Place<'t>> {
        let (path, node) = self.ahead?;
        self.ahead = self.range.next();
        if node.is_directory() && self.ahead.is_some_and(|(next, _)| next.starts_with(path)) {
            let end = SubtreeEnd::of(path).expect("a child is not the root");
            self.range = self.tree.range(Bound::Excluded(end.bound()), self.directory);
            self.ahead = self.range.next();
        }
        Some((path, node))
    }
}
