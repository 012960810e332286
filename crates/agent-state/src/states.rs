//! The states of all agents of a store, and who may use them.

use crate::options::AgentStatesOptions;
use std::fmt;
use std::sync::Arc;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::scope::check_id;
use treehold_store::{MemoryStore, Store};

/// The states of the agents of all tenants and users of a store.
///
/// Idle sessions use no process memory, and any number of processes may serve the same sessions. Clones share the store.
/// [`AgentStates::for_agent`] returns the [`AgentStateStore`](crate::AgentStateStore) of an agent.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use treehold_agent_state::{AgentStateStore, AgentStates, Expected, Json, SaveOptions, StateSlot};
/// use treehold_store::MemoryStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let states = AgentStates::new(Arc::new(MemoryStore::new())).for_agent("acme", "helper")?;
/// let slot = StateSlot::new(Some("ada"), "s1")?;
/// let first = states.save(&slot, "agent_state", &Json::parse(r#"{"context": []}"#)?, SaveOptions::new()).await?;
/// let expected = Expected::Version(first.expect("the store has versions"));
/// let value = Json::parse(r#"{"context": [{"role": "USER"}]}"#)?;
/// states.save(&slot, "agent_state", &value, SaveOptions::new().with_expected(expected)).await?;
///
/// let found = states.get(&slot, "agent_state").await?.expect("it was saved");
/// assert_eq!((found.value, found.version.map(|version| version.number())), (value, Some(2)));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct AgentStates {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) options: Arc<AgentStatesOptions>,
    pub(crate) clock: Clock,
    /// Overrides what the store declares.
    shared: Option<bool>,
    reach: Reach,
}

/// Whose states are accessible.
#[derive(Debug, Clone)]
enum Reach {
    /// Those of all tenants.
    All,
    /// Those of all users of a tenant.
    Tenant(Arc<str>),
    /// Those of a user of a tenant; `None` is the anonymous one.
    User(Arc<str>, Option<Arc<str>>),
}

impl AgentStates {
    /// Opens the states of a store with the default settings.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, options: Arc::default(), clock: Clock::system(), shared: None, reach: Reach::All }
    }

    /// Opens states that are lost when the process ends.
    pub fn in_memory() -> Self {
        Self::new(Arc::new(MemoryStore::new()))
    }

    /// Sets limits and other settings.
    #[must_use]
    pub fn with_options(mut self, options: AgentStatesOptions) -> Self {
        self.options = Arc::new(options);
        self
    }

    /// Sets the source of times for sweeps. The store decides by its own clock what has expired.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets whether other machines may use the same states, see [`require_shared`](crate::require_shared). By default it is what the store
    /// declares: that several processes may use it. A database file on a local disk declares so, too.
    #[must_use]
    pub fn with_shared(mut self, shared: bool) -> Self {
        self.shared = Some(shared);
        self
    }

    /// Returns whether other machines may use the same states.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.unwrap_or_else(|| self.store.capabilities().shared)
    }

    /// Restricts access to the states of one user; `None` is the anonymous one. Calls for other users are refused with
    /// [`PermissionDenied`](ErrorKind::PermissionDenied). Entry points use it, so that no method needs a check of its own.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an id that cannot name a tenant or user.
    pub fn for_user(&self, tenant: &str, user: Option<&str>) -> Result<Self> {
        check_id("tenant", tenant)?;
        user.map_or(Ok(()), |user| check_id("user", user))?;
        Ok(Self { reach: Reach::User(tenant.into(), user.map(Into::into)), ..self.clone() })
    }

    /// Restricts access to the states of the users of one tenant. Otherwise as [`AgentStates::for_user`].
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an id that cannot name a tenant.
    pub fn for_tenant(&self, tenant: &str) -> Result<Self> {
        check_id("tenant", tenant)?;
        Ok(Self { reach: Reach::Tenant(tenant.into()), ..self.clone() })
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the settings.
    pub fn options(&self) -> &AgentStatesOptions {
        &self.options
    }

    /// Returns the time in milliseconds since 1970.
    pub(crate) fn now(&self) -> i64 {
        self.clock.now().as_millisecond()
    }

    /// Returns whether the states of some user of a tenant are accessible.
    pub(crate) fn admits_some_of(&self, tenant: &str) -> bool {
        match &self.reach {
            Reach::All => true,
            Reach::Tenant(own) | Reach::User(own, _) => **own == *tenant,
        }
    }

    /// Returns whether the states of a user are accessible.
    pub(crate) fn admits(&self, tenant: &str, user: Option<&str>) -> bool {
        match &self.reach {
            Reach::All => true,
            Reach::Tenant(own) => **own == *tenant,
            Reach::User(own_tenant, own_user) => **own_tenant == *tenant && own_user.as_deref() == user,
        }
    }

    /// Refuses the states of a user that is not accessible.
    pub(crate) fn check_owner(&self, tenant: &str, user: Option<&str>) -> Result<()> {
        if self.admits(tenant, user) {
            return Ok(());
        }
        let whose = user.map_or_else(|| "the anonymous user".to_owned(), |user| format!("the user `{user}`"));
        Err(Error::new(ErrorKind::PermissionDenied, format!("the states of {whose} are not accessible here")))
    }
}

impl fmt::Display for AgentStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AgentStates({})", self.store)
    }
}
