//! The contract of a state store.

use crate::slot::StateSlot;
use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::error::Error as _;
use std::fmt;
use std::num::NonZeroU64;
use treehold_core::error::{Error, ErrorKind, Result};
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

/// What a save or a deletion expects to find. In the protocols of AgentScope these are the numbers −1, 0 and n.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Expected {
    /// Whatever is there.
    #[default]
    Any,
    /// Nothing: a save creates the value, and a deletion has nothing to do.
    Absent,
    /// The value with this version.
    Version(StateVersion),
}

/// A save or deletion that expected another version than the stored one: the source of such a [`Conflict`](ErrorKind::Conflict).
///
/// Its text is the message of AgentScope for this case.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StateConflict {
    /// The user; `None` is the anonymous one.
    pub user: Option<String>,
    /// The session.
    pub session: String,
    /// The key.
    pub key: String,
    /// What the save or deletion expected.
    pub expected: Expected,
    /// The version that is stored; `None` if there is no value.
    pub current: Option<StateVersion>,
}

impl StateConflict {
    /// Describes a save or deletion of a key of a slot that found another version.
    pub fn new(slot: &StateSlot, key: &str, expected: Expected, current: Option<StateVersion>) -> Self {
        Self { user: slot.user().map(str::to_owned), session: slot.session().to_owned(), key: key.to_owned(), expected, current }
    }

    /// Returns the conflict that an error is about, if it is one.
    pub fn of(error: &Error) -> Option<&Self> {
        error.source().and_then(|source| source.downcast_ref())
    }

    /// Makes the error: a [`Conflict`](ErrorKind::Conflict) without an effect, with the stored version as
    /// [`current_version`](Error::current_version).
    pub fn into_error(self) -> Error {
        let found = match self.current {
            Some(current) => format!("version {current} is stored"),
            None => "there is no value".to_owned(),
        };
        let expected = match self.expected {
            Expected::Any => "any version".to_owned(),
            Expected::Absent => "no value".to_owned(),
            Expected::Version(version) => format!("version {version}"),
        };
        let message = format!("the state `{}` has changed: {found} and {expected} was expected; load it again", self.key.escape_debug());
        let current = self.current.map(|current| Version::new(current.number()));
        Error::new(ErrorKind::Conflict, message).with_current_version(current).without_effect().with_source(self)
    }
}

impl fmt::Display for StateConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (user, session, key) = (self.user.as_deref().unwrap_or("null"), &self.session, &self.key);
        let expected = self.expected.number();
        write!(f, "Concurrent modification of session state (userId={user}, sessionId={session}, key={key}, expectedVersion={expected})")
    }
}

impl std::error::Error for StateConflict {}

/// A save or deletion whose [fence](Fence) fell: the source of such a [`Conflict`](ErrorKind::Conflict).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FenceFallen;

impl FenceFallen {
    /// Returns whether an error says that the fence of a save or deletion fell.
    pub fn caused(error: &Error) -> bool {
        error.source().is_some_and(|source| source.is::<Self>())
    }

    /// Makes the error: a [`Conflict`](ErrorKind::Conflict) without an effect.
    pub fn into_error(self) -> Error {
        let message = "the turn no longer holds the session, so nothing was changed; load the state again in a new turn";
        Error::new(ErrorKind::Conflict, message).without_effect().with_source(self)
    }
}

impl fmt::Display for FenceFallen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the fence fell")
    }
}

impl std::error::Error for FenceFallen {}

impl Expected {
    /// Returns the number that stands for it in the protocols of AgentScope.
    pub fn number(self) -> i64 {
        match self {
            Self::Any => -1,
            Self::Absent => 0,
            Self::Version(version) => i64::try_from(version.number()).unwrap_or(i64::MAX),
        }
    }

    /// Reads the number that stands for it in the protocols of AgentScope; `None` for one below −1.
    pub fn from_number(number: i64) -> Option<Self> {
        match number {
            -1 => Some(Self::Any),
            0 => Some(Self::Absent),
            _ => u64::try_from(number).ok().and_then(StateVersion::new).map(Self::Version),
        }
    }

    /// Returns whether a value with this version, or none, is as expected.
    pub fn admits(self, current: Option<StateVersion>) -> bool {
        match self {
            Self::Any => true,
            Self::Absent => current.is_none(),
            Self::Version(version) => current == Some(version),
        }
    }
}

/// A row that must still have its version when a save or deletion is committed. A turn passes the row that proves that it still holds the session,
/// so that a process that lost the session while it was stalled cannot write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// The namespace of the row, in the store and the partition that hold the states: that of the user, or of the tenant for a slot without a
    /// user. A fence in another partition is [`Unsupported`](ErrorKind::Unsupported), as no commit spans two.
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

