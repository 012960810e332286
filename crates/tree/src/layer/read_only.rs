//! A tree that refuses changes.

use super::{Layer, LayerName, Next, Reply};
use async_trait::async_trait;
use treehold_core::error::{Error, Result};
use treehold_core::ops::{Capabilities, Change, Op, Review, ReviewPurpose};
use treehold_core::path::VfsPath;

/// Refuses every change with `read_only`, naming its path, and declares the tree not writable. Reads pass through.
///
/// An empty batch changes nothing and passes. Cost: none.
///
/// ```
/// use treehold_tree::layer::{Layered, ReadOnly};
/// use treehold_core::ErrorKind;
/// use treehold_tree::backend::{BackendExt, StateBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let state = std::sync::Arc::new(StateBackend::new());
/// state.write("/a.md", "one").await?;
/// let tree = Layered::new(ReadOnly::new(), state);
/// assert_eq!(tree.to_string(), "ReadOnly(State)");
/// assert_eq!(tree.read_text("/a.md").await?, "one");
/// assert_eq!(tree.write("/a.md", "two").await.unwrap_err().kind(), ErrorKind::ReadOnly);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadOnly {
    _private: (),
}

impl ReadOnly {
    /// Creates the layer.
    pub fn new() -> Self {
        Self::default()
    }
}

#[async_trait]
impl Layer for ReadOnly {
    fn name(&self) -> LayerName {
        LayerName::new("ReadOnly")
    }

    async fn around<T: Reply>(&self, op: Op<'_>, next: Next<'_, T>) -> Result<T> {
        match op.changes.first() {
            Some(change) => Err(Error::read_only(changed_path(change)).during(op.kind).in_batch(0, 0)),
            None => next.run().await,
        }
    }

    fn review(&self, review: &Review) -> Result<()> {
        match review.differences.first() {
            Some(first) if matches!(review.purpose, ReviewPurpose::Change | ReviewPurpose::Permit) => Err(Error::read_only(&first.path)),
            _ => Ok(()),
        }
    }

    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        inner.with_writable(false)
    }
}

/// Returns the path that would change: for a copy its target, because the source stays.
fn changed_path(change: &Change) -> &VfsPath {
    match change {
        Change::Copy { to, .. } => to,
        other => other.path(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use treehold_core::error::ErrorKind;
    use treehold_core::ops::Changed;
    use treehold_core::path::VfsPathBuf;

    fn path(text: &str) -> VfsPathBuf {
        VfsPathBuf::parse(text).expect("a legal path")
    }

    #[tokio::test]
    async fn refusal_names_the_path_that_would_change() {
        let delete = Change::Delete { path: path("/a"), recursive: false, expect: None };
        let copy = Change::Copy { from: path("/a"), to: path("/b"), overwrite: false };
        let rename = Change::Rename { from: path("/a"), to: path("/b"), overwrite: false };
        for (change, named) in [(delete, "/a"), (copy, "/b"), (rename, "/a")] {
            let run = || -> futures::future::BoxFuture<'_, Result<Vec<Changed>>> { panic!("the tree is not asked") };
            let error = ReadOnly::new().around(Op::apply(&[change]), Next::new(&run)).await.expect_err("refused");
            assert_eq!((error.kind(), error.path().map(VfsPath::as_str)), (ErrorKind::ReadOnly, Some(named)));
            assert_eq!((error.change(), error.applied()), (Some(0), 0));
        }
    }
}
