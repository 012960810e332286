//! Finding paths and lines in a tree in memory.
//!
//! A search works on an immutable tree. Small trees are searched at once, large ones on a blocking thread, with the
//! files on all cores. In a saved tree, the pages that the search meets are loaded, in growing numbers at a time. The
//! contents that it selects are read in chunks and not kept in memory; large ones are read and searched part by part.

use super::StateNode;
use super::cursor::Cursor;
use super::page::{Miss, Row};
use super::tree::{PAGES_AHEAD, Tree};
use crate::backend::flat::{Body, Stretch, Walk, search_chunk, search_parts};
use crate::background::{in_background, workers};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use treehold_core::error::{ErrorRecord, Result};
use treehold_core::ops::{Failure, Forgotten, GlobOptions, GlobResult, GrepOptions, GrepResult};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::search::ignore::IGNORE_FILE_NAMES;
use treehold_core::search::{FileOutcome, GrepCollector, GrepMatcher, PathFilter, Yield, parallel};
use treehold_core::work;

/// The most entries that are walked without a separate thread: some tenths of a millisecond.
const ENTRIES_AT_ONCE: u64 = 1_024;

/// The most bytes that are searched without a separate thread: some tenths of a millisecond.
const BYTES_AT_ONCE: u64 = 1 << 20;

/// The cost of visiting one entry, in searched bytes.
const ENTRY_BYTES: usize = 512;

/// The most pages loaded at once for a search.
const PAGES_AHEAD_MAX: usize = 4_096;

/// The most files of a saved tree searched at once.
const CHUNK_FILES: usize = 2_048;

/// The bytes that end a chunk; its last file may exceed them.
const CHUNK_BYTES: u64 = 8 << 20;

/// Finds paths by pattern.
pub(super) async fn glob(tree: &Tree, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
    let walk = || PathFilter::for_glob(path, options).map(|filter| Walk::new(path, filter));
    let Some(stretch) = walk()?.stretch(options.start_after.as_deref()) else {
        return tree.with(|tree| tree.directory(path)).await.map(|()| GlobResult::default());
    };
    tree.with(|tree| tree.directory(path)).await?;
    let mut ahead = PAGES_AHEAD;
    let mut lost = LostIgnoreFiles::default();
    loop {
        let walk = walk()?.without_ignore_files(lost.paths());
        let is_small = tree.totals(&stretch.within).is_ok_and(|totals| totals.entries <= ENTRIES_AT_ONCE);
        let found = if is_small {
            find(tree, walk, &stretch, options, &AtomicBool::new(false))
        } else {
            let (tree, stretch, options) = (tree.clone(), stretch.clone(), options.clone());
            in_background(move |stop| find(&tree, walk, &stretch, &options, stop)).await?
        };
        match found {
            Ok(mut result) => {
                result.failures.extend(lost.into_failures());
                return Ok(result);
            }
            Err((miss, from)) => lost.pass(tree.load_ahead(miss, &stretch.within, &from, ahead).await)?,
        }
        // Every miss restarts the search, so load more pages each time.
        ahead = (ahead * 2).min(PAGES_AHEAD_MAX);
    }
}

/// Finds lines by pattern.
pub(super) async fn grep(tree: &Tree, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
    let matcher = GrepMatcher::compile(options)?;
    let walk = Walk::new(path, PathFilter::for_grep(path, options)?);
    if let Some(node) = tree.with(|tree| Ok(tree.get(path)?.filter(|node| !node.is_directory()).cloned())).await? {
        let matcher = Arc::new(matcher);
        if is_large(&node)
            && let Some(outcome) = search_large(tree, &matcher, path, &node).await?
        {
            let mut collector = GrepCollector::new(options);
            let _ = collector.push(path, outcome);
            return Ok(collector.finish());
        }
        let content = tree.contents(&[node]).await?.pop().unwrap_or_default();
        return grep_one(path, content, matcher, options).await;
    }
    tree.with(|tree| tree.directory(path)).await?;
    let Some(stretch) = walk.stretch(options.start_after.as_ref().map(|cursor| &*cursor.path)) else {
        return Ok(GrepResult::default());
    };
    if tree.source().is_some() {
        return grep_saved(tree, path, stretch, matcher, options).await;
    }
    let is_small = tree.totals(&stretch.within).is_ok_and(|totals| totals.entries <= ENTRIES_AT_ONCE && totals.size_bytes <= BYTES_AT_ONCE);
    if is_small {
        return Ok(search(tree, walk, &stretch, &matcher, options, 1, &AtomicBool::new(false)));
    }
    let (tree, options) = (tree.clone(), options.clone());
    in_background(move |stop| search(&tree, walk, &stretch, &matcher, &options, workers(), stop)).await
}

