//! The words of a file, by which ranked search finds it.
//!
//! Text is split into words by the rules of Unicode ([UAX #29](https://www.unicode.org/reports/tr29/)). Words are compared in
//! lower case and without accents, and English words by their stems ([Porter
//! 2](https://snowballstem.org/algorithms/english/stemmer.html)), so that `Memories` finds `memory`. An identifier counts as a
//! whole and in its parts: `userId`, `user_id` and `user.id` all contain `user` and `id`. Scripts written without spaces yield
//! each character and each pair of adjacent characters.

use crate::file::is_binary;
use crate::path::VfsPath;
use crate::work;
use rust_stemmers::{Algorithm, Stemmer};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::LazyLock;
use unicode_normalization::UnicodeNormalization;
use unicode_segmentation::UnicodeSegmentation;

/// How many bytes at the start of some content are indexed. `grep` finds the words after it.
pub const CONTENT_BYTES_MAX: usize = 1 << 20;

/// The longest word in bytes, in normalized form. Anything longer is data, not a word.
pub const WORD_BYTES_MAX: usize = 64;

/// The weight of a word in the path, relative to one in the content.
pub const PATH_WEIGHT: u32 = 4;

/// The shortest word that is stemmed, in bytes.
const STEMMED_BYTES_MIN: usize = 3;

static ENGLISH: LazyLock<Stemmer> = LazyLock::new(|| Stemmer::create(Algorithm::English));

/// The words of a file, and how often each occurs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileWords {
    /// The number of words in the path and the content.
    pub length: u32,
    /// Each word once, sorted, with its number of occurrences. Those in the path count [`PATH_WEIGHT`] times.
    pub counts: Vec<(String, u32)>,
}

impl FileWords {
    /// Counts the words of a file. `path` is its path within its own tree. Cost: one pass over the first [`CONTENT_BYTES_MAX`]
    /// bytes, some tens of nanoseconds for each word.
    pub fn of(path: &VfsPath, content: &[u8]) -> Self {
        let mut length = 0_u32;
        let mut counts: HashMap<String, u32> = HashMap::new();
        let mut add = |word: &str, times: u32, weight: u32| {
            length = length.saturating_add(times);
            match counts.get_mut(word) {
                Some(count) => *count = count.saturating_add(weight),
                None => drop(counts.insert(word.to_owned(), weight)),
            }
        };
        each(path.as_str(), |_, word| add(word, 1, PATH_WEIGHT));
        if let Some(text) = text_of(content) {
            // Texts repeat most of their words, and normalizing is the slowest step, so count the words as written first.
            let mut written: HashMap<&str, u32> = HashMap::new();
            each_written(&text, |range| *written.entry(&text[range]).or_default() += 1);
            let mut compared = String::new();
            for (word, times) in written {
                compare(word, &mut compared);
                if is_kept(&compared) {
                    add(&compared, times, times);
                }
            }
        }
        let mut counts: Vec<(String, u32)> = counts.into_iter().collect();
        counts.sort_unstable();
        Self { length, counts }
    }

    /// Returns how often a word occurs.
    pub fn frequency(&self, word: &str) -> u32 {
        self.counts.binary_search_by(|(own, _)| own.as_str().cmp(word)).map_or(0, |at| self.counts[at].1)
    }
}

/// Function words that questions contain and nearly every text has. [`words_of_query`] drops them. Words that also have a meaning
/// of their own (`will`, `can`, `may`) are not among them.
const FILLERS: &str = "a an and are as at be been but by could did do does for from had has have he her his how i if in into is it its me \
    my no not of on or our she should so such than that the their them then there these they this to us was we were what when where \
    which who why with would you your";

static FILLER_WORDS: LazyLock<HashSet<&str>> = LazyLock::new(|| FILLERS.split_whitespace().collect());

/// Returns the words of a query in normalized form, each once, in their order. Drops English function words (`where is my`)
/// unless there are no others: in a small tree they are rare enough to be misleading. Keeps those written as a name (`IT`, `US`).
pub fn words_of_query(query: &str) -> Vec<String> {
    let (mut words, mut fillers) = (Distinct::default(), Distinct::default());
    let first = query.find(char::is_alphanumeric).unwrap_or(0);
    each(query, |range, word| {
        let written = &query[range.clone()];
        // The first word of a sentence is always capitalized.
        let is_filler = FILLER_WORDS.contains(written) || (range.start <= first && FILLER_WORDS.contains(&*written.to_lowercase()));
        if is_filler { fillers.push(word) } else { words.push(word) }
    });
    if words.words.is_empty() { fillers.words } else { words.words }
}

