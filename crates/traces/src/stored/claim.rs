//! The claim on a run: at most one process runs a trace at a time.
//!
//! A claim is a row that expires unless it is renewed. Acquiring it is one commit that creates the row, so the version of the row is the
//! fencing number: it is unique, and grows with each claim. Renewing only moves the expiry. A process that died loses the claim when the row
//! expires, by the clock of the store.

use super::StoredTraces;
use super::rows;
use super::rows::{LIVE, Part};
use crate::id::TraceId;
use jiff::Timestamp;
use std::fmt;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_core::retry::Attempts;
use treehold_store::{Batch, Condition, Namespace, Store};

/// The longest time that a claim on a run can last without a renewal.
pub const RUN_LEASE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The key of the claim.
const CLAIM: &str = "claim";

/// The source of the error for a trace that another process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunHeld {
    /// The fencing number of the other claim.
    pub fence: u64,
    /// When the other claim ends unless it is renewed.
    pub expires_at: Option<Timestamp>,
}

impl fmt::Display for RunHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the claim {} is held", self.fence)
    }
}

impl std::error::Error for RunHeld {}

/// The row that commits under a claim depend on.
#[derive(Debug, Clone)]
pub(super) struct Fence {
    rows: Namespace,
    version: Version,
}

impl Fence {
    pub(super) fn expect(&self, batch: Batch) -> Batch {
        batch.expect(&self.rows, CLAIM, Condition::Version(self.version))
    }

    /// Fails if the claim is lost.
    pub(super) async fn check(&self, store: &dyn Store) -> Result<()> {
        let present = store.get(&self.rows, CLAIM).await?;
        if present.is_some_and(|item| item.version == self.version) {
            return Ok(());
        }
        Err(lost())
    }
}

fn lost() -> Error {
    let message = "the claim on the run is lost, and another process may run the trace; stop the run";
    Error::new(ErrorKind::Conflict, message).without_effect()
}

/// The right to run a trace, see [`StoredTraces::claim_run`]. It ends by itself unless it is renewed; dropping it does not release it.
#[derive(Debug, Clone)]
pub struct RunClaim {
    traces: StoredTraces,
    data: String,
    fence: Fence,
}

impl StoredTraces {
    /// Claims the run of a trace for a time, so that no other process runs it. Cost: two round trips.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) with the source [`RunHeld`] while another claim lasts. [`InvalidArgument`](ErrorKind::InvalidArgument)
    /// for a lease under 1 millisecond or over [`RUN_LEASE_MAX`], and the errors of every method of the store for the trace.
    pub async fn claim_run(&self, trace: &TraceId, lease: Duration) -> Result<RunClaim> {
        check_lease(lease)?;
        let mut attempts = Attempts::new();
        loop {
            let opened = self.find_existing(trace).await?;
            let (rows, live) = (self.part(&opened, Part::Run)?, self.rows.data(&opened.head.data)?);
            let batch = Batch::new().expect(&live, LIVE, Condition::Exists).expect(&rows, CLAIM, Condition::Absent);
            let batch = batch.put_for(&rows, CLAIM, "", lease);
            match rows::commit(self.store(), batch).await? {
                Some(versions) => {
                    let version = versions.first().copied().ok_or_else(|| rows::corrupt("the store returned no version of a put"))?;
                    let fence = Fence { rows, version };
                    return Ok(RunClaim { traces: self.clone(), data: opened.head.data, fence });
                }
                None => {
                    if let Some(item) = self.store().get(&rows, CLAIM).await? {
                        let held = RunHeld { fence: item.version.number(), expires_at: item.expires_at };
                        let message = format!("the trace `{trace}` is being run; stop that run, or try again when it has ended");
                        return Err(Error::new(ErrorKind::Conflict, message).with_source(held).without_effect());
                    }
                }
            }
            attempts.lost().await?;
        }
    }
}

impl RunClaim {
    /// Returns the fencing number, which is greater than that of every earlier claim on the trace.
    pub fn fence(&self) -> u64 {
        self.fence.version.number()
    }

    /// Returns the traces, on the condition of the claim: a commit after the claim was lost is refused with
    /// [`Conflict`](ErrorKind::Conflict). Give them to the run.
    pub fn traces(&self) -> StoredTraces {
        StoredTraces { fence: Some(self.fence.clone()), ..self.traces.clone() }
    }

    /// Lets the claim last for a time from now on. Cost: one round trip.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if the claim is lost: stop the run. Otherwise as [`StoredTraces::claim_run`].
    pub async fn renew(&self, lease: Duration) -> Result<()> {
        check_lease(lease)?;
        let live = self.traces.rows.data(&self.data)?;
        let batch = self.fence.expect(Batch::new()).expect(&live, LIVE, Condition::Exists).touch(&self.fence.rows, CLAIM, Some(lease));
        rows::commit(self.traces.store(), batch).await?.map(drop).ok_or_else(lost)
    }

    /// Ends the claim, so that another process can run the trace at once. Ending a claim that is lost changes nothing. Cost: one round trip.
    ///
    /// # Errors
    /// Errors of the store; the claim then ends when its time is over.
    pub async fn release(self) -> Result<()> {
        let batch = self.fence.expect(Batch::new()).delete(&self.fence.rows, CLAIM);
        rows::commit(self.traces.store(), batch).await.map(drop)
    }
}

fn check_lease(lease: Duration) -> Result<()> {
    if (Duration::from_millis(1)..=RUN_LEASE_MAX).contains(&lease) {
        return Ok(());
    }
    Err(Error::invalid_argument("the lease of a run must be from 1 millisecond to 1 day; renew it to hold it longer"))
}
