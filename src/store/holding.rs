//! What engines share that look for a text in bodies before they send them ([`ScanOptions::values_holding`]).
//!
//! They look at one byte after the other for the first of the text and compare the rest there, so what that takes depends on how often
//! the first byte occurs: a text that starts with a rare one is found, or not, two times as fast as one that starts with `n`. So
//! they are asked for the end of the text from its rarest byte on. Bodies that hold that and not the text are sent for nothing, and the
//! search that asked finds nothing in them.

#[cfg(doc)]
use super::ScanOptions;

/// How much of a text is looked for at least, so that few bodies hold it by chance.
const SOUGHT_BYTES_MIN: usize = 4;

/// The bytes of text and source by how often they occur, the most frequent first. Those that are missing are rare.
const FREQUENT: &[u8] = b" etaoinsrldcu\nmphfgby_.vw,()-k\"=;:'x/01[]{}ITSEAC23R*NPDFMLOB4j5689zq";

/// Returns the end of a text from its rarest byte on, but no less than the last few bytes.
pub(super) fn sought(text: &[u8]) -> &[u8] {
    let starts = text.len().saturating_sub(SOUGHT_BYTES_MIN) + 1;
    let rarest = text.iter().take(starts).enumerate().max_by_key(|&(at, &byte)| (rarity(byte), std::cmp::Reverse(at)));
    &text[rarest.map_or(0, |(at, _)| at)..]
}

fn rarity(byte: u8) -> usize {
    match FREQUENT.iter().position(|&frequent| frequent == byte) {
        Some(place) => place,
        // Letters beyond ASCII start with one of a few bytes, and go on with one of more.
        None if byte >= 0xC0 => 0,
        None if byte >= 0x80 => 10,
        None => FREQUENT.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sought_starts_with_the_rarest_byte() {
        for (text, expected) in [
            ("needle_in_it", "_in_it"),
            ("self.state", ".state"),
            ("println!", "println!"),
            ("TODO", "TODO"),
            ("fn main", "fn main"),
            ("einem", "inem"),
            ("x", "x"),
            ("", ""),
        ] {
            let found = sought(text.as_bytes());
            assert!(text.as_bytes().ends_with(found));
            assert_eq!(String::from_utf8_lossy(found), expected, "{text}");
        }
        // Cyrillic letters share their first bytes.
        assert_eq!(sought("\u{43f}\u{440}\u{438}\u{432}".as_bytes()), &"\u{43f}\u{440}\u{438}\u{432}".as_bytes()[1..]);
    }
}
