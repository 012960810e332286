//! Random numbers for injected faults: small, seeded, not for secrets.

/// Returns number `index` of a seed's sequence, in `0.0..1.0`.
///
/// SplitMix64 (<https://prng.di.unimi.it/splitmix64.c>) computes any number of the sequence without the ones before it, so concurrent
/// callers need no lock.
pub(super) fn fraction(seed: u64, index: u64) -> f64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    // A double represents 53 bits exactly.
    (z >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_determines_its_sequence_over_the_whole_range() {
        let numbers: Vec<f64> = (0..1000).map(|index| fraction(7, index)).collect();
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
        assert!(numbers.iter().any(|number| *number < 0.01) && numbers.iter().any(|number| *number > 0.99));
        assert_eq!(numbers[3], fraction(7, 3));
        assert_ne!(numbers[3], fraction(8, 3));
    }
}
