//! What a save does when another writer saved the state since it was loaded.

use crate::contract::{AgentStateStore, Expected, Fence, SaveOptions, StateConflict, StateVersion, VersionedState};
use crate::slot::StateSlot;
use crate::value::{CONTEXT, Digest, Frame, NO_MESSAGES, chain, digest_of, members, range_in};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(doc)]
use treehold_core::error::ErrorKind;
use treehold_core::error::{Error, Result};
use treehold_core::json::Json;

/// The member of a state that a merge takes from the later save.
const PERMISSIONS: &str = "permission_context";

/// What to do when another writer saved the state since it was loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ConflictPolicy {
    /// Replace what the other writer saved.
    #[default]
    Overwrite,
    /// Save nothing and fail.
    Fail,
    /// Load the state again, add the messages that this turn added, take the permissions of this turn, and save once more. If that loses
    /// a race too, fail. A turn that changed or compacted the messages that it had loaded fails: there is no safe way to merge it.
    AppendMerge,
}

/// The state that a turn began with: what it must be for a save to be free of conflicts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadedState {
    version: Option<StateVersion>,
    messages: usize,
    digest: Digest,
}

impl LoadedState {
    /// Remembers what was loaded; `None` if there was no state.
    pub fn of(found: Option<&VersionedState>) -> Self {
        let (messages, digest) = found.map_or((0, NO_MESSAGES), |found| digest_of_messages(&found.value, usize::MAX));
        Self { version: found.and_then(|found| found.version), messages, digest }
    }

    /// Returns the version that was loaded; `None` if there was no state, or if the store has no versions.
    pub fn version(&self) -> Option<StateVersion> {
        self.version
    }

    /// Returns the number of messages that were loaded.
    pub fn messages(&self) -> usize {
        self.messages
    }

    fn expected(&self) -> Expected {
        self.version.map_or(Expected::Absent, Expected::Version)
    }
}

/// Saves states by a policy, and counts conflicts. Clones share the count.
///
/// # Examples
/// ```
/// use treehold_agent_state::{AgentStateStore, AgentStates, ConflictPolicy, Json, LoadedState, StateSaver, StateSlot};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let states = AgentStates::in_memory().for_agent("acme", "helper")?;
/// let slot = StateSlot::new(Some("ada"), "s1")?;
/// let saver = StateSaver::new(ConflictPolicy::AppendMerge);
/// let loaded = LoadedState::of(states.get(&slot, "agent_state").await?.as_ref());
///
/// let other = Json::parse(r#"{"context":["theirs"]}"#)?;
/// saver.save(&states, &slot, "agent_state", &other, &loaded, None).await?;
/// let mine = Json::parse(r#"{"context":["mine"]}"#)?;
/// let saved = saver.save(&states, &slot, "agent_state", &mine, &loaded, None).await?;
/// assert_eq!(saved.merged.expect("both").as_str(), r#"{"context":["theirs","mine"]}"#);
/// assert_eq!(saver.conflicts(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct StateSaver {
    policy: ConflictPolicy,
    conflicts: Arc<AtomicU64>,
}

/// A save by a policy.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PolicySave {
    /// What the next save of the same turn expects.
    pub loaded: LoadedState,
    /// What was saved, if it is not what the caller passed: with the messages of the other writer.
    pub merged: Option<Json>,
}

impl StateSaver {
    /// Settles conflicts by a policy.
    pub fn new(policy: ConflictPolicy) -> Self {
        Self { policy, conflicts: Arc::default() }
    }

    /// Returns the policy.
    pub fn policy(&self) -> ConflictPolicy {
        self.policy
    }

    /// Returns how many saves met a state that another writer had saved, whatever the policy did about it.
    pub fn conflicts(&self) -> u64 {
        self.conflicts.load(Ordering::Relaxed)
    }

    /// Saves a state that was loaded before. A store without versions replaces what it has. A [conflict](StateConflict) is counted, and
    /// reported as a `tracing` event.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) with the message of AgentScope, whose source is a [`StateConflict`], if the policy refuses the
    /// save. [`Conflict`](ErrorKind::Conflict) from [`FenceFallen`](crate::FenceFallen) if the turn was lost, whatever the policy.
    /// Otherwise as [`AgentStateStore::save`].
    pub async fn save(
        &self,
        store: &dyn AgentStateStore,
        slot: &StateSlot,
        key: &str,
        value: &Json,
        loaded: &LoadedState,
        fence: Option<&Fence>,
    ) -> Result<PolicySave> {
        self.try_save(store, slot, key, value, loaded, fence).await.map_err(|failed| failed.error)
    }

