//! Finding lines.

use super::{Failure, OnFailure, SearchScope, Truncation};
use crate::error::Error;
use crate::path::VfsPathBuf;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// How letter case is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CaseMode {
    /// Case matters.
    #[default]
    Sensitive,
    /// Case is ignored.
    Insensitive,
    /// Case is ignored unless the pattern contains an uppercase letter.
    Smart,
}

/// What a grep returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GrepOutput {
    /// The matching lines.
    #[default]
    Content,
    /// The files with a match, each once.
    Files,
    /// The number of matching lines of each file with a match.
    Counts,
}

/// How the bytes of a file are interpreted as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// Unchanged: a byte order mark is text, and UTF-16 usually counts as binary.
    #[default]
    Bytes,
    /// According to the file's byte order mark, as in ripgrep. UTF-16 is decoded and searched as text, without the
    /// mark. Lines, ranges, offsets and the detection of binary files then refer to the decoded text (UTF-8, with
    /// malformed parts replaced). Files without a mark are searched unchanged.
    Auto,
}

/// Options of a grep.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GrepOptions {
    /// The text to find, literal unless `regex`.
    pub pattern: String,
    /// Whether the pattern is a regular expression (in the syntax of the `regex` crate; linear time). Default false.
    pub regex: bool,
    /// How letter case is compared.
    pub case: CaseMode,
    /// Whether to match whole words only.
    pub word: bool,
    /// Whether to match whole lines only.
    pub whole_line: bool,
    /// Whether to find the lines that do not match.
    pub invert: bool,
    /// Whether matches may span lines.
    pub multiline: bool,
    /// How many lines before each match to return.
    pub before: usize,
    /// How many lines after each match to return.
    pub after: usize,
    /// Searches only files that match one of these globs.
    pub include: Vec<String>,
    /// Skips files that match one of these globs, and everything below matching directories.
    pub exclude: Vec<String>,
    /// Searches only files of these types, such as `rust` or `py`.
    pub types: Vec<String>,
    /// Whether to search binary files too, as bytes. Default false: they are skipped and counted.
    pub binary: bool,
    /// How bytes are interpreted as text. Default: unchanged.
    pub encoding: Encoding,
    /// Skips and counts files over this size in bytes. Default: no limit.
    pub size_max_bytes: Option<u64>,
    /// What to return.
    pub output: GrepOutput,
    /// The most matching lines (with [`GrepOutput::Content`]) or files returned. Default 10,000.
    pub matches_max: usize,
    /// The most matching lines returned per file.
    pub file_matches_max: Option<usize>,
    /// Continues after this file and line, the cursor of a truncated result.
    pub start_after: Option<GrepCursor>,
    /// The scope of the search and its exclusions.
    pub scope: SearchScope,
}

impl GrepOptions {
    /// Finds literal text and returns up to 10,000 lines.
    pub fn new(pattern: impl Into<String>) -> Self {
        Self {
            pattern: pattern.into(),
            regex: false,
            case: CaseMode::default(),
            word: false,
            whole_line: false,
            invert: false,
            multiline: false,
            before: 0,
            after: 0,
            include: Vec::new(),
            exclude: Vec::new(),
            types: Vec::new(),
            binary: false,
            encoding: Encoding::default(),
            size_max_bytes: None,
            output: GrepOutput::default(),
            matches_max: 10_000,
            file_matches_max: None,
            start_after: None,
            scope: SearchScope::default(),
        }
    }

    /// Finds a regular expression and returns up to 10,000 lines.
    pub fn regex(pattern: impl Into<String>) -> Self {
        Self { regex: true, ..Self::new(pattern) }
    }

    /// Sets how letter case is compared.
    #[must_use]
    pub fn with_case(mut self, case: CaseMode) -> Self {
        self.case = case;
        self
    }

    /// Sets whether only whole words match.
    #[must_use]
    pub fn with_word(mut self, word: bool) -> Self {
        self.word = word;
        self
    }

    /// Sets whether only whole lines match.
    #[must_use]
    pub fn with_whole_line(mut self, whole_line: bool) -> Self {
        self.whole_line = whole_line;
        self
    }

    /// Sets whether lines that do not match are found.
    #[must_use]
    pub fn with_invert(mut self, invert: bool) -> Self {
        self.invert = invert;
        self
    }

    /// Sets whether matches may span lines.
    #[must_use]
    pub fn with_multiline(mut self, multiline: bool) -> Self {
        self.multiline = multiline;
        self
    }

