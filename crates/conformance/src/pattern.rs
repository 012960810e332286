//! The model's globs and grep, written as plainly as possible: recursion over expanded alternatives, and one line at a time.

use bytes::Bytes;
use treehold_core::error::{Error, Result};
use treehold_core::ops::{CaseMode, GrepLine, GrepOptions, SearchScope};
use treehold_core::search::Glob;

/// A glob as its expanded alternatives, each a list of segments, without trailing slashes.
#[derive(Debug)]
pub(super) struct Pattern {
    insensitive: bool,
    sees_hidden: bool,
    /// Whether only the names of paths are matched.
    is_of_names: bool,
    alternatives: Vec<Vec<Vec<char>>>,
}

impl Pattern {
    /// Parses a pattern that the real parser accepts, since rejecting malformed patterns is not the model's job. Unless the
    /// pattern sees hidden names, only a segment that starts with a dot matches one.
    pub(super) fn parse(text: &str, insensitive: bool, sees_hidden: bool) -> Result<Self> {
        let mut scope = SearchScope::default();
        scope.hidden = sees_hidden;
        Self::within(text, insensitive, &scope)
    }

    /// Parses a pattern of a search.
    pub(super) fn within(text: &str, insensitive: bool, scope: &SearchScope) -> Result<Self> {
        Glob::parse(text, insensitive)?;
        let alternatives = expand(&text.chars().collect::<Vec<_>>())
            .into_iter()
            .map(|alternative| {
                let segments = alternative.split(|character| *character == '/').map(<[char]>::to_vec);
                // Without a slash, a pattern matches names at any depth.
                let anywhere = (!text.contains('/')).then(|| vec!['*', '*']);
                anywhere.into_iter().chain(segments.filter(|segment| !segment.is_empty() && *segment != ['.'])).collect()
            })
            .collect();
        let is_of_names = scope.hidden_directories && !scope.hidden && !text.contains('/');
        Ok(Self { insensitive, sees_hidden: scope.hidden, is_of_names, alternatives })
    }

    /// Returns whether a path relative to the search root matches.
    pub(super) fn matches(&self, relative: &str) -> bool {
        let name = relative.rfind('/').map_or(relative, |slash| &relative[slash + 1..]);
        let met = if self.is_of_names { name } else { relative };
        let path: Vec<Vec<char>> = met.split('/').map(|segment| segment.chars().collect()).collect();
        self.alternatives.iter().any(|alternative| self.segments_match(alternative, &path))
    }

    fn segments_match(&self, pattern: &[Vec<char>], path: &[Vec<char>]) -> bool {
        match pattern {
            [] => path.is_empty(),
            [first, rest @ ..] if *first == ['*', '*'] => {
                let beneath = rest.is_empty() && !path.is_empty() && path.iter().all(|segment| self.may_meet(segment));
                let passed = path.iter().take_while(|segment| self.may_meet(segment)).count();
                beneath || (!rest.is_empty() && (0..=passed).any(|skipped| self.segments_match(rest, &path[skipped..])))
            }
            [first, rest @ ..] => {
                path.split_first().is_some_and(|(segment, below)| self.segment_matches(first, segment) && self.segments_match(rest, below))
            }
        }
    }

    /// Returns whether a wildcard may match a segment, or its first character.
    fn may_meet(&self, segment: &[char]) -> bool {
        self.sees_hidden || segment.first() != Some(&'.')
    }

    fn segment_matches(&self, pattern: &[char], segment: &[char]) -> bool {
        (self.may_meet(segment) || matches!(pattern, ['.', ..] | ['\\', '.', ..])) && self.text_matches(pattern, segment)
    }

    fn text_matches(&self, pattern: &[char], text: &[char]) -> bool {
        let same = |one: &char, other: &char| one == other || (self.insensitive && one.to_lowercase().eq(other.to_lowercase()));
        match pattern {
            [] => text.is_empty(),
            ['*', rest @ ..] => (0..=text.len()).any(|skipped| self.text_matches(rest, &text[skipped..])),
            ['?', rest @ ..] => !text.is_empty() && self.text_matches(rest, &text[1..]),
            ['\\', literal, rest @ ..] => text.first().is_some_and(|first| same(first, literal)) && self.text_matches(rest, &text[1..]),
            ['[', ..] => {
                let end = class_end(pattern, 0);
                text.first().is_some_and(|first| class_matches(&pattern[1..end], *first))
                    && self.text_matches(&pattern[end + 1..], &text[1..])
            }
            [literal, rest @ ..] => text.first().is_some_and(|first| same(first, literal)) && self.text_matches(rest, &text[1..]),
        }
    }
}

/// Expands the first braces into their alternatives, recursively until none are left.
fn expand(pattern: &[char]) -> Vec<Vec<char>> {
    let mut edges: Vec<usize> = Vec::new();
    let mut depth = 0;
    let mut at = 0;
    while at < pattern.len() {
        match pattern[at] {
            '\\' => at += 1,
            '[' => at = class_end(pattern, at),
            '{' => {
                depth += 1;
                if depth == 1 {
                    edges = vec![at];
                }
            }
            ',' if depth == 1 => edges.push(at),
            '}' if depth > 0 => {
                depth -= 1;
                if depth == 0 {
                    edges.push(at);
                    let (before, after) = (&pattern[..edges[0]], &pattern[at + 1..]);
                    return edges.windows(2).flat_map(|edge| expand(&[before, &pattern[edge[0] + 1..edge[1]], after].concat())).collect();
                }
            }
            _ => {}
        }
        at += 1;
    }
    vec![pattern.to_vec()]
}

