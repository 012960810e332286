//! Entries of a transcript. They keep their exact text, so fields that are not named here survive.

use super::check_entry_id;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use treehold_core::error::{Error, Result};
use treehold_core::json::Json;

/// The types of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A message.
    Message,
    /// A call of a tool.
    ToolUse,
    /// The result of a tool call.
    ToolResult,
    /// A compaction: earlier entries are no longer shown to the model.
    Compaction,
    /// The summary of what a compaction left out.
    Summary,
}

impl EntryKind {
    /// All types.
    pub const ALL: [Self; 5] = [Self::Message, Self::ToolUse, Self::ToolResult, Self::Compaction, Self::Summary];
}

/// An entry of a transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TranscriptEntry {
    json: Json,
    fields: Fields,
}

/// The fields that every entry has.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields {
    #[serde(rename = "type")]
    kind: EntryKind,
    id: String,
    #[serde(default)]
    parent_id: Option<String>,
    #[serde(deserialize_with = "moment")]
    timestamp: Timestamp,
}

impl TranscriptEntry {
    /// Reads an entry: an object with `type`, `id`, `timestamp` (RFC 3339, or seconds since 1970) and, except for the first, `parentId`.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) for an object without these, and for a bad id.
    pub fn parse(json: Json) -> Result<Self> {
        let fields: Fields = json.view().map_err(|error| {
            let message = format!("the entry of the transcript needs `type`, `id` and `timestamp`: {}", error.message());
            Error::invalid_argument(message)
        })?;
        check_entry_id(&fields.id)?;
        Ok(Self { json, fields })
    }

    /// Returns the whole entry.
    pub fn json(&self) -> &Json {
        &self.json
    }

    /// Returns its type.
    pub fn kind(&self) -> EntryKind {
        self.fields.kind
    }

    /// Returns its id.
    pub fn id(&self) -> &str {
        &self.fields.id
    }

    /// Returns the entry that it follows; `None` for the first.
    pub fn parent_id(&self) -> Option<&str> {
        self.fields.parent_id.as_deref()
    }

    /// Returns when it happened.
    pub fn timestamp(&self) -> Timestamp {
        self.fields.timestamp
    }
}

/// Reads a time as text, or as seconds since 1970 with a fraction.
fn moment<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Moment {
        Text(String),
        Seconds(f64),
    }
    let out_of_range = || serde::de::Error::custom("the time is out of range");
    match Moment::deserialize(deserializer)? {
        Moment::Text(text) => text.parse().map_err(serde::de::Error::custom),
        Moment::Seconds(seconds) if seconds.is_finite() => {
            let micros = (seconds * 1e6).round();
            let whole = (micros.abs() < 9e17).then_some(micros as i64).ok_or_else(out_of_range)?;
            Timestamp::from_microsecond(whole).map_err(|_| out_of_range())
        }
        Moment::Seconds(_) => Err(out_of_range()),
    }
}
