//! `edit_file`: replacements in one file, all or none.

use super::render::{self, LINE_CHARS_MAX};
use super::{FileTool, Hints, ToolOutput};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use similar::{Algorithm, DiffTag, capture_diff_slices_deadline};
use std::ops::Range;
use std::time::{Duration, Instant};
use treehold_core::error::{Error, Result};
use treehold_core::ops::{Change, Edit, ReadOptions};
use treehold_core::path::VfsPathBuf;
use treehold_core::text;
use treehold_core::text::merge::LineNumbers;
use treehold_core::work;
use treehold_tree::backend::{Backend, BackendExt};

/// The largest file, in bytes, for which the answer shows the change.
const SHOWN_BYTES_MAX: u64 = 1 << 20;

/// How many context lines are shown around a change.
const CONTEXT_LINES: usize = 2;

/// How many lines of a change are shown.
const SHOWN_LINES_MAX: usize = 12;

/// The most lines, between the first and the last change, that are compared to find exactly what changed.
const COMPARED_LINES_MAX: usize = 2000;

/// How long to search for a minimal difference; after that the answer may show more lines than changed.
const COMPARED_FOR: Duration = Duration::from_millis(200);

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
    /// The replacement text; empty to remove.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub new_string: Option<String>,
    /// Replaces every occurrence.
    #[serde(default)]
    pub replace_all: bool,
    /// Several replacements instead of one, applied in order, all or nothing.
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
    /// The replacement text; empty to remove.
    pub new_string: String,
    /// Replaces every occurrence.
    #[serde(default)]
    pub replace_all: bool,
}

impl EditFile {
    /// Replaces the only occurrence of a text.
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

impl FileTool for EditFile {
    const NAME: &'static str = "edit_file";
    const TITLE: &'static str = "Edit file";
    const DESCRIPTION: &'static str = "Replaces exact text in one file.\n\n\
        - old_string must match the file exactly, white space included, and occur once: add surrounding lines to make it \
        unique, or set replace_all.\n\
        - For several changes to one file, give edits; they are applied in order, all or nothing.";
    const HINTS: Hints = Hints::Writes { idempotent: false };
    const PATHS: &'static [&'static str] = &["path"];
    const ALIASES: &'static [(&'static str, &'static str)] =
        &[("file_path", "path"), ("filePath", "path"), ("old_str", "old_string"), ("new_str", "new_string")];

    async fn run(&self, backend: &dyn Backend) -> Result<ToolOutput> {
        let edits = self.edits()?;
        // The backend performs the edit atomically; this copy only locates the change.
        let before = backend.read(&self.path, &ReadOptions::new().with_bytes_max(SHOWN_BYTES_MAX)).await.ok().map(|read| read.content);
        let expected = match before {
            Some(before) => text::edit_apart(&before, &edits).await.ok().map(|(after, _)| (after, before)),
            None => None,
        };
        let changed = backend.apply_one(Change::Edit { path: self.path.clone(), edits, expect: None }).await?;
        let mut text = format!("Edited {} ({})", self.path, render::counted(changed.replacements, "replacement"));
        if let Some((after, before)) = expected.filter(|(after, _)| after.len() as u64 == changed.size_bytes) {
            let cost_bytes = (before.len() + after.len()) as u64;
            text.push_str(&work::run(cost_bytes, move |_| snippet(&before, &after)).await?);
        }
        Ok(ToolOutput::new(text).with_data(json!(changed)))
    }
}

/// Shows the changed lines with numbers and a little context.
fn snippet(before: &[u8], after: &[u8]) -> String {
    if before == after {
        return "; the content is the same as before".to_owned();
    }
    if after.is_empty() {
        return "; the file is empty now".to_owned();
    }
    let lines: Vec<&[u8]> = lines(after);
    let mut text = "; it now reads:".to_owned();
    let mut left = SHOWN_LINES_MAX;
    for (index, hunk) in changed_lines(&self::lines(before), &lines).into_iter().enumerate() {
        if index > 0 || left == 0 {
            text.push_str("\n...");
        }
        for number in hunk.take(left) {
            let line = String::from_utf8_lossy(text::trim_terminator(lines[number]));
            let (part, more) = render::cut_line(&line, 0, LINE_CHARS_MAX / 10);
            text.push_str(&format!("\n{}\t{part}{}", number + 1, if more { "..." } else { "" }));
            left -= 1;
        }
        if left == 0 {
            break;
        }
    }
    text
}

