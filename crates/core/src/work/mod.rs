//! Work whose size a caller chooses: where it runs, how it is scheduled, and when it stops.
//!
//! The runtime's threads serve every caller, so nothing may block one of them for long. [`run`] moves large work to a blocking thread and
//! gives its callers four guarantees:
//!
//! - Small work runs in place, without a thread hop.
//! - One [`Owner`] runs at most as many pieces of work as the machine has cores, and all owners together twice as many. One tenant
//!   therefore never takes every slot. Waiters are served in order of arrival.
//! - Work ends within a few milliseconds when its caller is gone (its future was dropped) or its time is up: loops report their progress to
//!   [`advance`]. The slot is freed only when the thread has really ended.
//! - Threads that help with one piece of work ([`Helper`]) are limited for the whole process, and so are the bytes that work holds in
//!   memory at once ([`Held`]).
//!
//! Entry points name the owner with [`as_owner`]. Work without an owner belongs to the program itself, which decides how much it starts.

mod json;
mod size;
mod values;

pub use json::{is_large_json, to_json};
pub use values::{JSON_VALUES_MAX, check_json_values};

use crate::error::{Error, ErrorKind, Result};
use crate::scope::Scope;
use crate::shared::Shared;
use parking_lot::Condvar;
use parking_lot::Mutex;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// The largest work in bytes that runs in place: it takes a millisecond or less.
pub const IN_PLACE_BYTES: u64 = 128 << 10;

/// The cost of work that always moves to another thread.
pub const LARGE: u64 = u64::MAX;

/// The number of bytes that work processes between two checks of its [`Stop`]: a few milliseconds in the slowest loops.
pub const LOOK_BYTES: usize = 1 << 20;

/// The smallest limit on helper threads, so that small machines search in parallel too.
const HELPERS_MIN: usize = 16;

/// The interval at which work that waits for memory checks its [`Stop`].
const MEMORY_PAUSE: Duration = Duration::from_millis(5);

/// The number of cores. Cached, because the system reads files to answer.
static CORES: LazyLock<usize> = LazyLock::new(|| std::thread::available_parallelism().map_or(1, NonZero::get));

static POOL: LazyLock<Pool> = LazyLock::new(|| Pool::new(*CORES));

static HELPERS: AtomicUsize = AtomicUsize::new(0);

/// Returns the largest number of threads that one piece of work uses.
pub fn cores() -> usize {
    *CORES
}

/// The tenant and user that work belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Owner(Arc<(Option<String>, Option<String>)>);

impl From<&Scope> for Owner {
    fn from(scope: &Scope) -> Self {
        Self(Arc::new((scope.tenant.clone(), scope.user.clone())))
    }
}

#[derive(Debug, Clone)]
struct Caller {
    owner: Owner,
    until: Option<Instant>,
}

tokio::task_local! {
    static CALLER: Caller;
    static HELD: Arc<dyn Any + Send + Sync>;
}

/// Runs a future that holds a resource, such as its turn. Work that moves to a thread of its own keeps the resource ([`held`]) until that
/// thread ends.
pub async fn holding<T>(held: Arc<dyn Any + Send + Sync>, future: impl Future<Output = T>) -> T {
    HELD.scope(held, future).await
}

/// Returns the resource that the current task holds, for work that may outlive the task.
pub fn held() -> Option<Arc<dyn Any + Send + Sync>> {
    HELD.try_with(Clone::clone).ok()
}

/// Runs a future whose work belongs to `owner` and ends after `within`, if given. An earlier deadline of the current task still applies.
pub async fn as_owner<T>(owner: Owner, within: Option<Duration>, future: impl Future<Output = T>) -> T {
    let own = within.map(|within| Instant::now() + within);
    let outer = CALLER.try_with(|caller| caller.until).ok().flatten();
    let until = [own, outer].into_iter().flatten().min();
    CALLER.scope(Caller { owner, until }, future).await
}

/// Wraps a future for a spawned task, so that its work belongs to the current owner.
///
/// The current deadline does not apply to it: work that must finish, such as a save, is not abandoned with the request that started it.
pub fn carried<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let owner = CALLER.try_with(|caller| caller.owner.clone()).unwrap_or_default();
    CALLER.scope(Caller { owner, until: None }, future)
}

