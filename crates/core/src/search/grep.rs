//! Finds matching lines in one file's content.
//!
//! A line matches if the pattern matches its text alone, without the line terminator. For speed, the pattern first searches the
//! content as a whole (with ripgrep's matcher, compiled so that no match crosses a line), and only candidate lines are checked on
//! their own. With `multiline`, the pattern matches the content as a whole, and a match covers all the lines it touches.

use super::encoding;
use super::expression::Expression;
use super::hits::{MATCHES_MAX, infallible};
use super::page::push_range;
use super::seeker::Seeker;
use crate::error::{Error, Result};
use crate::file::{BINARY_PROBE_BYTES, is_binary};
use crate::ops::{Encoding, GrepCursor, GrepLine, GrepOptions, GrepOutput};
use crate::path::VfsPath;
use crate::work;
use bytes::Bytes;
use grep_matcher::Matcher;
use grep_regex::RegexMatcher;
use memchr::memmem::Finder;
use memchr::memrchr;
use std::cmp::Ordering;
use std::ops::Range;

pub use super::expression::PATTERN_BYTES_MAX;

/// The most match ranges returned for one line.
pub const LINE_RANGES_MAX: usize = MATCHES_MAX;

/// A compiled grep pattern, with the options that determine what it returns.
#[derive(Debug, Clone)]
pub struct GrepMatcher {
    pub(super) matcher: RegexMatcher,
    /// Finds plain text without the expression. The expression has scratch space that threads share and would have to take and
    /// give back for each file.
    pub(super) plain: Option<Finder<'static>>,
    /// Whether a match may span lines.
    pub(super) multiline: bool,
    /// The most bytes that the expression may search in one call, which cannot be interrupted: a whole content if matches span lines,
    /// else one line.
    call_bytes_max: usize,
    pub(super) invert: bool,
    binary: bool,
    encoding: Encoding,
    pub(super) before: usize,
    pub(super) after: usize,
    size_max_bytes: Option<u64>,
    pub(super) output: GrepOutput,
    pub(super) matches_max: usize,
    pub(super) file_matches_max: usize,
    start_after: Option<GrepCursor>,
}

/// The outcome of one file.
#[derive(Debug)]
#[non_exhaustive]
pub enum FileOutcome {
    /// The file was searched.
    Searched {
        /// The number of matching lines: at most 1 in a search for files, and the number among `lines` if content is returned.
        count: usize,
        /// The lines, matches and context, if content is returned.
        lines: Vec<GrepLine>,
        /// Whether the limit of the whole search was reached within this file, with more matches to come.
        cut: bool,
    },
    /// The file is binary and was skipped.
    Binary,
    /// The file exceeds the size limit and was skipped.
    TooLarge,
    /// The file could not be read.
    Failed(Error),
    /// The file was removed before it could be read, or comes before the cursor. It is not counted.
    Gone,
}

impl FileOutcome {
    /// Copies the text of its lines, so that the content they share can be freed.
    ///
    /// For tiers that read content only to search it: otherwise a single matching line would keep the whole file in memory for as
    /// long as the result lives.
    #[must_use]
    pub fn detached(mut self) -> Self {
        if let Self::Searched { lines, .. } = &mut self {
            Self::detach(lines);
        }
        self
    }

    /// Copies the text of lines.
    pub(super) fn detach(lines: &mut [GrepLine]) {
        if lines.is_empty() {
            return;
        }
        let mut texts = Vec::with_capacity(lines.iter().map(|line| line.text.len()).sum());
        lines.iter().for_each(|line| texts.extend_from_slice(&line.text));
        let texts = Bytes::from(texts);
        let mut start = 0;
        for line in lines {
            let end = start + line.text.len();
            line.text = texts.slice(start..end);
            start = end;
        }
    }
}

