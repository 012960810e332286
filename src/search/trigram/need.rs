//! What a content must hold to match a pattern.

use super::Trigram;
use crate::ops::GrepOptions;
use crate::search::expression::Expression;
use regex_syntax::hir::{Class, Hir, HirKind};
use std::collections::BTreeSet;

/// The most texts that are told apart at one place of an expression.
const TEXTS_MAX: usize = 32;

/// The longest of those texts in bytes, before its trigrams are taken.
const TEXT_BYTES_MAX: usize = 256;

/// The most trigrams of one text that are asked for: enough that hardly a content holds them all by chance.
const TRIGRAMS_OF_TEXT_MAX: usize = 16;

/// The most trigrams that are asked for in all; an expression that needs more is taken to need nothing.
const TRIGRAMS_MAX: usize = 512;

/// How deep within an expression its texts are looked for. Each part is looked at once for each level above it up to this one, so
/// reading an expression takes as long as it is large, however deep it nests.
const DEPTH_MAX: usize = 8;

/// How often an exact repetition is written out.
const REPEATS_MAX: u32 = 16;

/// What a content must hold to match. Every content that matches fulfils it; others may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Need {
    /// Nothing is known: any content may match.
    Nothing,
    /// A trigram.
    Trigram(Trigram),
    /// All of these.
    All(Vec<Need>),
    /// At least one of these.
    Any(Vec<Need>),
}

impl Need {
    /// Returns what a file must hold to be found by a search. One for lines that do not match needs nothing.
    pub fn of(options: &GrepOptions) -> Self {
        // What is decoded has other bytes than the content that was signed.
        if options.invert || options.encoding != crate::ops::Encoding::Bytes { Self::Nothing } else { Expression::of(options).need() }
    }

    /// Returns what matching an expression needs.
    pub fn of_expression(expression: &Hir) -> Self {
        let mut reader = Reader::new();
        reader.read(expression);
        let need = reader.finish();
        if need.count() > TRIGRAMS_MAX { Self::Nothing } else { need }
    }

    /// Returns what holding a text needs.
    pub fn of_text(text: &[u8]) -> Self {
        let trigrams: Vec<Trigram> = Trigram::all_of(text).collect();
        let step = trigrams.len().div_ceil(TRIGRAMS_OF_TEXT_MAX).max(1);
        // With the last one, which a step may pass over.
        let chosen: BTreeSet<Trigram> = trigrams.iter().step_by(step).chain(trigrams.last()).copied().collect();
        Self::all(chosen.into_iter().map(Self::Trigram).collect())
    }

    /// Decides, given which trigrams a content may hold.
    pub fn is_met(&self, may_hold: &impl Fn(Trigram) -> bool) -> bool {
        match self {
            Self::Nothing => true,
            Self::Trigram(trigram) => may_hold(*trigram),
            Self::All(needs) => needs.iter().all(|need| need.is_met(may_hold)),
            Self::Any(needs) => needs.iter().any(|need| need.is_met(may_hold)),
        }
    }

    /// Returns the trigrams it names.
    pub fn trigrams(&self) -> BTreeSet<Trigram> {
        let mut trigrams = BTreeSet::new();
        self.collect(&mut trigrams);
        trigrams
    }

    fn collect(&self, trigrams: &mut BTreeSet<Trigram>) {
        match self {
            Self::Nothing => {}
            Self::Trigram(trigram) => drop(trigrams.insert(*trigram)),
            Self::All(needs) | Self::Any(needs) => needs.iter().for_each(|need| need.collect(trigrams)),
        }
    }

    fn count(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Trigram(_) => 1,
            Self::All(needs) | Self::Any(needs) => needs.iter().map(Self::count).sum(),
        }
    }

    fn all(mut needs: Vec<Self>) -> Self {
        needs.retain(|need| *need != Self::Nothing);
        match needs.len() {
            0 => Self::Nothing,
            1 => needs.remove(0),
            _ => Self::All(needs),
        }
    }

    fn any(mut needs: Vec<Self>) -> Self {
        match needs.len() {
            _ if needs.contains(&Self::Nothing) => Self::Nothing,
            0 => Self::Nothing,
            1 => needs.remove(0),
            _ => Self::Any(needs),
        }
    }
}

/// Reads an expression from left to right.
struct Reader {
    needs: Vec<Need>,
    /// What stands just before the place that was reached: one of these texts. The empty one says that nothing is known.
    texts: BTreeSet<Vec<u8>>,
}

impl Reader {
    fn new() -> Self {
        Self { needs: Vec::new(), texts: BTreeSet::from([Vec::new()]) }
    }

