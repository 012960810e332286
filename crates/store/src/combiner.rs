//! Group commit over connections: waiting batches of a partition share the next transaction.
//!
//! A durable commit on a server costs a round trip and a disk flush, whether it holds one batch or fifty. So a batch
//! that arrives while a group of its partition is being written goes on a queue, and the next group takes all that wait
//! there. Each partition has a queue of its own while it is written to, which its own task drains. So partitions do not
//! wait for each other, except for a connection, and a caller that goes away leaves nothing half done. While nothing is
//! written there is no queue, thread or task, and there is no handle to close.

use super::{Batch, Partition};
use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;

/// The capacity of all queues together in batches; further callers wait for room.
const QUEUE: usize = 1_024;

/// The most batches in one group.
const GROUP_BATCHES_MAX: usize = 64;

/// Once a group's bodies exceed this many bytes it takes no more batches, so small batches do not wait for many large
/// ones.
const GROUP_BYTES_MAX: usize = 16 << 20;

/// How often a batch is requeued after the runtime that should have written it ended.
const RUNTIMES_MAX: usize = 8;

/// The writing side of an engine.
#[async_trait]
pub trait GroupWriter: Send + Sync + 'static {
    /// Applies the batches of a group in order, each atomically, and returns once all are durable, with one result per
    /// batch. All lie in the partition.
    ///
    /// Groups of one partition never overlap. The future may be dropped when its runtime ends.
    async fn write(&self, partition: &Partition, group: &[Batch]) -> Vec<Result<Vec<Version>>>;
}

/// Hands batches to a writer, in groups.
#[derive(Debug)]
pub struct Combiner<W> {
    shared: Arc<Shared<W>>,
    room: Arc<Semaphore>,
}

#[derive(Debug)]
struct Shared<W> {
    writer: Arc<W>,
    /// A partition has a queue while a task drains it.
    queues: Mutex<HashMap<Partition, VecDeque<Request>>>,
}

#[derive(Debug)]
struct Request {
    batch: Batch,
    answer: oneshot::Sender<Answer>,
    /// Reserves room in the queue.
    _place: OwnedSemaphorePermit,
}

#[derive(Debug)]
enum Answer {
    Done(Result<Vec<Version>>),
    /// The task that should have written the batch ended before it took it.
    Again(Batch),
}

impl<W: GroupWriter> Combiner<W> {
    /// Makes a combiner without queues.
    pub fn new(writer: Arc<W>) -> Self {
        let shared = Shared { writer, queues: Mutex::default() };
        Self { shared: Arc::new(shared), room: Arc::new(Semaphore::new(QUEUE)) }
    }

