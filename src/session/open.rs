//! The threads that are open, and the memory that they may take together.

use super::LiveThread;
use crate::scope::Scope;
use crate::shared::Shared;
use parking_lot::Mutex;
use std::sync::Arc;

/// The open threads of a workspace, under a budget of bytes.
#[derive(Debug)]
pub(crate) struct OpenThreads {
    open: Mutex<Shared<ThreadKey, LiveThread>>,
    bytes_max: u64,
}

/// What tells one thread from another.
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

    /// Returns the thread of a scope, made if it is not open.
    pub(crate) fn get_or_insert(&self, scope: &Scope, make: impl FnOnce() -> Arc<LiveThread>) -> Arc<LiveThread> {
        let key = ThreadKey { tenant: scope.tenant.clone(), user: scope.user.clone(), thread: scope.thread.clone() };
        self.open.lock().get_or_insert(key, make)
    }

    /// Returns how many threads are open now.
    pub(crate) fn count(&self) -> usize {
        self.open.lock().count()
    }

    /// Puts down the states of threads that nobody works with, the longest unused first and each saved before, as long as all
    /// together are over the budget. The one that is in use stays; one that cannot be saved stays too.
    ///
    /// Cost: grows with the number of open threads, not with what they hold.
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
                Err(error) => tracing::warn!(%error, "the state of an idle thread cannot be saved, and stays in memory"),
            }
            if total <= self.bytes_max {
                return;
            }
        }
    }
}
