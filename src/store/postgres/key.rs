//! Keys and ranges of keys as the engine can index them.
//!
//! An entry of its B-trees has at most about 2,700 bytes and a key may have 4,096. So a key is kept as a head, its first 384
//! characters, and a tail, the rest, which is in the index by its hash alone. Two keys whose heads differ are ordered as their heads
//! are, and two with the same head have it in full length and are ordered as their tails are: so (head, tail) is the order of
//! keys, and every range of keys is a range of heads, whose ends alone look at tails.

use crate::store::page::prefix_end;
use std::borrow::Cow;

/// How many characters a head has at most: 1,536 bytes, beside a namespace of 1,024.
pub(super) const HEAD_CHARACTERS: usize = 384;

/// A key, cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key<'k> {
    pub(super) head: &'k str,
    pub(super) tail: &'k str,
}

impl<'k> Key<'k> {
    /// Cuts a key.
    pub(super) fn of(key: &'k str) -> Self {
        // No character is shorter than a byte.
        let cut = if key.len() <= HEAD_CHARACTERS { None } else { key.char_indices().nth(HEAD_CHARACTERS) };
        let (head, tail) = key.split_at(cut.map_or(key.len(), |(at, _)| at));
        Self { head, tail }
    }

    /// Returns what stands for the tail in the index: nothing for the empty one.
    pub(super) fn digest(&self) -> Vec<u8> {
        if self.tail.is_empty() { Vec::new() } else { blake3::hash(self.tail.as_bytes()).as_bytes().to_vec() }
    }
}

/// Returns the same lower bound of keys without NUL, which no key holds and the engine takes in no text: what is not before
/// `a\0…` is what is not before `a\u{1}`.
pub(super) fn lower_bound(key: &str) -> Cow<'_, str> {
    match key.split_once('\0') {
        Some((before, _)) => Cow::Owned(format!("{before}\u{1}")),
        None => Cow::Borrowed(key),
    }
}

/// Returns the first text behind all keys that start with a prefix: always one, as keys have a longest length.
pub(super) fn upper_bound(prefix: &str) -> String {
    // 1,025 of the last character have more bytes than a key.
    prefix_end(prefix).unwrap_or_else(|| char::MAX.to_string().repeat(1_025))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::KEY_BYTES_MAX;

    fn long(character: char, count: usize, end: &str) -> String {
        format!("{}{end}", character.to_string().repeat(count))
    }

    #[test]
    fn heads_and_tails_are_in_the_order_of_keys() {
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
    fn an_upper_bound_is_behind_every_key() {
        let last = long(char::MAX, KEY_BYTES_MAX / 4, "");
        assert_eq!(last.len(), KEY_BYTES_MAX);
        for prefix in ["", "\u{10FFFF}", &last] {
            assert!(Key::of(&last) < Key::of(&upper_bound(prefix)), "{} characters", prefix.chars().count());
        }
    }

    #[test]
    fn a_lower_bound_holds_no_nul() {
        for (bound, expected) in [("a", "a"), ("a\0", "a\u{1}"), ("\0a", "\u{1}"), ("", "")] {
            assert_eq!(lower_bound(bound), expected);
        }
    }
}
