//! Content without repetitions, so that a lost, duplicated or swapped piece is noticed.

use bytes::Bytes;

/// Returns the same bytes for a seed and a length each time.
pub(crate) fn noise(seed: u64, length: usize) -> Bytes {
    let mut bytes = vec![0; length];
    // Cases make hundreds of megabytes, and what makes them is compiled with optimisations in tests too.
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes.into()
}
