//! A trigram segment in memory: its files, and a bit matrix of their signatures.

use super::{SignedFiles, Trigrams, bits_per_row, digest_of_bit, digest_of_size, stride};
use crate::index::files::{self, ENTRY_BYTES, FILES_PER_ROW, IndexedFile};
use crate::index::kind::Part;
use crate::index::manifest::{SegmentRow, damaged, entries_key, files_key};
use bytes::Bytes;
use treehold_core::error::Result;
use treehold_core::search::trigram::{Need, Signature, SignatureSize, Trigram};
use treehold_core::work;

/// The transposed signatures of some files: for each bit, the set of files that have it.
#[derive(Debug, Clone)]
pub(in crate::index) struct Matrix {
    size: SignatureSize,
    files: Vec<IndexedFile>,
    /// For each signature bit, [`stride`] bytes with one bit for each file.
    bits: Vec<u8>,
}

impl Matrix {
    /// Transposes the signatures of files. All signatures have the given size.
    pub(super) fn of(size: SignatureSize, signed: Vec<(IndexedFile, Signature)>) -> Self {
        let stride = stride(signed.len());
        let mut bits = vec![0; stride * size.bits()];
        let mut files = Vec::with_capacity(signed.len());
        for (number, (file, signature)) in signed.into_iter().enumerate() {
            assert_eq!(signature.size(), size, "the signatures of a segment differ in size");
            for bit in set_bits(signature.as_bytes()) {
                bits[bit * stride + number / 8] |= 1 << (number % 8);
            }
            files.push(file);
        }
        Self { size, files, bits }
    }

    fn slice(&self, bit: usize) -> &[u8] {
        let stride = stride(self.files.len());
        &self.bits[bit * stride..][..stride]
    }

    /// Returns the digest of each file's signature, or `None` for a file whose signature matches everything.
    pub(super) fn digests(&self) -> Vec<Option<u64>> {
        let mut digests = vec![digest_of_size(self.size); self.files.len()];
        let mut counts = vec![0; self.files.len()];
        for bit in 0..self.size.bits() {
            let added = digest_of_bit(bit);
            // Ignore padding bits after the last file.
            for number in set_bits(self.slice(bit)).take_while(|number| *number < self.files.len()) {
                digests[number] = digests[number].wrapping_add(added);
                counts[number] += 1;
            }
        }
        digests.into_iter().zip(counts).map(|(digest, count)| (count < self.size.bits()).then_some(digest)).collect()
    }
}

impl Part for Matrix {
    type Segment = SignedFiles;

    fn files(&self) -> &[IndexedFile] {
        &self.files
    }

    fn rows(&self, id: u64) -> (SignedFiles, Vec<(String, Bytes)>) {
        let lists = self.files.chunks(FILES_PER_ROW).enumerate();
        let lists = lists.map(|(row, files)| (files_key::<Trigrams>(id, row), files::to_bytes(files).into()));
        let row_bytes = bits_per_row(self.files.len()) * stride(self.files.len());
        let bits = self.bits.chunks(row_bytes.max(1)).enumerate();
        let rows = lists.chain(bits.map(|(row, bits)| (entries_key::<Trigrams>(id, row), Bytes::copy_from_slice(bits))));
        (SignedFiles::new(id, self.size, self.files.len()), rows.collect())
    }

    fn from_rows<'r>(segment: SignedFiles, rows: impl Iterator<Item = (&'r str, &'r Bytes)>) -> Result<Self> {
        let size = segment.size()?;
        // Do not allocate by the size in the manifest: it may be damaged.
        let (mut files, mut bits) = (Vec::new(), Vec::new());
        for (key, value) in rows {
            match SegmentRow::of::<Trigrams>(key)? {
                SegmentRow::Files => files.extend(files::from_bytes(value)?.0),
                SegmentRow::Entries => bits.extend_from_slice(value),
            }
        }
        if files.len() != segment.files as usize || bits.len() != segment.stride() * size.bits() {
            return Err(damaged("a segment"));
        }
        Ok(Self { size, files, bits })
    }

    fn merged(parts: &[Self], is_kept: impl Fn(&IndexedFile) -> bool) -> Self {
        let size = parts.first().map_or(SignatureSize::MIN, |part| part.size);
        let mut files = Vec::new();
        // For each part, the new numbers of its files.
        let mut numbers: Vec<Vec<Option<u32>>> = Vec::with_capacity(parts.len());
        for part in parts {
            let number = |file: &IndexedFile| {
                work::advance(ENTRY_BYTES);
                is_kept(file).then(|| {
                    files.push(file.clone());
                    u32::try_from(files.len() - 1).expect("the byte limit of a segment bounds its files")
                })
            };
            numbers.push(part.files.iter().map(number).collect());
        }
        let stride = stride(files.len());
        let mut bits = vec![0; stride * size.bits()];
        for (part, numbers) in parts.iter().zip(&numbers) {
            for bit in 0..size.bits() {
                work::advance(numbers.len() + stride);
                let target = &mut bits[bit * stride..][..stride];
                for number in set_bits(part.slice(bit)).filter_map(|number| numbers.get(number).copied().flatten()) {
                    target[number as usize / 8] |= 1 << (number % 8);
                }
            }
        }
        Self { size, files, bits }
    }
}

