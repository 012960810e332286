//! Rows in Redis or Valkey, one server or a cluster, that several processes use at once.
//!
//! A store is four keys under one hash tag, `{NAME}:rows` and its siblings, so that a cluster keeps all of it in one slot:
//! that is what makes a batch over any namespaces one step. A batch is one script, a page is one script, a lookup by key
//! one command; nothing searches the server's keys. Start with `address.rs` for what a URL says, `link.rs` for the way to
//! the node, then `commit.lua` and `scan.lua`, which are the store.
//!
//! What the four keys hold: `rows` is a hash with a field for the record of a row, one for its body, and the counter;
//! `keys` is a sorted set of all rows in their order, namespace and key; `expiries` those with an end, by it; `changes` the
//! namespaces by the version of their last change.

use super::watch::Watches;
use super::{
    Batch, Item, ItemPart, LentRows, Namespace, NamespacePage, NamespacesOptions, Scan, ScanOptions, Store, StoreCapabilities,
    StoreDescription, StoreStats, Watch, whole_microseconds,
};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::ops::{Durability, Version};
use async_trait::async_trait;
use parking_lot::RwLock;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

mod address;
mod error;
mod link;
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

/// How often it is asked which namespaces other processes changed, while somebody watches.
const WATCH_PAUSE: Duration = Duration::from_millis(250);

/// How to open a [`RedisStore`].
#[derive(Clone)]
#[non_exhaustive]
pub struct RedisOptions {
    /// `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE][?prefix=NAME]`; `rediss://` encrypts; `redis+cluster://HOST,HOST…` and
    /// `rediss+cluster://` name nodes of a cluster.
    pub url: String,
    /// The name of the store on its server, before the one of the URL. Default `stratafs`.
    pub prefix: Option<String>,
    /// Where the time comes from.
    pub clock: Clock,
    /// How many rows of a page one script reads, while the server serves nobody else. Default 10,000, some 30 ms. A page of more
    /// is read in several, and when something is committed meanwhile anew, with 8 times as many.
    pub rows_at_once: u64,
    /// How long connecting to one node may take. Default 5 s.
    pub connect_timeout: Duration,
    /// How long an answer may take, and sending what it answers. Default 30 s.
    pub response_timeout: Duration,
}

impl RedisOptions {
    /// Opens `url` with defaults.
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

    /// Sets where the time comes from.
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

    /// Sets how long connecting to one node may take.
    #[must_use]
    pub fn with_connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.connect_timeout = connect_timeout;
        self
    }

    /// Sets how long an answer may take.
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

/// A store in Redis 6.2 or newer, Valkey, or a cluster of them. Clones share its connections.
///
/// Cost: one round trip for every call but `stats` and `check`, and pages of over 10,000 rows or 32 MiB. Two connections for
/// each runtime that uses it, the second made when it is needed.
///
/// # Examples
/// ```no_run
/// use stratafs::store::{Batch, Namespace, RedisStore, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> stratafs::Result<()> {
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
    /// The version up to which those who watch were told of what others commit.
    told: AtomicU64,
}

impl RedisStore {
    /// Returns what a store of this engine offers as far as that is known before its server is asked.
    pub(crate) fn offers() -> StoreCapabilities {
        StoreCapabilities::new(Durability::None).with_shared(true).with_value_bytes_max(Some(open::VALUE_BYTES_MAX))
    }

    /// Opens the store that a URL names, and makes it when it is not there.
    ///
    /// # Errors
    /// See [`RedisStore::open_with`].
    pub async fn open(url: impl Into<String>) -> Result<Self> {
        Self::open_with(RedisOptions::new(url)).await
    }

    /// Opens a store, and makes it when it is not there: four round trips.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a URL that is none, or keys that hold other data,
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when no server answers, [`PermissionDenied`](crate::ErrorKind::PermissionDenied)
    /// for a wrong password or a user who may not run the scripts, [`NotFound`](crate::ErrorKind::NotFound) for a database that the
    /// server does not have, [`Unsupported`](crate::ErrorKind::Unsupported) for a server that is too old, one that gives up rows
    /// when its memory is full (`maxmemory-policy allkeys-…`), or a store of a newer version of this program.
    pub async fn open_with(options: RedisOptions) -> Result<Self> {
        let mut address = Address::parse(&options.url)?;
        if let Some(prefix) = &options.prefix {
            address = address.with_prefix(prefix)?;
        }
        let keys = Keys::new(&address.prefix);
        let link = Link::new(address, keys.clone(), options.connect_timeout, options.response_timeout);
        let setup = Setup::ask(&link).await.map_err(Error::without_effect)?;
        setup.check()?;
        let version = open::open(&link, &keys).await?;
        let RedisOptions { clock, rows_at_once, .. } = options;
        let (setup, watches, told) = (RwLock::new(setup), Arc::default(), AtomicU64::new(version));
        Ok(Self { shared: Arc::new(Shared { link, keys, clock, rows_at_once, setup, watches, told }) })
    }

    fn now(&self) -> i64 {
        whole_microseconds(self.shared.clock.now()).as_microsecond()
    }
}

impl Shared {
    /// Tells those who watch of what changed since they were told last.
    async fn tell(&self) -> Result<()> {
        let changed = read::changed_since(&self.link, &self.keys, self.told.load(Ordering::Acquire)).await?;
        for (namespace, version) in changed {
            match namespace {
                Some(namespace) => self.watches.tell(&namespace, version),
                None => self.watches.tell_all(version),
            }
            self.told.fetch_max(version.number(), Ordering::AcqRel);
        }
        Ok(())
    }
}

#[async_trait]
impl Store for RedisStore {
    fn capabilities(&self) -> StoreCapabilities {
        let setup = self.shared.setup.read();
        StoreCapabilities::new(setup.durability).with_shared(true).with_value_bytes_max(Some(setup.value_bytes_max))
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

    async fn lend(&self, _namespace: &Namespace) -> Result<Option<Arc<dyn LentRows>>> {
        Ok(None)
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        read::namespaces(&self.shared.link, &self.shared.keys, &options, self.now(), self.shared.rows_at_once).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        batch.validate(&self.capabilities())?;
        let now = whole_microseconds(self.shared.clock.now());
        let committed = write::commit(&self.shared.link, &self.shared.keys, &batch, now).await?;
        self.shared.watches.tell_of(&batch, Version::new(committed.after));
        Ok(committed.versions)
    }

    async fn current_version(&self) -> Result<Version> {
        read::current_version(&self.shared.link, &self.shared.keys).await
    }

    async fn sweep(&self, limit: usize) -> Result<usize> {
        write::sweep(&self.shared.link, &self.shared.keys, limit, self.now()).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        let watch = self.shared.watches.watch(namespace);
        // What is committed by now is shown by the next read.
        self.shared.tell().await?;
        let watch = watch.caught_up();
        let weak = Arc::downgrade(&self.shared);
        self.shared.watches.poll(WATCH_PAUSE, move || {
            let shared = weak.upgrade();
            async move {
                let Some(shared) = shared else { return Ok(false) };
                shared.tell().await?;
                Ok(true)
            }
        });
        Ok(watch)
    }

    async fn describe(&self) -> Result<StoreDescription> {
        let setup = Setup::ask(&self.shared.link).await?;
        let description = StoreDescription::new(setup.engine.clone(), setup.durability).with_schema(1);
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
