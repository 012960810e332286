//! A look at everything beneath a directory, a page at a time.

use crate::backend::Backend;
use crate::error::Result;
use crate::ops::{Entry, Failure, GlobOptions};
use crate::path::VfsPath;

/// How many entries one page of a walk holds.
const PAGE: usize = 10_000;

/// What a walk meets.
#[derive(Debug)]
pub(super) enum Met {
    /// A file, a link or, when asked for, a directory.
    Entry(Entry),
    /// What could not be looked at.
    Failure(Failure),
}

/// Hands everything beneath a directory to `visit`, page by page in path order, hidden and ignored names included.
///
/// # Errors
/// Those of [`Backend::glob`], and what `visit` returns, which ends the walk.
pub(super) async fn walk<B: Backend>(
    backend: &B,
    path: &VfsPath,
    directories: bool,
    mut visit: impl FnMut(Met) -> Result<()> + Send,
) -> Result<()> {
    let mut options = GlobOptions::new("**").with_directories(directories).with_hidden(true).with_ignored(true).with_limit(PAGE);
    loop {
        let page = backend.glob(path, &options).await?;
        options.start_after = page.entries.last().map(|entry| entry.path.clone());
        page.failures.into_iter().map(Met::Failure).chain(page.entries.into_iter().map(Met::Entry)).try_for_each(&mut visit)?;
        if page.truncated.is_none() || options.start_after.is_none() {
            return Ok(());
        }
    }
}
