//! A tree of nodes: lookups and changes.
//!
//! Operations that need a page or content not in memory fail with a [`Miss`]; [`Tree::with`] loads it and retries.

use super::StateNode;
use super::cursor::Cursor;
use super::lineage::{Holder, Lineage};
use super::load::{self, PageSource};
use super::page::{self, Link, Miss, Page, Row, Totals, beneath, child_of, only};
use crate::backend::flat::beneath_a_file;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::file::{PART_BYTES, part_bytes};
use treehold_core::ops::{Entry, FileRead, Listing, LsOptions, ReadOptions, ReadRange, Version, Window};
use treehold_core::path::{SharedPath, VfsPath};
use treehold_core::text::{self, LineCutter};

/// How many pages are loaded at once for sequential reads.
pub(super) const PAGES_AHEAD: usize = 32;

/// The most files and directories of a tree.
pub(crate) const ENTRIES_MAX: u64 = if cfg!(test) { 400_000 } else { 2_000_000 };

/// All nodes of a tree except the root, which is always a directory.
#[derive(Clone)]
pub(crate) struct Tree {
    root: Arc<Link>,
    version: u64,
    source: Option<Arc<dyn PageSource>>,
    lineage: Arc<Lineage>,
}

impl Default for Tree {
    fn default() -> Self {
        Self { root: Link::new(Page::Leaf(Vec::new())), version: 0, source: None, lineage: Arc::default() }
    }
}

impl Tree {
    /// Makes a saved tree from its root page, with the checkpoint that holds it.
    pub(crate) fn saved(root: Arc<Link>, version: u64, source: Arc<dyn PageSource>, holder: Holder) -> Self {
        Self { root, version, source: Some(source), lineage: Lineage::new(Some((version, holder))) }
    }

    /// Returns the same tree at the start of a new line of states.
    pub(super) fn branch(&self) -> Self {
        let known = self.lineage.known().filter(|(version, _)| *version <= self.version);
        Self { lineage: Lineage::new(known), ..self.clone() }
    }

    /// Returns the line of states that this tree belongs to.
    pub(super) fn lineage(&self) -> &Lineage {
        &self.lineage
    }

    /// Returns the version of the newest change.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Sets the version of the newest change.
    pub(super) fn set_version(&mut self, version: u64) {
        self.version = version;
    }

    /// Returns the root page.
    pub(crate) fn root(&self) -> &Arc<Link> {
        &self.root
    }

    /// Returns the source of pages that are not in memory.
    pub(crate) fn source(&self) -> Option<&Arc<dyn PageSource>> {
        self.source.as_ref()
    }

