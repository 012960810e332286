//! `memory`: Anthropic's memory tool (`memory_20250818`), with the answers that models know.
//!
//! Six commands, all within `/memories`, whatever tier is mounted there. The wording is that of the Python SDK's
//! helper; the heading of a directory is that of the documentation. This tool is stricter in two ways: `/memories`
//! matches as a whole segment, so `/memories_old` is refused, and so are disguised `..` segments. Changes require that
//! the file is unchanged since it was read and are recomputed otherwise, so concurrent writers lose nothing.

mod path;
#[cfg(test)]
mod tests;

use self::path::{ROOT, escapes, within};
use super::outline::outline;
use super::render::{self, Page};
use super::revise::{self, revise};
use super::{FileTool, Hints, ToolOutput, ToolSet};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::file;
use treehold_core::ops::{Change, Edit, EntryKind, FileRead, ReadOptions, StatOptions, WriteMode};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::text;
use treehold_tree::backend::{Backend, BackendExt, StateBackend};

/// The most lines of a file that is shown.
const LINES_MAX: usize = 999_999;

/// The most characters shown of one line.
const LINE_CHARS_MAX: usize = render::TEXT_CHARS_MAX / 2;

/// How many context lines are shown around a replacement.
const CONTEXT_LINES: usize = 2;

/// The most lines with an occurrence that are listed.
const OCCURRENCES_NAMED_MAX: usize = 200;

/// The arguments of `memory`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Memory {
    /// What to do.
    pub command: MemoryCommand,
    /// For view, create, str_replace, insert and delete: the file or directory, such as /memories/notes.md.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub path: Option<String>,
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
    /// For rename: the file or directory to rename or move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub old_path: Option<String>,
    /// For rename: the full new path, which must not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub new_path: Option<String>,
}

/// What `memory` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemoryCommand {
    /// Shows a file with line numbers, or a directory.
    View,
    /// Creates a file.
    Create,
    /// Replaces a text in a file.
    StrReplace,
    /// Inserts lines into a file.
    Insert,
    /// Removes a file or directory.
    Delete,
    /// Renames or moves a file or directory.
    Rename,
}

impl Memory {
    fn of(command: MemoryCommand) -> Self {
        Self {
            command,
            path: None,
            view_range: None,
            file_text: None,
            old_str: None,
            new_str: None,
            insert_line: None,
            insert_text: None,
            old_path: None,
            new_path: None,
        }
    }

    /// Shows a file or directory.
    pub fn view(path: impl Into<String>) -> Self {
        Self { path: Some(path.into()), ..Self::of(MemoryCommand::View) }
    }

    /// Creates a file.
    pub fn create(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { path: Some(path.into()), file_text: Some(text.into()), ..Self::of(MemoryCommand::Create) }
    }

    /// Replaces the one occurrence of a text in a file.
    pub fn str_replace(path: impl Into<String>, old: impl Into<String>, new: impl Into<String>) -> Self {
        Self { path: Some(path.into()), old_str: Some(old.into()), new_str: Some(new.into()), ..Self::of(MemoryCommand::StrReplace) }
    }

    /// Inserts lines after a line of a file.
    pub fn insert(path: impl Into<String>, line: i64, text: impl Into<String>) -> Self {
        Self { path: Some(path.into()), insert_line: Some(line), insert_text: Some(text.into()), ..Self::of(MemoryCommand::Insert) }
    }

    /// Removes a file, or a directory with all it holds.
    pub fn delete(path: impl Into<String>) -> Self {
        Self { path: Some(path.into()), ..Self::of(MemoryCommand::Delete) }
    }

    /// Renames or moves a file or directory.
    pub fn rename(old: impl Into<String>, new: impl Into<String>) -> Self {
        Self { old_path: Some(old.into()), new_path: Some(new.into()), ..Self::of(MemoryCommand::Rename) }
    }
}

