//! The differences between two trees.
//!
//! Both trees are walked in parallel. Shared pages are skipped without being read or loaded, so the cost is
//! proportional to the differences, not to the size of the trees.

use super::StateNode;
use super::page::{Child, Link, Miss, Page, Row};
use super::tree::Tree;
use std::cmp::Ordering;
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_core::path::{VfsPath, VfsPathBuf};

/// A path at which two snapshots differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateDifference {
    /// Only the newer snapshot has the path.
    Added(VfsPathBuf, Arc<StateNode>),
    /// Both have the path, with a different version or kind: the older node, then the newer.
    Changed(VfsPathBuf, Arc<StateNode>, Arc<StateNode>),
    /// Only the older snapshot has the path.
    Removed(VfsPathBuf, Arc<StateNode>),
}

impl StateDifference {
    /// Returns the path.
    pub fn path(&self) -> &VfsPath {
        match self {
            Self::Added(path, _) | Self::Changed(path, ..) | Self::Removed(path, _) => path,
        }
    }

    /// Returns the older snapshot's node.
    pub fn older(&self) -> Option<&Arc<StateNode>> {
        match self {
            Self::Added(..) => None,
            Self::Changed(_, older, _) | Self::Removed(_, older) => Some(older),
        }
    }

    /// Returns the newer snapshot's node.
    pub fn newer(&self) -> Option<&Arc<StateNode>> {
        match self {
            Self::Added(_, newer) | Self::Changed(_, _, newer) => Some(newer),
            Self::Removed(..) => None,
        }
    }

    fn of(older: Option<&Row>, newer: Option<&Row>) -> Option<Self> {
        match (older, newer) {
            (Some(older), Some(newer)) => {
                let is_same = Arc::ptr_eq(&older.node, &newer.node) || older.node == newer.node;
                (!is_same).then(|| Self::Changed((*newer.path).to_owned(), older.node.clone(), newer.node.clone()))
            }
            (Some(older), None) => Some(Self::Removed((*older.path).to_owned(), older.node.clone())),
            (None, Some(newer)) => Some(Self::Added((*newer.path).to_owned(), newer.node.clone())),
            (None, None) => None,
        }
    }
}

/// Returns up to `limit` differences after a path, in path order.
pub(super) async fn differences(older: &Tree, newer: &Tree, start_after: Option<&VfsPath>, limit: usize) -> Result<Vec<StateDifference>> {
    let mut sides = [Side::new(older), Side::new(newer)];
    let mut found = Vec::new();
    while found.len() < limit {
        match step(&mut sides) {
            Ok(Some((older, newer))) => {
                let difference = StateDifference::of(older, newer);
                found.extend(difference.filter(|difference| start_after.is_none_or(|after| difference.path() > after)));
            }
            Ok(None) => break,
            // Shared pages can be loaded from either source.
            Err((0, miss)) => older.load(miss).await?,
            Err((_, miss)) => newer.load(miss).await?,
        }
    }
    Ok(found)
}

/// The rows of the older and the newer tree at one path.
type Pair<'t> = (Option<&'t Row>, Option<&'t Row>);

/// Advances to the next path at which the trees may differ. A miss names the side where it occurred.
fn step<'t>(sides: &mut [Side<'t>; 2]) -> Result<Option<Pair<'t>>, (usize, Miss)> {
    loop {
        let [older, newer] = sides;
        let enter = match (older.ahead(), newer.ahead()) {
            (Ahead::End, Ahead::End) => return Ok(None),
            (Ahead::Page(one, _), Ahead::Page(other, _)) if one.is_same(other) => {
                older.pass();
                newer.pass();
                continue;
            }
            // Enter the page that begins first, or of two that begin together the higher one, so that both sides arrive
            // at shared pages at the same time.
            (Ahead::Page(_, at), Ahead::Page(_, other)) => match at.cmp(other) {
                Ordering::Less => 0,
                Ordering::Greater => 1,
                Ordering::Equal => usize::from(older.height < newer.height),
            },
            (Ahead::Page(_, at), Ahead::Row(row)) if at <= &*row.path => 0,
            (Ahead::Row(row), Ahead::Page(_, at)) if at <= &*row.path => 1,
            (Ahead::Page(..), Ahead::End) => 0,
            (Ahead::End, Ahead::Page(..)) => 1,
            (Ahead::Row(_), Ahead::Page(..) | Ahead::End) => return Ok(Some((older.take(), None))),
            (Ahead::Page(..) | Ahead::End, Ahead::Row(_)) => return Ok(Some((None, newer.take()))),
            (Ahead::Row(one), Ahead::Row(other)) => {
                return Ok(Some(match one.path.cmp(&other.path) {
                    Ordering::Less => (older.take(), None),
                    Ordering::Equal => (older.take(), newer.take()),
                    Ordering::Greater => (None, newer.take()),
                }));
            }
        };
        sides[enter].enter().map_err(|miss| (enter, miss))?;
    }
}