/// Returns the position of the `]` that closes the class at `start`. As the first member, `]` is literal.
fn class_end(pattern: &[char], start: usize) -> usize {
    let negated = matches!(pattern.get(start + 1), Some('!' | '^'));
    let first = start + 1 + usize::from(negated);
    let mut at = first;
    loop {
        match named_class(&pattern[at..]) {
            Some((_, length)) => at += length,
            None if pattern[at] == ']' && at > first => return at,
            None => at += 1,
        }
    }
}

/// Parses a POSIX class at the start of some members. Returns its name and length.
fn named_class(members: &[char]) -> Option<(String, usize)> {
    let ['[', ':', rest @ ..] = members else { return None };
    let name: String = rest.iter().take_while(|character| character.is_ascii_alphabetic()).collect();
    rest[name.len()..].starts_with(&[':', ']']).then(|| (name.clone(), name.len() + 4)).filter(|_| !name.is_empty())
}

fn is_in_class(name: &str, character: char) -> bool {
    match name {
        "alnum" => character.is_ascii_alphanumeric(),
        "alpha" => character.is_ascii_alphabetic(),
        "blank" => matches!(character, ' ' | '\t'),
        "cntrl" => character.is_ascii_control(),
        "digit" => character.is_ascii_digit(),
        "graph" => character.is_ascii_graphic(),
        "lower" => character.is_ascii_lowercase(),
        "print" => character.is_ascii_graphic() || character == ' ',
        "punct" => character.is_ascii_punctuation(),
        "space" => matches!(character, ' ' | '\t'..='\r'),
        "upper" => character.is_ascii_uppercase(),
        "xdigit" => character.is_ascii_hexdigit(),
        other => panic!("`{other}` is not a class, though the pattern was parsed"),
    }
}

fn class_matches(class: &[char], character: char) -> bool {
    let negated = matches!(class.first(), Some('!' | '^'));
    let mut members = &class[usize::from(negated)..];
    let mut found = false;
    while let [first, rest @ ..] = members {
        if let Some((name, length)) = named_class(members) {
            (found, members) = (found || is_in_class(&name, character), &members[length..]);
            continue;
        }
        (found, members) = match rest {
            ['-', last, after @ ..] => (found || (*first..=*last).contains(&character), after),
            _ => (found || *first == character, rest),
        };
    }
    found != negated
}

/// Returns every line of some content with whether it matches. Lines that one match spans are joined.
///
/// # Errors
/// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a malformed expression.
pub(super) fn grep_lines(content: &Bytes, options: &GrepOptions) -> Result<Vec<GrepLine>> {
    let mut pattern = if options.regex { options.pattern.clone() } else { regex::escape(&options.pattern) };
    if options.whole_line {
        pattern = format!("^(?:{pattern})$");
    } else if options.word {
        pattern = format!(r"(?:\b{{start-half}})(?:{pattern})(?:\b{{end-half}})");
    }
    let insensitive = match options.case {
        CaseMode::Sensitive => false,
        CaseMode::Insensitive => true,
        CaseMode::Smart => !options.pattern.chars().any(char::is_uppercase),
    };
    let expression = regex::bytes::RegexBuilder::new(&pattern)
        .case_insensitive(insensitive)
        .multi_line(true)
        // `$` also matches before `\r\n`; within a line, `.` matches any character.
        .crlf(true)
        .dot_matches_new_line(!options.multiline)
        .build()
        .map_err(|error| Error::invalid_argument("the pattern is malformed").with_source(error))?;
    let spans = if options.multiline { spans(content, &expression) } else { Vec::new() };
    let mut lines = Vec::new();
    let (mut at, mut number) = (0, 1);
    while at < content.len() {
        // A match that begins on this line and continues joins all the lines it touches.
        let end = spans.iter().find(|span| (span.0..span.1).contains(&at)).map_or_else(|| line_end(content, at), |span| span.1);
        let text = content[at..end].strip_suffix(b"\n").map_or(&content[at..end], |line| line.strip_suffix(b"\r").unwrap_or(line));
        let ranges: Vec<_> = expression.find_iter(text).map(|found| found.range()).collect();
        let is_match = ranges.is_empty() == options.invert;
        let ranges = if options.invert { Vec::new() } else { ranges };
        lines.push(GrepLine::new(number, at as u64, content.slice(at..at + text.len()), ranges, is_match));
        number += content[at..end].iter().filter(|byte| **byte == b'\n').count();
        at = end;
    }
    Ok(lines)
}

/// Returns the end of the line that contains the byte at `at`, including its terminator.
fn line_end(content: &[u8], at: usize) -> usize {
    content[at..].iter().position(|byte| *byte == b'\n').map_or(content.len(), |newline| at + newline + 1)
}

/// Returns the whole lines that matches cover, joining those that share a line.
fn spans(content: &[u8], expression: &regex::bytes::Regex) -> Vec<(usize, usize)> {
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for found in expression.find_iter(content) {
        let start = content[..found.start()].iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        let last = found.end().max(found.start() + 1) - 1;
        let end = if last < content.len() { line_end(content, last) } else { content.len() };
        match spans.last_mut() {
            Some(span) if start < span.1 => span.1 = span.1.max(end),
            _ => spans.push((start, end)),
        }
    }
    spans
}