impl FileTool for Memory {
    const NAME: &'static str = "memory";
    const TITLE: &'static str = "Memory";
    const DESCRIPTION: &'static str = "Keeps notes under /memories that outlast this conversation.\n\n\
        - Before a task, view /memories and the files relevant to it; during the task, write down what a later conversation needs.\n\
        - view shows a directory two levels deep, or a file with line numbers; create makes a new file and never changes an existing one; \
        str_replace replaces text that occurs once; insert adds lines after a line; delete and rename also work on directories.\n\
        - Keep files few, short and true: correct what is outdated instead of adding to it. Store no secrets.";
    const HINTS: Hints = Hints::Writes { idempotent: false };
    const SET: ToolSet = ToolSet::Memory;
    const PATHS: &'static [&'static str] = &[];

    async fn run(&self, backend: &dyn Backend) -> Result<ToolOutput> {
        let path = || needed(&self.path, "path");
        match self.command {
            MemoryCommand::View => view(backend, path()?, self.range()?).await,
            MemoryCommand::Create => create(backend, path()?, needed(&self.file_text, "file_text")?).await,
            MemoryCommand::StrReplace => {
                let new = self.new_str.as_deref().unwrap_or_default();
                str_replace(backend, path()?, needed(&self.old_str, "old_str")?, new).await
            }
            MemoryCommand::Insert => {
                let line = self.insert_line.ok_or_else(|| missing("insert_line"))?;
                insert(backend, path()?, line, needed(&self.insert_text, "insert_text")?).await
            }
            MemoryCommand::Delete => delete(backend, path()?).await,
            MemoryCommand::Rename => rename(backend, needed(&self.old_path, "old_path")?, needed(&self.new_path, "new_path")?).await,
        }
    }
}

impl Memory {
    /// Returns the path that a `delete` removes recursively; `None` for other commands and for a refused path.
    pub fn removed(&self) -> Option<VfsPathBuf> {
        let path = self.path.as_deref().filter(|_| self.command == MemoryCommand::Delete)?;
        within(path).ok().filter(|path| *path != ROOT)
    }

    /// Returns the first line to show and, unless it is the end, the last.
    fn range(&self) -> Result<(usize, Option<usize>)> {
        match self.view_range.as_deref() {
            None | Some([]) => Ok((1, None)),
            Some([first, last]) => Ok((usize::try_from(*first).unwrap_or(1).max(1), usize::try_from(*last).ok())),
            Some(_) => Err(Error::invalid_argument("Invalid `view_range` parameter. It should be [first line, last line].")),
        }
    }
}

fn needed<'a>(argument: &'a Option<String>, name: &str) -> Result<&'a str> {
    argument.as_deref().ok_or_else(|| missing(name))
}

fn missing(name: &str) -> Error {
    Error::invalid_argument(format!("Parameter `{name}` is required for this command."))
}

/// Parses a path within `/memories`, and refuses one that leads outside through a link. If `follows_last` is false, a
/// final link is not followed, because the command means the link itself. As in the SDK helpers, `/memories` itself may
/// be a link, and links within it may be followed.
///
/// Cost: one `stat` per directory on the path, only for trees with host links.
pub(super) async fn placed(backend: &dyn Backend, shown: &str, follows_last: bool) -> Result<VfsPathBuf> {
    let path = within(shown)?;
    if backend.capabilities().symlinks {
        let on_the_way = path.ancestors().filter(|step| step.as_str().len() > ROOT.len());
        let last = (follows_last && path != ROOT).then_some(&*path);
        for step in on_the_way.chain(last) {
            // A missing step leads nowhere, and an unreadable one fails the operation that follows.
            let Ok(entry) = backend.stat(step, &StatOptions::new()).await else { break };
            if entry.kind == EntryKind::Symlink && !is_inside(backend, entry.leads_to.as_deref()).await {
                return Err(says(ErrorKind::PermissionDenied, escapes(shown)).at(&path));
            }
        }
    }
    Ok(path)
}

