//! Finding paths.

use super::{Entry, Failure, OnFailure, SearchScope, Truncation, TruncationReason};
use crate::path::VfsPathBuf;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Options of a glob.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GlobOptions {
    /// The pattern: `*` and `?` stay within a segment, `**` crosses segments, and `{a,b}` and `[...]` are supported. A
    /// pattern without `/` matches names at any depth. Any other pattern is anchored at the search root, with or
    /// without a leading `/`.
    pub pattern: String,
    /// Whether to ignore case. Default false.
    pub case_insensitive: bool,
    /// Whether to find directories too, and in host directories also links, devices, sockets and pipes. Default false: files only.
    pub directories: bool,
    /// The most entries returned. Default 10,000.
    pub limit: usize,
    /// Continues after this path, the cursor of a truncated result.
    pub start_after: Option<VfsPathBuf>,
    /// The scope of the search and its exclusions.
    pub scope: SearchScope,
}

impl GlobOptions {
    /// Finds up to 10,000 files by pattern.
    pub fn new(pattern: impl Into<String>) -> Self {
        Self {
            pattern: pattern.into(),
            case_insensitive: false,
            directories: false,
            limit: 10_000,
            start_after: None,
            scope: SearchScope::default(),
        }
    }

    /// Sets whether case is ignored.
    #[must_use]
    pub fn with_case_insensitive(mut self, case_insensitive: bool) -> Self {
        self.case_insensitive = case_insensitive;
        self
    }

    /// Sets whether directories are found too.
    #[must_use]
    pub fn with_directories(mut self, directories: bool) -> Self {
        self.directories = directories;
        self
    }

    /// Sets the most entries returned.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Continues after a path.
    #[must_use]
    pub fn with_start_after(mut self, path: impl Into<VfsPathBuf>) -> Self {
        self.start_after = Some(path.into());
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

/// The result of a glob, in path order.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[non_exhaustive]
pub struct GlobResult {
    /// The entries found.
    pub entries: Vec<Entry>,
    /// Set if there are more entries; the cursor is a path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated: Option<Truncation>,
    /// The parts of the tree that could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
}

impl GlobResult {
    /// Makes a result from everything found after the cursor, in path order, and truncates it at the limit.
    pub fn from_sorted(entries: impl IntoIterator<Item = Entry>, options: &GlobOptions) -> Self {
        let mut all = entries.into_iter();
        let entries: Vec<Entry> = all.by_ref().take(options.limit).collect();
        let truncated = all.next().map(|_| Truncation {
            reason: TruncationReason::Limit,
            cursor: entries.last().map(|entry| &entry.path).or(options.start_after.as_ref()).map_or("/", |last| last.as_str()).to_owned(),
        });
        Self { entries, truncated, failures: Vec::new() }
    }
}
