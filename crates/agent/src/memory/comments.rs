//! Removes HTML comments from memory files. Authors use them to address other people rather than the model.

use std::collections::HashMap;

/// Removes HTML comments from Markdown text.
///
/// A comment goes from `<!--` to `-->`, possibly across lines. An unclosed comment is text. A line that is left with only white
/// space is removed too. Fenced code blocks and code spans are text
/// ([CommonMark](https://spec.commonmark.org/0.31.2/#html-comment)).
///
/// ```
/// use treehold_agent::memory::without_comments;
///
/// assert_eq!(without_comments("a <!-- for people --> b\n<!--\nall of this\n-->\nc\n"), "a  b\nc\n");
/// assert_eq!(without_comments("write `<!-- so -->`\n"), "write `<!-- so -->`\n");
/// ```
pub fn without_comments(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut fence: Option<(u8, usize)> = None;
    // No comment ends after this, so skip the search there. Otherwise each unclosed comment would scan the whole rest.
    let last_end = text.rfind("-->").unwrap_or(0);
    let mut at = 0;
    while at < text.len() {
        let end = line_end(text, at);
        let line = &text[at..end];
        match fence {
            Some(open) if closes(line, open) => fence = None,
            Some(_) => {}
            None => fence = opened(line),
        }
        if fence.is_some() || is_fence(line) {
            kept.push_str(line);
            at = end;
            continue;
        }
        at = copy_line(text, at, last_end, &mut kept);
    }
    kept
}

/// Removes HTML comments from the start of a longer text, like [`without_comments`]. A comment that is not closed ends after the start.
pub(super) fn without_comments_of_start(text: &str) -> String {
    let mut kept = without_comments(&format!("{text}-->"));
    if kept.ends_with("-->") {
        kept.truncate(kept.len() - "-->".len());
    }
    kept
}

/// Copies from the start of a line to the end of the line where its last comment ends, without comments. Returns that end.
fn copy_line(text: &str, start: usize, last_end: usize, kept: &mut String) -> usize {
    let (line_start, mut at, mut removed) = (kept.len(), start, false);
    let mut end = line_end(text, at);
    let mut spans = Spans::default();
    while at < end {
        let rest = &text[at..end];
        let Some(mark) = rest.find(['`', '<']) else {
            kept.push_str(rest);
            break;
        };
        kept.push_str(&rest[..mark]);
        at += mark;
        let rest = &text[at..];
        // From the third character on, since `<!-->` is a complete comment.
        let may_end = at + 2 <= last_end;
        if let Some(close) = rest.strip_prefix("<!--").filter(|_| may_end).and_then(|_| rest[2..].find("-->")) {
            at += 2 + close + "-->".len();
            if at > end {
                end = line_end(text, at);
            }
            removed = true;
        } else if rest.starts_with('`') {
            let span = spans.at(&text[at..end], end);
            kept.push_str(span);
            at += span.len();
        } else {
            kept.push('<');
            at += 1;
        }
    }
    if removed && kept[line_start..].trim().is_empty() {
        kept.truncate(line_start);
    }
    end
}

/// The ends of code spans on a line, found in one pass however many backticks are unclosed.
#[derive(Default)]
struct Spans {
    /// The end of the line that was indexed.
    line_end: usize,
    /// For each length of a backtick run, the distance from the end of the line to the last such run.
    last: HashMap<usize, usize>,
}

impl Spans {
    /// Returns the code span at the start of the rest of a line, or only its opening backticks if it is not closed.
    fn at<'t>(&mut self, rest: &'t str, line_end: usize) -> &'t str {
        if self.line_end != line_end {
            (self.line_end, self.last) = (line_end, rows(rest).map(|(at, length)| (length, rest.len() - at)).collect());
        }
        let marks = marks_of(rest);
        let is_closed = self.last.get(&marks).is_some_and(|from_end| *from_end < rest.len());
        let close = if is_closed { rows(rest).skip(1).find(|(_, length)| *length == marks) } else { None };
        &rest[..close.map_or(marks, |(at, length)| at + length)]
    }
}

/// Returns the backtick runs of a text: the start and length of each.
fn rows(text: &str) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + text[at..].find('`')?;
        let length = marks_of(&text[start..]);
        at = start + length;
        Some((start, length))
    })
}

