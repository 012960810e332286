//! Validation of another server's answers. Every answer is untrusted input and is checked against its request before
//! use.
//!
//! A valid answer names only requested paths, in order and once each. Its cursor lies after all its entries and after
//! the start of the request, so following cursors terminates. Match ranges lie within their texts, on character
//! boundaries. Numbers are small enough to be added up. Any other answer is [`Corrupt`](treehold_core::error::ErrorKind::Corrupt),
//! with a message that names the peer.

use super::no_answer;
use std::collections::HashSet;
use std::ops::Range;
use treehold_core::error::Result;
use treehold_core::ops::{
    Change, Changed, Corpus, Entry, Failure, FileRead, GlobOptions, GlobResult, GrepCursor, GrepFile, GrepLine, GrepOptions, GrepOutput,
    GrepResult, Listing, LsOptions, NearWord, ReadOptions, ReadRange, SearchHit, SearchOptions, SearchResult,
};
use treehold_core::path::{VfsPath, VfsPathBuf};

/// The greatest count in an answer; a million such counts still add up without overflow.
const COUNT_MAX: u64 = 1 << 43;

/// The largest file size in an answer: JSON numbers are exact up to this.
const SIZE_MAX: u64 = 1 << 53;

/// The most words in a query, whatever the remote side counts as a word.
const WORDS_MAX: usize = 10_000;

/// Checks the answers of one peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Check<'a> {
    peer: &'a str,
}

impl<'a> Check<'a> {
    pub(super) fn new(peer: &'a str) -> Self {
        Self { peer }
    }

    /// Rejects the answer unless a condition holds.
    fn ensure(self, holds: bool, what: &str) -> Result<()> {
        if holds { Ok(()) } else { Err(no_answer(self.peer, what)) }
    }

    fn number(self, number: impl TryInto<u64>) -> Result<()> {
        let fits = number.try_into().is_ok_and(|number: u64| number <= COUNT_MAX);
        self.ensure(fits, "a number out of range")
    }

    fn size(self, size_bytes: u64) -> Result<()> {
        self.ensure(size_bytes <= SIZE_MAX, "a size out of range")
    }

    /// Checks that the answer has no more items than requested.
    fn limit(self, came: usize, limit: usize) -> Result<()> {
        self.ensure(came <= limit, "more than was requested")
    }

    fn asked_path(self, is_asked: bool) -> Result<()> {
        self.ensure(is_asked, "paths that were not requested")
    }

    fn order(self, is_ordered: bool) -> Result<()> {
        self.ensure(is_ordered, "paths out of order")
    }

    fn cursor(self, goes_on: bool) -> Result<()> {
        self.ensure(goes_on, "a cursor that does not advance")
    }

    /// Checks the answer to a `stat`.
    pub(super) fn stat(self, path: &VfsPath, entry: &Entry) -> Result<()> {
        self.asked_path(*entry.path == *path)?;
        self.size(entry.size_bytes)
    }

    /// Checks one page of an `ls`.
    pub(super) fn listing(self, path: &VfsPath, options: &LsOptions, listing: &Listing) -> Result<()> {
        self.limit(listing.entries.len(), options.limit)?;
        let mut last = options.start_after.as_deref();
        for entry in &listing.entries {
            self.asked_path(entry.path.parent() == Some(path))?;
            self.order(last.is_none_or(|last| last < entry.name()))?;
            self.size(entry.size_bytes)?;
            last = Some(entry.name());
        }
        self.failures(path, &listing.failures, listing.failures.len(), usize::MAX)?;
        let Some(cut) = &listing.truncated else { return Ok(()) };
        let cursor = cut.cursor.as_str();
        // The cursor is the last name, or a later one that was left out.
        self.cursor(match listing.entries.last() {
            Some(entry) => entry.name() <= cursor,
            None => !cursor.is_empty() && options.start_after.as_deref().is_none_or(|start| start < cursor),
        })
    }

