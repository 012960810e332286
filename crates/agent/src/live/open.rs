//! The open threads, and their shared memory budget.

use super::LiveThread;
use parking_lot::Mutex;
use std::sync::Arc;
use treehold_core::scope::Scope;
use treehold_core::shared::Shared;

/// The open threads of a workspace, under a budget of bytes.
#[derive(Debug)]
pub(crate) struct OpenThreads {
    open: Mutex<Shared<ThreadKey, LiveThread>>,
    bytes_max: u64,
}

/// The identity of a thread.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ThreadKey {
    tenant: Option<String>,
    user: Option<String>,
    thread: Option<String>,
}

impl OpenThreads {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { open: Mutex::default(), bytes_max }
    }

    /// Returns the open thread of a scope, or inserts a new one.
    pub(crate) fn get_or_insert(&self, scope: &Scope, make: impl FnOnce() -> Arc<LiveThread>) -> Arc<LiveThread> {
        let key = ThreadKey { tenant: scope.tenant.clone(), user: scope.user.clone(), thread: scope.thread.clone() };
        self.open.lock().get_or_insert(key, make)
    }

    /// Returns the number of open threads.
    pub(crate) fn count(&self) -> usize {
        self.open.lock().count()
    }

    /// Unloads the states of idle threads while all together exceed the budget, least recently used first, saving each before. The thread
    /// in use stays, and so does one that cannot be saved.
    ///
    /// Cost: grows with the number of open threads, not with the size of their states.
    pub(crate) async fn relieve(&self, in_use: &Arc<LiveThread>) {
        let mut open = self.open.lock().held();
        let mut total: u64 = open.iter().map(|thread| thread.weight().0).sum();
        if total <= self.bytes_max {
            return;
        }
        open.sort_by_key(|thread| thread.weight().1);
        for thread in open.into_iter().filter(|thread| !Arc::ptr_eq(thread, in_use)) {
            let weight = thread.weight().0;
            match thread.put_down().await {
                Ok(true) => total = total.saturating_sub(weight),
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "the state of an idle thread cannot be saved and stays in memory"),
            }
            if total <= self.bytes_max {
                return;
            }
        }
    }
}
