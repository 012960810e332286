//! Rows in MySQL or MariaDB, shared by processes on any number of machines.
//!
//! Item metadata and bodies live in two InnoDB tables, clustered by key. Each read is one statement and so sees one
//! moment. Writes are grouped ([`combiner`](treehold_store::combiner)); each group is a transaction that first locks the counter
//! row. The SQL is limited to what both engines understand. Start with `schema.rs` for the tables, then read `read.rs`,
//! `scan.rs` and `write.rs`. `key.rs` explains how long keys fit into an index.

use async_trait::async_trait;
use bytes::Bytes;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::clock::Clock;
#[cfg(doc)]
use treehold_core::error::ErrorKind;
use treehold_core::error::{Error, Result};
use treehold_core::ops::{Durability, Version};
use treehold_store::combiner::Combiner;
use treehold_store::server_url::shown;
use treehold_store::watch::Watches;
use treehold_store::{
    Batch, FilteredScan, Item, ItemPart, MigrateOptions, MigrateProgress, MigrateReport, Namespace, NamespacePage, NamespacesOptions,
    Partition, Scan, ScanOptions, Store, StoreCapabilities, StoreDescription, StoreExtensions, StoreMaintenance, StoreStats, Watch,
};

mod decide;
mod engine;
mod error;
mod key;
mod migrate;
mod overlay;
mod plan;
mod pool;
mod read;
mod record;
mod scan;
mod schema;
mod sql;
mod sweep;
mod url;
mod write;

use pool::{Pool, reading};
use read::Reader;
use scan::ScanRun;
use schema::ServerFacts;
use sql::Tables;
use write::Writer;

pub use engine::MysqlEngine;

/// How often watched namespaces are polled for commits of other processes.
const WATCH_PAUSE: Duration = Duration::from_millis(250);

/// The most bytes of statements per round trip, if the server accepts packets of that size.
const TEXT_BYTES_MAX: u64 = 4 << 20;

/// The default prefix of table names.
const PREFIX: &str = "treehold_";

/// Options for opening a [`MysqlStore`].
#[derive(Clone)]
#[non_exhaustive]
pub struct MysqlOptions {
    /// The server's URL: `mysql://USER:PASSWORD@HOST:PORT/DATABASE`, or `mariadb://…`. The query parameters `prefix`,
    /// `connections_max` and `timeout` (in seconds) override the options below; `require_ssl`, `verify_ca`,
    /// `verify_identity`, `compression` and others go to the client, `mysql_async`.
    pub url: String,
    /// The prefix of the store's table names: letters, digits and `_`. Default `treehold_`.
    pub prefix: String,
    /// The clock for creation, modification and expiry times.
    pub clock: Clock,
    /// The most concurrent connections, at most half of them for writes: as many partitions are written at once. Default 8.
    pub connections_max: usize,
    /// The time limit for establishing a connection. Default 5 s.
    pub connect_timeout: Duration,
    /// How long a call waits for a free connection, and then for the server's answer, before it fails as `unavailable`.
    /// Default 60 s.
    pub timeout: Duration,
}

impl MysqlOptions {
    /// Uses the defaults for the store at `url`.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            prefix: PREFIX.to_owned(),
            clock: Clock::system(),
            connections_max: 8,
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(60),
        }
    }

    /// Sets the prefix of the store's table names.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the clock for creation, modification and expiry times.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the most concurrent connections, at least 1.
    #[must_use]
    pub fn with_connections_max(mut self, connections_max: usize) -> Self {
        self.connections_max = connections_max;
        self
    }

    /// Sets the time limit for establishing a connection.
    #[must_use]
    pub fn with_connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.connect_timeout = connect_timeout;
        self
    }

    /// Sets how long a call waits for a free connection, and then for the server's answer.
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

/// A store in MySQL 8.0, MariaDB 10.6 or newer, alone or in a Galera cluster. Clones share the store.
///
/// Round trips: one for a get, a read of several items, a list of namespaces, and a page without a delimiter. Two
/// for a commit, however many callers in its partition share it (four on a node of a Galera cluster), plus one per body
/// of at least 128 KiB and one for the statements before it, and four for the first commit to a partition. A page with a
/// delimiter takes one if at most 256 rows lie on it and in its groups, and one or two more otherwise. Connections are
/// opened on demand and reused. A read whose connection was closed by the server is repeated on another one.
///
/// # Examples
/// ```no_run
/// use treehold_mysql::MysqlStore;
/// use treehold_store::{Batch, Namespace, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
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
    /// Sweeps expired rows, independently of the groups.
    sweeper: Arc<Writer>,
    watches: Arc<Watches>,
    capabilities: StoreCapabilities,
    clock: Clock,
    name: String,
}

