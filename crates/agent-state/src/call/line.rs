//! The line of one session in one process: a task that owns the tickets and the turn of this process, and alone talks to the store
//! about them.
//!
//! Callers exchange messages with it and commit nothing themselves, so dropping a caller cannot interrupt a commit. The task lives while a
//! caller in this process waits or has the turn.

use super::gate::{Gate, LineHandle, Running, Signals, Turn, TurnKey};
use super::lease::{LeaseQueue, Party, Renewed, Seen};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_store::Watch;

/// The first pause after a failure of the store; it doubles up to the poll interval.
const RETRY: Duration = Duration::from_millis(50);

/// The shortest time to wait for the end of somebody else's lease.
const EXPIRY_PAUSE: Duration = Duration::from_millis(2);

/// How often the queue is read in a row before messages are handled.
const STEPS_MAX: usize = 16;

/// A message from a caller to the line.
pub(super) enum Message {
    Arrive(Waiter),
    /// The waiter with this number gave up, or got its turn.
    Leave(u64),
    Release {
        fence: Version,
        done: Option<oneshot::Sender<Result<()>>>,
    },
}

/// A caller that waits for its turn.
pub(super) struct Waiter {
    pub(super) number: u64,
    pub(super) party: Party,
    pub(super) ticket: Option<String>,
    /// Whether it takes the turn at once or not at all.
    pub(super) is_try: bool,
    pub(super) answer: oneshot::Sender<Result<Option<Turn>>>,
}

impl Waiter {
    fn answer(self, answer: Result<Option<Turn>>) {
        // If the caller is gone, dropping the turn releases it.
        drop(self.answer.send(answer));
    }
}

/// The turn that this process has.
struct Held {
    fence: Version,
    party: Party,
    running: watch::Sender<Signals>,
}

/// A turn that has ended here and not yet in the store.
struct Ending {
    fence: Version,
    done: Option<oneshot::Sender<Result<()>>>,
    /// When its lease ends by itself.
    until: Instant,
}

pub(super) struct Line {
    gate: Arc<Gate>,
    key: TurnKey,
    handle: LineHandle,
    inbox: mpsc::UnboundedReceiver<Message>,
    queue: LeaseQueue,
    waiting: VecDeque<Waiter>,
    held: Option<Held>,
    ending: Option<Ending>,
    /// Tickets of waiters that gave up.
    leaving: Vec<String>,
    /// The party of a take whose outcome is unknown.
    attempted: Option<Party>,
    /// When tickets expire that may have been written and whose keys are unknown; `None` without such tickets.
    unknown_until: Option<Instant>,
    watch: Option<Watch>,
    /// Whether the queue may have changed since it was read.
    is_stale: bool,
    next_look: Instant,
    next_renewal: Instant,
    /// Since when every read of the queue failed.
    failing_since: Option<Instant>,
    failures: u32,
}

impl Line {
    pub(super) fn new(gate: Arc<Gate>, key: TurnKey, handle: LineHandle, inbox: mpsc::UnboundedReceiver<Message>) -> Self {
        let (queue, now) = (gate.queue(&key), Instant::now());
        let next_renewal = now + gate.options.lease / 3;
        Self {
            gate,
            key,
            handle,
            inbox,
            queue,
            waiting: VecDeque::new(),
            held: None,
            ending: None,
            leaving: Vec::new(),
            attempted: None,
            unknown_until: None,
            watch: None,
            is_stale: false,
            next_look: now,
            next_renewal,
            failing_since: None,
            failures: 0,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            while let Ok(message) = self.inbox.try_recv() {
                self.note(message);
            }
            if self.failures == 0 || Instant::now() >= self.next_look {
                self.step().await;
            }
            if self.is_idle() && self.end() {
                return;
            }
            self.wait().await;
        }
    }

    fn note(&mut self, message: Message) {
        match message {
            Message::Arrive(waiter) => self.waiting.push_back(waiter),
            Message::Leave(number) => {
                if let Some(at) = self.waiting.iter().position(|waiter| waiter.number == number) {
                    let waiter = self.waiting.remove(at);
                    self.leaving.extend(waiter.and_then(|waiter| waiter.ticket));
                }
            }
            Message::Release { fence, done } => {
                if self.held.as_ref().is_some_and(|held| held.fence == fence) {
                    self.held = None;
                    self.ending = Some(Ending { fence, done, until: Instant::now() + self.gate.options.lease });
                    self.is_stale = true;
                } else if let Some(done) = done {
                    // The turn was lost.
                    drop(done.send(Ok(())));
                }
            }
        }
    }

