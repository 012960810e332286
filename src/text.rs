//! How content is cut into lines and how text within it is replaced: pure, on bytes.
//!
//! A line ends at `\n`; a `\r` before it belongs to the terminator for display. What follows the last `\n` is a line of its
//! own when it is not empty. Read, grep and edit all count lines this way. An edit treats each terminator as one unit.

use crate::error::{Error, ErrorKind, Result};
use crate::ops::{ReadOptions, ReadRange, Window};
use bytes::Bytes;
use memchr::{memchr, memchr_iter};

pub mod merge;
mod replace;
pub(crate) mod run;

pub use replace::{EDIT_WORK_BYTES_MAX, EDITED_BYTES_MAX, edit};
pub(crate) use replace::{LineEnding, ending_before, folded, occurrences, position};
pub(crate) use replace::{edit_apart, edit_until};
#[cfg(feature = "mcp")]
pub(crate) use replace::{replace_first, splice};

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