    /// Sets how many lines around each match to return.
    #[must_use]
    pub fn with_context(mut self, before: usize, after: usize) -> Self {
        self.before = before;
        self.after = after;
        self
    }

    /// Adds a glob of files to search.
    #[must_use]
    pub fn with_include(mut self, glob: impl Into<String>) -> Self {
        self.include.push(glob.into());
        self
    }

    /// Adds a glob of files not to search.
    #[must_use]
    pub fn with_exclude(mut self, glob: impl Into<String>) -> Self {
        self.exclude.push(glob.into());
        self
    }

    /// Adds a file type to search.
    #[must_use]
    pub fn with_type(mut self, name: impl Into<String>) -> Self {
        self.types.push(name.into());
        self
    }

    /// Sets whether binary files are searched too.
    #[must_use]
    pub fn with_binary(mut self, binary: bool) -> Self {
        self.binary = binary;
        self
    }

    /// Sets how bytes are interpreted as text.
    #[must_use]
    pub fn with_encoding(mut self, encoding: Encoding) -> Self {
        self.encoding = encoding;
        self
    }

    /// Skips files over a size in bytes.
    #[must_use]
    pub fn with_size_max_bytes(mut self, size_max_bytes: u64) -> Self {
        self.size_max_bytes = Some(size_max_bytes);
        self
    }

    /// Sets what to return.
    #[must_use]
    pub fn with_output(mut self, output: GrepOutput) -> Self {
        self.output = output;
        self
    }

    /// Sets the most matching lines or files returned.
    #[must_use]
    pub fn with_matches_max(mut self, matches_max: usize) -> Self {
        self.matches_max = matches_max;
        self
    }

    /// Sets the most matching lines returned per file.
    #[must_use]
    pub fn with_file_matches_max(mut self, file_matches_max: usize) -> Self {
        self.file_matches_max = Some(file_matches_max);
        self
    }

    /// Continues after a file and line.
    #[must_use]
    pub fn with_start_after(mut self, cursor: GrepCursor) -> Self {
        self.start_after = Some(cursor);
        self
    }

    /// Sets whether names that start with a dot are included.
    #[must_use]
    pub fn with_hidden(mut self, hidden: bool) -> Self {
        self.scope.hidden = hidden;
        self
    }

    /// Sets whether directories whose names start with a dot are entered for names that do not
    /// ([`SearchScope::hidden_directories`]).
    #[must_use]
    pub fn with_hidden_directories(mut self, hidden_directories: bool) -> Self {
        self.scope.hidden_directories = hidden_directories;
        self
    }

    /// Sets whether files excluded by ignore files are included.
    #[must_use]
    pub fn with_ignored(mut self, ignored: bool) -> Self {
        self.scope.ignored = ignored;
        self
    }

    /// Sets what happens when a mount fails.
    #[must_use]
    pub fn with_on_failure(mut self, on_failure: OnFailure) -> Self {
        self.scope.on_failure = on_failure;
        self
    }
}

/// The position from which a grep continues: after this line of this file. As text, `path:line`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GrepCursor {
    /// The file.
    pub path: VfsPathBuf,
    /// The last line already returned, from 1; [`GrepCursor::END`] if the file is finished.
    pub line: usize,
}

impl GrepCursor {
    /// The end of a file of any length.
    pub const END: usize = usize::MAX;
}

impl fmt::Display for GrepCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Self::END => write!(f, "{}:end", self.path),
            line => write!(f, "{}:{line}", self.path),
        }
    }
}

impl std::str::FromStr for GrepCursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || Error::invalid_argument(format!("`{text}` is not a cursor; use the one that the truncated result returned"));
        let (path, line) = text.rsplit_once(':').ok_or_else(invalid)?;
        let line = if line == "end" { Self::END } else { line.parse().map_err(|_| invalid())? };
        Ok(Self { path: VfsPathBuf::parse(path).map_err(|_| invalid())?, line })
    }
}

/// A line returned by a grep, or several if a match spans them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(into = "LineRecord", try_from = "LineRecord")]
#[schemars(with = "LineRecord")]
#[non_exhaustive]
pub struct GrepLine {
    /// The number of the first line, from 1, as in reads.
    pub line: usize,
    /// The offset of the line in the file in bytes, from 0; for a [decoded](Encoding::Auto) file, in the decoded text.
    pub byte_offset: u64,
    /// The line as stored (or decoded), without its terminator (`\n` or `\r\n`).
    pub text: Bytes,
    /// The matches, as byte ranges of `text`; empty for context lines and with `invert`.
    pub ranges: Vec<Range<usize>>,
    /// Whether the line matches; otherwise it is context.
    pub is_match: bool,
}

