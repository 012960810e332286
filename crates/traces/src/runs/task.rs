//! One run, from its claim to its final status.

use super::claim::{HeldRun, renew_until_lost};
use super::runner::{RESULT_BYTES_MAX, RunContext, RunRequest, RunResult};
use super::side::SideTraces;
use super::{BRANCH_TYPE, Entered, RUN_ENDED, RunsOptions, STOP_REQUESTED, TraceRuns, ended_after, result_of_status};
use crate::contract::{AddOptions, TraceStore};
use crate::id::TraceAddress;
use crate::model::{NewMessage, OtherFields, Trace, TraceStatus, TraceUpdate};
use crate::stored::check_name;
use futures::{FutureExt, StreamExt};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;
use treehold_core::backoff::Backoff;
use treehold_core::error::{Error, ErrorKind, Result};

/// How often the end of a run is written, and the pauses between the attempts.
const WRITES_MAX: u32 = 6;
const WRITE_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));

/// The pause before the events of a trace are followed again.
const WATCH_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));

/// How long one attempt may take.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

pub(super) struct RunTask {
    pub(super) entered: Entered,
    pub(super) runs: TraceRuns,
    pub(super) trace: TraceAddress,
    pub(super) request: RunRequest,
    pub(super) idempotency_key: Option<String>,
}

/// What came of the beginning of a run.
enum Begun {
    /// The run can go on. The event is the last one before it. A run on a side branch has traces of its own.
    Runs { since: u64, side: Option<Arc<dyn TraceStore>> },
    /// An earlier call with the same key started a run, which ended.
    Ended(RunResult),
}

impl RunTask {
    /// Runs, and reports on `ready` whether the run began.
    pub(super) async fn run(mut self, ready: oneshot::Sender<Result<()>>) {
        let claimed = Instant::now();
        let held = match self.runs.claims.claim(self.trace.id(), self.options().lease).await {
            Ok(held) => held,
            Err(error) => return self.refuse(ready, error),
        };
        let is_shared = self.runs.bind(&*held);
        let result = match self.begin().await {
            Ok(begun) => {
                // Nobody waits for the answer if the caller left. The run goes on.
                let _ = ready.send(Ok(()));
                match begun {
                    Begun::Ended(result) => result,
                    Begun::Runs { since, side } => tokio::select! {
                        biased;
                        error = renew_until_lost(&*held, self.options().lease, claimed) => self.lost(&error),
                        result = self.run_to_end(is_shared.then_some(since), side) => result,
                    },
                }
            }
            Err(error) => {
                release(held, &self.trace).await;
                return self.refuse(ready, error);
            }
        };
        release(held, &self.trace).await;
        self.entered.leave(result);
    }

    fn traces(&self) -> &Arc<dyn TraceStore> {
        &self.runs.traces
    }

    fn options(&self) -> &RunsOptions {
        &self.runs.host.options
    }

    /// Frees the trace, then reports that the run does not begin.
    fn refuse(self, ready: oneshot::Sender<Result<()>>, error: Error) {
        drop(self);
        let _ = ready.send(Err(error));
    }

    /// Appends the messages and sets the status. Nothing changes if the store refuses the messages.
    async fn begin(&mut self) -> Result<Begun> {
        let unknown = || Error::new(ErrorKind::NotFound, format!("the trace `{}` does not exist", self.trace));
        let found = self.traces().get_trace(&self.trace).await?.ok_or_else(unknown)?;
        let since = found.last_event_id;
        if let Some(branch_type) = self.request.branch_type.clone() {
            return self.begin_beside(&found, branch_type).await;
        }
        let mut update = TraceUpdate::new().with_status(TraceStatus::Running);
        update.run_config = self.request.config.clone();
        if self.request.messages.is_empty() {
            update.head_sequence = self.request.after_sequence;
            return self.traces().update_trace(&self.trace, update).await.map(|_| Begun::Runs { since, side: None });
        }
        let messages = messages_after(&self.request)?;
        // One commit, so that a repeated call can tell whether the run of the earlier one began.
        let mut options = AddOptions::new().with_update(update);
        options.idempotency_key = self.idempotency_key.clone();
        let added = self.traces().add_messages(&self.trace, messages, &options).await?;
        // This process holds the claim. If the run of the earlier call still had the status `running`, its process died.
        if added.repeated && found.status.is_final() {
            let last = added.messages.last().map_or(0, |message| message.sequence);
            let ended = ended_after(&**self.traces(), &found, last).await?;
            return Ok(Begun::Ended(ended.unwrap_or(result_of_status(found.status))));
        }
        Ok(Begun::Runs { since, side: None })
    }

