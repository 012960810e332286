//! Rows in Redis or Valkey, on one server or a cluster, shared by several processes.
//!
//! A store consists of four keys with one hash tag, `{NAME}:rows` and its siblings, so a cluster keeps it in one slot.
//! That makes batches over any namespaces atomic. A batch is one script, a page is one script, and a lookup by key is
//! one command; nothing enumerates the server's keys. Start with `address.rs` for URLs and `link.rs` for connections,
//! then read `commit.lua` and `scan.lua`, the heart of the store.
//!
//! The four keys: `rows` is a hash with two fields per row, its record and its body, plus the counter. `keys` is a
//! sorted set of all rows, ordered by namespace and key. `expiries` holds the rows that expire, ordered by expiry.
//! `changes` holds the namespaces, ordered by the version of their last change.

use async_trait::async_trait;
use parking_lot::RwLock;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, Result};
use treehold_core::ops::{Durability, Version};
use treehold_store::migrate::FORMER_NAME;
use treehold_store::watch::Watches;
use treehold_store::{
    Batch, Item, ItemPart, MigrateOptions, MigrateProgress, MigrateReport, Namespace, NamespacePage, NamespacesOptions, Partition, Scan,
    ScanOptions, Store, StoreCapabilities, StoreDescription, StoreExtensions, StoreMaintenance, StoreStats, Watch, whole_microseconds,
};

mod address;
mod engine;
mod error;
mod link;
mod migrate;
mod open;
mod read;
mod record;
mod reply;
mod report;
mod script;
mod write;

use address::Address;
use link::Link;
use open::Setup;
use script::Keys;

pub use engine::RedisEngine;

/// How often watched stores poll for namespaces that other processes changed.
const WATCH_PAUSE: Duration = Duration::from_millis(250);

/// Options for opening a [`RedisStore`].
#[derive(Clone)]
#[non_exhaustive]
pub struct RedisOptions {
    /// The server's URL: `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE][?prefix=NAME]`. `rediss://` uses TLS;
    /// `redis+cluster://HOST,HOST…` and `rediss+cluster://` list nodes of a cluster.
    pub url: String,
    /// The name of the store on its server; overrides the one in the URL. Default `treehold`.
    pub prefix: Option<String>,
    /// The clock for creation, modification and expiry times.
    pub clock: Clock,
    /// How many rows of a page one script reads, while the server serves nobody else. Default 10,000, about 30 ms.
    /// Longer pages take several scripts, and start over with 8 times as many rows per script if a commit comes in
    /// between.
    pub rows_at_once: u64,
    /// The time limit for connecting to one node. Default 5 s.
    pub connect_timeout: Duration,
    /// The time limit for an answer, including the transfer of its request. Default 30 s.
    pub response_timeout: Duration,
}

impl RedisOptions {
    /// Uses the defaults for the store at `url`.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            prefix: None,
            clock: Clock::system(),
            rows_at_once: read::ROWS_AT_ONCE,
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(30),
        }
    }

    /// Sets the name of the store on its server.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Sets the clock for creation, modification and expiry times.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets how many rows of a page one script reads.
    #[must_use]
    pub fn with_rows_at_once(mut self, rows_at_once: u64) -> Self {
        self.rows_at_once = rows_at_once;
        self
    }

    /// Sets the time limit for connecting to one node.
    #[must_use]
    pub fn with_connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.connect_timeout = connect_timeout;
        self
    }

    /// Sets the time limit for an answer.
    #[must_use]
    pub fn with_response_timeout(mut self, response_timeout: Duration) -> Self {
        self.response_timeout = response_timeout;
        self
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// A store in Redis 6.2 or newer, Valkey, or a cluster of them. Clones share the connections.
///
/// Cost: one round trip per call, except for `stats`, `check`, and pages of over 10,000 rows or 32 MiB. Each runtime
/// that uses the store has up to two connections, opened on demand.
///
/// # Examples
/// ```no_run
/// use treehold_redis::RedisStore;
/// use treehold_store::{Batch, Namespace, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let store = RedisStore::open("redis://127.0.0.1?prefix=agent").await?;
/// let notes = Namespace::new(["ada", "notes"])?;
/// store.commit(Batch::new().put(&notes, "today", "walk the dog")).await?;
/// assert_eq!(&store.get(&notes, "today").await?.expect("it was put").value[..], b"walk the dog");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisStore {
    shared: Arc<Shared>,
}

