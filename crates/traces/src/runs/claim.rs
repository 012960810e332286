//! The claim on a trace, so that at most one process runs it.

use crate::contract::TraceStore;
use crate::id::TraceId;
use crate::stored::{RunClaim, StoredTraces};
use async_trait::async_trait;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use treehold_core::error::{Error, ErrorKind, Result};

/// How many renewals fall into one lease, so that a failed one does not end the claim.
const RENEWALS: u32 = 3;

/// Claims traces among the processes that share a store.
#[async_trait]
pub trait ClaimRuns: Send + Sync + fmt::Debug {
    /// Claims a trace until the lease ends, unless it is renewed.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if another process holds the claim. Otherwise those of the store.
    async fn claim(&self, trace: &TraceId, lease: Duration) -> Result<Box<dyn HeldRun>>;
}

/// A claim that this process holds.
#[async_trait]
pub trait HeldRun: Send + Sync + fmt::Debug {
    /// Returns the local traces, on the condition of the claim: a commit after the claim was lost is refused. `None` if the store of the run
    /// cannot be bound to the claim.
    fn traces(&self) -> Option<Arc<dyn TraceStore>>;

    /// Moves the end of the claim.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if another process took the claim. Otherwise those of the store.
    async fn renew(&self, lease: Duration) -> Result<()>;

    /// Releases the claim, so that others do not have to wait for its end.
    ///
    /// # Errors
    /// Those of the store. The claim then ends by itself.
    async fn release(self: Box<Self>) -> Result<()>;
}

/// The claim of a process that shares its store with no other.
#[derive(Debug)]
pub(super) struct Alone;

#[async_trait]
impl ClaimRuns for Alone {
    async fn claim(&self, _: &TraceId, _: Duration) -> Result<Box<dyn HeldRun>> {
        Ok(Box::new(Self))
    }
}

#[async_trait]
impl HeldRun for Alone {
    fn traces(&self) -> Option<Arc<dyn TraceStore>> {
        None
    }

    async fn renew(&self, _: Duration) -> Result<()> {
        Ok(())
    }

    async fn release(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl ClaimRuns for StoredTraces {
    async fn claim(&self, trace: &TraceId, lease: Duration) -> Result<Box<dyn HeldRun>> {
        Ok(Box::new(self.claim_run(trace, lease).await?))
    }
}

#[async_trait]
impl HeldRun for RunClaim {
    fn traces(&self) -> Option<Arc<dyn TraceStore>> {
        Some(Arc::new(Self::traces(self)))
    }

    async fn renew(&self, lease: Duration) -> Result<()> {
        Self::renew(self, lease).await
    }

    async fn release(self: Box<Self>) -> Result<()> {
        Self::release(*self).await
    }
}

/// Renews a claim until it is lost, or may be because no renewal was confirmed in time.
pub(super) async fn renew_until_lost(held: &dyn HeldRun, lease: Duration, since: Instant) -> Error {
    let mut until = since + lease;
    loop {
        tokio::time::sleep(lease / RENEWALS).await;
        let asked = Instant::now();
        match tokio::time::timeout_at(until, held.renew(lease)).await {
            Ok(Ok(())) => until = asked + lease,
            Ok(Err(error)) if error.kind() == ErrorKind::Conflict => return error,
            Ok(Err(error)) if Instant::now() < until => tracing::warn!(%error, "the claim on a trace could not be renewed"),
            Ok(Err(error)) => return error,
            Err(_) => return Error::new(ErrorKind::Deadline, "the claim on the trace could not be renewed in time"),
        }
    }
}
