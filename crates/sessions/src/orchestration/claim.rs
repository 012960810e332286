//! The claim on an orchestration: at most one manager runs it at a time, among all processes.
//!
//! A claim is a row that only the next claim replaces. Every commit of a manager depends on the version of its claim, so the
//! commits of an earlier manager are refused from the moment that another one took over. Beside the claim is a lease, which
//! expires unless it is renewed. The lease only decides when another manager may take over: a manager whose lease expired
//! continues as long as no other has taken over.

use super::persistence::StoredOrchestration;
use crate::once::{Earlier, Once};
use crate::rows::{Head, Part};
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_core::retry::Attempts;
use treehold_store::{Batch, Condition};

/// The key of the row that names the present holder.
const CLAIM: &str = "claim";

/// The key of the row that exists until the lease ends.
const LEASE: &str = "lease";

/// The right to run an orchestration, see
/// [`OrchestrationPersistence::claim`](super::OrchestrationPersistence::claim).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim(Version);

impl Claim {
    /// Makes a claim from the version that identifies it. Each claim on an orchestration has another version.
    pub fn new(version: Version) -> Self {
        Self(version)
    }

    /// Returns the version that identifies the claim.
    pub fn version(self) -> Version {
        self.0
    }
}

impl StoredOrchestration {
    pub(super) async fn put_claim(&self, holder: &str, lease: Duration) -> Result<Claim> {
        let mut attempts = Attempts::new();
        loop {
            let head = self.live.find_existing().await?;
            let rows = head.part(Part::Manager)?;
            let is_free = match self.live.sessions().store.get(&rows, LEASE).await? {
                None => Condition::Absent,
                Some(item) if item.value == holder.as_bytes() => Condition::Version(item.version),
                Some(_) => return Err(self.held()),
            };
            let batch = Batch::new().expect(&rows, LEASE, is_free);
            let batch = batch.put(&rows, CLAIM, holder.to_owned()).put_for(&rows, LEASE, holder.to_owned(), lease);
            if let Some(version) = self.live.try_commit(&head, batch).await?.and_then(|versions| versions.first().copied()) {
                return Ok(Claim(version));
            }
            attempts.lost().await?;
        }
    }

    pub(super) async fn put_lease(&self, claim: Claim, holder: &str, lease: Duration) -> Result<()> {
        let plan = |batch: Batch, head: &Head| Ok(batch.put_for(&head.part(Part::Manager)?, LEASE, holder.to_owned(), lease));
        self.commit_under(Some(claim), None, plan).await.map(drop)
    }

    pub(super) async fn delete_lease(&self, claim: Claim) -> Result<()> {
        let deleted = self.commit_under(Some(claim), None, |batch, head| Ok(batch.delete(&head.part(Part::Manager)?, LEASE))).await;
        match deleted.map(drop) {
            // Another manager has the lease, or the session is gone. Then there is nothing to release.
            Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => Ok(()),
            deleted => deleted,
        }
    }

    /// Commits rows of the session, on the condition that a claim still holds. With an idempotency key, it returns the earlier commit
    /// instead if there is one.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if another manager took over, otherwise as [`LiveSession::commit`] and [`Once::find`].
    ///
    /// [`LiveSession::commit`]: crate::live::LiveSession::commit
    pub(super) async fn commit_under(
        &self,
        claim: Option<Claim>,
        once: Option<&Once>,
        plan: impl Fn(Batch, &Head) -> Result<Batch> + Send + Sync,
    ) -> Result<Option<Earlier>> {
        let mut attempts = Attempts::new();
        loop {
            let head = self.live.find_existing().await?;
            let mut batch = Batch::new();
            if let Some(once) = once {
                if let Some(earlier) = once.find(self.live.sessions(), &head).await? {
                    return Ok(Some(earlier));
                }
                batch = once.put(batch, self.live.sessions(), &head, None)?;
            }
            batch = plan(batch, &head)?;
            if let Some(Claim(version)) = claim {
                batch = batch.expect(&head.part(Part::Manager)?, CLAIM, Condition::Version(version));
            }
            if self.live.try_commit(&head, batch).await?.is_some() {
                return Ok(None);
            }
            if let Some(claim) = claim {
                // An earlier request with the same key may have committed before the claim was lost.
                if let Some(once) = once
                    && let Some(earlier) = once.find(self.live.sessions(), &*self.live.find_existing().await?).await?
                {
                    return Ok(Some(earlier));
                }
                self.check_claim(claim).await?;
            }
            attempts.lost().await?;
        }
    }

    async fn check_claim(&self, claim: Claim) -> Result<()> {
        let head = self.live.find_existing().await?;
        let present = self.live.sessions().store.get(&head.part(Part::Manager)?, CLAIM).await?;
        if present.is_some_and(|item| item.version == claim.0) {
            return Ok(());
        }
        let message = format!("another manager took over the orchestration of the session `{}`; open it again", self.live.name());
        Err(Error::new(ErrorKind::Conflict, message))
    }

    fn held(&self) -> Error {
        let message = format!(
            "another manager runs the orchestration of the session `{}`; close it, or try again when its lease ends",
            self.live.name()
        );
        Error::new(ErrorKind::Unavailable, message).without_effect()
    }
}
