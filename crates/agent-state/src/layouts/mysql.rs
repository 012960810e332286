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

use super::VALUE_BYTES_MAX;
use super::list_hash::list_hash;
use super::shared::{
    KEYS_MAX, Smallest, UNCOUNTED, check_bytes, check_fence, check_key, check_list_expected, check_slot, check_user, mixed_up, name_of,
    page_limit, parse_stored, uncounted, user_of, user_page,
};
use super::text::compact;
use crate::contract::{
    AgentStateStore, DeleteOptions, DeleteSessionOptions, Expected, SaveOptions, SessionIdPage, StateCapabilities, StateConflict,
    StateForm, StateKey, StateVersion, UserPage, VersionedState,
};
use crate::slot::StateSlot;
use async_trait::async_trait;
use mysql_async::prelude::Queryable;
use mysql_async::{
    DriverError, IsolationLevel, Opts, OptsBuilder, Params, Pool, PoolConstraints, PoolOpts, Transaction, TxOpts, Value, params,
};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;
use treehold_core::retry::Attempts;
use treehold_core::scope::check_id;
use treehold_store::server_url::{shown, take_parameters};

/// The database and the table that AgentScope uses unless it is told others.
const DATABASE: &str = "agentscope";
const TABLE: &str = "agentscope_sessions";

/// The end of the keys of hashes.
const HASH: &str = ":_hash";

/// The longest name of a database or table, in characters.
const IDENTIFIER_MAX: usize = 64;

/// The longest content of the columns `session_id` and `state_key`, in UTF-16 units, as AgentScope counts.
const COLUMN_MAX: usize = 255;

/// How many elements of a list one statement inserts, and how many bytes.
const ROWS_AT_ONCE: usize = 500;
const BYTES_AT_ONCE: usize = 1 << 20;

/// The first statements on each connection.
const SETUP: [&str; 3] = [
    "SET NAMES utf8mb4",
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', SESSION autocommit = 1, SESSION innodb_lock_wait_timeout = 5",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
];

/// Options for [`MysqlStates`].
#[derive(Clone)]
#[non_exhaustive]
pub struct MysqlStatesOptions {
    /// The server's URL, as in [`open`](super::open). The default database is `agentscope`.
    pub url: String,
    /// The name of the table; overrides the one in the URL. Default `agentscope_sessions`.
    pub table: Option<String>,
    /// Whether to create the database, the table and the column of versions if they are missing. Default `false`, or as the URL says.
    pub create: bool,
    /// The largest value, and the largest list, in bytes. Default [`VALUE_BYTES_MAX`].
    pub value_bytes_max: usize,
    /// The most connections at once. Default 10.
    pub connections_max: usize,
    /// The time limit of one operation. Default 30 s.
    pub timeout: Duration,
}

impl MysqlStatesOptions {
    /// Uses the defaults for the server at `url`.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            table: None,
            create: false,
            value_bytes_max: VALUE_BYTES_MAX,
            connections_max: 10,
            timeout: Duration::from_secs(30),
        }
    }

    /// Sets the name of the table.
    #[must_use]
    pub fn with_table(mut self, table: impl Into<String>) -> Self {
        self.table = Some(table.into());
        self
    }

    /// Sets whether to create what is missing.
    #[must_use]
    pub fn with_create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Sets the largest value and list, in bytes.
    #[must_use]
    pub fn with_value_bytes_max(mut self, value_bytes_max: usize) -> Self {
        self.value_bytes_max = value_bytes_max;
        self
    }

    /// Sets the most connections at once.
    #[must_use]
    pub fn with_connections_max(mut self, connections_max: usize) -> Self {
        self.connections_max = connections_max;
        self
    }

    /// Sets the time limit of one operation.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