struct Shared {
    link: Link,
    keys: Keys,
    clock: Clock,
    rows_at_once: u64,
    setup: RwLock<Setup>,
    watches: Arc<Watches>,
    /// The version up to which watchers know of other processes' commits.
    announced: AtomicU64,
}

impl RedisStore {
    /// Returns the capabilities of this engine as known before its server is contacted.
    pub fn offers() -> StoreCapabilities {
        StoreCapabilities::new(Durability::None).with_sweeps(true).with_shared(true).with_value_bytes_max(Some(open::VALUE_BYTES_MAX))
    }

    /// Opens the store at a URL with default options, and creates it if missing.
    ///
    /// # Errors
    /// See [`RedisStore::open_with`].
    pub async fn open(url: impl Into<String>) -> Result<Self> {
        Self::open_with(RedisOptions::new(url)).await
    }

    /// Opens a store, and creates it if missing. Cost: four round trips.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for an invalid URL, or keys that hold other data.
    /// [`Unavailable`](treehold_core::error::ErrorKind::Unavailable) if no server answers.
    /// [`PermissionDenied`](treehold_core::error::ErrorKind::PermissionDenied) for a wrong password or a user who may not run the
    /// scripts. [`NotFound`](treehold_core::error::ErrorKind::NotFound) for a database number that the server does not have.
    /// [`Unsupported`](treehold_core::error::ErrorKind::Unsupported) for a server that is too old, one that evicts rows when its
    /// memory is full (`maxmemory-policy allkeys-…`), or a store of a newer version of this program.
    pub async fn open_with(options: RedisOptions) -> Result<Self> {
        let address = address_of(&options)?;
        let former = former_of(&address, &options)?;
        let keys = Keys::new(&address.prefix);
        let link = Link::new(address, keys.clone(), options.connect_timeout, options.response_timeout);
        let setup = Setup::ask(&link).await.map_err(Error::without_effect)?;
        setup.check()?;
        let version = open::open(&link, &keys, former.as_ref().map(|(keys, link)| (keys, link))).await?;
        let RedisOptions { clock, rows_at_once, .. } = options;
        let (setup, watches, announced) = (RwLock::new(setup), Arc::default(), AtomicU64::new(version));
        Ok(Self { shared: Arc::new(Shared { link, keys, clock, rows_at_once, setup, watches, announced }) })
    }

    /// Migrates a store of a former layout to the present one. If neither the URL nor the options name a prefix and the
    /// store is under the former default, `stratafs`, its keys are renamed; in a cluster the prefix stays and has to be named.
    /// An interrupted migration resumes on the next call; until then no version opens the store. Servers of the earlier version
    /// that still run fail on every call from the start of the migration. `tell` receives the progress.
    ///
    /// Cost: one script for 500 rows or 4 MiB. The server copies the record and body of each row that moves.
    ///
    /// # Errors
    /// [`NotFound`](treehold_core::error::ErrorKind::NotFound) if there is no store.
    /// [`Conflict`](treehold_core::error::ErrorKind::Conflict) if it holds a part of a
    /// copy. [`AlreadyExists`](treehold_core::error::ErrorKind::AlreadyExists) if rows lie below the reserved root already.
    /// [`Unsupported`](treehold_core::error::ErrorKind::Unsupported) for a store of a cluster under the former default prefix. Otherwise as
    /// [`RedisStore::open_with`].
    pub async fn migrate(
        options: &RedisOptions,
        how: &MigrateOptions,
        tell: &mut (dyn FnMut(MigrateProgress) + Send),
    ) -> Result<MigrateReport> {
        let address = address_of(options)?;
        let former = former_of(&address, options)?;
        let keys = Keys::new(&address.prefix);
        let link = Link::new(address, keys.clone(), options.connect_timeout, options.response_timeout);
        Setup::ask(&link).await.map_err(Error::without_effect)?.check()?;
        let former = former.as_ref().map(|(keys, link)| (keys, link));
        migrate::Move { keys: &keys, link: &link, former }.run(how, tell).await
    }

