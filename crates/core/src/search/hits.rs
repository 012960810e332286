//! Finds which lines of one content match.

use super::grep::GrepMatcher;
use crate::text::{scan, trim_terminator};
use crate::work::{self, LOOK_BYTES};
use grep_matcher::{LineMatchKind, Match, Matcher, NoError};
use grep_regex::RegexMatcher;
use memchr::{memchr, memrchr};

/// The most matches kept for one hit.
pub(super) const MATCHES_MAX: usize = 1000;

/// The fixed cost of a search with an expression, in addition to the bytes searched.
const EXPRESSION_BYTES: usize = 64;

/// Matching lines: from the start of the first line to the end of the last, including its terminator.
#[derive(Debug)]
pub(super) struct Hit {
    pub(super) start: usize,
    pub(super) end: usize,
    /// The match positions in the content, if matches may span lines.
    pub(super) matches: Vec<Match>,
}

/// Iterates over the hits of some content, in order.
pub(super) struct Hits<'a> {
    of: &'a GrepMatcher,
    content: &'a [u8],
    /// The start of the next undecided line.
    at: usize,
    /// Yields matches that may span lines.
    spans: Option<Spans<'a>>,
    /// If inverted: the next hit of the pattern, once it is known.
    barrier: Option<Option<(usize, usize)>>,
}

impl<'a> Hits<'a> {
    /// Starts at a position that begins a line.
    pub(super) fn new(of: &'a GrepMatcher, content: &'a [u8], at: usize) -> Self {
        let spans = of.multiline.then_some(Spans { matcher: &of.matcher, content, at: 0, last_end: None, pending: None });
        Self { of, content, at, spans, barrier: None }
    }

    pub(super) fn next(&mut self) -> Option<Hit> {
        if !self.of.invert {
            return self.next_of_pattern();
        }
        loop {
            if self.at >= self.content.len() {
                return None;
            }
            let (start, end) = match self.barrier {
                None => {
                    // Searching for the pattern advances `at`, but the lines before its next hit come first.
                    let at = self.at;
                    self.barrier = Some(self.next_of_pattern().map(|hit| (hit.start, hit.end)));
                    self.at = at;
                    continue;
                }
                Some(barrier) => barrier.unwrap_or((self.content.len(), self.content.len())),
            };
            if self.at < start {
                let line = self.at..line_end(self.content, self.at);
                self.at = line.end;
                return Some(Hit { start: line.start, end: line.end, matches: Vec::new() });
            }
            self.at = end;
            self.barrier = None;
        }
    }

    fn next_of_pattern(&mut self) -> Option<Hit> {
        match &mut self.spans {
            Some(spans) => spans.next(),
            None => self.next_line(),
        }
    }

    fn next_line(&mut self) -> Option<Hit> {
        // If the expression refers to the ends of the whole text, each line must be tested as a text of its own.
        let is_fast = self.of.matcher.line_terminator().is_some();
        while self.at < self.content.len() {
            let candidate = match &self.of.plain {
                Some(plain) => Some(scan::find(plain, &self.content[self.at..]).map(LineMatchKind::Confirmed)),
                None => is_fast.then(|| {
                    // Some whole lines at a time, as no match crosses a line.
                    let part = &self.content[self.at..part_end(self.content, self.at)];
                    let found = infallible(self.of.matcher.find_candidate_line(part));
                    let place = |found| match found {
                        LineMatchKind::Confirmed(at) | LineMatchKind::Candidate(at) => at,
                    };
                    // A match after the last line of a part is decided with the next part, which contains the text there.
                    let found = found.filter(|found| place(*found) < part.len() || self.at + part.len() == self.content.len());
                    work::advance(found.map_or(part.len(), place));
                    found
                }),
            };
            let (place, is_sure) = match candidate {
                None => (self.at, false),
                Some(None) if self.of.plain.is_none() => {
                    self.at = part_end(self.content, self.at);
                    continue;
                }
                Some(None) => break,
                Some(Some(LineMatchKind::Confirmed(offset))) => (self.at + offset, true),
                Some(Some(LineMatchKind::Candidate(offset))) => (self.at + offset, false),
            };
            let start = memrchr(b'\n', &self.content[..place]).map_or(0, |at| at + 1);
            let end = line_end(self.content, start);
            self.at = end;
            work::advance(end - start);
            if start == end {
                // An empty match after the last line.
                break;
            }
            let line = &self.content[start..end];
            // A match in the stored line may depend on its `\r`, which is not part of the text.
            if (is_sure && !line.ends_with(b"\r\n")) || self.of.is_match(trim_terminator(line)) {
                return Some(Hit { start, end, matches: Vec::new() });
            }
        }
        self.at = self.content.len();
        None
    }
}

/// Iterates over the matches of content as a whole, joining those that touch the same line.
struct Spans<'a> {
    matcher: &'a RegexMatcher,
    content: &'a [u8],
    at: usize,
    last_end: Option<usize>,
    pending: Option<Hit>,
}

impl Spans<'_> {
    fn next(&mut self) -> Option<Hit> {
        let mut hit = self.pending.take().or_else(|| self.next_match())?;
        let mut on_line = 1;
        while let Some(next) = self.next_match() {
            if next.start >= hit.end {
                self.pending = Some(next);
                break;
            }
            on_line = if next.end > hit.end { 1 } else { on_line + 1 };
            hit.end = next.end;
            if hit.matches.len() < MATCHES_MAX {
                hit.matches.extend(next.matches);
            }
            if on_line == MATCHES_MAX {
                // Each match may scan everything that follows, so bound the number of matches examined on one long line.
                self.at = self.at.max(hit.end);
                break;
            }
        }
        Some(hit)
    }

    fn next_match(&mut self) -> Option<Hit> {
        let found = self.find()?;
        let start = memrchr(b'\n', &self.content[..found.start()]).map_or(0, |at| at + 1);
        // An empty match after the last line is on no line.
        if start == self.content.len() {
            return None;
        }
        let last = if found.is_empty() { found.start() } else { found.end() - 1 };
        Some(Hit { start, end: line_end(self.content, last), matches: vec![found] })
    }

    /// Finds the next match. Like regular expressions, skips an empty one directly after the previous match.
    fn find(&mut self) -> Option<Match> {
        while self.at <= self.content.len() {
            work::advance(EXPRESSION_BYTES);
            let found = infallible(self.matcher.find_at(self.content, self.at))?;
            work::advance(found.end() - self.at);
            if found.is_empty() {
                self.at = found.end() + 1;
                if self.last_end == Some(found.end()) {
                    continue;
                }
            } else {
                self.at = found.end();
            }
            self.last_end = Some(found.end());
            return Some(found);
        }
        None
    }
}

/// Returns the end of the lines that start at a position and together have some length.
fn part_end(content: &[u8], at: usize) -> usize {
    if content.len() - at <= LOOK_BYTES { content.len() } else { line_end(content, at + LOOK_BYTES - 1) }
}

/// Returns the end of the line that contains a position, including its terminator.
pub(super) fn line_end(content: &[u8], at: usize) -> usize {
    memchr(b'\n', &content[at..]).map_or(content.len(), |found| at + found + 1)
}

/// Unwraps the result of a matcher that cannot fail.
pub(super) fn infallible<T>(result: Result<T, NoError>) -> T {
    result.unwrap_or_else(|error| unreachable!("an infallible matcher failed: {error}"))
}
