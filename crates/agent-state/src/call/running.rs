//! A call that runs: its state, its safe points, and what is saved when it ends.

use super::agent::{AgentOptions, Durability, PartialReasoning};
use super::gate::{Turn, TurnRefusal, lost};
use super::interrupt::{Interrupt, InterruptSource};
use super::shutdown::{ActiveCall, Shutdown, shutting_down};
use crate::contract::{AgentStateStore, FenceFallen, StateConflict};
use crate::legacy::AGENT_STATE_KEY;
use crate::policy::{ConflictPolicy, LoadedState, StateSaver};
use crate::slot::StateSlot;
use crate::state::{AgentState, CallState, GenerateReason, METADATA_GENERATE_REASON, Message, RuntimeContext, ToolResultState};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::backoff::Backoff;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;

/// How often a save is tried while the store is unavailable.
const SAVES_MAX: u32 = 4;

/// The pauses between them.
const SAVE_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));

/// Why a safe point stopped the call: the [source](std::error::Error::source) of its error.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallInterrupted {
    /// The interrupt.
    pub interrupt: Interrupt,
}

impl fmt::Display for CallInterrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.interrupt.source {
            InterruptSource::User => "the user interrupted the call",
            InterruptSource::System => "the runtime interrupted the call",
        })
    }
}

impl std::error::Error for CallInterrupted {}

/// A running call, as the loop of the agent sees it.
///
/// The loop gets everything through it: the state of this call and no other. There is no current session outside of it.
#[derive(Debug)]
pub struct Call {
    pub(super) context: RuntimeContext,
    pub(super) core: Arc<CallCore>,
}

impl Call {
    /// Returns the context of the call. Its state is set.
    pub fn context(&self) -> &RuntimeContext {
        &self.context
    }

    /// Returns the context of the call for changes of its attributes, which are never stored.
    pub fn context_mut(&mut self) -> &mut RuntimeContext {
        &mut self.context
    }

    /// Returns the state of the call.
    pub fn state(&self) -> &CallState {
        &self.core.state
    }

    /// Returns the fencing token of the turn.
    pub fn token(&self) -> u64 {
        self.core.turn.token()
    }

    /// Returns the place of the call in the order of arrival, see [`Turn::arrival`].
    pub fn arrival(&self) -> u64 {
        self.core.turn.arrival()
    }

    /// Checks whether to stop. Cheap; for each chunk of a stream. An error ends the call if the loop returns it: `?` is enough.
    ///
    /// A shutdown does not stop a call here, only at a [safe point](Call::safe_point).
    ///
    /// # Errors
    /// An error from [`CallInterrupted`] if the call is interrupted, and
    /// [`TurnRefusal::Lost`](super::TurnRefusal::Lost) if the turn was lost.
    pub fn check(&self) -> Result<()> {
        self.core.turn.check()?;
        match self.core.turn.interrupt() {
            Some(interrupt) => Err(self.core.interrupted(interrupt)),
            None => Ok(()),
        }
    }

    /// Marks a safe point: after reasoning, and after the tools that it called have answered. The call stops here if it is interrupted or
    /// if the process shuts down. With [`Durability::Step`] the state is saved, unless a call of a tool is open.
    ///
    /// # Errors
    /// As [`Call::check`], and those of the save.
    pub async fn safe_point(&mut self) -> Result<()> {
        self.check()?;
        if self.core.shutdown.has_begun() {
            return Err(self.core.interrupted(Interrupt::system()));
        }
        if self.core.options.durability == Durability::Step && self.core.state.lock().open_calls().is_empty() {
            self.core.clone().save(Saving::Policy).await?;
        }
        Ok(())
    }

    /// Waits until the call is interrupted or its turn is lost, for `select!` beside a long operation. Then [`Call::check`] fails.
    pub async fn stopped(&self) {
        self.core.turn.stopped().await;
    }

    /// Awaits an operation until the call is interrupted or its turn is lost, whatever comes first. The operation is dropped then.
    ///
    /// # Errors
    /// As [`Call::check`].
    pub async fn unless_stopped<T>(&self, operation: impl Future<Output = T>) -> Result<T> {
        self.check()?;
        tokio::select! {
            biased;
            () = self.stopped() => self.check().and_then(|()| Err(lost(self.core.turn.key()))),
            output = operation => Ok(output),
        }
    }

