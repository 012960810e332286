//! The file tools of Anthropic's `agent_toolset_20260401`: `read`, `write`, `edit`, `glob` and `grep`, over the same operations.
//!
//! The wording is that of the reference implementation in the Python SDK. Its sixth tool, `bash`, is not offered, since a file tree runs no
//! commands.

use super::render::TEXT_CHARS_MAX;
use super::revise::revise;
use super::{FileTool, Hints, ToolOutput, ToolSet};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::cmp::Reverse;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::file;
use treehold_core::ops::{Change, Edit, GlobOptions, GrepFile, GrepOptions, OnFailure, ReadOptions, StatOptions, WriteMode};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::text;
use treehold_tree::backend::{Backend, BackendExt};

/// The most bytes that one `read` returns.
const READ_BYTES_MAX: u64 = 256 << 10;

/// The most paths that `glob` returns.
const GLOB_PATHS_MAX: usize = 200;

/// The most bytes that `grep` returns.
const GREP_BYTES_MAX: usize = 100 << 10;

/// The arguments of the agent toolset's `read`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct AgentRead {
    /// The file to read, absolute.
    #[serde(rename = "file_path")]
    #[schemars(with = "String")]
    pub path: VfsPathBuf,
    /// The first and last line to return, from 1; 0 or -1 as the last means to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<i64>")]
    pub view_range: Option<Vec<i64>>,
}

/// The arguments of the agent toolset's `write`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct AgentWrite {
    /// The file to write, absolute; missing directories are created.
    #[serde(rename = "file_path")]
    #[schemars(with = "String")]
    pub path: VfsPathBuf,
    /// The whole content.
    pub content: String,
}

/// The arguments of the agent toolset's `edit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct AgentEdit {
    /// The file to edit, absolute.
    #[serde(rename = "file_path")]
    #[schemars(with = "String")]
    pub path: VfsPathBuf,
    /// The text to replace, copied exactly; it must occur once unless replace_all.
    pub old_string: String,
    /// The replacement text; empty to remove.
    pub new_string: String,
    /// Replaces every occurrence.
    #[serde(default)]
    pub replace_all: bool,
}

/// The arguments of the agent toolset's `glob`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct AgentGlob {
    /// The pattern, relative to path: `*` matches within a name, `**/` across directories.
    pub pattern: String,
    /// The directory to search, absolute.
    #[serde(default = "VfsPathBuf::root")]
    #[schemars(with = "String")]
    pub path: VfsPathBuf,
}

/// The arguments of the agent toolset's `grep`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct AgentGrep {
    /// The regular expression.
    pub pattern: String,
    /// The file or directory to search, absolute.
    #[serde(default = "VfsPathBuf::root")]
    #[schemars(with = "String")]
    pub path: VfsPathBuf,
}

