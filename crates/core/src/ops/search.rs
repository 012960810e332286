//! Ranking files by relevance to a query.

use super::{Failure, GrepOptions, OnFailure, SearchScope, Truncation, Version};
use crate::path::VfsPathBuf;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Options of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SearchOptions {
    /// The words to search for. Files with any of them are found; files with more of them, and with rarer ones, rank
    /// higher.
    pub query: String,
    /// Finds only files that match one of these globs, as [`GrepOptions::include`] does.
    pub include: Vec<String>,
    /// Skips files that match one of these globs, and everything below matching directories.
    pub exclude: Vec<String>,
    /// Finds only files whose content changed at this time or later.
    pub modified_since: Option<Timestamp>,
    /// Finds only files whose content changed before this time.
    pub modified_before: Option<Timestamp>,
    /// The most files returned. Default 10, and never beyond rank [`SearchOptions::RANK_MAX`].
    pub limit: usize,
    /// How many of the best files to skip; the cursor of a truncated result.
    pub offset: usize,
    /// The most snippets returned per file. Default 3.
    pub snippets_max: usize,
    /// Whether words that are spelled nearly like one of the query are found too. Default [`Spelling::Lenient`].
    pub spelling: Spelling,
    /// Set if the caller merges the result with those of other trees. A backend may ignore it; see [`SearchMerge`].
    pub merge: Option<SearchMerge>,
    /// The scope of the search and its exclusions.
    pub scope: SearchScope,
}

impl SearchOptions {
    /// The last rank that is returned. Lower ranks are rarely viewed, and each costs memory on every tier that is
    /// searched.
    pub const RANK_MAX: usize = 10_000;

    /// Finds up to 10 files by words.
    pub fn new(query: impl Into<String>) -> Self {
        Self {
            query: query.into(),
            include: Vec::new(),
            exclude: Vec::new(),
            modified_since: None,
            modified_before: None,
            limit: 10,
            offset: 0,
            snippets_max: 3,
            spelling: Spelling::Lenient,
            merge: None,
            scope: SearchScope::default(),
        }
    }

    /// Adds a glob of files to find.
    #[must_use]
    pub fn with_include(mut self, glob: impl Into<String>) -> Self {
        self.include.push(glob.into());
        self
    }

    /// Adds a glob of files not to find.
    #[must_use]
    pub fn with_exclude(mut self, glob: impl Into<String>) -> Self {
        self.exclude.push(glob.into());
        self
    }

    /// Finds only files whose content changed at a time or later.
    #[must_use]
    pub fn with_modified_since(mut self, time: Timestamp) -> Self {
        self.modified_since = Some(time);
        self
    }

    /// Finds only files whose content changed before a time.
    #[must_use]
    pub fn with_modified_before(mut self, time: Timestamp) -> Self {
        self.modified_before = Some(time);
        self
    }

    /// Sets the most files returned.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Skips some of the best files.
    #[must_use]
    pub fn with_offset(mut self, offset: usize) -> Self {
        self.offset = offset;
        self
    }

    /// Sets the most snippets returned per file.
    #[must_use]
    pub fn with_snippets_max(mut self, snippets_max: usize) -> Self {
        self.snippets_max = snippets_max;
        self
    }

    /// Sets whether words that are spelled nearly like one of the query are found too.
    #[must_use]
    pub fn with_spelling(mut self, spelling: Spelling) -> Self {
        self.spelling = spelling;
        self
    }

    /// Sets whether names that start with a dot are included.
    #[must_use]
    pub fn with_hidden(mut self, hidden: bool) -> Self {
        self.scope.hidden = hidden;
        self
    }

    /// Sets whether directories whose names start with a dot are entered for names that do not
    /// ([`SearchScope::hidden_directories`]).
    #[must_use]
    pub fn with_hidden_directories(mut self, hidden_directories: bool) -> Self {
        self.scope.hidden_directories = hidden_directories;
        self
    }

    /// Sets whether files excluded by ignore files are included.
    #[must_use]
    pub fn with_ignored(mut self, ignored: bool) -> Self {
        self.scope.ignored = ignored;
        self
    }

    /// Sets what happens when a mount fails.
    #[must_use]
    pub fn with_on_failure(mut self, on_failure: OnFailure) -> Self {
        self.scope.on_failure = on_failure;
        self
    }

    /// Returns the rank after the last file to return.
    pub fn end(&self) -> usize {
        self.offset.saturating_add(self.limit).min(Self::RANK_MAX)
    }