    /// Remembers the answer of the model as far as it came, so that an interrupt in the middle can keep it. `None` forgets it, once the
    /// whole answer is in the state.
    pub fn set_partial(&self, message: Option<Message>) {
        *self.core.partial.lock() = message;
    }
}

/// What the loop and the end of a call share.
pub(super) struct CallCore {
    pub(super) states: Arc<dyn AgentStateStore>,
    pub(super) saver: StateSaver,
    pub(super) options: Arc<AgentOptions>,
    pub(super) shutdown: Shutdown,
    pub(super) slot: StateSlot,
    pub(super) turn: Turn,
    pub(super) state: CallState,
    pub(super) partial: Mutex<Option<Message>>,
    /// The interrupt that the loop saw.
    pub(super) seen: Mutex<Option<Interrupt>>,
    pub(super) saved: Arc<tokio::sync::Mutex<Saved>>,
    pub(super) active: ActiveCall,
}

/// What the store holds, as far as the call knows.
#[derive(Debug, Default)]
pub(super) struct Saved {
    pub(super) loaded: LoadedState,
    /// A save with an unknown outcome.
    pub(super) attempted: Option<Attempted>,
}

/// A save whose answer was lost.
#[derive(Debug)]
pub(super) struct Attempted {
    value: Json,
    /// Whether the value holds what another writer saved.
    is_merged: bool,
    /// How many messages the state of the call had.
    messages: usize,
}

/// How a save settles conflicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Saving {
    /// By the policy of the agent.
    Policy,
    /// Leaving alone what another writer saved.
    Skip,
}

impl fmt::Debug for CallCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallCore").field("slot", &self.slot).field("turn", &self.turn).finish_non_exhaustive()
    }
}

impl CallCore {
    /// Makes the error that stops the loop.
    fn interrupted(&self, interrupt: Interrupt) -> Error {
        let mut seen = self.seen.lock();
        let interrupt = seen.get_or_insert(interrupt).clone();
        match interrupt.source {
            InterruptSource::System => shutting_down().with_source(CallInterrupted { interrupt }),
            InterruptSource::User => {
                let message = "the call was interrupted; end it and return this error";
                Error::new(ErrorKind::Unavailable, message).with_source(CallInterrupted { interrupt })
            }
        }
    }

    /// Saves the state as it is now. It is one task, so that a caller that goes away never leaves it half done or its outcome unknown.
    pub(super) async fn save(self: Arc<Self>, saving: Saving) -> Result<()> {
        let task = tokio::spawn(async move {
            let mut saved = self.saved.clone().lock_owned().await;
            let mut attempt = 0;
            loop {
                match self.try_save(&mut saved, saving).await {
                    Err(error) if error.kind() == ErrorKind::Unavailable && attempt + 1 < SAVES_MAX => {
                        tracing::warn!(%error, slot = %self.slot, "a state could not be saved; it is tried again");
                        SAVE_BACKOFF.wait(attempt).await;
                        attempt += 1;
                    }
                    result => return result,
                }
            }
        });
        task.await.unwrap_or_else(|error| Err(Error::new(ErrorKind::Internal, "a save failed unexpectedly").with_source(error)))
    }

