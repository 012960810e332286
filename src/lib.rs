//! One file tree for AI agents, whose parts live in different tiers.

pub mod clock;
pub mod error;
pub mod path;

pub mod file;
pub mod ops;
pub mod scope;
pub mod search;
pub mod store;
pub mod text;

pub mod backend;
pub mod composite;
pub mod layer;

#[cfg(feature = "conformance")]
pub mod conformance;

pub mod tools;

pub mod config;

pub use backend::{Backend, BackendExt, StateBackend, StoreBackend, Subtree};
#[cfg(all(feature = "filesystem", unix))]
pub use backend::{FilesystemBackend, FilesystemOptions, SyncMode};
pub use clock::Clock;
pub use composite::CompositeBackend;
pub use error::{Error, ErrorKind, Result};
pub use path::{InvalidPath, VfsPath, VfsPathBuf};
pub use scope::{NamespaceTemplate, Scope};
pub use store::{MemoryStore, Namespace, Store};
