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
        /// How many lines to skip.
        offset: usize,
        /// The most lines to return.
        limit: usize,
    },
    /// A range of bytes; bytes beyond the end of the file are omitted.
    Bytes {
        /// How many bytes to skip.
        offset: u64,
        /// The most bytes to return.
        limit: u64,
    },
}

/// Options of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadOptions {
    /// The part to read.
    pub range: ReadRange,
    /// The most bytes returned. A larger file fails with `too_large` when read whole; a window of lines ends early and
    /// says where to continue. Default 64 MiB.
    pub bytes_max: u64,
    /// Refuses with `permission_denied` to follow host links in the path. Default false.
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

    /// Reads at most `limit` lines after the first `offset`.
    pub fn lines(offset: usize, limit: usize) -> Self {
        Self { range: ReadRange::Lines { offset, limit }, ..Self::default() }
    }

    /// Reads at most `limit` bytes after the first `offset`.
    pub fn bytes(offset: u64, limit: u64) -> Self {
        Self { range: ReadRange::Bytes { offset, limit }, ..Self::default() }
    }

    /// Sets the most bytes returned.
    #[must_use]
    pub fn with_bytes_max(mut self, bytes_max: u64) -> Self {
        self.bytes_max = bytes_max;
        self
    }

    /// Sets whether following host links is refused.
    #[must_use]
    pub fn with_refuse_links(mut self, refuse_links: bool) -> Self {
        self.refuse_links = refuse_links;
        self
    }
}

/// The lines covered by a window of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Window {
    /// How many lines precede the window.
    pub offset: usize,
    /// How many lines the window has.
    pub lines: usize,
    /// How many lines the file has.
    pub total_lines: usize,
}

impl Window {
    /// Returns the number of the first line, from 1; `None` for an empty window.
    pub fn first_line(&self) -> Option<usize> {
        (self.lines > 0).then_some(self.offset + 1)
    }

    /// Returns the number of the last line, from 1; `None` for an empty window.
    pub fn last_line(&self) -> Option<usize> {
        (self.lines > 0).then_some(self.offset + self.lines)
    }

    /// Returns the offset of the next window; `None` at the end of the file.
    pub fn next_offset(&self) -> Option<usize> {
        let next = self.offset + self.lines;
        (next < self.total_lines).then_some(next)
    }
}

/// The result of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileRead {
    /// The requested bytes, exactly as stored.
    pub content: Bytes,
    /// The version of the file that the bytes belong to.
    pub version: Version,
    /// The size in bytes of the whole file.
    pub size_bytes: u64,
    /// When the content last changed, if the tier knows.
    pub modified_at: Option<Timestamp>,
    /// The window, if lines were requested.
    pub window: Option<Window>,
}

impl FileRead {
    /// Makes the result of reading a whole file.
    pub fn new(content: Bytes, version: Version, modified_at: Option<Timestamp>) -> Self {
        Self { size_bytes: content.len() as u64, content, version, modified_at, window: None }
    }

    /// Returns the content as text, with invalid UTF-8 replaced.
    pub fn text_lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.content)
    }
}