    /// Brings the store and the callers up to date, and decides when to look again.
    async fn step(&mut self) {
        if let Err(error) = self.try_step().await {
            self.failed(error);
        } else {
            (self.failing_since, self.failures) = (None, 0);
        }
    }

    async fn try_step(&mut self) -> Result<()> {
        if Instant::now() >= self.next_renewal {
            self.renew().await?;
        }
        if !self.leaving.is_empty() {
            self.queue.leave(&self.leaving).await?;
            self.leaving.clear();
            self.is_stale = true;
        }
        if self.unknown_until.is_some() {
            let known: Vec<&str> = self.waiting.iter().filter_map(|waiter| waiter.ticket.as_deref()).collect();
            self.queue.leave_unknown(self.gate.id(), &known).await?;
            (self.unknown_until, self.is_stale) = (None, true);
        }
        self.enter().await?;
        if let Some(ending) = self.ending.as_ref().filter(|_| self.waiting.is_empty()) {
            self.queue.release(ending.fence).await?;
            self.ended(Ok(()));
        }
        if self.is_idle() {
            return Ok(());
        }
        if self.is_stale || Instant::now() >= self.next_look {
            self.look().await?;
        }
        Ok(())
    }

    /// Gives the new waiters tickets. A waiter that is alone first tries to take the turn without one.
    async fn enter(&mut self) -> Result<()> {
        self.drop_cancelled();
        if self.waiting.iter().all(|waiter| waiter.ticket.is_some()) {
            return Ok(());
        }
        let is_alone = self.waiting.len() == 1 && self.held.is_none() && self.ending.is_none() && self.attempted.is_none();
        if is_alone && self.take(None).await? {
            return Ok(());
        }
        // Tries are refused, because the turn is not free.
        let (tries, waiting) = std::mem::take(&mut self.waiting).into_iter().partition::<VecDeque<_>, _>(|waiter| waiter.is_try);
        self.waiting = waiting;
        tries.into_iter().for_each(|waiter| waiter.answer(Ok(None)));
        let new: Vec<&Party> = self.waiting.iter().filter(|waiter| waiter.ticket.is_none()).map(|waiter| &waiter.party).collect();
        if new.is_empty() {
            return Ok(());
        }
        let tickets = match self.queue.enqueue(&new).await {
            Ok(tickets) => tickets,
            Err(error) => {
                // They have no tickets, so they lose no place in the queue.
                self.unknown_until = error.may_have_effect().then(|| Instant::now() + self.gate.options.lease);
                let (waiting, refused) =
                    std::mem::take(&mut self.waiting).into_iter().partition::<VecDeque<_>, _>(|waiter| waiter.ticket.is_some());
                self.waiting = waiting;
                refused.into_iter().for_each(|waiter| waiter.answer(Err(again(&error))));
                return Err(error);
            }
        };
        let new = self.waiting.iter_mut().filter(|waiter| waiter.ticket.is_none());
        new.zip(tickets).for_each(|(waiter, ticket)| waiter.ticket = Some(ticket));
        self.is_stale = true;
        Ok(())
    }

    /// Removes waiters whose future is gone and whose message has not arrived yet.
    fn drop_cancelled(&mut self) {
        let (kept, gone) = std::mem::take(&mut self.waiting).into_iter().partition::<VecDeque<_>, _>(|waiter| !waiter.answer.is_closed());
        self.waiting = kept;
        self.leaving.extend(gone.into_iter().filter_map(|waiter| waiter.ticket));
    }

    /// Reads the queue and acts on it until nothing is left to do.
    async fn look(&mut self) -> Result<()> {
        for _ in 0..STEPS_MAX {
            self.is_stale = false;
            let seen = self.queue.look().await?;
            if !self.act(&seen).await? {
                self.next_look = self.next_look(&seen);
                return Ok(());
            }
        }
        // Other processes win every race. Handle messages before the next attempt.
        self.next_look = Instant::now() + RETRY;
        Ok(())
    }

