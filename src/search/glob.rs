//! Globs as linear-time matchers.
//!
//! A pattern is parsed to tokens, its braces are expanded where they could change the segments (a `/`, a `**` or an empty
//! alternative inside), and all alternatives become two regular expressions in Unicode mode: one for the paths that match and
//! one for the directories above them, which a walk asks before it enters. Characters are characters, not bytes, and matching
//! takes time linear in the path, whatever the pattern.

use crate::error::{Error, Result};
use regex::{Regex, RegexBuilder};
use std::borrow::Cow;
use std::fmt::Write as _;

/// The longest pattern in bytes.
pub const PATTERN_BYTES_MAX: usize = 4096;

/// How many alternatives the braces of one pattern may expand to.
const ALTERNATIVES_MAX: usize = 1000;

/// How many tokens all alternatives together may have.
const TOKENS_MAX: usize = 32 * 1024;

/// How deep braces may nest.
const NESTING_MAX: usize = 16;

/// How many leading segments decide exactly which directories are entered; beneath them all are.
const SEGMENTS_PRUNED: usize = 16;

/// How large a compiled expression may be in bytes.
const COMPILED_BYTES_MAX: usize = 4 << 20;

/// Stands for the dot that a hidden name starts with, so that only a dot written in the pattern can meet it. No path and no
/// pattern holds it, as control characters are refused in both.
const HIDDEN_MARK: char = '\u{1}';

/// A compiled glob.
#[derive(Debug, Clone)]
pub struct Glob {
    whole: Regex,
    above: Regex,
    literal_prefix: String,
    sees_hidden: bool,
    directories_only: bool,
}

impl Glob {
    /// Compiles a pattern: `*` and `?` stay within a segment (of characters, not bytes), `**` crosses as a whole segment, `{a,b}`
    /// (nested, empty alternatives, `/` inside), `[abc]`, `[!a-z]`, `\` escapes. Without `/` it matches names at any depth;
    /// with one (leading or inside, also inside braces) it is anchored at the search root. Names that start with a dot are met
    /// as all others; [`Glob::parse_visible`] is the stricter rule of searches.
    ///
    /// `//` and `/./` are collapsed as in paths. A trailing `/` does not anchor; it makes the pattern one of
    /// [directories only](Glob::directories_only). A `**` beside other characters of its segment acts as `*`, a `}` without its
    /// `{` is itself, and a class never matches `/`.
    ///
    /// # Errors
    /// `invalid_argument` that says what is wrong where: an empty pattern, a `..` segment, a control character, an open `{` or
    /// `[`, a `\` at the end, a range that runs backwards, and what is too long, too deeply nested or has too many alternatives.
    pub fn parse(pattern: &str, case_insensitive: bool) -> Result<Self> {
        Self::compile(pattern, Rules { case_insensitive, sees_hidden: true, takes_beneath: false })
    }

    /// Compiles a pattern that does not see hidden names: a segment that starts with a dot is met only by a segment of the
    /// pattern that starts with a dot itself, as in a shell. Neither `*` nor `**` nor `[.]` meets it.
    ///
    /// # Errors
    /// As [`Glob::parse`].
    pub fn parse_visible(pattern: &str, case_insensitive: bool) -> Result<Self> {
        Self::compile(pattern, Rules { case_insensitive, sees_hidden: false, takes_beneath: false })
    }

    /// Compiles a pattern by the rules of a search.
    pub(super) fn compile(pattern: &str, rules: Rules) -> Result<Self> {
        let parsed = Pattern::parse(pattern, rules).map_err(|problem| malformed(pattern, &problem))?;
        let build = |expression: &str| {
            RegexBuilder::new(expression)
                .case_insensitive(rules.case_insensitive)
                .dot_matches_new_line(true)
                .size_limit(COMPILED_BYTES_MAX)
                .build()
                .map_err(|error| malformed(pattern, "it is too large; split it into several").with_source(error))
        };
        let writer = ExpressionWriter::new(rules);
        Ok(Self {
            whole: build(&writer.whole(&parsed.alternatives))?,
            above: build(&writer.above(&parsed.alternatives))?,
            literal_prefix: literal_prefix(&parsed.alternatives, rules.case_insensitive),
            sees_hidden: rules.sees_hidden,
            directories_only: parsed.directories_only,
        })
    }

