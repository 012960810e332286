//! Compaction on behalf of an operator, who can undo it.

use crate::contract::{AgentStateStore, Expected, Fence, SaveOptions};
use crate::export::conversation_size;
use crate::legacy::AGENT_STATE_KEY;
use crate::slot::StateSlot;
use crate::undo::remember;
use async_trait::async_trait;
use std::fmt;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;

/// How an operator wants a session to be compacted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct OperatorCompaction {
    /// How many of the newest messages to keep. By default the compactor decides.
    pub keep_messages: Option<usize>,
    /// Whether the new summary replaces the one before, rather than being added to it. Default false.
    pub replace_summary: bool,
}

impl OperatorCompaction {
    /// Starts from the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how many of the newest messages to keep.
    #[must_use]
    pub fn with_keep_messages(mut self, messages: Option<usize>) -> Self {
        self.keep_messages = messages;
        self
    }

    /// Sets whether the new summary replaces the one before.
    #[must_use]
    pub fn with_replace_summary(mut self, replaces: bool) -> Self {
        self.replace_summary = replaces;
        self
    }
}

/// Compacts the state of an agent. It runs a model, so the program that embeds the library brings it.
#[async_trait]
pub trait SessionCompactor: Send + Sync + fmt::Debug {
    /// Returns the state with its oldest messages replaced by their summary, or `None` if there is nothing to do.
    ///
    /// # Errors
    /// Those of the model.
    async fn compact(&self, state: &Json, how: &OperatorCompaction) -> Result<Option<Json>>;
}

/// What a compaction did. Without anything to do, the numbers before and after are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactionCounts {
    /// The messages before.
    pub messages_before: usize,
    /// The messages after.
    pub messages_after: usize,
    /// The length of the summary before, in characters.
    pub summary_chars_before: usize,
    /// The length of the summary after, in characters.
    pub summary_chars_after: usize,
}

/// Compacts the state of an agent, and keeps the one before, so that [`undo`](crate::undo::undo) restores it.
///
/// # Errors
/// [`NotFound`](ErrorKind::NotFound) without a state, [`Conflict`](ErrorKind::Conflict) if it changed meanwhile or the fence fell,
/// [`Corrupt`](ErrorKind::Corrupt) for a value that is not the state of an agent, and errors of the compactor and the store. Nothing is
/// changed then.
pub async fn compact_session(
    states: &dyn AgentStateStore,
    slot: &StateSlot,
    compactor: &dyn SessionCompactor,
    how: &OperatorCompaction,
    fence: Option<&Fence>,
) -> Result<CompactionCounts> {
    let absent = || Error::new(ErrorKind::NotFound, format!("the {slot} has no `{AGENT_STATE_KEY}` to compact"));
    let found = states.get(slot, AGENT_STATE_KEY).await?.ok_or_else(absent)?;
    let (messages_before, summary_chars_before) = conversation_size(&found.value)?;
    let unchanged = CompactionCounts {
        messages_before,
        messages_after: messages_before,
        summary_chars_before,
        summary_chars_after: summary_chars_before,
    };
    let Some(compacted) = compactor.compact(&found.value, how).await? else { return Ok(unchanged) };
    let (messages_after, summary_chars_after) = conversation_size(&compacted)?;
    remember(states, slot, fence).await?;
    let expected = found.version.map_or(Expected::Any, Expected::Version);
    states.save(slot, AGENT_STATE_KEY, &compacted, SaveOptions::new().with_expected(expected).with_fence(fence.cloned())).await?;
    Ok(CompactionCounts { messages_after, summary_chars_after, ..unchanged })
}
