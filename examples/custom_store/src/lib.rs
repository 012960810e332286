//! A complete custom store: one append-only file and an index in memory.
//!
//! Each batch is one record of the file, written and flushed before it is acknowledged. The index is updated from
//! the written record, so opening the file again, which applies all records, results in the same state. Bodies
//! stay in the file.
//!
//! - `lib.rs` is the [`Store`]: it reads the index, and decides and writes batches.
//! - `log.rs` is the file: records with checksums.
//! - `index.rs` is the index, and the effect of a record on it.
//! - `engine.rs` registers the scheme `log:` for configurations and commands.

mod engine;
mod index;
mod log;

pub use engine::LogEngine;

use async_trait::async_trait;
use index::{Index, Row};
use jiff::Timestamp;
use log::Log;
use parking_lot::RwLock;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use treehold::ops::{Durability, Version};
use treehold::store::effect::Effect;
use treehold::store::page::{PageBuilder, Step};
use treehold::store::{
    Batch, Condition, Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Partition, Precondition, Scan, ScanOptions, Store,
    StoreCapabilities, StoreExtensions, Watch, Watches, precondition_failed, unvalidated, whole_microseconds, within,
};
use treehold::{Error, ErrorKind, Result};

/// A store in one append-only file. Clones share it.
#[derive(Clone)]
pub struct LogStore(Arc<Shared>);

struct Shared {
    name: String,
    files: RwLock<Files>,
    watches: Arc<Watches>,
}

/// The file and its index. A reader holds the lock, so it sees whole batches.
struct Files {
    log: Log,
    index: Index,
}

impl LogStore {
    /// The capabilities of every store of this engine.
    pub fn offers() -> StoreCapabilities {
        StoreCapabilities::new(Durability::Power)
    }

    /// Opens the store in a file, or creates it. Blocks. Cost: reads the whole file.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) if the file cannot be opened or is open already,
    /// [`Corrupt`](ErrorKind::Corrupt) if it is not a log.
    pub fn open(path: &Path) -> Result<Self> {
        let mut index = Index::default();
        let log = Log::open(path, |record, at| index.apply(record, at))?;
        let name = format!("log:{}", path.display());
        Ok(Self(Arc::new(Shared { name, files: RwLock::new(Files { log, index }), watches: Arc::default() })))
    }

    /// Runs work that may wait for the disk. It completes even if the caller is dropped.
    async fn blocking<T: Send + 'static>(&self, run: impl FnOnce(&Shared) -> Result<T> + Send + 'static) -> Result<T> {
        let shared = self.0.clone();
        let stopped = |error| Error::new(ErrorKind::Internal, "a call of the store was interrupted").with_source(error);
        tokio::task::spawn_blocking(move || run(&shared)).await.map_err(stopped)?
    }
}

impl Files {
    fn item(&self, key: &str, row: &Row, with_value: bool) -> Result<Item> {
        let value = if with_value { self.value(row, 0..row.value_bytes)? } else { Vec::new() };
        let item = Item::new(key, row.meta.clone(), value.into(), row.version, row.created_at, row.modified_at);
        Ok(item.with_expires_at(row.expires_at))
    }

    fn value(&self, row: &Row, range: Range<u64>) -> Result<Vec<u8>> {
        self.log.read(row.value_at + range.start, range.end - range.start).map_err(failed)
    }

    /// Finds the version that decides a precondition.
    fn met(&self, Precondition { namespace, key, condition, .. }: &Precondition, now: Timestamp) -> Option<Version> {
        let beneath = |since: Version| {
            let rows = self.index.rows(namespace, key.clone()).filter(|(found, row)| *found != key && row.is_live(now));
            rows.take_while(|(found, _)| found.starts_with(key.as_str())).find(|(_, row)| row.version > since)
        };
        match condition {
            Condition::Absent | Condition::Exists | Condition::Version(_) => self.index.live(namespace, key, now).map(|row| row.version),
            Condition::NoneBeneath => beneath(Version::new(0)).map(|(_, row)| row.version),
            Condition::NoneBeneathSince(since) => beneath(*since).map(|(_, row)| row.version),
            _ => unvalidated(),
        }
    }
}

