//! Percent-escapes: how a text that must not hold some characters is written, and read back.
//!
//! `%XX` is one byte of the UTF-8 of a character, in capital hexadecimal digits; a percent sign is always `%25`, so any text
//! comes back as it was. What else is escaped is said by whom the text is for: stored namespaces, keys that people type, URLs.

use std::borrow::Cow;

/// Writes a text; `is_special` says which characters are escaped beside the percent sign.
pub(super) fn escape(text: &str, is_special: impl Fn(char) -> bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if character == '%' || is_special(character) {
            character.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| push(&mut escaped, byte));
        } else {
            escaped.push(character);
        }
    }
    escaped
}

/// Writes bytes, which may be no text, as ASCII; `is_plain` says which ASCII characters stand for themselves.
#[cfg(any(test, feature = "sqlite"))]
pub(super) fn escape_bytes(bytes: &[u8], is_plain: impl Fn(char) -> bool) -> String {
    let mut escaped = String::with_capacity(bytes.len());
    for &byte in bytes {
        let character = char::from(byte);
        if byte.is_ascii() && byte != b'%' && is_plain(character) {
            escaped.push(character);
        } else {
            push(&mut escaped, byte);
        }
    }
    escaped
}

fn push(escaped: &mut String, byte: u8) {
    escaped.push_str(&format!("%{byte:02X}"));
}

/// Reads a text back, from digits in either case; none for a percent sign that two digits do not follow, and for bytes that are no
/// UTF-8.
pub(super) fn unescape(escaped: &str) -> Option<Cow<'_, str>> {
    if !escaped.contains('%') {
        return Some(Cow::Borrowed(escaped));
    }
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || char::from(rest.next()?).to_digit(16);
            bytes.push((digit()? * 16 + digit()?) as u8);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_special_is_escaped_byte_by_byte() {
        for (text, escaped) in [
            ("", ""),
            ("plain é 日本", "plain é 日本"),
            ("100%", "100%25"),
            ("%41", "%2541"),
            ("a/b", "a%2Fb"),
            ("\u{1}\n\u{7f}", "%01%0A%7F"),
            // A control character of two bytes.
            ("\u{85}", "%C2%85"),
        ] {
            assert_eq!(escape(text, |character| character == '/' || character.is_control()), escaped);
            assert_eq!(unescape(escaped).as_deref(), Some(text));
        }
        assert_eq!(escape("a/b%", |_| false), "a/b%25");
        assert!(matches!(unescape("é"), Some(Cow::Borrowed("é"))));
    }

    #[test]
    fn bytes_become_ascii() {
        for (bytes, escaped) in [(&b"a/b"[..], "a/b"), (b"?#% ", "%3F%23%25%20"), ("é".as_bytes(), "%C3%A9"), (b"\xff\0", "%FF%00")] {
            assert_eq!(escape_bytes(bytes, |character| character.is_alphanumeric() || character == '/'), escaped);
        }
        assert_eq!(escape_bytes("%é".as_bytes(), |_| true), "%25%C3%A9");
    }

    #[test]
    fn digits_may_be_small_and_must_be_two() {
        assert_eq!(unescape("%c3%A9%2f").as_deref(), Some("é/"));
        for bad in ["%", "%2", "a%", "%zz", "%+1", "%1é", "%é", "%FF", "%C3x", "%%41"] {
            assert_eq!(unescape(bad), None, "{bad}");
        }
    }
}
