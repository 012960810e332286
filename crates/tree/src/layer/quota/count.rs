//! The count of a whole tree, which can outlive the call that started it.

use super::{QuotaLimits, Usage};
use crate::backend::Backend;
use crate::layer::walk::{Met, Walk};
use treehold_core::error::Result;
use treehold_core::ops::EntryKind;
use treehold_core::path::VfsPath;

/// A count in progress. An abandoned call leaves it where it is, and the next one continues it, so a tree that takes longer to count than
/// any caller waits is still counted.
///
/// It stays correct while no change runs. `epoch` is that of the [`Ledger`](super::ledger::Ledger) in which it started.
#[derive(Debug)]
pub(super) struct Count {
    pub(super) epoch: u64,
    usage: Usage,
    walk: Walk,
}

impl Count {
    pub(super) fn new(epoch: u64) -> Self {
        Self { epoch, usage: Usage::default(), walk: Walk::new(VfsPath::ROOT, true) }
    }

    /// Counts the rest.
    ///
    /// # Errors
    /// The errors of [`Backend::glob`].
    pub(super) async fn finish<B: Backend>(&mut self, tree: &B) -> Result<Usage> {
        while let Some(page) = self.walk.next_page(tree).await? {
            page.for_each(|met| self.usage.add(met));
        }
        Ok(self.usage)
    }
}

impl Usage {
    fn add(&mut self, met: Met) {
        match met {
            Met::Entry(entry) if entry.kind == EntryKind::File => {
                self.bytes = self.bytes.saturating_add(entry.size_bytes);
                self.files += 1;
            }
            Met::Entry(entry) if entry.is_directory() => {
                self.bytes = self.bytes.saturating_add(QuotaLimits::DIRECTORY_BYTES);
                self.directories += 1;
            }
            Met::Entry(_) => {}
            Met::Failure(failure) => {
                tracing::warn!(path = %failure.path, code = failure.error.code, "an unreadable entry was not counted")
            }
        }
    }
}
