//! Summarizes the trigrams of some content.

use super::Trigram;
use crate::work;

/// The size of a signature: a power of two from 512 bits on, in steps of factor four, so that contents of similar size have
/// signatures of the same size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SignatureSize(u8);

impl SignatureSize {
    /// The smallest size: 512 bits.
    pub const MIN: Self = Self(9);

    /// The largest size: 2^19 bits, or 64 KiB.
    pub const MAX: Self = Self(19);

    /// Returns the smallest size in which this many trigrams set at most half of the bits.
    fn for_count(trigrams: usize) -> Self {
        let mut size = Self::MIN;
        while size < Self::MAX && size.bits() < trigrams.saturating_mul(2) {
            size = Self(size.0 + 2);
        }
        size
    }

    /// Converts back from [`SignatureSize::bits_log2`].
    pub fn from_bits_log2(bits_log2: u8) -> Option<Self> {
        ((Self::MIN.0..=Self::MAX.0).contains(&bits_log2) && bits_log2 % 2 == 1).then_some(Self(bits_log2))
    }

    /// Returns the binary logarithm of the number of bits.
    pub fn bits_log2(self) -> u8 {
        self.0
    }

    /// Returns the number of bits.
    pub fn bits(self) -> usize {
        1 << self.0
    }

    /// Returns the number of bytes.
    pub fn bytes(self) -> usize {
        self.bits() / 8
    }

    /// Returns the bit that represents a trigram.
    pub fn bit_of(self, trigram: Trigram) -> usize {
        trigram.hash() as usize & (self.bits() - 1)
    }
}

/// The set of trigrams of some content, each represented by one bit that others may share (a Bloom filter with one hash).
///
/// Its size depends on the number of different trigrams so that between an eighth and half of the bits are set. So an absent
/// trigram looks present in at most half of all cases, and ten of them hardly ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    size: SignatureSize,
    bytes: Vec<u8>,
}

impl Signature {
    /// Creates the signature of some content. Cost: one pass, about a nanosecond for each byte.
    pub fn of(content: &[u8]) -> Self {
        let largest = SignatureSize::for_count(content.len());
        let mut signature = Self { size: largest, bytes: vec![0; largest.bytes()] };
        for trigram in Trigram::all_of(content) {
            work::advance(8);
            let bit = largest.bit_of(trigram);
            signature.bytes[bit / 8] |= 1 << (bit % 8);
        }
        let count = signature.bytes.iter().map(|byte| byte.count_ones() as usize).sum();
        // The low bits of the hash select the position, so a smaller signature is the parts of the larger one combined by OR.
        let size = SignatureSize::for_count(count).min(largest);
        for start in (size.bytes()..largest.bytes()).step_by(size.bytes()) {
            for at in 0..size.bytes() {
                signature.bytes[at] |= signature.bytes[start + at];
            }
        }
        signature.bytes.truncate(size.bytes());
        Self { size, ..signature }
    }

    /// Creates a signature that matches every need.
    pub fn of_anything() -> Self {
        Self { size: SignatureSize::MIN, bytes: vec![0xFF; SignatureSize::MIN.bytes()] }
    }

    /// Decodes a signature, or returns `None` if no signature has this size.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bits = bytes.len().checked_mul(8).filter(|bits| bits.is_power_of_two())?;
        let size = SignatureSize::from_bits_log2(u8::try_from(bits.trailing_zeros()).ok()?)?;
        Some(Self { size, bytes: bytes.to_vec() })
    }

    /// Returns its size.
    pub fn size(&self) -> SignatureSize {
        self.size
    }

    /// Returns its bytes: bit `n` is bit `n % 8` of byte `n / 8`.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns whether the content may contain a trigram. False is certain.
    pub fn may_hold(&self, trigram: Trigram) -> bool {
        let bit = self.size.bit_of(trigram);
        self.bytes[bit / 8] & (1 << (bit % 8)) != 0
    }

    /// Returns whether this signature has the same size as another and all of its bits.
    pub fn covers(&self, other: &Self) -> bool {
        self.size == other.size && self.bytes.iter().zip(&other.bytes).all(|(own, other)| own & other == *other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(count: usize) -> Vec<u8> {
        (0..count).flat_map(|number| format!("{:x} ", number.wrapping_mul(0x9E37_79B9_7F4A_7C15)).into_bytes()).collect()
    }

    proptest! {
        #[test]
        fn signature_has_every_trigram_of_content(content in proptest::collection::vec(any::<u8>(), 0..3_000)) {
            let signature = Signature::of(&content);
            prop_assert!(Trigram::all_of(&content).all(|trigram| signature.may_hold(trigram)));
            prop_assert!(Trigram::all_of(&content.to_ascii_uppercase()).all(|trigram| signature.may_hold(trigram)));
            prop_assert_eq!(Signature::from_bytes(signature.as_bytes()), Some(signature));
        }
    }

    #[test]
    fn signature_size_depends_on_distinct_trigrams() {
        assert_eq!(Signature::of(b"").size(), SignatureSize::MIN);
        assert_eq!(Signature::of(&b"abc".repeat(100_000)).size(), SignatureSize::MIN);
        for count in [10, 100, 1_000, 10_000] {
            let signature = Signature::of(&words(count));
            let set: usize = signature.as_bytes().iter().map(|byte| byte.count_ones() as usize).sum();
            assert!(set * 2 <= signature.size().bits(), "{count}: {set} of {}", signature.size().bits());
        }
        let largest =
            Signature::of(&(0..3_000_000_u32).flat_map(|number| number.wrapping_mul(0x9E37_79B1).to_le_bytes()).collect::<Vec<_>>());
        assert_eq!(largest.size(), SignatureSize::MAX);
    }

    #[test]
    fn signature_of_invalid_size_is_refused() {
        for length in [0, 1, 63, 65, 128, 1 << 17] {
            assert_eq!(Signature::from_bytes(&vec![0; length]), None, "{length}");
        }
        for length in [64, 256, 1_024, 64 << 10] {
            assert!(Signature::from_bytes(&vec![0; length]).is_some(), "{length}");
        }
    }
}
