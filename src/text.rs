//! How content is cut into lines and how text within it is replaced: pure, on bytes.
//!
//! A line ends at `\n`; a `\r` before it belongs to the terminator for display. What follows the last `\n` is a line of its
//! own when it is not empty. Read, grep and edit all count lines this way.

use crate::error::{Error, ErrorKind, Result};
use crate::ops::{Edit, ReadOptions, ReadRange, Window};
use crate::work::{self, Stop};
use bytes::Bytes;
use memchr::{memchr, memchr_iter, memmem};
use std::borrow::Cow;

pub mod merge;
pub(crate) mod run;

/// How many line numbers an `ambiguous` names at most.
const LINES_NAMED_MAX: usize = 20;

/// The largest content in bytes that a replacement may grow a file to.
pub const EDITED_BYTES_MAX: usize = 256 << 20;

/// The most work that the edits of one call may be: how many there are, times the bytes of the content. A few seconds.
pub const EDIT_WORK_BYTES_MAX: u64 = 4 << 30;

/// Counts the lines of a content.
///
/// Cost: one pass at the speed of memory.
pub fn count_lines(content: &[u8]) -> usize {
    memchr_iter(b'\n', content).count() + usize::from(content.last().is_some_and(|last| *last != b'\n'))
}

/// Returns the number, from 1, of the line that the byte at `offset` is on.
pub fn line_at(content: &[u8], offset: usize) -> usize {
    memchr_iter(b'\n', &content[..offset.min(content.len())]).count() + 1
}

/// Removes the terminator (`\n` or `\r\n`) of one line, for display.
pub fn trim_terminator(line: &[u8]) -> &[u8] {
    match line {
        [rest @ .., b'\r', b'\n'] | [rest @ .., b'\n'] => rest,
        _ => line,
    }
}

/// Cuts what `options` asks for out of a whole content, sharing it.
///
/// Cost: nothing is copied; a window of lines counts the lines of the whole content once.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for an offset past the end, [`TooLarge`](ErrorKind::TooLarge) for a whole
/// content over the limit.
pub fn cut(content: &Bytes, options: &ReadOptions) -> Result<(Bytes, Option<Window>)> {
    match options.range {
        ReadRange::Whole => {
            check_whole(content.len() as u64, options)?;
            Ok((content.clone(), None))
        }
        ReadRange::Bytes { offset, limit } => {
            let start = checked_offset(offset, content.len() as u64)? as usize;
            let length = limit.min(options.bytes_max).min((content.len() - start) as u64) as usize;
            Ok((content.slice(start..start + length), None))
        }
        ReadRange::Lines { offset, limit } => {
            let total_lines = count_lines(content);
            if offset > total_lines {
                return Err(Error::invalid_argument(format!("line offset {offset} is past the end: the file has {total_lines} lines")));
            }
            let start = skip_lines(content, offset);
            let mut end = start;
            let mut lines = 0;
            while lines < limit && end < content.len() {
                let next = memchr(b'\n', &content[end..]).map_or(content.len(), |at| end + at + 1);
                // One line over the limit is still given, so that a reader always gets on.
                if (next - start) as u64 > options.bytes_max && lines > 0 {
                    break;
                }
                end = next;
                lines += 1;
            }
            Ok((content.slice(start..end), Some(Window { offset, lines, total_lines })))
        }
    }
}

/// Checks the size of a whole read before any of it is loaded.
///
/// # Errors
/// [`TooLarge`](ErrorKind::TooLarge) over the limit of the options.
pub fn check_whole(size_bytes: u64, options: &ReadOptions) -> Result<()> {
    if size_bytes > options.bytes_max {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!(
                "the file has {size_bytes} bytes and one read returns at most {}; read a window of lines or a range of bytes",
                options.bytes_max
            ),
        ));
    }
    Ok(())
}

/// Checks the offset of a range of bytes against the size of the file.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) past the end.
pub fn checked_offset(offset: u64, size_bytes: u64) -> Result<u64> {
    if offset > size_bytes {
        return Err(Error::invalid_argument(format!("byte offset {offset} is past the end: the file has {size_bytes} bytes")));
    }
    Ok(offset)
}

