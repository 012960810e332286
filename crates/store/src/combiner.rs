//! Group commit over connections: waiting batches of a partition share the next transaction.
//!
//! A durable commit on a server costs a round trip and a disk flush, whether it holds one batch or fifty. So a batch
//! that arrives while a group of its partition is being written goes on a queue, and the next group takes all that wait
//! there. Each partition has a queue of its own while it is written to, which its own task drains. So partitions wait for
//! each other only where more groups are ready than may be under way, and a caller that goes away leaves nothing half
//! done. While nothing is written there is no queue, thread or task, and there is no handle to close.

use super::{Batch, Partition};
use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;

/// The most batches of a partition that wait or are under way; further callers wait for room.
const PARTITION_BATCHES_MAX: usize = 256;

/// The most of all partitions.
const BATCHES_MAX: usize = 4_096;

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
}

#[derive(Debug)]
struct Shared<W> {
    writer: Arc<W>,
    /// A partition has a queue while somebody commits to it or a task drains it.
    queues: Mutex<HashMap<Partition, Queue>>,
    room: Arc<Semaphore>,
    /// As many permits as groups may be under way.
    lanes: Semaphore,
}

#[derive(Debug)]
struct Queue {
    waiting: VecDeque<Request>,
    /// Whether a task drains it.
    is_taken: bool,
    /// How many callers there are, waiting for room or for an answer.
    callers: usize,
    room: Arc<Semaphore>,
}

impl Queue {
    fn new() -> Self {
        Self { waiting: VecDeque::new(), is_taken: false, callers: 0, room: Arc::new(Semaphore::new(PARTITION_BATCHES_MAX)) }
    }
}

/// Removes the queue of a partition that nobody commits to and no task drains.
fn discard_unused(queues: &mut HashMap<Partition, Queue>, partition: &Partition) {
    if queues.get(partition).is_some_and(|queue| queue.callers == 0 && !queue.is_taken) {
        queues.remove(partition);
    }
}

#[derive(Debug)]
struct Request {
    batch: Batch,
    answer: oneshot::Sender<Answer>,
    place: Place,
}

/// Room for a batch, in its partition and among all, until it is answered.
#[derive(Debug)]
struct Place {
    _in_partition: OwnedSemaphorePermit,
    _among_all: OwnedSemaphorePermit,
}

#[derive(Debug)]
enum Answer {
    Done(Result<Vec<Version>>),
    /// The task that should have written the batch ended before it took it.
    Again(Batch),
}

impl<W: GroupWriter> Combiner<W> {
    /// Makes a combiner without queues, which has at most `groups_max` groups under way.
    pub fn new(writer: Arc<W>, groups_max: usize) -> Self {
        let room = Arc::new(Semaphore::new(BATCHES_MAX));
        let shared = Shared { writer, queues: Mutex::default(), room, lanes: Semaphore::new(groups_max.max(1)) };
        Self { shared: Arc::new(shared) }
    }

