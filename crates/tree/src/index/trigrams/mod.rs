//! The trigram index, which tells which files may match a grep without reading them.
//!
//! It keeps the [`Signature`] of each file. A segment holds the signatures of many files, transposed: for each signature bit, one
//! bit for each file. So a search reads only the rows of the bits that its trigrams map to. Files with signatures of different
//! sizes are in different segments.

mod candidates;
mod matrix;

use self::matrix::Matrix;
use super::files::{self, IndexedFile};
use super::kind::{IndexKind, Kind, Segment, mix};
use super::manifest::damaged;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use treehold_core::error::Result;
use treehold_core::path::VfsPath;
use treehold_core::search::trigram::{Signature, SignatureSize};

/// The approximate size in bytes of a row of segment bits. A row has at least one bit of every file, even if that is larger.
const BITS_BYTES_PER_ROW: usize = 4_096;

/// The trigram index.
pub(super) struct Trigrams;

impl Kind for Trigrams {
    const KIND: IndexKind = IndexKind::Trigram;
    const SEGMENT_BYTES_MAX: usize = 16 << 20;

    type Entry = Signature;
    type Segment = SignedFiles;
    type File = IndexedFile;
    type Part = Matrix;

    fn entry(_path: &VfsPath, content: &[u8]) -> Signature {
        Signature::of(content)
    }

    fn unread() -> Signature {
        Signature::of_anything()
    }

    fn to_bytes(signature: &Signature) -> Bytes {
        signature.as_bytes().to_vec().into()
    }

    fn from_bytes(bytes: &[u8]) -> Result<Signature> {
        Signature::from_bytes(bytes).ok_or_else(|| damaged("a signature"))
    }

    fn size_bytes(signature: &Signature) -> usize {
        signature.as_bytes().len()
    }

    fn covers(kept: &Signature, now: &Signature) -> bool {
        kept.covers(now)
    }

    fn parts(entries: Vec<(IndexedFile, Signature)>) -> Vec<Matrix> {
        let mut by_size: BTreeMap<SignatureSize, Vec<(IndexedFile, Signature)>> = BTreeMap::new();
        for (file, signature) in entries {
            by_size.entry(signature.size()).or_default().push((file, signature));
        }
        by_size.into_iter().map(|(size, signed)| Matrix::of(size, signed)).collect()
    }

    fn files_from_bytes(bytes: &[u8]) -> Result<Vec<IndexedFile>> {
        files::from_bytes(bytes).map(|(files, _)| files)
    }

    fn digest(signature: &Signature) -> u64 {
        matrix::set_bits(signature.as_bytes()).fold(digest_of_size(signature.size()), |sum, bit| sum.wrapping_add(digest_of_bit(bit)))
    }

    fn digests(matrix: &Matrix) -> Vec<Option<u64>> {
        matrix.digests()
    }
}

/// Returns what a set bit contributes to the digest of a signature. Contributions are summed, so their order does not matter.
fn digest_of_bit(bit: usize) -> u64 {
    mix(bit as u64 + 1)
}

fn digest_of_size(size: SignatureSize) -> u64 {
    mix(u64::MAX - u64::from(size.bits_log2()))
}

/// A segment of signatures of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SignedFiles {
    id: u64,
    /// The signature size: the binary logarithm of its number of bits.
    bits_log2: u8,
    files: u32,
}

impl SignedFiles {
    fn new(id: u64, size: SignatureSize, files: usize) -> Self {
        Self { id, bits_log2: size.bits_log2(), files: u32::try_from(files).expect("the byte limit of a segment bounds its files") }
    }

    /// # Errors
    /// [`Corrupt`](treehold_core::error::ErrorKind::Corrupt) if signatures cannot have this size.
    fn size(self) -> Result<SignatureSize> {
        SignatureSize::from_bits_log2(self.bits_log2).ok_or_else(|| damaged("its manifest"))
    }

    /// Returns the number of bytes that hold one bit of every file.
    fn stride(self) -> usize {
        stride(self.files as usize)
    }

    /// Returns the number of signature bits in one row.
    fn bits_per_row(self) -> usize {
        bits_per_row(self.files as usize)
    }
}

impl Segment for SignedFiles {
    fn id(self) -> u64 {
        self.id
    }

    fn files(self) -> usize {
        self.files as usize
    }

    fn group(self) -> u8 {
        self.bits_log2
    }

    fn size_bytes(self) -> usize {
        self.size().map_or(usize::MAX, |size| self.files().saturating_mul(size.bytes()))
    }
}

/// Returns the number of bytes that hold one bit of every file.
fn stride(files: usize) -> usize {
    files.div_ceil(8)
}

/// Returns the number of signature bits in one row of a segment with this many files.
fn bits_per_row(files: usize) -> usize {
    (BITS_BYTES_PER_ROW / stride(files).max(1)).max(1)
}
