//! Parses globs into alternatives, each a list of segments.
//!
//! Braces whose alternatives affect where segments begin and end (a `/`, a `**`, an empty or `.` alternative) multiply the
//! alternatives of the whole pattern; all others multiply only those of their segment. Both are bounded.

use std::borrow::Cow;

/// The longest pattern in bytes.
pub const PATTERN_BYTES_MAX: usize = 4096;

/// The most segments in one alternative: the matcher keeps its positions in the bits of one word.
pub(super) const SEGMENTS_MAX: usize = 60;

/// The most alternatives that the braces of one pattern, or of one segment, may expand to.
const ALTERNATIVES_MAX: usize = 1000;

/// The most tokens of all alternatives together.
const TOKENS_MAX: usize = 16 * 1024;

/// How deep braces may nest.
const NESTING_MAX: usize = 16;

/// The POSIX character classes by name, with their ASCII characters, as in git and in a shell with the C locale.
pub(super) const POSIX_CLASSES: [(&str, &[(char, char)]); 12] = [
    ("alnum", &[('0', '9'), ('A', 'Z'), ('a', 'z')]),
    ("alpha", &[('A', 'Z'), ('a', 'z')]),
    ("blank", &[(' ', ' '), ('\t', '\t')]),
    ("cntrl", &[('\0', '\u{1f}'), ('\u{7f}', '\u{7f}')]),
    ("digit", &[('0', '9')]),
    // `!` must not come first: at the start of brackets it would negate.
    ("graph", &[('"', '~'), ('!', '!')]),
    ("lower", &[('a', 'z')]),
    ("print", &[(' ', '~')]),
    ("punct", &[(':', '@'), ('[', '`'), ('{', '~'), ('!', '/')]),
    ("space", &[(' ', ' '), ('\t', '\r')]),
    ("upper", &[('A', 'Z')]),
    ("xdigit", &[('0', '9'), ('A', 'F'), ('a', 'f')]),
];

/// The characters of a class, as ranges with inclusive ends.
type Ranges = &'static [(char, char)];

/// Parses what follows a `[` within brackets as a class name such as `:alpha:]`. Returns its characters and length, or `None` if
/// it is not a class name and the `[` is a literal member.
fn posix_class(text: &str) -> Option<Result<(Ranges, usize), Problem>> {
    let name = text.strip_prefix(':')?;
    let name = &name[..name.find(|character: char| !character.is_ascii_alphabetic())?];
    text[1 + name.len()..].strip_prefix(":]").filter(|_| !name.is_empty())?;
    let known = POSIX_CLASSES.iter().find(|(known, _)| *known == name);
    Some(known.map(|(_, ranges)| (*ranges, name.len() + 3)).ok_or_else(|| {
        let names: Vec<&str> = POSIX_CLASSES.iter().map(|(name, _)| *name).collect();
        format!("`[:{name}:]` is not a character class; use one of {}", names.join(", ")).into()
    }))
}

/// Replaces POSIX classes within the brackets of a pattern by ranges, for a matcher that does not support them. Unknown classes
/// and malformed brackets are left as they are.
pub(super) fn without_posix_classes(pattern: &str) -> Cow<'_, str> {
    if !pattern.contains("[:") {
        return Cow::Borrowed(pattern);
    }
    let (mut written, mut rest) = (String::with_capacity(pattern.len()), pattern);
    let mut is_within = false;
    let mut members = 0;
    while let Some(next) = rest.chars().next() {
        let after = &rest[next.len_utf8()..];
        let class = if is_within && next == '[' { posix_class(after).and_then(Result::ok) } else { None };
        if let Some((ranges, length)) = class {
            for (from, to) in ranges.iter().filter(|(from, _)| !from.is_control()) {
                written.extend([*from, '-', *to]);
            }
            (rest, members) = (&after[length..], members + 1);
            continue;
        }
        written.push(next);
        rest = after;
        match next {
            '\\' => {
                if let Some(escaped) = rest.chars().next() {
                    written.push(escaped);
                    rest = &rest[escaped.len_utf8()..];
                }
                members += 1;
            }
            '[' if !is_within => {
                (is_within, members) = (true, 0);
                if let Some(negation) = rest.chars().next().filter(|next| matches!(next, '!' | '^')) {
                    written.push(negation);
                    rest = &rest[1..];
                }
            }
            ']' if is_within && members > 0 => is_within = false,
            _ => members += 1,
        }
    }
    Cow::Owned(written)
}

