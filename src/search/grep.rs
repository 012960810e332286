//! Lines within one content, and the collection of what many files gave.
//!
//! A line matches when the pattern matches its text, taken alone and without its terminator. To find lines fast the pattern is
//! searched for in the content as a whole first (ripgrep's matcher, compiled so that no match crosses a line), and only a line
//! that it points at is looked at by itself. With `multiline` the content is matched as a whole and a match covers the lines
//! it touches.

use crate::error::{Error, ErrorRecord, Result};
use crate::file::is_binary;
use crate::ops::{CaseMode, Failure, GrepCursor, GrepFile, GrepLine, GrepOptions, GrepOutput, GrepResult, Truncation, TruncationReason};
use crate::path::{VfsPath, VfsPathBuf};
use crate::text::trim_terminator;
use bytes::Bytes;
use grep_matcher::{LineMatchKind, Match, Matcher, NoError};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use memchr::{memchr, memchr_iter, memrchr};
use std::cmp::Ordering;
use std::ops::{ControlFlow, Range};

/// The longest pattern in bytes.
pub const PATTERN_BYTES_MAX: usize = 64 * 1024;

/// How many ranges of matches within one line are returned at most.
pub const LINE_RANGES_MAX: usize = 1000;

/// How large a compiled expression may be in bytes.
const COMPILED_BYTES_MAX: usize = 10 << 20;

/// How many bytes a search may use to remember states of the expression, for each thread.
const STATES_BYTES_MAX: usize = 32 << 20;

/// A compiled grep pattern with what it returns of each file.
#[derive(Debug, Clone)]
pub struct GrepMatcher {
    matcher: RegexMatcher,
    /// Whether a match may span lines.
    multiline: bool,
    invert: bool,
    binary: bool,
    before: usize,
    after: usize,
    size_max_bytes: Option<u64>,
    output: GrepOutput,
    matches_max: usize,
    file_matches_max: usize,
    start_after: Option<GrepCursor>,
}

/// What one file gave.
#[derive(Debug)]
#[non_exhaustive]
pub enum FileOutcome {
    /// It was searched: how many lines match, and the lines (matches and context) when content is returned.
    Searched {
        /// How many matching lines were seen (of a search for files, at most 1); when content is returned, those among `lines`.
        count: usize,
        /// The lines.
        lines: Vec<GrepLine>,
        /// Whether the limit of the whole search ended it within the file with more matches to come.
        cut: bool,
    },
    /// It is binary and was skipped.
    Binary,
    /// It is over the size limit and was skipped.
    TooLarge,
    /// It could not be read.
    Failed(Error),
    /// It went away before it could be read, or lies before the cursor; not counted.
    Gone,
}

impl GrepMatcher {
    /// Compiles the pattern.
    ///
    /// Literal text that holds a line break turns `multiline` on by itself, and each of its line breaks meets `\n` and `\r\n`, as
    /// in an edit. The empty text matches every line. In an expression `.` matches any character of a line, and `^` and `$` match
    /// at the ends of its text (so `$` stands before `\r\n`), and around a `\r` within it. With `multiline`, `.` matches no line
    /// break unless the expression says `(?s)`.
    ///
    /// Cost: microseconds for literal text, up to milliseconds for Unicode classes. Compile once for all files.
    ///
    /// # Errors
    /// `invalid_argument` for a malformed or too large expression, one that names a line break without `multiline`, and a pattern
    /// over [`PATTERN_BYTES_MAX`].
    pub fn compile(options: &GrepOptions) -> Result<Self> {
        if options.pattern.len() > PATTERN_BYTES_MAX {
            return Err(Error::invalid_argument(format!("the pattern is over {PATTERN_BYTES_MAX} bytes; search for a part of it")));
        }
        let spans_lines = !options.regex && options.pattern.contains('\n');
        let multiline = options.multiline || spans_lines;
        let mut builder = RegexMatcherBuilder::new();
        builder
            .case_insensitive(options.case == CaseMode::Insensitive)
            .case_smart(options.case == CaseMode::Smart)
            .word(options.word)
            .whole_line(options.whole_line)
            .fixed_strings(!options.regex && !spans_lines)
            .multi_line(true)
            .crlf(true)
            .line_terminator((!multiline).then_some(b'\n'))
            // Within a line `.` must match a `\r`, which it does not where line breaks are `\r\n`; the terminator is taken out of it.
            .dot_matches_new_line(!multiline)
            .size_limit(COMPILED_BYTES_MAX)
            .dfa_size_limit(STATES_BYTES_MAX);
        let matcher = if spans_lines { builder.build(&literal_over_lines(&options.pattern)) } else { builder.build(&options.pattern) }
            .map_err(|error| malformed(&options.pattern, &error))?;
        Ok(Self {
            matcher,
            multiline,
            invert: options.invert,
            binary: options.binary,
            before: options.before,
            after: options.after,
            size_max_bytes: options.size_max_bytes,
            output: options.output,
            matches_max: options.matches_max,
            file_matches_max: options.file_matches_max.unwrap_or(usize::MAX),
            start_after: options.start_after.clone(),
        })
    }

