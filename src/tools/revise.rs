//! One file changed on what it holds: read, worked out, and written on the condition that nobody wrote meanwhile.

use crate::backend::{Backend, BackendExt};
use crate::error::{ErrorKind, Result};
use crate::ops::{Change, Changed, FileRead, ReadOptions};
use crate::path::VfsPath;
use crate::text::{LineEnding, ending_before, folded};

/// How often a change that met another writer is worked out anew. Each time another writer got on, so only a file that is written
/// without end comes to this.
const ATTEMPTS_MAX: usize = 100;

/// Reads a file, has a change of it worked out, and applies that; does so again on the fresh content when it met another writer.
///
/// The change has to expect the version that was read. Returns what the change did and what `work` made beside it.
///
/// # Errors
/// Those of [`Backend::read`] and [`Backend::apply`], and those of `work`.
pub(super) async fn revise<T: Send>(
    backend: &dyn Backend,
    path: &VfsPath,
    work: impl Fn(&FileRead) -> Result<(Change, T)> + Send + Sync,
) -> Result<(Changed, T)> {
    let mut attempt = 1;
    loop {
        let read = backend.read(path, &ReadOptions::new()).await?;
        let (change, made) = work(&read)?;
        match backend.apply_one(change).await {
            Ok(changed) => return Ok((changed, made)),
            Err(error) if error.kind() == ErrorKind::Conflict && !error.may_have_effect() && attempt < ATTEMPTS_MAX => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Splits a content at `\n` alone, so that a `\r` stays with its line. What ends in `\n` has an empty last line.
pub(super) fn lines(content: &[u8]) -> Vec<&[u8]> {
    content.split(|byte| *byte == b'\n').collect()
}

/// Inserts a text after `line` lines of a content; the result ends with the end of a line. As the helpers of the SDKs do, the text counts
/// without the line ends that it ends with. With `takes_ending` the inserted lines end as the line before them does, or at the start as the
/// first line; the memory tool's own tests ask for `\n`. None when the content has fewer lines; how many it has stands beside.
pub(super) fn insert(content: &[u8], line: i64, text: &str, takes_ending: bool) -> (Option<Vec<u8>>, usize) {
    let lines: Vec<&[u8]> = content.split_inclusive(|byte| *byte == b'\n').collect();
    let Some(place) = usize::try_from(line).ok().filter(|place| *place <= lines.len()) else { return (None, lines.len()) };
    if !takes_ending {
        let mut joined = self::lines(content);
        joined.pop_if(|last| last.is_empty());
        joined.insert(place, text.trim_end_matches('\n').as_bytes());
        let mut inserted = joined.join(&b'\n');
        if !inserted.ends_with(b"\n") {
            inserted.push(b'\n');
        }
        return (Some(inserted), lines.len());
    }
    let endings: Vec<Option<LineEnding>> = lines.iter().map(|line| LineEnding::of_line(line)).collect();
    let ending = ending_before(&endings, place).bytes();
    let (before, behind) = lines.split_at(place);
    let mut inserted = before.concat();
    let end_line = |content: &mut Vec<u8>| {
        if content.last().is_some_and(|last| *last != b'\n') {
            content.extend_from_slice(ending);
        }
    };
    end_line(&mut inserted);
    let text = folded(text.as_bytes());
    let length = text.iter().rposition(|byte| *byte != b'\n').map_or(0, |last| last + 1);
    for line in text[..length].split(|byte| *byte == b'\n') {
        inserted.extend_from_slice(line);
        inserted.extend_from_slice(ending);
    }
    behind.iter().for_each(|line| inserted.extend_from_slice(line));
    end_line(&mut inserted);
    (Some(inserted), lines.len())
}

/// Numbers the lines that a text occurs on, whatever their endings, overlapping occurrences included, each occurrence by itself.
pub(super) fn occurrences(content: &[u8], text: &[u8]) -> Vec<usize> {
    let (content, text) = (folded(content), folded(text));
    let finder = memchr::memmem::Finder::new(&*text);
    let (mut found, mut start, mut line) = (Vec::new(), 0, 1);
    while let Some(at) = content.get(start..).and_then(|rest| finder.find(rest)).filter(|_| !text.is_empty()) {
        line += memchr::memchr_iter(b'\n', &content[start..start + at]).count();
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
    fn inserts_by_line() {
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
    fn numbers_each_occurrence() {
        assert_eq!(occurrences(b"x\ny\nx x\n", b"x"), [1, 3, 3]);
        assert_eq!(occurrences(b"aaa", b"aa"), [1, 1]);
        assert_eq!(occurrences(b"a\nb\na\nb\n", b"\nb"), [1, 3]);
        assert_eq!(occurrences(b"a\r\nb\na\nb\r\n", b"a\r\nb"), [1, 3]);
        assert!(occurrences(b"a", b"").is_empty());
    }
}
