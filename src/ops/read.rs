//! Reading one file.

use super::Version;
use bytes::Bytes;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which part of a file to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadRange {
    /// All of it.
    #[default]
    Whole,
    /// A window of lines.
    Lines {
        /// How many lines to pass over, from 0.
        offset: usize,
        /// How many lines to return at most.
        limit: usize,
    },
    /// A range of bytes; what lies past the end is left out.
    Bytes {
        /// How many bytes to pass over, from 0.
        offset: u64,
        /// How many bytes to return at most.
        limit: u64,
    },
}

/// How to read one file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadOptions {
    /// Which part.
    pub range: ReadRange,
    /// The most bytes one read returns: more is `too_large` for a whole file, and ends a window of lines early (the window
    /// then says where to go on). Default 64 MiB.
    pub bytes_max: u64,
    /// Refuses with `permission_denied` a path on which a link of the host would be followed. Default false.
    pub refuse_links: bool,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { range: ReadRange::Whole, bytes_max: 64 << 20, refuse_links: false }
    }
}

impl ReadOptions {
    /// Reads the whole file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads at most `limit` lines after passing over `offset`.
    pub fn lines(offset: usize, limit: usize) -> Self {
        Self { range: ReadRange::Lines { offset, limit }, ..Self::default() }
    }

    /// Reads at most `limit` bytes after passing over `offset`.
    pub fn bytes(offset: u64, limit: u64) -> Self {
        Self { range: ReadRange::Bytes { offset, limit }, ..Self::default() }
    }

    /// Sets the most bytes returned.
    #[must_use]
    pub fn with_bytes_max(mut self, bytes_max: u64) -> Self {
        self.bytes_max = bytes_max;
        self
    }

    /// Refuses to follow links of the host.
    #[must_use]
    pub fn with_refuse_links(mut self, refuse_links: bool) -> Self {
        self.refuse_links = refuse_links;
        self
    }
}

/// Which lines a window of a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Window {
    /// How many lines lie before it.
    pub offset: usize,
    /// How many lines it holds.
    pub lines: usize,
    /// How many lines the file has.
    pub total_lines: usize,
}

impl Window {
    /// Returns the number of the first line, from 1; none when the window is empty.
    pub fn first_line(&self) -> Option<usize> {
        (self.lines > 0).then_some(self.offset + 1)
    }

    /// Returns the number of the last line, from 1; none when the window is empty.
    pub fn last_line(&self) -> Option<usize> {
        (self.lines > 0).then_some(self.offset + self.lines)
    }

    /// Returns the offset to go on from; none at the end of the file.
    pub fn next_offset(&self) -> Option<usize> {
        let next = self.offset + self.lines;
        (next < self.total_lines).then_some(next)
    }
}

/// What a read returned.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileRead {
    /// The bytes asked for, exactly as stored.
    pub content: Bytes,
    /// The version of the file they are of.
    pub version: Version,
    /// The size in bytes of the whole file.
    pub size_bytes: u64,
    /// When the content last changed, where the tier knows.
    pub modified_at: Option<Timestamp>,
    /// Which lines these are, when lines were asked for.
    pub window: Option<Window>,
}

impl FileRead {
    /// Makes the result of reading a whole file.
    pub fn new(content: Bytes, version: Version, modified_at: Option<Timestamp>) -> Self {
        Self { size_bytes: content.len() as u64, content, version, modified_at, window: None }
    }

    /// Returns the content as text, with what is not UTF-8 replaced.
    pub fn text_lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.content)
    }
}
