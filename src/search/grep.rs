//! Lines within one content, and the collection of what many files gave.

use crate::error::{Error, Result};
use crate::ops::{GrepLine, GrepOptions, GrepResult};
use crate::path::{VfsPath, VfsPathBuf};
use bytes::Bytes;
use std::ops::ControlFlow;

/// A compiled grep pattern with what it returns of each file.
#[derive(Debug, Clone)]
pub struct GrepMatcher {
    _private: (),
}

/// What one file gave.
#[derive(Debug)]
#[non_exhaustive]
pub enum FileOutcome {
    /// It was searched: how many lines match, and the lines (matches and context) when content is returned.
    Searched {
        /// How many matching lines were seen (of a search for files, at most 1).
        count: usize,
        /// The lines.
        lines: Vec<GrepLine>,
        /// Whether a limit ended the search within the file with more matches to come.
        cut: bool,
    },
    /// It is binary and was skipped.
    Binary,
    /// It is over the size limit and was skipped.
    TooLarge,
    /// It could not be read.
    Failed(Error),
    /// It went away before it could be read; not counted.
    Gone,
}

impl GrepMatcher {
    /// Compiles the pattern.
    ///
    /// # Errors
    /// `invalid_argument` for a malformed expression, or a literal with a line break without `multiline`.
    pub fn compile(options: &GrepOptions) -> Result<Self> {
        let _ = options;
        unimplemented!()
    }

    /// Searches one content. Shares it: no line is copied. Checks the size limit and for binary content itself. Context is cut
    /// to this file. `path` tells whether the cursor of the options lies in it.
    pub fn search(&self, path: &VfsPath, content: &Bytes) -> FileOutcome {
        let _ = (path, content);
        unimplemented!()
    }
}

/// Collects outcomes in path order up to the limits.
#[derive(Debug)]
pub struct GrepCollector {
    _private: (),
}

impl GrepCollector {
    /// Starts a collection under the limits of the options.
    pub fn new(options: &GrepOptions) -> Self {
        let _ = options;
        unimplemented!()
    }

    /// Adds the outcome of the next file in path order; `Break` when the limit is reached and the walk can stop.
    pub fn push(&mut self, path: VfsPathBuf, outcome: FileOutcome) -> ControlFlow<()> {
        let _ = (path, outcome);
        unimplemented!()
    }

    /// Returns the result.
    pub fn finish(self) -> GrepResult {
        unimplemented!()
    }
}