    /// Appends the messages on a side branch. The trace has no sign of such a run until it ends, so it is not known whether an earlier call
    /// with the same key ended: then its result is.
    async fn begin_beside(&self, found: &Trace, branch_type: String) -> Result<Begun> {
        check_name("type of the side branch", &branch_type)?;
        let after = self.request.after_sequence.unwrap_or(found.head_sequence);
        if after > found.last_sequence {
            let message = format!("the trace `{}` has no message {after}; its last one is {}", self.trace, found.last_sequence);
            return Err(Error::invalid_argument(message).without_effect());
        }
        let runs = &self.runs;
        let side = SideTraces::new(runs.traces.clone(), self.trace.clone(), runs.own.clone(), branch_type, after);
        let messages = messages_after(&self.request)?;
        if !messages.is_empty() {
            let mut options = AddOptions::new();
            options.idempotency_key = self.idempotency_key.clone();
            let added = side.add_messages(&self.trace, messages, &options).await?;
            let last = added.messages.last().map_or(0, |message| message.sequence);
            if added.repeated
                && let Some(result) = ended_after(&**self.traces(), found, last).await?
            {
                return Ok(Begun::Ended(result));
            }
        }
        Ok(Begun::Runs { since: found.last_event_id, side: Some(Arc::new(side)) })
    }

