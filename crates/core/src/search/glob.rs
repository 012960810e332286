//! Globs, matched segment by segment.
//!
//! The matcher is an automaton: it keeps the set of positions in the pattern as the bits of one word. It never backtracks, and
//! takes time at most proportional to the length of the path times that of the pattern. The same automaton tells what can match
//! beneath a directory, so a search enters only where it must. It also knows which segment of the pattern matches each segment of
//! the path, so hidden names are decided exactly. Patterns match characters, not bytes.
//!
//! Globs are not translated to regular expressions: compiling one takes microseconds instead of the hundreds that two expressions
//! took, which would dominate a search over a small tree or over many mounts.

use super::name::NameMatcher;
use super::pattern::{Pattern, SEGMENTS_MAX, Segment, Token};
use crate::error::{Error, Result};
use crate::ops::SearchScope;
use memchr::{memchr_iter, memrchr};

pub use super::pattern::PATTERN_BYTES_MAX;

/// A compiled glob.
#[derive(Debug, Clone)]
pub struct Glob {
    alternatives: Vec<Alternative>,
    literal_prefix: String,
    sees_hidden: bool,
    directories_only: bool,
}

impl Glob {
    /// Compiles a pattern.
    ///
    /// - `*` and `?` match characters within one segment; `**` as a whole segment matches any number of segments.
    /// - `{a,b}` matches alternatives, which may nest, be empty, or contain `/`.
    /// - `[abc]`, `[!a-z]` and `[[:alpha:]]` match one character. The POSIX classes are those of ASCII.
    /// - `\` escapes the next character.
    /// - A pattern without `/` matches names at any depth. With a `/` at its start or inside, also inside braces, it is anchored
    ///   at the search root.
    ///
    /// Names that start with a dot match like any others; [`Glob::parse_visible`] applies the stricter rule of searches. `//` and
    /// `/./` are collapsed as in paths. A trailing `/` does not anchor the pattern but restricts it to
    /// [directories](Glob::directories_only). A `**` next to other characters of its segment acts like `*`, a `}` without `{`
    /// matches itself, and a class never matches `/`. Case is ignored character by character.
    ///
    /// Cost: microseconds, and at most proportional to the bounded number of alternatives that the braces expand to.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument), with the position of the problem, for an empty pattern, a
    /// `..` segment, a control character, an unclosed `{` or `[`, a `\` at the end, a reversed range, an unknown class, over 60
    /// segments, and a pattern that is too long, too deeply nested or has too many alternatives.
    pub fn parse(pattern: &str, case_insensitive: bool) -> Result<Self> {
        Self::compile(pattern, GlobRules { case_insensitive, hidden: Hidden::Included, takes_beneath: false })
    }

    /// Compiles a pattern that does not match hidden names: as in a shell, a segment that starts with a dot is matched only by a
    /// segment of the pattern that itself starts with a literal dot. Neither `*` nor `**` nor `[.]` matches it.
    ///
    /// # Errors
    /// As [`Glob::parse`].
    pub fn parse_visible(pattern: &str, case_insensitive: bool) -> Result<Self> {
        Self::compile(pattern, GlobRules { case_insensitive, hidden: Hidden::Excluded, takes_beneath: false })
    }

    /// Compiles a pattern by the rules of a search.
    pub(super) fn compile(pattern: &str, rules: GlobRules) -> Result<Self> {
        let mut parsed = Pattern::parse(pattern).map_err(|problem| malformed(pattern, &problem))?;
        if parsed.trailing_slash && rules.takes_beneath {
            for segments in parsed.alternatives.iter_mut().filter(|segments| segments.last() != Some(&Segment::Deep)) {
                segments.push(Segment::Deep);
            }
        }
        let enters_hidden = rules.hidden == Hidden::Entered && parsed.is_bare;
        let alternatives: Vec<_> =
            parsed.alternatives.into_iter().map(|segments| Alternative::new(segments, rules.case_insensitive, enters_hidden)).collect();
        Ok(Self {
            literal_prefix: literal_prefix(&alternatives),
            alternatives,
            sees_hidden: rules.hidden == Hidden::Included,
            directories_only: parsed.trailing_slash && !rules.takes_beneath,
        })
    }

