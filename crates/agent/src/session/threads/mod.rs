//! The threads of calls: opened at their head for each piece of work, and saved before its answer.
//!
//! Work uses the thread as last saved by any process. Nothing stays in memory in between, and concurrent work shares no memory: none sees or
//! builds on another's unsaved changes. A save has the version of the opened head as its condition, so the head acts as a fencing token: a
//! late save from a stalled process is refused, and its work is repeated on the current head.
//!
//! The session stays open until it is saved if the thread is not saved by each call (it lives in memory only, or is saved at the end) or if
//! its save failed. After a failed save, the thread is saved before its next work does anything else.
//!
//! [`Turn`] decides whether work is repeated, set aside or kept; everything else here is built on it.

mod call;
#[cfg(test)]
mod tests;
mod tree;
mod turn;
mod writes;

pub use tree::ThreadTree;
pub use turn::Turn;
pub use writes::Writes;

use super::{Done, Session, Target, ThreadDurability};
use crate::workspace::Workspace;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::OwnedMutexGuard;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{ApplyOptions, Change, Changed};
use treehold_core::scope::Scope;
use treehold_core::shared::Shared;
use treehold_tree::checkpoint::Checkpointer;

/// A workspace's threads, as work accesses them: opened at the head, saved on the condition of that head, repeated if others saved meanwhile.
///
/// The command line, HTTP and MCP use it for each command and call. Work is repeated only if it changed nothing but the state of its
/// thread. Otherwise its state is set aside as a thread of its own, and the answer is a conflict.
///
/// ```
/// use std::sync::Arc;
/// use treehold_agent::session::Threads;
/// use treehold_agent::workspace::Workspace;
/// use treehold_core::Scope;
/// use treehold_core::ops::{ApplyOptions, Change, WriteMode};
/// use treehold_core::path::VfsPathBuf;
/// use treehold_store::MemoryStore;
/// use treehold_tree::checkpoint::StoreCheckpointer;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let checkpointer = StoreCheckpointer::new(Arc::new(MemoryStore::new()));
/// let threads = Threads::new(Workspace::builder().checkpointer(checkpointer).build());
/// let scope = Scope::new().with_thread("conversation-1");
/// let write = Change::Write { path: VfsPathBuf::parse("/plan.md")?, content: "1. ask\n".into(), mode: WriteMode::Overwrite };
///
/// let done = threads.apply(&scope, &[write], &ApplyOptions::new()).await?;
/// assert!(done.unsaved.is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Threads {
    workspace: Workspace,
    /// The sessions whose state is not saved.
    kept: Mutex<HashMap<Scope, Session>>,
    /// The turns of writers to a thread: a save that lost its race is repeated, and must not undo what another call did.
    turns: Mutex<Shared<Scope, tokio::sync::Mutex<()>>>,
    writes: Writes,
    /// Whether the process ends with its work, so that nothing can be saved later.
    is_of_command: bool,
}

impl Threads {
    /// Keeps the threads of a workspace.
    pub fn new(workspace: Workspace) -> Self {
        Self { workspace, kept: Mutex::default(), turns: Mutex::default(), writes: Writes::default(), is_of_command: false }
    }

    /// Keeps the threads of a process that ends with its work: each piece of work is saved, whatever the workspace's
    /// [`ThreadDurability`], and none is kept to be saved later.
    pub fn of_command(workspace: Workspace) -> Self {
        Self { is_of_command: true, ..Self::new(workspace) }
    }

    /// Returns the write notifier.
    pub fn writes(&self) -> &Writes {
        &self.writes
    }

    /// Returns the workspace.
    pub fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    /// Returns the checkpointer.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) in a workspace that saves no threads.
    pub fn checkpointer(&self) -> Result<Arc<dyn Checkpointer>> {
        self.workspace.checkpointer().cloned().ok_or_else(|| Error::unsupported("this workspace does not save threads"))
    }

    /// Opens a session of a thread, as it was last saved.
    pub async fn session(&self, scope: &Scope) -> Result<Session> {
        if self.is_kept(scope) {
            let _turn = self.turn(scope).await;
            self.settle(scope).await;
        }
        self.current(scope).await
    }

    /// Opens a session of a thread: the kept one, or a new one that no other call shares. A shared session would show an outdated state to
    /// every call until the last of them ends, whatever other processes save.
    async fn current(&self, scope: &Scope) -> Result<Session> {
        let kept = self.kept.lock().get(scope).cloned();
        match kept {
            Some(session) => Ok(session),
            None if self.is_saved_at_the_end() => self.workspace.session(scope.clone()).await,
            None => self.workspace.session_apart(scope.clone()).await,
        }
    }

