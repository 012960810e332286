//! Locks with an owner token, a fencing token and an expiry, across processes.
//!
//! A lock is a row that exists while the lock is held. Acquiring it is one commit that creates the row, so the version of the row is the
//! fencing token: it is unique, and grows with each holder. Renewing only moves the expiry, so the version stays. A holder that died loses
//! the lock when the row expires, by the clock of the store.
//!
//! A waiter has no place in a line. Turns of sessions, which are served in order, have a mechanism of their own.

mod guard;

pub use guard::LockGuard;

use crate::contract::Fence;
use crate::owner::{BundleOwner, check_name};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::{row, stored};
use treehold_core::ops::Version;
use treehold_store::{Batch, Condition, Item, Namespace, Store, expiry};
use uuid::Uuid;

/// How long a lock is held unless it is renewed.
pub const LOCK_TTL: Duration = Duration::from_secs(60);

/// The longest time that a lock can be held without a renewal.
pub const LOCK_TTL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The longest wait, so that its end is a time that exists.
const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A waiter asks again after this time even if no change was reported.
const POLL: Duration = Duration::from_secs(1);

/// How to acquire a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockOptions {
    /// How long it is held unless it is renewed: 1 s to [`LOCK_TTL_MAX`]. Default [`LOCK_TTL`].
    pub time_to_live: Duration,
    /// Who holds it, for those who find it held. Default empty.
    pub holder: String,
    /// How long to wait for it, at most a year. Default zero.
    pub wait: Duration,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self { time_to_live: LOCK_TTL, holder: String::new(), wait: Duration::ZERO }
    }
}

impl LockOptions {
    /// Holds it for a minute, and does not wait.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how long it is held unless it is renewed.
    #[must_use]
    pub fn with_time_to_live(mut self, time_to_live: Duration) -> Self {
        self.time_to_live = time_to_live;
        self
    }

    /// Sets who holds it.
    #[must_use]
    pub fn with_holder(mut self, holder: impl Into<String>) -> Self {
        self.holder = holder.into();
        self
    }

    /// Sets how long to wait for it.
    #[must_use]
    pub fn with_wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}

/// A lock that the caller holds.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lock {
    /// Its name.
    pub name: String,
    /// What proves that the caller holds it. Keep it secret.
    pub owner_token: String,
    /// A number that is greater than that of every earlier holder.
    pub fencing_token: u64,
    /// Who holds it.
    pub holder: String,
    /// When it ends unless it is renewed.
    pub expires_at: Timestamp,
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, fencing_token, holder, expires_at, .. } = self;
        let shown = (name, fencing_token, holder, expires_at);
        f.debug_tuple("Lock").field(&shown).finish()
    }
}

/// Who holds a lock, for everybody else. It is also the source of the error of [`Locks::acquire`] for a lock that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockHolder {
    /// The name of the lock.
    pub name: String,
    /// A number that is greater than that of every earlier holder.
    pub fencing_token: u64,
    /// Who holds it.
    pub holder: String,
    /// When it ends unless it is renewed.
    pub expires_at: Timestamp,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the lock `{}` is held until {}", self.name, self.expires_at)
    }
}

impl std::error::Error for LockHolder {}

/// The row of a lock.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct LockRow {
    owner_token: String,
    holder: String,
}

/// The locks of an owner in a store. Clones share them.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use treehold_agent_state::{BundleOwner, locks::{LockOptions, Locks}};
/// use treehold_store::MemoryStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let locks = Locks::new(Arc::new(MemoryStore::new()), BundleOwner::shared("acme", "helper")?);
/// let held = locks.acquire("build", &LockOptions::new()).await?;
/// assert!(locks.acquire("build", &LockOptions::new()).await.is_err());
/// locks.release("build", &held.owner_token).await?;
/// assert!(locks.acquire("build", &LockOptions::new()).await?.fencing_token > held.fencing_token);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Locks {
    store: Arc<dyn Store>,
    owner: BundleOwner,
    clock: Clock,
}

impl Locks {
    /// Opens the locks of an owner.
    pub fn new(store: Arc<dyn Store>, owner: BundleOwner) -> Self {
        Self { store, owner, clock: Clock::system() }
    }

    /// Sets the clock that says when a lock ends. Use the store's clock, which decides.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Acquires a lock. Cost: one round trip if it is free.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if another caller holds it until the end of the wait; the source is a [`LockHolder`].
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a bad name or time to live. Otherwise as [`Store::commit`]; a lock that was
    /// acquired by a commit whose answer was lost ends by itself.
    pub async fn acquire(&self, name: &str, options: &LockOptions) -> Result<Lock> {
        self.acquire_at(name, options).await.map(|(lock, _)| lock)
    }

    /// Acquires a lock. Also returns when the attempt that succeeded began.
    async fn acquire_at(&self, name: &str, options: &LockOptions) -> Result<(Lock, Instant)> {
        let rows = self.rows(name)?;
        check_time_to_live(options.time_to_live)?;
        if options.holder.len() > crate::owner::NAME_BYTES_MAX {
            return Err(Error::invalid_argument("the holder of the lock is over 512 bytes; shorten it"));
        }
        let deadline = Instant::now() + options.wait.min(WAIT_MAX);
        let mut watch = None;
        loop {
            let began = Instant::now();
            let held = match self.try_acquire(&rows, name, options).await? {
                Ok(lock) => return Ok((lock, began)),
                Err(held) => held,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(is_held(held));
            }
            // The watch is made before the row is read again, so that no release is missed.
            match &mut watch {
                None => watch = Some(self.store.watch(&rows).await?),
                Some(watch) => {
                    let ends = Duration::try_from(held.expires_at.duration_since(self.clock.now())).unwrap_or_default();
                    let pause = left.min(POLL).min(ends.max(Duration::from_millis(10)));
                    if let Ok(changed) = tokio::time::timeout(pause, watch.changed()).await {
                        changed?;
                    }
                }
            }
        }
    }