/// Returns each word of a text in normalized form, and as it is spelled: in lower case and without accents, but with its ending.
pub(super) fn spelled(text: &str) -> Vec<(String, String)> {
    let mut words = Vec::new();
    each(text, |range, word| words.push((word.to_owned(), folded(&text[range]))));
    words
}

/// Words without duplicates, in their order.
#[derive(Default)]
struct Distinct {
    words: Vec<String>,
    known: HashSet<String>,
}

impl Distinct {
    fn push(&mut self, word: &str) {
        if !self.known.contains(word) {
            self.known.insert(word.to_owned());
            self.words.push(word.to_owned());
        }
    }
}

/// Calls `take` with each word of a file as it is written, in normalized form, and its weight.
pub(super) fn each_of_file(path: &VfsPath, content: &[u8], mut take: impl FnMut(&str, &str, u32)) {
    each(path.as_str(), |range, word| take(&path.as_str()[range], word, PATH_WEIGHT));
    if let Some(text) = text_of(content) {
        each(&text, |range, word| take(&text[range], word, 1));
    }
}

/// Returns the indexed text of some content, or `None` if it is binary.
fn text_of(content: &[u8]) -> Option<Cow<'_, str>> {
    (!is_binary(content)).then(|| String::from_utf8_lossy(&content[..content.len().min(CONTENT_BYTES_MAX)]))
}

/// Calls `take` with each word of a text, in normalized form, and its position.
pub(super) fn each(text: &str, mut take: impl FnMut(Range<usize>, &str)) {
    let mut compared = String::new();
    each_written(text, |range| {
        compare(&text[range.clone()], &mut compared);
        if is_kept(&compared) {
            take(range, &compared);
        }
    });
}

/// Returns whether a normalized word is kept.
fn is_kept(compared: &str) -> bool {
    !compared.is_empty() && compared.len() <= WORD_BYTES_MAX
}

/// Calls `taken` with the position of everything in a text that may be a word.
fn each_written(text: &str, mut taken: impl FnMut(Range<usize>)) {
    // The previous character of a script written without spaces. Together with the next one it makes a pair.
    let mut neighbour: Option<Range<usize>> = None;
    let mut passed = 0;
    for (start, word) in text.unicode_word_indices() {
        // A word is cut, folded, counted and kept, which takes as long as a plain search of this many bytes.
        work::advance(16 * (start + word.len() - passed));
        passed = start + word.len();
        let range = start..start + word.len();
        if is_single(word) || word.chars().all(is_katakana) {
            for (at, character) in word.char_indices() {
                let single = start + at..start + at + character.len_utf8();
                taken(single.clone());
                if let Some(before) = neighbour.replace(single.clone()).filter(|before| before.end == single.start) {
                    taken(before.start..single.end);
                }
            }
            continue;
        }
        taken(range);
        if word.chars().all(is_hangul) {
            // A word with attached particles, which Korean writes without a space.
            let ends = word.char_indices().skip(2).map(|(at, _)| at).chain([word.len()]);
            let pairs = word.char_indices().map(|(at, _)| at).zip(ends).map(|(from, to)| start + from..start + to);
            pairs.filter(|pair| pair.len() < word.len()).for_each(&mut taken);
        } else {
            let mut rest = parts(word).peekable();
            let is_whole = rest.peek().is_none_or(|part| part.len() == word.len());
            if !is_whole {
                rest.for_each(|part| taken(start + part.start..start + part.end));
            }
        }
    }
}

/// Returns whether a word is one character of a script written without spaces. Words of other scripts come whole.
fn is_single(word: &str) -> bool {
    !word.is_ascii() && word.chars().nth(1).is_none()
}

/// Returns whether a character is Katakana, the one script without spaces whose words come whole.
fn is_katakana(character: char) -> bool {
    matches!(character, '\u{30A0}'..='\u{30FF}' | '\u{31F0}'..='\u{31FF}' | '\u{FF66}'..='\u{FF9F}')
}

fn is_hangul(character: char) -> bool {
    matches!(character, '\u{AC00}'..='\u{D7A3}')
}

