//! What a listing or a glob met: entries in order, and the rows that could not be read.
//!
//! One bad row must not hide the good ones, nor pass for absent: it is named among the failures of the page it stands on.

use super::rows::Place;
use crate::error::{Error, ErrorRecord};
use crate::ops::{Entry, Failure};
use crate::path::VfsPath;
use crate::store::Item;

/// How many failures one result names at most.
pub(super) const FAILURES_MAX: usize = 100;

/// A page in the making.
pub(super) struct Found {
    limit: usize,
    entries: Vec<Entry>,
    failures: Vec<Failure>,
    /// Of the failures, how many stand before the last entry of the page: the rest belong to the next one if there is more.
    settled: usize,
}

impl Found {
    /// Starts an empty page of up to `limit` entries.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, entries: Vec::new(), failures: Vec::new(), settled: 0 }
    }

    /// Returns how many entries there are; one more than the limit tells that there are more.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds what a row met in a directory stands for.
    pub(super) fn push_row(&mut self, directory: &VfsPath, item: &Item) {
        match Place::of(&item.key) {
            Ok(place) => self.push(place, item),
            Err(error) => self.fail(error, directory),
        }
    }

    /// Adds a node.
    pub(super) fn push(&mut self, place: Place, item: &Item) {
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

    /// Adds what could not be read, at the path of the error or, where it has none, near `path`.
    pub(super) fn fail(&mut self, error: Error, path: &VfsPath) {
        if self.entries.len() <= self.limit && self.failures.len() < FAILURES_MAX {
            let path = error.path().unwrap_or(path).to_owned();
            self.failures.push(Failure { path, error: ErrorRecord::from(&error) });
        }
    }

    /// Returns the entries, one over the limit where there are more, and the failures of the page.
    pub(super) fn finish(mut self) -> (Vec<Entry>, Vec<Failure>) {
        if self.entries.len() > self.limit {
            self.failures.truncate(self.settled);
        }
        (self.entries, self.failures)
    }
}
