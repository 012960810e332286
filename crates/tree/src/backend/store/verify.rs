//! Verifies every row of a tree. `treehold doctor` calls this.

use super::StoreBackend;
use super::found::FAILURES_MAX;
use crate::index::unindexed;
use crate::rows::{self, RowKey};
use treehold_core::error::{Error, ErrorKind, ErrorRecord, Result};
use treehold_core::ops::Failure;
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_store::{Item, ScanEntry, ScanOptions};

/// The outcome of [`StoreBackend::verify`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Verification {
    /// The number of rows checked.
    pub rows: u64,
    /// The first hundred faults: each with its path and how to repair it.
    pub failures: Vec<Failure>,
    /// The total number of faults.
    pub failures_count: usize,
}

impl Verification {
    fn fail(&mut self, path: &VfsPath, error: &Error) {
        self.failures_count += 1;
        if self.failures.len() < FAILURES_MAX {
            let path = error.path().unwrap_or(path).to_owned();
            self.failures.push(Failure { path, error: ErrorRecord::from(error) });
        }
    }
}

impl StoreBackend {
    /// Reads every row with its body and reports rows that are damaged, that do not belong to the tree, or whose parent directory
    /// is missing. Also checks that the indexes find every file.
    ///
    /// Calls `progress` with the number of rows read so far. Cost: reads all bodies of the tree one page at a time, and its
    /// indexes one segment at a time. Keeps 16 bytes of memory for each file and index.
    ///
    /// # Errors
    /// Errors of the store. A damaged row is not an error but a failure in the result.
    pub async fn verify(&self, mut progress: impl FnMut(u64) + Send) -> Result<Verification> {
        let mut found = Verification::default();
        let mut options = ScanOptions::new();
        // The directories that can hold the next row, deepest last. In key order, a directory precedes its contents.
        let mut open: Vec<VfsPathBuf> = Vec::new();
        let mut last_file: Option<VfsPathBuf> = None;
        let indexes = self.indexes.read().await?;
        for error in &indexes.failures {
            found.fail(VfsPath::ROOT, error);
        }
        loop {
            let mut files: Vec<Item> = Vec::new();
            let (page, unread) = rows::read_page(&*self.store, &self.namespace, &options).await?;
            for (key, error) in &unread {
                let place = RowKey::of(key);
                found.fail(place.as_ref().map_or(VfsPath::ROOT, |place| &place.path), error);
            }
            for entry in page.entries {
                let ScanEntry::Item(item) = entry else { continue };
                found.rows += 1;
                let place = match RowKey::of(&item.key) {
                    Ok(place) => place,
                    Err(error) => {
                        found.fail(VfsPath::ROOT, &error);
                        continue;
                    }
                };
                open.retain(|directory| place.path.starts_with(directory));
                if let Some(parent) =
                    place.path.parent().filter(|parent| !parent.is_root() && open.last().map(|open| &**open) != Some(parent))
                {
                    found.fail(parent, &rows::orphaned(parent));
                    open.push(parent.to_owned());
                }
                if !place.is_directory {
                    match rows::body(&place.path, &item) {
                        Ok(_) => files.push(item),
                        Err(error) => found.fail(&place.path, &error),
                    }
                    last_file = Some(place.path);
                    continue;
                }
                if last_file.as_ref() == Some(&place.path) {
                    let message = format!("`{}` is a file and a directory; delete the file", place.path);
                    found.fail(&place.path, &Error::new(ErrorKind::Corrupt, message));
                }
                open.push(place.path);
            }
            for (file, kind) in self.indexes.unindexed(&indexes, &files).await? {
                if let Ok(place) = RowKey::of(&files[file].key) {
                    found.fail(&place.path, &unindexed(&place.path, kind));
                }
            }
            progress(found.rows);
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => return Ok(found),
            }
        }
    }
}
