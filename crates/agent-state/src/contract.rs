//! The contract of a state store.

use crate::slot::StateSlot;
use async_trait::async_trait;
use std::fmt;
use std::num::NonZeroU64;
use treehold_core::error::Result;
#[cfg(doc)]
use treehold_core::error::{Error, ErrorKind};
use treehold_core::json::Json;
use treehold_core::ops::Version;
use treehold_store::Namespace;

/// The version of one stored value: 1 for the first save, one more for each save after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateVersion(NonZeroU64);

impl StateVersion {
    /// Makes a version from its number; `None` for 0, which stands for an absent value.
    pub fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// Returns the number.
    pub fn number(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for StateVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a save expects to replace. In the protocols of AgentScope these are the numbers −1, 0 and n.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Expected {
    /// Whatever is there.
    #[default]
    Any,
    /// Nothing: the save creates the value.
    Absent,
    /// The value with this version.
    Version(StateVersion),
}

/// A row that must still have its version when a save is committed. A turn passes the row that proves that it still holds the session,
/// so that a process that lost the session while it was stalled cannot write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// The namespace of the row, in the store that holds the states.
    pub namespace: Namespace,
    /// Its key.
    pub key: String,
    /// The version that it must have.
    pub version: Version,
}

/// How to save.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SaveOptions {
    /// What the save expects to replace.
    pub expected: Expected,
    /// What must still hold. A store that cannot check it in the same commit answers [`ErrorKind::Unsupported`].
    pub fence: Option<Fence>,
}

impl SaveOptions {
    /// Replaces whatever is there.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets what the save expects to replace.
    #[must_use]
    pub fn with_expected(mut self, expected: Expected) -> Self {
        self.expected = expected;
        self
    }

    /// Sets what must still hold.
    #[must_use]
    pub fn with_fence(mut self, fence: Option<Fence>) -> Self {
        self.fence = fence;
        self
    }
}

/// A value with its version.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct VersionedState {
    /// The value.
    pub value: Json,
    /// Its version; `None` in a store without versions.
    pub version: Option<StateVersion>,
}

impl VersionedState {
    /// Makes a value with its version.
    pub fn new(value: Json, version: Option<StateVersion>) -> Self {
        Self { value, version }
    }
}

/// A key of a session, and the form of its value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum StateKey {
    /// A single value.
    Single(String),
    /// A list.
    List(String),
}

/// A page of the sessions of a user, in the order of their ids.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SessionIdPage {
    /// The ids.
    pub sessions: Vec<String>,
    /// Where the next page starts; `None` at the end.
    pub next: Option<String>,
}

/// A page of the users that have states, in the order of their ids, after the anonymous one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct UserPage {
    /// The users; `None` is the anonymous one.
    pub users: Vec<Option<String>>,
    /// Where the next page starts; `None` at the end.
    pub next: Option<String>,
}

/// What a state store guarantees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StateCapabilities {
    /// Other machines may use the same states. An agent whose files are shared needs a shared state store.
    pub shared: bool,
    /// Values have versions, so that [`Expected::Absent`] and [`Expected::Version`] are decided.
    pub versions: bool,
    /// A save can be [fenced](SaveOptions::fence).
    pub fences: bool,
}

impl StateCapabilities {
    /// Declares a store of one process, without versions and fences.
    pub fn new() -> Self {
        Self { shared: false, versions: false, fences: false }
    }

    /// Sets whether other machines may use the same states.
    #[must_use]
    pub fn with_shared(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    /// Sets whether values have versions.
    #[must_use]
    pub fn with_versions(mut self, versions: bool) -> Self {
        self.versions = versions;
        self
    }

    /// Sets whether a save can be fenced.
    #[must_use]
    pub fn with_fences(mut self, fences: bool) -> Self {
        self.fences = fences;
        self
    }
}

impl Default for StateCapabilities {
    fn default() -> Self {
        Self::new()
    }
}

/// The states of one agent of one tenant, by slot and key. It has the operations of AgentScope's state store.
///
/// Every method is required: a wrapper that forgot the versions would lose updates.
#[async_trait]
pub trait AgentStateStore: Send + Sync + fmt::Debug + fmt::Display {
    /// Declares what the store guarantees. A wrapper passes on those of its inner store.
    fn capabilities(&self) -> StateCapabilities;

    /// Saves a single value, and returns the version that this save gave it; `None` in a store without versions, which ignores
    /// [`SaveOptions::expected`].
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if the value is not the expected one or the fence fell; nothing is written then.
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a bad key, [`TooLarge`](ErrorKind::TooLarge) for a value over the limit.
    async fn save(&self, slot: &StateSlot, key: &str, value: &Json, options: SaveOptions) -> Result<Option<StateVersion>>;

    /// Saves a list, always the whole list; an empty one replaces the stored one too. Returns the version that this save gave it.
    ///
    /// # Errors
    /// As [`AgentStateStore::save`].
    async fn save_list(&self, slot: &StateSlot, key: &str, values: &[Json], options: SaveOptions) -> Result<Option<StateVersion>>;

    /// Returns a single value with its version, or `None`.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) if what is stored cannot be read. A failed read never looks like an absent value.
    async fn get(&self, slot: &StateSlot, key: &str) -> Result<Option<VersionedState>>;

    /// Returns a list; empty if there is none.
    ///
    /// # Errors
    /// As [`AgentStateStore::get`].
    async fn get_list(&self, slot: &StateSlot, key: &str) -> Result<Vec<Json>>;

    /// Returns the version of a single value without reading it, or `None`.
    ///
    /// # Errors
    /// As [`AgentStateStore::get`].
    async fn version(&self, slot: &StateSlot, key: &str) -> Result<Option<StateVersion>>;

    /// Returns whether the session has any state.
    ///
    /// # Errors
    /// As [`AgentStateStore::get`].
    async fn exists(&self, slot: &StateSlot) -> Result<bool>;

    /// Returns the keys of a session, in order.
    ///
    /// # Errors
    /// As [`AgentStateStore::get`].
    async fn keys(&self, slot: &StateSlot) -> Result<Vec<StateKey>>;

    /// Removes a session with all its states. Removing an absent one is not an error.
    ///
    /// # Errors
    /// As [`AgentStateStore::get`].
    async fn delete_session(&self, slot: &StateSlot) -> Result<()>;

    /// Removes one value or list. Removing an absent one is not an error.
    ///
    /// # Errors
    /// As [`AgentStateStore::get`].
    async fn delete(&self, slot: &StateSlot, key: &str) -> Result<()>;

    /// Returns a page of the sessions of a user, or of the anonymous ones.
    ///
    /// # Errors
    /// As [`AgentStateStore::get`].
    async fn session_ids(&self, user: Option<&str>, after: Option<&str>, limit: usize) -> Result<SessionIdPage>;

    /// Returns a page of the users that have states.
    ///
    /// # Errors
    /// As [`AgentStateStore::get`].
    async fn users(&self, after: Option<&str>, limit: usize) -> Result<UserPage>;
}
