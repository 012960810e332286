//! Locating the chunks of an update in a file, and applying them.

use super::miss::Miss;
use super::{Chunk, Line};
use std::borrow::Cow;
use treehold_core::error::Result;
use treehold_core::text::run::find_run;
use treehold_core::text::{LineEnding, ending_before, trim_terminator};
use treehold_core::work;

/// Applies the chunks of an update to a file's content and returns the new content. `path` appears in errors.
///
/// Nonempty results end with a line break. Cost: one pass over the file per strictness that a chunk needs.
///
/// # Errors
/// [`NoMatch`](ErrorKind::NoMatch), with the chunk that was not found and the closest lines.
pub(in crate::tools) fn update(path: &str, content: &[u8], chunks: &[Chunk]) -> Result<Vec<u8>> {
    let file = FileLines::new(content);
    let mut places = Vec::with_capacity(chunks.len());
    let mut from = 0;
    for (index, chunk) in chunks.iter().enumerate() {
        let place = place(&file, chunk, from).map_err(|miss| miss.explained(path, &file, index, chunks.len()))?;
        from = place.next;
        places.push(place);
    }
    // Only additions at the end of the file can be out of order.
    places.sort_by_key(|place| place.start);
    Ok(file.replaced(&places))
}

/// A content split into lines, without their endings.
pub(super) struct FileLines<'a> {
    pub(super) texts: Vec<&'a [u8]>,
    /// Only the last line may have no ending.
    endings: Vec<Option<LineEnding>>,
}

impl<'a> FileLines<'a> {
    fn new(content: &'a [u8]) -> Self {
        let lines = content.split_inclusive(|byte| *byte == b'\n').inspect(|line| work::advance(line.len()));
        let (texts, endings) = lines.map(|line| (trim_terminator(line), LineEnding::of_line(line))).unzip();
        Self { texts, endings }
    }

    fn len(&self) -> usize {
        self.texts.len()
    }

    /// Builds the new content. Lines in a run of additions and removals take the endings of the removed lines in order,
    /// and any further ones that of the last removed line. Lines that replace none take the ending of the line before
    /// them.
    fn replaced(&self, places: &[FoundChunk<'_>]) -> Vec<u8> {
        let mut result = Vec::new();
        let mut at = 0;
        for place in places {
            // An addition at the end of the file may lie within lines that another chunk removes.
            let start = place.start.max(at);
            self.copy(&mut result, at, start);
            at = start;
            for run in place.lines.chunk_by(|one, next| one.is_context() == next.is_context()) {
                if run[0].is_context() {
                    self.copy(&mut result, at, at + run.len());
                    at += run.len();
                    continue;
                }
                let added = run.iter().filter_map(|line| line.added());
                let removed = at..at + run.iter().filter(|line| line.added().is_none()).count();
                for (index, text) in added.enumerate() {
                    let line = (removed.start + index).min(removed.end.max(1) - 1);
                    let own = self.endings.get(line).copied().flatten().filter(|_| !removed.is_empty());
                    result.extend_from_slice(text.as_bytes());
                    result.extend_from_slice(own.unwrap_or_else(|| ending_before(&self.endings, removed.start)).bytes());
                }
                at = removed.end;
            }
        }
        self.copy(&mut result, at, self.len());
        result
    }

    /// Copies lines unchanged; a last line without an ending gets one.
    fn copy(&self, result: &mut Vec<u8>, from: usize, to: usize) {
        for index in from..to {
            work::advance(self.texts[index].len() + 1);
            result.extend_from_slice(self.texts[index]);
            result.extend_from_slice(self.endings[index].unwrap_or_else(|| ending_before(&self.endings, index)).bytes());
        }
    }
}

/// Where a chunk applies.
struct FoundChunk<'a> {
    /// The first line of the file that the chunk covers.
    start: usize,
    /// The relevant lines of the chunk.
    lines: Vec<Cow<'a, Line>>,
    /// Where the search for the next chunk starts.
    next: usize,
}

fn place<'a>(file: &FileLines<'_>, chunk: &'a Chunk, from: usize) -> Result<FoundChunk<'a>, Miss<'a>> {
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
        return Ok(FoundChunk { start, lines, next: from });
    }
    if let Some(start) = seek(file, &old, from, chunk.at_end) {
        return Ok(FoundChunk { start, lines, next: start + old.len() });
    }
    if let [before @ .., ""] = &old[..]
        && !before.is_empty()
        && let Some(start) = seek(file, before, from, chunk.at_end)
    {
        return Ok(FoundChunk { start, lines: without_end(lines), next: start + before.len() });
    }
    Err(Miss::Lines { lines: old, from })
}

/// Drops the empty last line that a chunk expects and the file lacks: it often only represents the line break at the end of the file.
/// Between existing and added lines, it is added instead.
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