    /// Acts on what was read, and returns whether to read again.
    async fn act(&mut self, seen: &Seen) -> Result<bool> {
        if let Some(party) = self.attempted.take() {
            // A take that seemed to fail may have succeeded.
            if let Some(holder) = seen.holder.as_ref().filter(|holder| holder.party == party) {
                let fence = holder.version;
                match self.waiting.iter().position(|waiter| waiter.party == party) {
                    Some(at) => {
                        self.leaving.extend(self.waiting[at].ticket.clone());
                        self.grant(at, fence);
                    }
                    None => self.ending = Some(Ending { fence, done: None, until: Instant::now() + self.gate.options.lease }),
                }
                return Ok(true);
            }
        }
        if let Some(held) = &self.held {
            if !seen.is_held_with(held.fence) {
                self.lose();
                return Ok(true);
            }
            if let Some(interrupt) = seen.interrupt_of(held.fence) {
                Signals::interrupt(&held.running, interrupt);
            }
            return Ok(false);
        }
        if self.ending.as_ref().is_some_and(|ending| !seen.is_held_with(ending.fence)) {
            self.ended(Ok(()));
        }
        self.drop_cancelled();
        let mut next = None;
        if let Some(first) = &seen.first {
            next = self.waiting.iter().position(|waiter| waiter.ticket.as_ref() == Some(&first.key));
            if next.is_none() && first.party.gate == self.gate_id() {
                // Its waiter gave up, or the answer with its key was lost.
                self.queue.leave(std::slice::from_ref(&first.key)).await?;
                self.leaving.retain(|key| *key != first.key);
                return Ok(true);
            }
        }
        match next {
            Some(at) if seen.leased_until.is_none() || self.ending.is_some() => Ok(self.take(Some(at)).await? || self.is_stale),
            _ => {
                if let Some(ending) = &self.ending {
                    self.queue.release(ending.fence).await?;
                    self.ended(Ok(()));
                    return Ok(!self.waiting.is_empty());
                }
                Ok(false)
            }
        }
    }

    /// Makes a waiter of this process the holder, and returns whether it is. `None` is the only waiter, which has no ticket.
    async fn take(&mut self, at: Option<usize>) -> Result<bool> {
        let index = at.unwrap_or(0);
        let Some(waiter) = self.waiting.get(index) else { return Ok(false) };
        let (party, ticket) = (waiter.party.clone(), waiter.ticket.clone());
        let from = self.ending.as_ref().map(|ending| ending.fence);
        let taken = match self.queue.take(ticket.as_deref(), from, &party).await {
            Ok(taken) => taken,
            Err(error) => {
                if error.may_have_effect() {
                    self.attempted = Some(party);
                }
                return Err(error);
            }
        };
        match taken {
            Some(fence) => {
                self.ended(Ok(()));
                self.grant(index, fence);
                Ok(true)
            }
            None => {
                self.is_stale |= at.is_some();
                Ok(false)
            }
        }
    }

    /// Hands a waiter the turn that it has in the store.
    fn grant(&mut self, at: usize, fence: Version) {
        let Some(waiter) = self.waiting.remove(at) else { return };
        let (running, signals) = watch::channel(Signals::default());
        *self.handle.running.lock() = Some(Running { fence, signals: running.clone(), is_closed: false });
        self.held = Some(Held { fence, party: waiter.party.clone(), running });
        self.next_look = Instant::now() + self.gate.options.poll;
        let turn = Turn::new(self.key.clone(), fence, waiter.ticket.as_deref(), self.queue.clone(), self.handle.clone(), signals);
        waiter.answer(Ok(Some(turn)));
    }

    /// Ends the turn here, after another process took the session over.
    fn lose(&mut self) {
        if let Some(held) = self.held.take() {
            tracing::warn!(key = %self.key, "a turn was lost: another process took the session over");
            self.handle.forget(held.fence);
            held.running.send_modify(|signals| signals.is_lost = true);
        }
    }

    fn ended(&mut self, result: Result<()>) {
        let Some(ending) = self.ending.take() else { return };
        self.handle.forget(ending.fence);
        if let Some(done) = ending.done {
            drop(done.send(result));
        }
    }

    async fn renew(&mut self) -> Result<()> {
        if let Some(Held { fence, party, .. }) = &self.held
            && self.queue.renew(*fence, party).await? == Renewed::Lost
        {
            self.lose();
        }
        let tickets = self.waiting.iter().filter_map(|waiter| Some((waiter.ticket.as_deref()?, &waiter.party)));
        let tickets: Vec<(&str, &Party)> = tickets.collect();
        if !tickets.is_empty() {
            let count = tickets.len();
            let renewed = self.queue.renew_tickets(&tickets).await;
            if renewed.is_err() {
                // It may have written tickets whose keys are unknown.
                self.unknown_until = Some(Instant::now() + self.gate.options.lease);
            }
            let renewed = renewed?;
            let ticketed = self.waiting.iter_mut().filter(|waiter| waiter.ticket.is_some()).skip(count - renewed.len());
            ticketed.zip(renewed).for_each(|(waiter, ticket)| waiter.ticket = Some(ticket));
        }
        self.next_renewal = Instant::now() + self.gate.options.lease / 3;
        self.is_stale = true;
        Ok(())
    }

