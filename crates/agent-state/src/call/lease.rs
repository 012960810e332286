//! The rows of a lease with a queue: who holds it, who waits for it, and the commits that move it from one to the next.
//!
//! One namespace holds one lease. Its rows:
//!
//! - `#holder` names the present holder. Only the next holder replaces it, so its version is the fencing token: a commit that expects
//!   this version is refused once somebody else took over.
//! - `#lease` expires unless the holder renews it. Nobody else can take over while it exists. A holder whose lease expired stays the
//!   holder until somebody does.
//! - `#interrupt` asks the holder to stop. It names the fencing token that it is meant for.
//! - A log of tickets, one for each waiter. Their keys are in commit order, so the first live one is next. A ticket expires unless its
//!   owner renews it.
//!
//! Becoming the holder is one commit. It expects that `#lease` is absent and that the own ticket is still there. A ticket only
//! appears behind all others, so a waiter that saw its own as the first one is still first when it commits.

use super::interrupt::Interrupt;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::{row, stored};
use treehold_core::ops::Version;
use treehold_core::retry::Attempts;
use treehold_store::{Batch, Condition, Item, Namespace, ScanEntry, ScanOptions, Store, Watch, log_key};

/// The key of the row whose version is the fencing token. These keys sort before those of tickets.
pub(super) const HOLDER: &str = "#holder";

/// The key of the row that exists until the time of the holder ends.
const LEASE: &str = "#lease";

/// The key of the row that asks the holder to stop.
const INTERRUPT: &str = "#interrupt";

/// What the keys of all tickets start with: versions have fewer than 20 digits.
const TICKETS: &str = "0";

/// How long the rows of a holder that died remain at least. Then they expire.
const ABANDONED: Duration = Duration::from_secs(7 * 24 * 3600);

/// How many tickets one commit writes at most.
const TICKETS_AT_ONCE: usize = 200;

/// A holder or a waiter. Its id is unique.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Party {
    /// The process, or what stands for it. One process cleans up only after itself.
    pub(super) gate: String,
    /// The id within the process.
    pub(super) id: String,
    /// The name of the owner, for people who look at the rows.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) owner: String,
}

/// The stored request to stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct InterruptRow {
    fence: u64,
    interrupt: Interrupt,
}

/// A ticket of the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) key: String,
    pub(super) party: Party,
    pub(super) expires_at: Option<Timestamp>,
}

/// The present holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) version: Version,
    pub(super) party: Party,
    /// The number of its ticket, or its version if it had none. Turns have them in growing order.
    arrival: u64,
}

/// The stored holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct HolderRow {
    #[serde(flatten)]
    party: Party,
    /// The number of its ticket, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    arrival: Option<u64>,
}

/// The rows of a lease at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Seen {
    pub(super) holder: Option<Holder>,
    /// When the lease of the holder ends; `None` if it has ended.
    pub(super) leased_until: Option<Timestamp>,
    interrupt: Option<InterruptRow>,
    /// The first ticket.
    pub(super) first: Option<Ticket>,
}

impl Seen {
    /// Returns the interrupt of the holder with this fencing token.
    pub(super) fn interrupt_of(&self, fence: Version) -> Option<&Interrupt> {
        self.interrupt.as_ref().filter(|row| row.fence == fence.number()).map(|row| &row.interrupt)
    }

    /// Returns whether the holder with this fencing token still is the holder.
    pub(super) fn is_held_with(&self, fence: Version) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.version == fence)
    }
}

/// What a renewal found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Renewed {
    /// The holder has its full time again.
    Held,
    /// Somebody else took over.
    Lost,
}

/// The queue of one lease.
#[derive(Clone)]
pub(super) struct LeaseQueue {
    store: Arc<dyn Store>,
    namespace: Namespace,
    /// How long a holder and a ticket live without renewal.
    time: Duration,
}

