//! The states of one agent, as rows of a store.

use crate::contract::{
    AgentStateStore, FenceFallen, SaveOptions, SessionIdPage, StateCapabilities, StateConflict, StateKey, StateVersion, UserPage,
    VersionedState,
};
use crate::rows::{
    Due, Floor, Form, HeadMeta, Owner, SESSIONS, SessionRow, Task, due_rows, floor_key, head_key, heads_prefix, new_id, read_head_key,
    sealed_row, session_floor_key, session_key, unsealed_row, user_of_key, users_of,
};
use crate::slot::StateSlot;
use crate::states::AgentStates;
use crate::value::{Body, Content};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;
use treehold_core::ops::Version;
use treehold_core::retry::Attempts;
use treehold_core::scope::check_id;
use treehold_store::{Batch, Condition, Item, ScanEntry, ScanOptions, Store};

/// How long the last version of a deleted value is kept, so that a writer who loaded it cannot replace a later value of the same key.
const FLOOR_TIME: Duration = Duration::from_secs(24 * 60 * 60);

/// How many users a listing checks at the same time.
const USERS_AT_ONCE: usize = 16;

/// The states of one agent of a tenant, over any [`Store`].
///
/// The messages of a value with a `context` are kept as a log: a save writes those that are new, and the head. Costs below count round
/// trips to the store.
#[derive(Debug, Clone)]
pub struct StoreStates {
    pub(crate) states: AgentStates,
    tenant: Arc<str>,
    agent: Arc<str>,
}

/// A session and the head of a value, as one read found them.
pub(crate) struct Seen {
    pub(crate) session: Option<SeenSession>,
    pub(crate) head: Option<SeenHead>,
    /// The version after which the value's versions continue if there is no head.
    floor: u64,
}

pub(crate) struct SeenSession {
    pub(crate) row: SessionRow,
    pub(crate) version: Version,
    expires_at: Option<Timestamp>,
}

pub(crate) struct SeenHead {
    pub(crate) form: Form,
    pub(crate) key: String,
    pub(crate) meta: HeadMeta,
    pub(crate) version: Version,
    pub(crate) value: Bytes,
}

impl SeenSession {
    fn read(item: &Item) -> Result<Self> {
        Ok(Self { row: unsealed_row("session", &item.meta)?, version: item.version, expires_at: item.expires_at })
    }
}

impl SeenHead {
    fn read(form: Form, key: &str, item: Item) -> Result<Self> {
        Ok(Self { form, key: key.to_owned(), meta: unsealed_row("state", &item.meta)?, version: item.version, value: item.value })
    }

    fn is_of(&self, session: Option<&SeenSession>) -> bool {
        session.is_some_and(|session| session.row.data == self.meta.data)
    }

    pub(crate) fn state_version(&self) -> Result<StateVersion> {
        StateVersion::new(self.meta.version).ok_or_else(|| corrupt("version of a state"))
    }
}

impl Seen {
    /// Returns the head if it belongs to the session.
    pub(crate) fn live(&self) -> Option<&SeenHead> {
        self.head.as_ref().filter(|head| head.is_of(self.session.as_ref()))
    }

    fn current(&self) -> Result<Option<StateVersion>> {
        self.live().map(SeenHead::state_version).transpose()
    }

    /// Returns the version of the next save. After a deletion the versions continue.
    fn next_version(&self) -> Result<u64> {
        let last = self.head.as_ref().map_or(0, |head| head.meta.version).max(if self.live().is_some() { 0 } else { self.floor });
        last.checked_add(1).ok_or_else(|| corrupt("version of a state"))
    }
}

/// Makes the error for a row that no writer makes.
pub(crate) fn corrupt(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the stored {what} is damaged; restore it from a backup or delete it"))
}

impl StoreStates {
    pub(crate) fn new(states: AgentStates, tenant: &str, agent: &str) -> Self {
        Self { states, tenant: tenant.into(), agent: agent.into() }
    }

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

