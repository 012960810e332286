//! What content must contain to match a pattern.

use super::Trigram;
use crate::ops::GrepOptions;
use crate::search::expression::Expression;
use regex_syntax::hir::{Class, Hir, HirKind};
use std::collections::BTreeSet;

/// The most different texts tracked at one position of an expression.
const TEXTS_MAX: usize = 32;

/// The longest tracked text in bytes, before it is reduced to its trigrams.
const TEXT_BYTES_MAX: usize = 256;

/// The most trigrams required of one text: enough that content hardly ever has them all by chance.
const TRIGRAMS_OF_TEXT_MAX: usize = 16;

/// The most trigrams in total. An expression that needs more is treated as needing nothing.
const TRIGRAMS_MAX: usize = 512;

/// The depth to which texts are derived from an expression. Each part is visited at most once for each level above it up to this
/// depth, so the time is linear in the size of an expression, however deeply it nests.
const DEPTH_MAX: usize = 8;

/// The longest exact repetition that is written out.
const REPEATS_MAX: u32 = 16;

/// A condition on the trigrams of some content. All matching content meets it; other content may too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Need {
    /// No condition: any content may match.
    Nothing,
    /// Contains a trigram.
    Trigram(Trigram),
    /// Meets all of these.
    All(Vec<Need>),
    /// Meets at least one of these.
    Any(Vec<Need>),
}

impl Need {
    /// Returns what a file must contain for a search to find it. Inverted searches need nothing.
    pub fn of(options: &GrepOptions) -> Self {
        // Decoded text differs from the indexed bytes.
        if options.invert || options.encoding != crate::ops::Encoding::Bytes { Self::Nothing } else { Expression::of(options).need() }
    }

    /// Returns what content must contain to match an expression.
    pub fn of_expression(expression: &Hir) -> Self {
        let mut reader = Reader::new();
        reader.read(expression);
        let need = reader.finish();
        if need.count() > TRIGRAMS_MAX { Self::Nothing } else { need }
    }

    /// Returns what content must contain to contain a text.
    pub fn of_text(text: &[u8]) -> Self {
        let trigrams: Vec<Trigram> = Trigram::all_of(text).collect();
        let step = trigrams.len().div_ceil(TRIGRAMS_OF_TEXT_MAX).max(1);
        // Include the last one, which the steps may skip.
        let chosen: BTreeSet<Trigram> = trigrams.iter().step_by(step).chain(trigrams.last()).copied().collect();
        Self::all(chosen.into_iter().map(Self::Trigram).collect())
    }

    /// Returns whether the condition is met, given which trigrams some content may contain.
    pub fn is_met(&self, may_hold: &impl Fn(Trigram) -> bool) -> bool {
        match self {
            Self::Nothing => true,
            Self::Trigram(trigram) => may_hold(*trigram),
            Self::All(needs) => needs.iter().all(|need| need.is_met(may_hold)),
            Self::Any(needs) => needs.iter().any(|need| need.is_met(may_hold)),
        }
    }

    /// Returns all trigrams of the condition.
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

/// Processes an expression from left to right.
struct Reader {
    needs: Vec<Need>,
    /// The possible texts just before the current position. An empty text means that nothing is known.
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

    /// Advances by one of these texts.
    fn append(&mut self, texts: &BTreeSet<Vec<u8>>) {
        if self.texts.len() * texts.len() > TEXTS_MAX || self.texts.iter().any(|text| text.len() > TEXT_BYTES_MAX) {
            self.settle();
        }
        if self.texts.len() * texts.len() > TEXTS_MAX {
            self.forget();
        }
        self.texts = product(&self.texts, texts);
    }

    /// Requires the texts known so far, and keeps only the last two bytes of each, with which the next trigram may start.
    fn settle(&mut self) {
        self.needs.push(Need::any(self.texts.iter().map(|text| Need::of_text(text)).collect()));
        self.texts = self.texts.iter().map(|text| text[text.len().saturating_sub(2)..].to_vec()).collect();
    }

    /// Requires the texts known so far. What follows may be any distance behind them.
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

/// Returns the texts that an expression matches, in lower case, if there are few and it nests at most `depth` levels deep.
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
            // A class may list letters in all their cases, which are one text here.
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

/// Returns every text of the first set followed by every text of the second.
fn product(texts: &BTreeSet<Vec<u8>>, next: &BTreeSet<Vec<u8>>) -> BTreeSet<Vec<u8>> {
    texts.iter().flat_map(|text| next.iter().map(move |next| [&text[..], &next[..]].concat())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::CaseMode;

    /// Renders a need: `abc+bcd` for all, `(abc|xyz)` for any, `*` for nothing.
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
    fn need_lists_the_trigrams_of_every_match() {
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

    /// Ignoring case, `k` also matches the Kelvin sign, which has three different bytes.
    #[test]
    fn need_covers_case_variants_beyond_ascii() {
        let need = Need::of(&GrepOptions::new("kilo").with_case(CaseMode::Insensitive));
        for text in ["KILO", "kilo", "\u{212A}ilo"] {
            let signature = super::super::Signature::of(text.as_bytes());
            assert!(need.is_met(&|trigram| signature.may_hold(trigram)), "{text}");
        }
    }

    #[test]
    fn need_of_large_expression_is_bounded() {
        let words: Vec<String> = (0..2_000).map(|number| format!("word{number:04}")).collect();
        assert_eq!(Need::of(&GrepOptions::regex(words.join("|"))), Need::Nothing);
        let long = Need::of(&GrepOptions::new("abcdefghij".repeat(1_000)));
        assert!(long.count() <= TRIGRAMS_OF_TEXT_MAX + 1, "{}", long.count());
        let nested = Need::of(&GrepOptions::regex("((a[bc]{2}[de]){2}[fg]{3}){4}xyz"));
        assert!(nested.count() <= TRIGRAMS_MAX);
    }

    /// Regression: this took minutes when every level was processed again at each level above it.
    #[test]
    fn need_of_deeply_nested_expression_takes_linear_time() {
        let level = format!("([ab][ab][ab][ab][ab]{}", "(c)".repeat(40));
        let nested = format!(r"{}\w{}xyz", level.repeat(100), ")".repeat(100));
        assert!(nested.len() < crate::search::expression::PATTERN_BYTES_MAX);
        let need = Need::of_expression(&regex_syntax::parse(&nested).expect("a legal expression"));
        assert!(need.count() <= TRIGRAMS_MAX);
    }
}
