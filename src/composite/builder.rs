//! How a composite is put together: prefixes are checked here, so that routing need not.

use super::router::Router;
use super::{CompositeBackend, Mount};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::path::{VfsPath, VfsPathBuf};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How many mounts are asked at the same time unless the builder says otherwise.
const CONCURRENCY: usize = 16;

/// The largest file that is carried from mount to mount unless the builder says otherwise, in bytes: what one read returns.
const TRANSFER_BYTES_MAX: u64 = 64 << 20;

/// Collects the mounts of a [`CompositeBackend`].
#[derive(Debug)]
#[must_use]
pub struct CompositeBuilder {
    default: Arc<dyn Backend>,
    routes: BTreeMap<VfsPathBuf, Mount>,
    concurrency: usize,
    transfer_bytes_max: u64,
}

impl CompositeBuilder {
    pub(super) fn new(default: Arc<dyn Backend>) -> Self {
        Self { default, routes: BTreeMap::new(), concurrency: CONCURRENCY, transfer_bytes_max: TRANSFER_BYTES_MAX }
    }

    /// Mounts a backend as the directory at `prefix`; a trailing `/` changes nothing.
    ///
    /// # Errors
    /// [`InvalidPath`](crate::ErrorKind::InvalidPath) for a prefix that is no absolute path, and
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for `/`, which is the default's, and for a prefix that is taken.
    pub fn route(self, prefix: impl AsRef<str>, backend: Arc<dyn Backend>) -> Result<Self> {
        self.insert(prefix.as_ref(), Mount { backend, is_file: false })
    }

    /// Mounts one file at `prefix`: the root of `backend` is that file, as of a [`Subtree::file`](crate::Subtree::file). The
    /// path is a file when one is there, and absent until it is written; it is never a directory.
    ///
    /// # Errors
    /// As [`CompositeBuilder::route`].
    pub fn file_route(self, prefix: impl AsRef<str>, backend: Arc<dyn Backend>) -> Result<Self> {
        self.insert(prefix.as_ref(), Mount { backend, is_file: true })
    }

    /// Mounts several backends as directories.
    ///
    /// # Errors
    /// As [`CompositeBuilder::route`], for the first prefix that fails.
    pub fn routes<P: AsRef<str>>(self, routes: impl IntoIterator<Item = (P, Arc<dyn Backend>)>) -> Result<Self> {
        routes.into_iter().try_fold(self, |builder, (prefix, backend)| builder.route(prefix, backend))
    }

    /// Sets how many mounts a search or listing asks at the same time; at least 1, by default 16.
    pub fn with_concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency.max(1);
        self
    }

    /// Sets the largest file in bytes that a rename or copy carries from one mount to another; each is held in memory while it
    /// is carried. By default 64 MiB.
    pub fn with_transfer_bytes_max(mut self, transfer_bytes_max: u64) -> Self {
        self.transfer_bytes_max = transfer_bytes_max;
        self
    }

    /// Puts the composite together.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a mount beneath a file route.
    pub fn build(self) -> Result<CompositeBackend> {
        for prefix in self.routes.keys() {
            if let Some(file) = prefix.ancestors().find(|above| self.routes.get(*above).is_some_and(|mount| mount.is_file)) {
                return Err(invalid_prefix(prefix, &format!("lies beneath `{file}`, which is mounted as a file")));
            }
        }
        let default = Mount { backend: self.default, is_file: false };
        Ok(CompositeBackend {
            router: Router::new(default, self.routes),
            concurrency: self.concurrency,
            transfer_bytes_max: self.transfer_bytes_max,
        })
    }

    fn insert(mut self, prefix: &str, mount: Mount) -> Result<Self> {
        let path = VfsPathBuf::parse(prefix)
            .map_err(|invalid| Error::from(invalid).with_message(format!("`{prefix}` cannot be mounted at: {invalid}")))?;
        if path.is_root() {
            return Err(invalid_prefix(&path, "is the place of the default backend; mount beneath it"));
        }
        if self.routes.contains_key(&path) {
            return Err(invalid_prefix(&path, "is mounted already; name each prefix once"));
        }
        self.routes.insert(path, mount);
        Ok(self)
    }
}

fn invalid_prefix(prefix: &VfsPath, why: &str) -> Error {
    Error::invalid_argument(format!("`{prefix}` {why}")).at(prefix)
}
