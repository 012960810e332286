//! AgentScope's table in MySQL or MariaDB.
//!
//! | column | content |
//! | --- | --- |
//! | `session_id` | `{user or __anon__}:{session}` |
//! | `state_key` | the key; `{key}:_hash` for the hash of a list |
//! | `item_index` | 0 for a single value, the position of an element of a list |
//! | `state_data` | the JSON, or the hash |
//! | `version` | of a single value; 0 for elements, and for values from before there were versions |
//!
//! A list and a single value of one key would share their first row, so that a key has one form at a time. A key is a list if its hash
//! is there, or a second element.
//!
//! The columns compare without case, accents and trailing spaces. Reads compare the bytes as well, and a save of an id or key that
//! differs from a stored one only in these is refused.

mod error;
mod names;
mod open;
mod options;
mod write;

pub use options::MysqlStatesOptions;

use self::error::{Fault, failed, is_lost_race, timed_out};
use self::names::{HASH, check_colon, names, params_of_key, params_of_slot, slot_id};
use super::shared::{
    KEYS_MAX, Smallest, check_bytes, check_fence, check_key, check_list_expected, check_user, name_of, page_limit, parse_stored,
    too_many_keys, uncounted, user_of, user_page,
};
use super::text::compact;
use crate::contract::{
    AgentStateStore, DeleteOptions, DeleteSessionOptions, SaveOptions, SessionIdPage, StateCapabilities, StateForm, StateKey, StateVersion,
    UserPage, VersionedState,
};
use crate::slot::StateSlot;
use async_trait::async_trait;
use mysql_async::prelude::Queryable;
use mysql_async::{Params, Pool};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;
use treehold_core::retry::Attempts;
use treehold_core::scope::check_id;

/// The condition on the rows of exactly one session.
const THIS_SESSION: &str = "a.session_id = :slot AND CAST(a.session_id AS BINARY) = CAST(:slot AS BINARY)";

/// The condition on the rows of exactly one key.
const THIS_KEY: &str = "a.session_id = :slot AND a.state_key = :key AND CAST(a.session_id AS BINARY) = CAST(:slot AS BINARY) \
                        AND CAST(a.state_key AS BINARY) = CAST(:key AS BINARY)";

/// The condition that a key is a list.
const IS_LIST: &str = "EXISTS (SELECT 1 FROM {t} b WHERE b.session_id = :slot AND CAST(b.session_id AS BINARY) = CAST(:slot AS BINARY) \
                       AND ((b.state_key = :hash AND CAST(b.state_key AS BINARY) = CAST(:hash AS BINARY)) \
                       OR (b.state_key = :key AND b.item_index = 1 AND CAST(b.state_key AS BINARY) = CAST(:key AS BINARY))))";

/// The states in AgentScope's table of a MySQL or MariaDB server. Clones share the connections, which belong to the runtime that
/// opened them.
///
/// Versions are AgentScope's: 1 for the first save, one more for each save after it, and 1 again after a deletion. A value from before
/// there were versions has the version [`UNCOUNTED_VERSION`](super::UNCOUNTED_VERSION); the next save gives it 1.
///
/// Cost: a read is one statement, a save a transaction of four. A page of sessions or users reads the keys of the whole table.
///
/// # Examples
/// ```no_run
/// use treehold_agent_state::layouts::MysqlStates;
/// use treehold_agent_state::{AgentStateStore, StateSlot};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let states = MysqlStates::open("mysql://root@127.0.0.1/agentscope").await?;
/// if let Some(found) = states.get(&StateSlot::new(Some("ada"), "s1")?, "agent_state").await? {
///     println!("version {:?}: {}", found.version, found.value);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MysqlStates {
    pool: Pool,
    database: String,
    table: String,
    /// The qualified name of the table, quoted.
    quoted: String,
    shown: String,
    value_bytes_max: usize,
    timeout: Duration,
}

impl MysqlStates {
    /// Runs statements within the time limit.
    async fn in_time<T>(&self, work: impl Future<Output = Result<T, mysql_async::Error>>) -> Result<T> {
        match tokio::time::timeout(self.timeout, work).await {
            Ok(done) => done.map_err(failed),
            Err(_) => Err(timed_out()),
        }
    }

    /// Runs a statement with `{t}` for the table, and returns its rows.
    async fn rows<T: mysql_async::prelude::FromRow + Send + 'static>(&self, statement: &str, values: impl Into<Params>) -> Result<Vec<T>> {
        let (statement, values) = (statement.replace("{t}", &self.quoted), values.into());
        self.in_time(async {
            let mut conn = self.pool.get_conn().await?;
            conn.exec(statement, values).await
        })
        .await
    }

    /// Runs a transaction within the time limit. Returns `None` if it lost a race and may be repeated.
    async fn settled<T>(&self, work: impl Future<Output = Result<T, Fault>>) -> Result<Option<T>> {
        match tokio::time::timeout(self.timeout, work).await {
            Ok(Ok(done)) => Ok(Some(done)),
            Ok(Err(Fault::Engine(mysql_async::Error::Server(error)))) if is_lost_race(error.code) => Ok(None),
            Ok(Err(Fault::Engine(error))) => Err(failed(error)),
            Ok(Err(Fault::Refused(error))) => Err(error),
            Err(_) => Err(timed_out()),
        }
    }
}

