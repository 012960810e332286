//! The stateless agent: one object for all users and sessions.

use super::gate::{Turn, TurnGate, TurnKey};
use super::interrupt::{Interrupt, InterruptSource};
use super::running::{Call, CallCore, Saved, Saving};
use super::shutdown::{ActiveCall, Shutdown, shutting_down};
use crate::contract::AgentStateStore;
use crate::legacy::{FoundState, load_with_legacy};
use crate::policy::{ConflictPolicy, LoadedState, StateSaver};
use crate::slot::StateSlot;
use crate::state::{AgentState, Block, CallState, Message, Role, RuntimeContext, ToolCallState, ToolResultState};
use crate::states::AgentStates;
use futures::FutureExt;
use parking_lot::Mutex;
use std::fmt;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::Duration;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, Result};
use treehold_core::scope::check_id;
use treehold_store::Store;

/// When a call saves its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Durability {
    /// When it ends. A process that is killed loses the call.
    #[default]
    Exit,
    /// At each safe point too.
    Step,
}

/// What happens to the answer of the model, as far as it came, when a call is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PartialReasoning {
    /// It is saved.
    #[default]
    Save,
    /// It is dropped.
    Discard,
}

/// The settings of a stateless agent.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AgentOptions {
    /// When calls save their states.
    pub durability: Durability,
    /// What a save does when another writer saved the state since it was loaded. With turns this takes a writer that takes none.
    pub conflict_policy: ConflictPolicy,
    /// What happens to a partial answer of the model.
    pub partial_reasoning: PartialReasoning,
    /// Whether calls of tools without a result, which an earlier call left behind, are answered with an error when the next call begins.
    /// Those that wait for the user's permission are left alone, and so are all if the input has results. Default true.
    pub recover_open_calls: bool,
    /// What the agent says when the user interrupted it.
    pub interrupted_text: String,
    /// The author of what the agent says. Default: the id of the agent.
    pub name: String,
    /// How long a call waits for its turn. Default: for ever.
    pub wait_max: Option<Duration>,
    /// The source of the times of messages.
    pub clock: Clock,
}

impl Default for AgentOptions {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            conflict_policy: ConflictPolicy::default(),
            partial_reasoning: PartialReasoning::default(),
            recover_open_calls: true,
            interrupted_text: "You interrupted me. What should I do next?".to_owned(),
            name: String::new(),
            wait_max: None,
            clock: Clock::system(),
        }
    }
}

impl AgentOptions {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets when calls save their states.
    #[must_use]
    pub fn with_durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets what a save does when another writer saved the state since it was loaded.
    #[must_use]
    pub fn with_conflict_policy(mut self, policy: ConflictPolicy) -> Self {
        self.conflict_policy = policy;
        self
    }

    /// Sets what happens to a partial answer of the model.
    #[must_use]
    pub fn with_partial_reasoning(mut self, partial_reasoning: PartialReasoning) -> Self {
        self.partial_reasoning = partial_reasoning;
        self
    }

    /// Sets whether calls of tools that an earlier call left open are answered.
    #[must_use]
    pub fn with_recover_open_calls(mut self, recover: bool) -> Self {
        self.recover_open_calls = recover;
        self
    }

    /// Sets what the agent says when the user interrupted it.
    #[must_use]
    pub fn with_interrupted_text(mut self, text: impl Into<String>) -> Self {
        self.interrupted_text = text.into();
        self
    }

    /// Sets the author of what the agent says.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets how long a call waits for its turn.
    #[must_use]
    pub fn with_wait_max(mut self, wait_max: Option<Duration>) -> Self {
        self.wait_max = wait_max;
        self
    }

    /// Sets the source of the times of messages.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }
}

/// How a call ended that did not fail.
#[derive(Debug, Clone, PartialEq)]
pub enum CallOutcome<T> {
    /// The loop is done, and this is what it returned.
    Done(T),
    /// The user interrupted the call.
    Interrupted(InterruptedCall),
}

