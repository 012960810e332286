//! Ranks files by the words of a query, and finds the lines that show why.
//!
//! The score of a file is [BM25](https://en.wikipedia.org/wiki/Okapi_BM25). Each word of the query counts more the rarer it is
//! among the files and the more often it occurs in the file (with diminishing returns), and less the longer the file is.

use super::near::Spelled;
use super::words;
use crate::error::{Error, Result};
use crate::ops::{Corpus, NearWord, SearchHit, SearchOptions, SearchResult, Snippet, Spelling, Truncation, TruncationReason, Version};
use crate::path::{VfsPath, VfsPathBuf};
use jiff::Timestamp;
use std::collections::HashMap;
use std::ops::Range;

/// BM25's k1: how slowly the weight of a repeated word saturates.
const SATURATION: f64 = 1.2;

/// BM25's b: how much the length of a file matters, from 0 to 1.
const LENGTH_WEIGHT: f64 = 0.75;

/// The most different words in a query.
pub const QUERY_WORDS_MAX: usize = 64;

/// The most words of the files in which a search looks for words that are spelled nearly like those of the query: some 24 MB of text.
pub const NEAR_WORDS_MAX: u64 = 4_000_000;

/// The most files in which a search looks for words that are spelled nearly like those of the query.
pub const NEAR_FILES_MAX: u64 = 50_000;

/// The most bytes that a search reads for words that are spelled nearly like those of the query. Binary files count, of each file its first
/// MiB.
pub const NEAR_BYTES_MAX: u64 = 256 << 20;

/// The most bytes of a line that a snippet shows.
const SNIPPET_BYTES_MAX: usize = 240;

/// How many bytes a shortened snippet shows before its first word.
const SNIPPET_BYTES_BEFORE: usize = 60;

/// The words of a query, indexed for lookup.
#[derive(Debug, Clone)]
pub struct Query {
    words: Vec<String>,
    numbers: HashMap<String, usize>,
    /// The words that can be spelled nearly, with their numbers.
    spelled: Vec<(usize, Spelled)>,
    /// Those of them that also match words that are spelled nearly like them.
    near: Vec<(usize, Spelled)>,
}

/// Whether a search also looks for words that are spelled nearly like those that no file contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Nearly {
    /// No: every word was found, none can be misspelled, or the options ask for the exact spelling.
    Needless,
    /// No: there are more files or words than [`NEAR_FILES_MAX`] or [`NEAR_WORDS_MAX`]. The result
    /// [says so](SearchResult::is_near_omitted).
    TooLarge,
    /// Yes, with these options.
    Asked(Box<SearchOptions>),
}

/// The words of a text that were compared with a query, each as it is written with the number of the word that it is nearly.
type Compared = HashMap<String, Option<usize>>;

/// The occurrences of a query's words in one file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Features {
    /// The number of words in the file.
    pub words: u32,
    /// The number of occurrences of each word of the query.
    pub frequencies: Vec<u32>,
}

impl Query {
    /// Takes the words of the options.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for a query without a word or with more than
    /// [`QUERY_WORDS_MAX`], and for an offset of [`SearchOptions::RANK_MAX`] or more.
    pub fn new(options: &SearchOptions) -> Result<Self> {
        let words = words::words_of_query(&options.query);
        if words.is_empty() {
            let message = "the query has no searchable word (punctuation and words over 64 bytes do not count); \
                describe in words what to find, use grep for an exact text, or glob to list files";
            return Err(Error::invalid_argument(message));
        }
        if words.len() > QUERY_WORDS_MAX {
            let message = format!("the query has {} different words; keep at most the {QUERY_WORDS_MAX} most specific ones", words.len());
            return Err(Error::invalid_argument(message));
        }
        if options.offset >= SearchOptions::RANK_MAX {
            let message = format!("the offset is past rank {}; use more precise words", SearchOptions::RANK_MAX);
            return Err(Error::invalid_argument(message));
        }
        let numbers: HashMap<String, usize> = words.iter().cloned().enumerate().map(|(number, word)| (word, number)).collect();
        let mut spelled: Vec<(usize, Spelled)> = Vec::new();
        for (word, written) in words::spelled(&options.query) {
            if let (Some(number), Some(word)) = (numbers.get(&word), Spelled::new(&written))
                && spelled.iter().all(|(known, _)| known != number)
            {
                spelled.push((*number, word));
            }
        }
        let near = match &options.spelling {
            Spelling::Near(near) => spelled.iter().filter(|(number, _)| near.contains(&words[*number])).cloned().collect(),
            Spelling::Lenient | Spelling::Exact => Vec::new(),
        };
        Ok(Self { words, numbers, spelled, near })
    }

