//! The manager of a session's orchestration: it runs agents, and logs each decision before anyone sees it.
//!
//! Each decision is one commit of events, the checkpoint that includes them, and the affected mailboxes. After the commit
//! the manager updates its state and announces the events. Each agent works on one input at a time, in order of arrival.
//!
//! A manager holds the [`Claim`] on its orchestration. If another manager takes over, this one ends: its commits are refused,
//! and it delivers no more inputs.

mod lease;
mod options;
mod waits;
mod work;

pub use options::ManagerOptions;

use super::claim::Claim;

use super::event::{
    AgentSpawn, AgentStatus, CloseRequest, EventFields, EventKind, InitialTask, InputRemoval, JobOutcome, MailboxEvent, MailboxEventFields,
    MailboxEventKind, MailboxState, MailboxStateFields, OrchestrationEvent, QueuedInput, RunStatus,
};
use super::persistence::{OrchestrationCommit, OrchestrationPersistence};
use super::snapshot::{Agent, InputEnvelope, Run, Snapshot, SnapshotFields, WaitStatus};
use crate::sessions::Ids;
use async_trait::async_trait;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, broadcast, watch};
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;
use treehold_core::scope::check_id;

/// How many events a slow subscriber may lag behind.
const EVENTS_BEHIND_MAX: usize = 1_024;

/// Runs the agents of a manager.
#[async_trait]
pub trait AgentRuntime: Send + Sync {
    /// Prepares an agent for work: a new one, or one that was recovered after a restart.
    ///
    /// # Errors
    /// Any: the agent remains, and its inputs wait until the next restart.
    async fn attach(&self, agent: &Agent) -> Result<()>;

    /// Lets an agent work on an input. After a crash, the same input may be delivered again.
    ///
    /// # Errors
    /// Any: the job counts as failed.
    async fn deliver(&self, agent: &Agent, input: &InputEnvelope) -> Result<Delivery>;

    /// Releases the resources of a closed agent.
    async fn detach(&self, agent: &Agent);
}

/// The result of an agent's work on an input.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivery {
    /// The outcome.
    pub outcome: JobOutcome,
    /// The agent's answer.
    pub output_text: Option<String>,
    /// The error.
    pub error: Option<String>,
}

impl Delivery {
    /// Creates the result of an input that the agent answered.
    pub fn completed(output_text: impl Into<String>) -> Self {
        Self { outcome: JobOutcome::Completed, output_text: Some(output_text.into()), error: None }
    }

    /// Creates the result of an input that the agent failed to process.
    pub fn failed(error: impl Into<String>) -> Self {
        Self { outcome: JobOutcome::Failed, output_text: None, error: Some(error.into()) }
    }
}

/// The manager of one session's orchestration. Clones share it. Agents stop taking inputs when the last clone is dropped.
///
/// At most one manager runs an orchestration at a time, among all processes. If another one takes over, every call that changes
/// something is [`Conflict`](ErrorKind::Conflict), without an effect.
#[derive(Clone)]
pub struct OrchestrationManager(Arc<Inner>);

struct Inner {
    session: String,
    persistence: Arc<dyn OrchestrationPersistence>,
    runtime: Arc<dyn AgentRuntime>,
    claim: Claim,
    holder: String,
    lease: Duration,
    clock: Clock,
    ids: Ids,
    state: Mutex<State>,
    announced: broadcast::Sender<OrchestrationEvent>,
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    snapshot: SnapshotFields,
    mailboxes: HashMap<String, Mailbox>,
    /// The agents that are working.
    working: HashSet<String>,
    /// The agents that could not be attached in this process.
    unattached: HashSet<String>,
    /// Whether another manager took over, or this one was closed.
    has_ended: bool,
}

/// The state of a mailbox: how many events were processed, and the events after them.
#[derive(Debug, Clone, Default)]
struct Mailbox {
    processed: u64,
    /// The unprocessed inputs; `None` for an event of another kind.
    waiting: VecDeque<Option<String>>,
    close_requested: Option<Json>,
}

impl Mailbox {
    /// Marks everything up to a delivered input as processed. An input that is not in the mailbox changes nothing.
    fn pass(&mut self, input: &str) {
        if let Some(index) = self.waiting.iter().position(|waiting| waiting.as_deref() == Some(input)) {
            self.waiting.drain(..=index);
            self.processed += index as u64 + 1;
        }
    }

    fn pass_all(&mut self) {
        self.processed += self.waiting.len() as u64;
        self.waiting.clear();
    }