/// Returns whether the target of a link lies within `/memories`.
async fn is_inside(backend: &dyn Backend, leads_to: Option<&VfsPath>) -> bool {
    let Some(leads_to) = leads_to else { return false };
    let root = VfsPathBuf::parse(ROOT).expect("the root of memories is a legal path");
    let real = backend.stat(&root, &StatOptions::new()).await.ok().and_then(|entry| entry.leads_to).unwrap_or(root);
    leads_to.starts_with(&real)
}

async fn view(backend: &dyn Backend, shown: &str, (first, last): (usize, Option<usize>)) -> Result<ToolOutput> {
    let path = placed(backend, shown, true).await?;
    match backend.read(&path, &ReadOptions::new()).await {
        Ok(read) => {
            let view = View { shown: shown.to_owned(), path, first, last };
            revise::worked(read, 0, move |read| view.of(read)).await
        }
        Err(error) if error.kind() == ErrorKind::IsDirectory => {
            let (text, data) = outline(backend, &path, shown, Memory::NAME, true).await?;
            Ok(ToolOutput::new(text).with_data(data))
        }
        // If `/memories` does not exist yet, show it as an empty directory.
        Err(error) if error.kind() == ErrorKind::NotFound && path == ROOT => {
            let (text, mut data) = outline(&StateBackend::new(), VfsPath::ROOT, shown, Memory::NAME, true).await?;
            data["path"] = json!(path);
            Ok(ToolOutput::new(text).with_data(data))
        }
        Err(error) => Err(unread(backend, shown, &path, error).await),
    }
}

/// A view of a file, or of some lines of it.
struct View {
    shown: String,
    path: VfsPathBuf,
    first: usize,
    last: Option<usize>,
}

