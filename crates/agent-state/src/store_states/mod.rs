//! The states of one agent, as rows of a store.
//!
//! `head` reads what every operation begins with. `save`, `read` and `delete` are the operations on values; `commit` writes for them.

mod commit;
mod delete;
mod head;
mod history;
mod keys;
mod read;
mod save;

pub use history::{HistoryEntry, HistoryPage};

use self::head::Look;
use crate::contract::{
    AgentStateStore, DeleteOptions, DeleteSessionOptions, SaveOptions, SessionIdPage, StateCapabilities, StateKey, StateVersion, UserPage,
    VersionedState,
};
use crate::rows::{Form, Owner, SESSIONS, corrupt, session_key, user_of_key, users_of};
use crate::slot::StateSlot;
use crate::states::AgentStates;
use crate::value::{Body, Given};
use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;
use treehold_core::retry::Attempts;
use treehold_core::scope::check_id;
use treehold_store::{ScanOptions, Store};

/// How many users a listing checks at the same time.
const USERS_AT_ONCE: usize = 16;

/// The states of one agent of a tenant, over any [`Store`].
///
/// The messages of a value with a `context` are kept as a log: a save writes those that are new, and the head. Costs below count round
/// trips to the store.
#[derive(Debug, Clone)]
pub struct StoreStates {
    states: AgentStates,
    tenant: Arc<str>,
    agent: Arc<str>,
}

impl AgentStates {
    /// Returns the states of an agent of a tenant.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an id that cannot name a tenant or agent,
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for a tenant that is not accessible.
    pub fn for_agent(&self, tenant: &str, agent: &str) -> Result<StoreStates> {
        check_id("tenant", tenant)?;
        check_id("agent", agent)?;
        if !self.admits_some_of(tenant) {
            return Err(Error::new(ErrorKind::PermissionDenied, format!("the states of the tenant `{tenant}` are not accessible here")));
        }
        Ok(StoreStates { states: self.clone(), tenant: tenant.into(), agent: agent.into() })
    }
}

impl StoreStates {
    /// Returns the tenant.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// Returns the agent.
    pub fn agent(&self) -> &str {
        &self.agent
    }

    /// Returns the states of all agents, with the same restriction of access.
    pub fn all(&self) -> &AgentStates {
        &self.states
    }

    fn store(&self) -> &dyn Store {
        &*self.states.store
    }

    /// Returns whose rows those of a user are, if they are accessible.
    fn owner(&self, user: Option<&str>) -> Result<Owner> {
        self.states.check_owner(&self.tenant, user)?;
        let owner = Owner { tenant: self.tenant.to_string(), user: user.map(str::to_owned), agent: self.agent.to_string() };
        owner.check()?;
        Ok(owner)
    }

    fn check_key(&self, key: &str) -> Result<()> {
        let max = self.states.options.key_bytes_max;
        if key.is_empty() {
            return Err(Error::invalid_argument("the key of a state is empty; name one"));
        }
        if key.len() > max {
            return Err(Error::invalid_argument(format!(
                "the key of a state has {} bytes and at most {max} are allowed; shorten it",
                key.len()
            )));
        }
        Ok(())
    }

    fn page_limit(&self, limit: usize) -> usize {
        limit.clamp(1, self.states.options.page_max.max(1))
    }

    /// Returns when a time to live that starts now ends, in milliseconds since 1970.
    fn due_at(&self, time_to_live: Duration) -> i64 {
        self.states.now().saturating_add(i64::try_from(time_to_live.as_millis()).unwrap_or(i64::MAX))
    }
}

#[async_trait]
impl AgentStateStore for StoreStates {
    fn capabilities(&self) -> StateCapabilities {
        StateCapabilities::new().with_shared(self.states.is_shared()).with_versions(true).with_list_versions(true).with_fences(true)
    }

    /// Cost: two round trips. Two more for the first session of a user, and for a new one of a user again a day later; and for a new session
    /// that expires unless a sweep is scheduled near that time. A save of several commits takes one read and these commits more, and one
    /// whose messages leave a segment one read. More if another writer was faster.
    async fn save(&self, slot: &StateSlot, key: &str, value: &Json, options: SaveOptions) -> Result<Option<StateVersion>> {
        self.put(slot, key, Given::Single(value), &options).await
    }

    /// Cost: as [`AgentStateStore::save`].
    async fn save_list(&self, slot: &StateSlot, key: &str, values: &[Json], options: SaveOptions) -> Result<Option<StateVersion>> {
        self.put(slot, key, Given::List(values), &options).await
    }

    /// Cost: one round trip.
    async fn get(&self, slot: &StateSlot, key: &str) -> Result<Option<VersionedState>> {
        let found = self.read(slot, Form::Single, key, Body::assemble).await?;
        Ok(found.map(|(value, version)| VersionedState::new(value, Some(version))))
    }

