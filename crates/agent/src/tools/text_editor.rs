//! `str_replace_based_edit_tool`: Anthropic's text editor (`text_editor_20250728`) over the same operations.
//!
//! The wording is that of its documentation. `create` only makes new files; the other commands change existing ones, so the model never
//! overwrites content that it has not seen.

use super::outline::outline;
use super::render::{self, LINE_CHARS_MAX, Page};
use super::revise::{self, revise};
use super::{FileTool, Hints, ToolOutput, ToolSet};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::file;
use treehold_core::ops::{Change, Edit, FileRead, ReadOptions, WriteMode};
use treehold_core::path::VfsPathBuf;
use treehold_core::text;
use treehold_tree::backend::{Backend, BackendExt};

/// The arguments of `str_replace_based_edit_tool`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TextEditor {
    /// What to do.
    pub command: TextEditorCommand,
    /// The file, absolute; for view also a directory.
    #[schemars(with = "String")]
    pub path: VfsPathBuf,
    /// For view: the first and last line to show, from 1; -1 as the last means to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<i64>")]
    pub view_range: Option<Vec<i64>>,
    /// For create: the content of the new file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub file_text: Option<String>,
    /// For str_replace: the text to replace, copied exactly; it must occur once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub old_str: Option<String>,
    /// For str_replace: the replacement text; omit it to remove the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub new_str: Option<String>,
    /// For insert: after how many lines the text is inserted; 0 for the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64")]
    pub insert_line: Option<i64>,
    /// For insert: the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub insert_text: Option<String>,
    /// The most characters of a file that view shows. It is not an argument of a call: the definition of the tool sets it
    /// ([`TextEditor::with_definition`]).
    #[serde(skip)]
    #[schemars(skip)]
    pub max_characters: Option<usize>,
}

/// What `str_replace_based_edit_tool` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TextEditorCommand {
    /// Shows a file with line numbers, or a directory.
    View,
    /// Replaces a text in a file.
    StrReplace,
    /// Creates a file.
    Create,
    /// Inserts lines into a file.
    Insert,
}

impl TextEditor {
    fn of(command: TextEditorCommand, path: VfsPathBuf) -> Self {
        Self {
            command,
            path,
            view_range: None,
            file_text: None,
            old_str: None,
            new_str: None,
            insert_line: None,
            insert_text: None,
            max_characters: None,
        }
    }

    /// Applies the tool definition that a program sent to the API: `max_characters`, if present.
    ///
    /// ```
    /// use serde_json::json;
    /// use treehold_agent::tools::{TextEditor, ToolCall, ToolSet};
    ///
    /// let definition = json!({"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 10_000});
    /// let call = ToolSet::TextEditor.decode("str_replace_based_edit_tool", json!({"command": "view", "path": "/a.md"}))?;
    /// let ToolCall::TextEditor(call) = call else { unreachable!("the set has one tool") };
    /// assert_eq!(call.with_definition(&definition).max_characters, Some(10_000));
    /// # Ok::<(), treehold_core::Error>(())
    /// ```
    #[must_use]
    pub fn with_definition(mut self, definition: &serde_json::Value) -> Self {
        self.max_characters = definition["max_characters"].as_u64().map(|most| usize::try_from(most).unwrap_or(usize::MAX));
        self
    }

    /// Shows a file or directory.
    pub fn view(path: impl Into<VfsPathBuf>) -> Self {
        Self::of(TextEditorCommand::View, path.into())
    }

    /// Creates a file.
    pub fn create(path: impl Into<VfsPathBuf>, text: impl Into<String>) -> Self {
        Self { file_text: Some(text.into()), ..Self::of(TextEditorCommand::Create, path.into()) }
    }

    /// Replaces the one occurrence of a text in a file.
    pub fn str_replace(path: impl Into<VfsPathBuf>, old: impl Into<String>, new: impl Into<String>) -> Self {
        Self { old_str: Some(old.into()), new_str: Some(new.into()), ..Self::of(TextEditorCommand::StrReplace, path.into()) }
    }

