//! Finding paths and lines in a tree in memory.
//!
//! A search works on a tree that nobody changes. A small one is done at once; a large one on a blocking thread, and its files
//! on all cores.

use super::StateNode;
use super::tree::{Places, Tree};
use crate::backend::flat::{Stretch, Walk, in_background, workers};
use crate::error::Result;
use crate::ops::{GlobOptions, GlobResult, GrepOptions, GrepResult};
use crate::path::{SharedPath, SubtreeEnd, VfsPath, VfsPathBuf};
use crate::search::ignore::IGNORE_FILE_NAMES;
use crate::search::{FileOutcome, GrepCollector, GrepMatcher, PathFilter, parallel};
use bytes::Bytes;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most nodes of a tree that is walked without a thread of its own: some tenths of a millisecond.
const NODES_AT_ONCE: usize = 1_024;

/// The most bytes of a tree that is searched without a thread of its own: some tenths of a millisecond.
const BYTES_AT_ONCE: u64 = 1 << 20;

/// Finds paths by pattern.
pub(super) async fn glob(tree: &Tree, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
    let walk = Walk::new(path, PathFilter::for_glob(path, options)?);
    tree.check_directory(path)?;
    let Some(stretch) = walk.stretch(options.start_after.as_deref()) else { return Ok(GlobResult::default()) };
    if tree.len() <= NODES_AT_ONCE {
        return Ok(find(tree, walk, &stretch, options, &AtomicBool::new(false)));
    }
    let (tree, options) = (tree.clone(), options.clone());
    in_background(move |stop| find(&tree, walk, &stretch, &options, stop)).await
}

/// Finds lines by pattern.
pub(super) async fn grep(tree: &Tree, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
    let matcher = GrepMatcher::compile(options)?;
    let walk = Walk::new(path, PathFilter::for_grep(path, options)?);
    let at_once = tree.len() <= NODES_AT_ONCE && tree.size_bytes() <= BYTES_AT_ONCE;
    if let Some(content) = tree.get(path).and_then(|node| node.content()) {
        return grep_one(path, content.clone(), matcher, options).await;
    }
    tree.check_directory(path)?;
    let Some(stretch) = walk.stretch(options.start_after.as_ref().map(|cursor| &*cursor.path)) else {
        return Ok(GrepResult::default());
    };
    if at_once {
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
    let found = Found::new(tree, walk, stretch).take_while(|_| !stop.load(Ordering::Relaxed));
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
    let files = Found::new(tree, walk, stretch).take_while(|_| !stop.load(Ordering::Relaxed));
    let work = |(path, node): (&SharedPath, &Arc<StateNode>)| -> (VfsPathBuf, FileOutcome) {
        let outcome = node.content().map_or(FileOutcome::Gone, |content| matcher.search(path, content));
        ((**path).to_owned(), outcome)
    };
    parallel::ordered(files, workers, work, |(path, outcome)| collector.push(path, outcome));
    collector.finish()
}

/// The nodes that a walk selects, in path order.
struct Found<'t> {
    tree: &'t Tree,
    walk: Walk,
    within: &'t VfsPath,
    places: Places<'t>,
}

impl<'t> Found<'t> {
    fn new(tree: &'t Tree, walk: Walk, stretch: &'t Stretch) -> Self {
        let mut found = Self { tree, walk, within: &stretch.within, places: tree.range(Bound::Excluded(VfsPath::ROOT), VfsPath::ROOT) };
        for above in stretch.from.ancestors() {
            found.add_ignore_files(above);
        }
        match found.walk.obstacle(stretch) {
            Some(directory) => found.pass(directory),
            None => {
                found.places = tree.range(found.walk.start(stretch), &stretch.within);
                if stretch.from == stretch.within {
                    // The root of the search is not visited, so nothing else adds what stands in it.
                    found.add_ignore_files(&stretch.from);
                }
            }
        }
        found
    }

    fn add_ignore_files(&mut self, directory: &VfsPath) {
        if self.walk.wants_ignore_files() {
            let files = IGNORE_FILE_NAMES.map(|name| directory.child(name).ok().and_then(|path| self.tree.get(&path)));
            self.walk.add_ignore_files(directory, files.map(|node| node.and_then(|node| node.content()).map(|content| &content[..])));
        }
    }

    /// Goes on behind all that lies beneath a directory.
    fn pass(&mut self, directory: &VfsPath) {
        if let Some(end) = SubtreeEnd::of(directory) {
            self.places = self.tree.range(Bound::Excluded(end.bound()), self.within);
        }
    }
}

impl<'t> Iterator for Found<'t> {
    type Item = (&'t SharedPath, &'t Arc<StateNode>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (path, node) = self.places.next()?;
            let visit = self.walk.visit(path, node.is_directory());
            if visit.entered {
                self.add_ignore_files(path);
            } else if node.is_directory() {
                self.pass(path);
            }
            if visit.selected {
                return Some((path, node));
            }
        }
    }
}
