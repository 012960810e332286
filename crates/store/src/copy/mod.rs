//! Copies one store into another, of any engines, unchanged: keys, metadata, bodies, versions, times and expiries.
//!
//! Rows are sent namespace by namespace and page by page ([`BatchWrite::Restore`](super::BatchWrite::Restore)). From time to time the progress
//! is recorded in the target (`note.rs`), so an interrupted copy resumes from there when started again. Then concurrent changes of the source
//! are found by comparing the keys of both sides, and sent, until none is left (`follow.rs`). At last every row of both sides is read and
//! compared (`verify.rs`). Each partition's version counter ends at or above that of the source, so no version is reused for other content at
//! the same key. A partition that has lost all its rows cannot be found; it counts anew where the target counts for
//! each partition.
//!
//! Expired rows count as absent and are not copied.
//!
//! Where partitions of the source can fail alone, one that cannot be read stops no other. What could be read of it is copied, and rows of it
//! that the target has stay. The note stays too, so that the same copy can be started again once the source is repaired.

use super::faults::Lost;
use super::{Batch, BatchWrite, Faults, Item, Namespace, ScanOptions, Store, StoreCapabilities, StoreExt, derived, escape_key};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use treehold_core::error::{Error, ErrorKind, ErrorRecord, Result};
use treehold_core::ops::Version;
use treehold_core::reserved::Withheld;

mod follow;
mod note;
mod verify;

use super::versions::{self, Versions};
use super::walk::Walk;
use note::{Note, Noted};

pub use note::COPY_NAMESPACE;

/// Options for copying a store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyOptions {
    /// Copies on top of existing content: rows in both become the source's, and rows that only the target has stay. A row that this copy
    /// sent is removed again if the source loses it meanwhile. The indexes of trees, which cover only one side, are removed. Default false:
    /// a target that holds anything but an unfinished part of this copy is refused.
    pub onto: bool,
    /// An identifier that distinguishes the source from others with the same `Display`, such as two schemas of one database. An interrupted
    /// copy resumes only from the same source. Stored as a hash in the target until the copy is done. Default none: only `Display` counts.
    pub source_id: Option<String>,
    /// The withheld rows that are copied nevertheless; whoever filled the source then decides who has access. Default none; such rows of
    /// the target stay as they are.
    pub include: BTreeSet<Withheld>,
    /// The size in bytes after which a batch ends; a single row may be larger. Default 4 MiB.
    pub batch_bytes: usize,
    /// The most passes over changes of the source before the copy gives up. Default 8.
    pub passes_max: u32,
}

impl Default for CopyOptions {
    fn default() -> Self {
        Self { onto: false, source_id: None, include: BTreeSet::new(), batch_bytes: 4 << 20, passes_max: 8 }
    }
}

impl CopyOptions {
    /// Copies into an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether to copy on top of existing content.
    #[must_use]
    pub fn with_onto(mut self, onto: bool) -> Self {
        self.onto = onto;
        self
    }

    /// Sets an identifier that distinguishes the source from others with the same `Display`: not a secret, and equal for each start of the
    /// same copy.
    #[must_use]
    pub fn with_source_id(mut self, source_id: impl Into<String>) -> Self {
        self.source_id = Some(source_id.into());
        self
    }

    /// Includes a kind of withheld rows.
    #[must_use]
    pub fn with_include(mut self, withheld: Withheld) -> Self {
        self.include.insert(withheld);
        self
    }

    /// Sets the size in bytes after which a batch ends.
    #[must_use]
    pub fn with_batch_bytes(mut self, batch_bytes: usize) -> Self {
        self.batch_bytes = batch_bytes;
        self
    }

    /// Sets the most passes over changes of the source.
    #[must_use]
    pub fn with_passes_max(mut self, passes_max: u32) -> Self {
        self.passes_max = passes_max;
        self
    }
}

/// The current stage of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum CopyStage {
    /// Checks whether every body fits into the target.
    Measuring,
    /// Sends rows.
    Sending,
    /// Searches for concurrent changes.
    Following,
    /// Compares both sides.
    Verifying,
}

impl fmt::Display for CopyStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Measuring => "measuring",
            Self::Sending => "copying",
            Self::Following => "following",
            Self::Verifying => "comparing",
        })
    }
}

