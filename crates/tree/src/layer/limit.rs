//! A bound on concurrent calls.

use super::{Layer, LayerName, Next, Reply};
use async_trait::async_trait;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{Semaphore, SemaphorePermit};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Op;

/// Runs at most a fixed number of calls at once; the others wait, first come, first served.
///
/// Without a bound on waiting, a call waits as long as its caller does (wrap it in a [`Timeout`](super::Timeout)). With one, a call that
/// finds that many waiting is refused with `unavailable`, marked as without effect, so that [`Retry`](super::Retry) may repeat it. An
/// abandoned call leaves the queue at once.
///
/// The same limit may be used several times in one tree, such as around the whole and around a mount: a call that already holds a
/// permit passes the others, which it would otherwise block itself. A call that a layer in between moves to another task counts anew there.
///
/// Cost: one atomic operation and one small allocation for a call that need not wait.
#[derive(Debug)]
pub struct Limit {
    running: Semaphore,
    running_max: usize,
    waiting: AtomicUsize,
    waiting_max: Option<usize>,
}

impl Limit {
    /// Allows `running_max` concurrent calls; 0 counts as 1.
    pub fn new(running_max: usize) -> Self {
        let running_max = running_max.clamp(1, Semaphore::MAX_PERMITS);
        Self { running: Semaphore::new(running_max), running_max, waiting: AtomicUsize::new(0), waiting_max: None }
    }

    /// Refuses a call if this many are already waiting.
    #[must_use]
    pub fn with_waiting_max(mut self, waiting_max: usize) -> Self {
        self.waiting_max = Some(waiting_max);
        self
    }

    /// Returns an id that is unique among the limits that a call may hold while it borrows this one.
    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    async fn enter(&self, op: &Op<'_>) -> Result<SemaphorePermit<'_>> {
        // This is fair: a freed permit goes to the queue first, and never shows up here while others wait.
        if let Ok(permit) = self.running.try_acquire() {
            return Ok(permit);
        }
        let _place = Waiting::take(&self.waiting, self.waiting_max).ok_or_else(|| self.busy(op))?;
        self.running.acquire().await.map_err(|closed| Error::new(ErrorKind::Internal, "the limit was closed").with_source(closed))
    }

    fn busy(&self, op: &Op<'_>) -> Error {
        let message = format!(
            "the tree is busy: {} calls are running and {} are waiting, the most it allows; try again in a moment",
            self.running_max,
            self.waiting_max.unwrap_or(usize::MAX)
        );
        Error::new(ErrorKind::Unavailable, message).at(op.path).during(op.kind).without_effect()
    }
}

#[async_trait]
impl Layer for Limit {
    fn name(&self) -> LayerName {
        LayerName::new("Limit").with_settings(self.running_max)
    }

    async fn around<T: Reply>(&self, op: Op<'_>, next: Next<'_, T>) -> Result<T> {
        let mut held = HELD.try_with(Clone::clone).unwrap_or_default();
        if held.contains(&self.id()) {
            return next.run().await;
        }
        let _permit = self.enter(&op).await?;
        held.push(self.id());
        HELD.scope(held, next.run()).await
    }
}

tokio::task_local! {
    /// The limits of which the running call holds a permit.
    static HELD: Vec<usize>;
}

/// A position in the queue, given up when dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn take(waiting: &'a AtomicUsize, max: Option<usize>) -> Option<Self> {
        let place = Self(waiting);
        let before = waiting.fetch_add(1, Ordering::Relaxed);
        (before < max.unwrap_or(usize::MAX)).then_some(place)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{BackendExt, StateBackend};
    use crate::composite::CompositeBackend;
    use crate::layer::Layered;
    use futures::FutureExt;
    use futures::future::BoxFuture;
    use parking_lot::Mutex;
    use std::sync::Arc;
    use tokio::sync::Notify;
    use treehold_core::ops::{Changed, OpKind};
    use treehold_core::path::VfsPath;

    const OP: Op<'static> = Op::read(OpKind::Stat, VfsPath::ROOT);

    /// Runs one call that records its number when it starts and ends when notified.
    async fn call(limit: &Limit, number: usize, started: &Mutex<Vec<usize>>, end: &Notify) -> Result<Vec<Changed>> {
        let run = || -> BoxFuture<'_, Result<Vec<Changed>>> {
            async {
                started.lock().push(number);
                end.notified().await;
                Ok(Vec::new())
            }
            .boxed()
        };
        limit.around(OP, Next::new(&run)).await
    }

    #[tokio::test]
    async fn calls_beyond_the_limit_run_in_order_of_arrival() {
        let limit = Limit::new(2);
        let (started, end) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Notify::new()));
        let mut calls: Vec<_> = (0..5).map(|number| Box::pin(call(&limit, number, &started, &end))).collect();
        for call in &mut calls {
            assert!(call.as_mut().now_or_never().is_none());
        }
        assert_eq!(*started.lock(), [0, 1]);
        // The third call is dropped, and leaves the queue.
        drop(calls.remove(2));
        end.notify_waiters();
        for call in &mut calls {
            let _ = call.as_mut().now_or_never();
        }
        assert_eq!(*started.lock(), [0, 1, 3, 4]);
    }

    #[tokio::test]
    async fn call_is_refused_when_too_many_wait() {
        let limit = Limit::new(1).with_waiting_max(1);
        let (started, end) = (Mutex::new(Vec::new()), Notify::new());
        let mut runs = Box::pin(call(&limit, 0, &started, &end));
        assert!(runs.as_mut().now_or_never().is_none());
        let mut waits = Box::pin(call(&limit, 1, &started, &end));
        assert!(waits.as_mut().now_or_never().is_none());
        let error = call(&limit, 2, &started, &end).await.expect_err("no room to wait");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.is_without_effect());
        // Dropping the waiting call makes room for another.
        drop(waits);
        assert!(call(&limit, 3, &started, &end).now_or_never().is_none());
        assert_eq!(*started.lock(), [0]);
    }

    /// Regression: the call waited at the inner limit for the permit that it held at the outer one.
    #[tokio::test]
    async fn limit_used_by_two_layers_does_not_block_itself() {
        let limit = Arc::new(Limit::new(1).with_waiting_max(1));
        let mount = Layered::new(limit.clone(), StateBackend::new());
        let tree = CompositeBackend::builder(Arc::new(StateBackend::new())).route("/m", Arc::new(mount)).expect("a route");
        let tree = Layered::new(limit.clone(), tree.build().expect("a tree"));
        let written = tree.write("/m/a", "x").now_or_never().expect("no other call holds a slot");
        written.expect("written");
        assert_eq!(tree.read_text("/m/a").now_or_never().expect("a read needs no slot either").expect("read"), "x");
        assert_eq!(limit.running.available_permits(), 1);
        // A different limit counts separately, even within this one.
        let other = Layered::new(Arc::new(Limit::new(1)), tree);
        other.write("/m/a", "y").now_or_never().expect("each mount has a free slot").expect("written");
        // The outer permit no longer counts once its call has ended.
        let (started, end) = (Mutex::new(Vec::new()), Notify::new());
        let mut runs = Box::pin(call(&limit, 0, &started, &end));
        assert!(runs.as_mut().now_or_never().is_none());
        assert!(other.write("/m/a", "z").now_or_never().is_none(), "the other mount's slot is taken");
    }

    #[test]
    fn limit_of_zero_runs_one_call() {
        assert_eq!(Limit::new(0).name(), LayerName::new("Limit").with_settings(1));
    }
}
