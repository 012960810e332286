//! A mount that could not be opened. It exists, but operations in it fail.
//!
//! A missing token must not disable the other routes. Each call tries to open the mount again, so the mount works as soon as the token
//! is there.

use async_trait::async_trait;
use std::fmt;
use std::sync::{Arc, OnceLock};
use treehold_core::error::{Error, Result};
use treehold_core::ops::Capabilities;
use treehold_core::path::VfsPath;
use treehold_tree::backend::Backend;
use treehold_tree::forward_backend;

type Open = Box<dyn Fn() -> Result<Arc<dyn Backend>> + Send + Sync>;

/// A tree that is opened by the first call that succeeds in opening it.
pub(super) struct Deferred {
    open: Open,
    tree: OnceLock<Arc<dyn Backend>>,
}

impl Deferred {
    /// Opens a tree now if possible, otherwise on use.
    pub(super) fn open(open: impl Fn() -> Result<Arc<dyn Backend>> + Send + Sync + 'static) -> Arc<dyn Backend> {
        match open() {
            Ok(tree) => tree,
            Err(_) => Arc::new(Self { open: Box::new(open), tree: OnceLock::new() }),
        }
    }

    fn tree(&self) -> Result<&Arc<dyn Backend>> {
        match self.tree.get() {
            Some(tree) => Ok(tree),
            None => {
                // The failure concerns the root, whatever path was requested.
                let tree = (self.open)().map_err(|error| error.at(VfsPath::ROOT))?;
                Ok(self.tree.get_or_init(|| tree))
            }
        }
    }
}

impl fmt::Display for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tree.get() {
            Some(tree) => tree.fmt(f),
            None => f.pad("Unopened"),
        }
    }
}

impl fmt::Debug for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deferred").field("tree", &self.tree.get()).finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for Deferred {
    fn capabilities(&self) -> Capabilities {
        self.tree().map_or_else(|_: Error| Capabilities::new(), |tree| tree.capabilities())
    }

    forward_backend! { self => self.tree()?; stat, read, ls, glob, grep, search, apply, review }
}
