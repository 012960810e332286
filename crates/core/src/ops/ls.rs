//! Listing one directory.

use super::{Entry, Failure, OnFailure, Truncation, TruncationReason};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Options of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LsOptions {
    /// The most entries returned. Default 10,000.
    pub limit: usize,
    /// Continues after this name, the cursor of a truncated listing.
    pub start_after: Option<String>,
    /// What happens when a mount within the directory fails.
    pub on_failure: OnFailure,
    /// Refuses with `permission_denied` to follow host links in the path. Default false.
    pub refuse_links: bool,
}

impl Default for LsOptions {
    fn default() -> Self {
        Self { limit: 10_000, start_after: None, on_failure: OnFailure::default(), refuse_links: false }
    }
}

impl LsOptions {
    /// Lists up to 10,000 children.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the most entries returned.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Continues after a name.
    #[must_use]
    pub fn with_start_after(mut self, name: impl Into<String>) -> Self {
        self.start_after = Some(name.into());
        self
    }

    /// Sets what happens when a mount fails.
    #[must_use]
    pub fn with_on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// Sets whether following host links is refused.
    #[must_use]
    pub fn with_refuse_links(mut self, refuse_links: bool) -> Self {
        self.refuse_links = refuse_links;
        self
    }
}

/// The children of one directory, sorted by name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[non_exhaustive]
pub struct Listing {
    /// The children.
    pub entries: Vec<Entry>,
    /// Set if there are more entries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated: Option<Truncation>,
    /// The mounts that could not be read, and damaged entries.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
}

impl Listing {
    /// Makes a listing that is already in order and within the limit.
    pub fn new(entries: Vec<Entry>, truncated: Option<Truncation>, failures: Vec<Failure>) -> Self {
        Self { entries, truncated, failures }
    }

    /// Makes a listing from all children after the cursor, in order, and truncates it at the limit.
    pub fn from_sorted(entries: impl IntoIterator<Item = Entry>, options: &LsOptions) -> Self {
        let mut all = entries.into_iter();
        let entries: Vec<Entry> = all.by_ref().take(options.limit).collect();
        let truncated = all.next().map(|_| Truncation {
            reason: TruncationReason::Limit,
            cursor: entries.last().map(|entry| entry.name().to_owned()).or_else(|| options.start_after.clone()).unwrap_or_default(),
        });
        Self { entries, truncated, failures: Vec::new() }
    }
}