    /// Checks one page of a `glob`.
    pub(super) fn glob(self, path: &VfsPath, options: &GlobOptions, result: &GlobResult) -> Result<()> {
        self.limit(result.entries.len(), options.limit)?;
        let start = options.start_after.as_deref();
        let mut last = start;
        for entry in &result.entries {
            self.asked_path(entry.path.starts_with(path))?;
            self.order(last.is_none_or(|last| last < &*entry.path))?;
            self.size(entry.size_bytes)?;
            last = Some(&entry.path);
        }
        self.failures(path, &result.failures, result.failures.len(), usize::MAX)?;
        let Some(cut) = &result.truncated else { return Ok(()) };
        let cursor = VfsPathBuf::parse(&cut.cursor).ok();
        self.cursor(cursor.is_some_and(|cursor| {
            start.is_none_or(|start| start < &*cursor) && result.entries.last().is_none_or(|entry| *entry.path <= *cursor)
        }))
    }

    /// Checks one page of a `grep`.
    pub(super) fn grep(self, path: &VfsPath, options: &GrepOptions, result: &GrepResult) -> Result<()> {
        let start = options.start_after.as_ref();
        let mut last: Option<&VfsPath> = None;
        for file in &result.files {
            self.asked_path(file.path.starts_with(path))?;
            self.order(last.is_none_or(|last| last < &*file.path))?;
            // The file at which the last page ended continues on this one.
            self.order(start.is_none_or(|start| match options.output {
                GrepOutput::Content => start.path <= file.path,
                GrepOutput::Files | GrepOutput::Counts => start.path < file.path || start.line != GrepCursor::END,
            }))?;
            self.grep_file(options, file)?;
            last = Some(&file.path);
        }
        let came = result.files.iter().map(|file| if options.output == GrepOutput::Content { file.count } else { 1 }).sum();
        self.limit(came, options.matches_max)?;
        [result.files_searched, result.files_binary, result.files_too_large].into_iter().try_for_each(|count| self.number(count))?;
        self.failures(path, &result.failures, result.failures_count, GrepResult::FAILURES_MAX)?;
        let Some(cut) = &result.truncated else { return Ok(()) };
        let cursor = cut.cursor.parse::<GrepCursor>().ok();
        self.cursor(cursor.is_some_and(|cursor| {
            start.is_none_or(|start| *start < cursor) && result.files.last().is_none_or(|file| file.path <= cursor.path)
        }))
    }

    fn grep_file(self, options: &GrepOptions, file: &GrepFile) -> Result<()> {
        self.number(file.count)?;
        let wants_lines = options.output == GrepOutput::Content;
        self.ensure(wants_lines || file.lines.is_empty(), "lines that were not requested")?;
        let mut next = 1;
        let mut matches = 0;
        for line in &file.lines {
            self.number(line.line)?;
            self.size(line.byte_offset)?;
            self.ensure(line.line >= next, "lines out of order")?;
            next = line.line + 1;
            matches += usize::from(line.is_match);
            self.grep_ranges(line)?;
        }
        self.ensure(!wants_lines || matches == file.count, "a match count that differs from its matches")
    }

    fn grep_ranges(self, line: &GrepLine) -> Result<()> {
        self.ranges(&line.ranges, line.text.len(), |_| true)
    }

    /// Checks the answer to a `search`.
    pub(super) fn search(self, path: &VfsPath, options: &SearchOptions, result: &SearchResult) -> Result<()> {
        self.limit(result.hits.len(), options.limit)?;
        self.limit(result.words.len(), WORDS_MAX)?;
        let mut seen = HashSet::new();
        for hit in &result.hits {
            self.asked_path(hit.path.starts_with(path))?;
            self.ensure(seen.insert(&hit.path), "one path twice")?;
            self.hit(options, result.words.len(), hit)?;
        }
        self.corpus(result.words.len(), &result.corpus)?;
        self.limit(result.near.len(), result.words.len())?;
        for near in &result.near {
            self.limit(near.found.len(), NearWord::FOUND_MAX)?;
        }
        self.failures(path, &result.failures, result.failures_count, GrepResult::FAILURES_MAX)?;
        let Some(cut) = &result.truncated else { return Ok(()) };
        // A cursor that is not a number could not be continued from.
        let goes_on = |cursor: &str| cursor.parse::<usize>().is_ok_and(|next| next > options.offset && next <= SearchOptions::RANK_MAX);
        self.cursor(cut.cursor.is_empty() || goes_on(&cut.cursor))
    }

