//! Where the keys of a partition are.
//!
//! On one server, all partitions share the keys of the store. In a cluster each partition has keys of its own with a hash tag of its own, so
//! that a store spreads over all masters. They are made with the first row of the partition. A list, which also has keys of its own, names
//! the partitions; only listings of all partitions read it, and whoever finds that a partition has no keys. A partition is put on the list
//! before its keys are made, and marked as ready afterwards. So keys that are missing were either never made, or lost by the server.

use super::error::is_gone;
use super::link::Link;
use super::open;
use super::read;
use super::script::Keys;
use super::write;
use jiff::Timestamp;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use treehold_core::error::{ErrorKind, Result};
use treehold_core::reserved::RESERVED_ROOT;
use treehold_store::{Batch, Condition, Namespace, Partition, ScanEntry, ScanOptions};

/// The marks of a partition on the list: its keys are about to be made, or were made.
const NEW: &[u8] = b"new";
const READY: &[u8] = b"ready";

/// The most partitions whose keys are remembered: some 600 bytes each, 12 KiB for the longest names.
const KNOWN_MAX: usize = 20_000;

/// How long a partition that was seen on the list counts as listed.
const LISTED_FOR: Duration = Duration::from_secs(300);

/// How many partitions are looked for on the list at the same time.
const LISTINGS_MAX: usize = 4;

/// How many partitions are listed at once.
const PAGE: usize = 100;

/// The keys of a partition, and the link to their node.
pub(super) struct Place {
    pub(super) link: Link,
    pub(super) keys: Keys,
}

/// The keys of all partitions.
pub(super) enum Places {
    /// All partitions have the same keys.
    One(Arc<Place>),
    /// Each partition has its own.
    Many(Arc<Cluster>),
}

/// The partitions of a store in a cluster.
pub(super) struct Cluster {
    link: Link,
    prefix: String,
    list: Place,
    /// The version that all partitions had before they had keys of their own.
    base: AtomicU64,
    known: Mutex<HashMap<Partition, Known>>,
    /// How many partitions may be looked for on the list at the same time, beside what commits do.
    listing: Arc<Semaphore>,
}

/// What this process knows of a partition.
struct Known {
    place: Arc<Place>,
    /// When it was last seen on the list.
    listed_at: Option<Instant>,
}

impl Places {
    /// Returns the keys of a partition.
    pub(super) fn of(&self, partition: &Partition) -> Arc<Place> {
        match self {
            Self::One(place) => place.clone(),
            Self::Many(cluster) => cluster.of(partition),
        }
    }

    /// Reads from a partition. `absent` is the answer for one that was never made.
    pub(super) async fn read<T, F: Future<Output = Result<T>>>(
        &self,
        partition: &Partition,
        absent: impl FnOnce() -> T,
        read: impl Fn(Arc<Place>) -> F,
    ) -> Result<T> {
        match (read(self.of(partition)).await, self) {
            (Err(error), Self::Many(cluster)) if is_gone(&error) => match cluster.is_ready(partition).await? {
                // They may have been made in between.
                true => read(self.of(partition)).await,
                false => Ok(absent()),
            },
            (answer, _) => answer,
        }
    }

    /// Applies a valid batch, and makes the keys of its partition if needed.
    pub(super) async fn commit(&self, partition: &Partition, batch: &Batch, now: Timestamp) -> Result<write::Committed> {
        let place = self.of(partition);
        let commit = || write::commit(&place.link, &place.keys, batch, now);
        let Self::Many(cluster) = self else { return commit().await };
        match commit().await {
            Err(error) if is_gone(&error) => {
                if cluster.is_ready(partition).await? {
                    // They may have been made in between.
                    return commit().await;
                }
                // A batch that is refused makes no keys, and neither does one that only removes.
                batch.expect_absent()?;
                if !batch.adds() {
                    return Ok(write::Committed::none());
                }
                cluster.make(partition, &place, now).await?;
                commit().await
            }
            Ok(committed) => {
                // The list may have lost the partition when a replica took over.
                cluster.ensure_listed(partition, now);
                Ok(committed)
            }
            refused => refused,
        }
    }
}

impl Cluster {
    /// Makes the places of a store. `link` is that of its mark.
    pub(super) fn new(link: &Link, prefix: &str) -> Self {
        let keys = Keys::of_partition(prefix, None);
        let list = Place { link: link.for_keys(&keys), keys };
        let (base, known, listing) = (AtomicU64::new(0), Mutex::default(), Arc::new(Semaphore::new(LISTINGS_MAX)));
        Self { link: link.clone(), prefix: prefix.to_owned(), list, base, known, listing }
    }

