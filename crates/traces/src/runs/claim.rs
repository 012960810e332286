//! The claim on a trace, so that at most one process runs it.

use crate::id::TraceId;
use async_trait::async_trait;
use std::fmt;
use std::time::Duration;
use tokio::time::Instant;
#[cfg(doc)]
use treehold_core::error::ErrorKind;
use treehold_core::error::{Error, ErrorKind as Kind, Result};

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
    async fn renew(&self, _: Duration) -> Result<()> {
        Ok(())
    }

    async fn release(self: Box<Self>) -> Result<()> {
        Ok(())
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
            Ok(Err(error)) if error.kind() == Kind::Conflict => return error,
            Ok(Err(error)) if Instant::now() < until => tracing::warn!(%error, "the claim on a trace could not be renewed"),
            Ok(Err(error)) => return error,
            Err(_) => return Error::new(Kind::Deadline, "the claim on the trace could not be renewed in time"),
        }
    }
}