impl<T> CallOutcome<T> {
    /// Returns what the loop returned; `None` if the call was interrupted.
    pub fn done(self) -> Option<T> {
        match self {
            Self::Done(output) => Some(output),
            Self::Interrupted(_) => None,
        }
    }
}

/// A call that the user interrupted. Its state is saved.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct InterruptedCall {
    /// The interrupt, with what the user said.
    pub interrupt: Interrupt,
    /// What the agent says, with the reason `INTERRUPTED`. It is the last message of the state.
    pub message: Message,
    /// How many calls of tools were open and got a result that says so.
    pub closed_calls: usize,
}

/// A call that failed.
#[derive(Debug)]
#[non_exhaustive]
pub struct CallError {
    /// Why. An error of the loop is kept even if the state could not be saved afterwards.
    pub error: Error,
    /// Why the state could not be saved after the call failed; `None` if it was saved, or if there was nothing to save.
    pub save_error: Option<Error>,
}

impl CallError {
    /// Returns the error of the call alone. The error of the save goes to the log.
    pub fn into_error(self) -> Error {
        if let Some(error) = &self.save_error {
            tracing::warn!(%error, "the state of a failed call could not be saved");
        }
        self.error
    }
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        Self { error, save_error: None }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.save_error {
            Some(save) => write!(f, "{}; then the state could not be saved: {save}", self.error),
            None => write!(f, "{}", self.error),
        }
    }
}

impl std::error::Error for CallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// An agent that serves any number of users and sessions at the same time. It holds configuration only. All that changes is the state of a
/// session, which is loaded when a call begins and saved when it ends, so that any process can serve any call.
///
/// Calls of one session take turns, in the order in which they arrived, in all processes together; see [`TurnGate`]. Clones share the
/// configuration.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use treehold_agent_state::call::{CallOutcome, StatelessAgent};
/// use treehold_agent_state::{Message, RuntimeContext, StateSlot};
/// use treehold_store::MemoryStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let agent = StatelessAgent::over(Arc::new(MemoryStore::new()), "acme", "helper")?;
/// let slot = StateSlot::new(Some("ada"), "s-1")?;
/// let now = jiff::Timestamp::now();
/// let input = vec![Message::user("hello", now)];
/// let outcome = agent
///     .call(RuntimeContext::new(slot.clone()), input, async |call| {
///         call.safe_point().await?;
///         call.state().lock().push(Message::assistant("hello, Ada", now))?;
///         Ok(call.state().lock().context().len())
///     })
///     .await?;
/// assert_eq!(outcome, CallOutcome::Done(2));
/// assert_eq!(agent.state(&slot).await?.expect("it was saved").context().len(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct StatelessAgent {
    states: Arc<dyn AgentStateStore>,
    gate: TurnGate,
    tenant: Arc<str>,
    agent: Arc<str>,
    options: Arc<AgentOptions>,
    saver: StateSaver,
    shutdown: Shutdown,
}

impl StatelessAgent {
    /// Makes an agent whose states and turns are in one store.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) for an id that cannot name a tenant or agent.
    pub fn over(store: Arc<dyn Store>, tenant: &str, agent: &str) -> Result<Self> {
        let states = AgentStates::new(store.clone()).for_agent(tenant, agent)?;
        Self::new(Arc::new(states), TurnGate::new(store), tenant, agent)
    }

    /// Makes an agent. If the states support fences, the gate must keep its turns in the store that holds them. If they do not, each save
    /// first checks that the turn still has the session, at the cost of one read.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) for an id that cannot name a tenant or agent.
    pub fn new(states: Arc<dyn AgentStateStore>, gate: TurnGate, tenant: &str, agent: &str) -> Result<Self> {
        check_id("tenant", tenant)?;
        check_id("agent", agent)?;
        let options = AgentOptions::new().with_name(agent);
        let saver = StateSaver::new(options.conflict_policy);
        let (tenant, agent, options) = (tenant.into(), agent.into(), Arc::new(options));
        Ok(Self { states, gate, tenant, agent, options, saver, shutdown: Shutdown::new() })
    }

