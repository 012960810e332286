//! The turn gate: one call at a time for each session, in the order of arrival, in all processes together.

use super::interrupt::Interrupt;
use super::lease::{HOLDER, LeaseQueue, Party, number_of};
use super::line::{Line, Message, Waiter};
use crate::contract::Fence;
use crate::owner::of_user;
use crate::slot::StateSlot;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_core::scope::check_id;
use treehold_store::{Namespace, Store};

/// Which turns exclude each other: those of one session of one agent of one tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TurnKey {
    namespace: Namespace,
    text: String,
}

impl TurnKey {
    /// Names the turns of a session.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an id that [`check_id`] refuses, and for ids that are too long together.
    pub fn new(tenant: &str, agent: &str, slot: &StateSlot) -> Result<Self> {
        check_id("tenant", tenant)?;
        check_id("agent", agent)?;
        let namespace = of_user(tenant, slot.user(), ["agents", agent, "turns", slot.session()])?;
        Ok(Self { namespace, text: slot.to_string() })
    }

    /// Returns the namespace of the rows, in the partition of the states of the session.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }
}

impl fmt::Display for TurnKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why a turn was refused, or what ended it: the [source](std::error::Error::source) of the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TurnRefusal {
    /// Another call of the session runs or waits. Try again later.
    Busy,
    /// The turn was lost: its lease ended without renewal, and another process took the session over. Nothing more of it is saved.
    Lost,
    /// The process shuts down. Repeat the call, here after the restart or in another process.
    ShuttingDown,
}

impl TurnRefusal {
    /// Returns why an error refuses a turn, if it does.
    pub fn of(error: &Error) -> Option<Self> {
        std::error::Error::source(error).and_then(|source| source.downcast_ref()).copied()
    }
}

impl fmt::Display for TurnRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy => "the session is busy",
            Self::Lost => "the turn was lost",
            Self::ShuttingDown => "the process shuts down",
        })
    }
}

impl std::error::Error for TurnRefusal {}

/// The settings of a gate.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TurnOptions {
    /// How long a turn, or a place in the queue, outlives the process that has it. It is renewed after each third of this. Default 60
    /// seconds; at least 3 milliseconds.
    pub lease: Duration,
    /// How often the queue is read if the store reports no change. Default 5 seconds.
    pub poll: Duration,
    /// How many calls of one session may wait in this process. Default 1,000.
    pub waiters_max: usize,
    /// The clock, which must be that of the store.
    pub clock: Clock,
    /// Who takes the turns, for people who look at the rows. Default empty.
    pub owner: String,
}

impl Default for TurnOptions {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(60),
            poll: Duration::from_secs(5),
            waiters_max: 1_000,
            clock: Clock::system(),
            owner: String::new(),
        }
    }
}

impl TurnOptions {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how long a turn outlives its process.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease.max(Duration::from_millis(3));
        self
    }

    /// Sets how often the queue is read if the store reports no change.
    #[must_use]
    pub fn with_poll(mut self, poll: Duration) -> Self {
        self.poll = poll.max(Duration::from_millis(1));
        self
    }

    /// Sets how many calls of one session may wait in this process.
    #[must_use]
    pub fn with_waiters_max(mut self, waiters_max: usize) -> Self {
        self.waiters_max = waiters_max;
        self
    }

    /// Sets the clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets who takes the turns.
    #[must_use]
    pub fn with_owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = owner.into();
        self
    }
}

/// Lets the calls of a session take turns: one at a time, in the order in which they arrived, whichever process they arrived at.
/// Calls of different sessions run at the same time. Clones share one gate.
///
/// The order is that of tickets in the store. A turn has a lease, which this process renews while the turn lasts. If the process dies, the
/// lease ends and the next waiter takes over. A turn that was taken over cannot write: saves name its [fence](Turn::fence).
///
/// A waiter whose future is dropped leaves the queue, and wakes nobody early. A panic or a time-out ends a turn like any other drop.
///
/// Cost: a turn that nobody waits for takes two commits. One that waits takes a read and two commits more. Waiting costs one watch and one
/// read of the queue for each change, for all waiters of a session in this process together.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use treehold_agent_state::{StateSlot, call::{TurnGate, TurnKey}};
/// use treehold_store::MemoryStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let gate = TurnGate::new(Arc::new(MemoryStore::new()));
/// let key = TurnKey::new("acme", "helper", &StateSlot::new(Some("ada"), "s-1")?)?;
/// let turn = gate.acquire(&key).await?;
/// assert!(gate.try_acquire(&key).await?.is_none());
/// turn.release().await?;
/// assert!(gate.try_acquire(&key).await?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct TurnGate(pub(super) Arc<Gate>);

