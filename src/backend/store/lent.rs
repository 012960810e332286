//! Finding lines in rows that the store lends.
//!
//! They are searched where they are, all in one go and on all cores: nothing is asked for page by page, and only what is found is
//! made into anything. What is selected, in which order, and where it is cut is what a [`StoreWalk`](super::walk::StoreWalk) over
//! pages gives.

use super::rows::{KeyReader, after_directory, file_key};
use super::search::{path_of, search_body};
use crate::backend::flat::{Walk, in_background, workers};
use crate::error::Result;
use crate::ops::{GrepOptions, GrepResult};
use crate::path::{self, PATH_BYTES_MAX, VfsPath, VfsPathBuf};
use crate::search::ignore::IGNORE_FILE_NAMES;
use crate::search::{FileOutcome, GrepCollector, GrepMatcher, Yield, parallel};
use crate::store::{LentRow, LentRows};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most rows of a tree that is searched without a thread of its own: some tenths of a millisecond.
const ROWS_AT_ONCE: usize = 1_024;

/// The most bytes of a tree that is searched without a thread of its own: some tenths of a millisecond.
const BYTES_AT_ONCE: usize = 1 << 20;

/// What of a tree is searched.
pub(super) struct LentStretch {
    pub(super) rows: Arc<dyn LentRows>,
    /// What decides about a row. The ignore files down to `from` are known to it.
    pub(super) walk: Walk,
    /// Where the walk begins.
    pub(super) from: VfsPathBuf,
    /// The key of a file that comes before all others.
    pub(super) first: Option<String>,
    /// The keys that follow: from this one on, and before that one; none where nothing follows.
    pub(super) keys: Option<(String, Option<String>)>,
}

/// Searches the rows.
pub(super) async fn grep(stretch: LentStretch, matcher: Arc<GrepMatcher>, options: &GrepOptions) -> Result<GrepResult> {
    let collector = GrepCollector::new(options);
    let size_max_bytes = options.size_max_bytes.unwrap_or(u64::MAX);
    if stretch.is_small() {
        return Ok(stretch.search(&matcher, collector, size_max_bytes, 1, &AtomicBool::new(false)));
    }
    in_background(move |stop| stretch.search(&matcher, collector, size_max_bytes, workers(), stop)).await
}

impl LentStretch {
    /// Tells whether the search takes no time that others would notice.
    fn is_small(&self) -> bool {
        let Some((start, end)) = &self.keys else { return true };
        let (mut rows, mut bytes) = (0, 0);
        let has_few = |row: LentRow<'_>| {
            (rows, bytes) = (rows + 1, bytes + row.value().len());
            rows <= ROWS_AT_ONCE && bytes <= BYTES_AT_ONCE
        };
        self.rows.range(start, end.as_deref()).all(has_few)
    }

    fn search(
        self,
        matcher: &GrepMatcher,
        mut collector: GrepCollector,
        size_max_bytes: u64,
        workers: usize,
        stop: &AtomicBool,
    ) -> GrepResult {
        let rows = self.rows.clone();
        let root = self.walk.root().to_owned();
        parallel::ordered_into(
            Found::new(&*rows, self, stop),
            workers,
            |found, yields| match found {
                Ok(row) => {
                    let search = || search_body(matcher, (row.key(), row.meta(), row.value()), size_max_bytes, || row.is_binary());
                    Yield::add(yields, Some(row.key()), search().unwrap_or_else(FileOutcome::Failed));
                }
                Err(error) => Yield::add(yields, None, FileOutcome::Failed(error)),
            },
            |yielded| collector.push_yield(yielded, |key| key.map_or_else(|| root.clone(), path_of)),
        );
        collector.finish()
    }
}