    /// Queues a valid batch and waits until it is durable. A batch of nothing has no partition, and is done at once.
    ///
    /// If the caller goes away, the batch is discarded while it is still queued; once a group has taken it, it is
    /// written. The runtime of a caller must be driven until the groups that its tasks write have ended.
    ///
    /// # Errors
    /// Those of the writer. [`Internal`](ErrorKind::Internal) with unknown effect when the writing task panicked or its
    /// runtime ended during the write. [`Unavailable`](ErrorKind::Unavailable) without effect when runtimes keep ending
    /// before the batch is taken.
    pub async fn commit(&self, mut batch: Batch) -> Result<Vec<Version>> {
        let Some(partition) = batch.partition() else { return Ok(Vec::new()) };
        let caller = Caller::of(&self.shared, &partition);
        for _ in 0..RUNTIMES_MAX {
            let place = caller.place().await?;
            let (answer, answered) = oneshot::channel();
            if caller.push(Request { batch, answer, place }) {
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

/// A caller at the queue of a partition, which stays at least as long.
struct Caller<'c, W> {
    shared: &'c Shared<W>,
    partition: &'c Partition,
    room: Arc<Semaphore>,
}

impl<'c, W> Caller<'c, W> {
    fn of(shared: &'c Shared<W>, partition: &'c Partition) -> Self {
        let mut queues = shared.queues.lock();
        let queue = queues.entry(partition.clone()).or_insert_with(Queue::new);
        queue.callers += 1;
        Self { shared, partition, room: queue.room.clone() }
    }

    /// Waits for room, first in the partition: so a partition that takes long leaves the room of others alone.
    async fn place(&self) -> Result<Place> {
        let acquired = async |room: &Arc<Semaphore>| {
            let acquired = room.clone().acquire_owned().await;
            acquired.map_err(|source| not_taken().with_source(source))
        };
        Ok(Place { _in_partition: acquired(&self.room).await?, _among_all: acquired(&self.shared.room).await? })
    }

    /// Queues a request. Returns true if the queue has no task and the caller must start one.
    fn push(&self, request: Request) -> bool {
        let mut queues = self.shared.queues.lock();
        let queue = queues.get_mut(self.partition).expect("a queue stays while it has callers");
        queue.waiting.push_back(request);
        !std::mem::replace(&mut queue.is_taken, true)
    }
}

impl<W> Drop for Caller<'_, W> {
    fn drop(&mut self) {
        let mut queues = self.shared.queues.lock();
        if let Some(queue) = queues.get_mut(self.partition) {
            queue.callers -= 1;
            discard_unused(&mut queues, self.partition);
        }
    }
}

/// The one task that drains the queue of a partition. It is dropped when the queue is empty, when it panics and when its runtime ends.
struct Turn<W> {
    shared: Arc<Shared<W>>,
    partition: Partition,
    /// Set when the queue was empty and the turn was given up; another task may own the queue by now.
    is_over: bool,
}

/// Batches that are written together, with what each caller waits for.
#[derive(Default)]
struct Group {
    batches: Vec<Batch>,
    answers: Vec<(oneshot::Sender<Answer>, Place)>,
}

impl<W: GroupWriter> Turn<W> {
    async fn run(&mut self) {
        while !self.is_over {
            self.write_group().await;
            // The callers just answered submit their next batches now. Yielding lets those join the waiting ones in a
            // single group; otherwise two halves would alternate. The runtime of an answered caller may never be driven
            // again, so give up the turn before yielding.
            self.put_down();
            if !self.is_over {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Writes the next group. Batches stay in the queue until it may begin, so those of callers who leave meanwhile are discarded.
    async fn write_group(&self) {
        let Ok(_lane) = self.shared.lanes.acquire().await else { return };
        let group = self.gather();
        if group.batches.is_empty() {
            return;
        }
        let results = self.shared.writer.write(&self.partition, &group.batches).await;
        assert_eq!(results.len(), group.batches.len(), "the engine must return one result for each batch");
        for ((answer, _place), result) in group.answers.into_iter().zip(results) {
            // The receiver may be gone; the batch was written anyway.
            let _ = answer.send(Answer::Done(result));
        }
    }

    /// Gives up the turn if the queue is empty; whoever queues the next batch takes it.
    fn put_down(&mut self) {
        let mut queues = self.shared.queues.lock();
        let Some(queue) = queues.get_mut(&self.partition) else {
            self.is_over = true;
            return;
        };
        if queue.waiting.is_empty() {
            queue.is_taken = false;
            self.is_over = true;
            discard_unused(&mut queues, &self.partition);
        }
    }

    /// Takes queued batches up to the limits of a group.
    fn gather(&self) -> Group {
        let (mut group, mut size_bytes) = (Group::default(), 0);
        let mut queues = self.shared.queues.lock();
        let Some(queue) = queues.get_mut(&self.partition) else { return group };
        while group.batches.len() < GROUP_BATCHES_MAX && size_bytes < GROUP_BYTES_MAX {
            let Some(Request { batch, answer, place }) = queue.waiting.pop_front() else { break };
            if !answer.is_closed() {
                size_bytes += batch.size_bytes();
                group.batches.push(batch);
                group.answers.push((answer, place));
            }
        }
        group
    }
}

impl<W> Drop for Turn<W> {
    /// Returns untaken batches to their callers, which requeue them from a live runtime.
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut queues = self.shared.queues.lock();
        let Some(queue) = queues.get_mut(&self.partition) else { return };
        queue.is_taken = false;
        let left = std::mem::take(&mut queue.waiting);
        discard_unused(&mut queues, &self.partition);
        drop(queues);
        for Request { batch, answer, .. } in left {
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
        (Combiner::new(Arc::new(Gated { gate: gate.clone(), groups: Arc::clone(&groups) }), 8), gate, groups)
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
    async fn partition_that_is_stuck_leaves_room_for_others() {
        let (combiner, gate, groups) = gated();
        let mut stuck = join_all((0..5_000).map(|_| combiner.commit(batch("k"))));
        assert!(futures::poll!(&mut stuck).is_pending());
        while groups.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        assert!(combiner.shared.room.available_permits() >= BATCHES_MAX - PARTITION_BATCHES_MAX);
        let other = join_all((0..100).map(|number| combiner.commit(batch_in(&format!("p{number}"), "k"))));
        let opened = async {
            while groups.lock().len() < 8 {
                tokio::task::yield_now().await;
            }
            gate.add_permits(1_000);
        };
        let (answers, ()) = tokio::join!(other, opened);
        assert!(answers.iter().all(Result::is_ok));
        assert!(stuck.await.iter().all(Result::is_ok));
        assert_eq!(combiner.shared.room.available_permits(), BATCHES_MAX);
    }

    /// Regression: batches were taken from the queue before a group could begin, and were then written although nobody
    /// waited any more.
    #[tokio::test]
    async fn batches_of_callers_who_left_before_a_group_may_begin_are_discarded() {
        let (combiner, gate, groups) = gated();
        let mut first: Vec<_> = (0..8).map(|number| Box::pin(combiner.commit(batch_in(&format!("p{number}"), "k")))).collect();
        for commit in &mut first {
            assert!(futures::poll!(commit).is_pending());
        }
        while groups.lock().len() < 8 {
            tokio::task::yield_now().await;
        }
        for number in 0..50 {
            let mut left = Box::pin(combiner.commit(batch_in(&format!("q{number}"), "k")));
            assert!(futures::poll!(&mut left).is_pending());
        }
        gate.add_permits(100);
        assert!(join_all(first).await.iter().all(Result::is_ok));
        while !combiner.shared.queues.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!((groups.lock().len(), combiner.shared.room.available_permits()), (8, BATCHES_MAX));
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
