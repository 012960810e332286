//! A walk over the files of all partitions, in order.

use super::names::{Found, Tenant, tenant_of, tenants};
use super::opened::{OpenFiles, on_blocking_thread};
use super::upkeep::FileMark;
use std::collections::VecDeque;
use std::path::PathBuf;
use treehold_core::error::Result;
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
    with_marks: bool,
}

impl Walk {
    pub(super) fn new(files: &OpenFiles, prefix: String, from: Option<&Partition>) -> Self {
        let from = from.map(|partition| partition.encoded().to_owned());
        Self { root: files.root().to_owned(), prefix, from, tenants: None, files: VecDeque::new(), with_marks: false }
    }

    /// Reads the mark of each file too.
    pub(super) fn with_marks(mut self) -> Self {
        self.with_marks = true;
        self
    }

    /// Returns the next file; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Found>> {
        Ok(self.next_marked().await?.map(|(_, found)| found))
    }

    /// Returns the next file and its mark, if marks are read.
    pub(super) async fn next_marked(&mut self) -> Result<Option<(Option<FileMark>, Found)>> {
        loop {
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
            if self.is_within(tenant.text()) && self.from.as_deref().is_none_or(|from| tenant.text() >= tenant_of(from)) {
                let with_marks = self.with_marks;
                self.files = on_blocking_thread(move || {
                    let mark = |found: Found| (with_marks.then(|| FileMark::of(&found.path)), found);
                    Ok(tenant.files()?.into_iter().map(mark).collect())
                })
                .await?;
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
