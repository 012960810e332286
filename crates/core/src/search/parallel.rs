//! Processes items in parallel and returns the results in order.

use crate::work::{self, Helper, Stop};
use parking_lot::{Condvar, Mutex};
use std::any::Any;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How many items are processed on the calling thread before starting others: starting a thread costs as much as searching
/// several small files.
const ITEMS_IN_PLACE: usize = 16;

/// How long this may take, as items may be large.
const DURATION_IN_PLACE: Duration = Duration::from_millis(2);

/// The most items in one batch.
const BATCH_MAX: usize = 512;

/// How long a batch should take: long compared to the microseconds of passing it to another thread.
const BATCH_DURATION: Duration = Duration::from_micros(200);

/// How many batches each thread may be ahead of the one whose results are due.
const BATCHES_AHEAD: usize = 2;

/// Runs `work` on every item, on up to `workers` threads (1 means the calling thread only), and passes the results to `sink` in
/// the order of the items. When `sink` breaks, no further item is taken and the call returns soon.
///
/// Items and `sink` run on the calling thread, which also works while it has nothing else to do. The first 16 items, or fewer if
/// they take over 2 ms, run on the calling thread, and their duration determines the batch size. Then threads are started one by
/// one while there is work that no thread is free for. At most a few thousand results of quick items, or a few dozen of slow
/// ones, are buffered. A panic in `work` propagates to the caller.
///
/// Blocks: call it from a blocking thread.
pub fn ordered<I: Send, R: Send>(
    items: impl Iterator<Item = I> + Send,
    workers: usize,
    work: impl Fn(I) -> R + Sync,
    sink: impl FnMut(R) -> ControlFlow<()>,
) {
    ordered_into(items, workers, |item, results: &mut Vec<R>| results.push(work(item)), sink);
}

/// Like [`ordered`], but `work` adds its result to those of the items before it. It can merge a trivial result into the last of
/// them, so that most items pass nothing on.
pub fn ordered_into<I: Send, R: Send>(
    items: impl Iterator<Item = I> + Send,
    workers: usize,
    work: impl Fn(I, &mut Vec<R>) + Sync,
    sink: impl FnMut(R) -> ControlFlow<()>,
) {
    ordered_after(DURATION_IN_PLACE, items, workers, work, sink);
}

fn ordered_after<I: Send, R: Send>(
    in_place_max: Duration,
    items: impl Iterator<Item = I> + Send,
    workers: usize,
    work: impl Fn(I, &mut Vec<R>) + Sync,
    mut sink: impl FnMut(R) -> ControlFlow<()>,
) {
    let mut items = items.fuse();
    let in_place = if workers <= 1 { usize::MAX } else { ITEMS_IN_PLACE };
    let started = Instant::now();
    let mut done = 0;
    let mut results = Vec::new();
    for item in items.by_ref().take(in_place) {
        work(item, &mut results);
        if results.drain(..).try_for_each(&mut sink).is_break() {
            return;
        }
        done += 1;
        if workers > 1 && started.elapsed() > in_place_max {
            break;
        }
    }
    if workers <= 1 {
        return;
    }
    let Some(next) = items.next() else { return };
    let batch_max = batch_max(started.elapsed() / done.max(1));
    let mut items = std::iter::once(next).chain(items);
    let queue = Queue::new();
    // Those that help end with the work they help with.
    let stop = work::current();
    thread::scope(|scope| {
        // However this scope ends, the workers stop.
        let _close = CloseOnDrop(&queue);
        let mut started = 1;
        let mut start = || {
            // If fewer threads are available, the calling thread does the rest.
            if started < workers
                && let Some(helper) = Helper::take()
            {
                started += 1;
                let serve = || {
                    let _helper = helper;
                    queue.serve(&stop, &work);
                };
                let _ = thread::Builder::new().name("search".to_owned()).spawn_scoped(scope, serve);
            }
        };
        queue.drive(&mut items, (workers * BATCHES_AHEAD, batch_max), &mut start, &work, &mut sink);
    });
}