impl GrepMatcher {
    /// Compiles the pattern.
    ///
    /// Literal text with a line break implies `multiline`, and its line breaks match both `\n` and `\r\n`, as in an edit. Empty
    /// text matches every line. In an expression, `.` matches any character of a line; `^` and `$` match at the ends of the text
    /// of a line (so `$` matches before `\r\n`), and next to a `\r` within it. With `multiline`, `.` does not match a line break
    /// unless the expression says `(?s)`. A byte order mark is ordinary text.
    ///
    /// Cost: microseconds for literal text, up to milliseconds for Unicode classes. Compile once for all files.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for a malformed or too large expression, for one that
    /// contains a line break without `multiline`, and for a pattern over [`PATTERN_BYTES_MAX`].
    pub fn compile(options: &GrepOptions) -> Result<Self> {
        let expression = Expression::of(options);
        let multiline = expression.is_multiline();
        let plain = expression.plain_text().map(|text| Finder::new(text).into_owned());
        let call_bytes_max = expression.call_bytes_max();
        let matcher = expression.compile()?;
        Ok(Self {
            matcher,
            plain,
            multiline,
            call_bytes_max,
            invert: options.invert,
            binary: options.binary,
            encoding: options.encoding,
            before: options.before,
            after: options.after,
            size_max_bytes: options.size_max_bytes,
            output: options.output,
            matches_max: options.matches_max,
            file_matches_max: options.file_matches_max.unwrap_or(usize::MAX),
            start_after: options.start_after.clone(),
        })
    }

    /// Searches the content of one file: checks the size limit, decodes it, and detects binary content. Returned lines share the
    /// content without copying (see [`FileOutcome::detached`]), and context stays within this file. `path` determines whether the
    /// cursor of the options is in this file.
    ///
    /// Cost: one pass over the content, plus one if it is decoded and one if binary content is to be skipped. A search for files
    /// stops at the first match.
    pub fn search(&self, path: &VfsPath, content: &Bytes) -> FileOutcome {
        self.search_if_text(|| path, content, || is_binary(content))
    }

    /// Like [`search`](Self::search), for tiers that remember whether the content is binary, or that build its path only if
    /// needed.
    pub fn search_if_text<P: AsRef<VfsPath>>(
        &self,
        path: impl FnOnce() -> P,
        content: &Bytes,
        is_binary: impl Fn() -> bool,
    ) -> FileOutcome {
        let Some(after_line) = self.after_line(path) else { return FileOutcome::Gone };
        if self.is_too_large(content.len() as u64) {
            return FileOutcome::TooLarge;
        }
        let decoded = (self.encoding != Encoding::Bytes).then(|| encoding::decoded(content, self.encoding));
        let text = decoded.as_ref().unwrap_or(content);
        if self.is_beyond_one_call(text) {
            return if self.skips(text) { FileOutcome::Binary } else { FileOutcome::TooLarge };
        }
        // The remembered answer is about the bytes as stored.
        let skips = || if decoded.is_some() { self.skips(text) } else { !self.binary && is_binary() };
        // Whichever pass comes first waits for memory. The search overlaps this with more work, so it goes first if the binary
        // check reads as much as it does; both together then take little longer than the search alone.
        let is_tested_as_a_whole = text.len() <= BINARY_PROBE_BYTES;
        if !is_tested_as_a_whole && skips() {
            return FileOutcome::Binary;
        }
        // Search large content in a single pass.
        let outcome = if is_tested_as_a_whole && self.certainly_has_no_match(text) {
            FileOutcome::Searched { count: 0, lines: Vec::new(), cut: false }
        } else {
            let mut seeker = Seeker::new(self, after_line);
            seeker.push_whole(text);
            seeker.finish()
        };
        if is_tested_as_a_whole && skips() { FileOutcome::Binary } else { outcome }
    }

    /// Returns true if certainly no line of the text matches. Only answers where this is faster than a full search.
    fn certainly_has_no_match(&self, text: &[u8]) -> bool {
        !self.invert && self.plain.as_ref().is_some_and(|plain| plain.find(text).is_none())
    }

    /// Returns the outcome of content in which no line matches.
    pub fn search_without_matches<P: AsRef<VfsPath>>(&self, path: impl FnOnce() -> P) -> FileOutcome {
        self.seek(path).map_or(FileOutcome::Gone, Seeker::finish)
    }

