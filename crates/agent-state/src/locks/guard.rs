//! A lock that is renewed until it is dropped.

use super::{Lock, LockOptions, Locks};
use crate::contract::Fence;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use treehold_core::error::{ErrorKind, Result};

/// How many renewals fall into one time to live, so that a failed one does not end the lock.
const RENEWALS: u32 = 3;

impl Locks {
    /// Acquires a lock and renews it, three times in each time to live, until the guard is dropped.
    ///
    /// # Errors
    /// As [`Locks::acquire`].
    pub async fn hold(&self, name: &str, options: &LockOptions) -> Result<LockGuard> {
        let (lock, began) = self.acquire_at(name, options).await?;
        let fence = self.fence(&lock)?;
        let (lost, has_lost) = watch::channel(false);
        let (locks, held, time_to_live) = (self.clone(), lock.clone(), options.time_to_live);
        let until = began + time_to_live;
        let renewal = tokio::spawn(async move {
            locks.renew_until_lost(&held, time_to_live, until).await;
            lost.send_replace(true);
        });
        Ok(LockGuard { locks: self.clone(), lock, fence, has_lost, renewal: Some(renewal) })
    }

    /// Returns once the lock is lost, or may be because no renewal was confirmed in time.
    async fn renew_until_lost(&self, lock: &Lock, time_to_live: Duration, mut until: Instant) {
        loop {
            tokio::time::sleep(time_to_live / RENEWALS).await;
            let asked = Instant::now();
            match tokio::time::timeout_at(until, self.renew(&lock.name, &lock.owner_token, time_to_live)).await {
                Ok(Ok(_)) => until = asked + time_to_live,
                Ok(Err(error)) if error.kind() == ErrorKind::Conflict => return,
                Ok(Err(error)) if Instant::now() < until => tracing::warn!(%error, lock = lock.name, "a lock could not be renewed"),
                Ok(Err(_)) | Err(_) => return,
            }
        }
    }
}

/// A lock that is renewed while the guard lives, and released when it is dropped.
#[derive(Debug)]
pub struct LockGuard {
    locks: Locks,
    lock: Lock,
    fence: Fence,
    has_lost: watch::Receiver<bool>,
    renewal: Option<JoinHandle<()>>,
}

impl LockGuard {
    /// Returns the lock.
    pub fn lock(&self) -> &Lock {
        &self.lock
    }

    /// Returns the row that must still have its version for the holder to write.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Returns whether the lock is lost.
    pub fn is_lost(&self) -> bool {
        *self.has_lost.borrow()
    }

    /// Waits until the lock is lost. Select on it beside the work that the lock protects.
    pub async fn lost(&self) {
        // An error means that the renewal ended, which it does only after the loss.
        let _ = self.has_lost.clone().wait_for(|lost| *lost).await;
    }

    /// Releases the lock and waits until others can acquire it.
    ///
    /// # Errors
    /// As [`Locks::release`]. The lock then ends by itself.
    pub async fn release(mut self) -> Result<()> {
        self.stop_renewal();
        self.locks.release(&self.lock.name, &self.lock.owner_token).await
    }

    fn stop_renewal(&mut self) -> bool {
        self.renewal.take().inspect(JoinHandle::abort).is_some()
    }
}

impl Drop for LockGuard {
    /// Releases the lock in the background.
    fn drop(&mut self) {
        if !self.stop_renewal() {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (locks, lock) = (self.locks.clone(), self.lock.clone());
            runtime.spawn(async move {
                if let Err(error) = locks.release(&lock.name, &lock.owner_token).await {
                    tracing::warn!(%error, lock = lock.name, "a lock could not be released; it ends by itself");
                }
            });
        }
    }
}