impl MysqlStore {
    /// Returns the capabilities of this engine as known before a server is contacted: those of usual packet sizes and
    /// durability.
    pub fn offers() -> StoreCapabilities {
        StoreCapabilities::new(Durability::Power)
            .with_sweeps(true)
            .with_shared(true)
            .with_value_bytes_max(Some(schema::USUAL_VALUE_BYTES_MAX))
    }

    /// Opens the store at a URL with default options, and creates its tables if missing.
    ///
    /// # Errors
    /// See [`MysqlStore::open_with`].
    pub async fn open(url: impl Into<String>) -> Result<Self> {
        Self::open_with(MysqlOptions::new(url)).await
    }

    /// Opens a store, and creates its tables if missing. If several processes do so at once, one of them creates the
    /// tables.
    ///
    /// Cost: one connection and two round trips.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an invalid URL.
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) if the server rejects the user.
    /// [`NotFound`](ErrorKind::NotFound) if the database does not exist. [`Unsupported`](ErrorKind::Unsupported) for a
    /// server that is too old or whose packets are too small, and for tables of a newer version.
    /// [`Unavailable`](ErrorKind::Unavailable) if the server cannot be reached.
    pub async fn open_with(options: MysqlOptions) -> Result<Self> {
        // The crypto provider is set once per process; keep the one that the program chose, if any.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let parsed = url::parse(&options.url)?;
        let (prefix, is_default) = prefix_of(parsed.prefix, &options)?;
        let connections_max = parsed.connections_max.unwrap_or(options.connections_max).max(1);
        let tables = Tables::new(&prefix);
        let pool = Arc::new(Pool::new(parsed.opts, connections_max, options.connect_timeout, parsed.timeout.unwrap_or(options.timeout)));
        let opening = tokio::time::timeout(pool.timeout(), open_tables(&pool, &tables, is_default)).await;
        let facts = opening.unwrap_or_else(|_| Err(error::silent())).map_err(Error::without_effect)?;
        pool.set_wait_timeout(facts.wait_timeout);
        let text_bytes_max = usize::try_from(TEXT_BYTES_MAX.min(facts.packet_bytes / 2)).unwrap_or(usize::MAX);
        let watches = Arc::<Watches>::default();
        let writer = Arc::new(Writer {
            pool: pool.clone(),
            tables: tables.clone(),
            clock: options.clock.clone(),
            watches: watches.clone(),
            text_bytes_max,
        });
        let shared = Shared {
            combiner: Combiner::new(writer.clone(), (connections_max / 2).max(1)),
            sweeper: writer,
            reader: Reader::new(pool.clone(), tables.clone(), text_bytes_max),
            capabilities: StoreCapabilities::new(facts.durability)
                .with_sweeps(true)
                .with_shared(true)
                .with_value_bytes_max(Some(facts.value_bytes_max)),
            watches: watches.clone(),
            clock: options.clock.clone(),
            name: shown(&options.url),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns whether the database holds a store, of the present or a former layout. Changes nothing.
    ///
    /// Cost: one connection and up to two round trips.
    ///
    /// # Errors
    /// Those of [`MysqlStore::open_with`].
    pub async fn exists(options: &MysqlOptions) -> Result<bool> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let parsed = url::parse(&options.url)?;
        let (prefix, is_default) = prefix_of(parsed.prefix, options)?;
        let pool = Arc::new(Pool::new(parsed.opts, 1, options.connect_timeout, parsed.timeout.unwrap_or(options.timeout)));
        let looked = tokio::time::timeout(pool.timeout(), has_tables(&pool, &Tables::new(&prefix), is_default)).await;
        looked.unwrap_or_else(|_| Err(error::silent()))
    }

    /// Migrates a store of a former layout to the present one, 2,000 rows at a time. An interrupted migration resumes on the next
    /// call; until then no version opens the store. If neither the URL nor the options name a prefix and the store has the former
    /// default, `stratafs_`, its tables are renamed. `tell` receives the progress.
    ///
    /// Servers of a former version that still run fail on every write afterwards. Cost: one update for every row that moves and one
    /// for its body. The user needs `ALTER` and `DROP` on the old tables and `CREATE` and
    /// `INSERT` on the new ones, as for every `RENAME TABLE`.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if there is no store. [`Unavailable`](ErrorKind::Unavailable) while others hold locks on its
    /// tables. [`Conflict`](ErrorKind::Conflict) for a store with an unfinished copy. [`AlreadyExists`](ErrorKind::AlreadyExists) if it
    /// has rows below the reserved root. Otherwise as [`MysqlStore::open_with`].
    pub async fn migrate(
        options: &MysqlOptions,
        how: &MigrateOptions,
        tell: &mut (dyn FnMut(MigrateProgress) + Send),
    ) -> Result<MigrateReport> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let parsed = url::parse(&options.url)?;
        let (prefix, is_default) = prefix_of(parsed.prefix, options)?;
        let pool = Arc::new(Pool::new(parsed.opts, 1, options.connect_timeout, options.timeout));
        let mut loan = pool.take().await?;
        migrate::migrate(loan.connection(), &Tables::new(&prefix), is_default, how, tell).await
    }

    fn now(&self) -> i64 {
        self.shared.clock.now().as_microsecond()
    }
}

