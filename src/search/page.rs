//! The lines of one file as they are returned: matches and context, from the cursor on.

use super::grep::GrepMatcher;
use super::hits::{Hit, line_end};
use crate::ops::GrepLine;
use crate::text::trim_terminator;
use bytes::Bytes;
use memchr::{memchr_iter, memrchr};
use std::ops::Range;

/// The lines of one file as they are returned, with their context.
///
/// Pages laid end to end are the whole: each line of context is given once, after the match it follows if it is near enough to
/// it, and otherwise before the next.
pub(super) struct Page<'a> {
    of: &'a GrepMatcher,
    content: &'a Bytes,
    /// What is returned so far.
    pub(super) lines: Vec<GrepLine>,
    /// How far lines were counted: the start of line `line`.
    pub(super) counted: usize,
    line: usize,
    /// Where what may be returned starts: after what was.
    free: usize,
    /// How many lines of context the last match is still owed.
    owed: usize,
    /// Where the last match ends, when it was returned by an earlier call, and its context with it.
    passed: Option<usize>,
}

impl<'a> Page<'a> {
    pub(super) fn new(of: &'a GrepMatcher, content: &'a Bytes) -> Self {
        Self { of, content, lines: Vec::new(), counted: 0, line: 1, free: 0, owed: 0, passed: None }
    }

    /// Goes on after a line that was returned. Lines are counted from that line on when what stands before it does not matter.
    pub(super) fn resume(&mut self, after_line: usize, counts_all: bool) {
        let start = match after_line {
            0 | 1 => 0,
            line => memchr_iter(b'\n', self.content).nth(line - 2).map_or(self.content.len(), |at| at + 1),
        };
        if after_line > 0 {
            self.free = line_end(self.content, start);
        }
        if !counts_all {
            self.counted = start;
            self.line = after_line.max(1);
        }
    }

    /// Tells whether the last line of a hit is at or before a line.
    pub(super) fn ends_by(&self, hit: &Hit, line: usize) -> bool {
        self.line + memchr_iter(b'\n', &self.content[self.counted..hit.end - 1]).count() <= line
    }

    /// Passes a hit that was returned before.
    pub(super) fn pass(&mut self, hit: &Hit) {
        self.count_to(hit.start);
        self.free = self.free.max(hit.end);
        self.owed = self.of.after;
        self.passed = Some(hit.end);
    }

    /// Adds a hit with the context before it.
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
        self.lines.push(GrepLine::new(self.line, hit.start as u64, text, ranges, true));
        self.free = hit.end;
        self.owed = self.of.after;
        self.passed = None;
    }

    /// Gives the last match the context it is owed, up to the next hit.
    pub(super) fn end_context(&mut self, next: usize) {
        let owed = std::mem::take(&mut self.owed);
        match self.passed {
            Some(mut end) => {
                for _ in 0..owed {
                    if end >= next {
                        break;
                    }
                    end = line_end(self.content, end);
                }
                self.free = self.free.max(end);
            }
            None => self.context(self.free, next, owed),
        }
    }

    pub(super) fn owes_context(&self) -> bool {
        self.owed > 0 && self.passed.is_none()
    }

    /// Adds up to `count` lines of context from `start` on.
    fn context(&mut self, start: usize, end: usize, count: usize) {
        let mut at = start;
        for _ in 0..count {
            if at >= end {
                break;
            }
            let next = line_end(self.content, at);
            self.count_to(at);
            self.lines.push(GrepLine::new(self.line, at as u64, self.text(at, next), Vec::new(), false));
            at = next;
        }
        self.free = self.free.max(at);
    }

    fn text(&self, start: usize, end: usize) -> Bytes {
        let length = trim_terminator(&self.content[start..end]).len();
        self.content.slice(start..start + length)
    }

    fn count_to(&mut self, at: usize) {
        self.line += memchr_iter(b'\n', &self.content[self.counted..at]).count();
        self.counted = at;
    }
}

/// Adds the range of a match. An empty one is kept only where there is no other: it marks a place and shows nothing.
pub(super) fn push_range(ranges: &mut Vec<Range<usize>>, range: Range<usize>) {
    match ranges.last() {
        Some(_) if range.is_empty() => {}
        Some(last) if last.is_empty() => ranges[0] = range,
        _ => ranges.push(range),
    }
}
