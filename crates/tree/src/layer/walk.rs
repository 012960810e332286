//! A walk of everything beneath a directory, a page at a time.

use crate::backend::Backend;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Entry, Failure, GlobOptions};
use treehold_core::path::{VfsPath, VfsPathBuf};

/// The number of entries per page.
const PAGE: usize = 10_000;

/// What a walk visits.
#[derive(Debug)]
pub(super) enum Met {
    /// A file, a link or, if requested, a directory.
    Entry(Entry),
    /// A path that could not be examined.
    Failure(Failure),
}

/// The progress of a walk. It outlives an abandoned call, and another call can continue it.
#[derive(Debug)]
pub(super) struct Walk {
    path: VfsPathBuf,
    options: GlobOptions,
    is_done: bool,
}

impl Walk {
    /// Starts a walk of everything beneath a directory, including hidden and ignored names.
    pub(super) fn new(path: &VfsPath, directories: bool) -> Self {
        let options = GlobOptions::new("**").with_directories(directories).with_hidden(true).with_ignored(true).with_limit(PAGE);
        Self { path: path.to_owned(), options, is_done: false }
    }

    /// Returns the next page in path order; `None` at the end. Abandoned or failed calls leave the progress unchanged.
    ///
    /// # Errors
    /// The errors of [`Backend::glob`]; [`Internal`](ErrorKind::Internal) when the tree returns a cursor that makes no progress.
    pub(super) async fn next_page<B: Backend + ?Sized>(&mut self, backend: &B) -> Result<Option<impl Iterator<Item = Met> + use<B>>> {
        if self.is_done {
            return Ok(None);
        }
        let page = backend.glob(&self.path, &self.options).await?;
        match &page.truncated {
            None => self.is_done = true,
            // A page may end before its first entry, for example in a tree that bounds its work. The cursor still makes progress.
            Some(cut) => {
                let cursor = VfsPathBuf::parse(&cut.cursor).ok().filter(|cursor| self.options.start_after.as_ref() < Some(cursor));
                self.options.start_after = Some(cursor.ok_or_else(|| self.stuck())?);
            }
        }
        Ok(Some(page.failures.into_iter().map(Met::Failure).chain(page.entries.into_iter().map(Met::Entry))))
    }

    fn stuck(&self) -> Error {
        let message = format!("a search of `{}` was truncated and returned no cursor; search its parts one by one", self.path);
        Error::new(ErrorKind::Internal, message).at(&self.path)
    }
}

/// Passes everything beneath a directory to `visit`, page by page in path order, including hidden and ignored names.
///
/// # Errors
/// The errors of [`Walk::next_page`], and that of `visit`, which ends the walk.
pub(super) async fn walk<B: Backend + ?Sized>(
    backend: &B,
    path: &VfsPath,
    directories: bool,
    mut visit: impl FnMut(Met) -> Result<()> + Send,
) -> Result<()> {
    let mut walk = Walk::new(path, directories);
    while let Some(page) = walk.next_page(backend).await? {
        for met in page {
            treehold_core::work::step().await;
            visit(met)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{BackendExt, StateBackend};
    use crate::forward_backend;
    use async_trait::async_trait;
    use std::fmt;
    use treehold_core::ops::{GlobResult, Review, Sight, Truncation, TruncationReason};

    /// A tree whose searches examine one name at a time and return it only if it is a file.
    #[derive(Debug)]
    struct Halting {
        inner: StateBackend,
        is_stuck: bool,
    }

    impl fmt::Display for Halting {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Halting")
        }
    }

    #[async_trait]
    impl Backend for Halting {
        forward_backend! { self => self.inner; capabilities, stat, read, ls, grep, search, apply }

        async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
            let mut page = self.inner.glob(path, &options.clone().with_directories(true).with_limit(1)).await?;
            if let Some(entry) = page.entries.first().filter(|entry| entry.is_directory()).cloned() {
                let cursor = if self.is_stuck { String::new() } else { entry.path.to_string() };
                page.entries.clear();
                page.truncated = Some(Truncation { reason: TruncationReason::Limit, cursor });
            }
            Ok(page)
        }

        async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
            Ok(review.open())
        }
    }

    /// Regression: a walk ended at the first page without entries, even if it was truncated.
    #[tokio::test]
    async fn truncated_page_without_entries_does_not_end_the_walk() {
        let mut tree = Halting { inner: StateBackend::new(), is_stuck: false };
        for path in ["/a", "/d/e/b", "/f/c"] {
            tree.write(path, "x").await.expect("written");
        }
        let mut found = Vec::new();
        let mut visit = |met| {
            match met {
                Met::Entry(entry) => found.push(entry.path.to_string()),
                Met::Failure(failure) => panic!("{failure:?}"),
            }
            Ok(())
        };
        walk(&tree, VfsPath::ROOT, false, &mut visit).await.expect("walked");
        assert_eq!(found, ["/a", "/d/e/b", "/f/c"]);
        tree.is_stuck = true;
        let error = walk(&tree, VfsPath::ROOT, false, |_| Ok(())).await.expect_err("the link has no target");
        assert_eq!(error.kind(), ErrorKind::Internal);
    }
}
