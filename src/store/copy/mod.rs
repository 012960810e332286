//! One store copied into another, of whatever engine, as it is: keys, metas, bodies, versions, times and ends of life.
//!
//! The rows are sent namespace by namespace and page by page ([`BatchWrite::Restore`](super::BatchWrite::Restore)). Each batch
//! also writes down how far the copy is, in the target (`note.rs`), so a copy that was broken off goes on there when it is
//! started again. Then what changed in the source meanwhile is found by comparing the keys of both sides, and sent, until
//! nothing is found (`follow.rs`); at last every row of both sides is read and compared (`verify.rs`). The target's counter
//! of versions ends at or above the source's, so no version is used for other content at the same key.
//!
//! A row whose time is over is absent and not copied.

use super::reserved::{Withheld, withheld};
use super::{Batch, BatchWrite, Item, Namespace, ScanOptions, Store, StoreCapabilities, derived, escape_key};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::Version;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;

mod follow;
mod note;
mod verify;

use super::walk::Walk;
use note::{Note, Noted};

pub use note::COPY_NAMESPACE;
#[cfg(feature = "archive")]
pub(super) use note::{lift_counter, namespace as note_namespace};

/// How to copy a store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyOptions {
    /// Copies over what the target holds: rows that both have become the source's, and those that only the target has are
    /// left; what this copy itself sent goes again when the source loses it meanwhile. The indexes of trees, which
    /// know of either side only, go. Default false: a target that holds anything but a
    /// part of such a copy is refused.
    pub onto: bool,
    /// What tells the source from others whose `Display` is the same, such as two schemas of one database; a copy that was broken off
    /// goes on from the same one only. Kept as a hash in the target until the copy is done. Default none: `Display` alone tells.
    pub source_id: Option<String>,
    /// What is copied though it is withheld: whoever filled the source then decides who gets in. Default nothing; such rows of the
    /// target are left alone.
    pub include: BTreeSet<Withheld>,
    /// A batch ends once its rows are this many bytes; one row may be larger. Default 4 MiB.
    pub batch_bytes: usize,
    /// How often what changed in the source is looked for before the copy gives up. Default 8.
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

    /// Sets whether it may copy over what the target holds.
    #[must_use]
    pub fn with_onto(mut self, onto: bool) -> Self {
        self.onto = onto;
        self
    }

    /// Sets what tells the source from others whose `Display` is the same: no secret, and equal for each start of the same copy.
    #[must_use]
    pub fn with_source_id(mut self, source_id: impl Into<String>) -> Self {
        self.source_id = Some(source_id.into());
        self
    }

    /// Adds rows that are withheld.
    #[must_use]
    pub fn with_include(mut self, withheld: Withheld) -> Self {
        self.include.insert(withheld);
        self
    }

    /// Sets the bytes that end a batch.
    #[must_use]
    pub fn with_batch_bytes(mut self, batch_bytes: usize) -> Self {
        self.batch_bytes = batch_bytes;
        self
    }

    /// Sets how often what changed meanwhile is looked for.
    #[must_use]
    pub fn with_passes_max(mut self, passes_max: u32) -> Self {
        self.passes_max = passes_max;
        self
    }
}

/// What a copy is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum CopyStage {
    /// Looks whether every body fits the target.
    Measuring,
    /// Sends rows.
    Sending,
    /// Looks for what changed meanwhile.
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

/// How far a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyProgress {
    /// What it is doing.
    pub stage: CopyStage,
    /// The rows that are done in this stage.
    pub rows: u64,
    /// The bytes of their bodies.
    pub bytes: u64,
    /// The rows that there were at the start.
    pub rows_total: u64,
}

/// How a copy ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CopyReport {
    /// Whether both sides were the same at the end: the rows were compared, and the source did not move on. If not, the
    /// source was written to all the while; the same copy started again goes on from there.
    pub settled: bool,
    /// Whether this went on with a copy that was broken off.
    pub resumed: bool,
    /// Namespaces of the source, where it settled.
    pub namespaces: u64,
    /// Rows of the source, where it settled.
    pub rows: u64,
    /// The bytes of their bodies, where it settled.
    pub value_bytes: u64,
    /// Rows that were written by this call, those that were sent again counted again.
    pub sent: u64,
    /// Rows that were removed from the target, as they went from the source.
    pub removed: u64,
    /// Rows that only the target has, which are left: with [`CopyOptions::onto`].
    pub left: u64,
    /// How often what changed meanwhile was looked for.
    pub passes: u32,
    /// The counter of the target.
    pub version: Version,
    /// The BLAKE3 hash of the source's rows in order, where it settled: equal for two stores that hold the same.
    pub digest: Option<String>,
}

