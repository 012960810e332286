//! Insertions in progress, and the removal of those that were interrupted.

use super::rows::{self, Removal};
use super::{StoredTraces, Traces};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use treehold_core::error::Result;
use treehold_core::json::stored;
use treehold_core::reserved::{RESERVED_ROOT, TRACES};
use treehold_store::intent::is_older;
use treehold_store::{Batch, Condition, Item, Namespace, ScanEntry, ScanOptions};

/// How long an insertion may pause before a sweep removes its rows.
const PAUSE_MAX: Duration = Duration::from_secs(60 * 60);

/// The key, beneath a trace's data, of the row that exists while the trace is inserted.
pub(super) const INSERTING: &str = "inserting";

/// The insertions in progress. No tenant can have this name.
pub(super) fn insertions() -> Namespace {
    Namespace::new(TRACES.into_iter().chain([RESERVED_ROOT, "insertions"])).expect("four plain components")
}

/// The record of an insertion, by which a sweep finds its rows.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct InsertionRow {
    pub(super) removal: Removal,
}

impl Traces {
    /// Records for removal the rows of interrupted insertions. Looks at `insertions_max` insertions at most, besides those that fail.
    ///
    /// Cost: one round trip if there are none.
    ///
    /// # Errors
    /// The last error, after every other insertion was tried.
    pub(super) async fn give_up_insertions(&self, insertions_max: usize) -> Result<()> {
        let (mut left, mut failed) = (insertions_max, None);
        let mut options = ScanOptions::new().with_values(true);
        while left > 0 {
            let page = self.store.scan(&insertions(), options.clone().with_limit(left.min(options.limit))).await?;
            for entry in page.entries {
                let ScanEntry::Item(item) = entry else { continue };
                match self.give_up_interrupted(&item).await {
                    Ok(()) => left -= 1,
                    // One insertion that cannot be given up does not stop the others.
                    Err(error) => {
                        tracing::warn!(%error, key = item.key, "the rows of an import remain until the next sweep");
                        failed = Some(error);
                    }
                }
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => break,
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Records for removal the rows of an insertion, if it was interrupted.
    async fn give_up_interrupted(&self, item: &Item) -> Result<()> {
        let InsertionRow { removal } = stored(&format!("record `{}` of an import", item.key.escape_debug()), &item.value)?;
        let data = removal.rows().data(&removal.data)?;
        let has_ended = match self.store.get(&data, INSERTING).await? {
            // Its row comes before the record, so the insertion has completed or was given up.
            None => true,
            Some(item) if is_older(&item.value, self.clock.now(), PAUSE_MAX) => {
                self.end(&removal, Condition::Version(item.version)).await?
            }
            Some(_) => false,
        };
        if has_ended { self.record_removal(&removal).await } else { Ok(()) }
    }

    /// Gives up an insertion: none of its commits has an effect from now on, and its rows are recorded for removal. A trace that it completed
    /// stays.
    #[cfg(all(feature = "filesystem", unix))]
    pub(super) async fn give_up(&self, removal: &Removal) -> Result<()> {
        if self.end(removal, Condition::Exists).await? { self.record_removal(removal).await } else { Ok(()) }
    }

    /// Removes the row that every commit of an insertion depends on. Returns false if it is not there.
    async fn end(&self, removal: &Removal, expected: Condition) -> Result<bool> {
        let data = removal.rows().data(&removal.data)?;
        let ended = Batch::new().expect(&data, INSERTING, expected).delete(&data, INSERTING);
        Ok(rows::commit(&*self.store, ended).await?.is_some())
    }

    /// Replaces the record of an insertion that has ended by that of a removal, which keeps a trace that it completed.
    async fn record_removal(&self, removal: &Removal) -> Result<()> {
        self.store.commit(removal.put(Batch::new().delete(&insertions(), removal.key()))).await.map(drop)
    }
}

impl StoredTraces {
    /// Returns the namespace in which a row changes with every change of the user's traces, for a change feed to watch.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for ids that are too long together.
    pub fn changes(&self) -> Result<Namespace> {
        self.rows.traces()
    }
}