    /// Searches one content. Shares it: no line is copied. Checks the size limit and for binary content itself. Context is cut
    /// to this file. `path` tells whether the cursor of the options lies in it.
    ///
    /// Cost: one pass over the content, two when binary content is skipped; a search for files ends at the first match.
    pub fn search(&self, path: &VfsPath, content: &Bytes) -> FileOutcome {
        let after_line = match self.start_after.as_ref().map(|cursor| (path.cmp(&cursor.path), cursor.line)) {
            Some((Ordering::Less, _) | (Ordering::Equal, GrepCursor::END)) => return FileOutcome::Gone,
            Some((Ordering::Equal, line)) => line,
            Some((Ordering::Greater, _)) | None => 0,
        };
        if self.size_max_bytes.is_some_and(|max| content.len() as u64 > max) {
            return FileOutcome::TooLarge;
        }
        if !self.binary && is_binary(content) {
            return FileOutcome::Binary;
        }
        match self.output {
            GrepOutput::Content => self.search_content(content, after_line),
            GrepOutput::Files => self.count(content, self.file_matches_max.min(1)),
            GrepOutput::Counts => self.count(content, self.file_matches_max),
        }
    }

    fn count(&self, content: &Bytes, limit: usize) -> FileOutcome {
        let mut hits = Hits::new(self, content, 0);
        let mut count = 0;
        while count < limit && hits.next().is_some() {
            count += 1;
        }
        FileOutcome::Searched { count, lines: Vec::new(), cut: false }
    }

    fn search_content(&self, content: &Bytes, after_line: usize) -> FileOutcome {
        // What was returned before counts for the limit of the file, and where matches span lines each depends on those before.
        let skips = after_line > 1 && !self.multiline && self.file_matches_max == usize::MAX;
        let mut page = Page::new(self, content);
        if skips {
            page.pass_lines(after_line - 1);
        }
        let mut hits = Hits::new(self, content, page.counted);
        let (mut seen, mut count, mut cut) = (0, 0, false);
        let mut before_cursor = after_line > 0;
        while seen < self.file_matches_max {
            let Some(hit) = hits.next() else { break };
            page.end_context(hit.start);
            before_cursor = before_cursor && page.ends_by(&hit, after_line);
            if before_cursor {
                page.pass(&hit);
            } else if count == self.matches_max {
                cut = true;
                break;
            } else {
                page.push(&hit);
                count += 1;
            }
            seen += 1;
        }
        if !cut && page.owes_context() {
            // Context ends before the next line that matches, though it is over the limit.
            page.end_context(hits.next().map_or(content.len(), |hit| hit.start));
        }
        FileOutcome::Searched { count, lines: page.lines, cut }
    }

    fn is_match(&self, text: &[u8]) -> bool {
        infallible(self.matcher.is_match(text))
    }

