//! AgentScope's keys in Redis.
//!
//! ```text
//! {prefix}{user or __anon__}/{session}:{key}              a single value
//! {prefix}{user or __anon__}/{session}:{key}:ver          its version
//! {prefix}{user or __anon__}/{session}:{key}:list         a list
//! {prefix}{user or __anon__}/{session}:{key}:list:_hash   the hash of the list
//! {prefix}{user or __anon__}/{session}:_keys              the set of the keys; lists are `{key}:list`
//! ```
//!
//! Every change is one script, so that it races correctly with the scripts of AgentScope: of two saves that expect the same version,
//! one wins, whoever sent it. A value and its version are read by one script too.
//!
//! In a cluster the keys of a session must be in one slot: the prefix needs a hash tag, such as `{agentscope}:session:`. Without one
//! AgentScope itself cannot save.

mod link;
mod names;
mod open;
mod options;
mod script;

pub use options::RedisStatesOptions;

use self::link::{Link, escaped, unexpected};
use self::names::{HASH, KEYS, LIST, VERSION, check_slashes};
use self::script::{DELETE, DELETE_SESSION, GET, GET_VERSION, SAVE, SAVE_LIST, expectation, refused, script, stored_version};
use super::list_hash::list_hash;
use super::shared::{
    KEYS_MAX, Smallest, check_bytes, check_fence, check_list_expected, check_user, name_of, parse_stored, too_many_keys, user_of, user_page,
};
use super::text::compact;
use crate::contract::{
    AgentStateStore, DeleteOptions, DeleteSessionOptions, SaveOptions, SessionIdPage, StateCapabilities, StateForm, StateKey, StateVersion,
    UserPage, VersionedState,
};
use crate::slot::StateSlot;
use ::redis::{Value, cmd};
use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt};
use std::fmt;
use std::sync::Arc;
use treehold_core::error::{Error, Result};
use treehold_core::json::Json;
use treehold_core::retry::Attempts;

/// How many existence checks are sent at once.
const CHECKS_AT_ONCE: usize = 64;

/// The states in AgentScope's keys of a Redis server or cluster. Clones share the connections.
///
/// Versions are AgentScope's: 1 for the first save, one more for each save after it, and 1 again after a deletion. A value that an
/// older AgentScope stored without a version has the version [`UNCOUNTED_VERSION`](super::UNCOUNTED_VERSION); the next save gives it 1.
///
/// Cost: one round trip per call; two for `keys` and `delete_session`. A page of sessions or users scans all keys of the database.
///
/// # Examples
/// ```no_run
/// use treehold_agent_state::layouts::RedisStates;
/// use treehold_agent_state::{AgentStateStore, StateSlot};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let states = RedisStates::open("redis://127.0.0.1/0?prefix=agentscope:session:").await?;
/// if let Some(found) = states.get(&StateSlot::new(Some("ada"), "s1")?, "agent_state").await? {
///     println!("version {:?}: {}", found.version, found.value);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisStates {
    link: Arc<Link>,
    prefix: Arc<str>,
    value_bytes_max: usize,
}

impl RedisStates {
    /// Returns the members of the set of a session's keys.
    async fn members(&self, slot: &str) -> Result<Vec<Vec<u8>>> {
        let answer = self.link.read(cmd("SMEMBERS").arg(format!("{slot}{KEYS}"))).await?;
        let members: Vec<Vec<u8>> = ::redis::from_redis_value(answer).map_err(|_| unexpected())?;
        Ok(members)
    }
}

impl fmt::Debug for RedisStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStates").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl fmt::Display for RedisStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisStates({} {})", self.link, self.prefix)
    }
}

#[async_trait]
impl AgentStateStore for RedisStates {
    fn capabilities(&self) -> StateCapabilities {
        StateCapabilities::new().with_shared(true).with_versions(true).with_exact_text(false)
    }

