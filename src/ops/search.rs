//! Recalling files by what they are about.

use super::{Failure, GrepOptions, OnFailure, SearchScope, Truncation, Version};
use crate::path::VfsPathBuf;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// How to recall files.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SearchOptions {
    /// What to recall, in words. A file that holds any of them is found; the more of them and the rarer they are, the higher it stands.
    pub query: String,
    /// Finds only files that one of these globs matches, as [`GrepOptions::include`] does.
    pub include: Vec<String>,
    /// Finds no file that one of these globs matches, and nothing beneath a directory that one matches.
    pub exclude: Vec<String>,
    /// Finds only files whose content changed at this time or later.
    pub modified_since: Option<Timestamp>,
    /// Finds only files whose content changed before this time.
    pub modified_before: Option<Timestamp>,
    /// The most files returned. Default 10; none beyond [`SearchOptions::RANK_MAX`] is.
    pub limit: usize,
    /// How many of the best files to pass over, from 0: the cursor of a cut result.
    pub offset: usize,
    /// The most snippets returned of one file. Default 3.
    pub snippets_max: usize,
    /// What is counted of files elsewhere that those found here are ranked among: for a search over several trees.
    pub among: Option<Corpus>,
    /// Whether hits beyond the limit, up to rank [`SearchOptions::RANK_MAX`], are returned as well where that takes no more reading, as where
    /// all files are read anyway: for one that ranks those of several trees.
    pub at_hand: bool,
    /// Where the search stands and what it leaves out.
    pub scope: SearchScope,
}

impl SearchOptions {
    /// The last rank that is told of: more are hardly looked at, and each costs a place in memory on every tier that is asked.
    pub const RANK_MAX: usize = 10_000;

    /// Recalls up to 10 files by words.
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
            among: None,
            at_hand: false,
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

    /// Passes over some of the best files.
    #[must_use]
    pub fn with_offset(mut self, offset: usize) -> Self {
        self.offset = offset;
        self
    }

    /// Sets the most snippets returned of one file.
    #[must_use]
    pub fn with_snippets_max(mut self, snippets_max: usize) -> Self {
        self.snippets_max = snippets_max;
        self
    }

    /// Includes names that start with a dot.
    #[must_use]
    pub fn with_hidden(mut self, hidden: bool) -> Self {
        self.scope.hidden = hidden;
        self
    }

    /// Includes what ignore files exclude.
    #[must_use]
    pub fn with_ignored(mut self, ignored: bool) -> Self {
        self.scope.ignored = ignored;
        self
    }

    /// Sets what a failing mount does.
    #[must_use]
    pub fn with_on_failure(mut self, on_failure: OnFailure) -> Self {
        self.scope.on_failure = on_failure;
        self
    }

    /// Returns how many of the best are returned and passed over together.
    pub(crate) fn end(&self) -> usize {
        self.offset.saturating_add(self.limit).min(Self::RANK_MAX)
    }

    /// Returns what words are weighed by where so much is counted here.
    pub(crate) fn weighed_by(&self, here: &Corpus) -> Corpus {
        let mut corpus = here.clone();
        self.among.iter().for_each(|others| corpus.add(others));
        corpus
    }

    /// Tells whether the time that a content changed is one that is asked for. What has no time is found only where none is asked for.
    pub fn admits_time(&self, modified_at: Option<Timestamp>) -> bool {
        let since = self.modified_since.is_none_or(|since| modified_at.is_some_and(|at| at >= since));
        since && self.modified_before.is_none_or(|before| modified_at.is_some_and(|at| at < before))
    }

    /// Returns the grep that selects the same files.
    pub(crate) fn selection(&self) -> GrepOptions {
        let mut grep = GrepOptions::new("");
        grep.include.clone_from(&self.include);
        grep.exclude.clone_from(&self.exclude);
        grep.scope = self.scope.clone();
        grep
    }
}

/// What is counted of the files that a ranking weighs words by.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[non_exhaustive]
pub struct Corpus {
    /// How many files there are.
    pub files: u64,
    /// How many words they hold together.
    pub words: u64,
    /// How many of them hold each word of the query, in its order.
    pub files_with: Vec<u64>,
}

impl Corpus {
    /// Makes what is counted of no file, for so many words of a query.
    pub fn new(words_of_query: usize) -> Self {
        Self { files: 0, words: 0, files_with: vec![0; words_of_query] }
    }

    /// Takes away what is counted of some of the files.
    pub fn subtract(&mut self, some: &Self) {
        self.files = self.files.saturating_sub(some.files);
        self.words = self.words.saturating_sub(some.words);
        self.files_with.iter_mut().zip(&some.files_with).for_each(|(own, some)| *own = own.saturating_sub(*some));
    }

    /// Adds what is counted of other files for the same query.
    pub fn add(&mut self, other: &Self) {
        self.files += other.files;
        self.words += other.words;
        if self.files_with.len() < other.files_with.len() {
            self.files_with.resize(other.files_with.len(), 0);
        }
        self.files_with.iter_mut().zip(&other.files_with).for_each(|(own, other)| *own += other);
    }
}

/// A part of a line that tells why a file was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Snippet {
    /// The number of the line, from 1: read's line number.
    pub line: usize,
    /// The line, or of a long one the part around the words, with what is not UTF-8 replaced.
    pub text: String,
    /// Where words of the query lie, in bytes of `text`.
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

/// Writes ranges as grep's lines have them: `[start, end]`.
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
    /// How well it fits, over 0; only compared with the others of the same result.
    pub score: f64,
    /// The size in bytes.
    pub size_bytes: u64,
    /// The version that was searched.
    pub version: Version,
    /// When its content last changed, where the tier knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<Timestamp>,
    /// How many words it holds, those of its path included.
    pub words: u32,
    /// How often it holds each word of the query, in its order; a word of its path counts several times.
    pub frequencies: Vec<u32>,
    /// Lines that hold words of the query, in the order of the file. None for a file that was found by its path alone.
    pub snippets: Vec<Snippet>,
}

/// What a search found, the best first; equals stand in path order.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[non_exhaustive]
pub struct SearchResult {
    /// The words of the query as they are compared, each once.
    pub words: Vec<String>,
    /// The files.
    pub hits: Vec<SearchHit>,
    /// What the words were weighed by.
    pub corpus: Corpus,
    /// Set when there are more; the cursor is the offset to go on from, empty at the last rank that is told of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated: Option<Truncation>,
    /// What could not be read: at most [`GrepResult::FAILURES_MAX`](super::GrepResult::FAILURES_MAX) are named,
    /// `failures_count` counts all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
    /// How many could not be read.
    pub failures_count: usize,
}

impl SearchResult {
    /// Adds a failure, named while there is room.
    pub fn push_failure(&mut self, failure: Failure) {
        self.failures_count += 1;
        if self.failures.len() < super::GrepResult::FAILURES_MAX {
            self.failures.push(failure);
        }
    }
}
