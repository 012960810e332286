//! Rows in Redis or Valkey, on one server or a cluster, shared by several processes.
//!
//! On one server a store consists of four keys, `{NAME}:rows` and its siblings. In a cluster each partition has four such keys, whose hash tag
//! keeps them in one slot and lets a store spread over all masters; `places.rs` finds them. A batch is one script, a page is one script, and
//! a lookup by key is one command; nothing enumerates the server's keys. Start with `address.rs` for URLs and `link.rs` for connections,
//! then read `commit.lua` and `scan.lua`, the heart of the store.
//!
//! The four keys: `rows` is a hash with two fields per row, its record and its body, plus the counter. `keys` is a
//! sorted set of all rows, ordered by namespace and key. `expiries` holds the rows that expire, ordered by expiry.
//! `changes` holds the namespaces, ordered by the version of their last change.

use async_trait::async_trait;
use futures::stream::{self, StreamExt, TryStreamExt};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
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
mod places;
mod read;
mod record;
mod reply;
mod report;
mod schema;
mod script;
mod write;

use address::Address;
use link::Link;
use open::Setup;
use places::{Cluster, Place, Places};
use script::Keys;

pub use engine::RedisEngine;

/// How often watched stores poll for namespaces that other processes changed.
const WATCH_PAUSE: Duration = Duration::from_millis(250);

/// How long one poll of a watched partition may take.
const POLL_MAX: Duration = Duration::from_secs(2);

/// After how many failures a sweep ends, because some node cannot be reached.
const FAILURES_MAX: usize = 8;

/// How many partitions are asked at the same time.
const AT_ONCE: usize = 16;

/// How many partitions one sweep visits at most.
const VISITS_MAX: usize = 10_000;

/// The most findings of a check.
const FINDINGS_MAX: usize = 100;

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
/// Cost: one round trip per call, except for `stats`, `check`, and pages of over 10,000 rows or 32 MiB. In a cluster the first commit to a
/// partition takes six, and listings of namespaces and sweeps take one for each partition. Each runtime that uses the store has up to two
/// connections, in a cluster to each master, opened on demand.
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
    /// The link of the store's mark.
    link: Link,
    places: Places,
    clock: Clock,
    rows_at_once: u64,
    setup: RwLock<Setup>,
    watches: Arc<Watches>,
    /// The version up to which the watchers of a partition know of other processes' commits, by the keys of the partition.
    announced: Mutex<HashMap<String, u64>>,
    /// The partition after which the next sweep goes on.
    swept: Mutex<Option<Partition>>,
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

    /// Opens a store, and creates it if missing. Cost: four round trips on one server, and three more to create a store under the default
    /// prefix.
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
        let link = Link::new(address, &keys, options.connect_timeout, options.response_timeout);
        let setup = Setup::ask(&link).await.map_err(Error::without_effect)?;
        setup.check()?;
        let former = former.as_ref().map(|(keys, link)| (keys, link));
        let places = if link.address().is_cluster {
            let cluster = Cluster::new(&link, &link.address().prefix);
            let list = cluster.list();
            cluster.count_from(open::open_in_cluster(&link, &keys, (&list.link, &list.keys), former).await?);
            Places::Many(Arc::new(cluster))
        } else {
            open::open(&link, &keys, former).await?;
            Places::One(Arc::new(Place { link: link.clone(), keys }))
        };
        let RedisOptions { clock, rows_at_once, .. } = options;
        let (setup, watches, announced, swept) = (RwLock::new(setup), Arc::default(), Mutex::default(), Mutex::default());
        Ok(Self { shared: Arc::new(Shared { link, places, clock, rows_at_once, setup, watches, announced, swept }) })
    }

    /// Returns whether the server holds a store, of the present or a former layout. Changes nothing.
    ///
    /// # Errors
    /// Those of [`RedisStore::open_with`].
    pub async fn exists(options: &RedisOptions) -> Result<bool> {
        let address = address_of(options)?;
        let former = former_of(&address, options)?;
        let keys = Keys::new(&address.prefix);
        let link = Link::new(address, &keys, options.connect_timeout, options.response_timeout);
        Setup::ask(&link).await.map_err(Error::without_effect)?.check()?;
        open::exists(&link, &keys, former.as_ref().map(|(keys, link)| (keys, link))).await
    }

    /// Migrates a store of a former layout to the present one. If neither the URL nor the options name a prefix and the
    /// store is under the former default, `stratafs`, its keys are renamed; in a cluster the prefix stays and has to be named.
    /// A store in a cluster that has all its rows in one slot gets keys for each partition.
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
        let link = Link::new(address, &keys, options.connect_timeout, options.response_timeout);
        Setup::ask(&link).await.map_err(Error::without_effect)?.check()?;
        let former = former.as_ref().map(|(keys, link)| (keys, link));
        let cluster = link.address().is_cluster.then(|| Cluster::new(&link, &link.address().prefix));
        let now = whole_microseconds(options.clock.now());
        migrate::Move { keys: &keys, link: &link, former, cluster: cluster.as_ref(), now }.run(how, tell).await
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
    let link = Link::new(address, &keys, options.connect_timeout, options.response_timeout);
    Ok(Some((keys, link)))
}

