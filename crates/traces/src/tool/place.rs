//! Where the agents that a caller starts can run.

use crate::contract::{TraceStore, UnknownAgent};
use crate::id::{Location, TraceAddress};
use crate::organization::OrganizationTraces;
#[cfg(feature = "remote")]
use crate::runs::PeerRuns;
use crate::runs::{RunHandle, Runs, TraceRuns};
use crate::runs::{RunRequest, RunResult};
use async_trait::async_trait;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::scope::Scope;
use treehold_core::work;

/// Finds the place of a caller, whose traces no other caller reaches.
#[async_trait]
pub trait AgentPlaces: Send + Sync + fmt::Debug {
    /// Returns the place of a caller; without a scope, that of a program with one user.
    ///
    /// # Errors
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for a caller who may start no agents.
    async fn of(&self, scope: Option<&Scope>) -> Result<AgentPlace>;
}

/// The place of one caller: the traces that they reach, and what runs them.
#[derive(Debug, Clone)]
pub struct AgentPlace {
    traces: Arc<dyn TraceStore>,
    runs: Option<TraceRuns>,
    #[cfg(feature = "remote")]
    peers: Option<PeerRuns>,
    own: Vec<Location>,
}

#[async_trait]
impl AgentPlaces for AgentPlace {
    async fn of(&self, _: Option<&Scope>) -> Result<AgentPlace> {
        Ok(self.clone())
    }
}

impl AgentPlace {
    /// Reaches traces, and runs none.
    pub fn new(traces: Arc<dyn TraceStore>) -> Self {
        Self {
            traces,
            runs: None,
            #[cfg(feature = "remote")]
            peers: None,
            own: Vec::new(),
        }
    }

    /// Reaches and runs what a run does: the place of the agents that it starts.
    pub fn of_runs(runs: TraceRuns) -> Self {
        Self {
            traces: runs.traces().clone(),
            #[cfg(feature = "remote")]
            peers: runs.peers().cloned(),
            own: runs.own_locations().to_vec(),
            runs: Some(runs),
        }
    }

    /// Runs local traces.
    #[must_use]
    pub fn with_runs(mut self, runs: TraceRuns) -> Self {
        self.runs = Some(runs);
        self
    }

    /// Runs the traces of peers, which the traces must reach: [`HybridTraces`](crate::HybridTraces).
    #[cfg(feature = "remote")]
    #[must_use]
    pub fn with_peers(mut self, peers: PeerRuns) -> Self {
        self.peers = Some(peers);
        self
    }

    /// Adds a location under which others know this place. Agents there are local.
    #[must_use]
    pub fn with_own_location(mut self, location: Location) -> Self {
        self.own.push(location);
        self
    }

    /// Returns the traces.
    pub fn traces(&self) -> &Arc<dyn TraceStore> {
        &self.traces
    }

    /// Returns whether a location is this place.
    pub(super) fn is_own(&self, location: &Location) -> bool {
        self.own.iter().any(|own| own.is_same(location))
    }

    /// Returns the address as this place uses it: without a location if it lives here.
    pub(super) fn known(&self, address: TraceAddress) -> TraceAddress {
        match address.location() {
            Some(location) if self.is_own(location) => address.stripped(),
            _ => address,
        }
    }

    /// Returns the location, or `None` for this place.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a location that is not registered.
    pub(super) fn location(&self, location: Location) -> Result<Option<Location>> {
        if self.is_own(&location) {
            return Ok(None);
        }
        self.check(&location)?;
        Ok(Some(location))
    }

    #[cfg(feature = "remote")]
    fn check(&self, location: &Location) -> Result<()> {
        self.peers.as_ref().ok_or_else(|| unknown(location))?.peers().check(location)
    }

    #[cfg(not(feature = "remote"))]
    fn check(&self, location: &Location) -> Result<()> {
        Err(unknown(location))
    }

    /// Returns whether two locations mean one place.
    #[cfg(feature = "remote")]
    pub(super) fn is_same(&self, one: &Location, other: &Location) -> bool {
        one.is_same(other) || self.peers.as_ref().is_some_and(|peers| peers.peers().is_same(one, other))
    }

    #[cfg(not(feature = "remote"))]
    pub(super) fn is_same(&self, one: &Location, other: &Location) -> bool {
        one.is_same(other)
    }

