//! Finding paths.

use super::{Entry, Failure, OnFailure, SearchScope, Truncation, TruncationReason};
use crate::path::VfsPathBuf;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How to find paths.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GlobOptions {
    /// The pattern: `*` and `?` stay within a segment, `**` crosses, `{a,b}`, `[...]`; without `/` it matches names at any
    /// depth, with a leading `/` it is anchored at the search root, as any other with a `/` is.
    pub pattern: String,
    /// Ignores case. Default false.
    pub case_insensitive: bool,
    /// Finds directories too, and on the host links, devices, sockets and pipes. Default false: files only.
    pub directories: bool,
    /// The most entries returned. Default 10,000.
    pub limit: usize,
    /// Goes on after this path: the cursor of a cut result.
    pub start_after: Option<VfsPathBuf>,
    /// Where the search stands and what it leaves out.
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

    /// Ignores case.
    #[must_use]
    pub fn with_case_insensitive(mut self, case_insensitive: bool) -> Self {
        self.case_insensitive = case_insensitive;
        self
    }

    /// Finds directories too.
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

    /// Goes on after a path.
    #[must_use]
    pub fn with_start_after(mut self, path: impl Into<VfsPathBuf>) -> Self {
        self.start_after = Some(path.into());
        self
    }

    /// Includes names that start with a dot.
    #[must_use]
    pub fn with_hidden(mut self, hidden: bool) -> Self {
        self.scope.hidden = hidden;
        self
    }

    /// Includes what ignore files exclude.
    #[must_use]
    pub fn with_ignored(mut self, ignored: bool) -> Self {
        self.scope.ignored = ignored;
        self
    }

    /// Sets what a failing mount does.
    #[must_use]
    pub fn with_on_failure(mut self, on_failure: OnFailure) -> Self {
        self.scope.on_failure = on_failure;
        self
    }
}

/// The paths a glob found, in path order.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[non_exhaustive]
pub struct GlobResult {
    /// What was found.
    pub entries: Vec<Entry>,
    /// Set when there are more; the cursor is a path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated: Option<Truncation>,
    /// What could not be looked at.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
}

impl GlobResult {
    /// Makes a result from all that was found after the cursor, in path order; cuts at the limit.
    pub fn from_sorted(entries: impl IntoIterator<Item = Entry>, options: &GlobOptions) -> Self {
        let mut all = entries.into_iter();
        let entries: Vec<Entry> = all.by_ref().take(options.limit).collect();
        let truncated = all.next().map(|_| Truncation {
            reason: TruncationReason::Limit,
            cursor: entries
                .last()
                .map(|entry| entry.path.to_string())
                .or_else(|| options.start_after.as_ref().map(ToString::to_string))
                .unwrap_or_default(),
        });
        Self { entries, truncated, failures: Vec::new() }
    }
}