    /// Finds the matches in the text of one line.
    fn ranges(&self, text: &[u8]) -> Vec<Range<usize>> {
        let mut ranges = Vec::new();
        infallible(self.matcher.find_iter(text, |found| {
            push_range(&mut ranges, found.start()..found.end());
            ranges.len() < LINE_RANGES_MAX
        }));
        ranges
    }
}

/// Writes literal text of several lines as an expression whose line breaks meet both endings.
fn literal_over_lines(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(|line| regex::escape(line.strip_suffix('\r').unwrap_or(line))).collect();
    lines.join(r"\r?\n")
}

/// Adds the range of a match. An empty one stands only where there is no other: as a place it tells nothing else.
fn push_range(ranges: &mut Vec<Range<usize>>, range: Range<usize>) {
    if ranges.last().is_some_and(Range::is_empty) {
        ranges.pop();
    } else if range.is_empty() && !ranges.is_empty() {
        return;
    }
    ranges.push(range);
}

fn malformed(pattern: &str, error: &grep_regex::Error) -> Error {
    let shown: String = pattern.chars().take(100).collect();
    let more = if shown.len() < pattern.len() { "..." } else { "" };
    let problem = match error.kind() {
        grep_regex::ErrorKind::NotAllowed(_) => "it names a line break; set multiline to match over lines".to_owned(),
        grep_regex::ErrorKind::Regex(message) if message.contains("size limit") => {
            "it is too large when compiled; repeat less or split it".to_owned()
        }
        // The parser draws the expression; what is wrong stands in its last line.
        grep_regex::ErrorKind::Regex(message) => {
            let last = message.lines().last().unwrap_or_default();
            format!("{}; escape what is meant literally, or search for literal text", last.strip_prefix("error: ").unwrap_or(last))
        }
        _ => "it cannot be compiled".to_owned(),
    };
    Error::invalid_argument(format!("the expression `{shown}{more}` is malformed: {problem}"))
}

fn infallible<T>(result: Result<T, NoError>) -> T {
    result.unwrap_or_else(|error| unreachable!("a matcher that cannot fail did: {error}"))
}

/// Lines that match: from the start of the first to the end of the last, terminator included.
#[derive(Debug)]
struct Hit {
    start: usize,
    end: usize,
    /// Where the matches lie in the content, when they span lines.
    matches: Vec<Match>,
}

