//! Removes the rows of deleted traces.
//!
//! A deletion records the data that is to be removed, and then hides the trace with one commit. It holds an
//! [intent](treehold_store::intent) meanwhile, so that a sweep between the two keeps the record. Every other commit depends on the head that
//! this commit deletes, or on a row that it deletes, so nothing is written to the data later. So the data can be removed in steps, by anybody.

use super::Traces;
use super::rows::{LIVE, Removal, removals};
use std::time::Duration;
use tokio::task::JoinHandle;
use treehold_core::error::{Error, Result};
use treehold_core::json::stored;
use treehold_core::ops::Version;
use treehold_store::intent;
use treehold_store::{Batch, NamespacesOptions, ScanEntry, ScanOptions, SweepCount};

/// The most rows that one commit removes, so that other writers get their turn.
const ROWS_MAX: usize = 1_000;

/// The most commits of a deletion, and of a sweep for each trace that it may remove. The next sweep removes the rest.
const STEPS_MAX: usize = 32;

impl Traces {
    /// Removes rows that deletions of traces have left behind, for at most `traces_max` traces. Returns the number of traces whose rows are
    /// all removed.
    ///
    /// A call removes rows with at most `32 * traces_max` commits, of up to 1,000 rows each. One large trace may take all of them, and the next
    /// call goes on with it. `usize::MAX` sets no bound.
    ///
    /// Rows of imports that were interrupted an hour ago or earlier are removed as well.
    ///
    /// Cost: two round trips if there is nothing to remove.
    ///
    /// # Errors
    /// The last error, after every other trace was tried.
    pub async fn sweep_some(&self, traces_max: usize) -> Result<usize> {
        self.sweep_counting(traces_max, &SweepCount::new()).await
    }

    /// As [`Traces::sweep_some`]. Adds the number of removed traces to `count`, also if it fails for another one.
    ///
    /// # Errors
    /// As [`Traces::sweep_some`].
    pub async fn sweep_counting(&self, traces_max: usize, count: &SweepCount) -> Result<usize> {
        let (mut left, mut removed, mut failed) = (traces_max, 0, self.give_up_insertions(traces_max).await.err());
        let mut steps_left = traces_max.saturating_mul(STEPS_MAX);
        let mut options = ScanOptions::new().with_values(true);
        while left > 0 {
            let page = self.store.scan(&removals(), options.clone().with_limit(left.min(ROWS_MAX))).await?;
            for entry in page.entries {
                let ScanEntry::Item(item) = entry else { continue };
                if steps_left == 0 {
                    return failed.map_or(Ok(removed), Err);
                }
                let swept = match stored::<Removal>(&format!("removal `{}` of a trace", item.key.escape_debug()), &item.value) {
                    Ok(removal) => self.remove_within(&removal, Some(item.version), &mut steps_left).await,
                    Err(error) => Err(error),
                };
                match swept {
                    Ok(is_complete) => {
                        left -= 1;
                        removed += usize::from(is_complete);
                        count.add(usize::from(is_complete));
                    }
                    // One trace that cannot be removed does not stop the others.
                    Err(error) => {
                        tracing::warn!(%error, key = item.key, "the rows of a deleted trace remain until the next sweep");
                        failed = Some(error);
                    }
                }
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => break,
            }
        }
        failed.map_or(Ok(removed), Err)
    }

    /// Removes rows of a deleted trace in at most [`STEPS_MAX`] steps. Otherwise as [`Traces::remove_within`].
    pub(super) async fn remove(&self, removal: &Removal, record: Option<Version>) -> Result<bool> {
        let mut steps_left = STEPS_MAX;
        self.remove_within(removal, record, &mut steps_left).await
    }

    /// Removes rows of a deleted trace in bounded steps, and its entry in the directory. Returns whether all of them are removed. If the
    /// deletion never took effect, or an archive brought a trace together with an older record, only the record is removed.
    ///
    /// Each commit of rows takes one of `steps_left`, and none is made without.
    ///
    /// `record` is the version of the record if it was read. Without it, the record of a live trace stays: it may be that of a deletion that is
    /// about to take effect.
    async fn remove_within(&self, removal: &Removal, record: Option<Version>, steps_left: &mut usize) -> Result<bool> {
        let rows = removal.rows();
        let data = rows.data(&removal.data)?;
        let is_live = async || Ok::<_, Error>(self.store.get_part(&data, LIVE, 0..0).await?.is_some());
        let done = Batch::new().delete(&removals(), removal.key());
        if is_live().await? {
            if intent::end(&*self.store, &rows.intents()?, &removal.deletions(), self.clock.now()).await? {
                return Ok(false);
            }
            if is_live().await? {
                if let Some(record) = record {
                    intent::unregister(&*self.store, &removals(), &removal.key(), record).await?;
                }
                return Ok(true);
            }
        }
        self.unregister(&rows, removal.trace.id()).await?;
        loop {
            let namespaces = self.store.namespaces(NamespacesOptions::new().with_beneath(data.clone()).with_limit(1)).await?.namespaces;
            let Some(namespace) = namespaces.first() else {
                // Nothing can be deleted any more.
                self.store.commit(Batch::new().delete_prefix(&rows.intents()?, removal.deletions())).await?;
                return self.store.commit(done).await.map(|_| true);
            };
            if *steps_left == 0 {
                return Ok(false);
            }
            let page = self.store.scan(namespace, ScanOptions::new().with_limit(ROWS_MAX)).await?;
            let batch = page.entries.iter().fold(Batch::new(), |batch, entry| batch.delete(namespace, entry.key()));
            self.store.commit(batch).await?;
            *steps_left -= 1;
        }
    }
}

/// Calls [`Traces::sweep_some`] at regular intervals, until it is dropped.
///
/// Several processes may sweep the traces of one store. A failed round is logged, and the next one tries again.
#[derive(Debug)]
pub struct TracesSweeper {
    task: JoinHandle<()>,
}

impl TracesSweeper {
    /// How many traces a round removes. Other writers get their turn between rounds.
    const TRACES_MAX: usize = 100;

    /// Starts a task on the current runtime. The first round is after the first pause.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn start(traces: Traces, every: Duration) -> Self {
        Self::start_counting(traces, every, SweepCount::new())
    }

    /// As [`TracesSweeper::start`], and counts the traces that [`Traces::sweep_some`] removes, also if it fails for another one.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn start_counting(traces: Traces, every: Duration, removed: SweepCount) -> Self {
        Self { task: tokio::spawn(sweep_on(traces, every, removed)) }
    }
}

impl Drop for TracesSweeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn sweep_on(traces: Traces, every: Duration, count: SweepCount) {
    loop {
        tokio::time::sleep(every).await;
        match traces.sweep_counting(TracesSweeper::TRACES_MAX, &count).await {
            Ok(0) => {}
            Ok(removed) => tracing::debug!(%traces, removed, "rows of deleted traces were removed"),
            Err(error) => tracing::warn!(%traces, %error, "removing rows of deleted traces failed; retrying in the next round"),
        }
    }
}
