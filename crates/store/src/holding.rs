//! Choosing the byte pattern for engines that filter bodies on the server ([`FilteredScan`]).
//!
//! These engines scan a body for the first byte of the pattern and compare the rest there, so the cost depends on how
//! often that byte occurs: a pattern that starts with a rare byte runs twice as fast as one that starts with `n`. So
//! the engine searches for the tail of the text from its rarest byte on. That returns a few bodies that contain the
//! tail but not the text; the caller's search rejects them.

#[cfg(doc)]
use super::FilteredScan;

/// The least number of bytes to search for, so that few bodies match by chance.
const SOUGHT_BYTES_MIN: usize = 4;

/// Bytes of prose and source code, most frequent first. Bytes not listed are rare.
const FREQUENT: &[u8] = b" etaoinsrldcu\nmphfgby_.vw,()-k\"=;:'x/01[]{}ITSEAC23R*NPDFMLOB4j5689zq";

/// Returns the tail of `text` from its rarest byte on, at least `SOUGHT_BYTES_MIN` bytes long if the text is.
pub fn sought(text: &[u8]) -> &[u8] {
    let starts = text.len().saturating_sub(SOUGHT_BYTES_MIN) + 1;
    let rarest = text.iter().take(starts).enumerate().max_by_key(|&(at, &byte)| (rarity(byte), std::cmp::Reverse(at)));
    &text[rarest.map_or(0, |(at, _)| at)..]
}

fn rarity(byte: u8) -> usize {
    match FREQUENT.iter().position(|&frequent| frequent == byte) {
        Some(place) => place,
        // In UTF-8 beyond ASCII, lead bytes vary little within a script; continuation bytes vary more.
        None if byte >= 0xC0 => 0,
        None if byte >= 0x80 => 10,
        None => FREQUENT.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_starts_with_the_rarest_byte() {
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
        // Cyrillic letters share their lead bytes.
        assert_eq!(sought("\u{43f}\u{440}\u{438}\u{432}".as_bytes()), &"\u{43f}\u{440}\u{438}\u{432}".as_bytes()[1..]);
    }
}