    async fn save(&self, slot: &StateSlot, key: &str, value: &Json, options: SaveOptions) -> Result<Option<StateVersion>> {
        check_fence(options.fence.as_ref())?;
        let names = self.names(slot, key)?;
        let text = compact(value);
        check_bytes(text.len(), self.value_bytes_max)?;
        let expected = expectation(options.expected);
        let command =
            script(SAVE, &[&names.value, &names.version, &names.keys], &[text.as_bytes(), expected.as_bytes(), names.member.as_bytes()]);
        let answer: Vec<i64> = ::redis::from_redis_value(self.link.write(&command).await?).map_err(|_| unexpected())?;
        match answer[..] {
            [1, version] => Ok(u64::try_from(version).ok().and_then(StateVersion::new)),
            _ => Err(refused(slot, key, options.expected, &answer)),
        }
    }

    async fn save_list(&self, slot: &StateSlot, key: &str, values: &[Json], options: SaveOptions) -> Result<Option<StateVersion>> {
        check_fence(options.fence.as_ref())?;
        check_list_expected(options.expected)?;
        let names = self.names(slot, key)?;
        let items: Vec<String> = values.iter().map(compact).collect();
        check_bytes(items.iter().map(String::len).sum(), self.value_bytes_max)?;
        let hash = list_hash(&items);
        let arguments: Vec<&[u8]> =
            [hash.as_bytes(), names.list_member.as_bytes()].into_iter().chain(items.iter().map(String::as_bytes)).collect();
        self.link.write(&script(SAVE_LIST, &[&names.list, &names.hash, &names.keys], &arguments)).await?;
        Ok(None)
    }

    async fn get(&self, slot: &StateSlot, key: &str) -> Result<Option<VersionedState>> {
        let names = self.names(slot, key)?;
        let answer = self.link.read(&script(GET, &[&names.value, &names.version], &[])).await?;
        let (value, version): (Option<Vec<u8>>, Option<Vec<u8>>) = ::redis::from_redis_value(answer).map_err(|_| unexpected())?;
        let Some(value) = value else { return Ok(None) };
        check_bytes(value.len(), self.value_bytes_max)?;
        Ok(Some(VersionedState::new(parse_stored(slot, key, &value)?, Some(stored_version(slot, key, version)?))))
    }

    async fn get_list(&self, slot: &StateSlot, key: &str) -> Result<Vec<Json>> {
        let names = self.names(slot, key)?;
        let answer = self.link.read(cmd("LRANGE").arg(&names.list).arg(0).arg(-1)).await?;
        let items: Vec<Vec<u8>> = ::redis::from_redis_value(answer).map_err(|_| unexpected())?;
        check_bytes(items.iter().map(Vec::len).sum(), self.value_bytes_max)?;
        items.iter().map(|item| parse_stored(slot, key, item)).collect()
    }

    async fn version(&self, slot: &StateSlot, key: &str) -> Result<Option<StateVersion>> {
        let names = self.names(slot, key)?;
        let answer = self.link.read(&script(GET_VERSION, &[&names.value, &names.version], &[])).await?;
        let (exists, version): (bool, Option<Vec<u8>>) = ::redis::from_redis_value(answer).map_err(|_| unexpected())?;
        exists.then(|| stored_version(slot, key, version)).transpose()
    }

    async fn list_version(&self, slot: &StateSlot, key: &str) -> Result<Option<StateVersion>> {
        self.names(slot, key).map(|_| None)
    }

    async fn exists(&self, slot: &StateSlot) -> Result<bool> {
        let answer = self.link.read(cmd("EXISTS").arg(format!("{}{KEYS}", self.slot(slot)?))).await?;
        ::redis::from_redis_value(answer).map_err(|_| unexpected())
    }

