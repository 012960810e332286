//! Turns for remote callers, such as HTTP clients. They poll with a ticket instead of holding a [`Turn`](super::Turn).
//!
//! They wait in the same queues as the calls of this process. Between two requests nothing about them is kept in memory.

use super::gate::{TurnGate, TurnKey, TurnOptions, busy, lost};
use super::interrupt::Interrupt;
use super::lease::{LeaseQueue, Party, Renewed, Seen};
use jiff::Timestamp;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_core::retry::Attempts;
use treehold_store::Watch;

/// The shortest time to wait for the end of somebody else's lease.
const EXPIRY_PAUSE: Duration = Duration::from_millis(2);

/// The longest wait, so that its end is a time that exists.
const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The most bytes of an owner's name.
const OWNER_BYTES_MAX: usize = 255;

/// A request for a turn on behalf of a caller elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TurnRequest {
    /// Who asks, for people. At most 255 bytes.
    pub owner: String,
    /// How long to wait for the turn, at most a year. Default zero.
    pub wait: Duration,
    /// The ticket of an earlier request, whose place it keeps.
    pub ticket: Option<String>,
    /// Whether to refuse the turn, rather than to queue for it, if it is not free. Ignored with a ticket. Default false.
    pub is_try: bool,
}

impl TurnRequest {
    /// Asks for a turn, without waiting.
    pub fn new(owner: impl Into<String>) -> Self {
        Self { owner: owner.into(), ..Self::default() }
    }

    /// Sets how long to wait.
    #[must_use]
    pub fn with_wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sets whether to refuse the turn, rather than to queue for it, if it is not free.
    #[must_use]
    pub fn with_try(mut self, is_try: bool) -> Self {
        self.is_try = is_try;
        self
    }

    /// Keeps the place of an earlier request.
    #[must_use]
    pub fn with_ticket(mut self, ticket: Option<String>) -> Self {
        self.ticket = ticket;
        self
    }
}

/// The answer to a [`TurnRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnAnswer {
    /// The caller has the turn.
    Granted(LeaseGrant),
    /// Others are first. The ticket keeps the place until a lease has passed since the last request with it.
    Waiting {
        /// The ticket for the next request.
        ticket: String,
    },
}

/// A lease that was granted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseGrant {
    /// What renews and releases it. Only its owner should know it.
    pub token: String,
    /// The fencing token, greater than that of every earlier holder.
    pub fence: u64,
    /// When it ends unless it is renewed.
    pub expires_at: Timestamp,
}

/// A lease that was renewed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseRenewal {
    /// When it ends unless it is renewed again.
    pub expires_at: Timestamp,
    /// The interrupt of the turn, if there is one.
    pub interrupt: Option<Interrupt>,
}

impl TurnGate {
    /// Asks for a turn on behalf of a caller elsewhere. A caller that repeats a request with its ticket after a lost answer gets the same
    /// turn.
    ///
    /// Dropping the future gives the place up, also that of the ticket.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a malformed ticket or an owner that is too long,
    /// [`Unavailable`](ErrorKind::Unavailable) with [`TurnRefusal::Busy`](super::TurnRefusal::Busy) for a
    /// [try](TurnRequest::is_try) while the turn is not free. Otherwise those of the store.
    pub async fn request(&self, key: &TurnKey, request: TurnRequest) -> Result<TurnAnswer> {
        if request.owner.len() > OWNER_BYTES_MAX {
            return Err(Error::invalid_argument(format!("the owner of a turn is over {OWNER_BYTES_MAX} bytes; shorten it")));
        }
        let (ticket, party) = match &request.ticket {
            Some(text) => {
                let (key, id) = parse_ticket(text)?;
                (Some(key), Party { gate: id.clone(), id, owner: request.owner })
            }
            None => (None, new_party(request.owner)),
        };
        let (answer, answered) = oneshot::channel();
        let asking = Asking {
            key: key.clone(),
            queue: self.0.queue(key),
            options: self.0.options.clone(),
            party,
            ticket,
            races: Attempts::new(),
            is_try: request.is_try,
        };
        tokio::spawn(asking.run(Instant::now() + request.wait.min(WAIT_MAX), answer));
        answered.await.unwrap_or_else(|_| Err(busy(key)))
    }

