//! Looks up which files contain the words of a query, and how often.

use super::lists::files_with;
use super::{CountedFile, CountedFiles, UNREAD, Words, decode_row};
use crate::index::TreeIndexes;
use crate::index::lookup::{LookedUp, Query};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use treehold_core::error::Result;
use treehold_core::ops::{Corpus, Version};
use treehold_store::Item;

/// The most matching files whose versions are checked against the tree. Above that, a sample is checked.
const CHECKED_MAX: usize = 8_192;

/// How many versions are read at once.
const CHECKED_AT_ONCE: usize = 4_096;

/// The approximate size of a row of words in bytes.
const ROW_BYTES: usize = 8 << 10;

/// What the word index knows about the words of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Postings {
    /// Statistics over all files. Segments also have entries of files that were rewritten or removed since. Such stale entries
    /// are excluded among the matching files (estimated from a sample if there are very many), and their share is applied to the
    /// rest as an estimate.
    pub(crate) corpus: Corpus,
    /// The files that contain any of the words, each once, in no particular order.
    pub(crate) files: Vec<Posting>,
    /// The keys of unreadable files, which may or may not contain the words.
    pub(crate) unread: BTreeSet<String>,
}

/// A file that contains words of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Posting {
    /// Its key in the tree.
    pub(crate) key: String,
    /// The number of words in the file.
    pub(crate) length: u32,
    /// The number of occurrences of each word of the query.
    pub(crate) frequencies: Box<[u32]>,
}

/// What a segment has of a file.
#[derive(Debug, Clone)]
struct InSegments {
    version: Version,
    length: u32,
    /// `None` for an unreadable file.
    frequencies: Option<Box<[u32]>>,
}

/// Collects the files that contain the words of a query.
#[derive(Clone)]
struct Holders<'w> {
    /// Each word with its position in the query, sorted by word.
    words: BTreeMap<&'w str, usize>,
    corpus: Corpus,
    /// All files of the tail. They override what segments have of the same files.
    in_tail: HashSet<String>,
    in_segments: HashMap<String, InSegments>,
    /// The number of file entries met in segments.
    places: usize,
    files: Vec<Posting>,
    unread: BTreeSet<String>,
}

impl TreeIndexes {
    /// Returns the files that contain words of a query. Returns `None` if there is no complete index. Each word must be given
    /// once, in its normalized form.
    ///
    /// Cost: one pass over the tail, then one row for each segment and word, then the names of the matching files, then their
    /// versions (for up to 8,192 files): four or five round trips, and one more the first time.
    ///
    /// # Errors
    /// Errors of the store.
    pub(crate) async fn postings(&self, words: &[String]) -> Result<Option<Postings>> {
        let query = Holders {
            words: words.iter().enumerate().map(|(place, word)| (word.as_str(), place)).collect(),
            corpus: Corpus::new(words.len()),
            in_tail: HashSet::new(),
            in_segments: HashMap::new(),
            places: 0,
            files: Vec::new(),
            unread: BTreeSet::new(),
        };
        let Some(LookedUp { query: mut found, manifest, .. }) = self.look_up::<Words, _>(&query).await? else { return Ok(None) };
        let mut in_segments: Vec<(String, InSegments)> = found.in_segments.into_iter().collect();
        in_segments.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let chances = self.chances(&in_segments).await?;
        let mut files_with = vec![0.0; words.len()];
        for ((key, InSegments { length, frequencies, .. }), chance) in in_segments.into_iter().zip(&chances) {
            let Some(frequencies) = frequencies else {
                found.unread.insert(key);
                continue;
            };
            files_with.iter_mut().zip(&frequencies).filter(|(_, count)| **count > 0).for_each(|(files, _)| *files += chance);
            // The search reads the file even if this entry looks stale: the file may have been written after the tail was read.
            found.files.push(Posting { key, length, frequencies });
        }
        let mut corpus = found.corpus;
        corpus.files_with.iter_mut().zip(files_with).for_each(|(files, here)| *files += here.round() as u64);
        // Assume that the share of current entries is the same among the entries that were not met.
        let share = if found.places == 0 { 1.0 } else { chances.iter().sum::<f64>() / found.places as f64 };
        let current = |places: u64| (places as f64 * share).round() as u64;
        corpus.files += current(manifest.segments.iter().map(|segment| u64::from(segment.files - segment.unread)).sum());
        corpus.words += current(manifest.segments.iter().map(|segment| segment.words).sum());
        Ok(Some(Postings { corpus, files: found.files, unread: found.unread }))
    }