    /// Returns when to read the queue if no change is reported. No watch reports the end of a lease or ticket.
    fn next_look(&self, seen: &Seen) -> Instant {
        let (now, options) = (Instant::now(), &self.gate.options);
        let mut pause = options.poll;
        if self.held.is_none() && !self.waiting.is_empty() {
            let clock = options.clock.now();
            let first = seen.first.as_ref().and_then(|first| first.expires_at);
            for end in [seen.leased_until, first].into_iter().flatten() {
                pause = pause.min(Duration::try_from(end.duration_since(clock)).unwrap_or_default().max(EXPIRY_PAUSE));
            }
        }
        now + pause
    }

    /// Notes a failure of the store. Once it has failed for as long as a lease lasts, all waiters get the error.
    fn failed(&mut self, error: Error) {
        let now = Instant::now();
        tracing::warn!(%error, key = %self.key, "the queue of a session could not be read or written; it is tried again");
        self.failures += 1;
        self.is_stale = true;
        let since = *self.failing_since.get_or_insert(now);
        if error.kind() == ErrorKind::Corrupt || now.duration_since(since) >= self.gate.options.lease {
            self.attempted = None;
            for waiter in std::mem::take(&mut self.waiting) {
                self.leaving.extend(waiter.ticket.clone());
                waiter.answer(Err(again(&error)));
            }
        }
        if self.waiting.is_empty() && self.held.is_none() && self.attempted.is_none() {
            // Nothing renews them, so they expire.
            self.leaving.clear();
        }
        self.unknown_until = self.unknown_until.filter(|until| now < *until);
        if let Some(ending) = &mut self.ending {
            if let Some(done) = ending.done.take() {
                drop(done.send(Err(again(&error))));
            }
            if now >= ending.until {
                self.handle.forget(ending.fence);
                self.ending = None;
            }
        }
    }

    fn is_idle(&self) -> bool {
        let has_nothing = self.waiting.is_empty() && self.held.is_none() && self.ending.is_none();
        has_nothing && self.leaving.is_empty() && self.attempted.is_none() && self.unknown_until.is_none()
    }

    /// Ends the line, unless somebody arrived. The lock orders this against arrivals.
    fn end(&mut self) -> bool {
        let mut lines = self.gate.lines.lock();
        if !self.inbox.is_empty() {
            return false;
        }
        if lines.get(&self.key).is_some_and(|handle| handle.messages.same_channel(&self.handle.messages)) {
            lines.remove(&self.key);
        }
        self.inbox.close();
        true
    }

    /// Waits until there is something to do.
    async fn wait(&mut self) {
        if self.failures > 0 {
            let pause = RETRY.saturating_mul(1 << self.failures.min(12)).min(self.gate.options.poll);
            self.next_look = Instant::now() + pause;
            let message = tokio::time::timeout(pause, self.inbox.recv()).await;
            if let Ok(Some(message)) = message {
                self.note(message);
                self.next_look = Instant::now();
            }
            return;
        }
        let until = if self.waiting.is_empty() && self.held.is_none() { self.next_look } else { self.next_look.min(self.next_renewal) };
        let watched = async {
            match &mut self.watch {
                Some(watch) => watch.changed().await.map(|_| None),
                None => self.queue.watch().await.map(Some),
            }
        };
        tokio::select! {
            biased;
            message = self.inbox.recv() => {
                if let Some(message) = message {
                    self.note(message);
                }
            }
            watched = watched => match watched {
                // What changed before the watch began is not reported.
                Ok(Some(watch)) => (self.watch, self.is_stale) = (Some(watch), true),
                Ok(None) => self.is_stale = true,
                Err(error) => {
                    self.watch = None;
                    self.failed(error);
                }
            },
            () = tokio::time::sleep_until(until) => self.is_stale = true,
        }
    }

    fn gate_id(&self) -> &str {
        self.gate.id()
    }
}

/// Copies an error for another waiter.
fn again(error: &Error) -> Error {
    let copy = Error::new(error.kind(), error.message());
    if error.may_have_effect() { copy.with_unknown_effect() } else { copy.without_effect() }
}
