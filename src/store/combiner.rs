//! Group commit over a connection: batches that wait share the next transaction of the process.
//!
//! A durable commit of a server costs a round trip and a wait for its disk, and both are the same for one batch or fifty. So
//! whoever brings a batch while a group is under way leaves it on a queue, and the next group takes all that waits. A group
//! is written by a task of its own, so that a caller who goes away leaves nothing half done. There is no thread and no task
//! while nothing is written, and no handle to close.

use super::Batch;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::Version;
use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// How many batches may wait before those who bring more wait themselves.
const QUEUE: usize = 1_024;

/// The most batches of one group.
const GROUP_BATCHES_MAX: usize = 64;

/// A group takes no more batches once its bodies are this many bytes, so that small ones do not wait for many large ones.
const GROUP_BYTES_MAX: usize = 16 << 20;

/// How often a batch is brought to a runtime that ends before it takes it.
const ATTEMPTS: usize = 8;

/// The writing side of an engine.
#[async_trait]
pub(super) trait GroupWriter: Send + Sync + 'static {
    /// Applies a group of batches in order, each all or nothing by itself, and returns when all are durable: one answer for each.
    ///
    /// Groups of one process never overlap. The future may be dropped with the runtime it runs in.
    async fn write(&self, group: &[Batch]) -> Vec<Result<Vec<Version>>>;
}

/// Hands batches to a writer, in groups.
#[derive(Debug)]
pub(super) struct Combiner<W> {
    shared: Arc<Shared<W>>,
    room: Arc<Semaphore>,
}

#[derive(Debug)]
struct Shared<W> {
    writer: W,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Request>,
    /// A task takes what waits, until the queue is empty.
    is_taken: bool,
}

#[derive(Debug)]
struct Request {
    batch: Batch,
    answer: oneshot::Sender<Answer>,
    /// The place in the queue.
    _place: OwnedSemaphorePermit,
}

#[derive(Debug)]
enum Answer {
    Done(Result<Vec<Version>>),
    /// The task that would have taken the batch is gone before it did.
    Again(Batch),
}

impl<W: GroupWriter> Combiner<W> {
    /// Makes a combiner that nothing waits in.
    pub(super) fn new(writer: W) -> Self {
        let shared = Shared { writer, queue: Mutex::default() };
        Self { shared: Arc::new(shared), room: Arc::new(Semaphore::new(QUEUE)) }
    }

    /// Hands a valid batch over and waits until it is durable.
    ///
    /// A batch whose caller is gone is left out if no group has taken it yet, and else is done as any other.
    ///
    /// # Errors
    /// Those of the writer; [`Internal`](ErrorKind::Internal) with unknown effect when the task that wrote it panicked or ended
    /// with the runtime it ran in, [`Unavailable`](ErrorKind::Unavailable) without effect when runtimes end before it is taken.
    pub(super) async fn commit(&self, mut batch: Batch) -> Result<Vec<Version>> {
        for _ in 0..ATTEMPTS {
            let place = self.room.clone().acquire_owned().await.map_err(|source| not_taken().with_source(source))?;
            let (answer, answered) = oneshot::channel();
            if self.shared.push(Request { batch, answer, _place: place }) {
                let mut turn = Turn { shared: self.shared.clone(), is_over: false };
                tokio::spawn(async move { turn.run().await });
            }
            match answered.await {
                Ok(Answer::Done(result)) => return result,
                Ok(Answer::Again(same)) => batch = same,
                Err(_) => return Err(lost()),
            }
        }
        Err(not_taken())
    }
}

impl<W> Shared<W> {
    /// Adds a request; tells whether nobody takes requests, and the caller has to see to it.
    fn push(&self, request: Request) -> bool {
        let mut queue = self.queue.lock();
        queue.waiting.push_back(request);
        !std::mem::replace(&mut queue.is_taken, true)
    }
}

/// The one task that takes requests at a time. It is dropped when nothing waits, and when it panics or its runtime ends.
struct Turn<W> {
    shared: Arc<Shared<W>>,
    /// Nothing waited; since then the queue may be another's.
    is_over: bool,
}

