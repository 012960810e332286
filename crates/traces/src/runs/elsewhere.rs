//! Runs on other servers.

use super::result_of;
use super::runner::{RunRequest, RunResult};
use crate::contract::TraceStore;
use crate::id::{Location, TraceAddress};
use crate::peers::Peers;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_remote::{Ask, PeerClient};

/// A wait asks for the status again after this time, whatever the events say.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// How long an owner may be away during a wait, and the pause before it is asked again.
const AWAY_MAX: Duration = Duration::from_secs(60);
const AWAY_PAUSE: Duration = Duration::from_secs(1);

/// Runs traces where they live, with the runner of their owner.
#[derive(Debug, Clone)]
pub struct PeerRuns {
    peers: Peers,
    traces: Arc<dyn TraceStore>,
    away_max: Duration,
}

#[derive(Deserialize)]
struct Stopped {
    stopped: bool,
}

impl PeerRuns {
    /// Runs traces of peers that `traces` reaches.
    pub fn new(peers: Peers, traces: Arc<dyn TraceStore>) -> Self {
        Self { peers, traces, away_max: AWAY_MAX }
    }

    /// Sets how long an owner may be away during a wait. Default one minute.
    #[must_use]
    pub fn with_away_max(mut self, away_max: Duration) -> Self {
        self.away_max = away_max;
        self
    }

    /// Returns the registry.
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Starts a run of a trace at its owner. A lost answer is asked for again, without a second run.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a local trace, and with the source
    /// [`UnknownAgent`](crate::UnknownAgent) for one whose location is not registered; [`Unsupported`](ErrorKind::Unsupported)
    /// if the owner has no runner; those of the owner and of the connection.
    pub async fn start(&self, trace: &TraceAddress, request: &RunRequest) -> Result<()> {
        let (client, path) = self.at(trace, "run").await?;
        let ask = Ask::post(path).with_json(request)?.with_key(uuid::Uuid::new_v4().to_string());
        client.ask(&ask).await.map(drop)
    }

    /// Stops the run of a trace at its owner. Returns whether there was one.
    ///
    /// # Errors
    /// As [`PeerRuns::start`].
    pub async fn stop(&self, trace: &TraceAddress) -> Result<bool> {
        let (client, path) = self.at(trace, "stop").await?;
        let ask = Ask::post(path).with_key(uuid::Uuid::new_v4().to_string());
        client.json::<Stopped>(&client.ask(&ask).await?).map(|answer| answer.stopped)
    }

    /// Waits for at most `limit` until no run works on a trace, and returns how the last one ended. Returns `None` if it still runs.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) if the owner is away for too long; those of the store of traces.
    pub async fn wait(&self, trace: &TraceAddress, limit: Duration) -> Result<Option<RunResult>> {
        let until = Instant::now() + limit;
        let mut away_since = None;
        while Instant::now() < until {
            // Each attempt begins with a request, which notices an owner that is away.
            match tokio::time::timeout_at(until.min(Instant::now() + ASK_AGAIN), result_of(&*self.traces, trace)).await {
                Ok(Ok(result)) => return Ok(Some(result)),
                Ok(Err(error)) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Deadline) => {
                    if away_since.get_or_insert_with(Instant::now).elapsed() >= self.away_max {
                        return Err(error);
                    }
                    tokio::time::sleep_until(until.min(Instant::now() + AWAY_PAUSE)).await;
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => away_since = None,
            }
        }
        Ok(None)
    }

    async fn at(&self, trace: &TraceAddress, action: &str) -> Result<(PeerClient, String)> {
        let location: &Location =
            trace.location().ok_or_else(|| Error::invalid_argument(format!("the trace `{trace}` does not live elsewhere")))?;
        let id = utf8_percent_encode(trace.id().as_str(), NON_ALPHANUMERIC);
        Ok((self.peers.client(location).await?, format!("/v1/traces/{id}/{action}")))
    }
}
