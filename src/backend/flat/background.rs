//! Searches, and other work that is too long for a thread that serves others.

use crate::error::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

/// Returns how many threads one call works on.
///
/// Asked for once: the system answers by reading files, which takes as long as searching a hundred.
pub(in crate::backend) fn workers() -> usize {
    static WORKERS: LazyLock<usize> = LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
    *WORKERS
}

/// Runs work on a blocking thread; the flag it is given is set when the caller waits no longer.
pub(in crate::backend) async fn in_background<T: Send + 'static>(run: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> Result<T> {
    let stop = StopOnDrop(Arc::default());
    let seen = stop.0.clone();
    tokio::task::spawn_blocking(move || run(&seen))
        .await
        .map_err(|error| Error::new(ErrorKind::Internal, "work in the background ended without a result").with_source(error))
}

struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
