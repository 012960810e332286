//! What is stored of a file beside its content, and whether content is text.

use crate::error::{Error, ErrorKind, Result};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// How many bytes at the start of a content decide whether it is binary.
pub const BINARY_PROBE_BYTES: usize = 8192;

/// The least of a large file that is read at a time.
pub(crate) const PART_BYTES: u64 = 4 << 20;

/// The most of a large file that is read at a time.
const PART_BYTES_MAX: u64 = 16 << 20;

/// Returns how much of a file that is not held whole is read at a time: a 32nd of it, from 4 to 16 MiB. Some engines go through all that is
/// before a part to find it, so the more there is the fewer parts should be asked for.
pub(crate) fn part_bytes(size_bytes: u64) -> u64 {
    (size_bytes / 32).clamp(PART_BYTES, PART_BYTES_MAX)
}

/// Tells whether content is binary: a NUL byte among its first [`BINARY_PROBE_BYTES`]. The rule is git's, which looks at 8,000 bytes; ripgrep
/// goes by the part of a file that it reads at a time.
pub fn is_binary(content: &[u8]) -> bool {
    memchr::memchr(0, &content[..content.len().min(BINARY_PROBE_BYTES)]).is_some()
}

/// The small record of a file in a flat key space, so that a listing never reads bodies.
///
/// As bytes it starts with its format's number; fields are only ever added at its end, where an older program passes over them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    /// The size of the body in bytes.
    pub(crate) size_bytes: u64,
    /// When the content last changed, in microseconds since 1970, if that was not when the row was put: a file that was moved.
    pub(crate) modified_at_microseconds: Option<i64>,
}

impl FileRecord {
    const FORMAT: u8 = 1;

    /// Writes the record as the meta of a row.
    pub(crate) fn to_bytes(self) -> Bytes {
        postcard::to_stdvec(&(Self::FORMAT, self)).expect("a record of numbers can always be written").into()
    }

    /// Reads the meta of a row.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) for what is no record, or one of a later format.
    pub(crate) fn from_bytes(meta: &[u8]) -> Result<Self> {
        let corrupt = || Error::new(ErrorKind::Corrupt, "what is stored of this file cannot be read; write the file anew, or delete it");
        match meta.split_first() {
            Some((&Self::FORMAT, record)) => postcard::from_bytes(record).map_err(|error| corrupt().with_source(error)),
            Some((format, _)) if *format > Self::FORMAT => Err(Error::new(
                ErrorKind::Corrupt,
                format!("a stored file has a record of format {format} and this program knows up to {}; use a newer one", Self::FORMAT),
            )),
            _ => Err(corrupt()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back_and_pass_over_later_fields() {
        for modified_at_microseconds in [None, Some(-1), Some(i64::MAX)] {
            let record = FileRecord { size_bytes: u64::MAX, modified_at_microseconds };
            let mut bytes = record.to_bytes().to_vec();
            assert_eq!(FileRecord::from_bytes(&bytes).expect("its own bytes"), record);
            bytes.extend_from_slice(b"later fields");
            assert_eq!(FileRecord::from_bytes(&bytes).expect("a longer record"), record);
        }
        for bytes in [&b""[..], &[0], &[1], &[2, 0, 0]] {
            assert_eq!(FileRecord::from_bytes(bytes).expect_err("no record").kind(), ErrorKind::Corrupt, "{bytes:?}");
        }
    }
}
