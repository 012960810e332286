//! The state of a live thread as a tree, as sessions mount it.

use super::{LiveThread, ThreadDurability, unsaved_until};
use async_trait::async_trait;
use std::fmt;
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_core::ops::{ApplyOptions, Capabilities, Change, Changed, FileRead, ReadOptions, Review, Sight};
use treehold_core::path::VfsPath;
use treehold_store::Outbox;
use treehold_tree::backend::Backend;
use treehold_tree::checkpoint::PutOptions;
use treehold_tree::forward_backend;

/// An upper bound on the memory that a change takes besides its content, for the budget.
const CHANGE_BYTES: u64 = 512;

/// The tree of a live thread, as mounted by sessions.
#[derive(Debug, Clone)]
pub(crate) struct ThreadTree(pub(crate) Arc<LiveThread>);

impl fmt::Display for ThreadTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait]
impl Backend for ThreadTree {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
    }

    forward_backend! { self => self.0.state().await?; stat, ls, glob, grep, search }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        self.0.state().await?.read(path, options).await
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        let state = self.0.state().await?;
        let outbox = Outbox::of(&options.extensions);
        // Queued before a save can see the changes, so that none is saved without its rows.
        let hold = |changed: &[Changed], version| {
            if let Some(checkpointer) = &self.0.checkpointer {
                self.0.held.hold(&outbox, self.0.place(&**checkpointer), version, changed);
            }
        };
        let changed = state.apply_then(changes, hold).await?;
        let content: u64 = changed.iter().map(|changed| changed.size_bytes).sum();
        self.0.hold(content + changes.len() as u64 * CHANGE_BYTES);
        if self.0.durability == ThreadDurability::Sync {
            let saved = self.0.save(PutOptions::new()).await;
            saved.map_err(|error| unsaved_until(error, "the next save or checkpoint saves it"))?;
        }
        Ok(changed)
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}