    /// Returns for each file, in key order, the probability that its segment entry is current: 0 or 1 for the files whose version
    /// is checked, and the share of current files among those for the others.
    async fn chances(&self, files: &[(String, InSegments)]) -> Result<Vec<f64>> {
        let step = files.len().div_ceil(CHECKED_MAX).max(1);
        let checked: Vec<usize> = (0..files.len()).step_by(step).collect();
        let mut current = Vec::with_capacity(checked.len());
        for some in checked.chunks(CHECKED_AT_ONCE) {
            let keys: Vec<&str> = some.iter().map(|index| files[*index].0.as_str()).collect();
            let items = self.store.get_many(&self.namespace, &keys, false).await?;
            let is_current = |(index, item): (&usize, Option<Item>)| item.is_some_and(|item| item.version == files[*index].1.version);
            current.extend(some.iter().zip(items).map(is_current));
        }
        let share = current.iter().filter(|current| **current).count() as f64 / current.len().max(1) as f64;
        let chance = |index: usize| match index % step {
            0 => f64::from(u8::from(current[index / step])),
            _ => share,
        };
        Ok((0..files.len()).map(chance).collect())
    }
}

impl Query<Words> for Holders<'_> {
    /// The number of occurrences of each word, or `None` for an unreadable file.
    type Hit = Option<Box<[u32]>>;

    fn take_tail(&mut self, key: &str, row: &[u8]) -> Result<()> {
        let mut frequencies = vec![0; self.words.len()].into_boxed_slice();
        let mut is_unread = false;
        // Both lists are sorted, so one pass finds all matches.
        let mut wanted = self.words.iter().peekable();
        let length = decode_row(row, |word, count| {
            is_unread |= word == UNREAD;
            while wanted.next_if(|(asked, _)| **asked < word).is_some() {}
            if let Some((_, place)) = wanted.next_if(|(asked, _)| **asked == word) {
                frequencies[*place] = count;
            }
        })?;
        self.in_tail.insert(key.to_owned());
        if is_unread {
            self.unread.insert(key.to_owned());
            return Ok(());
        }
        self.corpus.files += 1;
        self.corpus.words += u64::from(length);
        if frequencies.iter().any(|count| *count > 0) {
            let counted = self.corpus.files_with.iter_mut().zip(&frequencies);
            counted.for_each(|(files, count)| *files += u64::from(*count > 0));
            self.files.push(Posting { key: key.to_owned(), length, frequencies });
        }
        Ok(())
    }

    fn rows(&self, segment: CountedFiles) -> Result<(BTreeSet<usize>, usize)> {
        segment.check()?;
        let unread = (segment.unread > 0).then_some(UNREAD);
        let rows: BTreeSet<usize> = self.words.keys().copied().chain(unread).map(|word| segment.row_of(word)).collect();
        let size_bytes = rows.len() * ROW_BYTES;
        Ok((rows, size_bytes))
    }

    fn hits(&mut self, segment: CountedFiles, row: &dyn Fn(usize) -> Result<Bytes>) -> Result<Vec<(usize, Option<Box<[u32]>>)>> {
        // File number, position of the word in the query, number of occurrences.
        let mut held: Vec<(u32, usize, u32)> = Vec::new();
        for (word, place) in &self.words {
            let files = files_with(&row(segment.row_of(word))?, word)?;
            held.extend(files.into_iter().map(|(number, count)| (number, *place, count)));
        }
        // The lists are sorted already and few, so a stable merge sort is fast.
        held.sort();
        let counted = held.chunk_by(|(one, ..), (other, ..)| one == other).map(|of_file| {
            let mut frequencies = vec![0; self.words.len()].into_boxed_slice();
            of_file.iter().for_each(|(_, place, count)| frequencies[*place] = *count);
            (of_file[0].0 as usize, Some(frequencies))
        });
        let mut hits: Vec<(usize, Option<Box<[u32]>>)> = counted.collect();
        if segment.unread > 0 {
            // An unreadable file contains no other word, so it is not among the hits yet.
            hits.extend(files_with(&row(segment.row_of(UNREAD))?, UNREAD)?.into_iter().map(|(number, _)| (number as usize, None)));
            hits.sort_by_key(|(number, _)| *number);
        }
        Ok(hits)
    }

    fn take(&mut self, hit: Option<Box<[u32]>>, CountedFile { file, length }: CountedFile) {
        self.places += 1;
        if self.in_tail.contains(&file.key) {
            return;
        }
        let here = InSegments { version: file.version, length, frequencies: hit };
        let known = self.in_segments.entry(file.key).or_insert_with(|| here.clone());
        // The newest entry wins; older ones stay until their segments are merged.
        if known.version < here.version {
            *known = here;
        }
    }
}