    /// Inserts lines after a line of a file.
    pub fn insert(path: impl Into<VfsPathBuf>, line: i64, text: impl Into<String>) -> Self {
        Self { insert_line: Some(line), insert_text: Some(text.into()), ..Self::of(TextEditorCommand::Insert, path.into()) }
    }
}

impl FileTool for TextEditor {
    const NAME: &'static str = "str_replace_based_edit_tool";
    const TITLE: &'static str = "Text editor";
    const DESCRIPTION: &'static str = "Views, creates and edits text files.\n\n\
        - view shows a file with line numbers, or a directory two levels deep; create makes a new file and never changes an existing one; \
        str_replace replaces text that occurs once, white space included; insert adds lines after a line.";
    const HINTS: Hints = Hints::Writes { idempotent: false };
    const SET: ToolSet = ToolSet::TextEditor;
    const PATHS: &'static [&'static str] = &["path"];

    async fn run(&self, backend: &dyn Backend) -> Result<ToolOutput> {
        let done = match self.command {
            TextEditorCommand::View => self.run_view(backend).await,
            TextEditorCommand::StrReplace => self.run_str_replace(backend).await,
            TextEditorCommand::Create => self.run_create(backend).await,
            TextEditorCommand::Insert => self.run_insert(backend).await,
        };
        done.map_err(|error| worded(self.command, error))
    }
}

impl TextEditor {
    async fn run_view(&self, backend: &dyn Backend) -> Result<ToolOutput> {
        let (first, last) = match self.view_range.as_deref() {
            None | Some([]) => (1, None),
            Some([first, last]) => (usize::try_from(*first).unwrap_or(1).max(1), usize::try_from(*last).ok()),
            Some(_) => return Err(Error::invalid_argument("view_range must be [first line, last line]")),
        };
        match backend.read(&self.path, &ReadOptions::new()).await {
            Ok(read) => {
                let view = View { path: self.path.clone(), first, last, characters_max: self.max_characters };
                revise::worked(read, 0, move |read| view.of(read)).await
            }
            Err(error) if error.kind() == ErrorKind::IsDirectory => {
                let (text, data) = outline(backend, &self.path, self.path.as_str(), Self::NAME, false).await?;
                Ok(ToolOutput::new(text).with_data(data))
            }
            Err(error) => Err(error),
        }
    }

    async fn run_str_replace(&self, backend: &dyn Backend) -> Result<ToolOutput> {
        let (old, new) = (needed(&self.old_str, "old_str")?, self.new_str.as_deref().unwrap_or_default());
        let (edits, path) = (Arc::new(vec![Edit::new(old, new)]), self.path.clone());
        // The backend makes the edit; the content is read to count the occurrences.
        let (changed, ()) = revise(backend, &self.path, old.len() + new.len(), move |read| {
            text::edit(&read.content, &edits).map_err(|error| match error.kind() {
                ErrorKind::NoMatch => error.with_message("No match found for replacement. Please check your text and try again."),
                ErrorKind::Ambiguous => {
                    let count = text::occurrences(&read.content, &edits[0]);
                    error.with_message(format!(
                        "Found {count} matches for replacement text. Please provide more context to make a unique match."
                    ))
                }
                _ => error,
            })?;
            Ok((Change::Edit { path: path.clone(), edits: edits.to_vec(), expect: Some(read.version) }, ()))
        })
        .await?;
        Ok(ToolOutput::new("Successfully replaced text at exactly one location.").with_data(json!(changed)))
    }

