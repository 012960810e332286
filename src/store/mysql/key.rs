//! Keys as the tables hold them: pure.
//!
//! An index entry of InnoDB has at most 3,072 bytes, and a namespace takes up to 1,024 of them. So a key is kept as its *head*,
//! the first 1,536 bytes, and its *tail*, the rest, and is unique by its namespace, its head and a digest of its tail. Heads
//! that differ are ordered as their keys are; keys that share a head all have one of full length.

use super::error::damaged;
use crate::error::Result;
use crate::store::page::key_after;

/// The most bytes of a head.
pub(super) const HEAD_BYTES: usize = 1_536;

/// The bytes of a digest of a tail that is not empty; with 128 bits no two tails of one head ever meet.
const DIGEST_BYTES: usize = 16;

/// Sorts after every text: no UTF-8 starts with it.
pub(super) const LAST: &[u8] = &[0xFF];

/// A key in parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Parts<'k> {
    pub(super) head: &'k [u8],
    pub(super) tail: &'k [u8],
    digest: Option<[u8; DIGEST_BYTES]>,
}

impl<'k> Parts<'k> {
    /// Splits a key.
    pub(super) fn of(key: &'k str) -> Self {
        let (head, tail) = key.as_bytes().split_at(key.len().min(HEAD_BYTES));
        let digest = (!tail.is_empty()).then(|| {
            let mut digest = [0; DIGEST_BYTES];
            digest.copy_from_slice(&blake3::hash(tail).as_bytes()[..DIGEST_BYTES]);
            digest
        });
        Self { head, tail, digest }
    }

    /// Returns the digest of the tail; empty without one.
    pub(super) fn digest(&self) -> &[u8] {
        self.digest.as_ref().map_or(&[], |digest| digest)
    }
}

/// Puts a key together again.
pub(super) fn join(mut head: Vec<u8>, tail: &[u8]) -> Result<String> {
    head.extend_from_slice(tail);
    String::from_utf8(head).map_err(|source| damaged("a key is no text").with_source(source))
}

/// Returns the smallest bytes after all that start with `prefix`, which is of a text and never longer; none for the empty one.
pub(super) fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let (last, before) = prefix.split_last()?;
    Some([before, &[last + 1]].concat())
}

/// Keys from `start` up to and without `end`. Both may be longer than a head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyRange {
    pub(super) start: Vec<u8>,
    pub(super) end: Vec<u8>,
}

impl KeyRange {
    /// Holds all keys that start with `prefix`.
    pub(super) fn of_prefix(prefix: &str) -> Self {
        Self::from(prefix, prefix)
    }

    /// Holds all keys that start with `prefix` and are longer.
    pub(super) fn beneath(prefix: &str) -> Self {
        Self::from(&key_after(prefix), prefix)
    }

    /// Holds the keys from `start` on that start with `prefix`.
    pub(super) fn from(start: &str, prefix: &str) -> Self {
        let end = successor(prefix.as_bytes()).unwrap_or_else(|| LAST.to_vec());
        Self { start: start.as_bytes().to_vec(), end }
    }

    /// Tells whether heads alone decide what lies in it.
    pub(super) fn is_of_heads(&self) -> bool {
        self.start.len() <= HEAD_BYTES && self.end.len() <= HEAD_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_put_together_from_its_parts() {
        for length in [1, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 1, 4_096] {
            let key = "é".repeat(length / 2) + if length % 2 == 1 { "x" } else { "" };
            let parts = Parts::of(&key);
            assert_eq!((parts.head.len(), parts.head.len() + parts.tail.len()), (length.min(HEAD_BYTES), length));
            assert_eq!(parts.digest().is_empty(), length <= HEAD_BYTES);
            assert_eq!(join(parts.head.to_vec(), parts.tail).expect("a text"), key);
        }
        assert!(join(vec![0xC3], &[]).is_err());
    }

    #[test]
    fn a_range_of_a_prefix_holds_what_starts_with_it_and_nothing_else() {
        let keys = ["a", "a\u{1}", "a/", "aé", "a\u{10FFFF}z", "b", "é", "\u{10FFFF}"];
        for prefix in ["", "a", "a/", "é", "\u{10FFFF}", "\u{7F}"] {
            let range = KeyRange::of_prefix(prefix);
            for key in keys {
                let is_held = range.start.as_slice() <= key.as_bytes() && key.as_bytes() < range.end.as_slice();
                assert_eq!(is_held, key.starts_with(prefix), "{key:?} in {prefix:?}");
            }
        }
        assert!(KeyRange::beneath("a").start.as_slice() > b"a".as_slice());
    }
}