    /// Sets the options.
    #[must_use]
    pub fn with_options(mut self, mut options: AgentOptions) -> Self {
        if options.name.is_empty() {
            options.name = self.agent.to_string();
        }
        self.saver = StateSaver::new(options.conflict_policy);
        self.options = Arc::new(options);
        self
    }

    /// Sets the shutdown that the agent obeys, which several agents of a process share.
    #[must_use]
    pub fn with_shutdown(mut self, shutdown: Shutdown) -> Self {
        self.shutdown = shutdown;
        self
    }

    /// Returns the shutdown that the agent obeys.
    pub fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// Returns the store of the states.
    pub fn states(&self) -> &Arc<dyn AgentStateStore> {
        &self.states
    }

    /// Returns how many saves met a state that another writer had saved.
    pub fn conflicts(&self) -> u64 {
        self.saver.conflicts()
    }

    /// Runs one call: waits for the turn of the session, loads its state, adds the input, runs the loop, and saves.
    ///
    /// The loop gets a [`Call`] with the state, and marks its safe points. It returns errors of safe points as they are.
    ///
    /// - If the state cannot be loaded, the call fails and nothing is written.
    /// - If the user interrupts the call, its open calls of tools get a result that says so, a message of the agent is added, and the state
    ///   is saved.
    /// - If a shutdown stops it, the state is saved with a mark and the call fails. When the call is repeated, here or elsewhere, the mark is
    ///   cleared, and input that is in the state already is not added again.
    /// - If the loop fails or panics, what the state holds by then is saved and the failure is passed on. The same happens in the
    ///   background when the future is dropped while the loop runs. Dropping it earlier leaves the queue.
    ///
    /// # Errors
    /// [`TurnRefusal::ShuttingDown`](super::TurnRefusal::ShuttingDown) if the process shuts down,
    /// [`TurnRefusal::Busy`](super::TurnRefusal::Busy) if the turn does not come in time,
    /// [`TurnRefusal::Lost`](super::TurnRefusal::Lost) if another process took the session over before the save.
    /// [`Corrupt`](treehold_core::ErrorKind::Corrupt) for a state that cannot be read. Otherwise those of the loop, the gate and the state
    /// store.
    pub async fn call<T, F>(&self, mut context: RuntimeContext, input: Vec<Message>, run: F) -> Result<CallOutcome<T>, CallError>
    where
        F: AsyncFnOnce(&mut Call) -> Result<T>,
    {
        let (active, turn) = self.enter(context.slot()).await?;
        let core = self.begin(context.slot(), active, turn).await?;
        self.add_input(&mut core.state.lock(), input)?;
        let mut unfinished = Unfinished(Some(core.clone()));
        context.set_state(Some(core.state.clone()));
        let mut call = Call { context, core: core.clone() };
        let result = tokio::select! {
            biased;
            () = self.shutdown.forced() => None,
            result = AssertUnwindSafe(run(&mut call)).catch_unwind() => Some(result),
        };
        drop(call);
        unfinished.0 = None;
        let ended = finish(&core, result).await;
        release(core).await;
        match ended {
            Ok(outcome) => outcome,
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Interrupts the call of the session that runs now, in any process, and returns whether there is one. Calls that wait and later ones
    /// are not interrupted. See [`TurnGate::interrupt`].
    ///
    /// # Errors
    /// Those of the store.
    pub async fn interrupt(&self, slot: &StateSlot, interrupt: Interrupt) -> Result<bool> {
        self.gate.interrupt(&self.key(slot)?, interrupt).await
    }

    /// Returns whether a call of the session runs, in any process.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn is_running(&self, slot: &StateSlot) -> Result<bool> {
        self.gate.is_running(&self.key(slot)?).await
    }

    /// Returns the saved state of a session, for consoles and audits; `None` if there is none. It takes no turn.
    ///
    /// # Errors
    /// [`Corrupt`](treehold_core::ErrorKind::Corrupt) for a state that cannot be read. Otherwise those of the state store.
    pub async fn state(&self, slot: &StateSlot) -> Result<Option<AgentState>> {
        Ok(self.load(slot).await?.0)
    }

    /// Changes the state of a session outside of a call: to clear its context, or to set its permissions. It takes a turn, so it neither
    /// disturbs a call nor is lost to one.
    ///
    /// # Errors
    /// As [`StatelessAgent::call`], and those of `edit`, which save nothing.
    pub async fn edit<T>(&self, slot: &StateSlot, edit: impl FnOnce(&mut AgentState) -> Result<T>) -> Result<T> {
        let (active, turn) = self.enter(slot).await?;
        // There is no call that an interrupt could hit.
        turn.close();
        let core = self.begin(slot, active, turn).await?;
        let output = edit(&mut core.state.lock())?;
        core.clone().save(Saving::Policy).await?;
        release(core).await;
        Ok(output)
    }

    fn key(&self, slot: &StateSlot) -> Result<TurnKey> {
        TurnKey::new(&self.tenant, &self.agent, slot)
    }

    /// Waits for the turn, unless the process shuts down.
    async fn enter(&self, slot: &StateSlot) -> Result<(ActiveCall, Turn)> {
        let (key, active) = (self.key(slot)?, self.shutdown.enter()?);
        let turn = async {
            match self.options.wait_max {
                Some(limit) => self.gate.acquire_within(&key, limit).await,
                None => self.gate.acquire(&key).await,
            }
        };
        tokio::select! {
            biased;
            () = self.shutdown.begun() => Err(shutting_down().without_effect()),
            turn = turn => Ok((active, turn?)),
        }
    }

    /// Reads the state, and what a save will expect.
    async fn load(&self, slot: &StateSlot) -> Result<(Option<AgentState>, LoadedState)> {
        Ok(match load_with_legacy(&*self.states, slot).await? {
            None => (None, LoadedState::of(None)),
            Some(FoundState::Current(found)) => (Some(AgentState::from_stored(&found.value)?), LoadedState::of(Some(&found))),
            Some(FoundState::Legacy(legacy)) => (Some(AgentState::from_stored(&legacy.to_json(slot)?)?), LoadedState::of(None)),
        })
    }

    /// Loads the state. A failure ends the turn and writes nothing.
    async fn begin(&self, slot: &StateSlot, active: ActiveCall, turn: Turn) -> Result<Arc<CallCore>> {
        let (state, loaded) = self.load(slot).await?;
        let state = CallState::new(state.unwrap_or_else(|| AgentState::new(slot)));
        Ok(Arc::new(CallCore {
            states: self.states.clone(),
            saver: self.saver.clone(),
            options: self.options.clone(),
            shutdown: self.shutdown.clone(),
            slot: slot.clone(),
            turn,
            state,
            partial: Mutex::default(),
            seen: Mutex::default(),
            saved: Arc::new(tokio::sync::Mutex::new(Saved { loaded, attempted: None })),
            active,
        }))
    }

    /// Adds the input of a call to the state.
    fn add_input(&self, state: &mut AgentState, input: Vec<Message>) -> Result<()> {
        let was_stopped = state.is_shutdown_interrupted();
        state.set_shutdown_interrupted(false);
        if self.options.recover_open_calls && input.iter().all(|message| message.answers().is_empty()) && !is_asking(state) {
            state.close_open_calls(LEFT_OPEN, ToolResultState::Error, self.options.clock.now())?;
        }
        if was_stopped && is_repeated(state.context(), &input) {
            tracing::info!(session = state.session_id(), "a call that a shutdown stopped is repeated; its input is there already");
            return Ok(());
        }
        input.into_iter().try_for_each(|message| state.push(message))
    }
}

impl fmt::Debug for StatelessAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatelessAgent").field("tenant", &self.tenant).field("agent", &self.agent).finish_non_exhaustive()
    }
}