    pub(crate) fn store(&self) -> &dyn Store {
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

    /// Reads a session, the head of a value and, for a save, where its versions continue. Cost: one round trip.
    pub(crate) async fn look(&self, owner: &Owner, slot: &StateSlot, form: Form, key: &str, look: Look) -> Result<Seen> {
        let session = slot.session();
        let mut keys = vec![session_key(session), head_key(session, form, key)];
        if look == Look::ToSave {
            keys.extend([session_floor_key(session), floor_key(session, form, key)]);
        }
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let found = self.store().get_many(&owner.states()?, &keys, look != Look::ForVersion).await?;
        let mut found = found.into_iter();
        let session = found.next().flatten().map(|item| SeenSession::read(&item)).transpose()?;
        let head = found.next().flatten().map(|item| SeenHead::read(form, key, item)).transpose()?;
        let mut floor = 0;
        for item in found.flatten() {
            floor = unsealed_row::<Floor>("last version of a state", &item.value)?.version.max(floor);
        }
        Ok(Seen { session, head, floor })
    }

    async fn put(&self, slot: &StateSlot, key: &str, content: Content<'_>, options: &SaveOptions) -> Result<Option<StateVersion>> {
        self.check_key(key)?;
        let owner = self.owner(slot.user())?;
        content.check(&self.states.options)?;
        let mut attempts = Attempts::new();
        loop {
            let seen = self.look(&owner, slot, content.form(), key, Look::ToSave).await?;
            let current = seen.current()?;
            if !options.expected.admits(current) {
                return Err(StateConflict::new(slot, key, options.expected, current).into_error());
            }
            let version = seen.next_version()?;
            let batch = self.plan(&owner, slot, key, &seen, version, &content, options)?;
            if self.commit(batch, options.fence.is_some()).await? {
                return Ok(StateVersion::new(version));
            }
            attempts.lost().await?;
        }
    }

    /// Makes the batch of a save.
    #[expect(clippy::too_many_arguments, reason = "one save, taken apart")]
    fn plan(
        &self,
        owner: &Owner,
        slot: &StateSlot,
        key: &str,
        seen: &Seen,
        version: u64,
        content: &Content<'_>,
        options: &SaveOptions,
    ) -> Result<Batch> {
        let (states, form) = (owner.states()?, content.form());
        let mut batch = Batch::new();
        if let Some(fence) = &options.fence {
            batch = batch.expect(&fence.namespace, &fence.key, Condition::Version(fence.version));
        }
        let head_key = head_key(slot.session(), form, key);
        let head_condition = seen.head.as_ref().map_or(Condition::Absent, |head| Condition::Version(head.version));
        batch = batch.expect(&states, &head_key, head_condition);
        let (batch, data) = self.put_session(batch, owner, slot, seen)?;
        let meta = HeadMeta { version, data, log: None };
        Ok(batch.put_with_meta(&states, head_key, sealed_row(&meta), content.body().encode()))
    }

    /// Adds the row of the session to the batch of a save: creates it, counts a new head, or renews its expiry. Returns its data.
    fn put_session(&self, batch: Batch, owner: &Owner, slot: &StateSlot, seen: &Seen) -> Result<(Batch, String)> {
        let (states, session_key) = (owner.states()?, session_key(slot.session()));
        let time_to_live = self.states.options.expiry.time_to_live(slot);
        let condition = seen.session.as_ref().map_or(Condition::Absent, |session| Condition::Version(session.version));
        let mut batch = batch.expect(&states, &session_key, condition);
        let is_new_head = seen.live().is_none();
        let row = seen.session.as_ref().map(|session| &session.row);
        let next = SessionRow {
            data: row.map_or_else(new_id, |row| row.data.clone()),
            keys: row.map_or(0, |row| row.keys) + u64::from(is_new_head),
            due: row.is_some_and(|row| row.due) || time_to_live.is_some(),
        };
        if is_new_head && next.keys > self.states.options.keys_max as u64 {
            let max = self.states.options.keys_max;
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("a session may have at most {max} keys; delete some or use another session"),
            ));
        }
        if row.is_none() {
            batch = batch.put(&users_of(&owner.tenant, &owner.agent)?, owner.user_key(), "");
        }
        if let Some(time_to_live) = time_to_live.filter(|_| next.due && !row.is_some_and(|row| row.due)) {
            let due = Due { owner: owner.clone(), session: slot.session().to_owned(), data: next.data.clone(), task: Task::Expire };
            batch = batch.put(&due_rows(), due.key(self.due_at(time_to_live)), sealed_row(&due));
        }
        if row != Some(&next) {
            batch = batch.put_item(&states, session_key, sealed_row(&next), Bytes::new(), time_to_live);
        } else if time_to_live.is_some() || seen.session.as_ref().is_some_and(|session| session.expires_at.is_some()) {
            batch = batch.touch(&states, session_key, time_to_live);
        }
        Ok((batch, next.data))
    }

    /// Returns when a time to live that starts now ends, in milliseconds since 1970.
    pub(crate) fn due_at(&self, time_to_live: Duration) -> i64 {
        self.states.now().saturating_add(i64::try_from(time_to_live.as_millis()).unwrap_or(i64::MAX))
    }

    /// Commits a batch, whose first condition is the fence if there is one. Returns whether it was applied; it was not if another writer
    /// was faster.
    pub(crate) async fn commit(&self, batch: Batch, is_fenced: bool) -> Result<bool> {
        match self.store().commit(batch).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() != ErrorKind::Conflict => Err(error),
            Err(error) if is_fenced && error.change() == Some(0) => Err(FenceFallen.into_error()),
            Err(_) => Ok(false),
        }
    }

    /// Reads a value; `None` if it is absent.
    async fn read(&self, slot: &StateSlot, form: Form, key: &str) -> Result<Option<(Body, StateVersion)>> {
        self.check_key(key)?;
        let owner = self.owner(slot.user())?;
        let seen = self.look(&owner, slot, form, key, Look::ToRead).await?;
        let Some(head) = seen.live() else { return Ok(None) };
        Ok(Some((Body::decode(&head.value)?, head.state_version()?)))
    }

    /// Reads the metas of a session's heads, those of earlier sessions of the same name included.
    async fn heads(&self, owner: &Owner, session: &str) -> Result<Vec<SeenHead>> {
        let (states, prefix) = (owner.states()?, heads_prefix(session));
        let mut options = ScanOptions::new().with_prefix(prefix.clone());
        let mut heads = Vec::new();
        loop {
            let page = self.store().scan(&states, options.clone()).await?;
            for entry in page.entries {
                let ScanEntry::Item(item) = entry else { continue };
                let (form, key) = read_head_key(item.key.strip_prefix(&prefix).unwrap_or_default())?;
                heads.push(SeenHead::read(form, &key, item)?);
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => return Ok(heads),
            }
        }
    }

    async fn session(&self, owner: &Owner, session: &str) -> Result<Option<SeenSession>> {
        let found = self.store().get(&owner.states()?, &session_key(session)).await?;
        found.map(|item| SeenSession::read(&item)).transpose()
    }

    /// Returns whether a user has any session.
    async fn has_sessions(&self, owner: &Owner) -> Result<bool> {
        let options = ScanOptions::new().with_prefix(SESSIONS).with_limit(1);
        Ok(!self.store().scan(&owner.states()?, options).await?.entries.is_empty())
    }
}