    /// Returns the rank after the last file to return if all of them are known, as when all files were read anyway.
    pub fn end_of_known(&self) -> usize {
        if self.merge.as_ref().is_some_and(|merge| merge.wants_spare) { Self::RANK_MAX } else { self.end() }
    }

    /// Returns the counts that weigh the words, given those of this tree.
    pub fn weighed_by(&self, here: &Corpus) -> Corpus {
        let mut corpus = here.clone();
        self.merge.iter().for_each(|merge| corpus.add(&merge.elsewhere));
        corpus
    }

    /// Returns whether a modification time is within the requested range. Files without a time match only if no range
    /// is requested.
    pub fn admits_time(&self, modified_at: Option<Timestamp>) -> bool {
        let since = self.modified_since.is_none_or(|since| modified_at.is_some_and(|at| at >= since));
        since && self.modified_before.is_none_or(|before| modified_at.is_some_and(|at| at < before))
    }

    /// Returns the grep that selects the same files.
    pub fn selection(&self) -> GrepOptions {
        let mut grep = GrepOptions::new("");
        grep.include.clone_from(&self.include);
        grep.exclude.clone_from(&self.exclude);
        grep.scope = self.scope.clone();
        grep
    }
}

/// How exactly the words of a query are spelled.
///
/// A word of four to seven letters is spelled nearly like another if one letter is missing, added or different, or two neighbours are
/// exchanged; a longer one if that is so twice. Words with digits, and shorter ones, are found as they are written. Endings, case and
/// accents never count.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Spelling {
    /// A word that no file contains also finds the words that are spelled nearly like it. `near` of the result says what was found. Such a
    /// search reads every selected file: up to 50,000 files, 256 MiB and 4 million words. Beyond them words are found as they are written,
    /// and `is_near_omitted` of the result says so.
    #[default]
    Lenient,
    /// Words are found as they are written.
    Exact,
    /// These words of the query, in normalized form, also find words that are spelled nearly like them. A composite asks this of its
    /// mounts, once it knows the words that none of them contains. The same bounds hold.
    Near(Vec<String>),
}

/// A word of a query that no file contains, and what was found in its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct NearWord {
    /// The word in normalized form, as in `words` of the result.
    pub word: String,
    /// The word as the query spells it, in lower case.
    pub spelled: String,
    /// Words that were found instead, in lower case: those in the paths and the snippets of the hits, at most
    /// [8](Self::FOUND_MAX).
    pub found: Vec<String>,
}

impl NearWord {
    /// The most words in [`found`](Self::found).
    pub const FOUND_MAX: usize = 8;

    /// A word in whose place nothing was found yet.
    pub fn new(word: impl Into<String>, spelled: impl Into<String>) -> Self {
        Self { word: word.into(), spelled: spelled.into(), found: Vec::new() }
    }
}

/// What a search needs to know if its caller merges the rankings of several trees, as a composite does of its mounts.
///
/// It is a hint. The caller ranks all hits again by the counts of all trees, so hits of a backend that ignores it are just as good. But
/// such a backend chooses the hits within the limit by its own counts alone, so the caller may need a second search. `search_by_reading`
/// and the functions of [`rank`](crate::search::rank) follow it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct SearchMerge {
    /// Word counts of the files of the other trees, to be added to those of this one.
    pub elsewhere: Corpus,
    /// Whether to return hits beyond the limit too, up to rank [10,000](SearchOptions::RANK_MAX), if that needs no further reading.
    pub wants_spare: bool,
}

impl SearchMerge {
    /// Ranks among files with these counts.
    pub fn new(elsewhere: Corpus) -> Self {
        Self { elsewhere, wants_spare: false }
    }

    /// Sets whether hits beyond the limit are wanted.
    #[must_use]
    pub fn with_spare(mut self, wants_spare: bool) -> Self {
        self.wants_spare = wants_spare;
        self
    }
}

/// Word counts over a set of files, by which a ranking weighs words.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[non_exhaustive]
pub struct Corpus {
    /// The number of files.
    pub files: u64,
    /// The number of words in all files together.
    pub words: u64,
    /// For each word of the query, in order, how many files contain it.
    pub files_with: Vec<u64>,
}

impl Corpus {
    /// Makes counts of no files, for a query with this many words.
    pub fn new(words_of_query: usize) -> Self {
        Self { files: 0, words: 0, files_with: vec![0; words_of_query] }
    }

