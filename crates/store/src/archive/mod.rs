//! Export of a store as one archive, and import: a tar of JSON lines and contents, for backup, inspection and restore.
//!
//! The format is open to other programs and documented in `docs/export-format.md`. It is written and read as a stream, in bounded memory.
//! Nothing in an archive is ever used as a host path. `row.rs` is a line; `write.rs` and `read.rs` are the two directions.

use super::batch::RESTORED_VERSION_END;
use super::versions::{self, Versions};
use super::walk::Walk;
use super::{Batch, Item, Namespace, Partition, ScanOptions, Store, StoreExt, derived};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek, Write};
use tokio::sync::mpsc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_core::reserved::Withheld;

mod read;
mod row;
mod write;

use read::Limits;
use write::{Paged, Part};

/// The format version that is written, and the newest that can be read.
pub const ARCHIVE_FORMAT: u32 = 4;

/// The oldest format version, of the first layout of stores. An import converts older formats.
const FIRST_FORMAT: u32 = 1;

/// The format version since which namespaces have partitions.
const PARTITIONED_FORMAT: u32 = 3;

/// The first entry of an archive written under the product's former name.
const FORMER_HEAD: &str = "stratafs.json";

/// The first entry.
const HEAD: &str = "treehold.json";

/// The last entry.
const END: &str = "end.json";

/// Contents of more bytes are entries of their own.
const INLINE_BYTES_MAX: usize = 4 << 10;

/// The most rows of a page.
const PAGE_ROWS: usize = 1_000;

/// The size in bytes of lines, or of contents, after which a page ends.
const PAGE_BYTES: usize = 4 << 20;

/// The largest content of an archive, in bytes.
const BLOB_BYTES_MAX: u64 = 1 << 30;

/// The highest version in an archive, from which every engine can continue counting.
const VERSION_MAX: u64 = RESTORED_VERSION_END - 1;

/// The first entry of an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    format: u32,
    /// The engine of the exported store.
    engine: String,
    /// The newest version of the store when the export began.
    version: u64,
    exported_at: Timestamp,
}

/// The last entry of an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    pages: u64,
    rows: u64,
    value_bytes: u64,
    /// The newest version of the store when the export ended.
    version: u64,
    /// The hash of the rows in order.
    digest: String,
}

/// The progress of an export or an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArchiveProgress {
    /// The completed rows.
    pub rows: u64,
    /// The bytes of their bodies.
    pub bytes: u64,
    /// The number of rows at the start of an export; an import does not know it.
    pub rows_total: Option<u64>,
}

/// The result of an export or an import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ArchiveReport {
    /// The number of rows.
    pub rows: u64,
    /// The bytes of their bodies.
    pub value_bytes: u64,
    /// The newest version of the exported store.
    pub version: Version,
    /// The BLAKE3 hash of the rows in order: equal for two stores with equal content.
    pub digest: String,
    /// The rows of the archive that an import skipped, by kind.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub left_out: BTreeMap<&'static str, u64>,
}

/// Options for exporting a store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ExportOptions {
    /// The withheld rows that are exported nevertheless. Default none.
    pub include: BTreeSet<Withheld>,
}

impl ExportOptions {
    /// Exports everything except withheld rows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Includes a kind of withheld rows.
    #[must_use]
    pub fn with_include(mut self, withheld: Withheld) -> Self {
        self.include.insert(withheld);
        self
    }
}

/// Options for importing an archive.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ImportOptions {
    /// Imports on top of existing content: rows in both become those of the archive, other rows stay, and the indexes of trees, which cover
    /// only one side, are removed. Default false: a store that is not empty, except for withheld rows, is refused.
    pub onto: bool,
    /// The withheld rows that are imported nevertheless; the author of the archive then decides who has access. Default none.
    pub include: BTreeSet<Withheld>,
}

impl ImportOptions {
    /// Imports into an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Includes a kind of withheld rows.
    #[must_use]
    pub fn with_include(mut self, withheld: Withheld) -> Self {
        self.include.insert(withheld);
        self
    }

    /// Sets whether to import on top of existing content.
    #[must_use]
    pub fn with_onto(mut self, onto: bool) -> Self {
        self.onto = onto;
        self
    }
}