/// A flag that tells work to end: its caller is gone, or its time is up.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    #[cfg(any(test, feature = "testing"))]
    watch: Option<Arc<stops::Watch>>,
}

impl Stop {
    /// Returns whether the work is to end.
    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Returns the flag itself, for loops that look at it directly.
    pub fn flag(&self) -> &AtomicBool {
        &self.flag
    }

    /// Runs part of the work on this thread. [`advance`] unwinds out of it once the flag is set.
    pub(crate) fn helping<T>(&self, work: impl FnOnce() -> T) -> T {
        let _entered = Entered { outer: STOP.replace(Some(self.clone())) };
        LEFT.set(LOOK_BYTES);
        work()
    }

    /// Runs work on this thread. [`advance`] ends it once the flag is set.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when the work was ended early. The caller is gone by then, so nobody reads the error.
    pub(crate) fn during<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        // Unwind safety holds: ended work returns an error, so nothing reads the state that it left behind.
        let done = catch_unwind(AssertUnwindSafe(|| self.helping(work)));
        done.or_else(|panic| if panic.is::<GivenUp>() { Err(given_up()) } else { resume_unwind(panic) })
    }
}

fn given_up() -> Error {
    Error::new(ErrorKind::Unavailable, "the call was abandoned before it finished")
}

/// The panic payload with which [`advance`] unwinds.
struct GivenUp;

thread_local! {
    /// The stop of this thread's work; `None` when nothing runs that could be ended.
    static STOP: RefCell<Option<Stop>> = const { RefCell::new(None) };
    /// The number of bytes left until the next check.
    static LEFT: Cell<usize> = const { Cell::new(LOOK_BYTES) };
}

/// Restores the outer stop when dropped.
struct Entered {
    outer: Option<Stop>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        STOP.set(self.outer.take());
    }
}

/// Returns the stop of this thread's work, for the threads that help with it.
pub(crate) fn current() -> Stop {
    STOP.with_borrow(Clone::clone).unwrap_or_default()
}

/// Reports that this thread's work processed `bytes` bytes, or spent as long on something else. Ends the work when nobody waits for it any
/// more.
///
/// Every loop over input that a caller chose calls this at each step. A call costs a subtraction, and every [`LOOK_BYTES`] a check of the
/// [`Stop`]. Work ends by unwinding up to [`run`] without a panic message, the way
/// [salsa](https://docs.rs/salsa/latest/salsa/enum.Cancelled.html) cancels a query: deeply nested functions and comparisons that a library
/// calls back need no error path for it. Do not call this where unwinding would leave a lock held or a change half made. Work that runs in
/// place, and work in a program that aborts on panic, is never ended.
#[inline]
pub fn advance(bytes: usize) {
    match LEFT.get().checked_sub(bytes) {
        Some(left) => LEFT.set(left),
        None => look(bytes),
    }
}

#[cold]
fn look(_bytes: usize) {
    #[cfg(any(test, feature = "testing"))]
    let bytes = LOOK_BYTES - LEFT.get() + _bytes;
    LEFT.set(LOOK_BYTES);
    let is_over = STOP.with_borrow(|stop| {
        stop.as_ref().is_some_and(|stop| {
            #[cfg(any(test, feature = "testing"))]
            stop.watch.as_ref().inspect(|watch| watch.looked(bytes, stop));
            stop.is_set()
        })
    });
    if is_over && cfg!(panic = "unwind") && !std::thread::panicking() {
        resume_unwind(Box::new(GivenUp));
    }
}

/// Sets the flag when dropped, so when the caller is gone.
pub struct StopOnDrop(pub Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.flag.store(true, Ordering::Relaxed);
    }
}

