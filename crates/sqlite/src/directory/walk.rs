//! A walk over the files of all partitions, in order.

use super::names::{Found, Tenant, tenant_of, tenants};
use super::opened::{OpenFiles, on_blocking_thread};
use super::upkeep::FileMark;
use std::collections::VecDeque;
use std::path::PathBuf;
use treehold_core::error::{Error, Result};
use treehold_store::Partition;

/// A walk over files. Memory: the tenants, and the files of one of them.
#[derive(Debug)]
pub(super) struct Walk {
    root: PathBuf,
    /// What the texts of the partitions or of namespaces in them begin with.
    prefix: String,
    /// The text of the partition to start with.
    from: Option<String>,
    /// `None` until they are listed.
    tenants: Option<VecDeque<Tenant>>,
    files: VecDeque<(Option<FileMark>, Found)>,
    /// Why parts of the directory are not listed, which was not returned yet.
    faults: VecDeque<Error>,
    with_marks: bool,
}

impl Walk {
    pub(super) fn new(files: &OpenFiles, prefix: String, from: Option<&Partition>) -> Self {
        let from = from.map(|partition| partition.encoded().to_owned());
        let root = files.root().to_owned();
        Self { root, prefix, from, tenants: None, files: VecDeque::new(), faults: VecDeque::new(), with_marks: false }
    }

    /// Reads the mark of each file too.
    pub(super) fn with_marks(mut self) -> Self {
        self.with_marks = true;
        self
    }

    /// Returns the next file; `None` at the end. Fails for a part of the directory that cannot be listed.
    pub(super) async fn next(&mut self) -> Result<Option<Found>> {
        Ok(self.next_marked().await?.map(|(_, found)| found))
    }

    /// Returns the next file; `None` at the end. Passes parts of the directory that cannot be listed to `failed`, and goes on after them.
    pub(super) async fn next_past(&mut self, failed: impl FnMut(Error) + Send) -> Result<Option<Found>> {
        Ok(self.next_marked_past(failed).await?.map(|(_, found)| found))
    }

    /// As [`next_past`](Self::next_past), with the mark of the file, if marks are read.
    pub(super) async fn next_marked_past(&mut self, mut failed: impl FnMut(Error) + Send) -> Result<Option<(Option<FileMark>, Found)>> {
        loop {
            match self.next_marked().await {
                // Once the tenants are listed, an error is about one of them.
                Err(error) if self.tenants.is_some() => failed(error),
                found => return found,
            }
        }
    }

    async fn next_marked(&mut self) -> Result<Option<(Option<FileMark>, Found)>> {
        loop {
            if let Some(fault) = self.faults.pop_front() {
                return Err(fault);
            }
            if let Some((mark, found)) = self.files.pop_front() {
                if self.includes(found.partition.encoded()) {
                    return Ok(Some((mark, found)));
                }
                continue;
            }
            let tenants = match &mut self.tenants {
                Some(tenants) => tenants,
                unlisted => {
                    let root = self.root.clone();
                    unlisted.insert(on_blocking_thread(move || tenants(&root)).await?.into())
                }
            };
            let Some(tenant) = tenants.pop_front() else { return Ok(None) };
            // What belongs to an unknown tenant may come anywhere.
            let is_unknown = tenant.text().is_empty();
            let is_due = self.from.as_deref().is_none_or(|from| is_unknown || tenant.text() >= tenant_of(from));
            if is_due && self.is_within(tenant.text()) {
                let with_marks = self.with_marks;
                let (files, faults) = on_blocking_thread(move || {
                    let mark = |found: Found| (with_marks.then(|| FileMark::of(&found.path)), found);
                    let (files, faults) = tenant.files();
                    Ok((files.into_iter().map(mark).collect::<VecDeque<_>>(), VecDeque::from(faults)))
                })
                .await?;
                (self.files, self.faults) = (files, faults);
            }
        }
    }

    fn includes(&self, partition: &str) -> bool {
        self.is_within(partition) && self.from.as_deref().is_none_or(|from| partition >= from)
    }

    fn is_within(&self, text: &str) -> bool {
        text.starts_with(&self.prefix) || self.prefix.starts_with(text)
    }
}
