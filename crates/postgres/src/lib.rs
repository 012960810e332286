//! A store in PostgreSQL, or an engine that speaks its protocol, shared by any number of processes.
//!
//! It uses only features that compatible engines share: no advisory locks, notifications, sequences, procedures or extensions. Every read
//! is one statement on a pooled connection. A process commits in groups, each one transaction and one round trip
//! ([`combiner`](treehold_store::combiner)); a row lock orders the groups of all processes. Start with `schema.rs` for the tables, then read
//! `key.rs`, `read.rs` and, for the writing side, `part.rs`, `step.rs` and `write.rs`.

use async_trait::async_trait;
use bytes::Bytes;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
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
mod tls;
mod write;

use connect::{Connections, Target};
use error::{damaged, failed};
use script::Script;
use write::PostgresWriter;

pub use engine::PostgresEngine;

/// The largest body in bytes. The engine holds up to 1 GiB in one value, with several copies in memory on the way.
const VALUE_BYTES_MAX: u64 = 256 << 20;

/// The most bytes of bodies in one batch: the engine's messages are limited to less than 1 GiB.
const BATCH_BYTES_MAX: usize = 768 << 20;

/// The interval of polling for commits of other processes while somebody watches.
const WATCH_PAUSE: Duration = Duration::from_millis(250);

/// The default number of namespaces whose last write is recorded.
const TOUCHED_MAX: usize = 10_000;

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
    /// The most connections, one of them for writes, instead of the URL's. Default 8, at least 2.
    pub connections_max: Option<usize>,
    /// The time limit for a statement, for getting a connection and for waiting on another writer. Default 60 s.
    pub timeout: Duration,
    /// The number of namespaces whose last write a sweep keeps on record, most recent first. A watch on another namespace wakes once, in
    /// case it was written. Default 10,000.
    pub touched_max: usize,
    /// The clock.
    pub clock: Clock,
}

impl PostgresOptions {
    /// Uses the defaults for a URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            schema: None,
            connections_max: None,
            timeout: Duration::from_secs(60),
            touched_max: TOUCHED_MAX,
            clock: Clock::system(),
        }
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

    /// Sets the number of namespaces whose last write a sweep keeps on record.
    #[must_use]
    pub fn with_touched_max(mut self, touched_max: usize) -> Self {
        self.touched_max = touched_max;
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
            .field("touched_max", &self.touched_max)
            .finish_non_exhaustive()
    }
}