#[async_trait]
impl AgentStateStore for MysqlStates {
    fn capabilities(&self) -> StateCapabilities {
        StateCapabilities::new().with_shared(true).with_versions(true).with_exact_text(false).with_separate_forms(false)
    }

    async fn save(&self, slot: &StateSlot, key: &str, value: &Json, options: SaveOptions) -> Result<Option<StateVersion>> {
        check_fence(options.fence.as_ref())?;
        let names = names(slot, key)?;
        let text = compact(value);
        check_bytes(text.len(), self.value_bytes_max)?;
        let mut attempts = Attempts::new();
        loop {
            if let Some(version) = self.settled(self.try_save(slot, &names, &text, options.expected)).await? {
                return Ok(u64::try_from(version).ok().and_then(StateVersion::new));
            }
            attempts.lost().await?;
        }
    }

    async fn save_list(&self, slot: &StateSlot, key: &str, values: &[Json], options: SaveOptions) -> Result<Option<StateVersion>> {
        check_fence(options.fence.as_ref())?;
        check_list_expected(options.expected)?;
        let names = names(slot, key)?;
        let items: Vec<String> = values.iter().map(compact).collect();
        check_bytes(items.iter().map(String::len).sum(), self.value_bytes_max)?;
        let mut attempts = Attempts::new();
        loop {
            if self.settled(self.try_save_list(&names, &items)).await?.is_some() {
                return Ok(None);
            }
            attempts.lost().await?;
        }
    }

    async fn get(&self, slot: &StateSlot, key: &str) -> Result<Option<VersionedState>> {
        let names = names(slot, key)?;
        let statement =
            format!("SELECT CAST(a.state_data AS BINARY), a.version FROM {{t}} a WHERE {THIS_KEY} AND a.item_index = 0 AND NOT {IS_LIST}");
        let rows: Vec<(Vec<u8>, i64)> = self.rows(&statement, names.parameters()).await?;
        let Some((value, version)) = rows.into_iter().next() else { return Ok(None) };
        check_bytes(value.len(), self.value_bytes_max)?;
        Ok(Some(VersionedState::new(parse_stored(slot, key, &value)?, Some(stored_version(slot, key, version)?))))
    }

    async fn get_list(&self, slot: &StateSlot, key: &str) -> Result<Vec<Json>> {
        let names = names(slot, key)?;
        let size = format!("SELECT CAST(COALESCE(SUM(LENGTH(a.state_data)), 0) AS UNSIGNED) FROM {{t}} a WHERE {THIS_KEY}");
        let size: Vec<u64> = self.rows(&size, params_of_key(&names)).await?;
        check_bytes(size.first().map_or(0, |&size| usize::try_from(size).unwrap_or(usize::MAX)), self.value_bytes_max)?;
        let statement = format!("SELECT CAST(a.state_data AS BINARY) FROM {{t}} a WHERE {THIS_KEY} AND {IS_LIST} ORDER BY a.item_index");
        let items: Vec<Vec<u8>> = self.rows(&statement, names.parameters()).await?;
        items.iter().map(|item| parse_stored(slot, key, item)).collect()
    }

    async fn version(&self, slot: &StateSlot, key: &str) -> Result<Option<StateVersion>> {
        let names = names(slot, key)?;
        let statement = format!("SELECT a.version FROM {{t}} a WHERE {THIS_KEY} AND a.item_index = 0 AND NOT {IS_LIST}");
        let versions: Vec<i64> = self.rows(&statement, names.parameters()).await?;
        versions.first().map(|&version| stored_version(slot, key, version)).transpose()
    }

    async fn list_version(&self, slot: &StateSlot, key: &str) -> Result<Option<StateVersion>> {
        names(slot, key).map(|_| None)
    }

    async fn exists(&self, slot: &StateSlot) -> Result<bool> {
        let statement = format!("SELECT 1 FROM {{t}} a WHERE {THIS_SESSION} LIMIT 1");
        Ok(!self.rows::<i64>(&statement, params_of_slot(&slot_id(slot)?)).await?.is_empty())
    }

    async fn keys(&self, slot: &StateSlot) -> Result<Vec<StateKey>> {
        let statement = format!(
            "SELECT CAST(a.state_key AS BINARY) AS k, MAX(a.item_index) FROM {{t}} a WHERE {THIS_SESSION} GROUP BY k ORDER BY k LIMIT {}",
            2 * KEYS_MAX + 1
        );
        let rows: Vec<(Vec<u8>, i64)> = self.rows(&statement, params_of_slot(&slot_id(slot)?)).await?;
        if rows.len() > 2 * KEYS_MAX {
            return Err(too_many_keys());
        }
        let mut forms: BTreeMap<String, bool> = BTreeMap::new();
        for (key, last_index) in rows {
            let Ok(key) = String::from_utf8(key) else { continue };
            match key.strip_suffix(HASH) {
                Some(list) => forms.insert(list.to_owned(), true),
                None => {
                    let is_list = forms.get(&key).copied().unwrap_or_default() || last_index > 0;
                    forms.insert(key, is_list)
                }
            };
        }
        let mut keys: Vec<StateKey> = forms
            .into_iter()
            .filter(|(key, _)| check_key(key).is_ok())
            .map(|(key, is_list)| if is_list { StateKey::List(key) } else { StateKey::Single(key) })
            .collect();
        keys.sort();
        Ok(keys)
    }

