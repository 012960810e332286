//! The pages that hold a tree's nodes: a persistent B+tree in path order.
//!
//! Cloning a tree copies one pointer. A change copies the pages from the root to one leaf, so the two trees share all
//! others. Everything below a directory is a contiguous range. A page may be in a [`PageSource`](super::PageSource)
//! instead of in memory: an operation that meets one fails with a [`Miss`], and its caller loads the page and retries.
//! A page without an id in a source was created since the last save, so a save finds the pages to write without
//! visiting the rest.
//!
//! Invariants: rows are in strict path order. A child's `first` is at most the path of its first row and greater than
//! all rows before it. Only the root may be empty. Totals are those of the rows below.

use super::StateNode;
use std::cmp::Ordering;
use std::sync::{Arc, OnceLock};
use treehold_core::path::{SharedPath, VfsPath};

/// The most rows in a leaf: about 1 KiB. Small, because a save writes whole pages.
pub(super) const ROWS_MAX: usize = 16;

/// The most children of an inner page: about 600 bytes when saved.
pub(super) const CHILDREN_MAX: usize = 24;

/// The approximate size limit of a saved page with at least [`ITEMS_MIN`] items. So pages of deep paths have fewer rows.
const PAGE_BYTES_MAX: usize = 1_400;

/// Pages with fewer items are not split for their size in bytes.
const ITEMS_MIN: usize = 6;

/// A page of nodes or of child pages.
#[derive(Debug, Clone)]
pub(crate) enum Page {
    /// Nodes in path order.
    Leaf(Vec<Row>),
    /// Child pages in path order, all of the same height.
    Inner(Vec<Child>),
}

/// A node with its path.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) path: SharedPath,
    pub(crate) node: Arc<StateNode>,
}

/// A child page of an inner page.
#[derive(Debug, Clone)]
pub(crate) struct Child {
    /// A lower bound of the paths below.
    pub(crate) first: SharedPath,
    pub(crate) totals: Totals,
    pub(crate) link: Arc<Link>,
}

/// The number of nodes, and the bytes of all files among them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) entries: u64,
    pub(crate) size_bytes: u64,
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.entries += other.entries;
        self.size_bytes += other.size_bytes;
    }
}

impl std::iter::Sum for Totals {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        let mut sum = Self::default();
        all.for_each(|one| sum += one);
        sum
    }
}

/// The location of a page in a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PageId {
    /// The source.
    pub(crate) origin: u32,
    /// The pack that contains the page.
    pub(crate) pack: u64,
    /// The index of the page within the pack.
    pub(crate) index: u32,
}

/// A page in memory, in a source, or in both.
#[derive(Debug)]
pub(crate) struct Link {
    page: OnceLock<Page>,
    stored: OnceLock<PageId>,
}

/// Something required that is not in memory.
#[derive(Debug, Clone)]
pub(crate) enum Miss {
    /// A page.
    Page(Arc<Link>),
    /// The content of a file.
    Body(Arc<StateNode>),
}

impl Link {
    /// Makes a page that is only in memory.
    pub(crate) fn new(page: Page) -> Arc<Self> {
        Arc::new(Self { page: OnceLock::from(page), stored: OnceLock::new() })
    }

    /// Makes a page that is only in a source.
    pub(crate) fn stored_at(id: PageId) -> Arc<Self> {
        Arc::new(Self { page: OnceLock::new(), stored: OnceLock::from(id) })
    }

    /// Returns the page if it is in memory.
    pub(crate) fn loaded(&self) -> Option<&Page> {
        self.page.get()
    }

    /// Returns the page, or a miss if it is not in memory.
    pub(super) fn page(self: &Arc<Self>) -> Result<&Page, Miss> {
        self.page.get().ok_or_else(|| Miss::Page(self.clone()))
    }

    /// Stores a loaded page, unless one is already present.
    pub(crate) fn load(&self, page: Page) {
        let _ = self.page.set(page);
    }

    /// Returns the location of the saved page, if it is saved.
    pub(crate) fn id(&self) -> Option<PageId> {
        self.stored.get().copied()
    }

    /// Records the location of the saved page, unless one is already known.
    pub(crate) fn set_id(&self, id: PageId) {
        let _ = self.stored.set(id);
    }

    /// Returns whether both links refer to the same page.
    pub(super) fn is_same(self: &Arc<Self>, other: &Arc<Self>) -> bool {
        Arc::ptr_eq(self, other) || self.id().is_some_and(|id| other.id() == Some(id))
    }

    /// Returns the page for modification, copied first if it is shared. It is then only in memory.
    fn page_mut(link: &mut Arc<Self>) -> Result<&mut Page, Miss> {
        link.page()?;
        match Arc::get_mut(link) {
            Some(own) => own.stored = OnceLock::new(),
            None => *link = Self::new(link.page()?.clone()),
        }
        let page = Arc::get_mut(link).and_then(|own| own.page.get_mut());
        Ok(page.expect("the page is in memory and not shared"))
    }
}

