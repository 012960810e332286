//! Property test: whatever a search finds has the trigrams that the pattern needs. Uses letters with unusual case folding, and
//! compares with the matcher itself.

use super::{Need, Signature};
use crate::ops::{CaseMode, GrepOptions, GrepOutput};
use crate::path::VfsPath;
use crate::search::{FileOutcome, GrepMatcher};
use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::Cell;

/// Letters that are equal if case is ignored, along with some that only look so.
const FAMILIES: [&[&str]; 15] = [
    &["k", "K", "\u{212A}"],
    &["s", "S", "ſ"],
    &["i", "I", "İ", "ı", "i\u{307}"],
    &["ß", "ẞ", "ss", "SS", "ſs"],
    &["å", "Å", "\u{212B}"],
    &["σ", "ς", "Σ"],
    &["µ", "μ", "Μ"],
    &["ǆ", "ǅ", "Ǆ"],
    &["a", "A"],
    &["b", "B"],
    &["é", "É"],
    &["1"],
    &["_"],
    &[" "],
    &["-"],
];

/// An expression from which matching texts can be generated.
#[derive(Debug, Clone)]
enum Part {
    /// One letter of each family.
    Text(Vec<(usize, usize)>),
    /// One of the first letters of these families.
    Class(Vec<usize>),
    /// A fixed expression, with a text that it matches.
    Fixed(&'static str, &'static [u8]),
    All(Vec<Part>),
    Any(Vec<Part>),
    Repeated(Box<Part>, u32, Option<u32>),
    /// A part with flags of its own.
    Flagged(&'static str, Box<Part>),
}

fn letter((family, choice): (usize, usize)) -> &'static str {
    FAMILIES[family][choice % FAMILIES[family].len()]
}

impl Part {
    fn written(&self) -> String {
        let list = |parts: &[Self], sign: &str| parts.iter().map(Self::written).collect::<Vec<_>>().join(sign);
        match self {
            Self::Text(letters) => letters.iter().map(|at| regex::escape(letter(*at))).collect(),
            Self::Class(families) => format!("[{}]", families.iter().map(|family| regex::escape(FAMILIES[*family][0])).collect::<String>()),
            Self::Fixed(written, _) => (*written).to_owned(),
            Self::All(parts) => list(parts, ""),
            Self::Any(parts) => format!("(?:{})", list(parts, "|")),
            Self::Repeated(part, min, None) => format!("(?:{}){{{min},}}", part.written()),
            Self::Repeated(part, min, Some(max)) => format!("({}){{{min},{max}}}", part.written()),
            Self::Flagged(flags, part) => format!("(?{flags}:{})", part.written()),
        }
    }

    /// Generates a text that the expression matches, at least if case is ignored.
    fn text(&self, chances: &mut impl Iterator<Item = usize>, into: &mut Vec<u8>) {
        let mut chance = |of: usize| chances.next().unwrap_or_default() % of.max(1);
        match self {
            Self::Text(letters) => {
                for (family, choice) in letters {
                    let choice = if chance(2) == 0 { *choice } else { chance(8) };
                    into.extend_from_slice(letter((*family, choice)).as_bytes());
                }
            }
            Self::Class(families) => {
                let family = families[chance(families.len())];
                let choice = chance(8);
                into.extend_from_slice(letter((family, choice)).as_bytes());
            }
            Self::Fixed(_, text) => into.extend_from_slice(text),
            Self::All(parts) => parts.iter().for_each(|part| part.text(chances, into)),
            Self::Any(parts) => parts[chance(parts.len())].text(chances, into),
            Self::Repeated(part, min, max) => {
                let count = *min as usize + chance(max.map_or(3, |max| (max - min) as usize + 1));
                (0..count).for_each(|_| part.text(chances, into));
            }
            Self::Flagged(_, part) => part.text(chances, into),
        }
    }
}

const FIXED: [(&str, &[u8]); 30] = [
    ("", b""),
    (".", b"x"),
    (".", b"\r"),
    (".*", b"a bc"),
    (".+?", b"k"),
    ("(?s:.)", b"y"),
    ("(?s-u:.)", b"\xFE"),
    (r"(?-u:\xff)", b"\xFF"),
    (r"(?-u:[\xe2-\xe4])", b"\xE3"),
    (r"(?-u:\x84)\x{41}", b"\x84A"),
    (r"\x{212A}", "k".as_bytes()),
    (r"\b", b""),
    (r"\B", b""),
    (r"(?-u:\b)", b""),
    (r"\b{start}", b""),
    ("^", b""),
    ("$", b""),
    (r"\A", b""),
    (r"\z", b""),
    ("(?R:$)", b""),
    ("(?R:.)", b"z"),
    ("(?-m:^)", b""),
    ("[a-z]", b"q"),
    ("[^ab]", "ſ".as_bytes()),
    ("[A-Ck-s]", b"s"),
    ("(?:|kk)", b""),
    ("(?:ab|)", b"AB"),
    ("(?i)ss", "ſS".as_bytes()),
    ("(?-i)KB", b"KB"),
    (r"\t", b"\t"),
];