    /// Tells whether a path matches, given relative to the search root, without a leading slash.
    pub fn is_match(&self, relative: &str) -> bool {
        self.whole.is_match(&self.marked(relative))
    }

    /// Returns the directory, relative to the search root, that everything the pattern can match lies beneath: `""` for
    /// the search root itself. No leading or trailing slash.
    pub fn literal_prefix(&self) -> &str {
        &self.literal_prefix
    }

    /// Tells whether something beneath the directory `relative` can match: what a walk asks before it enters. Never false for
    /// a directory above a match.
    pub fn can_match_beneath(&self, relative: &str) -> bool {
        relative.is_empty() || self.above.is_match(&self.marked(relative))
    }

    /// Tells whether the pattern ends with a `/` and so is about directories. [`Glob::is_match`] does not know what a path is;
    /// the caller asks this beside it.
    pub fn directories_only(&self) -> bool {
        self.directories_only
    }

    fn marked<'a>(&self, relative: &'a str) -> Cow<'a, str> {
        if self.sees_hidden { Cow::Borrowed(relative) } else { mark_hidden(relative) }
    }
}

/// Tells whether a segment of a relative path starts with a dot.
pub(super) fn has_hidden(relative: &str) -> bool {
    relative.starts_with('.') || relative.contains("/.")
}

/// Puts the mark in place of the dot of every hidden segment. Most paths have none and are borrowed.
fn mark_hidden(relative: &str) -> Cow<'_, str> {
    if !has_hidden(relative) {
        return Cow::Borrowed(relative);
    }
    let mut marked = String::with_capacity(relative.len());
    for (index, segment) in relative.split('/').enumerate() {
        if index > 0 {
            marked.push('/');
        }
        match segment.strip_prefix('.') {
            Some(rest) => {
                marked.push(HIDDEN_MARK);
                marked.push_str(rest);
            }
            None => marked.push_str(segment),
        }
    }
    Cow::Owned(marked)
}

fn malformed(pattern: &str, problem: &str) -> Error {
    let shown: String = pattern.chars().take(100).collect();
    let more = if shown.len() < pattern.len() { "..." } else { "" };
    Error::invalid_argument(format!("the glob `{shown}{more}` is malformed: {problem}"))
}

/// How a pattern is compiled.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// Letters match in any case.
    pub(super) case_insensitive: bool,
    /// Wildcards meet names that start with a dot.
    pub(super) sees_hidden: bool,
    /// A trailing slash takes all that lies beneath the directory, instead of the directory itself.
    pub(super) takes_beneath: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Char(char),
    /// `?`
    One,
    /// `*`
    Star,
    /// `**` where it is a whole segment.
    Deep,
    Slash,
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
    Braces(Vec<Vec<Token>>),
}

/// A segment of an alternative: tokens without slashes; `[Deep]` crosses any number of segments.
type Segment = Vec<Token>;

fn is_deep(segment: &Segment) -> bool {
    matches!(segment.as_slice(), [Token::Deep])
}

/// Returns the text of a segment without wildcards.
fn literal(segment: &Segment) -> Option<String> {
    segment.iter().map(|token| if let Token::Char(literal) = token { Some(*literal) } else { None }).collect()
}

#[derive(Debug)]
struct Pattern {
    /// Never empty, nor is any of them.
    alternatives: Vec<Vec<Segment>>,
    directories_only: bool,
}

impl Pattern {
    fn parse(text: &str, rules: Rules) -> Result<Self, Cow<'static, str>> {
        if text.len() > PATTERN_BYTES_MAX {
            return Err(format!("it is over {PATTERN_BYTES_MAX} bytes; shorten it").into());
        }
        if text.chars().any(char::is_control) {
            return Err("it holds a control character, which no path does; remove it".into());
        }
        let mut tokens = Parser { text, at: 0 }.tokens(0)?;
        let length = tokens.len();
        while tokens.last() == Some(&Token::Slash) {
            tokens.pop();
        }
        let trailing_slash = tokens.len() < length && !tokens.is_empty();
        let anchored = has_slash(&tokens);
        let mut alternatives = Vec::new();
        for alternative in expand(&tokens)? {
            let mut segments = segments(&alternative)?;
            if segments.is_empty() {
                continue;
            }
            if !anchored {
                segments.insert(0, vec![Token::Deep]);
            }
            if trailing_slash && rules.takes_beneath {
                segments.push(vec![Token::Deep]);
            }
            segments.dedup_by(|next, previous| is_deep(next) && is_deep(previous));
            alternatives.push(segments);
        }
        if alternatives.is_empty() {
            return Err("it names nothing; `**` finds everything".into());
        }
        Ok(Self { alternatives, directories_only: trailing_slash && !rules.takes_beneath })
    }
}