/// Returns the batch size for items of a duration.
fn batch_max(item: Duration) -> usize {
    let count = BATCH_DURATION.as_nanos() / item.as_nanos().max(1);
    usize::try_from(count).map_or(BATCH_MAX, |count| count.clamp(1, BATCH_MAX))
}

fn results_of<I, R>(items: impl Iterator<Item = I>, work: &impl Fn(I, &mut Vec<R>)) -> Vec<R> {
    let mut results = Vec::new();
    items.for_each(|item| work(item, &mut results));
    results
}

/// The batches shared by the calling thread and its workers.
struct Queue<I, R> {
    state: Mutex<State<I, R>>,
    /// Signals that a batch is waiting, or that the work is over.
    batch_waits: Condvar,
    /// Signals that a batch is done, or that a worker panicked.
    batch_done: Condvar,
    /// Whether the work is over. Workers then stop at the next item.
    closed: AtomicBool,
}

struct State<I, R> {
    waiting: VecDeque<(usize, Vec<I>)>,
    /// The batches in progress or done, starting with the one whose results are due; `None` while in progress.
    done: VecDeque<Option<Vec<R>>>,
    /// The number of the first of them.
    due: usize,
    /// How many workers are waiting for a batch.
    idle: usize,
    panic: Option<Box<dyn Any + Send>>,
}

struct CloseOnDrop<'a, I, R>(&'a Queue<I, R>);

impl<I, R> Drop for CloseOnDrop<'_, I, R> {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Relaxed);
        // Take the lock, so that no worker is between checking and waiting.
        self.0.state.lock().waiting.clear();
        self.0.batch_waits.notify_all();
    }
}

impl<I: Send, R: Send> Queue<I, R> {
    fn new() -> Self {
        Self {
            state: Mutex::new(State { waiting: VecDeque::new(), done: VecDeque::new(), due: 0, idle: 0, panic: None }),
            batch_waits: Condvar::new(),
            batch_done: Condvar::new(),
            closed: AtomicBool::new(false),
        }
    }

    /// Runs on the calling thread: passes on results if it can, else takes items, else works, else waits.
    fn drive(
        &self,
        items: &mut impl Iterator<Item = I>,
        (batches_max, batch_max): (usize, usize),
        start_worker: &mut impl FnMut(),
        work: &(impl Fn(I, &mut Vec<R>) + Sync),
        sink: &mut impl FnMut(R) -> ControlFlow<()>,
    ) {
        // The first batches are small, so that all threads get work soon.
        let mut batch_size = batch_max.div_ceil(8);
        let mut exhausted = false;
        loop {
            let mut state = self.state.lock();
            if let Some(panic) = state.panic.take() {
                drop(state);
                resume_unwind(panic);
            }
            if matches!(state.done.front(), Some(Some(_))) {
                let results = state.done.pop_front().flatten().expect("the front batch was just found to be done");
                state.due += 1;
                drop(state);
                if results.into_iter().try_for_each(&mut *sink).is_break() {
                    return;
                }
            } else if !exhausted && state.done.len() < batches_max {
                drop(state);
                let batch: Vec<I> = items.take(batch_size).collect();
                exhausted = batch.len() < batch_size;
                batch_size = (batch_size * 2).min(batch_max);
                if !batch.is_empty() {
                    let mut state = self.state.lock();
                    let number = state.due + state.done.len();
                    state.done.push_back(None);
                    state.waiting.push_back((number, batch));
                    if state.idle < state.waiting.len() {
                        drop(state);
                        start_worker();
                    }
                    self.batch_waits.notify_one();
                }
            } else if let Some((number, batch)) = state.waiting.pop_front() {
                drop(state);
                self.finish(number, results_of(batch.into_iter(), work));
            } else if state.done.is_empty() {
                return;
            } else {
                self.batch_done.wait(&mut state);
            }
        }
    }

    /// Runs on a worker: processes batches until the work is over.
    fn serve(&self, stop: &Stop, work: &(impl Fn(I, &mut Vec<R>) + Sync)) {
        while let Some((number, batch)) = self.take() {
            let run = || results_of(batch.into_iter().take_while(|_| !self.closed.load(Ordering::Relaxed)), work);
            // After a panic nothing is observed any more, since the whole call ends with it.
            match catch_unwind(AssertUnwindSafe(|| stop.helping(run))) {
                Ok(results) => self.finish(number, results),
                Err(panic) => {
                    self.state.lock().panic.get_or_insert(panic);
                    self.batch_done.notify_one();
                    return;
                }
            }
        }
    }

