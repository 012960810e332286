//! The operations of a server's tree as a backend.

use super::question::RemoteTree;
use super::{no_answer, page};
use async_trait::async_trait;
use std::fmt;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions,
    OpKind, ReadOptions, Review, SearchOptions, SearchResult, Sight, StatOptions,
};
use treehold_core::path::VfsPath;
use treehold_tree::backend::Backend;

impl fmt::Display for RemoteTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Remote({})", self.peer())
    }
}

#[async_trait]
impl Backend for RemoteTree {
    fn capabilities(&self) -> Capabilities {
        self.declared()
    }

    async fn stat(&self, path: &VfsPath, options: &StatOptions) -> Result<Entry> {
        self.stat_once(path, options).await.map_err(|error| self.about(error, path, OpKind::Stat))
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        if path.is_root() {
            return Err(Error::is_directory(path));
        }
        self.read_once(path, options).await.map_err(|error| self.about(error, path, OpKind::Read))
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        page::ls(self, path, options).await.map_err(|error| self.about(error, path, OpKind::Ls))
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        page::glob(self, path, options).await.map_err(|error| self.about(error, path, OpKind::Glob))
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        page::grep(self, path, options).await.map_err(|error| self.about(error, path, OpKind::Grep))
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        page::search(self, path, options).await.map_err(|error| self.about(error, path, OpKind::Search))
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        let Some(first) = changes.first() else { return Ok(Vec::new()) };
        self.apply_once(changes, options).await.map_err(|error| {
            let error = match error.change() {
                // An index outside the batch would mislead the caller about which change failed.
                Some(index) if index >= changes.len() || error.applied() > index => {
                    no_answer(self.peer(), "an error about another batch").with_unknown_effect()
                }
                _ => error,
            };
            let at_fault = error.change().and_then(|index| changes.get(index)).unwrap_or(first);
            let kind = if changes.len() == 1 || error.change().is_some() { at_fault.kind() } else { OpKind::Apply };
            // A refusal without an index concerns the request, so attribute it to the first change.
            let is_of_tree = !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Deadline | ErrorKind::Internal);
            let error = match (error.change(), is_of_tree, changes.len()) {
                (None, true, 1) => error.in_batch(0, 0),
                _ => error,
            };
            self.about(error, at_fault.path(), kind)
        })
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}
