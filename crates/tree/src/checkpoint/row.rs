//! Checks whether a store row is consistent with its namespace, as far as the row alone shows.

use super::record::Record;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::file::FileRecord;
use treehold_core::reserved::{HISTORY, RESERVED_ROOT, THREADS, reserved_path};
use treehold_store::{Item, Namespace};

/// The name beneath the reserved root that threads lie under.
const NAME: &str = THREADS[1];

/// The name beneath the reserved root that the past of files lies under.
const HISTORY_NAME: &str = HISTORY[1];

/// Checks a row of any namespace against what this crate stores there: contents of threads by the hash that is their key, checkpoints and
/// heads by their records, files by the size in their meta, and the past of files by the hash in its key. Foreign rows pass.
///
/// # Errors
/// [`Corrupt`](ErrorKind::Corrupt) for a row that does not match.
pub fn check_row(namespace: &Namespace, item: &Item) -> Result<()> {
    let components: Vec<_> = reserved_path(namespace).take(3).collect();
    let corrupt = |message: &str| Err(Error::new(ErrorKind::Corrupt, message.to_owned()));
    match components.iter().map(AsRef::as_ref).collect::<Vec<&str>>()[..] {
        [RESERVED_ROOT, NAME, "bodies"] if blake3::hash(&item.value).to_hex().as_str() != item.key => {
            corrupt("the content of a thread does not match its hash")
        }
        [RESERVED_ROOT, NAME, "checkpoints"] => Record::from_bytes(&item.meta).map(drop),
        [RESERVED_ROOT, NAME, "heads"] => Record::from_bytes(&item.value).map(drop),
        [RESERVED_ROOT, NAME, ..] => Ok(()),
        [RESERVED_ROOT, HISTORY_NAME, ..] => check_past(item),
        _ => match FileRecord::from_bytes(&item.meta) {
            Ok(record) if record.size_bytes != item.value.len() as u64 => {
                corrupt(&format!("the file was stored with {} bytes and has {}", record.size_bytes, item.value.len()))
            }
            // Without such a record it is either not a file, or one whose tree knows its size.
            _ => Ok(()),
        },
    }
}

/// Checks a row of the past of files: the key of a content ends with its hash, and a list of versions is JSON.
fn check_past(item: &Item) -> Result<()> {
    let corrupt = |message: &str| Error::new(ErrorKind::Corrupt, message.to_owned());
    if item.key.starts_with('c') && !item.key.ends_with(blake3::hash(&item.value).to_hex().as_str()) {
        return Err(corrupt("the earlier content of a file does not match its hash"));
    }
    if item.key.starts_with('p') {
        let list = serde_json::from_slice::<serde::de::IgnoredAny>(&item.value);
        return list.map(drop).map_err(|error| corrupt("the list of the versions of a file cannot be read").with_source(error));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{BackendExt, HistoryPolicy, StoreBackend};
    use std::sync::Arc;
    use treehold_store::{MemoryStore, ScanEntry, ScanOptions, Store};

    #[tokio::test]
    async fn damaged_past_is_found_by_its_row() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let tree = StoreBackend::new(store.clone(), Namespace::new(["notes"]).expect("a legal name")).with_history(HistoryPolicy::new());
        for content in ["one", "two", "three"] {
            tree.write("/a.md", content).await.expect("written");
        }
        let namespace = Namespace::parse("notes//_treehold/history").expect("a legal name");
        let page = store.scan(&namespace, ScanOptions::new().with_values(true)).await.expect("read");
        let mut kinds = Vec::new();
        for entry in page.entries {
            let ScanEntry::Item(item) = entry else { continue };
            check_row(&namespace, &item).expect("it is whole");
            let mut damaged = item.clone();
            damaged.value = item.value.slice(1..);
            if let Err(error) = check_row(&namespace, &damaged) {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                kinds.push(item.key.chars().next().expect("no key is empty"));
            }
        }
        kinds.sort_unstable();
        assert_eq!(kinds, ['c', 'c', 'p']);
    }
}
