//! Runs in the background, at most one at a time for each trace.
//!
//! [`Runs`] hosts the runs of one process. [`Runs::on`] returns the runs on the traces of one user. A run is a task of its own: it goes on
//! when its caller leaves, and ends by itself, by [`TraceRuns::stop`], at its deadline, or at [`Runs::shutdown`]. However it ends, also
//! with a panic, its trace gets a final status and an event [`RUN_ENDED`], and is free for the next run.
//!
//! Processes that share a store claim a trace before they run it ([`ClaimRuns`]). After a process died, another one can run its traces as
//! soon as the leases of its claims end.

mod claim;
#[cfg(feature = "remote")]
mod elsewhere;
mod runner;
mod side;
mod task;

pub use claim::{ClaimRuns, HeldRun};
#[cfg(feature = "remote")]
pub use elsewhere::PeerRuns;
pub use runner::{REFLECTION, RESULT_BYTES_MAX, RunContext, RunRequest, RunResult, TraceRunner};

use crate::contract::{PAGE_MAX, TraceStore};
use crate::hybrid::HybridTraces;
use crate::id::{Location, TraceAddress, TraceId};
use crate::model::{OtherFields, Trace, TraceEvent, TraceStatus, kinds};
use futures::StreamExt;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use task::RunTask;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use treehold_core::backoff::Backoff;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::shares::{Share, Shares, User};
use treehold_core::work;

/// The kind of the event that tells how a run ended. Its data are the fields of a [`RunResult`] and `duration_ms`. The event of the final
/// status follows it.
pub const RUN_ENDED: &str = "run_ended";

/// The field of that event for a run on a side branch.
const BRANCH_TYPE: &str = "branch_type";

/// The kind of the event by which a process asks another one to stop its run of the trace.
const STOP_REQUESTED: &str = "stop_requested";

/// How long a run that is stopped may take to write its final status.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// The pause before the claim of another process is tried again.
const CLAIM_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// How many of the newest events are searched for the end of the last run.
const END_EVENTS: u64 = 100;

/// Options of [`Runs`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunsOptions {
    /// The most runs at a time. Default 64.
    pub runs_max: usize,
    /// The most runs at a time of one user. Default 8.
    pub runs_per_user_max: usize,
    /// How long a run may take. Default one hour.
    pub deadline: Duration,
    /// How long the claim on a trace outlives a process that died. Default 30 s.
    pub lease: Duration,
}

impl Default for RunsOptions {
    fn default() -> Self {
        Self { runs_max: 64, runs_per_user_max: 8, deadline: Duration::from_secs(3_600), lease: Duration::from_secs(30) }
    }
}

impl RunsOptions {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the most runs at a time, in all and of one user.
    #[must_use]
    pub fn with_runs_max(mut self, in_all: usize, per_user: usize) -> Self {
        (self.runs_max, self.runs_per_user_max) = (in_all, per_user);
        self
    }

    /// Sets how long a run may take.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets how long the claim on a trace outlives a process that died.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }
}

/// The runs of a process. Clones share them.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use treehold_store::MemoryStore;
/// use treehold_traces::{NewTrace, RunRequest, Runs, ScriptedRunner, Step, TraceStore, Traces};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let traces = Arc::new(Traces::new(Arc::new(MemoryStore::new())).for_user("acme", "ada")?);
/// let runs = Runs::new(Arc::new(ScriptedRunner::new([Step::say("the second one")])));
/// let runs = runs.on((Some("acme".into()), Some("ada".into())), traces.clone()).with_claims(traces.clone());
///
/// let trace = traces.create_trace(NewTrace::new("compare the offers")).await?.trace_id;
/// let run = runs.start(&trace, RunRequest::default()).await?;
/// let ended = run.wait(Duration::from_secs(60)).await?;
/// assert_eq!(ended.and_then(|ended| ended.summary).as_deref(), Some("the second one"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Runs(Arc<Host>);

