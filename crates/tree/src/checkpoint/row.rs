//! Checks whether a store row is consistent with its namespace, as far as the row alone shows.

use super::record::Record;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::file::FileRecord;
use treehold_core::reserved::{RESERVED_ROOT, THREADS};
use treehold_store::{Item, Namespace};

/// The name beneath the reserved root that threads lie under.
const NAME: &str = THREADS[1];

/// Checks a row of any namespace against what this crate stores there: contents of threads by the hash that is their key, checkpoints and
/// heads by their records, files by the size in their meta. Foreign rows pass.
///
/// # Errors
/// [`Corrupt`](ErrorKind::Corrupt) for a row that does not match.
pub fn check_row(namespace: &Namespace, item: &Item) -> Result<()> {
    let components: Vec<_> = namespace.components().take(3).collect();
    let corrupt = |message: &str| Err(Error::new(ErrorKind::Corrupt, message.to_owned()));
    match components.iter().map(AsRef::as_ref).collect::<Vec<&str>>()[..] {
        [RESERVED_ROOT, NAME, "bodies"] if blake3::hash(&item.value).to_hex().as_str() != item.key => {
            corrupt("the content of a thread does not match its hash")
        }
        [RESERVED_ROOT, NAME, "checkpoints"] => Record::from_bytes(&item.meta).map(drop),
        [RESERVED_ROOT, NAME, "heads"] => Record::from_bytes(&item.value).map(drop),
        [RESERVED_ROOT, NAME, ..] => Ok(()),
        _ => match FileRecord::from_bytes(&item.meta) {
            Ok(record) if record.size_bytes != item.value.len() as u64 => {
                corrupt(&format!("the file was stored with {} bytes and has {}", record.size_bytes, item.value.len()))
            }
            // Without such a record it is either not a file, or one whose tree knows its size.
            _ => Ok(()),
        },
    }
}
