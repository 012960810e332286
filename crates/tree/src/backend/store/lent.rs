//! Grep over rows that the store lends.
//!
//! The rows are searched in place, in one pass on all cores, without paging; only matches are copied. Selection, order and limits
//! are the same as for a [`StoreWalk`](super::walk::StoreWalk) over pages.

use super::search::{path_of, search_body};
use crate::backend::flat::Walk;
use crate::background::{in_background, workers};
use crate::rows::{KeyReader, after_directory, file_key};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use treehold_core::error::Result;
use treehold_core::ops::{GrepOptions, GrepResult};
use treehold_core::path::{self, PATH_BYTES_MAX, VfsPath, VfsPathBuf};
use treehold_core::search::ignore::IGNORE_FILE_NAMES;
use treehold_core::search::{FileOutcome, GrepCollector, GrepMatcher, Yield, parallel};
use treehold_store::{RowsSnapshot, SnapshotRow};

/// The most rows searched on the calling thread: some tenths of a millisecond.
const ROWS_AT_ONCE: usize = 1_024;

/// The most bytes searched on the calling thread: some tenths of a millisecond.
const BYTES_AT_ONCE: usize = 1 << 20;

/// The part of a tree to search.
pub(super) struct LentStretch {
    pub(super) rows: Arc<dyn RowsSnapshot>,
    /// Decides which rows are selected. It already has the ignore files of all directories down to `from`.
    pub(super) walk: Walk,
    /// The directory where the walk begins.
    pub(super) from: VfsPathBuf,
    /// The key of a file that comes before all others, if any.
    pub(super) first: Option<String>,
    /// The range of the remaining keys: from the first, up to but excluding the second. `None` if there are none.
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
    /// Returns whether the search is short enough for the calling thread.
    fn is_small(&self) -> bool {
        let Some((start, end)) = &self.keys else { return true };
        let (mut rows, mut bytes) = (0, 0);
        let has_few = |row: SnapshotRow<'_>| {
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

/// Iterates over the rows that a walk selects, in path order, with an error for each row that does not belong to the tree. Ends
/// early when `stop` is set.
struct Found<'r> {
    first: Option<SnapshotRow<'r>>,
    ahead: Box<dyn Iterator<Item = SnapshotRow<'r>> + Send + 'r>,
    /// The exclusive end of the rows.
    end: Option<String>,
    reader: KeyReader,
    rules: Rules<'r>,
    /// The key prefix of the last row's siblings, if every sibling file with an ordinary name is selected.
    taken: Option<String>,
    stop: &'r AtomicBool,
}

/// Decides which rows are selected.
struct Rules<'r> {
    rows: &'r dyn RowsSnapshot,
    walk: Walk,
    /// The directories above the last row, deepest last. Their ignore files are loaded.
    open: Vec<VfsPathBuf>,
}

impl<'r> Found<'r> {
    fn new(rows: &'r dyn RowsSnapshot, of: LentStretch, stop: &'r AtomicBool) -> Self {
        let LentStretch { walk, from, first, keys, .. } = of;
        let open = from.ancestors().chain([&*from]).map(ToOwned::to_owned).collect();
        let (ahead, end): (Box<dyn Iterator<Item = SnapshotRow<'r>> + Send + 'r>, _) = match keys {
            Some((start, end)) => (rows.range(&start, end.as_deref()), end),
            None => (Box::new(std::iter::empty()), None),
        };
        let first = first.and_then(|key| rows.get(&key));
        Self { first, ahead, end, reader: KeyReader::new(), rules: Rules { rows, walk, open }, taken: None, stop }
    }

    /// Returns the row if it is selected, or an error if it does not belong to the tree.
    fn visit(&mut self, row: SnapshotRow<'r>) -> Option<Result<SnapshotRow<'r>>> {
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

    /// Returns whether a row is a file that is selected like its siblings, without evaluating the rules.
    fn is_taken(&self, key: &str) -> bool {
        let name = self.taken.as_ref().and_then(|start| key.strip_prefix(start.as_str()));
        name.is_some_and(|name| !name.starts_with('.') && path::is_name(name)) && key.len() < PATH_BYTES_MAX
    }
}

impl<'r> Iterator for Found<'r> {
    type Item = Result<SnapshotRow<'r>>;

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
    /// Loads the ignore files of a directory and of its parents.
    fn enter(&mut self, directory: &VfsPath) {
        self.open.retain(|open| directory.starts_with(open));
        let known = self.open.len();
        self.open.extend(directory.ancestors().chain([directory]).skip(known).map(ToOwned::to_owned));
        if !self.walk.wants_ignore_files() {
            return;
        }
        for directory in &self.open[known..] {
            // If the path would be too long, the file cannot exist.
            let content = |name: &&str| Some(self.rows.get(&file_key(&directory.child(name).ok()?))?.value());
            let contents = IGNORE_FILE_NAMES.each_ref().map(content);
            self.walk.add_ignore_files(directory, contents.map(|content| content.map(|content| &content[..])));
        }
    }
}