impl<W: GroupWriter> Turn<W> {
    async fn run(&mut self) {
        loop {
            let (group, answers) = self.gather();
            if group.is_empty() {
                return;
            }
            let results = self.shared.writer.write(&group).await;
            assert_eq!(results.len(), group.len(), "one answer for each batch");
            for (answer, result) in answers.into_iter().zip(results) {
                // Nobody may be waiting any more, and the batch is written all the same.
                let _ = answer.send(Answer::Done(result));
            }
            // Those who were just answered bring their next batch now, and it goes with those that waited meanwhile: one group
            // of all writers instead of two halves that take turns. A runtime whose caller was just answered may never be
            // driven again, so the turn is anybody's until then.
            self.put_down();
            tokio::task::yield_now().await;
            if !self.take_up() {
                return;
            }
        }
    }

    /// Leaves the turn to whoever brings the next batch, if nothing waits.
    fn put_down(&mut self) {
        let mut queue = self.shared.queue.lock();
        if queue.waiting.is_empty() {
            queue.is_taken = false;
            self.is_over = true;
        }
    }

    /// Takes the turn again if it was put down; tells whether nobody else has it.
    fn take_up(&mut self) -> bool {
        let mut queue = self.shared.queue.lock();
        if self.is_over && !queue.is_taken {
            queue.is_taken = true;
            self.is_over = false;
        }
        !self.is_over
    }

    /// Takes what waits, up to the bounds of a group. With an empty group the turn is over.
    fn gather(&mut self) -> (Vec<Batch>, Vec<oneshot::Sender<Answer>>) {
        let (mut group, mut answers, mut size_bytes) = (Vec::new(), Vec::new(), 0);
        let mut queue = self.shared.queue.lock();
        while group.len() < GROUP_BATCHES_MAX && size_bytes < GROUP_BYTES_MAX {
            let Some(request) = queue.waiting.pop_front() else { break };
            if !request.answer.is_closed() {
                size_bytes += request.batch.size_bytes();
                group.push(request.batch);
                answers.push(request.answer);
            }
        }
        if group.is_empty() {
            queue.is_taken = false;
            self.is_over = true;
        }
        (group, answers)
    }
}

impl<W> Drop for Turn<W> {
    /// Gives back what no group has taken: each caller brings it again, from a runtime that lives.
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut queue = self.shared.queue.lock();
        queue.is_taken = false;
        let left = std::mem::take(&mut queue.waiting);
        drop(queue);
        for Request { batch, answer, .. } in left {
            let _ = answer.send(Answer::Again(batch));
        }
    }
}

fn lost() -> Error {
    let message = "the commit was broken off with the task that made it, and may have been made all the same; read before you try again";
    Error::new(ErrorKind::Internal, message).with_unknown_effect()
}

