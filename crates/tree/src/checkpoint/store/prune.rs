//! Selecting and removing checkpoints, and sweeping what only they held.

use super::StoreCheckpointer;
use crate::checkpoint::namespaces::{PRUNED_KEY, SEPARATOR, UserNamespaces, items};
use crate::checkpoint::record::Record;
use crate::checkpoint::sweep::{self, SweepOptions};
use crate::checkpoint::{Checkpoint, CheckpointId, Swept};
use bytes::Bytes;
use std::collections::HashSet;
use treehold_core::error::Result;
use treehold_store::{Batch, ScanOptions};

/// The checkpoints of a thread that are to be removed.
#[derive(Debug, Default)]
pub(in crate::checkpoint) struct Selected {
    /// Their keys, newest first.
    pub(in crate::checkpoint) keys: Vec<String>,
    /// The number of the others.
    pub(in crate::checkpoint) kept: u64,
}

impl StoreCheckpointer {
    /// Selects the checkpoints of a thread that `removes` accepts, given each and the number of newer ones. The head is never selected.
    pub(in crate::checkpoint) async fn select(
        &self,
        place: &UserNamespaces,
        thread: &str,
        head: CheckpointId,
        mut removes: impl FnMut(&Checkpoint, u64) -> bool,
    ) -> Result<Selected> {
        let (mut newer, mut selected) = (0, Selected::default());
        self.each(place, thread, |key, Record { checkpoint, .. }| {
            // A checkpoint newer than the head that was read became the head since. `removes` sees every checkpoint.
            if removes(&checkpoint, newer) && checkpoint.id < head {
                selected.keys.push(key.to_owned());
            } else {
                selected.kept += 1;
            }
            newer += 1;
            Ok(())
        })
        .await?;
        Ok(selected)
    }

    /// Calls `each` with every checkpoint of a thread, newest first.
    pub(super) async fn each(&self, place: &UserNamespaces, thread: &str, mut each: impl FnMut(&str, Record) -> Result<()>) -> Result<()> {
        let mut options = ScanOptions::new().with_prefix(format!("{thread}{SEPARATOR}"));
        loop {
            let page = self.store.scan(&place.checkpoints, options.clone()).await?;
            for item in items(page.entries) {
                each(&item.key, Record::from_bytes(&item.meta)?)?;
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Sweeps the pages and contents of a user. Contents that are gone must not be read from the cache either.
    pub(in crate::checkpoint) async fn sweep_place(&self, place: &UserNamespaces, dry_run: bool, gone: &HashSet<String>) -> Result<Swept> {
        let options = SweepOptions { dry_run, rows: self.batch_rows, gone };
        let swept = sweep::sweep(&*self.store, place, &options).await;
        if !dry_run {
            self.cache.forget_bodies();
        }
        swept
    }
}

/// Returns the batch that removes checkpoints.
pub(in crate::checkpoint) fn removal(place: &UserNamespaces, keys: &[String]) -> Batch {
    let batch = Batch::new().put(&place.pruned, PRUNED_KEY, Bytes::new());
    keys.iter().fold(batch, |batch, key| batch.delete(&place.checkpoints, key.as_str()))
}
