//! Waiting between attempts: one randomized exponential backoff for all retries.
//!
//! [`Backoff`] computes pauses and waits. [`LostRaces`] retries optimistic work, which reads, commits on the condition that nobody
//! committed meanwhile, and starts over if somebody did.

use crate::random;
use std::time::Duration;

/// A pause that doubles with each attempt up to a bound. Each caller waits for a random part of it.
///
/// The part is uniformly distributed between nothing and the whole pause
/// ([full jitter](https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/)), so that callers that failed together do not
/// retry together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// Makes a backoff whose pause is at most `first` after the first attempt, and at most `longest` after any.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// Returns the longest pause after attempt number `attempt`, counted from 0.
    pub fn ceiling(&self, attempt: u32) -> Duration {
        self.first.saturating_mul(1_u32.checked_shl(attempt).unwrap_or(u32::MAX)).min(self.longest)
    }

    /// Returns a random pause after attempt number `attempt`, counted from 0.
    pub fn pause(&self, attempt: u32) -> Duration {
        self.ceiling(attempt).mul_f64(random::number() as f64 / u64::MAX as f64)
    }

    /// Waits for a random pause after attempt number `attempt`, counted from 0. Time is tokio's clock.
    pub async fn wait(&self, attempt: u32) {
        tokio::time::sleep(self.pause(attempt)).await;
    }
}

/// Counts the races that optimistic work has lost to other writers, and waits after each.
///
/// Each lost race means that another writer succeeded, so only work that is constantly overtaken reaches the bound.
///
/// # Examples
/// ```
/// use treehold_core::backoff::LostRaces;
/// # async fn commit() -> bool { true }
///
/// # async fn example() -> Result<(), String> {
/// let mut races = LostRaces::new();
/// while !commit().await {
///     if !races.lost().await {
///         return Err(format!("others were faster {} times", races.count()));
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct LostRaces {
    count: u32,
    max: u32,
}

impl LostRaces {
    /// How many races work loses before it gives up, unless it sets another bound. With the pauses this takes about ten seconds.
    pub const MAX: u32 = 1_000;

    const BACKOFF: Backoff = Backoff::new(Duration::from_micros(100), Duration::from_millis(20));

    /// Starts at zero. Work gives up after [`LostRaces::MAX`] lost races.
    pub const fn new() -> Self {
        Self::at_most(Self::MAX)
    }

    /// Starts at zero. Work gives up after `max` lost races. Use it for attempts that cost more than a round trip or two.
    pub const fn at_most(max: u32) -> Self {
        Self { count: 0, max }
    }

    /// Returns how many races were lost so far.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Counts a lost race. Waits and returns true, or returns false if the work should give up.
    pub async fn lost(&mut self) -> bool {
        self.count += 1;
        if self.count >= self.max {
            return false;
        }
        Self::BACKOFF.wait(self.count - 1).await;
        true
    }
}

impl Default for LostRaces {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_vary() {
        let backoff = Backoff::new(Duration::from_millis(8), Duration::from_millis(250));
        for (attempt, longest) in [(0, 8), (1, 16), (3, 64), (5, 250), (40, 250), (u32::MAX, 250)] {
            assert_eq!(backoff.ceiling(attempt), Duration::from_millis(longest), "{attempt}");
            assert!((0..100).all(|_| backoff.pause(attempt) <= backoff.ceiling(attempt)), "{attempt}");
        }
        let pauses: Vec<Duration> = (0..200).map(|_| backoff.pause(9)).collect();
        assert!(pauses.iter().any(|pause| *pause < Duration::from_millis(50)));
        assert!(pauses.iter().any(|pause| *pause > Duration::from_millis(200)));
    }

    #[tokio::test(start_paused = true)]
    async fn lost_races_are_retried_up_to_the_bound() {
        let mut races = LostRaces::at_most(3);
        assert!(races.lost().await && races.lost().await);
        assert!(!races.lost().await);
        assert_eq!(races.count(), 3);
        let (mut races, began) = (LostRaces::new(), tokio::time::Instant::now());
        while races.lost().await {}
        assert_eq!(races.count(), LostRaces::MAX);
        assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    }
}
