//! Store mutations: preconditions and writes that apply atomically.

use super::{Item, KEY_BYTES_MAX, META_BYTES_MAX, Namespace, Partition, StoreCapabilities};
use bytes::Bytes;
use jiff::Timestamp;
use std::collections::HashMap;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;

/// Restored versions are below this, so that every engine can count on from there. The tightest engine is Redis, whose
/// scripts represent integers exactly only up to 2^53.
pub(super) const RESTORED_VERSION_END: u64 = 1 << 52;

/// What must hold for a batch to be applied.
///
/// Every engine decides those listed here. A kind that is added later comes with a capability, and [`Batch::validate`]
/// answers `unsupported` for a store that does not declare it, so no engine meets a kind that it does not know:
/// [`unvalidated`] ends its `match`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Condition {
    /// No live item has the key.
    Absent,
    /// A live item has the key.
    Exists,
    /// The live item at the key has this version.
    Version(Version),
    /// No live item has a key that starts with this key and is longer.
    NoneBeneath,
    /// No live item below this key, that is with a longer key that starts with it, is newer than this version. To
    /// detect puts since a scan, pass what [`Store::current_version`](super::Store::current_version) returned before
    /// the scan began. Moves of whole subtrees rely on it.
    NoneBeneathSince(Version),
}

impl Condition {
    /// Returns whether the condition holds, given the version `met`: that of the live item at the key, for
    /// [`Condition::NoneBeneath`] of any live item below it, and for [`Condition::NoneBeneathSince`] of any newer live
    /// item below it.
    pub fn holds(&self, met: Option<Version>) -> bool {
        match self {
            Self::Absent | Self::NoneBeneath | Self::NoneBeneathSince(_) => met.is_none(),
            Self::Exists => met.is_some(),
            Self::Version(version) => met == Some(*version),
        }
    }
}

/// A condition on a key of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Precondition {
    /// The namespace.
    pub namespace: Namespace,
    /// The key; for [`Condition::NoneBeneath`] and [`Condition::NoneBeneathSince`], the prefix.
    pub key: String,
    /// The condition that must hold.
    pub condition: Condition,
}

/// One write of a batch.
///
/// Every engine makes those listed here. A kind that is added later comes with a capability, and [`Batch::validate`]
/// answers `unsupported` for a store that does not declare it, so no engine meets a kind that it does not know:
/// [`unvalidated`] ends its `match`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BatchWrite {
    /// Creates an item, or replaces one and keeps its creation time.
    Put {
        /// The namespace.
        namespace: Namespace,
        /// The key.
        key: String,
        /// Small metadata, which every read returns.
        meta: Bytes,
        /// The body.
        value: Bytes,
        /// How long the item lives; `None` means forever.
        time_to_live: Option<Duration>,
        /// Overrides the creation time, for items that are moved or copied here.
        created_at: Option<Timestamp>,
    },
    /// Appends an item to a log. Its key is [`log_key`] of its version, so a namespace that is written to only by
    /// appends lists its items in commit order, and a reader that continues after the last key it saw misses nothing.
    Append {
        /// The namespace.
        namespace: Namespace,
        /// Small metadata, which every read returns.
        meta: Bytes,
        /// The body.
        value: Bytes,
        /// How long the item lives; `None` means forever.
        time_to_live: Option<Duration>,
    },
    /// Puts an item with its original version and times, to copy one store into another. The store's counter continues
    /// above the highest restored version, so no version is reused. [`Store::commit`](super::Store::commit) does not
    /// return the versions of restores.
    ///
    /// Restore into an empty store only: in a store that is in use, a restored version may have been handed out before
    /// with other content.
    Restore {
        /// The namespace.
        namespace: Namespace,
        /// The item; its times are truncated to whole microseconds.
        item: Item,
    },
    /// Changes only the expiry of a live item: its version, its times and the store's counter stay. Touching an absent
    /// item is not an error.
    Touch {
        /// The namespace.
        namespace: Namespace,
        /// The key.
        key: String,
        /// How long the item lives from now on; `None` means forever.
        time_to_live: Option<Duration>,
    },
    /// Removes one item. Deleting an absent item is not an error.
    Delete {
        /// The namespace.
        namespace: Namespace,
        /// The key.
        key: String,
    },
    /// Removes every item whose key starts with the prefix.
    DeletePrefix {
        /// The namespace.
        namespace: Namespace,
        /// The prefix; an empty one removes all items of the namespace.
        prefix: String,
    },
}

