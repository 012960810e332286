//! A thread's tree for work without end: each call sees the thread as it is saved, and each change is saved before it returns.

use super::Threads;
use async_trait::async_trait;
use std::fmt;
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_core::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions,
    ReadOptions, Review, SearchOptions, SearchResult, Sight, StatOptions,
};
use treehold_core::path::VfsPath;
use treehold_core::scope::Scope;
use treehold_tree::backend::Backend;

/// The tree of a thread, current at each call.
///
/// A [`Session`](super::super::Session) shows the state that it opened. This tree opens the thread for each call instead, so it shows what
/// other processes saved meanwhile, behind the same layers.
///
/// Cost: that of opening a session, which reads only what the call needs; a change is one commit more where it touches the state.
#[derive(Debug)]
pub struct ThreadTree {
    threads: Arc<Threads>,
    scope: Scope,
    capabilities: Capabilities,
    shown: String,
}

impl Threads {
    /// Returns the tree of a thread for work without end.
    ///
    /// # Errors
    /// The errors of [`Threads::session`].
    pub async fn tree(self: &Arc<Self>, scope: Scope) -> Result<ThreadTree> {
        let tree = self.session(&scope).await?.backend();
        Ok(ThreadTree { threads: self.clone(), scope, capabilities: tree.capabilities(), shown: tree.to_string() })
    }
}

impl ThreadTree {
    async fn current(&self) -> Result<Arc<dyn Backend>> {
        Ok(self.threads.session(&self.scope).await?.backend())
    }
}

impl fmt::Display for ThreadTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

#[async_trait]
impl Backend for ThreadTree {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    async fn stat(&self, path: &VfsPath, options: &StatOptions) -> Result<Entry> {
        self.current().await?.stat(path, options).await
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        self.current().await?.read(path, options).await
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        self.current().await?.ls(path, options).await
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        self.current().await?.glob(path, options).await
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        self.current().await?.grep(path, options).await
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        self.current().await?.search(path, options).await
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        self.threads.apply(&self.scope, changes, options).await?.into_saved()
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        self.current().await?.review(review).await
    }
}