    /// Cost: as [`AgentStateStore::get`].
    async fn get_list(&self, slot: &StateSlot, key: &str) -> Result<Vec<Json>> {
        Ok(self.read(slot, Form::List, key, Body::elements).await?.map_or_else(Vec::new, |(elements, _)| elements))
    }

    /// Cost: one round trip, which reads no values.
    async fn version(&self, slot: &StateSlot, key: &str) -> Result<Option<StateVersion>> {
        self.check_key(key)?;
        let owner = self.owner(slot.user())?;
        self.look(&owner, slot, Form::Single, key, Look::ForVersion).await?.current()
    }

    /// Cost: as [`AgentStateStore::version`].
    async fn list_version(&self, slot: &StateSlot, key: &str) -> Result<Option<StateVersion>> {
        self.check_key(key)?;
        let owner = self.owner(slot.user())?;
        self.look(&owner, slot, Form::List, key, Look::ForVersion).await?.current()
    }

    /// Cost: one round trip.
    async fn exists(&self, slot: &StateSlot) -> Result<bool> {
        let owner = self.owner(slot.user())?;
        Ok(self.session(&owner, slot.session()).await?.is_some())
    }

    /// Cost: as [`StoreStates::keys_with_versions`].
    async fn keys(&self, slot: &StateSlot) -> Result<Vec<StateKey>> {
        Ok(self.keys_with_versions(slot).await?.into_iter().map(|(key, _)| key).collect())
    }

    /// The session is gone with one commit, and with it what a bundle of the same owner keeps of it: transcript, inbox, events, tasks and
    /// tool runs. What a bundle keeps of a session without states is removed, too. The logs are removed afterwards; if that fails or is
    /// interrupted, a sweep finishes it. A damaged session can be deleted, too.
    ///
    /// Cost: eight round trips, six more if the user has no other session, and one for each log. Two more unless a sweep is scheduled for
    /// deletions of the user, as it is for up to 4.6 hours after one. Two for a session without states.
    async fn delete_session(&self, slot: &StateSlot, options: DeleteSessionOptions) -> Result<()> {
        self.delete_all(slot, &options).await
    }

    /// Both forms of a key are gone with one commit. The last value takes the session along, but not what a bundle keeps of it.
    ///
    /// Cost: two round trips. For a value with a log seven or eight, and two more unless a sweep is scheduled for deletions. As
    /// [`AgentStateStore::delete_session`] for the last value.
    async fn delete(&self, slot: &StateSlot, key: &str, options: DeleteOptions) -> Result<()> {
        self.check_key(key)?;
        let owner = self.owner(slot.user())?;
        let mut attempts = Attempts::new();
        while !self.delete_forms(&owner, slot, key, &options).await? {
            attempts.lost().await?;
        }
        Ok(())
    }

    /// Cost: one round trip.
    async fn session_ids(&self, user: Option<&str>, after: Option<&str>, limit: usize) -> Result<SessionIdPage> {
        user.map_or(Ok(()), |user| check_id("user", user))?;
        let owner = self.owner(user)?;
        let mut options = ScanOptions::new().with_prefix(SESSIONS).with_limit(self.page_limit(limit));
        options.start_after = after.map(session_key);
        let page = self.store().scan(&owner.states()?, options).await?;
        let id = |key: &str| key.strip_prefix(SESSIONS).unwrap_or_default().to_owned();
        let sessions = page.entries.iter().map(|entry| id(entry.key())).collect();
        Ok(SessionIdPage { sessions, next: page.next.as_deref().map(id) })
    }

    /// A page may have fewer users than the limit, or none, and still be followed by another one.
    ///
    /// Cost: one round trip, and one for each user.
    async fn users(&self, after: Option<&str>, limit: usize) -> Result<UserPage> {
        let directory = users_of(&self.tenant, &self.agent)?;
        let mut options = ScanOptions::new().with_limit(self.page_limit(limit));
        options.start_after = after.map(str::to_owned);
        let page = self.store().scan(&directory, options).await?;
        let mut accessible = Vec::with_capacity(page.entries.len());
        for entry in &page.entries {
            let user = user_of_key(entry.key()).ok_or_else(|| corrupt("list of users"))?;
            if self.states.admits(&self.tenant, user.as_deref()) {
                accessible.push(user);
            }
        }
        let checked = stream::iter(accessible).map(|user| async move {
            let has_states = self.states.has_sessions(&self.owner(user.as_deref())?).await?;
            Ok::<_, Error>(has_states.then_some(user))
        });
        let users: Vec<Option<Option<String>>> = checked.buffered(USERS_AT_ONCE).try_collect().await?;
        Ok(UserPage { users: users.into_iter().flatten().collect(), next: page.next })
    }
}

impl fmt::Display for StoreStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AgentStates({})", self.store())
    }
}
