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

use self::link::{Link, unexpected};
use super::VALUE_BYTES_MAX;
use super::list_hash::list_hash;
use super::shared::{
    KEYS_MAX, Smallest, UNCOUNTED, check_bytes, check_fence, check_key, check_list_expected, check_slot, check_user, is_blank, mixed_up,
    name_of, parse_stored, uncounted, user_of, user_page,
};
use super::text::compact;
use crate::contract::{
    AgentStateStore, DeleteOptions, DeleteSessionOptions, Expected, SaveOptions, SessionIdPage, StateCapabilities, StateConflict,
    StateForm, StateKey, StateVersion, UserPage, VersionedState,
};
use crate::slot::StateSlot;
use ::redis::{Cmd, Value, cmd};
use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;
use treehold_core::retry::Attempts;
use treehold_core::scope::check_id;
use treehold_store::server_url::take_parameters;

/// The prefix that AgentScope uses unless it is told another one.
const PREFIX: &str = "agentscope:session:";

const KEYS: &str = ":_keys";
const LIST: &str = ":list";
const HASH: &str = ":_hash";
const VERSION: &str = ":ver";

/// A script that compares versions starts with the function that does so.
const SAVE: &str = concat!(include_str!("expect.lua"), include_str!("save.lua"));
const SAVE_LIST: &str = include_str!("list.lua");
const DELETE: &str = concat!(include_str!("expect.lua"), include_str!("delete.lua"));
const DELETE_SESSION: &str = include_str!("delete_session.lua");
const GET: &str = "return {redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2])}";
const GET_VERSION: &str = "return {redis.call('EXISTS', KEYS[1]), redis.call('GET', KEYS[2])}";

/// How many existence checks are sent at once.
const CHECKS_AT_ONCE: usize = 64;

/// Options for [`RedisStates`].
#[derive(Clone)]
#[non_exhaustive]
pub struct RedisStatesOptions {
    /// The server's URL, as in [`open`](super::open).
    pub url: String,
    /// The prefix of the keys; overrides the one in the URL. Default `agentscope:session:`.
    pub prefix: Option<String>,
    /// The largest value, and the largest list, in bytes. Default [`VALUE_BYTES_MAX`].
    pub value_bytes_max: usize,
    /// The time limit for connecting. Default 5 s.
    pub connect_timeout: Duration,
    /// The time limit for an answer. Default 30 s.
    pub response_timeout: Duration,
}

impl RedisStatesOptions {
    /// Uses the defaults for the server at `url`.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            prefix: None,
            value_bytes_max: VALUE_BYTES_MAX,
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(30),
        }
    }

    /// Sets the prefix of the keys.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Sets the largest value and list, in bytes.
    #[must_use]
    pub fn with_value_bytes_max(mut self, value_bytes_max: usize) -> Self {
        self.value_bytes_max = value_bytes_max;
        self
    }

    /// Sets the time limit for connecting.
    #[must_use]
    pub fn with_connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.connect_timeout = connect_timeout;
        self
    }

    /// Sets the time limit for an answer.
    #[must_use]
    pub fn with_response_timeout(mut self, response_timeout: Duration) -> Self {
        self.response_timeout = response_timeout;
        self
    }
}

impl fmt::Debug for RedisStatesOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStatesOptions").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

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
    /// Opens the states at a URL, and checks that the server answers.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a URL or prefix that cannot be used. Those of the server.
    pub async fn open(url: impl Into<String>) -> Result<Self> {
        Self::open_with(RedisStatesOptions::new(url)).await
    }

    /// Opens the states with options.
    ///
    /// # Errors
    /// As [`RedisStates::open`].
    pub async fn open_with(options: RedisStatesOptions) -> Result<Self> {
        let (url, [prefix]) = take_parameters(&options.url, ["prefix"])?;
        let prefix = options.prefix.or(prefix).unwrap_or_else(|| PREFIX.to_owned());
        if is_blank(&prefix) {
            return Err(Error::invalid_argument("the prefix of the keys is empty; write `?prefix=agentscope:session:`"));
        }
        let link = Link::parse(&url, options.connect_timeout, options.response_timeout)?;
        if link.is_cluster && !has_hash_tag(&prefix) {
            return Err(Error::invalid_argument(
                "in a cluster the prefix of the keys needs a hash tag, such as `{agentscope}:session:`; without one, AgentScope cannot save",
            ));
        }
        let states = Self { link: Arc::new(link), prefix: prefix.into(), value_bytes_max: options.value_bytes_max };
        states.link.read(cmd("EXISTS").arg(&states.prefix[..])).await?;
        Ok(states)
    }

    fn names(&self, slot: &StateSlot, key: &str) -> Result<Names> {
        let slot = self.slot(slot)?;
        check_key(key)?;
        if key.contains(':') || matches!(key, "list" | "ver" | "_keys" | "_hash") {
            let message = format!(
                "the key `{key}` could name other data of a session in Redis; choose one without `:`, other than `list`, `ver`, `_keys` and `_hash`"
            );
            return Err(Error::invalid_argument(message));
        }
        let value = format!("{slot}:{key}");
        let list = format!("{value}{LIST}");
        Ok(Names {
            version: format!("{value}{VERSION}"),
            hash: format!("{list}{HASH}"),
            keys: format!("{slot}{KEYS}"),
            member: key.to_owned(),
            list_member: format!("{key}{LIST}"),
            value,
            list,
        })
    }

    fn slot(&self, slot: &StateSlot) -> Result<String> {
        check_slot(slot)?;
        check_slashes(slot.user())?;
        Ok(format!("{}{}/{}", self.prefix, name_of(slot.user()), slot.session()))
    }

    /// Returns the ids in the key of a set of keys: the part between the prefix and the first `/`, and the rest.
    fn ids<'a>(&self, key: &'a [u8]) -> Option<(&'a str, &'a str)> {
        let key = std::str::from_utf8(key).ok()?;
        let (user, session) = key.strip_prefix(&*self.prefix)?.strip_suffix(KEYS)?.split_once('/')?;
        (check_id("user", user).is_ok() && check_id("session", session).is_ok() && !is_blank(user) && !is_blank(session))
            .then_some((user, session))
    }

    /// Returns the members of the set of a session's keys.
    async fn members(&self, slot: &str) -> Result<Vec<Vec<u8>>> {
        let answer = self.link.read(cmd("SMEMBERS").arg(format!("{slot}{KEYS}"))).await?;
        let members: Vec<Vec<u8>> = ::redis::from_redis_value(answer).map_err(|_| unexpected())?;
        Ok(members)
    }
}