fn has_slash(tokens: &[Token]) -> bool {
    tokens.iter().any(|token| match token {
        Token::Slash => true,
        Token::Braces(alternatives) => alternatives.iter().any(|alternative| has_slash(alternative)),
        _ => false,
    })
}

/// Cuts an alternative at its slashes. Empty and `.` segments are dropped, as paths are normalised.
fn segments(tokens: &[Token]) -> Result<Vec<Segment>, Cow<'static, str>> {
    let mut segments = Vec::new();
    for segment in tokens.split(|token| *token == Token::Slash) {
        let mut segment = segment.to_vec();
        if segment == [Token::Star, Token::Star] {
            segment = vec![Token::Deep];
        }
        segment.dedup_by(|next, previous| *next == Token::Star && *previous == Token::Star);
        match literal(&segment).as_deref() {
            Some("" | ".") => {}
            Some("..") => return Err("it holds a `..` segment; name the target from the search root".into()),
            _ => segments.push(segment),
        }
    }
    Ok(segments)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn next(&mut self) -> Option<char> {
        let next = self.text[self.at..].chars().next()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn takes(&mut self, wanted: char) -> bool {
        let found = self.text[self.at..].starts_with(wanted);
        if found {
            self.at += wanted.len_utf8();
        }
        found
    }

    fn escaped(&mut self) -> Result<char, Cow<'static, str>> {
        self.next().ok_or(Cow::Borrowed(r"it ends with `\`; write `\\` for a backslash"))
    }

    /// Reads up to the end or, within braces, up to the `,` or `}` that ends the alternative, which is left.
    fn tokens(&mut self, nesting: usize) -> Result<Vec<Token>, Cow<'static, str>> {
        let mut tokens = Vec::new();
        loop {
            let start = self.at;
            let Some(next) = self.next() else { return Ok(tokens) };
            tokens.push(match next {
                ',' | '}' if nesting > 0 => {
                    self.at = start;
                    return Ok(tokens);
                }
                '/' => Token::Slash,
                '*' => Token::Star,
                '?' => Token::One,
                '[' => self.class(start)?,
                '{' if nesting == NESTING_MAX => return Err(format!("its braces nest deeper than {NESTING_MAX}; split it").into()),
                '{' => self.braces(start, nesting)?,
                '\\' => match self.escaped()? {
                    '/' => Token::Slash,
                    literal => Token::Char(literal),
                },
                literal => Token::Char(literal),
            });
        }
    }

    fn braces(&mut self, start: usize, nesting: usize) -> Result<Token, Cow<'static, str>> {
        let mut alternatives = Vec::new();
        loop {
            alternatives.push(self.tokens(nesting + 1)?);
            if self.takes('}') {
                return Ok(Token::Braces(alternatives));
            }
            if !self.takes(',') {
                return Err(format!(r"the `{{` at byte {start} is not closed; write `\{{` for a brace").into());
            }
        }
    }

    fn class(&mut self, start: usize) -> Result<Token, Cow<'static, str>> {
        let open = || Cow::Owned(format!(r"the `[` at byte {start} is not closed; write `\[` for a bracket"));
        let negated = self.takes('!') || self.takes('^');
        let mut ranges = Vec::new();
        // A `]` in the first place is a member.
        let mut first = true;
        loop {
            let from = match self.next().ok_or_else(open)? {
                ']' if !first => return Ok(Token::Class { negated, ranges }),
                '\\' => self.escaped()?,
                literal => literal,
            };
            first = false;
            let mark = self.at;
            let mut to = from;
            // A `-` in the last place is a member too.
            if self.takes('-') {
                match self.next().ok_or_else(open)? {
                    ']' => self.at = mark,
                    '\\' => to = self.escaped()?,
                    literal => to = literal,
                }
            }
            if to < from {
                return Err(format!("its range `{from}-{to}` runs backwards; write `{to}-{from}`").into());
            }
            ranges.push((from, to));
        }
    }
}

