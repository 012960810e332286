//! The table of mounts: finds the longest prefix of a path by whole segments. No I/O, generic over the mounted value.
//!
//! A trie of segments: a lookup hashes each segment once, down to the deepest mount, independent of the number of
//! mounts. The nodes between the root and the mounts are directories of the tree even if no backend has them.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use treehold_core::path::{VfsPath, VfsPathBuf};

/// A table of mounts by prefix; the default is the mount at `/`.
#[derive(Debug)]
pub(super) struct Router<T> {
    table: Arc<Table>,
    /// What is mounted, in the order of the table's mounts.
    values: Vec<T>,
}

/// The prefixes of mounts.
///
/// Invariants: mounts are in path order, so those at or below a node form one range. `nodes[0]` is `/` and has mount 0.
#[derive(Debug)]
pub(super) struct Table {
    nodes: Vec<Node>,
    mounts: Vec<Mounted>,
}

#[derive(Debug)]
struct Mounted {
    prefix: VfsPathBuf,
    node: usize,
}

/// A directory that is a mount or leads to one.
#[derive(Debug)]
pub(super) struct Node {
    path: VfsPathBuf,
    mount: Option<usize>,
    /// The mounts at and below this node.
    mounts: Range<usize>,
    /// The child nodes by name; `by_name` has the same ones.
    children: Vec<usize>,
    by_name: HashMap<Box<str>, usize>,
}

/// The result of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resolved {
    /// The mount with the longest prefix.
    pub(super) mount: usize,
    /// The node of exactly this path, if it is a mount or leads to one.
    pub(super) node: Option<usize>,
}

impl Table {
    /// Builds the table. `prefixes` must not contain `/`.
    pub(super) fn new(prefixes: BTreeSet<VfsPathBuf>) -> Self {
        let mut table = Self { nodes: vec![Node::new(VfsPathBuf::root())], mounts: Vec::with_capacity(prefixes.len() + 1) };
        table.insert(VfsPathBuf::root());
        // In path order, every node's range and children grow at the end.
        for prefix in prefixes {
            table.insert(prefix);
        }
        table
    }

    fn insert(&mut self, prefix: VfsPathBuf) {
        let mount = self.mounts.len();
        let mut node = 0;
        self.nodes[node].mounts.end = mount + 1;
        let mut path = VfsPathBuf::root();
        for segment in prefix.segments() {
            path = path.child(segment).expect("a segment of a legal path is legal");
            node = match self.nodes[node].by_name.get(segment) {
                Some(child) => *child,
                None => self.insert_child(node, segment, &path, mount),
            };
            self.nodes[node].mounts.end = mount + 1;
        }
        self.nodes[node].mount = Some(mount);
        self.mounts.push(Mounted { prefix, node });
    }

    fn insert_child(&mut self, parent: usize, name: &str, path: &VfsPath, first_mount: usize) -> usize {
        let child = self.nodes.len();
        let mut node = Node::new(path.to_owned());
        node.mounts.start = first_mount;
        self.nodes.push(node);
        self.nodes[parent].children.push(child);
        self.nodes[parent].by_name.insert(name.into(), child);
        child
    }

    /// Returns the number of mounts, with the default.
    pub(super) fn len(&self) -> usize {
        self.mounts.len()
    }
}

impl<T> Router<T> {
    /// Mounts values at the prefixes of a table: the default, then the others in path order. There must be one for each.
    pub(super) fn new(table: Arc<Table>, values: Vec<T>) -> Self {
        debug_assert_eq!(values.len(), table.len());
        Self { table, values }
    }

    /// Finds the mount of a path. Cost: one hash per segment that the path shares with mounts; does not allocate.
    pub(super) fn find(&self, path: &VfsPath) -> Resolved {
        let (mut node, mut mount) = (0, 0);
        for segment in path.segments() {
            match self.table.nodes[node].by_name.get(segment) {
                Some(child) => node = *child,
                None => return Resolved { mount, node: None },
            }
            mount = self.table.nodes[node].mount.unwrap_or(mount);
        }
        Resolved { mount, node: Some(node) }
    }

