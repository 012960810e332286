//! The version counters of a whole store, partition by partition.

use super::faults::Lost;
use super::listing::AllNamespaces;
use super::{Batch, Item, Partition, Store, Withheld};
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use jiff::Timestamp;
use std::collections::BTreeSet;
use treehold_core::error::Result;
use treehold_core::ops::Version;
use treehold_core::reserved::COPY;

/// How many counters are read at the same time.
const READS: usize = 16;

/// The key of a transient row whose version raises a counter.
const COUNTER_KEY: &str = "treehold-copy-counter";

/// The versions of the partitions that hold rows. Memory: some 100 bytes for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Versions(Vec<(Partition, Version)>);

impl Versions {
    /// Reads the counters of a store, without those of partitions that hold only withheld rows. Lists all namespaces.
    ///
    /// The partition of the notes of copies is always among them. So the one counter of an engine that has no other is known even if the store
    /// holds no rows any more.
    ///
    /// With `lost`, partitions that cannot be read are added to it and left out. Only for a store whose partitions can fail alone.
    ///
    /// The counters are not of one moment. If two reads return the same, nothing changed from the end of the first to the start of the second.
    pub(super) async fn of(store: &dyn Store, included: &BTreeSet<Withheld>, mut lost: Option<&mut Lost>) -> Result<Self> {
        let mut partitions: Vec<Partition> = Vec::new();
        let mut listing = AllNamespaces::new(store);
        while let Some(page) = listing.next_page_past(lost.as_deref_mut()).await? {
            let shown = page.iter().filter(|namespace| Withheld::of(namespace).is_none_or(|withheld| included.contains(&withheld)));
            for namespace in shown {
                if partitions.last().is_none_or(|last| !last.contains(namespace)) {
                    partitions.push(namespace.partition());
                }
            }
        }
        partitions.push(notes());
        let reads = partitions.into_iter().map(|partition| async move {
            let version = store.current_version(&partition).await;
            (partition, version)
        });
        let mut reads = std::pin::pin!(stream::iter(reads).buffered(READS));
        let mut versions = Vec::new();
        while let Some((partition, version)) = reads.next().await {
            match (version, lost.as_deref_mut()) {
                (Err(error), Some(lost)) => lost.add(Some(&partition), error),
                (version, _) => versions.push((partition, version?)),
            }
        }
        Ok(Self(versions))
    }

    /// Returns the newest of them; 0 for an empty store.
    pub(super) fn newest(&self) -> Version {
        self.0.iter().map(|(_, version)| *version).max().unwrap_or(Version::new(0))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Partition, Version)> {
        self.0.iter().map(|(partition, version)| (partition, *version))
    }
}

/// Returns the partition of the notes of copies.
pub(super) fn notes() -> Partition {
    Partition::new(COPY).expect("the components are valid constants")
}

/// Returns the batch that raises the counter of a partition to a version: a row is restored with that version and removed again.
pub(super) fn lift(partition: &Partition, version: Version) -> Result<Batch> {
    let place = partition.namespace(COPY).or_else(|_| partition.namespace([""; 0]))?;
    let (empty, at) = (Bytes::new(), Timestamp::UNIX_EPOCH);
    Ok(Batch::new().restore(&place, Item::new(COUNTER_KEY, empty.clone(), empty, version, at, at)).delete(&place, COUNTER_KEY))
}
