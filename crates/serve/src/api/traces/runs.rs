//! Runs of agents on traces, by the runner that a host attached to the server.
//!
//! A run goes on when its client leaves. A client that waits for its end holds none of the slots for requests, as it uses nothing of the
//! server. It holds one of the slots for event streams, of which each user has a share.

use super::super::Places;
use super::super::events::StreamSlot;
use super::super::exchange::{Answer, Asked, json};
use super::At;
use crate::problem::Failed;
use crate::rights::Access;
use axum::http::{HeaderValue, StatusCode, header};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;
use treehold_traces::{NewMessage, REFLECTION, RunHandle, RunRequest, RunResult, TraceAddress, TraceRuns, TraceStatus};

/// The longest time that a request waits for the end of a run.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// A run to start.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct StartRun {
    /// The messages to append before the run.
    messages: Vec<NewMessage>,
    /// The sequence after which the run continues. Default the head.
    #[serde(alias = "insert_after")]
    after_sequence: Option<u64>,
    /// The configuration of the runner, which the trace keeps unless the run is on a side branch.
    config: Option<Json>,
    /// The kind of side branch to work on, such as `evaluation`. The head and the status of the trace stay as they are.
    branch_type: Option<String>,
    /// How long to wait for the end of the run, from 0 to 30,000 milliseconds. Default 0.
    wait_ms: u64,
}

/// A reflection to start: a run on a side branch `reflection`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct StartReflection {
    /// What to reflect on: the last message of a user on the branch.
    focus: Option<String>,
    /// The messages to append to the branch before.
    messages: Vec<NewMessage>,
    /// The sequence after which the branch begins. Default the head.
    after_sequence: Option<u64>,
    /// The configuration of the runner.
    config: Option<Json>,
    /// How long to wait for the end of the run, from 0 to 30,000 milliseconds. Default 0.
    wait_ms: u64,
}

/// A run that ended, with status 200, or one that goes on, with status 202.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RunReply {
    /// The trace.
    trace_id: TraceAddress,
    /// Its status.
    status: TraceStatus,
    /// What the run says about its outcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<String>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub(super) async fn run(mut asked: Asked) -> Answer {
    let at = asked.trace(Access::Write)?;
    let StartRun { messages, after_sequence, config, branch_type, wait_ms } = asked.fields().await?;
    let mut request = RunRequest::default();
    (request.messages, request.after_sequence, request.config, request.branch_type) = (messages, after_sequence, config, branch_type);
    started(asked, at, request, wait_ms).await
}

pub(super) async fn reflect(mut asked: Asked) -> Answer {
    let at = asked.trace(Access::Write)?;
    let StartReflection { focus, mut messages, after_sequence, config, wait_ms } = asked.fields().await?;
    messages.extend(focus.map(|focus| NewMessage::text("user", &focus)));
    let mut request = RunRequest::default();
    (request.messages, request.after_sequence, request.config) = (messages, after_sequence, config);
    request.branch_type = Some(REFLECTION.to_owned());
    started(asked, at, request, wait_ms).await
}

/// Starts a run, and waits for its end if that is asked for.
async fn started(asked: Asked, at: At, request: RunRequest, wait_ms: u64) -> Answer {
    let wait = Duration::from_millis(wait_ms);
    if wait > WAIT_MAX {
        let message = format!("`wait_ms` is {wait_ms}, and a request waits for at most {} ms", WAIT_MAX.as_millis());
        return Err(Error::invalid_argument(message).without_effect().into());
    }
    let runs = asked.runs(&at).await?;
    let slot = if wait.is_zero() { None } else { Some(StreamSlot::take(&asked)?) };
    let run = match runs.start(&at.trace, request).await {
        Ok(run) => run,
        Err(error) if error.kind() == ErrorKind::Conflict => {
            // The trace is free when its run ends, so the refusal is not the outcome of an idempotency key.
            let mut response = Failed::from(error).into_response();
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            return Ok(response);
        }
        Err(error) => return Err(error.into()),
    };
    let ended = if slot.is_some() { asked.wait_for(&run, wait).await? } else { None };
    let trace_id = at.trace;
    match ended {
        Some(RunResult { status, summary, error, .. }) => json(StatusCode::OK, RunReply { trace_id, status, summary, error }).await,
        None => json(StatusCode::ACCEPTED, RunReply { trace_id, status: TraceStatus::Running, summary: None, error: None }).await,
    }
}

/// What a request to stop did.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct StopReply {
    /// Whether there was a run.
    stopped: bool,
}

pub(super) async fn stop(asked: Asked) -> Answer {
    let at = asked.trace(Access::Write)?;
    let stopped = asked.runs(&at).await?.stop(&at.trace).await?;
    json(StatusCode::OK, StopReply { stopped }).await
}

impl Asked {
    /// Returns the runs on the traces of the caller.
    async fn runs(&self, at: &At) -> Result<TraceRuns, Failed> {
        // A trace of another user is refused, whether or not there is a runner.
        at.found().await?;
        let (tenant, user) = self.trace_owner()?;
        self.api.traces.runs(tenant, user, at.store.clone())?.ok_or_else(|| {
            let message = "this server runs no agents: attach a runner to it, or append what an agent said to the trace's messages";
            Failed::with_status(Error::unsupported(message).without_effect(), StatusCode::NOT_IMPLEMENTED)
        })
    }

    /// Waits for the end of a run. Returns `None` if it still runs, or if the server is stopping.
    async fn wait_for(&self, run: &RunHandle, wait: Duration) -> Result<Option<RunResult>> {
        if let Some(places) = self.head.extensions.get::<Places>() {
            places.give_back();
        }
        let mut stopping = self.api.stopping.subscribe();
        tokio::select! {
            // Less than the deadline of the request, so that the client gets its answer.
            ended = run.wait(wait.min(self.api.limits.deadline / 2)) => ended,
            _ = stopping.wait_for(|is_stopping| *is_stopping) => Ok(None),
        }
    }
}
