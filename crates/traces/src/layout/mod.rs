//! Imports and exports traces in the directories of the original.
//!
//! ```text
//! {directory}/{trace}/
//!   meta.json                     the trace
//!   goal.json                     its goals
//!   events.jsonl                  its events, one on each line
//!   messages/{message}.json       a message
//! ```
//!
//! The directory is usually called `.trace`. [`import_directory`] and [`export_directory`] use one on the host.
//!
//! # What an export returns
//!
//! The files of an imported trace are kept with their bytes. An export writes these bytes for everything that did not change since:
//! indentation, order of fields, unknown fields and files, line ends, and damaged files and lines. A changed message, goal tree or trace is
//! written as Python's `json.dump` does with `indent=2` and `ensure_ascii=False`; its unchanged fields keep their place, and unknown ones
//! stay. New events follow the lines that were imported. What was created here is written in the same form, with times as `isoformat`
//! returns them. Empty directories are not kept.
//!
//! # What an import takes
//!
//! A trace appears with the last commit of its import, or not at all; [`TracesSweeper`](crate::TracesSweeper) removes the rows of an
//! interrupted import after an hour. Importing the same files again changes nothing. Sequences, parents, heads and event ids stay as they
//! are, with these rules:
//!
//! - A directory without a readable `meta.json` is not imported: without it, the user of the trace is unknown.
//! - A message must name its role and sequence, and a parent before it. Otherwise its file is kept, but is not a message here.
//! - Of several messages with one sequence, the one with the default id counts, otherwise the first by name. The others are kept as files.
//! - A sequence without a message gets a placeholder: a message of the side branch [`MISSING`] that says so, so that sequences here have no
//!   gap. A parent without a file is such a placeholder. An event id without an event gets an event [`MISSING`]. Placeholders are not
//!   exported.
//! - A head that no message has is replaced by the last message that is not part of a side branch.
//! - An event that does not come after the one before it is not taken.
//!
//! All of this is reported as [`Damage`].

#[cfg(all(feature = "filesystem", unix))]
mod export;
#[cfg(all(feature = "filesystem", unix))]
mod host;
#[cfg(all(feature = "filesystem", unix))]
mod import;
#[cfg(all(feature = "filesystem", unix))]
mod lines;
#[cfg(all(feature = "filesystem", unix))]
mod merge;
#[cfg(all(feature = "filesystem", unix))]
mod missing;
#[cfg(all(feature = "filesystem", unix))]
mod paths;
pub(crate) mod python;
#[cfg(all(feature = "filesystem", unix))]
mod read;
pub(crate) mod render;
#[cfg(all(feature = "filesystem", unix))]
mod survey;

#[cfg(all(feature = "filesystem", unix))]
pub use export::{ExportOptions, ExportReport, ExportedTrace, export_directory};
#[cfg(all(feature = "filesystem", unix))]
pub use import::{ImportOptions, import_directory};

use crate::id::TraceId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use treehold_core::error::Error;

/// The side branch of placeholders for missing messages, and the kind of placeholders for missing events.
pub const MISSING: &str = "missing";

/// The most damages of one trace that a report lists.
pub const DAMAGES_MAX: usize = 1_000;

/// The result of importing a directory.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct ImportReport {
    /// The traces that are there now, those of earlier imports included.
    pub traces: Vec<ImportedTrace>,
    /// The entries that were not imported, each with its error.
    pub failures: Vec<(String, Error)>,
    /// How many traces were left out because they belong to other users.
    pub left_out: usize,
}

/// A trace that was imported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct ImportedTrace {
    /// The id.
    #[schemars(with = "String")]
    #[serde(serialize_with = "as_text", deserialize_with = "from_text")]
    pub id: TraceId,
    /// Whether an earlier call imported the same files.
    pub repeated: bool,
    /// How many messages this call took.
    pub messages: u64,
    /// How many events this call took.
    pub events: u64,
    /// How many files were kept that are neither messages nor parts of the layout, damaged ones included.
    pub other_files: u64,
    /// What was not taken as it is, the first [`DAMAGES_MAX`] of [`damages_count`](Self::damages_count).
    pub damages: Vec<Damage>,
    /// How many damages there are.
    pub damages_count: u64,
}

/// A file, line or field that was not taken as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Damage {
    /// The file beneath the directory of the trace.
    pub path: String,
    /// The line, from 1; `None` for the whole file.
    pub line: Option<u64>,
    /// Why.
    pub reason: String,
}

fn as_text<S: serde::Serializer>(id: &TraceId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

fn from_text<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<TraceId, D::Error> {
    TraceId::new(String::deserialize(deserializer)?).map_err(|error| serde::de::Error::custom(error.message()))
}
