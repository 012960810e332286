//! Waiting for a lock of another process, and reporting a wait that takes long.
//!
//! Embedded stores and directories of the host are locked between processes, and whoever waits for such a lock tries it again and again.
//! [`LockWait`] reports the wait once, as a `tracing` event with the target [`LOCK_WAIT`], so that a program can tell its user why nothing
//! happens. Without a subscriber nothing is reported.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// The target of the event. Its field `place` names what is locked, such as `sqlite:/var/lib/treehold/treehold.db`. Its level is `INFO`.
pub const LOCK_WAIT: &str = "treehold::lock_wait";

/// How long a wait takes before it is reported.
pub const REPORTED_AFTER: Duration = Duration::from_millis(300);

/// One wait for a lock of another process.
///
/// ```
/// use treehold_core::lock_wait::LockWait;
/// # let mut attempts = 0;
/// # let mut try_to_lock = || { attempts += 1; attempts == 3 };
///
/// let mut wait = LockWait::begin();
/// while !try_to_lock() {
///     wait.still("sqlite:agent.db");
/// }
/// ```
#[derive(Debug)]
pub struct LockWait {
    since: Instant,
    is_reported: bool,
}

impl LockWait {
    /// Begins a wait, before the first attempt to lock.
    #[must_use]
    pub fn begin() -> Self {
        Self { since: Instant::now(), is_reported: false }
    }

    /// Notes that `place` is still locked. Reports the wait once it has taken [`REPORTED_AFTER`], and at most once.
    pub fn still(&mut self, place: impl Display) {
        self.still_at(Instant::now(), place);
    }

    fn still_at(&mut self, now: Instant, place: impl Display) {
        if self.is_reported || now.saturating_duration_since(self.since) < REPORTED_AFTER {
            return;
        }
        self.is_reported = true;
        tracing::info!(target: LOCK_WAIT, %place, "waiting for a lock of another process");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    /// Counts the events with our target.
    struct Counter(Arc<AtomicUsize>);

    impl Subscriber for Counter {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == LOCK_WAIT
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn long_wait_is_reported_once_and_a_short_one_never() {
        let count = Arc::new(AtomicUsize::new(0));
        tracing::subscriber::with_default(Counter(count.clone()), || {
            let mut wait = LockWait::begin();
            for (millis, reported) in [(0, 0), (299, 0), (300, 1), (301, 1), (10_000, 1)] {
                wait.still_at(wait.since + Duration::from_millis(millis), "store");
                assert_eq!(count.load(Ordering::SeqCst), reported, "after {millis} ms");
            }
        });
    }
}