/// Returns where the line after `count` lines starts.
fn skip_lines(content: &[u8], count: usize) -> usize {
    match count {
        0 => 0,
        count => memchr_iter(b'\n', content).nth(count - 1).map_or(content.len(), |at| at + 1),
    }
}

/// Applies replacements in order to a content and returns the new content and how many occurrences were replaced.
///
/// `old` is matched byte for byte. When it does not occur so, its line endings are adapted to the content's: an `old` written
/// with `\n` meets text stored with `\r\n`, and `new` then takes that ending too. What was not replaced stays byte for byte.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for no edit or an empty `old`, [`NoMatch`](ErrorKind::NoMatch) and
/// [`Ambiguous`](ErrorKind::Ambiguous) (with the lines) by what was counted, [`TooLarge`](ErrorKind::TooLarge) when a
/// replacement would grow the content over [`EDITED_BYTES_MAX`], and for more edits of a large content than
/// [`EDIT_WORK_BYTES_MAX`] allows.
pub fn edit(content: &[u8], edits: &[Edit]) -> Result<(Vec<u8>, usize)> {
    edit_until(content, edits, &Stop::default())
}

/// Does as [`edit`] does, away from the threads that serve others when it is much work, and no longer than its caller waits.
///
/// # Errors
/// Those of [`edit`] and of [`work::run`].
pub(crate) async fn edit_apart(content: &Bytes, edits: &[Edit]) -> Result<(Vec<u8>, usize)> {
    let cost_bytes = (content.len() as u64).saturating_mul(edits.len() as u64);
    if cost_bytes <= work::IN_PLACE_BYTES || cost_bytes > EDIT_WORK_BYTES_MAX {
        return edit(content, edits);
    }
    let (content, edits) = (content.clone(), edits.to_vec());
    work::run(cost_bytes, move |stop| edit_until(&content, &edits, stop)).await?
}

/// Does as [`edit`] does, and looks before each replacement whether the caller still waits.
pub(crate) fn edit_until(content: &[u8], edits: &[Edit], stop: &Stop) -> Result<(Vec<u8>, usize)> {
    if edits.is_empty() {
        return Err(Error::invalid_argument("no edit was given; name at least one text to replace"));
    }
    let mut current = Cow::Borrowed(content);
    let mut replaced = 0;
    let mut worked_bytes = 0_u64;
    for (index, edit) in edits.iter().enumerate() {
        stop.check()?;
        // Each replacement goes through all of the content; what the later ones take at least is known before the first.
        let rest = (edits.len() - index) as u64;
        if edits.len() > 1 && worked_bytes.saturating_add(rest.saturating_mul(current.len() as u64)) > EDIT_WORK_BYTES_MAX {
            let count = (EDIT_WORK_BYTES_MAX / (current.len() as u64).max(1)).max(1);
            let message = format!(
                "{} edits of a file of {} bytes are too much work for one call; send at most {count} at once, or write the file anew",
                edits.len(),
                current.len()
            );
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        worked_bytes += current.len() as u64;
        // Say which of several edits failed, so that the caller can mend just that one.
        let label = if edits.len() == 1 { String::new() } else { format!("edit {} of {}: ", index + 1, edits.len()) };
        let (next, count) = edit_once(&current, edit).map_err(|error| {
            let message = format!("{label}{}", error.message());
            error.with_message(message)
        })?;
        current = Cow::Owned(next);
        replaced += count;
    }
    Ok((current.into_owned(), replaced))
}

fn edit_once(content: &[u8], edit: &Edit) -> Result<(Vec<u8>, usize)> {
    if edit.old.is_empty() {
        return Err(Error::invalid_argument("the text to replace is empty; name the text, or write the whole file"));
    }
    let mut old = Cow::Borrowed(edit.old.as_bytes());
    let mut count = memmem::find_iter(content, &*old).count();
    let mut adapted = None;
    if count == 0 && memchr(b'\n', &old).is_some() {
        for ending in [LineEnding::CrLf, LineEnding::Lf] {
            let other = ending.applied_to(&edit.old);
            let found = if other == old { 0 } else { memmem::find_iter(content, other.as_ref()).count() };
            if found > 0 {
                (old, count, adapted) = (other, found, Some(ending));
                break;
            }
        }
    }
    match count {
        0 => return Err(no_match(content, &edit.old)),
        count if count > 1 && !edit.replace_all => return Err(ambiguous(content, &old, count)),
        _ => {}
    }
    let ending = adapted.or_else(|| inserted_ending(content, &old, &edit.new));
    let new = ending.map_or(Cow::Borrowed(edit.new.as_bytes()), |ending| ending.applied_to(&edit.new));
    let mut result = Vec::with_capacity(edited_size(content.len(), count, old.len(), new.len())?);
    let mut end = 0;
    for place in memmem::find_iter(content, &*old) {
        result.extend_from_slice(&content[end..place]);
        result.extend_from_slice(&new);
        end = place + old.len();
    }
    result.extend_from_slice(&content[end..]);
    Ok((result, count))
}

/// Returns the size of a content after `count` replacements; known before any of it is built, as few bytes can ask for many.
fn edited_size(size: usize, count: usize, old: usize, new: usize) -> Result<usize> {
    let kept = size - count * old;
    count.checked_mul(new).and_then(|added| kept.checked_add(added)).filter(|size| *size <= EDITED_BYTES_MAX.max(kept)).ok_or_else(|| {
        Error::new(
            ErrorKind::TooLarge,
            format!("{count} replacements would make the file larger than {EDITED_BYTES_MAX} bytes; replace fewer or with less"),
        )
    })
}

/// How a text ends its lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineEnding {
    Lf,
    CrLf,
}

