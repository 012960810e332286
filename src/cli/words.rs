//! The words of a command line, by the rules of quoting that shells share.

use std::fmt;

/// The quotation that is open at the end of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quote {
    Single,
    Double,
}

/// The words of a line up to the cursor. The last one is being written and may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Partial {
    /// The words without their quoting.
    pub(crate) words: Vec<String>,
    /// Where the last word starts in the line, in bytes.
    pub(crate) start: usize,
    /// The quotation that the cursor is in.
    pub(crate) quote: Option<Quote>,
}

/// Splits a line up to the cursor. A `;` outside of quotation starts another command, of which alone the words are returned if
/// `separates`.
pub(crate) fn partial(line: &str, separates: bool) -> Partial {
    let mut partial = Partial { words: Vec::new(), start: 0, quote: None };
    // The word that is being read, or `None` between words.
    let mut word: Option<String> = None;
    let mut characters = line.char_indices();
    while let Some((at, character)) = characters.next() {
        match (partial.quote, character) {
            (None, ' ' | '\t' | '\n') => partial.words.extend(word.take()),
            (None, ';') if separates => {
                partial.words.clear();
                word = None;
            }
            _ => {
                if word.is_none() {
                    partial.start = at;
                }
                let text = word.get_or_insert_default();
                match (partial.quote, character) {
                    (None, '\'') => partial.quote = Some(Quote::Single),
                    (None, '"') => partial.quote = Some(Quote::Double),
                    (Some(Quote::Single), '\'') | (Some(Quote::Double), '"') => partial.quote = None,
                    (None | Some(Quote::Double), '\\') => text.extend(escaped(partial.quote, characters.next())),
                    _ => text.push(character),
                }
            }
        }
    }
    if word.is_none() {
        partial.start = line.len();
    }
    partial.words.push(word.unwrap_or_default());
    partial
}

/// Why a text has no commands to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A quotation is open at its end, or a backslash continues it.
    Unfinished,
    /// A character that means something in other shells and not here.
    Operator(char),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unfinished => f.write_str("a quotation is not closed"),
            Self::Operator(operator) => {
                write!(f, "there is no `{operator}` in this shell; quote it if it is meant literally, or use it outside of this shell")
            }
        }
    }
}

/// Splits a text into the words of its commands, which end with a line or a `;`. A `#` at the start of a word starts a comment.
pub(crate) fn commands(text: &str) -> Result<Vec<Vec<String>>, Fault> {
    let (mut all, mut words) = (Vec::new(), Vec::new());
    let (mut word, mut quote): (Option<String>, Option<Quote>) = (None, None);
    let mut characters = text.char_indices();
    while let Some((_, character)) = characters.next() {
        match (quote, character) {
            (None, ' ' | '\t' | '\r') => words.extend(word.take()),
            (None, '\n' | ';') => {
                words.extend(word.take());
                all.push(std::mem::take(&mut words));
            }
            (None, '#') if word.is_none() => {
                let comment = characters.as_str();
                characters = comment[comment.find('\n').unwrap_or(comment.len())..].char_indices();
            }
            (None, '|' | '<' | '>' | '&') => return Err(Fault::Operator(character)),
            (None, '\'') => (quote, word) = (Some(Quote::Single), Some(word.unwrap_or_default())),
            (None, '"') => (quote, word) = (Some(Quote::Double), Some(word.unwrap_or_default())),
            (Some(Quote::Single), '\'') | (Some(Quote::Double), '"') => quote = None,
            (None | Some(Quote::Double), '\\') => match characters.next() {
                None => return Err(Fault::Unfinished),
                Some((_, '\n')) if characters.as_str().is_empty() => return Err(Fault::Unfinished),
                next => word.get_or_insert_default().extend(escaped(quote, next)),
            },
            _ => word.get_or_insert_default().push(character),
        }
    }
    if quote.is_some() {
        return Err(Fault::Unfinished);
    }
    words.extend(word);
    all.push(words);
    all.retain(|words| !words.is_empty());
    Ok(all)
}

/// Returns what a backslash and the character after it stand for.
fn escaped(quote: Option<Quote>, next: Option<(usize, char)>) -> impl Iterator<Item = char> {
    let (first, second) = match (quote, next.map(|(_, character)| character)) {
        // A backslash continues the line.
        (_, None | Some('\n')) => (None, None),
        (None, next) | (_, next @ Some('"' | '\\' | '$' | '`')) => (next, None),
        (_, next) => (Some('\\'), next),
    };
    first.into_iter().chain(second)
}

