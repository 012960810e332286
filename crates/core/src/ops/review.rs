//! What happens to files past `apply`, as layers are asked about it.

use super::OpKind;
use crate::path::{VfsPath, VfsPathBuf};

/// What stands at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// A directory.
    Directory,
    /// A file of so many bytes.
    File(u64),
}

impl Standing {
    /// Returns the size in bytes of a file; none of a directory.
    pub fn size_bytes(self) -> Option<u64> {
        match self {
            Self::Directory => None,
            Self::File(size_bytes) => Some(size_bytes),
        }
    }
}

/// One path that is another before and after.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// The path.
    pub path: VfsPathBuf,
    /// What stands there before; none for nothing.
    pub before: Option<Standing>,
    /// What stands there after; none for nothing.
    pub after: Option<Standing>,
}

impl Difference {
    /// Makes a difference.
    pub fn new(path: impl Into<VfsPathBuf>, before: Option<Standing>, after: Option<Standing>) -> Self {
        Self { path: path.into(), before, after }
    }

    /// Tells whether a directory stands there, before or after.
    pub fn is_directory(&self) -> bool {
        self.before == Some(Standing::Directory) || self.after == Some(Standing::Directory)
    }

    /// Returns the operations that would make the difference.
    pub fn operations(&self) -> &'static [OpKind] {
        let is_file = |standing| matches!(standing, Some(Standing::File(_)));
        match (self.before, self.after) {
            (None, None) | (Some(Standing::Directory), Some(Standing::Directory)) => &[],
            (_, None) => &[OpKind::Delete],
            (None, Some(Standing::Directory)) => &[OpKind::CreateDir],
            (before, Some(Standing::File(_))) if before.is_none() || is_file(before) => &[OpKind::Write],
            (_, Some(Standing::Directory)) => &[OpKind::Delete, OpKind::CreateDir],
            (_, Some(Standing::File(_))) => &[OpKind::Delete, OpKind::Write],
        }
    }
}

/// Why layers are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReviewPurpose {
    /// The differences are about to be made: what may not be changed refuses all of them.
    Change,
    /// The differences are told of: of each is said how much of it may be shown. Nothing is refused.
    Show,
    /// A person is about to be asked whether the differences may be made: what needs their word is noted, so that they are asked about all of
    /// it at once. Nothing is refused.
    Consent,
    /// What is told of is made of everything at and beneath the directory, such as a count of it: refused where a part is kept back.
    Whole,
}

/// How much of a path may be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sight {
    /// Nothing: it is not there.
    Hidden,
    /// That it is there, and not what it holds.
    Named,
    /// All of it.
    Open,
}

/// What is about to happen to the files of a tree, or is told of them, by another way than its own operations: by a restore, a merge or a
/// fork of the state beneath, by what is written past an overlay, by what a difference between two checkpoints shows.
///
/// `Backend::review` asks every layer about it, from the outermost in.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Review {
    /// Why layers are asked.
    pub purpose: ReviewPurpose,
    /// The directory that is the root of what is replaced or told of; every difference lies at or beneath it.
    pub at: VfsPathBuf,
    /// What differs.
    pub differences: Vec<Difference>,
}

impl Review {
    /// Asks about differences at and beneath `at`.
    pub fn new(purpose: ReviewPurpose, at: impl Into<VfsPathBuf>, differences: Vec<Difference>) -> Self {
        Self { purpose, at: at.into(), differences }
    }

    /// Answers as a tree that keeps nothing back.
    pub fn open(&self) -> Vec<Sight> {
        vec![Sight::Open; self.differences.len()]
    }

    /// Returns the same review with every path mapped, such as into the paths of a tree below.
    #[must_use]
    pub fn map_paths(&self, mut map: impl FnMut(&VfsPath) -> VfsPathBuf) -> Self {
        let at = map(&self.at);
        let differences = self.differences.iter().map(|one| Difference { path: map(&one.path), ..one.clone() }).collect();
        Self { purpose: self.purpose, at, differences }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_name_the_operations_that_make_them() {
        let (file, other, directory) = (Some(Standing::File(1)), Some(Standing::File(2)), Some(Standing::Directory));
        let made = |before, after| Difference::new(VfsPathBuf::root(), before, after).operations().to_vec();
        assert_eq!(made(None, file), [OpKind::Write]);
        assert_eq!(made(file, other), [OpKind::Write]);
        assert_eq!(made(file, None), [OpKind::Delete]);
        assert_eq!(made(directory, None), [OpKind::Delete]);
        assert_eq!(made(None, directory), [OpKind::CreateDir]);
        assert_eq!(made(file, directory), [OpKind::Delete, OpKind::CreateDir]);
        assert_eq!(made(directory, file), [OpKind::Delete, OpKind::Write]);
        assert!(made(directory, directory).is_empty() && made(None, None).is_empty());
    }
}