/// What a read of a head is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    ToSave,
    ToRead,
    ForVersion,
}

#[async_trait]
impl AgentStateStore for StoreStates {
    fn capabilities(&self) -> StateCapabilities {
        StateCapabilities::new().with_shared(self.store().capabilities().shared).with_versions(true).with_fences(true)
    }

    /// Cost: two round trips; more if another writer was faster.
    async fn save(&self, slot: &StateSlot, key: &str, value: &Json, options: SaveOptions) -> Result<Option<StateVersion>> {
        self.put(slot, key, Content::single(value), &options).await
    }

    /// Cost: as [`AgentStateStore::save`].
    async fn save_list(&self, slot: &StateSlot, key: &str, values: &[Json], options: SaveOptions) -> Result<Option<StateVersion>> {
        self.put(slot, key, Content::list(values), &options).await
    }

    /// Cost: one round trip.
    async fn get(&self, slot: &StateSlot, key: &str) -> Result<Option<VersionedState>> {
        let Some((body, version)) = self.read(slot, Form::Single, key).await? else { return Ok(None) };
        Ok(Some(VersionedState::new(body.into_json()?, Some(version))))
    }

    /// Cost: as [`AgentStateStore::get`].
    async fn get_list(&self, slot: &StateSlot, key: &str) -> Result<Vec<Json>> {
        match self.read(slot, Form::List, key).await? {
            Some((body, _)) => body.into_list(),
            None => Ok(Vec::new()),
        }
    }

    /// Cost: one round trip, which reads no values.
    async fn version(&self, slot: &StateSlot, key: &str) -> Result<Option<StateVersion>> {
        self.check_key(key)?;
        let owner = self.owner(slot.user())?;
        self.look(&owner, slot, Form::Single, key, Look::ForVersion).await?.current()
    }

    /// Cost: one round trip.
    async fn exists(&self, slot: &StateSlot) -> Result<bool> {
        let owner = self.owner(slot.user())?;
        Ok(self.session(&owner, slot.session()).await?.is_some())
    }

    /// Cost: two round trips, which read no values.
    async fn keys(&self, slot: &StateSlot) -> Result<Vec<StateKey>> {
        let owner = self.owner(slot.user())?;
        let mut attempts = Attempts::new();
        loop {
            let Some(session) = self.session(&owner, slot.session()).await? else { return Ok(Vec::new()) };
            let heads = self.heads(&owner, slot.session()).await?;
            let mut keys: Vec<StateKey> = heads
                .into_iter()
                .filter(|head| head.is_of(Some(&session)))
                .map(|head| match head.form {
                    Form::Single => StateKey::Single(head.key),
                    Form::List => StateKey::List(head.key),
                })
                .collect();
            if keys.len() as u64 == session.row.keys {
                keys.sort();
                return Ok(keys);
            }
            let now = self.session(&owner, slot.session()).await?;
            if now.is_some_and(|now| now.version == session.version) {
                return Err(corrupt("list of a session's states"));
            }
            attempts.lost().await?;
        }
    }

