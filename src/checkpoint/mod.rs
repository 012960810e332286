//! What keeps the state of threads between sessions.
//!
//! [`Threads`] holds one saved state for each thread: the whole [`StateSnapshot`] and the version it was saved as. A save names
//! the version it started from, so of two sessions on one thread the second to save is told, and nothing is overwritten unseen.
//! [`StoreThreads`] keeps them in any [`Store`](crate::Store). A state that cannot be read is an error, never an empty thread.

use crate::backend::StateSnapshot;
use crate::error::Result;
use crate::ops::Version;
use crate::scope::Scope;
use async_trait::async_trait;
use jiff::Timestamp;
use serde::Serialize;
use std::fmt;

mod record;
mod store;

pub use store::{RESERVED_NAMESPACE, StoreThreads};

/// The saved states of threads, by tenant, user and thread of a scope.
///
/// A scope without a tenant or user is its own: it never meets the threads of one that has them.
#[async_trait]
pub trait Threads: Send + Sync + fmt::Display + fmt::Debug {
    /// Returns what was saved last of the scope's thread; none when nothing was.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a scope without a thread,
    /// [`Corrupt`](crate::ErrorKind::Corrupt) for a state that cannot be read back, and those of the store.
    async fn load(&self, scope: &Scope) -> Result<Option<SavedThread>>;

    /// Saves the state of the scope's thread if what was saved last still has the version `expected`, none for nothing.
    /// Returns the version it is saved as. Takes effect as a whole or not at all.
    ///
    /// Cost: one round trip with the content of all files.
    ///
    /// # Errors
    /// [`Conflict`](crate::ErrorKind::Conflict) when it does not, [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a
    /// scope without a thread, and those of the store.
    async fn save(&self, scope: &Scope, state: &StateSnapshot, expected: Option<Version>) -> Result<Version>;

    /// Returns a page of the saved threads of the scope's tenant and user, by id. Reads no content.
    ///
    /// # Errors
    /// Those of the store.
    async fn list(&self, scope: &Scope, start_after: Option<&str>, limit: usize) -> Result<ThreadPage>;

    /// Removes the saved state of the scope's thread.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) when nothing is saved of it, and as [`Threads::load`].
    async fn delete(&self, scope: &Scope) -> Result<()>;
}

/// The state of a thread as it was saved.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SavedThread {
    /// The state.
    pub state: StateSnapshot,
    /// The version it was saved as.
    pub version: Version,
}

/// A saved thread in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ThreadInfo {
    /// The id.
    pub thread: String,
    /// The version it was saved as.
    pub version: Version,
    /// How many files and directories it holds.
    pub entries: u64,
    /// The size in bytes of all files together.
    pub size_bytes: u64,
    /// When it was saved first.
    pub created_at: Timestamp,
    /// When it was saved last.
    pub saved_at: Timestamp,
}

/// A page of saved threads.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct ThreadPage {
    /// The threads by id.
    pub threads: Vec<ThreadInfo>,
    /// What to give as `start_after` for the rest; none when there is no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}
