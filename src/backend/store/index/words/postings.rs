//! Which files hold the words of a query, and how often.

use super::lists::files_with;
use super::{CountedFile, CountedFiles, UNREAD, Words, each_of_row};
use crate::backend::store::StoreBackend;
use crate::backend::store::index::lookup::{LookedUp, Query};
use crate::error::Result;
use crate::ops::{Corpus, Version};
use crate::store::Item;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Of how many files that hold words of a query it is looked up whether they still are what the index has of them.
const LOOKED_AT_MAX: usize = 8_192;

/// How many of them are asked for at once.
const LOOKED_AT_ONCE: usize = 4_096;

/// About how many bytes a row of words has.
const ROW_BYTES: usize = 8 << 10;

/// What the word index has of the words of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::backend::store) struct Postings {
    /// What is counted of all files. Segments have places of files that were written again or removed since: those that hold a word of the query are
    /// found out (of very many, some, which stand for the rest), and how many there are among them tells how many there are in all, about.
    pub(in crate::backend::store) corpus: Corpus,
    /// The files that hold any of the words, each once, in no order.
    pub(in crate::backend::store) files: Vec<Posting>,
    /// The keys of files that nobody could read: whether they hold a word is not known.
    pub(in crate::backend::store) unread: BTreeSet<String>,
}

/// A file that holds words of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::backend::store) struct Posting {
    /// Its key in the tree.
    pub(in crate::backend::store) key: String,
    /// How many words it has.
    pub(in crate::backend::store) length: u32,
    /// How often it holds each word of the query.
    pub(in crate::backend::store) frequencies: Box<[u32]>,
}

/// What is known of a file of a segment.
#[derive(Debug, Clone)]
struct InSegments {
    version: Version,
    length: u32,
    /// None of a file that nobody could read.
    frequencies: Option<Box<[u32]>>,
}

/// The files that hold words.
#[derive(Clone)]
struct Holders<'w> {
    /// Each word with its place in the query, in the order of the words.
    words: BTreeMap<&'w str, usize>,
    corpus: Corpus,
    /// All files of the tail, which stand for what segments have of them.
    in_tail: HashSet<String>,
    in_segments: HashMap<String, InSegments>,
    /// How many places of files were met in segments.
    places: usize,
    files: Vec<Posting>,
    unread: BTreeSet<String>,
}

impl StoreBackend {
    /// Returns which files hold words of a query, each given once, as they are compared; none when there is no index that is complete.
    ///
    /// Cost: the tail, then for each segment and word one row, then the names of the files that hold any of them, then their versions (of up to
    /// 8,192 files): four round trips or five, and one more the first time.
    ///
    /// # Errors
    /// Those of the store, and [`Corrupt`](crate::error::ErrorKind::Corrupt) for an index that is damaged.
    pub(in crate::backend::store) async fn postings(&self, words: &[String]) -> Result<Option<Postings>> {
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
            // It is read in any case: it may have been written after the tail was read.
            found.files.push(Posting { key, length, frequencies });
        }
        let mut corpus = found.corpus;
        corpus.files_with.iter_mut().zip(files_with).for_each(|(files, here)| *files += here.round() as u64);
        // Of the places that were met, as many hold what the file is now; so it is with the others, about.
        let share = if found.places == 0 { 1.0 } else { chances.iter().sum::<f64>() / found.places as f64 };
        let current = |places: u64| (places as f64 * share).round() as u64;
        corpus.files += current(manifest.segments.iter().map(|segment| u64::from(segment.files - segment.unread)).sum());
        corpus.words += current(manifest.segments.iter().map(|segment| segment.words).sum());
        Ok(Some(Postings { corpus, files: found.files, unread: found.unread }))
    }

    /// Tells of each file, given in the order of the keys, how likely it is still what its segment has of it: for certain where it is looked
    /// at, as up to so many are, and otherwise as those that are.
    async fn chances(&self, files: &[(String, InSegments)]) -> Result<Vec<f64>> {
        let step = files.len().div_ceil(LOOKED_AT_MAX).max(1);
        let looked_at: Vec<usize> = (0..files.len()).step_by(step).collect();
        let mut standing = Vec::with_capacity(looked_at.len());
        for some in looked_at.chunks(LOOKED_AT_ONCE) {
            let keys: Vec<&str> = some.iter().map(|index| files[*index].0.as_str()).collect();
            let items = self.store.get_many(&self.namespace, &keys, false).await?;
            let stands = |(index, item): (&usize, Option<Item>)| item.is_some_and(|item| item.version == files[*index].1.version);
            standing.extend(some.iter().zip(items).map(stands));
        }
        let share = standing.iter().filter(|stands| **stands).count() as f64 / standing.len().max(1) as f64;
        let chance = |index: usize| match index % step {
            0 => f64::from(u8::from(standing[index / step])),
            _ => share,
        };
        Ok((0..files.len()).map(chance).collect())
    }
}

impl Query<Words> for Holders<'_> {
    /// How often the file holds each word; none for one that nobody could read.
    type Hit = Option<Box<[u32]>>;

    fn take_tail(&mut self, key: &str, row: &[u8]) -> Result<()> {
        let mut frequencies = vec![0; self.words.len()].into_boxed_slice();
        let mut is_unread = false;
        // Both are in order, so one pass finds all.
        let mut wanted = self.words.iter().peekable();
        let length = each_of_row(row, |word, count| {
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
        // Numbers of files, places of words in the query, and how often the one holds the other.
        let mut held: Vec<(u32, usize, u32)> = Vec::new();
        for (word, place) in &self.words {
            let files = files_with(&row(segment.row_of(word))?, word)?;
            held.extend(files.into_iter().map(|(number, count)| (number, *place, count)));
        }
        // The lists are in order already, and there are few of them.
        held.sort();
        let counted = held.chunk_by(|(one, ..), (other, ..)| one == other).map(|of_file| {
            let mut frequencies = vec![0; self.words.len()].into_boxed_slice();
            of_file.iter().for_each(|(_, place, count)| frequencies[*place] = *count);
            (of_file[0].0 as usize, Some(frequencies))
        });
        let mut hits: Vec<(usize, Option<Box<[u32]>>)> = counted.collect();
        if segment.unread > 0 {
            // It holds no other word, so it is not among the rest.
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
        // The newest counts: an older place is not removed before its segment is merged.
        if known.version < here.version {
            *known = here;
        }
    }
}
