//! The traces that a server offers, and what runs them.

use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::Result;
use treehold_traces::{OrganizationTraces, PeerRuns, Runs, TraceRuns, TraceStore};

/// The traces of all users.
#[derive(Debug)]
pub(super) struct ServedTraces {
    traces: OrganizationTraces,
    runs: Option<Runs>,
}

impl ServedTraces {
    pub(super) fn new(traces: OrganizationTraces, runs: Option<Runs>) -> Self {
        Self { traces, runs }
    }

    /// Returns the traces that a user reaches.
    pub(super) fn of_user(&self, tenant: &str, user: &str) -> Result<Arc<dyn TraceStore>> {
        self.traces.for_user(tenant, user)
    }

    /// Returns the runs on the traces of a user, or `None` without a runner.
    pub(super) fn runs(&self, tenant: &str, user: &str, store: Arc<dyn TraceStore>) -> Result<Option<TraceRuns>> {
        let Some(runs) = &self.runs else { return Ok(None) };
        let (owner, owner_user) = self.traces.owner_of(tenant, user);
        let claims = self.traces.local().for_user(owner, owner_user)?;
        let runs = runs.on((Some(owner.to_owned()), Some(user.to_owned())), store.clone()).with_claims(Arc::new(claims));
        let runs = self.traces.own_location().cloned().into_iter().fold(runs, TraceRuns::with_own_location);
        Ok(Some(match self.traces.peers(tenant) {
            Some(peers) => runs.with_peers(PeerRuns::new(peers.clone(), store)),
            None => runs,
        }))
    }

    /// Stops all runs, and waits for at most `limit` until their traces say so.
    pub(super) async fn shutdown(&self, limit: Duration) {
        if let Some(runs) = &self.runs
            && !runs.shutdown(limit).await
        {
            tracing::warn!("some runs did not stop in time; their traces stay `running` until their next run");
        }
    }
}