    /// Renews the turn of a caller elsewhere, and returns its interrupt if there is one. A turn whose lease has ended is renewed too
    /// unless somebody took over.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) with [`TurnRefusal::Lost`](super::TurnRefusal::Lost) if the turn was taken over or released,
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a malformed token. Otherwise those of the store.
    pub async fn renew(&self, key: &TurnKey, token: &str) -> Result<LeaseRenewal> {
        let options = &self.0.options;
        renew(&self.0.queue(key), token, options).await?.ok_or_else(|| lost(key))
    }

    /// Ends the turn of a caller elsewhere by its token, or gives its place up by its ticket. A ticket also ends a turn that was granted
    /// with it and whose answer was lost. Ending one that was taken over or released is not an error.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a malformed token. Otherwise those of the store.
    pub async fn end(&self, key: &TurnKey, token: &str) -> Result<()> {
        let queue = self.0.queue(key);
        let Ok((ticket, id)) = parse_ticket(token) else { return release(&queue, token).await };
        if queue.ticket_party(&ticket).await?.is_some_and(|party| party.id == id) {
            queue.leave(&[ticket]).await?;
        }
        match queue.look().await?.holder.filter(|holder| holder.party.id == id) {
            Some(holder) => queue.release(holder.version).await,
            None => Ok(()),
        }
    }
}

/// A request that is being answered. It runs as a task of its own, so that a caller that goes away never cuts a commit off.
struct Asking {
    key: TurnKey,
    queue: LeaseQueue,
    options: TurnOptions,
    party: Party,
    ticket: Option<String>,
    races: Attempts,
    is_try: bool,
}

impl Asking {
    async fn run(mut self, until: Instant, mut answer: oneshot::Sender<Result<TurnAnswer>>) {
        let result = self.ask(until, &mut answer).await;
        match answer.send(result) {
            Ok(()) => {}
            Err(Ok(TurnAnswer::Granted(grant))) => report(self.queue.release(Version::new(grant.fence)).await),
            Err(_) => {
                if let Some(ticket) = self.ticket {
                    report(self.queue.leave(&[ticket]).await);
                }
            }
        }
    }