/// What the turns of a process share.
pub(super) struct Gate {
    pub(super) store: Arc<dyn Store>,
    pub(super) options: TurnOptions,
    /// The id of this gate, in its tickets. Only this gate removes those that nobody here waits with.
    id: String,
    number: AtomicU64,
    /// The lines of the sessions that have a turn or a waiter here.
    pub(super) lines: Mutex<HashMap<TurnKey, LineHandle>>,
}

/// How callers reach the line of a session.
#[derive(Clone)]
pub(super) struct LineHandle {
    pub(super) messages: mpsc::UnboundedSender<Message>,
    /// The turn of this process, until its end has reached the store.
    pub(super) running: Arc<Mutex<Option<Running>>>,
    /// How many wait.
    waiters: Arc<AtomicU64>,
}

/// The turn of this process.
pub(super) struct Running {
    pub(super) fence: Version,
    pub(super) signals: watch::Sender<Signals>,
    /// Whether its call is past its last safe point, so that nothing can interrupt it any more.
    pub(super) is_closed: bool,
}

/// The signals to a running turn.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Signals {
    pub(super) interrupt: Option<Interrupt>,
    pub(super) is_lost: bool,
}

impl TurnGate {
    /// Makes a gate with the default options. The turns are kept in `store`, which should be the one that holds the states.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self::with_options(store, TurnOptions::default())
    }

    /// Makes a gate.
    pub fn with_options(store: Arc<dyn Store>, options: TurnOptions) -> Self {
        let id = uuid::Uuid::new_v4().simple().to_string();
        Self(Arc::new(Gate { store, options, id, number: AtomicU64::new(0), lines: Mutex::default() }))
    }

    /// Returns whether other processes may take turns at this gate.
    pub fn is_shared(&self) -> bool {
        self.0.store.capabilities().shared
    }

    /// Waits for the turn of a session. Must be called within a tokio runtime, as all calls of a gate.
    ///
    /// Dropping the future leaves the queue.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) with [`TurnRefusal::Busy`] if too many wait in this process already, and otherwise if the
    /// store cannot be reached for as long as a lease lasts. [`Corrupt`](ErrorKind::Corrupt) if a row of the queue cannot be read.
    pub async fn acquire(&self, key: &TurnKey) -> Result<Turn> {
        match self.arrive(key, false).await? {
            Some(turn) => Ok(turn),
            None => Err(busy(key)),
        }
    }

    /// Waits for the turn of a session for at most `limit`.
    ///
    /// # Errors
    /// As [`TurnGate::acquire`], and [`Unavailable`](ErrorKind::Unavailable) with [`TurnRefusal::Busy`] when the time is over.
    pub async fn acquire_within(&self, key: &TurnKey, limit: Duration) -> Result<Turn> {
        tokio::time::timeout(limit, self.acquire(key)).await.unwrap_or_else(|_| Err(busy(key)))
    }

    /// Takes the turn of a session if nobody has it and nobody waits for it.
    ///
    /// # Errors
    /// As [`TurnGate::acquire`].
    pub async fn try_acquire(&self, key: &TurnKey) -> Result<Option<Turn>> {
        self.arrive(key, true).await
    }

    /// Returns whether a call of the session runs, in any process. A call whose process died counts until its lease ends.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn is_running(&self, key: &TurnKey) -> Result<bool> {
        if self.line(key).is_some_and(|line| line.running.lock().is_some()) {
            return Ok(true);
        }
        self.0.queue(key).is_held().await
    }

    /// Interrupts the call of the session that runs now, in any process, and returns whether there is one. Calls that wait are not
    /// interrupted, and neither is any later one.
    ///
    /// A call of this process sees it at once, one of another process when its store reports the change. The first interrupt of a call
    /// wins. A call of this process whose loop is done is not hit. One of another process may be past its last safe point, and then ends
    /// as if it was not interrupted.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn interrupt(&self, key: &TurnKey, interrupt: Interrupt) -> Result<bool> {
        if let Some(hit) = self.line(key).and_then(|line| line.interrupt(&interrupt)) {
            return Ok(hit);
        }
        self.0.queue(key).interrupt(&interrupt).await
    }

    /// Returns the fence of the turn with a fencing token, for saves on behalf of a process elsewhere.
    pub fn fence(key: &TurnKey, token: u64) -> Fence {
        Fence { namespace: key.namespace.clone(), key: HOLDER.to_owned(), version: Version::new(token) }
    }

    /// Returns how many sessions have a turn or a waiter in this process.
    pub fn lines(&self) -> usize {
        self.0.lines.lock().len()
    }

    async fn arrive(&self, key: &TurnKey, is_try: bool) -> Result<Option<Turn>> {
        let gate = &self.0;
        loop {
            let number = gate.number.fetch_add(1, Ordering::Relaxed);
            let party = Party { gate: gate.id.clone(), id: format!("{}-{number}", gate.id), owner: gate.options.owner.clone() };
            let (answer, granted) = oneshot::channel();
            let waiter = Waiter { number, party, ticket: None, is_try, answer };
            let Some(_place) = gate.send(key, waiter)? else { return Ok(None) };
            match granted.await {
                Ok(answer) => return answer,
                // The runtime in which the line ran has ended. Start again in this one.
                Err(_) => gate.forget(key),
            }
        }
    }

    fn line(&self, key: &TurnKey) -> Option<LineHandle> {
        self.0.lines.lock().get(key).cloned()
    }
}