/// Searches one file, whatever its name.
async fn grep_one(path: &VfsPath, content: Bytes, matcher: Arc<GrepMatcher>, options: &GrepOptions) -> Result<GrepResult> {
    let mut collector = GrepCollector::new(options);
    let owned = path.to_owned();
    let outcome = if content.len() as u64 <= BYTES_AT_ONCE {
        matcher.search(path, &content)
    } else {
        in_background(move |_| matcher.search(&owned, &content)).await?
    };
    let _ = collector.push(path, outcome);
    Ok(collector.finish())
}

/// Searches a large file part by part. Returns `None` if [`search_parts`] cannot search it.
async fn search_large(tree: &Tree, matcher: &Arc<GrepMatcher>, path: &VfsPath, node: &StateNode) -> Result<Option<FileOutcome>> {
    let found = search_parts(matcher, path, node.size_bytes(), |range| tree.part(node, range)).await?;
    Ok(found.map(FileOutcome::detached))
}

/// The miss that stopped a search, and the path that it had reached.
type Missed = (Miss, VfsPathBuf);

fn find(tree: &Tree, walk: Walk, stretch: &Stretch, options: &GlobOptions, stop: &AtomicBool) -> Result<GlobResult, Missed> {
    let mut found = Found::new(tree, walk, stretch, stop);
    let result = GlobResult::from_sorted(found.by_ref().map(|(path, node)| node.entry(path.to_owned())), options);
    match found.missed.take() {
        Some(missed) => Err(missed),
        None => Ok(result),
    }
}

/// Searches a tree that is entirely in memory.
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
    parallel::ordered_into(
        Found::new(tree, walk, stretch, stop),
        workers,
        |(path, node), yields| {
            let search = |content| matcher.search_if_text(|| path, content, || node.is_binary(content));
            Yield::add(yields, path, node.content().map_or(FileOutcome::Gone, search));
        },
        |yielded| collector.push_yield(yielded, |path| path),
    );
    collector.finish()
}

/// Searches a saved tree, chunk by chunk.
async fn grep_saved(tree: &Tree, path: &VfsPath, stretch: Stretch, matcher: GrepMatcher, options: &GrepOptions) -> Result<GrepResult> {
    let matcher = Arc::new(matcher);
    let mut collector = GrepCollector::new(options);
    let mut chunk = Chunk { stretch, after: None, ahead: PAGES_AHEAD, lost: LostIgnoreFiles::default() };
    while let Some(mut files) = chunk.next(tree, path, options).await? {
        // A large file ends its chunk.
        let large = files.pop_if(|(_, node)| is_large(node));
        let (mut returned, mut flow) = search_files(tree, &matcher, collector, files).await?;
        if let Some((path, node)) = large.filter(|_| flow.is_continue()) {
            let found = match search_large(tree, &matcher, &path, &node).await {
                Err(error) if Forgotten::is_source_of(&error) => Some(FileOutcome::Failed(error)),
                found => found?,
            };
            (returned, flow) = match found {
                Some(outcome) => {
                    let flow = returned.push(path, outcome);
                    (returned, flow)
                }
                None => search_files(tree, &matcher, returned, vec![(path, node)]).await?,
            };
        }
        collector = returned;
        if flow.is_break() {
            break;
        }
    }
    let mut result = collector.finish();
    chunk.lost.into_failures().for_each(|failure| result.push_failure(failure));
    Ok(result)
}

/// The ignore files of a tree of the past whose contents are gone. A search goes on as if they were empty, and reports them.
#[derive(Default)]
struct LostIgnoreFiles {
    paths: BTreeSet<VfsPathBuf>,
    failures: Vec<Failure>,
}

impl LostIgnoreFiles {
    fn paths(&self) -> BTreeSet<VfsPathBuf> {
        self.paths.clone()
    }

