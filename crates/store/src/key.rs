//! Conversion of keys to printable text and back.

use std::borrow::Cow;
use treehold_core::error::{Error, Result};
use treehold_core::escape::{escape, unescape};

/// Formats a key for people: control characters and `%` become `%XX`. [`unescape_key`] reverses it.
///
/// # Examples
/// ```
/// use treehold_store::{escape_key, unescape_key};
///
/// assert_eq!(escape_key("notes\u{1}100%"), "notes%01100%25");
/// assert_eq!(unescape_key("notes%01100%25")?, "notes\u{1}100%");
/// # Ok::<(), treehold_core::Error>(())
/// ```
pub fn escape_key(key: &str) -> String {
    escape(key, char::is_control)
}

/// Parses a key that [`escape_key`] formatted.
///
/// # Errors
/// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a `%` without two hexadecimal digits after it, and for
/// bytes that are not UTF-8.
pub fn unescape_key(text: &str) -> Result<String> {
    let bad = || Error::invalid_argument(format!("the key `{text}` has a bad escape; write `%25` for a percent sign"));
    unescape(text).map(Cow::into_owned).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_keys_round_trip() {
        for key in ["a/b.md", "\u{1}a\u{1}b", "100%", "%41", "é\u{7f}ü"] {
            assert_eq!(unescape_key(&escape_key(key)).expect("it parses its own text"), key);
            assert!(!escape_key(key).chars().any(char::is_control));
        }
        assert!(unescape_key("%4").is_err());
        assert!(unescape_key("%ZZ").is_err());
        assert!(unescape_key("%FF").is_err());
    }
}