impl LineEnding {
    /// Returns a text with every line ended this way.
    fn applied_to(self, text: &str) -> Cow<'_, [u8]> {
        let lf = if text.contains("\r\n") { Cow::Owned(text.replace("\r\n", "\n")) } else { Cow::Borrowed(text) };
        match (self, lf) {
            (Self::CrLf, lf) if lf.contains('\n') => Cow::Owned(lf.replace('\n', "\r\n").into_bytes()),
            (_, Cow::Borrowed(text)) => Cow::Borrowed(text.as_bytes()),
            (_, Cow::Owned(text)) => Cow::Owned(text.into_bytes()),
        }
    }
}

/// Decides the ending of lines that `new` brings where `old` held none to compare with: that of a file which ends every line
/// with `\r\n`. A text whose own line endings matched byte for byte is taken as written.
fn inserted_ending(content: &[u8], old: &[u8], new: &str) -> Option<LineEnding> {
    if memchr(b'\n', old).is_some() || !new.contains('\n') || new.contains("\r\n") {
        return None;
    }
    ends_lines_by_crlf(content).then_some(LineEnding::CrLf)
}

/// Tells whether a content has lines with an end, and each of them ends with `\r\n`.
pub(crate) fn ends_lines_by_crlf(content: &[u8]) -> bool {
    let mut ends = memchr_iter(b'\n', content).peekable();
    ends.peek().is_some() && ends.all(|at| at > 0 && content[at - 1] == b'\r')
}

fn ambiguous(content: &[u8], old: &[u8], count: usize) -> Error {
    let lines: Vec<usize> = memmem::find_iter(content, old).take(LINES_NAMED_MAX).map(|place| line_at(content, place)).collect();
    let mut distinct = lines.clone();
    distinct.dedup();
    let named = distinct.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let more = if count > lines.len() { ", ..." } else { "" };
    let word = if distinct.len() == 1 && more.is_empty() { "line" } else { "lines" };
    Error::new(
        ErrorKind::Ambiguous,
        format!("the text to replace occurs {count} times ({word} {named}{more}); add surrounding lines to make it unique, or replace all"),
    )
    .with_lines(lines)
}

/// Explains why a text does not occur, with the nearest thing that does.
fn no_match(content: &[u8], old: &str) -> Error {
    let hint = if content.is_empty() {
        "the file is empty".to_owned()
    } else if let Some(place) =
        old.strip_suffix('\n').filter(|text| !text.is_empty()).and_then(|text| memmem::find(content, text.as_bytes()))
    {
        format!("without its final line break it occurs on line {}; leave that out", line_at(content, place))
    } else if let Some(line) = first_line_near(content, old) {
        format!(
            "its first line occurs on line {line} with other white space or other lines after it; read the file again and copy the text exactly"
        )
    } else {
        "read the file again and copy the text exactly".to_owned()
    };
    Error::new(ErrorKind::NoMatch, format!("the text to replace does not occur; {hint}"))
}

