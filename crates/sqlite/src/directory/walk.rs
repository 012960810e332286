//! A walk over the files of all partitions, in order.

use super::names::{Found, Tenant, tenant_of, tenants};
use super::opened::OpenFiles;
use crate::{SqliteOptions, SqliteStore};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_store::Partition;

/// A walk over files. Memory: the tenants, and the files of one of them.
#[derive(Debug)]
pub(super) struct Walk {
    root: PathBuf,
    options: SqliteOptions,
    /// What the texts of the partitions or of namespaces in them begin with.
    prefix: String,
    /// The text of the partition to start with.
    from: Option<String>,
    /// `None` until they are listed.
    tenants: Option<VecDeque<Tenant>>,
    files: VecDeque<Found>,
}

impl Walk {
    pub(super) fn new(files: &OpenFiles, prefix: String, from: Option<&Partition>) -> Self {
        let from = from.map(|partition| partition.encoded().to_owned());
        Self { root: files.root().to_owned(), options: files.options().clone(), prefix, from, tenants: None, files: VecDeque::new() }
    }

    /// Returns the next file; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Found>> {
        loop {
            if let Some(found) = self.files.pop_front() {
                if self.includes(found.partition.encoded()) {
                    return Ok(Some(found));
                }
                continue;
            }
            let tenants = match &mut self.tenants {
                Some(tenants) => tenants,
                unlisted => {
                    let (root, options) = (self.root.clone(), self.options.clone());
                    unlisted.insert(on_blocking_thread(move || tenants(&root, &|path| partition_in(&options, path))).await?.into())
                }
            };
            let Some(tenant) = tenants.pop_front() else { return Ok(None) };
            if self.is_within(tenant.text()) && self.from.as_deref().is_none_or(|from| tenant.text() >= tenant_of(from)) {
                let options = self.options.clone();
                self.files = on_blocking_thread(move || tenant.files(&|path| partition_in(&options, path))).await?.into();
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

/// Reads the partition of the rows in a file. Blocks.
fn partition_in(options: &SqliteOptions, path: &Path) -> Result<Option<Partition>> {
    let store = SqliteStore::open_with(SqliteOptions { path: path.to_owned(), ..options.clone() })?;
    Ok(store.first_namespace()?.map(|namespace| namespace.partition()))
}

async fn on_blocking_thread<T: Send + 'static>(run: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(run)
        .await
        .map_err(|error| Error::new(ErrorKind::Internal, "listing the files of the store was interrupted").with_source(error))?
}