impl fmt::Debug for MysqlStatesOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlStatesOptions").field("table", &self.table).field("create", &self.create).finish_non_exhaustive()
    }
}

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
    /// Opens the table at a URL.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a URL or name that cannot be used, [`NotFound`](ErrorKind::NotFound) if the
    /// database or table is missing and not to be created, [`Unsupported`](ErrorKind::Unsupported) for a table without versions, which
    /// are added when it is opened to be created. Those of the server.
    pub async fn open(url: impl Into<String>) -> Result<Self> {
        Self::open_with(MysqlStatesOptions::new(url)).await
    }

    /// Opens the table with options.
    ///
    /// # Errors
    /// As [`MysqlStates::open`].
    pub async fn open_with(options: MysqlStatesOptions) -> Result<Self> {
        let (url, [table, create]) = take_parameters(&options.url, ["table", "create"])?;
        let create = match create.as_deref() {
            None => options.create,
            Some("true") => true,
            Some("false") => false,
            Some(_) => return Err(Error::invalid_argument("the parameter `create` of the URL is `true` or `false`")),
        };
        let url = match url.split_once("://") {
            Some(("mysql" | "mariadb", rest)) => format!("mysql://{rest}"),
            _ => return Err(Error::invalid_argument("the URL names another server; write `mysql://USER@HOST/DATABASE`")),
        };
        let opts = Opts::from_url(&url).map_err(|error| failed(error.into()))?;
        let database = identifier("database", opts.db_name().filter(|name| !name.is_empty()).unwrap_or(DATABASE))?;
        let table = identifier("table", options.table.as_deref().or(table.as_deref()).unwrap_or(TABLE))?;
        let constraints = PoolConstraints::new(0, options.connections_max.max(1));
        let pool = PoolOpts::default().with_constraints(constraints.expect("the minimum is the smaller one"));
        // The database may have to be created first, so that no connection names it.
        let opts = OptsBuilder::from_opts(opts).db_name(None::<String>).prefer_socket(false).setup(SETUP.to_vec()).pool_opts(pool);
        let states = Self {
            pool: Pool::new(opts),
            quoted: format!("`{database}`.`{table}`"),
            database,
            table,
            shown: shown(&url),
            value_bytes_max: options.value_bytes_max,
            timeout: options.timeout,
        };
        states.prepare(create).await?;
        Ok(states)
    }

    /// Checks that the table is there, or creates it with AgentScope's own statements.
    async fn prepare(&self, create: bool) -> Result<()> {
        let (database, table, quoted) = (&self.database, &self.table, &self.quoted);
        let within = async {
            let mut conn = self.pool.get_conn().await?;
            if create {
                conn.query_drop(format!(
                    "CREATE DATABASE IF NOT EXISTS `{database}` DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci"
                ))
                .await?;
                conn.query_drop(format!(
                    "CREATE TABLE IF NOT EXISTS {quoted} (session_id VARCHAR(255) NOT NULL, state_key VARCHAR(255) NOT NULL, \
                     item_index INT NOT NULL DEFAULT 0, state_data LONGTEXT NOT NULL, version BIGINT NOT NULL DEFAULT 0, \
                     created_at DATETIME DEFAULT CURRENT_TIMESTAMP, updated_at DATETIME DEFAULT CURRENT_TIMESTAMP ON UPDATE \
                     CURRENT_TIMESTAMP, PRIMARY KEY (session_id, state_key, item_index)) DEFAULT CHARACTER SET utf8mb4 COLLATE \
                     utf8mb4_unicode_ci"
                ))
                .await?;
            }
            let columns = "SELECT COLUMN_NAME FROM INFORMATION_SCHEMA.COLUMNS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?";
            let columns: Vec<String> = conn.exec(columns, (database.as_str(), table.as_str())).await?;
            Ok::<_, mysql_async::Error>((conn, columns))
        };
        let (mut conn, columns) = self.in_time(within).await?;
        if columns.is_empty() {
            let message = format!("there is no table `{table}` in a database `{database}`; create it, or write `?create=true`");
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        let has = |name: &str| columns.iter().any(|column| column.eq_ignore_ascii_case(name));
        if !["session_id", "state_key", "item_index", "state_data"].into_iter().all(has) {
            return Err(Error::unsupported(format!("the table `{table}` is not one of AgentScope's; name another one")));
        }
        if !has("version") {
            if !create {
                let message = format!(
                    "the table `{table}` has no column `version`; open it once with `?create=true`, which adds it as AgentScope does"
                );
                return Err(Error::unsupported(message));
            }
            let alter = format!("ALTER TABLE {quoted} ADD COLUMN version BIGINT NOT NULL DEFAULT 0");
            self.in_time(conn.query_drop(alter)).await?;
        }
        Ok(())
    }

    /// Runs statements within the time limit.
    async fn in_time<T>(&self, work: impl Future<Output = Result<T, mysql_async::Error>>) -> Result<T> {
        match tokio::time::timeout(self.timeout, work).await {
            Ok(done) => done.map_err(failed),
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "the database server did not answer in time; try again")),
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
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "the database server did not answer in time; try again")),
        }
    }

    /// Saves a single value in one transaction.
    async fn try_save(&self, slot: &StateSlot, names: &Names, text: &str, expected: Expected) -> Result<i64, Fault> {
        let mut conn = self.pool.get_conn().await?;
        let mut transaction = conn.start_transaction(read_committed()).await?;
        let done = self.save_within(&mut transaction, slot, names, text, expected).await;
        ended(transaction, done).await
    }

    async fn save_within(
        &self,
        transaction: &mut Transaction<'_>,
        slot: &StateSlot,
        names: &Names,
        text: &str,
        expected: Expected,
    ) -> Result<i64, Fault> {
        let locked = self.lock(transaction, names).await?;
        if locked.is_list() {
            return Err(Fault::Refused(other_form(&names.key, "a list")));
        }
        let current = locked.version();
        if !expected.admits(current) {
            return Err(Fault::Refused(StateConflict::new(slot, &names.key, expected, current).into_error()));
        }
        let saved = match locked.first {
            None => {
                let insert =
                    format!("INSERT INTO {} (session_id, state_key, item_index, state_data, version) VALUES (?, ?, 0, ?, 1)", self.quoted);
                transaction.exec_drop(insert, (names.slot.as_str(), names.key.as_str(), text)).await?;
                1
            }
            Some(stored) if (0..UNCOUNTED.cast_signed()).contains(&stored) => {
                let update = format!(
                    "UPDATE {} SET state_data = ?, version = ? WHERE session_id = ? AND state_key = ? AND item_index = 0",
                    self.quoted
                );
                transaction.exec_drop(update, (text, stored + 1, names.slot.as_str(), names.key.as_str())).await?;
                stored + 1
            }
            Some(_) => {
                let message = format!("the stored version of `{}` of the {slot} is not one that AgentScope writes; correct it", names.key);
                return Err(Fault::Refused(Error::new(ErrorKind::Corrupt, message)));
            }
        };
        Ok(saved)
    }

    /// Saves a list in one transaction.
    async fn try_save_list(&self, names: &Names, items: &[String]) -> Result<(), Fault> {
        let mut conn = self.pool.get_conn().await?;
        let mut transaction = conn.start_transaction(read_committed()).await?;
        let done = self.save_list_within(&mut transaction, names, items).await;
        ended(transaction, done).await
    }

    async fn save_list_within(&self, transaction: &mut Transaction<'_>, names: &Names, items: &[String]) -> Result<(), Fault> {
        let locked = self.lock(transaction, names).await?;
        if locked.first.is_some() && !locked.is_list() {
            return Err(Fault::Refused(other_form(&names.key, "a single value")));
        }
        let select = format!(
            "SELECT item_index, CAST(state_data AS BINARY) FROM {} WHERE session_id = ? AND state_key = ? ORDER BY item_index FOR UPDATE",
            self.quoted
        );
        let (mut count, mut is_start) = (0, true);
        let mut rows = transaction.exec_iter(select, (names.slot.as_str(), names.key.as_str())).await?;
        while let Some(row) = rows.next().await? {
            let (index, stored): (i64, Vec<u8>) =
                mysql_async::from_row_opt(row).map_err(|error| mysql_async::Error::Driver(DriverError::FromRow { row: error.0 }))?;
            is_start &= i64::try_from(count).is_ok_and(|count| count == index);
            is_start &= items.get(count).is_some_and(|item| item.as_bytes() == stored);
            count += 1;
        }
        rows.drop_result().await?;
        // The hash of an unchanged list stays: it may be that of a running AgentScope.
        if is_start && count == items.len() && locked.has_hash {
            return Ok(());
        }
        if !is_start {
            let delete = format!("DELETE FROM {} WHERE session_id = ? AND state_key = ?", self.quoted);
            transaction.exec_drop(delete, (names.slot.as_str(), names.key.as_str())).await?;
            count = 0;
        }
        while count < items.len() {
            let part = part_of(&items[count..]);
            let places = vec!["(?, ?, ?, ?)"; part.len()].join(", ");
            let insert = format!("INSERT INTO {} (session_id, state_key, item_index, state_data) VALUES {places}", self.quoted);
            let mut values: Vec<Value> = Vec::with_capacity(part.len() * 4);
            for (offset, item) in part.iter().enumerate() {
                values.push(Value::from(names.slot.as_str()));
                values.push(Value::from(names.key.as_str()));
                values.push(Value::from(count + offset));
                values.push(Value::from(item.as_str()));
            }
            transaction.exec_drop(insert, Params::Positional(values)).await?;
            count += part.len();
        }
        let hash = format!(
            "INSERT INTO {} (session_id, state_key, item_index, state_data) VALUES (?, ?, 0, ?) \
             ON DUPLICATE KEY UPDATE state_data = VALUES(state_data)",
            self.quoted
        );
        transaction.exec_drop(hash, (names.slot.as_str(), names.hash.as_str(), list_hash(items))).await?;
        Ok(())
    }

    /// Deletes one form of a key in one transaction.
    async fn try_delete(&self, slot: &StateSlot, names: &Names, form: StateForm, expected: Expected) -> Result<(), Fault> {
        let mut conn = self.pool.get_conn().await?;
        let mut transaction = conn.start_transaction(read_committed()).await?;
        let done = self.delete_within(&mut transaction, slot, names, form, expected).await;
        ended(transaction, done).await
    }

    async fn delete_within(
        &self,
        transaction: &mut Transaction<'_>,
        slot: &StateSlot,
        names: &Names,
        form: StateForm,
        expected: Expected,
    ) -> Result<(), Fault> {
        let locked = self.lock(transaction, names).await?;
        let current = locked.version();
        if form == StateForm::Single && !expected.admits(current) {
            return Err(Fault::Refused(StateConflict::new(slot, &names.key, expected, current).into_error()));
        }
        let is_there = match form {
            StateForm::Single => current.is_some(),
            StateForm::List => locked.is_list(),
        };
        if is_there {
            let delete = format!("DELETE FROM {} WHERE session_id = ? AND state_key IN (?, ?)", self.quoted);
            transaction.exec_drop(delete, (names.slot.as_str(), names.key.as_str(), names.hash.as_str())).await?;
        }
        Ok(())
    }

    /// Runs one statement that deletes.
    async fn delete_rows(&self, condition: &str, values: Params) -> Result<()> {
        let delete = format!("DELETE FROM {} WHERE {condition}", self.quoted);
        let mut attempts = Attempts::new();
        loop {
            let work = async {
                let mut conn = self.pool.get_conn().await?;
                conn.exec_drop(delete.as_str(), values.clone()).await?;
                Ok::<_, Fault>(())
            };
            if self.settled(work).await?.is_some() {
                return Ok(());
            }
            attempts.lost().await?;
        }
    }

    /// Locks the rows of a key: the first two of its elements, and the hash.
    async fn lock(&self, transaction: &mut Transaction<'_>, names: &Names) -> Result<Locked, Fault> {
        let statement = format!(
            "SELECT CAST(session_id AS BINARY), CAST(state_key AS BINARY), item_index, version FROM {} \
             WHERE session_id = ? AND state_key IN (?, ?) AND item_index < 2 FOR UPDATE",
            self.quoted
        );
        let rows: Vec<(Vec<u8>, Vec<u8>, i64, i64)> =
            transaction.exec(statement, (names.slot.as_str(), names.key.as_str(), names.hash.as_str())).await?;
        let mut locked = Locked::default();
        for (slot, key, index, version) in rows {
            if slot != names.slot.as_bytes() || (key != names.key.as_bytes() && key != names.hash.as_bytes()) {
                let message = "an id or key that is stored in the table differs from this one only in case, accents or trailing spaces; \
                               this layout cannot tell the two apart, choose another id or key";
                return Err(Fault::Refused(Error::invalid_argument(message)));
            }
            match (key == names.hash.as_bytes(), index) {
                (true, _) => locked.has_hash = true,
                (false, 0) => locked.first = Some(version),
                (false, _) => locked.has_second = true,
            }
        }
        Ok(locked)
    }
}