impl fmt::Debug for TurnGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnGate").field("store", &format_args!("{}", self.0.store)).finish_non_exhaustive()
    }
}

impl Gate {
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn queue(&self, key: &TurnKey) -> LeaseQueue {
        LeaseQueue::new(self.store.clone(), key.namespace.clone(), self.options.lease)
    }

    /// Sends a waiter to the line of its session, and starts one if there is none. The lock orders this against the end of a line.
    fn send(self: &Arc<Self>, key: &TurnKey, waiter: Waiter) -> Result<Option<Place>> {
        let mut lines = self.lines.lock();
        let handle = match lines.get(key).filter(|handle| !handle.messages.is_closed()) {
            Some(handle) => handle.clone(),
            None => {
                let (messages, inbox) = mpsc::unbounded_channel();
                let handle = LineHandle { messages, running: Arc::default(), waiters: Arc::default() };
                lines.insert(key.clone(), handle.clone());
                tokio::spawn(Line::new(self.clone(), key.clone(), handle.clone(), inbox).run());
                handle
            }
        };
        if handle.waiters.load(Ordering::Relaxed) >= self.options.waiters_max as u64 {
            return if waiter.is_try { Ok(None) } else { Err(busy(key)) };
        }
        handle.waiters.fetch_add(1, Ordering::Relaxed);
        let place = Place { number: waiter.number, handle: handle.clone() };
        // A line whose runtime has ended drops the waiter, whose caller then starts another line.
        drop(handle.messages.send(Message::Arrive(waiter)));
        Ok(Some(place))
    }

    fn forget(&self, key: &TurnKey) {
        let mut lines = self.lines.lock();
        if lines.get(key).is_some_and(|handle| handle.messages.is_closed()) {
            lines.remove(key);
        }
    }
}

impl LineHandle {
    /// Interrupts the turn of this process, and returns whether that hit its call; `None` if this process has no turn.
    fn interrupt(&self, interrupt: &Interrupt) -> Option<bool> {
        let running = self.running.lock();
        let running = running.as_ref()?;
        if !running.is_closed {
            Signals::interrupt(&running.signals, interrupt);
        }
        Some(!running.is_closed)
    }

    /// Refuses further interrupts of a turn.
    fn close(&self, fence: Version) {
        if let Some(running) = self.running.lock().as_mut().filter(|running| running.fence == fence) {
            running.is_closed = true;
        }
    }

    /// Forgets a turn.
    pub(super) fn forget(&self, fence: Version) {
        self.running.lock().take_if(|running| running.fence == fence);
    }
}

impl Signals {
    /// Tells a turn of an interrupt, unless it is interrupted already.
    pub(super) fn interrupt(signals: &watch::Sender<Self>, interrupt: &Interrupt) {
        signals.send_if_modified(|signals| {
            let is_first = signals.interrupt.is_none();
            signals.interrupt.get_or_insert_with(|| interrupt.clone());
            is_first
        });
    }
}

/// The place of a waiter in the line. Dropped when the turn begins, or when the waiter gives up.
struct Place {
    number: u64,
    handle: LineHandle,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.handle.waiters.fetch_sub(1, Ordering::Relaxed);
        drop(self.handle.messages.send(Message::Leave(self.number)));
    }
}

