//! Connections: how many, how they are set up, and when one is used again.
//!
//! A connection is given back only when what was asked of it is done and no transaction is open; one that is dropped instead,
//! because of an error or as its caller is gone, is closed, and the server undoes what was open. One that was made in another
//! runtime is not used, as nobody may drive it any more.

use super::error::{Fault, failed, silent};
use crate::error::{Error, ErrorKind, Result};
use mysql_async::prelude::{AsQuery, Queryable};
use mysql_async::{Conn, Opts, Row};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Id};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What each connection is told first.
///
/// Reads of one statement see one moment by themselves. Writers are ordered by a row that each locks first, and must see what
/// those before them committed, so the isolation is `READ COMMITTED`. A lock is waited for as long as a group takes at most, also that of a
/// table which somebody changes. Statements are read as bytes: contents stand in them as they are, and to look for characters in
/// those took the server longer than to write them.
const SETUP: &str = "SET NAMES utf8mb4; SET SESSION character_set_client = binary; \
    SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', SESSION autocommit = 1, \
    SESSION innodb_lock_wait_timeout = 5, SESSION lock_wait_timeout = 10, \
    SESSION sql_safe_updates = 0, SESSION sql_select_limit = DEFAULT, SESSION max_sort_length = 4096; \
    SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

/// A connection that nobody used for this long is closed, where the server does not close it sooner.
const IDLE_MAX: Duration = Duration::from_secs(300);

/// Connections to one server.
pub(super) struct Pool {
    opts: Opts,
    connect_timeout: Duration,
    timeout: Duration,
    idle: Mutex<Vec<Idle>>,
    places: Arc<Semaphore>,
    idle_max: Mutex<Duration>,
}

/// A connection that waits for its next use.
struct Idle {
    connection: Connection,
    runtime: Id,
    since: Instant,
}

/// A connection that is set up.
pub(super) struct Connection {
    pub(super) conn: Conn,
    /// The statements that pass over groups are prepared.
    pub(super) has_steps: bool,
}

impl Connection {
    /// Runs statements in one round trip; returns the rows of each, none for one that has no rows.
    pub(super) async fn run(&mut self, sql: impl AsQuery) -> Result<Vec<Vec<Row>>, mysql_async::Error> {
        let mut result = self.conn.query_iter(sql).await?;
        let mut sets = Vec::new();
        while !result.is_empty() {
            sets.push(result.collect().await?);
        }
        // What the last statement met comes to light here.
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

    /// Returns how long an answer may take. A connection on which none came is not given back.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Tells when the server closes a connection that nobody uses; it is left well before.
    pub(super) fn set_wait_timeout(&self, wait_timeout: Duration) {
        *self.idle_max.lock() = IDLE_MAX.min(wait_timeout / 2);
    }

    /// Lends a connection, a used one where there is one; waits while as many as may be are lent, but not
    /// longer than an answer may take.
    pub(super) async fn take(self: &Arc<Self>) -> Result<Loan> {
        let waiting = tokio::time::timeout(self.timeout, self.places.clone().acquire_owned()).await;
        let place = waiting.map_err(|_| silent().without_effect())?.map_err(|source| {
            Error::new(ErrorKind::Internal, "the store's connections are closed; open the store again").with_source(source)
        })?;
        let connection = match self.take_idle() {
            Some(connection) => connection,
            None => self.connect().await.map_err(Error::without_effect)?,
        };
        Ok(Loan { connection: Some(connection), pool: self.clone(), _place: place })
    }

    /// Closes what waits: the server that it was connected to is gone.
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
            let mut conn = Conn::new(self.opts.clone()).await?;
            conn.query_drop(SETUP).await?;
            Ok(Connection { conn, has_steps: false })
        };
        match tokio::time::timeout(self.connect_timeout, connecting).await {
            Ok(connected) => connected.map_err(failed),
            Err(source) => Err(silent().with_source(source)),
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("idle", &self.idle.lock().len()).finish_non_exhaustive()
    }
}

/// A connection on loan.
pub(super) struct Loan {
    connection: Option<Connection>,
    pool: Arc<Pool>,
    _place: OwnedSemaphorePermit,
}

impl Loan {
    /// Returns the connection.
    pub(super) fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("it is taken when the loan is given back")
    }

    /// Gives the connection back: what was asked of it is done, and no transaction is open.
    pub(super) fn give_back(mut self) {
        if let Some(connection) = self.connection.take() {
            self.pool.idle.lock().push(Idle { connection, runtime: Handle::current().id(), since: Instant::now() });
        }
    }
}

/// Reads on a connection, and once more on a new one where the server closed that: `reading!(pool, connection => expression)`.
macro_rules! reading {
    ($pool:expr, $connection:ident => $read:expr) => {{
        let mut is_again = false;
        loop {
            let mut loan = $pool.take().await?;
            let $connection = loan.connection();
            let read: Result<_, $crate::store::mysql::error::Fault> =
                tokio::time::timeout($pool.timeout(), $read).await.unwrap_or(Err($crate::store::mysql::error::Fault::Silent));
            match read {
                Ok(found) => {
                    loan.give_back();
                    break Ok(found);
                }
                Err(fault) if fault.is_lost() && !is_again => {
                    is_again = true;
                    $pool.clear();
                }
                Err(fault) => break Err($crate::error::Error::from(fault)),
            }
        }
    }};
}
pub(super) use reading;

/// Takes one column of a row.
pub(super) fn column<T: mysql_async::prelude::FromValue>(row: &mut Row, index: usize) -> Result<T, Fault> {
    row.take_opt::<T, usize>(index)
        .ok_or_else(|| Fault::Stored(super::error::damaged("a row lacks a column")))?
        .map_err(|error| Fault::Engine(mysql_async::DriverError::FromValue { value: error.0 }.into()))
}