    /// The session is gone with one commit; its logs are removed afterwards. If that fails or is interrupted, a sweep finishes it.
    ///
    /// Cost: three round trips, and two for each log.
    async fn delete_session(&self, slot: &StateSlot) -> Result<()> {
        let owner = self.owner(slot.user())?;
        let states = owner.states()?;
        let mut attempts = Attempts::new();
        loop {
            let Some(session) = self.session(&owner, slot.session()).await? else { return Ok(()) };
            let heads = self.heads(&owner, slot.session()).await?;
            let session_key = session_key(slot.session());
            let mut batch = Batch::new().expect(&states, &session_key, Condition::Version(session.version)).delete(&states, session_key);
            for head in &heads {
                let key = head_key(slot.session(), head.form, &head.key);
                batch = batch.expect(&states, &key, Condition::Version(head.version)).delete(&states, key);
            }
            let floor = Floor { version: heads.iter().map(|head| head.meta.version).max().unwrap_or_default() };
            batch = batch.put_for(&states, session_floor_key(slot.session()), sealed_row(&floor), FLOOR_TIME);
            let data = session.row.data;
            let due = Due { owner: owner.clone(), session: slot.session().to_owned(), data, task: Task::RemoveData };
            if self.commit_removal(batch, due).await? {
                return Ok(());
            }
            attempts.lost().await?;
        }
    }

    /// Removes both forms of a key.
    ///
    /// Cost: two round trips, and two for a log.
    async fn delete(&self, slot: &StateSlot, key: &str) -> Result<()> {
        self.check_key(key)?;
        let owner = self.owner(slot.user())?;
        for form in Form::ALL {
            let mut attempts = Attempts::new();
            while !self.delete_form(&owner, slot, form, key).await? {
                attempts.lost().await?;
            }
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
            let has_states = self.has_sessions(&self.owner(user.as_deref())?).await?;
            Ok::<_, Error>(has_states.then_some(user))
        });
        let users: Vec<Option<Option<String>>> = checked.buffered(USERS_AT_ONCE).try_collect().await?;
        Ok(UserPage { users: users.into_iter().flatten().collect(), next: page.next })
    }
}

impl StoreStates {
    fn page_limit(&self, limit: usize) -> usize {
        limit.clamp(1, self.states.options.page_max.max(1))
    }

    /// Deletes one form of a key. Returns false if another writer was faster.
    async fn delete_form(&self, owner: &Owner, slot: &StateSlot, form: Form, key: &str) -> Result<bool> {
        let seen = self.look(owner, slot, form, key, Look::ForVersion).await?;
        let (Some(head), Some(session)) = (seen.live(), &seen.session) else { return Ok(true) };
        let (states, session_key) = (owner.states()?, session_key(slot.session()));
        let head_key = head_key(slot.session(), form, key);
        let floor = Floor { version: head.meta.version };
        let batch = Batch::new()
            .expect(&states, &session_key, Condition::Version(session.version))
            .expect(&states, &head_key, Condition::Version(head.version))
            .delete(&states, head_key)
            .put_for(&states, floor_key(slot.session(), form, key), sealed_row(&floor), FLOOR_TIME);
        let (data, session_id) = (session.row.data.clone(), slot.session().to_owned());
        if session.row.keys <= 1 {
            let due = Due { owner: owner.clone(), session: session_id, data, task: Task::RemoveData };
            return self.commit_removal(batch.delete(&states, session_key), due).await;
        }
        let next = SessionRow { keys: session.row.keys - 1, ..session.row.clone() };
        let time_to_live = self.states.options.expiry.time_to_live(slot);
        let batch = batch.put_item(&states, session_key, sealed_row(&next), Bytes::new(), time_to_live);
        match &head.meta.log {
            Some(log) => {
                let due = Due { owner: owner.clone(), session: session_id, data, task: Task::RemoveLog(log.clone()) };
                self.commit_removal(batch, due).await
            }
            None => self.commit(batch, false).await,
        }
    }

    /// Commits a deletion, and then removes what remains. Returns false if another writer was faster.
    async fn commit_removal(&self, batch: Batch, due: Due) -> Result<bool> {
        let due_key = due.key(self.states.now());
        if !self.commit(batch.put(&due_rows(), &due_key, sealed_row(&due)), false).await? {
            return Ok(false);
        }
        // The state is gone, whatever happens to its log.
        if let Err(error) = self.states.remove(&due, &due_key).await {
            tracing::warn!(%error, session = due.session, "the messages of a deleted state remain until the next sweep");
        }
        Ok(true)
    }
}

impl fmt::Display for StoreStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AgentStates({})", self.store())
    }
}
