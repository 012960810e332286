//! Merging the results of several mounts in path order. No I/O.
//!
//! Results are added in the order of the mounts' prefixes. Everything before the next mount's prefix is settled,
//! because no later result can precede it. So a merge knows early when it has enough, and buffers little more than one
//! page.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use treehold_core::ops::{Entry, GrepCursor, GrepFile, Truncation};
use treehold_core::path::{VfsPath, VfsPathBuf};

/// A result with a path that counts toward a limit.
pub(super) trait Found {
    /// Returns the path.
    fn path(&self) -> &VfsPath;

    /// Returns how much of the limit the result uses.
    fn weight(&self) -> usize;
}

impl Found for Entry {
    fn path(&self) -> &VfsPath {
        &self.path
    }

    fn weight(&self) -> usize {
        1
    }
}

impl Found for GrepFile {
    fn path(&self) -> &VfsPath {
        &self.path
    }

    fn weight(&self) -> usize {
        if self.lines.is_empty() { 1 } else { self.count }
    }
}

/// A merge in progress.
pub(super) struct Merge<T> {
    /// Results that are not settled yet, the first in path order on top.
    waiting: BinaryHeap<Reverse<Waiting<T>>>,
    settled: Vec<T>,
    weight: usize,
    /// The first position where the result of a mount was truncated; results after it are incomplete.
    cut: Option<(GrepCursor, Truncation)>,
}

impl<T: Found> Merge<T> {
    pub(super) fn new() -> Self {
        Self { waiting: BinaryHeap::new(), settled: Vec::new(), weight: 0, cut: None }
    }

    /// Adds the results of a mount.
    pub(super) fn push(&mut self, found: impl IntoIterator<Item = T>) {
        self.waiting.extend(found.into_iter().map(|item| Reverse(Waiting { item, is_spare: false })));
    }

    /// Adds results that count only if no mount has a result at the same path.
    pub(super) fn push_spare(&mut self, found: impl IntoIterator<Item = T>) {
        self.waiting.extend(found.into_iter().map(|item| Reverse(Waiting { item, is_spare: true })));
    }

    /// Records that a mount has more results after a position.
    pub(super) fn push_cut(&mut self, at: GrepCursor, truncation: Truncation) {
        if self.cut.as_ref().is_none_or(|(first, _)| at < *first) {
            self.cut = Some((at, truncation));
        }
    }

    /// Settles the results before the prefix of the next mount, or all if there is none. Returns whether they exceed
    /// `limit` or reach the first truncation, so that further mounts are not needed.
    pub(super) fn settle(&mut self, next: Option<&VfsPath>, limit: usize) -> bool {
        while let Some(Reverse(first)) = self.waiting.peek() {
            if next.is_some_and(|next| first.item.path() >= next) || self.is_beyond_cut(first.item.path()) {
                break;
            }
            let Some(Reverse(first)) = self.waiting.pop() else { break };
            if self.settled.last().is_none_or(|last| last.path() != first.item.path()) {
                self.weight += first.item.weight();
                self.settled.push(first.item);
            }
        }
        self.weight > limit || next.is_some_and(|next| self.is_beyond_cut(next))
    }

    /// Returns the settled results, and the truncation if the result of a mount was truncated.
    pub(super) fn finish(self) -> (Vec<T>, Option<Truncation>) {
        (self.settled, self.cut.map(|(_, truncation)| truncation))
    }

    fn is_beyond_cut(&self, path: &VfsPath) -> bool {
        self.cut.as_ref().is_some_and(|(at, _)| *path > *at.path)
    }
}

/// Parses the cursor of a glob as a position.
pub(super) fn glob_place(cursor: &str) -> GrepCursor {
    GrepCursor { path: VfsPathBuf::parse(cursor).unwrap_or_else(|_| VfsPathBuf::root()), line: GrepCursor::END }
}

/// Parses the cursor of a grep as a position.
pub(super) fn grep_place(cursor: &str) -> GrepCursor {
    cursor.parse().unwrap_or_else(|_| GrepCursor { path: VfsPathBuf::root(), line: 0 })
}

struct Waiting<T> {
    item: T,
    is_spare: bool,
}

impl<T: Found> Ord for Waiting<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.item.path().cmp(other.item.path()).then(self.is_spare.cmp(&other.is_spare))
    }
}

impl<T: Found> PartialOrd for Waiting<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Found> PartialEq for Waiting<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T: Found> Eq for Waiting<T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use treehold_core::ops::{TruncationReason, Version};

    fn path(text: &str) -> VfsPathBuf {
        VfsPathBuf::parse(text).expect("a legal path")
    }

    fn files(paths: &[&str]) -> Vec<Entry> {
        paths.iter().map(|text| Entry::file(path(text), 0, Version::new(1))).collect()
    }

    fn paths(found: &[Entry]) -> Vec<&str> {
        found.iter().map(|entry| entry.path.as_str()).collect()
    }

    #[test]
    fn results_before_the_next_mount_are_settled() {
        let mut merge = Merge::new();
        merge.push(files(&["/a", "/m.md", "/z"]));
        assert!(!merge.settle(Some(&path("/m")), 3));
        assert_eq!(paths(&merge.settled), ["/a"]);
        merge.push(files(&["/m/x", "/m/y"]));
        assert!(merge.settle(Some(&path("/n")), 3));
        assert_eq!(paths(&merge.finish().0), ["/a", "/m/x", "/m/y", "/m.md"]);
    }

    #[test]
    fn results_after_the_first_cut_are_dropped() {
        let mut merge = Merge::new();
        let cut = |cursor: &str| Truncation { reason: TruncationReason::Limit, cursor: cursor.to_owned() };
        merge.push(files(&["/a", "/k"]));
        merge.push_cut(glob_place("/k"), cut("/k"));
        merge.push(files(&["/b/x", "/b/y"]));
        merge.push_cut(glob_place("/b/y"), cut("/b/y"));
        assert!(merge.settle(Some(&path("/c")), 10), "results below /c come after the truncation");
        assert!(!merge.settle(None, 10));
        let (found, truncated) = merge.finish();
        assert_eq!((paths(&found), truncated), (vec!["/a", "/b/x", "/b/y"], Some(cut("/b/y"))));
    }

    #[test]
    fn spare_result_yields_to_a_mounts_result() {
        let mut merge = Merge::new();
        merge.push_spare([Entry::directory(path("/a")), Entry::directory(path("/b"))]);
        merge.push(files(&["/b", "/c"]));
        assert!(!merge.settle(None, 10));
        let (found, _) = merge.finish();
        assert_eq!(found.iter().map(Entry::is_directory).collect::<Vec<_>>(), [true, false, false]);
    }
}