/// Returns where lines are appended: before an empty last line, if there is one.
fn end_of(file: &FileLines<'_>) -> usize {
    file.len() - usize::from(file.texts.last().is_some_and(|last| last.is_empty()))
}

/// How strictly lines are compared.
#[derive(Debug, Clone, Copy)]
enum Strictness {
    Exact,
    /// Ignores trailing white space.
    TrimEnd,
    /// Ignores leading and trailing white space.
    Trim,
    /// Also folds typographic dashes, quotes and spaces to ASCII.
    Folded,
}

impl Strictness {
    const ALL: [Self; 4] = [Self::Exact, Self::TrimEnd, Self::Trim, Self::Folded];

    /// Returns the form of a line that is compared.
    fn key(self, line: &[u8]) -> Cow<'_, [u8]> {
        work::advance(line.len() + 1);
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

/// Finds lines at or after `from`, by the strictest comparison that succeeds. With `at_end`, the end of the file is
/// tried before other positions.
fn seek(file: &FileLines<'_>, pattern: &[&str], from: usize, at_end: bool) -> Option<usize> {
    let last = file.len().checked_sub(pattern.len())?;
    let windows = [(at_end && last > from).then_some(last), Some(from)];
    windows
        .into_iter()
        .flatten()
        .find_map(|from| Strictness::ALL.into_iter().find_map(|strictness| find(&file.texts, pattern, from, strictness)))
}

/// Finds a run of lines at or after `from`, in one pass even for repetitive input.
fn find(lines: &[&[u8]], pattern: &[&str], from: usize, strictness: Strictness) -> Option<usize> {
    let pattern: Vec<Cow<'_, [u8]>> = pattern.iter().map(|line| strictness.key(line.as_bytes())).collect();
    let rest = lines.get(from..).unwrap_or_default();
    find_run(rest.iter().map(|line| strictness.key(line)), &pattern).map(|at| from + at)
}

#[cfg(test)]
mod tests {
    use super::super::{Section, parse};
    use super::*;
    use proptest::prelude::*;
    use similar::{ChangeTag, TextDiff};
    use treehold_core::error::ErrorKind;

    const UPDATE: &str = "*** Update File: ";

    fn wrapped(body: &str) -> String {
        format!("*** Begin Patch\n{body}\n*** End Patch")
    }

    fn chunks(lines: &str) -> Vec<Chunk> {
        match parse(&wrapped(&format!("{UPDATE}f\n{lines}"))).expect("a legal patch").remove(0) {
            Section::Update { chunks, .. } => chunks,
            other => panic!("{other:?}"),
        }
    }

    fn updated(content: &str, lines: &str) -> Result<String> {
        update("f", content.as_bytes(), &chunks(lines)).map(|bytes| String::from_utf8(bytes).expect("text stays text"))
    }

