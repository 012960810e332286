//! Where a window starts.

use super::placeholder::archive_id;
use crate::rows::Head;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The window of a session: the summary of an archive, then the messages from a position on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct SessionWindow {
    /// An id of the session's log. A session that is created again after its deletion has another one.
    pub log: String,
    /// The archive whose summary is the first message; `None` before the first compaction.
    #[serde(default)]
    pub archive: Option<String>,
    /// The position of the first message after the summary.
    pub from: u64,
    /// The position that the next message gets.
    pub end: u64,
    /// The estimate of the window in tokens.
    pub tokens: u64,
}

impl SessionWindow {
    pub(crate) fn of(head: &Head) -> Self {
        Self {
            log: head.data.clone(),
            archive: head.window.archive.map(archive_id),
            from: head.window.from,
            end: head.messages_end,
            tokens: head.window.tokens,
        }
    }

    /// Returns whether two windows of one session start with the same message. Appends change only the end.
    pub fn starts_like(&self, other: &Self) -> bool {
        (&self.log, &self.archive, self.from) == (&other.log, &other.archive, other.from)
    }
}