    /// Returns whether a path matches. The path is relative to the search root, without a leading slash.
    ///
    /// Cost: tens of nanoseconds for common patterns; no allocation.
    pub fn is_match(&self, relative: &str) -> bool {
        !relative.is_empty() && self.alternatives.iter().any(|alternative| alternative.is_match(relative, self.sees_hidden))
    }

    /// Returns the directory that contains everything the pattern can match, relative to the search root and without a leading or
    /// trailing slash. It is `""` for the search root itself.
    pub fn literal_prefix(&self) -> &str {
        &self.literal_prefix
    }

    /// Returns whether anything beneath the directory `relative` can match, so that a walk must enter it. Never false for a
    /// parent of a match.
    pub fn can_match_beneath(&self, relative: &str) -> bool {
        relative.is_empty() || self.alternatives.iter().any(|alternative| alternative.leads_on(relative, self.sees_hidden))
    }

    /// Returns whether the pattern ends with `/` and so applies only to directories. [`Glob::is_match`] ignores this, as it does
    /// not know the type of a path; callers must check it.
    pub fn directories_only(&self) -> bool {
        self.directories_only
    }
}

/// How a pattern is compiled.
#[derive(Debug, Clone, Copy)]
pub(super) struct GlobRules {
    /// Letters match in any case.
    pub(super) case_insensitive: bool,
    /// What wildcards do with names that start with a dot.
    pub(super) hidden: Hidden,
    /// With a trailing slash, the pattern matches everything beneath the directory instead of the directory itself.
    pub(super) takes_beneath: bool,
}

/// What wildcards do with names that start with a dot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hidden {
    /// They match none.
    Excluded,
    /// They match none, but a pattern without `/` is matched against the names in all directories.
    Entered,
    /// They match them like others.
    Included,
}

impl Hidden {
    /// Returns what the options of a search ask for.
    pub(super) fn of(scope: &SearchScope) -> Self {
        match (scope.hidden, scope.hidden_directories) {
            (true, _) => Self::Included,
            (false, true) => Self::Entered,
            (false, false) => Self::Excluded,
        }
    }

    /// Returns whether a search without patterns selects a path.
    pub(super) fn selects(self, relative: &str) -> bool {
        match self {
            Self::Included => true,
            Self::Entered => !relative[memrchr(b'/', relative.as_bytes()).map_or(0, |slash| slash + 1)..].starts_with('.'),
            Self::Excluded => !has_hidden(relative),
        }
    }

    /// Returns whether a search without patterns enters a directory.
    pub(super) fn enters(self, relative: &str) -> bool {
        self != Self::Excluded || !has_hidden(relative)
    }
}

/// Returns whether any segment of a relative path starts with a dot.
pub fn has_hidden(relative: &str) -> bool {
    let bytes = relative.as_bytes();
    memchr_iter(b'.', bytes).any(|at| at == 0 || bytes[at - 1] == b'/')
}

/// One alternative of a pattern. A position is the index of the segment to be matched next.
#[derive(Debug, Clone)]
struct Alternative {
    segments: Vec<Matcher>,
    /// The positions of every `**` that may match nothing: all but the last segment.
    skippable: u64,
}

#[derive(Debug, Clone)]
enum Matcher {
    /// Any number of segments, whatever their names.
    Any,
    /// `**`
    Deep,
    Name(NameMatcher),
}

impl Alternative {
    /// Compiles the segments. If it `enters_hidden`, the first `**` matches any directories, and only names are hidden.
    fn new(mut segments: Vec<Segment>, case_insensitive: bool, enters_hidden: bool) -> Self {
        if enters_hidden && segments == [Segment::Deep] {
            segments.push(Segment::Name(vec![vec![Token::Star]]));
        }
        assert!(segments.len() <= SEGMENTS_MAX + 1, "the states of a glob do not fit in one word");
        let mut segments: Vec<Matcher> = segments
            .into_iter()
            .map(|segment| match segment {
                Segment::Deep => Matcher::Deep,
                Segment::Name(names) => Matcher::Name(NameMatcher::new(names, case_insensitive)),
            })
            .collect();
        if enters_hidden && let [first @ Matcher::Deep, ..] = &mut segments[..] {
            *first = Matcher::Any;
        }
        let inner = &segments[..segments.len() - 1];
        let skippable = inner.iter().enumerate().filter(|(_, segment)| segment.is_deep()).map(|(place, _)| 1 << place).sum();
        Self { segments, skippable }
    }