impl Page {
    /// Returns the totals of all rows below.
    pub(crate) fn totals(&self) -> Totals {
        match self {
            Self::Leaf(rows) => rows.iter().map(|row| row.node.totals()).sum(),
            Self::Inner(children) => children.iter().map(|child| child.totals).sum(),
        }
    }

    /// Returns about how many bytes of memory the page takes, without what lies below it and without contents.
    pub(super) fn memory_bytes(&self) -> u64 {
        const COUNTS: usize = 2 * size_of::<usize>();
        let bytes: usize = match self {
            Self::Leaf(rows) => {
                let node = size_of::<Row>() + size_of::<StateNode>() + 2 * COUNTS;
                rows.iter().map(|row| node + row.path.as_str().len()).sum()
            }
            Self::Inner(children) => {
                let link = size_of::<Child>() + size_of::<Link>() + 2 * COUNTS;
                children.iter().map(|child| link + child.first.as_str().len()).sum()
            }
        };
        bytes as u64
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Leaf(rows) => rows.is_empty(),
            Self::Inner(children) => children.is_empty(),
        }
    }

    /// Returns the least path that may occur below.
    fn first(&self) -> &SharedPath {
        match self {
            Self::Leaf(rows) => &rows[0].path,
            Self::Inner(children) => &children[0].first,
        }
    }
}

/// Returns the index of the child that may contain a path.
pub(super) fn child_of(children: &[Child], path: &VfsPath) -> usize {
    children.partition_point(|child| *child.first <= *path).saturating_sub(1)
}

/// Puts a node at a path, replacing the current one.
pub(super) fn insert(root: &mut Arc<Link>, path: &SharedPath, node: &Arc<StateNode>) -> Result<(), Miss> {
    if let Some(right) = insert_into(root, path, node)? {
        let left = root.clone();
        let first = left.page()?.first().clone();
        let totals = left.page()?.totals();
        *root = Link::new(Page::Inner(vec![Child { first, totals, link: left }, right]));
    }
    Ok(())
}

/// Inserts below a page. Returns the page split off at its end, if any.
fn insert_into(link: &mut Arc<Link>, path: &SharedPath, node: &Arc<StateNode>) -> Result<Option<Child>, Miss> {
    match Link::page_mut(link)? {
        Page::Leaf(rows) => {
            let row = Row { path: path.clone(), node: node.clone() };
            match rows.binary_search_by(|row| VfsPath::cmp(&row.path, path)) {
                Ok(at) => rows[at] = row,
                Err(at) => rows.insert(at, row),
            }
            Ok(split(rows, ROWS_MAX, path).map(|right| split_off(Page::Leaf(right))))
        }
        Page::Inner(children) => {
            let at = child_of(children, path);
            let right = insert_into(&mut children[at].link, path, node)?;
            let child = &mut children[at];
            child.totals = child.link.page()?.totals();
            if **path < *child.first {
                child.first = path.clone();
            }
            children.splice(at + 1..at + 1, right);
            Ok(split(children, CHILDREN_MAX, path).map(|right| split_off(Page::Inner(right))))
        }
    }
}

/// An item of a page, ordered by its path.
trait Placed {
    /// The approximate saved size of an item in bytes, without its path.
    const BYTES: usize;

    fn place(&self) -> &VfsPath;
}

impl Placed for Row {
    const BYTES: usize = 48;

    fn place(&self) -> &VfsPath {
        &self.path
    }
}

impl Placed for Child {
    const BYTES: usize = 14;

    fn place(&self) -> &VfsPath {
        &self.first
    }
}

/// Splits an oversized page. A page that grows at its end is split there, because paths often arrive in order and pages
/// then stay full.
fn split<T: Placed>(items: &mut Vec<T>, max: usize, newest: &VfsPath) -> Option<Vec<T>> {
    if items.len() <= max && !is_heavy(items) {
        return None;
    }
    let grows_at_end = items.last().is_some_and(|last| last.place() <= newest);
    let right = items.split_off(if grows_at_end { items.len() - 1 } else { items.len() / 2 });
    // The split page grows again only if it changes, and there may be very many pages.
    items.shrink_to_fit();
    Some(right)
}

/// Returns whether items exceed the size of a page. A path counts without the prefix shared with the one before.
fn is_heavy<T: Placed>(items: &[T]) -> bool {
    let most: usize = items.iter().map(|item| T::BYTES + item.place().as_str().len()).sum();
    if items.len() < ITEMS_MIN || most <= PAGE_BYTES_MAX {
        return false;
    }
    let shared: usize = items.windows(2).map(|pair| shared_bytes(pair[0].place(), pair[1].place())).sum();
    most - shared > PAGE_BYTES_MAX
}

