//! The patch format of coding agents: how its text is read, and how its chunks find their place in a file. Pure, no I/O.
//!
//! ```text
//! *** Begin Patch
//! *** Add File: docs/a.md
//! +every line of the new file
//! *** Update File: src/b.rs
//! *** Move to: src/c.rs
//! @@ fn main() {
//!  a line that stays
//! -a line that goes
//! +a line that comes
//! *** Delete File: src/d.rs
//! *** End Patch
//! ```
//!
//! The grammar and the order in which matches are tried are those of the `apply_patch` tool of OpenAI's Codex
//! (<https://github.com/openai/codex/tree/main/codex-rs/apply-patch>), since that is what models were taught; its messages for
//! malformed patches are kept too. In four places this is kinder: lines of context keep the file's own bytes even where they
//! matched only loosely, lines that come take the line ending of their neighbours, a chunk of added lines beneath a header is put
//! right beneath that header (there, at the end of the file), and ranges as in `@@ -1,2 +1,3 @@` are passed over.

use crate::error::{Error, ErrorKind, Result};
use memchr::memchr;
use std::borrow::Cow;

const BEGIN: &str = "*** Begin Patch";
const END: &str = "*** End Patch";
const ADD: &str = "*** Add File: ";
const DELETE: &str = "*** Delete File: ";
const UPDATE: &str = "*** Update File: ";
const MOVE: &str = "*** Move to: ";
const END_OF_FILE: &str = "*** End of File";

/// How many lines of a file are compared to find the one nearest to what was not found.
const NEAREST_LINES_MAX: usize = 20_000;

/// How many lines of a chunk are compared for the same, and are shown.
const NEAREST_PATTERN_MAX: usize = 40;

/// What a patch asks of one file. Paths are as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Section {
    /// Creates a file, or replaces one that is there.
    Add { path: String, content: String },
    /// Removes a file.
    Delete { path: String },
    /// Changes a file, and perhaps moves it.
    Update { path: String, target: Option<String>, chunks: Vec<Chunk> },
}

/// One run of lines of an update.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Chunk {
    /// Lines to find first, each after the one before.
    headers: Vec<String>,
    lines: Vec<Line>,
    /// The lines are the last of the file.
    at_end: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Line {
    Context(String),
    Remove(String),
    Add(String),
}

impl Line {
    /// Returns the text that must be in the file.
    fn old(&self) -> Option<&str> {
        match self {
            Self::Context(text) | Self::Remove(text) => Some(text),
            Self::Add(_) => None,
        }
    }
}

/// Reads a patch.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) that names the line of the patch, from 1.
pub(super) fn parse(text: &str) -> Result<Vec<Section>> {
    let lines: Vec<&str> = text.trim().lines().collect();
    let body = unwrapped(&lines)?;
    // The line after `*** Begin Patch` is line 2.
    let mut reader = Reader { lines: body, at: 0, number: 2 };
    let mut sections = Vec::new();
    while reader.skip_blank() {
        sections.push(reader.section()?);
    }
    if sections.is_empty() {
        return Err(Error::invalid_argument(format!(
            "the patch changes no file; between `{BEGIN}` and `{END}` it needs a section such as `{UPDATE}path`"
        )));
    }
    Ok(sections)
}

/// Returns the lines between the markers, also from within a here-document.
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

/// Returns the end mark of a here-document that a line opens, such as `EOF` for `<<'EOF'` or `apply_patch <<EOF`.
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

    /// Passes over blank lines; tells whether more follows.
    fn skip_blank(&mut self) -> bool {
        while self.peek().is_some_and(|line| line.trim().is_empty()) {
            self.at += 1;
        }
        self.peek().is_some()
    }

    /// Makes the error of the line read last, or of the next one.
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

/// Reads a line that opens a chunk; returns the line of the file it names, empty when it names none.
fn chunk_header(line: &str) -> Option<&str> {
    let header = line.trim_end().strip_prefix("@@")?;
    let header = match header.strip_prefix(' ') {
        Some(header) => header,
        None if header.is_empty() => header,
        None => return None,
    };
    Some(if is_range(header) { "" } else { header })
}

