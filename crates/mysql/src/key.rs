//! The stored form of keys, without I/O.
//!
//! An InnoDB index entry has at most 3,072 bytes, of which a namespace takes up to 1,024. So a key is split into its
//! *head*, the first 1,536 bytes, and its *tail*, the rest. A key is identified by its namespace, its head and a digest
//! of its tail. Keys with different heads sort by head; keys that share a head all have one of full length.

use super::error::damaged;
use treehold_core::error::Result;
use treehold_store::page::key_after;

/// The longest head in bytes.
pub(super) const HEAD_BYTES: usize = 1_536;

/// The length in bytes of the digest of a nonempty tail. At 128 bits, collisions are not a concern.
const DIGEST_BYTES: usize = 16;

/// Sorts after every text, because no UTF-8 starts with this byte.
pub(super) const LAST: &[u8] = &[0xFF];

/// A key split into its parts.
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

    /// Returns the digest of the tail; empty if there is no tail.
    pub(super) fn digest(&self) -> &[u8] {
        self.digest.as_ref().map_or(&[], |digest| digest)
    }
}

/// Joins the parts of a key.
pub(super) fn join(mut head: Vec<u8>, tail: &[u8]) -> Result<String> {
    head.extend_from_slice(tail);
    String::from_utf8(head).map_err(|source| damaged("a key is not valid UTF-8").with_source(source))
}

/// Returns the least byte string greater than everything that starts with `prefix`, a UTF-8 text. The result is never
/// longer than `prefix`; it is `None` for an empty one.
pub(super) fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let (last, before) = prefix.split_last()?;
    Some([before, &[last + 1]].concat())
}

/// The keys in `start..end`. Either bound may be longer than a head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyRange {
    pub(super) start: Vec<u8>,
    pub(super) end: Vec<u8>,
}

impl KeyRange {
    /// Covers all keys that start with `prefix`.
    pub(super) fn of_prefix(prefix: &str) -> Self {
        Self::from(prefix, prefix)
    }

    /// Covers all keys that start with `prefix` and are longer.
    pub(super) fn beneath(prefix: &str) -> Self {
        Self::from(&key_after(prefix), prefix)
    }

    /// Covers the keys from `start` on that start with `prefix`.
    pub(super) fn from(start: &str, prefix: &str) -> Self {
        let end = successor(prefix.as_bytes()).unwrap_or_else(|| LAST.to_vec());
        Self { start: start.as_bytes().to_vec(), end }
    }

    /// Returns whether heads alone decide membership.
    pub(super) fn is_of_heads(&self) -> bool {
        self.start.len() <= HEAD_BYTES && self.end.len() <= HEAD_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_parts_join_to_the_key() {
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
    fn prefix_range_contains_exactly_the_keys_with_the_prefix() {
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
