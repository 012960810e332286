//! Error messages for lines that a file lacks: which chunk needs them, and the closest match.

use super::place::FileLines;
use std::borrow::Cow;
use treehold_core::error::{Error, ErrorKind};
use treehold_core::work;

/// The most lines of a file that are searched for the closest ones.
const NEAREST_LINES_MAX: usize = 20_000;

/// The most lines of a chunk that are compared and shown.
const NEAREST_PATTERN_MAX: usize = 40;

/// How many letters of a line are compared and shown.
const EXCERPT_CHARS: usize = 120;

/// What was not found, and from which line on it was searched.
pub(super) enum Miss<'a> {
    Header { header: &'a str, from: usize },
    Lines { lines: Vec<&'a str>, from: usize },
}

impl Miss<'_> {
    pub(super) fn explained(&self, path: &str, file: &FileLines<'_>, index: usize, count: usize) -> Error {
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

/// Describes where most of the lines are and the first that differs, or else the line most similar to the first one.
fn nearest(file: &FileLines<'_>, pattern: &[&str], from: usize) -> Option<String> {
    let wanted: Vec<&str> = pattern.iter().take(NEAREST_PATTERN_MAX).map(|line| line.trim()).collect();
    let texts: Vec<Cow<'_, str>> = file.texts.iter().take(NEAREST_LINES_MAX).map(|text| String::from_utf8_lossy(text)).collect();
    let same = |start: usize| {
        work::advance(NEAREST_PATTERN_MAX * (texts[start].len() + 1));
        wanted.iter().zip(&texts[start..]).filter(|(wanted, text)| !wanted.is_empty() && text.trim() == **wanted).count()
    };
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
            "they are on line {}, before what the patch changed or named above them; put the chunks in the order of the file",
            start + 1
        ),
        None => format!("they are on line {}, but differ in white space or are cut off here; copy the lines exactly", start + 1),
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
    let likeness = |text: &str| {
        // All letters of both are compared.
        work::advance(EXCERPT_CHARS * EXCERPT_CHARS);
        strsim::normalized_levenshtein(&excerpt(text.trim()), &first)
    };
    let (likeness, index) = texts
        .iter()
        .enumerate()
        .take(NEAREST_LINES_MAX / 10)
        .map(|(index, text)| (likeness(text), index))
        .max_by(|left, right| left.0.total_cmp(&right.0))?;
    (likeness >= 0.6).then(|| format!("nearest is line {}: `{}`; copy the lines exactly", index + 1, excerpt(texts[index].trim_end())))
}

fn excerpt(text: &str) -> String {
    text.char_indices().nth(EXCERPT_CHARS).map_or_else(|| text.to_owned(), |(end, _)| format!("{}...", &text[..end]))
}
