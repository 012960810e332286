//! Entries of a tree, and how results report what they lack.

use super::Version;
use crate::error::{Error, ErrorKind, ErrorRecord, Result};
use crate::path::VfsPathBuf;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link of the host, shown as a link.
    Symlink,
    /// A device, socket or pipe of the host; listed but never opened.
    Other,
}

impl fmt::Display for EntryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Other => "other",
        })
    }
}

/// One line of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Entry {
    /// The full path.
    pub path: VfsPathBuf,
    /// The kind.
    pub kind: EntryKind,
    /// The size in bytes; 0 for directories.
    pub size_bytes: u64,
    /// The version; `None` for directories.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    /// When the path first appeared, if the tier knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
    /// When the content last changed, if the tier knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<Timestamp>,
    /// The final target of a host link, if it lies within the tree. Set only by `stat`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leads_to: Option<VfsPathBuf>,
}

impl Entry {
    /// Makes the entry of a directory, without times.
    pub fn directory(path: impl Into<VfsPathBuf>) -> Self {
        Self {
            path: path.into(),
            kind: EntryKind::Directory,
            size_bytes: 0,
            version: None,
            created_at: None,
            modified_at: None,
            leads_to: None,
        }
    }

    /// Makes the entry of a file, without times.
    pub fn file(path: impl Into<VfsPathBuf>, size_bytes: u64, version: Version) -> Self {
        Self {
            path: path.into(),
            kind: EntryKind::File,
            size_bytes,
            version: Some(version),
            created_at: None,
            modified_at: None,
            leads_to: None,
        }
    }

    /// Sets the path.
    #[must_use]
    pub fn with_path(mut self, path: impl Into<VfsPathBuf>) -> Self {
        self.path = path.into();
        self
    }

    /// Sets the size of the content in bytes.
    #[must_use]
    pub fn with_size_bytes(mut self, size_bytes: u64) -> Self {
        self.size_bytes = size_bytes;
        self
    }

    /// Sets the kind.
    #[must_use]
    pub fn with_kind(mut self, kind: EntryKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets the final target of a link.
    #[must_use]
    pub fn with_leads_to(mut self, leads_to: Option<VfsPathBuf>) -> Self {
        self.leads_to = leads_to;
        self
    }

    /// Sets the times.
    #[must_use]
    pub fn with_times(mut self, created_at: Option<Timestamp>, modified_at: Option<Timestamp>) -> Self {
        self.created_at = created_at;
        self.modified_at = modified_at;
        self
    }

    /// Returns the last segment of the path.
    pub fn name(&self) -> &str {
        self.path.name()
    }

    /// Returns whether this is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind == EntryKind::Directory
    }
}

/// Why a result was truncated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TruncationReason {
    /// The caller's limit was reached.
    Limit,
    /// The result would exceed the maximum size of an answer in bytes.
    Size,
}

/// Why and where a result was truncated, and how to continue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Truncation {
    /// The reason.
    pub reason: TruncationReason,
    /// The `start_after` of the request for the rest.
    pub cursor: String,
}

impl Truncation {
    /// Parses the cursor of a result that began after `before`.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) for a cursor that is invalid or does not lie after `before`; following it would
    /// never end.
    pub fn next_after<C: FromStr + PartialOrd>(&self, before: Option<&C>) -> Result<C> {
        let next = self.cursor.parse::<C>().ok().filter(|next| before.is_none_or(|before| before < next));
        next.ok_or_else(|| {
            Error::new(
                ErrorKind::Corrupt,
                "the cursor of a truncated result does not advance; \
            request smaller parts of the tree",
            )
        })
    }
}

/// A part of the tree that could not be read; the rest of the result is valid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// The file, directory or mount.
    pub path: VfsPathBuf,
    /// The reason.
    pub error: ErrorRecord,
}

/// What a search or listing over several mounts does when one of them fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// Fails as a whole, naming the mount.
    #[default]
    Fail,
    /// Returns the results of the other mounts and lists the failed one among the failures.
    Partial,
}
