//! What of a file gets vectors.

use std::borrow::Cow;
use treehold_core::file;
use treehold_core::ops::{FileRead, Snippet};
use treehold_core::path::VfsPath;
use treehold_core::search::rank;

/// The longest passage in bytes; a longer line is cut.
pub(super) const PASSAGE_BYTES_MAX: usize = 1_000;

/// The most passages of a file that get a vector: roughly its first 32 KB.
pub(super) const PASSAGES_MAX: usize = 32;

/// How much of a path is embedded with a passage: its end, which names the file.
pub(super) const PATH_BYTES_MAX: usize = 256;

/// How much of a query is embedded: its start.
pub(super) const QUERY_BYTES_MAX: usize = 1_000;

/// The hash of a model and a text, which names the vector that they yield.
pub(super) type PassageKey = [u8; 32];

/// A part of a file that has a vector.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Passage<'t> {
    /// The number of its first line, from 1.
    pub line: usize,
    pub text: &'t str,
}

/// Returns the text of a file; empty for a binary file.
pub(super) fn text_of(read: &FileRead) -> Cow<'_, str> {
    if file::is_binary(&read.content) { Cow::Borrowed("") } else { String::from_utf8_lossy(&read.content) }
}

/// Returns what is embedded of a query.
pub(super) fn embedded_query(query: &str) -> &str {
    &query[..query.floor_char_boundary(QUERY_BYTES_MAX)]
}

/// Returns what is embedded of a passage: its text after the path, whose words often name the topic.
pub(super) fn embedded_text(path: &VfsPath, passage: &Passage<'_>) -> String {
    let path = path.as_str().trim_start_matches('/');
    let start = path.ceil_char_boundary(path.len().saturating_sub(PATH_BYTES_MAX));
    format!("{}\n{}", &path[start..], passage.text)
}

/// Returns the first line of a passage that is not blank.
pub(super) fn start_of(text: &str, passage: usize) -> Option<Snippet> {
    let passages = passages(text);
    let passage = passages.get(passage)?;
    let (index, line) = passage.text.lines().enumerate().find(|(_, line)| !line.trim().is_empty())?;
    Some(rank::snippet_of(passage.line + index, line))
}

/// Splits a text into passages: whole lines, up to a bounded size.
pub(super) fn passages(text: &str) -> Vec<Passage<'_>> {
    let mut passages: Vec<Passage<'_>> = Vec::new();
    let (mut start, mut at, mut first_line) = (0, 0, 1);
    let mut push = |start: usize, end: usize, line: usize| {
        let end = text.floor_char_boundary(end.min(start + PASSAGE_BYTES_MAX));
        if !text[start..end].trim().is_empty() {
            passages.push(Passage { line, text: &text[start..end] });
        }
    };
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if at > start && at + line.len() - start > PASSAGE_BYTES_MAX {
            push(start, at, first_line);
            (start, first_line) = (at, index + 1);
        }
        at += line.len();
    }
    push(start, at, first_line);
    passages.truncate(PASSAGES_MAX);
    passages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passages_are_whole_lines_of_bounded_size() {
        let line = "word ".repeat(60);
        let text = format!("first\n{line}\n{line}\n{line}\n{line}\n\nlast\n{}", "é".repeat(2_000));
        let passages = passages(&text);
        assert_eq!(passages.iter().map(|passage| passage.line).collect::<Vec<_>>(), [1, 5, 8]);
        assert!(passages.iter().all(|passage| passage.text.len() <= PASSAGE_BYTES_MAX));
        assert!(passages[1].text.ends_with("last\n"));
        assert_eq!(super::passages(" \n\n"), []);
        assert_eq!(super::passages(&"line\n".repeat(100_000)).len(), PASSAGES_MAX);
    }

    /// Regression: a path of 4 KB was sent whole with each passage, and models that do not cut refused the text.
    #[test]
    fn texts_are_cut_on_a_character() {
        for letter in ["a", "é", "語", "😀"] {
            for shift in 0..4 {
                let long = format!("{}{}", "x".repeat(shift), letter.repeat(60));
                let path = format!("/{}/{long}/name.md", [&*long; 4].join("/"));
                let path = VfsPath::parse(&path).expect("a legal path");
                let text = embedded_text(&path, &Passage { line: 1, text: "text" });
                let (shown, rest) = text.split_once('\n').expect("a path and a text");
                assert!(shown.len() <= PATH_BYTES_MAX && shown.len() > PATH_BYTES_MAX - 4, "{}", shown.len());
                assert!(path.as_str().ends_with(shown) && rest == "text");
                let query = format!("{}{}", "x".repeat(shift), letter.repeat(2_000));
                let cut = embedded_query(&query);
                assert!(query.starts_with(cut) && cut.len() <= QUERY_BYTES_MAX && cut.len() > QUERY_BYTES_MAX - 4);
            }
        }
        let path = VfsPath::parse("/notes/a.md").expect("a legal path");
        assert_eq!(embedded_text(&path, &Passage { line: 1, text: "text\n" }), "notes/a.md\ntext\n");
        assert_eq!(embedded_query("où"), "où");
    }
}