impl View {
    fn of(self, read: &FileRead) -> Result<ToolOutput> {
        let Self { shown, path, first, last } = self;
        if file::is_binary(&read.content) {
            return Err(says(ErrorKind::InvalidArgument, format!("Unsupported file type for {shown}")));
        }
        let lines = revise::Lines(&read.content).count();
        if lines > LINES_MAX {
            return Err(says(ErrorKind::TooLarge, format!("File {shown} exceeds maximum line limit of 999,999 lines.")));
        }
        let last = last.unwrap_or(lines).min(lines);
        let mut page = Page::new(Memory::NAME);
        let _ = page.push(&format!("Here's the content of {shown} with line numbers:\n"));
        let (mut next, mut cut) = (first, Vec::new());
        for line in revise::Lines(&read.content).from(first).take((last + 1).saturating_sub(first)) {
            let line = String::from_utf8_lossy(line);
            let (part, more) = render::cut_line(&line, 0, LINE_CHARS_MAX);
            if !page.push(&format!("{}{}", if next > first { "\n" } else { "" }, numbered(next, part))) {
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
        } else if first > lines {
            page.note(format!("the file has {}", render::counted(lines, "line")));
        }
        for line in &cut {
            page.note(format!("line {line} is cut after {} characters", render::thousands(LINE_CHARS_MAX as u64)));
        }
        let data = json!({
            "path": path,
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

fn numbered(number: usize, line: &str) -> String {
    format!("{number:>6}\t{line}")
}

async fn create(backend: &dyn Backend, shown: &str, text: &str) -> Result<ToolOutput> {
    let path = placed(backend, shown, true).await?;
    let exists = || says(ErrorKind::AlreadyExists, format!("File {shown} already exists"));
    if path == ROOT {
        return Err(exists());
    }
    let content = Bytes::copy_from_slice(text.as_bytes());
    let change = Change::Write { path: path.clone(), content, mode: WriteMode::CreateNew };
    match backend.apply_one(change).await {
        Ok(changed) => Ok(ToolOutput::new(format!("File created successfully at: {shown}")).with_data(json!(changed))),
        Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::IsDirectory) => Err(exists()),
        Err(error) => Err(led_out(backend, shown, &path, error).await),
    }
}

async fn str_replace(backend: &dyn Backend, shown: &str, old: &str, new: &str) -> Result<ToolOutput> {
    let path = placed(backend, shown, true).await?;
    let (edits, named, placed) = (Arc::new(vec![Edit::new(old, new)]), shown.to_owned(), path.clone());
    let revised = revise(backend, &path, old.len() + new.len(), move |read| {
        let old = &edits[0].old;
        let after = text::edit(&read.content, &edits).map_err(|error| unreplaced(&named, &read.content, old, error))?.0;
        let change = Change::Edit { path: placed.clone(), edits: edits.to_vec(), expect: Some(read.version) };
        Ok((change, snippet(&read.content, &after, &edits[0])))
    });
    match revised.await {
        Ok((changed, snippet)) => {
            let text = format!("The memory file has been edited. Here is the snippet showing the change (with line numbers):\n{snippet}");
            Ok(ToolOutput::new(text).with_data(json!(changed)))
        }
        Err(error) => Err(unread(backend, shown, &path, error).await),
    }
}

/// Explains why a text was not replaced.
fn unreplaced(shown: &str, content: &[u8], old: &str, error: Error) -> Error {
    match error.kind() {
        ErrorKind::NoMatch => {
            error.with_message(format!("No replacement was performed, old_str `{old}` did not appear verbatim in {shown}."))
        }
        ErrorKind::Ambiguous => {
            let mut lines = revise::occurrences(content, old.as_bytes(), OCCURRENCES_NAMED_MAX + 1);
            if lines.is_empty() {
                lines = error.lines().to_vec();
            }
            let more = if lines.len() > OCCURRENCES_NAMED_MAX { ", ..." } else { "" };
            let named: Vec<String> = lines.iter().take(OCCURRENCES_NAMED_MAX).map(ToString::to_string).collect();
            let message = format!(
                "No replacement was performed. Multiple occurrences of old_str `{old}` in lines: {}{more}. Please ensure it is unique",
                named.join(", ")
            );
            error.with_message(message)
        }
        ErrorKind::InvalidArgument if old.is_empty() => {
            error.with_message("No replacement was performed, old_str is empty. Give the text to replace, or use insert.")
        }
        _ => error,
    }
}

/// Shows the start of a replacement with context.
fn snippet(before: &[u8], after: &[u8], edit: &Edit) -> String {
    let line = text::line_at(before, text::position(before, edit).map_or(0, |place| place.start));
    let first = line.saturating_sub(CONTEXT_LINES).max(1);
    let shown = (first..=line + CONTEXT_LINES).zip(revise::Lines(after).from(first.min(revise::Lines(after).count())));
    let shown = shown.map(|(number, line)| {
        let line = String::from_utf8_lossy(line);
        let (part, more) = render::cut_line(&line, 0, LINE_CHARS_MAX / 10);
        format!("{}{}", numbered(number, part), if more { "..." } else { "" })
    });
    shown.collect::<Vec<_>>().join("\n")
}

async fn insert(backend: &dyn Backend, shown: &str, line: i64, text: &str) -> Result<ToolOutput> {
    let path = placed(backend, shown, true).await?;
    let (given, placed): (Arc<str>, _) = (text.into(), path.clone());
    let revised = revise(backend, &path, text.len(), move |read| {
        let (inserted, lines) = revise::insert(&read.content, line, &given, false);
        let content = inserted.ok_or_else(|| {
            let message = format!("Invalid `insert_line` parameter: {line}. It should be within the range [0, {lines}].");
            says(ErrorKind::InvalidArgument, message)
        })?;
        Ok((Change::Write { path: placed.clone(), content: content.into(), mode: WriteMode::IfVersion(read.version) }, ()))
    });
    match revised.await {
        Ok((changed, ())) => Ok(ToolOutput::new(format!("The file {shown} has been edited.")).with_data(json!(changed))),
        Err(error) => Err(unread(backend, shown, &path, error).await),
    }
}

async fn delete(backend: &dyn Backend, shown: &str) -> Result<ToolOutput> {
    let path = placed(backend, shown, false).await?;
    if path == ROOT {
        return Err(says(ErrorKind::PermissionDenied, "Cannot delete the /memories directory itself"));
    }
    match backend.apply_one(Change::Delete { path: path.clone(), recursive: true, expect: None }).await {
        Ok(changed) => Ok(ToolOutput::new(format!("Successfully deleted {shown}")).with_data(json!(changed))),
        Err(error) if is_missing(&error) => Err(says(ErrorKind::NotFound, format!("The path {shown} does not exist")).at(&path)),
        Err(error) => Err(led_out(backend, shown, &path, error).await),
    }
}

async fn rename(backend: &dyn Backend, shown: &str, to_shown: &str) -> Result<ToolOutput> {
    let (path, to) = (placed(backend, shown, false).await?, placed(backend, to_shown, false).await?);
    if path == ROOT {
        return Err(says(ErrorKind::PermissionDenied, "Cannot rename the /memories directory itself"));
    }
    let exists = || says(ErrorKind::AlreadyExists, format!("The destination {to_shown} already exists")).at(&to);
    // Renaming a path to itself is refused, because the destination exists.
    if to == ROOT || (path == to && backend.stat(&to, &StatOptions::new()).await.is_ok()) {
        return Err(exists());
    }
    match backend.apply_one(Change::Rename { from: path.clone(), to: to.clone(), overwrite: false }).await {
        Ok(changed) => Ok(ToolOutput::new(format!("Successfully renamed {shown} to {to_shown}")).with_data(json!(changed))),
        Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::IsDirectory) => Err(exists()),
        // The helpers check the destination first; and a path below a file may be the source or the destination.
        Err(error) if is_missing(&error) || error.kind() == ErrorKind::InvalidArgument => {
            match (backend.stat(&path, &StatOptions::new()).await, backend.stat(&to, &StatOptions::new()).await) {
                (_, Ok(_)) => Err(exists()),
                (Ok(_), Err(_)) => Err(error),
                (Err(_), Err(_)) => Err(says(ErrorKind::NotFound, format!("The path {shown} does not exist")).at(&path)),
            }
        }
        Err(error) => {
            let error = led_out(backend, shown, &path, error).await;
            Err(led_out(backend, to_shown, &to, error).await)
        }
    }
}

/// Explains in the tool's wording why a file could not be read or changed.
async fn unread(backend: &dyn Backend, shown: &str, path: &VfsPath, error: Error) -> Error {
    match error.kind() {
        _ if path == ROOT && is_missing(&error) => says(ErrorKind::IsDirectory, format!("The path {shown} is not a file.")).at(path),
        _ if is_missing(&error) => {
            says(ErrorKind::NotFound, format!("The path {shown} does not exist. Please provide a valid path.")).at(path)
        }
        ErrorKind::IsDirectory => says(ErrorKind::IsDirectory, format!("The path {shown} is not a file.")).at(path),
        _ => led_out(backend, shown, path, error).await,
    }
}

/// Replaces the error of a path that was refused because of a link on its way; other errors are returned unchanged.
async fn led_out(backend: &dyn Backend, shown: &str, path: &VfsPath, error: Error) -> Error {
    if error.kind() == ErrorKind::PermissionDenied {
        for above in path.ancestors() {
            if backend.stat(above, &StatOptions::new()).await.is_ok_and(|entry| entry.kind == EntryKind::Symlink) {
                return error.with_message(escapes(shown));
            }
        }
    }
    error
}

fn is_missing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn says(kind: ErrorKind, message: impl Into<String>) -> Error {
    Error::new(kind, message)
}