    /// Starts searching the content of one file, unless the file comes before the cursor of the options.
    pub fn seek<P: AsRef<VfsPath>>(&self, path: impl FnOnce() -> P) -> Option<Seeker<'_>> {
        Some(Seeker::new(self, self.after_line(path)?))
    }

    /// Returns the line of a file after which the search continues by the cursor of the options, or `None` if the cursor is past
    /// the whole file.
    fn after_line<P: AsRef<VfsPath>>(&self, path: impl FnOnce() -> P) -> Option<usize> {
        match self.start_after.as_ref().map(|cursor| (path().as_ref().cmp(&cursor.path), cursor.line)) {
            Some((Ordering::Less, _) | (Ordering::Equal, GrepCursor::END)) => None,
            Some((Ordering::Equal, line)) => Some(line),
            Some((Ordering::Greater, _)) | None => Some(0),
        }
    }

    /// Returns whether content of this size is skipped.
    pub fn is_too_large(&self, size_bytes: u64) -> bool {
        self.size_max_bytes.is_some_and(|max| size_bytes > max)
    }

    /// Returns whether the expression would have to search more in one call than it may: some text whose matches span lines, or a long
    /// line. Such content is skipped as too large. Plain text is found in interruptible steps, however long its lines are.
    pub fn is_beyond_one_call(&self, text: &[u8]) -> bool {
        if text.len() <= self.call_bytes_max || self.plain.is_some() {
            return false;
        }
        self.multiline || has_line_over(text, self.call_bytes_max)
    }

    /// Returns whether content that starts with these raw bytes is skipped as binary. False if it must be decoded first.
    pub fn skips_undecoded(&self, start: &[u8]) -> bool {
        !encoding::is_decoded(start, self.encoding) && self.skips(start)
    }

    /// Returns how to decode content that is searched in windows.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Returns whether text that starts like this is skipped as binary.
    pub fn skips(&self, start: &[u8]) -> bool {
        !self.binary && is_binary(start)
    }

    /// Returns whether content starts with a byte order mark, which is not part of the text.
    pub fn starts_with_mark(&self, start: &[u8]) -> bool {
        encoding::starts_with_mark(start, self.encoding)
    }

    /// Returns whether content can be searched in windows. Matches across lines do not allow it.
    pub fn supports_windows(&self) -> bool {
        !self.multiline
    }

    /// Returns how many lines of the previous window each window starts with.
    pub fn window_context(&self) -> usize {
        if self.output == GrepOutput::Content { self.before } else { 0 }
    }

    /// Returns whether the text of one line matches.
    pub(super) fn is_match(&self, text: &[u8]) -> bool {
        infallible(self.matcher.is_match(text))
    }

    /// Finds the matches in the text of one line.
    pub(super) fn ranges(&self, text: &[u8]) -> Vec<Range<usize>> {
        // Most lines have one match.
        let mut ranges = Vec::with_capacity(1);
        if let Some(plain) = &self.plain {
            let length = plain.needle().len();
            ranges.extend(plain.find_iter(text).take(LINE_RANGES_MAX).map(|at| at..at + length));
            return ranges;
        }
        infallible(self.matcher.find_iter(text, |found| {
            push_range(&mut ranges, found.start()..found.end());
            ranges.len() < LINE_RANGES_MAX
        }));
        ranges
    }
}

