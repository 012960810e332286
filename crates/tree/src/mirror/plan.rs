//! What to do at a path, from what is known of its three sides: what was last mirrored, the tree, and the directory. Pure.

use crate::backend::HostNode;
use blake3::Hash;
use treehold_core::ops::{EntryKind, Version};

/// What was last mirrored at a path: both sides had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    File(KnownFile),
    Directory,
}

/// A file as it was last mirrored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KnownFile {
    pub(super) hash: Hash,
    pub(super) size_bytes: u64,
    /// The version of the tree's file with this content; `None` if it must be read to know.
    pub(super) tree: Option<Version>,
    /// The stamp of the directory's file with this content; `None` if it must be read to know.
    pub(super) host: Option<Version>,
}

impl Known {
    pub(super) fn file(&self) -> Option<&KnownFile> {
        match self {
            Self::File(file) => Some(file),
            Self::Directory => None,
        }
    }
}

/// A file or directory of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TreeNode {
    File { version: Option<Version>, size_bytes: u64 },
    Directory,
}

impl TreeNode {
    pub(super) fn is_file(&self) -> bool {
        matches!(self, Self::File { .. })
    }
}

/// What to do at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Both sides are as they were.
    Nothing,
    /// Both sides no longer have the path.
    Forget,
    /// Both sides have the directory.
    Adopt,
    /// Write the tree's file to the directory.
    PutHost,
    /// Write the directory's file to the tree.
    PutTree,
    /// Both sides may have changed: read them, and merge.
    Both,
    /// Remove the directory's file.
    RemoveHost,
    /// Remove the tree's file.
    RemoveTree,
    MakeHostDirectory,
    MakeTreeDirectory,
    RemoveHostDirectory,
    RemoveTreeDirectory,
    /// Remove what the directory has here, with everything beneath, and start over with the tree's.
    ClearHost,
    /// One side has a file here and the other a directory.
    Clash,
    /// The directory has a node here that cannot be written back.
    Leave,
}

/// Returns whether the tree's file differs from what was last mirrored, as far as versions say.
pub(super) fn is_tree_changed(base: Option<&Known>, version: Option<Version>) -> bool {
    base.and_then(Known::file).is_none_or(|base| base.tree.is_none() || base.tree != version)
}

/// Returns whether the directory's file differs from what was last mirrored, as far as stamps say.
pub(super) fn is_host_changed(base: Option<&Known>, host: &HostNode) -> bool {
    base.and_then(Known::file).is_none_or(|base| base.host != Some(host.stamp))
}

/// Decides for a mirror that is overwritten with what the tree has.
pub(super) fn one_way(base: Option<&Known>, tree: Option<&TreeNode>, host: Option<&HostNode>) -> Step {
    match (tree, host) {
        (None, None) => Step::Forget,
        (None, Some(_)) => Step::ClearHost,
        (Some(TreeNode::Directory), None) => Step::MakeHostDirectory,
        (Some(TreeNode::Directory), Some(node)) => match node.kind {
            EntryKind::Directory if !node.is_writable => Step::Adopt,
            EntryKind::Directory => Step::MakeHostDirectory,
            _ => Step::ClearHost,
        },
        (Some(TreeNode::File { .. }), None) => Step::PutHost,
        (Some(TreeNode::File { version, .. }), Some(node)) => match node.kind {
            EntryKind::Directory => Step::ClearHost,
            EntryKind::File if !node.is_writable && !is_tree_changed(base, *version) && !is_host_changed(base, node) => Step::Nothing,
            _ => Step::PutHost,
        },
    }
}