/// What is wrong with a pattern.
pub(super) type Problem = Cow<'static, str>;

/// A parsed pattern.
#[derive(Debug)]
pub(super) struct Pattern {
    /// Neither empty itself nor containing an empty alternative.
    pub(super) alternatives: Vec<Vec<Segment>>,
    /// Whether the pattern ended with `/`.
    pub(super) trailing_slash: bool,
    /// Whether it matches names at any depth, because it contains no other `/`.
    pub(super) is_bare: bool,
}

/// One segment of an alternative.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Segment {
    /// `**`: any number of segments.
    Deep,
    /// One segment that matches any of these.
    Name(Vec<Vec<Token>>),
}

/// Matches zero or more characters of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// A literal character.
    Char(char),
    /// `?`
    One,
    /// `*`
    Star,
    /// A literal `**`. As a whole segment it becomes [`Segment::Deep`], within one [`Token::Star`].
    Deep,
    /// `[...]`
    Class {
        /// Whether it matches the characters not listed.
        negated: bool,
        /// The listed ranges, ends included.
        ranges: Vec<(char, char)>,
    },
    /// `/`; never within a [`Segment`].
    Slash,
    /// `{...}`; never within a [`Segment`].
    Braces(Vec<Vec<Token>>),
}

impl Pattern {
    /// Parses a pattern. Unless it contains a slash before its end, its alternatives start with [`Segment::Deep`].
    pub(super) fn parse(text: &str) -> Result<Self, Problem> {
        if text.len() > PATTERN_BYTES_MAX {
            return Err(format!("it is over {PATTERN_BYTES_MAX} bytes; shorten it").into());
        }
        if text.chars().any(char::is_control) {
            return Err("it contains a control character, which paths cannot have; remove it".into());
        }
        let mut tokens = Parser { text, at: 0 }.tokens(0)?;
        let length = tokens.len();
        while tokens.last() == Some(&Token::Slash) {
            tokens.pop();
        }
        let trailing_slash = tokens.len() < length;
        let anchored = has_slash(&tokens);
        let mut alternatives = Vec::new();
        let mut size = 0;
        for alternative in expand(&tokens, affects_segments)? {
            let mut segments = segments(&alternative)?;
            if segments.is_empty() {
                continue;
            }
            if !anchored {
                segments.insert(0, Segment::Deep);
            }
            segments.dedup_by(|next, previous| *next == Segment::Deep && *previous == Segment::Deep);
            if segments.len() > SEGMENTS_MAX {
                return Err(format!("it has over {SEGMENTS_MAX} segments; write `**` for most of them").into());
            }
            size += segments.iter().map(Segment::size).sum::<usize>();
            if size > TOKENS_MAX {
                return Err(too_many());
            }
            alternatives.push(segments);
        }
        if alternatives.is_empty() {
            return Err("it names nothing; use `**` to match everything".into());
        }
        Ok(Self { alternatives, trailing_slash, is_bare: !anchored })
    }
}

impl Segment {
    fn size(&self) -> usize {
        match self {
            Self::Deep => 1,
            Self::Name(names) => names.iter().map(Vec::len).sum(),
        }
    }
}

/// Returns the text of tokens that have no wildcards.
pub(super) fn literal(tokens: &[Token]) -> Option<String> {
    tokens.iter().map(|token| if let Token::Char(literal) = token { Some(*literal) } else { None }).collect()
}

/// Splits an alternative at its slashes. Drops empty and `.` segments, as path normalization does.
fn segments(tokens: &[Token]) -> Result<Vec<Segment>, Problem> {
    let mut segments = Vec::new();
    for segment in tokens.split(|token| *token == Token::Slash) {
        if segment == [Token::Deep] {
            segments.push(Segment::Deep);
            continue;
        }
        let mut names = expand(segment, |_| true)?;
        for name in &mut names {
            name.iter_mut().filter(|token| **token == Token::Deep).for_each(|token| *token = Token::Star);
            name.dedup_by(|next, previous| *next == Token::Star && *previous == Token::Star);
            if literal(name).as_deref() == Some("..") {
                return Err("it contains a `..` segment; name the target from the search root".into());
            }
        }
        // Braces with such an alternative have been expanded already, so it is the only one here.
        if !matches!(literal(&names[0]).as_deref(), Some("" | ".")) {
            segments.push(Segment::Name(names));
        }
    }
    Ok(segments)
}