    fn is_match(&self, path: &str, sees_hidden: bool) -> bool {
        let (above, name) = memrchr(b'/', path.as_bytes()).map_or(("", path), |slash| (&path[..slash], &path[slash + 1..]));
        let last = self.segments.len() - 1;
        // Check the name first, as it rules out most paths.
        self.segments[last].is_match(name, sees_hidden) && self.places_after(above, sees_hidden) & 1 << last != 0
    }

    /// Returns whether anything beneath a directory can still match.
    fn leads_on(&self, directory: &str, sees_hidden: bool) -> bool {
        self.places_after(directory, sees_hidden) != 0
    }

    /// Returns the positions after a directory from which something beneath it can match.
    fn places_after(&self, directory: &str, sees_hidden: bool) -> u64 {
        let mut places = self.closed(1);
        if directory.is_empty() {
            return places;
        }
        // A name at any depth is the pattern of most searches.
        match self.segments[..] {
            [Matcher::Deep, _] => return if sees_hidden || !has_hidden(directory) { places } else { 0 },
            [Matcher::Any, _] => return places,
            _ => {}
        }
        let mut at = 0;
        for slash in memchr_iter(b'/', directory.as_bytes()).chain([directory.len()]) {
            places = self.step(places, &directory[at..slash], sees_hidden);
            if places == 0 {
                break;
            }
            at = slash + 1;
        }
        places
    }

    /// Adds the positions reached when a `**` matches nothing. No `**` follows another.
    fn closed(&self, places: u64) -> u64 {
        places | (places & self.skippable) << 1
    }

    /// Returns the positions after one more directory.
    fn step(&self, places: u64, name: &str, sees_hidden: bool) -> u64 {
        let mut next = 0;
        let mut left = places;
        while left != 0 {
            let place = left.trailing_zeros() as usize;
            left &= left - 1;
            let stays = self.segments[place].is_deep();
            // If the last segment matched, nothing beneath can match, unless that segment is `**`.
            if (stays || place + 1 < self.segments.len()) && self.segments[place].is_match(name, sees_hidden) {
                next |= 1 << if stays { place } else { place + 1 };
            }
        }
        self.closed(next)
    }
}

impl Matcher {
    /// Returns whether it matches any number of segments.
    fn is_deep(&self) -> bool {
        matches!(self, Self::Any | Self::Deep)
    }

    fn is_match(&self, name: &str, sees_hidden: bool) -> bool {
        let is_hidden = !sees_hidden && name.starts_with('.');
        match self {
            Self::Any => true,
            Self::Deep => !is_hidden,
            Self::Name(matcher) => matcher.is_match(name, is_hidden),
        }
    }
}

/// Returns the longest common directory prefix of all alternatives.
fn literal_prefix(alternatives: &[Alternative]) -> String {
    let directories = |alternative: &Alternative| -> Vec<String> {
        let (_, above) = alternative.segments.split_last().expect("every alternative has a segment");
        let literals = above.iter().map_while(|segment| match segment {
            Matcher::Any | Matcher::Deep => None,
            Matcher::Name(matcher) => matcher.literal(),
        });
        literals.map(str::to_owned).collect()
    };
    let mut common = directories(&alternatives[0]);
    for alternative in &alternatives[1..] {
        let other = directories(alternative);
        common.truncate(common.iter().zip(&other).take_while(|(one, other)| one == other).count());
    }
    common.join("/")
}

