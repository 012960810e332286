//! Random numbers that are not secret.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Returns a random number. Use it for jitter and ids, not for secrets: a number may be guessed from others.
pub fn number() -> u64 {
    // Keys are random per thread and differ for each `RandomState`.
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_of_one_thread_and_of_several_differ() {
        let numbers = || (0..100).map(|_| number()).collect::<Vec<_>>();
        let other = std::thread::spawn(numbers).join().expect("the thread ended");
        assert_eq!(numbers().into_iter().chain(other).collect::<HashSet<_>>().len(), 200);
    }
}