impl fmt::Debug for LeaseQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseQueue").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl LeaseQueue {
    pub(super) fn new(store: Arc<dyn Store>, namespace: Namespace, time: Duration) -> Self {
        Self { store, namespace, time }
    }

    pub(super) async fn watch(&self) -> Result<Watch> {
        self.store.watch(&self.namespace).await
    }

    /// Reads the rows that decide who is next. One round trip, however many wait.
    pub(super) async fn look(&self) -> Result<Seen> {
        let page = self.store.scan(&self.namespace, ScanOptions::new().with_limit(4).with_values(true)).await?;
        let mut seen = Seen::default();
        for entry in page.entries {
            let ScanEntry::Item(item) = entry else { continue };
            match item.key.as_str() {
                HOLDER => {
                    let HolderRow { party, arrival } = stored("holder of a turn", &item.value)?;
                    let arrival = arrival.unwrap_or(item.version.number());
                    seen.holder = Some(Holder { version: item.version, party, arrival });
                }
                LEASE => seen.leased_until = Some(item.expires_at.unwrap_or(Timestamp::MAX)),
                INTERRUPT => seen.interrupt = Some(stored("interrupt of a turn", &item.value)?),
                _ if seen.first.is_none() => {
                    seen.first = Some(Ticket { party: party(&item)?, expires_at: item.expires_at, key: item.key });
                }
                _ => {}
            }
        }
        Ok(seen)
    }

    /// Returns whether somebody holds the lease and their time has not ended.
    pub(super) async fn is_held(&self) -> Result<bool> {
        let rows = self.store.get_many(&self.namespace, &[HOLDER, LEASE], false).await?;
        Ok(rows.iter().all(Option::is_some))
    }

    /// Adds tickets at the end, in order, and returns their keys.
    pub(super) async fn enqueue(&self, parties: &[&Party]) -> Result<Vec<String>> {
        let mut keys = Vec::with_capacity(parties.len());
        for parties in parties.chunks(TICKETS_AT_ONCE) {
            let batch = parties.iter().fold(Batch::new(), |batch, party| batch.append(&self.namespace, row(party), Some(self.time)));
            keys.extend(self.store.commit(batch).await?.into_iter().map(log_key));
        }
        Ok(keys)
    }

    /// Makes a waiter the holder, and returns its fencing token. `None` if it is not its turn: somebody else holds the lease, its ticket
    /// is gone, or, for a waiter without a ticket, somebody else waits. With `from`, the holder with that fencing token hands over.
    ///
    /// The caller has seen that its ticket is the first one.
    pub(super) async fn take(&self, ticket: Option<&str>, from: Option<Version>, party: &Party) -> Result<Option<Version>> {
        let space = &self.namespace;
        let mut batch = match ticket {
            Some(ticket) => Batch::new().expect(space, ticket, Condition::Exists),
            None => Batch::new().expect(space, TICKETS, Condition::NoneBeneath),
        };
        batch = match from {
            Some(version) => batch.expect(space, HOLDER, Condition::Version(version)),
            None => batch.expect(space, LEASE, Condition::Absent),
        };
        let holder = HolderRow { party: party.clone(), arrival: ticket.map(number_of) };
        batch = batch.put_for(space, HOLDER, row(&holder), self.held_time()).put_for(space, LEASE, row(party), self.time);
        batch = batch.delete(space, INTERRUPT);
        if let Some(ticket) = ticket {
            batch = batch.delete(space, ticket);
        }
        let versions = unless_refused(self.store.commit(batch).await)?;
        versions.map(|versions| versions.first().copied().ok_or_else(uncounted)).transpose()
    }

    /// Ends the turn of a holder. Does nothing if somebody else took over.
    pub(super) async fn release(&self, fence: Version) -> Result<()> {
        let space = &self.namespace;
        let batch = Batch::new().expect(space, HOLDER, Condition::Version(fence));
        let batch = batch.delete(space, HOLDER).delete(space, LEASE).delete(space, INTERRUPT);
        unless_refused(self.store.commit(batch).await).map(drop)
    }

    /// Renews the lease of a holder, even if it has ended, unless somebody took over.
    pub(super) async fn renew(&self, fence: Version, party: &Party) -> Result<Renewed> {
        let space = &self.namespace;
        let held = Batch::new().expect(space, HOLDER, Condition::Version(fence));
        let held = held.touch(space, HOLDER, Some(self.held_time()));
        let touch = held.clone().expect(space, LEASE, Condition::Exists).touch(space, LEASE, Some(self.time));
        match self.store.commit(touch).await {
            Ok(_) => return Ok(Renewed::Held),
            Err(error) if error.kind() == ErrorKind::Conflict && error.change() == Some(0) => return Ok(Renewed::Lost),
            Err(error) if error.kind() == ErrorKind::Conflict => {}
            Err(error) => return Err(error),
        }
        let revive = unless_refused(self.store.commit(held.put_for(space, LEASE, row(party), self.time)).await)?;
        Ok(if revive.is_some() { Renewed::Held } else { Renewed::Lost })
    }

    /// Gives the tickets of one process, in order, their full time again.
    ///
    /// A ticket that expired gets its place back if nobody behind it can have had a turn meanwhile: the present holder arrived before it.
    /// Otherwise it, and all after it, get new places at the end, so that turns stay in the order of their numbers and the process keeps
    /// its own order. Returns the keys of the new tickets, which replace the last ones of `tickets`.
    pub(super) async fn renew_tickets(&self, tickets: &[(&str, &Party)]) -> Result<Vec<String>> {
        let mut replaced = Vec::new();
        for tickets in tickets.chunks(TICKETS_AT_ONCE) {
            if replaced.is_empty() {
                let live = tickets.iter().fold(Batch::new(), |batch, (key, _)| self.keep_ticket(batch, key));
                if unless_refused(self.store.commit(live).await)?.is_some() {
                    continue;
                }
            }
            let mut attempts = Attempts::new();
            loop {
                let (batch, count) = self.renewal(tickets, !replaced.is_empty()).await?;
                if let Some(versions) = unless_refused(self.store.commit(batch).await)? {
                    replaced.extend(versions[versions.len() - count..].iter().copied().map(log_key));
                    break;
                }
                attempts.lost().await?;
            }
        }
        Ok(replaced)
    }

    /// Returns the commit that renews tickets of which some may have expired, and how many new tickets it ends with.
    async fn renewal(&self, tickets: &[(&str, &Party)], must_replace: bool) -> Result<(Batch, usize)> {
        let space = &self.namespace;
        let seen = self.look().await?;
        let keys: Vec<&str> = tickets.iter().map(|(key, _)| *key).collect();
        let rows = self.store.get_many(space, &keys, false).await?;
        let lapsed = if must_replace { Some(0) } else { rows.iter().position(Option::is_none) };
        let ahead = seen.holder.filter(|holder| !must_replace && lapsed.is_some_and(|at| holder.arrival < number_of(keys[at])));
        if let Some(holder) = ahead {
            let batch = Batch::new().expect(space, HOLDER, Condition::Version(holder.version));
            let batch = tickets.iter().zip(&rows).fold(batch, |batch, ((key, party), found)| match found {
                Some(_) => self.keep_ticket(batch, key),
                None => batch.put_for(space, *key, row(party), self.time),
            });
            return Ok((batch, 0));
        }
        let (kept, lost) = tickets.split_at(lapsed.unwrap_or(tickets.len()));
        let batch = kept.iter().fold(Batch::new(), |batch, (key, _)| self.keep_ticket(batch, key));
        let batch = lost.iter().fold(batch, |batch, (key, _)| batch.delete(space, *key));
        let batch = lost.iter().fold(batch, |batch, (_, party)| batch.append(space, row(party), Some(self.time)));
        Ok((batch, lost.len()))
    }

    /// Gives a ticket that exists its full time.
    fn keep_ticket(&self, batch: Batch, key: &str) -> Batch {
        batch.expect(&self.namespace, key, Condition::Exists).touch(&self.namespace, key, Some(self.time))
    }

    /// Removes tickets.
    pub(super) async fn leave(&self, tickets: &[String]) -> Result<()> {
        for tickets in tickets.chunks(TICKETS_AT_ONCE) {
            self.store.commit(tickets.iter().fold(Batch::new(), |batch, key| batch.delete(&self.namespace, key))).await?;
        }
        Ok(())
    }

    /// Removes the tickets of a process that are not among those it knows.
    pub(super) async fn leave_unknown(&self, gate: &str, known: &[&str]) -> Result<()> {
        let mut options = ScanOptions::new().with_prefix(TICKETS).with_values(true);
        loop {
            let page = self.store.scan(&self.namespace, options.clone()).await?;
            let mut unknown = Vec::new();
            for entry in page.entries {
                let ScanEntry::Item(item) = entry else { continue };
                if party(&item)?.gate == gate && !known.contains(&item.key.as_str()) {
                    unknown.push(item.key);
                }
            }
            self.leave(&unknown).await?;
            match page.next {
                Some(next) => options = options.with_start_after(next),
                None => return Ok(()),
            }
        }
    }

    /// Returns the owner of a ticket; `None` if the ticket is gone.
    pub(super) async fn ticket_party(&self, key: &str) -> Result<Option<Party>> {
        self.store.get(&self.namespace, key).await?.map(|item| party(&item)).transpose()
    }

    /// Asks the present holder to stop, and returns whether there is one. The first request of a turn wins.
    pub(super) async fn interrupt(&self, interrupt: &Interrupt) -> Result<bool> {
        let (space, mut attempts) = (&self.namespace, Attempts::new());
        loop {
            let seen = self.look().await?;
            let Some(holder) = seen.holder.as_ref().filter(|_| seen.leased_until.is_some()) else { return Ok(false) };
            if seen.interrupt_of(holder.version).is_some() {
                return Ok(true);
            }
            let batch = Batch::new().expect(space, HOLDER, Condition::Version(holder.version)).expect(space, LEASE, Condition::Exists);
            let value = row(&InterruptRow { fence: holder.version.number(), interrupt: interrupt.clone() });
            if unless_refused(self.store.commit(batch.put_for(space, INTERRUPT, value, self.held_time())).await)?.is_some() {
                return Ok(true);
            }
            attempts.lost().await?;
        }
    }

    fn held_time(&self) -> Duration {
        ABANDONED.max(self.time.saturating_mul(4))
    }
}

/// Returns `None` for a batch whose preconditions do not hold.
fn unless_refused(committed: Result<Vec<Version>>) -> Result<Option<Vec<Version>>> {
    match committed {
        Ok(versions) => Ok(Some(versions)),
        Err(error) if error.kind() == ErrorKind::Conflict => Ok(None),
        Err(error) => Err(error),
    }
}

fn party(item: &Item) -> Result<Party> {
    stored("ticket of a turn", &item.value)
}

/// Returns the number of a ticket. Its key is that number in digits.
pub(super) fn number_of(ticket: &str) -> u64 {
    ticket.parse().unwrap_or(u64::MAX)
}

fn uncounted() -> Error {
    Error::new(ErrorKind::Internal, "the store returned no version for a put")
}