    /// Subtracts the counts of some of the files.
    pub fn subtract(&mut self, some: &Self) {
        self.files = self.files.saturating_sub(some.files);
        self.words = self.words.saturating_sub(some.words);
        self.files_with.iter_mut().zip(&some.files_with).for_each(|(own, some)| *own = own.saturating_sub(*some));
    }

    /// Adds the counts of other files for the same query.
    pub fn add(&mut self, other: &Self) {
        self.files = self.files.saturating_add(other.files);
        self.words = self.words.saturating_add(other.words);
        if self.files_with.len() < other.files_with.len() {
            self.files_with.resize(other.files_with.len(), 0);
        }
        self.files_with.iter_mut().zip(&other.files_with).for_each(|(own, other)| *own = own.saturating_add(*other));
    }
}

/// A part of a line that shows why a file was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Snippet {
    /// The number of the line, from 1, as in reads.
    pub line: usize,
    /// The line, or for a long line the part around the words, with invalid UTF-8 replaced.
    pub text: String,
    /// The words of the query, as byte ranges of `text`.
    #[serde(serialize_with = "pairs", deserialize_with = "of_pairs")]
    #[schemars(with = "Vec<[usize; 2]>")]
    pub ranges: Vec<Range<usize>>,
}

impl Snippet {
    /// Makes a snippet.
    pub fn new(line: usize, text: impl Into<String>, ranges: Vec<Range<usize>>) -> Self {
        Self { line, text: text.into(), ranges }
    }
}

/// Serializes ranges like those of grep: `[start, end]`.
fn pairs<S: serde::Serializer>(ranges: &[Range<usize>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(ranges.iter().map(|range| [range.start, range.end]))
}

fn of_pairs<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<Range<usize>>, D::Error> {
    Ok(Vec::<[usize; 2]>::deserialize(deserializer)?.into_iter().map(|[start, end]| start..end).collect())
}

/// A file that a search found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct SearchHit {
    /// The file.
    pub path: VfsPathBuf,
    /// The relevance, above 0; comparable only within one result.
    pub score: f64,
    /// The size in bytes.
    pub size_bytes: u64,
    /// The version of the content that was searched.
    pub version: Version,
    /// When the content last changed, if the tier knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<Timestamp>,
    /// How many words the file has, including those of its path.
    pub words: u32,
    /// How often each word of the query occurs, in order. A word in the path counts several times.
    pub frequencies: Vec<u32>,
    /// Lines with words of the query, in file order; empty for a file that was found only by its path.
    pub snippets: Vec<Snippet>,
}

/// The result of a search, best first; equally ranked files are in path order.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[non_exhaustive]
pub struct SearchResult {
    /// The words of the query in normalized form, each once.
    pub words: Vec<String>,
    /// The files.
    pub hits: Vec<SearchHit>,
    /// The counts by which the words were weighed.
    pub corpus: Corpus,
    /// The words that no file contains, for which words that are spelled nearly like them were looked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub near: Vec<NearWord>,
    /// Whether words that are spelled nearly like those that no file contains were not looked for, because there are too many files, bytes
    /// or words: over 50,000, 256 MiB or 4 million.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_near_omitted: bool,
    /// Set if there are more files; the cursor is the next offset, empty after the last rank that is returned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated: Option<Truncation>,
    /// The parts of the tree that could not be read, at most
    /// [100](super::GrepResult::FAILURES_MAX) of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
    /// How many parts could not be read, including those not listed.
    pub failures_count: usize,
    /// How many of these are failures of search by meaning alone: words were looked for in these parts all the same.
    #[serde(skip_serializing_if = "is_none")]
    pub failures_of_meaning: usize,
}

fn is_none(count: &usize) -> bool {
    *count == 0
}

impl SearchResult {
    /// Adds a failure, and lists it if there is room.
    pub fn push_failure(&mut self, failure: Failure) {
        self.failures_count += 1;
        if self.failures.len() < super::GrepResult::FAILURES_MAX {
            self.failures.push(failure);
        }
    }

    /// Adds a failure of search by meaning, whose part was searched by words.
    pub fn push_failure_of_meaning(&mut self, failure: Failure) {
        self.failures_of_meaning += 1;
        self.push_failure(failure);
    }

    /// Takes over what another result says about failures and omissions.
    pub fn add_failures(&mut self, failures: Vec<Failure>, count: usize, of_meaning: usize) {
        let unnamed = count.saturating_sub(failures.len());
        failures.into_iter().for_each(|failure| self.push_failure(failure));
        self.failures_count = self.failures_count.saturating_add(unnamed);
        self.failures_of_meaning = self.failures_of_meaning.saturating_add(of_meaning);
    }
}
