//! Modification times that distinguish one write from the next.

use parking_lot::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

/// How far ahead of the clock the date of a replaced file may be, in nanoseconds: one day. A later date is treated as an error and ignored.
const AHEAD_MAX_NS: i128 = 86_400 * 1_000_000_000;

/// The last time handed out in this process.
static LAST_NS: Mutex<i128> = Mutex::new(i128::MIN);

/// Returns the modification time for a write, in nanoseconds since 1970: the current time, made later than every one handed out
/// in this process and than `old_ns`, the time of the replaced file. If that is more than a day ahead, it is ignored.
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

/// Returns the current time in nanoseconds since 1970.
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
    fn write_times_are_unique_and_later_than_replaced_ones() {
        let first = next_ns(None);
        let second = next_ns(None);
        assert!(second > first);
        assert_eq!(next_ns(Some(second + 1_000_000_000)), second + 1_000_000_001);
        let far = second + 2 * AHEAD_MAX_NS;
        assert!(next_ns(Some(far)) < far, "a wrong date in the future is replaced");
        assert!(next_ns(None) > second);
    }
}
