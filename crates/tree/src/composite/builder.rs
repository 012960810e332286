//! Building a composite. Prefixes are validated here, so routing need not check them.

use super::router::{Router, Table};
use super::{CompositeBackend, Mount};
use crate::backend::Backend;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use treehold_core::error::{Error, Result};
use treehold_core::path::{VfsPath, VfsPathBuf};

/// The default number of mounts that are queried concurrently.
const CONCURRENCY: usize = 16;

/// The default limit on files transferred between mounts, in bytes: the most that one read returns.
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

    /// Mounts a backend as the directory `prefix`; a trailing `/` is ignored.
    ///
    /// # Errors
    /// [`InvalidPath`](treehold_core::error::ErrorKind::InvalidPath) for a prefix that is not an absolute path, and
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for `/`, which belongs to the default backend, and for a
    /// prefix already in use.
    pub fn route(self, prefix: impl AsRef<str>, backend: Arc<dyn Backend>) -> Result<Self> {
        self.insert(prefix.as_ref(), Mount { backend, is_file: false })
    }

    /// Mounts a single file at `prefix`: the root of `backend` is that file, as in a
    /// [`Subtree::file`](crate::backend::Subtree::file). The path is a file if it exists and absent until it is written; it is
    /// never a directory.
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

    /// Sets how many mounts a search or listing queries concurrently; at least 1, by default 16.
    pub fn with_concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency.max(1);
        self
    }

    /// Sets the largest file, in bytes, that a rename or copy transfers between mounts. One file at a time is held in
    /// memory. Default 64 MiB.
    pub fn with_transfer_bytes_max(mut self, transfer_bytes_max: u64) -> Self {
        self.transfer_bytes_max = transfer_bytes_max;
        self
    }

    /// Builds the composite.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a mount below a file mount.
    pub fn build(self) -> Result<CompositeBackend> {
        for prefix in self.routes.keys() {
            if let Some(file) = prefix.ancestors().find(|above| self.routes.get(*above).is_some_and(|mount| mount.is_file)) {
                return Err(invalid_prefix(prefix, &format!("lies beneath `{file}`, which is mounted as a file")));
            }
        }
        let (prefixes, routes): (BTreeSet<_>, Vec<_>) = self.routes.into_iter().unzip();
        let default = Mount { backend: self.default, is_file: false };
        Ok(CompositeBackend {
            router: Router::new(Arc::new(Table::new(prefixes)), std::iter::once(default).chain(routes).collect()),
            concurrency: self.concurrency,
            transfer_bytes_max: self.transfer_bytes_max,
        })
    }

    fn insert(mut self, prefix: &str, mount: Mount) -> Result<Self> {
        let path = VfsPathBuf::parse(prefix)
            .map_err(|invalid| Error::from(invalid).with_message(format!("`{prefix}` cannot be mounted at: {invalid}")))?;
        if path.is_root() {
            return Err(of_default(&path));
        }
        if self.routes.contains_key(&path) {
            return Err(already_mounted(&path));
        }
        self.routes.insert(path, mount);
        Ok(self)
    }
}

/// The prefixes of directories that are mounted in many composites, each time with other backends. Clones share the table of them.
///
/// ```
/// use std::sync::Arc;
/// use treehold_core::path::VfsPathBuf;
/// use treehold_tree::backend::{Backend, BackendExt, StateBackend};
/// use treehold_tree::composite::Routes;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let routes = Routes::new([VfsPathBuf::parse("/memories")?])?;
/// let open = || Arc::new(StateBackend::new()) as Arc<dyn Backend>;
/// let (ada, bob) = (routes.composite(open(), vec![open()]), routes.composite(open(), vec![open()]));
/// ada.write("/memories/user.md", "likes tea\n").await?;
/// assert!(!bob.exists("/memories/user.md").await?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Routes(Arc<Table>);

impl Routes {
    /// Makes the table of these prefixes.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for `/`, which belongs to the default backend, and for a
    /// prefix that is given twice.
    pub fn new(prefixes: impl IntoIterator<Item = VfsPathBuf>) -> Result<Self> {
        let mut table = BTreeSet::new();
        for prefix in prefixes {
            if prefix.is_root() {
                return Err(of_default(&prefix));
            }
            if let Some(twice) = table.replace(prefix) {
                return Err(already_mounted(&twice));
            }
        }
        Ok(Self(Arc::new(Table::new(table))))
    }

    /// Mounts backends at the prefixes, in path order, over the default one. The options are those of a new [`CompositeBuilder`].
    ///
    /// Cost: one allocation, whatever the prefixes are.
    ///
    /// # Panics
    /// If there is not one backend for each prefix.
    pub fn composite(&self, default: Arc<dyn Backend>, backends: Vec<Arc<dyn Backend>>) -> CompositeBackend {
        assert_eq!(backends.len() + 1, self.0.len(), "one backend for each prefix");
        let mounts = std::iter::once(default).chain(backends).map(|backend| Mount { backend, is_file: false });
        CompositeBackend {
            router: Router::new(self.0.clone(), mounts.collect()),
            concurrency: CONCURRENCY,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
        }
    }
}

fn of_default(prefix: &VfsPath) -> Error {
    invalid_prefix(prefix, "belongs to the default backend; mount below it")
}

fn already_mounted(prefix: &VfsPath) -> Error {
    invalid_prefix(prefix, "is already mounted; use each prefix once")
}

fn invalid_prefix(prefix: &VfsPath, why: &str) -> Error {
    Error::invalid_argument(format!("`{prefix}` {why}")).at(prefix)
}