/// Returns the files of a segment that may satisfy a need, as one bit for each file. `slice` returns the file bits of a trigram.
pub(super) fn files_meeting(need: &Need, segment: SignedFiles, slice: &impl Fn(Trigram) -> Result<Bytes>) -> Result<Vec<u8>> {
    match need {
        Need::Nothing => {
            let mut all = vec![0xFF; segment.stride()];
            if !segment.files.is_multiple_of(8)
                && let Some(last) = all.last_mut()
            {
                *last = (1 << (segment.files % 8)) - 1;
            }
            Ok(all)
        }
        Need::Trigram(trigram) => slice(*trigram).map(Vec::from),
        Need::All(needs) => {
            let mut met = files_meeting(&Need::Nothing, segment, slice)?;
            for need in needs {
                met.iter_mut().zip(files_meeting(need, segment, slice)?).for_each(|(met, other)| *met &= other);
            }
            Ok(met)
        }
        Need::Any(needs) => {
            let mut met = vec![0; segment.stride()];
            for need in needs {
                met.iter_mut().zip(files_meeting(need, segment, slice)?).for_each(|(met, other)| *met |= other);
            }
            Ok(met)
        }
    }
}

/// Returns the positions of the set bits.
pub(super) fn set_bits(bytes: &[u8]) -> impl Iterator<Item = usize> {
    bytes.iter().enumerate().filter(|(_, byte)| **byte != 0).flat_map(|(at, byte)| {
        let mut left = *byte;
        std::iter::from_fn(move || {
            let bit = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            (bit < 8).then_some(at * 8 + bit)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::kind::Kind;
    use proptest::prelude::*;
    use treehold_core::ops::Version;

    fn signed(contents: &[Vec<u8>], size: SignatureSize) -> Vec<(IndexedFile, Signature)> {
        let signed = contents.iter().enumerate().map(|(number, content)| {
            let key = format!("directory\u{1}é{}", number / 3 * 7 + number);
            (IndexedFile { key, version: Version::new(number as u64) }, Signature::of(content))
        });
        signed.filter(|(_, signature)| signature.size() == size).collect()
    }

    fn read_back(matrix: &Matrix) -> Matrix {
        let (segment, rows) = matrix.rows(7);
        assert!(rows.is_sorted(), "rows are met in the order of their keys");
        Matrix::from_rows(segment, rows.iter().map(|(key, value)| (&**key, value))).expect("its own rows")
    }

    proptest! {
        #[test]
        fn segments_round_trip_and_merge(
            contents in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..700),
            dropped in 1_u64..9,
        ) {
            let all = signed(&contents, SignatureSize::MIN);
            let matrix = Matrix::of(SignatureSize::MIN, all.clone());
            let again = read_back(&matrix);
            prop_assert_eq!(&again.files, &matrix.files);
            prop_assert_eq!(&again.bits, &matrix.bits);
            let digests = all.iter().map(|(_, signature)| Some(Trigrams::digest(signature)));
            prop_assert_eq!(matrix.digests(), digests.collect::<Vec<_>>());
            let (one, other) = all.split_at(all.len() / 3);
            let parts = [Matrix::of(SignatureSize::MIN, one.to_vec()), Matrix::of(SignatureSize::MIN, other.to_vec())];
            let kept = |file: &IndexedFile| !file.version.number().is_multiple_of(dropped);
            let merged = Matrix::merged(&parts, kept);
            let wanted = Matrix::of(SignatureSize::MIN, all.into_iter().filter(|(file, _)| kept(file)).collect());
            prop_assert_eq!(&merged.files, &wanted.files);
            prop_assert_eq!(&merged.bits, &wanted.bits);
        }
    }

    #[test]
    fn signatures_that_differ_in_one_bit_have_different_digests() {
        let file = IndexedFile { key: "a".to_owned(), version: Version::new(1) };
        let bytes = Signature::of(b"some text").as_bytes().to_vec();
        let mut digests = std::collections::BTreeSet::new();
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            digests.insert(Trigrams::digest(&Signature::from_bytes(&other).expect("a size that signatures have")));
        }
        assert_eq!(digests.len(), bytes.len() * 8);
        assert!(!digests.contains(&Trigrams::digest(&Signature::of(b"some text"))));
        let unread = Matrix::of(SignatureSize::MIN, vec![(file, Signature::of_anything())]);
        assert_eq!(unread.digests(), [None]);
    }

    #[test]
    fn incomplete_segment_is_rejected() {
        let matrix = Matrix::of(SignatureSize::MIN, signed(&[b"some text".to_vec(), b"more".to_vec()], SignatureSize::MIN));
        let (segment, rows) = matrix.rows(7);
        for missing in 0..rows.len() {
            let rest = rows.iter().enumerate().filter(|(row, _)| *row != missing).map(|(_, (key, value))| (&**key, value));
            let error = Matrix::from_rows(segment, rest).expect_err("a row is missing");
            assert_eq!(error.kind(), treehold_core::error::ErrorKind::Corrupt);
        }
        let vast = SignedFiles::new(7, SignatureSize::MAX, u32::MAX as usize);
        assert!(Matrix::from_rows(vast, rows.iter().map(|(key, value)| (&**key, value))).is_err());
    }
}
