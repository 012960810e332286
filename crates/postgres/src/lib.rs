//! A store in PostgreSQL, or an engine that speaks its protocol, shared by any number of processes.
//!
//! It uses only features that compatible engines share: no advisory locks, notifications, sequences, procedures or extensions. Every read
//! is one statement on a pooled connection. A process commits in groups, each of one partition, one transaction and one round trip
//! ([`combiner`](treehold_store::combiner)); a row lock orders the groups of a partition from all processes. The partition leads every
//! primary key, and no statement of a commit concerns two, so an engine that distributes the tables by it commits on one node. Start with
//! `schema.rs` for the tables, then read `key.rs`, `read.rs` and, for the writing side, `part.rs`, `step.rs` and `write.rs`.

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Durability, Version};
use treehold_store::combiner::Combiner;
use treehold_store::watch::Watches;
use treehold_store::{
    Batch, BatchWrite, FilteredScan, Item, ItemPart, MigrateOptions, MigrateProgress, MigrateReport, Namespace, NamespacePage,
    NamespacesOptions, Partition, Scan, ScanOptions, Store, StoreCapabilities, StoreDescription, StoreExtensions, StoreMaintenance,
    StoreStats, Watch, server_url,
};

mod arrays;
mod change;
mod connect;
mod engine;
mod error;
mod key;
mod migrate;
mod part;
mod read;
mod report;
mod schema;
mod script;
mod step;
mod sweep;
mod tls;
mod write;

use connect::{Connections, Target};
use error::{damaged, failed};
use schema::Tables;
use script::Script;
use write::PostgresWriter;

pub use engine::PostgresEngine;

/// The largest body in bytes. The engine holds up to 1 GiB in one value, with several copies in memory on the way.
const VALUE_BYTES_MAX: u64 = 256 << 20;

/// The most bytes of bodies in one batch: the engine's messages are limited to less than 1 GiB.
const BATCH_BYTES_MAX: usize = 768 << 20;

/// The interval of polling for commits of other processes while somebody watches.
const WATCH_PAUSE: Duration = Duration::from_millis(250);

/// The time limit for statements that scan the whole store.
const LONG_TIMEOUT: Duration = Duration::from_secs(3_600);

/// Options for opening a [`PostgresStore`].
#[derive(Clone)]
#[non_exhaustive]
pub struct PostgresOptions {
    /// The database URL: `postgres://USER:PASSWORD@HOST:PORT/DATABASE?NAME=VALUE`. Besides the client's parameters (several hosts,
    /// `target_session_attrs`, `connect_timeout`, `application_name` and others) it may set `schema`, `connections_max`, `sslmode` and
    /// `sslrootcert`.
    pub url: String,
    /// The schema of the tables, instead of the URL's. Default `treehold`.
    pub schema: Option<String>,
    /// The most connections, half of them for writes, instead of the URL's. Default 8, at least 2. As many partitions are written at once.
    pub connections_max: Option<usize>,
    /// The time limit for a statement, for getting a connection and for waiting on another writer. Default 60 s.
    pub timeout: Duration,
    /// The clock.
    pub clock: Clock,
}

impl PostgresOptions {
    /// Uses the defaults for a URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), schema: None, connections_max: None, timeout: Duration::from_secs(60), clock: Clock::system() }
    }

    /// Sets the schema of the tables.
    #[must_use]
    pub fn with_schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// Sets the most connections.
    #[must_use]
    pub fn with_connections_max(mut self, connections_max: usize) -> Self {
        self.connections_max = Some(connections_max);
        self
    }

    /// Sets the time limit for statements and waits.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }
}

/// Hides the password.
impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("url", &server_url::shown(&self.url))
            .field("schema", &self.schema)
            .field("connections_max", &self.connections_max)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// A store in a PostgreSQL database. Clones share it.
///
/// Cost: one round trip for a get, for several items, for a page of a scan, and for a commit, which shares it with concurrent commits of
/// other tasks in its partition. The first commit to a partition takes three more. A connection needs one more to prepare a statement that is
/// new to it.
///
/// Connections are made on first use and replaced when they break. The store must be used within Tokio; any runtime will do.
///
/// # Examples
/// ```no_run
/// use treehold_postgres::PostgresStore;
/// use treehold_store::{Batch, Namespace, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let store = PostgresStore::open("postgres://agent@localhost/agents?schema=memories").await?;
/// let notes = Namespace::new(["ada", "notes"])?;
/// store.commit(Batch::new().put(&notes, "today", "walk the dog")).await?;
/// assert_eq!(&store.get(&notes, "today").await?.expect("it was put").value[..], b"walk the dog");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresStore {
    shared: Arc<Shared>,
}

struct Shared {
    connections: Connections,
    combiner: Combiner<PostgresWriter>,
    watches: Arc<Watches>,
    clock: Clock,
    tables: Tables,
    name: String,
    /// The namespace that the next sweep looks at first, as texts of its partition and name.
    looked_at: Mutex<(String, String)>,
    durability: Durability,
}