    async fn run_create(&self, backend: &dyn Backend) -> Result<ToolOutput> {
        let content = Bytes::copy_from_slice(needed(&self.file_text, "file_text")?.as_bytes());
        let change = Change::Write { path: self.path.clone(), content, mode: WriteMode::CreateNew };
        let changed = backend.apply_one(change).await.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists | ErrorKind::IsDirectory => {
                error.with_message(format!("{} exists already. Change it by str_replace or insert.", self.path))
            }
            _ => error,
        })?;
        Ok(ToolOutput::new(format!("File created successfully at: {}", self.path)).with_data(json!(changed)))
    }

    async fn run_insert(&self, backend: &dyn Backend) -> Result<ToolOutput> {
        let text = needed(&self.insert_text, "insert_text")?;
        let line = self.insert_line.ok_or_else(|| missing("insert_line"))?;
        let (path, given): (_, Arc<str>) = (self.path.clone(), text.into());
        let (changed, ()) = revise(backend, &self.path, text.len(), move |read| {
            let (inserted, lines) = revise::insert(&read.content, line, &given, true);
            let content = inserted.ok_or_else(|| {
                Error::invalid_argument(format!("Invalid `insert_line` parameter: {line}. It should be within the range [0, {lines}]."))
            })?;
            Ok((Change::Write { path: path.clone(), content: content.into(), mode: WriteMode::IfVersion(read.version) }, ()))
        })
        .await?;
        Ok(ToolOutput::new(format!("The file {} has been edited.", self.path)).with_data(json!(changed)))
    }
}

/// A view of a file, or of some lines of it.
struct View {
    path: VfsPathBuf,
    first: usize,
    last: Option<usize>,
    characters_max: Option<usize>,
}

impl View {
    fn of(self, read: &FileRead) -> Result<ToolOutput> {
        let Self { first, last, .. } = self;
        if file::is_binary(&read.content) {
            return Err(Error::invalid_argument(format!("{} is binary; only text can be shown", self.path)));
        }
        let lines = text::count_lines(&read.content);
        let last = last.unwrap_or(lines).min(lines);
        let chars_max = self.characters_max.unwrap_or(usize::MAX).max(1);
        let line_chars_max = LINE_CHARS_MAX.min(chars_max);
        let mut page = Page::new(TextEditor::NAME).with_chars_max(chars_max);
        let (mut next, mut cut) = (first, Vec::new());
        for line in revise::Lines(&read.content).from(first).take((last + 1).saturating_sub(first)) {
            let line = String::from_utf8_lossy(line);
            let (part, more) = render::cut_line(&line, 0, line_chars_max);
            if !page.push(&format!("{}{next}: {part}", if next > first { "\n" } else { "" })) {
                break;
            }
            if more {
                cut.push(next);
            }
            next += 1;
        }
        if next <= last {
            let total = render::thousands(lines as u64);
            page.note(format!("lines {first}-{} of {total}; to continue, set view_range=[{next}, -1]", next - 1));
        } else if lines == 0 {
            page.note(format!("`{}` is empty", self.path));
        } else if first > lines {
            page.note(format!("the file has {}", render::counted(lines, "line")));
        }
        if !cut.is_empty() {
            page.note(format!("{} cut after {} characters", render::counted(cut.len(), "line"), render::thousands(line_chars_max as u64)));
        }
        let data = json!({
            "path": self.path,
            "version": read.version,
            "size_bytes": read.size_bytes,
            "first_line": first,
            "last_line": next.saturating_sub(1),
            "total_lines": lines,
            "cut_lines": cut,
        });
        Ok(ToolOutput::new(page.finish()).with_data(data))
    }
}

fn needed<'a>(argument: &'a Option<String>, name: &str) -> Result<&'a str> {
    argument.as_deref().ok_or_else(|| missing(name))
}

fn missing(name: &str) -> Error {
    Error::invalid_argument(format!("`{name}` is required for this command."))
}

/// Rewrites an error in the wording of the tool.
fn worded(command: TextEditorCommand, error: Error) -> Error {
    let writes = command != TextEditorCommand::View;
    let message = match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory if command != TextEditorCommand::Create => "Error: File not found".to_owned(),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnly if writes => "Error: Permission denied. Cannot write to file.".to_owned(),
        ErrorKind::PermissionDenied => "Error: Permission denied. Cannot read file.".to_owned(),
        _ => format!("Error: {}", error.message()),
    };
    error.with_message(message)
}

