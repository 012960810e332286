//! Compaction: the older part of a long context is replaced by a summary, long results of tools go to files.
//!
//! Only the context changes. The plan, the tasks and the permissions stay. No result is kept without its call, no open call is lost, and
//! messages that are added while the summary is written stay. A compaction that fails or is interrupted changes nothing.

mod cut;
mod evict;
mod hooks;
mod options;
mod summary;

pub use evict::{METADATA_EVICTED, evict_tool_results};
pub use hooks::{Flush, Offload, Summarizer};
pub use options::{CompactionOptions, EvictionOptions, FALLBACK_TRIGGER_TOKENS, Keep, TokenTrigger};
pub use summary::{SUMMARY_NAME, is_summary, prompt_text};

use crate::state::{AgentState, CallState, Message};
use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};

/// Compacts the contexts of calls.
///
/// ```
/// use std::sync::Arc;
/// use treehold_agent_state::compact::{CompactionOptions, CompactionOutcome, Compactor, Summarizer};
/// use treehold_agent_state::{AgentState, CallState, Message, StateSlot};
/// # use treehold_core::Result;
///
/// struct Count;
///
/// #[async_trait::async_trait]
/// impl Summarizer for Count {
///     async fn summarize(&self, messages: &[Message]) -> Result<String> {
///         Ok(format!("{} messages", messages.len()))
///     }
/// }
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let mut state = AgentState::new(&StateSlot::new(None, "s1")?);
/// for _ in 0..50 {
///     state.push(Message::user("hello", jiff::Timestamp::UNIX_EPOCH))?;
/// }
/// let call = CallState::new(state);
/// let compactor = Compactor::new(Arc::new(Count), CompactionOptions::new())?;
/// let outcome = compactor.compact_if_due(&call, std::future::pending()).await?;
/// assert!(matches!(outcome, CompactionOutcome::Compacted(_)));
/// assert_eq!(call.lock().context().len(), 21);
/// # Ok::<(), treehold_core::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Compactor {
    options: CompactionOptions,
    summarizer: Arc<dyn Summarizer>,
    flush: Option<Arc<dyn Flush>>,
    offload: Option<Arc<dyn Offload>>,
    clock: Clock,
}

/// What became of a compaction.
#[derive(Debug)]
#[must_use]
#[non_exhaustive]
pub enum CompactionOutcome {
    /// The context was short enough, or nothing could be replaced.
    NotDue,
    /// The context is compacted.
    Compacted(Compaction),
    /// The call was interrupted. The context is as it was. End the call; do not ask the model again.
    Interrupted,
}

/// A compaction that took place.
#[derive(Debug)]
#[non_exhaustive]
pub struct Compaction {
    /// How many messages were replaced by the summary.
    pub replaced: usize,
    /// The estimate of the tokens before.
    pub tokens_before: u64,
    /// The estimate of the tokens after.
    pub tokens_after: u64,
    /// Where the replaced messages are kept.
    pub kept_at: Option<String>,
    /// Why the flush failed, if it did.
    pub flush_error: Option<Error>,
}

/// A model refused a context because it is too long. As the source of an [`Error`] it is recognised by [`is_context_overflow`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextOverflow;

impl fmt::Display for ContextOverflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the context exceeds the model's context window")
    }
}

impl std::error::Error for ContextOverflow {}

impl From<ContextOverflow> for Error {
    fn from(overflow: ContextOverflow) -> Self {
        Self::new(ErrorKind::TooLarge, overflow.to_string()).with_source(overflow)
    }
}