impl PostgresStore {
    /// Returns the best capabilities that this engine can offer.
    pub fn offers() -> StoreCapabilities {
        StoreCapabilities::new(Durability::Power).with_sweeps(true).with_shared(true).with_value_bytes_max(Some(VALUE_BYTES_MAX))
    }

    /// Opens a database with defaults, creating the tables if needed.
    ///
    /// # Errors
    /// Those of [`PostgresStore::open_with`].
    pub async fn open(url: impl Into<String>) -> Result<Self> {
        Self::open_with(PostgresOptions::new(url)).await
    }

    /// Opens a database.
    ///
    /// Cost: a connection and six round trips, more when tables are created.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a URL that is malformed or has unknown parameters,
    /// [`Unavailable`](ErrorKind::Unavailable) when the server cannot be reached or does not answer,
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for a wrong user or password, or one without the right to create tables,
    /// [`NotFound`](ErrorKind::NotFound) for a database that does not exist, [`Unsupported`](ErrorKind::Unsupported) for one that is not
    /// UTF-8 or was written by a newer version, [`Corrupt`](ErrorKind::Corrupt) for a schema with tables of another program. A refused
    /// store is not changed.
    pub async fn open_with(options: PostgresOptions) -> Result<Self> {
        let name = server_url::shown(&options.url);
        let clock = options.clock.clone();
        let target = target_of(&options).await?;
        let connections = Connections::new(&target, options.timeout)?;
        let connection = connections.make().await?;
        let opening = async {
            let tables = schema::open(&connection, &target).await?;
            Ok::<_, Error>((tables, report::setup(&connection).await?))
        };
        let (tables, setup) = tokio::time::timeout(options.timeout, opening).await.map_err(|_| error::silent())??;
        let watches = Arc::<Watches>::default();
        let writer = PostgresWriter {
            connections: connections.clone(),
            idle: Mutex::new(vec![(connection, tokio::time::Instant::now())]),
            watches: watches.clone(),
            clock: clock.clone(),
            tables: tables.clone(),
            timeout: options.timeout,
        };
        let combiner = Combiner::new(Arc::new(writer), target.writers_max());
        let shared =
            Shared { connections, combiner, watches, clock, tables, name, looked_at: Mutex::default(), durability: setup.durability() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns whether the database holds a store, of the present or a former layout. Changes nothing.
    ///
    /// Cost: a connection and up to four round trips.
    ///
    /// # Errors
    /// Those of [`PostgresStore::open_with`].
    pub async fn exists(options: &PostgresOptions) -> Result<bool> {
        let target = target_of(options).await?;
        let connection = Connections::new(&target, options.timeout)?.make().await?;
        let looking = schema::exists(&connection, &target);
        tokio::time::timeout(options.timeout, looking).await.map_err(|_| error::silent())?
    }

    /// Migrates a store of a former layout to the present one, in one transaction. If neither the URL nor the options name a schema
    /// and the store is in the former default, `stratafs`, that schema is renamed. `tell` receives the progress.
    ///
    /// Servers of a former version that still run fail on every write afterwards. Cost: one update for every row that moves, which
    /// does not rewrite bodies that the server stores out of line. The user must own the tables.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if there is no store. [`Unavailable`](ErrorKind::Unavailable) while others hold locks on its
    /// tables. [`Conflict`](ErrorKind::Conflict) for a store with an unfinished copy. [`AlreadyExists`](ErrorKind::AlreadyExists) if it
    /// has rows below the reserved root, or if the new schema exists. Otherwise those of [`PostgresStore::open_with`].
    pub async fn migrate(
        options: &PostgresOptions,
        how: &MigrateOptions,
        tell: &mut (dyn FnMut(MigrateProgress) + Send),
    ) -> Result<MigrateReport> {
        let target = target_of(options).await?;
        let connection = Connections::new(&target, options.timeout)?.make().await?;
        migrate::migrate(&connection, &target, how, tell).await
    }

    fn now(&self) -> i64 {
        self.shared.clock.now().as_microsecond()
    }
}

/// Parses the URL on a blocking thread, as this may read the system's root certificates.
async fn target_of(options: &PostgresOptions) -> Result<Target> {
    let options = options.clone();
    tokio::task::spawn_blocking(move || Target::of(&options))
        .await
        .map_err(|source| Error::new(ErrorKind::Internal, "opening a store was interrupted").with_source(source))?
}

impl Shared {
    /// Returns the counter of a partition. One round trip, and one more for a partition without a counter.
    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        let mut script = Script::new(format!("SELECT version FROM {}.partitions WHERE partition = ", self.tables.schema));
        let at = script.parameter(partition.encoded());
        script.push(&at);
        for _ in 0..2 {
            if let Some(row) = self.connections.read(&script).await?.first() {
                return read::version(row.try_get(0).map_err(failed)?);
            }
            if self.connections.read(&read::has_rows(&self.tables.schema, partition)).await?.is_empty() {
                return read::version(self.tables.first_version);
            }
            // Another process may have made the partition in between.
        }
        Err(damaged("the version counter of a partition that has rows is missing"))
    }

    /// Notifies watches of new commits to their partitions.
    async fn look(&self) -> Result<()> {
        let watched = self.watches.namespaces();
        let mut script = Script::default();
        let partitions: BTreeSet<&str> = watched.iter().map(|namespace| namespace.encoded_parts().0).collect();
        let partitions = script.parameter(partitions.into_iter().collect::<Vec<_>>());
        script
            .push(&format!("SELECT partition, version FROM {}.partitions WHERE partition = ANY({partitions}::text[])", self.tables.schema));
        let rows = self.connections.read(&script).await?;
        let versions: HashMap<&str, i64> =
            rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<Result<_, _>>().map_err(failed)?;
        for namespace in &watched {
            if let Some(version) = versions.get(namespace.encoded_parts().0) {
                self.watches.notify(namespace, read::version(*version)?);
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn capabilities(&self) -> StoreCapabilities {
        Self::offers().with_durability(self.shared.durability)
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        StoreExtensions::new().with_maintenance(self).with_filtered_scan(self)
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        // The engine accepts no NUL in text, and no key contains one.
        if key.contains('\0') {
            return Ok(None);
        }
        let script = read::get(&self.shared.tables.schema, namespace, key, self.now());
        let rows = self.shared.connections.read(&script).await?;
        Ok(read::in_order(&rows, &[key], true)?.pop().flatten())
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        // The engine accepts no NUL in text, and no key contains one.
        if key.contains('\0') {
            return Ok(None);
        }
        let script = read::get_part(&self.shared.tables.schema, namespace, key, &range, self.now());
        let rows = self.shared.connections.read(&script).await?;
        rows.first().map(|row| read::part(row, &range)).transpose()
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        let script = read::get_many(&self.shared.tables.schema, namespace, keys, with_values, self.now());
        read::in_order(&self.shared.connections.read(&script).await?, keys, with_values)
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.page(namespace, options, None).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        let Some(prefix) = options.prefix() else { return Ok(NamespacePage::default()) };
        let script = read::namespaces(&self.shared.tables, &options, &prefix, self.now());
        read::namespace_page(&self.shared.connections.read(&script).await?, options.limit)
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        batch.validate(&self.capabilities())?;
        if batch.size_bytes() > BATCH_BYTES_MAX {
            let message = format!("the batch has over {BATCH_BYTES_MAX} bytes of content; split it");
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        let is_over =
            |write: &BatchWrite| matches!(write, BatchWrite::Restore { item, .. } if i64::try_from(item.version.number()).is_err());
        if batch.writes.iter().any(is_over) {
            return Err(Error::invalid_argument(
                "the version of the item to restore exceeds what the database can \
                keep; put the item instead",
            ));
        }
        if batch.preconditions.is_empty() && batch.writes.is_empty() {
            return Ok(Vec::new());
        }
        self.shared.combiner.commit(batch).await
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.shared.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        let look = |shared: Arc<Shared>| async move { shared.look().await };
        self.shared.watches.watch_by_polling(namespace, &self.shared, WATCH_PAUSE, look).await
    }
}

#[async_trait]
impl FilteredScan for PostgresStore {
    /// Leaves out bodies of at least 1 KiB.
    async fn scan_holding(&self, namespace: &Namespace, options: ScanOptions, text: &Bytes) -> Result<Scan> {
        self.page(namespace, options, Some(text)).await
    }
}

impl PostgresStore {
    /// Returns a page. With `holding`, bodies that do not contain it may be left out.
    async fn page(&self, namespace: &Namespace, options: ScanOptions, holding: Option<&Bytes>) -> Result<Scan> {
        let holding = holding.map(|text| &text[..]);
        let rows = match read::scan(&self.shared.tables, namespace, &options, holding, self.now()) {
            Some(script) => self.shared.connections.read(&script).await?,
            None => Vec::new(),
        };
        read::page(rows, options, holding.is_some())
    }
}

#[async_trait]
impl StoreMaintenance for PostgresStore {
    /// Takes empty namespaces off the list too, some of them in each sweep.
    async fn sweep(&self, limit: usize) -> Result<usize> {
        // Runs in a task, so that a caller that goes away leaves no open transaction.
        let shared = self.shared.clone();
        let sweeping = tokio::spawn(async move {
            let swept = shared.sweep_rows(limit).await?;
            shared.forget_empty_namespaces().await?;
            Ok(swept)
        });
        sweeping
            .await
            .map_err(|source| Error::new(ErrorKind::Internal, "a sweep of the store was interrupted; sweep again").with_source(source))?
    }

    async fn describe(&self) -> Result<StoreDescription> {
        let connections = &self.shared.connections;
        let rows = match connections.read(&report::description_script(&self.shared.tables.schema)).await {
            Ok(rows) => rows,
            Err(_) => connections.read(&report::setup_script()).await?,
        };
        Ok(report::Setup::of(&rows)?.describe())
    }

    async fn stats(&self) -> Result<StoreStats> {
        report::stats(&self.shared.connections, &self.shared.tables.schema, self.now()).await
    }

    async fn check(&self) -> Result<Vec<Error>> {
        report::check(&self.shared.connections, &self.shared.tables.schema).await
    }
}

impl fmt::Display for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shared.name)
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresStore").field(&self.shared.name).finish()
    }
}