/// The progress of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyProgress {
    /// The stage.
    pub stage: CopyStage,
    /// The completed rows of this stage.
    pub rows: u64,
    /// The bytes of their bodies.
    pub bytes: u64,
    /// The number of rows at the start.
    pub rows_total: u64,
}

/// The result of a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CopyReport {
    /// Whether both sides were equal at the end: the rows were compared, and the source did not change meanwhile. If not, the source was
    /// written to all the time, or there are [`faults`](Self::faults); starting the same copy again continues it.
    pub settled: bool,
    /// Whether this call resumed an interrupted copy.
    pub resumed: bool,
    /// The number of namespaces of the source, if settled. With faults, of those that could be read.
    pub namespaces: u64,
    /// The number of rows of the source, if settled. With faults, of those that could be read, unless the source was written to all the time.
    pub rows: u64,
    /// The size of their bodies in bytes.
    pub value_bytes: u64,
    /// The number of rows that this call wrote, counting repeated ones each time.
    pub sent: u64,
    /// The number of rows that were removed from the target, because the source lost them.
    pub removed: u64,
    /// The number of remaining rows that only the target has, with [`CopyOptions::onto`].
    pub left: u64,
    /// The number of passes over concurrent changes.
    pub passes: u32,
    /// The newest version of the source. The target counts on above the source's version in each partition.
    pub version: Version,
    /// The BLAKE3 hash of the source's rows in order, if settled: equal for two stores with equal content.
    pub digest: Option<String>,
    /// Why parts of the source, such as damaged partitions, were not copied, or not whole: the first 1,000.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<ErrorRecord>,
    /// How many such parts there are.
    #[serde(skip_serializing_if = "crate::faults::is_zero")]
    pub faults_count: u64,
}

/// Copies every row of `source` to `target`, except for those that are [withheld](Withheld) and not included, and compares both sides.
///
/// `tell` receives the progress. A dropped or killed call leaves an incomplete target, which the next call of the same copy continues. Nobody
/// else should write to the target: such writes are removed, or reported by the comparison. Memory: two pages of each side, and some 100 bytes
/// for each partition.
///
/// Where partitions of the source can fail alone ([`StoreExt::partitions`]), one that cannot be read is a [fault](CopyReport::faults) of the
/// report, and the others are copied. The copy is then not settled: repair the partition, or remove it from the source, and start the same
/// copy again. Until then, its rows in the target are those that could be read.
///
/// Cost: every row is read once to be sent and once on each side to be compared. A durable batch is written for each
/// namespace and each [`CopyOptions::batch_bytes`], two more for each partition, and a note for each 1,000 rows.
///
/// # Errors
/// [`AlreadyExists`](ErrorKind::AlreadyExists) for a target with other content; [`TooLarge`](ErrorKind::TooLarge) for a body over the
/// target's limit, before anything is written; [`InvalidArgument`](ErrorKind::InvalidArgument) for a source that is itself an unfinished
/// copy or is the target; [`Conflict`](ErrorKind::Conflict) while another copy into the target is running; [`Corrupt`](ErrorKind::Corrupt)
/// with the row if both sides differ although the source did not change; and the errors of both stores, except those of a partition of the
/// source that can fail alone.
///
/// # Examples
/// ```
/// use treehold_store::{Batch, CopyOptions, MemoryStore, Namespace, Store, copy};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let (source, target) = (MemoryStore::new(), MemoryStore::new());
/// let notes = Namespace::new(["ada", "notes"])?;
/// source.commit(Batch::new().put(&notes, "today", "walk the dog")).await?;
/// let report = copy(&source, &target, &CopyOptions::new(), |_| {}).await?;
/// assert_eq!((report.settled, report.rows), (true, 1));
/// assert_eq!(target.get(&notes, "today").await?, source.get(&notes, "today").await?);
/// # Ok(())
/// # }
/// ```
pub async fn copy(
    source: &dyn Store,
    target: &dyn Store,
    options: &CopyOptions,
    mut tell: impl FnMut(CopyProgress) + Send,
) -> Result<CopyReport> {
    Run::start(source, target, options, &mut tell).await?.run().await
}

fn one_store(source: &dyn Store, target: &dyn Store) -> Error {
    Error::invalid_argument(format!("`{source}` and `{target}` are the same store; name another target"))
}

