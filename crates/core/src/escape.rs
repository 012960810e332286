//! Percent-escaping of text for places where some characters are not allowed.
//!
//! `%XX` stands for one byte of a character's UTF-8, in uppercase hexadecimal. A percent sign is always `%25`, so every
//! text can be restored. The caller decides which other characters to escape: those of stored namespaces, typed keys
//! and URLs differ.

use std::borrow::Cow;

/// Escapes a text. `is_special` selects the characters to escape besides `%`.
pub fn escape(text: &str, is_special: impl Fn(char) -> bool) -> String {
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

/// Escapes arbitrary bytes to ASCII. `is_plain` selects the ASCII characters that stay as they are.
pub fn escape_bytes(bytes: &[u8], is_plain: impl Fn(char) -> bool) -> String {
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

/// Returns whether [RFC 3986](https://www.rfc-editor.org/rfc/rfc3986#section-2.3) lets a character stand for itself everywhere in a URL: a
/// letter, a digit, or one of `-._~`.
pub fn is_unreserved(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '-' | '.' | '_' | '~')
}

fn push(escaped: &mut String, byte: u8) {
    escaped.push_str(&format!("%{byte:02X}"));
}

/// Restores an escaped text; hexadecimal digits may have either case. Returns `None` for a `%` without two digits after
/// it, and for bytes that are not UTF-8.
pub fn unescape(escaped: &str) -> Option<Cow<'_, str>> {
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
    fn special_characters_are_escaped_byte_by_byte() {
        for (text, escaped) in [
            ("", ""),
            ("plain é 日本", "plain é 日本"),
            ("100%", "100%25"),
            ("%41", "%2541"),
            ("a/b", "a%2Fb"),
            ("\u{1}\n\u{7f}", "%01%0A%7F"),
            // A control character of two bytes in UTF-8.
            ("\u{85}", "%C2%85"),
        ] {
            assert_eq!(escape(text, |character| character == '/' || character.is_control()), escaped);
            assert_eq!(unescape(escaped).as_deref(), Some(text));
        }
        assert_eq!(escape("a/b%", |_| false), "a/b%25");
        assert!(matches!(unescape("é"), Some(Cow::Borrowed("é"))));
    }

    #[test]
    fn arbitrary_bytes_escape_to_ascii() {
        for (bytes, escaped) in [(&b"a/b"[..], "a/b"), (b"?#% ", "%3F%23%25%20"), ("é".as_bytes(), "%C3%A9"), (b"\xff\0", "%FF%00")] {
            assert_eq!(escape_bytes(bytes, |character| character.is_alphanumeric() || character == '/'), escaped);
        }
        assert_eq!(escape_bytes("%é".as_bytes(), |_| true), "%25%C3%A9");
    }

    #[test]
    fn unescape_accepts_lowercase_and_requires_two_digits() {
        assert_eq!(unescape("%c3%A9%2f").as_deref(), Some("é/"));
        for bad in ["%", "%2", "a%", "%zz", "%+1", "%1é", "%é", "%FF", "%C3x", "%%41"] {
            assert_eq!(unescape(bad), None, "{bad}");
        }
    }
}