/// Writes every live row of a store to an archive, except for those that are [withheld](Withheld) and not included.
///
/// Each page of rows shows one moment, but the archive as a whole does not: concurrent writes may or may not be in it. Indexes of trees are
/// therefore left out, because they might not match the files in the archive. An interrupted export leaves an archive without an end,
/// which [`import`] refuses. Memory: a few pages, or the largest body. `output` is written on a blocking thread and flushed at the end.
///
/// # Errors
/// [`Unavailable`](ErrorKind::Unavailable) when `output` fails, and the errors of the store. A partition that cannot be read fails the export
/// too, because an archive is whole: [`copy`](crate::copy()) what can be read to another store, and export that.
///
/// # Examples
/// ```
/// use treehold_store::{Batch, ExportOptions, ImportOptions, MemoryStore, Namespace, Store, export, import};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let file = tempfile::tempfile()?;
/// # let again = { use std::io::Seek; move |mut file: std::fs::File| file.rewind().map(|()| file) };
/// let (store, other) = (MemoryStore::new(), MemoryStore::new());
/// let notes = Namespace::new(["ada", "notes"])?;
/// store.commit(Batch::new().put(&notes, "today", "walk the dog")).await?;
/// export(&store, file.try_clone()?, &ExportOptions::new(), |_| {}).await?;
/// import(&other, again(file)?, &ImportOptions::new(), |_| {}).await?;
/// assert_eq!(other.get(&notes, "today").await?, store.get(&notes, "today").await?);
/// # Ok(())
/// # }
/// ```
pub async fn export(
    store: &dyn Store,
    output: impl Write + Send + 'static,
    options: &ExportOptions,
    mut tell: impl FnMut(ArchiveProgress) + Send,
) -> Result<ArchiveReport> {
    store.ping().await?;
    let version = Versions::of(store, &options.include, None).await?.newest().number();
    let described = store.describe().await?;
    let rows_total = store.stats().await?.items;
    let (parts, waiting) = mpsc::channel(1);
    let written = tokio::task::spawn_blocking(move || write::write(output, waiting));
    let produced = async {
        let head = Head { format: ARCHIVE_FORMAT, engine: described.engine, version, exported_at: Timestamp::now() };
        send(&parts, Part::Head(head)).await?;
        let mut pages = Paged::default();
        let scan = ScanOptions::new().with_values(true).with_limit(PAGE_ROWS).with_bytes_max(PAGE_BYTES);
        let mut walk = Walk::new(store, scan).without_notes().without_indexes();
        walk = walk.without_withheld(&options.include);
        while let Some(found) = walk.page().await? {
            for item in found.items {
                if let Some(page) = pages.add(&found.namespace, item)? {
                    send(&parts, Part::Page(page)).await?;
                }
            }
            tell(ArchiveProgress { rows: pages.rows, bytes: pages.value_bytes, rows_total: Some(rows_total) });
        }
        let version = Versions::of(store, &options.include, None).await?.newest();
        let (last, end) = pages.finish(version);
        if let Some(page) = last {
            send(&parts, Part::Page(page)).await?;
        }
        let report =
            ArchiveReport { rows: end.rows, value_bytes: end.value_bytes, version, digest: end.digest.clone(), left_out: BTreeMap::new() };
        send(&parts, Part::End(end)).await?;
        Ok(report)
    };
    let produced = produced.await;
    // The writer finishes with the last sender, and writes an end only if it received one.
    drop(parts);
    let written = written.await.map_err(stopped)?;
    match (produced, written) {
        (Err(error), Ok(())) => Err(error),
        (_, Err(error)) => Err(error),
        (Ok(report), Ok(())) => Ok(report),
    }
}

async fn send(parts: &mpsc::Sender<Part>, part: Part) -> Result<()> {
    // The writer itself reports why it stopped.
    parts.send(part).await.map_err(|_| Error::new(ErrorKind::Unavailable, "the archive can no longer be written"))
}

/// The rows of a page.
type Found = Vec<(Namespace, Item)>;

/// Puts every row of an archive into a store unchanged, with its version, times and expiry. The version counter of each partition ends at or
/// above the newest version of the exported store.
///
/// The archive is read twice. The first pass checks everything, contents by their hashes and the whole by the hash at its end, before the
/// first row is put, so a damaged archive changes nothing. If the store fails on the way, the error says how many rows are in, and
/// importing the same archive with [`onto`](ImportOptions::onto) continues. Rows that are [withheld](Withheld) are skipped and counted
/// unless they are [included](ImportOptions::include). Memory: a few pages, or the largest body, whatever sizes the archive declares, and some
/// 100 bytes for each partition.
/// `input` is read on a blocking thread.
///
/// # Errors
/// [`AlreadyExists`](ErrorKind::AlreadyExists) for a store that is not empty; [`Corrupt`](ErrorKind::Corrupt) with the name of the entry
/// for an archive that is invalid, damaged or truncated; [`Unsupported`](ErrorKind::Unsupported) for one of a newer version;
/// [`TooLarge`](ErrorKind::TooLarge) for a body over the store's limit; [`Unavailable`](ErrorKind::Unavailable) when `input` fails; and the
/// errors of the store.
pub async fn import(
    store: &dyn Store,
    mut input: impl Read + Seek + Send + 'static,
    options: &ImportOptions,
    mut tell: impl FnMut(ArchiveProgress) + Send,
) -> Result<ArchiveReport> {
    store.ping().await?;
    if !options.onto
        && let Some(page) =
            Walk::new(store, ScanOptions::new().with_limit(1)).without_notes().without_withheld(&options.include).page().await?
    {
        let message = format!(
            "`{store}` is not empty, it holds `{}`; name an empty store, or import over it with `--onto`, which \
                replaces the rows that both have and keeps the others",
            page.namespace
        );
        return Err(Error::new(ErrorKind::AlreadyExists, message));
    }
    let limits = Limits { blob_bytes_max: store.capabilities().value_bytes_max.unwrap_or(BLOB_BYTES_MAX).min(BLOB_BYTES_MAX) };
    let checked = tokio::task::spawn_blocking(move || {
        let start = input.stream_position().map_err(read::unread_again)?;
        let end = read::read(&mut input, limits, |_| Ok(()))?;
        input.seek(std::io::SeekFrom::Start(start)).map_err(read::unread_again)?;
        Ok::<_, Error>((input, end))
    });
    let (mut input, checked) = checked.await.map_err(stopped)??;
    if options.onto {
        derived::remove_indexes(store).await?;
    }
    let (pages, waiting) = mpsc::channel::<Found>(1);
    let read = tokio::task::spawn_blocking(move || {
        read::read(&mut input, limits, |page| {
            let gone = |_| Error::new(ErrorKind::Unavailable, "the import was interrupted");
            pages.blocking_send(page).map_err(gone)
        })
    });
    let mut put = Put::default();
    let mut done = put.all(store, waiting, &options.include, &mut tell).await;
    let read = read.await.map_err(stopped)?;
    if done.is_ok() {
        done = match read {
            Ok(end) if end == checked => Ok(()),
            Ok(_) => Err(Error::new(ErrorKind::Conflict, "the archive changed during the import")),
            Err(error) => Err(error),
        };
    }
    if done.is_ok() && options.onto {
        // Remove indexes that another process may have built from a half-imported tree.
        done = derived::remove_indexes(store).await;
    }
    let version = Version::new(checked.version);
    if done.is_ok() {
        done = put.lift(store, version).await;
    }
    done.map_err(|error| put.told(store, error))?;
    Ok(ArchiveReport { rows: put.rows, value_bytes: put.bytes, version, digest: checked.digest, left_out: put.left_out })
}