/// The names of what belongs to a key.
struct Names {
    value: String,
    version: String,
    list: String,
    hash: String,
    keys: String,
    member: String,
    list_member: String,
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
            return Err(Error::new(ErrorKind::TooLarge, format!("the session has over {KEYS_MAX} keys, the most that are listed")));
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

/// Refuses users whose name would end in the middle.
fn check_slashes(user: Option<&str>) -> Result<()> {
    match user {
        Some(user) if user.contains('/') => Err(mixed_up("user", user, "holds a `/`, where the name of a user ends in Redis")),
        _ => Ok(()),
    }
}

/// Makes the command that runs a script.
fn script<K: ::redis::ToRedisArgs>(text: &str, keys: &[K], arguments: &[&[u8]]) -> Cmd {
    let mut command = cmd("EVAL");
    command.arg(text).arg(keys.len());
    for key in keys {
        command.arg(key);
    }
    for argument in arguments {
        command.arg(argument);
    }
    command
}

/// Returns the text of an expectation in scripts.
fn expectation(expected: Expected) -> String {
    match expected {
        Expected::Any => "any".to_owned(),
        Expected::Absent => "absent".to_owned(),
        Expected::Version(version) if version.number() == UNCOUNTED => "uncounted".to_owned(),
        Expected::Version(version) => version.to_string(),
    }
}

/// Makes the error for the answer of a script that changed nothing.
fn refused(slot: &StateSlot, key: &str, expected: Expected, answer: &[i64]) -> Error {
    match *answer {
        [0, current] => {
            let current = if current < 0 { Some(uncounted()) } else { StateVersion::new(current.unsigned_abs()) };
            StateConflict::new(slot, key, expected, current).into_error()
        }
        [-1] => damaged_version(slot, key),
        [-2] => Error::new(ErrorKind::Corrupt, format!("the stored `{key}` of the {slot} is data of another kind; delete it")),
        _ => unexpected(),
    }
}

/// Reads a version. A value may be without one.
fn stored_version(slot: &StateSlot, key: &str, version: Option<Vec<u8>>) -> Result<StateVersion> {
    let Some(version) = version else { return Ok(uncounted()) };
    let text = std::str::from_utf8(&version).map_err(|_| damaged_version(slot, key))?.trim();
    match text.parse::<u64>() {
        Ok(number) => Ok(StateVersion::new(number).unwrap_or_else(uncounted)),
        Err(_) if text.is_empty() => Ok(uncounted()),
        Err(_) => Err(damaged_version(slot, key)),
    }
}

fn damaged_version(slot: &StateSlot, key: &str) -> Error {
    let message = format!("the stored version of `{key}` of the {slot} is not a number; delete the key that ends with `{key}:ver`");
    Error::new(ErrorKind::Corrupt, message)
}

/// Escapes a text in a pattern of Redis.
fn escaped(text: &str) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(text.len());
    for byte in text.bytes() {
        if matches!(byte, b'*' | b'?' | b'[' | b']' | b'\\' | b'^') {
            pattern.push(b'\\');
        }
        pattern.push(byte);
    }
    pattern
}

/// Returns whether a cluster keeps all keys with this prefix in one slot.
fn has_hash_tag(prefix: &str) -> bool {
    prefix.split_once('{').and_then(|(_, rest)| rest.split_once('}')).is_some_and(|(tag, _)| !tag.is_empty())
}
