//! Parsing of patches into sections.

use super::{Chunk, Line, Section};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::CHANGES_MAX;

const BEGIN: &str = "*** Begin Patch";
const END: &str = "*** End Patch";
const ADD: &str = "*** Add File: ";
const DELETE: &str = "*** Delete File: ";
const UPDATE: &str = "*** Update File: ";
const MOVE: &str = "*** Move to: ";
const END_OF_FILE: &str = "*** End of File";

/// Parses a patch.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) with the line of the patch, from 1.
/// [`TooLarge`](ErrorKind::TooLarge) for more than [`CHANGES_MAX`] files.
pub(in crate::tools) fn parse(text: &str) -> Result<Vec<Section>> {
    let lines: Vec<&str> = text.trim().lines().collect();
    let body = unwrapped(&lines)?;
    // The line after `*** Begin Patch` is line 2.
    let mut reader = Reader { lines: body, at: 0, number: 2 };
    let mut sections = Vec::new();
    while reader.skip_blank() {
        if sections.len() == CHANGES_MAX {
            let message = format!("the patch changes more than {CHANGES_MAX} files; split it");
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        sections.push(reader.section()?);
    }
    if sections.is_empty() {
        return Err(Error::invalid_argument(format!(
            "the patch changes no file; between `{BEGIN}` and `{END}` it needs a section such as `{UPDATE}path`"
        )));
    }
    Ok(sections)
}

/// Returns the lines between the markers, stripping a here-document around them.
fn unwrapped<'a, 'b>(lines: &'b [&'a str]) -> Result<&'b [&'a str]> {
    let lines = match lines {
        [first, inner @ .., last] if inner.len() >= 2 && here_document(first).is_some_and(|end| last.trim() == end) => inner,
        lines => lines,
    };
    match lines {
        [first, ..] if first.trim() != BEGIN => Err(malformed("The first line of the patch must be '*** Begin Patch'")),
        [] => Err(malformed("The first line of the patch must be '*** Begin Patch'")),
        [_, body @ .., last] if last.trim() == END => Ok(body),
        _ => Err(malformed("The last line of the patch must be '*** End Patch'")),
    }
}

/// Returns the delimiter of a here-document that a line opens, such as `EOF` for `<<'EOF'` or `apply_patch <<EOF`.
fn here_document(line: &str) -> Option<&str> {
    let (command, mark) = line.trim().split_once("<<")?;
    let mark = mark.trim().trim_matches(['\'', '"']);
    (matches!(command.trim(), "" | "apply_patch" | "applypatch") && !mark.is_empty()).then_some(mark)
}

fn malformed(message: impl std::fmt::Display) -> Error {
    Error::invalid_argument(format!("invalid patch: {message}"))
}

struct Reader<'a, 'b> {
    lines: &'b [&'a str],
    at: usize,
    number: usize,
}