    /// Sets the version from which new partitions count on.
    pub(super) fn count_from(&self, version: u64) {
        self.base.store(version, Ordering::Relaxed);
    }

    /// Returns the keys of the list.
    pub(super) fn list(&self) -> &Place {
        &self.list
    }

    pub(super) fn of(&self, partition: &Partition) -> Arc<Place> {
        let mut known = self.known.lock();
        if let Some(known) = known.get(partition) {
            return known.place.clone();
        }
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        let keys = Keys::of_partition(&self.prefix, Some(partition));
        let place = Arc::new(Place { link: self.link.for_keys(&keys), keys });
        known.insert(partition.clone(), Known { place: place.clone(), listed_at: None });
        place
    }

    /// Returns whether the list says that the keys of a partition were made.
    async fn is_ready(&self, partition: &Partition) -> Result<bool> {
        let Place { link, keys } = &self.list;
        // Rows of the list never expire, so the time does not matter.
        let row = read::get(link, keys, &listed(), partition.encoded(), 0).await?;
        Ok(row.is_some_and(|row| row.value == READY))
    }

    /// Puts a partition on the list and makes its keys.
    pub(super) async fn make(&self, partition: &Partition, place: &Place, now: Timestamp) -> Result<()> {
        let absent = Batch::new().expect(&listed(), partition.encoded(), Condition::Absent);
        match self.write_list(absent.put(&listed(), partition.encoded(), NEW), now).await {
            // Somebody else is at it, or was stopped.
            Err(error) if error.kind() == ErrorKind::Conflict => {}
            put => put?,
        }
        open::make(&place.link, &place.keys, self.base.load(Ordering::Relaxed)).await?;
        self.list_as_ready(partition, now).await
    }

    async fn list_as_ready(&self, partition: &Partition, now: Timestamp) -> Result<()> {
        self.write_list(Batch::new().put(&listed(), partition.encoded(), READY), now).await?;
        self.saw_on_list(partition);
        Ok(())
    }

    fn saw_on_list(&self, partition: &Partition) {
        if let Some(known) = self.known.lock().get_mut(partition) {
            known.listed_at = Some(Instant::now());
        }
    }

    async fn write_list(&self, batch: Batch, now: Timestamp) -> Result<()> {
        let Place { link, keys } = &self.list;
        write::commit(link, keys, &batch, now).await.map(drop)
    }

    /// Looks for a partition that has keys on the list from time to time, and puts it there if it is missing. The commit that asks for it does
    /// not wait.
    fn ensure_listed(self: &Arc<Self>, partition: &Partition, now: Timestamp) {
        let listed_at = self.known.lock().get(partition).and_then(|known| known.listed_at);
        if listed_at.is_some_and(|at| at.elapsed() < LISTED_FOR) {
            return;
        }
        // Without a permit, the next commit asks for it.
        let Ok(permit) = self.listing.clone().try_acquire_owned() else { return };
        let (cluster, partition) = (self.clone(), partition.clone());
        tokio::spawn(async move {
            let _permit = permit;
            let listing = async {
                if cluster.is_ready(&partition).await? {
                    cluster.saw_on_list(&partition);
                    return Ok(());
                }
                cluster.list_as_ready(&partition, now).await
            };
            let listed: Result<()> = listing.await;
            if let Err(error) = listed {
                tracing::debug!(%partition, %error, "a partition could not be put on the list of partitions");
            }
        });
    }

    /// Returns up to 100 partitions after one, in order: all that the list names, whether or not they hold rows.
    pub(super) async fn page(&self, after: Option<&Partition>, prefix: &str, now: i64) -> Result<Vec<Partition>> {
        let mut options = ScanOptions::new().with_prefix(prefix).with_limit(PAGE);
        options.start_after = after.map(|partition| partition.encoded().to_owned());
        let Place { link, keys } = &self.list;
        let page = read::scan(link, keys, &listed(), &options, now, read::ROWS_AT_ONCE).await?;
        let items = page.entries.iter().map(ScanEntry::key);
        items.map(|key| Namespace::from_encoded(key).map(|namespace| namespace.partition())).collect()
    }
}

/// The namespace of the rows of the list.
pub(super) fn listed() -> Namespace {
    Namespace::new([RESERVED_ROOT, "partitions"]).expect("the components are valid constants")
}