    /// Passes the outcome of loading, except that the content of an ignore file is gone.
    fn pass(&mut self, loaded: Result<()>) -> Result<()> {
        match loaded {
            Err(error) if Forgotten::is_source_of(&error) => {
                let Some(path) = error.path().map(ToOwned::to_owned).filter(|path| !self.paths.contains(path)) else { return Err(error) };
                self.failures.push(Failure { error: ErrorRecord::from(&error), path: path.clone() });
                self.paths.insert(path);
                Ok(())
            }
            loaded => loaded,
        }
    }

    fn into_failures(self) -> impl Iterator<Item = Failure> {
        self.failures.into_iter()
    }
}

/// Reads some files of a saved tree and searches them.
async fn search_files(
    tree: &Tree,
    matcher: &Arc<GrepMatcher>,
    collector: GrepCollector,
    files: Vec<(VfsPathBuf, Arc<StateNode>)>,
) -> Result<(GrepCollector, ControlFlow<()>)> {
    let wanted: Vec<Arc<StateNode>> =
        files.iter().map(|(_, node)| node).filter(|node| !matcher.is_too_large(node.size_bytes())).cloned().collect();
    let mut contents = contents_of_each(tree, &wanted).await?.into_iter();
    // Files that are too large are not read; the contents are in the order of the requests.
    let mut body = |node: Arc<StateNode>| {
        let content = if matcher.is_too_large(node.size_bytes()) { None } else { contents.next() };
        content.unwrap_or(Body::Decided(FileOutcome::TooLarge))
    };
    let files = files.into_iter().map(|(path, node)| (path, body(node))).collect();
    search_chunk(matcher.clone(), collector, files).await
}

/// Reads contents. In a tree of the past, some may be gone.
async fn contents_of_each(tree: &Tree, nodes: &[Arc<StateNode>]) -> Result<Vec<Body>> {
    match tree.contents(nodes).await {
        Err(error) if Forgotten::is_source_of(&error) => {}
        contents => return Ok(contents?.into_iter().map(Body::Read).collect()),
    }
    let mut bodies = Vec::with_capacity(nodes.len());
    for node in nodes {
        bodies.push(match tree.contents(std::slice::from_ref(node)).await {
            Err(error) if Forgotten::is_source_of(&error) => Body::Decided(FileOutcome::Failed(error)),
            contents => Body::Read(contents?.pop().unwrap_or_default()),
        });
    }
    Ok(bodies)
}

/// Returns whether a file is read part by part.
fn is_large(node: &StateNode) -> bool {
    node.size_bytes() >= CHUNK_BYTES && node.content().is_none()
}

/// Produces the files that a search selects, in chunks.
struct Chunk {
    stretch: Stretch,
    /// The last file of the previous chunk.
    after: Option<VfsPathBuf>,
    ahead: usize,
    lost: LostIgnoreFiles,
}

impl Chunk {
    /// Returns the next files; `None` at the end.
    async fn next(&mut self, tree: &Tree, root: &VfsPath, options: &GrepOptions) -> Result<Option<Vec<(VfsPathBuf, Arc<StateNode>)>>> {
        if let Some(after) = &self.after {
            self.stretch.from.clone_from(after);
        }
        let mut gathered = Gathered { files: Vec::new(), size_bytes: 0, after: self.after.take() };
        loop {
            let walk = Walk::new(root, PathFilter::for_grep(root, options)?).without_ignore_files(self.lost.paths());
            let is_small = tree.totals(&self.stretch.within).is_ok_and(|totals| totals.entries <= ENTRIES_AT_ONCE);
            let missed = if is_small {
                gathered.gather(tree, walk, &self.stretch, &AtomicBool::new(false))
            } else {
                let (tree, stretch) = (tree.clone(), self.stretch.clone());
                let gather = move |stop: &AtomicBool| (gathered.gather(&tree, walk, &stretch, stop), gathered);
                let (missed, more) = in_background(gather).await?;
                gathered = more;
                missed
            };
            let Some((miss, from)) = missed else { break };
            self.lost.pass(tree.load_ahead(miss, &self.stretch.within, &from, self.ahead).await)?;
            self.ahead = (self.ahead * 2).min(PAGES_AHEAD_MAX);
            self.stretch.from = from;
        }
        self.after = gathered.files.last().map(|(last, _)| last.clone());
        Ok(self.after.is_some().then_some(gathered.files))
    }
}