    /// Runs an operation on the tree, loading what it misses and retrying.
    pub(super) async fn with<'t, T>(&'t self, mut act: impl FnMut(&'t Self) -> Result<T, Stop>) -> Result<T> {
        loop {
            match act(self) {
                Ok(done) => return Ok(done),
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::Missed(miss)) => self.load(miss).await?,
            }
        }
    }

    /// Loads what a miss names.
    pub(super) async fn load(&self, miss: Miss) -> Result<()> {
        self.lineage.add_loaded(load::load(self.source.as_ref(), miss).await?);
        Ok(())
    }

    /// Loads what a miss names. If that is a page, loads up to `pages` pages in all, for the rows at or below `within`
    /// from `from` on.
    pub(super) async fn load_ahead(&self, miss: Miss, within: &VfsPath, from: &VfsPath, pages: usize) -> Result<()> {
        let Miss::Page(missed) = miss else { return self.load(miss).await };
        let mut links = Vec::new();
        collect_unloaded(&self.root, within, from, pages, &mut links);
        if !links.iter().any(|link| link.is_same(&missed)) {
            links.push(missed);
        }
        self.lineage.add_loaded(load::load_pages(self.source.as_ref(), &links).await?);
        Ok(())
    }

    /// Returns the contents of nodes, without keeping newly loaded ones in memory.
    pub(crate) async fn contents(&self, nodes: &[Arc<StateNode>]) -> Result<Vec<Bytes>> {
        load::bodies(self.source.as_ref(), nodes).await
    }

    /// Returns a range of the content of a file that is not in memory, without keeping it.
    pub(super) async fn part(&self, node: &StateNode, range: Range<u64>) -> Result<Bytes> {
        load::part(self.source.as_ref(), node, range).await
    }

    /// Returns the node at a path; `None` for the root.
    pub(super) fn get(&self, path: &VfsPath) -> Result<Option<&Arc<StateNode>>, Miss> {
        let mut link = &self.root;
        loop {
            match link.page()? {
                Page::Leaf(rows) => {
                    let found = rows.binary_search_by(|row| VfsPath::cmp(&row.path, path));
                    return Ok(found.ok().map(|at| &rows[at].node));
                }
                Page::Inner(children) => link = &children[child_of(children, path)].link,
            }
        }
    }

    /// Puts a node into an existing directory.
    pub(super) fn insert(&mut self, path: &VfsPath, node: StateNode) -> Result<(), Miss> {
        page::insert(&mut self.root, &SharedPath::from(path), &Arc::new(node))
    }

    /// Removes one node without descendants.
    pub(super) fn remove(&mut self, path: &VfsPath) -> Result<(), Miss> {
        page::remove(&mut self.root, &only(path))
    }

    /// Removes everything below a directory.
    pub(super) fn remove_beneath(&mut self, directory: &VfsPath) -> Result<(), Miss> {
        page::remove(&mut self.root, &beneath(directory))
    }

    /// Returns the totals of everything below a directory.
    pub(super) fn totals(&self, directory: &VfsPath) -> Result<Totals, Miss> {
        match (directory.is_root(), self.root.loaded()) {
            (true, Some(page)) => Ok(page.totals()),
            _ => page::totals(&self.root, &beneath(directory)),
        }
    }

    /// Checks that the tree has no more than [`ENTRIES_MAX`] files and directories, unless it grew no further than another.
    ///
    /// # Errors
    /// [`QuotaExceeded`](ErrorKind::QuotaExceeded) for more, and those of loading its first page.
    pub(super) async fn check_entries(&self, before: &Self) -> Result<()> {
        let entries = self.with(|tree| Ok(tree.totals(VfsPath::ROOT)?.entries)).await?;
        if entries <= ENTRIES_MAX || entries <= before.with(|tree| Ok(tree.totals(VfsPath::ROOT)?.entries)).await? {
            return Ok(());
        }
        let message = format!(
            "the thread would have {entries} files and directories and may have at most {ENTRIES_MAX}; delete what is no longer needed, \
             or keep it in another mount"
        );
        Err(Error::new(ErrorKind::QuotaExceeded, message))
    }

    /// Returns a cursor before the first row at or after a path.
    pub(super) fn from<'t>(&'t self, path: &'t VfsPath) -> Cursor<'t> {
        Cursor::at(&self.root, path)
    }

    /// Returns a cursor before the first row after everything at or below a path.
    pub(super) fn behind<'t>(&'t self, path: &'t VfsPath) -> Cursor<'t> {
        Cursor::behind(&self.root, path)
    }

    /// Returns a cursor over everything below a directory.
    pub(super) fn beneath<'t>(&'t self, directory: &'t VfsPath) -> Result<Beneath<'t>, Miss> {
        let mut cursor = if directory.is_root() { Cursor::new(&self.root) } else { Cursor::at(&self.root, directory) };
        // The first row at its path is the directory itself.
        if !directory.is_root() && self.get(directory)?.is_some() {
            cursor.next()?;
        }
        Ok(Beneath { cursor, directory })
    }

    /// Returns the entry of one path.
    pub(super) fn stat(&self, path: &VfsPath) -> Result<Entry, Stop> {
        if path.is_root() {
            return Ok(Entry::directory(path));
        }
        match self.get(path)? {
            Some(node) => Ok(node.entry(path)),
            None => Err(self.missing(path)?.into()),
        }
    }

    /// Returns the file at a path.
    pub(super) fn file(&self, path: &VfsPath) -> Result<&Arc<StateNode>, Stop> {
        match self.get(path)? {
            Some(node) if node.is_directory() => Err(Error::is_directory(path).into()),
            Some(node) => Ok(node),
            None if path.is_root() => Err(Error::is_directory(path).into()),
            None => Err(self.missing(path)?.into()),
        }
    }

    /// Checks that a path is a directory.
    pub(super) fn directory(&self, path: &VfsPath) -> Result<(), Stop> {
        if path.is_root() {
            return Ok(());
        }
        match self.get(path)? {
            Some(node) if node.is_directory() => Ok(()),
            Some(_) => Err(Error::not_a_directory(path).into()),
            None => Err(self.missing(path)?.into()),
        }
    }

    /// Lists the children of a directory.
    pub(super) async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        self.with(|tree| tree.directory(path)).await?;
        let after = options.start_after.as_deref().unwrap_or_default();
        let first = path.child(after).ok();
        let mut cursor = match &first {
            Some(child) => self.behind(child),
            None => self.with(|tree| Ok(tree.beneath(path)?.cursor)).await?,
        };
        let mut entries = Vec::new();
        while entries.len() <= options.limit {
            match cursor.next() {
                Ok(Some(row)) if row.path.starts_with(path) => {
                    // A cursor that is not a name was not skipped by seeking.
                    if row.path.name() > after {
                        entries.push(row.node.entry(&*row.path));
                    }
                    while let Err(miss) = if row.node.is_directory() { cursor.skip_beneath(&row.path) } else { Ok(()) } {
                        self.load(miss).await?;
                    }
                }
                Ok(_) => break,
                Err(miss) => {
                    let from = entries.last().map_or(path, |last: &Entry| &*last.path).to_owned();
                    self.load_ahead(miss, path, &from, PAGES_AHEAD).await?;
                }
            }
        }
        Ok(Listing::from_sorted(entries, options))
    }

    /// Returns the requested part of the file at a path. A range or window of a large file that is not in memory is read part by
    /// part, and does not stay in memory.
    pub(super) async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        let node = self.with(|tree| tree.file(path)).await?;
        if node.content().is_none() && node.size_bytes() > PART_BYTES {
            match options.range {
                ReadRange::Whole => text::check_whole(node.size_bytes(), options).map_err(|error| error.at(path))?,
                ReadRange::Bytes { offset, limit } => {
                    let start = text::checked_offset(offset, node.size_bytes()).map_err(|error| error.at(path))?;
                    let end = start.saturating_add(limit.min(options.bytes_max)).min(node.size_bytes());
                    let part = self.part(node, start..end).await.map_err(|error| error.at(path))?;
                    return Ok(file(node, part, None));
                }
                ReadRange::Lines { offset, limit } => {
                    let cutter = LineCutter::new(offset, limit, options.bytes_max);
                    let (content, window) = self.lines(node, cutter).await.map_err(|error| error.at(path))?;
                    return Ok(file(node, content, Some(window)));
                }
            }
        }
        let content = self.with(|_| Ok(node.loaded()?)).await?;
        let (content, window) = text::cut_apart(&content, options).await.map_err(|error| error.at(path))?;
        Ok(file(node, content, window))
    }

    /// Cuts a window of lines out of a content that is not in memory.
    async fn lines(&self, node: &StateNode, mut cutter: LineCutter) -> Result<(Bytes, Window)> {
        let (mut at, size_bytes) = (0, node.size_bytes());
        while at < size_bytes {
            let end = (at + part_bytes(size_bytes)).min(size_bytes);
            cutter.push(&self.part(node, at..end).await?)?;
            at = end;
        }
        cutter.finish()
    }

    /// Makes the error for a path without a node.
    fn missing(&self, path: &VfsPath) -> Result<Error, Miss> {
        for above in path.ancestors().filter(|above| !above.is_root()) {
            if self.get(above)?.is_some_and(|node| !node.is_directory()) {
                return Ok(beneath_a_file(path));
            }
        }
        Ok(Error::not_found(path))
    }
}

