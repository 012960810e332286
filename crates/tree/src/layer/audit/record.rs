//! The audit record of a call.

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use std::fmt;
use std::time::Duration;
use treehold_core::error::{ErrorKind, Result};
use treehold_core::ops::{Change, OpKind, Version};
use treehold_core::path::VfsPathBuf;
use treehold_core::scope::Scope;

/// The record of one call.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AuditRecord {
    /// The number of the call, from 0 in the order of their starts; the two records of an announced change share it.
    pub call: u64,
    /// The start time.
    pub at: Timestamp,
    /// The caller, if the layer knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// The operation; a batch of several changes is `apply`.
    pub operation: OpKind,
    /// The path it was called on; for a batch, that of its first change.
    pub path: VfsPathBuf,
    /// All requested changes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<AuditChange>,
    /// The outcome.
    pub outcome: AuditOutcome,
    /// The duration; in JSON, whole microseconds.
    #[serde(rename = "duration_micros", serialize_with = "micros")]
    pub duration: Duration,
    /// The number of content bytes in the request.
    pub bytes_in: u64,
    /// The number of content bytes in the result.
    pub bytes_out: u64,
    /// The number of entries, files or changes in the result.
    pub entries: usize,
    /// The version of the file it accessed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
}

/// The record of one change of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AuditChange {
    /// The operation.
    pub operation: OpKind,
    /// The path it changes; for a rename or copy, the source.
    pub path: VfsPathBuf,
    /// The target of a rename or copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<VfsPathBuf>,
    /// The number of content bytes in the change.
    pub bytes_in: u64,
    /// The version it created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
}

impl AuditChange {
    pub(super) fn new(change: &Change) -> Self {
        let bytes_in = match change {
            Change::Write { content, .. } | Change::Append { content, .. } => content.len(),
            Change::Edit { edits, .. } => edits.iter().map(|edit| edit.new.len()).sum(),
            Change::CreateDir { .. } | Change::Delete { .. } | Change::Rename { .. } | Change::Copy { .. } => 0,
            _ => 0,
        };
        Self {
            operation: change.kind(),
            path: change.path().to_owned(),
            target: change.target().map(ToOwned::to_owned),
            bytes_in: bytes_in as u64,
            version: None,
        }
    }
}

/// How a call ended. In JSON a word: `started`, `ok`, `given_up`, or the code of the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AuditOutcome {
    /// It is about to run.
    Started,
    /// It succeeded.
    Done,
    /// It failed.
    Failed(ErrorKind),
    /// It was dropped before it ended; a change may have taken effect.
    GivenUp,
}

impl AuditOutcome {
    /// Returns the stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Done => "ok",
            Self::Failed(kind) => kind.code(),
            Self::GivenUp => "given_up",
        }
    }
}

impl fmt::Display for AuditOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for AuditOutcome {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

fn micros<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}
