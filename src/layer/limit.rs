//! A bound on how many calls run at once.

use super::{Layer, LayerName, Next, Reply};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::Op;
use async_trait::async_trait;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Lets at most a number of calls run at once; the others wait their turn, first come, first served.
///
/// Without a bound on waiting a call waits as long as its caller does (put a [`Timeout`](super::Timeout) around). With one,
/// a call that finds as many waiting is refused with `unavailable`, stated to be without effect, so that
/// [`Retry`](super::Retry) may do it again. A call that is given up leaves its place at once.
///
/// The same limit may stand at several places of one tree, around the whole and around a mount: a call that has its place already
/// goes through at the others, as it would otherwise wait for itself. A call that a layer in between hands to another task counts
/// anew there.
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
    /// Lets `running_max` calls run at once; 0 counts as 1.
    pub fn new(running_max: usize) -> Self {
        let running_max = running_max.clamp(1, Semaphore::MAX_PERMITS);
        Self { running: Semaphore::new(running_max), running_max, waiting: AtomicUsize::new(0), waiting_max: None }
    }

    /// Refuses a call when this many wait already.
    #[must_use]
    pub fn with_waiting_max(mut self, waiting_max: usize) -> Self {
        self.waiting_max = Some(waiting_max);
        self
    }

    /// Returns what tells this limit from all that a call may hold while it is borrowed here.
    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    async fn enter(&self, op: &Op<'_>) -> Result<SemaphorePermit<'_>> {
        // Who waits already is served first: a freed place goes to the queue and never shows up here.
        if let Ok(permit) = self.running.try_acquire() {
            return Ok(permit);
        }
        let _place = Waiting::take(&self.waiting, self.waiting_max).ok_or_else(|| self.busy(op))?;
        self.running.acquire().await.map_err(|closed| Error::new(ErrorKind::Internal, "the limit was closed").with_source(closed))
    }

    fn busy(&self, op: &Op<'_>) -> Error {
        let message = format!(
            "the tree is busy: {} calls run and {} wait, which is all it takes; try again in a moment",
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
    /// The limits that the running call has a place in.
    static HELD: Vec<usize>;
}

/// A place among those who wait, left when dropped.
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
    use crate::ops::{Changed, OpKind};
    use crate::path::VfsPath;
    use futures::FutureExt;
    use futures::future::BoxFuture;
    use parking_lot::Mutex;
    use std::sync::Arc;
    use tokio::sync::Notify;

    const OP: Op<'static> = Op::read(OpKind::Stat, VfsPath::ROOT);

    /// Runs one call that notes its number when it starts and ends when told.
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
    async fn lets_in_so_many_and_then_in_the_order_of_arrival() {
        let limit = Limit::new(2);
        let (started, end) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Notify::new()));
        let mut calls: Vec<_> = (0..5).map(|number| Box::pin(call(&limit, number, &started, &end))).collect();
        for call in &mut calls {
            assert!(call.as_mut().now_or_never().is_none());
        }
        assert_eq!(*started.lock(), [0, 1]);
        // The third gives up; its place in the queue goes with it.
        drop(calls.remove(2));
        end.notify_waiters();
        for call in &mut calls {
            let _ = call.as_mut().now_or_never();
        }
        assert_eq!(*started.lock(), [0, 1, 3, 4]);
    }

    #[tokio::test]
    async fn refuses_when_too_many_wait() {
        let limit = Limit::new(1).with_waiting_max(1);
        let (started, end) = (Mutex::new(Vec::new()), Notify::new());
        let mut runs = Box::pin(call(&limit, 0, &started, &end));
        assert!(runs.as_mut().now_or_never().is_none());
        let mut waits = Box::pin(call(&limit, 1, &started, &end));
        assert!(waits.as_mut().now_or_never().is_none());
        let error = call(&limit, 2, &started, &end).await.expect_err("no room to wait");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.is_without_effect());
        // Who waited and gave up made room for another.
        drop(waits);
        assert!(call(&limit, 3, &started, &end).now_or_never().is_none());
        assert_eq!(*started.lock(), [0]);
    }

    /// The call waited at the inner place for the place that it held at the outer one.
    #[tokio::test]
    async fn one_limit_at_two_places_does_not_wait_for_itself() {
        let limit = Arc::new(Limit::new(1).with_waiting_max(1));
        let mount = Layered::new(limit.clone(), StateBackend::new());
        let tree = CompositeBackend::builder(Arc::new(StateBackend::new())).route("/m", Arc::new(mount)).expect("a route");
        let tree = Layered::new(limit.clone(), tree.build().expect("a tree"));
        let written = tree.write("/m/a", "x").now_or_never().expect("nobody else is there to wait for");
        written.expect("written");
        assert_eq!(tree.read_text("/m/a").now_or_never().expect("nor now").expect("read"), "x");
        assert_eq!(limit.running.available_permits(), 1);
        // Another limit is another, also within this one.
        let other = Layered::new(Arc::new(Limit::new(1)), tree);
        other.write("/m/a", "y").now_or_never().expect("each has room").expect("written");
        // What stands around no longer counts when the call has ended.
        let (started, end) = (Mutex::new(Vec::new()), Notify::new());
        let mut runs = Box::pin(call(&limit, 0, &started, &end));
        assert!(runs.as_mut().now_or_never().is_none());
        assert!(other.write("/m/a", "z").now_or_never().is_none(), "the place is taken");
    }

    #[test]
    fn a_limit_of_nothing_still_lets_one_in() {
        assert_eq!(Limit::new(0).name(), LayerName::new("Limit").with_settings(1));
    }
}
