//! Trigrams: what an index keeps of each file's content, and what a pattern needs of it.
//!
//! Content that matches a pattern contains certain trigrams. [`Need`] is the condition on them, derived from the pattern, and a
//! [`Signature`] summarizes the trigrams of some content. Together they rule out most content without reading it. Both may
//! produce false positives, so the remaining content is searched, but never false negatives.
//!
//! Both sides use lower case for ASCII letters. This supports searches that ignore case and costs others little.
//!
//! The trigrams of an expression are derived like in [Google Code Search](https://swtch.com/~rsc/regexp/regexp4.html).

#[cfg(test)]
mod laws;
mod need;
mod signature;

pub use need::Need;
pub use signature::{Signature, SignatureSize};

/// Three consecutive bytes, with ASCII letters in lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Trigram([u8; 3]);

impl Trigram {
    /// Creates a trigram from three bytes.
    pub fn new(bytes: [u8; 3]) -> Self {
        Self(bytes.map(|byte| byte.to_ascii_lowercase()))
    }

    /// Returns the trigrams of a text in order, including repeated ones.
    pub fn all_of(text: &[u8]) -> impl Iterator<Item = Self> {
        text.windows(3).map(|window| Self::new([window[0], window[1], window[2]]))
    }

    /// Returns a hash. Its low bits are the most evenly distributed.
    fn hash(self) -> u32 {
        let [first, second, third] = self.0;
        let hash = u32::from_le_bytes([first, second, third, 0]).wrapping_mul(0x9E37_79B1);
        hash ^ (hash >> 15)
    }
}