    /// Returns whether to look for words that are spelled nearly like those that no file contains. `corpus` counts the files of the exact
    /// search.
    pub fn nearly(&self, options: &SearchOptions, corpus: &Corpus) -> Nearly {
        let corpus = options.weighed_by(corpus);
        if options.spelling != Spelling::Lenient || corpus.files == 0 {
            return Nearly::Needless;
        }
        let is_unknown = |number: usize| corpus.files_with.get(number).is_none_or(|files| *files == 0);
        let unknown: Vec<String> =
            self.spelled.iter().filter(|(number, _)| is_unknown(*number)).map(|(number, _)| self.words[*number].clone()).collect();
        if unknown.is_empty() {
            return Nearly::Needless;
        }
        if corpus.words > NEAR_WORDS_MAX || corpus.files > NEAR_FILES_MAX {
            return Nearly::TooLarge;
        }
        Nearly::Asked(Box::new(options.clone().with_spelling(Spelling::Near(unknown))))
    }

    /// Says in a result which words were found in place of those that no file contains, from its paths and snippets. Where a part of the
    /// tree was not looked through for them, a word without a find is left out.
    pub fn tell_near(&self, result: &mut SearchResult) {
        let mut near: Vec<NearWord> = Vec::with_capacity(self.near.len());
        for (number, spelled) in &self.near {
            let mut word = NearWord::new(self.words[*number].clone(), spelled.text());
            let paths = result.hits.iter().map(|hit| hit.path.as_str());
            let texts = result.hits.iter().flat_map(|hit| hit.snippets.iter().map(|snippet| snippet.text.as_str()));
            let mut compared = Compared::new();
            for text in paths.chain(texts) {
                words::each(text, |range, normalized| {
                    let written = &text[range];
                    if word.found.len() < NearWord::FOUND_MAX && self.number(written, normalized, &mut compared) == Some(*number) {
                        let found = words::folded(written);
                        if !word.found.contains(&found) {
                            word.found.push(found);
                        }
                    }
                });
            }
            near.push(word);
        }
        near.retain(|word| !result.is_near_omitted || !word.found.is_empty());
        result.near = near;
    }

    /// Returns the number of the word of the query that a word of a text is, or is nearly.
    fn number(&self, written: &str, word: &str, compared: &mut Compared) -> Option<usize> {
        if let Some(number) = self.numbers.get(word) {
            return Some(*number);
        }
        if self.near.is_empty() {
            return None;
        }
        if let Some(known) = compared.get(written) {
            return *known;
        }
        let folded = words::folded(written);
        let distances = self.near.iter().filter_map(|(number, near)| near.distance(&folded).map(|distance| (distance, *number)));
        let number = distances.min().map(|(_, number)| number);
        compared.insert(written.to_owned(), number);
        number
    }

    /// Returns the words in their normalized form, each once.
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// Counts the words of the query in a file. `path` is its path within its own tree.
    pub fn features(&self, path: &VfsPath, content: &[u8]) -> Features {
        let mut features = Features { words: 0, frequencies: vec![0; self.words.len()] };
        let mut compared = Compared::new();
        words::each_of_file(path, content, |written, word, weight| {
            features.words = features.words.saturating_add(1);
            if let Some(number) = self.number(written, word, &mut compared) {
                let frequency = &mut features.frequencies[number];
                *frequency = frequency.saturating_add(weight);
            }
        });
        features
    }