/// The files of a chunk so far.
struct Gathered {
    files: Vec<(VfsPathBuf, Arc<StateNode>)>,
    size_bytes: u64,
    /// The file after which the chunk starts.
    after: Option<VfsPathBuf>,
}

impl Gathered {
    /// Collects files until the chunk is full. Returns the miss that stopped it earlier, if any.
    fn gather(&mut self, tree: &Tree, walk: Walk, stretch: &Stretch, stop: &AtomicBool) -> Option<Missed> {
        let mut found = Found::new(tree, walk, stretch, stop);
        while self.files.len() < CHUNK_FILES && self.size_bytes < CHUNK_BYTES {
            let Some((path, node)) = found.next() else { return found.missed.take() };
            // The file with the miss is visited again once its page is loaded.
            let last = self.files.last().map(|(last, _)| &**last).or(self.after.as_deref());
            if last != Some(path) {
                self.size_bytes += node.size_bytes();
                self.files.push((path.to_owned(), node.clone()));
            }
        }
        None
    }
}

/// Iterates over the nodes that a walk selects, in path order, until stopped or until a miss.
struct Found<'t> {
    tree: &'t Tree,
    walk: Walk,
    within: &'t VfsPath,
    cursor: Cursor<'t>,
    /// The row to decide about again once the miss is loaded.
    reached: &'t VfsPath,
    missed: Option<Missed>,
    stop: &'t AtomicBool,
}

impl<'t> Found<'t> {
    fn new(tree: &'t Tree, walk: Walk, stretch: &'t Stretch, stop: &'t AtomicBool) -> Self {
        let cursor = tree.from(&stretch.from);
        let mut found = Self { tree, walk, within: &stretch.within, cursor, reached: &stretch.from, missed: None, stop };
        if let Err(miss) = found.start(stretch) {
            found.missed = Some((miss, stretch.from.clone()));
        }
        found
    }

    fn start(&mut self, stretch: &'t Stretch) -> Result<(), Miss> {
        for above in stretch.from.ancestors() {
            self.add_ignore_files(above)?;
        }
        if let Some(directory) = self.walk.obstacle(stretch) {
            // A cursor above the searched directory leaves nothing; after any other cursor the search continues.
            let start = if directory.starts_with(&stretch.within) { directory } else { &stretch.within };
            self.cursor = self.tree.behind(start);
        } else if *stretch.from == *self.walk.root() {
            self.add_ignore_files(&stretch.from)?;
            self.cursor = self.tree.beneath(&stretch.from)?.cursor;
        }
        Ok(())
    }

    /// Decides about a row, and skips everything below it if it must not be entered. Returns whether it is selected.
    fn visit(&mut self, row: &'t Row) -> Result<bool, Miss> {
        let visit = self.walk.visit(&row.path, row.node.is_directory());
        if visit.entered {
            self.add_ignore_files(&row.path)?;
        } else if row.node.is_directory() {
            self.cursor.skip_beneath(&row.path)?;
        }
        Ok(visit.selected)
    }

    fn add_ignore_files(&mut self, directory: &VfsPath) -> Result<(), Miss> {
        if self.walk.wants_ignore_files() {
            let mut contents = [None, None];
            for (name, content) in IGNORE_FILE_NAMES.iter().zip(&mut contents) {
                if let Ok(path) = directory.child(name)
                    && !self.walk.lacks_ignore_file(&path)
                    && let Some(node) = self.tree.get(&path)?.filter(|node| !node.is_directory())
                {
                    *content = Some(node.loaded()?);
                }
            }
            self.walk.add_ignore_files(directory, contents.each_ref().map(|content| content.as_deref()));
        }
        Ok(())
    }

    fn step(&mut self) -> Result<Option<(&'t VfsPath, &'t Arc<StateNode>)>, Miss> {
        while !self.stop.load(Ordering::Relaxed) {
            let Some(row) = self.cursor.next()?.filter(|row| row.path.starts_with(self.within)) else { break };
            self.reached = &row.path;
            work::advance(ENTRY_BYTES);
            if self.visit(row)? {
                return Ok(Some((&row.path, &row.node)));
            }
        }
        Ok(None)
    }
}

impl<'t> Iterator for Found<'t> {
    type Item = (&'t VfsPath, &'t Arc<StateNode>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.missed.is_some() {
            return None;
        }
        self.step().unwrap_or_else(|miss| {
            self.missed = Some((miss, self.reached.to_owned()));
            None
        })
    }
}