/// Decides for a mirror whose changes are written back.
pub(super) fn two_way(base: Option<&Known>, tree: Option<&TreeNode>, host: Option<&HostNode>) -> Step {
    let Some(node) = host else {
        return match (tree, base) {
            (None, _) => Step::Forget,
            (Some(TreeNode::Directory), Some(Known::Directory)) => Step::RemoveTreeDirectory,
            (Some(TreeNode::Directory), _) => Step::MakeHostDirectory,
            (Some(TreeNode::File { version, .. }), Some(Known::File(_))) => {
                if is_tree_changed(base, *version) {
                    Step::Both
                } else {
                    Step::RemoveTree
                }
            }
            (Some(TreeNode::File { .. }), _) => Step::PutHost,
        };
    };
    match (node.kind, tree) {
        (EntryKind::Symlink | EntryKind::Other, None) => Step::Leave,
        (EntryKind::Symlink | EntryKind::Other, Some(_)) => Step::ClearHost,
        (EntryKind::Directory, None) if base == Some(&Known::Directory) => Step::RemoveHostDirectory,
        (EntryKind::Directory, None) => Step::MakeTreeDirectory,
        (EntryKind::Directory, Some(TreeNode::Directory)) => Step::Adopt,
        (EntryKind::Directory, Some(TreeNode::File { .. })) | (EntryKind::File, Some(TreeNode::Directory)) => Step::Clash,
        (EntryKind::File, None) => match base {
            Some(Known::File(_)) if is_host_changed(base, node) => Step::Both,
            Some(Known::File(_)) => Step::RemoveHost,
            _ => Step::PutTree,
        },
        (EntryKind::File, Some(TreeNode::File { version, .. })) => match (is_tree_changed(base, *version), is_host_changed(base, node)) {
            (false, false) => Step::Nothing,
            (true, false) => Step::PutHost,
            (false, true) => Step::PutTree,
            (true, true) => Step::Both,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: TreeNode = TreeNode::File { version: Some(Version::new(1)), size_bytes: 1 };
    const NEWER: TreeNode = TreeNode::File { version: Some(Version::new(2)), size_bytes: 1 };

    fn known() -> Known {
        Known::File(KnownFile { hash: blake3::hash(b"a"), size_bytes: 1, tree: Some(Version::new(1)), host: Some(Version::new(7)) })
    }

    fn node(kind: EntryKind, stamp: u64) -> HostNode {
        HostNode { kind, size_bytes: 1, stamp: Version::new(stamp), is_writable: false, is_fresh: false }
    }

    #[test]
    fn two_way_step_depends_on_which_side_changed() {
        let (file, directory) = (known(), Known::Directory);
        let same = node(EntryKind::File, 7);
        let edited = node(EntryKind::File, 8);
        let host_directory = node(EntryKind::Directory, 7);
        let link = node(EntryKind::Symlink, 7);
        let cases = [
            (Some(&file), Some(&FILE), Some(&same), Step::Nothing),
            (Some(&file), Some(&NEWER), Some(&same), Step::PutHost),
            (Some(&file), Some(&FILE), Some(&edited), Step::PutTree),
            (Some(&file), Some(&NEWER), Some(&edited), Step::Both),
            (Some(&file), Some(&FILE), None, Step::RemoveTree),
            (Some(&file), Some(&NEWER), None, Step::Both),
            (Some(&file), None, Some(&same), Step::RemoveHost),
            (Some(&file), None, Some(&edited), Step::Both),
            (Some(&file), None, None, Step::Forget),
            (None, Some(&FILE), None, Step::PutHost),
            (None, None, Some(&same), Step::PutTree),
            (None, Some(&FILE), Some(&same), Step::Both),
            (None, Some(&TreeNode::Directory), None, Step::MakeHostDirectory),
            (None, None, Some(&host_directory), Step::MakeTreeDirectory),
            (Some(&directory), Some(&TreeNode::Directory), None, Step::RemoveTreeDirectory),
            (Some(&directory), None, Some(&host_directory), Step::RemoveHostDirectory),
            (Some(&file), Some(&FILE), Some(&host_directory), Step::Clash),
            (Some(&directory), Some(&TreeNode::Directory), Some(&same), Step::Clash),
            (Some(&file), Some(&FILE), Some(&link), Step::ClearHost),
            (None, None, Some(&link), Step::Leave),
        ];
        for (base, tree, host, step) in cases {
            assert_eq!(two_way(base, tree, host), step, "{base:?} {tree:?} {host:?}");
        }
    }

    #[test]
    fn one_way_step_leaves_only_what_the_tree_has() {
        let file = known();
        let writable = HostNode { is_writable: true, ..node(EntryKind::File, 7) };
        let cases = [
            (Some(&FILE), Some(node(EntryKind::File, 7)), Step::Nothing),
            (Some(&FILE), Some(node(EntryKind::File, 8)), Step::PutHost),
            (Some(&FILE), Some(writable), Step::PutHost),
            (Some(&FILE), Some(node(EntryKind::Symlink, 7)), Step::PutHost),
            (Some(&FILE), Some(node(EntryKind::Directory, 7)), Step::ClearHost),
            (Some(&FILE), None, Step::PutHost),
            (None, Some(node(EntryKind::Other, 7)), Step::ClearHost),
            (Some(&TreeNode::Directory), Some(node(EntryKind::Directory, 7)), Step::Adopt),
            (Some(&TreeNode::Directory), Some(node(EntryKind::Symlink, 7)), Step::ClearHost),
        ];
        for (tree, host, step) in cases {
            assert_eq!(one_way(Some(&file), tree, host.as_ref()), step, "{tree:?} {host:?}");
        }
    }
}