impl Shared {
    fn commit(&self, batch: &Batch) -> Result<Vec<Version>> {
        let now = whole_microseconds(Timestamp::now());
        let mut files = self.files.write();
        for (place, precondition) in batch.preconditions.iter().enumerate() {
            let met = files.met(precondition, now);
            if !precondition.condition.holds(met) {
                return Err(precondition_failed(place, precondition, met));
            }
        }
        let effect = Effect::of(&batch.writes, now);
        let (record, version) = files.index.record(&effect, now);
        let first = files.index.version() + 1;
        let at = files.log.append(&record).map_err(failed)?;
        files.index.apply(&record, at)?;
        drop(files);
        self.watches.notify_batch(batch, version);
        Ok(effect.versions.iter().map(|number| Version::new(first + number)).collect())
    }
}

#[async_trait]
impl Store for LogStore {
    fn capabilities(&self) -> StoreCapabilities {
        Self::offers()
    }

    /// No extensions: reports are computed by scans, and expired rows are dropped when the file is opened.
    fn extensions(&self) -> StoreExtensions<'_> {
        StoreExtensions::new()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        Ok(self.get_many(namespace, &[key], true).await?.pop().flatten())
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        let (namespace, key) = (namespace.clone(), key.to_owned());
        self.blocking(move |shared| {
            let files = shared.files.read();
            let Some(row) = files.index.live(&namespace, &key, Timestamp::now()) else { return Ok(None) };
            let value = files.value(row, within(&range, row.value_bytes))?;
            Ok(Some(ItemPart::new(files.item(&key, row, false)?.with_value(value), row.value_bytes)))
        })
        .await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        let namespace = namespace.clone();
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        self.blocking(move |shared| {
            let (files, now) = (shared.files.read(), Timestamp::now());
            let item = |key: &String| {
                let row = files.index.live(&namespace, key, now);
                row.map(|row| files.item(key, row, with_values)).transpose()
            };
            keys.iter().map(item).collect()
        })
        .await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        let namespace = namespace.clone();
        self.blocking(move |shared| {
            let (files, now) = (shared.files.read(), Timestamp::now());
            let mut page = PageBuilder::new(options);
            let (mut start, end) = (page.start(), page.end());
            while let Some(from) = start.take() {
                let rows = files.index.rows(&namespace, from).take_while(|(key, _)| end.as_ref().is_none_or(|end| *key < end));
                for (key, row) in rows.filter(|(_, row)| row.is_live(now)) {
                    match page.offer(key, |with_value| files.item(key, row, with_value))? {
                        Step::Next => {}
                        Step::Seek(to) => {
                            start = Some(to);
                            break;
                        }
                        Step::End => return Ok(page.finish()),
                    }
                }
            }
            Ok(page.finish())
        })
        .await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        let files = self.0.files.read();
        Ok(NamespacePage::of(files.index.namespaces(Timestamp::now()).cloned(), &options))
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        batch.validate(&self.capabilities())?;
        self.blocking(move |shared| shared.commit(&batch)).await
    }

    /// Returns the version of the newest commit of all partitions, which one counter serves.
    async fn current_version(&self, _partition: &Partition) -> Result<Version> {
        Ok(Version::new(self.0.files.read().index.version()))
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        let watch = self.0.watches.watch(namespace);
        // Waits for a commit that has not seen the watch.
        drop(self.0.files.read());
        Ok(watch)
    }
}

impl fmt::Display for LogStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}

impl fmt::Debug for LogStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogStore").field(&self.0.name).finish()
    }
}

/// An error of the disk. The message is for an agent; the cause, with its path, is for the operator.
fn failed(cause: io::Error) -> Error {
    match cause.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            Error::new(ErrorKind::Corrupt, "the store's file is damaged; restore it from a copy").with_source(cause)
        }
        _ => Error::new(ErrorKind::Unavailable, "the store's file cannot be read or written").with_source(cause),
    }
}
