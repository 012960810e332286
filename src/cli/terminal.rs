//! Text for a terminal: stored text is displayed, never interpreted.
//!
//! All output passes through here. Control characters in stored text (C0, DEL, and C1, which some terminals interpret) are written as
//! escapes such as `\u{1b}`. On a terminal, so are characters that reorder their surroundings
//! ([Unicode bidirectional formatting](https://www.unicode.org/reports/tr9/#Explicit_Directional_Embeddings)). Colours survive because they
//! carry a random mark of this process, which stored text cannot contain.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

/// The mark between the escape character and the code of a colour written by this process.
static MARK: LazyLock<String> = LazyLock::new(|| format!("{:016x}{:016x}", RandomState::new().hash_one(0), RandomState::new().hash_one(1)));

/// Returns the start of a colour. Only [`shown`] converts it to an escape sequence.
pub(crate) fn color(code: &str) -> String {
    format!("\u{1b}{}[{code}m", *MARK)
}

/// Returns whether a terminal would interpret a character: all control characters except tab and line feed.
fn is_obeyed(character: char) -> bool {
    character.is_control() && !matches!(character, '\t' | '\n')
}

/// Returns whether a character changes the display order of others.
fn reorders(character: char) -> bool {
    matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns text for printing: colours of [`color`] become escape sequences, and everything else that would be interpreted is made visible.
/// `is_terminal` is false if another program reads the text and needs names unchanged.
pub(crate) fn shown(text: &str, is_terminal: bool) -> Cow<'_, str> {
    if !text.contains(|character| is_obeyed(character) || (is_terminal && reorders(character))) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        if let Some(code) = rest.strip_prefix('\u{1b}').and_then(|rest| rest.strip_prefix(MARK.as_str())) {
            shown.push('\u{1b}');
            rest = code;
            continue;
        }
        push(&mut shown, character, rest, is_terminal);
        rest = &rest[character.len_utf8()..];
    }
    Cow::Owned(shown)
}

/// Appends the first character of `rest`.
fn push(shown: &mut String, character: char, rest: &str, is_terminal: bool) {
    let ends_line = character == '\r' && rest[1..].starts_with('\n');
    if (is_obeyed(character) && !ends_line) || (is_terminal && reorders(character)) {
        shown.extend(character.escape_unicode());
    } else {
        shown.push(character);
    }
}

/// Returns text as a single line. Line breaks within it are escaped, so that stored text cannot imitate lines of the command.
pub(crate) fn one_line(text: &str) -> Cow<'_, str> {
    if !text.contains(['\n', '\r']) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace('\r', "\\r").replace('\n', "\\n"))
}

/// Returns a message with all lines after the first indented, so that none looks like a separate message.
pub(crate) fn one_message(text: &str) -> Cow<'_, str> {
    if !text.contains(['\n', '\r']) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.trim_end().replace("\r\n", "\n").replace('\r', "\\r").replace('\n', "\n    "))
}

/// Returns content for a terminal. Invalid UTF-8 keeps its bytes, except those that a terminal with a different encoding would interpret.
pub(crate) fn shown_bytes(bytes: &[u8]) -> Cow<'_, [u8]> {
    let is_lone = |byte: &u8| matches!(byte, 0x80..=0x9F);
    let is_plain = |text: &str| !text.contains(|character| is_obeyed(character) || reorders(character));
    if bytes.utf8_chunks().all(|chunk| is_plain(chunk.valid()) && !chunk.invalid().iter().any(is_lone)) {
        return Cow::Borrowed(bytes);
    }
    let mut shown = Vec::with_capacity(bytes.len() + 16);
    for chunk in bytes.utf8_chunks() {
        let mut text = String::with_capacity(chunk.valid().len());
        for (at, character) in chunk.valid().char_indices() {
            push(&mut text, character, &chunk.valid()[at..], true);
        }
        shown.extend_from_slice(text.as_bytes());
        for byte in chunk.invalid() {
            if is_lone(byte) {
                shown.extend(format!("\\x{byte:x}").bytes());
            } else {
                shown.push(*byte);
            }
        }
    }
    Cow::Owned(shown)
}

/// Returns equivalent JSON without characters that a terminal interprets. They occur only in strings, where JSON has an escape for each.
pub(crate) fn shown_json(json: Vec<u8>) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(&json) else { return json };
    let is_escaped = |character: char| (character.is_control() && character != '\n') || reorders(character);
    if !text.contains(is_escaped) {
        return json;
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_escaped(character) {
            write!(shown, "\\u{:04x}", u32::from(character)).expect("writing to a string cannot fail");
        } else {
            shown.push(character);
        }
    }
    shown.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_for_a_terminal_escapes_control_characters() {
        for (bytes, expected) in [
            (&b"plain\ttext \xc3\xa9\n"[..], &b"plain\ttext \xc3\xa9\n"[..]),
            (b"\x1b]0;title\x07", b"\\u{1b}]0;title\\u{7}"),
            (b"over\rwritten\x08\x7f", b"over\\u{d}written\\u{8}\\u{7f}"),
            (b"\xc2\x9b31m", b"\\u{9b}31m"),
            (b"\xff\x9b\x1b[2J", b"\xff\\x9b\\u{1b}[2J"),
            (b"text\r\nmore\r\n", b"text\r\nmore\r\n"),
            (b"\r\r\n", b"\\u{d}\r\n"),
            (b"\xff\xfe", b"\xff\xfe"),
            (b"\x9b2J", b"\\x9b2J"),
            ("\u{202e}txt.exe".as_bytes(), b"\\u{202e}txt.exe"),
        ] {
            assert_eq!(shown_bytes(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn stored_text_cannot_imitate_another_line_or_message() {
        for (text, line, message) in [
            ("plain", "plain", "plain"),
            ("a\nb", "a\\nb", "a\n    b"),
            ("a\rb", "a\\rb", "a\\rb"),
            ("a\r\nb\n", "a\\r\\nb\\n", "a\n    b"),
        ] {
            assert_eq!((&*one_line(text), &*one_message(text)), (line, message), "{text:?}");
        }
    }

    #[test]
    fn text_keeps_own_colors_and_escapes_foreign_ones() {
        let text = format!("{}stored \u{1b}[31mred\u{9b}1m\u{1b}]0;t\u{7}{}", color("1;34"), color("0"));
        assert_eq!(shown(&text, false), "\u{1b}[1;34mstored \\u{1b}[31mred\\u{9b}1m\\u{1b}]0;t\\u{7}\u{1b}[0m");
        assert_eq!(shown("a\u{2066}b\n\tc\r\n", true), "a\\u{2066}b\n\tc\r\n");
        assert_eq!(shown("a\u{2066}b", false), "a\u{2066}b", "a program that reads names needs them as they are");
    }

    #[test]
    fn json_keeps_its_value_without_control_characters() {
        let value = serde_json::json!({"a\u{9b}\u{7f}": "\u{1b}[31m\u{202e}\n\u{85}é"});
        for json in [serde_json::to_vec(&value), serde_json::to_vec_pretty(&value)] {
            let shown = String::from_utf8(shown_json(json.expect("plain data"))).expect("text");
            assert!(!shown.contains(|character: char| (character.is_control() && character != '\n') || reorders(character)), "{shown}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).expect("JSON"), value);
        }
    }
}
