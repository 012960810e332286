//! Collects one page of a listing or glob: entries in order, and the rows that could not be read.
//!
//! A damaged row must neither hide the intact ones nor look absent, so it is reported among the failures of its page.

use crate::rows::RowKey;
use treehold_core::error::{Error, ErrorRecord};
use treehold_core::ops::{Entry, Failure};
use treehold_core::path::VfsPath;
use treehold_store::Item;

/// The most failures one result reports.
pub(super) const FAILURES_MAX: usize = 100;

/// A page being collected.
pub(super) struct Found {
    limit: usize,
    entries: Vec<Entry>,
    failures: Vec<Failure>,
    /// How many of the failures come before the last entry of the page. The rest belong to the next page, if there is one.
    settled: usize,
}

impl Found {
    /// Creates an empty page of up to `limit` entries.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, entries: Vec::new(), failures: Vec::new(), settled: 0 }
    }

    /// Returns the number of entries. One more than the limit means that there is another page.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds the entry of a row met in `directory`, or a failure if the row cannot be read.
    pub(super) fn push_row(&mut self, directory: &VfsPath, item: &Item) {
        match RowKey::of(&item.key) {
            Ok(place) => self.push(place, item),
            Err(error) => self.fail(error, directory),
        }
    }

    /// Adds the entry of a row whose path is known.
    pub(super) fn push(&mut self, place: RowKey, item: &Item) {
        let path = place.path.clone();
        match place.entry(item) {
            Ok(entry) => {
                self.entries.push(entry);
                if self.entries.len() <= self.limit {
                    self.settled = self.failures.len();
                }
            }
            Err(error) => self.fail(error, &path),
        }
    }

    /// Adds a failure at the path of the error, or at `path` if the error has none.
    pub(super) fn fail(&mut self, error: Error, path: &VfsPath) {
        if self.entries.len() <= self.limit && self.failures.len() < FAILURES_MAX {
            let path = error.path().unwrap_or(path).to_owned();
            self.failures.push(Failure { path, error: ErrorRecord::from(&error) });
        }
    }

    /// Returns the failures of the page and its entries, plus one extra entry if there are more.
    pub(super) fn finish(mut self) -> (Vec<Entry>, Vec<Failure>) {
        if self.entries.len() > self.limit {
            self.failures.truncate(self.settled);
        }
        (self.entries, self.failures)
    }
}