/// Returns whether an error says that a context is too long for the model: by its source, or by the words that providers use.
pub fn is_context_overflow(error: &Error) -> bool {
    const WORDS: [&str; 7] = [
        "context_length_exceeded",
        "context length",
        "maximum context",
        "token limit",
        "too many tokens",
        "exceeds the model's maximum",
        "reduce the length",
    ];
    let message = error.message().to_lowercase();
    if WORDS.iter().any(|words| message.contains(words)) {
        return true;
    }
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if error.is::<ContextOverflow>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// The messages that a compaction replaces.
struct Plan {
    /// The messages of the host before them, which stay.
    from: usize,
    messages: Vec<Message>,
}

/// The end of a step: its result, or the interrupt that ended it.
enum Step<T> {
    Done(T),
    Interrupted,
}

impl Compactor {
    /// Creates a compactor without flush and offload.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for options outside of their range.
    pub fn new(summarizer: Arc<dyn Summarizer>, options: CompactionOptions) -> Result<Self> {
        options.check()?;
        Ok(Self { options, summarizer, flush: None, offload: None, clock: Clock::system() })
    }

    /// Sets what reads messages before they are replaced.
    #[must_use]
    pub fn with_flush(mut self, flush: Arc<dyn Flush>) -> Self {
        self.flush = Some(flush);
        self
    }

    /// Sets what keeps messages before they are replaced.
    #[must_use]
    pub fn with_offload(mut self, offload: Arc<dyn Offload>) -> Self {
        self.offload = Some(offload);
        self
    }

    /// Sets the clock of the summary's time.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Compacts the context if it has too many messages or tokens.
    ///
    /// `interrupted` completes when the call is interrupted, such as `call::Call::stopped`. It is asked before
    /// each step and during it.
    ///
    /// # Errors
    /// Those of [`Summarizer::summarize`] and [`Offload::keep_messages`]. [`Conflict`](ErrorKind::Conflict) if the messages to replace
    /// were changed meanwhile. [`InvalidArgument`](ErrorKind::InvalidArgument) for an empty summary. The context then stays as it is,
    /// and the call can go on with it.
    pub async fn compact_if_due(&self, state: &CallState, interrupted: impl Future<Output = ()> + Send) -> Result<CompactionOutcome> {
        let plan = {
            let state = state.lock();
            let conversation = &state.context()[cut::leading_system(state.context())..];
            let tokens = conversation.iter().fold(0_u64, |sum, message| sum.saturating_add(message.tokens()));
            if self.options.is_due(conversation.len(), tokens) { self.plan(&state) } else { None }
        };
        self.run(state, plan, pin!(interrupted)).await
    }

    /// Compacts the context, however short it is, if it holds a message that can be replaced.
    ///
    /// # Errors
    /// As [`Compactor::compact_if_due`].
    pub async fn compact(&self, state: &CallState, interrupted: impl Future<Output = ()> + Send) -> Result<CompactionOutcome> {
        let plan = {
            let state = state.lock();
            self.plan(&state).or_else(|| plan(&state, Keep::Messages(state.context().len().div_ceil(2))))
        };
        self.run(state, plan, pin!(interrupted)).await
    }

    /// Runs an operation that sends the context to a model. If the model refuses the context as too long, compacts it and runs the
    /// operation once more.
    ///
    /// The operation must read the context anew each time, and must not add its input again.
    ///
    /// # Errors
    /// Those of the operation. If there was nothing to compact, the compaction failed or the call was interrupted during it, that is the
    /// model's refusal; the operation does not run again then.
    pub async fn with_recovery<T>(
        &self,
        state: &CallState,
        interrupted: impl Future<Output = ()> + Send,
        mut operation: impl AsyncFnMut(&CallState) -> Result<T>,
    ) -> Result<T> {
        let refusal = match operation(state).await {
            Err(error) if is_context_overflow(&error) => error,
            done => return done,
        };
        match self.compact(state, interrupted).await {
            Ok(CompactionOutcome::Compacted(_)) => operation(state).await,
            Ok(CompactionOutcome::NotDue | CompactionOutcome::Interrupted) => Err(refusal),
            Err(error) => {
                tracing::warn!(%error, "a context that is too long for the model could not be compacted");
                Err(refusal)
            }
        }
    }

    /// Plans a compaction by the options.
    fn plan(&self, state: &AgentState) -> Option<Plan> {
        let keep = self.options.effective_keep();
        // Many short messages may fit in the tokens to keep. The number of messages to keep then decides.
        plan(state, keep).or_else(|| match keep {
            Keep::Tokens(_) => plan(state, Keep::Messages(self.options.keep_messages)),
            _ => None,
        })
    }

    async fn run(
        &self,
        state: &CallState,
        plan: Option<Plan>,
        mut interrupted: Pin<&mut (impl Future<Output = ()> + Send)>,
    ) -> Result<CompactionOutcome> {
        let Some(plan) = plan else { return Ok(CompactionOutcome::NotDue) };
        let raw: Vec<Message> = plan.messages.iter().filter(|message| !is_summary(message)).cloned().collect();
        let mut flush_error = None;
        if let Some(flush) = &self.flush {
            match unless(interrupted.as_mut(), flush.flush(&raw)).await {
                Step::Done(flushed) => flush_error = flushed.err(),
                Step::Interrupted => return Ok(CompactionOutcome::Interrupted),
            }
        }
        if let Some(error) = &flush_error {
            tracing::warn!(%error, "the flush before a compaction failed");
        }
        let mut kept_at = None;
        if let Some(offload) = &self.offload {
            match unless(interrupted.as_mut(), offload.keep_messages(&raw)).await {
                Step::Done(place) => kept_at = place?,
                Step::Interrupted => return Ok(CompactionOutcome::Interrupted),
            }
        }
        let summary = match unless(interrupted.as_mut(), self.summarizer.summarize(&plan.messages)).await {
            Step::Done(summary) => summary?,
            Step::Interrupted => return Ok(CompactionOutcome::Interrupted),
        };
        let summary = summary.trim();
        if summary.is_empty() {
            return Err(Error::invalid_argument("the summary is empty; the context stays as it is"));
        }
        let message = summary::summary_message(summary, kept_at.as_deref(), self.clock.now())?;
        // An interrupt that came with the summary still ends the call before the context changes.
        if let Step::Interrupted = unless(interrupted.as_mut(), std::future::ready(())).await {
            return Ok(CompactionOutcome::Interrupted);
        }
        let mut state = state.lock();
        let tokens_before = state.tokens();
        let (from, to) = (plan.from, plan.from + plan.messages.len());
        if state.context().get(from..to) != Some(plan.messages.as_slice()) {
            return Err(Error::new(ErrorKind::Conflict, "the messages to compact were changed meanwhile; compact again"));
        }
        state.context_mut().splice(from..to, [message]);
        let tokens_after = state.tokens();
        Ok(CompactionOutcome::Compacted(Compaction { replaced: to - from, tokens_before, tokens_after, kept_at, flush_error }))
    }
}

impl fmt::Debug for Compactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compactor").field("options", &self.options).finish_non_exhaustive()
    }
}

fn plan(state: &AgentState, keep: Keep) -> Option<Plan> {
    let context = state.context();
    let (from, to) = (cut::leading_system(context), cut::cut(context, keep)?);
    Some(Plan { from, messages: context[from..to].to_vec() })
}

/// Waits for a step unless the interrupt comes first. An interrupt that came before it starts keeps it from starting.
async fn unless<T>(interrupted: Pin<&mut (impl Future<Output = ()> + Send)>, step: impl Future<Output = T>) -> Step<T> {
    tokio::select! {
        biased;
        () = interrupted => Step::Interrupted,
        done = step => Step::Done(done),
    }
}