    /// Returns the lines with the most significant words of the query, in the order of the file.
    pub fn snippets(&self, content: &[u8], corpus: &Corpus, snippets_max: usize) -> Vec<Snippet> {
        if crate::file::is_binary(content) {
            return Vec::new();
        }
        let weights: Vec<f64> = corpus.files_with.iter().map(|files_with| rarity(corpus.files, *files_with)).collect();
        let content = &content[..content.len().min(words::CONTENT_BYTES_MAX)];
        let mut found: Vec<(f64, usize, &[u8])> = Vec::new();
        let mut compared = Compared::new();
        for (index, line) in content.split(|byte| *byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let mut held = vec![false; self.words.len()];
            self.each_in(&String::from_utf8_lossy(line), &mut compared, |_, number| held[number] = true);
            let weight: f64 = held.iter().zip(&weights).filter(|(held, _)| **held).map(|(_, weight)| weight).sum();
            if weight > 0.0 {
                found.push((weight, index + 1, line));
            }
        }
        // The sort is stable, so the first of equally good lines wins.
        found.sort_by(|(one, ..), (other, ..)| other.total_cmp(one));
        found.truncate(snippets_max);
        found.sort_unstable_by_key(|(_, line, _)| *line);
        found.into_iter().map(|(_, number, line)| self.snippet(number, &String::from_utf8_lossy(line), &weights)).collect()
    }

    fn snippet(&self, number: usize, line: &str, weights: &[f64]) -> Snippet {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        // The first occurrence of the most significant word.
        let mut telling: Option<(f64, Range<usize>)> = None;
        self.each_in(line, &mut Compared::new(), |range, word| {
            let weight = weights.get(word).copied().unwrap_or(0.0);
            if telling.as_ref().is_none_or(|(most, _)| weight > *most) {
                telling = Some((weight, range.clone()));
            }
            ranges.push(range);
        });
        ranges.sort_unstable_by_key(|range| (range.start, std::cmp::Reverse(range.end)));
        // A name and its parts overlap; keep the longest.
        let mut end = 0;
        ranges.retain(|range| {
            let is_apart = range.start >= end;
            end = if is_apart { range.end } else { end };
            is_apart
        });
        let shown = shown(line, telling.map(|(_, range)| range).as_ref());
        ranges.retain(|range| range.start >= shown.start && range.end <= shown.end);
        ranges.iter_mut().for_each(|range| *range = range.start - shown.start..range.end - shown.start);
        Snippet::new(number, &line[shown], ranges)
    }

    /// Calls `take` with the position and number of each query word in a text.
    fn each_in(&self, text: &str, compared: &mut Compared, mut take: impl FnMut(Range<usize>, usize)) {
        words::each(text, |range, word| {
            if let Some(number) = self.number(&text[range.clone()], word, compared) {
                take(range, number);
            }
        });
    }
}

impl Features {
    /// Returns whether the file contains any word of the query.
    pub fn has_any(&self) -> bool {
        self.frequencies.iter().any(|frequency| *frequency > 0)
    }

    /// Adds the file to the statistics.
    pub fn count_in(&self, corpus: &mut Corpus) {
        corpus.files += 1;
        corpus.words += u64::from(self.words);
        corpus.files_with.iter_mut().zip(&self.frequencies).for_each(|(files, frequency)| *files += u64::from(*frequency > 0));
    }
}

/// Returns the part of a line that a snippet shows: all of a short line, the surroundings of a word in a long one.
fn shown(line: &str, word: Option<&Range<usize>>) -> Range<usize> {
    if line.len() <= SNIPPET_BYTES_MAX {
        return 0..line.len();
    }
    let start = line.floor_char_boundary(word.map_or(0, |range| range.start.saturating_sub(SNIPPET_BYTES_BEFORE)));
    start..line.floor_char_boundary(start + SNIPPET_BYTES_MAX)
}

/// Returns the weight of a word that `files_with` of all files contain (BM25's inverse document frequency). Always over 0.
fn rarity(files: u64, files_with: u64) -> f64 {
    let (files, files_with) = (files.max(files_with) as f64, files_with as f64);
    ((files - files_with + 0.5) / (files_with + 0.5)).ln_1p()
}

/// Returns the score of a file: over 0 if it contains a word of the query.
pub fn score(corpus: &Corpus, words: u32, frequencies: &[u32]) -> f64 {
    let mean = (corpus.words as f64 / corpus.files.max(1) as f64).max(1.0);
    let length = SATURATION * (1.0 - LENGTH_WEIGHT + LENGTH_WEIGHT * f64::from(words) / mean);
    let of_word = |(frequency, files_with): (&u32, &u64)| {
        let frequency = f64::from(*frequency);
        rarity(corpus.files, *files_with) * frequency * (SATURATION + 1.0) / (frequency + length)
    };
    frequencies.iter().zip(&corpus.files_with).map(of_word).sum()
}

