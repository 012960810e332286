//! Connections: made from a URL, encrypted as it says, and configured so that every statement is an index lookup and none waits forever.

use super::PostgresOptions;
use super::error::{failed, is_lost, is_refusal, no_connection, not_connected, silent};
use super::script::Script;
use super::tls::Encryption;
use deadpool_postgres::{ClientWrapper, Connect, Manager, ManagerConfig, Object, Pool, QueueMode, RecyclingMethod, Runtime};
use futures::future::BoxFuture;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_postgres::tls::NoTls;
use tokio_postgres::{Client, Config, Row};
use tokio_postgres_rustls::MakeRustlsConnect;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_store::server_url::take_parameters;

/// The time limit for making a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The most connections, unless the URL says otherwise.
const CONNECTIONS_MAX: usize = 8;

/// How long it takes to notice a peer that disappeared silently, both for sent data and while waiting.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// The condition that the server is a node of a Citus cluster.
pub(super) const IS_CITUS: &str = "EXISTS (SELECT 1 FROM pg_catalog.pg_extension WHERE extname = 'citus')";

/// The longest wait: the engine counts milliseconds in 31 bits.
pub(super) const TIMEOUT_MAX: Duration = Duration::from_secs(2_000_000);

/// The configuration from a URL and the options.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) schema: String,
    /// Whether neither names the schema.
    pub(super) is_default: bool,
    pub(super) connections_max: usize,
    connector: Connector,
}

impl Target {
    /// Returns how many of the connections are for writes.
    pub(super) fn writers_max(&self) -> usize {
        self.connections_max / 2
    }

    /// Parses the URL.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for unknown or invalid parameters.
    pub(super) fn of(options: &PostgresOptions) -> Result<Self> {
        let names = ["schema", "connections_max", "sslmode", "sslrootcert"];
        let (url, [schema, connections_max, mode, root]) = take_parameters(&options.url, names)?;
        let named = options.schema.clone().or(schema);
        let is_default = named.is_none();
        let schema = named.unwrap_or_else(|| "treehold".to_owned());
        // PostgreSQL truncates longer names, so two of them could become the same.
        if schema.is_empty() || schema.len() > 63 || schema.contains('\0') {
            return Err(Error::invalid_argument("the `schema` is empty or over 63 bytes; choose another name"));
        }
        let connections_max = match (options.connections_max, connections_max) {
            (Some(max), _) => max,
            (None, None) => CONNECTIONS_MAX,
            (None, Some(text)) => {
                text.parse().map_err(|_| Error::invalid_argument("`connections_max` is not a number; write one from 2 on"))?
            }
        };
        if connections_max < 2 {
            return Err(Error::invalid_argument(
                "`connections_max` is under 2; half of the connections are for writes, so allow 2 or more",
            ));
        }
        let mut config = Config::from_str(&url).map_err(malformed)?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(Error::invalid_argument("the URL of the database names no host; write `postgres://USER@HOST/DATABASE`"));
        }
        let encryption = mode.as_deref().map_or(Ok(Encryption::Prefer), Encryption::parse)?;
        let tls = match encryption {
            Encryption::Disable => None,
            _ => Some(encryption.connector(root.as_deref().map(Path::new))?),
        };
        config.ssl_mode(encryption.mode()).keepalives(true);
        config.keepalives_idle(SILENCE_MAX / 2).keepalives_interval(SILENCE_MAX / 6).keepalives_retries(3).tcp_user_timeout(SILENCE_MAX);
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_application_name().is_none() {
            config.application_name("treehold");
        }
        let settings = settings(options.timeout);
        Ok(Self { schema, is_default, connections_max, connector: Connector { config, tls, settings } })
    }
}

