//! The tree of one checkpoint.

use super::{At, Checkpoint, Checkpointer, Opened};
use crate::backend::{Backend, StateSnapshot};
use async_trait::async_trait;
use std::fmt;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions,
    ReadOptions, Review, SearchOptions, SearchResult, Sight,
};
use treehold_core::path::VfsPath;
use treehold_core::scope::Scope;

/// The state of a thread at one checkpoint: a read-only backend that can be mounted like any other.
///
/// Opened at the latest checkpoint, it stays at that one. Pages are loaded only as they are accessed.
#[derive(Debug, Clone)]
pub struct HistoryBackend {
    checkpoint: Checkpoint,
    state: StateSnapshot,
}

impl HistoryBackend {
    /// Opens a checkpoint of the scope's thread.
    ///
    /// Cost: one round trip for the latest checkpoint, two for an id.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when the thread has no such checkpoint, and the errors of the store.
    pub async fn open(checkpointer: &dyn Checkpointer, scope: &Scope, at: At) -> Result<Self> {
        let Some(Opened { checkpoint, state, .. }) = checkpointer.open(scope, at).await? else {
            let thread = scope.thread.as_deref().unwrap_or_default();
            let message = match at {
                At::Latest => format!("thread `{thread}` has no checkpoint yet; make one first"),
                At::Id(id) => format!("thread `{thread}` has no checkpoint `{id}`; list them to see those there are"),
            };
            return Err(Error::new(ErrorKind::NotFound, message));
        };
        Ok(Self { checkpoint, state })
    }

    /// Returns the checkpoint.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Returns the tree.
    pub fn state(&self) -> &StateSnapshot {
        &self.state
    }
}

impl fmt::Display for HistoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "History({})", self.checkpoint.id)
    }
}

#[async_trait]
impl Backend for HistoryBackend {
    fn capabilities(&self) -> Capabilities {
        self.state.capabilities()
    }

    async fn stat(&self, path: &VfsPath) -> Result<Entry> {
        self.state.stat(path).await
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        self.state.read(path, options).await
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        self.state.ls(path, options).await
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        self.state.glob(path, options).await
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        self.state.grep(path, options).await
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        self.state.search(path, options).await
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        self.state.apply(changes, options).await
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}