impl Shared {
    /// Notifies watchers of the changes since the last call.
    async fn announce(&self) -> Result<()> {
        let mut watched: HashMap<String, Partition> = HashMap::new();
        for namespace in self.watches.namespaces() {
            let partition = namespace.partition();
            watched.entry(self.places.of(&partition).keys.changes().to_owned()).or_insert(partition);
        }
        self.announced.lock().retain(|named, _| watched.contains_key(named));
        let looks = watched.into_values().map(|partition| async move {
            match tokio::time::timeout(POLL_MAX, self.announce_in(&partition)).await {
                Ok(answer) => answer,
                // The next poll tries again; the other partitions may be on other nodes.
                Err(_) => {
                    tracing::debug!(%partition, "a watched partition could not be polled in time");
                    Ok(())
                }
            }
        });
        let answers: Vec<Result<()>> = stream::iter(looks).buffer_unordered(AT_ONCE).collect().await;
        answers.into_iter().collect()
    }

    /// Notifies watchers of the changes of a partition since the last call. The first call only notes its version.
    async fn announce_in(&self, partition: &Partition) -> Result<()> {
        let place = self.places.of(partition);
        let named = place.keys.changes();
        let known = self.announced.lock().get(named).copied();
        let Some(since) = known else {
            let version = self.version_of(partition).await?;
            self.announced.lock().entry(named.to_owned()).or_insert(version.number());
            return Ok(());
        };
        let mut newest = since;
        for (namespace, version) in read::changed_since(&place.link, &place.keys, since).await? {
            match namespace {
                Some(namespace) => self.watches.notify(&namespace, version),
                None => {
                    let watched = self.watches.namespaces().into_iter();
                    let here = watched.filter(|namespace| self.places.of(&namespace.partition()).keys.changes() == named);
                    here.for_each(|namespace| self.watches.notify(&namespace, version));
                }
            }
            newest = newest.max(version.number());
        }
        if let Some(announced) = self.announced.lock().get_mut(named) {
            *announced = newest.max(*announced);
        }
        Ok(())
    }

    async fn version_of(&self, partition: &Partition) -> Result<Version> {
        let read = |place: Arc<Place>| async move { read::current_version(&place.link, &place.keys).await };
        self.places.read(partition, || Version::new(0), read).await
    }