fn shared_bytes(one: &VfsPath, other: &VfsPath) -> usize {
    one.as_str().bytes().zip(other.as_str().bytes()).take_while(|(one, other)| one == other).count()
}

fn split_off(page: Page) -> Child {
    Child { first: page.first().clone(), totals: page.totals(), link: Link::new(page) }
}

/// A contiguous range of paths: tells whether a path is before, in or after it.
pub(super) trait Run: Fn(&VfsPath) -> Ordering {}

impl<F: Fn(&VfsPath) -> Ordering> Run for F {}

/// Returns the range of everything below a directory.
pub(super) fn beneath(directory: &VfsPath) -> impl Run {
    move |path| {
        if path <= directory {
            Ordering::Less
        } else if path.starts_with(directory) {
            Ordering::Equal
        } else {
            Ordering::Greater
        }
    }
}

/// Returns the range of one path.
pub(super) fn only(wanted: &VfsPath) -> impl Run {
    move |path| path.cmp(wanted)
}

/// Returns the children that may overlap a range, each with whether it lies entirely within.
fn touched<R: Run>(children: &[Child], run: &R) -> Vec<(usize, bool)> {
    let start = children.partition_point(|child| run(&child.first) == Ordering::Less).saturating_sub(1);
    let end = children.partition_point(|child| run(&child.first) != Ordering::Greater);
    let is_in: Vec<bool> = children[start..end].iter().map(|child| run(&child.first) == Ordering::Equal).collect();
    // A child lies within the range if its first path and that of the next child do.
    (start..end).map(|at| (at, is_in[at - start] && is_in.get(at + 1 - start).copied().unwrap_or(false))).collect()
}

/// Returns the totals of a range.
pub(super) fn totals(link: &Arc<Link>, run: &impl Run) -> Result<Totals, Miss> {
    match link.page()? {
        Page::Leaf(rows) => Ok(rows.iter().filter(|row| run(&row.path) == Ordering::Equal).map(|row| row.node.totals()).sum()),
        Page::Inner(children) => {
            let mut sum = Totals::default();
            for (at, whole) in touched(children, run) {
                sum += if whole { children[at].totals } else { totals(&children[at].link, run)? };
            }
            Ok(sum)
        }
    }
}

/// Removes a range.
pub(super) fn remove(root: &mut Arc<Link>, run: &impl Run) -> Result<(), Miss> {
    remove_from(root, run)?;
    // Replace a root that has a single child by that child.
    loop {
        let only = match root.page()? {
            Page::Inner(children) if children.len() == 1 => children[0].link.clone(),
            Page::Inner(children) if children.is_empty() => Link::new(Page::Leaf(Vec::new())),
            _ => return Ok(()),
        };
        // A child that is not in memory stays below the root until it is loaded.
        if only.loaded().is_none() {
            return Ok(());
        }
        *root = only;
    }
}

fn remove_from(link: &mut Arc<Link>, run: &impl Run) -> Result<(), Miss> {
    if totals(link, run)? == Totals::default() {
        return Ok(());
    }
    match Link::page_mut(link)? {
        Page::Leaf(rows) => rows.retain(|row| run(&row.path) != Ordering::Equal),
        Page::Inner(children) => {
            let touched = touched(children, run);
            for (at, whole) in touched.iter().rev().copied() {
                if whole {
                    children.remove(at);
                    continue;
                }
                remove_from(&mut children[at].link, run)?;
                let page = children[at].link.page()?;
                if page.is_empty() {
                    children.remove(at);
                } else {
                    children[at].totals = page.totals();
                }
            }
            // Merge only after removing, because a page about to be removed must not be merged with one that stays.
            // Only the pages at the two ends of the range can be small.
            if let Some((start, _)) = touched.first() {
                [start + 1, *start].into_iter().for_each(|at| join(children, at));
            }
        }
    }
    Ok(())
}

/// Merges a small page with its successor or predecessor, if both are in memory and fit into one page.
fn join(children: &mut Vec<Child>, at: usize) {
    for left in [Some(at), at.checked_sub(1)].into_iter().flatten() {
        let Some([one, other]) = children.get(left..left + 2) else { continue };
        let joined = match (one.link.loaded(), other.link.loaded()) {
            (Some(Page::Leaf(one)), Some(Page::Leaf(other))) if one.len() + other.len() <= ROWS_MAX / 2 => {
                Page::Leaf(one.iter().chain(other).cloned().collect())
            }
            (Some(Page::Inner(one)), Some(Page::Inner(other))) if one.len() + other.len() <= CHILDREN_MAX / 2 => {
                Page::Inner(one.iter().chain(other).cloned().collect())
            }
            _ => continue,
        };
        children[left] = Child { first: children[left].first.clone(), totals: joined.totals(), link: Link::new(joined) };
        children.remove(left + 1);
        return;
    }
}