impl FileTool for AgentRead {
    const NAME: &'static str = "read";
    const TITLE: &'static str = "Read file";
    const DESCRIPTION: &'static str = "Reads a text file verbatim, up to 256 KiB; of a larger file, only the lines of view_range.";
    const HINTS: Hints = Hints::ReadOnly;
    const SET: ToolSet = ToolSet::Agent;
    const PATHS: &'static [&'static str] = &["file_path"];
    const ALIASES: &'static [(&'static str, &'static str)] = &[("path", "file_path")];

    async fn run(&self, backend: &dyn Backend) -> Result<ToolOutput> {
        let path = &self.path;
        let range = match self.view_range.as_deref() {
            None | Some([]) => None,
            Some([first, last]) => {
                Some((usize::try_from(*first).unwrap_or(1).max(1), usize::try_from(*last).ok().filter(|last| *last > 0)))
            }
            Some(_) => return Err(Error::invalid_argument("read: view_range must be [start_line, end_line]")),
        };
        let options = match range {
            None => ReadOptions::new().with_bytes_max(READ_BYTES_MAX),
            Some((first, last)) => {
                let lines = last.map_or(usize::MAX, |last| (last + 1).saturating_sub(first));
                ReadOptions::lines(first - 1, lines).with_bytes_max(READ_BYTES_MAX)
            }
        };
        let read = match backend.read(path, &options).await {
            Ok(read) => read,
            // A range that starts after the end of the file is empty.
            Err(error) if range.is_some() && error.kind() == ErrorKind::InvalidArgument => {
                return Ok(ToolOutput::new("").with_data(json!({"path": path})));
            }
            Err(error) if error.kind() == ErrorKind::TooLarge => {
                let size =
                    backend.stat(path, &StatOptions::new()).await.map(|entry| format!("{} bytes, ", entry.size_bytes)).unwrap_or_default();
                return Err(error.with_message(format!(
                    "read: {path} is {size}exceeds {READ_BYTES_MAX}-byte limit. Use the view_range parameter to read specific line ranges, \
                     e.g. view_range: [1, 500]."
                )));
            }
            Err(error) => return Err(failed("read", path, error)),
        };
        if file::is_binary(&read.content) {
            return Err(Error::invalid_argument(format!("read: {path}: not valid UTF-8 text (it is binary)")).at(path));
        }
        let mut text = read.text_lossy().into_owned();
        let to_the_end = range.is_none_or(|(_, last)| last.is_none_or(|last| read.window.is_some_and(|window| last > window.total_lines)));
        // Lines are joined with line breaks: the last line has none.
        if !to_the_end && text.ends_with('\n') {
            text.pop();
        }
        let data = json!({"path": path, "version": read.version, "size_bytes": read.size_bytes, "next_offset": read.window.and_then(|window| window.next_offset())});
        Ok(ToolOutput::new(text).with_data(data))
    }
}

impl FileTool for AgentWrite {
    const NAME: &'static str = "write";
    const TITLE: &'static str = "Write file";
    const DESCRIPTION: &'static str = "Creates a file, or replaces its whole content.";
    const HINTS: Hints = Hints::Writes { idempotent: false };
    const SET: ToolSet = ToolSet::Agent;
    const PATHS: &'static [&'static str] = &["file_path"];
    const ALIASES: &'static [(&'static str, &'static str)] = &[("path", "file_path")];

    async fn run(&self, backend: &dyn Backend) -> Result<ToolOutput> {
        let content = Bytes::copy_from_slice(self.content.as_bytes());
        let change = Change::Write { path: self.path.clone(), content, mode: WriteMode::Overwrite };
        let changed = backend.apply_one(change).await.map_err(|error| failed("write", &self.path, error))?;
        Ok(ToolOutput::new(format!("wrote {} bytes to {}", self.content.len(), self.path)).with_data(json!(changed)))
    }
}

impl FileTool for AgentEdit {
    const NAME: &'static str = "edit";
    const TITLE: &'static str = "Edit file";
    const DESCRIPTION: &'static str = "Replaces exact text in one file; the text must occur once unless replace_all.";
    const HINTS: Hints = Hints::Writes { idempotent: false };
    const SET: ToolSet = ToolSet::Agent;
    const PATHS: &'static [&'static str] = &["file_path"];
    const ALIASES: &'static [(&'static str, &'static str)] = &[("path", "file_path")];

    async fn run(&self, backend: &dyn Backend) -> Result<ToolOutput> {
        let path = &self.path;
        let edits = vec![Edit { old: self.old_string.clone(), new: self.new_string.clone(), replace_all: self.replace_all }];
        let given_bytes = edits[0].old.len() + edits[0].new.len();
        let (edits, placed) = (Arc::new(edits), path.clone());
        let revised = revise(backend, path, given_bytes, move |read| {
            let path = &placed;
            text::edit(&read.content, &edits).map_err(|error| {
                let message = match error.kind() {
                    ErrorKind::NoMatch => format!("edit: old_string not found in {path}"),
                    ErrorKind::Ambiguous => {
                        let count = text::occurrences(&read.content, &edits[0]);
                        format!("edit: old_string appears {count} times in {path} (must be unique)")
                    }
                    _ => format!("edit: {}", error.message()),
                };
                error.with_message(message)
            })?;
            Ok((Change::Edit { path: path.clone(), edits: edits.to_vec(), expect: Some(read.version) }, ()))
        });
        let (changed, ()) = revised.await.map_err(|error| failed("edit", path, error))?;
        Ok(ToolOutput::new(format!("edited {path} ({} replacement(s))", changed.replacements)).with_data(json!(changed)))
    }
}