impl BatchWrite {
    /// Returns the namespace of the rows that the write changes.
    pub fn namespace(&self) -> &Namespace {
        match self {
            Self::Put { namespace, .. }
            | Self::Append { namespace, .. }
            | Self::Restore { namespace, .. }
            | Self::Touch { namespace, .. }
            | Self::Delete { namespace, .. }
            | Self::DeletePrefix { namespace, .. } => namespace,
        }
    }
}

/// Preconditions and writes that apply atomically. All of them are about rows of one [`Partition`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Batch {
    /// What must hold for the writes to apply.
    pub preconditions: Vec<Precondition>,
    /// The writes, applied in order.
    pub writes: Vec<BatchWrite>,
}

impl Batch {
    /// Makes an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a precondition.
    #[must_use]
    pub fn expect(mut self, namespace: &Namespace, key: impl Into<String>, condition: Condition) -> Self {
        self.preconditions.push(Precondition { namespace: namespace.clone(), key: key.into(), condition });
        self
    }

    /// Adds a put without metadata or expiry.
    #[must_use]
    pub fn put(self, namespace: &Namespace, key: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.put_with_meta(namespace, key, Bytes::new(), value)
    }

    /// Adds a put with metadata and without expiry.
    #[must_use]
    pub fn put_with_meta(self, namespace: &Namespace, key: impl Into<String>, meta: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        self.put_item(namespace, key, meta, value, None)
    }

    /// Adds a put without metadata that expires `time_to_live` from the commit.
    #[must_use]
    pub fn put_for(self, namespace: &Namespace, key: impl Into<String>, value: impl Into<Bytes>, time_to_live: Duration) -> Self {
        self.put_item(namespace, key, Bytes::new(), value, Some(time_to_live))
    }

    /// Adds a put with metadata that expires `time_to_live` from the commit, or never.
    #[must_use]
    pub fn put_item(
        mut self,
        namespace: &Namespace,
        key: impl Into<String>,
        meta: impl Into<Bytes>,
        value: impl Into<Bytes>,
        time_to_live: Option<Duration>,
    ) -> Self {
        self.writes.push(BatchWrite::Put {
            namespace: namespace.clone(),
            key: key.into(),
            meta: meta.into(),
            value: value.into(),
            time_to_live,
            created_at: None,
        });
        self
    }

    /// Appends an item to a log, see [`BatchWrite::Append`].
    #[must_use]
    pub fn append(mut self, namespace: &Namespace, value: impl Into<Bytes>, time_to_live: Option<Duration>) -> Self {
        let (namespace, value) = (namespace.clone(), value.into());
        self.writes.push(BatchWrite::Append { namespace, meta: Bytes::new(), value, time_to_live });
        self
    }

    /// Adds an item with its original version and times, see [`BatchWrite::Restore`].
    #[must_use]
    pub fn restore(mut self, namespace: &Namespace, item: Item) -> Self {
        self.writes.push(BatchWrite::Restore { namespace: namespace.clone(), item });
        self
    }

    /// Changes the expiry of an item, see [`BatchWrite::Touch`].
    #[must_use]
    pub fn touch(mut self, namespace: &Namespace, key: impl Into<String>, time_to_live: Option<Duration>) -> Self {
        self.writes.push(BatchWrite::Touch { namespace: namespace.clone(), key: key.into(), time_to_live });
        self
    }

    /// Adds a delete.
    #[must_use]
    pub fn delete(mut self, namespace: &Namespace, key: impl Into<String>) -> Self {
        self.writes.push(BatchWrite::Delete { namespace: namespace.clone(), key: key.into() });
        self
    }

