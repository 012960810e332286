//! `edit_file`: replacements within one file, all or none.

use super::render::{self, LINE_CHARS_MAX};
use super::{Hints, Tool, ToolOutput};
use crate::backend::{Backend, BackendExt};
use crate::error::{Error, Result};
use crate::ops::{Change, Edit, ReadOptions};
use crate::path::VfsPathBuf;
use crate::text;
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The largest file in bytes whose change is shown.
const SHOWN_BYTES_MAX: u64 = 1 << 20;

/// How many lines around the change are shown.
const CONTEXT_LINES: usize = 2;

/// How many lines of the change are shown.
const SHOWN_LINES_MAX: usize = 12;

/// The arguments of `edit_file`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct EditFile {
    /// The file to edit, absolute.
    #[schemars(with = "String")]
    pub path: VfsPathBuf,
    /// The text to replace, copied exactly; it must occur once unless replace_all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub old_string: Option<String>,
    /// The text that takes its place; empty to remove.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub new_string: Option<String>,
    /// Replaces every occurrence.
    #[serde(default)]
    pub replace_all: bool,
    /// Several replacements instead of one, applied in order, all or none.
    #[serde(default)]
    pub edits: Vec<Replacement>,
}

/// One of several replacements.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Replacement {
    /// The text to replace, copied exactly; it must occur once unless replace_all.
    pub old_string: String,
    /// The text that takes its place; empty to remove.
    pub new_string: String,
    /// Replaces every occurrence.
    #[serde(default)]
    pub replace_all: bool,
}

impl EditFile {
    /// Replaces the one occurrence of a text.
    pub fn new(path: impl Into<VfsPathBuf>, old_string: impl Into<String>, new_string: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            old_string: Some(old_string.into()),
            new_string: Some(new_string.into()),
            replace_all: false,
            edits: Vec::new(),
        }
    }

    fn edits(&self) -> Result<Vec<Edit>> {
        match (&self.old_string, &self.new_string, self.edits.is_empty()) {
            (Some(old), Some(new), true) => Ok(vec![Edit { old: old.clone(), new: new.clone(), replace_all: self.replace_all }]),
            (None, None, false) => Ok(self.edits.iter().map(|edit| self.one_of_several(edit)).collect()),
            (None, None, true) => Err(Error::invalid_argument("`edit_file` needs `old_string` and `new_string`, or `edits`")),
            (Some(_), None, true) => {
                Err(Error::invalid_argument("`edit_file` needs `new_string` too; give the empty text to remove `old_string`"))
            }
            (None, Some(_), true) => {
                Err(Error::invalid_argument("`edit_file` needs `old_string` too; to write a whole file use write_file"))
            }
            (_, _, false) => Err(Error::invalid_argument("`edit_file` takes either `old_string` and `new_string` or `edits`, not both")),
        }
    }

    fn one_of_several(&self, edit: &Replacement) -> Edit {
        Edit { old: edit.old_string.clone(), new: edit.new_string.clone(), replace_all: edit.replace_all || self.replace_all }
    }
}

impl Tool for EditFile {
    const NAME: &'static str = "edit_file";
    const TITLE: &'static str = "Edit file";
    const DESCRIPTION: &'static str = "Replaces exact text in one file.\n\n\
        - old_string must match the file exactly, white space included, and occur once: add surrounding lines to make it \
        unique, or set replace_all.\n\
        - For several changes to one file give edits; they are applied in order, all or none.";
    const HINTS: Hints = Hints::Writes { idempotent: false };
    const PATHS: &'static [&'static str] = &["path"];
    const ALIASES: &'static [(&'static str, &'static str)] =
        &[("file_path", "path"), ("filePath", "path"), ("old_str", "old_string"), ("new_str", "new_string")];

    async fn run(&self, backend: &dyn Backend) -> Result<ToolOutput> {
        let edits = self.edits()?;
        // The edit itself is the backend's, so that it is atomic; this copy only shows where the change lies.
        let before = backend.read(&self.path, &ReadOptions::new().with_bytes_max(SHOWN_BYTES_MAX)).await.ok().map(|read| read.content);
        let expected = before.and_then(|before| Some((text::edit(&before, &edits).ok()?.0, before)));
        let changed = backend.apply_one(Change::Edit { path: self.path.clone(), edits, expect: None }).await?;
        let mut text = format!("Edited {} ({})", self.path, render::counted(changed.replacements, "replacement"));
        if let Some((after, before)) = expected.filter(|(after, _)| after.len() as u64 == changed.size_bytes) {
            text.push_str(&snippet(&before, &after));
        }
        Ok(ToolOutput::new(text).with_data(json!(changed)))
    }
}

/// Shows the lines between the first and the last that changed, with numbers and a little context.
fn snippet(before: &Bytes, after: &[u8]) -> String {
    if before[..] == *after {
        return "; the content is the same as before".to_owned();
    }
    let same_start = before.iter().zip(after).take_while(|(old, new)| old == new).count();
    let same_end = before[same_start..].iter().rev().zip(after[same_start..].iter().rev()).take_while(|(old, new)| old == new).count();
    let first = text::line_at(after, same_start).saturating_sub(CONTEXT_LINES).max(1);
    let last = (text::line_at(after, after.len() - same_end) + CONTEXT_LINES).min(text::count_lines(after));
    let shown = last.min(first + SHOWN_LINES_MAX - 1);
    let mut text = match last {
        last if last < first => return "; the file is empty now".to_owned(),
        last if last == shown => format!("; lines {first}-{last} are now:"),
        last => format!("; lines {first}-{last} changed and start:"),
    };
    let lines = after.split(|byte| *byte == b'\n').enumerate().skip(first - 1).take(shown + 1 - first);
    for (index, line) in lines {
        let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line));
        let (part, more) = render::cut_line(&line, 0, LINE_CHARS_MAX / 10);
        text.push_str(&format!("\n{}\t{part}{}", index + 1, if more { "..." } else { "" }));
    }
    text
}
