//! Requests whose answers may be large, and how many of them one user has at once.
//!
//! A result stays in memory from the moment it is computed until its last byte is sent, and one user may send hundreds of requests at once.
//! So a request with a large answer takes a slot before it computes anything, and keeps the slot until the client has read the answer. The
//! next request of the user waits meanwhile; other users have slots of their own.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::OpKind;
use treehold_core::shared::Shared;
use treehold_core::work::Owner;

/// How many requests of one user may have a large answer in memory.
pub(super) const LARGE_PER_USER_MAX: usize = 8;

/// The largest answer that gives its slot back as soon as it is computed, in bytes.
pub(super) const SMALL_BYTES: u64 = 256 << 10;

/// The slots of all users.
#[derive(Debug, Default)]
pub(super) struct LargeAnswers {
    free: Mutex<Shared<Owner, Semaphore>>,
}

/// A slot, given back when the last clone is dropped.
#[derive(Debug, Clone)]
pub(super) struct LargeAnswer(#[expect(dead_code, reason = "held for its drop")] Arc<OwnedSemaphorePermit>);

tokio::task_local! {
    /// The slot of the current request, once it has one.
    static TAKEN: Arc<tokio::sync::Mutex<Option<LargeAnswer>>>;
}

impl LargeAnswers {
    /// Runs a request. Returns its result, and its slot if it has taken one.
    pub(super) async fn during<T>(request: impl Future<Output = T>) -> (T, Option<LargeAnswer>) {
        let taken = Arc::default();
        let result = TAKEN.scope(Arc::clone(&taken), request).await;
        let slot = taken.lock().await.take();
        (result, slot)
    }

    /// Takes a slot for the current request, which keeps it, unless it has one. Work that belongs to no request gets the slot itself.
    ///
    /// A request never waits for a second slot, and takes the first when it waits for nothing else any more: not for its body, nor for the
    /// turn of a thread. So requests of one user cannot wait for each other in a circle.
    ///
    /// # Errors
    /// [`Deadline`](ErrorKind::Deadline) if no slot became free within `patience`.
    pub(super) async fn take(&self, owner: &Owner, patience: Duration) -> Result<Option<LargeAnswer>> {
        let Ok(taken) = TAKEN.try_with(Arc::clone) else { return Ok(Some(self.wait(owner, patience).await?)) };
        let mut taken = taken.lock().await;
        if taken.is_none() {
            *taken = Some(self.wait(owner, patience).await?);
        }
        Ok(None)
    }

    async fn wait(&self, owner: &Owner, patience: Duration) -> Result<LargeAnswer> {
        let free = self.free.lock().get_or_insert(owner.clone(), || Arc::new(Semaphore::new(LARGE_PER_USER_MAX)));
        match tokio::time::timeout(patience, free.acquire_owned()).await {
            Ok(Ok(slot)) => Ok(LargeAnswer(Arc::new(slot))),
            Ok(Err(_)) => Err(Error::new(ErrorKind::Unavailable, "the server is stopping").without_effect()),
            Err(_) => {
                let message = format!(
                    "{LARGE_PER_USER_MAX} of your requests have large answers that are computed or not yet read; read them, then try again"
                );
                Err(Error::new(ErrorKind::Deadline, message).without_effect())
            }
        }
    }
}

/// Returns whether the result of an operation may be large. The content of a file is not: routes stream it, and tools cut it.
pub(super) fn may_be_large(kind: OpKind) -> bool {
    matches!(kind, OpKind::Ls | OpKind::Glob | OpKind::Grep | OpKind::Search)
}

#[cfg(test)]
mod tests {
    use super::*;
    use treehold_core::scope::Scope;

    const PATIENCE: Duration = Duration::from_secs(1);

    fn owner(user: &str) -> Owner {
        Owner::from(&Scope::new().with_user(user))
    }

    #[tokio::test(start_paused = true)]
    async fn user_has_so_many_slots_and_other_users_their_own() {
        let slots = LargeAnswers::default();
        let mut held = Vec::new();
        for _ in 0..LARGE_PER_USER_MAX {
            held.push(slots.take(&owner("ada"), PATIENCE).await.expect("a free slot"));
        }
        assert_eq!(slots.take(&owner("ada"), PATIENCE).await.expect_err("none is free").kind(), ErrorKind::Deadline);
        assert!(slots.take(&owner("bob"), PATIENCE).await.is_ok());
        held.pop();
        assert!(slots.take(&owner("ada"), PATIENCE).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn request_takes_one_slot_and_keeps_it() {
        let slots = LargeAnswers::default();
        let mut held = Vec::new();
        for _ in 0..LARGE_PER_USER_MAX {
            let (_, slot) = LargeAnswers::during(async {
                for _ in 0..3 {
                    assert!(slots.take(&owner("ada"), PATIENCE).await.expect("a free slot").is_none());
                }
            })
            .await;
            held.push(slot.expect("the slot of the request"));
        }
        assert!(slots.take(&owner("ada"), PATIENCE).await.is_err());
        assert!(LargeAnswers::during(async {}).await.1.is_none());
    }
}