    /// Tries once. Returns who holds the lock if it is not free.
    async fn try_acquire(&self, rows: &Namespace, name: &str, options: &LockOptions) -> Result<Result<Lock, LockHolder>> {
        loop {
            let owner_token = Uuid::new_v4().simple().to_string();
            let value = row(&LockRow { owner_token: owner_token.clone(), holder: options.holder.clone() });
            let expires_at = expiry(self.clock.now(), options.time_to_live);
            let batch = Batch::new().expect(rows, name, Condition::Absent).put_for(rows, name, value, options.time_to_live);
            match self.store.commit(batch).await {
                Ok(versions) => {
                    let version = versions.first().copied().unwrap_or(Version::new(0));
                    let (name, holder) = (name.to_owned(), options.holder.clone());
                    return Ok(Ok(Lock { name, owner_token, fencing_token: version.number(), holder, expires_at }));
                }
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    if let Some(held) = self.peek(name).await? {
                        return Ok(Err(held));
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Moves the end of a lock that the caller holds. Cost: two round trips.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if the caller lost it: stop the work that it protects. Otherwise as [`Locks::acquire`].
    pub async fn renew(&self, name: &str, owner_token: &str, time_to_live: Duration) -> Result<Lock> {
        let rows = self.rows(name)?;
        check_time_to_live(time_to_live)?;
        let (item, held) = self.held(&rows, name).await?.filter(|(_, held)| held.owner_token == owner_token).ok_or_else(|| lost(name))?;
        let expires_at = expiry(self.clock.now(), time_to_live);
        let batch = Batch::new().expect(&rows, name, Condition::Version(item.version)).touch(&rows, name, Some(time_to_live));
        match self.store.commit(batch).await {
            Err(error) if error.kind() == ErrorKind::Conflict => Err(lost(name)),
            Err(error) => Err(error),
            Ok(_) => {
                let LockRow { owner_token, holder } = held;
                Ok(Lock { name: name.to_owned(), owner_token, fencing_token: item.version.number(), holder, expires_at })
            }
        }
    }

    /// Releases a lock. Releasing one that the caller does not hold changes nothing. Cost: two round trips.
    ///
    /// # Errors
    /// As [`Locks::acquire`].
    pub async fn release(&self, name: &str, owner_token: &str) -> Result<()> {
        let rows = self.rows(name)?;
        let Some((item, _)) = self.held(&rows, name).await?.filter(|(_, held)| held.owner_token == owner_token) else { return Ok(()) };
        let batch = Batch::new().expect(&rows, name, Condition::Version(item.version)).delete(&rows, name);
        match self.store.commit(batch).await {
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(()),
            done => done.map(drop),
        }
    }

    /// Returns who holds a lock, or `None`. Cost: one round trip.
    ///
    /// # Errors
    /// As [`Locks::acquire`].
    pub async fn peek(&self, name: &str) -> Result<Option<LockHolder>> {
        let rows = self.rows(name)?;
        let held = self.held(&rows, name).await?;
        Ok(held.map(|(item, held)| LockHolder {
            name: name.to_owned(),
            fencing_token: item.version.number(),
            holder: held.holder,
            expires_at: item.expires_at.unwrap_or(Timestamp::MAX),
        }))
    }

    /// Returns the row that must still have its version for a holder to write, for [`SaveOptions::fence`](crate::SaveOptions::fence). It
    /// fences states of the same partition: a lock of [`BundleOwner::shared`] cannot fence those of a user.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a bad name.
    pub fn fence(&self, lock: &Lock) -> Result<Fence> {
        Ok(Fence { namespace: self.rows(&lock.name)?, key: lock.name.clone(), version: Version::new(lock.fencing_token) })
    }

    async fn held(&self, rows: &Namespace, name: &str) -> Result<Option<(Item, LockRow)>> {
        let Some(item) = self.store.get(rows, name).await? else { return Ok(None) };
        let held = stored("lock", &item.value)?;
        Ok(Some((item, held)))
    }

    /// Each lock has a namespace of its own, so that a release wakes only those who wait for it.
    fn rows(&self, name: &str) -> Result<Namespace> {
        check_name("name of the lock", name)?;
        self.owner.rows("locks", [name])
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Locks({})", self.store)
    }
}

fn check_time_to_live(time_to_live: Duration) -> Result<()> {
    if (Duration::from_secs(1)..=LOCK_TTL_MAX).contains(&time_to_live) {
        return Ok(());
    }
    Err(Error::invalid_argument("the time to live of a lock must be from 1 second to 1 day; renew it to hold it longer"))
}

fn is_held(held: LockHolder) -> Error {
    let message = format!("the lock `{}` is held until {}; try again then", held.name, held.expires_at);
    Error::new(ErrorKind::Conflict, message).with_source(held).without_effect()
}

fn lost(name: &str) -> Error {
    let message = format!("the lock `{name}` is no longer yours; stop the work that it protects, and acquire it again");
    Error::new(ErrorKind::Conflict, message).without_effect()
}
