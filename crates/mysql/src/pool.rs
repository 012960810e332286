//! The connection pool: limits, session setup and reuse.
//!
//! A connection returns to the pool only after its work is done and no transaction is open. One that is dropped
//! instead, after an error or because the caller went away, is closed, and the server rolls back its open transaction.
//! A connection that was opened in another runtime is not reused, because nobody may be driving it any more.

use super::error::{Fault, is_deadlock, silent};
use mysql_async::prelude::{AsQuery, Queryable};
use mysql_async::{Conn, Opts, Row};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Id};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use treehold_core::error::{Error, ErrorKind, Result};

/// The first statements on each connection.
///
/// Single-statement reads see one moment by themselves. Writers are serialized by locking one row first and must see
/// all earlier commits, so the isolation level is `READ COMMITTED`. Waits for locks, including metadata locks of schema
/// changes, are bounded by the time a group may take. The character set of statements is binary, because they contain
/// raw bodies: with a character set the server took longer to scan them than to write them.
const SETUP: &str = "SET NAMES utf8mb4; SET SESSION character_set_client = binary; \
    SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', SESSION autocommit = 1, \
    SESSION innodb_lock_wait_timeout = 5, SESSION lock_wait_timeout = 10, \
    SESSION sql_safe_updates = 0, SESSION sql_select_limit = DEFAULT, SESSION max_sort_length = 4096; \
    SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; SHOW VARIABLES LIKE 'wsrep\\_on'";

/// The statements on a connection to a node of a Galera cluster, after [`SETUP`].
///
/// A node acknowledges a commit before the other nodes have applied it. With `wsrep_sync_wait`, each read and each beginning of a
/// transaction waits until its node has applied all commits that were acknowledged before. A node outside the cluster serves no reads.
const SETUP_NODE: &str = "SET SESSION wsrep_sync_wait = @@SESSION.wsrep_sync_wait | 1, SESSION wsrep_dirty_reads = OFF; ";

/// Ends a transaction without effect. Before, the connection may have turned `autocommit` off.
pub(super) const ROLLBACK: &str = "ROLLBACK; SET SESSION autocommit = 1";

/// Returns the number of the cluster's membership, which grows when a node joins or leaves.
const MEMBERSHIP: &str = "SHOW STATUS WHERE Variable_name IN ('wsrep_cluster_conf_id', 'wsrep_cluster_status')";

/// Connections idle for this long are closed, unless the server closes them sooner.
const IDLE_MAX: Duration = Duration::from_secs(300);

/// The connections to one server.
pub(super) struct Pool {
    opts: Opts,
    connect_timeout: Duration,
    timeout: Duration,
    idle: Mutex<Vec<Idle>>,
    places: Arc<Semaphore>,
    idle_max: Mutex<Duration>,
}

/// A connection waiting to be reused.
struct Idle {
    connection: Connection,
    runtime: Id,
    since: Instant,
}

/// A connection with its session set up.
pub(super) struct Connection {
    pub(super) conn: Conn,
    /// Whether the statements that skip over groups are prepared.
    pub(super) has_steps: bool,
    /// Whether this is not reused.
    pub(super) is_spent: bool,
    /// The membership of the Galera cluster when this was opened; `None` for a server of its own.
    membership: Option<Membership>,
}

/// The status variables that [`MEMBERSHIP`] returns.
type Membership = Vec<(String, String)>;

impl Connection {
    /// Sets the session up. One round trip, and one more on a node of a Galera cluster.
    async fn set_up(conn: Conn) -> Result<Self, Fault> {
        let mut connection = Self { conn, has_steps: false, is_spent: false, membership: None };
        let variable = connection.run(SETUP).await?.pop().and_then(|mut rows| rows.pop());
        let is_on = variable.map(|mut row| column::<String>(&mut row, 1)).transpose()?;
        if is_on.is_some_and(|value| value.eq_ignore_ascii_case("on")) {
            connection.membership = Some(connection.ask_membership(SETUP_NODE).await?);
        }
        Ok(connection)
    }

    /// Returns whether the server is a node of a Galera cluster.
    pub(super) fn is_of_cluster(&self) -> bool {
        self.membership.is_some()
    }

    /// Rolls back on a node of a Galera cluster. Returns whether the cluster has had the same members since the connection was opened.
    pub(super) async fn roll_back_in_cluster(&mut self) -> Result<bool, Fault> {
        let rolling_back = format!("{ROLLBACK}; ");
        let membership = match self.ask_membership(&rolling_back).await {
            // A deadlock that was not reported yet.
            Err(Fault::Engine(error)) if is_deadlock(&error) => self.ask_membership(&rolling_back).await?,
            asked => asked?,
        };
        Ok(self.membership.as_ref() == Some(&membership))
    }

    async fn ask_membership(&mut self, before: &str) -> Result<Membership, Fault> {
        let rows = self.run(format!("{before}{MEMBERSHIP}")).await?.pop().unwrap_or_default();
        rows.into_iter().map(|mut row| Ok((column(&mut row, 0)?, column(&mut row, 1)?))).collect()
    }

