//! Opening the table: its URL, its connections, and its columns.

use super::error::failed;
use super::{MysqlStates, MysqlStatesOptions};
use mysql_async::prelude::Queryable;
use mysql_async::{Opts, OptsBuilder, Pool, PoolConstraints, PoolOpts};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_store::server_url::{shown, take_parameters};

/// The database and the table that AgentScope uses unless it is told others.
const DATABASE: &str = "agentscope";
const TABLE: &str = "agentscope_sessions";

/// The longest name of a database or table, in characters.
const IDENTIFIER_MAX: usize = 64;

/// The first statements on each connection.
const SETUP: [&str; 3] = [
    "SET NAMES utf8mb4",
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', SESSION autocommit = 1, SESSION innodb_lock_wait_timeout = 5",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
];

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