    fn take(&self) -> Option<(usize, Vec<I>)> {
        let mut state = self.state.lock();
        loop {
            if self.closed.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(batch) = state.waiting.pop_front() {
                return Some(batch);
            }
            state.idle += 1;
            self.batch_waits.wait(&mut state);
            state.idle -= 1;
        }
    }

    fn finish(&self, number: usize, results: Vec<R>) {
        let mut state = self.state.lock();
        let place = number - state.due;
        state.done[place] = Some(results);
        if place == 0 {
            self.batch_done.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn results_are_in_order_for_any_number_of_threads() {
        for (count, workers) in [(0, 4), (1, 4), (15, 4), (16, 4), (17, 4), (5000, 0), (5000, 1), (5000, 2), (5000, 7)] {
            let mut results = Vec::new();
            ordered(
                0..count,
                workers,
                |item: usize| item * 2,
                |result| {
                    results.push(result);
                    ControlFlow::Continue(())
                },
            );
            assert_eq!(results, (0..count).map(|item| item * 2).collect::<Vec<_>>(), "{count} {workers}");
        }
    }

    #[test]
    fn break_stops_taking_items() {
        for (workers, stop) in [(1, 3), (4, 3), (4, 100), (4, 999)] {
            let taken = AtomicUsize::new(0);
            let mut given = 0;
            ordered(
                (0..100_000).inspect(|_| {
                    taken.fetch_add(1, Ordering::Relaxed);
                }),
                workers,
                |item| item,
                |_| {
                    given += 1;
                    if given == stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                },
            );
            assert_eq!(given, stop);
            assert!(taken.into_inner() <= stop + (workers * BATCHES_AHEAD + 1) * BATCH_MAX, "{workers} {stop}");
        }
    }

    #[test]
    fn few_items_start_no_thread() {
        let threads = Mutex::new(HashSet::new());
        ordered_after(
            Duration::MAX,
            0..ITEMS_IN_PLACE,
            8,
            |_, _: &mut Vec<()>| {
                threads.lock().insert(thread::current().id());
            },
            |()| ControlFlow::Continue(()),
        );
        assert_eq!(threads.into_inner(), HashSet::from([thread::current().id()]));
    }

    #[test]
    fn slow_items_are_shared_between_threads_from_the_second_item_on() {
        let threads = Mutex::new(HashSet::new());
        let two_at_once = std::sync::Barrier::new(2);
        ordered_after(
            Duration::ZERO,
            0..2 * BATCH_MAX,
            2,
            |item, _: &mut Vec<()>| {
                // Each thread waits for the other once.
                if item > 0 && threads.lock().insert(thread::current().id()) {
                    two_at_once.wait();
                }
            },
            |()| ControlFlow::Continue(()),
        );
        assert_eq!(threads.into_inner().len(), 2);
    }

    #[test]
    fn panic_in_work_propagates() {
        for at in [3, 16, 17, 500, 9_999] {
            let run = || ordered(0..10_000, 3, |item| assert_ne!(item, at, "item {at}"), |()| ControlFlow::Continue(()));
            let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("the work panics");
            assert!(panic.downcast_ref::<String>().is_some_and(|message| message.contains(&format!("item {at}"))), "{at}");
        }
    }

    #[test]
    fn panic_in_items_or_sink_stops_threads() {
        let items = (0..1000).inspect(|item| assert_ne!(*item, 600));
        assert!(catch_unwind(AssertUnwindSafe(|| ordered(items, 3, |item| item, |_| ControlFlow::Continue(())))).is_err());
        assert!(
            catch_unwind(|| ordered(
                0..1000,
                3,
                |item| item,
                |item| {
                    assert_ne!(item, 600);
                    ControlFlow::Continue(())
                }
            ))
            .is_err()
        );
    }
}