/// A store in a PostgreSQL database. Clones share it.
///
/// Cost: one round trip for a get, for several items, for a page of a scan, and for a commit, which shares it with concurrent commits of
/// other tasks in the process. A connection needs one more to prepare a statement that is new to it.
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
    /// The quoted name.
    schema: String,
    name: String,
    touched_max: usize,
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
    /// Cost: a connection and four round trips, more when tables are created.
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
        let schema = schema::quoted(&target.schema);
        let connection = connections.make().await?;
        let opening = async {
            schema::open(&connection, &target, &schema).await?;
            report::setup(&connection).await
        };
        let setup = tokio::time::timeout(options.timeout, opening).await.map_err(|_| error::silent())??;
        let watches = Arc::<Watches>::default();
        let writer = PostgresWriter {
            connections: connections.clone(),
            connection: Mutex::new(Some((connection, tokio::time::Instant::now()))),
            watches: watches.clone(),
            clock: clock.clone(),
            schema: schema.clone(),
            timeout: options.timeout,
        };
        let combiner = Combiner::new(writer);
        let (touched_max, durability) = (options.touched_max, setup.durability());
        Ok(Self { shared: Arc::new(Shared { connections, combiner, watches, clock, schema, name, touched_max, durability }) })
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
    async fn current_version(&self) -> Result<Version> {
        let script = Script::new(format!("SELECT version FROM {}.version_counter WHERE id = 1", self.schema));
        let rows = self.connections.read(&script).await?;
        let row = rows.first().ok_or_else(|| damaged("the version counter of the store is missing"))?;
        read::version(row.try_get(0).map_err(failed)?)
    }

    /// Notifies watches of new commits by other processes. A namespace whose row a sweep removed was last written at or before the version
    /// of the floor, so it counts as written then.
    async fn look(&self) -> Result<()> {
        let mut script = Script::default();
        let watched =
            script.parameter(self.watches.namespaces().iter().map(|namespace| namespace.encoded().to_owned()).collect::<Vec<_>>());
        script.push(&format!(
            "SELECT c.version, w.namespace, greatest(t.version, f.version) FROM {schema}.version_counter c
             CROSS JOIN unnest({watched}::text[]) AS w(namespace)
             LEFT JOIN {schema}.touched t ON t.namespace = w.namespace
             LEFT JOIN {schema}.touched f ON f.namespace = ''
             WHERE c.id = 1 AND (t.version IS NOT NULL OR f.version IS NOT NULL)",
            schema = self.schema
        ));
        for row in self.connections.read(&script).await? {
            let version = read::version(row.try_get(0).map_err(failed)?)?;
            let since = read::version(row.try_get(2).map_err(failed)?)?;
            self.watches.notify_since(&Namespace::from_encoded(row.try_get(1).map_err(failed)?)?, since, version);
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
        let script = read::get(&self.shared.schema, namespace, key, self.now());
        let rows = self.shared.connections.read(&script).await?;
        Ok(read::in_order(&rows, &[key], true)?.pop().flatten())
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        // The engine accepts no NUL in text, and no key contains one.
        if key.contains('\0') {
            return Ok(None);
        }
        let script = read::get_part(&self.shared.schema, namespace, key, &range, self.now());
        let rows = self.shared.connections.read(&script).await?;
        rows.first().map(|row| read::part(row, &range)).transpose()
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        let script = read::get_many(&self.shared.schema, namespace, keys, with_values, self.now());
        read::in_order(&self.shared.connections.read(&script).await?, keys, with_values)
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.page(namespace, options, None).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        let Some(prefix) = options.prefix() else { return Ok(NamespacePage::default()) };
        let script = read::namespaces(&self.shared.schema, &options, &prefix, self.now());
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

    /// Returns the one counter of all partitions.
    async fn current_version(&self, _: &Partition) -> Result<Version> {
        self.shared.current_version().await
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
        let rows = match read::scan(&self.shared.schema, namespace, &options, holding, self.now()) {
            Some(script) => self.shared.connections.read(&script).await?,
            None => Vec::new(),
        };
        read::page(rows, options, holding.is_some())
    }
}

#[async_trait]
impl StoreMaintenance for PostgresStore {
    async fn sweep(&self, limit: usize) -> Result<usize> {
        let mut script = Script::default();
        let now = script.parameter(self.now());
        let limit = script.parameter(i64::try_from(limit).unwrap_or(i64::MAX));
        let touched_max = script.parameter(i64::try_from(self.shared.touched_max).unwrap_or(i64::MAX));
        // Skip rows that a writer has locked, so that a sweep never waits for a writer. The row of the empty namespace is the floor of
        // those removed from `touched`; only sweeps write it, and the one that holds it waits for nothing else.
        script.push(&format!(
            "WITH swept AS (
               DELETE FROM {schema}.rows WHERE (namespace, head, tail_digest) IN (
                 SELECT namespace, head, tail_digest FROM {schema}.rows WHERE expires_at <= {now}::bigint
                 ORDER BY expires_at LIMIT {limit}::bigint FOR UPDATE SKIP LOCKED)
               AND expires_at <= {now}::bigint RETURNING 1 AS one
             ), first_old AS (
               SELECT version FROM {schema}.touched WHERE namespace <> '' ORDER BY version DESC OFFSET {touched_max}::bigint LIMIT 1
             ), old AS (
               SELECT namespace FROM {schema}.touched
               WHERE namespace <> '' AND version <= (SELECT version FROM first_old)
               ORDER BY version LIMIT {limit}::bigint FOR UPDATE SKIP LOCKED
             ), forgotten AS (
               DELETE FROM {schema}.touched t USING old WHERE t.namespace = old.namespace RETURNING t.version
             ), floored AS (
               INSERT INTO {schema}.touched AS f (namespace, version) SELECT '', max(version) FROM forgotten HAVING count(*) > 0
               ON CONFLICT (namespace) DO UPDATE SET version = greatest(f.version, excluded.version)
             ) SELECT count(*) FROM swept",
            schema = self.shared.schema
        ));
        let rows = self.shared.connections.write(&script).await?;
        let swept: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0)).map_err(failed)?;
        Ok(usize::try_from(swept).unwrap_or_default())
    }

    async fn describe(&self) -> Result<StoreDescription> {
        let connections = &self.shared.connections;
        let rows = match connections.read(&report::description_script(&self.shared.schema)).await {
            Ok(rows) => rows,
            Err(_) => connections.read(&report::setup_script()).await?,
        };
        Ok(report::Setup::of(&rows)?.describe())
    }

    async fn stats(&self) -> Result<StoreStats> {
        report::stats(&self.shared.connections, &self.shared.schema, self.now()).await
    }

    async fn check(&self) -> Result<Vec<Error>> {
        report::check(&self.shared.connections, &self.shared.schema).await
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