    /// Returns a mount.
    pub(super) fn mount(&self, mount: usize) -> &T {
        &self.values[mount]
    }

    /// Returns the prefix of a mount.
    pub(super) fn prefix(&self, mount: usize) -> &VfsPath {
        &self.table.mounts[mount].prefix
    }

    /// Returns every mount in path order, the default first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&VfsPath, &T)> {
        self.table.mounts.iter().map(|mounted| &*mounted.prefix).zip(&self.values)
    }

    /// Returns a node.
    pub(super) fn node(&self, node: usize) -> &Node {
        &self.table.nodes[node]
    }

    /// Returns the children of a node whose names come after `name`, in name order. Cost: one binary search, then one
    /// step per child.
    pub(super) fn children_after(&self, node: usize, name: Option<&str>) -> impl Iterator<Item = &Node> {
        let children = &self.table.nodes[node].children;
        let start = name.map_or(0, |name| children.partition_point(|child| self.table.nodes[*child].path.name() <= name));
        children[start..].iter().map(|child| &self.table.nodes[*child])
    }

    /// Returns the child of a node with this name.
    pub(super) fn child(&self, node: usize, name: &str) -> Option<&Node> {
        self.table.nodes[node].by_name.get(name).map(|child| &self.table.nodes[*child])
    }

    /// Returns the children of a node that lie towards a path: all of them if the path is at or above the node,
    /// otherwise the one on the way, if any.
    pub(super) fn children_towards(&self, node: usize, path: &VfsPath) -> &[usize] {
        let node = &self.table.nodes[node];
        match path.strip_prefix(&node.path).and_then(|rest| rest.segments().next()) {
            None => &node.children,
            Some(name) => node.by_name.get(name).map_or(&[], std::slice::from_ref),
        }
    }

    /// Returns the mounts below a node that are not inside another of these, in path order. Cost: one step each.
    pub(super) fn outermost_beneath(&self, node: usize) -> impl Iterator<Item = usize> {
        let node = &self.table.nodes[node];
        let mut next = node.mounts.start + usize::from(node.mount.is_some());
        let end = node.mounts.end;
        std::iter::from_fn(move || {
            let mount = (next < end).then_some(next)?;
            next = self.table.nodes[self.table.mounts[mount].node].mounts.end;
            Some(mount)
        })
    }
}

impl Node {
    fn new(path: VfsPathBuf) -> Self {
        Self { path, mount: None, mounts: 0..0, children: Vec::new(), by_name: HashMap::new() }
    }

    /// Returns the path.
    pub(super) fn path(&self) -> &VfsPath {
        &self.path
    }

    /// Returns the mount at this node; `None` for a directory that only leads to mounts.
    pub(super) fn mount(&self) -> Option<usize> {
        self.mount
    }

    /// Returns the mounts at and below the node, in path order.
    pub(super) fn mounts(&self) -> Range<usize> {
        self.mounts.clone()
    }

    /// Returns whether there are mounts below the node.
    pub(super) fn is_above_mounts(&self) -> bool {
        !self.children.is_empty()
    }