/// Runs work that touches about `cost_bytes` bytes: in place if small, otherwise on a blocking thread once its owner has a free slot.
///
/// # Errors
/// [`Deadline`](ErrorKind::Deadline) when the owner's time is up before the work is done, [`Internal`](ErrorKind::Internal) when the work
/// panics.
pub async fn run<T: Send + 'static>(cost_bytes: u64, work: impl FnOnce(&Stop) -> T + Send + 'static) -> Result<T> {
    if cost_bytes <= IN_PLACE_BYTES {
        return Ok(work(&Stop::default()));
    }
    // Without a runtime there is no other thread, and nobody to keep waiting.
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return Ok(work(&Stop::default())) };
    let caller = CALLER.try_with(Clone::clone).ok();
    let owner = caller.as_ref().map(|caller| caller.owner.clone()).unwrap_or_default();
    let until = caller.and_then(|caller| caller.until);
    let done = async {
        #[cfg(any(test, feature = "testing"))]
        let stop = Stop { watch: stops::Watch::of(&owner), ..Stop::default() };
        #[cfg(not(any(test, feature = "testing")))]
        let stop = Stop::default();
        let place = POOL.place(owner).await?;
        let _gone = StopOnDrop(stop.clone());
        let ended = runtime.spawn_blocking(move || {
            let done = stop.during(|| work(&stop));
            drop(place);
            done
        });
        ended.await.map_err(|error| Error::new(ErrorKind::Internal, "the work ended without a result").with_source(error))?
    };
    match until {
        None => done.await,
        Some(until) => tokio::time::timeout_at(until, done)
            .await
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Deadline, "the work did not finish in time; request less at once"))),
    }
}

/// Lets a loop of short steps yield now and then, so that dropping its caller can end it.
pub async fn step() {
    tokio::task::coop::consume_budget().await;
}

/// The time that the steps of a batch may take before they yield.
const SLICE: Duration = Duration::from_millis(2);

/// The number of steps between two clock reads.
const STEPS_PER_LOOK: u32 = 8;

/// The pace of a batch whose steps may each take long: yields every few milliseconds.
#[derive(Debug)]
pub struct Pace {
    steps: u32,
    since: std::time::Instant,
}

impl Default for Pace {
    fn default() -> Self {
        Self { steps: 0, since: std::time::Instant::now() }
    }
}

impl Pace {
    /// Counts a step, and yields when the time slice is used up.
    pub async fn step(&mut self) {
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_PER_LOOK) && self.since.elapsed() >= SLICE {
            tokio::task::yield_now().await;
            self.since = std::time::Instant::now();
        }
    }
}

/// The slots of running work.
#[derive(Debug)]
struct Pool {
    all: Arc<Semaphore>,
    owners: Mutex<Shared<Owner, Semaphore>>,
    per_owner: usize,
}

/// A slot in the pool, freed when dropped.
type Slot = (OwnedSemaphorePermit, OwnedSemaphorePermit);

impl Pool {
    fn new(per_owner: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(2 * per_owner)), owners: Mutex::default(), per_owner }
    }

    /// Waits for a slot. The owner's own limit comes first, so that one owner never has more in the common queue than it may run.
    async fn place(&self, owner: Owner) -> Result<Slot> {
        let own = self.owners.lock().get_or_insert(owner, || Arc::new(Semaphore::new(self.per_owner)));
        let closed = |error| Error::new(ErrorKind::Internal, "the worker pool was closed").with_source(error);
        let own = own.acquire_owned().await.map_err(closed)?;
        let all = self.all.clone().acquire_owned().await.map_err(closed)?;
        Ok((own, all))
    }
}

/// The permission for one more thread to help with a piece of work, returned when dropped.
#[derive(Debug)]
pub struct Helper(());

impl Helper {
    /// Takes a helper thread if the process has one to spare. Without one, the work continues on the threads it has.
    pub(crate) fn take() -> Option<Self> {
        let max = (4 * *CORES).max(HELPERS_MIN);
        HELPERS.fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| (taken < max).then_some(taken + 1)).ok().map(|_| Self(()))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        HELPERS.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A bound on the bytes that one kind of work holds in memory at once, over all threads.
#[derive(Debug)]
pub struct Memory {
    free: Mutex<u64>,
    freed: Condvar,
    max: u64,
}

impl Memory {
    /// Allows so many bytes at once.
    pub const fn new(max: u64) -> Self {
        Self { free: Mutex::new(max), freed: Condvar::new(), max }
    }

    /// Blocks until `bytes` bytes are free. A request larger than the whole bound waits until nobody else holds any. Returns `None` when
    /// the work must stop.
    pub fn hold(&self, bytes: u64, is_over: impl Fn() -> bool) -> Option<Held<'_>> {
        let wanted = bytes.min(self.max);
        let mut free = self.free.lock();
        while *free < wanted {
            if is_over() {
                return None;
            }
            self.freed.wait_for(&mut free, MEMORY_PAUSE);
        }
        *free -= wanted;
        Some(Held { memory: self, bytes: wanted })
    }
}

