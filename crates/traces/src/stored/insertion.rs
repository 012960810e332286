//! Insertions in progress, and the removal of those that were interrupted.

use super::rows::{self, Removal};
use super::{StoredTraces, Traces};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use treehold_core::error::Result;
use treehold_core::json::stored;
use treehold_core::reserved::{RESERVED_ROOT, TRACES};
use treehold_store::{Batch, Condition, Namespace, ScanEntry, ScanOptions};

/// How long an insertion may pause before a sweep removes its rows.
const PAUSE_MAX: Duration = Duration::from_secs(60 * 60);

/// The key, beneath a trace's data, of the row that exists while the trace is inserted.
pub(super) const INSERTING: &str = "inserting";

/// The insertions in progress. No tenant can have this name.
pub(super) fn insertions() -> Namespace {
    Namespace::new(TRACES.into_iter().chain([RESERVED_ROOT, "insertions"])).expect("four plain components")
}

/// The row of an insertion in progress.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct InsertionRow {
    pub(super) removal: Removal,
    /// When it was renewed, in microseconds since 1970.
    pub(super) at: i64,
}

impl Traces {
    /// Marks the rows of insertions that were interrupted for removal, at most `insertions_max` of them.
    ///
    /// Cost: one round trip if there are none.
    pub(super) async fn give_up_insertions(&self, insertions_max: usize) -> Result<()> {
        let page = self.store.scan(&insertions(), ScanOptions::new().with_values(true).with_limit(insertions_max)).await?;
        let pause = i64::try_from(PAUSE_MAX.as_micros()).expect("an hour is some microseconds");
        for entry in page.entries {
            let ScanEntry::Item(item) = entry else { continue };
            let insertion: InsertionRow = stored("row of an import", &item.value)?;
            if self.now().saturating_sub(insertion.at) > pause {
                self.give_up(&insertion.removal).await?;
            }
        }
        Ok(())
    }

    /// Marks the rows of an insertion for removal. None of its commits has an effect from now on. A trace that it completed stays.
    pub(super) async fn give_up(&self, removal: &Removal) -> Result<()> {
        let data = removal.rows().data(&removal.data)?;
        let batch = Batch::new().expect(&data, INSERTING, Condition::Exists).delete(&data, INSERTING).delete(&insertions(), removal.key());
        rows::commit(&*self.store, removal.put(batch)).await.map(drop)
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