    /// Runs something for the keys of each partition, in order, until it answers false. A store on one server has one set of keys, which stand for
    /// all partitions.
    async fn each<F: Future<Output = Result<bool>>>(
        &self,
        now: i64,
        mut run: impl FnMut(Option<Partition>, Arc<Place>) -> F,
    ) -> Result<()> {
        let cluster = match &self.places {
            Places::One(place) => return run(None, place.clone()).await.map(drop),
            Places::Many(cluster) => cluster,
        };
        let mut after = None;
        loop {
            let page = cluster.page(after.as_ref(), "", now).await?;
            for partition in &page {
                if !run(Some(partition.clone()), cluster.of(partition)).await? {
                    return Ok(());
                }
            }
            match page.last() {
                Some(last) => after = Some(last.clone()),
                None => return Ok(()),
            }
        }
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
        let now = self.now();
        let read = |place: Arc<Place>| async move { read::get(&place.link, &place.keys, namespace, key, now).await };
        self.shared.places.read(&namespace.partition(), || None, read).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        let (now, range) = (self.now(), &range);
        let read = |place: Arc<Place>| async move { read::get_part(&place.link, &place.keys, namespace, key, range, now).await };
        self.shared.places.read(&namespace.partition(), || None, read).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        let now = self.now();
        let read = |place: Arc<Place>| async move { read::get_many(&place.link, &place.keys, namespace, keys, with_values, now).await };
        self.shared.places.read(&namespace.partition(), || vec![None; keys.len()], read).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        let (now, rows, options) = (self.now(), self.shared.rows_at_once, &options);
        let read = |place: Arc<Place>| async move { read::scan(&place.link, &place.keys, namespace, options, now, rows).await };
        self.shared.places.read(&namespace.partition(), Scan::default, read).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        let (now, rows) = (self.now(), self.shared.rows_at_once);
        let list = |options: NamespacesOptions| {
            let options = Arc::new(options);
            move |place: Arc<Place>| {
                let options = options.clone();
                async move { read::namespaces(&place.link, &place.keys, &options, now, rows).await }
            }
        };
        let places = &self.shared.places;
        let cluster = match places {
            Places::One(place) => return list(options)(place.clone()).await,
            Places::Many(cluster) => cluster,
        };
        let Some(prefix) = options.prefix() else { return Ok(NamespacePage::default()) };
        let one_more = options.clone().with_limit(options.limit.saturating_add(1));
        let of = |partition: Partition| {
            let list = list(one_more.clone());
            async move { places.read(&partition, NamespacePage::default, list).await }
        };
        let mut found = Vec::new();
        if let Some(beneath) = &options.beneath {
            found = of(beneath.partition()).await?.namespaces;
        } else {
            let mut after = options.start_after.as_ref().map(Namespace::partition);
            if let Some(partition) = after.clone().filter(|partition| partition.encoded().starts_with(&prefix)) {
                found = of(partition).await?.namespaces;
            }
            while found.len() <= options.limit {
                let page = cluster.page(after.as_ref(), &prefix, now).await?;
                let Some(last) = page.last() else { break };
                after = Some(last.clone());
                let mut listed = stream::iter(page.into_iter().map(&of)).buffered(AT_ONCE);
                while found.len() <= options.limit
                    && let Some(page) = listed.try_next().await?
                {
                    found.extend(page.namespaces);
                }
            }
        }
        let more = found.len() > options.limit;
        found.truncate(options.limit);
        Ok(NamespacePage::new(found, more))
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        batch.validate(&self.capabilities())?;
        let Some(partition) = batch.partition() else { return Ok(Vec::new()) };
        let now = whole_microseconds(self.shared.clock.now());
        let committed = self.shared.places.commit(&partition, &batch, now).await?;
        self.shared.watches.notify_batch(&batch, Version::new(committed.after));
        Ok(committed.versions)
    }

    /// Returns the counter of the partition, which is the same for all partitions on one server.
    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.shared.version_of(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        let (own, is_first) = (namespace.partition(), AtomicBool::new(true));
        let look = move |shared: Arc<Shared>| {
            // The other watches have begun already.
            let own = is_first.swap(false, Ordering::Relaxed).then(|| own.clone());
            async move {
                match own {
                    Some(own) => shared.announce_in(&own).await,
                    None => shared.announce().await,
                }
            }
        };
        self.shared.watches.watch_by_polling(namespace, &self.shared, WATCH_PAUSE, look).await
    }
}

