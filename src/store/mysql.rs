//! Rows in MySQL or MariaDB, which many processes on many machines may use at once.
//!
//! Narrow items and bodies are two tables of InnoDB, clustered by the key. Reads are one statement each, and see one moment by
//! themselves; writes go in groups ([`combiner`](super::combiner)), each a transaction that locks the row of the counter first.
//! SQL is kept to what both engines understand. Start with `schema.rs` for the tables, then `read.rs`, `scan.rs` and `write.rs`;
//! `key.rs` tells how keys fit into an index.

use super::combiner::Combiner;
use super::server_url::shown;
use super::watch::Watches;
use super::{
    Batch, Item, ItemPart, LentRows, Namespace, NamespacePage, NamespacesOptions, Scan, ScanOptions, Store, StoreCapabilities,
    StoreDescription, StoreStats, Watch,
};
use crate::clock::Clock;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, Result};
use crate::ops::{Durability, Version};
use async_trait::async_trait;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

mod error;
mod key;
mod overlay;
mod plan;
mod pool;
mod read;
mod record;
mod scan;
mod schema;
mod sql;
mod url;
mod write;

use pool::{Pool, reading};
use read::Reader;
use scan::ScanRun;
use schema::ServerFacts;
use sql::Tables;
use write::Writer;

/// How often the namespaces that are watched are looked at for commits of other processes.
const WATCH_PAUSE: Duration = Duration::from_millis(250);

/// The most bytes of statements in one round trip, where packets are not smaller.
const TEXT_BYTES_MAX: u64 = 4 << 20;

/// How to open a [`MysqlStore`].
#[derive(Clone)]
#[non_exhaustive]
pub struct MysqlOptions {
    /// Where the server is: `mysql://USER:PASSWORD@HOST:PORT/DATABASE`, or `mariadb://…`. In its query, `prefix`,
    /// `connections_max` and `timeout` (in seconds) are those below; `require_ssl`, `verify_ca`, `verify_identity`, `compression` and the others are the
    /// client's (`mysql_async`). Of the options, what the URL says wins.
    pub url: String,
    /// What the names of the store's tables start with: letters, digits and `_`. Default `stratafs_`.
    pub prefix: String,
    /// Where the time comes from.
    pub clock: Clock,
    /// The most connections at once. Default 8.
    pub connections_max: usize,
    /// How long a connection may take to be made. Default 5 s.
    pub connect_timeout: Duration,
    /// How long a call waits for a connection that is free, and then for the server, before it is `unavailable`. Default 60 s.
    pub timeout: Duration,
}

impl MysqlOptions {
    /// Opens the store at a URL with defaults.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            prefix: "stratafs_".to_owned(),
            clock: Clock::system(),
            connections_max: 8,
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(60),
        }
    }

    /// Sets what the names of the store's tables start with.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets where the time comes from.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the most connections at once; at least one is used.
    #[must_use]
    pub fn with_connections_max(mut self, connections_max: usize) -> Self {
        self.connections_max = connections_max;
        self
    }

    /// Sets how long a connection may take to be made.
    #[must_use]
    pub fn with_connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.connect_timeout = connect_timeout;
        self
    }

    /// Sets how long a call waits for a connection that is free, and then for the server.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

impl fmt::Debug for MysqlOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlOptions")
            .field("url", &shown(&self.url))
            .field("prefix", &self.prefix)
            .field("connections_max", &self.connections_max)
            .field("connect_timeout", &self.connect_timeout)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// A store in MySQL 8.0 or MariaDB 10.6 and newer. Clones share it.
///
/// Round trips: one for a get, a read of several items, a list of namespaces and a page without a delimiter; two for a commit,
/// however many callers share it, and with bodies from 128 KiB on one more for each and one for what stands before them; of a page with a delimiter one where at most 256
/// rows lie in it and its groups, and else one or two more. Connections are made as they are needed and kept; a server that
/// closed one is asked again on another.
///
/// # Examples
/// ```no_run
/// use stratafs::store::{Batch, MysqlStore, Namespace, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> stratafs::Result<()> {
/// let store = MysqlStore::open("mysql://ada:secret@db.example/files").await?;
/// let notes = Namespace::new(["ada", "notes"])?;
/// store.commit(Batch::new().put(&notes, "today", "walk the dog")).await?;
/// assert_eq!(&store.get(&notes, "today").await?.expect("it was put").value[..], b"walk the dog");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MysqlStore {
    shared: Arc<Shared>,
}

struct Shared {
    reader: Reader,
    combiner: Combiner<Writer>,
    /// Removes what is over, beside the groups.
    sweeper: Arc<Writer>,
    watches: Arc<Watches>,
    capabilities: StoreCapabilities,
    clock: Clock,
    name: String,
}

impl MysqlStore {
    /// Returns what a store of this engine offers before a server was asked, with the packets and the durability that are usual.
    pub(crate) fn offers() -> StoreCapabilities {
        StoreCapabilities::new(Durability::Power).with_shared(true).with_value_bytes_max(Some(schema::USUAL_VALUE_BYTES_MAX))
    }

    /// Opens the store at a URL with defaults, and makes its tables where there are none.
    ///
    /// # Errors
    /// See [`MysqlStore::open_with`].
    pub async fn open(url: impl Into<String>) -> Result<Self> {
        Self::open_with(MysqlOptions::new(url)).await
    }