/// A cursor over everything below a directory.
pub(super) struct Beneath<'t> {
    pub(super) cursor: Cursor<'t>,
    directory: &'t VfsPath,
}

impl<'t> Beneath<'t> {
    /// Returns the next row.
    pub(super) fn next(&mut self) -> Result<Option<&'t Row>, Miss> {
        Ok(self.cursor.next()?.filter(|row| row.path.starts_with(self.directory)))
    }
}

/// Why an operation on a tree stopped.
pub(super) enum Stop {
    /// It needs something that is not in memory.
    Missed(Miss),
    /// It failed.
    Failed(Error),
}

impl From<Miss> for Stop {
    fn from(miss: Miss) -> Self {
        Self::Missed(miss)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Collects pages that are not in memory and may hold rows at or after `from` that lie at or below `within`.
fn collect_unloaded(link: &Arc<Link>, within: &VfsPath, from: &VfsPath, max: usize, into: &mut Vec<Arc<Link>>) {
    match link.loaded() {
        None => into.push(link.clone()),
        Some(Page::Leaf(_)) => {}
        Some(Page::Inner(children)) => {
            for child in &children[child_of(children, from)..] {
                let is_behind = *child.first > *within && !child.first.starts_with(within);
                if is_behind || into.len() >= max {
                    return;
                }
                collect_unloaded(&child.link, within, from, max, into);
            }
        }
    }
}

/// Makes the result of reading a file.
fn file(node: &StateNode, content: Bytes, window: Option<Window>) -> FileRead {
    let mut read = FileRead::new(content, node.version().unwrap_or(Version::new(0)), node.modified_at());
    read.size_bytes = node.size_bytes();
    read.window = window;
    read
}