fn malformed(error: tokio_postgres::Error) -> Error {
    let message = match std::error::Error::source(&error).map(ToString::to_string) {
        // These name the parameter but not its value.
        Some(fault) if fault.starts_with("unknown option") || fault.starts_with("invalid value for option") => {
            format!("the URL of the database has an {fault}; correct it").replacen("an invalid", "an invalid", 1)
        }
        _ => "the URL of the database cannot be read; write `postgres://USER@HOST/DATABASE` and escape what is special by `%XX`".to_owned(),
    };
    Error::invalid_argument(message).with_source(error)
}

/// Returns the statement that configures a session, limited to the settings that the engine knows, so that it never fails.
///
/// Statements keep their first plan, and for an empty table the planner prefers to read all of it. So such plans are ruled out, and so is
/// JIT compilation, which overestimated costs would trigger. The server ends a transaction that this program left open because it was
/// interrupted.
///
/// A Citus cluster plans a statement by its values, which name the node.
///
/// The server waits for another writer's lock half as long as the store waits for the server. So the server gives up first, and the waiting
/// statement is known to have had no effect.
fn settings(timeout: Duration) -> String {
    let milliseconds = |duration: Duration| duration.min(TIMEOUT_MAX).as_millis().max(1);
    let (idle, lock) = (milliseconds(timeout), milliseconds(timeout / 2));
    format!(
        "SELECT set_config(s.name, s.setting, false)
         FROM (VALUES ('default_transaction_isolation', 'read committed'), ('client_encoding', 'UTF8'), ('bytea_output', 'hex'),
                      ('plan_cache_mode', CASE WHEN {IS_CITUS} THEN 'force_custom_plan' ELSE 'force_generic_plan' END),
                      ('jit', 'off'), ('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'),
                      ('enable_hashjoin', 'off'), ('enable_mergejoin', 'off'), ('enable_material', 'off'),
                      ('lock_timeout', '{lock}'), ('idle_in_transaction_session_timeout', '{idle}')) AS s(name, setting)
         JOIN pg_catalog.pg_settings p ON p.name = s.name"
    )
}

/// Makes connections.
#[derive(Clone)]
struct Connector {
    config: Config,
    tls: Option<MakeRustlsConnect>,
    settings: String,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("encrypts", &self.tls.is_some()).finish_non_exhaustive()
    }
}

impl Connector {
    async fn connect(self) -> Result<(Client, JoinHandle<()>), tokio_postgres::Error> {
        let (client, driver) = match self.tls {
            Some(tls) => {
                let (client, connection) = self.config.connect(tls).await?;
                (client, tokio::spawn(drive(connection)))
            }
            None => {
                let (client, connection) = self.config.connect(NoTls).await?;
                (client, tokio::spawn(drive(connection)))
            }
        };
        match client.simple_query(&self.settings).await {
            // A session without these settings is sometimes slower, but correct.
            Err(error) if is_lost(&error) => Err(error),
            _ => Ok((client, driver)),
        }
    }
}

async fn drive(connection: impl Future<Output = Result<(), tokio_postgres::Error>>) {
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection to a database ended");
    }
}

impl Connect for Connector {
    fn connect(&self, _: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), tokio_postgres::Error>> {
        Box::pin(self.clone().connect())
    }
}

/// The connections of a store: a pool for reads, and a factory for those that write.
#[derive(Debug, Clone)]
pub(super) struct Connections {
    pool: Pool,
    connector: Connector,
    timeout: Duration,
}