    /// Runs statements in one round trip. Returns the rows of each, which are empty for a statement without a result.
    pub(super) async fn run(&mut self, sql: impl AsQuery) -> Result<Vec<Vec<Row>>, mysql_async::Error> {
        let mut result = self.conn.query_iter(sql).await?;
        let mut sets = Vec::new();
        while !result.is_empty() {
            sets.push(result.collect().await?);
        }
        // Errors of the last statement surface here.
        result.drop_result().await?;
        Ok(sets)
    }
}

impl Pool {
    /// Makes a pool without connections.
    pub(super) fn new(opts: Opts, connections_max: usize, connect_timeout: Duration, timeout: Duration) -> Self {
        Self {
            opts,
            connect_timeout,
            timeout,
            idle: Mutex::default(),
            places: Arc::new(Semaphore::new(connections_max)),
            idle_max: Mutex::new(IDLE_MAX),
        }
    }

    /// Returns how long an answer may take. A connection that exceeds it is not reused.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sets after what idle time the server closes connections; the pool closes them well before.
    pub(super) fn set_wait_timeout(&self, wait_timeout: Duration) {
        *self.idle_max.lock() = IDLE_MAX.min(wait_timeout / 2);
    }

    /// Borrows a connection, an idle one if possible. While all are borrowed it waits, at most as long as an answer may
    /// take.
    pub(super) async fn take(self: &Arc<Self>) -> Result<Loan> {
        let waiting = tokio::time::timeout(self.timeout, self.places.clone().acquire_owned()).await;
        let place = waiting.map_err(|_| silent().without_effect())?.map_err(|source| {
            Error::new(ErrorKind::Internal, "the store's connection pool is closed; open the store again").with_source(source)
        })?;
        let connection = match self.take_idle() {
            Some(connection) => connection,
            None => self.connect().await.map_err(Error::without_effect)?,
        };
        Ok(Loan { connection: Some(connection), pool: self.clone(), _place: place })
    }

    /// Closes idle connections, because the server they were connected to is gone.
    pub(super) fn clear(&self) {
        let idle = std::mem::take(&mut *self.idle.lock());
        drop(idle);
    }

    fn take_idle(&self) -> Option<Connection> {
        let runtime = Handle::current().id();
        let idle_max = *self.idle_max.lock();
        let mut closed = Vec::new();
        let mut idle = self.idle.lock();
        let found = loop {
            let Some(last) = idle.pop() else { break None };
            if last.runtime == runtime && last.since.elapsed() < idle_max {
                break Some(last.connection);
            }
            closed.push(last);
        };
        drop(idle);
        found
    }

    async fn connect(&self) -> Result<Connection> {
        let connecting = async {
            let conn = Conn::new(self.opts.clone()).await?;
            Connection::set_up(conn).await
        };
        match tokio::time::timeout(self.connect_timeout, connecting).await {
            Ok(connected) => connected.map_err(Error::from),
            Err(source) => Err(silent().with_source(source)),
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("idle", &self.idle.lock().len()).finish_non_exhaustive()
    }
}

/// A borrowed connection.
pub(super) struct Loan {
    connection: Option<Connection>,
    pool: Arc<Pool>,
    _place: OwnedSemaphorePermit,
}

impl Loan {
    /// Returns the connection.
    pub(super) fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("the connection is taken only when the loan ends")
    }

    /// Returns the connection to the pool. Its work must be done and no transaction open.
    pub(super) fn give_back(mut self) {
        if let Some(connection) = self.connection.take().filter(|connection| !connection.is_spent) {
            self.pool.idle.lock().push(Idle { connection, runtime: Handle::current().id(), since: Instant::now() });
        }
    }
}

/// Runs a read on a pooled connection, and retries once on a new one if the server had closed it, or if its node has left its cluster:
/// `reading!(pool, connection => expression)`.
macro_rules! reading {
    ($pool:expr, $connection:ident => $read:expr) => {{
        let mut is_again = false;
        loop {
            let mut loan = $pool.take().await?;
            let $connection = loan.connection();
            let read: Result<_, $crate::error::Fault> =
                tokio::time::timeout($pool.timeout(), $read).await.unwrap_or(Err($crate::error::Fault::Silent));
            match read {
                Ok(found) => {
                    loan.give_back();
                    break Ok(found);
                }
                Err(fault) if fault.is_passing() && !is_again => {
                    is_again = true;
                    $pool.clear();
                }
                Err(fault) => break Err(treehold_core::error::Error::from(fault)),
            }
        }
    }};
}
pub(super) use reading;

/// Takes one column out of a row.
pub(super) fn column<T: mysql_async::prelude::FromValue>(row: &mut Row, index: usize) -> Result<T, Fault> {
    row.take_opt::<T, usize>(index)
        .ok_or_else(|| Fault::Stored(super::error::damaged("a row is missing a column")))?
        .map_err(|error| Fault::Engine(mysql_async::DriverError::FromValue { value: error.0 }.into()))
}