#[derive(Debug)]
struct Host {
    runner: Arc<dyn TraceRunner>,
    options: RunsOptions,
    slots: Arc<Semaphore>,
    shares: Arc<Shares<User>>,
    table: Mutex<Table>,
}

/// A trace, by its tenant and id. Ids are unique within a tenant.
type RunKey = (Option<String>, TraceId);

#[derive(Debug, Default)]
struct Table {
    is_closed: bool,
    running: HashMap<RunKey, RunHandle>,
}

impl Runs {
    /// Hosts runs of a runner.
    pub fn new(runner: Arc<dyn TraceRunner>) -> Self {
        Self::with_options(runner, RunsOptions::new())
    }

    /// Hosts runs of a runner, with options.
    pub fn with_options(runner: Arc<dyn TraceRunner>, options: RunsOptions) -> Self {
        let slots = Arc::new(Semaphore::new(options.runs_max.min(Semaphore::MAX_PERMITS)));
        Self(Arc::new(Host { runner, options, slots, shares: Arc::default(), table: Mutex::default() }))
    }

    /// Returns the runs on the traces of a user: `(tenant, user)`. A runner reaches what `traces` reaches.
    pub fn on(&self, user: User, traces: Arc<dyn TraceStore>) -> TraceRuns {
        TraceRuns {
            host: self.0.clone(),
            user,
            traces,
            claims: Arc::new(claim::Alone),
            #[cfg(feature = "remote")]
            peers: None,
            own: Vec::new(),
        }
    }

    /// Returns how many runs there are.
    pub fn count(&self) -> usize {
        self.0.table.lock().running.len()
    }

    /// Refuses further runs, stops all that run, and waits for at most `limit` until their traces are `stopped`. Returns whether none is
    /// left.
    pub async fn shutdown(&self, limit: Duration) -> bool {
        let running: Vec<RunHandle> = {
            let mut table = self.0.table.lock();
            table.is_closed = true;
            table.running.values().cloned().collect()
        };
        for run in &running {
            run.request_stop();
        }
        let all = futures::future::join_all(running.iter().map(RunHandle::ended));
        tokio::time::timeout(limit, all).await.is_ok()
    }
}

/// The runs on the traces of one user. Clones share them.
#[derive(Debug, Clone)]
pub struct TraceRuns {
    host: Arc<Host>,
    user: User,
    traces: Arc<dyn TraceStore>,
    claims: Arc<dyn ClaimRuns>,
    #[cfg(feature = "remote")]
    peers: Option<PeerRuns>,
    own: Vec<Location>,
}

impl TraceRuns {
    /// Lets runs start sub-traces at peers.
    #[cfg(feature = "remote")]
    #[must_use]
    pub fn with_peers(mut self, peers: PeerRuns) -> Self {
        self.peers = Some(peers);
        self
    }

    /// Adds a location under which others know this place. Sub-traces there are local.
    #[must_use]
    pub fn with_own_location(mut self, location: Location) -> Self {
        self.own.push(location);
        self
    }

    /// Returns the runs at peers.
    #[cfg(feature = "remote")]
    pub fn peers(&self) -> Option<&PeerRuns> {
        self.peers.as_ref()
    }

    /// Returns the locations under which others know this place.
    pub fn own_locations(&self) -> &[Location] {
        &self.own
    }

    /// Claims each trace before its run. Needed where several processes share a store.
    #[must_use]
    pub fn with_claims(mut self, claims: Arc<dyn ClaimRuns>) -> Self {
        self.claims = claims;
        self
    }

    /// Returns the traces.
    pub fn traces(&self) -> &Arc<dyn TraceStore> {
        &self.traces
    }