    /// Adds a delete of every key with a prefix.
    #[must_use]
    pub fn delete_prefix(mut self, namespace: &Namespace, prefix: impl Into<String>) -> Self {
        self.writes.push(BatchWrite::DeletePrefix { namespace: namespace.clone(), prefix: prefix.into() });
        self
    }

    fn appends_to(&self, space: &Namespace) -> bool {
        self.writes.iter().any(|write| matches!(write, BatchWrite::Append { namespace, .. } if namespace == space))
    }

    /// Returns whether the batch has no writes.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Returns the namespace of each write that counts as a change; touches do not.
    pub fn written(&self) -> impl Iterator<Item = &Namespace> {
        self.writes.iter().filter(|write| !matches!(write, BatchWrite::Touch { .. })).map(BatchWrite::namespace)
    }

    /// Returns the total size of the keys, metadata and bodies in bytes.
    pub fn size_bytes(&self) -> usize {
        let bytes = |write: &BatchWrite| match write {
            BatchWrite::Put { key, meta, value, .. } => key.len() + meta.len() + value.len(),
            BatchWrite::Append { meta, value, .. } => LOG_KEY_BYTES + meta.len() + value.len(),
            BatchWrite::Restore { item, .. } => item.key.len() + item.meta.len() + item.value.len(),
            BatchWrite::Touch { key, .. } | BatchWrite::Delete { key, .. } => key.len(),
            BatchWrite::DeletePrefix { prefix, .. } => prefix.len(),
        };
        self.writes.iter().map(bytes).sum()
    }

    /// Returns the namespaces of the preconditions and then of the writes, in order.
    pub fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        let checked = self.preconditions.iter().map(|precondition| &precondition.namespace);
        checked.chain(self.writes.iter().map(BatchWrite::namespace))
    }

    /// Returns the partition that the batch checks and changes, that of its first namespace; `None` if it does neither.
    pub fn partition(&self) -> Option<Partition> {
        self.namespaces().next().map(Namespace::partition)
    }

    /// Checks the preconditions on a partition without rows, for engines that create what holds a partition with its first row.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) as [`Store::commit`](super::Store::commit).
    pub fn expect_absent(&self) -> Result<()> {
        let failed = self.preconditions.iter().enumerate().find(|(_, precondition)| !precondition.condition.holds(None));
        failed.map_or(Ok(()), |(index, precondition)| Err(precondition_failed(index, precondition, None)))
    }

    /// Returns whether the batch has writes that add rows.
    pub fn adds(&self) -> bool {
        let adds = |write: &BatchWrite| matches!(write, BatchWrite::Put { .. } | BatchWrite::Append { .. } | BatchWrite::Restore { .. });
        self.writes.iter().any(adds)
    }

    /// Splits the writes by the partitions that they change, in the order of their first writes. For batches whose parts need not commit
    /// together.
    pub fn by_partition(writes: impl IntoIterator<Item = BatchWrite>) -> Vec<(Partition, Self)> {
        let mut parts: Vec<(Partition, Self)> = Vec::new();
        let mut places: HashMap<Partition, usize> = HashMap::new();
        for write in writes {
            let partition = write.namespace().partition();
            let place = *places.entry(partition.clone()).or_insert(parts.len());
            if place == parts.len() {
                parts.push((partition, Self::new()));
            }
            parts[place].1.writes.push(write);
        }
        parts
    }

    /// Checks a batch against what stores accept: one partition, keys, metadata and bodies within the limits, and the kinds of writes and
    /// conditions that this store declares. Every engine calls this before it sends anything. It is the one place that
    /// refuses what an engine does not know.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) for a batch that checks or changes rows of two partitions, in every store.
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a key that is empty, too long or contains NUL, for a
    /// restored version of 0 or of at least 2^52, and for a prefix delete in a namespace that the batch appends to.
    /// [`TooLarge`](ErrorKind::TooLarge) for metadata or a body over the limit.
    pub fn validate(&self, capabilities: &StoreCapabilities) -> Result<()> {
        let mut namespaces = self.namespaces();
        if let Some(first) = namespaces.next()
            && let Some(other) = namespaces.find(|namespace| !namespace.shares_partition(first))
        {
            return Err(over_two_partitions(first, other));
        }
        for write in &self.writes {
            let (key, meta, value) = match write {
                BatchWrite::Put { key, meta, value, .. } => (key.as_str(), meta, value),
                BatchWrite::Append { meta, value, .. } => ("-", meta, value),
                BatchWrite::Restore { item, .. } if item.version.number() == 0 => {
                    let message = "the version of the item to restore is 0, which no put assigns; no store made it";
                    return Err(Error::invalid_argument(message));
                }
                BatchWrite::Restore { item, .. } if item.version.number() >= RESTORED_VERSION_END => {
                    let message = "the version of the item to restore exceeds the largest that stores assign; no store made it";
                    return Err(Error::invalid_argument(message));
                }
                BatchWrite::Restore { item, .. } => (item.key.as_str(), &item.meta, &item.value),
                BatchWrite::DeletePrefix { namespace, .. } if self.appends_to(namespace) => {
                    let message = format!(
                        "the batch adds to the log `{namespace}` and removes from it by prefix; \
                        split it into two batches"
                    );
                    return Err(Error::invalid_argument(message));
                }
                BatchWrite::Touch { .. } | BatchWrite::Delete { .. } | BatchWrite::DeletePrefix { .. } => continue,
            };
            if key.is_empty() || key.contains('\0') {
                return Err(Error::invalid_argument("a key is empty or contains NUL; use a nonempty text without NUL"));
            }
            if key.len() > KEY_BYTES_MAX {
                return Err(Error::invalid_argument(format!("the key is over {KEY_BYTES_MAX} bytes; shorten it")));
            }
            if meta.len() > META_BYTES_MAX {
                return Err(Error::new(
                    ErrorKind::TooLarge,
                    format!("the meta of a row is over {META_BYTES_MAX} bytes; put it into the value"),
                ));
            }
            if capabilities.value_bytes_max.is_some_and(|max| value.len() as u64 > max) {
                return Err(Error::new(
                    ErrorKind::TooLarge,
                    format!(
                        "the content has {} bytes and this store accepts at most {}; split it",
                        value.len(),
                        capabilities.value_bytes_max.unwrap_or_default()
                    ),
                ));
            }
        }
        Ok(())
    }
}