/// Removes the quoting of one word that may be unfinished.
pub(crate) fn unquoted(word: &str) -> String {
    partial(word, false).words.pop().unwrap_or_default()
}

/// Quotes a part of a word for bash, as the continuation of a quotation if one is open.
pub(crate) fn quoted(text: &str, open: Option<Quote>) -> String {
    let mut quoted = String::with_capacity(text.len());
    for character in text.chars() {
        match open {
            Some(Quote::Single) if character == '\'' => quoted.push_str(r"'\''"),
            Some(Quote::Double) if matches!(character, '"' | '\\' | '$' | '`') => quoted.extend(['\\', character]),
            None if !is_plain(character) => quoted.extend(['\\', character]),
            _ => quoted.push(character),
        }
    }
    quoted
}

/// Returns whether a character means itself outside of quotation.
fn is_plain(character: char) -> bool {
    character.is_alphanumeric() || !character.is_ascii() || matches!(character, '/' | '_' | '-' | '.' | ',' | '+' | '=' | ':' | '@' | '%')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lose_their_quoting_and_the_last_one_may_be_unfinished() {
        for (line, words, start, quote) in [
            ("", &[""][..], 0, None),
            ("cat", &["cat"], 0, None),
            ("cat ", &["cat", ""], 4, None),
            (r"cat /my\ notes/a", &["cat", "/my notes/a"], 4, None),
            (r#"cat "/my no"#, &["cat", "/my no"], 4, Some(Quote::Double)),
            (r#"cat "a\"b\n" 'c\'"#, &["cat", r#"a"b\n"#, r"c\"], 13, None),
            ("cat '/it'\\''s", &["cat", "/it's"], 4, Some(Quote::Single)),
            (r"cat /a\", &["cat", "/a"], 4, None),
            ("cat '' x", &["cat", "", "x"], 7, None),
        ] {
            let words = words.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(partial(line, false), Partial { words, start, quote }, "{line}");
        }
        assert_eq!(partial("ls; cat /a", true).words, ["cat", "/a"]);
        assert_eq!(partial("ls; cat /a", false).words, ["ls;", "cat", "/a"]);
        assert_eq!(partial("grep 'a;b' ", true).words, ["grep", "a;b", ""]);
    }

    #[test]
    fn text_is_split_into_commands() {
        for (text, expected) in [
            ("", &[][..]),
            ("ls /a; pwd", &[&["ls", "/a"][..], &["pwd"]]),
            ("ls\n\n# a comment; ls\npwd # more\n", &[&["ls"], &["pwd"]]),
            ("write a#b 'c;d' \"e\\\"f\" g\\ h ''", &[&["write", "a#b", "c;d", "e\"f", "g h", ""]]),
            ("write /a 'one\ntwo'", &[&["write", "/a", "one\ntwo"]]),
            ("ls \\\n/a\r\n", &[&["ls", "/a"]]),
            ("grep 'a|b' \\> \"<\"", &[&["grep", "a|b", ">", "<"]]),
        ] {
            let expected: Vec<Vec<&str>> = expected.iter().map(|words| words.to_vec()).collect();
            assert_eq!(commands(text).expect(text), expected, "{text}");
        }
        for (text, fault) in [
            ("ls '", Fault::Unfinished),
            ("ls \"a'", Fault::Unfinished),
            ("ls \\", Fault::Unfinished),
            ("ls \\\n", Fault::Unfinished),
            ("cat a > b", Fault::Operator('>')),
            ("cat a|b", Fault::Operator('|')),
            ("a && b", Fault::Operator('&')),
        ] {
            assert_eq!(commands(text), Err(fault), "{text}");
        }
    }

    #[test]
    fn quoted_text_reads_as_itself() {
        let hostile = "/a b'c\"d$(x)`y`\\;&|*?[]{}~!#é<>";
        for (open, before) in [(None, ""), (Some(Quote::Single), "'"), (Some(Quote::Double), "\"")] {
            assert_eq!(unquoted(&format!("{before}{}", quoted(hostile, open))), hostile, "{open:?}");
        }
    }
}