    /// Starts a run: appends the messages of the request in one commit, behind `after_sequence` if it names one, sets the status to
    /// `running`, and runs the runner in the background. A request without messages continues the trace as it is.
    ///
    /// A run with a `branch_type` leaves the status and the head as they are, so [`TraceRuns::wait`] in another process does not wait for
    /// it. Its handle does.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for an unknown trace; [`Conflict`](ErrorKind::Conflict) while another run works on it;
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a trace that lives elsewhere and for messages that the store refuses;
    /// [`Unavailable`](ErrorKind::Unavailable) with too many runs, or after [`Runs::shutdown`]; those of the store. A refused request
    /// leaves the trace as it was.
    pub async fn start(&self, trace: &TraceAddress, request: RunRequest) -> Result<RunHandle> {
        self.start_once(trace, request, None).await
    }

    /// Starts a run unless an earlier call with the same idempotency key did. The key is that of the messages, so a request without
    /// messages starts a run each time.
    ///
    /// Returns the run of the earlier call if there was one.
    ///
    /// # Errors
    /// As [`TraceRuns::start`].
    pub async fn start_once(&self, trace: &TraceAddress, request: RunRequest, idempotency_key: Option<String>) -> Result<RunHandle> {
        let id = local(trace)?;
        let (entered, run) = match self.enter(id, idempotency_key.as_deref())? {
            Entering::Free(entered, run) => (entered, run),
            Entering::Taken(other) => {
                self.check_own(trace).await?;
                return other.ok_or_else(|| {
                    let message = format!("a run works on the trace `{trace}`; wait for its end or stop it");
                    Error::new(ErrorKind::Conflict, message).without_effect()
                });
            }
        };
        let (ready, is_ready) = oneshot::channel();
        let task = RunTask { entered, runs: self.clone(), trace: trace.clone(), request, idempotency_key };
        // One task from the first write to the last, so that a caller that leaves early leaves nothing half done.
        tokio::spawn(work::carried(task.run(ready)));
        match is_ready.await {
            Ok(begun) => begun.map(|()| run),
            Err(_) => Err(Error::new(ErrorKind::Internal, "the run ended before it began")),
        }
    }

    /// Waits for at most `limit` until no run works on a trace, in whatever process, and returns how the last one ended. Returns `None` if
    /// it still runs.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for an unknown trace; those of the store.
    pub async fn wait(&self, trace: &TraceAddress, limit: Duration) -> Result<Option<RunResult>> {
        let running = self.host.table.lock().running.get(&self.key(local(trace)?)).cloned();
        let ended = async {
            match running {
                Some(run) => {
                    self.check_own(trace).await?;
                    run.ended().await
                }
                None => result_of(&*self.traces, trace).await,
            }
        };
        match tokio::time::timeout(limit, ended).await {
            Ok(result) => result.map(Some),
            Err(_) => Ok(None),
        }
    }

    /// Stops the run that works on a trace, in this process or another one that claims traces, and waits until the trace is free. Returns
    /// whether there was one.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a trace that lives elsewhere, [`NotFound`](ErrorKind::NotFound) for an unknown
    /// one, [`Deadline`](ErrorKind::Deadline) if the process that runs it does not stop in time; those of the store.
    pub async fn stop(&self, trace: &TraceAddress) -> Result<bool> {
        let running = self.host.table.lock().running.get(&self.key(local(trace)?)).cloned();
        if let Some(run) = running {
            self.check_own(trace).await?;
            run.stop().await;
            return Ok(true);
        }
        match self.claims.claim(trace.id(), self.host.options.lease).await {
            Ok(held) => held.release().await.map(|()| false),
            Err(error) if error.kind() == ErrorKind::Conflict => self.stop_elsewhere(trace).await.map(|()| true),
            Err(error) => Err(error),
        }
    }

