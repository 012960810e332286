//! Where two trees in memory differ.

use super::StateNode;
use super::tree::{Branch, ChildrenIter, Tree};
use crate::path::VfsPathBuf;
use imbl::ordmap::{DiffItem, DiffIter};
use imbl::shared_ptr::DefaultSharedPtr;
use std::sync::Arc;

/// One path at which two snapshots differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateDifference<'s> {
    /// Only the newer one has the path.
    Added(VfsPathBuf, &'s Arc<StateNode>),
    /// Both have it, with other content or as another kind: what the older one has, and the newer.
    Changed(VfsPathBuf, &'s Arc<StateNode>, &'s Arc<StateNode>),
    /// Only the older one has the path.
    Removed(VfsPathBuf, &'s Arc<StateNode>),
}

/// The differences of two trees in path order. Pages of children that both share are passed over.
pub(super) struct Differences<'s> {
    levels: Vec<Level<'s>>,
    path: VfsPathBuf,
}

struct Level<'s> {
    children: Side<'s>,
    /// Whether the path ends with a child of this level.
    is_named: bool,
}

enum Side<'s> {
    Both(DiffIter<'s, 's, Arc<str>, Arc<StateNode>, DefaultSharedPtr>),
    Older(ChildrenIter<'s>),
    Newer(ChildrenIter<'s>),
}

/// A name with what the older and the newer tree have there.
type Pair<'s> = (&'s str, Option<&'s Arc<StateNode>>, Option<&'s Arc<StateNode>>);

impl<'s> Differences<'s> {
    /// Compares an older tree with a newer one.
    pub(super) fn of(older: &'s Tree, newer: &'s Tree) -> Self {
        let mut differences = Self { levels: Vec::new(), path: VfsPathBuf::root() };
        differences.enter(Some(older.root()), Some(newer.root()));
        differences
    }

    /// Goes on with what lies beneath the node met last, as the older and the newer tree have it.
    fn enter(&mut self, older: Option<&'s Branch>, newer: Option<&'s Branch>) {
        let children = match (older, newer) {
            (Some(older), Some(newer)) => Side::Both(older.children().diff(newer.children())),
            (Some(older), None) => Side::Older(older.children_after(None)),
            (None, Some(newer)) => Side::Newer(newer.children_after(None)),
            (None, None) => return,
        };
        self.levels.push(Level { children, is_named: false });
    }
}

impl<'s> Side<'s> {
    fn next(&mut self) -> Option<Pair<'s>> {
        match self {
            Self::Both(both) => both.next().map(|item| -> Pair<'s> {
                match item {
                    DiffItem::Add(name, newer) => (name, None, Some(newer)),
                    DiffItem::Update { old: (name, older), new: (_, newer) } => (name, Some(older), Some(newer)),
                    DiffItem::Remove(name, older) => (name, Some(older), None),
                }
            }),
            Self::Older(older) => older.next().map(|(name, node)| -> Pair<'s> { (name, Some(node), None) }),
            Self::Newer(newer) => newer.next().map(|(name, node)| -> Pair<'s> { (name, None, Some(node)) }),
        }
    }
}

impl<'s> Iterator for Differences<'s> {
    type Item = StateDifference<'s>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let level = self.levels.last_mut()?;
            if level.is_named {
                self.path.pop();
            }
            let Some((name, older, newer)) = level.children.next() else {
                self.levels.pop();
                continue;
            };
            level.is_named = true;
            self.path.push(name);
            self.enter(older.and_then(|node| node.branch()), newer.and_then(|node| node.branch()));
            return Some(match (older, newer) {
                (Some(older), Some(newer)) if older.is_same(newer) => continue,
                (Some(older), Some(newer)) => StateDifference::Changed(self.path.clone(), older, newer),
                (Some(older), None) => StateDifference::Removed(self.path.clone(), older),
                (None, Some(newer)) => StateDifference::Added(self.path.clone(), newer),
                (None, None) => continue,
            });
        }
    }
}