    /// Runs the runner until it ends or has to, and writes its end.
    ///
    /// `since` is the event after which other processes may ask to stop it.
    async fn run_to_end(&self, since: Option<u64>, side: Option<Arc<dyn TraceStore>>) -> RunResult {
        let (began, deadline, mut stop) = (Instant::now(), self.options().deadline, self.entered.stop.clone());
        let mut runs = self.runs.clone();
        runs.traces = side.unwrap_or(runs.traces);
        let context = RunContext::new(self.trace.clone(), runs);
        let run = self.runs.host.runner.run(&context, self.request.clone());
        let result = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => RunResult::stopped("the run was stopped"),
            () = self.stop_requested(since) => RunResult::stopped("the run was stopped"),
            () = tokio::time::sleep(deadline) => RunResult::failed(format!("the run took longer than {deadline:?} and was ended")),
            ended = AssertUnwindSafe(run).catch_unwind() => self.result(ended),
        };
        let result = result.bounded(RESULT_BYTES_MAX);
        if let Err(error) = self.write_end(&result, began.elapsed()).await {
            tracing::error!(%error, trace = %self.trace, "the end of a run could not be written; its trace stays `running` until its next run");
        }
        result
    }

    /// Waits until another process asks to stop the run.
    async fn stop_requested(&self, since: Option<u64>) {
        let Some(mut since) = since else { return std::future::pending().await };
        let mut failed = 0;
        loop {
            if let Ok(mut events) = self.traces().watch(&self.trace, since).await {
                while let Some(Ok(event)) = events.next().await {
                    if event.event == STOP_REQUESTED {
                        return;
                    }
                    (since, failed) = (event.event_id, 0);
                }
            }
            WATCH_BACKOFF.wait(failed).await;
            failed = failed.saturating_add(1);
        }
    }

    /// Returns how the runner ended, by itself.
    fn result(&self, ended: std::thread::Result<Result<RunResult>>) -> RunResult {
        match ended {
            Ok(Ok(result)) if result.status.is_final() => result,
            Ok(Ok(_)) => RunResult::failed("the runner returned while its run was not over"),
            Ok(Err(error)) => {
                tracing::warn!(%error, source = ?std::error::Error::source(&error), trace = %self.trace, "a run failed");
                RunResult::failed(error.message())
            }
            Err(_) => {
                tracing::error!(trace = %self.trace, "a runner panicked");
                RunResult::failed("the runner failed unexpectedly")
            }
        }
    }

    /// Writes an event and the final status. A trace that was removed meanwhile needs neither.
    async fn write_end(&self, result: &RunResult, took: Duration) -> Result<()> {
        let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let mut data = match serde_json::to_value(result) {
            Ok(serde_json::Value::Object(data)) => data,
            _ => OtherFields::new(),
        };
        data.insert("duration_ms".to_owned(), duration_ms.into());
        let mut update = TraceUpdate::new().with_duration_ms(duration_ms);
        match &self.request.branch_type {
            Some(branch_type) => drop(data.insert(BRANCH_TYPE.to_owned(), branch_type.as_str().into())),
            None => update.status = Some(result.status),
        }
        let written = async {
            match self.write(|| self.traces().append_event(&self.trace, RUN_ENDED, data.clone())).await {
                // Texts of control characters grow sixfold in JSON. The status says the rest.
                Err(error) if error.kind() == ErrorKind::TooLarge => {
                    let mut short = data.clone();
                    short.retain(|name, _| name != "summary" && name != "error");
                    self.write(|| self.traces().append_event(&self.trace, RUN_ENDED, short.clone())).await?;
                }
                appended => drop(appended?),
            }
            self.write(|| self.traces().update_trace(&self.trace, update.clone())).await.map(drop)
        };
        match written.await {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            written => written,
        }
    }

    /// Repeats a write while the store is unavailable.
    async fn write<T, F: Future<Output = Result<T>>>(&self, attempt: impl Fn() -> F) -> Result<T> {
        let mut failed = 0;
        loop {
            let late = |_| Err(Error::new(ErrorKind::Unavailable, "the store did not answer in time"));
            match tokio::time::timeout(WRITE_LIMIT, attempt()).await.unwrap_or_else(late) {
                Err(error) if error.kind() == ErrorKind::Unavailable && failed + 1 < WRITES_MAX => {
                    tracing::warn!(%error, trace = %self.trace, "the status of a run could not be written; it is tried again");
                    WRITE_BACKOFF.wait(failed).await;
                    failed += 1;
                }
                written => return written,
            }
        }
    }

    /// Ends a run whose trace another process may run by now. The trace stays as that process writes it.
    fn lost(&self, error: &Error) -> RunResult {
        tracing::warn!(%error, trace = %self.trace, "a run is ended because its claim is lost");
        RunResult::stopped("the claim on the trace is lost; another process may run it now")
    }
}

/// Returns the messages of a request, the first of them behind `after_sequence`.
fn messages_after(request: &RunRequest) -> Result<Vec<NewMessage>> {
    let mut messages = request.messages.clone();
    if let (Some(first), Some(after)) = (messages.first_mut(), request.after_sequence) {
        if first.parent_sequence.is_some_and(|parent| parent != after) {
            return Err(Error::invalid_argument("`after_sequence` and the parent of the first message differ; leave one of them out"));
        }
        first.parent_sequence = Some(after);
    }
    Ok(messages)
}

/// Releases a claim. If that fails, it ends with its lease.
async fn release(held: Box<dyn HeldRun>, trace: &TraceAddress) {
    match tokio::time::timeout(WRITE_LIMIT, held.release()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, %trace, "the claim on a trace could not be released; it ends by itself"),
        Err(_) => tracing::warn!(%trace, "the claim on a trace was not released in time; it ends by itself"),
    }
}