/// A copy in progress.
struct Run<'c> {
    source: &'c dyn Store,
    target: &'c dyn Store,
    options: CopyOptions,
    /// The progress, as recorded in the target from time to time.
    noted: Noted,
    /// The largest body that the target accepts.
    value_bytes_max: Option<u64>,
    resumed: bool,
    /// Whether partitions of the source can fail alone.
    is_apart: bool,
    /// What of the source could not be read in the present pass.
    lost: Lost,
    sent: u64,
    removed: u64,
    passes: u32,
    rows_total: u64,
    tell: &'c mut (dyn FnMut(CopyProgress) + Send),
}

impl<'c> Run<'c> {
    /// Examines both sides, refuses invalid copies, and puts a note into the target.
    async fn start(
        source: &'c dyn Store,
        target: &'c dyn Store,
        options: &CopyOptions,
        tell: &'c mut (dyn FnMut(CopyProgress) + Send),
    ) -> Result<Self> {
        // The first call opens a store, and only then are its capabilities known.
        let is_apart = source.partitions(None, 1).await?.is_some();
        if !is_apart {
            source.ping().await?;
        }
        target.ping().await?;
        if is_target(source, is_apart).await? {
            let message = format!(
                "`{source}` is itself the target of an unfinished copy; finish that copy first \
                with the command that began it"
            );
            return Err(Error::invalid_argument(message));
        }
        let found = Noted::find(target).await?;
        let resumed = found.is_some();
        let mut run = Self {
            source,
            target,
            options: options.clone(),
            value_bytes_max: target.capabilities().value_bytes_max,
            rows_total: 0,
            resumed,
            is_apart,
            lost: Lost::default(),
            sent: 0,
            removed: 0,
            passes: 0,
            tell,
            noted: found.unwrap_or_else(|| Noted::new(Note::new(source, source_hash(options), options.onto))),
        };
        if resumed {
            run.resume()?;
        } else {
            run.check_empty().await?;
        }
        let mut uncounted = Faults::new();
        let stats = source.stats_with_faults(&mut uncounted).await?;
        run.rows_total = stats.items;
        if !resumed {
            // What could not be counted may have rows that can be read.
            let value_bytes = if uncounted.is_empty() { stats.value_bytes } else { u64::MAX };
            run.check_sizes(&source.capabilities(), value_bytes).await?;
        }
        let note = run.noted.note.clone();
        run.commit(Batch::new(), note).await?;
        if is_target(source, is_apart).await? {
            target.commit(Batch::new().delete_prefix(&note::namespace(), "")).await?;
            return Err(one_store(source, target));
        }
        if resumed {
            // Stops a copy that only seemed to have ended.
            note::remove_fences(target).await?;
        }
        if options.onto {
            derived::remove_indexes(target).await?;
        }
        Ok(run)
    }

    /// Resumes from the note.
    fn resume(&mut self) -> Result<()> {
        let (began, source) = (&self.noted.note.source, self.source.to_string());
        if *began == source && self.noted.note.source_id != source_hash(&self.options) {
            let message = format!(
                "`{}` holds an unfinished copy of another `{began}`; finish that copy from where it was begun, or \
                    empty the store before copying to it",
                self.target
            );
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        if *began != source {
            let message = format!(
                "`{}` holds an unfinished copy of `{began}`; finish that copy, or empty the store before copying `{source}` to it",
                self.target
            );
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        // Only a copy that kept track from the start knows what was there before and what was sent.
        let (begun, advice) = match (self.noted.note.onto, self.options.onto) {
            (false, true) => ("without", "start it again without it"),
            (true, false) => ("with", "start it again with it"),
            _ => return Ok(()),
        };
        let message = format!("the copy into `{}` was begun {begun} `--onto`; {advice}, or empty the store first", self.target);
        Err(Error::invalid_argument(message))
    }

    /// Starts a walk over the part of a store that is copied.
    fn walk<'s>(&self, store: &'s dyn Store, scan: ScanOptions) -> Walk<'s> {
        Walk::new(store, scan).without_notes().without_withheld(&self.options.include)
    }

