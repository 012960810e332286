//! Patches that `git apply` takes whole: in the [extended format](https://git-scm.com/docs/diff-format) with modes, deletions and binary
//! files.
//!
//! Each file is one section, so a patch needs the memory of one file at a time, before and after its change.

use crate::VfsPath;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use sha1::{Digest, Sha1};
use similar::{Algorithm, ChangeTag, DiffOp, DiffTag, capture_diff_slices_deadline, group_diff_ops};
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, Instant};

/// How long the shortest difference of one file is searched for. A longer one is as correct.
const SEARCH_MAX: Duration = Duration::from_secs(2);

/// The bytes in one line of a binary patch.
const LINE_BYTES: usize = 52;

/// The digits of git's base 85.
const DIGITS: &[u8; 85] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";

/// What git records about the kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    File,
    Executable,
    Link,
}

impl Mode {
    const fn text(self) -> &'static str {
        match self {
            Self::File => "100644",
            Self::Executable => "100755",
            Self::Link => "120000",
        }
    }
}

/// A file before or after a change. The content of a link is its target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Side<'c> {
    pub(crate) mode: Mode,
    pub(crate) content: &'c [u8],
}

/// Returns whether git refuses a path, and with it the whole patch, because a repository may be there.
pub(crate) fn is_refused(path: &VfsPath) -> bool {
    path.as_str().split('/').any(|name| name.eq_ignore_ascii_case(".git") || name.eq_ignore_ascii_case("git~1"))
}

/// Returns the section of a patch for one file; empty if both sides are equal. `path` is relative to where the patch is applied.
pub(crate) fn section(path: &str, before: Option<Side<'_>>, after: Option<Side<'_>>, context: usize) -> Vec<u8> {
    match (before, after) {
        // A link that becomes a file is removed and created.
        (Some(old), Some(new)) if (old.mode == Mode::Link) != (new.mode == Mode::Link) => {
            let mut both = section(path, before, None, context);
            both.extend(section(path, None, after, context));
            both
        }
        (Some(old), Some(new)) if old.mode == new.mode && old.content == new.content => Vec::new(),
        (None, None) => Vec::new(),
        _ => one_section(path, before, after, context),
    }
}

fn one_section(path: &str, before: Option<Side<'_>>, after: Option<Side<'_>>, context: usize) -> Vec<u8> {
    let (old_name, new_name) = (quoted(&format!("a/{path}")), quoted(&format!("b/{path}")));
    let mut head = format!("diff --git {old_name} {new_name}\n");
    // Writing to a string cannot fail.
    let _ = match (before, after) {
        (Some(old), Some(new)) if old.mode != new.mode => write!(head, "old mode {}\nnew mode {}\n", old.mode.text(), new.mode.text()),
        (Some(old), None) => writeln!(head, "deleted file mode {}", old.mode.text()),
        (None, Some(new)) => writeln!(head, "new file mode {}", new.mode.text()),
        _ => Ok(()),
    };
    let (old, new) = (before.map_or(&[][..], |side| side.content), after.map_or(&[][..], |side| side.content));
    if before.is_some() && after.is_some() && old == new {
        return head.into_bytes();
    }
    let kept = match (before, after) {
        (Some(old), Some(new)) if old.mode == new.mode => format!(" {}", new.mode.text()),
        _ => String::new(),
    };
    let _ = writeln!(head, "index {}..{}{kept}", named(before), named(after));
    let mut section = head.into_bytes();
    if old == new {
        // An empty file is created or removed.
        return section;
    }
    if memchr(old) || memchr(new) {
        section.extend_from_slice(b"GIT binary patch\n");
        for content in [new, old] {
            literal(content, &mut section);
        }
        return section;
    }
    // As git does, end a name with a space in it by a tab.
    let line = |mark: &str, name: &str, side: Option<Side<'_>>| match side {
        Some(_) if name.contains(' ') => format!("{mark} {name}\t\n"),
        Some(_) => format!("{mark} {name}\n"),
        None => format!("{mark} /dev/null\n"),
    };
    section.extend(line("---", &old_name, before).into_bytes());
    section.extend(line("+++", &new_name, after).into_bytes());
    hunks(old, new, context, &mut section);
    section
}

