//! Which lines of one content match.

use super::grep::GrepMatcher;
use crate::text::trim_terminator;
use grep_matcher::{LineMatchKind, Match, Matcher, NoError};
use grep_regex::RegexMatcher;
use memchr::{memchr, memrchr};

/// How many matches on the lines of one hit are kept at most.
pub(super) const MATCHES_MAX: usize = 1000;

/// Lines that match: from the start of the first to the end of the last, terminator included.
#[derive(Debug)]
pub(super) struct Hit {
    pub(super) start: usize,
    pub(super) end: usize,
    /// Where the matches lie in the content, when they span lines.
    pub(super) matches: Vec<Match>,
}

/// The hits of a content in order.
pub(super) struct Hits<'a> {
    of: &'a GrepMatcher,
    content: &'a [u8],
    /// Where the next line starts that is not yet decided.
    at: usize,
    /// The matches over lines, when they may span them.
    spans: Option<Spans<'a>>,
    /// When inverted: the next hit of the pattern, once it is known.
    barrier: Option<Option<(usize, usize)>>,
}

impl<'a> Hits<'a> {
    /// Starts at the start of a line.
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
                    // Looking for the pattern moves on; lines before what it finds come first.
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
        // Where the expression names the ends of the whole text, each line is a text: only one by one can tell.
        let is_fast = self.of.matcher.line_terminator().is_some();
        while self.at < self.content.len() {
            let rest = &self.content[self.at..];
            let candidate = match &self.of.plain {
                Some(plain) => Some(plain.find(rest).map(LineMatchKind::Confirmed)),
                None => is_fast.then(|| infallible(self.of.matcher.find_candidate_line(rest))),
            };
            let (place, is_sure) = match candidate {
                None => (self.at, false),
                Some(None) => break,
                Some(Some(LineMatchKind::Confirmed(offset))) => (self.at + offset, true),
                Some(Some(LineMatchKind::Candidate(offset))) => (self.at + offset, false),
            };
            let start = memrchr(b'\n', &self.content[..place]).map_or(0, |at| at + 1);
            let end = line_end(self.content, start);
            self.at = end;
            if start == end {
                // An empty match after the last line.
                break;
            }
            let line = &self.content[start..end];
            // A match within the line as stored may need its `\r`, which is no part of its text.
            if (is_sure && !line.ends_with(b"\r\n")) || self.of.is_match(trim_terminator(line)) {
                return Some(Hit { start, end, matches: Vec::new() });
            }
        }
        self.at = self.content.len();
        None
    }
}

/// The matches of a content as a whole, joined where they touch the same line.
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
                // Each match may take a look at all that follows, so what a long line takes must not grow with what it has of them.
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

    /// Finds the next match. An empty one right after the one before is passed over, as regular expressions do.
    fn find(&mut self) -> Option<Match> {
        while self.at <= self.content.len() {
            let found = infallible(self.matcher.find_at(self.content, self.at))?;
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

/// Returns where the line that holds a byte ends, its terminator included.
pub(super) fn line_end(content: &[u8], at: usize) -> usize {
    memchr(b'\n', &content[at..]).map_or(content.len(), |found| at + found + 1)
}

/// Takes what a matcher that cannot fail returns.
pub(super) fn infallible<T>(result: Result<T, NoError>) -> T {
    result.unwrap_or_else(|error| unreachable!("a matcher that cannot fail did: {error}"))
}