    fn state(&self) -> Result<MailboxState> {
        MailboxState::of(MailboxStateFields { processed_event_count: self.processed, close_requested: self.close_requested.clone() })
    }
}

/// The contents of one commit.
#[derive(Default)]
struct Step {
    run_id: String,
    kinds: Vec<EventKind>,
    /// Events of mailboxes, each with its agent.
    mail: Vec<(String, MailboxEventKind)>,
    /// The mailboxes whose state is written, each with its agent.
    counted: Vec<(String, Mailbox)>,
}

impl OrchestrationManager {
    /// Recovers the orchestration of a session and continues it: closes agents with a pending request to close, queues undelivered
    /// inputs again, attaches agents, and resumes waits. Claims the orchestration, so that no other manager runs it.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable), without an effect, while another manager runs the orchestration or its lease
    /// lasts; [`NotFound`](ErrorKind::NotFound) for an unknown session; otherwise those of the persistence.
    pub async fn open(
        session: impl Into<String>,
        persistence: Arc<dyn OrchestrationPersistence>,
        runtime: Arc<dyn AgentRuntime>,
        options: ManagerOptions,
    ) -> Result<Self> {
        let ManagerOptions { holder, lease, clock, ids } = options;
        // Claim first: nobody else can change the state after it was read.
        let claim = persistence.claim(&holder, lease).await?;
        let (announced, _) = broadcast::channel(EVENTS_BEHIND_MAX);
        let (state, changes, session) = (Mutex::default(), watch::Sender::new(0), session.into());
        let inner = Inner { session, persistence, runtime, claim, holder, lease, clock, ids, state, announced, changes };
        let manager = Self(Arc::new(inner));
        manager.keep_lease();
        let mut state = manager.0.state.lock().await;
        let recovered = manager.0.persistence.recover_state().await?;
        state.snapshot = recovered.snapshot;
        for agent in &recovered.active_agents {
            manager.resume(&mut state, agent).await?;
        }
        manager.settle_waits(&mut state).await?;
        for wait in state.snapshot.waits.values().filter(|wait| wait.status == WaitStatus::Pending) {
            manager.time_out(wait);
        }
        drop(state);
        Ok(manager)
    }

    /// Resumes an agent after a restart.
    async fn resume(&self, state: &mut State, agent: &Agent) -> Result<()> {
        let (events, counted) =
            (self.0.persistence.load_mailbox_events(&agent.id).await?, self.0.persistence.load_mailbox_state(&agent.id).await?);
        // A count beyond the events is damaged, and would count later events as processed.
        let processed = counted.processed_event_count.min(events.len() as u64);
        let mut mailbox = Mailbox { processed, close_requested: counted.close_requested.clone(), ..Mailbox::default() };
        let mut step = Step { run_id: agent.run_id.clone(), ..Step::default() };
        let mut is_closing = mailbox.close_requested.is_some() || agent.status == AgentStatus::Closing;
        for event in events.iter().skip(usize::try_from(mailbox.processed).unwrap_or(usize::MAX)) {
            let input = match &event.kind {
                MailboxEventKind::InputEnqueued { input_id, payload } => {
                    let is_queued = |input: &InputEnvelope| (&input.id, &input.agent_id) == (input_id, &agent.id);
                    if !state.snapshot.queued_inputs.iter().any(is_queued) {
                        let input = QueuedInput { id: input_id.clone(), agent_id: agent.id.clone(), payload: payload.clone() };
                        step.kinds.push(EventKind::AgentInputQueued { input });
                    }
                    Some(input_id.clone())
                }
                MailboxEventKind::AgentCloseRequested { .. } => {
                    is_closing = true;
                    None
                }
                MailboxEventKind::Unknown => None,
            };
            mailbox.waiting.push_back(input);
        }
        state.mailboxes.insert(agent.id.clone(), mailbox);
        if is_closing {
            self.record(state, step).await?;
            return self.finish_close(state, &agent.id, None).await;
        }
        if !matches!(agent.status, AgentStatus::Idle) {
            step.kinds.push(EventKind::AgentStatusChanged { agent_id: agent.id.clone(), status: AgentStatus::Idle });
        }
        self.record(state, step).await?;
        self.attach(state, agent).await;
        self.work(state, &agent.id);
        Ok(())
    }

    /// Returns a copy of the state.
    pub async fn snapshot(&self) -> SnapshotFields {
        self.0.state.lock().await.snapshot.clone()
    }

