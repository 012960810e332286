//! What is stored of a file beside its content, and whether content is text.

use serde::{Deserialize, Serialize};

/// How many bytes at the start of a content decide whether it is binary.
pub const BINARY_PROBE_BYTES: usize = 8192;

/// Tells whether content is binary: a NUL byte among its first [`BINARY_PROBE_BYTES`], the rule of git and of ripgrep.
pub fn is_binary(content: &[u8]) -> bool {
    memchr::memchr(0, &content[..content.len().min(BINARY_PROBE_BYTES)]).is_some()
}

/// The small record of a file in a flat key space, so that a listing never reads bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    /// The size of the body in bytes.
    pub(crate) size_bytes: u64,
}