    async fn ask(&mut self, until: Instant, answer: &mut oneshot::Sender<Result<TurnAnswer>>) -> Result<TurnAnswer> {
        if self.ticket.is_none()
            && let Some(fence) = self.queue.take(None, None, &self.party).await?
        {
            return Ok(self.granted(fence));
        }
        if self.ticket.is_none() && self.is_try {
            return Err(busy(&self.key));
        }
        let (mut watch, mut renew_at): (Option<Watch>, Instant) = (None, Instant::now());
        loop {
            let seen = self.queue.look().await?;
            if let Some(holder) = seen.holder.as_ref().filter(|holder| holder.party.id == self.party.id) {
                // An earlier request with this ticket was granted, and its answer was lost.
                let fence = holder.version;
                if self.queue.renew(fence, &self.party).await? == Renewed::Held {
                    return Ok(self.granted(fence));
                }
            }
            let now = Instant::now();
            let ticket = match self.ticket.clone().filter(|_| now < renew_at) {
                Some(ticket) => ticket,
                None => {
                    renew_at = now + self.options.lease / 3;
                    let ticket = self.renewed_ticket().await?;
                    self.ticket = Some(ticket);
                    continue;
                }
            };
            let is_next = seen.first.as_ref().is_some_and(|first| first.party.id == self.party.id);
            if is_next && seen.leased_until.is_none() {
                if let Some(fence) = self.queue.take(Some(&ticket), None, &self.party).await? {
                    return Ok(self.granted(fence));
                }
                // The ticket expired, or the holder came back.
                renew_at = now;
                self.races.lost().await?;
                continue;
            }
            if now >= until {
                return Ok(TurnAnswer::Waiting { ticket: format!("{ticket}.{}", self.party.id) });
            }
            let Some(watch) = &mut watch else {
                watch = Some(self.queue.watch().await?);
                continue;
            };
            let pause = self.pause(&seen).min(until.min(renew_at) - now);
            tokio::select! {
                () = answer.closed() => return Ok(TurnAnswer::Waiting { ticket }),
                changed = watch.changed() => drop(changed?),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Returns the ticket with its full time. One that expired has lost its place, and a new one is last.
    async fn renewed_ticket(&self) -> Result<String> {
        if let Some(key) = &self.ticket
            && self.queue.ticket_party(key).await?.is_some_and(|party| party.id == self.party.id)
        {
            let replaced = self.queue.renew_tickets(&[(key, &self.party)]).await?.pop();
            return Ok(replaced.unwrap_or_else(|| key.clone()));
        }
        let ticket = self.queue.enqueue(&[&self.party]).await?.pop();
        ticket.ok_or_else(|| Error::new(ErrorKind::Internal, "the store returned no version for an append"))
    }

    /// Returns how long to wait for what no watch reports: the end of the lease or of the first ticket.
    fn pause(&self, seen: &Seen) -> Duration {
        let now = self.options.clock.now();
        let first = seen.first.as_ref().and_then(|first| first.expires_at);
        let ends = [seen.leased_until, first].into_iter().flatten();
        let ends = ends.map(|end| Duration::try_from(end.duration_since(now)).unwrap_or_default().max(EXPIRY_PAUSE));
        ends.fold(self.options.poll, Duration::min)
    }

    fn granted(&self, fence: Version) -> TurnAnswer {
        TurnAnswer::Granted(grant(&self.party, fence, &self.options.clock, self.options.lease))
    }
}

fn new_party(owner: String) -> Party {
    let id = uuid::Uuid::new_v4().simple().to_string();
    Party { gate: id.clone(), id, owner }
}

fn grant(party: &Party, fence: Version, clock: &Clock, time: Duration) -> LeaseGrant {
    let token = format!("{}.{}", fence.number(), party.id);
    LeaseGrant { token, fence: fence.number(), expires_at: treehold_store::expiry(clock.now(), time) }
}

async fn renew(queue: &LeaseQueue, token: &str, options: &TurnOptions) -> Result<Option<LeaseRenewal>> {
    let (fence, seen) = (parse_token(token)?, queue.look().await?);
    let Some(holder) = held(&seen, &fence) else { return Ok(None) };
    if queue.renew(fence.0, &holder).await? == Renewed::Lost {
        return Ok(None);
    }
    let expires_at = treehold_store::expiry(options.clock.now(), options.lease);
    Ok(Some(LeaseRenewal { expires_at, interrupt: seen.interrupt_of(fence.0).cloned() }))
}

async fn release(queue: &LeaseQueue, token: &str) -> Result<()> {
    let fence = parse_token(token)?;
    match held(&queue.look().await?, &fence) {
        Some(_) => queue.release(fence.0).await,
        None => Ok(()),
    }
}

/// Returns the holder if it is the one with the token.
fn held(seen: &Seen, (fence, id): &(Version, String)) -> Option<Party> {
    seen.holder.as_ref().filter(|holder| holder.version == *fence && holder.party.id == *id).map(|holder| holder.party.clone())
}

fn parse_token(text: &str) -> Result<(Version, String)> {
    let parsed = text.split_once('.').and_then(|(fence, id)| Some((Version::new(fence.parse().ok()?), id.to_owned())));
    parsed.ok_or_else(|| Error::invalid_argument("the token is malformed; use the one that acquire returned"))
}

fn parse_ticket(text: &str) -> Result<(String, String)> {
    let is_key = |key: &str| key.len() == 20 && key.bytes().all(|byte| byte.is_ascii_digit()) && key.starts_with('0');
    let is_id = |id: &str| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parsed = text.split_once('.').filter(|(key, id)| is_key(key) && is_id(id));
    let parsed = parsed.map(|(key, id)| (key.to_owned(), id.to_owned()));
    parsed.ok_or_else(|| Error::invalid_argument("the ticket is malformed; use the one that acquire returned, or none"))
}

fn report(result: Result<()>) {
    if let Err(error) = result {
        tracing::warn!(%error, "a place in a queue could not be given up; it ends by itself");
    }
}