/// Returns whether some content has a NUL, which makes it binary.
fn memchr(content: &[u8]) -> bool {
    content.contains(&0)
}

/// Returns the id by which git names a content: of no file, all zeros.
fn named(side: Option<Side<'_>>) -> String {
    let Some(side) = side else { return "0".repeat(40) };
    let mut digest = Sha1::new();
    digest.update(format!("blob {}\0", side.content.len()));
    digest.update(side.content);
    digest.finalize().iter().fold(String::with_capacity(40), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Quotes a name as git does: control characters, quotes, backslashes and everything beyond ASCII.
fn quoted(name: &str) -> String {
    let is_plain = |byte: u8| (b' '..0x7f).contains(&byte) && byte != b'"' && byte != b'\\';
    if name.bytes().all(is_plain) {
        return name.to_owned();
    }
    let mut quoted = "\"".to_owned();
    for byte in name.bytes() {
        let _ = match byte {
            b'"' | b'\\' => write!(quoted, "\\{}", char::from(byte)),
            byte if is_plain(byte) => write!(quoted, "{}", char::from(byte)),
            byte => write!(quoted, "\\{byte:03o}"),
        };
    }
    quoted.push('"');
    quoted
}

/// Writes the differing lines with their context. Only a line feed ends a line: git keeps carriage returns as content.
fn hunks(old: &[u8], new: &[u8], context: usize, section: &mut Vec<u8>) {
    let lines = |content| -> Vec<&[u8]> { <[u8]>::split_inclusive(content, |byte| *byte == b'\n').collect() };
    let (old, new) = (lines(old), lines(new));
    let deadline = Instant::now().checked_add(SEARCH_MAX);
    let operations = capture_diff_slices_deadline(Algorithm::Myers, &old, &new, deadline);
    for group in group_diff_ops(operations, context) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let (olds, news) = (first.old_range().start..last.old_range().end, first.new_range().start..last.new_range().end);
        section.extend(format!("@@ -{} +{} @@\n", range(olds), range(news)).into_bytes());
        for operation in &group {
            write_operation(operation, &old, &new, section);
        }
    }
}

fn write_operation(operation: &DiffOp, old: &[&[u8]], new: &[&[u8]], section: &mut Vec<u8>) {
    let (tag, olds, news) = operation.as_tag_tuple();
    let (removed, added) = match tag {
        DiffTag::Equal => return old[olds].iter().for_each(|line| write_line(ChangeTag::Equal, line, section)),
        DiffTag::Delete => (olds, news.start..news.start),
        DiffTag::Insert => (olds.start..olds.start, news),
        DiffTag::Replace => (olds, news),
    };
    old[removed].iter().for_each(|line| write_line(ChangeTag::Delete, line, section));
    new[added].iter().for_each(|line| write_line(ChangeTag::Insert, line, section));
}

fn write_line(tag: ChangeTag, line: &[u8], section: &mut Vec<u8>) {
    section.push(match tag {
        ChangeTag::Equal => b' ',
        ChangeTag::Delete => b'-',
        ChangeTag::Insert => b'+',
    });
    section.extend_from_slice(line);
    if !line.ends_with(b"\n") {
        section.extend_from_slice(b"\n\\ No newline at end of file\n");
    }
}

/// Returns a range of lines as a hunk names it: an empty one by the line before it.
fn range(lines: std::ops::Range<usize>) -> String {
    match lines.len() {
        0 => format!("{},0", lines.start),
        1 => (lines.start + 1).to_string(),
        count => format!("{},{count}", lines.start + 1),
    }
}

/// Writes content as a literal of a binary patch: its size, then its compressed bytes in base 85, each line with its length first.
fn literal(content: &[u8], section: &mut Vec<u8>) {
    section.extend(format!("literal {}\n", content.len()).into_bytes());
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    let compressed = encoder.write_all(content).and_then(|()| encoder.finish()).expect("writing to a vector cannot fail");
    for line in compressed.chunks(LINE_BYTES) {
        let length = u8::try_from(line.len()).expect("a line has few bytes");
        section.push(if length <= 26 { b'A' + length - 1 } else { b'a' + length - 27 });
        for group in line.chunks(4) {
            let mut bytes = [0; 4];
            bytes[..group.len()].copy_from_slice(group);
            let mut number = u32::from_be_bytes(bytes);
            let mut digits = [0; 5];
            for digit in digits.iter_mut().rev() {
                *digit = DIGITS[(number % 85) as usize];
                number /= 85;
            }
            section.extend_from_slice(&digits);
        }
        section.push(b'\n');
    }
    section.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn file(content: &[u8]) -> Option<Side<'_>> {
        Some(Side { mode: Mode::File, content })
    }

    fn text(path: &str, before: Option<Side<'_>>, after: Option<Side<'_>>) -> String {
        String::from_utf8(section(path, before, after, 1)).expect("text")
    }

    #[test]
    fn sections_are_those_of_git() {
        let changed = text("a b", file(b"1\n2\n3\n4"), file(b"1\n2\r\n3\n4"));
        assert_eq!(
            changed,
            "diff --git a/a b b/a b\nindex b9dd90f04d1ee41ebcd9ad7bf2ba7cb2fcb0b2ef..a5a4d5a0de3d38a9a01e0aa10b4b04e2dbb1a8a8 100644\n\
             --- a/a b\t\n+++ b/a b\t\n@@ -1,3 +1,3 @@\n 1\n-2\n+2\r\n 3\n"
                .replace("b9dd90f04d1ee41ebcd9ad7bf2ba7cb2fcb0b2ef", &named(file(b"1\n2\n3\n4")))
                .replace("a5a4d5a0de3d38a9a01e0aa10b4b04e2dbb1a8a8", &named(file(b"1\n2\r\n3\n4")))
        );
        let empty = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391";
        let zero = "0".repeat(40);
        assert_eq!(
            text("é\"", None, file(b"")),
            format!("diff --git \"a/\\303\\251\\\"\" \"b/\\303\\251\\\"\"\nnew file mode 100644\nindex {zero}..{empty}\n")
        );
        assert!(text("x", file(b"1"), None).ends_with("--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n\\ No newline at end of file\n"));
        assert_eq!(text("x", file(b"1"), file(b"1")), "");
        let executable = Some(Side { mode: Mode::Executable, content: b"1" });
        assert_eq!(text("x", file(b"1"), executable), "diff --git a/x b/x\nold mode 100644\nnew mode 100755\n");
        let link = Some(Side { mode: Mode::Link, content: b"y" });
        let replaced = text("x", link, file(b"1\n"));
        assert!(replaced.contains("deleted file mode 120000\n") && replaced.contains("new file mode 100644\n"), "{replaced}");
    }

    #[test]
    fn binary_content_is_a_literal() {
        let shown = text("x", None, file(b"a\0b"));
        assert!(shown.contains("GIT binary patch\nliteral 3\nK"), "{shown}");
        assert!(shown.contains("\n\nliteral 0\nH") && shown.ends_with("\n\n"), "{shown}");
    }

    #[test]
    fn paths_of_repositories_are_refused() {
        for (path, refused) in [("/.git/hooks/x", true), ("/a/.GIT", true), ("/.gitignore", false), ("/git", false)] {
            assert_eq!(is_refused(&VfsPath::parse(path).expect("a path")), refused, "{path}");
        }
    }
}
