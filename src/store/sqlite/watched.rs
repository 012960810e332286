//! Who watches, and how far the commits of this process are known to be all there are.

use crate::error::Result;
use crate::ops::Version;
use crate::store::committer::{Work, Written};
use crate::store::watch::Watches;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The watches of one open file.
#[derive(Debug, Default)]
pub(super) struct Watched {
    pub(super) watches: Arc<Watches>,
    /// The newest version whose commit was told of.
    told: AtomicU64,
}

impl Watched {
    /// Tells of a group that was committed, and of what other processes committed before it.
    pub(super) fn tell(&self, before: u64, after: u64, group: &[Work], answers: &[Result<Written>]) {
        self.tell_of_others(before);
        if after > before {
            self.told.fetch_max(after, Ordering::AcqRel);
            for (work, answer) in group.iter().zip(answers) {
                if let (Work::Commit(batch), Ok(_)) = (work, answer) {
                    self.watches.tell_of(batch, Version::new(after));
                }
            }
        }
    }

    /// Tells of what other processes have committed up to a version; which namespaces it was in is not known.
    pub(super) fn tell_of_others(&self, version: u64) {
        if self.told.fetch_max(version, Ordering::AcqRel) < version {
            self.watches.tell_all(Version::new(version));
        }
    }
}
