//! A place in a tree that goes on in path order and seeks.

use super::page::{Child, Link, Miss, Page, Row, child_of};
use crate::path::VfsPath;
use std::sync::Arc;

/// A place between the rows of a tree.
///
/// When a page is not in memory the cursor says so and stays where it is: once the page is loaded, the same call goes on.
#[derive(Clone)]
pub(super) struct Cursor<'t> {
    /// The inner pages on the way, each with the number of the next child.
    above: Vec<(&'t [Child], usize)>,
    /// The rows of the leaf that are still ahead.
    rows: &'t [Row],
    /// The page that is entered next.
    entering: Option<&'t Arc<Link>>,
    /// What is passed over before the next row, after a seek.
    until: Option<Until<'t>>,
}

#[derive(Clone, Copy)]
enum Until<'t> {
    /// Rows before this path.
    At(&'t VfsPath),
    /// Rows at this path, before it and beneath it.
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
    /// Stands before all rows.
    pub(super) fn new(root: &'t Arc<Link>) -> Self {
        Self { above: Vec::new(), rows: &[], entering: Some(root), until: None }
    }

    /// Stands before the first row at or behind a path.
    pub(super) fn at(root: &'t Arc<Link>, path: &'t VfsPath) -> Self {
        Self { until: Some(Until::At(path)), ..Self::new(root) }
    }

    /// Stands before the first row behind all that lies at or beneath a path.
    pub(super) fn behind(root: &'t Arc<Link>, path: &'t VfsPath) -> Self {
        Self { until: Some(Until::Behind(path)), ..Self::new(root) }
    }

    /// Passes over the rows that lie beneath a path, which the cursor has just met.
    pub(super) fn skip_beneath(&mut self, path: &VfsPath) -> Result<(), Miss> {
        loop {
            self.enter()?;
            let ahead = self.rows.partition_point(|row| row.path.starts_with(path));
            self.rows = &self.rows[ahead..];
            if !self.rows.is_empty() {
                return Ok(());
            }
            // Whole pages are passed over without being entered.
            let Some((children, next)) = self.above.last_mut() else { return Ok(()) };
            let lies_beneath = |child: &Child| child.first.starts_with(path);
            while children.get(*next + 1).is_some_and(lies_beneath) {
                *next += 1;
            }
            match children.get(*next) {
                Some(child) if lies_beneath(child) => {
                    // The rest of it may lie behind.
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

    /// Goes to the next row.
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

    /// Enters the page that is to be entered, down to a leaf.
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