/// Finds the line that equals the first line of `old` but for white space at its ends.
fn first_line_near(content: &[u8], old: &str) -> Option<usize> {
    let wanted = old.lines().map(str::trim).find(|line| !line.is_empty())?.as_bytes();
    content.split(|byte| *byte == b'\n').position(|line| line.trim_ascii() == wanted).map(|index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(content: &str, edits: &[Edit]) -> Result<String> {
        edit(content.as_bytes(), edits).map(|(bytes, _)| String::from_utf8(bytes).expect("text stays text"))
    }

    fn kind(result: Result<String>) -> Option<ErrorKind> {
        result.err().map(|error| error.kind())
    }

    #[test]
    fn counts_lines() {
        for (content, count) in
            [("", 0), ("a", 1), ("a\n", 1), ("a\nb", 2), ("\n", 1), ("\n\n", 2), ("a\r\nb\r\n", 2), ("a\u{2028}b\u{b}c\rd", 1)]
        {
            assert_eq!(count_lines(content.as_bytes()), count, "{content:?}");
        }
    }

    #[test]
    fn cuts_windows() {
        let content = Bytes::from_static(b"one\ntwo\r\nthree");
        let lines =
            |offset, limit| cut(&content, &ReadOptions::lines(offset, limit)).map(|(bytes, window)| (bytes, window.expect("a window")));
        let (bytes, window) = lines(1, 1).expect("within the file");
        assert_eq!(
            (&bytes[..], window.first_line(), window.last_line(), window.next_offset()),
            (&b"two\r\n"[..], Some(2), Some(2), Some(2))
        );
        let (bytes, window) = lines(0, 99).expect("within the file");
        assert_eq!((bytes.len(), window.total_lines, window.next_offset()), (content.len(), 3, None));
        let (bytes, window) = lines(3, 5).expect("just the end");
        assert_eq!((bytes.len(), window.first_line()), (0, None));
        assert_eq!(lines(4, 1).expect_err("past the end").kind(), ErrorKind::InvalidArgument);
        assert_eq!(lines(0, 0).expect("no line asked").1.next_offset(), Some(0));
        let (bytes, window) = cut(&content, &ReadOptions::lines(0, 9).with_bytes_max(5)).expect("cut by size");
        assert_eq!((&bytes[..], window.and_then(|window| window.next_offset())), (&b"one\n"[..], Some(1)));
    }

    #[test]
    fn cuts_bytes() {
        let content = Bytes::from_static(b"abcdef");
        let bytes = |offset, limit| cut(&content, &ReadOptions::bytes(offset, limit)).map(|(bytes, _)| bytes);
        assert_eq!(bytes(2, 2).expect("within"), "cd");
        assert_eq!(bytes(4, u64::MAX).expect("to the end"), "ef");
        assert_eq!(bytes(6, 1).expect("just the end"), "");
        assert_eq!(bytes(7, 1).expect_err("past the end").kind(), ErrorKind::InvalidArgument);
        assert_eq!(cut(&content, &ReadOptions::new().with_bytes_max(5)).expect_err("over the limit").kind(), ErrorKind::TooLarge);
    }

    #[test]
    fn replaces_one_or_all() {
        assert_eq!(edited("a b a", &[Edit::new("b", "c")]).expect("unique"), "a c a");
        assert_eq!(edited("a b a", &[Edit::all("a", "")]).expect("all"), " b ");
        assert_eq!(kind(edited("a b a", &[Edit::new("a", "c")])), Some(ErrorKind::Ambiguous));
        let told = |text| edited(text, &[Edit::new("a", "c")]).expect_err("ambiguous").message().to_owned();
        assert!(told("a b a").contains("occurs 2 times (line 1); "), "a line is named once: {}", told("a b a"));
        assert!(told("a a\nb\na").contains("occurs 3 times (lines 1, 3); "));
        assert_eq!(kind(edited("a", &[Edit::new("x", "y")])), Some(ErrorKind::NoMatch));
        assert_eq!(kind(edited("abc", &[Edit::all("", "Z")])), Some(ErrorKind::InvalidArgument));
        assert_eq!(kind(edited("abc", &[])), Some(ErrorKind::InvalidArgument));
        // Overlapping places count once each, from the left.
        assert_eq!(edited("aaa", &[Edit::all("aa", "b")]).expect("all"), "ba");
    }

    #[test]
    fn edits_build_on_each_other_and_fail_together() {
        assert_eq!(edited("one two", &[Edit::new("one", "three"), Edit::new("three two", "done")]).expect("in order"), "done");
        let error = edited("one two", &[Edit::new("one", "x"), Edit::new("one", "y")]).expect_err("the second fails");
        assert!(error.message().starts_with("edit 2 of 2: "), "{error}");
    }

    #[test]
    fn an_edit_that_asks_for_more_than_memory_is_refused_before_it_is_built() {
        let (content, new) = ("a".repeat(1 << 20), "b".repeat(1 << 20));
        assert_eq!(kind(edited(&content, &[Edit::all("a", new)])), Some(ErrorKind::TooLarge));
        let doubling = vec![Edit::all("a", "aa"); 40];
        assert_eq!(kind(edited("aaaaaaaa", &doubling)), Some(ErrorKind::TooLarge));
    }

    #[test]
    fn more_edits_of_a_large_file_than_one_call_may_make_are_refused_before_the_first() {
        let content = "a".repeat(1 << 20);
        let edits = vec![Edit::new("b", "c"); 200_000];
        let error = edit(content.as_bytes(), &edits).expect_err("a hundred gigabytes of work");
        assert_eq!(error.kind(), ErrorKind::TooLarge);
        assert!(error.message().ends_with("send at most 4096 at once, or write the file anew"), "{error}");
        // The same many edits of a small file are little work.
        assert_eq!(edited("a b", &vec![Edit::new("a", "a"); 200_000]).expect("little work"), "a b");
    }

    #[test]
    fn edits_stop_when_nobody_waits() {
        let stop = Stop::default();
        drop(work::StopOnDrop(stop.clone()));
        assert_eq!(edit_until(b"a", &[Edit::new("a", "b")], &stop).expect_err("stopped").kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn names_the_lines_of_what_is_ambiguous() {
        let error = edited("x\ny\nx\n", &[Edit::new("x", "z")]).expect_err("two places");
        assert_eq!(error.lines(), [1, 3]);
        assert!(error.message().contains("lines 1, 3"), "{error}");
    }

    #[test]
    fn keeps_the_endings_of_lines_not_edited() {
        assert_eq!(edited("a\r\nb\nc\r\n", &[Edit::new("b", "x")]).expect("unique"), "a\r\nx\nc\r\n");
    }

    #[test]
    fn text_as_shown_meets_text_as_stored() {
        assert_eq!(edited("a\r\nb\r\nc\r\n", &[Edit::new("a\nb", "x\ny\nz")]).expect("adapted"), "x\r\ny\r\nz\r\nc\r\n");
        assert_eq!(edited("a\nb\n", &[Edit::new("a\r\nb", "x\r\ny")]).expect("adapted"), "x\ny\n");
        assert_eq!(edited("a\r\nb\r\n", &[Edit::new("b", "x\ny")]).expect("one line becomes two"), "a\r\nx\r\ny\r\n");
        // In a file of mixed endings a single-line edit says nothing about the ending, so the text stands as written.
        assert_eq!(edited("a\r\nb\n", &[Edit::new("b", "x\ny")]).expect("as written"), "a\r\nx\ny\n");
        // An exact match is exact.
        assert_eq!(edited("a\nb\r\n", &[Edit::new("a\nb", "x\ny")]).expect("exact"), "x\ny\r\n");
    }

    #[test]
    fn explains_a_miss() {
        let message = |content: &str, old: &str| edited(content, &[Edit::new(old, "x")]).expect_err("a miss").message().to_owned();
        assert!(message("end", "end\n").contains("final line break"));
        assert!(message("\tlet x = 1;\n", "    let x = 1;\n    let y").contains("line 1"));
        assert!(message("", "a").contains("empty"));
    }
}