fn malformed(pattern: &str, problem: &str) -> Error {
    let shown: String = pattern.chars().take(100).collect();
    let more = if shown.len() < pattern.len() { "..." } else { "" };
    Error::invalid_argument(format!("the glob `{shown}{more}` is malformed: {problem}"))
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
    fn posix_classes_match_ascii() {
        type Holds = fn(&char) -> bool;
        let classes: [(&str, Holds); 12] = [
            ("alnum", char::is_ascii_alphanumeric),
            ("alpha", char::is_ascii_alphabetic),
            ("blank", |character| matches!(character, ' ' | '\t')),
            ("cntrl", char::is_ascii_control),
            ("digit", char::is_ascii_digit),
            ("graph", char::is_ascii_graphic),
            ("lower", char::is_ascii_lowercase),
            ("print", |character| matches!(character, ' '..='~')),
            ("punct", char::is_ascii_punctuation),
            ("space", |character| matches!(character, ' ' | '\t'..='\r')),
            ("upper", char::is_ascii_uppercase),
            ("xdigit", char::is_ascii_hexdigit),
        ];
        assert_eq!(classes.map(|(name, _)| name), super::super::pattern::POSIX_CLASSES.map(|(name, _)| name));
        for (name, holds) in classes {
            let (listed, others) = (glob(&format!("[[:{name}:]]")), glob(&format!("[![:{name}:]]")));
            let folded = Glob::parse(&format!("[[:{name}:]]"), true).expect("a legal pattern");
            for character in ('\0'..='\u{17f}').filter(|character| *character != '/') {
                let text = character.to_string();
                assert_eq!(listed.is_match(&text), holds(&character), "{name} and {character:?}");
                assert_eq!(others.is_match(&text), !holds(&character), "not {name} and {character:?}");
                assert!(folded.is_match(&text) || !holds(&character), "{name} in any case and {character:?}");
            }
        }
        // Classes combined with other members, and what only looks like a class.
        assert!(glob("a[_[:digit:]x-z]b").is_match("a7b") && glob("a[_[:digit:]x-z]b").is_match("ayb"));
        assert!(glob("[[:a]").is_match(":") && glob("[:alpha:]").is_match(":") && !glob("[:alpha:]").is_match("z"));
        let error = Glob::parse("[[:word:]]", false).expect_err("no class of POSIX");
        assert!(error.message().contains("`[:word:]` is not a character class; use one of alnum, alpha,"), "{error}");
        assert_eq!(Glob::parse("[a-[:digit:]]", false).expect_err("no range").kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn glob_matches_expected_paths() {
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
            // Only a literal `**` crosses segments, not two stars that braces bring together.
            ("/*{*/}", &["a"], &["a/b"]),
            ("{.,src}/x", &["x", "src/x"], &["a/x"]),
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
    fn hidden_names_match_only_literal_dots() {
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
            let compiled = visible(pattern);
            for path in met {
                assert!(compiled.is_match(path), "{pattern} {path}");
                for (slash, _) in path.match_indices('/') {
                    assert!(compiled.can_match_beneath(&path[..slash]), "{pattern} {path} {slash}");
                }
            }
            for path in missed {
                assert!(!compiled.is_match(path), "{pattern} {path}");
            }
        }
        assert!(!visible("**/.github/**").can_match_beneath(".git"));
        assert!(visible("**/.github/**").can_match_beneath(".github"));
        assert!(!visible("**/*.md").can_match_beneath("a/.git"));
    }

    #[test]
    fn can_match_beneath_is_false_where_nothing_can_match() {
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
        let deep = "a/".repeat(59) + "b";
        assert!(glob(&deep).can_match_beneath(&"a/".repeat(59)[..117]) && glob(&deep).is_match(&deep));
        assert!(!glob(&deep).can_match_beneath("a/a/b") && !glob(&deep).can_match_beneath(&deep));
    }

    #[test]
    fn literal_prefix_is_common_directory_of_alternatives() {
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
    fn malformed_patterns_are_rejected() {
        let nested = "{".repeat(17) + &"}".repeat(17);
        let (long, bomb) = ("a".repeat(PATTERN_BYTES_MAX + 1), "{a/,b/}".repeat(11));
        let (segments, deep) = ("{/,*}".repeat(400), "a/".repeat(61));
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
            (&deep, "segments"),
        ] {
            let error = Glob::parse(pattern, false).expect_err(pattern);
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{pattern}");
            assert!(error.message().contains(problem), "{pattern}: {error}");
            assert!(error.message().len() < 300, "{error}");
        }
        assert!(glob("foo../..a/...").is_match("foo../..a/..."));
    }
}
