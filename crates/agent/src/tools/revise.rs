//! Changes one file based on its content: read, compute, and write on the condition that the file has not changed meanwhile.

use treehold_core::backoff::LostRaces;
use treehold_core::error::{ErrorKind, Result};
use treehold_core::ops::{Change, Changed, FileRead, ReadOptions};
use treehold_core::path::VfsPath;
use treehold_core::text::{LineEnding, count_lines, folded, scan};
use treehold_core::work;
use treehold_tree::backend::{Backend, BackendExt};

/// How many passes over the content the work takes: to find a place, to number lines, to build the new content, to show it.
const PASSES: u64 = 4;

/// Reads a file, lets `work` compute a change, and applies it. Repeats this on the new content after losing a race.
///
/// The change must expect the version that was read. Returns the result of the change and the extra result of `work`. Work on a large file,
/// or with large `given_bytes` of text, runs on a blocking thread.
///
/// # Errors
/// Those of [`Backend::read`], [`Backend::apply`] and [`work::run`], and those of `work`.
pub(super) async fn revise<T: Send + 'static>(
    backend: &dyn Backend,
    path: &VfsPath,
    given_bytes: usize,
    work: impl Fn(&FileRead) -> Result<(Change, T)> + Clone + Send + 'static,
) -> Result<(Changed, T)> {
    let mut races = LostRaces::new();
    loop {
        let read = backend.read(path, &ReadOptions::new()).await?;
        let (change, made) = worked(read, given_bytes, work.clone()).await?;
        match backend.apply_one(change).await {
            Ok(changed) => return Ok((changed, made)),
            Err(error) => {
                let is_lost_race = error.kind() == ErrorKind::Conflict && !error.may_have_effect();
                if !is_lost_race || !races.lost().await {
                    return Err(error);
                }
            }
        }
    }
}

/// Runs work on content that was read, on a blocking thread if it is large.
///
/// # Errors
/// Those of [`work::run`], and those of `work`.
pub(super) async fn worked<T: Send + 'static>(
    read: FileRead,
    given_bytes: usize,
    work: impl FnOnce(&FileRead) -> Result<T> + Send + 'static,
) -> Result<T> {
    let cost_bytes = PASSES * (read.content.len() + given_bytes) as u64;
    work::run(cost_bytes, move |_| work(&read)).await?
}

/// The lines of a content, split at `\n` only, so that a `\r` belongs to its line. Content that ends in `\n` has an empty last line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lines<'c>(pub(super) &'c [u8]);

impl<'c> Lines<'c> {
    /// Counts the lines: at least one.
    pub(super) fn count(self) -> usize {
        scan::count_ends(self.0) + 1
    }

    /// Returns the lines from a number on, counted from 1.
    pub(super) fn from(self, first: usize) -> impl Iterator<Item = &'c [u8]> {
        let start = scan::after_lines(self.0, first.saturating_sub(1));
        let rest = start.map(|start| self.0[start..].split(|byte| *byte == b'\n'));
        rest.into_iter().flatten().inspect(|line| work::advance(line.len() + 1))
    }
}

/// Inserts a text after `line` lines of a content; the result ends with a line ending. As in the helpers of the SDKs, trailing line
/// endings of the text are dropped. With `takes_ending` the inserted lines end like the line before them, or at the start like the
/// first line; the memory tool's own tests require `\n`. The text is `None` if the content has fewer lines. Also returns the line count.
pub(super) fn insert(content: &[u8], line: i64, text: &str, takes_ending: bool) -> (Option<Vec<u8>>, usize) {
    let lines = count_lines(content);
    let Some(place) = usize::try_from(line).ok().filter(|place| *place <= lines) else { return (None, lines) };
    let (before, behind) = content.split_at(scan::after_lines(content, place).unwrap_or(content.len()));
    let ending = if takes_ending { ending_at(content, before.len()) } else { b"\n" };
    let mut inserted = Vec::with_capacity(content.len() + text.len() + 2 * ending.len());
    let end_line = |content: &mut Vec<u8>| {
        if content.last().is_some_and(|last| *last != b'\n') {
            content.extend_from_slice(ending);
        }
    };
    scan::push(&mut inserted, before);
    end_line(&mut inserted);
    if !takes_ending {
        scan::push(&mut inserted, text.trim_end_matches('\n').as_bytes());
        if !behind.is_empty() {
            inserted.push(b'\n');
            scan::push(&mut inserted, behind.strip_suffix(b"\n").unwrap_or(behind));
        }
        if !inserted.ends_with(b"\n") {
            inserted.push(b'\n');
        }
        return (Some(inserted), lines);
    }
    let text = folded(text.as_bytes());
    let length = text.iter().rposition(|byte| *byte != b'\n').map_or(0, |last| last + 1);
    for line in Lines(&text[..length]).from(1) {
        inserted.extend_from_slice(line);
        inserted.extend_from_slice(ending);
    }
    scan::push(&mut inserted, behind);
    end_line(&mut inserted);
    (Some(inserted), lines)
}

