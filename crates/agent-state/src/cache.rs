//! A bounded cache of states, which asks the store for the version before each use.

use crate::contract::{
    AgentStateStore, DeleteOptions, DeleteSessionOptions, SaveOptions, SessionIdPage, StateCapabilities, StateKey, StateVersion, UserPage,
    VersionedState,
};
use crate::slot::StateSlot;
use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use treehold_core::error::Result;
use treehold_core::json::Json;

/// A state store with a cache of single values.
///
/// A value is served from the cache only after the store has confirmed its version, so a state that another process saved is never
/// missed. That saves the read of the value, not the round trip. Nothing is cached in a store without versions.
///
/// The cache is bounded by bytes and by entries; the least recently used entries leave first.
#[derive(Debug)]
pub struct CachedStates<S> {
    inner: S,
    cached: Mutex<Cached>,
}

/// The default bound in bytes: 64 MiB.
const BYTES_MAX: usize = 64 << 20;

/// The default bound in entries.
const ENTRIES_MAX: usize = 10_000;

/// How long a value may be unused and still be served. A store counts the versions of a deleted value on for a day only.
const UNCONFIRMED_MAX: Duration = Duration::from_secs(60 * 60);

#[derive(Debug)]
struct Cached {
    bytes_max: usize,
    entries_max: usize,
    bytes: usize,
    entries: HashMap<(StateSlot, String), Entry>,
    /// The entries by the time of their last use.
    order: BTreeMap<u64, (StateSlot, String)>,
    uses: u64,
}

#[derive(Debug)]
struct Entry {
    state: VersionedState,
    bytes: usize,
    used: u64,
    confirmed: Instant,
}

impl<S> CachedStates<S> {
    /// Puts a cache of at most 64 MiB and 10,000 values before a store.
    pub fn new(inner: S) -> Self {
        let (entries, order) = (HashMap::new(), BTreeMap::new());
        let cached = Cached { bytes_max: BYTES_MAX, entries_max: ENTRIES_MAX, bytes: 0, entries, order, uses: 0 };
        Self { inner, cached: Mutex::new(cached) }
    }

    /// Sets the bound in bytes: of values, keys and ids.
    #[must_use]
    pub fn with_bytes_max(mut self, bytes: usize) -> Self {
        self.cached.get_mut().bytes_max = bytes;
        self
    }

    /// Sets the bound in entries.
    #[must_use]
    pub fn with_entries_max(mut self, entries: usize) -> Self {
        self.cached.get_mut().entries_max = entries;
        self
    }

    /// Returns the store.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Returns the number of cached values and their size in bytes.
    pub fn usage(&self) -> (usize, usize) {
        let cached = self.cached.lock();
        (cached.entries.len(), cached.bytes)
    }

    /// Empties the cache.
    pub fn clear(&self) {
        let mut cached = self.cached.lock();
        cached.entries.clear();
        cached.order.clear();
        cached.bytes = 0;
    }
}

impl Cached {
    fn get(&mut self, slot: &StateSlot, key: &str, version: StateVersion) -> Option<VersionedState> {
        let place = (slot.clone(), key.to_owned());
        let is_valid = |entry: &&mut Entry| entry.state.version == Some(version) && entry.confirmed.elapsed() < UNCONFIRMED_MAX;
        let entry = self.entries.get_mut(&place).filter(is_valid)?;
        entry.confirmed = Instant::now();
        self.uses += 1;
        self.order.remove(&entry.used);
        entry.used = self.uses;
        self.order.insert(self.uses, place);
        Some(entry.state.clone())
    }

    fn remove(&mut self, place: &(StateSlot, String)) {
        if let Some(entry) = self.entries.remove(place) {
            self.order.remove(&entry.used);
            self.bytes -= entry.bytes;
        }
    }

    fn put(&mut self, slot: &StateSlot, key: &str, state: &VersionedState) {
        let place = (slot.clone(), key.to_owned());
        // A slow read must not replace what a later one found.
        let is_newer = |entry: &Entry| entry.state.version > state.version;
        if state.version.is_none() || self.entries.get(&place).is_some_and(is_newer) {
            return;
        }
        self.remove(&place);
        let bytes = state.value.as_str().len() + key.len() + slot.session().len() + slot.user().map_or(0, str::len);
        if bytes > self.bytes_max || self.entries_max == 0 {
            return;
        }
        self.uses += 1;
        self.bytes += bytes;
        self.order.insert(self.uses, place.clone());
        self.entries.insert(place, Entry { state: state.clone(), bytes, used: self.uses, confirmed: Instant::now() });
        while self.bytes > self.bytes_max || self.entries.len() > self.entries_max {
            let Some((_, oldest)) = self.order.pop_first() else { return };
            self.remove(&oldest);
        }
    }

    fn remove_session(&mut self, slot: &StateSlot) {
        let gone: Vec<(StateSlot, String)> = self.entries.keys().filter(|(known, _)| known == slot).cloned().collect();
        gone.iter().for_each(|place| self.remove(place));
    }
}

#[async_trait]
impl<S: AgentStateStore> AgentStateStore for CachedStates<S> {
    fn capabilities(&self) -> StateCapabilities {
        self.inner.capabilities()
    }