/// Returns the prefix of the tables, and whether it is the default because neither the URL nor the options name one.
fn prefix_of(named: Option<String>, options: &MysqlOptions) -> Result<(String, bool)> {
    let is_default = named.is_none() && options.prefix == PREFIX;
    Ok((named.map_or_else(|| url::checked_prefix(&options.prefix), Ok)?, is_default))
}

async fn has_tables(pool: &Arc<Pool>, tables: &Tables, is_default: bool) -> Result<bool> {
    let mut loan = pool.take().await?;
    let exists = schema::exists(loan.connection(), tables, is_default).await?;
    loan.give_back();
    Ok(exists)
}

async fn open_tables(pool: &Arc<Pool>, tables: &Tables, is_default: bool) -> Result<ServerFacts> {
    let mut loan = pool.take().await?;
    let facts = schema::server_facts(loan.connection()).await?;
    schema::migrate(loan.connection(), tables, is_default).await?;
    loan.give_back();
    Ok(facts)
}

#[async_trait]
impl Store for MysqlStore {
    fn capabilities(&self) -> StoreCapabilities {
        self.shared.capabilities.clone()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        StoreExtensions::new().with_maintenance(self).with_filtered_scan(self)
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

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.shared.reader.namespaces(&options, self.now()).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        batch.validate(&self.shared.capabilities)?;
        self.shared.combiner.commit(batch).await
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.shared.reader.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        let look = |shared: Arc<Shared>| async move { shared.announce_others(&shared.watches.namespaces()).await };
        self.shared.watches.watch_by_polling(namespace, &self.shared, WATCH_PAUSE, look).await
    }
}

#[async_trait]
impl FilteredScan for MysqlStore {
    /// Leaves out bodies of at least 16 KiB.
    async fn scan_holding(&self, namespace: &Namespace, options: ScanOptions, text: &Bytes) -> Result<Scan> {
        let run = ScanRun::new(namespace.clone(), options, self.now()).holding(text.clone());
        self.shared.reader.scan(&run).await
    }
}

#[async_trait]
impl StoreMaintenance for MysqlStore {
    async fn sweep(&self, limit: usize) -> Result<usize> {
        // Runs in a task, so that a caller that goes away leaves no open transaction.
        let sweeper = self.shared.sweeper.clone();
        tokio::spawn(async move { sweeper.sweep(limit).await }).await.map_err(|source| {
            Error::new(treehold_core::error::ErrorKind::Internal, "a sweep of the store was interrupted; sweep again").with_source(source)
        })?
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
    /// Notifies watchers of the newest commits in these namespaces by any process.
    async fn announce_others(&self, namespaces: &[Namespace]) -> Result<()> {
        for (namespace, version) in self.reader.changed(namespaces).await? {
            self.watches.notify(&namespace, version);
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
