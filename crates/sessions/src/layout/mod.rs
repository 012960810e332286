//! Exports and imports sessions in the default directory layout of agent hosts.
//!
//! ```text
//! tenants/{tenant}/sessions/{session}/
//!   session.jsonl                     init, turn and update events
//!   messages.jsonl                    the window
//!   messages.compactions/0001.jsonl   archives
//!   NOTES.md, TODO.md, tool-results/{toolCallId}.txt
//!   trace/events.jsonl
//!   orchestration/events.jsonl, orchestration/checkpoint.json
//!   orchestration/subagents/{agent}/mailbox.jsonl, mailbox-state.json, history.json
//!   subagent-logs/{name}
//! tenants/{tenant}/users/{user}/
//!   USER.md, .memory-state.json       the state of the consolidation
//! ```
//!
//! An exported session is a map from these paths to contents ([`SessionFiles`]). [`write_directory`] and
//! [`read_directory`] use a directory of the host. Ids are escaped in paths: `/`, `%` and control characters become `%XX`.
//!
//! # What an export returns
//!
//! The export of an imported session that did not change has the same files, byte for byte, except that
//!
//! - in files of JSON lines (`session.jsonl`, `messages.jsonl`, archives, `events.jsonl`, `mailbox.jsonl`), each value is one
//!   line that ends with a line feed: blank lines, white space around a value, carriage returns, and a missing line feed at the
//!   end are not kept;
//! - what the [`ImportReport`] lists is missing, and `processedEventCount` of a mailbox is lowered by the skipped events
//!   among those that it counts.
//!
//! The texts of the values stay as they are. A file that was missing stays missing, and an empty one stays empty.

mod directory;
mod export;
mod import;
mod place;

pub use directory::{DirectoryReport, ExportReport, read_directory, read_directory_of, write_directory, write_session, write_sessions};
pub use import::{DamagedLine, ImportReport, owner_of};

use bytes::Bytes;
use std::collections::BTreeMap;
use treehold_core::escape::{escape, unescape};
use treehold_core::scope::check_id;

/// The files of a session by path beneath its directory.
pub type SessionFiles = BTreeMap<String, Bytes>;

const SESSION: &str = "session.jsonl";
const MESSAGES: &str = "messages.jsonl";
const ARCHIVES: &str = "messages.compactions/";
const RESULTS: &str = "tool-results/";
const TRACE: &str = "trace/events.jsonl";
const ORCHESTRATION: &str = "orchestration/events.jsonl";
const CHECKPOINT: &str = "orchestration/checkpoint.json";
const AGENTS: &str = "orchestration/subagents/";
const SKILL_LOGS: &str = "subagent-logs/";

/// The state of a user's consolidation, in the directory of the user.
const MEMORY_STATE: &str = ".memory-state.json";

/// Returns an id as the name of a directory.
fn name_of(id: &str) -> String {
    escape(id, |character| character == '/' || character.is_control())
}

/// Returns the id that a directory is named after: the one that is written there, and under no other name.
fn id_of(what: &str, name: &str) -> Option<String> {
    let id = unescape(name)?;
    (check_id(what, &id).is_ok() && name_of(&id) == name).then(|| id.into_owned())
}