    fn now(&self) -> i64 {
        whole_microseconds(self.shared.clock.now()).as_microsecond()
    }
}

/// Returns the address that the options name.
fn address_of(options: &RedisOptions) -> Result<Address> {
    let address = Address::parse(&options.url)?;
    match &options.prefix {
        Some(prefix) => address.with_prefix(prefix),
        None => Ok(address),
    }
}

/// Returns the keys under the former default prefix, and a connection for them; none if a prefix is named.
fn former_of(address: &Address, options: &RedisOptions) -> Result<Option<(Keys, Link)>> {
    if !address.is_default {
        return Ok(None);
    }
    let address = address.clone().with_prefix(FORMER_NAME)?;
    let keys = Keys::new(&address.prefix);
    let link = Link::new(address, keys.clone(), options.connect_timeout, options.response_timeout);
    Ok(Some((keys, link)))
}

impl Shared {
    /// Notifies watchers of the changes since the last call.
    async fn announce(&self) -> Result<()> {
        let changed = read::changed_since(&self.link, &self.keys, self.announced.load(Ordering::Acquire)).await?;
        for (namespace, version) in changed {
            match namespace {
                Some(namespace) => self.watches.notify(&namespace, version),
                None => self.watches.notify_all(version),
            }
            self.announced.fetch_max(version.number(), Ordering::AcqRel);
        }
        Ok(())
    }
}

#[async_trait]
impl Store for RedisStore {
    fn capabilities(&self) -> StoreCapabilities {
        let setup = self.shared.setup.read();
        StoreCapabilities::new(setup.durability).with_sweeps(true).with_shared(true).with_value_bytes_max(Some(setup.value_bytes_max))
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        StoreExtensions::new().with_maintenance(self)
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        read::get(&self.shared.link, &self.shared.keys, namespace, key, self.now()).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        read::get_part(&self.shared.link, &self.shared.keys, namespace, key, &range, self.now()).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        read::get_many(&self.shared.link, &self.shared.keys, namespace, keys, with_values, self.now()).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        read::scan(&self.shared.link, &self.shared.keys, namespace, &options, self.now(), self.shared.rows_at_once).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        read::namespaces(&self.shared.link, &self.shared.keys, &options, self.now(), self.shared.rows_at_once).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        batch.validate(&self.capabilities())?;
        let now = whole_microseconds(self.shared.clock.now());
        let committed = write::commit(&self.shared.link, &self.shared.keys, &batch, now).await?;
        self.shared.watches.notify_batch(&batch, Version::new(committed.after));
        Ok(committed.versions)
    }

    /// Returns the one counter of all partitions.
    async fn current_version(&self, _: &Partition) -> Result<Version> {
        read::current_version(&self.shared.link, &self.shared.keys).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        let look = |shared: Arc<Shared>| async move { shared.announce().await };
        self.shared.watches.watch_by_polling(namespace, &self.shared, WATCH_PAUSE, look).await
    }
}

#[async_trait]
impl StoreMaintenance for RedisStore {
    async fn sweep(&self, limit: usize) -> Result<usize> {
        write::sweep(&self.shared.link, &self.shared.keys, limit, self.now()).await
    }

    async fn describe(&self) -> Result<StoreDescription> {
        let setup = Setup::ask(&self.shared.link).await?;
        let description =
            StoreDescription::new(setup.engine.clone(), setup.durability).with_schema(reply::SCHEMA.parse().unwrap_or_default());
        let description = setup.notices.iter().fold(description, StoreDescription::with_notice);
        *self.shared.setup.write() = setup;
        Ok(description)
    }

    async fn stats(&self) -> Result<StoreStats> {
        report::stats(&self.shared.link, &self.shared.keys, self.now()).await
    }

    async fn check(&self) -> Result<Vec<Error>> {
        report::check(&self.shared.link, &self.shared.keys).await
    }
}

impl fmt::Display for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.link.address().fmt(f)
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisStore").field(&format_args!("{self}")).finish()
    }
}