    fn hit(self, options: &SearchOptions, words: usize, hit: &SearchHit) -> Result<()> {
        self.size(hit.size_bytes)?;
        self.ensure(hit.score.is_finite(), "a score that is not a number")?;
        self.ensure(hit.frequencies.len() == words, "frequencies of other words")?;
        self.limit(hit.snippets.len(), options.snippets_max)?;
        for snippet in &hit.snippets {
            self.number(snippet.line)?;
            self.ensure(snippet.line > 0, "a line without a number")?;
            self.ranges(&snippet.ranges, snippet.text.len(), |at| snippet.text.is_char_boundary(at))?;
        }
        Ok(())
    }

    fn corpus(self, words: usize, corpus: &Corpus) -> Result<()> {
        self.ensure(corpus.files_with.len() == words || corpus.files_with.is_empty(), "counts of other words")?;
        [corpus.files, corpus.words].iter().chain(&corpus.files_with).try_for_each(|count| self.number(*count))
    }

    /// Checks that ranges lie within a text, in order, without overlap and on character boundaries.
    fn ranges(self, ranges: &[Range<usize>], len: usize, is_boundary: impl Fn(usize) -> bool) -> Result<()> {
        let mut last = 0;
        for range in ranges {
            let lies_in = last <= range.start && range.start <= range.end && range.end <= len;
            self.ensure(lies_in && is_boundary(range.start) && is_boundary(range.end), "a match outside its line")?;
            last = range.end;
        }
        Ok(())
    }

    fn failures(self, path: &VfsPath, failures: &[Failure], count: usize, named_max: usize) -> Result<()> {
        self.limit(failures.len(), named_max)?;
        self.ensure(failures.len() <= count, "a failure count that differs from its failures")?;
        self.number(count)?;
        // A mount may fail as a whole, and the request may lie within it.
        failures.iter().try_for_each(|failure| self.asked_path(failure.path.starts_with(path) || path.starts_with(&failure.path)))
    }

    /// Checks the answer to a `read`.
    pub(super) fn read(self, options: &ReadOptions, read: &FileRead) -> Result<()> {
        self.size(read.size_bytes)?;
        let came = read.content.len() as u64;
        match options.range {
            ReadRange::Whole => self.ensure(came == read.size_bytes, "only a part of the content"),
            ReadRange::Bytes { offset, limit } => {
                let fits = came <= limit && came <= read.size_bytes.saturating_sub(offset);
                self.ensure(fits, "more than was requested")
            }
            ReadRange::Lines { limit, .. } => {
                self.ensure(came <= read.size_bytes, "more than the file holds")?;
                let Some(window) = &read.window else { return Ok(()) };
                self.number(window.total_lines)?;
                self.limit(window.lines, limit)?;
                let ends = memchr::memchr_iter(b'\n', &read.content).count();
                let lines = ends + usize::from(!read.content.is_empty() && !read.content.ends_with(b"\n"));
                self.ensure(lines == window.lines, "a line count that differs from its lines")
            }
        }
    }

    /// Checks the results reported for changes.
    pub(super) fn changed(self, changes: &[Change], changed: &[Changed]) -> Result<()> {
        let is_of = |changed: &Changed, change: &Change| {
            changed.operation == change.kind() && *changed.path == *change.target().unwrap_or(change.path())
        };
        let fits = changed.len() == changes.len() && changed.iter().zip(changes).all(|(changed, change)| is_of(changed, change));
        self.ensure(fits, "results of other changes")?;
        changed.iter().try_for_each(|changed| {
            self.size(changed.size_bytes)?;
            self.number(changed.replacements)?;
            self.number(changed.entries)
        })
    }
}
