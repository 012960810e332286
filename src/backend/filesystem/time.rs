//! Modification times that tell one write from the next.

use parking_lot::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

/// How far ahead of the clock a file's time may be and still be passed over, rather than taken for a wrong date: one day.
const AHEAD_MAX_NS: i128 = 86_400 * 1_000_000_000;

/// The last time handed out in this process.
static LAST_NS: Mutex<i128> = Mutex::new(i128::MIN);

/// Returns the time for a write, in nanoseconds since 1970: now, but after every one handed out in this process and after
/// `old_ns`, the time of what it replaces. A file dated more than a day ahead is brought back to the present.
pub(super) fn next_ns(old_ns: Option<i128>) -> i128 {
    let own = {
        let now = now_ns();
        let mut last = LAST_NS.lock();
        *last = now.max(last.saturating_add(1));
        *last
    };
    match old_ns {
        Some(old) if old >= own && old - own < AHEAD_MAX_NS => old + 1,
        _ => own,
    }
}

/// Returns the time now, in nanoseconds since 1970.
pub(super) fn now_ns() -> i128 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_unique_and_after_what_they_replace() {
        let first = next_ns(None);
        let second = next_ns(None);
        assert!(second > first);
        assert_eq!(next_ns(Some(second + 1_000_000_000)), second + 1_000_000_001);
        let far = second + 2 * AHEAD_MAX_NS;
        assert!(next_ns(Some(far)) < far, "a wrong date does not last");
        assert!(next_ns(None) > second);
    }
}