/// Bytes that are held, freed when dropped.
#[derive(Debug)]
pub struct Held<'a> {
    memory: &'a Memory,
    bytes: u64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        *self.memory.free.lock() += self.bytes;
        self.memory.freed.notify_all();
    }
}

/// Runs a future to its end and counts how often other work of the same thread runs meanwhile.
#[cfg(any(test, feature = "testing"))]
pub async fn turns_during<T>(future: impl Future<Output = T>) -> (T, usize) {
    let mut future = std::pin::pin!(future);
    let mut turns = 0;
    loop {
        tokio::select! {
            biased;
            done = &mut future => return (done, turns),
            () = tokio::task::yield_now() => turns += 1,
        }
    }
}

#[cfg(any(test, feature = "testing"))]
pub mod stops;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn owner(user: &str) -> Owner {
        Owner::from(&Scope::new().with_user(user))
    }

    /// Returns work that reports when it begins and ends when told to or stopped.
    fn held(begun: mpsc::Sender<String>, end: Arc<AtomicBool>, name: &str) -> impl FnOnce(&Stop) + Send + 'static {
        let name = name.to_owned();
        move |stop| {
            let _ = begun.send(name);
            while !end.load(Ordering::Relaxed) && !stop.is_set() {
                std::thread::yield_now();
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn busy_owner_leaves_slots_to_others() {
        let (begun, begins) = mpsc::channel();
        let end = Arc::new(AtomicBool::new(false));
        let start = |user: &str| {
            let work = held(begun.clone(), end.clone(), user);
            tokio::spawn(as_owner(owner(user), None, run(LARGE, work)))
        };
        let mut running: Vec<_> = (0..10 * cores()).map(|_| start("busy")).collect();
        (0..cores()).for_each(|_| drop(begins.recv()));
        running.push(start("other"));
        let next = tokio::task::spawn_blocking(move || (begins.recv(), begins)).await.expect("received");
        assert_eq!(next.0.as_deref(), Ok("other"), "it did not wait for the earlier work");
        end.store(true, Ordering::Relaxed);
        for running in running {
            running.await.expect("joined").expect("done");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn work_stops_when_caller_is_dropped_or_deadline_passes() {
        let until_stopped = || {
            let (stopped, stops) = mpsc::channel();
            let work = move |stop: &Stop| {
                while !stop.is_set() {
                    std::thread::yield_now();
                }
                let _ = stopped.send(());
            };
            (work, stops)
        };
        let mut patience = Duration::from_millis(1);
        loop {
            let (work, stops) = until_stopped();
            let late = as_owner(owner("a"), Some(patience), run(LARGE, work)).await;
            assert_eq!(late.expect_err("too long").kind(), ErrorKind::Deadline);
            if stops.recv().is_ok() {
                break;
            }
            // The deadline passed before the work began, because other tests held every slot.
            patience *= 2;
        }
        let (begun, begins) = tokio::sync::oneshot::channel();
        let (work, stops) = until_stopped();
        let mut gone = Box::pin(run(LARGE, move |stop| {
            let _ = begun.send(());
            work(stop);
        }));
        tokio::select! {
            _ = &mut gone => panic!("nobody stopped it"),
            _ = begins => {}
        }
        drop(gone);
        assert_eq!(tokio::task::spawn_blocking(move || stops.recv()).await.expect("received"), Ok(()));
    }

    #[tokio::test]
    async fn small_work_runs_in_place() {
        let here = std::thread::current().id();
        assert_eq!(run(IN_PLACE_BYTES, |_| std::thread::current().id()).await.expect("done"), here);
        assert_ne!(run(IN_PLACE_BYTES + 1, |_| std::thread::current().id()).await.expect("done"), here);
    }

    #[test]
    fn memory_hold_waits_for_free_bytes_until_stopped() {
        static MEMORY: Memory = Memory::new(10);
        let held = MEMORY.hold(8, || false).expect("free");
        assert!(MEMORY.hold(3, || true).is_none());
        let two = MEMORY.hold(2, || true).expect("free");
        drop((held, two));
        drop(MEMORY.hold(1_000, || true).expect("all of the memory is free"));
        assert_eq!(*MEMORY.free.lock(), 10);
    }
}