/// Expands the braces that decide where segments begin and end; those within a segment stay, as one expression holds them.
fn expand(tokens: &[Token]) -> Result<Vec<Vec<Token>>, Cow<'static, str>> {
    let mut expanded: Vec<Vec<Token>> = vec![Vec::new()];
    for token in tokens {
        match token {
            Token::Braces(alternatives) if alternatives.iter().any(|alternative| shapes_segments(alternative)) => {
                let mut choices = Vec::new();
                for alternative in alternatives {
                    choices.extend(expand(alternative)?);
                    check_size(&choices)?;
                }
                let tokens_product: usize = choices.iter().map(Vec::len).sum::<usize>() * expanded.len()
                    + expanded.iter().map(Vec::len).sum::<usize>() * choices.len();
                if expanded.len() * choices.len() > ALTERNATIVES_MAX || tokens_product > TOKENS_MAX {
                    return Err(too_many());
                }
                expanded = expanded.iter().flat_map(|before| choices.iter().map(|choice| [&before[..], choice].concat())).collect();
            }
            other => expanded.iter_mut().for_each(|alternative| alternative.push(other.clone())),
        }
        check_size(&expanded)?;
    }
    Ok(expanded)
}

/// Tells whether an alternative of braces is empty or holds a `/` or a `**`.
fn shapes_segments(tokens: &[Token]) -> bool {
    tokens.is_empty()
        || tokens.windows(2).any(|pair| pair == [Token::Star, Token::Star])
        || tokens.iter().any(|token| match token {
            Token::Slash => true,
            Token::Braces(alternatives) => alternatives.iter().any(|alternative| shapes_segments(alternative)),
            _ => false,
        })
}

fn check_size(expanded: &[Vec<Token>]) -> Result<(), Cow<'static, str>> {
    if expanded.len() > ALTERNATIVES_MAX || expanded.iter().map(Vec::len).sum::<usize>() > TOKENS_MAX {
        return Err(too_many());
    }
    Ok(())
}

fn too_many() -> Cow<'static, str> {
    "its braces expand to too many alternatives; split it into several".into()
}

/// Returns the directories that all alternatives start with, joined.
fn literal_prefix(alternatives: &[Vec<Segment>], case_insensitive: bool) -> String {
    let directories = |segments: &[Segment]| -> Vec<String> {
        let above = &segments[..segments.len() - 1];
        above.iter().map_while(literal).take_while(|text| !case_insensitive || text.chars().all(is_caseless)).collect()
    };
    let mut common = directories(&alternatives[0]);
    for alternative in &alternatives[1..] {
        let other = directories(alternative);
        let shared = common.iter().zip(&other).take_while(|(one, other)| one == other).count();
        common.truncate(shared);
    }
    common.join("/")
}

/// Tells whether a character surely has one case only.
fn is_caseless(character: char) -> bool {
    character.is_ascii() && !character.is_ascii_alphabetic()
}

/// Writes alternatives as regular expressions.
struct ExpressionWriter {
    /// A class that matches one character that a wildcard meets.
    any: &'static str,
    sees_hidden: bool,
}

impl ExpressionWriter {
    fn new(rules: Rules) -> Self {
        // `\x01` is the hidden mark.
        Self { any: if rules.sees_hidden { "[^/]" } else { r"[^/\x01]" }, sees_hidden: rules.sees_hidden }
    }

    /// Writes what matches whole paths.
    fn whole(&self, alternatives: &[Vec<Segment>]) -> String {
        let mut out = String::from("^(?:");
        for (index, segments) in alternatives.iter().enumerate() {
            if index > 0 {
                out.push('|');
            }
            for (place, segment) in segments.iter().enumerate() {
                let last = place + 1 == segments.len();
                match (is_deep(segment), last) {
                    (true, true) => self.push(&mut out, format_args!("(?:{0}+/)*{0}+", self.any)),
                    (true, false) => self.push(&mut out, format_args!("(?:{0}+/)*", self.any)),
                    (false, last) => {
                        self.segment(&mut out, segment);
                        if !last {
                            out.push('/');
                        }
                    }
                }
            }
        }
        out.push_str(")$");
        out
    }