    fn finish(mut self) -> Need {
        self.settle();
        Need::all(self.needs)
    }

    fn read(&mut self, expression: &Hir) {
        if let Some(texts) = texts_of(expression, DEPTH_MAX) {
            return self.append(&texts);
        }
        match expression.kind() {
            HirKind::Concat(parts) => parts.iter().for_each(|part| self.read(part)),
            HirKind::Capture(capture) => self.read(&capture.sub),
            HirKind::Alternation(branches) => {
                self.forget();
                self.needs.push(Need::any(branches.iter().map(Need::of_branch).collect()));
            }
            HirKind::Repetition(repetition) if repetition.min > 0 => {
                self.read(&repetition.sub);
                self.forget();
            }
            _ => self.forget(),
        }
    }

    /// Goes on by one of these texts.
    fn append(&mut self, texts: &BTreeSet<Vec<u8>>) {
        if self.texts.len() * texts.len() > TEXTS_MAX || self.texts.iter().any(|text| text.len() > TEXT_BYTES_MAX) {
            self.settle();
        }
        if self.texts.len() * texts.len() > TEXTS_MAX {
            self.forget();
        }
        self.texts = product(&self.texts, texts);
    }

    /// Asks for the texts known, and keeps of them what a trigram with what follows may start with.
    fn settle(&mut self) {
        self.needs.push(Need::any(self.texts.iter().map(|text| Need::of_text(text)).collect()));
        self.texts = self.texts.iter().map(|text| text[text.len().saturating_sub(2)..].to_vec()).collect();
    }

    /// Asks for the texts known: what follows may stand anywhere behind them.
    fn forget(&mut self) {
        self.settle();
        self.texts = BTreeSet::from([Vec::new()]);
    }
}

impl Need {
    fn of_branch(branch: &Hir) -> Self {
        let mut reader = Reader::new();
        reader.read(branch);
        reader.finish()
    }
}

/// Returns the texts that an expression matches, in lower case, if they are few and stand at most so deep.
fn texts_of(expression: &Hir, depth: usize) -> Option<BTreeSet<Vec<u8>>> {
    let depth = depth.checked_sub(1)?;
    let one = |text: Vec<u8>| Some(BTreeSet::from([text]));
    match expression.kind() {
        HirKind::Empty | HirKind::Look(_) => one(Vec::new()),
        HirKind::Literal(literal) => one(literal.0.to_ascii_lowercase()),
        HirKind::Class(class) => texts_of_class(class),
        HirKind::Capture(capture) => texts_of(&capture.sub, depth),
        HirKind::Concat(parts) => parts.iter().try_fold(BTreeSet::from([Vec::new()]), |texts, part| {
            let next = texts_of(part, depth)?;
            let is_small = texts.len() * next.len() <= TEXTS_MAX && texts.iter().all(|text| text.len() <= TEXT_BYTES_MAX);
            is_small.then(|| product(&texts, &next))
        }),
        HirKind::Alternation(branches) => branches.iter().try_fold(BTreeSet::new(), |mut texts, branch| {
            texts.extend(texts_of(branch, depth)?);
            (texts.len() <= TEXTS_MAX).then_some(texts)
        }),
        HirKind::Repetition(repetition) => {
            let texts = texts_of(&repetition.sub, depth)?;
            match (repetition.min, repetition.max) {
                (0, Some(1)) => {
                    let mut texts = texts;
                    texts.insert(Vec::new());
                    Some(texts)
                }
                (min, Some(max)) if min == max && max <= REPEATS_MAX => (0..max).try_fold(BTreeSet::from([Vec::new()]), |all, _| {
                    let is_small = all.len() * texts.len() <= TEXTS_MAX && all.iter().all(|text| text.len() <= TEXT_BYTES_MAX);
                    is_small.then(|| product(&all, &texts))
                }),
                _ => None,
            }
        }
    }
}

fn texts_of_class(class: &Class) -> Option<BTreeSet<Vec<u8>>> {
    let mut texts = BTreeSet::new();
    match class {
        Class::Unicode(class) => {
            // A class may be written with all its cases: they are one text.
            let count: usize = class.ranges().iter().map(|range| range.len()).sum();
            if count > 2 * TEXTS_MAX {
                return None;
            }
            for character in class.ranges().iter().flat_map(|range| range.start()..=range.end()) {
                texts.insert(character.to_ascii_lowercase().to_string().into_bytes());
            }
        }
        Class::Bytes(class) => {
            let count: usize = class.ranges().iter().map(|range| range.len()).sum();
            if count > 2 * TEXTS_MAX {
                return None;
            }
            for byte in class.ranges().iter().flat_map(|range| range.start()..=range.end()) {
                texts.insert(vec![byte.to_ascii_lowercase()]);
            }
        }
    }
    (!texts.is_empty() && texts.len() <= TEXTS_MAX).then_some(texts)
}

