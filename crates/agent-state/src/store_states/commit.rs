//! Commits of rows of one owner, and the fences that they depend on.

use super::StoreStates;
use crate::contract::{Fence, FenceFallen};
use crate::proofs::NeededProof;
use crate::rows::Owner;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_store::{Batch, Condition};

impl StoreStates {
    /// Commits a batch, whose first condition is the fence if there is one. Returns whether it was applied; it was not if another writer
    /// was faster.
    pub(super) async fn commit(&self, batch: Batch, is_fenced: bool) -> Result<bool> {
        applied(self.store().commit(batch).await, is_fenced)
    }

    /// Commits a batch that needs proofs, as [`AgentStates::commit_with`](crate::AgentStates::commit_with). Otherwise as
    /// [`StoreStates::commit`].
    pub(super) async fn commit_with(&self, owner: &Owner, batch: Batch, proofs: &[NeededProof], is_fenced: bool) -> Result<bool> {
        applied(self.states.commit_with(owner, batch, proofs).await, is_fenced)
    }
}

/// Starts a batch with its fence as the first condition.
pub(super) fn fenced(owner: &Owner, fence: Option<&Fence>) -> Result<Batch> {
    let Some(fence) = fence else { return Ok(Batch::new()) };
    if !fence.namespace.shares_partition(&owner.states()?) {
        let (theirs, own) = (fence.namespace.partition(), owner.states()?.partition());
        let message = format!(
            "the fence is in the partition `{theirs}` and the states are in `{own}`; use a turn of the session, or a lock of the same partition"
        );
        return Err(Error::new(ErrorKind::Unsupported, message).without_effect());
    }
    Ok(Batch::new().expect(&fence.namespace, &fence.key, Condition::Version(fence.version)))
}

/// Returns whether a commit was applied, whose first condition is the fence if there is one.
fn applied<T>(committed: Result<T>, is_fenced: bool) -> Result<bool> {
    match committed {
        Ok(_) => Ok(true),
        Err(error) if error.kind() != ErrorKind::Conflict => Err(error),
        Err(error) if is_fenced && error.change() == Some(0) => Err(FenceFallen.into_error()),
        Err(_) => Ok(false),
    }
}