    /// Starts a walk over the part of the source that is copied, as far as it can be read.
    fn walk_source(&self, scan: ScanOptions) -> Walk<'c> {
        let walk = self.walk(self.source, scan);
        if self.is_apart { walk.past_faults() } else { walk }
    }

    /// Records that a partition of the source cannot be read. Returns the error if none can fail alone.
    fn lose(&mut self, namespace: &Namespace, error: Error) -> Result<()> {
        if !self.is_apart {
            return Err(error);
        }
        self.lost.add(Some(&namespace.partition()), error);
        Ok(())
    }

    async fn check_empty(&self) -> Result<()> {
        if self.options.onto {
            return Ok(());
        }
        let mut walk = self.walk(self.target, ScanOptions::new().with_limit(1));
        let Some(page) = walk.page().await? else { return Ok(()) };
        if note::is_one_store(self.source, self.target, &page).await? {
            return Err(one_store(self.source, self.target));
        }
        let message = format!(
            "`{}` is not empty, it holds `{}`; name an empty store, or copy over it with `--onto`, which replaces \
                the rows that both have and keeps those that only the target has",
            self.target, page.namespace
        );
        Err(Error::new(ErrorKind::AlreadyExists, message))
    }

    /// Checks that every body fits into the target, before anything is written. Bodies are read only if the source accepts larger ones than
    /// the target and their total exceeds the target's limit.
    async fn check_sizes(&mut self, source: &StoreCapabilities, value_bytes: u64) -> Result<()> {
        let Some(max) = self.value_bytes_max else { return Ok(()) };
        if value_bytes <= max || source.value_bytes_max.is_some_and(|largest| largest <= max) {
            return Ok(());
        }
        let mut walk = self.walk_source(self.pages());
        let (mut rows, mut bytes) = (0, 0);
        while let Some(page) = walk.page().await? {
            for item in &page.items {
                self.check_size(&page.namespace, item)?;
                bytes += item.value.len() as u64;
            }
            rows += page.items.len() as u64;
            self.report(CopyStage::Measuring, rows, bytes);
        }
        Ok(())
    }

    fn check_size(&self, namespace: &Namespace, item: &Item) -> Result<()> {
        let size = item.value.len() as u64;
        match self.value_bytes_max {
            Some(max) if size > max => Err(Error::new(
                ErrorKind::TooLarge,
                format!(
                    "the row `{}` in `{namespace}` has {size} bytes and `{}` accepts at most {max}; remove it or copy to another engine",
                    escape_key(&item.key),
                    self.target
                ),
            )),
            _ => Ok(()),
        }
    }

    async fn run(mut self) -> Result<CopyReport> {
        let before = self.versions().await?;
        self.send_all().await?;
        let mut is_followed = !self.resumed && self.versions().await? == before;
        loop {
            if !is_followed && !self.follow_to_the_end().await? {
                return self.unsettled().await;
            }
            let versions = self.versions().await?;
            match self.compare().await? {
                // The counter does not show a changed expiry; one more pass over the keys finds it.
                Ok(compared) => {
                    if self.follow().await? == 0 && self.versions().await? == versions {
                        return self.finish(compared, versions).await;
                    }
                }
                Err(difference) => {
                    // A row that changed since has another version or expiry; any other difference is an error.
                    let changes = self.sent + self.removed;
                    if !self.follow_to_the_end().await? {
                        return self.unsettled().await;
                    }
                    if self.sent + self.removed == changes && self.versions().await? == versions {
                        return Err(difference);
                    }
                }
            }
            is_followed = false;
        }
    }

    /// Sends every row, continuing an interrupted copy.
    async fn send_all(&mut self) -> Result<()> {
        if self.noted.note.all_sent {
            return Ok(());
        }
        let mut walk = self.walk_source(self.pages());
        if let Some((namespace, key)) = self.noted.note.last()? {
            walk = walk.after(namespace, key);
        }
        let mut page = walk.page().await?;
        while let Some(rows) = page {
            // Read the next page while this one becomes durable.
            let (sent, next) = futures::future::join(self.send(rows.namespace, rows.items), walk.page()).await;
            sent?;
            page = next?;
        }
        self.lost.append(walk.into_lost());
        let mut note = self.noted.note.clone();
        note.all_sent = true;
        self.commit(Batch::new(), note).await
    }

    async fn send(&mut self, namespace: Namespace, items: Vec<Item>) -> Result<()> {
        let mut batch = Batch::new();
        let mut batch_bytes = 0;
        let mut note = self.noted.note.clone();
        for item in items {
            self.check_size(&namespace, &item)?;
            let item_bytes = item.key.len() + item.meta.len() + item.value.len();
            if batch_bytes > 0 && batch_bytes + item_bytes > self.options.batch_bytes {
                self.commit(std::mem::take(&mut batch), note).await?;
                note = self.noted.note.clone();
                batch_bytes = 0;
            }
            batch_bytes += item_bytes;
            note.pass(&namespace, &item);
            self.sent += 1;
            batch = batch.restore(&namespace, item);
        }
        self.commit(batch, note).await?;
        let note = &self.noted.note;
        self.report(CopyStage::Sending, note.rows, note.bytes);
        Ok(())
    }

    /// Repeats passes until one finds no change and the source did not change meanwhile. Returns false if the passes run out.
    async fn follow_to_the_end(&mut self) -> Result<bool> {
        while self.passes < self.options.passes_max {
            self.passes += 1;
            // What could not be read earlier counts no more, as the pass finds it again.
            self.lost = Lost::default();
            let versions = self.versions().await?;
            let changes = self.follow().await?;
            if changes == 0 && self.versions().await? == versions {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Commits writes and then records them. Where it matters what was sent, that is noted before.
    async fn commit(&mut self, batch: Batch, mut note: Note) -> Result<()> {
        let sent_row = |write: &BatchWrite| match write {
            BatchWrite::Restore { namespace, item } => Some(note.row_hash(namespace, &item.key, item.version)),
            _ => None,
        };
        let sent: Vec<_> = batch.writes.iter().filter(|_| self.options.onto).filter_map(sent_row).collect();
        if !sent.is_empty() {
            let (listed, list) = self.noted.note.clone().list_sent(&sent);
            note.listed_as(&listed);
            self.noted.commit(self.target, listed, list).await?;
        }
        for (partition, part) in Batch::by_partition(batch.writes) {
            self.noted.commit_rows(self.target, partition, part).await?;
        }
        self.noted.advance(self.target, note, self.options.batch_bytes).await
    }

    /// Returns the versions of the source, as far as they can be read.
    async fn versions(&mut self) -> Result<Versions> {
        let lost = if self.is_apart { Some(&mut self.lost) } else { None };
        Versions::of(self.source, &self.options.include, lost).await
    }

    /// Raises the target's counters to those of the source, and removes the note unless something of the source could not be read.
    async fn finish(mut self, compared: verify::Compared, versions: Versions) -> Result<CopyReport> {
        if self.options.onto {
            // The source's indexes do not cover rows that only the target has.
            derived::remove_indexes(self.target).await?;
        }
        self.noted.lift(self.target, &versions).await?;
        let is_whole = self.lost.is_empty();
        if is_whole {
            self.noted.remove(self.target).await?;
        }
        let mut report = self.report_of(&versions, is_whole);
        report.namespaces = compared.namespaces;
        report.rows = compared.rows;
        report.value_bytes = compared.value_bytes;
        report.left = compared.left;
        report.digest = is_whole.then_some(compared.digest);
        Ok(report)
    }

    async fn unsettled(mut self) -> Result<CopyReport> {
        let versions = self.versions().await?;
        Ok(self.report_of(&versions, false))
    }

    fn report_of(&self, versions: &Versions, settled: bool) -> CopyReport {
        CopyReport {
            settled,
            resumed: self.resumed,
            namespaces: 0,
            rows: 0,
            value_bytes: 0,
            sent: self.sent,
            removed: self.removed,
            left: 0,
            passes: self.passes,
            version: versions.newest(),
            digest: None,
            faults: self.lost.records(),
            faults_count: self.lost.count(),
        }
    }

    fn report(&mut self, stage: CopyStage, rows: u64, bytes: u64) {
        (self.tell)(CopyProgress { stage, rows, bytes, rows_total: self.rows_total });
    }

    /// Returns the options for reading pages with bodies.
    fn pages(&self) -> ScanOptions {
        ScanOptions::new().with_values(true).with_bytes_max(self.options.batch_bytes)
    }
}

/// Returns whether a source is the target of an unfinished copy. If the partition of the note is damaged, that is one of the faults.
async fn is_target(source: &dyn Store, is_apart: bool) -> Result<bool> {
    let found = Noted::is_in(source).await;
    let is_fault = is_apart && found.is_err() && source.current_version(&versions::notes()).await.is_err();
    if is_fault { Ok(false) } else { found }
}

/// Returns the hash that identifies a source in the note.
fn source_hash(options: &CopyOptions) -> Option<String> {
    options.source_id.as_ref().map(|id| blake3::hash(id.as_bytes()).to_hex().to_string())
}
