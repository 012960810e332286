//! What changes a store: preconditions and writes that take effect as one.

use super::{Item, KEY_BYTES_MAX, META_BYTES_MAX, Namespace, StoreCapabilities};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::Version;
use bytes::Bytes;
use jiff::Timestamp;
use std::time::Duration;

/// Restored versions are below this. Every engine can count far on from there: the smallest end of all is that of numbers in
/// scripts of Redis, which are exact up to 2^53.
pub(super) const RESTORED_VERSION_END: u64 = 1 << 52;

/// What must hold for a batch to be applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// No live item has the key.
    Absent,
    /// A live item has the key.
    Exists,
    /// The live item at the key has this version.
    Version(Version),
    /// No live item has a key that starts with the key and is longer than it.
    NoneBeneath,
    /// No live item whose key starts with the key and is longer than it is newer than this version: since a scan that began
    /// after [`Store::current_version`](super::Store::current_version) returned it, nothing was put there. What moves a whole
    /// subtree relies on it.
    NoneBeneathSince(Version),
}

impl Condition {
    /// Decides by the version met: of the live item at the key, of [`Condition::NoneBeneath`] any live one beneath it, and of
    /// [`Condition::NoneBeneathSince`] any live one beneath it that is newer.
    pub(crate) fn holds(&self, met: Option<Version>) -> bool {
        match self {
            Self::Absent | Self::NoneBeneath | Self::NoneBeneathSince(_) => met.is_none(),
            Self::Exists => met.is_some(),
            Self::Version(version) => met == Some(*version),
        }
    }
}

/// A condition at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Precondition {
    /// The namespace.
    pub namespace: Namespace,
    /// The key; of [`Condition::NoneBeneath`] and [`Condition::NoneBeneathSince`], the prefix.
    pub key: String,
    /// What must hold.
    pub condition: Condition,
}

/// One write of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchWrite {
    /// Puts an item: creates it, or replaces it whole and keeps its creation time.
    Put {
        /// The namespace.
        namespace: Namespace,
        /// The key.
        key: String,
        /// The small part.
        meta: Bytes,
        /// The body.
        value: Bytes,
        /// How long it lives; for good when none.
        time_to_live: Option<Duration>,
        /// Sets the creation time instead of keeping or starting one: for what is moved or copied in.
        created_at: Option<Timestamp>,
    },
    /// Adds an item at the end of a log: its key is [`log_key`] of its version, so that the items of a namespace which is written to in
    /// this way alone stand in the order of their commits. Whoever read up to some key finds all that was committed later behind it.
    Append {
        /// The namespace.
        namespace: Namespace,
        /// The small part.
        meta: Bytes,
        /// The body.
        value: Bytes,
        /// How long it lives; for good when none.
        time_to_live: Option<Duration>,
    },
    /// Puts an item just as it was elsewhere: with its version and its times. What copies one store into another is made of
    /// these; the store's counter goes on behind the highest version restored, so no version is used again. The version of a
    /// restore is not among those that a commit returns.
    ///
    /// Into a store that is in use it may bring a version that was seen there with other content: restore into an empty one.
    Restore {
        /// The namespace.
        namespace: Namespace,
        /// The item; its times are cut to whole microseconds.
        item: Item,
    },
    /// Sets how long the live item of a key still lives, and nothing else: neither its version nor its times change, and the
    /// store's counter stays. One that is absent is no error.
    Touch {
        /// The namespace.
        namespace: Namespace,
        /// The key.
        key: String,
        /// How long it lives from now on; for good when none.
        time_to_live: Option<Duration>,
    },
    /// Removes the item of one key; one that is absent is no error.
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
        /// The prefix; the empty one removes the whole namespace.
        prefix: String,
    },
}