    /// Writes what matches the directories beneath which something can match.
    fn above(&self, alternatives: &[Vec<Segment>]) -> String {
        let mut out = String::from("^(?:");
        for (index, segments) in alternatives.iter().enumerate() {
            if index > 0 {
                out.push('|');
            }
            let mut open = 0;
            let mut separator = "";
            for (place, segment) in segments.iter().enumerate() {
                let last = place + 1 == segments.len();
                if place == SEGMENTS_PRUNED && !last {
                    self.push(&mut out, format_args!("(?:{separator}.*)?"));
                    break;
                }
                match (is_deep(segment), last) {
                    (true, true) => self.push(&mut out, format_args!("(?:{separator}{0}+(?:/{0}+)*)?", self.any)),
                    // What follows stands in place of the last of the segments crossed, or after the first slash.
                    (true, false) => {
                        self.push(&mut out, format_args!("(?:{separator}(?:{0}+/)*(?:{0}+|", self.any));
                        open += 2;
                        separator = "";
                    }
                    (false, true) => {}
                    (false, false) => {
                        self.push(&mut out, format_args!("(?:{separator}"));
                        self.segment(&mut out, segment);
                        open += 1;
                        separator = "/";
                    }
                }
            }
            self.close(&mut out, segments, open);
        }
        out.push_str(")$");
        out
    }

    /// Closes the groups that [`ExpressionWriter::above`] opened, innermost first.
    fn close(&self, out: &mut String, segments: &[Segment], open: usize) {
        let mut left = open;
        for segment in segments[..segments.len() - 1].iter().take(SEGMENTS_PRUNED).rev() {
            if is_deep(segment) {
                out.push_str("))?");
                left -= 2;
            } else {
                out.push_str(")?");
                left -= 1;
            }
        }
        debug_assert_eq!(left, 0, "every group is closed once");
    }

    fn segment(&self, out: &mut String, tokens: &[Token]) {
        self.tokens(out, tokens, !self.sees_hidden);
    }

    /// Writes tokens; `at_start` when they stand at the start of a segment where a dot written out meets the hidden mark.
    fn tokens(&self, out: &mut String, tokens: &[Token], at_start: bool) {
        for (index, token) in tokens.iter().enumerate() {
            let at_start = at_start && index == 0;
            match token {
                Token::Char('.') if at_start => out.push_str(r"\x01"),
                Token::Char(literal) => out.push_str(&regex::escape(literal.encode_utf8(&mut [0; 4]))),
                Token::One => out.push_str(self.any),
                Token::Star | Token::Deep => self.push(out, format_args!("{}*", self.any)),
                Token::Slash => out.push('/'),
                Token::Class { negated, ranges } => self.class(out, *negated, ranges),
                Token::Braces(alternatives) => {
                    out.push_str("(?:");
                    for (index, alternative) in alternatives.iter().enumerate() {
                        if index > 0 {
                            out.push('|');
                        }
                        self.tokens(out, alternative, at_start);
                    }
                    out.push(')');
                }
            }
        }
    }

    fn class(&self, out: &mut String, negated: bool, ranges: &[(char, char)]) {
        self.push(out, format_args!("[{}&&[{}", self.any, if negated { "^" } else { "" }));
        for (from, to) in ranges {
            self.push(out, format_args!(r"\x{{{:x}}}-\x{{{:x}}}", u32::from(*from), u32::from(*to)));
        }
        out.push_str("]]");
    }

