//! The count of changes outside the state of a thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the batches that may have changed a mount other than the state.
#[derive(Debug, Clone, Default)]
pub(crate) struct Elsewhere(Arc<AtomicU64>);

impl Elsewhere {
    /// Counts a batch before it starts.
    pub(crate) fn begin(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Uncounts a batch that is known to have changed nothing.
    pub(crate) fn take_back(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns the number of counted batches.
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}