    /// Opens a store, and makes its tables where there are none. Of several processes that do so at once one makes them.
    ///
    /// Cost: a connection and two round trips.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a URL that cannot be, [`PermissionDenied`](ErrorKind::PermissionDenied)
    /// for a user that is refused, [`NotFound`](ErrorKind::NotFound) without the database, [`Unsupported`](ErrorKind::Unsupported)
    /// for a server that is too old or set up too narrow and for tables that a newer version wrote,
    /// [`Unavailable`](ErrorKind::Unavailable) without a server.
    pub async fn open_with(options: MysqlOptions) -> Result<Self> {
        // The provider of a process is chosen once; one that the program chose before stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let parsed = url::parse(&options.url)?;
        let prefix = parsed.prefix.map_or_else(|| url::checked_prefix(&options.prefix), Ok)?;
        let connections_max = parsed.connections_max.unwrap_or(options.connections_max).max(1);
        let tables = Tables::new(&prefix);
        let pool = Arc::new(Pool::new(parsed.opts, connections_max, options.connect_timeout, parsed.timeout.unwrap_or(options.timeout)));
        let opening = tokio::time::timeout(pool.timeout(), open_tables(&pool, &tables)).await;
        let facts = opening.unwrap_or_else(|_| Err(error::silent())).map_err(Error::without_effect)?;
        pool.set_wait_timeout(facts.wait_timeout);
        let text_bytes_max = usize::try_from(TEXT_BYTES_MAX.min(facts.packet_bytes / 2)).unwrap_or(usize::MAX);
        let watches = Arc::<Watches>::default();
        let writer = || Writer {
            pool: pool.clone(),
            tables: tables.clone(),
            clock: options.clock.clone(),
            watches: watches.clone(),
            text_bytes_max,
        };
        let shared = Shared {
            combiner: Combiner::new(writer()),
            sweeper: Arc::new(writer()),
            reader: Reader::new(pool.clone(), tables.clone(), text_bytes_max),
            capabilities: StoreCapabilities::new(facts.durability).with_shared(true).with_value_bytes_max(Some(facts.value_bytes_max)),
            watches: watches.clone(),
            clock: options.clock.clone(),
            name: shown(&options.url),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    fn now(&self) -> i64 {
        self.shared.clock.now().as_microsecond()
    }
}

async fn open_tables(pool: &Arc<Pool>, tables: &Tables) -> Result<ServerFacts> {
    let mut loan = pool.take().await?;
    let facts = schema::server_facts(loan.connection()).await?;
    schema::migrate(loan.connection(), tables).await?;
    loan.give_back();
    Ok(facts)
}

#[async_trait]
impl Store for MysqlStore {
    fn capabilities(&self) -> StoreCapabilities {
        self.shared.capabilities.clone()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        self.shared.reader.get(namespace, key, self.now()).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        self.shared.reader.get_part(namespace, key, &range, self.now()).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        self.shared.reader.get_many(namespace, keys, with_values, self.now()).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.shared.reader.scan(&ScanRun::new(namespace.clone(), options, self.now())).await
    }

    async fn lend(&self, _namespace: &Namespace) -> Result<Option<Arc<dyn LentRows>>> {
        Ok(None)
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.shared.reader.namespaces(&options, self.now()).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        batch.validate(&self.shared.capabilities)?;
        self.shared.combiner.commit(batch).await
    }

    async fn current_version(&self) -> Result<Version> {
        self.shared.reader.current_version().await
    }

    async fn sweep(&self, limit: usize) -> Result<usize> {
        // In a task, so that a caller who goes away leaves no transaction open.
        let sweeper = self.shared.sweeper.clone();
        tokio::spawn(async move { sweeper.sweep(limit).await }).await.map_err(|source| {
            Error::new(crate::error::ErrorKind::Internal, "a sweep of the store was broken off; sweep again").with_source(source)
        })?
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        let watch = self.shared.watches.watch(namespace);
        // What is committed by now is shown by the next read.
        self.shared.tell_of_others(std::slice::from_ref(namespace)).await?;
        let watch = watch.caught_up();
        let weak = Arc::downgrade(&self.shared);
        self.shared.watches.poll(WATCH_PAUSE, move || {
            let shared = weak.upgrade();
            async move {
                let Some(shared) = shared else { return Ok(false) };
                shared.tell_of_others(&shared.watches.watched()).await?;
                Ok(true)
            }
        });
        Ok(watch)
    }

    async fn describe(&self) -> Result<StoreDescription> {
        let facts: ServerFacts = reading!(self.shared.reader.pool, connection => schema::server_facts(connection))?;
        let description = StoreDescription::new(facts.engine, facts.durability).with_schema(schema::SCHEMA);
        Ok(facts.notices.into_iter().fold(description, StoreDescription::with_notice))
    }

    async fn stats(&self) -> Result<StoreStats> {
        self.shared.reader.stats(self.now()).await
    }

    async fn check(&self) -> Result<Vec<Error>> {
        self.shared.reader.check().await
    }
}

impl Shared {
    /// Tells those who watch of what was committed in these namespaces, by whatever process.
    async fn tell_of_others(&self, namespaces: &[Namespace]) -> Result<()> {
        for (namespace, version) in self.reader.changed(namespaces).await? {
            self.watches.tell(&namespace, version);
        }
        Ok(())
    }
}

impl fmt::Display for MysqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shared.name)
    }
}

impl fmt::Debug for MysqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MysqlStore").field(&self.shared.name).finish()
    }
}