    async fn try_save(&self, saved: &mut Saved, saving: Saving) -> Result<()> {
        if let Some(attempted) = &saved.attempted {
            let found = self.states.get(&self.slot, AGENT_STATE_KEY).await?;
            if found.as_ref().is_some_and(|found| found.value == attempted.value) {
                saved.loaded = LoadedState::of(found.as_ref());
                if attempted.is_merged {
                    self.adopt(&attempted.value, attempted.messages)?;
                }
            }
            saved.attempted = None;
        }
        let (value, messages) = {
            let state = self.state.lock();
            (state.to_json()?, state.context().len())
        };
        let fence = self.states.capabilities().fences.then(|| self.turn.fence());
        if fence.is_none() {
            self.turn.verify().await?;
        }
        let saver = match saving {
            Saving::Policy => self.saver.clone(),
            Saving::Skip => StateSaver::new(ConflictPolicy::Fail),
        };
        let failed = match saver.try_save(&*self.states, &self.slot, AGENT_STATE_KEY, &value, &saved.loaded, fence.as_ref()).await {
            Ok(done) => {
                saved.loaded = done.loaded;
                return done.merged.map_or(Ok(()), |merged| self.adopt(&merged, messages));
            }
            Err(failed) => failed,
        };
        match failed.error {
            error if saving == Saving::Skip && StateConflict::of(&error).is_some() => {
                tracing::warn!(%error, slot = %self.slot, "the state of a call that a shutdown stopped is not saved: another writer saved it");
                Ok(())
            }
            error if FenceFallen::caused(&error) => Err(lost(self.turn.key())),
            // The process that took the session over has saved already.
            error if StateConflict::of(&error).is_some() => {
                let verified = self.turn.verify().await;
                Err(verified.err().filter(|error| TurnRefusal::of(error).is_some()).unwrap_or(error))
            }
            error => {
                if error.may_have_effect() {
                    let is_merged = failed.merged.is_some();
                    saved.attempted = Some(Attempted { value: failed.merged.unwrap_or(value), is_merged, messages });
                }
                Err(error)
            }
        }
    }

    /// Continues with a state that was merged with that of another writer. `messages` is how many of those of the call it has.
    fn adopt(&self, merged: &Json, messages: usize) -> Result<()> {
        let mut state = self.state.lock();
        let mut merged = AgentState::from_stored(merged)?;
        merged.context_mut().extend(state.context().iter().skip(messages).cloned());
        *state = merged;
        Ok(())
    }

    /// Moves the partial answer of the model into the state, or drops it.
    fn settle_partial(&self) {
        let partial = self.partial.lock().take().filter(|_| self.options.partial_reasoning == PartialReasoning::Save);
        if let Some(Err(error)) = partial.map(|partial| self.state.lock().push(partial)) {
            tracing::warn!(%error, slot = %self.slot, "a partial answer cannot be kept");
        }
    }

    /// Answers the calls of tools that are open, so that none is stored without a result. Returns how many there were.
    fn close_open_calls(&self, text: &str, state: ToolResultState) -> Result<usize> {
        self.state.lock().close_open_calls(text, state, self.options.clock.now())
    }

    /// Ends a call that the user interrupted, and returns the message that it ends with.
    pub(super) async fn end_interrupted(self: Arc<Self>) -> Result<(Message, usize)> {
        self.settle_partial();
        let closed = self.close_open_calls(INTERRUPTED_TOOL, ToolResultState::Interrupted)?;
        let message = Message::assistant(&self.options.interrupted_text, self.options.clock.now());
        let reason = Json::of(&GenerateReason::Interrupted)?;
        let name = self.options.name.clone();
        let message = message.edited(|fields| {
            fields.name = fields.name.take().or(Some(name));
            fields.metadata.insert(METADATA_GENERATE_REASON, reason);
        })?;
        self.state.lock().push(message.clone())?;
        self.save(Saving::Policy).await?;
        Ok((message, closed))
    }

    /// Ends a call that a shutdown stopped: marks the state, so that the next process goes on with it.
    pub(super) async fn end_for_shutdown(self: Arc<Self>) -> Result<()> {
        self.settle_partial();
        self.close_open_calls(INTERRUPTED_TOOL, ToolResultState::Interrupted)?;
        self.state.lock().set_shutdown_interrupted(true);
        self.save(Saving::Skip).await
    }

    /// Ends a call that failed: saves what there is.
    pub(super) async fn end_failed(self: Arc<Self>) -> Result<()> {
        *self.partial.lock() = None;
        self.close_open_calls(FAILED_TOOL, ToolResultState::Error)?;
        self.save(Saving::Policy).await
    }
}

/// The result of a tool that an interrupt came before.
const INTERRUPTED_TOOL: &str = "The call was interrupted before this tool returned a result. It may or may not have run.";

/// The result of a tool whose call failed.
const FAILED_TOOL: &str = "The call failed before this tool returned a result. It may or may not have run.";