/// How to delete a key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct DeleteOptions {
    /// The form to delete. By default both; if the deletion expects something, the single value only, so that it never deletes a value
    /// that it did not check.
    pub form: Option<StateForm>,
    /// What the deletion expects to find.
    pub expected: Expected,
    /// What must still hold. A store that cannot check it in the same commit answers [`ErrorKind::Unsupported`].
    pub fence: Option<Fence>,
}

impl DeleteOptions {
    /// Deletes both forms, whatever is there.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the form to delete.
    #[must_use]
    pub fn with_form(mut self, form: Option<StateForm>) -> Self {
        self.form = form;
        self
    }

    /// Sets what the deletion expects to find.
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

    /// Returns the only form that is deleted; `None` if both are.
    pub fn only_form(&self) -> Option<StateForm> {
        self.form.or((self.expected != Expected::Any).then_some(StateForm::Single))
    }
}

/// How to delete a session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct DeleteSessionOptions {
    /// What must still hold. A store that cannot check it in the same commit answers [`ErrorKind::Unsupported`].
    pub fence: Option<Fence>,
}

impl DeleteSessionOptions {
    /// Deletes the session, whoever uses it.
    pub fn new() -> Self {
        Self::default()
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

/// The form of a stored value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StateForm {
    /// One JSON value.
    #[default]
    Single,
    /// A list of JSON values.
    List,
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
    /// Single values have versions, so that [`Expected::Absent`] and [`Expected::Version`] are decided.
    pub versions: bool,
    /// Lists have versions, too. Otherwise a store whose single values have them refuses such expectations of lists as
    /// [`ErrorKind::Unsupported`].
    pub list_versions: bool,
    /// Saves and deletions can be [fenced](Fence).
    pub fences: bool,
    /// A value comes back in the very text in which it was saved. Otherwise white space between tokens and the escapes in texts may
    /// differ.
    pub exact_text: bool,
    /// A key may have a single value and a list at once. Otherwise a save in the other form is [`ErrorKind::Unsupported`].
    pub separate_forms: bool,
}

impl StateCapabilities {
    /// Declares a store of one process, without versions and fences, that keeps the text of values and both forms of a key.
    pub fn new() -> Self {
        Self { shared: false, versions: false, list_versions: false, fences: false, exact_text: true, separate_forms: true }
    }

    /// Sets whether other machines may use the same states.
    #[must_use]
    pub fn with_shared(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    /// Sets whether single values have versions.
    #[must_use]
    pub fn with_versions(mut self, versions: bool) -> Self {
        self.versions = versions;
        self
    }

    /// Sets whether lists have versions.
    #[must_use]
    pub fn with_list_versions(mut self, list_versions: bool) -> Self {
        self.list_versions = list_versions;
        self
    }

    /// Sets whether saves and deletions can be fenced.
    #[must_use]
    pub fn with_fences(mut self, fences: bool) -> Self {
        self.fences = fences;
        self
    }

    /// Sets whether a value comes back in the very text in which it was saved.
    #[must_use]
    pub fn with_exact_text(mut self, exact_text: bool) -> Self {
        self.exact_text = exact_text;
        self
    }

    /// Sets whether a key may have a single value and a list at once.
    #[must_use]
    pub fn with_separate_forms(mut self, separate_forms: bool) -> Self {
        self.separate_forms = separate_forms;
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
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a bad key, [`TooLarge`](ErrorKind::TooLarge) for a value over the limit,
    /// [`Unsupported`](ErrorKind::Unsupported) for a fence that cannot be checked in the same commit.
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

    /// Returns the version of a list without reading it, or `None`.
    ///
    /// # Errors
    /// As [`AgentStateStore::get`].
    async fn list_version(&self, slot: &StateSlot, key: &str) -> Result<Option<StateVersion>>;

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
    /// [`Conflict`](ErrorKind::Conflict) from [`FenceFallen`] if the fence fell, also of an absent session; nothing is removed then.
    /// [`Unsupported`](ErrorKind::Unsupported) as for [`AgentStateStore::save`]. Otherwise as [`AgentStateStore::get`].
    async fn delete_session(&self, slot: &StateSlot, options: DeleteSessionOptions) -> Result<()>;

    /// Removes a key: the single value, the list, or both, see [`DeleteOptions::form`]. Removing an absent one is not an error, unless the
    /// deletion expects a version. A store without versions ignores [`DeleteOptions::expected`].
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) from [`StateConflict`] if the value is not the expected one, and from [`FenceFallen`] if the fence
    /// fell, also of an absent value; nothing is removed then. [`Unsupported`](ErrorKind::Unsupported) as for [`AgentStateStore::save`].
    /// Otherwise as [`AgentStateStore::get`].
    async fn delete(&self, slot: &StateSlot, key: &str, options: DeleteOptions) -> Result<()>;

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