fn marks_of(text: &str) -> usize {
    text.len() - text.trim_start_matches('`').len()
}

fn line_end(text: &str, at: usize) -> usize {
    text[at..].find('\n').map_or(text.len(), |end| at + end + 1)
}

/// Returns the character and length of the code fence that a line opens.
fn opened(line: &str) -> Option<(u8, usize)> {
    let text = line.trim_start_matches(' ');
    let mark = *text.as_bytes().first().filter(|mark| matches!(mark, b'`' | b'~'))?;
    let count = text.bytes().take_while(|byte| *byte == mark).count();
    let is_open = line.len() - text.len() <= 3 && count >= 3 && !(mark == b'`' && text[count..].contains('`'));
    is_open.then_some((mark, count))
}

fn is_fence(line: &str) -> bool {
    opened(line).is_some()
}

fn closes(line: &str, (mark, count): (u8, usize)) -> bool {
    opened(line).is_some_and(|(other, length)| other == mark && length >= count && line.trim().bytes().all(|byte| byte == mark))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Regression: a megabyte of unclosed comments took minutes, as each scanned the whole rest for its end.
    #[test]
    fn unclosed_comments_take_linear_time() {
        let text = format!("a <!-- b --> c {}", "<!--".repeat(250_000));
        assert_eq!(without_comments(&text), text.replacen("<!-- b -->", "", 1));
    }

    #[test]
    fn comments_are_removed_and_other_text_kept() {
        for (text, kept) in [
            ("", ""),
            ("a\n", "a\n"),
            ("a<!-- b -->c", "ac"),
            ("<!-- b -->\na\n", "a\n"),
            ("  <!-- b -->  \r\na\n", "a\n"),
            ("a\n<!-- b\n\nc -->\nd\n", "a\nd\n"),
            ("a <!-- b\nc --> d\ne\n", "a  d\ne\n"),
            ("<!-- a --><!-- b -->\n\nc", "\nc"),
            ("a <!-- open\nb\n", "a <!-- open\nb\n"),
            ("<!-->a<!--->b", "ab"),
            ("a <b> `<!-- c -->` d", "a <b> `<!-- c -->` d"),
            ("``<!-- ` -->`` <!-- x -->e", "``<!-- ` -->`` e"),
            ("a ` <!-- x --> b", "a `  b"),
            ("```html\n<!-- shown -->\n```\n<!-- gone -->\n", "```html\n<!-- shown -->\n```\n"),
            ("~~~\n<!-- shown -->\n```\n<!-- too -->\n~~~~\n<!-- gone -->z", "~~~\n<!-- shown -->\n```\n<!-- too -->\n~~~~\nz"),
            ("<!--\n```\n-->\n<!-- gone -->\na\n", "a\n"),
            ("é<!-- ü -->ö\n", "éö\n"),
            ("a <!-- b -->", "a "),
            ("<!-- b -->", ""),
            ("<!---->é", "é"),
            ("<!--\n-->é", "é"),
            ("a<!--\n-->\nb", "a\nb"),
        ] {
            assert_eq!(without_comments(text), kept, "{text:?}");
        }
    }

    #[test]
    fn comment_open_at_the_end_of_a_start_is_removed() {
        for (text, kept) in [
            ("", ""),
            ("a\n", "a\n"),
            ("a <!-- open\nb\n", "a "),
            ("a <!-- b --> c <!-- open", "a  c "),
            ("a <!-", "a "),
            ("```\n<!-- shown", "```\n<!-- shown"),
            ("`<!-- shown` b", "`<!-- shown` b"),
            ("a -->", "a -->"),
        ] {
            assert_eq!(without_comments_of_start(text), kept, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn result_is_subsequence_of_text(text in "(<!--|-->|`|```\n|a|é|\n| ){0,20}") {
            let kept = without_comments(&text);
            prop_assert!(kept.len() <= text.len());
            if !text.contains('`') && !text.contains("<!--") {
                prop_assert_eq!(&kept, &text);
            }
            let mut rest = text.chars();
            prop_assert!(kept.chars().all(|letter| rest.any(|other| other == letter)), "{:?} of {:?}", kept, text);
        }
    }
}
