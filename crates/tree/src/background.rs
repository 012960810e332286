//! Searches, and other work that is too long for a thread that serves others.

use std::sync::atomic::AtomicBool;
use treehold_core::error::Result;
use treehold_core::work;

/// Returns how many threads one call works on.
pub(crate) fn workers() -> usize {
    work::cores()
}

/// Runs work on a blocking thread, in its owner's turn; the flag it is given is set when the caller no longer waits.
pub(crate) async fn in_background<T: Send + 'static>(run: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> Result<T> {
    work::run(work::LARGE, move |stop| run(stop.flag())).await
}
