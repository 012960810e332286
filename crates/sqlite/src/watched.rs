//! Notification of watchers about commits of this and other processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use treehold_core::error::Result;
use treehold_core::ops::Version;
use treehold_store::committer::{Work, Written};
use treehold_store::watch::Watches;

/// The watches of one open file.
#[derive(Debug, Default)]
pub(super) struct Watched {
    pub(super) watches: Arc<Watches>,
    /// The newest version that was announced.
    announced: AtomicU64,
}

impl Watched {
    /// Announces a committed group, and the commits of other processes before it.
    pub(super) fn announce(&self, before: u64, after: u64, group: &[Work], answers: &[Result<Written>]) {
        self.announce_others(before);
        if after > before {
            self.announced.fetch_max(after, Ordering::AcqRel);
            for (work, answer) in group.iter().zip(answers) {
                if let (Work::Commit(batch), Ok(_)) = (work, answer) {
                    self.watches.notify_batch(batch, Version::new(after));
                }
            }
        }
    }

    /// Announces that other processes have committed up to `version`, in unknown namespaces.
    pub(super) fn announce_others(&self, version: u64) {
        if self.announced.fetch_max(version, Ordering::AcqRel) < version {
            self.watches.notify_all(Version::new(version));
        }
    }
}