fn over_two_partitions(one: &Namespace, other: &Namespace) -> Error {
    Error::unsupported(format!(
        "the batch spans the partitions `{}` (of `{one}`) and `{}` (of `{other}`); commit one batch for each, or keep rows that change together \
        in one partition",
        one.partition(),
        other.partition()
    ))
}

/// Ends an engine's `match` over [`BatchWrite`] or [`Condition`], which other crates cannot match exhaustively.
///
/// # Panics
/// Always: [`Batch::validate`] refuses the kinds that an engine does not declare.
#[track_caller]
pub fn unvalidated() -> ! {
    unreachable!("`Batch::validate` refuses the kinds that the engine does not know")
}

/// The length of a [`log_key`] in bytes.
const LOG_KEY_BYTES: usize = 20;

/// Returns the key of the log item with this version: the version as 20 decimal digits, padded with zeros.
pub fn log_key(version: Version) -> String {
    format!("{:020}", version.number())
}

/// Makes the [`Conflict`](ErrorKind::Conflict) error for a precondition that did not hold.
pub fn precondition_failed(index: usize, precondition: &Precondition, current: Option<Version>) -> Error {
    let key = precondition.key.replace('\u{1}', "/");
    let message = match (&precondition.condition, current) {
        (Condition::Absent, _) => format!("`{key}` exists already"),
        (Condition::NoneBeneath, _) => format!("`{key}` is not empty"),
        (Condition::NoneBeneathSince(_), _) => format!("something was put beneath `{key}` meanwhile"),
        (Condition::Exists | Condition::Version(_), None) => format!("`{key}` no longer exists"),
        (Condition::Exists | Condition::Version(_), Some(version)) => format!("`{key}` has changed: its version is now `{version}`"),
    };
    Error::new(ErrorKind::Conflict, message).with_current_version(current).in_batch(index, 0)
}
