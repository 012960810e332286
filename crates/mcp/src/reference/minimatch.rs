//! Glob patterns with the semantics of the `minimatch` library, including names that start with a dot, as the reference server uses them.
//!
//! They differ from ours: a pattern matches the whole path, supports extended alternatives as in a shell (`@(a|b)`), and can be negated.

use super::Refused;
use regex::Regex;
use std::fmt::Write;

/// The longest pattern in bytes, and the most patterns that its braces may expand to.
const PATTERN_BYTES_MAX: usize = 4096;
const ALTERNATIVES_MAX: usize = 1000;

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct Pattern {
    alternatives: Vec<Regex>,
    negated: bool,
}

/// Compiles several patterns.
pub(super) fn all(patterns: &[&str]) -> Result<Vec<Pattern>, Refused> {
    patterns.iter().map(|pattern| Pattern::new(pattern)).collect()
}

impl Pattern {
    pub(super) fn new(pattern: &str) -> Result<Self, Refused> {
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(Refused("pattern is too long".to_owned()));
        }
        // A pattern that starts with `#` is a comment, and an empty one matches nothing.
        if pattern.is_empty() || pattern.starts_with('#') {
            return Ok(Self { alternatives: Vec::new(), negated: false });
        }
        let is_extended = pattern.starts_with("!(");
        let positive = if is_extended { pattern } else { pattern.trim_start_matches('!') };
        let negated = (pattern.len() - positive.len()) % 2 == 1;
        let mut expanded = Vec::new();
        expand(positive, &mut expanded);
        let alternatives = expanded.iter().map(|pattern| expression(pattern)).collect::<Result<_, _>>()?;
        Ok(Self { alternatives, negated })
    }

    /// Returns whether a path without a leading slash matches.
    pub(super) fn matches(&self, path: &str) -> bool {
        self.alternatives.iter().any(|alternative| alternative.is_match(path)) != self.negated
    }
}

/// Expands braces into all alternatives, in order.
fn expand(pattern: &str, expanded: &mut Vec<String>) {
    let Some((before, parts, after)) = first_braces(pattern) else {
        expanded.push(pattern.to_owned());
        return;
    };
    for part in parts {
        if expanded.len() >= ALTERNATIVES_MAX {
            return;
        }
        expand(&format!("{before}{part}{after}"), expanded);
    }
}

/// Returns the text before the first braces with alternatives, the alternatives, and the text after them.
fn first_braces(pattern: &str) -> Option<(&str, Vec<String>, &str)> {
    for (start, _) in pattern.match_indices('{') {
        if pattern[..start].ends_with('\\') {
            continue;
        }
        let (mut depth, mut commas) = (0_usize, Vec::new());
        for (at, char) in pattern[start..].char_indices() {
            match char {
                '{' => depth += 1,
                ',' if depth == 1 => commas.push(start + at),
                '}' => depth -= 1,
                _ => {}
            }
            if depth > 0 {
                continue;
            }
            let (inner, after) = (&pattern[start + 1..start + at], &pattern[start + at + 1..]);
            let parts = if commas.is_empty() {
                range(inner)?
            } else {
                let ends: Vec<usize> = commas.iter().copied().chain([start + at]).collect();
                let starts = std::iter::once(start + 1).chain(commas.iter().map(|comma| comma + 1));
                starts.zip(&ends).map(|(from, to)| pattern[from..*to].to_owned()).collect()
            };
            return Some((&pattern[..start], parts, after));
        }
    }
    None
}

/// Returns the numbers of a range such as `1..3`.
fn range(text: &str) -> Option<Vec<String>> {
    let (first, last) = text.split_once("..")?;
    let (first, last) = (first.parse::<i64>().ok()?, last.parse::<i64>().ok()?);
    if first.abs_diff(last) >= ALTERNATIVES_MAX as u64 {
        return None;
    }
    Some(if first <= last {
        (first..=last).map(|n| n.to_string()).collect()
    } else {
        (last..=first).rev().map(|n| n.to_string()).collect()
    })
}

/// Compiles a pattern without braces, segment by segment. `**` as a whole segment matches any number of segments.
fn expression(pattern: &str) -> Result<Regex, Refused> {
    let mut text = "(?s)^".to_owned();
    let segments: Vec<&str> = pattern.split('/').collect();
    let last = segments.len() - 1;
    for (at, segment) in segments.iter().enumerate() {
        match (*segment, at == last) {
            ("**", true) => text.push_str("[^/]+(?:/[^/]+)*"),
            ("**", false) => text.push_str("(?:[^/]+/)*"),
            (segment, is_last) => {
                segment_expression(segment, &mut text);
                if !is_last {
                    text.push('/');
                }
            }
        }
    }
    text.push('$');
    Regex::new(&text).map_err(|_| Refused(format!("invalid pattern: {pattern}")))
}