/// Copies every row of `source` to `target`, but for those that are [withheld](Withheld) and not included, and compares both sides.
///
/// `tell` is called as the copy goes on. A call that is dropped or killed leaves a target that the next call of the same copy goes on
/// with; until then it holds a part. Nobody else should write to the target: what is written there meanwhile is removed, or
/// found by the comparison. Memory: two pages of each side. Cost: every row is read once to be sent and once on each side to be
/// compared, and one durable batch is written for each [`CopyOptions::batch_bytes`].
///
/// # Errors
/// [`AlreadyExists`](ErrorKind::AlreadyExists) for a target that holds something else, [`TooLarge`](ErrorKind::TooLarge) for a
/// body over what the target takes, before anything is written, [`InvalidArgument`](ErrorKind::InvalidArgument) for a source that is half a
/// copy itself or the target, [`Conflict`](ErrorKind::Conflict) when another copy into the target is under way,
/// [`Corrupt`](ErrorKind::Corrupt) with the row when both sides differ though the source stood still, and those of both stores.
///
/// # Examples
/// ```
/// use treehold::store::{Batch, CopyOptions, MemoryStore, Namespace, Store, copy};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold::Result<()> {
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

/// A copy under way.
struct Run<'c> {
    source: &'c dyn Store,
    target: &'c dyn Store,
    options: CopyOptions,
    /// How far it is, as the target has it.
    noted: Noted,
    /// The largest body that the target takes.
    value_bytes_max: Option<u64>,
    resumed: bool,
    sent: u64,
    removed: u64,
    passes: u32,
    rows_total: u64,
    tell: &'c mut (dyn FnMut(CopyProgress) + Send),
}