/// Expressions that are slow to compile.
const COSTLY: [(&str, &[u8]); 4] = [(r"\w", "é".as_bytes()), (r"\s+", b" "), (r"\d", b"1"), (r"\pL", "ß".as_bytes())];

fn part() -> impl Strategy<Value = Part> {
    let text = proptest::collection::vec((0..FAMILIES.len(), 0..5_usize), 1..6).prop_map(Part::Text);
    let leaf = prop_oneof![
        60 => text,
        12 => proptest::collection::vec(0..12_usize, 1..4).prop_map(Part::Class),
        20 => proptest::sample::select(FIXED.to_vec()).prop_map(|(written, text)| Part::Fixed(written, text)),
        1 => proptest::sample::select(COSTLY.to_vec()).prop_map(|(written, text)| Part::Fixed(written, text)),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            4 => proptest::collection::vec(inner.clone(), 1..5).prop_map(Part::All),
            2 => proptest::collection::vec(inner.clone(), 1..5).prop_map(Part::Any),
            2 => (inner.clone(), 0..4_u32, proptest::option::of(0..3_u32))
                .prop_map(|(part, min, more)| Part::Repeated(Box::new(part), min, more.map(|more| min + more))),
            1 => (proptest::sample::select(vec!["i", "-i", "R", "s", "U", "m", "-m", "x"]), inner)
                .prop_map(|(flags, part)| Part::Flagged(flags, Box::new(part))),
        ]
    })
}

fn options() -> impl Strategy<Value = GrepOptions> {
    let case = proptest::sample::select(vec![CaseMode::Sensitive, CaseMode::Insensitive, CaseMode::Insensitive, CaseMode::Smart]);
    (case, proptest::bool::weighted(0.2), proptest::bool::weighted(0.1), proptest::bool::weighted(0.2)).prop_map(
        |(case, word, whole_line, multiline)| {
            let options = GrepOptions::new("").with_case(case).with_word(word).with_whole_line(whole_line).with_multiline(multiline);
            options.with_binary(true).with_output(GrepOutput::Files)
        },
    )
}

const AROUND: [&[u8]; 9] = [b"", b" ", b"\n", b"\r\n", b"\xEF\xBB\xBF", b"\xFF", b"ab", "ſK".as_bytes(), b"\0"];

fn finds(matcher: &GrepMatcher, content: &[u8]) -> bool {
    let path = VfsPath::parse("/f").expect("a legal path");
    matches!(matcher.search(&path, &Bytes::copy_from_slice(content)), FileOutcome::Searched { count, .. } if count > 0)
}

fn is_met(need: &Need, content: &[u8]) -> bool {
    let signature = Signature::of(content);
    need.is_met(&|trigram| signature.may_hold(trigram))
}

/// How to generate content: what precedes and follows the match, and which choices to make.
type Made = (usize, usize, Vec<usize>);

/// A pattern, whether it is an expression, its options, and how to generate contents.
fn searched() -> impl Strategy<Value = (Part, bool, GrepOptions, Vec<Made>)> {
    let contents = proptest::collection::vec((0..AROUND.len(), 0..AROUND.len(), proptest::collection::vec(0..840_usize, 48)), 8);
    (part(), proptest::bool::weighted(0.8), options(), contents)
}

#[test]
fn matching_content_meets_need_of_pattern() {
    // How many contents matched, and how many of those for a pattern with a need.
    let (found, needed) = (Cell::new(0), Cell::new(0));
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(1_024) });
    let ended = runner.run(&searched(), |(part, is_regex, options, contents)| {
        let pattern = if is_regex {
            part.written()
        } else {
            let mut text = Vec::new();
            part.text(&mut contents[0].2.iter().copied(), &mut text);
            let around = String::from_utf8_lossy(AROUND[contents[0].0]).into_owned();
            format!("{}{around}{}", String::from_utf8_lossy(&text), String::from_utf8_lossy(&text))
        };
        let options = GrepOptions { regex: is_regex, pattern: pattern.clone(), ..options };
        // An illegal expression is rejected with and without an index.
        let Ok(matcher) = GrepMatcher::compile(&options) else { return Ok(()) };
        let need = Need::of(&options);
        for (before, after, chances) in contents {
            let mut content = AROUND[before].to_vec();
            let mut chances = chances.into_iter();
            if is_regex {
                part.text(&mut chances, &mut content);
            } else {
                let letters = pattern.chars().map(|one| {
                    let family = FAMILIES.iter().find(|family| family.contains(&&*one.to_string()));
                    family.map_or(one.to_string(), |family| family[chances.next().unwrap_or_default() % family.len()].to_owned())
                });
                content.extend(letters.collect::<String>().into_bytes());
            }
            content.extend_from_slice(AROUND[after]);
            if finds(&matcher, &content) {
                found.set(found.get() + 1);
                needed.set(needed.get() + usize::from(need != Need::Nothing));
                prop_assert!(is_met(&need, &content), "`{}` in {:?}: {need:?}", options.pattern, String::from_utf8_lossy(&content));
            }
        }
        Ok(())
    });
    if let Err(failure) = ended {
        panic!("{failure}");
    }
    assert!(found.get() > 1_000 && needed.get() > 500, "{} found, {} of them by a need", found.get(), needed.get());
}
