//! Content of any size, a window of whole lines at a time.

use crate::file::BINARY_PROBE_BYTES;
use bytes::Bytes;
use memchr::memrchr;
use std::mem::take;

/// The longest run of lines that must be held together: one line, or the context before a match.
pub(crate) const TOGETHER_BYTES_MAX: usize = 1 << 30;

/// A part of a content: whole lines (the last may end with the content).
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) content: Bytes,
    /// Where the window starts in the whole content.
    pub(crate) origin: usize,
    /// Where in the window the lines start that the one before it did not hold; those before are there as context.
    pub(super) fresh: usize,
    /// Where in the window the next one starts; none when it is the whole content, which its lines may share.
    pub(super) next: Option<usize>,
}

impl Window {
    /// Takes a whole content as one window.
    pub(super) fn whole(content: Bytes) -> Self {
        Self { content, origin: 0, fresh: 0, next: None }
    }

    /// Takes lines that start at a place of a content; the next window starts where they end.
    pub(crate) fn new(content: Bytes, origin: usize) -> Self {
        Self { next: Some(content.len()), content, origin, fresh: 0 }
    }

    /// Takes the buffer back, empty, unless lines of it are held.
    pub(crate) fn into_buffer(self) -> Option<Vec<u8>> {
        let mut buffer = self.content.try_into_mut().ok()?;
        buffer.clear();
        Some(Vec::from(buffer))
    }
}

/// Why there is no next window.
#[derive(Debug)]
pub(crate) enum Unread<E> {
    /// A line, or the context that is asked for, is over 1 GiB long.
    TooLong,
    /// The content could not be read.
    Failed(E),
}

/// Reads a content in windows.
///
/// A window ends with a line; one that is longer than the window makes it grow. Each starts with the last lines of the one before,
/// as many as there are lines of context before a match. As much is read at a time as is taken over, so each byte is copied some
/// times at most, however long the context is.
#[derive(Debug)]
pub(crate) struct Windows<R> {
    read: R,
    window_bytes: usize,
    context_lines: usize,
    /// What was read and starts the next window.
    rest: Vec<u8>,
    /// Where in that the lines start that were in no window.
    fresh: usize,
    /// Where that starts in the content.
    origin: usize,
    ended: bool,
    together_bytes_max: usize,
}

impl<E, R: FnMut(&mut Vec<u8>) -> Result<usize, E>> Windows<R> {
    /// Starts a content. `read` appends to a buffer what fits into its spare capacity, and returns how much; 0 at the end.
    pub(crate) fn new(read: R, window_bytes: usize, context_lines: usize) -> Self {
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

    /// Returns the start of the content, which decides whether it is binary, before the first window is taken.
    pub(crate) fn probe(&mut self) -> Result<&[u8], E> {
        let mut start = take(&mut self.rest);
        let read = self.fill(&mut start, BINARY_PROBE_BYTES);
        self.rest = start;
        read.map(|()| &*self.rest)
    }

    /// Reads the next window into a buffer.
    pub(crate) fn next(&mut self, mut buffer: Vec<u8>) -> Result<Option<Window>, Unread<E>> {
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

    /// Reads until a buffer holds so much, or the content ends.
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

    /// Reads a content a few bytes at a time.
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
    fn windows_are_of_whole_lines() {
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
    fn what_must_be_held_together_has_a_bound() {
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