/// Returns every text of the one set followed by every text of the other.
fn product(texts: &BTreeSet<Vec<u8>>, next: &BTreeSet<Vec<u8>>) -> BTreeSet<Vec<u8>> {
    texts.iter().flat_map(|text| next.iter().map(move |next| [&text[..], &next[..]].concat())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::CaseMode;

    /// Draws a need: `abc+bcd` for all, `(abc|xyz)` for any, `*` for none.
    fn drawn(need: &Need) -> String {
        let list = |needs: &[Need], sign: &str| needs.iter().map(drawn).collect::<Vec<_>>().join(sign);
        match need {
            Need::Nothing => "*".to_owned(),
            Need::Trigram(trigram) => String::from_utf8_lossy(&trigram.0).into_owned(),
            Need::All(needs) => list(needs, "+"),
            Need::Any(needs) => format!("({})", list(needs, "|")),
        }
    }

    #[test]
    fn patterns_need_what_every_match_holds() {
        let regex = GrepOptions::regex;
        for (options, expected) in [
            (GrepOptions::new("needle"), "dle+edl+eed+nee"),
            (GrepOptions::new("Needle").with_case(CaseMode::Sensitive), "dle+edl+eed+nee"),
            (GrepOptions::new("ab"), "*"),
            (GrepOptions::new(""), "*"),
            (regex("needle"), "dle+edl+eed+nee"),
            (regex("abc|xyz"), "(abc|xyz)"),
            (regex("abc|x"), "*"),
            (regex("fn +main"), "fn +ain+mai"),
            (regex("abc.*xyz"), "abc+xyz"),
            (regex("^abc$"), "abc"),
            (regex(r"\babc\b"), "abc"),
            (regex("ab[cd]e"), "(abc+bce|abd+bde)"),
            (regex("abcd?e"), "(abc+bcd+cde|abc+bce)"),
            (regex("(abc)+d"), "abc"),
            (regex("(abc)*d"), "*"),
            (regex("(ab){3}"), "aba+bab"),
            (regex("(foo.bar|x.abc)"), "(foo+bar|abc)"),
            (regex(".*"), "*"),
            (regex(r"\wbcd"), "bcd"),
            (regex(r"bcd\w"), "bcd"),
            (regex("(?i)ab1"), "ab1"),
            (GrepOptions::new("ab1").with_case(CaseMode::Insensitive), "ab1"),
        ] {
            assert_eq!(drawn(&Need::of(&options)), expected, "{}", options.pattern);
        }
    }

    /// `k` ignoring case meets the sign of Kelvin as well, which is three other bytes.
    #[test]
    fn letters_with_cases_beyond_ascii_are_all_looked_for() {
        let need = Need::of(&GrepOptions::new("kilo").with_case(CaseMode::Insensitive));
        for text in ["KILO", "kilo", "\u{212A}ilo"] {
            let signature = super::super::Signature::of(text.as_bytes());
            assert!(need.is_met(&|trigram| signature.may_hold(trigram)), "{text}");
        }
    }

    #[test]
    fn large_expressions_stay_bounded() {
        let words: Vec<String> = (0..2_000).map(|number| format!("word{number:04}")).collect();
        assert_eq!(Need::of(&GrepOptions::regex(words.join("|"))), Need::Nothing);
        let long = Need::of(&GrepOptions::new("abcdefghij".repeat(1_000)));
        assert!(long.count() <= TRIGRAMS_OF_TEXT_MAX + 1, "{}", long.count());
        let nested = Need::of(&GrepOptions::regex("((a[bc]{2}[de]){2}[fg]{3}){4}xyz"));
        assert!(nested.count() <= TRIGRAMS_MAX);
    }

    /// Looked through anew at each of its levels this one took minutes.
    #[test]
    fn nested_expressions_are_read_once() {
        let level = format!("([ab][ab][ab][ab][ab]{}", "(c)".repeat(40));
        let nested = format!(r"{}\w{}xyz", level.repeat(100), ")".repeat(100));
        assert!(nested.len() < crate::search::expression::PATTERN_BYTES_MAX);
        let need = Need::of_expression(&regex_syntax::parse(&nested).expect("a legal expression"));
        assert!(need.count() <= TRIGRAMS_MAX);
    }
}