    async fn delete_session(&self, slot: &StateSlot, options: DeleteSessionOptions) -> Result<()> {
        check_fence(options.fence.as_ref())?;
        let condition = "session_id = :slot AND CAST(session_id AS BINARY) = CAST(:slot AS BINARY)";
        self.delete_rows(condition, params_of_slot(&slot_id(slot)?)).await
    }

    async fn delete(&self, slot: &StateSlot, key: &str, options: DeleteOptions) -> Result<()> {
        check_fence(options.fence.as_ref())?;
        if let Some(form) = options.only_form() {
            if form == StateForm::List {
                check_list_expected(options.expected)?;
            }
            let names = names(slot, key)?;
            let mut attempts = Attempts::new();
            while self.settled(self.try_delete(slot, &names, form, options.expected)).await?.is_none() {
                attempts.lost().await?;
            }
            return Ok(());
        }
        let condition = "session_id = :slot AND state_key IN (:key, :hash) AND CAST(session_id AS BINARY) = CAST(:slot AS BINARY) \
                         AND CAST(state_key AS BINARY) IN (CAST(:key AS BINARY), CAST(:hash AS BINARY))";
        self.delete_rows(condition, names(slot, key)?.parameters()).await
    }

    async fn session_ids(&self, user: Option<&str>, after: Option<&str>, limit: usize) -> Result<SessionIdPage> {
        check_user(user)?;
        check_colon(user)?;
        let prefix = format!("{}:", name_of(user));
        let limit = page_limit(limit);
        // `LIKE` with a prefix misses characters beyond the basic plane, which sort behind the end of its range.
        let statement = "SELECT DISTINCT CAST(session_id AS BINARY) AS s FROM {t} WHERE LEFT(CAST(session_id AS BINARY), ?) = CAST(? AS BINARY) \
                         AND CAST(session_id AS BINARY) > CAST(? AS BINARY) ORDER BY s LIMIT ?";
        let from = format!("{prefix}{}", after.unwrap_or_default());
        let values = (prefix.len(), prefix.as_str(), from, limit + 1);
        let mut found: Vec<Vec<u8>> = self.rows(statement, values).await?;
        let is_more = found.len() > limit;
        found.truncate(limit);
        let ids: Vec<String> =
            found.into_iter().filter_map(|slot| String::from_utf8(slot).ok()).map(|slot| slot[prefix.len()..].to_owned()).collect();
        let next = if is_more { ids.last().cloned() } else { None };
        Ok(SessionIdPage { sessions: ids.into_iter().filter(|id| check_id("session", id).is_ok()).collect(), next })
    }

    async fn users(&self, after: Option<&str>, limit: usize) -> Result<UserPage> {
        let limit = page_limit(limit);
        let anonymous = name_of(None);
        let statement = "SELECT DISTINCT CAST(SUBSTRING_INDEX(session_id, ':', 1) AS BINARY) AS u FROM {t} WHERE session_id LIKE '%:%' \
                         AND CAST(SUBSTRING_INDEX(session_id, ':', 1) AS BINARY) > CAST(? AS BINARY) \
                         AND CAST(SUBSTRING_INDEX(session_id, ':', 1) AS BINARY) <> CAST(? AS BINARY) ORDER BY u LIMIT ?";
        let found: Vec<Vec<u8>> = self.rows(statement, (after.unwrap_or_default(), anonymous, limit + 1)).await?;
        let mut named = Smallest::new(limit);
        for user in found.into_iter().filter_map(|user| user_of(&String::from_utf8(user).ok()?)) {
            named.insert(user);
        }
        let exists = "SELECT 1 FROM {t} WHERE LEFT(CAST(session_id AS BINARY), ?) = CAST(? AS BINARY) LIMIT 1";
        let prefix = format!("{anonymous}:");
        let has_anonymous = after.is_none() && !self.rows::<i64>(exists, (prefix.len(), prefix)).await?.is_empty();
        let mut page = user_page(named, has_anonymous, after);
        page.users.retain(|user| user.as_deref().is_none_or(|user| check_user(Some(user)).is_ok()));
        Ok(page)
    }
}

impl fmt::Debug for MysqlStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlStates").field("table", &self.quoted).finish_non_exhaustive()
    }
}

impl fmt::Display for MysqlStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MysqlStates({} {})", self.shown, self.table)
    }
}

fn stored_version(slot: &StateSlot, key: &str, version: i64) -> Result<StateVersion> {
    match u64::try_from(version) {
        Ok(version) => Ok(StateVersion::new(version).unwrap_or_else(uncounted)),
        Err(_) => Err(Error::new(ErrorKind::Corrupt, format!("the stored version of `{key}` of the {slot} is negative; correct it"))),
    }
}