/// Expands the braces that have an alternative for which `opens` returns true, and all braces within them.
fn expand(tokens: &[Token], opens: fn(&[Token]) -> bool) -> Result<Vec<Vec<Token>>, Problem> {
    let mut expanded: Vec<Vec<Token>> = vec![Vec::new()];
    for token in tokens {
        let Token::Braces(alternatives) = token else {
            expanded.iter_mut().for_each(|before| before.push(token.clone()));
            continue;
        };
        if !alternatives.iter().any(|alternative| opens(alternative)) {
            expanded.iter_mut().for_each(|before| before.push(token.clone()));
            continue;
        }
        let mut choices = Vec::new();
        for alternative in alternatives {
            choices.extend(expand(alternative, opens)?);
        }
        let size = |of: &[Vec<Token>]| of.iter().map(Vec::len).sum::<usize>();
        let count = expanded.len() * choices.len();
        if count > ALTERNATIVES_MAX || size(&expanded) * choices.len() + size(&choices) * expanded.len() > TOKENS_MAX {
            return Err(too_many());
        }
        expanded = expanded.iter().flat_map(|before| choices.iter().map(|choice| [&before[..], choice].concat())).collect();
    }
    Ok(expanded)
}

/// Returns whether an alternative of braces affects how a pattern divides into segments.
fn affects_segments(tokens: &[Token]) -> bool {
    matches!(tokens, [] | [Token::Char('.')])
        || tokens.iter().any(|token| match token {
            Token::Slash | Token::Deep => true,
            Token::Braces(alternatives) => alternatives.iter().any(|alternative| affects_segments(alternative)),
            _ => false,
        })
}

fn has_slash(tokens: &[Token]) -> bool {
    tokens.iter().any(|token| match token {
        Token::Slash => true,
        Token::Braces(alternatives) => alternatives.iter().any(|alternative| has_slash(alternative)),
        _ => false,
    })
}

fn too_many() -> Problem {
    "its braces expand to too many alternatives; split it into several".into()
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

    fn escaped(&mut self) -> Result<char, Problem> {
        self.next().ok_or(Cow::Borrowed(r"it ends with `\`; write `\\` for a backslash"))
    }

    /// Parses up to the end or, within braces, up to the `,` or `}` that ends the alternative. Does not consume these.
    fn tokens(&mut self, nesting: usize) -> Result<Vec<Token>, Problem> {
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
                '*' => match self.text[self.at..].chars().take_while(|next| *next == '*').count() {
                    1 => {
                        self.at += 1;
                        Token::Deep
                    }
                    more => {
                        self.at += more;
                        Token::Star
                    }
                },
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

    fn braces(&mut self, start: usize, nesting: usize) -> Result<Token, Problem> {
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

    fn class(&mut self, start: usize) -> Result<Token, Problem> {
        let open = || Cow::Owned(format!(r"the `[` at byte {start} is not closed; write `\[` for a bracket"));
        let negated = self.takes('!') || self.takes('^');
        let mut ranges = Vec::new();
        loop {
            if let Some(class) = self.text[self.at..].strip_prefix('[').and_then(posix_class) {
                let (characters, length) = class?;
                ranges.extend_from_slice(characters);
                self.at += 1 + length;
                continue;
            }
            let from = match self.next().ok_or_else(open)? {
                // As the first member, `]` is literal.
                ']' if !ranges.is_empty() => return Ok(Token::Class { negated, ranges }),
                '\\' => self.escaped()?,
                literal => literal,
            };
            let mark = self.at;
            let mut to = from;
            // As the last member, `-` is literal.
            if self.takes('-') {
                match self.next().ok_or_else(open)? {
                    ']' => self.at = mark,
                    '[' if posix_class(&self.text[self.at..]).is_some() => {
                        return Err(format!("its range from `{from}` ends with a class; put a literal `-` last").into());
                    }
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
