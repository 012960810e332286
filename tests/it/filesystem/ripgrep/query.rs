//! Queries, expressed for both sides.

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use treehold::ops::{CaseMode, Encoding, GrepOptions, GrepOutput};

/// A query: our options and the arguments of `rg`.
#[derive(Debug, Clone)]
pub(super) struct Query {
    pub(super) options: GrepOptions,
    pub(super) arguments: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Words {
    Any,
    Whole,
    Line,
}

/// Patterns that mean the same to `rg`, literally or as a regular expression.
fn pattern() -> impl Strategy<Value = (String, bool)> {
    let literal = select(vec![
        "needle", "foo", "foo(bar", "foo(bar)", "a.b*c", "[x]", "$needle", "größe", "GRÖSSE", "日本", "one two", ".", "", "Needle",
        "absent", " ", "o", "end.", "-bar", "\\", "foo_bar",
    ]);
    let regex = select(vec![
        "needle",
        "needle|foo",
        "^foo",
        "foo$",
        "^$",
        r"\bfoo\b",
        r"n[e]+dle",
        r"(?i)needle",
        ".",
        ".*",
        r"\d+",
        r"\w+",
        r"\s",
        r"[^a-z]+$",
        "a?",
        r"größ|日本",
        r"^\s*$",
        "(one|two) (one|two)",
        r"\p{Lu}",
        r"o{2}",
        r"\S+\s+\S+",
        "Needle|absent",
        r"^.$",
        r"foo\b.",
        "(?:)",
        r"\x{f6}",
        r"[[:punct:]]",
        r"e.*l",
        "absent|never",
        r"\W",
        "(foo|foobar)",
        r"X.X",
    ]);
    prop_oneof![literal.prop_map(|text| (text.to_owned(), false)), regex.prop_map(|text| (text.to_owned(), true))]
}

/// Patterns that span lines.
fn pattern_over_lines() -> impl Strategy<Value = (String, bool)> {
    select(vec![r"needle\nfoo", r"foo\s+bar", r"(?s)one.*?two", r"\n\n", r"needle", r"^foo\n", r"two\n+one|bar", r"\w+\n\w+", "absent\n"])
        .prop_map(|text| (text.to_owned(), true))
}

pub(super) fn query() -> impl Strategy<Value = Query> {
    let output = select(vec![GrepOutput::Content, GrepOutput::Content, GrepOutput::Content, GrepOutput::Files, GrepOutput::Counts]);
    let case = select(vec![CaseMode::Sensitive, CaseMode::Sensitive, CaseMode::Insensitive, CaseMode::Smart]);
    let words = select(vec![Words::Any, Words::Any, Words::Any, Words::Whole, Words::Line]);
    let context = prop_oneof![Just((0, 0)), Just((0, 0)), (0..4_usize, 0..4_usize)];
    let flags = any::<[bool; 4]>();
    let line =
        (pattern(), case.clone(), words, any::<u8>().prop_map(|byte| byte < 40), output.clone(), context.clone(), flags, select_files());
    let over_lines = (pattern_over_lines(), case, Just(Words::Any), Just(false), output, context, flags, select_files());
    let limit = prop_oneof![Just(None), Just(None), Just(None), (1..4_usize).prop_map(Some)];
    prop_oneof![6 => (line, Just(false)), 1 => (over_lines, Just(true))]
        .prop_flat_map(move |(parts, multiline)| (Just(parts), Just(multiline), limit.clone()))
        .prop_map(
            |(
                ((pattern, is_regex), case, words, invert, output, (before, after), [hidden, ignored, binary, encoded], select),
                multiline,
                limit,
            )| {
                // With `-w`, version 13 of `rg` includes the characters beside a match, which matters for patterns that
                // start or end with a non-word character.
                let is_word = |end: Option<char>| end.is_some_and(char::is_alphanumeric);
                let is_words = is_word(pattern.chars().next()) && is_word(pattern.chars().last());
                let words = if words == Words::Whole && !is_words { Words::Any } else { words };
                let mut arguments: Vec<String> = Vec::new();
                let mut add = |argument: &str| arguments.push(argument.to_owned());
                let mut options = if is_regex { GrepOptions::regex(&pattern) } else { GrepOptions::new(&pattern) };
                if !is_regex {
                    add("-F");
                }
                match case {
                    CaseMode::Insensitive => add("-i"),
                    CaseMode::Smart => add("-S"),
                    CaseMode::Sensitive => {}
                }
                match words {
                    Words::Whole => add("-w"),
                    Words::Line => add("-x"),
                    Words::Any => {}
                }
                if invert {
                    add("-v");
                }
                if multiline {
                    add("-U");
                }
                options =
                    options.with_case(case).with_word(words == Words::Whole).with_whole_line(words == Words::Line).with_invert(invert);
                options =
                    options.with_multiline(multiline).with_output(output).with_binary(binary).with_hidden(hidden).with_ignored(ignored);
                match output {
                    GrepOutput::Files => add("-l"),
                    // In multi-line mode `rg` counts matches, while here every touched line counts.
                    GrepOutput::Counts if multiline => {
                        options.output = GrepOutput::Files;
                        add("-l");
                    }
                    GrepOutput::Counts => add("-c"),
                    GrepOutput::Content => {
                        add("--json");
                        // After reaching a limit, `rg` continues the context through further matches; here context ends
                        // before the next match.
                        let after = if limit.is_some() { 0 } else { after };
                        add(&format!("-B{before}"));
                        add(&format!("-A{after}"));
                        options = options.with_context(before, after);
                    }
                }
                // In multi-line mode the limit of `rg` counts matches.
                if let Some(limit) = limit.filter(|_| !multiline) {
                    add(&format!("-m{limit}"));
                    options = options.with_file_matches_max(limit);
                }
                if binary {
                    add("-a");
                }
                if hidden {
                    add("--hidden");
                }
                if ignored {
                    add("--no-ignore");
                }
                if encoded {
                    options = options.with_encoding(Encoding::Auto);
                } else {
                    add("-Enone");
                }
                match select {
                    // With an include, `rg` also searches hidden and ignored files, which are excluded here, so compare
                    // only without exclusions.
                    Select::Include(globs) => {
                        if !hidden {
                            add("--hidden");
                        }
                        if !ignored {
                            add("--no-ignore");
                        }
                        options = options.with_hidden(true).with_ignored(true);
                        for glob in globs {
                            add(&format!("-g{glob}"));
                            match glob.strip_prefix('!') {
                                Some(glob) => options.exclude.push(glob.to_owned()),
                                None => options.include.push(glob.to_owned()),
                            }
                        }
                    }
                    Select::Exclude(globs) => {
                        for glob in globs {
                            add(&format!("-g!{glob}"));
                            options.exclude.push(glob.to_owned());
                        }
                    }
                    // With a type, `rg` also searches hidden files.
                    Select::Types(types) => {
                        if !hidden {
                            add("--hidden");
                        }
                        options = options.with_hidden(true);
                        for name in types {
                            add(&format!("-t{name}"));
                            options.types.push(name.to_owned());
                        }
                    }
                    Select::All => {}
                }
                add("-e");
                add(&pattern);
                Query { options, arguments }
            },
        )
}

impl Query {
    /// Returns whether a `\r` at the end of a line, which `rg` treats as text, can affect the result, or a match can
    /// extend over it.
    pub(super) fn meets_carriage_returns(&self) -> bool {
        let options = &self.options;
        options.regex || options.word || options.whole_line || options.invert || options.pattern.is_empty()
    }
}

#[derive(Debug, Clone)]
enum Select {
    All,
    Include(Vec<&'static str>),
    Exclude(Vec<&'static str>),
    Types(Vec<&'static str>),
}

/// Globs that mean the same to both sides. No include ends with `/`, which includes everything below here and nothing
/// in `rg`.
const GLOBS: [&str; 16] = [
    "*.rs",
    "*.{py,md}",
    "/src/**",
    "src/*",
    "**/lib/*",
    "*.TXT",
    "[!m]*.rs",
    "é*",
    "README",
    "docs/**/*.md",
    "*a*",
    "?",
    "\\[x\\].rs",
    "/*.log",
    ".*",
    "**",
];

fn select_files() -> impl Strategy<Value = Select> {
    prop_oneof![
        4 => Just(Select::All),
        1 => (subsequence(GLOBS.to_vec(), 1..3), prop::option::of(select(vec!["!*.log", "!target/", "!/src/lib", "!**/a*"]))).prop_map(|(mut globs, not)| {
            // The last glob wins in `rg`, and an exclude always wins here.
            globs.extend(not);
            Select::Include(globs)
        }),
        1 => subsequence(vec!["*.rs", "target/", "/src/lib", "*.log", "**/lib.rs", "docs", "a b/", "[a-e]*", "*.{txt,md}"], 1..3).prop_map(Select::Exclude),
        1 => subsequence(vec!["rust", "py", "json"], 1..2).prop_map(Select::Types),
    ]
}

/// File globs, and whether case is ignored. `?` and classes match a byte in `rg` and a character here, so none meets a
/// multi-byte character.
pub(super) fn glob() -> impl Strategy<Value = (&'static str, bool)> {
    (
        select(vec![
            "*.rs",
            "*.{py,md}",
            "/src/**",
            "src/*",
            "**/lib/*",
            "*.TXT",
            "[!m]*.rs",
            "é*",
            "README",
            "docs/**/*.md",
            "*a*",
            "?",
            "\\[x\\].rs",
            "/*.log",
            ".*",
            "**",
            "*",
            "**/*",
            "src/**/*.rs",
            "{src,docs}/**",
            "**/.*",
            "/*",
            "*/*",
            "*.b.*",
            "a b/*",
            "日本/*",
            "**/日本/*",
            "v1.0/*",
            "[#!]*",
            "*.[tT][xX][tT]",
            "src/.cache/*",
            "{a,b}*",
            "**/target/**",
            "*/lib/*.rs",
            "[[]x].rs",
            "x.rs*",
            "no",
            "{no,tmp}",
            "[a-c]*",
            "[^a-c]*",
        ]),
        any::<bool>(),
    )
}
