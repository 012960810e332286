//! HTML comments: what people write to people in a file that a model reads.

use std::collections::HashMap;

/// Removes HTML comments from a Markdown text.
///
/// A comment goes from `<!--` to `-->`, over lines too; one without an end is text. A line of which only white space is left is removed
/// with it. What stands in fenced blocks and in spans of code is text ([CommonMark](https://spec.commonmark.org/0.31.2/#html-comment)).
///
/// ```
/// use stratafs::memory::without_comments;
///
/// assert_eq!(without_comments("a <!-- for people --> b\n<!--\nall of this\n-->\nc\n"), "a  b\nc\n");
/// assert_eq!(without_comments("write `<!-- so -->`\n"), "write `<!-- so -->`\n");
/// ```
pub fn without_comments(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut fence: Option<(u8, usize)> = None;
    // Behind it no comment ends, so none is looked for: each that is open would be, through the whole rest.
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

/// Copies what starts on a line up to the end of the line that it ends on, without comments. Returns where that is.
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
        // From the second letter on, as `<!-->` is a whole comment.
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

/// The ends of the spans of code on a line, found in one pass however many marks are open.
#[derive(Default)]
struct Spans {
    /// Where the line ends that was looked at.
    line_end: usize,
    /// For each number of marks in a row, how far before the end of the line the last such row starts.
    last: HashMap<usize, usize>,
}

impl Spans {
    /// Returns the span of code that the rest of a line starts with; only its first marks when they are not closed.
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

/// Returns the rows of marks of a text: where each starts, and how many there are.
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

/// Returns the mark of a fence that a line opens, and how many there are.
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

    /// A megabyte of comments without an end took minutes, as each looked for its own through all the rest.
    #[test]
    fn comments_without_an_end_are_looked_for_once() {
        let text = format!("a <!-- b --> c {}", "<!--".repeat(250_000));
        assert_eq!(without_comments(&text), text.replacen("<!-- b -->", "", 1));
    }

    #[test]
    fn comments_go_and_the_rest_stays() {
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

    proptest! {
        #[test]
        fn nothing_is_made_up_and_no_comment_is_left(text in "(<!--|-->|`|```\n|a|é|\n| ){0,20}") {
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
