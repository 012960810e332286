//! Splits content into lines and replaces text in it. Pure, on bytes.
//!
//! A line ends at `\n`; a `\r` before it belongs to the terminator for display. What follows the last `\n` is a line of its own
//! unless it is empty. Read, grep and edit all count lines this way. An edit treats each terminator as one unit.

use crate::error::{Error, ErrorKind, Result};
use crate::ops::{FileRead, ReadOptions, ReadRange, Window};
use crate::work;
use bytes::Bytes;
use memchr::{memchr, memchr_iter};
use std::borrow::Cow;

pub mod merge;
mod replace;
pub mod run;
pub mod scan;

pub use replace::edit_apart;
pub use replace::{EDIT_WORK_BYTES_MAX, EDITED_BYTES_MAX, edit};
pub use replace::{LineEnding, ending_before, folded, occurrences, position};
pub use replace::{replace_first, splice};

/// Counts the lines of some content.
///
/// Cost: one pass at memory speed.
pub fn count_lines(content: &[u8]) -> usize {
    scan::count_ends(content) + usize::from(content.last().is_some_and(|last| *last != b'\n'))
}

/// Returns the number, from 1, of the line that contains the byte at `offset`.
pub fn line_at(content: &[u8], offset: usize) -> usize {
    scan::count_ends(&content[..offset.min(content.len())]) + 1
}

/// Removes the terminator (`\n` or `\r\n`) of a line, for display.
pub fn trim_terminator(line: &[u8]) -> &[u8] {
    match line {
        [rest @ .., b'\r', b'\n'] | [rest @ .., b'\n'] => rest,
        _ => line,
    }
}

/// Returns the part of some content that `options` select, without copying.
///
/// Cost: none, except that a window of lines counts the lines of the whole content once.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for an offset past the end, [`TooLarge`](ErrorKind::TooLarge) if the whole
/// content is selected and exceeds the limit.
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
                work::advance(next - end);
                // Return at least one line, even over the limit, so that a reader always makes progress.
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

/// Returns what was read with every `\r\n` as `\n`, for a reader that edits by the text that it was shown: [`edit`] finds it, and keeps
/// the line endings of the file.
///
/// The size and version stay those of the file. Cost: one pass; a copy only if there is a `\r\n`.
#[must_use]
pub fn with_unix_lines(mut read: FileRead) -> FileRead {
    if let Cow::Owned(text) = folded(&read.content) {
        read.content = text.into();
    }
    read
}

/// How many bytes are counted for lines in the time of one byte of other work.
const COUNTED_PER_BYTE: u64 = 16;

/// Does as [`cut`] does, where blocking is allowed when there is much to count.
///
/// # Errors
/// Those of [`cut`] and of [`work::run`].
pub async fn cut_apart(content: &Bytes, options: &ReadOptions) -> Result<(Bytes, Option<Window>)> {
    let cost_bytes = content.len() as u64 / COUNTED_PER_BYTE;
    if !matches!(options.range, ReadRange::Lines { .. }) || cost_bytes <= work::IN_PLACE_BYTES {
        return cut(content, options);
    }
    let (content, options) = (content.clone(), options.clone());
    work::run(cost_bytes, move |_| cut(&content, &options)).await?
}

/// Joins two contents, where blocking is allowed when there is much to copy.
///
/// # Errors
/// Those of [`work::run`].
pub async fn joined(before: &Bytes, after: &Bytes) -> Result<Bytes> {
    let (before, after) = (before.clone(), after.clone());
    let size_bytes = before.len() + after.len();
    let join = move |_: &work::Stop| {
        let mut joined = Vec::with_capacity(size_bytes);
        scan::push(&mut joined, &before);
        scan::push(&mut joined, &after);
        Bytes::from(joined)
    };
    work::run(size_bytes as u64 / 4, join).await
}

/// The longest line, in bytes, that [`LineCutter`] returns beyond the caller's limit.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// Cuts a window of lines out of content that streams through.
///
/// It keeps only the window in memory and selects like [`cut`], except that a line over 64 MiB that exceeds the caller's limit is
/// an error.
#[derive(Debug)]
pub struct LineCutter {
    offset: usize,
    limit: usize,
    bytes_max: u64,
    /// How many line ends were seen.
    passed: usize,
    /// How many lines the window has.
    lines: usize,
    window: Vec<u8>,
    /// The start of the last, unfinished line in the window.
    line_start: usize,
    /// Whether the window is complete.
    full: bool,
    /// Whether the content so far is empty or ends with a line end.
    ended: bool,
}

impl LineCutter {
    /// Selects the lines after the first `offset` lines: up to `limit` lines and `bytes_max` bytes, but at least one line.
    pub fn new(offset: usize, limit: usize, bytes_max: u64) -> Self {
        Self { offset, limit, bytes_max, passed: 0, lines: 0, window: Vec::new(), line_start: 0, full: false, ended: true }
    }

