//! Undo and redo of changes that an operator makes to the state of an agent.
//!
//! The states before such changes are kept as lists of the same session, under the keys [`UNDO_KEY`] and [`REDO_KEY`]. The list to redo
//! starts with the digest of the state that the last undo restored. It counts only as long as that state is the present one, so a turn in
//! between ends what could be redone.
//!
//! A step writes its lists and the state in several commits, in an order in which any interruption leaves either the old state or the new
//! one, and an entry too many at most. An entry that equals the present state is skipped.

use crate::contract::{AgentStateStore, DeleteOptions, Expected, Fence, SaveOptions, VersionedState};
use crate::legacy::AGENT_STATE_KEY;
use crate::slot::StateSlot;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;
use treehold_core::retry::Attempts;

/// The list of the states to return to, the newest last.
pub const UNDO_KEY: &str = "_undo";

/// The digest of the state that the last undo restored, and the states that were undone since, the newest last.
pub const REDO_KEY: &str = "_redo";

/// How many states are kept to return to. Beyond it the oldest is dropped.
pub const UNDO_MAX: usize = 20;

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UndoOutcome {
    /// Whether another state was restored. It was not if there was none.
    pub restored: bool,
    /// How many states can be returned to now.
    pub undo_depth: usize,
    /// How many steps can be redone now.
    pub redo_depth: usize,
}

/// The state of an agent with what can be undone and redone.
struct Kept {
    current: VersionedState,
    undo: Vec<Json>,
    redo: Vec<Json>,
}

impl Kept {
    async fn load(states: &dyn AgentStateStore, slot: &StateSlot) -> Result<Self> {
        let absent = || Error::new(ErrorKind::NotFound, format!("the {slot} has no `{AGENT_STATE_KEY}`, so there is nothing to undo"));
        let current = states.get(slot, AGENT_STATE_KEY).await?.ok_or_else(absent)?;
        let mut undo = states.get_list(slot, UNDO_KEY).await?;
        while undo.last().is_some_and(|last| *last == current.value) {
            undo.pop();
        }
        let mut redo = states.get_list(slot, REDO_KEY).await?.into_iter();
        let is_valid = redo.next() == Some(digest(&current.value)?);
        let redo = if is_valid { redo.collect() } else { Vec::new() };
        Ok(Self { current, undo, redo })
    }

    fn outcome(&self, restored: bool) -> UndoOutcome {
        UndoOutcome { restored, undo_depth: self.undo.len(), redo_depth: self.redo.len() }
    }
}

/// Keeps the present state of an agent, so that the change that follows can be undone, and discards what could be redone. Returns whether
/// the state was kept: one over the largest element of a list is not.
///
/// Cost: two reads, a save and a removal; the save writes the state once.
///
/// # Errors
/// [`NotFound`](ErrorKind::NotFound) without a state, [`Conflict`](ErrorKind::Conflict) if the fence fell, and errors of the store.
pub async fn remember(states: &dyn AgentStateStore, slot: &StateSlot, fence: Option<&Fence>) -> Result<bool> {
    let Kept { current, mut undo, .. } = Kept::load(states, slot).await?;
    push(&mut undo, current.value);
    match states.save_list(slot, UNDO_KEY, &undo, fenced(fence)).await {
        Err(error) if error.kind() == ErrorKind::TooLarge => return Ok(false),
        saved => saved?,
    };
    states.delete(slot, REDO_KEY, DeleteOptions::new().with_fence(fence.cloned())).await?;
    Ok(true)
}

/// Restores the state before the last change that was kept. Without one, nothing is done.
///
/// Cost: three reads and three saves, which write the present state once.
///
/// # Errors
/// [`NotFound`](ErrorKind::NotFound) without a state, [`Conflict`](ErrorKind::Conflict) if the fence fell,
/// [`TooLarge`](ErrorKind::TooLarge) for a state over the largest element of a list, and errors of the store.
pub async fn undo(states: &dyn AgentStateStore, slot: &StateSlot, fence: Option<&Fence>) -> Result<UndoOutcome> {
    let mut attempts = Attempts::new();
    loop {
        let mut kept = Kept::load(states, slot).await?;
        let Some(earlier) = kept.undo.pop() else { return Ok(kept.outcome(false)) };
        push(&mut kept.redo, kept.current.value.clone());
        save_redo(states, slot, &earlier, &kept.redo, fence).await?;
        if restore(states, slot, &kept.current, &earlier, fence).await? {
            states.save_list(slot, UNDO_KEY, &kept.undo, fenced(fence)).await?;
            return Ok(kept.outcome(true));
        }
        attempts.lost().await?;
    }
}

/// Reverses an undo, unless the state has changed since. Without one, nothing is done.
///
/// Cost: three reads and three saves, which write the present state once.
///
/// # Errors
/// As [`undo`].
pub async fn redo(states: &dyn AgentStateStore, slot: &StateSlot, fence: Option<&Fence>) -> Result<UndoOutcome> {
    let mut attempts = Attempts::new();
    loop {
        let mut kept = Kept::load(states, slot).await?;
        let Some(later) = kept.redo.pop() else { return Ok(kept.outcome(false)) };
        push(&mut kept.undo, kept.current.value.clone());
        states.save_list(slot, UNDO_KEY, &kept.undo, fenced(fence)).await?;
        if restore(states, slot, &kept.current, &later, fence).await? {
            save_redo(states, slot, &later, &kept.redo, fence).await?;
            return Ok(kept.outcome(true));
        }
        attempts.lost().await?;
    }
}

/// Replaces the present state. Returns false if it changed meanwhile.
async fn restore(
    states: &dyn AgentStateStore,
    slot: &StateSlot,
    current: &VersionedState,
    restored: &Json,
    fence: Option<&Fence>,
) -> Result<bool> {
    let options = fenced(fence).with_expected(current.version.map_or(Expected::Any, Expected::Version));
    match states.save(slot, AGENT_STATE_KEY, restored, options).await {
        Err(error) if crate::StateConflict::of(&error).is_some() => Ok(false),
        saved => saved.map(|_| true),
    }
}

/// Saves what can be redone while `present` is the state.
async fn save_redo(states: &dyn AgentStateStore, slot: &StateSlot, present: &Json, redo: &[Json], fence: Option<&Fence>) -> Result<()> {
    let mut list = vec![digest(present)?];
    list.extend(redo.iter().cloned());
    states.save_list(slot, REDO_KEY, &list, fenced(fence)).await.map(drop)
}

fn fenced(fence: Option<&Fence>) -> SaveOptions {
    SaveOptions::new().with_fence(fence.cloned())
}

fn push(list: &mut Vec<Json>, state: Json) {
    list.push(state);
    let excess = list.len().saturating_sub(UNDO_MAX);
    list.drain(..excess);
}

fn digest(state: &Json) -> Result<Json> {
    Json::of(&blake3::hash(state.as_str().as_bytes()).to_hex().to_string())
}
