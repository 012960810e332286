//! What is stored for each file besides its content, and whether content is text.

use crate::error::{Error, ErrorKind, Result};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// How many bytes at the start of some content determine whether it is binary.
pub const BINARY_PROBE_BYTES: usize = 8192;

/// The smallest part of a large file that is read at once, in bytes.
pub const PART_BYTES: u64 = 4 << 20;

/// The largest part of a large file that is read at once, in bytes.
const PART_BYTES_MAX: u64 = 16 << 20;

/// Returns the size of the parts in which a large file is read: a 32nd of it, but 4 to 16 MiB. Some engines scan everything
/// before a part to find it, so larger files are read in fewer parts.
pub fn part_bytes(size_bytes: u64) -> u64 {
    (size_bytes / 32).clamp(PART_BYTES, PART_BYTES_MAX)
}

/// Returns whether content is binary: whether a NUL byte is among its first [`BINARY_PROBE_BYTES`] bytes. Git has the same rule,
/// with 8,000 bytes; ripgrep checks the part of a file that it reads at a time.
pub fn is_binary(content: &[u8]) -> bool {
    memchr::memchr(0, &content[..content.len().min(BINARY_PROBE_BYTES)]).is_some()
}

/// The metadata of a file in a flat key space, stored separately from the body so that listings need not read bodies.
///
/// The encoding starts with a format number. Fields are only ever added at the end, where older programs ignore them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FileRecord {
    /// The size of the body in bytes.
    pub size_bytes: u64,
    /// When the content was last modified, in microseconds since 1970, if the row was put later than that because the file was
    /// moved.
    pub modified_at_microseconds: Option<i64>,
}

impl FileRecord {
    const FORMAT: u8 = 1;

    /// Encodes the record as the metadata of a row.
    pub fn to_bytes(self) -> Bytes {
        postcard::to_stdvec(&(Self::FORMAT, self)).expect("integers always serialize").into()
    }

    /// Decodes the metadata of a row.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) if the bytes are not a record, or have a later format.
    pub fn from_bytes(meta: &[u8]) -> Result<Self> {
        let corrupt = || Error::new(ErrorKind::Corrupt, "the stored record of this file cannot be read; write the file again or delete it");
        match meta.split_first() {
            Some((&Self::FORMAT, record)) => postcard::from_bytes(record).map_err(|error| corrupt().with_source(error)),
            Some((format, _)) if *format > Self::FORMAT => Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "a stored file has record format {format}, but this version of treehold reads formats up to {}; use a newer version",
                    Self::FORMAT
                ),
            )),
            _ => Err(corrupt()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_ignore_later_fields() {
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