#[async_trait]
impl StoreMaintenance for RedisStore {
    /// Cost: in a cluster one round trip for each partition. A sweep that stops after 10,000 partitions goes on from there the next time.
    async fn sweep(&self, limit: usize) -> Result<usize> {
        let now = self.now();
        let cluster = match &self.shared.places {
            Places::One(place) => return write::sweep(&place.link, &place.keys, limit, now).await,
            Places::Many(cluster) => cluster,
        };
        let from = self.shared.swept.lock().take();
        let (mut swept, mut visits, mut failures, mut failed) = (0, 0, 0, None);
        let mut starts = vec![None];
        starts.extend(from.clone().map(Some));
        // A sweep that begins in the middle ends with what comes before.
        while let Some(start) = starts.pop() {
            let is_rest = from.is_some() && start.is_none();
            let mut after = start;
            loop {
                let page = cluster.page(after.as_ref(), "", now).await?;
                for partition in &page {
                    if is_rest && from.as_ref().is_some_and(|from| partition > from) {
                        return Ok(swept);
                    }
                    let left = limit - swept;
                    let sweep = |place: Arc<Place>| async move { write::sweep(&place.link, &place.keys, left, now).await };
                    match self.shared.places.read(partition, || 0, sweep).await {
                        Ok(count) => swept += count,
                        // The other partitions may be on other nodes.
                        Err(error) => {
                            tracing::warn!(%partition, %error, "sweeping a partition failed");
                            failed = Some(error);
                            failures += 1;
                        }
                    }
                    visits += 1;
                    if swept >= limit || visits == VISITS_MAX || failures == FAILURES_MAX {
                        *self.shared.swept.lock() = Some(partition.clone());
                        return failed.filter(|_| swept == 0).map_or(Ok(swept), Err);
                    }
                }
                match page.last() {
                    Some(last) => after = Some(last.clone()),
                    None => break,
                }
            }
        }
        // Without any success, the store itself may be out of reach.
        failed.filter(|_| swept == 0).map_or(Ok(swept), Err)
    }

    async fn describe(&self) -> Result<StoreDescription> {
        let setup = Setup::ask(&self.shared.link).await?;
        let schema = match self.shared.places {
            Places::One(_) => script::SCHEMA,
            Places::Many(_) => schema::CLUSTER_SCHEMA,
        };
        let description = StoreDescription::new(setup.engine.clone(), setup.durability).with_schema(schema.parse().unwrap_or_default());
        let description = setup.notices.iter().fold(description, StoreDescription::with_notice);
        *self.shared.setup.write() = setup;
        Ok(description)
    }

    async fn stats(&self) -> Result<StoreStats> {
        let now = self.now();
        let all = Mutex::new(StoreStats::new());
        let count = |partition: Option<Partition>, place: Arc<Place>| {
            let all = &all;
            async move {
                let counted = match partition {
                    Some(partition) => {
                        let count = |place: Arc<Place>| async move { report::stats(&place.link, &place.keys, now).await };
                        self.shared.places.read(&partition, StoreStats::new, count).await?
                    }
                    None => report::stats(&place.link, &place.keys, now).await?,
                };
                all.lock().merge(&counted);
                Ok(true)
            }
        };
        self.shared.each(now, count).await?;
        Ok(all.into_inner())
    }

    async fn check(&self) -> Result<Vec<Error>> {
        let findings = Mutex::new(Vec::new());
        let check = |partition: Option<Partition>, place: Arc<Place>| {
            let findings = &findings;
            async move {
                let check = |place: Arc<Place>| async move { report::check(&place.link, &place.keys).await };
                let checked = match &partition {
                    Some(partition) => self.shared.places.read(partition, Vec::new, check).await,
                    None => check(place).await,
                };
                let found = match checked {
                    // The keys of a partition are gone.
                    Err(error) if partition.is_some() && error.kind() == ErrorKind::Corrupt => vec![error],
                    found => found?,
                };
                let named = |error: Error| match &partition {
                    Some(partition) => {
                        let message = format!("the partition `{partition}`: {}", error.message());
                        error.with_message(message)
                    }
                    None => error,
                };
                let mut findings = findings.lock();
                findings.extend(found.into_iter().map(named));
                Ok(findings.len() < FINDINGS_MAX)
            }
        };
        self.shared.each(self.now(), check).await?;
        Ok(findings.into_inner())
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
