//! Builds the returned lines of one file: matches and context, from the cursor on.

use super::collect::TEXT_BYTES_MAX;
use super::grep::FileOutcome;
use super::grep::GrepMatcher;
use super::hits::{Hit, line_end};
use super::window::Window;
use crate::ops::GrepLine;
use crate::text::{scan, trim_terminator};
use bytes::Bytes;
use memchr::{memchr_iter, memrchr};
use std::ops::Range;

/// The returned lines of one file.
///
/// It processes the content window by window; positions are relative to the current window.
///
/// Consecutive pages add up to the whole result: each line of context is returned once, after the match it follows if it is close
/// enough to it, and otherwise before the next match.
pub(super) struct Page<'a> {
    of: &'a GrepMatcher,
    content: Bytes,
    /// The position of the window in the whole content.
    origin: usize,
    /// The lines so far.
    pub(super) lines: Vec<GrepLine>,
    /// The size of their text in bytes.
    text_bytes: usize,
    /// How many of them no longer share a window.
    detached: usize,
    /// The position up to which lines were counted, which starts line `line`.
    counted: usize,
    line: usize,
    /// The end of what was already returned.
    free: usize,
    /// How many lines of context the last match still lacks.
    owed: usize,
    /// The end of the last match or its context, if earlier calls returned it.
    passed: Option<usize>,
    /// How many lines that earlier calls returned are still ahead.
    returned: usize,
}

impl<'a> Page<'a> {
    /// Starts after a line that an earlier call returned.
    pub(super) fn new(of: &'a GrepMatcher, after_line: usize) -> Self {
        Self {
            of,
            content: Bytes::new(),
            origin: 0,
            lines: Vec::new(),
            text_bytes: 0,
            detached: 0,
            counted: 0,
            line: 1,
            free: 0,
            owed: 0,
            passed: None,
            returned: after_line,
        }
    }

    /// Enters the next window and returns the position to search from. With `counts_all`, this includes lines that earlier calls
    /// returned; otherwise those are skipped and only counted.
    pub(super) fn enter(&mut self, window: &Window, counts_all: bool) -> usize {
        self.content = window.content.clone();
        self.origin = window.origin;
        if self.returned > 0 {
            self.pass_returned(window.fresh, counts_all);
        }
        window.fresh.max(if counts_all { 0 } else { self.counted })
    }

    fn pass_returned(&mut self, fresh: usize, counts_all: bool) {
        let end = self.content.len();
        let mut ends = memchr_iter(b'\n', &self.content[fresh..]).map(|at| fresh + at + 1);
        let start = if self.returned == 1 { Some(fresh) } else { ends.nth(self.returned - 2) };
        match start {
            Some(start) if start < end => {
                self.free = ends.next().unwrap_or(end);
                if !counts_all {
                    self.line += self.returned - 1;
                    self.counted = start;
                }
                self.returned = 0;
            }
            _ => {
                let passed = scan::count_ends(&self.content[fresh..]);
                self.returned -= passed;
                self.free = end;
                if !counts_all {
                    self.line += passed;
                    self.counted = end;
                }
            }
        }
    }

    /// Leaves a window, so that its buffer can be reused.
    pub(super) fn leave(&mut self, window: &Window) {
        self.content = Bytes::new();
        let Some(next) = window.next else { return };
        if self.counted < next {
            self.line += scan::count_ends(&window.content[self.counted..next]);
            self.counted = next;
        }
        self.counted -= next;
        self.free = self.free.saturating_sub(next);
        self.passed = self.passed.map(|end| end.saturating_sub(next));
        FileOutcome::detach(&mut self.lines[self.detached..]);
        self.detached = self.lines.len();
    }

    /// Returns how many lines were counted.
    pub(crate) fn lines_passed(&self) -> usize {
        self.line - 1
    }

    /// Adds a line of a part that was searched on its own.
    pub(crate) fn add(&mut self, mut line: GrepLine) {
        line.line += self.line - 1;
        self.keep(line);
    }

