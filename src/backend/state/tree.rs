//! The nodes of a tree in memory, and how they are looked at.
//!
//! Each directory holds its children by name in a map that shares structure: a clone is one pointer, and a change copies the
//! few pages on the way to it. So a listing costs its children whatever lies beneath or beside them, and a walk does not meet
//! what it does not enter.

use super::StateNode;
use crate::backend::flat::beneath_a_file;
use crate::error::{Error, Result};
use crate::ops::{Entry, FileRead, Listing, LsOptions, ReadOptions, Version};
use crate::path::{VfsPath, VfsPathBuf};
use crate::text;
use imbl::OrdMap;
use imbl::ordmap::RangedIter;
use imbl::shared_ptr::DefaultSharedPtr;
use std::cell::RefCell;
use std::ops::Bound;
use std::sync::Arc;

/// The children of one directory by name.
pub(super) type Children = OrdMap<Arc<str>, Arc<StateNode>>;

/// A run of children by name.
pub(super) type ChildrenIter<'t> = RangedIter<'t, Arc<str>, Arc<StateNode>, DefaultSharedPtr>;

/// What is in a directory, and totals of all that lies beneath it.
#[derive(Clone, Default)]
pub(super) struct Branch {
    children: Children,
    entries: usize,
    size_bytes: u64,
}

impl Branch {
    /// Returns the children.
    pub(super) fn children(&self) -> &Children {
        &self.children
    }

    /// Returns the children behind a name, or all.
    pub(super) fn children_after(&self, name: Option<&str>) -> ChildrenIter<'_> {
        self.children.range::<(Bound<&str>, Bound<&str>), str>((name.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded))
    }

    /// Returns how many files and directories lie beneath.
    pub(super) fn entries(&self) -> usize {
        self.entries
    }

    /// Returns the size in bytes of all files beneath.
    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Tells whether both hold the same pages of children.
    pub(super) fn shares_all_with(&self, other: &Self) -> bool {
        self.children.ptr_eq(&other.children)
    }

    fn account(&mut self, gone: Totals, new: Totals) {
        self.entries = self.entries - gone.entries + new.entries;
        self.size_bytes = self.size_bytes - gone.size_bytes + new.size_bytes;
    }
}

/// A tree is taken apart one directory at a time: paths may be thousands of names deep, and the stack is not.
impl Drop for Branch {
    fn drop(&mut self) {
        if !self.children.is_empty() {
            take_apart(std::mem::take(&mut self.children));
        }
    }
}

thread_local! {
    /// The children that wait while others are taken apart; none when nothing is.
    static WAITING: RefCell<Option<Vec<Children>>> = const { RefCell::new(None) };
}

fn take_apart(children: Children) {
    let mut children = Some(children);
    let is_first = WAITING.try_with(|waiting| {
        let mut waiting = waiting.borrow_mut();
        match &mut *waiting {
            Some(others) => others.extend(children.take()),
            None => *waiting = Some(Vec::new()),
        }
    });
    // Neither when others are taken apart already, nor when the thread ends and the place to wait in is gone.
    if is_first.is_err() || children.is_none() {
        return;
    }
    while let Some(next) = children.take() {
        drop(next);
        children = WAITING.with(|waiting| waiting.borrow_mut().as_mut().and_then(Vec::pop));
    }
    WAITING.with(|waiting| waiting.take());
}

/// What one node and all beneath it count for.
#[derive(Clone, Copy, Default)]
struct Totals {
    entries: usize,
    size_bytes: u64,
}

impl Totals {
    fn of(node: &StateNode) -> Self {
        match node.branch() {
            Some(branch) => Self { entries: branch.entries + 1, size_bytes: branch.size_bytes },
            None => Self { entries: 1, size_bytes: node.size_bytes() },
        }
    }
}

/// All nodes.
#[derive(Clone, Default)]
pub(super) struct Tree {
    root: Branch,
    version: u64,
}

impl Tree {
    /// Returns the number of the newest change.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Sets the number of the newest change.
    pub(super) fn set_version(&mut self, version: u64) {
        self.version = version;
    }

    /// Returns what is in the root.
    pub(super) fn root(&self) -> &Branch {
        &self.root
    }

    /// Returns the node at a path; of the root, none.
    pub(super) fn get(&self, path: &VfsPath) -> Option<&Arc<StateNode>> {
        let mut segments = path.segments();
        let mut node = self.root.children.get(segments.next()?)?;
        for segment in segments {
            node = node.branch()?.children.get(segment)?;
        }
        Some(node)
    }

    /// Returns what is in the directory at a path.
    pub(super) fn branch(&self, path: &VfsPath) -> Option<&Branch> {
        if path.is_root() { Some(&self.root) } else { self.get(path)?.branch() }
    }

