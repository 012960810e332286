//! Keeping a log near its cap, at a cost that does not depend on how often it is written.

use super::{ENTRIES_MAX, MessageBus};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use treehold_core::error::Result;
use treehold_store::{Batch, Namespace, ScanOptions};

/// A log may exceed its cap by this part of it before the process that writes it removes entries.
const SLACK: usize = 8;

/// Of how many logs a process counts the entries that it added.
const LOGS_MAX: usize = 4_096;

/// How many entries this process added to each log since it last removed some.
#[derive(Debug, Default)]
pub(super) struct Trims(Mutex<HashMap<Namespace, usize>>);

impl Trims {
    /// Counts an entry. Returns whether it is time to remove old ones: at the first entry, and then after each eighth of the cap.
    fn is_due(&self, log: &Namespace, len_max: usize) -> bool {
        let mut counts = self.0.lock();
        if counts.len() >= LOGS_MAX && !counts.contains_key(log) {
            counts.clear();
        }
        match counts.get_mut(log) {
            Some(count) if *count + 1 < (len_max / SLACK).max(1) => {
                *count += 1;
                false
            }
            Some(count) => {
                *count = 0;
                true
            }
            None => {
                counts.insert(log.clone(), 0);
                true
            }
        }
    }
}

impl MessageBus {
    /// Removes old entries if it is time. The new entry is there in any case, so a failure is only reported.
    pub(super) async fn cap(&self, log: &Namespace, len_max: Option<usize>) {
        let Some(len_max) = len_max.filter(|len_max| self.trims.is_due(log, *len_max)) else { return };
        if let Err(error) = self.trim_to(log, len_max).await {
            tracing::warn!(%error, %log, "old entries of a log could not be removed; the next append tries again");
        }
    }

    /// Removes all entries but the newest `len_max`. Several processes may do so at once: each removes only entries that are older than
    /// the newest `len_max` that it saw.
    async fn trim_to(&self, log: &Namespace, len_max: usize) -> Result<()> {
        let mut newest: VecDeque<String> = VecDeque::new();
        let mut older = Vec::new();
        let mut options = ScanOptions::new();
        loop {
            let scan = self.store.scan(log, options.clone()).await?;
            for entry in scan.entries {
                newest.push_back(entry.key().to_owned());
                if newest.len() > len_max {
                    older.extend(newest.pop_front());
                }
            }
            // Without a limit, a log that was never trimmed would fill the memory with its keys.
            if older.len() >= ENTRIES_MAX || scan.next.is_none() {
                self.remove(log, &mut older).await?;
            }
            match scan.next {
                Some(next) => options.start_after = Some(next),
                None => return Ok(()),
            }
        }
    }

    async fn remove(&self, log: &Namespace, older: &mut Vec<String>) -> Result<()> {
        for keys in older.chunks(ENTRIES_MAX) {
            self.store.commit(keys.iter().fold(Batch::new(), |batch, key| batch.delete(log, &**key))).await?;
        }
        older.clear();
        Ok(())
    }
}
