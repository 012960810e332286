//! A store that records its calls.

use super::{Action, Condition, Journal, Outcome, Requirement, Seen, Sight, Write};
use async_trait::async_trait;
use bytes::Bytes;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_store::{
    self as store, Batch, BatchWrite, Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Partition, Scan, ScanOptions, Store,
    StoreCapabilities, StoreExtensions, Watch,
};

/// A store that records reads by key, commits and reads of version counters in a [`Journal`]. Scans are not recorded.
///
/// A commit whose future is dropped, or whose error does not rule out an effect, stays open in the journal.
#[derive(Debug)]
pub struct RecordedStore {
    inner: Arc<dyn Store>,
    journal: Journal,
}

impl RecordedStore {
    /// Wraps a store. It must be empty, and all its writers must keep a journal.
    pub fn new(inner: Arc<dyn Store>, journal: Journal) -> Self {
        Self { inner, journal }
    }
}

impl fmt::Display for RecordedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recorded({})", self.inner)
    }
}

#[async_trait]
impl Store for RecordedStore {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        self.inner.extensions()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        let start = self.journal.start();
        let item = self.inner.get(namespace, key).await?;
        self.journal.answered(start, Action::Read(vec![sight(namespace, key, item.as_ref(), true)]));
        Ok(item)
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        let start = self.journal.start();
        let part = self.inner.get_part(namespace, key, range).await?;
        let is_whole = part.as_ref().is_none_or(ItemPart::is_whole);
        self.journal.answered(start, Action::Read(vec![sight(namespace, key, part.as_ref().map(|part| &part.item), is_whole)]));
        Ok(part)
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        let start = self.journal.start();
        let items = self.inner.get_many(namespace, keys, with_values).await?;
        let sights = keys.iter().zip(&items).map(|(key, item)| sight(namespace, key, item.as_ref(), with_values));
        self.journal.answered(start, Action::Read(sights.collect()));
        Ok(items)
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.inner.scan(namespace, options).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.inner.namespaces(options).await
    }

    /// Records and commits a batch.
    ///
    /// # Panics
    /// If the batch contains a write that a history cannot represent: a time to live, an append or a restore.
    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        let number = self.journal.begin(action(&batch));
        let answer = self.inner.commit(batch).await;
        let outcome = match &answer {
            Ok(versions) => Some(Outcome::Done(versions.iter().map(|version| version.number()).collect())),
            Err(error) => outcome_of(error),
        };
        if let Some(outcome) = outcome {
            self.journal.finish(number, outcome);
        }
        answer
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        let start = self.journal.start();
        let version = self.inner.current_version(partition).await?;
        self.journal.answered(start, Action::CurrentVersion { partition: partition.to_string(), version: version.number() });
        Ok(version)
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.inner.watch(namespace).await
    }
}

/// Joins the partition, the namespace and the key with a separator that none of them contains.
fn place(namespace: &Namespace, key: &str) -> String {
    format!("{}\0{namespace}\0{key}", namespace.partition())
}

fn sight(namespace: &Namespace, key: &str, item: Option<&Item>, with_value: bool) -> Sight {
    let row = item.map(|item| Seen { version: item.version.number(), value: with_value.then(|| content(&item.meta, &item.value)) });
    Sight { key: place(namespace, key), row }
}

/// Returns a short text that represents metadata and body: the body itself if it is short text without metadata, else a digest.
fn content(meta: &Bytes, value: &Bytes) -> String {
    match std::str::from_utf8(value) {
        Ok(text) if meta.is_empty() && text.len() <= 64 => text.to_owned(),
        _ => {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&(meta.len() as u64).to_le_bytes()).update(meta).update(value);
            format!("blake3:{}", hasher.finalize().to_hex())
        }
    }
}

fn action(batch: &Batch) -> Action {
    let requirement = |precondition: &store::Precondition| {
        let condition = match &precondition.condition {
            store::Condition::Absent => Condition::Absent,
            store::Condition::Exists => Condition::Exists,
            store::Condition::Version(version) => Condition::Version(version.number()),
            store::Condition::NoneBeneath => Condition::NoneBeneath,
            store::Condition::NoneBeneathSince(version) => Condition::NoneBeneathSince(version.number()),
            other => panic!("a history cannot represent the condition `{other:?}`"),
        };
        Requirement { key: place(&precondition.namespace, &precondition.key), condition }
    };
    let write = |write: &BatchWrite| match write {
        BatchWrite::Put { namespace, key, meta, value, time_to_live: None, .. } => {
            Some(Write::Put { key: place(namespace, key), value: content(meta, value) })
        }
        BatchWrite::Delete { namespace, key } => Some(Write::Delete { key: place(namespace, key) }),
        BatchWrite::DeletePrefix { namespace, prefix } => Some(Write::DeletePrefix { prefix: place(namespace, prefix) }),
        // An item without expiry keeps living without expiry.
        BatchWrite::Touch { time_to_live: None, .. } => None,
        other => panic!("a history cannot represent {other:?}"),
    };
    Action::Commit {
        conditions: batch.preconditions.iter().map(requirement).collect(),
        writes: batch.writes.iter().filter_map(write).collect(),
        outcome: Outcome::Unknown,
    }
}

/// Returns the outcome of a failed batch, or `None` if the error leaves it open.
fn outcome_of(error: &Error) -> Option<Outcome> {
    match error.change() {
        Some(index) if error.kind() == ErrorKind::Conflict => {
            Some(Outcome::Refused { index, met: error.current_version().map(Version::number) })
        }
        _ => (!error.may_have_effect()).then_some(Outcome::Failed),
    }
}
