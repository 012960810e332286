//! What lies under the directories of memory beside the memory files: a list of notes, newest first, with the first line of each.

use super::comments::{without_comments, without_comments_of_start};
use super::{LOOKS_MAX, MemoryReader};
use futures::StreamExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::HashSet;
use treehold_core::error::{ErrorKind, ErrorRecord};
use treehold_core::file;
use treehold_core::ops::{Entry, Failure, GlobOptions, OnFailure, ReadOptions, Version};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_tree::backend::Backend;

/// The most files that are listed under one directory. The newest of them are found among these.
pub const INDEX_FILES_MAX: usize = 10_000;

/// How many of the newest notes are kept with their first lines.
pub(super) const NOTES_MAX: usize = 100;

/// How much of a note is read to find its first line, in bytes.
const LINE_BYTES_READ: u64 = 2_048;

/// The longest first line that is shown, in characters.
const LINE_CHARS_MAX: usize = 100;

/// The files under a directory of memory, beside those that are shown whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct MemoryIndex {
    /// The directory.
    pub path: VfsPathBuf,
    /// How many files lie there. Hidden and ignored files do not count.
    pub files: usize,
    /// Their size in bytes.
    pub size_bytes: u64,
    /// Whether there are more files than were listed, [`INDEX_FILES_MAX`].
    pub is_cut: bool,
    /// The newest files, newest first, at most 100.
    pub notes: Vec<MemoryNote>,
}

/// A file that a [`MemoryIndex`] names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct MemoryNote {
    /// Its path.
    pub path: VfsPathBuf,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// When its content last changed, if the tier knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<Timestamp>,
    /// Its first line with text, cut to 100 characters; empty if it has none, is binary, or could not be read.
    pub first_line: String,
}

/// A first line and the version that it was read from.
pub(super) type KeptLine = (Version, String);

impl MemoryReader {
    /// Lists what lies under a directory, except for some files, with what could not be listed. A directory that does not exist has nothing.
    pub(super) async fn list(&self, tree: &dyn Backend, path: &VfsPath, except: &[VfsPathBuf]) -> (MemoryIndex, Vec<Failure>) {
        let mut index = MemoryIndex { path: path.to_owned(), files: 0, size_bytes: 0, is_cut: false, notes: Vec::new() };
        let mut options = GlobOptions::new("**");
        options.scope.on_failure = OnFailure::Partial;
        options.limit = INDEX_FILES_MAX + except.len();
        let found = match tree.glob(path, &options).await {
            Ok(found) => found,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return (index, Vec::new()),
            Err(error) => return (index, vec![Failure { path: path.to_owned(), error: ErrorRecord::from(&error) }]),
        };
        let mut entries: Vec<Entry> = found.entries.into_iter().filter(|entry| !except.contains(&entry.path)).collect();
        index.is_cut = found.truncated.is_some();
        let failures = found.failures;
        (index.files, index.size_bytes) = (entries.len(), entries.iter().map(|entry| entry.size_bytes).sum());
        // Files of an unknown time come last.
        entries.sort_by(|one, other| other.modified_at.cmp(&one.modified_at).then_with(|| one.path.cmp(&other.path)));
        entries.truncate(NOTES_MAX);
        let lines: Vec<BoxFuture<'_, String>> = entries.iter().map(|entry| Box::pin(self.first_line(tree, entry)) as _).collect();
        let lines: Vec<String> = futures::stream::iter(lines).buffered(LOOKS_MAX).collect().await;
        let notes = entries.into_iter().zip(lines);
        index.notes = notes
            .map(|(entry, first_line)| MemoryNote {
                path: entry.path,
                size_bytes: entry.size_bytes,
                modified_at: entry.modified_at,
                first_line,
            })
            .collect();
        (index, failures)
    }

    /// Returns the first line of a file, from the cache if the file has not changed.
    async fn first_line(&self, tree: &dyn Backend, entry: &Entry) -> String {
        let kept = self.lines.lock().get(&entry.path).filter(|(version, _)| Some(*version) == entry.version).cloned();
        if let Some((_, line)) = kept {
            return line;
        }
        let Ok(read) = tree.read(&entry.path, &ReadOptions::bytes(0, LINE_BYTES_READ)).await else { return String::new() };
        let is_cut = read.size_bytes > read.content.len() as u64;
        let line =
            if file::is_binary(&read.content) { String::new() } else { first_line_of(&String::from_utf8_lossy(&read.content), is_cut) };
        self.lines.lock().insert(entry.path.clone(), (read.version, line.clone()));
        line
    }