/// A position in one of the trees, before a row or before a page not yet entered.
struct Side<'t> {
    root: Option<&'t Arc<Link>>,
    above: Vec<(&'t [Child], usize)>,
    rows: &'t [Row],
    /// The height of the next page above the leaves; for the root it is known only after entering it.
    height: usize,
}

enum Ahead<'t> {
    Page(&'t Arc<Link>, &'t VfsPath),
    Row(&'t Row),
    End,
}

impl<'t> Side<'t> {
    fn new(tree: &'t Tree) -> Self {
        Self { root: Some(tree.root()), above: Vec::new(), rows: &[], height: usize::MAX }
    }

    fn ahead(&self) -> Ahead<'t> {
        if let Some(root) = self.root {
            return Ahead::Page(root, VfsPath::ROOT);
        }
        if let Some(row) = self.rows.first() {
            return Ahead::Row(row);
        }
        match self.above.last().and_then(|(children, next)| children.get(*next)) {
            Some(child) => Ahead::Page(&child.link, &child.first),
            None => Ahead::End,
        }
    }

    /// Skips the next page.
    fn pass(&mut self) {
        self.root = None;
        if let Some((_, next)) = self.above.last_mut() {
            *next += 1;
        }
        self.leave();
    }

    /// Takes the next row.
    fn take(&mut self) -> Option<&'t Row> {
        let (row, rest) = self.rows.split_first()?;
        self.rows = rest;
        self.leave();
        Some(row)
    }

    /// Enters the next page.
    fn enter(&mut self) -> Result<(), Miss> {
        let Ahead::Page(link, _) = self.ahead() else { return Ok(()) };
        if self.root.is_some() {
            self.height = height(link)?;
        }
        match link.page()? {
            Page::Leaf(rows) => {
                self.pass_into();
                self.rows = rows;
            }
            Page::Inner(children) => {
                self.pass_into();
                self.above.push((children, 0));
                self.height = self.height.saturating_sub(1);
            }
        }
        self.leave();
        Ok(())
    }

    fn pass_into(&mut self) {
        if self.root.take().is_none()
            && let Some((_, next)) = self.above.last_mut()
        {
            *next += 1;
        }
    }

    /// Leaves finished pages.
    fn leave(&mut self) {
        while self.rows.is_empty() && self.above.last().is_some_and(|(children, next)| *next >= children.len()) {
            self.above.pop();
            self.height += 1;
        }
    }
}

/// Returns the height of a page above the leaves.
fn height(link: &Arc<Link>) -> Result<usize, Miss> {
    let mut height = 0;
    let mut page = link.page()?;
    while let Page::Inner(children) = page {
        height += 1;
        page = children[0].link.page()?;
    }
    Ok(height)
}

#[cfg(test)]
mod tests {
    use crate::backend::{StateNode, StateSnapshot};
    use jiff::Timestamp;
    use treehold_core::ops::Version;
    use treehold_core::path::VfsPath;

    /// Regression: two forks of a thread count versions from the same number, and equal versions were mistaken for equal content.
    #[tokio::test]
    async fn forks_with_equal_versions_and_different_contents_differ() {
        let of = |content: &'static str| {
            let node = StateNode::file(content, Version::new(7), Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
            let path = VfsPath::parse("/a").expect("a legal path").into_owned();
            StateSnapshot::from_nodes([(path, node)], Version::new(7)).expect("one file")
        };
        let differences = |other| async move { of("one").differences(&of(other), None, 10).await.expect("it is in memory").len() };
        assert_eq!((differences("two").await, differences("longer").await, differences("one").await), (1, 1, 0));
    }
}
