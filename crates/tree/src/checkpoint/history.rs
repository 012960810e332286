//! The tree of one checkpoint.

use super::{At, Checkpoint, Checkpointer, Opened};
use crate::backend::{Backend, StateSnapshot};
use crate::forward_backend;
use async_trait::async_trait;
use std::fmt;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Review, Sight};
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
                At::Id(id) => format!("thread `{thread}` has no checkpoint `{id}`; list its checkpoints for a valid id"),
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
    forward_backend! { self => self.state; capabilities, stat, read, ls, glob, grep, search, apply }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}