    /// Queues a valid batch and waits until it is durable. A batch of nothing has no partition, and is done at once.
    ///
    /// If the caller goes away, the batch is discarded while it is still queued; once a group has taken it, it is
    /// written.
    ///
    /// # Errors
    /// Those of the writer. [`Internal`](ErrorKind::Internal) with unknown effect when the writing task panicked or its
    /// runtime ended during the write. [`Unavailable`](ErrorKind::Unavailable) without effect when runtimes keep ending
    /// before the batch is taken.
    pub async fn commit(&self, mut batch: Batch) -> Result<Vec<Version>> {
        let Some(partition) = batch.partition() else { return Ok(Vec::new()) };
        for _ in 0..RUNTIMES_MAX {
            let place = self.room.clone().acquire_owned().await.map_err(|source| not_taken().with_source(source))?;
            let (answer, answered) = oneshot::channel();
            if self.shared.push(&partition, Request { batch, answer, _place: place }) {
                let mut turn = Turn { shared: self.shared.clone(), partition: partition.clone(), is_over: false };
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
    /// Queues a request. Returns true if the partition has no task and the caller must start one.
    fn push(&self, partition: &Partition, request: Request) -> bool {
        match self.queues.lock().entry(partition.clone()) {
            Entry::Occupied(mut queue) => {
                queue.get_mut().push_back(request);
                false
            }
            Entry::Vacant(queue) => {
                queue.insert(VecDeque::from([request]));
                true
            }
        }
    }
}

/// The one task that drains the queue of a partition. It is dropped when the queue is empty, when it panics and when its runtime ends.
struct Turn<W> {
    shared: Arc<Shared<W>>,
    partition: Partition,
    /// Set when the queue was empty and was removed; another task may own the next one by now.
    is_over: bool,
}

impl<W: GroupWriter> Turn<W> {
    async fn run(&mut self) {
        while !self.is_over {
            let (group, answers) = self.gather();
            if !group.is_empty() {
                let results = self.shared.writer.write(&self.partition, &group).await;
                assert_eq!(results.len(), group.len(), "the engine must return one result for each batch");
                for (answer, result) in answers.into_iter().zip(results) {
                    // The receiver may be gone; the batch was written anyway.
                    let _ = answer.send(Answer::Done(result));
                }
            }
            // The callers just answered submit their next batches now. Yielding lets those join the waiting ones in a
            // single group; otherwise two halves would alternate. The runtime of an answered caller may never be driven
            // again, so give up the turn before yielding.
            self.put_down();
            if !self.is_over {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Gives up the turn if the queue is empty; whoever queues the next batch takes it.
    fn put_down(&mut self) {
        let mut queues = self.shared.queues.lock();
        if queues.get(&self.partition).is_none_or(VecDeque::is_empty) {
            queues.remove(&self.partition);
            self.is_over = true;
        }
    }

    /// Takes queued batches up to the limits of a group.
    fn gather(&mut self) -> (Vec<Batch>, Vec<oneshot::Sender<Answer>>) {
        let (mut group, mut answers, mut size_bytes) = (Vec::new(), Vec::new(), 0);
        let mut queues = self.shared.queues.lock();
        let Some(queue) = queues.get_mut(&self.partition) else { return (group, answers) };
        while group.len() < GROUP_BATCHES_MAX && size_bytes < GROUP_BYTES_MAX {
            let Some(request) = queue.pop_front() else { break };
            if !request.answer.is_closed() {
                size_bytes += request.batch.size_bytes();
                group.push(request.batch);
                answers.push(request.answer);
            }
        }
        (group, answers)
    }
}

impl<W> Drop for Turn<W> {
    /// Returns untaken batches to their callers, which requeue them from a live runtime.
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let left = self.shared.queues.lock().remove(&self.partition);
        for Request { batch, answer, .. } in left.into_iter().flatten() {
            let _ = answer.send(Answer::Again(batch));
        }
    }
}

fn lost() -> Error {
    let message = "the commit was interrupted and may still have taken effect; read before you try again";
    Error::new(ErrorKind::Internal, message).with_unknown_effect()
}

fn not_taken() -> Error {
    Error::new(ErrorKind::Unavailable, "the commit was not started because the program is shutting down; try again").without_effect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Namespace;
    use futures::future::join_all;
    use tokio::runtime::Runtime;

    /// Answers each batch with the size of its group once the gate opens; a batch with the key `panic` panics.
    struct Gated {
        gate: Arc<Semaphore>,
        groups: Arc<Mutex<Vec<usize>>>,
    }

    #[async_trait]
    impl GroupWriter for Gated {
        async fn write(&self, partition: &Partition, group: &[Batch]) -> Vec<Result<Vec<Version>>> {
            assert!(group.iter().all(|batch| batch.partition().as_ref() == Some(partition)), "a group of one partition");
            self.groups.lock().push(group.len());
            self.gate.acquire().await.expect("the test holds the gate").forget();
            assert!(!group.contains(&batch("panic")), "the test asked for a panic");
            group.iter().map(|_| Ok(vec![Version::new(group.len() as u64)])).collect()
        }
    }

    fn gated() -> (Combiner<Gated>, Arc<Semaphore>, Arc<Mutex<Vec<usize>>>) {
        let (gate, groups) = (Arc::new(Semaphore::new(0)), Arc::default());
        (Combiner::new(Arc::new(Gated { gate: gate.clone(), groups: Arc::clone(&groups) })), gate, groups)
    }

    fn batch(key: &str) -> Batch {
        batch_in("a", key)
    }

    fn batch_in(partition: &str, key: &str) -> Batch {
        Batch::new().put(&Namespace::parse(partition).expect("a legal namespace"), key, "body")
    }

    #[tokio::test]
    async fn partitions_are_written_at_the_same_time() {
        let (combiner, gate, groups) = gated();
        let works = join_all((0..20).map(|number| combiner.commit(batch_in(&format!("p{}", number % 5), "k"))));
        let opened = async {
            while groups.lock().len() < 5 {
                tokio::task::yield_now().await;
            }
            gate.add_permits(20);
        };
        let (answers, ()) = tokio::join!(works, opened);
        assert!(answers.iter().all(Result::is_ok));
        assert_eq!(groups.lock().iter().sum::<usize>(), 20);
        while !combiner.shared.queues.lock().is_empty() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn waiting_writes_share_the_next_group() {
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
    async fn callers_that_submit_again_at_once_share_one_group() {
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
    async fn batch_taken_by_a_group_is_written_after_its_caller_left() {
        let (combiner, gate, groups) = gated();
        let mut first = Box::pin(combiner.commit(batch("k")));
        assert!(futures::poll!(&mut first).is_pending());
        while groups.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        // The second batch is still queued and is discarded.
        let mut second = Box::pin(combiner.commit(batch("k")));
        assert!(futures::poll!(&mut second).is_pending());
        drop((first, second));
        gate.add_permits(2);
        combiner.commit(batch("k")).await.expect("written");
        assert_eq!((groups.lock().as_slice(), gate.available_permits()), (&[1, 1][..], 0));
    }

    #[tokio::test]
    async fn writer_panic_fails_only_its_own_group() {
        let (combiner, gate, _) = gated();
        let mut bad = Box::pin(combiner.commit(batch("panic")));
        assert!(futures::poll!(&mut bad).is_pending());
        tokio::task::yield_now().await;
        let mut good = Box::pin(combiner.commit(batch("k")));
        assert!(futures::poll!(&mut good).is_pending());
        gate.add_permits(2);
        let error = bad.await.expect_err("the writer panicked");
        assert_eq!((error.kind(), error.may_have_effect()), (ErrorKind::Internal, true));
        good.await.expect("waiting batches are requeued");
    }

    /// Regression: the turn stayed with the runtime of the last writer, which nobody drove any more, and the next
    /// writer waited forever.
    #[test]
    fn idle_runtime_does_not_hold_the_turn() {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let (combiner, gate, _) = gated();
        gate.add_permits(2);
        let (one, other) = (runtime(), runtime());
        one.block_on(combiner.commit(batch("k"))).expect("written");
        let patience = std::time::Duration::from_secs(30);
        let written = other.block_on(async { tokio::time::timeout(patience, combiner.commit(batch("k"))).await });
        written.expect("the turn was given up").expect("written");
        drop(one);
    }

    #[test]
    fn queued_batch_survives_the_end_of_the_writers_runtime() {
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
            // The first commit is interrupted, unless the gate opened first.
            let _ = broken.await;
            waiting.await.expect("written by the other runtime");
        });
    }
}
