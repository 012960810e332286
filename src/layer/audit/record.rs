//! What is kept of a call.

use crate::error::{ErrorKind, Result};
use crate::ops::{Change, OpKind, Version};
use crate::path::VfsPathBuf;
use crate::scope::Scope;
use jiff::Timestamp;
use serde::{Serialize, Serializer};
use std::fmt;
use std::time::Duration;

/// One call, as it is kept.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AuditRecord {
    /// The number of the call, from 0 in the order of their beginning; the two records of an announced change share it.
    pub call: u64,
    /// When it began.
    pub at: Timestamp,
    /// Who called, where the layer was told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// What was called; a batch of several changes is `apply`.
    pub operation: OpKind,
    /// The path it was called on; of a batch, its first change's.
    pub path: VfsPathBuf,
    /// The changes it asked for, every one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<AuditChange>,
    /// How it ended.
    pub outcome: AuditOutcome,
    /// How long it took; in JSON, whole microseconds.
    #[serde(rename = "duration_micros", serialize_with = "micros")]
    pub duration: Duration,
    /// How many bytes of content it brought.
    pub bytes_in: u64,
    /// How many bytes of content it gave back.
    pub bytes_out: u64,
    /// How many entries, files or changes it gave back.
    pub entries: usize,
    /// The version of the file it looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
}

/// One change of a call, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AuditChange {
    /// What it does.
    pub operation: OpKind,
    /// The path it is about; of a rename or copy, the source.
    pub path: VfsPathBuf,
    /// The target of a rename or copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<VfsPathBuf>,
    /// How many bytes of content it brought.
    pub bytes_in: u64,
    /// The version it made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
}

impl AuditChange {
    pub(super) fn new(change: &Change) -> Self {
        let bytes_in = match change {
            Change::Write { content, .. } | Change::Append { content, .. } => content.len(),
            Change::Edit { edits, .. } => edits.iter().map(|edit| edit.new.len()).sum(),
            Change::CreateDir { .. } | Change::Delete { .. } | Change::Rename { .. } | Change::Copy { .. } => 0,
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
    /// It was done.
    Done,
    /// It failed.
    Failed(ErrorKind),
    /// Its caller went away before it ended; a change may have taken effect.
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
