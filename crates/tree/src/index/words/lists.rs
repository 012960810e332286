//! A word segment in memory: its files, and for each word the files that contain it.

use super::coding::{put_number, put_word, take_bytes, take_number, take_small, take_word};
use super::{CountedFile, CountedFiles, ROWS_LOG2_MAX, UNREAD, Words, digest_of_length, digest_of_word, row_of};
use crate::index::files::{self, ENTRY_BYTES, FILES_PER_ROW, IndexedFile};
use crate::index::kind::{Kind, Part};
use crate::index::manifest::{SegmentRow, damaged, entries_key, files_key};
use bytes::Bytes;
use std::collections::HashMap;
use treehold_core::error::Result;
use treehold_core::search::words::FileWords;
use treehold_core::work;

/// The approximate minimum size in bytes of a row of words, unless the segment is smaller. A row with a very common word is
/// larger.
const WORDS_BYTES_PER_ROW: usize = 4_096;

/// The files that contain a word, delta-encoded: for each the gap to the previous file number, and the number of occurrences.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct List {
    files: u32,
    /// The lowest number that the next file may have.
    next: u32,
    bytes: Vec<u8>,
}

impl List {
    fn push(&mut self, number: u32, count: u32) {
        put_number(&mut self.bytes, u64::from(number - self.next));
        put_number(&mut self.bytes, u64::from(count));
        self.files += 1;
        self.next = number + 1;
    }

    /// Appends all of another list, whose file numbers are offset by `base`, without re-encoding them.
    fn append(&mut self, other: &Self, base: u32) {
        let mut rest = &other.bytes[..];
        let first = take_small(&mut rest).expect("lists are validated when read");
        put_number(&mut self.bytes, u64::from(base + first - self.next));
        self.bytes.extend_from_slice(rest);
        self.files += other.files;
        self.next = base + other.next;
    }
}

/// Decodes a list: file numbers in order, each with the number of occurrences.
fn decode_list(mut bytes: &[u8], mut take: impl FnMut(u32, u32)) -> Option<()> {
    let mut next = 0_u32;
    while !bytes.is_empty() {
        let number = next.checked_add(take_small(&mut bytes)?)?;
        take(number, take_small(&mut bytes)?);
        next = number.checked_add(1)?;
    }
    Some(())
}

/// Decodes a row: calls `take` with each word in order, the number of files that contain it and their encoded list, until it
/// returns false.
fn decode_row(mut bytes: &[u8], mut take: impl FnMut(&str, u32, &[u8]) -> bool) -> Option<()> {
    let (mut word, mut is_first) = (String::new(), true);
    while !bytes.is_empty() {
        take_word(&mut bytes, &mut word, is_first)?;
        is_first = false;
        let files = take_small(&mut bytes)?;
        let count = usize::try_from(take_number(&mut bytes)?).ok()?;
        if !take(&word, files, take_bytes(&mut bytes, count)?) {
            break;
        }
    }
    Some(())
}

/// Looks up a word in its row. Returns the numbers of the files that contain it and the number of occurrences in each; empty if
/// the word is missing.
///
/// # Errors
/// [`Corrupt`](treehold_core::error::ErrorKind::Corrupt) if the row cannot be decoded.
pub(super) fn files_with(row: &[u8], wanted: &str) -> Result<Vec<(u32, u32)>> {
    let mut found = Some(Vec::new());
    let read = decode_row(row, |word, files, list| {
        if word == wanted {
            // Do not allocate by the stored count: it may be damaged.
            let mut numbers = Vec::with_capacity((files as usize).min(list.len() / 2));
            let whole = decode_list(list, |number, count| numbers.push((number, count)));
            found = whole.filter(|()| numbers.len() == files as usize).map(|()| numbers);
        }
        word < wanted
    });
    read.and(found).ok_or_else(|| damaged("a row of words"))
}

/// The transposed words of some files: for each word, the files that contain it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::index) struct Lists {
    files: Vec<IndexedFile>,
    /// The number of words in each file.
    lengths: Vec<u32>,
    words: HashMap<String, List>,
}