impl Connections {
    /// Creates an empty pool.
    pub(super) fn new(target: &Target, timeout: Duration) -> Result<Self> {
        let config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_connect(Config::new(), target.connector.clone(), config);
        let pool = Pool::builder(manager)
            .max_size(target.connections_max - target.writers_max())
            // The most recently used connection has its plans and pages cached.
            .queue_mode(QueueMode::Lifo)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(timeout))
            .create_timeout(Some(timeout.min(CONNECT_TIMEOUT)))
            .build()
            .map_err(|source| Error::new(ErrorKind::Internal, "the pool of connections cannot be made").with_source(source))?;
        Ok(Self { pool, connector: target.connector.clone(), timeout })
    }

    /// Makes a connection outside the pool.
    ///
    /// # Errors
    /// The errors of an unreachable or refusing server, without effect.
    pub(super) async fn make(&self) -> Result<ClientWrapper> {
        match tokio::time::timeout(self.timeout.min(CONNECT_TIMEOUT), self.connector.clone().connect()).await {
            Ok(Ok((client, driver))) => Ok(ClientWrapper::new(client, driver)),
            Ok(Err(error)) => Err(not_connected(error)),
            Err(_) => Err(silent().without_effect()),
        }
    }

    /// Runs a read-only statement, and repeats it on a new connection if the first one was broken, as after a restart of the server.
    ///
    /// # Errors
    /// The errors of the server; [`Unavailable`](ErrorKind::Unavailable) when it does not answer in time.
    pub(super) async fn read(&self, script: &Script<'_>) -> Result<Vec<Row>> {
        self.read_within(self.timeout, script).await
    }

    /// Runs a read-only statement as [`read`](Self::read) does, with a separate time limit for statements that scan the whole store.
    pub(super) async fn read_within(&self, timeout: Duration, script: &Script<'_>) -> Result<Vec<Row>> {
        let connection = self.pool.get().await.map_err(no_connection)?;
        match attempt(connection, timeout, script).await? {
            Err(error) if is_lost(&error) => self.pool.retain(|_, _| false),
            done => return done.map_err(failed),
        };
        let connection = self.pool.get().await.map_err(no_connection)?;
        attempt(connection, timeout, script).await?.map_err(failed)
    }

    /// Runs a statement that changes rows in the transaction of one that locks a row, unless that finds none.
    ///
    /// # Errors
    /// As for reads.
    pub(super) async fn write_locked(&self, lock: &Script<'_>, script: &Script<'_>) -> Result<()> {
        // Of its own, so that an interrupted transaction ends with it.
        let connection = self.make().await?;
        match tokio::time::timeout(self.timeout, locked(&connection, lock, script)).await {
            Ok(done) => done.map_err(failed),
            Err(_) => Err(silent()),
        }
    }

    /// Runs a statement that changes rows, once.
    ///
    /// # Errors
    /// As for reads; with unknown effect if the answer is lost.
    pub(super) async fn write(&self, script: &Script<'_>) -> Result<Vec<Row>> {
        let connection = self.pool.get().await.map_err(no_connection)?;
        let written = attempt(connection, self.timeout, script).await.map_err(Error::with_unknown_effect)?;
        written.map_err(|error| if is_refusal(&error) { failed(error).without_effect() } else { failed(error).with_unknown_effect() })
    }
}

/// Runs a statement. A broken or unresponsive connection does not return to the pool.
async fn attempt(connection: Object, timeout: Duration, script: &Script<'_>) -> Result<Result<Vec<Row>, tokio_postgres::Error>> {
    let done = match tokio::time::timeout(timeout, run(&connection, script)).await {
        Ok(done) => done,
        Err(_) => {
            drop(Object::take(connection));
            return Err(silent());
        }
    };
    if done.as_ref().is_err_and(is_lost) {
        drop(Object::take(connection));
    }
    Ok(done)
}

async fn locked(connection: &ClientWrapper, lock: &Script<'_>, script: &Script<'_>) -> Result<(), tokio_postgres::Error> {
    connection.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE").await?;
    if !run(connection, lock).await?.is_empty() {
        run(connection, script).await?;
    }
    connection.batch_execute("COMMIT").await
}

/// Runs a statement, preparing it if it is new to the connection.
pub(super) async fn run(connection: &ClientWrapper, script: &Script<'_>) -> Result<Vec<Row>, tokio_postgres::Error> {
    let statement = connection.prepare_cached(&script.sql).await?;
    connection.query(&statement, &script.parameters()).await
}