    fn push(&self, out: &mut String, text: std::fmt::Arguments<'_>) {
        out.write_fmt(text).expect("a text takes what is written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn glob(pattern: &str) -> Glob {
        Glob::parse(pattern, false).expect("a legal pattern")
    }

    fn visible(pattern: &str) -> Glob {
        Glob::parse_visible(pattern, false).expect("a legal pattern")
    }

    #[test]
    fn matches() {
        for (pattern, met, missed) in [
            ("*.rs", &["a.rs", "a/b.rs", ".rs", "a/.x.rs"][..], &["a.rsx", "a.rs/b", "rs"][..]),
            ("/*.rs", &["a.rs"], &["a/b.rs"]),
            ("./*.rs", &["a.rs"], &["a/b.rs"]),
            ("src//./*.rs", &["src/a.rs"], &["a.rs", "src/b/a.rs"]),
            ("a?c", &["abc", "aéc", "a日c", "a🙂c"], &["ac", "abbc", "a/c"]),
            ("[é]", &["é"], &["e", "\u{301}"]),
            ("[!é]x", &["ax", "日x"], &["éx", "/x", "x"]),
            ("[^a-c]", &["d", "x/d"], &["a", "b"]),
            ("[]a]", &["]", "a"], &["b"]),
            ("[a-]", &["a", "-"], &["b"]),
            ("[+-0]", &["+", "."], &["/", "a/b"]),
            ("a[/]b", &[], &["a/b"]),
            (r"[\]]", &["]"], &["a"]),
            ("**/x", &["x", "a/x", "a/b/x"], &["ax", "x/a"]),
            ("src/**", &["src/a", "src/a/b"], &["src", "srcs/a"]),
            ("src/**/b", &["src/b", "src/a/b", "src/a/a/b"], &["src/ab", "b"]),
            ("**", &["a", "a/b", ".a/.b"], &[""]),
            ("**/**/x", &["x", "a/x"], &[]),
            ("a**", &["a", "abc", "x/ab"], &["ab/c"]),
            ("***", &["a", "a/b"], &[]),
            ("/***", &["a"], &["a/b"]),
            ("/a**/b", &["a/b", "ax/b"], &["a/x/b"]),
            ("{a,b}.{rs,md}", &["a.rs", "x/b.md"], &["c.rs", "a.txt"]),
            ("x{,y}", &["x", "xy", "a/x"], &["y"]),
            ("{,y}/x", &["x", "y/x"], &["a/x"]),
            ("{a,b{c,d{e,f}}}", &["a", "bc", "bde", "bdf"], &["b", "bd"]),
            // A slash within braces anchors all alternatives.
            ("{a/b,c}", &["a/b", "c"], &["x/c", "x/a/b"]),
            ("{src/**,docs/*}.md", &["src/a.md", "docs/a.md"], &["src/a/b.md", "a.md"]),
            ("{src/**/,}x", &["src/x", "src/a/x", "x"], &["a/x"]),
            ("{**,a}/b", &["b", "a/b", "x/y/b"], &["a"]),
            (r"\*", &["*"], &["a"]),
            (r"\{a,b\}", &["{a,b}"], &["a"]),
            (r"\[...slug\].tsx", &["[...slug].tsx", "app/[...slug].tsx"], &["s.tsx"]),
            ("a}", &["a}"], &["a"]),
            ("a,b", &["a,b"], &["a"]),
            ("(a+|b).$", &["(a+|b).$"], &["aa"]),
            ("node_modules/", &["node_modules", "a/node_modules"], &["node_modules/a"]),
            ("a/b/", &["a/b"], &["x/a/b"]),
            ("日本/*.md", &["日本/語.md"], &["日/語.md"]),
        ] {
            let compiled = glob(pattern);
            for path in met {
                assert!(compiled.is_match(path), "{pattern} {path}");
                for (slash, _) in path.match_indices('/') {
                    assert!(compiled.can_match_beneath(&path[..slash]), "{pattern} {path} {slash}");
                }
                assert!(path.starts_with(compiled.literal_prefix()), "{pattern} {path}");
            }
            for path in missed {
                assert!(!compiled.is_match(path), "{pattern} {path}");
            }
        }
    }

    #[test]
    fn hidden_names_are_met_by_dots_alone() {
        for (pattern, met, missed) in [
            ("*", &["a", "a/b"][..], &[".a", ".a/b", "a/.b"][..]),
            ("*.rs", &["a.rs", "a..rs"], &[".rs", ".a.rs", ".a/b.rs"]),
            ("**", &["a/b"], &[".a", "a/.b", "a/.b/c"]),
            (".*", &[".a", "x/.a"], &["a", ".git/.a"]),
            ("**/.github/**", &[".github/a", "x/.github/a/b"], &[".git/a", ".github/.a", ".x/.github/a"]),
            ("?a", &["xa"], &[".a"]),
            ("[.]a", &[], &[".a"]),
            ("[!x]a", &["ya"], &[".a"]),
            (r"\.a", &[".a"], &["a"]),
            ("{.a,b}c", &[".ac", "bc"], &[".bc", "ac"]),
            ("{{.,}a,*}", &[".a", "a", "xyz"], &[".b"]),
            ("*{.a,b}", &["x.a", "b"], &[".a"]),
            ("/.agents/*/x", &[".agents/a/x"], &[".agents/.a/x"]),
        ] {
            let (compiled, lenient) = (visible(pattern), glob(pattern));
            for path in met {
                assert!(compiled.is_match(path), "{pattern} {path}");
                for (slash, _) in path.match_indices('/') {
                    assert!(compiled.can_match_beneath(&path[..slash]), "{pattern} {path} {slash}");
                }
            }
            for path in missed {
                assert!(!compiled.is_match(path), "{pattern} {path}");
            }
            assert!(missed.iter().filter(|path| **path != "a").all(|path| lenient.is_match(path) || pattern.contains('.')), "{pattern}");
        }
        assert!(!visible("**/.github/**").can_match_beneath(".git"));
        assert!(visible("**/.github/**").can_match_beneath(".github"));
        assert!(!visible("**/*.md").can_match_beneath("a/.git"));
    }

    #[test]
    fn walks_enter_only_where_something_can_match() {
        for (pattern, entered, passed) in [
            ("src/*.rs", &["", "src"][..], &["srcs", "a", "src/a"][..]),
            ("src/*/x/**", &["src", "src/a", "src/a/x", "src/a/x/y/z"], &["src/a/y", "a"]),
            ("*/b", &["a"], &["a/b"]),
            ("*.rs", &["a", "a/b"], &[]),
            ("/*.rs", &[""], &["a"]),
            ("**/a/b", &["x", "x/y/a", "a"], &[]),
            ("{a/b,c/d/e}", &["a", "c", "c/d"], &["b", "a/b", "c/x"]),
            ("a/**/b/c", &["a", "a/x", "a/b", "a/x/b"], &["b"]),
        ] {
            let compiled = glob(pattern);
            assert!(entered.iter().all(|path| compiled.can_match_beneath(path)), "{pattern}");
            assert!(!passed.iter().any(|path| compiled.can_match_beneath(path)), "{pattern}");
        }
        let deep = "a/".repeat(100) + "b";
        assert!(glob(&deep).can_match_beneath(&"a/".repeat(99)[..197]));
        assert!(!glob(&deep).can_match_beneath("a/a/b"));
    }

    #[test]
    fn literal_prefixes_bound_the_walk() {
        for (pattern, prefix) in [
            ("src/lib/*.rs", "src/lib"),
            ("src/lib/a.rs", "src/lib"),
            ("/src/**", "src"),
            ("src", ""),
            ("/src", ""),
            ("*/a", ""),
            ("a/{b,c}/d", "a"),
            ("{a/b/x,a/b/y,a/b/c/z}", "a/b"),
            ("{a/b,c}", ""),
            (r"a\*/b", "a*"),
        ] {
            assert_eq!(glob(pattern).literal_prefix(), prefix, "{pattern}");
        }
        let insensitive = |pattern| Glob::parse(pattern, true).expect("a legal pattern");
        assert_eq!(insensitive("2024/Src/a").literal_prefix(), "2024");
        assert!(insensitive("SRC/[A-C]É").is_match("src/bé"));
        assert!(insensitive("SRC/*.RS").can_match_beneath("Src"));
    }

    #[test]
    fn refuses_what_is_no_pattern() {
        let nested = "{".repeat(17) + &"}".repeat(17);
        let (long, bomb) = ("a".repeat(PATTERN_BYTES_MAX + 1), "{a/,b/}".repeat(11));
        let segments = "{/,*}".repeat(400);
        for (pattern, problem) in [
            ("", "names nothing"),
            ("/", "names nothing"),
            ("{,}", "names nothing"),
            ("./.", "names nothing"),
            ("../a", "`..`"),
            ("a/../b", "`..`"),
            ("{a/..,b}/c", "`..`"),
            ("a{b", "`{` at byte 1"),
            ("a[b", "`[` at byte 1"),
            ("[]", "`[` at byte 0"),
            ("[a-", "`[` at byte 0"),
            ("a\\", "ends with"),
            ("[z-a]", "backwards"),
            ("a\nb", "control"),
            (&nested, "nest"),
            (&long, "bytes"),
            (&bomb, "too many"),
            (&segments, "too many"),
        ] {
            let error = Glob::parse(pattern, false).expect_err(pattern);
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{pattern}");
            assert!(error.message().contains(problem), "{pattern}: {error}");
            assert!(error.message().len() < 300, "{error}");
        }
        assert!(glob("foo../..a/...").is_match("foo../..a/..."));
    }
}