/// Tells whether a header is a range of lines as other patch formats have it, such as `-1,2 +1,3 @@`: of no use here.
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
        // Models leave out the space before an empty line.
        None => Some(Line::Context(String::new())),
        Some(b' ') => Some(Line::Context(text())),
        Some(b'-') => Some(Line::Remove(text())),
        Some(b'+') => Some(Line::Add(text())),
        Some(_) => None,
    }
}

/// Applies the chunks of an update to a file's content and returns the new content; `path` is for errors.
///
/// A content that is not empty ends with a line break afterwards. Cost: one pass over the file for every strictness that a chunk
/// needs to be found.
///
/// # Errors
/// [`NoMatch`](ErrorKind::NoMatch) that says which chunk found no place, and what comes nearest.
pub(super) fn update(path: &str, content: &[u8], chunks: &[Chunk]) -> Result<Vec<u8>> {
    let file = FileLines::new(content);
    let mut places = Vec::with_capacity(chunks.len());
    let mut from = 0;
    for (index, chunk) in chunks.iter().enumerate() {
        let place = place(&file, chunk, from).map_err(|miss| miss.explained(path, &file, index, chunks.len()))?;
        from = place.next;
        places.push(place);
    }
    // Only what is added at the end of the file can come before its turn.
    places.sort_by_key(|place| place.start);
    Ok(file.replaced(&places))
}

/// A content cut into lines, without their endings.
struct FileLines<'a> {
    texts: Vec<&'a [u8]>,
    endings: Vec<&'a [u8]>,
}

impl<'a> FileLines<'a> {
    fn new(content: &'a [u8]) -> Self {
        let mut lines = Self { texts: Vec::new(), endings: Vec::new() };
        let mut rest = content;
        while !rest.is_empty() {
            let (line, after) = rest.split_at(memchr(b'\n', rest).map_or(rest.len(), |at| at + 1));
            let text = crate::text::trim_terminator(line);
            lines.texts.push(text);
            lines.endings.push(&line[text.len()..]);
            rest = after;
        }
        lines
    }

    fn len(&self) -> usize {
        self.texts.len()
    }

    /// Returns the ending for a line that is put before the line `index`: its neighbour's.
    fn ending_before(&self, index: usize) -> &'a [u8] {
        let own = |index: usize| self.endings.get(index).copied().filter(|ending| !ending.is_empty());
        index.checked_sub(1).and_then(own).or_else(|| own(index)).or_else(|| own(0)).unwrap_or(b"\n")
    }

    fn replaced(&self, places: &[Place<'_>]) -> Vec<u8> {
        let mut result = Vec::new();
        let mut at = 0;
        for place in places {
            self.copy(&mut result, at, place.start);
            at = place.start;
            for line in &place.lines {
                match &**line {
                    Line::Context(_) => {
                        self.copy(&mut result, at, at + 1);
                        at += 1;
                    }
                    Line::Remove(_) => at += 1,
                    Line::Add(text) => {
                        result.extend_from_slice(text.as_bytes());
                        result.extend_from_slice(self.ending_before(at));
                    }
                }
            }
        }
        self.copy(&mut result, at, self.len());
        result
    }

    /// Copies lines as they are; a last line without an ending gets one.
    fn copy(&self, result: &mut Vec<u8>, from: usize, to: usize) {
        for index in from..to {
            result.extend_from_slice(self.texts[index]);
            result.extend_from_slice(if self.endings[index].is_empty() { self.ending_before(index) } else { self.endings[index] });
        }
    }
}

/// Where a chunk goes.
struct Place<'a> {
    /// The first line of the file it stands for.
    start: usize,
    /// The lines of the chunk that count.
    lines: Vec<Cow<'a, Line>>,
    /// Where the next chunk is looked for.
    next: usize,
}

/// What was not found, from which line on.
enum Miss<'a> {
    Header { header: &'a str, from: usize },
    Lines { lines: Vec<&'a str>, from: usize },
}

fn place<'a>(file: &FileLines<'_>, chunk: &'a Chunk, from: usize) -> Result<Place<'a>, Miss<'a>> {
    let mut from = from;
    for header in &chunk.headers {
        match seek(file, &[header], from, false) {
            Some(at) => from = at + 1,
            None => return Err(Miss::Header { header, from }),
        }
    }
    let lines: Vec<Cow<'_, Line>> = chunk.lines.iter().map(Cow::Borrowed).collect();
    let old: Vec<&str> = chunk.lines.iter().filter_map(Line::old).collect();
    if old.is_empty() {
        let start = if chunk.headers.is_empty() || chunk.at_end { end_of(file).max(from) } else { from };
        return Ok(Place { start, lines, next: from });
    }
    if let Some(start) = seek(file, &old, from, chunk.at_end) {
        return Ok(Place { start, lines, next: start + old.len() });
    }
    if let [before @ .., ""] = &old[..]
        && !before.is_empty()
        && let Some(start) = seek(file, before, from, chunk.at_end)
    {
        return Ok(Place { start, lines: without_end(lines), next: start + before.len() });
    }
    Err(Miss::Lines { lines: old, from })
}

