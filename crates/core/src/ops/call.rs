//! One call, as a layer sees it.

use super::{Change, OpKind};
use crate::path::VfsPath;

/// One operation as a layer sees it before it runs.
#[derive(Debug, Clone, Copy)]
pub struct Op<'a> {
    /// The operation. A batch of one change has that change's kind.
    pub kind: OpKind,
    /// The path; for a batch, that of its first change.
    pub path: &'a VfsPath,
    /// The changes of a batch; empty for reads.
    pub changes: &'a [Change],
}

impl<'a> Op<'a> {
    /// Makes the call of a read operation.
    pub const fn read(kind: OpKind, path: &'a VfsPath) -> Self {
        Self { kind, path, changes: &[] }
    }

    /// Makes the call of `apply`.
    pub fn apply(changes: &'a [Change]) -> Self {
        match changes {
            [] => Self { kind: OpKind::Apply, path: VfsPath::ROOT, changes },
            [one] => Self { kind: one.kind(), path: one.path(), changes },
            [first, ..] => Self { kind: OpKind::Apply, path: first.path(), changes },
        }
    }
}
