//! Randomized exponential backoff.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// The longest pause.
pub const PAUSE_MAX: Duration = Duration::from_millis(250);

/// Returns how long to wait after attempt number `attempt`, counted from 0. The pause starts at `first`, doubles with
/// each attempt up to [`PAUSE_MAX`], and is shortened at random by up to half, so that colliding callers spread out.
pub fn random_pause(first: Duration, attempt: u32) -> Duration {
    let longest = first.saturating_mul(1_u32.checked_shl(attempt).unwrap_or(u32::MAX)).min(PAUSE_MAX);
    // Each `RandomState` has its own random keys.
    let random = RandomState::new().build_hasher().finish();
    longest.mul_f64(0.5 + 0.5 * (random as f64 / u64::MAX as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_vary() {
        let first = Duration::from_millis(8);
        for (attempt, longest) in [(0, 8), (1, 16), (3, 64), (5, 250), (40, 250)] {
            let pause = random_pause(first, attempt);
            let longest = Duration::from_millis(longest);
            assert!(pause >= longest / 2 && pause <= longest, "{attempt}: {pause:?}");
        }
        assert!((0..20).any(|_| random_pause(first, 9) != random_pause(first, 9)));
    }
}
