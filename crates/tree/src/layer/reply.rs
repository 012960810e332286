//! The result of a call, as a layer can measure it without knowing the operation.

use treehold_core::ops::{Changed, Entry, FileRead, GlobResult, GrepResult, Listing, SearchResult, Version};

/// The result of an operation, as layers see it.
pub trait Reply: Send {
    /// Returns the number of bytes of file content.
    fn content_bytes(&self) -> u64 {
        0
    }

    /// Returns the number of entries, files or changes.
    fn entries(&self) -> usize {
        1
    }

    /// Returns the version of its single file, if it has one.
    fn version(&self) -> Option<Version> {
        None
    }

    /// Returns the result of each change of an `apply`.
    fn changed(&self) -> &[Changed] {
        &[]
    }
}

impl Reply for Entry {
    fn version(&self) -> Option<Version> {
        self.version
    }
}

impl Reply for FileRead {
    fn content_bytes(&self) -> u64 {
        self.content.len() as u64
    }

    fn version(&self) -> Option<Version> {
        Some(self.version)
    }
}

impl Reply for Listing {
    fn entries(&self) -> usize {
        self.entries.len()
    }
}

impl Reply for GlobResult {
    fn entries(&self) -> usize {
        self.entries.len()
    }
}

impl Reply for GrepResult {
    fn content_bytes(&self) -> u64 {
        self.files.iter().flat_map(|file| &file.lines).map(|line| line.text.len() as u64).sum()
    }

    fn entries(&self) -> usize {
        self.files.len()
    }
}

impl Reply for SearchResult {
    fn content_bytes(&self) -> u64 {
        self.hits.iter().flat_map(|hit| &hit.snippets).map(|snippet| snippet.text.len() as u64).sum()
    }

    fn entries(&self) -> usize {
        self.hits.len()
    }
}

impl Reply for Vec<Changed> {
    fn entries(&self) -> usize {
        self.len()
    }

    fn changed(&self) -> &[Changed] {
        self
    }
}