    #[test]
    fn chunks_apply_at_the_expected_lines() {
        for (what, content, lines, expected) in [
            ("one line", "a\nb\nc\n", "@@\n-b\n+B", "a\nB\nc\n"),
            ("without a header", "a\nb\nc\n", " a\n-b\n+B", "a\nB\nc\n"),
            ("several chunks in order", "a\nb\nc\nd\n", "@@\n-a\n+A\n@@\n-d\n+D", "A\nb\nc\nD\n"),
            ("the first of several matches", "x\nb\nx\n", "-x\n+y", "y\nb\nx\n"),
            ("beneath a header", "f\n x\ng\n x\n", "@@ g\n- x\n+ y", "f\n x\ng\n y\n"),
            ("beneath stacked headers", "A\n f\n  x\nB\n f\n  x\n", "@@ B\n@@  f\n-  x\n+  y", "A\n f\n  x\nB\n f\n  y\n"),
            ("a range instead of a header", "a\nb\n", "@@ -1,2 +1,2 @@ fn\n-b\n+B", "a\nB\n"),
            ("the chunk after a header starts beneath it", "x\nx\n", "@@ x\n-x\n+y", "x\ny\n"),
            ("a deletion alone", "a\nb\nc\n", " a\n-b\n c", "a\nc\n"),
            ("all lines are removed", "a\nb\n", "-a\n-b", ""),
            ("added at the end", "a\nb\n", "@@\n+c", "a\nb\nc\n"),
            ("added before an empty last line", "a\n\n", "@@\n+b", "a\nb\n\n"),
            ("added beneath a header", "f\nz\n", "@@ f\n+ x", "f\n x\nz\n"),
            ("added at the end although a header is named", "f\nz\n", "@@ f\n+ x\n*** End of File", "f\nz\n x\n"),
            ("added to an empty file", "", "+a", "a\n"),
            ("a match at the end before other matches", "x\na\nx\n", "-x\n+y\n*** End of File", "x\na\ny\n"),
            ("another match if there is none at the end", "x\na\n", "-x\n+y\n*** End of File", "y\na\n"),
            ("a loose match at the end before an exact one elsewhere", "x\na\nx \n", "-x\n+y\n*** End of File", "x\na\ny\n"),
            ("white space at the end", "a  \nb\t\n", " a\n-b\n+B", "a  \nB\n"),
            ("white space at both ends", "\ta\n  b\n", " a\n-b\n+B", "\ta\nB\n"),
            ("typography", "a \u{2014} \u{201c}b\u{201d}\u{a0}\u{2019}c\n", "-a - \"b\" 'c\n+d", "d\n"),
            ("an exact match before a loose one", " x\nx\n", "-x\n+y", " x\ny\n"),
            ("the first loose match if there is no exact one", "x \n x\n", "-x\n+y", "y\n x\n"),
            ("an empty line without its space", "a\n\nb\n", " a\n\n-b\n+B", "a\n\nB\n"),
            ("an empty last line that stands for the end", "a\nb\n", "-b\n+B\n ", "a\nB\n"),
            ("an empty last line that is removed and added", "a\nb\n", "-b\n-\n+B\n+", "a\nB\n"),
            ("an empty last line before an added line", "a\n", " a\n \n+b", "a\n\nb\n"),
            ("a final line break is added", "a\nb", "-b\n+B", "a\nB\n"),
            ("a final line break is added to an unchanged last line", "a\nb", "-a\n+A", "A\nb\n"),
            ("a line is added after a last line without a line break", "a\nb", " b\n+c", "a\nb\nc\n"),
            ("a chunk that changes nothing", "a\nb\n", " a\n b", "a\nb\n"),
            ("repeated lines", "a\na\nb\na\na\na\nb\n", " a\n a\n a\n-b\n+c", "a\na\nb\na\na\na\nc\n"),
            ("not utf-8 safe but text", "é\nb\n", " é\n-b\n+ß", "é\nß\n"),
        ] {
            assert_eq!(updated(content, lines).unwrap_or_else(|error| panic!("{what}: {error}")), expected, "{what}");
        }
    }

    #[test]
    fn context_keeps_line_endings_and_added_lines_follow_their_neighbors() {
        assert_eq!(updated("a\r\nb\r\nc\r\n", " a\n-b\n+B\n+B2\n c").expect("found"), "a\r\nB\r\nB2\r\nc\r\n");
        assert_eq!(updated("a\r\nb\r\n", "@@\n+c").expect("found"), "a\r\nb\r\nc\r\n");
        assert_eq!(updated("a\r\nb", "-b\n+B").expect("found"), "a\r\nB\r\n");
        assert_eq!(updated("a\r\nb\nc\n", "-c\n+C").expect("found"), "a\r\nb\nC\n");
        assert_eq!(updated("a\r\nb\nc\n", "-a\n+A").expect("found"), "A\r\nb\nc\n");
        assert_eq!(updated("a\nb\r\nc\n", "-a\n-b\n+A\n+B\n+C").expect("found"), "A\nB\r\nC\r\nc\n");
        assert_eq!(updated("a\nb\r\nc\n", " a\n+B\n-b").expect("found"), "a\nB\r\nc\n");
        assert_eq!(updated("a\nb\r\nc", " c\n+d").expect("found"), "a\nb\r\nc\r\nd\r\n");
        let bytes = update("f", b"\xff\xfe\nb\n", &chunks("-b\n+B")).expect("found");
        assert_eq!(bytes, b"\xff\xfe\nB\n");
    }

    #[test]
    fn missing_lines_error_names_the_chunk_and_the_closest_lines() {
        let message = |content: &str, lines: &str| updated(content, lines).expect_err("a miss").message().to_owned();
        assert_eq!(
            message("fn a() {\n    one();\n    two();\n}\n", "@@\n fn a() {\n     one();\n-    too();\n+    three();"),
            "Failed to find expected lines in `f`:\nfn a() {\n    one();\n    too();\nnearest is line 1: \
             there line 3 is `    two();` where the patch has `    too();`; copy the lines exactly"
        );
        assert_eq!(
            message("alpha\nbeta\n", "@@\n-alpha\n+a\n@@\n-betta\n+b"),
            "Failed to find expected lines in `f`:\nbetta\nnearest is line 2: `beta`; copy the lines exactly (chunk 2 of 2)"
        );
        assert_eq!(
            message("a\nb\n", "@@ class X\n-b\n+c"),
            "Failed to find context 'class X' in `f`; read the file again and copy the lines exactly"
        );
        assert!(message("a\nb\n", "@@\n-b\n+B\n@@\n-a\n+A").contains("on line 1, before what the patch changed"));
        assert!(message("a\nb\n", " a\n b\n-c\n+d").contains("the file ends before these lines do"));
        assert!(message("", "-a\n+b").contains("read the file again"));
        assert_eq!(updated("a\n", "-b\n+c").expect_err("a miss").kind(), ErrorKind::NoMatch);
    }