fn not_taken() -> Error {
    Error::new(ErrorKind::Unavailable, "the commit was not begun, as the program is ending; try again").without_effect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Namespace;
    use futures::future::join_all;
    use tokio::runtime::Runtime;

    /// Answers each batch by the size of its group, once it is let; the batch of the key `panic` panics.
    struct Gated {
        gate: Arc<Semaphore>,
        groups: Arc<Mutex<Vec<usize>>>,
    }

    #[async_trait]
    impl GroupWriter for Gated {
        async fn write(&self, group: &[Batch]) -> Vec<Result<Vec<Version>>> {
            self.groups.lock().push(group.len());
            self.gate.acquire().await.expect("the test holds the gate").forget();
            assert!(!group.contains(&batch("panic")), "as it was told");
            group.iter().map(|_| Ok(vec![Version::new(group.len() as u64)])).collect()
        }
    }

    fn gated() -> (Combiner<Gated>, Arc<Semaphore>, Arc<Mutex<Vec<usize>>>) {
        let (gate, groups) = (Arc::new(Semaphore::new(0)), Arc::default());
        (Combiner::new(Gated { gate: gate.clone(), groups: Arc::clone(&groups) }), gate, groups)
    }

    fn batch(key: &str) -> Batch {
        Batch::new().put(&Namespace::parse("a").expect("a legal namespace"), key, "body")
    }

    #[tokio::test]
    async fn what_waits_shares_the_next_group() {
        let (combiner, gate, groups) = gated();
        let works = join_all((0..150).map(|_| combiner.commit(batch("k"))));
        let opened = async {
            while groups.lock().is_empty() {
                tokio::task::yield_now().await;
            }
            gate.add_permits(10);
        };
        let (answers, ()) = tokio::join!(works, opened);
        assert!(answers.iter().all(Result::is_ok));
        let groups = groups.lock().clone();
        assert_eq!(groups.iter().sum::<usize>(), 150);
        assert_eq!(groups.last(), Some(&(150 - 2 * GROUP_BATCHES_MAX)), "{groups:?}");
    }

    #[tokio::test]
    async fn those_who_come_back_at_once_stay_one_group() {
        let (combiner, gate, groups) = gated();
        gate.add_permits(1_000);
        let writer = async || {
            for _ in 0..20 {
                combiner.commit(batch("k")).await.expect("written");
            }
        };
        join_all((0..8).map(|_| writer())).await;
        assert!(groups.lock().len() <= 21, "{:?}", groups.lock());
    }

    #[tokio::test]
    async fn a_batch_that_was_taken_is_written_though_nobody_waits() {
        let (combiner, gate, groups) = gated();
        let mut first = Box::pin(combiner.commit(batch("k")));
        assert!(futures::poll!(&mut first).is_pending());
        while groups.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        // The second is on the queue still, and is left out.
        let mut second = Box::pin(combiner.commit(batch("k")));
        assert!(futures::poll!(&mut second).is_pending());
        drop((first, second));
        gate.add_permits(2);
        combiner.commit(batch("k")).await.expect("written");
        assert_eq!((groups.lock().as_slice(), gate.available_permits()), (&[1, 1][..], 0));
    }

    #[tokio::test]
    async fn a_panic_of_the_writer_is_an_error_of_its_group_alone() {
        let (combiner, gate, _) = gated();
        let mut bad = Box::pin(combiner.commit(batch("panic")));
        assert!(futures::poll!(&mut bad).is_pending());
        tokio::task::yield_now().await;
        let mut good = Box::pin(combiner.commit(batch("k")));
        assert!(futures::poll!(&mut good).is_pending());
        gate.add_permits(2);
        let error = bad.await.expect_err("the writer panicked");
        assert_eq!((error.kind(), error.may_have_effect()), (ErrorKind::Internal, true));
        good.await.expect("what waited is brought again");
    }

    /// The turn stayed with the runtime of the last writer, which nobody drove any more, and the next one waited for ever.
    #[test]
    fn a_runtime_that_stands_still_keeps_no_turn() {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let (combiner, gate, _) = gated();
        gate.add_permits(2);
        let (one, other) = (runtime(), runtime());
        one.block_on(combiner.commit(batch("k"))).expect("written");
        let patience = std::time::Duration::from_secs(30);
        let written = other.block_on(async { tokio::time::timeout(patience, combiner.commit(batch("k"))).await });
        written.expect("the turn is free").expect("written");
        drop(one);
    }

    #[test]
    fn what_waits_outlives_the_runtime_of_those_who_wrote() {
        let runtime = || Runtime::new().expect("a runtime");
        let (combiner, gate, groups) = gated();
        let combiner = Arc::new(combiner);
        let (one, other) = (runtime(), runtime());
        let broken = one.spawn({
            let combiner = combiner.clone();
            async move { combiner.commit(batch("k")).await }
        });
        while groups.lock().is_empty() {
            std::thread::yield_now();
        }
        other.block_on(async {
            let mut waiting = Box::pin(combiner.commit(batch("k")));
            assert!(futures::poll!(&mut waiting).is_pending());
            one.shutdown_background();
            gate.add_permits(2);
            // The first is broken off, or the gate was quicker.
            let _ = broken.await;
            waiting.await.expect("written by the other runtime");
        });
    }
}
