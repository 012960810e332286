//! Finding paths and lines in a tree in memory.
//!
//! A search works on a tree that nobody changes. A small one is done at once; a large one on a blocking thread, and its files
//! on all cores.

use super::StateNode;
use super::tree::{Branch, Places, Tree};
use crate::backend::flat::{Stretch, Walk, in_background, workers};
use crate::error::Result;
use crate::ops::{GlobOptions, GlobResult, GrepOptions, GrepResult};
use crate::path::{VfsPath, VfsPathBuf};
use crate::search::ignore::IGNORE_FILE_NAMES;
use crate::search::{FileOutcome, GrepCollector, GrepMatcher, PathFilter, parallel};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most entries of a tree that is walked without a thread of its own: some tenths of a millisecond.
const ENTRIES_AT_ONCE: usize = 1_024;

/// The most bytes of a tree that is searched without a thread of its own: some tenths of a millisecond.
const BYTES_AT_ONCE: u64 = 1 << 20;

/// Finds paths by pattern.
pub(super) async fn glob(tree: &Tree, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
    let walk = Walk::new(path, PathFilter::for_glob(path, options)?);
    tree.directory(path)?;
    let Some(stretch) = walk.stretch(options.start_after.as_deref()) else { return Ok(GlobResult::default()) };
    if tree.branch(&stretch.within).is_none_or(|branch| branch.entries() <= ENTRIES_AT_ONCE) {
        return Ok(find(tree, walk, &stretch, options, &AtomicBool::new(false)));
    }
    let (tree, options) = (tree.clone(), options.clone());
    in_background(move |stop| find(&tree, walk, &stretch, &options, stop)).await
}

/// Finds lines by pattern.
pub(super) async fn grep(tree: &Tree, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
    let matcher = GrepMatcher::compile(options)?;
    let walk = Walk::new(path, PathFilter::for_grep(path, options)?);
    if let Some(content) = tree.get(path).and_then(|node| node.content()) {
        return grep_one(path, content.clone(), matcher, options).await;
    }
    tree.directory(path)?;
    let Some(stretch) = walk.stretch(options.start_after.as_ref().map(|cursor| &*cursor.path)) else {
        return Ok(GrepResult::default());
    };
    let is_small = |branch: &Branch| branch.entries() <= ENTRIES_AT_ONCE && branch.size_bytes() <= BYTES_AT_ONCE;
    if tree.branch(&stretch.within).is_none_or(is_small) {
        return Ok(search(tree, walk, &stretch, &matcher, options, 1, &AtomicBool::new(false)));
    }
    let (tree, options) = (tree.clone(), options.clone());
    in_background(move |stop| search(&tree, walk, &stretch, &matcher, &options, workers(), stop)).await
}

/// Searches one file, whatever its name.
async fn grep_one(path: &VfsPath, content: Bytes, matcher: GrepMatcher, options: &GrepOptions) -> Result<GrepResult> {
    let mut collector = GrepCollector::new(options);
    let owned = path.to_owned();
    let outcome = if content.len() as u64 <= BYTES_AT_ONCE {
        matcher.search(path, &content)
    } else {
        in_background(move |_| matcher.search(&owned, &content)).await?
    };
    let _ = collector.push(path.to_owned(), outcome);
    Ok(collector.finish())
}

fn find(tree: &Tree, walk: Walk, stretch: &Stretch, options: &GlobOptions, stop: &AtomicBool) -> GlobResult {
    let found = Found::new(tree, walk, stretch, stop);
    GlobResult::from_sorted(found.map(|(path, node)| node.entry(path)), options)
}

fn search(
    tree: &Tree,
    walk: Walk,
    stretch: &Stretch,
    matcher: &GrepMatcher,
    options: &GrepOptions,
    workers: usize,
    stop: &AtomicBool,
) -> GrepResult {
    let mut collector = GrepCollector::new(options);
    let work = |(path, node): (VfsPathBuf, &Arc<StateNode>)| {
        let outcome = node.content().map_or(FileOutcome::Gone, |content| matcher.search(&path, content));
        (path, outcome)
    };
    parallel::ordered(Found::new(tree, walk, stretch, stop), workers, work, |(path, outcome)| collector.push(path, outcome));
    collector.finish()
}

/// The nodes that a walk selects, in path order, until it is told to stop.
struct Found<'t> {
    walk: Walk,
    places: Places<'t>,
    /// What the walk starts with, if that is selected.
    first: Option<&'t Arc<StateNode>>,
    stop: &'t AtomicBool,
}

impl<'t> Found<'t> {
    fn new(tree: &'t Tree, walk: Walk, stretch: &'t Stretch, stop: &'t AtomicBool) -> Self {
        let places = Places::at(tree, &stretch.within, &stretch.from);
        let mut found = Self { walk, places, first: None, stop };
        for above in stretch.from.ancestors() {
            if let Some(branch) = tree.branch(above) {
                add_ignore_files(&mut found.walk, above, branch);
            }
        }
        if let Some(directory) = found.walk.obstacle(stretch) {
            // One above all that is searched leaves nothing; behind another the search goes on.
            let start = if directory.starts_with(&stretch.within) { directory } else { &stretch.within };
            found.places = Places::at(tree, &stretch.within, start);
        } else if *stretch.from == *found.walk.root() {
            tree.branch(&stretch.from).into_iter().for_each(|branch| found.enter(branch));
        } else if let Some(node) = tree.get(&stretch.from) {
            found.first = found.visit(node).then_some(node);
        }
        found
    }

    /// Decides about the node that the walk stands at, and enters it if it is to be entered; tells whether it is selected.
    fn visit(&mut self, node: &'t Arc<StateNode>) -> bool {
        let visit = self.walk.visit(self.places.path(), node.is_directory());
        if let Some(branch) = node.branch().filter(|_| visit.entered) {
            self.enter(branch);
        }
        visit.selected
    }

    fn enter(&mut self, branch: &'t Branch) {
        add_ignore_files(&mut self.walk, self.places.path(), branch);
        self.places.enter(branch);
    }
}

fn add_ignore_files(walk: &mut Walk, directory: &VfsPath, branch: &Branch) {
    if walk.wants_ignore_files() {
        let files = IGNORE_FILE_NAMES.map(|name| branch.children().get(name).and_then(|node| node.content()));
        walk.add_ignore_files(directory, files.map(|content| content.map(|content| &content[..])));
    }
}

impl<'t> Iterator for Found<'t> {
    type Item = (VfsPathBuf, &'t Arc<StateNode>);

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(first) = self.first.take() {
            // The walk has not gone on yet, so it stands at the start, or at the door of what lies beneath it.
            return Some((self.places.path().to_owned(), first));
        }
        while !self.stop.load(Ordering::Relaxed) {
            let node = self.places.next()?;
            if self.visit(node) {
                return Some((self.places.path().to_owned(), node));
            }
        }
        None
    }
}