impl<'a> Reader<'a, '_> {
    fn peek(&self) -> Option<&'a str> {
        self.lines.get(self.at).copied()
    }

    fn next(&mut self) -> Option<&'a str> {
        let line = self.peek()?;
        self.at += 1;
        Some(line)
    }

    /// Skips blank lines. Returns whether more lines follow.
    fn skip_blank(&mut self) -> bool {
        while self.peek().is_some_and(|line| line.trim().is_empty()) {
            self.at += 1;
        }
        self.peek().is_some()
    }

    /// Makes the error for the line with this index.
    fn malformed_at(&self, index: usize, message: impl std::fmt::Display) -> Error {
        Error::invalid_argument(format!("invalid hunk at line {}, {message}", index + self.number))
    }

    fn section(&mut self) -> Result<Section> {
        let start = self.at;
        let header = self.next().unwrap_or_default().trim();
        if let Some(path) = header.strip_prefix(ADD) {
            return Ok(self.added(path));
        }
        if let Some(path) = header.strip_prefix(DELETE) {
            return Ok(Section::Delete { path: path.to_owned() });
        }
        if let Some(path) = header.strip_prefix(UPDATE) {
            return self.updated(path, start);
        }
        Err(self.malformed_at(
            start,
            format!("'{header}' is not a valid hunk header. Valid hunk headers: '{ADD}{{path}}', '{DELETE}{{path}}', '{UPDATE}{{path}}'"),
        ))
    }

    fn added(&mut self, path: &str) -> Section {
        let mut content = String::new();
        while let Some(line) = self.peek().and_then(|line| line.strip_prefix('+')) {
            content.push_str(line);
            content.push('\n');
            self.at += 1;
        }
        Section::Add { path: path.to_owned(), content }
    }

    fn updated(&mut self, path: &str, start: usize) -> Result<Section> {
        let target = self.peek().and_then(|line| line.trim().strip_prefix(MOVE)).map(ToOwned::to_owned);
        self.at += usize::from(target.is_some());
        let mut chunks = Vec::new();
        while self.skip_blank() && !self.peek().is_some_and(|line| line.trim_start().starts_with("***")) {
            chunks.push(self.chunk(chunks.is_empty())?);
        }
        if chunks.is_empty() {
            return Err(self.malformed_at(start, format!("Update file hunk for path '{path}' is empty")));
        }
        Ok(Section::Update { path: path.to_owned(), target, chunks })
    }

    fn chunk(&mut self, first: bool) -> Result<Chunk> {
        let start = self.at;
        let mut chunk = Chunk::default();
        while let Some(header) = self.peek().and_then(chunk_header) {
            chunk.headers.extend((!header.is_empty()).then(|| header.to_owned()));
            self.at += 1;
        }
        if self.at == start && !first {
            let got = self.peek().unwrap_or_default();
            return Err(self.malformed_at(start, format!("Expected update hunk to start with a @@ context marker, got: '{got}'")));
        }
        while let Some(line) = self.peek() {
            if line.trim_end() == END_OF_FILE && !chunk.lines.is_empty() {
                chunk.at_end = true;
                self.at += 1;
                break;
            }
            match chunk_line(line) {
                Some(line) => chunk.lines.push(line),
                None => break,
            }
            self.at += 1;
        }
        match (chunk.lines.is_empty(), self.peek()) {
            (false, _) => Ok(chunk),
            (true, Some(line)) if !line.trim_start().starts_with("***") => Err(self.malformed_at(
                self.at,
                format!(
                    "Unexpected line found in update hunk: '{line}'. Every line should start with ' ' (context line), '+' (added line), \
                     or '-' (removed line)"
                ),
            )),
            (true, _) => Err(self.malformed_at(self.at, "Update hunk does not contain any lines")),
        }
    }
}

/// Parses a line that opens a chunk. Returns the line of the file that it names, empty if it names none.
fn chunk_header(line: &str) -> Option<&str> {
    let header = line.trim_end().strip_prefix("@@")?;
    let header = match header.strip_prefix(' ') {
        Some(header) => header,
        None if header.is_empty() => header,
        None => return None,
    };
    Some(if is_range(header) { "" } else { header })
}

/// Returns whether a header is a line range of other patch formats, such as `-1,2 +1,3 @@`, which is ignored.
fn is_range(header: &str) -> bool {
    let mut words = header.split_whitespace();
    let mut number = |sign: char| {
        words
            .next()
            .and_then(|word| word.strip_prefix(sign))
            .is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_digit() || byte == b','))
    };
    number('-') && number('+') && words.next() == Some("@@")
}

