//! The context in which a mount is opened.

use super::past::Past;
use crate::live::{LiveThread, Mounted, ThreadTree};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use treehold_core::scope::Scope;
use treehold_tree::backend::Backend;
use treehold_tree::checkpoint::Checkpoint;
use treehold_tree::layer::Quota;

/// The context in which a mount is opened: a scope, and the state of its thread.
#[derive(Debug)]
pub struct Opening<'a> {
    pub(super) scope: &'a Scope,
    thread: &'a Arc<LiveThread>,
    /// The moment of a read-only tree of the past.
    pub(super) past: Option<&'a Past>,
    /// The state as a tree, and whether the mount's function requested it.
    pub(super) state: Arc<dyn Backend>,
    took_state: AtomicBool,
}

impl<'a> Opening<'a> {
    pub(super) fn new(scope: &'a Scope, thread: &'a Arc<LiveThread>) -> Self {
        let state: Arc<dyn Backend> = Arc::new(ThreadTree(thread.clone()));
        Self { scope, thread, past: None, state, took_state: AtomicBool::new(false) }
    }

    /// Opens mounts as they were.
    pub(super) fn of_past(scope: &'a Scope, thread: &'a Arc<LiveThread>, past: &'a Past) -> Self {
        Self { scope, thread, past: Some(past), state: past.state(), took_state: AtomicBool::new(false) }
    }

    /// Returns the caller's scope.
    pub fn scope(&self) -> &Scope {
        self.scope
    }

    /// Returns the state of the thread as a tree: the live one, or a read-only one at a checkpoint.
    pub fn state(&self) -> Arc<dyn Backend> {
        self.took_state.store(true, Ordering::Relaxed);
        self.state.clone()
    }

    /// Classifies the mount that was opened last.
    pub(super) fn mounted(&self, is_told_as_state: bool, backend: &Arc<dyn Backend>) -> Mounted {
        match self.took_state.swap(false, Ordering::Relaxed) {
            true if is_told_as_state || Arc::ptr_eq(backend, &self.state) => Mounted::State,
            true => Mounted::Mixed,
            false => Mounted::Other,
        }
    }

    /// Returns a number that is unique among the open states.
    pub fn state_id(&self) -> usize {
        Arc::as_ptr(self.thread) as usize
    }

    /// Returns whether mounts are opened as they were at an earlier moment.
    pub fn is_past(&self) -> bool {
        self.past.is_some()
    }

    /// Returns the checkpoint of a historical state; `None` for the live one, and for a moment without one.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        self.past.and_then(Past::checkpoint)
    }

    /// Makes a quota around the thread's state recount whenever [`Session::reload`](crate::session::Session::reload) replaces the state.
    pub fn recount_on_reload<B: Backend + 'static>(&self, quota: &Arc<Quota<B>>) {
        let quota: Weak<Quota<B>> = Arc::downgrade(quota);
        self.thread.on_reload(quota);
    }
}
