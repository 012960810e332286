//! Keys and ranges of keys in a form that the engine can index.
//!
//! A B-tree entry has at most about 2,700 bytes, and a key may have 4,096. So a key is stored as a head, its first 384 characters, and a
//! tail, the rest, of which the index holds only a hash. Keys with different heads sort by their heads. Keys with the same head are longer
//! than it, and sort by their tails. So (head, tail) sorts like the keys, and every range of keys is a range of heads; only its ends
//! compare tails.

use std::borrow::Cow;
use treehold_store::page::prefix_end;

/// The most characters of a head: 1,536 bytes, besides a namespace of 1,024.
pub(super) const HEAD_CHARACTERS: usize = 384;

/// A key, split into head and tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key<'k> {
    pub(super) head: &'k str,
    pub(super) tail: &'k str,
}

impl<'k> Key<'k> {
    /// Splits a key.
    pub(super) fn of(key: &'k str) -> Self {
        // A character has at least one byte.
        let cut = if key.len() <= HEAD_CHARACTERS { None } else { key.char_indices().nth(HEAD_CHARACTERS) };
        let (head, tail) = key.split_at(cut.map_or(key.len(), |(at, _)| at));
        Self { head, tail }
    }

    /// Returns the tail's hash for the index; empty for an empty tail.
    pub(super) fn digest(&self) -> Vec<u8> {
        if self.tail.is_empty() { Vec::new() } else { blake3::hash(self.tail.as_bytes()).as_bytes().to_vec() }
    }
}

/// Returns an equivalent lower bound of keys without NUL, which no key contains and the engine does not accept in text: the keys that are
/// not before `a\0…` are those not before `a\u{1}`.
pub(super) fn lower_bound(key: &str) -> Cow<'_, str> {
    match key.split_once('\0') {
        Some((before, _)) => Cow::Owned(format!("{before}\u{1}")),
        None => Cow::Borrowed(key),
    }
}

/// Returns the first text after all keys that start with a prefix. There always is one, because the length of keys is bounded.
pub(super) fn upper_bound(prefix: &str) -> String {
    // 1,025 times the last character has more bytes than any key.
    prefix_end(prefix).unwrap_or_else(|| char::MAX.to_string().repeat(1_025))
}

#[cfg(test)]
mod tests {
    use super::*;
    use treehold_store::KEY_BYTES_MAX;

    fn long(character: char, count: usize, end: &str) -> String {
        format!("{}{end}", character.to_string().repeat(count))
    }

    #[test]
    fn heads_and_tails_sort_like_keys() {
        let mut keys = Vec::new();
        for character in ['\u{1}', 'a', 'é', '日', '\u{10FFFF}'] {
            for count in [1, 383, 384, 385, 400] {
                for end in ["", "\u{1}", "a", "é", "\u{10FFFF}"] {
                    keys.push(long(character, count, end));
                }
            }
        }
        keys.sort();
        keys.dedup();
        assert!(keys.is_sorted_by(|one, next| Key::of(one) < Key::of(next)));
        for key in &keys {
            let cut = Key::of(key);
            assert_eq!(format!("{}{}", cut.head, cut.tail), *key);
            assert!(cut.tail.is_empty() || cut.head.chars().count() == HEAD_CHARACTERS);
            assert_eq!(cut.tail.is_empty(), cut.digest().is_empty());
        }
    }

    #[test]
    fn upper_bound_is_after_every_key_with_the_prefix() {
        let last = long(char::MAX, KEY_BYTES_MAX / 4, "");
        assert_eq!(last.len(), KEY_BYTES_MAX);
        for prefix in ["", "\u{10FFFF}", &last] {
            assert!(Key::of(&last) < Key::of(&upper_bound(prefix)), "{} characters", prefix.chars().count());
        }
    }

    #[test]
    fn lower_bound_contains_no_nul() {
        for (bound, expected) in [("a", "a"), ("a\0", "a\u{1}"), ("\0a", "\u{1}"), ("", "")] {
            assert_eq!(lower_bound(bound), expected);
        }
    }
}