/// The names of what belongs to a key.
struct Names {
    slot: String,
    key: String,
    hash: String,
}

/// The locked rows of a key.
#[derive(Default)]
struct Locked {
    /// The version in the first row.
    first: Option<i64>,
    has_second: bool,
    has_hash: bool,
}

impl Locked {
    fn is_list(&self) -> bool {
        self.has_hash || self.has_second
    }

    /// Returns the version of the single value; `None` if there is none.
    fn version(&self) -> Option<StateVersion> {
        let stored = self.first.filter(|_| !self.is_list())?;
        Some(u64::try_from(stored).ok().and_then(StateVersion::new).unwrap_or_else(uncounted))
    }
}

/// Why a transaction ended.
enum Fault {
    Engine(mysql_async::Error),
    Refused(Error),
}

impl From<mysql_async::Error> for Fault {
    fn from(error: mysql_async::Error) -> Self {
        Self::Engine(error)
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

/// The condition on the rows of exactly one session.
const THIS_SESSION: &str = "a.session_id = :slot AND CAST(a.session_id AS BINARY) = CAST(:slot AS BINARY)";

/// The condition on the rows of exactly one key.
const THIS_KEY: &str = "a.session_id = :slot AND a.state_key = :key AND CAST(a.session_id AS BINARY) = CAST(:slot AS BINARY) \
                        AND CAST(a.state_key AS BINARY) = CAST(:key AS BINARY)";

/// The condition that a key is a list.
const IS_LIST: &str = "EXISTS (SELECT 1 FROM {t} b WHERE b.session_id = :slot AND CAST(b.session_id AS BINARY) = CAST(:slot AS BINARY) \
                       AND ((b.state_key = :hash AND CAST(b.state_key AS BINARY) = CAST(:hash AS BINARY)) \
                       OR (b.state_key = :key AND b.item_index = 1 AND CAST(b.state_key AS BINARY) = CAST(:key AS BINARY))))";

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
            return Err(Error::new(ErrorKind::TooLarge, format!("the session has over {KEYS_MAX} keys, the most that are listed")));
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

impl Names {
    fn parameters(&self) -> Params {
        params! { "slot" => self.slot.as_str(), "key" => self.key.as_str(), "hash" => self.hash.as_str() }
    }
}

fn params_of_key(names: &Names) -> Params {
    params! { "slot" => names.slot.as_str(), "key" => names.key.as_str() }
}

fn params_of_slot(slot: &str) -> Params {
    params! { "slot" => slot }
}

/// Returns the elements that the next statement inserts.
fn part_of(items: &[String]) -> &[String] {
    let mut bytes = 0;
    let count = items.iter().take(ROWS_AT_ONCE).take_while(|item| {
        bytes += item.len();
        bytes <= BYTES_AT_ONCE
    });
    &items[..count.count().max(1)]
}

/// Commits a transaction, or rolls it back. One that is only dropped keeps its locks until the pool looks at its connection again.
async fn ended<T>(transaction: Transaction<'_>, done: Result<T, Fault>) -> Result<T, Fault> {
    match done {
        Ok(done) => {
            transaction.commit().await?;
            Ok(done)
        }
        Err(fault) => {
            // The first error is the one to report.
            let _ = transaction.rollback().await;
            Err(fault)
        }
    }
}

fn read_committed() -> TxOpts {
    let mut options = TxOpts::default();
    options.with_isolation_level(IsolationLevel::ReadCommitted);
    options
}

fn names(slot: &StateSlot, key: &str) -> Result<Names> {
    let slot = slot_id(slot)?;
    check_key(key)?;
    if key.to_lowercase().ends_with(HASH) {
        return Err(Error::invalid_argument(format!("the key `{key}` ends like the hash of a list; rename it")));
    }
    let hash = format!("{key}{HASH}");
    if hash.encode_utf16().count() > COLUMN_MAX {
        return Err(Error::invalid_argument(format!(
            "the key is too long for the table; shorten it to {} characters",
            COLUMN_MAX - HASH.len()
        )));
    }
    Ok(Names { slot, key: key.to_owned(), hash })
}

/// Returns what stands in the column of the session.
fn slot_id(slot: &StateSlot) -> Result<String> {
    check_slot(slot)?;
    check_colon(slot.user())?;
    let id = format!("{}:{}", name_of(slot.user()), slot.session());
    if id.encode_utf16().count() > COLUMN_MAX {
        let message =
            format!("the user and session ids have over {} characters together, the most of the table; shorten them", COLUMN_MAX - 1);
        return Err(Error::invalid_argument(message));
    }
    Ok(id)
}

/// Refuses users whose name would end in the middle.
fn check_colon(user: Option<&str>) -> Result<()> {
    match user {
        Some(user) if user.contains(':') => Err(mixed_up("user", user, "holds a `:`, where the name of a user ends in the table")),
        _ => Ok(()),
    }
}

/// Checks the name of a database or table, which goes into statements.
fn identifier(what: &str, name: &str) -> Result<String> {
    let name = name.trim();
    let is_legal = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
        && name.bytes().next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_');
    if !is_legal || name.len() > IDENTIFIER_MAX {
        return Err(Error::invalid_argument(format!(
            "the name of the {what} has up to {IDENTIFIER_MAX} letters, digits, `_` and `-`, and starts with a letter or `_`; choose another one"
        )));
    }
    Ok(name.to_owned())
}

fn stored_version(slot: &StateSlot, key: &str, version: i64) -> Result<StateVersion> {
    match u64::try_from(version) {
        Ok(version) => Ok(StateVersion::new(version).unwrap_or_else(uncounted)),
        Err(_) => Err(Error::new(ErrorKind::Corrupt, format!("the stored version of `{key}` of the {slot} is negative; correct it"))),
    }
}

fn other_form(key: &str, form: &str) -> Error {
    Error::unsupported(format!(
        "`{key}` is {form} in this session, and a key has one form in this layout; delete it first, or choose another key"
    ))
}

/// Returns whether a transaction lost to a concurrent one and may succeed when repeated: a duplicate row, a wait, a deadlock.
fn is_lost_race(code: u16) -> bool {
    matches!(code, 1062 | 1205 | 1213)
}

/// Converts an error of the server. SQL, hosts and users are only in the source.
fn failed(error: mysql_async::Error) -> Error {
    let (kind, message) = match &error {
        mysql_async::Error::Server(server) => match server.code {
            1044 | 1045 | 1142 | 1143 | 1227 | 1698 => {
                (ErrorKind::PermissionDenied, "the database server rejects the user; check the name, the password and the privileges")
            }
            1049 | 1146 => (ErrorKind::NotFound, "the database or table of the states does not exist; create it, or write `?create=true`"),
            1153 | 1301 | 1406 => (ErrorKind::TooLarge, "the value is too large for the database server; raise `max_allowed_packet`"),
            1366 => (ErrorKind::InvalidArgument, "the table cannot hold a character of the value; convert it to utf8mb4"),
            1036 | 1290 | 1792 | 1836 => (ErrorKind::ReadOnly, "the database server is read-only; name the one that accepts writes"),
            1021 | 1114 => (ErrorKind::Unavailable, "the disk of the database server is full; make room there and try again"),
            1040 | 1203 | 1205 | 1213 | 1226 | 1047 | 1053 | 1152 | 1317 | 1927 | 3024 | 4031 => {
                (ErrorKind::Unavailable, "the database server does not accept the statement now; try again")
            }
            1665 => (ErrorKind::Unsupported, "the server's binary log is statement-based; set `binlog_format` to ROW or MIXED"),
            1054 => (ErrorKind::Unsupported, "the table of the states lacks a column; it is not one of AgentScope's"),
            _ => (ErrorKind::Internal, "the database server rejected a statement; this is a bug in the program"),
        },
        mysql_async::Error::Url(_) => (ErrorKind::InvalidArgument, "the URL cannot be used; write `mysql://USER@HOST/DATABASE`"),
        mysql_async::Error::Driver(DriverError::PacketTooLarge) => {
            (ErrorKind::TooLarge, "the value is too large for the database server; raise `max_allowed_packet`")
        }
        mysql_async::Error::Driver(DriverError::FromValue { .. } | DriverError::FromRow { .. }) => {
            (ErrorKind::Corrupt, "a row of the table is not one that AgentScope writes; restore the table")
        }
        _ => (ErrorKind::Unavailable, "the database server does not answer; check the server and the network, and try again"),
    };
    Error::new(kind, message).with_source(error)
}
