//! A position in a tree, advancing in path order with seeks.

use super::page::{Child, Link, Miss, Page, Row, child_of};
use std::sync::Arc;
use treehold_core::path::VfsPath;

/// A position between the rows of a tree.
///
/// If a page is not in memory, the call fails with a [`Miss`] and leaves the cursor in place. Once the page is loaded,
/// the same call continues.
#[derive(Clone)]
pub(super) struct Cursor<'t> {
    /// The inner pages above, each with the index of its next child.
    above: Vec<(&'t [Child], usize)>,
    /// The remaining rows of the current leaf.
    rows: &'t [Row],
    /// The page to enter next.
    entering: Option<&'t Arc<Link>>,
    /// The rows to skip after a seek.
    until: Option<Until<'t>>,
}

#[derive(Clone, Copy)]
enum Until<'t> {
    /// Rows before this path.
    At(&'t VfsPath),
    /// Rows before, at and below this path.
    Behind(&'t VfsPath),
}

impl Until<'_> {
    fn passes_over(&self, path: &VfsPath) -> bool {
        match self {
            Self::At(place) => path < place,
            Self::Behind(place) => path <= place || path.starts_with(place),
        }
    }
}

impl<'t> Cursor<'t> {
    /// Starts before all rows.
    pub(super) fn new(root: &'t Arc<Link>) -> Self {
        Self { above: Vec::new(), rows: &[], entering: Some(root), until: None }
    }

    /// Starts before the first row at or after a path.
    pub(super) fn at(root: &'t Arc<Link>, path: &'t VfsPath) -> Self {
        Self { until: Some(Until::At(path)), ..Self::new(root) }
    }

    /// Starts before the first row after everything at or below a path.
    pub(super) fn behind(root: &'t Arc<Link>, path: &'t VfsPath) -> Self {
        Self { until: Some(Until::Behind(path)), ..Self::new(root) }
    }

    /// Skips the rows below the path that the cursor has just returned.
    pub(super) fn skip_beneath(&mut self, path: &VfsPath) -> Result<(), Miss> {
        loop {
            self.enter()?;
            let ahead = self.rows.partition_point(|row| row.path.starts_with(path));
            self.rows = &self.rows[ahead..];
            if !self.rows.is_empty() {
                return Ok(());
            }
            // Skip whole pages without entering them.
            let Some((children, next)) = self.above.last_mut() else { return Ok(()) };
            let lies_beneath = |child: &Child| child.first.starts_with(path);
            while children.get(*next + 1).is_some_and(lies_beneath) {
                *next += 1;
            }
            match children.get(*next) {
                Some(child) if lies_beneath(child) => {
                    // The end of this page may lie after the skipped rows.
                    self.entering = Some(&child.link);
                    *next += 1;
                }
                Some(_) => return Ok(()),
                None => {
                    self.above.pop();
                }
            }
        }
    }

    /// Returns the next row.
    pub(super) fn next(&mut self) -> Result<Option<&'t Row>, Miss> {
        loop {
            self.enter()?;
            if let Some((row, rest)) = self.rows.split_first() {
                self.rows = rest;
                return Ok(Some(row));
            }
            let Some((children, next)) = self.above.last_mut() else { return Ok(None) };
            match children.get(*next) {
                Some(child) => {
                    *next += 1;
                    self.entering = Some(&child.link);
                }
                None => {
                    self.above.pop();
                }
            }
        }
    }

    /// Descends into the page to enter, down to a leaf.
    fn enter(&mut self) -> Result<(), Miss> {
        while let Some(link) = self.entering {
            match link.page()? {
                Page::Leaf(rows) => {
                    let passed = self.until.map_or(0, |until| rows.partition_point(|row| until.passes_over(&row.path)));
                    self.rows = &rows[passed..];
                    if passed < rows.len() {
                        self.until = None;
                    }
                    self.entering = None;
                }
                Page::Inner(children) => {
                    let first = match self.until {
                        None => 0,
                        Some(Until::At(place)) => child_of(children, place),
                        Some(until @ Until::Behind(_)) => {
                            children.partition_point(|child| until.passes_over(&child.first)).saturating_sub(1)
                        }
                    };
                    self.above.push((children, first + 1));
                    self.entering = children.get(first).map(|child| &child.link);
                }
            }
        }
        Ok(())
    }
}