/// The turn of a session. It lasts until it is released or dropped.
pub struct Turn {
    key: TurnKey,
    version: Version,
    arrival: u64,
    queue: LeaseQueue,
    handle: LineHandle,
    signals: watch::Receiver<Signals>,
    is_released: bool,
}

impl Turn {
    pub(super) fn new(
        key: TurnKey,
        version: Version,
        ticket: Option<&str>,
        queue: LeaseQueue,
        handle: LineHandle,
        signals: watch::Receiver<Signals>,
    ) -> Self {
        let arrival = ticket.map_or(version.number(), number_of).min(version.number());
        Self { key, version, arrival, queue, handle, signals, is_released: false }
    }

    /// Returns the session.
    pub fn key(&self) -> &TurnKey {
        &self.key
    }

    /// Returns the fencing token. Later turns of the session have greater ones.
    pub fn token(&self) -> u64 {
        self.version.number()
    }

    /// Returns the place in the order of arrival, which is the order of the turns of a session. It grows with each arrival, in all processes
    /// together, and is at most the [token](Turn::token). A caller whose process was stalled for longer than a lease while it waited arrives
    /// anew if a later one may have had its turn meanwhile.
    pub fn arrival(&self) -> u64 {
        self.arrival
    }

    /// Returns what a save expects, so that it is refused once another process took the session over.
    pub fn fence(&self) -> Fence {
        TurnGate::fence(&self.key, self.token())
    }

    /// Returns the interrupt of this turn, if there is one.
    pub fn interrupt(&self) -> Option<Interrupt> {
        self.signals.borrow().interrupt.clone()
    }

    /// Returns whether another process is known to have taken the session over.
    pub fn is_lost(&self) -> bool {
        self.signals.borrow().is_lost
    }

    /// Fails if the turn is known to be lost.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) with [`TurnRefusal::Lost`].
    pub fn check(&self) -> Result<()> {
        if self.is_lost() { Err(lost(&self.key)) } else { Ok(()) }
    }

    /// Fails if the turn is lost, whether or not this process has noticed. One read of the store.
    ///
    /// # Errors
    /// As [`Turn::check`], and those of the store.
    pub async fn verify(&self) -> Result<()> {
        if self.queue.look().await?.is_held_with(self.version) { Ok(()) } else { Err(lost(&self.key)) }
    }

    /// Waits until the turn is interrupted or lost. Cancel-safe.
    pub async fn stopped(&self) {
        let mut signals = self.signals.clone();
        let stopped = signals.wait_for(|signals| signals.interrupt.is_some() || signals.is_lost).await.is_ok();
        if !stopped {
            // The line has ended, as its runtime did. Nothing more is announced.
            std::future::pending::<()>().await;
        }
    }

    /// Refuses further interrupts from within this process, and returns the one that came before. A call asks this when it is past its
    /// last safe point, so that later interrupts are answered correctly.
    pub(crate) fn close(&self) -> Option<Interrupt> {
        self.handle.close(self.version);
        self.interrupt()
    }

    /// Ends the turn, and returns when the next one can begin.
    ///
    /// # Errors
    /// Those of the store. The turn has then ended for this process, and its lease ends by itself.
    pub async fn release(mut self) -> Result<()> {
        self.is_released = true;
        self.handle.close(self.version);
        let (done, released) = oneshot::channel();
        let message = Message::Release { fence: self.version, done: Some(done) };
        if self.handle.messages.send(message).is_err() {
            // The runtime in which the line ran has ended.
            self.handle.forget(self.version);
            return Ok(());
        }
        released.await.unwrap_or(Ok(()))
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("key", &self.key).field("token", &self.token()).finish_non_exhaustive()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.is_released {
            self.handle.close(self.version);
            if self.handle.messages.send(Message::Release { fence: self.version, done: None }).is_err() {
                self.handle.forget(self.version);
            }
        }
    }
}

/// Makes the error for a session whose turn is taken.
pub(super) fn busy(key: &TurnKey) -> Error {
    let message = format!("another call of the {key} runs or waits; try again later");
    Error::new(ErrorKind::Unavailable, message).without_effect().with_source(TurnRefusal::Busy)
}

/// Makes the error for a turn that was lost.
pub(super) fn lost(key: &TurnKey) -> Error {
    let message = format!("another process took over the {key}; nothing more of this call is saved, repeat it");
    Error::new(ErrorKind::Conflict, message).with_source(TurnRefusal::Lost)
}
