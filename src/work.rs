//! Work whose size a caller chooses: where it runs, whose turn it is, and when it stops.
//!
//! A thread of the runtime serves everybody, so nothing may occupy it for long. [`run`] moves large work to a thread that may block, and
//! every caller of it gets four guarantees:
//!
//! - small work runs in place, without a hop;
//! - one [`Owner`] has at most as many pieces of work running as the machine has cores, and all owners together twice as many, so that one
//!   tenant never takes every place; whoever waits is served in order of arrival;
//! - the work ends within a few milliseconds when its caller has gone (its future was dropped) or its time is up, as its loops tell what
//!   they went over by [`advance`]; its place is given back when the thread has really ended;
//! - threads that help with one piece of work ([`Helper`]) are counted for the process as a whole, and so are the bytes that work holds in
//!   memory at once ([`Held`]).
//!
//! Entry points name the owner by [`as_owner`]. Work without an owner is a program's own, which decides itself how much it asks for.

use crate::error::{Error, ErrorKind, Result};
use crate::scope::Scope;
use crate::shared::Shared;
#[cfg(feature = "filesystem")]
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

/// The most bytes of work that run in place: a millisecond or less.
pub(crate) const IN_PLACE_BYTES: u64 = 128 << 10;

/// The cost of work that always leaves the thread it was asked on.
pub(crate) const LARGE: u64 = u64::MAX;

/// How many bytes work goes over between two looks at its [`Stop`]: some milliseconds of the slowest loops.
pub(crate) const LOOK_BYTES: usize = 1 << 20;

/// The fewest threads that may help, so that a small machine searches in parallel too.
const HELPERS_MIN: usize = 16;

/// How often work that waits for memory looks at its [`Stop`].
#[cfg(feature = "filesystem")]
const MEMORY_PAUSE: Duration = Duration::from_millis(5);

/// How many cores the machine has. Asked once: the system answers by reading files.
static CORES: LazyLock<usize> = LazyLock::new(|| std::thread::available_parallelism().map_or(1, NonZero::get));

static POOL: LazyLock<Pool> = LazyLock::new(|| Pool::new(*CORES));

static HELPERS: AtomicUsize = AtomicUsize::new(0);

/// Returns how many threads one piece of work uses at most.
pub(crate) fn cores() -> usize {
    *CORES
}

/// Whose work it is: a tenant and a user.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Owner(Arc<(Option<String>, Option<String>)>);

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

/// Runs a future that holds something, such as a turn. Work on a thread of its own keeps it ([`held`]) until that thread ends.
pub(crate) async fn holding<T>(held: Arc<dyn Any + Send + Sync>, future: impl Future<Output = T>) -> T {
    HELD.scope(held, future).await
}

/// Returns what the current task holds, for work that may outlive it.
#[cfg(any(test, feature = "filesystem"))]
pub(crate) fn held() -> Option<Arc<dyn Any + Send + Sync>> {
    HELD.try_with(Clone::clone).ok()
}

/// Runs a future whose work belongs to an owner and ends `within` a time, where one is given; a time set further out stays.
#[cfg(any(test, feature = "mcp"))]
pub(crate) async fn as_owner<T>(owner: Owner, within: Option<Duration>, future: impl Future<Output = T>) -> T {
    let own = within.map(|within| Instant::now() + within);
    let outer = CALLER.try_with(|caller| caller.until).ok().flatten();
    let until = [own, outer].into_iter().flatten().min();
    CALLER.scope(Caller { owner, until }, future).await
}

/// Makes a future for a task of its own that belongs to the owner of the one that makes it.
///
/// Its time is its own: what has to be done to its end, such as a save, is not given up with the request that began it.
pub(crate) fn carried<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let owner = CALLER.try_with(|caller| caller.owner.clone()).unwrap_or_default();
    CALLER.scope(Caller { owner, until: None }, future)
}

/// Whether work is to end: its caller has gone, or its time is up.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    flag: Arc<AtomicBool>,
    #[cfg(test)]
    watch: Option<Arc<stops::Watch>>,
}

impl Stop {
    pub(crate) fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Returns the flag itself, for loops that look at it directly.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.flag
    }

    /// Runs a part of work on this thread, which [`advance`] ends by unwinding once the flag is set.
    pub(crate) fn helping<T>(&self, work: impl FnOnce() -> T) -> T {
        let _entered = Entered { outer: STOP.replace(Some(self.clone())) };
        LEFT.set(LOOK_BYTES);
        work()
    }

    /// Runs work on this thread that [`advance`] ends once the flag is set.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when the work was ended; nobody is there to read it.
    pub(crate) fn during<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        // Nothing of what ended work leaves behind is looked at: its result is an error.
        let done = catch_unwind(AssertUnwindSafe(|| self.helping(work)));
        done.or_else(|panic| if panic.is::<GivenUp>() { Err(given_up()) } else { resume_unwind(panic) })
    }
}