    /// Drops the lines of files that no index names any more.
    pub(super) fn forget_lines(&self, indexes: &[MemoryIndex]) {
        let mut lines = self.lines.lock();
        if lines.len() > NOTES_MAX * indexes.len().max(1) {
            let named: HashSet<&VfsPathBuf> = indexes.iter().flat_map(|index| index.notes.iter().map(|note| &note.path)).collect();
            lines.retain(|path, _| named.contains(path));
        }
    }
}

/// Returns the first line with letters or digits of a text without comments, on one line and cut. In a text that is only the start of a
/// file, a comment that is not closed goes on after it.
fn first_line_of(text: &str, is_cut: bool) -> String {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let text = if is_cut { without_comments_of_start(text) } else { without_comments(text) };
    let has_words = |line: &&str| line.contains(char::is_alphanumeric);
    one_line(text.lines().find(has_words).unwrap_or_default())
}

/// Writes a text on one line: control characters become spaces, and a long text is cut.
pub(super) fn one_line(text: &str) -> String {
    let trimmed = text.trim();
    let mut line = unbroken(trimmed.chars().take(LINE_CHARS_MAX));
    if trimmed.chars().nth(LINE_CHARS_MAX).is_some() {
        line.push('…');
    }
    line
}

/// Writes all of a path on one line.
pub(super) fn whole_line(path: &VfsPath) -> String {
    unbroken(path.as_str().chars())
}

fn unbroken(letters: impl Iterator<Item = char>) -> String {
    letters.map(|letter| if is_breaking(letter) { ' ' } else { letter }).collect()
}

/// Returns whether a character may end a line, change the direction of the text after it, or hide text from people.
fn is_breaking(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{061C}' | '\u{200E}' | '\u{200F}' | '\u{2028}' | '\u{2029}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}'
            | '\u{E0000}'..='\u{E007F}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use treehold_core::ops::StatOptions;
    use treehold_tree::backend::{BackendExt, StateBackend};

    #[test]
    fn first_line_is_one_line_of_bounded_length() {
        for (text, line) in [
            ("", ""),
            ("\n---\n\n  # Deploying  \nmore", "# Deploying"),
            ("<!-- by Ada -->\nNever on Fridays\n", "Never on Fridays"),
            ("\u{feff}first\r\nsecond", "first"),
            ("a\u{2028}b\tc\u{202E}d", "a b c d"),
        ] {
            assert_eq!(first_line_of(text, false), line, "{text:?}");
        }
        assert_eq!(first_line_of(&"é".repeat(101), false), format!("{}…", "é".repeat(100)));
        assert_eq!(first_line_of(&"é".repeat(100), false), "é".repeat(100));
    }

    /// Regression: a comment that ended after the part that was read was shown as text.
    #[tokio::test]
    async fn comment_that_ends_beyond_the_part_that_is_read_is_not_shown() {
        const COMMENT_BYTES: usize = "<!--ada-->".len();
        let tree = StateBackend::new();
        let path = VfsPath::parse("/a.md").expect("a legal path");
        for end in (COMMENT_BYTES..COMMENT_BYTES + 8).chain(LINE_BYTES_READ as usize - 8..LINE_BYTES_READ as usize + 8) {
            let comment = format!("<!--ada{}-->", " ".repeat(end - COMMENT_BYTES));
            for (before, after) in [("", "\nshown\n"), ("", ""), ("\n\n", &*format!("{}shown", " ".repeat(9_000)))] {
                tree.write(path.as_str(), format!("{before}{comment}{after}")).await.expect("written");
                let entry = tree.stat(&path, &StatOptions::new()).await.expect("an entry");
                let line = MemoryReader::new().first_line(&tree, &entry).await;
                assert!("shown".starts_with(&line), "{end} {before:?}: {line:?}");
                let is_reached = before.len() + comment.len() + after.len() <= LINE_BYTES_READ as usize;
                assert!(!is_reached || line == after.trim(), "{end} {before:?}: {line:?}");
            }
        }
        // A mark that opens no comment hides nothing, and an open one at the end of a whole file is text.
        let rest = "x".repeat(3_000);
        for (text, line) in [
            (format!("`<!--` opens a comment\n{rest}"), "`<!--` opens a comment"),
            (format!("```\n<!-- shown\n{rest}"), "<!-- shown"),
            (format!("first <!-- {rest}"), "first"),
            ("<!-- open".to_owned(), "<!-- open"),
        ] {
            tree.write(path.as_str(), text).await.expect("written");
            let entry = tree.stat(&path, &StatOptions::new()).await.expect("an entry");
            assert_eq!(MemoryReader::new().first_line(&tree, &entry).await, line);
        }
    }
}