impl FileTool for AgentGlob {
    const NAME: &'static str = "glob";
    const TITLE: &'static str = "Find files by name";
    const DESCRIPTION: &'static str = "Lists what matches a glob pattern, newest first, up to 200 paths.";
    const HINTS: Hints = Hints::ReadOnly;
    const SET: ToolSet = ToolSet::Agent;
    const PATHS: &'static [&'static str] = &["path"];

    async fn run(&self, backend: &dyn Backend) -> Result<ToolOutput> {
        if self.pattern.starts_with('/') {
            let message = "glob: absolute pattern not permitted; pass a relative pattern (and optionally path)";
            return Err(Error::invalid_argument(message));
        }
        if self.pattern.split('/').any(|segment| segment == "..") {
            return Err(Error::invalid_argument("glob: '..' is not permitted in the pattern"));
        }
        let options = GlobOptions::new(format!("/{}", self.pattern))
            .with_directories(true)
            .with_hidden(true)
            .with_ignored(true)
            .with_on_failure(OnFailure::Partial);
        let found = backend.glob(&self.path, &options).await.map_err(|error| failed("glob", &self.path, error))?;
        let mut entries = found.entries;
        entries.sort_by_key(|entry| Reverse(entry.modified_at));
        let paths: Vec<&str> = entries.iter().take(GLOB_PATHS_MAX).map(|entry| entry.path.as_str()).collect();
        let text = if paths.is_empty() { "no matches".to_owned() } else { paths.join("\n") };
        let more = entries.len() > paths.len() || found.truncated.is_some();
        Ok(ToolOutput::new(text).with_data(json!({"paths": paths, "more": more, "failures": found.failures})))
    }
}

impl FileTool for AgentGrep {
    const NAME: &'static str = "grep";
    const TITLE: &'static str = "Search content";
    const DESCRIPTION: &'static str = "Finds lines by a regular expression, as `path:line:text`, up to 100 KiB.";
    const HINTS: Hints = Hints::ReadOnly;
    const SET: ToolSet = ToolSet::Agent;
    const PATHS: &'static [&'static str] = &["path"];

    async fn run(&self, backend: &dyn Backend) -> Result<ToolOutput> {
        // Request no more lines than can be shown: each takes at least six bytes.
        let options = GrepOptions::regex(&self.pattern).with_matches_max(TEXT_CHARS_MAX / 6).with_on_failure(OnFailure::Partial);
        let found = backend.grep(&self.path, &options).await.map_err(|error| match error.kind() {
            ErrorKind::InvalidArgument => {
                let message = format!("grep: invalid regex: {}", error.message());
                error.with_message(message)
            }
            _ => failed("grep", &self.path, error),
        })?;
        let lines: Vec<String> = found.files.iter().flat_map(matching_lines).collect();
        let mut text = if lines.is_empty() { "no matches".to_owned() } else { lines.concat() };
        let is_cut = text.len() > GREP_BYTES_MAX || found.truncated.is_some();
        if is_cut {
            text.truncate(text.floor_char_boundary(GREP_BYTES_MAX));
            text.push_str(&format!("\n[output truncated at {GREP_BYTES_MAX} bytes]"));
        }
        let data = json!({"files_searched": found.files_searched, "files_binary": found.files_binary, "is_cut": is_cut, "failures": found.failures});
        Ok(ToolOutput::new(text).with_data(data))
    }
}

/// Prints the lines of a file that match, each as `path:line:text`.
fn matching_lines(file: &GrepFile) -> impl Iterator<Item = String> {
    file.lines.iter().filter(|line| line.is_match).map(|line| {
        let text = String::from_utf8_lossy(text::trim_terminator(&line.text));
        format!("{}:{}:{}\n", file.path, line.line, text)
    })
}