    /// Asks the process that runs a trace to stop the run.
    async fn stop_elsewhere(&self, trace: &TraceAddress) -> Result<()> {
        self.traces.append_event(trace, STOP_REQUESTED, OtherFields::new()).await?;
        let late =
            |_| Err(Error::new(ErrorKind::Deadline, format!("the process that runs the trace `{trace}` did not stop the run in time")));
        let ended = async {
            result_of(&*self.traces, trace).await?;
            // A run on a side branch has no status, and a claim is released after the status is written.
            let mut refused = 0;
            loop {
                match self.claims.claim(trace.id(), self.host.options.lease).await {
                    Ok(held) => return held.release().await,
                    Err(error) if error.kind() != ErrorKind::Conflict => return Err(error),
                    Err(_) => CLAIM_BACKOFF.wait(refused).await,
                }
                refused = refused.saturating_add(1);
            }
        };
        tokio::time::timeout(STOP_LIMIT, ended).await.unwrap_or_else(late)
    }

    /// Binds the writes to local traces to a claim. Returns whether other processes may claim them too.
    fn bind(&mut self, held: &dyn HeldRun) -> bool {
        let local = held.traces();
        let is_shared = local.is_some();
        if let Some(local) = local {
            let traces = HybridTraces::new(local, self.traces.clone());
            self.traces = Arc::new(self.own.iter().cloned().fold(traces, HybridTraces::with_own_location));
        }
        is_shared
    }

    /// Refuses the trace of another user. The table of runs has those of all users.
    async fn check_own(&self, trace: &TraceAddress) -> Result<()> {
        self.traces.get_trace(trace).await?.map(drop).ok_or_else(|| gone(trace))
    }

    fn key(&self, trace: &TraceId) -> RunKey {
        (self.user.0.clone(), trace.clone())
    }

    /// Reserves a trace and the slots of its run.
    fn enter(&self, trace: &TraceId, idempotency_key: Option<&str>) -> Result<Entering> {
        let unavailable = |message: &str| Error::new(ErrorKind::Unavailable, message).without_effect();
        let mut table = self.host.table.lock();
        if table.is_closed {
            return Err(unavailable("this process shuts down; start the run in another process, or here after the restart"));
        }
        let free = match table.running.entry(self.key(trace)) {
            Entry::Vacant(free) => free,
            Entry::Occupied(run) => {
                let is_same = idempotency_key.is_some() && run.get().idempotency_key.as_deref() == idempotency_key;
                return Ok(Entering::Taken(is_same.then(|| run.get().clone())));
            }
        };
        let share = self.host.shares.take(self.user.clone(), self.host.options.runs_per_user_max);
        let share = share.ok_or_else(|| unavailable("too many of your runs are active; wait for one to end"))?;
        let slot = self.host.slots.clone().try_acquire_owned().map_err(|_| unavailable("too many runs are active; try again later"))?;
        let (ended, has_ended) = watch::channel(None);
        let key = idempotency_key.map(Arc::from);
        let run = RunHandle { stop: Arc::new(watch::channel(false).0), ended: has_ended, idempotency_key: key };
        free.insert(run.clone());
        let entered = Entered { host: self.host.clone(), key: self.key(trace), stop: run.stop.subscribe(), ended, _slots: (share, slot) };
        Ok(Entering::Free(entered, run))
    }
}

/// What came of reserving a trace.
enum Entering {
    /// The trace is reserved for this run.
    Free(Entered, RunHandle),
    /// A run works on the trace: one that an earlier call with the same key started, or another.
    Taken(Option<RunHandle>),
}

/// The place of a run in the table, until it is dropped.
struct Entered {
    host: Arc<Host>,
    key: RunKey,
    stop: watch::Receiver<bool>,
    ended: watch::Sender<Option<RunResult>>,
    _slots: (Share<User>, OwnedSemaphorePermit),
}

impl Entered {
    /// Frees the trace, then tells those who wait.
    fn leave(self, result: RunResult) {
        let ended = self.ended.clone();
        drop(self);
        ended.send_replace(Some(result));
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.host.table.lock().running.remove(&self.key);
    }
}

/// A run in the background. It goes on when the handle is dropped. Clones are handles of the same run.
#[derive(Clone)]
pub struct RunHandle {
    stop: Arc<watch::Sender<bool>>,
    ended: watch::Receiver<Option<RunResult>>,
    idempotency_key: Option<Arc<str>>,
}