/// Returns how much of a query a file covers, from 0 to 1: the part of the total rarity of its words that the file contains. A word that no
/// file contains counts too.
pub fn coverage(corpus: &Corpus, frequencies: &[u32]) -> f64 {
    let weights = corpus.files_with.iter().map(|files_with| rarity(corpus.files, *files_with));
    let (mut held, mut total) = (0.0, 0.0);
    for (weight, frequency) in weights.zip(frequencies) {
        total += weight;
        held += if *frequency > 0 { weight } else { 0.0 };
    }
    if total > 0.0 { held / total } else { 0.0 }
}

/// A file that contains words of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The path of the file.
    pub path: VfsPathBuf,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its version.
    pub version: Version,
    /// When its content was last modified, if the tier knows.
    pub modified_at: Option<Timestamp>,
    /// The occurrences of the query's words.
    pub features: Features,
}

/// Creates an unscored hit with the given counts.
pub fn hit(
    path: VfsPathBuf,
    size_bytes: u64,
    version: Version,
    modified_at: Option<Timestamp>,
    frequencies: Vec<u32>,
    snippets: Vec<Snippet>,
) -> SearchHit {
    SearchHit { path, score: 0.0, size_bytes, version, modified_at, words: 0, frequencies, snippets }
}

/// Returns a snippet that shows the start of a line.
pub fn snippet_of(number: usize, line: &str) -> Snippet {
    Snippet::new(number, &line[shown(line, None)], Vec::new())
}

/// Ranks files. Returns a result up to the limit, without snippets.
pub fn ranked(query: &Query, options: &SearchOptions, corpus: Corpus, found: Vec<Found>) -> SearchResult {
    let hits = found.into_iter().map(|found| SearchHit {
        score: 0.0,
        path: found.path,
        size_bytes: found.size_bytes,
        version: found.version,
        modified_at: found.modified_at,
        words: found.features.words,
        frequencies: found.features.frequencies,
        snippets: Vec::new(),
    });
    let mut result = SearchResult { words: query.words.clone(), hits: hits.collect(), corpus, ..SearchResult::default() };
    rank(&mut result, options);
    result
}

/// Creates the result of a search that finds nothing.
///
/// # Errors
/// As [`Query::new`].
pub fn nothing(options: &SearchOptions) -> Result<SearchResult> {
    let query = Query::new(options)?;
    Ok(ranked(&query, options, Corpus::new(query.words.len()), Vec::new()))
}

/// Scores the hits of a result by the statistics of its corpus and of the options, sorts them, and truncates them at the limit.
pub fn rank(result: &mut SearchResult, options: &SearchOptions) {
    let corpus = options.weighed_by(&result.corpus);
    result.hits.iter_mut().for_each(|hit| hit.score = score(&corpus, hit.words, &hit.frequencies));
    order(&mut result.hits);
    cut(result, options);
}

/// Sorts hits: best first, ties by path.
pub fn order(hits: &mut [SearchHit]) {
    hits.sort_unstable_by(|one, other| other.score.total_cmp(&one.score).then_with(|| one.path.cmp(&other.path)));
}

