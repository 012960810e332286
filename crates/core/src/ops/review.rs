//! Reviews by layers of changes that bypass `apply`.

use super::OpKind;
use crate::path::{VfsPath, VfsPathBuf};

/// What exists at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// A directory.
    Directory,
    /// A file of this size in bytes.
    File(u64),
}

impl Standing {
    /// Returns the size of a file in bytes; `None` for a directory.
    pub fn size_bytes(self) -> Option<u64> {
        match self {
            Self::Directory => None,
            Self::File(size_bytes) => Some(size_bytes),
        }
    }
}

/// One path that differs between before and after.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// The path.
    pub path: VfsPathBuf,
    /// What exists there before; `None` for nothing.
    pub before: Option<Standing>,
    /// What exists there after; `None` for nothing.
    pub after: Option<Standing>,
}

impl Difference {
    /// Makes a difference.
    pub fn new(path: impl Into<VfsPathBuf>, before: Option<Standing>, after: Option<Standing>) -> Self {
        Self { path: path.into(), before, after }
    }

    /// Returns whether a directory exists there, before or after.
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

/// Why layers review changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReviewPurpose {
    /// The differences are about to be made. One that may not be made refuses all of them.
    Change,
    /// It is about to be decided by which of several paths of the same files the differences are made. Rules and read-only trees refuse as
    /// for [`Change`](Self::Change), but nobody is asked: what needs approval is refused only if nobody can give it. The change itself is
    /// reviewed afterwards.
    Permit,
    /// The differences are about to be shown. The answer says how much of each may be shown; nothing is refused.
    Show,
    /// A person is about to be asked whether the differences may be made. The answer collects what needs consent, so that one question
    /// covers all of it; nothing is refused.
    Consent,
    /// Something derived from everything at and beneath the directory, such as a count, is about to be shown. Refused if a part is hidden.
    Whole,
}

/// How much of a path may be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sight {
    /// Nothing: the path looks absent.
    Hidden,
    /// Its existence, but not its content.
    Named,
    /// Everything.
    Open,
}

/// Differences in a tree's files that are made or shown without the tree's operations: by a restore, a merge or a fork of the
/// state, by writes that bypass an overlay, or by a comparison of two checkpoints.
///
/// `Backend::review` asks every layer about them, the outermost first.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Review {
    /// Why layers review changes.
    pub purpose: ReviewPurpose,
    /// The directory at the root of the differences; every one lies at or beneath it.
    pub at: VfsPathBuf,
    /// The differences.
    pub differences: Vec<Difference>,
    /// Whether the tree shows the result already, as that of an overlay does before its changes are written to the lower tree. Who may
    /// make the differences is reviewed all the same, but the tree does not grow by them.
    pub is_shown: bool,
    /// Whether each difference stands for any differences at and beneath its path, because nobody knows them: the state cannot be read. A
    /// layer that could refuse one of them refuses the review.
    pub covers_beneath: bool,
}

impl Review {
    /// Creates a review of differences at and beneath `at`.
    pub fn new(purpose: ReviewPurpose, at: impl Into<VfsPathBuf>, differences: Vec<Difference>) -> Self {
        Self { purpose, at: at.into(), differences, is_shown: false, covers_beneath: false }
    }

    /// Sets whether the tree shows the result already.
    #[must_use]
    pub fn with_is_shown(mut self, is_shown: bool) -> Self {
        self.is_shown = is_shown;
        self
    }

    /// Sets whether each difference stands for any differences at and beneath its path.
    #[must_use]
    pub fn with_covers_beneath(mut self, covers_beneath: bool) -> Self {
        self.covers_beneath = covers_beneath;
        self
    }

    /// Returns the answer of a tree that hides nothing.
    pub fn open(&self) -> Vec<Sight> {
        vec![Sight::Open; self.differences.len()]
    }

    /// Returns the same review with every path mapped, such as into the paths of a tree below.
    #[must_use]
    pub fn map_paths(&self, mut map: impl FnMut(&VfsPath) -> VfsPathBuf) -> Self {
        let at = map(&self.at);
        let differences = self.differences.iter().map(|one| Difference { path: map(&one.path), ..one.clone() }).collect();
        Self { at, differences, ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_review_keeps_all_but_its_paths() {
        let review = Review::new(ReviewPurpose::Change, VfsPathBuf::root(), Vec::new());
        for review in [review.clone().with_is_shown(true), review.with_covers_beneath(true)] {
            let mapped = review.map_paths(|path| VfsPathBuf::parse("/m").expect("a legal path").concat(path));
            assert_eq!(mapped, Review { at: VfsPathBuf::parse("/m").expect("a legal path"), ..review });
        }
    }

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