    /// As [`StateSaver::save`]. The error also says what was sent to the store in place of `value`.
    pub(crate) async fn try_save(
        &self,
        store: &dyn AgentStateStore,
        slot: &StateSlot,
        key: &str,
        value: &Json,
        loaded: &LoadedState,
        fence: Option<&Fence>,
    ) -> Result<PolicySave, FailedSave> {
        let options = |expected| SaveOptions::new().with_expected(expected).with_fence(fence.cloned());
        if !store.capabilities().versions {
            let version = store.save(slot, key, value, options(Expected::Any)).await?;
            return Ok(PolicySave::of(value, version, None));
        }
        let conflict = match store.save(slot, key, value, options(loaded.expected())).await {
            Ok(version) => return Ok(PolicySave::of(value, version, None)),
            Err(error) => StateConflict::of(&error).cloned().ok_or(error)?,
        };
        self.conflicts.fetch_add(1, Ordering::Relaxed);
        let (policy, expected) = (self.policy, conflict.expected.number());
        tracing::warn!(%slot, key, ?policy, expected, "another writer saved the state since it was loaded");
        match policy {
            ConflictPolicy::Overwrite => {
                let version = store.save(slot, key, value, options(Expected::Any)).await?;
                Ok(PolicySave::of(value, version, None))
            }
            ConflictPolicy::Fail => Err(refused(conflict).into()),
            ConflictPolicy::AppendMerge => {
                let Some(latest) = store.get(slot, key).await? else { return Err(refused(conflict).into()) };
                let Some(merged) = merge(&latest.value, value, loaded) else { return Err(refused(conflict).into()) };
                let expected = latest.version.map_or(Expected::Absent, Expected::Version);
                match store.save(slot, key, &merged, options(expected)).await {
                    Ok(version) => Ok(PolicySave::of(&merged.clone(), version, Some(merged))),
                    Err(error) => {
                        let error = StateConflict::of(&error).cloned().map_or(error, refused);
                        Err(FailedSave { error, merged: Some(merged) })
                    }
                }
            }
        }
    }
}

/// A save by a policy that failed.
#[derive(Debug)]
pub(crate) struct FailedSave {
    pub(crate) error: Error,
    /// What was sent last, if it is not what the caller passed. If the error leaves its effect unknown, it may be stored.
    pub(crate) merged: Option<Json>,
}

impl From<Error> for FailedSave {
    fn from(error: Error) -> Self {
        Self { error, merged: None }
    }
}

impl PolicySave {
    fn of(value: &Json, version: Option<StateVersion>, merged: Option<Json>) -> Self {
        let (messages, digest) = digest_of_messages(value, usize::MAX);
        Self { loaded: LoadedState { version, messages, digest }, merged }
    }
}

/// Makes the error of a policy that refuses a save, with the message of AgentScope.
fn refused(conflict: StateConflict) -> Error {
    let message = conflict.to_string();
    conflict.into_error().with_message(message)
}

/// Returns the number and the digest of the first messages of a state.
fn digest_of_messages(state: &Json, count_max: usize) -> (usize, Digest) {
    let messages = messages_of(state).unwrap_or_default();
    let first = messages.iter().take(count_max);
    first.fold((0, NO_MESSAGES), |(count, digest), message| (count + 1, chain(&digest, &digest_of(message))))
}

/// Returns the messages of a state, whatever the white space between them.
fn messages_of(state: &Json) -> Option<Vec<&str>> {
    let (_, context) = members(state.as_str())?.into_iter().rfind(|(name, _)| name == CONTEXT)?;
    let messages: Vec<&serde_json::value::RawValue> = serde_json::from_str(context).ok()?;
    Some(messages.into_iter().map(serde_json::value::RawValue::get).collect())
}

/// Adds the messages that a turn added to those of another writer, and takes the permissions of the turn. `None` if that is not possible:
/// the turn changed the messages that it had loaded, or the state of the other writer has no `context` to add to.
fn merge(latest: &Json, turn: &Json, loaded: &LoadedState) -> Option<Json> {
    let messages = messages_of(turn)?;
    if digest_of_messages(turn, loaded.messages) != (loaded.messages, loaded.digest) {
        return None;
    }
    let added = &messages[loaded.messages..];
    let text = with_messages(latest.as_str(), added)?;
    let permissions = members(turn.as_str())?.into_iter().rfind(|(name, _)| name == PERMISSIONS);
    Json::parse(&with_member(&text, PERMISSIONS, permissions.map(|(_, value)| value))?).ok()
}

/// Adds messages at the end of those of a state.
fn with_messages(state: &str, added: &[&str]) -> Option<String> {
    if added.is_empty() {
        return Some(state.to_owned());
    }
    if let Some(Frame { before, lead, messages, separator, trail, after }) = Frame::of(state) {
        let all = messages.iter().chain(added).copied().collect::<Vec<_>>().join(separator);
        return Some(format!("{before}{lead}{all}{trail}{after}"));
    }
    // The white space between the messages differs.
    let (_, context) = members(state)?.into_iter().rfind(|(name, _)| name == CONTEXT)?;
    let inner = context.strip_prefix('[')?.strip_suffix(']')?.trim_end();
    let separator = if inner.trim_start().is_empty() { "" } else { "," };
    let range = range_in(state, context);
    Some(format!("{}[{inner}{separator}{}]{}", &state[..range.start], added.join(","), &state[range.end..]))
}

/// Replaces the value of a member, or adds the member at the end. Without a value nothing changes.
fn with_member(state: &str, name: &str, value: Option<&str>) -> Option<String> {
    let Some(value) = value else { return Some(state.to_owned()) };
    let members = members(state)?;
    if let Some((_, old)) = members.iter().rfind(|(known, _)| known == name) {
        let range = range_in(state, old);
        return Some(format!("{}{value}{}", &state[..range.start], &state[range.end..]));
    }
    let inner = state.strip_suffix('}')?.trim_end();
    let separator = if members.is_empty() { "" } else { "," };
    Some(format!("{inner}{separator}\"{name}\":{value}}}"))
}
