//! One live thread: its tree, its state, and how it is saved.
//!
//! A [`Session`] is a handle that clones cheaply. All sessions of one thread in a [`Workspace`](crate::Workspace) share its
//! state: what one writes at `/` the others read at once. The state is read from where it is saved by the first call that
//! needs it, and kept in memory until the last session is dropped. Every door calls [`Session::call`].

mod thread;

pub(crate) use thread::LiveThread;

use crate::backend::Backend;
use crate::error::Result;
use crate::scope::Scope;
use crate::tools::{ToolCall, ToolOutput};
use std::fmt;
use std::sync::Arc;

/// A handle on one thread.
///
/// Dropping it saves nothing: call [`Session::save`], or [`Session::close`] at the end.
///
/// ```
/// use std::sync::Arc;
/// use stratafs::checkpoint::StoreThreads;
/// use stratafs::{BackendExt, MemoryStore, Scope, Workspace};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> stratafs::Result<()> {
/// let threads = StoreThreads::new(Arc::new(MemoryStore::new()));
/// let workspace = Workspace::builder().threads(threads).build();
/// let scope = Scope::new().with_thread("conversation-1");
///
/// let session = workspace.session(scope.clone()).await?;
/// session.backend().write("/plan.md", "1. ask\n").await?;
/// session.close().await?;
///
/// let next = workspace.session(scope).await?;
/// assert_eq!(next.backend().read_text("/plan.md").await?, "1. ask\n");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Session {
    scope: Scope,
    thread: Arc<LiveThread>,
    backend: Arc<dyn Backend>,
}

impl Session {
    pub(crate) fn new(scope: Scope, thread: Arc<LiveThread>, backend: Arc<dyn Backend>) -> Self {
        Self { scope, thread, backend }
    }

    /// Returns who calls.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Returns the tree: all tiers, behind all layers.
    pub fn backend(&self) -> Arc<dyn Backend> {
        self.backend.clone()
    }

    /// Runs one tool call. A call that fails answers with an output too.
    pub async fn call(&self, call: ToolCall) -> ToolOutput {
        call.run(&*self.backend).await
    }

    /// Saves the thread's state if it changed since it was read or saved, and tells whether it did.
    ///
    /// A save that has begun goes on when the future is dropped. Without a place to save threads in it does nothing.
    ///
    /// # Errors
    /// [`Conflict`](crate::ErrorKind::Conflict) when another process saved the thread meanwhile: nothing is overwritten, and
    /// this session keeps its state. [`Session::save_as`] saves it as another thread, [`Session::reload`] drops it for what
    /// was saved. Otherwise those of the store.
    pub async fn save(&self) -> Result<bool> {
        self.thread.clone().save().await
    }

    /// Saves the thread's state as another thread, which must not exist yet.
    ///
    /// # Errors
    /// [`AlreadyExists`](crate::ErrorKind::AlreadyExists) when it does, and those of the store.
    pub async fn save_as(&self, thread: &str) -> Result<()> {
        self.thread.save_as(thread).await
    }

    /// Makes the thread's state what was saved last. Changes since then are dropped, for every session of the thread.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn reload(&self) -> Result<()> {
        self.thread.reload().await
    }

    /// Saves the thread's state and gives up the handle.
    ///
    /// # Errors
    /// Those of [`Session::save`]; other sessions of the thread still hold its state then.
    pub async fn close(self) -> Result<()> {
        self.save().await.map(drop)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("scope", &self.scope).field("backend", &self.backend).finish_non_exhaustive()
    }
}