/// The result of a tool that an earlier call left behind.
const LEFT_OPEN: &str = "An earlier call ended before this tool returned a result. It may or may not have run.";

/// The end of a loop: `None` if a shutdown stopped it, the outer error if it panicked.
type Ended<T> = Option<std::thread::Result<Result<T>>>;

/// Saves what a loop left behind.
async fn finish<T>(core: &Arc<CallCore>, ended: Ended<T>) -> std::thread::Result<Result<CallOutcome<T>, CallError>> {
    core.turn.close();
    let failed = |error, saved: Result<()>| Ok(Err(CallError { error, save_error: saved.err() }));
    let error = match ended {
        None => return failed(shutting_down(), core.clone().end_for_shutdown().await),
        Some(Err(panic)) => {
            if let Err(error) = core.clone().end_failed().await {
                tracing::warn!(%error, slot = %core.slot, "the state of a call that panicked could not be saved");
            }
            return Err(panic);
        }
        Some(Ok(Ok(output))) => {
            let saved = core.clone().save(Saving::Policy).await;
            return Ok(saved.map(|()| CallOutcome::Done(output)).map_err(CallError::from));
        }
        Some(Ok(Err(error))) => error,
    };
    let seen = core.seen.lock().clone();
    match seen {
        Some(interrupt) if interrupt.source == InterruptSource::User => {
            let ended = core.clone().end_interrupted().await;
            let outcome =
                ended.map(|(message, closed_calls)| CallOutcome::Interrupted(InterruptedCall { interrupt, message, closed_calls }));
            Ok(outcome.map_err(CallError::from))
        }
        Some(_) => failed(shutting_down(), core.clone().end_for_shutdown().await),
        // Nothing more of a lost turn can be saved.
        None if core.turn.is_lost() => failed(error, Ok(())),
        None => failed(error, core.clone().end_failed().await),
    }
}