/// The rows that a walk selects, in path order, and the error of each that is no node of the tree; until it is told to stop.
struct Found<'r> {
    first: Option<LentRow<'r>>,
    ahead: Box<dyn Iterator<Item = LentRow<'r>> + Send + 'r>,
    /// The key before which the rows end.
    end: Option<String>,
    reader: KeyReader,
    rules: Rules<'r>,
    /// The start of the keys of the last row's siblings, where all files of plain names among them are selected.
    taken: Option<String>,
    stop: &'r AtomicBool,
}

/// What decides about rows.
struct Rules<'r> {
    rows: &'r dyn LentRows,
    walk: Walk,
    /// The directories above the last row, the deepest last, whose ignore files are known.
    open: Vec<VfsPathBuf>,
}

impl<'r> Found<'r> {
    fn new(rows: &'r dyn LentRows, of: LentStretch, stop: &'r AtomicBool) -> Self {
        let LentStretch { walk, from, first, keys, .. } = of;
        let open = from.ancestors().chain([&*from]).map(ToOwned::to_owned).collect();
        let (ahead, end): (Box<dyn Iterator<Item = LentRow<'r>> + Send + 'r>, _) = match keys {
            Some((start, end)) => (rows.range(&start, end.as_deref()), end),
            None => (Box::new(std::iter::empty()), None),
        };
        let first = first.and_then(|key| rows.get(&key));
        Self { first, ahead, end, reader: KeyReader::new(), rules: Rules { rows, walk, open }, taken: None, stop }
    }

    /// Decides about a row; none where it is not selected.
    fn visit(&mut self, row: LentRow<'r>) -> Option<Result<LentRow<'r>>> {
        let directories = self.reader.directories();
        let is_directory = match self.reader.read(row.key()) {
            Ok((_, is_directory)) => is_directory,
            Err(error) => return Some(Err(error)),
        };
        let path = self.reader.path();
        if self.reader.directories() != directories {
            let directory = path.parent().unwrap_or(VfsPath::ROOT);
            self.rules.enter(directory);
            let siblings = row.key().len() - path.name().len() - usize::from(is_directory);
            self.taken = self.rules.walk.takes_children(directory).then(|| row.key()[..siblings].to_owned());
        }
        let visit = self.rules.walk.visit(path, is_directory);
        if is_directory && !visit.entered {
            self.ahead = self.rules.rows.range(&after_directory(path), self.end.as_deref());
        }
        visit.selected.then_some(Ok(row))
    }

    /// Tells whether a row is a file that is selected as its siblings are.
    fn is_taken(&self, key: &str) -> bool {
        let name = self.taken.as_ref().and_then(|start| key.strip_prefix(start.as_str()));
        name.is_some_and(|name| !name.starts_with('.') && path::is_name(name)) && key.len() < PATH_BYTES_MAX
    }
}

impl<'r> Iterator for Found<'r> {
    type Item = Result<LentRow<'r>>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(first) = self.first.take() {
            return Some(Ok(first));
        }
        while !self.stop.load(Ordering::Relaxed) {
            let row = self.ahead.next()?;
            if self.is_taken(row.key()) {
                return Some(Ok(row));
            }
            if let Some(found) = self.visit(row) {
                return Some(found);
            }
        }
        None
    }
}

impl Rules<'_> {
    /// Learns the rules of a directory, and of those above it.
    fn enter(&mut self, directory: &VfsPath) {
        self.open.retain(|open| directory.starts_with(open));
        let known = self.open.len();
        self.open.extend(directory.ancestors().chain([directory]).skip(known).map(ToOwned::to_owned));
        if !self.walk.wants_ignore_files() {
            return;
        }
        for directory in &self.open[known..] {
            // A directory whose path is too long for the name has no such file.
            let content = |name: &&str| Some(self.rows.get(&file_key(&directory.child(name).ok()?))?.value());
            let contents = IGNORE_FILE_NAMES.each_ref().map(content);
            self.walk.add_ignore_files(directory, contents.map(|content| content.map(|content| &content[..])));
        }
    }
}