fn segment_expression(segment: &str, text: &mut String) {
    let chars: Vec<char> = segment.chars().collect();
    // A segment of only stars matches any non-empty name.
    if !chars.is_empty() && chars.iter().all(|char| *char == '*') {
        text.push_str("[^/]+");
        return;
    }
    let mut open: Vec<char> = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        let char = chars[at];
        let next = chars.get(at + 1).copied();
        match char {
            '\\' if next.is_some() => {
                literal(chars[at + 1], text);
                at += 1;
            }
            '@' | '?' | '*' | '+' if next == Some('(') && chars[at + 2..].contains(&')') => {
                text.push_str("(?:");
                open.push(char);
                at += 1;
            }
            '|' if !open.is_empty() => text.push('|'),
            ')' if !open.is_empty() => {
                text.push(')');
                match open.pop() {
                    Some('@') | None => {}
                    Some(repeated) => text.push(repeated),
                }
            }
            '*' => text.push_str("[^/]*"),
            '?' => text.push_str("[^/]"),
            '[' => match class(&chars[at..]) {
                Some((class, length)) => {
                    text.push_str(&class);
                    at += length - 1;
                }
                None => literal('[', text),
            },
            char => literal(char, text),
        }
        at += 1;
    }
    for _ in open {
        text.push(')');
    }
}

fn literal(char: char, text: &mut String) {
    // Writing to a string does not fail.
    let _ = write!(text, "{}", regex::escape(char.encode_utf8(&mut [0; 4])));
}

/// Parses a class such as `[!a-z]`, and returns its length in characters.
fn class(chars: &[char]) -> Option<(String, usize)> {
    let mut at = 1;
    let is_negated = matches!(chars.get(at), Some('!' | '^'));
    if is_negated {
        at += 1;
    }
    let start = at;
    let mut inner = String::new();
    loop {
        match *chars.get(at)? {
            ']' if at > start => break,
            '[' if chars.get(at + 1) == Some(&':') => {
                let length = chars[at..].windows(2).position(|pair| pair == [':', ']'])?;
                inner.extend(&chars[at..at + length + 2]);
                at += length + 2;
                continue;
            }
            '\\' if chars.get(at + 1).is_some() => {
                at += 1;
                literal(chars[at], &mut inner);
            }
            '-' => inner.push('-'),
            char => literal(char, &mut inner),
        }
        at += 1;
    }
    let names = if is_negated { format!("[^/{inner}]") } else { format!("[{inner}]") };
    Some((names, at + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_like_minimatch() {
        for (pattern, matching, other) in [
            ("*.md", &["a.md", ".md"][..], &["d/a.md", "a.mdx"][..]),
            ("**/*.md", &["a.md", "d/e/a.md"], &["a.txt"]),
            ("sub/**", &["sub/a", "sub/a/b"], &["sub", "subs/a"]),
            ("**", &["a", "a/b"], &[""]),
            ("**.md", &["a.md"], &["d/a.md"]),
            ("{a,b{c,d}}.x", &["a.x", "bc.x", "bd.x"], &["b.x"]),
            ("a{1..3}", &["a1", "a3"], &["a4"]),
            ("[a-c]?", &["ax"], &["dx", "a", "a/"]),
            ("[!a-c]*", &["d", ".x"], &["a"]),
            ("[[:upper:]]*", &["Ab"], &["ab"]),
            ("@(a|b).x", &["a.x", "b.x"], &["ab.x"]),
            ("+(ab)", &["abab"], &["", "aba"]),
            ("!*.md", &["a.txt", "d/a.md"], &["a.md"]),
            ("!!*.md", &["a.md"], &["a.txt"]),
            ("#a", &[], &["#a"]),
            ("", &[], &["", "a"]),
            ("\\*", &["*"], &["a"]),
            ("a.b+c", &["a.b+c"], &["aXbbc"]),
            ("[", &["["], &["a"]),
            ("*/", &[], &["a"]),
        ] {
            let read = Pattern::new(pattern).expect("legal");
            for path in matching {
                assert!(read.matches(path), "{pattern} {path}");
            }
            for path in other {
                assert!(!read.matches(path), "{pattern} {path}");
            }
        }
    }

    #[test]
    fn pattern_length_and_expansion_are_bounded() {
        assert!(Pattern::new(&"a".repeat(PATTERN_BYTES_MAX + 1)).is_err());
        let read = Pattern::new(&"{a,b}".repeat(100)).expect("cut");
        assert!(read.alternatives.len() <= ALTERNATIVES_MAX);
    }
}