    /// Returns the child nodes in name order.
    pub(super) fn children(&self) -> &[usize] {
        &self.children
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> VfsPathBuf {
        VfsPathBuf::parse(text).expect("a legal path")
    }

    fn router(prefixes: &[&str]) -> Router<()> {
        let table = Table::new(prefixes.iter().map(|prefix| path(prefix)).collect());
        Router::new(Arc::new(table), vec![(); prefixes.len() + 1])
    }

    #[test]
    fn longest_whole_segment_prefix_wins() {
        let router = router(&["/memories", "/a/b", "/a/b/c/d", "/mem", "/a-b"]);
        for (asked, prefix, is_node) in [
            ("/", "/", true),
            ("/x", "/", false),
            ("/memories", "/memories", true),
            ("/memories/x/y", "/memories", false),
            ("/memorie", "/", false),
            ("/memoriesx", "/", false),
            ("/mem/a", "/mem", false),
            ("/a", "/", true),
            ("/a/x", "/", false),
            ("/a/b", "/a/b", true),
            ("/a/b/c", "/a/b", true),
            ("/a/b/c/x", "/a/b", false),
            ("/a/b/c/d/e", "/a/b/c/d", false),
            ("/a-b/c", "/a-b", false),
        ] {
            let place = router.find(&path(asked));
            assert_eq!(router.prefix(place.mount), &*path(prefix), "{asked}");
            assert_eq!(place.node.map(|node| router.node(node).path().to_owned()), is_node.then(|| path(asked)), "{asked}");
        }
    }

    #[test]
    fn node_lists_the_mounts_below_it() {
        let router = router(&["/a/b", "/a/b/c/d", "/a/b/c/e", "/a/x", "/a-b", "/z"]);
        let names = |mounts: &mut dyn Iterator<Item = usize>| mounts.map(|mount| router.prefix(mount).to_string()).collect::<Vec<_>>();
        let beneath = |text: &str| {
            let node = router.find(&path(text)).node.expect("a node");
            (names(&mut router.node(node).mounts()), names(&mut router.outermost_beneath(node)))
        };
        let all = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(beneath("/"), (all(&["/", "/a/b", "/a/b/c/d", "/a/b/c/e", "/a/x", "/a-b", "/z"]), all(&["/a/b", "/a/x", "/a-b", "/z"])));
        assert_eq!(beneath("/a"), (all(&["/a/b", "/a/b/c/d", "/a/b/c/e", "/a/x"]), all(&["/a/b", "/a/x"])));
        assert_eq!(beneath("/a/b"), (all(&["/a/b", "/a/b/c/d", "/a/b/c/e"]), all(&["/a/b/c/d", "/a/b/c/e"])));
        assert_eq!(beneath("/a/b/c"), (all(&["/a/b/c/d", "/a/b/c/e"]), all(&["/a/b/c/d", "/a/b/c/e"])));
        assert_eq!(beneath("/z"), (all(&["/z"]), all(&[])));
    }

    #[test]
    fn path_below_a_node_leads_to_one_child() {
        let router = router(&["/a/x", "/a/y/z", "/b"]);
        let towards = |node: usize, text: &str| -> Vec<String> {
            router.children_towards(node, &path(text)).iter().map(|child| router.node(*child).path().to_string()).collect()
        };
        let above = router.find(&path("/a")).node.expect("a node");
        assert_eq!(towards(0, "/"), ["/a", "/b"]);
        assert_eq!(towards(0, "/a/y/z/deep"), ["/a"]);
        assert_eq!(towards(0, "/c"), Vec::<String>::new());
        assert_eq!(towards(above, "/a"), ["/a/x", "/a/y"]);
        assert_eq!(towards(above, "/"), ["/a/x", "/a/y"], "a path above the node leads to all children");
        assert_eq!(towards(above, "/a/y"), ["/a/y"]);
    }

    #[test]
    fn children_after_a_name_are_in_name_order() {
        let router = router(&["/b/x", "/a-b", "/a/y", "/a/z", "/c"]);
        let after = |name: Option<&str>| router.children_after(0, name).map(|node| node.path().name().to_owned()).collect::<Vec<_>>();
        assert_eq!(after(None), ["a", "a-b", "b", "c"]);
        assert_eq!(after(Some("a")), ["a-b", "b", "c"]);
        assert_eq!(after(Some("aa")), ["b", "c"]);
        assert_eq!(after(Some("c")), [""; 0]);
        assert!(router.child(0, "b").is_some_and(|node| node.mount().is_none() && node.is_above_mounts()));
    }
}