/// Ends the turn. If a save is still under way, that ends it.
async fn release(core: Arc<CallCore>) {
    if let Some(CallCore { turn, active, .. }) = Arc::into_inner(core) {
        if let Err(error) = turn.release().await {
            tracing::warn!(%error, "a turn could not be released; its lease ends by itself");
        }
        drop(active);
    }
}

/// A call whose loop runs. Dropped before its end, it saves in the background.
struct Unfinished(Option<Arc<CallCore>>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let Some(core) = self.0.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            core.turn.close();
            if let Err(error) = core.clone().end_failed().await {
                tracing::warn!(%error, slot = %core.slot, "the state of a call that was dropped could not be saved");
            }
            release(core).await;
        });
    }
}

/// Returns whether a call of a tool waits for the permission of the user.
fn is_asking(state: &AgentState) -> bool {
    state.open_calls().iter().any(|open| {
        let is_it = |block: &Block| matches!(block, Block::ToolUse(tool) if tool.id == open.call.id && tool.state == ToolCallState::Asking);
        state.context().get(open.message).is_some_and(|message| message.content().iter().any(is_it))
    })
}

/// Returns whether the input is that of the last call: its messages are in the context, and no user message follows them. Ids and
/// times do not count.
fn is_repeated(context: &[Message], input: &[Message]) -> bool {
    let is_user = |message: &Message| message.role() == Some(Role::User) && !message.is_synthetic();
    let last_user = context.iter().rposition(is_user).map_or(0, |at| at + 1);
    let is_same = |(a, b): (&Message, &Message)| a.role() == b.role() && a.name() == b.name() && a.content() == b.content();
    let Some(latest) = context.len().checked_sub(input.len()).filter(|_| !input.is_empty()) else { return false };
    let earliest = last_user.saturating_sub(input.len());
    (earliest..=latest).rev().any(|at| at + input.len() >= last_user && context[at..].iter().zip(input).all(is_same))
}