/// Splits an identifier at punctuation and before a capital that starts a part, as in `userId`, `HTTPServer` and `Base64Encoder`.
/// Cost: one pass, however many parts.
fn parts(word: &str) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + word[at..].find(is_letter)?;
        let mut before: Option<char> = None;
        at = word.len();
        for (index, character) in word[start..].char_indices() {
            let here = start + index;
            let next = || word[here + character.len_utf8()..].chars().next();
            let starts_part = |before: char| {
                let follows = before.is_uppercase() || before.is_numeric();
                character.is_uppercase() && (before.is_lowercase() || (follows && next().is_some_and(char::is_lowercase)))
            };
            if !is_letter(character) || before.is_some_and(starts_part) {
                at = here;
                break;
            }
            before = Some(character);
        }
        Some(start..at)
    })
}

/// Returns whether a character belongs to a part. Apostrophes and combining marks do.
fn is_letter(character: char) -> bool {
    character.is_alphanumeric() || is_apostrophe(character) || unicode_normalization::char::is_combining_mark(character)
}

fn is_apostrophe(character: char) -> bool {
    matches!(character, '\'' | '’')
}

/// Returns a word in lower case and without accents.
pub(super) fn folded(word: &str) -> String {
    let mut folded = String::new();
    fold(word, &mut folded);
    folded
}

/// Writes the normalized form of a word.
fn compare(word: &str, compared: &mut String) {
    fold(word, compared);
    let is_english = |byte: u8| byte.is_ascii_lowercase() || byte == b'\'';
    if compared.len() >= STEMMED_BYTES_MIN && compared.len() <= WORD_BYTES_MAX && compared.bytes().all(is_english) {
        let stem = ENGLISH.stem(compared).into_owned();
        *compared = stem;
        compared.retain(|character| character != '\'');
    }
}

/// Writes a word in lower case and without accents.
fn fold(word: &str, compared: &mut String) {
    compared.clear();
    if word.is_ascii() {
        compared.extend(word.chars().map(|character| character.to_ascii_lowercase()));
    } else {
        let plain = word.nfkd().filter(|character| !is_accent(*character));
        let plain = plain.map(|character| if is_apostrophe(character) { '\'' } else { character });
        for character in plain.flat_map(char::to_lowercase).nfc() {
            match character {
                'ß' => compared.push_str("ss"),
                'ς' => compared.push('σ'),
                other => compared.push(other),
            }
        }
    }
}