impl Lists {
    /// Transposes the words of files.
    pub(super) fn of(entries: Vec<(IndexedFile, FileWords)>) -> Self {
        let mut lists =
            Self { files: Vec::with_capacity(entries.len()), lengths: Vec::with_capacity(entries.len()), words: HashMap::new() };
        for (file, words) in entries {
            let number = lists.push(file, words.length);
            for (word, count) in words.counts {
                lists.words.entry(word).or_default().push(number, count);
            }
        }
        lists
    }

    /// Adds a file and returns its number.
    fn push(&mut self, file: IndexedFile, length: u32) -> u32 {
        let number = self.numbers();
        self.files.push(file);
        self.lengths.push(length);
        number
    }

    /// Returns the number of the next file.
    fn numbers(&self) -> u32 {
        u32::try_from(self.files.len()).expect("the byte limit of a segment bounds its files")
    }

    /// Returns the digest of each file's words, or `None` for an unreadable file.
    pub(super) fn digests(&self) -> Vec<Option<u64>> {
        let mut digests: Vec<u64> = self.lengths.iter().map(|length| digest_of_length(*length)).collect();
        for (word, list) in &self.words {
            each_file(list, |number, count| digests[number] = digests[number].wrapping_add(digest_of_word(word, count)));
        }
        let mut digests: Vec<Option<u64>> = digests.into_iter().map(Some).collect();
        if let Some(unread) = self.words.get(UNREAD) {
            each_file(unread, |number, _| digests[number] = None);
        }
        digests
    }
}

/// Encodes a row of words, sorting them first.
fn row_to_bytes(mut words: Vec<(&str, &List)>) -> Vec<u8> {
    words.sort_unstable_by_key(|(word, _)| *word);
    let (mut bytes, mut before) = (Vec::new(), "");
    for (word, list) in words {
        put_word(&mut bytes, before, word);
        put_number(&mut bytes, u64::from(list.files));
        put_number(&mut bytes, list.bytes.len() as u64);
        bytes.extend_from_slice(&list.bytes);
        before = word;
    }
    bytes
}

/// Calls `take` for each file of a list in memory.
fn each_file(list: &List, mut take: impl FnMut(usize, u32)) {
    decode_list(&list.bytes, |number, count| take(number as usize, count)).expect("lists are validated when read");
}

impl Part for Lists {
    type Segment = CountedFiles;

    fn files(&self) -> &[IndexedFile] {
        &self.files
    }

    fn rows(&self, id: u64) -> (CountedFiles, Vec<(String, Bytes)>) {
        let bytes: usize = self.words.iter().map(|(word, list)| word.len() + list.bytes.len() + 4).sum();
        let rows_log2 = ((bytes / WORDS_BYTES_PER_ROW).max(1).ilog2() as u8).min(ROWS_LOG2_MAX);
        let mut words: Vec<Vec<(&str, &List)>> = vec![Vec::new(); 1 << rows_log2];
        for (word, list) in &self.words {
            words[row_of(word, rows_log2)].push((word, list));
        }
        let lists = self.files.chunks(FILES_PER_ROW).zip(self.lengths.chunks(FILES_PER_ROW)).enumerate();
        let lists = lists.map(|(row, (files, lengths))| {
            let mut bytes = files::to_bytes(files);
            lengths.iter().for_each(|length| put_number(&mut bytes, u64::from(*length)));
            (files_key::<Words>(id, row), bytes.into())
        });
        let words = words.into_iter().enumerate().map(|(row, words)| (entries_key::<Words>(id, row), row_to_bytes(words).into()));
        let segment = CountedFiles {
            id,
            rows_log2,
            files: u32::try_from(self.files.len()).expect("the byte limit of a segment bounds its files"),
            unread: self.words.get(UNREAD).map_or(0, |unread| unread.files),
            words: self.lengths.iter().map(|length| u64::from(*length)).sum(),
            bytes: bytes as u64,
        };
        (segment, lists.chain(words).collect())
    }

