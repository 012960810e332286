//! What a call gives back, as a layer that watches can measure it without knowing which call it was.

use crate::ops::{Changed, Entry, FileRead, GlobResult, GrepResult, Listing, SearchResult, Version};

/// The result of an operation, as layers see it.
pub trait Reply: Send {
    /// Returns how many bytes of file content it carries.
    fn content_bytes(&self) -> u64 {
        0
    }

    /// Returns how many entries, files or changes it names.
    fn entries(&self) -> usize {
        1
    }

    /// Returns the version of the one file it is about.
    fn version(&self) -> Option<Version> {
        None
    }

    /// Returns what each change did, of an `apply`.
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