/// Returns whether a mark is optional in writing: accents in Latin, Greek and Cyrillic, vowel marks and signs in Arabic and
/// Hebrew.
fn is_accent(character: char) -> bool {
    matches!(
        character,
        '\u{300}'..='\u{36F}' | '\u{591}'..='\u{5C7}' | '\u{640}' | '\u{64B}'..='\u{65F}' | '\u{670}' | '\u{6D6}'..='\u{6ED}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(text: &str) -> Vec<String> {
        let mut words = Vec::new();
        each(text, |range, word| {
            assert!(text.get(range).is_some(), "a word of {text:?} has a wrong range");
            words.push(word.to_owned());
        });
        words
    }

    #[test]
    fn words_are_compared_by_stems_without_case_and_accents() {
        let table: [(&str, &[&str]); 12] = [
            ("", &[]),
            ("  -- !? ", &[]),
            ("Memories of the memory", &["memori", "of", "the", "memori"]),
            ("Café, naïve Ünïcode", &["cafe", "naiv", "unicod"]),
            ("the user's, users’ don't", &["the", "user", "user", "dont"]),
            ("3.14 and v2", &["3.14", "3", "14", "and", "v2"]),
            ("Ёлка ёлка", &["елка", "елка"]),
            ("ＦＵＬＬ ﬁne", &["full", "fine"]),
            ("Straße STRASSE", &["strass", "strass"]),
            ("ΛΟΓΟΣ λόγος", &["λογοσ", "λογοσ"]),
            ("كِتَابٌ كتاب", &["كتاب", "كتاب"]),
            ("שָׁלוֹם שלום", &["שלום", "שלום"]),
        ];
        for (text, wanted) in table {
            assert_eq!(words(text), wanted, "{text:?}");
        }
    }

    #[test]
    fn identifier_is_indexed_whole_and_in_parts() {
        let table: [(&str, &[&str]); 11] = [
            ("Base64Encoder", &["base64encoder", "base64", "encod"]),
            ("OAuth2Token", &["oauth2token", "o", "auth2", "token"]),
            ("iPhone15Pro", &["iphone15pro", "i", "phone15", "pro"]),
            ("A1B2C3", &["a1b2c3"]),
            ("userId", &["userid", "user", "id"]),
            ("user_id", &["user_id", "user", "id"]),
            ("HTTPServer2", &["httpserver2", "http", "server2"]),
            ("config.rs", &["config.rs", "config", "rs"]),
            ("__init__", &["__init__", "init"]),
            ("IDs", &["id", "i", "ds"]),
            ("plain", &["plain"]),
        ];
        for (text, wanted) in table {
            assert_eq!(words(text), wanted, "{text:?}");
        }
    }

    #[test]
    fn scripts_without_spaces_yield_characters_and_pairs() {
        assert_eq!(words("東京都 は"), ["東", "京", "東京", "都", "京都", "は"]);
        assert_eq!(words("서울 날씨"), ["서울", "날씨"]);
        assert_eq!(words("서울에서"), ["서울에서", "서울", "울에", "에서"]);
        assert_eq!(words("データ"), ["デ", "ー", "デー", "タ", "ータ"]);
    }

    #[test]
    fn file_words_include_path_and_content() {
        let path = crate::path::VfsPathBuf::parse("/notes/deploy.md").expect("a legal path");
        let words = FileWords::of(&path, b"Deploy on Fridays.\nNever deploy.\n");
        assert_eq!(words.frequency("deploy"), PATH_WEIGHT + 2);
        assert_eq!(words.frequency("friday"), 1);
        assert_eq!(words.frequency("note"), PATH_WEIGHT);
        assert_eq!(words.frequency("absent"), 0);
        assert_eq!(words.length, 9);
        let binary = FileWords::of(&path, b"deploy\0deploy");
        assert_eq!((binary.frequency("deploy"), binary.length), (PATH_WEIGHT, 4));
    }

    #[test]
    fn query_drops_function_words() {
        assert_eq!(words_of_query("Where is my car?"), ["car"]);
        assert_eq!(words_of_query("to be, or not to be"), ["to", "be", "or", "not"]);
        assert_eq!(words_of_query("the theory of that"), ["theori"]);
        assert_eq!(words_of_query("John Doe"), ["john", "doe"]);
        assert_eq!(words_of_query("canned food"), ["can", "food"]);
        assert_eq!(words_of_query("grandma's will"), ["grandma", "will"]);
        assert_eq!(words_of_query("Who is in the US and does IT"), ["us", "it"]);
    }

    /// Regression: splitting a megabyte of one identifier took minutes when the time was quadratic in its length.
    #[test]
    fn long_identifier_is_split_in_linear_time() {
        let name = "aB".repeat(CONTENT_BYTES_MAX / 2);
        assert_eq!(parts(&name).count(), CONTENT_BYTES_MAX / 2 + 1);
        let words = words_of_query(&(0..50_000).map(|number| format!("w{number} ")).collect::<String>());
        assert_eq!(words.len(), 50_000);
    }

    #[test]
    fn overlong_words_are_dropped() {
        assert_eq!(words(&"x".repeat(WORD_BYTES_MAX + 1)), [""; 0]);
        assert_eq!(words(&"x".repeat(WORD_BYTES_MAX)).len(), 1);
    }

    proptest! {
        #[test]
        fn file_words_agree_with_each_of_file(content in proptest::collection::vec(any::<u8>(), 0..400), text in "\\PC{0,80}") {
            let words = FileWords::of(VfsPath::ROOT, &content);
            prop_assert!(words.counts.is_sorted());
            let (mut length, mut counts) = (0, std::collections::BTreeMap::new());
            each_of_file(VfsPath::ROOT, &content, |_, word, weight| {
                length += 1;
                *counts.entry(word.to_owned()).or_insert(0) += weight;
            });
            prop_assert_eq!((words.length, &words.counts), (length, &counts.into_iter().collect::<Vec<_>>()));
            prop_assert!(words.counts.iter().all(|(word, count)| !word.is_empty() && word.len() <= WORD_BYTES_MAX && *count > 0));
            let of_text = FileWords::of(VfsPath::ROOT, text.as_bytes());
            for word in words_of_query(&text) {
                prop_assert!(of_text.frequency(&word) > 0, "{:?} is not found by its own words", text);
            }
        }
    }
}