/// Returns the ending for a line inserted where a line of the content starts: that of the nearest line before it, or else of the first
/// line after it; `\n` in content without endings.
fn ending_at(content: &[u8], place: usize) -> &'static [u8] {
    let end = memchr::memrchr(b'\n', &content[..place]).or_else(|| scan::find(&memchr::memmem::Finder::new("\n"), content));
    end.and_then(|end| LineEnding::of_line(&content[..=end])).map_or(b"\n", LineEnding::bytes)
}

/// Returns the line number of each occurrence of a text, including overlapping ones, regardless of line endings; no more
/// than the first `max`, because each may scan the whole text again.
pub(super) fn occurrences(content: &[u8], text: &[u8], max: usize) -> Vec<usize> {
    let (content, text) = (folded(content), folded(text));
    let finder = memchr::memmem::Finder::new(&*text);
    let (mut found, mut start, mut line) = (Vec::new(), 0, 1);
    while found.len() < max
        && let Some(at) = content.get(start..).filter(|_| !text.is_empty()).and_then(|rest| scan::find(&finder, rest))
    {
        work::advance(text.len());
        line += scan::count_ends(&content[start..start + at]);
        found.push(line);
        line += usize::from(content[start + at] == b'\n');
        start += at + 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_inserted_after_the_given_line() {
        for (content, line, text, expected, count) in [
            ("a\nb", 1, "x", Some("a\nx\nb\n"), 2),
            ("a\nb\n", 2, "x\n\n", Some("a\nb\nx\n"), 2),
            ("a\r\nb\r\n", 1, "x", Some("a\r\nx\r\nb\r\n"), 2),
            ("a\r\nb\r\n", 2, "x\ny\r\n", Some("a\r\nb\r\nx\r\ny\r\n"), 2),
            ("a\r\nb", 2, "x", Some("a\r\nb\r\nx\r\n"), 2),
            ("a\r\nb\nc\r\n", 1, "x", Some("a\r\nx\r\nb\nc\r\n"), 3),
            ("a\r\nb\nc\r\n", 2, "x\r\ny", Some("a\r\nb\nx\ny\nc\r\n"), 3),
            ("a\r\nb\nc", 3, "x", Some("a\r\nb\nc\nx\n"), 3),
            ("a\r\nb\nc\r\n", 0, "x", Some("x\r\na\r\nb\nc\r\n"), 3),
            ("a\r\n", 0, "", Some("\r\na\r\n"), 1),
            ("", 0, "x", Some("x\n"), 0),
            ("a\n", 0, "", Some("\na\n"), 1),
            ("\n", 1, "x", Some("\nx\n"), 1),
            ("a\n", 2, "x", None, 1),
            ("a\n", -1, "x", None, 1),
        ] {
            let (inserted, found) = insert(content.as_bytes(), line, text, true);
            assert_eq!(inserted.as_deref(), expected.map(str::as_bytes), "{content:?} {line}");
            assert_eq!(found, count, "{content:?}");
        }
        let (inserted, _) = insert(b"a\r\nb\r\n", 1, "x", false);
        assert_eq!(inserted.as_deref(), Some(&b"a\r\nx\nb\r\n"[..]));
    }

    #[test]
    fn each_occurrence_is_reported_with_its_line() {
        assert_eq!(occurrences(b"x\ny\nx x\n", b"x", 9), [1, 3, 3]);
        assert_eq!(occurrences(b"aaa", b"aa", 9), [1, 1]);
        assert_eq!(occurrences(b"a\nb\na\nb\n", b"\nb", 9), [1, 3]);
        assert_eq!(occurrences(b"a\r\nb\na\nb\r\n", b"a\r\nb", 9), [1, 3]);
        assert!(occurrences(b"a", b"", 9).is_empty());
        assert_eq!(occurrences(b"x\nx\nx\n", b"x", 2), [1, 2]);
    }

    /// Inserts as the helper of the Python SDK does: splits the lines and joins them again.
    fn joined(content: &str, line: usize, text: &str) -> String {
        let mut lines: Vec<&str> = content.split('\n').collect();
        lines.pop_if(|last| last.is_empty());
        lines.insert(line, text.trim_end_matches('\n'));
        let joined = lines.join("\n");
        if joined.ends_with('\n') { joined } else { joined + "\n" }
    }

    proptest::proptest! {
        #[test]
        fn insert_agrees_with_joined_lines(content in "[a\r\n]{0,8}", line in 0..8_usize, text in "[b\n]{0,4}") {
            let (inserted, lines) = insert(content.as_bytes(), line as i64, &text, false);
            proptest::prop_assert_eq!(inserted.is_some(), line <= lines);
            if let Some(inserted) = inserted {
                proptest::prop_assert_eq!(String::from_utf8(inserted).expect("text"), joined(&content, line, &text));
            }
        }

        #[test]
        fn lines_agree_with_splitting_at_line_feeds(content in "[ab\r\n]{0,12}", first in 1..6_usize) {
            let lines = Lines(content.as_bytes());
            let all: Vec<&[u8]> = content.as_bytes().split(|byte| *byte == b'\n').collect();
            proptest::prop_assert_eq!(lines.count(), all.len());
            proptest::prop_assert_eq!(lines.from(first).collect::<Vec<_>>(), all.get(first - 1..).unwrap_or_default());
        }
    }
}
