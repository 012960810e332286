//! Lines within one content.
//!
//! A line matches when the pattern matches its text, taken alone and without its terminator. To find lines fast the pattern is
//! searched for in the content as a whole first (ripgrep's matcher, compiled so that no match crosses a line), and only a line
//! that it points at is looked at by itself. With `multiline` the content is matched as a whole and a match covers the lines
//! it touches.

use super::encoding;
use super::expression::Expression;
use super::hits::{MATCHES_MAX, infallible};
use super::page::push_range;
use super::seeker::Seeker;
use crate::error::{Error, Result};
use crate::file::{BINARY_PROBE_BYTES, is_binary};
use crate::ops::{Encoding, GrepCursor, GrepLine, GrepOptions, GrepOutput};
use crate::path::VfsPath;
use bytes::Bytes;
use grep_matcher::Matcher;
use grep_regex::RegexMatcher;
use memchr::memmem::Finder;
use std::cmp::Ordering;
use std::ops::Range;

pub use super::expression::PATTERN_BYTES_MAX;

/// How many ranges of matches within one line are returned at most.
pub const LINE_RANGES_MAX: usize = MATCHES_MAX;

/// A compiled grep pattern with what it returns of each file.
#[derive(Debug, Clone)]
pub struct GrepMatcher {
    pub(super) matcher: RegexMatcher,
    /// Finds what the expression does, where that is plain text: the expression has scratch space that the threads share, and each
    /// file would take it and give it back.
    pub(super) plain: Option<Finder<'static>>,
    /// Whether a match may span lines.
    pub(super) multiline: bool,
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

impl FileOutcome {
    /// Copies the text of its lines, so that the content they share can go.
    ///
    /// For tiers that read a content only to search it: one matching line would otherwise keep the whole file in memory for as long
    /// as the result lives.
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
    /// Literal text that holds a line break turns `multiline` on by itself, and each of its line breaks meets `\n` and `\r\n`, as
    /// in an edit. The empty text matches every line. In an expression `.` matches any character of a line, and `^` and `$` match
    /// at the ends of its text (so `$` stands before `\r\n`), and around a `\r` within it. With `multiline`, `.` matches no line
    /// break unless the expression says `(?s)`. A byte order mark is text as any other.
    ///
    /// Cost: microseconds for literal text, up to milliseconds for Unicode classes. Compile once for all files.
    ///
    /// # Errors
    /// `invalid_argument` for a malformed or too large expression, one that names a line break without `multiline`, and a pattern
    /// over [`PATTERN_BYTES_MAX`].
    pub fn compile(options: &GrepOptions) -> Result<Self> {
        let expression = Expression::of(options);
        let multiline = expression.is_multiline();
        let plain = expression.plain_text().map(|text| Finder::new(text).into_owned());
        let matcher = expression.compile()?;
        Ok(Self {
            matcher,
            plain,
            multiline,
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

    /// Searches one content. Shares it: no line is copied (see [`FileOutcome::detached`]). Decodes it, and checks the size
    /// limit and for binary content itself. Context is cut to this file. `path` tells whether the cursor of the options lies in it.
    ///
    /// Cost: one pass over the content, one more when it is decoded, and one when binary content is skipped; a search for files
    /// ends at the first match.
    pub fn search(&self, path: &VfsPath, content: &Bytes) -> FileOutcome {
        self.search_if_text(|| path, content, || is_binary(content))
    }

    /// Searches one content as [`search`](Self::search) does, for tiers that remember whether it is binary, or make its path only
    /// where it is asked for.
    pub(crate) fn search_if_text<P: AsRef<VfsPath>>(
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
        // What is remembered is said of the bytes as they are stored.
        let skips = || if decoded.is_some() { self.skips(text) } else { !self.binary && is_binary() };
        // Whichever goes over a content first waits for memory. The search has more to do meanwhile, so it comes first wherever the
        // test looks at as much as it does: both then take little longer than the search alone.
        let is_tested_as_a_whole = text.len() <= BINARY_PROBE_BYTES;
        if !is_tested_as_a_whole && skips() {
            return FileOutcome::Binary;
        }
        // A large content is gone over once.
        let outcome = if is_tested_as_a_whole && self.holds_nothing(text) {
            FileOutcome::Searched { count: 0, lines: Vec::new(), cut: false }
        } else {
            let mut seeker = Seeker::new(self, after_line);
            seeker.push_whole(text);
            seeker.finish()
        };
        if is_tested_as_a_whole && skips() { FileOutcome::Binary } else { outcome }
    }

    /// Tells whether no line of a text matches, where that is known sooner than which do.
    fn holds_nothing(&self, text: &[u8]) -> bool {
        !self.invert && self.plain.as_ref().is_some_and(|plain| plain.find(text).is_none())
    }

    /// Returns what the search of one content gives that no line of which matches.
    pub(crate) fn search_in_vain<P: AsRef<VfsPath>>(&self, path: impl FnOnce() -> P) -> FileOutcome {
        self.seek(path).map_or(FileOutcome::Gone, Seeker::finish)
    }

    /// Starts the search of one content, unless it lies before the cursor of the options.
    pub(crate) fn seek<P: AsRef<VfsPath>>(&self, path: impl FnOnce() -> P) -> Option<Seeker<'_>> {
        Some(Seeker::new(self, self.after_line(path)?))
    }

    /// Returns the line of a content after which the cursor of the options goes on; none where it lies behind all of it.
    fn after_line<P: AsRef<VfsPath>>(&self, path: impl FnOnce() -> P) -> Option<usize> {
        match self.start_after.as_ref().map(|cursor| (path().as_ref().cmp(&cursor.path), cursor.line)) {
            Some((Ordering::Less, _) | (Ordering::Equal, GrepCursor::END)) => None,
            Some((Ordering::Equal, line)) => Some(line),
            Some((Ordering::Greater, _)) | None => Some(0),
        }
    }

    /// Tells whether content of that size is skipped.
    pub(crate) fn is_too_large(&self, size_bytes: u64) -> bool {
        self.size_max_bytes.is_some_and(|max| size_bytes > max)
    }

    /// Tells whether content whose bytes start so is skipped as binary; false when it has to be decoded first.
    #[cfg_attr(not(feature = "filesystem"), allow(dead_code, reason = "the tier on disk alone reads contents in windows"))]
    pub(crate) fn skips_undecoded(&self, start: &[u8]) -> bool {
        !encoding::is_decoded(start, self.encoding) && self.skips(start)
    }

    /// Returns how the bytes of a content are read as text, before it is searched in windows.
    #[cfg_attr(not(feature = "filesystem"), allow(dead_code, reason = "the tier on disk alone reads contents in windows"))]
    pub(crate) fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Tells whether text that starts so is skipped as binary.
    pub(crate) fn skips(&self, start: &[u8]) -> bool {
        !self.binary && is_binary(start)
    }

    /// Tells whether content whose bytes start so has a mark of its encoding, which is no part of the text.
    #[cfg_attr(not(feature = "filesystem"), allow(dead_code, reason = "the tier on disk alone reads contents in windows"))]
    pub(crate) fn starts_with_mark(&self, start: &[u8]) -> bool {
        encoding::starts_with_mark(start, self.encoding)
    }

    /// Tells whether content can be searched window by window, which a match over lines does not allow.
    #[cfg_attr(not(feature = "filesystem"), allow(dead_code, reason = "the tier on disk alone reads contents in windows"))]
    pub(crate) fn takes_windows(&self) -> bool {
        !self.multiline
    }

    /// Returns how many lines of the window before each one starts with.
    #[cfg_attr(not(feature = "filesystem"), allow(dead_code, reason = "the tier on disk alone reads contents in windows"))]
    pub(crate) fn window_context(&self) -> usize {
        if self.output == GrepOutput::Content { self.before } else { 0 }
    }

    /// Tells whether the text of one line matches.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::CaseMode;
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

    /// Draws lines as ripgrep does: `12:text` for a match, `12-text` for context.
    fn drawn(options: &GrepOptions, content: &str) -> Vec<String> {
        let draw = |line: &GrepLine| format!("{}{}{}", line.line, if line.is_match { ':' } else { '-' }, line.text_lossy());
        lines(options, content).iter().map(draw).collect()
    }

    #[test]
    fn an_expression_may_end_with_a_comment() {
        assert_eq!(drawn(&GrepOptions::regex("(?x) b \\d # a digit"), "b1\nb\n# a digit\n"), ["1:b1"]);
        assert_eq!(drawn(&GrepOptions::regex("#\\d"), "#1\n"), ["1:#1"]);
        assert!(GrepMatcher::compile(&GrepOptions::regex("(#")).is_err());
    }

    #[test]
    fn of_a_long_line_a_bounded_number_of_matches_over_lines_is_looked_at() {
        // Each match looks at the whole line: of all there are this would take minutes.
        let content = format!("{}\nsecond A\n", "A".repeat(300_000));
        let found = lines(&GrepOptions::regex(".*[0-9]|[A-Z]").with_multiline(true), &content);
        assert_eq!(found.iter().map(|line| (line.line, line.ranges.len())).collect::<Vec<_>>(), [(1, LINE_RANGES_MAX), (2, 1)]);
    }

    #[test]
    fn a_chain_of_matches_over_many_lines_is_one_up_to_its_last_line() {
        let content = format!("{}end\nother\n", "x,\n".repeat(LINE_RANGES_MAX + 1));
        let found = lines(&GrepOptions::regex(",\n.").with_multiline(true), &content);
        assert!(found.len() == 1 && found[0].text.ends_with(b",\nend"), "{}", found.len());
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
            // Matches over lines are one only where they touch the same line.
            (GrepOptions::regex("[n{]").with_multiline(true), &["1:fn main() {"]),
            (GrepOptions::regex("[({=]").with_multiline(true), &["1:fn main() {", "2:    let x = 1;", "4:    Let xx = 2; "]),
            (GrepOptions::regex("x").with_file_matches_max(1).with_context(0, 5), &["2:    let x = 1;", "3-"]),
        ] {
            assert_eq!(drawn(&options, content), expected, "{options:?}");
        }
    }
}