impl GrepLine {
    /// Makes a line.
    pub fn new(line: usize, byte_offset: u64, text: Bytes, ranges: Vec<Range<usize>>, is_match: bool) -> Self {
        Self { line, byte_offset, text, ranges, is_match }
    }

    /// Returns the column of the first match in bytes, from 1.
    pub fn column(&self) -> Option<usize> {
        self.ranges.first().map(|range| range.start + 1)
    }

    /// Returns the line as text, with invalid UTF-8 replaced.
    pub fn text_lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.text)
    }
}

/// A line in serialized form: its text, plus its bytes if they are not UTF-8.
#[derive(Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "GrepLine")]
struct LineRecord {
    /// The number of the line, from 1.
    line: usize,
    /// The offset of the line in the file in bytes, from 0.
    byte_offset: u64,
    /// The line without its terminator; invalid UTF-8 is replaced.
    text: String,
    /// The bytes of the line in Base64, if it is not UTF-8; `ranges` then refer to these bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text_base64: Option<String>,
    /// The matches in the line: the first byte and the one after the last, from 0.
    ranges: Vec<[usize; 2]>,
    /// Whether the line matches; otherwise it is context.
    is_match: bool,
}

impl From<GrepLine> for LineRecord {
    fn from(line: GrepLine) -> Self {
        let text_base64 = std::str::from_utf8(&line.text).is_err().then(|| BASE64.encode(&line.text));
        Self {
            line: line.line,
            byte_offset: line.byte_offset,
            text: line.text_lossy().into_owned(),
            text_base64,
            ranges: line.ranges.iter().map(|range| [range.start, range.end]).collect(),
            is_match: line.is_match,
        }
    }
}

impl TryFrom<LineRecord> for GrepLine {
    type Error = base64::DecodeError;

    fn try_from(record: LineRecord) -> Result<Self, Self::Error> {
        let text = match record.text_base64 {
            Some(encoded) => BASE64.decode(encoded)?.into(),
            None => record.text.into(),
        };
        let ranges = record.ranges.into_iter().map(|[start, end]| start..end).collect();
        Ok(Self { line: record.line, byte_offset: record.byte_offset, text, ranges, is_match: record.is_match })
    }
}

/// The matches in one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct GrepFile {
    /// The file.
    pub path: VfsPathBuf,
    /// How many lines match: with the output [`content`](GrepOutput::Content) those returned, with [`files`](GrepOutput::Files) at least 1.
    pub count: usize,
    /// The lines in order, with the output [`content`](GrepOutput::Content).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<GrepLine>,
}

impl GrepFile {
    /// Makes the result of one file.
    pub fn new(path: impl Into<VfsPathBuf>, count: usize, lines: Vec<GrepLine>) -> Self {
        Self { path: path.into(), count, lines }
    }
}

/// The result of a grep, by file in path order.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[non_exhaustive]
pub struct GrepResult {
    /// The files with a match.
    pub files: Vec<GrepFile>,
    /// How many files were searched, to their end or limit. If an index preselected the files, this count and those
    /// below cover the preselected files only.
    pub files_searched: usize,
    /// How many files were skipped because they are binary.
    pub files_binary: usize,
    /// How many files were skipped because of their size.
    pub files_too_large: usize,
    /// Set if there are more matches; the cursor is a [`GrepCursor`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated: Option<Truncation>,
    /// The parts of the tree that could not be read, at most [100](GrepResult::FAILURES_MAX) of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
    /// How many parts could not be read, including those not listed.
    pub failures_count: usize,
}

impl GrepResult {
    /// The most failures that are listed.
    pub const FAILURES_MAX: usize = 100;

    /// Returns how many lines were found, or files if the result has no lines.
    pub fn matches(&self) -> usize {
        self.files.iter().map(|file| file.lines.iter().filter(|line| line.is_match).count().max(usize::from(file.lines.is_empty()))).sum()
    }

    /// Adds a failure, and lists it if there is room.
    pub fn push_failure(&mut self, failure: Failure) {
        self.failures_count += 1;
        if self.failures.len() < Self::FAILURES_MAX {
            self.failures.push(failure);
        }
    }
}