/// Drops the empty last line that a chunk expects and the file lacks: often it only stands for the line break at the end of the
/// file. Between lines that are there and lines that come, it comes too.
fn without_end(mut lines: Vec<Cow<'_, Line>>) -> Vec<Cow<'_, Line>> {
    let Some(index) = lines.iter().rposition(|line| line.old().is_some()) else { return lines };
    let is_last = index + 1 == lines.len();
    match &*lines[index] {
        Line::Context(_) if !is_last => lines[index] = Cow::Owned(Line::Add(String::new())),
        Line::Remove(_) if !is_last => {
            lines.remove(index);
            lines.pop_if(|line| **line == Line::Add(String::new()));
        }
        _ => {
            lines.remove(index);
        }
    }
    lines
}

/// Returns where lines are added at the end: before an empty last line, if there is one.
fn end_of(file: &FileLines<'_>) -> usize {
    file.len() - usize::from(file.texts.last().is_some_and(|last| last.is_empty()))
}

/// How exactly lines are compared.
#[derive(Debug, Clone, Copy)]
enum Strictness {
    Exact,
    /// White space at the end does not count.
    TrimEnd,
    /// White space at either end does not count.
    Trim,
    /// Typographic dashes, quotes and spaces count as their ASCII forms too.
    Folded,
}

impl Strictness {
    const ALL: [Self; 4] = [Self::Exact, Self::TrimEnd, Self::Trim, Self::Folded];

    /// Returns what is compared of a line.
    fn key(self, line: &[u8]) -> Cow<'_, [u8]> {
        let Ok(text) = std::str::from_utf8(line) else { return Cow::Borrowed(line) };
        match self {
            Self::Exact => Cow::Borrowed(line),
            Self::TrimEnd => Cow::Borrowed(text.trim_end().as_bytes()),
            Self::Trim => Cow::Borrowed(text.trim().as_bytes()),
            Self::Folded if text.is_ascii() => Cow::Borrowed(text.trim().as_bytes()),
            Self::Folded => Cow::Owned(text.trim().chars().map(folded).collect::<String>().into_bytes()),
        }
    }
}

fn folded(letter: char) -> char {
    match letter {
        '\u{2010}'..='\u{2015}' | '\u{2212}' => '-',
        '\u{2018}'..='\u{201b}' => '\'',
        '\u{201c}'..='\u{201f}' => '"',
        '\u{a0}' | '\u{2002}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => ' ',
        other => other,
    }
}

/// Finds lines at or after `from`, most exactly first; with `at_end` at the end of the file before anywhere else.
fn seek(file: &FileLines<'_>, pattern: &[&str], from: usize, at_end: bool) -> Option<usize> {
    let last = file.len().checked_sub(pattern.len())?;
    let windows = [(at_end && last > from).then_some(last), Some(from)];
    windows
        .into_iter()
        .flatten()
        .find_map(|from| Strictness::ALL.into_iter().find_map(|strictness| find(&file.texts, pattern, from, strictness)))
}

/// Finds a run of lines at or after `from` in one pass (Knuth, Morris, Pratt), whatever repeats.
fn find(lines: &[&[u8]], pattern: &[&str], from: usize, strictness: Strictness) -> Option<usize> {
    let pattern: Vec<Cow<'_, [u8]>> = pattern.iter().map(|line| strictness.key(line.as_bytes())).collect();
    let borders = borders(&pattern);
    let mut matched = 0;
    for (index, line) in lines.iter().enumerate().skip(from) {
        let line = strictness.key(line);
        while matched > 0 && pattern[matched] != line {
            matched = borders[matched - 1];
        }
        matched += usize::from(pattern[matched] == line);
        if matched == pattern.len() {
            return Some(index + 1 - matched);
        }
    }
    None
}