fn chunk_line(line: &str) -> Option<Line> {
    let text = || line[1..].to_owned();
    match line.as_bytes().first() {
        // Models omit the space before an empty line.
        None => Some(Line::Context(String::new())),
        Some(b' ') => Some(Line::Context(text())),
        Some(b'-') => Some(Line::Remove(text())),
        Some(b'+') => Some(Line::Add(text())),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(body: &str) -> String {
        format!("{BEGIN}\n{body}\n{END}")
    }

    fn refused(patch: &str) -> String {
        let error = parse(patch).expect_err("a malformed patch");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        error.message().to_owned()
    }

    #[test]
    fn every_kind_of_section_is_parsed() {
        let patch = wrapped(
            "*** Add File: a.md\n+one\n+\n+two\n*** Delete File: b b.md\n*** Update File: c\n*** Move to: d/e\n@@ fn x\n-old\n+new",
        );
        let update =
            Chunk { headers: vec!["fn x".into()], lines: vec![Line::Remove("old".into()), Line::Add("new".into())], at_end: false };
        let expected = [
            Section::Add { path: "a.md".into(), content: "one\n\ntwo\n".into() },
            Section::Delete { path: "b b.md".into() },
            Section::Update { path: "c".into(), target: Some("d/e".into()), chunks: vec![update] },
        ];
        assert_eq!(parse(&patch).expect("a legal patch"), expected);
        // White space around markers, CRLF and blank lines between sections are ignored.
        let loose = patch.replace("*** Begin Patch", "  *** Begin Patch  ").replace("*** Delete", "\n  *** Delete").replace('\n', "\r\n");
        assert_eq!(parse(&format!("\n{loose} \n\n")).expect("a legal patch"), expected);
    }

    #[test]
    fn patch_in_a_here_document_is_parsed() {
        let patch = wrapped("*** Delete File: a");
        for (open, close) in [("<<EOF", "EOF"), ("<<'EOF'", "EOF"), ("<<\"EOF\"", "EOF"), ("apply_patch <<'PATCH'", "PATCH")] {
            assert!(parse(&format!("{open}\n{patch}\n{close}\n")).is_ok(), "{open}");
        }
        assert!(parse(&format!("cat <<EOF\n{patch}\nEOF")).is_err());
        assert!(parse(&format!("<<EOF\n{patch}\nEND")).is_err());
    }

    #[test]
    fn added_file_may_be_empty() {
        assert_eq!(parse(&wrapped("*** Add File: a")).expect("legal"), [Section::Add { path: "a".into(), content: String::new() }]);
    }

    #[test]
    fn malformed_patches_are_refused_in_codex_wording() {
        assert_eq!(refused(""), "invalid patch: The first line of the patch must be '*** Begin Patch'");
        assert_eq!(refused("bad"), "invalid patch: The first line of the patch must be '*** Begin Patch'");
        assert_eq!(refused("*** Begin Patch\nbad"), "invalid patch: The last line of the patch must be '*** End Patch'");
        assert_eq!(refused("*** Begin Patch"), "invalid patch: The last line of the patch must be '*** End Patch'");
        assert!(refused(&wrapped("")).starts_with("the patch changes no file"));
        assert_eq!(
            refused(&wrapped("*** Frobnicate File: foo")),
            "invalid hunk at line 2, '*** Frobnicate File: foo' is not a valid hunk header. Valid hunk headers: '*** Add File: {path}', \
             '*** Delete File: {path}', '*** Update File: {path}'"
        );
        assert_eq!(
            refused(&wrapped("*** Add File: a\n+x\ny")).split(". ").next(),
            Some("invalid hunk at line 4, 'y' is not a valid hunk header")
        );
        assert_eq!(refused(&wrapped("*** Update File: t.py")), "invalid hunk at line 2, Update file hunk for path 't.py' is empty");
        assert_eq!(
            refused(&wrapped("*** Delete File: x\n*** Update File: t.py\n*** Move to: u.py")),
            "invalid hunk at line 3, Update file hunk for path 't.py' is empty"
        );
        assert_eq!(
            refused(&wrapped("*** Update File: t.py\n@@ x\n*** Delete File: y")),
            "invalid hunk at line 4, Update hunk does not contain any lines"
        );
        assert_eq!(
            refused(&wrapped("*** Update File: t.py\n@@\n*** End of File")),
            "invalid hunk at line 4, Update hunk does not contain any lines"
        );
        assert!(
            refused(&wrapped("*** Update File: t.py\nfoo"))
                .starts_with("invalid hunk at line 3, Unexpected line found in update hunk: 'foo'.")
        );
        assert_eq!(
            refused(&wrapped("*** Update File: t.py\n-a\nfoo")),
            "invalid hunk at line 4, Expected update hunk to start with a @@ context marker, got: 'foo'"
        );
    }
}
