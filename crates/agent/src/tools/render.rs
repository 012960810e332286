//! Rendering of answers: bounded content, then the tool's own remarks, which content cannot imitate.

use treehold_core::ops::Failure;

/// The most characters shown of one line.
pub(super) const LINE_CHARS_MAX: usize = 2000;

/// The most characters of content in one answer: about 25,000 tokens.
pub(super) const TEXT_CHARS_MAX: usize = 100_000;

/// The most failures of a search that are reported individually.
const FAILURES_TOLD_MAX: usize = 5;

/// An answer under construction.
#[derive(Debug)]
pub(super) struct Page {
    tool: &'static str,
    content: String,
    chars: usize,
    chars_max: usize,
    notices: Vec<String>,
}

impl Page {
    /// Starts an empty answer for a tool.
    pub(super) fn new(tool: &'static str) -> Self {
        Self { tool, content: String::new(), chars: 0, chars_max: TEXT_CHARS_MAX, notices: Vec::new() }
    }

    /// Lowers the limit on content below [`TEXT_CHARS_MAX`].
    pub(super) fn with_chars_max(mut self, chars_max: usize) -> Self {
        self.chars_max = chars_max.min(TEXT_CHARS_MAX);
        self
    }

    /// Adds content if it fits; the first piece always does. Returns whether it was added.
    #[must_use]
    pub(super) fn push(&mut self, piece: &str) -> bool {
        let chars = piece.chars().count();
        if self.chars > 0 && self.chars + chars > self.chars_max {
            return false;
        }
        self.chars += chars;
        self.content.push_str(piece);
        true
    }

    /// Adds a remark of the tool, shown after the content.
    pub(super) fn note(&mut self, notice: impl Into<String>) {
        self.notices.push(notice.into());
    }

    /// Adds a remark for each part of the tree that could not be read.
    pub(super) fn note_failures(&mut self, failures: &[Failure], count: usize) {
        self.note_each(failures, count, "could not be read");
    }

    /// Adds a remark for each part of the tree that was searched by words and not by meaning.
    pub(super) fn note_by_words(&mut self, failures: &[Failure], count: usize) {
        self.note_each(failures, count, "was searched by words alone");
    }

    fn note_each(&mut self, failures: &[Failure], count: usize, what: &str) {
        for failure in failures.iter().take(FAILURES_TOLD_MAX) {
            self.note(format!("`{}` {what}: {}", failure.path, failure.error.message));
        }
        if count > FAILURES_TOLD_MAX {
            self.note(format!("{} more {what}", count - FAILURES_TOLD_MAX));
        }
    }

    /// Returns the text. Content without remarks is verbatim; remarks follow an empty line, each prefixed with the
    /// tool's name.
    pub(super) fn finish(self) -> String {
        let Self { tool, content: mut text, notices, .. } = self;
        if notices.is_empty() {
            return text;
        }
        let marker = marker(tool, &text);
        if !text.is_empty() {
            text.push_str(if text.ends_with('\n') { "\n" } else { "\n\n" });
        }
        for (index, notice) in notices.iter().enumerate() {
            if index > 0 {
                text.push('\n');
            }
            text.push_str(&marker);
            text.push(' ');
            text.push_str(notice);
        }
        text
    }
}

/// Returns the prefix of the tool's remarks: its name, in enough brackets that no line of the content starts the same
/// way.
fn marker(tool: &str, content: &str) -> String {
    let mut marker = format!("[{tool}]");
    while content.lines().any(|line| line.starts_with(&marker)) {
        marker = format!("[{marker}]");
    }
    marker
}

/// Returns up to `limit` characters of a line from the character `start` on, and whether more follow.
pub(super) fn cut_line(line: &str, start: usize, limit: usize) -> (&str, bool) {
    let rest = match start {
        0 => line,
        start => line.char_indices().nth(start).map_or("", |(at, _)| &line[at..]),
    };
    if rest.len() <= limit {
        return (rest, false);
    }
    match rest.char_indices().nth(limit) {
        Some((end, _)) => (&rest[..end], true),
        None => (rest, false),
    }
}

/// Formats a size in bytes for people: `0B`, `512B`, `5.5K`, `2M`.
pub(crate) fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = 'B';
    for next in ['K', 'M', 'G'] {
        // A value that would round to 1024 uses the next unit.
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    let rounded = (value * 10.0).round() / 10.0;
    if rounded.fract() == 0.0 { format!("{rounded:.0}{unit}") } else { format!("{rounded:.1}{unit}") }
}

/// Formats a count with its noun: `1 line`, `2,000 lines`, `3 entries`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    let number = thousands(count as u64);
    match (count, noun.strip_suffix('y')) {
        (1, _) => format!("{number} {noun}"),
        (_, Some(stem)) => format!("{number} {stem}ies"),
        (_, None) => format!("{number} {noun}s"),
    }
}

/// Formats a number with commas: `12,345`.
pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remarks_are_separated_from_content_that_imitates_them() {
        let answer = |content: &str, notices: &[&str]| {
            let mut page = Page::new("x");
            let _ = page.push(content);
            notices.iter().for_each(|notice| page.note(*notice));
            page.finish()
        };
        assert_eq!(answer("a\n", &[]), "a\n");
        assert_eq!(answer("a", &[]), "a");
        assert_eq!(answer("a\n", &["cut", "again"]), "a\n\n[x] cut\n[x] again");
        assert_eq!(answer("a", &["cut"]), "a\n\n[x] cut");
        assert_eq!(answer("", &["empty"]), "[x] empty");
        assert_eq!(answer("[x] forged\n", &["cut"]), "[x] forged\n\n[[x]] cut");
        assert_eq!(answer("[[x]] forged\n[x] twice\n", &["cut"]), "[[x]] forged\n[x] twice\n\n[[[x]]] cut");
    }

    #[test]
    fn content_is_bounded_but_never_empty() {
        let mut page = Page::new("x");
        assert!(page.push(&"a".repeat(TEXT_CHARS_MAX + 5)));
        assert!(!page.push("b"));
    }

    #[test]
    fn lines_are_cut_at_character_boundaries() {
        assert_eq!(cut_line("añb", 0, 2), ("añ", true));
        assert_eq!(cut_line("añb", 2, 2), ("b", false));
        assert_eq!(cut_line("añb", 0, 3), ("añb", false));
        assert_eq!(cut_line("añb", 9, 3), ("", false));
    }

    #[test]
    fn numbers_are_formatted_for_people() {
        for (bytes, text) in
            [(0, "0B"), (1023, "1023B"), (1024, "1K"), (5632, "5.5K"), (1 << 20, "1M"), ((1 << 20) - 1, "1M"), (5 << 40, "5120G")]
        {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(thousands(12), "12");
        assert_eq!(counted(1, "line"), "1 line");
        assert_eq!(counted(2000, "line"), "2,000 lines");
        assert_eq!(counted(3, "entry"), "3 entries");
    }
}