#[cfg(test)]
mod tests {
    use super::super::stage::{played, tree};
    use super::*;
    use treehold_tree::backend::BackendExt;

    #[tokio::test]
    async fn answers_match_snapshot() {
        let backend =
            tree(&[("/src/primes.py", "def f():\n    return 1\n"), ("/twice", "x\ny\nx\n"), ("/crlf", "a\r\nb\r\n"), ("/e", "")]).await;
        let calls = [
            json!({"command": "view", "path": "/src/primes.py"}),
            json!({"command": "view", "path": "/src/primes.py", "view_range": [2, -1]}),
            json!({"command": "view", "path": "/src/primes.py", "view_range": [9, 12]}),
            json!({"command": "view", "path": "/src/primes.py", "view_range": [1]}),
            json!({"command": "view", "path": "/crlf"}),
            json!({"command": "view", "path": "/e"}),
            json!({"command": "view", "path": "/"}),
            json!({"command": "view", "path": "/missing"}),
            json!({"command": "str_replace", "path": "/src/primes.py", "old_str": "return 1", "new_str": "return 2"}),
            json!({"command": "str_replace", "path": "/src/primes.py", "old_str": "return 3", "new_str": ""}),
            json!({"command": "str_replace", "path": "/twice", "old_str": "x", "new_str": "z"}),
            json!({"command": "str_replace", "path": "/twice", "old_str": "y\n"}),
            json!({"command": "str_replace", "path": "/missing", "old_str": "y", "new_str": "z"}),
            json!({"command": "str_replace", "path": "/twice"}),
            json!({"command": "create", "path": "/new/a.md", "file_text": "one\n"}),
            json!({"command": "create", "path": "/new/a.md", "file_text": "two\n"}),
            json!({"command": "create", "path": "/e/below", "file_text": ""}),
            json!({"command": "insert", "path": "/new/a.md", "insert_line": 1, "insert_text": "two"}),
            json!({"command": "insert", "path": "/new/a.md", "insert_line": 7, "insert_text": "two"}),
            json!({"command": "insert", "path": "/src", "insert_line": 0, "insert_text": "two"}),
        ];
        insta::assert_snapshot!(played(&backend, TextEditor::NAME, &calls).await);
        assert_eq!(backend.read_text("/new/a.md").await.expect("the file"), "one\ntwo\n");
        assert_eq!(backend.read_text("/twice").await.expect("the file"), "x\nx\n");
    }

    #[tokio::test]
    async fn view_is_limited_to_the_characters_in_the_tool_definition() {
        let backend = tree(&[("/a", "one\ntwo\nthree\n"), ("/long", &"x".repeat(50))]).await;
        let view = async |path: &str, most: u64| {
            let path = VfsPathBuf::parse(path).expect("legal");
            let call = TextEditor::view(path).with_definition(&json!({"max_characters": most}));
            call.run(&backend).await.expect("shown").text
        };
        let name = TextEditor::NAME;
        assert_eq!(view("/a", 13).await, format!("1: one\n2: two\n\n[{name}] lines 1-2 of 3; to continue, set view_range=[3, -1]"));
        assert_eq!(view("/a", 100_000_000).await, "1: one\n2: two\n3: three");
        assert_eq!(view("/long", 10).await, format!("1: xxxxxxxxxx\n\n[{name}] 1 line cut after 10 characters"));
        assert!(view("/a", 0).await.starts_with("1: o\n\n"));
    }

    #[tokio::test]
    async fn read_only_tree_is_reported_as_permission_denied() {
        let backend = treehold_tree::layer::Layered::new(treehold_tree::layer::ReadOnly::new(), tree(&[("/a", "x\n")]).await);
        let calls = [json!({"command": "str_replace", "path": "/a", "old_str": "x", "new_str": "y"})];
        assert!(played(&backend, TextEditor::NAME, &calls).await.ends_with("\nError: Permission denied. Cannot write to file.\n"));
    }
}
