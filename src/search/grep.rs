//! Lines within one content.
//!
//! A line matches when the pattern matches its text, taken alone and without its terminator. To find lines fast the pattern is
//! searched for in the content as a whole first (ripgrep's matcher, compiled so that no match crosses a line), and only a line
//! that it points at is looked at by itself. With `multiline` the content is matched as a whole and a match covers the lines
//! it touches.

use super::expression::Expression;
use super::hits::{Hits, MATCHES_MAX, infallible};
use super::page::{Page, push_range};
use crate::error::{Error, Result};
use crate::file::is_binary;
use crate::ops::{GrepCursor, GrepLine, GrepOptions, GrepOutput};
use crate::path::VfsPath;
use bytes::Bytes;
use grep_matcher::Matcher;
use grep_regex::RegexMatcher;
use std::cmp::Ordering;
use std::ops::Range;

pub use super::expression::PATTERN_BYTES_MAX;

/// How many ranges of matches within one line are returned at most.
pub const LINE_RANGES_MAX: usize = MATCHES_MAX;

/// A compiled grep pattern with what it returns of each file.
#[derive(Debug, Clone)]
pub struct GrepMatcher {
    pub(super) matcher: RegexMatcher,
    /// Whether a match may span lines.
    pub(super) multiline: bool,
    pub(super) invert: bool,
    binary: bool,
    pub(super) before: usize,
    pub(super) after: usize,
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

impl FileOutcome {
    /// Copies the text of its lines, so that the content they share can go.
    ///
    /// For tiers that read a content only to search it: one matching line would otherwise keep the whole file in memory for as long
    /// as the result lives.
    #[must_use]
    pub fn detached(mut self) -> Self {
        if let Self::Searched { lines, .. } = &mut self {
            let texts = Bytes::from(lines.iter().map(|line| &line.text[..]).collect::<Vec<_>>().concat());
            let mut start = 0;
            for line in lines {
                let end = start + line.text.len();
                line.text = texts.slice(start..end);
                start = end;
            }
        }
        self
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
        let matcher = expression.compile()?;
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

    /// Searches one content. Shares it: no line is copied (see [`FileOutcome::detached`]). Checks the size limit and for binary
    /// content itself. Context is cut to this file. `path` tells whether the cursor of the options lies in it.
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
        let counts_all = self.multiline || self.file_matches_max != usize::MAX;
        let mut page = Page::new(self, content);
        page.resume(after_line, counts_all);
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

    /// Tells whether the text of one line matches.
    pub(super) fn is_match(&self, text: &[u8]) -> bool {
        infallible(self.matcher.is_match(text))
    }

    /// Finds the matches in the text of one line.
    pub(super) fn ranges(&self, text: &[u8]) -> Vec<Range<usize>> {
        let mut ranges = Vec::new();
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