    /// Writes the patch from one text to another like a careful model.
    fn patch_between(old: &str, new: &str) -> Option<String> {
        let diff = TextDiff::from_lines(old, new);
        let mut lines = String::new();
        for group in diff.grouped_ops(3) {
            lines.push_str("@@\n");
            for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
                let sign = match change.tag() {
                    ChangeTag::Equal => ' ',
                    ChangeTag::Delete => '-',
                    ChangeTag::Insert => '+',
                };
                lines.push(sign);
                lines.push_str(change.value().trim_end_matches('\n'));
                lines.push('\n');
            }
            if group.last().is_some_and(|op| op.old_range().end == old.lines().count()) {
                lines.push_str("*** End of File\n");
            }
        }
        (!lines.is_empty()).then(|| wrapped(&format!("{UPDATE}f\n{}", lines.trim_end_matches('\n'))))
    }

    /// Distinct lines, so that context is never ambiguous.
    fn texts() -> impl Strategy<Value = (Vec<String>, Vec<String>)> {
        let line = |number: usize| {
            prop_oneof![Just(format!("line {number}")), Just(format!("    é{number} \u{2014} x ")), Just(format!("-{number}"))]
        };
        (1..40usize)
            .prop_flat_map(move |count| (0..count).map(line).collect::<Vec<_>>())
            .prop_flat_map(|old| {
                let count = old.len();
                (Just(old), proptest::collection::vec(0..4u8, count))
            })
            .prop_map(|(old, fates)| {
                let mut new = Vec::new();
                for (index, (line, fate)) in old.iter().zip(fates).enumerate() {
                    match fate {
                        0 => {}
                        1 => new.push(format!("changed {index}")),
                        2 => new.extend([line.clone(), format!("added {index}")]),
                        _ => new.push(line.clone()),
                    }
                }
                (old, new)
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn patch_made_from_a_diff_produces_the_new_text((old, new) in texts(), crlf in any::<bool>(), ended in any::<bool>()) {
            let joined = |lines: &[String]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
            let (old, new) = (joined(&old), joined(&new));
            let Some(patch) = patch_between(&old, &new) else { return Ok(()) };
            let stored = |text: &str| if crlf { text.replace('\n', "\r\n") } else { text.to_owned() };
            let mut before = stored(&old);
            if !ended {
                before.truncate(before.trim_end_matches(['\r', '\n']).len());
            }
            let Section::Update { chunks, .. } = parse(&patch).expect("a legal patch").remove(0) else { panic!("an update") };
            let after = update("f", before.as_bytes(), &chunks).expect("the context is there");
            prop_assert_eq!(String::from_utf8(after).expect("text"), if before.contains('\n') || !crlf { stored(&new) } else { new });
        }

        #[test]
        fn any_patch_adds_its_lines_or_is_refused(
            lines in proptest::collection::vec(
                "\\*\\*\\* (Begin Patch|(Update|Add|Delete) File: a|Move to: b|End of File)|@@ ?b?|[ +-]?[ab]?|x",
                0..12,
            ),
            content in "[ab\r\n ]{0,20}",
        ) {
            for section in parse(&wrapped(&format!("{UPDATE}a\n{}", lines.join("\n")))).unwrap_or_default() {
                if let Section::Update { chunks, .. } = section {
                    match update("a", content.as_bytes(), &chunks) {
                        Ok(after) => {
                            let added = chunks.iter().flat_map(|chunk| &chunk.lines).filter_map(Line::added);
                            let file = FileLines::new(&after);
                            prop_assert!(added.clone().count() <= file.texts.len());
                            for line in added {
                                prop_assert!(file.texts.contains(&line.as_bytes()), "{:?} is not in {:?}", line, file.texts);
                            }
                        }
                        Err(error) => prop_assert_eq!(error.kind(), ErrorKind::NoMatch),
                    }
                }
            }
        }

        #[test]
        fn line_search_agrees_with_a_naive_search(
            lines in proptest::collection::vec("[ab]", 0..30),
            pattern in proptest::collection::vec("[ab]", 1..5),
            from in 0..30usize,
        ) {
            let texts: Vec<&[u8]> = lines.iter().map(String::as_bytes).collect();
            let wanted: Vec<&str> = pattern.iter().map(String::as_str).collect();
            let plain = (from..lines.len()).find(|start| lines[*start..].starts_with(&pattern));
            prop_assert_eq!(find(&texts, &wanted, from, Strictness::Exact), plain);
        }
    }
}