    /// Subscribes to the events from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<OrchestrationEvent> {
        self.0.announced.subscribe()
    }

    /// Starts a run, or returns the existing run with this id. By default the run and its task are named after the session.
    ///
    /// # Errors
    /// Those of the persistence.
    pub async fn start_run(&self, run_id: Option<&str>, task: Option<InitialTask>) -> Result<Run> {
        let run_id = run_id.map_or_else(|| format!("orchestration:{}", self.0.session), str::to_owned);
        let mut state = self.0.state.lock().await;
        if let Some(run) = state.snapshot.runs.get(&run_id) {
            return Ok(run.clone());
        }
        let default_task =
            || InitialTask { id: format!("task:{}:root", self.0.session), kind: "root".to_owned(), input: Value::Object(Map::new()) };
        let initial_task = task.unwrap_or_else(default_task);
        self.record_one(&mut state, &run_id, EventKind::RunStarted { initial_task }).await?;
        Ok(state.snapshot.runs[&run_id].clone())
    }

    /// Ends a run.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for an unknown run, and those of the persistence.
    pub async fn complete_run(&self, run_id: &str, status: RunStatus, error: Option<String>) -> Result<()> {
        let mut state = self.0.state.lock().await;
        if !state.snapshot.runs.contains_key(run_id) {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no run `{run_id}`")));
        }
        self.record_one(&mut state, run_id, EventKind::RunCompleted { status, error }).await
    }

    /// Creates an agent, or returns the existing agent with this id if it has the same task, role and name.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for an unknown run, [`AlreadyExists`](ErrorKind::AlreadyExists) for an id
    /// that a different agent has, [`InvalidArgument`](ErrorKind::InvalidArgument) for an id that cannot be kept exactly, and
    /// those of the persistence.
    pub async fn spawn_agent(&self, run_id: &str, agent: AgentSpawn) -> Result<Agent> {
        check_id("agent", &agent.id)?;
        let mut state = self.0.state.lock().await;
        let run = state.snapshot.runs.get(run_id).filter(|run| !run.is_over());
        let run = run.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no active run `{run_id}`")))?;
        let task = agent.task_id.clone().unwrap_or_else(|| run.initial_task_id.clone());
        if let Some(found) = state.snapshot.agents.get(&agent.id) {
            let wanted = (run_id, task.as_str(), agent.role.as_str(), &agent.display_name);
            if (found.run_id.as_str(), found.task_id.as_str(), found.role.as_str(), &found.display_name) == wanted {
                return Ok(found.clone());
            }
            let message = format!("there is an agent `{}` with another task, role or name; take another id", agent.id);
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        let id = agent.id.clone();
        self.record_one(&mut state, run_id, EventKind::AgentSpawned { agent }).await?;
        let spawned = state.snapshot.agents[&id].clone();
        self.attach(&mut state, &spawned).await;
        Ok(spawned)
    }

    /// Queues an input for an agent and returns its id. The input is in the agent's mailbox before this returns.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for an unknown agent, [`InvalidArgument`](ErrorKind::InvalidArgument) for one that
    /// is closed or being closed, and those of the persistence.
    pub async fn send_input(&self, agent: &str, payload: Value) -> Result<String> {
        let mut state = self.0.state.lock().await;
        let found = find_agent(&state.snapshot, agent)?;
        if !state.snapshot.takes_input(agent) {
            return Err(Error::invalid_argument(format!("the agent `{agent}` is closed and takes no input")));
        }
        let id = self.0.ids.next();
        let input = QueuedInput { id: id.clone(), agent_id: agent.to_owned(), payload: payload.clone() };
        let step = Step {
            run_id: found.run_id.clone(),
            kinds: vec![EventKind::AgentInputQueued { input }],
            mail: vec![(agent.to_owned(), MailboxEventKind::InputEnqueued { input_id: id.clone(), payload })],
            counted: Vec::new(),
        };
        self.record(&mut state, step).await?;
        self.work(&mut state, agent);
        Ok(id)
    }

    /// Closes an agent after its current input. Queued inputs are dropped. Closing a closed agent does nothing.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for an unknown agent, and those of the persistence.
    pub async fn close_agent(&self, agent: &str, reason: Option<String>) -> Result<()> {
        let mut state = self.0.state.lock().await;
        let found = find_agent(&state.snapshot, agent)?;
        if !state.snapshot.takes_input(agent) {
            return Ok(());
        }
        let now = self.0.clock.now().to_string();
        let mut mailbox = state.mailboxes.get(agent).cloned().unwrap_or_default();
        mailbox.close_requested = Some(Json::of(&json!({"reason": reason, "occurredAt": now}))?);
        let step = Step {
            run_id: found.run_id.clone(),
            kinds: vec![EventKind::AgentStatusChanged { agent_id: agent.to_owned(), status: AgentStatus::Closing }],
            mail: vec![(agent.to_owned(), MailboxEventKind::AgentCloseRequested { reason: reason.clone() })],
            counted: vec![(agent.to_owned(), mailbox)],
        };
        self.record(&mut state, step).await?;
        if state.working.contains(agent) { Ok(()) } else { self.finish_close(&mut state, agent, reason).await }
    }

    /// Drops the queued inputs of an agent and closes it.
    async fn finish_close(&self, state: &mut State, agent: &str, reason: Option<String>) -> Result<()> {
        let found = find_agent(&state.snapshot, agent)?.clone();
        let mut mailbox = state.mailboxes.get(agent).cloned().unwrap_or_default();
        mailbox.pass_all();
        let waiting = state.snapshot.queued_inputs.iter().filter(|input| input.agent_id == agent);
        let removed = waiting.map(|input| EventKind::AgentInputRemoved {
            input_id: input.id.clone(),
            agent_id: agent.to_owned(),
            reason: InputRemoval::AgentClosed,
        });
        let close = CloseRequest { id: self.0.ids.next(), agent_id: agent.to_owned(), reason };
        let kinds = removed.chain([EventKind::AgentClosed { close }]).collect();
        let step = Step { run_id: found.run_id.clone(), kinds, mail: Vec::new(), counted: vec![(agent.to_owned(), mailbox)] };
        self.record(state, step).await?;
        self.0.runtime.detach(&found).await;
        Ok(())
    }

    async fn record_one(&self, state: &mut State, run_id: &str, kind: EventKind) -> Result<()> {
        self.record(state, Step { run_id: run_id.to_owned(), kinds: vec![kind], ..Step::default() }).await
    }

    /// Commits a step, then resolves the waits that it fulfils.
    async fn record(&self, state: &mut State, step: Step) -> Result<()> {
        if step.kinds.is_empty() && step.mail.is_empty() && step.counted.is_empty() {
            return Ok(());
        }
        self.commit(state, step).await?;
        self.settle_waits(state).await
    }

    /// Commits a step, applies it to the state, and announces its events. A failed commit changes nothing.
    async fn commit(&self, state: &mut State, step: Step) -> Result<()> {
        self.check_has_not_ended(state)?;
        let occurred_at = self.0.clock.now().to_string();
        let mut next = state.snapshot.clone();
        let mut commit = OrchestrationCommit::new().with_claim(self.0.claim);
        for kind in step.kinds {
            let fields = EventFields { event_id: self.0.ids.next(), occurred_at: occurred_at.clone(), run_id: step.run_id.clone(), kind };
            let event = OrchestrationEvent::of(fields)?;
            next.apply(&event);
            commit.events.push(event);
        }
        let mut mailboxes: HashMap<String, Mailbox> = step.counted.into_iter().collect();
        for (agent, mailbox) in &mailboxes {
            commit.mailbox_states.push((agent.clone(), mailbox.state()?));
        }
        for (agent, kind) in step.mail {
            let input = match &kind {
                MailboxEventKind::InputEnqueued { input_id, .. } => Some(input_id.clone()),
                MailboxEventKind::AgentCloseRequested { .. } | MailboxEventKind::Unknown => None,
            };
            let mailbox = mailboxes.entry(agent.clone()).or_insert_with(|| state.mailboxes.get(&agent).cloned().unwrap_or_default());
            mailbox.waiting.push_back(input);
            let fields =
                MailboxEventFields { event_id: self.0.ids.next(), agent_id: agent.clone(), occurred_at: occurred_at.clone(), kind };
            commit.mailbox_events.push((agent, MailboxEvent::of(fields)?));
        }
        commit.checkpoint = Some(Snapshot::of_state(&next)?);
        if let Err(error) = self.0.persistence.commit(&commit).await {
            if error.kind() == ErrorKind::Conflict {
                self.end(state);
            }
            return Err(error);
        }
        state.snapshot = next;
        state.mailboxes.extend(mailboxes);
        for event in commit.events {
            // Sending fails if nobody is subscribed, which is fine.
            drop(self.0.announced.send(event));
        }
        self.0.changes.send_modify(|number| *number += 1);
        Ok(())
    }
}

impl fmt::Debug for OrchestrationManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrchestrationManager").field("session", &self.0.session).finish_non_exhaustive()
    }
}

fn find_agent<'s>(state: &'s SnapshotFields, agent: &str) -> Result<&'s Agent> {
    state.agents.get(agent).ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no agent `{agent}`")))
}