impl fmt::Debug for RunHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunHandle").field("ended", &*self.ended.borrow()).finish_non_exhaustive()
    }
}

impl RunHandle {
    /// Waits for at most `limit`, and returns how the run ended. Returns `None` if it still runs.
    ///
    /// # Errors
    /// [`Internal`](ErrorKind::Internal) if the run ended without a result, because its task failed.
    pub async fn wait(&self, limit: Duration) -> Result<Option<RunResult>> {
        tokio::time::timeout(limit, self.ended()).await.map_or(Ok(None), |result| result.map(Some))
    }

    /// Stops the run and waits until its trace is free. Stopping a run that ended changes nothing.
    pub async fn stop(&self) {
        self.request_stop();
        if !matches!(self.wait(STOP_LIMIT).await, Ok(Some(_))) {
            tracing::warn!("a run that was stopped has not written its status");
        }
    }

    /// Stops the run without waiting for its end.
    pub fn request_stop(&self) {
        self.stop.send_replace(true);
    }

    async fn ended(&self) -> Result<RunResult> {
        let mut ended = self.ended.clone();
        let result = ended.wait_for(Option::is_some).await.ok().and_then(|result| result.clone());
        result.ok_or_else(|| Error::new(ErrorKind::Internal, "the run ended without a result"))
    }
}

fn local(trace: &TraceAddress) -> Result<&TraceId> {
    if !trace.is_local() {
        let message = format!("the trace `{trace}` lives elsewhere; run it there");
        return Err(Error::invalid_argument(message));
    }
    Ok(trace.id())
}

fn gone(trace: &TraceAddress) -> Error {
    Error::new(ErrorKind::NotFound, format!("the trace `{trace}` does not exist"))
}

/// Waits until a trace has a final status, and returns how its last run ended.
async fn result_of(traces: &dyn TraceStore, address: &TraceAddress) -> Result<RunResult> {
    let gone = || gone(address);
    let mut trace = traces.get_trace(address).await?.ok_or_else(gone)?;
    let mut since = trace.last_event_id;
    let mut watched = None;
    while !trace.status.is_final() {
        let events = match &mut watched {
            Some(events) => events,
            None => watched.insert(traces.watch(address, since).await?),
        };
        since = events.next().await.ok_or_else(gone)??.event_id;
        trace = traces.get_trace(address).await?.ok_or_else(gone)?;
    }
    let from = trace.last_event_id.max(since).saturating_sub(END_EVENTS);
    let page = traces.get_events(address, from, END_EVENTS as usize).await?;
    let is_end = |event: &&TraceEvent| event.event == RUN_ENDED && !event.data.contains_key(BRANCH_TYPE);
    let end = page.events.iter().rev().find(is_end).and_then(result_in);
    Ok(end.filter(|result| result.status == trace.status).unwrap_or(result_of_status(trace.status)))
}

/// Returns how the run ended that began with a message; `None` if it did not end, or too long ago to be known.
async fn ended_after(traces: &dyn TraceStore, trace: &Trace, sequence: u64) -> Result<Option<RunResult>> {
    let from = trace.last_event_id.saturating_sub(PAGE_MAX as u64);
    let page = traces.get_events(&trace.trace_id, from, PAGE_MAX).await?;
    let begins = |event: &TraceEvent| event.event == kinds::MESSAGE_ADDED && event.data.get("sequence").is_some_and(|of| *of == sequence);
    let after = page.events.iter().skip_while(|event| !begins(event));
    Ok(after.filter(|event| event.event == RUN_ENDED).find_map(result_in))
}

/// Makes the result of a run of which only the status is known.
fn result_of_status(status: TraceStatus) -> RunResult {
    RunResult { status, summary: None, error: None }
}

/// Reads the result from an event [`RUN_ENDED`].
fn result_in(event: &TraceEvent) -> Option<RunResult> {
    serde_json::from_value(event.data.clone().into()).ok()
}