/// Returns whether a line is longer than this.
fn has_line_over(text: &[u8], bytes_max: usize) -> bool {
    let mut start = 0;
    // Searches backwards for the last line break that the longest line may have, so most of the text is skipped.
    while text.len() - start > bytes_max {
        let Some(end) = memrchr(b'\n', &text[start..=start + bytes_max]) else { return true };
        work::advance(bytes_max);
        start += end + 1;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::CaseMode;

    fn outcome(options: &GrepOptions, content: Vec<u8>) -> FileOutcome {
        let matcher = GrepMatcher::compile(options).expect("a legal pattern");
        matcher.search(VfsPath::ROOT, &Bytes::from(content))
    }

    /// Regression: one call of the expression searched the whole file, and nothing could stop it: `(?s-u)(a|b).{40000}z` takes 19 s for
    /// each MiB.
    #[test]
    fn file_is_too_large_if_a_large_expression_would_take_long_on_it() {
        let hostile = |lines: bool| GrepOptions::regex("(?s-u)(a|b)[^\\n]{40000}z").with_multiline(lines);
        let lines = |bytes: usize| b"ab c\n".iter().copied().cycle().take(bytes).collect::<Vec<u8>>();
        let line = |bytes: usize| vec![b'.'; bytes];
        let is_too_large = |options: &GrepOptions, content| matches!(outcome(options, content), FileOutcome::TooLarge);
        assert!(is_too_large(&hostile(true), lines(1 << 20)), "the whole content is one call");
        assert!(!is_too_large(&hostile(false), lines(1 << 20)), "each line is a call");
        assert!(is_too_large(&hostile(false), line(1 << 20)), "the line is one call");
        assert!(is_too_large(&hostile(false).with_invert(true), [lines(100), line(1 << 20), lines(100)].concat()));
        assert!(!is_too_large(&hostile(true), lines(64 << 10)));
        // Ordinary expressions search large files.
        for pattern in [r"use \w+::\{\n", r"(?s)fn main.*\}", r"a\s+b", "[a-z]+\n[A-Z]{3}"] {
            let options = GrepOptions::regex(pattern).with_multiline(true);
            assert!(!is_too_large(&options, lines(4 << 20)), "{pattern}");
        }
        assert!(!is_too_large(&GrepOptions::new("z"), line(80 << 20)), "plain text is found in steps");
        assert!(matches!(outcome(&hostile(true), vec![0; 1 << 20]), FileOutcome::Binary));
    }

    #[test]
    fn longest_line_is_found_wherever_it_stands() {
        for (text, longest) in [("", 0), ("abc", 3), ("abc\n", 3), ("a\nbcd\ne", 3), ("\n\n\nab", 2), ("abcd\nef\n", 4)] {
            for max in 1..6 {
                assert_eq!(has_line_over(text.as_bytes(), max), longest > max, "{text:?} {max}");
            }
        }
    }
    use crate::path::VfsPathBuf;

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

    /// Renders lines as ripgrep does: `12:text` for a match, `12-text` for context.
    fn drawn(options: &GrepOptions, content: &str) -> Vec<String> {
        let draw = |line: &GrepLine| format!("{}{}{}", line.line, if line.is_match { ':' } else { '-' }, line.text_lossy());
        lines(options, content).iter().map(draw).collect()
    }

    #[test]
    fn expression_may_end_with_comment() {
        assert_eq!(drawn(&GrepOptions::regex("(?x) b \\d # a digit"), "b1\nb\n# a digit\n"), ["1:b1"]);
        assert_eq!(drawn(&GrepOptions::regex("#\\d"), "#1\n"), ["1:#1"]);
        assert!(GrepMatcher::compile(&GrepOptions::regex("(#")).is_err());
    }

    #[test]
    fn multiline_matches_on_one_long_line_are_bounded() {
        // Each match scans the whole line, so without a bound this would take minutes.
        let content = format!("{}\nsecond A\n", "A".repeat(300_000));
        let found = lines(&GrepOptions::regex(".*[0-9]|[A-Z]").with_multiline(true), &content);
        assert_eq!(found.iter().map(|line| (line.line, line.ranges.len())).collect::<Vec<_>>(), [(1, LINE_RANGES_MAX), (2, 1)]);
    }

    #[test]
    fn chained_multiline_matches_form_one_match() {
        let content = format!("{}end\nother\n", "x,\n".repeat(LINE_RANGES_MAX + 1));
        let found = lines(&GrepOptions::regex(",\n.").with_multiline(true), &content);
        assert!(found.len() == 1 && found[0].text.ends_with(b",\nend"), "{}", found.len());
    }

    #[test]
    fn search_returns_matching_lines_and_context() {
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
            // Matches across lines are joined only if they touch the same line.
            (GrepOptions::regex("[n{]").with_multiline(true), &["1:fn main() {"]),
            (GrepOptions::regex("[({=]").with_multiline(true), &["1:fn main() {", "2:    let x = 1;", "4:    Let xx = 2; "]),
            (GrepOptions::regex("x").with_file_matches_max(1).with_context(0, 5), &["2:    let x = 1;", "3-"]),
        ] {
            assert_eq!(drawn(&options, content), expected, "{options:?}");
        }
    }
}