/// The hits of a content in order.
struct Hits<'a> {
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
    fn new(of: &'a GrepMatcher, content: &'a [u8], at: usize) -> Self {
        let spans = of.multiline.then_some(Spans { matcher: &of.matcher, content, at: 0, last_end: None, pending: None });
        Self { of, content, at, spans, barrier: None }
    }

    fn next(&mut self) -> Option<Hit> {
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
            let (place, is_sure) = match is_fast.then(|| infallible(self.of.matcher.find_candidate_line(&self.content[self.at..]))) {
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
        while let Some(next) = self.next_match() {
            if next.start >= hit.end {
                self.pending = Some(next);
                break;
            }
            hit.end = next.end;
            if hit.matches.len() < LINE_RANGES_MAX {
                hit.matches.extend(next.matches);
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
fn line_end(content: &[u8], at: usize) -> usize {
    memchr(b'\n', &content[at..]).map_or(content.len(), |found| at + found + 1)
}

/// The lines of one file as they are returned, with their context.
///
/// Pages laid end to end are the whole: each line of context is given once, after the match it follows if it is near enough to
/// it, and otherwise before the next.
struct Page<'a> {
    of: &'a GrepMatcher,
    content: &'a Bytes,
    lines: Vec<GrepLine>,
    /// How far lines were counted: the start of line `line`.
    counted: usize,
    line: usize,
    /// Where what may be returned starts: after what was.
    free: usize,
    /// How many lines of context the last match is still owed.
    owed: usize,
    /// Whether the last match was returned by an earlier call, and its context with it.
    passed: bool,
}

impl<'a> Page<'a> {
    fn new(of: &'a GrepMatcher, content: &'a Bytes) -> Self {
        Self { of, content, lines: Vec::new(), counted: 0, line: 1, free: 0, owed: 0, passed: false }
    }

    /// Starts after some lines of the content.
    fn pass_lines(&mut self, count: usize) {
        self.counted = memchr_iter(b'\n', self.content).nth(count - 1).map_or(self.content.len(), |at| at + 1);
        self.line = count + 1;
        self.free = self.counted;
    }

    /// Tells whether the last line of a hit is at or before a line.
    fn ends_by(&self, hit: &Hit, line: usize) -> bool {
        self.line + memchr_iter(b'\n', &self.content[self.counted..hit.end - 1]).count() <= line
    }

    /// Passes a hit that was returned before.
    fn pass(&mut self, hit: &Hit) {
        self.count_to(hit.start);
        self.free = hit.end;
        self.owed = self.of.after;
        self.passed = true;
    }

    /// Adds a hit with the context before it.
    fn push(&mut self, hit: &Hit) {
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
        self.passed = false;
    }

    /// Gives the last match the context it is owed, up to the next hit.
    fn end_context(&mut self, next: usize) {
        let owed = std::mem::take(&mut self.owed);
        if self.passed {
            for _ in 0..owed {
                if self.free >= next {
                    break;
                }
                self.free = line_end(self.content, self.free);
            }
        } else if owed > 0 {
            self.context(self.free, next, owed);
        }
    }

    fn owes_context(&self) -> bool {
        self.owed > 0 && !self.passed
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

/// Collects outcomes in path order up to the limits.
///
/// Collecting goes on after the limit is reached until one more match proves that there is more: a result that says it was cut
/// was cut. The cursor of a cut result gives exactly the rest.
#[derive(Debug)]
pub struct GrepCollector {
    output: GrepOutput,
    after: usize,
    /// How many lines or files may still be added.
    left: usize,
    result: GrepResult,
}

impl GrepCollector {
    /// Starts a collection under the limits of the options.
    pub fn new(options: &GrepOptions) -> Self {
        Self { output: options.output, after: options.after, left: options.matches_max, result: GrepResult::default() }
    }

    /// Adds the outcome of the next file in path order; `Break` when the limit is reached and the walk can stop.
    pub fn push(&mut self, path: VfsPathBuf, outcome: FileOutcome) -> ControlFlow<()> {
        if self.result.truncated.is_some() {
            return ControlFlow::Break(());
        }
        match outcome {
            FileOutcome::Gone => {}
            FileOutcome::Binary => self.result.files_binary += 1,
            FileOutcome::TooLarge => self.result.files_too_large += 1,
            FileOutcome::Failed(error) => self.result.push_failure(Failure { path, error: ErrorRecord::from(&error) }),
            FileOutcome::Searched { count: 0, cut: false, .. } => self.result.files_searched += 1,
            // There is more and no place for it: the rest starts with this file.
            FileOutcome::Searched { .. } if self.left == 0 => return self.truncate(path, 0),
            FileOutcome::Searched { count, lines, cut } => {
                self.result.files_searched += 1;
                return match self.output {
                    GrepOutput::Content => self.push_lines(path, count, lines, cut),
                    GrepOutput::Files | GrepOutput::Counts => {
                        self.left -= 1;
                        self.result.files.push(GrepFile::new(path, count, Vec::new()));
                        ControlFlow::Continue(())
                    }
                };
            }
        }
        ControlFlow::Continue(())
    }

    fn push_lines(&mut self, path: VfsPathBuf, count: usize, mut lines: Vec<GrepLine>, cut: bool) -> ControlFlow<()> {
        let kept = count.min(self.left);
        let cut = cut || kept < count;
        let mut last = 0;
        if kept < count {
            let mut matches = 0;
            let end = lines.iter().position(|line| {
                if line.is_match {
                    matches += 1;
                    if matches <= kept {
                        last = last_line(line);
                    }
                }
                // Context near enough to the last match kept is its own; the other leads up to the next.
                matches > kept || (matches == kept && !line.is_match && line.line - last > self.after)
            });
            lines.truncate(end.unwrap_or(lines.len()));
        } else if let Some(line) = lines.iter().rfind(|line| line.is_match) {
            last = last_line(line);
        }
        self.left -= kept;
        self.result.files.push(GrepFile::new(path.clone(), kept, lines));
        if cut { self.truncate(path, last) } else { ControlFlow::Continue(()) }
    }

    fn truncate(&mut self, path: VfsPathBuf, line: usize) -> ControlFlow<()> {
        let cursor = GrepCursor { path, line }.to_string();
        self.result.truncated = Some(Truncation { reason: TruncationReason::Limit, cursor });
        ControlFlow::Break(())
    }

    /// Returns the result.
    pub fn finish(self) -> GrepResult {
        self.result
    }
}

/// Returns the number of the last line that a match covers.
fn last_line(line: &GrepLine) -> usize {
    line.line + memchr_iter(b'\n', &line.text).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> VfsPathBuf {
        VfsPathBuf::parse(text).expect("a legal path")
    }

    fn lines(options: &GrepOptions, content: &str) -> Vec<GrepLine> {
        let matcher = GrepMatcher::compile(options).expect("a legal pattern");
        match matcher.search(&path("/f"), &Bytes::copy_from_slice(content.as_bytes())) {
            FileOutcome::Searched { lines, .. } => lines,
            other => panic!("not searched: {other:?}"),
        }
    }

    /// Draws lines as ripgrep does: `12:text` for a match, `12-text` for context.
    fn drawn(options: &GrepOptions, content: &str) -> Vec<String> {
        let draw = |line: &GrepLine| format!("{}{}{}", line.line, if line.is_match { ':' } else { '-' }, line.text_lossy());
        lines(options, content).iter().map(draw).collect()
    }

    #[test]
    fn finds_lines() {
        let content = "fn main() {\r\n    let x = 1;\r\n\n    Let xx = 2; \n}";
        for (options, expected) in [
            (GrepOptions::new("let"), &["2:    let x = 1;"][..]),
            (GrepOptions::new("let").with_case(CaseMode::Insensitive), &["2:    let x = 1;", "4:    Let xx = 2; "]),
            (GrepOptions::new("let").with_case(CaseMode::Smart), &["2:    let x = 1;", "4:    Let xx = 2; "]),
            (GrepOptions::new("Let").with_case(CaseMode::Smart), &["4:    Let xx = 2; "]),
            (GrepOptions::new("x").with_word(true), &["2:    let x = 1;"]),
            (GrepOptions::new("}").with_whole_line(true), &["5:}"]),
            (GrepOptions::regex("^fn.*\\{$"), &["1:fn main() {"]),
            (GrepOptions::regex("^$"), &["3:"]),
            (GrepOptions::regex(r";\s+$"), &["4:    Let xx = 2; "]),
            (GrepOptions::regex(r"\Afn|\}\z"), &["1:fn main() {", "5:}"]),
            (GrepOptions::regex("e").with_invert(true), &["1:fn main() {", "3:", "5:}"]),
            (GrepOptions::new("(").with_context(1, 1), &["1:fn main() {", "2-    let x = 1;"]),
            (GrepOptions::new("}").with_context(2, 9), &["3-", "4-    Let xx = 2; ", "5:}"]),
            (GrepOptions::new(""), &["1:fn main() {", "2:    let x = 1;", "3:", "4:    Let xx = 2; ", "5:}"]),
            (GrepOptions::new("\r"), &[]),
            (GrepOptions::new("{\n    let"), &["1:fn main() {\r\n    let x = 1;"]),
            (GrepOptions::regex(r"1;\s+Let").with_multiline(true), &["2:    let x = 1;\r\n\n    Let xx = 2; "]),
            (GrepOptions::regex("x").with_file_matches_max(1).with_context(0, 5), &["2:    let x = 1;", "3-"]),
        ] {
            assert_eq!(drawn(&options, content), expected, "{options:?}");
        }
    }
}