    fn keep(&mut self, line: GrepLine) {
        self.text_bytes += line.text.len();
        self.lines.push(line);
    }

    /// Returns whether the size limit is reached, so that no further match fits.
    pub(super) fn is_full(&self) -> bool {
        self.text_bytes >= TEXT_BYTES_MAX
    }

    /// Skips the lines of such a part.
    pub(crate) fn skip_lines(&mut self, lines: usize) {
        self.line += lines;
    }

    /// Returns whether a hit ends at or before a line.
    pub(super) fn ends_at_or_before(&self, hit: &Hit, line: usize) -> bool {
        self.line + scan::count_ends(&self.content[self.counted..hit.end - 1]) <= line
    }

    /// Skips a hit that an earlier call returned.
    pub(super) fn pass(&mut self, hit: &Hit) {
        self.count_to(hit.start);
        self.free = self.free.max(hit.end);
        self.owed = self.of.after;
        self.passed = Some(hit.end);
    }

    /// Adds a hit, preceded by its context.
    pub(super) fn push(&mut self, hit: &Hit) {
        let mut start = hit.start;
        for _ in 0..self.of.before {
            if start <= self.free {
                break;
            }
            start = memrchr(b'\n', &self.content[..start - 1]).map_or(0, |at| at + 1);
        }
        self.context(start.max(self.free), hit.start, usize::MAX);
        let text = self.text(hit.start, hit.end);
        let ranges = match (self.of.invert, self.of.multiline) {
            (true, _) => Vec::new(),
            (false, false) => self.of.ranges(&text),
            (false, true) => {
                let mut ranges = Vec::new();
                let within = |at: usize| (at - hit.start).min(text.len());
                hit.matches.iter().for_each(|found| push_range(&mut ranges, within(found.start())..within(found.end())));
                ranges
            }
        };
        self.count_to(hit.start);
        self.keep(self.line_of(hit.start, text, ranges, true));
        self.free = hit.end;
        self.owed = self.of.after;
        self.passed = None;
    }

    /// Adds the context that follows the last match, up to the next hit or the end of the window.
    pub(super) fn give_context(&mut self, next: usize) {
        match self.passed {
            Some(mut end) => {
                while self.owed > 0 && end < next {
                    end = line_end(&self.content, end);
                    self.owed -= 1;
                }
                self.passed = Some(end);
                self.free = self.free.max(end);
            }
            None => self.owed -= self.context(self.free, next, self.owed),
        }
    }

    pub(super) fn owes_context(&self) -> bool {
        self.owed > 0 && self.passed.is_none()
    }

    /// Adds up to `count` lines of context from `start` on. Returns how many were added.
    fn context(&mut self, start: usize, end: usize, count: usize) -> usize {
        let (mut at, mut given) = (start, 0);
        while given < count && at < end {
            let next = line_end(&self.content, at);
            self.count_to(at);
            self.keep(self.line_of(at, self.text(at, next), Vec::new(), false));
            at = next;
            given += 1;
        }
        self.free = self.free.max(at);
        given
    }

    fn line_of(&self, start: usize, text: Bytes, ranges: Vec<Range<usize>>, is_match: bool) -> GrepLine {
        GrepLine::new(self.line, (self.origin + start) as u64, text, ranges, is_match)
    }

    fn text(&self, start: usize, end: usize) -> Bytes {
        let length = trim_terminator(&self.content[start..end]).len();
        self.content.slice(start..start + length)
    }

    fn count_to(&mut self, at: usize) {
        self.line += scan::count_ends(&self.content[self.counted..at]);
        self.counted = at;
    }
}

/// Adds the range of a match. An empty range is kept only if it is the sole one, as it shows nothing but a position.
pub(super) fn push_range(ranges: &mut Vec<Range<usize>>, range: Range<usize>) {
    match ranges.last() {
        Some(_) if range.is_empty() => {}
        Some(last) if last.is_empty() => ranges[0] = range,
        _ => ranges.push(range),
    }
}