/// Cuts a sorted result to the offset and the limit. A result that was truncated before stays so.
pub fn cut(result: &mut SearchResult, options: &SearchOptions) {
    let end = options.end_of_known();
    if result.hits.len() > end || result.truncated.is_some() {
        let cursor = if end < SearchOptions::RANK_MAX { end.to_string() } else { String::new() };
        result.truncated = Some(Truncation { reason: TruncationReason::Limit, cursor });
    }
    result.hits.truncate(end);
    result.hits.drain(..options.offset.min(result.hits.len()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus(files: u64, words: u64, files_with: &[u64]) -> Corpus {
        let mut corpus = Corpus::new(files_with.len());
        (corpus.files, corpus.words, corpus.files_with) = (files, words, files_with.to_vec());
        corpus
    }

    /// By hand, with k1 = 1.2 and b = 0.75: ln(1 + 7.5 / 3.5) * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 8 / 10)).
    #[test]
    fn score_equals_bm25_computed_by_hand() {
        let found = score(&corpus(10, 100, &[3]), 8, &[2]);
        assert!((found - 1.668_405).abs() < 1e-6, "{found}");
    }

    #[test]
    fn coverage_is_the_part_of_the_rarity_that_a_file_holds() {
        let counts = corpus(10, 100, &[1, 9, 0]);
        assert_eq!((coverage(&counts, &[1, 5, 1]), coverage(&counts, &[0, 0, 0])), (1.0, 0.0));
        let [rare, common, unknown] = [[1, 0, 0], [0, 1, 0], [0, 0, 1]].map(|held| coverage(&counts, &held));
        assert!(unknown > rare && rare > common && common > 0.0, "{rare} {common} {unknown}");
        assert!((rare + common + unknown - 1.0).abs() < 1e-9);
        assert_eq!(coverage(&corpus(0, 0, &[]), &[]), 0.0);
    }

    #[test]
    fn file_with_query_word_scores_above_zero() {
        for (files, files_with) in [(1, 1), (10, 10), (0, 0), (3, 9)] {
            let found = score(&corpus(files, 100, &[files_with]), u32::MAX, &[1]);
            assert!(found > 0.0 && found.is_finite(), "{found}");
        }
        assert_eq!(score(&corpus(10, 100, &[3]), 8, &[0]), 0.0);
    }

    #[test]
    fn snippet_of_long_line_surrounds_query_word() {
        let query = Query::new(&SearchOptions::new("needle")).expect("a word");
        let line = format!("{}needle {}", "é ".repeat(500), "ü ".repeat(500));
        let snippets = query.snippets(line.as_bytes(), &corpus(1, 10, &[1]), 1);
        let snippet = &snippets[0];
        assert!(snippet.text.len() <= SNIPPET_BYTES_MAX && snippet.text.starts_with('é') | snippet.text.starts_with(' '), "{snippet:?}");
        assert_eq!(&snippet.text[snippet.ranges[0].clone()], "needle");
    }

    #[test]
    fn snippet_of_long_line_surrounds_rarest_word() {
        let query = Query::new(&SearchOptions::new("often needle")).expect("words");
        let line = format!("often {} needle {}", "x ".repeat(500), "x ".repeat(500));
        let snippets = query.snippets(line.as_bytes(), &corpus(9, 10, &[9, 1]), 1);
        assert!(snippets[0].text.contains("needle") && !snippets[0].text.contains("often"), "{snippets:?}");
    }

    #[test]
    fn near_spellings_are_asked_for_within_the_bounds() {
        let lenient = SearchOptions::new("pagnation");
        let query = Query::new(&lenient).expect("a word");
        let is_asked = |options: &SearchOptions, files, words, files_with| match query.nearly(options, &corpus(files, words, &[files_with]))
        {
            Nearly::Needless => None,
            Nearly::TooLarge => Some(false),
            Nearly::Asked(asked) => Some(asked.spelling == Spelling::Near(query.words().to_vec())),
        };
        for (files, words, files_with, expected) in [
            (0, 0, 0, None),
            (1, 1, 1, None),
            (NEAR_FILES_MAX + 1, NEAR_WORDS_MAX + 1, 1, None),
            (1, 1, 0, Some(true)),
            (NEAR_FILES_MAX, NEAR_WORDS_MAX, 0, Some(true)),
            (NEAR_FILES_MAX + 1, 1, 0, Some(false)),
            (1, NEAR_WORDS_MAX + 1, 0, Some(false)),
        ] {
            assert_eq!(is_asked(&lenient, files, words, files_with), expected, "{files} files, {words} words, {files_with} with it");
            assert_eq!(is_asked(&lenient.clone().with_spelling(Spelling::Exact), files, words, files_with), None);
        }
        // The counts of other trees come from the caller and may be anything.
        let mut elsewhere = lenient.clone();
        elsewhere.merge = Some(crate::ops::SearchMerge::new(corpus(u64::MAX, u64::MAX, &[0])));
        assert_eq!(is_asked(&elsewhere, 1, 1, 0), Some(false));
    }

    #[test]
    fn query_over_word_or_rank_limit_is_rejected() {
        let many: String = (0..1_000).map(|number| format!("w{number} ")).collect();
        let refused = Query::new(&SearchOptions::new(many)).expect_err("too many words").to_string();
        assert!(refused.contains("1000 different words; keep at most the 64"), "{refused}");
        let far = SearchOptions::new("w").with_offset(usize::MAX);
        assert!(Query::new(&far).is_err());
    }
}