impl<'c> Run<'c> {
    /// Looks at both sides, refuses what cannot be, and leaves a note in the target.
    async fn start(
        source: &'c dyn Store,
        target: &'c dyn Store,
        options: &CopyOptions,
        tell: &'c mut (dyn FnMut(CopyProgress) + Send),
    ) -> Result<Self> {
        // The first call opens a store, and what it offers is known then.
        source.current_version().await?;
        target.current_version().await?;
        if Noted::find(source).await?.is_some() {
            let message = format!("`{source}` is a part of a copy itself; finish that copy first, by the command that began it");
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
        let stats = source.stats().await?;
        run.rows_total = stats.items;
        if !resumed {
            run.check_sizes(&source.capabilities(), stats.value_bytes).await?;
        }
        run.commit(Batch::new()).await?;
        if Noted::find(source).await?.is_some() {
            target.commit(Batch::new().delete_prefix(&note::namespace(), "")).await?;
            return Err(Error::invalid_argument(format!("`{source}` and `{target}` are one store; name another one to copy it to")));
        }
        if options.onto {
            derived::remove_indexes(target).await?;
        }
        Ok(run)
    }

    /// Goes on with what the note says.
    fn resume(&mut self) -> Result<()> {
        let (began, source) = (&self.noted.note.source, self.source.to_string());
        if *began == source && self.noted.note.source_id != source_hash(&self.options) {
            let message = format!(
                "`{}` holds a part of a copy of another `{began}`; finish that copy from where it was begun, or empty the store before it is \
                 copied to",
                self.target
            );
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        if *began != source {
            let message = format!(
                "`{}` holds a part of a copy of `{began}`; finish that copy, or empty the store before `{source}` is copied to it",
                self.target
            );
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        // What was there before, and what was sent, is known only to a copy that minded it from the start.
        let (begun, advice) = match (self.noted.note.onto, self.options.onto) {
            (false, true) => ("without", "start it again without it"),
            (true, false) => ("with", "start it again with it"),
            _ => return Ok(()),
        };
        let message = format!("the copy into `{}` was begun {begun} `--onto`; {advice}, or empty the store before", self.target);
        Err(Error::invalid_argument(message))
    }

    /// Starts a walk over what is copied of a store.
    fn walk<'s>(&self, store: &'s dyn Store, scan: ScanOptions) -> Walk<'s> {
        Walk::new(store, scan).without_all(withheld(&self.options.include))
    }

    async fn check_empty(&self) -> Result<()> {
        if self.options.onto {
            return Ok(());
        }
        let mut walk = self.walk(self.target, ScanOptions::new().with_limit(1));
        let Some(page) = walk.page().await? else { return Ok(()) };
        let message = format!(
            "`{}` is not empty, it holds `{}`; name an empty store, or copy over what is there by `--onto`, which replaces the rows that \
             both have and leaves those that only the target has",
            self.target, page.namespace
        );
        Err(Error::new(ErrorKind::AlreadyExists, message))
    }

    /// Checks that every body fits the target, before anything is written. Bodies are read only where the source takes
    /// larger ones than the target and all of them together are over it.
    async fn check_sizes(&mut self, source: &StoreCapabilities, value_bytes: u64) -> Result<()> {
        let Some(max) = self.value_bytes_max else { return Ok(()) };
        if value_bytes <= max || source.value_bytes_max.is_some_and(|largest| largest <= max) {
            return Ok(());
        }
        let mut walk = self.walk(self.source, self.pages());
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
                    "the row `{}` in `{namespace}` has {size} bytes and `{}` takes at most {max}; remove it or copy to another engine",
                    escape_key(&item.key),
                    self.target
                ),
            )),
            _ => Ok(()),
        }
    }

    async fn run(mut self) -> Result<CopyReport> {
        let before = self.source.current_version().await?;
        self.send_all().await?;
        let mut is_followed = !self.resumed && self.source.current_version().await? == before;
        loop {
            if !is_followed && !self.follow_to_the_end().await? {
                return self.unsettled().await;
            }
            let version = self.source.current_version().await?;
            match self.compare().await? {
                // An end of life that is moved is no change that the counter tells of: one more look at the keys finds it.
                Ok(compared) => {
                    if self.follow().await? == 0 && self.source.current_version().await? == version {
                        return self.finish(compared, version).await;
                    }
                }
                Err(difference) => {
                    // A row that changed since is found by its version or its end of life, and anything else is no change.
                    let changes = self.sent + self.removed;
                    if !self.follow_to_the_end().await? {
                        return self.unsettled().await;
                    }
                    if self.sent + self.removed == changes && self.source.current_version().await? == version {
                        return Err(difference);
                    }
                }
            }
            is_followed = false;
        }
    }

    /// Sends every row, from where an earlier copy was broken off.
    async fn send_all(&mut self) -> Result<()> {
        if self.noted.note.all_sent {
            return Ok(());
        }
        let source = self.source;
        let mut walk = self.walk(source, self.pages());
        if let Some((namespace, key)) = self.noted.note.last()? {
            walk = walk.after(namespace, key);
        }
        let mut page = walk.page().await?;
        while let Some(rows) = page {
            // The next page is read while this one becomes durable.
            let (sent, next) = futures::future::join(self.send(rows.namespace, rows.items), walk.page()).await;
            sent?;
            page = next?;
        }
        self.noted.note.all_sent = true;
        self.commit(Batch::new()).await
    }

    async fn send(&mut self, namespace: Namespace, items: Vec<Item>) -> Result<()> {
        let mut batch = Batch::new();
        let mut batch_bytes = 0;
        for item in items {
            self.check_size(&namespace, &item)?;
            let item_bytes = item.key.len() + item.meta.len() + item.value.len();
            if batch_bytes > 0 && batch_bytes + item_bytes > self.options.batch_bytes {
                self.commit(std::mem::take(&mut batch)).await?;
                batch_bytes = 0;
            }
            batch_bytes += item_bytes;
            self.noted.note.pass(&namespace, &item);
            self.sent += 1;
            batch = batch.restore(&namespace, item);
        }
        self.commit(batch).await?;
        let note = &self.noted.note;
        self.report(CopyStage::Sending, note.rows, note.bytes);
        Ok(())
    }

    /// Looks for changes until there are none while the source stands still; false when there is no end to it.
    async fn follow_to_the_end(&mut self) -> Result<bool> {
        while self.passes < self.options.passes_max {
            self.passes += 1;
            let version = self.source.current_version().await?;
            let changes = self.follow().await?;
            if changes == 0 && self.source.current_version().await? == version {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Commits a batch and the note with it, which nobody else may have changed.
    async fn commit(&mut self, mut batch: Batch) -> Result<()> {
        if self.options.onto {
            let sent: Vec<_> = batch.writes.iter().filter_map(sent_row).collect();
            batch = self.noted.note.list_sent(batch, &sent);
        }
        self.noted.commit(self.target, batch).await
    }

    /// Removes the note and lifts the target's counter to that of the source.
    async fn finish(self, compared: verify::Compared, version: Version) -> Result<CopyReport> {
        if self.options.onto {
            // Those of the source do not know of what only the target has.
            derived::remove_indexes(self.target).await?;
        }
        self.noted.remove(self.target, version).await?;
        let mut report = self.report_of(true).await?;
        report.namespaces = compared.namespaces;
        report.rows = compared.rows;
        report.value_bytes = compared.value_bytes;
        report.left = compared.left;
        report.digest = Some(compared.digest);
        Ok(report)
    }

    async fn unsettled(self) -> Result<CopyReport> {
        self.report_of(false).await
    }

    async fn report_of(&self, settled: bool) -> Result<CopyReport> {
        Ok(CopyReport {
            settled,
            resumed: self.resumed,
            namespaces: 0,
            rows: 0,
            value_bytes: 0,
            sent: self.sent,
            removed: self.removed,
            left: 0,
            passes: self.passes,
            version: self.target.current_version().await?,
            digest: None,
        })
    }

    fn report(&mut self, stage: CopyStage, rows: u64, bytes: u64) {
        (self.tell)(CopyProgress { stage, rows, bytes, rows_total: self.rows_total });
    }

    /// How pages with bodies are read.
    fn pages(&self) -> ScanOptions {
        ScanOptions::new().with_values(true).with_bytes_max(self.options.batch_bytes)
    }
}

/// Returns what stands for a source in the note.
fn source_hash(options: &CopyOptions) -> Option<String> {
    options.source_id.as_ref().map(|id| blake3::hash(id.as_bytes()).to_hex().to_string())
}

/// Returns what stands for a row that is sent.
fn sent_row(write: &BatchWrite) -> Option<note::RowHash> {
    match write {
        BatchWrite::Restore { namespace, item } => Some(note::row_hash(namespace, &item.key)),
        _ => None,
    }
}