    async fn save(&self, slot: &StateSlot, key: &str, value: &Json, options: SaveOptions) -> Result<Option<StateVersion>> {
        let version = self.inner.save(slot, key, value, options).await?;
        self.cached.lock().put(slot, key, &VersionedState::new(value.clone(), version));
        Ok(version)
    }

    async fn save_list(&self, slot: &StateSlot, key: &str, values: &[Json], options: SaveOptions) -> Result<Option<StateVersion>> {
        self.inner.save_list(slot, key, values, options).await
    }

    /// Cost: that of the inner [`AgentStateStore::version`] if the value is in the cache, else of that and the inner
    /// [`AgentStateStore::get`].
    async fn get(&self, slot: &StateSlot, key: &str) -> Result<Option<VersionedState>> {
        if !self.inner.capabilities().versions {
            return self.inner.get(slot, key).await;
        }
        let is_cached = self.cached.lock().entries.contains_key(&(slot.clone(), key.to_owned()));
        if is_cached {
            let Some(version) = self.inner.version(slot, key).await? else {
                self.cached.lock().remove(&(slot.clone(), key.to_owned()));
                return Ok(None);
            };
            if let Some(found) = self.cached.lock().get(slot, key, version) {
                return Ok(Some(found));
            }
            self.cached.lock().remove(&(slot.clone(), key.to_owned()));
        }
        let found = self.inner.get(slot, key).await?;
        match &found {
            Some(found) => self.cached.lock().put(slot, key, found),
            None => self.cached.lock().remove(&(slot.clone(), key.to_owned())),
        }
        Ok(found)
    }

    async fn get_list(&self, slot: &StateSlot, key: &str) -> Result<Vec<Json>> {
        self.inner.get_list(slot, key).await
    }

    async fn version(&self, slot: &StateSlot, key: &str) -> Result<Option<StateVersion>> {
        self.inner.version(slot, key).await
    }

    async fn list_version(&self, slot: &StateSlot, key: &str) -> Result<Option<StateVersion>> {
        self.inner.list_version(slot, key).await
    }

    async fn exists(&self, slot: &StateSlot) -> Result<bool> {
        self.inner.exists(slot).await
    }

    async fn keys(&self, slot: &StateSlot) -> Result<Vec<StateKey>> {
        self.inner.keys(slot).await
    }

    async fn delete_session(&self, slot: &StateSlot, options: DeleteSessionOptions) -> Result<()> {
        self.cached.lock().remove_session(slot);
        self.inner.delete_session(slot, options).await
    }

    async fn delete(&self, slot: &StateSlot, key: &str, options: DeleteOptions) -> Result<()> {
        self.cached.lock().remove(&(slot.clone(), key.to_owned()));
        self.inner.delete(slot, key, options).await
    }

    async fn session_ids(&self, user: Option<&str>, after: Option<&str>, limit: usize) -> Result<SessionIdPage> {
        self.inner.session_ids(user, after, limit).await
    }

    async fn users(&self, after: Option<&str>, limit: usize) -> Result<UserPage> {
        self.inner.users(after, limit).await
    }
}

/// A state store behind a pointer is one.
#[async_trait]
impl<S: AgentStateStore + ?Sized> AgentStateStore for Arc<S> {
    fn capabilities(&self) -> StateCapabilities {
        (**self).capabilities()
    }

    async fn save(&self, slot: &StateSlot, key: &str, value: &Json, options: SaveOptions) -> Result<Option<StateVersion>> {
        (**self).save(slot, key, value, options).await
    }

    async fn save_list(&self, slot: &StateSlot, key: &str, values: &[Json], options: SaveOptions) -> Result<Option<StateVersion>> {
        (**self).save_list(slot, key, values, options).await
    }

    async fn get(&self, slot: &StateSlot, key: &str) -> Result<Option<VersionedState>> {
        (**self).get(slot, key).await
    }

    async fn get_list(&self, slot: &StateSlot, key: &str) -> Result<Vec<Json>> {
        (**self).get_list(slot, key).await
    }

    async fn version(&self, slot: &StateSlot, key: &str) -> Result<Option<StateVersion>> {
        (**self).version(slot, key).await
    }

    async fn list_version(&self, slot: &StateSlot, key: &str) -> Result<Option<StateVersion>> {
        (**self).list_version(slot, key).await
    }

    async fn exists(&self, slot: &StateSlot) -> Result<bool> {
        (**self).exists(slot).await
    }

    async fn keys(&self, slot: &StateSlot) -> Result<Vec<StateKey>> {
        (**self).keys(slot).await
    }

    async fn delete_session(&self, slot: &StateSlot, options: DeleteSessionOptions) -> Result<()> {
        (**self).delete_session(slot, options).await
    }

    async fn delete(&self, slot: &StateSlot, key: &str, options: DeleteOptions) -> Result<()> {
        (**self).delete(slot, key, options).await
    }

    async fn session_ids(&self, user: Option<&str>, after: Option<&str>, limit: usize) -> Result<SessionIdPage> {
        (**self).session_ids(user, after, limit).await
    }

    async fn users(&self, after: Option<&str>, limit: usize) -> Result<UserPage> {
        (**self).users(after, limit).await
    }
}

impl<S: fmt::Display> fmt::Display for CachedStates<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cached({})", self.inner)
    }
}