fn lines(content: &[u8]) -> Vec<&[u8]> {
    content.split_inclusive(|byte| *byte == b'\n').inspect(|line| work::advance(line.len())).collect()
}

/// Returns the line ranges of `after` that differ from `before`, each with context.
fn changed_lines(before: &[&[u8]], after: &[&[u8]]) -> Vec<Range<usize>> {
    let same_start = before.iter().zip(after).take_while(|(old, new)| old == new).count();
    let rest = (&before[same_start..], &after[same_start..]);
    let same_end = rest.0.iter().rev().zip(rest.1.iter().rev()).take_while(|(old, new)| old == new).count();
    let (old, new) = (&rest.0[..rest.0.len() - same_end], &rest.1[..rest.1.len() - same_end]);
    let around = |range: Range<usize>| range.start.saturating_sub(CONTEXT_LINES)..(range.end + CONTEXT_LINES).min(after.len());
    if old.len().max(new.len()) > COMPARED_LINES_MAX {
        return vec![around(same_start..same_start + new.len())];
    }
    let mut numbers = LineNumbers::default();
    let (old, new) = (numbers.of(old), numbers.of(new));
    let operations = capture_diff_slices_deadline(Algorithm::Myers, &old, &new, Instant::now().checked_add(COMPARED_FOR));
    let mut runs: Vec<Range<usize>> = Vec::new();
    for operation in operations.iter().filter(|operation| operation.tag() != DiffTag::Equal) {
        let range = operation.new_range();
        let run = around(same_start + range.start..same_start + range.end);
        match runs.last_mut().filter(|last| run.start <= last.end) {
            Some(last) => last.end = run.end,
            None => runs.push(run),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::super::stage::{call, played, tree};
    use super::*;
    use treehold_core::error::ErrorKind;

    #[tokio::test]
    async fn answers_match_snapshot() {
        let many: String = (1..=60).map(|number| format!("line {number}\n")).collect();
        let backend =
            tree(&[("/f", "one\ntwo\nthree\ntwo\nfive\n"), ("/crlf", "a\r\nb\r\nc\r\n"), ("/many", &many), ("/word", "word")]).await;
        let calls = [
            json!({"path": "/f", "old_string": "three", "new_string": "3"}),
            json!({"path": "/f", "old_string": "two", "new_string": "2"}),
            json!({"path": "/f", "old_string": "two", "new_string": "2", "replace_all": true}),
            json!({"path": "/f", "old_string": "nine", "new_string": "9"}),
            json!({"path": "/f", "edits": [{"old_string": "one", "new_string": "1"}, {"old_string": "five\n", "new_string": "5\n6\n"}]}),
            json!({"path": "/f", "edits": [{"old_string": "1", "new_string": "x"}, {"old_string": "seven", "new_string": "7"}]}),
            json!({"path": "/f", "old_string": "5\n6\n", "new_string": ""}),
            json!({"path": "/f", "old_string": "3", "new_string": "3"}),
            json!({"path": "/crlf", "old_string": "a\nb", "new_string": "x\ny\nz"}),
            json!({"path": "/many", "edits": [
                {"old_string": "line 10\n", "new_string": "ten\n"},
                {"old_string": "line 50\n", "new_string": "fifty\n"},
            ]}),
            json!({"path": "/word", "old_string": "word", "new_string": ""}),
            json!({"path": "/f", "old_string": "", "new_string": "x"}),
            json!({"path": "/f"}),
            json!({"path": "/f", "old_string": "3"}),
            json!({"path": "/f", "new_string": "3"}),
            json!({"path": "/f", "old_string": "3", "new_string": "4", "edits": [{"old_string": "1", "new_string": "x"}]}),
            json!({"path": "/ff", "old_string": "3", "new_string": "4"}),
        ];
        insta::assert_snapshot!(played(&backend, "edit_file", &calls).await);
        assert_eq!(backend.read_text("/f").await.expect("the file"), "1\n2\n3\n2\n");
        assert_eq!(backend.read_text("/crlf").await.expect("the file"), "x\r\ny\r\nz\r\nc\r\n");
    }

    #[tokio::test]
    async fn ambiguous_edit_reports_its_lines_as_data() {
        let backend = tree(&[("/f", "x\ny\nx\n")]).await;
        let error =
            call(&backend, "edit_file", json!({"path": "/f", "old_string": "x", "new_string": "z"})).await.error.expect("two places");
        assert_eq!((error.code.as_str(), error.lines), (ErrorKind::Ambiguous.code(), vec![1, 3]));
    }
}
