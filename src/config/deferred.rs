//! A mount that could not be opened. It exists, but operations in it fail.
//!
//! A missing directory or token must not disable the other routes. Each call tries to open the mount again, so it works as soon as the
//! cause is fixed.

use async_trait::async_trait;
use std::fmt;
use std::sync::{Arc, OnceLock};
use treehold_core::error::{Error, Result};
use treehold_core::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions,
    ReadOptions, Review, SearchOptions, SearchResult, Sight,
};
use treehold_core::path::VfsPath;
use treehold_tree::backend::Backend;

type Open = Box<dyn Fn() -> Result<Arc<dyn Backend>> + Send + Sync>;

/// A tree that is opened by the first call that succeeds in opening it.
pub(super) struct Deferred {
    open: Open,
    tree: OnceLock<Arc<dyn Backend>>,
}

impl Deferred {
    /// Opens a tree now if possible, otherwise on use.
    pub(super) fn open(open: impl Fn() -> Result<Arc<dyn Backend>> + Send + Sync + 'static) -> Arc<dyn Backend> {
        match open() {
            Ok(tree) => tree,
            Err(_) => Arc::new(Self { open: Box::new(open), tree: OnceLock::new() }),
        }
    }

    fn tree(&self) -> Result<&Arc<dyn Backend>> {
        match self.tree.get() {
            Some(tree) => Ok(tree),
            None => {
                // The failure concerns the root, whatever path was requested.
                let tree = (self.open)().map_err(|error| error.at(VfsPath::ROOT))?;
                Ok(self.tree.get_or_init(|| tree))
            }
        }
    }
}

impl fmt::Display for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tree.get() {
            Some(tree) => tree.fmt(f),
            None => f.pad("Unopened"),
        }
    }
}

impl fmt::Debug for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deferred").field("tree", &self.tree.get()).finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for Deferred {
    fn capabilities(&self) -> Capabilities {
        self.tree().map_or_else(|_: Error| Capabilities::new(), |tree| tree.capabilities())
    }

    async fn stat(&self, path: &VfsPath) -> Result<Entry> {
        self.tree()?.stat(path).await
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        self.tree()?.read(path, options).await
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        self.tree()?.ls(path, options).await
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        self.tree()?.glob(path, options).await
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        self.tree()?.grep(path, options).await
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        self.tree()?.search(path, options).await
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        self.tree()?.apply(changes, options).await
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        self.tree()?.review(review).await
    }
}
