//! Runs of three bytes: what an index of contents keeps of each, and what a pattern needs of a content.
//!
//! A content that matches a pattern holds certain trigrams, whatever else it holds. [`Need`] is what is known of that, derived
//! from the pattern, and a [`Signature`] is what is kept of a content: so most contents are passed over without being read.
//! Both may say yes too often, so what is left is searched; neither ever says no to a content that matches.
//!
//! ASCII letters count in lower case on both sides, which serves searches that ignore case and costs the others little.
//!
//! The way from an expression to its trigrams is that of [Google Code Search](https://swtch.com/~rsc/regexp/regexp4.html).

#[cfg(test)]
mod laws;
mod need;
mod signature;

pub use need::Need;
pub use signature::{Signature, SignatureSize};

/// Three bytes in a row, ASCII letters in lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Trigram([u8; 3]);

impl Trigram {
    /// Takes three bytes.
    pub fn new(bytes: [u8; 3]) -> Self {
        Self(bytes.map(|byte| byte.to_ascii_lowercase()))
    }

    /// Returns the trigrams of a text in order, with those that occur again.
    pub fn all_of(text: &[u8]) -> impl Iterator<Item = Self> {
        text.windows(3).map(|window| Self::new([window[0], window[1], window[2]]))
    }

    /// Spreads the trigrams over all numbers; the low bits are the most even.
    fn hash(self) -> u32 {
        let [first, second, third] = self.0;
        let hash = u32::from_le_bytes([first, second, third, 0]).wrapping_mul(0x9E37_79B1);
        hash ^ (hash >> 15)
    }
}
