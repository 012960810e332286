//! Finds a text that content must contain verbatim to match a pattern.
//!
//! This is weaker than the [trigrams](super::trigram) a pattern needs, as it is a single text without alternatives, but any
//! engine that can search for a text can use it.

use super::expression::Expression;
use crate::ops::{Encoding, GrepOptions};
use bytes::Bytes;
use regex_syntax::hir::{Hir, HirKind};

/// Returns a text that every matching file contains byte for byte, or `None` if none is known. Inverted searches have none, as
/// they match files that do not contain the pattern.
pub fn literal_of(options: &GrepOptions) -> Option<Bytes> {
    // Decoded text differs from the bytes as stored.
    if options.invert || options.encoding != Encoding::Bytes { None } else { Expression::of(options).literal() }
}

/// Returns the longest text that everything an expression matches contains; the first of several.
pub fn of_expression(expression: &Hir) -> Option<Bytes> {
    longest(expression).map(Bytes::copy_from_slice)
}

fn longest(expression: &Hir) -> Option<&[u8]> {
    match expression.kind() {
        HirKind::Literal(literal) => Some(&literal.0),
        HirKind::Capture(capture) => longest(&capture.sub),
        HirKind::Repetition(repetition) if repetition.min > 0 => longest(&repetition.sub),
        HirKind::Concat(parts) => parts.iter().rev().filter_map(longest).max_by_key(|text| text.len()),
        HirKind::Empty | HirKind::Look(_) | HirKind::Class(_) | HirKind::Repetition(_) | HirKind::Alternation(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::CaseMode;
    use crate::path::VfsPath;
    use crate::search::{FileOutcome, GrepMatcher};
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    #[test]
    fn literal_is_longest_text_in_every_match() {
        let regex = GrepOptions::regex;
        for (options, expected) in [
            (GrepOptions::new("needle"), Some("needle")),
            (GrepOptions::new(""), None),
            (GrepOptions::new("needle").with_invert(true), None),
            (GrepOptions::new("needle").with_encoding(Encoding::Auto), None),
            (GrepOptions::new("needle").with_word(true).with_whole_line(true), Some("needle")),
            (GrepOptions::new("needle").with_case(CaseMode::Insensitive), None),
            (GrepOptions::new("ab_12 c").with_case(CaseMode::Insensitive), Some("_12 ")),
            (GrepOptions::new("one\nother\r\n"), Some("\nother")),
            (regex("needle"), Some("needle")),
            (regex("need(le|y)"), Some("need")),
            (regex("one|other"), None),
            (regex(r"^\w+ (in)? out_of\b.*now$"), Some(" out_of")),
            (regex("(abc)+d"), Some("abc")),
            (regex("(abc)*d"), Some("d")),
            (regex("(abc){0}"), None),
            (regex("(?i)abc(?-i)_d"), Some("_d")),
            (regex("(?x) a b # c"), Some("ab")),
            (regex("[a]b"), Some("ab")),
            (regex("not closed("), None),
        ] {
            let found = literal_of(&options);
            assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{options:?}");
        }
    }

    proptest! {
        #[test]
        fn matching_content_contains_literal(
            parts in vec(select(&["a", "b", "[ab]", "ab", "(a)", "(ab)?", "a+", "b*", "(ba|ab)", r"\b", "^", "$", ".", "x", "\n"][..]), 1..6),
            content in "[abxAB \r\n]{0,12}",
            flags in 0..64_u8,
        ) {
            let pattern = parts.concat();
            let on = |bit: u8| flags & (1 << bit) != 0;
            let mut options = if on(0) { GrepOptions::regex(&pattern) } else { GrepOptions::new(&pattern) };
            options = options.with_word(on(1)).with_whole_line(on(2)).with_multiline(on(3));
            options = options.with_case(match (on(4), on(5)) {
                (false, _) => CaseMode::Sensitive,
                (true, false) => CaseMode::Insensitive,
                (true, true) => CaseMode::Smart,
            });
            let (Ok(matcher), Some(text)) = (GrepMatcher::compile(&options), literal_of(&options)) else { return Ok(()) };
            let content = Bytes::from(content);
            if let FileOutcome::Searched { count: 1.., .. } = matcher.search(VfsPath::ROOT, &content) {
                prop_assert!(memchr::memmem::find(&content, &text).is_some(), "{text:?} of {options:?} in {content:?}");
            }
        }
    }
}