    /// Saves the state that an earlier call could not save; that call reported the failure. If others have saved the thread since, sets the
    /// state aside as another thread. A state that still cannot be saved stays in memory.
    async fn settle(&self, scope: &Scope) {
        let Some(session) = self.kept.lock().get(scope).cloned() else { return };
        match session.save().await {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Conflict => {
                let error = turn::set_aside(&session, error).await;
                tracing::warn!(%error, "a thread that could not be saved");
                if error.kind() != ErrorKind::Conflict {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a thread is not saved yet and stays in memory");
                return;
            }
        }
        self.kept.lock().remove(scope);
    }

    /// Begins work that may change a thread: opens it at its head. Only work that can change the thread waits for its turn. If other work
    /// changes it after all, the condition of its save protects the changes of others, as it does between processes.
    ///
    /// # Errors
    /// The errors of [`Workspace::session`].
    pub async fn begin(&self, scope: &Scope, target: &Target) -> Result<Turn<'_>> {
        Turn::begin(self, scope, target).await
    }

    /// Works on a thread and saves it. Returns the work's answer, and the reason why its changes are not saved if the save failed. Repeats
    /// the work on the new head if others saved the thread meanwhile.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) when others saved the thread meanwhile and the work cannot be repeated, and the errors of opening
    /// a session.
    pub async fn work<'w, T>(&self, scope: &Scope, target: &Target, work: impl Fn(Session) -> BoxFuture<'w, T>) -> Result<Done<T>> {
        let mut turn = self.begin(scope, target).await?;
        loop {
            let answer = work(turn.session().clone()).await;
            if let Some(done) = turn.save(Done::saved(answer)).await? {
                return Ok(done);
            }
        }
    }

    /// Works on a thread and saves it before returning.
    ///
    /// # Errors
    /// The errors of the work, and those of [`Threads::work`]. Otherwise the errors of the store: the work is done but not saved, and the
    /// error says so. It stays in memory, and is saved before the next call or set aside.
    pub async fn lasting<'w, T>(&self, scope: &Scope, target: &Target, work: impl Fn(Session) -> BoxFuture<'w, Result<T>>) -> Result<T> {
        self.work(scope, target, work).await?.into_saved()?
    }

    /// Works on the history of a thread, which saves the thread itself. A conflict of the work is one with another writer's save.
    ///
    /// # Errors
    /// The errors of [`Threads::lasting`].
    pub async fn lasting_history<'w, T>(&self, scope: &Scope, work: impl Fn(Session) -> BoxFuture<'w, Result<T>>) -> Result<T> {
        let mut turn = self.begin(scope, &Target::Thread).await?;
        loop {
            let (answer, unsaved) = match work(turn.session().clone()).await {
                Err(error) if error.kind() == ErrorKind::Conflict => (None, Some(error)),
                answer => (Some(answer), None),
            };
            let Some(done) = turn.save(Done { answer, unsaved }).await? else { continue };
            let missing = || Error::new(ErrorKind::Internal, "work on a history ended without a result");
            return done.into_saved()?.ok_or_else(missing)?;
        }
    }

    /// Applies a batch of changes to the tree of a thread, and saves the thread. The result says why it is not saved if that failed.
    ///
    /// # Errors
    /// The errors of the tree, and those of [`Threads::work`].
    pub async fn apply(&self, scope: &Scope, changes: &[Change], options: &ApplyOptions) -> Result<Done<Vec<Changed>>> {
        let work = |session: Session| -> BoxFuture<'_, _> { Box::pin(async move { session.backend().apply(changes, options).await }) };
        let Done { answer, unsaved } = self.work(scope, &Target::of_changes(changes), work).await?;
        Ok(Done { answer: answer?, unsaved })
    }

    /// Waits for this call's turn to change a thread.
    async fn turn(&self, scope: &Scope) -> OwnedMutexGuard<()> {
        let turn = self.turns.lock().get_or_insert(scope.clone(), Arc::default);
        turn.lock_owned().await
    }

    /// Returns whether an unsaved session of a thread is kept.
    fn is_kept(&self, scope: &Scope) -> bool {
        !self.is_saved_at_the_end() && self.kept.lock().contains_key(scope)
    }

    /// Keeps a session after work that only reads, if its state exists nowhere else.
    fn keep_unless_saved(&self, scope: &Scope, session: Session) {
        if self.is_saved_at_the_end() {
            self.kept.lock().entry(scope.clone()).or_insert(session);
        }
    }

    fn is_saved_at_the_end(&self) -> bool {
        self.workspace.checkpointer().is_none() || self.workspace.durability() == ThreadDurability::Exit && !self.is_of_command
    }

    /// Saves the kept threads.
    pub async fn close(&self) -> Result<()> {
        let kept = std::mem::take(&mut *self.kept.lock());
        let mut first = Ok(());
        for session in kept.into_values() {
            if let Err(error) = session.save().await {
                let error = turn::set_aside(&session, error).await;
                first = first.and(Err(error));
            }
        }
        first
    }
}