/// Returns for each start of the pattern the length of the longest proper one that it also ends with.
fn borders(pattern: &[Cow<'_, [u8]>]) -> Vec<usize> {
    let mut borders = vec![0; pattern.len()];
    let mut length = 0;
    for index in 1..pattern.len() {
        while length > 0 && pattern[length] != pattern[index] {
            length = borders[length - 1];
        }
        length += usize::from(pattern[length] == pattern[index]);
        borders[index] = length;
    }
    borders
}

impl Miss<'_> {
    fn explained(&self, path: &str, file: &FileLines<'_>, index: usize, count: usize) -> Error {
        let (what, lines, from) = match self {
            Self::Header { header, from } => {
                (format!("Failed to find context '{header}' in `{path}`"), std::slice::from_ref(header), *from)
            }
            Self::Lines { lines, from } => {
                let mut shown = lines.iter().take(NEAREST_PATTERN_MAX).copied().collect::<Vec<_>>().join("\n");
                if lines.len() > NEAREST_PATTERN_MAX {
                    shown.push_str("\n...");
                }
                (format!("Failed to find expected lines in `{path}`:\n{shown}\n"), &lines[..], *from)
            }
        };
        let label = if count == 1 { String::new() } else { format!(" (chunk {} of {count})", index + 1) };
        let separator = if what.ends_with('\n') { "" } else { "; " };
        let hint = nearest(file, lines, from).unwrap_or_else(|| "read the file again and copy the lines exactly".to_owned());
        Error::new(ErrorKind::NoMatch, format!("{what}{separator}{hint}{label}"))
    }
}

/// Says where most of the lines are, and which is the first that differs; or which line is most like the first.
fn nearest(file: &FileLines<'_>, pattern: &[&str], from: usize) -> Option<String> {
    let wanted: Vec<&str> = pattern.iter().take(NEAREST_PATTERN_MAX).map(|line| line.trim()).collect();
    let texts: Vec<Cow<'_, str>> = file.texts.iter().take(NEAREST_LINES_MAX).map(|text| String::from_utf8_lossy(text)).collect();
    let same =
        |start: usize| wanted.iter().zip(&texts[start..]).filter(|(wanted, text)| !wanted.is_empty() && text.trim() == **wanted).count();
    let (count, start) =
        (0..texts.len()).map(|start| (same(start), start)).max_by_key(|(count, start)| (*count, std::cmp::Reverse(*start)))?;
    if count == 0 {
        return alike(&texts, &wanted);
    }
    let differs = wanted.iter().zip(&texts[start..]).position(|(wanted, text)| text.trim() != *wanted);
    Some(match differs {
        None if start + wanted.len() > texts.len() => {
            "the file ends before these lines do; read it again and copy the lines exactly".to_owned()
        }
        None if start < from => format!(
            "they stand on line {}, before what the patch changed or named above them; put the chunks in the order of the file",
            start + 1
        ),
        None => format!("they stand on line {}, but differ in white space or are cut short here; copy the lines exactly", start + 1),
        Some(at) => format!(
            "nearest is line {}: there line {} is `{}` where the patch has `{}`; copy the lines exactly",
            start + 1,
            start + at + 1,
            excerpt(texts[start + at].trim_end()),
            excerpt(pattern[at].trim_end())
        ),
    })
}

fn alike(texts: &[Cow<'_, str>], wanted: &[&str]) -> Option<String> {
    let first = excerpt(wanted.iter().find(|line| !line.is_empty())?);
    let likeness = |text: &str| strsim::normalized_levenshtein(&excerpt(text.trim()), &first);
    let (likeness, index) = texts
        .iter()
        .enumerate()
        .take(NEAREST_LINES_MAX / 10)
        .map(|(index, text)| (likeness(text), index))
        .max_by(|left, right| left.0.total_cmp(&right.0))?;
    (likeness >= 0.6).then(|| format!("nearest is line {}: `{}`; copy the lines exactly", index + 1, excerpt(texts[index].trim_end())))
}

fn excerpt(text: &str) -> String {
    text.char_indices().nth(120).map_or_else(|| text.to_owned(), |(end, _)| format!("{}...", &text[..end]))
}
