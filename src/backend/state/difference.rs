//! Where two trees differ.
//!
//! Both are gone through side by side. A page that both share is passed over without being looked at, or loaded: so the cost grows
//! with what differs, and not with what there is.

use super::StateNode;
use super::page::{Child, Link, Miss, Page, Row};
use super::tree::Tree;
use crate::error::Result;
use crate::path::{VfsPath, VfsPathBuf};
use std::cmp::Ordering;
use std::sync::Arc;

/// One path at which two snapshots differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateDifference {
    /// Only the newer one has the path.
    Added(VfsPathBuf, Arc<StateNode>),
    /// Both have it, with another version or as another kind: what the older one has, and the newer.
    Changed(VfsPathBuf, Arc<StateNode>, Arc<StateNode>),
    /// Only the older one has the path.
    Removed(VfsPathBuf, Arc<StateNode>),
}

impl StateDifference {
    /// Returns the path.
    pub fn path(&self) -> &VfsPath {
        match self {
            Self::Added(path, _) | Self::Changed(path, ..) | Self::Removed(path, _) => path,
        }
    }

    /// Returns what the older snapshot has.
    pub fn older(&self) -> Option<&Arc<StateNode>> {
        match self {
            Self::Added(..) => None,
            Self::Changed(_, older, _) | Self::Removed(_, older) => Some(older),
        }
    }

    /// Returns what the newer snapshot has.
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

/// Returns up to `limit` differences in path order, behind a path.
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
            // Either source will do for what both have.
            Err((0, miss)) => older.load(miss).await?,
            Err((_, miss)) => newer.load(miss).await?,
        }
    }
    Ok(found)
}

/// What stands at one path in the older tree and in the newer one.
type Pair<'t> = (Option<&'t Row>, Option<&'t Row>);

/// Goes to the next path at which the trees may differ. A miss names the side it was met on.
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
            // What begins first is entered first, and of two that begin together the higher: so that both come to stand before
            // the same page.
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

/// A place in one of the trees, before a row or before a page that was not entered.
struct Side<'t> {
    root: Option<&'t Arc<Link>>,
    above: Vec<(&'t [Child], usize)>,
    rows: &'t [Row],
    /// How far above the leaves the page ahead is; that of the root is known once it was entered.
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

    /// Passes over the page ahead.
    fn pass(&mut self) {
        self.root = None;
        if let Some((_, next)) = self.above.last_mut() {
            *next += 1;
        }
        self.leave();
    }

    /// Takes the row ahead.
    fn take(&mut self) -> Option<&'t Row> {
        let (row, rest) = self.rows.split_first()?;
        self.rows = rest;
        self.leave();
        Some(row)
    }

    /// Enters the page ahead.
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

    /// Leaves the pages of which nothing is ahead.
    fn leave(&mut self) {
        while self.rows.is_empty() && self.above.last().is_some_and(|(children, next)| *next >= children.len()) {
            self.above.pop();
            self.height += 1;
        }
    }
}

/// Returns how far above the leaves a page is.
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
    use crate::ops::Version;
    use crate::path::VfsPath;
    use jiff::Timestamp;

    /// Two forks of a thread count their versions on from one number: what the same number had in both was taken for the same.
    #[tokio::test]
    async fn forks_that_gave_one_version_to_other_contents_differ() {
        let of = |content: &'static str| {
            let node = StateNode::file(content, Version::new(7), Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
            let path = VfsPath::parse("/a").expect("a legal path").into_owned();
            StateSnapshot::from_nodes([(path, node)], Version::new(7)).expect("one file")
        };
        let differences = |other| async move { of("one").differences(&of(other), None, 10).await.expect("in memory").len() };
        assert_eq!((differences("two").await, differences("longer").await, differences("one").await), (1, 1, 0));
    }
}
