//! Orders names alphabetically for people: letters next to their accented and capital forms, punctuation before digits before letters. This
//! is the root collation of Unicode ([UTS 10](https://www.unicode.org/reports/tr10/)) for ASCII and Latin names.

use std::cmp::Ordering;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// ASCII punctuation and symbols in collation order.
const SYMBOLS: &str = "_-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$";

/// Compares two names: by base letters, then by accents, then lower case first.
pub(super) fn compare(one: &str, other: &str) -> Ordering {
    let letters = |name: &str| -> Vec<(u8, u32)> { name.nfd().filter(|char| !is_combining_mark(*char)).map(weight).collect() };
    let marks = |name: &str| -> String { name.nfd().filter(|char| is_combining_mark(*char)).collect() };
    let capitals = |name: &str| -> Vec<bool> { name.nfd().map(char::is_uppercase).collect() };
    letters(one)
        .cmp(&letters(other))
        .then_with(|| marks(one).cmp(&marks(other)))
        .then_with(|| capitals(one).cmp(&capitals(other)))
        .then_with(|| one.cmp(other))
}

fn weight(char: char) -> (u8, u32) {
    if char.is_whitespace() {
        return (0, 0);
    }
    match SYMBOLS.chars().position(|symbol| symbol == char) {
        Some(place) => (1, place as u32),
        // Symbols beyond ASCII, including emoji, come before digits.
        None if !char.is_alphanumeric() => (2, u32::from(char)),
        None if char.is_ascii_digit() => (3, u32::from(char)),
        None => (4, char.to_lowercase().next().map_or(0, u32::from)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_collation_order() {
        let mut names = vec!["b", "B", "a10", "A2", "a1", "_u", ".h", "é", "e", "f", "é2", "10", "2", "a b", "-x", "ab"];
        names.sort_by(|one, other| compare(one, other));
        assert_eq!(names, ["_u", "-x", ".h", "10", "2", "a b", "a1", "a10", "A2", "ab", "b", "B", "e", "é", "é2", "f"]);
    }
}