    /// Puts a node into a directory that is there; tells whether it is.
    pub(super) fn insert(&mut self, path: &VfsPath, node: StateNode) -> bool {
        let Some(parent) = path.parent().filter(|parent| self.branch(parent).is_some()) else { return false };
        let gone = self.get(path).map_or_else(Totals::default, |node| Totals::of(node));
        let children = self.account(parent, gone, Totals::of(&node));
        match children.get_mut(path.name()) {
            Some(slot) => *slot = Arc::new(node),
            None => {
                children.insert(Arc::from(path.name()), Arc::new(node));
            }
        }
        true
    }

    /// Removes a node with all beneath it.
    pub(super) fn remove(&mut self, path: &VfsPath) {
        if let (Some(parent), Some(node)) = (path.parent(), self.get(path)) {
            let gone = Totals::of(node);
            self.account(parent, gone, Totals::default()).remove(path.name());
        }
    }

    /// Corrects the totals of a directory and of those above it, and returns its children, to be changed.
    fn account(&mut self, directory: &VfsPath, gone: Totals, new: Totals) -> &mut Children {
        let mut branch = &mut self.root;
        branch.account(gone, new);
        for segment in directory.segments() {
            let node = branch.children.get_mut(segment).expect("the directory was looked up");
            branch = Arc::make_mut(node).branch_mut().expect("the directory was looked up");
            branch.account(gone, new);
        }
        &mut branch.children
    }

    /// Returns all that lies beneath a directory in path order.
    pub(super) fn beneath(&self, directory: &VfsPath) -> impl Iterator<Item = (VfsPathBuf, &Arc<StateNode>)> {
        let mut places = Places::at(self, directory, directory);
        if let Some(branch) = self.branch(directory) {
            places.enter(branch);
        }
        std::iter::from_fn(move || {
            let node = places.next()?;
            if let Some(branch) = node.branch() {
                places.enter(branch);
            }
            Some((places.path().to_owned(), node))
        })
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

    /// Returns what is in the directory at a path.
    pub(super) fn directory(&self, path: &VfsPath) -> Result<&Branch> {
        match self.branch(path) {
            Some(branch) => Ok(branch),
            None if self.get(path).is_some() => Err(Error::not_a_directory(path)),
            None => Err(self.missing(path)),
        }
    }

    /// Lists the children of a directory.
    pub(super) fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        let children = self.directory(path)?.children_after(options.start_after.as_deref());
        let entries = children.map(|(name, node)| {
            let mut child = path.to_owned();
            child.push(name);
            node.entry(child)
        });
        Ok(Listing::from_sorted(entries, options))
    }

    /// Makes the error of a path where nothing is.
    fn missing(&self, path: &VfsPath) -> Error {
        let is_file = |above: &VfsPath| self.get(above).is_some_and(|node| !node.is_directory());
        if path.ancestors().any(is_file) { beneath_a_file(path) } else { Error::not_found(path) }
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

/// A walk in path order that enters only the directories it is told to.
pub(super) struct Places<'t> {
    levels: Vec<Level<'t>>,
    path: VfsPathBuf,
}

struct Level<'t> {
    children: ChildrenIter<'t>,
    /// Whether the path ends with a child of this level.
    is_named: bool,
}

impl<'t> Places<'t> {
    /// Stands at `start`, which lies at or beneath `within`: what comes next lies within and behind all beneath the start, unless
    /// that is entered.
    pub(super) fn at(tree: &'t Tree, within: &VfsPath, start: &VfsPath) -> Self {
        let mut places = Self { levels: Vec::new(), path: within.to_owned() };
        let mut branch = tree.branch(within);
        for segment in start.strip_prefix(within).into_iter().flat_map(VfsPath::segments) {
            let Some(above) = branch else { break };
            places.levels.push(Level { children: above.children_after(Some(segment)), is_named: true });
            places.path.push(segment);
            branch = above.children.get(segment).and_then(|node| node.branch());
        }
        places
    }

    /// Goes to the next node; its path is [`Places::path`].
    pub(super) fn next(&mut self) -> Option<&'t Arc<StateNode>> {
        while let Some(level) = self.levels.last_mut() {
            if level.is_named {
                self.path.pop();
            }
            let child = level.children.next();
            level.is_named = child.is_some();
            if let Some((name, node)) = child {
                self.path.push(name);
                return Some(node);
            }
            self.levels.pop();
        }
        None
    }

    /// Goes on with what is in the directory that the walk stands at.
    pub(super) fn enter(&mut self, branch: &'t Branch) {
        self.levels.push(Level { children: branch.children_after(None), is_named: false });
    }

    /// Returns the path that the walk stands at.
    pub(super) fn path(&self) -> &VfsPath {
        &self.path
    }
}