    fn from_rows<'r>(segment: CountedFiles, rows: impl Iterator<Item = (&'r str, &'r Bytes)>) -> Result<Self> {
        let damaged = || damaged("a segment");
        segment.check()?;
        let mut lists = Self { files: Vec::new(), lengths: Vec::new(), words: HashMap::new() };
        let mut words_rows = 0_usize;
        for (key, value) in rows {
            match SegmentRow::of::<Words>(key)? {
                SegmentRow::Files => {
                    for CountedFile { file, length } in Words::files_from_bytes(value)? {
                        lists.files.push(file);
                        lists.lengths.push(length);
                    }
                }
                SegmentRow::Entries => {
                    let mut is_sound = true;
                    let read = decode_row(value, |word, files, bytes| {
                        work::advance(ENTRY_BYTES + 8 * bytes.len());
                        let (mut count, mut next) = (0, 0);
                        let read = decode_list(bytes, |number, _| (count, next) = (count + 1, number.saturating_add(1)));
                        let has_files = read.is_some() && count == files && count > 0 && next as usize <= lists.files.len();
                        is_sound &= has_files && segment.row_of(word) == words_rows;
                        lists.words.insert(word.to_owned(), List { files, next, bytes: bytes.to_vec() });
                        is_sound
                    });
                    read.filter(|()| is_sound).ok_or_else(damaged)?;
                    words_rows += 1;
                }
            }
        }
        let words: u64 = lists.lengths.iter().map(|length| u64::from(*length)).sum();
        let is_whole = lists.files.len() == segment.files as usize
            && words_rows == 1 << segment.rows_log2
            && words == segment.words
            && lists.words.get(UNREAD).map_or(0, |unread| unread.files) == segment.unread;
        if is_whole { Ok(lists) } else { Err(damaged()) }
    }

    fn merged(parts: &[Self], is_kept: impl Fn(&IndexedFile) -> bool) -> Self {
        let mut merged = Self { files: Vec::new(), lengths: Vec::new(), words: HashMap::new() };
        for part in parts {
            // The new number of each file that is kept.
            let files = part.files.iter().zip(&part.lengths);
            let files = files.inspect(|_| work::advance(ENTRY_BYTES));
            let numbers: Vec<Option<u32>> = files.map(|(file, length)| is_kept(file).then(|| merged.push(file.clone(), *length))).collect();
            let keeps_all = numbers.iter().all(Option::is_some);
            let base = merged.numbers() - if keeps_all { numbers.len() as u32 } else { 0 };
            for (word, list) in &part.words {
                work::advance(ENTRY_BYTES + 8 * list.bytes.len());
                // Most words of a part are in the others too, so clone a word only if it is new.
                let kept = match merged.words.get_mut(word) {
                    Some(kept) => kept,
                    None => merged.words.entry(word.clone()).or_default(),
                };
                if keeps_all {
                    kept.append(list, base);
                    continue;
                }
                each_file(list, |number, count| {
                    if let Some(number) = numbers[number] {
                        kept.push(number, count);
                    }
                });
            }
        }
        merged.words.retain(|_, list| list.files > 0);
        merged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::kind::Segment;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use treehold_core::error::{Error, ErrorKind};
    use treehold_core::ops::Version;

    /// Files with the given word counts.
    fn counted(counts: &[Vec<(u16, u32)>]) -> Vec<(IndexedFile, FileWords)> {
        let file = |(number, counts): (usize, &Vec<(u16, u32)>)| {
            let words: BTreeMap<String, u32> = counts.iter().map(|(word, count)| (format!("wört{}", word % 700), *count)).collect();
            let words =
                FileWords { length: words.values().fold(7, |sum, count| sum.wrapping_add(*count)), counts: words.into_iter().collect() };
            let key = format!("directory\u{1}é{}", number / 3 * 7 + number);
            let words = if number % 50 == 49 { Words::unread() } else { words };
            (IndexedFile { key, version: Version::new(number as u64) }, words)
        };
        counts.iter().enumerate().map(file).collect()
    }

    fn borrowed(rows: &[(String, Bytes)]) -> impl Iterator<Item = (&str, &Bytes)> {
        rows.iter().map(|(key, value)| (&**key, value))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn segments_round_trip_and_merge(
            counts in proptest::collection::vec(proptest::collection::vec((any::<u16>(), 1..=u32::MAX), 0..60), 1..700),
            dropped in 0_u64..9,
        ) {
            let all = counted(&counts);
            let lists = Lists::of(all.clone());
            let (segment, rows) = lists.rows(7);
            prop_assert!(rows.is_sorted(), "rows are met in the order of their keys");
            prop_assert_eq!(&Lists::from_rows(segment, borrowed(&rows)).expect("its own rows"), &lists);
            // A row lookup agrees with the files, both for words that exist and for words that do not.
            for word in ["wört0", "wört1", "wört69", "wört", "", "x"] {
                let key = entries_key::<Words>(7, segment.row_of(word));
                let (_, row) = rows.iter().find(|(known, _)| *known == key).expect("a row of each number");
                let naive = all.iter().enumerate().filter_map(|(number, (_, words))| {
                    words.counts.iter().find(|(own, _)| own == word).map(|(_, count)| (number as u32, *count))
                });
                prop_assert_eq!(files_with(row, word).expect("a row"), naive.collect::<Vec<_>>());
            }
            for (number, digest) in lists.digests().iter().enumerate() {
                let (_, words) = &all[number];
                prop_assert_eq!(*digest, (!super::super::is_unread(words)).then(|| super::super::digest_of(words)));
            }
            let (one, other) = all.split_at(all.len() / 3);
            let parts = [Lists::of(one.to_vec()), Lists::of(other.to_vec())];
            // With 0, all files are kept.
            let kept = |file: &IndexedFile| dropped == 0 || !file.version.number().is_multiple_of(dropped);
            let merged = Lists::merged(&parts, kept);
            let wanted = Lists::of(all.into_iter().filter(|(file, _)| kept(file)).collect());
            prop_assert_eq!(&merged.files, &wanted.files);
            prop_assert_eq!(&merged.lengths, &wanted.lengths);
            prop_assert_eq!(&merged.words, &wanted.words);
            prop_assert_eq!(merged.rows(8), wanted.rows(8));
        }

        #[test]
        fn arbitrary_rows_are_decoded_or_corrupt(bytes in proptest::collection::vec(any::<u8>(), 0..200), word in "[a-z]{0,3}") {
            let corrupt = |error: Error| error.kind() == ErrorKind::Corrupt;
            match files_with(&bytes, &word) {
                Ok(files) => prop_assert!(files.windows(2).all(|pair| pair[0].0 < pair[1].0), "{:?}", files),
                Err(error) => prop_assert!(corrupt(error)),
            }
            match Words::from_bytes(&bytes) {
                Ok(words) => prop_assert_eq!(Words::from_bytes(&Words::to_bytes(&words)).expect("just encoded"), words),
                Err(error) => prop_assert!(corrupt(error)),
            }
            if let Err(error) = Words::files_from_bytes(&bytes) {
                prop_assert!(corrupt(error));
            }
        }
    }

    #[test]
    fn incomplete_segment_is_rejected() {
        let counts: Vec<Vec<(u16, u32)>> = (0..60).map(|file| (0..200).map(|word| (file * 3 + word, 1)).collect()).collect();
        let (segment, rows) = Lists::of(counted(&counts)).rows(7);
        assert!(rows.len() > 2 && segment.unread == 1, "{segment:?}");
        for missing in 0..rows.len() {
            let rest: Vec<_> = rows.iter().enumerate().filter(|(row, _)| *row != missing).map(|(_, row)| row.clone()).collect();
            let error = Lists::from_rows(segment, borrowed(&rest)).expect_err("a row is missing");
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
        let mut swapped = rows.clone();
        let last = rows.len() - 1;
        (swapped[last - 1].1, swapped[last].1) = (rows[last].1.clone(), rows[last - 1].1.clone());
        assert!(Lists::from_rows(segment, borrowed(&swapped)).is_err(), "a word is in the row of another hash");
        for wrong in [
            CountedFiles { files: segment.files + 1, ..segment },
            CountedFiles { words: segment.words + 1, ..segment },
            CountedFiles { unread: 0, ..segment },
            CountedFiles { rows_log2: segment.rows_log2 + 1, ..segment },
            CountedFiles { rows_log2: 200, ..segment },
        ] {
            assert_eq!(Lists::from_rows(wrong, borrowed(&rows)).expect_err("another segment").kind(), ErrorKind::Corrupt, "{wrong:?}");
        }
        assert_eq!(segment.files(), 60);
    }

    /// The hash determines where words are stored, so it must never change.
    #[test]
    fn word_hashes_are_stable() {
        assert_eq!(super::super::hash(""), 0xEFD0_1F60_BA99_2926);
        assert_eq!((row_of("memory", 10), row_of("größe", 10)), (654, 673));
    }
}
