//! Reports when calls of this process write.

use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::watch;

/// A notifier for the writes of this process's calls.
#[derive(Debug)]
pub struct Writes {
    count: watch::Sender<u64>,
    running: AtomicUsize,
}

/// A writing call, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Writing<'a>(&'a Writes);

impl Default for Writes {
    fn default() -> Self {
        Self { count: watch::Sender::new(0), running: AtomicUsize::new(0) }
    }
}

impl Writes {
    pub(super) fn begin(&self) -> Writing<'_> {
        self.running.fetch_add(1, Ordering::AcqRel);
        self.count.send_modify(|count| *count += 1);
        Writing(self)
    }

    /// Returns a receiver that wakes when a call begins to write and when it has ended.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.count.subscribe()
    }

    /// Returns a mark of the current moment for [`Writes::since`].
    pub fn now(&self) -> u64 {
        *self.count.borrow()
    }

    /// Returns whether a call may have written since a mark.
    pub fn since(&self, mark: u64) -> bool {
        self.now() != mark || self.running.load(Ordering::Acquire) > 0
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.count.send_modify(|count| *count += 1);
        self.0.running.fetch_sub(1, Ordering::AcqRel);
    }
}