/// The rows that an import has put so far.
#[derive(Default)]
struct Put {
    rows: u64,
    bytes: u64,
    left_out: BTreeMap<&'static str, u64>,
    /// The partitions of the rows.
    partitions: BTreeSet<Partition>,
}

impl Put {
    async fn all(
        &mut self,
        store: &dyn Store,
        mut pages: mpsc::Receiver<Found>,
        included: &BTreeSet<Withheld>,
        tell: &mut (impl FnMut(ArchiveProgress) + Send),
    ) -> Result<()> {
        while let Some(mut page) = pages.recv().await {
            page.retain(|(namespace, _)| match Withheld::of(namespace).filter(|withheld| !included.contains(withheld)) {
                Some(withheld) => {
                    *self.left_out.entry(withheld.as_str()).or_default() += 1;
                    false
                }
                None => true,
            });
            for batch in batches(page) {
                let (rows, bytes) = (batch.writes.len() as u64, value_bytes(&batch));
                self.partitions.extend(batch.partition());
                store.commit(batch).await?;
                self.rows += rows;
                self.bytes += bytes;
            }
            tell(ArchiveProgress { rows: self.rows, bytes: self.bytes, rows_total: None });
        }
        Ok(())
    }

    /// Raises the counters of the partitions to a version.
    async fn lift(&self, store: &dyn Store, version: Version) -> Result<()> {
        // An engine may have one counter for all, which no row of the archive may have reached.
        for partition in self.partitions.iter().chain([&versions::notes()]) {
            if store.current_version(partition).await? < version {
                store.commit(versions::lift(partition, version)?).await?;
            }
        }
        Ok(())
    }

    /// Adds to an error what the import leaves in the store.
    fn told(&self, store: &dyn Store, error: Error) -> Error {
        let what = match self.rows {
            0 => return error,
            1 => "1 row of the archive is".to_owned(),
            rows => format!("{rows} rows of the archive are"),
        };
        let message = format!(
            "{}; {what} in `{store}`: import it again with `--onto`, which continues, or empty the \
            store",
            error.message()
        );
        error.with_message(message)
    }
}

/// Splits a page into batches of bounded size, each in one partition; a single row may be larger.
fn batches(page: Found) -> Vec<Batch> {
    let mut all = Vec::new();
    let mut batch = Batch::new();
    let mut batch_bytes = 0;
    let mut last: Option<Namespace> = None;
    for (namespace, item) in page {
        let item_bytes = item.key.len() + item.meta.len() + item.value.len();
        let is_elsewhere = last.as_ref().is_some_and(|last| !last.shares_partition(&namespace));
        if is_elsewhere || batch_bytes > 0 && batch_bytes + item_bytes > PAGE_BYTES {
            all.push(std::mem::take(&mut batch));
            batch_bytes = 0;
        }
        batch_bytes += item_bytes;
        batch = batch.restore(&namespace, item);
        last = Some(namespace);
    }
    if !batch.is_empty() {
        all.push(batch);
    }
    all
}

fn value_bytes(batch: &Batch) -> u64 {
    let bytes = |write: &super::BatchWrite| match write {
        super::BatchWrite::Restore { item, .. } => item.value.len() as u64,
        _ => 0,
    };
    batch.writes.iter().map(bytes).sum()
}

fn stopped(error: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Internal, "an archive was left incomplete; this is a bug in the program").with_source(error)
}