/// Preconditions and writes that take effect as one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Batch {
    /// What must hold.
    pub preconditions: Vec<Precondition>,
    /// What is written, in order.
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

    /// Adds a put without meta that lives for good.
    #[must_use]
    pub fn put(self, namespace: &Namespace, key: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.put_with_meta(namespace, key, Bytes::new(), value)
    }

    /// Adds a put that lives for good.
    #[must_use]
    pub fn put_with_meta(self, namespace: &Namespace, key: impl Into<String>, meta: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        self.put_item(namespace, key, meta, value, None)
    }

    /// Adds a put that lives for `time_to_live` from now.
    #[must_use]
    pub fn put_for(self, namespace: &Namespace, key: impl Into<String>, value: impl Into<Bytes>, time_to_live: Duration) -> Self {
        self.put_item(namespace, key, Bytes::new(), value, Some(time_to_live))
    }

    /// Adds a put with a meta that lives for `time_to_live` from now, or for good.
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

    /// Adds an item at the end of a log, see [`BatchWrite::Append`].
    #[must_use]
    pub fn append(mut self, namespace: &Namespace, value: impl Into<Bytes>, time_to_live: Option<Duration>) -> Self {
        let (namespace, value) = (namespace.clone(), value.into());
        self.writes.push(BatchWrite::Append { namespace, meta: Bytes::new(), value, time_to_live });
        self
    }

    /// Adds an item just as it was elsewhere, see [`BatchWrite::Restore`].
    #[must_use]
    pub fn restore(mut self, namespace: &Namespace, item: Item) -> Self {
        self.writes.push(BatchWrite::Restore { namespace: namespace.clone(), item });
        self
    }

    /// Sets how long an item still lives, see [`BatchWrite::Touch`].
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

    /// Adds the delete of every key with a prefix.
    #[must_use]
    pub fn delete_prefix(mut self, namespace: &Namespace, prefix: impl Into<String>) -> Self {
        self.writes.push(BatchWrite::DeletePrefix { namespace: namespace.clone(), prefix: prefix.into() });
        self
    }

    fn appends_to(&self, space: &Namespace) -> bool {
        self.writes.iter().any(|write| matches!(write, BatchWrite::Append { namespace, .. } if namespace == space))
    }

    /// Tells whether the batch writes nothing.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Returns the namespace of each write that is a change.
    pub(super) fn written(&self) -> impl Iterator<Item = &Namespace> {
        self.writes.iter().filter_map(|write| match write {
            BatchWrite::Put { namespace, .. }
            | BatchWrite::Append { namespace, .. }
            | BatchWrite::Restore { namespace, .. }
            | BatchWrite::Delete { namespace, .. }
            | BatchWrite::DeletePrefix { namespace, .. } => Some(namespace),
            BatchWrite::Touch { .. } => None,
        })
    }

    /// Returns how many bytes it writes: keys, metas and bodies.
    #[cfg(any(test, feature = "mysql", feature = "postgres", feature = "redis", feature = "sled", feature = "sqlite"))]
    pub(super) fn size_bytes(&self) -> usize {
        let bytes = |write: &BatchWrite| match write {
            BatchWrite::Put { key, meta, value, .. } => key.len() + meta.len() + value.len(),
            BatchWrite::Append { meta, value, .. } => LOG_KEY_BYTES + meta.len() + value.len(),
            BatchWrite::Restore { item, .. } => item.key.len() + item.meta.len() + item.value.len(),
            BatchWrite::Touch { key, .. } | BatchWrite::Delete { key, .. } => key.len(),
            BatchWrite::DeletePrefix { prefix, .. } => prefix.len(),
        };
        self.writes.iter().map(bytes).sum()
    }

    /// Checks keys, metas and bodies against the limits of a store; every engine calls it before anything is sent.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a key that is empty, too long or holds NUL, a restored version that is
    /// 0 or from 2^52 on, and a range delete in a namespace that the batch appends to,
    /// [`TooLarge`](ErrorKind::TooLarge) for a meta or body over the limit.
    pub fn validate(&self, capabilities: &StoreCapabilities) -> Result<()> {
        for write in &self.writes {
            let (key, meta, value) = match write {
                BatchWrite::Put { key, meta, value, .. } => (key.as_str(), meta, value),
                BatchWrite::Append { meta, value, .. } => ("-", meta, value),
                BatchWrite::Restore { item, .. } if item.version.number() == 0 => {
                    let message = "the version of the item to restore is 0, which no put gives; it was not made by a store";
                    return Err(Error::invalid_argument(message));
                }
                BatchWrite::Restore { item, .. } if item.version.number() >= RESTORED_VERSION_END => {
                    let message = "the version of the item to restore is beyond what stores count to; it was not made by a store";
                    return Err(Error::invalid_argument(message));
                }
                BatchWrite::Restore { item, .. } => (item.key.as_str(), &item.meta, &item.value),
                BatchWrite::DeletePrefix { namespace, .. } if self.appends_to(namespace) => {
                    let message = format!("the batch adds to the log `{namespace}` and removes from it by prefix; make two batches of it");
                    return Err(Error::invalid_argument(message));
                }
                BatchWrite::Touch { .. } | BatchWrite::Delete { .. } | BatchWrite::DeletePrefix { .. } => continue,
            };
            if key.is_empty() || key.contains('\0') {
                return Err(Error::invalid_argument("a key is empty or holds NUL; name the row by a text"));
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
                        "the content has {} bytes and this store takes at most {}; split it",
                        value.len(),
                        capabilities.value_bytes_max.unwrap_or_default()
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// How many bytes [`log_key`] has.
#[cfg(any(test, feature = "mysql", feature = "postgres", feature = "redis", feature = "sled", feature = "sqlite"))]
const LOG_KEY_BYTES: usize = 20;

/// Returns the key of an item that was added to a log at a version: its decimal digits, 20 of them.
pub fn log_key(version: Version) -> String {
    format!("{:020}", version.number())
}

/// Makes the `conflict` of a precondition that did not hold.
pub(crate) fn precondition_failed(index: usize, precondition: &Precondition, current: Option<Version>) -> Error {
    let key = precondition.key.replace('\u{1}', "/");
    let message = match (&precondition.condition, current) {
        (Condition::Absent, _) => format!("`{key}` exists already"),
        (Condition::NoneBeneath, _) => format!("`{key}` is not empty"),
        (Condition::NoneBeneathSince(_), _) => format!("something was put beneath `{key}` meanwhile"),
        (Condition::Exists | Condition::Version(_), None) => format!("`{key}` does not exist any more"),
        (Condition::Exists | Condition::Version(_), Some(version)) => format!("`{key}` has changed: its version is now `{version}`"),
    };
    Error::new(ErrorKind::Conflict, message).with_current_version(current).in_batch(index, 0)
}
