//! Verifies every row of a tree. `treehold doctor` calls this.

use super::StoreBackend;
use super::found::FAILURES_MAX;
use super::index::unindexed;
use super::rows::{self, Place};
use super::search::read_each;
use treehold_core::error::{Error, ErrorKind, ErrorRecord, Result};
use treehold_core::ops::Failure;
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_store::{Item, Scan, ScanEntry, ScanOptions};

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
        let indexes = self.read_indexes().await?;
        for error in &indexes.failures {
            found.fail(VfsPath::ROOT, error);
        }
        loop {
            let mut files: Vec<Item> = Vec::new();
            let (page, unread) = self.page(&options).await?;
            for (key, error) in &unread {
                let place = Place::of(key);
                found.fail(place.as_ref().map_or(VfsPath::ROOT, |place| &place.path), error);
            }
            for entry in page.entries {
                let ScanEntry::Item(item) = entry else { continue };
                found.rows += 1;
                let place = match Place::of(&item.key) {
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
            for (file, kind) in self.unindexed(&indexes, &files).await? {
                if let Ok(place) = Place::of(&files[file].key) {
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

    /// Returns a page of rows with their bodies, and the keys of the rows whose bodies cannot be read.
    pub(super) async fn page(&self, options: &ScanOptions) -> Result<(Scan, Vec<(String, Error)>)> {
        match self.store.scan(&self.namespace, options.clone().with_values(true)).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => {}
            page => return page.map(|page| (page, Vec::new())),
        }
        let mut page = self.store.scan(&self.namespace, options.clone().with_limit(100)).await?;
        let keys: Vec<String> = page.entries.iter().map(|entry| entry.key().to_owned()).collect();
        let borrowed: Vec<&str> = keys.iter().map(String::as_str).collect();
        let read = read_each(self, &borrowed).await?;
        let mut unread = Vec::new();
        page.entries = Vec::new();
        for (key, item) in keys.into_iter().zip(read) {
            match item {
                Ok(item) => page.entries.extend(item.map(ScanEntry::Item)),
                Err(error) => unread.push((key, error)),
            }
        }
        Ok((page, unread))
    }
}