    /// Processes the next part of the content.
    ///
    /// # Errors
    /// [`TooLarge`](ErrorKind::TooLarge) if the first line is too long.
    pub fn push(&mut self, mut chunk: &[u8]) -> Result<()> {
        if !chunk.is_empty() {
            self.ended = chunk.ends_with(b"\n");
        }
        while !chunk.is_empty() && self.passed < self.offset {
            match memchr(b'\n', chunk) {
                Some(at) => {
                    self.passed += 1;
                    chunk = &chunk[at + 1..];
                }
                None => return Ok(()),
            }
        }
        while !chunk.is_empty() && !self.is_full() {
            let at = memchr(b'\n', chunk);
            let end = at.map_or(chunk.len(), |at| at + 1);
            self.window.extend_from_slice(&chunk[..end]);
            if self.lines == 0 && self.window.len() as u64 > self.bytes_max.max(LINE_BYTES_MAX) {
                let message = format!("line {} is over {LINE_BYTES_MAX} bytes long; read a range of bytes", self.offset + 1);
                return Err(Error::new(ErrorKind::TooLarge, message));
            }
            if self.lines > 0 && self.window.len() as u64 > self.bytes_max {
                // From here on, lines are only counted.
                self.window.truncate(self.line_start);
                self.full = true;
                break;
            }
            if at.is_some() {
                self.end_line();
            }
            chunk = &chunk[end..];
        }
        if self.is_full() {
            self.passed += memchr_iter(b'\n', chunk).count();
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.full || self.lines >= self.limit
    }

    fn end_line(&mut self) {
        self.passed += 1;
        self.lines += 1;
        self.line_start = self.window.len();
    }

    /// Returns the window after all content was processed.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an offset past the end.
    pub fn finish(mut self) -> Result<(Bytes, Window)> {
        let mut total_lines = self.passed;
        if !self.ended {
            total_lines += 1;
            if self.window.len() > self.line_start {
                self.lines += 1;
            }
        }
        if self.offset > total_lines {
            let message = format!("line offset {} is past the end: the file has {total_lines} lines", self.offset);
            return Err(Error::invalid_argument(message));
        }
        Ok((Bytes::from(self.window), Window { offset: self.offset, lines: self.lines, total_lines }))
    }
}

/// Checks the size of a file before it is read as a whole.
///
/// # Errors
/// [`TooLarge`](ErrorKind::TooLarge) if it exceeds the limit of the options.
pub fn check_whole(size_bytes: u64, options: &ReadOptions) -> Result<()> {
    if size_bytes > options.bytes_max {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!(
                "the file has {size_bytes} bytes but one read returns at most {}; read a window of lines or a range of bytes",
                options.bytes_max
            ),
        ));
    }
    Ok(())
}

/// Checks the offset of a byte range against the size of the file.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for an offset past the end.
pub fn checked_offset(offset: u64, size_bytes: u64) -> Result<u64> {
    if offset > size_bytes {
        return Err(Error::invalid_argument(format!("byte offset {offset} is past the end: the file has {size_bytes} bytes")));
    }
    Ok(offset)
}

/// Returns the position after the first `count` lines.
fn skip_lines(content: &[u8], count: usize) -> usize {
    scan::after_lines(content, count).unwrap_or(content.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_lines_counts_only_line_feeds() {
        for (content, count) in
            [("", 0), ("a", 1), ("a\n", 1), ("a\nb", 2), ("\n", 1), ("\n\n", 2), ("a\r\nb\r\n", 2), ("a\u{2028}b\u{b}c\rd", 1)]
        {
            assert_eq!(count_lines(content.as_bytes()), count, "{content:?}");
        }
    }

    #[test]
    fn cut_returns_windows_of_lines() {
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
        assert_eq!(lines(0, 0).expect("a window without lines").1.next_offset(), Some(0));
        let (bytes, window) = cut(&content, &ReadOptions::lines(0, 9).with_bytes_max(5)).expect("the content is truncated by its size");
        assert_eq!((&bytes[..], window.and_then(|window| window.next_offset())), (&b"one\n"[..], Some(1)));
    }

    #[test]
    fn cut_returns_byte_ranges() {
        let content = Bytes::from_static(b"abcdef");
        let bytes = |offset, limit| cut(&content, &ReadOptions::bytes(offset, limit)).map(|(bytes, _)| bytes);
        assert_eq!(bytes(2, 2).expect("within"), "cd");
        assert_eq!(bytes(4, u64::MAX).expect("to the end"), "ef");
        assert_eq!(bytes(6, 1).expect("just the end"), "");
        assert_eq!(bytes(7, 1).expect_err("past the end").kind(), ErrorKind::InvalidArgument);
        assert_eq!(cut(&content, &ReadOptions::new().with_bytes_max(5)).expect_err("over the limit").kind(), ErrorKind::TooLarge);
    }
}
