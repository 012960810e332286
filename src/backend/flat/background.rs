//! Searches that are too long for a thread that serves others.

use crate::error::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Returns how many threads a search works on.
pub(in crate::backend) fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs a search on a blocking thread; the flag it is given is set when the caller waits no longer.
pub(in crate::backend) async fn in_background<T: Send + 'static>(run: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> Result<T> {
    let stop = StopOnDrop(Arc::default());
    let seen = stop.0.clone();
    tokio::task::spawn_blocking(move || run(&seen))
        .await
        .map_err(|error| Error::new(ErrorKind::Internal, "the search ended without a result").with_source(error))
}

struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
