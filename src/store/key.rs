//! How keys are shown to people and read back.

use crate::error::{Error, Result};

/// Shows a key: control characters and `%` as `%XX`, so that it can be typed and given back to [`unescape_key`].
///
/// # Examples
/// ```
/// use stratafs::store::{escape_key, unescape_key};
///
/// assert_eq!(escape_key("notes\u{1}100%"), "notes%01100%25");
/// assert_eq!(unescape_key("notes%01100%25")?, "notes\u{1}100%");
/// # Ok::<(), stratafs::Error>(())
/// ```
pub fn escape_key(key: &str) -> String {
    let mut text = String::with_capacity(key.len());
    for character in key.chars() {
        if character == '%' || character.is_control() {
            let mut buffer = [0; 4];
            for byte in character.encode_utf8(&mut buffer).bytes() {
                text.push_str(&format!("%{byte:02X}"));
            }
        } else {
            text.push(character);
        }
    }
    text
}

/// Reads a key that [`escape_key`] shows.
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a `%` that two hexadecimal digits do not follow, and for bytes that are no UTF-8.
pub fn unescape_key(text: &str) -> Result<String> {
    let bad = || Error::invalid_argument(format!("the key `{text}` has a bad escape; write `%25` for a percent sign"));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digit = |index: usize| rest.get(index).and_then(|byte| char::from(*byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else { return Err(bad()) };
        bytes.push((high * 16 + low) as u8);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_shown_and_read_back() {
        for key in ["a/b.md", "\u{1}a\u{1}b", "100%", "%41", "é\u{7f}ü"] {
            assert_eq!(unescape_key(&escape_key(key)).expect("its own text"), key);
            assert!(!escape_key(key).chars().any(char::is_control));
        }
        assert!(unescape_key("%4").is_err());
        assert!(unescape_key("%ZZ").is_err());
        assert!(unescape_key("%FF").is_err());
    }
}