fn given_up() -> Error {
    Error::new(ErrorKind::Unavailable, "the call was given up before it was done")
}

/// What [`advance`] unwinds with.
struct GivenUp;

thread_local! {
    /// When the work of this thread is to end; none where nothing runs that could be ended.
    static STOP: RefCell<Option<Stop>> = const { RefCell::new(None) };
    /// How many bytes it may go over before the next look.
    static LEFT: Cell<usize> = const { Cell::new(LOOK_BYTES) };
}

/// Puts back what the thread did before.
struct Entered {
    outer: Option<Stop>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        STOP.set(self.outer.take());
    }
}

/// Returns when the work of this thread is to end, for the threads that help with it.
pub(crate) fn current() -> Stop {
    STOP.with_borrow(Clone::clone).unwrap_or_default()
}

/// Tells that the work of this thread went over so many bytes, or did what takes as long; ends it when nobody waits for it any more.
///
/// A loop over what a caller chose calls this at each step. It costs a subtraction, and a look at the [`Stop`] every [`LOOK_BYTES`].
/// Work is ended by unwinding, without the message of a panic, up to [`run`], as
/// [salsa](https://docs.rs/salsa/latest/salsa/enum.Cancelled.html) ends a query: so a function deep within it, and a comparison that
/// a library calls back, need no result of their own for it. It must not be called where a lock or a change half made would be left
/// behind. Work that runs in place, and a program that aborts when it panics, is never ended.
#[inline]
pub(crate) fn advance(bytes: usize) {
    match LEFT.get().checked_sub(bytes) {
        Some(left) => LEFT.set(left),
        None => look(bytes),
    }
}

#[cold]
fn look(_bytes: usize) {
    #[cfg(test)]
    let bytes = LOOK_BYTES - LEFT.get() + _bytes;
    LEFT.set(LOOK_BYTES);
    let is_over = STOP.with_borrow(|stop| {
        stop.as_ref().is_some_and(|stop| {
            #[cfg(test)]
            stop.watch.as_ref().inspect(|watch| watch.looked(bytes, stop));
            stop.is_set()
        })
    });
    if is_over && cfg!(panic = "unwind") && !std::thread::panicking() {
        resume_unwind(Box::new(GivenUp));
    }
}

/// Sets the flag when the caller goes.
pub(crate) struct StopOnDrop(pub(crate) Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.flag.store(true, Ordering::Relaxed);
    }
}

/// Runs work that touches about `cost_bytes` bytes: in place when that is little, else on a thread that may block, in its owner's turn.
///
/// # Errors
/// [`Deadline`](ErrorKind::Deadline) when the owner's time is up before the work is done, [`Internal`](ErrorKind::Internal) when it panics.
pub(crate) async fn run<T: Send + 'static>(cost_bytes: u64, work: impl FnOnce(&Stop) -> T + Send + 'static) -> Result<T> {
    if cost_bytes <= IN_PLACE_BYTES {
        return Ok(work(&Stop::default()));
    }
    // Without a runtime there is no other thread, and nobody else who would wait.
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return Ok(work(&Stop::default())) };
    let caller = CALLER.try_with(Clone::clone).ok();
    let owner = caller.as_ref().map(|caller| caller.owner.clone()).unwrap_or_default();
    let until = caller.and_then(|caller| caller.until);
    let done = async {
        #[cfg(test)]
        let stop = Stop { watch: stops::Watch::of(&owner), ..Stop::default() };
        #[cfg(not(test))]
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
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Deadline, "the work was not done in time; ask for less at once"))),
    }
}

/// Lets a loop of short steps yield to others now and then, and so be dropped with its caller.
pub(crate) async fn step() {
    tokio::task::coop::consume_budget().await;
}

/// How long the steps of a batch may take before others have their turn.
const SLICE: Duration = Duration::from_millis(2);

/// How many steps are taken between two looks at the clock.
const STEPS_PER_LOOK: u32 = 8;

/// The steps of a batch, each of which may take long by itself: others have their turn every few milliseconds.
#[derive(Debug)]
pub(crate) struct Pace {
    steps: u32,
    since: std::time::Instant,
}

impl Default for Pace {
    fn default() -> Self {
        Self { steps: 0, since: std::time::Instant::now() }
    }
}

impl Pace {
    /// Takes a step, and lets others have their turn when it is time.
    pub(crate) async fn step(&mut self) {
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_PER_LOOK) && self.since.elapsed() >= SLICE {
            tokio::task::yield_now().await;
            self.since = std::time::Instant::now();
        }
    }
}

/// The places of running work.
#[derive(Debug)]
struct Pool {
    all: Arc<Semaphore>,
    owners: Mutex<Shared<Owner, Semaphore>>,
    per_owner: usize,
}

/// A place in the pool, free again when dropped.
type Place = (OwnedSemaphorePermit, OwnedSemaphorePermit);