/// Rewrites an error in the wording of the toolset, unless it already has that wording.
fn failed(tool: &str, path: &VfsPath, error: Error) -> Error {
    let reason = match error.kind() {
        _ if error.message().starts_with(&format!("{tool}: ")) => return error,
        ErrorKind::NotFound => "no such file or directory".to_owned(),
        ErrorKind::NotADirectory => "not a directory".to_owned(),
        ErrorKind::IsDirectory => "not a regular file".to_owned(),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnly => "permission denied".to_owned(),
        _ => error.message().to_owned(),
    };
    error.with_message(format!("{tool}: {path}: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::super::stage::tree;
    use super::*;

    #[tokio::test]
    async fn answers_match_snapshot() {
        let large = format!("{}\n", "x".repeat(99)).repeat(3000);
        let backend =
            tree(&[("/a.md", "one\ntwo\nthree\n"), ("/d/b.py", "x = 1\nx = 2\n"), ("/d/.hidden", "x\n"), ("/large", &large)]).await;
        backend.write("/image", &b"\0\xff"[..]).await.expect("bytes");
        let calls = [
            ("read", json!({"file_path": "/a.md"})),
            ("read", json!({"file_path": "/a.md", "view_range": [2, 3]})),
            ("read", json!({"file_path": "/a.md", "view_range": [3, -1]})),
            ("read", json!({"file_path": "/a.md", "view_range": [9, 12]})),
            ("read", json!({"file_path": "/a.md", "view_range": [1]})),
            ("read", json!({"file_path": "/missing"})),
            ("read", json!({"file_path": "/a.md/x"})),
            ("read", json!({"file_path": "/d"})),
            ("read", json!({"file_path": "/image"})),
            ("read", json!({"file_path": "/large"})),
            ("write", json!({"file_path": "/new/c.md", "content": "é\n"})),
            ("write", json!({"file_path": "/d", "content": ""})),
            ("edit", json!({"file_path": "/d/b.py", "old_string": "x", "new_string": "y"})),
            ("edit", json!({"file_path": "/d/b.py", "old_string": "x", "new_string": "y", "replace_all": true})),
            ("edit", json!({"file_path": "/d/b.py", "old_string": "z", "new_string": "y"})),
            ("edit", json!({"file_path": "/missing", "old_string": "z", "new_string": "y"})),
            ("glob", json!({"pattern": "**/*.py"})),
            ("glob", json!({"pattern": "*", "path": "/d"})),
            ("glob", json!({"pattern": "*.rs"})),
            ("glob", json!({"pattern": "/a"})),
            ("glob", json!({"pattern": "../a"})),
            ("grep", json!({"pattern": "^y = [0-9]"})),
            ("grep", json!({"pattern": "nowhere", "path": "/d"})),
            ("grep", json!({"pattern": "("})),
            ("grep", json!({"pattern": "x", "path": "/missing"})),
        ];
        let mut shown = String::new();
        for (name, arguments) in calls {
            let output = ToolSet::Agent.decode(name, arguments.clone()).expect("a legal call").run(&backend).await;
            assert_eq!(output.is_error, output.data.is_none(), "{name} {arguments}");
            shown.push_str(&format!("> {name} {arguments}\n{}\n", output.text));
        }
        insta::assert_snapshot!(shown);
    }

    #[tokio::test]
    async fn results_are_bounded_and_newest_first() {
        let names: Vec<String> = (0..300).map(|number| format!("/f/{number}")).collect();
        let content = "match\n".repeat(100);
        let backend = tree(&names.iter().map(|name| (name.as_str(), content.as_str())).collect::<Vec<_>>()).await;
        backend.append("/f/7", "more\n").await.expect("changed");
        let run = async |name: &str, arguments| ToolSet::Agent.decode(name, arguments).expect("a legal call").run(&backend).await.text;
        let found = run("glob", json!({"pattern": "f/*"})).await;
        assert_eq!((found.lines().count(), found.lines().next()), (200, Some("/f/7")));
        let found = run("grep", json!({"pattern": "match"})).await;
        assert!(found.ends_with("\n[output truncated at 102400 bytes]"), "{}", &found[found.len() - 60..]);
        assert!(found.len() < GREP_BYTES_MAX + 60);
    }

    #[tokio::test]
    async fn lines_of_a_large_file_are_read_by_range() {
        let backend = tree(&[("/large", &"0123456789\n".repeat(40_000))]).await;
        let call = ToolSet::Agent.decode("read", json!({"file_path": "/large", "view_range": [39_999, 40_000]})).expect("a legal call");
        assert_eq!(call.run(&backend).await.text, "0123456789\n0123456789");
    }
}