    /// Starts a run of a trace, here or elsewhere. If the caller leaves before the run has begun, it is stopped once it has.
    pub(super) async fn start(&self, trace: &TraceAddress, request: RunRequest) -> Result<Started> {
        let (place, trace) = (self.clone(), trace.clone());
        let (begun, has_begun) = oneshot::channel();
        tokio::spawn(work::carried(async move {
            // A run that nobody takes is dropped, which stops it.
            drop(begun.send(place.start_to_end(&trace, request).await));
        }));
        has_begun.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "the run ended before it began")))
    }

    async fn start_to_end(&self, trace: &TraceAddress, request: RunRequest) -> Result<Started> {
        let Some(location) = trace.location() else {
            let message = "no runner of agents is attached here; name an agent elsewhere with `agent_url`";
            let runs = self.runs.as_ref().ok_or_else(|| Error::unsupported(message).without_effect())?;
            return Ok(Started::new(Run::Here(runs.start(trace, request).await?)));
        };
        #[cfg(feature = "remote")]
        if let Some(peers) = &self.peers {
            peers.start(trace, &request).await?;
            return Ok(Started::new(Run::Elsewhere(peers.clone(), trace.clone())));
        }
        Err(unknown(location))
    }
}

/// The places of the callers of a server: the traces that each reaches, and the runs that the server hosts.
///
/// A caller without a tenant or user in their scope has no place.
#[derive(Debug, Clone)]
pub struct OrganizationAgents {
    traces: OrganizationTraces,
    runs: Option<Runs>,
}

impl OrganizationAgents {
    /// Finds places of callers of an organisation. Without runs, agents run only elsewhere.
    pub fn new(traces: OrganizationTraces, runs: Option<Runs>) -> Self {
        Self { traces, runs }
    }
}

#[async_trait]
impl AgentPlaces for OrganizationAgents {
    async fn of(&self, scope: Option<&Scope>) -> Result<AgentPlace> {
        let caller = scope.and_then(|scope| Some((scope.tenant.as_deref()?, scope.user.as_deref()?)));
        let (tenant, user) =
            caller.ok_or_else(|| Error::new(ErrorKind::PermissionDenied, "agents are started by callers with a tenant and user"))?;
        let traces = self.traces.for_user(tenant, user)?;
        let mut place = AgentPlace::new(traces.clone());
        place.own.extend(self.traces.own_location().cloned());
        #[cfg(feature = "remote")]
        if let Some(peers) = self.traces.peers(tenant) {
            place.peers = Some(PeerRuns::new(peers.clone(), traces.clone()));
        }
        if let Some(runs) = &self.runs {
            let (owner, owner_user) = self.traces.owner_of(tenant, user);
            let claims = self.traces.local().for_user(owner, owner_user)?;
            let here = runs.on((Some(owner.to_owned()), Some(user.to_owned())), traces).with_claims(Arc::new(claims));
            let here = self.traces.own_location().cloned().into_iter().fold(here, TraceRuns::with_own_location);
            #[cfg(feature = "remote")]
            let here = match &place.peers {
                Some(peers) => here.with_peers(peers.clone()),
                None => here,
            };
            place.runs = Some(here);
        }
        Ok(place)
    }
}

fn unknown(location: &Location) -> Error {
    Error::invalid_argument(format!("no agent is registered as `{location}`")).with_source(UnknownAgent)
}

/// A run that the tool started. Dropping it before its end stops the run.
#[derive(Debug)]
pub(super) struct Started {
    run: Run,
    is_over: bool,
}

#[derive(Debug)]
enum Run {
    Here(RunHandle),
    #[cfg(feature = "remote")]
    Elsewhere(PeerRuns, TraceAddress),
}

impl Started {
    fn new(run: Run) -> Self {
        Self { run, is_over: false }
    }

    /// Waits for at most `limit`, and returns how the run ended. Returns `None` if it still runs.
    pub(super) async fn wait(&mut self, limit: Duration) -> Result<Option<RunResult>> {
        let result = match &self.run {
            Run::Here(run) => run.wait(limit).await,
            #[cfg(feature = "remote")]
            Run::Elsewhere(runs, trace) => runs.wait(trace, limit).await,
        };
        self.is_over = matches!(result, Ok(Some(_)));
        result
    }

    /// Stops the run.
    pub(super) async fn stop(mut self) -> Result<()> {
        self.is_over = true;
        match &self.run {
            Run::Here(run) => {
                run.stop().await;
                Ok(())
            }
            #[cfg(feature = "remote")]
            Run::Elsewhere(runs, trace) => runs.stop(trace).await.map(drop),
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        match &self.run {
            Run::Here(run) => run.request_stop(),
            #[cfg(feature = "remote")]
            Run::Elsewhere(runs, trace) => {
                let (runs, trace) = (runs.clone(), trace.clone());
                if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                    runtime.spawn(async move {
                        if let Err(error) = runs.stop(&trace).await {
                            tracing::warn!(%error, %trace, "a run elsewhere whose caller is gone could not be stopped");
                        }
                    });
                }
            }
        }
    }
}