    async fn keys(&self, slot: &StateSlot) -> Result<Vec<StateKey>> {
        let members = self.members(&self.slot(slot)?).await?;
        if members.len() > KEYS_MAX {
            return Err(too_many_keys());
        }
        let named = members.into_iter().filter_map(|member| {
            let member = String::from_utf8(member).ok()?;
            Some(match member.strip_suffix(LIST) {
                Some(key) => StateKey::List(key.to_owned()),
                None => StateKey::Single(member),
            })
        });
        let checked = futures::stream::iter(named).map(|key| async move {
            let (StateKey::Single(name) | StateKey::List(name)) = &key;
            // Keys that the layout refuses, which AgentScope does not.
            let Ok(names) = self.names(slot, name) else { return Ok(None) };
            // Redis has no empty lists; their hash says that they were saved.
            let stored = if matches!(key, StateKey::Single(_)) { names.value } else { names.hash };
            let exists: bool = ::redis::from_redis_value(self.link.read(cmd("EXISTS").arg(stored)).await?).map_err(|_| unexpected())?;
            Ok::<_, Error>(exists.then_some(key))
        });
        let mut keys: Vec<StateKey> = checked.buffered(CHECKS_AT_ONCE).try_filter_map(|key| async { Ok(key) }).try_collect().await?;
        keys.sort();
        Ok(keys)
    }

    async fn delete_session(&self, slot: &StateSlot, options: DeleteSessionOptions) -> Result<()> {
        check_fence(options.fence.as_ref())?;
        let slot = self.slot(slot)?;
        let mut attempts = Attempts::new();
        loop {
            let members = self.members(&slot).await?;
            if members.is_empty() {
                return Ok(());
            }
            let named = |parts: &[&[u8]]| [slot.as_bytes(), b":", &parts.concat()].concat();
            let mut keys = vec![format!("{slot}{KEYS}").into_bytes()];
            for member in &members {
                let more = if member.ends_with(LIST.as_bytes()) { HASH } else { VERSION };
                keys.extend([named(&[member]), named(&[member, more.as_bytes()])]);
            }
            let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let members: Vec<&[u8]> = members.iter().map(Vec::as_slice).collect();
            let answer = self.link.write(&script(DELETE_SESSION, &keys, &members)).await?;
            if answer == Value::Int(1) {
                return Ok(());
            }
            attempts.lost().await?;
        }
    }

    async fn delete(&self, slot: &StateSlot, key: &str, options: DeleteOptions) -> Result<()> {
        check_fence(options.fence.as_ref())?;
        let forms = match options.only_form() {
            None => "both",
            Some(StateForm::Single) => "single",
            Some(StateForm::List) => {
                check_list_expected(options.expected)?;
                "list"
            }
        };
        let names = self.names(slot, key)?;
        let keys = [&names.value, &names.version, &names.list, &names.hash, &names.keys];
        let expected = expectation(options.expected);
        let arguments = [forms, &expected, &names.member, &names.list_member].map(str::as_bytes);
        let answer: Vec<i64> =
            ::redis::from_redis_value(self.link.write(&script(DELETE, &keys, &arguments)).await?).map_err(|_| unexpected())?;
        if answer == [1] { Ok(()) } else { Err(refused(slot, key, options.expected, &answer)) }
    }

    async fn session_ids(&self, user: Option<&str>, after: Option<&str>, limit: usize) -> Result<SessionIdPage> {
        check_user(user)?;
        check_slashes(user)?;
        let mut page = Smallest::new(limit);
        let name = name_of(user);
        let pattern = [escaped(&format!("{}{name}/", self.prefix)), b"*".to_vec(), escaped(KEYS)].concat();
        self.link
            .scan(&pattern, |key| {
                if let Some((found, session)) = self.ids(key)
                    && found == name
                    && after.is_none_or(|after| session > after)
                    && page.wants(session)
                {
                    page.insert(session.to_owned());
                }
            })
            .await?;
        let (sessions, next) = page.into_page();
        Ok(SessionIdPage { sessions, next })
    }

    async fn users(&self, after: Option<&str>, limit: usize) -> Result<UserPage> {
        let (mut named, mut has_anonymous) = (Smallest::new(limit), false);
        let pattern = [escaped(&self.prefix), b"*".to_vec(), escaped(KEYS)].concat();
        self.link
            .scan(&pattern, |key| {
                let Some((user, _)) = self.ids(key) else { return };
                match user_of(user) {
                    None => has_anonymous = true,
                    Some(user) if after.is_none_or(|after| user.as_str() > after) => named.insert(user),
                    Some(_) => {}
                }
            })
            .await?;
        Ok(user_page(named, has_anonymous, after))
    }
}