impl Pool {
    fn new(per_owner: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(2 * per_owner)), owners: Mutex::default(), per_owner }
    }

    /// Waits for a place: first among the owner's own work, so that it stands in the common queue with as much as it may run and no more.
    async fn place(&self, owner: Owner) -> Result<Place> {
        let own = self.owners.lock().get_or_insert(owner, || Arc::new(Semaphore::new(self.per_owner)));
        let closed = |error| Error::new(ErrorKind::Internal, "the pool of work was closed").with_source(error);
        let own = own.acquire_owned().await.map_err(closed)?;
        let all = self.all.clone().acquire_owned().await.map_err(closed)?;
        Ok((own, all))
    }
}

/// The right to one more thread that helps with a piece of work; given back when dropped.
#[derive(Debug)]
pub(crate) struct Helper(());

impl Helper {
    /// Takes a thread if the process has one to spare: without, the work goes on with those it has.
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

/// A bound on the bytes that work of one kind holds in memory at once, whatever the number of threads.
#[cfg(feature = "filesystem")]
#[derive(Debug)]
pub(crate) struct Memory {
    free: Mutex<u64>,
    freed: Condvar,
    max: u64,
}

#[cfg(feature = "filesystem")]
impl Memory {
    pub(crate) const fn new(max: u64) -> Self {
        Self { free: Mutex::new(max), freed: Condvar::new(), max }
    }

    /// Waits until so many bytes are free, blocking; what is over the whole bound waits until nobody else holds any. None when the work
    /// is to stop.
    pub(crate) fn hold(&self, bytes: u64, is_over: impl Fn() -> bool) -> Option<Held<'_>> {
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

/// Bytes that are held; free again when dropped.
#[cfg(feature = "filesystem")]
#[derive(Debug)]
pub(crate) struct Held<'a> {
    memory: &'a Memory,
    bytes: u64,
}

#[cfg(feature = "filesystem")]
impl Drop for Held<'_> {
    fn drop(&mut self) {
        *self.memory.free.lock() += self.bytes;
        self.memory.freed.notify_all();
    }
}

/// Counts how often other work of the same thread has its turn until a future is done.
#[cfg(test)]
pub(crate) async fn turns_during<T>(future: impl Future<Output = T>) -> (T, usize) {
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

#[cfg(test)]
pub(crate) mod stops;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn owner(user: &str) -> Owner {
        Owner::from(&Scope::new().with_user(user))
    }

    /// Work that says when it begins, and ends when told or stopped.
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
    async fn an_owner_with_much_work_leaves_places_to_others() {
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
        assert_eq!(next.0.as_deref(), Ok("other"), "it did not wait behind the work that began before");
        end.store(true, Ordering::Relaxed);
        for running in running {
            running.await.expect("joined").expect("done");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn work_stops_when_its_caller_goes_or_its_time_is_up() {
        let (stopped, stops) = mpsc::channel();
        let until_stopped = |name: &'static str| {
            let stopped = stopped.clone();
            move |stop: &Stop| {
                while !stop.is_set() {
                    std::thread::yield_now();
                }
                let _ = stopped.send(name);
            }
        };
        let late = as_owner(owner("a"), Some(Duration::from_millis(1)), run(LARGE, until_stopped("late"))).await;
        assert_eq!(late.expect_err("too long").kind(), ErrorKind::Deadline);
        assert_eq!(stops.recv(), Ok("late"));
        let (begun, begins) = tokio::sync::oneshot::channel();
        let work = until_stopped("gone");
        let mut gone = Box::pin(run(LARGE, move |stop| {
            let _ = begun.send(());
            work(stop);
        }));
        tokio::select! {
            _ = &mut gone => panic!("nobody stopped it"),
            _ = begins => {}
        }
        drop(gone);
        assert_eq!(tokio::task::spawn_blocking(move || stops.recv()).await.expect("received"), Ok("gone"));
    }

    #[tokio::test]
    async fn small_work_stays_on_its_thread() {
        let here = std::thread::current().id();
        assert_eq!(run(IN_PLACE_BYTES, |_| std::thread::current().id()).await.expect("done"), here);
        assert_ne!(run(IN_PLACE_BYTES + 1, |_| std::thread::current().id()).await.expect("done"), here);
    }

    #[cfg(feature = "filesystem")]
    #[test]
    fn memory_is_waited_for_and_what_is_stopped_waits_no_longer() {
        static MEMORY: Memory = Memory::new(10);
        let held = MEMORY.hold(8, || false).expect("free");
        assert!(MEMORY.hold(3, || true).is_none());
        let two = MEMORY.hold(2, || true).expect("free");
        drop((held, two));
        drop(MEMORY.hold(1_000, || true).expect("all of it"));
        assert_eq!(*MEMORY.free.lock(), 10);
    }
}
