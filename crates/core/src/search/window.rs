//! Reads content of any size in windows of whole lines.

use crate::file::BINARY_PROBE_BYTES;
use bytes::Bytes;
use memchr::memrchr;
use std::mem::take;

/// The longest run of lines, in bytes, that must be in memory together: one line, or the context before a match.
pub const TOGETHER_BYTES_MAX: usize = 1 << 30;

/// A part of some content, in whole lines. Only at the end of the content may the last one lack its line break.
#[derive(Debug)]
pub struct Window {
    /// The bytes.
    pub content: Bytes,
    /// The position of the window in the whole content.
    pub origin: usize,
    /// The position of the first line that the previous window did not contain. The lines before it are context.
    pub(super) fresh: usize,
    /// The position of the next window's start, or `None` if this is the whole content, which returned lines may share.
    pub(super) next: Option<usize>,
}

impl Window {
    /// Creates a window of the whole content.
    pub(super) fn whole(content: Bytes) -> Self {
        Self { content, origin: 0, fresh: 0, next: None }
    }

    /// Creates a window of lines at a position. The next window starts where they end.
    pub fn new(content: Bytes, origin: usize) -> Self {
        Self { next: Some(content.len()), content, origin, fresh: 0 }
    }

    /// Returns the empty buffer for reuse, unless a line still shares it.
    pub fn into_buffer(self) -> Option<Vec<u8>> {
        let mut buffer = self.content.try_into_mut().ok()?;
        buffer.clear();
        Some(Vec::from(buffer))
    }
}

/// Why there is no next window.
#[derive(Debug)]
pub enum Unread<E> {
    /// A line, or the requested context, is over 1 GiB long.
    TooLong,
    /// The content could not be read.
    Failed(E),
}

/// Reads content in windows.
///
/// A window ends at the end of a line and grows if a line does not fit. It starts with the last lines of the previous window, as
/// many as there are lines of context before a match. Each read is at least as large as what is carried over, so each byte is
/// copied only a few times, however long the context is.
#[derive(Debug)]
pub struct Windows<R> {
    read: R,
    window_bytes: usize,
    context_lines: usize,
    /// Bytes that were read and start the next window.
    rest: Vec<u8>,
    /// The position in `rest` of the first line that was in no window yet.
    fresh: usize,
    /// The position of `rest` in the content.
    origin: usize,
    ended: bool,
    together_bytes_max: usize,
}

impl<E, R: FnMut(&mut Vec<u8>) -> Result<usize, E>> Windows<R> {
    /// Starts reading. `read` appends to the spare capacity of a buffer and returns the number of bytes read, 0 at the end.
    pub fn new(read: R, window_bytes: usize, context_lines: usize) -> Self {
        Self {
            read,
            window_bytes,
            context_lines,
            rest: Vec::new(),
            fresh: 0,
            origin: 0,
            ended: false,
            together_bytes_max: TOGETHER_BYTES_MAX,
        }
    }

    /// Returns the start of the content, which shows whether it is binary. Call this before the first window.
    pub fn probe(&mut self) -> Result<&[u8], E> {
        let mut start = take(&mut self.rest);
        let read = self.fill(&mut start, BINARY_PROBE_BYTES);
        self.rest = start;
        read.map(|()| &*self.rest)
    }

    /// Reads the next window into a buffer.
    pub fn next(&mut self, mut buffer: Vec<u8>) -> Result<Option<Window>, Unread<E>> {
        buffer.clear();
        buffer.extend_from_slice(&self.rest);
        let mut looked = self.fresh;
        let end = loop {
            let wanted = (buffer.len() * 2).max(self.window_bytes);
            self.fill(&mut buffer, wanted).map_err(Unread::Failed)?;
            if self.ended {
                break buffer.len();
            }
            if let Some(at) = memrchr(b'\n', &buffer[looked..]) {
                break looked + at + 1;
            }
            looked = buffer.len();
            if looked > self.together_bytes_max {
                return Err(Unread::TooLong);
            }
        };
        if end == self.fresh {
            return Ok(None);
        }
        let mut next = end;
        for _ in 0..self.context_lines {
            if next == 0 {
                break;
            }
            next = memrchr(b'\n', &buffer[..next - 1]).map_or(0, |at| at + 1);
        }
        self.rest.clear();
        self.rest.extend_from_slice(&buffer[next..]);
        buffer.truncate(end);
        let window = Window { content: Bytes::from(buffer), origin: self.origin, fresh: self.fresh, next: Some(next) };
        self.origin += next;
        self.fresh = end - next;
        if self.rest.len() > self.together_bytes_max { Err(Unread::TooLong) } else { Ok(Some(window)) }
    }

    /// Reads until a buffer has this many bytes, or the content ends.
    fn fill(&mut self, buffer: &mut Vec<u8>, bytes: usize) -> Result<(), E> {
        buffer.reserve(bytes.saturating_sub(buffer.len()));
        while !self.ended && buffer.len() < bytes {
            self.ended = (self.read)(buffer)? == 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// Reads content a few bytes at a time.
    fn reader(content: &[u8]) -> impl FnMut(&mut Vec<u8>) -> Result<usize, Infallible> {
        let mut left = content;
        move |buffer| {
            let (now, later) = left.split_at(left.len().min(3).min(buffer.capacity() - buffer.len()));
            buffer.extend_from_slice(now);
            left = later;
            Ok(now.len())
        }
    }

    #[test]
    fn windows_consist_of_whole_lines() {
        let content = b"one\ntwo\nthree is long, longer than a window\n\nfour\nfive";
        for window_bytes in 1..60 {
            for context_lines in 0..4 {
                let mut windows = Windows::new(reader(content), window_bytes, context_lines);
                let (mut joined, mut buffer) = (Vec::new(), Vec::new());
                while let Ok(Some(window)) = windows.next(take(&mut buffer)) {
                    let (origin, part) = (window.origin, &window.content[..]);
                    assert_eq!(part, &content[origin..origin + part.len()]);
                    assert_eq!(origin + window.fresh, joined.len());
                    assert!(part.ends_with(b"\n") || origin + part.len() == content.len());
                    let before = memchr::memchr_iter(b'\n', &part[..window.fresh]).count();
                    assert!(before == context_lines || (origin == 0 && before < context_lines), "{before} of {context_lines}");
                    joined.extend_from_slice(&part[window.fresh..]);
                    buffer = window.into_buffer().expect("nothing else holds it");
                }
                assert_eq!(joined, content);
            }
        }
    }

    #[test]
    fn window_over_size_limit_is_an_error() {
        let content = [&b"short\n"[..], &[b'x'; 500], b"\nshort\n"].concat();
        for (together_bytes_max, context_lines, fits) in [(100, 0, false), (1000, 0, true), (400, 9, false)] {
            let mut windows = Windows::new(reader(&content), 16, context_lines);
            windows.together_bytes_max = together_bytes_max;
            let ended = loop {
                match windows.next(Vec::new()) {
                    Ok(Some(_)) => {}
                    Ok(None) => break true,
                    Err(Unread::TooLong) => break false,
                    Err(Unread::Failed(never)) => match never {},
                }
            };
            assert_eq!(ended, fits, "{together_bytes_max} {context_lines}");
        }
    }
}
